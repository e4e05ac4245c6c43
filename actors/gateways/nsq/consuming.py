"""Subscription of one NSQ consumer: deliveries as NSQ frames, and FIN, REQ and TOUCH as answers.

It uses an engine of the client library. A delivery is a block under one lease, but an NSQ client
answers each message by its id. So delivered messages are kept by id. The FINs of one read are
looked up together in C code and sent to the channel as ranges.

Each message has its own deadline. A TOUCH is for one message but extends the lease of its whole
delivery. Messages that were not touched are returned as expired at their deadline.

If the topic has parts, the consumer gets the messages of the parts at this broker. NSQ's clients
connect to all brokers that have a part, as to several nsqds, so each message has one way to them.
The engine has a subscription (a *leg*) for each of these parts, and `sharing.py` divides RDY among
them. There may be none: then SUB is answered with OK, and nothing is delivered until a part comes.

What happens:

* SUB, and the broker answers that the topic has parts: each part here gets a leg. SUB is answered
  when all legs are open, or after `SUB_S` if one is.
* RDY, a delivery, an answer, or a time that `sharing.py` sets: credits change, each by a Ready. A
  credit that is lowered is followed by a Touch without a delivery. The channel answers it at once,
  behind all deliveries that it has sent.
* A leg loses its link: its messages are forgotten. It opens again, with a credit of 0.
* A minute has passed, or the topics of the broker have changed: the engine asks for the parts, and
  opens legs for new ones.
* A part moves to another broker, or is closed to consumers: its leg ends, and the others go on. A
  part that is closed to publishers is delivered until it is empty.
* The topic or the channel is deleted: the connection is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, cast

from ....transport.block.block import Block
from ....transport.client.core.confirm import Confirm
from ....transport.client.core.consumer_session import (
    ALL,
    EVERY,
    ConsumerSession,
    ConsumerState,
    LeasedBlock,
)
from ....transport.client.core.subscription import ConsumerEngine
from ....transport.client.link.link import FAR_NS
from ....transport.client.link.reaction import Reaction
from ....transport.errors import E_TIMEOUT
from ....transport.nsq.wire import encode_messages, id_base, message_ids, message_offsets
from ....transport.wire.address import Address
from ....transport.wire.protocol import EXPIRED, Answer, Deliver, Run, Spread, Touch
from ..acting import NOBODY
from ..shared.publishing import SettledTurner
from .sharing import Sharing

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

_OPEN: Final = ConsumerState.OPEN
Refused = Callable[[str, bytes], None]
"""Called with "FIN", "REQ" or "TOUCH" and an id if the consumer had lost the message."""


class Handed:
    """A delivery that the client has received.

    `touched` has the deadlines of touched messages by id. `deadline_ns` applies to the others.
    `base` is what the ids are above the offsets.
    """

    __slots__ = ("base", "deadline_ns", "delivery", "ids", "left", "places", "session", "touched")

    def __init__(self, delivery: LeasedBlock, ids: Sequence[bytes]) -> None:
        self.delivery = delivery
        self.session = delivery.session
        self.base = id_base(delivery.session.part)
        self.ids = ids
        self.left = len(ids)
        self.deadline_ns = delivery.received_ns + delivery.timeout_ms * _MS
        self.touched: dict[bytes, int] = {}
        self.places: dict[bytes, int] | None = None

    def index(self, message_id: bytes) -> int:
        """Return the message's index in the block."""
        if len(self.delivery.runs) == 1:
            return int(message_id, 16) - self.base - self.delivery.runs[0][0]
        return self._places()[message_id]

    def indexes(self, ids: Sequence[bytes]) -> list[int]:
        if len(self.delivery.runs) == 1:
            first = self.base + self.delivery.runs[0][0]
            return [offset - first for offset in message_offsets(ids)]
        return list(map(self._places().__getitem__, ids))

    def _places(self) -> dict[bytes, int]:
        if self.places is None:
            self.places = {one: place for place, one in enumerate(self.ids)}
        return self.places


def _places_of(delivery: LeasedBlock) -> tuple[Sequence[int], int | list[int]]:
    """Return the numbers of the delivery's ids, and the attempts of its messages.

    If all attempts are equal, which is usual, they are one number.
    """
    runs, base = delivery.runs, id_base(delivery.session.part)
    if len(runs) == 1:
        first, count, attempts = runs[0]
        return range(base + first, base + first + count), attempts
    offsets = [base + first + i for first, count, _ in runs for i in range(count)]
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

    on_refused: Callable[[_Session, int, Sequence[tuple[int, int]]], None]
    on_arrived: Callable[[_Session, int], None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, reports=False)
        self.answered: dict[int, Sequence[Run]] = {}

    def _note(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        super()._note(delivery, indexes)
        if len(indexes) == delivery.block.count:
            self.answered[delivery.token] = delivery.runs
            if len(self.answered) > _ANSWERED_MAX:
                del self.answered[next(iter(self.answered))]

    def lower_ready(self, ready: int) -> Confirm:
        """Lower the credit. When the Confirm is done, all deliveries above it have arrived.

        The question is a Touch, because the channel answers it without a commit.
        """
        self.set_ready(ready)
        confirm = Confirm()
        self._request += 1
        self.confirms[self._request] = confirm
        self.words.append(Touch(self._request, 0))
        return confirm

    def on_deliver(self, message: Deliver, blocks: list[Block], now_ns: int) -> Reaction:
        reaction = super().on_deliver(message, blocks, now_ns)
        self.on_arrived(self, blocks[0].count)
        return reaction

    def on_answer(self, message: Answer) -> Reaction:
        if message.refused:
            self.on_refused(self, message.token, message.refused)
        return super().on_answer(message)


class Subscription:
    """The subscription of one client to a channel, or to those of the topic's parts here.

    `here` returns the numbers of these parts, or None if they are not known yet. `hand` is called
    with frames for the client and the number of messages in them. `answer` is called once, with ""
    when the subscription is open or with the reason why it failed. `lost` is called with the reason
    if an open subscription ends.
    """

    def __init__(
        self, url: str, topic: str, channel: str, label: str, msg_timeout_ms: int, max_msg_timeout_ms: int, sample_rate: int,
        hand: Callable[[bytes, int], None], answer: Callable[[str], None], refused: Refused, lost: Callable[[str], None],
        by: Mapping[str, str] = NOBODY, here: Callable[[Spread], Collection[int] | None] = lambda spread: (),
    ) -> None:  # fmt: skip
        self.topic, self.channel = topic, channel
        self._max_msg_timeout_ms = max_msg_timeout_ms
        self.loop = asyncio.get_running_loop()
        self._open = False
        self._options = msg_timeout_ms, label, sample_rate
        self.session = self._new_session()
        self.engine = ConsumerEngine(
            Address(url, True, None, by), topic, channel, self.session, None, {}, lambda count: self._new_session(), here,
        )  # fmt: skip
        self.engine.on_void = self._void
        self.engine.on_part_void = self._void_part
        # A deleted channel is not created again: its consumers get an error.
        self.engine.link.busy = lambda: not self._open
        self.held: dict[bytes, Handed] = {}
        self.paused = False  # True while the client does not read
        self._hand, self._answer, self._refused, self._lost = hand, answer, refused, lost
        self._asked: dict[bytes, str] = {}  # the last answer to each id if it was not FIN
        self._out: deque[Handed] = deque()  # the deliveries in the order of their deadlines
        self._planned = False
        self._stopped = False
        self._left = False  # True after CLS
        self._sharing = Sharing()
        # The credits that were lowered and are not confirmed yet, by the number of their part.
        self._lowered: dict[int, Confirm] = {}
        self._sharer: asyncio.TimerHandle | None = None
        self._turner = SettledTurner(self.engine, self._settle)
        self.engine.start()
        self._turner.settle()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
        self._late = self.loop.call_later(SUB_S, self._too_late)

    def _new_session(self) -> _Session:
        session = _Session(0, *self._options)  # no deliveries until the client sends RDY
        session.on_refused = self._on_refused
        session.on_arrived = self._on_arrived
        return session

    # From the client

    def set_ready(self, count: int) -> None:
        self._sharing.set_ready(count)
        self.session.set_ready(count)
        self._share()
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
                self._answered(handed.session, stop - start)
                if stop - start == len(handed.ids):
                    handed.delivery.finish(EVERY)
                else:
                    handed.delivery.finish_many(handed.indexes(ids[start:stop]))
                handed.left -= stop - start
            start = stop
        self._share()
        self._plan()
        return missing

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        handed = self.held.pop(message_id, None)
        if handed is None:
            return False
        handed.left -= 1
        self._answered(handed.session, 1)
        self._asked[message_id] = "REQ"
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        handed.session.requeue(handed.delivery, [handed.index(message_id)], delay_ms)
        self._share()
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
        handed.session.touch(delivery, now)
        self._plan()
        return True

    def leave(self) -> None:
        self._left = True
        self.set_ready(0)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self._hand_out()

    def stop(self, *, is_lost: bool = False) -> None:
        """End the subscription. Other consumers get its messages at once.

        `is_lost`: the connection ended, and not by a request of the client or the gateway. Then one
        of the messages may be the reason, unless the client has said CLS before.
        """
        if self._stopped:
            return
        self._stopped = True
        self.engine.tell(time.monotonic_ns())  # send the finishes that are still here
        if is_lost and not self._left:
            self.engine.say_lost(time.monotonic_ns())
        self._sweeper.cancel()
        self._late.cancel()
        if self._sharer is not None:
            self._sharer.cancel()
        self._turner.stop(linger_ms=200)
        self.held.clear()
        self._out.clear()

    @property
    def in_flight(self) -> int:
        return len(self.held)

    # Parts

    @property
    def parts(self) -> frozenset[int] | None:
        """The numbers of the parts that it reads, or None if the topic has no parts."""
        if not self.engine.has_parts:
            return None
        numbers = (leg.session.part for leg in self.engine.legs)
        return frozenset(number for number in numbers if number is not None)

    @property
    def links(self) -> int:
        """The number of links that it uses."""
        return len(self.engine.links)

    def look_for_parts(self) -> None:
        """Ask for the parts of the topic, because they may have changed."""
        if not self._stopped:
            self.engine.ask_parts()
            self._turner.settle()

    def _share(self) -> None:
        """Divide RDY anew among the parts."""
        if not self.engine.has_parts or self._stopped:
            return
        sessions = {leg.session.part: leg.session for leg in self.engine.legs}
        for part, session in sessions.items():
            if part is not None and part not in self._sharing and session.state is _OPEN:
                self._sharing.join(part)
        for part in [part for part, confirm in self._lowered.items() if confirm.done]:
            del self._lowered[part]
            self._sharing.confirmed(part)
        orders = self._sharing.plan(time.monotonic_ns())
        for order in orders:
            session = cast("_Session", sessions[order.part])
            if order.lowers:
                self._lowered[order.part] = session.lower_ready(order.ready)
            else:
                session.set_ready(order.ready)
        if orders:
            self._plan()
        if self._sharer is not None:
            self._sharer.cancel()
            self._sharer = None
        if self._sharing.due_ns != FAR_NS:
            wait_s = max(0.0, (self._sharing.due_ns - time.monotonic_ns()) / 1e9)
            self._sharer = self.loop.call_later(wait_s, self._share)

    def _on_arrived(self, session: ConsumerSession, count: int) -> None:
        if session.part is not None:
            self._sharing.delivered(session.part, count, time.monotonic_ns())

    def _answered(self, session: ConsumerSession, count: int) -> None:
        """Note that so many messages are no longer in flight."""
        if session.part is not None:
            self._sharing.answered(session.part, count, time.monotonic_ns())

    def _void_part(self, session: ConsumerSession) -> None:
        """Forget the deliveries of a part, because their leases ended with its link."""
        part = session.part
        if part is None:
            return
        session.ready = 0  # the next link begins without a credit
        self._sharing.leave(part)
        for handed in (one for one in self._out if one.session is session):
            for one in handed.ids:
                if self.held.get(one) is handed:
                    del self.held[one]
        self._out = deque(one for one in self._out if one.session is not session)

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
            self._accept()
        self._share()
        self._hand_out()

    def _accept(self) -> None:
        self._open = True
        self._late.cancel()
        self._answer("")

    def _over(self, why: str) -> None:
        """Report that the channel was deleted or refused the subscription."""
        answered, self._open = self._open, True
        if answered:
            self._lost(why)
        else:
            self._answer(why)

    def _too_late(self) -> None:
        """Fail the subscription if it is not open yet, so that the client can try another node.

        If some parts are open, they are enough.
        """
        if not self._open and not self._stopped:
            if self.engine.has_parts and self.engine.up:
                self._accept()
                return
            trouble = self.engine.link.trouble
            self._over(
                f"{E_TIMEOUT} channel {self.topic}/{self.channel} was not ready within "
                f"{SUB_S:g} s{trouble and f' ({trouble})'}"
            )

    def _hand_out(self) -> None:
        for leg in self.engine.legs:
            self._hand_out_of(leg.session.arrived)

    def _hand_out_of(self, arrived: deque[LeasedBlock]) -> None:
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

    def _on_refused(self, session: _Session, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        for first, count in ranges:
            if first == ALL:
                self._refused_whole(session, token)
            else:
                self._refused_run(session, first, count)

    def _refused_run(self, session: _Session, first: int, count: int) -> None:
        start = id_base(session.part) + first
        for message_id in message_ids(range(start, start + count)):
            self._refused(self._asked.pop(message_id, "FIN"), message_id)

    def _refused_whole(self, session: _Session, token: int) -> None:
        """Report the refusal of a delivery that the channel no longer knows.

        This happens if the channel was emptied or moved by a seek, or if the delivery timed out
        there first.
        """
        runs = session.answered.pop(token, None)
        if runs is not None:
            for first, count, _ in runs:
                self._refused_run(session, first, count)
            return
        handed = next(
            (one for one in self._out if one.session is session and one.delivery.token == token),
            None,
        )
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
                handed.session.requeue(handed.delivery, handed.indexes(over), EXPIRED)
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
        self._share()

    def _drop(self, handed: Handed, ids: Iterable[bytes]) -> None:
        before = handed.left
        for one in ids:
            if self.held.get(one) is handed:
                del self.held[one]
                handed.left -= 1
        self._answered(handed.session, before - handed.left)
        if not handed.left:
            handed.session.held.pop(handed.delivery.token, None)
