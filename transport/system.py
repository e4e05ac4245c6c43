"""System: everything in the clients and commands that depends on the operating system.

The broker runs only on Linux. Clients run on macOS and Windows, too, and speak to a broker over
TCP. All that differs there is here, and nowhere else: a set of descriptors to wait for, a way to
wake a thread that waits for it, and small facts such as the name of this machine. Each has two
variants with the same interface. One of them is chosen when this module is imported. Both variants
can be used on Linux, so the tests run them there (`tests/transport/test_system.py`). Nothing here
asks for the platform while messages move.

The choice follows what Python offers, and not the platform's name. So a system with `epoll` and
`eventfd` gets the fast variants, whatever its name is.

Rejected: the variants of Linux for all systems, behind an emulation of `epoll`. The fast path of a
client on Linux would then contain the emulation. Rejected: `kqueue` on macOS, and `selectors`. The
first would never run in a test of this project. The second builds its own objects for each event,
which costs each message on Linux time.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from .errors import E_LIMIT, E_UNSUPPORTED, Refused, UsageError

NAMES: Final = {"darwin": "macOS", "win32": "Windows", "linux": "Linux"}
SIGNAL_MS: Final = 250
"""How soon Windows notices a signal. There, Ctrl-C does not end a call that waits. So no call waits
longer than this, and Python calls the signal's handler between two of them.
"""
# The longest time for which a thread of a client sleeps. On Linux it is one hour, because the
# system allows at most 24 days.
SLEEP_NS_MAX: Final = SIGNAL_MS * 1_000_000 if sys.platform == "win32" else 3_600_000_000_000
# How late a handler may run for a signal that came just before the system call of a wait.
MISSED_SIGNAL_MS: Final = 1_000
# Signals to stop that come within this time are one request.
SAME_REQUEST_S: Final = 0.5
RUNS_BROKERS: Final = sys.platform == "linux"
DOCS: Final = "docs/other-systems.md"

Ready = list[tuple[int, int]]


def system_name() -> str:
    """Return the name of this operating system for people, such as "macOS"."""
    return NAMES.get(sys.platform, sys.platform)


def check_runs_brokers(what: str) -> None:
    """Raise `UsageError` (E_UNSUPPORTED) if this system is not Linux.

    `what`: the subject of the error's text, such as "zsq serve".
    """
    if not RUNS_BROKERS:
        text = (
            f"{what} needs Linux, and this is {system_name()}. Run the broker on Linux or in a "
            "container. Clients and the commands that speak to a broker work here over TCP: "
            f"--url tcp://HOST:4153 (see {DOCS})"
        )
        raise UsageError(E_UNSUPPORTED, text)


def node_name() -> str:
    """Return the name of this machine. Consumers have it in their default label."""
    return os.uname().nodename if hasattr(os, "uname") else socket.gethostname()


def user_id() -> int | None:
    """Return the number of this user, or None on a system whose users have no numbers (Windows)."""
    get = getattr(os, "geteuid", None)
    return None if get is None else int(get())


_after_fork: Final[list[Callable[[], None]]] = []
_pid = os.getpid()  # the process in which they were called last


def after_fork(call: Callable[[], None]) -> None:
    """Call this in each forked child. See `note_fork`."""
    _after_fork.append(call)


def note_fork() -> None:
    """Call what `after_fork` was given, if this is a forked child where it was not called yet.

    Python calls this in a child, except if a program forks below it (uWSGI does). So clients call
    it, too. What it calls replaces locks that a thread of the parent may have held at the fork.
    """
    global _pid
    if _pid != os.getpid():
        _pid = os.getpid()
        for call in _after_fork:
            call()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=note_fork)


# Waiting for a few descriptors


def _by_poll(fds: Collection[int], timeout_ms: float) -> list[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_ms)]


def _by_select(fds: Collection[int], timeout_ms: float) -> list[int]:
    """Wait as on Windows, which has nothing else. It takes at most 512 sockets."""
    return select.select(fds, (), (), min(timeout_ms, SIGNAL_MS) / 1000)[0]


wait_readable: Final = _by_poll if hasattr(select, "poll") else _by_select
"""Wait until one of these descriptors is readable, and return those that are.

Returns an empty list after `timeout_ms` milliseconds, and may do so earlier.
"""


# Wakers


class EventWaker:
    """A waker wakes a thread that waits for a descriptor. This one is an eventfd of Linux.

    It stays readable from `wake` until `drain`. A signal handler may call `wake`.
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = -1
        try:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise Refused(E_LIMIT, why_no_file(error)) from None

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        """Make it no longer readable. Does nothing if it is not readable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor. The waker cannot be used afterwards. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SocketWaker:
    """A waker for systems without eventfd: a pair of sockets. See `EventWaker`.

    A write to `writer` wakes, too.

    Rejected: a pipe. Windows can wait only for sockets.
    """

    __slots__ = ("_reader", "writer")

    def __init__(self) -> None:
        self._reader, self.writer = socket.socketpair()
        self._reader.setblocking(False)
        self.writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # its buffer is full, so it is readable
            self.writer.send(b"\0")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        self._reader.close()
        self.writer.close()


# Event loops and signals


if TYPE_CHECKING:
    import asyncio

_NO_READER: Final = (
    "the event loop {loop} cannot watch sockets; on Windows, run the program with zsq.aio.run(...) "
    "or asyncio.run(..., loop_factory=asyncio.SelectorEventLoop) (see " + DOCS + ")"
)


def _add_reader(loop: asyncio.AbstractEventLoop, fd: int, call: Callable[[], object]) -> None:
    try:
        loop.add_reader(fd, call)
    except NotImplementedError:
        text = _NO_READER.format(loop=type(loop).__name__)
        raise UsageError(E_UNSUPPORTED, text) from None


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waker = SocketWaker()
    _add_reader(loop, waker.fileno(), waker.drain)
    before = signal.set_wakeup_fd(waker.writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        loop.remove_reader(waker.fileno())
        waker.close()


woken_by_signals: Final = (
    _woken_by_signals
    if sys.platform == "win32"
    else contextlib.nullcontext["asyncio.AbstractEventLoop"]
)
"""While the context is open, let each signal wake this event loop, so that its handler runs.

On Windows, Ctrl-C would else have no effect until something else wakes the loop.
"""


@contextlib.contextmanager
def _calls_of_loop(
    loop: asyncio.AbstractEventLoop, numbers: Collection[int], call: Callable[[], object]
) -> Iterator[None]:
    requests = StopRequests()

    def handle(number: int) -> None:
        if not requests.is_second():
            call()
            return
        loop.remove_signal_handler(number)
        signal.raise_signal(number)

    for number in numbers:
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in numbers:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)


@contextlib.contextmanager
def _calls_of_handlers(
    loop: asyncio.AbstractEventLoop, numbers: Collection[int], call: Callable[[], object]
) -> Iterator[None]:
    """Make the calls as on Windows, whose event loops have no signal handlers."""
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return

    before: dict[int, Any] = {}
    requests = StopRequests()

    def restore(number: int) -> None:
        handler = before[number]
        signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, frame: object) -> None:
        if not requests.is_second():
            loop.call_soon_threadsafe(call)
            return
        restore(number)
        signal.raise_signal(number)

    with _woken_by_signals(loop):
        for number in numbers:
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for number in numbers:
                restore(number)


calls_on_signals: Final = _calls_of_handlers if sys.platform == "win32" else _calls_of_loop
"""While the context is open, let the event loop make a call for each of these signals to stop.

A second request to stop does what the signal did before, or ends the program.

Only the loop of the main thread can do this. In another thread, nothing happens.
"""


# Sets of descriptors


def why_no_file(error: Exception) -> str:
    """Return the text of an error of the system or of ZeroMQ.

    If this process may open no more files, the text names the limit.
    """
    if getattr(error, "errno", None) != errno.EMFILE:
        return str(error)
    try:
        import resource  # not on Windows

        limit = f" ({resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
    except ImportError:
        limit = ""
    return (
        f"this process has reached its limit of open files{limit}; raise it (ulimit -n), or use "
        "fewer clients: each takes about 7"
    )


def why_no_more_files() -> str:
    """Return why this process can open no more files, or "" if it can open one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return why_no_file(error)
    return ""


class EpollSet:
    """A set of descriptors to wait for. This one is an epoll set of Linux.

    Any thread may change the set while another thread waits for it. The waiting thread then waits
    for the changed set. `poll` takes seconds and returns the readable descriptors, as pairs of
    which the first is the descriptor. It returns an empty list at the end of the time, and may do
    so earlier. `register` and `unregister` raise `OSError` for a descriptor that is registered, or
    is not. A descriptor must be unregistered before it is closed.
    """

    __slots__ = ("_epoll", "_loop", "close", "fileno", "poll", "unregister")

    def __init__(self) -> None:
        try:
            epoll = self._epoll = select.epoll()
        except OSError as error:
            raise Refused(E_LIMIT, why_no_file(error)) from None
        self._loop: asyncio.AbstractEventLoop | None = None
        # These are methods of the epoll set itself. A method of this class around each of them
        # would cost each wait another call.
        self.poll: Final[Callable[[float], Ready]] = epoll.poll
        self.fileno: Final[Callable[[], int]] = epoll.fileno
        self.close: Final[Callable[[], None]] = epoll.close
        self.unregister: Final[Callable[[int], None]] = epoll.unregister

    def register(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def wait_beside(self, fd: int, timeout_ms: float) -> tuple[bool, bool]:
        """Wait until `fd` or a descriptor of the set is readable.

        Return for each of both whether it is. Both may be False before the end of the time.
        """
        readable = wait_readable((fd, self._epoll.fileno()), timeout_ms)
        return fd in readable, len(readable) > (fd in readable)

    def attach(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        """Let the event loop make this call while a descriptor of the set is readable.

        Raises `UsageError` (E_UNSUPPORTED) if the loop cannot watch descriptors. From now on only
        the thread of the loop may use the set.
        """
        # An event loop can wait for an epoll set as for any descriptor. The set stays readable
        # while one of its descriptors is readable.
        _add_reader(loop, self._epoll.fileno(), call)
        self._loop = loop

    def detach(self) -> None:
        """Undo `attach`. The loop may be closed already."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._epoll.fileno())


class SelectSet:
    """A set of descriptors for systems without epoll. See `EpollSet` for its contract.

    A system call of these systems waits for a list, and does not see that the set has changed. So a
    change wakes the threads that wait, through a waker that is in each list. They then return an
    empty list, and their callers wait again. The waker is drained only when no thread waits, so
    that one thread cannot take it away from another. Without a waiting thread, a change costs no
    system call.

    Each wait costs time for each descriptor. A client has two for each link, so this matters only
    to clients with hundreds of topics.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waker: Final = SocketWaker()
        self._watched: dict[int, None] = {}
        self._waiting = 0  # the number of threads that wait
        self._changes = 0
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: Callable[[], object] = bool

    def register(self, fd: int) -> None:
        with self._lock:
            if fd in self._watched:
                raise FileExistsError(f"descriptor {fd} is registered already")
            self._watched[fd] = None
            self._changed()
        if self._loop is not None:
            _add_reader(self._loop, fd, self._call)

    def unregister(self, fd: int) -> None:
        with self._lock:
            if fd not in self._watched:
                raise FileNotFoundError(f"descriptor {fd} is not registered")
            del self._watched[fd]
            self._changed()
        if self._loop is not None:
            self._loop.remove_reader(fd)

    def _changed(self) -> None:
        self._changes += 1
        if self._waiting:
            self._waker.wake()
            self._woken = True

    def poll(self, timeout_s: float) -> Ready:
        return [(fd, 1) for fd in self._wait((), timeout_s * 1000)]

    def wait_beside(self, fd: int, timeout_ms: float) -> tuple[bool, bool]:
        readable = self._wait((fd,), timeout_ms)
        return fd in readable, len(readable) > (fd in readable)

    def _wait(self, besides: tuple[int, ...], timeout_ms: float) -> list[int]:
        with self._lock:
            before = self._changes
            wanted = [*besides, *self._watched]
            self._waiting += 1
        try:
            readable = wait_readable([self._waker.fileno(), *wanted], timeout_ms)
        except (OSError, ValueError):
            # Windows refuses a list with a socket that another thread has closed meanwhile.
            if before == self._changes:
                raise
            return []
        finally:
            with self._lock:
                self._waiting -= 1
                if self._woken and not self._waiting:
                    self._waker.drain()
                    self._woken = False
        # Without those that were removed meanwhile: their numbers may have other owners now.
        return [fd for fd in readable if fd in self._watched or fd in besides]

    def attach(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        # The waker stands for the first descriptor, because the set may be empty.
        for fd in (self._waker.fileno(), *self._watched):
            _add_reader(loop, fd, call)
        self._loop, self._call = loop, call

    def detach(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            for fd in (self._waker.fileno(), *self._watched):
                loop.remove_reader(fd)

    def close(self) -> None:
        self._waker.close()

    def __del__(self) -> None:
        """Close the waker. No thread waits, because no thread uses this object."""
        if hasattr(self, "_waker"):
            self._waker.close()


# A checker of types sees the variants of Linux. Both variants have the same methods.
if TYPE_CHECKING or hasattr(os, "eventfd"):
    Waker = EventWaker
else:
    Waker = SocketWaker
if TYPE_CHECKING or hasattr(select, "epoll"):
    EventSet = EpollSet
else:
    EventSet = SelectSet


class SignalFlag:
    """A flag that a signal handler sets, and for which a thread waits. Any thread may use it.

    `threading.Event` is not made for this. Its `set` and `wait` take one lock, so a handler that
    interrupts `wait` waits for its own thread. And a signal that arrives just before the system
    call of an endless wait has no effect until the next signal arrives.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waker = Waker()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waker.wake()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True as soon as the flag is set, or False after this time."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_set and (left_s := until - time.monotonic()) > 0:
            wait_readable((self._waker.fileno(),), min(1000 * left_s, MISSED_SIGNAL_MS))
        return self._is_set

    def __del__(self) -> None:
        if hasattr(self, "_waker"):  # there may have been no file descriptor for it
            self._waker.close()


class StopRequests:
    """Tells a second request to stop from one request that arrives as several signals.

    `timeout` sends SIGTERM to the process and to its group, so the program gets it twice within a
    millisecond. A person or a service manager sends a second one later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_s: float | None = None

    def is_second(self) -> bool:
        """Return True if this signal belongs to a second request."""
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        return now_s - self._first_s > SAME_REQUEST_S
