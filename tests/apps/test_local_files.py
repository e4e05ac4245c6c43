"""Tests of the files that clients write: the lock of a directory and the syncs of each system."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zsq.apps import local_files
from zsq.apps.local_files import InUse, locked, sync_file, sync_folder


@pytest.fixture(params=["flock", "locking"], autouse=True)
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the lock of each kind of system. That of Windows is a fake."""
    if request.param == "flock":
        return
    windows: Any = ModuleType("msvcrt")
    windows.LK_NBLCK = 2

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    windows.locking = locking
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "fcntl", None)
        chosen = local_files._chosen()
    assert chosen is local_files._by_locking
    monkeypatch.setattr(local_files, "_lock", chosen)


def test_one_process_holds_the_lock_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with pytest.raises(InUse, match="lock"), locked(path):
            pass
        with pytest.raises(InUse), locked(path):
            pass
    with locked(path):
        pass


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from zsq.apps.local_files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); os._exit(9)"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "lock")]
    ended = subprocess.run(line, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (9, b"held\n")
    with locked(tmp_path / "lock"):
        pass


def test_files_and_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").encode())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "file").write_bytes(b"data")
    sync_file(tmp_path / "file")
    sync_folder(tmp_path)
    assert synced == [bytes(tmp_path / "file"), bytes(tmp_path)]


def test_only_windows_may_refuse_to_open_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        sync_folder(tmp_path)
    monkeypatch.setattr(sys, "platform", "win32")
    sync_folder(tmp_path)
