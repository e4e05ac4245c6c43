"""Tests of the directory of sockets: where it is, who may access it, and which files are removed
from it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from zsq.actors.supervisor import run_directory as rundir
from zsq.transport.wire.address import RUN_ID_FILE, read_run_id


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new folder for run directories that cannot be in the data directory, because their
    paths would be too long.
    """
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def deep(tmp_path: Path) -> Path:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    return folder


def test_the_run_directory_is_private_and_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rundir, "IPC_PATH_BYTES_MAX", len(os.fsencode(tmp_path)) + len("/run/") + 16
    )
    made = rundir.make(tmp_path)
    assert made == str(tmp_path / "run")
    assert os.stat(made).st_mode & 0o777 == 0o700
    assert not (tmp_path / "run.json").exists()
    rundir.clear(tmp_path, made)
    assert list(tmp_path.iterdir()) == []


def test_a_long_path_gets_a_short_directory_elsewhere(tmp_path: Path, short: Path) -> None:
    data_dir = deep(tmp_path)
    made = rundir.make(data_dir)
    assert Path(made).parent == short
    assert os.stat(made).st_mode & 0o777 == 0o700
    assert json.loads((data_dir / "run.json").read_text()) == {"run": made}
    assert not (data_dir / "run").exists()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{made}/supervisor")
    rundir.clear(data_dir, made)
    assert list(short.iterdir()) == list(data_dir.iterdir()) == []


@pytest.mark.parametrize("long", [False, True])
def test_files_of_a_broker_that_died_are_removed(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    data_dir = deep(tmp_path) if long else tmp_path
    if not long:
        monkeypatch.setattr(rundir, "IPC_PATH_BYTES_MAX", 1_000)
    first = Path(rundir.make(data_dir))
    (first / "17").write_text("a socket")
    second = Path(rundir.make(data_dir))
    assert list(second.iterdir()) == [second / RUN_ID_FILE]
    assert list(short.iterdir()) == ([second] if long else [])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"run": 7}', '{"run": "/"}', '{"run": ""}', '{"run": "HERE/precious"}'],
)
def test_a_foreign_pointer_file_removes_nothing(tmp_path: Path, short: Path, text: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    data_dir = deep(tmp_path)
    (data_dir / "run.json").write_text(text.replace("HERE", str(tmp_path)))
    made = rundir.make(data_dir)
    assert precious.exists()
    assert json.loads((data_dir / "run.json").read_text()) == {"run": made}


def test_a_full_disk_leaves_the_run_directory_without_a_run_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    monkeypatch.setattr(rundir, "IPC_PATH_BYTES_MAX", 1_000)
    assert read_run_id(rundir.make(tmp_path)) == ""
