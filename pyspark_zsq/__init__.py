"""Spark finds the data source `zsq` by this module's name, without `zsq.apps.spark.register(spark)`.

When Python data sources are first used Spark imports every top-level module `pyspark_*` that it finds in the folders of the driver's
path and takes its `DefaultSource`. An editable install is found by an import hook and not in a folder: there `register` is needed.
"""

# Where this import fails (no pyarrow) Spark would otherwise lose all Python data sources, not only this one.
try:
    from zsq.apps.spark.data_source import ZsqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except ImportError:
    __all__ = []
