"""What each kind of actor is started with: its endpoints, and what holds for its life. Pickled, it crosses to the actor's process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from ...transport.block.block import MESSAGE_BYTES_MAX
from ...transport.settings import NewChannelSettings, Retention
from .options import AlarmOptions, HttpOptions, NsqOptions, SecurityOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStart:
    """`front`: the endpoint where it listens."""

    front: str = ""

    def endpoints(self) -> tuple[str, ...]:
        """Return all endpoints of its own."""
        return (self.front,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStart(ActorStart):
    """`create`: the topic is new, and its directory is to be made. `closed`: to publishers."""

    reader: str
    stage: str
    push: str
    scan: str
    name: str
    uuid: str
    base_offset: int
    sync: str
    directory: str
    create: bool
    retention: Retention
    chunk_bytes: int
    stage_timeout_s: float
    closed: bool
    in_memory: bool = False
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def endpoints(self) -> tuple[str, ...]:
        return self.front, self.reader, self.stage, self.push


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStart(ActorStart):
    """`storage`: its endpoint. `closed`: to publishers."""

    storage: str
    closed: bool
    message_bytes_max: int = MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStart(ActorStart):
    """`topic`, `storage` and `scan` are endpoints. `made_with`: the settings of a channel that is made now. `closed`: to consumers."""

    topic: str
    storage: str
    scan: str
    channel: str
    closed: bool
    topic_name: str = ""
    uuid: str = ""
    made_with: NewChannelSettings = field(default_factory=NewChannelSettings)


def channel_of(start: ActorStart) -> str:
    """The channel that is started with this; "" for another kind of actor."""
    return start.channel if isinstance(start, ChannelStart) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStart(ActorStart):
    """`supervisor`: its endpoint, in the run directory."""

    supervisor: str
    security: SecurityOptions = field(default_factory=SecurityOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroMqStart(GatewayStart):
    """`listen` and `push`: "host:port"."""

    listen: str
    push: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqStart(GatewayStart):
    options: NsqOptions
    message_bytes_max: int = MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStart(GatewayStart):
    options: HttpOptions
    message_bytes_max: int = MESSAGE_BYTES_MAX


class AlarmBroker(TypedDict):
    """What receivers are told of the broker."""

    host: str
    node: int
    uuid: str
    data_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmStart(ActorStart):
    """`broker`: what receivers are told of it."""

    alarms: AlarmOptions
    broker: AlarmBroker
