"""Tests of commits whose parts are first merged: when each request is answered, and that nothing
takes away their parts meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage_bench import ONE, TWO, Bench, blocks, seal_of

from zsq.actors.storage import staging as commit_queue
from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log import group, merging
from zsq.transport.errors import Refused
from zsq.transport.wire import protocol as p

THREE = b"3" * 16
FOUR = b"4" * 16


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return storage in which two parts already need a merge, and each block is a step
    of its own.
    """
    monkeypatch.setattr(group, "GROUP_APPEND_FILES_MAX", 1)
    monkeypatch.setattr(merging, "STEP_BYTES", 1)
    monkeypatch.setattr(merging, "PIECE_BYTES", 1)
    one = Bench(str(tmp_path / "t"))
    yield one
    one.store.close()


def merge_all(bench: Bench) -> list[p.Wire]:
    """Run all steps, and remove the files that were merged."""
    told: list[p.Wire] = []
    while bench.stage_thread.jobs:
        told += bench.sync_stages()
    return told


def done(request: int, messages: int, *, repeated: bool = False) -> p.Done:
    return p.Done(request, {"first_offset": 0, "messages": messages, "repeated": repeated})


def two_parts(bench: Bench, version: int = 1) -> tuple[p.StagePart, p.StagePart]:
    return bench.sealed(ONE, *blocks(3), version=version), bench.sealed(
        TWO, *blocks(1), version=version
    )


def test_a_commit_is_answered_when_its_parts_are_merged_into_the_log(bench: Bench) -> None:
    parts = two_parts(bench)
    assert bench.say(p.Commit(9, "app", 1, "app", parts)) == []
    for _ in range(3):
        assert bench.sync_stages() == []
        assert bench.store.log.end == 0
    assert bench.sync_stages() == [p.Head(8), done(9, 8)]
    assert len(bench.files_now()) == 3, (
        "the merged one goes next, the others when the state says that they are gone"
    )
    merge_all(bench)
    assert len(bench.files_now()) == 2
    bench.commit_state()
    assert bench.files() == []
    found = [block.body.values() for block in bench.store.log.read(0, 1 << 20, 8)]
    assert found == [block.body.values() for block in (*blocks(3), *blocks(1))]


def test_the_offsets_of_a_merge_are_promised_until_it_ends(bench: Bench) -> None:
    """Otherwise publishes could use them, and the messages of the commit would get offsets that the
    bucket has not reserved.
    """
    parts = two_parts(bench)
    assert bench.extension.promised() == 0
    bench.say(p.Commit(9, "app", 1, "app", parts))
    for _ in range(3):
        assert bench.extension.promised() == 8
        bench.sync_stages()
    bench.sync_stages()
    assert (bench.extension.promised(), bench.store.log.end) == (0, 8)


def test_requests_about_a_transaction_wait_for_its_commit(bench: Bench) -> None:
    parts = two_parts(bench)
    bench.say(p.Commit(9, "app", 1, "app", parts))
    for message in (
        p.Commit(10, "app", 1, "app", parts),
        p.Abort(11, "app", 1, (ONE,)),
        p.Abort(12, "", 0, (TWO,)),
        p.Abort(0, "app", 1, ()),
        p.Commit(13, "app", 0, "app", ()),
        p.Commit(14, "app", 2, "app", ()),
    ):
        assert bench.say(message) == []
    assert bench.say(p.Commit(15, "other", 1, "app", ())) == [], "this one waits for the state only"
    assert bench.commit_state() == [
        p.Done(15, {"first_offset": 0, "messages": 0, "repeated": False})
    ]
    assert merge_all(bench) == [p.Head(8), done(9, 8)]
    assert bench.commit_state() == [
        done(10, 8, repeated=True),
        p.Done(11, {"dropped": 0, "committed": True, "version": 1}),
        p.Done(12, {"dropped": 0, "committed": False, "version": -1}),
        p.Done(13, {"first_offset": -1, "messages": 0, "repeated": True}),
        p.Done(14, {"first_offset": 8, "messages": 0, "repeated": False}),
    ]
    assert bench.store.log.end == 8


def test_stages_of_a_running_commit_do_not_expire(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = two_parts(bench)
    bench.sealed(THREE, *blocks(1), version=2)
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.say(p.Bye())
    monkeypatch.setattr(bench.harness, "_sealed_kept_s", -1.0)
    bench.harness.expire()
    assert set(bench.store.staging.stages()) >= {ONE, TWO}
    assert merge_all(bench) == [p.Head(8), done(9, 8)]
    bench.harness.expire()
    assert set(bench.store.staging.stages()) <= {THREE}


def test_commits_are_carried_out_one_at_a_time_and_in_order(bench: Bench) -> None:
    parts = two_parts(bench)
    others = []
    for stage in (THREE, FOUR):
        bench.say(p.OpenStage(1, stage, "other", 1, "app", 0))
        bench.push(stage, *blocks(2))
        others.append(_seal(bench, stage))
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.say(p.Commit(10, "other", 1, "app", tuple(others)))
    assert len(bench.stage_thread.jobs) == 1
    told = merge_all(bench)
    assert [message for message in told if isinstance(message, p.Done)] == [
        done(9, 8),
        p.Done(10, {"first_offset": 8, "messages": 8, "repeated": False}),
    ]


def _seal(bench: Bench, stage: bytes) -> p.StagePart:
    message = seal_of(stage, *blocks(2))
    bench.say(message)
    bench.sync_stages()
    bench.commit_state()
    return stage, 2, 4, message.size_bytes, message.checksum


@pytest.mark.parametrize(
    ("error", "code"), [(DiskFull("full"), "E_DISK_FULL"), (Damaged("bad"), "E_CHECKSUM")]
)
@pytest.mark.parametrize("where", ["merge", "commit"])
def test_a_failed_commit_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, code: str
) -> None:
    parts = two_parts(bench)
    names = bench.files_now()
    calls = []

    def fail(*arguments: Any) -> None:
        calls.append(1)
        raise error

    with monkeypatch.context() as patch:
        if where == "merge":
            patch.setattr(merging.Merge, "_copy", fail)
        else:
            patch.setattr(bench.store.log, "append_group", fail)
        bench.say(p.Commit(9, "app", 1, "app", parts))
        bench.say(p.Commit(10, "app", 1, "app", parts))
        told = merge_all(bench)
    assert [
        (message.request, message.code) for message in told if isinstance(message, p.Failed)
    ] == [(9, code), (10, code)]
    assert len(calls) == 1, "who asked again is answered the same"
    assert bench.files_now() == names
    bench.say(p.Commit(11, "app", 1, "app", parts))
    assert merge_all(bench) == [p.Head(8), done(11, 8)]


def test_an_abort_that_waits_for_a_failed_commit_is_carried_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = two_parts(bench)

    def fail(*arguments: Any) -> None:
        raise DiskFull("full")

    monkeypatch.setattr(merging.Merge, "_copy", fail)
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.say(p.Abort(10, "app", 1, ()))
    assert isinstance(merge_all(bench)[0], p.Failed)
    assert bench.commit_state() == [p.Done(10, {"dropped": 2, "committed": False, "version": -1})]
    assert bench.files() == []


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("how", ["deleted", "stopped"])
def test_the_end_of_the_topic_ends_a_running_commit(bench: Bench, how: str, steps: int) -> None:
    parts = two_parts(bench)
    names = bench.files_now()
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.say(p.Commit(10, "app", 1, "app", parts))
    for _ in range(steps):
        bench.sync_stages()
    if how == "deleted":
        bench.harness.hold(True)
    else:
        bench.harness.stop()
    assert not bench.harness.is_idle()
    told = merge_all(bench)
    assert [
        (message.request, message.code) for message in told if isinstance(message, p.Failed)
    ] == ([(9, "E_CLOSING"), (10, "E_CLOSING")] if how == "deleted" else [])
    assert bench.harness.is_idle()
    assert bench.files_now() == names
    assert bench.store.log.end == 0
    if how == "deleted":
        bench.harness.hold(False)
    else:
        assert bench.say(p.Commit(10, "app", 1, "app", parts)) == [], "the next process gets it"
        bench.restart()
    bench.say(p.Commit(11, "app", 1, "app", parts))
    assert merge_all(bench) == [p.Head(8), done(11, 8)]


def test_a_failed_sync_of_a_commit_ends_storage(bench: Bench) -> None:
    bench.say(p.Commit(9, "app", 1, "app", two_parts(bench)))
    ((tag, _),) = bench.stage_thread.jobs
    bench.stage_thread.jobs = [(tag, lambda: 1 / 0)]
    with pytest.raises(StoreFailed):
        bench.sync_stages()


def test_a_restart_during_a_merge_keeps_the_parts(bench: Bench) -> None:
    parts = two_parts(bench)
    names = bench.files_now()
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.sync_stages()
    assert len(bench.files_now()) == 3
    bench.restart()
    assert bench.files_now() == names
    bench.say(p.Commit(10, "app", 1, "app", parts))
    assert merge_all(bench) == [p.Head(8), done(10, 8)]


def test_the_number_of_waiting_commits_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_queue, "WAITING_MAX", 1)
    parts = two_parts(bench)
    bench.say(p.Commit(9, "app", 1, "app", parts))
    bench.say(p.Commit(10, "app", 1, "app", parts))
    with pytest.raises(Refused, match="E_LIMIT"):
        bench.say(p.Commit(11, "app", 1, "app", parts))
