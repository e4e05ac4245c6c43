"""A scan worker: asks channels and storages to process what is due, and reports which were dirty. Owns nothing."""

from __future__ import annotations

import time
from typing import Any, cast

import zmq

from ..transport import protocol as p
from . import options
from .actor import Actor
from .port import Mail, Port

_MS = 1_000_000
_IDLE_NS = 60_000 * _MS  # a channel not asked for so long is forgotten; it may be gone


class ScanWorker(Actor):
    """Settings: front (endpoint, where the scan loop sends orders)."""

    sockets_max = options.SOCKETS_MAX

    def on_start(self) -> dict[str, Any]:
        self.front = self.open_router(self.settings["front"])
        self._asking = self.open_asking()
        self._channels: dict[str, tuple[bytes, int]] = {}  # endpoint -> its name here, last used
        self._names = 0
        self._orders: dict[int, tuple[Mail, dict[int, int], int]] = {}  # request -> order, key by scan number, deadline
        self._results: dict[int, list[tuple[int, int, int]]] = {}
        self._scan = 0
        self._order_of: dict[int, int] = {}
        self.every(10_000, self._forget)
        return {"front": self.settings["front"]}

    def on_scanorder_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.ScanOrder", mail.word)
        now = time.monotonic_ns()
        waiting: dict[int, int] = {}
        self._results[word.request] = []
        for key, endpoint in word.targets:
            self._scan += 1
            waiting[self._scan] = key
            self._order_of[self._scan] = word.request
            self._asking.send((self._name_of(endpoint, now),), p.Scan(self._scan))
        self._orders[word.request] = (mail, waiting, now + options.SCAN_ANSWER_MS * _MS)

    def _name_of(self, endpoint: str, now: int) -> bytes:
        known = self._channels.get(endpoint)
        if known:
            name = known[0]
        else:
            self._names += 1
            name = b"%d" % self._names
            self._asking.socket.setsockopt(zmq.CONNECT_ROUTING_ID, name)
            self._asking.socket.connect(endpoint)
        self._channels[endpoint] = (name, now)
        return name

    def on_scanned_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Scanned", mail.word)
        request = self._order_of.pop(word.request, None)
        if request is None:
            return
        _, waiting, _ = self._orders[request]
        self._results[request].append((waiting.pop(word.request), int(word.dirty), word.next_due_ns))
        if not waiting:
            self._report(request)

    def _report(self, request: int) -> None:
        order, waiting, _ = self._orders.pop(request)
        results = self._results.pop(request)
        for scan, key in waiting.items():
            del self._order_of[scan]
            results.append((key, -1, 0))
        self.front.send(order.envelope, p.ScanReport(request, tuple(results)))

    def _wait_ms(self) -> int:
        return min(super()._wait_ms(), 50) if self._orders else super()._wait_ms()

    def on_turn(self) -> None:
        now = time.monotonic_ns()
        for request in [r for r, (_, _, deadline) in self._orders.items() if now > deadline]:
            self._report(request)

    def _forget(self) -> None:
        limit = time.monotonic_ns() - _IDLE_NS
        for endpoint in [e for e, (_, used) in self._channels.items() if used < limit]:
            del self._channels[endpoint]
            self._asking.socket.disconnect(endpoint)

    def statistics(self) -> dict[str, Any]:
        return {"channels_known": len(self._channels)}
