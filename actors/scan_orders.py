"""A scan worker's memory: which scans are out, and when it reports on them. Pure.

The first report on an order goes out when all have answered, or after `SCAN_SOON_MS`, and names those as LATE who have not. What becomes
of those is reported as soon as it is known: their answer, or after `SCAN_ANSWER_MS` that they missed the scan. An answer that comes
even later is passed on, too: who hung does no more, and its next scan may be seconds off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from . import options
from .scan_rounds import LATE, MISSED

_MS: Final = 1_000_000
Who = tuple[tuple[bytes, ...], int]  # who gave the order, its request
Result = tuple[int, int, int]  # key, state, next due time


class _Scan(NamedTuple):
    who: Who
    key: int
    endpoint: str


@dataclass(slots=True)
class _Order:
    soon_ns: int
    deadline_ns: int
    waiting: set[int] = field(default_factory=set)
    results: list[Result] = field(default_factory=list)  # not reported yet
    reported: bool = False


class ScanOrders:
    def __init__(self) -> None:
        self._orders: dict[Who, _Order] = {}
        self._scans: dict[int, _Scan] = {}  # without answer: waited for, or the newest of its endpoint that was missed
        self._missed: dict[str, int] = {}  # endpoint -> the newest scan that it missed
        self._after_all: list[tuple[Who, list[Result]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._orders)

    def begin(self, who: Who, targets: Iterable[tuple[int, str]], now_ns: int) -> list[tuple[int, str]]:
        """Returns the scans to be sent, as (number, endpoint)."""
        order = self._orders[who] = _Order(now_ns + options.SCAN_SOON_MS * _MS, now_ns + options.SCAN_ANSWER_MS * _MS)
        for key, endpoint in targets:
            self._number += 1
            self._scans[self._number] = _Scan(who, key, endpoint)
            order.waiting.add(self._number)
        return [(number, self._scans[number].endpoint) for number in sorted(order.waiting)]

    def answered(self, number: int, dirty: bool, next_due_ns: int) -> None:
        scan = self._scans.pop(number, None)
        if scan is None:
            return
        result = scan.key, int(dirty), next_due_ns
        if self._missed.get(scan.endpoint) == number:
            del self._missed[scan.endpoint]
            self._after_all.append((scan.who, [result]))
            return
        order = self._orders[scan.who]
        order.waiting.remove(number)
        order.results.append(result)

    def reports(self, now_ns: int) -> list[tuple[Who, list[Result]]]:
        """What is to be reported now."""
        found, self._after_all = self._after_all, []
        for who, order in list(self._orders.items()):
            if now_ns > order.deadline_ns:
                self._give_up(order)
            soon = not order.reported and (not order.waiting or now_ns > order.soon_ns)
            if soon:
                order.reported = True
                order.results += [(self._scans[number].key, LATE, 0) for number in sorted(order.waiting)]
            if soon or (order.reported and order.results):
                found.append((who, order.results))
                order.results = []
            if order.reported and not order.waiting:
                del self._orders[who]
        return found

    def _give_up(self, order: _Order) -> None:
        for number in sorted(order.waiting):
            scan = self._scans[number]
            order.results.append((scan.key, MISSED, 0))
            self._scans.pop(self._missed.get(scan.endpoint, 0), None)
            self._missed[scan.endpoint] = number
        order.waiting.clear()

    def hang_up(self, endpoint: str) -> None:
        """Nothing is to be expected of it any more."""
        self._missed.pop(endpoint, None)
        for number in [number for number, scan in self._scans.items() if scan.endpoint == endpoint]:
            scan = self._scans.pop(number)
            order = self._orders.get(scan.who)
            if order is not None and number in order.waiting:
                order.waiting.remove(number)
                order.results.append((scan.key, MISSED, 0))

    def wait_ms(self, now_ns: int) -> int:
        """Until `reports` has something to say, if nobody answers."""
        due = min((order.deadline_ns if order.reported else order.soon_ns for order in self._orders.values()), default=1 << 62)
        return max(0, (due - now_ns) // _MS + 1)
