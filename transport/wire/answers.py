"""What the broker answers to commands: the maps that `Done.data` carries, by the keys that each one has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

from ..reports import AlarmEvent, AlarmReceiver, ProcessStats, RaisedAlarm
from ..settings import ChannelOptions, RetentionSettings


class Nothing(TypedDict):
    """An answer that says only that it is done."""


class Made(TypedDict):
    """Of a topic or a channel that was to be made. `existed`: it was there, and nothing was changed."""

    existed: bool


class TopicConfigured(TypedDict):
    """`retention`: all that holds now."""

    retention: RetentionSettings


class ChannelConfigured(TypedDict):
    """`settings`: all that hold now."""

    settings: ChannelOptions


class Closed(TypedDict):
    """`closed`: to whom the topic is closed now."""

    closed: Literal["", "publishers", "consumers"]


class Moved(TypedDict):
    """`offset`: where the channel is now."""

    offset: int


class Ends(TypedDict):
    """An offset of a topic, with the oldest one kept (`start`) and the next one to come (`head`)."""

    offset: int
    start: int
    head: int


class Size(Ends):
    """`bytes`: about how many lie between two offsets. `offset`: where about as many as were asked for end."""

    bytes: int


class HeldRow(TypedDict):
    """A run of messages that a channel holds. In flight: with `consumer`, and for how long; deferred: with `due_ns`."""

    state: str
    offset: int
    count: int
    attempts: int
    consumer: NotRequired[str]
    held_ms: NotRequired[int]
    left_ms: NotRequired[int]
    due_ns: NotRequired[int]


class ChannelLook(TypedDict):
    """Where a channel is and what it holds. `wall_ns`: the broker's clock; `counts`: messages in each state, but "new"."""

    next_offset: int
    start: int
    head: int
    wall_ns: int
    paused: bool
    settings: ChannelOptions
    held: Sequence[HeldRow]
    counts: dict[str, int]


class DelayedRow(TypedDict):
    """A delayed message that waits. `size`: of its body; `body`: the first 200 bytes."""

    key: str
    due_ns: int
    size: int
    body: bytes
    tag: bytes | None
    message_key: bytes | None


class DelayedCount(TypedDict):
    """What waits. `next_due_ns` 0: nothing does. `lost`: what damage has cost."""

    messages: int
    bytes: int
    next_due_ns: int
    lost: int


class BrokerSummary(TypedDict):
    """What belongs to no topic. `alarms`: how many there are now; `alarmed_ns`: when the newest change of one was."""

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


class OverviewAlarms(TypedDict):
    """Alarms that hold now, their newest changes, and who is told."""

    now: Sequence[RaisedAlarm]
    recent: Sequence[AlarmEvent]
    receivers: Sequence[AlarmReceiver]


OverviewRow = tuple[Any, ...]
"""Numbers and texts; `topic_fields` and `channel_fields` say which is which."""


class OverviewAnswer(TypedDict):
    """All topics, each with its channels, by name; `whole`: not only those that changed, and with the fields' names."""

    version: int
    whole: bool
    topics: dict[str, tuple[OverviewRow, dict[str, OverviewRow]]]
    broker: BrokerSummary
    topic_fields: NotRequired[Sequence[str]]
    channel_fields: NotRequired[Sequence[str]]
    processes: NotRequired[Sequence[ProcessStats]]
    alarms: NotRequired[OverviewAlarms]


_From = TypedDict("_From", {"from": str})  # a name that a class cannot have


class AuditEntry(_From):
    """A line of the audit log. One that counts lines that were lost has only `time`, `action` and `count`."""

    time: str
    action: str
    topic: str
    channel: str
    options: dict[str, Any]
    user: str
    via: str
    result: str
    count: NotRequired[int]


class LogActivity(TypedDict):
    """What was written and read of log files since the start; those with `_s` are rates. `bad`: damaged blocks."""

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
    """One log file. Its bytes and the times of its first and last message are None where they are not known."""

    first_offset: int
    messages: int
    bytes: int | None
    state: str
    first_time_ns: int | None
    last_time_ns: int | None


class Chunks(TypedDict):
    """A topic's log files: the newest 1,000, the older ones in a sum, and all in a sum."""

    chunks: Sequence[ChunkRow]
    total: ChunkSum
    older: NotRequired[ChunkSum]


class Committed(TypedDict):
    """`repeated`: this version was committed before; `first_offset` is -1 where another version was."""

    first_offset: int
    messages: int
    repeated: bool


class Aborted(TypedDict):
    """`dropped`: how many stages. `committed`: whether the transaction is."""

    dropped: int
    committed: bool
