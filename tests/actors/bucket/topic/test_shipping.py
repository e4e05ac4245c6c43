"""Tests of the shipping of one topic: what it ships and in which order, what it sends again, when
publishes wait, and what a restore of the pieces finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ship_topic import NS, ShipTopic, fake_clock

from zsq.actors.bucket.topic.log_cursor import LogCursor
from zsq.actors.bucket.topic.offset_reserve import OffsetReserve
from zsq.actors.bucket.topic.piece_window import PIECES_MAX, Shipped
from zsq.actors.bucket.topic.shipping import ShipLimits, ShippingState
from zsq.actors.bucket.topic.sync_marks import SyncMarks
from zsq.actors.settings.options import SHIP_RESERVE
from zsq.storage.log.log_format import chunk_name
from zsq.storage.state.state import StateBatch
from zsq.transport.errors import E_BUCKET, E_FENCED, Refused
from zsq.transport.wire import protocol as p

BIG = 3000


@pytest.fixture
def now() -> Iterator[list[int]]:
    with fake_clock() as clock:
        yield clock


@pytest.fixture
def topic(tmp_path: Path, now: list[int]) -> Iterator[ShipTopic]:
    made = ShipTopic(tmp_path, now)
    yield made
    made.harness.abandon()


@pytest.fixture
def large_bases(topic: ShipTopic) -> None:
    """Let all dumps go by file and object."""
    topic.limits.inline_bytes = 0


# What is shipped


def test_a_new_topic_is_shipped_with_all_rows(topic: ShipTopic) -> None:
    topic.publish()
    topic.commit()
    topic.start()
    topic.check()


def test_only_synced_bytes_are_shipped(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    synced = topic.harness.log.synced_place
    topic.harness.publish(blocks=3)
    topic.settle()
    topic.check()
    assert topic.ticks.tail is not None
    assert (topic.ticks.tail.chunk, topic.ticks.tail.position) == synced[:2]


def test_ranges_go_on_in_the_next_log_file_and_include_the_footer(topic: ShipTopic) -> None:
    topic.start()
    for _ in range(20):
        topic.publish(blocks=2)
    topic.settle()
    topic.check()
    chunks = topic.harness.log.chunks
    assert len(chunks) > 3
    for base in chunks[:-1]:
        assert topic.ticks.chunks[base] == topic.harness.path(chunk_name(base)).read_bytes()


def test_archived_log_files_are_not_shipped(topic: ShipTopic) -> None:
    for _ in range(20):
        topic.harness.publish(blocks=2)
    topic.harness.sync()
    topic.harness.archive(keep=1)
    topic.start()
    assert set(topic.ticks.chunks) == {topic.harness.log.chunks[-1]}
    assert topic.ticks.topic.kept_from == topic.harness.log.chunks[-1]
    topic.check()


def test_the_rest_of_a_log_file_that_was_archived_is_left_out(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.settle()
    while len(topic.harness.log.chunks) < 4:
        topic.harness.publish(blocks=2)
    topic.harness.sync()
    topic.harness.archive(keep=1)
    topic.sync()
    topic.settle()
    first, *between, last = topic.harness.log.chunks
    assert set(topic.ticks.chunks) == {first, last}, between
    assert topic.ticks.tail is not None
    assert set(topic.ticks.tail.chunk_numbers) == {last}
    assert topic.ticks.tail.end == topic.harness.log.synced_end


def test_a_piece_with_many_bytes_is_divided(topic: ShipTopic) -> None:
    topic.start()
    topic.limits.piece_bytes = 500
    for _ in range(20):
        topic.harness.publish(blocks=2)
    topic.sync()
    topic.settle()
    assert len(topic.ticks.pieces) > 5
    topic.check()


def test_an_empty_log_file_does_not_keep_old_ticks(topic: ShipTopic) -> None:
    """It cannot be ended, so a range of it would be needed for ever."""
    topic.start()
    assert topic.ticks.tail is not None
    assert not topic.ticks.tail.chunk_numbers
    topic.publish()
    topic.settle()
    topic.harness.log.roll(topic.harness.now_ns)
    topic.settle()
    assert set(topic.ticks.tail.chunk_numbers) == {0}
    topic.check()


def test_a_topic_that_is_asked_to_ship_again_needs_no_old_tick(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.commit()
    topic.settle()
    target = len(topic.ticks.pieces)
    tail = topic.ticks.tail
    assert tail is not None
    assert tail.needed < target
    topic.port.hand(p.ShipAgain(True, max(tail.chunk_numbers) + 1))
    topic.settle()
    rows = topic.harness.archive(keep=1)
    topic.settle()
    assert rows
    assert topic.ticks.tail is not None
    assert topic.ticks.tail.needed >= target
    topic.check()


def test_the_first_needed_offset_follows_although_nothing_else_is_new(topic: ShipTopic) -> None:
    """The archived rows may be in a piece before the storage knows that they are committed."""
    topic.start()
    topic.publish()
    topic.settle()
    topic.harness.log.roll(topic.harness.now_ns)
    row = topic.harness.upload(0)
    topic.commit(batch=StateBatch(archived=[row]))
    topic.settle()
    assert topic.ticks.tail is not None
    assert topic.ticks.tail.needed < len(topic.ticks.pieces) - 1
    topic.store.archived[0] = row
    topic.settle()
    assert not topic.ticks.tail.chunk_numbers or 0 not in topic.ticks.topic.chunks
    assert topic.ticks.topic.kept_from == topic.harness.log.chunks[-1]


def test_log_files_count_as_archived_only_with_their_rows(topic: ShipTopic) -> None:
    """A restore of a piece before these rows would find neither the file nor the row."""
    topic.start()
    topic.publish()
    topic.settle()
    topic.limits.piece_bytes = 100
    while len(topic.harness.log.chunks) < 3:
        topic.harness.publish()
    topic.harness.sync()
    row = topic.harness.upload(0)
    topic.commit(batch=StateBatch(archived=[row]))
    topic.store.archived[0] = row
    topic.shipping.synced()
    (first,) = topic.ship(1)
    assert not first.changes
    assert first.kept_from == 0
    assert [one[0] for one in first.ranges] == [0]
    topic.settle()
    assert topic.ticks.topic.kept_from > 0
    topic.check()


def test_the_end_is_never_inside_a_group(topic: ShipTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore keeps what is below the end, so a part of a transaction would be visible."""
    topic.limits.piece_bytes = 400
    monkeypatch.setattr(topic.harness.log, "_options", _group_options(topic))
    topic.start()
    topic.publish()
    topic.settle()
    before = topic.harness.log.synced_end
    names = [topic.harness.stage(f"part {at}", 1, blocks=8) for at in range(3)]
    topic.harness.seal(*names)
    group = topic.harness.commit(1, *names)
    assert len(topic.harness.log.chunks) > 3, "the staged files were adopted"
    topic.shipping.synced()
    topic.settle()
    ends = {piece.end for piece, _ in topic.ticks.pieces}
    inside = {one for one in ends if before < one < group.first_offset + group.messages}
    assert not inside
    assert len(topic.ticks.pieces) > 4
    topic.check()


def _group_options(topic: ShipTopic) -> object:
    from dataclasses import replace

    return replace(topic.harness.log._options, adopt_bytes=100, group_append_bytes=200)


def test_rows_never_mention_messages_that_are_not_shipped(topic: ShipTopic) -> None:
    topic.limits.piece_bytes = 300
    topic.start()
    for _ in range(10):
        topic.harness.publish(blocks=2)
        topic.sync()
        topic.commit()
    topic.pass_time(1)
    while topic.ship(1):
        _, _, mentioned = topic.ticks.rows()
        assert mentioned <= topic.ticks.log_end()
    topic.settle()
    topic.check()


def test_changes_are_shipped_in_the_order_of_the_commits(topic: ShipTopic) -> None:
    topic.start()
    for _ in range(6):
        topic.commit()
        topic.delay()
    topic.settle()
    topic.check()
    topic.undelay()
    topic.commit()
    topic.settle()
    topic.check()


def test_a_store_that_is_made_after_the_dump_is_shipped(topic: ShipTopic) -> None:
    topic.start()
    _, delayed, _ = topic.ticks.rows()
    assert delayed is None
    topic.delay()
    topic.settle()
    topic.check()


def test_a_store_that_is_made_during_the_dump_is_shipped(topic: ShipTopic) -> None:
    topic.begin()
    topic.open()
    topic.threads.run()
    topic.delay()
    topic.shipping.tick()
    topic.settle()
    topic.delay()
    topic.settle()
    topic.check()


def test_a_store_that_is_made_while_the_dump_says_that_there_is_none_is_shipped(
    topic: ShipTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.begin()
    topic.open()

    def read_delayed(job: Callable[[object], object], then: Callable[[object], None]) -> None:
        topic.delay()  # in its thread, just now
        then(job(None))

    monkeypatch.setattr(topic.threads, "read_delayed", read_delayed)
    topic.settle()
    topic.delay()
    topic.settle()
    topic.check()


@pytest.mark.usefixtures("large_bases")
def test_a_store_that_is_made_while_all_rows_are_uploaded_is_shipped(topic: ShipTopic) -> None:
    topic.begin()
    topic.open()
    topic.threads.finish()
    topic.pass_time(1)
    assert topic.port.take(p.ShipBase) or True
    topic.restart()
    topic.open()
    topic.threads.finish()
    topic.pass_time(1)
    topic.delay()
    topic.shipping.tick()
    topic.settle()
    topic.delay()
    topic.settle()
    topic.check()


# All rows again


@pytest.mark.usefixtures("large_bases")
def test_many_rows_go_by_file_and_object(topic: ShipTopic) -> None:
    topic.commit()
    topic.delay()
    topic.start()
    assert len(topic.ticks.objects) == 1
    topic.commit()
    topic.settle()
    topic.check()
    assert not list(Path(topic.store.directory).glob("shipping.base*"))


@pytest.mark.usefixtures("large_bases")
def test_all_rows_are_uploaded_although_nothing_is_published(topic: ShipTopic) -> None:
    topic.publish()
    topic.start()
    before = len(topic.ticks.objects)
    topic.restart()
    topic.open()
    topic.ship()
    topic.threads.finish()
    topic.ship()
    topic.settle()
    assert len(topic.ticks.objects) == before + 1
    topic.commit()
    topic.settle()
    topic.check()


@pytest.mark.usefixtures("large_bases")
def test_a_request_to_ship_again_does_not_replace_rows_that_are_uploaded(topic: ShipTopic) -> None:
    topic.start()
    topic.port.hand(p.ShipAgain(True, 0))
    topic.threads.finish()
    topic.pass_time(1)
    for _ in range(3):
        topic.commit()
        topic.port.hand(p.ShipAgain(True, 0))
        topic.threads.finish()
        topic.pass_time(1)
    topic.settle()
    topic.check()


@pytest.mark.usefixtures("large_bases")
def test_an_upload_that_ends_after_changes_were_dropped_does_not_count(topic: ShipTopic) -> None:
    topic.begin()
    topic.open()
    topic.threads.finish()
    topic.pass_time(1)
    topic.limits.waiting_bytes = BIG
    for _ in range(5):
        topic.commit(1000)
    topic.shipping.tick()
    topic.threads.finish()
    topic.settle()
    topic.check()


@pytest.mark.usefixtures("large_bases")
def test_an_upload_is_repeated_after_the_death_of_the_archive_actor(topic: ShipTopic) -> None:
    topic.begin()
    topic.open()
    topic.threads.finish()
    topic.ship()
    topic.pass_time(1)
    assert topic.port.take(p.ShipBase)
    topic.die()
    topic.commit()
    topic.settle()
    topic.check()


def test_rows_that_cannot_be_written_to_a_file_are_dumped_again_later(
    topic: ShipTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.limits.inline_bytes = 0
    topic.begin()
    topic.open()

    def full(path: str) -> int:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(topic.store.files, "open_new", full)
        topic.threads.finish()
        topic.pass_time(0.1)
        assert not topic.threads.jobs
    topic.settle()
    topic.check()


def test_changes_that_are_too_many_are_replaced_by_a_dump(topic: ShipTopic) -> None:
    topic.start()
    topic.limits.waiting_bytes = BIG
    for _ in range(PIECES_MAX):  # the window is full
        topic.publish()
        topic.commit()
        topic.pass_time(1)
    begun = topic.ticks.begun
    for _ in range(50):
        topic.commit(1000)
        topic.pass_time(0.1)
        topic.threads.finish()
    topic.settle()
    topic.check()
    assert topic.ticks.begun == begun + 1


def test_at_most_a_window_of_pieces_is_on_its_way(topic: ShipTopic) -> None:
    topic.start()
    for _ in range(3 * PIECES_MAX):
        topic.publish()
        topic.pass_time(1)
    assert len(topic.port.take(p.Ship)) == PIECES_MAX


# Failures


def test_exactly_the_missing_pieces_are_sent_again_after_the_archive_actors_death(
    topic: ShipTopic,
) -> None:
    topic.start()
    for _ in range(4):
        topic.publish()
        topic.commit()
        topic.pass_time(1)
    sent = [one for one in topic.port.sent if isinstance(one, p.Ship)]
    assert len(sent) == 4
    topic.die(accepted=2)
    topic.pass_time(1)
    (asked,) = topic.port.take(p.OpenShipping)
    topic.port.hand(p.Done(asked.request, topic.ticks.answer()))
    again = [one for one in topic.port.sent if isinstance(one, p.Ship)]
    assert [one.sequence for one in again[:2]] == [one.sequence for one in sent[2:]]
    assert [one.changes for one in again[:2]] == [one.changes for one in sent[2:]]
    topic.settle()
    topic.check()


def test_pieces_that_follow_an_answer_are_sent_after_those_that_are_sent_again(
    tmp_path: Path, now: list[int]
) -> None:
    """The answer to a waiting commit may publish, and so make a new piece at once."""
    topic = ShipTopic(tmp_path, now, urgent=True).start()
    topic.publish()
    topic.shipping.then(topic.publish)
    topic.publish()
    topic.publish()
    topic.die(accepted=2)
    topic.settle()
    streams = {piece.stream for piece, _ in topic.ticks.pieces}
    assert len(streams) == 1
    topic.check()
    topic.harness.abandon()


def test_a_refused_piece_begins_a_new_stream_with_all_rows(topic: ShipTopic) -> None:
    topic.start()
    first = topic.ticks.pieces[-1][0].stream
    topic.publish()
    topic.commit()
    topic.pass_time(1)
    topic.refuse()
    assert topic.shipping.state is ShippingState.CLOSED
    topic.settle()
    topic.check()
    assert topic.ticks.pieces[-1][0].stream != first


def test_a_restarted_topic_goes_on_at_the_right_byte_with_all_rows(topic: ShipTopic) -> None:
    topic.start()
    topic.publish(blocks=3)
    topic.commit()
    topic.settle()
    topic.publish(blocks=3)
    topic.commit()
    topic.restart()
    topic.settle()
    topic.check()
    begins = [piece.begins for piece, _ in topic.ticks.pieces]
    assert begins.count(True) == 2


def test_a_restarted_topic_does_not_ship_archived_log_files(topic: ShipTopic) -> None:
    """The log of ticks may have no range of it, because the tick with the last one is gone."""
    topic.start()
    while len(topic.harness.log.chunks) < 5:
        topic.publish()
        topic.settle()
    topic.harness.log.roll(topic.harness.now_ns)
    topic.harness.archive(keep=len(topic.harness.log.chunks))
    topic.commit()
    topic.settle()
    tail = topic.ticks.tail
    assert tail is not None
    topic.ticks.tail = tail._replace(chunk=0, position=0)
    topic.restart()
    before = len(topic.ticks.pieces)
    topic.settle()
    assert not [one.ranges for one, _ in topic.ticks.pieces[before:] if one.ranges]


def test_an_older_directory_does_not_go_on(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.settle()
    topic.begin()
    topic.shipping.tick()
    (asked,) = topic.port.take(p.OpenShipping)
    found = {**topic.ticks.answer(), "end": topic.harness.log.end + 1}
    topic.port.hand(p.Done(asked.request, found))
    with pytest.raises(Refused, match="older copy") as caught:
        topic.shipping.check()
    assert caught.value.code == E_FENCED


# Waiting for the log of ticks


def test_a_waiter_is_called_when_everything_before_it_is_shipped(topic: ShipTopic) -> None:
    topic.start()
    called: list[int] = []
    topic.publish()
    topic.commit()
    topic.shipping.then(lambda: called.append(1))
    topic.publish()
    topic.commit()
    topic.shipping.then(lambda: called.append(2))
    assert not called
    topic.settle()
    assert called == [1, 2]


def test_a_waiter_is_called_at_once_if_everything_is_shipped(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.commit()
    topic.settle()
    called: list[int] = []
    topic.shipping.then(lambda: called.append(1))
    assert called == [1]


def test_a_waiter_is_not_called_before_the_base_that_replaces_lost_changes(
    topic: ShipTopic,
) -> None:
    topic.start()
    topic.commit()
    called: list[int] = []
    topic.shipping.then(lambda: called.append(1))
    topic.pass_time(1)
    topic.refuse()
    topic.publish()
    topic.pass_time(2)
    (asked,) = topic.port.take(p.OpenShipping)
    topic.port.hand(p.Done(asked.request, topic.ticks.answer()))
    topic.pass_time(1)
    while topic.ship():  # messages only: the dump has not run yet
        topic.pass_time(1)
    assert topic.ticks.pieces[-1][0].begins is False
    assert not called
    topic.settle()
    assert called == [1]


def test_a_waiter_is_not_called_before_the_first_base_of_a_process(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.commit()
    topic.settle()
    topic.commit()
    topic.restart()  # the commit is not shipped
    called: list[int] = []
    topic.shipping.then(lambda: called.append(1))
    topic.open()
    topic.publish()
    topic.pass_time(1)
    assert topic.ship()
    assert not called
    topic.settle()
    assert called == [1]


def test_a_waiter_is_not_called_before_a_commit_that_a_full_piece_leaves_out(
    topic: ShipTopic,
) -> None:
    topic.delay()
    topic.start()
    topic.port.hand(p.ShipAgain(True, 0))
    topic.threads.run()
    topic.commit(2000)  # behind the dump of the state
    called: list[int] = []
    topic.shipping.then(lambda: called.append(1))
    topic.delay()  # before the dump of the delayed messages
    topic.limits.changes_bytes = len(topic.ticks.pieces[0][1]) + 500  # all rows fill the piece
    topic.threads.finish()
    topic.pass_time(1)
    (first,) = topic.ship(1)
    assert first.begins
    state, _, _ = topic.ticks.rows()
    assert state != dict(row for batch in topic.store.state.dump() for row in batch)
    assert not called
    topic.limits.changes_bytes = ShipLimits().changes_bytes
    topic.settle()
    assert called == [1]


# The bound


def test_publishes_wait_at_the_bound_and_are_refused_after_the_patience(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    assert not topic.shipping.publishes_must_wait(1)
    topic.pass_time(0.99)
    assert not topic.shipping.publishes_must_wait(1)
    topic.pass_time(0.02)
    assert topic.shipping.publishes_must_wait(1)
    topic.shipping.check()
    topic.pass_time(ShipLimits().patience_s - 0.1)
    assert topic.shipping.publishes_must_wait(1)
    topic.pass_time(0.2)
    assert not topic.shipping.publishes_must_wait(1)
    with pytest.raises(Refused, match="publishing waits") as caught:
        topic.shipping.check()
    assert caught.value.code == E_BUCKET
    assert topic.shipping.alarms()
    topic.ship()
    assert not topic.shipping.publishes_must_wait(1)
    topic.shipping.check()
    assert not topic.shipping.alarms()


def test_delayed_messages_count_for_the_bound_too(topic: ShipTopic) -> None:
    topic.start()
    topic.delay()
    topic.pass_time(0.5)
    assert not topic.shipping.publishes_must_wait(1)
    topic.pass_time(0.6)
    assert topic.shipping.publishes_must_wait(1)
    topic.settle()
    assert not topic.shipping.publishes_must_wait(1)


def test_finishes_do_not_count_for_the_bound(topic: ShipTopic) -> None:
    topic.start()
    topic.commit()
    topic.pass_time(5)
    assert not topic.shipping.publishes_must_wait(1)


def test_publishes_wait_at_the_reserved_offsets(topic: ShipTopic) -> None:
    topic.start()
    assert topic.shipping.reserve.end >= SHIP_RESERVE
    assert not topic.shipping.publishes_must_wait(
        topic.shipping.reserve.end - topic.harness.log.end
    )
    assert topic.shipping.publishes_must_wait(
        topic.shipping.reserve.end - topic.harness.log.end + 1
    )
    assert topic.ship(), "more offsets are reserved at once"
    assert not topic.shipping.publishes_must_wait(
        topic.shipping.reserve.end - topic.harness.log.end
    )


def test_what_an_earlier_process_stored_does_not_count_for_the_next_reservation(
    topic: ShipTopic,
) -> None:
    """A restored topic begins behind what was reserved. If that counted, each restore would skip
    twice as many offsets as the one before.
    """
    topic.harness.publish()
    reserve = OffsetReserve(topic.harness.log, Shipped(end=0))
    assert reserve.ask(0) <= topic.harness.log.end + SHIP_RESERVE


def test_the_footer_of_an_archived_log_file_is_shipped_if_its_beginning_is(
    topic: ShipTopic,
) -> None:
    """Otherwise a restore would find the file without its footer until the rows are shipped."""
    topic.start()
    topic.publish()
    topic.settle()
    topic.harness.log.roll(topic.harness.now_ns)
    row = topic.harness.upload(0)
    topic.store.archived[0] = row
    cursor = LogCursor(topic.store, SyncMarks(), Shipped(end=row.next_offset))
    assert not cursor.is_archived(0, 100)
    assert cursor.is_archived(0, 0)


def test_a_commit_waits_for_offsets_and_goes_on(topic: ShipTopic) -> None:
    topic.start()
    tried: list[bool] = []
    needed = 2 * topic.shipping.reserve.end

    def again() -> None:
        tried.append(topic.shipping.may_commit(needed, again))

    again()
    assert tried == [False]
    topic.ship()
    assert tried == [False, True]


def test_a_commit_that_waits_for_offsets_is_tried_again_after_the_patience(
    topic: ShipTopic,
) -> None:
    topic.start()
    refused: list[str] = []

    def again() -> None:
        try:
            topic.shipping.check()
        except Refused as error:
            refused.append(error.code)

    topic.shipping.may_commit(2 * topic.shipping.reserve.end, again)
    topic.pass_time(ShipLimits().patience_s - 1)
    assert not refused
    topic.pass_time(2)
    assert refused == [E_BUCKET]
    topic.shipping.check()


def test_delayed_messages_do_not_move_when_publishes_are_refused(topic: ShipTopic) -> None:
    """Their offsets may be beyond those that are reserved."""
    topic.start()
    beyond = topic.shipping.reserve.end + 1
    assert topic.shipping.may_move(10)
    assert not topic.shipping.may_move(beyond)
    topic.now[0] += int((ShipLimits().patience_s + 1) * NS)
    assert not topic.shipping.publishes_must_wait(beyond)
    assert not topic.shipping.may_move(beyond)


def test_an_old_topic_is_not_held_before_it_was_caught_up(topic: ShipTopic) -> None:
    topic.publish()
    topic.begin()
    topic.open()
    topic.pass_time(100)
    assert not topic.shipping.publishes_must_wait(1)
    topic.shipping.check()
    topic.settle()
    topic.publish()
    topic.pass_time(2)
    assert topic.shipping.publishes_must_wait(1)


def test_what_is_promised_to_be_in_the_bucket_waits_until_an_old_topic_was_caught_up(
    topic: ShipTopic,
) -> None:
    """With the sync mode `bucket`, a delayed message or a transaction is answered only then."""
    topic.publish()
    topic.begin()
    topic.open()
    called: list[str] = []
    topic.shipping.then(lambda: called.append("not promised"))
    topic.shipping.then(lambda: called.append("promised"), is_promised=True)
    assert called == ["not promised"]
    topic.settle()
    assert called == ["not promised", "promised"]


def test_an_old_topic_waits_for_its_archive(topic: ShipTopic) -> None:
    while len(topic.harness.log.chunks) < 7:
        topic.harness.publish(blocks=2)
    topic.harness.sync()
    topic.begin()
    topic.open()
    topic.threads.finish()
    topic.pass_time(1)
    assert not topic.port.take(p.Ship)
    topic.harness.archive(keep=1)
    topic.settle()
    assert set(topic.ticks.chunks) == {topic.harness.log.chunks[-1]}
    topic.check()


def test_a_fenced_topic_refuses_at_once(topic: ShipTopic) -> None:
    topic.start()
    tried: list[str] = []

    def again() -> None:
        with pytest.raises(Refused) as caught:
            topic.shipping.check()
        tried.append(caught.value.code)

    topic.publish()
    topic.pass_time(1)
    topic.publish()
    topic.pass_time(1)
    topic.shipping.may_commit(1 << 40, again)
    topic.refuse(E_FENCED)
    assert topic.shipping.state is ShippingState.FENCED
    assert not topic.shipping.publishes_must_wait(1)
    with pytest.raises(Refused) as caught:
        topic.shipping.check()
    assert caught.value.code == E_FENCED
    assert tried == [E_FENCED], "a commit that waits for offsets is refused"
    assert not topic.shipping.may_move(1)
    assert not topic.shipping.is_active
    assert topic.shipping.alarms()


def test_a_fenced_topic_keeps_no_changes_in_memory(topic: ShipTopic) -> None:
    topic.start()
    topic.publish()
    topic.pass_time(1)
    topic.refuse(E_FENCED)
    for _ in range(100):
        topic.commit()
        topic.delay()
        topic.pass_time(1)
    assert topic.store.state.on_changes is None
    assert topic.store.delayed is None or topic.store.delayed.on_changes is None


def test_a_topic_whose_data_is_a_copy_is_not_shipped_and_not_held(topic: ShipTopic) -> None:
    topic.begin()
    called: list[int] = []
    topic.publish()
    topic.shipping.then(lambda: called.append(1))
    topic.shipping.may_commit(1 << 40, lambda: called.append(2))
    topic.shipping.tick()
    (asked,) = topic.port.take(p.OpenShipping)
    topic.port.hand(p.Done(asked.request, {"writes": False}))
    assert called == [1, 2]
    topic.commit()
    topic.pass_time(100)
    assert topic.shipping.is_off
    assert not topic.shipping.is_active
    assert not topic.shipping.publishes_must_wait(1 << 40)
    assert topic.shipping.may_commit(1 << 40, lambda: None)
    topic.shipping.check()
    assert not topic.port.sent
    assert topic.store.state.on_changes is None


# The end


def test_a_topic_is_idle_only_when_all_of_it_is_shipped(topic: ShipTopic) -> None:
    topic.begin()
    assert topic.shipping.is_active
    topic.open()
    assert topic.shipping.is_active
    topic.settle()
    for happen in (topic.publish, topic.commit, topic.delay):
        happen()
        assert topic.shipping.is_active, happen
        topic.settle()


def test_messages_that_a_new_log_file_has_synced_are_shipped(topic: ShipTopic) -> None:
    topic.start()
    topic.harness.publish()
    topic.harness.log.roll(topic.harness.now_ns)  # it syncs, and nobody calls `synced`
    assert topic.shipping.is_active
    topic.settle()
    topic.check()


def test_statistics_and_texts_exist_in_every_state(topic: ShipTopic) -> None:
    topic.begin()
    for step in (topic.open, topic.publish, topic.settle, topic.die, topic.settle):
        topic.shipping.statistics()
        topic.shipping.waiting()
        topic.shipping.alarms()
        step()
    assert topic.shipping.statistics() == {
        "shipping": "open",
        "shipped_end": 3, "ship_lag_s": 0.0
    }  # fmt: skip


def test_temporary_files_are_removed(topic: ShipTopic) -> None:
    left = Path(topic.store.directory, "shipping.base")
    left.write_bytes(b"of a process that was killed")
    topic.start()
    assert not left.exists()


def test_a_piece_is_as_old_as_what_it_has(topic: ShipTopic) -> None:
    """Otherwise it would be sent in a tick at once while the one before it is on its way."""
    topic.start()
    topic.publish()
    topic.pass_time(0.6)
    topic.publish()
    topic.pass_time(0.6)
    first, second = topic.port.take(p.Ship)
    assert second.oldest_ns - first.oldest_ns == int(0.6 * NS)


def test_an_urgent_topic_ships_each_sync_at_once(tmp_path: Path, now: list[int]) -> None:
    topic = ShipTopic(tmp_path, now, urgent=True).start()
    topic.publish()
    (asked,) = topic.port.take(p.Ship)
    assert asked.is_urgent
    topic.harness.abandon()


# Everything together

STEPS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "publish", "write", "commit", "commit", "delay", "undelay", "move", "roll", "tick",
                "run",
                "deliver", "ship", "ship one", "upload", "open", "refuse", "restart", "again",
                "archive", "wait", "big",
            ]
        ),
        st.tuples(st.just("die"), st.integers(0, 3)),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60)
@given(steps=STEPS, inline=st.booleans(), urgent=st.booleans(), piece=st.sampled_from([200, 5000]))
def test_a_restore_finds_the_same_topic_whatever_happens(
    steps: list[str | tuple[str, int]], inline: bool, urgent: bool, piece: int
) -> None:
    with (
        TemporaryDirectory() as root,
        fake_clock() as now,
    ):
        limits = ShipLimits(
            piece_bytes=piece, waiting_bytes=BIG, inline_bytes=4000 if inline else 0
        )
        topic = ShipTopic(Path(root), now, urgent=urgent, limits=limits)
        topic.start()
        called: list[int] = []
        for number, step in enumerate(steps):
            _step(topic, step, called, number)
            if any(one.begins for one, _ in topic.ticks.pieces):
                _, _, mentioned = topic.ticks.rows()
                tail = topic.ticks.tail
                assert tail is not None
                end = max(topic.ticks.log_end(), topic.ticks.topic.kept_from)
                assert mentioned <= end
                assert tail.end <= end
            assert not inline or not topic.unknown_moves()
        topic.settle()
        topic.check()
        assert called == sorted(called)
        topic.harness.abandon()


def _step(topic: ShipTopic, step: str | tuple[str, int], called: list[int], number: int) -> None:
    if isinstance(step, tuple):
        topic.die(step[1])
        return
    actions: dict[str, Callable[[], object]] = {
        "publish": topic.publish,
        "write": topic.harness.publish,
        "commit": topic.commit,
        "big": lambda: topic.commit(1000),
        "delay": topic.delay,
        "undelay": topic.undelay,
        "move": topic.move,
        "roll": topic.threads.roll,
        "tick": lambda: topic.pass_time(0.3),
        "run": topic.threads.run,
        "deliver": topic.threads.deliver,
        "ship": topic.ship,
        "ship one": lambda: topic.ship(1),
        "upload": topic.upload,
        "open": lambda: _open(topic),
        "refuse": topic.refuse,
        "restart": topic.restart,
        "again": lambda: _ship_again(topic),
        "archive": lambda: _archive(topic),
        "wait": lambda: topic.shipping.then(lambda: called.append(number)),
    }
    if step == "restart":
        called.clear()
    actions[step]()


def _open(topic: ShipTopic) -> None:
    for asked in topic.port.take(p.OpenShipping):
        topic.port.hand(p.Done(asked.request, topic.ticks.answer()))


def _archive(topic: ShipTopic) -> None:
    topic.harness.sync()
    topic.harness.archive(keep=1)


def _ship_again(topic: ShipTopic) -> None:
    if p.ShipAgain in topic.port.routes:
        topic.port.hand(p.ShipAgain(True, topic.harness.log.synced_end + 1))
