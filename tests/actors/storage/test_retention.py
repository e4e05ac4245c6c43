"""Tests of retention inside storage: in which order things happen, what is refused, and what is
tried again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_extension import plain
from support.stage_bench import ONE, A, Bench, Thread

from zsq.actors.storage import retention
from zsq.actors.storage.channels import Channels
from zsq.actors.storage.retention import RetentionRunner
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.snapshot import read_snapshot, write_snapshot
from zsq.transport.block.block import Block, pack
from zsq.transport.errors import E_TOPIC_FULL, Refused, UsageError
from zsq.transport.settings import MAX_BYTES_MIN, MIB, Retention
from zsq.transport.wire import protocol as p

KEEP_ALL = {"keep_bytes": -1}


class House(Bench):
    """The retention of a topic whose chunks hold two blocks. `events` records what happened, in
    order.
    """

    def begin(self, **settings: Any) -> RetentionRunner:
        self.store.log.chunk_bytes = 2_600
        self.housekeeping = Thread()
        self.events: list[str] = []
        table = self.store.state.load()
        self.channels = Channels(self.store.log, self.state, table, "always")
        self.retention = RetentionRunner(
            self.store, bytes(16), self.state, self.channels, Retention(**settings), "storage t",
            self.housekeeping, self.tell, lambda: 0, lambda: 0,
            dropped_count=table.dropped, in_memory=False, extension=plain(self.store.log),
        )  # fmt: skip
        return self.retention

    def tell(self, envelope: Any, message: p.Wire) -> None:
        assert isinstance(message, p.Dropped)
        self.events.append(f"told {message.start}")

    def fill(self, blocks: int = 10) -> None:
        """Append blocks of ten messages, a little more than 1 KB each. They are durable and behind
        the checkpoint.
        """
        for _ in range(blocks):
            self.store.log.append([big()], time.time_ns())
        self.store.log.sync()
        self.state.want()
        self.commit_state()

    def finished(self, upto: int) -> None:
        """Add a channel that has committed the offset `upto`."""
        self.channels.rows["c"] = self.state.batch.channel_puts["c"] = ChannelRow(upto)
        self.channels.owners["c"] = A
        self.state.want()
        self.commit_state()
        assert self.channels.floor() == upto

    def snapshot(self) -> None:
        """Let the thread of the state store do its jobs."""
        self.state_thread.run()
        self.state.on_results()

    def chunk_files(self) -> list[int]:
        return [
            int(name[:20]) for name in sorted(os.listdir(self.directory)) if name.endswith(".chunk")
        ]

    def clean(self) -> None:
        self.housekeeping.run()
        for then, value in self.housekeeping.results():
            then(value)


def big(size: int = 100) -> Block:
    return pack([b"." * size] * 10)


@pytest.fixture
def housekeeping(tmp_path: Path) -> Iterator[House]:
    one = House(str(tmp_path / "t"))
    yield one
    one.store.close()


def test_the_new_start_is_committed_then_announced_then_files_are_removed(
    housekeeping: House,
) -> None:
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(65)
    assert housekeeping.chunk_files() == [0, 20, 40, 60, 80]
    harness.tick()
    assert housekeeping.store.log.start == 0, "not before it is committed"
    assert housekeeping.state.batch.start == 60
    harness.tick()
    housekeeping.state.commit(housekeeping.store.log.synced_end, {})
    housekeeping.state_thread.run()
    assert housekeeping.store.state.load().start == 60
    assert (housekeeping.store.log.start, housekeeping.events, housekeeping.housekeeping.jobs) == (
        0,
        [],
        [],
    )
    housekeeping.state.on_results()
    assert (housekeeping.store.log.start, housekeeping.events) == (60, ["told 60"])
    assert housekeeping.chunk_files() == [0, 20, 40, 60, 80], "the loop removes no file"
    harness.tick()
    assert len(housekeeping.housekeeping.jobs) == 1
    housekeeping.clean()
    assert housekeeping.chunk_files() == [60, 80]
    shown = harness.statistics()
    assert (shown["dropped_count"], shown["finished_bytes"]) == (0, 0)
    assert shown["removed_bytes"] > 6 * 1_000
    assert shown["log_bytes"] == sum(
        (Path(housekeeping.directory) / f"{base:020d}.chunk").stat().st_size for base in (60, 80)
    )


def test_no_chunk_is_removed_before_the_new_start_is_committed(housekeeping: House) -> None:
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(100)
    harness.tick()
    housekeeping.state.commit(housekeeping.store.log.synced_end, {})
    housekeeping.state_thread.jobs.clear()  # the commit was not carried out
    harness.tick()
    assert (housekeeping.store.log.start, housekeeping.housekeeping.jobs) == (0, [])


def test_messages_finished_but_not_committed_are_not_removed(housekeeping: House) -> None:
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(0)
    housekeeping.channels.rows["c"] = ChannelRow(100)  # the row is saved, but not committed
    housekeeping.state.batch.channel_puts["c"] = housekeeping.channels.rows["c"]
    harness.tick()
    assert housekeeping.state.batch.start is None


def test_a_seek_backwards_keeps_chunks_before_it_is_committed(housekeeping: House) -> None:
    """The seek may already be on its way to the disk, and may be answered before the removal is
    committed.
    """
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(100)
    housekeeping.channels.rows["c"] = housekeeping.state.batch.channel_puts["c"] = ChannelRow(45)
    harness.tick()
    assert housekeeping.state.batch.start == 40


def test_no_chunk_is_removed_before_the_checkpoint_has_passed_it(housekeeping: House) -> None:
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(100)
    housekeeping.state.applied = 30
    harness.tick()
    assert housekeeping.state.batch.start == 20


def test_no_chunk_is_removed_before_a_snapshot_covers_it(
    housekeeping: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the snapshot, a repair of a damaged state store would not find the producers and
    transactions that the removed chunks contained.
    """
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.state.keeper = housekeeping.store.keeper
    housekeeping.fill(5)
    housekeeping.finished(45)
    assert housekeeping.store.keeper.covered == 50
    housekeeping.fill(5)
    housekeeping.finished(100)
    monkeypatch.setattr("zsq.storage.state.state_keeper.write_snapshot", full)
    harness.tick()
    assert housekeeping.state.batch.start == 40, "what the last one counts goes, and makes room"
    housekeeping.snapshot()
    housekeeping.commit_state()
    housekeeping.clean()
    assert "no log files are removed beyond" in housekeeping.state.alarm()
    assert (housekeeping.store.log.start, housekeeping.store.keeper.covered) == (40, 50)
    harness.tick()
    assert housekeeping.state_thread.jobs == [], "not at once"
    monkeypatch.setattr("zsq.storage.state.state_keeper.write_snapshot", write_snapshot)
    harness._snapshot_retry_ns = 0
    harness.tick()
    assert housekeeping.state.batch.start is None
    housekeeping.snapshot()
    housekeeping.commit_state()
    assert (
        housekeeping.store.log.start,
        housekeeping.store.keeper.covered,
        housekeeping.state.alarm(),
    ) == (80, 100, "")
    applied = read_snapshot(housekeeping.store.files, housekeeping.directory)
    assert applied is not None
    assert applied.meta["applied"] == 100


def test_an_incomplete_snapshot_is_removed(
    housekeeping: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk needs the space of the incomplete snapshot, in particular for the commit that
    lets chunks be removed.
    """
    write_file = housekeeping.store.files.write_file

    def half(path: str, data: bytes) -> None:
        write_file(path, data[: len(data) // 2])
        full()

    before = sorted(os.listdir(housekeeping.directory))
    monkeypatch.setattr(housekeeping.store.files, "write_file", half)
    with pytest.raises(OSError, match="No space"):
        write_snapshot(housekeeping.store.files, housekeeping.directory, b"x" * 1000)
    assert sorted(os.listdir(housekeeping.directory)) == before


def full(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_dropped_unfinished_messages_are_counted_and_remembered(
    housekeeping: House, caplog: pytest.LogCaptureFixture
) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, when_full="drop-oldest", **KEEP_ALL)
    housekeeping.store.log.chunk_bytes = MIB
    for _ in range(12):
        housekeeping.store.log.append([big(90_000)], time.time_ns())
    housekeeping.store.log.sync()
    housekeeping.finished(5)
    harness.tick()
    start = housekeeping.state.batch.start
    assert start is not None
    housekeeping.commit_state()
    housekeeping.clean()
    assert 30 <= start <= 50
    assert harness.statistics()["dropped_count"] == start - 5
    assert f"up to {start - 5} messages below offset {start}" in caplog.text
    assert housekeeping.store.state.load().dropped == start - 5
    assert harness.statistics()["log_bytes"] <= MAX_BYTES_MIN + 1_000


def test_messages_that_wait_for_a_first_channel_are_dropped_too(housekeeping: House) -> None:
    harness = housekeeping.begin(max_age_s=1, when_full="drop-oldest", **KEEP_ALL)
    housekeeping.store.log.append([big()], time.time_ns() - 10**11)
    housekeeping.store.log.sync()
    housekeeping.state.want()
    housekeeping.commit_state()
    harness.tick()  # this seals the current chunk, because all of it is too old
    assert housekeeping.store.log.chunks == (0, 10)
    harness.tick()
    housekeeping.snapshot()
    housekeeping.commit_state()
    housekeeping.clean()
    assert (
        housekeeping.store.log.start,
        housekeeping.channels.waiting,
        housekeeping.channels.floor(),
    ) == (10, 10, 10)
    assert harness.statistics()["dropped_count"] == 10


def test_files_that_cannot_be_removed_are_tried_again(
    housekeeping: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = housekeeping.begin(keep_bytes=0)
    housekeeping.fill()
    housekeeping.finished(100)
    harness.tick()
    housekeeping.commit_state()
    remove = housekeeping.store.files.remove

    def fail(path: str) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(housekeeping.store.files, "remove", fail)
    housekeeping.clean()
    assert housekeeping.chunk_files()[0] == 0
    assert housekeeping.store.log.start == 80
    monkeypatch.setattr(housekeeping.store.files, "remove", remove)
    harness.tick()
    assert not housekeeping.housekeeping.jobs, "not at once"
    harness._retry_ns = 0
    harness.tick()
    housekeeping.clean()
    assert housekeeping.chunk_files()[0] == 80


def test_a_full_topic_refuses_publishes_until_channels_have_committed(housekeeping: House) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    housekeeping.finished(0)
    for _ in range(MAX_BYTES_MIN // big(50_000).length + 1):
        # The last block is accepted too, although it does not fit: an append also holds blocks of
        # other producers.
        harness.admit()
        housekeeping.store.log.append([big(50_000)], time.time_ns())
    with pytest.raises(Refused, match="the topic's bound is reached") as refusal:
        harness.admit()
    assert refusal.value.code == E_TOPIC_FULL
    assert harness.statistics()["refused_count"] == 1
    housekeeping.store.log.sync()
    housekeeping.finished(20)
    harness._measured_ns = 0
    harness.admit()
    harness.admit_bytes(10_000)
    with pytest.raises(Refused, match="2000000 more bytes would exceed the topic's bound"):
        harness.admit_bytes(2_000_000)
    harness.configure(Retention(keep_bytes=-1))
    harness.admit_bytes(1 << 40)


def test_a_refusal_is_logged_at_once_and_then_once_a_minute(
    housekeeping: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = housekeeping.begin()
    now = [retention.FULL_SAID_NS]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    for later_ns in (0, 1, retention.FULL_SAID_NS - 2, 1):
        now[0] += later_ns
        harness._full("it is full", 1)
    assert [int(record.message.split("(")[1].split()[0]) for record in caplog.records] == [1, 4]


def test_bytes_written_since_the_last_measurement_count(housekeeping: House) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    housekeeping.finished(0)
    harness._measured_ns = time.monotonic_ns() + 10**12  # there is no measurement during this test
    for _ in range(9):
        harness.admit()
        housekeeping.store.log.append([big(100_000)], time.time_ns())
    with pytest.raises(Refused):
        harness.admit()


def test_delayed_messages_count_toward_the_bound(housekeeping: House) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    delayed = [MAX_BYTES_MIN - 1]
    harness.delayed_bytes = lambda: delayed[0]
    harness.admit()
    delayed[0] += 1
    with pytest.raises(Refused, match=r"\(8388608 of them are delayed\)"):
        harness.admit()


def test_staged_rows_count_when_pushed_and_not_again_at_their_commit(housekeeping: House) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, **KEEP_ALL)
    harness.staged_bytes = lambda: housekeeping.harness.core.staged_bytes
    housekeeping.harness.admit = harness.admit_staged
    part = housekeeping.sealed(
        ONE, *(pack([b"." * 900_000], sequence=number) for number in range(3))
    )
    assert harness.staged_bytes() == part[3]
    housekeeping.finished(0)
    housekeeping.store.log.append([big(600_000)], time.time_ns())
    harness._measured_ns = 0
    for admit, total in (
        (harness.admit_bytes, MAX_BYTES_MIN - 6_000_000),
        (harness.admit_staged, MAX_BYTES_MIN - 6_000_000),
    ):
        with pytest.raises(Refused, match="are staged") as refusal:
            admit(total)
        assert refusal.value.code == E_TOPIC_FULL
    told = housekeeping.say(p.Commit(8, "app", 1, "app", (part,)))
    assert p.Done(8, {"first_offset": 10, "messages": 3, "repeated": False}) in told
    assert harness.staged_bytes() == 0


def test_with_drop_oldest_the_bound_is_for_staged_rows_alone(housekeeping: House) -> None:
    harness = housekeeping.begin(max_bytes=MAX_BYTES_MIN, when_full="drop-oldest")
    harness.staged_bytes = lambda: MAX_BYTES_MIN - 10
    harness.admit_staged(10)
    with pytest.raises(Refused, match="are staged already"):
        harness.admit_staged(11)


def test_invalid_settings_are_refused_and_change_nothing(housekeeping: House) -> None:
    harness = housekeeping.begin(keep_bytes=7)
    with pytest.raises(UsageError):
        harness.configure(Retention(max_age_s=5))
    assert harness.policy.keep_bytes == 7


def test_the_size_of_chunks_follows_the_bound(housekeeping: House) -> None:
    harness = housekeeping.begin()
    harness._usual_chunk_bytes = 256 * MIB
    for max_bytes, expected in ((MAX_BYTES_MIN, MIB), (80 * MIB, 10 * MIB), (-1, 256 * MIB)):
        harness.configure(Retention(max_bytes=max_bytes))
        assert housekeeping.store.log.chunk_bytes == expected
