"""Scan rounds: decide which worker asks which channel, and process its reports. No I/O.

The plan (scan_plan.py) selects the channels. A round is one order to each worker. A worker reports
within `SCAN_SOON_MS`, and marks as LATE the channels that have not answered by then. Later reports
contain their results. So a round ends soon, even if a channel hangs. The states of an order:

| State | Event | Next state | What follows |
|---|---|---|---|
| NEW: its round waits for it | report | OPEN, or ended if none is LATE | when no order of the round is NEW, the round ends |
| NEW | no report for `SCAN_REPORT_MS` | OVERDUE | the round goes on without it; its channels are asked through another worker |
| OPEN | report with the last LATE results | ended | |
| OPEN | no such report within `SCAN_ANSWER_MS` and `SCAN_REPORT_MS` | OVERDUE | as above |
| OVERDUE: its worker gets no orders | report | OPEN or ended | it counts for channels that no other worker has asked since |
| any | the worker is gone | ended | its channels are asked again |

`ScanOrders` is the state of a scan worker: the scans without an answer, and the times of the
reports. The first report on an order is sent when all channels have answered, or after
`SCAN_SOON_MS`. It marks the other channels as LATE. Their results are reported as soon as they are
known. A result is the channel's answer, or MISSED if no answer comes within `SCAN_ANSWER_MS`. An
answer that comes after that is reported too, because the channel no longer hangs and its next scan
may be seconds away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...transport.units import NS_PER_MS
from ..settings import options
from .scan_plan import ScanPlan

DIRTY: Final = 1
CLEAN: Final = 0
MISSED: Final = -1  # no answer within SCAN_ANSWER_MS
LATE: Final = -2  # no answer yet: another report follows


class WorkerRequest(NamedTuple):
    """A request that the scan loop must send to the worker."""

    worker: str
    request: int
    targets: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _RequestOut:
    worker: str
    keys: set[int]
    deadline_ns: int
    overdue: bool = False


class ScanRounds:
    """The orders to all workers."""

    def __init__(self, plan: ScanPlan) -> None:
        self.plan = plan
        self.count = 0
        self.workers: set[str] = set()
        self._orders: dict[int, _RequestOut] = {}
        self._asked_by: dict[int, int] = {}  # key -> the last request that asked it
        self._round: set[int] = set()  # the NEW orders
        self._request = 0
        self._dirty = self._answers = 0
        self._next_ns = 0
        self._random_ns = 0  # when a round has random channels, too

    def set_channels(self, channels: Iterable[tuple[int, str]]) -> tuple[str, ...]:
        """Set the present channels, and return the endpoints of those that are gone."""
        gone = self.plan.set_channels(channels)
        for key in gone:
            self._asked_by.pop(key, None)
        return tuple(gone.values())

    def set_workers(self, workers: Iterable[str], now_ns: int) -> None:
        self.workers = set(workers)
        for request in [
            request for request, order in self._orders.items() if order.worker not in self.workers
        ]:
            self._ask_again(request, now_ns)
            del self._orders[request]
            self._leave_round(request)

    def begin(self, now_ns: int, pick: Callable[[int], int]) -> list[WorkerRequest]:
        """Return the orders of the next round if it is due. `pick(n)` returns a number below n."""
        self._look_at_deadlines(now_ns)
        free = self._free()
        if self._round or not free or not len(self.plan):
            return []
        if now_ns < self._next_ns and self.plan.wait_ms(now_ns) > 1:
            return []
        # After a round that found much work, random ones are asked at once.
        only_due = self._next_ns > 0 and now_ns < self._random_ns
        chosen = self.plan.select(now_ns, pick, only_due=only_due)
        self._next_ns = now_ns + options.SCAN_IDLE_MS * NS_PER_MS
        if not only_due:
            self._random_ns = self._next_ns
        self._dirty = self._answers = 0
        self.count += 1
        orders = []
        for i, worker in enumerate(free):
            share = tuple(chosen[i :: len(free)])
            if share:
                self._request += 1
                keys = {key for key, _ in share}
                self._orders[self._request] = _RequestOut(
                    worker, keys, now_ns + options.SCAN_REPORT_MS * NS_PER_MS
                )
                self._asked_by.update(dict.fromkeys(keys, self._request))
                self._round.add(self._request)
                orders.append(WorkerRequest(worker, self._request, share))
        return orders

    def _free(self) -> list[str]:
        return sorted(
            self.workers - {order.worker for order in self._orders.values() if order.overdue}
        )

    def reported(
        self, request: int, results: Iterable[tuple[int, int, int]], now_ns: int
    ) -> list[int]:
        """Process a report: the key, state, and next due time of each channel.

        Return the hung channels.
        """
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
            order.deadline_ns = (
                now_ns + (options.SCAN_ANSWER_MS + options.SCAN_REPORT_MS) * NS_PER_MS
            )
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
        """Return the time after which `begin` may return orders."""
        if self._round:
            return options.SCAN_SOON_MS
        if not len(self.plan):
            return options.SCAN_IDLE_MS  # the next message of the supervisor may bring channels
        if not self._free():
            return options.SCAN_INTERVAL_MS
        wait_ms = min(self.plan.wait_ms(now_ns), max(1, (self._next_ns - now_ns) // NS_PER_MS + 1))
        # An order may become overdue.
        return min(wait_ms, options.SCAN_INTERVAL_MS) if self._orders else wait_ms


Who = tuple[tuple[bytes, ...], int]  # (sender of an order, number of its request)
Result = tuple[int, int, int]  # (key, state, next due time)


class _ChannelScan(NamedTuple):
    who: Who
    key: int
    endpoint: str


@dataclass(slots=True)
class _RequestState:
    soon_ns: int
    deadline_ns: int
    waiting: set[int] = field(default_factory=set)
    results: list[Result] = field(default_factory=list)  # results that are not reported yet
    reported: bool = False


class ScanOrders:
    """The orders of one worker, and their scans."""

    def __init__(self) -> None:
        self._orders: dict[Who, _RequestState] = {}
        # Scans without an answer: those that are awaited, and the newest missed scan of each
        # endpoint.
        self._scans: dict[int, _ChannelScan] = {}
        self._missed: dict[str, int] = {}  # endpoint -> the newest missed scan
        self._after_all: list[tuple[Who, list[Result]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._orders)

    def begin(
        self, who: Who, targets: Iterable[tuple[int, str]], now_ns: int
    ) -> list[tuple[int, str]]:
        """Begin an order, and return the scans to send as (number, endpoint)."""
        order = self._orders[who] = _RequestState(
            now_ns + options.SCAN_SOON_MS * NS_PER_MS, now_ns + options.SCAN_ANSWER_MS * NS_PER_MS
        )
        for key, endpoint in targets:
            self._number += 1
            self._scans[self._number] = _ChannelScan(who, key, endpoint)
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
        """Return the reports to send now."""
        to_send, self._after_all = self._after_all, []
        for who, order in list(self._orders.items()):
            if now_ns > order.deadline_ns:
                self._give_up(order)
            soon = not order.reported and (not order.waiting or now_ns > order.soon_ns)
            if soon:
                order.reported = True
                order.results += [
                    (self._scans[number].key, LATE, 0) for number in sorted(order.waiting)
                ]
            if soon or (order.reported and order.results):
                to_send.append((who, order.results))
                order.results = []
            if order.reported and not order.waiting:
                del self._orders[who]
        return to_send

    def _give_up(self, order: _RequestState) -> None:
        for number in sorted(order.waiting):
            scan = self._scans[number]
            order.results.append((scan.key, MISSED, 0))
            self._scans.pop(self._missed.get(scan.endpoint, 0), None)
            self._missed[scan.endpoint] = number
        order.waiting.clear()

    def hang_up(self, endpoint: str) -> None:
        """Stop waiting for answers from this endpoint."""
        self._missed.pop(endpoint, None)
        for number in [number for number, scan in self._scans.items() if scan.endpoint == endpoint]:
            scan = self._scans.pop(number)
            order = self._orders.get(scan.who)
            if order is not None and number in order.waiting:
                order.waiting.remove(number)
                order.results.append((scan.key, MISSED, 0))

    def wait_ms(self, now_ns: int) -> int:
        """Return the time until `reports` returns a report if no channel answers."""
        due = min(
            (
                order.deadline_ns if order.reported else order.soon_ns
                for order in self._orders.values()
            ),
            default=1 << 62,
        )
        return max(0, (due - now_ns) // NS_PER_MS + 1)
