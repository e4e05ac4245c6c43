"""Tests of messages that a handler puts off: they use no attempt and have not failed. Tests of what
a dead letter says about the consumer.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.actors.conftest import ChannelHarness, DyingChannelHarness
from zsq.actors.channel.core import LOST, TIMED_OUT
from zsq.actors.channel.dying import Dying
from zsq.actors.channel.failures import Cause
from zsq.actors.channel.lease import Departure
from zsq.actors.settings import options
from zsq.transport.wire.protocol import BACKOFF, DEAD, DELAY_MS_MAX

S: Final = 1_000_000_000
A: Final = (b"a",)
ALL: Final[tuple[tuple[int, int], ...]] = ()


def begun(harness: ChannelHarness, count: int = 1) -> int:
    """Publish messages, let a handler begin them, and return the number of their delivery."""
    harness.join(A, 10, reports=True)
    harness.come(count)
    token = harness.send_one().token
    harness.channel.note_begun(A, token, ALL, harness.now_ns)
    return token


def test_a_message_that_is_put_off_again_and_again_keeps_its_attempt(
    harness: ChannelHarness,
) -> None:
    token = begun(harness)
    for _ in range(5):
        harness.channel.req(A, token, ALL, 10_000, harness.wall_ns, defer=True)
        harness.commit()
        assert harness.send() == []
        harness.scan(10)
        harness.commit()
        delivery = harness.send_one()
        assert delivery.runs == ((0, 1, 1),)
        token = delivery.token
        harness.channel.note_begun(A, token, ALL, harness.now_ns)
    counters = harness.channel.counters
    assert (counters["defer_count"], counters["requeue_count"]) == (5, 0)
    assert harness.channel.consumers[A].requeue_count == 0


def test_it_has_not_failed_and_its_last_failure_stays_known() -> None:
    harness = ChannelHarness(max_attempts=2)
    token = begun(harness)
    harness.channel.req(A, token, ALL, 0, harness.wall_ns, "the real error")
    harness.commit()
    for _ in range(3):
        harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns, defer=True)
        harness.commit()
    assert harness.channel.supply.failures.error_of(0, 1) == "the real error"
    assert not harness.channel.supply.dying, "its last attempt was not used"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_restart_keeps_a_message_that_was_put_off_in_its_first_attempt(*, ordered: bool) -> None:
    harness = ChannelHarness(ordered=ordered)
    token = begun(harness)
    harness.channel.req(A, token, ALL, 10_000, harness.wall_ns, defer=True)
    assert harness.commit().holes_put == ((0, 1, 0, harness.wall_ns + 10 * S),)
    again = ChannelHarness(1, tuple(harness.kept.values()), ordered=ordered)
    again.wall_ns = harness.wall_ns
    again.join(A, 10, reports=True)
    again.channel.supply.shelve(again.block_at(0, 1))
    assert again.send() == []
    again.scan(10)
    again.commit()
    assert again.send_one().runs == ((0, 1, 1),)


def test_a_delay_is_bounded(harness: ChannelHarness) -> None:
    token = begun(harness)
    harness.channel.req(A, token, ALL, 2 * DELAY_MS_MAX, harness.wall_ns, defer=True)
    harness.commit()
    assert [row[3] for row in harness.kept.values()] == [harness.wall_ns + DELAY_MS_MAX * 1_000_000]


def test_each_answer_draws_its_own_jitter() -> None:
    draws = iter([0.0, 0.5, 1.0])
    harness = ChannelHarness(random=lambda: next(draws), backoff_curve="100s", backoff_jitter=50)
    token = begun(harness, 3)
    for offset in range(3):
        harness.channel.req(A, token, ((offset, 1),), BACKOFF, harness.wall_ns)
    harness.commit()
    assert [row[3] - harness.wall_ns for row in harness.kept.values()] == [100 * S, 75 * S, 50 * S]


def test_a_dead_letter_names_the_consumer_whatever_happened(
    dying_channel: type[DyingChannelHarness],
) -> None:
    causes = []
    for happen in ("reject", "timeout", "leave"):
        harness = dying_channel(1)
        token = begun(harness)
        if happen == "reject":
            harness.channel.req(A, token, ALL, DEAD, harness.wall_ns, "no", "line 1\nline 2")
        elif happen == "timeout":
            harness.scan(61)
        else:
            harness.channel.unsubscribe(A, Departure.LOST)
        harness.commit()
        causes += [death.cause for death in harness.dying.waiting]
    assert causes == [
        Cause("no", "a", "line 1\nline 2"),
        Cause(TIMED_OUT, "a"),
        Cause(LOST, "a"),
    ]


def test_beyond_the_bound_tracebacks_go_before_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DYING_TEXT_MAX", 20)
    dying = Dying()
    for offset in range(4):
        dying.reject([(offset, 1, 1)], Cause("12345", "me", "1234567890"))
    assert [(len(d.cause.error), len(d.cause.traceback)) for d in dying.waiting] == [
        (5, 10),
        (5, 0),
        (0, 0),
        (0, 0),
    ]
    assert {death.cause.consumer for death in dying.waiting} == {"me"}
