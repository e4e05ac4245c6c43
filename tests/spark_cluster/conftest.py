"""Fixtures: a broker and a Spark with executors of its own for each module, a topic for each test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.broker import Broker
from support.spark_cluster import SparkDriver
from support.spark_topic import Topic


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = Broker(tmp_path_factory.mktemp("zsq") / "data")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """Two executors in JVMs of their own, a core each."""
    one = SparkDriver(tmp_path_factory.mktemp("spark"), "local-cluster[2,1,1024]")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    return Topic(broker, name[:60]).create()
