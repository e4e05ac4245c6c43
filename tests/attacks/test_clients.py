"""A hostile broker that sends its clients elsewhere, and what the clients do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
import zmq
from support.broker import Broker
from support.router import make_router, recv_word

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageWriter
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets
from zsq.transport.wire.address import read_run_id

pytestmark = pytest.mark.slow

TOPIC: Final = "secret"
Answer = Callable[[p.Wire], p.Wire | None]


class HostileBroker:
    """A gateway in a thread that answers as a test says. `asked` counts the messages."""

    def __init__(self, endpoint: str, answer: Answer) -> None:
        self._answer = answer
        self.asked = 0
        self._wake = os.eventfd(0)
        self._router = make_router(endpoint)
        self.url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while self._wake not in dict(poller.poll()):
            while (got := recv_word(self._router)) is not None:
                self.asked += 1
                reply = self._answer(got[1])
                if reply is not None:
                    sockets.send_word(self._router, got[0], reply)
        self._router.close(linger=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join(10)
        os.close(self._wake)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker with an access file, which only its own user reaches, over ipc."""
    folder = tmp_path_factory.mktemp("victim")
    (folder / "access.toml").write_text("[users]\n")
    with Broker(folder / "data", "--access", str(folder / "access.toml"), "--no-listen") as broker:
        yield broker


def spread_to(url: str) -> Answer:
    def answer(message: p.Wire) -> p.Wire | None:
        if not isinstance(message, p.Open):
            return None
        return p.Spread(message.request, TOPIC, "u", ((0, 0),), ((0, (url,)),))

    return answer


def opened_with(**told: object) -> Answer:
    def answer(message: p.Wire) -> p.Wire | None:
        return p.Done(message.request, told) if isinstance(message, p.Open) else None

    return answer


def topics_of(broker: Broker) -> list[str]:
    with zsq.Admin(broker.ipc, timeout=20) as admin:
        return list(admin.topics())


def publish(url: str, topic: str, transport: str) -> str:
    """Return the error of a publish, which must fail."""
    with (
        pytest.raises(zsq.ZsqError) as caught,
        zsq.Producer(url, timeout=1, transport=transport) as producer,
    ):
        producer.publish(topic, b"x")
    return str(caught.value)


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_a_topic_with_parts_leads_to_no_run_directory(victim: Broker, transport: str) -> None:
    """The client has all permissions there, because it is the broker's own user."""
    with HostileBroker("tcp://127.0.0.1:*", spread_to(victim.ipc)) as hostile:
        error = publish(hostile.url, f"{TOPIC}#0", transport)
        assert hostile.asked
        assert "only tcp:// is accepted" in error
    assert not topics_of(victim)


def test_a_gateway_leads_to_no_run_directory_whose_id_it_does_not_know(victim: Broker) -> None:
    run = victim.ipc.removeprefix("ipc://")
    told = {"uuid": "u", "node": 1, "run": run}
    for run_id in ("", "0" * 32):
        with HostileBroker("tcp://127.0.0.1:*", opened_with(**told, run_id=run_id)) as hostile:
            publish(hostile.url, TOPIC, "auto")
            assert hostile.asked
    assert not topics_of(victim)


def test_a_client_that_chose_tcp_uses_no_run_directory(victim: Broker) -> None:
    run = victim.ipc.removeprefix("ipc://")
    told = {"uuid": "u", "node": 1, "run": run, "run_id": read_run_id(run)}
    with HostileBroker("tcp://127.0.0.1:*", opened_with(**told)) as hostile:
        publish(hostile.url, TOPIC, "tcp")
        assert hostile.asked
    assert not topics_of(victim)


@pytest.mark.parametrize("elsewhere", ["tcp", "ipc", "above"])
def test_a_supervisor_leads_only_to_endpoints_beside_itself(
    victim: Broker, tmp_path: Path, elsewhere: str
) -> None:
    """Only the file name of an endpoint counts. So the client speaks to the same server again."""
    run = victim.ipc.removeprefix("ipc://")
    endpoint = {
        "tcp": "tcp://127.0.0.1:1",
        "ipc": f"ipc://{run}/supervisor",
        "above": f"ipc://{tmp_path}/../{Path(run).name}/supervisor",
    }[elsewhere]

    def answer(message: p.Wire) -> p.Wire | None:
        if not isinstance(message, p.Lookup):
            return None
        data = {"topic": endpoint, "stage": endpoint, "uuid": "u", "node": 1}
        return p.Done(message.request, data)

    with HostileBroker(f"ipc://{tmp_path}/supervisor", answer) as hostile:
        error = publish(f"ipc://{tmp_path}", TOPIC, "auto")
        assert hostile.asked
        assert ("which is not in its run directory" in error) == (elsewhere == "tcp")
    assert not topics_of(victim)


@pytest.mark.parametrize("port", [0, -1, 65536, "1;127.0.0.1:1", None, True])
def test_pushes_of_a_stage_go_to_a_port_only(port: object) -> None:
    def answer(message: p.Wire) -> p.Wire | None:
        if isinstance(message, p.Open):
            told = {"uuid": "u", "node": 1, "push_port": port, "route": b"1"}
            return p.Done(message.request, told)
        if isinstance(message, p.OpenStage):
            opened = {"expected": 0, "sealed": 0, "credit_bytes": 1_000_000, "committed": False}
            return p.Done(message.request, opened)
        return None

    with HostileBroker("tcp://127.0.0.1:*", answer) as hostile:
        writer = StageWriter(TOPIC, "app", 1, url=hostile.url, timeout=1)
        with writer, pytest.raises(zsq.ZsqError, match="for pushes"):
            writer.push(pack([b"x"]))
