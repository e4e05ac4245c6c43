"""What the ticks in the bucket have of each topic, and what a topic may append therefore.

The promises, at each append:

* No offset is given out that no tick in the bucket reserves.
* A takeover has a higher epoch than all ticks before it. This is checked when it is created.
* No message is accepted while a synced message that the bucket does not have is older than the
  bound. This is checked for plain messages: a delayed message is accepted before it comes to the
  log, and rows of a transaction are not acknowledged before the bucket has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zsq.storage.bucket.shipping.tick_format import TAKEOVER, decode_index

if TYPE_CHECKING:
    from .disasters import Accepted

SLACK_NS = 1_000_000


@dataclass
class Shipped:
    """By the uuid of each topic: the end of its messages in the bucket, and of its reserved
    offsets.
    """

    ends: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)

    # What was reserved before the last takeover.
    reserved_before: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    _number: int = -1

    def take(self, tick: bytes) -> str:
        """Note what a tick has that was just created. Return what is wrong with it, or ""."""
        index = decode_index(tick).index
        is_newest = index.number > self._number
        wrong = ""
        if is_newest and index.kind == TAKEOVER and index.epoch <= self.epoch:
            wrong = f"the takeover {index.number} begins epoch {index.epoch} again"
        if is_newest:
            self.epoch, self._number = max(self.epoch, index.epoch), index.number
        if index.epoch < self.epoch:
            return wrong  # a late tick of a former primary does not count
        if index.kind == TAKEOVER:
            self.reserved_before = dict(self.reserved)
            # Ticks of the former primary that were created before their turn do not count either.
            for uuid, tail in (index.tails or {}).items():
                self.ends[uuid] = min(self.ends.get(uuid, 0), tail.end)
        for uuid, tail in (index.tails or {}).items():  # a takeover reserves offsets too
            self.reserved[uuid] = max(self.reserved.get(uuid, 0), tail.reserved)
        for piece in index.pieces:
            self.ends[piece.uuid] = max(self.ends.get(piece.uuid, 0), piece.end)
            self.reserved[piece.uuid] = max(self.reserved.get(piece.uuid, 0), piece.reserved)
        return wrong

    def not_reserved(self, uuid: str, end: int) -> str:
        """Return what is wrong if a topic gives out all offsets below `end`, or ""."""
        reserved = self.reserved.get(uuid, 0)
        return "" if end <= reserved else f"gave out {end - 1}, and {reserved} offsets are reserved"

    def too_late(
        self, uuid: str, rows: Sequence[Accepted], at_ns: int, began_ns: int, lag_ns: int
    ) -> str:
        """Return what is wrong if a topic accepts a message at this time, or "". `rows`: what it
        has accepted before.
        """
        end = self.ends.get(uuid, 0)
        synced_ns = min(
            (one.noted_ns for one in rows if one.noted_ns and one.offset >= end), default=at_ns
        )
        late_ns = at_ns - max(synced_ns, began_ns) - lag_ns
        if late_ns <= SLACK_NS:
            return ""
        return (
            f"accepted a message {late_ns / 1e6:.0f} ms after the bound, and the bucket has {end}"
        )
