"""Tests of a broker with an access file: tokens over HTTP with TLS and over NSQ, new rules while it
runs, and the audit log of all actions with their users.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import Broker, free_port, wait_for
from support.certificates import Certificates, make
from support.nsq_socket import NsqSocket

import zsq
from zsq.actors.security.access import token_hash
from zsq.apps.cli.app import run


def user(name: str, **lists: list[str]) -> str:
    return f'[users.{name}]\ntokens = ["{token_hash(name)}"]\n' + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in lists.items()
    )


RULES = user("etl", publish=["clicks"], subscribe=["clicks/archive"]) + user(
    "boss", admin=["*"], publish=["*"]
)


class Guarded(Broker):
    def __init__(self, folder: Path) -> None:
        self.certificates: Certificates = make(folder / "tls")
        self.access = folder / "access.toml"
        self.access.write_text(RULES)
        more = (
            "--access",
            str(self.access),
            "--http-tls-cert",
            self.certificates.cert,
            "--http-tls-key",
            self.certificates.key,
        )
        super().__init__(folder / "data", *more, "--no-listen", nsq=True, http=True)

    def client(self, token: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=f"https://localhost:{self.http}",
            verify=self.certificates.client(),
            headers=headers,
            timeout=20,
        )

    def audited(self) -> list[dict[str, Any]]:
        path = self.data_dir / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def reload(self, said: str) -> None:
        assert self.process is not None
        before = self.log.read_bytes().count(said.encode())
        self.process.send_signal(signal.SIGHUP)
        wait_for(
            lambda: self.log.read_bytes().count(said.encode()) > before, 20, f"{said!r} in the log"
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    broker = Guarded(tmp_path_factory.mktemp("doors"))
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def test_http_is_served_only_with_tls_and_by_permission(guarded: Guarded) -> None:
    with guarded.client() as nobody, guarded.client("etl") as etl, guarded.client("boss") as boss:
        assert nobody.get("/ping").text == "OK"
        assert nobody.get("/ready").text == "OK"
        assert nobody.get("/health").json() == {"role": "primary", "health": "OK"}
        assert nobody.get("/stats").status_code == 401
        assert etl.post("/pub?topic=clicks", content=b"x").text == "OK"
        assert etl.post("/pub?topic=other", content=b"x").status_code == 403
        assert boss.post("/pub?topic=other", content=b"x").text == "OK"
        assert [row["topic_name"] for row in etl.get("/stats?format=json").json()["topics"]] == [
            "clicks"
        ]
        assert boss.get("/topics").json()["topics"] == ["clicks", "other"]
    with socket.create_connection(("127.0.0.1", guarded.http), 10) as plain:
        plain.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)


def test_nsq_clients_show_their_token(guarded: Guarded) -> None:
    with NsqSocket(guarded.nsq) as client:
        assert client.ask("PUB clicks", b"x").startswith("E_AUTH_FIRST")
    with NsqSocket(guarded.nsq) as client:
        assert client.ask("AUTH", b"wrong").startswith("E_AUTH_FAILED")
    with NsqSocket(guarded.nsq) as client:
        assert json.loads(client.ask("AUTH", b"etl")) == {
            "identity": "etl",
            "identity_url": "",
            "permission_count": 2,
        }
        assert client.ask("PUB clicks", b"x") == "OK"
        assert client.ask("PUB other", b"x").startswith("E_UNAUTHORIZED")
    for place, answer in (
        ("clicks other", "E_UNAUTHORIZED"),
        ("other archive", "E_UNAUTHORIZED"),
        ("clicks archive", "OK"),
    ):
        with NsqSocket(guarded.nsq) as client:
            client.ask("AUTH", b"etl")
            assert client.ask(f"SUB {place}").startswith(answer)


def test_the_audit_log_has_each_action_with_its_user(guarded: Guarded) -> None:
    with guarded.client("boss") as boss:
        boss.post("/topic/create?topic=audited")
        boss.post("/channel/pause?topic=audited&channel=none")
    with zsq.Admin(guarded.ipc) as admin:
        admin.create_channel("audited", "c", max_attempts=3)
        admin.stats()
        admin.topics()
    wait_for(
        lambda: len([row for row in guarded.audited() if row["topic"] == "audited"]) == 3,
        30,
        "three lines",
    )
    rows = [row for row in guarded.audited() if row["topic"] == "audited"]
    assert [(row["action"], row["channel"], row["user"], row["from"], row["via"]) for row in rows] == [
        ("create", "", "boss", "127.0.0.1", "http"), ("pause", "none", "boss", "127.0.0.1", "http"), ("create", "c", "", "", "ipc"),
    ]  # fmt: skip
    assert [row["result"].split()[0] for row in rows] == ["done", "E_NOT_FOUND", "done"]
    assert rows[2]["options"] == {"max_attempts": 3}
    assert stat.S_IMODE(os.stat(guarded.data_dir / "audit.log").st_mode) == 0o600


def test_topics_created_by_first_use_are_in_the_audit_log_too(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded.client("boss") as boss:
        assert boss.post("/pub?topic=used", content=b"x").text == "OK"
        assert boss.post("/pub?topic=used", content=b"x").text == "OK"
    with NsqSocket(guarded.nsq) as client:
        client.ask("AUTH", b"etl")
        assert client.ask("SUB clicks archive") == "OK"
    with zsq.Consumer("used", "mine", url=guarded.ipc, max_age_s=60) as consumer:
        assert consumer.receive(20) is not None
    with zsq.Consumer("used", "mine", url=guarded.ipc) as consumer:
        consumer.receive(0)

    def found(topic: str) -> list[tuple[str, ...]]:
        assert run(["audit", "--url", guarded.ipc, "--topic", topic, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [
            (row["action"], row["channel"], row["user"], row["from"], row["via"]) for row in rows
        ]

    assert found("used") == [
        ("first use", "", "", "", "http"),
        ("first use", "mine", "", "", "ipc"),
    ]
    assert ("first use", "archive", "etl", "127.0.0.1", "nsq") in found("clicks")
    assert run(["audit", "--url", guarded.ipc, "--user", "etl", "--last", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("etl@127.0.0.1 (nsq)  first use clicks/archive")
    assert run(["audit", "--url", guarded.ipc, "--topic", "used"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith("- (ipc)  first use used/mine max_age_s=60")
    )


def test_a_stored_channel_is_no_first_use(guarded: Guarded) -> None:
    """No first use is recorded, however the channel's consumer connects, even before the topic is
    up again.
    """
    with (
        zsq.Producer(guarded.ipc) as producer,
        zsq.Consumer("stored", "mine", url=guarded.ipc) as consumer,
    ):
        producer.publish("stored", b"x")
        assert consumer.receive(20) is not None
    before = len([row for row in guarded.audited() if row["action"] == "first use"])
    assert guarded.stop() == 0
    guarded.launch()
    with zsq.Consumer("stored", "mine", url=guarded.ipc) as consumer:
        assert consumer.receive(20) is not None
    guarded.wait_ready()
    assert len([row for row in guarded.audited() if row["action"] == "first use"]) == before


def test_new_rules_and_certificates_hold_at_once(guarded: Guarded) -> None:
    with (
        NsqSocket(guarded.nsq) as reader,
        NsqSocket(guarded.nsq) as writer,
        guarded.client("etl") as etl,
    ):
        for one in (reader, writer):
            one.ask("AUTH", b"etl")
        assert etl.get("/stats").status_code == 200
        assert reader.ask("SUB clicks archive") == "OK"
        assert writer.ask("PUB clicks", b"x") == "OK"
        guarded.access.write_text("[users.etl\n")
        guarded.reload("configuration not reloaded, no option changed")
        assert writer.ask("PUB clicks", b"x") == "OK"
        guarded.access.write_text(user("other", publish=["*"]))
        fresh = make(guarded.data_dir.parent / "tls2")
        for name in ("cert", "key"):
            os.replace(getattr(fresh, name), getattr(guarded.certificates, name))
        guarded.reload("are read again")
        wait_for(
            lambda: etl.get("/stats").status_code == 403,
            30,
            "the new rules over HTTP, on a connection that was there",
        )
        assert etl.get("/stats").json()["message"] == "AUTH_FAILED"
        # A client that may not consume any more is disconnected.
        with pytest.raises((EOFError, ConnectionError)):
            reader.frame()
        assert writer.ask("PUB clicks", b"x").startswith("E_UNAUTHORIZED")
        with httpx.Client(
            base_url=f"https://localhost:{guarded.http}", verify=fresh.client(), timeout=20
        ) as later:
            assert later.get("/ping").text == "OK"
            assert later.get("/stats", headers={"authorization": "Bearer other"}).status_code == 200


def test_open_addresses_are_refused_before_the_data_directory_is_made(tmp_path: Path) -> None:
    """tests/actors/security/test_exposure.py tests each case. This test checks that `zsq serve`
    uses that check.
    """
    command = [sys.executable, "-m", "zsq", "serve", "--data-dir", str(tmp_path / "data")]
    wide = [f"--{which}=0.0.0.0:{free_port()}" for which in ("listen", "nsq-listen", "http-listen")]
    done = subprocess.run(
        [*command, *wide], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count(" needs --access") == 4, done.stderr
    assert "--insecure" in done.stderr
    assert not (tmp_path / "data").exists()


def test_insecure_says_that_somebody_knows(tmp_path: Path) -> None:
    port = free_port()
    broker = Broker(
        tmp_path / "data",
        "--no-http",
        "--nsq-listen",
        f"0.0.0.0:{port}",
        "--no-listen",
        "--insecure",
    )
    broker.extra = tuple(one for one in broker.extra if one != "--no-nsq")
    try:
        broker.start()
        assert (
            b"others on the network can read traffic: NSQ clients at 0.0.0.0"
            in broker.log.read_bytes()
        )
        with NsqSocket(port) as client:
            assert client.ask("PUB t", b"x") == "OK"
    finally:
        broker.close()
