"""Damage of a log: `.bad` files keep the bytes of damaged stretches, and their offsets are holes.

    <chunk's base offset>-<position>.bad = head (512 bytes: a line of JSON, spaces, a checksum,
                                           a line feed)  the damaged bytes, unchanged

To find a hole, a reader must read the chunk up to the next good block. A known hole takes no time.
So the next start reads the known holes from the heads of these files. It checks each stretch once
more, because a disk or RAM may fail only for a moment. Bytes that recovery cut off
(they were never acknowledged) are in such files too. They are not holes.

A file of the kind GAP has no bytes. Its offsets were never stored here: a restore from a bucket
continues behind all offsets that the lost broker may have given out. Such a hole is no damage, and
does not count as lost messages.

The `.bad` files are not necessary for operation. They are evidence for people, and repeat bytes
that are still in the chunk. If a file cannot be written (for example, on a full disk), this is only
noted. BAD_FILES_MAX, BAD_KEPT_BYTES_MAX and BAD_TOTAL_BYTES_MAX limit the files, so that they do
not fill a failing disk.

The log notes damage in its thread and continues. The log's owner calls `take` regularly, and runs
the job that writes the files in another thread. To read and sync 16 MiB takes longer than a
publisher should wait.
"""

from __future__ import annotations

import errno
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...transport.checksum import crc32c
from .. import documents
from ..errors import NewerVersion, ShortWrite, newer
from ..files import TEMPORARY_SUFFIX, Files
from .log_format import VERSION, bad_name, chunk_name, parse_bad_name

BAD_HEAD_BYTES: Final = 512
# The most `.bad` files in a topic. Further damage is only counted, and each start finds it again.
BAD_FILES_MAX: Final = 1000
# The most bytes that are kept of one damaged stretch: two blocks of the largest size.
BAD_KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
# The most bytes that one process writes to `.bad` files.
BAD_TOTAL_BYTES_MAX: Final = 256 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
PAGE_BYTES: Final = 4096
DAMAGED: Final = "damaged"
CUT_OFF: Final = "cut off"
GAP: Final = "gap"
# No block is at this position. So damage of the chunk after the gap has a file with another name.
GAP_POSITION: Final = 1
_WHY_CHARACTERS_MAX: Final = 120


class Hole(NamedTuple):
    """A range of offsets whose messages are lost."""

    first_offset: int
    # This field hides the method `tuple.count`, which is not used here.
    count: int  # type: ignore[assignment]

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count


class Bad(NamedTuple):
    """A damaged stretch of a chunk, `bytes` long.

    `blocks` is the number of consecutive bad blocks, or 0 if the chunk has no bytes there.
    """

    base_offset: int
    position: int
    bytes: int
    first_offset: int
    # As in Hole, this field hides the method `tuple.count`.
    count: int  # type: ignore[assignment]
    why: str
    kind: str = DAMAGED
    blocks: int = 1

    @property
    def hole(self) -> Hole:
        return Hole(self.first_offset, self.count)

    @property
    def name(self) -> str:
        return bad_name(self.base_offset, self.position)


class BadHead(NamedTuple):
    """The head of a `.bad` file. `kept` bytes follow it; `crc` is their checksum."""

    bad: Bad
    time_ns: int
    kept: int
    crc: int


def gap_before(base_offset: int, first_offset: int) -> Bad:
    """Return the gap between the chunk that begins at `base_offset` and the end of the one before.

    Its `.bad` file is removed together with the chunk after the gap.
    """
    count = base_offset - first_offset
    why = "these offsets are not in the bucket that the topic was restored from"
    return Bad(base_offset, GAP_POSITION, 0, first_offset, count, why, GAP, blocks=0)


def gaps_text(gaps: Sequence[Hole]) -> str:
    """Return a sentence about the gaps of a topic, for people, or "". Each takeover adds a gap."""
    if not gaps:
        return ""
    last = gaps[-1]
    where = f"offsets {last.first_offset} to {last.next_offset - 1}"
    if len(gaps) > 1:
        where = f"{len(gaps)} ranges of offsets, the last one {where.removeprefix('offsets ')},"
    return (
        f"no damage: {where} were skipped when this topic was restored or taken over, because the "
        "bucket has no message there; readers step over them"
    )


def encode_bad_head(head: BadHead) -> bytes:
    bad = head.bad
    line = json.dumps(
        {
            "zsq": "bad", "version": VERSION, "kind": bad.kind, "chunk": chunk_name(bad.base_offset), "position": bad.position,
            "bytes": bad.bytes, "first_offset": bad.first_offset, "count": bad.count, "blocks": bad.blocks, "time_ns": head.time_ns,
            "kept": head.kept, "crc": head.crc, "why": "".join(map(_plain, bad.why[:_WHY_CHARACTERS_MAX])),
        }
    ).encode()  # fmt: skip
    padded = line.ljust(BAD_HEAD_BYTES - 10)
    assert len(padded) == BAD_HEAD_BYTES - 10
    return padded + b" %08x\n" % crc32c(padded)


def _plain(character: str) -> str:
    """Return the character, or "?" if it needs more than one byte in JSON.

    This is necessary because the head has a fixed size.
    """
    return (
        character
        if character.isascii() and character.isprintable() and character not in '"\\'
        else "?"
    )


def decode_bad_head(data: bytes) -> BadHead | None:
    """Decode the head of a `.bad` file.

    Returns None if it is damaged or incomplete. Raises `NewerVersion` if its version is unknown.
    """
    padded, checksum = data[: BAD_HEAD_BYTES - 10], data[BAD_HEAD_BYTES - 10 : BAD_HEAD_BYTES]
    if checksum != b" %08x\n" % crc32c(padded):
        return None
    try:
        document = documents.loads(padded)
        if document["zsq"] != "bad":
            return None
        if document["version"] != VERSION:
            raise newer("the head of what is set aside", document["version"], VERSION)
        base = int(document["chunk"].partition(".")[0])
        numbers = [
            document[name]
            for name in (
                "position",
                "bytes",
                "first_offset",
                "count",
                "blocks",
                "time_ns",
                "kept",
                "crc",
            )
        ]
        why, kind = document["why"], document["kind"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if (
        base < 0
        or any(type(number) is not int for number in numbers)
        or type(why) is not str
        or type(kind) is not str
    ):
        return None
    position, size, first_offset, count, blocks, time_ns, kept, crc = numbers
    return BadHead(
        Bad(base, position, size, first_offset, count, why, kind, blocks), time_ns, kept, crc
    )


def keep_bytes(
    files: Files, folder: str, bad: Bad, time_ns: int, kept_max: int = BAD_KEPT_BYTES_MAX
) -> int:
    """Copy the stretch into its `.bad` file, sync it, and return how many bytes were kept.

    Any thread may call this. The file is renamed at the end. So if a head can be read, the bytes
    after it are complete.
    """
    path = f"{folder}/{bad.name}"
    temporary = path + TEMPORARY_SUFFIX
    # If there are no bytes to keep, the chunk itself may be missing.
    source = files.open_read(f"{folder}/{chunk_name(bad.base_offset)}") if bad.bytes else -1
    try:
        kept = (
            max(0, min(bad.bytes, kept_max, files.size(source) - bad.position)) if bad.bytes else 0
        )
        if files.exists(temporary):
            files.remove(temporary)
        fd = files.open_new(temporary)
        try:
            crc = 0
            for at in range(0, kept, PIECE_BYTES):
                piece = _read(files, source, min(PIECE_BYTES, kept - at), bad.position + at)
                crc = crc32c(piece, crc)
                files.writev(fd, [piece], BAD_HEAD_BYTES + at)
            files.writev(fd, [encode_bad_head(BadHead(bad, time_ns, kept, crc))], 0)
            files.sync(fd)
        except (OSError, ShortWrite):
            files.remove(temporary)
            raise
        finally:
            files.close(fd)
    finally:
        if source >= 0:
            files.close(source)
    files.rename(temporary, path)
    files.sync_folder(folder)
    return kept


def _read(files: Files, fd: int, size: int, position: int) -> bytes:
    """Read exactly `size` bytes, with zeros for pages that the disk cannot read."""
    try:
        return files.pread(fd, size, position).ljust(size, b"\0")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        if size <= PAGE_BYTES:
            return bytes(size)
    pages = range(0, size, PAGE_BYTES)
    return b"".join(_read(files, fd, min(PAGE_BYTES, size - at), position + at) for at in pages)


def bad_heads(files: Files, folder: str, notes: list[str] | None = None) -> list[BadHead]:
    """Return the heads of all complete `.bad` files, ascending.

    Files that cannot be read are named in `notes`. Raises `NewerVersion`.
    """
    heads = []
    for name in files.list(folder):
        if parse_bad_name(name) is not None:
            try:
                head = decode_bad_head(files.read_file(f"{folder}/{name}", BAD_HEAD_BYTES))
            except NewerVersion as error:
                raise error.at(f"{folder}/{name}") from error
            # This is only noted, because readers will find the hole again.
            except OSError as error:
                if notes is not None:
                    notes.append(f"{folder}/{name} cannot be read, and is not used: {error}")
                continue
            if head is not None:
                heads.append(head)
    return heads


class DamageBook:
    """All known damage of a log.

    `holes` ascend and do not overlap. The writer of the log's files owns this book.
    """

    def __init__(self, files: Files, folder: str, holes: Sequence[Hole] = ()) -> None:
        self._files = files
        self._folder = folder
        self._holes: list[Hole] = []
        self.gaps: list[Hole] = []
        """The holes that are gaps, ascending."""
        self._noted: dict[tuple[int, int], Bad] = {}
        self._queue: list[Bad] = []
        self._kept_bytes = 0
        self._kept_files = sum(parse_bad_name(name) is not None for name in files.list(folder))
        self.blocks = 0
        """The number of known bad blocks, old and new."""
        for hole in holes:
            self.add(hole)

    @property
    def holes(self) -> list[Hole]:
        return self._holes

    @property
    def messages(self) -> int:
        """The number of lost messages, without gaps."""
        return sum(hole.count for hole in self._holes) - sum(gap.count for gap in self.gaps)

    def is_known(self, base_offset: int, position: int) -> bool:
        return (base_offset, position) in self._noted

    def by_chunk(self) -> dict[int, int]:
        """Return the number of bad blocks by their chunk's first offset."""
        blocks: dict[int, int] = {}
        for bad in self._noted.values():
            blocks[bad.base_offset] = blocks.get(bad.base_offset, 0) + bad.blocks
        return blocks

    def add(self, hole: Hole) -> None:
        """Add a hole, and merge it with the holes that it overlaps."""
        first, end = hole.first_offset, hole.next_offset
        if first >= end:
            return
        overlapping = [
            old for old in self._holes if old.first_offset < end and first < old.next_offset
        ]
        for old in overlapping:
            self._holes.remove(old)
            first, end = min(first, old.first_offset), max(end, old.next_offset)
        self._holes.insert(bisect_right(self._holes, (first, 0)), Hole(first, end - first))

    def forget_below(self, start: int) -> None:
        """Forget the damage below `start`, which retention has removed."""
        self._holes = [hole for hole in self._holes if hole.next_offset > start]
        self.gaps = [gap for gap in self.gaps if gap.next_offset > start]
        self._noted = {
            key: bad for key, bad in self._noted.items() if bad.first_offset + bad.count > start
        }

    def skip(self, offset: int) -> int:
        """Return `offset`, or the end of the hole that contains it."""
        for hole in self._holes[max(bisect_right(self._holes, (offset + 1, 0)) - 1, 0) :]:
            if hole.first_offset > offset:
                break
            if offset < hole.next_offset:
                offset = hole.next_offset
        return offset

    def known(self, bad: Bad) -> None:
        """Add damage, or a gap, that already has a `.bad` file."""
        if bad.kind == GAP:
            self.gaps.append(bad.hole)
            self.add(bad.hole)
            return
        self._noted[(bad.base_offset, bad.position)] = bad
        self.blocks += bad.blocks
        self.add(bad.hole)

    def note(self, bad: Bad) -> None:
        """Add new damage.

        The damage becomes a hole, and `take` later returns a job that writes its `.bad` file.
        """
        self.add(bad.hole)
        key = (bad.base_offset, bad.position)
        if key in self._noted or len(self._noted) >= 2 * BAD_FILES_MAX:
            return
        self._noted[key] = bad
        self.blocks += bad.blocks
        if (bad.bytes > 0 or bad.count > 0) and self._kept_files + len(self._queue) < BAD_FILES_MAX:
            self._queue.append(bad)

    def take(self, now_ns: int) -> Callable[[], list[str]] | None:
        """Return a job that writes files for new damage, or None if there is none.

        Any thread may run the job. The job returns notes for people.
        """
        queue, self._queue = self._queue, []
        self._kept_files += len(queue)
        budget = BAD_TOTAL_BYTES_MAX - self._kept_bytes
        self._kept_bytes += sum(min(bad.bytes, BAD_KEPT_BYTES_MAX) for bad in queue)
        if not queue or budget <= 0:
            return None
        return lambda: [self._keep(bad, now_ns) for bad in queue]

    def _keep(self, bad: Bad, now_ns: int) -> str:
        try:
            kept = keep_bytes(self._files, self._folder, bad, now_ns)
        except OSError as error:
            return (
                f"{self._folder}/{bad.name} could not be written ({error}); the damaged bytes "
                "stay in the chunk"
            )
        return (
            f"{self._folder}/{bad.name} keeps {kept} bytes of {bad.count} lost messages from "
            f"offset {bad.first_offset} on: {bad.why}"
        )
