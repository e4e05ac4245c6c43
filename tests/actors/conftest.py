"""A channel's logic on a desk: time, blocks and commits in its verbs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from zsq.actors.delivery import Delivery
from zsq.actors.lease import Changes, Consumer, Hole, Parcel
from zsq.transport.block import Block, pack, with_place

S = 1_000_000_000
TIMEOUT_NS = 60 * S


class Desk:
    """A channel with consumers, in the verbs of its trade."""

    def __init__(self, next_offset: int = 0, holes: Sequence[Hole] = ()) -> None:
        self.channel = Delivery(5, next_offset, holes, {}, paused=False)
        self.end = next_offset
        self.now_ns = 100 * S
        self.wall_ns = 5_000 * S

    @staticmethod
    def block_at(first_offset: int, count: int, size: int = 1) -> Block:
        return with_place(pack([b"x" * size] * count), first_offset, 7)

    def join(self, peer: tuple[bytes, ...], ready: int, heartbeat_ns: int = 3_600 * S) -> None:
        self.channel.subscribe(Consumer(peer, peer[0].decode(), ready, TIMEOUT_NS, heartbeat_ns, self.now_ns, 0))

    def come(self, *counts: int, size: int = 1) -> None:
        """Blocks of so many messages come from the feed."""
        for count in counts:
            assert self.channel.offer(self.block_at(self.end, count, size))
            self.end += count

    def send(self) -> list[Parcel]:
        """All that can be delivered now."""
        sent = []
        while (parcel := self.channel.next_parcel(self.now_ns)) is not None:
            assert sum(stop - start for _, start, stop in parcel.parts) == sum(count for _, count, _ in parcel.runs)
            sent.append(parcel)
        return sent

    def send_one(self) -> Parcel:
        (parcel,) = self.send()
        return parcel

    def commit(self) -> Changes:
        changes = self.channel.changes()
        self.channel.committed()
        return changes

    def scan(self, seconds: float = 0.0) -> bool:
        self.now_ns += int(seconds * S)
        self.wall_ns += int(seconds * S)
        return self.channel.scan(self.now_ns, self.wall_ns)

    def stats(self) -> tuple[int, int, int]:
        """(depth, in flight, deferred)."""
        found = self.channel.statistics(self.end)
        return found["depth"], found["in_flight_count"], found["deferred_count"]

    @staticmethod
    def told(parcels: list[Parcel]) -> list[tuple[str, tuple[tuple[int, int, int], ...]]]:
        return [(parcel.peer[0].decode(), parcel.runs) for parcel in parcels]


@pytest.fixture
def desk() -> Desk:
    return Desk()
