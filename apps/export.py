"""Export of a topic to Parquet: one file, or a directory with a folder for each hour.

Files of a directory are named by the offsets that they hold:

    DIR/date=2026-11-27/hour=14/clicks-0000000000001000-0000000000002500.parquet

The hour (UTC) is the one in which the broker stored the messages. This time only grows from one
block to the next, so each file holds consecutive offsets, and its name says all that it holds. The
publish times of delayed messages do not grow. With them, a file for each hour would have gaps, and
no name could tell a later run what is missing.

A file is written under a temporary name in its folder, which begins with a dot, so readers leave it
out. It is synced, and then gets its name. So a file that has its name is complete, and a later run
continues after it. After a crash, the next run begins the same file again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..transport.block.block import Block
from ..transport.client.blocking.client import Reader
from ..transport.client.blocking.range_reader import RangeReader
from ..transport.errors import (
    E_BAD_ARGUMENT,
    E_EXISTS,
    E_IN_USE,
    E_PARTS,
    E_UNSUPPORTED,
    Refused,
    UsageError,
)
from ..transport.names import part_name, part_of
from ..transport.wire.spread import HasParts
from .local_files import InUse, locked, sync_file, sync_folder

if TYPE_CHECKING:
    from ..transport.arrow.batches import BatchMaker

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024  # of blocks; this much is in memory
ROW_GROUP_ROWS: Final = 128 * 1024
FILE_BYTES: Final = 512 * 1024 * 1024  # of blocks, before compression
COLUMNS: Final = ("offset", "timestamp", "key", "tag", "value", "headers")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
HOUR_NS: Final = 3_600_000_000_000
# Of `s3://bucket/x`, a Path keeps one slash. A name such as C: is a drive of Windows.
URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
LOCK: Final = ".zsq-export.lock"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Place = str | int | datetime  # "earliest", "latest", an offset, or a time
Advance = Callable[[int], None]


@dataclass(frozen=True)
class ExportPlan:
    """Choice of the messages to export, and the destination.

    `start`: None continues after what the directory has, or begins at the oldest message. `end`:
    None is the end of the topic now.
    """

    url: str
    topic: str
    to: Path
    start: Place | None = None
    end: Place | None = None
    columns: Sequence[str] | None = None
    compression: str = COMPRESSIONS[0]
    file_bytes: int = FILE_BYTES
    skip_lost: bool = False
    timeout: float = 30.0

    @property
    def one_file(self) -> bool:
        return self.to.suffix == ".parquet"


@dataclass
class ExportReport:
    """Result of one run: the files that it wrote. `ends` has the end of each log. `gaps` has the
    first ranges of each log that were left out, as (first offset, count).
    """

    files: list[Path] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, blocks: RangeReader) -> None:
        """Note what the reader has left out."""
        if blocks.lost:
            self.lost += blocks.lost
            self.gaps.setdefault(name, []).extend(blocks.gaps)


class Span(NamedTuple):
    """The offsets from `start` to `stop` (exclusive)."""

    start: int
    stop: int


def export(plan: ExportPlan, advance: Advance = lambda done: None) -> ExportReport:
    """Export the messages that the destination does not have yet.

    Calls `advance` with the number of messages of each block. Raises `UsageError` if pyarrow is not
    installed, or the destination cannot be used, `Refused` if another export writes to it, and
    `DataLoss` if messages that should be exported no longer exist.
    """
    if find_spec("pyarrow") is None:
        text = "an export to Parquet needs the package pyarrow: pip install 'zsq[arrow]'"
        raise UsageError(E_UNSUPPORTED, text)
    if plan.file_bytes < 1 or plan.compression not in COMPRESSIONS:
        text = f"file_bytes must be at least 1 and compression one of {', '.join(COMPRESSIONS)}"
        raise UsageError(E_BAD_ARGUMENT, f"{text}, not {plan.file_bytes} and {plan.compression!r}")
    if URL.match(str(plan.to)):
        text = (
            f"an export writes to a local or mounted directory, not to a URL: {str(plan.to)!r:.80}"
        )
        raise UsageError(E_UNSUPPORTED, f"{text}. Export to a directory, and copy its files")
    report = ExportReport()
    names = logs_of(plan.topic, plan.url, plan.timeout)
    if names != [plan.topic] and (type(plan.start) is int or type(plan.end) is int):
        text = f"topic {plan.topic} has parts, and each has its own offsets"
        raise UsageError(E_PARTS, f"{text}: give a time, or export one part, such as {names[0]}")
    if plan.one_file:
        _to_file(plan, names, report, advance)
    else:
        if plan.to.exists() and not plan.to.is_dir():
            text = f"{plan.to} is no directory; the name of a single file ends in .parquet"
            raise UsageError(E_EXISTS, text)
        plan.to.mkdir(parents=True, exist_ok=True)
        with _locked(plan.to):
            for name in names:
                _to_directory(plan, name, len(names) > 1, report, advance)
    return report


def logs_of(topic: str, url: str | None, timeout: float) -> list[str]:
    """Return the topic, or the names of all its parts."""
    with Reader(topic, url=url, timeout=timeout) as reader:
        try:
            reader.bounds()
        except HasParts as error:
            return [part_name(topic, number) for number, _ in sorted(error.spread.parts)]
    return [topic]


# One log: a topic, or one part of it


class _Log:
    """One log, and the range of it that is to be exported."""

    def __init__(self, plan: ExportPlan, name: str, several: bool) -> None:
        from ..transport.arrow.batches import BatchMaker

        self.plan = plan
        self.name = name
        topic, part = part_of(name) or (name, 0)
        columns = plan.columns or (*COLUMNS, "partition") if several else plan.columns or COLUMNS
        self.maker: BatchMaker = BatchMaker(topic, columns, part)
        with Reader(name, url=plan.url, timeout=plan.timeout) as reader:
            self.uuid = reader.uuid()
            self.oldest, head = reader.bounds()
            self.start = None if plan.start is None else self._offset(reader, plan.start, head)
            self.stop = (
                head if plan.end is None else min(head, self._offset(reader, plan.end, head))
            )

    def _offset(self, reader: Reader, place: Place, head: int) -> int:
        if isinstance(place, datetime):
            return reader.offset_at(int(place.timestamp() * 1e6) * 1000)
        if isinstance(place, str):
            return self.oldest if place == "earliest" else head
        if place > head:
            text = f"offset {place} is beyond the end of topic {self.name}, which is {head}"
            raise UsageError(E_BAD_ARGUMENT, text)
        return place

    def blocks(self, span: Span) -> RangeReader:
        return RangeReader(
            self.name,
            *span,
            url=self.plan.url,
            timeout=self.plan.timeout,
            uuid=self.uuid,
            on_data_loss="ignore" if self.plan.skip_lost else "fail",
        )

    def metadata(self, start: int, stop: int) -> dict[str, str]:
        """Return what a file says about its content."""
        return {
            "zsq.topic": self.name,
            "zsq.uuid": self.uuid,
            "zsq.start": str(start),
            "zsq.end": str(stop),
        }


def missing(have: Iterable[Span], start: int, stop: int) -> list[Span]:
    """Return the parts of the range from `start` to `stop` that no span of `have` covers."""
    gaps = []
    for span in sorted(have):
        if span.stop <= start:
            continue
        if span.start >= stop:
            break
        if span.start > start:
            gaps.append(Span(start, span.start))
        start = span.stop
    if start < stop:
        gaps.append(Span(start, stop))
    return gaps


# One file


class _Parquet:
    """A Parquet file that is being written. It has a temporary name until `finish`."""

    def __init__(self, log: _Log, folder: Path, temporary: str) -> None:
        import pyarrow.parquet as pq

        folder.mkdir(parents=True, exist_ok=True)
        self._log = log
        self.path = folder / temporary
        kind = log.plan.compression
        self._writer: Any = pq.ParquetWriter(
            self.path, log.maker.schema, compression=None if kind == "none" else kind
        )
        self._batches: list[Any] = []
        self._rows = 0
        self._bytes = 0
        self.bytes = 0
        self.messages = 0

    def add(self, block: Block, span: Span) -> None:
        """Add the messages of the block that are in the span. Write a row group when it is full."""
        batch = self._log.maker.batch(block, *span)
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += block.length
        self.bytes += block.length
        self.messages += batch.num_rows
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches.clear()
        self._rows = self._bytes = 0

    def describe(self, more: dict[str, str]) -> None:
        """Add these names and values to the metadata of the file."""
        self._writer.add_key_value_metadata(more)

    def finish(self, path: Path) -> None:
        """Write the rest, sync, and give the file its name."""
        self._write()
        self._writer.close()
        sync_file(self.path)
        os.replace(self.path, path)
        sync_folder(path.parent)

    def abandon(self) -> None:
        """Remove the file. Nothing of it is left."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory. Two exports would write the same messages."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK))
        except InUse:
            raise Refused(E_IN_USE, f"another export writes to {folder}; wait for it") from None
        yield


# The two forms of an export


def _to_file(
    plan: ExportPlan, names: Sequence[str], report: ExportReport, advance: Advance
) -> None:
    """Write all messages to one file."""
    if plan.to.exists():
        text = f"{plan.to} exists; name another file, remove it, or export to a directory"
        raise UsageError(E_EXISTS, text)
    logs = [_Log(plan, name, len(names) > 1) for name in names]
    file = _Parquet(logs[0], plan.to.absolute().parent, f".{plan.to.name}.tmp")
    try:
        for log in logs:
            start = log.oldest if log.start is None else log.start
            span = Span(start, max(start, log.stop))
            with log.blocks(span) as blocks:
                for block in blocks:
                    file.add(block, span)
                    advance(block.count)
                report.note(log.name, blocks)
            report.ends[log.name] = span.stop
            if len(logs) == 1:
                file.describe(log.metadata(*span))
        file.finish(plan.to)
    except BaseException:
        file.abandon()
        raise
    report.files.append(plan.to)
    report.messages += file.messages
    report.bytes += plan.to.stat().st_size


def files_of(folder: Path, name: str) -> dict[Span, Path]:
    """Return the finished files of a log in a directory, by the offsets that they hold."""
    pattern = re.compile(re.escape(_stem(name)) + r"-(\d{16,})-(\d{16,})\.parquet")
    files = {}
    for path in folder.glob("date=*/hour=*/*.parquet"):
        match = pattern.fullmatch(path.name)
        if match is not None:
            files[Span(int(match[1]), int(match[2]))] = path
    return files


def _stem(name: str) -> str:
    """Return the beginning of a file's name. `#` has a meaning in URLs, so it is left out."""
    topic, part = part_of(name) or (name, None)
    return topic if part is None else f"{topic}.part{part}"


def _check_same_topic(log: _Log, files: dict[Span, Path]) -> None:
    """Raise `UsageError` if the files are of another topic, whose offsets mean something else."""
    import pyarrow.parquet as pq

    if not files:
        return
    newest = files[max(files)]
    known = pq.read_metadata(newest).metadata or {}
    written = (known.get(b"zsq.topic", b"").decode(), known.get(b"zsq.uuid", b"").decode())
    if written != (log.name, log.uuid):
        text = (
            f"{newest} is of topic {written[0]} with uuid {written[1]}, not of {log.name} with "
            f"uuid {log.uuid}: the topic was deleted and created again, or is at another broker"
        )
        raise UsageError(E_EXISTS, f"{text}. Export to another directory")


def _to_directory(
    plan: ExportPlan, name: str, several: bool, report: ExportReport, advance: Advance
) -> None:
    """Write what the directory does not have yet of one log."""
    log = _Log(plan, name, several)
    files = files_of(plan.to, name)
    _check_same_topic(log, files)
    end = max((written.stop for written in files), default=log.oldest)
    report.ends[name] = end
    for span in missing(files, end if log.start is None else log.start, log.stop):
        for path, messages in _write_span(log, span, report, advance):
            report.files.append(path)
            report.messages += messages
            report.bytes += path.stat().st_size
        report.ends[name] = max(report.ends[name], span.stop)


def _write_span(
    log: _Log, span: Span, report: ExportReport, advance: Advance
) -> Iterator[tuple[Path, int]]:
    """Write files for consecutive offsets. Yield each one, with the number of its messages."""
    file: _Parquet | None = None
    start = at = span.start
    hour = 0
    try:
        with log.blocks(span) as blocks:
            for block in blocks:
                its_hour = block.header.time_ns // HOUR_NS
                if file is not None and (its_hour != hour or file.bytes >= log.plan.file_bytes):
                    yield _finished(file, log, start, at), file.messages
                    file, start = None, at
                if file is None:
                    hour = its_hour
                    temporary = f".{_stem(log.name)}-{start:016}.tmp"
                    file = _Parquet(log, log.plan.to / folder_of(hour), temporary)
                file.add(block, span)
                at = min(block.next_offset, span.stop)
                advance(block.count)
            report.note(log.name, blocks)
            if file is not None:
                yield _finished(file, log, start, span.stop), file.messages
                file = None
    finally:
        if file is not None:
            file.abandon()


def _finished(file: _Parquet, log: _Log, start: int, stop: int) -> Path:
    path = file.path.parent / f"{_stem(log.name)}-{start:016}-{stop:016}.parquet"
    file.describe(log.metadata(start, stop))
    file.finish(path)
    return path


def folder_of(hour: int) -> str:
    """Return the folder of an hour, which counts from 1970 in UTC."""
    return (_EPOCH + timedelta(hours=hour)).strftime("date=%Y-%m-%d/hour=%H")
