"""The answers that a client waits for, in the order of its commands, whatever the order in which they are known. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

PENDING_MAX: Final = 1000
PENDING_BYTES_MAX: Final = 8 * 1024 * 1024


class Pending:
    """An answer in the queue: its bytes once they are known, and what is done when they are out."""

    __slots__ = ("data", "size", "then")

    def __init__(self, data: bytes | None, size: int = 0, then: Callable[[], None] | None = None) -> None:
        self.data = data
        self.size = size
        self.then = then


class Answers:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._queue: deque[Pending] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) > PENDING_MAX or self._bytes > PENDING_BYTES_MAX

    def expect(self, size: int) -> Pending:
        """A place for what is not known yet; until it is, `size` bytes are held somewhere."""
        pending = Pending(None, size)
        self._queue.append(pending)
        self._bytes += size
        return pending

    def tell(self, pending: Pending, data: bytes, then: Callable[[], None] | None = None) -> None:
        """What was expected."""
        self._bytes -= pending.size
        pending.data = data
        queue = self._queue
        if then is None and len(queue) == 1 and queue[0] is pending:  # of most clients: one publish at a time
            queue.clear()
            self._write(data)
            return
        pending.then = then
        self._flush()

    def say(self, data: bytes, then: Callable[[], None] | None = None) -> None:
        """Write this, and do `then`, once all that was expected before is written."""
        if self._queue:
            self._queue.append(Pending(data, 0, then))
            return
        if data:
            self._write(data)
        if then is not None:
            then()

    def clear(self) -> None:
        self._queue.clear()
        self._bytes = 0

    def _flush(self) -> None:
        """Write what is known at the front in one piece, up to an answer behind which something is done."""
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
