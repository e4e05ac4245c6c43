"""Tests of reading where there are groups: by offset, by time, and by bytes. Readers do not notice
marks and adopted chunks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faulty_files import keep_all

from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, chunk_name, index_name
from zsq.storage.log.transactions import Transaction
from zsq.transport.block.block import Block, pack

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def test_a_time_gives_the_same_offset_with_groups_in_between(group_case: StorageHarness) -> None:
    """The publishes are at 1010 and so on, with an appended group and an adopted one between
    them.
    """
    starts: list[tuple[int, int]] = []
    for turn in range(12):
        group_case.publish(count=4)
        starts.append((group_case.now_ns, group_case.log.end - 4))
        if turn % 3 == 0:
            key = group_case.stage(f"s{turn}", turn, blocks=1 + turn)
            group_case.seal(key)
            group = group_case.commit(turn, key)
            starts.append((group.time_ns, group.first_offset))
    group_case.sync()
    for _ in range(2):
        before = 0
        for time_ns, offset in starts:
            for asked in (before + 1, time_ns):
                assert group_case.log.offset_at(asked) == offset
            before = time_ns
        assert group_case.log.offset_at(before + 1) == group_case.log.end
        group_case.restart()


def test_time_to_offset_steps_over_a_lost_chunk(group_case: StorageHarness) -> None:
    for _ in range(12):
        group_case.publish(count=10)
    group_case.sync()
    bases = group_case.log.chunks
    assert len(bases) > 5
    group_case.abandon_cleanly()
    group_case.replace(group_case.path(chunk_name(bases[2])), b"x" * 500)
    group_case.open()
    wanted = next(block for block in group_case.read_all() if block.first_offset >= bases[3])
    for time_ns in range(wanted.header.time_ns - 15, wanted.header.time_ns + 1):
        assert group_case.log.offset_at(time_ns) == wanted.first_offset
    assert group_case.log.offset_at(0) == 0
    holes = group_case.log.holes
    assert group_case.log.measure(0, group_case.log.end, 10**9)[1] == group_case.log.end
    assert group_case.log.holes == holes, "one hole, however often it is met"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_measure_agrees_with_the_sum_over_all_blocks(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Marks count as bytes, so the result may differ from the sum by a known amount."""
    harness = grouped_harness(tmp_path_factory, data)
    blocks = harness.read_all()
    end = harness.log.end
    marks = 1000 * len(harness.groups)
    for _ in range(10):
        start = data.draw(st.integers(0, end - 1))
        stop = data.draw(st.integers(start + 1, end))
        limit = data.draw(st.sampled_from([0, 1, 100, 500, 1500, 10**6]))
        size, offset = harness.log.measure(start, stop, limit)
        mine = [
            block for block in blocks if block.next_offset > start and block.first_offset < stop
        ]
        exact = sum(block.length for block in mine)
        assert exact <= size <= exact + marks
        assert start < offset <= stop
        assert offset == stop or any(block.next_offset == offset for block in mine), (
            "a border of blocks"
        )
        taken = [block for block in mine if block.first_offset < offset]
        assert len(taken) == 1 or sum(block.length for block in taken) <= limit
        if offset < stop:
            following = next(block for block in mine if block.first_offset == offset)
            assert sum(block.length for block in taken) + following.length + marks > limit, (
                "there was room for more"
            )
    assert harness.log.measure(end, end, 5) == (0, end)
    assert harness.log.measure(0, end + 5, 10**9)[1] == end
    harness.abandon()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_read_begins_with_the_block_of_its_offset(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    harness = grouped_harness(tmp_path_factory, data)
    end = harness.log.end
    first = [block.first_offset for block in harness.read_all() for _ in range(block.count)]
    assert len(first) == end
    for offset in data.draw(st.lists(st.integers(0, end - 1), max_size=20)):
        limit = data.draw(st.integers(offset + 1, end))
        blocks = harness.log.read(offset, data.draw(st.sampled_from([1, 500, 5000])), limit)
        if blocks:
            assert blocks[0].first_offset == first[offset]
            assert blocks[-1].next_offset <= limit
            assert all(a.next_offset == b.first_offset for a, b in pairwise(blocks))
        else:
            assert limit < end
            assert first[limit] == first[offset]
    harness.abandon()


def grouped_harness(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> StorageHarness:
    """Make a topic with a few publishes and groups of any size. In some cases, restart it."""
    conftest = sys.modules["tests.storage.conftest"]
    harness: StorageHarness = conftest.StorageHarness(
        tmp_path_factory.mktemp("files"), conftest.GROUPS
    )
    harness.open()
    harness.publish()
    for version in range(1, data.draw(st.integers(2, 5))):
        for count in data.draw(st.lists(st.integers(1, 20), max_size=4)):
            harness.publish(count=count)
        keys = [
            harness.stage(f"{version}.{i}", version, blocks=n)
            for i, n in enumerate(data.draw(st.lists(st.integers(0, 9), max_size=3)))
        ]
        harness.seal(*keys)
        harness.commit(version, *keys)
        if not any(harness.tried[version].values()):
            del harness.tried[version], harness.groups[version]
    harness.sync()
    if data.draw(st.booleans()):
        harness.restart()
    return harness


def test_blocks_of_a_staged_file_keep_their_columns(group_case: StorageHarness) -> None:
    """Keys, tags, headers and times are read as they were pushed, whether the part was appended or
    adopted.
    """
    sent = pack(
        [b"body" * 200, b""],
        keys=[b"k", None],
        tags=[None, b"t"],
        headers=[b"\x80", None],
        times=[7, 8],
    )
    small = pack(
        [b"body", b""], keys=[b"k", None], tags=[None, b"t"], headers=[b"\x80", None], times=[7, 8]
    )
    for version, block in ((1, small), (2, sent)):
        key = bytes([version]) * 16
        group_case.staging.open(key, Transaction("q", version, "app"), 0, 5)
        group_case.staging.append(key, [Block(block.header, block.payload)], 5)
        ticket = group_case.staging.begin_seal(key, final=True, now_ns=5)
        ticket.run()
        group_case.staging.finish_seal(ticket)
        group_case.log.append_group(
            Transaction("q", version, "app"), [group_case.staging.part(key)], 9
        )
        (found,) = group_case.log.read(group_case.log.end - 1, 1, group_case.log.end)
        assert bytes(found.columns) == block.payload
        assert found.header == block.header._replace(first_offset=2 * version - 2, time_ns=9)


def test_marks_are_not_indexed(tmp_path: Path, group_case: StorageHarness) -> None:
    """The index is the same whether it is made by the log as it writes, by recovery, or by a reader
    without an index file.
    """
    (tmp_path / "each").mkdir()
    harness = type(group_case)(
        tmp_path / "each", replace(group_case.options, index_every_bytes=1, chunk_bytes=4096)
    )
    harness.open()
    for version in (1, 2):
        harness.publish()
        key = harness.stage(f"s{version}", version, blocks=1)
        harness.seal(key)
        harness.commit(version, key, lag=True)
    harness.publish()
    chunk = harness.log._active
    assert chunk.index is not None
    assert len(chunk.index) == 5
    assert len(harness.log.read(0, 1 << 20, harness.log.end)) == 5, "a mark ends no read"
    places = [
        (found.position, found.header.count)
        for found in chunk.walk(CHUNK_HEADER_BYTES, columns=True)
        if found.header is not None
    ]
    assert [count for _, count in places] == [3, 2, 0, 3, 2, 0, 3]
    assert chunk.next_good(places[2][0])[:2] == (places[3][0], 5), (
        "a mark is no block to go on with"
    )
    written = chunk.index.encode(1)
    assert chunk.load_index(rebuild=True).encode(1) == written
    harness.abandon()
    harness.path(index_name(0)).unlink(missing_ok=True)
    harness.files.crash(keep_all)
    harness.open()
    assert harness.log._active.index is not None
    assert harness.log._active.index.encode(1) == written
    harness.abandon()
