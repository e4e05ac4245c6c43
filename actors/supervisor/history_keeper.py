"""History keeper: writes the figures of all topics and channels once a minute, and shows them.

`statistics/history_file.py` has the file. The figures come from the overview, so no process is
asked. A row is about the minute that has just ended, because rates are over the last minute.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.wire.admin_requests import HistoryRequest
from ..statistics.broker_view import REPORTED, BrokerView
from ..statistics.history_file import SPANS, HistoryFile, Track, history_rows
from ..statistics.overview import Overview

NAME: Final = "history"
POINTS_MAX: Final = 720


class HistoryKeeper:
    """The history of the broker's charts. `tick` is called in each turn of the supervisor."""

    def __init__(self, view: BrokerView, data_dir: Path) -> None:
        self._view = view
        self._overview = Overview(view)
        self._file = HistoryFile(str(data_dir / NAME))
        self._minute = int(time.time() // 60)

    def tick(self) -> None:
        minute = int(time.time() // 60)
        if minute != self._minute:
            self._minute = minute
            self._file.note(minute - 1, history_rows(self._overview.rows()), self._is_gone)

    def _is_gone(self, track: Track) -> bool:
        """Return True if a topic or channel was deleted. The channels of a topic that starts are
        not known.
        """
        topic, channel = track
        group = self._view.groups.get(topic)
        if group is None:
            return True
        return group.state in REPORTED and bool(channel) and channel not in group.channels

    def answer(self, request: HistoryRequest) -> dict[str, object]:
        """Return the figures over a day or 30 days. What is not known is None."""
        span, points = request.span, request.points
        if span not in SPANS or not 1 <= points <= POINTS_MAX:
            text = f"history needs span ({', '.join(SPANS)}) and points (1 to {POINTS_MAX})"
            raise UsageError(E_BAD_ARGUMENT, f"{text}, not {span!r:.40} and {points}")
        now_s = int(time.time())
        track = request.topic, request.channel
        step_s, values_by_name = self._file.series(track, span, now_s, points)
        end_s = now_s - now_s % SPANS[span].step_s
        series = {
            name: tuple(None if math.isnan(value) else value for value in values)
            for name, values in values_by_name.items()
        }
        return {"step_s": step_s, "end_ms": end_s * 1_000, "series": series}
