"""Test of a fair channel against the model of all channels, with limits of its keys.

No key has more messages in flight than its limit allows, each message that is parked waits, and the
rows are bounded. This also holds after crashes at any point, and while the channel becomes a plain
one and a fair one again.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.actors.channel.test_delivery_machine import PEERS, SMALL, WAITS, DeliveryMachine
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.fair import FairSupply
from zsq.transport.block.block import pack, with_place
from zsq.transport.settings import ChannelSettings

ROWS_MAX = 6
IN_FLIGHT_MAX = 2
KEYS = st.lists(st.sampled_from([b"a", b"a", b"b", b"c", None]), min_size=1, max_size=6)
BOUNDS = SMALL | {
    "PARKED_ROWS_MAX": ROWS_MAX, "PARKED_KEPT": 4, "PARKED_ALONE": 4, "FAIR_CACHE_BYTES_MAX": 400, "FAIR_LOOSE_WEIGHT": 2,
}  # fmt: skip
FAIR = ChannelSettings(
    fair_by="key", fair_weights="b=3", max_in_flight_per_key=IN_FLIGHT_MAX, max_rate_per_key=1e6
)


class FairMachine(DeliveryMachine):
    small_options = BOUNDS

    def start(self) -> None:
        super().start()
        rows = [(start, *row, 0) for start, row in self.stored.items()]
        dues = [row[2] for row in self.kept.values()]
        counts = [row[0] for row in self.kept.values()]
        deferred = Deferred(len(counts), sum(counts), min(dues, default=0))
        self.channel = ChannelCore(
            self.lives, self.stored_next, rows, {}, paused=False, deferred=deferred, settings=FAIR
        )
        self.was_plain = False
        self.channel.go_on((), 0, self.emptied)

    @initialize(blocks=st.lists(KEYS, min_size=2, max_size=6), ready=st.integers(2, 12))
    def begin(self, blocks: list[list[bytes | None]], ready: int) -> None:
        for keys in blocks:
            self.publish(keys)
        for peer in PEERS[:2]:
            self.subscribe(peer, ready)
        self.serve(2)

    @precondition(lambda self: self.head < 40)
    @rule(keys=KEYS)
    def publish(self, keys: list[bytes | None]) -> None:
        bodies = [b"%d" % (self.head + i) for i in range(len(keys))]
        self.log.append(with_place(pack(bodies, keys=keys), self.head, 0))
        self.states += [WAITS] * len(keys)
        self.attempts += [0] * len(keys)

    @rule(fair=st.booleans())
    def configure(self, fair: bool) -> None:
        self.channel.configure(FAIR if fair else ChannelSettings())
        self.was_plain = self.was_plain or not fair

    def key_of(self, offset: int) -> bytes | None:
        (block,) = (one for one in self.log if one.first_offset <= offset < one.next_offset)
        column = block.key
        return None if column is None else column.value(offset - block.first_offset)

    @invariant()
    def no_key_has_more_in_flight_than_its_limit(self) -> None:
        if self.was_plain:  # what was in flight when the limit was set does not count
            return
        out = [run for run, *_ in self.channel.out(0)]
        offsets = (start + i for start, count, _ in out for i in range(count))
        keys = Counter(map(self.key_of, offsets))
        assert all(count <= IN_FLIGHT_MAX for key, count in keys.items() if key is not None)

    @invariant()
    def each_parked_message_waits(self) -> None:
        supply = self.channel.supply
        if isinstance(supply, FairSupply):
            for start, count, _ in (*supply._piles.runs(), *supply._unsorted):
                assert self.states[start : start + count] == [WAITS] * count
            assert supply._rows() <= ROWS_MAX + 6 or self.was_plain


FairMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestFair = FairMachine.TestCase
