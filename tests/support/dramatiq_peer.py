"""Plugin of pytest that gives Dramatiq's own tests the broker of ZSQ.

Dramatiq's source archive has its tests, but not the modules `conftest` and `common` that they use.
This module takes their place: it has fixtures with the same names, and makes `tests.common`. The
tests are written for three brokers. `PeerBroker` is the broker of ZSQ. It also answers what the
tests ask only the others, such as how many messages wait, with what ZSQ knows about it.

All processes of a run have $DRAMATIQ_URL and $DRAMATIQ_PREFIX. The programs that tests of the
command line start import this module, too. So they have ZSQ's broker in place of the one for Redis.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import dramatiq
import dramatiq.brokers.redis
import pytest
from dramatiq.brokers import stub
from dramatiq.common import xq_name
from dramatiq.rate_limits.backends import StubBackend as Limits
from dramatiq.results.backends import StubBackend as Results

import zsq
from zsq.apps.integrations.dramatiq import ZsqBroker
from zsq.apps.integrations.naming import CHANNEL

THREADS: Final = 16
WAKE_MS: Final = 100
PEEK_MAX: Final = 100
DELAYED: Final = ".DQ"
REDIS_ID: Final = "redis_message_id"  # the option by which tests find a message in Redis
NEEDED: Final = {"stub_broker", "redis_broker", "rabbitmq_broker", "start_cli"}
_ID: Final = re.compile(rf'"{REDIS_ID}":"([^"]+)"'.encode())


class QueueView:
    """What tests ask the queues of `StubBroker`, which are those of Python's module `queue`."""

    def __init__(self, broker: PeerBroker, name: str) -> None:
        self._broker = broker
        self._name = name

    def put(self, body: bytes) -> None:
        with zsq.Producer(self._broker.url) as producer:
            producer.publish(self._broker.topic(self._name), body)

    def get(self, timeout: float) -> bytes:
        topic = self._broker.topic(self._name)
        with zsq.Consumer(topic, CHANNEL, url=self._broker.url) as consumer:
            message = consumer.receive(timeout)
            assert message is not None
            message.finish(sync=True)
            return message.body

    def qsize(self) -> int:
        """Return how many messages are with no consumer."""
        channel = self._broker.counts(self._name)["channels"][0]
        return int(channel["depth"] + channel["deferred_count"])


class RedisView:
    """What tests ask Redis: the ids of the messages that wait, are delayed, or are given up."""

    def __init__(self, broker: PeerBroker) -> None:
        self._broker = broker

    def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        name = key.removeprefix("dramatiq:")
        topic = self._broker.topic(name.removesuffix(DELAYED))
        if name.endswith(DELAYED):
            return _ids(row["body"] for row in self._broker.admin.delayed_list(topic))
        found = self._broker.admin.peek(topic, CHANNEL, count=PEEK_MAX).messages
        return _ids(one.message.body for one in found if one.message and one.state != "in flight")

    def zrangebyscore(self, key: str, first: int, last: str) -> list[bytes]:
        names = [name for name in self._broker.queues if key == f"dramatiq:{xq_name(name)}"]
        return _ids(body for name in names for body in self._broker.dead_bodies(name))


def _ids(bodies: Iterable[bytes]) -> list[bytes]:
    return [found[1] for body in bodies if (found := _ID.search(body)) is not None]


class PeerBroker(ZsqBroker):
    """The broker of ZSQ, with what Dramatiq's tests ask its other brokers.

    - `fail_fast`: `join` raises what the actor of a dead letter has raised, as in `StubBroker`.
    - `has_ids`: Messages have an option with an id, as in `RedisBroker`.
    """

    def __init__(
        self,
        *,
        middleware: list[Any] | None = None,
        fail_fast: bool = False,
        has_ids: bool = False,
    ) -> None:
        self.url = os.environ["DRAMATIQ_URL"]
        self.prefix = os.environ["DRAMATIQ_PREFIX"]
        super().__init__(self.url, prefix=self.prefix, middleware=middleware)
        self.admin = zsq.Admin(self.url)
        self.client = RedisView(self)
        self._fail_fast = fail_fast
        self._has_ids = has_ids
        self._failed: defaultdict[str, list[Any]] = defaultdict(list)
        self._dead_before: dict[str, int] = {}

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            super().declare_queue(queue_name)
            self.queues[queue_name] = QueueView(self, queue_name)

    def emit_before(self, signal: str, *arguments: Any, **named: Any) -> None:
        if signal == "nack":
            (message,) = arguments
            # `StubBroker` keeps the exception, and one test makes it clear that.
            message.clear_exception = lambda: stub._StubMessageProxy.clear_exception(message)
            self._failed[message.queue_name].append(message)
        super().emit_before(signal, *arguments, **named)

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        if self._has_ids:
            message = message.copy(options={REDIS_ID: str(uuid.uuid4())})
        return super().enqueue(message, delay=delay)

    def flush_all(self) -> None:
        super().flush_all()
        self._failed.clear()

    def join(
        self,
        queue_name: str,
        *,
        timeout: int | None = None,
        fail_fast: bool | None = None,
        min_successes: int = 0,
    ) -> None:
        super().join(queue_name, timeout=timeout)
        if self._fail_fast if fail_fast is None else fail_fast:
            for message in self._failed[queue_name]:
                raise message._exception or Exception("failed")

    def counts(self, queue_name: str) -> Any:
        return self.admin.stats(self.topic(queue_name))["topics"][0]

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return how many messages wait, are delayed, and are dead letters."""
        counts = self.counts(queue_name)
        waiting = sum(channel["depth"] for channel in counts["channels"])
        return waiting, counts["delayed_count"], len(list(self.dead_bodies(queue_name)))

    @property
    def dead_letters(self) -> list[Any]:
        bodies = (body for name in self.queues for body in self.dead_bodies(name))
        return [dramatiq.Message.decode(body) for body in bodies]

    def dead_bodies(self, queue_name: str) -> Iterator[bytes]:
        """Return the dead letters since `forget`."""
        topic = f"{self.topic(queue_name)}.{CHANNEL}.dead"
        with zsq.Reader(topic, url=self.url) as reader, contextlib.suppress(zsq.NotFound):
            for offset in range(self._dead_before.get(topic, 0), reader.bounds()[1]):
                yield reader.message(offset).body

    def forget(self) -> None:
        """Remove what earlier tests have left in topics with the same names."""
        for topic in self.admin.topics():
            if not topic.startswith(self.prefix):
                continue
            if topic.endswith(".dead"):
                with zsq.Reader(topic, url=self.url) as reader:
                    self._dead_before[topic] = reader.bounds()[1]
            else:
                self.admin.delayed_cancel_all(topic)
                self.admin.empty(topic, CHANNEL)

    def close(self) -> None:
        super().close()
        self.admin.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that use no broker, or make one for Redis or RabbitMQ themselves."""
    here = [item for item in items if NEEDED & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = here


def _broker(**options: Any) -> Iterator[PeerBroker]:
    broker = PeerBroker(**options)
    broker.forget()
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    try:
        yield broker
    finally:
        broker.close()


def _worker(broker: PeerBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=WAKE_MS, worker_threads=THREADS)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


@pytest.fixture
def stub_broker() -> Iterator[PeerBroker]:
    yield from _broker(fail_fast=True)


@pytest.fixture
def redis_broker() -> Iterator[PeerBroker]:
    yield from _broker(has_ids=True)


@pytest.fixture
def rabbitmq_broker() -> Iterator[PeerBroker]:
    yield from _broker()


@pytest.fixture
def stub_worker(stub_broker: PeerBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(stub_broker)


@pytest.fixture
def redis_worker(redis_broker: PeerBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(redis_broker)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: PeerBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(rabbitmq_broker)


@pytest.fixture
def result_backend() -> Any:
    return Results()


@pytest.fixture
def redis_result_backend() -> Any:
    """Return no Redis: the one test that uses it stores nothing."""
    return Results()


@pytest.fixture
def rate_limiter_backend() -> Any:
    return Limits()


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(
        program: str, *, extra_args: Iterable[str] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", program, *extra_args]
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def _running(*arguments: Any, **options: Any) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(*arguments, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def _common() -> ModuleType:
    module = ModuleType("tests.common")
    found: Any = module
    found.worker = _running
    found.skip_in_ci = found.skip_on_pypy = found.skip_on_windows = lambda test: test
    found.skip_unless_rabbit_mq = pytest.mark.skip(reason="it is about the broker for RabbitMQ")
    found.RABBITMQ_USERNAME = found.RABBITMQ_PASSWORD = found.RABBITMQ_CREDENTIALS = None
    return module


sys.modules["tests.common"] = _common()
dramatiq.brokers.redis.RedisBroker = PeerBroker
