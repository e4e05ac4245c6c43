"""Statistics of schedules: a row of the broker."""

from __future__ import annotations

from typing import Final

from ..statistics.statistic import ExtensionStatistics, Section
from ..statistics.statistic import Statistic as _S
from .extension import SchedulerService

_BOOK: Final = "schedules/book.py"

_ROWS: Final = (
    _S("broker", "schedules", "row", "schedules/statistics.py", "the schedules of all topics; left out without one", default={}),
    _S("schedules", "count", "schedules", _BOOK, "schedules of all topics", metric="zsq_schedules"),
    _S("schedules", "failing", "schedules", _BOOK, "schedules that cannot publish now", metric="zsq_schedules_failing"),
    _S("schedules", "published_count", "messages", _BOOK, "messages that schedules have published", metric="zsq_schedule_messages_total"),
    _S("schedules", "missed_count", "due times", _BOOK, "due times that were missed and left out", metric="zsq_schedule_missed_total"),
)  # fmt: skip
STATISTICS: Final = ExtensionStatistics(_ROWS, (Section("schedules", SchedulerService.kind),))
