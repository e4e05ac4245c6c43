"""Tests of real NSQ clients with a topic whose parts lie at two brokers. They find both brokers at
a nsqlookupd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import wait_for
from support.cluster import Cluster, running
from support.lookupd_thread import LookupdThread
from support.nsq_clients import CLIENTS, Client, Program

import zsq

PARTS = 5


@pytest.fixture(scope="module")
def lookupd() -> Iterator[LookupdThread]:
    with LookupdThread() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, lookupd: LookupdThread) -> Iterator[Cluster]:
    options = ("--nsq-lookupd-tcp-address", lookupd.tcp, "--nsq-broadcast-http-port", "4151")
    with running(tmp_path_factory.mktemp("cluster"), *options, nsq=True) as made:
        yield made


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Return the client, or skip the test if it is not installed. In continuous integration a
    missing client is a failure.
    """
    missing: str = request.param.missing()
    if missing and "CI" in os.environ:
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    found: Client = request.param
    return found


@pytest.mark.parametrize("in_flight", [2, 40])
def test_each_client_gets_each_message_once_from_all_brokers(
    client: Client, cluster: Cluster, lookupd: LookupdThread, tmp_path: Path, in_flight: int
) -> None:
    """With 2 messages in flight, each broker gets a RDY of 1 for several parts."""
    topic = f"all-{client.name}-{in_flight}"
    with zsq.Admin(cluster.url) as admin, zsq.Producer(cluster.url) as producer:
        admin.create_topic(topic, parts=PARTS, brokers=[0, 1])
        admin.create_channel(topic, "ch")
        for part in range(PARTS):
            producer.publish_many(f"{topic}#{part}", [b"%d" % part] * 10)
        wait_for(lambda: lookupd.nodes_of(topic, "ch") == 2, 20, "both registrations")
        program = Program(
            client, "consume", tmp_path / "log", lookupd=lookupd.http, topic=topic, in_flight=in_flight, auto=True,
        )  # fmt: skip
        try:
            got = [program.message() for _ in range(10 * PARTS)]

            def finished() -> int:
                rows = admin.stats(topic)["topics"]
                return sum(one["finish_count"] for row in rows for one in row["channels"])

            wait_for(lambda: finished() == 10 * PARTS, 20, "all finishes")
            assert len({one["id"] for one in got}) == 10 * PARTS
            assert all(int(one["id"][:2], 16) == int(one["body"]) for one in got)
            assert {one["attempts"] for one in got} == {1}
            assert not program.all_of("message")
            program.close()
        finally:
            program.end()


def test_a_deleted_topic_is_registered_no_more(cluster: Cluster, lookupd: LookupdThread) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("brief", parts=2, brokers=[0, 1])
        wait_for(lambda: lookupd.nodes_of("brief") == 2, 20, "both registrations")
        admin.delete_topic("brief", force=True)
        wait_for(lambda: lookupd.nodes_of("brief") == 0, 20, "their end")


def test_a_broker_registers_a_topic_when_it_gets_a_part(
    cluster: Cluster, lookupd: LookupdThread
) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("grows", parts=1, brokers=[0])
        wait_for(lambda: lookupd.nodes_of("grows") == 1, 20, "the first registration")
        admin.add_parts("grows", 1, brokers=[1])
        wait_for(lambda: lookupd.nodes_of("grows") == 2, 20, "the second registration")
