"""Failures: the last failed deliveries of a channel, for people who ask what is wrong. No I/O.

They are only in memory, and only the newest ones. So they do not survive a restart of the channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...transport.wire.protocol import Run
from ..settings import options


class Cause(NamedTuple):
    """Why a message comes back: for dead letters, and for people who ask.

    `error` is a sentence. Without one, the message has not failed. `traceback` says where a handler
    raised the error. `consumer` is the label of the consumer.
    """

    error: str
    consumer: str = ""
    traceback: str = ""

    @property
    def size(self) -> int:
        """The length of its texts that are not short, in characters."""
        return len(self.error) + len(self.traceback)


NOT_FAILED: Final = Cause("")


class Failure(NamedTuple):
    """A failed delivery. The run has the number of attempts that it has used."""

    run: Run
    error: str


class Failures:
    """The newest failures of a channel."""

    def __init__(self) -> None:
        self._newest: deque[Failure] = deque(maxlen=options.FAILURES_MAX)

    def note(self, runs: Iterable[Run], cause: Cause) -> None:
        """Note failed deliveries. Messages that no handler has begun have not failed."""
        if cause.error:
            self._newest.extendleft(Failure(run, cause.error) for run in runs if run[2])

    def newest(self) -> Iterable[Failure]:
        """Return the failures, the newest first."""
        return self._newest

    def error_of(self, start: int, count: int) -> str:
        """Return the last error of these messages, or "" if none is known of all of them."""
        for (first, size, _), error in self._newest:
            if first <= start and start + count <= first + size:
                return error
        return ""

    def clear(self) -> None:
        self._newest.clear()
