"""That a topic had delayed messages is on disk as long as it has: a folder that is gone is missed, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zsq.storage.faulty_files import keep_none
from zsq.storage.files import Files
from zsq.storage.log_format import DELAYED_NAME

if TYPE_CHECKING:
    from tests.storage.conftest import Desk


def test_a_folder_that_is_gone_is_told_once_also_after_power_cuts(desk: Desk) -> None:
    assert desk.store is not None
    desk.store.make_delayed(1_000)
    desk.crash(keep_none)
    desk.abandon_cleanly()
    Files().remove_tree(f"{desk.directory}/{DELAYED_NAME}")
    desk.files.reset()
    assert any("is gone, with all delayed messages" in alarm for alarm in desk.open().report.alarms)
    assert desk.crash(keep_none).report.alarms == []


def test_the_folder_has_its_name_for_good_when_it_is_made(desk: Desk) -> None:
    assert desk.store is not None
    desk.store.make_delayed(1_000)
    store = desk.crash(keep_none)
    assert store.delayed is not None
    assert store.report.alarms == []
