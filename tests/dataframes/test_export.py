"""Tests of `zsq export`: every message is in exactly one file, whatever interrupts the runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import duckdb
import polars
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from support.topic import Topic
from support.zsq_command import run

from zsq import DataLoss, Refused, UsageError
from zsq.apps import export as exports
from zsq.apps.export import ExportPlan, ExportReport, Span, export, files_of, folder_of, missing
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.wire.protocol import Spread
from zsq.transport.wire.spread import HasParts

HOUR = exports.HOUR_NS
NOON = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()) * 1_000_000_000


class World:
    """A topic in memory, in place of a broker's."""

    def __init__(self) -> None:
        self.uuid = "a" * 32
        self.blocks: list[Block] = []
        self.oldest = 0
        self.parts: HasParts | None = None

    @property
    def head(self) -> int:
        return self.blocks[-1].next_offset if self.blocks else 0

    def put(self, count: int, time_ns: int = NOON) -> None:
        first = self.head
        bodies = [b"%d" % offset for offset in range(first, first + count)]
        self.blocks.append(with_place(pack(bodies), first, time_ns))

    def reader(self, topic: str, **more: Any) -> FakeReader:
        return FakeReader(self, topic)

    def range(self, topic: str, start: int, stop: int, **more: Any) -> FakeRange:
        return FakeRange(self, start, stop, more["on_data_loss"] == "fail")


class FakeReader:
    def __init__(self, world: World, topic: str) -> None:
        self._world = world
        self._topic = topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def uuid(self) -> str:
        return self._world.uuid

    def bounds(self) -> tuple[int, int]:
        if self._world.parts is not None and "#" not in self._topic:
            raise self._world.parts
        return self._world.oldest, self._world.head

    def offset_at(self, time_ns: int) -> int:
        found = [one.first_offset for one in self._world.blocks if one.header.time_ns >= time_ns]
        return min(found, default=self._world.head)


class FakeRange:
    def __init__(self, world: World, start: int, stop: int, fails: bool) -> None:
        self._world = world
        self._span = Span(start, stop)
        self._fails = fails
        self.lost = 0
        self.gaps: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __iter__(self) -> Iterator[Block]:
        start, stop = self._span
        if start < self._world.oldest:
            if self._fails:
                raise DataLoss("E_DATA_LOSS", "removed")
            self.lost = min(stop, self._world.oldest) - start
            self.gaps.append((start, self.lost))
        for block in self._world.blocks:
            if block.next_offset > max(start, self._world.oldest) and block.first_offset < stop:
                yield block


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(exports, "Reader", found.reader)
    monkeypatch.setattr(exports, "RangeReader", found.range)
    return found


def to(path: Path, **more: Any) -> ExportReport:
    return export(ExportPlan("tcp://nowhere", "clicks", path, **more))


def offsets(folder: Path) -> list[int]:
    """Return the offsets of all rows, as a program reads them that knows nothing of ZSQ."""
    if not any(folder.rglob("*.parquet")):
        return []
    found: list[int] = ds.dataset(folder, partitioning="hive").to_table()["offset"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        ([], [(0, 10)]),
        ([(0, 10)], []),
        ([(2, 4), (6, 7)], [(0, 2), (4, 6), (7, 10)]),
        ([(0, 3), (8, 20)], [(3, 8)]),
        ([(20, 30)], [(0, 10)]),
    ],
)
def test_missing_is_what_no_file_has(
    have: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert missing([Span(*one) for one in have], 0, 10) == [Span(*one) for one in expected]


def test_each_hour_has_its_folder_and_each_file_says_its_offsets(
    world: World, tmp_path: Path
) -> None:
    world.put(5)
    world.put(3, NOON + HOUR - 1)
    world.put(4, NOON + HOUR)
    world.put(1, NOON + 13 * HOUR)
    report = to(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in report.files] == [
        "date=2026-11-27/hour=12/clicks-0000000000000000-0000000000000008.parquet",
        "date=2026-11-27/hour=13/clicks-0000000000000008-0000000000000012.parquet",
        "date=2026-11-28/hour=01/clicks-0000000000000012-0000000000000013.parquet",
    ]
    assert (report.messages, report.ends) == (13, {"clicks": 13})
    assert offsets(tmp_path) == list(range(13))
    known = pq.read_metadata(report.files[1]).metadata
    assert known[b"zsq.start"], known[b"zsq.end"] == (b"8", b"12")
    assert folder_of(NOON // HOUR) == "date=2026-11-27/hour=12"


def test_another_run_adds_only_what_is_new(world: World, tmp_path: Path) -> None:
    world.put(5)
    to(tmp_path)
    assert to(tmp_path).files == []
    world.put(5)
    world.put(5, NOON + HOUR)
    assert to(tmp_path).messages == 10
    assert offsets(tmp_path) == list(range(15))


def test_a_start_before_what_is_there_fills_only_the_gap(world: World, tmp_path: Path) -> None:
    world.put(10)
    to(tmp_path, start=6, end=8)
    assert offsets(tmp_path) == [6, 7]
    assert to(tmp_path, start="earliest").messages == 8
    assert offsets(tmp_path) == list(range(10))


def test_a_full_file_is_followed_by_another_one(world: World, tmp_path: Path) -> None:
    for _ in range(6):
        world.put(10)
    report = to(tmp_path, file_bytes=2 * world.blocks[0].length)
    assert [span.stop - span.start for span in sorted(files_of(tmp_path, "clicks"))] == [20] * 3
    assert len(report.files) == 3


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_run_that_dies_anywhere_leaves_nothing_half_and_the_next_one_completes_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    """`abandon` does nothing, as in a process that was killed."""
    for hour in range(4):
        world.put(7, NOON + hour * HOUR)
    calls = 0
    real = getattr(os, call)

    def dying(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        patch.setattr(exports._Parquet, "abandon", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            to(tmp_path)
    there = offsets(tmp_path)
    assert there == list(range(len(there)))
    assert len(there) % 7 == 0
    world.put(2, NOON + 3 * HOUR)
    to(tmp_path)
    assert offsets(tmp_path) == list(range(30))
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_failed_run_removes_its_unfinished_file(world: World, tmp_path: Path) -> None:
    world.put(5)
    world.put(5)

    def failing(done: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        export(ExportPlan("tcp://nowhere", "clicks", tmp_path), failing)
    with pytest.raises(OSError, match="No space"):
        export(ExportPlan("tcp://nowhere", "clicks", tmp_path / "one.parquet"), failing)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [exports.LOCK]


def test_lost_messages_stop_an_export_unless_they_may_be_left_out(
    world: World, tmp_path: Path
) -> None:
    world.put(5)
    to(tmp_path)
    world.put(5)
    world.put(5)
    world.oldest = 10
    with pytest.raises(DataLoss):
        to(tmp_path)
    report = to(tmp_path, skip_lost=True)
    assert (report.lost, report.messages) == (5, 5)
    assert [*report.gaps.values()] == [[(5, 5)]]
    assert to(tmp_path).files == []
    assert offsets(tmp_path) == [*range(5), *range(10, 15)]


def test_files_of_another_topic_with_this_name_are_not_continued(
    world: World, tmp_path: Path
) -> None:
    world.put(5)
    to(tmp_path)
    world.uuid = "b" * 32
    world.put(5)
    with pytest.raises(UsageError, match="deleted and created again"):
        to(tmp_path)


def test_two_exports_into_one_directory_exclude_each_other(world: World, tmp_path: Path) -> None:
    world.put(5)

    def again(done: int) -> None:
        with pytest.raises(Refused, match="another export writes"):
            to(tmp_path)

    assert export(ExportPlan("tcp://nowhere", "clicks", tmp_path), again).messages == 5


@pytest.mark.parametrize("place", ["s3://bucket/x", "gs://bucket/x.parquet", "file:///tmp/x"])
def test_a_url_is_no_place_for_an_export(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It made a folder with the name `s3:`, and then failed in pyarrow."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not to a URL"):
        to(Path(place))
    assert list(tmp_path.iterdir()) == []


def test_one_file_has_the_range_and_is_never_overwritten(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        world.put(10, NOON)
        world.put(10, NOON + HOUR)
    path = tmp_path / "clicks.parquet"
    assert to(path, start=5, end=45).messages == 40
    assert pq.read_table(path)["offset"].to_pylist() == list(range(5, 45))
    with pytest.raises(UsageError, match="exists; name another file"):
        to(path)
    assert [one.name for one in tmp_path.iterdir()] == ["clicks.parquet"]


def test_parts_have_files_of_their_own_and_a_column(world: World, tmp_path: Path) -> None:
    world.put(5)
    world.parts = HasParts(Spread(1, "clicks", world.uuid, ((1, 7), (0, 7)), ()))
    assert to(tmp_path).ends == {"clicks#0": 5, "clicks#1": 5}
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(table["partition"].to_pylist()) == [0] * 5 + [1] * 5
    assert to(tmp_path).files == []
    assert to(tmp_path / "all.parquet").messages == 10
    with pytest.raises(UsageError, match="each has its own offsets: give a time, or export one"):
        to(tmp_path, start=3)


def test_places_may_be_times_and_a_place_beyond_the_end_is_refused(
    world: World, tmp_path: Path
) -> None:
    world.put(5)
    world.put(5, NOON + HOUR)
    start = datetime.fromtimestamp((NOON + HOUR) / 1e9, UTC)
    assert to(tmp_path, start=start).messages == 5
    with pytest.raises(
        UsageError, match="offset 99 is beyond the end of topic clicks, which is 10"
    ):
        to(tmp_path, start=99)


# With a broker and the command line


def test_the_command_exports_what_polars_and_duckdb_read(topic: Topic, tmp_path: Path) -> None:
    topic.put(*[b"%d" % n for n in range(2000)], tag="x")
    ended = run("export", topic.name, "--to", str(tmp_path), "--json", ZSQ_URL=topic.url)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert (said["messages"], said["ends"], said["lost"]) == (2000, {topic.name: 2000}, 0)
    topic.put(b"more")
    ended = run("export", topic.name, "--to", str(tmp_path), ZSQ_URL=topic.url)
    assert b": 1 messages, " in ended.stdout
    ended = run("export", topic.name, "--to", str(tmp_path), ZSQ_URL=topic.url)
    assert b"nothing new; it has" in ended.stdout
    with duckdb.connect() as db:
        [row] = db.execute(
            'select count(*), count(distinct "offset"), count(tag), min(hour::int) >= 0 from '
            f"read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true)"
        ).fetchall()
    assert row == (2001, 2001, 2000, True)
    frame = polars.scan_parquet(tmp_path, hive_partitioning=True).select("value").collect()
    assert sorted(frame["value"].to_list()) == sorted([b"more", *(b"%d" % n for n in range(2000))])


def test_the_command_says_what_is_wrong(topic: Topic, tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    path.touch()
    topic.put(b"a")
    ended = run("export", topic.name, "--to", str(path), ZSQ_URL=topic.url)
    assert (ended.returncode, b"exists; name another file" in ended.stderr) == (2, True)
    ended = run("export", "nothing", "--to", str(tmp_path), ZSQ_URL=topic.url)
    said = ended.stderr.decode()
    assert (ended.returncode, said.strip()) == (
        1,
        "zsq: E_NOT_FOUND topic 'nothing' does not exist",
    )
    file = tmp_path / "file"
    file.touch()
    ended = run("export", topic.name, "--to", str(file), ZSQ_URL=topic.url)
    assert (ended.returncode, b"ends in .parquet" in ended.stderr) == (2, True)
    ended = run("export", topic.name, "--to", str(tmp_path), "--columns", "body", ZSQ_URL=topic.url)
    assert (ended.returncode, b"there is no column 'body'" in ended.stderr) == (2, True)
