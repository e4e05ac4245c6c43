"""Storage listener: what a topic's storage tells its topic.

It is a protocol because the topic uses its storage, which cannot import the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .sifting import Left


class StorageListener(Protocol):
    """The methods of a topic that its storage calls. The calls are in the order of the appends."""

    def appended(self, request: int, first_offset: int, time_ns: int) -> None:
        """Note that an append is stored as the sync mode promises.

        The offsets of its blocks are consecutive from `first_offset` on. All blocks have the time
        `time_ns`.
        """

    def head_moved(self, head: int) -> None:
        """Note the new durable end after an append that the topic did not make.

        Such appends are committed stages, and delayed messages that became due.
        """

    def repeated(self, request: int, left: Mapping[int, Left]) -> None:
        """Note what is left of blocks of a request, because their other messages are known.

        `left` is by the positions of the blocks in the request. It is called before the blocks are
        stored. The offsets of `appended` and the keys of `delayed_stored` are then those of what is
        left.
        """

    def delayed_stored(self, request: int, keys: Sequence[tuple[int, int]]) -> None:
        """Note that these blocks are stored under these keys: (due time, serial)."""

    def delayed_failed(self, request: int, code: str, text: str) -> None:
        """Note that these blocks are not stored."""
