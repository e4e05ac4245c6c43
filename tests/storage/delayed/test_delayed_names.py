"""Tests of the mark on disk that a topic has delayed messages: if their folder is gone, this is
reported once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.faulty_files import keep_none

from zsq.storage.files import Files
from zsq.storage.log.log_format import DELAYED_NAME

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def test_a_folder_that_is_gone_is_told_once_also_after_power_cuts(harness: StorageHarness) -> None:
    assert harness.store is not None
    harness.store.make_delayed(1_000)
    harness.crash(keep_none)
    harness.abandon_cleanly()
    Files().remove_tree(f"{harness.directory}/{DELAYED_NAME}")
    harness.files.reset()
    assert any(
        "is missing, with all delayed messages" in alarm for alarm in harness.open().report.alarms
    )
    assert harness.crash(keep_none).report.alarms == []


def test_the_name_of_the_folder_is_synced_when_it_is_created(harness: StorageHarness) -> None:
    assert harness.store is not None
    harness.store.make_delayed(1_000)
    store = harness.crash(keep_none)
    assert store.delayed is not None
    assert store.report.alarms == []
