"""HttpSubscription: one consumer of a channel, which many receives over HTTP share.

It uses an engine of the client library, as a consumer does. A receive is a `Poll`. The polls wait
in a line, and the first one gets messages first. The subscription asks the channel for as many
messages as the polls want, and for none without a poll. Messages that arrive when no poll wants
them go back at once, and use no attempt.

A message is begun when a poll gets it. `leases.py` keeps the leases until they are answered or
over. A lease that is over is given back as expired, so that the channel and the gateway agree. The
bodies are not kept: a delivery loses its columns when its messages were handed out.

`OPEN` and what happens in it:

* A poll comes or goes, or messages are handed out: the credit changes. It is lowered before
  messages are answered, because each answer makes room at the channel.
* A delivery that comes alone is reported, and handed out when the channel has answered.
* A link is lost: its leases end. The polls wait until the engine has another link.
* The channel refuses the subscription, or is deleted: the polls fail, and it closes.
* Leases of FULL_BYTES: the polls end without a message, and go to another subscription. The
  channel sends no consumer more than twice as much.
* A part sends what no poll wants any more: it is kept for HELD_S. Otherwise the nearest part would
  always be first, and the others would not be read while it has messages.
* IDLE_S without a poll and a lease: it closes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from .....transport.block.block import Block
from .....transport.client.core.confirm import Confirm
from .....transport.client.core.consumer_session import ALL, ConsumerSession, LeasedBlock
from .....transport.client.core.message import StoredMessage, id_of, message_at
from .....transport.client.core.subscription import ConsumerEngine
from .....transport.client.link.timeouts import deadline_of
from .....transport.errors import (
    E_CLOSING,
    E_TIMEOUT,
    BrokerUnreachable,
    LeaseLost,
    Refused,
    ZsqError,
)
from .....transport.units import NS_PER_MS, NS_PER_S
from .....transport.wire.address import Address
from .....transport.wire.protocol import EXPIRED, READY_MAX, UNBEGUN
from ....settings.options import CONSUMER_BYTES_MAX
from ...limiter import Limiter
from ...shared.gatherer import SettledTurner
from .leases import AnsweredLease, HttpLease, HttpLeases, Outcome, Verb

Lease = HttpLease[LeasedBlock]
Answered = AnsweredLease[LeasedBlock]

OPEN_S: Final = 20.0  # the longest time that a topic may take to start
SHORTEST_S: Final = 0.2  # a receive waits at least so long, so that the channel can answer
CONFIRM_S: Final = 30.0
IDLE_S: Final = 30.0
HELD_S: Final = 1.0
FULL_BYTES: Final = CONSUMER_BYTES_MAX // 2


class Received(NamedTuple):
    """A message that a poll got, with the number of its lease."""

    number: int
    message: StoredMessage
    id: str
    attempts: int
    part: int | None


class Wanted(NamedTuple):
    """The most that a receive wants. `holder` has the places of its leases."""

    holder: str
    count_max: int
    max_bytes: int


class Poll:
    """One receive: what it wants, and what it has got. `ended` is set when it is complete."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.bytes_left = wanted.max_bytes
        self.received: list[Received] = []
        self.error: ZsqError | None = None
        self.ended = asyncio.Event()

    def has_room(self, size: int) -> bool:
        """Return True if it wants a message with so many bytes. The first one may be larger."""
        if not self.received:
            return True
        return len(self.received) < self.wanted.count_max and size <= self.bytes_left

    def add(self, received: Received) -> None:
        self.received.append(received)
        self.bytes_left -= len(received.message.body)

    def fail(self, error: ZsqError) -> None:
        self.error = error
        self.ended.set()


class Failure(NamedTuple):
    """Why a token was not answered. `outcome` is CONFLICT or GONE."""

    outcome: Outcome
    text: str


Failures = dict[int, Failure]
CONFLICT: Final = Failure(
    Outcome.CONFLICT, "the message was finished or requeued before; that answer stays"
)
GONE: Final = Failure(
    Outcome.GONE, "the lease has ended; the message was or will be delivered again"
)


class HttpSubscription:
    """The subscription of one user to one channel, with one lease time.

    `places` are those of its leases. `over` is called once, when it has closed. `by` is the user
    for the audit log.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        channel: str,
        lease_ms: int,
        label: str,
        by: Mapping[str, str],
        places: Limiter,
        over: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.leases: HttpLeases[LeasedBlock] = HttpLeases(lease_ms * NS_PER_MS)
        self.is_closed = False
        self._places = places
        self._over = over
        self._polls: deque[Poll] = deque()
        self._alone: list[tuple[LeasedBlock, Confirm]] = []
        self._bytes = 0  # of deliveries that are not completely answered
        self._turn = 0  # of the parts
        self._opened = asyncio.Event()  # or it has failed
        self._is_planned = False
        self._loop = asyncio.get_running_loop()

        def session(ready: int = 0) -> ConsumerSession:
            return ConsumerSession(0, lease_ms, label)

        self._engine = ConsumerEngine(
            Address(url, True, None, by), topic, channel, session(), None, {}, session
        )
        # A deleted channel is not created again, only because a lease of it is left.
        self._engine.link.busy = lambda: not self._opened.is_set()
        self._engine.on_void = self._forget
        self._engine.on_part_void = self._forget
        self._turner = SettledTurner(self._engine, self._settle)
        self._timer = self._loop.call_later(IDLE_S, self._on_time)
        self._engine.start()
        self._turner.settle()

    @property
    def is_full(self) -> bool:
        return self._bytes >= FULL_BYTES

    # Receiving

    async def receive(self, wanted: Wanted, wait_s: float) -> list[Received]:
        """Wait for messages, and lease them. Return none if it becomes full.

        The holder needs places for all of them. Raises `Refused` (E_LIMIT) if there are not so many
        left. If this is cancelled, the messages are given back.
        """
        self._places.take(wanted.holder, wanted.count_max)
        poll = Poll(wanted)
        try:
            self._check_open()
            self._polls.append(poll)
            self._ask()
            self._settle()
            await self._wait(self._opened, OPEN_S)
            if not self._opened.is_set():
                trouble = self._engine.link.trouble
                raise BrokerUnreachable(
                    E_TIMEOUT,
                    f"the channel was not ready within {OPEN_S:g} s{trouble and f' ({trouble})'}",
                )
            await self._wait(poll.ended, max(SHORTEST_S, wait_s))
            if poll.error is not None:
                raise poll.error
        except BaseException:
            self.give_back(poll.received)
            raise
        finally:
            if poll in self._polls:
                self._polls.remove(poll)
                self._ask()
            unused = wanted.count_max - len(poll.received)
            if unused:
                self._places.give_back(wanted.holder, unused)
            self._set_timer()
        return poll.received

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass

    def give_back(self, received: Iterable[Received]) -> None:
        """Give messages back whose client is gone. They use no attempt."""
        leases = [self.leases.end(message.number) for message in received]
        self._end([lease for lease in leases if lease is not None], UNBEGUN)

    def _end(self, leases: Sequence[Lease], how: int) -> None:
        """Give messages back: UNBEGUN, or EXPIRED."""
        for delivery, group in by_delivery(leases).items():
            self._lower(delivery.session, len(group))
            delivery.session.requeue(delivery, [lease.position for lease in group], how)
            self._note_closed(delivery)
        self._free(leases)
        self._plan()

    def _free(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._places.give_back(lease.holder)

    def _check_open(self) -> None:
        if self.is_closed:
            raise Refused(E_CLOSING, "the subscription is closed")

    # Answering

    async def answer(
        self,
        verb: Verb,
        numbers: Iterable[int],
        send: Callable[[LeasedBlock, list[int]], Confirm],
    ) -> Failures:
        """Answer these leases, wait until it is confirmed, and return those that failed.

        `send` gives the answer for messages of one delivery.
        """
        now_ns = time.monotonic_ns()
        failures: Failures = {}
        answers: dict[int, Answered] = {}
        leases: dict[int, Lease] = {}
        for number in numbers:
            outcome = self.leases.outcome(verb, number, now_ns)
            if outcome is Outcome.CARRY_OUT:
                leases[number] = self.leases.lease(number)
            elif outcome is Outcome.REPEAT:
                answers[number] = self.leases.answered(number)
            else:
                failures[number] = CONFLICT if outcome is Outcome.CONFLICT else GONE
        self._engine.tell(now_ns)  # what was begun must be known before it is answered
        confirms: dict[LeasedBlock, Confirm] = {}
        for delivery, group in by_delivery(leases.values()).items():
            if verb is not Verb.TOUCH:
                self._lower(delivery.session, len(group))
            confirms[delivery] = send(delivery, [lease.position for lease in group])
            self._note_closed(delivery)
        for number, lease in leases.items():
            answers[number] = Answered(verb, lease, confirms[lease.delivery])
            if verb is Verb.TOUCH:
                self.leases.extend(number, now_ns)
            else:
                self.leases.answer(number, answers[number])
                self._free([lease])
        self._engine.tell(now_ns)
        await self._confirmed([answer.confirm for answer in answers.values()])
        self._set_timer()
        for number, answer in answers.items():
            error = answer.confirm.error
            if error is not None and _concerns(answer):
                if not isinstance(error, LeaseLost):
                    raise error
                failures[number] = GONE
                ended = self.leases.end(number)
                self._free([ended] if ended is not None else [])
        return failures

    async def _confirmed(self, confirms: Sequence[Confirm]) -> None:
        is_done = lambda: all(confirm.done for confirm in confirms)  # noqa: E731
        if not await self._turner.wait(is_done, deadline_of(CONFIRM_S)):
            raise BrokerUnreachable(
                E_TIMEOUT, "the channel did not confirm it; it may still take effect"
            )

    def _lower(self, session: ConsumerSession, count: int) -> None:
        """Lower the credit before so many messages are answered, which makes room."""
        if session.ready:
            session.set_ready(max(0, session.ready - count))

    def _note_closed(self, delivery: LeasedBlock) -> None:
        if delivery.closed:
            self._bytes -= delivery.block.length

    # From the channel

    def _settle(self) -> None:
        """Carry out what the engine has received."""
        if self.is_closed:
            return
        error = self._engine.take_error()
        if error is not None:
            self.close(error)
            return
        if self._engine.up:
            self._opened.set()
        if self._polls and not all(leg.session.ready for leg in self._engine.legs):
            self._ask()  # there is a new part
        self._hand_out()

    def _hand_out(self) -> None:
        handed = self._hand_out_alone()
        while (delivery := self._next()) is not None:
            handed = True
            if delivery.alone and self._polls:
                confirm = delivery.session.begin_alone(delivery, time.monotonic_ns())
                self._alone.append((delivery, confirm))
                self._plan()
            else:
                self._hand(delivery)
        if not handed:
            return
        for poll in [poll for poll in self._polls if poll.received or self.is_full]:
            self._complete(poll)
        self._ask()
        self._set_timer()
        if not self._polls and self._engine.arrived:
            self._loop.call_later(HELD_S, self._give_held_back)

    def _hand_out_alone(self) -> bool:
        """Hand out what came alone and may be begun now."""
        confirmed = [row for row in self._alone if row[1].done]
        self._alone = [row for row in self._alone if not row[1].done]
        for delivery, confirm in confirmed:
            if confirm.error is None:
                self._hand(delivery)
        return bool(confirmed)

    def _next(self) -> LeasedBlock | None:
        """Return the next delivery that arrived. The parts take turns."""
        legs = self._engine.legs
        if not self._polls and self._engine.has_parts:
            return None
        for _ in legs:
            self._turn = (self._turn + 1) % len(legs)
            if legs[self._turn].session.arrived:
                return legs[self._turn].session.arrived.popleft()
        return None

    def _give_held_back(self) -> None:
        if not self._polls and not self.is_closed:
            self._engine.give_all_back()

    def _complete(self, poll: Poll) -> None:
        self._polls.remove(poll)
        poll.ended.set()

    def _hand(self, delivery: LeasedBlock) -> None:
        """Give the messages of a delivery to the polls, and what none wants to the channel."""
        now_ns = time.monotonic_ns()
        session, block = delivery.session, delivery.block
        index = 0
        while index < block.count and self._polls:
            poll = self._polls[0]
            message = message_at(self.topic, block, index)
            if not poll.has_room(len(message.body)):
                self._complete(poll)
                continue
            number = self.leases.add(delivery, index, poll.wanted.holder, now_ns)
            offset = delivery.offset(index)
            name = id_of(offset, session.node, session.part)
            attempts = delivery.attempts(index)
            message = message._replace(offset=offset)
            poll.add(Received(number, message, name, attempts, session.part))
            index += 1
        delivery.take(index)
        delivery.block = Block(block.header, b"")
        self._bytes += block.length
        if index < block.count:
            session.set_ready(0)  # there is no poll, and what goes back must not come again
            session.give_back(delivery, range(index, block.count))
            self._note_closed(delivery)
        self._plan()

    def _forget(self, session: ConsumerSession | None = None) -> None:
        """End the leases whose link was lost."""
        self._alone = [row for row in self._alone if row[0].live]
        self._free(self.leases.forget(lambda delivery: not delivery.live))
        held = [leg.session.held.values() for leg in self._engine.legs]
        self._bytes = sum(delivery.block.length for row in held for delivery in row)
        self._ask()

    # To the channel

    def _ask(self) -> None:
        """Ask the channel for as many messages as the polls want."""
        if self.is_closed:
            return
        legs = self._engine.legs
        wanted = sum(poll.wanted.count_max for poll in self._polls)
        share = -(-wanted // max(1, len(legs)))  # parts may send more than all polls want
        for session in [leg.session for leg in legs]:
            held = sum(delivery.block.count for delivery in session.arrived)
            ready = session.unanswered + max(0, share - held) if share else 0
            if ready != session.ready:
                session.set_ready(min(ready, READY_MAX))
        self._plan()

    def _plan(self) -> None:
        """Schedule sending what was gathered, once in a turn of the event loop."""
        if not self._is_planned and not self.is_closed:
            self._is_planned = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_planned = False
        if not self.is_closed:
            self._engine.tell(time.monotonic_ns())
            self._turner.settle()

    # Time and end

    def _set_timer(self) -> None:
        if self.is_closed:
            return
        self._timer.cancel()
        wait_s = IDLE_S
        if (due_ns := self.leases.due_ns) is not None:
            wait_s = max(0.01, (due_ns - time.monotonic_ns()) / NS_PER_S)
        self._timer = self._loop.call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        if not self.leases and not self._polls:
            self.close(Refused(E_CLOSING, "the subscription was idle"))
            return
        self._end(self.leases.expire(time.monotonic_ns()), EXPIRED)
        self._set_timer()

    def close(self, error: ZsqError) -> None:
        """End the subscription. The polls fail with this error, and all leases end."""
        if self.is_closed:
            return
        self._engine.tell(time.monotonic_ns())  # send the finishes that are still here
        self.is_closed = True
        self._timer.cancel()
        for poll in self._polls:
            poll.fail(error)
        self._polls.clear()
        self._opened.set()
        self._free(self.leases.forget(lambda delivery: True))
        self._turner.stop(linger_ms=200)
        self._over()


def by_delivery(leases: Iterable[Lease]) -> dict[LeasedBlock, list[Lease]]:
    groups: dict[LeasedBlock, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.delivery, []).append(lease)
    return groups


def _concerns(answer: Answered) -> bool:
    """Return True if the error of this answer's confirmation is about its message."""
    offset = answer.lease.delivery.offset(answer.lease.position)
    refused = answer.confirm.refused
    return not refused or any(
        first == ALL or first <= offset < first + count for first, count in refused
    )
