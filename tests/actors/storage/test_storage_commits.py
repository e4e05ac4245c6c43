"""Tests of what storage commits after a roll of the log. The roll has synced blocks although no
sync was requested, and the commit must include them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.fake_storage import Appended, Head, Listener, Repeated
from support.faulty_files import keep_none
from support.scripted_extension import ScriptedExtension
from support.stage_bench import Thread
from support.storage_harness import PRODUCER, StorageHarness

from zsq.actors.storage.commits import StateCommits
from zsq.actors.storage.dedupe import Dedupe
from zsq.actors.storage.locks import Locks
from zsq.actors.storage.sifting import Left
from zsq.actors.storage.storage_actor import ProducerTable, StorageActor
from zsq.storage.space import Shortage
from zsq.transport.block.block import pack
from zsq.transport.errors import Refused
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import pack_headers
from zsq.transport.wire.dedupe import digests_of, with_ids


def nothing(*_: object, **__: object) -> None:
    """Stand in for parts of storage that have nothing to do."""


class Bench:
    """The storage actor with a real log of small chunks and a real state store. Its syncs take
    longer than the test.
    """

    def __init__(self, root: Path, mode: str) -> None:
        self.harness = StorageHarness(root)
        store = self.harness.open()
        table = store.state.load()
        self.state = Thread()
        self.topic = Listener()
        self.extension = ScriptedExtension(store.log)
        self.actor = StorageActor.__new__(StorageActor)
        syncs = Thread()
        syncs.submit(None, lambda: None)  # this job keeps the thread busy
        parts: dict[str, Any] = {
            "mode": mode, "store": store, "_log": store.log, "_producers": ProducerTable(table.producers),
            "_sealed": False, "_shortage": Shortage(), "_written": deque(), "_unsynced": deque(),
            "_ticket": None, "_sync_ns": 0, "_sync_thread": syncs, "extension": self.extension,
            "state": StateCommits(cast("Any", self.state), store.state, table, "storage t"),
            "_listener": self.topic, "_retention": SimpleNamespace(admit=nothing, turn=nothing),
            "_stages": SimpleNamespace(turn=nothing, entered=nothing),
            "_dedupe": Dedupe(store, 0, Thread(), "topic t", Locks(cast("Any", None), int)),
            "_delayed": SimpleNamespace(
                turn=nothing, moving_bytes=nothing, waits_for_log=lambda end: False, blocks_checkpoint=lambda: False),
            "host": SimpleNamespace(every=nothing, cease=nothing),
            "_channels": SimpleNamespace(sync=mode),
        }  # fmt: skip
        vars(self.actor).update(parts)

    def hear(self, blocks: int) -> None:
        """Append blocks, as the topic does. They belong to the same turn as everything before the
        next `turn`.
        """
        made = [self.harness.block() for _ in range(blocks)]
        try:
            self.actor.append(len(self.harness.sent), made)
        except Refused as refused:
            self.topic.told.append(refused)

    def turn(self) -> None:
        self.actor.state.want()
        self.actor.turn()
        self.state.run()
        self.actor.state.on_results()


@pytest.fixture(params=["always", "interval"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path, request.param)
    yield made
    made.harness.abandon()


def roll_for_an_append(bench: Bench) -> None:
    bench.hear(5)


def roll_for_an_append_that_is_refused(bench: Bench) -> None:
    files = bench.harness.files
    # The next three calls write a footer, an index, and the next chunk's header. The fourth writes
    # only 10 bytes.
    files.short = {files._calls.get("writev", 0) + 4: 10}
    bench.hear(5)
    assert isinstance(bench.topic.told[-1], Refused)
    del bench.harness.sent[-5:]


def roll_before_its_time(bench: Bench) -> None:
    bench.harness.log.roll(bench.harness.now_ns)


@pytest.mark.parametrize(
    "roll", [roll_for_an_append, roll_for_an_append_that_is_refused, roll_before_its_time]
)
def test_a_commit_counts_the_blocks_that_a_roll_has_synced(
    bench: Bench, roll: Callable[[Bench], None]
) -> None:
    """Recovery reads the log from the offset that the commit names. If the commit did not include
    those blocks, recovery would not know them. A producer that lost its link in a power cut would
    then send them again, and they would be stored twice.
    """
    bench.hear(3)
    bench.turn()
    assert bench.harness.log.synced_end == 0
    bench.hear(2)
    roll(bench)
    assert bench.harness.log.synced_end == 15, "the premise"
    bench.turn()
    table = bench.actor.store.state.load()
    assert (table.applied_offset, table.producers[PRODUCER].next_sequence) == (15, 5)

    store = bench.harness.crash(keep_none)
    assert bench.harness.check() == [0, 1, 2, 3, 4]
    assert store.state.load().producers[PRODUCER].next_sequence == 5


def test_no_append_is_answered_before_an_earlier_one_that_is_held(tmp_path: Path) -> None:
    """The topic never expects an append below its head. In the mode `interval`, an append is
    answered when it is written.
    """
    made = Bench(tmp_path, "always")
    made.extension.holds = True
    made.hear(1)
    made.turn()
    made.actor._set_sync(p.SetSync(1, "interval"))
    made.hear(1)
    made.actor._delayed_moved(made.actor._log.end)
    made.turn()
    assert not made.topic.told
    made.extension.holds = False
    made.turn()
    made.actor._log.sync()
    made.turn()
    offsets = [one.first_offset for one in made.topic.told if isinstance(one, Appended)]
    assert offsets == [0, 3]
    assert isinstance(made.topic.told[-1], Head)
    made.harness.abandon()


def test_the_rows_of_producers_do_not_wait_for_confirmation(tmp_path: Path) -> None:
    """The checkpoint passes blocks that are synced. Their producers must have their rows then,
    although the publishes are confirmed later.
    """
    made = Bench(tmp_path, "always")
    made.extension.confirmed = 0
    made.hear(3)
    made.harness.log.roll(made.harness.now_ns)
    made.turn()
    assert not made.topic.told
    table = made.actor.store.state.load()
    assert (table.applied_offset, table.producers[PRODUCER].next_sequence) == (9, 3)
    made.extension.confirmed = 9
    made.turn()
    assert made.topic.told
    made.harness.abandon()


@pytest.mark.parametrize("before", ["interval", "never"])
def test_a_stricter_sync_mode_makes_durable_what_was_answered_before(
    tmp_path: Path, before: str
) -> None:
    """Otherwise a power cut could lose messages that were answered before others that it keeps."""
    made = Bench(tmp_path, before)
    made.hear(2)
    if before == "never":
        made.actor._start_sync()
    answered = list(made.topic.told)
    assert len(answered) == 1
    done = made.actor._set_sync(p.SetSync(1, "always"))
    assert done.data == {"sync": "always"}
    made.hear(1)
    made.turn()
    assert [one for one in made.topic.told if isinstance(one, Appended)] == answered, (
        "none is answered twice, and what came later waits for its sync"
    )
    made.harness.crash(keep_none)
    assert made.harness.check() == [0, 1]


def test_a_commit_waits_for_the_appends_that_are_held_before_it(tmp_path: Path) -> None:
    """Otherwise the topic would hear of an append below its head, which it never expects."""
    made = Bench(tmp_path, "always")
    made.extension.holds = True
    made.hear(1)
    made.actor._log.roll(1)  # this syncs, as the commit of a transaction does
    made.actor._group_committed()
    assert not made.topic.told
    made.extension.holds = False
    made.turn()
    assert [type(one).__name__ for one in made.topic.told] == ["Appended", "Head"]
    made.actor._group_committed()
    assert made.topic.told[2:] == [Head(made.actor._log.synced_end)]
    made.harness.abandon()


def test_a_duplicate_is_answered_with_the_sync_of_the_first_one(tmp_path: Path) -> None:
    """If it was answered at once, a power cut could take away the only copy."""
    bench = Bench(tmp_path, "always")
    bench.actor._dedupe.set_window(600)
    for request in (1, 2):
        headers = [pack_headers({"zsq-dedupe-id": "one"})]
        block = with_ids(
            pack([b"x"], headers=headers, producer_id=PRODUCER, sequence=request), headers
        )
        block.ids = digests_of(block)
        bench.actor.append(request, [block])
    (repeated,) = bench.topic.told
    assert repeated == Repeated(2, {0: Left(None, ((0, 0),))})
    bench.actor.confirm_appends()
    assert len(bench.topic.told) == 1
    bench.harness.sync()
    bench.actor.confirm_appends()
    assert [told.request for told in bench.topic.told if isinstance(told, Appended)] == [1, 2]
    assert bench.harness.log.end == 1
    bench.harness.abandon()
