"""How fast counters grow: a second, over the last minute. Pure.

A few samples are kept, one each few seconds; between two of them a counter is taken to have grown evenly. While nothing changes the newest
sample is moved instead of a new one being kept, so what is idle keeps two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_S: Final = 1_000_000_000
WINDOW_NS: Final = 60 * _S
RECENT_NS: Final = 10 * _S  # for what depends on how it goes now: a burst half a minute ago says nothing about the time to drain
SAMPLE_NS: Final = 5 * _S
SHORTEST_NS: Final = 1 * _S  # what began just now is taken to have begun a second ago

Counts = tuple[int, ...]


class RateMeter:
    """Made when counting begins; the names it is told must always be the same."""

    __slots__ = ("_samples",)

    def __init__(self, now_ns: int, counts: Mapping[str, int]) -> None:
        self._samples: list[tuple[int, Counts]] = [(now_ns, tuple(counts.values()))]

    def note(self, now_ns: int, counts: Mapping[str, int]) -> None:
        """With each pulse: about once a second, and seldom where nothing happens. A change is told within a second or two."""
        samples, now = self._samples, tuple(counts.values())
        while len(samples) > 1 and samples[1][0] <= now_ns - WINDOW_NS:
            del samples[0]
        last_ns, last = samples[-1]
        if now != last and now_ns - last_ns > SAMPLE_NS:  # it was idle until a moment ago
            samples.append((now_ns - SAMPLE_NS, last))
        elif len(samples) > 1 and (now_ns - samples[-2][0] < SAMPLE_NS or now == last == samples[-2][1]):
            del samples[-1]
        samples.append((now_ns, now))

    def rates(self, now_ns: int, counts: Mapping[str, int], window_ns: int = WINDOW_NS) -> dict[str, float]:
        """Note the counts, and return the rates of those that grew within the window, by name."""
        self.note(now_ns, counts)
        now = tuple(counts.values())
        if now == self._samples[0][1]:
            return {}
        begin_ns = max(now_ns - window_ns, self._samples[0][0])
        begin = self._at(begin_ns, now_ns, now)
        passed_s = max(now_ns - begin_ns, SHORTEST_NS) / _S
        found = zip(counts, now, begin, strict=True)
        return {name: round((count - start) / passed_s, 3) for name, count, start in found if count > start}

    def _at(self, time_ns: int, now_ns: int, now: Counts) -> tuple[float, ...]:
        """The counts at a time between the first sample and now."""
        samples = [*self._samples, (now_ns, now)]
        number = next((number for number in range(len(samples) - 1, 0, -1) if samples[number - 1][0] <= time_ns), 1)
        (before_ns, before), (after_ns, after) = samples[number - 1], samples[number]
        share = min((time_ns - before_ns) / max(after_ns - before_ns, 1), 1.0)
        return tuple(a + (b - a) * share for a, b in zip(before, after, strict=True))
