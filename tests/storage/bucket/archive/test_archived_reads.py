"""Tests of reads from the bucket: everything that a log answers is the same when the files of its
old chunks are gone.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness, fill

from zsq.storage.bucket.archive.chunk_cache import open_cache
from zsq.storage.errors import NotHere, OutOfReach, Unreadable
from zsq.storage.files import Files
from zsq.storage.log.log_format import chunk_name
from zsq.storage.state.state import StateBatch


def contents(archive: ArchiveHarness) -> list[tuple[Any, ...]]:
    return [(block.header, tuple(block.body.values())) for block in archive.read_all()]


def test_archived_blocks_are_read_as_they_were_on_the_disk(archive: ArchiveHarness) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive()
    names = archive.files.list(archive.directory)
    assert [name for name in names if name.endswith(".chunk")] == [
        chunk_name(archive.log.chunks[-1])
    ]
    assert contents(archive) == before
    assert archive.fetched
    assert not archive.log.reader.damage.blocks


def test_a_restart_finds_the_archived_chunks_in_the_state(archive: ArchiveHarness) -> None:
    fill(archive)
    before, chunks = contents(archive), archive.log.chunks
    archive.archive()
    archive.restart()
    assert archive.log.chunks == chunks
    assert not archive.opened.report.alarms
    assert contents(archive) == before
    archive.publish(blocks=3)
    archive.sync()
    assert contents(archive)[: len(before)] == before


def test_a_state_that_is_rebuilt_still_knows_the_archived_chunks(archive: ArchiveHarness) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive()
    archive.opened.close()
    archive.store = None
    archive.files.remove(f"{archive.directory}/state/data.mdb")
    archive.open()
    assert any("rebuilt" in alarm for alarm in archive.opened.report.alarms)
    assert contents(archive) == before


def test_a_lost_file_of_an_archived_chunk_is_read_from_the_bucket(archive: ArchiveHarness) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive(keep=6)
    assert not archive.log.reader.remote
    archive.opened.close()
    archive.store = None
    names = archive.files.list(archive.directory)
    lost = [name for name in names if name.endswith(".chunk")][2]
    archive.files.remove(f"{archive.directory}/{lost}")
    archive.open()
    assert list(archive.log.reader.remote) == [int(lost[:20])]
    assert contents(archive) == before


def test_without_a_bucket_a_read_says_where_the_messages_are(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive()
    archive.options = replace(archive.options, open_remote=None)
    archive.restart()
    with pytest.raises(Unreadable, match=r"only in the bucket.*start it with --bucket"):
        archive.log.read(0, 4096, archive.log.end)
    assert archive.log.read(archive.log.chunks[-1], 4096, archive.log.end) is not None
    assert not archive.log.reader.damage.blocks, "nothing is lost"


def test_searches_and_measurements_answer_as_before(archive: ArchiveHarness) -> None:
    fill(archive)
    log = archive.log
    offsets = range(0, log.end, 2)
    times = [header.time_ns for header, _ in log.headers(0)]

    def answers() -> list[object]:
        found: list[object] = []
        for offset in offsets:
            found += [
                archive.waiting(partial(log.measure, offset, log.end, 300)),
                archive.waiting(partial(log.measure, 3, offset, 100)),
                log.reader.newest(offset + 1, log.end),
            ]
        for time_ns in times:
            found.append(archive.waiting(partial(log.offset_at, time_ns)))
        return found

    before = answers()
    archive.archive()
    assert answers() == before


def test_a_header_is_unknown_until_its_segment_is_there(archive: ArchiveHarness) -> None:
    fill(archive)
    wanted = archive.log.reader.header_at(4)
    archive.archive()
    while (found := archive.log.reader.header_at(4)) is None:
        assert archive.fetch()
    assert found == wanted


def test_a_sequential_reader_waits_once_for_several_segments(archive: ArchiveHarness) -> None:
    fill(archive, chunks=10)
    archive.archive()
    waits = 0
    offset, end = 0, archive.log.chunks[-1]
    while offset < end:
        try:
            offset = archive.log.read(offset, 512, end)[-1].next_offset
        except NotHere:
            waits += 1
            archive.fetch()
        archive.fetch()  # what is read ahead arrives meanwhile
    assert waits <= 2
    assert archive.fetched >= 9 * 1024 // SEGMENT_BYTES


def test_the_cache_stays_within_its_bound_and_leaves_no_files(archive: ArchiveHarness) -> None:
    fill(archive, chunks=12)
    archive.archive()
    archive.read_all()
    cache = archive.cache
    assert cache is not None
    folder = f"{archive.directory}/archive"
    sizes = [archive.files.size_of(f"{folder}/{name}") for name in archive.files.list(folder)]
    assert sum(sizes) == cache.bytes <= 8 * SEGMENT_BYTES
    archive.restart()
    assert not archive.files.exists(folder)


def test_a_segment_that_cannot_be_fetched_makes_reads_fail_and_nothing_is_lost(
    archive: ArchiveHarness,
) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive()
    cache = archive.cache
    assert cache is not None
    now = [10**18]
    cache._clock = lambda: now[0]
    with pytest.raises(NotHere):
        archive.log.read(0, 4096, archive.log.end)
    for segment in cache.take_wanted():
        cache.failed(segment, "the bucket does not answer")
    with pytest.raises(Unreadable, match="cannot be fetched: the bucket does not answer") as caught:
        archive.log.read(0, 4096, archive.log.end)
    assert not isinstance(caught.value, NotHere)
    now[0] += 2 * 10**9
    assert contents(archive) == before
    assert not archive.log.reader.damage.blocks


def test_fetches_that_were_under_way_are_wanted_again(archive: ArchiveHarness) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive()
    cache = archive.cache
    assert cache is not None
    with pytest.raises(NotHere):
        archive.log.read(0, 4096, archive.log.end)
    assert cache.take_wanted()
    with pytest.raises(NotHere):
        archive.log.read(0, 4096, archive.log.end)
    assert not cache.take_wanted(), "they are under way already"
    cache.interrupted()
    assert contents(archive) == before


def test_expired_chunks_leave_the_cache_and_the_log(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive()
    archive.read_all()
    start = archive.log.chunks[3]
    gone = [base for base in archive.opened.archived if base < start]
    archive.opened.state.commit(StateBatch(start=start, archived_gone=gone))
    for base in gone:
        del archive.opened.archived[base]
    archive.log.forget(start)
    cache = archive.cache
    assert cache is not None
    cache.forget_below(start)
    assert archive.log.start == start
    assert archive.read_all()[0].first_offset == start
    assert list(archive.log.reader.remote) == list(archive.opened.archived)
    archive.restart()
    assert archive.log.start == start
    assert not archive.opened.report.alarms


def test_a_segment_of_an_expired_chunk_that_arrives_late_is_removed(
    archive: ArchiveHarness,
) -> None:
    fill(archive)
    archive.archive()
    cache = archive.cache
    assert cache is not None
    with pytest.raises(NotHere):
        archive.log.read(0, 4096, archive.log.end)
    (segment, *_) = cache.take_wanted()
    row = archive.opened.archived.pop(0)
    size = archive.objects.fetch(archive.uuid, row, segment.number, cache.path(segment))
    cache.arrived(segment, size)
    assert not cache.bytes
    assert not archive.files.exists(cache.path(segment))


def test_a_recovery_never_waits_for_the_bucket(archive: ArchiveHarness) -> None:
    """Nobody fetches during a recovery. So it reads only the chunks that have files."""
    fill(archive)
    archive.archive()
    local = archive.log.chunks[-1]
    firsts = [header.first_offset for header, _ in archive.log.headers(0) if header.count]
    assert all(first >= local for first in firsts)
    archive.opened.state.commit(StateBatch(applied_offset=local, synced_end=archive.log.end))
    archive.restart()
    assert archive.log.start == 0


def test_a_disk_that_fails_under_the_cache_loses_nothing(
    archive: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(archive)
    before = contents(archive)
    archive.archive()
    archive.read_all()
    cache = archive.cache
    assert cache is not None

    def fail(fd: int, size: int, position: int) -> bytes:
        raise OSError(errno.EIO, "a bad sector")

    offset = archive.log.chunks[-2]
    with monkeypatch.context() as patch:
        patch.setattr(archive.files, "pread", fail)
        with pytest.raises(OutOfReach, match="a bad sector"):
            archive.log.read(offset, 4096, archive.log.end)
    cache._failures.clear()
    assert not archive.log.reader.damage.blocks, "nothing counts as lost"
    assert contents(archive) == before


class _Racing(Files):
    """Files of a folder in which a fetch of an ended process still puts or renames a file."""

    def __init__(self, before: str) -> None:
        super().__init__()
        self._before = before

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        if self._before:
            (Path(path) / self._before).rename(Path(path) / "late")
        else:
            (Path(path) / "late").write_bytes(b"x")
        return names


@pytest.mark.parametrize("before", ["", "early"])
def test_a_fetch_that_ends_late_does_not_prevent_a_start(tmp_path: Path, before: str) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "early").write_bytes(b"x")
    open_cache(1 << 30)(_Racing(before), str(tmp_path), bytes(16), {})
    assert [path.name for path in folder.iterdir()] == ["late"]
    open_cache(1 << 30)(Files(), str(tmp_path), bytes(16), {})
    assert not folder.exists()
