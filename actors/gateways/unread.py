"""Unread: the bytes that were sent to each client and still wait in its pipe.

They are limited because a client that does not read its replies must not fill the memory.
ZeroMQ's own limit counts messages, and 20,000 replies of 1 MB are 20 GB. ZeroMQ does not report
how full a pipe is. But a frame that is sent without a copy reports when libzmq has released it,
because the kernel took it or the peer is gone. So large replies are sent as such frames and
counted. Small frames are not counted: the high-water mark limits them. Credit limits each
consumer and producer. Large frames to consumers are counted nevertheless, because thousands of
consumers have thousands of credits.

Each client has a limit, and all clients share a budget. The gateway cannot empty a pipe.
So above the budget it sends nothing more to a client that holds more than an equal share.
Clients that read hold little and continue. The memory of a client that never reads is freed
when the system ends its connection (TCP_MAXRT in `ZeroMqGateway._bind`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import zmq

from ..runtime.process import memory_bytes

COUNTED_BYTES_MIN: Final = 4 * 1024
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
SETTLE_NS: Final = 50_000_000  # above the budget, sent frames are checked at most this often
SHARE_OF_MEMORY: Final = 4  # the budget of all clients is a quarter of the memory
BUDGET_BYTES_MIN: Final = 256 * 1024 * 1024
BUDGET_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024


def budget_bytes() -> int:
    """Return the budget for all clients of a gateway, which depends on the machine's memory."""
    return min(max(memory_bytes() // SHARE_OF_MEMORY, BUDGET_BYTES_MIN), BUDGET_BYTES_MAX)


class Unread:
    """The unread bytes of the clients of one gateway, which share `budget` bytes."""

    def __init__(self, budget: int = BUDGET_BYTES_MAX) -> None:
        self._budget = budget
        self._settled_ns = 0
        self.total = 0
        self._held: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._bytes: dict[bytes, int] = {}

    def bytes_of(self, client: bytes) -> int:
        held = self._held.get(client)
        if held is None:
            return 0
        while held and held[0][0].done:  # a pipe releases frames in the order of sending
            size = held.popleft()[1]
            self._bytes[client] -= size
            self.total -= size
        if held:
            return self._bytes[client]
        del self._held[client], self._bytes[client]
        return 0

    def full(self, client: bytes) -> bool:
        """Return True if nothing more may be sent to the client."""
        mine = self.bytes_of(client)
        return mine > UNREAD_BYTES_MAX or (
            mine > 0 and self._over() and mine > self._budget // len(self._held)
        )

    def _over(self) -> bool:
        if self.total <= self._budget:
            return False
        now_ns = time.monotonic_ns()
        if now_ns - self._settled_ns >= SETTLE_NS:
            self._settled_ns = now_ns
            self.settle()
        return self.total > self._budget

    def counted(
        self, client: bytes, frames: Sequence[Any], least: int = COUNTED_BYTES_MIN
    ) -> list[Any]:
        """Return the frames to send, and count those of at least `least` bytes."""
        return [self._counted(client, frame) if len(frame) >= least else frame for frame in frames]

    def _counted(self, client: bytes, frame: Any) -> Any:
        tracked = zmq.Frame(getattr(frame, "buffer", frame), track=True, copy=False)
        assert tracked.tracker is not None
        self._held.setdefault(client, deque()).append((tracked.tracker, len(tracked)))
        self._bytes[client] = self._bytes.get(client, 0) + len(tracked)
        self.total += len(tracked)
        return tracked

    def settle(self) -> None:
        """Forget clients that have read everything. Called regularly."""
        for client in list(self._held):
            self.bytes_of(client)
