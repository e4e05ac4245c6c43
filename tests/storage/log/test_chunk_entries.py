"""Tests of index entries and of the search for block headers: an entry is used only if it points at
the block that it describes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import keep_all

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import DiskFull, ForeignDirectory
from zsq.storage.log.chunk import Chunk
from zsq.storage.log.index import Index, IndexEntry
from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    decode_chunk_header,
    encode_chunk_header,
    index_name,
)
from zsq.transport.block.block import HEADER_BYTES, pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def test_an_index_entry_that_points_at_another_block_is_not_used(harness: StorageHarness) -> None:
    """An old index of the same chunk may point at any of its blocks, if the end of the chunk was
    cut off and written again.
    """
    for _ in range(2):
        harness.publish()
        harness.sync()
    chunk = harness.log.reader.open(0)
    first, second = (stretch for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=False))
    assert second.header is not None
    entry = IndexEntry(second.header.first_offset, second.position, second.header.time_ns)
    assert chunk._agrees(entry)
    assert not chunk._agrees(entry._replace(offset=entry.offset - 1))
    assert not chunk._agrees(entry._replace(time_ns=entry.time_ns - 1))
    for position in (
        0,
        first.position,
        second.position - 8,
        chunk.end_position,
        chunk.end_position + 1_000,
    ):
        assert not chunk._agrees(entry._replace(position=position))


def test_a_large_damaged_stretch_is_searched_in_few_reads(harness: StorageHarness) -> None:
    harness.abandon_cleanly()
    harness.options = StoreOptions(
        chunk_bytes=1 << 23, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
    )
    harness.open()
    harness.log.append([pack([bytes(1 << 20)] * 3, producer_id=77)], 5)
    harness.log.append([pack([b"next"], producer_id=77, sequence=1)], 6)
    harness.sync()
    chunk = harness.log.reader.open(0)
    before = harness.files._calls.get("pread", 0)
    harness.files.fail["pread"] = dict.fromkeys(range(before + 20, before + 10_000), 5)
    found = chunk._find_header(CHUNK_HEADER_BYTES + 8)
    assert (
        found == [stretch.position for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=False)][1]
    )
    harness.files.fail = {}


@pytest.mark.parametrize("distance", range(HEADER_BYTES - 16, HEADER_BYTES + 16, 8))
def test_a_header_across_the_border_of_two_reads_is_found(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, distance: int
) -> None:
    for _ in range(2):
        harness.publish()
        harness.sync()
    chunk = harness.log.reader.open(0)
    (_, second) = (stretch.position for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=False))
    monkeypatch.setattr(
        "zsq.storage.log.chunk.SEARCH_BYTES", second - (CHUNK_HEADER_BYTES + 8) + distance
    )
    assert chunk._find_header(CHUNK_HEADER_BYTES + 8) == second


def test_blocks_that_are_cut_off_are_removed_from_the_index(harness: StorageHarness) -> None:
    """If they stayed, the index of a sealed chunk would point into newer blocks, and would be
    rebuilt each time it is used.
    """
    harness.abandon_cleanly()
    harness.options = replace(harness.options, index_every_bytes=1)
    harness.open()
    harness.publish()
    harness.sync()
    end = harness.chunk_path().stat().st_size
    harness.publish(blocks=2)
    harness.abandon()
    harness.files.crash(keep_all)
    harness.flip(harness.chunk_path(), (end + 70) * 8)
    assert harness.open().report.cut_bytes > 0
    while len(harness.log.chunks) == 1:
        harness.publish(count=1, size=1)
    harness.sync()
    chunk = harness.log.reader.open(0)
    index = Index.decode(harness.path(index_name(0)).read_bytes(), chunk.header.seed, 1)
    assert index is not None
    assert [entry.position for entry in index.entries()] == [
        one.position for one in chunk.walk(CHUNK_HEADER_BYTES, columns=False)
    ]


def test_a_chunk_of_another_topic_is_refused_by_its_uuid_alone(harness: StorageHarness) -> None:
    """The name, the first offset and the checksums of the chunk are correct."""
    harness.publish()
    harness.sync()
    harness.abandon_cleanly()
    path = harness.chunk_path()
    data = path.read_bytes()
    header = decode_chunk_header(data)._replace(uuid=bytes(16))
    harness.replace(path, encode_chunk_header(header) + data[CHUNK_HEADER_BYTES:])
    with pytest.raises(ForeignDirectory, match="belongs to another topic"):
        harness.open()


def test_sizes_of_complete_chunks_are_known_without_opening_them(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console needs the sizes for every channel of every topic. Only a chunk without a footer
    must be opened.
    """
    while len(harness.log.chunks) < 3:
        harness.publish()
        harness.sync()
    reader = harness.log.reader
    base, following = reader.bases[:2]
    wanted = reader._span(base, base, following)
    opened: list[int] = []
    real = reader._readable

    def readable(base: int, offset: int) -> Chunk:
        opened.append(base)
        return real(base, offset)

    monkeypatch.setattr(reader, "_readable", readable)
    assert reader._span(base, base, following) == wanted
    assert opened == []
    reader.book.facts[base] = reader.book.facts[base]._replace(next_offset=-1, bytes=7)
    assert reader._span(base, base, following) == wanted
    assert opened == [base]


def test_blocks_that_were_refused_are_removed_from_the_index(harness: StorageHarness) -> None:
    harness.abandon_cleanly()
    harness.options = replace(harness.options, index_every_bytes=1)
    harness.open()
    harness.publish()
    harness.files.short = {harness.files._calls["writev"] + 1: 50}
    with pytest.raises(DiskFull):
        harness.publish()
    harness.sent.pop()
    while len(harness.log.chunks) == 1:
        harness.publish(count=1, size=1)
    harness.sync()
    chunk = harness.log.reader.open(0)
    index = Index.decode(harness.path(index_name(0)).read_bytes(), chunk.header.seed, 1)
    assert index is not None
    assert all(chunk._agrees(entry) for entry in index.entries())
