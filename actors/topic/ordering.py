"""A topic's logic: the order of arrival, producers' sequences, pending appends. Pure.

Rules (DESIGN 4.2):

* Of each producer exactly the next sequence is taken. A repeated one that is stored is answered like the first
  time; one still pending waits for its first. Anything else is E_SEQUENCE with the expected number: accepting a
  gap would make the resent ones look old and lose them.
* A producer says Hello on each link first; without it E_HELLO. (A DEALER's pipe outlives its server, so words meant for the
  topic's predecessor can arrive here.)
* When an append fails, those behind it fail with it (storage refuses the old epoch), and each producer's expected
  number goes back to its first failed block.
* `offset -1` in an answer: stored, but where is no longer remembered.
* A delayed block commits elsewhere, and fails by itself. So a producer's blocks of the two kinds never overtake each other: a delayed
  one is handed over when no plain one of its producer waits here, and after it nothing of that producer until its answer. Else block 6
  could be durable while delayed 5 is not, and 5, sent again, would be taken for stored. What must wait is *held* with its producer; the
  others pass. One request of delayed blocks is out at a time, whatever came meanwhile goes together.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.errors import E_CLOSED, E_HELLO, E_LIMIT, E_SEQUENCE
from ...transport.reports import PublisherStats
from ...transport.wire.protocol import Delayed, Stored, Unstored
from ..runtime.pulses import OrderingPulse
from ..settings import options
from ..settings.closing import TO_PUBLISHERS

Peer = tuple[bytes, ...]
BLOCKS_AN_APPEND: Final = 500  # two frames each: a message has at most 1,024
Place = tuple[int, ...]  # (first offset,), or of a delayed block (due time, serial)


class Reply(NamedTuple):
    """An effect: send this word to this peer."""

    peer: Peer
    message: Stored | Unstored | Delayed


class _Entry(NamedTuple):
    producer_id: int
    sequence: int
    block: Block
    peer: Peer
    delay_ms: int = 0  # 0: not delayed


@dataclass(slots=True)
class _Producer:
    expected: int  # the next sequence to accept: stored and pending ones are below it
    used_ns: int = 0
    recent: OrderedDict[int, Place] = field(default_factory=OrderedDict)  # by sequence
    waiting: dict[int, list[Peer]] = field(default_factory=dict)  # pending sequence -> whom to answer
    held: deque[_Entry] = field(default_factory=deque)  # must not go yet
    plain: int = 0  # of its entries in the queue
    delayed: int = 0  # of its entries in the queue of delayed ones
    delayed_out: bool = False  # some are with storage


@dataclass(slots=True)
class _ProducerLink:
    producer_id: int
    credit_bytes: int
    seen_ns: int
    heartbeat_ns: int
    out_bytes: int = 0  # of blocks taken and not yet answered


def _first(entries: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """(what goes to storage as one append: up to 2 MiB and 500 blocks, at least one; what waits for the next)."""
    size = 0
    count = 0
    for entry in entries:
        size += entry.block.length
        if (count and size > options.APPEND_BYTES_MAX) or count >= BLOCKS_AN_APPEND:
            break
        count += 1
    return entries[:count], entries[count:]


class Ordering:
    """`(event, now) -> effects` for one topic. The shell moves what `next_append` returns to storage and sends the replies."""

    def __init__(self, producers: Mapping[int, tuple[int, Sequence[Sequence[int]]]]) -> None:
        """`producers`: id -> (next sequence, recent (sequence, first offset) or (sequence, due time, serial)), as recovered."""
        self._producers = {
            pid: _Producer(nxt, 0, OrderedDict((one[0], tuple(one[1:])) for one in recent)) for pid, (nxt, recent) in producers.items()
        }
        self._links: dict[Peer, _ProducerLink] = {}
        self._queue: list[_Entry] = []
        self._queue_bytes = 0
        self._delayed: list[_Entry] = []
        self._delayed_out: tuple[int, list[_Entry]] | None = None
        self._out: OrderedDict[int, list[_Entry]] = OrderedDict()
        self._request = 0
        self._held_bytes = 0  # of blocks taken and not yet answered, of all producers
        self._credit_granted = 0
        self.epoch = 0
        self.closed = False  # to publishers: nothing new is taken

    # Producers come and go

    def hello(self, peer: Peer, producer_id: int, heartbeat_ns: int, now_ns: int) -> tuple[int, int] | None:
        """(expected, credit_bytes), or None where there are too many (answer E_LIMIT)."""
        self.bye(peer)
        for older in [other for other, link in self._links.items() if link.producer_id == producer_id]:
            self.bye(older)  # what still lies in its pipe must not be taken: the client may have given its numbers to other blocks
        free = options.CREDIT_POOL_BYTES - self._credit_granted
        # A share of what is left: the first get all they can use. Once it is given out, one block at a time: a small credit, and
        # a larger block goes alone; what really waits here is bounded by the pool all the same, in `publish`.
        credit = min(options.CREDIT_BYTES, max(free // 32, options.CREDIT_BYTES_MIN if free > 0 else options.CREDIT_BYTES_LEAST))
        if len(self._links) >= options.PRODUCERS_MAX:
            return None
        self._credit_granted += credit
        self._links[peer] = _ProducerLink(producer_id, credit, now_ns, heartbeat_ns)
        known = self._producers.get(producer_id)
        if known is not None:
            known.used_ns = now_ns
        return (known.expected if known else 0), credit

    def bye(self, peer: Peer) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            self._credit_granted -= link.credit_bytes

    def seen(self, peer: Peer, now_ns: int) -> bool:
        """Note a sign of life; False for a peer that has not said Hello."""
        link = self._links.get(peer)
        if link is not None:
            link.seen_ns = now_ns
        return link is not None

    def gone(self, first: bytes) -> None:
        """Forget all peers behind a gateway."""
        for peer in [peer for peer in self._links if peer[0] == first]:
            self.bye(peer)

    def expire(self, now_ns: int) -> None:
        """Drop links silent for two heartbeats, and producers not used for a week."""
        for peer in [p for p, link in self._links.items() if now_ns - link.seen_ns > 2 * link.heartbeat_ns]:
            self.bye(peer)
        limit = now_ns - options.PRODUCER_KEPT_S * 1_000_000_000
        linked = {link.producer_id for link in self._links.values()}
        for row in self._producers.values():
            row.used_ns = row.used_ns or now_ns  # recovered: from now on
        for pid in [p for p, row in self._producers.items() if row.used_ns < limit and not row.waiting and p not in linked]:
            del self._producers[pid]

    # Blocks come

    def publish(self, peer: Peer, block: Block, now_ns: int, delay_ms: int = 0) -> list[Reply]:
        """Take the block, or say why not. The caller has checked checksums and limits."""
        sequence, producer_id = block.header.sequence, block.header.producer_id
        link = self._links.get(peer)
        if link is None or link.producer_id != producer_id:
            return [Reply(peer, Unstored(sequence, -1, E_HELLO, "say Hello with this producer id on this link first"))]
        link.seen_ns = now_ns
        producer = self._producers.get(producer_id)
        if self.closed and sequence == (producer.expected if producer is not None else 0):
            return [Reply(peer, Unstored(sequence, sequence, E_CLOSED, TO_PUBLISHERS))]  # what was taken before is answered as ever
        if producer is None:
            if len(self._producers) >= options.PRODUCERS_MAX:
                self._forget_oldest()
            if len(self._producers) >= options.PRODUCERS_MAX:
                text = f"{options.PRODUCERS_MAX} producers are at work already; close some"
                return [Reply(peer, Unstored(sequence, 0, E_LIMIT, text))]
            producer = self._producers[producer_id] = _Producer(0)
        producer.used_ns = now_ns
        if sequence == producer.expected:
            if link.out_bytes and link.out_bytes + block.length > link.credit_bytes:
                text = f"more than the credit of {link.credit_bytes} unanswered bytes; wait for answers"
                return [Reply(peer, Unstored(sequence, producer.expected, E_LIMIT, text))]
            if self._held_bytes + block.length > options.CREDIT_POOL_BYTES:
                text = "the topic holds as much as it may; wait until storage has caught up"
                return [Reply(peer, Unstored(sequence, producer.expected, E_LIMIT, text))]
            self._held_bytes += block.length
            link.out_bytes += block.length
            producer.expected += 1
            producer.waiting[sequence] = [peer]
            producer.held.append(_Entry(producer_id, sequence, block, peer, delay_ms))
            self._release(producer)
            return []
        if sequence in producer.waiting:
            if peer not in producer.waiting[sequence]:
                producer.waiting[sequence].append(peer)
            return []
        if sequence < producer.expected:
            place = producer.recent.get(sequence, ())
            return [Reply(peer, Delayed(sequence, *_as_key(place)) if delay_ms else Stored(((sequence, _as_offset(place)),)))]
        text = f"sequence {sequence} came where {producer.expected} was expected; resend from there"
        return [Reply(peer, Unstored(sequence, producer.expected, E_SEQUENCE, text))]

    def _release(self, producer: _Producer) -> None:
        """What may go now, in order."""
        while producer.held:
            if producer.held[0].delay_ms:
                if producer.plain or producer.delayed_out:
                    return
                self._delayed.append(producer.held.popleft())
                producer.delayed += 1
            else:
                if producer.delayed or producer.delayed_out:
                    return
                entry = producer.held.popleft()
                self._queue.append(entry)
                self._queue_bytes += entry.block.length
                producer.plain += 1

    # Appends go and are answered

    def next_append(self) -> tuple[int, list[Block]] | None:
        """(request, blocks) to hand to storage now, or None. What arrived meanwhile goes together, up to 2 MiB.

        Little waits for the answer to what is out, as in Nagle's algorithm: its sync would not begin before that one's has ended
        anyway, and 64 clients with a message each were 12 to 32% faster so, in six pairs of runs, than with up to eight appends out.
        """
        if not self._queue or len(self._out) >= options.APPENDS_OUT_MAX:
            return None
        if self._out and self._queue_bytes < options.APPEND_BYTES_LITTLE and len(self._queue) < BLOCKS_AN_APPEND:
            return None
        batch, self._queue = _first(self._queue)
        self._queue_bytes -= sum(entry.block.length for entry in batch)
        self._request += 1
        self._out[self._request] = batch
        for entry in batch:
            producer = self._producers[entry.producer_id]
            producer.plain -= 1
            if producer.held:
                self._release(producer)
        return self._request, [entry.block for entry in batch]

    def next_delayed(self) -> tuple[int, list[Block], list[int]] | None:
        """(request, blocks, delays in ms) to hand to storage now, behind all that `next_append` gave, or None."""
        if not self._delayed or self._delayed_out is not None:
            return None
        batch, self._delayed = _first(self._delayed)
        for entry in batch:
            producer = self._producers[entry.producer_id]
            producer.delayed -= 1
            producer.delayed_out = True
        self._request += 1
        self._delayed_out = self._request, batch
        return self._request, [entry.block for entry in batch], [entry.delay_ms for entry in batch]

    def kept(self, request: int, keys: Sequence[tuple[int, int]]) -> list[Reply]:
        """Storage has these delayed blocks: their replies; and their producers go on."""
        if self._delayed_out is None or self._delayed_out[0] != request:
            return []
        batch = self._take_delayed_out()
        replies = []
        for entry, key in zip(batch, keys, strict=True):
            self._answered(entry)
            producer = self._producers[entry.producer_id]
            self._remember(producer, entry.sequence, tuple(key))
            replies += [Reply(peer, Delayed(entry.sequence, *key)) for peer in producer.waiting.pop(entry.sequence, ())]
        for producer_id in dict.fromkeys(entry.producer_id for entry in batch):
            self._release(self._producers[producer_id])
        return replies

    def _take_delayed_out(self) -> list[_Entry]:
        batch = self._delayed_out[1] if self._delayed_out is not None else []
        self._delayed_out = None
        for entry in batch:
            self._producers[entry.producer_id].delayed_out = False
        return batch

    def appended(self, request: int, first_offset: int) -> tuple[list[Reply], list[tuple[Block, int]]]:
        """Storage has it: replies (one Stored a peer), and the blocks with their offsets, to be offered to channels."""
        batch = self._out.pop(request, None)
        if batch is None:
            return [], []
        answers: dict[Peer, list[tuple[int, int]]] = {}
        placed: list[tuple[Block, int]] = []
        offset = first_offset
        for entry in batch:
            self._answered(entry)
            placed.append((entry.block, offset))
            producer = self._producers[entry.producer_id]
            self._remember(producer, entry.sequence, (offset,))
            for peer in producer.waiting.pop(entry.sequence, ()):
                answers.setdefault(peer, []).append((entry.sequence, offset))
            offset += entry.block.count
        return [Reply(peer, Stored(tuple(blocks))) for peer, blocks in answers.items()], placed

    def _remember(self, producer: _Producer, sequence: int, place: Place) -> None:
        producer.recent[sequence] = place
        if len(producer.recent) > options.RECENT_SEQUENCES:
            producer.recent.popitem(last=False)

    def _forget_oldest(self) -> None:
        """A bound on memory: producers not used for longest, without a link and with nothing pending, begin anew if they come back."""
        linked = {link.producer_id for link in self._links.values()}
        idle = [(row.used_ns, pid) for pid, row in self._producers.items() if not row.waiting and pid not in linked]
        for _, pid in sorted(idle)[: max(1, options.PRODUCERS_MAX // 20)]:  # many at once: the search is paid for rarely
            del self._producers[pid]

    def _answered(self, entry: _Entry) -> None:
        self._held_bytes -= entry.block.length
        link = self._links.get(entry.peer)
        if link is not None and link.producer_id == entry.producer_id:
            link.out_bytes = max(0, link.out_bytes - entry.block.length)

    def failed(self, request: int, code: str, text: str) -> list[Reply]:
        """An append failed: so do those behind it and all that wait here; producers go back to their first failed block.

        Those before it are written, and their answers only wait for a sync: to call them failed would store them twice.
        Where delayed blocks failed, it concerns what their producers have sent since, and nobody else.
        """
        if self._delayed_out is not None and request == self._delayed_out[0]:
            lost = self._take_delayed_out()
            return self._fail(lost, {entry.producer_id for entry in lost}, code, text)
        if request not in self._out:
            return []
        lost = [entry for number in [n for n in self._out if n >= request] for entry in self._out.pop(number)] + self._queue
        if self._delayed_out is not None and self._delayed_out[0] > request:  # storage refuses it: its epoch is over
            lost += self._take_delayed_out()
        self._queue, self._queue_bytes = [], 0
        self.epoch += 1
        return self._fail(lost, self._producers.keys(), code, text)

    def _fail(self, lost: list[_Entry], concerned: Collection[int], code: str, text: str) -> list[Reply]:
        """These, and what else waits here of these producers."""
        lost += [entry for entry in self._delayed if entry.producer_id in concerned]
        self._delayed = [entry for entry in self._delayed if entry.producer_id not in concerned]
        for producer_id in concerned:
            producer = self._producers[producer_id]
            lost += producer.held
            producer.held.clear()
            producer.delayed = producer.plain = 0
        for entry in lost:
            self._answered(entry)
            producer = self._producers[entry.producer_id]
            producer.expected = min(producer.expected, entry.sequence)
        replies = []
        for entry in lost:
            producer = self._producers[entry.producer_id]
            for peer in producer.waiting.pop(entry.sequence, ()):
                replies.append(Reply(peer, Unstored(entry.sequence, producer.expected, code, text)))
        return replies

    def peers(self) -> list[Peer]:
        return list(self._links)

    def idle(self) -> bool:
        """Nothing pending: whoever waited has been answered."""
        return not self._queue and not self._out and not self._delayed and self._delayed_out is None

    def publishers(self, now_ns: int) -> list[PublisherStats]:
        """Who is linked, up to `PUBLISHERS_SHOWN` of them; `blocks`: how many of its blocks were taken."""
        return [
            {
                "producer": f"{link.producer_id:016x}",
                "via": "tcp" if peer[0].startswith(b"gateway-") else "ipc",
                "blocks": known.expected if (known := self._producers.get(link.producer_id)) is not None else 0,
                "unanswered_bytes": link.out_bytes,
                "silent_ms": max(0, now_ns - link.seen_ns) // 1_000_000,
            }
            for peer, link in [*self._links.items()][: options.PUBLISHERS_SHOWN]
        ]

    def statistics(self) -> OrderingPulse:
        pending = len(self._out) + (self._delayed_out is not None)
        return {"producers": len(self._links), "pending_appends": pending, "queued_blocks": len(self._queue) + len(self._delayed)}


def _as_offset(place: Place) -> int:
    return place[0] if len(place) == 1 else -1


def _as_key(place: Place) -> tuple[int, int]:
    return (place[0], place[1]) if len(place) == 2 else (-1, -1)
