"""Tests of a damaged state store: it is renamed to `.bad`, and rebuilt from its snapshot and the
log. Messages may be delivered again, but none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest
from crc32c import crc32c
from support.faulty_files import PowerCut, keep_all, keep_none

from zsq.storage.errors import DiskFull, ForeignDirectory
from zsq.storage.log.transactions import StageRow
from zsq.storage.rows import META
from zsq.storage.state import state_check, state_keeper
from zsq.storage.state import state_keeper as state_rebuild
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.snapshot import SNAPSHOT_NAME, decode_snapshot, read_snapshot
from zsq.storage.state.state import HoleRow, ProducerRow, StateBatch, StateStore, Table
from zsq.storage.state.state_check import Verdict
from zsq.storage.state.state_rows import deferred_key

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

STAGE = StageRow("query", 7, "app", 1, 0, 0, 0, 0, True, (), 50)
ROW = ChannelRow(5)


def tamper(harness: StorageHarness, change: Callable[[Any], object]) -> None:
    with lmdb.open(f"{harness.directory}/state", lock=False) as env, env.begin(write=True) as txn:
        change(txn)


def spoil(harness: StorageHarness) -> None:
    def flip(txn: Any) -> None:
        first, *rest = bytes(txn.get(META))
        txn.put(META, bytes([first ^ 1, *rest]))

    tamper(harness, flip)


def answer(asked: list[str], *findings: str) -> Callable[[str, float], Verdict]:
    def examine(path: str, timeout_s: float) -> Verdict:
        asked.append(path)
        return Verdict(list(findings), finished=True)

    return examine


def state_of(harness: StorageHarness) -> StateStore:
    assert harness.store is not None
    return harness.store.state


def table_of(harness: StorageHarness) -> Table:
    return state_of(harness).load()


def work(harness: StorageHarness) -> Table:
    """Make four blocks, and channels, one of which has deferred and other holes. Write a snapshot
    in between. Then publish blocks that are only in the log.
    """
    for _ in range(2):
        harness.publish()
        harness.sync()
    state_of(harness).commit(
        StateBatch(
            channel_puts={"c": ROW, "d": replace(ROW, next_offset=6)},
            hole_puts=[
                ("c", 0, 1, 2, 0),
                ("c", 4, 1, 1, 0),
                ("d", 1, 1, 3, 0),
                ("d", 2, 1, 1, 99),
                ("d", 4, 1, 1, 50),
                ("d", 5, 1, 1, 0),
            ],
            producers={77: ProducerRow(2, 5, ((0, 0), (1, 3)))},
            applied_offset=6,
        )
    )
    for _ in range(2):
        harness.publish()
        harness.sync()
    return table_of(harness)


def test_the_snapshot_is_there_when_a_channel_was_made(harness: StorageHarness) -> None:
    work(harness)
    found = read_snapshot(harness.files, harness.directory)
    assert found is not None
    assert found.meta["applied"] == 6
    assert {
        name: (total.rows, total.messages, total.first_start)
        for name, total in found.deferred.items()
    } == {"d": (2, 2, 2)}
    assert len(found.rows) == 8


def test_a_damaged_state_is_made_again_from_snapshot_and_log(harness: StorageHarness) -> None:
    work(harness)
    harness.abandon()
    spoil(harness)
    damaged = harness.path("state/data.mdb").read_bytes()
    report = harness.crash(keep_all).report
    assert harness.path("state.bad-1/data.mdb").read_bytes() == damaged
    assert "set aside as" in report.alarms[0]
    assert any(
        "channel d lost its record of 2 deferred messages: it continues at offset 2 instead of 6"
        in alarm
        for alarm in report.alarms
    )
    table = table_of(harness)
    assert table.channels == {"c": ROW, "d": replace(ROW, next_offset=2)}
    assert table.holes == {
        "c": [HoleRow(0, 1, 2, 0), HoleRow(4, 1, 1, 0)],
        "d": [HoleRow(1, 1, 3, 0)],
    }
    assert table.deferred == {}
    assert table.producers[77].next_sequence == 4, "replayed from the log"
    assert (table.applied_offset, table.synced_end) == (12, 12)
    assert harness.check() == [0, 1, 2, 3]
    assert harness.restart().report.alarms == []


def test_a_hole_that_reaches_over_the_lowest_deferred_one_is_cut(harness: StorageHarness) -> None:
    work(harness)
    state_of(harness).commit(
        StateBatch(
            hole_puts=[("d", 0, 4, 3, 0), ("d", 4, 1, 1, 7)],
            hole_gones=[("d", 1), ("d", 2)],
            waiting=0,
        )
    )
    state_of(harness).commit(StateBatch(hole_puts=[("d", 2, 1, 1, 7)], waiting=0))
    harness.abandon()
    spoil(harness)
    harness.crash(keep_all)
    assert table_of(harness).holes["d"] == [HoleRow(0, 2, 3, 0)]
    assert table_of(harness).channels["d"].next_offset == 2


def test_without_a_snapshot_all_is_delivered_again(harness: StorageHarness) -> None:
    work(harness)
    harness.abandon()
    spoil(harness)
    for name in ("gone", "torn", "another's"):
        path = harness.path(SNAPSHOT_NAME)
        if name == "gone":
            path.unlink()
        elif name == "torn":
            path.write_bytes(path.read_bytes()[:-1])
        harness.files.reset()
        report = harness.open().report
        assert "channels are lost" in report.alarms[1]
        table = table_of(harness)
        assert (table.channels, table.waiting, table.applied_offset) == ({}, 0, 12)
        assert table.producers[77].next_sequence == 4
        assert harness.check() == [0, 1, 2, 3]
        assert harness.restart().report.alarms == []
        harness.abandon_cleanly()
        spoil(harness)
        if name == "torn":
            data = path.read_bytes()
            assert decode_snapshot(data).uuid.hex() in data.decode(errors="replace")
            line = data.split(b"\n")[0]
            other = json.dumps({**json.loads(line), "uuid": "f" * 32}).encode()
            path.write_bytes(other + b"\n%08x\n" % crc32c(other) + data[len(line) + 10 :])
    assert sorted(one.name for one in Path(harness.directory).glob("state.*bad-*")) == [
        "state.bad-1", "state.bad-2", "state.bad-3", "state.snapshot.bad-2", "state.snapshot.bad-3"
    ]  # fmt: skip


def test_a_missing_data_file_is_damage_and_no_new_beginning(harness: StorageHarness) -> None:
    work(harness)
    harness.abandon()
    harness.path("state/data.mdb").unlink()
    harness.files.reset()
    assert "has no data.mdb" in harness.open().report.alarms[0]
    assert table_of(harness).channels["c"] == ROW


def test_another_topics_state_is_refused_and_stays(harness: StorageHarness, tmp_path: Path) -> None:
    harness.abandon_cleanly()
    (tmp_path / "other").mkdir()
    other = StateStore(str(tmp_path / "other"), create=True)
    other.create(bytes(16), 0)
    other.close()
    data = (tmp_path / "other/data.mdb").read_bytes()
    harness.replace(harness.path("state/data.mdb"), data)
    with pytest.raises(ForeignDirectory, match="another topic"):
        harness.open()
    assert harness.path("state/data.mdb").read_bytes()[:8192] == data[:8192]


def test_a_power_cut_at_every_change_of_the_making(tmp_path: Path, harness: StorageHarness) -> None:
    finished = False
    for at in range(1, 30):
        folder = tmp_path / f"cut{at}"
        folder.mkdir()
        other = type(harness)(folder)
        other.open()
        work(other)
        other.abandon()
        spoil(other)
        other.files.reset()
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            finished = False
        other.crash(keep_none if at % 2 else keep_all)
        table = table_of(other)
        assert set(table.channels) == {"c", "d"}
        assert table.channels["d"].next_offset == 2
        assert table.producers[77].next_sequence == 4
        assert other.check() == [0, 1, 2, 3]
        assert other.path("state.bad-1/data.mdb").exists(), "something was wiped"
        other.abandon()
    assert finished, "more points than that"


def test_a_rebuild_on_a_full_disk_keeps_the_damaged_store(harness: StorageHarness) -> None:
    work(harness)
    harness.abandon()
    spoil(harness)
    damaged = harness.path("state/data.mdb").read_bytes()
    harness.files.reset()
    harness.files.fail["make_folder"] = {1: 28}
    with pytest.raises(DiskFull, match="could not be rebuilt"):
        harness.open()
    assert harness.path("state/data.mdb").read_bytes() == damaged
    harness.open()
    assert table_of(harness).channels["c"] == ROW


# How damage is noticed


def test_a_store_older_than_its_snapshot_is_made_again(harness: StorageHarness) -> None:
    """LMDB chooses between its two meta pages by a number. A flipped bit in this number brings back
    the previous commit, which is correct in itself.
    """
    work(harness)
    old = harness.path("state/data.mdb").read_bytes()
    state_of(harness).commit(StateBatch(channel_puts={"e": ROW}))
    harness.abandon()
    harness.replace(harness.path("state/data.mdb"), old)
    assert "its snapshot" in harness.open().report.alarms[0]
    assert "e" in table_of(harness).channels


def test_damage_met_in_deferred_rows_is_repaired_by_the_next_start(harness: StorageHarness) -> None:
    work(harness)
    state_of(harness).commit(StateBatch(hole_puts=[("d", 3, 1, 1, 70)]))
    key = deferred_key("d", 3)
    harness.abandon_cleanly()
    tamper(harness, lambda txn: txn.put(key, b"x" + bytes(txn.get(key))[1:]))
    assert harness.open().report.alarms == [], "only the lowest and the earliest are read at start"
    assert harness.store is not None
    harness.store.keeper.distrust()
    harness.abandon()
    report = harness.crash(keep_all).report
    assert "set aside" in report.alarms[0]
    assert table_of(harness).channels["d"].next_offset == 2


# Starts


def test_after_two_starts_without_a_commit_the_store_is_examined_first(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB crashed at each start, and only the note of the starts shows that."""
    work(harness)
    harness.abandon()
    real = StateStore.__init__
    asked: list[str] = []

    def die(self: StateStore, *given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StateStore, "__init__", die)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            harness.open()
    monkeypatch.setattr(StateStore, "__init__", real)
    monkeypatch.setattr(state_rebuild, "examine", answer(asked, "LMDB crashed"))
    assert "LMDB crashed" in harness.open().report.alarms[0]
    assert asked == [f"{harness.directory}/state"]
    assert table_of(harness).channels["c"] == ROW


def test_a_sound_store_is_not_set_aside_and_not_examined_for_ever(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(harness)
    asked: list[str] = []
    monkeypatch.setattr(state_rebuild, "examine", answer(asked))
    # The process is killed before its first commit each time. The next start makes a commit itself
    # to find out whether the store is sound.
    for _ in range(2):
        harness.abandon()
        assert harness.open().report.alarms == []
    assert asked == []
    assert harness.store is not None
    harness.store.keeper.distrust()
    harness.abandon()
    assert any("is sound" in note for note in harness.open().report.notes)
    harness.abandon()
    harness.open()
    assert len(asked) == 1


def test_after_too_many_starts_in_a_short_time_the_store_is_examined(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies each time after its first commit, for any reason."""
    asked: list[str] = []
    monkeypatch.setattr(state_rebuild, "examine", answer(asked))
    for _ in range(state_keeper.STARTS_MAX - 1):
        harness.abandon()
        harness.open()
        assert asked == []
    harness.abandon()
    harness.open()
    assert len(asked) == 1
    for _ in range(2 * state_keeper.STARTS_MAX):
        harness.abandon_cleanly()
        harness.open()
    assert len(asked) == 1, "ends in order do not count"
    for _ in range(2 * state_keeper.STARTS_MAX):
        harness.abandon()
        harness.open()
        for _ in range(state_keeper.PROVEN_COMMITS):
            state_of(harness).commit(StateBatch())
    assert len(asked) == 1, "nor does what came to some commits"


def test_a_time_out_of_the_examination_sets_nothing_aside(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness.store is not None
    harness.store.keeper.distrust()
    harness.abandon()
    monkeypatch.setattr(
        state_rebuild, "examine", lambda path, timeout_s: Verdict(["no time"], False)
    )
    report = harness.open().report
    assert report.alarms == []
    assert "no time" in report.notes


def test_a_copy_that_was_left_is_removed_and_what_was_left_out_is_told(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(f"{harness.directory}/state{state_check.COPY_SUFFIX}")
    assert harness.store is not None
    harness.store.keeper.distrust()
    harness.abandon()
    copy.mkdir()
    monkeypatch.setattr(
        state_rebuild, "examine", lambda path, timeout_s: Verdict([], True, "not copied")
    )
    assert "not copied" in harness.open().report.notes
    assert not copy.exists()


def test_the_alarm_about_a_damaged_store_names_the_folder_once(harness: StorageHarness) -> None:
    harness.abandon_cleanly()
    Path(f"{harness.directory}/state/data.mdb").write_bytes(b"garbage" * 4_096)
    told = harness.open().report.alarms[0]
    assert told.count(harness.directory) == 1
    assert "MDB_" in told


# When the snapshot is written


def test_changes_that_redelivery_cannot_repair_make_a_snapshot_due(harness: StorageHarness) -> None:
    state = state_of(harness)
    changes: list[tuple[StateBatch, bool]] = [
        (StateBatch(channel_puts={"c": ROW}), True),
        (StateBatch(channel_puts={"c": replace(ROW, next_offset=9)}), False),
        (StateBatch(hole_puts=[("c", 1, 1, 1, 5)], applied_offset=3, synced_end=3), False),
        (StateBatch(channel_puts={"c": replace(ROW, next_offset=9, paused=True)}), True),
        (StateBatch(channel_puts={"c": replace(ROW, next_offset=2, paused=True)}), True),
        (StateBatch(channel_puts={"c": replace(ROW, next_offset=3, paused=True)}), False),
        (StateBatch(paused_end=3), True),
        (StateBatch(paused_end=-1), True),
        (StateBatch(waiting=3), True),
        (StateBatch(start=0), True),
        (StateBatch(channel_drops=["c"]), True),
        (StateBatch(producers={1: ProducerRow(1, 1, ())}), False),
        (StateBatch(stage_puts={b"s" * 16: STAGE._replace(final=False)}), False),
        (StateBatch(stage_puts={b"s" * 16: STAGE}), True),
        (StateBatch(stage_gones=[b"s" * 16]), False),
    ]
    for batch, at_once in changes:
        before = harness.files.log.count("rename")
        state.commit(batch)
        assert harness.files.log.count("rename") - before == at_once, batch
        found = read_snapshot(harness.files, harness.directory)
        if at_once:
            assert found is not None
            assert found.meta["commits"] == table_of(harness).commits
    harness.abandon_cleanly()
    found = read_snapshot(harness.files, harness.directory)
    assert found is not None
    assert any(key[:1] == b"p" for key, _ in found.rows), "an end in order writes one too"


def test_a_full_disk_keeps_no_commit_from_its_answer(harness: StorageHarness) -> None:
    harness.files.fail["writev"] = {harness.files._calls.get("writev", 0) + 1: 28}
    state_of(harness).commit(StateBatch(channel_puts={"c": ROW}))
    assert harness.store is not None
    assert "no new snapshot" in harness.store.keeper.problem
    harness.store.keeper.write()
    assert harness.store.keeper.problem == ""
    found = read_snapshot(harness.files, harness.directory)
    assert found is not None
    assert len(found.rows) == 1


def test_a_snapshot_of_another_version_is_refused_by_name_and_nothing_is_rebuilt(
    harness: StorageHarness,
) -> None:
    """A rebuild without it would drop what only it has."""
    work(harness)
    harness.abandon()
    path = harness.path(SNAPSHOT_NAME)
    line, _, rest = path.read_bytes().partition(b"\n")
    head = json.dumps(json.loads(line) | {"version": 99}).encode()
    path.write_bytes(b"%s\n%08x\n" % (head, crc32c(head)) + rest[9:])
    spoil(harness)
    before = {one: one.read_bytes() for one in harness.path("state").iterdir()}
    harness.files.reset()
    with pytest.raises(
        ForeignDirectory, match=r"snapshot object has format version 99.*use a newer zsq"
    ):
        harness.open()
    assert {one: one.read_bytes() for one in harness.path("state").iterdir()} == before
