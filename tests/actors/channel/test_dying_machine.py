"""Test of messages that become dead letters, against a model, with crashes at any point: every
message ends either finished or as a dead letter.

The following must hold. No message is delivered more often than its channel allows. A message that
has become a dead letter is not delivered again before the next crash, and it is exactly one dead
letter. A message whose finish was committed is no dead letter. A committed rejection or last
attempt survives a crash. The only effect of a crash is that a dead letter may be sent a second
time.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.dying import REJECTED
from zsq.actors.channel.lease import Changes, Subscriber
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.protocol import BACKOFF, DEAD

S = 1_000_000_000
A = (b"a",)
MAX = 3
SMALL: dict[str, Any] = {
    "CACHE_BYTES_MAX": 250,
    "HOLE_ROWS_MAX": 12,
    "GATHER_COUNT_MAX": 3,
    "FETCHES_MAX": 2,
}


class DyingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.small = mock.patch.multiple(options, **SMALL)
        self.small.start()
        self.log: list[Block] = []
        self.head = 0
        self.lives = 0
        self.next_offset = 0
        # The committed rows: first offset -> (count, attempts).
        self.rows: dict[int, tuple[int, int]] = {}
        self.kept: dict[int, tuple[int, int, int]] = {}  # the committed rows of deferred messages
        self.pending: tuple[Changes, set[int]] | None = None
        self.finished: set[int] = set()
        self.safe: set[int] = set()  # offsets whose finish is committed
        self.letters: list[int] = []
        self.now_ns = 1_000 * S
        self.start()

    def start(self) -> None:
        self.lives += 1
        rows = [(start, *row, 0) for start, row in self.rows.items()]
        from_store = [(start, *row) for start, row in self.kept.items()]
        self.channel = ChannelCore(
            self.lives,
            self.next_offset,
            rows,
            {},
            False,
            None,
            ChannelSettings(max_attempts=MAX, backoff_s=5),
        )
        self.channel.supply.deferred.rows = len(from_store)
        self.channel.supply.deferred.messages = sum(row[1] for row in from_store)
        self.channel.supply.deferred.next_due_ns = min((row[3] for row in from_store), default=0)
        self.channel.subscribe(Subscriber(A, "a", 20, 60 * S, 10**9 * S, self.now_ns, 0))
        self.pending = None
        self.out: list[int] = []  # offsets in the batch that is on its way to the dead-letter topic
        self.died: set[int] = set()  # offsets that have become dead letters since the last start
        self.leases: list[int] = []

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        if self.head < 40:
            self.log.append(with_place(pack([b"x"] * count), self.head, 0))
            self.head += count

    @rule()
    def feed(self) -> None:
        supply = self.channel.supply
        for block in self.log:
            if block.first_offset <= supply.window_end < block.next_offset:
                supply.offer(block)
                return

    @rule()
    def fetch(self) -> None:
        for block in self.log:
            if any(
                block.first_offset <= offset < block.next_offset
                for offset in self.channel.supply.wanted
            ):
                self.channel.supply.shelve(block)
                return

    @rule()
    def deliver(self) -> None:
        self.channel.rest()
        pending = self.channel.next_delivery(self.now_ns, self.now_ns)
        if pending is None:
            return
        self.leases.append(pending.token)
        for start, count, attempts in pending.runs:
            assert 1 <= attempts <= MAX
            offsets = set(range(start, start + count))
            assert not offsets & self.died, "dead in this life, and delivered"
            assert not offsets & self.safe, "finished for good, and delivered"

    @precondition(lambda self: self.leases)
    @rule(
        number=st.integers(0, 9),
        part=st.integers(0, 3),
        how=st.sampled_from(["fin", "again", "later", "dead", "dead"]),
    )
    def answer(self, number: int, part: int, how: str) -> None:
        token = self.leases[number % len(self.leases)]
        lease = self.channel._leases.get(token)
        if lease is None:
            self.leases.remove(token)
            return
        run = lease.runs[part % len(lease.runs)]
        ranges = ((run[0], max(1, run[1] - part)),)
        offsets = set(range(run[0], run[0] + ranges[0][1]))
        if how == "fin":
            self.channel.fin(A, token, ranges, self.now_ns)
            self.finished |= offsets
            return
        self.channel.req(
            A, token, ranges, {"again": 0, "later": BACKOFF, "dead": DEAD}[how], self.now_ns, "e"
        )
        if how == "dead" or run[2] >= MAX:
            self.died |= offsets

    @rule(seconds=st.sampled_from([1, 6, 61]))
    def scan(self, seconds: int) -> None:
        self.now_ns += seconds * S
        for token in self.leases:
            lease = self.channel._leases.get(token)
            if lease is not None and lease.sent_ns + 60 * S <= self.now_ns:
                self.died |= {
                    run[0] + i for run in lease.runs if run[2] >= MAX for i in range(run[1])
                }
        self.channel.scan(self.now_ns, self.now_ns)
        if self.channel.may_ask():
            rows = [(start, *row) for start, row in self.kept.items() if row[2] <= self.now_ns]
            following = min(
                (row[2] for row in self.kept.values() if row[2] > self.now_ns), default=0
            )
            self.channel.supply.came_due(rows, following, self.now_ns)

    # The way to the dead-letter topic

    @precondition(lambda self: not self.channel.supply.dying.out)
    @rule()
    def post(self) -> None:
        for (run, _, _), (block, start, stop) in self.channel.supply.next_dead():
            assert (block.first_offset + start, stop - start) == run[:2]
            self.out += range(run[0], run[0] + run[1])

    @precondition(lambda self: self.channel.supply.dying.out)
    @rule(told=st.booleans())
    def stored(self, told: bool) -> None:
        """The batch is stored in the dead-letter topic. If `told` is False, a crash comes before
        the channel learns of it.
        """
        self.letters += self.out
        assert not set(self.out) & self.safe, "finished for good, and a letter"
        if told:
            self.channel.supply.dead()
            self.finished |= set(self.out)
            self.out = []
        else:
            self.crash(False)

    # Commits and crashes

    @precondition(lambda self: self.pending is None)
    @rule()
    def save(self) -> None:
        self.pending = self.channel.changes(), set(self.finished)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def committed(self) -> None:
        self.store()
        self.channel.supply.committed()

    def store(self) -> None:
        assert self.pending is not None
        changes, self.safe = self.pending
        self.pending = None
        self.next_offset = changes.next_offset
        for start in changes.holes_gone:
            assert self.rows.pop(start, None) or self.kept.pop(start, None)
        for start, count, attempts, due_ns in changes.holes_put:
            self.rows.pop(start, None)
            self.kept.pop(start, None)
            if due_ns:
                assert attempts < MAX
                self.kept[start] = (count, attempts, due_ns)
            else:
                self.rows[start] = (count, attempts)

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        if self.pending is not None and written:
            self.store()
        self.finished = set(self.safe)
        self.start()
        for start, (count, attempts) in self.rows.items():
            if attempts >= MAX:
                self.died |= set(range(start, start + count))

    @rule()
    def restart(self) -> None:
        """Stop cleanly and start again. The channel takes promised attempts back, and everything is
        committed.
        """
        if self.pending is not None:
            self.committed()
        self.channel.end()
        self.save()
        self.crash(True)

    # Invariants

    @invariant()
    def dying_is_counted(self) -> None:
        dying = self.channel.supply.dying
        held = {
            run[0] + i
            for death in (*dying.out, *dying.waiting)
            for run in [death.run]
            for i in range(run[1])
        }
        assert len(held) == dying.messages() == self.channel.statistics(self.head)["dying_count"]
        assert held == self.died - self.finished
        assert dying._texts == sum(death.cause.size for death in (*dying.out, *dying.waiting))
        assert self.channel.supply.deferred.messages >= 0
        assert all(
            attempts >= REJECTED or attempts >= MAX for start, _, attempts in dying.unstored()
        )

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.small.stop()

    def end(self) -> None:
        """In the end every message is finished or is a dead letter, and no row is left."""
        if self.channel.supply.dying.out:
            self.stored(True)
        for _ in range(300):
            if self.next_offset == self.head and not self.rows and not self.kept:
                break
            if self.pending is not None:
                self.committed()
            self.scan(61)
            self.save()
            self.committed()
            self.feed()
            self.deliver()
            if self.leases:
                self.answer(0, 0, "fin")
            for _ in range(3):
                self.fetch()
            self.post()
            if self.channel.supply.dying.out:
                self.stored(True)
        assert (self.next_offset, self.rows, self.kept) == (self.head, {}, {})
        assert self.finished == set(range(self.head))


TestDying = DyingMachine.TestCase
TestDying.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
