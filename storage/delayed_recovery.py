"""The delayed messages of a topic at start: open them, rescue them, and delete the rows of those that are in the log already.

A file `delayed.attempt` says that a life of the storage process died while it did something with the environment for the first
time: then it is looked through in a process of its own before it is opened again. A damaged page that LMDB trips over kills the
reader with SIGBUS or SIGSEGV, each time, for ever; so the first death may leave no file, the second does, and then it is rescued.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final

from crc32c import crc32c

from ..transport.block import DELAYED
from .delayed import DelayedStore
from .delayed_format import DelayedKey
from .delayed_rescue import finish_rescue, rescue
from .errors import Damaged, DiskFull, ForeignDirectory, StoreFailed, is_full
from .files import Files
from .log import Log
from .log_format import BAD_SUFFIX, DELAYED_NAME, TEMPORARY_SUFFIX
from .state_check import DATA_NAME, examine

ATTEMPT_SUFFIX: Final = ".attempt"
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
    _connect(store, files, directory)
    return store


def open_delayed(
    files: Files, directory: str, uuid: bytes, log: Log, applied: int, now_ns: int, notes: list[str], alarms: list[str]
) -> DelayedStore | None:
    """None where there is none. What the log has behind offset `applied` is deleted here: it has moved.

    `ForeignDirectory`: another topic's, or its file is missing. `StoreFailed`: it cannot be rescued now.
    """
    finish_rescue(files, directory)
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(path):
        return None
    store, trouble = _open(files, directory, uuid, notes)
    if store is None:
        bad, lost = rescue(files, directory, uuid, now_ns)
        number = "an unknown number of" if lost is None else lost
        alarms.append(f"{trouble}; set aside as {bad}, and what can be read was saved: {number} delayed messages are lost")
        store = DelayedStore(path, uuid)
    _mark(files, path, "")
    _connect(store, files, directory)
    try:
        moved = moved_keys(log, applied)
        if moved:
            store.remove(moved)
            notes.append(f"{path}: {len(moved)} blocks had moved to the log already")
    except BaseException:
        store.close()
        raise
    return store


def moved_keys(log: Log, applied: int) -> list[DelayedKey]:
    """Of the blocks behind the checkpoint that were published with a delay: their rows may still be here."""
    found = []
    for header, _ in log.headers(max(applied - 1, 0)):
        if header.flags & DELAYED and header.next_offset > applied:
            found.append(DelayedKey(header.producer_id, header.sequence))
    return found


def _open(files: Files, directory: str, uuid: bytes, notes: list[str]) -> tuple[DelayedStore | None, str]:
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):  # LMDB would make it, empty
        raise ForeignDirectory(f"{path} holds no {DATA_NAME}: restore it, or remove the folder to do without what waited in it")
    if files.exists(path + ATTEMPT_SUFFIX):
        verdict = examine(path)
        if verdict.finished and verdict.findings:
            return None, "; ".join(verdict.findings[:3])
        notes += verdict.findings
    _mark(files, path, "open")
    try:
        return DelayedStore(path, uuid), ""
    except Damaged as error:
        return None, str(error)


def _connect(store: DelayedStore, files: Files, directory: str) -> None:
    store.attempting = lambda what: _mark(files, store.path, what)
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
