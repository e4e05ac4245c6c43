"""Link connection: one DEALER socket with its monitor, from connect to close.

It has no state of a link, and it never connects again. The next attempt makes a new one.
"""

from __future__ import annotations

from typing import Any

import zmq

from ...wire import sockets
from ...wire.credentials import Credentials


class LinkConnection:
    """A socket that is connected to an endpoint, or is being connected.

    - `leaves`: True if its owner goes elsewhere when the connection is refused.
    """

    def __init__(self, endpoint: str, credentials: Credentials | None, *, leaves: bool) -> None:
        self._socket = sockets.make_dealer(credentials, moves=leaves)
        try:
            self._monitor = sockets.watch(self._socket)
            sockets.connect(self._socket, endpoint)
        except zmq.ZMQError:
            sockets.close(self._socket, None)
            raise
        self.fds = int(self._socket.getsockopt(zmq.FD)), int(self._monitor.getsockopt(zmq.FD))
        self._descriptor = -1  # of the connection, from its first message on
        self._outbox: list[list[Any]] = []  # frames that the pipe did not take

    def send(self, frames: list[Any]) -> bool:
        """Send these frames after all frames of earlier calls. Return False if they have to wait.

        The high-water marks are above all credits, so a full pipe means that the peer receives
        nothing. The frames then wait, until a heartbeat shows whether the peer is alive.
        """
        if self._outbox or not sockets.send_frames(self._socket, frames):
            self._outbox.append(frames)
            return False
        return True

    def flush(self) -> bool:
        """Send the frames that wait. Return False if some still wait."""
        while self._outbox:
            if not sockets.send_frames(self._socket, self._outbox[0]):
                return False
            self._outbox.pop(0)
        return True

    def receive(self) -> list[Any] | None:
        """Return the frames of the next message, or None if none has arrived."""
        if not sockets.readable(self._socket):
            return None
        frames = sockets.recv_frames(self._socket)
        if frames is not None and self._descriptor < 0:
            self._descriptor = sockets.descriptor_of(frames[-1])
        return frames

    def read_events(self) -> int:
        """Return the events of the monitor since the last call, as one set of bits."""
        return sockets.read_events(self._monitor)

    def bytes_moved(self) -> int:
        """Return the bytes that it has moved so far in both directions, or 0 if not known."""
        return sum(sockets.bytes_moved(self._descriptor))

    def close(self, linger_ms: int) -> None:
        sockets.close(self._socket, self._monitor, linger_ms)
