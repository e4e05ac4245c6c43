"""Tests of flipped bits in groups, marks and adopted chunks: at most one block is lost, nothing
stops, and nothing wrong is returned.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import keep_none

from zsq.storage.errors import Damaged
from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    chunk_name,
    decode_chunk_header,
    encode_chunk_header,
)

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


@pytest.fixture
def grouped(group_case: StorageHarness) -> StorageHarness:
    """Make a closed topic: blocks, an appended group, blocks, a group that is partly appended and
    partly adopted, blocks. The state includes all of them.
    """
    group_case.publish(count=3, size=1)
    a = group_case.stage("a", 1, blocks=1, size=1)
    group_case.seal(a)
    group_case.commit(1, a)
    group_case.publish(count=1, size=1)
    b, c, d = (
        group_case.stage("b", 2, blocks=1, count=1, size=1),
        group_case.stage("c", 2, blocks=4),
        group_case.stage("d", 2, blocks=4),
    )
    group_case.seal(b, c, d)
    group_case.commit(2, b, c, d)
    group_case.publish()
    group_case.sync()
    assert group_case.log.chunks == (0, 7, 15, 23)
    group_case.abandon_cleanly()
    return group_case


def everything(harness: StorageHarness) -> dict[int, tuple[bytes | None, ...]]:
    return {block.first_offset: tuple(block.body.values()) for block in harness.read_all()}


@pytest.mark.parametrize("base", [0, 7, 15, 23])
def test_a_flipped_bit_in_any_byte_costs_at_most_one_block(
    grouped: StorageHarness, base: int
) -> None:
    """The marks are included: one in the middle of a chunk, and one at the end of an adopted chunk.
    A flipped bit in a mark loses no message.
    """
    path = grouped.chunk_path(base)
    whole = path.read_bytes()
    grouped.open()
    good = everything(grouped)
    grouped.abandon_cleanly()
    mark = b"first"  # a word that is in each mark
    marks = [at for at in range(len(whole)) if whole.startswith(mark, at)]
    for byte in range(len(whole)):
        grouped.flip(path, byte * 8 + byte % 8)
        grouped.damage.clear()
        for kept in Path(grouped.directory).glob("*.bad"):
            kept.unlink()
        report = grouped.open().report
        assert grouped.log.end == 26
        found = everything(grouped)
        assert found.items() <= good.items(), "something is wrong that should be lost"
        assert len(good) - len(found) <= 1
        if len(found) < len(good):
            assert grouped.damage or report.alarms
        if any(at - 100 < byte < at + 60 for at in marks) and base == 15:
            assert not grouped.damage or byte < marks[0] - 64
        grouped.log.measure(0, 26, 500)
        assert grouped.log.offset_at(0) in {0, min(found)}
        grouped.abandon_cleanly()
        for other in Path(grouped.directory).glob("*.index"):
            other.unlink()
        grouped.replace(path, whole)


@pytest.mark.parametrize("base", [0, 15])
def test_a_damaged_mark_that_the_state_does_not_know(group_case: StorageHarness, base: int) -> None:
    """A message that was acknowledged after the mark proves that the group was stored, so the
    group's messages stay. Its transaction is lost, and an alarm says so.
    """
    a = group_case.stage("a", 1, blocks=1 if base == 0 else 4)
    group_case.publish()
    group_case.seal(a)
    group_case.commit(1, a, lag=True)
    end = group_case.log.end
    for _ in range(2):
        group_case.publish()
        group_case.sync()
    good = everything(group_case)
    last = group_case.log.chunks[0 if base == 0 else 1]
    group_case.abandon()
    group_case.files.crash(keep_none)
    path = group_case.chunk_path(last)
    position = path.read_bytes().index(b"version")
    group_case.flip(path, position * 8)
    report = group_case.open().report
    assert any("mark" in alarm for alarm in report.alarms)
    assert everything(group_case) == good
    assert group_case.log.end > end
    group_case.restart()
    assert everything(group_case) == good


def test_a_damaged_mark_at_the_end_that_the_state_knows(
    group_case: StorageHarness, tmp_path: Path
) -> None:
    """Nothing after the mark proves that it was stored, but the state does."""
    for number in range(200):
        (tmp_path / f"run{number}").mkdir()
        harness = type(group_case)(tmp_path / f"run{number}", group_case.options)
        harness.open()
        harness.publish()
        a = harness.stage("a", 1, blocks=1)
        harness.seal(a)
        harness.commit(1, a)
        good = everything(harness)
        harness.abandon_cleanly()
        whole = harness.chunk_path().read_bytes()
        byte = whole.index(b"app") - 70 + number
        if byte == len(whole):
            break
        harness.flip(harness.chunk_path(), byte * 8 + byte % 8)
        assert harness.open().report.alarms
        for _ in range(2):
            assert everything(harness).items() >= good.items()
            harness.publish()
            harness.sync()
            harness.crash(keep_none)
        assert len(everything(harness)) == 4
        harness.abandon()
    assert number > 100


def test_a_bad_footer_of_an_adopted_chunk_loses_nothing(grouped: StorageHarness) -> None:
    """This holds for the last chunk too. The name of the next chunk, or the blocks themselves, give
    the same information.
    """
    grouped.open()
    good = everything(grouped)
    grouped.abandon_cleanly()
    for base in (7, 15):
        path = grouped.chunk_path(base)
        grouped.replace(path, path.read_bytes()[:-64] + b"x" * 64)
    grouped.open()
    assert everything(grouped) == good
    grouped.abandon_cleanly()
    grouped.chunk_path(23).unlink()
    grouped.files.reset()
    grouped.open()
    assert everything(grouped).items() <= good.items()
    assert grouped.log.end == 26


@pytest.mark.parametrize("whose", ["stage", "topic"])
def test_a_sealed_file_that_was_exchanged_is_refused(
    group_case: StorageHarness, whose: str
) -> None:
    """The other file has the same size. Readers would miss acknowledged messages, or receive
    messages of another topic.
    """
    c, d = group_case.stage("c", 1, blocks=4), group_case.stage("d", 1, blocks=4)
    group_case.seal(c, d)
    path, other = (Path(part.path(part.files[0])) for part in map(group_case.staging.part, (c, d)))
    right = path.read_bytes()
    header = decode_chunk_header(right[:CHUNK_HEADER_BYTES])
    foreign = encode_chunk_header(header._replace(uuid=bytes(16))) + right[CHUNK_HEADER_BYTES:]
    path.write_bytes(other.read_bytes() if whose == "stage" else foreign)
    with pytest.raises(Damaged, match="changed or replaced after it was sealed"):
        group_case.commit(1, c, d)
    path.write_bytes(right)
    group_case.commit(1, c, d)
    assert len(group_case.read_all()) == 8
    group_case.check()


def test_the_file_of_an_unfinished_commit_is_gone(group_case: StorageHarness) -> None:
    """The loss is reported. Reads skip the lost messages, and return the remaining ones."""
    c, d = group_case.stage("c", 1, blocks=4), group_case.stage("d", 1, blocks=4)
    group_case.publish()
    group_case.seal(c, d)
    group_case.commit(1, c, d, lag=True)
    group_case.abandon()
    group_case.files.crash(keep_none)
    group_case.path(chunk_name(3)).unlink()
    group_case.files.reset()
    report = group_case.open().report
    assert any("is missing, with" in alarm for alarm in report.alarms)
    assert group_case.log.end == 19
    assert [block.first_offset for block in group_case.read_all()] == [0, 11, 13, 15, 17]
    assert report.holes == ((3, 8),)
    assert not group_case.damage, "nobody has to find it by reading"


@pytest.mark.parametrize("lag", [False, True])
def test_nothing_is_appended_to_an_adopted_chunk_without_a_footer(
    group_case: StorageHarness, tmp_path: Path, lag: bool
) -> None:
    """If blocks were appended after the mark, recovery would not see their producers."""
    harness = type(group_case)(
        tmp_path, dataclasses.replace(group_case.options, chunk_bytes=1 << 20)
    )
    harness.open()
    c, d = harness.stage("c", 1, blocks=4), harness.stage("d", 1, blocks=4)
    harness.seal(c, d)
    harness.commit(1, c, d, lag=lag)
    path = harness.chunk_path(harness.log.chunks[-1])
    harness.abandon()
    harness.flip(path, (len(path.read_bytes()) - 30) * 8)
    report = harness.open().report
    assert any("footer" in alarm for alarm in report.alarms)
    assert harness.log.end == 16
    harness.publish(blocks=3)
    harness.sync()
    assert harness.log.chunks[-1] == 16
    assert len(harness.crash(keep_none).log.chunks) == 3
    assert len(harness.read_all()) == 11
    harness.abandon()
