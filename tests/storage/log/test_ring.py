"""Tests of the ring (the newest blocks in memory) against the file: reads return the same blocks
without reading the file, and its size and the age of its blocks are limited.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.log.ring import _COMPACT_AT, BLOCK_COST, Ring
from zsq.transport.block.block import Block, pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

SECOND = 1_000_000_000


@pytest.fixture
def ringed(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a log with a ring of a few blocks."""
    folder = tmp_path / "ringed"
    folder.mkdir()
    made = type(harness)(folder, replace(harness.options, ring_bytes=2000 + 8 * BLOCK_COST))
    made.open()
    return made


def block(count: int, number: int = 0) -> Block:
    return pack([b"%d/%d" % (number, i) for i in range(count)], producer_id=5, sequence=number)


def kept(ring: Ring) -> tuple[int, int]:
    return ring.start, ring.end


def test_reads_from_the_ring_are_those_from_the_file(ringed: StorageHarness) -> None:
    for number in range(30):
        ringed.publish(blocks=1 + number % 3, count=1 + number % 4)
    ring = ringed.log.reader.ring
    assert 0 < ring.start < ring.end == ringed.log.end
    found = {
        offset: ringed.log.read(offset, 600, ringed.log.end)
        for offset in range(ring.start, ringed.log.end)
    }
    preads = ringed.files._calls["pread"]
    assert all(ringed.log.read(offset, 600, ringed.log.end) for offset in found)
    assert ringed.files._calls["pread"] == preads, "nothing is read that is still there"
    ring.clear()
    for offset, blocks in found.items():
        (first, *_) = ringed.log.read(offset, 600, ringed.log.end)
        assert blocks[0].header == first.header
        assert bytes(blocks[0].columns) == bytes(first.columns)
        assert first.first_offset <= offset < first.next_offset
        assert all(one.next_offset == two.first_offset for one, two in pairwise(blocks))
    assert ringed.files._calls["pread"] > preads


def test_a_block_that_changed_in_the_ring_is_read_from_the_file(ringed: StorageHarness) -> None:
    for _ in range(6):
        ringed.publish(blocks=1, count=3)
    ring, log = ringed.log.reader.ring, ringed.log
    assert ring.start <= 12
    (right,) = log.read(12, 1, log.end)
    (held,) = ring._appends[-2].blocks
    assert held.header.columns_crc == right.header.columns_crc
    changed = bytearray(held.columns)
    changed[20] ^= 4
    held.columns = memoryview(changed)
    (found,) = log.read(12, 1, log.end)
    assert bytes(found.columns) == bytes(right.columns)
    assert (ring.corrupt_count, kept(ring)) == (1, (0, 0))


def test_nothing_at_or_above_the_given_end_is_shown(ringed: StorageHarness) -> None:
    for _ in range(3):
        ringed.publish(count=3)
    assert [found.first_offset for found in ringed.log.read(0, 1 << 20, 6)] == [0, 3]
    assert ringed.log.read(6, 1 << 20, 6) == []
    assert ringed.log.read(6, 1 << 20, 8) == [], "half a block is not shown"
    assert ringed.files._calls.get("pread", 0) <= 6, "nor looked for in the file"


def test_a_failed_append_is_not_kept(ringed: StorageHarness) -> None:
    ringed.publish()
    ringed.files.short[1 + ringed.files._calls["writev"]] = 10
    with pytest.raises(Exception, match="no space"):
        ringed.publish()
    assert kept(ringed.log.reader.ring) == (0, 3)


def test_the_ring_starts_again_after_a_group(tmp_path: Path, harness: StorageHarness) -> None:
    folder = tmp_path / "groups"
    folder.mkdir()
    made = type(harness)(folder, replace(harness.options, ring_bytes=100_000))
    made.open()
    made.publish()
    key = made.stage("a", 1)
    made.seal(key)
    made.commit(1, key)
    end = made.log.end
    made.publish()
    assert kept(made.log.reader.ring) == (end, end + 3), (
        "without a gap up to its end, or not at all"
    )
    assert len([one for found in (made.log.read(0, 1 << 20, end + 3),) for one in found]) > 0


def test_old_blocks_leave_the_ring_and_the_newest_stay() -> None:
    ring = Ring(1 << 20, 5 * SECOND)
    for number in range(4):
        ring.push(number * 2, number * 2 + 2, [block(2)], 7, 100, number * SECOND)
    ring.expire(6 * SECOND)
    assert kept(ring) == (4, 8)
    assert ring.bytes == 200
    ring.expire(100 * SECOND)
    assert kept(ring) == (0, 0)
    assert ring.read(4, 100, 8) is None
    ring.push(8, 9, [block(1)], 7, 100, 101 * SECOND)
    assert kept(ring) == (8, 9)


def test_bytes_are_bounded_and_freed_at_once() -> None:
    ring = Ring(250)
    blocks = [[block(1, number)] for number in range(5)]
    for number in range(5):
        ring.push(number, number + 1, blocks[number], 7, 100, 0)
        assert ring.bytes <= 250
    assert kept(ring) == (3, 5)
    held: list[Any] = [append.blocks for append in ring._appends]
    assert blocks[0] not in held
    ring.push(5, 6, [block(1)], 7, 251, 0)
    assert (ring.bytes, ring.read(4, 1, 6)) == (0, None), (
        "what is larger than the ring is not kept, and makes a gap"
    )


def test_removed_blocks_leave_no_memory_in_use() -> None:
    """The ring also gives memory back if it is never empty for months."""
    ring = Ring(1000, SECOND)
    for number in range(4 * _COMPACT_AT):
        ring.push(number, number + 1, [block(1)], 0, 100, 0)
    assert kept(ring) == (4 * _COMPACT_AT - 10, 4 * _COMPACT_AT)
    assert len(ring._appends) == len(ring._firsts) <= _COMPACT_AT + 10


def test_an_answer_keeps_to_its_bytes_within_an_append() -> None:
    ring = Ring(1 << 20, SECOND)
    blocks = [block(1, number) for number in range(9)]
    ring.push(0, 9, blocks, 0, 9 * blocks[0].length, 0)
    for count in range(1, 9):
        found = ring.read(0, count * blocks[0].length, 9)
        assert found is not None
        assert len(found) == count


def test_no_more_blocks_than_a_message_may_carry(ringed: StorageHarness) -> None:
    """The limit holds for reads from the ring and from the file. The next read continues where this
    one stopped.
    """
    ringed.publish(blocks=9, count=1)
    ringed.sync()
    kept = ringed.log.read(0, 1 << 20, 9, 4)
    ringed.log.reader.ring.clear()
    assert len(kept) == 4
    assert [block.first_offset for block in ringed.log.read(0, 1 << 20, 9, 4)] == [0, 1, 2, 3]


def test_a_ring_of_zero_bytes_keeps_nothing() -> None:
    ring = Ring(0)
    ring.push(0, 1, [block(1)], 7, 100, 0)
    assert (ring.bytes, ring.read(0, 1, 1)) == (0, None)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 3), st.booleans()
        ),
        max_size=40,
    ),
    st.integers(0, 150),
    st.integers(1, 600),
    st.integers(0, 150),
)
def test_reads_agree_with_a_model_of_the_ring(
    pushes: list[tuple[list[int], int, bool]], offset: int, max_bytes: int, end: int
) -> None:
    """The model is a list of blocks that is cut at the front. There are time-outs and gaps between
    the blocks.
    """
    ring = Ring(700, 5)
    model: list[list[tuple[int, Block, int]]] = []
    sizes: list[tuple[int, int]] = []
    following = now = 0
    for counts, passed, gap in pushes:
        now += passed
        ring.expire(now)
        while sizes and now - sizes[0][1] >= 5:
            del model[0], sizes[0]
        if gap:
            following += 10
            model, sizes = [], []
        blocks = [block(count) for count in counts]
        total = sum(one.length for one in blocks)
        ring.push(following, following + sum(counts), blocks, now, total, now)
        entry = []
        for one in blocks:
            entry.append((following, one, now))
            following += one.count
        model.append(entry)
        sizes.append((total, now))
        while sum(size for size, _ in sizes) > 700:
            del model[0], sizes[0]
    everything = [one for entry in model for one in entry]
    found = ring.read(offset, max_bytes, end)
    if not any(first <= offset < first + one.count for first, one, _ in everything):
        assert found is None
        return
    assert found is not None
    expected: list[tuple[int, int]] = []
    size = 0
    for first, one, time_ns in everything:
        if first + one.count <= offset:
            continue
        if first + one.count > end or (expected and size + one.length > max_bytes):
            break
        size += one.length
        expected.append((first, time_ns))
        if size >= max_bytes:
            break
    assert [(one.first_offset, one.header.time_ns) for one in found] == expected
    assert sum(one.length for one in found[:-1]) < max(max_bytes, 1), "about so many bytes"
    assert all(one.next_offset <= end for one in found)


def test_the_overhead_of_small_blocks_counts_toward_the_bound(
    tmp_path: Path, harness: StorageHarness
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    made = type(harness)(
        folder, replace(harness.options, chunk_bytes=1 << 20, ring_bytes=20 * BLOCK_COST)
    )
    made.open()
    made.publish(blocks=10, count=1, size=1)
    assert made.log.reader.ring.bytes > 10 * BLOCK_COST
    for _ in range(10):
        made.publish(blocks=4, count=1, size=1)
    assert made.log.reader.ring.bytes <= 20 * BLOCK_COST
    assert made.log.end - made.log.reader.ring.start < 20, "not one for each of their few bytes"
