"""Tests of consuming over HTTP with a real broker: tokens, leases, clients that leave, kills,
permissions, limits, and many receives at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.actors.security.access import token_hash

ENDED = "E_LEASE the lease has ended; the message was or will be delivered again"
OTHER = "E_LEASE the message was finished or requeued before; that answer stays"


class Channel:
    """A channel as a client without a library sees it."""

    def __init__(self, broker: Broker, topic: str, channel: str = "c", user: str = "") -> None:
        self.broker, self.topic, self.name = broker, topic, channel
        self.path = f"/api/v1/topics/{topic}/channels/{channel}"
        self.headers = {"authorization": f"Bearer {user}"} if user else {}

    def call(self, verb: str, **options: Any) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.broker.http}{self.path}/{verb}"
        answer = httpx.post(url, json=options, headers=self.headers, timeout=60)
        return answer.status_code, answer.json()

    def receive(self, **options: Any) -> list[dict[str, Any]]:
        status, answer = self.call("receive", **options)
        assert status == 200, answer
        messages: list[dict[str, Any]] = answer["messages"]
        return messages

    def publish(self, *bodies: bytes, **options: Any) -> None:
        with zsq.Producer(self.broker.ipc) as producer:
            producer.publish_many(self.topic, bodies, **options)

    def stats(self) -> dict[str, Any]:
        with zsq.Admin(self.broker.ipc) as admin:
            rows = [row for row in admin.stats()["topics"] if row["topic_name"] == self.topic]
        channels = [dict(row) for row in rows[0]["channels"]] if rows else []
        return next((row for row in channels if row["channel_name"] == self.name), {})

    def counts(self) -> tuple[int, int]:
        """Return how many messages wait, and how many are leased."""
        row = self.stats()
        return row["depth"], row["in_flight_count"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("consume") / "data", http=True) as broker:
        yield broker


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", http=True) as broker:
        yield broker


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def tokens(messages: list[dict[str, Any]]) -> list[str]:
    return [message["token"] for message in messages]


def test_a_message_has_all_its_fields_and_is_finished(node: Broker) -> None:
    channel = Channel(node, "fields")
    channel.publish(b"text", key="k", tag="red", headers={"n": 1, "b": b"\xff"})
    channel.publish(b"\xff\x00")
    first, second = channel.receive(max=1) + channel.receive(max=1)
    assert {name: first[name] for name in first.keys() - {"timestamp", "timestamp_ns", "id"}} == {
        "topic": "fields", "offset": 0, "body": "text", "key": "k", "tag": "red", "headers": {"n": 1},
        "headers_base64": {"b": "/w=="}, "attempts": 1, "token": first["token"],
    }  # fmt: skip
    assert (second["body_base64"], second["offset"], len(second["id"])) == ("/wA=", 1, 16)
    assert channel.call("finish", tokens=tokens([first, second])) == (200, {"done": 2})
    assert channel.counts() == (0, 0), "the answer comes when the finishes are committed"
    assert channel.receive(wait_s=0) == []


def test_a_receive_takes_what_waits_up_to_its_bounds(node: Broker) -> None:
    channel = Channel(node, "bounds")
    channel.publish(*[b"%d" % at * 100 for at in range(10)])
    assert len(channel.receive(max=3)) == 3
    assert len(channel.receive(max=10, max_bytes=250)) == 2
    assert len(channel.receive(max=10, max_bytes=1)) == 1, "the first one comes in any case"
    wait_for(lambda: channel.counts() == (4, 6), what="the others to wait in the channel")
    rest = channel.receive(max=10)
    assert len(rest) == 4
    assert {message["attempts"] for message in rest} == {1}, "those given back used no attempt"


def test_a_receive_waits_for_the_next_message(node: Broker) -> None:
    channel = Channel(node, "poll")
    channel.publish(b"first")
    assert channel.call("finish", tokens=tokens(channel.receive())) == (200, {"done": 1})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive, wait_s=20)
        wait_for(lambda: channel.stats()["clients"][0]["ready_count"] > 0, what="the receive")
        channel.publish(b"second")
        assert bodies(waiting.result(15)) == ["second"]


@pytest.mark.parametrize("other", ["requeue", "touch"])
def test_a_token_is_answered_once_and_the_same_answer_may_be_repeated(
    node: Broker, other: str
) -> None:
    channel = Channel(node, f"twice-{other}")
    channel.publish(b"a", b"b")
    first, second = tokens(channel.receive())
    for _ in range(2):
        assert channel.call("finish", tokens=[first, first]) == (200, {"done": 1})
    failed = [{"token": first, "message": OTHER}]
    answer = {"message": OTHER, "done": 1, "failed": failed}
    assert channel.call(other, tokens=[first, second]) == (409, answer)
    if other == "requeue":
        assert channel.call("requeue", tokens=[second]) == (200, {"done": 1})
        assert channel.call("finish", tokens=[second])[0] == 409
        assert [(m["body"], m["attempts"]) for m in channel.receive()] == [("b", 2)]


def test_a_lease_that_ended_is_refused_and_the_message_comes_again(node: Broker) -> None:
    channel = Channel(node, "ends")
    channel.publish(b"a", b"b")
    kept, lost = tokens(channel.receive(lease_s=2))
    begun = time.monotonic()
    again: list[dict[str, Any]] = []
    while not again:
        assert channel.call("touch", tokens=[kept]) == (200, {"done": 1})
        again = channel.receive(wait_s=0.2)
    assert time.monotonic() - begun > 1.5
    assert [(m["body"], m["attempts"]) for m in again] == [("b", 2)]
    failed = [{"token": lost, "message": ENDED}]
    answer = {"message": ENDED, "done": 1, "failed": failed}
    assert channel.call("finish", tokens=[lost, kept]) == (410, answer)
    assert channel.stats()["timeout_count"] == 1


def test_requeues_have_a_delay_or_go_to_the_dead_letters(node: Broker) -> None:
    channel = Channel(node, "again")
    channel.publish(b"later", b"never", b"backoff")
    later, never, backoff = tokens(channel.receive())
    assert channel.call("requeue", tokens=[later], delay_s=3600)[0] == 200
    assert channel.call("requeue", tokens=[backoff], backoff=True)[0] == 200
    assert channel.call("requeue", tokens=[never], reject=True, error="broken")[0] == 200
    wait_for(lambda: channel.stats()["dead_letter_count"] == 1, what="the dead letter")
    assert [(m["body"], m["attempts"]) for m in channel.receive()] == [("backoff", 2)]
    assert channel.stats()["deferred_count"] == 1
    letters = Channel(node, "again.c.dead")
    (letter,) = letters.receive()
    assert letter["body"] == "never"
    assert "broken" in json.dumps(letter["headers"])


def test_a_message_can_be_put_off_without_an_attempt(node: Broker) -> None:
    channel = Channel(node, "put.off")
    channel.publish(b"now", b"later")
    now, later = tokens(channel.receive())
    assert channel.call("requeue", tokens=[now], defer=True)[0] == 200
    assert channel.call("requeue", tokens=[later], defer=True, delay_s=86_400)[0] == 200
    for wrong in ({"reject": True}, {"backoff": True}, {"error": "no"}, {"delay_s": 4e7}):
        assert channel.call("requeue", tokens=[now], defer=True, **wrong)[0] == 400
    assert [(m["body"], m["attempts"]) for m in channel.receive()] == [("now", 1)]
    row = channel.stats()
    assert (row["deferred_count"], row["defer_count"], row["requeue_count"]) == (1, 2, 0)


def test_tokens_belong_to_their_channel(node: Broker) -> None:
    channel, other = Channel(node, "owned"), Channel(node, "owned", "d")
    assert channel.receive(wait_s=0) == []
    channel.publish(b"a")
    (token,) = tokens(channel.receive())
    assert other.call("finish", tokens=[token])[0] == 410
    assert channel.call("finish", tokens=[token]) == (200, {"done": 1})


def test_a_seek_ends_the_leases(node: Broker) -> None:
    channel = Channel(node, "sought")
    channel.publish(b"a", b"b")
    held = tokens(channel.receive())
    with zsq.Admin(node.ipc) as admin:
        admin.seek("sought", "c", 0)
    status, answer = channel.call("finish", tokens=held)
    assert (status, answer["done"], len(answer["failed"])) == (410, 0, 2)
    assert bodies(channel.receive()) == ["a", "b"]


def test_a_deleted_channel_ends_its_receives_and_is_not_created_again(node: Broker) -> None:
    channel = Channel(node, "gone")
    channel.publish(b"a")
    (token,) = tokens(channel.receive())
    with zsq.Admin(node.ipc) as admin:
        admin.delete_channel("gone", "c", force=True)
    wait_for(lambda: channel.call("finish", tokens=[token])[0] == 410, what="the end of the lease")
    assert channel.stats() == {}


def test_a_paused_channel_gives_nothing(node: Broker) -> None:
    channel = Channel(node, "paused")
    channel.publish(b"a")
    with zsq.Admin(node.ipc) as admin:
        admin.create_channel("paused", "c")
        admin.pause("paused", "c")
        assert channel.receive(wait_s=0.5) == []
        admin.unpause("paused", "c")
    assert bodies(channel.receive()) == ["a"]


def test_an_ordered_channel_gives_one_message_of_a_key(node: Broker) -> None:
    channel = Channel(node, "ordered")
    with zsq.Admin(node.ipc) as admin:
        admin.create_topic("ordered")
        admin.create_channel("ordered", "c", ordered=True)
    channel.publish(b"a1", b"a2", b"b1", keys=["a", "a", "b"])
    first = channel.receive()
    assert sorted(bodies(first)) == ["a1", "b1"]
    assert channel.receive(wait_s=0.3) == []
    assert channel.call("finish", tokens=tokens(first))[0] == 200
    assert bodies(channel.receive()) == ["a2"]


def test_a_channel_with_priorities_gives_urgent_messages_first(node: Broker) -> None:
    """A receive takes no messages in advance, so an urgent one overtakes all that wait."""
    channel = Channel(node, "urgent")
    with zsq.Admin(node.ipc) as admin:
        admin.create_topic("urgent")
        admin.create_channel("urgent", "c", priorities=2)
    channel.publish(*[b"low %d" % number for number in range(500)])
    assert bodies(channel.receive(max=2)) == ["low 0", "low 1"]
    with zsq.Producer(node.ipc) as producer:
        producer.publish_many(
            "urgent", [b"urgent 0", b"urgent 1"], headers=[{"zsq-priority": 1}] * 2
        )
        producer.publish("urgent", b"low 500")
    wait_for(lambda: channel.counts() == (501, 2), what="all messages")
    got: list[str] = []
    while len(got) < 4:
        messages = channel.receive(max=2)
        got += bodies(messages)
        assert channel.call("finish", tokens=tokens(messages))[0] == 200
    assert got == ["urgent 0", "urgent 1", "low 2", "low 3"]


def test_a_client_that_leaves_gets_nothing_and_uses_no_attempt(node: Broker) -> None:
    channel = Channel(node, "leaves")
    channel.publish(b"first")
    assert channel.call("finish", tokens=tokens(channel.receive()))[0] == 200
    with socket.create_connection(("127.0.0.1", node.http)) as client:
        client.sendall(f"POST {channel.path}/receive HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        wait_for(lambda: channel.stats()["clients"][0]["ready_count"] > 0, what="the receive")
    wait_for(lambda: channel.stats()["clients"][0]["ready_count"] == 0, what="its end")
    channel.publish(b"second")
    (message,) = channel.receive(wait_s=5)
    assert (message["body"], message["attempts"]) == ("second", 1)


def test_many_receives_at_once_get_each_message_once(node: Broker) -> None:
    channel, count = Channel(node, "many"), 2_000
    channel.publish(*[b"%d" % at for at in range(count)])
    taken: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        own = Channel(node, "many")
        while messages := own.receive(max=20, wait_s=1):
            assert own.call("finish", tokens=tokens(messages)) == (200, {"done": len(messages)})
            with lock:
                taken.extend(bodies(messages))

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(work) for _ in range(16)]:
            done.result(120)
    assert sorted(map(int, taken)) == list(range(count))
    assert channel.counts() == (0, 0)
    row = channel.stats()
    assert (row["timeout_count"], row["requeue_count"]) == (0, 0)
    assert [client["client_id"] for client in row["clients"]] == ["http"], "they share a consumer"


def test_large_messages_are_leased_beyond_what_one_consumer_may_have(node: Broker) -> None:
    """A channel sends no consumer more than 16 MiB that it has not answered."""
    channel = Channel(node, "large")
    for number in range(40):
        channel.publish(b"%d" % number + b"." * 999_000)
    leased: list[dict[str, Any]] = []
    with ThreadPoolExecutor(4) as pool:
        while len(leased) < 40:
            waiting = [
                pool.submit(channel.receive, max=4, max_bytes=1 << 22, wait_s=5) for _ in range(4)
            ]
            for one in waiting:
                leased += one.result(30)
    assert channel.call("finish", tokens=tokens(leased)) == (200, {"done": 40})
    assert {message["attempts"] for message in leased} == {1}
    assert channel.counts() == (0, 0)


def test_other_consumers_share_the_channel(node: Broker) -> None:
    channel = Channel(node, "shared")
    assert channel.receive(wait_s=0) == []
    with zsq.Consumer("shared", "c", url=node.ipc) as consumer:
        channel.publish(b"a")
        message = consumer.receive(20)
        assert message is not None
        assert message.body == b"a", "no receive waits, so none takes it"
        message.finish(sync=True)


def test_a_receive_that_would_exceed_the_leases_is_refused(node: Broker) -> None:
    channel = Channel(node, "limits")
    channel.publish(*[b"x"] * 20_000)
    status = 200
    answer: dict[str, Any] = {}
    while status == 200:  # other tests hold leases, too
        status, answer = channel.call("receive", max=1_000, wait_s=5)
    assert status == 503
    assert answer["message"].startswith("E_LIMIT the limit of 20,000 leases")
    with zsq.Admin(node.ipc) as admin:
        admin.delete_topic("limits", force=True)

    def has_room() -> bool:
        return Channel(node, "limits").call("receive", max=1, wait_s=0)[0] == 200

    wait_for(has_room, what="the places of the deleted topic")


@pytest.mark.parametrize("max_attempts", [0, 5])
def test_a_killed_gateway_ends_its_leases(own: Broker, max_attempts: int) -> None:
    """If the channel limits attempts, the messages are suspects, and come one by one."""
    channel = Channel(own, "killed")
    with zsq.Admin(own.ipc) as admin:
        admin.create_topic("killed")
        admin.create_channel("killed", "c", max_attempts=max_attempts)
    channel.publish(b"a", b"b")
    held = tokens(channel.receive())
    (pid,) = own.pids("http_gateway")
    os.kill(pid, signal.SIGKILL)
    own.wait_gone([pid])

    def answers() -> bool:
        try:
            return channel.call("finish", tokens=held)[0] == 410
        except httpx.HTTPError:
            return False

    wait_for(answers, what="the next gateway")
    again: list[tuple[str, int]] = []
    while len(again) < 2:
        messages = channel.receive(wait_s=20)
        assert len(messages) == (1 if max_attempts else 2)
        again += [(message["body"], message["attempts"]) for message in messages]
        assert channel.call("finish", tokens=tokens(messages))[0] == 200
    assert sorted(again) == [("a", 2), ("b", 2)]
    assert channel.counts() == (0, 0)


def test_a_killed_channel_ends_its_leases_and_a_receive_waits_on(own: Broker) -> None:
    channel = Channel(own, "restarted")
    channel.publish(b"a")
    held = tokens(channel.receive())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive, wait_s=20)
        wait_for(lambda: channel.stats()["clients"][0]["ready_count"] > 1, what="the receive")
        for pid in {row["pid"] for row in own.actors() if "restarted" in row["name"]}:
            os.kill(pid, signal.SIGKILL)
        (message,) = waiting.result(40)
    assert message["body"] == "a"
    assert channel.call("finish", tokens=held)[0] == 410
    assert channel.call("finish", tokens=[message["token"]]) == (200, {"done": 1})


def test_after_a_kill_of_the_broker_finished_messages_stay_finished(own: Broker) -> None:
    channel = Channel(own, "broker")
    channel.publish(b"a", b"b")
    first, second = tokens(channel.receive())
    assert channel.call("finish", tokens=[first]) == (200, {"done": 1})
    own.signal_all(signal.SIGKILL)
    own.start()
    assert channel.call("finish", tokens=[second])[0] == 410
    assert bodies(channel.receive(wait_s=20)) == ["b"]


def test_a_broker_that_stops_answers_a_receive_that_waits(own: Broker) -> None:
    channel = Channel(own, "stops")
    channel.publish(b"a")
    (token,) = tokens(channel.receive())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.call, "receive", wait_s=20)
        wait_for(lambda: channel.stats()["clients"][0]["ready_count"] > 1, what="the receive")
        assert own.stop() == 0
        assert waiting.result(20) == (503, {"message": "EXITING"})
    own.start()
    assert channel.call("touch", tokens=[token])[0] == 410
    assert [(m["body"], m["attempts"]) for m in channel.receive()] == [("a", 2)]


def test_receives_and_consumers_have_bounds_for_each_client(own: Broker) -> None:
    channel = Channel(own, "most")
    assert channel.receive(wait_s=0) == []
    request = f"POST {channel.path}/receive HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as clients:
        for _ in range(128):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", own.http)))
            client.sendall(request)
        wait_for(lambda: channel.call("receive", wait_s=0)[0] == 503, what="all 128 receives")
        status, answer = channel.call("receive", wait_s=0)
        assert (status, answer["message"].split(";")[0]) == (
            503,
            "E_LIMIT the limit of 128 receives at once for address 127.0.0.1 is reached",
        )
    wait_for(lambda: channel.call("receive", wait_s=0)[0] == 200, what="the places of those")
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(channel.call, "receive", wait_s=0, lease_s=61 + more) for more in range(64)
        ]
        answers = [one.result(60) for one in asked]
    refused = [answer["message"] for status, answer in answers if status == 503]
    assert len(refused) == 1, "the channel has one consumer already"
    assert refused[0].startswith("E_LIMIT the limit of 64 consumers over HTTP")


USERS = "".join(
    f'[users.{name}]\ntokens = ["{token_hash(name)}"]\n{rows}\n'
    for name, rows in {
        "mailer": 'subscribe = ["orders/mailer"]\ncreate = []',
        "second": 'subscribe = ["orders/mailer"]',
        "maker": 'subscribe = ["orders"]',
        "publisher": 'publish = ["orders"]',
    }.items()
)


def test_only_users_of_the_channel_receive_and_tokens_are_theirs(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(USERS)
    access.chmod(0o600)
    options = ("--access", str(access), "--no-listen")
    with Broker(tmp_path / "data", *options, http=True) as broker:
        mailer = Channel(broker, "orders", "mailer", "mailer")
        assert mailer.call("receive", wait_s=0)[0] == 403, "it may not create the channel"
        maker = Channel(broker, "orders", "mailer", "maker")
        assert maker.call("receive", wait_s=0) == (200, {"messages": []})
        headers = {"authorization": "Bearer publisher"}
        url = f"http://127.0.0.1:{broker.http}/pub?topic=orders"
        assert httpx.post(url, content=b"a", headers=headers).text == "OK"
        received: list[dict[str, Any]] = []

        def knows_the_channel() -> bool:
            status, answer = mailer.call("receive")
            received.extend(answer.get("messages", ()))
            return status == 200

        wait_for(knows_the_channel, what="the gateway to know the channel")
        (token,) = tokens(received)
        for user, status in (("publisher", 403), ("nobody", 403), ("second", 410), ("maker", 410)):
            other = Channel(broker, "orders", "mailer", user)
            assert other.call("finish", tokens=[token])[0] == status, user
        other = Channel(broker, "orders", "billing", "mailer")
        assert other.call("receive", wait_s=0)[0] == 403
        assert Channel(broker, "orders", "mailer").call("receive")[0] == 401
        assert mailer.call("finish", tokens=[token]) == (200, {"done": 1})


def test_a_closed_topic_and_a_channel_without_room_say_so(node: Broker) -> None:
    channel = Channel(node, "closed")
    channel.publish(b"a")
    (token,) = tokens(channel.receive())
    with zsq.Admin(node.ipc) as admin:
        admin.close_topic("closed", to="consumers")
        status, answer = channel.call("receive", wait_s=10)
        assert (status, answer["message"].split()[0]) == (503, "E_CLOSED")
        assert channel.call("finish", tokens=[token])[0] == 410
        admin.open_topic("closed", to="consumers")
        assert bodies(channel.receive()) == ["a"]
        admin.create_topic("narrow")
        admin.create_channel("narrow", "c", max_consumers=1)
    with zsq.Consumer("narrow", "c", url=node.ipc):
        status, answer = Channel(node, "narrow").call("receive", wait_s=0)
        assert (status, answer["message"].split()[0]) == (503, "E_LIMIT")
