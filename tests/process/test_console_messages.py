"""Tests of search, download and live tail on a real broker: by time, with damage and retention left
to the log, without a channel, and until the client leaves.
"""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.broker import Broker, wait_for
from support.zsq_command import run

import zsq

ACCESS: Final = '[anonymous]\npublish = ["*"]\nsubscribe = ["*"]\n'


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an access file that permits everything that these tests do."""
    path = tmp_path_factory.mktemp("access") / "access.toml"
    path.write_text(ACCESS)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, access: Path) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("messages") / "data"
    with Broker(
        data, "--node-id", "5", "--access", str(access), "--no-listen", http=True
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def web(node: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{node.http}/api", timeout=30) as one:
        yield one


def publish(node: Broker, topic: str, *bodies: bytes, **more: Any) -> None:
    with zsq.Producer(node.ipc) as producer:
        producer.publish_many(topic, bodies, **more).wait(20)


def search(web: httpx.Client, topic: str, **query: Any) -> list[int]:
    """Search to the end, and return the offsets of what is found."""
    found: list[int] = []
    more: dict[str, int] = {}
    while True:
        answer = web.get("/search", params={"topic": topic, **query, **more})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        found += [one["offset"] for one in told["messages"]]
        more = {"offset": told["next_offset"], "end": told["end"]}
        if told["done"]:
            return found


def test_messages_are_found_by_time_and_content(node: Broker, web: httpx.Client) -> None:
    publish(node, "found", *(b'{"n": %d}' % at for at in range(3_000)), tags=["a"] * 3_000)
    wait_for(lambda: time.time_ns() // 1_000_000, what="the clock")
    with zsq.Reader("found", url=node.ipc) as reader:
        stored_ms = reader.message(2_999).timestamp_ns // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > stored_ms + 5, what="some milliseconds")
    between_ms = time.time_ns() // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > between_ms + 5, what="some milliseconds")
    publish(node, "found", b'{"n": 7}', key=b"k", headers={"h": "x"})
    assert search(web, "found", field="n=7") == [7, 3_000]
    assert search(web, "found", field="n=7", to_ms=between_ms) == [7]
    assert search(web, "found", field="n=7", from_ms=between_ms) == [3_000]
    assert search(web, "found", text='": 7', count=2) == [
        at for at in range(3_000) if str(at).startswith("7")
    ] + [3_000]
    assert search(web, "found", tag="a", text="2999") == [2_999]
    assert search(web, "found", key="k", header="h=x") == [3_000]
    assert search(web, "found", text="nothing") == []


def test_what_is_downloaded_can_be_published_again(
    node: Broker, web: httpx.Client, tmp_path: Path
) -> None:
    headers = [{"h": 1, "b": b"\xff"}, {}]
    publish(node, "saved", b"text", b"\x00\xff", keys=[b"k", None], headers=headers)
    lines = web.get("/download", params={"topic": "saved"}).text.splitlines()
    file = tmp_path / "lines"
    file.write_text("\n".join(lines) + "\n")
    assert [json.loads(line)["id"] for line in lines] == [f"{5 << 54 | at:016x}" for at in (0, 1)]
    done = run("pub", "again", "--json-lines", "--file", file, ZSQ_URL=node.ipc)
    assert done.returncode == 0, done.stderr
    with zsq.Reader("again", url=node.ipc) as reader:
        first, second = reader.message(0), reader.message(1)
    assert (first.body, first.key, first.headers) == (b"text", b"k", headers[0])
    assert second.body == b"\x00\xff"


def test_a_topic_that_was_created_again_lacks_the_offsets_of_the_old_one(
    node: Broker, web: httpx.Client
) -> None:
    publish(node, "twice", b"a", b"b", b"c")
    with zsq.Admin(node.ipc) as admin:
        admin.delete_topic("twice", force=True)
    publish(node, "twice", b"new")
    query: dict[str, Any] = {"topic": "twice", "offset": 1}
    told = web.get("/search", params=query).json()
    assert (told["missing"], [one["offset"] for one in told["messages"]]) == (2, [3])
    [line] = web.get("/download", params=query).text.splitlines()
    why = "the topic now begins at offset 3; older messages were removed"
    cut = f"offsets 1 to 2 of topic twice cannot be read: {why}"
    assert json.loads(line) == {"cut": cut, "next_offset": 3}
    [line] = web.get("/download", params=query | {"offset": 3}).text.splitlines()
    assert json.loads(line)["body"] == "new"


def test_the_answer_to_a_publish_has_the_id_of_the_message(node: Broker, web: httpx.Client) -> None:
    body = base64.b64encode(b"\x00\xff").decode()
    told = web.post("/topic/publish", params={"topic": "sent"}, json={"body_base64": body}).json()
    assert (told["offset"], told["part"], told["id"]) == (0, None, f"{5 << 54:016x}")
    found = web.get("/messages", params={"topic": "sent", "id": told["id"]}).json()
    assert found["messages"][0]["body"]["base64"] == body


def test_a_tail_follows_and_ends_when_its_client_leaves(node: Broker, web: httpx.Client) -> None:
    def active() -> float:
        text = httpx.get(f"http://127.0.0.1:{node.http}/metrics").text
        [line] = [one for one in text.splitlines() if one.startswith("zsq_http_requests_active ")]
        return float(line.split()[1])

    publish(node, "live", b"old", b"last")
    alone = active()
    with web.stream("GET", "/tail", params={"topic": "live", "last": 1}) as answer:
        lines = answer.iter_lines()
        assert (next(lines), next(lines)) == ("event: start", 'data: {"offset":1}')
        assert next(lines) == ""
        assert told(lines)["messages"][0]["body"]["text"] == "last"
        publish(node, "live", b"new")
        found = told(lines)
        assert (found["messages"][0]["body"]["text"], found["offset"]) == ("new", 3)
        assert active() == alone + 1
    wait_for(lambda: active() == alone, what="the end of the tail")
    with zsq.Admin(node.ipc) as admin:
        assert admin.topics()["live"] == []


def test_a_tail_ends_when_its_user_loses_the_permission(
    node: Broker, web: httpx.Client, access: Path
) -> None:
    publish(node, "secret", b"seen")
    with web.stream("GET", "/tail", params={"topic": "secret", "last": 1}) as answer:
        lines = answer.iter_lines()
        assert told(lines)["messages"][0]["body"]["text"] == "seen"
        access.write_text('[anonymous]\nview = ["*"]\n')
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        assert "event: again" in lines, "the stream ends"
        publish(node, "secret", b"unseen")
        assert "unseen" not in "".join(lines)
    for path in ("tail", "search", "download"):
        answer = web.get(f"/{path}", params={"topic": "secret"})
        assert (answer.status_code, answer.json()["message"]) == (403, "UNAUTHORIZED")


def told(lines: Iterator[str]) -> Any:
    """Return the data of the next event `messages`."""
    for line in lines:
        if line == "event: messages":
            return json.loads(next(lines).removeprefix("data: "))
    raise AssertionError("the stream has ended")
