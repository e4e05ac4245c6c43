"""Extensions: leases that are extended while a handler works, and how long handlers take. No I/O.

A lease is extended after a third of it has passed since the handler began, and again after each
further third. So the message goes to another consumer only if this process ends, hangs, or loses
the broker, or when the handler has worked longer than allowed. A fixed time-out would deliver a
long task again while it still runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from ...errors import E_BAD_ARGUMENT, UsageError
from ..link.timeouts import FAR_NS
from .consumer_session import ConsumerSession, LeasedBlock
from .message import MessageView
from .prefetch import Window

SHARE: Final = 3
NS_PER_S: Final = 1_000_000_000
Touch = Callable[[LeasedBlock, list[int]], object]
Place = tuple[ConsumerSession, int, int]
"""Which message it is, whatever its delivery is: its session, its offset, and its time."""


class Work:
    """One message whose handler works."""

    __slots__ = ("begun_ns", "delivery", "index", "is_gathered", "next_ns")

    def __init__(self, delivery: LeasedBlock, index: int, now_ns: int) -> None:
        self.is_gathered = False  # True while it waits for its batch, and no handler has it
        self.delivery = delivery
        self.index = index
        self.begun_ns = now_ns
        self.next_ns = now_ns + delivery.timeout_ms * 1_000_000 // SHARE


def _place(delivery: LeasedBlock, index: int) -> Place:
    return delivery.session, delivery.offset(index), delivery.block.time_of(index)


class Extensions:
    """The messages whose handlers work now: one for each thread or task, or those of its batch.

    `begin` and `end` may be called by any thread, and take no lock: each operation on a dict is one
    step. `longest_ns` is how long a handler may work under an extended lease.
    """

    def __init__(self) -> None:
        self.longest_ns = FAR_NS
        self._works: dict[object, Work] = {}
        # Works whose link was lost, as far as it was known at these epochs of the sessions. A batch
        # may have thousands of them, and so may the deliveries in which they come back.
        self._orphans: dict[Place, tuple[object, Work]] = {}
        self._orphans_of: dict[ConsumerSession, int] = {}

    def begin(self, worker: object, delivery: LeasedBlock, index: int, now_ns: int) -> None:
        if not delivery.live:
            self._orphans_of.clear()
        self._works[worker] = Work(delivery, index, now_ns)

    def gather(self, worker: object, *, is_gathered: bool) -> None:
        """Note whether this message waits for its batch, or is with its handler."""
        self._works[worker].is_gathered = is_gathered

    def end(self, worker: object) -> None:
        self._works.pop(worker, None)

    def workers_at(self, delivery: LeasedBlock, indexes: Sequence[int]) -> list[object]:
        """Return who works on these messages of a delivery."""
        return [
            worker
            for worker, work in list(self._works.items())
            if work.delivery is delivery and work.index in indexes
        ]

    def adopt(self, delivery: LeasedBlock, index: int, now_ns: int) -> bool:
        """Return True if a handler works on this message, which has come back on a new link.

        Its lease is extended from now on. When the handler ends, its finish is for this delivery. A
        message that waits for its batch is with no handler, so it is taken once more.
        """
        if self._orphans_of.get(delivery.session) != delivery.epoch:
            self._orphans_of[delivery.session] = delivery.epoch
            self._orphans = {
                _place(work.delivery, work.index): (worker, work)
                for worker, work in list(self._works.items())
                if not (work.is_gathered or work.delivery.live)
            }
        worker, work = self._orphans.get(_place(delivery, index), (None, None))
        if work is None or self._works.get(worker) is not work or work.delivery.live:
            return False
        work.delivery, work.index = delivery, index
        work.next_ns = now_ns + delivery.timeout_ms * 1_000_000 // SHARE
        return True

    def on_time(self, now_ns: int, touch: Touch) -> int:
        """Extend the leases that are due, and return when the next one is."""
        next_ns = FAR_NS
        due: dict[int, tuple[LeasedBlock, list[int]]] = {}
        for work in list(self._works.values()):
            delivery = work.delivery
            if not delivery.live or now_ns >= work.begun_ns + self.longest_ns:
                continue
            if now_ns >= work.next_ns:
                work.next_ns = now_ns + delivery.timeout_ms * 1_000_000 // SHARE
                due.setdefault(id(delivery), (delivery, []))[1].append(work.index)
            next_ns = min(next_ns, work.next_ns)
        for delivery, indexes in due.values():
            touch(delivery, sorted(indexes))
        return next_ns


class Working:
    """The handlers of `run` that work now: their leases are extended, and their times measured.

    `worker` is what calls a handler: a thread or a task. It calls one handler at a time. A batch
    has no worker: each of its messages is noted by itself.
    """

    def __init__(self, extensions: Extensions, window: Window, max_extension_s: float) -> None:
        self._extensions = extensions
        self._window = window
        extensions.longest_ns = FAR_NS
        if max_extension_s < FAR_NS / NS_PER_S:
            extensions.longest_ns = int(max_extension_s * NS_PER_S)

    def begin(self, worker: object, message: MessageView) -> int:
        """Note that a handler begins with this message. Return the time, in nanoseconds."""
        now_ns = time.monotonic_ns()
        self._extensions.begin(worker, message._batch.delivery, message._index, now_ns)
        return now_ns

    def gathered(self, message: MessageView) -> None:
        """Note that this message waits for its batch, so that its lease is extended."""
        now_ns = time.monotonic_ns()
        self._extensions.begin(message, message._batch.delivery, message._index, now_ns)
        self._extensions.gather(message, is_gathered=True)

    def begin_batch(self, messages: Sequence[MessageView]) -> int:
        """Note that a handler begins with these messages. Return the time, in nanoseconds."""
        for message in messages:
            self._extensions.gather(message, is_gathered=False)
        return time.monotonic_ns()

    def end_batch(self, messages: Sequence[MessageView], begun_ns: int | None) -> None:
        """Note that nobody works on the messages of a batch any more.

        `begun_ns` is when its handler began, if it did. The messages were handled side by side, as
        by so many handlers, which is how the window counts.
        """
        for message in messages:
            self._extensions.end(message)
        if begun_ns is not None:
            self._window.handled((time.monotonic_ns() - begun_ns) / NS_PER_S)

    def goes_on(self, message: MessageView) -> bool:
        """Return True if a handler works on this message already, see `Extensions.adopt`."""
        delivery = message._batch.delivery
        return delivery.epoch > 0 and self._extensions.adopt(
            delivery, message._index, time.monotonic_ns()
        )

    def end(self, worker: object, begun_ns: int) -> None:
        self._extensions.end(worker)
        self._window.handled((time.monotonic_ns() - begun_ns) / NS_PER_S)


def check_extension(value: float | timedelta | None) -> float:
    """Return `max_extension` in seconds. None means without limit. Raises `UsageError`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return math.inf
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        text = f"max_extension must be 0 or more seconds, a timedelta, or None, not {value!r:.80}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return float(seconds)
