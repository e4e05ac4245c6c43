"""Tests of a consumer that backs off as a whole: the cases of the table in docs/channels.md. Each
passes with the blocking and the asyncio consumer, at the in-memory broker and at a real one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest

import zsq
import zsq.aio
from zsq.testing import Namespace

WAIT_S: Final = 30.0
LONG: Final = zsq.Backoff(600, 1800, failures=3)
SHORT: Final = zsq.Backoff(0.05, 0.2, failures=3)


class Running:
    """A consumer whose `run` is under way in a thread. `seen` counts the calls of its handler."""

    def __init__(
        self, kind: str, space: Namespace, handler: Callable[[Any], Any], **options: Any
    ) -> None:
        self.seen: Counter[bytes] = Counter()
        self.attempts: dict[bytes, int] = {}
        self._space = space
        self._handler = handler
        self._changed = threading.Condition()
        self._options = {"signals": False, "on_error": lambda message, error: None, **options}
        self._settings = self._options.pop("settings", {})
        self._close: Callable[[], Any] = lambda: None
        target = self._run_blocking if kind == "blocking" else self._run_asyncio
        self._opened = threading.Event()
        self._thread = threading.Thread(target=target)
        self._thread.start()
        assert self._opened.wait(WAIT_S)

    def _note(self, message: Any) -> None:
        with self._changed:
            self.seen[message.body] += 1
            self.attempts[message.body] = message.attempts
            self._changed.notify_all()

    def _run_blocking(self) -> None:
        def handle(message: zsq.Message) -> Any:
            self._note(message)
            return self._handler(message)

        with self._space.consumer("t", "c", **self._settings) as consumer:
            self._close = consumer.close
            self._opened.set()
            consumer.run(handle, **self._options)

    def _run_asyncio(self) -> None:
        async def handle(message: zsq.aio.Message) -> Any:
            self._note(message)
            result = self._handler(message)
            return await result if asyncio.iscoroutine(result) else result

        async def main() -> None:
            loop, topic = asyncio.get_running_loop(), self._space.topic("t")
            settings = {"url": self._space.url, **self._settings}
            async with zsq.aio.Consumer(topic, "c", **settings) as consumer:
                closing = asyncio.Event()
                self._close = lambda: loop.call_soon_threadsafe(closing.set)
                self._opened.set()

                async def close() -> None:
                    await closing.wait()
                    await consumer.close()

                await asyncio.gather(consumer.run(handle, **self._options), close())

        asyncio.run(main())

    def wait_for(self, done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(done, WAIT_S), dict(self.seen)

    @property
    def calls(self) -> int:
        return sum(self.seen.values())

    def close(self) -> float:
        """Close the consumer, and return how many seconds its `run` took to end."""
        begun_s = time.monotonic()
        self._close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return time.monotonic() - begun_s


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


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


def test_a_requeue_with_a_delay_is_no_failure(kind: str, space: Namespace) -> None:
    publish(space, 20)
    running = Running(kind, space, lambda message: message.requeue(600), backoff=LONG)
    running.wait_for(lambda: len(running.seen) == 20)
    running.close()


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


def test_without_backoff_each_message_is_tried(kind: str, space: Namespace) -> None:
    publish(space, 100)
    running = Running(
        kind, space, fail, backoff=False, settings={"backoff_s": 600, "backoff_max_s": 600}
    )
    running.wait_for(lambda: len(running.seen) == 100)
    running.close()


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
