"""Tests of power cuts before every change of the disk, with different losses of what was not
synced, and of calls that fail: for every n, the n-th call fails.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faulty_files import Change, Choose, FaultyFiles, PowerCut, keep_all, keep_none

from zsq.storage.directory.store import create_store, open_store
from zsq.storage.errors import DiskFull, ForeignDirectory, StoreFailed

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def work(harness: StorageHarness) -> None:
    """Make appends, syncs, checkpoints and new chunks: about 40 changes of the disk."""
    for turn in range(7):
        harness.publish(blocks=1 + turn % 3)
        if turn % 2:
            harness.sync()
        if turn % 4 == 3:
            harness.checkpoint()
    harness.publish()


def drop_one(number: int) -> Choose:
    return lambda i, change: 0 if i == number else len(change.data) or 1


def only_one(number: int) -> Choose:
    return lambda i, change: (len(change.data) or 1) if i == number else 0


def torn_at(unit: int) -> Choose:
    """Keep only the first `unit` bytes of each pending write."""
    return lambda i, change: min(unit, len(change.data)) if change.kind == "write" else 1


def last_torn(kept: int) -> Choose:
    def choose(i: int, change: Change) -> int:
        return min(kept, len(change.data)) if change.kind == "write" else 1

    return choose


LOSSES: dict[str, Callable[[], Choose]] = {
    "all kept": lambda: keep_all,
    "none kept": lambda: keep_none,
    "the oldest dropped": lambda: drop_one(0),
    "the second dropped": lambda: drop_one(1),
    "only the oldest": lambda: only_one(0),
    "only the second": lambda: only_one(1),
    "only the third": lambda: only_one(2),
    "torn at 8": lambda: torn_at(8),
    "torn at 64": lambda: torn_at(64),
    "torn at 100": lambda: torn_at(100),
    "torn at 512": lambda: torn_at(512),
}


def count_changes(harness: StorageHarness) -> int:
    before = harness.files.changes
    work(harness)
    return harness.files.changes - before


def run_until_cut(harness: StorageHarness, at: int) -> None:
    harness.files.power_cut_at = harness.files.changes + at
    with pytest.raises(PowerCut):
        work(harness)


@pytest.mark.parametrize("loss", LOSSES)
def test_promises_hold_after_a_power_cut_before_any_change(
    tmp_path: Path, harness: StorageHarness, loss: str
) -> None:
    total = count_changes(harness)
    assert total > 20
    assert harness.log.end > 3
    assert len(harness.log.chunks) > 2, "the work must roll"
    for at in range(1, total + 1):
        other = type(harness)(make(tmp_path, at))
        other.open()
        run_until_cut(other, at)
        other.crash(LOSSES[loss]())
        other.check()
        # Recovery synced everything that it uses, so a second crash changes nothing.
        other.crash(keep_none)
        again = other.check()
        other.sent = other.sent[: again[-1] + 1] if again else []
        other.publish()
        other.sync()
        other.check()
        other.crash(keep_all)  # bytes that were cut off must not come back after the new ones
        other.check()
        other.abandon()


def make(root: Path, number: int) -> Path:
    folder = root / f"run{number}"
    folder.mkdir()
    return folder


def test_promises_hold_after_a_power_cut_inside_recovery(
    tmp_path: Path, harness: StorageHarness
) -> None:
    """The first power cut left an incomplete write. Then the power is cut at each change that
    recovery makes, and the next recovery has the same result.
    """
    for at in range(1, 30):
        other = type(harness)(make(tmp_path, at))
        other.open()
        work(other)
        other.abandon()
        other.files.crash(torn_at(100))
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            finished = False
        for loss in (keep_none, keep_all):
            other.crash(loss)
            other.check()
        other.abandon()
    assert finished, "more points than recovery has changes"


def test_an_append_cut_at_any_byte_keeps_what_was_synced(
    tmp_path: Path, harness: StorageHarness
) -> None:
    harness.publish(blocks=2)
    harness.sync()
    harness.publish(blocks=2)
    size = sum(len(change.data) for change in harness.files.pending)
    assert size > 200
    for kept in range(size + 1):
        other = type(harness)(make(tmp_path, kept))
        other.open()
        other.publish(blocks=2)
        other.sync()
        other.publish(blocks=2)
        other.crash(last_torn(kept))
        found = other.check()
        assert found[:2] == [0, 1]
        assert other.log.end == len(found) * 3
        other.abandon()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_promises_hold_whatever_part_of_pending_writes_survives(
    tmp_path_factory: pytest.TempPathFactory, harness: StorageHarness, data: st.DataObject
) -> None:
    other = type(harness)(tmp_path_factory.mktemp("any"))
    other.open()
    cut = data.draw(st.integers(1, 45), label="power cut before change")
    other.files.power_cut_at = other.files.changes + cut
    with contextlib.suppress(PowerCut):
        work(other)
    other.crash(
        lambda i, change: data.draw(
            st.integers(0, max(1, len(change.data))), label=f"kept of {change.kind}"
        )
    )
    other.check()
    other.abandon()


def test_creation_is_whole_or_not_at_all(tmp_path: Path, harness: StorageHarness) -> None:
    from tests.storage.conftest import IDENTITY, SMALL

    finished = False
    for at in range(1, 40):
        for loss in (keep_none, keep_all):
            root = make(tmp_path, at * 2 + (loss is keep_all))
            files = FaultyFiles(str(root))
            files.power_cut_at = at
            try:
                create_store(files, f"{root}/t", IDENTITY, SMALL)
                finished = True
                assert files.pending == []
                assert files.log.count("sync_folder") == 3, (
                    "state, the folder under its temporary name, its parent"
                )
            except PowerCut:
                finished = False
            files.crash(loss)
            if not files.exists(f"{root}/t"):
                assert not finished
                with pytest.raises(ForeignDirectory):
                    open_store(files, f"{root}/t", SMALL, IDENTITY)
                create_store(files, f"{root}/t", IDENTITY, SMALL)
            store = open_store(files, f"{root}/t", SMALL, IDENTITY)
            assert store.log.end == 0
            store.close()
    assert finished


@pytest.mark.parametrize("call", ["writev", "sync", "truncate", "open_new", "sync_folder"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_at_any_step_loses_nothing_acknowledged(
    tmp_path: Path, harness: StorageHarness, call: str, code: int
) -> None:
    failures = 0
    for n in range(1, 60):
        other = type(harness)(make(tmp_path, n))
        other.open()
        other.files.fail[call] = {other.files._calls.get(call, 0) + n: code}
        if call == "truncate":  # only a failed write is cut back
            other.files.fail["writev"] = {other.files._calls.get("writev", 0) + 3: errno.ENOSPC}
        try:
            work(other)
        except (DiskFull, StoreFailed) as error:
            failures += 1
            refused_for_ever = isinstance(error, StoreFailed)
        else:
            other.abandon()
            if not other.files.fail[call].keys() & range(other.files._calls.get(call, 0) + 1):
                break  # the work makes fewer such calls
            continue  # the call was for an index, which can be made again
        if refused_for_ever:
            with pytest.raises(StoreFailed):
                other.log.append([], 0)
            with pytest.raises(StoreFailed):
                other.log.begin_sync()
        else:
            other.sent = other.sent[: len(other.offsets)]  # nothing of the refused append is stored
            other.publish()
            other.sync()
            other.check()
        for loss in (keep_all, keep_none):
            other.crash(loss)
            other.check()
        other.abandon()
    assert failures >= (1 if call in {"truncate", "open_new", "sync_folder"} else 5)


def test_a_failed_sync_is_never_followed_by_success(harness: StorageHarness) -> None:
    """Reads return the bytes that the failed sync covered, but these bytes are not on disk.
    Recovery writes them again before they count as stored.
    """
    harness.publish(blocks=2)
    harness.files.fail["sync"] = {harness.files._calls.get("sync", 0) + 1: errno.EIO}
    ticket = harness.log.begin_sync()
    with pytest.raises(StoreFailed):
        ticket.run()
    with pytest.raises(StoreFailed):
        harness.log.finish_sync(ticket)
    assert harness.log.synced_end == 0
    assert harness.store is not None
    harness.abandon()
    for fd in list(harness.files._nodes):  # the process ends, but the machine does not
        harness.files.close(fd)
    for fd in list(harness.files._locks):
        harness.files.close(fd)
    report = harness.open().report
    assert report.rewritten_bytes > 0
    assert harness.check() == [0, 1]
    harness.crash(keep_none)
    assert harness.check() == [0, 1], "recovery counted what was in the page cache only"


@pytest.mark.parametrize("written", [0, 1, 8, 63, 64, 65, 200])
def test_short_writes_are_cut_back(harness: StorageHarness, written: int) -> None:
    harness.publish()
    harness.sync()
    harness.files.short = {harness.files._calls["writev"] + 1: written}
    with pytest.raises(DiskFull):
        harness.publish(blocks=2)
    harness.sent = harness.sent[:1]
    assert harness.chunk_path().stat().st_size == 128 + harness.log.read(0, 1, 3)[0].length
    harness.publish()
    harness.sync()
    assert harness.check() == [0, 1]
    harness.crash(keep_none)
    assert harness.check() == [0, 1]


def test_blocks_of_a_refused_append_do_not_come_back(harness: StorageHarness) -> None:
    """The first block of a refused append was written completely before the disk was full. Then a
    power cut undoes the truncation.
    """
    harness.publish()
    harness.sync()
    size = harness.log.read(0, 1, 3)[0].length
    harness.files.short = {harness.files._calls["writev"] + 1: size + 10}
    with pytest.raises(DiskFull):
        harness.publish(blocks=2)
    harness.crash(lambda number, change: 0 if change.kind == "truncate" else len(change.data) or 1)
    assert harness.check() == [0]


def test_appends_below_the_reserve_are_refused_until_there_is_space(
    harness: StorageHarness,
) -> None:
    harness.files.free = 100
    with pytest.raises(DiskFull):
        harness.publish()
    harness.sent.clear()
    harness.files.free = 1 << 30
    harness.publish()
    harness.sync()
    assert harness.check() == [0]


def test_a_file_system_that_does_not_say_what_is_free_refuses_nothing(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free_bytes(path: str) -> int:
        raise OSError(errno.EIO, "by plan")

    monkeypatch.setattr(harness.files, "free_bytes", free_bytes)
    harness.publish()
    harness.sync()
    assert harness.check() == [0]
