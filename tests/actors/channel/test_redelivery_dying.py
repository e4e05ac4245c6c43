"""Tests of messages that used all their attempts or were rejected. They stay as rows until they are
dead letters, and then they are finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from zsq.actors.channel.core import LOST, REQUEUED, TIMED_OUT
from zsq.actors.channel.dying import REJECTED, Dying
from zsq.actors.channel.failures import Cause
from zsq.actors.channel.lease import Hole
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.dead_letter import ATTEMPTS, FOUND, REJECT
from zsq.transport.wire.protocol import BACKOFF, DEAD

if TYPE_CHECKING:
    from tests.actors.conftest import DyingChannelHarness

S = 1_000_000_000
A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()


def test_a_requeue_after_the_last_attempt_dies(dying_channel: type[DyingChannelHarness]) -> None:
    harness = dying_channel(2)
    harness.tried(1)
    assert not harness.dying
    sent = harness.send()
    assert harness.told(sent) == [("a", ((0, 4, 2),))]
    harness.channel.req(A, sent[0].token, ((1, 2),), 0, harness.wall_ns, "no good")
    harness.channel.fin(A, sent[0].token, ((3, 1),))
    assert harness.send() == []
    assert harness.commit().holes_put == ((0, 1, 2, 0), (1, 2, 2, 0)), "still rows"
    assert harness.send() == [], "never delivered again"
    assert harness.post() == [((1, 2, 2), ATTEMPTS, "no good")]
    assert harness.channel.statistics(4)["dying_count"] == 2
    assert harness.commit().holes_gone == (), "not finished before it is stored"
    harness.channel.supply.dead()
    assert harness.channel.supply.dirty
    assert harness.commit().holes_gone == (1,)
    assert harness.channel.counters["dead_letter_count"] == 2
    assert harness.channel.statistics(4)["dying_count"] == 0


@pytest.mark.parametrize("delay_ms", [0, 5_000, BACKOFF])
def test_a_delay_does_not_keep_what_had_its_attempts(
    delay_ms: int, dying_channel: type[DyingChannelHarness]
) -> None:
    harness = dying_channel(1)
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, ALL, delay_ms, harness.wall_ns)
    assert harness.stats() == (0, 0, 0)
    assert harness.post() == [((0, 4, 1), ATTEMPTS, REQUEUED)]
    assert harness.channel.counters["requeue_count"] == 4


def test_the_backoff_of_the_channel_doubles_with_attempts(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(0)
    harness.join(A, 10)
    harness.come(1)
    for expected_s in (2, 4, 8):
        harness.channel.req(A, harness.send_one().token, ALL, BACKOFF, harness.wall_ns)
        (row,) = harness.commit().holes_put
        assert row[3] - harness.wall_ns == expected_s * S
        harness.scan(expected_s)
        harness.commit()


def test_a_time_out_and_a_lost_consumer_count_as_attempts(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(1)
    harness.join(A, 2)
    harness.join(B, 2)
    harness.come(4)
    first, second = harness.send()
    harness.channel.unsubscribe(first.peer)
    harness.scan(61)
    assert harness.post() == [
        ((*first.runs[0],), ATTEMPTS, LOST),
        ((*second.runs[0],), ATTEMPTS, TIMED_OUT),
    ]


def test_without_a_maximum_nothing_dies_but_what_is_rejected(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(0)
    harness.tried(5)
    sent = harness.send_one()
    assert sent.runs == ((0, 4, 6),)
    assert harness.channel.req(
        A, sent.token, ((1, 1), (9, 1)), DEAD, harness.wall_ns, "poison"
    ) == [(9, 1)]
    assert harness.channel.counters["requeue_count"] == 20, "a rejection is no requeue"
    assert (1, 1, 6 + REJECTED, 0) in harness.commit().holes_put, "the row says so"
    assert harness.post() == [((1, 1, 6), REJECT, "poison")]


@pytest.mark.parametrize(
    ("holes", "dead", "left"),
    [
        (((0, 2, 3, 0),), [((0, 2, 3), ATTEMPTS, FOUND)], 0),
        (((0, 2, 2, 0),), [], 2),
        (((0, 2, 1 + REJECTED, 0), (2, 1, 1, 0)), [((0, 2, 1), REJECT, FOUND)], 1),
    ],
)
def test_rows_found_at_the_start_become_dead_letters_where_they_must(
    holes: Sequence[Hole], dead: object, left: int, dying_channel: type[DyingChannelHarness]
) -> None:
    harness = dying_channel(3, 4, holes)
    assert harness.stats()[0] == left
    assert harness.post(absent=True) == dead
    assert harness.commit().holes_put == (), "they are as they were"


def test_a_due_message_over_a_lowered_maximum_becomes_a_dead_letter(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(0)
    harness.tried(2)
    harness.channel.req(A, harness.send_one().token, ((0, 2),), 3_000, harness.wall_ns)
    harness.commit()
    harness.channel.unsubscribe(A)
    harness.channel.configure(ChannelSettings(max_attempts=3))
    assert [death.run for death in harness.dying.waiting] == [(2, 2, 3)], "what waits, at once"
    harness.scan(4)
    assert [death.run for death in harness.dying.waiting] == [(2, 2, 3), (0, 2, 3)]
    harness.commit()
    assert harness.kept == {}


def test_a_message_that_is_due_before_its_commit_can_become_a_dead_letter(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(0)
    harness.tried(1)
    harness.channel.req(A, harness.send_one().token, (), 1_000, harness.wall_ns)
    harness.channel.configure(ChannelSettings(max_attempts=2))
    harness.scan(1)
    assert [death.run for death in harness.dying.waiting] == [(0, 4, 2)]


def test_a_batch_waits_for_its_blocks_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch, dying_channel: type[DyingChannelHarness]
) -> None:
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 6)
    harness = dying_channel(1, 40, [(first, 4, 1, 0) for first in range(0, 40, 4)])
    assert harness.post() == []
    assert harness.channel.supply.wanted == {0, 4, 8, 12}, "a few at a time"
    assert [run for run, _, _ in harness.post(absent=True)] == [(0, 4, 1), (4, 2, 1)]
    # No consumer takes messages, but the blocks of the dying messages are kept.
    harness.channel.rest()
    harness.channel.supply.dead()
    assert [run for run, _, _ in harness.post()] == [(6, 2, 1), (8, 4, 1)]
    assert harness.channel.held == 9
    harness.channel.supply.dead()
    assert harness.channel.counters["dead_letter_count"] == 12


def test_a_batch_of_large_messages_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "GATHER_BYTES_MAX", 2_000)
    dying = Dying()
    block = with_place(pack([b"x" * 900] * 8), 0, 0)
    dying.reject([(0, 8, 1)], Cause(""))
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
    dying.reject([(0, 3, 1)], Cause("1234567"))
    dying.reject([(3, 3, 1)], Cause("1234567"))
    dying.reject([(6, 1, 1)], Cause("123"))
    assert [death.cause.error for death in dying.waiting] == ["1234567", "", "123"]
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 2)
    while dying.waiting:
        dying.pick(lambda _: block, set())
        dying.stored()
    assert dying._texts == 0
    dying.reject([(0, 1, 1)], Cause("1234567890"))
    assert dying.waiting[0].cause.error == "1234567890", "room again"


def test_a_seek_gives_up_the_dying(dying_channel: type[DyingChannelHarness]) -> None:
    harness = dying_channel(1)
    harness.tried(1)
    harness.post()
    batch = harness.dying.batch
    harness.channel.seek(4)
    assert not harness.dying
    assert harness.dying.batch != batch, "who waits for that batch can see it"
    assert harness.channel.counters["dead_letter_count"] == 0


def test_lost_and_dropped_dead_letters_are_counted_and_not_waited_for(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(1, 12, [(0, 4, 1, 0), (4, 4, 1, 0), (8, 4, 1, 0)])
    assert harness.post() == []
    harness.channel.supply.lost(4, 8)
    assert harness.channel.counters["lost_count"] == 4
    harness.channel.supply.drop_below(10)
    assert harness.channel.counters["dropped_count"] == 6
    assert sorted(harness.commit().holes_gone) == [0, 4, 8]
    assert [death.run for death in harness.dying.waiting] == [(10, 2, 1)]
    assert harness.dying._texts == harness.dying.waiting[0].cause.size, (
        "there is room again for other errors"
    )


def test_too_many_dying_stop_new_messages(
    monkeypatch: pytest.MonkeyPatch, dying_channel: type[DyingChannelHarness]
) -> None:
    monkeypatch.setattr(options, "HOLE_ROWS_MAX", 3)
    harness = dying_channel(1)
    harness.join(A, 100)
    harness.come(8)
    token = harness.send_one().token
    for offset in (0, 2, 4):
        harness.channel.req(A, token, ((offset, 1),), 0, harness.wall_ns)
    harness.channel.fin(A, token, ALL)
    harness.come(4)
    assert harness.send() == []
    harness.post()
    harness.channel.supply.dead()
    assert harness.told(harness.send()) == [("a", ((8, 4, 1),))]


def test_a_block_at_hand_is_used() -> None:
    found: list[int] = []

    def find(offset: int) -> Block | None:
        found.append(offset)
        return None

    dying = Dying()
    dying.reject([(5, 1, 1)], Cause(""))
    wanted: set[int] = set()
    assert dying.pick(find, wanted) == []
    assert (found, wanted) == ([5], {5})
