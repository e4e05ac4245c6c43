"""Messages that are not due yet, in an LMDB environment of their own beside the log: DIR/delayed/, made when first needed.

A delayed publish commits here, with its producer's sequence; the message moves to the log when due, and its row goes. The life of a row:

| step | on disk after it | a crash before the next step |
|---|---|---|
| `put`, synced | a row; only now the publish is answered | it waits |
| `due` | as before | it waits |
| append to the log, flag DELAYED, key in the header | the row; perhaps the block | recovery cuts the block off, or keeps it |
| sync of the log | both; only now channels see it | recovery removes the row: the log behind the checkpoint has its key |
| `remove`, synced | the block | |
| the state store's checkpoint passes the block | the block | nobody looks for its key again |

So a message is in the log once: the checkpoint must not pass a moved block whose row is still here, and a row is never moved while one of
it is being cancelled (whoever calls sees to both, `actors/storage/delayed.py`).

Why not in the state store? Ten million messages are gigabytes; that store is loaded whole, snapshotted, and rebuilt from the log,
and none of this can be done with messages that are nowhere else. Here nothing is held in memory but the producers.

LMDB's pages have no checksums: so each value carries its key and a checksum, and the meta row the count and sum of all rows. A row
that fails is set aside in a file, counted as lost and shown; the others go on. An environment that cannot be opened or read, or
whose reading kills the process, is rescued by `delayed_recovery.py`; `attempting` is how the next life learns of that.

One thread at a time uses it: without a lock file LMDB must not be read while it is written.

Rows of the delayed messages' environment inside a transaction, and what LMDB's errors mean.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple, TypedDict

import lmdb

from ...transport.block.block import Block
from ...transport.wire.codec import pack_value, unpack_value
from ..errors import Damaged, DiskFull, ForeignDirectory, StorageError, StoreFailed
from ..files import Files
from ..log.log_format import TEMPORARY_SUFFIX
from ..state.state import after_commit, says_full
from ..state.state_rows import SUM_MASK, crc_of
from ..state.state_transaction import rows_of
from .delayed_format import (
    META,
    PRODUCER,
    ROW,
    VERSION,
    DelayedKey,
    DelayedProducer,
    DelayedRow,
    count_of,
    decode_row,
    encode_row,
    has_its_size,
    names_itself,
    parse_producer_key,
    parse_row_key,
    producer_key,
    row_key,
    unwrap,
    without,
    wrap,
)

WALK_MAX: Final = 20_000  # keys looked at, one by one, for a row that a search does not find
DUE_AT_ONCE: Final = 1  # the first row's due time cannot be believed: `due` is to look at it


class DelayedSummary(NamedTuple):
    """What waits. `next_due_ns`: 0 where nothing does. `lost`: messages that damage cost, ever."""

    messages: int = 0
    bytes: int = 0
    next_due_ns: int = 0
    lost: int = 0


class Progress(NamedTuple):
    """How far an environment has come: what its newest commit left. `commits`: how many there were."""

    commits: int = 0
    serial: int = 0
    messages: int = 0


class Listed(NamedTuple):
    """One message that waits; `size` is its body's."""

    key: DelayedKey
    size: int
    body: bytes
    message_tag: bytes | None
    message_key: bytes | None


class MapFull(StorageError):
    """More address space is needed; the caller of the transaction sees to it."""


class Rows:
    """The rows of one transaction, and the meta row that counts them. `sound`: a key that was found to be its value's before."""

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
        """`known`: it was seen among the first rows. A key with a flipped bit lies out of order, so no search finds it or some others."""
        old: bytes | None = self.txn.pop(key)
        if old is None and known:
            old = self._pick_out(key)
        if old is not None:
            self.meta["rows"] -= 1
            self.meta["sum"] = (self.meta["sum"] - crc_of(old)) & SUM_MASK
        return old

    def _pick_out(self, key: bytes) -> bytes | None:
        cursor = self.txn.cursor()
        for found in islice(row_keys(cursor), WALK_MAX):
            if found == key:
                value: bytes = cursor.value()
                cursor.delete()
                return value
        return None

    def add(self, row: DelayedRow) -> None:
        self.put_value(*encode_row(row))
        self.meta["messages"] += row.block.count
        self.meta["bytes"] += row.block.length

    def take(self, key: bytes, *, known: bool = False) -> None:
        """A row that has done its duty, if it is there."""
        value = self.delete(key, known=known)
        if value is not None:
            self.meta["messages"] -= count_of(key, value)
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))

    def drop(self, key: bytes, count: int) -> None:
        """A damaged row."""
        value = self.delete(key, known=True)
        if value is not None:
            self.meta["messages"] -= count
            self.meta["bytes"] -= max(0, len(value) - 6 - len(key))
            self.meta["lost"] += count

    def finish(self, *, missing_is_lost: bool = True, counts: bool = True) -> DelayedSummary:
        """Write the meta row. Where it counts messages and there is no row, they are lost: what a damaged page held, nobody can name."""
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
    """The meta row. `serial`: of the next message; `lost`: how many messages damage has cost."""

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
        raise Damaged("the delayed messages have no meta row")
    meta: DelayedMeta = unpack_value(unwrap(META, value))
    if meta["version"] != VERSION:
        raise ForeignDirectory(f"delayed messages of version {meta['version']}: only version {VERSION} is known here; use a newer zsq")
    return meta


def row_keys(cursor: Any) -> Iterator[bytes]:
    """The keys of all rows that wait, in their order on disk, the cursor on each; also what damage made of one.

    Nothing else lies before the meta row, so what looks like no row of ours is a damaged one, and not the end of them.
    """
    if cursor.first():
        for key in cursor.iternext(keys=True, values=False):
            if key == META or key.startswith(PRODUCER):
                return
            yield key


def rows_from(txn: Any, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """As `row_keys`, with values; from `start` on."""
    cursor = txn.cursor()
    if cursor.set_range(start) if start else cursor.first():
        for key, value in cursor:
            if key == META or key.startswith(PRODUCER):
                return
            yield key, value


def summary_of(txn: Any, meta: DelayedMeta, sound: bytes = b"") -> tuple[DelayedSummary, bytes]:
    """And the first row's key, if it is the one that the value was written under: LMDB would not see a flipped bit in it, and a due
    time centuries ahead would keep all messages waiting. `sound`: a key that was looked at before; a value may have MiB."""
    cursor = txn.cursor()
    first = next(row_keys(cursor), b"")
    if first and first != sound and not names_itself(first, cursor.value()):
        return DelayedSummary(meta["messages"], meta["bytes"], DUE_AT_ONCE, meta["lost"]), b""
    return DelayedSummary(meta["messages"], meta["bytes"], parse_row_key(first).due_ns if first else 0, meta["lost"]), first


def holder(txn: Any, key: DelayedKey) -> DelayedRow | None:
    """The row that a message lies in; None where there is none, or it is damaged."""
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
    tag, own = block.tag, block.key
    message_tag = None if tag is None else tag.value(index)
    return Listed(key, len(body), body[:body_bytes], message_tag, None if own is None else own.value(index))


@contextmanager
def translated(path: str) -> Iterator[None]:
    """What an error of LMDB means to the caller."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise MapFull(str(error)) from error
    except lmdb.Error as error:
        text = f"{path}: {error}"
        if says_full(error):
            raise DiskFull(text) from error
        if "No such file" in text:
            raise ForeignDirectory(f"{text}; it is made once, and never again in its place") from error
        unreadable = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageFullError)
        if isinstance(error, unreadable) or "is not supported by this build" in text:  # the version in a head
            raise Damaged(text) from error
        raise StoreFailed(text) from error
    except SystemError as error:  # the binding's, whose `Cursor.delete` forgets an error: the row behind the deleted one cannot be read
        raise Damaged(f"{path}: {error.__cause__ or error}") from error


MAP_BYTES: Final = 16 * 1024 * 1024  # address space, not memory and not disk; doubled when full
MAP_BYTES_MAX: Final = 1 << 42
DATA_NAME: Final = "data.mdb"
RESCUE: Final = "rescue"  # what the next start is to do, whatever an examination would say
MARKED_EVERY: Final = 256  # times that something is tried
RECENT_MAX: Final = 8  # blocks a producer row remembers
PRODUCERS_MAX: Final = 20_000
PRODUCER_KEPT_NS: Final = 7 * 86_400 * 1_000_000_000
SHRINK_ABOVE_BYTES: Final = 64 * 1024 * 1024
SHRINK_LIVE_BYTES_MAX: Final = 8 * 1024 * 1024  # copied in one go
EXPIRED_MAX: Final = 1_000  # producer rows dropped by one put


class DelayedStore:
    """An open environment."""

    def __init__(self, path: str, uuid: bytes, *, map_bytes: int = MAP_BYTES, create: bool = False, first_serial: int = 0) -> None:
        """`ForeignDirectory` if it is another topic's or of another version, `Damaged` if it cannot be read."""
        self.path = path
        self.attempting: Callable[[str], None] = lambda what: None
        """Called with a word before something is done for the first time in this life, or now and then, and with "" once it went well."""
        self.set_aside: Callable[[bytes, bytes, str], None] = lambda key, value, why: None
        """Called with a damaged row's key and value before it is deleted."""
        self.committed: Callable[[Progress], None] = lambda progress: None
        """Called after each commit."""
        self._tried: dict[str, int] = {}  # how often
        self._uuid = uuid
        self._open(map_bytes, create)
        try:
            if create:
                self._create(uuid, first_serial)
            self._load(uuid)
        except BaseException:
            self._env.close()
            raise

    def _open(self, map_bytes: int, create: bool) -> None:
        with translated(self.path):
            self._env = lmdb.open(self.path, map_size=map_bytes, max_dbs=0, lock=False, create=create, readahead=False, meminit=True)
        self._map_bytes = int(self._env.info()["map_size"])

    def _create(self, uuid: bytes, first_serial: int) -> None:
        meta = DelayedMeta(version=VERSION, commits=0, serial=first_serial, rows=0, messages=0, bytes=0, sum=0, lost=0, uuid=uuid)
        with translated(self.path), self._env.begin(write=True) as txn:
            txn.put(META, wrap(META, pack_value(meta)))

    def _load(self, uuid: bytes) -> None:
        producers: dict[int, DelayedProducer] = {}
        with translated(self.path), self._env.begin() as txn:
            meta = read_meta(txn)
            if meta["uuid"] != uuid:
                raise ForeignDirectory(f"{self.path} holds the delayed messages of another topic")
            for key, value in rows_of(txn, PRODUCER):
                producers[parse_producer_key(key)] = DelayedProducer(*unpack_value(unwrap(key, value)))
            self.summary, self._sound = summary_of(txn, meta)
            self.progress = Progress(meta["commits"], meta["serial"], meta["messages"])
        self.producers = producers
        """As of the last commit."""

    def close(self) -> None:
        self._env.close()

    def copy(self, folder: str) -> None:
        """All of it as last committed, as an environment in that empty folder; nothing is synced."""
        with translated(self.path):
            self._env.copy(folder)

    # In

    def put(self, blocks: Sequence[tuple[Block, int]], used_ns: int) -> list[DelayedKey]:
        """Blocks with their due times, durable when this returns, and with them their producers' sequences: the key of each.
        All or nothing. `DiskFull`: nothing changed. `StoreFailed`: unknown; end and recover."""
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
                producer_id, sequence = block.header.producer_id, block.header.sequence
                known = producers.get(producer_id) or self.producers.get(producer_id)
                recent = (*(known.recent if known else ()), (sequence, key.due_ns, key.serial))[-RECENT_MAX:]
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
        """Producers not used for a week; where there are too many all the same, those not used for longest."""
        old = [pid for pid, row in self.producers.items() if row.used_ns < now_ns - PRODUCER_KEPT_NS and pid not in but]
        if len(self.producers) - len(old) > PRODUCERS_MAX:
            old = sorted(self.producers.keys() - but, key=lambda pid: self.producers[pid].used_ns)
        return old[:EXPIRED_MAX]

    # Out

    def due(self, now_ns: int, bytes_max: int, rows_max: int) -> list[DelayedRow]:
        """The earliest rows that are due by then: at least one if there is one, about `bytes_max` and `rows_max` of them at most.

        Damaged ones on the way are set aside, and gone. That the count speaks of messages and no row is there is damage as well.
        """
        found: list[DelayedRow] = []
        damaged: list[tuple[bytes, bytes, str]] = []
        first = True
        size = 0
        with self._trying("due"), translated(self.path), self._env.begin() as txn:
            for key, value in rows_from(txn):
                first = False
                try:
                    if parse_row_key(key).due_ns > now_ns:
                        unwrap(key, value)  # a due time is believed only now
                        break
                    row = decode_row(key, value)
                except Damaged as error:
                    damaged.append((key, value, str(error)))
                else:
                    size += row.block.length
                    if found and (size > bytes_max or len(found) >= rows_max):
                        break
                    found.append(row)
                if len(damaged) >= rows_max:
                    break
        if damaged:
            self._drop_damaged(damaged)
        elif first and self.summary.messages:
            self._commit("drop", lambda rows: None)
        return found

    def _drop_damaged(self, damaged: Sequence[tuple[bytes, bytes, str]]) -> None:
        for key, value, why in damaged:
            self.set_aside(key, value, why)
        for key, value, why in damaged:
            if not has_its_size(key, value):  # LMDB would move other rows of that page by a wrong size, over each other
                self.attempting(RESCUE)
                raise Damaged(f"{self.path}: {why}: its size is not what it says; the next start saves all others")

        def work(rows: Rows) -> None:
            for key, value, _ in damaged:
                rows.drop(key, min(count_of(key, value), rows.meta["messages"]))

        self._commit("drop", work)

    def remove(self, keys: Iterable[DelayedKey], *, known: bool = False, counts: bool = True) -> None:
        """Rows whose blocks are in the log; those that are gone already stay gone. Errors as in `put`.

        `known`: `due` gave them. Without `counts` it is no commit of its own yet: an `adjust` follows that tells of it.
        """
        wanted = [row_key(key) for key in keys]

        def work(rows: Rows) -> None:
            for key in wanted:
                rows.take(key, known=known)

        self._commit("remove", work, counts=counts)

    def cancel(self, keys: Sequence[DelayedKey]) -> list[bool]:
        """Take these messages out, durable when this returns; False for those that do not wait (any more)."""
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

    def cancel_some(self, rows_max: int, bytes_max: int) -> int:
        """Take out all messages of the first rows: how many that was. At most so many rows, and no more once they pass `bytes_max`."""
        taken = 0

        def work(rows: Rows) -> None:
            nonlocal taken
            before = rows.meta["messages"]
            enough = rows.meta["bytes"] - bytes_max
            for _ in range(rows_max):
                key = next(row_keys(rows.txn.cursor()), None)
                if key is None or rows.meta["bytes"] < enough:
                    break
                rows.take(key, known=True)
            taken = before - rows.meta["messages"]

        self._commit("cancel", work)
        return taken

    def adjust(self, serial: int, lost: int, commits: int = 0) -> None:
        """After a rescue: serials and the number of commits go on at least there, and so many messages are lost."""

        def work(rows: Rows) -> None:
            rows.meta["commits"] = max(rows.meta["commits"], commits)
            rows.meta["serial"] = max(rows.meta["serial"], serial)
            rows.meta["lost"] += lost

        self._commit("adjust", work)

    # Space

    def shrink(self, files: Files) -> bool:
        """Give disk space back, if much is free and little in use: LMDB itself never does. A file is replaced, so it is all or nothing.

        The copy is synced before it takes the old one's place. Where it cannot be made, nothing has happened.
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
                with self._trying("shrink"):  # it reads every page
                    self._env.copy(copy, compact=True)
                fd = files.open_append(f"{copy}/{DATA_NAME}")
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
                self._env.close()
                files.rename(f"{copy}/{DATA_NAME}", f"{self.path}/{DATA_NAME}")
                self._sync_name(files)
            finally:
                files.remove_tree(copy)
        except (lmdb.Error, OSError):
            return False
        finally:
            self._env.close()
            self._open(MAP_BYTES, create=False)
            self._load(self._uuid)
        return True

    def _sync_name(self, files: Files) -> None:
        """The copy is the one that counts: were its name lost with the power, so would be what is committed to it from now on."""
        try:
            files.sync_folder(self.path)
        except OSError as error:
            raise StoreFailed(f"{self.path} could not be synced: {error}") from error

    # Looking

    def listed(self, after: DelayedKey | None, limit: int, body_bytes: int) -> list[Listed]:
        """Messages in the order of their keys, those behind `after`. Damaged rows are left out here; `due` sets them aside."""
        found: list[Listed] = []
        with self._trying("list"), translated(self.path), self._env.begin() as txn:
            start = holder(txn, after) if after is not None else None
            begin = row_key(start.key if start is not None else after) if after is not None else b""
            for key, value in rows_from(txn, begin):
                try:
                    row = decode_row(key, value)
                except Damaged:
                    continue
                for index in range(row.block.count):
                    own = DelayedKey(row.key.due_ns, row.key.serial + index)
                    if after is not None and own <= after:
                        continue
                    if len(found) >= limit:
                        return found
                    found.append(listed_of(own, row.block, index, body_bytes))
        return found

    # Commits

    def _commit(self, what: str, work: Callable[[Rows], None], *, counts: bool = True) -> None:
        with self._trying(what):
            while True:
                try:
                    with translated(self.path), self._env.begin(write=True) as txn:
                        rows = Rows(txn, self._sound)
                        work(rows)
                        summary = rows.finish(counts=counts)
                    self.summary, self._sound = summary, rows.sound
                    self.progress = Progress(rows.meta["commits"], rows.meta["serial"], rows.meta["messages"])
                    if counts:
                        self.committed(self.progress)
                    return
                except MapFull as error:
                    if self._map_bytes * 2 > MAP_BYTES_MAX:
                        raise DiskFull(f"{self.path} has reached its limit of {MAP_BYTES_MAX} bytes") from error
                    self._map_bytes *= 2
                    self._env.set_mapsize(self._map_bytes)
                except DiskFull as error:
                    raise after_commit(self._env, error) from error

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Marked the first time, and now and then: other pages are read later; and whenever damage was met: the next start looks for it."""
        times = self._tried.get(what, 0)
        marked = times % MARKED_EVERY == 0
        if marked:
            self.attempting(what)
        try:
            yield
        except (DiskFull, OSError):
            if marked:
                self.attempting("")  # says nothing about the environment
            raise
        except StorageError:
            if not marked:
                self.attempting(what)
            raise
        self._tried[what] = times + 1
        if marked:
            self.attempting("")
