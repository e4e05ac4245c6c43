"""Local Spark session for the demo and the benchmarks. The JVM's output goes to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zsq.apps.spark import register

SPARK_ERRORS: Final = (PySparkException, Py4JError)


@contextlib.contextmanager
def spark_session(folder: Path, master: str, *, partitions: int = 2) -> Iterator[SparkSession]:
    """Run Spark with ZSQ registered. Its files are in `folder`, and its log is `folder`/spark.log.

    `partitions` is the number of a shuffle's partitions.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _stderr_to(folder / "spark.log"):
        builder: Any = SparkSession.builder
        spark = (
            builder.master(master)
            .appName("zsq")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(partitions))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "spark"))
            .getOrCreate()
        )
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect stderr to a file. Processes started in the context keep writing there."""
    kept = os.dup(2)
    with log.open("ab") as out:
        os.dup2(out.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
