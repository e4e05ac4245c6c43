"""Channel actor: gives each message of a topic to one of its consumers, under a lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, cast

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSED,
    E_CLOSING,
    E_HELLO,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import is_ephemeral
from ...transport.settings import NONE, ChannelOptions
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire import protocol as p
from ...transport.wire.admin_requests import END
from ..primitives.boot_clock import boot_ns
from ..primitives.ranges import ranges_of
from ..runtime.actor import Actor
from ..runtime.link_ends import LinkEnds
from ..runtime.port import Mail, Port
from ..runtime.pulses import ChannelDetails, ChannelPulse
from ..settings import channel_settings, options
from ..settings.closing import TO_CONSUMERS
from ..settings.starts import ChannelStart
from .admission import check_ready, consumer_of
from .channel_opening import ask_for_row, make_delivery
from .commit_queue import CommitQueue
from .dead_letter_sender import DeadLetterSender
from .deferred import Row
from .due_clock import DueClock
from .feed import Feed
from .last_consumer import LastConsumer
from .lease import Departure, Peer, Subscriber
from .peeks import Peeks
from .serving_policy import serving_policy_class
from .skips import Skips
from .supply import Supply

DISCONNECTED: Final = "an operator has disconnected this consumer; subscribe again"


log = logging.getLogger("zsq")
LEASE_LOOK_MS: Final = 1_000.0  # how often a channel with consumers looks at the lease


class ChannelActor(Actor[ChannelStart]):
    def on_start(self) -> dict[str, Any]:
        self.name: str = self.given.channel
        self.storage = self.open_dealer(self.given.storage)
        opened = ask_for_row(self.storage, self.name, self.given.made_with)
        self._head = opened.end
        self.settings_own = opened.row.settings or ChannelOptions()
        self.last_consumer = LastConsumer(time.monotonic_ns()) if is_ephemeral(self.name) else None
        self.core = make_delivery(self.key, self.name, opened)
        known_ns = opened.row.clock_ns if self.supply.deferred.rows else None
        self.due_clock = DueClock(not_before_ns=known_ns or 0)
        self.feed = Feed(self.name)
        self.front = self.open_router(self.given.front)
        self._route()
        self._request = 1
        self.commits = CommitQueue(self.name)
        self.dead_letters = DeadLetterSender(
            self, self.given.topic_name, self.given.uuid, self.name, self.given.front
        )
        self.peeks = Peeks(self.name)
        self.skips = Skips(self.supply.deferred)
        self._stop_ns = 0
        self.closed: bool = self.given.closed  # closed for consumers
        self.acks = serving_policy_class()(self.given)
        self._looks_at_acks = False
        self._fetches: dict[int, int] = {}  # request -> offset whose block a redelivery needs
        self._hinted_ns = 0
        self._hold_order = 0  # the order to answer when consumers hold no message
        self._hold_until_ns = 0
        self._corrupt_told = self._corrupt_limit = self._corrupt_until_ns = 0
        return {"front": self.given.front, "settings": self.settings_own}

    @property
    def supply(self) -> Supply:
        return self.core.supply

    def may_drop_start(self) -> bool:
        return True

    def _route(self) -> None:
        """Register the handlers. Consumers and scan workers connect to `front`."""
        front, storage = self.front, self.storage
        front.route(p.Sub, self.subscribe)
        front.route(p.Ready, self.set_ready)
        front.route(p.Fin, self.fin)
        front.route(p.Req, self.req)
        front.route(p.Touch, self.touch)
        front.route(p.Begun, self.begin)
        front.route(p.Beat, self.beat)
        front.route(p.Bye, self.unsubscribe)
        front.route(p.Scan, self.process_due)
        storage.route(p.Blocks, self.on_blocks)
        storage.route(p.Dropped, self.on_dropped)
        storage.route(p.SetRetention, self.on_retention)
        storage.route(p.Done, self.on_done)
        storage.route(p.Failed, self.on_failed)
        self.obey(p.SetClosed, self.close)
        self.obey(p.SetPaused, self.pause)
        self.obey(p.EmptyChannel, self.empty)
        self.obey(p.Skip, self.skip)
        self.obey(p.SkipMessages, self.skip_messages)
        self.obey(p.Revoke, self.revoke)
        self.obey(p.Seek, self.seek)
        self.obey(p.Peek, self.peek)
        self.obey(p.ConfigureChannel, self.configure)
        self.obey(p.Disconnect, self.disconnect)
        self.obey(p.Hold, self.hold)
        self.obey(p.WhereDeadLettersGo, self.where_dead_letters_go)

    @cached_property
    def topic(self) -> Port:
        """The link to the topic, opened for the first consumer.

        A link costs about 130 KB, and most of a thousand channels are idle.
        """
        topic = self.open_dealer(self.given.topic)
        topic.route(p.Offer, self.on_offer)
        topic.route(p.Behind, self.on_behind)
        topic.route(p.Head, self.on_head)
        topic.route(p.Failed, self.on_failed)
        return topic

    @cached_property
    def scan(self) -> Port:
        """The link to the scan loop, opened for the first due time."""
        scan = self.open_dealer(self.given.scan)
        scan.route(p.Failed, self.on_failed)
        return scan

    @cached_property
    def ends(self) -> LinkEnds:
        """The ends of consumers' connections, which are watched from the first consumer on.

        A monitor costs about 17 KB.
        """
        return LinkEnds(self, self.front, self.core.consumers.__contains__, self.core.unsubscribe)

    # Consumers

    def subscribe(self, port: Port, mail: Mail, message: p.Sub) -> None:
        if self.closed:
            raise Refused(E_CLOSED, TO_CONSUMERS)
        self.acks.check()
        if self.last_consumer is not None and self.last_consumer.over:
            text = (
                f"ephemeral channel {self.name!r} is being removed because it has no consumers; "
                "subscribe again to create a new one"
            )
            raise Refused(E_CLOSING, text)
        consumer = consumer_of(
            message, mail.envelope, self.core, time.monotonic_ns(), time.time_ns()
        )
        self.core.subscribe(consumer)
        if len(mail.envelope) == 1:  # not behind a gateway, which says itself who is gone
            self.ends.note(mail.envelope, port.descriptor())
        answer = p.Subscribed(
            message.request,
            self.key,
            consumer.timeout_ns // NS_PER_MS,
            consumer.heartbeat_ns // NS_PER_MS,
            self.core.settings.ordered,
            options.FAIR_BUFFER_MS if self.core.settings.is_fair else 0,
        )
        if not port.send(mail.envelope, answer):
            self.core.unsubscribe(mail.envelope)

    def _consumer(self, mail: Mail) -> Subscriber:
        """Return the consumer that sent this mail, and note that it is alive.

        Raises `UsageError` (E_HELLO) for an unknown sender, which must subscribe again: it
        subscribed before a restart of the channel, or the channel gave it up as lost.
        """
        consumer = self.core.consumers.get(mail.envelope)
        if consumer is None:
            raise UsageError(
                E_HELLO,
                (
                    "this connection is not subscribed, perhaps because the channel was restarted; "
                    "subscribe again"
                ),
            )
        consumer.seen_ns = time.monotonic_ns()
        return consumer

    def set_ready(self, port: Port, mail: Mail, message: p.Ready) -> None:
        self._consumer(mail)
        check_ready(message.ready)
        probe_ns = time.monotonic_ns() + message.backoff_ms * NS_PER_MS if message.backoff_ms else 0
        self.core.set_ready(mail.envelope, message.ready, probe_ns)

    def fin(self, port: Port, mail: Mail, message: p.Fin) -> None:
        self._consumer(mail)
        refused: Any = (
            ()
            if message.token == 0
            else self.core.fin(mail.envelope, message.token, message.ranges, time.time_ns())
        )
        self._answer(mail, message.request, message.token, refused)

    def req(self, port: Port, mail: Mail, message: p.Req) -> None:
        self._consumer(mail)
        if not self.supply.deferred.rows:
            self.due_clock.follow()
        delay_ns = (
            self.core.settings.backoff_longest_ns
            if message.delay_ms == p.BACKOFF
            else message.delay_ms * NS_PER_MS
        )
        self.due_clock.hold(delay_ns)
        refused = self.core.req(
            mail.envelope,
            message.token,
            message.ranges,
            message.delay_ms,
            self.due_clock.now_ns(),
            message.error,
            message.traceback,
            defer=message.defer,
        )
        self._answer(mail, message.request, message.token, refused)

    def touch(self, port: Port, mail: Mail, message: p.Touch) -> None:
        self._consumer(mail)
        refused = self.core.touch(mail.envelope, message.token, time.monotonic_ns(), message.ranges)
        if refused or message.request:
            port.send(mail.envelope, p.Answer(message.request, message.token, tuple(refused)))

    def begin(self, port: Port, mail: Mail, message: p.Begun) -> None:
        self._consumer(mail)
        refused = self.core.note_begun(
            mail.envelope, message.token, message.ranges, time.monotonic_ns()
        )
        # Without a request, nobody waits: the answers to these messages say what is refused.
        if message.request:
            port.send(mail.envelope, p.Answer(message.request, message.token, tuple(refused)))

    def _answer(self, mail: Mail, request: int, token: int, refused: Any) -> None:
        answer = p.Answer(request, token, tuple(refused))
        if request and not self._is_committed():
            # A confirmation is sent only after the commit.
            self.commits.confirm(mail.envelope, answer)
        elif request or refused:
            self.front.send(mail.envelope, answer)

    def _is_committed(self) -> bool:
        """Return True if another commit would change nothing, and could not withhold the answer."""
        return not self.acks.look_ms and self.commits.has_committed(dirty=self.supply.dirty)

    def beat(self, port: Port, mail: Mail, message: p.Beat) -> None:
        self._consumer(mail)
        port.send(mail.envelope, p.Beat())

    def unsubscribe(self, port: Port, mail: Mail, message: p.Bye) -> None:
        how = Departure.LOST if message.is_lost else Departure.LEFT
        self.core.unsubscribe(mail.envelope, how)

    def on_gone(self, who: str) -> None:
        for peer in [peer for peer in self.core.consumers if peer[0] == who.encode()]:
            self.core.unsubscribe(peer)

    def _look_for_consumers(self, last: LastConsumer) -> None:
        if last.look(len(self.core.consumers), time.monotonic_ns()):
            self.supervisor.send((), p.Over(self.key))

    # Incoming blocks

    def on_offer(self, port: Port, mail: Mail, message: p.Offer) -> None:
        blocks = mail.blocks()
        self._head = max(self._head, message.head)
        if not self.feed.came(sum(block.length for block in blocks)):
            return
        for block in blocks:
            if not self.supply.offer(block):
                self.feed.behind()
                return

    def on_behind(self, port: Port, mail: Mail, message: p.Behind) -> None:
        self._head = max(self._head, message.head)
        self.feed.behind()

    def on_dropped(self, port: Port, mail: Mail, message: p.Dropped) -> None:
        """Skip messages that retention removed. Only the storage sends this message.

        The storage sends it before it sends any block above the new start.
        """
        start = message.start
        if self.supply.drop_below(start):
            self.feed.moved()
        self.commits.dropped(start)

    def on_retention(self, port: Port, mail: Mail, message: p.SetRetention) -> None:
        """Apply the topic's settings. The storage passes them on, in the order in which it got
        them, so a channel that opens meanwhile misses none.
        """
        self.core.set_lifetime(message.retention.get("expires_s") or NONE)

    def on_head(self, port: Port, mail: Mail, message: p.Head) -> None:
        self._head = max(self._head, message.head)

    def on_blocks(self, port: Port, mail: Mail, message: p.Blocks) -> None:
        blocks = mail.blocks()
        self._head = max(self._head, message.head)
        wanted = self._fetches.pop(message.request, None)
        if wanted is not None:
            following = blocks[0].first_offset if blocks else message.next_offset
            if following > wanted:
                self.supply.lost(wanted, following)
            for block in blocks:
                self.supply.shelve(block)
        elif self.feed.read(message.request, message.next_offset >= message.head):
            for block in blocks:
                self.supply.offer(block, from_storage=True)
            self.supply.step_over(message.next_offset)

    # Each turn of the loop

    def on_turn(self) -> None:
        self._look_at_acks()
        self.core.rest()
        self.supply.head = self._head
        detach = self.feed.wanted(self.core.is_wanted() and not self.stopping)
        if detach is not None:
            self.topic.send((), detach)
        if self.core.holds:
            self._look_at_hold()
        self.busy = not self.stopping and self._deliver()
        self.dead_letters.turn(self.supply, not self.stopping)
        if self.supply.corrupt_count != self._corrupt_told:
            self._found_corrupt()
        if (
            self.commits.is_due(self.supply.dirty, time.monotonic_ns())
            or self.core.waits_for_commit()
        ):
            self._save()
        self._ask_for_skips()
        self._ask_for_due()
        self._ask_for_blocks()
        self._hint()
        if self.last_consumer is not None and not self.stopping:
            self._look_for_consumers(self.last_consumer)

    def _look_at_acks(self) -> None:
        """Turn the consumers away if this broker may confirm nothing any more.

        A timer looks again while there are consumers, because they may be idle.
        """
        if not self.acks.look_ms:
            return
        if self.core.consumers and (refused := self.acks.refusal()) is not None:
            for peer in list(self.core.consumers):
                self.front.send(peer, p.Failed(0, refused.code, refused.text))
                self.core.unsubscribe(peer, Departure.SENT_AWAY)
        if bool(self.core.consumers) != self._looks_at_acks:
            self._looks_at_acks = not self._looks_at_acks
            if self._looks_at_acks:
                self.every(self.acks.look_ms, self._look_at_acks)
            else:
                self.cease(self._look_at_acks)

    def _turn_away(self, code: str, text: str) -> None:
        """End the links of all consumers with this error, when their finishes are committed.

        Their messages wait here.
        """
        for peer in self.core.consumers:
            self._dismiss(peer, code, text)

    def _dismiss(self, peer: Peer, code: str, text: str) -> None:
        settled = p.Settled(self.core.consumers[peer].finish_count)
        self.commits.farewell(peer, settled, p.Failed(0, code, text))

    def _deliver(self) -> bool:
        """Send deliveries. Return True if more messages wait than one turn may send."""
        if self.closed:  # consumers stay until their finishes are committed
            return False
        now, wall, passed_ns = time.monotonic_ns(), time.time_ns(), boot_ns()
        for _ in range(options.DRAIN_MAX):
            delivery = self.core.next_delivery(now, wall, passed_ns)
            if delivery is None:
                return self.core.has_more()
            message = p.Deliver(
                delivery.token,
                delivery.runs,
                delivery.timeout_ns // NS_PER_MS,
                delivery.alone,
            )
            peer = delivery.peer
            if self.front.send(peer, message, [delivery.block]):
                continue
            if self.front.is_gone(peer):
                # Its last answers may wait here. `ends` ends it when they are handled.
                self.core.set_ready(peer, 0)
                self.core.req(peer, delivery.token, (), p.UNBEGUN, self.due_clock.now_ns())
            else:  # it does not read what it asked for
                self.core.unsubscribe(peer)
        return True

    def _found_corrupt(self) -> None:
        """Read blocks from the storage again, because they changed in this process's memory.

        If that happens repeatedly, end the process. The next process of the channel uses other
        memory.
        """
        now, count = time.monotonic_ns(), self.supply.corrupt_count
        log.error(
            (
                "%s: a block changed in memory since its producer sent it (%d so far); it is read "
                "from storage again"
            ),
            self.title,
            count,
        )
        self._corrupt_told = count
        if now >= self._corrupt_until_ns:
            self._corrupt_until_ns, self._corrupt_limit = (
                now + options.CORRUPT_S * NS_PER_S,
                count + options.CORRUPT_MAX,
            )
        if count > self._corrupt_limit:
            text = (
                f"{self.title}: {options.CORRUPT_MAX} blocks changed in memory within "
                f"{options.CORRUPT_S} s"
            )
            raise RuntimeError(f"{text}; test this machine's memory")
        if self.supply.reread:
            self.supply.reread = False
            self.feed.moved()

    def _ask_for_blocks(self) -> None:
        self._request += 1
        message = self.feed.next_word(
            self.supply.window_end, self.supply.window_bytes, self._request
        )
        if isinstance(message, p.Fetch):
            self.storage.send((), message)
        elif message is not None:
            self.topic.send((), message)
        fetched = set(self._fetches.values())
        # Sorted, so that they are delivered in the order of offsets.
        for offset in sorted(self.supply.wanted - fetched):
            if len(self._fetches) >= options.FETCHES_MAX:
                return
            self._request += 1
            self._fetches[self._request] = offset
            self.storage.send((), p.Fetch(self._request, offset, self.supply.fetch_bytes))

    def _hint(self) -> None:
        """Notify the scan loop when the next due time is earlier than the one that it knows.

        A difference of up to 1 ms is ignored, because two clocks may drift apart by that much.
        """
        now = time.monotonic_ns()
        self.core.look_for_idle(now)
        due = self.core.next_due(now, self.due_clock.now_ns(), time.time_ns())
        if due and (due < self._hinted_ns - NS_PER_MS or self._hinted_ns == 0):
            self._hinted_ns = due
            self.scan.send((), p.Hint(self.key, due))

    def process_due(self, port: Port, mail: Mail, message: p.Scan) -> None:
        now, due_ns = time.monotonic_ns(), self.due_clock.now_ns()
        dirty = self.core.scan(now, due_ns)
        dirty = self._expire_held() or dirty
        if dirty:
            self.stir()
        for peer, count in self.core.recalls(now):
            self.front.send(peer, p.Recall(count))
        self._hinted_ns = self.core.next_due(now, due_ns, time.time_ns())
        port.send(mail.envelope, p.Scanned(message.request, dirty, self._hinted_ns))

    def _expire_held(self) -> bool:
        told = self.core.expire_held(time.time_ns())
        for peer, ranges in told:
            self.front.send(peer, p.Cancelled(tuple(ranges), (), 0))
        return bool(told)

    def _ask_for_skips(self) -> None:
        """Ask the storage which of the messages to skip are deferred."""
        offsets = self.skips.wanted()
        if offsets:
            self._request += 1
            self.skips.ask(self._request)
            self.storage.send((), p.DeferredAt(self._request, self.name, offsets))

    def _ask_for_due(self) -> None:
        if not self.stopping and self.core.may_ask():
            self._request += 1
            self.supply.deferred.ask(self._request)
            until_ns = self.due_clock.now_ns()
            self.storage.send((), p.Due(self._request, self.name, until_ns, options.DUE_ROWS_MAX))

    # Commits

    def _wait_ms(self) -> int:
        usual = super()._wait_ms()
        if self.core.holds:
            usual = min(usual, options.HOLD_MS)
        passed_ns = boot_ns()
        if not self.stopping and (due_ns := self.core.limit_due_ns(passed_ns)):
            usual = min(usual, -((passed_ns - due_ns) // NS_PER_MS))
        return min(usual, self.commits.wait_ms(time.monotonic_ns()))

    def _row(self, next_offset: int) -> ChannelRow:
        # Of an ephemeral channel's holes, the storage keeps only the deferred ones. `first` is the
        # lowest of the others.
        first = None if self.last_consumer is None else self.core.first()
        return ChannelRow(
            next_offset,
            self.core.paused,
            None,
            self.core.counters,
            self.settings_own,
            first,
            self.core.stored_begin(next_offset),
            tuple(self.supply.emptied),
            self.due_clock.now_ns() if self.supply.deferred.rows else None,
            self.core.limit.full_ns(boot_ns(), time.time_ns())
            if self.core.limit is not None
            else None,
            tuple(self.supply.choice.endings.revoked.items()),
        )

    def _save(self) -> None:
        if not self.commits.out:
            self._request += 1
            changes = self.core.changes()
            for save in self.commits.begin(self._request, changes, self._row(changes.next_offset)):
                self.storage.send((), save)

    def on_done(self, port: Port, mail: Mail, message: p.Done) -> None:
        if (order := self.skips.answered(message.request)) is not None:
            self._skip_found(order, message.data["rows"])
        elif self.supply.deferred.answered(message.request):
            rows, next_due_ns = message.data["rows"], message.data["next_due_ns"]
            self.supply.came_due(rows, next_due_ns, self.due_clock.now_ns())
        looked = self.peeks.answered(message.request, message.data.get("rows", ()), self.core)
        if looked is not None:
            self.answer_order(looked)
        if message.request != self.commits.out:
            return
        barriers, answers = self.commits.done(
            time.monotonic_ns(), withholds=bool(message.data.get("withholds"))
        )
        self.supply.committed()
        for envelope, answer in barriers:
            self.front.send(envelope, answer)
            if type(answer) is p.Failed:  # the last message, see `_turn_away`
                self.core.unsubscribe(envelope, Departure.SENT_AWAY)
        for done in answers:
            self.answer_order(done)

    def on_failed(self, port: Port, mail: Mail, message: p.Failed) -> None:
        if message.request in self._fetches:
            offset = self._fetches.pop(message.request)
            log.error(
                "%s: cannot read offset %d, so its message is not delivered again: %s",
                self.title,
                offset,
                message.text,
            )
            self.supply.lost(offset, offset + 1)
            return
        if order := self.skips.failed(message.request):
            self.answer_order(p.Failed(order, message.code, message.text))
        self.supply.deferred.failed(message.request)
        if order := self.peeks.failed(message.request):
            self.answer_order(p.Failed(order, message.code, message.text))
        # The channel has another owner, or the rows are invalid. So this process must end.
        elif message.request == self.commits.out:
            raise RuntimeError(
                f"{self.title}: storage refused a commit: {message.code} {message.text}"
            )
        log.warning(
            "%s: a request to the topic's storage failed: %s %s",
            self.title,
            message.code,
            message.text,
        )

    # Orders

    def close(self, message: p.SetClosed) -> p.Done:
        """Close the channel to consumers, or open it again.

        Connected consumers receive an error. Their messages wait until the topic is opened again to
        consumers.
        """
        self.closed = message.to_consumers
        if self.closed:
            self._turn_away(E_CLOSED, TO_CONSUMERS)
        return p.Done(message.request, {})

    def disconnect(self, message: p.Disconnect) -> p.Done:
        """End the subscriptions of the consumers with this name. Each may subscribe again.

        The label of an NSQ client is its name and its address. Its name alone means it, too.
        """
        labels = {peer: consumer.label for peer, consumer in self.core.consumers.items()}
        named = [peer for peer, label in labels.items() if label == message.consumer]
        if not named:
            parts = {peer: label.rpartition(" ") for peer, label in labels.items()}
            named = [
                peer
                for peer, (name, _, address) in parts.items()
                if name == message.consumer and ":" in address
            ]
        for peer in named:
            self._dismiss(peer, E_HELLO, DISCONNECTED)
        return p.Done(message.request, {"count": len(named)})

    def hold(self, message: p.Hold) -> p.Done | None:
        self.core.holds = not message.is_over
        if message.is_over:
            self._hold_order = 0
            return p.Done(message.request, {})
        self._hold_order = message.request
        self._hold_until_ns = time.monotonic_ns() + options.HOLD_MS * NS_PER_MS
        for peer, count in self.core.held_by_consumer():
            self.front.send(peer, p.Recall(count))
        return None

    def _look_at_hold(self) -> None:
        if self._hold_order and not self.core.in_flight:
            self.answer_order(p.Done(self._hold_order, {}))
            self._hold_order = 0
        if time.monotonic_ns() >= self._hold_until_ns and not self.stopping:
            self.core.holds = False

    def where_dead_letters_go(self, message: p.WhereDeadLettersGo) -> p.DeadLettersGo:
        topic = channel_settings.dead_letter_topic(
            self.given.topic_name, self.name, self.core.settings
        )
        return p.DeadLettersGo(message.request, topic)

    def peek(self, message: p.Peek) -> None:
        self._request += 1
        self.storage.send(
            (),
            self.peeks.begin(
                self._request, message, self.core, time.monotonic_ns(), time.time_ns()
            ),
        )

    # Orders that are answered once they are durable

    def pause(self, message: p.SetPaused) -> None:
        self.core.paused = message.is_paused
        self.commits.answer(p.Done(message.request, {}))

    def empty(self, message: p.EmptyChannel) -> None:
        self._head = max(self._head, message.head)
        self._move(max(self._head, self.supply.next_offset))
        self.commits.answer(p.Done(message.request, {}))

    def skip(self, message: p.Skip) -> None:
        if self.core.skip(message.start, message.end):
            self.feed.moved()
        self.commits.answer(p.Done(message.request, {}))

    def skip_messages(self, message: p.SkipMessages) -> None:
        self._head = max(self._head, message.head)
        if self.supply.deferred.rows:
            self.skips.add(message)
        else:
            self._skip(message, ())

    def _skip_found(self, order: p.SkipMessages, rows: Sequence[Row]) -> None:
        try:
            self._skip(order, rows)
        except ZsqError as error:
            self.answer_order(p.Failed(order.request, error.code, error.text))

    def _skip(self, order: p.SkipMessages, rows: Sequence[Row]) -> None:
        """Skip messages. `rows` are the deferred rows in the storage that have some of them."""
        ranges = self.core.unfinished(ranges_of(order.offsets), rows, self._head)
        offsets = [offset for first, count in ranges for offset in range(first, first + count)]
        answer = p.Done(order.request, {"offsets": tuple(offsets)})
        if order.preview:
            self.answer_order(answer)
            return
        moved, told = self.core.skip_messages(ranges, rows) if ranges else (False, [])
        for peer, cancelled in told:
            self.front.send(peer, p.Cancelled(tuple(cancelled), (), 0))
        if moved:
            self.feed.moved()
        self.commits.answer(answer)

    def revoke(self, message: p.Revoke) -> None:
        self.core.revoke(message.keys, message.end)
        for peer, consumer in self.core.consumers.items():
            if consumer.reports and consumer.in_flight:
                self.front.send(peer, p.Cancelled((), message.keys, message.end))
        self.commits.answer(p.Done(message.request, {}))

    def configure(self, message: p.ConfigureChannel) -> None:
        changed_settings = channel_settings.changed(
            self.settings_own, message.changes, self.given.topic_name, self.name
        )
        self.settings_own = cast("ChannelOptions", changed_settings)
        self.core.configure(channel_settings.resolve(self.settings_own))
        self.dead_letters.configured()
        self.commits.answer(
            p.ChannelConfigured(
                message.request, cast("ChannelOptions", self.core.settings.as_dict())
            )
        )

    def seek(self, message: p.Seek) -> None:
        """Move the channel to another offset.

        `END` means the end of the topic. Raises `UsageError` (E_BAD_ARGUMENT) for an offset beyond
        the end, which would skip all waiting messages, unless `clamp` is set.
        """
        self._head = max(self._head, message.head)
        if self._head < message.offset < END and not message.clamp:
            counts = self.core.statistics(self._head)
            waiting, deferred = counts["depth"], counts["deferred_count"]
            text = (
                f"offset {message.offset} is beyond the end of topic {self.given.topic_name!r} at "
                f"offset {self._head}: channel {self.name!r} would skip {waiting} waiting "
                f"and {deferred} deferred messages"
            )
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{text}. To skip them, seek to latest or set clamp (zsq seek --clamp)",
            )
        offset = min(max(message.offset, message.start), self._head)
        if not message.forward or offset > self.supply.next_offset:
            self._move(offset)
        self.commits.answer(p.Position(message.request, self.supply.next_offset))

    def _move(self, offset: int) -> None:
        self.core.seek(offset)
        self._fetches.clear()
        self.feed.moved()

    def on_stop(self) -> bool:
        """Commit what is not committed, then send Bye to the consumers.

        They then connect to the channel's next process.

        Return True when the actor may end. The actor waits at most `STOP_COMMIT_S` for the commit.
        Answers of consumers that were not committed were not confirmed either.
        """
        self._stop_ns = self._stop_ns or time.monotonic_ns()
        self.core.end()
        if (
            self.dead_letters.sending
            and time.monotonic_ns() - self._stop_ns < options.DEAD_STOP_S * 1e9
        ):
            return False
        if self.supply.dirty or self.commits.waited_for:
            self.commits.now = True
        if self.commits.out or self.commits.now:
            if time.monotonic_ns() - self._stop_ns < options.STOP_COMMIT_S * 1e9:
                return False
            log.warning(
                "%s stops without its last commit: some messages will be delivered again",
                self.title,
            )
        is_committed = self.commits.is_idle and not self.supply.dirty
        for peer, consumer in self.core.consumers.items():
            if is_committed:
                self.front.send(peer, p.Settled(consumer.finish_count))
            self.front.send(peer, p.Bye())
        return True

    def on_end(self) -> None:
        self.dead_letters.end()

    def statistics(self) -> ChannelPulse:
        now, wall_ns, measurements = time.monotonic_ns(), time.time_ns(), self.core.measurements
        measurements.sample(self.core.consumers.values(), now, wall_ns)
        return {
            **self.core.statistics(self._head),
            "stirred_ns": self.stirred_ns,
            "rates": measurements.rates(now),
            "rates_recent": measurements.rates_recent(now),
            "latency_recent": measurements.latency(wall_ns),
            "settings": cast("ChannelOptions", self.core.settings.as_dict()),
            "dead_letter_alarm": self.dead_letters.alarm(self.supply),
        }

    def details(self) -> ChannelDetails:
        return self.core.details(time.monotonic_ns(), time.time_ns())
