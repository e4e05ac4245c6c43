"""Resolver: turns the name of a host into addresses, in threads of its own.

libzmq resolves names in its only I/O thread. A name server that does not answer stops this thread
for some ten seconds, again and again, and with it all clients of the process. So libzmq gets
numeric addresses only, and the names are resolved here. An event loop does not wait for a name
either: it asks (`Resolver.ask`), and looks later whether the answer has come.

`getaddrinfo` can hang, and it cannot be cancelled. So the threads are bounded, and one name never
occupies more than one of them: all that ask for a name that is being resolved get the same
resolution. A caller that gives up leaves it running. An answer is used again for as long as it took
to get it. So a client that has given up on a slow name server, and comes back after its other
addresses, finds the answer, and a name that is resolved at once is asked for again at each attempt.

(Rejected: a resolver in Python, which could be cancelled. It would have to read `nsswitch.conf`.)
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from .system import after_fork

THREADS_MAX: Final = 16
NAMES_MAX: Final = 1_000  # names that are being resolved, or whose answer is still used
ADDRESSES_MAX: Final = 16  # the addresses of one name that are tried
KEPT_S_MIN: Final = 0.05
KEPT_S_MAX: Final = 60.0
POLL_S_MIN: Final = 0.001
POLL_S_MAX: Final = 0.05

_Made = TypeVar("_Made")
GetAddresses = Callable[..., list[tuple[Any, ...]]]
"""`socket.getaddrinfo`, or what a test uses instead of it."""


class NotResolved(OSError):
    """A name has no address, or the name server gave no answer in time.

    `reason` says which, without the name.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"the name {host} could not be resolved (DNS): {reason}")
        self.reason = reason


def is_numeric(host: str) -> bool:
    """Return True if this is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Resolution:
    """The addresses of one name, which may come later."""

    def __init__(self, host: str, begun_s: float) -> None:
        self.host = host
        self.begun_s = begun_s
        self.until_s = 0.0  # until when the answer is used again
        self._addresses: tuple[str, ...] = ()
        self._error = ""
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of a resolution that is done: at least one.

        Raises `NotResolved` if there is none.
        """
        if not self._addresses:
            raise NotResolved(self.host, self._error)
        return self._addresses

    def wait(self, timeout_s: float) -> tuple[str, ...]:
        """Wait in this thread, and return the addresses. Raises `NotResolved`, also when late."""
        if not self._ended.wait(timeout_s):
            raise late(self.host, timeout_s)
        return self.addresses()

    def end(self, addresses: tuple[str, ...], error: str, now_s: float) -> None:
        """Set the answer. Only the resolver calls this."""
        kept_s = min(KEPT_S_MAX, max(KEPT_S_MIN, now_s - self.begun_s))
        self._addresses, self._error = addresses[:ADDRESSES_MAX], error
        self.until_s = now_s + kept_s
        self._ended.set()


def late(host: str, seconds: float) -> NotResolved:
    """Return the error about a name whose resolution takes too long."""
    return NotResolved(host, f"no answer within {seconds:g} s")


class Resolver:
    """Resolves names in at most `threads_max` threads. It is thread-safe.

    A thread ends when no name waits for it.
    """

    def __init__(
        self,
        get_addresses: GetAddresses = socket.getaddrinfo,
        *,
        threads_max: int = THREADS_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get_addresses = get_addresses
        self._threads_max = threads_max
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting: deque[Resolution] = deque()
        self._known: dict[str, Resolution] = {}

    def ask(self, host: str) -> Resolution:
        """Begin to resolve a name, or join the resolution that others have begun."""
        with self._lock:
            now_s = self._clock_s()
            known = self._known.get(host)
            if known is not None and not (known.done and known.until_s <= now_s):
                return known
            self._known = {
                name: each
                for name, each in self._known.items()
                if not each.done or each.until_s > now_s
            }
            resolution = Resolution(host, now_s)
            if len(self._known) >= NAMES_MAX:
                resolution.end((), f"{NAMES_MAX:,} other names are being resolved", now_s)
                return resolution
            self._known[host] = resolution
            self._waiting.append(resolution)
            self._start_thread()
            return resolution

    def _start_thread(self) -> None:
        if self._threads >= self._threads_max:
            return
        thread = threading.Thread(target=self._work, name="zsq resolver", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            if not self._threads:
                while self._waiting:
                    self._waiting.popleft().end((), str(error), self._clock_s())
            return
        self._threads += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                resolution = self._waiting.popleft()
            addresses, error = self._resolve(resolution.host)
            resolution.end(addresses, error, self._clock_s())

    def _resolve(self, host: str) -> tuple[tuple[str, ...], str]:
        try:
            rows = self._get_addresses(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # a name that is not valid raises UnicodeError
            return (), getattr(error, "strerror", None) or str(error)
        addresses = dict.fromkeys(str(row[4][0]) for row in rows)
        return tuple(addresses), "the answer is empty"


_of_process: Resolver = Resolver()


def _forget() -> None:
    # The threads of the parent do not exist in a forked child.
    global _of_process
    _of_process = Resolver()


after_fork(_forget)


def resolver() -> Resolver:
    """Return the resolver of this process."""
    return _of_process


async def first_connection(
    host: str,
    timeout_s: float,
    connect_to: Callable[[str], Awaitable[_Made]],
    names: Resolver | None = None,
) -> _Made:
    """Resolve a name in an event loop, and connect to the first of its addresses that answers.

    Raises `NotResolved`, or what `connect_to` raises for the last address.
    """
    addresses = await resolve(host, timeout_s, names)
    for address in addresses[:-1]:
        try:
            return await connect_to(address)
        except OSError:
            continue  # the next address may answer
    return await connect_to(addresses[-1])


async def resolve(host: str, timeout_s: float, names: Resolver | None = None) -> tuple[str, ...]:
    """Return the addresses of a host in an event loop. Raises `NotResolved`."""
    import asyncio

    if is_numeric(host):
        return (host,)
    resolution = (names or resolver()).ask(host)
    deadline_s, pause_s = time.monotonic() + timeout_s, POLL_S_MIN
    while not resolution.done:
        if time.monotonic() >= deadline_s:
            raise late(host, timeout_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S_MAX)
    return resolution.addresses()


def connect(
    place: tuple[str, int],
    timeout_s: float,
    source: tuple[str, int] | None = None,
    names: Resolver | None = None,
) -> socket.socket:
    """Connect as `socket.create_connection` does. The time-out holds for the name, too.

    Raises `OSError`, of which `NotResolved` is one.
    """
    host, port = place
    addresses = (host,) if is_numeric(host) else (names or resolver()).ask(host).wait(timeout_s)
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout_s, source)
        except OSError:
            continue  # the next address may answer
    return socket.create_connection((addresses[-1], port), timeout_s, source)
