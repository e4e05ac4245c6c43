"""Tests of the changes that the state store reports: a dump and the later changes are the store."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.lmdb_calls import LmdbCalls
from support.row_copy import RowCopy, rows_now

from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log.chunk import ArchivedChunk
from zsq.storage.log.transactions import StagedFile, StageRow, TransactionRow
from zsq.storage.row_changes import STATE, Change
from zsq.storage.state import state_transaction
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch, StateStore
from zsq.storage.state.state_rows import TOTAL, deferred_key

UUID = bytes(range(16))
STAGE = StageRow("query", 7, "app", 1, 2, 6, 800, 9, True, (StagedFile(3, 9, 2, 6, 928),), 50)
NAMES = st.sampled_from(["a", "a.b", "c"])
STARTS = st.integers(0, 40)
NUMBERS = st.integers(0, 3)
STAGES = st.sampled_from([b"s" * 16, b"t" * 16])


def some(elements: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[Any]:
    return st.lists(elements, max_size=most)


BATCHES = st.builds(
    StateBatch,
    channel_puts=st.dictionaries(NAMES, st.integers(0, 99).map(ChannelRow), max_size=2),
    hole_puts=some(
        st.tuples(NAMES, STARTS, st.just(1), st.integers(0, 2), st.sampled_from([0, 0, 5, 7, 9])),
        30,
    ),
    hole_gones=some(st.tuples(NAMES, STARTS), 5),
    channel_drops=some(NAMES, 1),
    deferred_clears=some(NAMES, 1),
    producers=st.dictionaries(
        NUMBERS, NUMBERS.map(lambda number: ProducerRow(number, 5, ((1, 2),))), max_size=2
    ),
    producers_gone=some(NUMBERS),
    stage_puts=st.dictionaries(
        STAGES, st.sampled_from(["", "u"]).map(lambda user: STAGE._replace(user=user))
    ),
    stage_gones=some(STAGES),
    transactions=st.dictionaries(
        NAMES, NUMBERS.map(lambda number: TransactionRow(number, "app", 1, 2, 3))
    ),
    transactions_gone=some(NAMES),
    archived=some(NUMBERS.map(lambda base: ArchivedChunk(base, *[8] * 8))),
    archived_gone=some(NUMBERS),
    applied_offset=st.none() | st.integers(5, 9),
    paused_end=st.none() | st.integers(-1, 9),
    dropped=st.none() | st.integers(0, 9),
)


class StateChanges(RuleBasedStateMachine):
    """The frames of a dump and of the later changes must add up to the rows of the store."""

    @initialize(watched_at_once=st.booleans())
    def begin(self, watched_at_once: bool) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(state_transaction, "CLEAR_ROWS_MAX", 3)
        self.patch.setattr(state_transaction, "COLLECT_ROWS_MAX", 4)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(prefix="zsq-state-", dir=memory)
        self.path = Path(self.folder.name)
        # With such a small map, some commits are repeated.
        self.store = StateStore(str(self.path / "state"), 1 << 15, create=True)
        self.copy = RowCopy(STATE)
        self.expected_commits = 0
        if watched_at_once:
            self.copy.watch(self.store)
            self.expected_commits += 1
        self.store.create(UUID, 4)
        self.copy.watch(self.store)

    @rule(batch=BATCHES)
    def commit(self, batch: StateBatch) -> None:
        self.store.commit(batch)
        self.expected_commits += 1

    @rule(name=NAMES, begin=st.integers(0, 5), due_ns=st.integers(1, 9))
    def defer_many(self, name: str, begin: int, due_ns: int) -> None:
        """Clearing them makes garbage, which later commits collect."""
        self.commit(StateBatch(hole_puts=[(name, begin + i, 1, 1, due_ns) for i in range(20)]))

    @rule(max_bytes=st.integers(1, 2_000))
    def dump(self, max_bytes: int) -> None:
        self.copy.dump(self.store, max_bytes)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = StateStore(str(self.path / "state"), 1 << 15)
        self.store.load()
        self.copy.watch(self.store)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "store"):
            assert self.copy.commits == self.expected_commits
            if self.copy.stream:
                assert sorted(self.copy.rows.items()) == rows_now(self.store)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            if self.copy.stream:
                self.check_the_copy()
        finally:
            self.store.close()
            self.folder.cleanup()
            self.patch.undo()

    def check_the_copy(self) -> None:
        assert self.copy.rebuild(self.path / "built") == rows_now(self.store)
        built = StateStore(str(self.path / "built"))
        assert built.walk() == self.store.walk() == []
        assert built.load() == self.store.load()
        assert built.uuid() == UUID
        built.commit(StateBatch(paused_end=7))
        assert built.walk() == []
        built.close()


TestStateChanges = StateChanges.TestCase
TestStateChanges.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.fixture
def state(tmp_path: Path) -> StateStore:
    store = StateStore(str(tmp_path / "state"), 1 << 16, create=True)
    store.create(UUID, 4)
    return store


def test_changes_are_reported_after_the_commit_and_before_its_batch(state: StateStore) -> None:
    order: list[str] = []
    state.on_changes = lambda changes: order.append(f"changes {state.load().paused_end}")
    state.on_committed = lambda batch: order.append("batch")
    state.commit(StateBatch(paused_end=5))
    assert order == ["changes 5", "batch"]


def test_an_unknown_row_is_copied_too(state: StateStore, tmp_path: Path) -> None:
    state.write(lambda txn: txn.put(b"zz", b"from a newer version"))
    copy = RowCopy(STATE)
    copy.dump(state, 1)
    assert (b"zz", b"from a newer version") in copy.rebuild(tmp_path / "built")
    state.close()


@pytest.mark.parametrize(
    ("full", "error"), [("write", DiskFull), ("sync", DiskFull), ("head", StoreFailed)]
)
def test_a_commit_that_fails_on_a_full_disk_reports_nothing(
    tmp_path: Path, full: str, error: type[Exception]
) -> None:
    disk = ""
    with LmdbCalls(
        lambda call: errno.ENOSPC if ("head" if call.durable else call.kind) == disk else 0
    ):
        state = StateStore(str(tmp_path), create=True)
        state.create(UUID, 4)
        found: list[list[Change]] = []
        state.on_changes = found.append
        disk = full
        with pytest.raises(error):
            state.commit(StateBatch(paused_end=5))
        assert found == []
        disk = ""
        if error is DiskFull:
            state.commit(StateBatch(paused_end=5))
            assert [[key for key, _ in changes] for changes in found] == [[b"m"]]
        state.close()


def test_a_commit_that_finds_damage_or_no_address_space_reports_nothing(
    state: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[Change]] = []
    state.on_changes = found.append
    monkeypatch.setattr("zsq.storage.environment.MAP_BYTES_MAX", 1 << 17)
    with pytest.raises(DiskFull):
        state.commit(StateBatch(hole_puts=[("c", i, 1, 1, 0) for i in range(5_000)]))
    assert found == []
    state.commit(StateBatch(hole_puts=[("c", 1, 1, 1, 5)]))
    state.write(lambda txn: txn.put(deferred_key("c", 1), b"damaged"))
    del found[:]
    with pytest.raises(Damaged):
        state.commit(StateBatch(hole_gones=[("c", 1)]))
    assert found == []


def test_a_repeated_commit_reports_only_the_last_attempt(state: StateStore) -> None:
    found: list[list[Change]] = []
    state.on_changes = found.append
    before = state.map_bytes
    state.commit(StateBatch(hole_puts=[("c", i, 1, 1, 5) for i in range(2_000)]))
    assert state.map_bytes > before
    (changes,) = found
    assert sorted(changes) == [row for row in rows_now(state) if row[0][:1] in b"dmq" + TOTAL]
    state.close()
