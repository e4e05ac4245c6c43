"""State store of a topic: the states of its channels, producers and transactions, in LMDB.

Each topic has one LMDB environment. Each commit is one LMDB transaction. `state_rows.py` describes
the rows. The caller must sync the log first, because a commit must not contain an offset that is
not on disk.

LMDB has no page checksums. A flipped bit causes a wrong value, a missing row or an error. So each
value contains its key and a CRC-32C. The checkpoint contains the number of all small rows and the
sum of their checksums. So the store notices not only a row that changed, but also a missing row, or
an old row that exists again. (Without its hole row, an unfinished message would count as finished.)
The row with a channel's totals has the same number and sum for the channel's deferred rows. Each
mismatch raises `Damaged`. The store never returns a wrong value.

The start does not read deferred rows, because LMDB's own count of entries shows that their number
is right. `walk` reads them and adds them up.

LMDB does its own file operations. It is the only code in this folder that does not use `files.py`.
The store does not use LMDB's lock file, because the lock of the directory already excludes other
processes. So no thread may read while another thread commits. Otherwise LMDB could overwrite pages
that the reader still reads.

LMDB reports a full disk, but not whether the commit in which it noticed this took effect. See
`after_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import lmdb

from ..errors import Damaged, DiskFull, ForeignDirectory, StoreFailed
from ..row_changes import BATCH_BYTES, Change, RecordingTransaction, Row, row_batches
from ..rows import META, SUM_MASK, crc_of, rows_of, unwrap
from .state_rows import (
    CHANNEL,
    DEFERRED,
    DUE,
    HOLE,
    HOLE_ROW,
    RECENT_MAX,
    TOTAL,
    VERSION,
    DeferredTotal,
    HoleRow,
    ProducerRow,
    StateBatch,
    StateMeta,
    Table,
    alias,
    new_meta,
    prefix,
    producer_after,
    start_of,
    take_meta,
    take_row,
    total_key,
    unpack_channel,
    unwrap_meta,
)
from .state_transaction import (
    DeferredRows,
    SmallRows,
    apply,
    check_before,
    deferred_at,
    due_row,
    first_unfinished,
    small_rows_of,
    sought,
    with_firsts,
)

__all__ = [
    "MAP_BYTES",
    "MAP_BYTES_MAX",
    "RECENT_MAX",
    "VERSION",
    "DeferredTotal",
    "HoleRow",
    "ProducerRow",
    "StateBatch",
    "StateStore",
    "Table",
    "producer_after",
    "translate",
]


# Texts of the system. The Python binding of LMDB reports the text, but not the errno.
_FULL: Final = (
    "No space left",
    "Disk quota exceeded",
)


def says_full(error: lmdb.Error) -> bool:
    """Return True if this error of LMDB means that the disk is full."""
    return isinstance(error, lmdb.DiskError) or any(sentence in str(error) for sentence in _FULL)


def after_commit(env: lmdb.Environment, error: Exception) -> Exception:
    """Return the error to raise for a commit that failed.

    This is the same error, except if the disk was full when LMDB wrote the head of its file. In
    this case the head on disk may be the new one or the old one, LMDB accepts no more writes, and
    the result is `StoreFailed`. This can happen only on file systems that write to a new place when
    a page is overwritten.
    """
    if isinstance(error, DiskFull):
        try:
            env.begin(write=True).abort()
        except lmdb.Error as second:
            return StoreFailed(
                f"{error}; it is not known whether that commit was stored ({second})"
            )
    return error


# The initial address space of the environment, which is doubled when it is full. It takes no memory
# and no disk space.
MAP_BYTES: Final = 16 * 1024 * 1024
MAP_BYTES_MAX: Final = 1 << 40


class StateStore:
    """An open state store. One thread at a time uses it."""

    def __init__(
        self, path: str, map_bytes: int = MAP_BYTES, *, create: bool = False, readonly: bool = False
    ) -> None:
        """Open the environment.

        Raises `ForeignDirectory` if it does not exist or has another version, and `Damaged` if LMDB
        cannot read it.
        """
        self._path = path
        self.garbage = False
        """True if cleared deferred rows existed after the last `load` or `commit`.

        Each commit removes some of them.
        """
        self.on_committed: Callable[[StateBatch], None] | None = None
        """A function that `commit` calls after each commit. `commit` raises its errors."""
        self.on_changes: Callable[[list[Change]], None] | None = None
        """A function that gets the rows that each commit changed, after the commit.

        It is called before `on_committed`. `commit` raises its errors. The commit has taken effect
        then, so the store must be closed.
        """
        try:
            self._env = lmdb.open(
                path,
                map_size=map_bytes,
                max_dbs=0,
                lock=False,
                create=create,
                readonly=readonly,
                readahead=False,
            )
        except lmdb.Error as error:
            raise translate(error, path) from error
        self.map_bytes = int(self._env.info()["map_size"])

    def create(self, uuid: bytes, waiting: int) -> None:
        """Write the first row of a new store."""
        self.fill(new_meta(uuid, waiting), ())

    def close(self) -> None:
        self._env.close()

    def copy(self, folder: str) -> None:
        """Copy all committed rows as an environment into the empty `folder`, without a sync.

        Commits wait during the copy.
        """
        try:
            self._env.copy(folder)
        except lmdb.Error as error:
            raise translate(error, self._path) from error

    # Reads

    def load(self) -> Table:
        """Return the whole state except the deferred rows.

        Raises `Damaged` if a row is damaged, or if a number or sum does not match.
        """
        table = Table()
        rows = total = 0
        try:
            with self._env.begin() as txn:
                meta = unwrap_meta(txn.get(META))
                for key, value in small_rows_of(txn):
                    data = unwrap(key, value)
                    rows += 1
                    total += crc_of(value)
                    take_row(table, key, data)
                deferred = sum(one.rows for one in table.deferred.values())
                live = {
                    name: alias(name, table.generations.get(name, 0)) for name in table.channels
                }
                table.garbage = sum(
                    one.rows
                    for name, one in table.deferred.items()
                    if name not in set(live.values())
                )
                entries = txn.stat()["entries"]
                table.deferred = {
                    name: with_firsts(txn, other, table.deferred[other])
                    for name, other in live.items()
                    if other in table.deferred
                }
        except lmdb.Error as error:
            raise translate(error, self._path) from error
        if rows != meta["rows"] or total & SUM_MASK != meta["sum"]:
            raise Damaged(
                f"{self._path}: it has {rows} rows, but its checkpoint counts {meta['rows']}"
            )
        if entries != 1 + rows + 2 * deferred:
            raise Damaged(
                f"{self._path}: it has {entries} entries, but the checkpoint and the channels "
                f"count {1 + rows + 2 * deferred}"
            )
        take_meta(table, meta)
        self.garbage = table.garbage > 0
        return table

    def uuid(self) -> bytes:
        """Return the UUID of the topic that the store belongs to."""
        with self._reading() as txn:
            found: bytes = unwrap_meta(txn.get(META))["uuid"]
            return found

    def small_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and wrapped value of the checkpoint and of each small row, without a check."""
        with self._reading() as txn:
            yield META, bytes(txn.get(META))
            yield from small_rows_of(txn)

    def dump(self, after: bytes = b"", bytes_max: int = BATCH_BYTES) -> Iterator[list[Row]]:
        """Yield keys and values of all rows as stored, in lists of about 1 MiB, without a check.

        No commit may run before the iterator ends or is closed. To dump a large store between
        commits, take one list, close the iterator, and continue with another one `after` the last
        key. The copy is right if it gets the lists and the changes in the order in which they were
        made.
        """
        with self._reading() as txn:
            yield from row_batches(txn, after, bytes_max)

    def holes(self, channel: str) -> list[HoleRow]:
        """Return a channel's holes that are not deferred."""
        with self._reading() as txn:
            return [
                HoleRow(start_of(key), *HOLE_ROW.unpack(unwrap(key, value)))
                for key, value in rows_of(txn, prefix(HOLE, channel))
            ]

    def deferred(self, channel: str) -> DeferredTotal:
        with self._reading() as txn:
            rows = DeferredRows(txn)
            return with_firsts(txn, rows.name(channel), rows.counted(channel))

    def deferred_totals(self, channels: Iterable[str]) -> dict[str, DeferredTotal]:
        """Return the totals of those channels that have deferred rows.

        Most topics have no deferred rows. For them, the time must not grow with the number of
        channels, because this is called for each new channel.
        """
        with self._reading() as txn:
            if next(rows_of(txn, TOTAL), None) is None:
                return {}
            rows = DeferredRows(txn)
            totals = {
                channel: with_firsts(txn, rows.name(channel), rows.counted(channel))
                for channel in channels
            }
        return {channel: total for channel, total in totals.items() if total.rows}

    def deferred_rows(self, channel: str) -> Iterator[HoleRow]:
        """Yield each deferred hole of a channel, in the order of their starts.

        Raises `Damaged` after the last one if they do not match the channel's totals.
        """
        with self._reading() as txn:
            totals = DeferredRows(txn)
            name = totals.name(channel)
            check_before(txn, prefix(DEFERRED, name))
            rows = messages = 0
            for key, value in rows_of(txn, prefix(DEFERRED, name)):
                yield (row := HoleRow(start_of(key), *HOLE_ROW.unpack(unwrap(key, value))))
                rows += 1
                messages += row.count
            if (rows, messages) != (total := totals.counted(channel))[:2]:
                raise Damaged(
                    f"{self._path}: channel {channel!r} counts {total.rows} deferred rows, but "
                    f"{rows} were found by offset"
                )

    def due(self, channel: str, until_ns: int, limit: int) -> tuple[list[HoleRow], int]:
        """Return deferred holes that are due by `until_ns`, and the due time of the next one.

        Returns at most `limit` holes, the earliest first. The time is 0 if there is no next hole.
        """
        found: list[HoleRow] = []
        with self._reading() as txn:
            name = DeferredRows(txn).name(channel)
            check_before(txn, prefix(DUE, name))
            for key, value in rows_of(txn, prefix(DUE, name)):
                row = due_row(txn, name, key, value)
                if row.due_ns > until_ns or len(found) >= limit:
                    return found, row.due_ns
                found.append(row)
            if len(found) != (rows := DeferredRows(txn).counted(channel).rows):
                raise Damaged(
                    f"{self._path}: channel {channel!r} counts {rows} deferred rows, but "
                    f"{len(found)} were found by due time"
                )
        return found, 0

    def deferred_at(self, channel: str, offsets: Sequence[int]) -> list[HoleRow]:
        """Return the deferred holes that have some of these offsets, each once."""
        with self._reading() as txn:
            name = DeferredRows(txn).name(channel)
            found = (deferred_at(txn, name, offset) for offset in offsets)
            return [*dict.fromkeys(row for row in found if row is not None)]

    def first_unfinished(self, channel: str) -> int | None:
        """Return the lowest kept offset that a channel has not finished.

        Deferred messages count as unfinished. Returns None if there is no such channel.
        """
        with self._reading() as txn:
            key = CHANNEL + channel.encode()
            value = sought(txn, key)
            if value is None:
                return None
            following = unpack_channel(unwrap(key, value)).next_offset
            start: int = unwrap_meta(txn.get(META))["start"]
            deferred = DeferredRows(txn).name(channel)
            firsts = (
                first_unfinished(txn, kind, name, start)
                for kind, name in ((HOLE, channel), (DEFERRED, deferred))
            )
            return min([max(start, following), *(first for first in firsts if first is not None)])

    def walk(self) -> list[str]:
        """Check every row against its checksum, and all counts and sums.

        Deferred rows are included. Returns the defects as sentences.
        """
        found = []
        try:
            self.load()
            with self._env.begin() as txn:
                for key, value in rows_of(txn, b""):
                    unwrap(key, value)
                totals = DeferredRows(txn)
                for name in (key[1:].decode() for key, _ in rows_of(txn, total_key(""))):
                    found += totals.wrong(name)
        except (lmdb.Error, Damaged, ForeignDirectory, ValueError, KeyError) as error:
            found.append(_told(self._path, error))
        return found

    def _reading(self) -> _Reading:
        return _Reading(self._env, self._path)

    # Commits

    def commit(self, batch: StateBatch) -> None:
        """Write the whole `batch` or nothing. It is synced when this returns.

        The log must be synced up to the batch's `applied_offset`. If LMDB's map is full, this
        doubles it and repeats the commit. Raises `DiskFull` if nothing changed. Raises
        `StoreFailed` if the result is unknown. The process must then end and recover.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    recorder = RecordingTransaction(txn) if self.on_changes is not None else None
                    garbage = apply(recorder or txn, batch, garbage=self.garbage)
                self.garbage = garbage
                break
            except lmdb.MapFullError as error:
                if self.map_bytes * 2 > MAP_BYTES_MAX:
                    raise DiskFull(
                        f"{self._path} has reached its limit of {MAP_BYTES_MAX} bytes"
                    ) from error
                self.map_bytes *= 2
                self._env.set_mapsize(self.map_bytes)
            except lmdb.Error as error:
                raise after_commit(self._env, translate(error, self._path)) from error
        if recorder is not None and self.on_changes is not None:
            self.on_changes(recorder.changes())
        if self.on_committed is not None:
            self.on_committed(batch)

    def fill(self, meta: StateMeta, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the checkpoint and the small rows (key and data) of a new store in one commit.

        Raises the errors of `commit`.
        """
        try:
            with self._env.begin(write=True) as txn:
                recorder = RecordingTransaction(txn) if self.on_changes is not None else None
                kept = SmallRows(recorder or txn, {**meta, "rows": 0, "sum": 0})
                for key, data in rows:
                    kept.put(key, data)
                kept.save()
        except lmdb.Error as error:
            raise after_commit(self._env, translate(error, self._path)) from error
        if recorder is not None and self.on_changes is not None:
            self.on_changes(recorder.changes())


class _Reading:
    """A read transaction that translates errors of LMDB."""

    def __init__(self, env: Any, path: str) -> None:
        self._env, self._path = env, path

    def __enter__(self) -> Any:
        try:
            self._txn = self._env.begin()
        except lmdb.Error as error:
            raise translate(error, self._path) from error
        return self._txn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._txn.abort()
        if isinstance(error, lmdb.Error):
            raise translate(error, self._path) from error


def _told(path: str, error: Exception) -> str:
    """Return the error's text with the path. LMDB includes the path in some errors."""
    return str(error) if str(error).startswith(path) else f"{path}: {error}"


def translate(error: lmdb.Error, path: str) -> Exception:
    """Convert an error of LMDB to an error of this package."""
    text = _told(path, error)
    if says_full(error):
        return DiskFull(text)
    if "No such file" in text:
        return ForeignDirectory(f"{text}; zsq does not create it again: mount or restore it")
    if isinstance(
        error,
        (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError),
    ):
        return Damaged(text)
    return StoreFailed(text)
