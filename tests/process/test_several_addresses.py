"""Tests of clients with several addresses against real brokers: one is killed, or one is a standby.

The two brokers here know nothing of each other. What a standby keeps of the primary's messages is
tested with the standby.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support import zsq_command
from support.broker import Broker
from support.fake_standby import STANDBY_TEXT, FakeStandby

import zsq
import zsq.aio
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.wire import addresses


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reached", {})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    made = [Broker(tmp_path_factory.mktemp(name) / "data") for name in "ab"]
    try:
        yield made[0].start(), made[1].start()
    finally:
        for one in made:
            one.close()


def kill(broker: Broker) -> None:
    assert broker.process is not None
    children = broker.actors()
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone([actor["pid"] for actor in children])


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("first", [True, False])
def test_all_clients_find_the_primary_beside_a_standby(
    shared: Broker, transport: str, first: bool
) -> None:
    topic = f"t-{transport}-{first}"
    with FakeStandby() as standby:
        url = [standby.url, shared.tcp] if first else [shared.tcp, standby.url]
        more: Any = {"timeout": 60, "transport": transport}
        with zsq.Producer(url, **more) as producer:
            assert producer.publish(topic, b"one").offset == 0
        with zsq.Consumer(topic, "c", url=url, **more) as consumer:
            message = consumer.receive(60)
            assert message is not None
            message.finish(sync=True)
        with zsq.Admin(url, **more) as admin:
            assert topic in admin.topics()
            assert [one.offset for one in admin.peek(topic, count=1).messages] == [0]
        with StageWriter(topic, "app", 1, url=url, **more) as writer:
            writer.push(pack([b"two"]))
            part = writer.seal()
        with StageCommitter(topic, url=url, **more) as committer:
            assert committer.commit("app", 1, [part])["messages"] == 1
        with zsq.Reader(topic, url=url, **more) as reader:
            assert reader.bounds() == (0, 2)
        assert (standby.asked > 0) == first


def test_commands_take_a_list(shared: Broker) -> None:
    with FakeStandby() as standby:
        url = f"{standby.url},{shared.ipc}"
        ended = zsq_command.run("pub", "commands", "--url", url, "--timeout", "60", stdin=b"one\n")
        assert ended.returncode == 0, ended.stderr
        ended = zsq_command.run("--url", url, "tail", "commands", "--from", "0", "--no-follow")
        assert (ended.returncode, ended.stdout) == (0, b"one\n")
        ended = zsq_command.run("stats", "commands", "--json", ZSQ_URL=url)
        assert ended.returncode == 0, ended.stderr
        ended = zsq_command.run("peek", "commands", "--url", standby.url, "--timeout", "1")
        assert ended.returncode == 1
        assert "E_STANDBY" in ended.stderr.decode()
        assert STANDBY_TEXT in ended.stderr.decode()
    ended = zsq_command.run("topic", "list", "--url", f"{shared.tcp},{shared.tcp}")
    assert ended.returncode == 2
    assert b"E_BAD_ARGUMENT" in ended.stderr


def test_blocking_clients_and_a_command_go_to_the_next_broker_after_a_kill(
    pair: tuple[Broker, Broker],
) -> None:
    first, second = pair
    url = f"{first.tcp},{second.tcp}"
    with (
        zsq.Producer(url, timeout=60) as producer,
        zsq.Consumer("t", "c", url=url, timeout=60) as consumer,
        zsq.Admin(url, timeout=60) as admin,
    ):
        producer.publish("t", b"one")
        message = consumer.receive(60)
        assert message is not None
        message.finish(sync=True)
        assert admin.stats("t")["topics"]
        kill(first)
        producer.publish("t", b"two")
        message = consumer.receive(60)
        assert message is not None
        assert message.body == b"two"
        message.finish(sync=True)
        assert admin.stats("t")["topics"]
    ended = zsq_command.run("pub", "t", "--url", url, "--timeout", "60", stdin=b"three\n")
    assert ended.returncode == 0, ended.stderr
    with zsq.Reader("t", url=second.ipc, timeout=60) as reader:
        assert reader.bounds() == (0, 2)


def test_asyncio_clients_go_to_the_next_broker_after_a_kill(pair: tuple[Broker, Broker]) -> None:
    first, second = pair
    if first.process is None or first.process.poll() is not None:
        first.start()
    url = [first.tcp, second.ipc]

    async def main() -> None:
        async with (
            zsq.aio.Producer(url, timeout=60) as producer,
            zsq.aio.Consumer("u", "c", url=url, timeout=60) as consumer,
            zsq.aio.Admin(url, timeout=60) as admin,
        ):
            await producer.publish("u", b"one")
            message = await consumer.receive(60)
            assert message is not None
            await message.finish(sync=True)
            assert "u" in await admin.topics()
            await asyncio.to_thread(kill, first)
            await producer.publish("u", b"two")
            message = await consumer.receive(60)
            assert message is not None
            assert message.body == b"two"
            await message.finish(sync=True)
            assert "u" in await admin.topics()

    asyncio.run(main())


def test_a_broker_that_freezes_is_left(pair: tuple[Broker, Broker]) -> None:
    """Its connections stay open and its kernel accepts new ones, but no process answers."""
    first, second = pair
    if first.process is None or first.process.poll() is not None:
        first.start()
    url = [first.tcp, second.tcp]
    with (
        zsq.Producer(url, timeout=120, transport="tcp") as producer,
        zsq.Admin(url, timeout=120, transport="tcp") as admin,
    ):
        producer.publish("v", b"one")
        assert "v" in admin.topics()
        pids = [actor["pid"] for actor in first.actors()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            producer.publish("v", b"two")
            assert "v" in admin.topics()
            assert [link.given.url for link in links_of(producer, admin)] == [second.tcp] * 2
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def links_of(*clients: Any) -> list[Any]:
    return [link for client in clients for link in client._made.engine.links]
