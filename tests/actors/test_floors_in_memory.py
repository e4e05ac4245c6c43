"""Topics in memory: what their ephemeral channels have not finished is held, bounded and counted, as that of all others is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.test_channel_desk import EPHEMERAL, ONE, TWO, Desk, paused
from tests.actors.test_retention_desk import House, big
from zsq.actors.memory_rows import MemoryRows
from zsq.actors.retention_desk import RetentionDesk
from zsq.storage.retention import MAX_BYTES_MIN, MIB
from zsq.transport import protocol as p
from zsq.transport.errors import E_TOPIC_FULL, Refused

Hole = tuple[int, int, int, int]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    one = Desk(str(tmp_path / "t"))
    one.desk.in_memory = True
    yield one
    one.bench.store.close()


def save(desk: Desk, following: int, first: int, *puts: Hole, gone: tuple[int, ...] = (), channel: str = EPHEMERAL) -> None:
    desk.say(p.Save(9, channel, {"next": following, "first": first}, puts, gone, False, False), ONE)


def test_waiting_in_flight_and_deferred_are_held(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    assert desk.desk.floor() == 0, "it begins with what waits"
    save(desk, 700, 300)
    assert desk.desk.floor() == 300, "in flight, or requeued"
    save(desk, 700, 700, (100, 50, 1, 10**18))
    assert desk.desk.floor() == 100, "deferred"
    save(desk, 1_000, 1_000, gone=(100,))
    assert desk.desk.floor() == 1_000


def test_the_slowest_of_all_counts(desk: Desk) -> None:
    desk.open(channel="durable")
    desk.say(p.Save(9, "durable", {"next": 600}, (), (), False, False))
    desk.commit()
    for name, following in ((EPHEMERAL, 400), ("other#ephemeral", 500)):
        desk.open(channel=name)
        save(desk, following, following, channel=name)
    assert desk.desk.floor() == 400
    desk.desk.leave(EPHEMERAL)
    assert desk.desk.floor() == 500, "what is about to go holds nothing"
    desk.desk.drop(EPHEMERAL, lambda: None)
    desk.desk.drop("other#ephemeral", lambda: None)
    assert desk.desk.floor() == 600


def test_behind_a_pause_all_is_held(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    save(desk, 1_000, 1_000)
    paused(desk)
    assert desk.desk.floor() == 1_000
    desk.desk.checkpoint()
    desk.say(p.Pause(4, paused=False))
    desk.commit()
    assert desk.desk.floor() == 1_000
    save(desk, 1_500, 1_500)
    assert desk.desk.floor() == 1_500


def test_when_the_last_has_left_the_next_begins_there(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    desk.desk.leave(EPHEMERAL)
    desk.commit()
    desk.desk.drop(EPHEMERAL, lambda: None)
    desk.commit()
    assert desk.desk.floor() == 1_000
    assert desk.open(TWO, EPHEMERAL)["row"]["next"] == 1_000


def test_what_is_not_there_any_more_holds_nothing_back() -> None:
    """A deferred message that the bound has taken lies there until it is due."""
    rows = MemoryRows()
    rows.make("c", {"next": 9})
    rows.save("c", [p.Save(1, "c", {"next": 90, "first": 40}, tuple((start, 10, 1, 99) for start in (0, 20, 60)), (), False, False)])
    assert [rows.first("c", start) for start in (0, 5, 10, 25, 30, 45, 70, 95)] == [0, 5, 20, 25, 40, 45, 70, 95]


def test_starts_of_rows_that_went_are_forgotten() -> None:
    rows = MemoryRows()
    rows.make("c", {"next": 0})
    for number in range(5_000):
        rows.save("c", [p.Save(1, "c", {"next": 10**6}, ((5, 1, 1, 99), (number + 10, 1, 1, 99)), (number + 9,), False, False)])
    assert rows.first("c", 0) == 5
    assert len(rows._deferred["c"]._starts) < 1_010
    rows.save("c", [p.Save(1, "c", {}, (), (5,), False, False)])
    assert rows.first("c", 0) == 5_009


# The bound


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    one = House(str(tmp_path / "t"))
    yield one
    one.store.close()


def begin(house: House, when_full: str) -> RetentionDesk:
    """With a channel that takes nothing."""
    desk = house.begin(keep_bytes=0, max_bytes=MAX_BYTES_MIN, when_full=when_full)
    house.store.log.chunk_bytes = MIB
    desk.in_memory = house.channels.in_memory = True
    house.channels.memory.make(EPHEMERAL, {"next": 0})
    return desk


def fill(house: House, blocks: int) -> None:
    for _ in range(blocks):
        house.store.log.append([big(90_000)], time.time_ns())
    house.store.log.sync()
    house.state.wanted = True
    house.commit_state()


def test_below_the_bound_nothing_goes_however_long_it_lies(house: House) -> None:
    desk = begin(house, "drop-oldest")
    fill(house, 6)
    for _ in range(10):
        desk.tick()
    assert (house.state.batch.start, house.store.log.start, desk.statistics()["finished_bytes"]) == (None, 0, 0)


def test_beyond_it_the_oldest_goes_and_is_counted(house: House) -> None:
    desk = begin(house, "drop-oldest")
    fill(house, 12)
    desk.tick()
    house.snapshot()
    start = house.state.batch.start
    assert start is not None
    assert 30 <= start <= 50
    house.commit_state()
    assert desk.statistics()["dropped_count"] == start


def test_one_that_refuses_does(house: House) -> None:
    desk = begin(house, "reject")
    fill(house, 10)
    desk.tick()
    with pytest.raises(Refused, match="delete a channel that nobody reads") as refusal:
        desk.admit()
    assert (refusal.value.code, house.store.log.start) == (E_TOPIC_FULL, 0)
    house.channels.memory.rows[EPHEMERAL] |= {"next": 100, "first": 100}
    desk._measured_ns = 0
    desk.admit()
    assert desk.statistics()["refused_count"] == 1
