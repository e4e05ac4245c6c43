"""Single processes: scan loop, scan workers, gateways, archive actor, alarm sender, and scheduler.

They belong to no topic.

A process that ends is started again. If it ends more often than its restart intensity allows, the
broker ends too, because it cannot serve without that process. The alarm sender and the scheduler
are exceptions: the broker goes on without alarms, or without schedules.
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
from ..runtime.child import ENDS_TREE, OUTSIDE, ChildSpec, OutOfFiles, RestartIntensity
from ..runtime.process_table import Child
from ..settings import options
from ..settings.starts import (
    ActorStart,
    ArchiveStart,
    HttpStart,
    NsqStart,
    SchedulerStart,
    scanned_at,
)
from .commands.requests import Orders
from .topics.broker_state import BrokerState

log = logging.getLogger("zsq")

SCHEDULER: Final = "scheduler"

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
        self._later: list[tuple[int, str, ActorStart, str]] = []
        self._tell_ns = 0  # the scan loop gets no list of its targets before this time

    def start(self, kind: str, start: ActorStart, title: str) -> None:
        """Start a process at a new endpoint. Scan loop and archive actor keep theirs."""
        number = self._processes.new_key()
        if kind not in ("scan_loop", "archive"):
            start = replace(start, front=self._processes.endpoint(number))
        child = self._processes.start(ChildSpec(number, kind, title, start))
        self.children[number] = child

    def start_scheduler(self, url: str) -> None:
        """Start the scheduler, unless it is about to be started, or failed too often."""
        is_waiting = any(kind == SCHEDULER for _, kind, _, _ in self._later)
        if is_waiting or SCHEDULER in self.given_up or self.of_kind(SCHEDULER):
            return
        start = SchedulerStart(url=url)
        try:
            self.start(SCHEDULER, start, "scheduler")
        except ZsqError as error:
            log.error("%s; trying again every %g s", error.text, options.FILES_RETRY_S_MAX)
            self._start_later(SCHEDULER, start, "scheduler")

    def of_kind(self, kind: str) -> list[Child]:
        return [child for child in self.children.values() if child.spec.kind == kind]

    def tell_gone(self, child: Child) -> None:
        """Make the processes that were connected to an ended process drop their links.

        Gateways drop their links to it. If it was a gateway, topics and channels drop its clients.
        """
        if self._broker.stopping:
            return
        if child.spec.kind == "archive":
            for topic in list(self._processes.children.values()):
                if topic.spec.kind == "topic" and topic.state == "up":
                    self._processes.send(topic, p.Gone("archive"))
            return
        if child.spec.kind == "gateway":
            for other in list(self._processes.children.values()):
                if other.spec.kind in ("topic", "channel") and other.state == "up":
                    self._processes.send(other, p.Gone(f"gateway-{child.spec.key}"))
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
        kind, start = child.spec.kind, child.spec.start
        if (
            child.failure is not None and child.failure.is_out_of_files
        ):  # files may become free again
            self._start_later(kind, start, child.spec.title)
            return
        if isinstance(start, ArchiveStart):
            start = replace(start, first=False, known=self._broker.registry.bucket)
        intensity = self._intensity.setdefault(kind, RestartIntensity())
        # True if the process reported that it cannot use its address. A process that was killed
        # before it was up reported nothing and is started again.
        unusable = kind in OUTSIDE and not child.envelope and child.failure is not None
        asked_for = not isinstance(start, NsqStart | HttpStart) or start.options.given
        if unusable and not asked_for:  # the broker goes on without an optional gateway
            log.warning("%s: %s", child.spec.title, child.failure)
            return
        if unusable or not intensity.may_restart(time.monotonic_ns()):
            if kind not in ENDS_TREE:
                self.given_up.add(kind)
                log.error(
                    "process %s %s and stays stopped: restart the broker to start it again",
                    child.spec.title,
                    _OFTEN,
                )
                return
            why = (
                str(child.failure)
                if unusable
                else _OFTEN
                if child.failure is None
                else f"{_OFTEN}: {child.failure}"
            )
            self._end_broker(1, f"{child.spec.title} {why}")
            return
        self._start_or_later(kind, start, child.spec.title)

    def _start_or_later(self, kind: str, start: ActorStart, title: str) -> None:
        try:
            self.start(kind, start, title)
        except OutOfFiles as error:
            log.error("%s; trying again every %g s", error.text, options.FILES_RETRY_S_MAX)
            self._start_later(kind, start, title)

    def _start_later(self, kind: str, start: ActorStart, title: str) -> None:
        self._later.append(
            (time.monotonic_ns() + int(options.FILES_RETRY_S_MAX * 1e9), kind, start, title)
        )

    def tick(self, now_ns: int) -> None:
        """Start the processes for which no file descriptor was free before."""
        due = [one for one in self._later if one[0] <= now_ns]
        self._later = [one for one in self._later if one[0] > now_ns]
        for _, kind, start, title in due if not self._broker.stopping else ():
            self._start_or_later(kind, start, title)

    def note_archive(self, child: Child) -> None:
        """Note the epoch, and which archive the broker uses. A later start misses that archive."""
        self._broker.epoch = int(child.stats.get("epoch", 0))
        archive = str(child.stats.get("archive", ""))
        if archive and archive != self._broker.registry.bucket and not self._broker.stopping:
            try:
                self._broker.registry.note_bucket(archive)
            except Refused as error:
                log.error("the identity of the archive cannot be noted: %s", error)

    def archive_trouble(self) -> str:
        """Return why the bucket cannot be used, or ""."""
        for child in self.of_kind("archive"):
            trouble = child.stats.get("trouble")
            if trouble and child.stats.get("shipping") == "lost":
                return f"nothing is shipped to the bucket any more: {trouble}"
            if trouble:
                return f"the bucket cannot be used: {trouble}"
        return ""

    def forget_archive(self, uuid: str) -> None:
        """Make the archive actor remove the objects of a deleted topic."""
        for child in self.of_kind("archive"):
            self._processes.send(child, p.ForgetArchive(uuid))

    # Discovery

    def tell_names(self) -> None:
        """Notify NSQ gateways that the topics or channels have changed, if they need to know.

        They do if they register with nsqlookupds, or if topics may have parts. Only one such order
        is sent at a time. The next one follows its answer, if there were changes meanwhile.
        """
        if self._names_told:
            return
        self._broker.names_changed = False
        for child in self.of_kind("nsq_gateway"):
            start = child.spec.start
            if (
                child.state == "up"
                and isinstance(start, NsqStart)
                and (start.options.lookupd_tcp_addresses or self._broker.options.cluster)
            ):
                self._names_told += 1
                self._orders.send(child, p.LookAtNames, self._on_looked)

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
        running = [child for child in self.of_kind("nsq_gateway") if child.state == "up"]
        if not running:
            raise Refused(E_CLOSING, "the NSQ gateway does not run; try again when it does")

        def answered(done: p.Done | None, error: ZsqError | None) -> None:
            nsq, http = self._broker.options.nsq, self._broker.options.http
            if error is None and nsq is not None:
                nsq = replace(nsq, lookupd_tcp_addresses=addresses)
                http = None if http is None else replace(http, nsq=nsq)
                self._broker.options = replace(self._broker.options, nsq=nsq, http=http)
                for child in self.children.values():
                    start: ActorStart = child.spec.start
                    if isinstance(start, NsqStart):
                        start = replace(start, options=nsq)
                    elif isinstance(start, HttpStart) and http is not None:
                        start = replace(start, options=http)
                    child.spec = replace(child.spec, start=start)
            then(done, error)

        self._orders.send(running[0], partial(p.SetLookupds, addresses=addresses), answered)

    # Scan

    def size_pool(self, workers_wanted: int = 0) -> None:
        """Start or stop scan workers until they are as many as the scan loop wants.

        0 means the number that the scan loop wanted last.
        """
        self._workers_wanted = workers_wanted or self._workers_wanted
        if self._broker.stopping:
            return
        workers = [
            child for child in self.of_kind("scan_worker") if child.state in ("up", "starting")
        ]
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
            for child in (group.topic, *group.channels.values())
            if child is not None and child.state == "up"
        )
        workers = tuple(
            child.spec.start.front for child in self.of_kind("scan_worker") if child.state == "up"
        )
        self._processes.send(loops[0], p.Targets(targets, workers))
