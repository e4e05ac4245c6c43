"""Tests of a consumer that backs off as a whole: the cases of the table in docs/consumers.md. Each
passes with the blocking and the asyncio consumer, at the in-memory broker and at a real one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any, Final

import pytest
from support.running import Running

import zsq
import zsq.aio
from zsq.testing import Namespace
from zsq.transport.client.core.consumer_backoff import ConsumerBackoff, Outcome

LONG: Final = zsq.Backoff(600, 1800, failures=3)
SHORT: Final = zsq.Backoff(0.05, 0.2, failures=3)


def fail(message: Any) -> None:
    raise ValueError("the database is down")


def publish(space: Namespace, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    space.producer().publish_many(space.topic("t"), bodies)
    return bodies


def test_after_failures_in_a_row_other_consumers_get_the_messages(
    kind: str, space: Namespace
) -> None:
    bodies = publish(space, 200)
    failing = Running(kind, space, fail, backoff=LONG, settings={"ready": 100})
    failing.wait_for(lambda: failing.calls == 3)
    healthy = Running(kind, space, lambda message: None)
    untouched = [body for body in bodies if body not in failing.seen]
    healthy.wait_for(lambda: all(body in healthy.seen for body in untouched))
    assert failing.calls == 3, "it rests"
    assert {healthy.attempts[body] for body in untouched} == {1}, "given back without an attempt"
    assert failing.close() < 10, "close does not wait for the probe"
    healthy.close()


def test_the_threads_or_tasks_of_one_consumer_share_one_backoff(
    kind: str, space: Namespace
) -> None:
    publish(space, 100)
    failing = Running(kind, space, fail, backoff=LONG, concurrency=4)
    failing.wait_for(lambda: failing.calls >= 3)
    healthy = Running(kind, space, lambda message: None)
    healthy.wait_for(lambda: healthy.calls >= 90)
    assert failing.calls <= 6, "those that had begun may fail too"
    failing.close()
    healthy.close()


def test_a_probe_is_one_message_and_the_consumer_goes_on_when_it_succeeds(
    kind: str, space: Namespace
) -> None:
    publish(space, 50)
    works, probes = threading.Event(), []

    def handle(message: Any) -> None:
        if not works.is_set():
            probes.append(time.monotonic())
            raise ValueError

    running = Running(kind, space, handle, backoff=SHORT, concurrency=4, settings={"backoff_s": 0})
    running.wait_for(lambda: len(probes) >= 10)
    late = probes[-4:]
    waits = [second - first for first, second in pairwise(late)]
    assert min(waits) > 0.15, "one handler at a time, after the longest wait"
    works.set()
    running.wait_for(lambda: len(running.seen) == 50)
    assert running.close() < 10


def test_one_bad_message_does_not_stop_the_others(kind: str, space: Namespace) -> None:
    bodies = publish(space, 50)

    def handle(message: Any) -> None:
        if message.body == b"0":
            raise ValueError

    running = Running(kind, space, handle, backoff=LONG, settings={"backoff_s": 0})
    running.wait_for(lambda: len(running.seen) == len(bodies))
    running.close()
    assert {running.seen[body] for body in bodies if body != b"0"} == {1}


def test_a_requeue_with_a_delay_is_no_failure(kind: str, space: Namespace) -> None:
    publish(space, 20)
    running = Running(kind, space, lambda message: message.requeue(600), backoff=LONG)
    running.wait_for(lambda: len(running.seen) == 20)
    running.close()
    assert running.calls == 20


def test_a_requeue_with_backoff_is_a_failure(kind: str, space: Namespace) -> None:
    publish(space, 20)
    running = Running(kind, space, lambda message: message.requeue(backoff=True), backoff=LONG)
    running.wait_for(lambda: running.calls == 3)
    healthy = Running(kind, space, lambda message: None)
    healthy.wait_for(lambda: healthy.calls >= 17)
    assert running.calls == 3
    running.close()
    healthy.close()


def test_a_rejected_message_is_no_failure(kind: str, space: Namespace) -> None:
    publish(space, 20)
    running = Running(kind, space, lambda message: message.reject("bad"), backoff=LONG)
    running.wait_for(lambda: len(running.seen) == 20)
    running.close()
    assert running.calls == 20


def test_without_backoff_each_message_is_tried(kind: str, space: Namespace) -> None:
    publish(space, 100)
    running = Running(
        kind, space, fail, backoff=False, settings={"backoff_s": 600, "backoff_max_s": 600}
    )
    running.wait_for(lambda: len(running.seen) == 100)
    running.close()
    assert running.calls == 100


def test_an_ordered_channel_keeps_its_order_through_a_backoff(kind: str, space: Namespace) -> None:
    bodies = [b"%d" % number for number in range(20)]
    space.producer().publish_many(space.topic("t"), bodies, keys=["k"] * 20)
    works, handled = threading.Event(), []

    def handle(message: Any) -> None:
        if message.body == b"5" and not works.is_set():
            if message.attempts == 4:
                works.set()
            raise ValueError
        handled.append(message.body)

    running = Running(
        kind, space, handle, backoff=SHORT, settings={"ordered": True, "backoff_s": 0}
    )
    running.wait_for(lambda: len(running.seen) == 20)
    running.close()
    assert handled == bodies


@pytest.mark.parametrize("method", ["receive", "receive_batch"])
def test_a_probe_that_the_program_receives_itself_is_followed_by_another_one(
    kind: str, space: Namespace, method: str
) -> None:
    """A handler may call these methods, and nobody learns the outcome of what they return."""
    publish(space, 3)
    backoff = ConsumerBackoff(zsq.Backoff(0.05, 0.2, failures=1))

    def back_off(consumer: Any) -> None:
        consumer._drive().engine.back_off_with(backoff)
        consumer._note_outcome(backoff.ticket, Outcome.FAILURE)

    async def receive() -> None:
        async with zsq.aio.Consumer(space.topic("t"), "c", url=space.url) as consumer:
            back_off(consumer)
            for _ in range(3):
                assert await getattr(consumer, method)(5) is not None

    if kind == "asyncio":
        asyncio.run(receive())
        return
    with space.consumer("t", "c") as consumer:
        back_off(consumer)
        for _ in range(3):
            assert getattr(consumer, method)(5) is not None
