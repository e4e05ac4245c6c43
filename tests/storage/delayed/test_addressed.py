"""Tests of the flag of blocks whose messages are for one channel. The flag is kept in the log,
after a restart, in blocks from the ring, in a group, and after a delay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zsq.storage.delayed.delayed_format import (
    DelayedKey,
    DelayedRow,
    decode_row,
    due_block,
    encode_row,
    without,
)
from zsq.storage.log.log import place
from zsq.storage.log.log_format import ChunkHeader, decode_disk_header, replay_header, wire_header
from zsq.storage.log.ring import BLOCK_COST
from zsq.transport.block.block import DELAYED, HEADER_BYTES, IN_GROUP, Block, pack
from zsq.transport.block.block_format import ADDRESSED

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def addressed(*bodies: bytes) -> Block:
    block = pack(bodies, producer_id=5)
    return Block(block.header._replace(flags=ADDRESSED), block.payload, block.columns)


def flags(harness: StorageHarness) -> list[int]:
    return [block.header.flags for block in harness.log.read(0, 1 << 20, harness.log.end)]


def test_the_log_keeps_the_flag_of_an_addressed_block(harness: StorageHarness) -> None:
    harness.log.append([addressed(b"a"), pack([b"b"])], harness.now_ns)
    harness.log.sync()
    assert flags(harness) == [ADDRESSED, 0]
    harness.crash()
    assert flags(harness) == [ADDRESSED, 0]


def test_the_ring_keeps_the_flag_of_an_addressed_block(
    tmp_path: Path, harness: StorageHarness
) -> None:
    folder = tmp_path / "ringed"
    folder.mkdir()
    ringed = type(harness)(folder, replace(harness.options, ring_bytes=2000 + 8 * BLOCK_COST))
    ringed.open()
    ringed.log.append([addressed(b"a")], ringed.now_ns)
    ringed.log.sync()
    assert ringed.log.reader.ring.end == 1
    assert flags(ringed) == [ADDRESSED]


def test_a_delay_keeps_the_flag_for_addressed_messages(harness: StorageHarness) -> None:
    row = DelayedRow(DelayedKey(10, 7), addressed(b"a", b"b", b"c"))
    again = decode_row(*encode_row(row))
    for left in (row, again, *without(again, [8])):
        assert due_block(left).header.flags == ADDRESSED | DELAYED
    harness.log.append([due_block(again)], harness.now_ns)
    harness.log.sync()
    assert flags(harness) == [ADDRESSED]
    ((header, _),) = harness.log.headers(0)
    assert (header.flags, header.producer_id, header.sequence) == (ADDRESSED | DELAYED, 10, 7)


def test_a_group_keeps_the_flag_of_an_addressed_block(harness: StorageHarness) -> None:
    """Staged blocks have no flags today. If one had this flag, the flag of the group would be added
    to it.
    """
    harness.log.append([pack([b"a"])], harness.now_ns)
    chunk = harness.log._active
    pieces, _, _ = place(chunk, [addressed(b"b")], harness.now_ns, 0, IN_GROUP)
    header = decode_disk_header(pieces[0][:HEADER_BYTES], chunk.header.seed)
    assert header is not None
    assert header.flags == ADDRESSED | IN_GROUP
    assert wire_header(header, ChunkHeader(0, 0, 0, b"")).flags == ADDRESSED
    assert replay_header(header, ChunkHeader(0, 0, 0, b"")).flags == ADDRESSED
