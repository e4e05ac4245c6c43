"""Import of a stopped nsqd's data: all or nothing, and only once.

1. Lock nsqd's folder as nsqd does (this fails while nsqd runs), and the data directory as `zsq
   serve` does.

2. If the registry has this source's digest and any of its topics still exists, report that and end.

3. Write to the registry that an import has begun, with the numbers that its topics will have. No
other topic gets those numbers.

4. Build each topic in `import.tmp`, sync it, and read it back.

5. Rename all of them into `topics/`. A broker that starts now does not know them.

6. Commit with one write of the registry: the topics' rows and the record of the import.

After a crash before step 6, the broker's next start or the next import removes the unfinished
topics, by the numbers noted in step 3. After a later crash, nothing is left to do.

A topic is built as a store with a log and the rows of its channels. The log first gets the backlogs
of the channels, one after another. Then it gets the messages that wait in the topic itself, which
are common to all channels. A channel's row points to the start of the common part. Its own backlog,
which lies before that, becomes holes (start, count, attempts). The backlogs of other channels count
as finished for it.

The largest backlog is written last, directly before the common part, because then it needs few
holes. In this backlog, the messages that were already attempted are written first, and become
holes. The row of its channel points to the first message after them. So a topic with one channel,
the usual case, is read like any other topic.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...actors.supervisor.import_remains import ASIDE, BEGUN, DONE, clear_imports
from ...actors.supervisor.topics.registry import Registry, TopicRow
from ...actors.supervisor.topics.registry_format import ImportRecord
from ...storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from ...storage.errors import Damaged, DiskFull, ForeignDirectory
from ...storage.files import Files
from ...storage.log.log import Log
from ...storage.nsq.disk_queue_format import NSQ_HEAD_BYTES, NsqdTopic, NsqMessage, queue_name
from ...storage.space import RESERVE_BYTES_MAX, RESERVE_SHARE
from ...storage.state.channel_row import ChannelRow
from ...storage.state.state import StateBatch
from ...transport.block.block import BLOCK_BYTES_MAX, Limits, pack
from ...transport.errors import E_EXISTS, E_TOO_BIG, UsageError
from ...transport.wire.codec import pack_headers
from .attempt_runs import AttemptRuns
from .salvage import LostBytes
from .source import NsqdSource, SourceReport

BLOCK_COUNT: Final = 1_000
BLOCK_BYTES: Final = 256 * 1024
BODY_BYTES_MAX: Final = BLOCK_BYTES_MAX - 4096  # the largest body that fits into a block
READ_BYTES: Final = 1024 * 1024
ID_HEADER: Final = "nsq_id"
_LIMITS: Final = Limits(max_msg_size=BODY_BYTES_MAX)
# Bytes that a message takes besides its body: for its offsets in columns, its time, its headers.
_MESSAGE_OVERHEAD: Final = 64


@dataclass(slots=True)
class BuiltTopic:
    """A built topic.

    `channels` counts the messages of each backlog, `waiting` those of the topic.
    """

    name: str
    paused: bool
    messages: int = 0
    waiting: int = 0
    channels: dict[str, int] = field(default_factory=dict)


class _Writer:
    """Packs messages into blocks, appends them, and keeps a digest of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._messages: list[NsqMessage] = []
        self._bytes = 0
        self.end = log.end
        self.digest = hashlib.sha256()

    def add(self, message: NsqMessage) -> int:
        """Add a message and return its offset."""
        size = len(message.body) + _MESSAGE_OVERHEAD
        if self._messages and (
            self._bytes + size > BLOCK_BYTES or len(self._messages) == BLOCK_COUNT
        ):
            self.flush()
        self._messages.append(message)
        self._bytes += size
        self.digest.update(b"%d:" % len(message.body))
        self.digest.update(message.body)
        self.end += 1
        return self.end - 1

    def flush(self) -> None:
        if not self._messages:
            return
        bodies = [message.body for message in self._messages]
        headers = [pack_headers({ID_HEADER: message.id.decode()}) for message in self._messages]
        block = pack(
            bodies,
            headers=headers,
            times=[message.timestamp_ns for message in self._messages],
            limits=_LIMITS,
        )
        self._log.append([block], time.time_ns())
        self._messages, self._bytes = [], 0


class TopicBuilder:
    """Builds topics.

    With `skip_too_big`, a body that fits into no block is left out and reported. Otherwise the
    import is refused.
    """

    def __init__(
        self,
        files: Files,
        source: NsqdSource,
        report: SourceReport,
        options: StoreOptions,
        *,
        skip_too_big: bool = False,
    ) -> None:
        self._files = files
        self._source = source
        self._report = report
        self._options = options
        self._skip_too_big = skip_too_big

    def build(self, topic: NsqdTopic, directory: str, identity: TopicIdentity) -> BuiltTopic:
        """Build a topic. When this returns, it is on disk and was read back correctly."""
        create_store(self._files, directory, identity, self._options)
        store = open_store(self._files, directory, self._options, identity)
        try:
            built, batch, digest = self._fill(topic, store)
            # `close` syncs the log; until it returns, nothing refers to this directory.
            store.state.commit(batch)
        finally:
            store.close()
        self._verify(directory, identity, built, batch, digest)
        return built

    def _fill(self, topic: NsqdTopic, store: Store) -> tuple[BuiltTopic, StateBatch, str]:
        built = BuiltTopic(topic.name, topic.paused)
        writer = _Writer(store.log)
        batch = StateBatch()
        cursors: dict[str, int] = {}
        by_size = sorted(
            topic.channels,
            key=lambda listed: self._source.bytes(queue_name(topic.name, listed.name)),
        )
        for channel in by_size:
            begin = writer.end
            queue = queue_name(topic.name, channel.name)
            runs = AttemptRuns()
            last = channel is by_size[-1]
            for message in self._messages(queue):
                if message.attempts or not last:
                    runs.add(writer.add(message), message.attempts)
            if last:
                cursors[channel.name] = writer.end
                for message in self._messages(queue, again=True):
                    if not message.attempts:
                        writer.add(message)
            batch.hole_puts += [
                (channel.name, run.start, run.count, run.attempts, 0) for run in runs.finish()
            ]
            built.channels[channel.name] = writer.end - begin
        common = writer.end
        # End the block here. A channel of a paused topic gets only blocks that lie completely
        # before the pause.
        writer.flush()
        for message in self._messages(queue_name(topic.name)):
            writer.add(message)
        writer.flush()
        now = time.time_ns()
        for channel in topic.channels:
            batch.channel_puts[channel.name] = ChannelRow(
                cursors.get(channel.name, common), channel.paused, now
            )
        batch.applied_offset = batch.synced_end = writer.end
        if topic.paused:  # in nsqd, a paused topic passes its own backlog to no channel
            batch.paused_end = common
        built.waiting = writer.end - common
        built.messages = writer.end - store.log.start
        return built, batch, writer.digest.hexdigest()

    def _messages(self, queue: str, *, again: bool = False) -> Iterable[NsqMessage]:
        """Yield a queue's messages. The second reading (`again`) reports nothing."""
        report = SourceReport() if again else self._report
        for file, position, message in self._source.messages(queue, report):
            if len(message.body) > BODY_BYTES_MAX:
                size = len(message.body)
                loss = LostBytes(
                    file,
                    position,
                    size + NSQ_HEAD_BYTES,
                    f"the body has {size} bytes; the limit is {BODY_BYTES_MAX}",
                )
                if not self._skip_too_big:
                    raise UsageError(
                        E_TOO_BIG,
                        (
                            f"{loss}. Nothing was imported. To import all other messages, use "
                            "--skip-too-big"
                        ),
                    )
                report.lose(loss, left_out=True)
                continue
            yield message

    def _verify(
        self,
        directory: str,
        identity: TopicIdentity,
        built: BuiltTopic,
        batch: StateBatch,
        digest: str,
    ) -> None:
        """Read the whole topic back, as the broker will. Raises `Damaged` if anything differs."""
        store = open_store(self._files, directory, self._options, identity)
        try:
            sha256 = hashlib.sha256()
            offset = store.log.start
            while blocks := store.log.read(offset, READ_BYTES, store.log.end):
                for block in blocks:
                    for body in block.body.values():
                        assert body is not None
                        sha256.update(b"%d:" % len(body))
                        sha256.update(body)
                    offset = block.next_offset
            table = store.state.load()
            if sha256.hexdigest() != digest or offset - store.log.start != built.messages:
                raise Damaged(
                    f"{directory}: the messages of topic {built.name} were not written "
                    "correctly; check the disk and try again"
                )
            holes = {
                (name, *hole) for name in batch.channel_puts for hole in store.state.holes(name)
            }
            paused_end = -1 if batch.paused_end is None else batch.paused_end
            if (table.channels, holes, table.paused_end) != (
                batch.channel_puts,
                set(batch.hole_puts),
                paused_end,
            ):
                raise Damaged(
                    f"{directory}: the channels of topic {built.name} were not written "
                    "correctly; check the disk and try again"
                )
        finally:
            store.close()


# The output is larger than the input by the id header, the time and block headers. The share is
# largest for small bodies.
_GROWTH: Final = 1.1


@dataclass(slots=True)
class ImportReport:
    """Result of an import.

    `again` is True if the source was imported before, and nothing was done now. Then `still` names
    its topics, and `lost_before` counts its earlier losses. `found` has the losses and notes.
    """

    again: bool = False
    still: list[str] = field(default_factory=list)
    lost_before: int = 0
    topics: list[BuiltTopic] = field(default_factory=list)
    found: SourceReport = field(default_factory=SourceReport)


def import_nsqd(
    files: Files, nsqd_dir: str, data_dir: Path, *, sync: str = "always", node_id: int = 0, options: StoreOptions | None = None,
    skip_too_big: bool = False,
) -> ImportReport:  # fmt: skip
    """Import a stopped nsqd's data directory.

    On an error nothing is changed. Raises `Locked` if nsqd or a broker runs, `ForeignDirectory`,
    `UsageError` if a name exists or a body is too large, or `DiskFull`.
    """
    with NsqdSource(files, nsqd_dir) as source:
        if not files.exists(str(data_dir)):
            files.make_folder(str(data_dir))
        lock = files.lock(str(data_dir / "lock"))
        try:
            registry = Registry(files, data_dir, node_id)
            registry.open()
            return _Import(
                files, source, data_dir, registry, sync, options or StoreOptions(), skip_too_big
            ).run()
        finally:
            files.close(lock)


class _Import:
    def __init__(
        self,
        files: Files,
        source: NsqdSource,
        data_dir: Path,
        registry: Registry,
        sync: str,
        options: StoreOptions,
        skip_too_big: bool,
    ) -> None:
        self._files = files
        self._source = source
        self._data_dir = data_dir
        self._registry = registry
        self._sync = sync
        self._options = options
        self._skip_too_big = skip_too_big
        self._aside = str(data_dir / ASIDE)

    def run(self) -> ImportReport:
        report = ImportReport()
        digest = self._source.digest()
        record = self._registry.imports.get(digest)
        if record is not None and record["state"] == DONE:
            came = record.get("topics", {})
            report.still = [name for name in came if name in self._registry.topics]
            if report.still or not came:
                report.again = True
                report.lost_before = record.get("lost_count", 0)
                return report
            report.found.notes.append(
                f"{self._source.folder} was imported before, but none of its topics exists any "
                "more; imported again"
            )
        self._clear()
        topics = self._source.topics(report.found)
        taken = [topic.name for topic in topics if topic.name in self._registry.topics]
        if taken:
            text = (
                f"topics {', '.join(taken)} exist already in {self._data_dir}, so nothing was "
                "imported"
            )
            raise UsageError(
                E_EXISTS, f"{text}; delete these topics or choose another data directory"
            )
        self._check_space(
            [
                queue_name(t.name, c)
                for t in topics
                for c in ("", *(channel.name for channel in t.channels))
            ]
        )
        rows = self._begin(digest, [topic.name for topic in topics])
        self._files.make_folder(self._aside)
        builder = TopicBuilder(
            self._files, self._source, report.found, self._options, skip_too_big=self._skip_too_big
        )
        try:
            for topic in topics:
                row = rows[topic.name]
                identity = TopicIdentity(topic.name, row.uuid, row.base_offset)
                report.topics.append(builder.build(topic, self._built(row), identity))
        except (UsageError, DiskFull):
            self._clear()  # frees the space now, not at the next import
            raise
        self._commit(digest, rows, report)
        return report

    def _built(self, row: TopicRow) -> str:
        return f"{self._aside}/{row.number:06d}"

    def _clear(self) -> None:
        """Remove the remains of imports that did not finish."""
        clear_imports(self._files, self._data_dir, self._registry)

    def _check_space(self, queues: list[str]) -> None:
        """Check the free space first. A disk that fills up later does no harm, but wastes time."""
        need = int(sum(self._source.bytes(queue) for queue in queues) * _GROWTH)
        reserve = self._options.reserve_bytes
        if reserve is None:
            reserve = min(
                RESERVE_BYTES_MAX, self._files.total_bytes(str(self._data_dir)) // RESERVE_SHARE
            )
        free = self._files.free_bytes(str(self._data_dir))
        if need > free - reserve:
            text = (
                f"{self._data_dir}: the import needs about {need} bytes; {free} are free, and "
                f"{reserve} must stay free"
            )
            raise DiskFull(f"{text}; free some space and try again")

    def _begin(self, digest: str, names: list[str]) -> dict[str, TopicRow]:
        """Reserve the topics' numbers. The offsets of a reused name continue after the old ones."""
        registry = self._registry
        rows = {}
        for name in names:
            rows[name] = TopicRow(
                registry.next_number,
                uuid.uuid4().hex,
                self._sync,
                registry.ended.get(name, 0),
                "live",
            )
            registry.next_number += 1
        registry.imports[digest] = {
            "state": BEGUN,
            "numbers": [row.number for row in rows.values()],
            "from": self._source.folder,
        }
        registry.save()
        return rows

    def _commit(self, digest: str, rows: dict[str, TopicRow], report: ImportReport) -> None:
        topics = str(self._data_dir / "topics")
        for row in rows.values():
            if self._files.exists(self._registry.folder(row)):
                raise ForeignDirectory(
                    f"{self._registry.folder(row)} exists, but no topic has that number; move "
                    "it away and try again"
                )
            self._files.rename(self._built(row), self._registry.folder(row))
        self._files.sync_folder(topics)
        record: ImportRecord = {
            "state": DONE,
            "from": self._source.folder,
            "time_ns": time.time_ns(),
            "topics": {topic.name: topic.messages for topic in report.topics},
            "lost_count": report.found.lost_count,
        }
        self._registry.topics.update(rows)
        self._registry.imports[digest] = record
        self._registry.save()
        # The import is complete. If the empty folder cannot be removed now, the next import removes
        # it.
        with contextlib.suppress(OSError):
            self._files.remove_tree(self._aside)
