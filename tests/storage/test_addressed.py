"""The flag of blocks with messages for one channel is kept: in the log, over a start, from the ring, in a group, and through a delay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zsq.storage.delayed_format import DelayedKey, DelayedRow, decode_row, due_block, encode_row, without
from zsq.storage.log_format import ChunkHeader, decode_disk_header, replay_header, wire_header
from zsq.storage.placing import place
from zsq.storage.ring import BLOCK_COST
from zsq.transport.block import DELAYED, HEADER_BYTES, IN_GROUP, Block, pack
from zsq.transport.block_format import ADDRESSED

if TYPE_CHECKING:
    from tests.storage.conftest import Desk


def addressed(*bodies: bytes) -> Block:
    block = pack(bodies, producer_id=5)
    return Block(block.header._replace(flags=ADDRESSED), block.payload, block.columns)


def flags(desk: Desk) -> list[int]:
    return [block.header.flags for block in desk.log.read(0, 1 << 20, desk.log.end)]


def test_the_log_keeps_it(desk: Desk) -> None:
    desk.log.append([addressed(b"a"), pack([b"b"])], desk.now_ns)
    desk.log.sync()
    assert flags(desk) == [ADDRESSED, 0]
    desk.crash()
    assert flags(desk) == [ADDRESSED, 0]


def test_the_ring_keeps_it(tmp_path: Path, desk: Desk) -> None:
    folder = tmp_path / "ringed"
    folder.mkdir()
    ringed = type(desk)(folder, replace(desk.options, ring_bytes=2000 + 8 * BLOCK_COST))
    ringed.open()
    ringed.log.append([addressed(b"a")], ringed.now_ns)
    ringed.log.sync()
    assert ringed.log.reader.ring.end == 1
    assert flags(ringed) == [ADDRESSED]


def test_a_delay_keeps_it_and_readers_see_nothing_else(desk: Desk) -> None:
    row = DelayedRow(DelayedKey(10, 7), addressed(b"a", b"b", b"c"))
    again = decode_row(*encode_row(row))
    for left in (row, again, *without(again, [8])):
        assert due_block(left).header.flags == ADDRESSED | DELAYED
    desk.log.append([due_block(again)], desk.now_ns)
    desk.log.sync()
    assert flags(desk) == [ADDRESSED]
    ((header, _),) = desk.log.headers(0)
    assert (header.flags, header.producer_id, header.sequence) == (ADDRESSED | DELAYED, 10, 7)


def test_a_group_keeps_it(desk: Desk) -> None:
    """Staged blocks have no flags today; where one had this, the group's would come beside it."""
    desk.log.append([pack([b"a"])], desk.now_ns)
    chunk = desk.log._active
    pieces, _, _ = place(chunk, [addressed(b"b")], desk.now_ns, 0, IN_GROUP)
    header = decode_disk_header(pieces[0][:HEADER_BYTES], chunk.header.seed)
    assert header is not None
    assert header.flags == ADDRESSED | IN_GROUP
    assert wire_header(header, ChunkHeader(0, 0, 0, b"")).flags == ADDRESSED
    assert replay_header(header, ChunkHeader(0, 0, 0, b"")).flags == ADDRESSED
