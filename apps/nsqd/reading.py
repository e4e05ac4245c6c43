"""A log's messages by spans of offsets, each block read once where the spans ascend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ...storage.errors import Damaged
from ...storage.log import Log
from ...transport.block import Block

READ_BYTES: Final = 1024 * 1024


class Stored(NamedTuple):
    """One message as it lies in the log; `headers` packed."""

    offset: int
    timestamp_ns: int
    attempts: int
    body: bytes
    key: bytes | None
    tag: bytes | None
    headers: bytes | None


class MessageReader:
    """`start`: what lies below was removed on purpose. `notes` gets what is not there; `lost` counts what damage took of it."""

    def __init__(self, log: Log, start: int, notes: list[str]) -> None:
        self._log = log
        self._start = start
        self._notes = notes
        self.lost = 0

    def messages(self, queue: str, spans: Iterable[tuple[int, int, int]]) -> Iterator[Stored]:
        """Of each (start, end, attempts), ascending. `queue`: for whom."""
        blocks: list[Block] = []
        for start, end, attempts in spans:
            offset = start
            while offset < end:
                while blocks and blocks[0].next_offset <= offset:
                    blocks.pop(0)
                if not blocks:
                    blocks = self._read(offset)
                first = blocks[0].first_offset if blocks else end
                if first > offset:
                    self._gone(queue, offset, min(first, end))
                    offset = first
                    continue
                block = blocks[0]
                for index in range(offset - block.first_offset, min(end - block.first_offset, block.count)):
                    yield _stored(block, index, attempts)
                offset = block.next_offset

    def _gone(self, queue: str, begin: int, end: int) -> None:
        kept_from = min(max(begin, self._start), end)
        if kept_from > begin:
            self._notes.append(f"{queue}: {kept_from - begin} messages from offset {begin} on are not kept any more (retention)")
        if end > kept_from:
            self._notes.append(f"{queue}: {end - kept_from} messages from offset {kept_from} on cannot be read, or are missing (damage)")
            self.lost += end - kept_from

    def _read(self, offset: int) -> list[Block]:
        while True:
            try:
                return self._log.read(offset, READ_BYTES, self._log.end)
            except Damaged:  # the next read steps over it, and the gap shows
                continue


def _stored(block: Block, index: int, attempts: int) -> Stored:
    body = block.body.value(index)
    assert body is not None
    return Stored(
        block.first_offset + index,
        block.time_of(index),
        attempts,
        body,
        block.key.value(index) if block.key is not None else None,
        block.tag.value(index) if block.tag is not None else None,
        block.headers.value(index) if block.headers is not None else None,
    )
