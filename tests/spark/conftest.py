"""Fixtures: one Spark for all tests in this folder, a broker for each module, and a topic for each
test.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import Broker
from support.topic import Topic

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The extra `test-spark` installs PySpark and PyArrow. Without it, the other tests still run.
# Continuous integration leaves out only what --fast leaves out.
if ("CI" not in os.environ or os.environ.get("ZSQ_TEST_SUITE") == "fast") and not (
    find_spec("pyspark") and find_spec("pyarrow")
):
    collect_ignore_glob = ["test_*.py"]


def need_java() -> None:
    """Skip if there is no Java. In continuous integration that is a failure."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if "CI" in os.environ:
            pytest.fail("there is no Java on this machine: continuous integration must have one")
        pytest.skip("there is no Java on this machine")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark as `local[2]`, with the data source registered. Its JVM ends after the tests."""
    need_java()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from zsq.apps.spark import register

    folder = tmp_path_factory.mktemp("spark")
    # Otherwise executors would use the first python3 on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master("local[2]").appName("zsq-tests").config(map=settings).getOrCreate()
    )
    # Tests check the raised error; the log would repeat it in a hundred lines.
    session.sparkContext.setLogLevel("OFF")
    gateway: Any = SparkContext._gateway
    try:
        register(session)
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its stdin is closed
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data") as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    """Return a topic that does not exist yet. A sink or `put` makes it. To
    make it without messages, use `create`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    return Topic(broker, name[:60])


@pytest.fixture
def other(broker: Broker, topic: Topic) -> Topic:
    """Return a second topic."""
    return Topic(broker, f"{topic.name[:54]}-other")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"
