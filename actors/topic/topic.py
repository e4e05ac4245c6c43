"""Topic actor: orders producers' blocks, hands them to storage, and passes them on to channels.

Its storage (`storage/storage_actor.py`) lives in the same process and loop. The topic and its
storage call each other's methods. If the process dies, both start again, so they never disagree
about an append.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import zmq

from ...transport.block.block import Limits, check_block
from ...transport.block.block_format import HAS_IDS, PUBLISHED, UNIQUE
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_BLOCK,
    E_BAD_COMMAND,
    E_CLOSING,
    E_LIMIT,
    E_UNSUPPORTED,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.units import NS_PER_MS
from ...transport.wire import protocol as p
from ...transport.wire.dead_letter import check_block_headers
from ...transport.wire.dedupe import digests_of
from ...transport.wire.unique import DELAYED_TEXT, read_keys
from ..primitives.rates import RECENT_NS, RateMeter
from ..runtime.actor import Actor
from ..runtime.port import Mail, Port
from ..runtime.pulses import TopicDetails, TopicPulse, is_troubled
from ..settings import options
from ..settings.starts import TopicStart
from ..storage.sifting import Left
from ..storage.storage_actor import StorageActor
from .fanout import Fanout
from .ordering import IDS_AN_APPEND, Ordering, Peer, Reply, ids_in


class TopicActor(Actor[TopicStart]):
    front: Port
    storage: StorageActor
    ordering: Ordering
    fanout: Fanout

    def on_start(self) -> dict[str, Any]:
        start = self.given.storage
        self.storage = self._open_storage()
        recovered = self.storage.recovered()
        self.ordering = Ordering(
            recovered.producers,
            lambda: self.storage.extension.confirms_late,
            self.storage.repeats_of,
        )
        self.ordering.closed = start.closed
        self.limits = Limits(start.max_msg_size)
        # Answers to orders, sent once all earlier blocks are answered.
        self._closings: list[p.Done] = []
        self.fanout = Fanout(recovered.head, recovered.visible_end)
        self.front = self.open_router(self.given.front)
        # Producers that came while repeated blocks may not be confirmed.
        self._early: dict[Peer, Callable[[], None]] = {}
        self._route()
        self._head_told = -1
        # True when all blocks are answered and the producers know that this topic stops.
        self._is_over = False
        self._messages = self.given.message_count
        self._bytes = self.given.message_bytes
        self._meter = RateMeter(time.monotonic_ns(), self._counts())
        return {"head": self.fanout.head, **self.storage.born()}

    def _open_storage(self) -> StorageActor:
        return StorageActor(self, self.given.storage, self)

    def _route(self) -> None:
        front = self.front
        front.route(p.Hello, self.hello)
        front.route(p.Pub, self.publish)
        front.route(p.PubDelayed, self.publish_delayed)
        front.route(p.Beat, self.beat)
        front.route(p.Bye, self.bye)
        front.route(p.Attach, self.attach)
        front.route(p.Credit, self.credit)
        self.obey(p.SetClosed, self.close)
        self.obey(p.SetPaused, self.pause)
        self.obey(p.EmptyTopic, self.empty)
        self.obey(p.MovePause, self.move_pause)

    # Producers

    def hello(self, port: Port, mail: Mail, message: p.Hello) -> None:
        if message.version != p.PROTOCOL_VERSION:
            text = f"the broker uses protocol version {p.PROTOCOL_VERSION}, not {message.version}"
            raise UsageError(E_BAD_COMMAND, f"{text}; use the same version of ZSQ on both sides")
        if not 0 < message.producer_id < 1 << 63:
            raise UsageError(
                E_BAD_COMMAND,
                f"producer id must be a number from 1 to 2^63 - 1, not {message.producer_id}",
            )
        if self.storage.extension.repeats_must_wait():
            # A block that is repeated counts as stored, so it must be certain that it stays so.
            self._early[mail.envelope] = partial(self.hello, port, mail, message)
            if len(self._early) > options.PRODUCERS_MAX:
                self._early.pop(next(iter(self._early)))
            return
        heartbeat_ms = min(p.HEARTBEAT_MS_MAX, max(p.HEARTBEAT_MS_MIN, message.heartbeat_ms))
        now = time.monotonic_ns()
        welcome = self.ordering.hello(
            mail.envelope, message.producer_id, heartbeat_ms * NS_PER_MS, now
        )
        if welcome is None:
            text = (
                f"the topic has {options.PRODUCERS_MAX} producers, which is the limit; close some"
            )
            port.send(mail.envelope, p.Failed(0, E_LIMIT, text))
            return
        port.send(mail.envelope, p.Welcome(self.key, *welcome, heartbeat_ms))

    def publish(self, port: Port, mail: Mail, message: p.Pub) -> None:
        self._publish(port, mail, 0)

    def publish_delayed(self, port: Port, mail: Mail, message: p.PubDelayed) -> None:
        self._publish(port, mail, message.delay_ms)

    def _publish(self, port: Port, mail: Mail, delay_ms: int) -> None:
        sequence = -1
        try:
            blocks = mail.blocks()
            if len(blocks) != 1:
                raise UsageError(E_BAD_COMMAND, f"a publish must have one block, not {len(blocks)}")
            block = blocks[0]
            header = block.header
            sequence = header.sequence
            if header.flags & ~PUBLISHED or header.reserved_1 or header.reserved_2:
                text = (
                    f"a published block may have no flags except those of {PUBLISHED}, and 0 in "
                    "its reserved fields"
                )
                raise UsageError(E_BAD_BLOCK, text)
            check_block(block, self.limits)
            check_block_headers(block)
            if header.flags & HAS_IDS and self.storage.dedupes:
                block.ids = digests_of(block)
            if header.flags & UNIQUE:
                if delay_ms:
                    raise UsageError(E_UNSUPPORTED, DELAYED_TEXT)
                read_keys(block)
                self.storage.check_keys()
            if not 0 <= delay_ms <= p.DELAY_MS_MAX or (delay_ms == 0) != (
                type(mail.message) is p.Pub
            ):
                raise UsageError(
                    E_BAD_ARGUMENT, f"delay must be 1 to {p.DELAY_MS_MAX} ms, not {delay_ms} ms"
                )
            if self.stopping:
                raise UsageError(E_CLOSING, "the topic is stopping; publish again in a moment")
        except ZsqError as error:
            port.send(mail.envelope, p.Unstored(sequence, -1, error.code, error.text))
            return
        replies = self.ordering.publish(mail.envelope, block, time.monotonic_ns(), delay_ms)
        repeats = any(
            isinstance(reply.message, (p.Stored, p.Delayed, p.Duplicates)) for reply in replies
        )
        if repeats and self.storage.extension.repeats_must_wait():
            # Its Hello was answered before. On a new link, the next one waits.
            self.ordering.bye(mail.envelope)
            port.send(mail.envelope, p.Bye())
            return
        self._send(replies)

    def beat(self, port: Port, mail: Mail, message: p.Beat) -> None:
        """Answer a heartbeat. An unknown peer receives Bye, so that it opens a new link."""
        port.send(
            mail.envelope,
            p.Beat() if self.ordering.seen(mail.envelope, time.monotonic_ns()) else p.Bye(),
        )

    def bye(self, port: Port, mail: Mail, message: p.Bye) -> None:
        self.ordering.bye(mail.envelope)
        self.fanout.detach(mail.envelope)

    def on_gone(self, who: str) -> None:
        self.ordering.gone(who.encode())
        self.storage.gone(who)

    def _send(self, replies: list[Reply]) -> None:
        for peer, message in replies:
            if not self.front.send(peer, message):
                # The producer sends its blocks again on a new link, and gets the same answer.
                self.ordering.bye(peer)

    def _answer_early(self) -> None:
        """Answer the producers that waited, or send them on if the wait becomes too long.

        The refusal says why. Without it, a producer would only know that nothing came.
        """
        refusal: p.Failed | None = None
        if self.storage.extension.repeats_must_wait():
            try:
                self.storage.extension.check_repeats()
            except Refused as error:
                refusal = p.Failed(0, error.code, error.text)
            else:
                return
        early, self._early = self._early, {}
        for peer, answer in early.items():
            if refusal is None:
                answer()
            else:
                self.front.send(peer, refusal)

    # Storage

    def on_turn(self) -> None:
        if self._early:
            self._answer_early()
        while self._closings and self.ordering.idle():
            self.answer_order(self._closings.pop())
        ids, self.busy = 0, False
        while self._may_append() and (append := self.ordering.next_append()) is not None:
            request, blocks = append
            ids += sum(map(ids_in, blocks))
            try:
                self.storage.append(request, blocks)
            except ZsqError as error:
                self._send(self.ordering.failed(request, error.code, error.text))
            if (
                ids >= IDS_AN_APPEND
            ):  # the rest comes in the next turn, after what arrived meanwhile
                self.busy = True
                break
        if self._may_append() and (delayed := self.ordering.next_delayed()) is not None:
            request, blocks, delays_ms = delayed
            try:
                self.storage.append_delayed(request, blocks, delays_ms)
            except ZsqError as error:
                self.delayed_failed(request, error.code, error.text)
        self.storage.turn()

    def _may_append(self) -> bool:
        """Return False while publishes must wait for the extension of the storage."""
        return self.storage.extension.admits(self.ordering.next_messages)

    def appended(self, request: int, first_offset: int, time_ns: int) -> None:
        replies, placed = self.ordering.appended(request, first_offset)
        self._send(replies)
        for block, offset in placed:
            self.fanout.add(block, offset, time_ns)
            self._messages += block.count
            self._bytes += block.length
        self._offer()

    def repeated(self, request: int, left: Mapping[int, Left]) -> None:
        self.ordering.repeated(request, left)

    def delayed_stored(self, request: int, keys: Sequence[tuple[int, int]]) -> None:
        self._send(self.ordering.kept(request, keys))

    def delayed_failed(self, request: int, code: str, text: str) -> None:
        self._send(self.ordering.failed(request, code, text))

    def head_moved(self, head: int) -> None:
        before = self.fanout.head
        if self.fanout.advance(head):
            self._messages += self.fanout.head - before
            self._offer()

    # Channels

    def attach(self, port: Port, mail: Mail, message: p.Attach) -> None:
        if not self.fanout.attach(mail.envelope, message.next_offset, message.credit_bytes):
            port.send(mail.envelope, p.Behind(self.fanout.end))
        self._offer()

    def credit(self, port: Port, mail: Mail, message: p.Credit) -> None:
        if not self.fanout.credit(mail.envelope, message.credit_bytes):
            port.send(mail.envelope, p.Behind(self.fanout.end))
        self._offer()

    def _offer(self) -> None:
        for peer, blocks in self.fanout.offers():
            if not blocks:
                self.front.send(peer, p.Behind(self.fanout.end))
            elif not self.front.send(peer, p.Offer(self.fanout.end), blocks):
                # The channel is dead or stuck: it attaches again, or reads from the storage.
                self.fanout.detach(peer)
        self.fanout.trim()

    def on_pulse(self) -> None:
        self._tell_head()

    def may_rest(self, pulse: Mapping[str, object]) -> bool:
        """Return False while the storage has something that may time out or is tried again."""
        storage = cast("TopicPulse", pulse)["storage"]
        return not (
            storage["extension_busy"]
            or storage["stage_links"]
            or storage["stages"]
            or storage["backup"]
            or is_troubled(storage)
        )

    def _tell_head(self) -> None:
        """Send the head to all channels, which compute their depth from it while they are idle."""
        if self.fanout.end == self._head_told:
            return
        self._head_told = self.fanout.end
        for peer in self.fanout.places():
            if not self.front.send(peer, p.Head(self.fanout.end)):
                self.fanout.detach(peer)

    # Orders

    def close(self, message: p.SetClosed) -> None:
        self.ordering.closed = message.to_publishers
        self.storage.close_to_publishers(message.to_publishers)
        self._closings.append(p.Done(message.request, {}))

    def pause(self, message: p.SetPaused) -> None:
        end = self.storage.pause(message.is_paused, partial(self._pause_moved, message.request))
        if message.is_paused:
            # If channels got messages beyond this end until the commit, they could not read them
            # again, and would ask for them without end.
            self.fanout.visible_end = end

    def empty(self, message: p.EmptyTopic) -> None:
        self.storage.empty(
            lambda start, end: self.answer_order(p.BehindPause(message.request, start, end))
        )

    def move_pause(self, message: p.MovePause) -> None:
        self.storage.move_pause(message.end, partial(self._pause_moved, message.request))

    def _pause_moved(self, request: int, visible_end: int) -> None:
        self.fanout.visible_end = visible_end
        self._offer()
        self.answer_order(p.Done(request, {"visible_end": visible_end}))

    def on_stop(self) -> bool:
        """Answer all blocks that were taken, and send Bye to the producers.

        They then connect to the topic's next process. After that, the storage writes and commits
        what is left. If another broker has taken over, blocks without an answer get none.
        """
        if not self._is_over:
            if not self.ordering.idle() and not self.storage.extension.is_over:
                return False
            self._is_over = True
            for peer in self.ordering.peers():
                self.front.send(peer, p.Bye())
        return self.storage.stop()

    def on_end(self) -> None:
        if not self.stopping:
            self.end_at_once(4)  # after a failure, nothing may wait for the files
        self.storage.end()

    def _counts(self) -> dict[str, int]:
        return {"message_count": self._messages, "message_bytes": self._bytes}

    def statistics(self) -> TopicPulse:
        now, counts = time.monotonic_ns(), self._counts()
        self.ordering.expire(now)  # a pulse may be asked for long after the last one
        return {
            "head": self.fanout.head,
            "end": self.fanout.end,
            "stirred_ns": self.stirred_ns,
            "paused": self.fanout.visible_end >= 0,
            "message_count": self._messages,
            "message_bytes": self._bytes,
            "rates": self._meter.rates(now, counts),
            "rates_recent": self._meter.rates(now, counts, RECENT_NS),
            **self.ordering.statistics(),
            "storage": self.storage.statistics(),
        }

    def details(self) -> TopicDetails:
        return {"publishers": self.ordering.publishers(time.monotonic_ns())}


assert zmq.zmq_version_info() >= (4, 3, 5), (
    "ZSQ needs libzmq 4.3.5 or newer, because older versions have known security holes"
)
