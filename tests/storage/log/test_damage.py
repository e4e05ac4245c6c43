"""Tests of flipped bits, cut files and lost indexes: all are detected, at most one block is lost,
no body is wrong, and no offset is given twice.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import Damaged, ForeignDirectory, StoreFailed, Unreadable
from zsq.storage.log.damage import BAD_HEAD_BYTES, CUT_OFF, decode_bad_head
from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    IDENTITY_NAME,
    bad_name,
    decode_disk_header,
    index_name,
)
from zsq.transport.block.block import Header, pack

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

TINY = StoreOptions(chunk_bytes=460, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0)


@pytest.fixture
def two_chunks(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic: a sealed chunk of three blocks and a last one of two."""
    folder = tmp_path / "two"
    folder.mkdir()
    made = type(harness)(folder, TINY)
    made.open()
    for _ in range(5):
        made.publish(count=1, size=1)
        made.sync()
    assert made.log.chunks == (0, 3)
    made.abandon_cleanly()
    return made


def flip_and_check(harness: StorageHarness, path: Path, bit: int) -> None:
    good = path.read_bytes()
    harness.flip(path, bit)
    harness.damage.clear()
    report = harness.open().report
    end = harness.log.end
    assert end == 5, "an offset would be given twice"
    found = harness.check(lost_max=1)
    if len(found) < 5:
        assert harness.damage or report.alarms, "a loss nobody is told of"
    harness.abandon_cleanly()
    for kept in Path(harness.directory).glob("*.bad"):
        kept.unlink()
    harness.replace(path, good)


@pytest.mark.parametrize("base", [0, 3])
def test_no_flipped_byte_costs_more_than_one_block(two_chunks: StorageHarness, base: int) -> None:
    path = two_chunks.chunk_path(base)
    for byte in range(path.stat().st_size):
        flip_and_check(two_chunks, path, byte * 8 + byte % 8)


@pytest.mark.parametrize("base", [0, 3])
def test_no_flipped_bit_costs_more_than_one_block(two_chunks: StorageHarness, base: int) -> None:
    path = two_chunks.chunk_path(base)
    for bit in range(path.stat().st_size * 8):
        flip_and_check(two_chunks, path, bit)


@pytest.mark.parametrize("base", [0, 3])
def test_a_file_cut_at_any_byte_serves_what_is_left(two_chunks: StorageHarness, base: int) -> None:
    """The content was synced before the file was cut. What is left can be read, and new messages
    get offsets after the lost ones.
    """
    path = two_chunks.chunk_path(base)
    good = path.read_bytes()
    others = {
        other: other.read_bytes()
        for other in Path(two_chunks.directory).iterdir()
        if other.is_file()
    }
    for size in range(len(good)):
        two_chunks.replace(path, good[:size])
        report = two_chunks.open().report
        assert two_chunks.log.end == 5
        found = two_chunks.check(lost_max=5)
        lost = 5 - len(found)
        if lost:
            assert two_chunks.damage or report.alarms
        if base == 3 and size > CHUNK_HEADER_BYTES:
            assert lost <= 2
        two_chunks.abandon_cleanly()
        for other in Path(two_chunks.directory).iterdir():
            if other.is_file():
                other.unlink()
        for other, data in others.items():
            other.write_bytes(data)
        two_chunks.files.reset()


def test_new_messages_come_behind_a_lost_tail(two_chunks: StorageHarness) -> None:
    two_chunks.flip(two_chunks.chunk_path(3), (two_chunks.chunk_path(3).stat().st_size - 20) * 8)
    report = two_chunks.open().report
    assert report.alarms
    assert report.holes == ((4, 1),)
    two_chunks.publish(count=1, size=1)
    two_chunks.sync()
    assert two_chunks.check(lost_max=1) == [0, 1, 2, 3, 5]
    assert two_chunks.log.chunks == (0, 3, 5)
    two_chunks.restart()
    assert two_chunks.check(lost_max=1) == [0, 1, 2, 3, 5]


def test_damage_in_the_middle_keeps_what_is_behind(harness: StorageHarness) -> None:
    """There is no checkpoint. But the later block proves that the earlier one was synced before the
    later one was written.
    """
    for _ in range(3):
        harness.publish()
        harness.sync()
    path = harness.chunk_path()
    harness.abandon()
    harness.files.crash(lambda number, change: 0)
    harness.flip(path, (CHUNK_HEADER_BYTES + 200) * 8)
    report = harness.open().report
    assert report.holes == ((3, 3),) or report.holes == ((0, 3),)
    assert report.cut_bytes == 0
    assert len(harness.check(lost_max=1)) == 2


def test_a_torn_block_and_the_block_after_it_are_cut_and_set_aside(harness: StorageHarness) -> None:
    """Nothing proves that the first block was ever synced. Its producer will send both blocks
    again, and then both are stored.
    """
    harness.publish()
    harness.sync()
    end = CHUNK_HEADER_BYTES + harness.log.read(0, 1, 3)[0].length
    harness.publish(blocks=2)
    path = harness.chunk_path()
    harness.abandon()
    harness.files.crash(lambda number, change: len(change.data))
    whole = path.read_bytes()
    harness.flip(path, (end + 70) * 8)
    report = harness.open().report
    assert report.cut_bytes == len(whole) - end
    assert harness.files.log[harness.files.log.index("truncate") + 1] == "sync"
    assert harness.check() == [0]
    kept = harness.path(bad_name(0, end)).read_bytes()
    head = decode_bad_head(kept)
    assert head is not None
    assert (head.bad.kind, head.bad.position, head.kept) == (CUT_OFF, end, report.cut_bytes)
    assert kept[BAD_HEAD_BYTES:] == harness.flipped(whole, (end + 70) * 8)[end:]
    assert report.holes == ()
    harness.restart()
    assert harness.log.holes == (), "what was never acknowledged is no hole"
    assert harness.log.end == 3


def test_a_tail_that_is_cut_off_is_kept(harness: StorageHarness) -> None:
    """The last block was acknowledged and then damaged. It looks like an unfinished write, so at
    least its bytes are kept.
    """
    harness.publish(blocks=2)
    end = CHUNK_HEADER_BYTES + harness.log.read(0, 1, 3)[0].length
    harness.abandon()
    path = harness.chunk_path()
    harness.flip(path, (end + 70) * 8)
    data = path.read_bytes()
    report = harness.open().report
    assert report.cut_bytes == len(data) - end
    kept = harness.path(bad_name(0, end)).read_bytes()
    assert kept[BAD_HEAD_BYTES:] == data[end:]
    assert any("a block that was damaged later" in note for note in report.notes)


def test_a_page_of_the_last_chunk_that_cannot_be_read_stops_no_start(
    tmp_path: Path, harness: StorageHarness
) -> None:
    """If it is known that the page was synced, its blocks become a hole. If it is not known, the
    blocks are neither cut off nor returned, and the start is refused.
    """
    (tmp_path / "pages").mkdir()
    pages = type(harness)(tmp_path / "pages", replace(TINY, chunk_bytes=1 << 16))
    pages.open()
    pages.publish(blocks=2, count=1, size=5000)
    pages.sync()
    pages.checkpoint()
    pages.publish(count=1, size=5000)
    path = pages.chunk_path()
    size = path.stat().st_size
    broken = (path.name, size - 300)
    pages.abandon()
    pages.files.unreadable = broken
    with pytest.raises(
        StoreFailed, match="It is not known whether acknowledged messages are there"
    ):
        pages.open()
    assert path.stat().st_size == size
    pages.files.unreadable = ("", 0)
    pages.open()  # this syncs the page, and commits that it is synced
    pages.abandon()
    pages.files.unreadable = broken
    report = pages.open().report
    assert report.holes == ((2, 1),)
    assert any("it is skipped" in alarm for alarm in report.alarms)
    pages.publish(count=1)
    pages.sync()
    assert pages.check(lost_max=1) == [0, 1, 3]


def test_a_chunk_that_was_being_created_is_removed(harness: StorageHarness) -> None:
    harness.publish()
    for data in (b"", bytes(100), bytes(CHUNK_HEADER_BYTES)):
        harness.abandon_cleanly()
        harness.replace(harness.chunk_path(3), data)
        report = harness.open().report
        assert report.notes
        assert not report.alarms
        assert harness.files.log[:3] == ["sync_folder", "remove", "sync_folder"]
        assert harness.check() == [0]
    harness.publish()
    assert harness.check() == [0]


def test_damage_found_by_a_read_is_named_once_and_stepped_over(harness: StorageHarness) -> None:
    for _ in range(4):
        harness.publish(count=2)
    harness.sync()
    chunk = harness.chunk_path()
    position = chunk.read_bytes().index(b"1/1....")
    with chunk.open("r+b") as file:
        file.seek(position)
        file.write(b"X")
    assert len(harness.log.read(0, 1, 8)) == 1
    with pytest.raises(Damaged) as damage:
        harness.log.read(3, 4096, 8)
    assert (damage.value.offset, damage.value.count) == (2, 2)
    assert harness.log.holes == ((2, 2),)
    assert harness.log.skip(3) == 4
    assert [block.first_offset for block in harness.log.read(2, 4096, 8)] == [4, 6]
    assert [block.first_offset for block in harness.log.read(0, 4096, 8)] == [0]


def test_bytes_in_a_body_never_pass_for_a_block(harness: StorageHarness) -> None:
    """The body contains a block in the format on disk. Its writer had to guess the seed, so it is
    not accepted.
    """
    inner = pack([b"forged"])
    forged = inner.wire_header().replace(b"ZSQB", b"ZSQD") + inner.payload
    harness.sent.append((forged * 3,))
    harness.log.append([pack([forged * 3], producer_id=77)], 5)
    harness.offsets[0] = 0
    harness.publish()
    harness.sync()
    path = harness.chunk_path()
    harness.abandon_cleanly()
    harness.path(index_name(0)).unlink()  # so that recovery reads from the start
    harness.flip(path, (CHUNK_HEADER_BYTES + 3) * 8)
    assert harness.open().report.holes == ((0, 1),)
    assert harness.check(lost_max=1) == [1]


@pytest.mark.parametrize(
    "unit", [b"ZSQD\1\0\0\0", b"ZSQD\1\0\0\0" + b"\x48\0\0\0\1\0\0\0", b"ZSQD"]
)
def test_a_body_full_of_headers_beginnings_costs_few_decodings(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    """After a damaged header, the log searches for the next header in bytes that a publisher has
    chosen.
    """
    big = StoreOptions(chunk_bytes=1 << 22, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0)
    harness.abandon_cleanly()
    harness.options = big
    harness.open()
    harness.log.append([pack([unit * ((1 << 20) // len(unit))], producer_id=77)], 5)
    harness.log.append([pack([b"next"], producer_id=77, sequence=1)], 6)
    harness.abandon_cleanly()
    harness.flip(harness.chunk_path(), (CHUNK_HEADER_BYTES + 20) * 8)
    calls: list[int] = []

    def counted(data: bytes, seed: int, position: int) -> Header | None:
        calls.append(1)
        return decode_disk_header(data, seed, position)

    monkeypatch.setattr("zsq.storage.log.chunk.decode_disk_header", counted)
    harness.open()
    with pytest.raises(Damaged):
        harness.log.read(0, 1, 2)
    (block,) = harness.log.read(0, 1, 2)
    assert block.first_offset == 1
    assert len(calls) < 50


def test_a_lost_or_wrong_index_costs_no_message(two_chunks: StorageHarness) -> None:
    path = two_chunks.path(index_name(0))
    good = path.read_bytes()
    two_chunks.open()
    assert two_chunks.log.read(1, 1, 5)[0].first_offset == 1
    two_chunks.abandon_cleanly()
    stale = good[:12] + b"\1\2\3\4" + good[16:]
    for data in (
        None,
        b"",
        good[:40],
        good[:-1],
        bytes(len(good)),
        good[::-1],
        stale,
        *(two_chunks.flipped(good, bit) for bit in range(len(good) * 8)),
    ):
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        two_chunks.files.reset()
        two_chunks.open()
        for offset in (2, 1, 0):
            assert two_chunks.log.read(offset, 1, 5)[0].first_offset == offset
        two_chunks.abandon_cleanly()
        assert path.read_bytes() == good, "rebuilt as it was"


def test_an_index_entry_is_believed_only_if_the_header_agrees(two_chunks: StorageHarness) -> None:
    """The block's header at an entry was damaged after the index was written. The reader then skips
    that block.
    """
    position = two_chunks.chunk_path(0).read_bytes().index(b"ZSQD", CHUNK_HEADER_BYTES + 8)
    two_chunks.flip(two_chunks.chunk_path(0), position * 8)
    two_chunks.open()
    with pytest.raises(Damaged) as damage:
        two_chunks.log.read(1, 1, 5)
    assert (damage.value.offset, damage.value.count) == (1, 1)
    assert two_chunks.check(lost_max=1) == [0, 2, 3, 4]


def test_a_damaged_identity_is_written_anew_and_a_foreign_one_refused(
    two_chunks: StorageHarness,
) -> None:
    path = two_chunks.path(IDENTITY_NAME)
    good = path.read_bytes()
    for bit in range(0, len(good) * 8, 7):
        two_chunks.flip(path, bit)
        assert two_chunks.open().report.notes
        two_chunks.abandon_cleanly()
        assert path.read_bytes() == good
    path.unlink()
    two_chunks.files.reset()
    two_chunks.open()
    two_chunks.abandon_cleanly()
    assert path.read_bytes() == good


def test_chunks_of_another_topic_are_refused(
    two_chunks: StorageHarness, tmp_path: Path, harness: StorageHarness
) -> None:
    harness.publish()
    harness.abandon_cleanly()
    two_chunks.replace(two_chunks.chunk_path(3), harness.chunk_path(0).read_bytes())
    with pytest.raises(ForeignDirectory):
        two_chunks.open()


@pytest.mark.parametrize("base", [0, 3])
def test_only_the_block_that_the_disk_cannot_read_is_lost(
    two_chunks: StorageHarness, base: int
) -> None:
    """Reads of one block (the second one of the chunk) fail permanently. The error names the lost
    offsets, and reading continues after them.
    """
    position = two_chunks.chunk_path(base).read_bytes().index(b"ZSQD", CHUNK_HEADER_BYTES + 8)
    two_chunks.open()
    two_chunks.files.unreadable = (two_chunks.chunk_path(base).name, position)
    assert two_chunks.check(lost_max=5) == [
        sequence for sequence in range(5) if not base <= sequence < base + 3
    ]
    assert two_chunks.damage == ([(0, 3)] if base == 0 else [(3, 2)])


@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.EACCES, errno.ESTALE, errno.EIO, errno.ENOENT]
)
def test_a_chunk_that_cannot_be_opened_now_is_not_damaged(
    two_chunks: StorageHarness, code: int
) -> None:
    """A single failure is not even reported. If opening fails again and again, that is an error,
    and nothing changes on disk.
    """
    two_chunks.open()
    two_chunks.restart()  # the first opening read the old chunk for its producers
    before = two_chunks.files._calls.get("open_read", 0)
    two_chunks.files.fail["open_read"] = {before + 1: code, before + 2: code, before + 3: code}
    with pytest.raises(Unreadable, match="cannot be opened"):
        two_chunks.log.read(0, 1, 5)
    assert two_chunks.check() == [0, 1, 2, 3, 4], "the one that failed once was tried again"
    assert not two_chunks.damage
    assert not two_chunks.log.holes


def test_a_chunk_not_opened_at_the_start_is_an_alarm_and_read_later(
    two_chunks: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_chunks.open()  # this reads the old chunk for its producers
    two_chunks.abandon_cleanly()
    real = two_chunks.files.open_read

    def refuse(path: str) -> int:
        if path.endswith(two_chunks.chunk_path(0).name):
            raise OSError(errno.EACCES, "by plan")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(two_chunks.files, "open_read", refuse)
        report = two_chunks.open().report
        assert [alarm for alarm in report.alarms if "its 3 messages are not lost" in alarm]
        two_chunks.publish(count=1)
        two_chunks.sync()
        with pytest.raises(Unreadable):
            two_chunks.log.read(0, 1, 5)
        assert two_chunks.log.read(3, 1, 5)
    assert two_chunks.check() == [0, 1, 2, 3, 4, 5]


def test_no_chunk_left_is_refused(harness: StorageHarness) -> None:
    harness.publish()
    harness.abandon_cleanly()
    harness.replace(harness.chunk_path(0), bytes(300))
    with pytest.raises(Damaged):
        harness.open()
