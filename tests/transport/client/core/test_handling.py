"""Tests of what `Consumer.run` refuses as a handler, of the delays that a callback returns, and of
handlers that are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import zsq
import zsq.aio
from zsq.transport.wire import protocol as p

Broker = Any
LONGEST_MS = 366 * 86_400_000


def generator(message: Any, more: int = 0) -> Iterator[int]:
    yield 1


async def async_generator(message: Any) -> AsyncIterator[int]:
    yield 1


async def coroutine(message: Any, more: Any = None) -> None:
    raise AssertionError("never called")


class Generating:
    def __call__(self, message: Any) -> Iterator[int]:
        yield 1

    def method(self, message: Any) -> Iterator[int]:
        yield 1


GENERATORS = [generator, async_generator, Generating(), Generating().method, partial(generator)]


def put(broker: Broker, count: int) -> None:
    broker.call(lambda: broker.put(*(b"%d" % i for i in range(count))))


@pytest.mark.parametrize("handler", GENERATORS)
def test_a_generator_function_is_no_handler(broker: Broker, handler: Any) -> None:
    put(broker, 1)

    async def main() -> None:
        async with zsq.aio.Consumer("t", "c", url=broker.url) as consumer:
            with pytest.raises(zsq.UsageError, match="must be a coroutine function"):
                await consumer.run(handler)

    with (
        zsq.Consumer("t", "c", url=broker.url) as consumer,
        pytest.raises(zsq.UsageError, match=r"is a generator function: .* runs nothing"),
    ):
        consumer.run(handler)
    asyncio.run(main())
    assert (broker.finished, broker.requeued) == ([], [])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_error": coroutine}, "on_error must be a plain function; .* a coroutine"),
        ({"on_error": generator}, "on_error must be a plain function; .* a generator"),
        ({"requeue_delay": coroutine}, "requeue_delay must be a plain function"),
        ({"requeue_delay": 1e9}, "must be 0 to 31622400 s"),
        ({"requeue_delay": "soon"}, "must be a number of seconds or a timedelta, not 'soon'"),
    ],
)
def test_callbacks_that_would_not_run_are_refused(
    broker: Broker, options: dict[str, Any], text: str
) -> None:
    put(broker, 1)
    consumer = zsq.Consumer("t", "c", url=broker.url)
    with pytest.raises(zsq.UsageError, match=text):
        consumer.run(print, **options)
    consumer.close()
    assert broker.finished == []


@pytest.mark.parametrize(
    "delay",
    [lambda message: 2.0**26, lambda message: math.inf, lambda message: timedelta(days=367)],
)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_returned_delay_above_the_longest_counts_as_the_longest(
    broker: Broker, delay: Callable[[Any], Any], concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, 3)
    consumer = zsq.Consumer("t", "c", url=broker.url)
    failed: list[int] = []

    def handle(message: zsq.Message) -> None:
        failed.append(message.offset)
        if len(failed) == 3:
            consumer.close()
        raise RuntimeError("no")

    with caplog.at_level(logging.WARNING, "zsq"):
        consumer.run(handle, concurrency=concurrency, requeue_delay=delay, on_error=lambda *_: None)
    broker.wait_for(lambda: sum(row.delay_ms == LONGEST_MS for row in requeues(broker)) == 3)
    assert caplog.text.count("the longest delay is 31622400 s") == 1


def requeues(broker: Broker) -> list[p.Req]:
    return [message for message in broker.heard if type(message) is p.Req and message.error]


@pytest.mark.parametrize("delay", [math.nan, -1, None, "soon"])
def test_a_returned_value_that_is_no_delay_means_the_backoff(broker: Broker, delay: Any) -> None:
    put(broker, 1)
    consumer = zsq.Consumer("t", "c", url=broker.url)

    def handle(message: zsq.Message) -> None:
        consumer.close()
        raise RuntimeError("no")

    consumer.run(handle, requeue_delay=lambda message: delay)
    broker.wait_for(lambda: [row.delay_ms for row in requeues(broker)] == [p.BACKOFF])


# Cancellation


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cancelled_handler_is_a_failure_of_its_message(broker: Broker, concurrency: int) -> None:
    """It was cancelled by itself, by a task that it awaited, or by another task."""
    put(broker, 4)
    errors: list[BaseException] = []
    seen: list[int] = []

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)

        async def handle(message: zsq.aio.Message) -> None:
            seen.append(message.offset)
            if len(seen) == 8:
                await consumer.close()
            if seen.count(message.offset) > 1:
                return
            current = asyncio.current_task()
            assert current is not None
            match message.offset:
                case 0:
                    current.cancel()
                case 1:
                    raise asyncio.CancelledError
                case 2:
                    other = asyncio.ensure_future(asyncio.Event().wait())
                    other.cancel()
                    await other
                case 3:
                    asyncio.get_running_loop().call_soon(current.cancel)
            await asyncio.Event().wait()

        await consumer.run(
            handle,
            concurrency=concurrency,
            requeue_delay=0,
            on_error=lambda message, error: errors.append(error),
        )

    asyncio.run(asyncio.wait_for(main(), 60))
    assert [type(error) for error in errors] == [asyncio.CancelledError] * 4
    broker.wait_for(lambda: sorted(broker.finished) == [0, 1, 2, 3])


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cancelled_run_ends_and_its_messages_are_returned(
    broker: Broker, concurrency: int
) -> None:
    """A task that was cancelled while no message arrived takes the next one."""
    errors: list[BaseException] = []

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        begun = asyncio.Event()

        async def handle(message: zsq.aio.Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        me = asyncio.current_task()
        running = asyncio.create_task(
            consumer.run(
                handle,
                concurrency=concurrency,
                on_error=lambda message, error: errors.append(error),
            )
        )
        await consumer.subscribe()
        for task in asyncio.all_tasks() - {me, running}:
            task.cancel()
        put(broker, 1)
        await asyncio.wait_for(begun.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {me}, "no task is left"

    asyncio.run(main())
    assert (errors, broker.finished) == ([], [])
    broker.wait_for(lambda: broker.count(p.Bye) == 1)


def test_an_asyncio_on_error_may_be_cancelled_or_fail(broker: Broker) -> None:
    put(broker, 2)
    seen: list[int] = []

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)

        async def handle(message: zsq.aio.Message) -> None:
            seen.append(message.offset)
            if len(seen) == 4:
                await consumer.close()
            if seen.count(message.offset) == 1:
                raise RuntimeError("no")

        async def on_error(message: zsq.aio.Message, error: BaseException) -> None:
            current = asyncio.current_task()
            assert current is not None
            if message.offset:
                current.cancel()
                await asyncio.Event().wait()
            raise SystemExit

        await consumer.run(handle, requeue_delay=0, on_error=on_error)

    asyncio.run(asyncio.wait_for(main(), 60))
    broker.wait_for(lambda: sorted(broker.finished) == [0, 1])
