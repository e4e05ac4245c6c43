"""The delayed messages of a topic at start: open them, rescue them, and delete the rows of those that are in the log already.

A file `delayed.attempt` says that a life of the storage process died while it did something with the environment for the first
time: then it is looked through in a process of its own before it is opened again. A damaged page that LMDB trips over kills the
reader with SIGBUS or SIGSEGV, each time, for ever; so the first death may leave no file, the second does, and then it is rescued.
With the word `rescue` in it that is done at once: a row is damaged that LMDB cannot delete without moving others over each other.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from crc32c import crc32c

from ..transport.block import DELAYED
from .delayed import RESCUE, DelayedStore
from .delayed_format import DelayedKey
from .delayed_head import finish_mending, mend_head, note_progress, noted_progress
from .delayed_rescue import finish_rescue, is_rescuing, probe, rescue
from .delayed_rows import Progress
from .errors import Damaged, DiskFull, ForeignDirectory, StoreFailed, is_full
from .files import Files
from .log import Log
from .log_format import BAD_SUFFIX, DELAYED_NAME, TEMPORARY_SUFFIX
from .state_check import DATA_NAME, examine

ATTEMPT_SUFFIX: Final = ".attempt"
WORD_BYTES_MAX: Final = 100
MADE_SUFFIX: Final = ".made"
MOVED_MAX: Final = 1_000  # rows that are removed by one commit
BAD_ROWS_MAX: Final = 1_000  # files; what is damaged beyond them is counted only


def make_delayed(files: Files, directory: str, uuid: bytes, now_ns: int) -> DelayedStore:
    """The environment of a topic that had none: under a temporary name, synced, renamed. `DiskFull`, `StoreFailed`.

    Its serials begin at the present time: were there ever one before, they would not come again.
    """
    path = f"{directory}/{DELAYED_NAME}"
    temporary = path + TEMPORARY_SUFFIX
    try:
        if files.exists(temporary):
            files.remove_tree(temporary)
        files.make_folder(temporary)
        DelayedStore(temporary, uuid, create=True, first_serial=now_ns).close()
        files.sync_folder(temporary)
        files.rename(temporary, path)
        files.sync_folder(directory)
    except OSError as error:
        if is_full(error):
            raise DiskFull(f"no space to make {path}: {error}") from error
        raise StoreFailed(f"{path} could not be made: {error}") from error
    store = DelayedStore(path, uuid)
    _note_made(files, directory)
    _connect(store, files, directory)
    return store


def _note_made(files: Files, directory: str) -> None:
    """So that a folder which is gone later is missed: messages that were acknowledged are nowhere else. Best effort."""
    made = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    with contextlib.suppress(OSError):
        if not files.exists(made):
            files.write_file(made, b"")
            files.sync_folder(directory)


def _tell_if_gone(files: Files, directory: str, alarms: list[str]) -> None:
    """Once: whoever removes the folder to do without what waited in it hears of it too."""
    made = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    if files.exists(made):
        alarms.append(f"{directory}/{DELAYED_NAME} is gone, with all delayed messages that waited in it; nobody knows how many")
        files.remove(made)
        files.sync_folder(directory)


def open_delayed(
    files: Files, directory: str, uuid: bytes, log: Log, applied: int, now_ns: int, notes: list[str], alarms: list[str]
) -> DelayedStore | None:
    """None where there is none. What the log has behind offset `applied` is deleted here: it has moved.

    `ForeignDirectory`: another topic's, or its file is missing. `StoreFailed`: it cannot be rescued now.
    """
    finish_rescue(files, directory)
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(path):
        _tell_if_gone(files, directory, alarms)
        return None
    _note_made(files, directory)
    finish_mending(files, path)
    noted = noted_progress(files, path)
    if is_rescuing(files, directory):
        store, trouble = None, _Trouble(f"{path}: a rescue goes on that was broken off")
    else:
        store, trouble = _open(files, directory, uuid, noted.commits, notes)
        if store is None and ((mended := mend_head(files, path, noted.commits, probe)) or trouble.older):
            alarms.append(f"{trouble.text}; {mended}" if mended else trouble.text)
            store, trouble = _open(files, directory, uuid, 0, notes)
    if store is None:
        bad, lost = rescue(files, directory, uuid, now_ns, noted, lambda saved: drop_moved(saved, log))
        number = "an unknown number of" if lost is None else lost
        alarms.append(f"{trouble.text}; set aside as {bad}, and what can be read was saved: {number} delayed messages are lost")
        _mark(files, path, "")
        files.sync_folder(directory)  # a mark that came back with a power cut would have it rescued again
        store = DelayedStore(path, uuid)
    _mark(files, path, "")
    _connect(store, files, directory)
    try:
        if store.progress.commits < noted.commits:
            alarms.append(_fallen_back(store, log, noted))
        else:
            moved = _remove(store, moved_keys(log, applied), counts=True)
            notes += [f"{path}: {moved} blocks had moved to the log already"] if moved else []
        store.committed(store.progress)
    except BaseException:
        store.close()
        raise
    return store


def moved_keys(log: Log, applied: int) -> Iterator[DelayedKey]:
    """Of the blocks behind the checkpoint that were published with a delay: their rows may still be here."""
    for header, _ in log.headers(max(applied - 1, 0)):
        if header.flags & DELAYED and header.next_offset > applied:
            yield DelayedKey(header.producer_id, header.sequence)


def drop_moved(store: DelayedStore, log: Log) -> None:
    """An older commit's rows may have moved long before the checkpoint; never before they were due."""
    if store.summary.next_due_ns:
        _remove(store, moved_keys(log, log.offset_at(store.summary.next_due_ns)), counts=False)


def _remove(store: DelayedStore, keys: Iterator[DelayedKey], *, counts: bool) -> int:
    found = 0
    while batch := list(islice(keys, MOVED_MAX)):
        store.remove(batch, counts=counts)
        found += len(batch)
    return found


def _fallen_back(store: DelayedStore, log: Log, noted: Progress) -> str:
    """The newest commit is gone, and cannot be had again: what it had put is lost, what it had moved must not move again."""
    before = store.progress.commits
    drop_moved(store, log)
    lost = max(0, noted.messages - store.summary.messages)
    store.adjust(noted.serial, lost, noted.commits)
    return (
        f"{store.path} is as it was after {before} commits, and there were {noted.commits}: {lost} delayed messages are lost; "
        "some that were cancelled last may be there again"
    )


class _Trouble(NamedTuple):
    """Why it is not open. `older`: it could be, and its newest commits are missing."""

    text: str
    older: bool = False


def _open(files: Files, directory: str, uuid: bytes, commits: int, notes: list[str]) -> tuple[DelayedStore | None, _Trouble]:
    """`commits`: as many it must have seen."""
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):  # LMDB would make it, empty
        raise ForeignDirectory(f"{path} holds no {DATA_NAME}: restore it, or remove the folder to do without what waited in it")
    if files.exists(path + ATTEMPT_SUFFIX):
        if files.read_file(path + ATTEMPT_SUFFIX, WORD_BYTES_MAX) == RESCUE.encode():
            return None, _Trouble(f"{path}: the size of a row is damaged")
        verdict = examine(path)
        if verdict.finished and verdict.findings:
            return None, _Trouble("; ".join(verdict.findings[:3]))
        notes += verdict.findings
    _mark(files, path, "open")
    try:
        store = DelayedStore(path, uuid)
    except Damaged as error:
        return None, _Trouble(str(error))
    if store.progress.commits >= commits:
        return store, _Trouble("")
    store.close()
    return None, _Trouble(f"{path} has seen {store.progress.commits} commits, and {commits} are noted", older=True)


def _connect(store: DelayedStore, files: Files, directory: str) -> None:
    store.attempting = lambda what: _mark(files, store.path, what)
    store.committed = lambda progress: note_progress(files, store.path, progress)
    store.set_aside = lambda key, value, why: _keep_bad(files, directory, key, value, why)


def _mark(files: Files, path: str, what: str) -> None:
    """Best effort: without it a death is only found out one life later, or by a person."""
    name = path + ATTEMPT_SUFFIX
    with contextlib.suppress(OSError):
        if files.exists(name):
            files.remove(name)
        if what:
            files.write_file(name, what.encode())


def _keep_bad(files: Files, directory: str, key: bytes, value: bytes, why: str) -> None:
    """A damaged row as a file: a line of JSON, its checksum, a line feed, the bytes. Best effort."""
    prefix = f"{DELAYED_NAME}-"
    with contextlib.suppress(OSError):
        if sum(name.startswith(prefix) and name.endswith(BAD_SUFFIX) for name in files.list(directory)) >= BAD_ROWS_MAX:
            return
        head = json.dumps({"zsq": "delayed row", "key": key.hex(), "bytes": len(value), "crc": crc32c(value), "why": why[:200]}).encode()
        path = f"{directory}/{prefix}{key[1:].hex()[:64]}{BAD_SUFFIX}"
        if not files.exists(path):
            files.write_file(path, head + b" %08x\n" % crc32c(head) + value)
            files.sync_folder(directory)
