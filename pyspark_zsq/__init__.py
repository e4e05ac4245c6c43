"""Spark finds the data source `zsq` by this module's name, without a call of `register(spark)`.

When Python data sources are first used, Spark imports every top-level module `pyspark_*` in the
folders of the driver's path, and takes its `DefaultSource`. An editable install is not in such a
folder, because Python finds it by an import hook. With an editable install, call
`zsq.apps.spark.register(spark)`.
"""

# If this import raised an error (no pyarrow), Spark would lose all Python data sources, not only
# this one.
try:
    from zsq.apps.spark.data_source import ZsqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except ImportError:
    __all__ = []
