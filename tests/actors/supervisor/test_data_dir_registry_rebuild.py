"""Tests of repairs that rebuild a damaged or lost registry: from the copy before the last change,
and from the identities of the topics.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from zsq.actors.supervisor.data_dir import check_data_dir, locked_data_dir
from zsq.actors.supervisor.topics.registry import Registry, TopicRow
from zsq.actors.supervisor.topics.registry_format import CHECKSUM, checksum
from zsq.storage.checks.fsck import Finding
from zsq.storage.directory.store import StoreOptions, TopicIdentity, create_store
from zsq.storage.errors import ForeignDirectory
from zsq.storage.files import Files
from zsq.transport.errors import NotFound, Refused

OPTIONS = StoreOptions(reserve_bytes=0, map_bytes=1 << 20)


def opened(folder: Path) -> Registry:
    registry = Registry(Files(), folder, 3)
    registry.open()
    return registry


def make(registry: Registry, name: str, *, live: bool = True) -> TopicRow:
    row = registry.add(name, "interval", {"keep_time_s": 60})
    create_store(
        Files(), registry.folder(row), TopicIdentity(name, row.uuid, row.base_offset), OPTIONS
    )
    if live:
        registry.set_state(name, "live")
    return row


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a data directory in which topic 1 was deleted, and topics 2 and 3 exist."""
    folder = tmp_path / "data"
    folder.mkdir()
    registry = opened(folder)
    make(registry, "gone")
    registry.set_state("gone", "deleting", 1_000)
    registry.remove("gone")
    make(registry, "clicks")
    make(registry, "views")
    return folder


def empty(data_dir: Path) -> None:
    (data_dir / "registry.json").write_bytes(b"")


def flip(data_dir: Path) -> None:
    data = (data_dir / "registry.json").read_bytes()
    (data_dir / "registry.json").write_bytes(data.replace(b"1000", b"1001"))


def lose(data_dir: Path) -> None:
    (data_dir / "registry.json").unlink()


def checked(data_dir: Path, *, repair: bool = False) -> Finding:
    """Return the one finding about the registry."""
    findings, reports = check_data_dir(Files(), data_dir, None, 0, repair=repair)
    (finding,) = [one for one in findings if "registry.json" in one.path]
    assert bool(reports) == bool(finding.repaired), (
        "topics are checked as soon as it is known which there are"
    )
    return finding


@pytest.mark.parametrize("damage", [empty, flip, lose])
def test_a_damaged_registry_is_rebuilt_from_the_copy_of_its_last_content(
    data_dir: Path, damage: Callable[[Path], None]
) -> None:
    wanted = opened(data_dir)
    damage(data_dir)
    before = sorted(path.name for path in data_dir.iterdir())
    with pytest.raises(ForeignDirectory, match=r"fsck .* --repair"):
        opened(data_dir)
    assert checked(data_dir).repair is not None
    assert sorted(path.name for path in data_dir.iterdir()) == before, "a check changes nothing"
    assert "rebuilt from" in checked(data_dir, repair=True).repaired
    found = opened(data_dir)
    assert (found.uuid, found.node, found.next_number) == (wanted.uuid, 3, 4)
    assert (found.topics, found.ended) == (wanted.topics, {"gone": 1_000})
    assert (data_dir / "registry.json.bad-1").exists() == (damage is not lose)
    assert not check_data_dir(Files(), data_dir, None, 0)[0]


def test_a_topic_that_the_copy_does_not_know_is_added_by_its_identity(data_dir: Path) -> None:
    registry = opened(data_dir)
    # This name was deleted before, so the new topic begins at offset 1,000.
    row = make(registry, "gone", live=False)
    empty(data_dir)
    said = checked(data_dir, repair=True).repaired
    assert "gone (topics/000004)" in said
    assert "sync always" in said
    found = opened(data_dir)
    assert found.topics["gone"] == TopicRow(4, row.uuid, "always", 1_000, "live")
    assert found.next_number == 5


def test_without_a_copy_the_registry_is_rebuilt_from_the_topics_identities(data_dir: Path) -> None:
    wanted = opened(data_dir)
    (data_dir / "trash" / "000017-aa").mkdir()
    (data_dir / "topics" / "000005").mkdir()
    empty(data_dir)
    (data_dir / "registry.json.old").write_bytes(b"{")
    said = checked(data_dir, repair=True).repaired
    for lost in (
        "node number",
        "settings",
        "begins at offset 0",
        "topics/000005 has no readable identity file",
    ):
        assert lost in said
    found = opened(data_dir)
    for name in ("clicks", "views"):
        row = wanted.topics[name]
        assert found.topics[name] == TopicRow(
            row.number, row.uuid, "always", row.base_offset, "live"
        )
    assert found.next_number == 18, "above all that is there, in the trash too"
    assert len(found.topics) == 2


def test_a_directory_that_was_no_topic_does_not_become_one(data_dir: Path) -> None:
    create_store(
        Files(), str(data_dir / "topics" / "000001"), TopicIdentity("left", "ab" * 16), OPTIONS
    )
    empty(data_dir)
    assert "topics/000001 was not a topic" in checked(data_dir, repair=True).repaired
    assert sorted(opened(data_dir).topics) == ["clicks", "views"]


def test_a_directory_that_an_import_had_reserved_becomes_a_topic(data_dir: Path) -> None:
    """The registry was damaged after the commit of the import. The old copy contains the reserved
    numbers, and the directories contain the rest.
    """
    registry = opened(data_dir)
    registry.imports["d"] = {"state": "begun", "numbers": [4], "from": "/nsqd"}
    registry.next_number = 5
    registry.save()
    create_store(
        Files(), str(data_dir / "topics" / "000004"), TopicIdentity("taken", "ab" * 16), OPTIONS
    )
    registry.topics["taken"] = TopicRow(4, "ab" * 16, "always", 0, "live")
    registry.imports["d"] = {"state": "done"}
    registry.save()
    empty(data_dir)
    assert checked(data_dir, repair=True).repaired
    assert opened(data_dir).topics["taken"].number == 4
    assert not opened(data_dir).imports, "nothing is taken for what is left of an import"


@pytest.mark.parametrize("with_copy", [True, False])
def test_two_directories_with_one_topic_name_are_not_repaired(
    data_dir: Path, with_copy: bool
) -> None:
    shutil.copytree(data_dir / "topics" / "000002", data_dir / "topics" / "000009")
    empty(data_dir)
    if not with_copy:
        (data_dir / "registry.json.old").unlink()
    finding = checked(data_dir, repair=True)
    assert not finding.repaired
    assert "topics/000009 and topics/000002" in finding.text
    assert (data_dir / "registry.json").read_bytes() == b""


def test_a_topic_created_again_is_found_although_its_deletion_is_not_noted(data_dir: Path) -> None:
    registry = opened(data_dir)
    registry.set_state("views", "deleting", 70)
    # The next change records the deletion and creates the topic again.
    shutil.rmtree(registry.folder(registry.topics.pop("views")))
    row = make(registry, "views", live=False)
    empty(data_dir)
    assert checked(data_dir, repair=True).repaired
    assert opened(data_dir).topics["views"].uuid == row.uuid


def test_a_registry_of_an_unknown_version_is_not_changed(data_dir: Path) -> None:
    (data_dir / "registry.json").write_text('{"version": 2}')
    finding = checked(data_dir, repair=True)
    assert "newer" in finding.text
    assert finding.repair is None
    assert (data_dir / "registry.json").read_text() == '{"version": 2}'


def test_a_registry_with_a_key_of_a_newer_version_is_not_changed(data_dir: Path) -> None:
    path = data_dir / "registry.json"
    data = json.loads(path.read_bytes()) | {"colours": {"clicks": "red"}}
    data[CHECKSUM] = checksum(data)
    path.write_text(json.dumps(data))
    before = path.read_bytes()
    finding = checked(data_dir, repair=True)
    assert "colours is not a known key; another version of zsq wrote it" in finding.text
    assert (finding.repair, finding.repaired) == (None, "")
    assert path.read_bytes() == before


class FullDisk(Files):
    def write_file(self, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_repair_on_a_full_disk_does_not_change_the_registry(data_dir: Path) -> None:
    flip(data_dir)
    before = (data_dir / "registry.json").read_bytes()
    findings, _ = check_data_dir(FullDisk(), data_dir, None, 0, repair=True)
    assert not findings[0].repaired
    assert (data_dir / "registry.json").read_bytes() == before


def test_a_damaged_old_copy_is_reported(data_dir: Path) -> None:
    (data_dir / "registry.json.old").write_bytes(b"")
    finding, *_ = check_data_dir(Files(), data_dir, None, 0)[0]
    assert (finding.level, "registry.json.old" in finding.path) == ("note", True)


def test_no_file_is_created_in_a_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "topics" / "letters").mkdir(parents=True)
    with pytest.raises(NotFound), locked_data_dir(Files(), tmp_path):
        pass
    assert not (tmp_path / "lock").exists()


def test_a_data_directory_without_registry_files_can_be_repaired(data_dir: Path) -> None:
    for name in ("registry.json", "registry.json.old"):
        (data_dir / name).unlink()
    with locked_data_dir(Files(), data_dir):
        assert checked(data_dir, repair=True).repaired


def test_a_data_directory_in_use_is_refused_with_the_brokers_pid(data_dir: Path) -> None:
    with (
        locked_data_dir(Files(), data_dir),
        pytest.raises(Refused, match=r"E_IN_USE .*pid \d+"),
        locked_data_dir(Files(), data_dir),
    ):
        pass
