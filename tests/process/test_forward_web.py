"""Tests of `zsq forward` to an HTTP server: which answers finish a message, and which do not."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import certificates
from support.broker import Broker, free_port, wait_for
from support.forwarding import forward, forwarding, stored, wait_a_while
from support.hook_server import Answer, Hook, serving
from support.topic_names import topic_name_of

import zsq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def publish(url: str, topic: str, first: int, stop: int) -> None:
    with zsq.Producer(url) as producer:
        producer.publish_many(topic, [b"%d" % i for i in range(first, stop)])


def test_each_message_is_a_post_with_headers(shared: Broker, topic: str) -> None:
    with serving() as server:
        with zsq.Producer(shared.ipc) as producer:
            producer.publish(topic, b"one", key=b"k", tag="eu")
            producer.publish(topic, b"\0\xff", key=b"a\r\nInjected: yes")
        said = forward(
            f"{topic}/w", server.url("/a?b=c"), shared.ipc, "--header", "Authorization=Bearer x"
        )
        assert "2 messages forwarded" in said
        first, second = server.hooks
        assert (first.path, first.body, second.body) == ("/a?b=c", b"one", b"\0\xff")
        expected = {
            "X-ZSQ-Topic": topic,
            "X-ZSQ-Channel": "w",
            "X-ZSQ-Offset": "0",
            "X-ZSQ-Attempt": "1",
            "X-ZSQ-Key": "k",
            "X-ZSQ-Tag": "eu",
            "Authorization": "Bearer x",
            "Content-Type": "application/octet-stream",
        }
        assert expected.items() <= first.headers.items()
        assert "X-ZSQ-Signature" not in first.headers
        assert "Injected" not in second.headers
        assert second.headers["X-ZSQ-Key-Base64"] == "YQ0KSW5qZWN0ZWQ6IHllcw=="


def test_bodies_are_signed(shared: Broker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    publish(shared.ipc, topic, 0, 1)
    with serving() as server:
        forward(f"{topic}/w", server.url(), shared.ipc, "--secret-file", f"{tmp_path}/secret")
        [hook] = server.hooks
    parts = dict(part.split("=") for part in hook.headers["X-ZSQ-Signature"].split(","))
    signed = f"{parts['t']}.".encode() + hook.body
    assert parts["v1"] == hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert abs(int(parts["t"]) - time.time()) < 60


@pytest.mark.parametrize("kind", ["json", "array"])
def test_batches_are_one_request(shared: Broker, topic: str, kind: str) -> None:
    publish(shared.ipc, topic, 0, 250)
    with serving() as server:
        forward(
            f"{topic}/w", server.url(), shared.ipc, "--batch", "100", "--format", kind
        )  # fmt: skip
        assert 3 <= len(server.hooks) <= 5
        rows: list[dict[str, object]] = []
        for hook in server.hooks:
            got = (
                json.loads(hook.body)
                if kind == "array"
                else [json.loads(line) for line in hook.body.splitlines()]
            )
            assert hook.headers["X-ZSQ-Count"] == str(len(got))
            rows += got
    assert [row["body"] for row in rows] == [str(i) for i in range(250)]
    assert {row["topic"] for row in rows} == {topic}


@pytest.mark.parametrize("status", [201, 202, 204])
def test_every_2xx_finishes_a_message(shared: Broker, topic: str, status: int) -> None:
    """nsq_to_http took only 200 (nsq#544)."""
    publish(shared.ipc, topic, 0, 3)
    with serving() as server:
        server.answer = lambda hook: status
        assert "3 messages" in forward(f"{topic}/w", server.url(), shared.ipc)
        assert server.taken == [b"0", b"1", b"2"]


def test_a_refused_message_becomes_a_dead_letter_with_the_reason(
    shared: Broker, topic: str
) -> None:
    publish(shared.ipc, topic, 0, 4)
    with serving() as server:
        server.answer = lambda hook: 422 if hook.body == b"2" else 200
        forward(
            f"{topic}/w", server.url(), shared.ipc, "--max-attempts", "2", idle="4s",
        )  # fmt: skip
        assert Counter(server.taken) == {b"0": 1, b"1": 1, b"3": 1, b"2": 2}
    [dead] = stored(shared.ipc, f"{topic}.w.dead")
    assert dead.body == b"2"
    assert "answered 422" in str(dead.headers["zsq-dead-error"])


def test_only_the_refused_messages_of_a_batch_become_dead_letters(
    shared: Broker, topic: str
) -> None:
    publish(shared.ipc, topic, 0, 20)
    with serving() as server:
        server.answer = lambda hook: 400 if b'"body": "13"' in hook.body else 200
        said = forward(
            f"{topic}/w", server.url(), shared.ipc, "--batch", "20", "--max-attempts", "1",
        )  # fmt: skip
        assert "19 messages forwarded, 1 deliveries failed" in said
    assert [m.body for m in stored(shared.ipc, f"{topic}.w.dead")] == [b"13"]


@pytest.mark.parametrize("status", [500, 503, 429, 408, 0])
def test_what_passes_is_tried_again_without_an_attempt(
    shared: Broker, topic: str, status: int
) -> None:
    publish(shared.ipc, topic, 0, 3)
    with serving() as server:
        server.answer = lambda hook: status if len(server.hooks) < 3 else 200
        said = forward(f"{topic}/w", server.url(), shared.ipc, "--max-attempts", "1", idle="2s")
        assert "3 messages forwarded" in said
        assert set(server.taken) == {b"0", b"1", b"2"}
        assert "trying again" in said
    assert stored(shared.ipc, f"{topic}.w.dead") == []


def test_retry_after_is_honoured(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    times: list[float] = []

    def answer(hook: Hook) -> int | tuple[int, dict[str, str]]:
        times.append(time.monotonic())
        return (429, {"Retry-After": "2"}) if len(times) == 1 else 200

    with serving() as server:
        server.answer = answer
        forward(f"{topic}/w", server.url(), shared.ipc, idle="3s")
    assert len(times) == 2
    assert times[1] - times[0] >= 2


@pytest.mark.parametrize("more", [(), ("--batch", "5")], ids=["single", "batch"])
def test_a_long_retry_after_puts_the_message_off(
    shared: Broker, topic: str, more: tuple[str, ...]
) -> None:
    """The channel keeps it for this time, and no process needs to wait."""
    publish(shared.ipc, topic, 0, 2 if more else 1)
    with serving() as server:
        server.answer = lambda hook: (503, {"Retry-After": "1000"})
        options = ("--retry-for", "1s", "--max-attempts", "1", *more)
        forward(f"{topic}/w", server.url(), shared.ipc, *options, idle="2s")
    with zsq.Admin(shared.ipc) as admin:
        found = admin.peek(topic, "w").messages
    assert len(found) == (2 if more else 1)
    for peeked in found:
        assert (peeked.state, peeked.attempts) == ("deferred", 0), "it has used no attempt"
        assert 900e9 < peeked.due_ns - time.time_ns() < 1001e9


def test_redirects_are_not_followed(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    with serving() as server, serving() as other:
        server.answer = lambda hook: (302, {"Location": other.url()})
        forward(f"{topic}/w", server.url(), shared.ipc, "--max-attempts", "1")
        assert other.hooks == []
        assert len(server.hooks) == 1
    [dead] = stored(shared.ipc, f"{topic}.w.dead")
    assert "302" in str(dead.headers["zsq-dead-error"])
    assert "not followed" in str(dead.headers["zsq-dead-error"])


def test_a_server_that_is_away_is_waited_for(shared: Broker, topic: str, tmp_path: Path) -> None:
    publish(shared.ipc, topic, 0, 3)
    port, log = free_port(), tmp_path / "log"
    line = (f"{topic}/w", f"http://127.0.0.1:{port}/", shared.ipc, "--max-attempts", "1")
    with forwarding(*line, log=log) as process:
        wait_for(lambda: b"trying again" in log.read_bytes())
        with serving(port=port) as server:
            wait_for(lambda: len(server.hooks) == 3)
            wait_for(lambda: b"going on" in log.read_bytes())
        process.terminate()
        assert process.wait(30) == 0
    assert stored(shared.ipc, f"{topic}.w.dead") == []


def test_an_answer_that_does_not_come_is_a_time_out(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    ended = threading.Event()

    def answer(hook: Hook) -> int:
        if len(server.hooks) == 1:
            ended.wait(20)
        return 200

    with serving() as server:
        server.answer = answer
        forward(f"{topic}/w", server.url(), shared.ipc, "--answer-timeout", "0.5s", idle="2s")
        ended.set()
        assert server.taken == [b"0", b"0"]


@pytest.mark.parametrize("piece", [b"x", b"\r\n\r\nHTTP/1.1 100 Continue"], ids=["header", "100"])
def test_an_answer_that_never_ends_is_a_time_out(shared: Broker, topic: str, piece: bytes) -> None:
    """The server sends a little from time to time, so no single read times out."""
    publish(shared.ipc, topic, 0, 1)
    ended = threading.Event()

    def answer(hook: Hook) -> Answer:
        return slowly() if len(server.hooks) == 1 else 200

    def slowly() -> Iterator[bytes]:
        yield b"HTTP/1.1 100 Continue"
        while not ended.wait(0.1):
            yield piece

    with serving() as server:
        server.answer = answer
        forward(f"{topic}/w", server.url(), shared.ipc, "--answer-timeout", "1s", idle="3s")
        ended.set()
        assert server.taken == [b"0", b"0"]


def test_an_interim_answer_is_not_the_answer(shared: Broker, topic: str) -> None:
    """Otherwise the answer to a message would be taken for that to the next one."""
    publish(shared.ipc, topic, 0, 3)

    def answer(hook: Hook) -> Answer:
        if hook.body == b"0":
            hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
            return iter([hints, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
        return 503 if server.taken.count(b"1") == 1 and hook.body == b"1" else 200

    with serving() as server:
        server.answer = answer
        said = forward(f"{topic}/w", server.url(), shared.ipc, idle="3s")
        assert server.taken == [b"0", b"1", b"1", b"2"]
    assert "3 messages forwarded" in said
    assert "failed" not in said


def test_a_query_is_not_shown(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    with serving() as server:
        server.answer = lambda hook: 404
        said = forward(
            f"{topic}/w", server.url("/a?token=secret"), shared.ipc, "--max-attempts", "1"
        )
    [dead] = stored(shared.ipc, f"{topic}.w.dead")
    assert f"{server.url('/a')} answered 404" in said
    assert "secret" not in said
    assert "secret" not in repr(dead.headers)


def test_a_given_header_replaces_the_default(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    with serving() as server:
        forward(f"{topic}/w", server.url(), shared.ipc, "--header", "content-type=application/xml")
        names = {name.lower(): value for name, value in server.hooks[0].headers.items()}
        assert len(names) == len(server.hooks[0].headers)
        assert names["content-type"] == "application/xml"


def test_a_killed_run_loses_nothing(shared: Broker, topic: str, tmp_path: Path) -> None:
    count = 2000
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic(topic)
        admin.create_channel(topic, "w")
    publish(shared.ipc, topic, 0, count)
    with serving() as server:
        line = (f"{topic}/w", server.url(), shared.ipc, "--concurrency", "4")
        for run in range(5):
            before = len(server.hooks)
            with forwarding(*line, log=tmp_path / "log") as process:
                wait_for(lambda: len(server.hooks) > before + 50)  # noqa: B023
                wait_a_while(process, 0.02 * run)
        forward(*line, idle="3s")
        assert {int(body) for body in server.taken} == set(range(count))


@pytest.mark.parametrize("more", [(), ("--batch", "3")], ids=["single", "batch"])
def test_sigterm_while_the_server_refuses_uses_no_attempt(
    shared: Broker, topic: str, tmp_path: Path, more: tuple[str, ...]
) -> None:
    publish(shared.ipc, topic, 0, 3)
    line = (f"{topic}/w", shared.ipc, "--max-attempts", "1", *more)
    with serving() as server:
        server.answer = lambda hook: 500
        to = (line[0], server.url(), *line[1:])
        with forwarding(*to, log=tmp_path / "log") as process:
            wait_for(lambda: len(server.hooks) >= 2)
            process.terminate()
            assert process.wait(15) == 0
        assert b"0 messages forwarded\n" in (tmp_path / "log").read_bytes()
        server.answer = lambda hook: 200
        assert "3 messages" in forward(*to, idle="4s")
    assert stored(shared.ipc, f"{topic}.w.dead") == []


def test_certificates_are_verified(shared: Broker, topic: str, tmp_path: Path) -> None:
    files = certificates.make(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    publish(shared.ipc, topic, 0, 1)
    with serving(context) as server:
        url = f"https://localhost:{server.port}/"
        log = tmp_path / "log"
        with forwarding(f"{topic}/w", url, shared.ipc, log=log):
            wait_for(lambda: b"CERTIFICATE_VERIFY_FAILED" in log.read_bytes())
        assert server.hooks == []
        known = {"SSL_CERT_FILE": files.root_ca}
        with forwarding(f"{topic}/w", url, shared.ipc, log=log, environment=known):
            wait_for(lambda: server.taken == [b"0"])
