"""A state made again from a snapshot that is older than the log's start: chunks went meanwhile, and nobody misses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.storage.test_removal import fill, remove
from tests.storage.test_state_rebuild import spoil, state_of, table_of
from zsq.storage.errors import StoreFailed
from zsq.storage.snapshot import SNAPSHOT_NAME
from zsq.storage.state import HoleRow, StateBatch

if TYPE_CHECKING:
    from tests.storage.conftest import Desk

ROW: dict[str, Any] = {"next": 2, "paused": False, "counters": {}}


def rebuilt(desk: Desk) -> int:
    """With the snapshot from before `start` moved; returns that."""
    start = fill(desk)
    state_of(desk).commit(
        StateBatch(
            channel_puts={"c": ROW, "far": {**ROW, "next": desk.log.end}},
            hole_puts=[("far", 1, 1, 1, 0), ("far", start - 1, 4, 2, 0), ("far", start + 5, 1, 1, 0)],
        )
    )
    old = desk.path(SNAPSHOT_NAME).read_bytes()
    remove(desk, start)
    desk.abandon()
    desk.path(SNAPSHOT_NAME).write_bytes(old)
    spoil(desk)
    return start


def test_channels_go_on_at_the_logs_start(desk: Desk) -> None:
    start = rebuilt(desk)
    desk.files.reset()
    report = desk.open().report
    assert not any("missing" in alarm for alarm in report.alarms)
    assert any(f"the log at {start}" in note for note in report.notes)
    table = table_of(desk)
    assert (table.start, table.dropped, table.waiting) == (start, 0, start)
    assert table.channels == {"c": {**ROW, "next": start}, "far": {**ROW, "next": desk.log.end}}
    assert table.holes == {"far": [HoleRow(start, 3, 2, 0), HoleRow(start + 5, 1, 1, 0)]}
    assert state_of(desk).walk() == []
    again = desk.restart().report
    assert (again.alarms, [note for note in again.notes if "snapshot" in note]) == ([], [])


def test_chunks_that_are_gone_otherwise_are_missed(desk: Desk) -> None:
    """Of a state that was not made again: somebody took them, and may bring them back."""
    fill(desk)
    state_of(desk).commit(StateBatch(channel_puts={"c": ROW}))
    first, second = desk.log.chunks[:2]
    desk.abandon_cleanly()
    desk.path(f"{first:020d}.chunk").unlink()
    desk.files.reset()
    for _ in range(2):
        assert any(f"{second - first} messages" in alarm for alarm in desk.open().report.alarms)
        assert (table_of(desk).start, table_of(desk).channels["c"]["next"]) == (0, 2)
        desk.abandon_cleanly()


def test_a_snapshot_that_cannot_be_read_now_is_waited_for(desk: Desk) -> None:
    """Without it all channels would be gone, for a disk that failed for a moment."""
    state_of(desk).commit(StateBatch(channel_puts={"c": {**ROW, "next": 0}}))
    desk.abandon()
    spoil(desk)
    desk.files.unreadable = (SNAPSHOT_NAME, 5)
    with pytest.raises(StoreFailed, match=f"{SNAPSHOT_NAME} cannot be read"):
        desk.open()
    desk.files.unreadable = ("", 0)
    desk.open()
    assert table_of(desk).channels.keys() == {"c"}
