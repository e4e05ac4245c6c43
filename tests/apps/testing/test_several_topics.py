"""Tests of a consumer of several topics, at the in-memory broker and at a real one.

The cases are those of the table in docs/consumers.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from support.broker import wait_for

import zsq
import zsq.aio
from zsq.testing import Namespace
from zsq.transport.client.core import subscription, topic_list
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_NAME, E_CLOSED

WAIT_S = 30.0
MS = 1_000_000


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for new topics often, so that no test waits for that."""
    monkeypatch.setattr(topic_list, "LISTED_NS", 100 * MS)


def take(consumer: zsq.Consumer) -> tuple[str, bytes]:
    """Return the topic and the body of the next message, and finish it."""
    message = consumer.receive(WAIT_S)
    assert message is not None
    message.finish()
    return message.topic, message.body


def takes(consumer: zsq.Consumer, count: int) -> list[tuple[str, bytes]]:
    found = sorted(take(consumer) for _ in range(count))
    consumer.flush()
    return found


def topics_of(space: Namespace, *names: str) -> tuple[str, ...]:
    return tuple(sorted(space.topic(name) for name in names))


class Running:
    """`run` in a thread, and what its handler got."""

    def __init__(
        self, consumer: zsq.Consumer, handler: Callable[[Any], object] | None = None, **options: Any
    ) -> None:
        self.consumer = consumer
        self._handler = handler or self.handle
        self.found: list[tuple[str, bytes]] = []
        self.error: BaseException | None = None
        self._options = options
        self._thread = threading.Thread(target=self._run)

    def handle(self, message: Any) -> None:
        messages = [message] if isinstance(message, zsq.Message) else message
        self.found += [(one.topic, one.body) for one in messages]

    def _run(self) -> None:
        try:
            self.consumer.run(self._handler, signals=False, **self._options)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self._thread.join(WAIT_S)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait_for(self, *rows: tuple[str, bytes]) -> None:
        wait_for(lambda: set(rows) <= set(self.found) or bool(self.error), WAIT_S)
        assert self.error is None


# A list of topics


def test_a_list_receives_from_each_topic_and_names_it(space: Namespace) -> None:
    space.publish("orders", b"1")
    space.publish("refunds", b"2")
    with space.consumer(["orders", "refunds"], "billing") as consumer:
        found = takes(consumer, 2)
        assert found == [(space.topic("orders"), b"1"), (space.topic("refunds"), b"2")]
        assert consumer.topic == f"{space.topic('orders')},{space.topic('refunds')}"
        assert consumer.topics == topics_of(space, "orders", "refunds")
        space.publish("refunds", b"3")
        assert take(consumer) == (space.topic("refunds"), b"3")


def test_answers_go_to_the_topic_of_the_message(space: Namespace) -> None:
    for name in ("a", "b"):
        for number in range(3):
            space.publish(name, b"%d" % number)
    with space.consumer(["a", "b"], "c") as consumer:
        held = []
        for _ in range(6):
            message = consumer.receive(WAIT_S)
            assert message is not None
            held.append(message)
        again = next(message for message in held if message.topic == space.topic("b"))
        again.requeue()
        for message in held:
            if message is not again:
                message.finish(sync=True)
        assert take(consumer) == (space.topic("b"), again.body)
    with space.consumer(["a", "b"], "c") as consumer:
        assert consumer.receive(0.2) is None, "all messages are finished"


def test_a_list_creates_its_topics_and_channels_with_the_settings(space: Namespace) -> None:
    with space.consumer(["one", "two"], "c", max_attempts=1, start="earliest") as consumer:
        names = space.admin().topics()
        assert names[space.topic("one")] == names[space.topic("two")] == ["c"]
        space.publish("two", b"x")
        message = consumer.receive(WAIT_S)
        assert message is not None
        message.requeue()
        wait_for(lambda: f"{space.topic('two')}.c.dead" in space.admin().topics())


@pytest.mark.parametrize(
    ("topics", "code", "said"),
    [
        ([], E_BAD_ARGUMENT, "from 1 to 1,000 topics, not from 0"),
        (["t"] * 2, E_BAD_ARGUMENT, "'t' is twice in the list"),
        ([f"t{number}" for number in range(1_001)], E_BAD_ARGUMENT, "not from 1,001"),
        (["t", "a b"], E_BAD_NAME, "'a b' is not legal"),
        (["t", 7], E_BAD_NAME, "must be text"),
        (["t", "u*"], E_BAD_ARGUMENT, "is in a list"),
        ("a b*", E_BAD_NAME, "pattern 'a b.*' is not legal"),
        ("*" * 65, E_BAD_NAME, "is not legal"),
        (b"t", E_BAD_NAME, "must be text"),
    ],
)
def test_wrong_topics_are_refused(topics: Any, code: str, said: str) -> None:
    for consumer_class in (zsq.Consumer, zsq.aio.Consumer):
        with pytest.raises(zsq.UsageError, match=said) as error:
            consumer_class(topics, "c")
        assert error.value.code == code


def test_a_long_backlog_of_one_topic_does_not_delay_another(space: Namespace) -> None:
    space.admin().create_channel(space.topic("long"), "c")
    space.producer().publish_many(space.topic("long"), [b"x"] * 2_000)
    with space.consumer(["long", "short"], "c", ready=10) as consumer:
        assert take(consumer)[0] == space.topic("long")
        space.publish("short", b"now")
        before = 0
        while take(consumer)[0] != space.topic("short"):
            before += 1
        assert before < 100


def test_a_refusal_of_one_topic_is_raised_and_names_it(space: Namespace) -> None:
    space.admin().create_channel(space.topic("bad"), "c", tags="red")
    with pytest.raises(zsq.UsageError, match=space.topic("bad")) as error:
        space.consumer(["good", "bad"], "c", tags="blue").subscribe(WAIT_S)
    assert error.value.code == E_BAD_ARGUMENT
    with Running(space.consumer(["good", "bad"], "c", tags="blue")) as running:
        wait_for(lambda: not running.is_alive)
    assert isinstance(running.error, zsq.UsageError)


def test_a_deleted_topic_of_a_list_is_raised_or_waited_for(space: Namespace) -> None:
    admin = space.admin()
    with Running(space.consumer(["a", "b"], "c"), on_deleted="raise") as running:
        space.publish("a", b"1")
        space.publish("b", b"1")
        running.wait_for((space.topic("a"), b"1"), (space.topic("b"), b"1"))
        admin.delete_topic(space.topic("a"), force=True)
        wait_for(lambda: not running.is_alive)
        assert isinstance(running.error, zsq.NotFound)
        assert space.topic("a") in str(running.error)
    with Running(space.consumer(["b", "d"], "c")) as running:
        space.publish("d", b"1")
        running.wait_for((space.topic("d"), b"1"))
        admin.delete_topic(space.topic("d"), force=True)
        space.publish("b", b"2")
        running.wait_for((space.topic("b"), b"2"))
        assert space.topic("d") not in admin.topics(), "it was not created again"
        space.advance(1)  # a message of the same offset and time would be the finished one
        admin.create_topic(space.topic("d"))
        space.publish("d", b"2")
        running.wait_for((space.topic("d"), b"2"))


def test_a_closed_topic_of_a_list_does_not_stop_the_others(space: Namespace) -> None:
    admin = space.admin()
    with Running(space.consumer(["a", "b"], "c")) as running:
        space.publish("a", b"1")
        running.wait_for((space.topic("a"), b"1"))
        admin.close_topic(space.topic("a"), to="consumers")
        space.publish("b", b"1")
        running.wait_for((space.topic("b"), b"1"))
        admin.open_topic(space.topic("a"))
        space.publish("a", b"2")
        running.wait_for((space.topic("a"), b"2"))
    with space.consumer(["a", "b"], "c") as consumer:
        admin.close_topic(space.topic("a"), to="consumers")
        with pytest.raises(zsq.Refused, match=space.topic("a")) as error:
            consumer.receive(WAIT_S)
        assert error.value.code == E_CLOSED


# Patterns


def test_a_pattern_follows_new_and_deleted_topics(space: Namespace) -> None:
    admin = space.admin()
    space.publish("orders.eu", b"1")
    space.publish("other", b"no")
    with Running(space.consumer("orders.*", "billing"), concurrency=2) as running:
        running.wait_for((space.topic("orders.eu"), b"1"))
        space.publish("orders.us", b"1")  # its first message is not missed
        running.wait_for((space.topic("orders.us"), b"1"))
        assert running.consumer.topics == topics_of(space, "orders.eu", "orders.us")
        admin.delete_topic(space.topic("orders.eu"), force=True)
        wait_for(lambda: running.consumer.topics == topics_of(space, "orders.us"))
        space.publish("orders.us", b"2")
        running.wait_for((space.topic("orders.us"), b"2"))
        assert space.topic("orders.eu") not in admin.topics(), "it was not created again"
        space.advance(1)
        admin.create_topic(space.topic("orders.eu"))
        space.publish("orders.eu", b"2")
        running.wait_for((space.topic("orders.eu"), b"2"))
        assert running.is_alive
    assert {name for name, _ in running.found} == {*topics_of(space, "orders.eu", "orders.us")}
    assert "billing" not in admin.topics()[space.topic("other")]


def test_a_pattern_without_topics_waits_and_creates_none(space: Namespace) -> None:
    before = space.admin().topics()
    with space.consumer("none.*", "c") as consumer:
        assert consumer.receive(0.5) is None
        assert consumer.topics == ()
        assert space.admin().topics() == before
        space.publish("none.yet", b"x")
        assert take(consumer) == (space.topic("none.yet"), b"x")


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("o.*", {"o.a", "o.a.b"}),
        ("o*", {"o", "o.a", "o.a.b"}),
        ("*", {"o", "o.a", "o.a.b", "p"}),
        ("o.*.dead", {"o.a.c.dead"}),
        ("*b*", {"o.a.b"}),
    ],
)
def test_a_pattern_covers_the_whole_name_and_no_dead_letters(
    space: Namespace, pattern: str, matches: set[str]
) -> None:
    for name in ("o", "o.a", "o.a.b", "p", "o.a.c.dead"):
        space.publish(name, name.encode())
    with space.consumer(pattern, "c") as consumer:
        found = takes(consumer, len(matches))
        assert consumer.receive(0.3) is None
    assert found == sorted((space.topic(name), name.encode()) for name in matches)


def test_the_dead_letters_of_a_consumer_do_not_come_back_to_it(space: Namespace) -> None:
    space.publish("t", b"bad")
    options: dict[str, Any] = {"max_attempts": 1, "dead_letter_topic": space.topic("failed")}
    with space.consumer("*", "c", **options) as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        message.reject("no")
        wait_for(lambda: space.topic("failed") in space.admin().topics())
        assert consumer.receive(0.5) is None
        assert consumer.topics == topics_of(space, "t")


def test_a_topic_that_refuses_a_pattern_is_left_out(
    space: Namespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "REFUSED_NS", 200 * MS)
    admin = space.admin()
    admin.create_channel(space.topic("p.bad"), "c", tags="red")
    space.publish("p.good", b"1")
    with caplog.at_level(logging.WARNING, "zsq"), space.consumer("p.*", "c", tags="blue") as other:
        wait_for(lambda: other.topics == topics_of(space, "p.good"))
    assert any(space.topic("p.bad") in line.getMessage() for line in caplog.records)
    warned = [line for line in caplog.records if "left out" in line.getMessage()]
    assert len(warned) == 1, "a repeated refusal is logged once"


def test_a_pattern_that_all_topics_refuse_raises_the_refusal(space: Namespace) -> None:
    space.admin().create_channel(space.topic("q.bad"), "c", tags="red")
    with pytest.raises(zsq.UsageError, match=space.topic("q.bad")) as error:
        space.consumer("q.*", "c", tags="blue").subscribe(WAIT_S)
    assert error.value.code == E_BAD_ARGUMENT


def test_too_many_topics_of_a_pattern_are_an_error_at_first_and_a_warning_later(
    space: Namespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "TOPICS_MAX", 2)
    for name in ("m.1", "m.2"):
        space.publish(name, b"x")
    with space.consumer("m.*", "c") as consumer:
        takes(consumer, 2)
        space.publish("m.3", b"x")
        wait_for(lambda: any("3 topics" in line.getMessage() for line in caplog.records))
        assert consumer.receive(0.3) is None
        assert consumer.topics == topics_of(space, "m.1", "m.2")
    with pytest.raises(zsq.UsageError, match="matches 3 topics"):
        space.consumer("m.*", "d").subscribe(WAIT_S)


def test_a_batch_of_run_has_messages_of_several_topics(space: Namespace) -> None:
    for name in ("a", "b", "c"):
        space.publish(name, name.encode())
    batches: list[set[str]] = []

    def handle(batch: zsq.MessageBatch[zsq.Message]) -> None:
        batches.append({message.topic for message in batch})

    with Running(space.consumer(["a", "b", "c"], "ch"), handle, batch=3, batch_wait=WAIT_S):
        wait_for(lambda: bool(batches))
    assert batches == [set(topics_of(space, "a", "b", "c"))]
    assert space.consumer(["a", "b", "c"], "ch").receive(0.3) is None, "all are finished"


def test_a_delivery_is_of_one_topic_and_names_it(space: Namespace) -> None:
    for name in ("a", "b"):
        for _ in range(3):
            space.publish(name, name.encode())
    counts: Counter[str] = Counter()
    with space.consumer(["a", "b"], "ch") as consumer:
        for batch in consumer.batches():
            assert {space.topic(body.decode()) for body in batch.bodies} == {batch.topic}
            assert batch.topic in repr(batch)
            counts[batch.topic] += len(batch)
            batch.finish(sync=True)
            if counts.total() == 6:
                break
    assert counts == {space.topic("a"): 3, space.topic("b"): 3}


def test_a_consumer_of_several_topics_backs_off_from_all(
    space: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        space.publish("a", b"x")
        space.publish("b", b"x")

    def fail(message: zsq.Message) -> None:
        raise ValueError(message.topic)

    failed: list[str] = []
    consumer = space.consumer(["a", "b"], "c", backoff_s=60)
    with Running(consumer, fail, on_error=lambda message, _: failed.append(message.topic)):
        wait_for(lambda: any("backing off" in line.getMessage() for line in caplog.records))
    assert set(failed) == set(topics_of(space, "a", "b")), "three of one topic are too few"


# asyncio


def test_an_asyncio_consumer_follows_a_pattern(space: Namespace) -> None:
    async def work() -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        async with zsq.aio.Consumer(space.topic("as.*"), "c", url=space.url) as consumer:

            async def handle(message: zsq.aio.Message) -> None:
                found.append((message.topic, message.body))
                if len(found) == 3:
                    await consumer.close()

            task = asyncio.create_task(consumer.run(handle, concurrency=2, signals=False))
            await asyncio.to_thread(space.publish, "as.new", b"3")
            await asyncio.wait_for(task, WAIT_S)
        return found

    space.publish("as.a", b"1")
    space.publish("as.b", b"2")
    found = asyncio.run(work())
    assert sorted(found) == sorted(
        [(space.topic("as.a"), b"1"), (space.topic("as.b"), b"2"), (space.topic("as.new"), b"3")]
    )


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not [t for t in set(threading.enumerate()) - before if "worker" in t.name])
