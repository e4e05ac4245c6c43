"""Consumer engine: a consumer's sessions, their links, and the messages that they send.

A topic with parts has a session and a link for each part. The consumer gets one stream of all.

Nothing here waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ...block.block import Block
from ...errors import (
    E_BUCKET,
    E_CLOSED,
    E_DISK_FULL,
    E_IN_USE,
    E_INTERNAL,
    E_LEASE,
    E_LIMIT,
    E_NOT_FOUND,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
    BrokerUnreachable,
    LeaseLost,
    ZsqError,
    advice,
    from_wire,
)
from ...names import check_name, part_name, part_of
from ...settings import CHANNEL
from ...system import EventSet
from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import encode
from ...wire.protocol import Bye, Recall, Spread, Wire
from ...wire.spread import PARTS_ASKED_NS, HasParts
from ..link.connection import LinkConnection
from ..link.engine import Engine, Steps
from ..link.link import AGAIN, Link
from ..link.reaction import Reaction
from ..link.timeouts import FAR_NS, check_timeout, deadline_of, format_timeout
from .confirm import Confirm
from .consumer_backoff import BackoffState, ConsumerBackoff, Outcome
from .consumer_session import EVERY, ConsumerSession, ConsumerState, LeasedBlock
from .extensions import Extensions
from .prefetch import READY_MOST, Prefetch, Window

log = logging.getLogger("zsq")

TELL_NS: Final = 20_000_000  # how long plain finishes may wait before they are sent
CONFIRM_NS: Final = 1_000_000_000  # how long sent finishes may wait until they are confirmed
# While delivered messages still wait for the user, finishes are sent only when their number reaches
# 1/4 of the ready count. This causes fewer wake-ups.
TELL_SHARE: Final = 4
READY_FEW: Final = 100  # with so few messages, finishes are not gathered while a caller waits
CLOSED: Final = (
    "the consumer of this message is closed; the message was returned to the channel and is "
    "delivered again"
)
WORDS_MAX: Final = 5_000  # the most protocol messages that are sent before the socket is drained
# With the largest window, a consumer holds at least so many messages of each part. With fewer, the
# broker would cut blocks of 1,000 messages, which costs more than to deliver them.
READY_OF_PART: Final = 1_000
FAREWELL_MS: Final = 1_000  # how long a closed consumer may still send its last answers
SOON_NS: Final = 50_000_000  # when to ask again which parts to subscribe to, if it was not known

# Refusals that may pass without a change of the program or of its permissions.
PASSING: Final = AGAIN | {
    E_BUCKET,
    E_CLOSED,
    E_DISK_FULL,
    E_IN_USE,
    E_INTERNAL,
    E_LIMIT,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
}

Chosen = Callable[[Spread], Collection[int] | None]
"""Returns the numbers of the parts to subscribe to, or None if they are not known yet."""


def share_of(ready: int, count: int) -> int:
    """Return how many messages a consumer may hold of each part of a topic with `count` parts."""
    if not ready:
        return 0
    share = max(1, ready // count)
    return max(share, READY_OF_PART) if ready == READY_MOST else share


class Leg:
    """The subscription to a topic, or to one part of it: a session, and the peer of its link."""

    def __init__(
        self,
        engine: ConsumerEngine,
        topic: str,
        channel: str,
        session: ConsumerSession,
        settings: Mapping[str, object],
    ) -> None:
        self.engine = engine
        self.session = session
        part = part_of(topic)
        session.part = None if part is None else part[1]
        self.target = Target("channel", topic, channel, settings=settings)
        self.link = Link(engine, engine.rotation, self.target, self)
        self.link.heartbeat_ms = self._heartbeat_ms()
        self.link.expects = lambda: bool(session.confirms)
        self._known = False  # True after the subscription was accepted once
        self._compared = False
        self._confirm_ns = FAR_NS  # when the finishes sent so far are to be confirmed
        self.link.passing = engine.passing
        engine.add(self.link)

    def stay(self) -> None:
        """Never go to another broker, and do not create the channel again after it was deleted."""
        self.link.stays = True
        self.link.busy = lambda: not self._known

    def tell(self, now_ns: int) -> None:
        """Send the answers that were gathered."""
        session, link = self.session, self.link
        if not link.up:
            if session.dirty:
                session.collect()  # the leases are void now, so this counts the finishes as stale
            return
        if now_ns >= self.confirm_at(now_ns):
            session.barrier()
            self._confirm_ns = FAR_NS
        words = session.collect()
        session.report(now_ns)
        while words and link.up:
            for _ in range(min(len(words), WORDS_MAX)):
                link.send([b"", encode(words.popleft())], now_ns)
            link.receive(now_ns)
            words = session.collect()
        self.engine.sooner(self.confirm_at(now_ns))

    def confirm_at(self, now_ns: int) -> int:
        """Return when a confirmation is due, or FAR_NS.

        Without it, a consumer that does not flush would call all finishes since its start
        unconfirmed when its link is lost.
        """
        session = self.session
        sent = session.unconfirmed and not session.confirms
        if not self.link.up or not (session.next_confirm.wanted or sent):
            return FAR_NS
        self._confirm_ns = min(self._confirm_ns, now_ns + CONFIRM_NS)
        return self._confirm_ns

    # Incoming messages: the link's peer

    def greeting(self) -> Wire:
        return self.session.begin(self._heartbeat_ms())

    def _heartbeat_ms(self) -> int:
        return self.engine.wanted_heartbeat_ms or self.link.given.heartbeat_ms

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if type(message) is Recall:
            if self.engine.limit != 0:  # with 0, nothing is held but a probe that was just taken
                self.engine.give_back(self, message.count)
            return Reaction.NOTHING
        reaction = self.session.on_word(message, blocks, now_ns)
        if self.engine.limit == 0 and (arrived := self.session.arrived):  # it was on its way
            # No more than that, because the probe may still wait for its handler.
            self.engine.give_back(self, sum(delivery.block.count for delivery in arrived))
        return reaction

    def on_up(self, now_ns: int) -> None:
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self._confirm_ns = FAR_NS
        self.session.node = self.link.opened.get("node", 0)
        self._known = True
        self._compare(self.link.opened.get("settings"))
        # The channel has a place for this consumer. If the next link is refused with E_LIMIT, the
        # lost link of this consumer still holds the place.
        self.link.passing = self.engine.passing | {E_LIMIT}
        self.engine.error = None
        self.engine.reached_leg(self)
        self.tell(now_ns)

    def _compare(self, settings: object) -> None:
        """Warn, once, about settings that have no effect because the channel existed before."""
        if self._compared or not isinstance(settings, dict):
            return
        self._compared = True
        wanted = [
            (row.name, self.target.settings.get(row.name))
            for row in CHANNEL
            if row.name in settings and not row.fixed
        ]
        differ = [
            f"{name} {settings[name]!r}, not {value!r}"
            for name, value in wanted
            if value is not None and settings[name] != value
        ]
        if differ:
            text = (
                "channel %s/%s already existed and has %s; the settings of this consumer do "
                "not change it (use `zsq channel set`)"
            )
            log.warning(text, self.target.topic, self.target.channel, ", ".join(differ))

    def on_received(self, now_ns: int) -> None:
        """Do nothing, because the user decides when to answer."""

    def on_lost(self) -> None:
        self.session.lost()
        self.engine.lost(self)

    def on_refused(self, error: ZsqError) -> None:
        self.engine.refused(self, error)


class ConsumerEngine(Engine):
    """The engine of one consumer of one channel.

    It has one leg, or one for each part of the topic. `of_part` makes the session of a part, of
    that many. Without it, a topic with parts is refused.

    With `chosen`, it subscribes only to some parts, which may be none, and never goes to another
    broker. A part that moves away is left. So is a part that is closed to consumers, until it is
    chosen again. A channel that is deleted is not created again by this consumer.
    """

    def __init__(
        self,
        address: Address | Addresses,
        topic: str,
        channel: str,
        session: ConsumerSession,
        heartbeat_ms: int | None,
        settings: Mapping[str, object],
        of_part: Callable[[int], ConsumerSession] | None = None,
        chosen: Chosen | None = None,
        connect: Callable[..., LinkConnection] = LinkConnection,
        events: EventSet | None = None,
    ) -> None:
        super().__init__(None, connect, events)
        self.farewell_ms = FAREWELL_MS
        self.rotation = Rotation(address)
        self.wanted_heartbeat_ms = heartbeat_ms  # None: the default of each address
        self._of_part = of_part
        self._chosen = chosen
        self.persists = False  # True if it tries again after each refusal that may pass
        self.has_parts = False  # True if the legs are those of parts
        self._whole = Leg(
            self, check_name(topic), check_name(channel, "channel"), session, settings
        )
        self.legs = [self._whole]
        self.awaits_topic = False  # True if it waits for a topic that was deleted, if it persists
        self._whole.link.needed = lambda: not self.has_parts
        self._whole.link.busy = lambda: not self.has_parts
        self.target = self._whole.target
        self._turn = 0
        self._ask_ns = FAR_NS  # when to ask for new parts
        self.error: ZsqError | None = None  # the broker's refusal of the subscription
        self.down_ns = time.monotonic_ns()  # when the last link was lost
        self.closing = False
        # The messages refer to their consumer. A reference from here would keep a consumer alive
        # that the program has dropped.
        self._prefetch: Callable[[], Prefetch | None] = lambda: None
        self.window = Window(session.ready)
        self.extensions = Extensions()
        self.backoff: ConsumerBackoff | None = None
        # How many more messages handlers may get. None: as many as they need.
        self.limit: int | None = None
        # A function that is called when all leases are void.
        self.on_void: Callable[[], object] = self._void
        # A function that is called when all leases of one part are void.
        self.on_part_void: Callable[[ConsumerSession], object] = lambda session: None

    @property
    def session(self) -> ConsumerSession:
        """The session of a topic without parts."""
        return self._whole.session

    @property
    def link(self) -> Link:
        """The link to a topic without parts."""
        return self._whole.link

    @property
    def _first(self) -> Leg:
        return self.legs[0] if self.legs else self._whole

    def use(self, prefetch: Prefetch, window: Window) -> None:
        """Let this prefetch hold what the program has not taken, and ask for as much as `window`
        says.
        """
        self._prefetch = weakref.ref(prefetch)
        self.window = window

    @property
    def prefetch(self) -> Prefetch:
        return self._prefetch() or Prefetch()

    def _void(self) -> None:
        self.prefetch.clear()

    def start(self) -> None:
        """Start the links, unless a refusal must be raised first.

        The refusal comes first. Otherwise each call would start an attempt, and the next call would
        raise its refusal.
        """
        if self.error is None:
            now_ns = time.monotonic_ns()
            for leg in list(self.legs):
                leg.link.start(now_ns)

    def persist(self, *, awaits_topic: bool) -> None:
        """Try again after each refusal that may pass, and do not raise it.

        The links pause up to a second between attempts, and the log gets warnings as for a broker
        that is gone.
        """
        self.persists = True
        self.awaits_topic = awaits_topic
        if self.error is not None and self.error.code in PASSING:
            self.error = None  # it came before a call could raise it
        for leg in [self._whole, *self.legs]:
            leg.link.passing |= PASSING

    # Backing off

    def back_off_with(self, backoff: ConsumerBackoff | None) -> None:
        """Let this backoff decide from now on whether handlers get messages."""
        self.backoff = backoff
        for leg in [self._whole, *self.legs]:
            leg.session.backoff = backoff

    def handled(self, ticket: int, outcome: Outcome) -> None:
        """Note the outcome of a handler that began with this ticket of the backoff."""
        now_ns = time.monotonic_ns()
        if self.backoff is not None and self.backoff.ended(ticket, outcome, now_ns):
            self._obey_backoff(self.backoff, now_ns)

    def _obey_backoff(self, backoff: ConsumerBackoff, now_ns: int) -> None:
        """Ask for as many messages as the backoff allows, and give back what it does not allow.

        The credit is lowered first, so that what is given back goes to other consumers.
        """
        self.limit = backoff.limit
        self.sooner(backoff.until_ns)
        place = f"{self.target.topic}/{self.target.channel}"
        if backoff.limit is None:
            log.warning("%s: the consumer backs off no more", place)
            self.set_ready(self._credit())
            return
        if backoff.state is BackoffState.WAITING:
            text = "%s: backing off, because handlers fail (level %d); the next probe is in %g s"
            log.warning(text, place, backoff.level, backoff.settings.wait_s(backoff.level))
        self._limit_ready(backoff.limit)
        if not backoff.limit:
            self.give_all_back()

    def _lose_probe(self, now_ns: int) -> None:
        """Probe once more if there is a probe, which may have been lost with a link."""
        if self.backoff is not None and self.backoff.lost(now_ns):
            self._obey_backoff(self.backoff, now_ns)

    def _limit_ready(self, limit: int) -> None:
        """Ask each leg for up to `limit` messages beyond those whose handlers work."""
        for leg in {id(leg): leg for leg in [self._whole, *self.legs]}.values():
            allowed = limit and self.window.fixed != 0
            leg.session.set_ready(leg.session.unanswered + limit if allowed else 0)
        self.tell(time.monotonic_ns())

    def _take_probe(self, delivery: LeasedBlock) -> None:
        """Give back all messages but one of this delivery."""
        assert self.backoff is not None
        now_ns = time.monotonic_ns()
        self.backoff.taken(now_ns)
        delivery.session.give_back(delivery, delivery.unanswered()[1:])
        self._obey_backoff(self.backoff, now_ns)

    @property
    def passing(self) -> frozenset[str]:
        """The codes of refusals after which the links try again."""
        return PASSING if self.persists else AGAIN

    # Parts

    def ask_parts(self) -> None:
        """Ask now for the parts of the topic, if it has parts, and not only when it is due."""
        if self.has_parts:
            self._ask_at(time.monotonic_ns())

    def _ask_at(self, at_ns: int) -> None:
        self._ask_ns = at_ns
        self.sooner(at_ns)

    def _take_parts(self, spread: Spread) -> None:
        """Subscribe to the parts that are new."""
        assert self._of_part is not None
        now_ns = time.monotonic_ns()
        every = [number for number, _ in spread.parts]
        numbers = every if self._chosen is None else self._chosen(spread)
        if numbers is None:
            self._ask_at(now_ns + SOON_NS)
            return
        known = {leg.target.topic for leg in self.legs}
        new = []
        for number in sorted(numbers):
            name = part_name(self._whole.target.topic, number)
            if name not in known:
                session = self._of_part(len(every))
                session.over = self._whole.session.over
                session.backoff = self.backoff
                new.append(Leg(self, name, self.target.channel, session, self.target.settings))
        self.has_parts = True
        self.legs = [leg for leg in self.legs if leg is not self._whole] + new
        self._ask_at(now_ns + PARTS_ASKED_NS)
        for leg in new:
            if self._chosen is not None:
                leg.stay()
            leg.link.start(now_ns)

    def _leave(self, leg: Leg) -> None:
        """Subscribe to this part no more."""
        leg.session.lost()
        leg.link.stop()
        self.links.remove(leg.link)
        self.legs.remove(leg)
        self._lose_probe(time.monotonic_ns())
        self.on_part_void(leg.session)

    def _forget_parts(self) -> None:
        """Go on without parts: the topic was deleted, or a topic without parts has its name."""
        for leg in list(self.legs):
            if leg is not self._whole:
                self._leave(leg)
        self.legs = [self._whole]
        self.has_parts = False
        self._ask_ns = FAR_NS

    def _await_topic(self, error: ZsqError) -> None:
        """Wait until the topic exists again. A client that used it does not create it."""
        log.warning("%s: %s. Waiting until it exists", self.target, error)
        self._whole.link.passing |= {E_NOT_FOUND}
        self._whole.link.start(time.monotonic_ns())

    def refused(self, leg: Leg, error: ZsqError) -> None:
        """Note that the broker has refused a leg."""
        if isinstance(error, HasParts) and self._of_part is not None:
            if leg is self._whole:
                self._take_parts(error.spread)
            elif leg in self.legs:
                self._leave(leg)
        elif error.code == E_NOT_FOUND and (self.has_parts or leg.link.is_back):
            if self.has_parts:
                self._forget_parts()
            if self.persists and self.awaits_topic:
                self._await_topic(error)
            else:
                self.error = error
        elif self._chosen is not None and error.code == E_CLOSED and leg is not self._whole:
            if leg in self.legs:
                self._leave(leg)
        elif leg in self.legs:
            self.error = error

    def reached_leg(self, leg: Leg) -> None:
        """Note that a leg is subscribed. If it is the whole topic, this has no parts any more."""
        if leg is self._whole and self.has_parts:
            self._forget_parts()

    def lost(self, leg: Leg) -> None:
        """Note that a link was lost. If it was the only one, all leases are void.

        Otherwise the messages of the other parts stay. Those of the lost part are recognized by
        their delivery.
        """
        self.down_ns = time.monotonic_ns()
        self._lose_probe(self.down_ns)
        if leg is not self._whole:
            self.on_part_void(leg.session)
        elif not self.has_parts:
            self.on_void()

    @property
    def stale(self) -> int:
        """The number of answers that came too late."""
        return sum(leg.session.stale for leg in self.legs)

    def say_lost(self, now_ns: int) -> None:
        """Tell the channel that the program behind this consumer was lost."""
        for leg in self.legs:
            if leg.link.up:
                leg.link.send([b"", encode(Bye(is_lost=True))], now_ns)

    def end(self, why: str) -> None:
        """Let no message be answered any more, for this reason."""
        for leg in [self._whole, *self.legs]:
            leg.session.over = why

    # Outgoing messages

    def tell(self, now_ns: int) -> None:
        """Send the answers that were gathered, and which messages were begun."""
        self.prefetch.note_taken()
        for leg in list(self.legs):
            leg.tell(now_ns)

    def report_soon(self, now_ns: int) -> None:
        """Send soon which messages were begun."""
        self.sooner(now_ns + TELL_NS)

    def give_back(self, leg: Leg, count: int) -> None:
        """Give back up to `count` messages of this leg that the program has not taken.

        Of deliveries that nobody has taken, whole ones are given back, the last one first.
        """
        self.prefetch.note_taken()
        session = leg.session
        while session.arrived and count > 0:
            delivery = session.arrived.pop()
            session.give_back(delivery, range(delivery.block.count))
            count -= delivery.block.count
        for delivery, indexes in self.prefetch.give_back(session, count):
            session.give_back(delivery, indexes)
        leg.tell(time.monotonic_ns())

    def give_all_back(self) -> None:
        """Give back all messages that the program has not taken."""
        for leg in list(self.legs):
            self.give_back(leg, leg.session.unanswered)

    def _credit(self) -> int:
        """Return how many messages the handlers need now."""
        sessions = [leg.session for leg in self.legs]
        waiting = len(self.prefetch.messages) + sum(
            delivery.block.count for session in sessions for delivery in session.arrived
        )
        in_hand = sum(session.unanswered for session in sessions) - waiting
        lease_s = self._first.session.message_timeout_ms / 1000
        return self.window.credit(in_hand, lease_s)

    def _adapt(self) -> None:
        """Ask for as many messages as the handlers need now."""
        if self.limit is not None:
            return
        credit, now = self._credit(), self._whole.session.ready
        # A slightly smaller window is not worth a message.
        if credit > now or credit <= now - max(1, now // 4):
            self.set_ready(credit)

    def noted(self, now_ns: int) -> None:
        """Send a plain finish that was noted: soon, or at once if a caller waits for it.

        A caller that waits for a delivery, of a consumer that may hold few messages, may get none
        before this finish is sent. A thread with a pool of handlers is such a caller.
        """
        if self.waiters and any(leg.session.ready <= READY_FEW for leg in self.legs):
            self.tell(now_ns)
        else:
            self.sooner(now_ns + TELL_NS)

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        for leg in list(self.legs):
            confirm_ns = leg.confirm_at(now_ns)
            if leg.session.dirty or leg.session.words or now_ns >= confirm_ns:
                leg.tell(now_ns)
            else:
                self.sooner(confirm_ns)
        if self.prefetch.is_due or any(leg.session.taken for leg in self.legs):
            self.tell(now_ns)
        self.sooner(self.extensions.on_time(now_ns, self._touch))
        if self.backoff is not None:
            if self.backoff.due(now_ns):
                self._obey_backoff(self.backoff, now_ns)
            self.sooner(self.backoff.until_ns)
        if self._ask_ns != FAR_NS:
            if now_ns >= self._ask_ns:
                self._ask_ns = now_ns + PARTS_ASKED_NS
                self._whole.link.start(now_ns)
            self.sooner(self._ask_ns)

    def _leg_of(self, delivery: LeasedBlock) -> Leg:
        """Return the leg on which this delivery arrived, or one that cannot answer it."""
        legs = (leg for leg in self.legs if leg.session is delivery.session)
        return next(legs, self._whole)

    # For waiting callers

    @property
    def open(self) -> bool:
        """True if all legs are subscribed."""
        return all(leg.session.state is ConsumerState.OPEN for leg in self.legs)

    def _is_ready(self) -> bool:
        """Return True if all legs are subscribed that can be. At least one must be."""
        if self.open:
            return True
        left = [leg for leg in self.legs if leg.session.state is not ConsumerState.OPEN]
        return len(left) < len(self.legs) and all(leg.link.astray for leg in left)

    @property
    def up(self) -> int:
        """The number of links that are up."""
        return sum(leg.link.up for leg in self.legs)

    @property
    def arrived(self) -> bool:
        """True if there is a delivery that nobody has taken."""
        return any(leg.session.arrived for leg in self.legs)

    def unreachable(self, timeout: float | None) -> int:
        """Return when to give up waiting for a link.

        Return `FAR_NS` while there is a link, or if `timeout` is None. If the channel has no place
        for another consumer, wait at least three heartbeats, even if the time-out is shorter. The
        place of a consumer whose link was lost becomes free only after two heartbeats.
        """
        seconds = check_timeout(timeout)
        if self._full() is not None and not (self.persists and seconds is None):
            seconds = max(seconds or 0.0, 3 * self._first.link.heartbeat_ms / 1_000)
        return FAR_NS if self.up or seconds is None else self.down_ns + int(seconds * 1e9)

    def _full(self) -> ZsqError | None:
        refusals = [leg.link.refusal for leg in self.legs]
        return next(
            (error for error in refusals if error is not None and error.code == E_LIMIT), None
        )

    def news(self, was_up: int) -> bool:
        """Return True if a caller that waits for a delivery must check again."""
        return self.arrived or self.error is not None or self.up != was_up

    def raise_refused(self) -> None:
        """Raise the broker's refusal, once. The next call tries again."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def give_up_at(self, now_ns: int, timeout: float | None) -> None:
        """Raise if there was no link for the whole time-out. The time-out then begins again."""
        if now_ns >= self.unreachable(timeout):
            self.down_ns = now_ns
            for leg in self.legs:
                error = leg.link.refusal
                if error is not None and error.code in PASSING - AGAIN:
                    raise error
            raise self.too_late(timeout, "no link to")

    def too_late(self, timeout: float | None, what: str) -> ZsqError:
        late = f"{what} {self.target} at {self.rotation.url} within {format_timeout(timeout)}"
        refusal = self.rotation.refusal()
        if refusal is not None:
            return from_wire(refusal.code, f"{late}: {refusal.text}")
        link = next((leg.link for leg in self.legs if not leg.link.up), self._first.link)
        why = link.why() or link.state.value
        return BrokerUnreachable(E_TIMEOUT, f"{late} ({why}). {advice()}")

    # Steps of calls; see `Steps`. `closing`: True if the consumer takes no more messages

    def subscribe(self, timeout: float | None, closing: Callable[[], bool]) -> Steps[None]:
        """Wait until the legs are subscribed, except those whose broker is away.

        They are subscribed when it answers. Without any leg, the wait goes on.
        """
        self.error = None
        self.start()
        ready = yield (
            lambda: self._is_ready() or self.error is not None or closing(),
            deadline_of(timeout),
        )
        self.raise_refused()
        if not ready:
            self.down_ns = time.monotonic_ns()
            raise self.too_late(timeout, "could not subscribe to")

    def take(
        self,
        deadline_ns: int,
        timeout: float | None,
        closing: Callable[[], bool],
        shared: Callable[[], bool],
        whole: bool = True,
        remembers: bool = False,
    ) -> Steps[LeasedBlock | None]:
        """Return the next delivery. With `whole`, the program has taken all of it.

        `remembers`: see `ConsumerSession.remembers`.

        Return None at the deadline, when the consumer closes, or when `shared()` is true. This
        means that another caller took a delivery, and some of its messages still wait. Without
        `whole`, return None also when the consumer begins or ends to back off. The caller may hold
        messages of a batch that it has to give back.
        """
        if closing():  # `close` may have ended the links, and nothing would end new ones
            return None
        self.start()
        if not self.arrived or any(
            leg.session.untold >= leg.session.ready // TELL_SHARE for leg in self.legs
        ):
            self.tell(time.monotonic_ns())
        if not self.arrived:
            self._adapt()
        backoff = None if whole else self.backoff
        ticket = 0 if backoff is None else backoff.ticket

        def over() -> bool:
            return closing() or shared() or (backoff is not None and backoff.ticket != ticket)

        while not over():
            if (delivery := self._next()) is not None:
                if self.limit is not None:
                    self._take_probe(delivery)
                if delivery.alone and not (yield from self._begin_alone(delivery, closing)):
                    if self.limit is not None and self.backoff is not None:
                        self.handled(self.backoff.ticket, Outcome.NEITHER)
                    continue
                if whole:
                    delivery.take(delivery.block.count)
                    # The program itself took it. If it is a probe, its outcome will not be known.
                    self._lose_probe(time.monotonic_ns())
                delivery.session.remembers = remembers
                self.report_soon(time.monotonic_ns())
                return delivery
            self.raise_refused()
            up = self.up
            limit_ns = min(deadline_ns, self.unreachable(timeout))
            yield (lambda up=up: self.news(up) or over(), limit_ns)  # type: ignore[misc]
            now = time.monotonic_ns()
            if self.arrived or over() or now < limit_ns:
                continue
            if now >= deadline_ns:
                return None
            self.give_up_at(now, timeout)
        return None

    def _next(self) -> LeasedBlock | None:
        """Return the next delivery. The parts take turns."""
        for _ in self.legs:
            self._turn = (self._turn + 1) % len(self.legs)
            arrived = self.legs[self._turn].session.arrived
            if arrived:
                return arrived.popleft()
        return None

    def _begin_alone(self, delivery: LeasedBlock, closing: Callable[[], bool]) -> Steps[bool]:
        """Report a message that may have ended another consumer, before its handler begins.

        Return False if it must not begin: its link was lost, or the consumer closes.
        """
        confirm = delivery.session.begin_alone(delivery, time.monotonic_ns())
        self.tell(time.monotonic_ns())
        yield (lambda: confirm.done or closing(), FAR_NS)
        if confirm.done and confirm.error is None and not closing():
            return True
        if delivery.live:
            delivery.session.give_back(delivery, (EVERY,))
        return False

    def finish_sync(
        self, delivery: LeasedBlock, indexes: Sequence[int], timeout: float
    ) -> Steps[None]:
        yield from self._confirmed([delivery.session.finish_sync(delivery, indexes)], timeout)

    def flush(self, timeout: float) -> Steps[None]:
        """Wait until all plain finishes are committed.

        Raises `LeaseLost` if some were lost or late since the last flush.
        """
        sessions = [leg.session for leg in self.legs]
        with contextlib.suppress(LeaseLost):  # the sessions count lost leases; see below
            yield from self._confirmed([session.barrier() for session in sessions], timeout)
        if missed := sum(session.take_missed() for session in sessions):
            raise LeaseLost(
                E_LEASE,
                (
                    f"{missed} finishes were not confirmed or arrived too late; those messages may "
                    "be delivered again"
                ),
            )

    def _confirmed(self, confirms: list[Confirm], timeout: float) -> Steps[None]:
        self.tell(time.monotonic_ns())
        done = lambda: all(confirm.done for confirm in confirms)  # noqa: E731
        if not (yield (done, deadline_of(timeout))):
            raise self.too_late(timeout, "no confirmation from")
        for confirm in confirms:
            if confirm.error is not None:
                raise confirm.error

    def set_ready(self, ready: int) -> None:
        """Change how many messages may be unanswered. The parts of a topic share the number."""
        if self.limit is not None:
            self._limit_ready(self.limit)
            return
        self._whole.session.set_ready(ready)
        for leg in self.legs:
            if leg is not self._whole:
                leg.session.set_ready(share_of(ready, len(self.legs)))
        self.tell(time.monotonic_ns())

    def requeue(
        self, delivery: LeasedBlock, indexes: Sequence[int], delay_ms: int, error: str
    ) -> None:
        delivery.session.requeue(delivery, indexes, delay_ms, error)
        self._leg_of(delivery).tell(time.monotonic_ns())

    def touch(self, delivery: LeasedBlock) -> None:
        self._touch(delivery, None)

    def _touch(self, delivery: LeasedBlock, indexes: Sequence[int] | None) -> None:
        now_ns = time.monotonic_ns()
        self.prefetch.note_taken()
        self._leg_of(delivery).tell(now_ns)  # what was begun must be known before it is extended
        delivery.session.touch(delivery, now_ns, indexes)
        self._leg_of(delivery).tell(now_ns)

    def conclude(self, timeout: float) -> Steps[None]:
        yield from self.leave(lambda: True, deadline_of(timeout))

    def leave(self, idle: Callable[[], bool], deadline_ns: int) -> Steps[None]:
        """Take no more messages, wait until the handlers are `idle`, and confirm the finishes."""
        sessions = [leg.session for leg in self.legs]
        try:
            for session in sessions:
                session.leave()
            self.tell(time.monotonic_ns())
            yield (idle, deadline_ns)
            self.end(CLOSED)
            confirms = [session.barrier() for session in sessions]
            self.tell(time.monotonic_ns())
            yield (lambda: all(confirm.done for confirm in confirms), deadline_ns)
            # This includes finishes that were lost since the last flush. Nothing else reports them.
            if missed := sum(session.take_missed() + session.unconfirmed for session in sessions):
                text = (
                    "%s: consumer closed, but %d finishes were not confirmed or arrived too "
                    "late; those messages may be delivered again"
                )
                log.warning(text, f"{self.target.topic}/{self.target.channel}", missed)
        finally:
            self.end(CLOSED)
