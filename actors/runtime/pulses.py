"""Pulses: the reports that processes send once a second, and the details that they send on request.

Each class extends a class of `transport/reports.py` by the fields that only the supervisor reads. A
pulse is empty until its process has reported for the first time. Details are empty if the process
did not answer in time. So both are read with `get`.

Between `stirred_ns` (monotonic time) and the pulse, the process received no messages except
requests for pulses, requests of the scan, and heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ...transport.reports import (
    BlockerRow,
    ChannelFacts,
    ConsumerReport,
    DedupeFacts,
    DelayedFacts,
    DeliveryFacts,
    Latency,
    LeftOut,
    LogFacts,
    ProducerStats,
    PublisherStats,
    Rates,
    RetentionFacts,
    StageFacts,
    SupplyFacts,
    TenantRow,
    UpkeepFacts,
)


class OrderingPulse(TypedDict):
    producers: int
    pending_appends: int
    queued_blocks: int


class TopicPulse(OrderingPulse):
    """A topic's pulse, with that of its storage.

    `head` is the end of the log. `end` is the offset up to which channels may read.
    """

    head: int
    end: int
    stirred_ns: int
    paused: bool
    message_count: int
    message_bytes: int
    rates: Rates
    rates_recent: Rates
    storage: StoragePulse


class SupplyPulse(SupplyFacts):
    """The supply's part of a channel's pulse.

    `absent` are the spans from the cursor on that have no message for this channel: an `empty`
    removed them, or a takeover skipped them.
    """

    absent: Sequence[tuple[int, int]]
    deferred_full: bool
    requeued_waiting: int
    window_end: int


class DeliveryPulse(SupplyPulse, DeliveryFacts):
    begin: int


class ChannelPulse(DeliveryPulse, ChannelFacts):
    """A channel's pulse.

    `latency_recent` contains the median, the 95th and the 99th percentile of recent finishes in ns.
    It is empty if there were none.
    """

    stirred_ns: int
    rates_recent: Rates
    latency_recent: Sequence[int]
    dead_letter_alarm: str


class RetentionPulse(RetentionFacts):
    """The retention in a pulse. `topic_full` is the reason why publishes are refused, or ""."""

    topic_full: str


class UpkeepPulse(UpkeepFacts):
    ring_bytes: int
    alarms: Sequence[str]


class DelayedPulse(DelayedFacts):
    delayed_alarm: str
    delayed_full: str


class DedupePulse(DedupeFacts):
    dedupe_alarm: str


class StagesPulse(StageFacts):
    stage_links: int
    pushes_dropped: int


class StagingPulse(StagesPulse):
    """The staging in a pulse. `entered_bytes` counts blocks of stages and of due messages."""

    transactions: int
    entered_bytes: int
    rates: Rates


class StoragePulse(LogFacts, RetentionPulse, UpkeepPulse, DelayedPulse, DedupePulse, StagingPulse):
    """The storage's part of a topic's pulse.

    `gaps` are the spans of offsets that takeovers skipped. They never had a message. `waiting` is
    the offset from which messages wait for a first channel. `oldest_ns` maps each
    channel to the time when its oldest unfinished message was stored. The key "" stands for the
    whole topic. `backup` is True while a backup of the topic is being made.

    The extension of the storage adds the values of its statistics. `extension_busy` is True while
    it has something left to do. `extension_settled` is True in the last pulse of a topic that ends
    with nothing left. `extension_refusal` is why it refuses publishes, or "".
    """

    backup: bool
    head: int
    gaps: Sequence[tuple[int, int]]
    waiting: int
    channels: int
    producers_known: int
    state_alarm: str
    extension_busy: bool
    extension_settled: bool
    extension_refusal: str
    disk_full: str
    oldest_ns: Mapping[str, int]


# Details


class TopicDetails(TypedDict, total=False):
    publishers: Sequence[PublisherStats]
    publishers_left_out: int


class ChannelDetails(LeftOut, total=False):
    """A channel's details.

    `latency_bins` are the keys of the latency sketch and the number of messages of each. The
    bins of several channels can be added.
    """

    clients: Sequence[ConsumerReport]
    blocked_by: Sequence[BlockerRow]
    tenants: Sequence[TenantRow]
    latency_bins: tuple[Sequence[int], Sequence[int]]
    e2e_processing_latency: Latency


class NsqClientReport(ProducerStats):
    """A client of an NSQ gateway; `label` is its name in the channel."""

    topic: str
    channel: str
    label: str


class GatewayDetails(LeftOut, total=False):
    clients: Sequence[NsqClientReport]


def is_troubled(storage: StoragePulse) -> bool:
    """Return True if the topic cannot do something that it tries again and again."""
    return bool(
        storage["alarms"]
        or storage["state_alarm"]
        or storage["delayed_alarm"]
        or storage["delayed_full"]
        or storage["disk_full"]
        or storage["topic_full"]
    )
