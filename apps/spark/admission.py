"""Streaming reads for PySpark 4.2 and later, with admission control and Trigger.AvailableNow.

Spark also reports how far behind the query is.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ...transport.errors import ZsqError
from .logs import LOGGER
from .options import SourceOptions
from .planning import StreamPosition
from .stream import FollowingReader

__all__ = ["AdmittingReader"]


class AdmittingReader(FollowingReader, SupportsTriggerAvailableNow):
    """The stream reader to which Spark passes the query's position and a read limit."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._planned: StreamPosition | None = None  # the end of the batch that was planned last

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_max:
            return ReadMaxRows(options.offsets_max)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.offsets_min) if options.offsets_min else ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        place = StreamPosition.from_json(start)
        offsets_max = max_bytes = 0
        # Spark passes only one limit, although several options may be set.
        is_limited = not isinstance(limit, ReadAllAvailable)
        if is_limited:
            offsets_max = (
                limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.offsets_max
            )
            max_bytes = (
                limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
            )
        latest = self._plan.latest(
            place, offsets_max=offsets_max, max_bytes=max_bytes, may_wait=is_limited
        )
        self._planned = latest
        channel = self._follow(place)
        if channel is not None:
            # Spark asks for the next batch when it is done with all earlier ones. No other call
            # reports the end of the last batch.
            channel.advance(place.offsets)
        return latest.as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.stop_at_present_head()

    def reportLatestOffset(self) -> dict[str, object]:
        """Return the present end of all topics, and how far the query is behind it.

        Spark only shows this. So an error that would fail the query is logged instead: the next
        request that matters finds out whether the broker is there.
        """
        planned = self._planned
        if planned is None:
            return self._plan.head().as_json()
        try:
            return self._plan.report(planned)
        except (ZsqError, OSError) as error:
            LOGGER.warning("it is not known how far the query is behind its topics: %s", error)
            return planned.as_json()
