"""Is an LMDB environment sound? Asked in a process of its own, because LMDB may die of a flipped bit (SIGBUS, SIGSEGV, an abort).

    python -m zsq.storage.state.state_check DIR

reads every row of DIR/data.mdb against its checksum (all rows of ours have the same envelope, see `state_rows.py`), for a state store
adds up its counts and sums too, looks at what LMDB's pages say of themselves (`state_check.py`), and then commits to a copy of it,
which makes LMDB use the pages that it holds for free. What is wrong
comes out as JSON, a list of sentences; the exit code is 0 if there is none. Nothing in DIR is changed.

The copy lies beside DIR; who asked removes it, however the process ended. Where there is no room for one, or the environment is larger than
TRIAL_BYTES_MAX, the commit is not tried.

Do the pages of an LMDB environment say of themselves what the pages above them say? LMDB finds out when it frees or fills one, too late.

A page begins with its own number, by which LMDB frees it: with a flipped bit there another page is freed that is in use. And with where its
list of nodes ends: a list of free pages that is too long gives away pages that hold rows. Reading rows shows neither.

    page    number (8), unused (2), kind (2), end of the list of nodes (2), begin of the nodes (2), list: where each node is (2)
            overflow: how many pages there are (4) in place of both ends, then the bytes of one value
    node    size of the value or the child's number (2), its high half (2), flags or the rest of that number (2), size of the key (2)

Nobody may have the environment open to write. Only version 1 of LMDB's format is looked at, with what our environments have: one table of
plain rows, and LMDB's own of free pages.
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
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")  # behind _PAGE: as in `delayed_recovery.py`
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_BYTES: Final = (4_096, 8_192, 16_384, 32_768, 65_536)
_BRANCH, _LEAF, _OVERFLOWS = 1, 2, 4  # kinds of pages
_BIG: Final = 1  # flag of a node whose value lies in overflow pages
_NONE: Final = 2**64 - 1


class _Tree(NamedTuple):
    """`counts`: pages that are branches, leaves, overflow; entries; as its head has them."""

    what: str
    counts: tuple[int, ...]
    root: int


def wrong_pages(files: Files, path: str) -> list[str]:
    """The first thing that does not agree, as a sentence; empty: there is none, or LMDB will not open the file at `path` at all."""
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
                return [f"{path}: {tree.what}: pages and entries are {found}, {tree.counts} are counted"]
        return []
    finally:
        files.close(fd)


def _heads(files: Files, fd: int) -> tuple[int, list[_Tree]]:
    """The size of a page, and the trees of the newest commit."""
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
    return size, [_Tree("the free pages", head[7:11], head[11]), _Tree("the rows", head[15:19], head[19])]


def _walk(files: Files, fd: int, size: int, root: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """Of each page below `root`: what it adds to the counts, and what is wrong."""
    seen: set[int] = set()
    left = [] if root == _NONE else [root]
    while left:
        number = left.pop()
        data = b"" if number in seen or number > _NONE // size // 2 else files.pread(fd, size, number * size)
        seen.add(number)
        if len(data) < size:
            yield (), f"page {number} is named twice, or lies behind the end"
            return
        own, _, kind, lower, upper = _PAGE.unpack_from(data)
        good = own == number and kind & 7 in {_BRANCH, _LEAF} and _PAGE.size <= lower <= upper <= size and not lower % 2
        places = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", data, _PAGE.size) if good else ()
        if not good or upper != min(places, default=size) or max(places, default=0) > size - _NODE.size:
            yield (), f"the head of page {number} is damaged"
            return
        if kind & _BRANCH:
            left += [low | high << 16 | rest << 32 for low, high, rest, _ in (_NODE.unpack_from(data, place) for place in places)]
            yield (1, 0, 0, 0), ""
        else:
            pages = [_overflow_pages(files, fd, data, place) for place in places]
            yield (0, 1, sum(pages), len(places)), "an overflow page is damaged" if -1 in pages else ""


def _overflow_pages(files: Files, fd: int, page: bytes, place: int) -> int:
    """How many a node's value has; -1: they are not as they should be. There may be more than it needs: it was longer once."""
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
CHECK_S: Final = 60.0  # and so much more as it takes to read it
CHECK_S_MAX: Final = 90.0  # of a start, which must come to its end
CHECK_BYTES_S: Final = 20_000_000  # a slow disk; each row is looked at twice
_FINDINGS_MAX: Final = 100
_TRIAL_COMMITS: Final = 4  # LMDB uses pages again that were freed two commits before
_TRIAL_ROWS_MAX: Final = 1_000
_TRIAL_KEY: Final = b"~trial%d"
_TRIAL_BYTES: Final = 3_000


class Verdict(NamedTuple):
    """`finished`: the check came to its end, or to the death of its process; else the time was not enough, and nothing is known.

    `note`: what was left out.
    """

    findings: list[str]
    finished: bool
    note: str = ""


def check_environment(path: str, timeout_s: float = CHECK_S) -> list[str]:
    """What is wrong with the environment in the folder `path`, as sentences; empty: it is sound. Nobody may have it open to write."""
    return examine(path, timeout_s, math.inf).findings


def examine(path: str, timeout_s: float = CHECK_S, timeout_s_max: float = CHECK_S_MAX) -> Verdict:
    """`timeout_s` is for a small one: with its size grows the time that it may take, up to `timeout_s_max`."""
    size = _size(path)
    try:
        verdict = _examine(path, max(timeout_s, min(timeout_s + size / CHECK_BYTES_S, timeout_s_max)))
    finally:
        remove_copy(Files(), path)
    if size > TRIAL_BYTES_MAX:
        note = f"{path}: a commit was not tried on a copy, as it has {size} bytes, more than {TRIAL_BYTES_MAX}"
        return verdict._replace(note=note)
    return verdict


def remove_copy(files: Files, path: str) -> None:
    """What a process that died, or was ended, has left. Best effort."""
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
        return Verdict([f"{path} could not be checked within {round(timeout_s, 1):g} s"], finished=False)
    except OSError as error:
        return Verdict([f"{path} could not be checked: {error}"], finished=False)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        finished = -done.returncode not in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}  # somebody else's doing
        return Verdict([f"{path}: LMDB died of it ({name})"], finished)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return Verdict([f"{path} could not be checked: {done.stderr.decode(errors='replace')[-500:]}"], finished=False)
    return Verdict([str(one) for one in found], finished=True)


def findings(path: str) -> list[str]:
    """The check itself. It may kill the process that calls it."""
    if not Files().exists(f"{path}/{DATA_NAME}"):
        return [f"{path} holds no {DATA_NAME}"]
    found = _read(path) or wrong_pages(Files(), f"{path}/{DATA_NAME}")
    return found if found or _size(path) > TRIAL_BYTES_MAX else _write_to_a_copy(path)


def _read(path: str) -> list[str]:
    found: list[str] = []
    try:
        with contextlib.closing(lmdb.open(path, lock=False, readonly=True, create=False, readahead=True)) as env, env.begin() as txn:
            entries = 0
            for key, value in rows_of(txn, b""):
                entries += 1
                with _noting(found):
                    unwrap(key, value)
                if len(found) >= _FINDINGS_MAX:
                    return found
            if entries != txn.stat()["entries"]:
                found.append(f"{path}: {entries} rows can be read, {txn.stat()['entries']} are counted")
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
    """Write rows anew, make some, remove them: so that all of LMDB's lists of free pages are used; then read it all again."""
    found: list[str] = []
    try:
        with contextlib.closing(lmdb.open(path, lock=False, create=False, sync=False, map_size=1 << 40)) as env:
            for turn in range(_TRIAL_COMMITS):
                with env.begin(write=True) as txn:
                    _churn(txn, turn)
    except lmdb.Error as error:
        found.append(f"{path}: a commit fails: {error}")
    return found or _read(path)


def _churn(txn: Any, turn: int) -> None:
    for begin, end in SMALL_RANGES:
        old = [(key, value) for _, (key, value) in zip(range(_TRIAL_ROWS_MAX), rows_of(txn, begin, end), strict=False)]
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
