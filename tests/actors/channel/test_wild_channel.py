"""Test of a channel with any settings under any mixture of commands, seeks, losses and crashes. It
has no model of what is delivered and checks only invariants.

Each move of each message is in the table of states (`support/watched.py`). No message is in two
places. Attempts never decrease, except after a seek. A finished message does not appear again. If a
consumer finishes everything, the channel becomes empty, and so does the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.message_states import MessageState
from support.watched import Watch

from tests.actors.channel.test_ordered_machine import ORDERED
from tests.actors.channel.test_priorities_machine import BOUNDS
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.lease import Changes, Departure, Subscriber
from zsq.actors.primitives.ranges import ranges_of
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.codec import pack_headers
from zsq.transport.wire.protocol import BACKOFF, DEAD, UNBEGUN, Run

S = 1_000_000_000
PEERS = [(b"a",), (b"b",), (b"c",)]
KINDS = ["plain", "ordered", "priorities", "fair"]
KEY = st.sampled_from([b"a", b"b", None])
# A message's priority follows from its key.
PRIORITY = {b"a": pack_headers({"zsq-priority": 1}), b"b": pack_headers({"zsq-priority": "2"})} | {
    None: pack_headers({})
}
TROUBLES = (
    "all_come_back", "all_are_deferred", "all_are_rejected", "go_out", "one_attempt", "what_is_deferred_comes", "letters_begin",
    "letters_end", "crash", "what_is_old_goes", "commit",
)  # fmt: skip
MESSAGES = st.lists(st.tuples(KEY, st.sampled_from([b"x", b"y", None])), min_size=1, max_size=6)


class WildChannel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.small = mock.patch.multiple(options, **(BOUNDS | ORDERED))
        self.small.start()
        self.log: list[Block] = []
        self.head = self.start_offset = 0
        self.gone: set[int] = set()  # damaged offsets: storage has no block for them
        # The store: first offset -> (count, attempts, due time).
        self.rows: dict[int, tuple[int, int, int]] = {}
        self.next_stored = 0
        self.pending: Changes | None = None
        # The states of the messages behind the cursor when the pending commit began.
        self.expected: dict[int, MessageState] = {}
        self.keys: list[bytes | None] = []
        self.attempts: dict[int, int] = defaultdict(int)
        self.tokens: list[tuple[tuple[bytes, ...], int]] = []
        self.now_ns = 1_000 * S
        self.lives = 0

    @initialize(
        kind=st.sampled_from(KINDS),
        tags=st.sampled_from(["", "", "x"]),
        most=st.sampled_from([0, 1, 2]),
        age=st.sampled_from([-1, -1, 60.0]),
    )
    def begin(self, kind: str, tags: str, most: int, age: float) -> None:
        self.settings = ChannelSettings(
            ordered=kind == "ordered",
            priorities=3 if kind == "priorities" else 0,
            fair_by="key" if kind == "fair" else "none",
            max_in_flight_per_key=2 if kind == "fair" else 0,
            tags=tags,
            max_attempts=most,
            max_age_s=age,
        )
        self.most = most or 1 << 30
        self.live()
        self.publish([(b"a", b"x"), (b"b", b"x"), (None, b"y"), (b"a", b"x")])
        self.feed(1)

    def live(self) -> None:
        self.lives += 1
        self.pending = None
        deferred = {start: row for start, row in self.rows.items() if row[2]}
        counts, dues = [row[0] for row in deferred.values()], [row[2] for row in deferred.values()]
        holes = [
            (start, *row) for start, row in self.rows.items() if self.settings.ordered or not row[2]
        ]
        totals = Deferred(len(counts), sum(counts), min(dues, default=0))
        self.channel = ChannelCore(
            self.lives, self.next_stored, holes, {}, False, totals, self.settings, "me", lambda: 0.4
        )
        self.watch = Watch(
            self.channel,
            chain.from_iterable(range(start, start + row[0]) for start, row in deferred.items()),
        )
        self.channel.supply.drop_below(self.start_offset)
        for peer in PEERS[:2]:
            self.join(peer, 8, 0)

    # Blocks

    @precondition(lambda self: self.head < 60)
    @rule(messages=MESSAGES)
    def publish(self, messages: list[tuple[bytes | None, bytes | None]]) -> None:
        keys, tags = zip(*messages, strict=True)
        block = pack(
            [b"%d" % (self.head + i) for i in range(len(messages))],
            keys=list(keys),
            tags=list(tags),
            headers=[PRIORITY[key] for key in keys],
        )
        self.log.append(with_place(block, self.head, self.now_ns))
        self.head += len(messages)
        self.keys += keys

    def readable(self, offset: int) -> Iterator[Block]:
        """Return the blocks that storage would answer with from `offset` on."""
        for block in self.log:
            if (
                block.next_offset > max(offset, self.start_offset)
                and block.first_offset not in self.gone
            ):
                yield block

    @rule(blocks=st.integers(1, 3))
    def feed(self, blocks: int) -> None:
        for _ in range(blocks):
            supply = self.channel.supply
            following = next(self.readable(supply.window_end), None)
            if following is not None:
                supply.offer(following, from_storage=True)
            elif supply.window_end < self.head:
                supply.step_over(self.head)

    @rule()
    def fetch(self) -> None:
        for offset in sorted(self.channel.supply.wanted):
            block = next(self.readable(offset), None)
            if block is None or block.first_offset > offset:
                self.channel.supply.lost(offset, self.head if block is None else block.first_offset)
            if block is not None:
                self.channel.supply.shelve(block)

    @rule(number=st.integers(0, 60), dice=st.integers(0, 5))
    def damage(self, number: int, dice: int) -> None:
        if dice == 0 and self.log:
            self.gone.add(self.log[number % len(self.log)].first_offset)

    @rule(blocks=st.integers(1, 2), dice=st.integers(0, 5))
    def drop_oldest(self, blocks: int, dice: int) -> None:
        if dice == 0:
            ends = [
                block.next_offset for block in self.log if block.next_offset > self.start_offset
            ][:blocks]
            self.start_offset = max([self.start_offset, *ends])
            self.channel.supply.drop_below(self.start_offset)

    # Consumers

    @rule(
        peer=st.sampled_from(PEERS),
        ready=st.integers(0, 8),
        rate=st.sampled_from([0, 0, 50]),
        reports=st.booleans(),
    )
    def join(self, peer: tuple[bytes, ...], ready: int, rate: int, *, reports: bool = True) -> None:
        self.channel.subscribe(
            Subscriber(
                peer,
                "",
                ready,
                60 * S,
                10_000 * S,
                self.now_ns,
                0,
                sample_rate=rate,
                reports=reports,
            )
        )

    @rule(peer=st.sampled_from(PEERS), how=st.sampled_from(Departure))
    def leave(self, peer: tuple[bytes, ...], how: Departure = Departure.LOST) -> None:
        self.channel.unsubscribe(peer, how)

    @precondition(lambda self: self.tokens)
    @rule(number=st.integers(0, 4), first=st.integers(0, 60), count=st.integers(0, 9))
    def note_begun(self, number: int, first: int, count: int) -> None:
        peer, token = self.tokens[-1 - number % len(self.tokens)]
        self.channel.note_begun(peer, token, ((first, count),) if count else (), self.now_ns)

    @rule(times=st.integers(1, 4))
    def deliver(self, times: int) -> None:
        self.channel.rest()
        for _ in range(times):
            pending = self.channel.next_delivery(self.now_ns, self.now_ns)
            if pending is None:
                return
            self.tokens.append((pending.peer, pending.token))
            bodies = [
                body
                for block, start, stop in pending.parts
                for body in block.body.values()[start:stop]
            ]
            for body, (offset, attempts) in zip(bodies, each(pending.runs), strict=True):
                assert body == b"%d" % offset
                assert attempts >= max(1, self.attempts[offset]), "attempts never fall"
                assert attempts <= self.most
                self.attempts[offset] = attempts

    @precondition(lambda self: self.tokens)
    @rule(number=st.integers(0, 9), first=st.integers(0, 60), count=st.integers(0, 9))
    def fin(self, number: int, first: int, count: int) -> None:
        peer, token = self.tokens[-1 - number % len(self.tokens)]
        self.channel.fin(peer, token, ((first, count),) if count else (), self.now_ns)

    @precondition(lambda self: self.tokens)
    @rule(
        number=st.integers(0, 4),
        first=st.integers(0, 60),
        count=st.integers(0, 9),
        delay=st.sampled_from([0, 0, 10_000, BACKOFF, DEAD, UNBEGUN]),
        defer=st.booleans(),
    )
    def req(self, number: int, first: int, count: int, delay: int, *, defer: bool) -> None:
        peer, token = self.tokens[-1 - number % len(self.tokens)]
        ranges = ((first, count),) if count else ()
        self.channel.req(peer, token, ranges, delay, self.now_ns, "no good", defer=defer)

    # Time and seeks

    @rule(seconds=st.sampled_from([1, 11, 61]))
    def scan(self, seconds: int) -> None:
        self.now_ns += seconds * S
        self.channel.scan(self.now_ns, self.now_ns)

    @precondition(lambda self: self.channel.may_ask())
    @rule(limit=st.integers(1, 3))
    def due(self, limit: int) -> None:
        ordered = sorted(
            (row[2], start, row[0], row[1]) for start, row in self.rows.items() if row[2]
        )
        rows = [
            (start, count, attempts, due)
            for due, start, count, attempts in ordered
            if due <= self.now_ns
        ][:limit]
        self.channel.supply.came_due(
            rows, ordered[len(rows)][0] if len(ordered) > len(rows) else 0, self.now_ns
        )

    @rule()
    def bury(self) -> None:
        if not self.channel.supply.dying.out:
            self.channel.supply.next_dead()
        else:
            self.channel.supply.dead()

    @rule(most=st.sampled_from([0, 1, 2]), dice=st.integers(0, 5))
    def configure(self, most: int, dice: int) -> None:
        if dice == 0:
            old = self.settings
            self.settings = replace(old, max_attempts=most)
            self.channel.configure(self.settings)
            self.most = most or 1 << 30

    @rule(number=st.integers(0, 60), dice=st.integers(0, 9))
    def seek(self, number: int, dice: int) -> None:
        if dice == 0:
            self.channel.seek(self.start_offset + number % (self.head - self.start_offset + 1))
            self.attempts.clear()

    @rule(offsets=st.sets(st.integers(0, 60), min_size=1, max_size=4), dice=st.integers(0, 3))
    def skip(self, offsets: set[int], dice: int) -> None:
        ranges, deferred = ranges_of(offsets), self.channel.supply.deferred
        if dice or not deferred.is_settled() or deferred.is_on_way(ranges):
            return
        rows = [
            (start, *row)
            for start, row in self.rows.items()
            if row[2] and offsets.intersection(range(start, start + row[0]))
        ]
        if found := self.channel.unfinished(ranges, rows, self.head):
            self.channel.skip_messages(found, rows)
            assert self.channel.unfinished(ranges, [], self.head) == []

    # Commits and stops

    @precondition(lambda self: self.pending is None)
    @rule()
    def save(self) -> None:
        self.pending = self.channel.changes()
        self.expected = dict(self.watch.places)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def committed(self) -> None:
        self.store()
        self.channel.supply.committed()

    def store(self) -> None:
        changes, self.pending = self.pending, None
        assert changes is not None
        self.next_stored = changes.next_offset
        if changes.clear:
            self.rows = {start: row for start, row in self.rows.items() if not row[2]}
        for start in changes.holes_gone:
            self.rows.pop(start, None)
        for start, count, attempts, due_ns in changes.holes_put:
            self.rows[start] = (count, attempts, due_ns)
        kept = {
            offset: row[2] > 0
            for start, row in self.rows.items()
            for offset in range(start, start + row[0])
        }
        known = {
            offset: state is MessageState.DEFERRED
            for offset, state in self.expected.items()
            if offset < self.next_stored
        }
        assert kept == known, "the store has exactly what the channel knows"

    @rule(dice=st.integers(0, 3), written=st.booleans(), in_order=st.booleans())
    def end_and_begin(self, dice: int, written: bool, in_order: bool) -> None:
        """Stop cleanly with a last commit, or crash. After a crash, the commit in progress may be
        on disk or not.
        """
        if dice:
            return
        if in_order:
            if self.pending is not None:
                self.committed()
            self.channel.end()
            self.save()
            self.committed()
        elif self.pending is not None and written:
            self.store()
        self.live()

    # Sequences that rarely happen by chance

    @rule(steps=st.lists(st.sampled_from(TROUBLES), min_size=2, max_size=5))
    def trouble(self, steps: list[str]) -> None:
        for step in steps:
            getattr(self, step)()
            self.check_laws()

    def commit(self) -> None:
        if self.pending is None:
            self.save()
        self.committed()

    def all_come_back(self, delay: int = 0) -> None:
        self.feed(2)
        self.deliver(3)
        for peer, token in self.tokens:
            self.channel.req(peer, token, (), delay, self.now_ns, "no good")
        self.commit()
        self.commit()

    def go_out(self) -> None:
        self.deliver(3)

    def all_are_deferred(self) -> None:
        self.all_come_back(10_000)

    def all_are_rejected(self) -> None:
        self.all_come_back(DEAD)

    def one_attempt(self) -> None:
        self.configure(1, 0)

    def what_is_deferred_comes(self) -> None:
        self.scan(11)
        if self.channel.may_ask():
            self.due(3)

    def letters_begin(self) -> None:
        """Start to send dead letters. Blocks that have to be read are fetched first."""
        for _ in range(2):
            if not self.channel.supply.dying.out:
                self.channel.supply.next_dead()
                self.fetch()

    def letters_end(self) -> None:
        self.letters_begin()
        if self.channel.supply.dying.out:
            self.bury()

    def crash(self) -> None:
        self.end_and_begin(0, True, False)

    def what_is_old_goes(self) -> None:
        """Publish new messages and drop all older ones, so that the new messages can be delivered
        at once.
        """
        self.publish([(b"a", b"x"), (b"b", b"x")])
        self.feed(9)
        self.drop_oldest(1, 0)
        self.deliver(3)

    # Invariants

    @invariant()
    def check_laws(self) -> None:
        if self.lives:
            self.rows_are_apart()
            self.no_count_is_negative()
            self.one_of_a_key_is_out()

    def rows_are_apart(self) -> None:
        """No two rows of the store contain the same message."""
        held: set[int] = set()
        for start, row in self.rows.items():
            mine = set(range(start, start + row[0]))
            assert not held & mine
            held |= mine

    def no_count_is_negative(self) -> None:
        assert self.channel.supply.deferred.rows >= 0
        assert self.channel.supply.deferred.messages >= 0

    def one_of_a_key_is_out(self) -> None:
        """In an ordered channel, at most one message of a key is with a consumer or on its way to
        the dead letters.
        """
        if self.settings.ordered:
            out = [run for lease in self.channel._leases.values() for run in lease.runs]
            out += [death.run for death in self.channel.supply.dying.out]
            keys = [self.keys[offset] for offset, _ in each(tuple(out))]
            assert all(keys.count(key) <= 1 for key in {*keys} - {None}), "two of a key are out"

    def teardown(self) -> None:
        try:
            if self.lives:
                self.finish_all()
        finally:
            self.small.stop()

    def finish_all(self) -> None:
        for peer in PEERS:
            self.leave(peer)
        self.join((b"last",), 100, 0)
        for _ in range(300):
            if self.is_over():
                break
            self.channel.consumers[(b"last",)].seen_ns = self.now_ns
            self.feed(3)
            self.fetch()
            self.deliver(5)
            for owner, token in self.tokens:
                self.channel.fin(owner, token, (), self.now_ns)
            self.tokens.clear()
            self.bury()
            self.scan(61)
            if self.channel.may_ask():
                self.due(3)
            if self.pending is None:
                self.save()
            self.committed()
        places = {offset: state.value for offset, state in self.watch.places.items()}
        assert self.is_over(), (
            places,
            self.rows,
            self.next_stored,
            self.channel.supply.next_offset,
            self.head,
        )
        assert self.channel.statistics(self.head)["depth"] == 0

    def is_over(self) -> bool:
        nothing = not self.watch.places and self.channel.supply.next_offset >= self.head
        return nothing and not self.rows and self.next_stored >= self.head


def each(runs: tuple[Run, ...]) -> Iterator[tuple[int, int]]:
    return (
        (offset, attempts)
        for start, count, attempts in runs
        for offset in range(start, start + count)
    )


WRONG = (
    "all_come_back go_out what_is_old_goes",
    "all_come_back one_attempt go_out",
    "all_are_rejected letters_begin what_is_old_goes",
    "all_are_deferred one_attempt what_is_deferred_comes letters_end commit",
    "all_are_deferred crash one_attempt what_is_deferred_comes letters_end",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", WRONG)
def test_step_sequences_that_once_failed_break_no_law(steps: str, kind: str) -> None:
    one = WildChannel()
    one.begin(kind=kind, tags="", most=0, age=-1)
    try:
        one.trouble(steps.split())
    except BaseException:
        one.small.stop()
        raise
    one.teardown()


TestWild: Any = WildChannel.TestCase
TestWild.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
