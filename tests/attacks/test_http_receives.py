"""Tests of attacks on the receives over HTTP of a real broker: receives that are held open, clients
that vanish or do not read, tokens that are forged or foreign, and batches that are as large as
possible.

The attackers are a user who may publish and subscribe to one topic. See `test_http.py`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.actors.gateways.http.web.limits import HttpLimits

from .test_http import (
    ACCESS,
    HEADERS,
    LOW,
    LOW_HEADERS,
    MIB,
    ask,
    attacked,
    close,
    defects,
    dial,
    send,
    vanish,
)

pytestmark = pytest.mark.slow

TOPIC = "carrier"
RECEIVE = f"/api/v1/topics/{TOPIC}/channels/c/receive"
# 64 MiB of answers that are not read, and the messages that are on their way from the channel to
# receives that will be refused. Without a bound for answers it is 1.7 GB.
UNREAD_MAX = 240 * MIB
BOUND = HttpLimits().receives.each


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("attacked")
    access = folder / "access.toml"
    access.write_text(ACCESS)
    access.chmod(0o600)
    with Broker(folder / "data", "--access", str(access), "--no-listen", http=True) as broker:
        create(broker)
        yield broker


def create(broker: Broker) -> None:
    """Create the channel, and wait until the attacker may receive from it."""
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC)
        admin.create_channel(TOPIC, "c")
    wait_for(lambda: low(broker, "receive", wait_s=0)[0] == 200, 30, "the channel")


def call(
    broker: Broker, headers: dict[str, str], place: str, verb: str, options: dict[str, Any]
) -> tuple[int, Any]:
    topic, channel = place.split("/")
    path = f"/api/v1/topics/{topic}/channels/{channel}/{verb}"
    status, answer = ask(broker, "POST", path, json.dumps(options).encode(), headers)
    return status, json.loads(answer)


def low(broker: Broker, verb: str, **options: Any) -> tuple[int, Any]:
    return call(broker, LOW_HEADERS, f"{TOPIC}/c", verb, options)


def channel_row(broker: Broker, topic: str = TOPIC) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic, "c")["topics"][0]["channels"][0])


def left(broker: Broker, topic: str = TOPIC) -> int:
    row = channel_row(broker, topic)
    return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


def empty(broker: Broker) -> None:
    """Let the next test begin with an empty channel of which no receive waits."""
    with zsq.Admin(broker.ipc) as admin:
        admin.empty(TOPIC, "c")
    wait_for(lambda: left(broker) == 0, 30, "an empty channel")
    wait_for(
        lambda: not any(row["ready_count"] for row in channel_row(broker)["clients"]),
        30,
        "no receive",
    )


def receive(sock: socket.socket, **options: Any) -> None:
    body = json.dumps(options).encode()
    head = f"POST {RECEIVE} HTTP/1.1\r\nContent-Length: {len(body)}\r\n".encode() + LOW
    send(sock, head + b"\r\n" + body)


def test_receives_that_are_held_open_keep_nobody_out(broker: Broker) -> None:
    """One user opens 2,000 of them. An honest user receives in the meantime."""
    sockets: list[socket.socket] = []
    try:
        with attacked(broker, "2,000 receives of a user that wait, with a token"):
            for _ in range(2_000):
                with contextlib.suppress(OSError):
                    sockets.append(dial(broker))
                    receive(sockets[-1], wait_s=20)
            status, answer = low(broker, "receive", wait_s=0)
            assert status == 503
            assert f"the limit of {BOUND} receives at once for user low" in answer["message"]
            body = b"for the honest one"
            assert ask(broker, "POST", "/pub?topic=orders", body)[0] == 200
            status, answer = call(broker, HEADERS, "orders/c", "receive", {"wait_s": 20})
            assert (status, len(answer["messages"])) == (200, 1)
            options = {"tokens": [answer["messages"][0]["token"]]}
            assert call(broker, HEADERS, "orders/c", "finish", options) == (200, {"done": 1})
        refused = [sock for sock in sockets if status_of_at_once(sock) == 503]
        assert len(refused) >= 500, "those that were not closed to make room"
    finally:
        close(sockets)
    wait_for(lambda: low(broker, "receive", wait_s=0)[0] == 200, 60, "the places of those")
    empty(broker)
    assert not defects(broker)


def status_of_at_once(sock: socket.socket) -> int:
    """Return the status of the answer that has arrived, or 0."""
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        answer = sock.recv(65_536)
        return int(answer[9:12]) if answer else 0
    return 0


def test_messages_of_receives_whose_clients_vanish_go_to_others(broker: Broker) -> None:
    """Half of them reset their connections while they wait, and get nothing. The machines of the
    others vanish, and their messages come again when their leases end.
    """
    count = 50
    sockets = [dial(broker) for _ in range(2 * count)]
    vanished, reset = sockets[:count], sockets[count:]

    def asked() -> int:
        return sum(int(row["ready_count"]) for row in channel_row(broker)["clients"])

    with attacked(broker, "100 receives whose clients reset their connections, or vanish"):
        for sock in sockets:
            receive(sock, max=1, wait_s=20, lease_s=2)
        wait_for(lambda: asked() == 2 * count, 30, "all receives")
        for sock in reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        for sock in vanished:
            vanish(sock)
        wait_for(lambda: asked() == count, 30, "the end of those that left")
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many(TOPIC, [b"%d" % at for at in range(2 * count)])
        wait_for(lambda: asked() == 0, 30, "the answers that nobody reads")
        got: list[tuple[int, int]] = []

        def all_finished() -> bool:
            status, answer = low(broker, "receive", max=1_000, wait_s=1)
            assert status == 200
            messages = answer["messages"]
            got.extend((int(message["body"]), message["attempts"]) for message in messages)
            if messages:
                tokens = [message["token"] for message in messages]
                assert low(broker, "finish", tokens=tokens) == (200, {"done": len(tokens)})
            return len(got) >= 2 * count

        wait_for(all_finished, 60, "all messages")
    close(vanished)
    assert sorted(number for number, _ in got) == list(range(2 * count))
    assert sorted(attempts for _, attempts in got) == [1] * count + [2] * count
    assert left(broker) == 0
    assert not defects(broker)


def test_no_token_answers_the_message_of_another_user_or_channel(broker: Broker) -> None:
    """Tokens are numbers in a row, so an attacker knows them. They are worth nothing to him."""
    assert ask(broker, "POST", "/pub?topic=secret", b"a")[0] == 200
    secret = "secret/c"
    _, answer = call(broker, HEADERS, secret, "receive", {"wait_s": 20, "lease_s": 600})
    (token,) = [message["token"] for message in answer["messages"]]
    with zsq.Producer(broker.ipc) as producer:
        producer.publish(TOPIC, b"mine")
    ended = channel_row(broker)["timeout_count"]
    _, answer = low(broker, "receive", lease_s=1)
    (mine,) = [message["token"] for message in answer["messages"]]
    gateway, subscription, _ = token.split("-")
    assert mine.startswith(gateway), "an attacker knows the first part"
    guesses = [f"{gateway}-{subscription}-{number:x}" for number in range(1_000)]
    assert token in guesses
    for verb in ("finish", "requeue", "touch"):
        for place, headers, status in (
            (f"{TOPIC}/c", LOW_HEADERS, 410),  # at a channel of the attacker
            (secret, LOW_HEADERS, 403),
            ("secret/other", HEADERS, 410),  # at another channel, by the same user
        ):
            answered, answer = call(broker, headers, place, verb, {"tokens": guesses})
            assert answered == status, (verb, place)
            if status == 410:
                assert answer["done"] == 0
                assert {row["token"] for row in answer["failed"]} == set(guesses)
    wait_for(lambda: channel_row(broker)["timeout_count"] > ended, 30, "the end of the lease")
    for verb in ("finish", "requeue", "touch"):
        assert low(broker, verb, tokens=[mine])[0] == 410, "it has ended"
    row = channel_row(broker, "secret")
    assert (row["in_flight_count"], row["delivery_count"], row["requeue_count"]) == (1, 1, 0)
    assert call(broker, HEADERS, secret, "finish", {"tokens": [token]}) == (200, {"done": 1})
    empty(broker)
    assert not defects(broker)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        ["0" * 8 + "-1-1"] * 1_001,
        ["f" * 60_000],
        ["00000000-" + "f" * 17 + "-1"],
        ["00000000-\u0661-1"],
        ["00000000-1-1\n"],
        [1, None, {}, []],
        "00000000-1-1",
        {"0": "00000000-1-1"},
    ],
    ids=["none", "many", "long", "large", "digits", "newline", "types", "text", "object"],
)
def test_what_is_no_list_of_tokens_is_refused_with_a_short_answer(
    broker: Broker, tokens: Any
) -> None:
    status, answer = low(broker, "finish", tokens=tokens)
    assert status == 400
    assert answer["message"].startswith("E_BAD_ARGUMENT")
    assert len(json.dumps(answer)) < 300
    assert not defects(broker)


def test_batches_that_are_as_large_as_possible_leave_leases_to_others(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        for _ in range(25):
            producer.publish_many(TOPIC, [b"x"] * 1_000)
    with attacked(broker, "a user that leases as many messages as it may, with a token"):
        while (found := low(broker, "receive", max=1_000, lease_s=600))[0] == 200:
            pass
        status, answer = found
        assert status == 503
        assert "the limit of 20,000 leases over HTTP for user low" in answer["message"]
        assert ask(broker, "POST", "/pub?topic=orders", b"x")[0] == 200
        status, answer = call(broker, HEADERS, "orders/c", "receive", {"wait_s": 20})
        assert (status, len(answer["messages"])) == (200, 1)
        options = {"tokens": [answer["messages"][0]["token"]]}
        assert call(broker, HEADERS, "orders/c", "finish", options)[0] == 200
    with zsq.Admin(broker.ipc) as admin:
        admin.delete_topic(TOPIC, force=True)
    create(broker)  # the places are free again
    assert not defects(broker)


def test_answers_that_are_never_read_are_bounded(broker: Broker) -> None:
    """An answer is up to six times as large as its messages: JSON escapes each of their bytes."""
    with zsq.Producer(broker.ipc) as producer:
        for _ in range(400):
            producer.publish(TOPIC, b"\1" * (MIB - 1000))
    sockets: list[socket.socket] = []
    try:
        name = "200 receives of 4 MiB, of which nothing is read"
        with attacked(broker, name, UNREAD_MAX) as honest:
            for _ in range(200):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
                sock.connect(("127.0.0.1", broker.http))
                receive(sock, max=4, max_bytes=4 * MIB, wait_s=20, lease_s=600)
                sockets.append(sock)
            honest._stop.wait(8)
            status, answer = low(broker, "receive", wait_s=0)
            assert (status, answer["message"].split(" for ")[0]) == (
                503,
                f"E_LIMIT the limit of {64 * MIB:,} bytes of bodies in memory",
            )

            def held() -> int:
                return int(channel_row(broker)["in_flight_count"])

            wait_for(lambda: 4 <= held() <= 16, 30, "what was refused goes back")
    finally:
        close(sockets)
    with zsq.Admin(broker.ipc) as admin:
        admin.delete_topic(TOPIC, force=True)
    create(broker)
    assert not defects(broker)
