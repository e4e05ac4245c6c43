"""Tests of the changes that the delayed store reports: a dump and later changes are the store."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from support.lmdb_calls import LmdbCalls
from support.row_copy import RowCopy, rows_now

from zsq.storage.delayed import delayed
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import producer_key, row_key
from zsq.storage.delayed.delayed_recovery import check_delayed, counted
from zsq.storage.errors import DiskFull, StoreFailed
from zsq.storage.files import Files
from zsq.storage.row_changes import DELAYED, Change

from .test_delayed import UUID, DelayedMachine, block, change


class DelayedChanges(DelayedMachine):
    """The frames of a dump and of the later changes must add up to the rows of the store."""

    @initialize(folder=st.just(None))
    def begin(self, folder: None) -> None:
        self.patch = pytest.MonkeyPatch()
        if os.access("/dev/shm", os.W_OK):
            self.patch.setattr(tempfile, "tempdir", "/dev/shm")
        super().begin(None)
        self.patch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1)
        self.copy = RowCopy(DELAYED)
        self.copy.watch(self.store)

    @rule()
    def reopen(self) -> None:
        super().reopen()
        self.copy.watch(self.store)

    @rule(serial=st.integers(0, 1 << 40), commits=st.integers(0, 50))
    def adjust(self, serial: int, commits: int) -> None:
        self.store.adjust(serial, 0, commits)

    @rule()
    def shrink(self) -> None:
        before = self.copy.commits
        assert self.store.shrink(Files())
        assert self.copy.commits == before

    @rule(used_ns=st.integers(1, 3), producer_id=st.integers(8, 10))
    def forget_producers(self, used_ns: int, producer_id: int) -> None:
        """A put long after the others removes the rows of all other producers but the model's."""
        made = block(b"x", producer_id=producer_id)
        kept = self.store.producers.get(7)
        if kept is not None:  # the model's producer counts as used
            self.store.producers[7] = kept._replace(used_ns=1 << 62)
        (key,) = self.store.put([(made, 5)], used_ns + used_ns * delayed.PRODUCER_KEPT_NS)
        self.store.remove([key])

    @rule(max_bytes=st.integers(1, 2_000))
    def dump(self, max_bytes: int) -> None:
        self.copy.dump(self.store, max_bytes)

    @invariant()
    def is_copied(self) -> None:
        if hasattr(self, "copy") and self.copy.stream:
            assert sorted(self.copy.rows.items()) == rows_now(self.store)

    def teardown(self) -> None:
        if not hasattr(self, "copy"):
            return
        try:
            if self.copy.stream:
                self.check_the_copy()
        finally:
            self.patch.undo()
            super().teardown()

    def check_the_copy(self) -> None:
        path = Path(self.folder.name) / "built"
        assert self.copy.rebuild(path) == rows_now(self.store)
        assert counted(str(path))[0] == []
        built = DelayedStore(str(path), UUID)
        assert built.summary == self.store.summary
        assert built.progress == self.store.progress
        listed = built.listed(None, 1 << 20, 1 << 20)
        assert [(one.key, one.body) for one in listed] == sorted(self.model.items())
        built.put([(block(b"later", producer_id=99), 5)], 5)
        built.close()
        assert counted(str(path))[0] == []


TestDelayedChanges = DelayedChanges.TestCase
TestDelayedChanges.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DelayedStore]:
    one = DelayedStore(str(tmp_path / "delayed"), UUID, map_bytes=1 << 16, create=True)
    yield one
    one.close()


def test_a_put_reports_its_rows_once_although_the_map_is_full(store: DelayedStore) -> None:
    found: list[list[Change]] = []
    store.on_changes = found.append
    before = store.map_bytes
    (key,) = store.put([(block(bytes(300_000)), 10)], 5)
    assert store.map_bytes > before
    (changes,) = found
    assert sorted(changes) == rows_now(store)
    assert {name for name, _ in changes} == {row_key(key), producer_key(7), b"m"}
    store.remove([key], counts=False)
    assert dict(found[1]) == {row_key(key): None, b"m": dict(rows_now(store))[b"m"]}


def test_a_damaged_row_that_is_dropped_is_reported_as_removed(
    store: DelayedStore, tmp_path: Path
) -> None:
    (first, _) = store.put([(block(b"a" * 90), 10), (block(b"b", sequence=1), 10)], 5)
    change(store, first, -20)
    again = DelayedStore(store.path, UUID)
    copy = RowCopy(DELAYED)
    copy.watch(again)
    copy.dump(again, 1 << 20)
    assert copy.rebuild(tmp_path / "damaged") == rows_now(again), "rows are copied as they are"
    assert len(again.due(10, 1 << 20, 9)) == 1
    assert copy.commits == 1
    assert row_key(first) not in copy.rows
    assert copy.rebuild(tmp_path / "built") == rows_now(again)
    assert check_delayed(str(tmp_path / "built")) == []
    again.close()


def test_rows_of_several_mib_are_copied(store: DelayedStore, tmp_path: Path) -> None:
    copy = RowCopy(DELAYED)
    copy.watch(store)
    copy.dump(store, 1 << 20)
    for sequence in range(3):
        store.put([(block(*[bytes(1 << 20)] * 5, sequence=sequence), 10 + sequence)], 5)
    assert copy.rebuild(tmp_path / "by changes") == rows_now(store)
    copy.dump(store, 1 << 20)
    assert copy.rebuild(tmp_path / "by dump") == rows_now(store)
    assert [len(batch) for batch in store.dump()] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("full", "error"), [("write", DiskFull), ("sync", DiskFull), ("head", StoreFailed)]
)
def test_a_commit_that_fails_reports_nothing(
    tmp_path: Path, full: str, error: type[Exception]
) -> None:
    disk = ""
    with LmdbCalls(
        lambda call: errno.ENOSPC if ("head" if call.durable else call.kind) == disk else 0
    ):
        store = DelayedStore(str(tmp_path), UUID, create=True)
        found: list[list[Change]] = []
        store.on_changes = found.append
        disk = full
        with pytest.raises(error):
            store.put([(block(b"a"), 5)], 1)
        assert found == []
        disk = ""
        if error is DiskFull:
            store.put([(block(b"a"), 5)], 1)
            assert len(found) == 1
        store.close()


def test_a_dump_is_announced_and_may_be_given_up(store: DelayedStore) -> None:
    """A dump reads every page, and a damaged page may kill the process."""
    store.put([(block(b"a"), 10)], 5)
    said: list[str] = []
    store.attempting = said.append
    dump = store.dump(max_bytes=1)
    next(dump)
    assert said == ["dump", ""]
    dump.close()  # type: ignore[attr-defined]
    (key,) = store.put([(block(b"b", sequence=1), 10)], 5)
    assert len(list(store.dump(max_bytes=1))) == 4
    store.remove([key])
