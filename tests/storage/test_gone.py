"""What comes back, or is gone, as a whole: an older state store, the folder of delayed messages. A start says so, and fsck before it."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

from zsq.storage.files import Files
from zsq.storage.fsck import TopicReport, check_topic
from zsq.storage.state import StateBatch
from zsq.storage.store import Identity
from zsq.transport.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import Desk

IDENTITY = Identity("clicks", "00112233445566778899aabbccddeeff")
GONE = "with all delayed messages that waited in it"


def look(desk: Desk, *, repair: bool = False) -> TopicReport:
    found = check_topic(Files(), desk.directory, IDENTITY, 9_000, repair=repair)
    desk.files.reset()
    return found


def delay(desk: Desk) -> None:
    assert desk.store is not None
    desk.store.make_delayed(1_000).put([(pack([b"x"], producer_id=7), 1 << 60)], 5)


def test_an_older_state_store_is_found(desk: Desk) -> None:
    old = desk.path("state/data.mdb").read_bytes()
    assert desk.store is not None
    for turn in range(3):
        desk.store.state.commit(StateBatch(channel_puts={"archive": {"next": 0, "turn": turn}}))
    desk.abandon_cleanly()
    assert look(desk).findings == []
    desk.replace(desk.path("state/data.mdb"), old)
    assert ["an older one has come back" in finding.text for finding in look(desk).damaged] == [True]
    assert not look(desk, repair=True).damaged
    assert not look(desk).damaged
    assert "archive" in desk.open().state.load().channels


def test_delayed_messages_that_are_gone_are_missed_once(desk: Desk) -> None:
    delay(desk)
    desk.abandon_cleanly()
    assert look(desk).findings == []
    shutil.rmtree(desk.path("delayed"))
    desk.files.reset()
    assert [GONE in finding.text for finding in look(desk).damaged] == [True]
    assert [GONE in alarm for alarm in desk.open().report.alarms] == [True]
    assert desk.restart().report.alarms == []
    delay(desk)
    desk.abandon_cleanly()
    shutil.rmtree(desk.path("delayed"))
    desk.files.reset()
    assert GONE in look(desk, repair=True).findings[0].repaired
    assert look(desk).findings == []


def test_those_of_before_there_was_a_mark_are_missed_too(desk: Desk) -> None:
    delay(desk)
    desk.abandon_cleanly()
    desk.path("delayed.made").unlink()
    desk.files.reset()
    desk.open()
    desk.abandon_cleanly()
    shutil.rmtree(desk.path("delayed"))
    desk.files.reset()
    assert any(GONE in alarm for alarm in desk.open().report.alarms)


def test_a_mark_that_cannot_be_made_hinders_nothing(desk: Desk) -> None:
    before = desk.files._calls.get("open_new", 0)
    desk.files.fail["open_new"] = dict.fromkeys(range(before + 1, before + 9), errno.ENOSPC)
    delay(desk)
    desk.files.fail.clear()
    assert desk.restart().delayed is not None
    assert desk.path("delayed.made").exists()
