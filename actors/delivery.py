"""A channel's logic: who holds which message until when. Pure.

Where a message can be, once the cursor has passed it:

    in flight    under a lease of one consumer
    again        to be delivered again, once its next attempt number is committed (`again.py`)
    deferred     not before a due time (wall clock): in the state store only, once that is committed (`deferred.py`)
    finished     nowhere any more

All but the last are *holes*: rows (start, count, attempts, due) that are committed in the state store with the cursor. A row's
attempts is the highest number under which the message may have been sent, so after a crash numbers never fall.
Nothing here depends on how many messages a run has: runs are cut and joined, messages are not touched.

Times: leases in monotonic ns (`now_ns`), due times in wall ns (`wall_ns`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from ..transport.block import Block
from ..transport.protocol import MESSAGE_TIMEOUT_MS_MAX, Range, Run
from . import options
from .again import Again, collect
from .deferred import Deferred, Row
from .in_flight import DeadlineHeap
from .lease import COUNTERS, Changes, Consumer, Hole, Lease, Parcel, Peer
from .ranges import above, check, take, total
from .shelf import BlockShelf

UNKNOWN_DELIVERY: Range = (-1, 0)
_MS = 1_000_000


class Delivery:
    """One channel. Commands come from consumers, blocks from the feed; parcels and changes go out."""

    def __init__(
        self, incarnation: int, next_offset: int, holes: Iterable[Hole], counters: dict[str, int], paused: bool,
        deferred: Deferred | None = None,
    ) -> None:  # fmt: skip
        self.next_offset = next_offset  # the next to take
        self.window_end = next_offset  # the next to come from the feed
        self.window_bytes = 0
        self.paused = paused
        self.counters = dict.fromkeys(COUNTERS, 0) | counters
        self.consumers: dict[Peer, Consumer] = {}
        self.wanted: set[int] = set()  # offsets whose blocks are needed for a redelivery and not on the shelf
        self.dirty = False
        self._start = 0  # nothing below it is there any more
        self._token = (incarnation & 0x7FFFFFFF) << 32
        self._turns: deque[Consumer] = deque()
        self._window: deque[Block] = deque()
        self._shelf = BlockShelf(options.CACHE_BYTES_MAX)
        self._leases: dict[int, Lease] = {}
        self._lease_rows = 0
        self._deadlines: DeadlineHeap[int] = DeadlineHeap()
        self.again = Again()
        self._ending = False
        self.deferred = deferred or Deferred()
        self._saved: dict[int, tuple[int, int]] = {}  # start -> count, attempts
        for start, count, attempts, _ in holes:
            self._saved[start] = (count, attempts)
            self.again.waiting.append((start, count, attempts))

    # Consumers

    def subscribe(self, consumer: Consumer) -> None:
        self.unsubscribe(consumer.peer)
        self.consumers[consumer.peer] = consumer
        self._turns.append(consumer)

    def set_ready(self, peer: Peer, ready: int) -> None:
        self.consumers[peer].ready = max(0, ready)

    def unsubscribe(self, peer: Peer) -> bool:
        """The consumer left or was lost: all it holds is to be delivered again."""
        consumer = self.consumers.pop(peer, None)
        if consumer is None:
            return False
        self._turns.remove(consumer)
        for token in list(consumer.tokens):
            self.again.waiting.extend(self._end_lease(token).runs)
            self.dirty = True
        return True

    def lost_consumers(self, now_ns: int) -> list[Peer]:
        """Those not heard of for two heartbeats."""
        return [c.peer for c in self.consumers.values() if now_ns - c.seen_ns > 2 * c.heartbeat_ns]

    def is_wanted(self) -> bool:
        """Some consumer would take new messages."""
        return not self.paused and any(c.ready > 0 for c in self.consumers.values())

    # Blocks

    def offer(self, block: Block, *, from_storage: bool = False) -> bool:
        """The next block: taken if it is the expected one, ignored if older, False if there is a gap.

        What storage skips does not exist any more (damage, retention): it is counted and stepped over.
        """
        if block.next_offset <= self.window_end:
            return True
        if block.first_offset > self.window_end:
            if not from_storage:
                return False
            self.counters["lost_count"] += block.first_offset - self.window_end
            if not self._window:
                self.next_offset = block.first_offset
            self.dirty = True
        self._window.append(block)
        self.window_bytes += block.length
        self.window_end = block.next_offset
        return True

    def step_over(self, next_offset: int) -> None:
        """Storage has nothing from the window's end to there, and never will."""
        if next_offset > self.window_end:
            self.counters["lost_count"] += next_offset - self.window_end
            if not self._window:
                self.next_offset = next_offset
            self.window_end = next_offset
            self.dirty = True

    def shelve(self, block: Block) -> None:
        """A block that was asked for through `wanted`."""
        self._shelf.put(block)
        self.wanted.difference_update([o for o in self.wanted if block.first_offset <= o < block.next_offset])

    def lost(self, start: int, stop: int) -> None:
        """Storage has nothing at these offsets: they will never be delivered."""
        self.wanted.difference_update([o for o in self.wanted if start <= o < stop])
        self.counters["lost_count"] += self.again.lost(start, stop)
        self.dirty = True

    def rest(self) -> None:
        """Once a turn: hold no blocks that nobody wants. The feed goes off for the same reason; while it is on, the window must not
        shrink, for what comes goes on where it ended and would look like a gap."""
        if not self.is_wanted():
            self._drop_blocks()

    def _drop_blocks(self) -> None:
        """Give the memory back: what is in the window will be read again."""
        self._window.clear()
        self.window_bytes = 0
        self.window_end = self.next_offset
        self._shelf.clear()
        self.wanted.clear()

    # Deliveries

    def next_parcel(self, now_ns: int) -> Parcel | None:
        """The next delivery, or None when no consumer has room or nothing waits. Consumers take turns."""
        if self.paused:
            return None
        for _ in range(len(self._turns)):
            consumer = self._turns[0]
            self._turns.rotate(-1)
            room = consumer.ready - consumer.in_flight
            if room > 0 and consumer.bytes_out < options.CONSUMER_BYTES_MAX:
                parcel = self._for(consumer, room, now_ns)
                if parcel is None:
                    self._turns.rotate(1)  # nothing waits: the turn stays where it was
                return parcel
        return None

    def _for(self, consumer: Consumer, room: int, now_ns: int) -> Parcel | None:
        new = bool(self._window) and self.held + self.deferred.uncommitted < options.HOLE_ROWS_MAX and not self.deferred.is_full()
        if self.again.ready and not (new and consumer.again_last):
            quota = min(room, max(1, consumer.ready // 2)) if new else room
            parts, runs = collect(self.again.ready, min(quota, options.GATHER_COUNT_MAX), self._find, self.wanted)
            if runs:
                consumer.again_last = True
                return self._lease(consumer, runs, parts, now_ns)
        consumer.again_last = False
        if not new:
            return None
        block = self._window[0]
        self.next_offset = max(self.next_offset, block.first_offset)  # over a gap, where there is one
        start = self.next_offset - block.first_offset
        stop = min(block.count, start + room)
        run = (self.next_offset, stop - start, 1)
        self.next_offset += stop - start
        if stop == block.count:
            self._window.popleft()
            self.window_bytes -= block.length
            self._shelf.put(block)
        return self._lease(consumer, [run], [(block, start, stop)], now_ns)

    @property
    def held(self) -> int:
        """Rows behind the cursor, without deferred ones."""
        return self._lease_rows + self.again.rows

    def _find(self, offset: int) -> Block | None:
        block = self._shelf.find(offset)
        if block is None and self._window and self._window[0].first_offset <= offset < self._window[0].next_offset:
            block = self._window[0]
        return block

    def _lease(self, consumer: Consumer, runs: list[Run], parts: list[tuple[Block, int, int]], now_ns: int) -> Parcel:
        self._token += 1
        count = total(runs)
        size = sum(block.length * (stop - start) // block.count for block, start, stop in parts)
        consumer.bytes_out += size
        self._leases[self._token] = Lease(consumer, sorted(runs), now_ns, size)  # answers are matched in ascending order
        self._lease_rows += len(runs)
        self._deadlines.set(self._token, now_ns + consumer.timeout_ns)
        consumer.tokens.add(self._token)
        consumer.in_flight += count
        consumer.message_count += count
        self.counters["message_count"] += count
        self.dirty = True
        return Parcel(consumer.peer, self._token, tuple(runs), parts, consumer.timeout_ns)

    def _end_lease(self, token: int) -> Lease:
        lease = self._leases.pop(token)
        self._deadlines.remove(token)
        self._lease_rows -= len(lease.runs)
        lease.consumer.tokens.discard(token)
        lease.consumer.bytes_out -= lease.size
        lease.consumer.in_flight -= total(lease.runs)
        return lease

    # Answers

    def _answered(self, peer: Peer, token: int, ranges: Sequence[Range]) -> tuple[list[Run], Sequence[Range]]:
        """(what was under this lease and is not any more, what was refused and stays as it was)."""
        check(ranges)
        lease = self._leases.get(token)
        if lease is None or lease.consumer.peer != peer:
            return [], tuple(ranges) or (UNKNOWN_DELIVERY,)
        taken, left, refused = take(lease.runs, ranges)
        lease.consumer.in_flight -= total(taken)
        self._lease_rows += len(left) - len(lease.runs)
        lease.runs = left
        if not left:
            self._end_lease(token)
        self.dirty = True
        return taken, refused

    def fin(self, peer: Peer, token: int, ranges: Sequence[Range]) -> Sequence[Range]:
        """Finished. Returns the ranges that were not under this lease; nothing is done to those."""
        taken, refused = self._answered(peer, token, ranges)
        count = total(taken)
        self.counters["finish_count"] += count
        if peer in self.consumers:
            self.consumers[peer].finish_count += count
        return refused

    def req(self, peer: Peer, token: int, ranges: Sequence[Range], delay_ns: int, wall_ns: int) -> Sequence[Range]:
        """Again, at once or after a delay (clamped to an hour). Returns the refused ranges."""
        taken, refused = self._answered(peer, token, ranges)
        count = total(taken)
        self.counters["requeue_count"] += count
        if peer in self.consumers:
            self.consumers[peer].requeue_count += count
        if delay_ns > 0:
            self.deferred.put(taken, wall_ns + delay_ns)
        else:
            self.again.waiting.extend(taken)
        return refused

    def touch(self, peer: Peer, token: int, now_ns: int) -> Sequence[Range]:
        """More time: the consumer's timeout from now, at most 15 minutes since the delivery."""
        lease = self._leases.get(token)
        if lease is None or lease.consumer.peer != peer:
            return (UNKNOWN_DELIVERY,)
        cap = lease.sent_ns + MESSAGE_TIMEOUT_MS_MAX * _MS
        self._deadlines.set(token, min(now_ns + lease.consumer.timeout_ns, cap))
        return ()

    # The scan

    def scan(self, now_ns: int, wall_ns: int) -> bool:
        """Leases that ended, deferred messages that are due, consumers that were lost. True if there was any."""
        found = False
        for peer in self.lost_consumers(now_ns):
            found = self.unsubscribe(peer) or found
        while (token := self._deadlines.pop_due(now_ns)) is not None:
            lease = self._end_lease(token)
            self.counters["timeout_count"] += total(lease.runs)
            self.again.waiting.extend(lease.runs)
            found = True
        wanted = self.deferred.wanted
        due = self.deferred.due(wall_ns, self.held)
        self.again.waiting.extend(due)
        found = found or bool(due)
        self.dirty = self.dirty or found
        return found or self.deferred.wanted > wanted

    def came_due(self, rows: Sequence[Row], next_due_ns: int, wall_ns: int) -> None:
        """The store's answer: these are to be delivered again, once they are no longer deferred there."""
        self.again.waiting.extend(self.deferred.came(rows, next_due_ns, wall_ns))
        self.dirty = self.dirty or bool(rows)

    def next_due(self, now_ns: int, wall_ns: int) -> int:
        """When the next scan has something to do, in monotonic ns; 0 for never."""
        times = [c.seen_ns + 2 * c.heartbeat_ns + 1 for c in self.consumers.values()]
        lease = self._deadlines.next_due()
        if lease is not None:
            times.append(lease)
        due = self.deferred.next_due(wall_ns, self.held)
        if due:
            times.append(now_ns + due - wall_ns)
        return max(1, min(times)) if times else 0

    # Commits

    def changes(self) -> Changes:
        """What changed since the last call; one commit is out at a time. Redeliveries wait for it."""
        kept, below = self._still_there(self.again.waiting)
        self.again.waiting = deque(kept)
        if self.waits_for_commit():
            self.again.promise()
        rows: dict[int, tuple[int, int]] = {}
        for lease in self._leases.values():
            rows.update((start, (count, attempts)) for start, count, attempts in lease.runs)
        rows.update((start, (count, attempts)) for start, count, attempts in self.again.unsent())
        deferred, clear = self.deferred.take()
        saved = self._saved
        put = (*((start, *row, 0) for start, row in rows.items() if saved.get(start) != row), *deferred)
        gone = saved.keys() - rows.keys() - {row[0] for row in deferred}  # a put of the same start is enough
        gone |= {run[0] for run in below} - rows.keys()  # of those that came due the store has rows which nobody here knows
        self._saved = rows
        self.dirty = False
        return Changes(self.next_offset, put, tuple(gone), clear)

    def committed(self) -> None:
        """The last `changes` are on disk: their redeliveries may be sent."""
        self.again.committed()
        self.deferred.committed()

    def waits_for_commit(self) -> bool:
        """Somebody would get what waits for its next number."""
        return self.again.is_short() and self.is_wanted() and not self._ending

    def end(self) -> None:
        """In order: nothing is sent any more, and rows say under which number their messages were really sent last."""
        self._ending = True
        self.dirty = self.again.take_back() or self.dirty

    def seek(self, offset: int) -> None:
        """Go on at `offset`, and clear all before it, leases included: what consumers hold cannot be answered any more."""
        for token in list(self._leases):
            self._end_lease(token)
        self.again.clear()
        self.deferred.clear()
        self.next_offset = offset
        self._drop_blocks()
        self.dirty = True

    def drop_below(self, start: int) -> bool:
        """Nothing below `start` is there any more, the topic's bound has taken it: what waits is given up, and counted.

        What consumers hold is theirs until they answer; only then it is found to be gone. True if the next message is another now.
        """
        self._start = max(self._start, start)
        self.again.ready = deque(self._still_there(self.again.ready)[0])
        self.again.promising = self._still_there(self.again.promising)[0]
        self.wanted = {offset for offset in self.wanted if offset >= start}
        self.dirty = True
        if self.next_offset >= start:
            return False
        self.counters["dropped_count"] += start - self.next_offset
        self.next_offset = start
        self._drop_blocks()
        return True

    def _still_there(self, runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
        """(what is kept, what was below the start and is counted)."""
        found = above(runs, self._start)
        self.counters["dropped_count"] += total(found[1])
        return found

    # What it looks like from outside

    def statistics(self, head: int) -> dict[str, Any]:
        """NSQ's field names. `depth`: waiting, neither in flight nor deferred."""
        again = self.again.messages()
        depth = max(0, head - self.next_offset) + again
        return {
            "depth": depth,
            "backend_depth": max(0, head - self.window_end),
            "in_flight_count": sum(total(lease.runs) for lease in self._leases.values()),
            "deferred_count": self.deferred.messages,
            "deferred_full": self.deferred.is_full(),
            "paused": self.paused,
            "next_offset": self.next_offset,
            "requeued_waiting": again,
            "window_end": self.window_end,
            "client_count": len(self.consumers),
            "clients": [consumer.statistics() for consumer in self.consumers.values()],
            **self.counters,
        }
