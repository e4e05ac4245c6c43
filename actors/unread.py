"""How much of what was sent to a peer still waits in its pipe: what a client asks for and does not read shall not fill the memory.

ZeroMQ counts messages, and 20,000 answers of a megabyte are 20 GB. Nobody tells how full a pipe is, but a frame that is sent without a
copy says when libzmq has let go of it: it went to the kernel, or the peer is gone. So answers of some size go out as such frames and are
counted. Small ones are not worth it: the mark bounds them. Consumers and producers have credit, which bounds theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import zmq

COUNTED_BYTES_MIN: Final = 4 * 1024
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024


class Unread:
    def __init__(self) -> None:
        self._held: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._bytes: dict[bytes, int] = {}

    def bytes_of(self, client: bytes) -> int:
        held = self._held.get(client)
        if held is None:
            return 0
        while held and held[0][0].done:  # a pipe lets go in the order in which it was filled
            self._bytes[client] -= held.popleft()[1]
        if held:
            return self._bytes[client]
        del self._held[client], self._bytes[client]
        return 0

    def full(self, client: bytes) -> bool:
        return self.bytes_of(client) > UNREAD_BYTES_MAX

    def counted(self, client: bytes, frames: Sequence[Any]) -> list[Any]:
        """The same frames, as they are to be sent."""
        return [self._counted(client, frame) if len(frame) >= COUNTED_BYTES_MIN else frame for frame in frames]

    def _counted(self, client: bytes, frame: Any) -> Any:
        made = zmq.Frame(getattr(frame, "buffer", frame), track=True, copy=False)
        assert made.tracker is not None
        self._held.setdefault(client, deque()).append((made.tracker, len(made)))
        self._bytes[client] = self._bytes.get(client, 0) + len(made)
        return made

    def settle(self) -> None:
        """Now and then: forget who has read all."""
        for client in list(self._held):
            self.bytes_of(client)
