"""Protocol messages between the actors. Gateways refuse them from clients."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from ..records import record
from ..settings import NewChannelSettings
from .protocol_client import Wire

# fmt: off
__all__ = [
    "Alarm",
    "Ask",
    "Attach",
    "Behind",
    "Born",
    "BrokersSeen",
    "Credit",
    "DeferredAt",
    "DirectoryEntries",
    "DirectoryTrouble",
    "Dropped",
    "Due",
    "FetchSegment",
    "ForgetArchive",
    "Gone",
    "HangUp",
    "Head",
    "Hint",
    "Hung",
    "Offer",
    "OpenArchive",
    "OpenChannel",
    "OpenShipping",
    "Over",
    "PoolSize",
    "Pulse",
    "Save",
    "Scan",
    "ScanOrder",
    "ScanReport",
    "Scanned",
    "Schedules",
    "Ship",
    "ShipAgain",
    "ShipBase",
    "ShipNow",
    "Stop",
    "Targets",
    "UploadChunk",
    "WakeTopic",
    "WriteManifest",
]
# fmt: on


@record
class Head(Wire):
    """Topic to its channels: the new durable end."""

    op: ClassVar[int] = 128
    head: int


# Channel, topic and storage


@record
class OpenChannel(Wire):
    """Channel to storage: asks for the channel's row. If it does not exist, storage creates it with
    these settings (`transport/settings.py`; `start` is one of them).

    The row of an `#ephemeral` channel is only in storage's memory, and is removed when the
    channel's process ends. A *hole* is a run of messages before the channel's cursor that are not
    finished. Done.data: {"row", "holes": those that are not deferred, "deferred": (rows, messages,
    next due time), "end", "start", "more"}. While `more` is true, another Done with further holes
    follows.
    """

    op: ClassVar[int] = 129
    request: int
    channel: str
    settings: NewChannelSettings = field(default_factory=NewChannelSettings)


@record
class Save(Wire):
    """Channel to storage: asks it to commit these rows. `holes_put`: (start, count, attempts,
    due_ns) of holes to write. `holes_gone`: the starts of holes to remove. Storage answers with
    Done after the commit. Done.data: {"withholds": True} if no finish may be confirmed now, because
    a standby may have taken over.

    A row with a due time is *deferred*: it is only in the state store, ordered by that time, until
    Due returns it. If a Save puts the same start with due time 0, or removes it, it is no longer
    deferred. With `clear`, all deferred rows are removed before these rows are written. With
    `more`, the next Save belongs to the same commit, because a frame has a size limit. Only the
    last Save of a commit is answered.
    """

    op: ClassVar[int] = 130
    request: int
    channel: str
    row: dict[str, Any]
    holes_put: tuple[tuple[int, int, int, int], ...]
    holes_gone: tuple[int, ...]
    clear: bool
    more: bool


@record
class Attach(Wire):
    """Channel to topic: asks for blocks from `next_offset` on. The topic sends Offers, or Behind.

    `credit_bytes` is the total granted since the link began.
    """

    op: ClassVar[int] = 131
    channel: str
    next_offset: int
    credit_bytes: int


@record
class Credit(Wire):
    """Channel to topic: the new total of bytes granted since the link began."""

    op: ClassVar[int] = 132
    credit_bytes: int


@record
class Offer(Wire):
    """Topic to channel: consecutive blocks follow."""

    op: ClassVar[int] = 133
    head: int


@record
class Behind(Wire):
    """Topic to channel: the topic does not hold the channel's next block in memory.

    The channel reads it from storage, then attaches again.
    """

    op: ClassVar[int] = 134
    head: int


@record
class Due(Wire):
    """Channel to storage: asks for the deferred rows that are due by `until_ns` (wall clock), but
    only for the earliest `limit` of them.

    Done.data: {"rows": ((start, count, attempts, due_ns), ...), "next_due_ns": the due time of the
    first row after those, or 0 for none, "deferred": the number of messages in all deferred rows}.
    The rows stay deferred until a Save changes them.
    """

    op: ClassVar[int] = 135
    request: int
    channel: str
    until_ns: int
    limit: int


@record
class DeferredAt(Wire):
    """Channel to storage: asks for the deferred rows that have some of these offsets.

    Done.data: {"rows": ((start, count, attempts, due_ns), ...)}. The rows stay deferred until a
    Save changes them.
    """

    op: ClassVar[int] = 136
    request: int
    channel: str
    offsets: tuple[int, ...]


@record
class Dropped(Wire):
    """Storage to channel: messages below `start` were removed, finished or not, because of the
    topic's limit (`drop-oldest`).
    """

    op: ClassVar[int] = 137
    start: int


# Scan


@record
class ScanOrder(Wire):
    """Scan loop to a worker: asks it to send Scan to these targets (key, endpoint)."""

    op: ClassVar[int] = 138
    request: int
    targets: tuple[tuple[int, str], ...]


@record
class Scan(Wire):
    """Scan worker to a channel or a storage: process everything that is due now."""

    op: ClassVar[int] = 139
    request: int


@record
class Scanned(Wire):
    """Channel or storage to scan worker: `dirty` is True if something was due. `next_due_ns`: the
    next due time (monotonic ns of this machine, 0 for none).
    """

    op: ClassVar[int] = 140
    request: int
    dirty: bool
    next_due_ns: int


@record
class ScanReport(Wire):
    """Worker to scan loop: (key, state, next due time) of each target.

    The state is 1 if something was due, and 0 if nothing was due. It is -1 if the target has not
    answered in time. It is -2 if the answer is missing but the worker still waits for it.

    The worker sends the first report soon. If some targets have not answered by then, another
    report follows when they have answered, or when the worker no longer waits for them.
    """

    op: ClassVar[int] = 141
    request: int
    results: tuple[tuple[int, int, int], ...]


@record
class Hint(Wire):
    """Channel or storage to scan loop: the sender's next due time became earlier."""

    op: ClassVar[int] = 142
    key: int
    next_due_ns: int


@record
class HangUp(Wire):
    """Scan loop to a worker: these endpoints no longer exist."""

    op: ClassVar[int] = 143
    endpoints: tuple[str, ...]


# Storage and the archive actor


@record
class OpenArchive(Wire):
    """Storage to the archive actor: asks which archive it uses.

    Done.data: {"place": the `place` of chunks in this archive, "writes": False if this broker may
    only read it, because its data is a copy of another broker's}. Failed: E_BUCKET.
    """

    op: ClassVar[int] = 144
    request: int


@record
class UploadChunk(Wire):
    """Storage to the archive actor: upload the sealed chunk that begins at this offset, from this
    folder.

    Done.data: {"chunk": the fields of `ArchivedChunk`} when it is verified. Failed: E_BUCKET.
    `uuid` is the topic's, with 32 hex digits.
    """

    op: ClassVar[int] = 145
    request: int
    uuid: str
    folder: str
    base_offset: int
    index_every_bytes: int


@record
class FetchSegment(Wire):
    """Storage to the archive actor: fetch a segment of a chunk, or its index for the number -1, to
    the file `path`.

    `chunk`: the fields of `ArchivedChunk`. Done.data: {"bytes": the size of the file}. Failed:
    E_BUCKET.
    """

    op: ClassVar[int] = 146
    request: int
    uuid: str
    chunk: tuple[int, ...]
    number: int
    path: str


@record
class WriteManifest(Wire):
    """Storage to the archive actor: write the list of the topic's chunks in the bucket, then remove
    the objects of chunks below `removable` that earlier lists name.

    `chunks`: the fields of each `ArchivedChunk`. `gone`: chunks that expired before a list named
    them. `removable` is at most `start`: a broker that is restored from the bucket needs what is
    between the two. Done.data: {"number": the manifest's}. Failed: E_BUCKET, or E_FENCED if the
    bucket has the archive of another copy of this topic.
    """

    op: ClassVar[int] = 147
    request: int
    topic: str
    uuid: str
    start: int
    end: int
    chunks: tuple[tuple[int, ...], ...]
    gone: tuple[tuple[int, ...], ...] = ()
    removable: int = 0


@record
class ForgetArchive(Wire):
    """Supervisor to the archive actor: a topic was deleted, so remove all its objects."""

    op: ClassVar[int] = 148
    uuid: str


@record
class OpenShipping(Wire):
    """Storage to the archive actor: asks what the log of ticks has of this topic.

    Done.data: {"period_ns": the time between two ticks}. If it has something, also {"stream",
    "sequence", "end", "reserved", "chunk", "position", "base_number"} as in `Tail` of
    storage/bucket/shipping/tick_format.py. {"writes": False} if nothing is shipped, because the
    broker's data is a copy of another one's. Failed: E_BUCKET, or E_FENCED if another copy of this
    broker has taken over.
    """

    op: ClassVar[int] = 149
    request: int
    uuid: str


@record
class Ship(Wire):
    """Storage to the archive actor: put this piece of a topic into the log of ticks.

    The fields are those of `Piece` in storage/bucket/shipping/tick_format.py. `folder` has the
    chunk files whose ranges are meant. `oldest_ns` is the monotonic time since which the oldest
    part of the piece waits. `is_urgent` means that somebody waits for the answer. `changes` has the
    frames of changed rows.

    Done.data: {"period_ns"}, when the log has the piece, and all ticks before it. Failed: E_BUCKET
    or E_FENCED.
    """

    op: ClassVar[int] = 150
    request: int
    uuid: str
    folder: str
    stream: int
    sequence: int
    begins: bool
    base: str
    end: int
    reserved: int
    kept_from: int
    ranges: tuple[tuple[int, int, int], ...]
    oldest_ns: int
    is_urgent: bool
    changes: bytes


@record
class ShipBase(Wire):
    """Storage to the archive actor: upload the file with all rows of a topic's stores.

    Done.data: {"base": the name of the object}. Failed: E_BUCKET.
    """

    op: ClassVar[int] = 151
    request: int
    uuid: str
    stream: int
    path: str


@record
class ShipAgain(Wire):
    """Archive actor to storage: old ticks should be removed, and this topic still needs them.

    `begins`: ship all rows again. `roll_below`: end the log file, if it begins below this offset.
    """

    op: ClassVar[int] = 152
    begins: bool
    roll_below: int


@record
class ShipNow(Wire):
    """Supervisor to archive actor: the broker stops, so put what waits into the bucket at once.

    `is_last`: all topics have ended, and everything is shipped. So a standby may take over now.
    """

    op: ClassVar[int] = 153
    is_last: bool = False


@record
class WakeTopic(Wire):
    """Archive actor to supervisor: wake this topic, so that it ships all rows again."""

    op: ClassVar[int] = 154
    uuid: str


@record
class DirectoryEntries(Wire):
    """Archive actor to supervisor: entries of the cluster's directory, the first one with the
    number `first` (storage/cluster/directory.py).

    An archive actor that has started sends all entries from 0 on. It sends several of these
    messages if there are many, the last one with `is_all`. It does so also if there are none.
    """

    op: ClassVar[int] = 155
    first: int
    entries: tuple[bytes, ...]
    is_all: bool = True


@record
class DirectoryTrouble(Wire):
    """Archive actor to supervisor: why it cannot read the cluster's directory, or "" if it can
    again.
    """

    op: ClassVar[int] = 156
    text: str


@record
class BrokersSeen(Wire):
    """Archive actor to supervisor: the brokers of the cluster that announce themselves
    (storage/cluster/notices.py).

    Each row has the uuid, how many seconds ago the last notice was new, and the free and all bytes
    of the disk. They are sent only while a broker drains, or `auto` is on.
    """

    op: ClassVar[int] = 157
    brokers: tuple[tuple[str, float, int, int], ...]


# Supervisor and child processes


@record
class Born(Wire):
    """Child to supervisor: it has started. `data`: its endpoints, and what it recovered."""

    op: ClassVar[int] = 158
    key: int
    incarnation: int
    data: dict[str, Any]


@record
class Pulse(Wire):
    """Child to supervisor, each second or in reply to Ask: it is alive, with its statistics.

    `request` is the number of the Ask, else 0. `details` is filled only for a detailed Ask.
    """

    op: ClassVar[int] = 159
    key: int
    request: int
    stats: dict[str, Any]
    details: dict[str, Any]


@record
class Ask(Wire):
    """Supervisor to child: asks for a Pulse now.

    With `detailed`, the Pulse includes statistics that take more work (consumers, latencies,
    memory).
    """

    op: ClassVar[int] = 160
    request: int
    detailed: bool


@record
class Stop(Wire):
    """Supervisor to child: finish what is in progress, answer all waiting requests, and end."""

    op: ClassVar[int] = 161


@record
class Targets(Wire):
    """Supervisor to scan loop: all channels and topics, as (key, endpoint), and all workers, as
    endpoints.
    """

    op: ClassVar[int] = 162
    channels: tuple[tuple[int, str], ...]
    workers: tuple[str, ...]


@record
class PoolSize(Wire):
    """Scan loop to supervisor: the number of workers that it wants."""

    op: ClassVar[int] = 163
    workers: int


@record
class Hung(Wire):
    """Scan loop to supervisor: this channel missed its scans."""

    op: ClassVar[int] = 164
    key: int


@record
class Over(Wire):
    """Ephemeral channel to supervisor: delete the channel, because its last consumer has left."""

    op: ClassVar[int] = 165
    key: int


@record
class Alarm(Wire):
    """Supervisor to the sender of alarms: these events, as dictionaries (see docs/alarms.md), for
    all receivers.
    """

    op: ClassVar[int] = 166
    events: tuple[dict[str, Any], ...]


@record
class Schedules(Wire):
    """Supervisor to scheduler: all schedules of the topics that this broker serves now.

    Each row is that of the registry (actors/settings/schedule_settings.py), with `topic` and
    `name`.
    """

    op: ClassVar[int] = 167
    rows: tuple[dict[str, Any], ...]


@record
class Gone(Wire):
    """Supervisor to gateways: the owner of an endpoint died. Supervisor to topics and channels: a
    gateway died, so all peers behind its routing id are gone. Supervisor to topics, with the name
    "archive": the archive actor died, so what it has not answered must be asked again.
    """

    op: ClassVar[int] = 168
    who: str
