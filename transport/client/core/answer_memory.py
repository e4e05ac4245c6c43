"""Answer memory: the messages that were finished or rejected, until the broker has confirmed it.

The broker confirms an answer when it is committed, see `ConsumerSession.barrier`. If the link is
lost before that, the message may come back to the same process, although it was handled. Then the
client gives the same answer once more, and nobody handles the message again.

A message that comes back after its answer was confirmed, or on the link of its answer, is to be
handled: somebody has moved the channel back. If the link was lost, the message may also go to
another process, or its answer was committed. Then it never comes back. So an entry ends after
`keep_s`, and only the newest `entries_max` are kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from .confirm import Confirm
from .consumer_session import ConsumerSession, LeasedBlock
from .message import MessageView, Reason, as_error

ENTRIES_MAX: Final = 10_000
KEEP_S: Final = 600.0


class AnswerPlace(NamedTuple):
    """A message of a channel, which is the same at each delivery.

    The time makes a difference if the topic was restored from a backup, or created again. Then
    another message may have the offset.
    """

    topic: str
    channel: str
    part: int | None
    offset: int
    timestamp_ns: int


def place_of(message: MessageView) -> AnswerPlace:
    return AnswerPlace(
        message.topic, message.channel, message.part, message.offset, message.timestamp_ns
    )


class Ending(NamedTuple):
    """The end of a message: finished, or rejected for a reason."""

    rejected: str | None = None


class _Entry:
    """An ending, the session that sends it, and its confirmation. None: the broker has no lease.

    The broker refuses an answer without a lease, so such a message comes back for certain.
    """

    __slots__ = ("confirm", "ending", "session", "until_s")

    def __init__(self, ending: Ending, session: ConsumerSession, until_s: float) -> None:
        self.ending = ending
        self.session = session
        self.confirm: Confirm | None = None
        self.until_s = until_s

    @property
    def confirmed(self) -> bool:
        confirm = self.confirm
        return confirm is not None and confirm.done and confirm.error is None

    def came_back(self, delivery: LeasedBlock) -> bool:
        """Return True if this delivery exists because the answer did not arrive."""
        confirm = self.confirm
        if confirm is None or (confirm.done and confirm.error is not None):
            return True
        return not confirm.done and delivery.session is not self.session


class AnswerMemory:
    """The newest answers that are not confirmed. It is thread-safe, and serves any consumers."""

    def __init__(
        self,
        entries_max: int = ENTRIES_MAX,
        keep_s: float = KEEP_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries_max = entries_max
        self._keep_s = keep_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[AnswerPlace, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, place: AnswerPlace) -> bool:
        return place in self._entries

    @contextlib.contextmanager
    def answering(self, message: MessageView, rejected: Reason | None = None) -> Iterator[None]:
        """Remember the answer that is given in this block: a finish, or a reject for a reason."""
        delivery: LeasedBlock = message._batch.delivery
        session = delivery.session
        leased = message.leased
        ending = Ending(None if rejected is None else as_error(rejected))
        entry = _Entry(ending, session, self._clock_s() + self._keep_s)
        session.next_confirm.wanted = True
        self._add(place_of(message), entry)
        try:
            yield
        finally:
            # The confirmation is read after the answer was noted, and before `live`. If it is
            # newer than the answer, then so is the epoch.
            confirm = session.next_confirm
            confirm.wanted = True
            if leased and delivery.live:
                entry.confirm = confirm

    def _add(self, place: AnswerPlace, entry: _Entry) -> None:
        with self._lock:
            self._entries.pop(place, None)
            self._entries[place] = entry
            now_s = self._clock_s()
            while len(self._entries) > 1:
                oldest = next(iter(self._entries.values()))
                full = len(self._entries) > self._entries_max
                if not (full or oldest.confirmed or oldest.until_s <= now_s):
                    return
                self._entries.popitem(last=False)

    def take(self, message: MessageView) -> Ending | None:
        """Return how a message ended that came back because its answer did not arrive.

        It is forgotten then: `answering` remembers the next answer.
        """
        with self._lock:
            entry = self._entries.pop(place_of(message), None)
        if entry is None or entry.until_s <= self._clock_s():
            return None
        return entry.ending if entry.came_back(message._batch.delivery) else None
