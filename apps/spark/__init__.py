"""Spark data source: `register(spark)` makes `.format("zsq")` read, write and stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .progress import Behind, behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Behind", "behind", "register"]


def register(spark: SparkSession) -> bool:
    """Make `.format("zsq")` known to this session.

    Return True if that was needed. Return False, and log it at level INFO, if Spark had found the
    package `pyspark_zsq` by itself. Repeated calls do no harm.
    """
    try:
        from pyspark.errors import AnalysisException

        from .data_source import ZsqDataSource
    except ImportError as error:
        raise ImportError(
            f"Spark's data source needs pyspark 4 and pyarrow: pip install 'zsq[spark]' ({error})"
        ) from error
    try:
        spark.dataSource.register(ZsqDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        from .logs import LOGGER

        LOGGER.info('register() was not needed: Spark found the format "zsq" by itself')
        return False
    return True
