"""Tests of storage's answers to writers of stages: after which sync and which commit each answer is
sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage_bench import ONE, THREE, TWO, A, Bench, blocks, seal_of

from zsq.actors.runtime.port import Mail
from zsq.actors.settings import options
from zsq.actors.storage import staging as staging_module
from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log.transactions import JOB, JOB_KEPT_NS
from zsq.transport.block.block import Block
from zsq.transport.errors import E_DISK_FULL, CorruptBlock, Refused, UsageError, from_wire
from zsq.transport.wire import protocol as p


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(str(tmp_path / "t"))
    yield one
    one.store.close()


# Seals


def test_a_seal_is_answered_after_sync_and_commit(bench: Bench) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    assert bench.push(ONE, *blocks(3)) == [p.Staged(ONE, 3)]
    assert bench.say(seal_of(ONE, *blocks(3))) == []
    assert not bench.state.may_commit()
    assert bench.sync_stages() == []
    assert bench.store.state.load().stages == {}
    assert bench.commit_state() == [p.Done(5, {"messages": 6})]
    assert bench.store.state.load().stages[ONE].blocks == 3


def test_a_stage_that_is_dropped_while_it_is_sealed_stays_dropped(bench: Bench) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    bench.push(ONE, *blocks(3))
    bench.say(seal_of(ONE, *blocks(3)))
    (told,) = bench.say(p.Abort(6, "", 0, (ONE,)))
    assert isinstance(told, p.Failed)
    assert told.request == 5
    assert bench.sync_stages() == []
    assert bench.commit_state() == [p.Done(6, {"dropped": 1, "committed": False, "version": -1})]
    assert bench.store.state.load().stages == {}
    assert bench.files() == []


def test_files_of_dropped_stages_are_removed_by_the_thread(bench: Bench) -> None:
    """A large file takes long to remove, and publishers must not wait for it."""
    bench.sealed(ONE, *blocks(3))
    bench.say(p.Abort(6, "", 0, (ONE,)))
    bench.commit_state()
    assert bench.files_now() != []
    bench.sync_stages()
    assert bench.files_now() == []


def test_a_stage_dropped_before_its_seal_begins_is_not_sealed(bench: Bench) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    bench.push(ONE, *blocks(3))
    bench.wire.hear(seal_of(ONE, *blocks(3)), A)
    (told,) = bench.say(p.Abort(0, "app", 1, ()))
    assert isinstance(told, p.Failed)
    assert bench.stage_thread.jobs == []


def test_a_failed_sync_of_a_stage_ends_storage(bench: Bench) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    bench.push(ONE, *blocks(1))
    bench.say(seal_of(ONE, *blocks(1)))
    (tag, _), *_ = bench.stage_thread.jobs
    bench.stage_thread.jobs = [(tag, lambda: 1 / 0)]
    with pytest.raises(StoreFailed):
        bench.sync_stages()


# Commits


def test_a_commit_is_answered_when_it_is_in_the_log_and_the_topic_knows(bench: Bench) -> None:
    part = bench.sealed(ONE, *blocks(3))
    bench.sealed(TWO, *blocks(1))
    told = bench.say(p.Commit(9, "app", 1, "app", (part,)))
    assert told == [p.Head(6), p.Done(9, {"first_offset": 0, "messages": 6, "repeated": False})]
    assert bench.store.log.synced_end == 6
    assert len(bench.files()) == 2, "until the state says that they are gone"
    assert bench.store.state.load().transactions == {}
    bench.commit_state()
    assert bench.files() == []
    table = bench.store.state.load()
    assert (table.stages, table.transactions["app"].messages, table.applied_offset) == ({}, 6, 6)


def test_nobody_hears_of_a_commit_that_the_bucket_does_not_have(bench: Bench) -> None:
    """A takeover may lose it. Who believed in it would leave its part out of the next try."""
    part = bench.sealed(ONE, *blocks(3))
    bench.say(p.OpenStage(2, TWO, "app", 1, "app", 0))
    bench.push(TWO, *blocks(1))
    bench.say(seal_of(TWO, *blocks(1)))
    bench.extension.holds = True
    assert bench.say(p.Commit(9, "app", 1, "app", (part,))) == [p.Head(6)]
    bench.commit_state()
    for message in (
        p.Commit(10, "app", 1, "app", (part,)),
        p.OpenStage(11, THREE, "app", 1, "app", 0),
        p.Abort(12, "app", 1, ()),
        p.Abort(13, "app", p.VERSION_ASKED, ()),
        p.Abort(14, "app", p.VERSION_ON_DISK, ()),
        p.Abort(15, "app", 2, ()),
        seal_of(TWO, *blocks(1)),  # its stage was dropped by the commit
    ):
        assert bench.say(message) == []
    said = {"dropped": 0, "committed": False, "version": 1}
    assert bench.commit_state() == [p.Done(14, said), p.Done(15, said)]
    bench.extension.release()
    told = bench.told()
    assert [one.request for one in told if isinstance(one, p.Done)] == [9, 5, 5, 10, 11, 12, 13]
    for answer in told:
        assert isinstance(answer, p.Done)
        if answer.request == 5:
            assert answer.data == {"messages": 0, "superseded": True}
        elif answer.request == 11:
            assert answer.data["committed"]
        elif answer.request == 12:
            assert answer.data == {"dropped": 0, "committed": True, "version": 1}


def test_an_empty_commit_is_answered_when_the_state_is_committed(bench: Bench) -> None:
    part = bench.sealed(ONE)
    assert bench.say(p.Commit(9, "app", 1, "app", (part,))) == []
    assert bench.say(p.Commit(10, "app", 1, "app", ())) == [], "nor is it repeated before that"
    told = bench.commit_state()
    assert told == [
        p.Done(9, {"first_offset": 0, "messages": 0, "repeated": False}),
        p.Done(10, {"first_offset": 0, "messages": 0, "repeated": True}),
    ]


def test_a_restart_between_log_and_state_does_not_repeat_a_commit(bench: Bench) -> None:
    part = bench.sealed(ONE, *blocks(3))
    bench.say(p.Commit(9, "app", 1, "app", (part,)))
    bench.restart()
    assert bench.files() == []
    bench.say(p.Commit(10, "app", 1, "app", (part,)))
    assert bench.commit_state() == [
        p.Done(10, {"first_offset": 0, "messages": 6, "repeated": True})
    ]
    assert bench.store.log.end == 6
    bench.say(p.Commit(11, "app", 0, "app", ()))
    assert bench.commit_state() == [
        p.Done(11, {"first_offset": -1, "messages": 0, "repeated": True})
    ]


@pytest.mark.parametrize(
    ("error", "caught"), [(DiskFull("full"), Refused), (Damaged("bad"), CorruptBlock)]
)
def test_a_commit_that_the_log_refuses_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception, caught: type[Exception]
) -> None:
    part = bench.sealed(ONE, *blocks(3))

    def fail(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.log, "append_group", fail)
        with pytest.raises(caught):
            bench.say(p.Commit(9, "app", 1, "app", (part,)))
    assert bench.turn() == []
    assert bench.harness.statistics()["transactions"] == 0
    assert bench.say(p.Commit(9, "app", 1, "app", (part,)))[-1] == p.Done(
        9, {"first_offset": 0, "messages": 6, "repeated": False}
    )


def test_a_topic_that_is_being_deleted_accepts_no_commit(bench: Bench) -> None:
    part = bench.sealed(ONE, *blocks(1))
    bench.harness.hold(True)
    for message in (
        p.Commit(9, "app", 1, "app", (part,)),
        p.OpenStage(1, TWO, "app", 1, "app", 0),
        seal_of(ONE, *blocks(1)),
    ):
        with pytest.raises(Refused, match="E_CLOSING"):
            bench.say(message)


def test_remembered_transactions_are_bounded_and_jobs_are_forgotten_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest job is forgotten to make room. Apps are not forgotten."""
    monkeypatch.setattr(staging_module, "TRANSACTIONS_MAX", 2)
    monkeypatch.setattr("zsq.storage.log.transactions.TRANSACTIONS_MAX", 2)
    for number, (app, kind) in enumerate([("job", "job"), ("a", "app"), ("b", "app")]):
        bench.say(p.Commit(number, app, 1, kind, ()))
        bench.commit_state()
    assert sorted(bench.store.state.load().transactions) == ["a", "b"]
    with pytest.raises(Refused, match="E_LIMIT"):
        bench.say(p.Commit(9, "c", 1, "app", ()))
    bench.say(p.Commit(9, "b", 2, "app", ()))
    bench.commit_state()
    assert bench.store.state.load().transactions["b"].version == 2


# Pushes


def test_blocks_refused_by_a_full_disk_are_accepted_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))

    def fail(*arguments: Any) -> None:
        raise DiskFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.staging, "append", fail)
        assert bench.push(ONE, *blocks(2)) == [p.Failed(0, "E_DISK_FULL", "full")]
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.staging, "begin_seal", fail)
        assert bench.push(ONE, *blocks(2)) == [p.Staged(ONE, 2)]
        assert bench.say(seal_of(ONE, *blocks(2))) == [p.Failed(5, "E_DISK_FULL", "full")]
    bench.say(seal_of(ONE, *blocks(2)))
    bench.sync_stages()
    assert bench.commit_state() == [p.Done(5, {"messages": 4})]


@pytest.mark.parametrize(
    "bad",
    [
        {"flags": 16},
        {"producer_id": 7},
        {"reserved_1": 1},
        {"reserved_2": 1},
        {"columns_crc": 1},
        {"count": 3},
    ],
)
def test_a_bad_block_ends_its_stage_and_no_other(bench: Bench, bad: dict[str, int]) -> None:
    for stage in (ONE, TWO):
        bench.say(p.OpenStage(1, stage, "app", 1, "app", 0))
    good = blocks(3)
    wrong = Block(good[2].header._replace(**bad), good[2].payload)
    for stage in (ONE, TWO):
        for block in (*good[:2], wrong if stage == ONE else good[2]):
            bench.wire.mails.append(
                Mail((b"-",), p.Push(stage), [block.wire_header(), block.payload])
            )
    bench.harness.take_pushes(bench.port)
    told, staged = bench.turn()
    assert isinstance(told, p.Failed)
    assert told.request == 0
    assert staged == p.Staged(TWO, 3)
    with pytest.raises(type(from_wire(told.code, told.text))):
        bench.say(seal_of(ONE, *good[:2]))
    bench.say(seal_of(TWO, *good))
    bench.sync_stages()
    assert bench.commit_state() == [p.Done(5, {"messages": 6})]


def test_one_turn_accepts_a_bounded_number_of_pushed_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "STAGE_TURN_BYTES", 2 * blocks(1)[0].length)
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    assert bench.push(ONE, *blocks(5)) == [p.Staged(ONE, 2)]
    assert bench.push(ONE) == [p.Staged(ONE, 4)]


# Time


def test_open_and_sealed_stages_expire_after_their_own_time_limits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sealed(ONE, *blocks(1))
    bench.say(p.OpenStage(1, TWO, "app", 1, "app", 0))
    bench.push(TWO, *blocks(1))
    bench.harness.expire()
    assert bench.harness.statistics()["stages"] == 2
    bench.say(p.Bye())
    for limit, left in (("_open_kept_s", [ONE]), ("_sealed_kept_s", [])):
        monkeypatch.setattr(bench.harness, limit, -1.0)
        bench.harness.expire()
        bench.commit_state()
        assert list(bench.store.staging.stages()) == left
        assert len(bench.files()) == len(left)


def test_a_job_is_forgotten_when_its_time_has_passed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has an app name of its own. If the topic kept them all, it would reach its limit and
    could not accept new jobs.
    """
    now, wall = 10**18, time.time_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    for app, kind in (("job", JOB), ("query", "app")):
        part = bench.sealed(ONE, *blocks(1), app=app, kind=kind)
        bench.say(p.Commit(9, app, 1, kind, (part,)))
    bench.harness.expire()
    assert {*bench.harness._transactions} == {"job", "query"}
    wall += JOB_KEPT_NS + 1
    bench.harness.expire()
    assert {*bench.harness._transactions} == {"job", "query"}, "looked at not long ago"
    now += 3_600 * 10**9 + 1
    bench.harness.expire()
    bench.commit_state()
    assert {*bench.store.state.load().transactions} == {"query"}
    bench.restart()
    (told,) = bench.say(p.Commit(10, "query", 1, "app", ())) + bench.commit_state()
    assert told == p.Done(10, {"first_offset": 2, "messages": 2, "repeated": True})


def test_a_seal_fails_if_the_state_store_has_no_space(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = blocks(2)
    bench.say(p.OpenStage(1, ONE, "a", 1, "app", 0))

    bench.push(ONE, *made)
    seal = seal_of(ONE, *made)
    bench.say(seal)
    bench.sync_stages()
    commit = bench.store.state.commit

    def full(batch: object) -> None:
        raise DiskFull("no space left for it")

    monkeypatch.setattr(bench.store.state, "commit", full)
    (failed,) = bench.commit_state()
    assert isinstance(failed, p.Failed)
    assert (failed.request, failed.code) == (seal.request, E_DISK_FULL)
    assert "no space left for it" in failed.text
    with pytest.raises(Refused, match="no space left for it"):
        bench.say(seal)
    monkeypatch.setattr(bench.store.state, "commit", commit)
    bench.state.retry()
    bench.state_thread.run()
    bench.state.on_results()
    bench.turn()
    assert bench.store.state.load().stages[ONE].blocks == 2
    bench.say(seal)
    bench.sync_stages()
    told = bench.commit_state() if bench.state.may_commit() else bench.told()
    assert p.Done(seal.request, {"messages": 4}) in told


def test_pushes_to_unknown_stages_write_no_lines_to_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client can send such pushes to the port. A log line for each push would fill the disk,
    and so would a stage name of 1 MiB.
    """
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    for stage in [b"x" * (1 << 20), TWO] * 5 + [ONE] * 5:
        bench.wire.mails.append(Mail((b"-",), p.Push(stage), []))
    bench.harness.take_pushes(bench.port)
    (line,) = caplog.messages
    assert ONE.hex() in line
    assert bench.harness.statistics()["pushes_dropped"] == 14


def test_a_part_whose_name_is_no_stage_name_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="E_BAD_ARGUMENT") as caught:
        bench.say(p.Commit(1, "app", 1, "app", ((b"x" * (1 << 20), 1, 1, 1, 1),)))
    assert len(str(caught.value)) < 200
