"""Tests of gaps of offsets in a topic's directory that is not open."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_files import PowerCut, keep_all, keep_none
from support.storage_harness import IDENTITY, StorageHarness

from zsq.storage.bucket.shipping.offset_gap import skip_offsets

COUNT = 1_000


def skip(harness: StorageHarness) -> tuple[int, int]:
    return skip_offsets(harness.files, harness.directory, IDENTITY, COUNT)


@pytest.mark.parametrize("blocks", [0, 1, 40])
def test_a_log_goes_on_behind_the_gap_with_all_that_it_had(tmp_path: Path, blocks: int) -> None:
    harness = StorageHarness(tmp_path)
    harness.open()
    for _ in range(blocks):
        harness.publish()
        harness.sync()
    end = harness.log.end
    harness.abandon_cleanly()
    assert skip(harness) == (0 if blocks else COUNT, end + COUNT)
    store = harness.open()
    assert not store.report.alarms
    assert (harness.log.end, max(harness.log.start, store.state.load().start)) == (
        end + COUNT, 0 if blocks else COUNT,
    )  # fmt: skip
    harness.publish()
    harness.sync()
    harness.restart()
    assert harness.offsets[blocks] == end + COUNT
    assert len(harness.check()) == blocks + 1
    harness.abandon()


@pytest.mark.parametrize("choose", [keep_all, keep_none])
@pytest.mark.parametrize("blocks", [0, 40])
def test_a_power_cut_loses_nothing_and_the_next_attempt_leaves_the_gap(
    tmp_path: Path, choose: object, blocks: int
) -> None:
    cuts = 0
    for cut in range(1, 200):
        (root := tmp_path / f"{cut}").mkdir()
        harness = StorageHarness(root)
        harness.open()
        for _ in range(blocks):
            harness.publish()
            harness.sync()
        end = harness.log.end
        harness.abandon_cleanly()
        harness.files.reset()
        harness.files.changes = 0
        harness.files.power_cut_at = cut
        try:
            skip(harness)
        except PowerCut:
            cuts += 1
            harness.files.power_cut_at = 0
            harness.abandon()
            harness.files.crash(choose)  # type: ignore[arg-type]
        else:
            break
        assert skip(harness)[1] in (end + COUNT, end + 2 * COUNT)
        store = harness.open()
        assert not store.report.alarms
        assert harness.log.end >= end + COUNT
        harness.publish()
        harness.sync()
        harness.restart()
        assert len(harness.check()) == blocks + 1
        harness.abandon()
    assert cuts > 5
