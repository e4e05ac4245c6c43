"""Check of an LMDB environment, in a separate process.

The check needs its own process because a flipped bit may kill LMDB (SIGBUS, SIGSEGV, an abort).

    python -m zsq.storage.state.state_check DIR

The process does three checks. First it compares every row of DIR/data.mdb with its checksum (all
rows of ZSQ have the same envelope, see `state_rows.py`). For a state store, it also compares all
counts and sums. Then it checks LMDB's pages, as described below. Then it commits to a copy, so that
LMDB uses the pages that it considers free. It prints the defects as JSON, a list of sentences. The
exit code is 0 if the list is empty. It changes nothing in DIR.

The copy is next to DIR. The caller removes it, even if the process was killed. The commit is left
out if the disk has no space for a copy, or if the environment is larger than TRIAL_BYTES_MAX.

The page check compares each page with the pages above it in the tree. LMDB itself finds such damage
only when it frees or fills a page, which is too late.

A page begins with its own number, and LMDB frees the page by this number. If a bit of the number
flips, LMDB frees another page, which is in use. A page also contains the end of its list of nodes.
If the list of free pages seems longer than it is, LMDB may overwrite pages with rows. A read of the
rows finds neither defect.

    page    number (8), unused (2), kind (2), end of the list of nodes (2), begin of the nodes (2),
            list: the position of each node (2)
            overflow page: number of pages (4) instead of both ends, then the bytes of one value
    node    size of the value or the child's number (2), its high half (2),
            flags or the rest of the child's number (2), size of the key (2)

No process may have the environment open for writing. The page check supports only version 1 of
LMDB's format, and only the tables of ZSQ's environments: one table of plain rows, and LMDB's table
of free pages.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from operator import add
from typing import Any, Final, NamedTuple

import lmdb

from ..errors import Damaged, ForeignDirectory
from ..files import Files
from .state import StateStore
from .state_rows import META, SMALL_RANGES, unwrap, unwrap_meta
from .state_transaction import rows_of

_PAGE: Final = struct.Struct("=QHHHH")
_OVERFLOW: Final = struct.Struct("=QHHI")
_NODE: Final = struct.Struct("=HHHH")
_NUMBER: Final = struct.Struct("=Q")
# The head of LMDB follows _PAGE. Its fields are those of `_HEAD` in `delayed_recovery.py`.
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_BYTES: Final = (4_096, 8_192, 16_384, 32_768, 65_536)
_BRANCH, _LEAF, _OVERFLOWS = 1, 2, 4  # kinds of pages
_BIG: Final = 1  # flag of a node whose value is in overflow pages
_NONE: Final = 2**64 - 1


class _Tree(NamedTuple):
    """A tree of pages.

    `counts` are the numbers of its branch, leaf and overflow pages and of its entries, from its
    head.
    """

    what: str
    counts: tuple[int, ...]
    root: int


def wrong_pages(files: Files, path: str) -> list[str]:
    """Return a list with a sentence about the first mismatch between pages.

    The list is empty if there is no mismatch. It is also empty if the heads are not those of LMDB's
    version 1, but LMDB then refuses to open the file at `path`.
    """
    fd = files.open_read(path)
    try:
        size, trees = _heads(files, fd)
        for tree in trees:
            found: tuple[int, ...] = (0, 0, 0, 0)
            for counts, wrong in _walk(files, fd, size, tree.root):
                if wrong:
                    return [f"{path}: {tree.what}: {wrong}"]
                found = tuple(map(add, found, counts))
            if found != tree.counts:
                return [
                    (
                        f"{path}: {tree.what}: found pages and entries {found}, but {tree.counts} "
                        "are recorded"
                    )
                ]
        return []
    finally:
        files.close(fd)


def _heads(files: Files, fd: int) -> tuple[int, list[_Tree]]:
    """Return the size of a page, and the trees of the newest commit."""
    data = files.pread(fd, 2 * _PAGE_BYTES[-1], 0)
    if len(data) < 2 * _PAGE_BYTES[0]:
        return 0, []
    size: int = _HEAD.unpack_from(data, _PAGE.size)[4]
    if size not in _PAGE_BYTES or len(data) < 2 * size:
        return 0, []
    heads = [_HEAD.unpack_from(data, at + _PAGE.size) for at in (0, size)]
    if any(head[:2] != (_MAGIC, _VERSION) for head in heads):
        return 0, []
    head = heads[heads[1][-1] > heads[0][-1]]
    return size, [
        _Tree("the free pages", head[7:11], head[11]),
        _Tree("the rows", head[15:19], head[19]),
    ]


def _walk(files: Files, fd: int, size: int, root: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield for each page of the tree the numbers to add to the counts, and a text about its
    defect.

    The text is empty if the page has no defect.
    """
    seen: set[int] = set()
    left = [] if root == _NONE else [root]
    while left:
        number = left.pop()
        data = (
            b""
            if number in seen or number > _NONE // size // 2
            else files.pread(fd, size, number * size)
        )
        seen.add(number)
        if len(data) < size:
            yield (), f"page {number} is used twice, or lies beyond the end of the file"
            return
        own, _, kind, lower, upper = _PAGE.unpack_from(data)
        good = (
            own == number
            and kind & 7 in {_BRANCH, _LEAF}
            and _PAGE.size <= lower <= upper <= size
            and not lower % 2
        )
        places = (
            struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", data, _PAGE.size) if good else ()
        )
        if (
            not good
            or upper != min(places, default=size)
            or max(places, default=0) > size - _NODE.size
        ):
            yield (), f"the header of page {number} is damaged"
            return
        if kind & _BRANCH:
            left += [
                low | high << 16 | rest << 32
                for low, high, rest, _ in (_NODE.unpack_from(data, place) for place in places)
            ]
            yield (1, 0, 0, 0), ""
        else:
            pages = [_overflow_pages(files, fd, data, place) for place in places]
            yield (
                (0, 1, sum(pages), len(places)),
                "an overflow page is damaged" if -1 in pages else "",
            )


def _overflow_pages(files: Files, fd: int, page: bytes, place: int) -> int:
    """Return the number of overflow pages of a node's value, or -1 if they are damaged.

    A value may have more overflow pages than it needs, because it was longer before.
    """
    low, high, flags, key = _NODE.unpack_from(page, place)
    if not flags & _BIG:
        return 0
    at = place + _NODE.size + key
    if at + _NUMBER.size > len(page):
        return -1
    number: int = _NUMBER.unpack_from(page, at)[0]
    size = len(page)
    data = b"" if number > _NONE // size // 2 else files.pread(fd, _OVERFLOW.size, number * size)
    pages = (_OVERFLOW.size - 1 + (low | high << 16)) // size + 1
    if len(data) == _OVERFLOW.size:
        own, _, kind, count = _OVERFLOW.unpack(data)
        if own == number and kind & 7 == _OVERFLOWS and count >= pages:
            return int(count)
    return -1


DATA_NAME: Final = "data.mdb"
COPY_SUFFIX: Final = ".check"
COPY_BYTES: Final = 4 * 1024 * 1024
TRIAL_BYTES_MAX: Final = 256 * 1024 * 1024
CHECK_S: Final = 60.0  # the limit for a small environment; a large one gets more time
CHECK_S_MAX: Final = 90.0  # the limit during a start, because a start must end in time
CHECK_BYTES_S: Final = 20_000_000  # the speed of a slow disk, with two reads of each row
_FINDINGS_MAX: Final = 100
_TRIAL_COMMITS: Final = 4  # LMDB uses pages again two commits after they were freed
_TRIAL_ROWS_MAX: Final = 1_000
_TRIAL_KEY: Final = b"~trial%d"
_TRIAL_BYTES: Final = 3_000


class Verdict(NamedTuple):
    """The result of a check.

    `finished` is True if the check ended, or if the damage killed its process. It is False if the
    check took too long or could not run. Then nothing is known. `note` says which part of the check
    was left out.
    """

    findings: list[str]
    finished: bool
    note: str = ""


def check_environment(path: str, timeout_s: float = CHECK_S) -> list[str]:
    """Return the defects of the environment in the folder `path` as sentences.

    No process may have it open for writing.
    """
    return examine(path, timeout_s, math.inf).findings


def examine(path: str, timeout_s: float = CHECK_S, timeout_s_max: float = CHECK_S_MAX) -> Verdict:
    """Check the environment in a separate process.

    `timeout_s` is the limit for a small environment. It grows with the size, up to `timeout_s_max`.
    """
    size = _size(path)
    try:
        verdict = _examine(
            path, max(timeout_s, min(timeout_s + size / CHECK_BYTES_S, timeout_s_max))
        )
    finally:
        remove_copy(Files(), path)
    if size > TRIAL_BYTES_MAX:
        note = (
            f"{path}: no commit was tried on a copy, because it is {size} bytes; the limit is "
            f"{TRIAL_BYTES_MAX}"
        )
        return verdict._replace(note=note)
    return verdict


def remove_copy(files: Files, path: str) -> None:
    """Remove the copy that a killed process has left. Errors are ignored."""
    with contextlib.suppress(OSError):
        if files.exists(path.rstrip("/") + COPY_SUFFIX):
            files.remove_tree(path.rstrip("/") + COPY_SUFFIX)


def _size(path: str) -> int:
    try:
        return Files().size_of(f"{path}/{DATA_NAME}")
    except OSError:
        return 0


def _examine(path: str, timeout_s: float) -> Verdict:
    command = [sys.executable, "-m", __spec__.name if __spec__ is not None else __name__, path]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(
            [f"{path} could not be checked within {round(timeout_s, 1):g} s"], finished=False
        )
    except OSError as error:
        return Verdict([f"{path} could not be checked: {error}"], finished=False)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        # Another process sends these signals. All other signals come from the damage.
        finished = -done.returncode not in {
            signal.SIGKILL,
            signal.SIGTERM,
            signal.SIGINT,
        }
        return Verdict([f"{path}: LMDB crashed when it read this ({name})"], finished)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return Verdict(
            [f"{path} could not be checked: {done.stderr.decode(errors='replace')[-500:]}"],
            finished=False,
        )
    return Verdict([str(one) for one in found], finished=True)


def findings(path: str) -> list[str]:
    """Run the check in this process. It may kill the process."""
    if not Files().exists(f"{path}/{DATA_NAME}"):
        return [f"{path} has no {DATA_NAME}"]
    found = _read(path) or wrong_pages(Files(), f"{path}/{DATA_NAME}")
    return found if found or _size(path) > TRIAL_BYTES_MAX else _write_to_a_copy(path)


def _read(path: str) -> list[str]:
    found: list[str] = []
    try:
        with (
            contextlib.closing(
                lmdb.open(path, lock=False, readonly=True, create=False, readahead=True)
            ) as env,
            env.begin() as txn,
        ):
            entries = 0
            for key, value in rows_of(txn, b""):
                entries += 1
                with _noting(found):
                    unwrap(key, value)
                if len(found) >= _FINDINGS_MAX:
                    return found
            if entries != txn.stat()["entries"]:
                found.append(
                    f"{path}: {entries} rows can be read, but {txn.stat()['entries']} are recorded"
                )
            is_state = _is_state(txn)
    except lmdb.Error as error:
        return [*found, f"{path}: {error}"]
    if is_state and not found:
        with contextlib.closing(StateStore(path, readonly=True)) as store:
            found += store.walk()
    return found


def _is_state(txn: Any) -> bool:
    try:
        return {"rows", "sum", "applied"} <= unwrap_meta(txn.get(META)).keys()
    except (Damaged, ForeignDirectory, ValueError, KeyError, TypeError):
        return False


def _write_to_a_copy(path: str) -> list[str]:
    files = Files()
    copy = path.rstrip("/") + COPY_SUFFIX
    remove_copy(files, path)
    try:
        files.make_folder(copy)
        _copy(files, f"{path}/{DATA_NAME}", f"{copy}/{DATA_NAME}")
        return [sentence.replace(copy, path) for sentence in _trial(copy)]
    except OSError:
        return []
    finally:
        remove_copy(files, path)


def _copy(files: Files, source: str, target: str) -> None:
    reading, writing = files.open_read(source), files.open_new(target)
    try:
        for position in range(0, files.size(reading), COPY_BYTES):
            files.writev(writing, [files.pread(reading, COPY_BYTES, position)], position)
    finally:
        files.close(reading)
        files.close(writing)


def _trial(path: str) -> list[str]:
    """Commit to the copy, then read all rows again.

    The commits delete rows and write them again, and add other rows and remove them. So LMDB uses
    all its lists of free pages.
    """
    found: list[str] = []
    try:
        with contextlib.closing(
            lmdb.open(path, lock=False, create=False, sync=False, map_size=1 << 40)
        ) as env:
            for turn in range(_TRIAL_COMMITS):
                with env.begin(write=True) as txn:
                    _churn(txn, turn)
    except lmdb.Error as error:
        found.append(f"{path}: a commit to a copy fails: {error}")
    return found or _read(path)


def _churn(txn: Any, turn: int) -> None:
    for begin, end in SMALL_RANGES:
        old = [
            (key, value)
            for _, (key, value) in zip(
                range(_TRIAL_ROWS_MAX), rows_of(txn, begin, end), strict=False
            )
        ]
        for key, _ in old:
            txn.delete(key)
        for key, value in old:
            txn.put(key, value)
    for number in range(_TRIAL_ROWS_MAX):
        key = _TRIAL_KEY % number
        if turn % 2:
            txn.delete(key)
        else:
            txn.put(key, bytes(_TRIAL_BYTES))


@contextlib.contextmanager
def _noting(found: list[str]) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        found.append(str(error))


def main(arguments: list[str]) -> int:
    found = findings(arguments[0])
    sys.stdout.write(json.dumps(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
