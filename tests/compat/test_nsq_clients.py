"""Tests of real NSQ clients with a real broker: each of them can do here what it can do with an
nsqd.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import certificates
from support.broker import Broker, kill, wait_for
from support.lookupd_thread import LookupdThread
from support.nsq_clients import CLIENTS, Client, Event, Program
from support.topic_names import topic_name_of

import zsq

Start = Callable[..., Program]
EVERY_BYTE = bytes(range(256))
MSG_TIMEOUT_MS = 1500


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, pems: certificates.Certificates
) -> Iterator[Broker]:
    options = (
        "--nsq-tls-cert",
        pems.cert,
        "--nsq-tls-key",
        pems.key,
        "--nsq-broadcast-address",
        "127.0.0.1",
    )
    with Broker(
        tmp_path_factory.mktemp("compat") / "data", *options, nsq=True, http=True
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, lookupd: LookupdThread) -> Iterator[Broker]:
    """Start a broker whose messages time out soon if the client does not ask for more time. It is
    registered with a nsqlookupd.
    """
    options = (
        "--nsq-msg-timeout",
        f"{MSG_TIMEOUT_MS / 1000}s",
        "--nsq-broadcast-address",
        "127.0.0.1",
    )
    with Broker(
        tmp_path_factory.mktemp("hasty") / "data",
        *options,
        "--nsq-lookupd-tcp-address",
        lookupd.tcp,
        nsq=True,
        http=True,
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def lookupd() -> Iterator[LookupdThread]:
    with LookupdThread() as lookupd:
        yield lookupd


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[zsq.Producer]:
    with zsq.Producer(broker.ipc) as producer:
        yield producer


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.ipc) as admin:
        yield admin


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return here(request.param)


def here(client: Client) -> Client:
    """Return the client, or skip the test if it is not installed. In continuous integration a
    missing client is a failure.
    """
    missing = client.missing()
    if missing and "CI" in os.environ:
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a client's program in a role. All programs end with
    the test.
    """
    programs: list[Program] = []

    def start(client: Client, role: str, **config: Any) -> Program:
        if "lookupd" not in config:
            config.setdefault("nsqd", f"127.0.0.1:{broker.nsq}")
        programs.append(
            Program(client, role, tmp_path / f"{client.name}-{role}-{len(programs)}.log", **config)
        )
        return programs[-1]

    try:
        yield start
    finally:
        for program in programs:
            program.end()


def together(scenario: Callable[[Client], None]) -> None:
    """Run the scenario for all clients at the same time, because it takes seconds of waiting."""
    clients = [client for client in CLIENTS if not client.missing() or "CI" in os.environ]
    with ThreadPoolExecutor(len(clients)) as pool:
        running = {client.name: pool.submit(scenario, client) for client in clients}
    errors = {
        name: error for name, future in running.items() if (error := future.exception()) is not None
    }
    if errors:
        raise AssertionError(f"of {', '.join(errors)}") from next(iter(errors.values()))


def row(admin: zsq.Admin, topic: str, channel: str = "ch") -> dict[str, Any]:
    """Return the statistics of a channel. Values that are not known yet, while the channel starts,
    are 0.
    """
    return defaultdict(int, admin.stats(topic, channel)["topics"][0]["channels"][0])


def wait_finished(admin: zsq.Admin, topic: str, count: int) -> None:
    wait_for(lambda: row(admin, topic)["finish_count"] == count, 20, f"{count} finishes of {topic}")
    assert (row(admin, topic)["depth"], row(admin, topic)["in_flight_count"]) == (0, 0)


def test_each_client_publishes_single_many_and_deferred_messages(
    broker: Broker, client: Client, topic: str, start: Start
) -> None:
    program = start(client, "produce")
    program.next("ready")
    began = time.monotonic()
    program.publish("dpub", topic, b"later", delay_ms=400)
    program.publish("pub", topic, EVERY_BYTE)
    program.publish("mpub", topic, b"two", b"x" * 200_000, "drei ü".encode())
    for _ in range(3):
        program.next("stored")
    with zsq.Consumer(topic, "ch", url=broker.ipc) as consumer:
        got = []
        for message in consumer:
            got.append(message.body)
            message.finish()
            if len(got) == 5:
                break
    assert sorted(got[:4]) == sorted([EVERY_BYTE, b"two", b"x" * 200_000, "drei ü".encode()])
    assert got[4] == b"later"
    assert time.monotonic() - began >= 0.4
    program.close()


def test_each_client_is_told_why_a_publish_is_refused(
    client: Client, topic: str, start: Start
) -> None:
    """The body is over the limit. The client gets nsqd's error, and the connection ends."""
    program = start(client, "produce")
    program.next("ready")
    program.publish("pub", topic, b"x" * (1024 * 1024 + 1))
    assert "PUB message too big 1048577 > 1048576" in program.next("failed")["why"]


def test_consumers_share_a_channel(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    count = 600
    programs = [start(client, "consume", topic=topic, auto=True, in_flight=25) for _ in range(3)]
    for program in programs:
        program.next("ready")
    producer.publish_many(topic, [b"%d" % number for number in range(count)])
    wait_finished(admin, topic, count)
    wait_for(
        lambda: sum(len(program.all_of("message")) for program in programs) >= count,
        what="their events",
    )
    got = [program.all_of("message") for program in programs]
    assert sorted(int(event["body"]) for events in got for event in events) == list(range(count)), (
        "each exactly once"
    )
    assert all(got), "each consumer has its share"
    assert {event["attempts"] for events in got for event in events} == {1}
    assert {int(event["id"], 16) for events in got for event in events} == set(range(count)), (
        "ids are offsets"
    )
    assert all(
        abs(event["timestamp_ns"] - time.time_ns()) < 60e9 for events in got for event in events
    )


def test_a_requeued_message_comes_again_after_its_delay(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    program = start(client, "consume", topic=topic)
    program.next("ready")
    producer.publish(topic, b"again")
    message = program.message()
    program.answer("requeue", message, delay_ms=0)
    message = program.message()
    assert message["attempts"] == 2
    asked = time.monotonic()
    program.answer("requeue", message, delay_ms=300)
    message = program.message()
    assert time.monotonic() - asked >= 0.3
    assert message["attempts"] == 3
    program.answer("finish", message)
    wait_finished(admin, topic, 1)
    assert row(admin, topic)["requeue_count"] == 2
    program.close()


def test_a_client_holds_no_more_than_it_asked_for(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    program = start(client, "consume", topic=topic, in_flight=1)
    program.next("ready")
    producer.publish_many(topic, [b"1", b"2", b"3"])
    for number in ("1", "2", "3"):
        message = program.message()
        assert message["body"] == number
        assert program.silent("message", 0.2)
        program.answer("finish", message)
    wait_finished(admin, topic, 3)


def test_nothing_is_delivered_while_channel_or_topic_is_paused(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    program = start(client, "consume", topic=topic, auto=True)
    program.next("ready")
    admin.pause(topic, "ch")
    producer.publish(topic, b"1")
    assert program.silent("message", 0.4)
    admin.unpause(topic, "ch")
    assert program.message()["body"] == "1"
    admin.pause(topic)
    producer.publish(topic, b"2")
    assert program.silent("message", 0.4)
    admin.unpause(topic)
    assert program.message()["body"] == "2"
    wait_finished(admin, topic, 2)


def test_what_is_open_at_a_close_goes_to_others(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    first = start(client, "consume", topic=topic, in_flight=3)
    first.next("ready")
    producer.publish_many(topic, [b"1"])
    first.answer("finish", first.message())  # clients begin with a RDY of 1
    producer.publish_many(topic, [b"2", b"3", b"4"])
    held = [first.message() for _ in range(3)]
    first.answer("finish", held[0])
    # nsqjs may close the connection before it has sent its FIN.
    wait_for(lambda: row(admin, topic)["finish_count"] == 2, 10, "the second finish")
    first.close()
    wait_for(lambda: row(admin, topic)["client_count"] == 0, 10, "its end")
    second = start(client, "consume", topic=topic, auto=True)
    again = [second.message() for _ in range(2)]
    assert sorted((one["id"], one["attempts"]) for one in again) == sorted(
        (one["id"], 2) for one in held[1:]
    )
    wait_finished(admin, topic, 4)
    assert row(admin, topic)["timeout_count"] == 0


def test_who_is_killed_gives_its_messages_to_others_at_once(
    admin: zsq.Admin, producer: zsq.Producer, client: Client, topic: str, start: Start
) -> None:
    first = start(client, "consume", topic=topic, in_flight=1)
    first.next("ready")
    producer.publish(topic, b"1")
    held = first.message()
    second = start(client, "consume", topic=topic, auto=True)
    second.next("ready")
    wait_for(lambda: row(admin, topic)["client_count"] == 2, 10, "the other one")
    kill(first.process.pid)
    killed = time.monotonic()
    again = second.message()
    took = time.monotonic() - killed
    assert (again["id"], again["attempts"]) == (held["id"], 2)
    assert took < 5, "a busy machine may take its time; it is some milliseconds"


# Compression and encryption


@pytest.mark.parametrize(
    ("packed", "layer"),
    [pytest.param(one, layer, id=f"{one.name}-{layer}") for one in CLIENTS for layer in one.layers],
)
def test_each_client_works_over_tls_deflate_and_snappy(
    broker: Broker,
    admin: zsq.Admin,
    packed: Client,
    layer: str,
    topic: str,
    start: Start,
    pems: certificates.Certificates,
) -> None:
    client = here(packed)
    asked = {
        "tls_ca": pems.root_ca if "tls" in layer else "",
        "deflate": "deflate" in layer,
        "snappy": "snappy" in layer,
    }
    packer = client if client.packs else next(other for other in CLIENTS if other.packs)
    consumer, producer = (
        start(client, "consume", topic=topic, auto=True, **asked),
        start(packer, "produce", **asked),
    )
    consumer.next("ready")
    producer.next("ready")
    url = f"http://127.0.0.1:{broker.http}/stats?format=json&topic={topic}&channel=ch"
    with urllib.request.urlopen(url, timeout=10) as answer:
        (connected,) = json.load(answer)["topics"][0]["channels"][0]["clients"]
    assert [name for name in ("tls", "deflate", "snappy") if connected[name]] == layer.split("+")
    bodies = [EVERY_BYTE, b"x" * 500_000, random.Random(1).randbytes(500_000), b"end"]
    producer.publish("pub", topic, bodies[0])
    producer.publish("mpub", topic, *bodies[1:])
    for _ in range(2):
        producer.next("stored")
    assert [consumer.message()["body"].encode("latin-1") for _ in bodies] == bodies
    wait_finished(admin, topic, len(bodies))
    consumer.close()
    producer.close()


# Time


def test_what_is_touched_stays_and_what_is_not_comes_again(
    broker: Broker, hasty: Broker, start: Start
) -> None:
    """An answer that comes too late is refused, and the connection continues."""

    def scenario(client: Client) -> None:
        at, asked = (broker, MSG_TIMEOUT_MS) if client.asks_timeout else (hasty, 0)
        topic = f"touch-{client.name}"
        program = start(
            client,
            "consume",
            nsqd=f"127.0.0.1:{at.nsq}",
            topic=topic,
            in_flight=5,
            msg_timeout_ms=asked,
        )
        program.next("ready")
        with zsq.Producer(at.ipc) as producer, zsq.Admin(at.ipc) as admin:
            producer.publish(topic, b"first")
            program.answer("finish", program.message())  # clients begin with a RDY of 1
            producer.publish_many(topic, [b"kept", b"lost"])
            kept, lost = program.message(), program.message()
            assert (kept["body"], lost["body"]) == ("kept", "lost")
            again: list[Event] = []
            began = time.monotonic()
            while time.monotonic() - began < 2.2 * MSG_TIMEOUT_MS / 1000:
                program.answer("touch", kept)
                if not program.silent("message", MSG_TIMEOUT_MS / 4000):
                    again.append(program.message())
                    program.answer("finish", again[-1])
            assert [(one["id"], one["attempts"]) for one in again] == [(lost["id"], 2)]
            program.answer("finish", lost)
            program.answer("finish", kept)
            wait_finished(admin, topic, 3)
            assert row(admin, topic)["timeout_count"] == 1
            producer.publish(topic, b"after")
            program.answer("finish", program.message())
            wait_finished(admin, topic, 4)
        assert not program.all_of("lost")

    together(scenario)


def test_heartbeats_keep_who_is_idle_and_find_who_hangs(broker: Broker, start: Start) -> None:
    def scenario(client: Client) -> None:
        topic = f"idle-{client.name}"
        consumer = start(client, "consume", topic=topic, heartbeat_s=1, auto=True)
        producer = start(client, "produce", heartbeat_s=1)
        consumer.next("ready")
        producer.next("ready")
        assert consumer.silent("lost", 4.5)
        producer.publish("pub", topic, b"awake")
        producer.next("stored")
        assert consumer.message()["body"] == "awake"
        with zsq.Admin(broker.ipc) as admin:
            wait_finished(admin, topic, 1)
            consumer.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: row(admin, topic)["client_count"] == 0, 10, "who hangs is let go")
            consumer.process.send_signal(signal.SIGCONT)

    together(scenario)


# Discovery through nsqlookupd


def test_finds_us_by_our_own_lookup_and_again_when_the_gateway_died(
    broker: Broker, start: Start
) -> None:
    clients = [client for client in CLIENTS if not client.missing()]
    started = threading.Barrier(len(clients) + 1)

    def scenario(client: Client) -> None:
        topic = f"found-{client.name}"
        with zsq.Producer(broker.ipc) as producer:
            producer.publish(topic, b"1")
            program = start(
                client, "consume", lookupd=f"127.0.0.1:{broker.http}", topic=topic, auto=True
            )
            assert program.message()["body"] == "1"
            started.wait(60)
            started.wait(60)
            if not client.looks_again:
                return
            producer.publish(topic, b"2")
            assert program.message()["body"] == "2"
            with zsq.Admin(broker.ipc) as admin:
                wait_finished(admin, topic, 2)

    def kill_gateway() -> None:
        started.wait(60)
        (gateway,) = broker.pids("nsq_gateway")
        kill(gateway)
        broker.wait_gone([gateway])
        started.wait(60)

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_gateway)
        together(scenario)
        killing.result()


def test_is_found_by_a_nsqlookupd_it_registers_with(
    hasty: Broker, lookupd: LookupdThread, start: Start
) -> None:
    def scenario(client: Client) -> None:
        topic = f"registered-{client.name}"
        with zsq.Producer(hasty.ipc) as producer:
            producer.publish(topic, b"1")
        wait_for(lambda: (topic, "") in lookupd.here(), 20, "the registration")
        program = start(client, "consume", lookupd=lookupd.http, topic=topic, auto=True)
        assert program.message()["body"] == "1"
        wait_for(lambda: (topic, "ch") in lookupd.here(), 20, "the channel's")

    together(scenario)
