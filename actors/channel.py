"""The channel: gives each message to one of its consumers and knows who holds which until when."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, cast

from ..transport import protocol as p
from ..transport.block import cut, gather
from ..transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_HELLO, E_LIMIT, UsageError
from . import options
from .actor import Actor, StartFailed
from .deferred import Deferred
from .delivery import Delivery
from .feed import Feed
from .lease import Consumer, save_pages
from .port import Envelope, Mail, Port

log = logging.getLogger("zsq")
_MS = 1_000_000
FRONT_WORDS = frozenset((p.Sub, p.Ready, p.Fin, p.Req, p.Touch, p.Beat, p.Bye, p.Scan))  # consumers and scan workers


class Channel(Actor):
    """Settings: channel, front, topic, storage, scan (endpoints)."""

    def on_start(self) -> dict[str, Any]:
        self.name: str = self.settings["channel"]
        self.storage = self.open_dealer(self.settings["storage"])
        data = self._opened()
        row, self._head = data["row"], data["end"]
        self.delivery = Delivery(self.key, row["next"], data["holes"], row["counters"], row["paused"], Deferred(*data["deferred"]))
        self.delivery.drop_below(data["start"])
        self.feed = Feed(self.name)
        self.topic = self.open_dealer(self.settings["topic"])
        self.scan = self.open_dealer(self.settings["scan"])
        self.front = self.open_router(self.settings["front"], FRONT_WORDS)
        self._request = 1
        self._save_out = 0  # request of the Save on its way
        self._save_now = True
        self._stop_ns = 0
        self._barriers: deque[tuple[Envelope, p.Wire]] = deque()  # answered with the commit after the one on its way
        self._barriers_out: list[tuple[Envelope, p.Wire]] = []
        self._orders: list[tuple[int, dict[str, Any]]] = []  # answered likewise
        self._orders_out: list[tuple[int, dict[str, Any]]] = []
        self._fetches: dict[int, int] = {}  # request -> offset wanted for a redelivery
        self._hinted_ns = 0
        self.every(options.SAVE_INTERVAL_MS, self._save_if_dirty)
        return {"front": self.settings["front"]}

    def _opened(self) -> dict[str, Any]:
        """Storage's answer; many holes come in several."""
        self.storage.send((), p.OpenChannel(1, self.name))
        holes: list[Any] = []
        while self.storage.socket.poll(10_000):
            for mail in self.storage.receive(1):
                if isinstance(mail, Mail) and isinstance(mail.word, p.Dropped):
                    continue  # the answer comes after it, and knows
                if not isinstance(mail, Mail) or not isinstance(mail.word, p.Done):
                    raise StartFailed(f"storage refuses the channel: {mail[1]}")
                holes += mail.word.data["holes"]
                if not mail.word.data["more"]:
                    return mail.word.data | {"holes": holes}
        raise StartFailed("storage did not answer within 10 s")

    # Consumers

    def on_sub_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Sub", mail.word)
        if word.version != p.PROTOCOL_VERSION:
            raise UsageError(E_BAD_COMMAND, f"protocol version {word.version} is not spoken here, only {p.PROTOCOL_VERSION}")
        timeout_ms = word.message_timeout_ms or p.MESSAGE_TIMEOUT_MS
        if not p.MESSAGE_TIMEOUT_MS_MIN <= timeout_ms <= p.MESSAGE_TIMEOUT_MS_MAX:
            limits = f"{p.MESSAGE_TIMEOUT_MS_MIN} to {p.MESSAGE_TIMEOUT_MS_MAX} ms"
            raise UsageError(E_BAD_ARGUMENT, f"a message timeout of {timeout_ms} ms is outside of {limits}")
        self._check_ready(word.ready)
        if len(self.delivery.consumers) >= options.CONSUMERS_MAX:
            raise UsageError(E_LIMIT, f"a channel has at most {options.CONSUMERS_MAX} consumers")
        heartbeat_ms = min(p.HEARTBEAT_MS_MAX, max(p.HEARTBEAT_MS_MIN, word.heartbeat_ms))
        consumer = Consumer(
            mail.envelope, word.label[:128], word.ready, timeout_ms * _MS, heartbeat_ms * _MS, time.monotonic_ns(), int(time.time())
        )
        self.delivery.subscribe(consumer)
        port.send(mail.envelope, p.Subscribed(word.request, self.key, timeout_ms, heartbeat_ms))

    def _check_ready(self, ready: int) -> None:
        if not 0 <= ready <= p.READY_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"ready {ready} is outside of 0 to {p.READY_MAX}")

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
        self._check_ready(ready)
        self.delivery.set_ready(mail.envelope, ready)

    def on_fin_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        word = cast("p.Fin", mail.word)
        refused: Any = () if word.token == 0 else self.delivery.fin(mail.envelope, word.token, word.ranges)
        self._answer(mail, word.request, word.token, refused)

    def on_req_word(self, port: Port, mail: Mail) -> None:
        self._consumer(mail)
        word = cast("p.Req", mail.word)
        delay_ns = min(max(0, word.delay_ms), p.REQUEUE_DELAY_MS_MAX) * _MS
        refused = self.delivery.req(mail.envelope, word.token, word.ranges, delay_ns, time.time_ns())
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
            if len(self._barriers) >= options.WAITERS_MAX:
                raise UsageError(E_LIMIT, "too many answers wait for their commit already")
            self._barriers.append((mail.envelope, answer))  # confirmed means committed
            self._save_now = True
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

    # Blocks come

    def on_offer_word(self, port: Port, mail: Mail) -> None:
        blocks = mail.blocks()
        self._head = max(self._head, cast("p.Offer", mail.word).head)
        if not self.feed.came(sum(block.length for block in blocks)):
            return
        for block in blocks:
            if not self.delivery.offer(block):
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
        if self.delivery.drop_below(start):
            self.feed.moved()
        for _, data in (*self._orders, *self._orders_out):
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
                self.delivery.lost(wanted, following)
            for block in blocks:
                self.delivery.shelve(block)
        elif self.feed.read(word.request, word.next_offset >= word.head):
            for block in blocks:
                self.delivery.offer(block, from_storage=True)
            self.delivery.step_over(word.next_offset)

    # Each turn

    def on_turn(self) -> None:
        self.delivery.rest()
        detach = self.feed.wanted(self.delivery.is_wanted() and not self.stopping)
        if detach is not None:
            self.topic.send((), detach)
        if not self.stopping:
            self._deliver()
        if self._save_now or self.delivery.waits_for_commit():
            self._save()
        self._ask_for_due()
        self._ask_for_blocks()
        self._hint()

    def _deliver(self) -> None:
        now = time.monotonic_ns()
        for _ in range(options.DRAIN_MAX):
            parcel = self.delivery.next_parcel(now)
            if parcel is None:
                return
            block = cut(*parcel.parts[0]) if len(parcel.parts) == 1 else gather(parcel.parts)
            word = p.Deliver(parcel.token, parcel.runs, parcel.timeout_ns // _MS)
            if not self.front.send(parcel.peer, word, [block]):
                self.delivery.unsubscribe(parcel.peer)  # dead, or does not take what it has credit for

    def _ask_for_blocks(self) -> None:
        self._request += 1
        word = self.feed.next_word(self.delivery.window_end, self.delivery.window_bytes, self._request)
        if isinstance(word, p.Fetch):
            self.storage.send((), word)
        elif word is not None:
            self.topic.send((), word)
        asked = set(self._fetches.values())
        for offset in self.delivery.wanted - asked:
            if len(self._fetches) >= options.FETCHES_MAX:
                return
            self._request += 1
            self._fetches[self._request] = offset
            self.storage.send((), p.Fetch(self._request, offset, 1))

    def _hint(self) -> None:
        """Tell the scan loop when the next due time became earlier than what it knows."""
        now = time.monotonic_ns()
        due = self.delivery.next_due(now, time.time_ns())
        if due and (due < self._hinted_ns or self._hinted_ns == 0):
            self._hinted_ns = due
            self.scan.send((), p.Hint(self.key, due))

    def on_scan_word(self, port: Port, mail: Mail) -> None:
        now, wall = time.monotonic_ns(), time.time_ns()
        dirty = self.delivery.scan(now, wall)
        self._hinted_ns = self.delivery.next_due(now, wall)
        port.send(mail.envelope, p.Scanned(cast("p.Scan", mail.word).request, dirty, self._hinted_ns))

    def _ask_for_due(self) -> None:
        if not self.stopping and self.delivery.deferred.may_ask(self.delivery.held):
            self._request += 1
            self.delivery.deferred.ask(self._request)
            self.storage.send((), p.Due(self._request, self.name, time.time_ns(), options.DUE_ROWS_MAX))

    # Commits

    def _save_if_dirty(self) -> None:
        if self.delivery.dirty:
            self._save_now = True

    def _save(self) -> None:
        """One Save is out at a time; what comes meanwhile goes with the next."""
        if self._save_out:
            return
        changes = self.delivery.changes()
        self._request += 1
        self._save_out = self._request
        self._save_now = False
        self._barriers_out, self._barriers = list(self._barriers), deque()
        self._orders_out, self._orders = self._orders, []
        row = {"next": changes.next_offset, "paused": self.delivery.paused, "counters": self.delivery.counters}
        for save in save_pages(self._save_out, self.name, row, changes):
            self.storage.send((), save)

    def on_done_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Done", mail.word)
        if self.delivery.deferred.answered(word.request):
            self.delivery.came_due(word.data["rows"], word.data["next_due_ns"], time.time_ns())
        if word.request != self._save_out:
            return
        self._save_out = 0
        self.delivery.committed()
        for envelope, answer in self._barriers_out:
            self.front.send(envelope, answer)
        for request, data in self._orders_out:
            self.answer_order(request, data)
        self._barriers_out, self._orders_out = [], []

    def on_failed_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Failed", mail.word)
        if word.request in self._fetches:
            offset = self._fetches.pop(word.request)
            log.error("%s: reading offset %d: %s", self.title, offset, word.text)
            self.delivery.lost(offset, offset + 1)
            return
        self.delivery.deferred.failed(word.request)
        if word.request == self._save_out:  # another owner, or rows that storage cannot take: what is held here is worth nothing
            raise RuntimeError(f"{self.title}: storage says {word.code} {word.text}")
        log.warning("%s: %s %s", self.title, word.code, word.text)

    # Orders

    def on_order(self, word: p.Order) -> dict[str, Any] | None:
        data: dict[str, Any] = {}
        if word.action in ("pause", "unpause"):
            self.delivery.paused = word.action == "pause"
        elif word.action == "empty":
            self._head = max(self._head, int(word.options.get("head", 0)))
            self._move(max(self._head, self.delivery.next_offset))
        elif word.action == "seek":
            data["offset"] = self._seek(word.options)
        else:
            return super().on_order(word)
        self._orders.append((word.request, data))  # answered when it is durable
        self._save_now = True
        return None

    def _seek(self, order: dict[str, Any]) -> int:
        """To `offset`, within what the log holds (`start`, `head`); with `forward` only if that is farther on. Returns where it is then."""
        self._head = max(self._head, int(order["head"]))
        offset = min(max(int(order["offset"]), int(order["start"])), self._head)
        if not order.get("forward") or offset > self.delivery.next_offset:
            self._move(offset)
        return self.delivery.next_offset

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
        if self.delivery.dirty or self._barriers:
            self._save_now = True
        if self._save_out or self._save_now:
            if time.monotonic_ns() - self._stop_ns < options.STOP_COMMIT_S * 1e9:
                return False
            log.warning("%s ends without its last commit: some messages will come again", self.title)
        for peer in list(self.delivery.consumers):
            self.front.send(peer, p.Bye())
        return True

    def statistics(self) -> dict[str, Any]:
        return self.delivery.statistics(self._head)
