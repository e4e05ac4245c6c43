"""The scan's rounds: which worker asks whom, and what its reports mean. Pure; whom to ask is the plan's (scan_plan.py).

A round is one order to each worker. A worker reports within `SCAN_SOON_MS`, naming as LATE who has not answered by then; later reports
tell what became of those. So a round ends soon, whoever hangs. An order is in one of these states:

| State | Event | State | What follows |
|---|---|---|---|
| NEW: its round waits for it | report | OPEN, or ended if none is LATE | once none of the round is NEW, the round ends |
| NEW | no report for `SCAN_REPORT_MS` | OVERDUE | the round goes on without it; its channels are asked through another worker |
| OPEN | report that names the last LATE ones | ended | |
| OPEN | no such report within `SCAN_ANSWER_MS` and `SCAN_REPORT_MS` | OVERDUE | as above |
| OVERDUE: its worker gets no orders | report | OPEN or ended | what it says counts for those that no other worker has been sent to since |
| any | the worker is gone | ended | its channels are asked again |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from . import options
from .scan_plan import ScanPlan

DIRTY: Final = 1
CLEAN: Final = 0
MISSED: Final = -1  # no answer within SCAN_ANSWER_MS
LATE: Final = -2  # none yet: another report will say
_MS: Final = 1_000_000


class Order(NamedTuple):
    """An effect: send this to the worker."""

    worker: str
    request: int
    targets: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Out:
    worker: str
    keys: set[int]
    deadline_ns: int
    overdue: bool = False


class ScanRounds:
    def __init__(self, plan: ScanPlan) -> None:
        self.plan = plan
        self.count = 0
        self.workers: set[str] = set()
        self._orders: dict[int, _Out] = {}
        self._asked_by: dict[int, int] = {}  # key -> the request by which it was asked last
        self._round: set[int] = set()  # the NEW orders
        self._request = 0
        self._dirty = self._answers = 0
        self._next_ns = 0

    def set_channels(self, channels: Iterable[tuple[int, str]]) -> tuple[str, ...]:
        """Returns the endpoints of those that are gone."""
        gone = self.plan.set_channels(channels)
        for key in gone:
            self._asked_by.pop(key, None)
        return tuple(gone.values())

    def set_workers(self, workers: Iterable[str], now_ns: int) -> None:
        self.workers = set(workers)
        for request in [request for request, order in self._orders.items() if order.worker not in self.workers]:
            self._ask_again(request, now_ns)
            del self._orders[request]
            self._leave_round(request)

    def begin(self, now_ns: int, pick: Callable[[int], int]) -> list[Order]:
        """The orders of the next round, if it is time for one. `pick(n)` gives a number below n."""
        self._look_at_deadlines(now_ns)
        free = self._free()
        if self._round or not free or not len(self.plan):
            return []
        if now_ns < self._next_ns and self.plan.wait_ms(now_ns) > 1:
            return []
        chosen = self.plan.select(now_ns, pick)
        self._next_ns = now_ns + options.SCAN_INTERVAL_MS * _MS
        self._dirty = self._answers = 0
        self.count += 1
        orders = []
        for i, worker in enumerate(free):
            share = tuple(chosen[i :: len(free)])
            if share:
                self._request += 1
                keys = {key for key, _ in share}
                self._orders[self._request] = _Out(worker, keys, now_ns + options.SCAN_REPORT_MS * _MS)
                self._asked_by.update(dict.fromkeys(keys, self._request))
                self._round.add(self._request)
                orders.append(Order(worker, self._request, share))
        return orders

    def _free(self) -> list[str]:
        return sorted(self.workers - {order.worker for order in self._orders.values() if order.overdue})

    def reported(self, request: int, results: Iterable[tuple[int, int, int]], now_ns: int) -> list[int]:
        """Take a report: (key, state, next due time) of each. Returns who is found hung."""
        order = self._orders.get(request)
        hung = []
        for key, state, next_due_ns in results:
            if order is not None and state != LATE:
                order.keys.discard(key)
            if self._asked_by.get(key) != request:
                if state >= CLEAN:
                    self.plan.spoke(key, next_due_ns)
            elif state == MISSED:
                if self.plan.missed(key, now_ns):
                    hung.append(key)
                del self._asked_by[key]
            elif state != LATE:
                self.plan.answered(key, next_due_ns)
                del self._asked_by[key]
                if request in self._round:
                    self._answers += 1
                    self._dirty += state
        if order is not None:
            order.overdue = False
            order.deadline_ns = now_ns + (options.SCAN_ANSWER_MS + options.SCAN_REPORT_MS) * _MS
            if not order.keys:
                del self._orders[request]
        self._leave_round(request)
        return hung

    def _leave_round(self, request: int) -> None:
        if request in self._round:
            self._round.remove(request)
            if not self._round and self._dirty > options.SCAN_DIRTY_SHARE * self._answers:
                self._next_ns = 0

    def _look_at_deadlines(self, now_ns: int) -> None:
        for request, order in self._orders.items():
            if now_ns > order.deadline_ns and not order.overdue:
                order.overdue = True
                self._ask_again(request, now_ns)
                self._leave_round(request)

    def _ask_again(self, request: int, now_ns: int) -> None:
        for key in self._orders[request].keys:
            if self._asked_by.get(key) == request:
                self.plan.lost(key, now_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Until `begin` may have something to say."""
        if self._round:
            return options.SCAN_SOON_MS
        if not self._free():
            return options.SCAN_INTERVAL_MS
        return min(self.plan.wait_ms(now_ns), max(1, (self._next_ns - now_ns) // _MS + 1))
