"""History file: figures of topics and channels over a day and over 30 days.

There is one row a minute, and one an hour. `DATA_DIR/history` has a fixed size, and holes where
nothing was written:

    head     16 bytes: the magic with the version, and the size of a track
    track    the name (topic, NUL, channel), then 1,440 rows of minutes and 720 rows of hours
    row      the minute since 1970, or the hour, and FIGURES numbers of 4 bytes

A row is at its time modulo the number of rows, so an older row is recognized by its time. A row
of an hour has the means of rates, and the largest of levels, of the rows of its minutes. It is
written each SUM_EVERY minutes, and once more when the next hour begins. So a broker that stops
for some hours keeps the hour in which it stopped, but for its last minutes. Nothing is synced:
a crash of the machine may lose the last minutes. A file that is damaged, or of an older version,
is made anew. With a file of a newer version, which is left alone, or without room on the disk,
there is no history. All this is in the log, and the broker goes on.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...storage.files import Files
from .overview import CHANNEL_FIELDS, TOPIC_FIELDS

log = logging.getLogger("zsq")

TRACKS_MAX: Final = 500
FIGURES: Final = 5
NAME_BYTES: Final = 160
SUM_EVERY: Final = 10
_ROW: Final = struct.Struct(f"<I{FIGURES}f")
_HEAD: Final = struct.Struct("<12sI")
_KIND: Final = b"zsqhistory"
_VERSION: Final = b"01"
_MAGIC: Final = _KIND + _VERSION
NAN: Final = math.nan
Track = tuple[str, str]  # topic, and channel or ""
# The figures of a row in their order. True means that an hour has their mean, and else the largest.
TOPIC_FIGURES: Final = {"in": True, "in_bytes": True, "out": True, "backlog": False}
CHANNEL_FIGURES: Final = {
    "depth": False, "in_flight": False, "out": True, "p50_ms": False, "p99_ms": False,
}  # fmt: skip


class Ring(NamedTuple):
    """One of the two rings of a track. `offset` is its place in the track."""

    rows: int
    step_s: int
    offset: int


MINUTES: Final = Ring(1_440, 60, NAME_BYTES)
HOURS: Final = Ring(720, 3_600, NAME_BYTES + 1_440 * _ROW.size)
SPANS: Final = {"1d": MINUTES, "30d": HOURS}
TRACK_BYTES: Final = HOURS.offset + HOURS.rows * _ROW.size
SIZE: Final = _HEAD.size + TRACKS_MAX * TRACK_BYTES


class HistoryFile:
    """The history of one broker. `note` is called once a minute."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self._files = files or Files()
        self._path = path
        self._fd = -1
        self._slots: dict[Track, int] = {}
        self._used: set[int] = set()  # places that may have rows of an earlier track
        self._hour = -1  # the hour whose row is not written yet
        try:
            self._open()
        except OSError as error:
            self._give_up(error)

    def _open(self) -> None:
        if self._files.exists(self._path):
            fd = self._files.open_append(self._path)
            if self._files.size(fd) == SIZE and self._files.pread(fd, _HEAD.size, 0) == _HEAD.pack(
                _MAGIC, TRACK_BYTES
            ):
                self._fd = fd
                self._read_names()
                return
            head = self._files.pread(fd, _HEAD.size, 0)
            self._files.close(fd)
            if head.startswith(_KIND) and head[len(_KIND) :][:2] > _VERSION:
                log.warning("%s was written by a newer version: there is no history", self._path)
                return
            log.warning("%s is damaged, or of another version: the history begins anew", self._path)
            self._files.remove(self._path)
        fd = self._files.open_new(self._path)
        self._files.truncate(fd, SIZE)
        self._files.writev(fd, [_HEAD.pack(_MAGIC, TRACK_BYTES)], 0)
        self._fd = fd

    def _read_names(self) -> None:
        for slot in range(TRACKS_MAX):
            name = self._files.pread(self._fd, NAME_BYTES, _place(slot)).rstrip(b"\0")
            topic, _, channel = name.decode(errors="replace").partition("\0")
            if topic:
                self._slots[topic, channel] = slot
                self._used.add(slot)

    def _give_up(self, error: OSError) -> None:
        log.warning("there is no history of the charts: %s: %s", self._path, error)
        self._fd = -1

    def note(
        self,
        minute: int,
        rows: Mapping[Track, Sequence[float]],
        is_gone: Callable[[Track], bool] = lambda track: True,
    ) -> None:
        """Write the figures of this minute.

        Tracks that are not in `rows`, and for which `is_gone` is true, give their place away.
        """
        if self._fd < 0:
            return
        try:
            self._assign(rows, is_gone)
            hour = minute // 60
            before = hour - 1 if self._hour < 0 else self._hour
            if before != hour:
                for track, slot in self._slots.items():
                    self._sum_up(track, slot, before)
            self._hour = hour
            for track, values in rows.items():
                if (slot := self._slots.get(track, -1)) >= 0:
                    self._write(slot, MINUTES, minute, values)
                    if minute % SUM_EVERY == SUM_EVERY - 1:
                        self._sum_up(track, slot, hour)
        except OSError as error:
            self._give_up(error)

    def _assign(self, rows: Mapping[Track, object], is_gone: Callable[[Track], bool]) -> None:
        """Give new tracks the places of tracks that are gone, or free ones."""
        new = [track for track in rows if track not in self._slots]
        if not new and len(self._slots) == len(rows):
            return
        for track in filter(is_gone, self._slots.keys() - rows.keys()):
            del self._slots[track]
        free = sorted(set(range(TRACKS_MAX)) - set(self._slots.values()))
        for track, slot in zip(new, free, strict=False):
            name = "\0".join(track).encode().ljust(NAME_BYTES, b"\0")
            rest = bytes(TRACK_BYTES - NAME_BYTES if slot in self._used else 0)
            self._files.writev(self._fd, [name, rest], _place(slot))
            self._slots[track] = slot
            self._used.add(slot)

    def _sum_up(self, track: Track, slot: int, hour: int) -> None:
        rows = [row for row in self._read(slot, MINUTES, hour * 60, 60) if row]
        means = [*(CHANNEL_FIGURES if track[1] else TOPIC_FIGURES).values(), False][:FIGURES]
        if rows:
            values = [
                combined(column, mean)
                for column, mean in zip(zip(*rows, strict=True), means, strict=True)
            ]
            self._write(slot, HOURS, hour, values)

    def _write(self, slot: int, ring: Ring, at: int, values: Sequence[float]) -> None:
        row = _ROW.pack(at, *values, *[NAN] * (FIGURES - len(values)))
        self._files.writev(self._fd, [row], _place(slot, ring, at))

    def _read(self, slot: int, ring: Ring, first: int, count: int) -> list[tuple[float, ...]]:
        """Return the rows from the time `first` on. A row that is not there is empty."""
        begin = first % ring.rows if first % ring.rows + count <= ring.rows else 0
        size = count if begin else ring.rows
        data = self._files.pread(self._fd, size * _ROW.size, _place(slot, ring, begin))
        rows_read = []
        for at in range(first, first + count):
            time, *values = _ROW.unpack_from(data, (at % ring.rows - begin) * _ROW.size)
            rows_read.append(tuple(values) if time == at else ())
        return rows_read

    def series(
        self, track: Track, span: str, now_s: int, points: int
    ) -> tuple[int, dict[str, list[float]]]:
        """Return the seconds between two points, and the values of each figure, oldest first.

        The newest point is the last complete one. What is not known is NaN.
        """
        ring, names = SPANS[span], CHANNEL_FIGURES if track[1] else TOPIC_FIGURES
        each = -(-ring.rows // points)
        slot = self._slots.get(track, -1)
        rows: list[tuple[float, ...]] = [()] * ring.rows
        if self._fd >= 0 and slot >= 0:
            try:
                rows = self._read(slot, ring, now_s // ring.step_s - ring.rows, ring.rows)
            except OSError as error:
                self._give_up(error)
        points_of = {}
        for number, (name, mean) in enumerate(names.items()):
            values = [row[number] if row else NAN for row in rows]
            begin = len(values) % each
            groups = [values[at : at + each] for at in range(begin, len(values), each)]
            points_of[name] = [combined(group, mean) for group in groups]
        return ring.step_s * each, points_of


def history_rows(
    topics: Mapping[str, tuple[Sequence[Any], Mapping[str, Sequence[Any]]]],
) -> dict[Track, tuple[float, ...]]:
    """Return the figures of all topics and channels, from the rows of the overview."""
    rows: dict[Track, tuple[float, ...]] = {}
    for topic, (row, channels) in topics.items():
        out = 0.0
        for channel, values in channels.items():
            figures = dict(zip(CHANNEL_FIELDS, values, strict=True))
            out += figures["out_rate"]
            rows[topic, channel] = (
                figures["depth"], figures["in_flight"], figures["out_rate"], _ms(figures["p50_ns"]), _ms(figures["p99_ns"]),
            )  # fmt: skip
        of_topic = dict(zip(TOPIC_FIELDS, row, strict=True))
        rows[topic, ""] = (
            of_topic["in_rate"], of_topic["in_bytes_rate"], out, of_topic["backlog"],
        )  # fmt: skip
    return rows


def _ms(ns: int) -> float:
    return ns / 1e6 if ns else NAN


def combined(values: Sequence[float], mean: bool) -> float:
    """Return the mean or the largest of the known values, or NaN."""
    known = [value for value in values if value == value]
    if not known:
        return NAN
    return sum(known) / len(known) if mean else max(known)


def _place(slot: int, ring: Ring | None = None, at: int = 0) -> int:
    begin = _HEAD.size + slot * TRACK_BYTES
    return begin if ring is None else begin + ring.offset + at % ring.rows * _ROW.size
