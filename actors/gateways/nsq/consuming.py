"""Subscription of one NSQ consumer: deliveries as NSQ frames, and FIN, REQ and TOUCH as answers.

It uses an engine of the client library. A delivery is a block under one lease, but an NSQ client
answers each message by its id. So delivered messages are kept by id. The FINs of one read are
looked up together in C code and sent to the channel as ranges.

Each message has its own deadline. A TOUCH is for one message but extends the lease of its whole
delivery. Messages that were not touched are returned as expired at their deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, cast

from ....transport.client.core.consumer_session import ALL, EVERY, ConsumerSession, LeasedBlock
from ....transport.client.core.link import FAR_NS
from ....transport.client.core.producer_session import Reaction
from ....transport.client.core.subscription import ConsumerEngine
from ....transport.errors import E_TIMEOUT
from ....transport.nsq.wire import encode_messages, message_ids, message_offsets
from ....transport.wire.address import Address
from ....transport.wire.protocol import EXPIRED, Answer, Run
from ..acting import NOBODY
from .publishing import SettledTurner

_MS: Final = 1_000_000
# The channel's scan has this time to return expired messages before the gateway forgets them.
_LATE_NS: Final = 500 * _MS
_SWEEP_S: Final = 0.25
_ASKED_MAX: Final = 10_000
# The most answered deliveries whose runs are kept, to name the messages of a refusal. A refusal
# arrives within milliseconds.
_ANSWERED_MAX: Final = 1_000
# The longest time that a topic may take to start. Clients give up a silent connection after a
# minute.
SUB_S: Final = 30.0

Refused = Callable[[str, bytes], None]
"""Called with "FIN", "REQ" or "TOUCH" and an id if the consumer had lost the message."""


class Handed:
    """A delivery that the client has received.

    `touched` has the deadlines of touched messages by id. `deadline_ns` applies to the others.
    """

    __slots__ = ("deadline_ns", "delivery", "ids", "left", "places", "touched")

    def __init__(self, delivery: LeasedBlock, ids: Sequence[bytes]) -> None:
        self.delivery = delivery
        self.ids = ids
        self.left = len(ids)
        self.deadline_ns = delivery.received_ns + delivery.timeout_ms * _MS
        self.touched: dict[bytes, int] = {}
        self.places: dict[bytes, int] | None = None

    def index(self, message_id: bytes) -> int:
        """Return the message's index in the block."""
        if len(self.delivery.runs) == 1:
            return int(message_id, 16) - self.delivery.runs[0][0]
        return self._places()[message_id]

    def indexes(self, ids: Sequence[bytes]) -> list[int]:
        if len(self.delivery.runs) == 1:
            first = self.delivery.runs[0][0]
            return [offset - first for offset in message_offsets(ids)]
        return list(map(self._places().__getitem__, ids))

    def _places(self) -> dict[bytes, int]:
        if self.places is None:
            self.places = {one: place for place, one in enumerate(self.ids)}
        return self.places


def _places_of(delivery: LeasedBlock) -> tuple[Sequence[int], int | list[int]]:
    """Return the offsets of the delivery's messages, and their attempts.

    If all attempts are equal, which is usual, they are one number.
    """
    runs = delivery.runs
    if len(runs) == 1:
        first, count, attempts = runs[0]
        return range(first, first + count), attempts
    offsets = [first + i for first, count, _ in runs for i in range(count)]
    if len({run[2] for run in runs}) == 1:
        return offsets, runs[0][2]
    return offsets, [attempts for _, count, attempts in runs for _ in range(count)]


def _end_of_run(found: Sequence[Handed | None], start: int) -> int:
    """Return the end of the entries from `start` on that belong to the same delivery.

    Clients usually finish messages in the order of delivery. So it first tries all messages that
    are left of the delivery.
    """
    handed = found[start]
    if handed is not None:
        stop = min(start + handed.left, len(found))
        if found[start:stop].count(handed) == stop - start:
            return stop
    stop = start + 1
    while stop < len(found) and found[stop] is handed:
        stop += 1
    return stop


class _Session(ConsumerSession):
    """A session that reports refusals, so that NSQ clients learn which messages were refused.

    If a delivery was answered as a whole or touched, the channel's refusal does not name messages.
    So the runs of the most recently answered deliveries are kept by token.
    """

    on_refused: Callable[[int, Sequence[tuple[int, int]]], None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.answered: dict[int, Sequence[Run]] = {}

    def _note(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        super()._note(delivery, indexes)
        if len(indexes) == delivery.block.count:
            self.answered[delivery.token] = delivery.runs
            if len(self.answered) > _ANSWERED_MAX:
                del self.answered[next(iter(self.answered))]

    def on_answer(self, message: Answer) -> Reaction:
        if message.refused:
            self.on_refused(message.token, message.refused)
        return super().on_answer(message)


class Subscription:
    """The subscription of one client to a channel.

    `hand` is called with frames for the client and the number of messages in them. `answer` is
    called once, with "" when the subscription is open or with the reason why it failed. `lost` is
    called with the reason if an open subscription ends.
    """

    def __init__(
        self, url: str, topic: str, channel: str, label: str, msg_timeout_ms: int, max_msg_timeout_ms: int, sample_rate: int,
        hand: Callable[[bytes, int], None], answer: Callable[[str], None], refused: Refused, lost: Callable[[str], None],
        by: Mapping[str, str] = NOBODY,
    ) -> None:  # fmt: skip
        self.topic, self.channel = topic, channel
        self._max_msg_timeout_ms = max_msg_timeout_ms
        self.loop = asyncio.get_running_loop()
        self._open = False
        self.session = _Session(1, msg_timeout_ms, label, sample_rate)
        self.session.ready = 0  # no deliveries until the client sends RDY
        self.session.on_refused = self._on_refused
        self.engine = ConsumerEngine(
            Address(url, True, None, by), topic, channel, self.session, None, {}
        )
        self.engine.on_void = self._void
        # A deleted channel is not created again: its consumers get an error.
        self.engine.link.busy = lambda: not self._open
        self.held: dict[bytes, Handed] = {}
        self.paused = False  # True while the client does not read
        self._hand, self._answer, self._refused, self._lost = hand, answer, refused, lost
        self._asked: dict[bytes, str] = {}  # the last answer to each id if it was not FIN
        self._out: deque[Handed] = deque()  # the deliveries in the order of their deadlines
        self._planned = False
        self._stopped = False
        self._turner = SettledTurner(self.engine, self._settle)
        self.engine.start()
        self._turner.settle()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
        self._late = self.loop.call_later(SUB_S, self._too_late)

    # From the client

    def set_ready(self, count: int) -> None:
        self.session.set_ready(count)
        self._plan()

    def finish(self, ids: list[bytes]) -> list[bytes]:
        """Finish messages and return the ids of those that are not in flight here."""
        found = list(map(self.held.pop, ids, repeat(None)))
        missing: list[bytes] = []
        start = 0
        while start < len(ids):
            handed = found[start]
            stop = _end_of_run(found, start)
            if handed is None:
                missing += ids[start:stop]
            else:
                if stop - start == len(handed.ids):
                    handed.delivery.finish(EVERY)
                else:
                    handed.delivery.finish_many(handed.indexes(ids[start:stop]))
                handed.left -= stop - start
            start = stop
        self._plan()
        return missing

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        handed = self.held.pop(message_id, None)
        if handed is None:
            return False
        handed.left -= 1
        self._asked[message_id] = "REQ"
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self.session.requeue(handed.delivery, [handed.index(message_id)], delay_ms)
        self._plan()
        return True

    def touch(self, message_id: bytes) -> bool:
        """Extend the deadline of one message, up to the maximum after its delivery."""
        handed = self.held.get(message_id)
        now = time.monotonic_ns()
        if handed is None or now >= handed.touched.get(message_id, handed.deadline_ns):
            return False
        delivery = handed.delivery
        latest = delivery.received_ns + self._max_msg_timeout_ms * _MS
        handed.touched[message_id] = min(now + delivery.timeout_ms * _MS, latest)
        self.session.touch(delivery)
        self._plan()
        return True

    def leave(self) -> None:
        self.session.set_ready(0)
        self._plan()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self._hand_out()

    def stop(self) -> None:
        """End the subscription. Other consumers get its messages at once."""
        if self._stopped:
            return
        self._stopped = True
        self.engine.tell(time.monotonic_ns())  # send the finishes that are still here
        self._sweeper.cancel()
        self._late.cancel()
        self._turner.stop(linger_ms=200)
        self.held.clear()
        self._out.clear()

    @property
    def in_flight(self) -> int:
        return len(self.held)

    # To the channel

    def _plan(self) -> None:
        """Schedule sending the collected answers, once in a turn of the event loop."""
        if not self._planned and not self._stopped:
            self._planned = True
            self.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._planned = False
        if not self._stopped:
            self.engine.tell(time.monotonic_ns())
            self._turner.settle()

    # From the channel

    def _settle(self) -> None:
        if self._stopped:
            return
        error = self.engine.error
        if error is not None:
            self.engine.error = None
            self._over(f"{error.code} {error.text}")
            return
        if not self._open and self.engine.open:
            self._open = True
            self._late.cancel()
            self._answer("")
        self._hand_out()

    def _over(self, why: str) -> None:
        """Report that the channel was deleted or refused the subscription."""
        answered, self._open = self._open, True
        if answered:
            self._lost(why)
        else:
            self._answer(why)

    def _too_late(self) -> None:
        """Fail the subscription if it is not open yet, so that the client can try another node."""
        if not self._open and not self._stopped:
            trouble = self.engine.link.trouble
            self._over(
                f"{E_TIMEOUT} channel {self.topic}/{self.channel} was not ready within "
                f"{SUB_S:g} s{trouble and f' ({trouble})'}"
            )

    def _hand_out(self) -> None:
        arrived = self.session.arrived
        while arrived and not self.paused and not self._stopped:
            delivery = arrived.popleft()
            block = delivery.block
            offsets, attempts = _places_of(delivery)
            ids = message_ids(offsets)
            handed = Handed(delivery, ids)
            self.held.update(dict.fromkeys(ids, handed))
            self._out.append(handed)
            times = block.times
            bodies = cast("list[bytes]", block.body.values())
            self._hand(
                encode_messages(
                    bodies,
                    ids,
                    attempts,
                    times.tolist() if times is not None else block.header.time_ns,
                ),
                len(ids),
            )

    def _void(self) -> None:
        """Forget all deliveries, because their leases ended with the link."""
        self.held.clear()
        self._out.clear()
        self._asked.clear()

    def _on_refused(self, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        for first, count in ranges:
            if first == ALL:
                self._refused_whole(token)
                continue
            for message_id in message_ids(range(first, first + count)):
                self._refused(self._asked.pop(message_id, "FIN"), message_id)

    def _refused_whole(self, token: int) -> None:
        """Report the refusal of a delivery that the channel no longer knows.

        This happens if the channel was emptied or moved by a seek, or if the delivery timed out
        there first.
        """
        runs = self.session.answered.pop(token, None)
        if runs is not None:
            for start, count, _ in runs:
                for message_id in message_ids(range(start, start + count)):
                    self._refused(self._asked.pop(message_id, "FIN"), message_id)
            return
        handed = next((one for one in self._out if one.delivery.token == token), None)
        # Here the client had touched the delivery. It has lost the messages that it did not answer.
        if handed is not None:
            for message_id in handed.touched:
                self._refused("TOUCH", message_id)
            self._drop(handed, handed.ids)

    # Time

    def _sweep(self) -> None:
        """Forget messages whose deadline is over.

        If other messages of their delivery were touched, return them to the channel as expired.
        """
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
        now = time.monotonic_ns()
        later: list[Handed] = []
        while self._out and (not self._out[0].left or self._out[0].deadline_ns <= now):
            handed = self._out.popleft()
            if not handed.left:
                continue
            if not handed.touched:
                if handed.deadline_ns + _LATE_NS > now:
                    later.append(handed)
                else:
                    self._drop(handed, handed.ids)
                continue
            over = [
                one
                for one in handed.ids
                if self.held.get(one) is handed
                and handed.touched.get(one, handed.deadline_ns) <= now
            ]
            if over:
                self.session.requeue(handed.delivery, handed.indexes(over), EXPIRED)
                self._drop(handed, over)
                self._plan()
            if handed.left:
                # All messages that are left were touched.
                handed.deadline_ns = min(
                    (due for one, due in handed.touched.items() if self.held.get(one) is handed),
                    default=FAR_NS,
                )
                later.append(handed)
        if later:
            self._out = deque(sorted((*later, *self._out), key=lambda one: one.deadline_ns))

    def _drop(self, handed: Handed, ids: Iterable[bytes]) -> None:
        for one in ids:
            if self.held.get(one) is handed:
                del self.held[one]
                handed.left -= 1
        if not handed.left:
            self.session.held.pop(handed.delivery.token, None)
