"""LMDB's pages, read without LMDB: a check of an environment, and the rows of a damaged one.

LMDB reads its file through a memory map and believes what it finds there, so a damaged page may end
the process. This module reads each page with `pread`, and checks each position before it uses it.
It never writes.

*Check.* `wrong_pages` compares each page with the pages above it in the tree. LMDB itself finds
such damage only when it frees or fills a page, which is too late. A page begins with its own
number, and LMDB frees the page by this number. If a bit of the number flips, LMDB frees another
page, which is in use. A page also contains the end of its list of nodes. If the list of free pages
seems longer than it is, LMDB may overwrite pages with rows. A read of the rows finds neither
defect.

*Rows.* `PageReader` yields the values of all rows that it can reach, and leaves damaged pages out.
The caller checks each value: in ZSQ's environments it contains its key and a checksum.

*Heads.* Each of the first two pages is a head (LMDB calls it a meta page), which contains the
position of a tree of pages. One head has the tree of the newest commit, the other head has the tree
of the commit before it. LMDB uses no page of these two trees for a new commit, so both are
complete. Heads have no checksums. One flipped bit can make LMDB refuse the whole environment, or
use the older tree. Of a head, `PageReader` needs only the position of the tree.

    page    number (8), unused (2), kind (2), end of the list of nodes (2), begin of the nodes (2),
            list: the position of each node (2)
            overflow page: number of pages (4) instead of both ends, then the bytes of one value
    node    size of the value or the child's number (2), its high half (2),
            flags or the rest of the child's number (2), size of the key (2), key, value
    head    magic, version, address, map size; for the list of free pages: page size, flags, depth,
            five counts; the same fields for the rows; last page; transaction

The byte order is that of the machine, as in LMDB. This module supports only version 1 of LMDB's
format, and only the tables of ZSQ's environments: one table of plain rows, and LMDB's table of free
pages. No process may write to the environment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import add
from typing import Final, NamedTuple

from .files import Files

_PAGE: Final = struct.Struct("=QHHHH")
_OVERFLOW: Final = struct.Struct("=QHHI")
_NODE: Final = struct.Struct("=HHHH")
_NUMBER: Final = struct.Struct("=Q")
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_BYTES: Final = (4_096, 8_192, 16_384, 32_768, 65_536)
_BRANCH, _LEAF, _OVERFLOWS = 1, 2, 4  # kinds of pages
_BIG: Final = 1  # flag of a node whose value is in overflow pages
_NONE: Final = 2**64 - 1
# The indexes of these fields in a head.
_PAGE_SIZE_AT, _ENTRIES_AT, _ROOT_AT, _COMMIT_AT = 4, 18, 19, 21
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024  # a value is at most a block of 8 MiB and its key


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


class RowTree(NamedTuple):
    """The tree of rows in one of the two heads. `entries` is the number of rows in the head."""

    root: int
    entries: int


class PageReader:
    """Reads the rows of an environment that may be damaged. The file is open until `close`."""

    def __init__(self, files: Files, path: str) -> None:
        """Open the file at `path`. Raises `OSError`."""
        self._files = files
        self._fd = files.open_read(path)
        self._size = files.size(self._fd)
        self._page_bytes = 0
        self.trees: list[RowTree] = []
        """The trees of both heads, the one that LMDB uses first. Empty if this is not LMDB's."""
        data = self._read(2 * _PAGE_BYTES[-1], 0)
        for size in _PAGE_BYTES:
            if len(data) < 2 * size:
                break
            heads = [_HEAD.unpack_from(data, at + _PAGE.size) for at in (0, size)]
            if any(head[_PAGE_SIZE_AT] == size for head in heads):
                self._page_bytes = size
                heads.sort(key=lambda head: -int(head[_COMMIT_AT]))
                self.trees = [RowTree(head[_ROOT_AT], head[_ENTRIES_AT]) for head in heads]
                break

    def close(self) -> None:
        self._files.close(self._fd)

    def values(self, tree: RowTree) -> Iterator[bytes]:
        """Yield the value of each row, from the last row to the first one."""
        size = self._page_bytes
        seen: set[int] = set()
        left = [tree.root]
        while left:
            number = left.pop()
            page = b"" if number in seen else self._read(size, number * size)
            seen.add(number)
            if len(page) < size:
                continue
            _, _, kind, end, _ = _PAGE.unpack_from(page)
            count = (min(end, size) - _PAGE.size) // 2
            places = struct.unpack_from(f"={max(0, count)}H", page, _PAGE.size)
            places = tuple(place for place in places if place <= size - _NODE.size)
            if kind & (_BRANCH | _LEAF) == _BRANCH:
                left += [
                    low | high << 16 | rest << 32
                    for low, high, rest, _ in (_NODE.unpack_from(page, place) for place in places)
                ]
            else:
                for place in reversed(places):
                    yield self._value(page, place)

    def _value(self, page: bytes, place: int) -> bytes:
        low, high, flags, key_bytes = _NODE.unpack_from(page, place)
        start = place + _NODE.size + key_bytes
        size = low | high << 16
        if not flags & _BIG:
            return page[start : start + size]
        if start + _NUMBER.size > len(page):
            return b""
        number: int = _NUMBER.unpack_from(page, start)[0]
        return self._read(min(size, VALUE_BYTES_MAX), number * len(page) + _OVERFLOW.size)

    def _read(self, size: int, position: int) -> bytes:
        """Return the bytes, or none if they are not in the file or the disk cannot read them."""
        if position >= self._size:
            return b""
        try:
            return self._files.pread(self._fd, size, position)
        except OSError:
            return b""
