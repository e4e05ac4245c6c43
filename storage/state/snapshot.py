"""Snapshot: the state store's small rows in one checksummed file, to rebuild a damaged store.

    DIR/state.snapshot = head line  checksum line  rows

The head is one line of JSON for people and programs. It contains the topic, the time, and the
number of commits. For each channel with deferred holes, it has their totals and their lowest
offset. The holes themselves are only in the store. A channel that loses them goes back to that
offset. The rows are a dump, in the same frames as in a bucket (`row_changes.py`), up to END.

The file is written under another name, synced and renamed. So there is always one complete file,
the old one or the new one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypedDict, cast

from ...transport.wire.codec import pack_value
from .. import documents
from ..errors import Damaged, NewerVersion, Unreadable
from ..files import Files
from ..row_changes import END, STATE_BEGIN, Row, decode_frames, encode_frames
from ..rows import META, unwrap, wrap
from .state_rows import (
    CHANNEL,
    GENERATION,
    HOLE,
    HOLE_ROW,
    TOTAL,
    DeferredTotal,
    StateMeta,
    name_of,
    start_of,
    unpack_channel,
    unwrap_meta,
)

SNAPSHOT_NAME: Final = "state.snapshot"
SNAPSHOT_KIND: Final = "state snapshot"
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_BYTES_MAX: Final = 1 << 31
SNAPSHOT_HEAD_MAX: Final = 1 << 20  # a thousand channels with deferred holes need about 100 KB
_CHECKSUM_BYTES: Final = 9  # eight digits and a line feed


class _Head(TypedDict):
    """The head line. `deferred` has rows, messages and lowest offset by channel."""

    uuid: str
    time_ns: int
    commits: int
    deferred: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a snapshot.

    `rows` has the key and data of each small row except the checkpoint, which is in `meta`.
    `deferred` has the totals of each channel at the time of the snapshot.
    """

    uuid: bytes
    time_ns: int
    meta: StateMeta
    rows: tuple[Row, ...]
    deferred: dict[str, DeferredTotal]


def encode_snapshot(
    uuid: bytes, time_ns: int, rows: Iterable[Row], deferred: Mapping[str, DeferredTotal]
) -> bytes:
    """Return the bytes of a snapshot.

    `rows` has key and wrapped value of each small row, including the checkpoint.
    """
    dumped = list(rows)
    commits = sum(unwrap_meta(value)["commits"] for key, value in dumped if key == META)
    head = {
        "uuid": uuid.hex(),
        "time_ns": time_ns,
        "commits": commits,
        "deferred": {
            name: [total.rows, total.messages, total.first_start]
            for name, total in deferred.items()
            if total.rows
        },
    }
    line = documents.encode_line(SNAPSHOT_KIND, SNAPSHOT_VERSION, head)
    return b"".join((line, *encode_frames(STATE_BEGIN, dumped), *encode_frames(END)))


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot. Raises `Damaged` if a part of it is damaged."""
    head, begin = _head(data)
    try:
        rows = [
            (key, bytes(unwrap(key, value or b"")))
            for frame in decode_frames(memoryview(data)[begin:], complete=True)
            for key, value in frame.changes
        ]
        meta = [wrap(key, value) for key, value in rows if key == META]
        deferred = {
            name: DeferredTotal(count, messages, start)
            for name, (count, messages, start) in head["deferred"].items()
        }
        return Snapshot(
            bytes.fromhex(head["uuid"]),
            head["time_ns"],
            unwrap_meta(meta[0] if meta else None),
            tuple(row for row in rows if row[0] != META),
            deferred,
        )
    except (KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise Damaged(f"the snapshot does not have the expected format: {error!r}") from error


def _head(data: bytes) -> tuple[_Head, int]:
    """Return the head, and the position where the rows begin."""
    begin = data.find(b"\n") + 1 + _CHECKSUM_BYTES
    return cast(
        "_Head", documents.decode_line(data[:begin], SNAPSHOT_KIND, SNAPSHOT_VERSION)
    ), begin


def rows_without_deferred(snapshot: Snapshot) -> tuple[list[Row], dict[str, int]]:
    """Return rows for a store without deferred holes, and old cursors by channel.

    Each channel that had deferred holes goes back to the lowest one. From there on it reads all
    messages again, so its other holes there are left out. The second value has the old cursors of
    these channels.
    """
    rows: list[Row] = []
    moved: dict[str, int] = {}
    for key, data in snapshot.rows:
        if key[:1] in {TOTAL, GENERATION}:
            continue
        name = key[1:].decode() if key[:1] == CHANNEL else name_of(key) if key[:1] == HOLE else ""
        lost = snapshot.deferred.get(name)
        if name and lost is not None:
            if key[:1] == CHANNEL:
                data, moved[name] = _cursor_back(data, lost.first_start)
            elif start_of(key) >= lost.first_start:
                continue
            else:
                count, attempts, due_ns = HOLE_ROW.unpack(data)
                data = HOLE_ROW.pack(min(count, lost.first_start - start_of(key)), attempts, due_ns)
        rows.append((key, data))
    return rows, moved


def _cursor_back(data: bytes, offset: int) -> tuple[bytes, int]:
    row = unpack_channel(data)
    return pack_value(
        replace(row, next_offset=min(row.next_offset, offset)).encode()
    ), row.next_offset


def write_snapshot(files: Files, directory: str, data: bytes) -> None:
    """Write the snapshot.

    It is synced when this returns. After an `OSError`, the old snapshot still exists.
    """
    files.replace_file(f"{directory}/{SNAPSHOT_NAME}", data)


def read_snapshot(files: Files, directory: str) -> Snapshot | None:
    """Return the snapshot, or None if there is none.

    Raises `Damaged` if it is damaged, and `NewerVersion` if another version wrote it: a rebuild
    without it would drop what it has. Raises `Unreadable` if the disk could not read it. That may
    be a temporary failure, so the caller must not continue without the snapshot.
    """
    path = f"{directory}/{SNAPSHOT_NAME}"
    try:
        if not files.exists(path):
            return None
        return decode_snapshot(files.read_file(path, SNAPSHOT_BYTES_MAX))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error}") from error
    except Damaged as error:
        raise Damaged(f"{path}: {error}") from error
    except NewerVersion as error:
        raise error.at(path) from error


def commits_of_snapshot(files: Files, directory: str) -> int:
    """Return the number of commits of the store at the time of the snapshot, or 0 if it is unknown.

    If a store has fewer commits, it has lost some of them. Raises `NewerVersion`.
    """
    path = f"{directory}/{SNAPSHOT_NAME}"
    try:
        return (
            int(_head(files.read_file(path, SNAPSHOT_HEAD_MAX))[0]["commits"])
            if files.exists(path)
            else 0
        )
    except NewerVersion as error:
        raise error.at(path) from error
    except (OSError, Damaged, ValueError, KeyError, TypeError, OverflowError):
        return 0


def check_snapshot(files: Files, directory: str) -> list[str]:
    """Return the defects of the snapshot as sentences. Raises `NewerVersion`."""
    try:
        read_snapshot(files, directory)
    except (Damaged, Unreadable) as error:
        return [str(error)]
    return []
