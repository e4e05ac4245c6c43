"""Tests of topics in memory: messages that their ephemeral channels have not finished are kept,
counted and limited, as in other topics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.storage.test_channels_channel import EPHEMERAL, ONE, TWO, ChannelsHarness, paused
from tests.actors.storage.test_retention import House, big
from zsq.actors.storage.channels import MemoryRows
from zsq.actors.storage.retention import RetentionRunner
from zsq.storage.state.channel_row import ChannelRow
from zsq.transport.errors import E_TOPIC_FULL, Refused
from zsq.transport.settings import MAX_BYTES_MIN, MIB
from zsq.transport.wire import protocol as p

Hole = tuple[int, int, int, int]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ChannelsHarness]:
    one = ChannelsHarness(str(tmp_path / "t"))
    one.harness.in_memory = True
    yield one
    one.bench.store.close()


def save(
    harness: ChannelsHarness,
    following: int,
    first: int,
    *puts: Hole,
    gone: tuple[int, ...] = (),
    channel: str = EPHEMERAL,
) -> None:
    harness.say(
        p.Save(9, channel, {"next": following, "first": first}, puts, gone, False, False), ONE
    )


def test_waiting_in_flight_and_deferred_messages_hold_the_floor(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    assert harness.harness.floor() == 0, "it begins with what waits"
    save(harness, 700, 300)
    assert harness.harness.floor() == 300, "in flight, or requeued"
    save(harness, 700, 700, (100, 50, 1, 10**18))
    assert harness.harness.floor() == 100, "deferred"
    save(harness, 1_000, 1_000, gone=(100,))
    assert harness.harness.floor() == 1_000


def test_the_slowest_channel_decides_the_floor(harness: ChannelsHarness) -> None:
    harness.open(channel="durable")
    harness.say(p.Save(9, "durable", {"next": 600}, (), (), False, False))
    harness.commit()
    for name, following in ((EPHEMERAL, 400), ("other#ephemeral", 500)):
        harness.open(channel=name)
        save(harness, following, following, channel=name)
    assert harness.harness.floor() == 400
    harness.harness.leave(EPHEMERAL)
    assert harness.harness.floor() == 500, "what is about to go holds nothing"
    harness.harness.drop(EPHEMERAL, lambda: None)
    harness.harness.drop("other#ephemeral", lambda: None)
    assert harness.harness.floor() == 600


def test_messages_after_a_pause_hold_the_floor(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    save(harness, 1_000, 1_000)
    paused(harness)
    assert harness.harness.floor() == 1_000
    harness.harness.checkpoint()
    harness.harness.pause(False, lambda end: None)
    harness.commit()
    assert harness.harness.floor() == 1_000
    save(harness, 1_500, 1_500)
    assert harness.harness.floor() == 1_500


def test_the_next_channel_begins_where_the_last_one_left(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    harness.harness.leave(EPHEMERAL)
    harness.commit()
    harness.harness.drop(EPHEMERAL, lambda: None)
    harness.commit()
    assert harness.harness.floor() == 1_000
    assert harness.open(TWO, EPHEMERAL)["row"]["next"] == 1_000


def test_deferred_messages_that_were_dropped_do_not_hold_the_floor() -> None:
    """A deferred message that was dropped because of the bound stays in its row until it is due."""
    rows = MemoryRows()
    rows.make("c", ChannelRow(9))
    rows.save(
        "c",
        ChannelRow(90, first=40),
        [p.Save(1, "c", {}, tuple((start, 10, 1, 99) for start in (0, 20, 60)), (), False, False)],
    )
    assert [rows.first("c", start) for start in (0, 5, 10, 25, 30, 45, 70, 95)] == [
        0,
        5,
        20,
        25,
        40,
        45,
        70,
        95,
    ]


def test_starts_of_removed_rows_do_not_stay_in_memory() -> None:
    rows = MemoryRows()
    rows.make("c", ChannelRow(0))
    for number in range(5_000):
        rows.save(
            "c",
            ChannelRow(10**6),
            [
                p.Save(
                    1,
                    "c",
                    {},
                    ((5, 1, 1, 99), (number + 10, 1, 1, 99)),
                    (number + 9,),
                    False,
                    False,
                )
            ],
        )
    assert rows.first("c", 0) == 5
    assert len(rows._deferred["c"]._starts) < 1_010
    rows.save("c", ChannelRow(10**6), [p.Save(1, "c", {}, (), (5,), False, False)])
    assert rows.first("c", 0) == 5_009


# The bound


@pytest.fixture
def housekeeping(tmp_path: Path) -> Iterator[House]:
    one = House(str(tmp_path / "t"))
    yield one
    one.store.close()


def begin(housekeeping: House, when_full: str) -> RetentionRunner:
    """Begin with a channel that finishes nothing."""
    harness = housekeeping.begin(keep_bytes=0, max_bytes=MAX_BYTES_MIN, when_full=when_full)
    housekeeping.store.log.chunk_bytes = MIB
    harness.in_memory = housekeeping.channels.in_memory = True
    housekeeping.channels.memory.make(EPHEMERAL, ChannelRow(0))
    return harness


def fill(housekeeping: House, blocks: int) -> None:
    for _ in range(blocks):
        housekeeping.store.log.append([big(90_000)], time.time_ns())
    housekeeping.store.log.sync()
    housekeeping.state.want()
    housekeeping.commit_state()


def test_below_the_bound_no_unfinished_message_is_dropped(housekeeping: House) -> None:
    harness = begin(housekeeping, "drop-oldest")
    fill(housekeeping, 6)
    for _ in range(10):
        harness.tick()
    assert (
        housekeeping.state.batch.start,
        housekeeping.store.log.start,
        harness.statistics()["finished_bytes"],
    ) == (None, 0, 0)


def test_beyond_the_bound_the_oldest_messages_are_dropped_and_counted(housekeeping: House) -> None:
    harness = begin(housekeeping, "drop-oldest")
    fill(housekeeping, 12)
    harness.tick()
    housekeeping.snapshot()
    start = housekeeping.state.batch.start
    assert start is not None
    assert 30 <= start <= 50
    housekeeping.commit_state()
    assert harness.statistics()["dropped_count"] == start


def test_with_reject_publishes_beyond_the_bound_are_refused(housekeeping: House) -> None:
    harness = begin(housekeeping, "reject")
    fill(housekeeping, 10)
    harness.tick()
    with pytest.raises(Refused, match="delete a channel that nobody reads") as refusal:
        harness.admit()
    assert (refusal.value.code, housekeeping.store.log.start) == (E_TOPIC_FULL, 0)
    housekeeping.channels.memory.rows[EPHEMERAL] = ChannelRow(100, first=100)
    harness._measured_ns = 0
    harness.admit()
    assert harness.statistics()["refused_count"] == 1
