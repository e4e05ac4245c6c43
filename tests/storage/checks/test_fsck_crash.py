"""Tests of `zsq fsck --repair` when a power cut interrupts it, or the disk refuses a call, at each
of its steps. Nothing is lost, and a second repair completes the first one.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import PowerCut, keep_all, keep_none

from zsq.storage.checks.fsck import TopicReport, check_topic
from zsq.storage.directory.store import StoreOptions, TopicIdentity
from zsq.storage.log.log_format import FOOTER_BYTES, index_name

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
TINY = StoreOptions(chunk_bytes=460, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0)
LEFT = [0, 1, 2, 3, 5, 6, 7]


@pytest.fixture
def spoiled(
    tmp_path: Path, harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> StorageHarness:
    """Make a closed topic with a damaged header copy, block, footer and index. All of them can be
    repaired, except for the message of the block.
    """
    # This check starts a process each time, and is not tested here.
    monkeypatch.setattr("zsq.storage.checks.fsck.check_environment", lambda path: [])
    folder = tmp_path / "spoiled"
    folder.mkdir()
    made = type(harness)(folder, TINY)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    made.abandon_cleanly()
    path = made.chunk_path(3)
    data = path.read_bytes()
    places = [at for at in range(0, len(data), 8) if data[at : at + 4] == b"ZSQD"]
    for bit in (20 * 8, (places[1] + 70) * 8, (len(data) - FOOTER_BYTES + 20) * 8):
        made.flip(path, bit)
    made.flip(made.path(index_name(0)), 300)
    return made


def repair(harness: StorageHarness) -> TopicReport:
    return check_topic(harness.files, harness.directory, IDENTITY, 9_000, repair=True)


def whole(harness: StorageHarness) -> None:
    """Check that everything is repaired, if necessary by one more repair, and that all blocks can
    be read that could be read before.
    """
    assert repair(harness).damaged == []
    assert not [finding for finding in repair(harness).findings if finding.level == "damage"]
    harness.files.reset()
    harness.open()
    assert harness.check(lost_max=1) == LEFT
    harness.abandon_cleanly()


def changes_of(harness: StorageHarness) -> int:
    harness.files.reset()
    repair(harness)
    return harness.files.changes


@pytest.mark.parametrize("loses", ["all", "nothing"])
def test_a_power_cut_at_any_step_of_a_repair_loses_nothing(
    spoiled: StorageHarness, loses: str
) -> None:
    before = {
        path: path.read_bytes()
        for path in Path(spoiled.directory).iterdir()
        if path.is_file() and path.name != "lock"
    }
    steps = changes_of(spoiled)
    assert steps > 15
    for step in range(1, steps + 1):
        for path in Path(spoiled.directory).iterdir():
            if path.is_file() and path.name != "lock":
                path.unlink()
        for path, data in before.items():
            path.write_bytes(data)
        spoiled.files.reset()
        spoiled.files.power_cut_at = step
        with pytest.raises(PowerCut):
            repair(spoiled)
        spoiled.files.crash(keep_none if loses == "all" else keep_all)
        whole(spoiled)


@pytest.mark.parametrize("call", ["writev", "sync", "open_new", "rename", "sync_folder"])
def test_a_disk_that_refuses_is_told(spoiled: StorageHarness, call: str) -> None:
    spoiled.files.reset()
    spoiled.files.fail[call] = {1: errno.ENOSPC}
    report = repair(spoiled)
    assert any("could not be repaired" in finding.text for finding in report.damaged)
    spoiled.files.fail.clear()
    whole(spoiled)


def test_a_repair_is_on_disk_when_fsck_returns(spoiled: StorageHarness) -> None:
    spoiled.files.reset()
    assert repair(spoiled).damaged == []
    spoiled.files.crash(keep_none)
    left = {
        finding.text
        for finding in check_topic(spoiled.files, spoiled.directory, IDENTITY, 9_000).findings
        if finding.level == "damage"
    }
    assert left <= {"its index is damaged and is not used; it is only a cache"}, (
        "an index is never synced"
    )
