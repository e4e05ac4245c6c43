"""Fsck: checks all files of a closed topic, and that they agree with each other.

It can also repair most defects. A finding has one of two levels. *Damage* should not exist. A
*note* is harmless, or is damage that an earlier repair has recorded. Recovery repairs some problems
at each start: an unfinished write, or a state store that must be rebuilt from its snapshot and the
log. Fsck has no code to repair these. It opens the topic as the broker does, and closes it.

LMDB may kill the process that opens a damaged environment, so another process checks the
environments (`state_check.py`).

For each chunk file, fsck checks both copies of the header, the two checksums and the position of
every block, the groups, the footer and the index.

A finding describes a defect. If the defect can be repaired, the finding has a function that repairs
it and returns a sentence about the repair. The check itself changes nothing. A repair either first
copies the bytes that it changes, or changes no readable bytes:

* A damaged copy of the header is rewritten from the good one.
* A damaged block stays at its position. Its bytes are kept in a `.bad` file, so that its offsets
  are a known hole (see `damage.py`).
* A chunk that is not the last and has no footer gets a footer after all its bytes.
* An index is rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...transport.block.block import IN_GROUP, Header
from ...transport.checksum import crc32c
from ..dedupe.id_check import check_ids
from ..delayed.delayed_recovery import MADE_SUFFIX, READY_SUFFIX, check_delayed, uuid_of
from ..directory.store import StoreOptions, TopicIdentity, check_identity, open_store
from ..directory.versions import refuse_newer
from ..errors import Damaged, DiskFull, ForeignDirectory, NewerVersion, StorageError
from ..files import TEMPORARY_SUFFIX, Files
from ..log.chunk import INDEX_BYTES_MAX, ArchivedChunk, Chunk, Stretch, open_chunk, read_footer
from ..log.damage import (
    BAD_HEAD_BYTES,
    CUT_OFF,
    DAMAGED,
    GAP,
    Bad,
    Hole,
    decode_bad_head,
    gaps_text,
    keep_bytes,
)
from ..log.index import INDEX_EVERY_BYTES, Index
from ..log.log_format import (
    ALIGNMENT,
    BACKUP_NAME,
    BAD_SUFFIX,
    CHUNK_COPY_BYTES,
    CHUNK_HEADER_BYTES,
    DELAYED_NAME,
    FOOTER_BYTES,
    IDENTITY_NAME,
    LOCK_NAME,
    PART_SUFFIX,
    STAGING_NAME,
    STATE_NAME,
    ChunkFooter,
    chunk_name,
    decode_chunk_header,
    encode_chunk_header,
    encode_footer,
    parse_bad_name,
    parse_chunk_name,
    part_name,
)
from ..log.survey import READABLE_AGAIN
from ..log.transactions import Mark
from ..state.snapshot import check_snapshot, commits_of_snapshot
from ..state.state import StateStore
from ..state.state_check import check_environment

DAMAGE: Final = "damage"
NOTE: Final = "note"
RECOVERY: Final = "the broker's own recovery"

Repair = Callable[[], str]


@dataclass(slots=True)
class Finding:
    """A result of the check.

    `level` is damage, or note (harmless or known). If `needs_recovery` is True, recovery repairs
    the defect when the topic is opened. `repaired` is a sentence about the repair, or "".
    """

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
    """The results of the check of one chunk.

    `end_offset` is the end of its last good block, or the end in its footer. It is -1 if the chunk
    cannot be read at all.
    """

    base_offset: int
    findings: list[Finding] = field(default_factory=list)
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    end_offset: int = -1
    end_position: int = 0
    adopted: list[int] = field(default_factory=list)
    """The first offsets of the adopted chunks that the marks in this chunk name."""
    groups: list[int] = field(default_factory=list)
    """The first offsets of the groups whose marks are in this chunk."""
    open_group: int = -1
    """The first offset of a group at the chunk's end that has no mark in this chunk, or -1."""


@dataclass(frozen=True, slots=True)
class Around:
    """Facts about the topic that a chunk does not contain.

    `following` is the first offset of the next chunk, or -1 for the last chunk. `synced_end` is -1
    if it is not known.
    """

    uuid: bytes
    following: int
    synced_end: int
    known: Mapping[tuple[int, int], Bad]
    index_every_bytes: int
    now_ns: int


class ChunkCheck:
    """The check of one chunk. Call `run` once."""

    def __init__(self, files: Files, folder: str, base_offset: int, around: Around) -> None:
        self._files = files
        self._folder = folder
        self._around = around
        self._path = f"{folder}/{chunk_name(base_offset)}"
        self._found = Checked(base_offset)
        self._end = 0  # the relative offset after the last good block
        self._good_end = CHUNK_HEADER_BYTES  # the position after the last good block
        self._time_ns = 0
        self._bad_footer = False
        self._sealed = False
        self._places: dict[int, Header] = {}

    def run(self) -> Checked:
        found = self._found
        try:
            chunk = open_chunk(
                self._files,
                self._folder,
                found.base_offset,
                self._around.uuid,
                self._around.index_every_bytes,
            )
        except (Damaged, ForeignDirectory, OSError) as error:
            count = max(0, self._around.following - found.base_offset)
            self._add(
                DAMAGE,
                f"the chunk and all its messages cannot be used: {error}",
                found.base_offset,
                count,
            )
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
        self,
        level: str,
        text: str,
        first_offset: int = -1,
        count: int = 0,
        repair: Repair | None = None,
        needs: bool = False,
    ) -> None:
        self._found.findings.append(
            Finding(level, self._path, text, first_offset, count, repair, needs)
        )

    # Header

    def _check_header(self, chunk: Chunk) -> None:
        if chunk.spare_header:
            text = "both copies of its header are damaged; its footer holds another copy"
            self._add(DAMAGE, text, repair=lambda: self._mend_header(chunk))
            return
        data = self._files.pread(chunk.fd, CHUNK_HEADER_BYTES, 0)
        for number, at in enumerate((0, CHUNK_COPY_BYTES), 1):
            try:
                decode_chunk_header(data[at : at + CHUNK_COPY_BYTES])
            except Damaged:
                text = f"copy {number} of its header is damaged; the other copy is intact"
                self._add(DAMAGE, text, repair=lambda: self._mend_header(chunk))

    def _mend_header(self, chunk: Chunk) -> str:
        self._write(encode_chunk_header(chunk.header), 0)
        return (
            "both copies of the header were rewritten from "
            f"{'the footer' if chunk.spare_header else 'the intact one'}"
        )

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
                text = f"the group that begins at position {group_at} has no mark"
                self._add(
                    DAMAGE, f"{text}; its messages are kept, but its transaction is not known"
                )
                group_at = -1
            self._end, self._good_end, self._time_ns = (
                header.next_offset,
                stretch.end,
                header.time_ns,
            )
        if bad:
            self._tail(chunk, bad)
        if group_at >= 0 and self._around.following >= 0:
            self._found.open_group = self._found.base_offset + self._places[group_at].first_offset
        elif group_at >= 0 and not bad:
            self._add(
                NOTE,
                (
                    f"the group that begins at position {group_at} is not finished; the next start "
                    "cuts it off"
                ),
                needs=True,
            )

    def _check_place(self, header: Header, position: int) -> None:
        base = self._found.base_offset
        if header.first_offset != self._end:
            text = (
                f"the block at position {position} has offset {base + header.first_offset} "
                f"instead of {base + self._end}"
            )
            self._add(DAMAGE, text, base + self._end, max(0, header.first_offset - self._end))
        if header.time_ns < self._time_ns:
            self._add(
                DAMAGE,
                f"the block at position {position} has an earlier time than the block before it",
            )
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
            self._add(
                DAMAGE, f"the mark at position {position} does not belong to the group before it"
            )
            return
        self._found.adopted += [adopted.base_offset for adopted in mark.adopted]
        self._found.groups.append(mark.first_offset)

    def _before(self, bad: list[Stretch], header: Header) -> None:
        """Report consecutive bad stretches before a good block."""
        if bad:
            self._bad(bad, max(0, header.first_offset - self._end))
            self._end = max(self._end, header.first_offset)

    def _bad(self, bad: list[Stretch], count: int) -> None:
        base, start, end = self._found.base_offset, bad[0].position, bad[-1].end
        first = base + self._end
        known = self._known(start, end)
        what = f"{len(bad)} damaged blocks from position {start} to {end}"
        if known is not None and self._is_noted(first, first + count):
            self._add(NOTE, f"{what}: known, and kept in {known.name}", first, count)
            return
        if known is not None and known.hole.next_offset > first:
            rest = Bad(
                base,
                end,
                0,
                known.hole.next_offset,
                first + count - known.hole.next_offset,
                "the blocks that followed are missing",
            )
            self._add(
                DAMAGE,
                f"{what}: kept in {known.name}, but the blocks that followed are missing",
                first,
                count,
                repair=lambda: self._keep(rest),
            )
            return
        why = "its checksum does not match"
        at_risk = (
            not self._sealed
            and self._around.following < 0
            and self._around.synced_end >= 0
            and first >= self._around.synced_end
        )
        # Recovery decides from the blocks after these bytes whether the bytes were synced.
        if at_risk:
            self._add(DAMAGE, what, first, count, needs=True)
            return
        kept = Bad(base, start, end - start, first, count, why, blocks=len(bad))
        self._add(DAMAGE, what, first, count, repair=lambda: self._keep(kept))

    def _known(self, start: int, end: int) -> Bad | None:
        """Return the known damage at `start`, if it reaches `end`.

        Otherwise return None, because the bytes after the known damage may be new damage.
        """
        known = self._around.known.get((self._found.base_offset, start))
        # A repair may have written a footer after a cut end, at the next multiple of 8 bytes.
        kept = 0 if known is None else known.bytes + -known.bytes % ALIGNMENT
        return known if start + kept >= end else None

    def _is_noted(self, first: int, end: int) -> bool:
        """Return True if the `.bad` files of this chunk contain all these offsets."""
        for bad in sorted(self._around.known.values(), key=lambda bad: bad.first_offset):
            if bad.base_offset == self._found.base_offset and bad.first_offset <= first:
                first = max(first, bad.hole.next_offset)
        return first >= end

    def _keep(self, bad: Bad) -> str:
        kept = keep_bytes(self._files, self._folder, bad, self._around.now_ns)
        return (
            f"{kept} bytes were kept in {bad.name}; its {bad.count} messages are recorded as lost"
        )

    # The end

    def _tail(self, chunk: Chunk, bad: list[Stretch]) -> None:
        """Report bad bytes at the end of the chunk."""
        base = self._found.base_offset
        if chunk.sealed:
            self._bad(bad, max(0, chunk.end_offset - base - self._end))
            self._end = max(self._end, chunk.end_offset - base)
            return
        size = bad[-1].end - bad[0].position
        known = self._known(bad[0].position, bad[-1].end)
        if known is not None and self._around.following < 0:
            # Recovery leaves these bytes in the chunk, and the next block goes into a new chunk.
            self._add(
                NOTE,
                f"{size} bytes at its end are damaged: known, and kept in {known.name}",
                base + self._end,
                known.count,
            )
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
            self._add(
                DAMAGE,
                f"{size} bytes at its end cannot be read, although they were synced",
                base + self._end,
                lost,
                needs=True,
            )
        else:
            text = (
                f"{size} bytes at its end are an unfinished write, or an acknowledged block "
                "that was damaged later (it is not known which)"
            )
            self._add(
                NOTE,
                f"{text}; the next start keeps a copy in a `.bad` file and cuts them off",
                needs=True,
            )

    def _check_end(self, chunk: Chunk) -> None:
        base, found = self._found.base_offset, self._found
        found.end_offset, found.end_position = base + self._end, self._good_end
        if not chunk.sealed:
            if self._around.following >= 0:
                self._add(
                    DAMAGE,
                    "it has no footer, but it is not the last chunk",
                    repair=lambda: self._mend_footer(chunk),
                )
            return
        footer = chunk.end_offset - base, chunk.last_time_ns - chunk.header.base_time_ns
        if footer[0] < self._end or footer[1] < self._time_ns:
            self._add(
                DAMAGE,
                (
                    f"its footer says that it ends at offset {chunk.end_offset}; its last block "
                    f"ends at {found.end_offset}"
                ),
            )
        elif footer[0] > self._end:
            self._missing(chunk.end_offset)
        found.end_offset = max(found.end_offset, chunk.end_offset)

    def _missing(self, end_offset: int) -> None:
        """Report blocks that are missing before the footer.

        They were lost from the file, or were cut off before the footer was written.
        """
        base, first = self._found.base_offset, self._found.end_offset
        text = f"its footer says that it ends at offset {end_offset}: blocks are missing"
        if self._is_noted(first, end_offset):
            self._add(NOTE, f"{text}: known", first, end_offset - first)
            return
        lost = Bad(
            base,
            self._good_end,
            0,
            first,
            end_offset - first,
            "blocks before its footer are missing",
        )
        self._add(DAMAGE, text, first, lost.count, repair=lambda: self._keep(lost))

    def _mend_footer(self, chunk: Chunk) -> str:
        base, size = self._found.base_offset, self._found.bytes
        said = ""
        position = max(size + -size % ALIGNMENT, CHUNK_HEADER_BYTES)
        if self._bad_footer:
            bad = Bad(
                base,
                self._good_end,
                FOOTER_BYTES,
                base + self._end,
                0,
                "a footer that could not be read",
                CUT_OFF,
            )
            said = f" (the damaged one is kept in {bad.name})"
            keep_bytes(self._files, self._folder, bad, self._around.now_ns)
            position = self._good_end
        footer = ChunkFooter(max(self._end, self._around.following - base), self._time_ns, position)
        self._write(encode_footer(footer, chunk.header.seed, chunk.header), position)
        return f"a footer was written at position {position}{said}"

    # Index

    def _check_index(self, chunk: Chunk) -> None:
        if not chunk.sealed:
            return  # recovery corrects the index of the last chunk, so this does not check it
        if not self._files.exists(chunk.index_path):
            if not chunk.adopted:  # an adopted chunk may never have had an index
                self._add(
                    NOTE,
                    "it has no index; zsq creates one when it needs it",
                    repair=lambda: self._mend_index(chunk),
                )
            return
        data = self._files.read_file(chunk.index_path, INDEX_BYTES_MAX)
        index = Index.decode(data, chunk.header.seed, self._around.index_every_bytes)
        if index is None:
            self._add(
                DAMAGE,
                "its index is damaged and is not used; it is only a cache",
                repair=lambda: self._mend_index(chunk),
            )
        elif not self._agree(index):
            self._add(
                DAMAGE,
                "its index does not match its blocks",
                repair=lambda: self._mend_index(chunk),
            )

    def _agree(self, index: Index) -> bool:
        """Return True if the index agrees with the blocks.

        This does not compare entries of damaged blocks.
        """
        before = -1
        for entry in index.entries():
            header = self._places.get(entry.position)
            if header is not None and (header.first_offset, header.time_ns) != (
                entry.offset,
                entry.time_ns,
            ):
                return False
            if entry.position <= before:
                return False
            before = entry.position
        return True

    def _mend_index(self, chunk: Chunk) -> str:
        again = open_chunk(
            self._files,
            self._folder,
            chunk.base_offset,
            self._around.uuid,
            self._around.index_every_bytes,
        )
        try:
            wanted = again.load_index(rebuild=True).encode(again.header.seed)
        finally:
            again.close()
        if (
            not self._files.exists(again.index_path)
            or self._files.read_file(again.index_path, len(wanted) + 1) != wanted
        ):
            # `load_index` raises no error if it cannot write the index, because the log works
            # without it.
            raise DiskFull("the index could not be written")
        return "the index was rebuilt"


PIECE_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class TopicReport:
    """The findings in one topic's directory."""

    name: str
    directory: str
    findings: list[Finding] = field(default_factory=list)
    chunks: int = 0
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    start: int = 0
    end: int = 0

    @property
    def damaged(self) -> list[Finding]:
        """The damage that was not repaired."""
        return [
            finding for finding in self.findings if finding.level == DAMAGE and not finding.repaired
        ]


def check_topic(
    files: Files, directory: str, identity: TopicIdentity, now_ns: int, *, repair: bool = False
) -> TopicReport:
    """Check the directory of a topic, and repair it if `repair` is set.

    Raises `Locked` if a process has the directory open, and `OSError` if it cannot be read at all.
    """
    lock = files.lock(f"{directory}/{LOCK_NAME}", write=repair)
    try:
        try:
            refuse_newer(files, directory)
            report = _TopicCheck(files, directory, identity, now_ns).run()
        except NewerVersion as error:
            # What else is wrong may be so only for a reader that does not know the new format.
            why = f"{error.text}; nothing else of this topic is checked or repaired"
            finding = Finding(DAMAGE, error.path or directory, why)
            return TopicReport(identity.name, directory, [finding])
        if repair:
            for finding in report.findings:
                _mend(finding)
    finally:
        if lock >= 0:
            files.close(lock)
    if repair and any(finding.needs_recovery for finding in report.findings):
        _recover(files, directory, identity, report)
    return report


def _mend(finding: Finding) -> None:
    if finding.repair is not None:
        try:
            finding.repaired = finding.repair()
        except (StorageError, OSError) as error:
            finding.text += f" (it could not be repaired: {error})"


def _recover(files: Files, directory: str, identity: TopicIdentity, report: TopicReport) -> None:
    try:
        store = open_store(files, directory, StoreOptions(), identity)
        try:
            said = "; ".join([store.report.sentence(), *store.report.alarms, *store.report.notes])
        finally:
            store.close()
    except (StorageError, OSError) as error:
        report.findings.append(Finding(DAMAGE, directory, f"it cannot be opened: {error}"))
        return
    said = f"by {RECOVERY}: {said.replace(f'{directory}/', '')}"
    for finding in report.findings:
        if finding.needs_recovery:
            finding.repaired, said = said, f"by {RECOVERY}, as reported above"


class _TopicCheck:
    def __init__(self, files: Files, directory: str, identity: TopicIdentity, now_ns: int) -> None:
        self._files = files
        self._directory = directory
        self._identity = identity
        self._now_ns = now_ns
        self._report = TopicReport(identity.name, directory)
        self._names = files.list(directory)
        self._known: dict[tuple[int, int], Bad] = {}
        self._staged: dict[str, tuple[int, int, int]] = {}
        """For each file of a sealed stage: end of its blocks, bytes of its footer, and its seed."""
        self._synced_end = -1
        self._start = identity.base_offset
        self._archived: dict[int, ArchivedChunk] = {}
        self._gaps: list[Hole] = []

    def run(self) -> TopicReport:
        self._check_identity()
        self._check_environments()
        self._check_bad_files()
        self._check_log()
        self._check_holes()
        self._check_staging()
        for name, text, may_be_torn in check_ids(
            self._files, self._directory, self._identity.uuid_bytes
        ):
            cost = "the next start reads its ids from the log, as far as the log goes back"
            self._add(NOTE if may_be_torn else DAMAGE, name, f"{text}; {cost}")
        for name in self._names:
            if name.removesuffix(TEMPORARY_SUFFIX) == BACKUP_NAME:
                self._add(NOTE, name, "a backup left it behind; the next start removes it")
            elif name.endswith(TEMPORARY_SUFFIX):
                self._add(NOTE, name, "an unfinished file; it is not used")
        return self._report

    def _add(
        self, level: str, name: str, text: str, first_offset: int = -1, count: int = 0
    ) -> Finding:
        found = Finding(level, f"{self._directory}/{name}", text, first_offset, count)
        self._report.findings.append(found)
        return found

    def _check_identity(self) -> None:
        try:
            if not check_identity(self._files, self._directory, self._identity):
                self._add(DAMAGE, IDENTITY_NAME, "missing or damaged").needs_recovery = True
        except NewerVersion:
            raise
        except StorageError as error:
            self._add(DAMAGE, IDENTITY_NAME, str(error))

    def _check_environments(self) -> None:
        sound = True
        for name in (STATE_NAME, DELAYED_NAME):
            if name not in self._names:
                if name == STATE_NAME:
                    self._add(DAMAGE, name, "the state store is missing").needs_recovery = True
                    sound = False
                elif (
                    f"{name}{MADE_SUFFIX}" in self._names
                    and f"{name}{READY_SUFFIX}" not in self._names
                ):
                    self._add(
                        DAMAGE, name, "it is missing, with all delayed messages that were in it"
                    ).needs_recovery = True
                continue
            check = check_delayed if name == DELAYED_NAME else check_environment
            path = f"{self._directory}/{name}"
            for text in check(path):
                self._add(
                    DAMAGE, name, text.removeprefix(path).removeprefix(":").strip()
                ).needs_recovery = True
                sound = sound and name != STATE_NAME
            if name == DELAYED_NAME and not any(
                finding.path == path for finding in self._report.findings
            ):
                self._check_owner(path)
        for text in check_snapshot(self._files, self._directory):
            self._add(DAMAGE, "", text).needs_recovery = True
        if sound:
            self._read_state()

    def _check_owner(self, path: str) -> None:
        try:
            if uuid_of(path) != self._identity.uuid_bytes:
                self._add(DAMAGE, DELAYED_NAME, "it holds the delayed messages of another topic")
        except StorageError as error:
            self._add(DAMAGE, DELAYED_NAME, str(error))

    def _read_state(self) -> None:
        """Read the synced end, the start and the staged files from the state store.

        Call this only if no damage of the state store was found.
        """
        try:
            state = StateStore(f"{self._directory}/{STATE_NAME}", readonly=True)
            try:
                table = state.load()
                uuid = state.uuid()
            finally:
                state.close()
        except NewerVersion as error:
            raise error.at(f"{self._directory}/{STATE_NAME}") from error
        except StorageError as error:
            self._add(DAMAGE, STATE_NAME, str(error)).needs_recovery = True
            return
        if uuid != self._identity.uuid_bytes:
            self._add(DAMAGE, STATE_NAME, f"it belongs to another topic (uuid {uuid.hex()})")
            return
        if table.commits < (known := commits_of_snapshot(self._files, self._directory)):
            text = (
                f"it has {table.commits} commits, but its snapshot has {known}: it is an older "
                "state store"
            )
            self._add(DAMAGE, STATE_NAME, text).needs_recovery = True
            return
        self._synced_end = table.synced_end
        self._start = max(self._start, table.start)
        self._archived = table.archived
        for stage, row in table.stages.items():
            for file in row.files:
                self._staged[part_name(stage, file.number)] = (
                    file.data_end,
                    FOOTER_BYTES if row.final else 0,
                    file.seed,
                )

    def _check_bad_files(self) -> None:
        last_gap = ""
        for name in self._names:
            if parse_chunk_name(name.removesuffix(BAD_SUFFIX)) is not None and name.endswith(
                BAD_SUFFIX
            ):
                self._add(NOTE, name, "a chunk that could not be read and was set aside")
            if parse_bad_name(name) is None:
                continue
            try:
                head = decode_bad_head(
                    self._files.read_file(f"{self._directory}/{name}", BAD_HEAD_BYTES)
                )
                whole = head is not None and self._kept(name, head.kept, head.crc)
            except OSError as error:
                self._add(NOTE, name, f"it cannot be read: {error}; it is kept only as evidence")
                continue
            if head is None or not whole:
                self._add(
                    NOTE, name, "its head or its content is damaged; it is kept only as evidence"
                )
            elif head.bad.kind == DAMAGED:
                self._known[(head.bad.base_offset, head.bad.position)] = head.bad
            elif head.bad.kind == GAP:
                self._gaps.append(head.bad.hole)
                last_gap = name
        self._gaps.sort()
        if self._gaps:
            self._add(NOTE, last_gap, gaps_text(self._gaps))

    def _kept(self, name: str, kept: int, expected: int) -> bool:
        fd = self._files.open_read(f"{self._directory}/{name}")
        try:
            crc = 0
            for at in range(0, kept, PIECE_BYTES):
                crc = crc32c(
                    self._files.pread(fd, min(PIECE_BYTES, kept - at), BAD_HEAD_BYTES + at), crc
                )
            return crc == expected and self._files.size(fd) == BAD_HEAD_BYTES + kept
        finally:
            self._files.close(fd)

    # The log

    def _check_log(self) -> None:
        report = self._report
        bases = [base for name in self._names if (base := parse_chunk_name(name)) is not None]
        live = [
            base
            for number, base in enumerate(bases)
            if number + 1 == len(bases) or bases[number + 1] > self._start
        ]
        if len(live) < len(bases):
            text = (
                f"{len(bases) - len(live)} chunks below offset {self._start} are not needed any "
                "more"
            )
            self._add(NOTE, "", f"{text}; the next start removes them")
        if not live:
            self._add(DAMAGE, "", "the log has no chunks; restore them from a backup")
            return
        known_end = self._in_bucket(self._start, live[0])
        if lost := max(live[0] - known_end, 0):
            text = f"{lost} messages from offset {known_end} on are missing: their chunks do not"
            self._add(DAMAGE, "", f"{text} exist", known_end, lost)
        before: Checked | None = None
        named: set[int] = set()
        ended: set[int] = set()
        begun: list[Checked] = []
        for base, following in zip(live, [*live[1:], -1], strict=True):
            around = Around(
                self._identity.uuid_bytes, following, self._synced_end, self._known, INDEX_EVERY_BYTES,
                self._now_ns,
            )  # fmt: skip
            found = ChunkCheck(self._files, self._directory, base, around).run()
            if before is not None and before.end_offset >= 0:
                self._check_border(before, base)
            report.findings += found.findings
            report.chunks += 1
            report.blocks += found.blocks
            report.messages += found.messages
            report.bytes += found.bytes
            named.update(found.adopted)
            ended.update(found.groups)
            begun += [found] if found.open_group >= 0 else []
            before = found
        assert before is not None
        # A group may begin in one chunk and have its mark in a later one, if files were adopted.
        for found in begun:
            if found.open_group not in ended:
                text = (
                    f"the group from offset {found.open_group} on has no mark; its messages are "
                    "kept, but its transaction is not known"
                )
                self._add(DAMAGE, chunk_name(found.base_offset), text)
        for base in sorted(named - set(live) - self._archived.keys()):
            if base >= live[0]:
                self._add(
                    DAMAGE, chunk_name(base), "it is missing, but a group in the log refers to it"
                ).needs_recovery = True
        report.start, report.end = live[0], before.end_offset
        lost = self._synced_end - before.end_offset
        if (
            before.end_offset >= 0
            and lost > 0
            and not any(found.needs_recovery for found in before.findings)
        ):
            text = (
                f"the log ends at offset {before.end_offset}, but was synced up to "
                f"{self._synced_end}"
            )
            if (before.base_offset, before.end_position) in self._known:
                self._add(
                    NOTE, chunk_name(before.base_offset), f"{text}: known", before.end_offset, lost
                )
            else:
                self._add(
                    DAMAGE, chunk_name(before.base_offset), text, before.end_offset, lost
                ).needs_recovery = True

    def _in_bucket(self, offset: int, end: int) -> int:
        """Return how far archived chunks have the messages from `offset` to `end`, and note it.

        Known gaps count as if the bucket had them.
        """
        begin = offset
        archived = False
        spans = [(base, row.next_offset) for base, row in self._archived.items()]
        for base, stop in sorted([*spans, *((gap[0], gap.next_offset) for gap in self._gaps)]):
            if base <= offset < min(stop, end):
                archived = archived or base in self._archived
                offset = min(stop, end)
        if archived:
            text = f"the messages from offset {begin} to {offset} are only in the bucket"
            self._add(NOTE, "", f"{text}; they are not checked")
        return offset

    def _check_border(self, before: Checked, base: int) -> None:
        """Check that a chunk begins at the end of the previous one."""
        name = chunk_name(before.base_offset)
        lost = base - before.end_offset
        if lost > 0 and self._in_bucket(before.end_offset, base) == base:
            return
        if lost < 0:
            self._add(
                DAMAGE,
                name,
                f"it ends at offset {before.end_offset}, but the next chunk begins at {base}",
            )
        elif lost:
            text = (
                f"{lost} messages are missing: it ends at offset {before.end_offset}, and the "
                f"next chunk begins at {base}"
            )
            bad = Bad(
                before.base_offset, before.bytes, 0, before.end_offset, lost, "the chunk that held them is missing",
            )  # fmt: skip
            for known in self._known.values():
                if known.first_offset <= before.end_offset and known.hole.next_offset >= base:
                    self._add(
                        NOTE,
                        name,
                        f"{text}: known, and recorded in {known.name}",
                        before.end_offset,
                        lost,
                    )
                    return
            finding = self._add(DAMAGE, name, text, before.end_offset, lost)
            finding.repair = lambda: self._note_gap(bad)

    def _check_holes(self) -> None:
        """Note `.bad` files whose messages can be read again.

        This happens if a missing chunk was restored, or if a disk works again.
        """
        for bad in self._known.values():
            if not bad.count or bad.hole.next_offset <= self._start:
                continue
            if not any(
                one.count and one.first_offset <= bad.first_offset < one.first_offset + one.count
                for one in self._report.findings
            ):
                self._add(NOTE, bad.name, READABLE_AGAIN)

    def _note_gap(self, bad: Bad) -> str:
        keep_bytes(self._files, self._directory, bad, self._now_ns)
        return f"recorded as lost in {bad.name}"

    # Staging

    def _check_staging(self) -> None:
        """Check the blocks of each staged file.

        A file must exist if the row of a stage names it. The next start removes all other files.
        """
        folder = f"{self._directory}/{STAGING_NAME}"
        names = [
            name
            for name in (self._files.list(folder) if STAGING_NAME in self._names else ())
            if name.endswith(PART_SUFFIX)
        ]
        for name in sorted({*names, *self._staged}):
            data_end, footer_bytes, seed = self._staged.get(name, (0, 0, 0))
            end = data_end + footer_bytes
            if name not in names:
                self._add_part(name, "missing", DAMAGE, needs=True)
                continue
            fd = self._files.open_read(f"{folder}/{name}")
            try:
                header = decode_chunk_header(self._files.pread(fd, CHUNK_HEADER_BYTES, 0))
                part = Chunk(self._files, folder, fd, header, INDEX_EVERY_BYTES)
                size = self._files.size(fd)
                footer = read_footer(self._files, fd, header.seed, size)
                part.end_position = size if footer is None else footer.data_end
                bad = [
                    stretch.position
                    for stretch in part.walk(CHUNK_HEADER_BYTES, columns=True)
                    if not stretch.good
                ]
            except Damaged as error:
                self._add_part(name, str(error), DAMAGE if end else NOTE, needs=bool(end))
                continue
            finally:
                self._files.close(fd)
            if header.uuid != self._identity.uuid_bytes:
                self._add(DAMAGE, f"{STAGING_NAME}/{name}", "it belongs to another topic")
            elif end and (header.seed != seed or size < end):
                text = (
                    f"it has only {size} of {end} bytes"
                    if header.seed == seed
                    else "it was changed or replaced after it was sealed"
                )
                self._add_part(name, text, DAMAGE, needs=True)
            elif bad and bad[0] < data_end:
                self._add(
                    DAMAGE,
                    f"{STAGING_NAME}/{name}",
                    f"no intact block at position {bad[0]}: its commit will be refused",
                )
            elif bad:
                self._add(
                    NOTE,
                    f"{STAGING_NAME}/{name}",
                    f"no intact block at position {bad[0]}: an unfinished write, or damage",
                )

    def _add_part(self, name: str, text: str, level: str, *, needs: bool) -> None:
        """Add a finding about a staged file.

        If its stage was sealed, the next start drops the stage.
        """
        found = self._add(
            level,
            f"{STAGING_NAME}/{name}",
            f"{text}; if its stage was sealed, the next start drops the stage and reports it",
        )
        found.needs_recovery = needs
