"""Save what can be read of a damaged environment of delayed messages, in processes of their own: reading it may kill whoever does.

    python -m zsq.storage.delayed_rescue STEP OLD NEW
    python -m zsq.storage.delayed_rescue check PATH

A step reads OLD (never writes there) and adds to NEW what it finds whole: `meta` says what the meta row knows, `forward` takes rows
from the first on, `backward` from the last, `producers` the producers' rows. A step that dies of a damaged page has committed what it
had until then; the two ways over the rows leave out only what lies between the first and the last page that cannot be read. Each
row is believed by its own checksum. What comes out is one line of JSON.

Names in the topic's folder, so that a crash at any moment is finished by the next start:

| names | then |
|---|---|
| `delayed` | salvage into `delayed.tmp` (begun anew if it is there) |
| `delayed`, `delayed.ready` | rename `delayed` to `delayed.bad-N` |
| `delayed.ready` | rename it to `delayed` |

Nothing is deleted: `delayed.bad-N` stays for whoever wants to look.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import lmdb

from ..transport.codec import unpack_value
from .delayed import DelayedStore
from .delayed_format import META, PRODUCER, ROW, SUM_MASK, DelayedProducer, crc_of, decode_row, parse_producer_key, unwrap
from .delayed_rows import Rows, prefixed, read_meta, translated
from .errors import Damaged, DiskFull, StorageError, StoreFailed
from .files import Files
from .log_format import DELAYED_NAME, TEMPORARY_SUFFIX
from .state_check import examine

READY_SUFFIX: Final = ".ready"
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024
STEP_S: Final = 600.0
STEPS: Final = ("meta", "forward", "backward", "producers")
RESCUES_MAX: Final = 1_000  # environments set aside in one folder


def finish_rescue(files: Files, directory: str) -> None:
    """After a crash in the middle of one."""
    path = f"{directory}/{DELAYED_NAME}"
    if files.exists(path + TEMPORARY_SUFFIX):
        files.remove_tree(path + TEMPORARY_SUFFIX)
    if files.exists(path + READY_SUFFIX):
        _put_in_place(files, directory)


def rescue(files: Files, directory: str, uuid: bytes, now_ns: int) -> tuple[str, int | None]:
    """Put in place what can be read: where the old environment lies now, and how many messages are lost (None: nobody knows).

    `StoreFailed` where it could not be done for another reason than damage (no space): nothing has changed then.
    """
    path = f"{directory}/{DELAYED_NAME}"
    new = path + TEMPORARY_SUFFIX
    if files.exists(new):
        files.remove_tree(new)
    files.make_folder(new)
    DelayedStore(new, uuid, create=True, first_serial=now_ns).close()
    meta: dict[str, int] = {}
    for step in STEPS:
        meta |= _run(step, path, new)
    store = DelayedStore(new, uuid)
    try:
        lost = max(0, meta["messages"] - store.summary.messages) if meta else None
        store.adjust(meta.get("serial", 0), meta.get("lost", 0) + (lost or 0))
    finally:
        store.close()
    files.sync_folder(new)
    files.rename(new, path + READY_SUFFIX)
    files.sync_folder(directory)
    return _put_in_place(files, directory), lost


def _put_in_place(files: Files, directory: str) -> str:
    path = f"{directory}/{DELAYED_NAME}"
    bad = next(name for number in range(RESCUES_MAX) if not files.exists(name := f"{path}.bad-{number}"))
    if files.exists(path):
        files.rename(path, bad)
        files.sync_folder(directory)
    files.rename(path + READY_SUFFIX, path)
    files.sync_folder(directory)
    return bad


def _run(step: str, *paths: str) -> dict[str, Any]:
    """What the step said; {} where it died of what it read."""
    name, old = __spec__.name if __spec__ is not None else __name__, paths[0]
    try:
        done = subprocess.run([sys.executable, "-m", name, step, *paths], capture_output=True, timeout=STEP_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise StoreFailed(f"{old} could not be rescued within {STEP_S:g} s") from error
    except OSError as error:
        raise StoreFailed(f"{old} could not be rescued: {error}") from error
    if done.returncode < 0:
        return {}
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
        return [str(sentence) for sentence in _run("check", path).values()]
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


def take_step(step: str, old: str, new: str) -> dict[str, int]:
    try:
        with translated(old):
            source = lmdb.open(old, lock=False, readonly=True, create=False, readahead=step == "forward", max_dbs=0)
    except (DiskFull, StorageError):
        return {}
    with contextlib.closing(source), source.begin() as txn:
        if step == "meta":
            try:
                with translated(old):
                    meta = read_meta(txn)
            except StorageError:
                return {}
            return {name: int(meta[name]) for name in ("messages", "serial", "lost")}
        found = producers(txn) if step == "producers" else rows(txn, backward=step == "backward")
        _add(new, _until_damaged(old, found), stop_at_known=step == "backward")
    return {}


def rows(txn: Any, *, backward: bool) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if not (cursor.set_range(bytes([ROW[0] + 1])) and cursor.prev() if backward else cursor.set_range(ROW)):
        return
    for key, value in cursor.iterprev() if backward else cursor:
        if not key.startswith(ROW):
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


def _add(new: str, found: Iterator[tuple[bytes, bytes]], *, stop_at_known: bool) -> None:
    with contextlib.closing(lmdb.open(new, lock=False, create=False, map_size=1 << 42)) as env:
        more = True
        while more:
            with translated(new), env.begin(write=True) as txn:
                batch = Rows(txn)
                more = _add_some(batch, found, stop_at_known)
                batch.finish(missing_is_lost=False)


def _add_some(batch: Rows, found: Iterator[tuple[bytes, bytes]], stop_at_known: bool) -> bool:
    size = count = 0
    for key, value in found:
        if batch.txn.get(key) is not None:
            if stop_at_known:
                return False
            continue
        if key.startswith(ROW):
            batch.add(decode_row(key, value))
        else:
            batch.put_value(key, value)
        size += len(value)
        count += 1
        if size > BATCH_BYTES or count >= BATCH_ROWS:
            return True
    return False


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(counted(sys.argv[2]) if sys.argv[1] == "check" else take_step(*sys.argv[1:])))
    except DiskFull as failure:
        sys.exit(str(failure))
