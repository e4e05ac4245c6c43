"""History of the console's charts: some values of each topic and channel over time.

Each series has one value a second for 5 minutes, and one value every 10 seconds for 2 hours. It is
stored in two rings of 4-byte numbers, 4 KB together. A series that was always 0 or unknown has no
rings. The rings are written only when the value changes or a page reads the series. Then the
seconds since the last write are filled with the value that they had. So idle series cost neither
time nor memory. The maximum is `TRACKS_MAX` rows of eight series, which is 37 MB for each thousand
rows.

For each 10 seconds, a rate is stored as its mean and a level (a depth, a latency) as its maximum.
So a chart of 2 hours shows a peak of one second.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from .board import BoardRow

FINE: Final = 300  # the number of values of the fine ring, one a second
COARSE: Final = 720
STEP_S: Final = 10  # seconds between two values of the coarse ring
TRACKS_MAX: Final = 5_000  # the most topics and channels with a history; later ones have none
_NAN: Final = math.nan

# The series by name. True means that 10 seconds are stored as their mean, False as their maximum.
TOPIC_FIGURES: Final = {"in": True, "in_bytes": True, "out": True, "backlog": False}
CHANNEL_FIGURES: Final = {
    "depth": False, "in_flight": False, "deferred": False, "out": True, "again": True, "p50_ms": False, "p95_ms": False, "p99_ms": False,
}  # fmt: skip
SPANS: Final = {"5m": (FINE, 1), "2h": (COARSE, STEP_S)}


class Figure:
    """One series of values.

    `value` applies from the second `_at` on. The rings have the values before that second. Without
    rings, those values are unknown.
    """

    __slots__ = ("_at", "_coarse", "_fine", "_mean", "_sum", "_top", "value")

    def __init__(self, second: int, mean: bool) -> None:
        self._mean = mean
        self._at = second
        self.value = _NAN
        self._fine: array[float] | None = None
        self._coarse: array[float] | None = None
        self._sum = 0.0
        self._top = _NAN

    def note(self, value: float, second: int) -> None:
        """Set the value that applies from `second` on."""
        if value == self.value or (value != value and self.value != self.value):
            return
        if self._fine is None and self.value != self.value:
            self._at = second  # all earlier values are unknown
        else:
            self._fill(second, needed=True)
        self.value = value

    def _fill(self, second: int, *, needed: bool) -> None:
        """Write the current value into the rings for all seconds before `second`.

        If the series has no rings, they are created only if `needed`.
        """
        if second <= self._at or (self._fine is None and not needed):
            return
        if self._fine is None:
            self._fine, self._coarse = array("f", [_NAN]) * FINE, array("f", [_NAN]) * COARSE
        assert self._coarse is not None
        if second == self._at + 1 and second % STEP_S:  # the usual case
            value = self.value
            self._fine[self._at % FINE] = value
            if value == value:
                self._sum += value
                self._top = value if not self._top >= value else self._top
            self._at = second
            return
        value, at = self.value, max(self._at, second - FINE)
        for step in range(at, second):
            self._fine[step % FINE] = value
        at = max(self._at, second - second % STEP_S - COARSE * STEP_S)
        if at > self._at:
            self._sum, self._top = 0.0, _NAN
        while at < second:
            border = at - at % STEP_S + STEP_S
            upto = min(border, second)
            if value == value:
                self._sum += value * (upto - at)
                self._top = value if not self._top >= value else self._top
            if upto == border:
                self._coarse[at // STEP_S % COARSE] = (
                    (self._sum / STEP_S if self._top == self._top else _NAN)
                    if self._mean
                    else self._top
                )
                self._sum, self._top = 0.0, _NAN
            at = upto
        self._at = second

    def last(self, span: str, second: int) -> list[float]:
        """Return the values of a span, the oldest first.

        The newest is for the last complete second, or the last complete 10 seconds.
        """
        count, step_s = SPANS[span]
        end = second // step_s
        self._fill(second, needed=self.value == self.value and self.value != 0)
        ring = self._fine if step_s == 1 else self._coarse
        if ring is None:
            known = min(count, max(0, end - -(-self._at // step_s))) if self.value == 0 else 0
            return [_NAN] * (count - known) + [0.0] * known
        cut = end % count
        return [*ring[cut:], *ring[:cut]]


class Track:
    """The series of one row."""

    __slots__ = ("figures",)

    def __init__(self, names: Mapping[str, bool], second: int) -> None:
        self.figures = {name: Figure(second, mean) for name, mean in names.items()}

    def note(self, values: Iterable[tuple[str, float | None]], second: int) -> None:
        for name, value in values:
            self.figures[name].note(_NAN if value is None else value, second)


class History:
    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], Track] = {}

    def note(self, changed: Iterable[tuple[str, str, BoardRow]], second: int) -> None:
        """Record changed rows of the board at `second` of a monotonic clock."""
        for topic, channel, row in changed:
            track = self._tracks.get((topic, channel))
            if track is None:
                if len(self._tracks) >= TRACKS_MAX:
                    continue
                track = self._tracks[topic, channel] = Track(
                    CHANNEL_FIGURES if channel else TOPIC_FIGURES, second
                )
            values = row.values
            figures = [(name, values.get(name)) for name in track.figures if name != "again"]
            if channel:
                figures.append(("again", values["requeues"] + values["timeouts"]))
            track.note(figures, second)

    def keep_only(self, topics: Mapping[str, BoardRow]) -> None:
        """Forget all topics and channels that are not in `topics`."""
        if len(self._tracks) != len(topics) + sum(len(row.channels) for row in topics.values()):
            self._tracks = {
                (topic, channel): track
                for (topic, channel), track in self._tracks.items()
                if topic in topics and (not channel or channel in topics[topic].channels)
            }

    def lost(self, second: int) -> None:
        """Note that all values are unknown from `second` on."""
        for track in self._tracks.values():
            for figure in track.figures.values():
                figure.note(_NAN, second)

    def series(
        self, topic: str, channel: str, span: str, names: Sequence[str], points: int, second: int
    ) -> dict[str, list[float | None]]:
        """Return the named series, with at most `points` values each."""
        track = self._tracks.get((topic, channel))
        count = SPANS[span][0]
        series = {}
        for name in names:
            figure = track.figures.get(name) if track is not None else None
            values = figure.last(span, second) if figure is not None else [_NAN] * count
            mean = (CHANNEL_FIGURES if channel else TOPIC_FIGURES).get(name, False)
            series[name] = [
                _shown(value) for value in thinned(values, stride(span, points), mean=mean)
            ]
        return series


def stride(span: str, points: int) -> int:
    """Return how many values to combine into one, so that at most `points` values result."""
    count = SPANS[span][0]
    return max(1, -(-count // max(1, points)))


def thinned(values: Sequence[float], each: int, *, mean: bool) -> Sequence[float]:
    """Return one value for each group of `each` values.

    The newest values form complete groups. An incomplete group at the beginning is left out.
    """
    if each <= 1:
        return values
    points = []
    for at in range(len(values) % each, len(values), each):
        known = [value for value in values[at : at + each] if value == value]
        points.append((sum(known) / len(known) if mean else max(known)) if known else _NAN)
    return points


def _shown(value: float) -> float | None:
    """Return a value rounded for JSON, or None for NaN. 4-byte numbers have only seven digits."""
    if value != value:
        return None
    return int(value) if value.is_integer() else float(f"{value:.4g}")
