"""Tests of an older state store that comes back, and of a folder of delayed messages that is gone.
A start reports it, and so does fsck before the start.
"""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

from zsq.storage.checks.fsck import TopicReport, check_topic
from zsq.storage.directory.store import TopicIdentity
from zsq.storage.files import Files
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
GONE = "is missing, with all delayed messages that were in it"


def look(harness: StorageHarness, *, repair: bool = False) -> TopicReport:
    found = check_topic(Files(), harness.directory, IDENTITY, 9_000, repair=repair)
    harness.files.reset()
    return found


def delay(harness: StorageHarness) -> None:
    assert harness.store is not None
    harness.store.make_delayed(1_000).put([(pack([b"x"], producer_id=7), 1 << 60)], 5)


def test_an_older_state_store_is_found(harness: StorageHarness) -> None:
    old = harness.path("state/data.mdb").read_bytes()
    assert harness.store is not None
    for turn in range(3):
        harness.store.state.commit(
            StateBatch(channel_puts={"archive": ChannelRow(0, counters={"turn": turn})})
        )
    harness.abandon_cleanly()
    assert look(harness).findings == []
    harness.replace(harness.path("state/data.mdb"), old)
    assert ["it is an older state store" in finding.text for finding in look(harness).damaged] == [
        True
    ]
    assert not look(harness, repair=True).damaged
    assert not look(harness).damaged
    assert "archive" in harness.open().state.load().channels


def test_delayed_messages_that_are_gone_are_missed_once(harness: StorageHarness) -> None:
    delay(harness)
    harness.abandon_cleanly()
    assert look(harness).findings == []
    shutil.rmtree(harness.path("delayed"))
    harness.files.reset()
    assert [GONE in finding.text for finding in look(harness).damaged] == [True]
    assert [GONE in alarm for alarm in harness.open().report.alarms] == [True]
    assert harness.restart().report.alarms == []
    delay(harness)
    harness.abandon_cleanly()
    shutil.rmtree(harness.path("delayed"))
    harness.files.reset()
    assert GONE in look(harness, repair=True).findings[0].repaired
    assert look(harness).findings == []


def test_a_lost_folder_from_before_marks_existed_is_noticed_too(harness: StorageHarness) -> None:
    delay(harness)
    harness.abandon_cleanly()
    harness.path("delayed.made").unlink()
    harness.files.reset()
    harness.open()
    harness.abandon_cleanly()
    shutil.rmtree(harness.path("delayed"))
    harness.files.reset()
    assert any(GONE in alarm for alarm in harness.open().report.alarms)


def test_a_mark_that_cannot_be_made_hinders_nothing(harness: StorageHarness) -> None:
    before = harness.files._calls.get("open_new", 0)
    harness.files.fail["open_new"] = dict.fromkeys(range(before + 1, before + 9), errno.ENOSPC)
    delay(harness)
    harness.files.fail.clear()
    assert harness.restart().delayed is not None
    assert harness.path("delayed.made").exists()
