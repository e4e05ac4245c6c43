"""Tests of the console's back end on a real broker: it shows the true state, shows changes at once,
and carries out its actions.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from support.broker import Broker, wait_for

import zsq
from tests.support.shapes import misfits
from zsq.actors.gateways.http.console.answers import ShownPeek
from zsq.actors.gateways.http.console.page_details import ChannelPage, TopicPage
from zsq.actors.gateways.http.console.previews import Preview
from zsq.actors.gateways.http.web.limits import HttpLimits

SHAPES: Final = {
    "/channel": ChannelPage,
    "/topic": TopicPage,
    "/preview": Preview,
    "/peek": ShownPeek,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    options = ("--node-id", "5", "--own-process", "always")
    with Broker(tmp_path_factory.mktemp("console") / "data", *options, http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def web(node: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{node.http}/api", timeout=30) as one:
        yield one


def get(web: httpx.Client, path: str, **query: Any) -> Any:
    answer = web.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if path in SHAPES:
        assert not misfits(
            {name: value for name, value in found.items() if name != "now_ms"}, SHAPES[path]
        )
    return found


def do(web: httpx.Client, path: str, options: Any = None, **query: Any) -> Any:
    answer = web.post(path, params=query, json=options or {})
    assert answer.status_code == 200, answer.text
    return answer.json()


def publish(node: Broker, topic: str, *bodies: bytes, **more: Any) -> None:
    with zsq.Producer(node.ipc) as producer:
        producer.publish_many(topic, bodies, **more)


def consume(
    node: Broker, topic: str, channel: str, answer: Callable[[Any], object], count: int
) -> None:
    with zsq.Consumer(topic, channel, url=node.ipc) as consumer:
        for _ in range(count):
            message = consumer.receive(20)
            assert message is not None
            answer(message)
        consumer.flush()


def test_messages_are_binary_safe_and_found_each_way(node: Broker, web: httpx.Client) -> None:
    bodies = [b"text \xc3\xa9", b"\x00\xff" * 5_000, b""]
    publish(node, "shown", *bodies, keys=[b"\xfe"] * 3, tags=["x"] * 3, headers=[{"n": 1}] * 3)
    found = get(web, "/messages", topic="shown", latest=1, body_max=100)
    first, second, third = found["messages"]
    assert (first["body"]["text"], first["tag"], first["headers"], first["key"]["base64"]) == (
        "text \u00e9",
        "x",
        {"n": 1},
        "/g==",
    )
    assert (second["body"]["size"], second["body"]["cut"], "text" in second["body"]) == (
        10_000,
        True,
        False,
    )
    assert base64.b64decode(second["body"]["base64"]) == bodies[1][:100]
    assert (third["body"], found["head"]) == ({"size": 0, "base64": "", "text": ""}, 3)
    assert (
        get(web, "/messages", topic="shown", id=second["id"], count=1)["messages"][0]["offset"] == 1
    )
    assert get(web, "/messages", topic="shown", time_ms=first["time_ms"], count=1)["from"] == 0
    assert web.get("/body", params={"topic": "shown", "offset": 1}).content == bodies[1]
    assert web.get("/messages", params={"topic": "none"}).status_code == 404


def test_a_channel_is_shown_with_what_its_consumer_holds(node: Broker, web: httpx.Client) -> None:
    do(web, "/topic/create", topic="held")
    do(web, "/channel/create", {"max_attempts": 3}, topic="held", channel="c")
    publish(node, "held", *[b"%d" % number for number in range(20)])
    with zsq.Consumer("held", "c", url=node.ipc, ready=5, label="me") as consumer:
        messages = [consumer.receive(20) for _ in range(3)]
        assert messages[0] is not None
        messages[0].finish(sync=True)
        shown = get(web, "/channel", topic="held", channel="c")
        (client,) = shown["clients"]
        assert client["name"].startswith("me")
        assert (
            client["finished"],
            client["ready"],
            shown["channel"]["settings"]["max_attempts"],
        ) == (1, 5, 3)
        assert shown["channel"]["latency"]["count"] == 1
        wait_for(
            lambda: (
                get(web, "/peek", topic="held", channel="c", count=100)["counts"]["in flight"] == 2
            ),
            20,
            "the consumer's report",
        )
        held = get(web, "/peek", topic="held", channel="c", count=100)
        states = Counter(row["state"] for row in held["messages"])
        assert states.keys() == {"in flight", "held", "new"}
        assert states["in flight"] == held["counts"]["in flight"] == 2
        assert states["held"] == held["counts"]["held"] == client["in_flight"] - 2
        assert {row["message"]["body"]["text"] for row in held["messages"]} == {
            str(number) for number in range(1, 20)
        }
    before = get(web, "/preview", topic="held", channel="c", action="channel.seek", to="latest")
    assert before["seek"]["to"] == 20
    assert do(web, "/channel/seek", {"to": "latest"}, topic="held", channel="c")["offset"] == 20
    assert get(web, "/preview", topic="held", channel="c", action="channel.empty")["harmless"]
    shown = get(web, "/topic", topic="held")
    assert (shown["retire"], shown["topic"]["channels"]["c"]["depth"] >= 0) == (
        {"state": "", "left": [], "drained": True},
        True,
    )


def test_delayed_messages_are_listed_and_cancelled(node: Broker, web: httpx.Client) -> None:
    publish(node, "later", b"a" * 300, b"b", delay=3600)
    found = get(web, "/delayed", topic="later")
    assert (found["count"], [one["size"] for one in found["messages"]]) == (2, [300, 1])
    assert found["messages"][0]["body"]["cut"]
    keys = [one["key"] for one in found["messages"]]
    assert (
        get(web, "/delayed", topic="later", after=keys[0], limit=1)["messages"][0]["key"] == keys[1]
    )
    assert do(web, "/delayed/cancel", {"keys": [keys[0], keys[0]]}, topic="later")["cancelled"] == 1
    assert do(web, "/delayed/cancel", {"all": True}, topic="later")["cancelled"] == 1
    assert get(web, "/delayed", topic="later")["count"] == 0


def test_messages_are_published_with_all_that_one_can_have(node: Broker, web: httpx.Client) -> None:
    wanted = {
        "key": "k",
        "tag": "x",
        "headers": {"n": 1, "s": "t"},
        "headers_base64": {"b": "/w=="},
    }
    assert do(web, "/topic/publish", {"body_base64": "AP8=", **wanted}, topic="sent") == {
        "done": True,
        "count": 1,
        "offset": 0,
        "part": None,
        "id": f"{5 << 54:016x}",
        "keys": [],
    }
    assert (
        do(web, "/topic/publish", {"bodies": ["a", "b"], "tag": "y"}, topic="sent")["offset"] == 1
    )
    with zsq.Reader("sent", url=node.ipc) as reader:
        first, second, third = (reader.message(offset) for offset in range(3))
    assert (first.body, first.key, first.tag, first.headers) == (
        b"\x00\xff",
        b"k",
        "x",
        {"n": 1, "s": "t", "b": b"\xff"},
    )
    assert [(one.body, one.tag, one.key) for one in (second, third)] == [
        (b"a", "y", None),
        (b"b", "y", None),
    ]
    later = do(
        web, "/topic/publish", {"body": "later", "delay_s": 30 * 86_400, "tag": "z"}, topic="sent"
    )
    listed = get(web, "/delayed", topic="sent")["messages"]
    assert [(one["key"], one["tag"]) for one in listed] == [(later["keys"][0], "z")]
    assert (later["offset"], abs(listed[0]["due_ms"] / 1000 - time.time() - 30 * 86_400) < 600) == (
        None,
        True,
    )
    wrong = (
        ({"delay_s": 367 * 86_400}, "366 days"),
        ({"key": "k" * 70_000}, "E_TOO_BIG key of 70000 bytes is over the limit of 256 bytes"),
        ({"tag": "t" * 257}, "E_TOO_BIG tag of 257 bytes is over the limit of 256 bytes"),
        (
            {"headers": dict.fromkeys(map(str, range(65)), "")},
            "E_TOO_BIG a message has 65 headers; the limit is 64",
        ),
        ({"headers": {"h": "x" * 70_000}}, "E_TOO_BIG headers of 7"),
        ({"delay_s": -1}, "must be 0 to"),
    )
    for options, text in wrong:
        answer = web.post("/topic/publish", params={"topic": "sent"}, json={"body": "a", **options})
        assert (answer.status_code, text in answer.json()["message"]) == (400, True), answer.text
    with zsq.Admin(node.ipc) as admin:
        admin.close_topic("sent")
    assert (
        web.post("/topic/publish", params={"topic": "sent"}, json={"body": "a"}).status_code == 503
    )


def test_dead_letters_go_back(node: Broker, web: httpx.Client) -> None:
    do(web, "/topic/create", topic="dying")
    do(web, "/channel/create", topic="dying", channel="c")
    publish(node, "dying", *[b"%d" % number for number in range(5)])
    consume(node, "dying", "c", lambda one: one.reject("odd" if int(one.body) % 2 else "even"), 5)
    wait_for(
        lambda: web.get("/topic", params={"topic": "dying.c.dead"}).status_code == 200,
        20,
        "dead letters",
    )
    wait_for(lambda: get(web, "/messages", topic="dying.c.dead")["head"] == 5, 20, "five of them")
    assert get(web, "/preview", topic="dying.c.dead", action="redrive")["count"] == 5
    groups = get(web, "/dead-letters", topic="dying.c.dead")["groups"]
    assert [(group["error"], group["count"]) for group in groups] == [("even", 3), ("odd", 2)]
    begun_s = time.monotonic()
    options = {"group": groups[1]["id"], "rate": 1}
    job = do(web, "/redrive", options, topic="dying.c.dead")["job"]
    wait_for(lambda: ended(web, job)["state"] == "done", 30, "one error")
    assert (ended(web, job)["sent"], ended(web, job)["total"]) == (2, None)
    assert time.monotonic() - begun_s > 0.9
    back: list[zsq.Message] = []

    def finish(message: zsq.Message) -> None:
        back.append(message)
        message.finish()

    consume(node, "dying", "c", finish, 2)
    assert sorted(message.body for message in back) == [b"1", b"3"]
    job = do(web, "/redrive", {"count": 2}, topic="dying.c.dead")["job"]
    wait_for(lambda: ended(web, job)["state"] == "done", 30, "the first")
    assert (ended(web, job)["sent"], ended(web, job)["total"]) == (2, 2)
    job = do(web, "/redrive", topic="dying.c.dead")["job"]
    wait_for(lambda: ended(web, job)["state"] == "done", 30, "the rest")
    assert ended(web, job)["places"] == [{"topic": "dying", "channel": "c", "count": 1}]
    consume(node, "dying", "c", finish, 3)
    assert sorted(message.body for message in back) == [b"0", b"1", b"2", b"3", b"4"]


def test_chosen_messages_are_skipped_sent_back_or_discarded(
    node: Broker, web: httpx.Client
) -> None:
    do(web, "/topic/create", topic="chosen")
    do(web, "/channel/create", topic="chosen", channel="c")
    publish(node, "chosen", *[b"%d" % number for number in range(6)])
    at = {"topic": "chosen", "channel": "c"}
    seen = get(web, "/preview", action="channel.skip", offsets="5,0,99", **at)
    assert seen["says"] == [
        "2 messages (offsets 0, 5) count as finished for channel c, and are not delivered to it "
        "(again).",
        "Other channels still get them.",
        "1 of the chosen messages are finished already, or on their way to the dead letters. They "
        "stay as they are.",
    ]
    options = {"offsets": [0, 5, 99], "seen": seen["seen"]}
    other = {**options, "seen": {**seen["seen"], "uuid": "another"}}
    assert web.post("/channel/skip", params=at, json=other).status_code == 409
    assert do(web, "/channel/skip", options, **at)["offsets"] == [0, 5]
    for wrong in ([], [-1], ["1"], [1.5], [*range(1_001)], None):
        assert web.post("/channel/skip", params=at, json={"offsets": wrong}).status_code == 400
    [entry] = get(web, "/audit", count=3)["entries"][:1]
    assert (entry["action"], entry["channel"], entry["options"]["offsets"]) == (
        "skip",
        "c",
        [0, 5, 99],
    )

    consume(node, "chosen", "c", lambda message: message.reject("why"), 4)
    dead = "chosen.c.dead"
    wait_for(lambda: web.get("/topic", params={"topic": dead}).status_code == 200, 20, "letters")
    wait_for(lambda: get(web, "/messages", topic=dead)["head"] == 4, 20, "four of them")
    seen = get(web, "/preview", topic=dead, action="redrive.discard", offsets="0,1")
    assert seen["loses"] == [{"what": "dead letters (offsets 0, 1)", "count": 2}]
    assert do(web, "/redrive/discard", {"offsets": [0, 1]}, topic=dead)["offsets"] == [0, 1]
    assert get(web, "/preview", topic=dead, action="redrive", offsets="1,2")["count"] == 1
    job = do(web, "/redrive", {"offsets": [1, 2]}, topic=dead)["job"]
    wait_for(lambda: ended(web, job)["state"] == "done", 30, "the chosen one")
    row = ended(web, job)
    assert (row["sent"], row["total"], [*row["reasons"].values()]) == (1, 2, [1])
    assert get(web, "/preview", topic=dead, action="redrive")["count"] == 1
    back: list[zsq.Message] = []
    consume(node, "chosen", "c", back.append, 1)
    assert [message.body for message in back] == [b"3"]


def ended(web: httpx.Client, job: Any) -> Any:
    return next(row for row in get(web, "/jobs")["jobs"] if row["id"] == job["id"])


def test_a_topic_is_removed_step_by_step(node: Broker, web: httpx.Client) -> None:
    do(web, "/topic/create", topic="old")
    do(web, "/channel/create", topic="old", channel="c")
    publish(node, "old", b"last")
    assert do(web, "/topic/close", {"to": "publishers"}, topic="old")["closed"] == "publishers"
    assert web.post("/topic/delete", params={"topic": "old"}, json={}).status_code == 503
    retire = get(web, "/topic", topic="old")["retire"]
    assert (retire["state"], retire["drained"], "1 waiting" in retire["left"][0]) == (
        "publishers",
        False,
        True,
    )
    consume(node, "old", "c", lambda message: message.finish(), 1)
    wait_for(lambda: get(web, "/topic", topic="old")["retire"]["drained"], 20, "drained")
    assert do(web, "/topic/close", {"to": "consumers"}, topic="old")["closed"] == "consumers"
    do(web, "/topic/delete", topic="old")
    assert web.get("/overview", params={"topic": "old"}).status_code == 404


def test_changes_reach_an_open_page_and_are_kept(node: Broker, web: httpx.Client) -> None:
    do(web, "/topic/create", topic="live")
    do(web, "/channel/create", topic="live", channel="c")
    heard: list[tuple[str, Any]] = []
    over = threading.Event()

    def listen() -> None:
        with httpx.stream(
            "GET", f"http://127.0.0.1:{node.http}/api/live", params={"topic": "live"}, timeout=30
        ) as events:
            kind = ""
            for line in events.iter_lines():
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                if line.startswith("data: "):
                    heard.append((kind, json.loads(line.removeprefix("data: "))))
                if over.is_set():
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        wait_for(lambda: heard, 20, "a snapshot")
        assert heard[0][0] == "snapshot"
        assert [*heard[0][1]["topics"]] == ["live"]
        publish(node, "live", *[b"x"] * 50)
        wait_for(lambda: seen(heard, "depth") == 50, 20, "a backlog that arrives live")
        consume(node, "live", "c", lambda message: message.finish(), 50)
        wait_for(lambda: seen(heard, "finished") == 50 and seen(heard, "depth") == 0, 20, "its end")
    finally:
        over.set()
        publish(node, "live", b"wakes the listener")
        listener.join(30)
    assert not listener.is_alive()
    metrics = f"http://127.0.0.1:{node.http}/metrics"
    wait_for(
        lambda: "zsq_http_requests_active 1.0" in httpx.get(metrics).text,
        20,
        "the end of the stream, whose reader has left",
    )
    channel = get(web, "/history", topic="live", channel="c")["series"]
    assert max(value or 0 for value in channel["depth"]) == 50
    assert max(value or 0 for value in channel["out"]) > 0
    assert max(value or 0 for value in channel["p99_ms"]) > 0
    assert get(web, "/histories", topic="live")["channels"]["c"].keys() == {"depth", "out"}


def seen(heard: list[tuple[str, Any]], field: str) -> Any:
    """Return the newest value of the channel."""
    values = [
        data["topics"].get("live", {}).get("channels", {}).get("c", {}).get(field)
        for _, data in heard
    ]
    return next((value for value in reversed(values) if value is not None), None)


def test_the_console_serves_processes_chunks_alarms_and_its_page(
    node: Broker, web: httpx.Client
) -> None:
    publish(node, "filed", b"x" * 1_000)

    def pids_differ() -> set[int]:
        rows = get(web, "/processes")["processes"]
        return {row["pid"] for row in rows} ^ {actor["pid"] for actor in node.actors()}

    wait_for(lambda: not pids_differ(), 30, "the console shows all processes")
    rows = get(web, "/processes")["processes"]
    assert next(row for row in rows if row["name"] == "topic filed")["memory_bytes"] > 1_000_000
    assert get(web, "/chunks", topic="filed")["chunks"][-1]["messages"] == 1
    assert get(web, "/alarms")["receivers"] == []
    assert get(web, "/overview")["broker"]["node"] == 5
    page = httpx.get(f"http://127.0.0.1:{node.http}/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_an_open_page_does_not_delay_the_end_of_the_broker(node: Broker, web: httpx.Client) -> None:
    """A stream is not a request that must end within a time limit, and the broker's end does not
    wait for it. This test must be the last one, because it ends the broker.
    """
    with httpx.stream(
        "GET", f"http://127.0.0.1:{node.http}/api/live", timeout=HttpLimits().request_s
    ) as events:
        lines = events.iter_lines()
        assert next(lines) == "event: snapshot"
        stopping = threading.Thread(target=node.stop)
        stopping.start()
        assert "event: again" in list(lines)
        stopping.join(20)
        assert not stopping.is_alive()
