"""Retention inside storage: in which order things happen, what is refused, and what is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage_bench import ONE, A, Bench, Thread

from zsq.actors.channel_desk import ChannelDesk
from zsq.actors.retention_desk import RetentionDesk
from zsq.storage.retention import MAX_BYTES_MIN, MIB
from zsq.storage.snapshot import read_snapshot, write_snapshot
from zsq.transport import protocol as p
from zsq.transport.block import Block, pack
from zsq.transport.errors import E_TOPIC_FULL, Refused, UsageError

KEEP_ALL = {"keep_bytes": -1}


class House(Bench):
    """The retention desk of a topic whose chunks hold two blocks; `events` notes what happened in order."""

    def begin(self, **settings: Any) -> RetentionDesk:
        self.store.log.chunk_bytes = 2_600
        self.house = Thread()
        self.events: list[str] = []
        table = self.store.state.load()
        self.channels = ChannelDesk(self.store.log, self.state, table, "always")
        self.retention = RetentionDesk(
            self.store, bytes(16), self.state, self.channels, settings, "storage t", lambda: self.house, self.tell, table.dropped
        )
        return self.retention

    def tell(self, envelope: Any, word: p.Wire) -> None:
        assert isinstance(word, p.Dropped)
        self.events.append(f"told {word.start}")

    def fill(self, blocks: int = 10) -> None:
        """Ten messages a block, a little over 1 KB; durable, and behind the checkpoint."""
        for _ in range(blocks):
            self.store.log.append([big()], time.time_ns())
        self.store.log.sync()
        self.state.wanted = True
        self.commit_state()

    def finished(self, upto: int) -> None:
        """There is a channel, and it has committed that."""
        self.channels.rows["c"] = self.state.batch.channel_puts["c"] = {"next": upto, "paused": False, "counters": {}}
        self.channels.owners["c"] = A
        self.state.wanted = True
        self.commit_state()
        assert self.channels.floor() == upto

    def snapshot(self) -> None:
        """What was asked of the state's thread is done."""
        self.state_thread.run()
        self.state.on_results()

    def chunk_files(self) -> list[int]:
        return [int(name[:20]) for name in sorted(os.listdir(self.directory)) if name.endswith(".chunk")]

    def clean(self) -> None:
        self.house.run()
        for then, value in self.house.results():
            then(value)


def big(size: int = 100) -> Block:
    return pack([b"." * size] * 10)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    one = House(str(tmp_path / "t"))
    yield one
    one.store.close()


def test_the_start_is_committed_then_told_then_files_go(house: House) -> None:
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(65)
    assert house.chunk_files() == [0, 20, 40, 60, 80]
    desk.tick()
    assert house.store.log.start == 0, "not before it is committed"
    assert house.state.batch.start == 60
    desk.tick()
    house.state.commit(house.store.log.synced_end, {})
    house.state_thread.run()
    assert house.store.state.load().start == 60
    assert (house.store.log.start, house.events, house.house.jobs) == (0, [], [])
    house.state.on_results()
    assert (house.store.log.start, house.events) == (60, ["told 60"])
    assert house.chunk_files() == [0, 20, 40, 60, 80], "the loop removes no file"
    desk.tick()
    assert len(house.house.jobs) == 1
    house.clean()
    assert house.chunk_files() == [60, 80]
    shown = desk.statistics()
    assert (shown["dropped_count"], shown["finished_bytes"]) == (0, 0)
    assert shown["removed_bytes"] > 6 * 1_000
    assert shown["log_bytes"] == sum((Path(house.directory) / f"{base:020d}.chunk").stat().st_size for base in (60, 80))


def test_a_commit_that_finds_the_disk_full_removes_nothing(house: House) -> None:
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(100)
    desk.tick()
    house.state.commit(house.store.log.synced_end, {})
    house.state_thread.jobs.clear()  # it never came to it
    desk.tick()
    assert (house.store.log.start, house.house.jobs) == (0, [])


def test_only_what_channels_have_committed_counts(house: House) -> None:
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(0)
    house.channels.rows["c"]["next"] = 100  # said, not committed
    house.state.batch.channel_puts["c"] = house.channels.rows["c"]
    desk.tick()
    assert house.state.batch.start is None


def test_a_seek_backwards_holds_before_it_is_committed(house: House) -> None:
    """It may be on its way to the disk already, and be answered before the removal is committed."""
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(100)
    house.channels.rows["c"] = house.state.batch.channel_puts["c"] = {"next": 45, "paused": False, "counters": {}}
    desk.tick()
    assert house.state.batch.start == 40


def test_the_checkpoint_must_have_passed_it(house: House) -> None:
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(100)
    house.state.applied = 30
    desk.tick()
    assert house.state.batch.start == 20


def test_no_chunk_goes_before_a_snapshot_counts_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a store that is damaged later would be made again without the producers and transactions that lay there."""
    desk = house.begin(keep_bytes=0)
    house.state.keeper = house.store.keeper
    house.fill(5)
    house.finished(45)
    assert house.store.keeper.covered == 50
    house.fill(5)
    house.finished(100)
    monkeypatch.setattr("zsq.storage.state_keeper.write_snapshot", full)
    desk.tick()
    assert house.state.batch.start == 40, "what the last one counts goes, and makes room"
    house.snapshot()
    house.commit_state()
    house.clean()
    assert "no log files are removed beyond" in house.state.alarm()
    assert (house.store.log.start, house.store.keeper.covered) == (40, 50)
    desk.tick()
    assert house.state_thread.jobs == [], "not at once"
    monkeypatch.setattr("zsq.storage.state_keeper.write_snapshot", write_snapshot)
    desk._snapshot_retry_ns = 0
    desk.tick()
    assert house.state.batch.start is None
    house.snapshot()
    house.commit_state()
    assert (house.store.log.start, house.store.keeper.covered, house.state.alarm()) == (80, 100, "")
    applied = read_snapshot(house.store.files, house.directory)
    assert applied is not None
    assert applied.meta["applied"] == 100


def test_half_a_snapshot_does_not_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk its space is needed, for the commit that gives some back too."""
    write_file = house.store.files.write_file

    def half(path: str, data: bytes) -> None:
        write_file(path, data[: len(data) // 2])
        full()

    before = sorted(os.listdir(house.directory))
    monkeypatch.setattr(house.store.files, "write_file", half)
    with pytest.raises(OSError, match="No space"):
        write_snapshot(house.store.files, house.directory, b"x" * 1000)
    assert sorted(os.listdir(house.directory)) == before


def full(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_unfinished_ones_are_dropped_counted_and_remembered(house: House, caplog: pytest.LogCaptureFixture) -> None:
    desk = house.begin(max_bytes=MAX_BYTES_MIN, when_full="drop-oldest", **KEEP_ALL)
    house.store.log.chunk_bytes = MIB
    for _ in range(12):
        house.store.log.append([big(90_000)], time.time_ns())
    house.store.log.sync()
    house.finished(5)
    desk.tick()
    start = house.state.batch.start
    assert start is not None
    house.commit_state()
    house.clean()
    assert 30 <= start <= 50
    assert desk.statistics()["dropped_count"] == start - 5
    assert f"up to {start - 5} messages below offset {start}" in caplog.text
    assert house.store.state.load().dropped == start - 5
    assert desk.statistics()["log_bytes"] <= MAX_BYTES_MIN + 1_000


def test_what_waits_for_a_first_channel_is_dropped_too(house: House) -> None:
    desk = house.begin(max_s=1, when_full="drop-oldest", **KEEP_ALL)
    house.store.log.append([big()], time.time_ns() - 10**11)
    house.store.log.sync()
    house.state.wanted = True
    house.commit_state()
    desk.tick()  # seals the ongoing chunk, all of which is too old
    assert house.store.log.chunks == (0, 10)
    desk.tick()
    house.snapshot()
    house.commit_state()
    house.clean()
    assert (house.store.log.start, house.channels.waiting, house.channels.floor()) == (10, 10, 10)
    assert desk.statistics()["dropped_count"] == 10


def test_files_that_cannot_be_removed_are_tried_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = house.begin(keep_bytes=0)
    house.fill()
    house.finished(100)
    desk.tick()
    house.commit_state()
    remove = house.store.files.remove

    def fail(path: str) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(house.store.files, "remove", fail)
    house.clean()
    assert house.chunk_files()[0] == 0
    assert house.store.log.start == 80
    monkeypatch.setattr(house.store.files, "remove", remove)
    desk.tick()
    assert not house.house.jobs, "not at once"
    desk._retry_ns = 0
    desk.tick()
    house.clean()
    assert house.chunk_files()[0] == 80


def test_a_full_topic_refuses_until_channels_have_committed(house: House) -> None:
    desk = house.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    house.finished(0)
    for _ in range(MAX_BYTES_MIN // big(50_000).length + 1):
        desk.admit()  # also the last one, which does not fit: an append holds blocks of others too
        house.store.log.append([big(50_000)], time.time_ns())
    with pytest.raises(Refused, match="the topic's bound is reached") as refusal:
        desk.admit()
    assert refusal.value.code == E_TOPIC_FULL
    assert desk.statistics()["refused_count"] == 1
    house.store.log.sync()
    house.finished(20)
    desk._measured_ns = 0
    desk.admit()
    desk.admit_bytes(10_000)
    with pytest.raises(Refused, match="2000000 bytes more would pass"):
        desk.admit_bytes(2_000_000)
    desk.configure(KEEP_ALL)
    desk.admit_bytes(1 << 40)


def test_between_two_measures_what_was_written_counts(house: House) -> None:
    desk = house.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    house.finished(0)
    desk._measured_ns = time.monotonic_ns() + 10**12  # none in this test
    for _ in range(9):
        desk.admit()
        house.store.log.append([big(100_000)], time.time_ns())
    with pytest.raises(Refused):
        desk.admit()


def test_what_is_delayed_counts(house: House) -> None:
    desk = house.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    delayed = [MAX_BYTES_MIN - 1]
    desk.delayed_bytes = lambda: delayed[0]
    desk.admit()
    delayed[0] += 1
    with pytest.raises(Refused, match=r"\(8388608 of them are delayed\)"):
        desk.admit()


def test_a_commit_of_staged_rows_is_refused_as_well(house: House) -> None:
    desk = house.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    house.desk.admit = desk.admit_bytes
    part = house.sealed(ONE, *(pack([b"." * 900_000], sequence=number) for number in range(3)))
    house.finished(0)
    house.store.log.append([big(600_000)], time.time_ns())
    with pytest.raises(Refused) as refusal:
        house.say(p.Commit(7, "app", 1, "app", (part,)))
    assert refusal.value.code == E_TOPIC_FULL
    assert house.store.log.end == 10
    house.store.log.sync()
    house.finished(10)
    desk._measured_ns = 0
    told = house.say(p.Commit(8, "app", 1, "app", (part,)))
    assert p.Done(8, {"first_offset": 10, "messages": 3, "repeated": False}) in told


def test_settings_that_make_no_sense_change_nothing(house: House) -> None:
    desk = house.begin(keep_bytes=7)
    with pytest.raises(UsageError):
        desk.configure({"max_s": 5})
    assert desk.policy.keep_bytes == 7


def test_a_small_bound_makes_chunks_smaller_and_a_larger_one_gives_that_back(house: House) -> None:
    desk = house.begin()
    desk._usual_chunk_bytes = 256 * MIB
    for max_bytes, expected in ((MAX_BYTES_MIN, MIB), (80 * MIB, 10 * MIB), (-1, 256 * MIB)):
        desk.configure({"max_bytes": max_bytes})
        assert house.store.log.chunk_bytes == expected
