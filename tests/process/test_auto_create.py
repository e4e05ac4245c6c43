"""Tests of `zsq serve --auto-create`: which clients create topics and channels by using them."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, wait_for
from support.nsq_socket import NsqSocket as Client
from support.zsq_command import run_text

import zsq


@pytest.fixture(params=["publishers", "never"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(tmp_path / "data", "--auto-create", request.param, nsq=True, http=True) as broker:
        yield broker


def rule(broker: Broker) -> str:
    return str(broker.extra[broker.extra.index("--auto-create") + 1])


def test_consumers_make_no_topic(broker: Broker) -> None:
    with (
        pytest.raises(zsq.NotFound, match="check the name, or create it"),
        zsq.Consumer("oders", "c", url=broker.ipc) as consumer,
    ):
        consumer.receive(10)
    with Client(broker.nsq) as client:
        client.identify()
        assert client.ask("SUB oders c").startswith("E_")
    with zsq.Admin(broker.ipc) as admin:
        assert admin.topics() == {}


def test_publishers_create_topics_only_if_permitted(broker: Broker) -> None:
    allowed = rule(broker) == "publishers"
    with zsq.Producer(broker.ipc, timeout=10) as producer:
        if allowed:
            producer.publish("orders", b"one")
        else:
            with pytest.raises(
                zsq.NotFound,
                match=r"--auto-create never: check the name, "
                r"or create it \(zsq topic create orders",
            ):
                producer.publish("orders", b"one")
    status = 200
    try:
        urllib.request.urlopen(
            f"http://127.0.0.1:{broker.http}/pub?topic=web", b"one", timeout=10
        ).close()
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    assert status == (200 if allowed else 404)
    answer = httpx.post(
        f"http://127.0.0.1:{broker.http}/api/topic/publish?topic=page",
        json={"body": "one"},
        timeout=10,
    )
    assert answer.status_code == (200 if allowed else 404), answer.text
    with zsq.Admin(broker.ipc) as admin:
        assert sorted(admin.topics()) == (["orders", "page", "web"] if allowed else [])
        by = [(row["topic"], row["via"]) for row in admin.audit() if row["topic"] == "page"]
        assert by == ([("page", "http")] if allowed else [])


def test_channels_of_a_topic_that_is_there(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("orders")
        admin.create_channel("orders", "made")
        with zsq.Producer(broker.ipc, timeout=10) as producer:
            producer.publish("orders", b"one")
        with zsq.Consumer("orders", "made", url=broker.ipc, timeout=10) as consumer:
            message = consumer.receive(10)
            assert message is not None
            message.finish(sync=True)
        if rule(broker) == "publishers":
            with zsq.Consumer(
                "orders", "new", url=broker.ipc, timeout=10, start="earliest"
            ) as consumer:
                assert consumer.receive(10) is not None
        else:
            with (
                pytest.raises(zsq.NotFound, match="zsq channel create"),
                zsq.Consumer("orders", "new", url=broker.ipc) as consumer,
            ):
                consumer.receive(10)
            assert admin.topics() == {"orders": ["made"]}


def test_topics_of_dead_letters_are_made_in_any_case(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("orders")
        admin.create_channel("orders", "c", max_attempts=1, dead_letter_topic="dead")
        with (
            zsq.Producer(broker.ipc) as producer,
            zsq.Consumer("orders", "c", url=broker.ipc) as consumer,
        ):
            producer.publish("orders", b"bad")
            message = consumer.receive(10)
            assert message is not None
            message.requeue()
            wait_for(lambda: "dead" in admin.topics(), 20, "the topic of dead letters")


def test_sub_and_tail_make_no_topic_unless_told(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_text("--url", broker.ipc, *arguments)

    try:
        broker.start()
        with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
            producer.publish("orders", b"one")
            for arguments in (
                ("sub", "oders", "c", "-n", "1"),
                ("tail", "oders", "-n", "1"),
                ("seek", "oders", "c", "0"),
            ):
                ended = run(*arguments)
                assert ended.returncode == 1
                assert "E_NOT_FOUND topic 'oders' does not exist" in ended.stderr
            assert "Did you mean 'orders'?" in run("sub", "oders", "c").stderr
            assert admin.topics() == {"orders": []}
            first = run("sub", "orders", "c", "-n", "1")
            assert (first.stdout, first.stderr) == (
                "one\n",
                "zsq: channel 'c' of topic 'orders' does not exist; creating it\n",
            )
            producer.publish("orders", b"two")
            again = run("sub", "orders", "c", "-n", "1")
            assert (again.stdout, again.stderr) == ("two\n", "")
            assert run("topic", "list").stdout == "orders\n"
            assert run("channel", "list", "orders").stdout == "c\n"
            assert (
                run("topic", "list", "--json").stdout == '{"topic": "orders", "channels": ["c"]}\n'
            )
            ended = run("channel", "list", "oders")
            assert (ended.returncode, "Did you mean 'orders'?" in ended.stderr) == (1, True)
            with subprocess.Popen(
                [sys.executable, "-m", "zsq", "--url", broker.ipc, "sub", "fresh", "c", "--create"]
            ) as waiting:
                wait_for(lambda: admin.topics().get("fresh") == ["c"], 20, "the new topic")
                waiting.terminate()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker where each client creates what it uses."""
    with Broker(tmp_path_factory.mktemp("open") / "data", http=True) as broker:
        yield broker


@pytest.mark.parametrize("door", ["ipc", "tcp"])
def test_a_connected_producer_does_not_bring_a_deleted_topic_back(
    open_broker: Broker, door: str
) -> None:
    url = open_broker.ipc if door == "ipc" else open_broker.tcp
    with zsq.Admin(url) as admin, zsq.Producer(url, timeout=10) as producer:
        producer.publish(door, b"one")
        admin.delete_topic(door, force=True)
        for _ in range(2):
            with pytest.raises(zsq.NotFound, match="was deleted while this client used it"):
                producer.publish(door, b"two")
        assert door not in admin.topics()
        admin.create_topic(door)
        producer.publish(door, b"three")
        admin.delete_topic(door, force=True)
        with zsq.Producer(url, timeout=10) as another:
            another.publish(door, b"four")
        assert door in admin.topics()


def test_a_connected_consumer_does_not_bring_a_deleted_topic_back(open_broker: Broker) -> None:
    url = open_broker.tcp
    with zsq.Admin(url) as admin, zsq.Consumer("gone", "c", url=url) as consumer:
        admin.delete_topic("gone", force=True)
        with pytest.raises(zsq.NotFound, match="was deleted while this client used it"):
            consumer.receive(20)
        assert "gone" not in admin.topics()


def test_an_ephemeral_topic_comes_back_with_its_clients(open_broker: Broker) -> None:
    name, url = "brief#ephemeral", open_broker.tcp
    with zsq.Admin(url) as admin, zsq.Consumer(name, "c", url=url) as consumer:
        admin.delete_topic(name, force=True)
        assert consumer.receive(0) is None
        wait_for(lambda: consumer.receive(0.1) is None and name in admin.topics())


def test_http_creates_a_topic_that_was_deleted(open_broker: Broker) -> None:
    """A client of HTTP has no connection that could have used the topic before."""
    url = f"http://127.0.0.1:{open_broker.http}/pub?topic=web"
    with zsq.Admin(open_broker.ipc) as admin:
        for _ in range(2):
            assert httpx.post(url, content=b"one", timeout=10).status_code == 200
            assert "web" in admin.topics()
            admin.delete_topic("web", force=True)


@pytest.mark.parametrize("door", ["ipc", "tcp"])
def test_a_producer_that_creates_nothing_names_the_topic_that_was_meant(
    open_broker: Broker, door: str
) -> None:
    url = open_broker.ipc if door == "ipc" else open_broker.tcp
    with zsq.Producer(url, timeout=10) as producer:
        producer.publish(f"invoices-{door}", b"one")
    with zsq.Producer(url, timeout=10, create=False) as producer, zsq.Admin(url) as admin:
        producer.publish(f"invoices-{door}", b"two")
        for _ in range(2):
            with pytest.raises(zsq.NotFound, match=rf"Did you mean 'invoices-{door}'\?"):
                producer.publish(f"invoises-{door}", b"lost")
        assert f"invoises-{door}" not in admin.topics()
        with pytest.raises(zsq.NotFound, match=rf"Did you mean 'invoices-{door}'\?"):
            admin.pause(f"invoises-{door}")


def test_the_log_has_one_line_for_a_topic_that_its_use_created(open_broker: Broker) -> None:
    for url in (open_broker.ipc, open_broker.tcp):
        with zsq.Producer(url) as producer:
            producer.publish("first-use", b"one")
    open_broker.wait_said("topic first-use is new: a client created it by using it (ipc)")
    assert open_broker.log.read_text().count("topic first-use is new") == 1
