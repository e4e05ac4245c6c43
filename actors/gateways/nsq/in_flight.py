"""Messages in flight to one NSQ consumer: delivered and not answered yet, by id.

A delivery of the client library is a block under one lease, but an NSQ client answers each message
by its id. The FINs of one read are looked up together in C code, and become ranges.

Each message has its own deadline. A TOUCH is for one message but extends the lease of its whole
delivery. Messages that were not touched are returned as expired at their deadline.

This file sends nothing and has no timers. It gives answers to the session of the delivery, and
times are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat, takewhile
from typing import Final

from ....transport.client.core.consumer_session import ALL, EVERY, ConsumerSession, LeasedBlock
from ....transport.client.link.timeouts import FAR_NS
from ....transport.nsq.wire import id_base, message_ids, message_offsets
from ....transport.units import NS_PER_MS
from ....transport.wire.protocol import EXPIRED
from .reporting_session import ReportingSession

# The channel's scan has this time to return expired messages before the gateway forgets them.
LATE_NS: Final = 500 * NS_PER_MS
REQUEUED_MAX: Final = 10_000


class HeldDelivery:
    """A delivery that the client has received.

    `touched` has the deadlines of touched messages by id. `deadline_ns` applies to the others.
    `base` is what the ids are above the offsets.
    """

    __slots__ = (
        "attempts",
        "base",
        "deadline_ns",
        "delivery",
        "ids",
        "indexes_by_id",
        "left",
        "touched",
    )

    def __init__(self, delivery: LeasedBlock) -> None:
        self.delivery = delivery
        self.base = id_base(delivery.session.part)
        numbers, self.attempts = _numbers_and_attempts(delivery)
        self.ids: Sequence[bytes] = message_ids(numbers)
        self.left = len(self.ids)
        self.deadline_ns = delivery.received_ns + delivery.timeout_ms * NS_PER_MS
        self.touched: dict[bytes, int] = {}
        self.indexes_by_id: dict[bytes, int] | None = None

    @property
    def session(self) -> ConsumerSession:
        return self.delivery.session

    def index(self, message_id: bytes) -> int:
        """Return the message's index in the block."""
        if len(self.delivery.runs) == 1:
            return int(message_id, 16) - self.base - self.delivery.runs[0][0]
        return self._indexes()[message_id]

    def indexes(self, ids: Sequence[bytes]) -> list[int]:
        if len(self.delivery.runs) == 1:
            first = self.base + self.delivery.runs[0][0]
            return [offset - first for offset in message_offsets(ids)]
        return list(map(self._indexes().__getitem__, ids))

    def _indexes(self) -> dict[bytes, int]:
        if self.indexes_by_id is None:
            self.indexes_by_id = {message_id: index for index, message_id in enumerate(self.ids)}
        return self.indexes_by_id


class InFlight:
    """The messages in flight to one consumer.

    A message that is touched is kept for `max_msg_timeout_ms` after its delivery at most.
    `on_gone` is called with a session and the number of its messages that are no longer in flight.
    """

    def __init__(
        self, max_msg_timeout_ms: int, on_gone: Callable[[ConsumerSession, int], None]
    ) -> None:
        self._max_msg_timeout_ms = max_msg_timeout_ms
        self._on_gone = on_gone
        self._held: dict[bytes, HeldDelivery] = {}
        # The deliveries with messages in flight, in the order of their deadlines.
        self._deliveries: dict[HeldDelivery, None] = {}
        self._requeued: dict[bytes, None] = {}  # the ids whose last answer was REQ

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._held

    def add(self, delivery: LeasedBlock) -> HeldDelivery:
        held = HeldDelivery(delivery)
        self._held.update(dict.fromkeys(held.ids, held))
        self._deliveries[held] = None
        return held

    @property
    def due_ns(self) -> int:
        """The first deadline, or FAR_NS if no message is in flight."""
        return next((held.deadline_ns for held in self._deliveries), FAR_NS)

    def clear(self) -> None:
        """Forget all messages, because their leases ended."""
        self._held.clear()
        self._deliveries.clear()
        self._requeued.clear()

    def forget(self, session: ConsumerSession) -> None:
        """Forget the messages of a part, because their leases ended with its link."""
        for held in list(self._deliveries):
            if held.session is session:
                for message_id in self._left_of(held):
                    del self._held[message_id]
                del self._deliveries[held]

    # Answers of the client

    def finish(self, ids: list[bytes]) -> list[bytes]:
        """Finish messages and return the ids of those that are not in flight."""
        deliveries = list(map(self._held.pop, ids, repeat(None)))
        missing: list[bytes] = []
        start = 0
        while start < len(ids):
            held = deliveries[start]
            stop = _end_of_run(deliveries, start)
            if held is None:
                missing += ids[start:stop]
            else:
                if stop - start == len(held.ids):
                    held.delivery.finish(EVERY)
                else:
                    held.delivery.finish_many(held.indexes(ids[start:stop]))
                self._gone(held, stop - start)
            start = stop
        return missing

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        held = self._held.pop(message_id, None)
        if held is None:
            return False
        self._requeued[message_id] = None
        if len(self._requeued) > REQUEUED_MAX:
            del self._requeued[next(iter(self._requeued))]
        held.session.requeue(held.delivery, [held.index(message_id)], delay_ms)
        self._gone(held, 1)
        return True

    def touch(self, message_id: bytes, now_ns: int) -> bool:
        """Extend the deadline of one message, up to the maximum after its delivery."""
        held = self._held.get(message_id)
        if held is None or now_ns >= held.touched.get(message_id, held.deadline_ns):
            return False
        delivery = held.delivery
        latest_ns = delivery.received_ns + self._max_msg_timeout_ms * NS_PER_MS
        held.touched[message_id] = min(now_ns + delivery.timeout_ms * NS_PER_MS, latest_ns)
        held.session.touch(delivery, now_ns)
        return True

    def _gone(self, held: HeldDelivery, count: int) -> None:
        """Note that so many messages of the delivery are no longer in flight."""
        held.left -= count
        if not held.left:
            self._deliveries.pop(held, None)
        self._on_gone(held.session, count)

    # Refusals of the channel

    def refused(
        self, session: ReportingSession, token: int, ranges: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield FIN, REQ or TOUCH, and the id, of each answer that the channel refused."""
        for first, count in ranges:
            if first == ALL:
                yield from self._refused_whole(session, token)
            else:
                yield from self._refused_run(session, first, count)

    def _refused_run(
        self, session: ConsumerSession, first: int, count: int
    ) -> Iterator[tuple[str, bytes]]:
        start = id_base(session.part) + first
        for message_id in message_ids(range(start, start + count)):
            if message_id in self._requeued:
                del self._requeued[message_id]
                yield "REQ", message_id
            else:
                yield "FIN", message_id

    def _refused_whole(self, session: ReportingSession, token: int) -> Iterator[tuple[str, bytes]]:
        """Yield the answers to a delivery that the channel no longer knows.

        This happens if the channel was emptied or moved by a seek, or if the delivery timed out
        there first.
        """
        runs = session.answered.pop(token, None)
        if runs is not None:
            for first, count, _ in runs:
                yield from self._refused_run(session, first, count)
            return
        for held in self._deliveries:
            if held.session is session and held.delivery.token == token:
                # The client had touched it. It has lost the messages that it did not answer.
                yield from (("TOUCH", message_id) for message_id in held.touched)
                self._drop(held, self._left_of(held))
                return

    # Deadlines

    def expire(self, now_ns: int) -> bool:
        """Forget messages whose deadline is over.

        If other messages of their delivery were touched, give them back to the channel as expired.
        Return True if there are such messages.
        """
        has_expired = False
        for held in list(takewhile(lambda held: held.deadline_ns <= now_ns, self._deliveries)):
            if held.touched:
                has_expired |= self._expire_touched(held, now_ns)
            elif held.deadline_ns + LATE_NS <= now_ns:
                self._drop(held, self._left_of(held))
        deliveries = sorted(self._deliveries, key=lambda held: held.deadline_ns)
        self._deliveries = dict.fromkeys(deliveries)
        return has_expired

    def _expire_touched(self, held: HeldDelivery, now_ns: int) -> bool:
        """Return True if messages of this delivery have expired, and others were touched."""
        deadlines = {
            message_id: held.touched.get(message_id, held.deadline_ns)
            for message_id in self._left_of(held)
        }
        expired = [message_id for message_id, due_ns in deadlines.items() if due_ns <= now_ns]
        if expired:
            held.session.requeue(held.delivery, held.indexes(expired), EXPIRED)
            self._drop(held, expired)
        # All messages that are left were touched.
        held.deadline_ns = min((ns for ns in deadlines.values() if ns > now_ns), default=FAR_NS)
        return bool(expired)

    def _left_of(self, held: HeldDelivery) -> list[bytes]:
        return [message_id for message_id in held.ids if self._held.get(message_id) is held]

    def _drop(self, held: HeldDelivery, ids: Sequence[bytes]) -> None:
        for message_id in ids:
            del self._held[message_id]
        self._gone(held, len(ids))
        if not held.left:
            held.session.held.pop(held.delivery.token, None)


def _numbers_and_attempts(delivery: LeasedBlock) -> tuple[Sequence[int], int | list[int]]:
    """Return the numbers of the delivery's ids, and the attempts of its messages.

    If all attempts are equal, which is usual, they are one number.
    """
    runs, base = delivery.runs, id_base(delivery.session.part)
    if len(runs) == 1:
        first, count, attempts = runs[0]
        return range(base + first, base + first + count), attempts
    numbers = [base + first + i for first, count, _ in runs for i in range(count)]
    if len({run[2] for run in runs}) == 1:
        return numbers, runs[0][2]
    return numbers, [attempts for _, count, attempts in runs for _ in range(count)]


def _end_of_run(deliveries: Sequence[HeldDelivery | None], start: int) -> int:
    """Return the end of the entries from `start` on that are the same delivery.

    Clients usually finish messages in the order of delivery. So it first tries all messages that
    are left of the delivery.
    """
    held = deliveries[start]
    if held is not None:
        stop = min(start + held.left, len(deliveries))
        if deliveries[start:stop].count(held) == stop - start:
            return stop
    stop = start + 1
    while stop < len(deliveries) and deliveries[stop] is held:
        stop += 1
    return stop
