"""Kombu's own integration tests of transports, run with `zsq://` and a real broker.

They come from the source archive of the installed Kombu. Its module `common` has the tests for all
transports. The tests of priorities are those of the transports for MongoDB and Redis, because the
ones in `common` expect that `drain_events` delivers several messages, as AMQP's does. Kombu's
virtual transports deliver one.

`DIFFERENT` lists the tests that do not fit ZSQ. They run, too, and must fail.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import kombu
import pytest
from support.broker import Broker
from support.peer_sources import package_at, source_of
from support.topic_names import topic_name_of

from zsq.apps.integrations.kombu import Transport

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
NOBODY: Final = "zsq://127.0.0.1:1"
CONNECT_S: Final = 30.0  # for all addresses of a connection together
FOLDER: Final = source_of("kombu") / "t" / "integration"
_number: Final = itertools.count()
IN_MEMORY: Final = "a queue in memory delivers in the order of arrival"
DIFFERENT: Final = {
    "TestPriority::test_simple_buffer_publish_consume": IN_MEMORY,
    "TestPriorityAsRedis::test_simple_buffer_publish_consume": IN_MEMORY,
    "TestPublishBatch::test_fanout_is_deferred_until_flush": "it reads keys of Redis",
}


def module(name: str) -> ModuleType:
    package_at(FOLDER, "kombu_integration")
    return importlib.import_module(f"kombu_integration.{name}")


common: Any = module("common")
mongodb: Any = module("test_mongodb")
redis: Any = module("test_redis")


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass


class TestPriority(mongodb.test_MongoDBPriority):
    """Priority 9 comes first."""

    highest_priority = 9


class TestPriorityAsRedis(redis.test_RedisPriority):
    """Priority 0 comes first."""


class TestPublishBatch(redis.test_RedisPublishBatch):
    """The transport publishes at once."""


@pytest.fixture(autouse=True)
def _expected(request: pytest.FixtureRequest) -> None:
    found = DIFFERENT.get("::".join(request.node.nodeid.split("::")[-2:]))
    if found is not None:
        request.applymarker(pytest.mark.xfail(reason=found))


def opened(url: str, connect_s: float = CONNECT_S, **options: Any) -> Iterator[Any]:
    with kombu.Connection(url, connect_timeout=connect_s, transport_options=options) as connection:
        yield connection


@pytest.fixture
def url(request: pytest.FixtureRequest, broker: Broker) -> str:
    """Return a URL with a prefix of its own, because Kombu's tests leave messages in queues."""
    return f"zsq://127.0.0.1:{broker.port}/{topic_name_of(request.node.name)[:20]}-{next(_number)}"


@pytest.fixture
def connection(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    yield from opened(url, highest_priority=getattr(request.cls, "highest_priority", 0))


@pytest.fixture
def failover_connection(url: str) -> Iterator[Any]:
    yield from opened(f"{NOBODY};{url}")


@pytest.fixture
def redis_client() -> None:
    """There is no Redis."""


@pytest.fixture
def invalid_connection() -> Iterator[Any]:
    yield from opened(NOBODY, 1.0)


def run_here() -> dict[str, type]:
    return {name: one for name, one in globals().items() if name.startswith("Test")}


def test_each_base_class_of_kombu_is_run() -> None:
    bases = {
        one
        for name, one in vars(common).items()
        if isinstance(one, type) and name.startswith(("Base", "Basic"))
    }
    assert bases == {base for one in run_here().values() for base in one.__mro__ if base in bases}
    assert Transport.driver_type == "zsq"


@pytest.mark.parametrize("test", DIFFERENT)
def test_each_test_that_differs_exists(test: str) -> None:
    """If one of them passes, it fails as an unexpected success, so the list stays correct."""
    name, _, method = test.partition("::")
    assert hasattr(run_here()[name], method)
