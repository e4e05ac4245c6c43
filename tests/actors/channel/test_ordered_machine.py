"""Test of an ordered channel against the model of all channels, with one more invariant: of each
key, only the first unfinished message may be in flight.

All earlier messages of the key must be finished, so no message overtakes another, and no two
messages of a key are in flight at a time. This also holds after crashes at any point.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.actors.channel.test_delivery_machine import (
    FINISHED,
    LEASED,
    PEERS,
    RANGES,
    SMALL,
    WAITS,
    DeliveryMachine,
)
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.ordered import OrderedSupply
from zsq.transport.block.block import pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.protocol import DEAD

DYING = "dying"
KEYS = [b"a", b"b", b"c", None]
ORDERED = SMALL | {
    "ORDERED_PARKED_MAX": 9,
    "ORDERED_AHEAD": 4,
    "ORDERED_BUSY": 2,
    "ORDERED_ALONE": 4,
    "ORDERED_MISSED_MAX": 2,
}
ORDERED |= {"HOLE_ROWS_MAX": 20}


class OrderedMachine(DeliveryMachine):
    small_options = ORDERED

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        super().__init__()

    def start(self) -> None:
        self.lives += 1
        rows = [(start, *row, 0) for start, row in self.stored.items()] + [
            (start, *row) for start, row in self.kept.items()
        ]
        counts, dues = (
            [row[0] for row in self.kept.values()],
            [row[2] for row in self.kept.values()],
        )
        deferred = Deferred(len(counts), sum(counts), min(dues, default=0))
        found = ChannelSettings(ordered=True)
        self.channel = ChannelCore(
            self.lives, self.stored_next, rows, {}, paused=False, deferred=deferred, settings=found
        )
        assert isinstance(self.channel.supply, OrderedSupply)
        self.channel.go_on((), 0, self.emptied)
        self.leases.clear()
        self.seen.clear()
        self.sent = set()
        self.pending = None

    @initialize(
        blocks=st.lists(
            st.lists(st.sampled_from(KEYS), min_size=1, max_size=6), min_size=2, max_size=6
        ),
        ready=st.integers(2, 12),
    )
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
            unfinished = [
                state
                for state, its in zip(self.states, self.keys, strict=True)
                if its == key and state != FINISHED
            ]
            assert set(unfinished[1:]) <= {WAITS}

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.channel.supply.statistics(self.head)["parked_count"] <= max(
            9, sum(row[0] for row in self.stored.values())
        )


class TroubledMachine(OrderedMachine):
    """An ordered channel whose oldest messages are dropped, and whose messages can become dead
    letters.
    """

    def __init__(self) -> None:
        self.low = 0
        super().__init__()

    def start(self) -> None:
        super().start()
        self.channel.supply.drop_below(self.low)
        # No dead letter is on its way after a start, so those below the start are dropped as well.
        self.give_up({WAITS, DYING})

    def give_up(self, given_up: set[str]) -> None:
        for offset in range(min(self.low, self.head)):
            if self.states[offset] in given_up:
                self.states[offset] = FINISHED

    @precondition(lambda self: self.pending is None)
    @rule(more=st.integers(1, 4), dice=st.integers(0, 3))
    def drop(self, more: int, dice: int) -> None:
        if dice != 2:
            return
        self.low = min(self.low + more, self.head)
        out = {
            offset
            for death in self.channel.supply.dying.out
            for offset in range(death.run[0], sum(death.run[:2]))
        }
        self.channel.supply.drop_below(self.low)
        self.states[: self.low] = [
            FINISHED if state == DYING and at not in out else state
            for at, state in enumerate(self.states[: self.low])
        ]
        self.save()

    @precondition(lambda self: self.pending is None)
    @rule()
    def save(self) -> None:
        """Give up waiting messages below the start only when rows are saved, because consumers can
        return messages at any time.
        """
        self.give_up({WAITS})
        super().save()

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 9), ranges=RANGES)
    def reject(self, number: int, ranges: tuple[tuple[int, int], ...]) -> None:
        token = list(self.leases)[number % len(self.leases)]
        peer = self.leases[token][0]
        for offset in self.answered(
            peer, token, ranges, self.channel.req(peer, token, ranges, DEAD, self.now_ns)
        ):
            self.states[offset] = DYING

    @precondition(lambda self: not self.channel.supply.dying.out)
    @rule()
    def take_dead(self) -> None:
        for dead in self.channel.supply.next_dead():
            start, count, _ = dead.death.run
            assert self.states[start : start + count] == [DYING] * count

    @precondition(lambda self: self.channel.supply.dying.out)
    @rule()
    def bury(self) -> None:
        for death in self.channel.supply.dying.out:
            start, count, _ = death.run
            self.states[start : start + count] = [FINISHED] * count
        self.channel.supply.dead()

    def end(self) -> None:
        self.pause(0)
        for _ in range(20):
            self.fetch(9)
            if self.channel.supply.dying.out:
                self.bury()
            self.take_dead()
            if not {DYING} & set(self.states):
                break
            if self.pending is not None:
                self.committed()
            self.subscribe((b"last",), 100)
            self.deliver(1)
        super().end()

    @invariant()
    def one_of_a_key_is_out(self) -> None:
        for key in KEYS[:-1]:
            # No slot waits for these messages.
            gone = [
                state not in (LEASED, DYING) and at < self.low
                for at, state in enumerate(self.states)
            ]
            three = zip(self.states, self.keys, gone, strict=True)
            unfinished = [
                state
                for state, its, is_gone in three
                if its == key and state != FINISHED and not is_gone
            ]
            assert set(unfinished[1:]) <= {WAITS}


for machine in (OrderedMachine, TroubledMachine):
    machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOrdered = OrderedMachine.TestCase
TestTroubled = TroubledMachine.TestCase
