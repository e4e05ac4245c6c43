"""One topic of an nsqd as a store of ours, made aside: log, channels' rows, all synced and read back.

The log gets the channels' backlogs one after another, then what waits in the topic itself, for all channels. A channel's row stands at
the begin of that common part; its own backlog lies behind that as holes (start, count, attempts), and what lies there of other
channels is finished for it. The largest backlog comes last and needs few holes: its channel's row stands before it, behind those messages
only that were sent already, which are therefore written first. So a topic with one channel, the usual case, is read like any other.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ...storage.disk_queue_format import NSQ_HEAD_BYTES, NsqdTopic, NsqMessage, queue_name
from ...storage.errors import Damaged
from ...storage.files import Files
from ...storage.log import Log
from ...storage.state import StateBatch
from ...storage.store import Identity, Store, StoreOptions, create_store, open_store
from ...transport.block import BLOCK_BYTES_MAX, Limits, pack
from ...transport.codec import pack_headers
from ...transport.errors import E_TOO_BIG, UsageError
from .runs import Runs
from .salvage import Loss
from .source import NsqdSource, SourceReport

BLOCK_COUNT: Final = 1_000
BLOCK_BYTES: Final = 256 * 1024
BODY_BYTES_MAX: Final = BLOCK_BYTES_MAX - 4096  # a body that is a block of its own
READ_BYTES: Final = 1024 * 1024
ID_HEADER: Final = "nsq_id"
_LIMITS: Final = Limits(message_bytes_max=BODY_BYTES_MAX)
_MESSAGE_OVERHEAD: Final = 64  # columns' offsets, time and headers of one message


@dataclass(slots=True)
class BuiltTopic:
    """What became of a topic. `channels`: messages of each one's own backlog; `waiting`: of the topic's."""

    name: str
    paused: bool
    messages: int = 0
    waiting: int = 0
    channels: dict[str, int] = field(default_factory=dict)


class _Writer:
    """Packs messages into blocks and appends them; remembers what went in."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._messages: list[NsqMessage] = []
        self._bytes = 0
        self.end = log.end
        self.digest = hashlib.sha256()

    def add(self, message: NsqMessage) -> int:
        """Its offset."""
        size = len(message.body) + _MESSAGE_OVERHEAD
        if self._messages and (self._bytes + size > BLOCK_BYTES or len(self._messages) == BLOCK_COUNT):
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
        block = pack(bodies, headers=headers, times=[message.timestamp_ns for message in self._messages], limits=_LIMITS)
        self._log.append([block], time.time_ns())
        self._messages, self._bytes = [], 0


class TopicBuilder:
    """`skip_too_big`: name and leave out a body that no block can hold, instead of refusing all."""

    def __init__(
        self, files: Files, source: NsqdSource, report: SourceReport, options: StoreOptions, *, skip_too_big: bool = False
    ) -> None:
        self._files = files
        self._source = source
        self._report = report
        self._options = options
        self._skip_too_big = skip_too_big

    def build(self, topic: NsqdTopic, directory: str, identity: Identity) -> BuiltTopic:
        """On disk when it returns, and found to be as it was written."""
        create_store(self._files, directory, identity, self._options)
        store = open_store(self._files, directory, self._options, identity)
        try:
            built, batch, digest = self._fill(topic, store)
            store.state.commit(batch)  # the log is synced by `close`: until it has come back nobody knows of this directory
        finally:
            store.close()
        self._verify(directory, identity, built, batch, digest)
        return built

    def _fill(self, topic: NsqdTopic, store: Store) -> tuple[BuiltTopic, StateBatch, str]:
        built = BuiltTopic(topic.name, topic.paused)
        writer = _Writer(store.log)
        batch = StateBatch()
        cursors: dict[str, int] = {}
        by_size = sorted(topic.channels, key=lambda one: self._source.bytes(queue_name(topic.name, one.name)))
        for channel in by_size:
            begin = writer.end
            queue = queue_name(topic.name, channel.name)
            runs = Runs()
            last = channel is by_size[-1]
            for message in self._messages(queue):
                if message.attempts or not last:
                    runs.add(writer.add(message), message.attempts)
            if last:
                cursors[channel.name] = writer.end
                for message in self._messages(queue, again=True):
                    if not message.attempts:
                        writer.add(message)
            batch.hole_puts += [(channel.name, run.start, run.count, run.attempts, 0) for run in runs.finish()]
            built.channels[channel.name] = writer.end - begin
        common = writer.end
        writer.flush()  # a block ends here: a channel of a paused topic gets only those that lie before the pause as a whole
        for message in self._messages(queue_name(topic.name)):
            writer.add(message)
        writer.flush()
        now = time.time_ns()
        for channel in topic.channels:
            row = {"next": cursors.get(channel.name, common), "paused": channel.paused, "created_ns": now, "counters": {}}
            batch.channel_puts[channel.name] = row
        batch.applied_offset = batch.synced_end = writer.end
        if topic.paused:  # nsqd gives a paused topic's own backlog to no channel
            batch.paused_end = common
        built.waiting = writer.end - common
        built.messages = writer.end - store.log.start
        return built, batch, writer.digest.hexdigest()

    def _messages(self, queue: str, *, again: bool = False) -> Iterable[NsqMessage]:
        """Of a queue that is read a second time (`again`) nothing is reported twice."""
        report = SourceReport() if again else self._report
        for file, position, message in self._source.messages(queue, report):
            if len(message.body) > BODY_BYTES_MAX:
                loss = Loss(file, position, len(message.body) + NSQ_HEAD_BYTES, f"over the limit of {BODY_BYTES_MAX} bytes for a body")
                if not self._skip_too_big:
                    raise UsageError(E_TOO_BIG, f"{loss}; nothing was taken over; with --skip-too-big it is left out")
                report.lose(loss, left_out=True)
                continue
            yield message

    def _verify(self, directory: str, identity: Identity, built: BuiltTopic, batch: StateBatch, digest: str) -> None:
        """Read it all back, as the broker will. `Damaged` where anything is not as it was written."""
        store = open_store(self._files, directory, self._options, identity)
        try:
            found = hashlib.sha256()
            offset = store.log.start
            while blocks := store.log.read(offset, READ_BYTES, store.log.end):
                for block in blocks:
                    for body in block.body.values():
                        assert body is not None
                        found.update(b"%d:" % len(body))
                        found.update(body)
                    offset = block.next_offset
            table = store.state.load()
            if found.hexdigest() != digest or offset - store.log.start != built.messages:
                raise Damaged(
                    f"{directory}: what was written of topic {built.name} is not what can be read; look at the disk and try again"
                )
            holes = {(name, *hole) for name in batch.channel_puts for hole in store.state.holes(name)}
            paused_end = -1 if batch.paused_end is None else batch.paused_end
            if (table.channels, holes, table.paused_end) != (batch.channel_puts, set(batch.hole_puts), paused_end):
                raise Damaged(f"{directory}: the channels of topic {built.name} are not as they were written; try another disk")
        finally:
            store.close()
