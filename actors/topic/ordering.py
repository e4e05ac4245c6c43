"""Ordering: a topic's order of arrival, producers' sequences, and pending appends. No I/O.

Rules (see step 6 in `docs/architecture.md`):

* The topic accepts exactly the next sequence of each producer. A repeated block that is stored gets
  the same answer as the first time. A repeated block that is pending waits for the first one. Any
  other sequence is answered with E_SEQUENCE and the expected number. If the topic accepted a gap,
  the missing blocks would look old when they are sent again, and would be lost.
* A producer sends Hello on each link first. Without it, the answer is E_HELLO. (The pipe of a
  DEALER outlives its server, so messages for an earlier process of the topic can arrive here.)
* When an append fails, all blocks that wait here fail too. The expected number of each producer
  goes back to its first failed block.
* `offset -1` in an answer means that the block is stored, but its offset is no longer remembered.
* A delayed block is committed separately, and can fail alone. Therefore plain and delayed blocks of
  one producer must never overtake each other. A delayed block goes to the storage when no plain
  block of its producer waits here. After a delayed block, no other block of that producer goes to
  the storage until the delayed block is stored or has failed. Otherwise block 6 could be durable
  while the delayed block 5 is not, and when 5 is sent again, it would count as stored. Blocks that
  must wait are *held* with their producer. Blocks of other producers go on. One request with
  delayed blocks is under way at a time. Delayed blocks that arrive in the meantime go together in
  the next one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.errors import E_CLOSED, E_HELLO, E_LIMIT, E_SEQUENCE
from ...transport.reports import PublisherStats
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire.protocol import Delayed, Duplicates, Stored, Unstored
from ..runtime.pulses import OrderingPulse
from ..settings import options
from ..settings.closing import TO_PUBLISHERS
from ..storage.sifting import Left, Repeats

Peer = tuple[bytes, ...]
# A block is written as two pieces, and one `writev` takes at most 1,024 pieces (IOV_MAX).
BLOCKS_AN_APPEND: Final = 500
# To look up an id takes 2 to 4 microseconds, and the process does nothing else meanwhile. 2 MiB of
# small messages can have 50,000 ids.
IDS_AN_APPEND: Final = 5_000
Place = tuple[int, ...]  # (first offset,), or (due time, serial) for a delayed block
NOWHERE: Final = (-1,)  # the place of a block of which nothing was stored


class Reply(NamedTuple):
    """A message that the actor must send to this peer."""

    peer: Peer
    message: Stored | Unstored | Delayed | Duplicates


class _Entry(NamedTuple):
    producer_id: int
    sequence: int
    block: Block
    peer: Peer
    delay_ms: int = 0  # 0: not delayed
    left: Left | None = None  # None: the whole block

    @property
    def kept(self) -> Block | None:
        """The block that is stored, or None if all of its messages were stored before."""
        return self.block if self.left is None else self.left.block


@dataclass(slots=True)
class _Producer:
    expected: int  # the next sequence to accept: stored and pending ones are below it
    used_ns: int = 0
    recent: OrderedDict[int, Place] = field(default_factory=OrderedDict)  # sequence -> place
    # Pending sequence -> peers to answer.
    waiting: dict[int, list[Peer]] = field(default_factory=dict)
    # Blocks that must not go to the storage yet.
    held: deque[_Entry] = field(default_factory=deque)
    plain: int = 0  # number of its entries in the queue
    delayed: int = 0  # number of its entries in the queue of delayed blocks
    delayed_out: bool = False  # the storage has some of its delayed blocks


@dataclass(slots=True)
class _ProducerLink:
    producer_id: int
    credit_bytes: int
    seen_ns: int
    heartbeat_ns: int
    out_bytes: int = 0  # size of the blocks that are taken and not answered yet


def ids_in(block: Block) -> int:
    """Return how many ids of the block are looked up, or a few more."""
    return block.count if block.ids else 0


def _first(entries: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """Split off one append: up to 2 MiB, 500 blocks and 5,000 ids, but at least one block.

    Return its entries, and those that wait for the next append.
    """
    size = ids = count = 0
    for entry in entries:
        size += entry.block.length
        ids += ids_in(entry.block)
        is_full = size > options.APPEND_BYTES_MAX or ids > IDS_AN_APPEND
        if (count and is_full) or count >= BLOCKS_AN_APPEND:
            break
        count += 1
    return entries[:count], entries[count:]


class Ordering:
    """The ordering of one topic. Each method takes an event and returns what the actor must do.

    The actor hands the blocks of `next_append` to the storage, and sends the replies to the
    producers.
    """

    def __init__(
        self,
        producers: Mapping[int, tuple[int, Sequence[Sequence[int]]]],
        confirms_late: Callable[[], bool] = lambda: False,
        repeats: Callable[[Block, Place], Repeats] = lambda block, place: (),
    ) -> None:
        """Create the ordering from the recovered producers.

        `confirms_late` returns True if appends are confirmed long after they are on the disk. Then
        more of them are under way at once.

        `repeats` returns which messages of a block that is sent again were stored by another one,
        if this one was stored at `place`.

        `producers` maps an id to the next sequence and the recent places: (sequence, first offset),
        or (sequence, due time, serial) for a delayed block.
        """
        self._producers = {
            pid: _Producer(nxt, 0, OrderedDict((entry[0], tuple(entry[1:])) for entry in recent))
            for pid, (nxt, recent) in producers.items()
        }
        self._confirms_late = confirms_late
        self._repeats = repeats
        self._links: dict[Peer, _ProducerLink] = {}
        self._queue: list[_Entry] = []
        self._queue_bytes = 0
        self._delayed: list[_Entry] = []
        self._delayed_out: tuple[int, list[_Entry]] | None = None
        self._out: OrderedDict[int, list[_Entry]] = OrderedDict()
        self._request = 0
        self._held_bytes = 0  # like `out_bytes`, but for all producers together
        self._credit_granted = 0
        self.closed = False  # closed to publishers: no new blocks are taken

    # Links of producers

    def hello(
        self, peer: Peer, producer_id: int, heartbeat_ns: int, now_ns: int
    ) -> tuple[int, int] | None:
        """Open a link. Return the expected sequence and the credit in bytes.

        Return None if there are too many producers. The caller then answers E_LIMIT.
        """
        self.bye(peer)
        for older in [
            other for other, link in self._links.items() if link.producer_id == producer_id
        ]:
            # Blocks left in the older link's pipe must not be taken: the client may have reused
            # their numbers.
            self.bye(older)
        free = options.CREDIT_POOL_BYTES - self._credit_granted
        # The credit is a share of the rest of the pool, so the first producers get all that they
        # can use. When the pool is used up, the credit is so small that blocks come one at a time:
        # a block that is larger than the credit is sent alone. In any case `publish` keeps the
        # blocks that wait here within the pool.
        is_late = self._confirms_late()
        credit = min(
            options.CREDIT_BYTES_SHIPPED if is_late else options.CREDIT_BYTES,
            max(
                free // (16 if is_late else 32),
                options.CREDIT_BYTES_MIN if free > 0 else options.CREDIT_BYTES_LEAST,
            ),
        )
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
        """Note that the peer is alive. Return False for a peer that has not sent Hello."""
        link = self._links.get(peer)
        if link is not None:
            link.seen_ns = now_ns
        return link is not None

    def gone(self, first: bytes) -> None:
        """Remove all peers behind a gateway."""
        for peer in [peer for peer in self._links if peer[0] == first]:
            self.bye(peer)

    def expire(self, now_ns: int) -> None:
        """Remove links that were silent for two heartbeats, and producers not used for a week."""
        for peer in [
            p for p, link in self._links.items() if now_ns - link.seen_ns > 2 * link.heartbeat_ns
        ]:
            self.bye(peer)
        limit = now_ns - options.PRODUCER_KEPT_S * NS_PER_S
        linked = {link.producer_id for link in self._links.values()}
        for row in self._producers.values():
            row.used_ns = row.used_ns or now_ns  # a recovered producer: its week starts now
        for pid in [
            p
            for p, row in self._producers.items()
            if row.used_ns < limit and not row.waiting and p not in linked
        ]:
            del self._producers[pid]

    # Incoming blocks

    def publish(self, peer: Peer, block: Block, now_ns: int, delay_ms: int = 0) -> list[Reply]:
        """Take the block. Return a reply at once if it is refused, or if it is stored already.

        The caller has checked checksums and limits.
        """
        sequence, producer_id = block.header.sequence, block.header.producer_id
        link = self._links.get(peer)
        if link is None or link.producer_id != producer_id:
            return [
                Reply(
                    peer,
                    Unstored(
                        sequence,
                        -1,
                        E_HELLO,
                        "send Hello with this producer id on this connection first",
                    ),
                )
            ]
        link.seen_ns = now_ns
        producer = self._producers.get(producer_id)
        if self.closed and sequence == (producer.expected if producer is not None else 0):
            # Blocks taken before are answered as usual.
            return [Reply(peer, Unstored(sequence, sequence, E_CLOSED, TO_PUBLISHERS))]
        if producer is None:
            if len(self._producers) >= options.PRODUCERS_MAX:
                self._forget_oldest()
            if len(self._producers) >= options.PRODUCERS_MAX:
                text = (
                    f"the topic has {options.PRODUCERS_MAX} producers, which is the limit; "
                    "close some"
                )
                return [Reply(peer, Unstored(sequence, 0, E_LIMIT, text))]
            producer = self._producers[producer_id] = _Producer(0)
        producer.used_ns = now_ns
        if sequence == producer.expected:
            if link.out_bytes and link.out_bytes + block.length > link.credit_bytes:
                text = (
                    f"the block exceeds the credit of {link.credit_bytes} unanswered bytes; "
                    "wait for replies"
                )
                return [Reply(peer, Unstored(sequence, producer.expected, E_LIMIT, text))]
            if self._held_bytes + block.length > options.CREDIT_POOL_BYTES:
                text = (
                    "blocks that wait for storage have reached the limit of "
                    f"{options.CREDIT_POOL_BYTES} bytes; try again in a moment"
                )
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
            repeats = self._repeats(block, place) if block.ids else ()
            if repeats:
                return [Reply(peer, _duplicates(sequence, place, repeats))]
            return [
                Reply(
                    peer,
                    Delayed(sequence, *_as_key(place))
                    if delay_ms
                    else Stored(((sequence, _as_offset(place)),)),
                )
            ]
        text = (
            f"the block has sequence {sequence}, but {producer.expected} is expected; send "
            "again from there"
        )
        return [Reply(peer, Unstored(sequence, producer.expected, E_SEQUENCE, text))]

    def _release(self, producer: _Producer) -> None:
        """Queue the held blocks that may go now, in order."""
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

    # Appends and their answers

    def next_messages(self) -> int:
        """Return the largest number of messages that the next append may have."""
        return sum(entry.block.count for entry in self._queue[:BLOCKS_AN_APPEND])

    def next_append(self) -> tuple[int, list[Block]] | None:
        """Return (request, blocks) to hand to the storage now, or None.

        Blocks that arrived in the meantime go together, up to 2 MiB. A small amount waits until the
        append that is under way is stored, as in Nagle's algorithm. The sync of the small amount
        could not begin earlier anyway. With 64 clients that publish one message at a time, this was
        12 to 32% faster than up to eight appends at once, in six pairs of runs.
        """
        is_late = self._confirms_late()
        out_max = options.APPENDS_OUT_SHIPPED if is_late else options.APPENDS_OUT_MAX
        if not self._queue or len(self._out) >= out_max or self._waits_for_ids():
            return None
        if (
            self._out
            and self._queue_bytes < options.APPEND_BYTES_LITTLE
            and len(self._queue) < BLOCKS_AN_APPEND
        ):
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

    def _waits_for_ids(self) -> bool:
        """Return True if the next append may have ids that delayed blocks under way have too.

        It is not known yet whether those will be stored. This wait is rare and short.
        """
        if self._delayed_out is None or not any(entry.block.ids for entry in self._delayed_out[1]):
            return False
        return any(entry.block.ids for entry in self._queue[:BLOCKS_AN_APPEND])

    def repeated(self, request: int, left: Mapping[int, Left]) -> None:
        """Note what is left of some blocks of a request, by their positions in it.

        The storage has found that their other messages are stored already. It stores the rest.
        """
        if self._delayed_out is not None and self._delayed_out[0] == request:
            batch = self._delayed_out[1]
        else:
            batch = self._out[request]
        for index, rest in left.items():
            batch[index] = batch[index]._replace(left=rest)

    def next_delayed(self) -> tuple[int, list[Block], list[int]] | None:
        """Return (request, blocks, delays in ms) to hand to the storage now, or None.

        Hand them over after everything that `next_append` returned.
        """
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
        """Note that these delayed blocks are stored.

        Return the replies, and release their producers.
        """
        if self._delayed_out is None or self._delayed_out[0] != request:
            return []
        batch = self._take_delayed_out()
        replies = []
        following = iter(keys)
        for entry in batch:
            self._answered(entry)
            producer = self._producers[entry.producer_id]
            place = NOWHERE if entry.kept is None else tuple(next(following))
            self._remember(producer, entry.sequence, place)
            message: Delayed | Duplicates
            if entry.left is None:
                message = Delayed(entry.sequence, *_as_key(place))
            else:
                message = _duplicates(entry.sequence, place, entry.left.repeats)
            replies += [Reply(peer, message) for peer in producer.waiting.pop(entry.sequence, ())]
        for producer_id in dict.fromkeys(entry.producer_id for entry in batch):
            self._release(self._producers[producer_id])
        return replies

    def _take_delayed_out(self) -> list[_Entry]:
        batch = self._delayed_out[1] if self._delayed_out is not None else []
        self._delayed_out = None
        for entry in batch:
            self._producers[entry.producer_id].delayed_out = False
        return batch

    def appended(
        self, request: int, first_offset: int
    ) -> tuple[list[Reply], list[tuple[Block, int]]]:
        """Note that this append is stored.

        Return the replies, one Stored for each peer and one Duplicates for each block that was not
        stored as a whole, and the blocks with their offsets for the
        channels.
        """
        batch = self._out.pop(request, None)
        if batch is None:
            return [], []
        answers: dict[Peer, list[tuple[int, int]]] = {}
        others: list[Reply] = []
        placed: list[tuple[Block, int]] = []
        offset = first_offset
        for entry in batch:
            self._answered(entry)
            kept = entry.kept
            place = NOWHERE if kept is None else (offset,)
            producer = self._producers[entry.producer_id]
            self._remember(producer, entry.sequence, place)
            waiting = producer.waiting.pop(entry.sequence, ())
            if entry.left is not None:
                answer = _duplicates(entry.sequence, place, entry.left.repeats)
                others += [Reply(peer, answer) for peer in waiting]
            else:
                for peer in waiting:
                    answers.setdefault(peer, []).append((entry.sequence, offset))
            if kept is not None:
                placed.append((kept, offset))
                offset += kept.count
        replies = [Reply(peer, Stored(tuple(blocks))) for peer, blocks in answers.items()]
        return replies + others, placed

    def _remember(self, producer: _Producer, sequence: int, place: Place) -> None:
        producer.recent[sequence] = place
        if len(producer.recent) > options.RECENT_SEQUENCES:
            producer.recent.popitem(last=False)

    def _forget_oldest(self) -> None:
        """Forget the producers that have not been used for the longest time, to limit memory.

        Only producers without a link and without pending blocks are removed. They start again at
        sequence 0 if they return.
        """
        linked = {link.producer_id for link in self._links.values()}
        idle = [
            (row.used_ns, pid)
            for pid, row in self._producers.items()
            if not row.waiting and pid not in linked
        ]
        # Remove many at once, so that this search is rare.
        for _, pid in sorted(idle)[: max(1, options.PRODUCERS_MAX // 20)]:
            del self._producers[pid]

    def _answered(self, entry: _Entry) -> None:
        self._held_bytes -= entry.block.length
        link = self._links.get(entry.peer)
        if link is not None and link.producer_id == entry.producer_id:
            link.out_bytes = max(0, link.out_bytes - entry.block.length)

    def failed(self, request: int, code: str, text: str) -> list[Reply]:
        """Note that this append failed, and return the replies.

        Call it before the next `next_append`, so that no later append is under way. All blocks that
        wait here fail too, and the producers go back to their first failed block. The appends
        before the failed one are written already, and only wait for their sync. If they were
        answered as failed, they would be stored twice. If delayed blocks failed, only the later
        blocks of their producers fail with them.
        """
        if self._delayed_out is not None and request == self._delayed_out[0]:
            lost = self._take_delayed_out()
            return self._fail(lost, {entry.producer_id for entry in lost}, code, text)
        if request not in self._out:
            return []
        lost = self._out.pop(request) + self._queue
        self._queue, self._queue_bytes = [], 0
        return self._fail(lost, self._producers.keys(), code, text)

    def _fail(
        self, lost: list[_Entry], concerned: Collection[int], code: str, text: str
    ) -> list[Reply]:
        """Fail these entries and all other waiting entries of these producers."""
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
        """Return True if nothing is pending: all blocks have been answered."""
        return not self._queue and not self._out and not self._delayed and self._delayed_out is None

    def publishers(self, now_ns: int) -> list[PublisherStats]:
        """Return the linked producers, at most `PUBLISHERS_SHOWN`.

        `blocks` is the number of blocks taken from a producer.
        """
        return [
            {
                "producer": f"{link.producer_id:016x}",
                "via": "tcp" if peer[0].startswith(b"gateway-") else "ipc",
                "blocks": known.expected
                if (known := self._producers.get(link.producer_id)) is not None
                else 0,
                "unanswered_bytes": link.out_bytes,
                "silent_ms": max(0, now_ns - link.seen_ns) // NS_PER_MS,
            }
            for peer, link in [*self._links.items()][: options.PUBLISHERS_SHOWN]
        ]

    def statistics(self) -> OrderingPulse:
        pending = len(self._out) + (self._delayed_out is not None)
        return {
            "producers": len(self._links),
            "pending_appends": pending,
            "queued_blocks": len(self._queue) + len(self._delayed),
        }


def _duplicates(sequence: int, place: Place, repeats: Repeats) -> Duplicates:
    return Duplicates(sequence, _as_offset(place), *_as_key(place), repeats)


def _as_offset(place: Place) -> int:
    return place[0] if len(place) == 1 else -1


def _as_key(place: Place) -> tuple[int, int]:
    return (place[0], place[1]) if len(place) == 2 else (-1, -1)
