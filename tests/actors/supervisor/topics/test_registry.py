"""Tests of the registry on a real directory: what is kept, what is refused, and what is moved to
the trash.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from zsq.actors.supervisor.topics.registry import Registry, TopicRow
from zsq.actors.supervisor.topics.registry_format import (
    GIVEN,
    TAKING,
    RegistryDamaged,
    decode_row,
)
from zsq.storage.errors import ForeignDirectory
from zsq.storage.files import Files
from zsq.transport.errors import Refused


def opened(folder: Path) -> Registry:
    registry = Registry(Files(), folder, 3)
    registry.open()
    return registry


def test_an_empty_directory_gets_a_registry(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["registry.json", "topics", "trash"]
    again = opened(tmp_path)
    assert (again.uuid, again.node, again.topics, again.ended) == (registry.uuid, 3, {}, {})


@pytest.mark.parametrize(
    "name",
    ["lock", "run", "run.json", "memory.json", "memory", "topics", "trash", "registry.json.tmp"],
)
def test_files_left_by_an_interrupted_start_are_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if name in ("run", "memory", "topics", "trash") else (
        tmp_path / name
    ).write_text("")
    assert opened(tmp_path).uuid == opened(tmp_path).uuid


@pytest.mark.parametrize("name", ["letters.txt", "topics/000001"])
def test_a_foreign_directory_is_refused_and_not_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ForeignDirectory):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [Path(name).parts[0]]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b"\xff",
        '{"topics": []}',
        '{"topics": {"a": {}}}',
        '{"version": 2}',
    ],
)
def test_a_registry_that_cannot_be_read_is_refused_and_not_changed(
    tmp_path: Path, damage: bytes | str
) -> None:
    opened(tmp_path)
    path = tmp_path / "registry.json"
    if isinstance(damage, str):
        damage = json.dumps(json.loads(path.read_text()) | json.loads(damage)).encode()
    path.write_bytes(damage)
    with pytest.raises(ForeignDirectory):
        opened(tmp_path)
    assert path.read_bytes() == damage


def test_a_topic_deleted_during_its_creation_leaves_no_files(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    made = Path(registry.folder(registry.add("clicks", "always")) + ".tmp")
    made.mkdir(parents=True)
    (made / "topic").write_text("half of it")
    registry.remove("clicks")
    assert [*(tmp_path / "topics").iterdir(), *(tmp_path / "trash").iterdir()] == []


def test_topics_are_in_the_registry_after_a_restart(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    clicks = registry.add("clicks", "always")
    registry.add("views", "interval")
    registry.set_state("clicks", "live")
    again = opened(tmp_path)
    assert again.topics == registry.topics
    assert again.topics["clicks"] == TopicRow(1, clicks.uuid, "always", 0, "live")
    assert again.topics["views"].state == "new"
    assert again.next_number == 3
    assert again.folder(clicks) == str(tmp_path / "topics" / "000001")


def test_a_part_is_in_the_registry_with_its_topic(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    made = registry.add("clicks#3", "always", {"max_bytes": 10}, part_of="a" * 32)
    registry.add("clicks#4", "always")
    registry.adopt("clicks#4", "b" * 32, 3)
    found = opened(tmp_path).topics
    assert found["clicks#3"] == made
    assert [(row.part_of, row.hold) for row in found.values()] == [("a" * 32, 0), ("b" * 32, 3)]
    assert made.owner_uuid == "a" * 32
    assert registry.add("other", "always").owner_uuid == registry.topics["other"].uuid


def test_a_part_that_moves_has_a_state_of_its_own(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.add("clicks#3", "always", part_of="a" * 32)
    registry.set_state("clicks#3", GIVEN)
    taking = registry.begin_taking("clicks#4", "e" * 32, "a" * 32, 2)
    assert opened(tmp_path).topics["clicks#3"].state == GIVEN
    assert opened(tmp_path).topics["clicks#4"] == taking
    assert (taking.state, taking.number, taking.uuid, taking.hold) == (TAKING, 2, "e" * 32, 2)
    other = {"number": 9, "uuid": "e" * 32, "sync": "bucket", "base_offset": 7, "state": GIVEN}
    more = {
        "retention": {"keep_time_s": 5},
        "closed": "publishers",
        "schedules": {"daily": {"a": 1}},
    }
    given = decode_row({**other, **more}, "row")
    registry.take_over("clicks#4", given)
    registry.resume("clicks#3", 1)
    found = opened(tmp_path).topics
    assert (found["clicks#3"].state, found["clicks#3"].hold) == ("live", 1)
    row = found["clicks#4"]
    assert (row.state, row.number, row.hold, row.part_of) == ("live", 2, 2, "a" * 32)
    assert (row.sync, row.base_offset, row.closed) == ("bucket", 7, "publishers")
    assert (row.retention, row.schedules) == ({"keep_time_s": 5}, {"daily": {"a": 1}})
    for wrong in (None, {}, {**other, "sync": "x"}, {**other, "hold": -1}):
        with pytest.raises(RegistryDamaged):
            decode_row(wrong, "row")


def test_a_topic_created_again_continues_after_the_old_offsets(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    old = registry.add("clicks", "always")
    registry.set_state("clicks", "deleting", 1_234)
    registry.remove("clicks")
    new = opened(tmp_path).add("clicks", "always")
    assert (new.base_offset, new.number) == (1_234, 2)
    assert new.uuid != old.uuid
    assert opened(tmp_path).add("others", "always").base_offset == 0


def test_the_files_of_a_removed_topic_are_gone_at_once(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    row = registry.add("clicks", "always")
    kept = Path(registry.folder(registry.add("views", "always")))
    for folder in (Path(registry.folder(row)), kept):
        (folder / "log").mkdir(parents=True)
        (folder / "log" / "chunk").write_bytes(b"data")
    registry.remove("clicks")
    assert not Path(registry.folder(row)).exists()
    assert list((tmp_path / "trash").iterdir()) == []
    assert (kept / "log" / "chunk").read_bytes() == b"data"
    assert list(opened(tmp_path).topics) == ["views"]


def test_an_interrupted_removal_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """The files are already in the trash and the row still exists. The next start finds
    this state.
    """
    registry = opened(tmp_path)
    row = registry.add("clicks", "always")
    Path(registry.folder(row)).mkdir()
    registry.set_state("clicks", "deleting", 9)
    Path(registry.folder(row)).rename(tmp_path / "trash" / "000001-x")
    again = opened(tmp_path)
    assert again.topics["clicks"].state == "deleting"
    again.remove("clicks")
    again.empty_trash()
    assert list((tmp_path / "trash").iterdir()) == []
    assert (opened(tmp_path).topics, opened(tmp_path).ended) == ({}, {"clicks": 9})


class _Steps(Files):
    """Files that record each step."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.steps = steps

    def write_file(self, path: str, data: bytes) -> None:
        self.steps.append(f"write {Path(path).name}")
        super().write_file(path, data)

    def link(self, old: str, new: str) -> None:
        self.steps.append(f"link {Path(old).name} {Path(new).name}")
        super().link(old, new)

    def rename(self, old: str, new: str) -> None:
        self.steps.append(f"rename {Path(old).name} {Path(new).name}")
        super().rename(old, new)

    def sync_folder(self, path: str) -> None:
        self.steps.append(f"sync {Path(path).name}")
        super().sync_folder(path)


def test_a_save_is_complete_or_has_no_effect(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "registry.json.tmp").write_text("{ of a save that was cut off")
    steps: list[Any] = []
    registry = Registry(_Steps(steps), tmp_path, 3)
    registry.open()
    registry.add("clicks", "always")
    spare = [
        "link registry.json registry.json.old.tmp",
        "rename registry.json.old.tmp registry.json.old",
    ]
    assert steps == [
        *spare,
        "write registry.json.tmp",
        "rename registry.json.tmp registry.json",
        f"sync {tmp_path.name}",
    ]
    assert list(opened(tmp_path).topics) == ["clicks"]


def test_a_topic_that_came_up_is_created_in_the_file_with_the_next_change_or_soon(
    tmp_path: Path,
) -> None:
    """A file for each of many new topics costs more than their creation."""
    registry = opened(tmp_path)
    registry.add("clicks", "always")
    registry.note_created("clicks")
    assert registry.topics["clicks"].state == "live"
    assert opened(tmp_path).topics["clicks"].state == "new", "it may be created a second time"
    registry.add("views", "always")
    assert opened(tmp_path).topics["clicks"].state == "live"
    registry.note_created("views")
    registry.settle()
    assert opened(tmp_path).topics["views"].state == "live"


class _WithoutLinks(Files):
    def link(self, old: str, new: str) -> None:
        raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("files", [Files(), _WithoutLinks()], ids=["links", "no links"])
def test_the_old_content_is_kept_with_and_without_links(tmp_path: Path, files: Files) -> None:
    registry = Registry(files, tmp_path, 3)
    registry.open()
    for name in ("a", "b", "c"):
        registry.add(name, "always")
        kept = json.loads((tmp_path / "registry.json.old").read_text())["topics"]
        assert list(kept) == [other for other in "abc" if other < name]
    assert sorted(path.name for path in tmp_path.glob("registry*")) == [
        "registry.json",
        "registry.json.old",
    ]


class FullDisk(Files):
    """Files of a disk that takes no new file."""

    def write_file(self, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_change_is_refused_on_a_full_disk_and_has_no_effect(tmp_path: Path) -> None:
    """Any client may name a new topic. That must not end the supervisor, and it must not leave a
    topic that exists only in memory.
    """
    good = Registry(Files(), tmp_path, 0)
    good.open()
    good.add("old", "always")
    full = Registry(FullDisk(), tmp_path, 0)
    full.open()
    with pytest.raises(Refused, match="E_DISK_FULL"):
        full.add("new", "always")
    assert list(full.topics) == ["old"]
    with pytest.raises(Refused, match="E_DISK_FULL"):
        full.set_state("old", "deleting", 7)
    assert full.topics["old"].state == "new"
    assert full.ended == {}
    full.remove("old")
    assert "old" not in full.topics
    again = Registry(Files(), tmp_path, 0)
    again.open()
    assert list(again.topics) == ["old"], "what the disk did not take is finished at the next start"


class _FailingSync(Files):
    """Files whose sync of a folder fails `left` times."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def sync_folder(self, path: str) -> None:
        if self.left:
            self.left -= 1
            raise OSError(errno.EIO, "by plan")
        super().sync_folder(path)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_refused_deletion_is_not_carried_out_by_the_next_start(
    tmp_path: Path, failing: int
) -> None:
    """The new row was renamed into place, but the sync of the folder failed. If the next start
    carried out the deletion, messages that were acknowledged since then would be deleted with the
    topic.
    """
    files = _FailingSync()
    registry = Registry(files, tmp_path, 3)
    registry.open()
    registry.add("clicks", "always")
    registry.set_state("clicks", "live")
    files.left = failing
    with pytest.raises(Refused, match="not known" if failing > 1 else "nothing was changed"):
        registry.set_state("clicks", "deleting", 7)
    registry.settle()
    assert (opened(tmp_path).topics, opened(tmp_path).ended) == (registry.topics, {})
    assert registry.topics["clicks"].state == "live"
    registry.set_state("clicks", "deleting", 7)
    assert opened(tmp_path).ended == {"clicks": 7}


def test_files_that_cannot_be_removed_yet_are_removed_later(tmp_path: Path) -> None:
    """The removal waits, however often the registry is written in the meantime. A topic of that
    name can be created once the files are removed.
    """
    files = _FailingSync()
    registry = Registry(files, tmp_path, 3)
    registry.open()
    row = registry.add("clicks", "always")
    Path(registry.folder(row)).mkdir()
    registry.set_state("clicks", "deleting", 7)
    files.left = 1
    registry.remove("clicks")
    registry.add("views", "always")
    assert (list(registry.topics), set(opened(tmp_path).topics)) == (["views"], {"clicks", "views"})
    files.left = 1
    with pytest.raises(Refused):
        registry.add("clicks", "always")
    assert registry.add("clicks", "always").base_offset == 7
    assert opened(tmp_path).topics == registry.topics


def test_the_retention_of_a_topic_is_kept_over_a_restart(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.add("clicks", "always", {"keep_time_s": 60})
    registry.add("views", "always")
    registry.configure("views", {"keep_bytes": -1, "when_full": "drop-oldest"})
    again = opened(tmp_path)
    assert again.topics["clicks"].retention == {"keep_time_s": 60}
    assert again.topics["views"].retention == {"keep_bytes": -1, "when_full": "drop-oldest"}


def test_the_sync_mode_of_a_topic_is_kept_over_a_restart(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.add("clicks", "always", {"keep_time_s": 60})
    registry.configure("clicks", {"keep_time_s": 60}, "bucket")
    assert opened(tmp_path).topics["clicks"].sync == "bucket"
    registry.configure("clicks", {})
    assert opened(tmp_path).topics["clicks"].sync == "bucket"


def test_settings_that_cannot_be_written_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = opened(tmp_path)
    registry.add("clicks", "always", {"keep_time_s": 60})

    def full(path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(registry._files, "write_file", full)
    with pytest.raises(Refused):
        registry.configure("clicks", {}, "bucket")
    assert registry.topics["clicks"].sync == "always"
    assert (
        registry.topics["clicks"].retention
        == opened(tmp_path).topics["clicks"].retention
        == {"keep_time_s": 60}
    )


def test_the_content_before_the_last_change_is_kept_as_a_copy(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.add("clicks", "always")
    before = (tmp_path / "registry.json").read_bytes()
    registry = opened(tmp_path)
    assert not (tmp_path / "registry.json.old.tmp").exists()
    registry.add("views", "always")
    assert (tmp_path / "registry.json.old").read_bytes() == before
    (tmp_path / "registry.json").unlink()
    with pytest.raises(ForeignDirectory, match="fsck"):
        opened(tmp_path)
    assert not (tmp_path / "registry.json").exists(), "never taken by itself, nor begun anew"


def test_a_registry_without_a_checksum_is_accepted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).add("clicks", "always")
    path = tmp_path / "registry.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    path.write_text(json.dumps(data))
    assert list(opened(tmp_path).topics) == ["clicks"]
    assert "no checksum" in caplog.text
    caplog.clear()
    assert list(opened(tmp_path).topics) == ["clicks"]
    assert not caplog.text
    path.write_text(path.read_text().replace("always", "never"))
    with pytest.raises(ForeignDirectory, match="checksum"):
        opened(tmp_path)


@pytest.mark.parametrize("state", ["none", "new", "live"])
def test_missing_folders_without_live_topics_are_created_again(tmp_path: Path, state: str) -> None:
    """A copy that leaves out empty folders can cause this. If the topics folder held a topic, the
    topic is lost, and the folder is not created again before an operator has looked at it.
    """
    registry = opened(tmp_path)
    if state != "none":
        registry.add("clicks", "always")
    if state == "live":
        registry.set_state("clicks", "live")
    (tmp_path / "trash").rmdir()
    (tmp_path / "topics").rmdir()
    opened(tmp_path)
    assert (tmp_path / "trash").is_dir()
    assert (tmp_path / "topics").is_dir() == (state != "live")


def test_a_trash_that_cannot_be_emptied_does_not_prevent_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = opened(tmp_path)
    Path(registry.folder(registry.add("clicks", "always"))).mkdir()
    registry.set_state("clicks", "deleting", 9)
    (tmp_path / "trash" / "somebody's file").write_text("")
    registry = opened(tmp_path)
    registry.finish_removals()
    assert f"cannot remove the files of deleted topics in {tmp_path / 'trash'}" in caplog.text
    assert not registry.topics
    registry.remove_left()
    assert (tmp_path / "trash" / "somebody's file").exists()
    (tmp_path / "trash" / "somebody's file").unlink()
    (tmp_path / "trash" / "000001-left").mkdir()
    registry.remove_left()
    assert not list((tmp_path / "trash").iterdir())
    assert "the files of deleted topics are removed now" in caplog.text


def test_a_removal_that_the_disk_refused_is_tried_again_without_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = opened(tmp_path)
    folder = Path(registry.folder(registry.add("clicks", "always")))
    folder.mkdir()
    registry.set_state("clicks", "deleting", 9)

    def refuse(path: str, data: bytes) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(registry._files, "write_file", refuse)
        registry.remove("clicks")
    trash = tmp_path / "trash"
    assert not folder.exists()
    assert list(trash.iterdir()), "the row could not be removed, so the files stay"
    registry.remove_left()
    assert not list(trash.iterdir())
    assert not opened(tmp_path).topics


# Topics in memory


def test_topics_in_memory_are_never_written(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    before = (tmp_path / "registry.json").read_bytes()
    row = registry.add("t#ephemeral", "always")
    assert (row.sync, row.in_memory, row.base_offset) == ("never", True, 0)
    registry.set_state("t#ephemeral", "live")
    registry.configure("t#ephemeral", {"keep_bytes": 5})
    registry.close("t#ephemeral", "publishers")
    assert (tmp_path / "registry.json").read_bytes() == before
    assert not (tmp_path / "registry.json.old").exists(), "nor what was there before"
    registry.add("durable", "always")
    assert list(opened(tmp_path).topics) == ["durable"]
    registry.memory.close()


def test_a_removed_topic_in_memory_leaves_no_files_and_no_row(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    folder = Path(registry.folder(registry.add("t#ephemeral", "always")))
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "data.mdb").write_text("x")
    registry.set_state("t#ephemeral", "deleting", 500)
    registry.remove("t#ephemeral")
    assert not folder.exists()
    assert (registry.ended, registry.topics) == ({}, {}), (
        "names of reply topics may be without number"
    )
    assert not list((tmp_path / "trash").iterdir())
    registry.memory.close()


def test_a_topic_in_memory_that_came_up_is_no_reason_to_write_the_file(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.add("t#ephemeral", "always")
    before = registry.version
    registry.note_created("t#ephemeral")
    registry.settle()
    assert registry.topics["t#ephemeral"].state == "live"
    assert registry.version == before
    assert not (tmp_path / "registry.json.old").exists(), "nothing was written"
    registry.memory.close()
