"""Do the pages of an LMDB environment say of themselves what the pages above them say? LMDB finds out when it frees or fills one, too late.

A page begins with its own number, by which LMDB frees it: with a flipped bit there another page is freed that is in use. And with where its
list of nodes ends: a list of free pages that is too long gives away pages that hold rows. Reading rows shows neither.

    page    number (8), unused (2), kind (2), end of the list of nodes (2), begin of the nodes (2), list: where each node is (2)
            overflow: how many pages there are (4) in place of both ends, then the bytes of one value
    node    size of the value or the child's number (2), its high half (2), flags or the rest of that number (2), size of the key (2)

Nobody may have the environment open to write. Only version 1 of LMDB's format is looked at, with what our environments have: one table of
plain rows, and LMDB's own of free pages.
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
_HEAD: Final = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")  # behind _PAGE: as in `delayed_head.py`
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
