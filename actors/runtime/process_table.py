"""Process table: starts children through the forkserver and watches them by their pidfds.

It does not use multiprocessing to watch them: when the forkserver is killed, multiprocessing
reports all children as dead although all of them still run. Each child first sends its pidfd (a pid
may be used again) over a pipe. The other end of the pipe stays open here as the child's lifeline:
when this process dies, each child reads the end of its pipe and ends too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing.reduction
import os
import pkgutil
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from ...transport.memory import keep_memory
from ..settings import options
from . import forkserver, logs
from .child import OUT_OF_FILES, ChildSpec, Failure, Phase
from .process import die_with_parent, is_out_of_files, memory_bytes, set_title

log = logging.getLogger("zsq")

# A child sends this over the lifeline. The attempt to receive a pidfd may consume its first byte.
_NO_FILES_WORD: Final = b"FF"
START_FILES: Final = 16  # a start takes fewer descriptors than this


def processes_by_memory() -> int:
    """Return how many processes fit into the memory of this machine or container."""
    return min(
        max(memory_bytes() // options.PROCESS_MEMORY_BYTES, options.PROCESSES_MAX_LEAST),
        options.PROCESSES_MAX,
    )


@dataclass(slots=True, eq=False)
class Child:
    """A row of the table. `state` is starting, up, stopping or ended."""

    spec: ChildSpec
    pid: int
    lifeline: Connection
    state: str = "starting"
    pidfd: int = -1
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
    owner: Any = None  # the topic group to which it belongs, if any


class ProcessTable:
    """Children by key. `events_fd` is readable when `changes` may have news.

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
        self._by_fd: dict[int, Child] = {}
        self._forkserver_pidfd = -1

    @property
    def events_fd(self) -> int:
        return self._epoll.fileno()

    def start_forkserver(self) -> None:
        """Start the forkserver from the main thread, or use the one that runs already."""
        self.forkserver_pid = forkserver.begin()
        self._forkserver_pidfd = os.pidfd_open(self.forkserver_pid)
        self._epoll.register(self._forkserver_pidfd, select.EPOLLIN)

    def start(self, spec: ChildSpec, owner: Any = None) -> Child:
        """Start a child, which is `up` when it has sent Born.

        The caller must know that the child's predecessor has ended. Raises `OSError` if the child
        cannot be started.
        """
        self._check_files()
        actor = self._actors[spec.kind]
        arguments = (
            actor,
            spec,
            self._endpoint,
            self.forkserver_pid,
            self.log_level,
            self._log_format,
        )
        ours, theirs = Pipe()
        with theirs:
            pid = forkserver.start(child_main, arguments, theirs.fileno(), needs=actor)
        child = Child(spec, pid, ours, owner=owner)
        self.children[spec.key] = child
        self._by_fd[ours.fileno()] = child
        self._epoll.register(ours.fileno(), select.EPOLLIN)
        return child

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
        """Return the children that have certainly ended, and True if the forkserver is dead.

        It also receives the pidfds of new children.
        """
        ended = []
        forkserver_dead = False
        for fd, _ in self._epoll.poll(0):
            if fd == self._forkserver_pidfd:
                forkserver_dead = True
                continue
            child = self._by_fd[fd]
            if fd == child.pidfd:
                ended.append(child)
                continue
            self._epoll.unregister(fd)
            del self._by_fd[fd]
            try:
                child.pidfd = multiprocessing.reduction.recv_handle(child.lifeline)
            except (OSError, EOFError, RuntimeError):
                ended.append(child)  # the child died before it could send its pidfd
                continue
            self._by_fd[child.pidfd] = child
            self._epoll.register(child.pidfd, select.EPOLLIN)
        for child in ended:
            self._forget(child)
        return ended, forkserver_dead

    def _forget(self, child: Child) -> None:
        child.state = "ended"
        self.children.pop(child.spec.key, None)
        if child.pidfd >= 0:
            self._epoll.unregister(child.pidfd)
            del self._by_fd[child.pidfd]
            os.close(child.pidfd)
            child.pidfd = -1
        if child.failure is None and _said_no_files(child.lifeline):
            child.failure = Failure(Phase.RUN, OUT_OF_FILES, os.strerror(errno.EMFILE))
        child.lifeline.close()

    def kill(self, child: Child) -> None:
        """Send SIGKILL; `changes` reports the end."""
        with contextlib.suppress(ProcessLookupError):
            if child.pidfd >= 0:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            elif child.state != "ended":
                os.kill(child.pid, signal.SIGKILL)


def child_main(
    descriptor: int,
    actor: str,
    spec: ChildSpec,
    endpoint: str,
    forkserver_pid: int,
    log_level: str,
    log_format: str = "text",
) -> None:
    """Set up a child process (title, parent's death, pidfd), then run the actor.

    `descriptor` is the child's end of its lifeline.
    """
    lifeline = Connection(descriptor)
    try:
        _become(actor, spec, endpoint, lifeline, forkserver_pid, log_level, log_format)
    except BaseException as error:
        log.debug("%s ended by %r", spec.title, error)
        if is_out_of_files(error):
            with contextlib.suppress(OSError):
                os.write(lifeline.fileno(), _NO_FILES_WORD)
        os._exit(4)


def _said_no_files(lifeline: Connection) -> bool:
    """Return True if the child reported over the lifeline that it lacks descriptors.

    Without descriptors it has no socket for a report.
    """
    try:
        os.set_blocking(lifeline.fileno(), False)
        return os.read(lifeline.fileno(), 2) in (_NO_FILES_WORD, _NO_FILES_WORD[1:])
    except OSError:
        return False


def _become(
    actor: str,
    spec: ChildSpec,
    endpoint: str,
    lifeline: Connection,
    forkserver_pid: int,
    log_level: str,
    log_format: str,
) -> None:
    die_with_parent(forkserver_pid)
    # The child ignores SIGTERM, because the supervisor stops its children. `kill -9` still works.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    set_title(spec.title)
    keep_memory()
    logs.set_up(log_level, log_format, spec.title)
    pidfd = os.pidfd_open(os.getpid())
    multiprocessing.reduction.send_handle(lifeline, pidfd, os.getppid())
    os.close(pidfd)
    pkgutil.resolve_name(actor)(spec.key, spec.title, spec.start).run(endpoint, lifeline.fileno())
