"""Rows of one LMDB transaction: ranges, puts and deletes that update counts and sums, and `apply`.

Nothing here begins, commits or ends a transaction. `state.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from ...transport.wire.codec import pack_value
from ..errors import Damaged
from ..rows import META, SUM_MASK, crc_of, rows_of, unwrap, wrap
from .state_rows import (
    DEFERRED,
    DUE,
    GENERATION,
    HOLE,
    HOLE_ROW,
    SMALL_RANGES,
    TOTAL_ROW,
    U64,
    DeferredTotal,
    HoleRow,
    StateBatch,
    StateMeta,
    alias,
    change_meta,
    deferred_key,
    due_key,
    due_of,
    hole_key,
    prefix,
    small_gones,
    small_puts,
    start_of,
    total_key,
    unwrap_meta,
)

# The most deferred rows that the commit with the clear removes.
CLEAR_ROWS_MAX: Final = 1_000
# The most deferred rows that each later commit removes. This takes about 40 ms.
COLLECT_ROWS_MAX: Final = 2_000


def small_rows_of(txn: Any) -> Iterator[tuple[bytes, bytes]]:
    for begin, end in SMALL_RANGES:
        for key, value in rows_of(txn, begin, end):
            if key != META:
                yield key, value


def first_of(txn: Any, begin: bytes) -> tuple[bytes, bytes]:
    """Return the first row whose key starts with `begin`, or two empty values if there is none."""
    check_before(txn, begin)
    return next(rows_of(txn, begin), (b"", b""))


def check_before(txn: Any, begin: bytes) -> None:
    """Check the two rows next to the place where a search for `begin` ends.

    Raises `Damaged` if one is damaged.

    A search of LMDB compares only keys. If a bit flips in the key of a range's lowest row, the row
    seems to be before the range. A damaged key of another range may also send the search to a wrong
    place. If the rows on both sides are not damaged, the search ended at the right place.
    """
    cursor = txn.cursor()
    is_placed = cursor.set_range(begin)
    if is_placed:
        unwrap(bytes(cursor.key()), bytes(cursor.value()))
    if cursor.prev() if is_placed else cursor.last():
        unwrap(bytes(cursor.key()), bytes(cursor.value()))


def sought(txn: Any, key: bytes) -> bytes | None:
    """Return the value of a row, or None if the row does not exist.

    Raises `Damaged` if the rows around the missing one are damaged, because the row may then exist.
    """
    value: bytes | None = txn.get(key)
    if value is None:
        check_before(txn, key)
    return value


def due_row(txn: Any, name: str, key: bytes, value: bytes) -> HoleRow:
    """Return the deferred hole of a row in the due-time index.

    That row has the due time only in its key, so this also reads the row of the hole. Raises
    `Damaged` if the two rows have different due times.
    """
    unwrap(key, value)
    other = deferred_key(name, start_of(key))
    row = HoleRow(start_of(key), *HOLE_ROW.unpack(unwrap(other, txn.get(other, b""))))
    if row.due_ns != due_of(key):
        raise Damaged(f"the deferred row {other[:80]!r} has two due times")
    return row


def first_unfinished(txn: Any, kind: bytes, channel: str, start: int) -> int | None:
    """Return the lowest offset, not below `start`, of a channel's holes of this kind, or None.

    Messages below `start` are removed, finished or not. If one of them is deferred, its row may
    stay until it is due. This ignores such a row, because retention could otherwise not remove
    later messages.
    """
    head = prefix(kind, channel)
    check_before(txn, head + U64.pack(start))
    cursor = txn.cursor()
    is_placed = cursor.set_range(head + U64.pack(start))
    following = (
        start_of(bytes(cursor.key())) if is_placed and cursor.key().startswith(head) else None
    )
    if (cursor.prev() if is_placed else cursor.last()) and cursor.key().startswith(head):
        key = bytes(cursor.key())
        if start_of(key) + HOLE_ROW.unpack(unwrap(key, bytes(cursor.value())))[0] > start:
            return start
    return following


def deferred_at(txn: Any, channel: str, offset: int) -> HoleRow | None:
    """Return the channel's deferred hole that has this offset, or None."""
    head = prefix(DEFERRED, channel)
    after = head + U64.pack(offset + 1)
    check_before(txn, after)
    cursor = txn.cursor()
    is_placed = cursor.set_range(after)
    if not (cursor.prev() if is_placed else cursor.last()) or not cursor.key().startswith(head):
        return None
    key = bytes(cursor.key())
    row = HoleRow(start_of(key), *HOLE_ROW.unpack(unwrap(key, bytes(cursor.value()))))
    return row if offset < row.start + row.count else None


def with_firsts(txn: Any, channel: str, total: DeferredTotal) -> DeferredTotal:
    """Return the total with the lowest start and the earliest due time.

    Raises `Damaged` if the rows are missing.
    """
    if not total.rows:
        return total
    start, due = first_of(txn, prefix(DEFERRED, channel)), first_of(txn, prefix(DUE, channel))
    if not start[0] or not due[0]:
        raise Damaged(f"the deferred rows of channel {channel!r} are missing")
    unwrap(*start)
    return total._replace(
        first_start=start_of(start[0]), next_due_ns=due_row(txn, channel, *due).due_ns
    )


def remove_rows(txn: Any, begin: bytes) -> list[bytes]:
    """Remove the rows whose keys start with `begin`.

    Return the first 4 bytes of each value, which are its checksum.
    """
    removed = []
    cursor = txn.cursor()
    is_placed = cursor.set_range(begin)
    while is_placed and cursor.key().startswith(begin):
        removed.append(bytes(cursor.value()[:4]))
        is_placed = cursor.delete() and bool(cursor.key())
    return removed


class SmallRows:
    """Puts and deletes of small rows in one transaction. They update the count and the sum."""

    def __init__(self, txn: Any, meta: StateMeta) -> None:
        self.txn = txn
        self.meta = meta

    def put(self, key: bytes, data: bytes) -> None:
        self.delete(key)
        value = wrap(key, data)
        self.txn.put(key, value)
        self.meta["rows"] += 1
        self.meta["sum"] = (self.meta["sum"] + crc_of(value)) & SUM_MASK

    def delete(self, key: bytes) -> None:
        old = self.txn.pop(key)
        if old is not None:
            self._gone(old)

    def delete_all(self, begin: bytes) -> None:
        for old in remove_rows(self.txn, begin):
            self._gone(old)

    def _gone(self, old: bytes) -> None:
        self.meta["rows"] -= 1
        self.meta["sum"] = (self.meta["sum"] - crc_of(old)) & SUM_MASK

    def save(self) -> None:
        self.txn.put(META, wrap(META, pack_value(self.meta)))


class DeferredRows:
    """The deferred rows in one transaction, with the totals of each alias.

    The totals are [rows, messages, sum of checksums].
    """

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self._totals: dict[str, list[int]] = {}
        self._before: dict[str, list[int]] = {}
        self._generations: dict[str, int] = {}
        self._moved: set[str] = set()

    def name(self, channel: str) -> str:
        """Return the alias under which a channel's deferred rows are stored."""
        if channel not in self._generations:
            key = GENERATION + channel.encode()
            value = sought(self._txn, key)
            self._generations[channel] = (
                U64.unpack(unwrap(key, value))[0] if value is not None else 0
            )
        return alias(channel, self._generations[channel])

    def _total(self, name: str) -> list[int]:
        if name not in self._totals:
            key = total_key(name)
            value = sought(self._txn, key)
            self._totals[name] = (
                list(TOTAL_ROW.unpack(unwrap(key, value))) if value is not None else [0, 0, 0]
            )
            self._before[name] = list(self._totals[name])
        return self._totals[name]

    def counted(self, channel: str) -> DeferredTotal:
        return DeferredTotal(*self._total(self.name(channel))[:2])

    def put(self, channel: str, start: int, count: int, attempts: int, due_ns: int) -> None:
        self.delete(channel, start)
        name = self.name(channel)
        total = self._total(name)
        for key, data in (
            (deferred_key(name, start), HOLE_ROW.pack(count, attempts, due_ns)),
            (due_key(name, due_ns, start), b""),
        ):
            value = wrap(key, data)
            self._txn.put(key, value)
            total[2] = (total[2] + crc_of(value)) & SUM_MASK
        total[0] += 1
        total[1] += count

    def delete(self, channel: str, start: int) -> None:
        self._delete(self.name(channel), start)

    def _delete(self, name: str, start: int) -> None:
        total = self._total(name)
        if not total[0]:
            return
        key = deferred_key(name, start)
        value = self._txn.pop(key)
        if value is None:
            return
        count, _, due_ns = HOLE_ROW.unpack(unwrap(key, value))
        due = self._txn.pop(due_key(name, due_ns, start))
        if due is None:
            raise Damaged(f"the deferred row {key[:80]!r} is not stored under its due time")
        total[0] -= 1
        total[1] -= count
        total[2] = (total[2] - crc_of(value) - crc_of(due)) & SUM_MASK

    def clear(self, channel: str) -> bool:
        """Remove a channel's deferred rows. Return True if there are too many for one commit.

        In that case the rows are not valid any more, and `collect` removes them later.
        """
        name = self.name(channel)
        if self._total(name)[0] > CLEAR_ROWS_MAX:
            self._generations[channel] += 1
            self._moved.add(channel)
            return True
        self._remove(name, CLEAR_ROWS_MAX)
        return False

    def _remove(self, name: str, limit: int) -> int:
        keys = [key for key, _ in islice(rows_of(self._txn, prefix(DEFERRED, name)), limit)]
        for key in keys:
            self._delete(name, start_of(key))
        return len(keys)

    def collect(self, limit: int) -> bool:
        """Remove up to `limit` cleared rows. Return True if more are left."""
        names = [key[1:].decode() for key, _ in rows_of(self._txn, total_key(""))]
        for name in names:
            if name == self.name(name.partition("\x01")[0]):
                continue
            limit -= self._remove(name, limit)
            if self._total(name)[0]:
                return True
        return False

    def save(self, rows: SmallRows) -> None:
        """Write the totals that changed. A channel without deferred rows has no row for them."""
        for channel, total in self._totals.items():
            if total == self._before[channel]:
                continue
            if total[0]:
                rows.put(total_key(channel), TOTAL_ROW.pack(*total))
            else:
                rows.delete(total_key(channel))
        for channel in self._moved:
            rows.put(GENERATION + channel.encode(), U64.pack(self._generations[channel]))

    def wrong(self, channel: str) -> list[str]:
        """Add up all deferred rows of a channel, and compare them with its totals.

        Return the mismatches as sentences.
        """
        rows = messages = total = 0
        for key, value in rows_of(self._txn, prefix(DEFERRED, channel)):
            rows += 1
            count, _, due_ns = HOLE_ROW.unpack(unwrap(key, value))
            messages += count
            total += crc_of(value)
            if self._txn.get(due_key(channel, due_ns, start_of(key))) is None:
                return [f"the deferred row {key[:80]!r} is not stored under its due time"]
        for _, value in rows_of(self._txn, prefix(DUE, channel)):
            total += crc_of(value)
        if [rows, messages, total & SUM_MASK] != self._total(channel):
            return [
                (
                    f"channel {channel!r}: {rows} deferred rows of {messages} messages do not "
                    "match "
                    "their total"
                )
            ]
        return []


def apply(txn: Any, batch: StateBatch, *, garbage: bool = False) -> bool:
    """Write the whole batch. Return True if cleared deferred rows are left to collect.

    `garbage` is True if such rows exist before the batch.
    """
    rows = SmallRows(txn, unwrap_meta(txn.get(META)))
    deferred = DeferredRows(txn)
    for name in batch.channel_drops:
        rows.delete_all(prefix(HOLE, name))
    for name in (*batch.channel_drops, *batch.deferred_clears):
        garbage = deferred.clear(name) or garbage
    for key in small_gones(batch):
        rows.delete(key)
    for channel, start in batch.hole_gones:
        rows.delete(hole_key(channel, start))
        deferred.delete(channel, start)
    for channel, start, count, attempts, due_ns in batch.hole_puts:
        if due_ns:
            rows.delete(hole_key(channel, start))
            deferred.put(channel, start, count, attempts, due_ns)
        else:
            deferred.delete(channel, start)
            rows.put(hole_key(channel, start), HOLE_ROW.pack(count, attempts, 0))
    for key, data in small_puts(batch).items():
        rows.put(key, data)
    garbage = garbage and deferred.collect(COLLECT_ROWS_MAX)
    deferred.save(rows)
    change_meta(rows.meta, batch)
    rows.save()
    return garbage
