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
    """`notes` gets what is lost: damaged blocks, and what is not kept any more."""

    def __init__(self, log: Log, notes: list[str]) -> None:
        self._log = log
        self._notes = notes

    def messages(self, spans: Iterable[tuple[int, int, int]]) -> Iterator[Stored]:
        """Of each (start, end, attempts), ascending."""
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
                    gone = min(first, end) - offset
                    self._notes.append(f"{gone} messages from offset {offset} on are not there any more (damage or retention)")
                    offset = first
                    continue
                block = blocks[0]
                for index in range(offset - block.first_offset, min(end - block.first_offset, block.count)):
                    yield _stored(block, index, attempts)
                offset = block.next_offset

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
