"""Test of cleaning up an unfinished import: its files are removed durably before its record is. So
a power cut leaves no topic that the registry does not know.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_files import Change, FaultyFiles, PowerCut, keep_all

from zsq.actors.supervisor.import_remains import ASIDE, BEGUN, clear_imports
from zsq.actors.supervisor.topics.registry import Registry
from zsq.storage.files import Files

DIGEST = "d" * 64


class Disk(FaultyFiles):
    """Files that also record when folders are removed."""

    def remove_tree(self, path: str) -> None:
        self._step("remove_tree")
        Files().remove_tree(path)
        self._name("remove", (path, None))


def left(root: Path) -> tuple[Disk, Path]:
    """Leave the files of an import that was killed after it had moved its first topic
    into place.
    """
    data_dir = root / "data"
    data_dir.mkdir()
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    registry.imports[DIGEST] = {"state": BEGUN, "numbers": [1, 2]}
    registry.next_number = 3
    registry.save()
    for folder in (data_dir / "topics" / "000001", data_dir / ASIDE):
        folder.mkdir()
        (folder / "x").write_text("x")
    return Disk(str(root)), data_dir


def without_topics(number: int, change: Change) -> int:
    """Lose the changes of the names in topics/ and keep all other changes that were not synced.
    These names are in a disk block of their own.
    """
    return 0 if any(name == "000001" for _, name, _ in change.entries) else keep_all(number, change)


@pytest.mark.parametrize("cut_at", [0, *range(1, 12)])
def test_a_power_cut_leaves_the_record_or_no_topic(tmp_path: Path, cut_at: int) -> None:
    disk, data_dir = left(tmp_path)
    registry = Registry(disk, data_dir, 0)
    registry.open()
    disk.power_cut_at = cut_at and disk.changes + cut_at
    try:
        clear_imports(disk, data_dir, registry)
    except PowerCut:
        assert cut_at
    disk.crash(without_topics)
    again = Registry(Files(), data_dir, 0)
    again.open()
    assert again.imports or not (data_dir / "topics" / "000001").exists()
    clear_imports(Files(), data_dir, again)
    assert not again.imports
    assert not (data_dir / "topics" / "000001").exists()
    assert not (data_dir / ASIDE).exists()
