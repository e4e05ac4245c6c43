"""Export of a data directory to nsqd: the messages that channels have not finished.

A channel's queue gets its holes and all messages from its cursor on. A hole is a run of unfinished
messages before the cursor. Deferred messages are included, because nsqd itself makes them ready
when it stops. The topic's own queue gets the messages that were published while the topic is
paused, or those that wait for a first channel. The export is built in a folder next to OUT_DIR,
which is then renamed. So OUT_DIR is never incomplete.

The report names what NSQ cannot keep: keys, tags and headers (but an id that an import put into a
header becomes the id again), delayed messages, bodies over nsqd's limit, and unfinished messages
lost by damage. Delayed, too large and lost messages are never left out silently: without an option
for them the export is refused.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ...actors.supervisor.topics.registry import Registry, TopicRow
from ...actors.supervisor.topics.registry_format import AWAY
from ...storage.delayed.delayed import DelayedStore
from ...storage.delayed.delayed_format import DelayedKey
from ...storage.directory.store import Store, StoreOptions, TopicIdentity, open_store
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.log.log import Log
from ...storage.log.log_format import DELAYED_NAME
from ...storage.nsq.disk_queue import FILE_BYTES_MAX, DiskQueue
from ...storage.nsq.disk_queue_format import (
    NSQ_HEAD_BYTES,
    NSQ_ID_BYTES,
    NSQD_NAME,
    NsqdChannel,
    NsqdList,
    NsqdTopic,
    NsqMessage,
    encode_message,
    encode_nsqd,
    queue_name,
)
from ...storage.state.channel_row import ChannelRow
from ...transport.block.block import Block
from ...transport.errors import (
    E_DATA_LOSS,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_TOO_BIG,
    DataLoss,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import is_ephemeral
from ...transport.wire.codec import user_headers
from .nsqd_import import ID_HEADER

NSQD_VERSION: Final = "1.3.0"
BATCH_COUNT: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
NSQ_BODY_BYTES: Final = 1024 * 1024  # the default of nsqd's --max-msg-size
REFUSE, NOW, SKIP = "refuse", "now", "skip"
NAMED_MAX: Final = 5  # the most losses that a refusal names
_TEMPORARY: Final = ".export.tmp"
_NODE_SHIFT: Final = 54  # an id has 10 bits for the node and 54 for the offset
_SYNC_AT_CLOSE: Final = 1 << 40
_DELAYED_AT_ONCE: Final = 16
_HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    `delayed` decides on messages that are not due: refuse, now (export them as due), or skip.
    `skip_too_big` leaves out bodies over the limit. `skip_lost` exports the rest although
    unfinished messages cannot be read.
    """

    delayed: str = REFUSE
    body_bytes_max: int = NSQ_BODY_BYTES
    skip_too_big: bool = False
    skip_lost: bool = False
    file_bytes_max: int = FILE_BYTES_MAX


@dataclass(slots=True)
class NsqdExportReport:
    """The number of messages of each queue (`topic` or `topic:channel`), and notes."""

    queues: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class OffsetRun(NamedTuple):
    """Offsets to export, with the number of their earlier attempts."""

    start: int
    end: int
    attempts: int


READ_BYTES: Final = 1024 * 1024


class StoredRecord(NamedTuple):
    """One message as the log stores it. `headers` are packed."""

    offset: int
    timestamp_ns: int
    attempts: int
    body: bytes
    key: bytes | None
    tag: bytes | None
    headers: bytes | None


class MessageReader:
    """Reads messages of a log by ranges of offsets. If these ascend, each block is read once.

    Offsets below `start` were removed by retention. `notes` gets the missing messages. `lost`
    counts the messages that were lost to damage.
    """

    def __init__(self, log: Log, start: int, notes: list[str]) -> None:
        self._log = log
        self._start = start
        self._notes = notes
        self.lost = 0

    def messages(self, queue: str, spans: Iterable[tuple[int, int, int]]) -> Iterator[StoredRecord]:
        """Yield the messages of each (start, end, attempts), in ascending order, for `queue`."""
        blocks: list[Block] = []
        for start, end, attempts in spans:
            offset = start
            while offset < end:
                while blocks and blocks[0].next_offset <= offset:
                    blocks.pop(0)
                if not blocks:
                    blocks = self._read(offset)
                first = blocks[0].first_offset if blocks else end
                if first > offset:
                    self._gone(queue, offset, min(first, end))
                    offset = first
                    continue
                block = blocks[0]
                for index in range(
                    offset - block.first_offset, min(end - block.first_offset, block.count)
                ):
                    yield _stored(block, index, attempts)
                offset = block.next_offset

    def _gone(self, queue: str, begin: int, end: int) -> None:
        kept_from = min(max(begin, self._start), end)
        if kept_from > begin:
            self._notes.append(
                f"{queue}: {kept_from - begin} messages from offset {begin} on were removed by "
                "retention"
            )
        if end > kept_from:
            self._notes.append(
                f"{queue}: {end - kept_from} messages from offset {kept_from} on are damaged or "
                "missing"
            )
            self.lost += end - kept_from

    def _read(self, offset: int) -> list[Block]:
        while True:
            try:
                return self._log.read(offset, READ_BYTES, self._log.end)
            except Damaged:  # the next read skips the damage, and the gap is reported
                continue


def _stored(block: Block, index: int, attempts: int) -> StoredRecord:
    body = block.body.value(index)
    assert body is not None
    return StoredRecord(
        block.first_offset + index,
        block.time_of(index),
        attempts,
        body,
        block.key.value(index) if block.key is not None else None,
        block.tag.value(index) if block.tag is not None else None,
        block.headers.value(index) if block.headers is not None else None,
    )


def export_nsqd(
    files: Files,
    out_dir: Path,
    data_dir: Path,
    names: Iterable[str] = (),
    options: ExportOptions | None = None,
) -> NsqdExportReport:
    """Export the named topics, or all of them.

    Raises `Locked` if a broker runs, `NotFound`, `Refused` or `DataLoss` if messages would be lost,
    and `ForeignDirectory` if OUT_DIR is not empty or a directory is not one of ZSQ.
    """
    if not files.exists(str(data_dir / "registry.json")):
        raise ForeignDirectory(
            f"{data_dir} has no registry.json: it is not a data directory of zsq"
        )
    if files.exists(str(out_dir)) and files.list(str(out_dir)):
        raise ForeignDirectory(
            f"{out_dir} is not empty and may have the data of an nsqd: choose a new directory"
        )
    lock = files.lock(str(data_dir / "lock"))
    try:
        registry = Registry(files, data_dir, 0)
        registry.open()
        return _Export(files, out_dir, registry, options or ExportOptions()).run(list(names))
    finally:
        files.close(lock)


class _Export:
    def __init__(
        self, files: Files, out_dir: Path, registry: Registry, options: ExportOptions
    ) -> None:
        self._files = files
        self._out_dir = str(out_dir)
        self._temporary = f"{self._out_dir.rstrip('/')}{_TEMPORARY}"
        self._registry = registry
        self._options = options
        self._report = NsqdExportReport()
        self._dropped: dict[str, int] = {}
        self._lost = 0

    def run(self, names: list[str]) -> NsqdExportReport:
        files = self._files
        rows = self._chosen(names)
        if files.exists(self._temporary):
            files.remove_tree(self._temporary)
        files.make_folder(self._temporary)
        try:
            topics = [self._topic(name, row) for name, row in rows.items()]
            self._refuse_lost()
            files.write_file(
                f"{self._temporary}/{NSQD_NAME}", encode_nsqd(NsqdList(tuple(topics), NSQD_VERSION))
            )
            files.sync_folder(self._temporary)
            files.rename(self._temporary, self._out_dir)
        except ZsqError:
            files.remove_tree(self._temporary)
            raise
        files.sync_folder(str(Path(self._out_dir).absolute().parent))
        self._report.notes += [
            f"{loss}: {count} messages" for loss, count in sorted(self._dropped.items())
        ]
        return self._report

    def _refuse_lost(self) -> None:
        """Refuse the export if messages are lost.

        It runs at the end and names all losses at once.
        """
        if self._lost and not self._options.skip_lost:
            text = (
                f"{self._lost} unfinished messages cannot be read, so nothing was exported: "
                f"{'; '.join(self._report.notes[:NAMED_MAX])}"
            )
            raise DataLoss(
                E_DATA_LOSS,
                (
                    f"{text}. Check the data directory with `zsq fsck`, or leave these messages "
                    "out "
                    "with --skip-lost"
                ),
            )

    def _chosen(self, names: list[str]) -> dict[str, TopicRow]:
        known = {
            name: row
            for name, row in self._registry.topics.items()
            if row.state not in ("deleting", *AWAY)
        }
        unknown = [name for name in names if name not in known]
        if unknown:
            raise NotFound(
                E_NOT_FOUND, f"topics {', '.join(unknown)} are not in this data directory"
            )
        return {name: row for name, row in known.items() if not names or name in names}

    def _topic(self, name: str, row: TopicRow) -> NsqdTopic:
        folder = self._registry.folder(row)
        if not self._files.exists(folder):
            if row.state == "new":  # its creation was not finished
                return NsqdTopic(name)
            raise ForeignDirectory(
                f"{folder}, the directory of topic {name}, is missing; nothing was exported"
            )
        store = open_store(
            self._files, folder, StoreOptions(), TopicIdentity(name, row.uuid, row.base_offset)
        )
        try:
            topic = self._write_topic(name, row, store)
        finally:
            store.close()
        if self._files.exists(f"{folder}/{DELAYED_NAME}"):
            self._write(name, self._delayed(name, row))  # behind the messages that are ready
        return topic

    def _write_topic(self, name: str, row: TopicRow, store: Store) -> NsqdTopic:
        table = store.state.load()
        self._report.notes += store.report.alarms
        end = store.log.end
        visible = end if table.paused_end < 0 else table.paused_end
        reader = MessageReader(store.log, table.start, self._report.notes)
        channels = []
        for channel, its in table.channels.items():
            if is_ephemeral(channel):
                self._report.notes.append(
                    f"{name}/{channel} is ephemeral: nsqd keeps no messages of it on disk; left out"
                )
                continue
            channels.append(NsqdChannel(channel, its.paused))
            queue = queue_name(name, channel)
            self._write(queue, reader.messages(queue, _spans(store, channel, its, visible)))
        waits_from = visible if channels else table.waiting
        self._write(name, reader.messages(name, [OffsetRun(waits_from, end, 0)]))
        self._lost += reader.lost
        return NsqdTopic(name, table.paused_end >= 0, tuple(channels))

    # Queues

    def _write(self, queue: str, messages: Iterable[StoredRecord]) -> None:
        count = size = 0
        batch: list[bytes] = []
        with DiskQueue(
            self._temporary, queue, max_bytes_per_file=self._options.file_bytes_max, min_msg_size=NSQ_HEAD_BYTES,
            max_msg_size=self._options.body_bytes_max + NSQ_HEAD_BYTES, sync_every=_SYNC_AT_CLOSE, files=self._files,
        ) as out:  # fmt: skip
            for message in messages:
                if len(message.body) > self._options.body_bytes_max:
                    self._too_big(queue, message)
                    continue
                batch.append(encode_message(self._converted(message)))
                count += 1
                size += len(message.body)
                if len(batch) >= BATCH_COUNT or size >= BATCH_BYTES:
                    out.put_many(batch)
                    batch, size = [], 0
            out.put_many(batch)
        self._report.queues[queue] = self._report.queues.get(queue, 0) + count

    def _too_big(self, queue: str, message: StoredRecord) -> None:
        text = (
            f"{queue}: the body at offset {message.offset} has {len(message.body)} bytes; "
            f"nsqd's limit is {self._options.body_bytes_max}"
        )
        if not self._options.skip_too_big:
            raise UsageError(
                E_TOO_BIG,
                (
                    f"{text}; raise --max-msg-size here and in nsqd, or leave out larger bodies "
                    "with --skip-too-big"
                ),
            )
        self._report.notes.append(f"{text}; left out")

    def _converted(self, message: StoredRecord) -> NsqMessage:
        headers = user_headers(message.headers)
        known = headers.pop(ID_HEADER, "")
        if not (isinstance(known, str) and len(known) == NSQ_ID_BYTES and _HEX.issuperset(known)):
            known = f"{self._registry.node << _NODE_SHIFT | message.offset:0{NSQ_ID_BYTES}x}"
        for columns, value in (("keys", message.key), ("tags", message.tag), ("headers", headers)):
            if value:
                note = f"{columns} are left out, because NSQ has none"
                self._dropped[note] = self._dropped.get(note, 0) + 1
        return NsqMessage(message.timestamp_ns, message.attempts, known.encode(), message.body)

    # Delayed publishes

    def _delayed(self, name: str, row: TopicRow) -> Iterator[StoredRecord]:
        """Yield messages that are not due. nsqd keeps such messages only in memory."""
        store = DelayedStore(
            f"{self._registry.folder(row)}/{DELAYED_NAME}", bytes.fromhex(row.uuid)
        )
        try:
            count = store.summary.messages
            if not count:
                return
            if self._options.delayed == REFUSE:
                text = (
                    f"topic {name} has {count} delayed messages, and nsqd cannot keep a delay "
                    "on disk"
                )
                raise Refused(
                    E_NOT_EMPTY,
                    (
                        f"{text}; export them without delay by --delayed now, or leave them out by "
                        "--delayed skip"
                    ),
                )
            verb = "exported without delay" if self._options.delayed == NOW else "left out"
            self._report.notes.append(f"{name}: {count} delayed messages are {verb}")
            if self._options.delayed == SKIP:
                return
            after: DelayedKey | None = None
            while messages := store.listed(after, _DELAYED_AT_ONCE, 1 << 40):
                for message in messages:
                    yield StoredRecord(
                        message.key.serial,
                        time.time_ns(),
                        0,
                        message.body,
                        message.message_key,
                        message.message_tag,
                        None,
                    )
                count -= len(messages)
                after = messages[-1].key
            if count > 0:
                self._report.notes.append(
                    f"{name}: {count} delayed messages cannot be read (damage)"
                )
                self._lost += count
        finally:
            store.close()


def _spans(store: Store, channel: str, row: ChannelRow, end: int) -> Iterator[OffsetRun]:
    """Yield the unfinished offsets of a channel, ascending. Deferred holes are read one by one."""
    holes = (
        OffsetRun(hole.start, hole.start + hole.count, hole.attempts)
        for hole in store.state.holes(channel)
    )
    deferred = (
        OffsetRun(hole.start, hole.start + hole.count, hole.attempts)
        for hole in store.state.deferred_rows(channel)
    )
    yield from heapq.merge(holes, deferred)
    if row.next_offset < end:
        yield OffsetRun(row.next_offset, end, 0)
