"""Tests of power cuts while an environment of delayed messages is made, or its state is noted.
Every acknowledged message is found again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest
from support.faulty_files import FaultyFiles, FaultyNode, keep_none

from zsq.storage.delayed import delayed_recovery
from zsq.storage.delayed.delayed import DelayedStore, Progress
from zsq.storage.delayed.delayed_format import DelayedKey, row_key
from zsq.storage.delayed.delayed_recovery import NOTE_NAME, note_progress, noted_progress
from zsq.storage.files import Files
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

UUID = bytes(range(16))
DUE = 1_700_000_000_000_000_000


class ForgetfulFiles(FaultyFiles):
    """A disk on which LMDB's files too survive a crash only if their folder was synced after they
    were made. Their content survives.
    """

    def __init__(self, root: str) -> None:
        self._lasting: dict[FaultyNode, set[str]] = {}
        super().__init__(root)

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._lasting.setdefault(self._find(path), set()).update(
            name for name in self.list(path) if name.endswith(".mdb")
        )

    def _strangers(self, path: str, node: FaultyNode) -> dict[int, dict[str, bytes]]:
        found = super()._strangers(path, node)
        known = node.names.keys() | self._lasting.get(node, set())
        found[id(node)] = {
            name: data
            for name, data in found[id(node)].items()
            if name in known or not name.endswith(".mdb")
        }
        return found


@pytest.fixture
def forgetful(tmp_path: Path, harness: StorageHarness) -> Iterator[StorageHarness]:
    (tmp_path / "forgetful").mkdir()
    made = type(harness)(tmp_path / "forgetful", files=ForgetfulFiles(str(tmp_path / "forgetful")))
    made.open()
    yield made
    made.abandon()


def publish(store: DelayedStore, count: int, first: int = 0) -> list[DelayedKey]:
    numbers = range(first, first + count)
    return [
        store.put([(pack([b"%03d" % number], producer_id=7, sequence=number), DUE + number)], 5)[0]
        for number in numbers
    ]


def make(harness: StorageHarness) -> DelayedStore:
    assert harness.store is not None
    return harness.store.make_delayed(1_000)


def waiting(harness: StorageHarness) -> list[bytes]:
    assert harness.store is not None
    return (
        []
        if harness.store.delayed is None
        else [one.body for one in harness.store.delayed.listed(None, 999, 99)]
    )


def all_of(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def cut_power(harness: StorageHarness) -> None:
    """Cut the power so that all unsynced changes are lost, and do not start the topic yet."""
    harness.abandon()
    harness.files.crash(keep_none)


# Names


def test_the_first_delayed_message_survives_a_power_cut(forgetful: StorageHarness) -> None:
    """The file gets its name in the new folder before the folder gets its own name."""
    publish(make(forgetful), 1)
    assert forgetful.crash(keep_none).report.alarms == []
    assert waiting(forgetful) == all_of(1)


def test_the_environments_name_is_synced_although_its_mark_failed(harness: StorageHarness) -> None:
    """The mark fails on purpose. Otherwise its sync would make the environment's name durable too,
    and hide a missing sync.
    """
    harness.files.fail["open_new"] = {harness.files._calls.get("open_new", 0) + 1: errno.ENOSPC}
    publish(make(harness), 1)
    assert not harness.path("delayed.made").exists()
    harness.crash(keep_none)
    assert waiting(harness) == all_of(1)


def test_the_mark_of_an_environment_is_for_good(harness: StorageHarness) -> None:
    """The mark must stay. Without it, the next start would not notice that the folder was lost."""
    make(harness)
    cut_power(harness)
    assert harness.path("delayed.made").exists()
    assert harness.path("delayed/data.mdb").exists()


def test_a_loss_is_told_once_also_if_the_power_goes_then(harness: StorageHarness) -> None:
    make(harness)
    harness.abandon_cleanly()
    harness.files.remove_tree(f"{harness.directory}/delayed")
    harness.files.reset()
    alarms: list[str] = []
    delayed_recovery._tell_if_gone(harness.files, harness.directory, alarms)
    assert len(alarms) == 1
    cut_power(harness)
    assert harness.open().report.alarms == []


# Damaged rows


def damage(harness: StorageHarness, keys: list[DelayedKey]) -> DelayedStore:
    """Flip a bit in the body of each of these rows, and open the store again."""
    harness.abandon_cleanly()
    with lmdb.open(f"{harness.directory}/delayed", lock=False) as env, env.begin(write=True) as txn:
        for key in keys:
            value = bytearray(txn.get(row_key(key)) or b"")
            value[-1] ^= 1
            txn.put(row_key(key), bytes(value))
    harness.files.reset()
    found = harness.open().delayed
    assert found is not None
    return found


def bad_rows(harness: StorageHarness) -> list[str]:
    return [name for name in harness.files.list(harness.directory) if name.startswith("delayed-")]


def test_a_damaged_row_that_was_deleted_is_found_in_its_file_after_a_power_cut(
    harness: StorageHarness,
) -> None:
    store = damage(harness, publish(make(harness), 3)[1:2])
    assert len(store.due(DUE + 99, 1 << 20, 99)) == 2
    cut_power(harness)
    assert len(bad_rows(harness)) == 1
    harness.open()
    assert waiting(harness) == [b"000", b"002"]


def test_a_rotten_disk_does_not_fill_the_folder_with_files(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When there are too many files, further rows are only counted."""
    monkeypatch.setattr(delayed_recovery, "BAD_ROWS_MAX", 2)
    store = damage(harness, publish(make(harness), 5)[:4])
    assert len(store.due(DUE + 99, 1 << 20, 99)) == 1
    assert len(bad_rows(harness)) == 2
    assert (store.summary.messages, store.summary.lost) == (1, 4)


def test_a_turn_handles_a_bounded_number_of_damaged_rows(harness: StorageHarness) -> None:
    """Each row gets a file, and all are deleted by one commit. The broker's loop waits
    meanwhile.
    """
    store = damage(harness, publish(make(harness), 7)[:6])
    kept: list[bytes] = []
    store.set_aside = lambda key, value, why: kept.append(key)
    counts = []
    while store.summary.lost < 6:
        found = store.due(DUE + 99, 1 << 20, 2)
        counts.append((len(kept), len(found)))
    assert counts == [(2, 0), (4, 0), (6, 0)]
    assert len(store.due(DUE + 99, 1 << 20, 2)) == 1


# The note of the newest commit


def test_a_damaged_note_of_commits_is_ignored(tmp_path: Path) -> None:
    """If the note were used, it would say that commits are missing, and messages would be counted
    as lost that never existed.
    """
    note_progress(Files(), str(tmp_path), Progress(6, 100, 3))
    assert noted_progress(Files(), str(tmp_path)) == Progress(6, 100, 3)
    note = tmp_path / NOTE_NAME
    good = note.read_bytes()
    for bad in (
        good.replace(b'"commits": 6', b'"commits": 7'),
        good.replace(b" 100", b" 900"),
        good[:-2],
        good + b"x",
    ):
        assert bad != good
        note.write_bytes(bad)
        assert noted_progress(Files(), str(tmp_path)) == Progress()
