"""Process table: starts hosts through the forkserver, watches them by their pidfds, and has a row
for each actor (a *child*) in them.

It does not use multiprocessing to watch them: when the forkserver is killed, multiprocessing
reports all children as dead although all of them still run. Each host first sends its pidfd (a pid
may be used again) over a pipe. The other end of the pipe stays open here as the host's lifeline:
when this process dies, each host reads the end of its pipe and ends too. `host.py` is the other
side.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing.reduction
import os
import select
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from ..settings import options
from . import forkserver
from .child import OUT_OF_FILES, ChildSpec, Failure, Phase
from .host import ENDED, NO_FILES_WORD, StartOrder, host_main
from .process import memory_bytes

log = logging.getLogger("zsq")

START_FILES: Final = 16  # a start takes fewer descriptors than this


def processes_by_memory() -> int:
    """Return how many processes fit into the memory of this machine or container."""
    return min(
        max(memory_bytes() // options.PROCESS_MEMORY_BYTES, options.PROCESSES_MAX_LEAST),
        options.PROCESSES_MAX,
    )


def shared_title(number: int) -> str:
    return f"quiet {number}"


@dataclass(slots=True, eq=False)
class HostProcess:
    """A process that runs actors: one, or many if it is a shared host (`number` is from 1 on).

    `ends` and `is_left` are from `placement.py`. `actors` counts the channels of a topic before
    they start. If the host `is_crowded`, topics leave it, for these are too many. After its end,
    `is_explained` is True if one of its actors is the known cause.
    """

    pid: int
    lifeline: Connection
    number: int = 0
    ends: int = 0
    is_left: bool = False
    actors: int = 0
    is_crowded: bool = False
    pidfd: int = -1
    children: dict[int, Child] = field(default_factory=dict)
    unsent: deque[StartOrder] = field(default_factory=deque)  # actors to start
    lacks_files: bool = False
    is_killed: bool = False
    is_explained: bool = False
    started_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def is_shared(self) -> bool:
        return self.number > 0

    @property
    def title(self) -> str:
        return shared_title(self.number)


@dataclass(slots=True, eq=False)
class Child:
    """An actor, as the supervisor sees it. `state` is starting, up, stopping or ended.

    `host` is its process, or None for an actor of an earlier broker.
    """

    spec: ChildSpec
    host: HostProcess | None
    state: str = "starting"
    envelope: tuple[bytes, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)  # the newest pulse, see `pulses.py`
    started_ns: int = field(default_factory=time.monotonic_ns)
    pulsed_ns: int = 0  # the time when `stats` arrived
    topic_end: int = 0  # of a channel: the end of its topic that was known when `stats` arrived
    news_ns: int = 0  # the time when the process last sent a pulse without being asked
    failure: Failure | None = None
    # True if the child was asked to end, so that its end is no failure. After the end, `state` no
    # longer shows this.
    told_to_stop: bool = False
    hangs: bool = False  # it was killed, because it did not answer
    owner: Any = None  # the topic group to which it belongs, if any

    @property
    def shared_host(self) -> HostProcess | None:
        """The process in which it lives with other actors, or None if it has its own."""
        return self.host if self.host is not None and self.host.is_shared else None

    @property
    def explains_end(self) -> bool:
        """Return True if it is the known cause of the end of its host.

        Descriptors are missing to the whole host, so no actor is the cause of that.
        """
        return self.hangs or (self.failure is not None and not self.failure.is_out_of_files)

    @property
    def pid(self) -> int:
        return 0 if self.host is None else self.host.pid


class ProcessTable:
    """Living actors by key. `events_fd` is readable when `changes` may have news.

    `actors` holds the dotted name of each kind's class, which only the child imports.
    """

    def __init__(
        self,
        actors: Mapping[str, str],
        supervisor_endpoint: str,
        log_level: str,
        log_format: str = "text",
    ) -> None:
        self._actors = actors
        self.children: dict[int, Child] = {}
        self._endpoint = supervisor_endpoint
        self.log_level = log_level
        self._log_format = log_format
        self._epoll = select.epoll()
        self.hosts: set[HostProcess] = set()
        self._by_fd: dict[int, HostProcess] = {}
        self._forkserver_pidfd = -1

    @property
    def events_fd(self) -> int:
        return self._epoll.fileno()

    def start_forkserver(self) -> None:
        """Start the forkserver from the main thread, or use the one that runs already."""
        self.forkserver_pid = forkserver.begin()
        self._forkserver_pidfd = os.pidfd_open(self.forkserver_pid)
        self._epoll.register(self._forkserver_pidfd, select.EPOLLIN)

    def start(self, spec: ChildSpec, owner: Any = None, host: HostProcess | None = None) -> Child:
        """Start an actor in a process of its own, or in a shared host. It is `up` when it has sent
        Born.

        The caller must know that the actor's predecessor has ended. Raises `OSError` if the actor
        cannot be started.
        """
        first = self._actors[spec.kind], spec
        if host is None:
            host = self._start_host(first, spec.title)
        else:
            host.unsent.append((*first, self.log_level))
            self._send_starts(host)
        child = Child(spec, host, owner=owner)
        host.children[spec.key] = self.children[spec.key] = child
        return child

    def _send_starts(self, host: HostProcess) -> None:
        """Send a shared host the actors to start, as far as it takes them now.

        A host that is stopped takes none. The system calls a pipe writable while three quarters of
        it are free, which is more than an actor needs, so this does not wait.
        """
        fd = host.lifeline.fileno()
        room = select.poll()
        room.register(fd, select.POLLOUT)
        # If the host has just ended, `changes` reports the end of these children too.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while host.unsent and room.poll(0):
                host.lifeline.send(host.unsent.popleft())
        if fd in self._by_fd:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if host.unsent else 0))

    def start_shared(self, number: int, ends: int) -> HostProcess:
        """Start a shared host without actors. Raises `OSError`."""
        host = self._start_host(None, shared_title(number))
        host.number, host.ends = number, ends
        return host

    def _start_host(self, first: tuple[str, ChildSpec] | None, title: str) -> HostProcess:
        self._check_files()
        arguments = (
            first,
            title,
            self._endpoint,
            self.forkserver_pid,
            self.log_level,
            self._log_format,
        )
        ours, theirs = Pipe()
        # The classes of topics and channels are imported in this order.
        needs = first[0] if first is not None else self._actors["channel"]
        with theirs:
            pid = forkserver.start(host_main, arguments, theirs.fileno(), needs=needs)
        host = HostProcess(pid, ours)
        self.hosts.add(host)
        self._by_fd[ours.fileno()] = host
        self._epoll.register(ours.fileno(), select.EPOLLIN)
        return host

    def _check_files(self) -> None:
        """Raise `OSError` if fewer than START_FILES descriptors are free.

        A child connects to this process, and clients follow it. Each test descriptor is opened
        separately, because a duplicate does not count against the limit of the machine.
        """
        spare: list[int] = []
        try:
            for _ in range(START_FILES):
                spare.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for fd in spare:
                os.close(fd)

    def changes(self) -> tuple[list[Child], bool]:
        """Return the actors that have certainly ended, and True if the forkserver is dead.

        It also receives the pidfds of new hosts.
        """
        ended: list[Child] = []
        forkserver_dead = False
        for fd, events in self._epoll.poll(0):
            if fd == self._forkserver_pidfd:
                forkserver_dead = True
                continue
            if (host := self._by_fd.get(fd)) is None:
                continue  # it ended in this same call
            if events & select.EPOLLOUT:
                self._send_starts(host)
            if events == select.EPOLLOUT:
                continue
            if fd == host.pidfd:
                ended += self._host_ended(host)
            elif host.pidfd >= 0:
                ended += self._actors_ended(host)
            else:
                try:
                    host.pidfd = multiprocessing.reduction.recv_handle(host.lifeline)
                except (OSError, EOFError, RuntimeError):
                    # The process died before it could send its pidfd.
                    ended += self._host_ended(host)
                    continue
                if not host.is_shared:
                    self._ignore(fd)
                self._by_fd[host.pidfd] = host
                self._epoll.register(host.pidfd, select.EPOLLIN)
        return ended, forkserver_dead

    def _actors_ended(self, host: HostProcess) -> list[Child]:
        """Return the actors of a shared host that have ended while the host goes on."""
        try:
            words = os.read(host.lifeline.fileno(), ENDED * (len(host.children) + 1))
        except OSError:
            words = b""
        if not words:  # the host ends, as its pidfd will tell
            self._ignore(host.lifeline.fileno())
        host.lacks_files = words.endswith(NO_FILES_WORD)
        keys = (int.from_bytes(words[at : at + ENDED], "big") for at in range(0, len(words), ENDED))
        ended = [child for key in keys if (child := host.children.pop(key, None)) is not None]
        for child in ended:
            self._forget(child)
        return ended

    def _host_ended(self, host: HostProcess) -> list[Child]:
        ended = [] if host.pidfd < 0 else self._actors_ended(host) if host.is_shared else []
        self._ignore(host.lifeline.fileno())
        if host.pidfd >= 0:
            self._ignore(host.pidfd)
            os.close(host.pidfd)
            host.pidfd = -1
        self.hosts.discard(host)
        lacks_files = host.lacks_files or _lacks_files(host.lifeline)
        for child in host.children.values():
            if child.failure is None and lacks_files:
                child.failure = Failure(Phase.RUN, OUT_OF_FILES, os.strerror(errno.EMFILE))
            self._forget(child)
        host.is_explained = any(child.explains_end for child in host.children.values())
        ended += host.children.values()
        host.children.clear()
        host.lifeline.close()
        return ended

    def _ignore(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _forget(self, child: Child) -> None:
        child.state = "ended"
        self.children.pop(child.spec.key, None)

    def kill(self, host: HostProcess) -> None:
        """Send SIGKILL to the process with all its actors; `changes` reports their end."""
        with contextlib.suppress(ProcessLookupError):
            if host.pidfd >= 0:
                signal.pidfd_send_signal(host.pidfd, signal.SIGKILL)
            elif host in self.hosts:
                os.kill(host.pid, signal.SIGKILL)


def _lacks_files(lifeline: Connection) -> bool:
    """Return True if the host reported over the lifeline that it lacks descriptors.

    Without descriptors it has no socket for a report.
    """
    try:
        os.set_blocking(lifeline.fileno(), False)
        word = os.read(lifeline.fileno(), len(NO_FILES_WORD))
    except OSError:
        return False
    return len(word) > 1 and NO_FILES_WORD.startswith(word)
