"""Tests of the shipping of one topic: turning it off and on, what a restart keeps, the offsets
that it reserves, and answers that are lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ship_topic import NS, ShipTopic, fake_clock

from zsq.actors.bucket.topic.piece_window import PIECES_MAX
from zsq.actors.settings.options import SHIP_RESERVE
from zsq.storage.state.state import StateBatch
from zsq.transport.wire import protocol as p


@pytest.fixture
def now() -> Iterator[list[int]]:
    with fake_clock() as time_ns:
        yield time_ns


@pytest.fixture
def topic(tmp_path: Path, now: list[int]) -> Iterator[ShipTopic]:
    made = ShipTopic(tmp_path, now)
    yield made
    made.harness.abandon()


# Topics that are set to archive off, and on again


def test_a_topic_that_is_turned_off_ships_nothing_and_holds_nobody_up(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    waited: list[str] = []
    topic.shipping.then(lambda: waited.append("shipped"))
    topic.pass_time(5)
    assert topic.shipping.publishes_must_wait(1)
    topic.shipping.turn(is_on=False)
    topic.port.sent.clear()
    assert waited == ["shipped"]
    for _ in range(3):
        topic.publish()
        topic.commit()
        topic.delay()
        topic.pass_time(5)
    assert not topic.shipping.publishes_must_wait(1 << 40)
    assert topic.shipping.may_commit(1 << 40, lambda: None)
    topic.shipping.check()
    assert not topic.port.sent
    assert not topic.shipping.is_active
    found = topic.shipping.statistics()
    assert (found["shipping"], found["ship_lag_s"]) == ("off", 0.0)
    assert not topic.shipping.waiting()


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_topic_that_is_turned_on_again_ships_all_rows(
    topic: ShipTopic, is_forgotten: bool
) -> None:
    topic.start()
    topic.publish()
    topic.settle()
    topic.shipping.turn(is_on=False)
    topic.publish()
    topic.commit()
    topic.delay()
    if is_forgotten:  # the archive actor has read the registry meanwhile
        topic.ticks.tail = None
    topic.shipping.turn(is_on=True)
    topic.publish()
    assert not topic.shipping.publishes_must_wait(1), "it is not held up until it has caught up"
    topic.settle()
    topic.commit()
    topic.settle()
    topic.check()
    topic.publish()
    topic.pass_time(5)
    assert topic.shipping.publishes_must_wait(1)


def test_a_topic_that_begins_off_can_be_turned_on(topic: ShipTopic) -> None:
    topic.begin()
    topic.shipping.turn(is_on=False)
    topic.publish()
    topic.shipping.end()
    topic.harness.restart()
    topic.begin(is_on=False)
    assert not topic.shipping.is_active
    topic.publish()
    topic.delay()
    topic.commit()
    assert not topic.port.sent
    topic.shipping.turn(is_on=True)
    topic.settle()
    topic.commit()
    topic.settle()
    topic.check()


def test_the_bound_does_not_begin_anew_with_each_process(topic: ShipTopic) -> None:
    topic.start()
    topic.harness.now_ns = time.time_ns() - 2 * NS
    topic.publish()
    topic.restart()
    topic.open()
    assert topic.shipping.statistics()["ship_lag_s"] > 1.5
    assert topic.shipping.publishes_must_wait(1)
    topic.settle()
    assert not topic.shipping.publishes_must_wait(1)


def test_messages_that_are_older_than_the_start_of_the_machine_are_late(topic: ShipTopic) -> None:
    topic.start()
    topic.harness.now_ns = time.time_ns() - topic.now[0] - 2 * NS
    topic.publish()
    topic.restart()
    topic.open()
    assert topic.shipping.publishes_must_wait(1)
    topic.settle()
    assert not topic.shipping.publishes_must_wait(1)


def test_delayed_messages_of_the_process_before_count_until_the_rows_are_shipped(
    topic: ShipTopic,
) -> None:
    topic.start()
    topic.delay()
    topic.restart()
    topic.open()
    assert not topic.shipping.publishes_must_wait(1)
    topic.now[0] += 2 * NS
    assert topic.shipping.publishes_must_wait(1)
    topic.settle()
    assert not topic.shipping.publishes_must_wait(1)


# Delayed messages, which are in the log when they are due


def test_the_log_waits_for_the_rows_of_delayed_messages_at_the_start(topic: ShipTopic) -> None:
    """A broker that is restored without these rows would not know the producers, and would store
    what they send again.
    """
    topic.start()
    topic.delay()
    topic.restart()
    topic.move()
    topic.open()
    topic.pass_time(1)
    topic.ship()
    assert not topic.unknown_moves()
    topic.threads.finish()
    topic.pass_time(1)
    while topic.ship(1):
        assert not topic.unknown_moves()
    topic.settle()
    topic.check()


def test_a_piece_has_the_log_and_the_rows_of_delayed_messages_together(topic: ShipTopic) -> None:
    topic.start()
    topic.limits.piece_bytes = 200
    topic.publish(blocks=3)
    topic.delay()
    topic.move()
    topic.publish(blocks=20)
    topic.pass_time(1)
    while topic.ship(1):
        assert not topic.unknown_moves()
    topic.settle()
    topic.check()


# Messages that expire before the bucket has them


def test_what_follows_expired_messages_goes_only_with_the_rows_that_say_so(
    topic: ShipTopic,
) -> None:
    """A broker that is restored without these rows would miss the messages."""
    topic.start()
    topic.publish(blocks=3)
    topic.pass_time(1)
    topic.refuse()  # all rows are shipped again
    topic.limits.piece_bytes = 200
    topic.harness.log.roll(topic.harness.now_ns)
    topic.publish(blocks=20)
    start = topic.harness.log.chunks[-1]
    batch = StateBatch()
    batch.start = start
    topic.commit(batch=batch)
    topic.harness.log.forget(start)
    topic.pass_time(10)
    topic.open()
    for _ in range(3):
        topic.pass_time(1)
        assert topic.ship() == [], "the rows are not there yet"
    topic.threads.finish()
    topic.pass_time(1)
    (piece,) = topic.ship(1)
    assert piece.begins
    assert piece.end == topic.harness.log.synced_end
    topic.settle()
    topic.check()


# Reserved offsets, and the rows of dead archive actors


def test_publishes_do_not_use_the_offsets_that_commits_will_use(topic: ShipTopic) -> None:
    topic.start()
    free = topic.shipping.reserve.end - topic.harness.log.end
    merging = [60]
    topic.shipping.reserve.promised = lambda: merging[0]
    assert not topic.shipping.publishes_must_wait(free - 60)
    assert topic.shipping.publishes_must_wait(free - 59)
    assert topic.ship()
    assert not topic.shipping.publishes_must_wait(free - 59), "more offsets are reserved"
    merging[0] = topic.shipping.reserve.end - topic.harness.log.end
    assert not topic.shipping.may_commit(1, lambda: None)
    merging[0] = 0
    assert topic.shipping.may_commit(1, lambda: None)


def test_a_large_publish_is_no_longer_reserved_for_once_it_may_go(topic: ShipTopic) -> None:
    topic.start()
    assert topic.shipping.publishes_must_wait(10 * SHIP_RESERVE)
    while topic.ship():
        pass
    assert not topic.shipping.publishes_must_wait(10 * SHIP_RESERVE)
    topic.publish()
    topic.settle()
    assert topic.shipping.reserve.end - topic.harness.log.end < 20 * SHIP_RESERVE
    before = topic.shipping.reserve.end
    topic.publish()
    topic.settle()
    assert topic.shipping.reserve.end <= before + SHIP_RESERVE, "it is not asked for again"


def test_rows_that_are_in_no_piece_are_uploaded_again_after_the_death_of_the_archive_actor(
    topic: ShipTopic,
) -> None:
    """The next process does not know that their object is needed, and may remove it."""
    topic.limits.inline_bytes = 0
    topic.begin()
    topic.open()
    topic.threads.finish()
    topic.settle()
    for _ in range(PIECES_MAX):  # no more pieces may be sent
        topic.publish()
        topic.pass_time(1)
    topic.port.hand(p.ShipAgain(True, 0))
    topic.threads.finish()
    topic.pass_time(1)
    (name,) = topic.upload()
    topic.die()
    del topic.ticks.objects[name]
    topic.commit()
    topic.settle()
    topic.check()


def step(topic: ShipTopic, number: int) -> None:
    """Commit, and let the next thing happen to a dump: a job runs, its result arrives, or the rows
    are uploaded.
    """
    topic.commit()
    (topic.undelay if number % 2 else topic.delay)()
    if not (topic.threads.run() or topic.threads.deliver()):
        topic.upload()


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["file", "inline"])
@pytest.mark.parametrize("steps", range(7))
def test_a_new_stream_uses_the_dump_that_an_old_one_began(
    topic: ShipTopic, steps: int, inline_bytes: int
) -> None:
    """The archive actor dies at any time of the dump. No piece of its stream has arrived, so a new
    one begins. No change before, during or after the dump is missing or overtaken.
    """
    topic.limits.inline_bytes = inline_bytes
    topic.start()
    topic.delay()
    topic.settle()
    topic.publish()
    topic.pass_time(1)
    topic.refuse()
    topic.pass_time(2)
    topic.open()
    stream, begun = topic.ticks.pieces[-1][0].stream, topic.ticks.begun
    for number in range(steps):
        step(topic, number)
    topic.die()
    topic.commit()
    topic.delay()
    topic.open()
    step(topic, 1)
    topic.settle()
    topic.check()
    assert topic.ticks.pieces[-1][0].stream != stream
    assert topic.ticks.begun == begun + 1


@pytest.mark.parametrize("steps", range(5))
def test_a_dump_from_which_changes_were_dropped_is_made_again(topic: ShipTopic, steps: int) -> None:
    topic.start()
    topic.delay()
    topic.settle()
    topic.limits.waiting_bytes = 3_000
    topic.port.hand(p.ShipAgain(True, 0))
    for number in range(steps):
        step(topic, number)
    for _ in range(5):
        topic.commit(3_000)
    topic.shipping.tick()
    topic.settle()
    topic.check()


# Answers that are lost


def test_an_answer_also_stands_for_earlier_ones_that_were_lost(topic: ShipTopic) -> None:
    """A connection broke: the log of ticks has both pieces, and only the second one is answered."""
    topic.start()
    stream = topic.ticks.pieces[-1][0].stream
    for _ in range(2):
        topic.publish()
        topic.commit()
        topic.pass_time(1)
        topic.threads.finish()
    lost, answered = topic.port.take(p.Ship)
    assert topic.ticks.accept(lost)
    assert topic.ticks.accept(answered)
    topic.port.hand(p.Done(answered.request, {}))
    assert topic.shipping.shipped.end == topic.harness.log.end
    topic.port.hand(p.Done(lost.request, {}))  # it comes after all, and nobody waits for it
    topic.publish()
    topic.settle()
    topic.check()
    assert topic.ticks.pieces[-1][0].stream == stream
