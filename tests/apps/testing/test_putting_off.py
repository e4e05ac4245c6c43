"""Tests of messages that are put off, and of retry policies: the cases of the tables in
docs/retries.md. Each passes with the blocking and the asyncio consumer, at the in-memory broker
and at a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
from support.running import WAIT_S, Running

import zsq
from zsq.testing import Namespace

FAR: Final[dict[str, Any]] = {"backoff_s": 3_000, "backoff_max_s": 3_000}
STRICT: Final = zsq.Backoff(600, 1800, failures=1)
"""With this backoff, a consumer takes no second message after a failure."""


def publish(space: Namespace, count: int, **options: Any) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    space.producer().publish_many(space.topic("t"), bodies, **options)
    return bodies


def raising(error: BaseException, failed: Callable[[Any], bool] = lambda message: True) -> Any:
    def handle(message: Any) -> None:
        if failed(message):
            raise error

    return handle


def in_turn(kind: str, *calls: Callable[[], Any]) -> Any:
    """Return what a handler returns that makes these calls, and awaits their results."""
    if kind == "blocking":
        return [call() for call in calls] and None

    async def wait() -> None:
        for call in calls:
            await call()

    return wait()


def received(space: Namespace, timeout: float = WAIT_S) -> zsq.Message | None:
    with space.consumer("t", "c") as consumer:
        message = consumer.receive(timeout)
        if message is not None:
            message.finish(sync=True)
        return message


@pytest.mark.parametrize("how", ["raise", "defer", "until", "group"])
def test_it_comes_again_with_the_same_attempt_and_is_no_failure(
    kind: str, space: Namespace, how: str
) -> None:
    publish(space, 3)
    errors: list[Any] = []
    until = datetime.now(UTC) + timedelta(seconds=600)

    def handle(message: Any) -> Any:
        if how == "raise":
            raise zsq.RetryAfter(600)
        if how == "group":
            raise ExceptionGroup("tasks", [zsq.RetryAfter(1), zsq.RetryAfter(600)])
        if how == "defer":
            return in_turn(kind, lambda: message.defer(timedelta(minutes=10)))
        return in_turn(kind, lambda: message.defer(until=until))

    options = {"on_error": lambda *call: errors.append(call), "backoff": STRICT}
    running = Running(kind, space, handle, **options, settings={"max_attempts": 1})
    running.wait_for(lambda: len(running.seen) == 3)
    running.close()
    assert (errors, running.calls) == ([], 3)
    space.advance(500)
    assert received(space, 0.3) is None
    space.advance(101)
    message = received(space)
    assert message is not None
    assert message.attempts == 1


def test_without_a_time_it_goes_back_at_once(kind: str, space: Namespace) -> None:
    publish(space, 1)
    running = Running(
        kind,
        space,
        lambda message: in_turn(kind, message.defer) if running.calls < 5 else None,
        settings={"max_attempts": 1},
    )
    running.wait_for(lambda: running.calls == 5)
    running.close()
    assert running.attempts == {b"0": 1}


def test_the_age_ends_a_message_that_is_put_off_for_ever(kind: str, space: Namespace) -> None:
    publish(space, 1)
    running = Running(kind, space, raising(zsq.RetryAfter(600)), settings={"max_age_s": 1_000})
    running.wait_for(lambda: running.calls == 1)
    space.advance(601)
    running.wait_for(lambda: running.calls == 2)
    space.advance(601)
    publish(space, 1)
    running.wait_for(lambda: running.calls == 3)
    assert running.close() < 10
    assert running.attempts == {b"0": 1}


def test_a_wrong_delay_is_a_failure(kind: str, space: Namespace) -> None:
    publish(space, 1)
    errors: list[BaseException] = []

    def handle(message: Any) -> Any:
        raise zsq.RetryAfter(-1)

    options = {"on_error": lambda message, error: errors.append(error), "settings": FAR}
    running = Running(kind, space, handle, **options)
    running.wait_for(lambda: bool(errors))
    running.close()
    assert isinstance(errors[0], zsq.UsageError)


def test_another_exception_in_a_group_is_a_failure(kind: str, space: Namespace) -> None:
    publish(space, 1)
    error = ExceptionGroup("tasks", [zsq.RetryAfter(1), ValueError("no")])
    running = Running(kind, space, raising(error), settings=FAR)
    running.wait_for(lambda: running.calls == 1)
    running.close()
    space.advance(3_001)
    message = received(space)
    assert message is not None
    assert message.attempts == 2


def test_a_handler_that_returns_it_ends_run(space: Namespace) -> None:
    publish(space, 1)
    with (
        space.consumer("t", "c") as consumer,
        pytest.raises(zsq.UsageError, match="returned a RetryAfter; raise it"),
    ):
        consumer.run(lambda message: zsq.RetryAfter(5))
    message = received(space)
    assert message is not None
    assert message.attempts == 2


def test_a_batch_is_put_off_as_a_whole_or_in_part(kind: str, space: Namespace) -> None:
    publish(space, 6)
    done = threading.Event()
    errors: list[Any] = []

    def handle(batch: Any) -> None:
        if len(batch) == 6:
            batch.fail(batch[0], zsq.RetryAfter(600))
            batch.fail(batch[1], zsq.RetryAfter(0))
            batch.fail(batch[2], zsq.RetryAfter(0))
        elif not done.is_set():
            done.set()
            raise zsq.RetryAfter(600)

    options = {"batch": 6, "batch_wait": 0.3, "halving": True, "backoff": STRICT}
    running = Running(
        kind, space, handle, **options, on_error=lambda *call: errors.append(call), settings=FAR
    )
    assert done.wait(WAIT_S)
    space.publish("t", b"more")
    running.wait_for(lambda: running.seen[b"more"] == 1)  # it does not back off
    running.close()
    assert (running.sizes, errors) == ([6, 2, 1], [])
    space.advance(601)
    back = [received(space) for _ in range(3)]
    assert sorted(message.body for message in back if message) == [b"0", b"1", b"2"]
    assert {message.attempts for message in back if message} == {1}
    assert received(space, 0.2) is None


def test_a_key_waits_for_its_message_that_is_put_off(kind: str, space: Namespace) -> None:
    publish(space, 4, keys=["k"] * 4)
    first = raising(zsq.RetryAfter(600), lambda message: message.body == b"0" and not later)
    later: list[bool] = []
    running = Running(kind, space, first, settings={"ordered": True})
    running.wait_for(lambda: running.calls == 1)
    later.append(True)
    space.advance(500)
    assert received(space, 0.3) is None
    space.advance(101)
    running.wait_for(lambda: running.calls == 5)
    running.close()
    assert list(running.seen) == [b"0", b"1", b"2", b"3"]


def test_a_seek_forgets_the_delay(kind: str, space: Namespace) -> None:
    publish(space, 1)
    running = Running(kind, space, raising(zsq.RetryAfter(600)))
    running.wait_for(lambda: running.calls == 1)
    running.close()
    space.admin().seek(space.topic("t"), "c", "earliest")
    assert received(space) is not None
    assert received(space, 0.2) is None


# Retry policies


def _called(running: Running, calls: int) -> bool:
    return running.calls == calls


def test_the_channel_waits_as_its_curve_says(space: Namespace) -> None:
    publish(space, 1)
    consumer = space.consumer("t", "c", backoff_curve="100s,1000s")
    for delay_s in (100, 1_000, 1_000):
        message = consumer.receive(WAIT_S)
        assert message is not None
        message.requeue(backoff=True)
        space.advance(delay_s - 10)
        assert consumer.receive(0.2) is None
        space.advance(10)
    assert consumer.receive(WAIT_S) is not None


def test_the_policy_of_run_replaces_that_of_the_channel(kind: str, space: Namespace) -> None:
    publish(space, 1)
    retries = zsq.Retries(max_attempts=3, curve=[300, 600], jitter=100)
    fail = raising(ValueError("no"))
    running = Running(kind, space, fail, retries=retries, settings=FAR | {"max_attempts": 9})
    for calls in (1, 2, 3):
        running.wait_for(partial(_called, running, calls))
        space.advance(601)
    [dead] = space.assert_published("t.c.dead", body=b"0", timeout=WAIT_S)
    running.close()
    assert running.calls == 3
    headers = dead.headers
    assert (headers["zsq-dead-reason"], headers["zsq-dead-attempts"]) == ("rejected", 3)
    assert headers["zsq-dead-error"] == "ValueError('no')"
    assert str(headers["zsq-dead-traceback"]).endswith("ValueError: no")
    assert headers["zsq-dead-consumer"]


def test_the_smaller_number_of_attempts_decides(kind: str, space: Namespace) -> None:
    publish(space, 1)
    retries = zsq.Retries(max_attempts=5, first=0, maximum=0)
    running = Running(
        kind, space, raising(ValueError("no")), retries=retries, settings={"max_attempts": 2}
    )
    [dead] = space.assert_published("t.c.dead", body=b"0", timeout=WAIT_S)
    running.close()
    assert (running.calls, dead.headers["zsq-dead-reason"]) == (2, "max_attempts")


@pytest.mark.parametrize("batch", [None, 10])
def test_a_message_without_attempts_left_never_reaches_the_handler(
    kind: str, space: Namespace, batch: int | None
) -> None:
    """Its last handler has ended with its process, so nobody has counted that failure."""
    publish(space, 1)
    with space.consumer("t", "c") as consumer:
        for _ in range(2):
            message = consumer.receive(WAIT_S)
            assert message is not None
            message.requeue()
    options = {} if batch is None else {"batch": batch, "batch_wait": 0.1}
    running = Running(
        kind, space, lambda taken: None, retries=zsq.Retries(max_attempts=2), **options
    )
    [dead] = space.assert_published("t.c.dead", body=b"0", timeout=WAIT_S)
    space.publish("t", b"1")
    running.wait_for(lambda: running.calls == 1)
    running.close()
    assert running.seen == {b"1": 1}
    assert 0 not in running.sizes
    assert str(dead.headers["zsq-dead-error"]).startswith("its last attempt ended without")


def test_a_requeue_of_the_handler_uses_the_backoff_of_the_channel(
    kind: str, space: Namespace
) -> None:
    publish(space, 1)
    retries = zsq.Retries(first=0, maximum=0)
    running = Running(
        kind,
        space,
        lambda message: in_turn(kind, lambda: message.requeue(backoff=True)),
        retries=retries,
        settings=FAR,
    )
    running.wait_for(lambda: running.calls == 1)
    running.close()
    space.advance(2_000)
    assert received(space, 0.2) is None


def test_two_policies_are_refused(space: Namespace) -> None:
    wrong: list[dict[str, Any]] = [{"retries": zsq.Retries(), "requeue_delay": 1}, {"retries": 5}]
    for options in wrong:
        with pytest.raises(zsq.UsageError, match="retries"):
            space.consumer("t", "c").run(print, **options)
