"""Processes of the broker: keys, endpoints, limits on starts, and the time to stop.

`process_table.py` knows which processes are running. This module holds the rules that all owners of
processes share: the total is limited, one turn of the supervisor's loop starts a limited number,
and a process that does not stop in time is killed. `placement.py` has the rules of shared hosts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from ...transport.errors import E_LIMIT, Refused, ZsqError
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire import protocol as p
from ..settings import options
from . import placement
from .child import ChildSpec, OutOfFiles
from .port import Port
from .process import is_out_of_files
from .process_table import Child, HostProcess, ProcessTable, processes_by_memory

log = logging.getLogger("zsq")
_StartedT = TypeVar("_StartedT")


class Processes:
    """All processes of a running broker except the supervisor.

    `make_room` is called before each start, and frees what a start needs on a full disk.
    """

    def __init__(
        self,
        table: ProcessTable,
        port: Port,
        run_dir: str,
        processes_max: int = 0,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.table = table
        self._port = port
        self.run_dir = run_dir
        self._make_room = make_room
        self._processes_max = processes_max or processes_by_memory()
        # Each start of a process has a new key, which is part of endpoints and lease tokens. Keys
        # begin at a random number, so that the next broker uses other ones.
        self._key = int.from_bytes(os.urandom(4), "little") & 0x3FFF_FFFF
        # Each new scan loop uses the same endpoint, and so does each new archive actor.
        self.scan_endpoint = self.endpoint(self.new_key())
        self.archive_endpoint = self.endpoint(self.new_key())
        self.changes = 0
        """How often processes were started, ended, or asked for details. Each time costs memory."""
        self._stop_deadlines: dict[int, int] = {}
        self._told: set[int] = set()  # children of which the log says that they have not stopped
        self._looked_ns = 0
        self._starts_until_ns = 0
        self.more_to_start = False
        self._has_counted = False  # in this turn
        # The number of processes of sleeping topics, and of actors that will share some. They may
        # be started again at any time.
        self.asleep = self.asleep_shared = 0

    @property
    def children(self) -> Mapping[int, Child]:
        """Living processes by key."""
        return self.table.children

    def new_key(self) -> int:
        self._key += 1
        return self._key

    def endpoint(self, number: int) -> str:
        return f"ipc://{self.run_dir}/{number}"

    def send(self, child: Child, message: p.Wire) -> bool:
        """Send a message. Return False if the connection of the child is gone or full."""
        return self._port.send(child.envelope, message)

    # Starting

    def _count(self) -> None:
        """Count the actors of shared hosts, with the channels that their topics will have."""
        for host in filter(attrgetter("is_shared"), self.table.hosts):
            children = host.children.values()
            sizes = [child.owner.size for child in children if child.spec.kind == "topic"]
            host.actors = max(sum(sizes), len(children))
            host.is_crowded = len(sizes) > 1 and host.actors > placement.room(host.ends)
        self._has_counted = True

    def _shared(self) -> dict[placement.HostLoad, HostProcess]:
        return {
            placement.HostLoad(host.number, host.actors, host.ends, host.is_left): host
            for host in sorted(self.table.hosts, key=attrgetter("number"))
            if host.is_shared and not host.is_killed
        }

    def place(self, title: str, actors: int, ends: int) -> HostProcess | None:
        """Return the shared host for a topic with so many actors, or None for own processes.

        `ends` is from `placement.py`. Raises `ZsqError` if a host cannot be started.
        """
        if not self._has_counted:
            self._count()
        shared = self._shared()
        number = placement.place(shared, actors, ends)
        if number is None:
            return None
        host = next((host for load, host in shared.items() if load.number == number), None)
        if host is None:
            fresh = placement.free_number(shared)
            host = self._started(title, lambda: self.table.start_shared(fresh, ends))
        host.actors += actors
        return host

    def end_hosts(self, *, everything: bool = False) -> None:
        """End the shared hosts without actors that are not needed, or all of them."""
        self._count()
        shared = self._shared()
        unused = placement.to_end(shared)
        for load, host in shared.items():
            if not load.actors and (everything or load.number in unused):
                self._kill_host(host)

    def start(self, spec: ChildSpec, owner: Any = None, host: HostProcess | None = None) -> Child:
        """Start an actor in a process of its own, or in this shared host."""
        return self._started(spec.title, lambda: self.table.start(spec, owner, host))

    def _started(self, title: str, start: Callable[[], _StartedT]) -> _StartedT:
        if self._used() >= options.PROCESSES_MAX:
            raise ZsqError(
                E_LIMIT,
                (
                    f"this broker runs {options.PROCESSES_MAX} processes, which is the limit; "
                    "delete topics or channels that are not used"
                ),
            )
        self.changes += 1
        self._make_room()
        try:
            return start()
        except OSError as error:
            text = (
                f"{title} cannot be started: {error.strerror or error}; raise the limits "
                "of this user (ulimit -n, ulimit -u)"
            )
            raise (OutOfFiles if is_out_of_files(error) else ZsqError)(E_LIMIT, text) from None

    def _used(self, *, with_asleep: bool = False) -> int:
        """Return the number of processes. A few actors of shared hosts count as one."""
        shared = sum(len(host.children) for host in self.table.hosts if host.is_shared)
        own = sum(not host.is_shared for host in self.table.hosts)
        if with_asleep:
            shared, own = shared + self.asleep_shared, own + self.asleep
        return own + -(-shared // options.SHARED_AS_ONE)

    def has_room(self, count: int) -> bool:
        """Return True if so many new processes do not exceed the limit."""
        return self._used(with_asleep=True) + count <= self._processes_max

    def check_room(self, count: int, what: str) -> None:
        """Raise `Refused` (E_LIMIT) if a new topic or channel would exceed the limit.

        Existing topics and channels are started again even beyond the limit.
        """
        if not self.has_room(count):
            limit = self._processes_max
            sleeping = self._used(with_asleep=True) - self._used()
            asleep = f" and {sleeping} belong to topics that are asleep" if sleeping else ""
            text = (
                f"no room for {what}: this broker runs at most {limit} processes "
                f"({options.SHARED_AS_ONE} topics and channels that share one count as one)"
            )
            raise Refused(
                E_LIMIT,
                (
                    f"{text} and {self._used()} run now{asleep}; delete topics or channels "
                    "that are not used, or raise --processes-max"
                ),
            )

    def begin_turn(self, now_ns: int) -> None:
        """Allow starts of channels during a limited part of the supervisor's next turn."""
        self._has_counted = False
        self._starts_until_ns, self.more_to_start = (
            now_ns + options.STARTS_TURN_MS * NS_PER_MS,
            False,
        )

    def may_start(self) -> bool:
        """Return True if this turn has time for another start of a channel.

        If not, the next turn follows at once.
        """
        self.more_to_start = self.more_to_start or time.monotonic_ns() >= self._starts_until_ns
        return not self.more_to_start

    # Stopping

    def stop_child(self, child: Child) -> None:
        """Ask a child to end. It is killed if it does not end within its time.

        A child that starts is killed at once. In a shared host, this would end its neighbours, so
        there it is asked when it has started. It is killed as soon as no neighbour is up.
        """
        if child.told_to_stop:
            return
        child.told_to_stop = True
        is_up = child.state == "up"
        if is_up:
            self.send(child, p.Stop())
        if is_up or child.shared_host is not None:
            self._stop_deadlines[child.spec.key] = time.monotonic_ns() + int(
                child.spec.stop_timeout_s * 1e9
            )
        else:
            self.kill(child)
        child.state = "stopping"

    def stop_started(self, child: Child, envelope: tuple[bytes, ...]) -> None:
        """Ask a child to end that has started after it was to stop."""
        child.envelope = envelope
        self.send(child, p.Stop())

    def kill(self, child: Child) -> None:
        """Kill the process of an actor, with the other actors that share it."""
        if child.host is not None:
            self._kill_host(child.host)

    def kill_alone(self, child: Child) -> None:
        """Kill an actor. One in a shared host is stopped instead, to leave its neighbours alone."""
        if child.shared_host is not None:
            self.stop_child(child)
        else:
            self.kill(child)

    def _kill_host(self, host: HostProcess) -> None:
        host.is_killed = True  # no topic is placed in it any more
        self.table.kill(host)

    def kill_hanging(self, child: Child) -> None:
        """Kill an actor that does not answer. It is the cause of the end of its shared host.

        If all its neighbours hang too, it is the first of them.
        """
        others = child.host.children.values() if child.host is not None else ()
        child.hangs = not any(other.hangs for other in others)
        self.kill(child)

    def kill_all(self) -> None:
        for host in sorted(self.table.hosts, key=attrgetter("pid")):
            self._kill_host(host)

    def ended(self, child: Child) -> None:
        """Note that a child is gone."""
        self._stop_deadlines.pop(child.spec.key, None)
        self._told.discard(child.spec.key)
        self.changes += 1

    def _has_told(self, child: Child) -> bool:
        """Return True if the log says that this child, or another one in its host, is late."""
        keys = child.host.children if child.host is not None else (child.spec.key,)
        return not self._told.isdisjoint(keys)

    def kill_late(self) -> None:
        """Kill children that did not stop, or did not start, in time."""
        now = time.monotonic_ns()
        for key, deadline in list(self._stop_deadlines.items()):
            child = self.children.get(key)
            if child is not None and now < deadline:
                waited_s = child.spec.stop_timeout_s - (deadline - now) / 1e9
                if waited_s > options.STOP_TOLD_S and not self._has_told(child):
                    self._told.add(key)
                    log.warning(
                        "waiting for %s (pid %d) to stop; it is killed if it takes %g s",
                        child.spec.title,
                        child.pid,
                        child.spec.stop_timeout_s,
                    )
            if child is not None and child.host is not None and _only_starts(child.host):
                self.kill(child)
            if now > deadline:
                del self._stop_deadlines[key]
                if child is not None and not (child.host is not None and child.host.is_killed):
                    log.warning(
                        "%s did not stop within %g s: it is killed",
                        child.spec.title,
                        child.spec.stop_timeout_s,
                    )
                    self.kill_hanging(child)
        if now - self._looked_ns < NS_PER_S:
            return
        self._looked_ns = now
        for child in list(self.children.values()):
            if child.state == "starting" and now - child.started_ns > options.START_TIMEOUT_S * 1e9:
                log.error(
                    "%s did not start within %g s: it is killed",
                    child.spec.title,
                    options.START_TIMEOUT_S,
                )
                self.kill_hanging(child)


def _only_starts(host: HostProcess) -> bool:
    """Return True if all actors of this host start, and are to stop."""
    return not host.is_killed and all(
        child.told_to_stop and not child.envelope for child in host.children.values()
    )
