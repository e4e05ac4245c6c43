"""Tests of pauses after refusals: no client asks again at once. They use a simulated clock, and a
fake broker that refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import zsq
from zsq.transport.client.core.requester import BACKOFFS_MAX, RequestEngine
from zsq.transport.client.link.refusal_pause import (
    MS,
    REFUSED_FORGOTTEN_MS,
    REFUSED_MS,
    REFUSED_MS_MAX,
    RefusalPause,
)
from zsq.transport.errors import (
    E_CLOSED,
    E_DISK_FULL,
    E_LIMIT,
    E_NOT_FOUND,
    E_TOPIC_FAILED,
    NotFound,
    Refused,
)
from zsq.transport.wire import protocol as p
from zsq.transport.wire.address import Target, parse

Broker = Any
TRIED_S = 1.0
# The most tries in a second with pauses of 10, 20, 40 ms and so on, with jitter. Without pauses
# there would be thousands.
TRIES_MAX = 20


def test_each_refusal_doubles_the_pause_up_to_a_second() -> None:
    backoff, now, pauses = RefusalPause(), 0, []
    for _ in range(12):
        backoff.refused(now)
        pauses.append((backoff.until_ns - now) / MS)
        backoff.refused(now)  # the client asked before the pause began, so this changes nothing
        assert backoff.until_ns == now + round(pauses[-1] * MS)
        now = backoff.until_ns
    for number, pause in enumerate(pauses):
        longest = min(REFUSED_MS_MAX, REFUSED_MS << number)
        assert longest / 2 <= pause <= longest
    assert len({*pauses}) > 6, "no jitter: all clients come back at the same instant"
    backoff.ended()
    assert backoff.until_ns == 0
    backoff.refused(now)
    assert backoff.until_ns <= now + REFUSED_MS * MS


def test_a_refusal_long_after_the_last_one_is_the_first_again() -> None:
    backoff, now = RefusalPause(), 0
    for _ in range(10):
        backoff.refused(now)
        now = backoff.until_ns
    later = now + (REFUSED_FORGOTTEN_MS + 1) * MS
    backoff.refused(later)
    assert backoff.until_ns <= later + REFUSED_MS * MS


def tries(call: Callable[[], object], kind: type[Exception] = Refused) -> int:
    """Return how often a program that tries again at once is refused within a second."""
    found = 0
    end = time.monotonic() + TRIED_S
    while time.monotonic() < end:
        with pytest.raises(kind):
            call()
        found += 1
    return found


def pausing(broker: Broker, kind: type[p.Wire], call: Callable[[], object]) -> None:
    before = broker.count(kind)
    found = tries(call)
    assert 2 <= found <= TRIES_MAX
    assert 0 < broker.count(kind) - before <= TRIES_MAX


@pytest.mark.parametrize("code", [E_TOPIC_FAILED, E_LIMIT])
def test_a_refused_lookup_is_not_repeated_at_once(code: str, broker: Broker) -> None:
    broker.lookup_error = (code, "no descriptors")
    with zsq.Producer(broker.url) as producer:
        pausing(broker, p.Lookup, lambda: producer.publish("t", b"body"))
    with zsq.Reader("t", url=broker.url) as reader:
        pausing(broker, p.Lookup, reader.bounds)
    consumer = zsq.Consumer("t", "c", url=broker.url)
    pausing(broker, p.Lookup, consumer.receive)
    consumer.close()


def test_a_refused_lookup_is_not_repeated_at_once_with_asyncio(broker: Broker) -> None:
    broker.lookup_error = (E_TOPIC_FAILED, "no descriptors")

    async def main() -> None:
        producer, reader = zsq.aio.Producer(broker.url), zsq.aio.Reader("t", url=broker.url)
        consumer = zsq.aio.Consumer("t", "c", url=broker.url)
        calls: list[Callable[[], Any]] = [
            lambda: producer.publish("t", b"body"),
            reader.bounds,
            consumer.receive,
        ]
        for call in calls:
            before, found, end = broker.count(p.Lookup), 0, time.monotonic() + TRIED_S
            while time.monotonic() < end:
                with pytest.raises(Refused):
                    await call()
                found += 1
            assert 2 <= found <= TRIES_MAX
            assert broker.count(p.Lookup) - before <= TRIES_MAX
        for client in (producer, reader, consumer):
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", [E_DISK_FULL, E_TOPIC_FAILED, E_CLOSED])
def test_a_refused_block_is_not_followed_by_the_next_at_once(code: str, broker: Broker) -> None:
    broker.refuse.extend([code] * 10_000)
    with zsq.Producer(broker.url) as producer:
        pausing(broker, p.Pub, lambda: producer.publish("t", b"body"))
        broker.refuse.clear()
        began = time.monotonic()
        assert producer.publish("t", b"after").offset == 0
        assert time.monotonic() - began < 2, "served again within 2 s of the cause's end"


def test_a_stream_of_blocks_is_not_poured_into_a_topic_that_refuses(broker: Broker) -> None:
    broker.refuse.extend([E_TOPIC_FAILED] * 100_000)
    with zsq.Producer(broker.url) as producer:
        end = time.monotonic() + TRIED_S
        receipts = []
        while time.monotonic() < end:
            receipts.append(producer.publish_many("t", [b"x" * 1000] * 100, wait=False))
            receipts = [one for one in receipts if not one.done][-100:]
            if len(receipts) == 100:
                with pytest.raises(Refused):
                    receipts[0].wait()
        assert broker.count(p.Lookup) <= TRIES_MAX
        broker.refuse.clear()
        with contextlib.suppress(Refused):  # an earlier refusal may not have been reported yet
            producer.flush()


@pytest.mark.parametrize("code", [E_TOPIC_FAILED, E_LIMIT])
def test_a_refused_request_is_not_repeated_at_once(code: str, broker: Broker) -> None:
    broker.on_manage = lambda _, message, __: (
        p.Failed(message.request, code, "not now")
        if message.topic == "sick"
        else p.Done(message.request, {})
    )
    with zsq.Admin(broker.url) as admin:
        pausing(broker, p.Manage, lambda: admin.pause("sick"))
        began = time.monotonic()
        for _ in range(50):
            admin.pause("healthy")
        assert time.monotonic() - began < 5, "a topic in trouble does not hold up the others"


def test_an_answer_that_blames_the_call_brings_no_pause(broker: Broker) -> None:
    """A program that waits for a topic to be created may ask as often as it wants."""
    broker.on_manage = lambda _, message, __: p.Failed(
        message.request, E_NOT_FOUND, "no such topic"
    )
    with zsq.Admin(broker.url) as admin:
        assert tries(lambda: admin.pause("absent"), NotFound) > 2 * TRIES_MAX


def test_the_number_of_remembered_refusals_is_bounded() -> None:
    engine = RequestEngine(parse("ipc:///nowhere"), Target("supervisor"))
    for number in range(BACKOFFS_MAX + 100):
        engine.ask(number, p.Stats(number, f"t{number}", ""), repeatable=True)
        engine.on_word(p.Failed(number, E_LIMIT, "full"), [], 0)
    assert len(engine._backoffs) == BACKOFFS_MAX
    engine.stop()
