"""Setting aside: what a former primary had stored, and had not shipped when another one took over.

    rescue/TAKEOVER/TOPIC.jsonl              the messages that the bucket does not have
    rescue/TAKEOVER/topics/TOPIC/directory/  a topic's directory as it was
    rescue/TAKEOVER/topics/TOPIC/note.json   which topic that is, and why its directory is kept

`rescue_file.py` has the format of the messages. TAKEOVER is the number of the takeover in the log
of ticks, with 20 digits.

| topic | what is kept |
|---|---|
| shipped | its messages behind the end that the takeover names, see `shipped_end.py` |
| never shipped | all its messages |
| never shipped, and archived or larger than `FILE_BYTES_MAX` | its directory |
| kept only on the disk (`--archive off`) | its directory |
| its directory cannot be opened, or messages in it are damaged | its directory too |

All of it may be repeated, also after a crash at any moment: a file or a directory with its final
name is complete, and is not made again.

Some messages may be in the bucket, or may come again by themselves. They are in the file too, in
blocks that say why they are not certain:

* A commit of a stage is answered only when the bucket has it. So the writer of one that was not
  shipped commits it again.
* A delayed message is shipped as a row, and its serial tells whether the successor has it. If the
  ticks of that time were removed, all messages of the last `MARGIN_NS` are kept.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ....transport.block.block import DELAYED, Block
from ...delayed.delayed_format import ROW, DelayedKey, DelayedRow, decode_row
from ...directory.store import Store, StoreOptions, TopicIdentity, open_store
from ...errors import Damaged, DiskFull, StorageError
from ...files import Files
from ...log.log_format import DELAYED_NAME, parse_chunk_name
from ..archive.chunk_cache import open_cache
from ..bucket import Bucket, BucketError
from .rescue_file import (
    SUFFIX,
    BlockFacts,
    RescueCounts,
    RescueHead,
    RescueWriter,
    read_rescue,
)
from .shipped_end import Takeover, find_takeover, known_serials, shipped_end
from .tick_format import COPY_NAME, Copy, Tail, decode_copy

FOLDER_NAME: Final = "rescue"
KEPT_NAME: Final = "topics"
DIRECTORY_NAME: Final = "directory"
NOTE_NAME: Final = "note.json"
PUBLISHED: Final = ".published"
FILE_BYTES_MAX: Final = 1 << 30
COPY_BYTES_MAX: Final = 64 * 1024
NOTE_BYTES_MAX: Final = 64 * 1024
READ_BYTES: Final = 1 << 20
# The broker refuses publishes if nothing is shipped for the bound and 20 s more.
MARGIN_NS: Final = 600 * 1_000_000_000
OPTIONS: Final = StoreOptions(reserve_bytes=0, ring_bytes=0, open_remote=open_cache(1))

OFF: Final = "it is kept only on the disk (--archive off)"
DAMAGED: Final = "a part of it is damaged"
LARGE: Final = "the bucket has nothing of it that a restore can use, and it is large"
TRANSACTION: Final = "the commit of {app} {version} was not answered, so its writer repeats it"
PERHAPS_DELAYED: Final = "it was delayed, and the ticks that say whether the bucket has it are gone"


class FormerTopic(NamedTuple):
    """A topic of the former primary. `is_off`: it was not to be shipped."""

    identity: TopicIdentity
    directory: str
    is_off: bool = False


@dataclass(slots=True)
class RescuedTopic:
    """Result for one topic: its messages, or its directory, that were set aside.

    `path` is the file with its messages, "" if the bucket has them all. `kept_path` has its
    directory, if that is kept too, and `why_kept` says why. `problems` are sentences about damage.
    """

    name: str
    uuid: str
    path: str = ""
    kept_path: str = ""
    counts: RescueCounts = field(default_factory=RescueCounts)
    why_kept: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Rescued:
    """Result for a former primary. `takeover` is None if it is the newest copy."""

    folder: str
    takeover: int | None = None
    taken_by: str = ""
    topics: list[RescuedTopic] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(topic.counts.messages for topic in self.topics)

    @property
    def sentence(self) -> str:
        """A sentence for the log."""
        if self.takeover is None:
            return "no other broker has taken over: nothing is set aside"
        files = [topic for topic in self.topics if topic.counts.messages]
        kept = [topic for topic in self.topics if topic.why_kept]
        parts = []
        if files:
            names = ", ".join(f"{one.name} {one.counts.messages}" for one in files)
            noun = "1 message" if self.messages == 1 else f"{self.messages} messages"
            parts.append(f"{noun} that the bucket does not have ({names})")
        if kept:
            noun = "the directory of 1 topic"
            parts.append(noun if len(kept) == 1 else f"the directories of {len(kept)} topics")
        if not parts:
            return f"the bucket has all messages that this broker stored before {self.taken_by}"
        return (
            f"set aside in {self.folder}: {' and '.join(parts)}; zsq rescue shows them, and can "
            "publish them"
        )


def read_copy(files: Files, data_dir: str) -> Copy | None:
    """Return which log of ticks this data directory continues. None if it never shipped.

    Raises `Damaged` or `ForeignDirectory`.
    """
    path = f"{data_dir}/{COPY_NAME}"
    return decode_copy(files.read_file(path, COPY_BYTES_MAX)) if files.exists(path) else None


def set_aside(
    files: Files,
    bucket: Bucket,
    data_dir: str,
    topics: Sequence[FormerTopic],
    broker: str,
    *,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Rescued:
    """Set aside what the bucket does not have of these topics. The caller holds the lock.

    `broker` is the uuid of the broker. The result of a repetition is the same. Raises
    `StorageError` or `OSError`. Damage of one topic is only a problem of that topic.
    """
    rescued = Rescued(f"{data_dir}/{FOLDER_NAME}")
    copy = read_copy(files, data_dir)
    takeover = find_takeover(bucket, copy) if copy is not None else None
    if copy is None or takeover is None:
        return rescued
    rescued.takeover, rescued.taken_by = takeover.tick.number, takeover.tick.host
    folder = f"{rescued.folder}/{takeover.tick.number:020d}"
    for one in (rescued.folder, folder, f"{folder}/{KEPT_NAME}"):
        if not files.exists(one):
            files.make_folder(one)
            files.sync_folder(one.rpartition("/")[0])
    delays = [
        topic.identity.uuid for topic in topics if files.exists(f"{topic.directory}/{DELAYED_NAME}")
    ]
    serials = known_serials(bucket, takeover, delays)
    work = _SetAside(files, folder, takeover, serials, copy, broker, file_bytes_max)
    rescued.topics = [work.topic(topic) for topic in topics]
    return rescued


class _SetAside:
    """One run: it goes through the topics of a data directory."""

    def __init__(
        self, files: Files, folder: str, takeover: Takeover, serials: Mapping[str, int],
        own: Copy, broker: str, file_bytes_max: int,
    ) -> None:  # fmt: skip
        self._files = files
        self._folder = folder
        self._takeover = takeover
        self._serials = serials
        self._own = own
        self._broker = broker
        self._file_bytes_max = file_bytes_max

    def topic(self, topic: FormerTopic) -> RescuedTopic:
        files = self._files
        rescued = RescuedTopic(topic.identity.name, topic.identity.uuid)
        path = f"{self._folder}/{topic.identity.name}{SUFFIX}"
        for done in (path, path + PUBLISHED):
            if files.exists(done):
                rescued.path, rescued.counts = done, read_rescue(files, done).counts
        kept = f"{self._folder}/{KEPT_NAME}/{topic.identity.name}"
        if files.exists(f"{kept}/{DIRECTORY_NAME}"):
            rescued.kept_path, rescued.why_kept = kept, read_note(files, kept)
        elif not files.exists(topic.directory):
            if not rescued.path:
                rescued.problems.append(f"{topic.directory} does not exist")
        elif why := self._why_kept(topic):
            self._keep(topic, kept, why, rescued)
        elif rescued.counts.problems:
            self._keep(topic, kept, DAMAGED, rescued)
        elif not rescued.path:
            try:
                why = self._write(topic, path, rescued)
            except (BucketError, DiskFull):
                raise
            except StorageError as error:
                rescued.problems.append(str(error))
                why = DAMAGED
            if why:
                self._keep(topic, kept, why, rescued)
        return rescued

    # Directories

    def _tail(self, topic: FormerTopic) -> Tail | None:
        """Return what the successor has of a topic, or None if it cannot have the topic."""
        tail = (self._takeover.tick.tails or {}).get(topic.identity.uuid)
        return None if tail is None or tail.base_number < 0 else tail

    def _why_kept(self, topic: FormerTopic) -> str:
        """Return why the directory of a topic is kept, or ""."""
        if topic.is_off:
            return OFF
        if self._tail(topic) is not None:
            return ""
        names = self._files.list(topic.directory)
        size = sum(
            self._files.size_of(f"{topic.directory}/{name}")
            for name in names
            if parse_chunk_name(name) is not None
        )
        return LARGE if size > self._file_bytes_max else ""

    def _keep(self, topic: FormerTopic, kept: str, why: str, rescued: RescuedTopic) -> None:
        """Move a topic's directory. The note beside it is there first."""
        files, identity = self._files, topic.identity
        row = {
            "topic": identity.name, "uuid": identity.uuid, "base_offset": identity.base_offset,
            "broker": self._broker, "copy": self._own.copy, "why": why,
        }  # fmt: skip
        if not files.exists(kept):
            files.make_folder(kept)
        note = f"{kept}/{NOTE_NAME}"
        if files.exists(note):
            files.remove(note)
        files.write_file(note, json.dumps(row, indent=1).encode() + b"\n")
        files.sync_folder(kept)
        files.sync_folder(kept.rpartition("/")[0])
        files.rename(topic.directory, f"{kept}/{DIRECTORY_NAME}")
        files.sync_folder(kept)
        files.sync_folder(topic.directory.rpartition("/")[0])
        rescued.kept_path, rescued.why_kept = kept, why

    # Files

    def _write(self, topic: FormerTopic, path: str, rescued: RescuedTopic) -> str:
        """Write the file of a topic. Return why its directory is kept too, or ""."""
        tail = self._tail(topic)
        store = open_store(self._files, topic.directory, OPTIONS, topic.identity)
        try:
            if tail is None and store.log.reader.remote:
                return LARGE  # its older messages are only in the bucket
            rescued.problems += store.report.alarms
            end = store.log.start if tail is None else shipped_end(store, tail)
            serial = 0 if tail is None else self._serials.get(topic.identity.uuid)
            tick = self._takeover.tick
            head = RescueHead(
                self._broker, topic.identity.name, topic.identity.uuid, self._own.copy,
                tick.number, tick.epoch, tick.host, tick.time_ns, end,
            )  # fmt: skip
            with RescueWriter(self._files, path, head) as writer:
                rescued.problems += _Messages(store, end, serial).write(writer)
                writer.finish(len(rescued.problems))
                rescued.counts = writer.counts
                rescued.path = path if writer.counts.messages else ""
        finally:
            store.close()
        return DAMAGED if rescued.problems else ""


class _Messages:
    """The messages of an open topic that the bucket does not have.

    `end` and `serial` are where those of the bucket end.
    """

    def __init__(self, store: Store, end: int, serial: int | None) -> None:
        self._store = store
        self._end = end
        self._serial = serial
        self._problems: list[str] = []
        # (first offset, next offset, why) of each group, ascending
        self._groups: list[tuple[int, int, str]] = []
        # The keys of blocks that were delayed and became due, by their first offsets.
        self._moved: dict[int, DelayedKey] = {}
        self._look_at_headers()
        # Who published a delayed block: by its due time and its first serial.
        self._publishers: dict[DelayedKey, tuple[int, int]] = {}
        newest_ns = store.log.last_time_ns
        if store.delayed is not None:
            for producer_id, producer in store.delayed.producers.items():
                newest_ns = max(newest_ns, producer.used_ns)
                for sequence, due_ns, serial in producer.recent:
                    self._publishers[DelayedKey(due_ns, serial)] = (producer_id, sequence)
        self._doubtful_ns = newest_ns - MARGIN_NS

    def _look_at_headers(self) -> None:
        for header, mark in self._store.log.headers(self._end):
            if mark is not None and mark.next_offset > self._end:
                app, version, *_ = mark.transaction
                why = TRANSACTION.format(app=app, version=version)
                self._groups.append((mark.first_offset, mark.next_offset, why))
            # If the successor does not have the topic, all is certain, and there may be many.
            elif header.flags & DELAYED and self._serial != 0:
                self._moved[header.first_offset] = DelayedKey(header.producer_id, header.sequence)

    def write(self, writer: RescueWriter) -> list[str]:
        """Write the messages. Return sentences about damage."""
        for block in self._blocks():
            skip = max(0, self._end - block.first_offset)
            facts = self._facts(block)
            if facts is not None:
                writer.add(block, facts, skip)
        for row in self._waiting():
            writer.add(row.block, self._waiting_facts(row))
        return self._problems

    # In the log

    def _blocks(self) -> Iterator[Block]:
        log = self._store.log
        offset = max(self._end, log.start)
        while offset < log.end:
            try:
                blocks = log.read(offset, READ_BYTES, log.end)
            except Damaged as error:
                self._problems.append(str(error))
                continue  # the next read begins behind it
            if not blocks:
                return
            yield from blocks
            offset = blocks[-1].next_offset

    def _facts(self, block: Block) -> BlockFacts | None:
        """Return the facts of a block of the log, or None if the successor has its messages."""
        header = block.header
        facts = BlockFacts(header.count, header.producer_id, header.sequence)
        if why := self._group(header.first_offset):
            return replace(facts, why=why)
        key = self._moved.get(header.first_offset)
        if key is None:
            return facts
        if self._serial is not None and key.serial < self._serial:
            return None  # the successor moves it to its log when it is due
        producer, sequence = self._publishers.get(key, (0, 0))
        why = PERHAPS_DELAYED if self._serial is None else ""
        return BlockFacts(header.count, producer, sequence, why=why)

    def _group(self, offset: int) -> str:
        at = bisect_right(self._groups, offset, key=lambda group: group[0]) - 1
        if at < 0 or offset >= self._groups[at][1]:
            return ""
        return self._groups[at][2]

    # Delayed messages

    def _waiting(self) -> Iterator[DelayedRow]:
        """Yield the rows that the successor does not have, or perhaps not."""
        if self._store.delayed is None:
            return
        for batch in self._store.delayed.dump():
            for key, value in batch:
                if not key.startswith(ROW):
                    continue
                try:
                    row = decode_row(key, value)
                except Damaged as error:
                    self._problems.append(str(error))
                    continue
                if self._is_wanted(row):
                    yield row

    def _is_wanted(self, row: DelayedRow) -> bool:
        if self._serial is not None:
            return row.key.serial >= self._serial
        published_ns = row.block.time_of(0)  # by the clock of the producer; 0 if it has none
        return not published_ns or published_ns >= self._doubtful_ns

    def _waiting_facts(self, row: DelayedRow) -> BlockFacts:
        header = row.block.header
        return BlockFacts(
            row.block.count, header.producer_id, header.sequence, row.key.due_ns,
            PERHAPS_DELAYED if self._serial is None else "",
        )  # fmt: skip


# What is in a folder


class Found(NamedTuple):
    """A rescue file, or the folder of a kept directory.

    `is_published`: the messages that are certain were published again.
    """

    path: str
    is_kept: bool = False
    is_published: bool = False


def find_rescued(files: Files, data_dir: str) -> list[Found]:
    """Return what was set aside in a data directory, the oldest takeover first."""
    folder = f"{data_dir}/{FOLDER_NAME}"
    directories: list[Found] = []
    for number in sorted(files.list(folder)) if files.exists(folder) else ():
        one = f"{folder}/{number}"
        if not files.is_folder(one):
            continue
        for name in sorted(files.list(one)):
            if name.endswith((SUFFIX, SUFFIX + PUBLISHED)):
                directories.append(Found(f"{one}/{name}", is_published=name.endswith(PUBLISHED)))
        kept = f"{one}/{KEPT_NAME}"
        names = sorted(files.list(kept)) if files.exists(kept) else []
        directories += [
            Found(f"{kept}/{name}", is_kept=True)
            for name in names
            if files.exists(f"{kept}/{name}/{DIRECTORY_NAME}")
        ]
    return directories


def read_note(files: Files, kept: str) -> str:
    """Return why a directory is kept."""
    try:
        return str(json.loads(files.read_file(f"{kept}/{NOTE_NAME}", NOTE_BYTES_MAX))["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its note cannot be read"
