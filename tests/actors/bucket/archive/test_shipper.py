"""Tests of the shipper: which pieces are answered and when, what happens to ticks that fail, who
may go on, and which old ticks are removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ship_world import ARCHIVE, NS, Topic, World, fake_clock

from zsq.actors.bucket.archive.shipper import ShipperLimits, ShipperState
from zsq.actors.bucket.lease_cell import OVER
from zsq.actors.primitives.boot_clock import boot_ns
from zsq.storage.bucket.shipping.ship_log import ShipLog, find_chain
from zsq.storage.bucket.shipping.standbys import Notice, encode_notice, notice_object
from zsq.storage.bucket.shipping.tick_format import (
    TAILS_EVERY,
    TICK,
    TICK_BYTES,
    WINDOW,
    Boundary,
    Copy,
    after,
    decode_index,
    encode_tick,
    log_object,
    number_of,
)
from zsq.transport.errors import E_BUCKET, E_FENCED
from zsq.transport.wire import protocol as p


@pytest.fixture
def now() -> Iterator[list[int]]:
    with fake_clock() as clock:
        yield clock


@pytest.fixture
def limits() -> ShipperLimits:
    return ShipperLimits()


@pytest.fixture
def world(tmp_path: Path, now: list[int], limits: ShipperLimits) -> World:
    return World(tmp_path, now, limits).open()


def ticks(world: World) -> list[int]:
    """Return the numbers of the ticks that exist, without takeovers."""
    found = map(number_of, world.bucket.names("log/"))
    return sorted(
        number
        for number in found
        if decode_index(world.bucket.objects[log_object(number)]).index.kind == 0
    )


def index_of(world: World, number: int) -> object:
    return decode_index(world.bucket.objects[log_object(number)]).index


def test_nothing_is_acknowledged_between_the_first_tick_with_a_lease_and_its_note(
    tmp_path: Path, now: list[int]
) -> None:
    """If all processes are suspended between the two, the standby takes over after its patience."""
    world = World(tmp_path, now)
    standby = Notice("a" * 32, "two", (), 10.0, 1)
    world.bucket.objects[notice_object(standby.copy, 1)] = encode_notice(standby)
    assert world.cell.until_ns == 0, "no lease was needed"
    world.shipper.open(ARCHIVE)
    assert world.control.run()
    assert find_chain(cast("Any", world.bucket)).numbers, "a standby may see its lease"
    assert world.cell.until_ns == OVER
    assert world.control.deliver()
    assert world.cell.is_valid(boot_ns())


# Answers


def test_a_piece_is_answered_when_its_tick_exists(world: World) -> None:
    piece = world.topic("clicks").ship()
    world.encode()
    assert not world.answers, "it waits for more pieces"
    world.poll(1)
    world.run(world.encoder)
    assert not world.answers
    world.run(*world.creators)
    assert world.answered() == [piece.request]
    world.check()


def test_a_caller_waits_until_the_bucket_has_the_registry(world: World) -> None:
    """The registry that counts is the one of the moment of the call."""
    told: list[int] = []
    world.tick()
    world.settle()
    world.shipper.wait_for("", 0, told.append)
    assert told, "it is there already"
    told.clear()
    world.topic("clicks")  # the registry changes
    world.shipper.wait_for("", 0, told.append)
    assert not told
    world.settle()
    (number,) = told
    assert index_of(world, number).registry  # type: ignore[attr-defined]


def test_a_caller_waits_until_the_bucket_has_a_topic_up_to_an_offset(world: World) -> None:
    told: list[int] = []
    topic = world.topic("clicks")
    world.shipper.wait_for(topic.uuid, 5, told.append)
    world.settle()
    assert not told, "the bucket has the registry only"
    topic.ship(age_s=1)
    world.settle()
    end = world.shipper.tails[topic.uuid].end
    world.shipper.wait_for(topic.uuid, end, told.append)
    assert told
    told.clear()
    world.shipper.wait_for(topic.uuid, end + 1, told.append)
    world.settle()
    assert not told


def test_what_is_answered_is_a_prefix_of_the_log(world: World) -> None:
    topic = world.topic("clicks")
    pieces = []
    for _ in range(3):
        pieces.append(topic.ship(age_s=1).request)
        world.encode()
    first, second, third = (thread for thread in world.creators if thread.jobs)
    world.run(third)
    assert world.answered() == []
    world.run(first)
    assert world.answered() == pieces[:1]
    world.run(second)
    assert world.answered() == pieces


@pytest.mark.parametrize("fate", ["away", "lost", "late"])
def test_a_tick_that_failed_is_created_again_with_the_same_bytes(world: World, fate: str) -> None:
    topic = world.topic("clicks")
    fates = [fate, fate, "ok"]
    world.bucket.fate = lambda name: fates.pop(0) if fates else "ok"
    before = len(world.bucket.tried)
    piece = topic.ship(age_s=1)
    world.encode()
    for _ in range(3):
        world.run(*world.creators)
        world.bucket.arrive()
        world.poll(10)
        topic.ship()  # the bytes must not depend on what comes later
    world.settle()
    tried = world.bucket.tried[before:]
    same = [data for name, data in tried if name == tried[0][0]]
    assert len(same) == 3 if fate == "away" else len(same) >= 2
    assert len(set(same)) == 1
    assert world.answered()[0] == piece.request
    world.check()


def test_a_tick_is_created_again_after_a_growing_pause(world: World) -> None:
    world.bucket.fate = lambda name: "away"
    before = len(world.bucket.tried)
    world.topic("clicks").ship(age_s=1)
    world.encode()
    world.run(*world.creators)
    for _ in range(100):
        world.poll(0.1)
        world.run(*world.creators)
    assert 4 <= len(world.bucket.tried) - before <= 8
    for _ in range(10):
        world.poll(10)  # the thread waits for the store
    assert [thread.pending for thread in world.creators].count(1) == 1
    assert sum(thread.pending for thread in world.creators) == 1, "it is asked once"
    assert world.shipper.trouble
    world.bucket.fate = lambda name: "ok"
    world.settle()
    assert not world.shipper.trouble


def test_at_most_a_window_of_ticks_is_on_its_way(world: World) -> None:
    topic = world.topic("clicks")
    for _ in range(3 * WINDOW):
        topic.ship(age_s=10, urgent=True)
        world.encode()
    assert sum(thread.pending for thread in world.creators) == WINDOW
    assert all(thread.pending <= 1 for thread in world.creators)
    world.run(*world.creators)
    world.settle()
    assert len(world.answered()) == 3 * WINDOW
    assert len(ticks(world)) == WINDOW + 1, "the others went together"


def test_a_foreign_tick_refuses_everything_waiting_and_later(world: World) -> None:
    topic, other = world.topic("clicks"), world.topic("orders")
    piece = topic.ship(age_s=1)
    world.encode()
    world.intrude()
    waiting = other.ship()
    asked = topic.open()
    world.run(*world.creators)
    assert world.shipper.state is ShipperState.LOST
    later = other.ship()
    reopened = other.open()
    expected = [piece.request, waiting.request, asked, later.request, reopened]
    assert world.failed() == dict.fromkeys(expected, E_FENCED)
    assert not world.answered()
    world.shipper.open(ARCHIVE)
    world.tick()
    world.poll(10)
    assert not world.shipper.is_busy
    assert not world.control.jobs


def test_results_that_arrive_after_the_loss_change_nothing(world: World) -> None:
    topic = world.topic("clicks")
    for _ in range(2):
        topic.ship(age_s=1)
        world.encode()
    topic.ship(age_s=1)
    world.poll()
    world.encoder.run()
    first, second = (thread for thread in world.creators if thread.jobs)
    second.run()
    world.intrude()
    world.run(first)
    assert world.shipper.state is ShipperState.LOST
    world.run(second, world.encoder)
    assert world.answered() == []
    assert set(world.failed().values()) == {E_FENCED}


def test_topics_wait_for_the_takeover(tmp_path: Path, now: list[int]) -> None:
    world = World(tmp_path, now)
    first = world.topic("clicks").open()
    world.shipper.open(ARCHIVE)
    second = world.topic("views").open()
    assert (world.answered(), world.failed()) == ([], {})
    world.run(world.control)
    assert world.answered() == [first, second]


def test_topics_are_refused_while_the_takeover_fails(tmp_path: Path, now: list[int]) -> None:
    world = World(tmp_path, now)
    topic = world.topic("clicks")
    first = topic.open()
    world.bucket.is_away = True
    world.shipper.open(ARCHIVE)
    world.run(world.control)
    assert world.failed() == {first: E_BUCKET}
    second = topic.open()
    assert world.failed() == {first: E_BUCKET, second: E_BUCKET}


def test_a_takeover_is_tried_again_after_a_pause(tmp_path: Path, now: list[int]) -> None:
    world = World(tmp_path, now)
    world.bucket.is_away = True
    world.shipper.open(ARCHIVE)
    world.run(world.control)
    assert world.shipper.state is ShipperState.CLOSED
    world.shipper.open(ARCHIVE)
    assert not world.control.jobs
    world.bucket.is_away = False
    now[0] += 10 * NS
    world.open()
    assert not world.shipper.trouble


def test_a_takeover_waits_for_the_registry(tmp_path: Path, now: list[int]) -> None:
    """Otherwise all topics would count as deleted, and would be shipped from their beginnings."""
    world = World(tmp_path, now).open()
    world.topic("clicks").ship()
    world.settle()
    path = tmp_path / "registry.json"
    text = path.read_text()
    path.write_text("damaged")
    world.start()
    world.shipper.open(ARCHIVE)
    assert not world.control.jobs
    assert "registry" in world.shipper.trouble
    path.write_text(text)
    world.open()
    assert set(world.shipper.tails) == {world.topics["clicks"].uuid}


def test_another_directory_may_not_continue_the_log(
    tmp_path: Path, now: list[int], world: World
) -> None:
    world.topic("clicks").ship()
    world.settle()
    (tmp_path / "copy").mkdir()
    copy = World(tmp_path / "copy", now)
    copy.bucket = world.bucket
    copy.start()
    copy.shipper.open(ARCHIVE)
    copy.run(copy.control)
    assert copy.shipper.state is ShipperState.LOST
    assert copy.failed() == {}
    topic = copy.topic("clicks")
    request = topic.open()
    assert copy.failed() == {request: E_FENCED}


# The registry and the topics


def test_the_registry_is_in_a_tick_before_or_with_the_first_piece_of_a_topic(world: World) -> None:
    for name in ("clicks", "orders", "visits"):
        world.topic(name).ship(age_s=1)
        world.encode()
        world.run(*world.creators)
    known: set[str] = set()
    for number in world.numbers():
        data = world.bucket.objects[log_object(number)]
        found = decode_index(data)
        if found.index.registry:
            position, size, _ = found.index.registry
            registry = json.loads(data[found.body + position :][:size])
            known = {row["uuid"] for row in registry["topics"].values()}
            assert found.index.registry_number == number
        assert {piece.uuid for piece in found.index.pieces} <= known
    assert len(known) == 3


def test_a_changed_registry_is_shipped_without_pieces(world: World) -> None:
    world.tick()
    world.settle()
    before = len(ticks(world))
    world.tick()
    assert not world.shipper.is_busy, "it has not changed"
    world.topic("clicks")
    world.tick()
    world.settle()
    assert len(ticks(world)) == before + 1


def test_a_deleted_topic_does_not_stop_the_others(world: World) -> None:
    gone, well = world.topic("gone"), world.topic("well")
    gone.ship()
    world.settle()
    first = well.ship()
    lost = gone.ship()
    second = well.ship()
    world.drop("gone")
    world.settle()
    assert world.failed() == {lost.request: E_BUCKET}
    assert {first.request, second.request} <= set(world.answered())
    assert set(world.shipper.tails) == {well.uuid}


def test_a_topic_whose_setting_turns_the_archive_off_is_forgotten(world: World) -> None:
    topic = world.topic("clicks")
    topic.ship()
    world.settle()
    world.settings["clicks"]["retention"]["archive"] = "off"
    world.write_registry()
    world.tick()
    world.settle()
    assert not world.shipper.tails
    request = topic.open()
    assert world.done(request) == {}


def test_a_piece_that_cannot_be_read_fails_with_the_rest_of_its_stream(world: World) -> None:
    topic, other = world.topic("clicks"), world.topic("orders")
    topic.ship()
    world.settle()
    path = next(topic.folder.iterdir())
    data = path.read_bytes()
    path.unlink()
    first, well = topic.ship(), other.ship()
    path.unlink()
    world.settle()
    path.write_bytes(data)
    second = topic.ship(0)
    world.settle()
    assert world.failed() == {first.request: E_BUCKET, second.request: E_BUCKET}
    assert well.request in world.answered()
    topic.begin_again()
    third = topic.ship(0)
    world.settle()
    assert third.request in world.answered()
    world.check()


def test_a_topic_is_told_its_tail_when_no_piece_of_it_is_on_its_way(world: World) -> None:
    topic, other = world.topic("clicks"), world.topic("orders")
    topic.ship(age_s=1)
    world.encode()
    topic.ship()
    request, quick = topic.open(), other.open()
    assert world.done(quick) == {}
    world.run(*world.creators)
    assert request not in world.answered(), "the second piece waits"
    world.settle()
    tail = world.replay()[topic.uuid]
    assert world.done(request) == {
        "stream": tail.stream, "sequence": 2, "end": tail.end, "reserved": tail.reserved,
        "chunk": 0, "position": 20, "base_number": tail.base_number,
    }  # fmt: skip


def test_a_successor_tells_the_tails_that_a_replay_gives(world: World) -> None:
    topic = world.topic("clicks")
    topic.ship()
    world.settle()
    topic.ship(age_s=1)
    world.encode()
    world.run(*world.creators)  # and the process dies before it answers anything later
    world.start()
    world.open()
    request = topic.open()
    tail = world.replay()[topic.uuid]
    assert world.done(request)["sequence"] == 2 == tail.sequence
    assert world.done(request)["reserved"] == tail.reserved >= tail.end
    again = topic.ship()
    world.settle()
    assert again.request in world.answered()
    world.check()


def test_tails_in_the_log_equal_the_replay(world: World) -> None:
    topics = [world.topic(f"topic-{number}") for number in range(3)]
    found: list[int] = []
    for number in range(2 * TAILS_EVERY + 10):
        topics[number % 3].ship(urgent=True)
        before = world.replay()
        world.settle()
        last = decode_index(world.bucket.objects[log_object(world.numbers()[-1])]).index
        if last.tails is not None and last.number % TAILS_EVERY == 0:
            found.append(last.number)
            moved = {piece.uuid for piece in last.pieces}
            assert dict(last.tails) == world.shipper.tails
            assert {one for one in before if last.tails[one] != before[one]} == moved
    assert len(found) == 2


# When a tick goes


def test_the_bound_decides_when_a_tick_goes(world: World) -> None:
    world.topic("clicks").ship()
    world.poll(0.7)
    assert not world.encoder.jobs
    world.poll(0.27)
    assert world.encoder.jobs


def test_all_pieces_that_wait_go_together(world: World) -> None:
    for number in range(20):
        world.topic(f"topic-{number}").ship()
    world.poll(1)
    world.settle()
    (number,) = ticks(world)
    assert len(decode_index(world.bucket.objects[log_object(number)]).index.pieces) == 20


def test_urgent_pieces_go_at_once(world: World) -> None:
    topic = world.topic("clicks")
    topic.ship(urgent=True)
    world.poll()
    assert len(world.encoder.jobs) == 1
    topic.ship(urgent=True)
    world.poll()
    assert len(world.encoder.jobs) == 1, "it waits for the tick that is on its way"
    world.run(world.encoder, *world.creators)
    world.poll()
    assert len(world.encoder.jobs) == 1


def test_a_large_piece_goes_at_once_and_alone(world: World) -> None:
    topic = world.topic("clicks")
    topic.ship(TICK_BYTES // 2)
    world.poll()
    assert not world.encoder.jobs
    topic.ship(TICK_BYTES // 2 + 100)
    world.poll()
    world.settle()
    assert len(ticks(world)) == 2


# Files with all rows


def test_a_file_with_all_rows_becomes_an_object(world: World) -> None:
    topic = world.topic("clicks")
    path = topic.folder / "base"
    path.write_bytes(b"rows" * 1000)
    world.ask(topic, p.ShipBase(5, topic.uuid, topic.stream, str(path)))
    world.ask(topic, p.ShipBase(6, topic.uuid, topic.stream, str(topic.folder / "missing")))
    world.run(*world.uploads)
    name = str(world.done(5)["base"])
    assert world.bucket.objects[name] == path.read_bytes()
    assert name.startswith(f"state/{topic.uuid}/")
    assert world.failed() == {6: E_BUCKET}


# Removal


@pytest.fixture
def short(limits: ShipperLimits) -> None:
    limits.log_ticks, limits.tails_every = 10, 2


def fill(world: World, topic: Topic, count: int) -> None:
    for _ in range(count):
        topic.ship(urgent=True)
        world.settle()


def test_objects_of_a_deleted_topic_may_go_when_the_bucket_knows_it(world: World) -> None:
    topic, other = world.topic("clicks"), world.topic("orders")
    for one in (topic, other):
        one.ship()
    world.settle()
    assert not world.shipper.may_remove(topic.uuid)
    world.drop("clicks")
    assert not world.shipper.may_remove(topic.uuid)
    world.bucket.is_away = True
    world.tick()
    world.encode()
    world.run(*world.creators)
    assert not world.shipper.may_remove(topic.uuid), "the tick is not there"
    world.bucket.is_away = False
    world.settle()
    assert world.shipper.may_remove(topic.uuid)
    assert not world.shipper.may_remove(other.uuid)
    world.start()
    assert not world.shipper.may_remove(topic.uuid), "a new process does not know it yet"
    world.open()
    world.tick()
    world.settle()
    assert world.shipper.may_remove(topic.uuid)


def collect(world: World) -> None:
    """Let the collection run."""
    world.tick(world.limits.collect_every_ns / NS + 1)
    world.settle()
    world.tick(world.limits.collect_every_ns / NS + 1)
    world.run(world.control)


def wishes(world: World) -> dict[str, p.ShipAgain]:
    found = {name: one for name, one in world.answers if isinstance(one, p.ShipAgain)}
    world.answers = [one for one in world.answers if not isinstance(one[1], p.ShipAgain)]
    return found


@pytest.mark.usefixtures("short")
def test_only_topics_that_need_old_ticks_are_asked(world: World) -> None:
    old, busy, asleep = world.topic("old"), world.topic("busy"), world.topic("asleep")
    old.ship()
    asleep.ship()
    world.settle()
    fill(world, busy, 10)
    busy.roll()
    busy.ship(begins=True)
    world.settle()
    world.sleeping.add("asleep")
    world.tick(40)
    assert wishes(world) == {"old": p.ShipAgain(True, 1)}
    assert world.woken == [asleep.uuid]
    assert not list(world.bucket.names("boundary/"))
    world.tick(1)
    assert not wishes(world), "they have half a minute"
    old.ship(begins=True)
    asleep.roll()
    asleep.ship(begins=True)
    world.settle()
    world.sleeping.clear()
    world.tick(40)
    assert wishes(world) == {"old": p.ShipAgain(False, 1)}, "its log file is still needed"


@pytest.mark.usefixtures("short")
def test_a_few_sleeping_topics_are_woken_at_once(world: World) -> None:
    world.limits.wakes_at_once = 2
    for number in range(5):
        world.topic(f"topic-{number}").ship()
        world.sleeping.add(f"topic-{number}")
    fill(world, world.topic("busy"), 12)
    world.tick(40)
    assert len(world.woken) == 2
    world.tick(40)
    assert len(world.woken) == 4


@pytest.mark.usefixtures("short")
def test_a_boundary_is_created_when_nobody_needs_older_ticks(world: World) -> None:
    topic = world.topic("clicks")
    fill(world, topic, 12)
    collect(world)
    assert not list(world.bucket.names("boundary/"))
    topic.roll()
    topic.ship(begins=True)
    world.settle()
    needed = world.shipper.tails[topic.uuid].needed
    collect(world)
    (boundary,) = world.bucket.names("boundary/")
    assert number_of(boundary) <= needed
    first = decode_index(world.bucket.objects[log_object(number_of(boundary))]).index
    assert first.tails is not None, "a successor must find the tails of all topics"
    kept = sorted(map(number_of, world.bucket.names("log/")))
    assert kept[0] == 0, "takeovers stay"
    assert kept[1] == number_of(boundary)
    world.check()
    fill(world, topic, 3)
    world.start()
    world.open()
    assert world.replay()[topic.uuid].sequence == topic.sequence


@pytest.mark.usefixtures("short")
def test_a_removal_that_failed_is_tried_again(world: World) -> None:
    topic = world.topic("clicks")
    fill(world, topic, 12)
    topic.roll()
    topic.ship(begins=True)
    world.settle()
    collect(world)
    topic.roll()
    fill(world, topic, 12)
    topic.roll()
    topic.ship(begins=True)
    world.settle()
    world.tick(40)
    world.settle()
    world.bucket.is_away = True
    world.tick(40)
    world.run(world.control)
    assert world.bucket.names("boundary/")
    world.bucket.is_away = False
    before = len(list(world.bucket.names("log/")))
    collect(world)
    collect(world)
    assert len(list(world.bucket.names("log/"))) < before
    world.check()


@pytest.mark.usefixtures("short")
def test_a_removal_after_a_takeover_removes_nothing_of_the_successor(world: World) -> None:
    """The bucket was away for this process, and its successor has shipped and removed meanwhile.
    Without the takeover, the ticks on their way here could be created, and would be answered.
    """
    topic = world.topic("clicks")
    fill(world, topic, 12)
    collect(world)
    topic.roll()
    topic.ship(begins=True)
    world.settle()
    assert not list(world.bucket.names("boundary/")), "nothing is removed yet"
    last = find_chain(world.bucket).last
    assert last is not None
    successor = ShipLog(world.bucket, ARCHIVE, "9" * 32, "other")
    taken = successor.take_over(Copy(ARCHIVE, last.index.copy), 1, 50)
    index = taken.takeover._replace(
        kind=TICK, number=after(taken.takeover), previous=taken.digest,
        takeover=taken.takeover.number,
    )  # fmt: skip
    successor.create(encode_tick(index, ()))
    boundary = Boundary(index.number, "", index.epoch, index.number, 1)
    successor.bound(successor.with_digest(boundary))
    successor.remove_below(index.number, 1_000)
    before = sorted(world.bucket.names("log/"))
    assert log_object(taken.takeover.number) in before
    late = topic.ship()
    world.tick(world.limits.collect_every_ns / NS + 1)
    assert world.control.jobs
    world.run(world.control)
    assert world.shipper.state is ShipperState.LOST
    assert sorted(world.bucket.names("log/")) == before
    assert world.failed() == {late.request: E_FENCED}


@pytest.mark.usefixtures("short")
def test_rows_that_a_piece_will_name_are_not_removed(world: World) -> None:
    """Their object is there before the piece that names it."""
    topic = world.topic("clicks")
    path = topic.folder / "base"
    names = []
    for number in range(3):
        path.write_bytes(b"rows %d" % number)
        world.ask(topic, p.ShipBase(1000 + number, topic.uuid, topic.stream, str(path)))
        world.run(*world.uploads)
        names.append(str(world.done(1000 + number)["base"]))
        if number == 2:
            break
        topic.roll()
        topic.ship(begins=True, base=names[-1])
        fill(world, topic, 12)
    topic.roll()
    topic.ship(begins=True, base=names[1], urgent=True)
    world.settle()
    collect(world)
    assert set(names) & set(world.bucket.objects) == set(names[1:]), "the first one is old"
    topic.ship(begins=True, base=names[2])
    world.settle()
    world.check()


@pytest.mark.usefixtures("short")
def test_rows_that_were_given_to_the_process_before_are_not_removed(world: World) -> None:
    """A piece that was sent to that process is sent again, and names them."""
    topic, other = world.topic("clicks"), world.topic("orders")
    path = topic.folder / "base"
    path.write_bytes(b"rows")
    fill(world, other, 12)
    for one in (topic, other):
        one.roll()
        one.ship(begins=True)
        world.settle()
    world.ask(topic, p.ShipBase(1000, topic.uuid, topic.stream, str(path)))
    world.run(*world.uploads)
    name = str(world.done(1000)["base"])
    world.start()
    world.open()
    collect(world)
    assert list(world.bucket.names("boundary/")), "old ticks were removed"
    assert name in world.bucket.objects
    topic.ship(begins=True, base=name)
    world.settle()
    world.check()


@pytest.mark.usefixtures("short")
def test_old_objects_are_removed_when_the_rows_are_in_a_tick_again(world: World) -> None:
    topic = world.topic("clicks")
    path = topic.folder / "base"
    path.write_bytes(b"rows")
    world.ask(topic, p.ShipBase(1000, topic.uuid, topic.stream, str(path)))
    world.run(*world.uploads)
    topic.ship(begins=True, base=str(world.done(1000)["base"]))
    fill(world, topic, 12)
    topic.roll()
    topic.ship(begins=True)
    world.settle()
    collect(world)
    assert list(world.bucket.names("boundary/"))
    assert not list(world.bucket.names("state/"))


# Statistics


def test_statistics_exist_in_every_state(tmp_path: Path, now: list[int]) -> None:
    world = World(tmp_path, now)
    seen = [world.shipper.statistics()["shipping"]]
    topic = world.topic("clicks")
    steps: list[Callable[[], object]] = [
        lambda: world.shipper.open(ARCHIVE),
        lambda: world.run(world.control),
        lambda: topic.ship(age_s=3),
        world.encode,
        lambda: world.intrude(),
        lambda: world.run(*world.creators),
    ]
    for step in steps:
        step()
        found = world.shipper.statistics()
        seen.append(found["shipping"])
        if step is world.encode:
            assert found["lag_s"] == 3.0
        assert world.shipper.pending >= 0
    assert seen == ["closed", "taking over", "open", "open", "open", "open", "lost"]


# Everything together

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ship"), st.integers(0, 2)),
        st.tuples(st.just("urgent"), st.integers(0, 2)),
        st.tuples(st.just("begin"), st.integers(0, 2)),
        st.tuples(st.just("roll"), st.integers(0, 2)),
        st.tuples(st.just("run"), st.integers(0, WINDOW - 1)),
        st.tuples(st.just("deliver"), st.integers(0, WINDOW - 1)),
        st.tuples(st.just("fate"), st.sampled_from(["ok", "away", "lost", "late"])),
        st.tuples(
            st.sampled_from(["encode", "poll", "tick", "arrive", "die", "collect"]), st.just(0)
        ),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps=STEPS)
def test_what_is_answered_is_always_in_the_log(steps: list[tuple[str, int | str]]) -> None:
    with TemporaryDirectory() as root, fake_clock() as now:
        world = World(Path(root), now, limits=ShipperLimits(log_ticks=8, tails_every=3)).open()
        topics = [world.topic(f"topic-{number}") for number in range(3)]
        confirmed: set[tuple[str, int, int]] = set()
        removed: set[tuple[str, int, int]] = set()
        for kind, which in steps:
            before = set(world.pieces())
            _step(world, topics, kind, which)
            by_request = {
                one.request: (one.uuid, one.stream, one.sequence)
                for topic in topics
                for one in topic.sent
            }
            confirmed |= {by_request[one] for one in world.answered() if one in by_request}
            there = world.pieces()
            assert len(there) == len(set(there))
            removed |= before - set(there)
            assert confirmed <= set(there) | removed
            oldest = find_chain(world.bucket).boundary.number
            for tail in world.shipper.tails.values():
                assert tail.needed >= oldest
        _bring_back(world)
        world.settle()
        world.check()
        tails = world.replay()
        for topic in topics:
            if topic.uuid in world.shipper.tails:
                assert tails[topic.uuid] == world.shipper.tails[topic.uuid]
                assert log_object(tails[topic.uuid].needed) in world.bucket.objects
        tried: dict[str, set[bytes]] = {}
        for name, data in world.bucket.tried:
            if name.startswith("log/") and decode_index(data).index.kind == 0:
                tried.setdefault(name, set()).add(data)
        assert all(len(one) == 1 for one in tried.values()), "a number has two contents"


def _bring_back(world: World) -> None:
    world.bucket.fate = lambda name: "ok"
    world.now[0] += 10 * NS
    if world.shipper.state is not ShipperState.OPEN:
        world.open()


def _step(world: World, topics: list[Topic], kind: str, which: int | str) -> None:
    if isinstance(which, str):
        world.bucket.fate = lambda name: which if name.startswith("log/") else "ok"
        return
    if kind in ("ship", "urgent", "begin", "roll"):
        topic = topics[which]
        failed = world.failed()
        if any(one.request in failed for one in topic.sent):
            return  # it would ask first
        if kind == "roll":
            topic.roll()
        topic.ship(urgent=kind == "urgent", begins=True if kind in ("begin", "roll") else None)
    elif kind == "run":
        world.creators[which].run()
    elif kind == "deliver":
        world.creators[which].deliver()
    elif kind == "encode":
        world.encode()
    elif kind == "poll":
        world.poll(0.5)
    elif kind == "tick":
        world.tick()
    elif kind == "arrive":
        world.bucket.arrive()
    elif kind == "collect":
        world.tick(40)
        world.run(world.control)
    elif kind == "die":
        _bring_back(world)
        world.bucket.arrive()
        world.start()
        world.open()
        for topic in topics:
            topic.begin_again()
