"""Reports: the shapes of the replies of `stats` to every client.

`actors/statistics/schema.py` has the meaning of each statistic. A test compares the rows of that
table with the keys of these shapes, and both with what the code sends. A list arrives as a tuple
over the wire, so the shapes use `Sequence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from .settings import ChannelOptions, TopicOptions

Rates = Mapping[str, float]
"""The growth per second of each counter that grew, by the counter's name."""


class Percentile(TypedDict):
    quantile: float
    value: int
    """The latency in nanoseconds."""


class Latency(TypedDict):
    """The number of messages finished in the last ten minutes, and percentiles of their latency."""

    count: int
    percentiles: Sequence[Percentile]


# Consumers and publishers


class PubCount(TypedDict):
    topic: str
    count: int


class NsqClientFacts(TypedDict, total=False):
    """Facts about a client that only the NSQ gateway knows. A client of ZSQ has none of them."""

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
    """The counters that a channel keeps for a consumer."""

    message_count: int
    message_bytes: int
    finish_count: int
    requeue_count: int
    timeout_count: int


class ConsumerFacts(ConsumerCounts):
    """The facts about a consumer that its channel always knows."""

    client_id: str
    ready_count: int
    backoff_s: float | None
    in_flight_count: int
    connect_ts: int
    sample_rate: int
    sampled_count: int


class ConsumerReport(ConsumerFacts):
    """The facts about a consumer that its channel reports in detailed statistics."""

    rates: Rates
    e2e_processing_latency: Latency | None


class ConsumerStats(ConsumerReport, NsqClientFacts):
    """A row of a channel's `clients`."""

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
    """A ZSQ client that publishes: a row of a topic's `publishers`."""

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
    defer_count: int
    timeout_count: int
    dead_letter_count: int
    expired_count: int
    sampled_count: int
    tag_skipped_count: int
    addressed_skipped_count: int
    skipped_count: int
    cancelled_count: int
    dropped_count: int
    lost_count: int


class BlockerRow(TypedDict):
    """A message of an ordered channel that has failed, and that `waiting` others of its key wait
    for. `attempts` is how often it was tried, and `error` is why it failed last.
    """

    offset: int
    waiting: int
    attempts: int
    error: str


class TenantRow(TypedDict):
    """A key, or a tag, of a fair channel, and how many of its messages were read and wait.

    `limited` is why it gets none now: "rate" (`max_rate_per_key`), "in flight"
    (`max_in_flight_per_key`), or "". `key` is the beginning of the key, as text. It is None for the
    messages without a key.
    """

    key: str | None
    waiting: int
    limited: str


class SupplyFacts(TypedDict):
    """A channel's position in its topic, and the numbers of its waiting messages."""

    depth: int
    backend_depth: int
    deferred_count: int
    dying_count: int
    next_offset: int
    parked_count: NotRequired[int]
    """For an ordered channel, the number of messages that wait for others with the same key. For a
    fair one or one with priorities, the number of messages that were read ahead.
    """
    tenant_count: int
    """For a fair channel, the number of keys, or tags, of the messages that were read ahead."""


class DeliveryFacts(ChannelCounters):
    """A channel's deliveries to its consumers."""

    in_flight_count: int
    paused: bool
    client_count: int
    backing_off_count: int
    limited_since_s: int | None


class ChannelFacts(TypedDict):
    """The other fields of a channel in `stats`."""

    rates: Rates
    settings: ChannelOptions


class LeftOut(TypedDict, total=False):
    """The number of client rows for which the reply had no room, or absent if none is missing."""

    clients_left_out: int


class ChannelStats(SupplyFacts, DeliveryFacts, ChannelFacts, LeftOut):
    """A row of a topic's `channels`."""

    channel_name: str
    health: str
    oldest_message_age_s: float | None
    drain_s: float | None
    message_count: int
    clients: Sequence[ConsumerStats]
    blocked_by: Sequence[BlockerRow]
    tenants: Sequence[TenantRow]
    e2e_processing_latency: Latency
    private_bytes: NotRequired[int]


# Topics


class Recovery(TypedDict, total=False):
    """The result of the log's recovery at the last start, or {} before storage has reported."""

    text: str
    duration_ms: int


class LogFacts(TypedDict):
    start: int
    kept_count: int
    held_by: str
    held_offset: int
    disk_refused_count: int


class RetentionFacts(TypedDict):
    log_bytes: int
    finished_bytes: int
    held_bytes: int
    removed_bytes: int
    dropped_count: int
    refused_count: int
    settings: TopicOptions


class UpkeepFacts(TypedDict):
    chunks: int
    damaged_blocks: int
    lost_messages: int
    recovery: Recovery


class ArchiveFacts(TypedDict):
    archived_chunks: int
    archived_bytes: int
    unarchived_bytes: int


class ShippingFacts(TypedDict):
    shipping: str
    shipped_end: int
    ship_lag_s: float


class DelayedFacts(TypedDict):
    delayed_count: int
    delayed_bytes: int
    delayed_next_due_ns: int
    delayed_lost: int
    delayed_moved: int


class DedupeFacts(TypedDict):
    duplicate_count: int
    dedupe_ids: int


class StageFacts(TypedDict):
    stages: int
    staged_bytes: int


class StorageFacts(
    LogFacts, RetentionFacts, UpkeepFacts, ArchiveFacts, ShippingFacts, DelayedFacts, DedupeFacts, StageFacts
):  # fmt: skip
    """The fields of `stats` that the topic's storage reports."""

    transactions: int


class TopicStats(StorageFacts):
    """A row of `topics`."""

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
    asleep: bool
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


class BucketStats(TypedDict):
    """The bucket. Requests and bytes count since the archive actor began.

    `addresses` and `standby_addresses` are URLs with commas between them.
    """

    url: str
    trouble: str
    shipping: str
    lag_s: float
    write_requests: int
    read_requests: int
    remove_requests: int
    sent_bytes: int
    received_bytes: int
    cost: float
    shipped_bytes: int
    shipped_ticks: int
    epoch: int
    standbys: int
    standby_addresses: str
    addresses: str
    cluster: str


class GatewayStats(TypedDict):
    """An NSQ gateway that is running."""

    name: str
    kind: str
    connections: int
    connections_accepted: int
    connections_refused: int
    strangers: int
    held_bytes: int
    connections_evicted: int


class ProcessStats(TypedDict):
    """A process of the broker, or an actor in a shared one.

    Clients without the right to administer the broker get no names or pids.
    """

    kind: str
    restarts: int
    name: NotRequired[str]
    pid: NotRequired[int]
    state: NotRequired[str]
    """This field is absent in `stats` for supervisor and forkserver."""
    host: NotRequired[str]
    """The name of the shared process in which this topic or channel is."""
    cpu_s: NotRequired[float]
    uptime_s: NotRequired[float]
    private_bytes: NotRequired[int]
    """This field is absent in the overview."""


class AlarmRow(TypedDict):
    """An alarm, as clients and receivers get it.

    An alarm about a topic has an empty channel. One about the broker has an empty topic, too.
    `value` is None if it is not known, or no longer known, and if the alarm is about no number.
    Times are in ns since 1970.
    """

    topic: str
    channel: str
    kind: str
    value: float | None
    threshold: float
    raised_ns: int


class AlarmSilence(TypedDict):
    """A silence of an alarm: who made it, and when it ends (0: when the alarm is cleared)."""

    by: str
    at_ns: int
    until_ns: int


class RaisedAlarm(AlarmRow):
    """An alarm that is raised now."""

    text: str
    silence: NotRequired[AlarmSilence]


class AlarmEvent(AlarmRow):
    """A change of an alarm. `event` is "raised" or "cleared"."""

    event: str
    time_ns: int
    text: str


class AlarmReceiver(TypedDict):
    """A receiver of alarms, and the state of its deliveries."""

    name: str
    sent_count: int
    waiting: int
    failed_count: int
    trouble: str


class SchedulesStats(TypedDict):
    """The schedules of all topics. The counts are those since the scheduler's process began."""

    count: int
    published_count: int
    missed_count: int
    failing: int


class BrokerLists(TypedDict, total=False):
    """Fields of `stats` that are only present for the whole broker.

    `gateways`, `bucket` and `schedules` are present only for clients that may see all topics, and
    the last two only if the broker has them.
    """

    gateways: Sequence[GatewayStats]
    bucket: BucketStats
    schedules: SchedulesStats
    recent_alarms: Sequence[AlarmEvent]
    alarm_receivers: Sequence[AlarmReceiver]


class BrokerStats(BrokerLists, LeftOut):
    """The reply of `stats`."""

    version: str
    node: int
    uuid: str
    pid: int
    start_time: int
    health: str
    disk: NotRequired[DiskStats]
    """This field is present only for clients that may see all topics."""
    alarms: Sequence[RaisedAlarm]
    topics: Sequence[TopicStats]
    producers: Sequence[ProducerStats]
    processes: Sequence[ProcessStats]
