"""Rates: the growth of counters per second, over the last minute. No I/O.

A few samples are kept, one every few seconds. Between two samples, a counter is assumed to grow
evenly. While nothing changes, the newest sample is moved and no new one is kept. So an idle meter
keeps two samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...transport.units import NS_PER_S

WINDOW_NS: Final = 60 * NS_PER_S
# The window for estimates of the time to drain a backlog. An older burst would distort them.
RECENT_NS: Final = 10 * NS_PER_S
SAMPLE_NS: Final = 5 * NS_PER_S
SHORTEST_NS: Final = 1 * NS_PER_S  # shorter periods count as one second

Counts = tuple[int, ...]


class RateMeter:
    """The samples of some counters.

    Create the meter when counting begins. All calls must pass the same names.
    """

    __slots__ = ("_samples",)

    def __init__(self, now_ns: int, counts: Mapping[str, int]) -> None:
        self._samples: list[tuple[int, Counts]] = [(now_ns, tuple(counts.values()))]

    def note(self, now_ns: int, counts: Mapping[str, int]) -> None:
        """Take a sample. This is called with each pulse: about once a second, less often while
        idle.

        A change is reported within a second or two.
        """
        samples, now = self._samples, tuple(counts.values())
        while len(samples) > 1 and samples[1][0] <= now_ns - WINDOW_NS:
            del samples[0]
        last_ns, last = samples[-1]
        if now != last and now_ns - last_ns > SAMPLE_NS:  # the counters were idle until now
            samples.append((now_ns - SAMPLE_NS, last))
        elif len(samples) > 1 and (
            now_ns - samples[-2][0] < SAMPLE_NS or now == last == samples[-2][1]
        ):
            del samples[-1]
        samples.append((now_ns, now))

    def rates(
        self, now_ns: int, counts: Mapping[str, int], window_ns: int = WINDOW_NS
    ) -> dict[str, float]:
        """Note the counts, and return the rates of those that grew within the window, by name."""
        self.note(now_ns, counts)
        now = tuple(counts.values())
        if now == self._samples[0][1]:
            return {}
        begin_ns = max(now_ns - window_ns, self._samples[0][0])
        begin = self._at(begin_ns, now_ns, now)
        passed_s = max(now_ns - begin_ns, SHORTEST_NS) / NS_PER_S
        changes = zip(counts, now, begin, strict=True)
        return {
            name: round((count - start) / passed_s, 3)
            for name, count, start in changes
            if count > start
        }

    def _at(self, time_ns: int, now_ns: int, now: Counts) -> tuple[float, ...]:
        """Return the counts at a time between the first sample and now, interpolated."""
        samples = [*self._samples, (now_ns, now)]
        number = next(
            (
                number
                for number in range(len(samples) - 1, 0, -1)
                if samples[number - 1][0] <= time_ns
            ),
            1,
        )
        (before_ns, before), (after_ns, after) = samples[number - 1], samples[number]
        share = min((time_ns - before_ns) / max(after_ns - before_ns, 1), 1.0)
        return tuple(a + (b - a) * share for a, b in zip(before, after, strict=True))
