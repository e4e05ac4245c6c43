"""Tests of what a backup asks of each topic, and when. The broker of these tests is a Python
object.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from zsq.actors.supervisor.topics.registry_format import Content, TopicRow, decode, encode
from zsq.apps import backup
from zsq.apps.backup import BackupPlan, back_up, check, restore
from zsq.storage.files import Files
from zsq.transport.errors import NotFound, Refused, UsageError, ZsqError

FILES = Files()
NEWEST = f"{0:020d}.chunk"


class House:
    """A data directory. This object also plays the broker that serves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.content = Content("a" * 32, 0)
        self.lock = FILES.lock(str(path / "lock"))
        self.asked: list[str] = []
        self.then: Callable[[str], None] = lambda what: None
        """This function is called after each answer."""
        self.grows = b"12345678"

    def add(self, name: str) -> None:
        number = self.content.next_number
        self.content.topics[name] = TopicRow(number, f"{number:032x}", "always", 0, "live")
        self.content.next_number += 1
        self.save()

    def save(self) -> None:
        (self.path / "registry.json").write_bytes(encode(self.content))

    def part(self, topic: str, do: str, name: str) -> dict[str, Any]:
        row = self.content.topics.get(topic)
        if row is None:
            raise NotFound("E_NOT_FOUND", f"topic {topic!r} does not exist")
        self.asked.append(f"{do} {topic}")
        folder = self.path / "topics" / f"{row.number:06d}" / "backup"
        if do == "end":
            shutil.rmtree(folder, ignore_errors=True)
        if do == "log":
            (folder / "state").mkdir(parents=True)
            (folder / "state/data.mdb").write_bytes(topic.encode())
            (folder / NEWEST).write_bytes(self.grows)
        self.then(f"{do} {topic}")
        return (
            {
                "folder": str(folder),
                "start": 0,
                "end": 4,
                "missing": 0,
                "damaged": 0,
                "newest": NEWEST,
                "newest_bytes": 4,
            }
            if do == "log"
            else {}
        )


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    made = House(tmp_path / "data")

    class Storages:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        part = staticmethod(made.part)

    monkeypatch.setattr(backup, "_Storages", Storages)
    for name in ("a", "b", "c"):
        made.add(name)
    return made


def registry(folder: Path) -> Content:
    return decode((folder / "data/registry.json").read_bytes(), "r")


def test_a_backup_takes_all_states_then_all_logs_then_the_copies(
    house: House, tmp_path: Path
) -> None:
    manifest = back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    states, logs, ends = ([f"{do} {topic}" for topic in "abc"] for do in ("state", "log", "end"))
    assert house.asked == states + logs + ends
    assert sorted(manifest.topics) == ["a", "b", "c"]
    assert (tmp_path / f"one/data/topics/000001/{NEWEST}").read_bytes() == b"1234", (
        "what was not synced does not count"
    )
    assert (tmp_path / "one/data/topics/000002/state/data.mdb").read_bytes() == b"b"
    assert registry(tmp_path / "one").topics == house.content.topics
    assert check(FILES, str(tmp_path / "one"))[1] == []


def test_a_topic_that_is_made_meanwhile_is_in_it(house: House, tmp_path: Path) -> None:
    """The backup must include the new topic, which may be a dead-letter topic.

    Then messages of another topic were finished only because this topic has copies of them.
    """
    made: list[str] = []

    def then(what: str) -> None:
        if what == "state b" and not made:
            made.append("dead letters")
            house.add("late")
        if what == "log a":
            house.add("too_late")

    house.then = then
    manifest = back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert house.asked[:5] == ["state a", "state b", "state c", "state late", "log a"]
    assert (
        sorted(manifest.topics)
        == ["a", "b", "c", "late"]
        == sorted(registry(tmp_path / "one").topics)
    )


@pytest.mark.parametrize("when", ["state a", "state c", "log a", "log c"])
def test_a_topic_that_is_deleted_meanwhile_is_not_in_it(
    house: House, tmp_path: Path, when: str
) -> None:
    def then(what: str) -> None:
        if what == when and "b" in house.content.topics:
            row = house.content.topics.pop("b")
            folder = house.path / "topics" / f"{row.number:06d}"
            if folder.exists():
                folder.rename(house.path / "gone")
            house.save()

    house.then = then
    manifest = back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert sorted(manifest.topics) == ["a", "c"] == sorted(registry(tmp_path / "one").topics)
    assert not (tmp_path / "one/data/topics/000002").exists()
    assert check(FILES, str(tmp_path / "one"))[1] == []


def test_a_failing_topic_fails_the_backup_and_can_be_left_out(house: House, tmp_path: Path) -> None:
    def then(what: str) -> None:
        if what == "log b":
            raise Refused("E_TOPIC_FAILED", "its disk is gone")

    house.then = then
    with pytest.raises(ZsqError, match=r"'b': its disk is gone .*--without b"):
        back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert {"end a", "end b", "end c"} <= set(house.asked), "who was asked is told that it is over"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    manifest = back_up(FILES, BackupPlan(house.path, tmp_path / "one", without=["b"]))
    assert (sorted(manifest.topics), manifest.left_out) == (["a", "c"], ["b"])


def test_a_backup_fails_if_copied_files_vanish(house: House, tmp_path: Path) -> None:
    """A topic that was started again has removed the copies of its files. The topic still exists,
    so the backup would lack it.
    """

    def then(what: str) -> None:
        if what == "log c":
            (house.path / "topics/000002/backup").rename(house.path / "gone")

    house.then = then
    with pytest.raises(Refused, match="'b' was restarted while it was copied"):
        back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    house.then = lambda what: None
    house.grows = b"123"
    (house.path / "topics").rename(house.path / "others")
    with pytest.raises(Refused, match="but 4 bytes of it were synced"):
        back_up(FILES, BackupPlan(house.path, tmp_path / "one"))


@pytest.mark.parametrize("name", ["one", "one.partial"])
def test_a_backup_does_not_overwrite_a_foreign_directory(
    house: House, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(UsageError):
        back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert (tmp_path / name / "holiday.jpg").exists()


def test_a_backup_inside_the_data_directory_is_refused(house: House) -> None:
    for place in (house.path, house.path / "backup", house.path / "x" / ".." / "backup"):
        with pytest.raises(UsageError, match="is inside the data directory"):
            back_up(FILES, BackupPlan(house.path, place))


def test_files_left_by_a_killed_backup_are_removed(house: House, tmp_path: Path) -> None:
    (tmp_path / "one.partial/data/topics").mkdir(parents=True)
    back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    assert not (tmp_path / "one.partial").exists()


def test_a_second_backup_at_the_same_time_is_refused(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "LOCK_WAIT_S", 0.0)
    held = FILES.lock(str(house.path / "backup.lock"))
    with pytest.raises(Refused, match="another backup"):
        back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    FILES.close(held)


def test_a_damaged_backup_is_not_restored(house: House, tmp_path: Path) -> None:
    back_up(FILES, BackupPlan(house.path, tmp_path / "one"))
    damaged = tmp_path / "one/data/topics/000001/state/data.mdb"
    damaged.write_bytes(b"x")
    assert [problem.split(" ")[0] for problem in check(FILES, str(tmp_path / "one"))[1]] == [
        "topics/000001/state/data.mdb"
    ]
    with pytest.raises(ZsqError, match="is damaged"):
        restore(FILES, str(tmp_path / "one"), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "one"]
    damaged.write_bytes(b"a")
    restore(FILES, str(tmp_path / "one"), tmp_path / "new")
    assert json.loads((tmp_path / "new/registry.json").read_bytes())["topics"].keys() == {
        "a",
        "b",
        "c",
    }


def test_a_backup_is_no_faster_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    pace = backup.CopyPace(1000, lambda count: None)
    pace(100)
    now[0] = 0.05
    pace(400)
    assert [round(one, 3) for one in slept] == [0.1, 0.45]
    backup.CopyPace(0, lambda count: None)(10**9)
    assert len(slept) == 2
