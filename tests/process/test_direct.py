"""Tests of clients on the broker's own machine: they bypass the gateway if they can,
and only then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.keys import Keyring

import zsq
import zsq.aio
from zsq.actors.supervisor import run_directory
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.range_reader import RangeReader
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.wire import addresses
from zsq.transport.wire.address import RUN_ID_FILE, Address, direct_address, parse, read_run_id

CLIENTS = ("producer", "consumer", "admin", "reader")


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZSQ_TRANSPORT", raising=False)


def used(kind: str, url: str, **options: Any) -> set[str]:
    """Use a client, and return the addresses of its links."""
    with zsq.Producer(url, timeout=20, **options) as producer:
        producer.publish("t", b"one")
        if kind == "producer":
            return ways(producer)
    if kind == "consumer":
        with zsq.Consumer("t", "c", url=url, **options) as consumer:
            message = consumer.receive(20)
            assert message is not None
            message.finish(sync=True)
            return ways(consumer)
    if kind == "admin":
        with zsq.Admin(url, **options) as admin:
            assert admin.ping() == "OK"
            return ways(admin)
    with zsq.Reader("t", url=url, **options) as reader:
        assert reader.bounds()[1] > 0
        return ways(reader)


def kill(broker: Broker) -> None:
    assert broker.process is not None
    children = broker.actors()
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone([actor["pid"] for actor in children])


def ways(client: Any) -> set[str]:
    return {one.address.url for one in client._made.engine.links}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_of_the_same_user_goes_direct(shared: Broker, kind: str) -> None:
    assert used(kind, shared.tcp) == {shared.ipc}


@pytest.mark.parametrize("kind", CLIENTS)
def test_transport_tcp_stays_at_the_gateway(shared: Broker, kind: str) -> None:
    assert used(kind, shared.tcp, transport="tcp") == {shared.tcp}


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_clients_of_spark_take_the_same_argument(shared: Broker, transport: str) -> None:
    wanted = {shared.tcp if transport == "tcp" else shared.ipc}
    with StageWriter("staged", "app", 1, url=shared.tcp, timeout=20, transport=transport) as writer:
        writer.push(pack([b"one"]))
        part = writer.seal()
        assert ways(writer) == wanted
    with StageCommitter("staged", url=shared.tcp, timeout=20, transport=transport) as committer:
        assert committer.commit("app", 1, [part])["messages"] == 1
        assert ways(committer) == wanted
    with RangeReader("staged", 0, 1, url=shared.tcp, timeout=20, transport=transport) as blocks:
        assert sum(block.count for block in blocks) == 1
        assert ways(blocks) == wanted


def test_the_environment_forces_the_gateway_too(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSQ_TRANSPORT", "tcp")
    assert used("producer", shared.tcp) == {shared.tcp}
    monkeypatch.setenv("ZSQ_TRANSPORT", "ipc")
    with pytest.raises(zsq.UsageError, match="transport must be 'auto' or 'tcp', not 'ipc'"):
        zsq.Producer(shared.tcp)


def test_an_asyncio_client_goes_direct(shared: Broker) -> None:
    async def main() -> set[str]:
        async with zsq.aio.Producer(shared.tcp, timeout=20) as producer:
            await producer.publish("t", b"one")
            return ways(producer)

    assert asyncio.run(main()) == {shared.ipc}


def test_with_access_control_clients_stay_at_the_gateway(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path, ["etl"])
    keyring.allow('[users.etl]\ncurve = ["KEY etl"]\npublish = ["*"]\nadmin = ["*"]\n')
    with Broker(tmp_path / "data", *keyring.options()) as broker:
        assert used("producer", broker.tcp, key_file=str(keyring.file("etl"))) == {broker.tcp}


def test_a_path_of_another_broker_is_not_used(shared: Broker, tmp_path: Path) -> None:
    """A container may have the path that the gateway names, but another broker runs there."""
    told = {
        "run": str(shared.data_dir / "run"),
        "run_id": read_run_id(str(shared.data_dir / "run")),
    }
    assert direct_address(told) is not None
    run_dir = run_directory.make(tmp_path)
    assert direct_address(told | {"run": run_dir}) is None
    assert direct_address(told | {"run": str(tmp_path / "missing")}) is None
    assert direct_address(told | {"run_id": ""}) is None
    assert direct_address({}) is None


def test_the_run_id_of_another_user_or_in_a_pipe_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run_directory.make(tmp_path)
    assert len(read_run_id(run_dir)) == 32
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(run_dir).st_uid + 1)
    assert read_run_id(run_dir) == ""
    monkeypatch.undo()
    os.mkfifo(tmp_path / RUN_ID_FILE)
    assert read_run_id(str(tmp_path)) == "", "and opening the pipe must not block"
    assert read_run_id("a\0b") == ""


@pytest.mark.parametrize("text", ["", "a" * 31, "a" * 33, "a" * 10_000])
def test_a_file_that_has_no_run_id_is_not_taken_for_one(text: str, tmp_path: Path) -> None:
    (tmp_path / RUN_ID_FILE).write_text(text)
    assert read_run_id(str(tmp_path)) == ""


def test_each_start_has_another_run_id(tmp_path: Path) -> None:
    first = read_run_id(run_directory.make(tmp_path))
    assert read_run_id(run_directory.make(tmp_path)) != first
    assert os.stat(tmp_path / "run" / RUN_ID_FILE).st_mode & 0o777 == 0o600


def test_only_a_gateway_without_keys_is_left(tmp_path: Path) -> None:
    assert parse("tcp://127.0.0.1:1").auto
    assert not parse("tcp://127.0.0.1:1", transport="tcp").auto
    assert not parse(f"ipc://{tmp_path}").auto


def test_a_run_directory_whose_socket_does_not_answer_is_left_for_the_gateway(
    shared: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may see the file but be unable to connect to the sockets beside it."""
    run_id = read_run_id(str(shared.data_dir / "run"))
    (tmp_path / RUN_ID_FILE).write_text(run_id)
    tried = Address(f"ipc://{tmp_path}", True, run_id=run_id)
    monkeypatch.setattr(addresses, "direct_address", lambda _: tried)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "supervisor"))  # no process listens, so the connection is refused
        with zsq.Producer(shared.tcp, timeout=20) as producer:
            for topic in ("t", "u"):
                producer.publish(topic, b"one")
                assert ways(producer) == {shared.tcp}
            assert producer._made is not None
            assert producer._made.engine.rotation._unusable == {run_id}, "it was tried"


def test_a_client_follows_its_broker_through_a_kill(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.tcp, timeout=40) as producer:
        offsets = [producer.publish("t", b"before").wait()]
        assert ways(producer) == {own_broker.ipc}
        kill(own_broker)
        own_broker.start()
        offsets.append(producer.publish("t", b"after").wait())
        assert ways(producer) == {own_broker.ipc}, (
            "the new broker's directory has a new id, and is used too"
        )
        assert offsets == [0, 1]


def test_a_client_of_a_killed_broker_finds_the_next_one_on_its_port(
    own_broker: Broker, tmp_path: Path
) -> None:
    """The killed broker leaves its run directory behind."""
    with zsq.Producer(own_broker.tcp, timeout=40) as producer:
        producer.publish("t", b"before")
        kill(own_broker)
        assert read_run_id(str(own_broker.data_dir / "run")), "left behind"
        other = Broker(tmp_path / "other")
        other.port = own_broker.port
        try:
            other.start()
            assert producer.publish("t", b"after").wait() == 0
            assert ways(producer) == {other.ipc}
        finally:
            other.close()


def test_a_topic_that_is_killed_is_found_again_without_the_gateway(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.tcp, timeout=40) as producer:
        producer.publish("t", b"before")
        gateway = own_broker.pids("gateway")
        assert len(gateway) == 1
        os.kill(gateway[0], signal.SIGSTOP)  # a client that needs the gateway would wait now
        try:
            (topic,) = own_broker.pids("topic")
            os.kill(topic, signal.SIGKILL)
            assert producer.publish("t", b"after").wait() == 1
        finally:
            os.kill(gateway[0], signal.SIGCONT)


@pytest.mark.parametrize("way", ["relative", "link"])
def test_a_client_may_name_the_run_directory_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A relative path, a symbolic link, or another mount point of a volume in a container."""
    with Broker(tmp_path / "data") as broker:
        run = Path(broker.ipc.removeprefix("ipc://"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link").symlink_to(run)
        path = os.path.relpath(run) if way == "relative" else str(tmp_path / "link")
        url = f"ipc://{path}"
        with zsq.Producer(url, timeout=20) as producer:
            producer.publish("clicks", b"hello")
        with zsq.Consumer("clicks", "c", url=url) as consumer:
            message = consumer.receive(20)
            assert message is not None
            message.finish()
