"""Tests of when a snapshot of the state is written: often enough for a fast start, but not more
often than needed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from zsq.storage.files import Files
from zsq.storage.log.transactions import StageRow
from zsq.storage.state import state_keeper
from zsq.storage.state.state import StateBatch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storage.conftest import StorageHarness

S = 1_000_000_000
STAGE = StageRow("query", 7, "app", 1, 0, 0, 0, 0, True, (), 50)


def test_later_snapshots_wait_a_minute_or_longer_for_a_large_state(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness.store is not None
    keeper, state = harness.store.keeper, harness.store.state
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert keeper.is_due(), "the first one is due at once"
    keeper.write()
    assert not keeper.is_due()
    now[0] += 100
    assert not keeper.is_due(), "nothing changed"
    state.commit(StateBatch(synced_end=0))
    assert keeper.is_due()
    monkeypatch.setattr(state_keeper, "SNAPSHOT_STEP_BYTES", 100)
    keeper.write()
    state.commit(StateBatch(synced_end=0))
    now[0] += 100
    assert not keeper.is_due()
    # The pause grows with the size of the state, by one interval for each step. With a step of
    # 1 byte it would be hours, so SNAPSHOT_LATEST_S limits it.
    monkeypatch.setattr(state_keeper, "SNAPSHOT_STEP_BYTES", 1)
    keeper.write()
    state.commit(StateBatch(synced_end=0))
    now[0] += state_keeper.SNAPSHOT_LATEST_S
    assert keeper.is_due()
    renames = harness.files.log.count("rename")
    state.commit(StateBatch(stage_puts={b"s" * 16: STAGE}))
    assert harness.files.log.count("rename") == renames, (
        "a large one is not written for each part that is sealed"
    )


@pytest.mark.parametrize(("every_s", "suspected"), [(1, True), (20, False), (-1, False)])
def test_many_starts_within_a_minute_make_the_store_suspect_and_not_those_of_a_day(
    tmp_path: Path, every_s: int, suspected: bool
) -> None:
    """Each start makes a commit. If `every_s` is -1, the clock is set back each time, so that
    earlier starts seem to be in the future.
    """
    found = []
    for number in range(3 * state_keeper.STARTS_MAX):
        starts = state_keeper.Starts(Files(), str(tmp_path))
        found.append(starts.begin((1_000_000 + number * every_s) * S))
        starts.committed()
    assert (max(found) >= state_keeper.UNPROVEN_MAX) == suspected
    assert found[0] == 0
