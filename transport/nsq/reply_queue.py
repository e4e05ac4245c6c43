"""Reply queue of an NSQ session: replies are sent in the order of their commands.

It does not know what a reply means. A reply that is not known yet keeps its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

PENDING_MAX: Final = 1000
PENDING_BYTES_MAX: Final = 8 * 1024 * 1024


class PendingReply:
    """A reply in the queue: its bytes when they are known, and a function to call afterwards."""

    __slots__ = ("data", "size", "then")

    def __init__(
        self, data: bytes | None, size: int = 0, then: Callable[[], None] | None = None
    ) -> None:
        self.data = data
        self.size = size
        self.then = then


class ReplyQueue:
    """The replies of a client, which are sent in the order of its commands."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._queue: deque[PendingReply] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) > PENDING_MAX or self._bytes > PENDING_BYTES_MAX

    def expect(self, size: int) -> PendingReply:
        """Add a place for a reply that is not known yet.

        `size`: the bytes that the publish takes in memory until then.
        """
        pending = PendingReply(None, size)
        self._queue.append(pending)
        self._bytes += size
        return pending

    def resolve(
        self, pending: PendingReply, data: bytes, then: Callable[[], None] | None = None
    ) -> None:
        """Set a reply that was expected."""
        self._bytes -= pending.size
        pending.data = data
        queue = self._queue
        # The usual case of a client that publishes one message at a time.
        if then is None and len(queue) == 1 and queue[0] is pending:
            queue.clear()
            self._write(data)
            return
        pending.then = then
        self._flush()

    def add(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Write `data` and call `then` after all earlier replies are written."""
        if self._queue:
            self._queue.append(PendingReply(data, 0, then))
            return
        if data:
            self._write(data)
        if then is not None:
            then()

    def clear(self) -> None:
        self._queue.clear()
        self._bytes = 0

    def _flush(self) -> None:
        """Write the known replies at the front at once, up to a reply with a function to call."""
        queue = self._queue
        while queue and queue[0].data is not None:
            pieces: list[bytes] = []
            then = None
            while then is None and queue and (data := queue[0].data) is not None:
                pieces.append(data)
                then = queue.popleft().then
            self._write(b"".join(pieces))
            if then is not None:
                then()
