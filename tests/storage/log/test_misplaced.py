"""Tests of a correct block in the wrong place, because of a misplaced write or an old page that
came back. This is damage, and only the block that belongs in that place is lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import Damaged
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, chunk_name, decode_disk_header
from zsq.transport.block.block import HEADER_BYTES

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

SMALL = StoreOptions(
    chunk_bytes=640, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)


@pytest.fixture
def topic(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic: five blocks of one size in a sealed chunk, two in the last one."""
    (tmp_path / "topic").mkdir()
    made = type(harness)(tmp_path / "topic", SMALL)
    made.open()
    for _ in range(7):
        made.publish(count=1, size=1)
        made.sync()
    assert made.log.chunks == (0, 5)
    made.abandon_cleanly()
    return made


def place(harness: StorageHarness, base: int, source: int, target: int) -> None:
    """Copy a block to the place of another one, or after the last one."""
    path = harness.chunk_path(base)
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[CHUNK_HEADER_BYTES + 8 : CHUNK_HEADER_BYTES + 12], "little")
    start, to = (CHUNK_HEADER_BYTES + size * number for number in (source, target))
    data[to : to + size] = data[start : start + size]
    harness.replace(path, bytes(data))


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", range(5))
def test_a_block_written_over_another_one_costs_only_that_one(
    topic: StorageHarness, source: int, target: int
) -> None:
    place(topic, 0, source, target)
    topic.open()
    assert topic.check(lost_max=1) == [
        sequence for sequence in range(7) if source == target or sequence != target
    ]
    assert topic.damage == ([] if source == target else [(target, 1)])
    for offset in range(5):
        if offset != target:
            assert topic.log.read(offset, 1, 5)[0].first_offset == offset
    topic.abandon()


@pytest.mark.parametrize("source", [0, 1])
def test_a_copy_of_an_old_block_after_the_last_one_is_ignored(
    topic: StorageHarness, source: int
) -> None:
    """A misplaced append leaves such a copy. In an earlier version, the copy moved the end of the
    log back.
    """
    place(topic, 5, source, 2)
    report = topic.open().report
    assert topic.log.end == 7
    assert report.holes == ()
    assert topic.check() == list(range(7))
    topic.publish()
    topic.sync()
    assert topic.check() == list(range(8))
    topic.abandon()


def test_a_staged_block_in_the_wrong_place_is_not_committed(topic: StorageHarness) -> None:
    topic.options = replace(SMALL, adopt_bytes=1 << 20)
    topic.open()
    key = topic.stage("a", 1, blocks=3, count=1, size=1)
    topic.seal(key)
    (path,) = (topic.path("staging")).iterdir()
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[CHUNK_HEADER_BYTES + 8 : CHUNK_HEADER_BYTES + 12], "little")
    first, second = (
        slice(CHUNK_HEADER_BYTES + size * n, CHUNK_HEADER_BYTES + size * (n + 1)) for n in (0, 1)
    )
    data[first], data[second] = data[second], data[first]
    path.write_bytes(data)
    with pytest.raises(Damaged):
        topic.commit(1, key)
    topic.abandon()


@pytest.mark.parametrize("surveyed", [True, False])
@pytest.mark.parametrize("base", [1, 3, 4])
def test_a_chunk_under_a_name_in_the_middle_of_another_one_is_not_used(
    topic: StorageHarness, base: int, surveyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file may be a copy that a person made. In an earlier version the messages in its range
    counted as lost, and the copied messages were returned again.
    """
    topic.replace(topic.chunk_path(base), topic.chunk_path(0).read_bytes())
    if not surveyed:  # the survey has not reached the file yet
        monkeypatch.setattr("zsq.storage.log.survey.Survey.take", lambda *_: None)
    for first in range(6):
        report = topic.open().report
        assert any("is not used" in alarm for alarm in report.alarms) == surveyed
        assert topic.log.read(first, 1, 7)[0].first_offset == first
        assert topic.check() == list(range(7))
        assert topic.damage == []
        assert topic.log.holes == ()
        assert topic.log.chunks == (0, 5) or not surveyed
        topic.abandon()


def test_a_stray_chunk_counts_nowhere(topic: StorageHarness) -> None:
    topic.replace(topic.chunk_path(2), topic.chunk_path(5).read_bytes())
    topic.open()
    topic.log.reader.bases.insert(1, 2)  # the state before the survey
    whole = topic.log.measure(0, 7, 1 << 20)
    topic.log.reader.bases.insert(1, 2)
    assert len(list(topic.log.headers(0))) == 7
    topic.log.reader.bases.insert(1, 2)
    assert topic.log.offset_at(0) == 0
    assert topic.log.measure(0, 7, 1 << 20) == whole
    topic.abandon()


def test_old_blocks_without_their_position_are_read(topic: StorageHarness) -> None:
    """The first versions wrote blocks without their position."""
    data = topic.path(chunk_name(0)).read_bytes()
    header = data[CHUNK_HEADER_BYTES : CHUNK_HEADER_BYTES + HEADER_BYTES]
    seed = int.from_bytes(data[24:28], "little")
    found = decode_disk_header(header, seed, CHUNK_HEADER_BYTES)
    assert found is not None
    assert found.reserved_2 == CHUNK_HEADER_BYTES // 8
    assert decode_disk_header(header, seed, CHUNK_HEADER_BYTES + 8) is None


def test_offsets_in_a_stray_file_are_read_from_the_chunk_before_it(topic: StorageHarness) -> None:
    """The name of the stray file is an offset in the middle of another chunk. No read uses the
    stray file.
    """
    topic.open()
    headers = [header.first_offset for header, _ in topic.log.headers(3)]
    measured = topic.log.measure(3, 7, 1 << 20)
    topic.abandon_cleanly()
    topic.replace(topic.chunk_path(2), topic.chunk_path(5).read_bytes())
    topic.open()
    for _ in range(2):
        topic.log.reader.bases[:] = [0, 2, 5]
        assert (
            [header.first_offset for header, _ in topic.log.headers(3)] == headers == [3, 4, 5, 6]
        )
        topic.log.reader.bases[:] = [0, 2, 5]
        assert topic.log.measure(3, 7, 1 << 20) == measured
        assert topic.log.reader.bases == [0, 5]
    assert not topic.log.reader.drop_stray(2), "it is gone: its successor must not go in its place"
    topic.abandon()
