"""Recovery of delayed messages: opens or rescues their environment when a topic starts.

*Opening.* `open_delayed` opens the environment and removes the rows of messages that are already in
the log. A file `delayed.attempt` means that an earlier process of the topic ended during a risky
operation. In this case a separate process examines the environment before it is opened again. A
damaged page may kill its reader with SIGBUS or SIGSEGV, every time. After the first time there may
be no file, but after the second time there is one, and then the environment is rescued. If the file
contains `rescue`, the rescue starts at once, because LMDB cannot remove the damaged row without
damage to other rows.

*Note.* After each commit, DelayedStore reports its number of commits, and `delayed/commits` stores
it without a sync. The note is written in microseconds, remains when the process ends, and is never
ahead of the commits that LMDB has synced. If the environment has fewer commits than the note, LMDB
uses an older tree because of a damaged head, or an old version of the file came back. A power cut
may remove the note or leave an old one. A lost commit is then not noticed. Rejected: to store the
number with the state store's checkpoint. The checkpoint is seconds old, and a head loses only the
very last commit.

*Rescue.* A rescue copies all readable rows of a damaged environment to a new one. It reads the
pages without LMDB (`lmdb_pages.py`), so no damage can kill it, and a damaged page costs only the
rows in it and in the pages below it. Of the two trees of the environment it uses the one with more
commits. If a damaged page hides that number, it uses the rows of both trees. Then messages that the
last commit cancelled may be back. The checksum of each row is checked. Nothing is written to the
old environment, and nothing is deleted: `delayed.bad-N` stays for inspection. Rejected: to mend a
damaged head in its place, because that needs a copy of the old head, an undo after a crash, and a
process for each trial.

A rescue of many rows may take longer than a start may take. So it commits in batches, and the next
start leaves out the rows that the new environment already has. With the names in the topic's
folder, the next start can finish the rescue after a crash at any time:

| names | next step |
|---|---|
| `delayed`, `delayed.rescue` | continue the rescue |
| `delayed`, `delayed.ready` | rename `delayed` to `delayed.bad-N` |
| `delayed.ready` | rename it to `delayed` |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from ...transport.block.block import DELAYED
from ...transport.checksum import crc32c
from .. import documents
from ..environment import DATA_NAME, Environment
from ..errors import (
    Damaged,
    DiskFull,
    ForeignDirectory,
    NewerVersion,
    NotHere,
    StoreFailed,
    is_full,
)
from ..files import TEMPORARY_SUFFIX, Files
from ..lmdb_pages import PageReader, RowTree
from ..log.log import Log
from ..log.log_format import BAD_SUFFIX, DELAYED_NAME
from ..rows import META, SUM_MASK, crc_of, key_of
from ..state.state_check import examine
from .delayed import (
    RESCUE,
    DelayedMeta,
    DelayedStore,
    Progress,
    decode_meta,
    read_meta,
)
from .delayed_format import ROW, DelayedKey, decode_row

NOTE_NAME: Final = "commits"
NOTE_BYTES_MAX: Final = 4_096
ATTEMPT_SUFFIX: Final = ".attempt"
WORD_BYTES_MAX: Final = 100
MADE_SUFFIX: Final = ".made"
RESCUE_SUFFIX: Final = ".rescue"
READY_SUFFIX: Final = ".ready"
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024
RESCUES_MAX: Final = 1_000  # the largest number of old environments in one folder
MOVED_MAX: Final = 1_000  # the most rows that one commit removes
BAD_ROWS_MAX: Final = 1_000  # the most files of damaged rows; further rows are only counted


def make_delayed(files: Files, directory: str, uuid: bytes, now_ns: int) -> DelayedStore:
    """Create the environment of a topic. Its name is synced when this returns.

    The serials begin at the present time, so that they do not repeat the serials of an earlier
    environment. Raises `DiskFull` or `StoreFailed`.
    """
    path = f"{directory}/{DELAYED_NAME}"
    try:
        _create(files, directory, path, uuid, now_ns)
    except OSError as error:
        if is_full(error):
            raise DiskFull(f"no space to create {path}: {error}") from error
        raise StoreFailed(f"{path} could not be created: {error}") from error
    store = DelayedStore(path, uuid)
    _note_made(files, directory)
    _connect(store, files, directory)
    return store


def _create(files: Files, directory: str, path: str, uuid: bytes, now_ns: int) -> None:
    """Create an empty environment under a temporary name, sync it, and rename it to `path`."""
    temporary = f"{directory}/{DELAYED_NAME}{TEMPORARY_SUFFIX}"
    if files.exists(temporary):
        files.remove_tree(temporary)
    files.make_folder(temporary)
    DelayedStore(temporary, uuid, create=True, first_serial=now_ns).close()
    files.sync_folder(temporary)
    files.rename(temporary, path)
    files.sync_folder(directory)


def _note_made(files: Files, directory: str) -> None:
    """Note that the folder exists, so that its loss is noticed. Errors are ignored.

    The loss is important, because the acknowledged messages in the folder are nowhere else.
    """
    mark = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    with contextlib.suppress(OSError):
        if not files.exists(mark):
            files.write_file(mark, b"")
            files.sync_folder(directory)


def _tell_if_gone(files: Files, directory: str, alarms: list[str]) -> None:
    """Add an alarm, once, if the folder is missing.

    An operator who removes the folder on purpose gets the alarm too.
    """
    mark = f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}"
    if files.exists(mark):
        alarms.append(
            f"{directory}/{DELAYED_NAME} is missing, with all delayed messages that were in it; "
            "their number is not known"
        )
        files.remove(mark)
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
    noted = noted_progress(files, path)
    if files.exists(path + RESCUE_SUFFIX):
        store, reason = None, f"{path}: an interrupted rescue continues"
    else:
        store, reason = _open(files, directory, uuid, noted.commits, notes)
    if store is None:
        bad, lost = rescue(
            files, directory, uuid, now_ns, noted, lambda saved: drop_moved(saved, log)
        )
        number = "an unknown number of" if lost is None else lost
        alarms.append(
            f"{reason}; it is set aside as {bad}, and all that can be read was saved: "
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


def _open(
    files: Files, directory: str, uuid: bytes, commits: int, notes: list[str]
) -> tuple[DelayedStore | None, str]:
    """Open the environment. Without a store, the text says why it needs a rescue.

    A store with fewer than the noted `commits` is returned only if no tree of the file has more.
    """
    path = f"{directory}/{DELAYED_NAME}"
    if not files.exists(f"{path}/{DATA_NAME}"):  # LMDB would create an empty environment
        raise ForeignDirectory(
            f"{path} has no {DATA_NAME}: restore it, or remove the folder to continue without "
            "its delayed messages"
        )
    if files.exists(path + ATTEMPT_SUFFIX):
        if files.read_file(path + ATTEMPT_SUFFIX, WORD_BYTES_MAX) == RESCUE.encode():
            return None, f"{path}: the size of a row is damaged"
        verdict = examine(path)
        if verdict.finished and verdict.findings:
            return None, "; ".join(verdict.findings[:3])
        notes += verdict.findings
    _mark(files, path, "open")
    try:
        store = DelayedStore(path, uuid)
    except NewerVersion as error:
        _mark(files, path, "")  # so that no later start takes this for damage
        raise error.at(path) from error
    except Damaged as error:
        return None, str(error)
    used = store.progress.commits
    if used < commits and (newest := _newest_commits(files, path)) > used:
        store.close()
        return None, f"{path}: LMDB uses the state after commit {used}, but commit {newest} exists"
    return store, ""


# Rescue


def finish_rescue(files: Files, directory: str) -> None:
    """Finish a rescue that was interrupted in its last steps."""
    path = f"{directory}/{DELAYED_NAME}"
    if files.exists(path + TEMPORARY_SUFFIX):
        files.remove_tree(path + TEMPORARY_SUFFIX)
    if files.exists(path + READY_SUFFIX):
        _put_in_place(files, directory)


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
    rows whose messages are in the log. On a full disk, this raises `DiskFull`, `StoreFailed` or
    `OSError`. The old environment is unchanged, and the next start continues the rescue.
    """
    path = f"{directory}/{DELAYED_NAME}"
    new = path + RESCUE_SUFFIX
    if not files.exists(new):
        _create(files, directory, new, uuid, now_ns)
    store = DelayedStore(new, uuid)
    try:
        meta = _copy_rows(files, path, store)
        drop_moved(store)
        old = Progress() if meta is None else Progress(meta["commits"], meta["serial"])
        expected = None if meta is None else meta["messages"]
        if noted.commits > old.commits:
            expected = noted.messages
        lost = None if expected is None else max(0, expected - store.summary.messages)
        before = 0 if meta is None else meta["lost"]
        # After a crash, this is repeated. The second call then changes nothing.
        store.adjust(
            max(old.serial, noted.serial),
            before + (lost or 0) - store.summary.lost,
            max(old.commits, noted.commits),
        )
    finally:
        store.close()
    files.sync_folder(new)
    files.rename(new, path + READY_SUFFIX)
    files.sync_folder(directory)
    return _put_in_place(files, directory), lost


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


def _copy_rows(files: Files, path: str, store: DelayedStore) -> DelayedMeta | None:
    """Copy the sound rows of the newest tree. Return the newest meta row that is sound, if any."""
    with contextlib.closing(PageReader(files, f"{path}/{DATA_NAME}")) as reader:
        trees, meta = _newest_trees(reader)
        values = chain.from_iterable(map(reader.values, trees))
        while batch := _batch(values):
            store.restore(batch)
    return meta


def _batch(values: Iterator[bytes]) -> list[bytes]:
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += len(value)
        if size > BATCH_BYTES or len(batch) >= BATCH_ROWS:
            break
    return batch


def _newest_trees(reader: PageReader) -> tuple[list[RowTree], DelayedMeta | None]:
    """Return the tree with the most commits, and its meta row.

    If the page with the meta row of the first tree is damaged, and most other pages are not, return
    both trees, so that neither the last commit nor the other rows of that page are lost.
    """
    metas = [(tree, _meta_of(reader.values(tree))) for tree in reader.trees]
    if not metas:
        return [], None
    first, meta = metas[0]
    newest, newest_meta = max(metas, key=lambda pair: -1 if pair[1] is None else pair[1]["commits"])
    if meta is None:
        readable = sum(1 for _ in reader.values(first))
        if readable == first.entries:
            return [first], None  # only the meta row is damaged, and not the head
        if 2 * readable > first.entries and newest is not first:
            return [first, newest], newest_meta
    return [newest], newest_meta


def _meta_of(values: Iterator[bytes]) -> DelayedMeta | None:
    """Return the meta row, or None if it is missing or damaged. Only producers are behind it."""
    for value in values:
        if key_of(value) == META:
            with contextlib.suppress(Damaged):
                return decode_meta(value)
    return None


def _newest_commits(files: Files, path: str) -> int:
    with contextlib.closing(PageReader(files, f"{path}/{DATA_NAME}")) as reader:
        meta = _newest_trees(reader)[1]
    return 0 if meta is None else meta["commits"]


# Messages that are in the log


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
    count = 0
    while batch := list(islice(keys, MOVED_MAX)):
        store.remove(batch, counts=counts)
        count += len(batch)
    return count


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


# Note, marks and damaged rows


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
            progress = Progress(**documents.loads(line))
            return progress if all(type(number) is int for number in progress) else Progress()
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return Progress()


def _connect(store: DelayedStore, files: Files, directory: str) -> None:
    store.attempting = lambda operation: _mark(files, store.path, operation)
    store.committed = lambda progress: note_progress(files, store.path, progress)
    store.set_aside = lambda key, value, why: _keep_bad(files, directory, key, value, why)


def _mark(files: Files, path: str, operation: str) -> None:
    """Write or remove the file `delayed.attempt`. Errors are ignored.

    If the file cannot be written, the end of the process is noticed one start later, or only by the
    operator.
    """
    name = path + ATTEMPT_SUFFIX
    with contextlib.suppress(OSError):
        if files.exists(name):
            files.remove(name)
        if operation:
            files.write_file(name, operation.encode())


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


# Check


def check_delayed(path: str) -> list[str]:
    """Return the defects of an environment of delayed messages as sentences.

    No process may have it open for writing. Raises `NewerVersion`.
    """
    verdict = examine(path)
    if verdict.findings or not verdict.finished:
        return verdict.findings
    try:
        defects, commits = counted(path)
    except NewerVersion as error:
        raise error.at(path) from error
    noted = noted_progress(Files(), path).commits
    if commits < noted:
        defects.append(f"{path} has {commits} commits, but {noted} were recorded")
    return defects


def counted(path: str) -> tuple[list[str], int]:
    """Compare the meta row with the rows. Return the wrong numbers as sentences, and the commits.

    The caller must have checked that no row is damaged.
    """
    rows = messages = size = total = 0
    with contextlib.closing(Environment(path, readonly=True)) as env, env.reading() as txn:
        meta = read_meta(txn)
        for key, value in txn.cursor():
            if key == META:
                continue
            rows += 1
            total = (total + crc_of(value)) & SUM_MASK
            if key.startswith(ROW):
                block = decode_row(key, value).block
                messages += block.count
                size += block.length
    pairs = {
        "rows": (rows, meta["rows"]),
        "messages": (messages, meta["messages"]),
        "bytes": (size, meta["bytes"]),
        "sum": (total, meta["sum"]),
    }
    return [
        f"{path}: {name}: {counted} found, but {recorded} recorded"
        for name, (counted, recorded) in pairs.items()
        if counted != recorded
    ], meta["commits"]


def uuid_of(path: str) -> bytes:
    """Return the UUID of the topic of an environment without damage."""
    with contextlib.closing(Environment(path, readonly=True)) as env, env.reading() as txn:
        uuid: bytes = read_meta(txn)["uuid"]
        return uuid
