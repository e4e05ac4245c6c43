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

`Environment` opens the environment, commits, and translates errors of LMDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..environment import MAP_BYTES, Environment
from ..errors import Damaged, StorageError
from ..row_changes import Row
from ..rows import META, SUM_MASK, crc_of, rows_of, unwrap
from .state_rows import (
    CHANNEL,
    DEFERRED,
    DUE,
    HOLE,
    HOLE_ROW,
    TOTAL,
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
    "DeferredTotal",
    "HoleRow",
    "ProducerRow",
    "StateBatch",
    "StateStore",
    "Table",
    "producer_after",
]


class StateStore(Environment):
    """An open state store. One thread at a time uses it.

    `on_changes` is called before `on_committed`.
    """

    def __init__(
        self, path: str, map_bytes: int = MAP_BYTES, *, create: bool = False, readonly: bool = False
    ) -> None:
        """Open the environment. Raises the errors of `Environment`."""
        super().__init__(path, map_bytes, create=create, readonly=readonly)
        self.garbage = False
        """True if cleared deferred rows existed after the last `load` or `commit`.

        Each commit removes some of them.
        """
        self.on_committed: Callable[[StateBatch], None] | None = None
        """A function that `commit` calls after each commit. `commit` raises its errors."""

    def create(self, uuid: bytes, waiting: int) -> None:
        """Write the first row of a new store."""
        self.fill(new_meta(uuid, waiting), ())

    # Reads

    def load(self) -> Table:
        """Return the whole state except the deferred rows.

        Raises `Damaged` if a row is damaged, or if a number or sum does not match.
        """
        table = Table()
        rows = total = 0
        with self.reading() as txn:
            meta = unwrap_meta(txn.get(META))
            for key, value in small_rows_of(txn):
                data = unwrap(key, value)
                rows += 1
                total += crc_of(value)
                take_row(table, key, data)
            deferred = sum(counted.rows for counted in table.deferred.values())
            live = {name: alias(name, table.generations.get(name, 0)) for name in table.channels}
            table.garbage = sum(
                counted.rows
                for name, counted in table.deferred.items()
                if name not in set(live.values())
            )
            entries = txn.stat()["entries"]
            table.deferred = {
                name: with_firsts(txn, other, table.deferred[other])
                for name, other in live.items()
                if other in table.deferred
            }
        if rows != meta["rows"] or total & SUM_MASK != meta["sum"]:
            raise Damaged(
                f"{self.path}: it has {rows} rows, but its checkpoint counts {meta['rows']}"
            )
        if entries != 1 + rows + 2 * deferred:
            raise Damaged(
                f"{self.path}: it has {entries} entries, but the checkpoint and the channels "
                f"count {1 + rows + 2 * deferred}"
            )
        take_meta(table, meta)
        self.garbage = table.garbage > 0
        return table

    def uuid(self) -> bytes:
        """Return the UUID of the topic that the store belongs to."""
        with self.reading() as txn:
            uuid: bytes = unwrap_meta(txn.get(META))["uuid"]
            return uuid

    def small_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and wrapped value of the checkpoint and of each small row, without a check."""
        with self.reading() as txn:
            yield META, bytes(txn.get(META))
            yield from small_rows_of(txn)

    def holes(self, channel: str) -> list[HoleRow]:
        """Return a channel's holes that are not deferred."""
        with self.reading() as txn:
            return [
                HoleRow(start_of(key), *HOLE_ROW.unpack(unwrap(key, value)))
                for key, value in rows_of(txn, prefix(HOLE, channel))
            ]

    def deferred(self, channel: str) -> DeferredTotal:
        with self.reading() as txn:
            rows = DeferredRows(txn)
            return with_firsts(txn, rows.name(channel), rows.counted(channel))

    def deferred_totals(self, channels: Iterable[str]) -> dict[str, DeferredTotal]:
        """Return the totals of those channels that have deferred rows.

        Most topics have no deferred rows. For them, the time must not grow with the number of
        channels, because this is called for each new channel.
        """
        with self.reading() as txn:
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
        with self.reading() as txn:
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
                    f"{self.path}: channel {channel!r} counts {total.rows} deferred rows, but "
                    f"{rows} were found by offset"
                )

    def due(self, channel: str, until_ns: int, limit: int) -> tuple[list[HoleRow], int]:
        """Return deferred holes that are due by `until_ns`, and the due time of the next one.

        Returns at most `limit` holes, the earliest first. The time is 0 if there is no next hole.
        """
        due_holes: list[HoleRow] = []
        with self.reading() as txn:
            name = DeferredRows(txn).name(channel)
            check_before(txn, prefix(DUE, name))
            for key, value in rows_of(txn, prefix(DUE, name)):
                row = due_row(txn, name, key, value)
                if row.due_ns > until_ns or len(due_holes) >= limit:
                    return due_holes, row.due_ns
                due_holes.append(row)
            if len(due_holes) != (rows := DeferredRows(txn).counted(channel).rows):
                raise Damaged(
                    f"{self.path}: channel {channel!r} counts {rows} deferred rows, but "
                    f"{len(due_holes)} were found by due time"
                )
        return due_holes, 0

    def deferred_at(self, channel: str, offsets: Sequence[int]) -> list[HoleRow]:
        """Return the deferred holes that have some of these offsets, each once."""
        with self.reading() as txn:
            name = DeferredRows(txn).name(channel)
            holes = (deferred_at(txn, name, offset) for offset in offsets)
            return [*dict.fromkeys(row for row in holes if row is not None)]

    def first_unfinished(self, channel: str) -> int | None:
        """Return the lowest kept offset that a channel has not finished.

        Deferred messages count as unfinished. Returns None if there is no such channel.
        """
        with self.reading() as txn:
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
        defects: list[str] = []
        try:
            self.load()
            with self.reading() as txn:
                for key, value in rows_of(txn, b""):
                    unwrap(key, value)
                totals = DeferredRows(txn)
                for name in (key[1:].decode() for key, _ in rows_of(txn, total_key(""))):
                    defects += totals.wrong(name)
        except (StorageError, ValueError, KeyError) as error:
            text = str(error)
            defects.append(text if text.startswith(self.path) else f"{self.path}: {text}")
        return defects

    # Commits

    def commit(self, batch: StateBatch) -> None:
        """Write the whole `batch` or nothing. It is synced when this returns.

        The log must be synced up to the batch's `applied_offset`. Raises the errors of `write`.
        """
        self.garbage = self.write(lambda txn: apply(txn, batch, garbage=self.garbage))
        if self.on_committed is not None:
            self.on_committed(batch)

    def fill(self, meta: StateMeta, rows: Iterable[Row]) -> None:
        """Write the checkpoint and the small rows (key and data) of a new store in one commit.

        Raises the errors of `write`.
        """
        small_rows = tuple(rows)

        def work(txn: Any) -> None:
            kept = SmallRows(txn, {**meta, "rows": 0, "sum": 0})
            for key, data in small_rows:
                kept.put(key, data)
            kept.save()

        self.write(work)
