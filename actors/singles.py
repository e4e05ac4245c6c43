"""The processes that a broker has once, or a few of: scan loop, scan workers, gateways, the teller of alarms. None belongs to a topic.

When one ends it is started again; beyond the restart intensity the tree ends, for without them the broker serves nobody. Only alarms
are then not told any more.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from ..transport import protocol as p
from . import options
from .child import ENDS_TREE, OUTSIDE, ChildSpec, RestartIntensity
from .process_table import Child

if TYPE_CHECKING:
    from .supervisor import Supervisor

log = logging.getLogger("zsq")


class Singles:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.children: dict[int, Child] = {}
        self._intensity: dict[str, RestartIntensity] = {}
        self._workers_wanted = 1
        self._tell_ns = 0  # not before: the scan loop is told what there is

    def start(self, kind: str, settings: dict[str, Any], title: str) -> None:
        number = self.supervisor.new_key()
        settings = {"front": self.supervisor.endpoint(number)} | settings
        child = self.supervisor.start(ChildSpec(number, kind, title, settings))
        self.children[number] = child

    def of_kind(self, kind: str) -> list[Child]:
        return [child for child in self.children.values() if child.spec.kind == kind]

    def tell_gone(self, child: Child) -> None:
        """Gateways drop their links to it; if it was a gateway, those it led to drop what was behind it."""
        if self.supervisor.stopping:
            return
        if child.spec.kind == "gateway":
            for other in list(self.supervisor.table.children.values()):
                if other.spec.kind in ("topic", "channel", "storage") and other.state == "up":
                    self.supervisor.port.send(other.envelope, p.Gone(f"gateway-{child.spec.key}"))
            return
        for gateway in self.of_kind("gateway"):
            if gateway.state == "up":
                for name in ("front", "reader", "stage", "push"):
                    if name in child.spec.settings:
                        self.supervisor.port.send(gateway.envelope, p.Gone(child.spec.settings[name]))

    def ended(self, child: Child) -> bool:
        """Start its successor, or end the tree; False if it is none of these."""
        if self.children.pop(child.spec.key, None) is None:
            return False
        self._succeed(child)
        return True

    def _succeed(self, child: Child) -> None:
        self.supervisor.channels_changed = True
        if self.supervisor.stopping or child.told_to_stop:
            return
        kind = child.spec.kind
        intensity = self._intensity.setdefault(kind, RestartIntensity())
        # It said that it cannot listen there. (One that was killed before it was up said nothing, and is started again.)
        unusable = kind in OUTSIDE and not child.envelope and bool(child.failure)
        if unusable and child.spec.settings.get("optional"):  # nobody asked for it by name: who serves only others goes on
            log.warning("%s: %s", child.spec.title, child.failure)
            return
        if unusable or not intensity.may_restart(time.monotonic_ns()):
            if kind not in ENDS_TREE:
                log.error("%s ends again and again, and stays down: start the broker again", child.spec.title)
                return
            self.supervisor.stop(1, f"{child.spec.title} {child.failure or 'ends again and again'}")
            return
        settings = {name: value for name, value in child.spec.settings.items() if name != "front" or kind == "scan_loop"}
        self.start(kind, settings, child.spec.title)

    # Scan

    def size_pool(self, workers_wanted: int = 0) -> None:
        """As many scan workers as the loop wants (0: as many as it wanted last)."""
        self._workers_wanted = workers_wanted or self._workers_wanted
        if self.supervisor.stopping:
            return
        workers = [child for child in self.of_kind("scan_worker") if child.state in ("up", "starting")]
        for _ in range(self._workers_wanted - len(workers)):
            self.start("scan_worker", {}, "scan worker")
        for child in workers[self._workers_wanted :]:
            self.supervisor.stop_child(child)
        self.supervisor.channels_changed = True

    def tell_scan(self) -> None:
        loops = [child for child in self.of_kind("scan_loop") if child.state == "up"]
        now = time.monotonic_ns()
        if not loops or now < self._tell_ns:
            return  # all of them are told each time: for a thousand that are made one after the other it would cost more than they do
        self._tell_ns = now + (options.TELL_SCAN_MS + len(self.supervisor.table.children) // 10) * 1_000_000
        self.supervisor.channels_changed = False
        targets = tuple(
            (child.spec.key, child.spec.settings["front"])
            for group in self.supervisor.groups.values()
            for child in (group.storage, *group.channels.values())  # storages: delayed messages become due there
            if child is not None and child.state == "up"
        )
        workers = tuple(child.spec.settings["front"] for child in self.of_kind("scan_worker") if child.state == "up")
        self.supervisor.port.send(loops[0].envelope, p.Targets(targets, workers))
