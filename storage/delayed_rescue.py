"""Save what can be read of a damaged environment of delayed messages, in processes of their own: reading it may kill whoever does.

    python -m zsq.storage.delayed_rescue STEP OLD NEW PARENT ROWS BORDER
    python -m zsq.storage.delayed_rescue meta|check PATH

A step reads OLD (never writes there) and adds to NEW what it finds whole: `meta` says what the meta row knows, `forward` takes rows
from the first on, `backward` from the last, `producers` the producers' rows. A step that dies of a damaged page is tried once more,
committing each row; so the two ways over the rows leave out only what lies between the first and the last page that cannot be read. Each
row is believed by its own checksum. What comes out is one line of JSON.

A rescue of many rows takes longer than a start may take. So one that was killed goes on where it was: `forward` behind the last row of
NEW, `backward`, which stops at the `BORDER` that the former came to, before the first one behind that; what steps are done is in a file. A
step outlives the parent that was killed by one commit at most, and the next waits for its lock.

Names in the topic's folder, so that a crash at any moment is finished by the next start:

| names | then |
|---|---|
| `delayed`, `delayed.rescue` | salvage goes on |
| `delayed`, `delayed.ready` | rename `delayed` to `delayed.bad-N` |
| `delayed.ready` | rename it to `delayed` |

Nothing is deleted: `delayed.bad-N` stays for whoever wants to look.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from os import getpid, getppid
from typing import Any, Final

import lmdb

from ..transport.codec import unpack_value
from . import documents
from .delayed import DelayedStore
from .delayed_format import META, PRODUCER, ROW, SUM_MASK, DelayedProducer, crc_of, decode_row, parse_producer_key, unwrap
from .delayed_head import noted_progress
from .delayed_rows import Progress, Rows, prefixed, read_meta, rows_from, translated
from .errors import Damaged, DiskFull, Locked, StorageError, StoreFailed
from .files import Files
from .log_format import DELAYED_NAME, TEMPORARY_SUFFIX
from .state_check import examine

RESCUE_SUFFIX: Final = ".rescue"
READY_SUFFIX: Final = ".ready"
DONE_NAME: Final = "steps"
DONE_BYTES_MAX: Final = 4_096
STEP_LOCK_NAME: Final = "lock"
LOCK_LOOK_S: Final = 0.05
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024
STEP_S: Final = 600.0
STEPS: Final = ("meta", "forward", "backward", "producers")
RESCUES_MAX: Final = 1_000  # environments set aside in one folder


def finish_rescue(files: Files, directory: str) -> None:
    """After a crash at the end of one."""
    path = f"{directory}/{DELAYED_NAME}"
    if files.exists(path + TEMPORARY_SUFFIX):
        files.remove_tree(path + TEMPORARY_SUFFIX)
    if files.exists(path + READY_SUFFIX):
        _put_in_place(files, directory)


def is_rescuing(files: Files, directory: str) -> bool:
    """One was begun, and is not at its end."""
    return files.exists(f"{directory}/{DELAYED_NAME}{RESCUE_SUFFIX}")


def rescue(
    files: Files, directory: str, uuid: bytes, now_ns: int, noted: Progress, drop_moved: Callable[[DelayedStore], object]
) -> tuple[str, int | None]:
    """Put in place what can be read: where the old environment lies now, and how many messages are lost (None: nobody knows).

    `noted`: what is known of its newest commit. `drop_moved` removes rows that the log has. `StoreFailed` where it could not be done
    for another reason than damage (no space): nothing has changed then, and the next time goes on.
    """
    path = f"{directory}/{DELAYED_NAME}"
    new = path + RESCUE_SUFFIX
    if not files.exists(new):
        _begin(files, directory, uuid, now_ns)
    meta = _take_steps(files, path, new)
    store = DelayedStore(new, uuid)
    try:
        drop_moved(store)
        expected = meta.get("messages")
        if noted.commits > meta.get("commits", 0):
            expected = noted.messages
        lost = None if expected is None else max(0, expected - store.summary.messages)
        serial, commits = max(meta.get("serial", 0), noted.serial), max(meta.get("commits", 0), noted.commits)
        store.adjust(serial, meta.get("lost", 0) + (lost or 0) - store.summary.lost, commits)  # again after a crash: the same
    finally:
        store.close()
    for name in (DONE_NAME, STEP_LOCK_NAME):
        if files.exists(f"{new}/{name}"):
            files.remove(f"{new}/{name}")
    files.sync_folder(new)
    files.rename(new, path + READY_SUFFIX)
    files.sync_folder(directory)
    return _put_in_place(files, directory), lost


def _begin(files: Files, directory: str, uuid: bytes, now_ns: int) -> None:
    path = f"{directory}/{DELAYED_NAME}"
    temporary = path + TEMPORARY_SUFFIX
    files.make_folder(temporary)
    DelayedStore(temporary, uuid, create=True, first_serial=now_ns).close()
    files.sync_folder(temporary)
    files.rename(temporary, path + RESCUE_SUFFIX)
    files.sync_folder(directory)


def _take_steps(files: Files, path: str, new: str) -> dict[str, int]:
    """Those that are not done yet; what the meta row says."""
    note = f"{new}/{DONE_NAME}"
    done: dict[str, Any] = documents.loads(files.read_file(note, DONE_BYTES_MAX)) if files.exists(note) else {}
    for step in STEPS:
        if step in done:
            continue
        if step == "meta":
            said: dict[str, Any] = probe(path)
        else:
            border = str(done.get("forward", {}).get("border", ""))
            for rows_max in (BATCH_ROWS, 1):
                if _run(step, path, new, str(getpid()), str(rows_max), border) is not None:
                    break
            said = {"border": _last_row(new).hex()} if step == "forward" else {}
        done[step] = said
        if files.exists(note + TEMPORARY_SUFFIX):
            files.remove(note + TEMPORARY_SUFFIX)
        files.write_file(note + TEMPORARY_SUFFIX, json.dumps(done).encode())
        files.rename(note + TEMPORARY_SUFFIX, note)
        files.sync_folder(new)
    found: dict[str, int] = done["meta"]
    return found


def probe(path: str) -> dict[str, int]:
    """What the meta row of an environment knows; {} where it cannot be read."""
    return _run("meta", path) or {}


def _last_row(path: str) -> bytes:
    """Its key; empty where there is none."""
    with translated(path), contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env, env.begin() as txn:
        cursor = txn.cursor()
        found: bytes = cursor.key() if cursor.set_range(META) and cursor.prev() else b""
        return found


def _put_in_place(files: Files, directory: str) -> str:
    path = f"{directory}/{DELAYED_NAME}"
    bad = next(name for number in range(RESCUES_MAX) if not files.exists(name := f"{path}.bad-{number}"))
    if files.exists(path):
        files.rename(path, bad)
        files.sync_folder(directory)
    files.rename(path + READY_SUFFIX, path)
    files.sync_folder(directory)
    return bad


def _run(step: str, *arguments: str) -> dict[str, Any] | None:
    """What the step said; None where it died of what it read."""
    name, old = __spec__.name if __spec__ is not None else __name__, arguments[0]
    try:
        done = subprocess.run([sys.executable, "-m", name, step, *arguments], capture_output=True, timeout=STEP_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise StoreFailed(f"{old} could not be rescued within {STEP_S:g} s") from error
    except OSError as error:
        raise StoreFailed(f"{old} could not be rescued: {error}") from error
    if done.returncode < 0 and -done.returncode not in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}:
        return None
    if done.returncode:
        raise StoreFailed(f"{old} could not be rescued: {done.stderr.decode(errors='replace')[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_delayed(path: str) -> list[str]:
    """What is wrong with an environment of delayed messages, as sentences; empty: it is sound. Nobody may have it open to write."""
    verdict = examine(path)
    if verdict.findings or not verdict.finished:
        return verdict.findings
    try:
        found = [str(sentence) for sentence in (_run("check", path) or {}).values()]
        commits, noted = probe(path).get("commits", 0), noted_progress(Files(), path).commits
        return [*found, f"{path} has seen {commits} commits, and {noted} are noted"] if commits < noted else found
    except StoreFailed as error:
        return [str(error)]


# The steps, in a process of their own


def counted(path: str) -> dict[str, str]:
    """Whether the meta row counts what is there: every row was found whole before."""
    found: dict[str, int] = dict.fromkeys(("rows", "messages", "bytes", "sum"), 0)
    with translated(path), contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False, readahead=True)) as env:
        txn = env.begin()
        meta = read_meta(txn)
        for key, value in _all(txn):
            found["rows"] += 1
            found["sum"] = (found["sum"] + crc_of(value)) & SUM_MASK
            if key.startswith(ROW):
                block = decode_row(key, value).block
                found["messages"] += block.count
                found["bytes"] += block.length
        txn.abort()
    return {name: f"{path}: its {name} are {value}, and {meta[name]} are counted" for name, value in found.items() if value != meta[name]}


def _all(txn: Any) -> Iterator[tuple[bytes, bytes]]:
    for key, value in txn.cursor():
        if key != META:
            yield key, value


def meta_of(path: str) -> dict[str, int]:
    try:
        with translated(path), contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env, env.begin() as txn:
            meta = read_meta(txn)
    except (DiskFull, StorageError):
        return {}
    return {name: int(meta[name]) for name in ("messages", "serial", "lost", "commits")}


def uuid_of(path: str) -> bytes:
    """Which topic's it is. Only of one that was found to be sound."""
    with translated(path), contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env, env.begin() as txn:
        found: bytes = read_meta(txn)["uuid"]
        return found


def take_step(step: str, old: str, new: str, parent: int, rows_max: int, border: bytes) -> None:
    """Until done, or the parent is gone."""
    files = Files()
    while getppid() == parent:
        try:
            lock = files.lock(f"{new}/{STEP_LOCK_NAME}")
            break
        except Locked:  # what is left of a parent that was killed
            time.sleep(LOCK_LOOK_S)
    else:
        return
    try:
        with translated(old):
            source = lmdb.open(old, lock=False, readonly=True, create=False, readahead=step == "forward", max_dbs=0)
    except (DiskFull, StorageError):
        return
    with contextlib.closing(source), source.begin() as txn, contextlib.closing(lmdb.open(new, lock=False, map_size=1 << 42)) as env:
        with env.begin() as own:
            begin = resumed(own, border)
        if step == "producers":
            found = producers(txn)
        else:
            found = backward(txn, begin, border) if step == "backward" else forward(txn, begin)
        found = _until_damaged(old, found)
        more = True
        while more and getppid() == parent:
            with translated(new), env.begin(write=True) as into:
                batch = Rows(into)
                more = _add_some(batch, found, rows_max)
                batch.finish(missing_is_lost=False)
    files.close(lock)


def resumed(own: Any, border: bytes) -> bytes:
    """Where the way over the rows was, by what was saved: the last row, or going backward (there is a border) the first one behind it."""
    cursor = own.cursor()
    if border:
        found = cursor.set_range(border + b"\0")
    else:
        found = cursor.set_range(META) and cursor.prev()
    key: bytes = cursor.key() if found else b""
    return key if key.startswith(ROW) else b""


def forward(txn: Any, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in rows_from(txn, begin):
        with contextlib.suppress(Damaged):
            decode_row(key, value)
            yield key, value


def backward(txn: Any, begin: bytes, border: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if not (cursor.set_range(begin or META) and cursor.prev()):
        return
    for key, value in cursor.iterprev():
        if key <= border:
            return
        with contextlib.suppress(Damaged):
            decode_row(key, value)
            yield key, value


def producers(txn: Any) -> Iterator[tuple[bytes, bytes]]:
    for key, value in prefixed(txn, PRODUCER):
        with contextlib.suppress(Damaged):
            parse_producer_key(key)
            DelayedProducer(*unpack_value(unwrap(key, value)))
            yield key, value


def _until_damaged(path: str, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    with contextlib.suppress(StorageError), translated(path):
        yield from found


def _add_some(batch: Rows, found: Iterator[tuple[bytes, bytes]], rows_max: int) -> bool:
    size = count = 0
    for key, value in found:
        if batch.txn.get(key) is not None:
            continue
        if key.startswith(ROW):
            batch.add(decode_row(key, value))
        else:
            batch.put_value(key, value)
        size += len(value)
        count += 1
        if size > BATCH_BYTES or count >= rows_max:
            return True
    return False


def main(step: str, path: str, *rest: str) -> None:
    said: dict[str, Any] = {}
    if step in {"check", "meta"}:
        said = counted(path) if step == "check" else meta_of(path)
    else:
        new, parent, rows_max, border = rest
        take_step(step, path, new, int(parent), int(rows_max), bytes.fromhex(border))
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DiskFull as failure:
        sys.exit(str(failure))
