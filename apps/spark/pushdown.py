"""Pushdown: what the filters of a batch query say about the messages that it needs. Pure.

Spark evaluates all filters again. So bounds may let too many messages through, and never too few.

The log is searched by the time of storing. A message's `timestamp` is this time or, if it was
published with a delay, the time of its publish, which is never later (`arrow/batches.py`). So a
lower bound for the timestamp is one for the time of storing. An upper bound is one only for
messages with timestampType 1.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ...transport.arrow.batches import LOG_TIME
from ...transport.names import part_of

__all__ = ["Bounds", "Comparison"]

INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS: Final = datetime.timedelta(milliseconds=1)
# The columns that bounds are about, with the types of their values in a filter.
_TYPES: Final = {
    "topic": str, "partition": int, "offset": int, "timestamp": datetime.datetime,
    "timestampType": int,
}  # fmt: skip


class Comparison(NamedTuple):
    """A filter of a query: `operator` is =, >, >=, <, <= or "in"."""

    column: str
    operator: str
    value: Any


@dataclass
class Bounds:
    """The bounds within which all filters of a query can be true.

    Offsets are from `offset_min` to `offset_max` (exclusive). Messages were stored from
    `time_min_ms` to `time_max_ms` (exclusive). None means that there is no bound. `choices` has the
    values that are possible in a column.
    """

    offset_min: int = 0
    offset_max: int = INT64_MAX
    time_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    choices: dict[str, frozenset[Any]] = field(default_factory=dict)

    @property
    def time_max_ms(self) -> int | None:
        """The upper bound, if all messages have the time of their storing."""
        is_stored = self.choices.get("timestampType") == frozenset({LOG_TIME})
        return self.timestamp_max_ms if is_stored else None

    def reads(self, log: str) -> bool:
        """Return True if the topic or part `log` may have messages that the query needs."""
        topic, partition = part_of(log) or (log, 0)
        return topic in self.choices.get("topic", {topic}) and partition in self.choices.get(
            "partition", {partition}
        )

    def add(self, comparison: Comparison) -> None:
        """Add a filter, if it says something about the messages that are needed."""
        column, operator, value = comparison
        values = value if operator == "in" else (value,)
        kind = _TYPES.get(column)
        if kind is None or not values or not all(type(each) is kind for each in values):
            return
        if column == "offset":
            self._add_offset(operator, values)
        elif column == "timestamp":
            self._add_time(operator, values)
        elif operator in {"=", "in"}:
            known = self.choices.get(column, frozenset(values))
            self.choices[column] = known & frozenset(values)

    def _add_offset(self, operator: str, values: Sequence[int]) -> None:
        if operator in {"=", "in", ">", ">="}:
            self.offset_min = max(self.offset_min, min(values) + (operator == ">"))
        if operator in {"=", "in", "<", "<="}:
            self.offset_max = min(self.offset_max, max(values) + (operator != "<"))

    def _add_time(self, operator: str, values: Sequence[datetime.datetime]) -> None:
        """Add a time, in whole milliseconds.

        A time without a zone is not used, because it depends on the session's zone.
        """
        if any(value.tzinfo is None for value in values):
            return
        if operator in {"=", "in", ">", ">="}:
            low = (min(values) - _EPOCH) // _MS
            self.time_min_ms = low if self.time_min_ms is None else max(low, self.time_min_ms)
        if operator in {"=", "in", "<", "<="}:
            high = (max(values) - _EPOCH) // _MS + 1
            known = self.timestamp_max_ms
            self.timestamp_max_ms = high if known is None else min(high, known)
