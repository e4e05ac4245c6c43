"""Message batches: which messages a handler of `run(batch=...)` gets at once. No I/O.

A message batch is not a `Batch`, which is a delivery as the broker sent it. It may have a part of a
delivery, or messages of several ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from ...errors import E_BAD_ARGUMENT, UsageError
from ...settings import check_type
from ...units import NS_PER_S
from ...wire.protocol import READY_MAX
from ..link.timeouts import FAR_NS
from .deferral import as_seconds
from .message import MessageView, Reason, as_error

_MessageT = TypeVar("_MessageT", bound=MessageView)

HALVING_FAILURES_MAX: Final = 16
"""After so many calls in a row that fail, halving ends. The reason is then no single message: with
a database that is down, it would call the handler twice for each message.
"""


class BatchLimits(NamedTuple):
    """The limits at which a batch is complete: messages, bytes of their bodies, and the wait."""

    count_max: int
    max_bytes: float
    wait_ns: int


def limits_of(
    count: int | None,
    wait: float | timedelta,
    size_bytes: int | None,
    ready: int | None,
    *,
    halving: bool = False,
) -> BatchLimits | None:
    """Return the limits for these arguments of `run`, or None if it handles single messages.

    `ready` is the number of messages that the consumer may hold, if it is fixed. Raises
    `UsageError`.
    """
    if count is None:
        if halving or size_bytes is not None:
            what = "halving" if halving else "batch_bytes"
            raise UsageError(E_BAD_ARGUMENT, f"{what} needs batch, the number of its messages")
        return None
    check_type("batch", count)
    highest = READY_MAX if ready is None else ready
    if not 1 <= count <= highest:
        limit = "" if ready is None else ", the consumer's `ready`"
        raise UsageError(E_BAD_ARGUMENT, f"batch must be 1 to {highest}{limit}, not {count}")
    try:
        wait_s = as_seconds(wait)
    except UsageError:
        wait_s = math.inf
    if not 0 <= wait_s < math.inf:
        raise UsageError(E_BAD_ARGUMENT, f"batch_wait must be 0 or more seconds, not {wait!r:.80}")
    if size_bytes is not None:
        check_type("batch_bytes", size_bytes)
        if size_bytes < 1:
            raise UsageError(E_BAD_ARGUMENT, f"batch_bytes must be at least 1, not {size_bytes}")
    return BatchLimits(count, size_bytes or math.inf, int(wait_s * NS_PER_S))


class BatchGathering(Generic[_MessageT]):
    """The messages of one batch, while they are gathered."""

    def __init__(self, limits: BatchLimits) -> None:
        self.messages: list[_MessageT] = []
        self.until_ns = FAR_NS  # when it is complete at the latest, with its first message
        self._limits = limits
        self._bytes = 0
        self._is_full = False

    def has_room(self, message: _MessageT) -> bool:
        """Return True if the message is to be added. If not, the batch is complete.

        The first message has room whatever its size is.
        """
        if self.messages and self._bytes + len(message.body) > self._limits.max_bytes:
            self._is_full = True
        return not self._is_full

    def add(self, message: _MessageT, now_ns: int) -> None:
        if not self.messages:
            self.until_ns = now_ns + self._limits.wait_ns
        self.messages.append(message)
        self._bytes += len(message.body)
        self._is_full = len(self.messages) >= self._limits.count_max or (
            self._bytes >= self._limits.max_bytes
        )

    def is_complete(self, now_ns: int) -> bool:
        return self._is_full or now_ns >= self.until_ns


class MessageBatch(Sequence[_MessageT]):
    """The messages that a handler of `run(batch=...)` gets at once.

    When the handler returns, `run` finishes all of them that are not answered. Each one can be
    answered alone: with its `finish`, `requeue` or `reject`, or with `fail`.
    """

    def __init__(self, messages: Sequence[_MessageT]) -> None:
        self._messages = messages
        self._failed: dict[int, tuple[_MessageT, Reason]] = {}
        self._known: set[int] = set()

    def fail(self, message: _MessageT, error: Reason = "") -> None:
        """Requeue this message when the handler ends, as if its handler had raised `error`.

        `on_error` gets both, or the log. The other messages of the batch are not concerned. Of
        several calls for a message, the last one counts.
        """
        self._known = self._known or {id(known) for known in self._messages}
        if id(message) not in self._known:
            raise UsageError(E_BAD_ARGUMENT, f"{message!r:.200} is no message of this batch")
        if message.answered:
            text = f"message {message.offset} is already answered, so it cannot fail"
            raise UsageError(E_BAD_ARGUMENT, text)
        as_error(error)
        self._failed[id(message)] = message, error

    @property
    def failed(self) -> list[tuple[_MessageT, BaseException]]:
        """The messages for which `fail` was called, with their errors."""
        return [
            (message, error if isinstance(error, BaseException) else MessageFailed(error))
            for message, error in self._failed.values()
            if not message.answered
        ]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the messages."""
        return [message.body for message in self._messages]

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> _MessageT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_MessageT]: ...
    def __getitem__(self, index: int | slice) -> _MessageT | Sequence[_MessageT]:
        return self._messages[index]

    def __iter__(self) -> Iterator[_MessageT]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"<MessageBatch {len(self)} messages from {self._messages[0]!r}>"


class MessageFailed(Exception):
    """The error of a message for which a handler called `MessageBatch.fail` with a text."""


class Halving(Generic[_MessageT]):
    """The parts of a batch that are still to be handled, until each message that fails is alone.

    The halves of a batch that failed are handled one level after the other. So a single message
    that fails makes at most two calls in a row fail. Without `halves`, a batch is handled once.
    """

    def __init__(self, messages: Sequence[_MessageT], *, halves: bool) -> None:
        self._queue: deque[Sequence[_MessageT]] = deque([messages])
        self._halves = halves
        self._failures = 0  # in a row
        self.has_succeeded = False  # True if one call has not failed

    def next(self) -> Sequence[_MessageT] | None:
        return self._queue.popleft() if self._queue else None

    def succeeded(self) -> None:
        self._failures = 0
        self.has_succeeded = True

    def failed(self, left: Sequence[_MessageT]) -> list[_MessageT]:
        """Note that a call failed and left these messages unanswered. Return those that are
        requeued.
        """
        self._failures += 1
        if not self._halves or self._failures >= HALVING_FAILURES_MAX:
            waiting = [message for messages in self._queue for message in messages]
            self._queue.clear()
            return [*left, *waiting]
        if len(left) <= 1:
            return list(left)
        middle = (len(left) + 1) // 2
        self._queue += (left[:middle], left[middle:])
        return []


def by_delivery(messages: Iterable[_MessageT]) -> list[tuple[Any, list[_MessageT]]]:
    """Group messages by their delivery, so that each needs one answer."""
    groups: dict[int, tuple[Any, list[_MessageT]]] = {}
    for message in messages:
        delivery = message._batch.delivery
        groups.setdefault(id(delivery), (delivery, []))[1].append(message)
    return list(groups.values())
