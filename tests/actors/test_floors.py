"""Below which offset each channel of a topic has finished everything: what its oldest age is taken from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.test_channel_desk import Desk
from zsq.transport import protocol as p
from zsq.transport.block import pack


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A topic with 1,000 messages."""
    one = Desk(str(tmp_path / "topic"))
    yield one
    one.bench.store.close()


def floors(desk: Desk) -> dict[str, tuple[int, int]]:
    return {floor.channel: (floor.offset, floor.end) for floor in desk.desk.floors()}


def test_without_a_channel_all_waits_for_the_first(desk: Desk) -> None:
    assert floors(desk) == {"": (0, 1_000)}


def test_cursor_holes_and_deferred_count(desk: Desk) -> None:
    desk.open()
    desk.save(600)
    assert floors(desk) == {"c": (600, 1_000), "": (600, 1_000)}
    desk.save(700, (400, 5, 1, 0))
    assert floors(desk)["c"] == (400, 1_000), "in flight, or to be delivered again"
    desk.save(700, (300, 5, 1, 99), gone=(400,))
    assert floors(desk)["c"] == (300, 1_000), "deferred"
    desk.save(1_000, gone=(300,))
    assert floors(desk) == {"c": (1_000, 1_000), "": (1_000, 1_000)}


def test_behind_a_pause_the_topic_has_it_and_no_channel(desk: Desk) -> None:
    desk.open()
    desk.save(1_000)
    desk.desk.visible_end = 1_000
    desk.bench.store.log.append([pack([b"x"] * 20)], 2)
    desk.bench.store.log.sync()
    assert floors(desk) == {"c": (1_000, 1_000), "": (1_000, 1_020)}


def test_ephemeral_ones_say_themselves_what_they_hold(desk: Desk) -> None:
    desk.open(channel="e#ephemeral")
    desk.say(p.Save(9, "e#ephemeral", {"next": 50, "first": 20}, ((20, 3, 1, 0),), (), False, False))
    assert floors(desk)["e#ephemeral"] == (20, 1_000)
    desk.say(p.Save(9, "e#ephemeral", {"next": 60, "first": 60}, ((7, 3, 1, 99),), (), False, False))
    assert floors(desk)["e#ephemeral"] == (7, 1_000), "deferred"
