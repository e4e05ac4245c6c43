"""Tests of the file with the topics that were asleep when the broker ended: it is used once, and
only for topics that did not change.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from crc32c import crc32c
from support.group import Broker

from zsq.actors.settings.options import ServeOptions
from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor.topics import sleepers
from zsq.actors.supervisor.topics.registry_format import TopicRow
from zsq.actors.supervisor.topics.sleepers import NAME, Sleeper, is_unchanged
from zsq.storage.files import Files

ROW = TopicRow(1, "a" * 32, "always", 0, state="live")
STORAGE = {"start": 0, "head": 3, "delayed_count": 0, "delayed_next_due_ns": 0}
SLEEPER = Sleeper(ROW.uuid, 0, {"head": 3, "storage": STORAGE}, {"c": {"next_offset": 2}})


@pytest.fixture
def given(tmp_path: Path) -> ServeOptions:
    return ServeOptions(data_dir=tmp_path, sleep_after_s=60.0)


def test_the_file_is_used_once(tmp_path: Path, given: ServeOptions) -> None:
    files = Files()
    assert sleepers.take(files, tmp_path, given) == {}
    sleepers.save(files, tmp_path, given, {"t": SLEEPER})
    assert sleepers.take(files, tmp_path, given) == {"t": SLEEPER}
    assert os.listdir(tmp_path) == []
    assert sleepers.take(files, tmp_path, given) == {}
    sleepers.save(files, tmp_path, given, {})
    assert os.listdir(tmp_path) == []


def test_the_removal_of_the_file_is_durable_before_a_topic_can_change(
    tmp_path: Path, given: ServeOptions
) -> None:
    calls: list[str] = []

    class Recording(Files):
        def remove(self, path: str) -> None:
            calls.append("remove")
            super().remove(path)

        def sync_folder(self, path: str) -> None:
            calls.append("sync")
            super().sync_folder(path)

    sleepers.save(Files(), tmp_path, given, {"t": SLEEPER})
    assert sleepers.take(Recording(), tmp_path, given)
    assert calls == ["remove", "sync"]


@pytest.mark.parametrize("where", [0, 20, -1])
def test_a_damaged_file_is_not_used(tmp_path: Path, given: ServeOptions, where: int) -> None:
    sleepers.save(Files(), tmp_path, given, {"t": SLEEPER})
    data = bytearray((tmp_path / NAME).read_bytes())
    data[where] ^= 1
    (tmp_path / NAME).write_bytes(data)
    assert sleepers.take(Files(), tmp_path, given) == {}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "data", [b"", b"123", b"[]\n%08x\n" % crc32c(b"[]"), b"{}\n%08x\n" % crc32c(b"{}")]
)
def test_a_file_of_something_else_is_not_used(
    tmp_path: Path, given: ServeOptions, data: bytes
) -> None:
    (tmp_path / NAME).write_bytes(data)
    assert sleepers.take(Files(), tmp_path, given) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"sleep_after_s": 0.0},
        {"bucket": "file:///b"},
        {"bucket_lag_s": 0.0},
        {"retention": {"keep_time_s": 60}},
    ],
)
def test_other_settings_may_give_a_topic_work(
    tmp_path: Path, given: ServeOptions, change: dict[str, Any]
) -> None:
    sleepers.save(Files(), tmp_path, given, {"t": SLEEPER})
    assert sleepers.take(Files(), tmp_path, replace(given, **change)) == {}


def test_another_version_reads_nothing_of_it(
    tmp_path: Path, given: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers.save(Files(), tmp_path, given, {"t": SLEEPER})
    monkeypatch.setattr(sleepers, "__version__", "0.0.1")
    assert sleepers.take(Files(), tmp_path, given) == {}


def test_a_topic_whose_files_changed_starts(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    (folder / "state").mkdir(parents=True)
    for name in ("0.chunk", "state/data.mdb", "state/lock.mdb"):
        (folder / name).write_bytes(b"x" * 100)
    sleeper = replace(SLEEPER, files=sleepers.digest_of(str(folder)))
    assert is_unchanged(sleeper, ROW, str(folder))
    (folder / "state/lock.mdb").write_bytes(b"opened by a command")
    assert is_unchanged(sleeper, ROW, str(folder))
    assert not is_unchanged(sleeper, replace(ROW, uuid="b" * 32), str(folder))
    assert not is_unchanged(sleeper, replace(ROW, state="deleting"), str(folder))
    assert not is_unchanged(sleeper, ROW, str(tmp_path / "2"))
    before = os.stat(folder / "0.chunk")
    (folder / "0.chunk").write_bytes(b"y" * 100)
    assert not is_unchanged(sleeper, ROW, str(folder))
    os.utime(folder / "0.chunk", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_unchanged(sleeper, ROW, str(folder)), "the digest has no contents"
    (folder / "1.chunk").write_bytes(b"")
    assert not is_unchanged(sleeper, ROW, str(folder))


def test_only_topics_that_sleep_are_written(tmp_path: Path) -> None:
    broker = Broker()
    group = broker.group
    assert sleepers.sleepers_of([group], lambda row: str(tmp_path)) == {}
    group.state = GroupState.NEW
    group.row = replace(group.row, state="live")
    pulse: dict[str, Any] = {
        "head": 9, "message_count": 9, "message_bytes": 99,
        "storage": {"start": 0, "head": 9, "entered_bytes": 5, "refused_count": 2, "removed_bytes": 7},
    }  # fmt: skip
    group.begin_asleep(pulse, {"c": {"next_offset": 4}})
    assert group.state is GroupState.ASLEEP
    assert broker.started == []
    found = sleepers.sleepers_of([group], lambda row: str(tmp_path))["t"]
    assert found.channels == {"c": {"next_offset": 4}}
    assert (found.topic["head"], found.topic["message_count"]) == (9, 0)
    assert found.topic["storage"] == {
        "start": 0, "head": 9, "entered_bytes": 0, "refused_count": 0, "removed_bytes": 0,
    }  # fmt: skip
    group.row = replace(group.row, state="deleting")
    assert sleepers.sleepers_of([group], lambda row: str(tmp_path)) == {}


def test_a_topic_that_begins_asleep_wakes_for_a_request() -> None:
    broker = Broker()
    group = broker.group
    group.state = GroupState.NEW
    group.begin_asleep({"storage": {"start": 0, "head": 9}}, {"b": {}})
    assert broker.asleep == 2
    broker.want("b")
    assert (broker.started, broker.asleep) == (["topic"], 0)
    topic = cast("Any", group.topic)
    topic.state, topic.data = "up", {"channels": ["b"]}
    group.born(topic)
    group.tick()
    broker.up("b")
    assert broker.answers == [None]


@pytest.mark.parametrize("name", STORAGE)
def test_a_topic_without_what_its_sleep_needs_starts(
    tmp_path: Path, given: ServeOptions, name: str
) -> None:
    without = {key: value for key, value in STORAGE.items() if key != name}
    cut = replace(SLEEPER, topic={"head": 3, "storage": without})
    sleepers.save(Files(), tmp_path, given, {"t": cut, "u": SLEEPER})
    assert sleepers.take(Files(), tmp_path, given) == {"u": SLEEPER}
