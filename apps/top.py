"""State of `zsq top`: the rows of topics, channels, processes or the cluster, and the effects of
keys.

This module does not use the terminal.

`Picture` takes overviews, each with only the changes, and keeps the complete state. `Screen` has
the view, order, filter and position. It processes the keys and selects the rows to draw.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypedDict

from ..actors.statistics.cluster import BrokerRow, Report, TopicRow
from ..actors.statistics.schema import rows_of
from ..transport.reports import ProcessStats
from ..transport.units import NS_PER_S
from ..transport.wire.answers import BrokerSummary, OverviewAnswer, OverviewRow

VIEWS: Final = ("channels", "topics", "processes", "brokers", "parts")
CLUSTER_VIEWS: Final = ("brokers", "parts")  # they need answers of all brokers of the cluster
FILTER_MAX: Final = 64

Row = dict[str, Any]


class TableColumn(NamedTuple):
    """A column. `shown` formats a value. Texts are sorted from A, numbers from the largest."""

    key: str
    title: str
    shown: Callable[[Any], str] = str

    @property
    def is_text(self) -> bool:
        return self.shown is str


def count(value: Any) -> str:
    """Format a number in about five characters."""
    if not value:
        return "-"
    number = float(value)
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 1000 or unit == "T":
            return (
                f"{number:.0f}{unit}" if not unit or abs(number) >= 100 else f"{number:.1f}{unit}"
            )
        number /= 1000
    return ""


def rate(value: Any) -> str:
    return "-" if not value else f"{value:.1f}" if value < 100 else count(value)


def size(value: Any) -> str:
    return "-" if not value else f"{count(value)}B"


def age(seconds: Any) -> str:
    """Format an age in seconds. -1 or None means that it is not known."""
    if seconds is None or seconds < 0:
        return "?"
    if not seconds:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for unit, length in (("s", 60.0), ("m", 60.0), ("h", 24.0), ("d", 1e9)):
        if seconds < length:
            return (
                f"{seconds:.0f}{unit}" if seconds >= 10 or unit == "s" else f"{seconds:.1f}{unit}"
            )
        seconds /= length
    return ""


def share(value: Any) -> str:
    return "" if value is None else f"{value:.1f}%"


def _plain(level: str) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(row.view, row.top, size if row.unit == "bytes" else count)
        for row in rows_of(level)
        if row.top
    )


COLUMNS: Final[dict[str, tuple[TableColumn, ...]]] = {
    "channels": (
        TableColumn("topic", "topic"), TableColumn("channel", "channel"), TableColumn("depth", "depth", count),
        TableColumn("in_flight", "in flight", count),
        TableColumn("deferred", "deferred", count), TableColumn("in_rate", "in/s", rate), TableColumn("out_rate", "out/s", rate),
        TableColumn("drain_s", "empty in", age), TableColumn("age_s", "oldest", age), TableColumn("p99_s", "p99", age),
        TableColumn("consumers", "consumers", count), *_plain("channel"), TableColumn("said", "state"),
    ),
    "topics": (
        TableColumn("topic", "topic"), TableColumn("channels", "channels", count), TableColumn("in_rate", "in/s", rate),
        TableColumn("in_bytes_rate", "bytes/s", size), TableColumn("backlog", "backlog", count), TableColumn("delayed", "delayed", count),
        TableColumn("age_s", "oldest", age), *_plain("topic"), TableColumn("restarts", "restarts", count), TableColumn("said", "state"),
    ),
    "processes": (
        TableColumn("name", "process"), TableColumn("kind", "kind"), TableColumn("pid", "pid", lambda value: f"{value}"),
        TableColumn("cpu", "cpu", share),
        TableColumn("memory", "memory", size), TableColumn("uptime_s", "up", age), TableColumn("restarts", "restarts", count),
        TableColumn("said", "state"),
    ),
    "brokers": (
        TableColumn("name", "broker"), TableColumn("role", "role"), TableColumn("epoch", "epoch", count),
        TableColumn("lag_s", "lag", age), TableColumn("standbys", "standbys", count), TableColumn("parts", "parts", count),
        TableColumn("said", "state"),
    ),
    "parts": (
        TableColumn("topic", "topic"), TableColumn("part_count", "parts", count), TableColumn("brokers", "brokers", count),
        TableColumn("messages", "messages", count), TableColumn("backlog", "backlog", count),
        TableColumn("closed_count", "closed", count), TableColumn("said", "state"),
    ),
}  # fmt: skip
# The column by which each view is sorted at first.
FIRST: Final = {
    "channels": "depth",
    "topics": "backlog",
    "processes": "cpu",
    "brokers": "name",
    "parts": "backlog",
}


class Summary(TypedDict):
    topics: int
    channels: int
    in_rate: float
    in_bytes_rate: float
    out_rate: float
    depth: int
    in_flight: int
    log_bytes: int


class Picture:
    """The whole broker as of the last overview.

    The next request asks for changes since `version`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.broker: BrokerSummary  # set by the first overview
        self._topics: dict[str, tuple[OverviewRow, Mapping[str, OverviewRow]]] = {}
        self._processes: Sequence[ProcessStats] = ()
        self._cluster: Report | None = None
        self._topic_fields: Sequence[str] = ()
        self._channel_fields: Sequence[str] = ()

    def take(self, overview: OverviewAnswer) -> None:
        if overview["whole"]:
            self._topics = {}
            self._topic_fields, self._channel_fields = (
                overview.get("topic_fields", ()),
                overview.get("channel_fields", ()),
            )
        for name, (row, channels) in overview["topics"].items():
            before, others = self._topics.get(name, ((), {}))
            self._topics[name] = row or before, {**others, **channels}
        self.version, self.broker = overview["version"], overview["broker"]
        self._processes = overview.get("processes", self._processes)

    def take_cluster(self, report: Report) -> None:
        self._cluster = report

    @property
    def waits(self) -> bool:
        """True until the brokers of the cluster have answered for the first time."""
        return self._cluster is None

    def rows(
        self, view: str, now_ns: int, used: Mapping[int, tuple[float | None, int]] | None = None
    ) -> list[Row]:
        """Return the rows of a view. `used` has processor share and memory by pid, where known."""
        if view == "processes":
            return [self._process(each, used or {}) for each in self._processes]
        if view in CLUSTER_VIEWS:
            report = self._cluster
            if report is None:
                return []
            if view == "parts":
                return [_parts(each) for each in report["topics"]]
            width = len(str(max((each["number"] for each in report["brokers"]), default=0)))
            return [_broker(each, width) for each in report["brokers"]]
        if view == "topics":
            return [
                self._topic(name, row, channels, now_ns)
                for name, (row, channels) in self._topics.items()
            ]
        return [
            self._channel(topic, name, row, now_ns)
            for topic, (_, channels) in self._topics.items()
            for name, row in channels.items()
        ]

    def _topic(
        self, name: str, row: OverviewRow, channels: Mapping[str, OverviewRow], now_ns: int
    ) -> Row:
        values = dict(zip(self._topic_fields, row, strict=True))
        remarks = [] if values["state"] == "up" else [str(values["state"])]
        remarks += [f"closed to {values['closed']}"] * bool(values["closed"]) + ["paused"] * values[
            "paused"
        ]
        remarks += [] if values["health"] == "OK" else [str(values["health"])]
        return values | {
            "topic": name,
            "channels": len(channels),
            "age_s": _age(values["oldest_ns"], now_ns),
            "said": ", ".join(remarks),
        }

    def _channel(self, topic: str, name: str, row: OverviewRow, now_ns: int) -> Row:
        values = dict(zip(self._channel_fields, row, strict=True))
        remarks = ["paused"] * values["paused"] + (
            [] if values["health"] == "OK" else [str(values["health"])]
        )
        ages = {"age_s": _age(values["oldest_ns"], now_ns), "p99_s": values["p99_ns"] / NS_PER_S}
        return values | ages | {"topic": topic, "channel": name, "said": ", ".join(remarks)}

    def _process(self, process: ProcessStats, used: Mapping[int, tuple[float | None, int]]) -> Row:
        # What is in a shared process has no processor share and memory of its own.
        pid = 0 if process.get("host") else process.get("pid", 0)
        cpu, memory = used.get(pid, (None, 0))
        state = process.get("state", "up")
        remark = "" if state == "up" else state
        return {**process, "cpu": cpu, "memory": memory, "said": remark}

    def summary(self) -> Summary:
        """Return the sums of all topics and channels."""
        topics = self.rows("topics", 0)
        channels = self.rows("channels", 0)
        return {
            "topics": len(topics),
            "channels": len(channels),
            "in_rate": sum(row["in_rate"] for row in topics),
            "in_bytes_rate": sum(row["in_bytes_rate"] for row in topics),
            "out_rate": sum(row["out_rate"] for row in channels),
            "depth": sum(row["depth"] for row in channels),
            "in_flight": sum(row["in_flight"] for row in channels),
            "log_bytes": sum(row["log_bytes"] for row in topics),
        }


def _broker(broker: BrokerRow, width: int) -> Row:
    """Return the row of a broker. Numbers have the same width, so that they are sorted right."""
    mine = " (this one)" if broker["me"] else ""
    remark = "" if broker["health"] == "OK" else broker["health"] or broker["why"]
    return {**broker, "name": f"{broker['number']:>{width}}{mine}", "said": remark}


def _parts(topic: TopicRow) -> Row:
    silent = len(topic["parts"]) - topic["answered"]
    return {
        **topic,
        "part_count": len(topic["parts"]),
        "brokers": len({part["broker"] for part in topic["parts"]}),
        "said": f"no answer for {silent} of {len(topic['parts'])} parts" if silent else "",
    }


def _age(oldest_ns: int, now_ns: int) -> float:
    return max(0.0, (now_ns - oldest_ns) / NS_PER_S) if oldest_ns > 0 else float(oldest_ns)


@dataclass(slots=True)
class Screen:
    """The settings of the display. `typing` is True while the user types the filter."""

    view: str = "channels"
    order: dict[str, str] = field(default_factory=lambda: dict(FIRST))
    turned: dict[str, bool] = field(default_factory=dict)
    filter: str = ""
    typing: bool = False
    paused: bool = False
    over: bool = False
    first: int = 0

    def arranged(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that contain the filter in one of their texts, sorted."""
        wanted = self.filter.lower()
        texts = [column.key for column in COLUMNS[self.view] if column.is_text]
        sorted_rows = [
            row
            for row in rows
            if not wanted or any(wanted in str(row[key]).lower() for key in texts)
        ]
        name = COLUMNS[self.view][0].key
        sorted_rows.sort(key=lambda row: tuple(str(row[key]) for key in texts))
        column = next(each for each in COLUMNS[self.view] if each.key == self.order[self.view])
        turned = self.turned.get(self.view, False)
        if column.key != name or turned:
            values: Callable[[Row], Any] = (
                (lambda row: str(row[column.key]))
                if column.is_text
                else (lambda row: row[column.key] or 0)
            )
            sorted_rows.sort(key=values, reverse=turned if column.is_text else not turned)
        return sorted_rows

    def window(self, rows: Sequence[Row], height: int) -> Sequence[Row]:
        """Return the visible rows. The position is kept as far as the rows allow."""
        self.first = max(0, min(self.first, len(rows) - height))
        return rows[self.first : self.first + max(height, 0)]

    def press(self, key: str, height: int = 20) -> None:
        """Process a key.

        `key` is a character or a name: up, down, left, right, pageup, pagedown, home, end, enter,
        escape, backspace.
        """
        if self.typing:
            self._type(key)
        elif key in ("q", "Q", "\x03", "\x04"):
            self.over = True
        elif key in ("1", "2", "3", "4", "5", "\t"):
            self.view = (
                VIEWS[int(key) - 1]
                if key != "\t"
                else VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
            )
            self.first = 0
        elif key in ("left", "right", "<", ">"):
            keys = [column.key for column in COLUMNS[self.view]]
            step = 1 if key in ("right", ">") else -1
            self.order[self.view] = keys[(keys.index(self.order[self.view]) + step) % len(keys)]
            self.turned[self.view] = False
        elif key in ("r", "R"):
            self.turned[self.view] = not self.turned.get(self.view, False)
        elif key in ("/", "f"):
            self.typing = True
        elif key == "escape":
            self.filter = ""
        elif key in (" ", "p"):
            self.paused = not self.paused
        else:
            steps = {
                "up": -1,
                "k": -1,
                "down": 1,
                "j": 1,
                "pageup": -height,
                "pagedown": height,
                "home": -(10**9),
                "end": 10**9,
            }
            self.first = max(0, self.first + steps.get(key, 0))

    def _type(self, key: str) -> None:
        if key in ("enter", "escape", "\x03"):
            self.typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.filter) < FILTER_MAX:
            self.filter += key
        self.first = 0


class Usage:
    """Processor time and memory of this machine's processes, read from /proc."""

    def __init__(self, root: str = "/proc", ticks_s: int = 100, page_bytes: int = 4096) -> None:
        self._root = root
        self._ticks_s = ticks_s
        self._page_bytes = page_bytes
        self._before: dict[int, tuple[int, float]] = {}

    @classmethod
    def here(cls) -> Self:
        """Return one with the units of this system. Where no broker runs, it finds no process."""
        if not hasattr(os, "sysconf"):
            return cls()
        return cls(ticks_s=os.sysconf("SC_CLK_TCK"), page_bytes=os.sysconf("SC_PAGESIZE"))

    def look(
        self, pids: Iterable[int], now_s: float | None = None
    ) -> dict[int, tuple[float | None, int]]:
        """Return the processor share of each process since the last call, and its memory in bytes.

        The share is a percentage of one processor, or None in the first call. Memory includes
        shared pages.
        """
        now_s = time.monotonic() if now_s is None else now_s
        usage: dict[int, tuple[float | None, int]] = {}
        seen: dict[int, tuple[int, float]] = {}
        for pid in pids:
            try:
                with open(f"{self._root}/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = int(fields[11]) + int(fields[12])
            seen[pid] = ticks, now_s
            before = self._before.get(pid)
            share_ = (
                None
                if before is None
                else 100 * (ticks - before[0]) / self._ticks_s / max(now_s - before[1], 0.001)
            )
            usage[pid] = share_, int(fields[21]) * self._page_bytes
        self._before = seen
        return usage
