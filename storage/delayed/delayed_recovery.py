"""Recovery of delayed messages: opens, mends or rescues their environment when a topic starts.

*Opening.* `open_delayed` opens the environment and removes the rows of messages that are already in
the log. A file `delayed.attempt` means that an earlier process of the topic ended during a risky
operation. In this case a separate process examines the environment before it is opened again. A
damaged page may kill its reader with SIGBUS or SIGSEGV, every time. After the first time there may
be no file, but after the second time there is one, and then the environment is rescued. If the file
contains `rescue`, the rescue starts at once, because LMDB cannot remove the damaged row without
damage to other rows.

*Heads.* Each of the first two pages of an environment is a head (LMDB calls it a meta page). A head
contains the position of a tree of pages. One head has the tree of the newest commit, the other head
has the tree of the commit before it. Heads have no checksums. One flipped bit in a head can make
LMDB refuse the whole environment, although every row is intact. Or LMDB uses the older tree instead
of the newest one, and the loss of the last commit is not noticed.

*Note.* After each commit, DelayedStore reports its number of commits, and `delayed/commits` stores
it without a sync. The note is written in microseconds, remains when the process ends, and is never
ahead of the commits that LMDB has synced. A power cut may remove the note or leave an old one. A
lost commit is then not noticed. Rejected: to store the number with the state store's checkpoint.
The checkpoint is seconds old, and only the very last commit can get lost.

*Mending.* This is tried if LMDB refuses the environment, or if the environment has fewer commits
than the note.
Each of the two heads is tried: it is written to both pages, with its constant fields corrected. The
head with more commits stays. Another process tests each head, because the test may kill it. Mending
changes the file itself and not a copy, because an environment may be gigabytes large, and a topic
has only two minutes to start. First, the two original pages are synced to a file. They are written
back if neither head helps. Otherwise the file is kept as `delayed/head.bad-N`.

*Rescue.* A rescue saves all readable rows of a damaged environment. It uses separate processes,
because a read may kill the reader.

    python -m zsq.storage.delayed.delayed_recovery STEP OLD NEW PARENT ROWS BORDER
    python -m zsq.storage.delayed.delayed_recovery meta|check PATH

A step reads OLD, never writes there, and adds the undamaged rows to NEW. `meta` prints the content
of the meta row. `forward` copies rows from the first one on, `backward` from the last one back, and
`producers` copies the producers' rows. If a damaged page kills a step, it is tried once more with a
commit for each row. So `forward` and `backward` together miss only the rows between the first and
the last unreadable page. The checksum of each row is checked. The output is one line of JSON.

A rescue of many rows takes longer than a start may take. So a killed rescue continues where it
stopped. `forward` continues after the last row of NEW. `backward` goes back to `BORDER`, the last
row that `forward` reached. It continues before the first row of NEW after `BORDER`. A file lists
the steps that are done. If its parent is killed, a step ends after at most one more commit, and the
next step waits for its lock.

With the names in the topic's folder, the next start can finish the rescue after a crash at any
time:

| names | next step |
|---|---|
| `delayed`, `delayed.rescue` | continue the rescue |
| `delayed`, `delayed.ready` | rename `delayed` to `delayed.bad-N` |
| `delayed.ready` | rename it to `delayed` |

Nothing is deleted. `delayed.bad-N` stays for inspection.
"""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from os import getpid, getppid
from typing import Any, Final, NamedTuple

import lmdb
from crc32c import crc32c

from ...transport.block.block import DELAYED
from ...transport.wire.codec import unpack_value
from .. import documents
from ..errors import (
    Damaged,
    DiskFull,
    ForeignDirectory,
    Locked,
    NotHere,
    StorageError,
    StoreFailed,
    is_full,
)
from ..files import TEMPORARY_SUFFIX, Files
from ..log.log import Log
from ..log.log_format import BAD_SUFFIX, DELAYED_NAME
from ..state.state_check import DATA_NAME, examine
from ..state.state_rows import SUM_MASK, crc_of
from ..state.state_transaction import rows_of
from .delayed import RESCUE, DelayedStore, Progress, Rows, read_meta, rows_from, translated
from .delayed_format import (
    META,
    PRODUCER,
    ROW,
    DelayedKey,
    DelayedProducer,
    decode_row,
    parse_producer_key,
    unwrap,
)

NOTE_NAME: Final = "commits"
NOTE_BYTES_MAX: Final = 4_096
TRYING_NAME: Final = "head.trying"
BAD_NAME: Final = "head.bad"
HEADS_MAX: Final = 1_000  # the largest number of pairs of old heads in one folder
PAGE_BYTES: Final = (4_096, 8_192, 16_384, 32_768, 65_536)

# The byte order is that of the machine, as in LMDB. Fields of a page: number, unused, flags,
# unused. Fields of a head: magic, version, address, map size; for the list of free pages: page
# size, flags, depth, five counts; the same fields for the rows; last page; transaction.
_PAGE: Final = struct.Struct("=QHHI")
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")
_FLAG_OF_HEAD: Final = 8
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_SIZE_AT: Final = 4
# The fields of a head (by index) that are constant in an environment with one unnamed table.
_CONSTANT: Final = {
    0: _MAGIC,
    1: _VERSION,
    2: 0,
    5: 8,
    12: 0,
    13: 0,
}
_LAST_PAGE_AT: Final = -2
_TRANSACTION_AT: Final = -1
_U64: Final = 2**64 - 1


def note_progress(files: Files, path: str, progress: Progress) -> None:
    """Write the note about the newest commit. Errors are ignored."""
    line = json.dumps(progress._asdict()).encode()
    with contextlib.suppress(OSError):
        files.note(f"{path}/{NOTE_NAME}", line + b" %08x\n" % crc32c(line))


def noted_progress(files: Files, path: str) -> Progress:
    """Return the progress in the note, or all 0 if there is no good note."""
    try:
        line, _, crc = files.read_note(f"{path}/{NOTE_NAME}", NOTE_BYTES_MAX).rpartition(b" ")
        if crc == b"%08x\n" % crc32c(line):
            found = Progress(**documents.loads(line))
            return found if all(type(one) is int for one in found) else Progress()
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return Progress()


def finish_mending(files: Files, path: str) -> None:
    """Write the original heads back after a crash during mending."""
    trying = f"{path}/{TRYING_NAME}"
    if files.exists(trying):
        _take_back(files, path, files.read_file(trying, 2 * PAGE_BYTES[-1]))


def mend_head(files: Files, path: str, commits: int, probe: Callable[[str], dict[str, int]]) -> str:
    """Try to mend the heads. Return a sentence about the change, or "" if nothing helps.

    `commits` is the number of commits in the note. `probe` returns the meta row of an environment,
    or {} if it cannot be read.
    """
    before = probe(path).get("commits", -1)
    original = _read(files, path)
    if before >= max(commits, 0) or not original:
        return ""
    trying, page_bytes = f"{path}/{TRYING_NAME}", len(original) // 2
    pages = files.size_of(f"{path}/{DATA_NAME}") // page_bytes
    variants = [made for index in (0, 1) if (made := _variant(original, index, pages))]
    temporary = trying + TEMPORARY_SUFFIX
    if files.exists(temporary):
        files.remove(temporary)
    files.write_file(temporary, original)
    files.rename(temporary, trying)
    files.sync_folder(path)
    found = []
    for variant in variants:
        _write(files, path, variant)
        found.append(probe(path).get("commits", -1))
    best = max(found, default=-1)
    if best <= before:
        _take_back(files, path, original)
        return ""
    _write(files, path, variants[found.index(best)])
    bad = next(
        name
        for number in range(HEADS_MAX)
        if not files.exists(name := f"{path}/{BAD_NAME}-{number}")
    )
    files.rename(trying, bad)
    files.sync_folder(path)
    return (
        f"{path}: one of the two meta pages of its file was damaged and was replaced by the "
        f"other; the old pages are kept in {bad}"
    )


def _take_back(files: Files, path: str, original: bytes) -> None:
    """Write the original pages back, and remove their copy.

    The removal of the copy must be durable before the next commit. Otherwise the next start would
    overwrite newer pages with it.
    """
    _write(files, path, original)
    files.remove(f"{path}/{TRYING_NAME}")
    files.sync_folder(path)


def _read(files: Files, path: str) -> bytes:
    """Return both head pages, or an empty value if the file is not an LMDB file."""
    data = files.read_file(f"{path}/{DATA_NAME}", 2 * PAGE_BYTES[-1])
    for size in PAGE_BYTES:
        for at in (size, 0):
            if (
                len(data) >= 2 * size
                and _HEAD.unpack_from(data, at + _PAGE.size)[_PAGE_SIZE_AT] == size
            ):
                return data[: 2 * size]
    return b""


def _variant(original: bytes, index: int, pages: int) -> bytes:
    """Return both pages with the chosen head in each.

    The head's number of the last page is set to the last page of the file. If this number is too
    high, some pages stay unused. If it were too low, LMDB would overwrite pages in use.
    """
    size = len(original) // 2
    heads = [list(_HEAD.unpack_from(original, at + _PAGE.size)) for at in (0, size)]
    head = heads[index]
    for at, constant in _CONSTANT.items():
        head[at] = constant
    head[_PAGE_SIZE_AT] = size
    head[_LAST_PAGE_AT] = max(pages - 1, 1)
    head[_TRANSACTION_AT] = min(max(one[_TRANSACTION_AT] for one in heads) + 1, _U64 >> 1)
    body = _HEAD.pack(*head)
    return b"".join(
        (_PAGE.pack(number, 0, _FLAG_OF_HEAD, 0) + body).ljust(size, b"\0") for number in (0, 1)
    )


def _write(files: Files, path: str, head: bytes) -> None:
    fd = files.open_append(f"{path}/{DATA_NAME}")
    try:
        files.writev(fd, [head], 0)
        files.sync(fd)
    finally:
        files.close(fd)


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
RESCUES_MAX: Final = 1_000  # the largest number of old environments in one folder


def finish_rescue(files: Files, directory: str) -> None:
    """Finish a rescue that was interrupted in its last steps."""
    path = f"{directory}/{DELAYED_NAME}"
    if files.exists(path + TEMPORARY_SUFFIX):
        files.remove_tree(path + TEMPORARY_SUFFIX)
    if files.exists(path + READY_SUFFIX):
        _put_in_place(files, directory)


def is_rescuing(files: Files, directory: str) -> bool:
    """Return True if a rescue has begun and has not ended."""
    return files.exists(f"{directory}/{DELAYED_NAME}{RESCUE_SUFFIX}")


def rescue(
    files: Files,
    directory: str,
    uuid: bytes,
    now_ns: int,
    noted: Progress,
    drop_moved: Callable[[DelayedStore], object],
) -> tuple[str, int | None]:
    """Rescue the environment. Return the path of the old one, and the number of lost messages.

    The number is None if it is unknown. `noted` is the progress in the note. `drop_moved` removes
    rows whose messages are in the log. Raises `StoreFailed` if the rescue fails for another reason
    than damage, for example on a full disk. The old environment is then unchanged, and the next
    start continues the rescue.
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
        serial, commits = (
            max(meta.get("serial", 0), noted.serial),
            max(meta.get("commits", 0), noted.commits),
        )
        # After a crash, this is repeated. The second call then changes nothing.
        store.adjust(serial, meta.get("lost", 0) + (lost or 0) - store.summary.lost, commits)
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
    """Run the steps that are not done yet. Return the content of the meta row."""
    note = f"{new}/{DONE_NAME}"
    done: dict[str, dict[str, int | str]] = (
        documents.loads(files.read_file(note, DONE_BYTES_MAX)) if files.exists(note) else {}
    )
    for step in STEPS:
        if step in done:
            continue
        if step == "meta":
            said: dict[str, int | str] = {**probe(path)}
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
    return {name: int(value) for name, value in done["meta"].items()}


def probe(path: str) -> dict[str, int]:
    """Return the content of the meta row of an environment, or {} if it cannot be read."""
    return {name: int(value) for name, value in (_run("meta", path) or {}).items()}


def _last_row(path: str) -> bytes:
    """Return the key of the last row, or an empty value if there is none."""
    with (
        translated(path),
        contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env,
        env.begin() as txn,
    ):
        cursor = txn.cursor()
        found: bytes = cursor.key() if cursor.set_range(META) and cursor.prev() else b""
        return found


def _put_in_place(files: Files, directory: str) -> str:
    path = f"{directory}/{DELAYED_NAME}"
    bad = next(
        name for number in range(RESCUES_MAX) if not files.exists(name := f"{path}.bad-{number}")
    )
    if files.exists(path):
        files.rename(path, bad)
        files.sync_folder(directory)
    files.rename(path + READY_SUFFIX, path)
    files.sync_folder(directory)
    return bad


def _run(step: str, *arguments: str) -> dict[str, int | str] | None:
    """Run a step and return its output, or None if a damaged page killed it."""
    name, old = __spec__.name if __spec__ is not None else __name__, arguments[0]
    try:
        done = subprocess.run(
            [sys.executable, "-m", name, step, *arguments],
            capture_output=True,
            timeout=STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreFailed(f"{old} could not be rescued within {STEP_S:g} s") from error
    except OSError as error:
        raise StoreFailed(f"{old} could not be rescued: {error}") from error
    if done.returncode < 0 and -done.returncode not in {
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGINT,
    }:
        return None
    if done.returncode:
        raise StoreFailed(
            f"{old} could not be rescued: {done.stderr.decode(errors='replace')[-500:]}"
        )
    found: dict[str, int | str] = json.loads(done.stdout)
    return found


def check_delayed(path: str) -> list[str]:
    """Return the defects of an environment of delayed messages as sentences.

    No process may have it open for writing.
    """
    verdict = examine(path)
    if verdict.findings or not verdict.finished:
        return verdict.findings
    try:
        found = [str(sentence) for sentence in (_run("check", path) or {}).values()]
        commits, noted = probe(path).get("commits", 0), noted_progress(Files(), path).commits
        return (
            [*found, f"{path} has {commits} commits, but {noted} were recorded"]
            if commits < noted
            else found
        )
    except StoreFailed as error:
        return [str(error)]


# The steps, in a separate process


def counted(path: str) -> dict[str, str]:
    """Return the wrong numbers of the meta row, each with a sentence.

    The caller must have checked that no row is damaged.
    """
    found: dict[str, int] = dict.fromkeys(("rows", "messages", "bytes", "sum"), 0)
    with (
        translated(path),
        contextlib.closing(
            lmdb.open(path, lock=False, readonly=True, create=False, readahead=True)
        ) as env,
    ):
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
    told = {
        "rows": meta["rows"],
        "messages": meta["messages"],
        "bytes": meta["bytes"],
        "sum": meta["sum"],
    }
    return {
        name: f"{path}: {name}: {value} found, but {told[name]} recorded"
        for name, value in found.items()
        if value != told[name]
    }


def _all(txn: Any) -> Iterator[tuple[bytes, bytes]]:
    for key, value in txn.cursor():
        if key != META:
            yield key, value


def meta_of(path: str) -> dict[str, int]:
    try:
        with (
            translated(path),
            contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env,
            env.begin() as txn,
        ):
            meta = read_meta(txn)
    except (DiskFull, StorageError):
        return {}
    return {name: int(meta[name]) for name in ("messages", "serial", "lost", "commits")}


def uuid_of(path: str) -> bytes:
    """Return the UUID of the topic of an environment without damage."""
    with (
        translated(path),
        contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False)) as env,
        env.begin() as txn,
    ):
        found: bytes = read_meta(txn)["uuid"]
        return found


def take_step(step: str, old: str, new: str, parent: int, rows_max: int, border: bytes) -> None:
    """Run a step until it is done or the parent process has ended."""
    files = Files()
    while getppid() == parent:
        try:
            lock = files.lock(f"{new}/{STEP_LOCK_NAME}")
            break
        except Locked:  # a step of a killed parent holds the lock
            time.sleep(LOCK_LOOK_S)
    else:
        return
    try:
        with translated(old):
            source = lmdb.open(
                old, lock=False, readonly=True, create=False, readahead=step == "forward", max_dbs=0
            )
    except (DiskFull, StorageError):
        return
    with (
        contextlib.closing(source),
        source.begin() as txn,
        contextlib.closing(lmdb.open(new, lock=False, map_size=1 << 42)) as env,
    ):
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
    """Return the key of the saved row at which a step continues, or an empty value.

    This is the last row, or for `backward` (with a border) the first row after the border.
    """
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
    for key, value in rows_of(txn, PRODUCER):
        with contextlib.suppress(Damaged):
            parse_producer_key(key)
            DelayedProducer(*unpack_value(unwrap(key, value)))
            yield key, value


def _until_damaged(
    path: str, found: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
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
    if step in {"check", "meta"}:
        sys.stdout.write(json.dumps(counted(path) if step == "check" else meta_of(path)))
    else:
        new, parent, rows_max, border = rest
        take_step(step, path, new, int(parent), int(rows_max), bytes.fromhex(border))
        sys.stdout.write("{}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DiskFull as failure:
        sys.exit(str(failure))


ATTEMPT_SUFFIX: Final = ".attempt"
WORD_BYTES_MAX: Final = 100
MADE_SUFFIX: Final = ".made"
MOVED_MAX: Final = 1_000  # the most rows that one commit removes
BAD_ROWS_MAX: Final = 1_000  # the most files of damaged rows; further rows are only counted


def make_delayed(files: Files, directory: str, uuid: bytes, now_ns: int) -> DelayedStore:
    """Create the environment of a topic under a temporary name, sync it, and rename it.

    The serials begin at the present time, so that they do not repeat the serials of an earlier
    environment. Raises `DiskFull` or `StoreFailed`.
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
            raise DiskFull(f"no space to create {path}: {error}") from error
        raise StoreFailed(f"{path} could not be created: {error}") from error
    store = DelayedStore(path, uuid)
    _note_made(files, directory)
    _connect(store, files, directory)
    return store


def _note_made(files: Files, directory: str) -> None:
    """Note that the folder exists, so that its loss is noticed. Errors are ignored.

    The loss is important, because the acknowledged messages in the folder are nowhere else.
    """
    made = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    with contextlib.suppress(OSError):
        if not files.exists(made):
            files.write_file(made, b"")
            files.sync_folder(directory)


def _tell_if_gone(files: Files, directory: str, alarms: list[str]) -> None:
    """Add an alarm, once, if the folder is missing.

    An operator who removes the folder on purpose gets the alarm too.
    """
    made = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    if files.exists(made):
        alarms.append(
            f"{directory}/{DELAYED_NAME} is missing, with all delayed messages that were in it; "
            "their number is not known"
        )
        files.remove(made)
        files.sync_folder(directory)


def open_delayed(
    files: Files,
    directory: str,
    uuid: bytes,
    log: Log,
    applied: int,
    now_ns: int,
    notes: list[str],
    alarms: list[str],
) -> DelayedStore | None:
    """Open the environment, or return None if there is none. Rescue it if it is damaged.

    This removes the rows of blocks that are in the log after offset `applied`, because they were
    moved. Raises `ForeignDirectory` if the environment belongs to another topic, or if its file is
    missing. Raises `StoreFailed` if it cannot be rescued now.
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
        store, trouble = None, _Trouble(f"{path}: an interrupted rescue continues")
    else:
        store, trouble = _open(files, directory, uuid, noted.commits, notes)
        if store is None and (
            (mended := mend_head(files, path, noted.commits, probe)) or trouble.older
        ):
            alarms.append(f"{trouble.text}; {mended}" if mended else trouble.text)
            store, trouble = _open(files, directory, uuid, 0, notes)
    if store is None:
        bad, lost = rescue(
            files, directory, uuid, now_ns, noted, lambda saved: drop_moved(saved, log)
        )
        number = "an unknown number of" if lost is None else lost
        alarms.append(
            f"{trouble.text}; it is set aside as {bad}, and all that can be read was saved: "
            f"{number} delayed messages are lost"
        )
        _mark(files, path, "")
        # If a power cut restored the file `delayed.attempt`, it would cause a rescue.
        files.sync_folder(directory)
        store = DelayedStore(path, uuid)
    _mark(files, path, "")
    _connect(store, files, directory)
    try:
        if store.progress.commits < noted.commits:
            alarms.append(_fallen_back(store, log, noted))
        else:
            moved = _remove(store, moved_keys(log, applied), counts=True)
            notes += [f"{path}: {moved} blocks had already moved to the log"] if moved else []
        store.committed(store.progress)
    except BaseException:
        store.close()
        raise
    return store


def moved_keys(log: Log, applied: int) -> Iterator[DelayedKey]:
    """Yield the keys of blocks after the checkpoint that were published with a delay.

    Their rows may still exist.
    """
    for header, _ in log.headers(max(applied - 1, 0)):
        if header.flags & DELAYED and header.next_offset > applied:
            yield DelayedKey(header.producer_id, header.sequence)


def drop_moved(store: DelayedStore, log: Log) -> None:
    """Remove the rows of blocks that are in the log, from the first row's due time on.

    Rows of an older commit may have been moved long before the checkpoint, but never before they
    were due. Blocks in chunks that are only in the bucket are not read. So what was moved there may
    be moved once more.
    """
    if store.summary.next_due_ns:
        try:
            begin = log.offset_at(store.summary.next_due_ns)
        except NotHere:
            begin = log.start
        _remove(store, moved_keys(log, begin), counts=False)


def _remove(store: DelayedStore, keys: Iterator[DelayedKey], *, counts: bool) -> int:
    found = 0
    while batch := list(islice(keys, MOVED_MAX)):
        store.remove(batch, counts=counts)
        found += len(batch)
    return found


def _fallen_back(store: DelayedStore, log: Log, noted: Progress) -> str:
    """Repair the store after its newest commits were lost. Return an alarm.

    The messages that those commits added are lost. The messages that they moved to the log must not
    be moved again.
    """
    before = store.progress.commits
    drop_moved(store, log)
    lost = max(0, noted.messages - store.summary.messages)
    store.adjust(noted.serial, lost, noted.commits)
    return (
        f"{store.path} has the state after commit {before}, but there were {noted.commits} "
        f"commits: {lost} delayed messages are lost, "
        "and messages that were cancelled last may be back"
    )


class _Trouble(NamedTuple):
    """The reason why the environment is not open.

    `older` is True if it could be opened but its newest commits are missing.
    """

    text: str
    older: bool = False


def _open(
    files: Files, directory: str, uuid: bytes, commits: int, notes: list[str]
) -> tuple[DelayedStore | None, _Trouble]:
    """Open the environment. It must have at least `commits` commits."""
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):  # LMDB would create an empty environment
        raise ForeignDirectory(
            f"{path} has no {DATA_NAME}: restore it, or remove the folder to continue without "
            "its delayed messages"
        )
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
    return None, _Trouble(
        f"{path} has {store.progress.commits} commits, but {commits} were recorded", older=True
    )


def _connect(store: DelayedStore, files: Files, directory: str) -> None:
    store.attempting = lambda what: _mark(files, store.path, what)
    store.committed = lambda progress: note_progress(files, store.path, progress)
    store.set_aside = lambda key, value, why: _keep_bad(files, directory, key, value, why)


def _mark(files: Files, path: str, what: str) -> None:
    """Write or remove the file `delayed.attempt`. Errors are ignored.

    If the file cannot be written, the end of the process is noticed one start later, or only by the
    operator.
    """
    name = path + ATTEMPT_SUFFIX
    with contextlib.suppress(OSError):
        if files.exists(name):
            files.remove(name)
        if what:
            files.write_file(name, what.encode())


def _keep_bad(files: Files, directory: str, key: bytes, value: bytes, why: str) -> None:
    """Save a damaged row to a file: a line of JSON, its checksum, a line feed, the bytes.

    Errors are ignored.
    """
    prefix = f"{DELAYED_NAME}-"
    with contextlib.suppress(OSError):
        if (
            sum(
                name.startswith(prefix) and name.endswith(BAD_SUFFIX)
                for name in files.list(directory)
            )
            >= BAD_ROWS_MAX
        ):
            return
        head = json.dumps(
            {
                "zsq": "delayed row",
                "key": key.hex(),
                "bytes": len(value),
                "crc": crc32c(value),
                "why": why[:200],
            }
        ).encode()
        path = f"{directory}/{prefix}{key[1:].hex()[:64]}{BAD_SUFFIX}"
        if not files.exists(path):
            files.write_file(path, head + b" %08x\n" % crc32c(head) + value)
            files.sync_folder(directory)
