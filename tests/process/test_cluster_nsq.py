"""Tests of NSQ consumers of a topic with parts, with a cluster of two real brokers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.broker import wait_for
from support.cluster import Cluster, running
from support.nsq_socket import Message, NsqSocket

import zsq


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), nsq=True) as made:
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[zsq.Admin]:
    with zsq.Admin(cluster.brokers[0].tcp) as made:
        yield made


def publish(cluster: Cluster, topic: str, parts: int, each: int) -> set[bytes]:
    """Publish so many messages to each part. Return their bodies."""
    with zsq.Producer(cluster.url) as producer:
        bodies = {
            part: [b"%d/%d" % (part, number) for number in range(each)] for part in range(parts)
        }
        for part, several in bodies.items():
            producer.publish_many(f"{topic}#{part}", several)
    return {body for several in bodies.values() for body in several}


def unfinished(admin: zsq.Admin, topic: str) -> int:
    """Return how many messages the channel has in all parts."""
    channels = [one for row in admin.stats(topic)["topics"] for one in row["channels"]]
    return sum(one["depth"] + one["in_flight_count"] for one in channels)


def test_two_connections_get_each_message_exactly_once(cluster: Cluster, admin: zsq.Admin) -> None:
    """Each broker delivers the messages of its parts."""
    admin.create_topic("once", parts=4, brokers=[0, 1])
    admin.create_channel("once", "c")
    bodies = publish(cluster, "once", 4, 25)
    got: list[bytes] = []
    for number, broker in enumerate(cluster.brokers):
        with NsqSocket(broker.nsq) as client:
            client.subscribe("once", "c", ready=10)
            messages = []
            for _ in range(50):
                messages.append(client.message())
                client.answer("FIN", messages[-1])
            assert {int(one.body.split(b"/")[0]) for one in messages} == {number, number + 2}
            assert {int(one.id[:2], 16) for one in messages} == {number, number + 2}
            got += [one.body for one in messages]
    assert (len(got), set(got)) == (100, bodies)
    wait_for(lambda: unfinished(admin, "once") == 0)


def test_a_finish_persists_over_a_new_connection(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("again", parts=4, brokers=[0, 1])
    admin.create_channel("again", "c")
    publish(cluster, "again", 4, 5)
    place = cluster.brokers[0].nsq
    with NsqSocket(place) as client:
        client.subscribe("again", "c", ready=10)
        held = [client.message() for _ in range(10)]
        finished = held[::2]
        for message in finished:
            client.answer("FIN", message)
        wait_for(lambda: unfinished(admin, "again") == 20 - len(finished))
    with NsqSocket(place) as client:
        client.subscribe("again", "c", ready=10)
        rest = [client.message() for _ in range(5)]
        assert {one.id for one in rest} == {one.id for one in held[1::2]}
        assert {one.attempts for one in rest} == {2}
        for message in rest:
            client.answer("FIN", message)
        wait_for(lambda: unfinished(admin, "again") == 10)


@pytest.mark.parametrize("ready", [1, 3])
def test_no_more_messages_are_in_flight_than_the_client_asked_for(
    cluster: Cluster, admin: zsq.Admin, ready: int
) -> None:
    """Three parts lie at one broker, and with a RDY of 1, they take turns."""
    topic = f"bound{ready}"
    admin.create_topic(topic, parts=3, brokers=[0])
    admin.create_channel(topic, "c")
    bodies = publish(cluster, topic, 3, 10)

    def in_flight() -> int:
        rows = admin.stats(topic)["topics"]
        return sum(one["in_flight_count"] for row in rows for one in row["channels"])

    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe(topic, "c", ready=ready)
        got: list[Message] = []
        held = [client.message() for _ in range(ready)]
        while len(got) + len(held) < len(bodies):
            assert in_flight() == ready, "also at the channels, nothing more has been sent"
            got.append(held.pop(0))
            client.answer("FIN", got[-1])
            held.append(client.message())
        got += held
        for message in held:
            client.answer("FIN", message)
        assert sorted(one.body for one in got) == sorted(bodies)
        assert {one.attempts for one in got} == {1}
        wait_for(lambda: unfinished(admin, topic) == 0)


def test_messages_are_requeued_touched_and_time_out(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("back", parts=2, brokers=[0])
    admin.create_channel("back", "c")
    publish(cluster, "back", 2, 1)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        assert client.identify(msg_timeout=1500)["msg_timeout"] == 1500
        client.subscribe("back", "c", ready=2)
        one, two = client.message(), client.message()
        client.answer("TOUCH", one)
        client.answer("REQ", two, 0)
        again = client.message()
        assert (again.id, again.body, again.attempts) == (two.id, two.body, 2)
        client.answer("FIN", again)
        late = client.message()
        assert (late.id, late.attempts) == (one.id, 2), "its time was over"
        client.answer("FIN", late)
        client.answer("FIN", late)
        assert client.frame()[1] == b"E_FIN_FAILED FIN %s failed ID not in flight" % late.id
        wait_for(lambda: unfinished(admin, "back") == 0)


def test_cls_ends_deliveries_and_messages_in_flight_can_be_finished(
    cluster: Cluster, admin: zsq.Admin
) -> None:
    admin.create_topic("left", parts=2, brokers=[0])
    admin.create_channel("left", "c")
    publish(cluster, "left", 2, 2)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("left", "c", ready=1)
        message = client.message()
        assert client.ask("CLS") == "CLOSE_WAIT"
        client.answer("FIN", message)
        wait_for(lambda: unfinished(admin, "left") == 3)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("left", "c", ready=5)
        assert {client.message().attempts for _ in range(3)} == {1}


def test_a_part_that_is_added_here_is_read_by_open_connections(
    cluster: Cluster, admin: zsq.Admin
) -> None:
    admin.create_topic("more", parts=1, brokers=[0])
    with NsqSocket(cluster.brokers[0].nsq) as client, zsq.Producer(cluster.url) as producer:
        client.subscribe("more", "c", ready=1)
        admin.add_parts("more", 1, brokers=[0])
        producer.publish("more#1", b"new")
        message = client.message()
        assert (message.body, message.id[:2]) == (b"new", b"01")
        client.answer("FIN", message)
        wait_for(lambda: unfinished(admin, "more") == 0)


def test_a_broker_without_parts_accepts_consumers_and_delivers_what_comes_later(
    cluster: Cluster, admin: zsq.Admin
) -> None:
    """A client that is configured with all brokers must not fail at one of them."""
    admin.create_topic("away", parts=1, brokers=[0])
    with NsqSocket(cluster.brokers[1].nsq) as client, zsq.Producer(cluster.url) as producer:
        client.subscribe("away", "c", ready=1)
        producer.publish("away", b"elsewhere")
        assert unfinished(admin, "away") == 0, "it has created no channel at the other broker"
        admin.add_parts("away", 1, brokers=[1])
        producer.publish("away#1", b"here")
        assert client.message().body == b"here"
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("away", "c", ready=1)
        assert client.message().body == b"elsewhere"


def test_a_closed_part_is_drained(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("closed", parts=2, brokers=[0])
    admin.create_channel("closed", "c")
    publish(cluster, "closed", 2, 2)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("closed", "c", ready=1)
        first = client.message()
        admin.close_topic("closed#0")
        admin.close_topic("closed#1")
        client.answer("FIN", first)
        bodies = [first.body]
        for _ in range(3):
            message = client.message()
            client.answer("FIN", message)
            bodies.append(message.body)
        assert sorted(bodies) == [b"0/0", b"0/1", b"1/0", b"1/1"]


def test_a_part_that_is_closed_to_consumers_does_not_stop_the_others(
    cluster: Cluster, admin: zsq.Admin
) -> None:
    admin.create_topic("shut", parts=2, brokers=[0])
    admin.create_channel("shut", "c")
    publish(cluster, "shut", 2, 2)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("shut", "c")
        admin.close_topic("shut#0", to="consumers")
        client.send("RDY 1")
        for body in (b"1/0", b"1/1"):
            message = client.message()
            assert message.body == body
            client.answer("FIN", message)
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("shut", "c")


def test_a_part_that_moves_is_read_at_its_new_broker(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("moves", parts=2, brokers=[0])
    admin.create_channel("moves", "c")
    one, two = cluster.brokers
    with NsqSocket(one.nsq) as here, NsqSocket(two.nsq) as there:
        here.subscribe("moves", "c", ready=1)
        there.subscribe("moves", "c", ready=1)
        admin.move_part("moves#0", 1)
        wait_for(lambda: "moves#0" in _names(two.ipc), 60)
        publish(cluster, "moves", 2, 1)
        for client, body in ((here, b"1/0"), (there, b"0/0")):
            message = client.message()
            assert message.body == body
            client.answer("FIN", message)
        wait_for(lambda: unfinished(admin, "moves") == 0)
        rows = admin.stats("moves")["topics"]
        assert [channel["client_count"] for row in rows for channel in row["channels"]] == [1, 1]


def _names(url: str) -> set[str]:
    with zsq.Admin(url) as admin:
        return set(admin.topics())


def test_a_deleted_topic_ends_the_connections(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("gone", parts=2, brokers=[0])
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("gone", "c", ready=1)
        admin.delete_topic("gone", force=True)
        with pytest.raises((EOFError, ConnectionError)):
            client.frame()


def test_a_deleted_channel_ends_the_connection(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("nochannel", parts=2, brokers=[0])
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.subscribe("nochannel", "c", ready=1)
        admin.delete_channel("nochannel", "c", force=True)
        with pytest.raises((EOFError, ConnectionError)):
            client.frame()
    rows = admin.stats("nochannel")["topics"]
    assert not any(row["channels"] for row in rows), "it is not created again"


def test_each_broker_answers_lookups_for_itself(cluster: Cluster, admin: zsq.Admin) -> None:
    one = cluster.brokers[0]
    admin.create_topic("seen", parts=2, brokers=[0, 1])
    admin.create_topic("unseen", parts=1, brokers=[1])
    admin.create_channel("seen", "c")

    def get(path: str) -> Any:
        place = f"http://127.0.0.1:{one.http}{path}"
        with urllib.request.urlopen(place, timeout=20) as answer:
            return json.load(answer)

    found = get("/lookup?topic=seen")
    assert found["channels"] == ["c"]
    assert [producer["tcp_port"] for producer in found["producers"]] == [one.nsq]
    assert get("/channels?topic=seen") == {"channels": ["c"]}
    names = get("/topics")["topics"]
    assert "seen" in names
    assert not [name for name in names if "#" in name]
    assert "unseen" not in names
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("/lookup?topic=unseen")


def test_a_consumer_is_described_at_each_part(cluster: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("told", parts=2, brokers=[0])
    with NsqSocket(cluster.brokers[0].nsq) as client:
        client.identify(client_id="me", hostname="host", user_agent="raw/1")
        client.subscribe("told", "c", ready=5)

        def agents() -> list[str]:
            rows = admin.stats("told")["topics"]
            clients = [
                one for row in rows for channel in row["channels"] for one in channel["clients"]
            ]
            return [one["user_agent"] for one in clients]

        wait_for(lambda: agents() == ["raw/1", "raw/1"])
