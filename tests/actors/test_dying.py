"""Messages that had their attempts or were rejected: rows until they are dead letters, and finished then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from zsq.actors import options
from zsq.actors.channel_settings import ChannelSettings
from zsq.actors.delivery import LOST, REQUEUED, TIMED_OUT
from zsq.actors.dying import REJECTED, Dying
from zsq.actors.lease import Hole
from zsq.transport.block import Block, pack, with_place
from zsq.transport.dead_letter import ATTEMPTS, FOUND, REJECT
from zsq.transport.protocol import BACKOFF, DEAD

if TYPE_CHECKING:
    from tests.actors.conftest import DyingDesk

S = 1_000_000_000
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


def test_a_requeue_after_the_last_attempt_dies(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(2)
    desk.tried(1)
    assert not desk.dying
    sent = desk.send()
    assert desk.told(sent) == [("a", ((0, 4, 2),))]
    desk.channel.req(A, sent[0].token, ((1, 2),), 0, desk.wall_ns, "no good")
    desk.channel.fin(A, sent[0].token, ((3, 1),))
    assert desk.send() == []
    assert desk.commit().holes_put == ((0, 1, 2, 0), (1, 2, 2, 0)), "still rows"
    assert desk.send() == [], "never delivered again"
    assert desk.post() == [((1, 2, 2), ATTEMPTS, "no good")]
    assert desk.channel.statistics(4)["dying_count"] == 2
    assert desk.commit().holes_gone == (), "not finished before it is stored"
    desk.channel.supply.dead()
    assert desk.channel.supply.dirty
    assert desk.commit().holes_gone == (1,)
    assert desk.channel.counters["dead_letter_count"] == 2
    assert desk.channel.statistics(4)["dying_count"] == 0


@pytest.mark.parametrize("delay_ms", [0, 5_000, BACKOFF])
def test_a_delay_does_not_keep_what_had_its_attempts(delay_ms: int, dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(1)
    desk.join(A, 10)
    desk.come(4)
    desk.channel.req(A, desk.send_one().token, ALL, delay_ms, desk.wall_ns)
    assert desk.stats() == (0, 0, 0)
    assert desk.post() == [((0, 4, 1), ATTEMPTS, REQUEUED)]
    assert desk.channel.counters["requeue_count"] == 4


def test_the_backoff_of_the_channel_doubles_with_attempts(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(0)
    desk.join(A, 10)
    desk.come(1)
    for expected_s in (2, 4, 8):
        desk.channel.req(A, desk.send_one().token, ALL, BACKOFF, desk.wall_ns)
        (row,) = desk.commit().holes_put
        assert row[3] - desk.wall_ns == expected_s * S
        desk.scan(expected_s)
        desk.commit()


def test_a_time_out_and_a_lost_consumer_count_as_attempts(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(1)
    desk.join(A, 2)
    desk.join(B, 2)
    desk.come(4)
    first, second = desk.send()
    desk.channel.unsubscribe(first.peer)
    desk.scan(61)
    assert desk.post() == [((*first.runs[0],), ATTEMPTS, LOST), ((*second.runs[0],), ATTEMPTS, TIMED_OUT)]


def test_without_a_maximum_nothing_dies_but_what_is_rejected(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(0)
    desk.tried(5)
    sent = desk.send_one()
    assert sent.runs == ((0, 4, 6),)
    assert desk.channel.req(A, sent.token, ((1, 1), (9, 1)), DEAD, desk.wall_ns, "poison") == [(9, 1)]
    assert desk.channel.counters["requeue_count"] == 20, "a rejection is no requeue"
    assert (1, 1, 6 + REJECTED, 0) in desk.commit().holes_put, "the row says so"
    assert desk.post() == [((1, 1, 6), REJECT, "poison")]


@pytest.mark.parametrize(
    ("holes", "dead", "left"),
    [
        (((0, 2, 3, 0),), [((0, 2, 3), ATTEMPTS, FOUND)], 0),
        (((0, 2, 2, 0),), [], 2),
        (((0, 2, 1 + REJECTED, 0), (2, 1, 1, 0)), [((0, 2, 1), REJECT, FOUND)], 1),
    ],
)
def test_rows_that_are_found_at_a_start_die_where_they_must(
    holes: Sequence[Hole], dead: object, left: int, dying_desk: type[DyingDesk]
) -> None:
    desk = dying_desk(3, 4, holes)
    assert desk.stats()[0] == left
    assert desk.post(absent=True) == dead
    assert desk.commit().holes_put == (), "they are as they were"


def test_what_comes_due_dies_if_the_maximum_was_lowered_meanwhile(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(0)
    desk.tried(2)
    desk.channel.req(A, desk.send_one().token, ((0, 2),), 3_000, desk.wall_ns)
    desk.commit()
    desk.channel.unsubscribe(A)
    desk.channel.configure(ChannelSettings(max_attempts=3))
    assert [death.run for death in desk.dying.waiting] == [(2, 2, 3)], "what waits, at once"
    desk.scan(4)
    assert [death.run for death in desk.dying.waiting] == [(2, 2, 3), (0, 2, 3)]
    desk.commit()
    assert desk.kept == {}


def test_what_comes_due_before_its_commit_dies_too(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(0)
    desk.tried(1)
    desk.channel.req(A, desk.send_one().token, (), 1_000, desk.wall_ns)
    desk.channel.configure(ChannelSettings(max_attempts=2))
    desk.scan(1)
    assert [death.run for death in desk.dying.waiting] == [(0, 4, 2)]


def test_a_batch_waits_for_its_blocks_and_is_bounded(monkeypatch: pytest.MonkeyPatch, dying_desk: type[DyingDesk]) -> None:
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 6)
    desk = dying_desk(1, 40, [(first, 4, 1, 0) for first in range(0, 40, 4)])
    assert desk.post() == []
    assert desk.channel.supply.wanted == {0, 4, 8, 12}, "a few at a time"
    assert [run for run, _, _ in desk.post(absent=True)] == [(0, 4, 1), (4, 2, 1)]
    desk.channel.rest()  # nobody takes messages: blocks for the dying are kept
    desk.channel.supply.dead()
    assert [run for run, _, _ in desk.post()] == [(6, 2, 1), (8, 4, 1)]
    assert desk.channel.held == 9
    desk.channel.supply.dead()
    assert desk.channel.counters["dead_letter_count"] == 12


def test_a_batch_of_large_messages_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 2_000)
    dying = Dying()
    block = with_place(pack([b"x" * 900] * 8), 0, 0)
    dying.reject([(0, 8, 1)], "")
    sizes = []
    while dying.waiting:
        sizes.append(sum(death.run[1] for death, _ in dying.pick(lambda _: block, set())))
        dying.stored()
    assert max(sizes) <= 3, sizes
    assert sum(sizes) == 8


def test_errors_are_kept_up_to_a_bound_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DYING_TEXT_MAX", 10)
    block = with_place(pack([b"x"] * 9), 0, 0)
    dying = Dying()
    dying.reject([(0, 3, 1)], "1234567")
    dying.reject([(3, 3, 1)], "1234567")
    dying.reject([(6, 1, 1)], "123")
    assert [death.error for death in dying.waiting] == ["1234567", "", "123"]
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 2)
    while dying.waiting:
        dying.pick(lambda _: block, set())
        dying.stored()
    assert dying._texts == 0
    dying.reject([(0, 1, 1)], "1234567890")
    assert dying.waiting[0].error == "1234567890", "room again"


def test_a_seek_gives_up_the_dying(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(1)
    desk.tried(1)
    desk.post()
    batch = desk.dying.batch
    desk.channel.seek(4)
    assert not desk.dying
    assert desk.dying.batch != batch, "who waits for that batch can see it"
    assert desk.channel.counters["dead_letter_count"] == 0


def test_what_is_lost_or_dropped_is_counted_and_not_waited_for(dying_desk: type[DyingDesk]) -> None:
    desk = dying_desk(1, 12, [(0, 4, 1, 0), (4, 4, 1, 0), (8, 4, 1, 0)])
    assert desk.post() == []
    desk.channel.supply.lost(4, 8)
    assert desk.channel.counters["lost_count"] == 4
    desk.channel.supply.drop_below(10)
    assert desk.channel.counters["dropped_count"] == 6
    assert sorted(desk.commit().holes_gone) == [0, 4, 8]
    assert [death.run for death in desk.dying.waiting] == [(10, 2, 1)]
    assert desk.dying._texts == len(desk.dying.waiting[0].error), "there is room again for other errors"


def test_too_many_dying_stop_new_messages(monkeypatch: pytest.MonkeyPatch, dying_desk: type[DyingDesk]) -> None:
    monkeypatch.setattr(options, "HOLE_ROWS_MAX", 3)
    desk = dying_desk(1)
    desk.join(A, 100)
    desk.come(8)
    token = desk.send_one().token
    for offset in (0, 2, 4):
        desk.channel.req(A, token, ((offset, 1),), 0, desk.wall_ns)
    desk.channel.fin(A, token, ALL)
    desk.come(4)
    assert desk.send() == []
    desk.post()
    desk.channel.supply.dead()
    assert desk.told(desk.send()) == [("a", ((8, 4, 1),))]


def test_a_block_at_hand_is_used() -> None:
    found: list[int] = []

    def find(offset: int) -> Block | None:
        found.append(offset)
        return None

    dying = Dying()
    dying.reject([(5, 1, 1)], "")
    wanted: set[int] = set()
    assert dying.pick(find, wanted) == []
    assert (found, wanted) == ([5], {5})
