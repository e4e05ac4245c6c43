"""The scan loop: decides which channels and storages the workers scan next; owns nothing but the plan (scan_plan.py)."""

from __future__ import annotations

import random
import time
from typing import Any, cast

from ..transport import protocol as p
from . import options
from .actor import Actor
from .port import Mail, Port
from .scan_plan import ScanPlan, pool_size

_MS = 1_000_000


class ScanLoop(Actor):
    """Settings: front (endpoint, where channels and storages send hints). Workers are dialled when the supervisor names them."""

    def on_start(self) -> dict[str, Any]:
        self.plan = ScanPlan()
        self.front = self.open_router(self.settings["front"])
        self.workers: dict[str, Port] = {}
        self._request = 0
        self._out: dict[int, str] = {}  # request -> worker
        self._targets: dict[int, tuple[tuple[int, str], ...]] = {}
        self._results: list[tuple[int, int, int]] = []
        self._round_ends_ns = 0
        self._next_round_ns = 0
        self._rounds = 0
        self._random = random.Random()
        self.every(options.SCAN_REFRESH_MS, self._resize)
        return {"front": self.settings["front"]}

    def on_targets_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Targets", mail.word)
        if port is not self.supervisor:
            return
        before = pool_size(len(self.plan))
        self.plan.set_channels(word.channels)
        for endpoint in self.workers.keys() - set(word.workers):
            self.close_port(self.workers.pop(endpoint))
            for request in [r for r, worker in self._out.items() if worker == endpoint]:
                self._round_lost(request)
        for endpoint in set(word.workers) - self.workers.keys():
            self.workers[endpoint] = self.open_dealer(endpoint)
        if pool_size(len(self.plan)) > before:
            self._resize()

    def on_hint_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Hint", mail.word)
        self.plan.hint(word.key, word.next_due_ns)

    def _resize(self) -> None:
        self.supervisor.send((), p.PoolSize(pool_size(len(self.plan))))

    def _wait_ms(self) -> int:
        if self.stopping or self._out:
            return min(super()._wait_ms(), 10 if self.stopping else 100)
        return min(super()._wait_ms(), self.plan.wait_ms(time.monotonic_ns()))

    def on_turn(self) -> None:
        now = time.monotonic_ns()
        if self._out:
            if now > self._round_ends_ns:  # a worker died or hangs: its channels did not answer
                for request in list(self._out):
                    self._round_lost(request)
            return
        if self.stopping or not self.workers or not len(self.plan):
            return
        if now < self._next_round_ns and self.plan.wait_ms(now) > 1:
            return
        self._start_round(now)

    def _start_round(self, now: int) -> None:
        chosen = self.plan.select(now, self._random.randrange)
        self._results = []
        self._rounds += 1
        endpoints = list(self.workers)
        for i, endpoint in enumerate(endpoints):
            share = tuple(chosen[i :: len(endpoints)])
            if share:
                self._request += 1
                self._out[self._request] = endpoint
                self._targets[self._request] = share
                self.workers[endpoint].send((), p.ScanOrder(self._request, share))
        self._round_ends_ns = now + 3_000 * _MS
        self._next_round_ns = now + 100 * _MS

    def on_scanreport_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.ScanReport", mail.word)
        if self._out.pop(word.request, None) is not None:
            self._targets.pop(word.request, None)
            self._results.extend(word.results)
            self._end_round()

    def _round_lost(self, request: int) -> None:
        self._out.pop(request, None)
        now = time.monotonic_ns()
        for key, _ in self._targets.pop(request, ()):
            self.plan.hint(key, now)  # nobody knows what became of it: ask again
        self._end_round()

    def _end_round(self) -> None:
        if self._out:
            return
        again, hung = self.plan.answered(self._results, time.monotonic_ns())
        for key in hung:
            self.supervisor.send((), p.Hung(key))
        if again:
            self._next_round_ns = 0

    def statistics(self) -> dict[str, Any]:
        return {"channels": len(self.plan), "workers": len(self.workers), "rounds": self._rounds}
