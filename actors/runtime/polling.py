"""Waiting for input: an epoll set of ZeroMQ sockets and plain descriptors.

`zmq_poll` makes two system calls for each socket and each wait, and most waits make it look twice.
A topic has ten sockets, so its loop made 48 system calls for a message that arrived alone, and 43
of them only looked for news. Here only the sockets that may have news are checked (17 calls).

The descriptor of a ZeroMQ socket (ZMQ_FD) shows that libzmq has *commands* for the socket, for
example that a message arrived. Any call on the socket may process the commands. After that, the
descriptor is silent although messages may wait. So a socket that was used since its last check
(`unchecked`) must be checked before the loop sleeps. The check processes the commands too. What
arrives after it makes the descriptor readable again. (Source: the manual of zmq_getsockopt, at
ZMQ_EVENTS and ZMQ_FD.)
"""

from __future__ import annotations

import select
import time
from typing import Any, Final, Protocol

import zmq
import zmq.backend

# The binding's own method avoids the enum conversions of its wrapper.
_get: Final[Any] = zmq.backend.Socket.get
_FD: Final = int(zmq.FD)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class PolledSocket:
    """A ZeroMQ socket for which a loop waits.

    `unchecked` is True if the socket was used since its last check. To take `socket` counts as use,
    because the caller may do anything with it.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.unchecked = True

    @property
    def socket(self) -> zmq.Socket[bytes]:
        self.unchecked = True
        return self._socket

    def readable(self) -> bool:
        """Return True if a message waits. This is the check."""
        self.unchecked = bool(_get(self._socket, _EVENTS) & _POLLIN)
        return self.unchecked


class HasDescriptor(Protocol):
    """An object with a plain descriptor."""

    def fileno(self) -> int: ...


Source = PolledSocket | HasDescriptor | int


class Poller:
    """The sockets and descriptors of one loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, PolledSocket] = {}
        self._others: dict[int, Source] = {}

    def register(self, source: Source) -> None:
        """Wait for this source too, until `unregister`. A descriptor must still be open then."""
        fd = _descriptor(source)
        if isinstance(source, PolledSocket):
            self._sockets[fd] = source
        else:
            self._others[fd] = source
        self._epoll.register(fd, select.EPOLLIN)

    def unregister(self, source: Source) -> None:
        fd = _descriptor(source)
        self._epoll.unregister(fd)
        del (self._sockets if isinstance(source, PolledSocket) else self._others)[fd]

    def poll(self, timeout_ms: int) -> list[Source]:
        """Return the sources that are readable, each of them once.

        Wait for the first one, at most `timeout_ms`.
        """
        sockets = self._sockets
        ready: list[Source] = [
            source for source in sockets.values() if source.unchecked and source.readable()
        ]
        ends = time.monotonic() + timeout_ms / 1_000
        while True:
            for fd, _ in self._epoll.poll(0 if ready else max(0.0, ends - time.monotonic())):
                source = sockets.get(fd)
                if source is None:
                    ready.append(self._others[fd])
                # An unchecked one is in the list already.
                elif not source.unchecked and source.readable():
                    ready.append(source)
            if ready or time.monotonic() >= ends:
                return ready

    def close(self) -> None:
        self._epoll.close()


def _descriptor(source: Source) -> int:
    if isinstance(source, int):
        return source
    return int(_get(source.socket, _FD)) if isinstance(source, PolledSocket) else source.fileno()
