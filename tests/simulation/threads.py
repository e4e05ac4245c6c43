"""Replacements for everything other than sockets on which a program can wait: locks, threads,
events, descriptors, and an actor's worker thread.

A thread is one more task of its simulated process. Tasks switch only where real code would wait, so
a critical section without a wait is atomic here. The order in which threads reach locks, jobs and
results varies with the seed.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

from .sockets import DESCRIPTORS, FAKE_FD, Descriptor, source_of
from .world import S, Task, the_world, world_now

_POLLIN: Final = 1


def _process() -> Any:
    """Return the simulated process that runs now, or None while a module is imported without a
    world.
    """
    world = world_now()
    return world.current.process if world is not None and world.current is not None else None


class SimLock:
    def __init__(self) -> None:
        self._held = False
        self._process = _process()

    def readable(self) -> bool:
        return not self._held

    def locked(self) -> bool:
        return self._held

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held:
            if not blocking or timeout == 0:
                return False
            limit = (
                None if timeout < 0 or timeout >= threading.TIMEOUT_MAX / 2 else int(timeout * S)
            )
            if not the_world().wait((self,), self.readable, limit):
                return False
        self._held = True
        return True

    def release(self) -> None:
        assert self._held
        self._held = False
        if self._process is not None:
            self._process.wake(self)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SimEvent:
    def __init__(self) -> None:
        self._set = False
        self._process = _process()

    def readable(self) -> bool:
        return self._set

    is_set = readable

    def set(self) -> None:
        self._set = True
        self._process.wake(self)

    def wait(self, timeout: float | None = None) -> bool:
        return the_world().wait(
            (self,), self.readable, None if timeout is None else int(timeout * S)
        )


class SimQueue:
    """A queue of clients that were dropped, as `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def readable(self) -> bool:
        return bool(self._items)

    def put(self, item: Any) -> None:
        """Add an item. Nobody is woken, because the garbage collector may call this anywhere."""
        self._items.append(item)

    def get(self, timeout: float) -> Any:
        if not the_world().wait((self,), self.readable, int(timeout * S)):
            raise queue.Empty
        return self._items.popleft()


class SimThread:
    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._target, self._args, self.name = target, args, name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = _process().run(
            lambda: self._target(*self._args), self.name, the_world().rng.randrange(10_000, 300_000)
        )

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None:
            world = the_world()
            limit = None if timeout is None else world.now_ns + int(timeout * S)
            while not task.done and (limit is None or world.now_ns < limit):
                world.pause(1_000_000, 1_100_000)


class SimThreading:
    """Replaces the module `threading` in modules of the product."""

    Lock = SimLock
    Event = SimEvent
    Thread = SimThread
    TIMEOUT_MAX = threading.TIMEOUT_MAX

    @staticmethod
    def get_ident() -> int:
        current = the_world().current
        assert current is not None
        return current.number

    @staticmethod
    def current_thread() -> Any:
        return the_world().current

    @staticmethod
    def main_thread() -> Any:
        return _process().tasks[0]


# Descriptors


class SimEpoll(Descriptor):
    def __init__(self, *_: object) -> None:
        super().__init__(_process())
        self._watched: dict[int, Descriptor] = {}

    def register(self, fd: Any, mask: int = _POLLIN) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        if fd in DESCRIPTORS:  # a real one never has news: the pipe of a supervisor that lives
            self._watched[fd] = DESCRIPTORS[fd]

    def unregister(self, fd: int) -> None:
        self._watched.pop(fd, None)

    def sources(self) -> list[Descriptor]:
        return list(self._watched.values())

    def readable(self) -> bool:
        return any(one.readable() for one in self._watched.values())

    def _ready(self) -> list[tuple[int, int]]:
        return [(fd, _POLLIN) for fd, one in self._watched.items() if one.readable()]

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        world = the_world()
        if timeout == 0:
            return self._ready()  # this is a call from a loop that waits elsewhere
        if self.readable():
            world.pause(2_000, 30_000)
            return self._ready()
        world.wait(
            Deep(self), self.readable, None if timeout is None or timeout < 0 else int(timeout * S)
        )
        return self._ready()

    def close(self) -> None:
        DESCRIPTORS.pop(self.fd, None)


class Deep:
    """An epoll set as a source to wait for. It covers everything that the set watches, also what is
    added during the wait.
    """

    def __init__(self, *things: Any) -> None:
        self._things = things

    def __contains__(self, source: object) -> bool:
        return any(
            one is source or (isinstance(one, SimEpoll) and source in one.sources())
            for one in self._things
        )


class SimPoll:
    """Replaces select.poll, for descriptors and epoll sets."""

    def __init__(self) -> None:
        self._things: dict[int, Any] = {}

    def register(self, thing: Any, mask: int = _POLLIN) -> None:
        fd = thing if isinstance(thing, int) else thing.fileno()
        self._things[fd] = source_of(fd)

    def _ready(self) -> list[tuple[int, int]]:
        return [(fd, _POLLIN) for fd, one in self._things.items() if one.readable()]

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        if not self._ready():
            limit = None if timeout_ms is None or timeout_ms < 0 else int(timeout_ms * 1_000_000)
            the_world().wait(Deep(*self._things.values()), lambda: bool(self._ready()), limit)
        else:
            the_world().pause(2_000, 30_000)
        return self._ready()


class EventFd(Descriptor):
    def __init__(self) -> None:
        super().__init__(_process())
        self.count = 0

    def readable(self) -> bool:
        return self.count > 0


def eventfd(initial: int = 0, flags: int = 0) -> int:
    return EventFd().fd


def eventfd_write(fd: int, value: int) -> None:
    made = DESCRIPTORS[fd]
    assert isinstance(made, EventFd)
    made.count += value
    made.process.wake(made)


def eventfd_read(fd: int) -> int:
    made = DESCRIPTORS[fd]
    assert isinstance(made, EventFd)
    if not made.count:
        raise BlockingIOError
    found, made.count = made.count, 0
    return found


class Flag(Descriptor):
    """A descriptor that is readable after the flag is raised."""

    raised = False

    def readable(self) -> bool:
        return self.raised

    def raise_it(self) -> None:
        self.raised = True
        self.process.wake(self)


def is_fake(fd: object) -> bool:
    return isinstance(fd, int) and fd >= FAKE_FD


# An actor's thread


class SimWorkerThread:
    """Replaces `actors.runtime.worker_thread.WorkerThread`. A job runs at some later time, and its
    result arrives at another time.
    """

    def __init__(self, name: str) -> None:
        self._came = EventFd()
        self.pending = 0
        self._jobs: deque[tuple[Any, Callable[[], Any]] | None] = deque()
        self._done: deque[tuple[Any, Any]] = deque()
        self._work = EventFd()
        self._thread = SimThread(self._run, name=name)
        self._thread.start()

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self._jobs.append((tag, job))
        eventfd_write(self._work.fd, 1)

    def fileno(self) -> int:
        return self._came.fd

    def results(self) -> list[tuple[Any, Any]]:
        self._came.count = 0
        found = list(self._done)
        self._done.clear()
        self.pending -= len(found)
        return found

    def _run(self) -> None:
        world = the_world()
        while True:
            world.wait((self._work,), lambda: bool(self._jobs), None)
            world.pause(5_000, 150_000)
            job = self._jobs.popleft()
            if job is None:
                return
            tag, function = job
            # LMDB makes its own syncs, which a slow disk delays.
            if isinstance(tag, tuple) and tag[0] == "commit" and world.disk.slow:
                world.pause(*world.disk.sync_takes_ns())
            try:
                value = function()
            except Exception as error:
                value = error
            world.pause(5_000, 250_000)
            self._done.append((tag, value))
            eventfd_write(self._came.fd, 1)

    def close(self) -> None:
        self._jobs.append(None)
        eventfd_write(self._work.fd, 1)
        self._thread.join()
