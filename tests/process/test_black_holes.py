"""Tests of clients with one address whose connection dies without a sign.

A firewall has forgotten it, or the network was away. Each client has all defaults, so that two
heartbeats last a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from support.broker import Broker, wait_for
from support.tcp_proxy import BlackHole

import zsq
import zsq.aio

pytestmark = pytest.mark.timeout(120)

BACK_S = 10.0  # so soon after the hole, each client goes on


@pytest.fixture
def hole(own_broker: Broker) -> Iterator[BlackHole]:
    one = BlackHole(own_broker.tcp)
    yield one
    one.close()


def test_each_client_says_that_its_broker_is_silent_and_goes_on_soon_after(
    own_broker: Broker, hole: BlackHole, caplog: pytest.LogCaptureFixture
) -> None:
    begins, ends = threading.Barrier(2), threading.Event()

    async def use_asyncio() -> None:
        async with (
            zsq.aio.Producer(hole.url, transport="tcp", timeout=None) as producer,
            zsq.aio.Admin(hole.url, transport="tcp", timeout=None) as admin,
        ):
            await producer.publish("u", b"first")
            assert "u" in await admin.topics()
            await asyncio.to_thread(begins.wait, 30)
            await asyncio.to_thread(ends.wait, 30)
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(producer.publish("u", b"second"))
                group.create_task(admin.topics())

    with (
        zsq.Producer(hole.url, transport="tcp", timeout=None) as producer,
        zsq.Consumer("t", "c", url=hole.url, transport="tcp", timeout=None) as consumer,
        zsq.Reader("t", url=hole.url, transport="tcp", timeout=None) as reader,
        zsq.Admin(hole.url, transport="tcp", timeout=None) as admin,
        ThreadPoolExecutor() as pool,
    ):
        producer.publish("t", b"first")
        first = consumer.receive(30)
        assert first is not None
        assert reader.bounds()[1] >= 1
        assert list(admin.topics()) == ["t"]
        by_asyncio = pool.submit(asyncio.run, use_asyncio())
        begins.wait(30)
        with caplog.at_level(logging.WARNING, "zsq"):
            hole.begin()
            calls: list[Callable[[], object]] = [
                lambda: producer.publish("t", b"second"),
                partial(first.finish, sync=True),
                reader.bounds,
                admin.topics,
            ]
            pending: list[Future[object]] = [pool.submit(call) for call in calls]
            ends.set()

            def warnings() -> int:
                texts = [record.getMessage() for record in caplog.records]
                return sum("nothing arrives, not even the answer" in text for text in texts)

            wait_for(lambda: warnings() >= 6, 30, "each of the six clients logs that it waits")
        assert not any(one.done() for one in pending)
        hole.end()
        with pytest.raises(zsq.LeaseLost, match="the link was lost"):
            pending.pop(1).result(BACK_S)
        for one in pending:
            one.result(BACK_S)
        by_asyncio.result(BACK_S)
        received = {message.body for _, message in zip(range(2), consumer, strict=False)}
        assert received == {b"first", b"second"}, "the finish may be lost"


@pytest.mark.timeout(30)
def test_a_consumer_that_is_back_gets_at_once_what_its_dead_connection_held(
    own_broker: Broker, hole: BlackHole
) -> None:
    """The channel may have one consumer, and still holds the messages of its dead connection."""
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=hole.url, transport="tcp", ready=2, max_consumers=1) as consumer,
    ):
        producer.publish("t", b"first")
        first = consumer.receive(30)
        assert first is not None
        hole.cut()
        producer.publish("t", b"second")
        first.finish()
        with pytest.raises(zsq.LeaseLost):
            consumer.flush()
        received = {message.body for _, message in zip(range(2), consumer, strict=False)}
        assert received == {b"first", b"second"}


def test_processes_that_hang_keep_their_clients_although_the_gateway_answers(
    own_broker: Broker, hole: BlackHole
) -> None:
    """If the consumer left, its lease would be lost."""
    with (
        zsq.Producer(hole.url, transport="tcp") as producer,
        zsq.Consumer("t", "c", url=hole.url, transport="tcp") as consumer,
        ThreadPoolExecutor() as pool,
    ):
        producer.publish("t", b"first")
        message = consumer.receive(30)
        assert message is not None
        before = hole.connections
        pids = own_broker.pids("topic") + own_broker.pids("channel")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            stored = pool.submit(producer.publish, "t", b"second")
            finished = pool.submit(message.finish, sync=True)
            wait_for(lambda: hole.connections >= before + 2, 20, "a second try of each client")
            wait_for(lambda: hole.left, 20, "the end of a second try")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        stored.result(20)
        finished.result(20)
        assert not hole.left & set(range(before)), "each client has kept its connection"
