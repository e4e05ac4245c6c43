"""Scan loop: selects which channels and topics the workers scan next.

`scan_plan.py` and `scan_rounds.py` make its decisions.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ...transport.wire import protocol as p
from ..runtime.actor import Actor
from ..runtime.port import Mail, Port
from ..settings import options
from ..settings.starts import ActorStart
from .scan_plan import ScanPlan, pool_size
from .scan_rounds import ScanRounds


class ScanLoop(Actor[ActorStart]):
    """The actor that orders scans.

    Its setting `front` is the endpoint to which channels and topics send hints. The loop connects
    to a worker when the supervisor names it.
    """

    def on_start(self) -> dict[str, Any]:
        self.plan = ScanPlan()
        self.rounds = ScanRounds(self.plan)
        self.front = self.open_router(self.given.front)
        self.front.route(p.Hint, self.hint)
        self.supervisor.route(p.Targets, self.set_targets)
        self.workers: dict[str, Port] = {}
        self._random = random.Random()
        self.every(options.SCAN_REFRESH_MS, self._resize)
        return {"front": self.given.front}

    def set_targets(self, port: Port, mail: Mail, message: p.Targets) -> None:
        before = pool_size(len(self.plan))
        gone = self.rounds.set_channels(message.channels)
        self.rounds.set_workers(message.workers, time.monotonic_ns())
        for endpoint in self.workers.keys() - set(message.workers):
            self.close_port(self.workers.pop(endpoint))
        for worker in self.workers.values() if gone else ():
            worker.send((), p.HangUp(gone))
        for endpoint in set(message.workers) - self.workers.keys():
            self.workers[endpoint] = self.open_dealer(endpoint)
            self.workers[endpoint].route(p.ScanReport, self.on_report)
        if pool_size(len(self.plan)) > before:
            self._resize()

    def hint(self, port: Port, mail: Mail, message: p.Hint) -> None:
        self.plan.hint(message.key, message.next_due_ns)

    def _resize(self) -> None:
        self.supervisor.send((), p.PoolSize(pool_size(len(self.plan))))

    def _wait_ms(self) -> int:
        usual = super()._wait_ms()
        return usual if self.stopping else min(usual, self.rounds.wait_ms(time.monotonic_ns()))

    def on_turn(self) -> None:
        if not self.stopping:
            for order in self.rounds.begin(time.monotonic_ns(), self._random.randrange):
                self.workers[order.worker].send((), p.ScanOrder(order.request, order.targets))

    def on_report(self, port: Port, mail: Mail, message: p.ScanReport) -> None:
        for key in self.rounds.reported(message.request, message.results, time.monotonic_ns()):
            self.supervisor.send((), p.Hung(key))

    def statistics(self) -> dict[str, int]:
        return {
            "channels": len(self.plan),
            "workers": len(self.workers),
            "rounds": self.rounds.count,
        }
