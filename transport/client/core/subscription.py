"""Consumer engine: a consumer's sessions, their links, and the messages that they send.

A consumer has a session and a link for each of its topics, or for each part of a topic with parts.
The program gets one stream of all.

Nothing here waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...errors import (
    E_BAD_ARGUMENT,
    E_LEASE,
    E_LIMIT,
    E_TIMEOUT,
    BrokerUnreachable,
    LeaseLost,
    UsageError,
    ZsqError,
    advice,
    from_wire,
)
from ...names import check_name, is_channel_missing
from ...system import EventSet
from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import encode
from ...wire.protocol import MESSAGE_TIMEOUT_MS, Bye, Cancelled
from ..link.connection import LinkConnection
from ..link.engine import Steps
from ..link.link import AGAIN, Link
from ..link.link_table import LinkState
from ..link.timeouts import FAR_NS, check_timeout, deadline_of, format_timeout
from .confirm import Confirm
from .consumer_backoff import BackoffState, ConsumerBackoff, Outcome
from .consumer_session import EVERY, ConsumerSession, ConsumerState, LeasedBlock
from .extensions import Extensions
from .held_endings import cancelled_in
from .prefetch import Prefetch, Window
from .topic_choice import TOPICS_MAX, TopicChoice, topic_choice
from .topic_credit import READY_IDLE, divide
from .topic_legs import PASSING, Chosen, Leg, LegHost, More, TopicLegs
from .topic_list import TopicList

log = logging.getLogger("zsq")

TELL_NS: Final = 20_000_000  # how long plain finishes may wait before they are sent
# While delivered messages still wait for the user, finishes are sent only when their number reaches
# 1/4 of the ready count. This causes fewer wake-ups.
TELL_SHARE: Final = 4
READY_FEW: Final = 100  # with so few messages, finishes are not gathered while a caller waits
CLOSED: Final = (
    "the consumer of this message is closed; the message was returned to the channel and is "
    "delivered again"
)
FAREWELL_MS: Final = 1_000  # how long a closed consumer may still send its last answers
BUSY_NS: Final = 1_000_000_000  # a topic that does not need its credit for so long gets less
SHARE_NS: Final = 20_000  # how rarely the credit is divided, for each topic: about what it costs
REFUSED_NS: Final = 60_000_000_000  # when a pattern tries a topic again that has refused it


class ConsumerEngine(LegHost):
    """The engine of one consumer, which receives from the channel of this name in each topic.

    `more` makes the sessions of further topics and of parts. Without it, a topic with parts is
    refused.

    With `chosen`, it subscribes only to some parts, which may be none, and never goes to another
    broker. A part that moves away is left. So is a part that is closed to consumers, until it is
    chosen again. A channel that is deleted is not created again by this consumer.
    """

    def __init__(
        self,
        address: Address | Addresses,
        topic: str | TopicChoice,
        channel: str,
        session: ConsumerSession,
        heartbeat_ms: int | None,
        settings: Mapping[str, object],
        more: More | None = None,
        chosen: Chosen | None = None,
        connect: Callable[..., LinkConnection] = LinkConnection,
        events: EventSet | None = None,
    ) -> None:
        super().__init__(None, connect, events)
        self.farewell_ms = FAREWELL_MS
        self.rotation = Rotation(address)
        self.wanted_heartbeat_ms = heartbeat_ms
        self.has_more = more is not None
        self.chosen = chosen
        self.persists = False
        self.awaits_topic = False  # True if it waits for a topic that was deleted, if it persists
        self.closing = False
        self.down_ns = time.monotonic_ns()  # when the last link was lost
        # The messages refer to their consumer. A reference from here would keep a consumer alive
        # that the program has dropped.
        self._prefetch: Callable[[], Prefetch | None] = lambda: None
        self.window = Window(session.ready)
        self.extensions = Extensions()
        self.backoff: ConsumerBackoff | None = None
        self.limit: int | None = None
        # A function that is called when all leases are void.
        self.on_void: Callable[[], object] = self._void
        # A function that is called when all leases of one topic or part are void.
        self.on_part_void: Callable[[ConsumerSession], object] = lambda session: None
        # A function that gets the workers of `run` whose messages were cancelled.
        self.on_cancelled: Callable[[Sequence[object]], object] = lambda workers: None
        self.ready = session.ready  # how many messages may be unanswered, in all topics
        self.choice = topic if isinstance(topic, TopicChoice) else topic_choice(topic)
        self.channel = check_name(channel, "channel")
        self.caption = f"{self.choice.caption}/{channel}"  # for logs
        self.topics: list[TopicLegs] = []
        self.legs: list[Leg] = []
        self._more = more
        self._settings = settings
        self._error: ZsqError | None = None  # a refusal of the consumer as a whole
        self._over = ""  # why no message can be answered any more
        self._turn = 0
        # When the credit was divided among the topics last, and when that is due again.
        self._shared_ns, self._share_ns = 0, FAR_NS
        self._left_stale = self._left_missed = 0  # the counts of topics and parts that were left
        self._is_accepted = False  # True if a topic has accepted this consumer
        # Topics that a pattern matches, and that have refused this consumer: why, and until when
        # they are left out.
        self._refused: dict[str, tuple[str, int]] = {}
        self._is_full = False  # True after a warning that too many topics match
        self._list: TopicList | None = None
        if self.choice.pattern is not None:
            self._list = TopicList(
                self, self.rotation, self.passing, self._heard, self._refused_list
            )
        for number, name in enumerate(self.choice.names):
            self._add_topic(name, session if number == 0 else self.new_session(session.ready))
        if not self._is_single:
            self._share(time.monotonic_ns(), exactly=True)

    @property
    def _is_single(self) -> bool:
        """True if it receives from one topic, whose name the program has given."""
        return self._list is None and len(self.topics) == 1

    @property
    def session(self) -> ConsumerSession:
        """The session of a single topic without parts."""
        return self.topics[0].whole.session

    @property
    def link(self) -> Link:
        """The link to a single topic without parts."""
        return self.topics[0].whole.link

    @property
    def has_parts(self) -> bool:
        """True if the legs of a single topic are those of parts."""
        return self.topics[0].has_parts

    def _every_leg(self) -> list[Leg]:
        """Return the legs, and those that only ask for parts."""
        return [leg for topic in self.topics for leg in topic.every_leg()]

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
        """Start the links, except those of topics whose refusal must be raised first.

        The refusal comes first. Otherwise each call would start an attempt, and the next call would
        raise its refusal.
        """
        now_ns = time.monotonic_ns()
        if self._list is not None and self._error is None:
            self._list.start(now_ns)
        for leg in list(self.legs):
            if leg.link.state is not LinkState.UP and leg.topic.error is None:
                leg.link.start(now_ns)

    def persist(self, *, awaits_topic: bool) -> None:
        """Try again after each refusal that may pass, and do not raise it.

        The links pause up to a second between attempts, and the log gets warnings as for a broker
        that is gone.
        """
        self.persists = True
        self.awaits_topic = awaits_topic
        if self._error is not None and self._error.code in PASSING:
            self._error = None
        if self._list is not None:
            self._list.link.passing |= PASSING
        for topic in self.topics:
            topic.persist()

    # Topics

    def new_session(self, ready: int) -> ConsumerSession:
        assert self._more is not None
        session = self._more(ready)
        session.over = self._over
        session.backoff = self.backoff
        return session

    def _add_topic(self, name: str, session: ConsumerSession) -> TopicLegs:
        target = Target("channel", name, self.channel, settings=self._settings)
        rotation = self.rotation
        if not (self._list is None and len(self.choice.names) == 1):
            rotation = Rotation(self.rotation.given)
        if self._list is not None:
            rotation.go_to(self._list.link.given)  # the broker that has listed it
        topic = TopicLegs(self, target, session, rotation, is_listed=self._list is not None)
        self.topics.append(topic)
        self.legs_changed()
        return topic

    def _leave_topic(self, topic: TopicLegs) -> None:
        topic.leave()
        self.topics.remove(topic)
        self.legs_changed()

    def legs_changed(self) -> None:
        self.legs = [leg for topic in self.topics for leg in topic.legs]

    def ask_parts(self) -> None:
        """Ask now for the parts of topics with parts, and not only when it is due."""
        for topic in self.topics:
            topic.ask_parts()

    def accepted(self, topic: TopicLegs) -> None:
        self._is_accepted = True
        self._refused.pop(topic.target.topic, None)

    def refused_topic(self, topic: TopicLegs, error: ZsqError) -> None:
        """Note a refusal, which is to be raised. A pattern leaves the topic out for a while."""
        if self._list is None or isinstance(error, BrokerUnreachable):
            topic.error = self._named(topic, error)
            return
        name, why = topic.target.topic, error.text
        if self._refused.get(name, ("", 0))[0] != why:
            text = "%s: topic %s is left out, because the broker refuses it: %s"
            log.warning(text, self.caption, name, error)
        self._refused[name] = why, time.monotonic_ns() + REFUSED_NS
        self._leave_topic(topic)
        if not self.topics and not self._is_accepted:
            self._error = self._named(topic, error)

    def _named(self, topic: TopicLegs, error: ZsqError) -> ZsqError:
        """Return the error. It names the topic, if there are several."""
        if self._is_single or repr(topic.target.topic) in error.text:
            return error
        return from_wire(error.code, f"topic {topic.target.topic!r}: {error.text}")

    def deleted_topic(self, topic: TopicLegs, error: ZsqError) -> None:
        if self._list is not None:
            if is_channel_missing(error.text):  # the broker creates no channel at first use
                self.refused_topic(topic, error)
                return
            self._leave_topic(topic)
            self._list.ask_soon(time.monotonic_ns())
        elif self.persists and self.awaits_topic:
            topic.await_topic(error)
        else:
            topic.error = self._named(topic, error)

    def _heard(self, names: Sequence[str]) -> None:
        """Follow the topics that match the pattern now. `names` are all topics of the broker.

        A topic that is missing there is left only if it has no link either. A broker that has just
        started may not list all of its topics, and their leases must not be lost by that.
        """
        now_ns = time.monotonic_ns()
        matching = self.choice.matching(names)
        listed, known = set(matching), {topic.target.topic for topic in self.topics}
        for topic in list(self.topics):
            if topic.target.topic not in listed and not any(leg.link.up for leg in topic.legs):
                self._leave_topic(topic)
        self._refused = {name: row for name, row in self._refused.items() if name in listed}
        new = [
            name
            for name in matching
            if name not in known and now_ns >= self._refused.get(name, ("", 0))[1]
        ]
        room = TOPICS_MAX - len(self.topics)
        if len(new) > room:
            self._note_full(len(matching))
        for name in new[: max(0, room)]:
            self._add_topic(name, self.new_session(0)).whole.link.start(now_ns)
        if new:
            self._share(now_ns, exactly=True)

    def _note_full(self, count: int) -> None:
        """Raise the error that too many topics match, or log it if there are topics already."""
        text = f"pattern {self.choice.text!r} matches {count:,} topics"
        if not self.topics:
            why = f"{text}; a consumer receives from at most {TOPICS_MAX:,}: use several consumers"
            self._error = UsageError(E_BAD_ARGUMENT, why)
        elif not self._is_full:
            log.warning("%s: %s; only %d are followed", self.caption, text, TOPICS_MAX)
        self._is_full = True

    def _refused_list(self, error: ZsqError) -> None:
        self._error = error

    # Backing off

    def back_off_with(self, backoff: ConsumerBackoff | None) -> None:
        """Let this backoff decide from now on whether handlers get messages."""
        self.backoff = backoff
        for leg in self._every_leg():
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
        if backoff.limit is None:
            log.warning("%s: the consumer backs off no more", self.caption)
            self.set_ready(self._credit())
            return
        if backoff.state is BackoffState.WAITING:
            text = "%s: backing off, because handlers fail (level %d); the next probe is in %g s"
            wait_s = backoff.settings.wait_s(backoff.level)
            log.warning(text, self.caption, backoff.level, wait_s)
        self._limit_ready(backoff.limit)
        if not backoff.limit:
            self.give_all_back()

    def _lose_probe(self, now_ns: int) -> None:
        """Probe once more if there is a probe, which may have been lost with a link."""
        if self.backoff is not None and self.backoff.lost(now_ns):
            self._obey_backoff(self.backoff, now_ns)

    def _limit_ready(self, limit: int) -> None:
        """Ask each leg for up to `limit` messages beyond those whose handlers work."""
        for leg in self._every_leg():
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

    # What the legs report

    def lost_link(self, leg: Leg, *, is_topic: bool) -> None:
        """Note that a link was lost. If it was the only one, all leases are void.

        Otherwise the messages of the other legs stay. Those of the lost leg are recognized by their
        delivery.
        """
        self.down_ns = time.monotonic_ns()
        self._lose_probe(self.down_ns)
        if is_topic and self._is_single:
            self.on_void()
        else:
            self.on_part_void(leg.session)

    def left_leg(self, leg: Leg) -> None:
        self._left_stale += leg.session.stale_count
        self._left_missed += leg.session.take_missed()
        self._lose_probe(time.monotonic_ns())
        self.on_part_void(leg.session)

    @property
    def error(self) -> ZsqError | None:
        """The broker's refusal of the subscription, or of the one to a topic."""
        errors = (topic.error for topic in self.topics if topic.error is not None)
        return self._error or next(errors, None)

    def take_error(self) -> ZsqError | None:
        """Return a refusal of the broker, once. The next call tries again."""
        error, self._error = self._error, None
        if error is not None:
            self._refused.clear()
            if self._list is not None:
                self._list.ask_soon(time.monotonic_ns())
            return error
        for topic in self.topics:
            if topic.error is not None:
                error, topic.error = topic.error, None
                return error
        return None

    @property
    def stale_count(self) -> int:
        """The number of answers that came too late."""
        return self._left_stale + sum(leg.session.stale_count for leg in self.legs)

    def say_lost(self, now_ns: int) -> None:
        """Tell the channel that the program behind this consumer was lost."""
        for leg in self.legs:
            if leg.link.up:
                leg.link.send([b"", encode(Bye(is_lost=True))], now_ns)

    def end(self, why: str) -> None:
        """Let no message be answered any more, for this reason."""
        self._over = why
        for leg in self._every_leg():
            leg.session.over = why

    # Outgoing messages

    def tell(self, now_ns: int) -> None:
        """Send the answers that were gathered, and which messages were begun."""
        self.prefetch.note_taken()
        for leg in list(self.legs):
            session = leg.session
            if session.dirty or session.taken or session.words:
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

    # Messages that have ended

    def cancelled(self, leg: Leg, message: Cancelled) -> None:
        self.prefetch.note_taken()
        for delivery in list(leg.session.held.values()):
            indexes = [*delivery.fresh(cancelled_in(delivery, message))]
            finished = bool(message.ranges)
            taken = [index for index in indexes if index < delivery.taken]
            if taken:
                delivery.cancelled.update(taken)
                if finished:
                    leg.session.drop(delivery, taken, finished=True)
                self.on_cancelled(self.extensions.workers_at(delivery, taken))
            self._drop(leg, delivery, [i for i in indexes if i >= delivery.taken], finished)
        leg.tell(time.monotonic_ns())

    def _drop(
        self, leg: Leg, delivery: LeasedBlock, indexes: Sequence[int], finished: bool = False
    ) -> None:
        """Drop these messages, which the program has not taken.

        A delivery of which the program has taken nothing is given back as a whole: a program that
        takes whole deliveries would get all of its messages.
        """
        if not indexes:
            return
        leg.session.drop(delivery, indexes, finished=finished)
        if delivery in leg.session.arrived:
            leg.session.arrived.remove(delivery)
            leg.session.give_back(delivery, range(delivery.block.count))

    def _credit(self) -> int:
        """Return how many messages the handlers need now."""
        sessions = [leg.session for leg in self.legs]
        waiting = len(self.prefetch.messages) + sum(
            delivery.block.count for session in sessions for delivery in session.arrived
        )
        in_hand = sum(session.unanswered for session in sessions) - waiting
        lease_ms = sessions[0].message_timeout_ms if sessions else MESSAGE_TIMEOUT_MS
        buffers_ms = [session.buffer_ms for session in sessions if session.buffer_ms]
        return self.window.credit(in_hand, lease_ms / 1000, min(buffers_ms, default=0) / 1000)

    def _adapt(self) -> None:
        """Ask for as many messages as the handlers need now."""
        if self.limit is not None:
            return
        credit, now = self._credit(), self.ready
        # A slightly smaller window is not worth a message.
        if credit > now or credit <= now - max(1, now // 4):
            self.set_ready(credit)

    def noted(self, now_ns: int) -> None:
        """Send a plain finish that was noted: soon, or at once if a caller waits for it.

        A caller that waits for a delivery, of a consumer that may hold few messages, may get none
        before this finish is sent. A thread with a pool of handlers is such a caller.
        """
        if self.waiters and any(
            leg.session.ready <= READY_FEW for leg in self.legs if leg.topic.is_busy
        ):
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
        for topic in list(self.topics):
            self.sooner(topic.on_time(now_ns))
        if self._list is not None:
            self.sooner(self._list.on_time(now_ns))
        if now_ns >= self._share_ns:
            self._share(now_ns)
        self.sooner(self._share_ns)

    def _tell_leg_of(self, delivery: LeasedBlock, now_ns: int) -> None:
        """Send the answers of the leg on which this delivery arrived, if it was not left."""
        for leg in self.legs:
            if leg.session is delivery.session:
                leg.tell(now_ns)
                return

    # For waiting callers

    @property
    def open(self) -> bool:
        """True if all legs are subscribed."""
        is_known = self._list is None or self._list.is_known
        return is_known and all(leg.session.state is ConsumerState.OPEN for leg in self.legs)

    def _is_ready(self) -> bool:
        """Return True if all legs are subscribed that can be. At least one must be.

        A pattern may match no topic.
        """
        if self.open:
            return True
        left = [leg for leg in self.legs if leg.session.state is not ConsumerState.OPEN]
        return len(left) < len(self.legs) and all(leg.link.astray for leg in left)

    @property
    def up(self) -> int:
        """The number of links that are up."""
        is_listing = self._list is not None and self._list.link.up
        return sum(leg.link.up for leg in self.legs) + is_listing

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
        full = self._full()
        if full is not None and not (self.persists and seconds is None):
            seconds = max(seconds or 0.0, 3 * full.link.heartbeat_ms / 1_000)
        return FAR_NS if self.up or seconds is None else self.down_ns + int(seconds * 1e9)

    def _full(self) -> Leg | None:
        """Return a leg whose channel has no place for this consumer, or None."""
        refusals = [(leg, leg.link.refusal) for leg in self.legs]
        full = (leg for leg, error in refusals if error is not None and error.code == E_LIMIT)
        return next(full, None)

    def news(self, was_up: int) -> bool:
        """Return True if a caller that waits for a delivery must check again."""
        return self.arrived or self.error is not None or self.up != was_up

    def raise_refused(self) -> None:
        """Raise the broker's refusal, once. The next call tries again."""
        error = self.take_error()
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
        legs = self.legs or self._every_leg()
        leg = next((leg for leg in legs if not leg.link.up), legs[0] if legs else None)
        if self._list is not None and (leg is None or not self._list.link.up):
            link, rotation, place = self._list.link, self.rotation, f"the topics {self.caption}"
        else:
            assert leg is not None
            link, rotation = leg.link, leg.topic.rotation
            place = str(leg.topic.target)
        late = f"{what} {place} at {rotation.url} within {format_timeout(timeout)}"
        refusal = rotation.refusal()
        if refusal is not None:
            return from_wire(refusal.code, f"{late}: {refusal.text}")
        why = link.why() or link.state.value
        return BrokerUnreachable(E_TIMEOUT, f"{late} ({why}). {advice()}")

    # Steps of calls; see `Steps`. `closing`: True if the consumer takes no more messages

    def subscribe(self, timeout: float | None, closing: Callable[[], bool]) -> Steps[None]:
        """Wait until the legs are subscribed, except those whose broker is away.

        They are subscribed when it answers. Without any leg, the wait goes on.
        """
        while self.take_error() is not None:
            pass
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
            leg.session.untold >= leg.session.ready // TELL_SHARE
            for leg in self.legs
            if leg.topic.is_busy
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
        """Return the next delivery. The topics take turns, and then the parts of each topic."""
        for _ in self.topics:
            self._turn = (self._turn + 1) % len(self.topics)
            delivery = self.topics[self._turn].next()
            if delivery is not None:
                return delivery
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
        if missed := self._take_missed():
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

    def _take_missed(self) -> int:
        missed, self._left_missed = self._left_missed, 0
        return missed + sum(leg.session.take_missed() for leg in self.legs)

    # Credit

    def set_ready(self, ready: int) -> None:
        """Change how many messages may be unanswered. Topics and parts share the number."""
        self.ready = ready
        if self.limit is not None:
            self._limit_ready(self.limit)
        elif self._is_single:
            self.topics[0].set_ready(ready)
        else:
            self._share(time.monotonic_ns(), exactly=True)
        self.tell(time.monotonic_ns())

    def filled(self, topic: TopicLegs) -> None:
        """Divide the credit anew, soon, because a topic needs more."""
        topic.is_filled = True
        now_ns = time.monotonic_ns()
        at_ns = self._shared_ns + SHARE_NS * len(self.topics)
        if now_ns >= at_ns:
            self._share(now_ns)
        else:
            self._share_ns = min(self._share_ns, at_ns)
        self.sooner(self._share_ns)

    def _share(self, now_ns: int, *, exactly: bool = False) -> None:
        """Divide the credit among the topics.

        A share that is only a little larger is not worth a message, except with `exactly`.
        """
        self._shared_ns, self._share_ns = now_ns, FAR_NS
        if self.limit is not None:
            if exactly:
                self._limit_ready(self.limit)
            return
        several, held = len(self.topics) > 1, []
        for topic in self.topics:
            held.append(topic.unanswered)
            self._estimate(topic, held[-1], now_ns)
            topic.grows = several and topic.demand < self.ready
        demands = [topic.demand for topic in self.topics] if several else [self.ready]
        shares = divide(self.ready, demands, held)
        for topic, count, ready in zip(list(self.topics), held, shares, strict=False):
            if exactly or ready < topic.ready or ready - topic.ready > topic.ready // 8:
                topic.set_ready(ready)
                for leg in list(topic.legs):
                    leg.tell(now_ns)
            if several and count > ready:
                self._share_ns = min(self._share_ns, now_ns + TELL_NS)
            elif several and topic.demand > READY_IDLE:
                self._share_ns = min(self._share_ns, now_ns + BUSY_NS)

    def _estimate(self, topic: TopicLegs, held: int, now_ns: int) -> None:
        """Note how much credit a topic needs, from how many of its messages are held."""
        if topic.is_filled or held >= topic.ready > 0:
            topic.demand = min(2 * max(topic.demand, topic.ready), max(self.ready, READY_IDLE))
            topic.is_filled, topic.filled_ns = False, now_ns
        elif not held and now_ns >= topic.delivered_ns + BUSY_NS:
            topic.demand = READY_IDLE
        elif now_ns >= topic.filled_ns + BUSY_NS:
            topic.demand = max(READY_IDLE, topic.demand // 2)
            topic.filled_ns = now_ns

    def requeue(
        self,
        delivery: LeasedBlock,
        indexes: Sequence[int],
        delay_ms: int,
        error: str,
        traceback: str,
        defer: bool,
    ) -> None:
        delivery.session.requeue(delivery, indexes, delay_ms, error, traceback, defer)
        self._tell_leg_of(delivery, time.monotonic_ns())

    def touch(self, delivery: LeasedBlock) -> None:
        self._touch(delivery, None)

    def _touch(self, delivery: LeasedBlock, indexes: Sequence[int] | None) -> None:
        now_ns = time.monotonic_ns()
        self.prefetch.note_taken()
        self._tell_leg_of(delivery, now_ns)  # what was begun must be known before it is extended
        delivery.session.touch(delivery, now_ns, indexes)
        self._tell_leg_of(delivery, now_ns)

    def conclude(self, timeout: float) -> Steps[None]:
        yield from self.leave(lambda: True, deadline_of(timeout))

    def leave(self, idle: Callable[[], bool], deadline_ns: int) -> Steps[None]:
        """Take no more messages, wait until the handlers are `idle`, and confirm the finishes."""
        if self._list is not None:
            self._list.link.stop()
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
            unconfirmed = sum(session.unconfirmed for session in sessions)
            if missed := self._take_missed() + unconfirmed:
                text = (
                    "%s: consumer closed, but %d finishes were not confirmed or arrived too "
                    "late; those messages may be delivered again"
                )
                log.warning(text, self.caption, missed)
        finally:
            self.end(CLOSED)
