"""The words of delayed publish: producer to topic, topic to storage. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .protocol_client import Wire

__all__ = ["DELAY_MS_MAX", "AppendDelayed", "Delayed", "Kept", "PubDelayed"]

DELAY_MS_MAX: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class PubDelayed(Wire):
    """Producer to topic: one block (two frames follow), to be in the topic `delay_ms` after this arrives, never earlier.

    Its header carries producer id and sequence, from the same row of numbers as Pub's. Answered by Delayed or Unstored.
    """

    op: ClassVar[int] = 25
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Delayed(Wire):
    """Block `sequence` is durable and waits: due time (wall clock) and serial of its first message, -1 where they are no longer remembered.

    The key of message i is due time and serial + i, 8 bytes each, big-endian, in hex: 32 digits.
    """

    op: ClassVar[int] = 26
    sequence: int
    due_ns: int
    serial: int


@dataclass(frozen=True, slots=True)
class AppendDelayed(Wire):
    """Topic to storage: blocks follow, as many as `delays_ms`. Answered by Kept once they are durable, or Failed: then none is kept.

    It has a place among the Appends, and their `epoch`. A failure concerns nothing but these blocks: the topic sends nothing more of
    the same producers before the answer.
    """

    op: ClassVar[int] = 53
    request: int
    epoch: int
    delays_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kept(Wire):
    """Storage to topic: durable, each block with (due time, serial of its first message)."""

    op: ClassVar[int] = 54
    request: int
    keys: tuple[tuple[int, int], ...]
