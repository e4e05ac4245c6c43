"""Tests of the last chunk at a start: what is written again, what is cut off, what is kept in a
`.bad` file, and reading through a file that ends too soon.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.faulty_files import keep_all, keep_none

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import StoreFailed
from zsq.storage.files import Files
from zsq.storage.log import recovery
from zsq.storage.log.chunk import PAGE_BYTES, ChunkFile
from zsq.storage.log.damage import bad_heads
from zsq.storage.log.log_format import (
    BAD_SUFFIX,
    CHUNK_HEADER_BYTES,
    chunk_name,
    decode_chunk_header,
)

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

TINY = StoreOptions(
    chunk_bytes=460, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)


@pytest.fixture
def rewrites(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return (begin, end) of each write into the first chunk from now on."""
    found: list[tuple[int, int]] = []
    real = harness.files.writev

    def writev(fd: int, buffers: Sequence[Any], position: int) -> None:
        if harness.files._tree_name(fd) == chunk_name(0):
            found.append(
                (position, position + sum(len(memoryview(one).cast("B")) for one in buffers))
            )
        real(fd, buffers, position)

    monkeypatch.setattr(harness.files, "writev", writev)
    return found


def test_bytes_after_the_checkpoint_are_written_back(harness: StorageHarness) -> None:
    """After a failed sync, the page cache contains bytes that never reached the disk. Recovery must
    not count them without writing them again.
    """
    harness.publish()
    harness.sync()
    harness.checkpoint()
    synced = harness.chunk_path().stat().st_size
    harness.publish()
    harness.files.fail["sync"] = {harness.files._calls.get("sync", 0) + 1: errno.EIO}
    ticket = harness.log.begin_sync()
    with pytest.raises(StoreFailed):
        ticket.run()
    size = harness.chunk_path().stat().st_size
    harness.abandon()
    assert harness.open().report.rewritten_bytes == size - synced, (
        "what a commit vouches for is on disk"
    )
    assert harness.check() == [0, 1]
    harness.crash(keep_none)
    assert harness.check() == [0, 1]


def test_each_byte_is_written_back_once(
    harness: StorageHarness, rewrites: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "COPY_BYTES", 64)
    harness.publish(blocks=3)
    size = harness.chunk_path().stat().st_size
    harness.abandon()
    del rewrites[:]
    assert harness.open().report.rewritten_bytes == size
    assert sum(end - begin for begin, end in rewrites) == size
    assert rewrites[0][0] == 0
    assert rewrites[-1][1] == size


def test_only_the_page_that_the_disk_cannot_read_is_not_written_back(
    harness: StorageHarness, rewrites: list[tuple[int, int]]
) -> None:
    harness.abandon_cleanly()
    harness.options = replace(harness.options, chunk_bytes=1 << 20)
    harness.open()
    for _ in range(3):
        harness.publish(count=1, size=5_000)
        harness.sync()
    path = harness.chunk_path()
    size = path.stat().st_size
    harness.abandon()
    del rewrites[:]
    harness.files.unreadable = (path.name, PAGE_BYTES + 10)
    assert harness.open().report.holes == ((0, 1),)
    written = {
        page
        for begin, end in rewrites
        for page in range(begin // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES)
    }
    assert written == {page for page in range((size + PAGE_BYTES - 1) // PAGE_BYTES) if page != 1}


@pytest.mark.parametrize("torn", [False, True])
def test_a_hole_is_known_also_where_there_is_no_space_for_its_file(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """With `torn`, an unfinished write after the hole is cut off too."""
    for _ in range(3):
        harness.publish()
        harness.sync()
    end = harness.chunk_path().stat().st_size
    if torn:
        harness.publish()
    harness.abandon()
    harness.files.crash(keep_all)
    if torn:
        harness.flip(harness.chunk_path(), (end + 70) * 8)
    harness.flip(harness.chunk_path(), (CHUNK_HEADER_BYTES + 70) * 8)
    real = harness.files.open_new

    def open_new(path: str) -> int:
        if f"{BAD_SUFFIX}." in path:
            raise OSError(errno.ENOSPC, "by plan")
        return real(path)

    monkeypatch.setattr(harness.files, "open_new", open_new)
    report = harness.open().report
    assert any("could not be written" in note for note in report.notes)
    assert bool(report.cut_bytes) == torn
    assert report.holes == ((0, 3),)
    assert harness.log.reader.damage.messages == 3, "nobody has to meet it first"


@pytest.mark.parametrize("whole", [False, True])
def test_torn_writes_with_complete_blocks_are_always_kept(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """A machine that often loses its power leaves an unfinished write each time. Those with
    complete blocks after them are kept without a limit.
    """
    monkeypatch.setattr(recovery, "BAD_FILES_MAX", 0)
    harness.publish()
    harness.sync()
    end = harness.chunk_path().stat().st_size
    harness.publish(blocks=1 + whole)
    harness.abandon()
    harness.files.crash(keep_all)
    harness.flip(harness.chunk_path(), (end + 70) * 8)
    report = harness.open().report
    assert report.cut_bytes > 0
    assert len(bad_heads(Files(), harness.directory)) == whole
    assert any("with intact blocks behind it" in note for note in report.notes) == whole


def test_a_last_chunk_without_a_header_is_set_aside_for_good(
    tmp_path: Path, harness: StorageHarness
) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    topic = type(harness)(folder, TINY)
    topic.open()
    for _ in range(5):
        topic.publish(count=1, size=1)
        topic.sync()
    topic.abandon_cleanly()
    path = topic.chunk_path(3)
    content = bytes(CHUNK_HEADER_BYTES) + path.read_bytes()[CHUNK_HEADER_BYTES:]
    topic.replace(path, content)
    report = topic.open().report
    assert any("set aside" in alarm for alarm in report.alarms)
    assert not path.exists()
    topic.crash(keep_none)
    assert not path.exists(), (
        "a name that comes back would be read again behind what was written since"
    )
    assert path.with_name(path.name + BAD_SUFFIX).read_bytes() == content
    topic.publish(count=1, size=1)
    topic.sync()
    assert topic.check(lost_max=5)[:3] == [0, 1, 2]
    topic.abandon()


@pytest.mark.parametrize("left", range(1, 40, 3))
def test_a_walk_ends_where_the_file_ends_too_soon(harness: StorageHarness, left: int) -> None:
    """The file was cut while it was open. The search for the next header must still end."""
    for _ in range(3):
        harness.publish()
    harness.sync()
    path = harness.chunk_path()
    data = path.read_bytes()
    harness.abandon()
    path.write_bytes(data + b"\xff" * left)
    files = Files()
    fd = files.open_read(str(path))
    try:
        chunk = ChunkFile(
            files, harness.directory, fd, decode_chunk_header(data[:CHUNK_HEADER_BYTES])
        )
        chunk.end_position = len(data) + 100_000
        stretches = list(islice(chunk.walk(CHUNK_HEADER_BYTES, columns=True), 10))
    finally:
        files.close(fd)
    assert [stretch.good for stretch in stretches] == [True, True, True, False]
    assert stretches[-1].end == chunk.end_position
