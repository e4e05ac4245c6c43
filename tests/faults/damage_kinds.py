"""Kinds of damage: each makes a damaged tree from a tree. Each case has a name, a path and a few
numbers, so that it can be repeated.

    SPECIMEN|KIND|PATH|NUMBERS...     as text, for a replay
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from zsq.storage.log.log_format import (
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    chunk_name,
    index_name,
    parse_chunk_name,
)

from .damage_lives import log_files
from .damage_specimens import Specimen, Tree

LMDB_FILES: Final = ("state/data.mdb", "delayed/data.mdb")
SEPARATOR: Final = "|"


class Case(NamedTuple):
    """One case of damage. Each kind of damage defines what the numbers mean."""

    specimen: int
    kind: str
    path: str
    numbers: tuple[int, ...] = ()

    def text(self) -> str:
        return SEPARATOR.join((str(self.specimen), self.kind, self.path, *map(str, self.numbers)))

    @classmethod
    def of(cls, text: str) -> Case:
        specimen, kind, path, *numbers = text.split(SEPARATOR)
        return cls(int(specimen), kind, path, tuple(map(int, numbers)))


def in_lmdb(path: str) -> bool:
    """Return True if the file belongs to LMDB. Reading it may crash the process."""
    return path in LMDB_FILES or path.endswith("/")


def changed(tree: Tree, path: str, data: bytes) -> Tree:
    return {**tree, path: data}


def flip(specimen: Specimen, path: str, bit: int) -> Tree:
    data = bytearray(specimen.tree[path])
    data[bit >> 3] ^= 1 << (bit & 7)
    return changed(specimen.tree, path, bytes(data))


def cut(specimen: Specimen, path: str, size: int) -> Tree:
    return changed(specimen.tree, path, specimen.tree[path][:size])


def zero(specimen: Specimen, path: str, start: int, end: int) -> Tree:
    data = specimen.tree[path]
    return changed(
        specimen.tree, path, data[:start] + bytes(min(end, len(data)) - start) + data[end:]
    )


def garbage(specimen: Specimen, path: str, start: int, size: int) -> Tree:
    """Overwrite some bytes with others. The file becomes longer if they reach beyond its end."""
    data = specimen.tree[path]
    return changed(
        specimen.tree,
        path,
        data[:start] + random.Random(start * 8191 + size).randbytes(size) + data[start + size :],
    )


def longer(specimen: Specimen, path: str, size: int) -> Tree:
    """Append zeros."""
    return changed(specimen.tree, path, specimen.tree[path] + bytes(size))


def places(specimen: Specimen, path: str) -> list[tuple[int, int]]:
    """Return (position, end) of every block of a chunk, also of those without messages (marks)."""
    data, at, found = specimen.tree[path], CHUNK_HEADER_BYTES, []
    while data[at : at + 4] == b"ZSQD":
        end = at + int.from_bytes(data[at + 8 : at + 12], "little")
        found.append((at, end))
        at = end
    return found


def swap(specimen: Specimen, path: str, number: int) -> Tree:
    """Exchange a block and the next one."""
    data = specimen.tree[path]
    (start, middle), (_, end) = places(specimen, path)[number : number + 2]
    return changed(
        specimen.tree, path, data[:start] + data[middle:end] + data[start:middle] + data[end:]
    )


def copy(specimen: Specimen, path: str, source: int, target: int) -> Tree:
    """Write a copy of a block over another one, as a misplaced write would do it."""
    data = specimen.tree[path]
    blocks = places(specimen, path)
    start, end = blocks[source]
    at = blocks[target][0]
    return changed(specimen.tree, path, data[:at] + data[start:end] + data[at + end - start :])


def again(specimen: Specimen, path: str, number: int) -> Tree:
    """Append a copy of a block after the last one (and after the footer, if there is one)."""
    start, end = places(specimen, path)[number]
    return changed(specimen.tree, path, specimen.tree[path] + specimen.tree[path][start:end])


def without(specimen: Specimen, path: str, number: int) -> Tree:
    """Cut out a block, and move up what follows."""
    start, end = places(specimen, path)[number]
    return changed(specimen.tree, path, specimen.tree[path][:start] + specimen.tree[path][end:])


def stale(specimen: Specimen, path: str, number: int) -> Tree:
    """Replace a file by an earlier state of it."""
    return changed(specimen.tree, path, specimen.past[number][path])


def gone(specimen: Specimen, path: str) -> Tree:
    return {
        name: data
        for name, data in specimen.tree.items()
        if name != path and not (path.endswith("/") and name.startswith(path))
    }


def double(specimen: Specimen, path: str, base: int) -> Tree:
    """Copy a file to another name that a file of its kind may have."""
    name = chunk_name(base) if parse_chunk_name(path) is not None else index_name(base)
    return changed(specimen.tree, name, specimen.tree[path])


def foreign(specimen: Specimen, path: str, size: int) -> Tree:
    """Replace a file by the same file of another topic. That topic has another uuid, so 16 bytes
    differ wherever the file contains the uuid. The checksums are correct.
    """
    del size
    return changed(specimen.tree, path, _other(specimen).tree[path])


def footer(specimen: Specimen, path: str, number: int) -> Tree:
    """Replace the footer by that of another chunk."""
    chunks = specimen.chunks()
    other = specimen.tree[chunks[number]]
    return changed(specimen.tree, path, specimen.tree[path][:-FOOTER_BYTES] + other[-FOOTER_BYTES:])


def header(specimen: Specimen, path: str, number: int) -> Tree:
    """Replace both copies of the header by that of another chunk."""
    other = specimen.tree[specimen.chunks()[number]]
    return changed(
        specimen.tree, path, other[:CHUNK_HEADER_BYTES] + specimen.tree[path][CHUNK_HEADER_BYTES:]
    )


FOREIGN: dict[int, Specimen] = {}
"""The same specimens with another uuid, by number. A caller that uses `foreign` must fill this
first.
"""


def _other(specimen: Specimen) -> Specimen:
    return FOREIGN[specimen.number]


KINDS: Final[dict[str, Callable[..., Tree]]] = {
    made.__name__: made
    for made in (
        flip,
        cut,
        zero,
        garbage,
        longer,
        swap,
        copy,
        again,
        without,
        stale,
        gone,
        double,
        foreign,
        footer,
        header,
    )
}


def damaged(specimen: Specimen, case: Case) -> Tree:
    return KINDS[case.kind](specimen, case.path, *case.numbers)


def may_refuse(specimen: Specimen, case: Case) -> bool:
    """Return True if the start may be refused until a person has looked: a file belongs to another
    topic, or is missing.
    """
    last = specimen.chunks()[-1]
    if case.kind == "foreign":
        return not case.path.endswith((".index", ".part", "state.snapshot")) and (
            parse_chunk_name(case.path) is None or case.path == last
        )
    if case.kind == "double":
        return (
            case.numbers[0] > (parse_chunk_name(last) or 0) or chunk_name(case.numbers[0]) == last
        )
    if case.kind == "header":
        return case.path == last
    return case.kind == "gone" and case.path == "delayed/data.mdb"


def structured(specimen: Specimen) -> Iterator[Case]:
    """Yield all cases of one specimen that are not flipped bits: many thousands. A caller that
    needs fewer selects some.
    """
    chunks = specimen.chunks()
    bases = [base for path in chunks if (base := parse_chunk_name(path)) is not None]
    for path in log_files(specimen):
        size = len(specimen.tree[path])
        yield from (Case(specimen.number, "cut", path, (to,)) for to in range(size))
        for start in range(0, size, 8):
            yield Case(specimen.number, "zero", path, (start, size))
            yield from (
                Case(specimen.number, "zero", path, (start, start + length))
                for length in (8, 64, 512)
            )
            yield from (
                Case(specimen.number, "garbage", path, (start, length)) for length in (8, 64, 512)
            )
        yield from (
            Case(specimen.number, kind, path, (n,))
            for kind in ("longer",)
            for n in (1, 7, 8, 64, 500, 4096)
        )
        yield from (
            Case(specimen.number, "garbage", path, (size, n)) for n in (1, 7, 8, 64, 500, 4096)
        )
        yield from (
            Case(specimen.number, "stale", path, (n,))
            for n, tree in enumerate(specimen.past)
            if path in tree
        )
        yield from (Case(specimen.number, kind, path, ()) for kind in ("gone",))
    for path in chunks:
        count = len(places(specimen, path))
        yield from (Case(specimen.number, "swap", path, (n,)) for n in range(count - 1))
        yield from (
            Case(specimen.number, kind, path, (n,))
            for kind in ("again", "without")
            for n in range(count)
        )
        yield from (
            Case(specimen.number, "copy", path, (n, to))
            for n in range(count)
            for to in range(count)
            if n != to
        )
        others = [n for n, other in enumerate(chunks) if other != path]
        yield from (
            Case(specimen.number, "footer", path, (n,))
            for n in others
            if specimen.tree[path][-FOOTER_BYTES:][:4] == b"ZSQF"
        )
        yield from (Case(specimen.number, "header", path, (n,)) for n in others)
        for name in (path, path.replace(".chunk", ".index")):
            if name in specimen.tree:
                yield from (
                    Case(specimen.number, "double", name, (base,))
                    for base in _names(bases, parse_chunk_name(path) or 0)
                )
                yield Case(specimen.number, "foreign", name, (0,))
    for path in LMDB_FILES if LMDB_FILES[1] in specimen.tree else LMDB_FILES[:1]:
        size = len(specimen.tree[path])
        yield from (
            Case(specimen.number, "cut", path, (to,))
            for to in (*range(0, 512, 64), *range(512, size, 512), size - 1)
        )
        yield from (
            Case(specimen.number, "zero", path, (start, start + 4096))
            for start in range(0, size, 4096)
        )
        yield from (
            Case(specimen.number, "zero", path, (start, size)) for start in range(0, size, 4096)
        )
        yield from (
            Case(specimen.number, "garbage", path, (start, length))
            for start in range(0, size, 2048)
            for length in (64, 4096)
        )
        yield from (Case(specimen.number, "longer", path, (n,)) for n in (1, 4095, 4096, 65536))
        yield from (
            Case(specimen.number, "stale", path, (n,))
            for n, tree in enumerate(specimen.past)
            if path in tree
        )
        yield from (
            Case(specimen.number, "gone", name) for name in (path, path[: path.index("/") + 1])
        )
        yield Case(specimen.number, "foreign", path, (0,))
    for path in (
        "topic",
        "state.snapshot",
        *(name for name in specimen.tree if name.endswith(".part")),
    ):
        yield Case(specimen.number, "foreign", path, (0,))


def _names(bases: list[int], own: int) -> list[int]:
    """Return offsets that the name of a chunk may contain: the offset of another chunk, one in the
    middle of a chunk, and one after the last chunk.
    """
    return [
        base
        for base in (*bases, bases[-1] + 1, bases[-1] + 10_000, *(base + 1 for base in bases[:-1]))
        if base != own
    ]
