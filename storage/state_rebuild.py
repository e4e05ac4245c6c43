"""Open a topic's state store, or make it again where it is damaged. Nothing is wiped: what was there lies in `state.bad-N` after it.

A store is damaged if LMDB or a checksum says so, or if the process that examines it dies. It is made from the last snapshot, and recovery
replays the log from that one's checkpoint: so producers and transactions are as they were. Channels go on where they were at the
snapshot: redeliveries, not losses. Deferred holes lie in the store only, so a channel that had some goes back to the lowest one.
Without a good snapshot there are no channels, and whoever opens the first one gets all that the log holds.

Two renames, and a crash may come between them: the new one is complete and synced under its other name before the old one is moved.

    state.tmp  made, synced
    state      -> state.bad-N      folder synced
    state.tmp  -> state            folder synced
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from .errors import Damaged, DiskFull, ForeignDirectory, StoreFailed, Unreadable, is_full
from .files import Files
from .log_format import BAD_SUFFIX, STATE_NAME, TEMPORARY_SUFFIX, parse_chunk_name
from .snapshot import SNAPSHOT_NAME, Snapshot, commits_of_snapshot, read_snapshot, rows_without_deferred
from .state import StateBatch, StateStore, Table
from .state_check import CHECK_S, DATA_NAME, examine, remove_copy
from .state_keeper import UNPROVEN_MAX, Starts, StateKeeper
from .state_rows import new_meta

BAD_STATE: Final = "state.bad-"
BAD_STATES_MAX: Final = 1_000


@dataclass(slots=True)
class OpenedState:
    """`notes` and `alarms` are sentences, the second sort for a person. `rebuilt`: what was there before is set aside."""

    store: StateStore
    table: Table
    keeper: StateKeeper
    rebuilt: bool = False
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


def open_state(files: Files, directory: str, uuid: bytes, map_bytes: int, now_ns: int) -> OpenedState:
    """The store of a topic, checked as far as a start can; made again if it is damaged. `ForeignDirectory` if it is another topic's."""
    notes: list[str] = []
    alarms: list[str] = []
    finish_rebuild(files, directory, notes)
    remove_copy(files, f"{directory}/{STATE_NAME}")
    starts = Starts(files, directory)
    unproven = starts.begin(now_ns)
    reason = _suspect(f"{directory}/{STATE_NAME}", unproven, starts, notes) if unproven >= UNPROVEN_MAX else ""
    store = table = None
    if not reason:
        try:
            store, table = _open(files, directory, uuid, map_bytes, prove=bool(unproven))
            if unproven:
                starts.proven()
        except Damaged as error:
            reason = str(error)
        except StoreFailed as error:
            # LMDB has errors that may mean anything: the process that reads all of it knows more.
            verdict = examine(f"{directory}/{STATE_NAME}")
            if not verdict.findings or not verdict.finished:
                raise
            reason = f"{error}; {verdict.findings[0]}"
    rebuilt = store is None or table is None
    if store is None or table is None:
        alarms += rebuild_state(files, directory, uuid, map_bytes, reason)
        store, table = _open(files, directory, uuid, map_bytes, prove=False)  # of as many commits as its snapshot
    keeper = StateKeeper(files, directory, uuid, store, table, starts)
    return OpenedState(store, table, keeper, rebuilt, notes, alarms)


def _suspect(path: str, unproven: int, starts: Starts, notes: list[str]) -> str:
    """Examine it first. Why it is damaged; empty: it is not, as far as is known."""
    verdict = examine(path, CHECK_S)
    if verdict.note:
        notes.append(verdict.note)
    if verdict.findings and verdict.finished:
        return f"{unproven} starts came to nothing; {verdict.findings[0]}"
    if verdict.finished:
        notes.append(f"{path}: {unproven} starts came to nothing, but it is sound")
    else:
        notes.append(verdict.findings[0])
    return ""


def _open(files: Files, directory: str, uuid: bytes, map_bytes: int, *, prove: bool) -> tuple[StateStore, Table]:
    path = f"{directory}/{STATE_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):
        raise Damaged(f"{path} holds no {DATA_NAME}")
    store = StateStore(path, map_bytes)
    try:
        if store.uuid() != uuid:
            raise ForeignDirectory(f"{directory}: its state belongs to another topic")
        if prove:  # a commit that kills the process shall do it now
            store.commit(StateBatch())
        table = store.load()
        if table.commits < (known := commits_of_snapshot(files, directory)):
            # One flipped bit in LMDB's own head brings the commit before back, which is right in itself.
            raise Damaged(f"{path} has seen {table.commits} commits, its snapshot {known}")
        return store, table
    except BaseException:
        store.close()
        raise


def rebuild_state(files: Files, directory: str, uuid: bytes, map_bytes: int, reason: str) -> list[str]:
    """Set the store aside and make it again, on disk when this returns. What happened, as sentences for a person.

    Nobody has it open. `DiskFull`, or `StoreFailed` where the snapshot cannot be read now: everything is as it was.
    """
    bases = [base for name in files.list(directory) if (base := parse_chunk_name(name)) is not None]
    try:
        snapshot, complaint = _good_snapshot(files, directory, uuid)
    except Unreadable as error:
        text = "mend the disk, or move the file away to do without the channels that it names"
        raise StoreFailed(f"{directory}: its state is damaged, and is made again from its snapshot: {error}; {text}") from error
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
                store.fill(new_meta(uuid, min(bases, default=0)), ())  # replay from the log's first block
        finally:
            store.close()
        files.sync_folder(temporary)
        number = _free_number(files, directory)
        aside = ""
        if snapshot is None and files.exists(f"{directory}/{SNAPSHOT_NAME}"):  # else the new store would be taken for older than it
            files.rename(f"{directory}/{SNAPSHOT_NAME}", f"{directory}/{SNAPSHOT_NAME}{BAD_SUFFIX}-{number}")
            files.sync_folder(directory)
        if files.exists(f"{directory}/{STATE_NAME}"):
            files.rename(f"{directory}/{STATE_NAME}", f"{directory}/{BAD_STATE}{number}")
            aside = f"; it is set aside as {BAD_STATE}{number}"
            files.sync_folder(directory)
        files.rename(temporary, f"{directory}/{STATE_NAME}")
        files.sync_folder(directory)
    except OSError as error:
        kind = DiskFull if is_full(error) else StoreFailed
        raise kind(
            f"{directory}: its state is damaged ({reason.replace(f'{directory}/', '')}) and could not be made again: {error}"
        ) from error
    return [
        f"{directory}: the state store was damaged: {reason.replace(f'{directory}/', '')}{aside}",
        *_told(directory, snapshot, complaint, moved),
    ]


def _told(directory: str, snapshot: Snapshot | None, complaint: str, moved: dict[str, int]) -> list[str]:
    if snapshot is None:
        unknown = (
            "of transactions and producers only those are known that the log still shows: what was committed before may be taken twice"
        )
        return [
            f"{directory}: {complaint}: its channels are lost, and the first one that is made begins with the oldest message; {unknown}"
        ]
    names = [
        f"channel {name} lost {snapshot.deferred[name].messages} deferred messages: it goes on at offset "
        f"{min(before, snapshot.deferred[name].first_start)}, not {before}"
        for name, before in moved.items()
    ]
    when = datetime.fromtimestamp(snapshot.time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return [f"{directory}: made again as of {when} UTC; channels go on from there, so some messages come again", *names]


def _good_snapshot(files: Files, directory: str, uuid: bytes) -> tuple[Snapshot | None, str]:
    try:
        snapshot = read_snapshot(files, directory)
    except (Damaged, ForeignDirectory) as error:
        return None, str(error)
    if snapshot is None:
        return None, "there is no snapshot"
    if snapshot.uuid != uuid or snapshot.meta["uuid"] != uuid:
        return None, "the snapshot is another topic's"
    return snapshot, ""


def finish_rebuild(files: Files, directory: str, notes: list[str]) -> None:
    """A crash came between the two renames: the new store is complete."""
    temporary = f"{directory}/{STATE_NAME}{TEMPORARY_SUFFIX}"
    if not files.exists(f"{directory}/{STATE_NAME}") and files.exists(temporary):
        files.rename(temporary, f"{directory}/{STATE_NAME}")
        files.sync_folder(directory)
        notes.append(f"{directory}: the making of its state store is finished")


def _free_number(files: Files, directory: str) -> int:
    for number in range(1, BAD_STATES_MAX):
        if not files.exists(f"{directory}/{BAD_STATE}{number}"):
            return number
    raise StoreFailed(f"{directory} holds {BAD_STATES_MAX} damaged state stores; look at them, and move them away")
