"""Which channels to scan next, and how many workers that takes. Pure; randomness comes in as a function.

NSQ's queueScanLoop: every 100 ms pick 20 channels at random, let the workers process what is due in each, and go round again at once
while more than 25% of them were dirty; every 5 s set the pool to a quarter of the channels, 1 to 4. With thousands of channels
an expiry then waits for luck. So each answer also carries the channel's next due time, and a channel tells when that
becomes earlier: the due ones are taken first, and random ones fill up as a safety net (a hint may have been lost).

Storages are among them, for their delayed messages: to the plan they are channels.

A channel's scan is in one of these states; nobody else waits for one that does not answer:

| State | It leaves the state when | And is due again |
|---|---|---|
| WAITING | it is due, or picked at random: ASKED | |
| ASKED: in no other round | it answers: WAITING | when it says, or a hint that came meanwhile |
| | the answer is lost with the worker: WAITING | now |
| | it misses the scan: SILENT | in 1, 2, 4, 4... s |
| SILENT: as WAITING, but never picked at random | it is due: ASKED, and if it answers, WAITING | |
| | a word of it comes: an answer, however late: WAITING | when it says, if that is earlier |

One that missed three scans, and for 10 s, is hung: said once, then counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ..primitives.deadlines import DeadlineHeap
from ..settings import options

_NS_PER_S: Final = 1_000_000_000
_BACKOFF_S: Final = (1, 2, 4)  # after the first missed scan, the second, each further one


def pool_size(channels: int) -> int:
    """Workers for so many channels: a quarter of them, 1 to 4."""
    return min(options.SCAN_WORKERS_MAX, max(1, int(channels * options.SCAN_WORKER_SHARE)))


class ScanPlan:
    """The loop's memory: channels by key, their due times, who is asked now, how often each failed to answer."""

    def __init__(self) -> None:
        self._endpoints: dict[int, str] = {}
        self._order: list[int] = []
        self._due: DeadlineHeap[int] = DeadlineHeap()  # of those that are not asked now
        self._asked: set[int] = set()
        self._hinted: dict[int, int] = {}  # key -> due ns, told since it was chosen last
        self._missed: dict[int, tuple[int, int]] = {}  # key -> (times, since ns)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: int) -> bool:
        return key in self._endpoints

    def set_channels(self, channels: Iterable[tuple[int, str]]) -> dict[int, str]:
        """The channels there are now; a new one is due at once, so that what it recovered is looked at. Returns those that are gone."""
        present = dict(channels)
        gone = {key: endpoint for key, endpoint in self._endpoints.items() if key not in present}
        for key in gone:
            self._due.remove(key)
            self._asked.discard(key)
            self._missed.pop(key, None)
            self._hinted.pop(key, None)
        for key in present.keys() - self._endpoints.keys():
            self._due.set(key, 0)
        self._endpoints = present
        self._order = list(present)
        return gone

    def hint(self, key: int, next_due_ns: int) -> None:
        """Of the channel itself: that is when it is due next."""
        if key not in self._endpoints:
            return
        self._hinted[key] = next_due_ns
        if key in self._missed:
            self._bring_forward(key, next_due_ns)
        elif key not in self._asked:
            self._due.set(key, next_due_ns)

    def _bring_forward(self, key: int, due_ns: int) -> None:
        if key not in self._asked and (key not in self._due or due_ns < self._due.due_of(key)):
            self._due.set(key, due_ns)

    def select(self, now_ns: int, pick: Callable[[int], int]) -> list[tuple[int, str]]:
        """The next ones to ask: due channels first, then random ones, 20 in all. `pick(n)` gives a number below n."""
        chosen: dict[int, str] = {}
        while len(chosen) < options.SCAN_SELECTION and (key := self._due.pop_due(now_ns)) is not None:
            chosen[key] = self._endpoints[key]
        for _ in range(min(options.SCAN_SELECTION - len(chosen), len(self._order))):
            key = self._order[pick(len(self._order))]
            if key not in self._asked and key not in self._missed:
                chosen.setdefault(key, self._endpoints[key])
        for key in chosen:
            self._due.remove(key)
            self._hinted.pop(key, None)
            self._asked.add(key)
        return list(chosen.items())

    # What became of one that was asked

    def answered(self, key: int, next_due_ns: int) -> None:
        """It looked, and said when to come again (0: not before it hints)."""
        if key not in self._endpoints:
            return
        self._asked.discard(key)
        self._missed.pop(key, None)
        # A hint that came since may have overtaken this answer, which came by a worker: the earlier of the two.
        times_due = [due for due in (next_due_ns, self._hinted.pop(key, 0)) if due]
        if times_due:
            self._due.set(key, min(times_due))
        else:
            self._due.remove(key)

    def missed(self, key: int, now_ns: int) -> bool:
        """It did not answer; True if it is found hung."""
        if key not in self._endpoints:
            return False
        self._asked.discard(key)
        times, since_ns = self._missed.get(key, (0, now_ns))
        times += 1
        self._missed[key] = (times, since_ns)
        due_ns = now_ns + _NS_PER_S * _BACKOFF_S[min(times, len(_BACKOFF_S)) - 1]
        self._due.set(key, min(due_ns, self._hinted.pop(key, due_ns)))
        hung = times >= options.SCAN_MISSED_MAX and now_ns - since_ns >= options.SCAN_HUNG_S * _NS_PER_S
        if hung:
            self._missed[key] = 0, now_ns
        return hung

    def lost(self, key: int, now_ns: int) -> None:
        """Nobody knows what became of it, for its worker is gone or hangs: ask again."""
        if key in self._endpoints:
            self._asked.discard(key)
            self._bring_forward(key, now_ns)

    def spoke(self, key: int, next_due_ns: int) -> None:
        """An answer to a scan that was given up: it lives, and what it says may be news."""
        self._missed.pop(key, None)
        if key in self._endpoints and next_due_ns:
            self._hinted[key] = min(next_due_ns, self._hinted.get(key, next_due_ns))
            self._bring_forward(key, next_due_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Until the next round: the scan interval, less if a hint is due before that."""
        due = self._due.next_due()
        if due is None:
            return options.SCAN_INTERVAL_MS
        return max(1, min(options.SCAN_INTERVAL_MS, (due - now_ns) // 1_000_000 + 1))
