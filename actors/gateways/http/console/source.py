"""Interfaces by which the console uses the broker: parts of `aio.Admin`, `aio.Reader` and
`aio.Producer`.

Tests replace these clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Unpack

from .....transport.client.blocking.producer import ReceiptView
from .....transport.client.core.administration import Side
from .....transport.client.core.asking import Place
from .....transport.client.core.message import Fetched
from .....transport.client.core.peeking import Peek
from .....transport.reports import BrokerStats
from .....transport.settings import ChannelOptions, NewChannelOptions, RetentionSettings
from .....transport.wire.answers import (
    AuditEntry,
    ChannelConfigured,
    Chunks,
    Closed,
    ClusterAnswer,
    DelayedCount,
    DelayedRow,
    Disconnected,
    FigureHistory,
    Made,
    Moved,
    Nothing,
    OverviewAnswer,
    Scheduled,
    ScheduleRow,
    Silenced,
    TopicConfigured,
)
from .....transport.wire.codec import HeaderValue


class BrokerData(Protocol):
    """The part of `aio.Admin` that the console uses. All methods raise `ZsqError`."""

    async def overview(
        self, since: int = 0, *, processes: bool = False, alarms: bool = False
    ) -> OverviewAnswer: ...

    async def cluster(self, *, fresh: bool = False) -> ClusterAnswer: ...

    async def history(
        self, topic: str, channel: str | None = None, span: str = "1d", points: int = 240
    ) -> FigureHistory: ...

    async def alarm_ack(
        self, topic: str = "", channel: str = "", figure: str = "", *, seconds: float = 0
    ) -> Silenced: ...

    async def alarm_unack(
        self, topic: str = "", channel: str = "", figure: str = ""
    ) -> Silenced: ...

    async def audit(self, count: int = 100) -> list[AuditEntry]: ...

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> BrokerStats: ...

    async def chunks(self, topic: str) -> Chunks: ...

    async def peek(self, topic: str, channel: str | None = None, count: int = 10) -> Peek: ...

    async def delayed_list(
        self, topic: str, after: str = "", limit: int = 1_000
    ) -> list[DelayedRow]: ...

    async def delayed_count(self, topic: str) -> DelayedCount: ...

    async def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]: ...

    async def delayed_cancel_all(self, topic: str) -> int: ...

    async def schedule_list(self, topic: str | None = None) -> list[ScheduleRow]: ...

    async def schedule_add(
        self,
        topic: str,
        name: str,
        cron: str,
        body: bytes,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        key: bytes | str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled: ...

    async def schedule_set(
        self,
        topic: str,
        name: str,
        *,
        cron: str | None = None,
        body: bytes | None = None,
        timezone: str | None = None,
        missed: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled: ...

    async def schedule_run(self, topic: str, name: str) -> Nothing: ...

    async def schedule_pause(self, topic: str, name: str) -> Nothing: ...

    async def schedule_resume(self, topic: str, name: str) -> Nothing: ...

    async def schedule_remove(self, topic: str, name: str) -> Nothing: ...

    async def create_topic(
        self,
        name: str,
        sync: str = "always",
        *,
        parts: int = 0,
        brokers: Sequence[int] = (),
        **retention: Unpack[RetentionSettings],
    ) -> Made: ...

    async def configure_topic(
        self, name: str, sync: str | None = None, **retention: Unpack[RetentionSettings]
    ) -> TopicConfigured: ...

    async def create_channel(
        self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]
    ) -> Made: ...

    async def configure_channel(
        self, topic: str, channel: str, **settings: Unpack[ChannelOptions]
    ) -> ChannelConfigured: ...

    async def delete_topic(self, name: str, force: bool = False) -> Nothing: ...

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> Nothing: ...

    async def close_topic(self, name: str, to: Side = "publishers") -> Closed: ...

    async def open_topic(self, name: str, to: Side = "publishers") -> Closed: ...

    async def pause(self, topic: str, channel: str | None = None) -> Nothing: ...

    async def unpause(self, topic: str, channel: str | None = None) -> Nothing: ...

    async def empty(self, topic: str, channel: str | None = None) -> Nothing: ...

    async def disconnect(self, topic: str, channel: str, consumer: str) -> Disconnected: ...

    async def redrive_to(
        self,
        dead_topic: str,
        to: str,
        channel: str | None,
        origin: tuple[str, str, str],
        chosen: bool = False,
    ) -> Nothing: ...

    async def seek(
        self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False
    ) -> Moved: ...

    async def skip(
        self, topic: str, channel: str, offsets: Sequence[int], *, preview: bool = False
    ) -> list[int]: ...


class TopicReader(Protocol):
    """The part of `aio.Reader` that the console uses. It reads one topic by offset."""

    async def read(self, offset: int, bytes_max: int = 1 << 20) -> Fetched: ...

    async def head(self) -> tuple[int, int]: ...

    async def offset_at(self, time_ns: int) -> int: ...

    async def newest(self, count: int) -> int: ...


class TopicWriter(Protocol):
    """The part of `aio.Producer` that the console uses."""

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        key: bytes | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        delay: float | None = None,
    ) -> ReceiptView: ...

    async def close(self, timeout: float | None = None) -> None: ...


OpenProducer = Callable[[], TopicWriter]
Open = Callable[[str], AbstractAsyncContextManager[TopicReader]]
