"""Pulses: the shapes of what processes report once a second, and of the details that they report when they are asked.

Each shape adds to what `transport/reports.py` shows of it what only the supervisor reads. A pulse is empty until its process has reported
for the first time, and details are empty where the process did not answer in time: so both are read with `get`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ...transport.reports import (
    ChannelFacts,
    ConsumerReport,
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
    UpkeepFacts,
)


class OrderingPulse(TypedDict):
    producers: int
    pending_appends: int
    queued_blocks: int


class TopicPulse(OrderingPulse):
    """`end`: where what channels may see ends; `head`: where the log ends."""

    head: int
    end: int
    paused: bool
    message_count: int
    message_bytes: int
    rates: Rates
    rates_recent: Rates


class SupplyPulse(SupplyFacts):
    """`emptied`: ranges of offsets that an `empty` took out."""

    emptied: Sequence[tuple[int, int]]
    deferred_full: bool
    requeued_waiting: int
    window_end: int


class DeliveryPulse(SupplyPulse, DeliveryFacts):
    begin: int


class ChannelPulse(DeliveryPulse, ChannelFacts):
    """`latency_recent`: half, 95% and 99% of what was finished lately took at most so many ns; empty for nothing."""

    rates_recent: Rates
    latency_recent: Sequence[int]
    dead_letter_alarm: str


class RetentionPulse(RetentionFacts):
    """`topic_full`: why publishes are refused because of it, "" while they are not."""

    topic_full: str


class UpkeepPulse(UpkeepFacts):
    ring_bytes: int
    alarms: Sequence[str]


class DelayedPulse(DelayedFacts):
    delayed_alarm: str
    delayed_full: str


class StagesPulse(StageFacts):
    stage_links: int
    pushes_dropped: int


class StagingPulse(StagesPulse):
    """`entered_bytes`: of the blocks that commits of transactions put into the topic."""

    transactions: int
    entered_bytes: int
    rates: Rates


class StoragePulse(LogFacts, RetentionPulse, UpkeepPulse, DelayedPulse, StagingPulse):
    """`waiting`: from where on messages wait for a first channel; `oldest_ns`: when the oldest unfinished message of each channel was
    stored, and of all together as ""."""

    appends: int
    head: int
    waiting: int
    channels: int
    producers_known: int
    state_alarm: str
    disk_full: str
    oldest_ns: Mapping[str, int]


# Details


class TopicDetails(TypedDict, total=False):
    publishers: Sequence[PublisherStats]
    publishers_left_out: int


class ChannelDetails(LeftOut, total=False):
    """`latency_bins`: keys of the latency sketch, and how many messages each has; these of several channels can be added."""

    clients: Sequence[ConsumerReport]
    latency_bins: tuple[Sequence[int], Sequence[int]]
    e2e_processing_latency: Latency


class NsqClientReport(ProducerStats):
    """A client of an NSQ gateway. `label`: what its channel calls it."""

    topic: str
    channel: str
    label: str


class GatewayDetails(LeftOut, total=False):
    clients: Sequence[NsqClientReport]
