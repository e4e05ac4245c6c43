"""Fixtures: a broker and a Spark with separate executors for each module, and a topic for each
test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.broker import Broker
from support.spark_topic import Topic
from support.topic_names import topic_name_of

pytestmark = pytest.mark.slow

# The extra `test-spark` installs PySpark and PyArrow. Without it, the other tests still run.
# Continuous integration leaves nothing out.
if "CI" in os.environ or (find_spec("pyspark") and find_spec("pyarrow")):
    from support.spark_cluster import SparkDriver
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    """Skip if there is no Java. In continuous integration that is a failure."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if "CI" in os.environ:
            pytest.fail("there is no Java on this machine: continuous integration must have one")
        pytest.skip("there is no Java on this machine")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data", "--own-process", "always") as broker:
        yield broker


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """Start Spark with two executors, each in a separate JVM with one core."""
    with SparkDriver(tmp_path_factory.mktemp("spark"), "local-cluster[2,1,1024]") as driver:
        yield driver


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    return Topic(broker, topic_name_of(request.node.name)).create()
