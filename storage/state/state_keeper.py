"""State keeper: opens and rebuilds the state store, writes snapshots, counts failed starts.

*Snapshot.* Some commits make the old snapshot wrong in a way that redelivery does not repair. For
such a commit, `StateKeeper` writes a new snapshot at once, before the commit returns. These commits
change the set of channels, a pause or the start of a first channel, move a cursor back, remove or
archive chunks, or finally seal stages. All other data (cursors, holes, producers, transactions) is
correct again after a replay of the log and some redeliveries. So after other commits, the next
snapshot waits a minute, and a minute more for each MiB of its size. With this wait, snapshots never
write more than about 17 KB/s. If the disk is too full for a snapshot, the commit still succeeds.
But a replay needs the chunks after the snapshot's checkpoint. So no chunk is removed before the
snapshot on disk covers all of it (`covered`).

*Starts.* A flipped bit may make LMDB kill the whole process (SIGBUS). `DIR/state.starts` counts the
starts since the last successful commit. It also has the times of the last starts that did not end
normally. After one start without a commit, the next start commits at once to test the store. After
two, or after too many starts within a minute, a separate process examines the store before it is
opened. A start with several commits does not count as one of the "too many starts", because its
commits have used all free pages and would have shown damage in them. The file is never synced,
because it must survive the end of processes, but not a power cut.

*Opening.* `open_state` opens the store of a topic and rebuilds it if it is damaged. It deletes
nothing. After a rebuild, the old store is in `state.bad-N`.

A store is damaged if LMDB or a checksum reports it, or if the process that examines it is killed by
it. The rebuild uses the last snapshot, and recovery replays the log from the snapshot's checkpoint.
After that, producers and transactions are as before. Channels continue at their position in the
snapshot, which causes redeliveries but no loss. Deferred holes are only in the store, so a channel
with deferred holes goes back to the lowest one. Without a good snapshot, there are no channels. The
first channel that is created then gets all messages of the log.

A crash may happen between the two renames. So the new store is complete and synced under another
name before the old store is renamed.

    state.tmp  made, synced
    state      -> state.bad-N      folder synced
    state.tmp  -> state            folder synced
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from .. import documents
from ..environment import DATA_NAME
from ..errors import (
    Damaged,
    DiskFull,
    ForeignDirectory,
    NewerVersion,
    StoreFailed,
    Unreadable,
    is_full,
)
from ..files import TEMPORARY_SUFFIX, Files
from ..log.log_format import BAD_SUFFIX, STATE_NAME, parse_chunk_name
from .snapshot import (
    SNAPSHOT_NAME,
    Snapshot,
    commits_of_snapshot,
    encode_snapshot,
    read_snapshot,
    rows_without_deferred,
    write_snapshot,
)
from .state import StateBatch, StateStore, Table
from .state_check import CHECK_S, examine, remove_copy
from .state_rows import new_meta

SNAPSHOT_EVERY_S: Final = 60.0
SNAPSHOT_LATEST_S: Final = 15 * 60.0
# For each step of this size, the wait is SNAPSHOT_EVERY_S longer.
SNAPSHOT_STEP_BYTES: Final = 1024 * 1024
STARTS_NAME: Final = "state.starts"
# The store is examined after this number of starts without a commit.
UNPROVEN_MAX: Final = 2
STARTS_MAX: Final = 6
STARTS_WITHIN_S: Final = 60.0
PROVEN_COMMITS: Final = 4  # LMDB uses pages again two commits after they were freed
_NOTE_BYTES_MAX: Final = 4096
_NS: Final = 1_000_000_000


class Starts:
    """The file with the count of this store's starts. `begin` reads it and adds this start."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{STARTS_NAME}"
        self._times: list[int] = []
        self._commits = 0
        self.unproven = 0

    def begin(self, now_ns: int) -> int:
        """Add this start. Return how many starts before it made no commit."""
        self.unproven, times = self._read()
        self._times = [
            start_ns for start_ns in times if now_ns - STARTS_WITHIN_S * _NS < start_ns <= now_ns
        ]
        before = self.unproven
        if len(self._times) >= STARTS_MAX:
            before = max(before, UNPROVEN_MAX)
            self._times = []
        self._times.append(now_ns)
        self._write(self.unproven + 1)
        return before

    def committed(self) -> None:
        """Note a successful commit."""
        self.proven()
        self._commits += 1
        if self._commits == PROVEN_COMMITS:
            self._times = self._times[:-1]
            self._write(0)

    def proven(self) -> None:
        """Note that a commit succeeded, or that the store has no damage."""
        if self.unproven:
            self._write(0)

    def distrust(self) -> None:
        """Make the next start examine the store, because something is wrong with it."""
        self._write(UNPROVEN_MAX)

    def end(self) -> None:
        """Note that the process ends normally."""
        self._times = []
        self._write(0)

    def _read(self) -> tuple[int, list[int]]:
        try:
            note = documents.loads(
                self._files.read_note(self._path, _NOTE_BYTES_MAX)
                or '{"unproven": 0, "starts": []}'
            )
            return int(note["unproven"]), [int(start_ns) for start_ns in note["starts"]]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0, []  # the process ended before it had written the whole file

    def _write(self, unproven: int) -> None:
        self.unproven = unproven
        data = json.dumps({"unproven": unproven, "starts": self._times}).encode()
        with contextlib.suppress(OSError):  # a topic must start even on a full disk
            self._files.note(self._path, data)


class StateKeeper:
    """The snapshots of one open store. It runs in the thread that commits.

    `problem` says why no new snapshot could be written, and is empty if there is none. `covered` is
    the offset from which a rebuilt store replays the log. It is -1 if no snapshot was written since
    the store was opened.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        uuid: bytes,
        state: StateStore,
        table: Table,
        starts: Starts,
    ) -> None:
        self._files = files
        self._directory = directory
        self._uuid = uuid
        self._state = state
        self._starts = starts
        self._known = {name: (row.paused, row.next_offset) for name, row in table.channels.items()}
        self._next_s = 0.0
        self._stale = True
        self.problem = ""
        self.covered = -1
        self._applied = table.applied_offset
        self.written_bytes = 0
        self._size = 0
        state.on_committed = self._committed

    def _committed(self, batch: StateBatch) -> None:
        self._starts.committed()
        self._stale = True
        self._applied = self._applied if batch.applied_offset is None else batch.applied_offset
        urgent = bool(batch.channel_drops) or {batch.paused_end, batch.waiting, batch.start} != {
            None
        }
        # The file of an archived chunk may be removed. Only its row then says where it is.
        urgent = urgent or bool(batch.archived)
        # No client sends a stage again after its final seal. So its row and files must not be lost.
        urgent = urgent or (
            self._size < SNAPSHOT_STEP_BYTES and any(row.final for row in batch.stage_puts.values())
        )
        for name in batch.channel_drops:
            self._known.pop(name, None)
        for name, row in batch.channel_puts.items():
            before = self._known.get(name)
            urgent = (
                urgent or before is None or before[0] != row.paused or row.next_offset < before[1]
            )
            self._known[name] = row.paused, row.next_offset
        if urgent:
            self.write()

    def is_due(self) -> bool:
        """Return True if a snapshot is due.

        Any thread may call this, but `write` belongs to the store's thread.
        """
        return self._stale and time.monotonic() >= self._next_s

    def write(self) -> None:
        """Write a snapshot of the committed state. A failure only sets `problem`."""
        data = encode_snapshot(
            self._uuid,
            time.time_ns(),
            self._state.small_rows(),
            self._state.deferred_totals(self._known),
        )
        pause_s = SNAPSHOT_EVERY_S * (1 + len(data) // SNAPSHOT_STEP_BYTES)
        self._size = len(data)
        self._next_s = time.monotonic() + min(pause_s, SNAPSHOT_LATEST_S)
        try:
            write_snapshot(self._files, self._directory, data)
        except OSError as error:
            self.problem = (
                f"{self._directory}: no new snapshot of the state could be written: {error}"
            )
            return
        self._stale = False
        self.covered = self._applied
        self.problem = ""
        self.written_bytes += len(data)

    def distrust(self) -> None:
        self._starts.distrust()

    def refused(self) -> None:
        """Note that this start ends because another file of the topic has a newer version."""
        self._starts.end()

    def close(self) -> None:
        """Write the last snapshot, and note that the process ends normally.

        The store calls this after the last commit, before it closes.
        """
        if self._stale:
            with contextlib.suppress(Damaged):
                self.write()
        self._starts.end()


BAD_STATE: Final = "state.bad-"
BAD_STATES_MAX: Final = 1_000


@dataclass(slots=True)
class OpenedState:
    """An open state store. `rebuilt` is True if the old store was damaged and replaced.

    `notes` and `alarms` are sentences. The operator should read the alarms.
    """

    store: StateStore
    table: Table
    keeper: StateKeeper
    rebuilt: bool = False
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


def open_state(
    files: Files, directory: str, uuid: bytes, map_bytes: int, now_ns: int
) -> OpenedState:
    """Open and check the store of a topic. Rebuild it if it is damaged.

    Raises `ForeignDirectory` if it belongs to another topic.
    """
    notes: list[str] = []
    alarms: list[str] = []
    finish_rebuild(files, directory, notes)
    remove_copy(files, f"{directory}/{STATE_NAME}")
    starts = Starts(files, directory)
    unproven = starts.begin(now_ns)
    reason = (
        _suspect(f"{directory}/{STATE_NAME}", unproven, starts, notes)
        if unproven >= UNPROVEN_MAX
        else ""
    )
    store = table = None
    if not reason:
        try:
            store, table = _open(files, directory, uuid, map_bytes, prove=bool(unproven))
            if unproven:
                starts.proven()
        except NewerVersion:
            starts.end()  # otherwise a later start would take these starts for failures
            raise
        except Damaged as error:
            reason = str(error)
        except StoreFailed as error:
            # Some errors of LMDB have many possible causes. The process that reads every row finds
            # more.
            verdict = examine(f"{directory}/{STATE_NAME}")
            if not verdict.findings or not verdict.finished:
                raise
            reason = f"{error}; {verdict.findings[0]}"
    rebuilt = store is None or table is None
    if store is None or table is None:
        alarms += rebuild_state(files, directory, uuid, map_bytes, reason)
        # The rebuilt store has as many commits as the snapshot.
        store, table = _open(files, directory, uuid, map_bytes, prove=False)
    keeper = StateKeeper(files, directory, uuid, store, table, starts)
    return OpenedState(store, table, keeper, rebuilt, notes, alarms)


def _suspect(path: str, unproven: int, starts: Starts, notes: list[str]) -> str:
    """Examine the store before it is opened.

    Return the damage, or an empty text if none is known.
    """
    verdict = examine(path, CHECK_S)
    if verdict.note:
        notes.append(verdict.note)
    if verdict.findings and verdict.finished:
        return f"the last {unproven} starts failed; {verdict.findings[0]}"
    if verdict.finished:
        notes.append(f"{path}: the last {unproven} starts failed, but the state store is sound")
    else:
        notes.append(verdict.findings[0])
    return ""


def _open(
    files: Files, directory: str, uuid: bytes, map_bytes: int, *, prove: bool
) -> tuple[StateStore, Table]:
    path = f"{directory}/{STATE_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):
        raise Damaged(f"{path} has no {DATA_NAME}")
    store = StateStore(path, map_bytes)
    try:
        if store.uuid() != uuid:
            raise ForeignDirectory(f"{directory}: its state belongs to another topic")
        if prove:  # if a commit kills the process, it must happen now
            store.commit(StateBatch())
        table = store.load()
        if table.commits < (known := commits_of_snapshot(files, directory)):
            # After a flipped bit in LMDB's head, LMDB uses the previous commit, which is
            # consistent.
            raise Damaged(f"{path} has {table.commits} commits, but its snapshot has {known}")
        return store, table
    except NewerVersion as error:
        store.close()
        raise error.at(path) from error
    except BaseException:
        store.close()
        raise


def rebuild_state(
    files: Files, directory: str, uuid: bytes, map_bytes: int, reason: str
) -> list[str]:
    """Rebuild the store, and rename the old one. The new store is synced when this returns.

    Returns sentences for the operator about the rebuild. No process may have the store open. Raises
    `DiskFull`, or `StoreFailed`, for example if the snapshot cannot be read now. Nothing has
    changed then.
    """
    bases = [base for name in files.list(directory) if (base := parse_chunk_name(name)) is not None]
    try:
        snapshot, complaint = _good_snapshot(files, directory, uuid)
    except Unreadable as error:
        text = "repair the disk, or move that file away to continue without the channels in it"
        raise StoreFailed(
            f"{directory}: the state store is damaged and must be rebuilt from its snapshot, "
            f"but {error}; {text}"
        ) from error
    temporary = f"{directory}/{STATE_NAME}{TEMPORARY_SUFFIX}"
    try:
        if files.exists(temporary):
            files.remove_tree(temporary)
        files.make_folder(temporary)
        store = StateStore(temporary, map_bytes, create=True)
        try:
            if snapshot is not None:
                rows, moved = rows_without_deferred(snapshot)
                store.fill(snapshot.meta, rows)
            else:
                moved = {}
                # Replay from the log's first block.
                store.fill(new_meta(uuid, min(bases, default=0)), ())
        finally:
            store.close()
        files.sync_folder(temporary)
        number = _free_number(files, directory)
        aside = ""
        # The snapshot must not be newer than the new store.
        if snapshot is None and files.exists(f"{directory}/{SNAPSHOT_NAME}"):
            files.rename(
                f"{directory}/{SNAPSHOT_NAME}", f"{directory}/{SNAPSHOT_NAME}{BAD_SUFFIX}-{number}"
            )
            files.sync_folder(directory)
        if files.exists(f"{directory}/{STATE_NAME}"):
            files.rename(f"{directory}/{STATE_NAME}", f"{directory}/{BAD_STATE}{number}")
            aside = f"; it was set aside as {BAD_STATE}{number}"
            files.sync_folder(directory)
        files.rename(temporary, f"{directory}/{STATE_NAME}")
        files.sync_folder(directory)
    except OSError as error:
        kind = DiskFull if is_full(error) else StoreFailed
        raise kind(
            f"{directory}: the state store is damaged ({reason.replace(f'{directory}/', '')}) "
            f"and could not be rebuilt: {error}"
        ) from error
    return [
        f"{directory}: the state store was damaged: {reason.replace(f'{directory}/', '')}{aside}",
        *_told(directory, snapshot, complaint, moved),
    ]


def _told(
    directory: str, snapshot: Snapshot | None, complaint: str, moved: dict[str, int]
) -> list[str]:
    if snapshot is None:
        unknown = (
            "transactions and producers are known only as far as the log shows them, so older "
            "ones may be stored twice if repeated"
        )
        return [
            (
                f"{directory}: {complaint}: all channels are lost, and the first new channel "
                "begins "
                f"with the oldest message; {unknown}"
            )
        ]
    names = [
        f"channel {name} lost its record of {snapshot.deferred[name].messages} deferred "
        "messages: it continues at offset "
        f"{min(before, snapshot.deferred[name].first_start)} instead of {before}"
        for name, before in moved.items()
    ]
    when = datetime.fromtimestamp(snapshot.time_ns // 1_000_000_000, UTC).strftime(
        "%Y-%m-%d %H:%M:%S"
    )
    return [
        (
            f"{directory}: the state store was rebuilt as of {when} UTC; channels continue from "
            "there, so some messages are delivered again"
        ),
        *names,
    ]


def _good_snapshot(files: Files, directory: str, uuid: bytes) -> tuple[Snapshot | None, str]:
    try:
        snapshot = read_snapshot(files, directory)
    except Damaged as error:
        return None, str(error)
    if snapshot is None:
        return None, "there is no snapshot"
    if snapshot.uuid != uuid or snapshot.meta["uuid"] != uuid:
        return None, "the snapshot belongs to another topic"
    return snapshot, ""


def finish_rebuild(files: Files, directory: str, notes: list[str]) -> None:
    """Rename the complete new store after a crash between the two renames."""
    temporary = f"{directory}/{STATE_NAME}{TEMPORARY_SUFFIX}"
    if not files.exists(f"{directory}/{STATE_NAME}") and files.exists(temporary):
        files.rename(temporary, f"{directory}/{STATE_NAME}")
        files.sync_folder(directory)
        notes.append(f"{directory}: the interrupted rebuild of its state store is finished")


def _free_number(files: Files, directory: str) -> int:
    for number in range(1, BAD_STATES_MAX):
        if not files.exists(f"{directory}/{BAD_STATE}{number}"):
            return number
    raise StoreFailed(
        f"{directory} holds {BAD_STATES_MAX} damaged state stores; inspect them and move them away"
    )
