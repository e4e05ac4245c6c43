"""Rescue file: messages of one topic that the bucket did not have when another broker took over.

    line 1, 2           the head, and its checksum
    {"block": ...}      a block: how many messages follow, and who published it
    {"offset": ...}     a message, with the fields of `zsq tail --json`
    the last two lines  the counts and the checksum of all lines before, and their own checksum

All lines but the checksums are JSON. Text that is UTF-8 is text. Other bytes are base64, under a
name that ends in `_base64`. A message that was delayed and not due has no offset. The times are
those of the old broker.

A writer writes under a temporary name, and the file is on disk before it gets its final name. So a
file with its final name is complete, unless the disk damaged it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ....transport.block.block import Block
from ....transport.checksum import crc32c
from ....transport.errors import UsageError
from ....transport.wire.codec import HeaderValue, pack_headers, user_headers
from ... import documents
from ...errors import Damaged, ForeignDirectory
from ...files import TEMPORARY_SUFFIX, Files

VERSION: Final = 1
HEAD: Final = "rescue"
END: Final = "rescue end"
SUFFIX: Final = ".jsonl"
WRITE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 20
HEAD_BYTES_MAX: Final = 64 * 1024
END_BYTES_MAX: Final = 4 * 1024
# JSON needs at most 6 bytes for a byte of text, and a message with all its parts fits into a block.
LINE_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RescueHead:
    """The head of a rescue file.

    * `broker`, `topic`, `topic_uuid`, `copy`: whose messages these are. `copy` identifies the data
      directory.
    * `takeover`, `epoch`: the takeover after which the broker was not primary any more.
    * `taken_by`, `taken_ns`: the host that took over, and when.
    * `end`: the bucket has all messages of the topic below this offset.
    """

    broker: str
    topic: str
    topic_uuid: str
    copy: str
    takeover: int
    epoch: int
    taken_by: str
    taken_ns: int
    end: int


@dataclass(frozen=True, slots=True)
class RescueCounts:
    """The counts of a rescue file.

    Offsets are -1 if there are none. `delayed` messages were not due, and have no offset.
    `uncertain` messages are in a block with `why`, see `BlockFacts`. `problems` counts damaged
    parts of the topic's directory, which is kept then.
    """

    messages: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_ns: int = 0
    last_ns: int = 0
    delayed: int = 0
    uncertain: int = 0
    problems: int = 0


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """The facts about a block.

    * `producer`, `sequence`: who published it. If the producer has sent it again to the new
      primary, it has the same sequence there. `producer` 0: not known.
    * `due_ns`: when its messages are due, 0 if they were not delayed or have become due.
    * `why`: why its messages may be in the bucket, or may come again by themselves. "" if they do
      not.
    """

    count: int
    producer: int = 0
    sequence: int = 0
    due_ns: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class RescuedMessage:
    """A message in a rescue file. Its offset is -1 if it was delayed and not due."""

    offset: int
    timestamp_ns: int
    body: bytes
    key: bytes | None = None
    tag: bytes | None = None
    headers: Mapping[str, HeaderValue] | None = None


class RescuedBlock(NamedTuple):
    """A block of a rescue file."""

    facts: BlockFacts
    messages: tuple[RescuedMessage, ...]


class RescueWriter:
    """Writes a rescue file. Without a `finish`, nothing with the final name exists."""

    def __init__(self, files: Files, path: str, head: RescueHead) -> None:
        self.counts = RescueCounts()
        self._files = files
        self._path = path
        self._temporary = path + TEMPORARY_SUFFIX
        if files.exists(self._temporary):
            files.remove(self._temporary)
        self._fd = files.open_new(self._temporary)
        self._position = self._crc = 0
        self._lines: list[bytes] = []
        self._size = 0
        self._add(documents.encode_line(HEAD, VERSION, asdict(head)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)

    def add(self, block: Block, facts: BlockFacts, skip: int = 0) -> None:
        """Add the messages of a block, without the first `skip`."""
        is_delayed = facts.due_ns > 0
        count = block.count - skip
        self._add(_line(_block_row(replace(facts, count=count))))
        for index in range(skip, block.count):
            offset = -1 if is_delayed else block.first_offset + index
            self._add(_line(message_row(_message_of(block, index, offset))))
        times = [block.time_of(skip), block.time_of(block.count - 1)]
        old = self.counts
        first, last = old.first_offset, old.last_offset
        if not is_delayed:
            first = block.first_offset + skip if first < 0 else first
            last = block.next_offset - 1
        self.counts = RescueCounts(
            old.messages + count, first, last,
            min(times) if not old.messages else min(old.first_ns, *times),
            max(old.last_ns, *times),
            old.delayed + (count if is_delayed else 0),
            old.uncertain + (count if facts.why else 0),
        )  # fmt: skip

    def finish(self, problems: int = 0) -> None:
        """Make the file durable under its final name. If it has no message, there is none."""
        self.counts = replace(self.counts, problems=problems)
        if not self.counts.messages:
            self._files.close(self._fd)
            self._fd = -1
            self._files.remove(self._temporary)
            return
        self._flush()
        row = asdict(self.counts) | {"checksum": f"{self._crc:08x}"}
        self._add(documents.encode_line(END, VERSION, row))
        self._flush()
        self._files.sync(self._fd)
        self._files.close(self._fd)
        self._fd = -1
        self._files.rename(self._temporary, self._path)
        self._files.sync_folder(self._path.rpartition("/")[0])

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._lines)
        self._lines, self._size = [], 0
        if data:
            self._files.writev(self._fd, [data], self._position)
            self._position += len(data)
            self._crc = crc32c(data, self._crc)


class Rescue(NamedTuple):
    """The content of the first and the last lines of a rescue file."""

    head: RescueHead
    counts: RescueCounts
    checksum: int
    first_line: int
    """The position of the first line after the head."""
    end_line: int
    """The position of the line with the counts."""


def read_rescue(files: Files, path: str) -> Rescue:
    """Read the head and the counts of a file. Raises `Damaged`, `ForeignDirectory` or `OSError`."""
    size = files.size_of(path)
    fd = files.open_read(path)
    try:
        first = files.pread(fd, min(size, HEAD_BYTES_MAX), 0)
        low = max(0, size - END_BYTES_MAX)
        last = files.pread(fd, size - low, low)
    finally:
        files.close(fd)
    head_lines = b"".join(first.splitlines(keepends=True)[:2])
    if not first.startswith(b'{"zsq": "%s"' % HEAD.encode()):
        raise Damaged(f"{path} is not a rescue file of zsq")
    end_lines = b"".join(last.splitlines(keepends=True)[-2:])
    try:
        head = documents.decode_line(head_lines, HEAD, VERSION)
        end = documents.decode_line(end_lines, END, VERSION)
        checksum = int(end.pop("checksum"), 16)
        found_head = RescueHead(**_without_kind(head))
        counts = RescueCounts(**_without_kind(end))
    except (Damaged, ForeignDirectory) as error:
        raise type(error)(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: its first or last line has a wrong form: {error}") from error
    return Rescue(found_head, counts, checksum, len(head_lines), size - len(end_lines))


def _without_kind(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("zsq", "version")}


def check_rescue(files: Files, path: str) -> Rescue:
    """Read the whole file, and compare it with its checksum. Raises as `read_rescue`."""
    rescue = read_rescue(files, path)
    fd = files.open_read(path)
    crc = position = 0
    try:
        while position < rescue.end_line:
            data = files.pread(fd, min(READ_BYTES, rescue.end_line - position), position)
            if not data:
                break
            crc = crc32c(data, crc)
            position += len(data)
    finally:
        files.close(fd)
    if crc != rescue.checksum:
        raise Damaged(f"{path} is damaged: its checksum is wrong")
    return rescue


def rescued_blocks(files: Files, path: str) -> Iterator[RescuedBlock]:
    """Yield the blocks of a file. Raises as `read_rescue`.

    This does not compare the checksum. `check_rescue` does.
    """
    lines = _lines(files, path, read_rescue(files, path))
    for line in lines:
        try:
            facts = _facts_of(line["block"])
            messages = tuple([_message(next(lines, {})) for _ in range(facts.count)])
        except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise Damaged(f"{path} is damaged: a line has a wrong form: {error!r}") from error
        yield RescuedBlock(facts, messages)


def _lines(files: Files, path: str, rescue: Rescue) -> Iterator[dict[str, Any]]:
    fd = files.open_read(path)
    position = rescue.first_line
    rest: list[bytes] = []
    size = 0
    try:
        while position < rescue.end_line:
            data = files.pread(fd, min(READ_BYTES, rescue.end_line - position), position)
            if not data:
                raise Damaged(f"{path} is damaged: it is cut off")
            position += len(data)
            *complete, last = data.split(b"\n")
            for part in complete:
                line = b"".join((*rest, part))
                rest, size = [], 0
                try:
                    row = documents.loads(line)
                except ValueError as error:
                    raise Damaged(f"{path} is damaged: a line is not JSON: {error}") from error
                yield row
            rest.append(last)
            size += len(last)
            if size > LINE_BYTES_MAX:
                raise Damaged(f"{path} is damaged: a line is too long")
    finally:
        files.close(fd)


# Rows


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _block_row(facts: BlockFacts) -> dict[str, Any]:
    row: dict[str, Any] = {"count": facts.count}
    if facts.producer:
        row |= {"producer": f"{facts.producer:016x}", "sequence": facts.sequence}
    if facts.due_ns:
        row |= {"delayed": True, "due_ns": facts.due_ns, "due": _time_text(facts.due_ns)}
    if facts.why:
        row |= {"certain": False, "why": facts.why}
    return {"block": row}


def _facts_of(row: Mapping[str, Any]) -> BlockFacts:
    return BlockFacts(
        int(row["count"]), int(row.get("producer", "0"), 16), int(row.get("sequence", 0)),
        int(row.get("due_ns", 0)), str(row.get("why", "")),
    )  # fmt: skip


def _message_of(block: Block, index: int, offset: int) -> RescuedMessage:
    key, tag, packed = (
        None if column is None else column.value(index)
        for column in (block.key, block.tag, block.headers)
    )
    return RescuedMessage(
        offset, block.time_of(index), block.body.value(index) or b"", key, tag,
        None if packed is None else user_headers(packed),
    )  # fmt: skip


def message_row(message: RescuedMessage) -> dict[str, Any]:
    """Return a message as `zsq tail --json` prints it, without its topic."""
    row: dict[str, Any] = {}
    if message.offset >= 0:
        row["offset"] = message.offset
    row |= {
        "timestamp_ns": message.timestamp_ns, "timestamp": _time_text(message.timestamp_ns),
    }  # fmt: skip
    for name, value in (("key", message.key), ("body", message.body), ("tag", message.tag)):
        if value is not None:
            row |= _text_of(name, value)
    for header, one in (message.headers or {}).items():
        kind = "headers_base64" if isinstance(one, bytes) else "headers"
        row.setdefault(kind, {})[header] = (
            base64.b64encode(one).decode() if isinstance(one, bytes) else one
        )
    return row


def _message(row: Mapping[str, Any]) -> RescuedMessage:
    headers = dict(row.get("headers", {}))
    for name, value in row.get("headers_base64", {}).items():
        headers[name] = base64.b64decode(value, validate=True)
    pack_headers(headers)  # it raises `UsageError` for what no message can have
    body = _bytes_of(row, "body")
    if body is None:
        raise ValueError("a message has no body")
    return RescuedMessage(
        int(row.get("offset", -1)), int(row["timestamp_ns"]), body, _bytes_of(row, "key"),
        _bytes_of(row, "tag"), headers or None,
    )  # fmt: skip


def _text_of(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _bytes_of(row: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in row:
        return base64.b64decode(row[f"{name}_base64"], validate=True)
    text = row.get(name)
    return None if text is None else str(text).encode()


def _time_text(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"@{time_ns / 1e9:g}"
