"""Measurements of a channel: its latencies, and the rates of its consumers. No I/O.

Latency is the wall-clock time from the arrival of a message in the topic to its finish. The arrival
is the time of its block. For a delayed message it is the time at which the message became due. The
cost depends on the number of answers and blocks and not on the number of messages: all messages of
one block that one answer finishes took the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...transport.reports import ConsumerReport
from ...transport.wire.protocol import Run
from ..primitives.latency import LatencyWindow, bin_of, merged
from ..primitives.rates import RECENT_NS, SAMPLE_NS, RateMeter
from ..runtime.pulses import ChannelDetails
from .lease import Subscriber, Times, by_time


class Measurements:
    """The rates and latencies of one channel.

    They read the channel's `counters` and never change them.
    """

    def __init__(self, counters: Mapping[str, int]) -> None:
        self._counters = counters
        self._meter: RateMeter | None = None
        self._latency = LatencyWindow()
        self._sampled_ns = 0

    def finished(
        self, consumer: Subscriber, times: Times, runs: Sequence[Run], wall_ns: int
    ) -> None:
        """Note that these messages of one delivery were finished just now."""
        for time_ns, messages in by_time(times, runs).items():
            key = bin_of(wall_ns - time_ns)
            self._latency.add_bin(key, messages, wall_ns)
            if consumer.latency is not None:
                consumer.latency.add_bin(key, messages, wall_ns)

    def sample(self, consumers: Iterable[Subscriber], now_ns: int, wall_ns: int) -> None:
        """Record the counters for the rates and drop old latencies.

        This is called with each pulse, from the start of the channel on.
        """
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
        """Return the rates of the counters that grew within the last minute."""
        return self._meter.rates(now_ns, self._counters) if self._meter is not None else {}

    def rates_recent(self, now_ns: int) -> dict[str, float]:
        """Return the rates of the counters that grew within the last ten seconds."""
        return (
            self._meter.rates(now_ns, self._counters, RECENT_NS) if self._meter is not None else {}
        )

    def latency(self, wall_ns: int) -> tuple[int, ...]:
        """Return the latencies of recently finished messages, see `LatencyWindow.recent`."""
        return self._latency.recent(wall_ns)

    def details(self, consumers: Iterable[Subscriber], now_ns: int, wall_ns: int) -> ChannelDetails:
        """Return the reports on consumers and the latencies.

        They are computed only on request, because this takes some work.
        """
        bins = self._latency.bins(wall_ns)
        clients: list[ConsumerReport] = [
            {
                **consumer.statistics(now_ns),
                "rates": consumer.meter.rates(now_ns, consumer.counts()),
                "e2e_processing_latency": merged([consumer.latency.bins(wall_ns)])
                if consumer.latency is not None
                else None,
            }
            for consumer in consumers
        ]
        return {"clients": clients, "latency_bins": bins, "e2e_processing_latency": merged([bins])}
