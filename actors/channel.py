"""The channel: gives each message to one of its consumers and knows who holds which until when."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import Any, cast

from ..transport import protocol as p
from ..transport.block import cut
from ..transport.block_gather import gather
from ..transport.errors import E_CLOSED, E_CLOSING, E_HELLO, Refused, UsageError, ZsqError
from ..transport.names import is_ephemeral
from . import channel_settings, options
from .actor import Actor
from .closing import TO_CONSUMERS
from .dead_letter_desk import DeadLetterDesk
from .feed import Feed
from .last_consumer import LastConsumer
from .lease import Consumer
from .opening import ask_for_row, make_delivery
from .peeks import Peeks
from .port import Mail, Port
from .saving import Saving
from .subscribing import check_ready, consumer_of

log = logging.getLogger("zsq")
_MS = 1_000_000
FRONT_WORDS = frozenset((p.Sub, p.Ready, p.Fin, p.Req, p.Touch, p.Beat, p.Bye, p.Scan))  # consumers and scan workers


class Channel(Actor):
    """Settings: channel, front, topic, storage, scan (endpoints)."""

    def on_start(self) -> dict[str, Any]:
        self.name: str = self.settings["channel"]
        self.storage = self.open_dealer(self.settings["storage"])
        data = ask_for_row(self.storage, self.name, self.settings.get("settings", {}))
        self._head = data["end"]
        self.settings_own: dict[str, Any] = data["row"].get("settings", {})
        self.last_consumer = LastConsumer(time.monotonic_ns()) if is_ephemeral(self.name) else None
        self.delivery = make_delivery(self.key, self.name, data)
        self.supply = self.delivery.supply
        self.feed = Feed(self.name)
        self.front = self.open_router(self.settings["front"], FRONT_WORDS)
        self._request = 1
        self.saving = Saving(self.name)
        told = self.settings
        self.dead_letters = DeadLetterDesk(self, told.get("topic_name", ""), told.get("uuid", ""), self.name, told["front"])
        self.peeks = Peeks(self.name)
        self._stop_ns = 0
        self.closed: bool = self.settings["closed"]  # to consumers
        self._fetches: dict[int, int] = {}  # request -> offset wanted for a redelivery
        self._hinted_ns = 0
        return {"front": self.settings["front"], "settings": self.settings_own}

    @cached_property
    def topic(self) -> Port:
        """With the first consumer: a link costs some 130 KB, and of a thousand channels most are idle."""
        return self.open_dealer(self.settings["topic"])

    @cached_property
    def scan(self) -> Port:
        """With the first due time."""
        return self.open_dealer(self.settings["scan"])

    # Consumers

    def on_sub_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Sub", mail.word)
        if self.closed:
            raise Refused(E_CLOSED, TO_CONSUMERS)
        if self.last_consumer is not None and self.last_consumer.over:
            raise Refused(E_CLOSING, f"channel {self.name!r} ends with the consumer before; ask for it again")
        consumer = consumer_of(word, mail.envelope, self.delivery, time.monotonic_ns(), time.time_ns())
        self.delivery.subscribe(consumer)
        port.send(mail.envelope, p.Subscribed(word.request, self.key, consumer.timeout_ns // _MS, consumer.heartbeat_ns // _MS))

    def _consumer(self, mail: Mail) -> Consumer:
        """The sender, alive; a stranger (of a predecessor's time, or given up as lost) has to subscribe again."""
        consumer = self.delivery.consumers.get(mail.envelope)
        if consumer is None:
            raise UsageError(E_HELLO, "subscribe first: this link is not known (any more)")
        consumer.seen_ns = time.monotonic_ns()
        return consumer

    def on_ready_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        ready = cast("p.Ready", mail.word).ready
        check_ready(ready)
        self.delivery.set_ready(mail.envelope, ready)

    def on_fin_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        word = cast("p.Fin", mail.word)
        refused: Any = () if word.token == 0 else self.delivery.fin(mail.envelope, word.token, word.ranges, time.time_ns())
        self._answer(mail, word.request, word.token, refused)

    def on_req_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        word = cast("p.Req", mail.word)
        error = word.error[: p.ERROR_TEXT_MAX]
        refused = self.delivery.req(mail.envelope, word.token, word.ranges, word.delay_ms, time.time_ns(), error)
        self._answer(mail, word.request, word.token, refused)

    def on_touch_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        word = cast("p.Touch", mail.word)
        refused = self.delivery.touch(mail.envelope, word.token, time.monotonic_ns())
        if refused or word.request:
            port.send(mail.envelope, p.Answer(word.request, word.token, tuple(refused)))

    def _answer(self, mail: Mail, request: int, token: int, refused: Any) -> None:
        answer = p.Answer(request, token, tuple(refused))
        if request:
            self.saving.confirm(mail.envelope, answer)  # confirmed means committed
        elif refused:
            self.front.send(mail.envelope, answer)

    def on_beat_word(self, port: Port, mail: Mail) -> None:
        if port is self.front:
            self._consumer(mail)
            port.send(mail.envelope, p.Beat())

    def on_bye_word(self, port: Port, mail: Mail) -> None:
        self.delivery.unsubscribe(mail.envelope)

    def on_gone(self, who: str) -> None:
        for peer in [peer for peer in self.delivery.consumers if peer[0] == who.encode()]:
            self.delivery.unsubscribe(peer)

    def _look_for_consumers(self, last: LastConsumer) -> None:
        if last.look(len(self.delivery.consumers), time.monotonic_ns()):
            self.supervisor.send((), p.Over(self.key))

    def _set_closed(self, closed: bool) -> None:
        """Those that are there see an error; what they hold waits for the topic to be opened again."""
        self.closed = closed
        for peer in list(self.delivery.consumers) if closed else ():
            self.front.send(peer, p.Failed(0, E_CLOSED, TO_CONSUMERS))
            self.delivery.unsubscribe(peer)

    # Blocks come

    def on_offer_word(self, port: Port, mail: Mail) -> None:
        blocks = mail.blocks()
        self._head = max(self._head, cast("p.Offer", mail.word).head)
        if not self.feed.came(sum(block.length for block in blocks)):
            return
        for block in blocks:
            if not self.supply.offer(block):
                self.feed.behind()
                return

    def on_behind_word(self, port: Port, mail: Mail) -> None:
        self._head = max(self._head, cast("p.Behind", mail.word).head)
        self.feed.behind()

    def on_dropped_word(self, port: Port, mail: Mail) -> None:
        """Of storage; no block from behind the new start was sent before."""
        if port is not self.storage:
            return
        start = cast("p.Dropped", mail.word).start
        if self.supply.drop_below(start):
            self.feed.moved()
        for data in self.saving.orders():
            if "offset" in data:  # a seek that came after storage had decided: it is answered with where it really went
                data["offset"] = max(data["offset"], start)

    def on_head_word(self, port: Port, mail: Mail) -> None:
        self._head = max(self._head, cast("p.Head", mail.word).head)

    def on_blocks_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Blocks", mail.word)
        blocks = mail.blocks()
        self._head = max(self._head, word.head)
        wanted = self._fetches.pop(word.request, None)
        if wanted is not None:
            following = blocks[0].first_offset if blocks else word.next_offset
            if following > wanted:
                self.supply.lost(wanted, following)
            for block in blocks:
                self.supply.shelve(block)
        elif self.feed.read(word.request, word.next_offset >= word.head):
            for block in blocks:
                self.supply.offer(block, from_storage=True)
            self.supply.step_over(word.next_offset)

    # Each turn

    def on_turn(self) -> None:
        self.delivery.rest()
        detach = self.feed.wanted(self.delivery.is_wanted() and not self.stopping)
        if detach is not None:
            self.topic.send((), detach)
        self.busy = not self.stopping and self._deliver()
        self.dead_letters.turn(self.supply, not self.stopping)
        if self.saving.is_due(self.supply.dirty, time.monotonic_ns()) or self.delivery.waits_for_commit():
            self._save()
        self._ask_for_due()
        self._ask_for_blocks()
        self._hint()
        if self.last_consumer is not None and not self.stopping:
            self._look_for_consumers(self.last_consumer)

    def _deliver(self) -> bool:
        """True: there is more than one turn may take."""
        now, wall = time.monotonic_ns(), time.time_ns()
        for _ in range(options.DRAIN_MAX):
            parcel = self.delivery.next_parcel(now, wall)
            if parcel is None:
                return self.delivery.has_more()
            block = cut(*parcel.parts[0]) if len(parcel.parts) == 1 else gather(parcel.parts)
            word = p.Deliver(parcel.token, parcel.runs, parcel.timeout_ns // _MS)
            if not self.front.send(parcel.peer, word, [block]):
                self.delivery.unsubscribe(parcel.peer)  # dead, or does not take what it has credit for
        return True

    def _ask_for_blocks(self) -> None:
        self._request += 1
        word = self.feed.next_word(self.supply.window_end, self.supply.window_bytes, self._request)
        if isinstance(word, p.Fetch):
            self.storage.send((), word)
        elif word is not None:
            self.topic.send((), word)
        asked = set(self._fetches.values())
        for offset in self.supply.wanted - asked:
            if len(self._fetches) >= options.FETCHES_MAX:
                return
            self._request += 1
            self._fetches[self._request] = offset
            self.storage.send((), p.Fetch(self._request, offset, self.supply.fetch_bytes))

    def _hint(self) -> None:
        """Tell the scan loop when the next due time became earlier than what it knows: by more than two clocks drift apart in a while."""
        now = time.monotonic_ns()
        due = self.delivery.next_due(now, time.time_ns())
        if due and (due < self._hinted_ns - _MS or self._hinted_ns == 0):
            self._hinted_ns = due
            self.scan.send((), p.Hint(self.key, due))

    def on_scan_word(self, port: Port, mail: Mail) -> None:
        now, wall = time.monotonic_ns(), time.time_ns()
        dirty = self.delivery.scan(now, wall)
        if dirty:
            self.stir()
        self._hinted_ns = self.delivery.next_due(now, wall)
        port.send(mail.envelope, p.Scanned(cast("p.Scan", mail.word).request, dirty, self._hinted_ns))

    def _ask_for_due(self) -> None:
        if not self.stopping and self.delivery.may_ask():
            self._request += 1
            self.supply.deferred.ask(self._request)
            self.storage.send((), p.Due(self._request, self.name, time.time_ns(), options.DUE_ROWS_MAX))

    # Commits

    def _wait_ms(self) -> int:
        usual = super()._wait_ms()
        return min(usual, self.saving.wait_ms(time.monotonic_ns()))

    def _row(self) -> dict[str, Any]:
        found = {"paused": self.delivery.paused, "counters": self.delivery.counters, "settings": self.settings_own}
        if self.last_consumer is not None:  # storage keeps no holes of it
            found["first"] = self.delivery.first()
        return found | {"begin": self.delivery.begin}

    def _save(self) -> None:
        if not self.saving.out:
            self._request += 1
            for save in self.saving.begin(self._request, self.delivery.changes(), self._row()):
                self.storage.send((), save)

    def on_done_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Done", mail.word)
        if self.supply.deferred.answered(word.request):
            self.supply.came_due(word.data["rows"], word.data["next_due_ns"], time.time_ns())
        looked = self.peeks.answered(word.request, word.data.get("rows", ()), self.delivery)
        if looked is not None:
            self.answer_order(*looked)
        if word.request != self.saving.out:
            return
        barriers, orders = self.saving.done()
        self.supply.committed()
        for envelope, answer in barriers:
            self.front.send(envelope, answer)
        for request, data in orders:
            self.answer_order(request, data)

    def on_failed_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Failed", mail.word)
        if word.request in self._fetches:
            offset = self._fetches.pop(word.request)
            log.error("%s: reading offset %d: %s", self.title, offset, word.text)
            self.supply.lost(offset, offset + 1)
            return
        self.supply.deferred.failed(word.request)
        if order := self.peeks.failed(word.request):
            self.answer_order(order, ZsqError(word.code, word.text))
        elif word.request == self.saving.out:  # another owner, or rows that storage cannot take: what is held here is worth nothing
            raise RuntimeError(f"{self.title}: storage says {word.code} {word.text}")
        log.warning("%s: %s %s", self.title, word.code, word.text)

    # Orders

    def on_order(self, word: p.Order) -> dict[str, Any] | None:
        data: dict[str, Any] = {}
        if word.action == "closed":
            self._set_closed(bool(word.options["consumers"]))
            return data
        if word.action in ("pause", "unpause"):
            self.delivery.paused = word.action == "pause"
        elif word.action == "empty":
            self._head = max(self._head, int(word.options.get("head", 0)))
            self._move(max(self._head, self.supply.next_offset))
        elif word.action == "seek":
            data["offset"] = self._seek(word.options)
        elif word.action == "peek":
            self._request += 1
            self.storage.send((), self.peeks.begin(self._request, word, self.delivery, time.monotonic_ns(), time.time_ns()))
            return None
        elif word.action == "configure":
            self.settings_own = channel_settings.changed(self.settings_own, word.options, self.settings.get("topic_name", ""), self.name)
            self.delivery.configure(channel_settings.resolve(self.settings_own))
            self.dead_letters.configured()
            data["settings"] = self.delivery.settings.as_dict()
        else:
            return super().on_order(word)
        self.saving.answer(word.request, data)  # when it is durable
        return None

    def _seek(self, order: dict[str, Any]) -> int:
        """To `offset`, within what the log holds (`start`, `head`); with `forward` only if that is farther on. Returns where it is then."""
        self._head = max(self._head, int(order["head"]))
        offset = min(max(int(order["offset"]), int(order["start"])), self._head)
        if not order.get("forward") or offset > self.supply.next_offset:
            self._move(offset)
        return self.supply.next_offset

    def _move(self, offset: int) -> None:
        self.delivery.seek(offset)
        self._fetches.clear()
        self.feed.moved()

    def on_stop(self) -> bool:
        """What was answered is committed, then consumers are told to look for a successor.

        A commit that does not come is not waited for: nobody was told that it had.
        """
        self._stop_ns = self._stop_ns or time.monotonic_ns()
        self.delivery.end()
        if self.dead_letters.sending and time.monotonic_ns() - self._stop_ns < options.DEAD_STOP_S * 1e9:
            return False
        if self.supply.dirty or self.saving.waited_for:
            self.saving.now = True
        if self.saving.out or self.saving.now:
            if time.monotonic_ns() - self._stop_ns < options.STOP_COMMIT_S * 1e9:
                return False
            log.warning("%s ends without its last commit: some messages will come again", self.title)
        for peer in list(self.delivery.consumers):
            self.front.send(peer, p.Bye())
        return True

    def on_end(self) -> None:
        self.dead_letters.end()

    def statistics(self) -> dict[str, Any]:
        now, wall_ns, figures = time.monotonic_ns(), time.time_ns(), self.delivery.figures
        figures.sample(self.delivery.consumers.values(), now, wall_ns)
        said = {"rates": figures.rates(now), "latency_recent": figures.latency(wall_ns), "settings": self.delivery.settings.as_dict()}
        return self.delivery.statistics(self._head) | said | {"dead_letter_alarm": self.dead_letters.alarm(self.supply)}

    def details(self) -> dict[str, Any]:
        return self.delivery.details(time.monotonic_ns(), time.time_ns())
