"""Statistic: one row of the table of statistics, and what an extension adds to that table.

`schema.py` has the rows of the core. An extension names its own in `STATISTICS`
(`actors/runtime/extensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..settings.starts import ActorStart


class Statistic(NamedTuple):
    """One statistic of a level."""

    level: str
    name: str
    """The name in `Admin.stats` and `zsq stats --json`; "" if only other views have it."""
    unit: str
    counted: str
    """The file below actors/ that counts or measures it."""
    help: str
    """The meaning, in `/metrics` and in the documentation."""
    metric: str = ""
    """The Prometheus name; "" if `/metrics` does not have it."""
    view: str = ""
    """The name in the overview; rows of one level with the same name are summed there."""
    nsq: int = 0
    """The position in nsqd's /stats; 0 if nsqd does not have it."""
    default: Any = 0
    """The value before the process has reported."""
    title: str = ""
    """The heading of the column in `zsq stats`."""
    rare: int = 0
    """The group and position of a rare column, or 0.

    Columns with the same number are shown only if one of them is not 0. They come last, in the
    order of these numbers.
    """
    top: str = ""
    """The heading of the column in `zsq top`, if that is a plain number."""
    counter: bool = False
    """True for a counter of a channel. A channel keeps all of its counters on disk."""
    ends: bool = False
    """True for a counter of messages that leave a channel for good."""
    note: str = ""
    """The full meaning, for the documentation."""
    is_trouble: bool = False
    """True for a text that is empty while all is well. `/metrics` has 1 then, and otherwise 0."""
    more_labels: tuple[str, ...] = ()
    """Prometheus labels in addition to those of the level."""

    @property
    def kind(self) -> str:
        """The type of the Prometheus family."""
        return (
            "counter"
            if self.metric.endswith("_total")
            else "histogram"
            if self.unit == "histogram of s"
            else "gauge"
        )

    @property
    def is_of_storage(self) -> bool:
        """True for a value that a topic's storage or its extension reports."""
        return self.level == "topic" and not self.counted.startswith(("statistics/", "topic/"))

    @property
    def labels(self) -> tuple[str, ...]:
        return _LABELS.get(self.level, ()) + self.more_labels


_LABELS: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("topic",),
    "channel": ("topic", "channel"),
    "process": ("kind",),
}


class Section(NamedTuple):
    """A row of the broker that one of its processes reports: the statistics of one level.

    It is left out while the broker has no process of this kind.
    """

    level: str
    kind: str
    """The kind of process."""
    before: Callable[[ActorStart], Mapping[str, Any]] = lambda start: {}
    """Returns what is known before the first report, from what the process was started with."""
    in_overview: bool = False
    shows_cluster: Callable[[Mapping[str, Any]], bool] = lambda row: False
    """Returns True if other brokers belong to this one."""


class ExtensionStatistics(NamedTuple):
    """The statistics of an extension."""

    rows: tuple[Statistic, ...]
    sections: tuple[Section, ...] = ()
