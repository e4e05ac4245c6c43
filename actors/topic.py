"""The topic: takes blocks from producers in order, hands them to storage, and what is durable to its channels."""

from __future__ import annotations

import time
from typing import Any, cast

import zmq

from ..transport import protocol as p
from ..transport.block import check_block
from ..transport.block_format import ADDRESSED
from ..transport.errors import E_BAD_ARGUMENT, E_BAD_BLOCK, E_BAD_COMMAND, E_CLOSING, E_LIMIT, UsageError, ZsqError
from . import options
from .actor import Actor, StartFailed
from .fanout import Fanout
from .ordering import Ordering, Reply
from .port import Mail, Port
from .rates import RateMeter

_MS = 1_000_000
FRONT_WORDS = frozenset((p.Hello, p.Pub, p.PubDelayed, p.Beat, p.Bye, p.Attach, p.Credit))  # producers and channels


class Topic(Actor):
    """Settings: front and storage (endpoints), closed (to publishers)."""

    front: Port
    storage: Port
    ordering: Ordering
    fanout: Fanout

    def on_start(self) -> dict[str, Any]:
        self.storage = self.open_dealer(self.settings["storage"])
        table = self._recovered()
        producers = {int(pid): (row[0], row[1]) for pid, row in table["producers"].items()}
        self.ordering = Ordering(producers)
        self.ordering.closed = self.settings["closed"]
        self._closings: list[int] = []  # orders that wait until all that was taken before is answered
        self.fanout = Fanout(table["head"], table["visible_end"])
        self.front = self.open_router(self.settings["front"], FRONT_WORDS)
        self._head_told = -1
        self._requests: dict[int, int] = {}  # ours to storage -> the supervisor's
        self._request = 1
        self._messages = 0
        self._bytes = 0
        self._meter = RateMeter(time.monotonic_ns(), self._counts())
        self.every(1_000, self._tell_head)
        self.every(1_000, lambda: self.ordering.expire(time.monotonic_ns()))
        return {"head": self.fanout.head}

    def _recovered(self) -> dict[str, Any]:
        """What storage recovered; it is up already, so this is one round trip."""
        self.storage.send((), p.OpenTopic(1))
        if not self.storage.socket.poll(10_000):
            raise StartFailed("storage did not answer within 10 s")
        for mail in self.storage.receive(1):
            if isinstance(mail, Mail) and isinstance(mail.word, p.Done):
                return mail.word.data
        raise StartFailed("storage answered something else than its table")

    # Producers

    def on_hello_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Hello", mail.word)
        if word.version != p.PROTOCOL_VERSION:
            raise UsageError(E_BAD_COMMAND, f"protocol version {word.version} is not spoken here, only {p.PROTOCOL_VERSION}")
        if not 0 < word.producer_id < 1 << 63:
            raise UsageError(E_BAD_COMMAND, "a producer id is a random number of 63 bits, not 0")
        heartbeat_ms = min(p.HEARTBEAT_MS_MAX, max(p.HEARTBEAT_MS_MIN, word.heartbeat_ms))
        now = time.monotonic_ns()
        welcome = self.ordering.hello(mail.envelope, word.producer_id, heartbeat_ms * _MS, now)
        if welcome is None:
            port.send(mail.envelope, p.Failed(0, E_LIMIT, f"{options.PRODUCERS_MAX} producers are at work already; close some"))
            return
        port.send(mail.envelope, p.Welcome(self.key, *welcome, heartbeat_ms))

    def on_pub_word(self, port: Port, mail: Mail) -> None:
        self._publish(port, mail, 0)

    def on_pubdelayed_word(self, port: Port, mail: Mail) -> None:
        self._publish(port, mail, cast("p.PubDelayed", mail.word).delay_ms)

    def _publish(self, port: Port, mail: Mail, delay_ms: int) -> None:
        sequence = -1
        try:
            blocks = mail.blocks()
            if len(blocks) != 1:
                raise UsageError(E_BAD_COMMAND, f"a publish carries one block, not {len(blocks)}")
            block = blocks[0]
            header = block.header
            sequence = header.sequence
            if header.flags & ~ADDRESSED or header.reserved_1 or header.reserved_2:
                raise UsageError(E_BAD_BLOCK, f"a published block has no flags but {ADDRESSED} (some message is for one channel)")
            check_block(block)
            if not 0 <= delay_ms <= p.DELAY_MS_MAX or (delay_ms == 0) != (type(mail.word) is p.Pub):
                raise UsageError(E_BAD_ARGUMENT, f"a delay is 1 to {p.DELAY_MS_MAX} ms, not {delay_ms}")
            if self.stopping:
                raise UsageError(E_CLOSING, "the topic is stopping; publish again in a moment")
        except ZsqError as error:
            port.send(mail.envelope, p.Unstored(sequence, -1, error.code, error.text))
            return
        self._send(self.ordering.publish(mail.envelope, block, time.monotonic_ns(), delay_ms))

    def on_beat_word(self, port: Port, mail: Mail) -> None:
        if self.ordering.seen(mail.envelope, time.monotonic_ns()):
            port.send(mail.envelope, p.Beat())
        elif port is self.front:
            port.send(mail.envelope, p.Bye())  # a stranger that believes to have a link: begin anew

    def on_bye_word(self, port: Port, mail: Mail) -> None:
        self.ordering.bye(mail.envelope)
        self.fanout.detach(mail.envelope)

    def on_gone(self, who: str) -> None:
        self.ordering.gone(who.encode())

    def _send(self, replies: list[Reply]) -> None:
        for peer, word in replies:
            if not self.front.send(peer, word):
                self.ordering.bye(peer)  # it will ask again on a new link, and get the same answer

    # Storage

    def on_turn(self) -> None:
        while self._closings and self.ordering.idle():
            self.answer_order(self._closings.pop(), {})
        while (append := self.ordering.next_append()) is not None:
            request, blocks = append
            if not self.storage.send((), p.Append(request, self.ordering.epoch), blocks):
                raise RuntimeError("storage takes no more: it is bounded by fewer appends than its pipe holds")
        if (delayed := self.ordering.next_delayed()) is not None:
            request, blocks, delays_ms = delayed
            if not self.storage.send((), p.AppendDelayed(request, self.ordering.epoch, tuple(delays_ms)), blocks):
                raise RuntimeError("storage takes no more: it is bounded by fewer appends than its pipe holds")

    def on_appended_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Appended", mail.word)
        replies, placed = self.ordering.appended(word.request, word.first_offset)
        self._send(replies)
        for block, first_offset in placed:
            self.fanout.add(block, first_offset, word.time_ns)
            self._messages += block.count
            self._bytes += block.length
        self._offer()

    def on_kept_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Kept", mail.word)
        if port is self.storage:
            self._send(self.ordering.kept(word.request, word.keys))

    def on_head_word(self, port: Port, mail: Mail) -> None:
        """A group that was staged in storage, or what was delayed there and became due: it never was in this topic's hands."""
        before = self.fanout.head
        if port is self.storage and self.fanout.advance(cast("p.Head", mail.word).head):
            self._messages += self.fanout.head - before
            self._offer()

    def on_failed_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Failed", mail.word)
        if port is not self.storage:
            return
        if word.request in self._requests:
            self.supervisor.send((), p.Failed(self._requests.pop(word.request), word.code, word.text))
            return
        self._send(self.ordering.failed(word.request, word.code, word.text))

    def on_done_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Done", mail.word)
        if "visible_end" in word.data:
            self.fanout.visible_end = word.data["visible_end"]
            self._offer()
        asked = self._requests.pop(word.request, None)
        if asked is not None:
            self.answer_order(asked, {})

    # Channels

    def on_attach_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Attach", mail.word)
        if not self.fanout.attach(mail.envelope, word.next_offset, word.credit_bytes):
            port.send(mail.envelope, p.Behind(self.fanout.end))
        self._offer()

    def on_credit_word(self, port: Port, mail: Mail) -> None:
        if not self.fanout.credit(mail.envelope, cast("p.Credit", mail.word).credit_bytes):
            port.send(mail.envelope, p.Behind(self.fanout.end))
        self._offer()

    def _offer(self) -> None:
        for peer, blocks in self.fanout.offers():
            if not blocks:
                self.front.send(peer, p.Behind(self.fanout.end))
            elif not self.front.send(peer, p.Offer(self.fanout.end), blocks):
                self.fanout.detach(peer)  # dead or stuck: it attaches again, or reads from storage
        self.fanout.trim()

    def _tell_head(self) -> None:
        """Once a second: channels without a ready consumer know their depth from it."""
        if self.fanout.end == self._head_told:
            return
        self._head_told = self.fanout.end
        for peer in self.fanout.places():
            if not self.front.send(peer, p.Head(self.fanout.end)):
                self.fanout.detach(peer)

    # Orders

    def on_order(self, word: p.Order) -> dict[str, Any] | None:
        if word.action == "closed":
            self.ordering.closed = bool(word.options["publishers"])
            self._closings.append(word.request)
            return None
        self._request += 1
        mine = -self._request  # below zero: never an append's number
        self._requests[mine] = word.request
        if word.action in ("pause", "unpause"):
            self.storage.send((), p.Pause(mine, word.action == "pause"))
        elif word.action == "empty":
            self.storage.send((), p.Empty(mine))
        else:
            return super().on_order(word)
        return None

    def on_stop(self) -> bool:
        """Everything taken is answered; then producers are told to look for a successor."""
        if not self.ordering.idle():
            return False
        for peer in self.ordering.peers():
            self.front.send(peer, p.Bye())
        return True

    def _counts(self) -> dict[str, int]:
        return {"message_count": self._messages, "message_bytes": self._bytes}

    def statistics(self) -> dict[str, Any]:
        now, counts = time.monotonic_ns(), self._counts()
        return {
            "head": self.fanout.head,
            "end": self.fanout.end,
            "paused": self.fanout.visible_end >= 0,
            **counts,
            "rates": self._meter.rates(now, counts),
            **self.ordering.statistics(),
        }

    def details(self) -> dict[str, Any]:
        return {"publishers": self.ordering.publishers(time.monotonic_ns())}


assert zmq.zmq_version_info() >= (4, 3, 5), "libzmq 4.3.5 or newer is needed: older ones have known holes"
