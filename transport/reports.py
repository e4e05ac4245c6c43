"""Reports: the shapes of what `stats` answers to every client.

What each statistic means stands in `actors/statistics/schema.py`. A test compares the rows of that table with the keys of these shapes,
and both with what the code sends. A list arrives as a tuple after its way over the wire, so the shapes name a `Sequence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

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


class ConsumerReport(ConsumerFacts):
    """A consumer as its channel reports it when it is asked for details."""

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


class SupplyFacts(TypedDict):
    """Where a channel is in its topic, and what waits."""

    depth: int
    backend_depth: int
    deferred_count: int
    dying_count: int
    next_offset: int
    parked_count: NotRequired[int]
    """Of an ordered channel: messages that wait for others of their key."""


class DeliveryFacts(ChannelCounters):
    """What a channel does with its consumers."""

    in_flight_count: int
    paused: bool
    client_count: int


class ChannelFacts(TypedDict):
    """What else a channel reports, and stands in `stats`."""

    rates: Rates
    settings: ChannelOptions


class LeftOut(TypedDict, total=False):
    """Rows of clients that the answer had no room for, where there are any."""

    clients_left_out: int


class ChannelStats(SupplyFacts, DeliveryFacts, ChannelFacts, LeftOut):
    """A row of a topic's `channels`."""

    channel_name: str
    health: str
    oldest_message_age_s: float | None
    drain_s: float | None
    message_count: int
    clients: Sequence[ConsumerStats]
    e2e_processing_latency: Latency
    private_bytes: NotRequired[int]


# Topics


class Recovery(TypedDict, total=False):
    """What the last start found in a topic's log; empty until the storage has reported."""

    text: str
    duration_ms: int


class LogFacts(TypedDict):
    start: int
    disk_refused_count: int


class RetentionFacts(TypedDict):
    log_bytes: int
    finished_bytes: int
    removed_bytes: int
    dropped_count: int
    refused_count: int
    retention: RetentionSettings


class UpkeepFacts(TypedDict):
    chunks: int
    damaged_blocks: int
    lost_messages: int
    recovery: Recovery


class DelayedFacts(TypedDict):
    delayed_count: int
    delayed_bytes: int
    delayed_next_due_ns: int
    delayed_lost: int
    delayed_moved: int


class StageFacts(TypedDict):
    stages: int
    staged_bytes: int


class StorageFacts(LogFacts, RetentionFacts, UpkeepFacts, DelayedFacts, StageFacts):
    """What stands in `stats` as the topic's storage reports it."""

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


class AlarmRow(TypedDict):
    """What is told of an alarm, to clients and to receivers. Topic and channel are empty for one about the broker.

    `value` None: it is not known (any more); times are in ns since 1970.
    """

    topic: str
    channel: str
    figure: str
    value: float | None
    threshold: float
    raised_ns: int


class RaisedAlarm(AlarmRow):
    """An alarm that is raised now. `text`: only of the disk's."""

    text: NotRequired[str]


class AlarmEvent(AlarmRow):
    """A step that is told: `event` is raised or cleared."""

    event: str
    time_ns: int
    text: str


class AlarmReceiver(TypedDict):
    """Somebody who is told of alarms, and how that goes."""

    name: str
    told_count: int
    waiting: int
    given_up_count: int
    trouble: str


class BrokerLists(TypedDict, total=False):
    """What `stats` has only where the whole broker was asked about; `gateways`: only for who may see all topics."""

    gateways: Sequence[GatewayStats]
    recent_alarms: Sequence[AlarmEvent]
    alarm_receivers: Sequence[AlarmReceiver]


class BrokerStats(BrokerLists, LeftOut):
    """The answer of `stats`."""

    version: str
    node: int
    uuid: str
    pid: int
    start_time: int
    health: str
    disk: NotRequired[DiskStats]
    """Only for who may see all topics."""
    alarms: Sequence[RaisedAlarm]
    topics: Sequence[TopicStats]
    producers: Sequence[ProducerStats]
    processes: Sequence[ProcessStats]
