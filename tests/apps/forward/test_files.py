"""Tests of rolling files: what is complete after a torn write, and which names files get."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from zsq.apps.forward.files import READY, RollingFile, complete_size, gather, recover


def rolling(folder: Path, *, is_gzip: bool = False, now_s: float = 1.8e9) -> RollingFile:
    suffix = ".log.gz" if is_gzip else ".log"
    return RollingFile(folder, "clicks", suffix, 1000, 60.0, is_gzip=is_gzip, clock=lambda: now_s)


@pytest.mark.parametrize("is_gzip", [False, True])
def test_every_torn_end_is_cut_off(tmp_path: Path, is_gzip: bool) -> None:
    file = rolling(tmp_path, is_gzip=is_gzip)
    file.append([b"one", b"two"])
    [path] = tmp_path.glob("*.part")
    first = path.stat().st_size
    file.append([b"three"])
    whole = path.read_bytes()
    torn = tmp_path / ("torn.log.gz.part" if is_gzip else "torn.log.part")
    for size in range(len(whole) + 1):
        torn.write_bytes(whole[:size])
        expected = len(whole) if size == len(whole) else first if size >= first else 0
        if not is_gzip:
            expected = whole.rfind(b"\n", 0, size) + 1
        assert complete_size(torn) == expected, size
    file.complete()


def test_a_file_that_a_process_writes_is_left_alone(tmp_path: Path) -> None:
    file = rolling(tmp_path)
    file.append([b"one"])
    said: list[str] = []
    assert recover(tmp_path, "clicks", said.append) == []
    file.append([b"two"])
    file.complete()
    [path] = tmp_path.iterdir()
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.suffix == ".log"


def test_a_file_that_is_left_behind_gets_its_name(tmp_path: Path) -> None:
    names = [f"{log}.20270115T080000Z-h-1-0.log.part" for log in ("clicks", "clicks#3", "other")]
    for name in names:
        (tmp_path / name).write_bytes(b"one\ntw")
    (tmp_path / "clicks.20270115T080000Z-h-2-0.log.part").write_bytes(b"torn")
    said: list[str] = []
    found = recover(tmp_path, "clicks", said.append)
    assert {path.name for path in found} == {name.removesuffix(".part") for name in names[:2]}
    assert [path.read_bytes() for path in found] == [b"one\n", b"one\n"]
    assert (tmp_path / names[2]).exists(), "a file of another topic"
    assert len(list(tmp_path.iterdir())) == 3, "a file without a complete line is removed"


def test_two_files_of_one_second_have_different_names(tmp_path: Path) -> None:
    first, second = rolling(tmp_path), rolling(tmp_path)
    first.append([b"1"])
    second.append([b"2"])
    first.complete()
    first.append([b"3"])
    first.complete()
    second.complete()
    assert len(list(tmp_path.glob("*.log"))) == 3


def test_a_name_is_not_used_again_when_its_file_was_moved_away(tmp_path: Path) -> None:
    """Otherwise a script that moves complete files would replace one by another."""
    file, names = rolling(tmp_path), []
    for _ in range(3):
        file.append([b"1"])
        file.complete()
        [path] = tmp_path.iterdir()
        names.append(path.name)
        path.unlink()
    assert len(set(names)) == 3


@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_file_whose_first_write_failed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gzip: bool
) -> None:
    """An empty file would be no file of gzip."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    file = rolling(tmp_path, is_gzip=is_gzip)
    with pytest.raises(OSError, match="No space"):
        file.append([b"one"])
    monkeypatch.setattr(os, "fsync", fsync)
    completed: list[Path] = []
    file.on_complete = completed.append
    file.complete()
    assert completed == []
    assert list(tmp_path.iterdir()) == []


def test_a_gzip_file_is_one_file_for_every_reader(tmp_path: Path) -> None:
    file = rolling(tmp_path, is_gzip=True)
    file.append([b"one"])
    file.append([b"two"])
    file.complete()
    [path] = tmp_path.iterdir()
    assert gzip.decompress(path.read_bytes()) == b"one\ntwo\n"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_somebody_replaces_takes_no_message_with_it(
    tmp_path: Path, replaced: bool
) -> None:
    """An editor saved a file of nsq_to_file, and later messages were lost (nsq#483)."""
    file = rolling(tmp_path)
    file.append([b"one"])
    [path] = tmp_path.glob("*.part")
    path.unlink()
    if replaced:
        path.write_bytes(b"edited\n")
    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        file.append([b"two"])
    file.append([b"two"])
    file.complete()
    [complete] = tmp_path.glob("*.log")
    assert complete.read_bytes() == b"two\n"


def test_lines_are_synced_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    file = rolling(tmp_path)
    file.append([b"one"])
    assert synced[-1] == 4
    file.append([b"two"])
    assert synced[-1] == 8
    file.complete()


class Sent:
    """A consumer with deliveries of these sizes, which notes how long it was waited for more."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.waits: list[float] = []

    def receive_batch(self, timeout: float) -> object:
        if not self.sizes:
            self.waits.append(timeout)
            return None
        return Delivered(self.sizes.pop(0))


class Delivered:
    def __init__(self, count: int) -> None:
        self.count = count
        self.block = self
        self.length = 100 * count

    def __len__(self) -> int:
        return self.count


def test_files_do_not_wait_for_what_a_channel_cannot_send() -> None:
    """They wrote 12,000 messages in a second, and one of each key in 0.2 s from an ordered channel:
    it sends no more before these are finished.
    """
    half = Sent([READY // 2, 1])
    assert len(gather(cast("Any", half), 0.2)) == 1
    assert half.sizes == [1]
    ordered = Sent([1])
    assert len(gather(cast("Any", ordered), 0.2)) == 1
    assert max(ordered.waits) <= 0.05
