"""Fixtures: each version of Spark that was asked for, in an environment of its own.

A version takes minutes, so these tests only run if $ZSQ_TEST_SPARK_VERSIONS names versions,
separated by commas, or is `all` for those of docs/spark-reference.md, or `installed`. The first use
of a version downloads it from PyPI into build/pyspark, about 500 MB unpacked.

    ZSQ_TEST_SPARK_VERSIONS=all ./scripts/test tests/spark_versions
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from support.broker import Broker
from support.spark_topic import Topic
from support.topic_names import topic_name_of

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from support.spark_cluster import SparkDriver

INSTALLED: Final = "installed"
TRIED: Final = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")  # docs/spark-reference.md names them
PACKAGES: Final = Path(__file__).resolve().parents[2] / "build/pyspark"
DOWNLOAD_S: Final = 900


ASKED: Final = os.environ.get("ZSQ_TEST_SPARK_VERSIONS", "")

if not ASKED:
    collect_ignore_glob = ["test_*.py"]


def packages_of(version: str) -> Path:
    """Return a folder with this version of PySpark and with the Py4J that it needs."""
    folder = PACKAGES / version
    if not folder.exists():
        draft = folder.with_name(f"{version}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        command += ["--target", str(draft), f"pyspark=={version}"]
        subprocess.run(command, check=True, timeout=DOWNLOAD_S)
        draft.rename(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    """Skip if there is no Java. In continuous integration that is a failure."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if "CI" in os.environ:
            pytest.fail("there is no Java on this machine: continuous integration must have one")
        pytest.skip("there is no Java on this machine")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data") as broker:
        yield broker


@pytest.fixture(scope="module", params=TRIED if ASKED == "all" else ASKED.split(","))
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkDriver]:
    """Start Spark with two cores. A task may be tried four times."""
    from support.spark_cluster import SparkDriver

    version = request.param
    packages = None if version == INSTALLED else packages_of(version)
    with SparkDriver(tmp_path_factory.mktemp("spark"), "local[2,4]", packages=packages) as driver:
        yield driver


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    return Topic(broker, topic_name_of(request.node.name)).create()


@pytest.fixture
def source(broker: Broker, topic: Topic) -> Topic:
    """Return a second topic, from which a query reads."""
    return Topic(broker, f"{topic.name}-source").create()
