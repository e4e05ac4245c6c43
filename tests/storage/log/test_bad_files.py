"""Tests of `.bad` files: damaged bytes are kept with their offsets, known at the next start, and
forgotten if they can be read again.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.faulty_files import PowerCut, keep_none

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.log import damage as damage_file
from zsq.storage.log.damage import (
    BAD_HEAD_BYTES,
    CUT_OFF,
    Bad,
    BadHead,
    DamageBook,
    Hole,
    bad_heads,
    decode_bad_head,
    encode_bad_head,
)
from zsq.storage.log.log_format import bad_name, chunk_name, index_name, parse_bad_name

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

TINY = StoreOptions(
    chunk_bytes=460, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)


@pytest.fixture
def chunks(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make an open topic: sealed chunks of three blocks each and a last one of two, one message in
    each block.
    """
    folder = tmp_path / "chunks"
    folder.mkdir()
    made = type(harness)(folder, TINY)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    assert made.log.chunks == (0, 3, 6)
    return made


def block_at(harness: StorageHarness, base: int, number: int) -> tuple[int, int]:
    """Return (position, end) of a block of a chunk."""
    data = harness.chunk_path(base).read_bytes()
    positions = [at for at in range(0, len(data), 8) if data[at : at + 4] == b"ZSQD"]
    end = (
        int.from_bytes(data[positions[number] + 8 : positions[number] + 12], "little")
        + positions[number]
    )
    return positions[number], end


def spoil(harness: StorageHarness, base: int, number: int) -> bytes:
    """Flip a bit in a block's columns, and return the changed block."""
    position, end = block_at(harness, base, number)
    path = harness.chunk_path(base)
    data = harness.flipped(path.read_bytes(), (position + 70) * 8)
    path.write_bytes(data)
    return data[position:end]


def keep(harness: StorageHarness, now_ns: int = 7_000) -> list[str]:
    job = harness.log.reader.damage.take(now_ns)
    return [] if job is None else job()


def test_damage_found_by_a_read_is_set_aside_with_its_offsets(chunks: StorageHarness) -> None:
    position, end = block_at(chunks, 0, 1)
    bad = spoil(chunks, 0, 1)
    with pytest.raises(Damaged):
        chunks.log.read(1, 1, 8)
    assert not chunks.path(bad_name(0, position)).exists(), "the reader's thread writes nothing"
    (said,) = keep(chunks)
    assert "1 lost messages from offset 1 on" in said
    data = chunks.path(bad_name(0, position)).read_bytes()
    head = decode_bad_head(data)
    assert head == BadHead(
        Bad(0, position, end - position, 1, 1, "its checksum does not match", blocks=1),
        7_000,
        end - position,
        crc32c(bad),
    )
    assert data[BAD_HEAD_BYTES:] == bad
    assert data.startswith(
        b'{"zsq": "bad", "version": 1, "kind": "damaged", "chunk": '
        b'"00000000000000000000.chunk", "position": '
    )
    assert keep(chunks) == [], "once"
    assert (chunks.log.reader.damage.blocks, chunks.log.reader.damage.messages) == (1, 1)


@pytest.mark.parametrize("base", [0, 3])
def test_a_restart_knows_the_lost_offsets_without_reading_them(
    chunks: StorageHarness, base: int
) -> None:
    spoil(chunks, base, 1)
    with pytest.raises(Damaged):
        chunks.log.read(base + 1, 1, 8)
    keep(chunks)
    report = chunks.restart().report
    assert report.holes == ((base + 1, 1),)
    assert any("1 messages in 1 blocks are known to be lost" in note for note in report.notes)
    assert (chunks.log.reader.damage.blocks, chunks.log.reader.damage.messages) == (1, 1)
    assert [block.first_offset for block in chunks.log.read(base + 1, 1, 8)] == [base + 2], (
        "it is stepped over, not raised again"
    )
    assert len(chunks.check(lost_max=1)) == 7
    assert not chunks.damage


def test_damage_that_recovery_finds_is_kept_and_known(chunks: StorageHarness) -> None:
    position, end = block_at(chunks, 6, 0)
    chunks.abandon_cleanly()
    chunks.path(index_name(6)).unlink()
    chunks.flip(chunks.chunk_path(6), (position + 70) * 8)
    assert chunks.open().report.holes == ((6, 1),)
    (head,) = bad_heads(Files(), chunks.directory)
    assert (head.bad.first_offset, head.bad.count, head.bad.position, head.kept) == (
        6,
        1,
        position,
        end - position,
    )
    assert chunks.restart().report.holes == ((6, 1),)
    assert len(bad_heads(Files(), chunks.directory)) == 1


def test_a_block_that_can_be_read_again_is_not_lost(chunks: StorageHarness) -> None:
    """A disk or RAM may fail only for a moment."""
    good = chunks.chunk_path(0).read_bytes()
    spoil(chunks, 0, 1)
    with pytest.raises(Damaged):
        chunks.log.read(1, 1, 8)
    keep(chunks)
    chunks.abandon_cleanly()
    chunks.replace(chunks.chunk_path(0), good)
    report = chunks.open().report
    assert report.holes == ()
    assert any("can be read again" in note for note in report.notes)
    assert chunks.check() == list(range(8))


def test_neighbours_are_one_file_and_each_is_counted(chunks: StorageHarness) -> None:
    spoil(chunks, 0, 0)
    spoil(chunks, 0, 1)
    with pytest.raises(Damaged) as raised:
        chunks.log.read(0, 1, 8)
    assert (raised.value.offset, raised.value.count) == (0, 2)
    assert len(keep(chunks)) == 1
    assert (chunks.log.reader.damage.blocks, chunks.log.reader.damage.messages) == (2, 2)


def test_bytes_that_the_disk_cannot_read_are_set_aside_as_zeros(chunks: StorageHarness) -> None:
    position, _ = block_at(chunks, 0, 1)
    chunks.files.unreadable = (chunk_name(0), position + 70)
    with pytest.raises(Damaged):
        chunks.log.read(0, 1, 8)
    assert len(keep(chunks)) == 1
    (head,) = bad_heads(Files(), chunks.directory)
    assert head.kept == head.bad.bytes > 0


@pytest.mark.parametrize("call", ["open_new", "writev", "sync", "rename", "sync_folder"])
def test_a_full_disk_is_noted_and_no_more(chunks: StorageHarness, call: str) -> None:
    spoil(chunks, 0, 1)
    with pytest.raises(Damaged):
        chunks.log.read(1, 1, 8)
    chunks.files.fail[call] = {chunks.files._calls.get(call, 0) + 1: errno.ENOSPC}
    (said,) = keep(chunks)
    assert "could not be written" in said
    assert chunks.log.read(1, 1, 8)[0].first_offset == 2
    chunks.publish(count=1, size=1)
    chunks.sync()
    assert len(chunks.check(lost_max=1)) == 8


def test_a_crash_during_the_write_of_a_bad_file_leaves_all_or_nothing(
    chunks: StorageHarness,
) -> None:
    chunks.abandon_cleanly()
    chunks.flip(chunks.chunk_path(0), (block_at(chunks, 0, 1)[0] + 70) * 8)
    chunks.open()
    for cut in range(1, 8):
        assert len(chunks.check(lost_max=1)) == 7, "whether it is met, or known"
        chunks.files.power_cut_at = chunks.files.changes + cut
        try:
            keep(chunks)
        except PowerCut:
            chunks.crash(keep_none)
            assert not bad_heads(Files(), chunks.directory)
            assert chunks.log.holes == ()
            continue
        chunks.files.power_cut_at = 0
        chunks.crash(keep_none)
        assert chunks.log.holes == ((1, 1),), "synced, renamed, and the folder synced"
        return
    raise AssertionError("it never got through")


def test_bad_files_are_kept_only_up_to_their_limits(
    chunks: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_file, "BAD_FILES_MAX", 1)
    spoil(chunks, 0, 0)
    spoil(chunks, 0, 2)
    for offset in (0, 2):
        with pytest.raises(Damaged):
            chunks.log.read(offset, 1, 8)
    assert len(keep(chunks)) == 1
    assert chunks.log.reader.damage.messages == 2, "counted all the same"
    spoil(chunks, 3, 1)
    monkeypatch.setattr(damage_file, "BAD_FILES_MAX", 10)
    monkeypatch.setattr(damage_file, "BAD_TOTAL_BYTES_MAX", 10)
    with pytest.raises(Damaged):
        chunks.log.read(4, 1, 8)
    assert keep(chunks) == []


def test_a_chunk_that_is_gone_is_an_alarm_and_a_hole(chunks: StorageHarness) -> None:
    chunks.abandon_cleanly()
    chunks.chunk_path(3).unlink()
    chunks.files.reset()
    report = chunks.open().report
    assert report.holes == ((3, 3),)
    assert any("3 messages are missing" in alarm for alarm in report.alarms)
    assert chunks.check(lost_max=3) == [0, 1, 2, 6, 7]
    assert not chunks.damage, "nobody has to find it by reading"


@pytest.mark.parametrize("base", [0, 3, 6])
def test_a_chunk_that_comes_back_is_lost_no_more(chunks: StorageHarness, base: int) -> None:
    """The hole has an empty `.bad` file, so that it is remembered. That file is removed when the
    chunk covers the offsets again.
    """
    chunks.abandon_cleanly()
    path = chunks.chunk_path(base)
    away = path.with_suffix(".away")
    path.rename(away)
    chunks.files.reset()
    chunks.open()
    expected = [sequence for sequence in range(8) if not base <= sequence < min(base + 3, 8)]
    assert chunks.check(lost_max=3) == expected
    keep(chunks)
    if base:  # offsets before the first chunk do not belong to the log
        (head,) = bad_heads(Files(), chunks.directory)
        assert (head.bad.bytes, head.bad.first_offset, head.kept) == (0, base, 0)
        report = chunks.restart().report
        assert chunks.log.reader.damage.messages == 8 - len(expected), (
            "known, and shown, at each start"
        )
        assert not report.alarms
    chunks.abandon_cleanly()
    away.rename(path)
    chunks.files.reset()
    report = chunks.open().report
    assert not report.holes
    assert chunks.check() == list(range(8))
    assert [note for note in report.notes if "can be read again" in note] or not base


def test_a_bad_file_that_cannot_be_read_stops_nothing(
    chunks: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(chunks, 0, 1)
    with pytest.raises(Damaged):
        chunks.log.read(1, 1, 8)
    keep(chunks)
    chunks.abandon_cleanly()
    real = chunks.files.read_file

    def refuse(path: str, max_bytes: int) -> bytes:
        if path.endswith(".bad"):
            raise OSError(errno.EIO, "by plan")
        return real(path, max_bytes)

    monkeypatch.setattr(chunks.files, "read_file", refuse)
    report = chunks.open().report
    assert [note for note in report.notes if ".bad cannot be read" in note]
    assert chunks.check(lost_max=1) == [0, 2, 3, 4, 5, 6, 7]


def test_an_old_chunk_with_both_headers_damaged_is_an_alarm_and_a_hole(
    chunks: StorageHarness,
) -> None:
    chunks.abandon_cleanly()
    chunks.flip(chunks.chunk_path(0), 100)
    chunks.flip(chunks.chunk_path(0), 64 * 8 + 100)
    whole = chunks.chunk_path(0).read_bytes()
    report = chunks.open().report
    (alarm,) = report.alarms
    assert "the one in its footer is used" in alarm
    assert chunks.check() == list(range(8))
    chunks.abandon_cleanly()
    chunks.replace(chunks.chunk_path(0), chunks.flipped(whole, (len(whole) - 20) * 8))
    report = chunks.open().report
    assert report.holes == ((0, 3),)
    assert len(report.alarms) == 1
    assert chunks.chunk_path(0).exists(), "it is not touched"


def test_the_survey_goes_on_where_recovery_stopped(
    chunks: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsq.storage.log.recovery.AT_START_MAX", 1)
    chunks.abandon_cleanly()
    # Flip a bit in its footer.
    chunks.flip(chunks.chunk_path(0), (chunks.chunk_path(0).stat().st_size - 8) * 8)
    assert not chunks.open().report.alarms
    survey = chunks.log.survey
    job = survey.take()
    assert job is not None
    (alarm,) = survey.learn(job())
    assert "footer" in alarm
    assert survey.take() is None
    assert sorted(chunks.log.reader.book.facts) == [0, 3]
    assert chunks.check() == list(range(8))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12),
    st.integers(0, 70),
)
def test_lost_ranges_never_overlap_and_skip_leads_behind_them(
    found: list[tuple[int, int]], offset: int
) -> None:
    # This is a folder without `.bad` files.
    book = DamageBook(Files(), "/proc/self/fdinfo", [Hole(*hole) for hole in found])
    lost = {first + i for first, count in found for i in range(count)}
    assert sum(hole.count for hole in book.holes) == len(lost) == book.messages
    assert all(
        before.next_offset <= after.first_offset
        for before, after in zip(book.holes, book.holes[1:], strict=False)
    )
    expected = offset
    while expected in lost:
        expected += 1
    assert book.skip(offset) == expected


@given(st.text(max_size=300), st.integers(0, 2**63 - 1), st.sampled_from([CUT_OFF, "damaged"]))
def test_the_head_of_a_bad_file_always_has_512_bytes(why: str, number: int, kind: str) -> None:
    head = BadHead(
        Bad(number, number, number, number, number, why, kind, 10_000), number, 2**31, 2**32 - 1
    )
    data = encode_bad_head(head)
    assert len(data) == BAD_HEAD_BYTES
    found = decode_bad_head(data + b"rest")
    assert found is not None
    assert found._replace(bad=found.bad._replace(why=why)) == head


def test_each_bit_of_a_head_is_checked() -> None:
    data = encode_bad_head(BadHead(Bad(3, 128, 64, 4, 1, "why"), 5, 64, 6))
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        assert decode_bad_head(bytes(changed)) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (bad_name(1000, 128), (1000, 128)),
        ("00000000000000001000.chunk.bad", None),
        ("00000000000000001000-.bad", None),
        ("00000000000000001000-128.bad.tmp", None),
        ("1000-128.bad", None),
    ],
)
def test_only_complete_names_of_bad_files_are_parsed(
    name: str, found: tuple[int, int] | None
) -> None:
    assert parse_bad_name(name) == found


def test_the_first_chunks_gone_is_an_alarm(chunks: StorageHarness) -> None:
    chunks.abandon_cleanly()
    chunks.chunk_path(0).unlink()
    chunks.files.reset()
    report = chunks.open().report
    assert any("3 messages from offset 0 on are missing" in alarm for alarm in report.alarms)
    assert chunks.log.start == 3
    assert chunks.check(lost_max=3) == [3, 4, 5, 6, 7]


def test_the_report_of_recovery_is_one_readable_line(chunks: StorageHarness) -> None:
    said = chunks.restart().report.sentence()
    assert said.startswith("recovered in ")
    assert " up to offset 8: 3 chunks, " in said
    assert "lost" not in said
    spoil(chunks, 0, 1)
    with pytest.raises(Damaged):
        chunks.log.read(1, 1, 8)
    keep(chunks)
    assert "1 messages lost in 1 stretches" in chunks.restart().report.sentence()


def test_damage_found_twice_is_counted_and_set_aside_once(chunks: StorageHarness) -> None:
    book = chunks.log.reader.damage
    bad = Bad(0, 128, 80, 0, 1, "why")
    for _ in range(3):
        book.note(bad)
    assert (book.blocks, book.messages, book.by_chunk()) == (1, 1, {0: 1})
    assert len(keep(chunks)) == 1
    book.note(bad)
    assert keep(chunks) == []
