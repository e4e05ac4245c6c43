"""An ordered channel against the same model as any other, and one law more: of a key, only the first message that is not finished is out.

So whatever comes before it is finished: nothing overtakes, and no two of a key are out at a time; over crashes at any point, too.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.actors.test_delivery_machine import FINISHED, PEERS, SMALL, WAITS, DeliveryMachine
from zsq.actors.channel_settings import ChannelSettings
from zsq.actors.deferred import Deferred
from zsq.actors.delivery import Delivery
from zsq.actors.ordered import OrderedSupply
from zsq.transport.block import pack, with_place

KEYS = [b"a", b"b", b"c", None]
ORDERED = SMALL | {"ORDERED_PARKED_MAX": 9, "ORDERED_AHEAD": 4, "ORDERED_BUSY": 2, "ORDERED_ALONE": 4, "ORDERED_MISSED_MAX": 2}
ORDERED |= {"HOLE_ROWS_MAX": 20}


class OrderedMachine(DeliveryMachine):
    small_options = ORDERED

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        super().__init__()

    def start(self) -> None:
        self.lives += 1
        rows = [(start, *row, 0) for start, row in self.stored.items()] + [(start, *row) for start, row in self.kept.items()]
        counts, dues = [row[0] for row in self.kept.values()], [row[2] for row in self.kept.values()]
        deferred = Deferred(len(counts), sum(counts), min(dues, default=0))
        found = ChannelSettings(ordered=True)
        self.channel = Delivery(self.lives, self.stored_next, rows, {}, paused=False, deferred=deferred, settings=found)
        assert isinstance(self.channel.supply, OrderedSupply)
        self.leases.clear()
        self.seen.clear()
        self.sent = set()
        self.pending = None

    @initialize(blocks=st.lists(st.lists(st.sampled_from(KEYS), min_size=1, max_size=6), min_size=2, max_size=6), ready=st.integers(2, 12))
    def begin(self, blocks: list[list[bytes | None]], ready: int) -> None:
        for keys in blocks:
            self.publish(keys)
        for peer in PEERS[:2]:
            self.subscribe(peer, ready)
        self.serve(2)

    @precondition(lambda self: self.head < 40)
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def publish(self, keys: list[bytes | None]) -> None:
        bodies = [b"%d" % (self.head + i) for i in range(len(keys))]
        self.log.append(with_place(pack(bodies, keys=keys if any(keys) else None), self.head, 0))
        self.keys += keys
        self.states += [WAITS] * len(keys)
        self.attempts += [0] * len(keys)

    @rule(times=st.integers(1, 4))
    def deliver(self, times: int) -> None:
        for _ in range(times):
            super().deliver(1)
            self.one_of_a_key_is_out()

    @invariant()
    def one_of_a_key_is_out(self) -> None:
        for key in KEYS[:-1]:
            unfinished = [state for state, its in zip(self.states, self.keys, strict=True) if its == key and state != FINISHED]
            assert set(unfinished[1:]) <= {WAITS}

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.channel.supply.statistics(self.head)["parked_count"] <= max(9, sum(row[0] for row in self.stored.values()))


TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
