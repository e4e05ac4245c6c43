"""Tests of the HTTP gateway of a real broker: publishing, commands, statistics, lookup, metrics,
failures, and random requests.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed
from support.broker import Broker, kill, wait_for
from support.http_fuzz import Requests, check
from support.nsq_socket import NsqSocket

import zsq
from zsq.storage.files import Files
from zsq.storage.log.log_format import LOCK_NAME


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("http") / "data", nsq=True, http=True) as broker:
        yield broker


@pytest.fixture
def client(node: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{node.http}", timeout=30) as one:
        yield one


def ok(answer: httpx.Response, said: str = "") -> None:
    assert (answer.status_code, answer.text) == (200, said)


def topic_of(client: httpx.Client, topic: str, channel: str = "") -> dict[str, Any]:
    (row,) = client.get(
        "/stats", params={"format": "json", "topic": topic, "channel": channel}
    ).json()["topics"]
    return dict(row)


def received(node: Broker, topic: str, count: int) -> list[bytes]:
    with zsq.Consumer(topic, "c", url=node.ipc) as consumer:
        found = []
        for _ in range(count):
            message = consumer.receive(20)
            assert message is not None
            found.append(message.body)
            message.finish()
        return found


def test_messages_published_over_http_are_consumed(node: Broker, client: httpx.Client) -> None:
    ok(client.post("/topic/create?topic=pub"))
    ok(client.post("/channel/create?topic=pub&channel=c"))
    ok(client.post("/pub?topic=pub", content=b"one"), "OK")
    ok(client.post("/mpub?topic=pub", content=b"two\n\nthree\n"), "OK")
    ok(
        client.post(
            "/mpub?topic=pub&binary=true",
            content=struct.pack(">ii", 2, 4) + b"fo\nr" + struct.pack(">i", 4) + b"five",
        ),
        "OK",
    )
    assert received(node, "pub", 5) == [b"one", b"two", b"three", b"fo\nr", b"five"]
    wait_for(
        lambda: topic_of(client, "pub")["channels"][0]["depth"] == 0, what="nothing that waits"
    )


def test_messages_published_with_defer_come_later(node: Broker, client: httpx.Client) -> None:
    ok(client.post("/topic/create?topic=defer"))
    ok(client.post("/channel/create?topic=defer&channel=c"))
    ok(client.post("/pub?topic=defer&defer=60000", content=b"in a minute"), "OK")
    wait_for(
        lambda: topic_of(client, "defer")["channels"][0]["deferred_count"] == 1,
        what="the delayed one",
    )
    ok(client.post("/pub?topic=defer&defer=700", content=b"later"), "OK")
    ok(client.post("/pub?topic=defer", content=b"now"), "OK")
    assert received(node, "defer", 2) == [b"now", b"later"]


def defer_three(node: Broker, topic: str) -> None:
    with NsqSocket(node.nsq) as publisher:
        for number in range(3):
            assert publisher.ask(f"DPUB {topic} 2000", b"%d" % number) == "OK"


def deferred(client: httpx.Client, topic: str) -> list[int]:
    return [row["deferred_count"] for row in topic_of(client, topic)["channels"]]


def test_emptying_the_only_channel_of_a_topic_clears_deferred_messages(
    node: Broker, client: httpx.Client
) -> None:
    with NsqSocket(node.nsq) as consumer:
        consumer.subscribe("dpub", "c", ready=10)
        defer_three(node, "dpub")
        wait_for(lambda: deferred(client, "dpub") == [3], what="3 deferred messages")
        ok(client.post("/channel/empty?topic=dpub&channel=c"))
        assert deferred(client, "dpub") == [0]
        defer_three(node, "dpub")
        assert [consumer.message().body for _ in range(3)] == [b"0", b"1", b"2"]
    assert topic_of(client, "dpub")["message_count"] == 3, "the others never became due"


def test_emptying_one_of_two_channels_leaves_deferred_messages(
    node: Broker, client: httpx.Client
) -> None:
    ok(client.post("/topic/create?topic=two"))
    for channel in ("c", "d"):
        ok(client.post(f"/channel/create?topic=two&channel={channel}"))
    defer_three(node, "two")
    wait_for(lambda: deferred(client, "two") == [3, 3], what="3 deferred messages")
    ok(client.post("/channel/empty?topic=two&channel=c"))
    assert deferred(client, "two") == [3, 3]
    with NsqSocket(node.nsq) as consumer:
        consumer.subscribe("two", "d", ready=10)
        assert [consumer.message().body for _ in range(3)] == [b"0", b"1", b"2"]


def test_emptying_a_topic_without_channels_clears_deferred_messages(
    node: Broker, client: httpx.Client
) -> None:
    defer_three(node, "bare")
    wait_for(lambda: topic_of(client, "bare")["depth"] == 3, what="3 deferred messages")
    ok(client.post("/topic/empty?topic=bare"))
    assert topic_of(client, "bare")["depth"] == 0


def test_many_at_once_share_blocks(node: Broker, client: httpx.Client) -> None:
    ok(client.post("/topic/create?topic=many"))

    def publish(number: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{node.http}", timeout=30) as own:
            for n in range(20):
                ok(own.post("/pub?topic=many", content=f"{number}-{n}".encode()), "OK")

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = received(node, "many", 320)
    assert len(set(found)) == 320
    for number in range(16):
        own = [body for body in found if body.startswith(f"{number}-".encode())]
        assert own == [f"{number}-{n}".encode() for n in range(20)], "each client's in its order"


def test_each_command_of_the_http_api_changes_the_broker(
    node: Broker, client: httpx.Client
) -> None:
    for answer in (
        client.post("/topic/create?topic=cmd"),
        client.post("/topic/create?topic=cmd"),
        client.post("/channel/create?topic=cmd&channel=c"),
    ):
        ok(answer)
    ok(client.post("/channel/pause?topic=cmd&channel=c"))
    ok(client.post("/topic/pause?topic=cmd"))
    found = topic_of(client, "cmd")
    assert (found["paused"], found["channels"][0]["paused"]) == (True, True)
    ok(client.post("/topic/unpause?topic=cmd"))
    ok(client.post("/channel/unpause?topic=cmd&channel=c"))
    ok(client.post("/pub?topic=cmd", content=b"x"), "OK")
    wait_for(lambda: topic_of(client, "cmd")["channels"][0]["depth"] == 1, what="the message")
    ok(client.post("/channel/empty?topic=cmd&channel=c"))
    wait_for(lambda: topic_of(client, "cmd")["channels"][0]["depth"] == 0, what="nothing")
    ok(client.post("/topic/empty?topic=cmd"))
    ok(client.post("/pub?topic=cmd", content=b"not finished, and deleted all the same"), "OK")
    for method, target, message in (
        ("POST", "/channel/delete?topic=cmd&channel=no", "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/pause?topic=no&channel=c", "TOPIC_NOT_FOUND"),
        ("POST", "/topic/pause?topic=no", "TOPIC_NOT_FOUND"),
        ("POST", "/topic/delete?topic=no", "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create?topic=no&channel=c", "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=no", "TOPIC_NOT_FOUND"),
    ):
        answer = client.request(method, target)
        assert (answer.status_code, answer.json()) == (404, {"message": message})
    ok(client.post("/channel/delete?topic=cmd&channel=c"))
    assert topic_of(client, "cmd")["channels"] == []
    ok(client.post("/topic/delete?topic=cmd"))
    assert client.post("/topic/delete?topic=cmd").status_code == 404
    assert "cmd" not in client.get("/topics").json()["topics"]


def test_lookup_leads_to_the_nsq_gateway(node: Broker, client: httpx.Client) -> None:
    ok(client.post("/topic/create?topic=look"))
    ok(client.post("/channel/create?topic=look&channel=c"))
    found = client.get("/lookup?topic=look").json()
    (peer,) = found["producers"]
    assert (found["channels"], peer["tcp_port"], peer["http_port"], peer["hostname"]) == (
        ["c"],
        node.nsq,
        node.http,
        socket.gethostname(),
    )
    with socket.create_connection((peer["broadcast_address"], peer["tcp_port"]), 10):
        pass
    (row,) = client.get("/nodes").json()["producers"]
    assert "look" in row["topics"]
    assert len(row["topics"]) == len(row["tombstones"])
    info = client.get("/info").json()
    assert (info["tcp_port"], info["http_port"], info["version"]) == (
        node.nsq,
        node.http,
        peer["version"],
    )
    ok(client.post(f"/topic/tombstone?topic=look&node={peer['broadcast_address']}:{node.http}"))
    assert client.get("/lookup?topic=look").json()["producers"] == []


def test_connections_of_nsq_clients_are_in_statistics_and_metrics(
    node: Broker, client: httpx.Client
) -> None:
    def gateway() -> dict[str, Any]:
        with zsq.Admin(node.ipc) as admin:
            (row,) = admin.stats()["gateways"]
            assert "gateways" not in admin.stats("counted")
            return dict(row)

    ok(client.post("/topic/create?topic=counted"))
    before = gateway()
    with NsqSocket(node.nsq) as one, NsqSocket(node.nsq) as other:
        one.identify()
        other.identify()
        wait_for(
            lambda: gateway()["connections"] == before["connections"] + 2,
            what="two more connections",
        )
        found = gateway()
        samples = {
            one.name: one.value
            for family in parsed(client.get("/metrics").text)
            for one in family.samples
            if not one.labels
        }
        assert samples["zsq_nsq_connections"] == found["connections"]
        assert (
            samples["zsq_nsq_connections_accepted_total"]
            == found["connections_accepted"]
            == before["connections_accepted"] + 2
        )
        assert (samples["zsq_nsq_connections_evicted_total"], samples["zsq_nsq_held_bytes"]) == (
            found["connections_evicted"],
            found["held_bytes"],
        )
    wait_for(
        lambda: gateway()["connections"] == before["connections"],
        what="the end of both connections",
    )


def test_statistics_and_metrics_of_known_work(node: Broker, client: httpx.Client) -> None:
    ok(client.post("/topic/create?topic=figures"))
    ok(client.post("/channel/create?topic=figures&channel=c"))
    ok(client.post("/mpub?topic=figures", content=b"\n".join([b"x" * 100] * 30)), "OK")
    received(node, "figures", 20)

    def figures() -> tuple[int, int, int]:
        row = topic_of(client, "figures", "c")
        return (
            row["message_count"],
            row["channels"][0]["message_count"],
            row["channels"][0]["depth"],
        )

    wait_for(lambda: figures() == (30, 30, 10), what="30 messages, of which 10 wait")
    assert topic_of(client, "figures")["channels"][0]["e2e_processing_latency"]["count"] == 20
    text = client.get("/stats?topic=figures").text
    assert re.search(r"\n   \[figures        \] depth: 0     be-depth: 0     msgs: 30 ", text)
    assert re.search(r"\n      \[c  +\] depth: 10    be-depth: ", text), text
    exposition = client.get("/metrics")
    samples = {
        (one.name, one.labels.get("channel", "")): one.value
        for family in parsed(exposition.text)
        for one in family.samples
        if one.labels.get("topic") == "figures" or not one.labels
    }
    assert samples["zsq_up", ""] == samples["zsq_healthy", ""] == 1
    assert samples["zsq_topic_messages_total", ""] == 30
    assert (samples["zsq_channel_depth", "c"], samples["zsq_channel_finished_total", "c"]) == (
        10,
        20,
    )
    with zsq.Admin(node.ipc) as admin:
        known = admin.stats("figures")["topics"][0]
    assert samples["zsq_topic_message_bytes_total", ""] == known["message_bytes"]
    assert samples["zsq_topic_log_bytes", ""] == known["log_bytes"]


@pytest.mark.parametrize("seed", [1, 2])
def test_any_request_gets_a_documented_answer(client: httpx.Client, seed: int) -> None:
    requests = Requests(seed)
    for _ in range(300):
        method, target, body = requests.one()
        if method in ("CONNECT", "BREW") or target.startswith("//"):
            continue  # the client library would change this request
        answer = client.request(method, target, content=body)
        check(seed, method, target, body, answer.status_code, answer.headers, answer.content)
    ok(client.get("/ping"), "OK")


def test_a_topic_that_fails_makes_the_node_unhealthy_until_it_is_up_again(
    node: Broker, client: httpx.Client
) -> None:
    ok(client.post("/pub?topic=sick", content=b"x"), "OK")
    (folder,) = [
        identity.parent
        for identity in node.data_dir.glob("topics/*/topic")
        if '"sick"' in identity.read_text()
    ]
    (pid,) = [actor["pid"] for actor in node.actors() if actor["name"] == "topic sick"]
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)
    kill(pid)
    node.wait_gone([pid])
    lock = Files().lock(str(folder / LOCK_NAME))  # its successor waits for it
    os.kill(node.process.pid, signal.SIGCONT)
    wait_for(lambda: client.get("/ping").status_code == 500, what="an unhealthy node")
    said = client.get("/ping").text
    assert said.startswith("NOK - topic sick: ")
    assert client.get("/stats?format=json").json()["health"].startswith("NOK - ")
    Files().close(lock)
    wait_for(lambda: client.get("/ping").text == "OK", what="a healthy one again")


def test_a_taken_port_is_told(node: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "data", "--http-listen", f"127.0.0.1:{node.http}")
    other.extra = tuple(one for one in other.extra if one != "--no-http")
    try:
        with pytest.raises(
            AssertionError,
            match=f"cannot listen on http://127.0.0.1:{node.http}: Address already in use",
        ) as failed:
            other.start()
        assert str(failed.value).count("Address already in use") == 1
    finally:
        other.close()


def test_the_gateway_ends_with_the_broker_and_answers_before(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", http=True) as one:
        with httpx.Client(base_url=f"http://127.0.0.1:{one.http}", timeout=30) as own:
            ok(own.post("/pub?topic=t", content=b"x"), "OK")
            (pid,) = one.pids("http_gateway")
            kill(pid)
            wait_for(lambda: reaches(one), what="the gateway's successor")
        assert one.stop() == 0


def reaches(node: Broker) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{node.http}/ping", timeout=5).text == "OK"
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /pub?topic=halves HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_client_that_sends_no_more_gets_its_answer(node: Broker, request_: bytes) -> None:
    """Otherwise it would repeat a publish that is stored."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", node.http), timeout=20) as sock:
            sock.sendall(request_)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while data := sock.recv(65_536):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"OK")
