"""Tests of taking an open topic's files for a backup: a copy that is opened elsewhere has the
topic's content of that time, whatever happened while the parts of the backup were taken.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from support.storage_harness import IDENTITY, SMALL, StorageHarness

from zsq.storage.checks.backup import (
    LogTaken,
    capture_delayed,
    capture_log,
    capture_state,
    drop_capture,
    is_captured,
    sync_log,
)
from zsq.storage.checks.fsck import check_topic
from zsq.storage.delayed.delayed_format import DelayedRow, due_block
from zsq.storage.directory.store import Store, open_store
from zsq.storage.files import Files
from zsq.storage.log.log_format import chunk_name
from zsq.storage.log.removal import remove_below
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

FILES: Final = Files()
DUE_NS: Final = 10
LATE: Final = [b"a", b"b", b"c"]


def publish(harness: StorageHarness, blocks: int) -> None:
    """Publish each block by a separate append, so that the log begins new chunks."""
    for _ in range(blocks):
        harness.publish()


def take_state(harness: StorageHarness) -> None:
    assert harness.store is not None
    capture_state(harness.files, harness.directory, harness.store.state, harness.store.keeper)


def take_log(harness: StorageHarness) -> LogTaken:
    assert harness.store is not None
    if harness.store.delayed is not None:
        capture_delayed(harness.files, harness.directory, harness.store.delayed)
    taken = sync_log(harness.files, harness.directory, harness.log)
    assert capture_log(harness.files, harness.directory, taken) == 0
    return taken


def copied(harness: StorageHarness, taken: LogTaken, to: Path) -> str:
    """Copy the files as `zsq backup` does. Of the newest chunk, copy only the part that `taken`
    includes.
    """
    folder = to / "clicks"
    shutil.copytree(f"{harness.directory}/backup", folder)
    os.truncate(folder / chunk_name(taken.bases[-1]), taken.newest_bytes)
    return str(folder)


def opened(folder: str) -> Store:
    store = open_store(FILES, folder, SMALL, IDENTITY)
    assert store.report.alarms == []
    return store


def bodies(store: Store) -> list[bytes | None]:
    blocks, offset = [], store.log.start
    while found := store.log.read(offset, 1 << 20, store.log.end):
        blocks += found
        offset = found[-1].next_offset
    return [body for block in blocks for body in block.body.values()]


@pytest.fixture
def harness(tmp_path: Path) -> StorageHarness:
    (tmp_path / "live").mkdir()
    made = StorageHarness(tmp_path / "live")
    made.open()
    return made


def test_the_log_goes_on_and_the_copy_does_not(harness: StorageHarness, tmp_path: Path) -> None:
    publish(harness, 20)
    harness.sync()
    harness.checkpoint()
    take_state(harness)
    publish(harness, 20)
    taken = take_log(harness)
    assert len(taken.bases) > 3
    publish(harness, 20)
    harness.sync()
    harness.log.forget(taken.bases[2])
    remove_below(harness.files, harness.directory, taken.bases[2])
    folder = copied(harness, taken, tmp_path / "copy")
    assert check_topic(FILES, folder, IDENTITY, 0).damaged == []
    copy = opened(folder)
    assert (copy.log.start, copy.log.end) == (0, taken.end) == (0, 120)
    assert bodies(copy) == [body for block in harness.sent[:40] for body in block]
    copy.close()
    harness.abandon()


def test_the_state_is_never_ahead_of_the_log(harness: StorageHarness, tmp_path: Path) -> None:
    """The cursor, the producers and the snapshot are from the moment when the first part was taken.
    When the copy is opened, recovery adds from the log what was published in between.
    """
    assert harness.store is not None
    harness.publish(blocks=4)
    harness.sync()
    row = ChannelRow(6)
    harness.store.state.commit(
        StateBatch(synced_end=12, applied_offset=12, channel_puts={"c": row})
    )
    take_state(harness)
    harness.publish(blocks=4)
    harness.sync()
    harness.store.state.commit(
        StateBatch(
            synced_end=24, applied_offset=24, channel_puts={"c": replace(row, next_offset=24)}
        )
    )
    copy = opened(copied(harness, take_log(harness), tmp_path / "copy"))
    table = copy.state.load()
    assert table.channels["c"].next_offset == 6
    assert copy.log.end == 24
    assert table.producers[77].next_sequence == 8
    copy.close()
    harness.abandon()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("written", "removed"), [(i, j) for i in range(4) for j in range(i, 4)])
def test_a_delayed_message_is_there_once(
    harness: StorageHarness, tmp_path: Path, written: int, removed: int, checkpoints: bool
) -> None:
    """A message that is due is written to the log, and removed from the delayed messages. Each of
    the two happens before the first part is taken (0), or after the first, second or last part.
    """
    assert harness.store is not None
    store = harness.store.make_delayed(1_000)
    store.put(
        [
            (pack([body], producer_id=9, sequence=number), DUE_NS)
            for number, body in enumerate(LATE)
        ],
        5,
    )
    rows: list[DelayedRow] = []

    def happens(now: int) -> None:
        if now == written:
            rows.extend(store.due(99, 1 << 20, 2))
            harness.log.append([due_block(row) for row in rows], harness.now_ns)
            harness.log.sync()
        if now == removed:
            store.remove([row.key for row in rows])
            if checkpoints:
                assert harness.store is not None
                harness.store.state.commit(
                    StateBatch(
                        synced_end=harness.log.synced_end, applied_offset=harness.log.synced_end
                    )
                )

    happens(0)
    take_state(harness)
    happens(1)
    capture_delayed(harness.files, harness.directory, store)
    happens(2)
    taken = sync_log(harness.files, harness.directory, harness.log)
    capture_log(harness.files, harness.directory, taken)
    happens(3)
    copy = opened(copied(harness, taken, tmp_path / "copy"))
    assert copy.delayed is not None
    waiting = [row.block.body.values()[0] for row in copy.delayed.due(99, 1 << 20, 99)]
    assert sorted([*bodies(copy), *waiting]) == LATE  # type: ignore[type-var]
    copy.close()
    harness.abandon()


def test_sealed_stages_are_captured_with_their_rows(
    harness: StorageHarness, tmp_path: Path
) -> None:
    key = harness.stage("part", 1)
    harness.seal(key)
    take_state(harness)
    harness.stage("later", 1)
    copy = opened(copied(harness, take_log(harness), tmp_path / "copy"))
    assert list(copy.staging.stages()) == [key]
    assert copy.staging.facts(key).final
    copy.close()
    harness.abandon()


def test_copies_left_by_a_backup_are_removed_and_do_no_harm(harness: StorageHarness) -> None:
    harness.publish(blocks=20)
    harness.sync()
    harness.checkpoint()
    take_state(harness)
    take_log(harness)
    harness.abandon_cleanly()
    report = check_topic(FILES, harness.directory, IDENTITY, 0)
    assert report.damaged == []
    assert [finding.level for finding in report.findings] == ["note"]
    harness.open()
    assert harness.check() == list(range(20))
    # This is the folder's name while it is being removed.
    harness.files.rename(f"{harness.directory}/backup", f"{harness.directory}/backup.tmp")
    assert is_captured(FILES, harness.directory)
    take_state(harness)
    drop_capture(harness.files, harness.directory)
    assert not is_captured(FILES, harness.directory)
    assert harness.check() == list(range(20))
    harness.abandon()
