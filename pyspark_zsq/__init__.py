"""Spark finds the data source `zsq` by this module's name, without a call of `register(spark)`.

When Python data sources are first used, Spark imports every top-level module `pyspark_*` in the
folders of the driver's path, and takes its `DefaultSource`. Python finds an editable install by an
import hook and not in such a folder. Then `zsq.apps.spark.register(spark)` is needed.
"""

# If this import raised an error (no pyarrow), Spark would lose all Python data sources, not only
# this one.
try:
    from zsq.apps.spark.data_source import ZsqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except ImportError:
    __all__ = []
