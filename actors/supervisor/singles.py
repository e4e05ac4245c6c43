"""Single processes: the running services, which belong to no topic.

`runtime/services.py` has the table of services. It says how each of them starts and ends.

A process that ends is started again. If it ends more often than its restart intensity allows, the
broker ends too, because it cannot serve without that process. The broker goes on without a service
that does not end it (`Service.ends_broker`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ...transport.errors import E_CLOSING, Refused, ZsqError
from ...transport.wire import protocol as p
from ..runtime.child import ChildSpec, RestartIntensity
from ..runtime.process_table import Child
from ..runtime.service import Service, Site
from ..runtime.services import services
from ..settings import options
from ..settings.starts import ActorStart, scanned_at
from .commands.requests import Orders
from .topics.broker_state import BrokerState

log = logging.getLogger("zsq")

_OFTEN: Final = f"failed more than {options.RESTARTS_MAX} times in {options.RESTARTS_WITHIN_S:g} s"


class Singles:
    """The table of single processes.

    `end_broker` is called with an exit code and a reason if the broker cannot go on without one of
    them.
    """

    def __init__(
        self, state: BrokerState, orders: Orders, end_broker: Callable[[int, str], None]
    ) -> None:
        self._broker = state
        self._processes = state.processes
        self._orders = orders
        self._end_broker = end_broker
        self.children: dict[int, Child] = {}
        self._intensity: dict[str, RestartIntensity] = {}
        self.given_up: set[str] = set()
        """The kinds of processes that failed too often, and stay stopped."""
        self._workers_wanted = 1
        self._names_told = 0  # orders that have not been answered
        # Starts that failed: the time of the next try, and the arguments of `start`.
        self._later: list[tuple[int, Service, ActorStart]] = []
        self._tell_ns = 0  # the scan loop gets no list of its targets before this time

    def _site(self) -> Site:
        registry, processes = self._broker.registry, self._processes
        return Site(
            options=self._broker.options,
            node=registry.node,
            uuid=registry.uuid,
            run_dir=processes.run_dir,
            scan=processes.scan_endpoint,
            archive=processes.archive_endpoint,
            archive_identity=registry.bucket,
        )

    def start_all(self) -> None:
        """Start the services that start with the broker."""
        for service in services().values():
            if service.starts_with_broker:
                self.start(service)

    def start(self, service: Service) -> None:
        """Start a service, if the options ask for it."""
        start = service.start(self._site())
        if start is not None:
            self._start(service, start)

    def _start(self, service: Service, start: ActorStart) -> None:
        number = self._processes.new_key()
        if not service.keeps_endpoint:
            start = replace(start, front=self._processes.endpoint(number))
        child = self._processes.start(ChildSpec(number, service.kind, service.title, start))
        self.children[number] = child

    def start_when_needed(self, kind: str) -> None:
        """Start a service, unless it runs, is about to be started, or failed too often."""
        service = services()[kind]
        is_waiting = any(waiting is service for _, waiting, _ in self._later)
        if is_waiting or kind in self.given_up or self.of_kind(kind):
            return
        start = service.start(self._site())
        assert start is not None, f"{kind} must start when it is needed"
        self._start_or_later(service, start)

    def of_kind(self, kind: str) -> list[Child]:
        return [child for child in self.children.values() if child.spec.kind == kind]

    def tell_gone(self, child: Child) -> None:
        """Make the processes that were connected to an ended process drop their links.

        Gateways drop their links to it. If it was a gateway, topics and channels drop its clients.
        """
        if self._broker.stopping:
            return
        service = services().get(child.spec.kind)
        name = service.name_for_topics(child.spec.key) if service is not None else ""
        if name:
            for other in list(self._processes.children.values()):
                if other.spec.kind in ("topic", "channel") and other.state == "up":
                    self._processes.send(other, p.Gone(name))
            return
        for gateway in self.of_kind("gateway"):
            if gateway.state == "up":
                for endpoint in child.spec.start.endpoints():
                    self._processes.send(gateway, p.Gone(endpoint))

    def ended(self, child: Child) -> bool:
        """Start the successor of an ended process, or end the broker.

        Return False if it is no single process.
        """
        if self.children.pop(child.spec.key, None) is None:
            return False
        self._succeed(child)
        return True

    def _succeed(self, child: Child) -> None:
        self._broker.channels_changed = True
        if self._broker.stopping or child.told_to_stop:
            return
        service, start = services()[child.spec.kind], child.spec.start
        if child.failure is not None and child.failure.is_out_of_files:
            # Files may become free again.
            self._start_later(service, start)
            return
        start = service.successor(start, self._site())
        intensity = self._intensity.setdefault(service.kind, RestartIntensity())
        # True if the process reported that it cannot use its address. A process that was killed
        # before it was up reported nothing and is started again.
        unusable = service.needs_outside and not child.envelope and child.failure is not None
        if unusable and not service.is_required(start):
            log.warning("%s: %s", child.spec.title, child.failure)
            return
        if unusable or not intensity.may_restart(time.monotonic_ns()):
            if not service.ends_broker:
                self.given_up.add(service.kind)
                log.error(
                    "process %s %s and stays stopped: restart the broker to start it again",
                    child.spec.title,
                    _OFTEN,
                )
                return
            why = f"{_OFTEN}: {child.failure}" if child.failure is not None else _OFTEN
            self._end_broker(1, f"{child.spec.title} {child.failure if unusable else why}")
            return
        self._start_or_later(service, start)

    def _start_or_later(self, service: Service, start: ActorStart) -> None:
        try:
            self._start(service, start)
        except ZsqError as error:
            log.error("%s; trying again every %g s", error.text, options.FILES_RETRY_S_MAX)
            self._start_later(service, start)

    def _start_later(self, service: Service, start: ActorStart) -> None:
        self._later.append(
            (time.monotonic_ns() + int(options.FILES_RETRY_S_MAX * 1e9), service, start)
        )

    def tick(self, now_ns: int) -> None:
        """Start the processes for which no file descriptor was free before."""
        due = [waiting for waiting in self._later if waiting[0] <= now_ns]
        self._later = [waiting for waiting in self._later if waiting[0] > now_ns]
        for _, service, start in due if not self._broker.stopping else ():
            self._start_or_later(service, start)

    # Discovery

    def tell_names(self) -> None:
        """Notify the services that ask for it that topics or channels came or went.

        Only one such order is sent at a time. The next one follows its answer, if there were
        changes meanwhile.
        """
        if self._names_told:
            return
        self._broker.names_changed = False
        for child in self.children.values():
            service, start = services()[child.spec.kind], child.spec.start
            order = service.on_names(start, self._broker.options)
            if child.state == "up" and order is not None:
                self._names_told += 1
                self._orders.send(child, order, self._on_looked)

    def _on_looked(self, done: p.Done | None, error: ZsqError | None) -> None:
        """Count the answer.

        A failure needs no action, because the gateway also looks without an order from time to
        time.
        """
        self._names_told -= 1

    def set_lookupds(
        self, addresses: tuple[str, ...], then: Callable[[p.Done | None, ZsqError | None], None]
    ) -> None:
        """Let the NSQ gateway, and its successors, register with these nsqlookupds only.

        This lasts until the broker ends. `then` gets the gateway's answer, or an error.
        """
        running = [
            child
            for child in self.children.values()
            if child.state == "up" and services()[child.spec.kind].takes_lookupds
        ]
        if not running:
            raise Refused(E_CLOSING, "the NSQ gateway does not run; try again when it does")

        def answered(done: p.Done | None, error: ZsqError | None) -> None:
            if error is None:
                service = services()[running[0].spec.kind]
                self._broker.options = service.with_lookupds(self._broker.options, addresses)
                self.renew()
            then(done, error)

        self._orders.send(running[0], partial(p.SetLookupds, addresses=addresses), answered)

    def renew(self) -> None:
        """Give the next process of each service the options that the broker has now."""
        for child in self.children.values():
            start = services()[child.spec.kind].renewed(child.spec.start, self._broker.options)
            child.spec = replace(child.spec, start=start)

    # Scan

    def size_pool(self, workers_wanted: int = 0) -> None:
        """Start or stop scan workers until they are as many as the scan loop wants.

        0 means the number that the scan loop wanted last. Actors that share processes are quiet,
        and one worker is enough for all of them.
        """
        self._workers_wanted = workers_wanted or self._workers_wanted
        if self._broker.stopping:
            return
        own = [child for child in self._processes.children.values() if child.shared_host is None]
        wanted = min(self._workers_wanted, max(1, int(len(own) * options.SCAN_WORKER_SHARE)))
        workers = [
            child for child in self.of_kind("scan_worker") if child.state in ("up", "starting")
        ]
        service = services()["scan_worker"]
        later = sum(waiting is service for _, waiting, _ in self._later)
        for _ in range(wanted - len(workers) - later):
            self._start_or_later(service, ActorStart())
        for child in workers[wanted:]:
            self._processes.stop_child(child)
        self._broker.channels_changed = True

    def tell_scan(self) -> None:
        loops = [child for child in self.of_kind("scan_loop") if child.state == "up"]
        now = time.monotonic_ns()
        if not loops or now < self._tell_ns:
            # An update lists all targets, so one update per new process would cost more than the
            # process.
            return
        self._tell_ns = (
            now + (options.TELL_SCAN_MS + len(self._processes.children) // 10) * 1_000_000
        )
        self._broker.channels_changed = False
        targets = tuple(
            (child.spec.key, scanned_at(child.spec.start))
            for group in self._broker.groups.values()
            # Topics are scanned for their delayed messages.
            for child in group.processes()
            if child.state == "up"
        )
        workers = tuple(
            child.spec.start.front for child in self.of_kind("scan_worker") if child.state == "up"
        )
        self._processes.send(loops[0], p.Targets(targets, workers))
