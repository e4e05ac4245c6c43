"""Tests of work that outlives its request: a redrive and streams, when their user is removed."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.actors.security.access import token_hash
from zsq.transport.errors import E_FORBIDDEN

OWNER: Final = f"""
[users.owner]
tokens = ["{token_hash("owner")}"]
publish = ["*"]
subscribe = ["*"]
admin = ["*"]
"""
LEAVER: Final = f"""
[users.leaver]
tokens = ["{token_hash("leaver")}"]
publish = ["orders"]
subscribe = ["orders", "orders.c.dead"]
admin = ["orders*"]
"""
LETTERS: Final = 200_000


class Guarded:
    """A broker with an access file that a test changes."""

    def __init__(self, folder: Path) -> None:
        self._access = folder / "access.toml"
        self._write(OWNER + LEAVER)
        self.broker = Broker(
            folder / "data", "--access", str(self._access), "--no-listen", http=True
        )
        self.broker.start()

    def _write(self, rules: str) -> None:
        self._access.write_text(rules)
        self._access.chmod(0o600)

    def allow(self, rules: str) -> None:
        """Change the rules, and wait until they are in force."""
        self._write(rules)
        assert self.broker.process is not None
        self.broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.get("/api/jobs", "leaver")[0] == 403, 20, "the new rules")

    def get(self, path: str, user: str, method: str = "GET", body: str = "") -> tuple[int, Any]:
        with self.open(path, user, method, body) as answer:
            return answer.status, json.loads(answer.read())

    @contextmanager
    def open(
        self, path: str, user: str, method: str = "GET", body: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.http, timeout=20)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {user}"})
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    try:
        yield made
    finally:
        made.broker.close()


def test_a_redrive_ends_when_its_user_is_removed(guarded: Guarded) -> None:
    with zsq.Admin(guarded.broker.ipc) as admin, zsq.Producer(guarded.broker.ipc) as producer:
        admin.create_channel("orders", "c", dead_letter_topic="orders.c.dead")
        headers = {
            "zsq-dead-topic": "orders",
            "zsq-dead-channel": "c",
            "zsq-dead-uuid": admin.stats("orders")["topics"][0]["uuid"],
        }
        producer.publish_many("orders.c.dead", [b"x"] * LETTERS, headers=headers)
        status, answer = guarded.get(
            "/api/redrive?topic=orders.c.dead", "leaver", "POST", json.dumps({})
        )
        assert status == 200, answer

        def job() -> Any:
            return guarded.get("/api/jobs", "owner")[1]["jobs"][0]

        wait_for(lambda: job()["sent"] > 0, 20, "the first batch")
        guarded.allow(OWNER)
        wait_for(lambda: job()["state"] != "running", 20, "the end of the redrive")
        ended = job()
        assert ended["state"] == "failed", ended
        assert ended["error"].startswith(E_FORBIDDEN)
        assert 0 < ended["sent"] < LETTERS, "it was removed in the middle"
        with zsq.Reader("orders", url=guarded.broker.ipc) as reader:
            assert reader.bounds()[1] == ended["sent"], "nothing was sent after that"


@pytest.mark.parametrize("path", ["/api/live", "/api/tail?topic=orders"])
def test_a_stream_ends_when_its_user_is_removed(guarded: Guarded, path: str) -> None:
    with zsq.Producer(guarded.broker.ipc) as producer:
        producer.publish("orders", b"before")
        with guarded.open(path, "leaver") as stream:
            assert stream.status == 200
            assert stream.readline().startswith(b"event: ")
            guarded.allow(OWNER)
            producer.publish("orders", b"secret")
            rest = stream.read()
    assert b"event: again" in rest
    assert b"secret" not in rest
