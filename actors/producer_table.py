"""Producers' rows in storage: what of each is durable, which rows the next commit carries, and who is forgotten. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..storage.state import ProducerRow, producer_after
from ..transport.block import Block
from ..transport.block_format import ADDRESSED
from ..transport.errors import E_BAD_BLOCK, UsageError
from . import options

SEQUENCE_MAX: Final = 1 << 63
_GONE_MAX = 1_000  # forgotten with one commit


class ProducerTable:
    """`changed`: since the last commit took them."""

    def __init__(self, rows: Mapping[int, ProducerRow]) -> None:
        self._rows = dict(rows)
        self.changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def sequences(self) -> dict[int, tuple[int, tuple[tuple[int, int], ...]]]:
        """Each one's next sequence, and its last blocks."""
        return {pid: (row.next_sequence, row.recent) for pid, row in self._rows.items()}

    def stored(self, placed: Iterable[tuple[int, int, int]], time_ns: int) -> None:
        """These blocks are durable: producer, sequence, first offset of each."""
        for pid, sequence, first_offset in placed:
            self._rows[pid] = producer_after(self._rows.get(pid), sequence, first_offset, time_ns)
            self.changed.add(pid)

    def take(self, now_ns: int) -> tuple[dict[int, ProducerRow], list[int]]:
        """For a commit: rows that changed, and those who are forgotten."""
        limit = now_ns - options.PRODUCER_KEPT_S * 1_000_000_000
        gone = [pid for pid, row in self._rows.items() if row.used_ns < limit]
        if len(self._rows) > options.PRODUCERS_MAX + _GONE_MAX:  # a bound, not an expiry: those not used for longest go
            gone = sorted(self._rows, key=lambda pid: self._rows[pid].used_ns)
        gone = gone[:_GONE_MAX]
        for pid in gone:
            del self._rows[pid]
        changed, self.changed = {pid: self._rows[pid] for pid in self.changed if pid in self._rows}, set()
        return changed, gone


def placed(blocks: Iterable[Block], first_offset: int) -> list[tuple[int, int, int]]:
    """Of blocks that follow each other from there on: producer, sequence, first offset."""
    rows = []
    for block in blocks:
        rows.append((block.header.producer_id, block.header.sequence, first_offset))
        first_offset += block.count
    return rows


def checked(blocks: list[Block]) -> list[Block]:
    """The blocks, if recovery will read them as what they are; all else of them the topic has checked. `UsageError`."""
    for block in blocks:
        header = block.header
        if header.flags & ~ADDRESSED or header.sequence >= SEQUENCE_MAX:
            raise UsageError(E_BAD_BLOCK, f"a block has no flags but {ADDRESSED} and a sequence below 2^63")
    return blocks
