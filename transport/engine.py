"""The part of a client that never waits: its links, what is due when, and who is waiting for what.

The blocking client (`drive.py`) and the asyncio client (`aio.py`) are two ways to turn the same engine. An engine owns an
epoll set of its sockets' descriptors. ZeroMQ's are edges: one is readable when there is news, and whoever touches the
socket takes the news; so after each send the link is drained too, and what a bounded drain leaves over is due at once.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final

from .link import Link

FAR_NS: Final = 1 << 62
Ready = list[tuple[int, int]]


class Waiter:
    """Somebody who waits until `done()`; `wake` is called then, once, under the engine's lock; or when `deadline_ns` has passed."""

    __slots__ = ("deadline_ns", "done", "wake")

    def __init__(self, done: Callable[[], bool], wake: Callable[[], None], deadline_ns: int = FAR_NS) -> None:
        self.done = done
        self.wake = wake
        self.deadline_ns = deadline_ns


class Engine:
    """Links by descriptor, timers, waiters. Not thread-safe by itself."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.links: list[Link] = []
        self.due_ns = FAR_NS  # a lower bound of when `timers` has something to do
        self.turns = 0
        self.waiters: list[Waiter] = []
        self._sockets: dict[int, Link] = {}
        self._monitors: dict[int, Link] = {}

    # Links

    def add(self, link: Link) -> None:
        self.links.append(link)

    def watch(self, link: Link, socket_fd: int, monitor_fd: int) -> None:
        self._sockets[socket_fd] = link
        self._monitors[monitor_fd] = link
        self.epoll.register(socket_fd, select.EPOLLIN)
        self.epoll.register(monitor_fd, select.EPOLLIN)

    def forget(self, socket_fd: int, monitor_fd: int) -> None:
        for table, fd in ((self._sockets, socket_fd), (self._monitors, monitor_fd)):
            if table.pop(fd, None) is not None:
                self.epoll.unregister(fd)

    def sooner(self, at_ns: int) -> None:
        if at_ns < self.due_ns:
            self.due_ns = at_ns

    # Turning

    def turn(self, ready: Ready) -> None:
        """Take in what came on the ready descriptors, then what is due."""
        self.turns += 1
        now = time.monotonic_ns()
        for fd, _ in ready:
            link = self._sockets.get(fd)
            if link is not None:
                link.take_in(now)
                continue
            link = self._monitors.get(fd)
            if link is not None:
                link.check_monitor(now)
        if now >= self.due_ns:
            self.timers(now)

    def timers(self, now_ns: int) -> None:
        """All that is due: heartbeats, new attempts, what a subclass adds."""
        self.due_ns = FAR_NS
        for link in list(self.links):
            self.sooner(link.on_time(now_ns))
        for waiter in self.waiters:
            if waiter.deadline_ns <= now_ns:
                waiter.deadline_ns = FAR_NS  # told once; it sees for itself that it is too late
                waiter.wake()
            self.sooner(waiter.deadline_ns)

    def settle(self) -> None:
        """Wake whoever has what it waits for."""
        if self.waiters:
            ended = [waiter for waiter in self.waiters if waiter.done()]
            for waiter in ended:
                self.waiters.remove(waiter)
                waiter.wake()

    def stop(self, linger_ms: int = 0) -> None:
        """Close all links; the engine cannot be used again. The epoll set is closed with the last who sleeps on it."""
        for link in self.links:
            link.stop(linger_ms)
        self.links.clear()
