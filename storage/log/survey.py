"""Survey after a start: opens old chunks once, and reads known damage again.

Recovery reads only the last chunk, so that its time does not grow with the backlog. The survey
opens each of the other chunks once and reads its header and footer. The newest of them are opened
during the start. Another thread opens the others, a few at a time, while the topic serves. So a
chunk that is missing or has lost its end causes an alarm soon after the start, and not months later
when a reader needs it. The survey also reads the sizes and times of all chunks. If damaged bytes
can be read again, they are no longer a hole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..errors import Damaged, ForeignDirectory, NewerVersion, StorageError, Unreadable
from ..files import Files
from .chunk import ChunkState, Facts, open_surely
from .damage import DAMAGED, GAP, Bad, BadHead, bad_heads
from .log_format import chunk_name
from .log_reader import LogReader

AT_START_MAX: Final = 32  # the most chunks that are opened before the topic serves
STEP_CHUNKS: Final = 64  # the most chunks that one job opens
READABLE_AGAIN: Final = (
    "the messages that this file lists as lost can be read again; channels that passed them "
    "get them by Admin.seek, "
    "and the file can be deleted"
)
# The largest number of damaged bytes that a start reads again. It does not check the rest.
CHECK_BYTES_MAX: Final = 64 * 1024 * 1024


class Found(NamedTuple):
    """The result for one chunk: its facts, or the reason why it cannot be used."""

    base_offset: int
    facts: Facts | None
    why: str
    lost: bool = False
    """True if the chunk is missing or damaged. False if it only cannot be read now."""


def recall(files: Files, folder: str, reader: LogReader) -> list[str]:
    """Add the holes of the `.bad` files, except if their bytes can be read again. Returns notes."""
    notes: list[str] = []
    budget = CHECK_BYTES_MAX
    bases = set(reader.bases)
    for head in bad_heads(files, folder, notes):
        bad = head.bad
        if bad.kind == GAP and bad.hole.next_offset >= reader.bases[0]:
            reader.damage.known(bad)
        if bad.kind != DAMAGED or (
            bad.base_offset not in bases if bad.bytes else bad.hole.next_offset <= reader.bases[0]
        ):
            continue
        budget -= bad.bytes
        if budget >= 0 and _is_whole(reader, head):
            notes.append(f"{folder}/{bad.name}: {READABLE_AGAIN}")
        else:
            reader.damage.known(bad)
    if reader.damage.blocks:
        notes.append(
            f"{folder}: {reader.damage.messages} messages in {reader.damage.blocks} blocks are "
            "known to be lost"
        )
    return notes


def _is_whole(reader: LogReader, head: BadHead) -> bool:
    bad = head.bad
    end = bad.position + bad.bytes
    try:
        if not bad.bytes:  # the chunk of these messages was missing at that time
            return _is_covered(reader, bad.first_offset, bad.hole.next_offset)
        for stretch in reader.open(bad.base_offset).walk(bad.position, columns=True):
            if not stretch.good:
                return False
            if stretch.end >= end:
                return True
    except StorageError:
        return False
    return False


def _is_covered(reader: LogReader, offset: int, end: int) -> bool:
    """Return True if existing chunks contain all messages from `offset` to `end`.

    This checks only the headers of the first and the last message in each chunk.
    """
    if offset < reader.bases[0]:
        return False
    while offset < end:
        chunk = reader.open(reader.bases[bisect_right(reader.bases, offset) - 1])
        following = reader.next_base(chunk.base_offset)
        until = min(end, chunk.end_offset if following is None else following)
        for wanted in (offset, until - 1):
            place = chunk.locate(wanted)
            if (
                until <= offset
                or place.position >= chunk.end_position
                or place.first_offset > wanted
            ):
                return False
        offset = until
    return True


def survey(
    files: Files, folder: str, uuid: bytes, bases: Sequence[int], index_every_bytes: int
) -> list[Found]:
    """Open these chunks, one after the other. Any thread may call this."""
    chunks = []
    for base in bases:
        try:
            chunk = open_surely(files, folder, base, uuid, index_every_bytes)
        except NewerVersion as error:
            chunks.append(Found(base, None, str(error)))
            continue
        except (Damaged, ForeignDirectory) as error:
            chunks.append(Found(base, None, str(error), lost=True))
            continue
        except Unreadable as error:
            chunks.append(Found(base, None, str(error)))
            continue
        facts = chunk.facts()
        why = (
            (
                "both copies of its header are damaged, and the one in its footer is used; `zsq "
                "fsck --repair` rewrites it"
            )
            if chunk.spare_header
            else ""
        )
        chunks.append(
            Found(
                base,
                facts if chunk.sealed else facts._replace(state=ChunkState.SEALED, next_offset=-1),
                why,
            )
        )
        chunk.close()
    return chunks


class Survey:
    """The chunks of a log that are not checked yet. The newest are checked first."""

    def __init__(
        self, files: Files, folder: str, uuid: bytes, index_every_bytes: int, reader: LogReader
    ) -> None:
        self._files = files
        self._folder = folder
        self._uuid = uuid
        self._index_every_bytes = index_every_bytes
        self._reader = reader
        # Recovery checked the last one. The others in the bucket were checked when they were sent.
        self._waiting = [base for base in reader.bases[:-1] if base not in reader.remote]

    def take(self, count: int = STEP_CHUNKS) -> Callable[[], list[Found]] | None:
        """Return a job for any thread, or None if all chunks are known.

        `learn` takes the job's result.
        """
        bases, self._waiting = self._waiting[-count:], self._waiting[:-count]
        if not bases:
            return None
        return lambda: survey(self._files, self._folder, self._uuid, bases, self._index_every_bytes)

    def learn(self, chunks: Sequence[Found]) -> list[str]:
        """Take the result of a job and return alarms.

        A chunk whose file retention has removed since then causes no alarm.
        """
        alarms = []
        reader = self._reader
        for base, facts, why, is_lost in chunks:
            following = reader.next_base(base)
            if base not in reader.bases or base in reader.remote or following is None:
                continue
            path = f"{self._folder}/{chunk_name(base)}"
            if facts is None and not is_lost:
                alarms.append(
                    f"{why}; its {following - base} messages are not lost: reads of them wait "
                    "and are retried"
                )
                continue
            if facts is None:
                if reader.skip(base) >= following:
                    continue  # this hole is known from its `.bad` file
                if reader.drop_stray(base):
                    alarms.append(
                        f"{path} is not used: {why}; the offset in its name lies in the chunk "
                        "before it"
                    )
                    continue
                alarms.append(f"{path} and its {following - base} messages cannot be used: {why}")
                reader.damage.note(Bad(base, 0, 0, base, following - base, why))
                continue
            reader.book.facts[base] = facts
            if why:
                alarms.append(f"{path}: {why}")
            if facts.next_offset < 0:
                alarms.append(
                    f"{path}: its footer is missing or damaged; `zsq fsck --repair` rewrites it"
                )
            elif facts.next_offset > following:
                alarms.append(
                    f"{path} ends at offset {facts.next_offset}, but the next chunk begins at "
                    f"{following}"
                )
            elif facts.next_offset < following:
                lost = following - facts.next_offset
                if reader.skip(facts.next_offset) >= following:
                    continue  # this hole is known from its `.bad` file
                ends = (
                    f"{path} ends at offset {facts.next_offset}, and the next chunk begins at "
                    f"{following}"
                )
                alarms.append(f"{lost} messages are missing: {ends}")
                reader.damage.note(
                    Bad(
                        base,
                        facts.bytes,
                        0,
                        facts.next_offset,
                        lost,
                        "the chunk that held them is missing",
                    )
                )
        return alarms
