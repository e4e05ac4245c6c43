"""Harness for the core of a channel. Its methods advance the clock, publish blocks and commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from zsq.actors.channel.core import ChannelCore, half
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.dying import Dead, Dying
from zsq.actors.channel.lease import Changes, Hole, OutgoingDelivery, Subscriber
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings

S = 1_000_000_000
TIMEOUT_NS = 60 * S


class ChannelHarness:
    """The core of a channel with consumers. Its methods are the actions of a test."""

    def __init__(
        self, next_offset: int = 0, holes: Sequence[Hole] = (), random: Callable[[], float] = half, sampled: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        self.kept = {hole[0]: hole for hole in holes if hole[3]}  # the deferred rows of the store
        deferred = Deferred(
            len(self.kept),
            sum(hole[1] for hole in self.kept.values()),
            min((h[3] for h in self.kept.values()), default=0),
        )
        live = [hole for hole in holes if not hole[3]]
        self.channel = ChannelCore(
            5, next_offset, live, {"sampled_count": sampled}, False, deferred, ChannelSettings(**settings), "c", random
        )  # fmt: skip
        self.end = next_offset
        self.now_ns = 100 * S
        self.wall_ns = 5_000 * S

    @staticmethod
    def block_at(first_offset: int, count: int, size: int = 1) -> Block:
        return with_place(pack([b"x" * size] * count), first_offset, 7)

    def join(
        self,
        peer: tuple[bytes, ...],
        ready: int,
        heartbeat_ns: int = 3_600 * S,
        sample_rate: int = 0,
        *,
        reports: bool = False,
        timeout_ns: int = TIMEOUT_NS,
    ) -> None:
        consumer = Subscriber(
            peer,
            peer[0].decode(),
            ready,
            timeout_ns,
            heartbeat_ns,
            self.now_ns,
            0,
            sample_rate=sample_rate,
            reports=reports,
        )
        self.channel.subscribe(consumer)

    def come(self, *counts: int, size: int = 1) -> None:
        """Offer a block for each of `counts`, with that many messages, as the feed does."""
        for count in counts:
            assert self.channel.supply.offer(self.block_at(self.end, count, size))
            self.end += count

    def take_in(self, block: Block, age_s: float = 0.0) -> None:
        """Offer a block that was stored `age_s` seconds ago."""
        placed = with_place(block, self.end, self.wall_ns - int(age_s * S))
        assert self.channel.supply.offer(placed)
        self.end = placed.next_offset

    def send(self) -> list[OutgoingDelivery]:
        """Return all deliveries that can be made now."""
        sent = []
        while (pending := self.channel.next_delivery(self.now_ns, self.wall_ns)) is not None:
            assert sum(stop - start for _, start, stop in pending.parts) == sum(
                count for _, count, _ in pending.runs
            )
            sent.append(pending)
        return sent

    def send_one(self) -> OutgoingDelivery:
        (pending,) = self.send()
        return pending

    def commit(self) -> Changes:
        changes = self.channel.changes()
        if changes.clear:
            self.kept.clear()
        for hole in changes.holes_put:
            self.kept.pop(hole[0], None)
            if hole[3]:
                self.kept[hole[0]] = hole
        self.channel.supply.committed()
        return changes

    def scan(self, seconds: float = 0.0) -> bool:
        """Scan, and then ask the store for due rows if the channel may ask."""
        self.now_ns += int(seconds * S)
        self.wall_ns += int(seconds * S)
        found = self.channel.scan(self.now_ns, self.wall_ns)
        self.ask()
        return found

    def ask(self, limit: int = 1_000) -> int:
        """Ask the store for due rows. Return how many it returned."""
        if not self.channel.may_ask():
            return 0
        rows = sorted(
            (hole for hole in self.kept.values() if hole[3] <= self.wall_ns),
            key=lambda hole: hole[3],
        )[:limit]
        following = min((hole[3] for hole in self.kept.values() if hole not in rows), default=0)
        self.channel.supply.came_due(rows, following, self.wall_ns)
        return len(rows)

    def stats(self) -> tuple[int, int, int]:
        """Return (depth, in flight, deferred)."""
        found = self.channel.statistics(self.end)
        return found["depth"], found["in_flight_count"], found["deferred_count"]

    @staticmethod
    def told(
        pending_blocks: list[OutgoingDelivery],
    ) -> list[tuple[str, tuple[tuple[int, int, int], ...]]]:
        return [(pending.peer[0].decode(), pending.runs) for pending in pending_blocks]


class DyingChannelHarness(ChannelHarness):
    """A channel whose messages have `max_attempts` attempts."""

    def __init__(self, max_attempts: int, next_offset: int = 0, holes: Sequence[Hole] = ()) -> None:
        super().__init__(next_offset, holes, max_attempts=max_attempts, backoff_s=2)
        self.letters: list[Dead] = []

    @property
    def dying(self) -> Dying:
        return self.channel.supply.dying

    def post(self, absent: bool = False) -> list[tuple[tuple[int, int, int], str, str]]:
        """Return the next batch of dead letters."""
        self.letters = self.channel.supply.next_dead()
        if absent:
            for offset in sorted(self.channel.supply.wanted):
                self.channel.supply.shelve(self.block_at(offset // 4 * 4, 4))
            self.letters = self.letters or self.channel.supply.next_dead()
        for (run, _, _), (block, start, stop) in self.letters:
            assert (block.first_offset + start, stop - start) == run[:2]
        return [(death.run, death.reason, death.cause.error) for death, _ in self.letters]

    def tried(self, times: int) -> None:
        """Publish four messages and requeue them `times` times."""
        self.join((b"a",), 10)
        self.come(4)
        for _ in range(times):
            self.channel.req((b"a",), self.send_one().token, (), 0, self.wall_ns)
            self.commit()


@pytest.fixture
def dying_channel() -> type[DyingChannelHarness]:
    return DyingChannelHarness


@pytest.fixture
def harness() -> ChannelHarness:
    return ChannelHarness()
