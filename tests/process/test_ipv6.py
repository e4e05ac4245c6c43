"""Tests of a broker whose doors listen at addresses of IPv6."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, free_port
from support.nsq_socket import NsqSocket
from support.zsq_command import run_text

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


class Six(Broker):
    """A broker all of whose doors listen at `host`."""

    def __init__(self, data_dir: Path, host: str) -> None:
        super().__init__(data_dir)
        self.nsq, self.http = free_port(), free_port()
        doors = (
            ("--nsq-listen", self.nsq), ("--http-listen", self.http), ("--listen", self.port),
        )  # fmt: skip
        self.extra = (
            "--insecure",
            *(word for name, port in doors for word in (name, f"{host}:{port}")),
        )


@pytest.fixture(params=["[::1]", "[::]", "*"])
def six(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Six]:
    broker = Six(tmp_path / "data", request.param)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def test_each_door_and_client_takes_addresses_of_ipv6(six: Six) -> None:
    url = f"tcp://[::1]:{six.port}"
    with zsq.Admin(url) as admin, zsq.Producer(url, transport="tcp") as producer:
        admin.create_channel("t", "c")
        producer.publish("t", b"native")
        with zsq.Consumer("t", "c", url=url, transport="tcp") as consumer:
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"native"
            message.finish()
    with StageWriter("t", "app", 1, url=url, transport="tcp") as writer:
        writer.push(pack([b"staged"]))
        stage = writer.seal()
    with StageCommitter("t", url=url, transport="tcp") as committer:
        committer.commit("app", 1, [stage])
    base = f"http://[::1]:{six.http}"
    assert httpx.post(f"{base}/pub?topic=t", content=b"http").text == "OK"
    with NsqSocket(six.nsq, host="::1") as client:
        assert client.ask("PUB t", b"nsq") == "OK"
    assert run_text("pub", "t", "command", "--url", url).returncode == 0
    found = json.loads(run_text("stats", "--json", "--url", url).stdout)
    assert found["topics"][0]["message_count"] == 5
