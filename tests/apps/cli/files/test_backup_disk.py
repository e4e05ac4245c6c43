"""Tests that a backup, and a directory that was restored from one, are on disk when the command
returns, and get their final name only then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_files import keep_none
from support.hasty import HastyFiles

from tests.apps.cli.files.test_backup import FILES, House, house, registry  # noqa: F401 - a fixture
from zsq.actors.supervisor.topics.registry_format import decode
from zsq.apps.backup import BackupPlan, back_up, check, restore
from zsq.transport.errors import NotFound


@pytest.fixture
def disk(tmp_path: Path) -> HastyFiles:
    (tmp_path / "disk").mkdir()
    return HastyFiles(str(tmp_path / "disk"))


def test_a_backup_is_on_disk_when_it_is_made(house: House, disk: HastyFiles) -> None:  # noqa: F811
    made = back_up(disk, BackupPlan(house.path, Path(disk.root) / "one"))
    assert disk.hasty == []
    disk.crash(keep_none)
    manifest, problems = check(FILES, f"{disk.root}/one")
    assert (manifest, problems) == (made, [])
    assert registry(Path(disk.root) / "one").topics == house.content.topics


def test_a_restored_directory_is_on_disk_when_restore_returns(
    house: House,  # noqa: F811
    disk: HastyFiles,
    tmp_path: Path,
) -> None:
    made = back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    restore(disk, str(tmp_path / "one"), Path(disk.root) / "new")
    assert disk.hasty == []
    disk.crash(keep_none)
    for row in made.files:
        restored, kept = (
            Path(f"{disk.root}/new/{row.path}").read_bytes(),
            (tmp_path / "one/data" / row.path).read_bytes(),
        )
        if row.path == "registry.json":
            assert decode(restored, "").uuid != decode(kept, "").uuid, (
                "another broker: the original may still run"
            )
            assert decode(restored, "").topics == decode(kept, "").topics
        else:
            assert restored == kept


def test_a_topic_created_again_during_a_backup_is_copied_again(
    house: House,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The state of the old topic was copied before. The state of the new topic must be copied too,
    or the registry in the backup would name a topic that is missing.
    """
    done: list[str] = []

    def then(what: str) -> None:
        if what == "state b" and not done:
            done.append(what)
            del house.content.topics["b"]
            house.add("b")

    house.then = then
    manifest = back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert house.asked.count("state b") == 2
    assert manifest.topics["b"]["uuid"] == house.content.topics["b"].uuid
    assert registry(tmp_path / "one").topics["b"] == house.content.topics["b"]


def test_a_topic_created_again_too_late_does_not_fail_the_backup(
    house: House,  # noqa: F811
    tmp_path: Path,
) -> None:
    def then(what: str) -> None:
        if what == "log b":
            del house.content.topics["b"]
            house.add("b")
            raise NotFound("E_NOT_FOUND", "that was the old one")

    house.then = then
    back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert registry(tmp_path / "one").topics.keys() == {"a", "c"}


def test_a_topic_created_again_during_the_copy_of_its_log_is_left_out(
    house: House,  # noqa: F811
    tmp_path: Path,
) -> None:
    def then(what: str) -> None:
        if what == "end b" and house.content.topics["b"].number == 2:
            del house.content.topics["b"]
            house.add("b")

    house.then = then
    back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert registry(tmp_path / "one").topics.keys() in ({"a", "c"}, {"a", "b", "c"})
    for row in registry(tmp_path / "one").topics.values():
        assert (tmp_path / f"one/data/topics/{row.number:06d}/state/data.mdb").exists()
    assert check(FILES, str(tmp_path / "one"))[1] == []
