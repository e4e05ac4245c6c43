"""Replies of the broker to commands: the shapes of `Done.data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from ..reports import AlarmEvent, AlarmReceiver, BucketStats, ProcessStats, RaisedAlarm
from ..settings import ChannelOptions, TopicOptions


class Nothing(TypedDict):
    """A reply without data: the command is done."""


class TopicNames(TypedDict):
    """`topics`: the names of all topics, each with the names of its channels."""

    topics: dict[str, Sequence[str]]


class Disconnected(TypedDict):
    """`count`: the number of consumers whose subscriptions ended."""

    count: int


class FigureHistory(TypedDict):
    """Values of a topic or channel over time, oldest first. None: not known.

    `step_s`: the seconds between two values. `end_ms`: the end of the time of the last one.
    """

    step_s: int
    end_ms: int
    series: dict[str, Sequence[float | None]]


class Silenced(TypedDict):
    """`count`: the number of raised alarms that are silenced now, or of silences that ended."""

    count: int


class Made(TypedDict):
    """The reply to the creation of a topic or a channel.

    `existed`: True if it existed before. Nothing was changed then.
    """

    existed: bool


class Added(TypedDict):
    """`parts`: the number of parts that the topic has now."""

    parts: int


class Moving(TypedDict):
    """`hold`: how often the part was moved before."""

    hold: int


class PartRemoved(TypedDict):
    """`end`: the offset at which the log of the part ended."""

    end: int


class ClusterBroker(TypedDict):
    """A broker of the cluster. `bucket`: the URL of its bucket. `me`: True for the one that
    answers. `draining`: how many parts it gives away at a time, or 0. `gone`: it was forgotten.
    """

    number: int
    uuid: str
    addresses: Sequence[str]
    bucket: str
    me: bool
    draining: int
    gone: bool


class ClusterTopic(TypedDict):
    """A topic with parts. `parts`: the number of the broker of each part, or -1 if the part was
    removed. `closed`: the numbers of the parts that take no more messages. `moves`: the broker to
    which a part is being moved. `origins`: the broker that had a part before, and keeps its files
    until the other one has all of it.
    """

    topic: str
    uuid: str
    parts: Sequence[int]
    closed: Sequence[int]
    moves: Mapping[int, int]
    origins: Mapping[int, int]


def places_of(topic: ClusterTopic) -> dict[int, int]:
    """Return the parts of a topic that were not removed, with the numbers of their brokers."""
    return {part: broker for part, broker in enumerate(topic["parts"]) if broker >= 0}


class ClusterAuto(TypedDict):
    """The setting `auto` of a cluster, see `set_auto_balance` of Admin."""

    is_on: bool
    rate: int
    concurrency: int
    gone_after_s: int


class ClusterAnswer(TypedDict):
    """The cluster as one broker knows it.

    `directory`: the number of the next entry in the directory. `is_shared`: it is that of a
    cluster, and not of this broker alone. `trouble`: why the directory cannot be read now, or "".
    `moving`: how many parts move now. `planned`: how many more shall move, if the broker that
    answers is drained, or the brokers balance by themselves.
    """

    brokers: Sequence[ClusterBroker]
    topics: Sequence[ClusterTopic]
    directory: int
    is_shared: bool
    trouble: str
    auto: ClusterAuto
    moving: int
    planned: int


class TopicConfigured(TypedDict):
    """`settings`: all settings in effect. `sync`: the sync mode."""

    settings: TopicOptions
    sync: str


class ChannelConfigured(TypedDict):
    """`settings`: all settings in effect."""

    settings: ChannelOptions


class Closed(TypedDict):
    """`closed`: the clients to which the topic is closed now."""

    closed: Literal["", "publishers", "consumers"]


class Moved(TypedDict):
    """`offset`: the channel's new position. If the topic has parts, it is -1, and `parts` has the
    position in each part, by its name.
    """

    offset: int
    parts: NotRequired[Mapping[str, int]]


class Skipped(TypedDict):
    """`offsets`: those of the request whose messages were not finished."""

    offsets: Sequence[int]


class Revoked(TypedDict):
    """`delayed`: the number of delayed messages that were cancelled. Nobody knows yet how many
    others have the keys.
    """

    delayed: int


class Ended(TypedDict):
    """`ended`: the end of the topic of this name that was deleted last, or None."""

    ended: int | None


class Ends(TypedDict):
    """The requested offset, the oldest kept offset (`start`), and the next one (`head`)."""

    offset: int
    start: int
    head: int


class ArchivedEnd(TypedDict):
    """`url`: the bucket. `end`: the offset up to which it has all kept messages of the topic."""

    url: str
    end: int


class Place(Ends):
    """`archive` is missing if the broker has no bucket."""

    archive: NotRequired[ArchivedEnd]


class Size(Ends):
    """`bytes`: the approximate number of bytes between two offsets.

    `offset`: the offset at which about `max_bytes` of these bytes end. `messages`: the number of
    messages that exist between the two.
    """

    bytes: int
    messages: int


class HeldRow(TypedDict):
    """A run of messages that a channel holds.

    Messages in flight have `consumer`, `held_ms` and `left_ms`. Those that are held without a
    handler have `consumer` and `held_ms`. Deferred messages have `due_ns`. `blocks`: how many
    messages wait for this one, because they have its key. `error`: why it failed last.
    """

    state: str
    offset: int
    count: int
    attempts: int
    consumer: NotRequired[str]
    held_ms: NotRequired[int]
    left_ms: NotRequired[int]
    due_ns: NotRequired[int]
    blocks: NotRequired[int]
    error: NotRequired[str]


class ChannelLook(TypedDict):
    """A channel's position and the messages that it holds.

    `wall_ns`: the broker's clock. `counts`: the number of messages in each state, except "new".
    `absent`: spans (from, to) of offsets after the cursor that are never delivered. `expires_s`:
    the topic's setting. `revoked`: revoked keys, each with the offset below which it cancels
    messages.
    """

    next_offset: int
    start: int
    head: int
    absent: Sequence[tuple[int, int]]
    wall_ns: int
    paused: bool
    settings: ChannelOptions
    expires_s: float
    revoked: Mapping[str, int]
    held: Sequence[HeldRow]
    counts: dict[str, int]


class DelayedRow(TypedDict):
    """A delayed message that waits. `delayed_key`: what `delayed_cancel` takes. `size`: the size of
    its body. `body`: the first 200 bytes.
    """

    delayed_key: str
    due_ns: int
    size: int
    body: bytes
    key: bytes | None
    tag: bytes | None


class DelayedCount(TypedDict):
    """The delayed messages that wait.

    `next_due_ns`: 0 if none waits. `lost`: the number of messages lost to damage.
    """

    messages: int
    bytes: int
    next_due_ns: int
    lost: int


class DelayedRows(TypedDict):
    """`messages`: the delayed messages that wait, the next due one first."""

    messages: Sequence[DelayedRow]


class Cancelled(TypedDict):
    """`cancelled`: for each key, whether its message waited, or the number of cancelled messages of
    a request for all. Such an answer has `more`: True if more messages wait.
    """

    cancelled: int | Sequence[bool]
    more: NotRequired[bool]


class BrokerSummary(TypedDict):
    """The facts about the broker as a whole.

    `alarms`: the number of alarms that are raised now. `alarmed_ns`: the time of the newest change
    of an alarm. `clustered`: True if the broker belongs to a cluster, or a standby follows it.
    """

    version: str
    node: int
    uuid: str
    start_ms: int
    health: str
    disk_full: str
    alarms: int
    alarmed_ns: int
    processes: int
    restarts: int
    clustered: bool


class OverviewAlarms(TypedDict):
    """The alarms that are raised now, their newest changes, and the receivers."""

    now: Sequence[RaisedAlarm]
    recent: Sequence[AlarmEvent]
    receivers: Sequence[AlarmReceiver]


OverviewRow = tuple[Any, ...]
"""Numbers and texts. `topic_fields` and `channel_fields` have their names, in the same order."""


class OverviewAnswer(TypedDict):
    """Topics by name, each with its channels.

    `whole`: True if these are all topics, not only the changed ones. The answer then also has
    `topic_fields` and `channel_fields`. `bucket`: with `processes`, if the broker has a bucket.
    """

    version: int
    whole: bool
    topics: dict[str, tuple[OverviewRow, dict[str, OverviewRow]]]
    broker: BrokerSummary
    topic_fields: NotRequired[Sequence[str]]
    channel_fields: NotRequired[Sequence[str]]
    processes: NotRequired[Sequence[ProcessStats]]
    bucket: NotRequired[BucketStats]
    alarms: NotRequired[OverviewAlarms]


_From = TypedDict("_From", {"from": str})  # `from` cannot be an attribute of a class


class AuditEntry(_From):
    """An entry of the audit log.

    An entry about lost lines has only `time`, `action` and `count` (their number).
    """

    time: str
    action: str
    topic: str
    channel: str
    options: dict[str, Any]
    user: str
    via: str
    result: str
    count: NotRequired[int]


class AuditEntries(TypedDict):
    """`entries`: the newest first."""

    entries: Sequence[AuditEntry]


class LogActivity(TypedDict):
    """Writes to and reads from log files since the start. Fields with `_s` are rates.

    `bad`: the number of damaged blocks.
    """

    written_bytes: int
    ring_reads: int
    ring_read_bytes: int
    file_reads: int
    file_read_bytes: int
    written_bytes_s: float
    ring_reads_s: float
    ring_read_bytes_s: float
    file_reads_s: float
    file_read_bytes_s: float
    bad: int


class ChunkSum(LogActivity):
    """Several log files together."""

    chunks: int
    messages: int
    bytes: int


class ChunkRow(LogActivity):
    """One log file.

    `bytes` and the times of the first and last message are None if they are not known. `ring_`
    fields count reads from memory, and `file_` fields reads from the file. Fields with `_s` are
    rates per second.
    """

    first_offset: int
    messages: int
    bytes: int | None
    state: str
    first_time_ns: int | None
    last_time_ns: int | None


class Chunks(TypedDict):
    """A topic's log files: the newest 1,000, the sum of the older ones, and the sum of all."""

    chunks: Sequence[ChunkRow]
    total: ChunkSum
    older: NotRequired[ChunkSum]


class Committed(TypedDict):
    """The reply to a commit.

    `repeated`: True if this version, or a later one of the app, was committed before.
    `first_offset` is -1 if it was a later one. `held`: True if an earlier message holds the unique
    key, so nothing was or would be stored.
    """

    first_offset: int
    messages: int
    repeated: bool
    held: NotRequired[bool]


class Aborted(TypedDict):
    """The reply to an abort.

    `dropped`: the number of stages. `committed`: True if the transaction is committed. `version`:
    the last committed version of the app, or -1.
    """

    dropped: int
    committed: bool
    version: int


class ScheduleState(TypedDict):
    """Progress of a schedule. The counts are those of this run of the broker.

    `state`: new, waiting, running, failing, paused or invalid. `next_due_ns`: the next due time, 0
    if there is none. `last_due_ns`: the last due time that is in the topic, 0 if there is none or
    if the topic was not asked yet. `published_count`: due times that were published.
    `missed_count`: due times that were left out. `trouble`: why it cannot publish, or "".
    """

    topic: str
    name: str
    state: str
    next_due_ns: int
    last_due_ns: int
    published_count: int
    missed_count: int
    trouble: str


class ScheduleRow(ScheduleState):
    """A schedule. `missed`: what is published of missed due times: one, all or skip.

    `unique`: `while-waiting`, `while-working`, or "" for neither.
    """

    cron: str
    timezone: str
    missed: str
    unique: str
    body_bytes: int


class ScheduleRows(TypedDict):
    """`schedules`: all schedules of the broker."""

    schedules: Sequence[ScheduleRow]


class Scheduled(TypedDict):
    """`next_due_ns`: the first due time of a new or changed schedule."""

    next_due_ns: int
