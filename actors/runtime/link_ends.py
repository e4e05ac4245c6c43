"""Notices at once that the connection of a peer has ended, for example because its process was
killed.

Without this, a peer that ended without Bye is missed after two of its heartbeats only. Meanwhile it
keeps what it held: the messages of a consumer, the credit of a producer.

ZeroMQ does not tell a ROUTER which peer is gone. But a monitor reports the descriptor of each
connection that ends, and each message that was received knows the descriptor it came from. So a
peer is noted with the descriptor of its first message. Descriptors are reused, and the report and
the messages come on different ways. So a report is only a reason to ask: `Port.is_gone` sends the
peer a frame, which ZeroMQ refuses if the connection has ended (ROUTER_MANDATORY). A peer that is
still there stays noted.

It asks a moment after the report, and when no message waits at the port. By then the peer's last
messages, which ZeroMQ still delivers, have been handled: its last answers, and the Bye of a peer
that closed. If the port is never empty, the peer's heartbeats are missed first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...transport.units import NS_PER_MS
from ...transport.wire import sockets
from .actor import Actor
from .polling import PolledSocket
from .port import Envelope, Port

WAIT_MS: Final = 50.0


class LinkEnds:
    """The peers of one ROUTER whose ends are noticed.

    - `is_open`: Returns True if this peer still has something here.
    - `on_end`: Called with each open peer whose connection has ended.
    """

    def __init__(
        self,
        host: Actor,  # type: ignore[type-arg]
        port: Port,
        is_open: Callable[[Envelope], bool],
        on_end: Callable[[Envelope], object],
    ) -> None:
        self._host = host
        self._port = port
        self._is_open = is_open
        self._on_end = on_end
        self._peers: dict[int, set[Envelope]] = {}  # descriptor -> peers
        self._reports: deque[tuple[int, int]] = deque()  # (time, descriptor)
        self._monitor = sockets.watch_ends(port.socket)
        host.listen_raw(PolledSocket(self._monitor), self._read)

    def note(self, peer: Envelope, descriptor: int) -> None:
        """Watch this peer, whose message came from this descriptor."""
        if descriptor >= 0:
            self._peers.setdefault(descriptor, set()).add(peer)

    def _read(self) -> None:
        now_ns = time.monotonic_ns()
        is_idle = not self._reports
        for descriptor in sockets.read_ends(self._monitor):
            peers = {peer for peer in self._peers.pop(descriptor, ()) if self._is_open(peer)}
            if peers:
                self._peers[descriptor] = peers
                self._reports.append((now_ns, descriptor))
        if is_idle and self._reports:
            self._host.every(WAIT_MS, self._ask)

    def _ask(self) -> None:
        """Ask the peers of the reports that are old enough, unless their messages may wait."""
        if self._port.readable():
            return
        until_ns = time.monotonic_ns() - int(WAIT_MS * NS_PER_MS) // 2
        while self._reports and self._reports[0][0] <= until_ns:
            _, descriptor = self._reports.popleft()
            peers = self._peers.pop(descriptor, set())
            gone = {peer for peer in peers if self._is_open(peer) and self._port.is_gone(peer)}
            for peer in gone:
                self._on_end(peer)
            if peers - gone:
                self._peers.setdefault(descriptor, set()).update(peers - gone)
        if not self._reports:
            self._host.cease(self._ask)
