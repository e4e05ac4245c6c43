"""Tests of the asyncio clients against a small fake broker, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import zsq
import zsq.aio
from zsq.transport.block.block import MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX
from zsq.transport.client.core import producer_engine
from zsq.transport.errors import E_DISK_FULL
from zsq.transport.wire import protocol as p

Broker = Any
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return asyncio.run if request.param == "asyncio" else zsq.aio.run


def test_published_messages_are_consumed_and_finished(broker: Broker, run: Run) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(broker.url) as producer:
            first = await producer.publish("t", b"a", key="k", headers={"n": 1})
            many = await producer.publish_many("t", [b"b"] * 30, tags=["g"] * 30)
            assert (first.offset, many.ranges) == (0, ((1, 30),))
        async with zsq.aio.Consumer("t", "c", url=broker.url, ready=100) as consumer:
            message = await consumer.receive()
            assert message is not None
            assert (message.body, message.key, message.headers) == (b"a", b"k", {"n": 1})
            await message.finish(sync=True)
            batch = await consumer.receive_batch(5)
            assert batch is not None
            await batch.touch()
            await batch.messages()[0].requeue()
            await batch.finish(sync=True)
            again = await consumer.receive(5)
            assert again is not None
            assert (again.offset, again.attempts) == (1, 2)
            await again.finish()
            await consumer.flush()
            assert consumer.stale_count == 0
            assert await consumer.receive(0) is None
            assert await consumer.receive(0.02) is None
        assert sorted(broker.finished) == list(range(31))

    run(main())


def test_many_tasks_share_one_producer(broker: Broker, run: Run) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(broker.url) as producer:
            receipts = await asyncio.gather(*(producer.publish("t", b"%d" % i) for i in range(100)))
        assert sorted(receipt.offset or 0 for receipt in receipts) == list(range(100))

    run(main())


def test_lingering_messages_are_sent_and_confirmed(broker: Broker, run: Run) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(broker.url, linger_ms=5, batch_count=100) as producer:
            receipts = [await producer.publish("t", b"%d" % i) for i in range(250)]
            assert await receipts[-1].wait() == 249
            last = await producer.publish("t", b"x")
            while not last.done:  # no caller waits for this message, so the timer sends it
                await asyncio.wait([asyncio.ensure_future(producer.flush())])
        assert broker.head == 251

    run(main())


def test_a_refusal_is_raised_and_a_dead_broker_loses_nothing(broker: Broker, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with zsq.aio.Producer(broker.url) as producer:
            await producer.publish("t", b"a")
            broker.refuse.append(E_DISK_FULL)
            with pytest.raises(zsq.Refused, match=E_DISK_FULL):
                await producer.publish("t", b"b")
            broker.silent = True
            receipts = [await producer.publish_many("t", [b"%d" % i], wait=False) for i in range(5)]
            await loop.run_in_executor(None, broker.wait_for, lambda: broker.count(p.Pub) == 7)
            await loop.run_in_executor(None, broker.die)
            broker.silent = False
            broker.start()
            assert [await receipt.wait() for receipt in receipts] == [1, 2, 3, 4, 5]

    run(main())


def test_iteration_goes_on_after_the_link_is_lost(broker: Broker, run: Run) -> None:
    for i in range(3):
        broker.call(lambda i=i: broker.put(b"%d" % i))

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        seen: list[int] = []
        async for message in consumer:
            seen.append(message.offset)
            if len(seen) == 2:
                broker.die()
                broker.start()
            if len(seen) > 2 and {0, 1, 2} <= set(seen[2:]):
                break
        await consumer.close()
        assert await consumer.receive() is None

    run(main())


def test_run_drains_on_a_signal(broker: Broker, run: Run) -> None:
    broker.call(lambda: broker.put(*(b"%d" % i for i in range(50))))
    failed: list[int] = []
    seen: list[int] = []

    async def main() -> None:
        async def handle(message: zsq.aio.Message) -> None:
            if message.offset == 5 and message.attempts == 1:
                raise RuntimeError("at random")
            seen.append(message.offset)
            if len(seen) == 50:
                os.kill(os.getpid(), signal.SIGTERM)

        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        await consumer.run(
            handle, concurrency=4, requeue_delay=0, on_error=lambda m, e: failed.append(m.offset)
        )
        with pytest.raises(zsq.Refused):
            await consumer.run(handle)

    run(main())
    assert failed == [5]
    assert sorted(broker.finished) == list(range(50))


def test_admin_and_reader_return_the_answers_of_the_broker(broker: Broker, run: Run) -> None:
    broker.call(lambda: broker.put(b"a", b"b"))

    async def main() -> None:
        async with zsq.aio.Admin(broker.url) as admin:
            assert await admin.ping() == "OK"
            await admin.create_topic("t")
            await admin.create_channel("t", "c")
            await admin.pause("t")
            await admin.unpause("t")
            await admin.empty("t", "c")
            await admin.seek("t", "c", 5)
            await admin.delete_channel("t", "c")
            with pytest.raises(zsq.NotFound):
                await admin.delete_topic("absent", force=True)
        async with zsq.aio.Reader("t", url=broker.url) as reader:
            found = await reader.read(0)
            assert (found.head, [block.count for block in found.blocks]) == (2, [2])
            assert await reader.bounds() == (0, 2)
            assert await reader.uuid() == "0"
            assert await reader.offset_at(1) == 0
            assert (await reader.measure(0)).offset == 2
        with pytest.raises(zsq.Refused, match="closed"):
            await reader.read(0)

    run(main())


def test_each_client_reports_an_unreachable_broker(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        url = f"ipc://{tmp_path}/none"
        producer = zsq.aio.Producer(url, timeout=0.1)
        with pytest.raises(zsq.BrokerUnreachable, match="nothing was sent"):
            await producer.publish("t", b"a")
        await producer.close()
        with pytest.raises(zsq.Refused):
            await producer.publish("t", b"a")
        consumer = zsq.aio.Consumer("t", "c", url=url, timeout=0.1)
        with pytest.raises(zsq.BrokerUnreachable, match="no link"):
            await consumer.receive()
        with pytest.raises(zsq.BrokerUnreachable, match="could not subscribe"):
            await consumer.subscribe()
        await consumer.close()
        async with zsq.aio.Admin(url, timeout=0.1) as admin:
            with pytest.raises(zsq.BrokerUnreachable, match="did not answer"):
                await admin.ping()

    run(main())


def test_the_blocking_and_the_asyncio_client_have_the_same_face() -> None:
    import inspect

    for name in ("Producer", "Consumer", "Admin", "Reader", "Message", "Batch", "Receipt"):
        blocking, waiting = getattr(zsq, name), getattr(zsq.aio, name)
        for method, function in inspect.getmembers(blocking, inspect.isfunction):
            if method.startswith("_") and method != "__init__":
                continue
            if function is zsq.Reader.arrow:
                continue  # the libraries that read its stream block, so asyncio needs a thread
            other = [*inspect.signature(getattr(waiting, method)).parameters]
            if function is zsq.Consumer.run:
                other.remove("cancel_handlers")  # a thread cannot be cancelled
            assert other == list(inspect.signature(function).parameters) or method == "close", (
                method
            )


def test_publishing_waits_while_too_much_is_not_sent(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (zsq.transport.client.asyncio.aio, producer_engine):
        monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 1_000)

    async def main() -> None:
        broker.silent = True
        async with zsq.aio.Producer(
            broker.url, timeout=0.2, linger_ms=60_000, batch_bytes=2_000
        ) as producer:
            await producer.publish_many("t", [bytes(2_000)], wait=False)
            with pytest.raises(zsq.BrokerUnreachable, match="did not confirm"):
                await producer.publish_many("t", [b"x"], wait=False)
            with pytest.raises(zsq.BrokerUnreachable, match="did not confirm"):
                await producer.publish("t", b"y")
            broker.silent = False
            broker.die()
            broker.start()
            await producer.flush(10)
            assert broker.head >= 1

    asyncio.run(main())


class Asked(Exception):
    """An exception that is raised when the producer asks the broker for its limit."""


def test_a_body_over_the_largest_limit_is_refused_before_a_broker_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the largest possible limit, only the broker knows its own limit."""
    large, too_large = MESSAGE_BYTES_MAX + 1, MESSAGE_BYTES_LARGEST + 1
    asked: list[tuple[str, int]] = []

    def check(_: Any, topic: str, size: int) -> None:
        asked.append((topic, size))
        raise Asked

    async def check_later(_: Any, topic: str, size: int) -> None:
        check(_, topic, size)

    monkeypatch.setattr(zsq.Producer, "_check_size", check)
    monkeypatch.setattr(zsq.aio.Producer, "_check_size", check_later)
    url = f"ipc://{tmp_path}"

    async def with_asyncio() -> None:
        async with zsq.aio.Producer(url) as publisher:
            for refused, size in ((Asked, large), (zsq.UsageError, too_large)):
                with pytest.raises(refused):
                    await publisher.publish("a", bytes(size))
            with pytest.raises(Asked):
                await publisher.publish_many("b", [b"x", bytes(large)])

    with zsq.Producer(url) as publisher:
        for refused, size in ((Asked, large), (zsq.UsageError, too_large)):
            with pytest.raises(refused):
                publisher.publish("c", bytes(size))
    asyncio.run(with_asyncio())
    assert asked == [("c", large), ("a", large), ("b", large)]
