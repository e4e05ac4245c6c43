"""What a topic's channels and producers have done, in LMDB: one environment a topic, one transaction a commit.

    key                      value (all behind a checksum and the key itself)
    "m"                      checkpoint: applied and synced end, pause, waiting cursor, digest of all other rows
    "c" name                 a channel's row, as its channel wrote it
    "h" name 0 start         a hole behind a channel's cursor: count, attempts, due time
    "p" producer id          a producer's next sequence and its last blocks
    "s" stage                a stage as of its last seal
    "t" app                  an app's last committed transaction

The caller syncs the log first: no commit may name an offset that is not on disk.

LMDB has no page checksums; a flipped bit gives a wrong value, a missing row or an error. So each value carries
its key and a CRC-32C, and the checkpoint carries the count and the sum of the checksums of all rows: a row
that vanished (a hole row that is gone would be a message taken for finished) or came back is noticed, not only one that
changed. Any of it raises `Damaged`, never a wrong value.

LMDB does its own file operations; it is the one thing in this folder that does not go through `files.py`.
Its lock file is not used: the lock of the directory already keeps others out.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import lmdb
from crc32c import crc32c

from ..transport.codec import pack_value, unpack_value
from .errors import Damaged, DiskFull, ForeignDirectory, StoreFailed
from .transactions import StagedFile, StageRow, TransactionRow

VERSION: Final = 1
MAP_BYTES: Final = 16 * 1024 * 1024  # address space, not memory and not disk; doubled when full
MAP_BYTES_MAX: Final = 1 << 40
RECENT_MAX: Final = 16  # blocks a producer row remembers

_META: Final = b"m"
_CHANNEL: Final = b"c"
_HOLE: Final = b"h"
_PRODUCER: Final = b"p"
_STAGE: Final = b"s"
_TRANSACTION: Final = b"t"
_U64: Final = struct.Struct(">Q")  # big-endian, so that rows lie in order
_HEAD: Final = struct.Struct("<IH")  # crc, length of the key
_HOLE_ROW: Final = struct.Struct("<qqq")
_SUM_MASK: Final = 2**64 - 1

ChannelRow = dict[str, Any]


class HoleRow(NamedTuple):
    """Messages behind a channel's cursor that are not finished; `due_ns` 0: at once."""

    start: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name; nobody counts in a row
    attempts: int
    due_ns: int


class ProducerRow(NamedTuple):
    """`recent`: (sequence, first offset) of its last blocks, ascending, at most RECENT_MAX."""

    next_sequence: int
    used_ns: int
    recent: tuple[tuple[int, int], ...]


def producer_after(row: ProducerRow | None, sequence: int, first_offset: int, used_ns: int) -> ProducerRow:
    """The row once this block of the producer is stored."""
    recent = (*(row.recent if row is not None else ()), (sequence, first_offset))
    return ProducerRow(sequence + 1, used_ns, recent[-RECENT_MAX:])


@dataclass(slots=True)
class Table:
    """All of the state, as of the last commit."""

    channels: dict[str, ChannelRow] = field(default_factory=dict)
    holes: dict[str, list[HoleRow]] = field(default_factory=dict)
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    stages: dict[bytes, StageRow] = field(default_factory=dict)
    transactions: dict[str, TransactionRow] = field(default_factory=dict)
    applied_offset: int = 0
    synced_end: int = 0
    paused_end: int = -1
    waiting: int = 0
    start: int = 0
    """Chunks that end at or below this offset are removed, or are to be."""


@dataclass(slots=True)
class StateBatch:
    """One commit. None: leave as it is. `hole_puts` rows: (channel, start, count, attempts, due_ns).

    Drops go before puts, and so does what is gone.
    """

    channel_puts: dict[str, ChannelRow] = field(default_factory=dict)
    hole_puts: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    hole_gones: list[tuple[str, int]] = field(default_factory=list)
    channel_drops: list[str] = field(default_factory=list)
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    producers_gone: list[int] = field(default_factory=list)
    stage_puts: dict[bytes, StageRow] = field(default_factory=dict)
    stage_gones: list[bytes] = field(default_factory=list)
    transactions: dict[str, TransactionRow] = field(default_factory=dict)
    transactions_gone: list[str] = field(default_factory=list)
    applied_offset: int | None = None
    synced_end: int | None = None
    paused_end: int | None = None
    waiting: int | None = None
    start: int | None = None


class StateStore:
    """An open environment. One thread at a time uses it."""

    def __init__(self, path: str, map_bytes: int = MAP_BYTES, *, create: bool = False) -> None:
        """`ForeignDirectory` if it is not there or of another version, `Damaged` if LMDB cannot read it."""
        self._path = path
        self._map_bytes = map_bytes
        try:
            self._env = lmdb.open(path, map_size=map_bytes, max_dbs=0, lock=False, create=create, readahead=False, meminit=True)
        except lmdb.Error as error:
            raise _translate(error, path) from error
        self._map_bytes = int(self._env.info()["map_size"])

    def create(self, uuid: bytes, waiting: int) -> None:
        """The first row of a new store."""
        meta = {
            "version": VERSION,
            "uuid": uuid,
            "applied": waiting,
            "synced": waiting,
            "paused": -1,
            "waiting": waiting,
            "start": waiting,
            "rows": 0,
            "sum": 0,
        }
        with self._env.begin(write=True) as txn:
            txn.put(_META, _wrap(_META, pack_value(meta)))

    def close(self) -> None:
        self._env.close()

    @property
    def map_bytes(self) -> int:
        return self._map_bytes

    def load(self) -> Table:
        """Everything. `Damaged` if anything of it is not as it was written."""
        table = Table()
        rows = total = 0
        try:
            with self._env.begin() as txn:
                meta = _read_meta(txn)
                for key, value in txn.cursor():
                    if key == _META:
                        continue
                    data = _unwrap(key, value)
                    rows += 1
                    total += _crc_of(value)
                    _take_row(table, key, data)
        except lmdb.Error as error:
            raise _translate(error, self._path) from error
        if rows != meta["rows"] or total & _SUM_MASK != meta["sum"]:
            raise Damaged(f"{self._path}: {rows} rows do not agree with the {meta['rows']} that the checkpoint counted")
        table.applied_offset = meta["applied"]
        table.synced_end = meta["synced"]
        table.paused_end = meta["paused"]
        table.waiting = meta["waiting"]
        table.start = meta["start"]
        return table

    def uuid(self) -> bytes:
        """Which topic this belongs to."""
        try:
            with self._env.begin() as txn:
                found: bytes = _read_meta(txn)["uuid"]
                return found
        except lmdb.Error as error:
            raise _translate(error, self._path) from error

    def commit(self, batch: StateBatch) -> None:
        """All of `batch` or nothing of it, synced when this returns. The log must be synced up to its `applied_offset`.

        `DiskFull`: nothing changed. `StoreFailed`: unknown; end and recover. A full map is doubled and the commit repeated.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    _apply(txn, batch)
                return
            except lmdb.MapFullError as error:
                if self._map_bytes * 2 > MAP_BYTES_MAX:
                    raise DiskFull(f"{self._path} has reached its limit of {MAP_BYTES_MAX} bytes") from error
                self._map_bytes *= 2
                self._env.set_mapsize(self._map_bytes)
            except lmdb.Error as error:
                raise _translate(error, self._path) from error


def _wrap(key: bytes, data: bytes) -> bytes:
    rest = len(key).to_bytes(2, "little") + key + data
    return crc32c(rest).to_bytes(4, "little") + rest


def _unwrap(key: bytes, value: bytes) -> bytes:
    if len(value) >= _HEAD.size:
        crc, size = _HEAD.unpack_from(value)
        data = value[_HEAD.size + size :]
        if crc == crc32c(value[4:]) and value[_HEAD.size : _HEAD.size + size] == key:
            return data
    raise Damaged(f"the state row {key[:80]!r} is damaged")


def _crc_of(value: bytes) -> int:
    return int.from_bytes(value[:4], "little")


def _read_meta(txn: Any) -> dict[str, Any]:
    value = txn.get(_META)
    if value is None:
        raise Damaged("the state has no checkpoint row")
    meta: dict[str, Any] = unpack_value(_unwrap(_META, value))
    if meta["version"] != VERSION:
        raise ForeignDirectory(f"state of version {meta['version']}: only version {VERSION} is known here; use a newer zsq")
    return meta


def _take_row(table: Table, key: bytes, data: bytes) -> None:
    kind, rest = key[:1], key[1:]
    if kind == _CHANNEL:
        table.channels[rest.decode()] = unpack_value(data)
    elif kind == _HOLE:
        name, start = rest[: -_U64.size - 1].decode(), _U64.unpack_from(rest, len(rest) - _U64.size)[0]
        table.holes.setdefault(name, []).append(HoleRow(start, *_HOLE_ROW.unpack(data)))
    elif kind == _PRODUCER:
        table.producers[_U64.unpack(rest)[0]] = ProducerRow(*unpack_value(data))
    elif kind == _STAGE:
        row = unpack_value(data)
        row["files"] = tuple(StagedFile(*file) for file in row["files"])
        table.stages[rest] = StageRow(**row)
    elif kind == _TRANSACTION:
        table.transactions[rest.decode()] = TransactionRow(*unpack_value(data))
    else:
        raise Damaged(f"the state has a row of an unknown kind: {key[:80]!r}")


def _hole_key(channel: str, start: int) -> bytes:
    return _HOLE + channel.encode() + b"\0" + _U64.pack(start)


class _Rows:
    """Puts and deletes of one transaction that keep count and sum of all rows."""

    def __init__(self, txn: Any, meta: dict[str, Any]) -> None:
        self.txn = txn
        self.meta = meta

    def put(self, key: bytes, data: bytes) -> None:
        self.delete(key)
        value = _wrap(key, data)
        self.txn.put(key, value)
        self.meta["rows"] += 1
        self.meta["sum"] = (self.meta["sum"] + _crc_of(value)) & _SUM_MASK

    def delete(self, key: bytes) -> None:
        old = self.txn.pop(key)
        if old is not None:
            self.meta["rows"] -= 1
            self.meta["sum"] = (self.meta["sum"] - _crc_of(old)) & _SUM_MASK


def _apply(txn: Any, batch: StateBatch) -> None:
    meta = _read_meta(txn)
    rows = _Rows(txn, meta)
    for name in batch.channel_drops:
        rows.delete(_CHANNEL + name.encode())
        for key in _hole_keys(txn, name):
            rows.delete(key)
    for channel, start in batch.hole_gones:
        rows.delete(_hole_key(channel, start))
    for channel, start, count, attempts, due_ns in batch.hole_puts:
        rows.put(_hole_key(channel, start), _HOLE_ROW.pack(count, attempts, due_ns))
    for name, row in batch.channel_puts.items():
        rows.put(_CHANNEL + name.encode(), pack_value(row))
    for producer_id in batch.producers_gone:
        rows.delete(_PRODUCER + _U64.pack(producer_id))
    for producer_id, producer in batch.producers.items():
        rows.put(_PRODUCER + _U64.pack(producer_id), pack_value(tuple(producer)))
    for stage in batch.stage_gones:
        rows.delete(_STAGE + stage)
    for stage, staged in batch.stage_puts.items():
        rows.put(_STAGE + stage, pack_value(staged._asdict()))
    for app in batch.transactions_gone:
        rows.delete(_TRANSACTION + app.encode())
    for app, transaction in batch.transactions.items():
        rows.put(_TRANSACTION + app.encode(), pack_value(tuple(transaction)))
    changes = {
        "applied": batch.applied_offset,
        "synced": batch.synced_end,
        "paused": batch.paused_end,
        "waiting": batch.waiting,
        "start": batch.start,
    }
    meta.update({name: value for name, value in changes.items() if value is not None})
    meta["synced"] = max(meta["synced"], meta["applied"])
    txn.put(_META, _wrap(_META, pack_value(meta)))


def _hole_keys(txn: Any, channel: str) -> list[bytes]:
    prefix = _HOLE + channel.encode() + b"\0"
    found = []
    cursor = txn.cursor()
    if cursor.set_range(prefix):
        for key in cursor.iternext(keys=True, values=False):
            if not key.startswith(prefix):
                break
            found.append(bytes(key))
    return found


def _translate(error: lmdb.Error, path: str) -> Exception:
    """What an error of LMDB means to the caller."""
    text = f"{path}: {error}"
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number == errno.ENOSPC or "No space left" in text or isinstance(error, lmdb.DiskError):
        return DiskFull(text)
    if "No such file" in text:
        return ForeignDirectory(f"{text}; a topic's directory is made once, and never again in its place")
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)):
        return Damaged(text)
    return StoreFailed(text)
