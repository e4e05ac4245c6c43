"""Tests of `storage/files.py`: each promise of `Files` is kept by a system call on the right file,
before the method returns.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from zsq.storage.errors import Locked, ShortWrite
from zsq.storage.files import Files

FILES = Files()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return each path that was synced: a file by fdatasync, a folder by fsync."""
    found: list[str] = []
    data, full = os.fdatasync, os.fsync

    def path_of(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def fdatasync(fd: int) -> None:
        data(fd)
        found.append(path_of(fd))

    def fsync(fd: int) -> None:
        full(fd)
        assert stat.S_ISDIR(os.fstat(fd).st_mode)
        found.append(path_of(fd))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_sync_is_of_that_file(tmp_path: Path, synced: list[str]) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    fds = [FILES.open_new(path) for path in paths]
    FILES.sync(fds[1])
    assert synced == [paths[1]]
    synced.clear()
    FILES.sync_all(fds[:1])
    assert synced == paths[:1]
    synced.clear()
    FILES.sync_all(fds)
    assert sorted(synced) == paths
    for fd in fds:
        FILES.close(fd)


def test_all_of_several_syncs_are_tried_and_a_failure_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fds = [FILES.open_new(str(tmp_path / name)) for name in "abc"]
    tried = []

    def fdatasync(fd: int) -> None:
        tried.append(fd)
        if fd == fds[0]:
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(OSError, match="no"):
        FILES.sync_all(fds)
    assert sorted(tried) == fds
    for fd in fds:
        FILES.close(fd)


def test_a_folder_is_synced_by_name(tmp_path: Path, synced: list[str]) -> None:
    FILES.sync_folder(str(tmp_path))
    assert synced == [str(tmp_path)]


def test_a_small_file_is_synced_when_it_is_written(tmp_path: Path, synced: list[str]) -> None:
    path = str(tmp_path / "a")
    FILES.write_file(path, b"bytes")
    assert synced == [path]
    assert FILES.read_file(path, 100) == b"bytes"
    with pytest.raises(FileExistsError):
        FILES.write_file(path, b"others")


def test_a_cut_and_a_rename_are_made(tmp_path: Path) -> None:
    old, new = str(tmp_path / "a"), str(tmp_path / "b")
    FILES.note(new, b"replaced")
    fd = FILES.open_new(old)
    FILES.writev(fd, [b"abc", b"def"], 0)
    FILES.truncate(fd, 4)
    assert FILES.size(fd) == 4
    FILES.close(fd)
    FILES.rename(old, new)
    assert FILES.list(str(tmp_path)) == ["b"]
    assert FILES.read_file(new, 100) == b"abcd"


def test_a_short_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = FILES.open_new(str(tmp_path / "a"))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position: 3)
    with pytest.raises(ShortWrite) as short:
        FILES.writev(fd, [b"abc", b"def"], 0)
    assert short.value.written == 3
    FILES.close(fd)


def test_a_lock_excludes_all_others_and_names_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    # An earlier holder of the lock, with a longer process id, left this content.
    Path(path).write_bytes(b"9999999999999999\n")
    held = FILES.lock(path)
    assert Path(path).read_bytes() == b"%d\n" % os.getpid()
    for write in (True, False):
        with pytest.raises(Locked) as locked:
            FILES.lock(path, write=write)
        assert locked.value.pid == os.getpid()
    FILES.close(held)
    FILES.close(FILES.lock(path))


def test_a_lock_of_a_folder_keeps_all_others_out(tmp_path: Path) -> None:
    held = FILES.lock_folder(str(tmp_path))
    with pytest.raises(Locked):
        FILES.lock_folder(str(tmp_path))
    FILES.close(held)
    FILES.close(FILES.lock_folder(str(tmp_path)))


def test_a_path_that_cannot_be_checked_is_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not FILES.exists(str(tmp_path / "none"))
    assert not FILES.exists(f"{__file__}/none")
    assert FILES.exists(str(tmp_path))
    with pytest.raises(OSError, match="symbolic links"):
        FILES.exists(str(tmp_path / "loop"))


def test_a_path_that_no_file_can_have_is_not_there(tmp_path: Path) -> None:
    assert not Files().exists(f"{tmp_path}/a\0b")
    assert not Files().exists(f"{tmp_path}/nothing/there")
    assert Files().exists(str(tmp_path))


def test_a_replaced_file_and_its_name_are_synced(tmp_path: Path, synced: list[str]) -> None:
    path = str(tmp_path / "file")
    (tmp_path / "file.tmp").write_bytes(b"left by a process that was killed")
    for data in (b"old", b"new"):
        synced.clear()
        FILES.replace_file(path, data)
        assert (tmp_path / "file").read_bytes() == data
        assert synced == [f"{path}.tmp", str(tmp_path)]
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_no_part(tmp_path: Path) -> None:
    class FullDisk(Files):
        def sync(self, fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        FullDisk().replace_file(str(tmp_path / "file"), b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
