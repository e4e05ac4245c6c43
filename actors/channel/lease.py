"""Leases: what a channel has delivered, its consumers, and the changes to commit. No I/O.

A delivery also carries the times at which its messages arrived in their topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, cast

from ...storage.state.channel_row import ChannelRow
from ...transport.block.block import Block
from ...transport.reports import ConsumerCounts, ConsumerFacts
from ...transport.units import NS_PER_S
from ...transport.wire.protocol import Range, Run, Save
from ..primitives.latency import LatencyWindow
from ..primitives.ranges import take, total
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
    counts: dict[int, int] = {}
    for start, count, _ in runs:
        time_ns = times.times_ns[bisect_right(times.starts, start) - 1]
        counts[time_ns] = counts.get(time_ns, 0) + count
    return counts


Peer = tuple[bytes, ...]
Hole = tuple[int, int, int, int]  # start, count, attempts, due_ns (0: not deferred)


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
    alone: bool = False  # a suspect, which the consumer must report before its handler begins


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
    # True if the consumer reports which messages its handlers have begun. Otherwise each message
    # counts as begun when it is sent.
    reports: bool = False
    session: int = 0  # its random number, by which it is known when it comes back
    attempt: int = 0  # the number of its Sub, which grows with each connection
    # True while suspects wait for this consumer: it gets nothing else, and them when it holds
    # nothing.
    sifts: bool = False
    # When its next probe is due, because it backs off; at or before now: the probe is under way.
    # 0: it does not back off.
    probe_ns: int = 0
    recalled_ns: int = 0  # when it was asked last to give messages back
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

    @property
    def look_ns(self) -> int:
        """The time of the scan that sees that the consumer is lost.

        It is a multiple of a fifth of a heartbeat, at most of a second, so that one scan looks at
        many channels.
        """
        step_ns = max(1, min(NS_PER_S, self.heartbeat_ns // 5))
        return -(-self.lost_ns // step_ns) * step_ns

    def counts(self) -> dict[str, int]:
        """Return the counters that only grow."""
        return {
            "message_count": self.message_count,
            "message_bytes": self.message_bytes,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
        }

    def statistics(self, now_ns: int) -> ConsumerFacts:
        return {
            "client_id": self.label,
            "ready_count": self.ready,
            "backoff_s": round(max(0, self.probe_ns - now_ns) / NS_PER_S, 1)
            if self.probe_ns
            else None,
            "in_flight_count": self.in_flight,
            **cast("ConsumerCounts", self.counts()),
            "connect_ts": self.connect_ts,
            "sample_rate": self.sample_rate,
            "sampled_count": self.sampled_count,
        }


class Departure(Enum):
    """The ways in which a consumer goes."""

    LEFT = "left"  # it said so
    LOST = "lost"  # its process or its link ended
    SENT_AWAY = "sent away"  # by the channel, so its messages use no attempt


@dataclass(slots=True)
class Begun:
    """Messages of one delivery that handlers began at the same report, and their lease."""

    runs: Sequence[Run]
    begun_ns: int
    due_ns: int  # the end of the lease


@dataclass(slots=True)
class Lease:
    """The unanswered messages of one delivery.

    `held` are the messages that no handler has begun, as far as the consumer has reported. They
    belong to the consumer as long as its link lasts. `begun` are the others, each group with a
    deadline. The runs have the number of this delivery.
    """

    consumer: Subscriber
    held: Sequence[Run]
    sent_ns: int
    times: Times
    size: int = 0  # approximate bytes
    apart: bool = False  # these are suspects
    begun: list[Begun] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """All unanswered messages, ascending."""
        if not self.begun:
            return list(self.held)
        if len(self.begun) == 1 and not self.held:
            return list(self.begun[0].runs)
        return sorted([*self.held, *(run for group in self.begun for run in group.runs)])

    @property
    def rows(self) -> int:
        return len(self.held) + sum(len(group.runs) for group in self.begun)

    def used(self) -> Iterator[Run]:
        """Yield the runs with the number of attempts that they have used."""
        for start, count, attempts in self.held:
            yield start, count, attempts - 1
        for group in self.begun:
            yield from group.runs

    def count_begun(self) -> int:
        return sum(total(group.runs) for group in self.begun)

    def begin(self, ranges: Sequence[Range], now_ns: int) -> Sequence[Range]:
        """Note that handlers have begun these messages. Return the ranges that are not held."""
        taken, self.held, refused = take(self.held, ranges)
        if taken:
            self.begun.append(Begun(taken, now_ns, now_ns + self.consumer.timeout_ns))
        return refused

    def answer(self, ranges: Sequence[Range]) -> tuple[list[Run], Sequence[Range]]:
        """Remove answered messages. Return their runs, and the ranges that are not unanswered.

        An answer may be faster than the report that its message was begun.
        """
        if not ranges:
            taken = self.runs
            self.held, self.begun = [], []
            return taken, []
        taken = []
        for group in self.begun:
            if not ranges:
                break
            part, group.runs, ranges = take(group.runs, ranges)
            taken += part
        if ranges:
            part, self.held, ranges = take(self.held, ranges)
            taken += part
        self.begun = [group for group in self.begun if group.runs]
        return sorted(taken), ranges

    def extend(self, ranges: Sequence[Range], end_ns: int, hold_ns: int) -> None:
        """Extend the lease of these begun messages, or of all of them if there are no ranges.

        It ends at `end_ns`, or `hold_ns` after the messages were begun if that is not 0.
        """
        groups: list[Begun] = []
        left: Sequence[Range] = ranges
        for group in self.begun:
            if ranges and not left:
                groups.append(group)
                continue
            taken, others, left = take(group.runs, left)
            if others:
                groups.append(Begun(others, group.begun_ns, group.due_ns))
            if taken:
                last_ns = min(end_ns, group.begun_ns + hold_ns) if hold_ns else end_ns
                groups.append(Begun(taken, group.begun_ns, last_ns))
        self.begun = groups

    def expire(self, now_ns: int) -> list[Run]:
        """Remove and return the messages whose lease has ended."""
        over = [run for group in self.begun if group.due_ns <= now_ns for run in group.runs]
        self.begun = [group for group in self.begun if group.due_ns > now_ns]
        return sorted(over)

    def next_due(self) -> int | None:
        """Return the earliest end of a lease, or None if no message is begun."""
        return min((group.due_ns for group in self.begun), default=None)
