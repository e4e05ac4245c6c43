"""Tests of a client that connects to the wrong port of a real broker: the error says what answers
there, and names the right port.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.broker import Broker

import zsq
from zsq.apps.cli.app import run
from zsq.transport.wire import sockets


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("broker") / "data", nsq=True, http=True).start()
    yield made
    made.stop()


@pytest.mark.parametrize("kind", ["http", "nsq"])
def test_the_error_at_an_http_or_nsq_port_names_the_port(
    kind: str, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    port = broker.http if kind == "http" else broker.nsq
    url = f"tcp://127.0.0.1:{port}"
    said = (
        f"{url} is the HTTP port of a ZSQ broker"
        if kind == "http"
        else f"{url} is the port of a ZSQ broker .* for NSQ clients"
    )
    began = time.monotonic()
    with (
        zsq.Producer(url, timeout=60) as producer,
        pytest.raises(zsq.UsageError, match=f"{said}.*by default 4153"),
    ):
        producer.publish("t", b"body")
    with zsq.Admin(url) as admin, pytest.raises(zsq.UsageError, match=said):
        admin.topics()
    with pytest.raises(zsq.UsageError, match=said), zsq.Consumer("t", "c", url=url):
        pass
    assert run(["stats", "--url", url]) == 2
    assert "port of a ZSQ broker" in capsys.readouterr().err
    assert time.monotonic() - began < 40

    async def main() -> None:
        async with zsq.aio.Producer(f"tcp://localhost:{port}") as producer:
            await producer.publish("t", b"body")

    with pytest.raises(zsq.UsageError, match="port of a ZSQ broker"):
        asyncio.run(main())


def test_something_else_is_told_in_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                with taken:
                    taken.sendall(b"SSH-2.0-OpenSSH\r\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        try:
            with (
                zsq.Admin(url, timeout=3) as admin,
                pytest.raises(zsq.BrokerUnreachable, match=r"answers b'SSH-2\.0"),
            ):
                admin.topics()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            greeting.join(10)


@pytest.mark.parametrize("accepts", [True, False])
def test_a_silent_port_is_described_in_the_error_of_each_client(accepts: bool) -> None:
    """As a firewall does, a full queue of connections drops the first packet of each new one."""
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("127.0.0.1", 0), backlog=50 if accepts else 0)
        )
        if not accepts:
            for _ in range(4):
                other = stack.enter_context(socket.socket())
                other.setblocking(False)
                other.connect_ex(server.getsockname())
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        why = "accepts the connection and sends nothing" if accepts else "or a firewall before it"

        async def publish() -> None:
            async with zsq.aio.Producer(url, timeout=1) as one:
                await one.publish("t", b"body")

        producer = stack.enter_context(zsq.Producer(url, timeout=1))
        consumer = zsq.Consumer("t", "c", url=url, timeout=1)
        stack.callback(consumer.close)
        reader = stack.enter_context(zsq.Reader("t", url=url, timeout=1))
        admin = stack.enter_context(zsq.Admin(url, timeout=1))
        calls: list[Callable[[], object]] = [
            lambda: producer.publish("t", b"body"),
            lambda: consumer.receive(None),
            reader.bounds,
            admin.topics,
            lambda: asyncio.run(publish()),
        ]
        for call in calls if accepts else calls[:1]:
            with pytest.raises(zsq.BrokerUnreachable, match=why):
                call()


def test_the_right_port_is_not_asked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "Probe", lambda *_: pytest.fail("the port was probed"))
    with zsq.Admin(broker.tcp) as admin:
        admin.topics()
