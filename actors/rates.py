"""How fast counters grow: a second, over the last minute. Pure.

A few samples are kept, one each few seconds; between two of them a counter is taken to have grown evenly. While nothing changes the newest
sample is moved instead of a new one being kept, so what is idle keeps two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

_S: Final = 1_000_000_000
WINDOW_NS: Final = 60 * _S
SAMPLE_NS: Final = 5 * _S
SHORTEST_NS: Final = 1 * _S  # what began just now is taken to have begun a second ago

Counts = tuple[int, ...]


class RateMeter:
    """Made when counting begins; the names it is told must always be the same."""

    __slots__ = ("_samples",)

    def __init__(self, now_ns: int, counts: Mapping[str, int]) -> None:
        self._samples: deque[tuple[int, Counts]] = deque([(now_ns, tuple(counts.values()))])

    def rates(self, now_ns: int, counts: Mapping[str, int]) -> dict[str, float]:
        """Of those that grew, by their names; to be called about once a second, asked for or not. Nothing else need be said to it."""
        now = tuple(counts.values())
        self._note(now_ns, now)
        begin = max(now_ns - WINDOW_NS, self._samples[0][0])
        before = self._at(begin)
        passed = max(now_ns - begin, SHORTEST_NS) / _S
        return {
            name: round((count - start) / passed, 3)
            for name, count, start in zip(counts, now, before, strict=True)
            if count > start
        }  # fmt: skip

    def _note(self, now_ns: int, counts: Counts) -> None:
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()
        if len(samples) > 1 and counts == samples[-1][1] == samples[-2][1]:
            samples[-1] = (now_ns, counts)
        elif now_ns - samples[-1][0] >= SAMPLE_NS:
            samples.append((now_ns, counts))

    def _at(self, time_ns: int) -> tuple[float, ...]:
        """The counts at that time, not before the first sample; after the last one they are its."""
        (first_ns, first) = self._samples[0]
        if len(self._samples) == 1 or time_ns <= first_ns:
            return first
        second_ns, second = self._samples[1]
        share = min((time_ns - first_ns) / (second_ns - first_ns), 1.0)
        return tuple(a + (b - a) * share for a, b in zip(first, second, strict=True))
