"""Dump of what a broker ships: ticks with their pieces, and objects with the rows of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ...storage import row_changes
from ...storage.bucket.shipping.tick_format import TAKEOVER, decode_index
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.row_changes import DELAYED, DELAYED_BEGIN, decode_frames
from ...transport.checksum import crc32c
from .record import Record, damaged, plain, record, with_bytes

BYTES_MAX: Final = 1 << 30
_KINDS: Final = {
    row_changes.STATE: "state", row_changes.DELAYED: "delayed", row_changes.STATE_BEGIN: "state begins",
    row_changes.DELAYED_BEGIN: "delayed begins", row_changes.DELAYED_NONE: "no delayed messages",
}  # fmt: skip

RowRecords = Callable[[bytes, bytes, bool], Iterator[Record]]
"""Yields the records of a row: its key, its value, and whether it is of delayed messages."""


def dump_tick(files: Files, path: str, rows: RowRecords) -> Iterator[Record]:
    """Yield the index of a tick, its tails, and its pieces with their ranges and frames."""
    data = files.read_file(path, BYTES_MAX)
    try:
        tick = decode_index(data)
    except (Damaged, ForeignDirectory) as error:
        yield damaged(error, bytes=len(data))
        return
    index = tick.index
    fields = index._asdict()
    for name in ("kind", "pieces", "tails", "registry"):
        del fields[name]
    yield record("takeover" if index.kind == TAKEOVER else "tick", **fields, digest=tick.digest)
    for uuid, tail in (index.tails or {}).items():
        yield record("tail", uuid=uuid, **plain(tail._asdict()))
    if index.registry:
        position, size, crc = index.registry
        body = data[tick.body + position : tick.body + position + size]
        if crc32c(body) != crc:
            yield damaged("the checksum of the registry does not match", bytes=size)
        else:
            yield with_bytes(record("registry", bytes=size), content=body)
    for piece in index.pieces:
        fields = piece._asdict()
        del fields["ranges"]
        yield record("piece", **fields)
        start = tick.body + piece.position
        body = data[start : start + piece.size]
        if len(body) != piece.size or crc32c(body) != piece.crc:
            yield damaged("the checksum of the piece does not match", uuid=piece.uuid)
        for chunk_range in piece.ranges:
            yield record("range", **chunk_range._asdict())
        yield from _frames(body[piece.range_bytes :], rows)


def dump_frames(files: Files, path: str, rows: RowRecords) -> Iterator[Record]:
    """Yield the frames of an object with all rows of a topic."""
    yield from _frames(files.read_file(path, BYTES_MAX), rows)


def _frames(data: bytes, rows: RowRecords) -> Iterator[Record]:
    try:
        for frame in decode_frames(data):
            yield record("frame", of=_KINDS[frame.kind], rows=len(frame.changes))
            is_delayed = frame.kind in (DELAYED, DELAYED_BEGIN)
            for key, value in frame.changes:
                if value is None:
                    yield with_bytes(record("removed row"), key=key)
                else:
                    yield from rows(key, value, is_delayed)
    except Damaged as error:
        yield damaged(error)
