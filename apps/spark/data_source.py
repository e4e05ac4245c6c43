"""The data source `zsq`: the class behind `.format("zsq")`."""

from __future__ import annotations

import os
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ...transport.wire.addresses import parse_all
from ...transport.wire.protocol import DEFAULT_URL
from .logs import warn_of
from .options import SinkOptions, SourceOptions, sink_options, source_options, wrong
from .schema import COLUMNS, ddl, simple
from .sink import BatchWriter, stream_writer
from .source import BatchReader, FilteringReader
from .stream import PlainStreamReader

__all__ = ["ZsqDataSource", "stream_reader"]


def stream_reader(options: SourceOptions) -> DataSourceStreamReader:
    """Return the reader that this PySpark can use.

    `latestOffset` with arguments makes older versions fail. Without arguments, newer versions
    ignore limits.
    """
    try:
        from .admission import AdmittingReader
    except ImportError:
        return PlainStreamReader(options)
    return AdmittingReader(options)


class ZsqDataSource(DataSource):
    """The data source, made on the driver for each load and save.

    $ZSQ_URL and $ZSQ_KEY_FILE are read on the driver. Their contents go to the executors.
    """

    @classmethod
    def name(cls) -> str:
        return "zsq"

    def _source(self, streaming: bool | None) -> SourceOptions:
        options = source_options(
            self.options, os.environ.get("ZSQ_URL") or DEFAULT_URL, streaming=streaming
        )
        if options.from_bucket:
            return options
        return replace(
            options, credentials=parse_all(options.url, options.key_file or None).credentials
        )

    def _sink(self, streaming: bool) -> SinkOptions:
        options = sink_options(
            self.options, os.environ.get("ZSQ_URL") or DEFAULT_URL, streaming=streaming
        )
        return replace(
            options, credentials=parse_all(options.url, options.key_file or None).credentials
        )

    def _checked(self, schema: StructType, options: SourceOptions) -> SourceOptions:
        """Return the options, and warn of those that have no effect.

        A user's schema may choose some columns. Refuse other columns and other types, because Spark
        does not convert a source's rows.
        """
        warn_of(options.unknown)
        kinds = schema.simpleString()
        if kinds == simple(options.columns):
            return options
        names = tuple(schema.names)
        is_choice = "columns" not in self.options and names and set(names) <= set(COLUMNS)
        if not is_choice or kinds != simple(names):
            raise wrong(
                f"the source itself defines its columns, {ddl(options.columns)}; leave out "
                ".schema(...), or choose some of these columns by it or by option 'columns', and "
                "parse value with from_json or from_csv"
            )
        return replace(options, columns=names)

    def schema(self) -> str:
        # load() already refuses what both batch and stream refuse. The rest is refused when the
        # plan is made.
        return ddl(self._source(None).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._checked(schema, self._source(False))
        if not options.filter_pushdown:
            return BatchReader(options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise wrong(
                "option 'filterPushdown' needs PySpark 4.1 or later; use startingTimestamp and "
                "endingTimestamp, or startingOffsets and endingOffsets"
            )
        return FilteringReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return stream_reader(self._checked(schema, self._source(True)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._sink(False)
        warn_of(options.unknown)
        return BatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self._sink(True), schema, overwrite)
