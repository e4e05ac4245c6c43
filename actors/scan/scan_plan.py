"""Scan plan: which channels to scan next, and how many workers are needed. No I/O.

The random numbers come from a function that the caller passes in.

NSQ's queueScanLoop picks 20 channels at random every 100 ms, and lets the workers process what is
due in each. It repeats this at once while more than 25% of them had work that was due. Every 5 s it
sets the number of workers to a quarter of the channels, 1 to 4. With thousands of channels, the end
of a lease would then be found only by luck. So in ZSQ each answer also carries the channel's next
due time, and a channel sends a hint when that time becomes earlier. A round begins as soon as a
channel is due. Once a second, random ones are added to the due ones, because a hint may have been
lost.

Topics are scanned too, for their delayed messages. The plan treats them as channels.

The table shows the states of a channel's scan. A channel that does not answer does not delay the
others.

| State | Event | Next state | The channel is due again |
|---|---|---|---|
| WAITING | it is due, or it is picked at random | ASKED | |
| ASKED (in no other round) | it answers | WAITING | at the time in the answer, or an earlier hint |
| ASKED | the answer is lost with the worker | WAITING | now |
| ASKED | it misses the scan | SILENT | in 1, 2, 4, 4... s |
| SILENT (it is never picked at random) | it is due | ASKED | |
| SILENT | it sends a message, such as a late answer | WAITING | at the time in it, if earlier |

A channel that missed three scans and has been silent for 10 s is hung. This is reported once, and
the count starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...transport.units import NS_PER_MS, NS_PER_S
from ..primitives.deadlines import DeadlineHeap
from ..settings import options

_BACKOFF_S: Final = (1, 2, 4)  # the pause after the first, second, and each later missed scan


def pool_size(channels: int) -> int:
    """Return the number of workers for this many channels: a quarter of them, 1 to 4."""
    return min(options.SCAN_WORKERS_MAX, max(1, int(channels * options.SCAN_WORKER_SHARE)))


class ScanPlan:
    """The channels by key, their due times, and their scans in progress and missed."""

    def __init__(self) -> None:
        self._endpoints: dict[int, str] = {}
        self._order: list[int] = []
        self._due: DeadlineHeap[int] = DeadlineHeap()  # without channels that are asked now
        self._asked: set[int] = set()
        # Key -> the due time (ns) of a hint that came since the channel was last selected.
        self._hinted: dict[int, int] = {}
        # Key -> (number of missed scans, time of the first one in ns).
        self._missed: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: int) -> bool:
        return key in self._endpoints

    def set_channels(self, channels: Iterable[tuple[int, str]]) -> dict[int, str]:
        """Set the present channels, and return those that are gone.

        A new channel is due at once, so that what it recovered is processed.
        """
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
        """Set the next due time of a channel, which the channel itself sent."""
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

    def select(
        self, now_ns: int, pick: Callable[[int], int], *, only_due: bool = False
    ) -> list[tuple[int, str]]:
        """Return the next channels to ask: due channels first, then random ones, 20 in all.

        `pick(n)` returns a number below n.
        """
        chosen: dict[int, str] = {}
        while (
            len(chosen) < options.SCAN_SELECTION and (key := self._due.pop_due(now_ns)) is not None
        ):
            chosen[key] = self._endpoints[key]
        picks = 0 if only_due else min(options.SCAN_SELECTION - len(chosen), len(self._order))
        for _ in range(picks):
            key = self._order[pick(len(self._order))]
            if key not in self._asked and key not in self._missed:
                chosen.setdefault(key, self._endpoints[key])
        for key in chosen:
            self._due.remove(key)
            self._hinted.pop(key, None)
            self._asked.add(key)
        return list(chosen.items())

    # Results of scans

    def answered(self, key: int, next_due_ns: int) -> None:
        """Note that the channel was scanned.

        It is due again at `next_due_ns` (0: not before it sends a hint).
        """
        if key not in self._endpoints:
            return
        self._asked.discard(key)
        self._missed.pop(key, None)
        # The answer came through a worker, so a hint that was sent later may have arrived earlier.
        # The earlier of both due times counts.
        times_due = [due for due in (next_due_ns, self._hinted.pop(key, 0)) if due]
        if times_due:
            self._due.set(key, min(times_due))
        else:
            self._due.remove(key)

    def missed(self, key: int, now_ns: int) -> bool:
        """Note that the channel did not answer. Return True if the channel is hung."""
        if key not in self._endpoints:
            return False
        self._asked.discard(key)
        times, since_ns = self._missed.get(key, (0, now_ns))
        times += 1
        self._missed[key] = (times, since_ns)
        due_ns = now_ns + NS_PER_S * _BACKOFF_S[min(times, len(_BACKOFF_S)) - 1]
        self._due.set(key, min(due_ns, self._hinted.pop(key, due_ns)))
        hung = (
            times >= options.SCAN_MISSED_MAX and now_ns - since_ns >= options.SCAN_HUNG_S * NS_PER_S
        )
        if hung:
            self._missed[key] = 0, now_ns
        return hung

    def lost(self, key: int, now_ns: int) -> None:
        """Ask the channel again, because its worker is gone or hung and the result is unknown."""
        if key in self._endpoints:
            self._asked.discard(key)
            self._bring_forward(key, now_ns)

    def spoke(self, key: int, next_due_ns: int) -> None:
        """Note a late answer to a scan that was given up.

        The channel is alive, and may be due earlier.
        """
        self._missed.pop(key, None)
        if key in self._endpoints and next_due_ns:
            self._hinted[key] = min(next_due_ns, self._hinted.get(key, next_due_ns))
            self._bring_forward(key, next_due_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Return the milliseconds until the next round.

        This is `SCAN_IDLE_MS`, or less if a channel is due earlier.
        """
        due = self._due.next_due()
        if due is None:
            return options.SCAN_IDLE_MS
        return max(1, min(options.SCAN_IDLE_MS, (due - now_ns) // NS_PER_MS + 1))
