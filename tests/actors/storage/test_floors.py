"""Tests of the floors of channels: the offset below which a channel has finished everything. The
age of its oldest message is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.storage.test_channels_channel import ChannelsHarness
from zsq.transport.block.block import pack
from zsq.transport.wire import protocol as p


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ChannelsHarness]:
    """`Channels` of a topic with 1,000 messages."""
    one = ChannelsHarness(str(tmp_path / "topic"))
    yield one
    one.bench.store.close()


def floors(harness: ChannelsHarness) -> dict[str, tuple[int, int]]:
    return {floor.channel: (floor.offset, floor.end) for floor in harness.harness.floors()}


def test_without_a_channel_all_messages_wait_for_the_first_one(harness: ChannelsHarness) -> None:
    assert floors(harness) == {"": (0, 1_000)}


def test_a_channels_floor_counts_its_cursor_holes_and_deferred_rows(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.save(600)
    assert floors(harness) == {"c": (600, 1_000), "": (600, 1_000)}
    harness.save(700, (400, 5, 1, 0))
    assert floors(harness)["c"] == (400, 1_000), "in flight, or to be delivered again"
    harness.save(700, (300, 5, 1, 99), gone=(400,))
    assert floors(harness)["c"] == (300, 1_000), "deferred"
    harness.save(1_000, gone=(300,))
    assert floors(harness) == {"c": (1_000, 1_000), "": (1_000, 1_000)}


def test_messages_after_a_pause_belong_to_the_topic_and_to_no_channel(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.save(1_000)
    harness.harness.visible_end = 1_000
    harness.bench.store.log.append([pack([b"x"] * 20)], 2)
    harness.bench.store.log.sync()
    assert floors(harness) == {"c": (1_000, 1_000), "": (1_000, 1_020)}


def test_an_ephemeral_channel_reports_its_own_floor(harness: ChannelsHarness) -> None:
    harness.open(channel="e#ephemeral")
    harness.say(
        p.Save(9, "e#ephemeral", {"next": 50, "first": 20}, ((20, 3, 1, 0),), (), False, False)
    )
    assert floors(harness)["e#ephemeral"] == (20, 1_000)
    harness.say(
        p.Save(9, "e#ephemeral", {"next": 60, "first": 60}, ((7, 3, 1, 99),), (), False, False)
    )
    assert floors(harness)["e#ephemeral"] == (7, 1_000), "deferred"
