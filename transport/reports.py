"""Reports: the shapes of what `stats`, the overview, `chunks` and `delayed_list` answer to every client.

What each statistic means stands in `actors/statistics/schema.py`. A test compares the rows of that table with the keys of these shapes,
and both with what the code sends. A list arrives as a tuple after its way over the wire, so the shapes name a `Sequence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from .settings import ChannelOptions, RetentionSettings

Rates = Mapping[str, float]
"""The growth a second of each counter that grew, by the counter's name."""


class Percentile(TypedDict):
    quantile: float
    value: int
    """In ns."""


class Latency(TypedDict):
    """How many messages were finished in the last ten minutes, and how long each share of them took at most."""

    count: int
    percentiles: Sequence[Percentile]


# Consumers and publishers


class PubCount(TypedDict):
    topic: str
    count: int


class NsqClientFacts(TypedDict, total=False):
    """What only the NSQ gateway knows of a client; a client of ZSQ's own has none of it."""

    hostname: str
    version: str
    remote_address: str
    state: int
    user_agent: str
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    topology_region: str
    topology_zone: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class ConsumerCounts(TypedDict):
    """What a channel counts of a consumer."""

    message_count: int
    message_bytes: int
    finish_count: int
    requeue_count: int
    timeout_count: int


class ConsumerFacts(ConsumerCounts):
    """A consumer as its channel knows it at any time."""

    client_id: str
    ready_count: int
    in_flight_count: int
    connect_ts: int
    sample_rate: int
    sampled_count: int


class ConsumerStats(ConsumerFacts, NsqClientFacts):
    """A row of a channel's `clients`."""

    rates: Rates
    e2e_processing_latency: Latency | None
    pub_counts: NotRequired[Sequence[PubCount]]


class ProducerStats(NsqClientFacts):
    """An NSQ client that publishes: a row of `producers`."""

    client_id: str
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    pub_counts: Sequence[PubCount]


class PublisherStats(TypedDict):
    """A client of ZSQ's own that publishes: a row of a topic's `publishers`."""

    producer: str
    via: str
    blocks: int
    unanswered_bytes: int
    silent_ms: int


# Channels


class ChannelCounters(TypedDict):
    """The counters of a channel that are kept on disk."""

    delivery_count: int
    delivery_bytes: int
    finish_count: int
    requeue_count: int
    timeout_count: int
    dead_letter_count: int
    expired_count: int
    sampled_count: int
    tag_skipped_count: int
    addressed_skipped_count: int
    dropped_count: int
    lost_count: int


class ChannelFacts(ChannelCounters):
    """What a channel reports of itself, and what stands in `stats` as it is or corrected by what the topic knows."""

    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    dying_count: int
    next_offset: int
    client_count: int
    paused: bool
    rates: Rates
    settings: ChannelOptions
    parked_count: NotRequired[int]
    """Of an ordered channel: messages that wait for others of their key."""
    private_bytes: NotRequired[int]


class ChannelStats(ChannelFacts):
    """A row of a topic's `channels`."""

    channel_name: str
    health: str
    oldest_message_age_s: float | None
    drain_s: float | None
    message_count: int
    clients: Sequence[ConsumerStats]
    clients_left_out: NotRequired[int]
    e2e_processing_latency: Latency


# Topics


class Recovery(TypedDict, total=False):
    """What the last start found in a topic's log; empty until the storage has reported."""

    text: str
    duration_ms: int


class StorageFacts(TypedDict):
    """What the storage reports of a topic, and what stands in `stats` as it is."""

    start: int
    log_bytes: int
    finished_bytes: int
    chunks: int
    retention: RetentionSettings
    recovery: Recovery
    removed_bytes: int
    dropped_count: int
    refused_count: int
    disk_refused_count: int
    lost_messages: int
    damaged_blocks: int
    delayed_count: int
    delayed_bytes: int
    delayed_next_due_ns: int
    delayed_lost: int
    delayed_moved: int
    stages: int
    staged_bytes: int
    transactions: int


class TopicStats(StorageFacts):
    topic_name: str
    uuid: str
    sync: str
    closed: str
    health: str
    full: str
    write_trouble: str
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    rates: Rates
    oldest_message_age_s: float | None
    e2e_processing_latency: Latency
    paused: bool
    head: int
    publishers: Sequence[PublisherStats]
    channels: Sequence[ChannelStats]


# The broker


class DiskStats(TypedDict):
    directory: str
    free_bytes: int | None
    reserve_bytes: int
    refused_count: int
    full: str


class GatewayStats(TypedDict):
    """An NSQ gateway that is up."""

    name: str
    kind: str
    connections: int
    accepted: int
    turned_away: int
    strangers: int
    held_bytes: int
    cut_off: int


class ProcessStats(TypedDict):
    """A process of the broker. Who may not administer it is told neither names nor pids."""

    kind: str
    restarts: int
    name: NotRequired[str]
    pid: NotRequired[int]
    state: NotRequired[str]
    """`stats` has none of supervisor and forkserver."""
    uptime_s: NotRequired[float]
    private_bytes: NotRequired[int]
    """The overview has none."""


class AlarmPlace(TypedDict):
    """What an alarm is about. Topic and channel are empty for one about the broker."""

    topic: str
    channel: str
    figure: str


class AlarmRow(AlarmPlace):
    """An alarm that is raised now."""

    value: float | None
    threshold: float
    raised_ns: int
    text: NotRequired[str]
    """Of an alarm about the disk."""


class AlarmEvent(AlarmPlace):
    """An alarm that was raised or cleared, as receivers get it; times in ns since 1970."""

    event: str
    value: float | None
    threshold: float
    raised_ns: int
    time_ns: int
    text: str


class AlarmReceiver(TypedDict):
    """Somebody who is told of alarms, and how that goes."""

    name: str
    told_count: int
    waiting: int
    given_up_count: int
    trouble: str


class BrokerStats(TypedDict):
    """The answer of `stats`."""

    version: str
    node: int
    uuid: str
    pid: int
    start_time: int
    health: str
    alarms: Sequence[AlarmRow]
    topics: Sequence[TopicStats]
    producers: Sequence[ProducerStats]
    processes: Sequence[ProcessStats]
    disk: NotRequired[DiskStats]
    """Only for who may see all topics, as `gateways`."""
    gateways: NotRequired[Sequence[GatewayStats]]
    """Only where the whole broker was asked about, as both lists about alarms."""
    recent_alarms: NotRequired[Sequence[AlarmEvent]]
    alarm_receivers: NotRequired[Sequence[AlarmReceiver]]
    clients_left_out: NotRequired[int]


# The overview

OverviewRow = Sequence[Any]
"""Values of a topic or of a channel, in the order of `topic_fields` or `channel_fields`; () for a topic that has not changed."""


class OverviewBroker(TypedDict):
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
    now: Sequence[AlarmRow]
    recent: Sequence[AlarmEvent]
    receivers: Sequence[AlarmReceiver]


class OverviewAnswer(TypedDict):
    """The answer of `overview`: all rows if it is `whole`, else those that changed since the version that was asked for.

    `topics` has of each topic its row and the rows of its channels, by name.
    """

    version: int
    whole: bool
    topics: Mapping[str, tuple[OverviewRow, Mapping[str, OverviewRow]]]
    broker: OverviewBroker
    topic_fields: NotRequired[Sequence[str]]
    channel_fields: NotRequired[Sequence[str]]
    processes: NotRequired[Sequence[ProcessStats]]
    alarms: NotRequired[OverviewAlarms]


# Log files and delayed messages


class ChunkCounts(TypedDict):
    """What was written to chunks and read from them, in all and a second; `bad` counts damaged blocks."""

    written_bytes: int
    ring_reads: int
    ring_read_bytes: int
    file_reads: int
    file_read_bytes: int
    written_bytes_s: int
    ring_reads_s: int
    ring_read_bytes_s: int
    file_reads_s: int
    file_read_bytes_s: int
    bad: int
    messages: int


class ChunkSum(ChunkCounts):
    chunks: int
    bytes: int


class ChunkRow(ChunkCounts):
    first_offset: int
    bytes: int | None
    state: str
    first_time_ns: int | None
    last_time_ns: int | None


class Chunks(TypedDict):
    """The answer of `chunks`: the newest ones, the older ones in a sum, and all in a sum."""

    chunks: Sequence[ChunkRow]
    total: ChunkSum
    older: NotRequired[ChunkSum]


class DelayedRow(TypedDict):
    """A message that is not due yet; `body` is its beginning."""

    key: str
    due_ns: int
    size: int
    body: bytes
    message_key: bytes | None
    tag: bytes | None


class DelayedCount(TypedDict):
    """What a topic's delayed messages are together."""

    messages: int
    bytes: int
    next_due_ns: int
    lost: int
