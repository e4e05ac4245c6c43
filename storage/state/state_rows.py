"""Rows of the state store: keys, data, the table, and the batch of one commit.

    key                   data (`rows.py` wraps them)
    "a" first offset      a chunk that a bucket has (`ArchivedChunk`)
    "m"                   the checkpoint: applied and synced end, pause, waiting cursor, start,
                          offsets that may have ids, first unique key, digest of all small rows
    "c" name              a channel's row, as the channel wrote it
    "d" name 0 start      a deferred hole: count, attempts, due time
    "e" name              totals of a channel's deferred holes: rows, messages,
                          digest of all "d" and "q"
    "g" name              generation of a channel's valid deferred holes (see `alias`); 0 if missing
    "h" name 0 start      any other hole: count, attempts, 0
    "p" producer id       a producer's next sequence and its last blocks
    "q" name 0 due start  a deferred hole by its due time: no data
    "s" stage             a stage at its last seal
    "t" app               an app's last committed transaction

A hole is a range of messages below a channel's cursor that the channel has not finished.

All rows except "d" and "q" are called small rows. The start reads them, and they are kept in
memory. This is not possible for deferred holes, because a store may have ten million of them.
Nothing here does I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypedDict

from ...transport.wire.codec import pack_value, unpack_value
from ..errors import Damaged, NewerVersion, newer
from ..log.chunk import ArchivedChunk
from ..log.transactions import StagedFile, StageRow, TransactionRow
from ..rows import META, unwrap
from .channel_row import ChannelRow

VERSION: Final = 1
RECENT_MAX: Final = 16  # the most blocks that a producer row lists

ARCHIVED: Final = b"a"
CHANNEL: Final = b"c"
DEFERRED: Final = b"d"
TOTAL: Final = b"e"
GENERATION: Final = b"g"
HOLE: Final = b"h"
PRODUCER: Final = b"p"
DUE: Final = b"q"
STAGE: Final = b"s"
TRANSACTION: Final = b"t"

# Ranges of keys. Together they contain all rows except the deferred ones.
SMALL_RANGES: Final = (
    (b"", DEFERRED),
    (TOTAL, DUE),
    (b"r", b"\xff"),
)
assert bytes([DEFERRED[0] + 1]) == TOTAL
assert bytes([b"r"[0] - 1]) == DUE

U64: Final = struct.Struct(">Q")  # big-endian, so that rows are in order
HOLE_ROW: Final = struct.Struct("<qqq")
TOTAL_ROW: Final = struct.Struct("<qqQ")


class StateMeta(TypedDict):
    """The checkpoint as stored.

    `rows` is the number of all small rows, and `sum` the sum of their checksums.
    """

    version: int
    uuid: bytes
    applied: int
    synced: int
    paused: int
    waiting: int
    start: int
    dropped: int
    ids: tuple[int, int]
    keys: int
    rows: int
    sum: int
    commits: int


class HoleRow(NamedTuple):
    """A range of unfinished messages below a channel's cursor. `due_ns` 0 means due at once."""

    start: int
    # This field hides the method `tuple.count`, which is not used here.
    count: int  # type: ignore[assignment]
    attempts: int
    due_ns: int


class DeferredTotal(NamedTuple):
    """Totals of one channel's deferred holes.

    `first_start` is the lowest start and `next_due_ns` the earliest due time. Both are 0 if there
    are no holes.
    """

    rows: int = 0
    messages: int = 0
    first_start: int = 0
    next_due_ns: int = 0


class ProducerRow(NamedTuple):
    """A producer's state.

    `recent` has (sequence, first offset) of its last blocks, at most RECENT_MAX of them, ascending.
    """

    next_sequence: int
    used_ns: int
    recent: tuple[tuple[int, int], ...]


def producer_after(
    row: ProducerRow | None, sequence: int, first_offset: int, used_ns: int
) -> ProducerRow:
    """Return the producer's row after this block was stored."""
    recent = (*(row.recent if row is not None else ()), (sequence, first_offset))
    return ProducerRow(sequence + 1, used_ns, recent[-RECENT_MAX:])


@dataclass(slots=True)
class Table:
    """The whole state after the last commit. For deferred holes, it has only the totals."""

    channels: dict[str, ChannelRow] = field(default_factory=dict)
    holes: dict[str, list[HoleRow]] = field(default_factory=dict)
    deferred: dict[str, DeferredTotal] = field(default_factory=dict)
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    stages: dict[bytes, StageRow] = field(default_factory=dict)
    transactions: dict[str, TransactionRow] = field(default_factory=dict)
    archived: dict[int, ArchivedChunk] = field(default_factory=dict)
    """The chunks that the bucket has, by their first offsets, ascending."""
    applied_offset: int = 0
    synced_end: int = 0
    paused_end: int = -1
    waiting: int = 0
    start: int = 0
    """Chunks that end at or below this offset are removed, or will be removed."""
    dropped: int = 0
    """The number of messages in removed chunks that some channel had not reached."""
    ids: tuple[int, int] = (0, 0)
    """The messages from the first offset to the second one may have ids within the window."""
    keys: int = -1
    """Messages from this offset on may hold unique keys. -1: only those after the checkpoint."""
    commits: int = field(default=0, compare=False)
    generations: dict[str, int] = field(default_factory=dict, compare=False)
    garbage: int = field(default=0, compare=False)
    """Cleared deferred rows that still exist."""

    def first_unfinished(self, channel: str) -> int:
        """Return the lowest offset that a channel has not finished.

        Deferred messages count as unfinished.
        """
        deferred = self.deferred.get(channel)
        firsts = [hole.start for hole in self.holes.get(channel, ())] + (
            [deferred.first_start] if deferred else []
        )
        return min([self.channels[channel].next_offset, *firsts])


@dataclass(slots=True)
class StateBatch:
    """The changes of one commit. None means that a value does not change.

    `hole_puts` has rows (channel, start, count, attempts, due_ns). A row with a due time is
    deferred. Drops, clears and removals are carried out before puts. A put or removal removes every
    row with the same start, deferred or not.
    """

    channel_puts: dict[str, ChannelRow] = field(default_factory=dict)
    hole_puts: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    hole_gones: list[tuple[str, int]] = field(default_factory=list)
    channel_drops: list[str] = field(default_factory=list)
    deferred_clears: list[str] = field(default_factory=list)
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    producers_gone: list[int] = field(default_factory=list)
    stage_puts: dict[bytes, StageRow] = field(default_factory=dict)
    stage_gones: list[bytes] = field(default_factory=list)
    transactions: dict[str, TransactionRow] = field(default_factory=dict)
    transactions_gone: list[str] = field(default_factory=list)
    archived: list[ArchivedChunk] = field(default_factory=list)
    archived_gone: list[int] = field(default_factory=list)
    applied_offset: int | None = None
    synced_end: int | None = None
    paused_end: int | None = None
    waiting: int | None = None
    start: int | None = None
    dropped: int | None = None
    ids: tuple[int, int] | None = None
    keys: int | None = None


def unwrap_meta(value: bytes | None) -> StateMeta:
    """Return the checkpoint.

    Raises `NewerVersion` if another version wrote it, and `Damaged` if it is missing or
    damaged.
    """
    if value is None:
        raise Damaged("the state store has no checkpoint row")
    meta: StateMeta = unpack_value(unwrap(META, value))
    if meta["version"] != VERSION:
        raise newer("the state store", meta["version"], VERSION)
    return meta


def new_meta(uuid: bytes, waiting: int) -> StateMeta:
    """Return the checkpoint of a topic without messages and channels.

    The topic's offsets begin at `waiting`.
    """
    return {
        "version": VERSION, "uuid": uuid, "applied": waiting, "synced": waiting, "paused": -1, "waiting": waiting, "start": waiting,
        "dropped": 0, "ids": (0, 0), "keys": -1, "rows": 0, "sum": 0, "commits": 0,
    }  # fmt: skip


def take_meta(table: Table, meta: StateMeta) -> None:
    table.applied_offset = meta["applied"]
    table.synced_end = meta["synced"]
    table.paused_end = meta["paused"]
    table.waiting = meta["waiting"]
    table.start = meta["start"]
    table.commits = meta["commits"]
    table.dropped = meta["dropped"]
    first, end = meta.get("ids", (0, 0))
    table.ids = first, end
    table.keys = meta.get("keys", -1)


def change_meta(meta: StateMeta, batch: StateBatch) -> None:
    meta["applied"] = meta["applied"] if batch.applied_offset is None else batch.applied_offset
    meta["synced"] = max(
        meta["synced"] if batch.synced_end is None else batch.synced_end, meta["applied"]
    )
    meta["paused"] = meta["paused"] if batch.paused_end is None else batch.paused_end
    meta["waiting"] = meta["waiting"] if batch.waiting is None else batch.waiting
    meta["start"] = meta["start"] if batch.start is None else batch.start
    meta["dropped"] = meta["dropped"] if batch.dropped is None else batch.dropped
    if batch.ids is not None:
        meta["ids"] = batch.ids
    if batch.keys is not None:
        meta["keys"] = batch.keys
    meta["commits"] += 1


def unpack_channel(data: bytes | memoryview) -> ChannelRow:
    """Return a channel's row.

    Raises `NewerVersion` if the data is not a row. Another version must have written it,
    because its checksum is right.
    """
    try:
        return ChannelRow.decode(unpack_value(data))
    except ValueError as error:
        raise NewerVersion(f"{error}; use a newer zsq") from error


def take_row(table: Table, key: bytes, data: bytes | memoryview) -> None:
    """Add a small row to the table, but not the checkpoint.

    Raises `Damaged` or `ForeignDirectory`. Rows of a restored topic come from the bucket.
    """
    try:
        _take_row(table, key, data)
    except (TypeError, ValueError, KeyError, struct.error) as error:
        raise Damaged(
            f"the state store has a row of a wrong form: {key[:80]!r}: {error!r}"
        ) from error


def _take_row(table: Table, key: bytes, data: bytes | memoryview) -> None:
    kind, rest = key[:1], key[1:]
    if kind == CHANNEL:
        table.channels[rest.decode()] = unpack_channel(data)
    elif kind == HOLE:
        table.holes.setdefault(name_of(key), []).append(
            HoleRow(start_of(key), *HOLE_ROW.unpack(data))
        )
    elif kind == TOTAL:
        table.deferred[rest.decode()] = DeferredTotal(*TOTAL_ROW.unpack(data)[:2])
    elif kind == GENERATION:
        table.generations[rest.decode()] = U64.unpack(data)[0]
    elif kind == PRODUCER:
        table.producers[U64.unpack(rest)[0]] = ProducerRow(*unpack_value(data))
    elif kind == STAGE:
        row = unpack_value(data)
        row["files"] = tuple(StagedFile(*map(int, file)) for file in row["files"])
        table.stages[rest] = StageRow(**row)
    elif kind == ARCHIVED:
        chunk = ArchivedChunk.of(unpack_value(data))
        table.archived[chunk.base_offset] = chunk
    elif kind == TRANSACTION:
        table.transactions[rest.decode()] = TransactionRow(*unpack_value(data))
    else:
        raise Damaged(f"the state store has a row of an unknown kind: {key[:80]!r}")


def small_puts(batch: StateBatch) -> dict[bytes, bytes]:
    """Return the data of the rows to write, by key, without holes."""
    rows: dict[bytes, bytes] = {}
    rows.update(
        (CHANNEL + name.encode(), pack_value(row.encode()))
        for name, row in batch.channel_puts.items()
    )
    rows.update(
        (PRODUCER + U64.pack(number), pack_value(tuple(row)))
        for number, row in batch.producers.items()
    )
    rows.update(
        (STAGE + stage, pack_value(row._asdict())) for stage, row in batch.stage_puts.items()
    )
    rows.update(
        (ARCHIVED + U64.pack(row.base_offset), pack_value(tuple(row))) for row in batch.archived
    )
    rows.update(
        (TRANSACTION + app.encode(), pack_value(tuple(row)))
        for app, row in batch.transactions.items()
    )
    return rows


def small_gones(batch: StateBatch) -> list[bytes]:
    """Return the keys of the rows to remove, without holes."""
    return [
        *(CHANNEL + name.encode() for name in batch.channel_drops),
        *(PRODUCER + U64.pack(number) for number in batch.producers_gone),
        *(STAGE + stage for stage in batch.stage_gones),
        *(ARCHIVED + U64.pack(base) for base in batch.archived_gone),
        *(TRANSACTION + app.encode() for app in batch.transactions_gone),
    ]


def alias(channel: str, generation: int) -> str:
    """Return the name under which a channel's deferred rows are stored.

    One commit cannot remove ten million rows. So when they are cleared, the alias changes, and
    later commits remove the rows of the old alias. No channel name contains the byte 1.
    """
    return f"{channel}\x01{generation}" if generation else channel


def prefix(kind: bytes, channel: str) -> bytes:
    """Return the bytes with which the keys of a channel's holes start."""
    return kind + channel.encode() + b"\0"


def hole_key(channel: str, start: int) -> bytes:
    return prefix(HOLE, channel) + U64.pack(start)


def deferred_key(channel: str, start: int) -> bytes:
    return prefix(DEFERRED, channel) + U64.pack(start)


def due_key(channel: str, due_ns: int, start: int) -> bytes:
    return prefix(DUE, channel) + U64.pack(due_ns) + U64.pack(start)


def total_key(channel: str) -> bytes:
    return TOTAL + channel.encode()


def name_of(key: bytes) -> str:
    """Return the channel name in a hole's key, deferred or not. No name contains a zero byte."""
    return key[1 : key.index(b"\0")].decode()


def start_of(key: bytes) -> int:
    """Return the start in a hole's key of any kind. It is the last field."""
    start: int = U64.unpack_from(key, len(key) - U64.size)[0]
    return start


def due_of(key: bytes) -> int:
    due_ns: int = U64.unpack_from(key, len(key) - 2 * U64.size)[0]
    return due_ns
