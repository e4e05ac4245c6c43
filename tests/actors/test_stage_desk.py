"""Storage's desks for stages and for state on a real store, with threads that run when they are told: what is answered when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from zsq.actors import options, stage_desk
from zsq.actors.port import Envelope, Mail, Port
from zsq.actors.stage_desk import StageDesk
from zsq.actors.state_desk import StateDesk
from zsq.actors.worker_thread import WorkerThread
from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.files import Files
from zsq.storage.state import StateBatch
from zsq.storage.store import Identity, Store, StoreOptions, create_store, open_store
from zsq.transport import protocol as p
from zsq.transport.block import Block, pack
from zsq.transport.errors import CorruptBlock, Refused
from zsq.transport.protocol import checksum_after

ONE, TWO = b"1" * 16, b"2" * 16
A: Envelope = (b"a",)
IDENTITY = Identity("t", "0" * 31 + "1")


class Thread:
    """Jobs wait until `run`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Callable[[], Any]]] = []
        self.done: list[tuple[Any, Any]] = []
        self.pending = 0

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self.jobs.append((tag, job))

    def run(self) -> None:
        for tag, job in self.jobs:
            try:
                value = job()
            except Exception as error:
                value = error
            self.done.append((tag, value))
        self.jobs.clear()

    def results(self) -> list[tuple[Any, Any]]:
        found, self.done = self.done, []
        self.pending -= len(found)
        return found


class Wire:
    """A port's place: pushes to come in, words that went out."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.sent: list[p.Wire] = []
        self.taken = 0

    def receive(self, limit: int) -> Iterator[Mail]:
        for _ in range(min(limit, len(self.mails))):
            self.taken += 1
            yield self.mails.pop(0)

    def send(self, envelope: Envelope, word: p.Wire, blocks: Any = ()) -> bool:
        self.sent.append(word)
        return envelope == A


class Bench:
    """Both desks, in the verbs of the trade."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        create_store(Files(), directory, IDENTITY)
        self.start()

    def start(self) -> None:
        directory = self.directory
        self.store: Store = open_store(Files(), directory, StoreOptions(reserve_bytes=0), IDENTITY)
        self.stage_thread, self.state_thread = Thread(), Thread()
        table = self.store.state.load()
        self.state = StateDesk(cast("WorkerThread", self.state_thread), self.store.state, table.applied_offset, "storage t")
        self.desk = StageDesk(self.store, self.state, cast("WorkerThread", self.stage_thread), table, 0.0)
        self.wire = Wire()
        self.port = self.desk.port = cast("Port", self.wire)
        self.desk.on_committed = lambda: self.wire.sent.append(p.Head(self.store.log.synced_end))

    def say(self, word: p.Wire, blocks: list[Block] | None = None) -> list[p.Wire]:
        """A writer's word; what was sent by the end of the turn."""
        handler = getattr(self.desk, f"on_{type(word).__name__.lower()}_word")
        handler(self.port, Mail(A, word, []))
        return self.turn()

    def push(self, stage: bytes, *blocks: Block) -> list[p.Wire]:
        for block in blocks:
            self.wire.mails.append(Mail((b"-",), p.Push(stage), [block.wire_header(), block.payload]))
        self.desk.take_pushes(self.port)
        return self.turn()

    def turn(self) -> list[p.Wire]:
        self.desk.turn()
        return self.told()

    def told(self) -> list[p.Wire]:
        found, self.wire.sent = self.wire.sent, []
        return found

    def sync_stages(self) -> list[p.Wire]:
        self.stage_thread.run()
        self.desk.on_results()
        return self.turn()

    def commit_state(self) -> list[p.Wire]:
        assert self.state.may_commit()
        self.state.commit(self.store.log.synced_end, {})
        self.state_thread.run()
        self.state.on_results()
        return self.turn()

    def sealed(self, stage: bytes, *blocks: Block, version: int = 1) -> p.StagePart:
        self.say(p.OpenStage(1, stage, "app", version, "app", 0))
        self.push(stage, *blocks)
        seal = seal_of(stage, *blocks)
        self.say(seal)
        self.sync_stages()
        assert p.Done(seal.request, {"messages": sum(block.count for block in blocks)}) in self.commit_state()
        return stage, len(blocks), sum(block.count for block in blocks), seal.size_bytes, seal.checksum

    def files(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory).glob("staging/*"))

    def restart(self) -> None:
        self.store.close()
        self.start()


def seal_of(stage: bytes, *blocks: Block, final: bool = True) -> p.Seal:
    checksum = 0
    for block in blocks:
        checksum = checksum_after(checksum, block.header.columns_crc)
    return p.Seal(5, stage, len(blocks), sum(block.length for block in blocks), checksum, final)


def blocks(count: int) -> list[Block]:
    return [pack([b"m%d" % n] * 2, sequence=n) for n in range(count)]


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
    assert not bench.state.wanted
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
    assert bench.commit_state() == [p.Done(6, {"dropped": 1, "committed": False})]
    assert bench.store.state.load().stages == {}
    assert bench.files() == []


def test_a_failed_sync_ends_it(bench: Bench) -> None:
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    bench.push(ONE, *blocks(1))
    bench.say(seal_of(ONE, *blocks(1)))
    (tag, _), *_ = bench.stage_thread.jobs
    bench.stage_thread.jobs = [(tag, lambda: 1 / 0)]
    with pytest.raises(StoreFailed):
        bench.sync_stages()


# Commits


def test_a_commit_is_answered_when_the_log_has_it_and_the_topic_was_told(bench: Bench) -> None:
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


def test_an_empty_commit_is_answered_when_the_state_has_it(bench: Bench) -> None:
    part = bench.sealed(ONE)
    assert bench.say(p.Commit(9, "app", 1, "app", (part,))) == []
    assert bench.say(p.Commit(10, "app", 1, "app", ())) == [], "nor is it repeated before that"
    told = bench.commit_state()
    assert told == [
        p.Done(9, {"first_offset": 0, "messages": 0, "repeated": False}),
        p.Done(10, {"first_offset": 0, "messages": 0, "repeated": True}),
    ]


def test_a_restart_between_log_and_state(bench: Bench) -> None:
    part = bench.sealed(ONE, *blocks(3))
    bench.say(p.Commit(9, "app", 1, "app", (part,)))
    bench.restart()
    assert bench.files() == []
    bench.say(p.Commit(10, "app", 1, "app", (part,)))
    assert bench.commit_state() == [p.Done(10, {"first_offset": 0, "messages": 6, "repeated": True})]
    assert bench.store.log.end == 6
    bench.say(p.Commit(11, "app", 0, "app", ()))
    assert bench.commit_state() == [p.Done(11, {"first_offset": -1, "messages": 0, "repeated": True})]


@pytest.mark.parametrize(("error", "caught"), [(DiskFull("full"), Refused), (Damaged("bad"), CorruptBlock)])
def test_a_commit_that_cannot_be_leaves_all_as_it_was(
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
    assert bench.desk.statistics()["transactions"] == 0
    assert bench.say(p.Commit(9, "app", 1, "app", (part,)))[-1] == p.Done(9, {"first_offset": 0, "messages": 6, "repeated": False})


def test_a_topic_that_is_deleted_takes_no_commit(bench: Bench) -> None:
    part = bench.sealed(ONE, *blocks(1))
    bench.desk.closing = True
    for word in (p.Commit(9, "app", 1, "app", (part,)), p.OpenStage(1, TWO, "app", 1, "app", 0), seal_of(ONE, *blocks(1))):
        with pytest.raises(Refused, match="E_CLOSING"):
            bench.say(word)


def test_the_memory_of_transactions_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest job makes room; apps do not."""
    monkeypatch.setattr(stage_desk, "TRANSACTIONS_MAX", 2)
    monkeypatch.setattr("zsq.storage.transactions.TRANSACTIONS_MAX", 2)
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


def test_a_full_disk_refuses_blocks_and_takes_them_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_turn_takes_no_more_than_its_share(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "STAGE_TURN_BYTES", 2 * blocks(1)[0].length)
    bench.say(p.OpenStage(1, ONE, "app", 1, "app", 0))
    assert bench.push(ONE, *blocks(5)) == [p.Staged(ONE, 2)]
    assert bench.push(ONE) == [p.Staged(ONE, 4)]


# Time


def test_stages_expire_by_their_kind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sealed(ONE, *blocks(1))
    bench.say(p.OpenStage(1, TWO, "app", 1, "app", 0))
    bench.push(TWO, *blocks(1))
    bench.desk.expire()
    assert bench.desk.statistics()["stages"] == 2
    bench.say(p.Bye())
    for limit, left in (("_open_kept_s", [ONE]), ("_sealed_kept_s", [])):
        monkeypatch.setattr(bench.desk, limit, -1.0)
        bench.desk.expire()
        bench.commit_state()
        assert list(bench.store.staging.stages()) == left
        assert len(bench.files()) == len(left)


# State


def test_state_waits_for_the_log_and_tries_a_full_disk_again_in_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    state = bench.state
    done: list[str] = []
    bench.store.log.append([pack([b"x"] * 5)], 1)
    bench.store.log.sync()
    state.cover(5)
    state.then(lambda: done.append("first"))
    assert state.waits_for_log(4)
    assert not state.waits_for_log(5)
    written: list[StateBatch] = []
    commit = bench.store.state.commit

    def full(batch: StateBatch) -> None:
        written.append(batch)
        if len(written) < 3:
            raise DiskFull("full")
        commit(batch)

    monkeypatch.setattr(bench.store.state, "commit", full)
    state.commit(5, {})
    state.then(lambda: done.append("second"))
    assert not state.may_commit()
    for _ in range(2):
        bench.state_thread.run()
        state.on_results()
        assert done == []
        assert not state.may_commit(), "no later batch passes it"
        state.retry()
    bench.state_thread.run()
    state.on_results()
    assert done == ["first"]
    assert written[0] is written[1] is written[2]
    assert state.applied == 5
    bench.commit_state()
    assert done == ["first", "second"]
    assert state.is_idle()


def test_of_two_words_about_a_hole_the_later_counts(bench: Bench) -> None:
    state = bench.state
    state.put_hole("c", 5, (1, 1, 0))
    state.put_hole("c", 5, None)
    state.put_hole("c", 7, None)
    state.put_hole("c", 7, (2, 2, 0))
    state.put_hole("d", 1, (1, 1, 0))
    state.drop_channel("d")
    state.then(lambda: None)
    bench.commit_state()
    table = bench.store.state.load()
    assert {name: [tuple(hole) for hole in holes] for name, holes in table.holes.items()} == {"c": [(7, 2, 2, 0)]}
