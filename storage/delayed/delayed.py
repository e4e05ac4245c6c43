"""Delayed store: messages that are not due yet, in an LMDB environment next to the log.

The environment is in DIR/delayed/ and is created when it is first needed.

A delayed publish is committed to this store, together with its producer's sequence. When a message
is due, it moves to the log and its row is removed. These are the steps in the life of a row:

| step | on disk after it | after a crash before the next step |
|---|---|---|
| `put`, synced | the row; only now the publish is answered | the message waits |
| `due` | as before | the message waits |
| append to the log | the row; perhaps the block | recovery cuts the block off, or keeps it |
| sync of the log | both; only now channels get the message | recovery removes the row |
| `remove`, synced | the block | |
| the checkpoint moves past the block | the block | recovery does not look for its key again |

The block in the log has the flag DELAYED, and its header contains the row's key. Recovery removes
the rows whose keys it finds in the log after the checkpoint of the state store.

So a message is in the log only once. Two conditions are necessary: the checkpoint must not pass a
moved block whose row still exists, and a row must not move while one of its messages is being
cancelled. The caller ensures both (`actors/storage/delayed.py`).

Delayed messages are not in the state store, for two reasons. Ten million messages take gigabytes,
and the rows of the state store are loaded into memory and copied to snapshots. Also, the state
store is rebuilt from the log after damage, but delayed messages are not in the log yet. The delayed
store keeps only its producers in memory.

LMDB's pages have no checksums. So each value contains its key and a checksum, and the meta row has
the number of all rows and the sum of their checksums. A damaged row is saved to a file, counted as
lost and reported. The other rows are not affected. `delayed_recovery.py` copies the rows of an
environment that cannot be opened or read, or that kills the process that reads it. `attempting`
notes each risky step for the next start.

One thread at a time uses the store (`storage/environment.py`).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple, TypedDict

from ...transport.block.block import Block
from ...transport.wire.codec import pack_value, unpack_value
from ..environment import DATA_NAME, MAP_BYTES, Environment, translated
from ..errors import Damaged, DiskFull, ForeignDirectory, StorageError, StoreFailed, newer
from ..files import TEMPORARY_SUFFIX, Files
from ..row_changes import BATCH_BYTES, Row
from ..rows import META, SUM_MASK, crc_of, key_of, rows_of, unwrap, wrap
from .delayed_format import (
    IDS,
    PRODUCER,
    ROW,
    VERSION,
    DelayedKey,
    DelayedProducer,
    DelayedRow,
    count_of,
    decode_row,
    encode_row,
    flags_of,
    has_its_size,
    ids_key,
    names_itself,
    parse_ids_key,
    parse_producer_key,
    parse_row_key,
    producer_key,
    row_key,
    without,
)

# The most keys that are compared one by one to find a row that a search misses.
WALK_MAX: Final = 20_000
ID_BYTES: Final = 16  # the size of a digest
DUE_AT_ONCE: Final = 1  # the first row's due time may be wrong, so `due` must check it at once


class DelayedSummary(NamedTuple):
    """The messages that wait. `lost` is the number of all messages ever lost because of damage.

    `next_due_ns` is 0 if no message waits.
    """

    messages: int = 0
    bytes: int = 0
    next_due_ns: int = 0
    lost: int = 0


class Progress(NamedTuple):
    """The state of an environment after its newest commit.

    `commits` is the number of commits so far.
    """

    commits: int = 0
    serial: int = 0
    messages: int = 0


class Listed(NamedTuple):
    """One message that waits. `size` is the size of its body."""

    key: DelayedKey
    size: int
    body: bytes
    message_tag: bytes | None
    message_key: bytes | None


class Rows:
    """The rows of one transaction, and the meta row that counts them.

    `sound` is a row key that was already compared with its value.
    """

    def __init__(self, txn: Any, sound: bytes = b"") -> None:
        self.txn = txn
        self.sound = sound
        self.meta = read_meta(txn)

    def put(self, key: bytes, data: bytes) -> None:
        self.put_value(key, wrap(key, data))

    def put_value(self, key: bytes, value: bytes) -> None:
        self.delete(key)
        self.txn.put(key, value)
        self.meta["rows"] += 1
        self.meta["sum"] = (self.meta["sum"] + crc_of(value)) & SUM_MASK

    def delete(self, key: bytes, *, known: bool = False) -> bytes | None:
        """Remove a row and return its value, or None if it does not exist.

        `known` means that the key was read among the first rows. A key with a flipped bit is not in
        order, so a search may miss it and other keys. This then compares the first rows one by one.
        """
        old: bytes | None = self.txn.pop(key)
        if old is None and known:
            old = self._pick_out(key)
        if old is not None:
            self.meta["rows"] -= 1
            self.meta["sum"] = (self.meta["sum"] - crc_of(old)) & SUM_MASK
        return old

    def _pick_out(self, key: bytes) -> bytes | None:
        cursor = self.txn.cursor()
        for other in islice(row_keys(cursor), WALK_MAX):
            if other == key:
                value: bytes = cursor.value()
                cursor.delete()
                return value
        return None

    def add(self, row: DelayedRow) -> None:
        self.put_value(*encode_row(row))
        self.meta["messages"] += row.block.count
        self.meta["bytes"] += row.block.length

    def restore(self, value: bytes) -> None:
        """Add a row by its value, if it does not exist. Raises `Damaged`."""
        key = key_of(value)
        # A search for the empty key, which an unreadable value has, is an error of LMDB's.
        if not key.startswith((ROW, PRODUCER, IDS)) or self.txn.get(key) is not None:
            return
        if key.startswith(ROW):
            self.add(decode_row(key, value))
        elif key.startswith(IDS):
            parse_ids_key(key)
            unwrap(key, value)
            self.put_value(key, value)
        else:
            parse_producer_key(key)
            unwrap(key, value)
            self.put_value(key, value)

    def take(self, key: bytes, *, known: bool = False) -> None:
        """Remove a row that is no longer needed, if it exists."""
        value = self.delete(key, known=known)
        if value is not None:
            self.meta["messages"] -= count_of(key, value)
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))

    def drop(self, key: bytes, count: int) -> None:
        """Remove a damaged row, and count its messages as lost."""
        value = self.delete(key, known=True)
        if value is not None:
            self.meta["messages"] -= count
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))
            self.meta["lost"] += count

    def finish(self, *, missing_is_lost: bool = True, counts: bool = True) -> DelayedSummary:
        """Write the meta row and return the summary.

        If the meta row counts messages but there is no row, the messages are lost, because they
        were in a damaged page.
        """
        meta = self.meta
        meta["messages"] = max(0, meta["messages"])
        if missing_is_lost and next(row_keys(self.txn.cursor()), None) is None:
            meta["lost"] += meta["messages"]
            meta["messages"] = meta["bytes"] = 0
        meta["bytes"] = max(0, meta["bytes"])
        meta["commits"] += counts
        self.txn.put(META, wrap(META, pack_value(meta)))
        summary, self.sound = summary_of(self.txn, meta, self.sound)
        return summary


class DelayedMeta(TypedDict):
    """The meta row.

    `serial` is the serial of the next message. `lost` is the number of messages lost because of
    damage.
    """

    version: int
    commits: int
    serial: int
    rows: int
    messages: int
    bytes: int
    sum: int
    lost: int
    uuid: builtins.bytes


def read_meta(txn: Any) -> DelayedMeta:
    value = txn.get(META)
    if value is None:
        raise Damaged("the store of delayed messages has no meta row")
    return decode_meta(value)


def decode_meta(value: bytes) -> DelayedMeta:
    """Return the meta row. Raises `Damaged`, or `NewerVersion` for an unknown version."""
    meta: DelayedMeta = unpack_value(unwrap(META, value))
    if meta["version"] != VERSION:
        raise newer("the store of delayed messages", meta["version"], VERSION)
    return meta


def progress_of(meta: DelayedMeta) -> Progress:
    return Progress(meta["commits"], meta["serial"], meta["messages"])


def row_keys(cursor: Any) -> Iterator[bytes]:
    """Yield the keys of all rows in their order on disk, with the cursor on each.

    This includes damaged keys. Only rows are before the meta row, so a key that is not valid
    belongs to a damaged row, and is not the end of the rows.
    """
    if cursor.first():
        for key in cursor.iternext(keys=True, values=False):
            if key == META or key.startswith(PRODUCER):
                return
            yield key


def rows_from(txn: Any, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the rows, as `row_keys` does, from `start` on."""
    cursor = txn.cursor()
    if cursor.set_range(start) if start else cursor.first():
        for key, value in cursor:
            if key == META or key.startswith(PRODUCER):
                return
            yield key, value


def summary_of(txn: Any, meta: DelayedMeta, sound: bytes = b"") -> tuple[DelayedSummary, bytes]:
    """Return the summary, and the first row's key if it matches the key in its value.

    LMDB does not notice a flipped bit in a key. It could move the due time centuries ahead, so that
    all messages would wait. `sound` is a key that was compared before. It is not compared again,
    because to read its value may take several MiB.
    """
    cursor = txn.cursor()
    first = next(row_keys(cursor), b"")
    if first and first != sound and not names_itself(first, cursor.value()):
        return DelayedSummary(meta["messages"], meta["bytes"], DUE_AT_ONCE, meta["lost"]), b""
    return DelayedSummary(
        meta["messages"], meta["bytes"], parse_row_key(first).due_ns if first else 0, meta["lost"]
    ), first


def holder(txn: Any, key: DelayedKey) -> DelayedRow | None:
    """Return the row that contains a message. Return None if it does not exist or is damaged."""
    wanted = row_key(key)
    cursor = txn.cursor()
    if not cursor.set_range(wanted) or cursor.key() != wanted:
        moved = cursor.prev() if cursor.key() else cursor.last()
        if not moved or not cursor.key().startswith(ROW):
            return None
    try:
        row = decode_row(cursor.key(), cursor.value())
    except Damaged:
        return None
    return row if row.holds(key) else None


def listed_of(key: DelayedKey, block: Block, index: int, body_bytes: int) -> Listed:
    body = block.body.value(index) or b""
    tag, key_column = block.tag, block.key
    message_tag = None if tag is None else tag.value(index)
    message_key = None if key_column is None else key_column.value(index)
    return Listed(key, len(body), body[:body_bytes], message_tag, message_key)


# If `delayed.attempt` contains this text, the next start rescues at once, without an examination.
RESCUE: Final = "rescue"
MARKED_EVERY: Final = 256  # `attempting` is called once for this number of runs
RECENT_MAX: Final = 8  # the most blocks that a producer row lists
PRODUCERS_MAX: Final = 20_000
PRODUCER_KEPT_NS: Final = 7 * 86_400 * 1_000_000_000
SHRINK_ABOVE_BYTES: Final = 64 * 1024 * 1024
# `shrink` copies all bytes in use in one step, so it needs a limit.
SHRINK_LIVE_BYTES_MAX: Final = 8 * 1024 * 1024
EXPIRED_MAX: Final = 1_000  # the most producer rows that one `put` removes


class DelayedStore(Environment):
    """An open environment of delayed messages. `shrink` does not call `on_changes`."""

    def __init__(
        self,
        path: str,
        uuid: bytes,
        *,
        map_bytes: int = MAP_BYTES,
        create: bool = False,
        first_serial: int = 0,
    ) -> None:
        """Open the environment.

        Raises `ForeignDirectory` if it belongs to another topic or has another version, and
        `Damaged` if it cannot be read.
        """
        self.attempting: Callable[[str], None] = lambda operation: None
        """A function that is called with an operation's name before it runs, and with "" after it.

        It is called for the first run in this process, and then for every MARKED_EVERY-th run. If
        the operation finds damage, the call with "" is left out. If an operation without these
        calls finds damage, the function is called with its name at that time.
        """
        self.set_aside: Callable[[bytes, bytes, str], None] = lambda key, value, why: None
        """A function that gets a damaged row's key, value and defect before the row is deleted."""
        self.committed: Callable[[Progress], None] = lambda progress: None
        """A function that is called after each commit."""
        self._tried: dict[str, int] = {}  # the number of runs of each operation
        self._uuid = uuid
        super().__init__(path, map_bytes, create=create)
        try:
            if create:
                self._create(uuid, first_serial)
            self._load(uuid)
        except BaseException:
            self.close()
            raise

    def _create(self, uuid: bytes, first_serial: int) -> None:
        meta = DelayedMeta(
            version=VERSION,
            commits=0,
            serial=first_serial,
            rows=0,
            messages=0,
            bytes=0,
            sum=0,
            lost=0,
            uuid=uuid,
        )
        self.write(lambda txn: txn.put(META, wrap(META, pack_value(meta))))

    def _load(self, uuid: bytes) -> None:
        producers: dict[int, DelayedProducer] = {}
        with self.reading() as txn:
            meta = read_meta(txn)
            if meta["uuid"] != uuid:
                raise ForeignDirectory(f"{self.path} holds the delayed messages of another topic")
            for key, value in rows_of(txn, PRODUCER):
                producers[parse_producer_key(key)] = DelayedProducer(
                    *unpack_value(unwrap(key, value))
                )
            self.summary, self._sound = summary_of(txn, meta)
            self.progress = progress_of(meta)
        self.producers = producers
        """The producers after the last commit."""

    def dump(self, max_bytes: int = BATCH_BYTES) -> Iterator[list[Row]]:
        batches = super().dump(max_bytes)
        while True:
            with self._trying("dump"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    # Storing messages

    def put(self, blocks: Sequence[tuple[Block, int]], used_ns: int) -> list[DelayedKey]:
        """Store blocks with their due times and their producers' sequences.

        Return the key of each block.

        All blocks are durable when this returns. If it raises `DiskFull`, nothing changed. It
        raises `StoreFailed` if the result is unknown. The process must then end and recover.
        """
        keys: list[DelayedKey] = []
        producers: dict[int, DelayedProducer] = {}

        def work(rows: Rows) -> None:
            keys.clear()
            producers.clear()
            for block, due_ns in blocks:
                key = DelayedKey(due_ns, rows.meta["serial"])
                rows.meta["serial"] += block.count
                rows.add(DelayedRow(key, block))
                keys.append(key)
                if digests := b"".join(filter(None, block.ids or ())):
                    rows.put(ids_key(used_ns, key.serial), digests)
                producer_id, sequence = block.header.producer_id, block.header.sequence
                known = producers.get(producer_id) or self.producers.get(producer_id)
                recent = (*(known.recent if known else ()), (sequence, key.due_ns, key.serial))[
                    -RECENT_MAX:
                ]
                producers[producer_id] = DelayedProducer(sequence + 1, used_ns, recent)
            for producer_id, producer in producers.items():
                rows.put(producer_key(producer_id), pack_value(tuple(producer)))
            for producer_id in gone:
                rows.delete(producer_key(producer_id))

        gone = self._expired(used_ns, {block.header.producer_id for block, _ in blocks})
        self._commit("put", work)
        self.producers.update(producers)
        for producer_id in gone:
            del self.producers[producer_id]
        return keys

    def _expired(self, now_ns: int, but: set[int]) -> list[int]:
        """Return producers not used for a week, or, if there are too many, the longest unused."""
        old = [
            pid
            for pid, row in self.producers.items()
            if row.used_ns < now_ns - PRODUCER_KEPT_NS and pid not in but
        ]
        if len(self.producers) - len(old) > PRODUCERS_MAX:
            old = sorted(self.producers.keys() - but, key=lambda pid: self.producers[pid].used_ns)
        return old[:EXPIRED_MAX]

    # Ids

    def ids(self) -> list[tuple[int, list[bytes]]]:
        """Return the time and the digests of the ids of delayed blocks, the oldest first.

        Damaged rows are left out. They cost a duplicate, and no message.
        """
        found: list[tuple[int, list[bytes]]] = []
        with self.reading() as txn:
            for key, value in rows_of(txn, IDS):
                with suppress(Damaged):
                    data = bytes(unwrap(key, value))
                    digests = [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]
                    found.append((parse_ids_key(key), digests))
        return found

    def forget_ids(self, since_ns: int) -> bool:
        """Remove rows of ids that are older than this. Return True if there may be more."""
        end = ids_key(max(0, since_ns), 0)
        with self.reading() as txn:
            old = [bytes(key) for key, _ in islice(rows_of(txn, IDS), EXPIRED_MAX) if key < end]

        def work(rows: Rows) -> None:
            for key in old:
                rows.delete(key)

        if old:
            self._commit("forget", work)
        return len(old) == EXPIRED_MAX

    # Removing messages

    def due(self, now_ns: int, max_bytes: int, rows_max: int) -> list[DelayedRow]:
        """Return the earliest rows that are due, at least one if any is due.

        `max_bytes` and `rows_max` limit the result approximately. Damaged rows among these are
        saved to files and removed. It is also damage if the meta row counts messages but there is
        no row.
        """
        due_rows: list[DelayedRow] = []
        damaged: list[tuple[bytes, bytes, str]] = []
        first = True
        size = 0
        with self._trying("due"), self.reading() as txn:
            for key, value in rows_from(txn):
                first = False
                try:
                    if parse_row_key(key).due_ns > now_ns:
                        unwrap(key, value)  # this also checks the due time, which is in the key
                        break
                    row = decode_row(key, value)
                except Damaged as error:
                    damaged.append((key, value, str(error)))
                else:
                    size += row.block.length
                    if due_rows and (size > max_bytes or len(due_rows) >= rows_max):
                        break
                    due_rows.append(row)
                if len(damaged) >= rows_max:
                    break
        if damaged:
            self._drop_damaged(damaged)
        elif first and self.summary.messages:
            self._commit("drop", lambda rows: None)
        return due_rows

    def _drop_damaged(self, damaged: Sequence[tuple[bytes, bytes, str]]) -> None:
        for key, value, why in damaged:
            self.set_aside(key, value, why)
        for key, value, why in damaged:
            # With a wrong size, LMDB would overwrite other rows of the page.
            if not has_its_size(key, value):
                self.attempting(RESCUE)
                raise Damaged(
                    f"{self.path}: {why}: the size of the row is wrong; the next start saves "
                    "all other rows"
                )

        def work(rows: Rows) -> None:
            for key, value, _ in damaged:
                rows.drop(key, min(count_of(key, value), rows.meta["messages"]))

        self._commit("drop", work)

    def remove(
        self, keys: Iterable[DelayedKey], *, known: bool = False, counts: bool = True
    ) -> None:
        """Remove rows whose blocks are in the log. Rows that do not exist are ignored.

        `known` means that `due` returned the keys. With `counts` False, this does not add to the
        number of commits, because an `adjust` follows and sets it. Raises the errors of `put`.
        """
        wanted = [row_key(key) for key in keys]

        def work(rows: Rows) -> None:
            for key in wanted:
                rows.take(key, known=known)

        self._commit("remove", work, counts=counts)

    def cancel(self, keys: Sequence[DelayedKey]) -> list[bool]:
        """Remove these messages. The removal is durable when this returns.

        The result is False for each message that does not wait.
        """
        answers: list[bool] = []

        def work(rows: Rows) -> None:
            chosen: dict[DelayedKey, tuple[DelayedRow, set[int]]] = {}
            answers.clear()
            for key in keys:
                row = holder(rows.txn, key)
                if row is None:
                    answers.append(False)
                    continue
                serials = chosen.setdefault(row.key, (row, set()))[1]
                answers.append(key.serial not in serials)
                serials.add(key.serial)
            for row, serials in chosen.values():
                rows.take(row_key(row.key))
                for rest in without(row, serials):
                    rows.add(rest)

        self._commit("cancel", work)
        return answers

    def matching(
        self,
        after: DelayedKey | None,
        rows_max: int,
        flag: int,
        indexes_of: Callable[[Block], Iterable[int]],
    ) -> tuple[list[DelayedKey], DelayedKey | None]:
        """Look for messages in up to `rows_max` rows behind the row `after`.

        `indexes_of` is called with the blocks that have the flag, and returns the messages that
        match. Return their keys, and the row to go on after, or None if there are no more rows.
        Damaged rows are left to `due`.
        """
        found: list[DelayedKey] = []
        start = b"" if after is None else row_key(after._replace(serial=after.serial + 1))
        last: DelayedKey | None = None
        with self.reading() as txn:
            for number, (key, value) in enumerate(rows_from(txn, start)):
                if number >= rows_max and last is not None:
                    return found, last
                try:
                    last = parse_row_key(key)
                    if not flags_of(key, value) & flag:
                        continue
                    row = decode_row(key, value)
                except Damaged:
                    continue
                found += (
                    row.key._replace(serial=row.key.serial + index)
                    for index in indexes_of(row.block)
                )
        return found, None

    def cancel_some(self, rows_max: int, max_bytes: int) -> int:
        """Remove all messages of the first rows, and return their number.

        Stops after `rows_max` rows, or when the removed rows exceed `max_bytes`.
        """
        taken = 0

        def work(rows: Rows) -> None:
            nonlocal taken
            before = rows.meta["messages"]
            enough = rows.meta["bytes"] - max_bytes
            for _ in range(rows_max):
                key = next(row_keys(rows.txn.cursor()), None)
                if key is None or rows.meta["bytes"] < enough:
                    break
                rows.take(key, known=True)
            taken = before - rows.meta["messages"]

        self._commit("cancel", work)
        return taken

    def restore(self, values: Sequence[bytes]) -> None:
        """Add the rows of a damaged environment by their values, which contain their keys.

        Rows that exist already are ignored, and so are values that are damaged.
        """

        def work(rows: Rows) -> None:
            for value in values:
                with suppress(Damaged):
                    rows.restore(value)

        self._commit("restore", work)

    def adjust(self, serial: int, lost: int, commits: int = 0) -> None:
        """Raise the next serial and the number of commits to these values, and add lost messages.

        A value that is already higher does not change. This is used after a rescue.
        """

        def work(rows: Rows) -> None:
            rows.meta["commits"] = max(rows.meta["commits"], commits)
            rows.meta["serial"] = max(rows.meta["serial"], serial)
            rows.meta["lost"] += lost

        self._commit("adjust", work)

    # Space

    def shrink(self, files: Files) -> bool:
        """Give disk space back if much of the file is free and little in use. Return True if done.

        LMDB itself never does this. A compact copy is synced and then replaces the file by a
        rename. If the copy cannot be made, nothing changes.
        """
        with translated(self.path):
            info, stat = self._env.info(), self._env.stat()
        live = (stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]) * stat["psize"]
        if info["last_pgno"] * stat["psize"] < SHRINK_ABOVE_BYTES or live > SHRINK_LIVE_BYTES_MAX:
            return False
        copy = self.path + TEMPORARY_SUFFIX
        try:
            files.make_folder(copy)
            try:
                try:
                    with self._trying("shrink"):  # this reads every page
                        self.copy(copy, compact=True)
                except StorageError:
                    return False
                fd = files.open_append(f"{copy}/{DATA_NAME}")
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
                self.close()
                files.rename(f"{copy}/{DATA_NAME}", f"{self.path}/{DATA_NAME}")
                self._sync_name(files)
            finally:
                files.remove_tree(copy)
        except OSError:
            return False
        finally:
            self.close()
            self._open(MAP_BYTES)
            self._load(self._uuid)
        return True

    def _sync_name(self, files: Files) -> None:
        """Sync the name of the copy.

        If a power cut undid the rename, all later commits, which are in the copy, would be lost.
        """
        try:
            files.sync_folder(self.path)
        except OSError as error:
            raise StoreFailed(f"{self.path} could not be synced: {error}") from error

    # Listing

    def listed(self, after: DelayedKey | None, limit: int, body_bytes: int) -> list[Listed]:
        """Return messages in the order of their keys, after the key `after`.

        This leaves damaged rows out. `due` saves them to files and removes them.
        """
        messages: list[Listed] = []
        with self._trying("list"), self.reading() as txn:
            start = holder(txn, after) if after is not None else None
            begin = row_key(start.key if start is not None else after) if after is not None else b""
            for key, value in rows_from(txn, begin):
                try:
                    row = decode_row(key, value)
                except Damaged:
                    continue
                for index in range(row.block.count):
                    message_key = DelayedKey(row.key.due_ns, row.key.serial + index)
                    if after is not None and message_key <= after:
                        continue
                    if len(messages) >= limit:
                        return messages
                    messages.append(listed_of(message_key, row.block, index, body_bytes))
        return messages

    # Commits

    def _commit(self, operation: str, work: Callable[[Rows], None], *, counts: bool = True) -> None:
        def write(txn: Any) -> tuple[DelayedSummary, Rows]:
            rows = Rows(txn, self._sound)
            work(rows)
            return rows.finish(counts=counts), rows

        with self._trying(operation):
            self.summary, rows = self.write(write)
        self._sound = rows.sound
        self.progress = progress_of(rows.meta)
        if counts:
            self.committed(self.progress)

    @contextmanager
    def _trying(self, operation: str) -> Iterator[None]:
        """Call `attempting` around the first run of an operation and each MARKED_EVERY-th run.

        The first run alone is not enough, because later runs read other pages. If the operation
        finds damage, the mark stays, and the next start examines the environment.
        """
        times = self._tried.get(operation, 0)
        marked = times % MARKED_EVERY == 0
        if marked:
            self.attempting(operation)
        try:
            yield
        except (DiskFull, OSError):
            if marked:
                self.attempting("")  # these errors do not mean damage
            raise
        except StorageError:
            if not marked:
                self.attempting(operation)
            raise
        self._tried[operation] = times + 1
        if marked:
            self.attempting("")
