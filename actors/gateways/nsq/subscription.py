"""Subscription of one NSQ consumer: deliveries as NSQ frames, and FIN, REQ and TOUCH as answers.

It uses an engine of the client library. `in_flight.py` keeps the messages that wait for an answer,
and `SUBSCRIPTION_TABLE`, at the end of this file, has the states.

If the topic has parts, the consumer gets the messages of the parts at this broker. NSQ's clients
connect to all brokers that have a part, as to several nsqds, so each message has one way to them.
The engine has a subscription (a *leg*) for each of these parts, and `ready_shares.py` divides RDY
among them. There may be none: then SUB is answered with OK, and nothing is delivered until a part
comes.

What happens:

* SUB, and the broker answers that the topic has parts: each part here gets a leg. SUB is answered
  when all legs are open, or after `SUB_S` if one is.
* RDY, a delivery, an answer, or a time that `ready_shares.py` sets: credits change, each by a
  Ready. A credit that is lowered is followed by a Touch without a delivery. The channel answers it
  at once, behind all deliveries that it has sent.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple, cast

from ....transport.client.core.confirm import Confirm
from ....transport.client.core.consumer_session import ConsumerSession, ConsumerState, LeasedBlock
from ....transport.client.core.subscription import ConsumerEngine
from ....transport.client.link.timeouts import FAR_NS
from ....transport.errors import E_TIMEOUT
from ....transport.nsq.wire import encode_messages
from ....transport.system import EventSet
from ....transport.units import NS_PER_S
from ....transport.wire.address import Address
from ....transport.wire.protocol import Spread
from ..acting_clients import NOBODY
from ..shared.gatherer import SettledTurner
from .in_flight import InFlight
from .ready_shares import ReadyShares
from .reporting_session import ReportingSession
from .trunks import BranchEvents, Trunks

_SWEEP_S: Final = 0.25  # the shortest time between two looks for expired messages
# The longest time that a topic may take to start. Clients give up a silent connection after a
# minute.
SUB_S: Final = 30.0

Refused = Callable[[str, bytes], None]
"""Called with "FIN", "REQ" or "TOUCH" and an id if the consumer had lost the message."""


class SubscriptionState(Enum):
    OPENING = auto()
    OPEN = auto()
    LEFT = auto()  # CLS was received: messages in flight may still be answered
    OVER = auto()  # it was refused, or its channel is gone: the session closes the connection
    STOPPED = auto()


class SubscriptionEvent(Enum):
    ACCEPTED = auto()
    FAILED = auto()  # the channel was deleted, has refused the subscription, or did not answer
    LEAVE = auto()
    STOP = auto()
    LOST = auto()  # the connection ended, and not by a request of the client or the gateway


class Subscription:
    """The subscription of one client to a channel, or to those of the topic's parts here.

    `here` returns the numbers of these parts, or None if they are not known yet. `hand` is called
    with frames for the client and the number of messages in them. `answer` is called once, with ""
    when the subscription is open or with the reason why it failed. `lost` is called with the reason
    if an open subscription ends. `trunks` are the connections that it shares with others. `open_s`:
    the time in which the channel must accept.
    """

    def __init__(
        self, trunks: Trunks, url: str, topic: str, channel: str, label: str, msg_timeout_ms: int,
        max_msg_timeout_ms: int, sample_rate: int, hand: Callable[[bytes, int], None],
        answer: Callable[[str], None], refused: Refused, lost: Callable[[str], None],
        by: Mapping[str, str] = NOBODY, here: Callable[[Spread], Collection[int] | None] = lambda spread: (),
        open_s: float = SUB_S,
    ) -> None:  # fmt: skip
        self.topic, self.channel = topic, channel
        self.loop = asyncio.get_running_loop()
        self.state = SubscriptionState.OPENING
        self._options = msg_timeout_ms, label, sample_rate
        self.session = self._new_session()
        events = BranchEvents()
        self.engine = ConsumerEngine(
            Address(url, True, None, by), topic, channel, self.session, None, {}, lambda ready: self._new_session(), here,
            partial(trunks.connect, events), cast("EventSet", events),
        )  # fmt: skip
        self.engine.on_void = self._void
        self.engine.on_part_void = self._void_part
        # A deleted channel is not created again: its consumers get an error.
        self.engine.link.busy = lambda: self.state is SubscriptionState.OPENING
        self.messages = InFlight(max_msg_timeout_ms, self._on_gone)
        self.paused = False  # True while the client does not read
        self._hand, self._answer, self._refused, self._lost = hand, answer, refused, lost
        self._planned = False
        self.shares = ReadyShares()
        # The credits that were lowered and are not confirmed yet, by the number of their part.
        self._lowered: dict[int, Confirm] = {}
        self._sharer: asyncio.TimerHandle | None = None
        self._turner = SettledTurner(self.engine, self.settle)
        self.engine.start()
        self._turner.settle()
        self._sweeper: asyncio.TimerHandle | None = None  # while messages are in flight
        self._open_s = open_s
        self._late = self.loop.call_later(open_s, self.on_late)

    def _new_session(self) -> ReportingSession:
        session = ReportingSession(0, *self._options)  # no deliveries until the client sends RDY
        session.on_refused = self._on_refused
        session.on_arrived = self._on_arrived
        return session

    # From the client

    def set_ready(self, count: int) -> None:
        self.shares.set_ready(count)
        self.session.set_ready(count)
        self._share()
        self._plan()

    def finish(self, ids: list[bytes]) -> list[bytes]:
        """Finish messages and return the ids of those that are not in flight here."""
        missing = self.messages.finish(ids)
        self._share()
        self._plan()
        return missing

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        is_held = self.messages.requeue(message_id, delay_ms)
        if is_held:
            self._share()
            self._plan()
        return is_held

    def touch(self, message_id: bytes) -> bool:
        """Extend the deadline of one message, up to the maximum after its delivery."""
        is_held = self.messages.touch(message_id, time.monotonic_ns())
        if is_held:
            self._plan()
        return is_held

    def leave(self) -> None:
        self._on(SubscriptionEvent.LEAVE)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self._hand_out()

    def stop(self, *, is_lost: bool = False) -> None:
        """End the subscription. Other consumers get its messages at once.

        `is_lost`: the connection ended, and not by a request of the client or the gateway.
        """
        self._on(SubscriptionEvent.LOST if is_lost else SubscriptionEvent.STOP)

    @property
    def in_flight(self) -> int:
        return len(self.messages)

    # States

    def _on(self, event: SubscriptionEvent, why: str = "") -> None:
        step = SUBSCRIPTION_TABLE[self.state].get(event)
        if step is not None:
            self.state = step.after
            step.action(self, why)

    @property
    def _stopped(self) -> bool:
        return self.state is SubscriptionState.STOPPED

    def _accept(self, why: str) -> None:
        self._late.cancel()
        self._answer("")

    def _refuse(self, why: str) -> None:
        self._answer(why)

    def _lose(self, why: str) -> None:
        self._lost(why)

    def _leave(self, why: str) -> None:
        self.set_ready(0)

    def _stop(self, why: str) -> None:
        self.engine.tell(time.monotonic_ns())  # send the finishes that are still here
        self._end()

    def _stop_lost(self, why: str) -> None:
        """Tell the channel of the loss, because one of the messages may be the reason."""
        self.engine.tell(time.monotonic_ns())
        self.engine.say_lost(time.monotonic_ns())
        self._end()

    def _end(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._late.cancel()
        if self._sharer is not None:
            self._sharer.cancel()
        self._turner.stop(linger_ms=200)
        self.messages.clear()

    # Parts

    @property
    def parts(self) -> frozenset[int] | None:
        """The numbers of the parts that it reads, or None if the topic has no parts."""
        if not self.engine.has_parts:
            return None
        numbers = (leg.session.part for leg in self.engine.legs)
        return frozenset(number for number in numbers if number is not None)

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
            if part is not None and part not in self.shares and session.state is ConsumerState.OPEN:
                self.shares.join(part)
        for part in [part for part, confirm in self._lowered.items() if confirm.done]:
            del self._lowered[part]
            self.shares.confirmed(part)
        orders = self.shares.plan(time.monotonic_ns())
        for order in orders:
            session = cast("ReportingSession", sessions[order.part])
            if order.lowers:
                self._lowered[order.part] = session.lower_ready(order.ready)
            else:
                session.set_ready(order.ready)
        if orders:
            self._plan()
        if self._sharer is not None:
            self._sharer.cancel()
            self._sharer = None
        if self.shares.due_ns != FAR_NS:
            wait_s = max(0.0, (self.shares.due_ns - time.monotonic_ns()) / NS_PER_S)
            self._sharer = self.loop.call_later(wait_s, self._share)

    def _on_arrived(self, session: ConsumerSession, count: int) -> None:
        if session.part is not None:
            self.shares.delivered(session.part, count, time.monotonic_ns())

    def _on_gone(self, session: ConsumerSession, count: int) -> None:
        if session.part is not None:
            self.shares.answered(session.part, count, time.monotonic_ns())

    def _void_part(self, session: ConsumerSession) -> None:
        """Forget the deliveries of a part, because their leases ended with its link."""
        part = session.part
        if part is None:
            return
        session.ready = 0  # the next link begins without a credit
        self.shares.leave(part)
        self.messages.forget(session)

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

    def settle(self) -> None:
        """Carry out what the engine has received."""
        if self._stopped:
            return
        error = self.engine.take_error()
        if error is not None:
            self._on(SubscriptionEvent.FAILED, f"{error.code} {error.text}")
            return
        if self.state is SubscriptionState.OPENING and self.engine.open:
            self._on(SubscriptionEvent.ACCEPTED)
        self._share()
        self._hand_out()

    def on_late(self) -> None:
        """Fail the subscription if it is not open yet, so that the client can try another node.

        If some parts are open, they are enough.
        """
        if self.engine.has_parts and self.engine.up:
            self._on(SubscriptionEvent.ACCEPTED)
        elif self.state is SubscriptionState.OPENING:
            trouble = self.engine.link.trouble
            self._on(
                SubscriptionEvent.FAILED,
                f"{E_TIMEOUT} channel {self.topic}/{self.channel} was not ready within "
                f"{self._open_s:g} s{trouble and f' ({trouble})'}",
            )

    def _hand_out(self) -> None:
        for leg in self.engine.legs:
            self._hand_out_of(leg.session.arrived)

    def _hand_out_of(self, arrived: deque[LeasedBlock]) -> None:
        while arrived and not self.paused and not self._stopped:
            delivery = arrived.popleft()
            block = delivery.block
            held = self.messages.add(delivery)
            if self._sweeper is None:
                self._sweep_later()
            times = block.times
            bodies = cast("list[bytes]", block.body.values())
            self._hand(
                encode_messages(
                    bodies,
                    held.ids,
                    held.attempts,
                    times.tolist() if times is not None else block.header.time_ns,
                ),
                len(held.ids),
            )

    def _void(self) -> None:
        """Forget all deliveries, because their leases ended with the link."""
        self.messages.clear()

    def _on_refused(
        self, session: ReportingSession, token: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        for name, message_id in self.messages.refused(session, token, ranges):
            self._refused(name, message_id)

    # Time

    def sweep(self) -> None:
        """Forget messages whose deadline is over."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self.messages.expire(time.monotonic_ns()):
            self._plan()
        self._share()
        self._sweep_later()

    def _sweep_later(self) -> None:
        """Sweep at the first deadline. Without messages in flight, no timer runs."""
        due_ns = self.messages.due_ns
        if due_ns != FAR_NS:
            wait_s = max(_SWEEP_S, (due_ns - time.monotonic_ns()) / NS_PER_S)
            self._sweeper = self.loop.call_later(wait_s, self.sweep)


class SubscriptionStep(NamedTuple):
    """A row of the table: the state after an event, and what to do then, with the reason."""

    after: SubscriptionState
    action: Callable[[Subscription, str], None]


_STOP: Final = SubscriptionStep(SubscriptionState.STOPPED, Subscription._stop)
_STOP_LOST: Final = SubscriptionStep(SubscriptionState.STOPPED, Subscription._stop_lost)
_LOSE: Final = SubscriptionStep(SubscriptionState.OVER, Subscription._lose)
SUBSCRIPTION_TABLE: Final[dict[SubscriptionState, dict[SubscriptionEvent, SubscriptionStep]]] = {
    SubscriptionState.OPENING: {
        SubscriptionEvent.ACCEPTED: SubscriptionStep(SubscriptionState.OPEN, Subscription._accept),
        SubscriptionEvent.FAILED: SubscriptionStep(SubscriptionState.OVER, Subscription._refuse),
        SubscriptionEvent.STOP: _STOP,
        SubscriptionEvent.LOST: _STOP_LOST,
    },
    SubscriptionState.OPEN: {
        SubscriptionEvent.FAILED: _LOSE,
        SubscriptionEvent.LEAVE: SubscriptionStep(SubscriptionState.LEFT, Subscription._leave),
        SubscriptionEvent.STOP: _STOP,
        SubscriptionEvent.LOST: _STOP_LOST,
    },
    SubscriptionState.LEFT: {
        SubscriptionEvent.FAILED: _LOSE,
        SubscriptionEvent.STOP: _STOP,
        SubscriptionEvent.LOST: _STOP,  # the client had announced it
    },
    SubscriptionState.OVER: {SubscriptionEvent.STOP: _STOP, SubscriptionEvent.LOST: _STOP},
    SubscriptionState.STOPPED: {},
}
"""The steps of a subscription. An event without a step is ignored."""
