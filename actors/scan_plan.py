"""Which channels to scan next, and how many workers that takes. Pure; randomness comes in as a function.

NSQ's queueScanLoop: every 100 ms pick 20 channels at random, let the workers process what is due in each, and go round again at once
while more than 25% of them were dirty; every 5 s set the pool to a quarter of the channels, 1 to 4. With thousands of channels
an expiry then waits for luck. So each answer also carries the channel's next due time, and a channel tells when that
becomes earlier: the due ones are taken first, and random ones fill up as a safety net (a hint may have been lost).

Storages are among them, for their delayed messages: to the plan they are channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from . import options
from .in_flight import DeadlineHeap

_NS_PER_S: Final = 1_000_000_000


def pool_size(channels: int) -> int:
    """Workers for so many channels: a quarter of them, 1 to 4."""
    return min(options.SCAN_WORKERS_MAX, max(1, int(channels * options.SCAN_WORKER_SHARE)))


class ScanPlan:
    """The loop's memory: channels by key, their due times, how often each failed to answer."""

    def __init__(self) -> None:
        self._endpoints: dict[int, str] = {}
        self._order: list[int] = []
        self._due: DeadlineHeap[int] = DeadlineHeap()
        self._hinted: dict[int, int] = {}  # key -> due ns, told since it was chosen last
        self._missed: dict[int, tuple[int, int]] = {}  # key -> (times, since ns)

    def __len__(self) -> int:
        return len(self._order)

    def set_channels(self, channels: Iterable[tuple[int, str]]) -> None:
        """The channels there are now; a new one is due at once, so that what it recovered is looked at."""
        present = dict(channels)
        for key in self._endpoints.keys() - present.keys():
            self._due.remove(key)
            self._missed.pop(key, None)
            self._hinted.pop(key, None)
        for key in present.keys() - self._endpoints.keys():
            self._due.set(key, 0)
        self._endpoints = present
        self._order = list(present)

    def hint(self, key: int, next_due_ns: int) -> None:
        if key in self._endpoints:
            self._due.set(key, next_due_ns)
            self._hinted[key] = next_due_ns

    def select(self, now_ns: int, pick: Callable[[int], int]) -> list[tuple[int, str]]:
        """The next round: due channels first, then random ones, 20 in all. `pick(n)` gives a number below n."""
        chosen: dict[int, str] = {}
        while len(chosen) < options.SCAN_SELECTION and (key := self._due.pop_due(now_ns)) is not None:
            chosen[key] = self._endpoints[key]
        for _ in range(min(options.SCAN_SELECTION - len(chosen), len(self._order))):
            key = self._order[pick(len(self._order))]
            chosen.setdefault(key, self._endpoints[key])
        for key in chosen:
            self._hinted.pop(key, None)
        return list(chosen.items())

    def answered(self, results: Iterable[tuple[int, int, int]], now_ns: int) -> tuple[bool, list[int]]:
        """Take a round's results. Returns (go round again at once, channels found hung)."""
        dirty = 0
        count = 0
        hung = []
        for key, state, next_due_ns in results:
            count += 1
            if key not in self._endpoints:
                continue
            if state < 0:
                times, since_ns = self._missed.get(key, (0, now_ns))
                self._missed[key] = (times + 1, since_ns)
                if times + 1 >= options.SCAN_MISSED_MAX and now_ns - since_ns >= options.SCAN_HUNG_S * _NS_PER_S:
                    hung.append(key)
                    del self._missed[key]
                if key not in self._due:  # it was chosen because it was due, and may still be
                    self._due.set(key, now_ns + options.SCAN_ANSWER_MS * 1_000_000)
                continue
            self._missed.pop(key, None)
            dirty += state
            # A hint that came since may have overtaken this answer, which came by a worker: the earlier of the two.
            times_due = [due for due in (next_due_ns, self._hinted.pop(key, 0)) if due]
            if times_due:
                self._due.set(key, min(times_due))
            else:
                self._due.remove(key)
        return count > 0 and dirty > options.SCAN_DIRTY_SHARE * count, hung

    def wait_ms(self, now_ns: int) -> int:
        """Until the next round: the scan interval, less if a hint is due before that."""
        due = self._due.next_due()
        if due is None:
            return options.SCAN_INTERVAL_MS
        return max(1, min(options.SCAN_INTERVAL_MS, (due - now_ns) // 1_000_000 + 1))
