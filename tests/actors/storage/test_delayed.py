"""Tests of delayed messages inside storage. They use a real store, a thread that runs only when a
test tells it to, and a clock that the test sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_storage import Kept, Listener, NotKept
from support.scripted_extension import ScriptedExtension
from support.stage_bench import IDENTITY, Thread, Wire

from zsq.actors.settings import options
from zsq.actors.storage.delayed import MOVES, Clock, DelayedMessages, MoveState, sequences
from zsq.actors.storage.storage_actor import ProducerTable, StorageActor
from zsq.actors.supervisor.commands.relayed import order_for
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey, row_key
from zsq.storage.directory.store import StoreOptions, create_store, open_store
from zsq.storage.errors import DiskFull, StoreFailed
from zsq.storage.files import Files
from zsq.storage.log.log import Log
from zsq.storage.space import Shortage
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block, pack
from zsq.transport.errors import E_DISK_FULL, UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of

S = 1_000_000_000
SCAN = (b"scan",)


class Bench:
    """`DelayedMessages` with its store. The wall clock is `now_ns`. The monotonic clock is a
    thousand seconds behind.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        create_store(Files(), directory, IDENTITY)
        self.now_ns = 5_000 * S
        self.start()

    def start(self) -> None:
        self.store = open_store(Files(), self.directory, StoreOptions(reserve_bytes=0), IDENTITY)
        self.thread = Thread()
        self.topic = Listener()
        self.told = self.topic.told
        self.moved: list[int] = []
        self.hints: list[int] = []
        self.answers: list[p.Done | p.Failed] = []
        self.extension = ScriptedExtension(self.store.log)
        clock = Clock(lambda: self.now_ns, lambda: self.now_ns - 1_000 * S)
        self.harness = DelayedMessages(
            self.store, "storage t", self.thread, self.topic, self.extension, self.moved.append,
            lambda due_ns: self.hints.append(due_ns + 1_000 * S), self.answers.append,
            Shortage(), clock,
        )  # fmt: skip
        self.harness.opened(True)
        self.sequence = 0

    def publish(self, *delays_s: float, request: int = 1) -> None:
        made: list[Block] = []
        for _ in delays_s:
            made.append(pack([b"%d" % self.sequence, b"x"], producer_id=7, sequence=self.sequence))
            self.sequence += 1
        self.harness.append(
            request, made, [int(delay * 1000) for delay in delays_s], self.store.log.end
        )

    def turn(self, *, sync: bool = True) -> None:
        if sync:
            self.store.log.sync()
        self.harness.turn(self.store.log.synced_end)

    def run(self) -> None:
        """Let the thread do its jobs."""
        self.thread.run()
        self.harness.on_results()

    def keep(self, *delays_s: float) -> list[tuple[int, int]]:
        self.publish(*delays_s)
        self.turn()
        self.run()
        kept = self.told.pop()
        assert isinstance(kept, Kept)
        return list(kept.keys)

    def scan(self) -> tuple[bool, int]:
        """Scan once. Return whether the scan found something to do, and the next due time on the
        wall clock (0 if there is none).
        """
        wire = Wire()
        wire.route(p.Scan, self.harness.scan)
        wire.hear(p.Scan(3), SCAN)
        (message,) = wire.sent
        assert isinstance(message, p.Scanned)
        return message.dirty, message.next_due_ns and message.next_due_ns + 1_000 * S

    def order(self, **data: Any) -> Any:
        """Return the answer to this request, at once or when it has arrived."""
        order = order_for(request_of(p.Manage(0, "delayed", "t", "", data)))(9)
        carried_out: Any = {
            p.CountDelayed: self.harness.count,
            p.ListDelayed: self.harness.list_some,
            p.CancelDelayed: self.harness.cancel,
        }
        found = carried_out[type(order)](order)
        return found.data if found is not None else self.answers

    def state(self) -> MoveState:
        return self.harness.state

    def in_log(self) -> list[bytes | None]:
        log = self.store.log
        return [
            body
            for block in log.read(0, 1 << 20, log.end)
            for body in block.body.values()
            if body != b"x"
        ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(str(tmp_path / "t"))
    yield one
    one.store.close()


def test_a_delayed_block_is_stored_after_earlier_blocks_are_durable(bench: Bench) -> None:
    bench.store.log.append([pack([b"before"], producer_id=7)], 1)
    bench.publish(60)
    bench.turn(sync=False)
    assert bench.harness.waits_for_log(bench.store.log.synced_end)
    assert bench.thread.jobs == [], (
        "it would be durable, and what its producer sent before it perhaps not"
    )
    bench.turn()
    bench.run()
    assert bench.told == [Kept(1, (bench.store.delayed.listed(None, 1, 9)[0].key,))]  # type: ignore[union-attr]


def test_delayed_blocks_are_answered_after_a_commit_that_they_share(bench: Bench) -> None:
    bench.publish(60, request=1)
    bench.turn()
    assert bench.harness.statistics()["delayed_count"] == 2, (
        "a topic that is being deleted has this one too"
    )
    bench.publish(50, 40, request=2)
    bench.publish(30, request=3)
    bench.turn()
    assert (len(bench.thread.jobs), bench.told) == (1, [])
    bench.run()
    bench.turn()
    assert len(bench.thread.jobs) == 1
    bench.run()
    assert bench.harness.statistics()["delayed_count"] == 8
    assert [
        (message.request, len(message.keys)) for message in bench.told if isinstance(message, Kept)
    ] == [(1, 1), (2, 2), (3, 1)]
    assert bench.hints == [bench.now_ns + 10 * S, bench.now_ns + 10 * S], (
        "as far as a scan looks ahead"
    )


def test_a_stored_block_is_answered_when_the_extension_confirms_it(bench: Bench) -> None:
    bench.extension.holds = True
    bench.publish(60)
    bench.turn()
    bench.run()
    assert bench.told == []
    bench.extension.release()
    assert [type(message) for message in bench.told] == [Kept]


def test_messages_lost_by_damage_raise_an_alarm_as_soon_as_it_is_found(bench: Bench) -> None:
    ((due_ns, serial),) = bench.keep(5)
    delayed = bench.store.delayed
    assert delayed is not None
    key = row_key(DelayedKey(due_ns, serial))
    delayed.write(lambda txn: txn.put(key, txn.get(key)[:-1] + b"?"))
    assert bench.harness.statistics()["delayed_alarm"] == ""
    bench.now_ns += 5 * S
    assert bench.scan()[0]
    bench.run()
    assert bench.harness.statistics()["delayed_lost"] == 2
    assert bench.harness.statistics()["delayed_alarm"].startswith(
        "2 delayed messages are lost because of damage: see "
    )


def test_due_messages_are_read_then_written_then_synced_then_removed(bench: Bench) -> None:
    bench.keep(5, 60)
    assert bench.scan() == (False, bench.now_ns + 5 * S)
    bench.now_ns += 5 * S - 1
    assert bench.scan() == (False, bench.now_ns + 1), "never early"
    bench.now_ns += 1
    assert bench.scan()[0]
    assert bench.state() is MoveState.READING
    assert not bench.scan()[0], "one move at a time"
    bench.run()
    assert (bench.state(), bench.in_log()) == (MoveState.WRITTEN, [b"0"])
    assert bench.moved == [2]
    assert bench.harness.blocks_checkpoint()
    bench.turn(sync=False)
    assert bench.thread.jobs == [], "not removed before it is on disk in the log"
    bench.turn()
    assert bench.state() is MoveState.REMOVING
    assert bench.harness.blocks_checkpoint()
    bench.hints.clear()
    bench.run()
    assert (bench.state(), bench.harness.blocks_checkpoint()) == (MoveState.IDLE, False)
    assert bench.hints == [bench.now_ns + 10 * S]
    assert bench.harness.statistics()["delayed_count"] == 2
    assert bench.store.log.last_time_ns >= 5_005 * S


def test_a_clock_set_back_gives_no_message_a_time_before_its_due_time(bench: Bench) -> None:
    ((due_ns, _),) = bench.keep(5)
    bench.now_ns += 6 * S
    assert bench.scan()[0]
    bench.now_ns -= 3_000 * S
    bench.run()
    assert bench.store.log.last_time_ns >= due_ns


def test_due_rows_beyond_one_move_are_moved_right_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DELAYED_MOVE_ROWS", 2)
    bench.keep(1, 2, 3, 4, 5)
    bench.now_ns += 10 * S
    for expected in (2, 4, 5):
        assert bench.scan()[0]
        bench.run()
        bench.turn()
        bench.hints.clear()
        bench.run()
        assert len(bench.in_log()) == expected
        assert bench.hints == ([bench.now_ns] if expected < 5 else [])
    assert bench.scan() == (False, 0)


@pytest.mark.parametrize("when", ["before the scan", "while it is read"])
def test_no_delayed_message_is_moved_once_the_topic_is_sealed(bench: Bench, when: str) -> None:
    """The end of the log was part of the answer to the seal. A topic of the same name that is
    created later begins there, so nothing may be appended after the seal.
    """
    bench.keep(1)
    bench.now_ns += 2 * S
    if when == "before the scan":
        bench.harness.opened(False)
    assert bench.scan()[0] == (when == "while it is read")
    bench.harness.opened(False)
    bench.run()
    assert (bench.in_log(), bench.state()) == ([], MoveState.IDLE)
    bench.harness.opened(True)
    assert bench.hints[-1] == bench.now_ns
    assert bench.scan()[0]


def test_due_messages_that_may_not_move_are_not_scanned_again_at_once(bench: Bench) -> None:
    """Otherwise the scan loop would ask all channels without a pause, for as long as the bucket
    does not answer.
    """
    bench.keep(1)
    bench.now_ns += 2 * S
    bench.extension.may_move_delayed = False
    retry = bench.now_ns + options.DELAYED_RETRY_NS
    bench.hints.clear()
    assert bench.scan() == (False, retry)
    bench.harness.resume()
    assert bench.hints == [], "they may still not move"
    bench.extension.may_move_delayed = True
    bench.harness.resume()
    bench.harness.resume()
    assert bench.hints == [bench.now_ns], "at once, and once"
    assert bench.scan()[0]
    assert bench.state() is MoveState.READING


def test_a_full_disk_refuses_a_delayed_block_at_once_or_at_its_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = bench.keep(1)
    monkeypatch.setattr(Files, "free_bytes", lambda self, path: 0)
    bench.harness._space.forget()
    with pytest.raises(DiskFull):
        bench.publish(5)
    monkeypatch.undo()
    bench.publish(5)
    bench.turn()

    def full(self: DelayedStore, blocks: Any, used_ns: int) -> Any:
        raise DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(DelayedStore, "put", full)
        bench.run()
    failed = bench.told.pop()
    assert isinstance(failed, NotKept)
    assert failed.code == E_DISK_FULL
    assert len(bench.keep(6)) == len(keys)


def test_due_messages_wait_and_raise_an_alarm_on_a_full_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.keep(1)
    bench.now_ns += 2 * S

    def full(self: Log, blocks: Any, now_ns: int) -> Any:
        raise DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", full)
        assert bench.scan()[0]
        bench.run()
    assert bench.state() is MoveState.IDLE
    assert "wait for space" in bench.harness.statistics()["delayed_alarm"]
    dirty, _ = bench.scan()
    assert dirty, "tried again"
    bench.run()
    assert (bench.in_log(), bench.harness.statistics()["delayed_alarm"]) == ([b"0"], "")


def test_a_removal_without_space_is_repeated_and_holds_the_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.keep(1)
    bench.now_ns += 2 * S
    bench.scan()
    bench.run()
    bench.turn()

    def full(self: DelayedStore, keys: Any, **more: object) -> None:
        raise DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(DelayedStore, "remove", full)
        bench.run()
    assert bench.harness.blocks_checkpoint()
    assert bench.harness.is_idle(), "a stop does not wait for space"
    assert bench.harness.statistics()["delayed_alarm"]
    bench.harness.tick()
    bench.run()
    assert (bench.harness.blocks_checkpoint(), bench.harness.statistics()["delayed_count"]) == (
        False,
        0,
    )


def test_an_unknown_failure_of_the_store_ends_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(1)
    bench.turn()

    def broken(self: DelayedStore, blocks: Any, used_ns: int) -> Any:
        raise StoreFailed("EIO")

    monkeypatch.setattr(DelayedStore, "put", broken)
    with pytest.raises(StoreFailed):
        bench.run()
    assert bench.told == []


# Orders


def test_a_cancel_waits_for_a_move_and_says_which_messages_moved(bench: Bench) -> None:
    keys = bench.keep(1, 60)
    texts = tuple(f"{due_ns:016x}{serial:016x}" for due_ns, serial in keys)
    bench.now_ns += 2 * S
    bench.scan()
    assert bench.order(do="cancel", keys=texts) == []
    bench.run()
    bench.turn()
    bench.run()
    assert bench.answers == []
    bench.run()
    assert bench.answers == [p.Done(9, {"cancelled": (False, True)})]
    assert bench.in_log() == [b"0"]


def test_delayed_messages_are_counted_listed_and_cancelled_in_portions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DELAYED_CANCEL_ROWS", 2)
    assert bench.order(do="count")["messages"] == 0
    assert bench.order(do="list") == {"messages": ()}
    assert bench.order(do="cancel", all=True) == {"cancelled": 0, "more": False}
    bench.keep(1, 2, 3)
    assert bench.order(do="count")["messages"] == 6
    bench.order(do="list", limit=3)
    bench.run()
    assert [one["body"] for one in bench.answers.pop().data["messages"]] == [b"0", b"x", b"1"]  # type: ignore[union-attr]
    for expected in ({"cancelled": 4, "more": True}, {"cancelled": 2, "more": False}):
        bench.order(do="cancel", all=True)
        bench.run()
        assert bench.answers.pop() == p.Done(9, expected)


@pytest.mark.parametrize(
    "data",
    [
        {}, {"do": "sing"}, {"do": "list", "limit": 0}, {"do": "list", "limit": options.DELAYED_LIST_MAX + 1}, {"do": "list", "after": "x"},
        {"do": "cancel"}, {"do": "cancel", "keys": ()}, {"do": "cancel", "keys": "0" * 32}, {"do": "cancel", "keys": ("x",)},
        {"do": "cancel", "keys": ("0" * 32,) * (options.DELAYED_CANCEL_MAX + 1)}, {"do": "cancel", "all": "yes"},
    ],
)  # fmt: skip
def test_a_wrong_order_about_delayed_messages_is_refused(
    bench: Bench, data: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        bench.order(**data)


# Start


def test_a_restart_finds_all_and_merges_sequences_of_both_kinds_of_blocks(bench: Bench) -> None:
    keys = bench.keep(5, 6)
    bench.store.close()
    bench.start()
    assert bench.harness.statistics()["delayed_count"] == 4
    assert bench.hints == [bench.now_ns + 5 * S]
    delayed = bench.harness.producers()
    assert delayed == {7: (2, ((0, *keys[0]), (1, *keys[1])))}
    assert sequences({7: (5, ((3, 30), (4, 40))), 8: (1, ((0, 0),))}, delayed) == {
        7: (5, ((0, *keys[0]), (1, *keys[1]), (3, 30), (4, 40))),
        8: (1, ((0, 0),)),
    }
    assert sequences({7: (1, ((0, 9),))}, delayed)[7][0] == 2


def test_delayed_bytes_are_counted_once_from_their_arrival_on(bench: Bench) -> None:
    """The bytes count toward the topic's bound. They must not count twice once the messages are
    stored, and not at all if they cannot be stored.
    """
    size = pack([b"0", b"x"]).length
    bench.publish(60, 70)
    assert bench.harness.waiting_bytes() == 2 * size
    bench.turn()
    bench.run()
    assert (before := bench.harness.waiting_bytes()) == bench.harness.summary.bytes >= 2 * size
    bench.publish(80)
    bench.turn()
    bench.thread.jobs = [(tag, lambda: DiskFull("no space")) for tag, _ in bench.thread.jobs]
    bench.run()
    assert bench.harness.waiting_bytes() == before


def test_each_state_of_a_move_is_in_the_table_and_is_reached() -> None:
    assert set(MOVES) == set(MoveState)
    assert {state for ways in MOVES.values() for state in ways.values()} == set(MoveState)


@pytest.mark.parametrize("holds", [True, False])
def test_nothing_is_committed_while_a_move_holds_the_checkpoint(holds: bool) -> None:
    """This tests the actor's part: while the log holds moved messages whose rows are still in the
    delayed store, the state store is not committed.
    """
    actor = StorageActor.__new__(StorageActor)
    committed: list[int] = []
    state = SimpleNamespace(
        batch=StateBatch(), may_commit=lambda: True, waits_for_log=lambda end: False, commit=lambda end, rows, gone: committed.append(end)
    )  # fmt: skip
    parts = {
        "state": state, "_delayed": SimpleNamespace(blocks_checkpoint=lambda: holds), "_log": SimpleNamespace(synced_end=7),
        "_producers": ProducerTable({}), "_dedupe": SimpleNamespace(range=lambda end: None, keys_from=lambda: None),
    }  # fmt: skip
    vars(actor).update(parts)
    actor._commit()
    assert committed == ([] if holds else [7])


def test_the_file_is_shrunk_once_after_rows_were_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Files] = []
    monkeypatch.setattr(DelayedStore, "shrink", lambda self, files: asked.append(files))
    bench.keep(60)
    bench.harness.tick()
    assert bench.thread.jobs == []
    bench.order(do="cancel", all=True)
    bench.run()
    for _ in range(3):
        bench.harness.tick()
        bench.run()
    assert asked == [bench.store.files]


def test_a_cancel_without_keys_cancels_nothing(bench: Bench) -> None:
    """Only `all` means all messages. An empty list means none."""
    bench.keep(60)
    count = bench.order(do="count")["messages"]
    bench.harness.cancel(p.CancelDelayed(9, ()))
    bench.run()
    assert bench.answers == [p.Done(9, {"cancelled": ()})]
    assert bench.order(do="count")["messages"] == count > 0
