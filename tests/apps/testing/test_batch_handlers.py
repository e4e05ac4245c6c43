"""Tests of handlers of batches: the cases of the table in docs/consumers.md. Each passes with the
blocking and the asyncio consumer, at the in-memory broker and at a real one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from support.broker import wait_for
from support.running import WAIT_S, Running

import zsq
from zsq.testing import Namespace

AT_ONCE: Final[dict[str, Any]] = {"backoff_s": 0}


def publish(space: Namespace, count: int, size: int = 0) -> list[bytes]:
    bodies = [b"%d" % number + b"x" * size for number in range(count)]
    space.producer().publish_many(space.topic("t"), bodies)
    return bodies


def in_flight(space: Namespace) -> int:
    [channel] = space.admin().stats(space.topic("t"))["topics"][0]["channels"]
    count: int = channel["in_flight_count"]
    return count


def done(space: Namespace) -> bool:
    """Return True if no message of the channel comes any more."""
    with space.consumer("t", "c") as consumer:
        return consumer.receive(0.2) is None


def test_batches_are_full_while_there_are_messages(kind: str, space: Namespace) -> None:
    bodies = publish(space, 1000)
    running = Running(kind, space, lambda batch: None, batch=100, concurrency=4, batch_wait=5)
    running.wait_for(lambda: running.calls == 1000)
    running.close()
    assert running.sizes == [100] * 10
    assert running.seen == Counter(bodies)
    assert done(space)


def test_a_batch_that_is_not_full_is_handled_after_its_wait(kind: str, space: Namespace) -> None:
    publish(space, 7)
    running = Running(kind, space, lambda batch: None, batch=500, batch_wait=0.2)
    running.wait_for(lambda: running.calls == 7)
    running.close()
    assert running.sizes == [7]


def test_a_batch_ends_before_it_becomes_too_large(kind: str, space: Namespace) -> None:
    publish(space, 10, 99)
    running = Running(kind, space, lambda batch: None, batch=500, batch_wait=0.2, batch_bytes=350)
    running.wait_for(lambda: running.calls == 10)
    running.close()
    assert running.sizes == [3, 3, 3, 1]


def test_an_exception_requeues_all_messages_that_are_not_answered(
    kind: str, space: Namespace
) -> None:
    publish(space, 10)
    reported: list[Any] = []

    def handle(batch: Any) -> Any:
        if batch[0].attempts == 1:
            raise ValueError("no")

    options = {"batch": 10, "settings": AT_ONCE, "on_error": lambda *call: reported.append(call)}
    running = Running(kind, space, handle, **options)
    running.wait_for(lambda: running.calls == 20)
    running.close()
    assert set(running.seen.values()) == {2}
    assert [(len(batch), repr(error)) for batch, error in reported] == [(10, "ValueError('no')")]
    assert done(space)


def test_each_message_can_be_answered_alone(kind: str, space: Namespace) -> None:
    publish(space, 6)
    handled = threading.Event()

    def answers(batch: Any) -> list[Any]:
        return [batch[0].finish(), batch[1].requeue(600), batch[2].reject("bad")]

    async def answer_all(batch: Any) -> None:
        for answer in answers(batch):
            await answer

    def handle(batch: Any) -> Any:
        if len(batch) == 6:
            batch.fail(batch[3], "late")
            batch.fail(batch[4], KeyError("k"))
            return answer_all(batch) if kind == "asyncio" else answers(batch) and None
        handled.set()
        return None

    reported: list[Any] = []
    options = {"settings": AT_ONCE, "on_error": lambda *call: reported.append(call)}
    running = Running(kind, space, handle, batch=6, batch_wait=0.3, **options)
    assert handled.wait(WAIT_S)
    running.wait_for(lambda: running.calls == 8)
    running.close()
    assert running.seen == {b"0": 1, b"1": 1, b"2": 1, b"3": 2, b"4": 2, b"5": 1}
    assert [(message.body, repr(error)) for message, error in reported] == [
        (b"3", "MessageFailed('late')"),
        (b"4", "KeyError('k')"),
    ]


def test_halving_finds_the_poison_message(kind: str, space: Namespace) -> None:
    bodies = publish(space, 64)
    reported: list[Any] = []
    handled: list[bytes] = []

    def handle(batch: Any) -> None:
        if b"33" in batch.bodies:
            raise ValueError("poison")
        handled.extend(batch.bodies)

    options = {
        "settings": {"backoff_s": 600, "backoff_max_s": 600},
        "on_error": lambda *call: reported.append(call),
    }
    running = Running(kind, space, handle, batch=64, halving=True, batch_wait=5, **options)
    running.wait_for(lambda: len(running.sizes) == 13)
    running.close()
    assert sorted(handled) == sorted(set(bodies) - {b"33"})
    assert [message.body for message, _ in reported] == [b"33"]
    assert set(running.attempts.values()) == {1}


def test_messages_that_are_gathered_go_back_without_an_attempt(kind: str, space: Namespace) -> None:
    publish(space, 5)
    running = Running(kind, space, lambda batch: None, batch=10, batch_wait=60)
    with space.consumer("t", "c") as other:
        assert other.receive(0.5) is None, "they are gathered"
    assert running.close() < 10, "it does not wait for the batch"
    assert running.sizes == []
    with space.consumer("t", "c") as other:
        messages = [other.receive(WAIT_S) for _ in range(5)]
        assert [message and message.attempts for message in messages] == [1] * 5


def test_a_batch_that_fails_is_one_failure_of_the_backoff(kind: str, space: Namespace) -> None:
    publish(space, 100)

    def handle(batch: Any) -> None:
        raise ValueError

    backoff = zsq.Backoff(600, 1800, failures=3)
    running = Running(kind, space, handle, batch=10, backoff=backoff)
    running.wait_for(lambda: running.calls == 30)
    healthy = Running(kind, space, lambda message: None)
    healthy.wait_for(lambda: healthy.calls >= 70)
    running.close()
    healthy.close()
    assert running.sizes == [10] * 3


def test_a_probe_is_a_batch_of_one_message(kind: str, space: Namespace) -> None:
    publish(space, 100)
    works = threading.Event()

    def handle(batch: Any) -> None:
        if not works.is_set():
            raise ValueError

    backoff = zsq.Backoff(0.05, 0.1, failures=2)
    options = {"batch_wait": 2, "backoff": backoff, "settings": AT_ONCE}
    running = Running(kind, space, handle, batch=10, **options)
    running.wait_for(lambda: len(running.sizes) >= 6)
    assert running.sizes[:6] == [10, 10, 1, 1, 1, 1]
    works.set()
    running.wait_for(lambda: len(running.seen) == 100)
    running.close()


def test_some_messages_that_fail_do_not_stop_the_consumer(kind: str, space: Namespace) -> None:
    publish(space, 100)

    def handle(batch: Any) -> None:
        batch.fail(batch[0], "bad")

    backoff = zsq.Backoff(600, 1800, failures=2)
    settings = {"backoff_s": 600, "backoff_max_s": 600}
    running = Running(kind, space, handle, batch=10, backoff=backoff, settings=settings)
    running.wait_for(lambda: len(running.seen) == 100)
    running.close()
    assert running.calls == 100


def test_an_ordered_channel_gives_each_key_once_in_a_batch(kind: str, space: Namespace) -> None:
    bodies = [b"%d" % number for number in range(30)]
    keys = [str(number % 3) for number in range(30)]
    space.producer().publish_many(space.topic("t"), bodies, keys=keys)
    order: list[bytes] = []
    running = Running(
        kind, space, lambda batch: order.extend(batch.bodies), batch=10, batch_wait=0.05,
        settings={"ordered": True},
    )  # fmt: skip
    running.wait_for(lambda: running.calls == 30)
    running.close()
    assert max(running.sizes) <= 3
    for key in range(3):
        mine = [int(body) for body in order if int(body) % 3 == key]
        assert mine == sorted(mine)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch must be 1 to"),
        ({"batch": 5, "batch_wait": -1}, "batch_wait must be"),
        ({"halving": True}, "halving needs batch"),
    ],
)
def test_wrong_arguments_are_refused_before_a_message_is_taken(
    space: Namespace, options: Any, text: str
) -> None:
    with space.consumer("t", "c") as consumer, pytest.raises(zsq.UsageError, match=text):
        consumer.run(lambda batch: None, **options)


def failing_until(gathered: threading.Event, kind: str) -> Callable[[Any], Any]:
    """Return a handler that waits for this event and fails, and succeeds from then on."""

    def work(*, fails: bool) -> None:
        if fails:
            assert gathered.wait(WAIT_S)
            raise ValueError("no")

    def handle(batch: Any) -> Any:
        # Not decided in the thread, which may begin after the event.
        fails = not gathered.is_set()
        return asyncio.to_thread(work, fails=fails) if kind == "asyncio" else work(fails=fails)

    return handle


@pytest.mark.parametrize("space", ["real"], indirect=True)
def test_a_failure_while_a_batch_is_gathered_gives_it_back_at_once(
    kind: str, space: Namespace
) -> None:
    publish(space, 3)
    gathered = threading.Event()
    handle = failing_until(gathered, kind)
    options = {"batch_wait": 600, "backoff": zsq.Backoff(600, 1800, failures=1)}
    running = Running(kind, space, handle, batch=2, concurrency=2, **options)
    running.wait_for(lambda: running.calls == 2)
    wait_for(lambda: in_flight(space) == 3, what="a message that waits for its batch")
    gathered.set()
    with space.consumer("t", "c") as other:
        message = other.receive(WAIT_S)
        assert message is not None
        assert (message.body, message.attempts) == (b"2", 1), "given back without an attempt"
    running.close()


@pytest.mark.parametrize("space", ["real"], indirect=True)
def test_a_consumer_goes_on_after_a_failure_while_a_batch_was_gathered(
    kind: str, space: Namespace
) -> None:
    publish(space, 3)
    gathered = threading.Event()
    handle = failing_until(gathered, kind)
    options = {"batch_wait": 5, "backoff": zsq.Backoff(0.05, 0.2, failures=1), "settings": AT_ONCE}
    running = Running(kind, space, handle, batch=2, concurrency=2, **options)
    running.wait_for(lambda: running.calls == 2)
    wait_for(lambda: in_flight(space) == 3, what="a message that waits for its batch")
    gathered.set()
    running.wait_for(lambda: running.seen == Counter({b"0": 2, b"1": 2, b"2": 1}))
    running.close()
    assert done(space)


def test_an_error_after_all_messages_are_answered_is_reported(kind: str, space: Namespace) -> None:
    publish(space, 3)
    reported: list[Any] = []

    def handle(batch: Any) -> Any:
        async def finish_all() -> None:
            for message in batch:
                await message.finish()
            raise ValueError("too late")

        if kind == "asyncio":
            return finish_all()
        for message in batch:
            message.finish()
        raise ValueError("too late")

    options = {"batch": 3, "on_error": lambda *call: reported.append(call)}
    running = Running(kind, space, handle, **options)
    running.wait_for(lambda: running.calls == 3)
    running.close()
    assert [(len(batch), repr(error)) for batch, error in reported] == [
        (3, "ValueError('too late')")
    ]
    assert done(space)


def test_a_batch_that_raises_after_a_message_was_finished_is_no_failure_of_everything(
    kind: str, space: Namespace
) -> None:
    publish(space, 20)

    def handle(batch: Any) -> Any:
        async def finish_first() -> None:
            await batch[0].finish()
            raise ValueError("no")

        if kind == "asyncio":
            return finish_first()
        batch[0].finish()
        raise ValueError("no")

    options = {"backoff": zsq.Backoff(600, 1800, failures=1), "settings": AT_ONCE}
    running = Running(kind, space, handle, batch=10, **options)
    running.wait_for(lambda: len(running.sizes) >= 20)
    running.close()
    assert done(space)
