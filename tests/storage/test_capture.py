"""An open topic's files taken for a backup: opened elsewhere, they are the topic as it was, whatever happened between the parts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest
from support.desk import IDENTITY, SMALL, Desk

from zsq.storage.capture import LogTaken, capture_delayed, capture_log, capture_state, drop_capture, is_captured, sync_log
from zsq.storage.delayed_format import DelayedRow, due_block
from zsq.storage.files import Files
from zsq.storage.fsck import check_topic
from zsq.storage.log_format import chunk_name
from zsq.storage.removal import remove_below
from zsq.storage.state import StateBatch
from zsq.storage.store import Store, open_store
from zsq.transport.block import pack

FILES: Final = Files()
DUE_NS: Final = 10
LATE: Final = [b"a", b"b", b"c"]


def publish(desk: Desk, blocks: int) -> None:
    """Each by an append of its own, so that chunks roll."""
    for _ in range(blocks):
        desk.publish()


def take_state(desk: Desk) -> None:
    assert desk.store is not None
    capture_state(desk.files, desk.directory, desk.store.state, desk.store.keeper)


def take_log(desk: Desk) -> LogTaken:
    assert desk.store is not None
    if desk.store.delayed is not None:
        capture_delayed(desk.files, desk.directory, desk.store.delayed)
    taken = sync_log(desk.files, desk.directory, desk.log)
    assert capture_log(desk.files, desk.directory, taken) == 0
    return taken


def copied(desk: Desk, taken: LogTaken, to: Path) -> str:
    """As `zsq backup` copies it: of the newest chunk what counted."""
    folder = to / "clicks"
    shutil.copytree(f"{desk.directory}/backup", folder)
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
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "live").mkdir()
    made = Desk(tmp_path / "live")
    made.open()
    return made


def test_the_log_goes_on_and_the_copy_does_not(desk: Desk, tmp_path: Path) -> None:
    publish(desk, 20)
    desk.sync()
    desk.checkpoint()
    take_state(desk)
    publish(desk, 20)
    taken = take_log(desk)
    assert len(taken.bases) > 3
    publish(desk, 20)
    desk.sync()
    desk.log.forget(taken.bases[2])
    remove_below(desk.files, desk.directory, taken.bases[2])
    folder = copied(desk, taken, tmp_path / "copy")
    assert check_topic(FILES, folder, IDENTITY, 0).damaged == []
    copy = opened(folder)
    assert (copy.log.start, copy.log.end) == (0, taken.end) == (0, 120)
    assert bodies(copy) == [body for block in desk.sent[:40] for body in block]
    copy.close()
    desk.abandon()


def test_the_state_is_never_ahead_of_the_log(desk: Desk, tmp_path: Path) -> None:
    """Cursor, producers and snapshot are those of the first part; the log's replay brings what came between."""
    assert desk.store is not None
    desk.publish(blocks=4)
    desk.sync()
    row = {"next": 6, "paused": False}
    desk.store.state.commit(StateBatch(synced_end=12, applied_offset=12, channel_puts={"c": row}))
    take_state(desk)
    desk.publish(blocks=4)
    desk.sync()
    desk.store.state.commit(StateBatch(synced_end=24, applied_offset=24, channel_puts={"c": {**row, "next": 24}}))
    copy = opened(copied(desk, take_log(desk), tmp_path / "copy"))
    table = copy.state.load()
    assert table.channels["c"]["next"] == 6
    assert copy.log.end == 24
    assert table.producers[77].next_sequence == 8
    copy.close()
    desk.abandon()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("written", "removed"), [(i, j) for i in range(4) for j in range(i, 4)])
def test_a_delayed_message_is_there_once(desk: Desk, tmp_path: Path, written: int, removed: int, checkpoints: bool) -> None:
    """Written to the log, and removed where it waited, before the first part (0), or after the first, second or last one."""
    assert desk.store is not None
    store = desk.store.make_delayed(1_000)
    store.put([(pack([body], producer_id=9, sequence=number), DUE_NS) for number, body in enumerate(LATE)], 5)
    rows: list[DelayedRow] = []

    def happens(now: int) -> None:
        if now == written:
            rows.extend(store.due(99, 1 << 20, 2))
            desk.log.append([due_block(row) for row in rows], desk.now_ns)
            desk.log.sync()
        if now == removed:
            store.remove([row.key for row in rows])
            if checkpoints:
                assert desk.store is not None
                desk.store.state.commit(StateBatch(synced_end=desk.log.synced_end, applied_offset=desk.log.synced_end))

    happens(0)
    take_state(desk)
    happens(1)
    capture_delayed(desk.files, desk.directory, store)
    happens(2)
    taken = sync_log(desk.files, desk.directory, desk.log)
    capture_log(desk.files, desk.directory, taken)
    happens(3)
    copy = opened(copied(desk, taken, tmp_path / "copy"))
    assert copy.delayed is not None
    waiting = [row.block.body.values()[0] for row in copy.delayed.due(99, 1 << 20, 99)]
    assert sorted([*bodies(copy), *waiting]) == LATE  # type: ignore[type-var]
    copy.close()
    desk.abandon()


def test_what_is_staged_comes_with_its_rows(desk: Desk, tmp_path: Path) -> None:
    key = desk.stage("part", 1)
    desk.seal(key)
    take_state(desk)
    desk.stage("later", 1)
    copy = opened(copied(desk, take_log(desk), tmp_path / "copy"))
    assert list(copy.staging.stages()) == [key]
    assert copy.staging.facts(key).final
    copy.close()
    desk.abandon()


def test_what_is_left_goes_and_harms_nobody(desk: Desk) -> None:
    desk.publish(blocks=20)
    desk.sync()
    desk.checkpoint()
    take_state(desk)
    take_log(desk)
    desk.abandon_cleanly()
    report = check_topic(FILES, desk.directory, IDENTITY, 0)
    assert report.damaged == []
    assert [finding.level for finding in report.findings] == ["note"]
    desk.open()
    assert desk.check() == list(range(20))
    desk.files.rename(f"{desk.directory}/backup", f"{desk.directory}/backup.tmp")  # as it is while it goes
    assert is_captured(FILES, desk.directory)
    take_state(desk)
    drop_capture(desk.files, desk.directory)
    assert not is_captured(FILES, desk.directory)
    assert desk.check() == list(range(20))
    desk.abandon()
