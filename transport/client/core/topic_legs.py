"""Topic legs: the subscription of a consumer to one topic.

A topic without parts has one leg: a session, and the peer of its link. A topic with parts has a leg
for each part. The legs of all topics of a consumer share what is in `LegHost`.

Nothing here waits.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from ...block.block import Block
from ...errors import (
    E_BAD_COMMAND,
    E_BUCKET,
    E_CLOSED,
    E_DISK_FULL,
    E_IN_USE,
    E_INTERNAL,
    E_LIMIT,
    E_NOT_FOUND,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
    UsageError,
    ZsqError,
)
from ...names import base_of, part_name, part_of
from ...settings import CHANNEL
from ...wire.address import Target
from ...wire.addresses import Rotation
from ...wire.codec import encode
from ...wire.protocol import Cancelled, Recall, Spread, Wire
from ...wire.rows import check_rows
from ...wire.spread import PARTS_ASKED_NS, HasParts
from ..link.engine import Engine
from ..link.link import AGAIN, Link
from ..link.reaction import Reaction
from ..link.timeouts import FAR_NS
from .consumer_session import ConsumerSession, ConsumerState, LeasedBlock
from .topic_credit import READY_IDLE, share_of

log = logging.getLogger("zsq")

CONFIRM_NS: Final = 1_000_000_000  # how long sent finishes may wait until they are confirmed
WORDS_MAX: Final = 5_000  # the most protocol messages that are sent before the socket is drained
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

More = Callable[[int], ConsumerSession]
"""Makes one more session of the consumer, which may hold so many messages."""


class LegHost(Engine):
    """The host of legs: what those of one consumer share, and what they report.

    The engine of a consumer is one.

    - `wanted_heartbeat_ms`: None for the default of each address.
    - `persists`: True if it tries again after each refusal that may pass.
    - `limit`: How many more messages handlers may get. None: as many as they need.
    - `has_more`: False if a topic with parts is refused.
    - `chosen`: Chooses the parts to subscribe to. Without it, these are all.
    """

    wanted_heartbeat_ms: int | None
    persists: bool
    limit: int | None
    has_more: bool
    chosen: Chosen | None

    @property
    def passing(self) -> frozenset[str]:
        """The codes of refusals after which the links try again."""
        return PASSING if self.persists else AGAIN

    @abstractmethod
    def new_session(self, ready: int) -> ConsumerSession:
        """Return one more session, which may hold so many messages."""

    @abstractmethod
    def give_back(self, leg: Leg, count: int) -> None:
        """Give back up to `count` messages of this leg that the program has not taken."""

    @abstractmethod
    def cancelled(self, leg: Leg, message: Cancelled) -> None:
        """Drop the cancelled messages of this leg that nobody has begun, and mark the others."""

    @abstractmethod
    def lost_link(self, leg: Leg, *, is_topic: bool) -> None:
        """Note that all leases of a leg are void. `is_topic`: it is the only leg of its topic."""

    @abstractmethod
    def left_leg(self, leg: Leg) -> None:
        """Note that a part is not read any more. Its link has ended."""

    @abstractmethod
    def legs_changed(self) -> None:
        """Note that a topic has other legs now."""

    @abstractmethod
    def filled(self, topic: TopicLegs) -> None:
        """Note that a topic that may need more credit holds as many messages as it may."""

    @abstractmethod
    def accepted(self, topic: TopicLegs) -> None:
        """Note that the broker has accepted the consumer in a topic, or in a part of it."""

    @abstractmethod
    def refused_topic(self, topic: TopicLegs, error: ZsqError) -> None:
        """Note that the broker refuses this consumer in a topic."""

    @abstractmethod
    def deleted_topic(self, topic: TopicLegs, error: ZsqError) -> None:
        """Note that a topic was deleted."""


class Leg:
    """The subscription to a topic, or to one part of it: a session, and the peer of its link."""

    def __init__(self, topic: TopicLegs, target: Target, session: ConsumerSession) -> None:
        self.topic = topic
        self.host = host = topic.host
        self.session = session
        self.target = target
        part = part_of(target.topic)
        session.topic = base_of(target.topic)
        session.part = None if part is None else part[1]
        self.link = Link(host, topic.rotation, target, self)
        self.link.is_listed = topic.is_listed
        self.link.heartbeat_ms = self._heartbeat_ms()
        self.link.expects = lambda: bool(session.confirms)
        self._known = False  # True after the subscription was accepted once
        self._compared = False
        self._confirm_ns = FAR_NS  # when the finishes sent so far are to be confirmed
        self.link.passing = host.passing
        host.add(self.link)

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
        self.host.sooner(self.confirm_at(now_ns))

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
        return self.host.wanted_heartbeat_ms or self.link.given.heartbeat_ms

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if type(message) is Recall:
            if self.host.limit != 0:  # with 0, nothing is held but a probe that was just taken
                self.host.give_back(self, message.count)
            return Reaction.NOTHING
        if type(message) is Cancelled:
            check_rows(message.ranges, 2, "cancelled ranges")
            if not all(type(key) is str for key in message.keys):
                raise UsageError(E_BAD_COMMAND, "revoke keys must be texts")
            self.host.cancelled(self, message)
            return Reaction.NOTHING
        before = self.session.unanswered
        reaction = self.session.on_word(message, blocks, now_ns)
        if blocks:
            topic = self.topic
            topic.delivered_ns = now_ns
            # What is finished at once, because it has come back, shows that there is more, too.
            if topic.grows and before + blocks[0].count >= self.session.ready:
                self.host.filled(topic)
        if self.host.limit == 0 and (arrived := self.session.arrived):  # it was on its way
            # No more than that, because the probe may still wait for its handler.
            self.host.give_back(self, sum(delivery.block.count for delivery in arrived))
        return reaction

    def on_up(self, now_ns: int) -> None:
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self._confirm_ns = FAR_NS
        self.session.node = self.link.opened.get("node", 0)
        self._known = True
        self._compare(self.link.opened.get("settings"))
        # The channel has a place for this consumer. If the next link is refused with E_LIMIT, the
        # lost link of this consumer still holds the place.
        self.link.passing = self.host.passing | {E_LIMIT}
        self.topic.reached(self)
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
        """Send the finishes of messages that were finished before, and have come back.

        Otherwise, the channel would wait for them until the next timer, with its credit used up.
        """
        if self.session.words:
            self.tell(now_ns)

    def on_lost(self) -> None:
        self.session.lost()
        self.topic.lost(self)

    def on_refused(self, error: ZsqError) -> None:
        self.topic.refused(self, error)


class TopicLegs:
    """The legs of one topic of a consumer.

    `whole` is the leg for the topic without parts. If the topic has parts, it only asks for them,
    and `legs` are those of the parts. `target` is that of the topic. With `is_listed`, the topic is
    in the broker's list of topics, and is never created.

    Each topic has its own `rotation`. In a cluster, the addresses may be those of several brokers,
    and a topic without parts is at one of them. If a topic that is deleted let the links of the
    others go to the next address, they would not find their topics there.
    """

    def __init__(
        self,
        host: LegHost,
        target: Target,
        session: ConsumerSession,
        rotation: Rotation,
        *,
        is_listed: bool = False,
    ) -> None:
        self.host = host
        self.target = target
        self.rotation = rotation
        self.is_listed = is_listed
        self.whole = Leg(self, target, session)
        self.legs = [self.whole]
        self.has_parts = False  # True if the legs are those of parts
        self.error: ZsqError | None = None  # the broker's refusal of the subscription
        self.ask_ns = FAR_NS  # when to ask for new parts
        # When it has delivered last, and when it held as many messages as it might.
        self.delivered_ns = self.filled_ns = 0
        self.is_filled = False  # True if it did since the credit was divided last
        self.demand = READY_IDLE  # see `topic_credit.py`
        self.grows = False  # True if its demand may grow. A topic that is alone has all credit
        self._turn = 0
        self.whole.link.needed = lambda: not self.has_parts
        self.whole.link.busy = lambda: not self.has_parts

    def every_leg(self) -> list[Leg]:
        """Return the legs, and the one for the topic without parts."""
        return [self.whole, *self.legs] if self.has_parts else self.legs

    def persist(self) -> None:
        """Try again after each refusal that may pass."""
        if self.error is not None and self.error.code in PASSING:
            self.error = None  # it came before a call could raise it
        for leg in self.every_leg():
            leg.link.passing |= PASSING

    # Deliveries

    def next(self) -> LeasedBlock | None:
        """Return the next delivery. The parts take turns."""
        for _ in self.legs:
            self._turn = (self._turn + 1) % len(self.legs)
            arrived = self.legs[self._turn].session.arrived
            if arrived:
                return arrived.popleft()
        return None

    @property
    def is_busy(self) -> bool:
        """True if it needs more credit than is enough to see that it has messages."""
        return not self.grows or self.demand > READY_IDLE

    @property
    def unanswered(self) -> int:
        return sum(leg.session.unanswered for leg in self.legs)

    @property
    def ready(self) -> int:
        """The number of messages of this topic that may be unanswered."""
        return self.whole.session.ready

    def set_ready(self, ready: int) -> None:
        """Change how many messages may be unanswered. The parts of the topic share the number."""
        self.whole.session.set_ready(ready)
        for leg in self.legs:
            if leg is not self.whole:
                leg.session.set_ready(share_of(ready, len(self.legs)))

    # Parts

    def ask_parts(self) -> None:
        """Ask now for the parts of the topic, if it has parts, and not only when it is due."""
        if self.has_parts:
            self._ask_at(time.monotonic_ns())

    def _ask_at(self, at_ns: int) -> None:
        self.ask_ns = at_ns
        self.host.sooner(at_ns)

    def on_time(self, now_ns: int) -> int:
        """Ask for new parts if that is due. Return when to look again."""
        if now_ns >= self.ask_ns:
            self.ask_ns = now_ns + PARTS_ASKED_NS
            self.whole.link.start(now_ns)
        return self.ask_ns

    def _take_parts(self, spread: Spread) -> None:
        """Subscribe to the parts that are new."""
        host, now_ns = self.host, time.monotonic_ns()
        every = [number for number, _ in spread.parts]
        numbers = every if host.chosen is None else host.chosen(spread)
        if numbers is None:
            self._ask_at(now_ns + SOON_NS)
            return
        known = {leg.target.topic for leg in self.legs}
        new = []
        for number in sorted(numbers):
            name = part_name(self.target.topic, number)
            if name not in known:
                session = host.new_session(share_of(self.ready, len(every)))
                new.append(Leg(self, replace(self.target, topic=name), session))
        self.has_parts = True
        self.legs = [leg for leg in self.legs if leg is not self.whole] + new
        host.legs_changed()
        self._ask_at(now_ns + PARTS_ASKED_NS)
        for leg in new:
            if host.chosen is not None:
                leg.stay()
            leg.link.start(now_ns)

    def _leave(self, leg: Leg) -> None:
        """Subscribe to this part no more."""
        leg.session.lost()
        leg.link.stop()
        self.host.links.remove(leg.link)
        self.legs.remove(leg)
        self.host.legs_changed()
        self.host.left_leg(leg)

    def _forget_parts(self) -> None:
        """Go on without parts: the topic was deleted, or a topic without parts has its name."""
        for leg in list(self.legs):
            if leg is not self.whole:
                self._leave(leg)
        self.legs = [self.whole]
        self.has_parts = False
        self.ask_ns = FAR_NS
        self.host.legs_changed()

    def leave(self) -> None:
        """End the subscription to this topic."""
        if self.has_parts:
            self._forget_parts()
        self._leave(self.whole)

    # What the legs report

    def await_topic(self, error: ZsqError) -> None:
        """Wait until the topic exists again. A client that used it does not create it."""
        log.warning("%s: %s. Waiting until it exists", self.target, error)
        self.whole.link.passing |= {E_NOT_FOUND}
        self.whole.link.start(time.monotonic_ns())

    def refused(self, leg: Leg, error: ZsqError) -> None:
        """Note that the broker has refused a leg."""
        host = self.host
        if isinstance(error, HasParts) and host.has_more:
            if leg is self.whole:
                self._take_parts(error.spread)
            elif leg in self.legs:
                self._leave(leg)
        elif error.code == E_NOT_FOUND and (self.has_parts or leg.link.is_back):
            if self.has_parts:
                self._forget_parts()
            host.deleted_topic(self, error)
        elif host.chosen is not None and error.code == E_CLOSED and leg is not self.whole:
            if leg in self.legs:
                self._leave(leg)
        elif leg in self.legs:
            host.refused_topic(self, error)

    def reached(self, leg: Leg) -> None:
        """Note that a leg is subscribed. If it is the whole topic, this has no parts any more."""
        self.error = None
        self.host.accepted(self)
        if leg is self.whole and self.has_parts:
            self._forget_parts()

    def lost(self, leg: Leg) -> None:
        """Note that a link was lost. The messages of the other legs stay.

        Those of the lost leg are recognized by their delivery.
        """
        if leg is not self.whole or not self.has_parts:
            self.host.lost_link(leg, is_topic=leg is self.whole)

    @property
    def is_open(self) -> bool:
        """True if all legs are subscribed."""
        return all(leg.session.state is ConsumerState.OPEN for leg in self.legs)
