"""Tests of importing what a real nsqd 1.3.0 left: every message arrives in its topic and channel.
Further tests import files that other nsqds might leave.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.nsqd import backlogs, contents, expected, fixture, message, sha, write_nsqd

from zsq.actors.supervisor.topics.registry import Registry
from zsq.apps.nsqd import nsqd_import
from zsq.apps.nsqd.nsqd_import import ImportReport, import_nsqd
from zsq.storage.directory.store import StoreOptions, TopicIdentity, open_store
from zsq.storage.errors import Damaged, DiskFull, ForeignDirectory, Locked, StorageError
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import NsqdChannel, NsqdList, NsqdTopic, decode_message
from zsq.storage.state.state import StateBatch, StateStore
from zsq.transport.block.block import pack
from zsq.transport.errors import UsageError

OPTIONS = StoreOptions(reserve_bytes=0, chunk_bytes=1 << 20)
ONE = NsqdList((NsqdTopic("t", False, (NsqdChannel("c"),)),), "1.3.0")


def take(source: Path, data_dir: Path, *, skip_too_big: bool = False) -> ImportReport:
    return import_nsqd(Files(), str(source), data_dir, options=OPTIONS, skip_too_big=skip_too_big)


# Files of a real nsqd


def test_a_cleanly_stopped_nsqd_is_imported_body_for_body(tmp_path: Path) -> None:
    source = fixture("clean", tmp_path)
    before = contents(source)
    report = take(source, tmp_path / "data")
    assert contents(source) == before, "the source is only read"
    assert (report.found.lost, report.found.notes) == ([], [])
    found = backlogs(tmp_path / "data")
    there = expected("clean")
    assert found.keys() == there.keys()
    for name, topic in there.items():
        assert found[name].paused == topic["paused"]
        assert [sha(body) for body in found[name].waiting] == topic.get("waiting", [])
        assert found[name].channels.keys() == topic["channels"].keys()
        for channel, its in topic["channels"].items():
            left = found[name].channels[channel]
            assert Counter(sha(body) for body, _ in left) == Counter(its["left"])
            assert found[name].stopped[channel] == its["paused"]
            assert {sha(body) for body, attempts in left if attempts} >= set(
                its.get("requeued_once", [])
            )
            with DiskQueue(source, f"{name}:{channel}") as queue:
                assert Counter(left) == Counter(
                    (one.body, one.attempts) for one in map(decode_message, queue)
                )


def test_times_and_ids_are_nsqds(tmp_path: Path) -> None:
    take(fixture("clean", tmp_path), tmp_path / "data")
    for backlog in backlogs(tmp_path / "data").values():
        assert all(
            1_700_000_000 * 10**9 < time_ns < 2_000_000_000 * 10**9 for time_ns in backlog.times
        )
        assert all(len(one) == 16 and int(one, 16) for one in backlog.ids)


def test_every_body_of_a_killed_nsqd_is_imported(tmp_path: Path) -> None:
    """nsqd itself would overwrite the queue `never-synced`."""
    source = fixture("killed", tmp_path)
    report = take(source, tmp_path / "data")
    found = backlogs(tmp_path / "data")
    for name, topic in expected("killed").items():
        assert set(topic["waiting"]) <= {sha(body) for body in found[name].waiting}
        assert len(found[name].waiting) == len(topic["waiting"])
    assert report.found.lost == []
    assert any("older than its data" in note for note in report.found.notes)
    assert any("missing" in note for note in report.found.notes)


# An import runs only once


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    source = fixture("clean", tmp_path)
    take(source, tmp_path / "data")
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "data").rglob("*"))
    registry = (tmp_path / "data/registry.json").read_bytes()
    assert take(source, tmp_path / "data").again
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "data").rglob("*")) == before
    assert (tmp_path / "data/registry.json").read_bytes() == registry
    assert not (tmp_path / "data/import.tmp").exists()


def test_a_name_that_exists_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    take(write_nsqd(tmp_path / "a", ONE, {"t": [[message(1)]]}), tmp_path / "data")
    other = write_nsqd(
        tmp_path / "b", NsqdList((*ONE.topics, NsqdTopic("u"))), {"u": [[message(2)]]}
    )
    before = (tmp_path / "data/registry.json").read_bytes()
    with pytest.raises(UsageError, match="topics t exist already"):
        take(other, tmp_path / "data")
    assert (tmp_path / "data/registry.json").read_bytes() == before
    assert [path.name for path in (tmp_path / "data/topics").iterdir()] == ["000001"]


def test_lost_messages_can_be_imported_when_the_topics_were_deleted(tmp_path: Path) -> None:
    """A second import is refused while one of the topics exists, because its messages would be
    imported twice.
    """
    listed = NsqdList((*ONE.topics, NsqdTopic("u")))
    source = write_nsqd(
        tmp_path / "a", listed, {"t:c": [[message(1), message(2)]], "u": [[message(3)]]}
    )
    path = source / "t:c.diskqueue.000000.dat"
    path.write_bytes(path.read_bytes()[:-1])
    assert take(source, tmp_path / "data").found.lost_count == 1
    again = take(source, tmp_path / "data")
    assert (again.again, again.still, again.lost_before) == (True, ["t", "u"], 1)
    registry = Registry(Files(), tmp_path / "data", 0)
    for name in ("t", "u"):
        registry.open()
        assert take(source, tmp_path / "data").again
        registry.set_state(name, "deleting", next_offset=100)
        registry.remove(name)
    assert not take(source, tmp_path / "data").again
    assert len(backlogs(tmp_path / "data")["t"].channels["c"]) == 1
    assert take(source, tmp_path / "data").again


def test_two_sources_with_different_topics_come_together(tmp_path: Path) -> None:
    take(write_nsqd(tmp_path / "a", ONE, {"t": [[message(1)]]}), tmp_path / "data")
    take(
        write_nsqd(tmp_path / "b", NsqdList((NsqdTopic("u"),)), {"u": [[message(2)]]}),
        tmp_path / "data",
    )
    assert {name: len(one.waiting) for name, one in backlogs(tmp_path / "data").items()} == {
        "t": 0,
        "u": 1,
    }


def test_a_running_nsqd_and_a_running_broker_are_refused(tmp_path: Path) -> None:
    source = write_nsqd(tmp_path / "a", ONE, {})
    fd = os.open(source, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Locked, match="nsqd"):
            take(source, tmp_path / "data")
    finally:
        os.close(fd)
    (tmp_path / "data").mkdir()
    lock = Files().lock(str(tmp_path / "data/lock"))
    try:
        with pytest.raises(Locked, match=str(os.getpid())):
            take(source, tmp_path / "data")
    finally:
        os.close(lock)
    take(source, tmp_path / "data")


def test_no_nsqd_can_start_meanwhile(tmp_path: Path) -> None:
    source = write_nsqd(tmp_path / "a", ONE, {"t": [[message(1)]]})
    refused = []

    class Watched(Files):
        def rename(self, old: str, new: str) -> None:
            fd = os.open(source, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(new)
            finally:
                os.close(fd)
            super().rename(old, new)

    import_nsqd(Watched(), str(source), tmp_path / "data", options=OPTIONS)
    assert [name for name in refused if name.endswith("topics/000001")], "to the end"


def test_an_import_that_cannot_be_read_back_is_not_committed(tmp_path: Path) -> None:
    """The disk returns other content than was written, although headers and checksums match. A bug
    in a step before the checksum is computed could cause this.
    """
    source = write_nsqd(tmp_path / "a", ONE, {"t": [[message(1), message(2)]]})

    class Wrong(Files):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            found = super().pread(fd, size, position)
            return (
                found.replace(message(1).body, message(3).body)
                if os.readlink(f"/proc/self/fd/{fd}").endswith(".chunk")
                else found
            )

    with pytest.raises(StorageError):
        import_nsqd(Wrong(), str(source), tmp_path / "data", options=OPTIONS)
    registry = Registry(Files(), tmp_path / "data", 0)
    registry.open()
    assert not registry.topics


def test_an_import_that_reads_back_differently_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import itself writes the wrong content, and the checksums match."""
    monkeypatch.setattr(
        nsqd_import, "pack", lambda bodies, **columns: pack([b"other", *bodies[1:]], **columns)
    )
    source = write_nsqd(tmp_path / "a", ONE, {"t": [[message(1), message(2)]]})
    with pytest.raises(Damaged, match="the messages of topic t were not written correctly"):
        take(source, tmp_path / "data")
    monkeypatch.undo()
    take(source, tmp_path / "data")
    assert len(backlogs(tmp_path / "data")["t"].channels["c"]) == 2


@pytest.mark.parametrize("what", ["channel_puts", "hole_puts", "paused_end"])
def test_an_import_with_wrong_channels_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    commit = StateStore.commit

    def forgetful(self: StateStore, batch: StateBatch) -> None:
        less: Any = {what: None if what == "paused_end" else type(getattr(batch, what))()}
        commit(self, dataclasses.replace(batch, **less))

    listed = NsqdList((NsqdTopic("t", True, (NsqdChannel("c"),)),))
    source = write_nsqd(tmp_path / "a", listed, {"t:c": [[message(1, 1)]]})
    monkeypatch.setattr(StateStore, "commit", forgetful)
    with pytest.raises(Damaged, match="channels of topic t"):
        take(source, tmp_path / "data")


def test_a_new_data_directory_gets_the_given_node(tmp_path: Path) -> None:
    import_nsqd(
        Files(),
        str(write_nsqd(tmp_path / "a", ONE, {})),
        tmp_path / "data",
        options=OPTIONS,
        node_id=7,
    )
    registry = Registry(Files(), tmp_path / "data", 0)
    registry.open()
    assert registry.node == 7


@pytest.mark.parametrize("what", ["no nsqd.dat", "no data directory of ours"])
def test_strange_directories_are_refused(tmp_path: Path, what: str) -> None:
    source = write_nsqd(tmp_path / "a", ONE, {})
    (tmp_path / "data").mkdir()
    if what == "no nsqd.dat":
        (source / "nsqd.dat").unlink()
    else:
        (tmp_path / "data/photo.jpg").write_bytes(b"")
    with pytest.raises(ForeignDirectory):
        take(source, tmp_path / "data")


def test_a_disk_without_room_is_known_before_anything_is_written(tmp_path: Path) -> None:
    source = write_nsqd(tmp_path / "a", ONE, {"t": [[message(1, size=5000)]]})
    with pytest.raises(DiskFull, match="5"):
        import_nsqd(
            Files(), str(source), tmp_path / "data", options=StoreOptions(reserve_bytes=1 << 60)
        )
    assert list((tmp_path / "data/topics").iterdir()) == []


# Channels


def test_each_channel_has_its_own_backlog_and_the_common_one(tmp_path: Path) -> None:
    """The channel with the largest backlog gets both, too. Those of its messages that were sent
    before come first, with their attempts.
    """
    listed = NsqdList(
        (
            NsqdTopic(
                "t", False, (NsqdChannel("few"), NsqdChannel("many", True), NsqdChannel("none"))
            ),
        )
    )
    few = [message(1, 3), message(2, 0)]
    many = [
        message(number, attempts)
        for number, attempts in ((10, 0), (11, 2), (12, 0), (13, 2), (14, 0))
    ]
    own = [message(20, 0)]
    take(
        write_nsqd(
            tmp_path / "a", listed, {"t": [own], "t:few": [few], "t:many": [many[:2], many[2:]]}
        ),
        tmp_path / "data",
    )
    found = backlogs(tmp_path / "data")["t"]
    common = (own[0].body, 0)
    assert found.channels["few"] == [(few[0].body, 3), (few[1].body, 0), common]
    assert found.channels["many"] == [(many[i].body, many[i].attempts) for i in (1, 3, 0, 2, 4)] + [
        common
    ]
    assert found.channels["none"] == [common]
    assert found.stopped == {"few": False, "many": True, "none": False}


def test_a_paused_topics_own_backlog_waits(tmp_path: Path) -> None:
    listed = NsqdList((NsqdTopic("t", True, (NsqdChannel("c"),)),))
    take(
        write_nsqd(tmp_path / "a", listed, {"t": [[message(1)]], "t:c": [[message(2)]]}),
        tmp_path / "data",
    )
    found = backlogs(tmp_path / "data")["t"]
    assert found.channels["c"] == [(message(2).body, 0)]
    assert found.waiting == [message(1).body]


@pytest.mark.parametrize(("name", "value"), [("BLOCK_COUNT", 7), ("BLOCK_BYTES", 600)])
def test_blocks_are_no_larger_than_readers_take_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(nsqd_import, name, value)
    take(
        write_nsqd(
            tmp_path / "a",
            NsqdList((NsqdTopic("t"),)),
            {"t": [[message(number) for number in range(50)]]},
        ),
        tmp_path / "data",
    )
    registry = Registry(Files(), tmp_path / "data", 0)
    registry.open()
    row = registry.topics["t"]
    store = open_store(Files(), registry.folder(row), OPTIONS, TopicIdentity("t", row.uuid))
    try:
        counts = [header.count for header, _ in store.log.headers(0)]
    finally:
        store.close()
    assert sum(counts) == 50
    assert 2 <= max(counts) <= 7


def test_a_block_ends_where_a_paused_topics_own_backlog_begins(tmp_path: Path) -> None:
    """A channel only gets blocks that lie completely before the pause."""
    listed = NsqdList((NsqdTopic("t", True, (NsqdChannel("c"), NsqdChannel("d"))),))
    queues = {
        "t": [[message(1)]],
        "t:c": [[message(2), message(3, 1)]],
        "t:d": [[message(number) for number in range(4, 9)]],
    }
    take(write_nsqd(tmp_path / "a", listed, queues), tmp_path / "data")
    registry = Registry(Files(), tmp_path / "data", 0)
    registry.open()
    row = registry.topics["t"]
    store = open_store(
        Files(), registry.folder(row), OPTIONS, TopicIdentity("t", row.uuid, row.base_offset)
    )
    try:
        ends = {header.next_offset for header, _ in store.log.headers(0)}
        assert store.state.load().paused_end == 7
        assert 7 in ends
    finally:
        store.close()


def test_ephemeral_topics_and_channels_are_left_out_and_named(tmp_path: Path) -> None:
    listed = NsqdList(
        (NsqdTopic("t", False, (NsqdChannel("c#ephemeral"),)), NsqdTopic("u#ephemeral"))
    )
    report = take(write_nsqd(tmp_path / "a", listed, {"t": [[message(1)]]}), tmp_path / "data")
    found = backlogs(tmp_path / "data")
    assert found.keys() == {"t"}
    assert (found["t"].channels, len(found["t"].waiting)) == ({}, 1), (
        "a topic whose channels were all ephemeral waits for its first one"
    )
    assert len(report.found.notes) == 2


def test_queues_that_nsqd_dat_does_not_name_are_taken_over(tmp_path: Path) -> None:
    queues = {"t": [[message(1)]], "v:c": [[message(2)]], "bad name": [[message(3)]]}
    report = take(write_nsqd(tmp_path / "a", ONE, queues), tmp_path / "data")
    assert backlogs(tmp_path / "data")["v"].channels == {"c": [(message(2).body, 0)]}
    assert [note for note in report.found.notes if "bad name" in note]


def test_a_name_that_ended_here_goes_on_behind_its_old_offsets(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    registry.ended["t"] = 1000
    registry.save()
    take(write_nsqd(tmp_path / "a", ONE, {"t:c": [[message(1)]]}), data_dir)
    registry.open()
    assert registry.topics["t"].base_offset == 1000
    assert backlogs(data_dir)["t"].channels["c"] == [(message(1).body, 0)]


def test_a_body_over_the_limit_is_refused_or_skipped_as_asked(tmp_path: Path) -> None:
    source = write_nsqd(
        tmp_path / "a",
        ONE,
        {"t": [[message(1), message(2, size=9 << 20), message(3, size=7 << 20)]]},
    )
    with pytest.raises(UsageError, match="--skip-too-big"):
        take(source, tmp_path / "data")
    assert not (tmp_path / "data/import.tmp").exists()
    report = take(source, tmp_path / "data", skip_too_big=True)
    assert (report.found.lost_count, report.found.left_out) == (1, 1)
    assert [body for body, _ in backlogs(tmp_path / "data")["t"].channels["c"]] == [
        message(1).body,
        message(3, size=7 << 20).body,
    ]


def test_names_that_mean_a_folder_are_replaced(tmp_path: Path) -> None:
    """nsqd permits the names `.` and `..`. Their messages are imported under new names that are not
    in use.
    """
    listed = NsqdList(
        (
            NsqdTopic("dot", False, ()),
            NsqdTopic(".", True, (NsqdChannel("..", True), NsqdChannel("c"))),
        ),
        "1.3.0",
    )
    queues = {
        ".": [[message(1)]],
        ".:..": [[message(2)]],
        ".:c": [[message(3)]],
        "dot": [[message(4)]],
    }
    source = write_nsqd(tmp_path / "nsqd", listed, queues)
    report = take(source, tmp_path / "data")
    found = backlogs(tmp_path / "data")
    assert found.keys() == {"dot", "dot-"}
    assert found["dot"].waiting == [message(4).body]
    assert found["dot-"].paused
    assert found["dot-"].stopped == {"dot-dot": True, "c": False}
    assert [body for body, _ in found["dot-"].channels["dot-dot"]] == [message(2).body]
    assert found["dot-"].waiting == [message(1).body]
    assert report.found.notes == [
        "topic . is renamed to dot-, because ZSQ does not allow the name .",
        "channel ./.. is renamed to dot-dot, because ZSQ does not allow the name ..",
    ]
