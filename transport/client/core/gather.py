"""Gather: messages that linger until their block is full, or their time is over."""

from __future__ import annotations

from ...block.block import LARGEST, pack
from ...wire.header_flags import with_flags
from .producer_session import PendingBlock


class Gather:
    """Lingering messages, one list for each column, and the pending block that they will become."""

    __slots__ = ("bodies", "due_ns", "headers", "keys", "pending", "room", "tags")

    def __init__(self, room: int, due_ns: int) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.tags: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.room = room  # the number of bytes that still fit
        self.due_ns = due_ns
        self.pending = PendingBlock()

    def add_attributes(self, key: bytes | None, tag: bytes | None, headers: bytes | None) -> None:
        """Add the attributes of the newest message. A column is created with its first value."""
        self.keys = self._put(self.keys, key)
        self.tags = self._put(self.tags, tag)
        self.headers = self._put(self.headers, headers)

    def _put(
        self, column: list[bytes | None] | None, value: bytes | None
    ) -> list[bytes | None] | None:
        if value is None and column is None:
            return None
        column = [] if column is None else column
        column += [None] * (len(self.bodies) - 1 - len(column))
        column.append(value)
        return column

    def seal(self) -> PendingBlock:
        count = len(self.bodies)
        for column in (self.keys, self.tags, self.headers):
            if column is not None:
                column += [None] * (count - len(column))
        block = pack(
            self.bodies, keys=self.keys, tags=self.tags, headers=self.headers, limits=LARGEST
        )
        self.pending.seal(with_flags(block, self.headers))
        return self.pending
