"""Checking one chunk file: both copies of its header, every block's two checksums and place, its groups, footer and index.

A finding says what is wrong and, where something can be done about it, how: a function that does it and says what it did. Nothing is
changed by checking. Repairs write a copy of what they change before they change it, or change nothing that can be read:

* a damaged copy of the header is written anew from the good one;
* a damaged block stays where it is; its bytes are kept in a `.bad` file, so that its offsets are a known hole (see `damage.py`);
* a chunk that is not the last and has no footer gets one behind all of its bytes;
* an index is built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..transport.block import IN_GROUP, Header
from .chunk import INDEX_BYTES_MAX, Chunk, open_chunk
from .chunk_file import Stretch
from .damage import CUT_OFF, Bad, keep_bytes
from .errors import Damaged, DiskFull, ForeignDirectory
from .files import Files
from .index import Index
from .log_format import (
    ALIGNMENT,
    CHUNK_COPY_BYTES,
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkFooter,
    chunk_name,
    decode_chunk_header,
    encode_chunk_header,
    encode_footer,
)
from .mark import Mark

DAMAGE: Final = "damage"
NOTE: Final = "note"
RECOVERY: Final = "the broker's own recovery"

Repair = Callable[[], str]


@dataclass(slots=True)
class Finding:
    """`level`: damage, or a note of what is harmless or known. `needs_recovery`: opening the topic repairs it. `repaired`: how it was."""

    level: str
    path: str
    text: str
    first_offset: int = -1
    count: int = 0
    repair: Repair | None = None
    needs_recovery: bool = False
    repaired: str = ""


@dataclass(slots=True)
class Checked:
    """One chunk as found. `end_offset`: behind its last good block, or what its footer says; -1: it cannot be read at all."""

    base_offset: int
    findings: list[Finding] = field(default_factory=list)
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    end_offset: int = -1
    end_position: int = 0
    adopted: list[int] = field(default_factory=list)
    """Chunks that its marks name."""
    groups: list[int] = field(default_factory=list)
    """First offsets of the groups that its marks end."""
    open_group: int = -1
    """First offset of a group at its end whose mark lies in another chunk, if anywhere."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a chunk cannot know of itself. `following`: the next one's first offset, -1 for the last; `synced_end`: -1 if not known."""

    uuid: bytes
    following: int
    synced_end: int
    known: Mapping[tuple[int, int], Bad]
    index_every_bytes: int
    now_ns: int


class ChunkCheck:
    """`run` once."""

    def __init__(self, files: Files, folder: str, base_offset: int, around: Around) -> None:
        self._files = files
        self._folder = folder
        self._around = around
        self._path = f"{folder}/{chunk_name(base_offset)}"
        self._found = Checked(base_offset)
        self._end = 0  # relative offset behind the last good block
        self._good_end = CHUNK_HEADER_BYTES  # its position
        self._time_ns = 0
        self._bad_footer = False
        self._sealed = False
        self._places: dict[int, Header] = {}

    def run(self) -> Checked:
        found = self._found
        try:
            chunk = open_chunk(self._files, self._folder, found.base_offset, self._around.uuid, self._around.index_every_bytes)
        except (Damaged, ForeignDirectory, OSError) as error:
            count = max(0, self._around.following - found.base_offset)
            self._add(DAMAGE, f"cannot be used, with all that is in it: {error}", found.base_offset, count)
            return found
        try:
            found.bytes = self._files.size(chunk.fd)
            self._sealed = chunk.sealed
            self._check_header(chunk)
            self._check_blocks(chunk)
            self._check_end(chunk)
            self._check_index(chunk)
        finally:
            chunk.close()
        return found

    def _add(
        self, level: str, text: str, first_offset: int = -1, count: int = 0, repair: Repair | None = None, needs: bool = False
    ) -> None:
        self._found.findings.append(Finding(level, self._path, text, first_offset, count, repair, needs))

    # Header

    def _check_header(self, chunk: Chunk) -> None:
        if chunk.spare_header:
            text = "both copies of its header are damaged; its footer says the same again"
            self._add(DAMAGE, text, repair=lambda: self._mend_header(chunk))
            return
        data = self._files.pread(chunk.fd, CHUNK_HEADER_BYTES, 0)
        for number, at in enumerate((0, CHUNK_COPY_BYTES), 1):
            try:
                decode_chunk_header(data[at : at + CHUNK_COPY_BYTES])
            except Damaged:
                self._add(DAMAGE, f"copy {number} of its header is damaged; the other one is good", repair=lambda: self._mend_header(chunk))

    def _mend_header(self, chunk: Chunk) -> str:
        self._write(encode_chunk_header(chunk.header), 0)
        return f"both copies of the header written anew from {'the footer' if chunk.spare_header else 'the good one'}"

    def _write(self, data: bytes, position: int) -> None:
        fd = self._files.open_append(self._path)
        try:
            self._files.writev(fd, [data], position)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    # Blocks

    def _check_blocks(self, chunk: Chunk) -> None:
        bad: list[Stretch] = []
        group_at = -1
        for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=True):
            header = stretch.header
            if not stretch.good or header is None:
                bad.append(stretch)
                continue
            self._before(bad, header)
            bad = []
            self._check_place(header, stretch.position)
            if header.flags & IN_GROUP:
                group_at = stretch.position if group_at < 0 else group_at
            elif not header.count:
                self._check_mark(chunk, stretch.position, header)
                group_at = -1
            elif group_at >= 0:
                self._add(DAMAGE, f"the group that begins at {group_at} has no mark; its messages stay, its transaction is not known")
                group_at = -1
            self._end, self._good_end, self._time_ns = header.next_offset, stretch.end, header.time_ns
        if bad:
            self._tail(chunk, bad)
        if group_at >= 0 and self._around.following >= 0:
            self._found.open_group = self._found.base_offset + self._places[group_at].first_offset
        elif group_at >= 0 and not bad:
            self._add(NOTE, f"the group that begins at {group_at} is not finished; the next start cuts it off", needs=True)

    def _check_place(self, header: Header, position: int) -> None:
        base = self._found.base_offset
        if header.first_offset != self._end:
            text = f"the block at {position} has offset {base + header.first_offset}, {base + self._end} was expected"
            self._add(DAMAGE, text, base + self._end, max(0, header.first_offset - self._end))
        if header.time_ns < self._time_ns:
            self._add(DAMAGE, f"the block at {position} is older than the one before it")
        self._found.blocks += 1
        self._found.messages += header.count
        if header.count:
            self._places[position] = header

    def _check_mark(self, chunk: Chunk, position: int, header: Header) -> None:
        try:
            mark: Mark | None = chunk.mark_at(position)
        except ValueError:
            mark = None
        if mark is None or mark.next_offset != self._found.base_offset + header.first_offset:
            self._add(DAMAGE, f"the mark at {position} is not that of the group before it")
            return
        self._found.adopted += [adopted.base_offset for adopted in mark.adopted]
        self._found.groups.append(mark.first_offset)

    def _before(self, bad: list[Stretch], header: Header) -> None:
        """Bad stretches in a row, with a good block behind them."""
        if bad:
            self._bad(bad, max(0, header.first_offset - self._end))
            self._end = max(self._end, header.first_offset)

    def _bad(self, bad: list[Stretch], count: int) -> None:
        base, start, end = self._found.base_offset, bad[0].position, bad[-1].end
        first = base + self._end
        known = self._known(start, end)
        what = f"{len(bad)} damaged blocks from {start} to {end}"
        if known is not None and self._is_noted(first, first + count):
            self._add(NOTE, f"{what}: known, and kept in {known.name}", first, count)
            return
        if known is not None and known.hole.next_offset > first:
            rest = Bad(base, end, 0, known.hole.next_offset, first + count - known.hole.next_offset, "the blocks that followed are missing")
            self._add(DAMAGE, f"{what}: kept in {known.name}, and what followed is missing", first, count, repair=lambda: self._keep(rest))
            return
        why = "its checksum does not agree"
        at_risk = not self._sealed and self._around.following < 0 and self._around.synced_end >= 0 and first >= self._around.synced_end
        if at_risk:  # whether it was ever synced recovery decides, by what the blocks behind it say
            self._add(DAMAGE, what, first, count, needs=True)
            return
        kept = Bad(base, start, end - start, first, count, why, blocks=len(bad))
        self._add(DAMAGE, what, first, count, repair=lambda: self._keep(kept))

    def _known(self, start: int, end: int) -> Bad | None:
        """What was set aside of that, if it is all of it: what lies behind may have rotted since."""
        known = self._around.known.get((self._found.base_offset, start))
        kept = 0 if known is None else known.bytes + -known.bytes % ALIGNMENT  # a footer was written behind a cut end, at the next border
        return known if start + kept >= end else None

    def _is_noted(self, first: int, end: int) -> bool:
        """Whether `.bad` files of this chunk say that all these offsets are lost."""
        for bad in sorted(self._around.known.values(), key=lambda bad: bad.first_offset):
            if bad.base_offset == self._found.base_offset and bad.first_offset <= first:
                first = max(first, bad.hole.next_offset)
        return first >= end

    def _keep(self, bad: Bad) -> str:
        kept = keep_bytes(self._files, self._folder, bad, self._around.now_ns)
        return f"{kept} bytes kept in {bad.name}; its {bad.count} messages are a known hole"

    # The end

    def _tail(self, chunk: Chunk, bad: list[Stretch]) -> None:
        """Bad bytes with nothing good behind them."""
        base = self._found.base_offset
        if chunk.sealed:
            self._bad(bad, max(0, chunk.end_offset - base - self._end))
            self._end = max(self._end, chunk.end_offset - base)
            return
        size = bad[-1].end - bad[0].position
        known = self._known(bad[0].position, bad[-1].end)
        if known is not None and self._around.following < 0:  # recovery leaves it there, and the next block goes into a new chunk
            self._add(NOTE, f"{size} bytes at its end are damaged: known, and kept in {known.name}", base + self._end, known.count)
            self._end += known.count
            return
        if self._around.following >= 0:
            missing = max(0, self._around.following - base - self._end)
            self._bad_footer = size == FOOTER_BYTES and not missing
            if not self._bad_footer:
                self._bad(bad, missing)
                self._end += missing
            return
        lost = self._around.synced_end - base - self._end
        if lost > 0:
            self._add(DAMAGE, f"{size} bytes at its end cannot be read, and were synced", base + self._end, lost, needs=True)
        else:
            text = f"{size} bytes at its end are a write that did not finish, or an acknowledged block that has rotted (nobody can tell)"
            self._add(NOTE, f"{text}; the next start keeps a copy in a `.bad` file and cuts them off", needs=True)

    def _check_end(self, chunk: Chunk) -> None:
        base, found = self._found.base_offset, self._found
        found.end_offset, found.end_position = base + self._end, self._good_end
        if not chunk.sealed:
            if self._around.following >= 0:
                self._add(DAMAGE, "it has no footer, and is not the last", repair=lambda: self._mend_footer(chunk))
            return
        footer = chunk.end_offset - base, chunk.last_time_ns - chunk.header.base_time_ns
        if footer[0] < self._end or footer[1] < self._time_ns:
            self._add(DAMAGE, f"its footer says that it ends at offset {chunk.end_offset}; its last block ends at {found.end_offset}")
        elif footer[0] > self._end:
            self._missing(chunk.end_offset)
        found.end_offset = max(found.end_offset, chunk.end_offset)

    def _missing(self, end_offset: int) -> None:
        """Blocks before the footer are not there at all: cut out, or cut off before it was written."""
        base, first = self._found.base_offset, self._found.end_offset
        text = f"its footer says that it ends at offset {end_offset}: blocks are missing"
        if self._is_noted(first, end_offset):
            self._add(NOTE, f"{text}: known", first, end_offset - first)
            return
        lost = Bad(base, self._good_end, 0, first, end_offset - first, "blocks before its footer are missing")
        self._add(DAMAGE, text, first, lost.count, repair=lambda: self._keep(lost))

    def _mend_footer(self, chunk: Chunk) -> str:
        base, size = self._found.base_offset, self._found.bytes
        said = ""
        position = max(size + -size % ALIGNMENT, CHUNK_HEADER_BYTES)
        if self._bad_footer:
            bad = Bad(base, self._good_end, FOOTER_BYTES, base + self._end, 0, "a footer that could not be read", CUT_OFF)
            said = f" (what stood there is kept in {bad.name})"
            keep_bytes(self._files, self._folder, bad, self._around.now_ns)
            position = self._good_end
        footer = ChunkFooter(max(self._end, self._around.following - base), self._time_ns, position)
        self._write(encode_footer(footer, chunk.header.seed, chunk.header), position)
        return f"a footer written at {position}{said}"

    # Index

    def _check_index(self, chunk: Chunk) -> None:
        if not chunk.sealed:
            return  # nobody trusts that of the last one: recovery cuts it
        if not self._files.exists(chunk.index_path):
            if not chunk.adopted:  # those never had one
                self._add(NOTE, "it has no index; one is made when it is needed", repair=lambda: self._mend_index(chunk))
            return
        data = self._files.read_file(chunk.index_path, INDEX_BYTES_MAX)
        index = Index.decode(data, chunk.header.seed, self._around.index_every_bytes)
        if index is None:
            self._add(DAMAGE, "its index is damaged; it is a cache, and not used", repair=lambda: self._mend_index(chunk))
        elif not self._agree(index):
            self._add(DAMAGE, "its index does not agree with its blocks", repair=lambda: self._mend_index(chunk))

    def _agree(self, index: Index) -> bool:
        """Entries of blocks that are damaged by now say nothing."""
        before = -1
        for entry in index.entries():
            header = self._places.get(entry.position)
            if header is not None and (header.first_offset, header.time_ns) != (entry.offset, entry.time_ns):
                return False
            if entry.position <= before:
                return False
            before = entry.position
        return True

    def _mend_index(self, chunk: Chunk) -> str:
        again = open_chunk(self._files, self._folder, chunk.base_offset, self._around.uuid, self._around.index_every_bytes)
        try:
            wanted = again.load_index(rebuild=True).encode(again.header.seed)
        finally:
            again.close()
        if not self._files.exists(again.index_path) or self._files.read_file(again.index_path, len(wanted) + 1) != wanted:
            raise DiskFull("the index could not be written")  # a log does without it, and does not say so
        return "the index built anew"
