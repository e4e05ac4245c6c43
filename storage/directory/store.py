"""The directory of a topic: opens it with its lock, identity, log and state.

Creation is a separate call, so that nothing is created twice.

    DIR/topic                 the identity of the topic: a line of JSON and its checksum
    DIR/lock                  locked while the directory is open; contains the pid, for people
    DIR/<first offset>.chunk  the log; each sealed chunk has an .index file
    DIR/state/                LMDB
    DIR/state.snapshot        a copy of the state's small rows, to rebuild a damaged state
    DIR/state.starts          how often the state was opened since its last commit
    DIR/ids/                  ids of messages within the window; made when first needed
    DIR/staging/              staged blocks that are not committed yet; made when first needed
    DIR/archive/              parts of chunks that are only in the bucket, fetched for readers

A missing directory is refused and not created. The reason may be a file system that is not mounted,
and a new empty topic there would use old offsets a second time. `create_store` makes everything
under a temporary name and then renames it, so an incomplete directory never has the final name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...transport.checksum import crc32c
from .. import documents
from ..dedupe.id_index import IdIndex
from ..delayed.delayed import DelayedStore
from ..delayed.delayed_recovery import make_delayed, open_delayed
from ..environment import MAP_BYTES
from ..errors import (
    DiskFull,
    ForeignDirectory,
    NewerVersion,
    StorageError,
    StoreFailed,
    Unreadable,
    is_full,
    newer,
)
from ..files import TEMPORARY_SUFFIX, Files
from ..log.chunk import ArchivedChunk, create_chunk
from ..log.group import ADOPT_BYTES, GROUP_APPEND_BYTES_MAX
from ..log.index import INDEX_EVERY_BYTES
from ..log.log import Log, LogOptions
from ..log.log_format import (
    IDENTITY_NAME,
    LOCK_NAME,
    STAGING_NAME,
    STATE_NAME,
    VERSION,
    ChunkHeader,
    encode_chunk_header,
    parse_chunk_name,
)
from ..log.log_reader import ChunkArchive, OpenArchive
from ..log.recovery import RecoveryReport, recover_log
from ..log.removal import remove_below
from ..log.ring import RING_BYTES
from ..space import reserve_bytes
from ..staging.stage import recover_stages
from ..staging.staging import Staging
from ..state.state import StateBatch, StateStore
from ..state.state_keeper import OpenedState, open_state
from .open_ids import open_ids
from .replay import replay
from .versions import refuse_newer

CHUNK_BYTES: Final = 256 * 1024 * 1024
_IDENTITY_BYTES_MAX: Final = 4096
WRITTEN_BYTES: Final = 4096  # one page: the bytes that `check_writable` writes


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a topic's store.

    * `chunk_bytes`: the size at which a chunk is sealed.
    * `index_every_bytes`: the index has at most one entry for each piece of this size.
    * `map_bytes`: the initial address space of the state store.
    * `reserve_bytes`: with less free space, appends are refused. None means the smaller of 1 GiB
      and 5% of the file system.
    * `adopt_bytes`, `group_append_bytes`, `ring_bytes`: see `LogOptions`.
    * `open_remote`: opens the reader of chunks that are not on this disk. None means that they
      cannot be read.
    """

    chunk_bytes: int = CHUNK_BYTES
    index_every_bytes: int = INDEX_EVERY_BYTES
    map_bytes: int = MAP_BYTES
    reserve_bytes: int | None = None
    adopt_bytes: int = ADOPT_BYTES
    group_append_bytes: int = GROUP_APPEND_BYTES_MAX
    ring_bytes: int = RING_BYTES
    open_remote: OpenArchive | None = None


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """The identity of a topic.

    `uuid` has 32 hex digits (dashes allowed) and is new for each creation. `base_offset` is the
    first offset.
    """

    name: str
    uuid: str
    base_offset: int = 0

    @property
    def uuid_bytes(self) -> bytes:
        uuid = bytes.fromhex(self.uuid.replace("-", ""))
        if len(uuid) != 16:
            raise ValueError(f"a uuid has 32 hex digits, not {self.uuid!r}")
        return uuid


class Store:
    """An open directory.

    `log` and `staging` belong to one thread. `state` belongs to one thread, which may be another.
    """

    def __init__(
        self, files: Files, directory: str, lock: int, log: Log, state: OpenedState, staging: Staging, report: RecoveryReport,
        uuid: bytes = b"", delayed: DelayedStore | None = None, reserve_bytes: int = 0,
        archived: dict[int, ArchivedChunk] | None = None, remote: ChunkArchive | None = None,
        ids: IdIndex | None = None,
    ) -> None:  # fmt: skip
        self.files = files
        self.directory = directory
        self.log = log
        self.state = state.store
        self.keeper = state.keeper
        """Writes the snapshot of the state. It belongs to the state's thread."""
        self.staging = staging
        self.report = report
        self.delayed = delayed
        """The delayed messages.

        None if the topic never had any. They belong to one thread, which may be another.
        """
        self.reserve_bytes = reserve_bytes
        self.archived = {} if archived is None else archived
        """The chunks that another place has, as committed."""
        self.remote = remote
        """Reads those of them that are not on this disk."""
        self.ids = ids
        """The ids of messages within the window. None if there are none."""
        self.on_delayed_made: Callable[[], object] = lambda: None
        """Called in the thread of the delayed messages when their store was created."""
        self._uuid = uuid
        self._lock = lock

    def make_delayed(self, now_ns: int) -> DelayedStore:
        """Return the store of delayed messages. The first call creates it."""
        if self.delayed is None:
            self.delayed = make_delayed(self.files, self.directory, self._uuid, now_ns)
            self.on_delayed_made()
        return self.delayed

    def make_ids(self) -> IdIndex:
        """Return the index of ids. The first call creates it. Its files are made later."""
        if self.ids is None:
            self.ids = IdIndex(self.files, self.directory, self._uuid)
        return self.ids

    def _close_ids(self) -> None:
        """Write the ids that are not written yet.

        If that is not possible, the next start finds them in the log.
        """
        if self.ids is None:
            return
        with contextlib.suppress(OSError):
            while (flush := self.ids.take(self.log.synced_end)) is not None:
                flush.run()
                self.ids.done(flush)
        self.ids.close()

    def close(self) -> None:
        """Sync the log, store its synced end in the state, and free the lock.

        Everything is closed even if this raises an error.
        """
        try:
            self.staging.close()
            if self.remote is not None:
                self.remote.close()
            self.log.close()
            self._close_ids()
            # Without this commit, recovery finds the synced end in the log.
            with contextlib.suppress(DiskFull):
                self.state.commit(StateBatch(synced_end=self.log.synced_end))
            self.keeper.close()
        finally:
            self.state.close()
            if self.delayed is not None:
                self.delayed.close()
            self.files.close(self._lock)


def create_store(
    files: Files, directory: str, identity: TopicIdentity, options: StoreOptions | None = None
) -> None:
    """Create the directory of a new topic. It is on disk when this returns.

    Raises `ForeignDirectory` if the name is taken, or `DiskFull`.
    """
    options = options or StoreOptions()
    directory = directory.rstrip("/")
    temporary = directory + TEMPORARY_SUFFIX
    try:
        if files.exists(directory):
            raise ForeignDirectory(f"{directory} already exists")
        if files.exists(temporary):
            files.remove_tree(temporary)
        files.make_folder(temporary)
        files.write_file(f"{temporary}/{IDENTITY_NAME}", _encode_identity(identity))
        header = ChunkHeader(identity.base_offset, 0, files.random_seed(), identity.uuid_bytes)
        create_chunk(
            files, temporary, header, encode_chunk_header(header), options.index_every_bytes
        ).close()
        files.make_folder(f"{temporary}/{STATE_NAME}")
        state = StateStore(f"{temporary}/{STATE_NAME}", options.map_bytes, create=True)
        try:
            state.create(identity.uuid_bytes, identity.base_offset)
        finally:
            state.close()
        files.sync_folder(f"{temporary}/{STATE_NAME}")
        files.sync_folder(temporary)
        files.rename(temporary, directory)
        files.sync_folder(_parent(directory))
    except OSError as error:
        if is_full(error):
            raise DiskFull(f"no space to create {directory}: {error}") from error
        raise StoreFailed(f"{directory} could not be created: {error}") from error


def open_store(
    files: Files, directory: str, options: StoreOptions, identity: TopicIdentity
) -> Store:
    """Lock, recover, and open a directory.

    Raises `Locked`, `ForeignDirectory`, `Damaged` if no chunk can be used, or `StoreFailed` for I/O
    errors.
    """
    directory = directory.rstrip("/")
    began_ns = time.monotonic_ns()
    try:
        if not _is_topic(files, directory):
            raise ForeignDirectory(
                f"{directory} is not the directory of a topic, or is not mounted; zsq does not "
                "create it again: mount or restore it"
            )
        lock = files.lock(f"{directory}/{LOCK_NAME}")
        try:
            refuse_newer(files, directory)
            notes = _mend_identity(files, directory, identity)
            reserve = (
                reserve_bytes(files, directory)
                if options.reserve_bytes is None
                else options.reserve_bytes
            )
            log_options = LogOptions(
                options.chunk_bytes,
                options.index_every_bytes,
                reserve,
                options.adopt_bytes,
                options.group_append_bytes,
                options.ring_bytes,
            )
            log, opened, staging, delayed, report, remote, ids = _recover(
                files, directory, options, log_options, identity
            )
        except BaseException:
            files.close(lock)
            raise
    except (OSError, Unreadable) as error:
        raise StoreFailed(f"{directory} cannot be opened: {error}") from error
    report.notes[:0] = notes
    report.duration_ms = (time.monotonic_ns() - began_ns) // 1_000_000
    return Store(
        files, directory, lock, log, opened, staging, report, identity.uuid_bytes, delayed, reserve,
        opened.table.archived, remote, ids,
    )  # fmt: skip


def _is_topic(files: Files, directory: str) -> bool:
    """Return True if the directory has a state store or chunks.

    If one of the two is missing, recovery rebuilds it from the other, or raises an alarm.
    """
    if any(files.exists(f"{directory}/{STATE_NAME}{suffix}") for suffix in ("", TEMPORARY_SUFFIX)):
        return True
    return files.exists(directory) and any(
        parse_chunk_name(name) is not None for name in files.list(directory)
    )


def _recover(
    files: Files,
    directory: str,
    options: StoreOptions,
    log_options: LogOptions,
    identity: TopicIdentity,
) -> tuple[
    Log, OpenedState, Staging, DelayedStore | None, RecoveryReport, ChunkArchive | None, IdIndex | None
]:  # fmt: skip
    opened = open_state(files, directory, identity.uuid_bytes, options.map_bytes, time.time_ns())
    state, table = opened.store, opened.table
    try:
        removed = remove_below(files, directory, table.start)
        delayed = remote = None
        if options.open_remote is not None:
            remote = options.open_remote(files, directory, identity.uuid_bytes, table.archived)
        log, report = recover_log(
            files,
            directory,
            identity.uuid_bytes,
            identity.base_offset,
            log_options,
            table.synced_end,
            table.start,
            table.archived,
            remote,
        )
        try:
            expected = max(table.start, identity.base_offset)
            if log.start > expected and opened.rebuilt:
                report.notes.append(
                    f"{directory}: its snapshot begins at offset {expected}, but the log begins "
                    f"at {log.start} by now"
                )
            elif log.start > expected:
                lost = log.start - expected
                report.alarms.append(
                    f"{directory}: {lost} messages from offset {expected} on are missing: their "
                    "chunks do not exist"
                )
            if removed:
                report.notes.append(
                    f"{directory}: {removed} files of chunks below offset {table.start} were "
                    "left over and are removed"
                )
            # The rows of delayed messages that were moved to the log are removed before the
            # checkpoint moves past their blocks, because later recovery does not look for them.
            delayed = open_delayed(
                files,
                directory,
                identity.uuid_bytes,
                log,
                table.applied_offset,
                time.time_ns(),
                report.notes,
                report.alarms,
            )
            batch = replay(log, table, report, rebuilt=opened.rebuilt)
            ids = open_ids(files, directory, identity.uuid_bytes, log, table, delayed, report)
            if batch is not None:
                # The new ids are only in memory yet. The next start finds them by this range.
                batch.ids = None if ids is None else ids.range
                batch.keys = report.keys_from if table.keys < 0 else table.keys
                state.commit(batch)
            rows = {
                name: row
                for name, row in table.stages.items()
                if batch is None or name not in batch.stage_gones
            }
            folder = f"{directory}/{STAGING_NAME}"
            stages, damaged, number = recover_stages(
                files, folder, identity.uuid_bytes, rows, report
            )
            if damaged:
                state.commit(StateBatch(stage_gones=damaged))
            staging = Staging(
                files,
                folder,
                identity.uuid_bytes,
                options.chunk_bytes,
                log_options.reserve_bytes,
                stages,
                number,
            )
        except BaseException:
            _close_quietly(log)
            if delayed is not None:
                delayed.close()
            raise
    except BaseException as error:
        if isinstance(error, NewerVersion):
            opened.keeper.refused()
        state.close()
        raise
    report.notes += opened.notes
    report.alarms += opened.alarms
    return log, opened, staging, delayed, report, remote, ids


def _close_quietly(log: Log) -> None:
    try:
        log.close()
    except (StorageError, OSError):
        return


def _encode_identity(identity: TopicIdentity) -> bytes:
    """Encode one line of JSON for people and programs, and the checksum of that line."""
    row = {
        "name": identity.name,
        "uuid": identity.uuid_bytes.hex(),
        "base_offset": identity.base_offset,
    }
    return documents.encode_line("topic", VERSION, row)


def check_writable(files: Files, directory: str) -> None:
    """Write and sync a small file in a topic's directory, and remove it.

    A topic that failed does this at its next start, so that its health shows what is so now and not
    what was so at its last append. A full disk is no error here: the topic serves consumers.

    Raises `StoreFailed`.
    """
    path = f"{directory}/{IDENTITY_NAME}{TEMPORARY_SUFFIX}"
    try:
        if files.exists(path):
            files.remove(path)
        try:
            files.write_file(path, bytes(WRITTEN_BYTES))
        finally:
            if files.exists(path):
                files.remove(path)
    except OSError as error:
        if not is_full(error):
            raise StoreFailed(f"{directory} cannot be written: {error}") from error


def _mend_identity(files: Files, directory: str, identity: TopicIdentity) -> list[str]:
    """Rewrite the identity file if it is damaged, and return notes.

    That is safe because the state and the chunks contain the uuid too.
    """
    if check_identity(files, directory, identity):
        return []
    path = f"{directory}/{IDENTITY_NAME}"
    try:
        files.replace_file(path, _encode_identity(identity))
    except OSError as error:  # the topic can start without this file, for example on a full disk
        return [
            (
                f"{path}: it is missing or damaged, and could not be rewritten ({error}); the next "
                "start tries again"
            )
        ]
    return [f"{path}: it was missing or damaged and has been rewritten"]


def read_identity(files: Files, directory: str) -> TopicIdentity | None:
    """Read the identity file. Returns None if it is missing or damaged.

    Raises `NewerVersion` if its version is unknown.
    """
    path = f"{directory}/{IDENTITY_NAME}"
    data = files.read_file(path, _IDENTITY_BYTES_MAX) if files.exists(path) else b""
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        return None
    try:
        row = documents.loads(line)
        kind, version = row.get("zsq"), row.get("version")
        identity = (
            TopicIdentity(row["name"], row["uuid"], row["base_offset"])
            if (kind, version) == ("topic", VERSION)
            else None
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if identity is None:
        raise newer("the file", version, VERSION, path)
    return identity


def check_identity(files: Files, directory: str, identity: TopicIdentity) -> bool:
    """Return True if the identity file names this topic, False if it is missing or damaged.

    Raises `ForeignDirectory` if it names another topic.
    """
    stored = read_identity(files, directory)
    if stored is None:
        return False
    if stored.uuid != identity.uuid_bytes.hex() or stored.name != identity.name:
        raise ForeignDirectory(
            f"{directory} belongs to topic {stored.name!r} ({stored.uuid}), not to "
            f"{identity.name!r} ({identity.uuid_bytes.hex()})"
        )
    return True


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")
