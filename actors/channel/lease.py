"""Leases: what a channel has delivered, its consumers, and the changes to commit. No I/O.

A delivery also carries the times at which its messages arrived in their topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from ...storage.state.channel_row import ChannelRow
from ...transport.block.block import Block
from ...transport.reports import ConsumerCounts, ConsumerFacts
from ...transport.wire.protocol import Run, Save
from ..primitives.latency import LatencyWindow
from ..primitives.ranges import total
from ..primitives.rates import RateMeter
from ..settings import options


class Times(NamedTuple):
    """The arrival times of the messages of a delivery.

    Each time applies from its offset up to the next offset in `starts`.
    """

    starts: Sequence[int]
    times_ns: Sequence[int]


def times_of(parts: Sequence[tuple[Block, int, int]]) -> Times:
    """Return the arrival times of the parts of a delivery."""
    if len(parts) == 1:
        block, start, _ = parts[0]
        return Times((block.first_offset + start,), (block.header.time_ns,))
    rows = sorted((block.first_offset + start, block.header.time_ns) for block, start, _ in parts)
    return Times([row[0] for row in rows], [row[1] for row in rows])


def by_time(times: Times, runs: Sequence[Run]) -> dict[int, int]:
    """Return how many of these messages arrived at each time."""
    if len(times.starts) == 1:
        return {times.times_ns[0]: total(runs)} if runs else {}
    found: dict[int, int] = {}
    for start, count, _ in runs:
        time_ns = times.times_ns[bisect_right(times.starts, start) - 1]
        found[time_ns] = found.get(time_ns, 0) + count
    return found


Peer = tuple[bytes, ...]
Hole = tuple[int, int, int, int]  # start, count, attempts, due_ns (0: not deferred)


def renamed(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of a row under their present names.

    Version 0.1.0 stored deliveries as `message_count`, NSQ's name for incoming messages.
    """
    found = dict(counters)
    deliveries = found.pop("message_count", 0)
    return {"delivery_count": deliveries, **found}


class OutgoingDelivery(NamedTuple):
    """A delivery that the actor must send to a consumer.

    `block` contains the messages. It is made from `parts` of blocks.
    """

    peer: Peer
    token: int
    runs: tuple[Run, ...]
    parts: list[tuple[Block, int, int]]
    block: Block
    timeout_ns: int


class Changes(NamedTuple):
    """The changes to commit: the cursor, rows to write, and starts of rows to remove.

    If `clear` is True, all deferred rows are removed first.
    """

    next_offset: int
    holes_put: tuple[Hole, ...]
    holes_gone: tuple[int, ...]
    clear: bool = False


def save_pages(request: int, channel: str, row: ChannelRow, changes: Changes) -> list[Save]:
    """Return the messages of one commit, split so that each frame stays small.

    In the last message, `more` is False. The storage replies to that message.
    """
    puts, gones, size = changes.holes_put, changes.holes_gone, options.SAVE_ROWS_MAX
    pages = [slice(at, at + size) for at in range(0, max(len(puts), len(gones), 1), size)]
    data = row.encode()
    return [
        Save(request, channel, data, puts[page], gones[page], changes.clear, page is not pages[-1])
        for page in pages
    ]


@dataclass(slots=True)
class Subscriber:
    peer: Peer
    label: str
    ready: int
    timeout_ns: int
    heartbeat_ns: int
    seen_ns: int
    connect_ts: int
    in_flight: int = 0
    bytes_out: int = 0  # bytes of deliveries that are not fully answered
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_bytes: int = 0
    again_last: bool = False
    sample_rate: int = 0  # in percent; 0 means all messages
    sampled_count: int = 0  # messages left out of the sample
    served: int = 0  # decides the consumer's turn, see `Turns` in core.py
    tokens: set[int] = field(default_factory=set)
    # None if the channel had many consumers when this one subscribed.
    latency: LatencyWindow | None = None
    meter: RateMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = RateMeter(self.seen_ns, self.counts())

    @property
    def lost_ns(self) -> int:
        """The time at which the consumer counts as lost.

        This is two heartbeats and 1 ns after its last message.
        """
        return self.seen_ns + 2 * self.heartbeat_ns + 1

    def counts(self) -> dict[str, int]:
        """Return the counters that only grow."""
        return {
            "message_count": self.message_count,
            "message_bytes": self.message_bytes,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
        }

    def statistics(self) -> ConsumerFacts:
        return {
            "client_id": self.label,
            "ready_count": self.ready,
            "in_flight_count": self.in_flight,
            **cast("ConsumerCounts", self.counts()),
            "connect_ts": self.connect_ts,
            "sample_rate": self.sample_rate,
            "sampled_count": self.sampled_count,
        }


@dataclass(slots=True)
class Lease:
    consumer: Subscriber
    runs: Sequence[Run]
    sent_ns: int
    times: Times
    size: int = 0  # approximate bytes
