"""Tests of the rate limit of a channel: the bucket, what counts, and what a start finds."""

from __future__ import annotations

import pytest

from tests.actors.channel.test_priorities import PriorityHarness
from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.rate_limit import RateLimit, restored
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.protocol import UNBEGUN

S = 1_000_000_000
A, B = (b"a",), (b"b",)


def sent_in(limit: RateLimit, seconds: float, step_ns: int = 0) -> int:
    """Return how many messages go in this time, if as many wait and the channel sleeps well."""
    now, count = 0, 0
    while now < seconds * S:
        room = limit.room(now)
        limit.take(room)
        count += room
        now = max(now + step_ns, limit.due_ns(now))
    return count


@pytest.mark.parametrize(
    ("rate", "seconds"), [(1 / 60, 100_000), (1.0, 2_000), (7.3, 500), (100.0, 60), (50_000.0, 5)]
)
def test_the_rate_is_right_to_one_percent(rate: float, seconds: float) -> None:
    limit = RateLimit(rate, 0)
    assert sent_in(limit, seconds) == pytest.approx(rate * seconds, rel=0.01, abs=limit.burst + 1)
    slow = RateLimit(rate, 0)  # a channel that wakes 20 ms late loses nothing either
    late = sent_in(slow, seconds, 20_000_000)
    assert late == pytest.approx(rate * seconds, rel=0.01, abs=limit.burst + 1)


def test_a_channel_sleeps_until_a_delivery_is_worth_it() -> None:
    limit = RateLimit(50_000.0, 0)
    limit.take(limit.room(0))
    assert limit.due_ns(0) == pytest.approx(10_000_000, rel=0.01), "not each 20 us"
    rare = RateLimit(1 / 60, 0)
    rare.take(1)
    assert rare.due_ns(0) == pytest.approx(60 * S, rel=0.01)
    assert rare.room(rare.due_ns(0)) == 1


def test_a_quiet_time_saves_up_one_burst() -> None:
    limit = RateLimit(10.0, 4)
    assert limit.room(0) == 4
    limit.take(4)
    assert limit.room(3_600 * S) == 4


def test_a_start_gives_no_new_burst() -> None:
    settings = ChannelSettings(max_rate=10.0, max_rate_burst=5)
    before = RateLimit(10.0, 5)
    before.take(5)
    full_ns = before.full_ns(0, wall_ns=100 * S)
    after = restored(settings, full_ns, 7 * S, wall_ns=100 * S + S // 5)
    assert after is not None
    assert after.room(7 * S) == 2, "what has come meanwhile"
    turned_back = restored(settings, full_ns, 7 * S, wall_ns=50 * S)
    assert turned_back is not None
    assert (turned_back.room(7 * S), turned_back.room(8 * S)) == (0, 5)
    assert restored(ChannelSettings(), full_ns, 0, 0) is None


def counts(channel: ChannelHarness) -> list[int]:
    return [sum(run[1] for run in pending.runs) for pending in channel.send()]


def test_the_limit_is_for_all_consumers_together() -> None:
    channel = ChannelHarness(max_rate=10.0, max_rate_burst=3)
    channel.join(A, 100)
    channel.join(B, 100)
    channel.come(50)
    assert sum(counts(channel)) == 3
    assert channel.channel.statistics(50)["limited_since_s"] == channel.wall_ns // S
    assert channel.channel.limit_due_ns(channel.now_ns) == pytest.approx(
        channel.now_ns + S // 10, abs=1000
    )
    channel.now_ns += 2 * S // 10
    assert counts(channel) == [2]
    assert channel.stats()[:2] == (45, 5), "the others wait: they are not in flight"


def test_what_waits_under_the_limit_uses_no_attempt_and_a_redelivery_takes_a_token() -> None:
    channel = ChannelHarness(max_rate=1.0, max_rate_burst=1, max_attempts=3)
    channel.join(A, 10)
    channel.come(2)
    (first,) = channel.send()
    channel.channel.req(A, first.token, (), 0, channel.wall_ns)
    channel.commit()
    assert channel.send() == []
    channel.now_ns += S
    (again,) = channel.send()
    assert again.runs == ((0, 1, 2),)
    channel.channel.fin(A, again.token, ())
    channel.now_ns += S
    (second,) = channel.send()
    assert second.runs == ((1, 1, 1),), "it has waited two seconds, and this is its first attempt"


def test_held_messages_are_bounded_by_the_burst_so_that_no_consumer_collects_them() -> None:
    channel = ChannelHarness(max_rate=10.0, max_rate_burst=5)
    channel.join(A, 100, reports=True)
    channel.come(50)
    (first,) = channel.send()
    channel.now_ns += 3_600 * S
    assert channel.send() == [], "it has begun none of five"
    assert channel.channel.limit_due_ns(channel.now_ns) == 0, "no time brings more"
    channel.channel.note_begun(A, first.token, ((0, 2),), channel.now_ns)
    assert counts(channel) == [2]


def test_a_message_that_comes_back_unbegun_gives_its_token_back() -> None:
    channel = ChannelHarness(max_rate=1.0, max_rate_burst=1)
    channel.join(A, 10, reports=True)
    channel.join(B, 10, reports=True)
    channel.come(5)
    (first,) = channel.send()
    channel.channel.look_for_idle(channel.now_ns)
    channel.now_ns += S // 5
    assert channel.channel.recalls(channel.now_ns) == [(A, 1)], "the other one has nothing to do"
    channel.channel.req(A, first.token, (), UNBEGUN, channel.wall_ns)
    channel.commit()
    (again,) = channel.send()
    assert again.runs == ((0, 1, 1),)


def test_a_change_of_the_limit_takes_effect_at_once_and_gives_no_burst() -> None:
    channel = ChannelHarness(max_rate=1 / 3_600)
    channel.join(A, 100)
    channel.come(50)
    assert counts(channel) == [1]
    channel.channel.configure(ChannelSettings(max_rate=10.0, max_rate_burst=20))
    assert counts(channel) == []
    channel.now_ns += S
    assert counts(channel) == [10]
    channel.channel.configure(ChannelSettings())
    assert counts(channel) == [39]
    assert channel.channel.statistics(50)["limited_since_s"] is None


def test_a_channel_is_not_limited_when_nothing_waits_or_nobody_wants() -> None:
    channel = ChannelHarness(max_rate=1.0, max_rate_burst=1)
    channel.join(A, 1)
    channel.come(1)
    (only,) = channel.send()
    assert channel.channel.statistics(1)["limited_since_s"] is None
    channel.come(1)
    channel.send()
    assert channel.channel.statistics(2)["limited_since_s"] is None, "its consumer has no room"
    channel.channel.fin(A, only.token, ())
    channel.send()
    assert channel.channel.statistics(2)["limited_since_s"] is not None
    channel.channel.unsubscribe(A)
    channel.send()
    assert channel.channel.statistics(2)["limited_since_s"] is None


def test_a_channel_whose_consumers_are_slower_than_its_limit_is_not_limited() -> None:
    channel = ChannelHarness(max_rate=10.0, max_rate_burst=5)
    channel.join(A, 20, reports=True)
    channel.come(100)

    def finish_one() -> None:
        token = min(channel.channel.consumers[A].tokens)
        lease = channel.channel.fin(A, token, ((len(finished), 1),), channel.wall_ns)
        finished.append(lease)
        channel.send()

    finished: list[object] = []
    channel.send()
    assert channel.channel.statistics(100)["limited_since_s"] is not None
    for _ in range(10):  # as fast as the limit
        channel.now_ns += S // 10
        finish_one()
    assert channel.channel.statistics(100)["limited_since_s"] is not None
    for _ in range(3):  # ten times slower: the bucket is never empty
        channel.now_ns += S
        finish_one()
    assert channel.channel.statistics(100)["limited_since_s"] is None


def test_an_urgent_message_gets_the_next_token() -> None:
    channel = PriorityHarness(priorities=2, max_rate=1.0, max_rate_burst=1)
    channel.join(A, 100)
    channel.take("00000")
    assert channel.offsets() == [0]
    channel.take("1")
    channel.now_ns += S
    assert channel.offsets() == [5]
