"""An open topic's files for a backup, taken without stopping it: names of its own for what never changes again, copies of the rest.

    DIR/backup/     like DIR itself: chunks, indexes, .bad files, topic, state/, state.snapshot, delayed/, staging/

Made by storage, in three parts, each in the thread that owns what it takes; read by whoever makes the backup; gone when that says so, when
that one is gone, or at the next start. Chunks are hard links: no byte is copied on a publisher's time, and retention takes away
its own names and not these. Only the newest chunk still grows: of it counts what was synced when it was linked.

| part | taken | why then |
|---|---|---|
| state | first, of all topics before anything else of any | what was finished, and published before that, is in the rest |
| delayed | after it | what is moved from there to the log meanwhile is found again behind the state's checkpoint |
| log | last, synced | so neither of the others can speak of what it does not hold |

With the state go the staged files: rows and files change together in its thread's order. Until the log is taken no chunk may be removed, as
the state says where the log begins.

Rejected: LMDB's own reader table, with which the copies would hold up no commit (`lock=True` costs each read and each start, for a
backup a day); reflinks (two file systems have them).
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from .delayed import DelayedStore
from .delayed_head import NOTE_BYTES_MAX, NOTE_NAME
from .delayed_recovery import MADE_SUFFIX
from .files import Files
from .log import Log
from .log_format import (
    BACKUP_NAME,
    BAD_SUFFIX,
    DELAYED_NAME,
    IDENTITY_NAME,
    INDEX_SUFFIX,
    STAGING_NAME,
    STATE_NAME,
    TEMPORARY_SUFFIX,
    chunk_name,
    parse_bad_name,
)
from .snapshot import SNAPSHOT_NAME
from .state import StateStore
from .state_keeper import StateKeeper


class LogTaken(NamedTuple):
    """What of the log is to be taken. `newest_bytes`: so many of the newest chunk count; `end`: the next offset then."""

    start: int
    end: int
    bases: tuple[int, ...]
    newest_bytes: int


def capture_state(files: Files, directory: str, state: StateStore, keeper: StateKeeper) -> None:
    """In the state's thread. The folder is not there yet. `OSError`, `StorageError`: nothing counts."""
    folder = f"{directory}/{BACKUP_NAME}"
    files.make_folder(folder)
    staging = f"{directory}/{STAGING_NAME}"
    if files.exists(staging):
        files.make_folder(f"{folder}/{STAGING_NAME}")
        for name in files.list(staging):
            _link(files, f"{staging}/{name}", f"{folder}/{STAGING_NAME}/{name}")
    keeper.write()  # at best of this very commit, and never of a later one: else the copy would be taken for an older one come back
    for name in (SNAPSHOT_NAME, IDENTITY_NAME, DELAYED_NAME + MADE_SUFFIX):
        _link(files, f"{directory}/{name}", f"{folder}/{name}")
    files.make_folder(f"{folder}/{STATE_NAME}")
    state.copy(f"{folder}/{STATE_NAME}")


def capture_delayed(files: Files, directory: str, delayed: DelayedStore) -> None:
    """In the delayed messages' thread."""
    folder = f"{directory}/{BACKUP_NAME}/{DELAYED_NAME}"
    files.make_folder(folder)
    delayed.copy(folder)
    files.note(f"{folder}/{NOTE_NAME}", files.read_note(f"{delayed.path}/{NOTE_NAME}", NOTE_BYTES_MAX))
    _link(files, f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}", f"{directory}/{BACKUP_NAME}/{DELAYED_NAME}{MADE_SUFFIX}")


def sync_log(files: Files, directory: str, log: Log) -> LogTaken:
    """In the log's thread, so that nothing is written meanwhile: all that is there is on disk then. `StoreFailed`, `OSError`."""
    end = log.sync()
    bases = tuple(log.chunks)
    return LogTaken(log.start, end, bases, files.size_of(f"{directory}/{chunk_name(bases[-1])}"))


def capture_log(files: Files, directory: str, taken: LogTaken) -> int:
    """Chunks, indexes of sealed ones, and what is known of damage in them; none of these may be removed meanwhile. How many chunks are
    missing: the copy has them no less than the topic has."""
    folder = f"{directory}/{BACKUP_NAME}"
    missing = 0
    for base in taken.bases:
        name = chunk_name(base)
        missing += not _link(files, f"{directory}/{name}", f"{folder}/{name}")
        if base != taken.bases[-1]:
            index = name.rpartition(".")[0] + INDEX_SUFFIX
            _link(files, f"{directory}/{index}", f"{folder}/{index}")
    for name in files.list(directory):
        if parse_bad_name(name) is not None or (name.startswith(f"{DELAYED_NAME}-") and name.endswith(BAD_SUFFIX)):
            _link(files, f"{directory}/{name}", f"{folder}/{name}")
    return missing


def drop_capture(files: Files, directory: str) -> None:
    """The backup is done with it. It goes at once for who copies from it, and never a part of it."""
    folder = f"{directory}/{BACKUP_NAME}"
    going = folder + TEMPORARY_SUFFIX
    if files.exists(going):
        files.remove_tree(going)
    if files.exists(folder):
        files.rename(folder, going)
        files.remove_tree(going)


def is_captured(files: Files, directory: str) -> bool:
    """Whether a backup, or a part of one, is still there."""
    return any(files.exists(f"{directory}/{BACKUP_NAME}{suffix}") for suffix in ("", TEMPORARY_SUFFIX))


def capture_bytes(files: Files, directory: str) -> int:
    """What the copies will take: links take nothing."""
    found = 0
    for name in (STATE_NAME, DELAYED_NAME):
        with contextlib.suppress(FileNotFoundError):
            found += files.size_of(f"{directory}/{name}/data.mdb")
    return found


def _link(files: Files, old: str, new: str) -> bool:
    """False: there is none. A name that is taken is of the same file."""
    try:
        files.link(old, new)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    return True
