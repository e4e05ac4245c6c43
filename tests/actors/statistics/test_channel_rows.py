"""Tests of the rows of channels, which are computed from the reports of several processes. Each
value is compared with one that was computed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.actors.conftest import ChannelHarness, S
from tests.support.group import processes_of
from zsq.actors.primitives.rates import RECENT_NS, RateMeter
from zsq.actors.statistics.channel_rows import age_s, backlog, channel_rows, drain_s, visible_end
from zsq.actors.statistics.schema import COUNTERS, ENDS
from zsq.transport.reports import ChannelStats, Latency
from zsq.transport.wire.protocol import BACKOFF

A, B = (b"a",), (b"b",)
NOW = 1_000_000 * S


def row_of(
    stats: Mapping[str, object],
    *,
    end: int = 1_000,
    oldest_ns: int = 0,
    rate: float = 0.0,
    paused: bool = False,
) -> ChannelStats:
    child = SimpleNamespace(state="up", stats=stats, data={})
    storage = {"oldest_ns": {"c": oldest_ns} if oldest_ns else {}}
    topic = SimpleNamespace(
        stats={"paused": paused, "rates": {"message_count": rate}, "storage": storage}
    )
    group = processes_of(topic, {"c": child})
    (row,) = channel_rows(group, end, NOW)
    return row


@pytest.mark.parametrize(
    ("unfinished", "oldest_ns", "age"),
    [
        (0, 5, 0.0),  # the cursor is not committed yet, but no unfinished message is left
        (0, 0, 0.0),
        (3, 0, None),
        (3, NOW - 90 * S, 90.0),
        (1, NOW - S // 4, 0.25),
        (1, NOW + 5 * S, 0.0),  # the clock was put back
    ],
)
def test_age_is_that_of_the_oldest_unfinished_message(
    unfinished: int, oldest_ns: int, age: float | None
) -> None:
    assert age_s(unfinished, oldest_ns, NOW) == age


@pytest.mark.parametrize(
    ("backlog", "rates", "coming", "seconds"),
    [
        (0, {}, 100.0, 0.0),
        (1_000, {"finish_count": 50.0}, 0.0, 20.0),
        (1_000, {"finish_count": 50.0}, 40.0, 100.0),
        (1_000, {"finish_count": 50.0}, 50.0, None),
        (1_000, {"finish_count": 50.0}, 60.0, None),
        (1_000, {}, 0.0, None),
        (
            1_000,
            {"finish_count": 10.0, "expired_count": 20.0, "tag_skipped_count": 20.0},
            0.0,
            20.0,
        ),
        (1_000, {"requeue_count": 1e6, "timeout_count": 1e6, "delivery_count": 1e6}, 0.0, None),
    ],
)
def test_time_to_drain_follows_from_the_backlog_and_the_rates(
    backlog: int, rates: dict[str, float], coming: float, seconds: float | None
) -> None:
    assert drain_s(backlog, rates, coming) == seconds


@pytest.mark.parametrize(
    ("topic", "storage", "end"),
    [
        ({"end": 10}, {"head": 10}, 10),
        # The topic is stopped, or has not learned of a transaction yet.
        (
            {"end": 10},
            {"head": 29},
            29,
        ),
        ({"end": 10, "paused": True}, {"head": 29}, 10),
        ({"end": 10}, {"head": 7}, 10),  # the storage's pulse is older than the topic's
        ({}, {"head": 7}, 7),
        ({}, {}, 0),
    ],
)
def test_the_depth_counts_up_to_the_end_that_channels_may_see(
    topic: dict[str, Any], storage: dict[str, Any], end: int
) -> None:
    child = SimpleNamespace(stats={"next_offset": 5, "in_flight_count": 0})
    group = processes_of(SimpleNamespace(stats=topic | {"storage": storage}), {"c": child})
    assert visible_end(group) == end
    assert backlog(group, "c", NOW, NOW)["depth"] == max(0, end - 5)


def test_every_way_out_of_a_channel_drains_it() -> None:
    assert set(ENDS) < set(COUNTERS)


def test_the_topic_knows_the_end_better() -> None:
    stats = {"next_offset": 700, "window_end": 750, "begin": 100, "requeued_waiting": 5, "depth": 1, "in_flight_count": 10,
             "rates": {"finish_count": 30.0}}  # fmt: skip
    row = row_of(stats, rate=20.0, oldest_ns=NOW - 7 * S)
    assert (row["depth"], row["backend_depth"], row["message_count"]) == (305, 250, 900)
    assert row["drain_s"] == 31.5
    assert row["oldest_message_age_s"] == 7.0
    assert row["rates"] == {"message_count": 20.0, "finish_count": 30.0}
    assert not {"begin", "window_end", "requeued_waiting", "deferred_full"} & row.keys()


def test_while_the_topic_is_paused_nothing_comes_into_a_channel() -> None:
    stats = {"next_offset": 900, "begin": 0, "in_flight_count": 0, "rates": {"finish_count": 10.0}}
    row = row_of(stats, rate=500.0, paused=True)
    assert (row["rates"]["message_count"], row["drain_s"]) == (0.0, 10.0)


def test_a_channel_that_has_not_said_anything_yet() -> None:
    row = row_of({})
    assert (row["depth"], row["oldest_message_age_s"], row["drain_s"], row["clients"]) == (
        0,
        0.0,
        0.0,
        [],
    )
    assert row["e2e_processing_latency"] == {"count": 0, "percentiles": []}


# The channel's own counters


def shown(harness: ChannelHarness, end: int | None = None) -> ChannelStats:
    return row_of(harness.channel.statistics(harness.end), end=harness.end if end is None else end)


def test_messages_that_came_and_deliveries_are_two_things(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(6, size=100)
    pending = harness.send_one()
    harness.channel.req(A, pending.token, (), 0, harness.wall_ns)
    harness.commit()
    again = harness.send_one()
    row = shown(harness, end=20)
    assert (row["message_count"], row["delivery_count"], row["requeue_count"], row["depth"]) == (
        20,
        12,
        6,
        14,
    )
    (client,) = harness.channel.details(harness.now_ns, harness.wall_ns)["clients"]
    assert (client["message_count"], client["requeue_count"], client["finish_count"]) == (12, 6, 0)
    assert client["message_bytes"] == row["delivery_bytes"] > 1_200
    harness.channel.fin(A, again.token, ())
    assert shown(harness, end=20)["message_count"] == 20


def test_going_back_is_more_that_came_and_emptying_is_not_less(harness: ChannelHarness) -> None:
    harness.join(A, 100)
    harness.come(50)
    harness.channel.fin(A, harness.send_one().token, ())
    harness.channel.seek(30)
    assert shown(harness)["message_count"] == 70
    harness.channel.seek(50)
    assert shown(harness)["message_count"] == 70


def test_a_timeout_counts_for_the_consumer_that_did_not_answer(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4)
    harness.send()
    harness.join(B, 10)
    harness.scan(61)
    by = {
        row["client_id"]: row["timeout_count"]
        for row in harness.channel.details(harness.now_ns, harness.wall_ns)["clients"]
    }
    assert (by, harness.channel.counters["timeout_count"]) == ({"a": 4, "b": 0}, 4)


def test_a_consumers_rate_is_of_its_last_minute(harness: ChannelHarness) -> None:
    harness.join(A, 1_000)
    measurements, consumers = harness.channel.measurements, harness.channel.consumers

    def pulses(seconds: int, *, work: bool) -> None:
        for _ in range(seconds):
            harness.now_ns += S
            if work:
                harness.come(10)
                harness.channel.fin(A, harness.send_one().token, ())
            measurements.sample(consumers.values(), harness.now_ns, harness.wall_ns)

    def rates() -> tuple[float, float]:
        (client,) = harness.channel.details(harness.now_ns, harness.wall_ns)["clients"]
        return client["rates"].get("finish_count", 0.0), measurements.rates(harness.now_ns).get(
            "finish_count", 0.0
        )

    measurements.sample(consumers.values(), harness.now_ns, harness.wall_ns)
    pulses(30, work=True)
    assert rates() == (10.0, 10.0)
    pulses(270, work=False)
    assert rates() == (0.0, 0.0)
    pulses(60, work=True)
    pulses(40, work=False)
    assert rates()[0] == pytest.approx(10.0 * 20 / 60, rel=0.1)
    assert rates()[1] == pytest.approx(10.0 * 20 / 60, rel=0.1)


def test_an_idle_consumer_frees_the_memory_of_its_percentiles(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4)
    harness.channel.fin(A, harness.send_one().token, (), harness.wall_ns)
    (consumer,) = harness.channel.consumers.values()
    assert consumer.latency is not None
    for seconds in (599, 200):
        assert harness.channel.measurements._latency._stores
        assert consumer.latency._stores
        harness.now_ns += seconds * S
        harness.wall_ns += seconds * S
        harness.channel.measurements.sample([consumer], harness.now_ns, harness.wall_ns)
    assert not harness.channel.measurements._latency._stores
    assert not consumer.latency._stores


def latency(harness: ChannelHarness) -> Latency:
    return harness.channel.details(harness.now_ns, harness.wall_ns)["e2e_processing_latency"]


def test_latency_is_from_the_block_to_the_finish(harness: ChannelHarness) -> None:
    """The harness stored its blocks at 7 ns."""
    harness.join(A, 10)
    harness.come(4, 3)
    first, second = harness.send()
    harness.channel.fin(A, first.token, ((0, 1), (2, 1)), harness.wall_ns)
    found = latency(harness)
    assert found["count"] == 2
    assert found["percentiles"][0] == {
        "quantile": 0.5,
        "value": pytest.approx(harness.wall_ns, rel=0.01),
    }
    harness.channel.fin(A, first.token, (), harness.wall_ns)
    # Refused, because it was answered before.
    harness.channel.fin(A, first.token, (), harness.wall_ns)
    harness.channel.req(A, second.token, (), BACKOFF, harness.wall_ns)
    assert latency(harness)["count"] == 4, "what was given back is not finished"
    (client,) = harness.channel.details(harness.now_ns, harness.wall_ns)["clients"]
    assert client["e2e_processing_latency"] is not None
    assert client["e2e_processing_latency"]["count"] == 4


def test_each_block_of_a_gathered_delivery_has_its_time(harness: ChannelHarness) -> None:
    from zsq.actors.channel.lease import by_time, times_of
    from zsq.transport.block.block import with_place

    blocks = [
        with_place(harness.block_at(first, 10), first, 1_000 + first) for first in (20, 0, 40)
    ]
    times = times_of([(blocks[0], 5, 10), (blocks[1], 0, 3), (blocks[2], 1, 2)])
    assert by_time(times, [(0, 3, 1), (25, 5, 1), (41, 1, 1)]) == {1_000: 3, 1_020: 5, 1_040: 1}
    assert by_time(times, [(1, 1, 1), (2, 1, 1), (29, 1, 1)]) == {1_000: 2, 1_020: 1}
    assert by_time(times, []) == by_time(times_of([(blocks[0], 0, 1)]), []) == {}


def test_too_many_consumers_share_the_channels_percentiles(
    harness: ChannelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsq.actors.settings.options.CONSUMER_LATENCIES_MAX", 1)
    harness.join(A, 0)
    harness.join(B, 10)
    harness.come(4)
    harness.channel.fin(B, harness.send_one().token, (), harness.wall_ns)
    clients = harness.channel.details(harness.now_ns, harness.wall_ns)["clients"]
    assert [client["e2e_processing_latency"] for client in clients] == [
        {"count": 0, "percentiles": []},
        None,
    ]
    assert latency(harness)["count"] == 4


def test_first_returns_the_lowest_unfinished_offset(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(4, 4)
    assert harness.channel.first() == 0
    first, second = harness.send()
    harness.channel.fin(A, first.token, ((0, 2),))
    assert harness.channel.first() == 2
    harness.channel.req(A, first.token, (), 0, harness.wall_ns)
    harness.channel.fin(A, second.token, ())
    assert harness.channel.first() == 2, "to be delivered again"
    harness.commit()
    harness.channel.fin(A, harness.send_one().token, ())
    assert harness.channel.first() == 8


def test_a_burst_half_a_minute_ago_does_not_hide_that_the_backlog_drains() -> None:
    """100,000 messages arrived 30 s ago, and since then 1,000 messages per second were finished.
    Over the last minute, more messages arrived than were finished.
    """
    topic, channel = RateMeter(0, {"message_count": 0}), RateMeter(0, {"finish_count": 0})
    for second in range(1, 31):
        came, finished = {"message_count": 100_000}, {"finish_count": 1_000 * second}
        minute = topic.rates(second * S, came), channel.rates(second * S, finished)
        recent = (
            topic.rates(second * S, came, RECENT_NS),
            channel.rates(second * S, finished, RECENT_NS),
        )
    assert drain_s(70_000, minute[1], minute[0]["message_count"]) is None
    stats = {
        "next_offset": 30_000,
        "begin": 0,
        "in_flight_count": 0,
        "rates": minute[1],
        "rates_recent": recent[1],
    }
    child = SimpleNamespace(state="up", stats=stats, data={})
    of_topic = SimpleNamespace(stats={"rates": minute[0], "rates_recent": recent[0]})
    group = processes_of(of_topic, {"c": child})
    (row,) = channel_rows(group, 100_000, NOW, {})
    assert row["drain_s"] == pytest.approx(70, rel=0.1)
    assert "rates_recent" not in row
