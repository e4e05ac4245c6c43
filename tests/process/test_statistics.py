"""Tests of statistics from real processes: what a topic, its channels and their consumers report
about known work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.samples import Samples
from support.stages import TOPIC, write

import zsq
from tests.support.shapes import misfits
from zsq.transport.client.blocking.stage_writer import StageCommitter
from zsq.transport.reports import BrokerStats


def row(admin: zsq.Admin, channel: str) -> dict[str, Any]:
    stats = admin.stats(TOPIC, channel)
    assert not misfits(stats, BrokerStats)
    return dict(stats["topics"][0]["channels"][0])


def published(broker: Broker, count: int) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(TOPIC, [b"x" * 100] * count)


def test_the_age_of_a_channel_without_consumers_grows(broker: Broker) -> None:
    """The channel itself is not told of the new messages. Storage knows their age."""
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel(TOPIC, "idle")
        assert (row(admin, "idle")["oldest_message_age_s"], row(admin, "idle")["drain_s"]) == (
            0.0,
            0.0,
        )
        before = time.time()
        published(broker, 100)
        wait_for(
            lambda: (row(admin, "idle")["oldest_message_age_s"] or 0) > 1.5, what="an age of 1.5 s"
        )
        found = row(admin, "idle")
        assert 1.5 < found["oldest_message_age_s"] <= time.time() - before
        assert (found["depth"], found["message_count"], found["drain_s"]) == (100, 100, None)
        assert found["rates"]["message_count"] > 0
        topic = admin.stats(TOPIC)["topics"][0]
        assert topic["oldest_message_age_s"] > 1.5
        admin.empty(TOPIC, "idle")
        wait_for(
            lambda: row(admin, "idle")["oldest_message_age_s"] == 0.0, what="nothing that is old"
        )
        wait_for(
            lambda: admin.stats(TOPIC)["topics"][0]["oldest_message_age_s"] == 0.0,
            what="nothing that is old in the topic",
        )
        assert row(admin, "idle")["message_count"] == 100, "they came, whatever became of them"


def test_all_views_show_the_same_backlog_of_a_channel_without_consumers(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel(TOPIC, "idle")
        published(own_broker, 100)

        def overview() -> dict[str, Any]:
            found = admin.overview()
            topic, channels = found["topics"][TOPIC]
            of_topic = dict(zip(found["topic_fields"], topic, strict=True))
            channel = dict(zip(found["channel_fields"], channels["idle"], strict=True))
            return {"depth": channel["depth"], "backlog": of_topic["backlog"], **of_topic}

        def is_reported(count: int) -> Callable[[], bool]:
            return lambda: overview()["head"] == count

        for count in range(100, 103):
            # The topic reports the messages, while the channel is silent.
            wait_for(is_reported(count), what="a report of the topic")
            assert (overview()["depth"], overview()["backlog"]) == (count, count)
            assert row(admin, "idle")["depth"] == count
            published(own_broker, 1)


def test_messages_that_wait_for_a_first_channel_have_an_age_too(broker: Broker) -> None:
    published(broker, 10)
    with zsq.Admin(broker.ipc) as admin:
        wait_for(
            lambda: (admin.stats(TOPIC)["topics"][0]["oldest_message_age_s"] or 0) > 0.2,
            what="an age",
        )


def test_latency_and_rates_of_work_that_took_its_time(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel(TOPIC, "slow")
        admin.create_channel(TOPIC, "fast")
        before = time.time()
        published(broker, 300)
        stored_by = time.time() - before
        with (
            zsq.Consumer(TOPIC, "fast", url=broker.ipc) as fast,
            zsq.Consumer(TOPIC, "slow", url=broker.ipc) as slow,
        ):
            finish(fast, 300)
            fast_took = time.time() - before
            wait_for(lambda: time.time() - before > fast_took + 1.0, what="a second")
            finish(slow, 300)
            slow_took = time.time() - before
            rows = {name: row(admin, name) for name in ("fast", "slow")}
            topic = admin.stats(TOPIC)["topics"][0]
    assert 0 < quantile(rows["fast"], 1.0) <= fast_took * 1.01
    assert fast_took + 1.0 - stored_by < quantile(rows["slow"], 0.5) * 1.01
    assert quantile(rows["slow"], 1.0) <= slow_took * 1.01
    for found in rows.values():
        (client,) = found["clients"]
        assert (
            found["e2e_processing_latency"]["count"]
            == client["e2e_processing_latency"]["count"]
            == 300
        )
        assert (
            found["finish_count"],
            client["finish_count"],
            found["delivery_count"],
            found["depth"],
        ) == (300, 300, 300, 0)
        assert 300 / 60 < found["rates"]["finish_count"] <= 300
        assert 300 / 60 < client["rates"]["finish_count"] <= 300
        assert client["message_bytes"] == found["delivery_bytes"] > 30_000
    assert topic["e2e_processing_latency"]["count"] == 600, "all channels together"
    assert quantile(topic, 0.01 + 0.49) <= fast_took * 1.01
    assert quantile(topic, 1.0) == quantile(rows["slow"], 1.0)
    assert topic["rates"]["message_bytes"] > 30_000 / 60
    assert "latency_bins" not in rows["fast"]


def test_due_and_committed_messages_are_counted_too(broker: Broker) -> None:
    """Delayed messages that became due, and commits of stages, never pass through the topic's queue
    of publishes.
    """
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel(TOPIC, "c")

        def figures() -> tuple[int, int, float]:
            topic = admin.stats(TOPIC)["topics"][0]
            return (
                topic["message_count"],
                topic["message_bytes"],
                topic["rates"].get("message_bytes", 0.0),
            )

        producer.publish_many(TOPIC, [b"x" * 100] * 50, delay=0.3)
        wait_for(lambda: figures()[0] == 50, what="messages that are due")
        _, size, rate = figures()
        assert 5_000 < size < 10_000
        assert size / 60 < rate <= size
        with zsq.Consumer(TOPIC, "c", url=broker.ipc) as consumer:
            finish(consumer, 50)
        with StageCommitter(TOPIC, url=broker.ipc) as committer:
            committer.commit("app", 1, [write(broker.ipc, [b"y" * 100] * 200, per_block=70)])
        wait_for(lambda: figures()[0] == 250, what="a commit")
        assert figures()[1] > size + 20_000


def test_an_ephemeral_channel_tells_what_it_holds(broker: Broker) -> None:
    """Storage has no rows of an ephemeral channel. Without the channel's own report, a message in
    flight would look as young as the newest message.
    """
    with (
        zsq.Admin(broker.ipc) as admin,
        zsq.Consumer(TOPIC, "c#ephemeral", url=broker.ipc, ready=1) as consumer,
    ):
        published(broker, 1)
        held = consumer.receive(20)
        assert held is not None
        before = time.time()
        wait_for(lambda: time.time() - before > 1.5, what="a while")
        published(broker, 1)
        wait_for(lambda: row(admin, "c#ephemeral")["depth"] == 1, what="the second one")
        assert row(admin, "c#ephemeral")["oldest_message_age_s"] >= 1.5
        held.finish(sync=True)
        wait_for(
            lambda: (row(admin, "c#ephemeral")["oldest_message_age_s"] or 9) < 1.5,
            what="the age of the second one",
        )


def test_counters_outlive_the_channels_process(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel(TOPIC, "c")
        published(own_broker, 200)
        with zsq.Consumer(TOPIC, "c", url=own_broker.ipc, ready=50) as consumer:
            batch = consumer.receive_batch(20)
            assert batch is not None
            batch.requeue()
            finish(consumer, 200)
        wait_for(lambda: row(admin, "c")["depth"] == 0, what="all finished")
        admin.seek(TOPIC, "c", 150)
        before = row(admin, "c")
        assert (before["message_count"], before["requeue_count"], before["finish_count"]) == (
            250,
            len(batch),
            200,
        )
        assert before["delivery_count"] >= 200 + len(batch)
        (pid,) = own_broker.pids("channel")
        kill(pid)
        wait_for(lambda: own_broker.pids("channel") not in ([], [pid]), what="its successor")
        wait_for(
            lambda: row(admin, "c")["health"] == "OK" and "next_offset" in row(admin, "c"),
            what="its pulse",
        )
        after = row(admin, "c")
        counters = (
            "message_count",
            "delivery_count",
            "delivery_bytes",
            "finish_count",
            "requeue_count",
        )
        assert {name: after[name] for name in counters} == {name: before[name] for name in counters}
        assert after["rates"].get("finish_count", 0.0) == 0.0, (
            "what was counted before is no growth"
        )


@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_the_figures_stay_while_a_killed_process_is_started_again(
    own_broker: Broker, kind: str
) -> None:
    """A dashboard or an autoscaler would act on a depth of 0 that lasts only for a moment."""
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel(TOPIC, "c")
        published(own_broker, 100)
        wait_for(lambda: row(admin, "c")["depth"] == 100, what="the depth")
        wait_for(lambda: overview_depth(admin) == 100, what="the depth in the overview")
        (before,) = own_broker.pids(kind)
        with Samples(own_broker, TOPIC) as samples:
            kill(before)
            wait_for(lambda: before not in own_broker.pids(kind), what="a new process")
            wait_for(lambda: row(admin, "c")["health"] == "OK", what="a channel that has reported")
            seen = samples.count
            wait_for(lambda: samples.count > seen + 2, what="more samples")
        assert samples.found == {(100, 100, 100)}


def overview_depth(admin: zsq.Admin) -> int:
    view = admin.overview()
    return int(
        dict(zip(view["channel_fields"], view["topics"][TOPIC][1]["c"], strict=True))["depth"]
    )


def finish(consumer: zsq.Consumer, count: int) -> None:
    done = 0
    while done < count:
        batch = consumer.receive_batch(20)
        assert batch is not None
        batch.finish(sync=True)
        done += len(batch)


def quantile(found: dict[str, Any], wanted: float) -> float:
    """Return the quantile in seconds."""
    return next(
        float(one["value"]) / 1e9
        for one in found["e2e_processing_latency"]["percentiles"]
        if one["quantile"] == wanted
    )
