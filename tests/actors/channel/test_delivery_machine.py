"""Test of a channel against a model that knows only the state of each offset, with crashes at any
point.

Whatever order the rules run in, the following must hold. A message has at most one valid lease. A
finished message is never delivered again, unless its finish was not committed before a crash.
Attempts never decrease. The attempt number of a redelivery was committed before the redelivery was
sent. In the end everything is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zsq.actors.channel.core import UNKNOWN_DELIVERY, ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.lease import Changes, Subscriber
from zsq.actors.primitives.ranges import ranges_of
from zsq.actors.settings import options
from zsq.transport.block.block import Block, gather, pack, with_place

S = 1_000_000_000
TIMEOUT_NS, HEARTBEAT_NS = 60 * S, 45 * S
PEER = st.sampled_from(PEERS := [(b"a",), (b"b",), (b"c",)])
RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=3).map(tuple)
SMALL: dict[str, Any] = {
    "CACHE_BYTES_MAX": 250,
    "HOLE_ROWS_MAX": 10,
    "DUE_HELD_MAX": 6,
    "GATHER_COUNT_MAX": 7,
}
SMALL |= {"GATHER_BYTES_MAX": 60}
# A number stands for a message that is deferred until that time.
WAITS, LEASED, FINISHED = "waits", "leased", "finished"
Peer = tuple[bytes, ...]


class Commit(NamedTuple):
    """A commit in progress, and the state of the model when it began."""

    changes: Changes
    states: list[str | int]
    emptied: tuple[tuple[int, int], ...]


class DeliveryMachine(RuleBasedStateMachine):
    small_options = SMALL

    def __init__(self) -> None:
        super().__init__()
        self.small = mock.patch.multiple(options, **self.small_options)
        self.small.start()
        self.log: list[Block] = []
        self.states: list[str | int] = []
        self.attempts: list[int] = []  # the highest attempt ever seen for each offset
        # Token -> (consumer, offsets, end of the lease, latest end after any number of touches).
        self.leases: dict[int, tuple[Peer, set[int], int, int]] = {}
        self.tokens = [1]  # all tokens that were ever seen
        self.pending: Commit | None = None
        self.stored_next = 0
        self.stored: dict[int, tuple[int, int]] = {}
        # Rows of deferred messages: first offset -> (count, attempts, due time).
        self.kept: dict[int, tuple[int, int, int]] = {}
        self.emptied: tuple[tuple[int, int], ...] = ()
        self.safe: list[str | int] = []  # the states of the model at the last commit
        self.seen: dict[Peer, int] = {}
        self.now_ns = 1_000 * S
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        rows = [(start, *row, 0) for start, row in self.stored.items()]
        counts, dues = (
            [row[0] for row in self.kept.values()],
            [row[2] for row in self.kept.values()],
        )
        deferred = Deferred(len(counts), sum(counts), min(dues, default=0))
        self.channel = ChannelCore(
            self.lives, self.stored_next, rows, {}, paused=False, deferred=deferred
        )
        self.channel.go_on((), 0, self.emptied)
        self.leases, self.seen = {}, {}
        self.sent: set[int] = set()  # offsets that were sent since the last start
        self.pending = None

    @property
    def head(self) -> int:
        return len(self.states)

    @initialize(
        counts=st.lists(st.integers(1, 6), min_size=2, max_size=6), ready=st.integers(2, 12)
    )
    def begin(self, counts: list[int], ready: int) -> None:
        for count in counts:
            self.publish(count)
        for peer in PEERS[:2]:
            self.subscribe(peer, ready)
        self.serve(2)

    @precondition(lambda self: self.head < 40)
    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        bodies = [b"%d" % (self.head + i) for i in range(count)]
        self.log.append(with_place(pack(bodies), self.head, 0))
        self.states += [WAITS] * count
        self.attempts += [0] * count

    def block_of(self, offset: int) -> Block:
        return next(block for block in self.log if block.first_offset <= offset < block.next_offset)

    @rule(blocks=st.integers(1, 3))
    def feed(self, blocks: int) -> None:
        for _ in range(blocks):
            if self.channel.supply.window_end < self.head:
                assert self.channel.supply.offer(self.block_of(self.channel.supply.window_end))

    @rule(number=st.integers(0, 50), data=st.booleans())
    def feed_something_else(self, number: int, data: bool) -> None:
        block, supply = self.log[number % len(self.log)], self.channel.supply
        end, size = supply.window_end, supply.window_bytes
        if block.first_offset > end:
            assert not supply.offer(block)
        elif block.next_offset <= end:
            assert supply.offer(block, from_storage=data)
        assert (supply.window_end, supply.window_bytes) == (
            end,
            size,
        ) or block.first_offset <= end < block.next_offset

    @rule(times=st.integers(1, 3))
    def serve(self, times: int) -> None:
        for _ in range(times):
            if self.pending is None:
                self.save()
            self.committed()
            self.feed(2)
            self.deliver(2)
            self.fetch(4)

    @rule(count=st.integers(1, 3))
    def fetch(self, count: int) -> None:
        for offset in sorted(self.channel.supply.wanted)[:count]:
            self.channel.supply.shelve(self.block_of(offset))
            assert offset not in self.channel.supply.wanted

    # Consumers

    @rule(peer=PEER, ready=st.integers(0, 12))
    def subscribe(self, peer: Peer, ready: int) -> None:
        self.leave(peer)
        self.channel.subscribe(
            Subscriber(peer, "", ready, TIMEOUT_NS, HEARTBEAT_NS, self.now_ns, 0)
        )
        self.seen[peer] = self.now_ns

    @rule(peer=PEER, dice=st.integers(0, 3))
    def leave_now_and_then(self, peer: Peer, dice: int) -> None:
        if dice == 3:
            self.leave(peer)
            self.channel.rest()

    def leave(self, peer: Peer) -> None:
        assert self.channel.unsubscribe(peer) == (self.seen.pop(peer, None) is not None)
        self.forget(peer)

    def forget(self, peer: Peer) -> None:
        for token in [token for token, lease in self.leases.items() if lease[0] == peer]:
            self.give_back(token)

    def give_back(self, token: int) -> None:
        self.states = [
            WAITS if offset in self.leases[token][1] else state
            for offset, state in enumerate(self.states)
        ]
        del self.leases[token]

    @rule(peer=PEER, ready=st.integers(0, 12))
    def set_ready(self, peer: Peer, ready: int) -> None:
        if peer in self.seen:
            self.channel.set_ready(peer, ready)

    @rule(peer=PEER)
    def beat(self, peer: Peer) -> None:
        if peer in self.seen:
            self.channel.consumers[peer].seen_ns = self.seen[peer] = self.now_ns

    @rule(dice=st.integers(0, 5))
    def pause(self, dice: int) -> None:
        self.channel.paused = dice == 3

    # Deliveries and answers

    @rule(times=st.integers(1, 4))
    def deliver(self, times: int) -> None:
        for _ in range(times):
            pending = self.channel.next_delivery(self.now_ns, self.now_ns)
            if pending is None:
                return
            assert not self.channel.paused
            assert pending.token not in self.tokens
            offsets = []
            for start, count, attempts in pending.runs:
                for offset in range(start, start + count):
                    assert self.states[offset] == WAITS, f"{offset} is {self.states[offset]}"
                    assert attempts >= self.attempts[offset] + (offset in self.sent)
                    assert attempts == 1 or attempts - 1 <= self.stored_attempts(offset)
                    self.states[offset] = LEASED
                    self.attempts[offset] = attempts
                    self.sent.add(offset)
                    offsets.append(offset)
            assert gather(pending.parts).body.values() == [b"%d" % offset for offset in offsets]
            consumer = self.channel.consumers[pending.peer]
            assert consumer.in_flight <= consumer.ready
            self.tokens.append(pending.token)
            self.leases[pending.token] = (
                pending.peer,
                set(offsets),
                self.now_ns + TIMEOUT_NS,
                self.now_ns + 900 * S,
            )

    def stored_attempts(self, offset: int) -> int:
        return next(
            (row[1] for start, row in self.stored.items() if start <= offset < start + row[0]), 0
        )

    def answered(
        self,
        peer: Peer,
        token: int,
        ranges: Sequence[tuple[int, int]],
        refused: Sequence[tuple[int, int]],
    ) -> list[int]:
        """Return the offsets that must have been accepted, and check the ranges that must have been
        refused.
        """
        lease = self.leases.get(token)
        if lease is None or lease[0] != peer:
            assert tuple(refused) == (ranges or (UNKNOWN_DELIVERY,))
            return []
        held = lease[1]
        asked = [start + i for start, count in ranges for i in range(count)] or sorted(held)
        taken = held & set(asked)
        for offset in taken:
            asked.remove(offset)
        assert sorted(start + i for start, count in refused for i in range(count)) == sorted(asked)
        held -= taken
        if not held:
            del self.leases[token]
        return sorted(taken)

    @rule(peer=PEER, back=st.integers(0, 3), ranges=RANGES)
    def fin(self, peer: Peer, back: int, ranges: tuple[tuple[int, int], ...]) -> None:
        token = self.tokens[-1 - back % len(self.tokens)]
        for offset in self.answered(peer, token, ranges, self.channel.fin(peer, token, ranges)):
            self.states[offset] = FINISHED

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 9), ranges=RANGES)
    def fin_own(self, number: int, ranges: tuple[tuple[int, int], ...]) -> None:
        token = list(self.leases)[number % len(self.leases)]
        peer = self.leases[token][0]
        for offset in self.answered(peer, token, ranges, self.channel.fin(peer, token, ranges)):
            self.states[offset] = FINISHED

    @precondition(lambda self: self.leases)
    @rule(
        number=st.integers(0, 9), ranges=RANGES, delay_ns=st.sampled_from([0, 0, 10 * S, 100 * S])
    )
    def req(self, number: int, ranges: tuple[tuple[int, int], ...], delay_ns: int) -> None:
        token = list(self.leases)[number % len(self.leases)]
        peer = self.leases[token][0]
        refused = self.channel.req(peer, token, ranges, delay_ns // 1_000_000, self.now_ns)
        for offset in self.answered(peer, token, ranges, refused):
            self.states[offset] = self.now_ns + delay_ns if delay_ns else WAITS

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 9), indexes=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def req_singly(self, number: int, indexes: list[int]) -> None:
        held = sorted(list(self.leases.values())[number % len(self.leases)][1])
        for index in indexes:
            self.req(number, ((held[index % len(held)], 1),), 0)
            if not self.leases:
                return

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 9), peer=PEER)
    def touch(self, number: int, peer: Peer) -> None:
        token = list(self.leases)[number % len(self.leases)]
        owner, offsets, deadline, cap = self.leases[token]
        refused = self.channel.touch(peer, token, self.now_ns)
        assert refused == (() if peer == owner else (UNKNOWN_DELIVERY,))
        if not refused:
            deadline = min(self.now_ns + TIMEOUT_NS, cap)
        self.leases[token] = owner, offsets, deadline, cap

    @rule(seconds=st.sampled_from([1, 10, 30, 61, 400]))
    def scan(self, seconds: int) -> None:
        """Advance the clock. The wall clock and the monotonic clock are the same here, because the
        channel never compares one with the other.
        """
        self.now_ns += seconds * S
        found = False
        for peer in [
            peer for peer, seen_ns in self.seen.items() if self.now_ns - seen_ns > 2 * HEARTBEAT_NS
        ]:
            del self.seen[peer]
            self.forget(peer)
            found = True
        for token in [token for token, lease in self.leases.items() if lease[2] <= self.now_ns]:
            self.give_back(token)
            found = True
        away = self.kept | {
            row[0]: row[1:]
            for row in (self.pending.changes.holes_put if self.pending else ())
            if row[3]
        }
        asleep = {start + i for start, row in away.items() for i in range(row[0])}
        for offset, state in enumerate(self.states):
            if isinstance(state, int) and state <= self.now_ns and offset not in asleep:
                self.states[offset] = WAITS
                found = True
        asked = self.channel.supply.deferred.wanted
        assert self.channel.scan(self.now_ns, self.now_ns) == (
            found or self.channel.supply.deferred.wanted > asked
        )
        due = self.channel.next_due(self.now_ns, self.now_ns)
        assert due > self.now_ns or not due or self.channel.held >= options.DUE_HELD_MAX

    @precondition(lambda self: self.channel.may_ask())
    @rule(limit=st.integers(1, 3))
    def due(self, limit: int) -> None:
        """Answer with the earliest rows of the store. They stay there until a commit
        removes them.
        """
        ordered = sorted((row[2], start, row[0], row[1]) for start, row in self.kept.items())
        rows = [
            (start, count, attempts, due)
            for due, start, count, attempts in ordered
            if due <= self.now_ns
        ][:limit]
        following = ordered[len(rows)][0] if len(ordered) > len(rows) else 0
        self.channel.supply.came_due(rows, following, self.now_ns)
        for start, count, _, due in rows:
            for offset in range(start, start + count):
                assert self.states[offset] == due, "it was taken before"
                self.states[offset] = WAITS

    @rule(dice=st.integers(0, 9))
    def empty(self, dice: int) -> None:
        # Do this rarely, because otherwise few messages would stay unfinished for long.
        if dice == 6:
            self.channel.seek(self.head)
            self.leases.clear()
            self.states = [FINISHED] * self.head

    @rule(offsets=st.sets(st.integers(0, 40), min_size=1, max_size=4), dice=st.integers(0, 2))
    def skip(self, offsets: set[int], dice: int) -> None:
        ranges, deferred = ranges_of(offsets), self.channel.supply.deferred
        if dice or not deferred.is_settled() or deferred.is_on_way(ranges):
            return
        rows = [
            (start, *row)
            for start, row in self.kept.items()
            if offsets.intersection(range(start, start + row[0]))
        ]
        found = self.channel.unfinished(ranges, rows, self.head)
        skipped = {offset for first, count in found for offset in range(first, first + count)}
        assert skipped == {o for o in offsets if o < self.head and self.states[o] != FINISHED}
        if not skipped:
            return
        self.channel.skip_messages(found, rows)
        for token, lease in list(self.leases.items()):
            lease[1].difference_update(skipped)
            if not lease[1]:
                del self.leases[token]
        for offset in skipped:
            self.states[offset] = FINISHED

    # Commits and crashes

    @precondition(lambda self: self.pending is None)
    @rule()
    def save(self) -> None:
        changes = self.channel.changes()
        self.pending = Commit(changes, list(self.states), tuple(self.channel.supply.emptied))
        assert not self.channel.supply.dirty
        assert not self.channel.waits_for_commit()

    @precondition(lambda self: self.pending is not None)
    @rule()
    def committed(self) -> None:
        self.store()
        self.channel.supply.committed()

    def store(self) -> None:
        """Store the commit as storage does: first remove rows, then add rows."""
        assert self.pending is not None
        changes, self.safe, self.emptied = self.pending
        assert changes.next_offset >= self.stored_next
        self.stored_next = changes.next_offset
        if changes.clear:
            self.kept.clear()
        # The start may belong to a deferred row, or to no row, because a commit names everything
        # that was dropped.
        for start in changes.holes_gone:
            self.stored.pop(start, None)
            self.kept.pop(start, None)
        for start, count, attempts, due in changes.holes_put:
            self.kept.pop(start, None)
            self.stored.pop(start, None)
            if due:
                self.kept[start] = (count, attempts, due)
                continue
            self.stored[start] = (count, attempts)
        self.pending = None
        rows = [(start, row[0]) for start, row in (*self.stored.items(), *self.kept.items())]
        unfinished = [start + i for start, count in rows for i in range(count)]
        assert sorted(unfinished) == [
            o for o in range(self.stored_next) if self.safe[o] != FINISHED
        ]

    @rule(written=st.booleans(), dice=st.integers(0, 2))
    def crash(self, written: bool, dice: int) -> None:
        """End the channel and start it again. The commit in progress may be on disk although its
        answer is lost.
        """
        if dice != 2:
            return
        if self.pending is not None and written:
            self.store()
        for offset in range(self.head):
            state = self.safe[offset] if offset < len(self.safe) else WAITS
            self.states[offset] = WAITS if state == LEASED else state
        self.start()
        for peer in PEERS[:2]:
            self.subscribe(peer, 10)

    # Invariants

    @invariant()
    def statistics_agree(self) -> None:
        found = self.channel.statistics(self.head)
        assert found["depth"] == self.states.count(WAITS)
        assert found["in_flight_count"] == self.states.count(LEASED)
        assert found["deferred_count"] == sum(isinstance(state, int) for state in self.states)
        assert found["client_count"] == len(self.seen)
        for peer, consumer in self.channel.consumers.items():
            assert consumer.in_flight == sum(
                len(lease[1]) for lease in self.leases.values() if lease[0] == peer
            )
        assert found["lost_count"] == 0

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.small.stop()

    def end(self) -> None:
        """Let one consumer finish everything. Then all messages must be finished, in
        the store too.
        """
        if self.pending is not None:
            self.committed()
        self.pause(0)
        self.subscribe((b"last",), 100)
        for _ in range(200):
            if set(self.states) <= {FINISHED}:
                break
            self.seen[(b"last",)] = self.channel.consumers[(b"last",)].seen_ns = self.now_ns
            self.scan(61)
            if self.channel.may_ask():
                self.due(3)
            self.save()
            self.committed()
            self.feed(3)
            self.deliver(4)
            self.fetch(4)
            for token, lease in list(self.leases.items()):
                for offset in self.answered(
                    lease[0], token, (), self.channel.fin(lease[0], token, ())
                ):
                    self.states[offset] = FINISHED
        self.save()
        self.committed()
        assert set(self.states) <= {FINISHED}
        assert (self.stored_next, self.stored, self.kept) == (self.head, {}, {})


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
