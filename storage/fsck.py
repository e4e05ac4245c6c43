"""Checking a topic's directory while nobody has it open: all its files, and what they say of each other. Repair, where that can be done.

Two levels: *damage* is what should not be; a *note* is harmless, or known and kept (what a repair has set aside is a note the next time).
What recovery does anyway at each start (an unfinished write, a state store that is made again from its snapshot and the log) is not done
a second way here: a repair opens the topic as the broker would, and closes it.

LMDB may kill the process that opens a damaged environment; so those are checked in a process of their own (`state_check.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from .chunk import Chunk, read_footer
from .damage import BAD_HEAD_BYTES, DAMAGED, Bad, decode_bad_head, keep_bytes
from .delayed_recovery import MADE_SUFFIX
from .delayed_rescue import READY_SUFFIX, check_delayed, uuid_of
from .errors import Damaged, StorageError
from .files import Files
from .fsck_chunk import DAMAGE, NOTE, RECOVERY, Around, Checked, ChunkCheck, Finding
from .log_format import (
    BACKUP_NAME,
    BAD_SUFFIX,
    CHUNK_HEADER_BYTES,
    DELAYED_NAME,
    FOOTER_BYTES,
    IDENTITY_NAME,
    LOCK_NAME,
    PART_SUFFIX,
    STAGING_NAME,
    STATE_NAME,
    TEMPORARY_SUFFIX,
    chunk_name,
    decode_chunk_header,
    parse_bad_name,
    parse_chunk_name,
    part_name,
)
from .snapshot import check_snapshot, commits_of_snapshot
from .state import StateStore
from .state_check import check_environment
from .store import INDEX_EVERY_BYTES, Identity, StoreOptions, check_identity, open_store
from .survey import READABLE_AGAIN

PIECE_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class TopicReport:
    """What was found in one topic's directory."""

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
        """What is damage and was not repaired."""
        return [finding for finding in self.findings if finding.level == DAMAGE and not finding.repaired]


def check_topic(files: Files, directory: str, identity: Identity, now_ns: int, *, repair: bool = False) -> TopicReport:
    """`Locked` where a process has it open. `OSError` where the directory cannot be read at all."""
    lock = files.lock(f"{directory}/{LOCK_NAME}", write=repair)
    try:
        check = _TopicCheck(files, directory, identity, now_ns)
        report = check.run()
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


def _recover(files: Files, directory: str, identity: Identity, report: TopicReport) -> None:
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
            finding.repaired, said = said, f"by {RECOVERY}, as told above"


class _TopicCheck:
    def __init__(self, files: Files, directory: str, identity: Identity, now_ns: int) -> None:
        self._files = files
        self._directory = directory
        self._identity = identity
        self._now_ns = now_ns
        self._report = TopicReport(identity.name, directory)
        self._names = files.list(directory)
        self._known: dict[tuple[int, int], Bad] = {}
        self._staged: dict[str, tuple[int, int, int]] = {}
        """Files of sealed stages: where their blocks end, the bytes of their footers, their seeds."""
        self._synced_end = -1
        self._start = identity.base_offset

    def run(self) -> TopicReport:
        self._check_identity()
        self._check_environments()
        self._check_bad_files()
        self._check_log()
        self._check_holes()
        self._check_staging()
        for name in self._names:
            if name.removesuffix(TEMPORARY_SUFFIX) == BACKUP_NAME:
                self._add(NOTE, name, "what a backup has left; the next start removes it")
            elif name.endswith(TEMPORARY_SUFFIX):
                self._add(NOTE, name, "a file whose writing was not finished; not used")
        return self._report

    def _add(self, level: str, name: str, text: str, first_offset: int = -1, count: int = 0) -> Finding:
        found = Finding(level, f"{self._directory}/{name}", text, first_offset, count)
        self._report.findings.append(found)
        return found

    def _check_identity(self) -> None:
        try:
            if not check_identity(self._files, self._directory, self._identity):
                self._add(DAMAGE, IDENTITY_NAME, "missing or damaged").needs_recovery = True
        except StorageError as error:
            self._add(DAMAGE, IDENTITY_NAME, str(error))

    def _check_environments(self) -> None:
        sound = True
        for name in (STATE_NAME, DELAYED_NAME):
            if name not in self._names:
                if name == STATE_NAME:
                    self._add(DAMAGE, name, "the state store is missing").needs_recovery = True
                    sound = False
                elif f"{name}{MADE_SUFFIX}" in self._names and f"{name}{READY_SUFFIX}" not in self._names:
                    self._add(DAMAGE, name, "it is gone, with all delayed messages that waited in it").needs_recovery = True
                continue
            check = check_delayed if name == DELAYED_NAME else check_environment
            path = f"{self._directory}/{name}"
            for text in check(path):
                self._add(DAMAGE, name, text.removeprefix(path).removeprefix(":").strip()).needs_recovery = True
                sound = sound and name != STATE_NAME
            if name == DELAYED_NAME and not any(finding.path == path for finding in self._report.findings):
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
        """How far the log is known to be on disk. Only after it was found to be sound."""
        try:
            state = StateStore(f"{self._directory}/{STATE_NAME}", readonly=True)
            try:
                table = state.load()
                uuid = state.uuid()
            finally:
                state.close()
        except StorageError as error:
            self._add(DAMAGE, STATE_NAME, str(error)).needs_recovery = True
            return
        if uuid != self._identity.uuid_bytes:
            self._add(DAMAGE, STATE_NAME, f"it belongs to another topic (uuid {uuid.hex()})")
            return
        if table.commits < (known := commits_of_snapshot(self._files, self._directory)):
            text = f"it has seen {table.commits} commits, and its snapshot {known}: an older one has come back"
            self._add(DAMAGE, STATE_NAME, text).needs_recovery = True
            return
        self._synced_end = table.synced_end
        self._start = max(self._start, table.start)
        for stage, row in table.stages.items():
            for file in row.files:
                self._staged[part_name(stage, file.number)] = file.data_end, FOOTER_BYTES if row.final else 0, file.seed

    def _check_bad_files(self) -> None:
        for name in self._names:
            if parse_chunk_name(name.removesuffix(BAD_SUFFIX)) is not None and name.endswith(BAD_SUFFIX):
                self._add(NOTE, name, "a chunk that could not be read, set aside")
            if parse_bad_name(name) is None:
                continue
            try:
                head = decode_bad_head(self._files.read_file(f"{self._directory}/{name}", BAD_HEAD_BYTES))
                whole = head is not None and self._kept(name, head.kept, head.crc)
            except OSError as error:
                self._add(NOTE, name, f"it cannot be read: {error}; it is evidence only, and not used")
                continue
            if head is None or not whole:
                self._add(NOTE, name, "what it says of itself is damaged; it is evidence only, and not used")
            elif head.bad.kind == DAMAGED:
                self._known[(head.bad.base_offset, head.bad.position)] = head.bad

    def _kept(self, name: str, kept: int, expected: int) -> bool:
        fd = self._files.open_read(f"{self._directory}/{name}")
        try:
            crc = 0
            for at in range(0, kept, PIECE_BYTES):
                crc = crc32c(self._files.pread(fd, min(PIECE_BYTES, kept - at), BAD_HEAD_BYTES + at), crc)
            return crc == expected and self._files.size(fd) == BAD_HEAD_BYTES + kept
        finally:
            self._files.close(fd)

    # The log

    def _check_log(self) -> None:
        report = self._report
        bases = [base for name in self._names if (base := parse_chunk_name(name)) is not None]
        live = [base for number, base in enumerate(bases) if number + 1 == len(bases) or bases[number + 1] > self._start]
        if len(live) < len(bases):
            self._add(NOTE, "", f"{len(bases) - len(live)} chunks below offset {self._start} are to be removed; the next start does it")
        if not live:
            self._add(DAMAGE, "", "the log has no chunk: restore them from a backup")
            return
        if live[0] > self._start:
            lost = live[0] - self._start
            self._add(DAMAGE, "", f"{lost} messages from offset {self._start} on are missing: their chunks are gone", self._start, lost)
        before: Checked | None = None
        named: set[int] = set()
        ended: set[int] = set()
        begun: list[Checked] = []
        for base, following in zip(live, [*live[1:], -1], strict=True):
            around = Around(self._identity.uuid_bytes, following, self._synced_end, self._known, INDEX_EVERY_BYTES, self._now_ns)
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
        for found in begun:  # with adopted files, the mark lies in the last of those
            if found.open_group not in ended:
                text = f"the group from offset {found.open_group} on has no mark; its messages stay, its transaction is not known"
                self._add(DAMAGE, chunk_name(found.base_offset), text)
        for base in sorted(named - set(live)):
            if base >= live[0]:
                self._add(DAMAGE, chunk_name(base), "missing: a group names it").needs_recovery = True
        report.start, report.end = live[0], before.end_offset
        lost = self._synced_end - before.end_offset
        if before.end_offset >= 0 and lost > 0 and not any(found.needs_recovery for found in before.findings):
            text = f"the log ends at offset {before.end_offset}, and was synced up to {self._synced_end}"
            if (before.base_offset, before.end_position) in self._known:
                self._add(NOTE, chunk_name(before.base_offset), f"{text}: known", before.end_offset, lost)
            else:
                self._add(DAMAGE, chunk_name(before.base_offset), text, before.end_offset, lost).needs_recovery = True

    def _check_border(self, before: Checked, base: int) -> None:
        """Whether a chunk begins where the one before it ends."""
        name = chunk_name(before.base_offset)
        lost = base - before.end_offset
        if lost < 0:
            self._add(DAMAGE, name, f"it ends at offset {before.end_offset}, and the next chunk begins at {base}")
        elif lost:
            text = f"{lost} messages are missing: it ends at offset {before.end_offset}, the next chunk begins at {base}"
            bad = Bad(before.base_offset, before.bytes, 0, before.end_offset, lost, "the chunk that held them is missing")
            for known in self._known.values():
                if known.first_offset <= before.end_offset and known.hole.next_offset >= base:
                    self._add(NOTE, name, f"{text}: known, and noted in {known.name}", before.end_offset, lost)
                    return
            finding = self._add(DAMAGE, name, text, before.end_offset, lost)
            finding.repair = lambda: self._note_gap(bad)

    def _check_holes(self) -> None:
        """A `.bad` file whose messages are there: somebody has put a chunk back, or a disk reads again."""
        for bad in self._known.values():
            if not bad.count or bad.hole.next_offset <= self._start:
                continue
            if not any(one.count and one.first_offset <= bad.first_offset < one.first_offset + one.count for one in self._report.findings):
                self._add(NOTE, bad.name, READABLE_AGAIN)

    def _note_gap(self, bad: Bad) -> str:
        keep_bytes(self._files, self._directory, bad, self._now_ns)
        return f"noted in {bad.name}: a known hole"

    # Staging

    def _check_staging(self) -> None:
        """Each part's blocks. What a sealed stage's row names must be there; the rest the next start removes."""
        folder = f"{self._directory}/{STAGING_NAME}"
        names = [name for name in (self._files.list(folder) if STAGING_NAME in self._names else ()) if name.endswith(PART_SUFFIX)]
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
                bad = [stretch.position for stretch in part.walk(CHUNK_HEADER_BYTES, columns=True) if not stretch.good]
            except Damaged as error:
                self._add_part(name, str(error), DAMAGE if end else NOTE, needs=bool(end))
                continue
            finally:
                self._files.close(fd)
            if header.uuid != self._identity.uuid_bytes:
                self._add(DAMAGE, f"{STAGING_NAME}/{name}", "it belongs to another topic")
            elif end and (header.seed != seed or size < end):
                self._add_part(name, f"{size} of {end} bytes are there" if header.seed == seed else "another file", DAMAGE, needs=True)
            elif bad and bad[0] < data_end:
                self._add(DAMAGE, f"{STAGING_NAME}/{name}", f"no good block at {bad[0]}: its commit will be refused")
            elif bad:
                self._add(NOTE, f"{STAGING_NAME}/{name}", f"no good block at {bad[0]}: a write that did not finish, or damage")

    def _add_part(self, name: str, text: str, level: str, *, needs: bool) -> None:
        """What costs the stage."""
        found = self._add(level, f"{STAGING_NAME}/{name}", f"{text}; if its stage was sealed, the next start drops it, and says so")
        found.needs_recovery = needs
