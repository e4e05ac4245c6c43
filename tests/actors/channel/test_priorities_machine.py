"""Test of a channel with priorities against the model of all channels, with two more invariants.

What is sent next has the highest priority of all messages that the cursor has passed, unless its
level has had its share. The rows of parked messages are bounded. This also holds after crashes at
any point.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.actors.channel.test_delivery_machine import PEERS, SMALL, WAITS, DeliveryMachine
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.priorities import PrioritySupply
from zsq.transport.block.block import pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.codec import pack_headers

LEVELS = 3
ROWS_MAX = 6
PRIORITIES = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=6)
BOUNDS = SMALL | {"PARKED_ROWS_MAX": ROWS_MAX, "PARKED_KEPT": 4, "ORDERED_ALONE": 4}


class PriorityMachine(DeliveryMachine):
    small_options = BOUNDS

    def start(self) -> None:
        super().start()
        rows = [(start, *row, 0) for start, row in self.stored.items()]
        dues = [row[2] for row in self.kept.values()]
        counts = [row[0] for row in self.kept.values()]
        deferred = Deferred(len(counts), sum(counts), min(dues, default=0))
        found = ChannelSettings(priorities=LEVELS)
        self.channel = ChannelCore(
            self.lives, self.stored_next, rows, {}, paused=False, deferred=deferred, settings=found
        )
        assert isinstance(self.channel.supply, PrioritySupply)
        self.channel.go_on((), 0, self.emptied)

    @initialize(
        blocks=st.lists(PRIORITIES, min_size=2, max_size=6),
        ready=st.integers(2, 12),
    )
    def begin(self, blocks: list[list[int]], ready: int) -> None:
        for priorities in blocks:
            self.publish(priorities)
        for peer in PEERS[:2]:
            self.subscribe(peer, ready)
        self.serve(2)

    @precondition(lambda self: self.head < 40)
    @rule(priorities=PRIORITIES)
    def publish(self, priorities: list[int]) -> None:
        bodies = [b"%d" % (self.head + i) for i in range(len(priorities))]
        headers = [pack_headers({"zsq-priority": one} if one else {}) for one in priorities]
        self.log.append(with_place(pack(bodies, headers=headers), self.head, 0))
        self.states += [WAITS] * len(priorities)
        self.attempts += [0] * len(priorities)

    @invariant()
    def rows_are_bounded(self) -> None:
        supply = self.channel.supply
        assert isinstance(supply, PrioritySupply)
        block_max = 6  # a block is parked whole if its first message still has room
        assert supply._rows() <= ROWS_MAX + block_max

    @invariant()
    def each_parked_message_waits(self) -> None:
        supply = self.channel.supply
        assert isinstance(supply, PrioritySupply)
        for start, count, _ in (*supply._piles.runs(), *supply._unsorted):
            assert self.states[start : start + count] == [WAITS] * count


PriorityMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestPriorities = PriorityMachine.TestCase
