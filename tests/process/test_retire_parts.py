"""Tests of deleting and retiring topics with parts at two real brokers of one cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import wait_for
from support.cluster import Cluster, running

import zsq
from zsq.transport.errors import E_CLOSED, E_NOT_EMPTY

KEYS = [b"key-%d" % number for number in range(20)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as made:
        yield made


def test_a_topic_with_parts_is_deleted_only_closed_and_drained(cluster: Cluster) -> None:
    with zsq.Admin(cluster.url) as admin, zsq.Producer(cluster.url) as producer:
        admin.create_topic("t", parts=4)
        admin.create_channel("t", "c")
        with pytest.raises(
            zsq.Refused, match=r"t#\d' is open to publishers.*zsq topic close t\)"
        ) as refused:
            admin.delete_topic("t")
        assert refused.value.code == E_NOT_EMPTY
        producer.publish_many("t", KEYS, keys=KEYS)
        admin.close_topic("t")
        with pytest.raises(zsq.Refused, match=r"messages that are not finished .channel c: \d"):
            admin.delete_topic("t")
        assert len(admin.stats("t")["topics"]) == 4
        admin.seek("t", "c", "latest")
        # A broker that is away has parts that nobody knows to be empty.
        cluster.brokers[1].signal_all(signal.SIGKILL)
        with zsq.Admin(cluster.brokers[0].tcp, timeout=3) as hasty:
            with pytest.raises(zsq.ZsqError, match="t#"):
                hasty.delete_topic("t")
            assert [row["topic"] for row in hasty.cluster()["topics"]] == ["t"]
        cluster.brokers[1].start()
        admin.delete_topic("t")
        wait_for(lambda: not admin.cluster(fresh=True)["topics"])
    for broker in cluster.brokers:
        with zsq.Admin(broker.tcp) as admin:
            wait_for(lambda: not admin.topics())


def test_a_topic_with_parts_is_retired_when_its_consumers_have_drained_it(
    cluster: Cluster,
) -> None:
    with zsq.Admin(cluster.url) as admin, zsq.Producer(cluster.url) as producer:
        admin.create_topic("t", parts=4)
        admin.create_channel("t", "c")
        producer.publish_many("t", KEYS, keys=KEYS)
        early = zsq_command.run_text("--url", cluster.url, "topic", "retire", "t", "--wait", "1s")
        assert early.returncode == 1
        assert "is not drained: waiting for channel c (20 waiting" in early.stderr
        with pytest.raises(zsq.Refused) as closed:
            producer.publish("t", b"x", key=b"k")
        assert closed.value.code == E_CLOSED
        with zsq.Consumer("t", "c", url=cluster.url) as consumer:
            for _ in KEYS:
                message = consumer.receive(20)
                assert message is not None
                message.finish()
            consumer.flush()
        done = zsq_command.run_text("--url", cluster.url, "topic", "retire", "t", "--wait", "20s")
        assert done.returncode == 0, done.stderr
        assert "t is deleted" in done.stderr
        wait_for(lambda: not admin.cluster(fresh=True)["topics"])
        part = zsq_command.run_text("--url", cluster.url, "topic", "retire", "u#1")
        assert "zsq topic remove-part u#1" in part.stderr
