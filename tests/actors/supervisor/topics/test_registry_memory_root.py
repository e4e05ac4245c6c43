"""Tests of the folder for topics in memory: where it is, and that the files of a killed broker are
removed and no others.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zsq.actors.settings import options
from zsq.actors.supervisor.topics.registry import MemoryRoot
from zsq.storage.files import Files

MIB = 1024 * 1024


class Place(Files):
    """Files with a memory file system of this size at `shm`."""

    shm_bytes = 1024 * MIB

    def total_bytes(self, path: str) -> int:
        return self.shm_bytes


class Machine:
    def __init__(self, folder: Path) -> None:
        self.data_dir, self.shm, self.mounts = folder / "data", folder / "shm", folder / "mounts"
        self.data_dir.mkdir()
        self.shm.mkdir()
        self.mounts.write_text(f"proc /proc proc rw 0 0\ntmpfs {self.shm} tmpfs rw 0 0\n")
        self.files = Place()

    def root(self, data_dir: Path | None = None) -> MemoryRoot:
        return MemoryRoot(self.files, data_dir or self.data_dir, self.shm, self.mounts)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_memory_folder_is_private_and_removed_at_the_end(machine: Machine) -> None:
    root = machine.root()
    root.clear()
    assert not list(machine.shm.iterdir())
    folder = Path(root.folder("abc"))
    assert folder.parent.parent == machine.shm
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert Path(root.folder("other")).parent == folder.parent
    folder.mkdir()
    (folder / "x").write_text("x")
    root.close()
    assert not list(machine.shm.iterdir())
    assert not list(machine.data_dir.iterdir())


def left(machine: Machine) -> Path:
    """Leave what a killed broker leaves: its files stay, and its lock is free."""
    root = machine.root()
    folder = Path(root.folder("abc"))
    folder.mkdir()
    (folder / "x").write_text("x")
    machine.files.close(root._lock)
    return folder.parent


def test_the_next_start_removes_the_memory_folder_of_a_killed_broker(machine: Machine) -> None:
    path = left(machine)
    assert path.exists()
    machine.root().clear()
    assert not list(machine.shm.iterdir())
    assert not list(machine.data_dir.iterdir())


def test_a_copy_of_the_data_directory_removes_nothing_that_is_in_use(
    machine: Machine, tmp_path: Path
) -> None:
    root = machine.root()
    folder = Path(root.folder("abc"))
    folder.mkdir()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "memory.json").write_text((machine.data_dir / "memory.json").read_text())
    machine.root(copy).clear()
    assert folder.exists()
    assert not list(copy.iterdir()), "and it names it no more"
    root.close()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"memory": 5}', '{"memory": "HERE/victim"}', '{"memory": "SHM/other"}', '{"memory": "SHM/../victim"}',
     f'{{"memory": "HERE/zsq-{"0" * 32}"}}'],
)  # fmt: skip
def test_a_foreign_pointer_file_removes_nothing(
    machine: Machine, tmp_path: Path, text: str
) -> None:
    for path in (tmp_path / "victim", tmp_path / f"zsq-{'0' * 32}", machine.shm / "other"):
        path.mkdir()
        (path / "x").write_text("x")
    (machine.data_dir / "memory.json").write_text(
        text.replace("HERE", str(tmp_path)).replace("SHM", str(machine.shm))
    )
    machine.root().clear()
    assert len([path for path in tmp_path.glob("**/x") if path.exists()]) == 3


def test_a_symbolic_link_in_place_of_the_folder_is_not_followed(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x").write_text("x")
    path = left(machine)
    Files().remove_tree(str(path))
    path.symlink_to(tmp_path / "victim")
    machine.root().clear()
    assert (tmp_path / "victim" / "x").exists()


@pytest.mark.parametrize("why", ["not there", "a disk", "small"])
def test_without_memory_files_topics_are_stored_in_the_data_directory(
    machine: Machine, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    if why == "not there":
        machine.shm.rmdir()
    elif why == "a disk":
        machine.mounts.write_text(f"/dev/sda1 {machine.shm} ext4 rw 0 0\n")
    else:
        machine.files.shm_bytes = options.EPHEMERAL_SHM_BYTES_MIN - 1
    root = machine.root()
    folder = Path(root.folder("abc"))
    assert folder.parent == machine.data_dir / "memory"
    assert "is not a writable memory file system of at least 32 MiB" in caplog.text
    folder.mkdir()
    machine.files.close(root._lock)  # this stands for a kill
    machine.root().clear()
    assert not list(machine.data_dir.iterdir())


@pytest.mark.parametrize(("size", "bound"), [(8192, 64), (512, 64), (256, 32), (64, 8), (33, 8)])
def test_the_bound_is_lower_on_a_small_memory_file_system(
    machine: Machine, size: int, bound: int
) -> None:
    machine.files.shm_bytes = size * MIB
    root = machine.root()
    assert root.max_bytes() == bound * MIB
    root.close()


def test_the_pointer_is_written_before_the_folder_is_made(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, mode: int = 0o777) -> None:
        assert json.loads((machine.data_dir / "memory.json").read_text()) == {"memory": str(path)}
        raise OSError("killed here")

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(OSError, match="killed here"):
        machine.root().folder("abc")
