"""What a channel and its consumers measure of themselves beside plain counters: rates and latencies. Pure.

Latency is from the moment a message came into the topic (its block's time; a delayed message's is when it became due) to its finish, by the
wall clock. Work is per answer and block, not per message: messages of one block that one answer finishes took the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..transport.protocol import Run
from .latency import LatencyWindow, bin_of, merged
from .lease import Consumer
from .rates import SAMPLE_NS, RateMeter
from .times import Times, by_time


class Figures:
    """One channel's. `counters` are the channel's, and read here only."""

    def __init__(self, counters: Mapping[str, int]) -> None:
        self._counters = counters
        self._meter: RateMeter | None = None
        self._latency = LatencyWindow()
        self._sampled_ns = 0

    def finished(self, consumer: Consumer, times: Times, runs: Sequence[Run], wall_ns: int) -> None:
        """These messages of one delivery were finished just now."""
        for time_ns, messages in by_time(times, runs).items():
            key = bin_of(wall_ns - time_ns)
            self._latency.add_bin(key, messages, wall_ns)
            if consumer.latency is not None:
                consumer.latency.add_bin(key, messages, wall_ns)

    def sample(self, consumers: Iterable[Consumer], now_ns: int, wall_ns: int) -> None:
        """With each pulse, from the start on: so rates know what was, and what is too old is given up."""
        if self._meter is None:
            self._meter = RateMeter(now_ns, self._counters)
        self._meter.note(now_ns, self._counters)
        self._latency.expire(wall_ns)
        if now_ns - self._sampled_ns < SAMPLE_NS:
            return
        self._sampled_ns = now_ns
        for consumer in consumers:
            consumer.meter.note(now_ns, consumer.counts())
            if consumer.latency is not None:
                consumer.latency.expire(wall_ns)

    def rates(self, now_ns: int) -> dict[str, float]:
        """Of the counters that grew within the last minute."""
        return self._meter.rates(now_ns, self._counters) if self._meter is not None else {}

    def latency(self, wall_ns: int) -> tuple[int, ...]:
        """Of what was finished lately, see `LatencyWindow.recent`."""
        return self._latency.recent(wall_ns)

    def details(self, consumers: Iterable[Consumer], now_ns: int, wall_ns: int) -> dict[str, Any]:
        """What takes some work, for who asks."""
        bins = self._latency.bins(wall_ns)
        clients = [
            consumer.statistics()
            | {
                "rates": consumer.meter.rates(now_ns, consumer.counts()),
                "e2e_processing_latency": merged([consumer.latency.bins(wall_ns)]) if consumer.latency is not None else None,
            }
            for consumer in consumers
        ]
        return {"clients": clients, "latency_bins": bins, "e2e_processing_latency": merged([bins])}
