"""The processes that a broker has once, or a few of: scan loop, scan workers, gateways, the teller of alarms. None belongs to a topic.

When one ends it is started again; beyond the restart intensity the tree ends, for without them the broker serves nobody. Only alarms
are then not told any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ...transport.errors import ZsqError
from ...transport.wire import protocol as p
from ..runtime.child import ENDS_TREE, OUTSIDE, ChildSpec, OutOfFiles, RestartIntensity
from ..runtime.process_table import Child
from ..settings import options
from ..settings.starts import ActorStart, HttpStart, NsqStart
from .commands.requests import Orders
from .topics.broker_state import BrokerState

log = logging.getLogger("zsq")


class Singles:
    """`end_broker`: called with an exit code and why, where the broker is of no use without one of these."""

    def __init__(self, state: BrokerState, orders: Orders, end_broker: Callable[[int, str], None]) -> None:
        self._broker = state
        self._processes = state.processes
        self._orders = orders
        self._end_broker = end_broker
        self.children: dict[int, Child] = {}
        self._intensity: dict[str, RestartIntensity] = {}
        self._workers_wanted = 1
        self._names_told = 0  # orders on their way
        self._later: list[tuple[int, str, ActorStart, str]] = []  # what could not be started: when it is tried again, and what it is
        self._tell_ns = 0  # not before: the scan loop is told what there is

    def start(self, kind: str, start: ActorStart, title: str) -> None:
        """Start one, at an endpoint of its own; only the scan loop's stays the same."""
        number = self._processes.new_key()
        if kind != "scan_loop":
            start = replace(start, front=self._processes.endpoint(number))
        child = self._processes.start(ChildSpec(number, kind, title, start))
        self.children[number] = child

    def of_kind(self, kind: str) -> list[Child]:
        return [child for child in self.children.values() if child.spec.kind == kind]

    def tell_gone(self, child: Child) -> None:
        """Gateways drop their links to it; if it was a gateway, those it led to drop what was behind it."""
        if self._broker.stopping:
            return
        if child.spec.kind == "gateway":
            for other in list(self._processes.children.values()):
                if other.spec.kind in ("topic", "channel", "storage") and other.state == "up":
                    self._processes.send(other, p.Gone(f"gateway-{child.spec.key}"))
            return
        for gateway in self.of_kind("gateway"):
            if gateway.state == "up":
                for endpoint in child.spec.start.endpoints():
                    self._processes.send(gateway, p.Gone(endpoint))

    def ended(self, child: Child) -> bool:
        """Start its successor, or end the tree; False if it is none of these."""
        if self.children.pop(child.spec.key, None) is None:
            return False
        self._succeed(child)
        return True

    def _succeed(self, child: Child) -> None:
        self._broker.channels_changed = True
        if self._broker.stopping or child.told_to_stop:
            return
        kind, start = child.spec.kind, child.spec.start
        if child.failure is not None and child.failure.is_out_of_files:  # a cause outside, which goes by itself
            self._start_later(kind, start, child.spec.title)
            return
        intensity = self._intensity.setdefault(kind, RestartIntensity())
        # It said that it cannot listen there. (One that was killed before it was up said nothing, and is started again.)
        unusable = kind in OUTSIDE and not child.envelope and child.failure is not None
        asked_for = not isinstance(start, NsqStart | HttpStart) or start.options.given
        if unusable and not asked_for:  # who serves only others goes on
            log.warning("%s: %s", child.spec.title, child.failure)
            return
        if unusable or not intensity.may_restart(time.monotonic_ns()):
            if kind not in ENDS_TREE:
                log.error("%s ends again and again, and stays down: start the broker again", child.spec.title)
                return
            self._end_broker(1, f"{child.spec.title} {child.failure or 'ends again and again'}")
            return
        self._start_or_later(kind, start, child.spec.title)

    def _start_or_later(self, kind: str, start: ActorStart, title: str) -> None:
        try:
            self.start(kind, start, title)
        except OutOfFiles as error:
            log.error("%s; tried again", error.text)
            self._start_later(kind, start, title)

    def _start_later(self, kind: str, start: ActorStart, title: str) -> None:
        self._later.append((time.monotonic_ns() + int(options.FILES_RETRY_S_MAX * 1e9), kind, start, title))

    def tick(self, now_ns: int) -> None:
        """Start what found no free descriptor before."""
        due = [one for one in self._later if one[0] <= now_ns]
        self._later = [one for one in self._later if one[0] > now_ns]
        for _, kind, start, title in due if not self._broker.stopping else ():
            self._start_or_later(kind, start, title)

    # Discovery

    def tell_names(self) -> None:
        """Topics or channels came or went: a gateway that registers this node with nsqlookupds looks at them now.

        One such order is out at a time. What changes until it is answered goes with the next.
        """
        if self._names_told:
            return
        self._broker.names_changed = False
        for child in self.of_kind("nsq_gateway"):
            start = child.spec.start
            if child.state == "up" and isinstance(start, NsqStart) and start.options.lookupd_tcp_addresses:
                self._names_told += 1
                self._orders.send(child, p.LookAtNames, self._on_looked)

    def _on_looked(self, done: p.Done | None, error: ZsqError | None) -> None:
        """Also where it failed: the gateway looks by itself now and then."""
        self._names_told -= 1

    # Scan

    def size_pool(self, workers_wanted: int = 0) -> None:
        """As many scan workers as the loop wants (0: as many as it wanted last)."""
        self._workers_wanted = workers_wanted or self._workers_wanted
        if self._broker.stopping:
            return
        workers = [child for child in self.of_kind("scan_worker") if child.state in ("up", "starting")]
        later = sum(kind == "scan_worker" for _, kind, _, _ in self._later)
        for _ in range(self._workers_wanted - len(workers) - later):
            self._start_or_later("scan_worker", ActorStart(), "scan worker")
        for child in workers[self._workers_wanted :]:
            self._processes.stop_child(child)
        self._broker.channels_changed = True

    def tell_scan(self) -> None:
        loops = [child for child in self.of_kind("scan_loop") if child.state == "up"]
        now = time.monotonic_ns()
        if not loops or now < self._tell_ns:
            return  # all of them are told each time: for a thousand that are made one after the other it would cost more than they do
        self._tell_ns = now + (options.TELL_SCAN_MS + len(self._processes.children) // 10) * 1_000_000
        self._broker.channels_changed = False
        targets = tuple(
            (child.spec.key, child.spec.start.front)
            for group in self._broker.groups.values()
            for child in (group.storage, *group.channels.values())  # storages: delayed messages become due there
            if child is not None and child.state == "up"
        )
        workers = tuple(child.spec.start.front for child in self.of_kind("scan_worker") if child.state == "up")
        self._processes.send(loops[0], p.Targets(targets, workers))
