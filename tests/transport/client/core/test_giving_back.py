"""Tests of messages that are given back: with a delay, with a reason, or as dead letters, with the
blocking and the asyncio consumer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.broker import wait_for

import zsq
import zsq.aio
from zsq.transport.client.core.message import as_error, when_again
from zsq.transport.errors import UsageError
from zsq.transport.wire import protocol as p

Broker = Any


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("not even that")


def told(broker: Broker) -> list[tuple[tuple[p.Range, ...], int, str]]:
    return [
        (message.ranges, message.delay_ms, message.error)
        for message in broker.heard
        if type(message) is p.Req
    ]


def heard(broker: Broker, expected: list[tuple[tuple[p.Range, ...], int, str]]) -> None:
    """Wait for the last messages of a consumer: they arrive shortly after it has left."""
    wait_for(lambda: len(told(broker)) >= len(expected), 20, "what the consumer said")
    assert told(broker) == expected


def put(broker: Broker, count: int) -> None:
    broker.call(lambda: broker.put(*(b"%d" % i for i in range(count))))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("", ""),
        ("why", "why"),
        (ValueError("x"), "ValueError('x')"),
        ("a" * 512, "a" * 512),
        ("a" * 513, "a" * 509 + "..."),
        ("\udcff", "\\udcff"),
        ("\udcff" * 512, ("\\udcff" * 86)[:512]),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_reasons_are_texts_that_can_be_sent(error: Any, text: str) -> None:
    assert as_error(error) == text


def test_a_reason_is_a_text_or_an_exception() -> None:
    with pytest.raises(UsageError, match="error must be a text or an exception, not int"):
        as_error(5)  # type: ignore[arg-type]


def test_a_delay_is_taken_in_milliseconds_within_its_limits() -> None:
    assert [
        when_again(0, False),
        when_again(1.5, False),
        when_again(3600, False),
        when_again(0, True),
    ] == [0, 1500, 3_600_000, p.BACKOFF]
    for delay in (-0.1, 366 * 86_400.1, float("nan")):
        with pytest.raises(UsageError, match="must be 0 to 31622400 s"):
            when_again(delay, False)
    with pytest.raises(UsageError, match="not both"):
        when_again(1, True)


def test_messages_and_batches_say_when_and_why(broker: Broker) -> None:
    put(broker, 6)
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        batch = consumer.receive_batch()
        assert batch is not None
        messages = batch.messages()
        messages[0].requeue(2, error="later")
        messages[1].requeue(backoff=True, error=KeyError("k"))
        messages[2].reject("never")
        messages[3].reject()
        with pytest.raises(zsq.UsageError, match="already answered"):
            messages[3].requeue()
        with pytest.raises(zsq.UsageError):
            messages[4].reject(7)  # type: ignore[arg-type]
        assert not messages[4].answered, "it may still be answered"
        batch.reject(ValueError("all"))
    heard(
        broker,
        [
            (((0, 1),), 2000, "later"),
            (((1, 1),), p.BACKOFF, "KeyError('k')"),
            (((2, 1),), p.DEAD, "never"),
            (((3, 1),), p.DEAD, ""),
            (((4, 2),), p.DEAD, "ValueError('all')"),
        ],
    )


def test_a_batch_whose_body_raises_says_what(broker: Broker) -> None:
    put(broker, 2)
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        batch = consumer.receive_batch()
        assert batch is not None
        with pytest.raises(ZeroDivisionError), batch:
            1 / 0  # noqa: B018
    heard(broker, [((), 0, "ZeroDivisionError('division by zero')")])


@pytest.mark.parametrize(
    ("delay", "sent"),
    [(None, p.BACKOFF), (0.25, 250), (lambda message: message.attempts + 1, 2000)],
)
def test_run_requeues_with_the_channels_backoff_and_the_exception(
    broker: Broker, delay: Any, sent: int
) -> None:
    put(broker, 3)
    consumer = zsq.Consumer("t", "c", url=broker.url, ready=3)

    def handle(message: zsq.Message) -> None:
        if message.offset == 2:
            consumer._stop_taking()
        elif message.offset == 1:
            message.reject("bad")
            raise RuntimeError("after its answer")
        else:
            raise RuntimeError("no")

    consumer.run(handle, requeue_delay=delay, on_error=lambda message, error: None)
    heard(broker, [(((0, 1),), sent, "RuntimeError('no')"), (((1, 1),), p.DEAD, "bad")])


@pytest.mark.parametrize(("delay", "sent"), [(None, p.BACKOFF), (0.25, 250)])
def test_asyncio_requeues_send_the_same_delays_and_errors(
    broker: Broker, delay: Any, sent: int
) -> None:
    put(broker, 6)

    async def main() -> None:
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        batch = await consumer.receive_batch(5)
        assert batch is not None
        messages = batch.messages()
        await messages[0].requeue(2, error="later")
        await messages[1].requeue(backoff=True, error=KeyError("k"))
        await messages[2].reject("never")
        with pytest.raises(zsq.UsageError, match="already answered"):
            await messages[2].reject()
        await messages[3].finish()
        await batch.reject(ValueError("all"))

        async def handle(message: zsq.aio.Message) -> None:
            consumer._stop_taking()
            raise RuntimeError("no")

        broker.call(lambda: broker.put(b"x"))
        await consumer.run(handle, requeue_delay=delay, on_error=lambda message, error: None)

    asyncio.run(main())
    heard(
        broker,
        [
            (((0, 1),), 2000, "later"),
            (((1, 1),), p.BACKOFF, "KeyError('k')"),
            (((2, 1),), p.DEAD, "never"),
            (((4, 2),), p.DEAD, "ValueError('all')"),
            ((), sent, "RuntimeError('no')"),
        ],
    )
