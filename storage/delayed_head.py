"""LMDB's two heads, and whether the right one counts.

The first two pages of an environment each say where a tree of pages is: the newest commit's, and that of the one before. They have no
checksums. One flipped bit in either can make LMDB refuse all of it, though every row is whole; or take the older tree for the newest:
what was committed last is gone then, unnoticed.

*The note.* After each commit DelayedStore says how many there were, and that is noted in `delayed/commits`, not synced: it costs
microseconds, outlives the process, and is never ahead of what LMDB has synced. With the power it may be lost or old; then nothing is
noticed, as before. In the state store's checkpoint it would be seconds behind, and the one commit that can vanish is the last one.

*The mending.* Where LMDB refuses, or fewer commits are found than are noted, each of the two heads is put in place of both, with what is
constant in it made right, and the one with more commits stays. Whether one is good is tried in another process, as it may die of it.
That is done in place and not on a copy: an environment may have gigabytes, and a topic's start two minutes. The two pages as they were
are synced to `delayed/head.bad-N` first, and go back to where they were if nothing comes of it.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from crc32c import crc32c

from . import documents
from .delayed_rows import Progress
from .files import Files
from .log_format import TEMPORARY_SUFFIX

NOTE_NAME: Final = "commits"
NOTE_BYTES_MAX: Final = 4_096
DATA_NAME: Final = "data.mdb"
TRYING_NAME: Final = "head.trying"
BAD_NAME: Final = "head.bad"
HEADS_MAX: Final = 1_000  # set aside in one folder
PAGE_BYTES: Final = (4_096, 8_192, 16_384, 32_768, 65_536)

# Native order, as LMDB writes it. Page: number, unused, flags, unused. Head: magic, version, address, map size; of the list of free
# pages: page size, flags, depth, five counts; of the rows: the same; last page; transaction.
_PAGE: Final = struct.Struct("=QHHI")
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")
_FLAG_OF_HEAD: Final = 8
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_SIZE_AT: Final = 4
_CONSTANT: Final = {0: _MAGIC, 1: _VERSION, 2: 0, 5: 8, 12: 0, 13: 0}  # by place: of an environment with one unnamed table of plain rows
_LAST_PAGE_AT: Final = -2
_TRANSACTION_AT: Final = -1
_U64: Final = 2**64 - 1


def note_progress(files: Files, path: str, progress: Progress) -> None:
    """Best effort."""
    line = json.dumps(progress._asdict()).encode()
    with contextlib.suppress(OSError):
        files.note(f"{path}/{NOTE_NAME}", line + b" %08x\n" % crc32c(line))


def noted_progress(files: Files, path: str) -> Progress:
    """All 0 where there is no good note."""
    try:
        line, _, crc = files.read_note(f"{path}/{NOTE_NAME}", NOTE_BYTES_MAX).rpartition(b" ")
        if crc == b"%08x\n" % crc32c(line):
            found = Progress(**documents.loads(line))
            return found if all(type(one) is int for one in found) else Progress()
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return Progress()


def finish_mending(files: Files, path: str) -> None:
    """After a crash in the middle of one: as it was before."""
    trying = f"{path}/{TRYING_NAME}"
    if files.exists(trying):
        _take_back(files, path, files.read_file(trying, 2 * PAGE_BYTES[-1]))


def mend_head(files: Files, path: str, commits: int, probe: Callable[[str], dict[str, Any]]) -> str:
    """What was done, as a sentence; empty: there was nothing that could be. `probe` gives the meta row of an environment, {} if it cannot.

    `commits`: as many are noted.
    """
    before = _commits(probe(path))
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
        found.append(_commits(probe(path)))
    best = max(found, default=-1)
    if best <= before:
        _take_back(files, path, original)
        return ""
    _write(files, path, variants[found.index(best)])
    bad = next(name for number in range(HEADS_MAX) if not files.exists(name := f"{path}/{BAD_NAME}-{number}"))
    files.rename(trying, bad)
    files.sync_folder(path)
    return f"{path}: one of the two heads of its file was damaged, the other took its place; both as they were: {bad}"


def _take_back(files: Files, path: str, original: bytes) -> None:
    """The pages as they were. Their copy is gone for good before anything is committed: the next start would put it over newer ones."""
    _write(files, path, original)
    files.remove(f"{path}/{TRYING_NAME}")
    files.sync_folder(path)


def _commits(meta: dict[str, Any]) -> int:
    return int(meta.get("commits", -1))


def _read(files: Files, path: str) -> bytes:
    """Both pages; empty where the file is none of LMDB's."""
    data = files.read_file(f"{path}/{DATA_NAME}", 2 * PAGE_BYTES[-1])
    for size in PAGE_BYTES:
        for at in (size, 0):
            if len(data) >= 2 * size and _HEAD.unpack_from(data, at + _PAGE.size)[_PAGE_SIZE_AT] == size:
                return data[: 2 * size]
    return b""


def _variant(original: bytes, index: int, pages: int) -> bytes:
    """This head in place of both. The last page is the file's: one too many is a page not used, one too few is one written over."""
    size = len(original) // 2
    heads = [list(_HEAD.unpack_from(original, at + _PAGE.size)) for at in (0, size)]
    head = heads[index]
    for at, constant in _CONSTANT.items():
        head[at] = constant
    head[_PAGE_SIZE_AT] = size
    head[_LAST_PAGE_AT] = max(pages - 1, 1)
    head[_TRANSACTION_AT] = min(max(one[_TRANSACTION_AT] for one in heads) + 1, _U64 >> 1)
    body = _HEAD.pack(*head)
    return b"".join((_PAGE.pack(number, 0, _FLAG_OF_HEAD, 0) + body).ljust(size, b"\0") for number in (0, 1))


def _write(files: Files, path: str, head: bytes) -> None:
    fd = files.open_append(f"{path}/{DATA_NAME}")
    try:
        files.writev(fd, [head], 0)
        files.sync(fd)
    finally:
        files.close(fd)
