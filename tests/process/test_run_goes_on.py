"""Tests of why `Consumer.run` ends, and of what it survives, on a real broker, with one and with
four handlers at a time, blocking and with asyncio.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from support.broker import Broker, wait_for
from support.cluster import running as running_cluster

import zsq
import zsq.aio

WAIT_S: Final = 60.0
KINDS: Final = [("blocking", 1), ("blocking", 4), ("asyncio", 1), ("asyncio", 4)]


class Running:
    """A consumer whose `run` runs in a thread, as a background task of a service does."""

    def __init__(
        self,
        kind: str,
        concurrency: int,
        url: str,
        topic: str,
        on_deleted: Literal["wait", "raise"] = "wait",
        channel: str = "c",
        **options: Any,
    ) -> None:
        self._channel = channel
        self.seen: queue.Queue[bytes] = queue.Queue()
        self.error: BaseException | None = None
        self._close: Callable[[], object] = lambda: None
        self._concurrency = concurrency
        self._on_deleted: Literal["wait", "raise"] = on_deleted
        self._begun = threading.Event()
        work = self._run_blocking if kind == "blocking" else self._run_asyncio
        self._thread = threading.Thread(target=self._note, args=(work, url, topic, options))
        self._thread.start()
        assert self._begun.wait(WAIT_S)

    def _note(self, work: Any, url: str, topic: str, options: dict[str, Any]) -> None:
        try:
            work(url, topic, options)
        except Exception as error:
            self.error = error

    def _run_blocking(self, url: str, topic: str, options: dict[str, Any]) -> None:
        consumer = zsq.Consumer(topic, self._channel, url=url, **options)
        self._close = consumer.close
        self._begun.set()
        concurrency = self._concurrency
        consumer.run(
            lambda message: self.seen.put(message.body),
            concurrency=concurrency,
            signals=False,
            on_deleted=self._on_deleted,
        )

    def _run_asyncio(self, url: str, topic: str, options: dict[str, Any]) -> None:
        async def main() -> None:
            consumer = zsq.aio.Consumer(topic, self._channel, url=url, **options)
            loop = asyncio.get_running_loop()
            self._close = lambda: asyncio.run_coroutine_threadsafe(consumer.close(), loop)
            self._begun.set()

            async def handle(message: zsq.aio.Message) -> None:
                self.seen.put(message.body)

            await consumer.run(
                handle,
                concurrency=self._concurrency,
                signals=False,
                on_deleted=self._on_deleted,
            )

        asyncio.run(main())

    def expect(self, body: bytes) -> None:
        """Wait until this body was handled. Others may be handled before, twice."""
        while self.seen.get(timeout=WAIT_S) != body:
            pass

    def ended(self) -> BaseException | None:
        """Wait until `run` has ended, and return its error."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.error

    def close(self) -> None:
        if self._thread.is_alive():
            self._close()
        assert self.ended() is None or self.error is not None


@pytest.fixture(params=KINDS, ids=lambda param: f"{param[0]}-{param[1]}")
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Running]]:
    """Start `run` in a thread, and close its consumer at the end of the test."""
    made: list[Running] = []

    def start(url: str, topic: str, **options: Any) -> Running:
        kind, concurrency = request.param
        made.append(Running(kind, concurrency, url, topic, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def run_all() -> Iterator[Callable[..., list[Running]]]:
    """Start a consumer of each kind at once, each in its own channel, and close them at the end."""
    made: list[Running] = []

    def start(url: str, topic: str, **options: Any) -> list[Running]:
        started = [
            Running(kind, concurrency, url, topic, channel=f"c{number}", **options)
            for number, (kind, concurrency) in enumerate(KINDS)
        ]
        made.extend(started)
        return started

    yield start
    for one in made:
        one.close()


def make_topic(admin: zsq.Admin, **options: Any) -> None:
    """Make topic t with the channels of `run_all`."""
    admin.create_topic("t", **options)
    for number in range(len(KINDS)):
        admin.create_channel("t", f"c{number}")


def expect_in_all(running: list[Running], body: bytes) -> None:
    for one in running:
        one.expect(body)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    function = request.function.__name__.removeprefix("test_").replace("_", "-")
    return f"{request.node.callspec.id}.{function}".replace("_", "-")[:64]


def publish(url: str, topic: str, body: bytes) -> None:
    with zsq.Producer(url) as producer:
        producer.publish(topic, body)


def close_and_open(admin: zsq.Admin, topic: str, refused: Callable[[], None]) -> None:
    admin.close_topic(topic, to="consumers")
    refused()
    admin.open_topic(topic)


def delete_channel(admin: zsq.Admin, topic: str, refused: Callable[[], None]) -> None:
    admin.delete_channel(topic, "c", force=True)


@pytest.mark.parametrize("event", [close_and_open, delete_channel])
def test_run_goes_on_after_an_operator_has_intervened(
    shared: Broker,
    run: Callable[..., Running],
    topic: str,
    event: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(shared.ipc, topic, b"before")
    running = run(shared.ipc, topic)
    running.expect(b"before")
    warning = f"channel {topic}/c: refused by the broker for 1 s (E_CLOSED "
    with zsq.Admin(shared.ipc) as admin, caplog.at_level(logging.INFO, "zsq"):
        event(admin, topic, lambda: wait_for(lambda: warning in caplog.text))
        wait_for(lambda: has_consumer(admin, topic), what="the consumer")
        publish(shared.ipc, topic, b"after")
        running.expect(b"after")
        assert "run ends" not in caplog.text
        running.close()
        assert running.ended() is None
    assert caplog.text.count(f"{topic}/c: run ends: the consumer was closed") == 1


def test_a_topic_that_was_deleted_is_awaited_and_not_created(
    shared: Broker,
    run: Callable[..., Running],
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(shared.ipc, topic, b"before")
    running = run(shared.ipc, topic)
    running.expect(b"before")
    with zsq.Admin(shared.ipc) as admin:
        admin.delete_topic(topic, force=True)
        wait_for(lambda: f"topic '{topic}' was deleted" in caplog.text)
        wait_for(lambda: f"channel {topic}/c: refused by the broker for 1 s" in caplog.text)
        assert topic not in admin.topics()
        admin.create_topic(topic)
        wait_for(lambda: has_consumer(admin, topic), what="the consumer")
        publish(shared.ipc, topic, b"after")
        running.expect(b"after")
        assert "run ends" not in caplog.text


@pytest.mark.parametrize("door", ["ipc", "tcp"])
def test_a_topic_that_was_deleted_ends_run_on_demand(
    shared: Broker,
    run: Callable[..., Running],
    topic: str,
    door: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = shared.ipc if door == "ipc" else shared.tcp
    publish(url, topic, b"before")
    running = run(url, topic, on_deleted="raise")
    running.expect(b"before")
    with zsq.Admin(url) as admin:
        admin.delete_topic(topic, force=True)
        error = running.ended()
        assert isinstance(error, zsq.NotFound)
        assert f"topic '{topic}' was deleted" in error.text
        assert topic not in admin.topics()
        # A new consumer is not bound by that.
        run(url, topic)
        wait_for(lambda: has_consumer(admin, topic), what="the consumer")


def has_consumer(admin: zsq.Admin, topic: str) -> bool:
    try:
        return bool(admin.stats(topic, "c")["topics"][0]["channels"][0]["client_count"])
    except (zsq.ZsqError, LookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_run_goes_on_when_the_broker_is_back(
    own_broker: Broker,
    run_all: Callable[..., list[Running]],
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`edges/test_broker_events.py` tests the same over TCP."""
    with zsq.Admin(own_broker.ipc) as admin:
        make_topic(admin)
    publish(own_broker.ipc, "t", b"before")
    running = run_all(own_broker.ipc, "t")
    expect_in_all(running, b"before")
    assert own_broker.process is not None
    if number == signal.SIGTERM:
        own_broker.process.terminate()
    else:
        own_broker.signal_all(number)
    own_broker.process.wait(WAIT_S)
    for channel in range(len(KINDS)):
        wait_for(lambda: f"channel t/c{channel}: " in caplog.text, what="a warning")  # noqa: B023
    own_broker.start()
    publish(own_broker.ipc, "t", b"after")
    expect_in_all(running, b"after")


def test_run_waits_for_a_place_in_the_channel(
    shared: Broker, run: Callable[..., Running], topic: str
) -> None:
    """A second consumer takes over when the first one leaves."""
    publish(shared.ipc, topic, b"one")
    first = zsq.Consumer(topic, "c", url=shared.ipc, max_consumers=1)
    message = first.receive(WAIT_S)
    assert message is not None
    message.finish(sync=True)
    running = run(shared.ipc, topic)
    publish(shared.ipc, topic, b"two")
    message = first.receive(WAIT_S)
    assert message is not None
    first.close()
    running.expect(b"two")


def test_a_final_refusal_ends_run_with_the_error(
    shared: Broker, run: Callable[..., Running], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic(topic)
        admin.create_channel(topic, "c")
    running = run(shared.ipc, topic, ordered=True)
    error = running.ended()
    assert isinstance(error, zsq.UsageError)
    assert caplog.text.count(f"{topic}/c: run ends: UsageError: {error}") == 1


def test_a_topic_that_run_may_not_create_ends_it(
    tmp_path: Path, run_all: Callable[..., list[Running]], caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path / "data", "--auto-create", "publishers") as broker:
        for running in run_all(broker.ipc, "absent"):
            assert isinstance(running.ended(), zsq.NotFound)
        with zsq.Admin(broker.ipc) as admin:
            make_topic(admin)
        publish(broker.ipc, "t", b"a")
        expect_in_all(run_all(broker.ipc, "t"), b"a")
        assert caplog.text.count("run ends: NotFound: E_NOT_FOUND ") == len(KINDS)


def test_run_with_a_timeout_ends_when_no_broker_answers(
    own_broker: Broker, run_all: Callable[..., list[Running]], caplog: pytest.LogCaptureFixture
) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        make_topic(admin)
    publish(own_broker.ipc, "t", b"a")
    running = run_all(own_broker.ipc, "t", timeout=2)
    expect_in_all(running, b"a")
    own_broker.signal_all(signal.SIGKILL)
    for one in running:
        assert isinstance(one.ended(), zsq.BrokerUnreachable)
    assert caplog.text.count(": run ends: BrokerUnreachable: ") == len(KINDS)


def test_a_topic_with_parts_is_awaited_and_not_created(
    tmp_path: Path, run_all: Callable[..., list[Running]]
) -> None:
    with running_cluster(tmp_path) as cluster, zsq.Admin(cluster.url) as admin:
        make_topic(admin, parts=2)
        running = run_all(cluster.url, "t")
        publish(cluster.url, "t", b"before")
        expect_in_all(running, b"before")
        admin.delete_topic("t", force=True)
        wait_for(lambda: "t" not in admin.topics())
        admin.create_topic("t", parts=3)

        def handles_again(one: Running) -> bool:
            """A new channel begins with what is published after it was made."""
            publish(cluster.url, "t", b"after")
            return b"after" in one.seen.queue

        for one in running:
            wait_for(partial(handles_again, one), WAIT_S)
