"""Tests of a state that is rebuilt from a snapshot older than the log's start: chunks were removed
meanwhile, and they are not reported as missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.storage.log.test_removal import fill, remove
from tests.storage.state.test_state_keeper_rebuild import spoil, state_of, table_of
from zsq.storage.errors import StoreFailed
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.snapshot import SNAPSHOT_NAME
from zsq.storage.state.state import HoleRow, StateBatch

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

ROW = ChannelRow(2)


def rebuilt(harness: StorageHarness) -> int:
    """Damage the state, and restore the snapshot from before `start` moved. Return the start."""
    start = fill(harness)
    state_of(harness).commit(
        StateBatch(
            channel_puts={"c": ROW, "far": replace(ROW, next_offset=harness.log.end)},
            hole_puts=[
                ("far", 1, 1, 1, 0),
                ("far", start - 1, 4, 2, 0),
                ("far", start + 5, 1, 1, 0),
            ],
        )
    )
    old = harness.path(SNAPSHOT_NAME).read_bytes()
    remove(harness, start)
    harness.abandon()
    harness.path(SNAPSHOT_NAME).write_bytes(old)
    spoil(harness)
    return start


def test_channels_go_on_at_the_logs_start(harness: StorageHarness) -> None:
    start = rebuilt(harness)
    harness.files.reset()
    report = harness.open().report
    assert not any("missing" in alarm for alarm in report.alarms)
    assert any(f"the log begins at {start}" in note for note in report.notes)
    table = table_of(harness)
    assert (table.start, table.dropped, table.waiting) == (start, 0, start)
    assert table.channels == {
        "c": replace(ROW, next_offset=start),
        "far": replace(ROW, next_offset=harness.log.end),
    }
    assert table.holes == {"far": [HoleRow(start, 3, 2, 0), HoleRow(start + 5, 1, 1, 0)]}
    assert state_of(harness).walk() == []
    again = harness.restart().report
    assert (again.alarms, [note for note in again.notes if "snapshot" in note]) == ([], [])


def test_chunks_that_are_gone_otherwise_are_missed(harness: StorageHarness) -> None:
    """This state was not rebuilt. Somebody took the chunks away, and may bring them back."""
    fill(harness)
    state_of(harness).commit(StateBatch(channel_puts={"c": ROW}))
    first, second = harness.log.chunks[:2]
    harness.abandon_cleanly()
    harness.path(f"{first:020d}.chunk").unlink()
    harness.files.reset()
    for _ in range(2):
        assert any(f"{second - first} messages" in alarm for alarm in harness.open().report.alarms)
        assert (table_of(harness).start, table_of(harness).channels["c"].next_offset) == (0, 2)
        harness.abandon_cleanly()


def test_a_snapshot_that_cannot_be_read_now_is_waited_for(harness: StorageHarness) -> None:
    """Without the snapshot all channels would be lost, because of a disk that failed for a
    moment.
    """
    state_of(harness).commit(StateBatch(channel_puts={"c": replace(ROW, next_offset=0)}))
    harness.abandon()
    spoil(harness)
    harness.files.unreadable = (SNAPSHOT_NAME, 5)
    with pytest.raises(StoreFailed, match=f"{SNAPSHOT_NAME} cannot be read"):
        harness.open()
    harness.files.unreadable = ("", 0)
    harness.open()
    assert table_of(harness).channels.keys() == {"c"}
