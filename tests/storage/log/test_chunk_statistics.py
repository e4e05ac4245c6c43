"""Tests of the statistics of chunks: states, sizes, times, and counts of writes and reads, in total
and in the last second.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.log.chunk import ChunkBook, ChunkState, Facts
from zsq.storage.log.ring import BLOCK_COST

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

SECOND = 1_000_000_000


@pytest.fixture
def logged(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a log with chunks of two blocks, and a ring (the newest blocks in memory) that keeps one
    or two blocks.
    """
    folder = tmp_path / "logged"
    folder.mkdir()
    made = type(harness)(
        folder, replace(harness.options, chunk_bytes=600, ring_bytes=500 + 2 * BLOCK_COST)
    )
    made.open()
    return made


def test_chunk_rows_show_states_sizes_and_times(logged: StorageHarness) -> None:
    (row,) = logged.log.reader.chunk_rows()["chunks"]
    assert (row["state"], row["messages"], row["bytes"], row["first_time_ns"]) == (
        "new",
        0,
        128,
        None,
    )
    for _ in range(5):
        logged.publish()
    logged.sync()
    rows = logged.log.reader.chunk_rows()["chunks"]
    assert [row["state"] for row in rows] == ["sealed", "sealed", "ongoing"]
    assert [(row["first_offset"], row["messages"]) for row in rows] == [(0, 6), (6, 6), (12, 3)]
    assert [row["bytes"] for row in rows] == [
        logged.chunk_path(row["first_offset"]).stat().st_size for row in rows
    ]
    assert [(row["first_time_ns"], row["last_time_ns"]) for row in rows] == [
        (1010, 1020),
        (1030, 1040),
        (1050, 1050),
    ]
    before = rows
    logged.restart()
    rows = logged.log.reader.chunk_rows()["chunks"]
    for old, new in zip(before, rows, strict=True):
        for key in (
            "first_offset",
            "messages",
            "bytes",
            "state",
            "first_time_ns",
            "last_time_ns",
            "bad",
        ):
            assert old[key] == new[key], key


def test_an_adopted_chunk_says_so(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1, blocks=6)
    group_case.publish()
    group_case.seal(key)
    group_case.commit(1, key)
    group_case.restart()
    states = {
        row["first_offset"]: row["state"] for row in group_case.log.reader.chunk_rows()["chunks"]
    }
    assert states[3] == "adopted"
    assert states[0] == "sealed"


def test_writes_of_appended_and_adopted_groups_are_counted(group_case: StorageHarness) -> None:
    """The statistics after the commit are the same as after a restart."""
    group_case.publish()
    small = group_case.stage("small", 1, blocks=1)
    group_case.seal(small)
    group_case.commit(1, small)
    (row,) = group_case.log.reader.chunk_rows()["chunks"]
    assert row["written_bytes"] + 128 == row["bytes"]
    assert row["last_time_ns"] == group_case.log.last_time_ns
    large = [group_case.stage(f"large{number}", 2, blocks=8) for number in range(3)]
    group_case.seal(*large)
    group_case.commit(2, *large)
    found = group_case.log.reader.chunk_rows()
    assert {row["state"] for row in found["chunks"][1:]} == {"adopted"}
    assert len(found["chunks"]) > 2
    for row in found["chunks"]:
        assert row["bytes"] == group_case.chunk_path(row["first_offset"]).stat().st_size
        assert row["written_bytes"] == row["bytes"] - 128 - 64
    assert found["total"]["bytes"] == sum(row["bytes"] or 0 for row in found["chunks"])
    group_case.restart()
    for old, new in zip(found["chunks"], group_case.log.reader.chunk_rows()["chunks"], strict=True):
        for key in ("messages", "bytes", "state", "first_time_ns", "last_time_ns"):
            assert old[key] == new[key], key


def test_reads_are_counted_where_they_come_from(logged: StorageHarness) -> None:
    for _ in range(5):
        logged.publish()
    logged.sync()
    size = logged.log.read(0, 1, 15)[0].length
    assert logged.log.read(12, 1, 15)
    assert logged.log.read(12, 1, 15)
    rows = {row["first_offset"]: row for row in logged.log.reader.chunk_rows()["chunks"]}
    assert (rows[0]["file_reads"], rows[0]["file_read_bytes"], rows[0]["ring_reads"]) == (
        1,
        size,
        0,
    )
    assert (rows[12]["ring_reads"], rows[12]["ring_read_bytes"], rows[12]["file_reads"]) == (
        2,
        2 * size,
        0,
    )
    assert [rows[base]["written_bytes"] for base in (0, 6, 12)] == [2 * size, 2 * size, size]
    total = logged.log.reader.chunk_rows()["total"]
    assert (
        total["chunks"],
        total["messages"],
        total["written_bytes"],
        total["ring_reads"],
        total["file_reads"],
    ) == (3, 15, 5 * size, 2, 1)
    assert total["bytes"] == sum(row["bytes"] or 0 for row in rows.values())


def test_telling_opens_and_reads_nothing(logged: StorageHarness) -> None:
    for _ in range(20):
        logged.publish()
    logged.sync()
    logged.restart()
    opened, read = logged.files._calls.get("open_read", 0), logged.files._calls.get("pread", 0)
    rows = logged.log.reader.chunk_rows()["chunks"]
    assert len(rows) == 10
    assert all(row["bytes"] for row in rows)
    assert logged.files._calls.get("open_read", 0) == opened
    assert logged.files._calls.get("pread", 0) - read <= 1


def test_rates_are_those_of_the_last_full_second() -> None:
    book = ChunkBook()
    active = Facts(500, ChunkState.ONGOING, 1, 2, 9)
    book.tick(10 * SECOND)
    book.of(0).written_bytes += 300
    book.tick(10 * SECOND + SECOND // 4)
    assert book.rows([0], active, {})["chunks"][0]["written_bytes_s"] == 0, "the second is not over"
    book.tick(11 * SECOND)
    assert book.rows([0], active, {})["chunks"][0]["written_bytes_s"] == 300
    book.of(0).written_bytes += 600
    book.of(0).ring_reads += 4
    book.tick(13 * SECOND)
    (row,) = book.rows([0], active, {})["chunks"]
    assert (row["written_bytes_s"], row["ring_reads_s"], row["written_bytes"]) == (300, 2, 900)
    book.tick(14 * SECOND)
    assert book.rows([0], active, {})["chunks"][0]["written_bytes_s"] == 0, (
        "nothing was written in that second"
    )


def test_the_newest_are_told_one_by_one_and_the_rest_in_a_sum() -> None:
    book = ChunkBook()
    bases = [number * 10 for number in range(7)]
    for base in bases[:-1]:
        book.facts[base] = Facts(100, ChunkState.SEALED, base, base + 9, base + 10)
        book.of(base).file_reads += 1
    found = book.rows(bases, Facts(50, ChunkState.ONGOING, 60, 62, 63), {10: 2, 60: 1}, rows_max=3)
    assert [row["first_offset"] for row in found["chunks"]] == [40, 50, 60]
    assert found["older"]["chunks"] == 4
    assert (
        found["older"]["messages"],
        found["older"]["bytes"],
        found["older"]["file_reads"],
        found["older"]["bad"],
    ) == (40, 400, 4, 2)
    assert (
        found["total"]["messages"],
        found["total"]["bytes"],
        found["total"]["file_reads"],
        found["total"]["bad"],
    ) == (63, 650, 6, 3)


def test_removed_chunks_still_count_in_the_total() -> None:
    book = ChunkBook()
    book.of(0).written_bytes += 5
    book.facts[0] = Facts(100, ChunkState.SEALED, 0, 9, 10)
    book.of(10).written_bytes += 7
    book.forget_below(10)
    found = book.rows([10], Facts(50, ChunkState.ONGOING, 60, 62, 11), {})
    assert found["total"]["written_bytes"] == 12
    assert found["total"]["bytes"] == 50
    assert "older" not in found
