"""Start values of actors: endpoints, and settings that do not change while an actor lives.

They are pickled and sent to the actor's process. An extension has those of its own actors in its
`extension.py`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Generic, TypeVar

from ...transport.block.block import MESSAGE_BYTES_MAX
from ...transport.records import Record, record
from ...transport.settings import NewChannelSettings, Retention
from .options import SecurityOptions


@record(kw_only=True)
class ActorStart(Record):
    """Start values of all actors; `front` is the endpoint where the actor listens."""

    front: str = ""

    def endpoints(self) -> tuple[str, ...]:
        """Return all endpoints at which the actor listens."""
        return (self.front,)


@record(kw_only=True)
class StorageStart(Record):
    """Start values of a topic's storage.

    `front`, `reader`, `stage` and `push` are the endpoints where it listens, and `scan` is the
    endpoint of the scan loop. `create` means that the topic is new and its directory must be
    created. `closed` means closed to publishers. `woken` means that the topic was asleep. `failed`
    means that its last process failed, so this one must show that it can write.
    `refused_count` and `removed_bytes` are what it counted before. `archive` is the endpoint of the
    archive actor, `bucket` the URL of the bucket, and `cache_bytes` the size of the cache for
    chunks in the bucket. Without a bucket they are "", "" and 0. `ship_lag_s` is the bound within
    which everything else is shipped to the bucket, or 0 if it is not shipped.
    """

    front: str
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
    max_msg_size: int = MESSAGE_BYTES_MAX
    woken: bool = False
    failed: bool = False
    refused_count: int = 0
    removed_bytes: int = 0
    archive: str = ""
    bucket: str = ""
    cache_bytes: int = 0
    ship_lag_s: float = 0.0


@record(kw_only=True)
class TopicStart(ActorStart):
    """Start values of a topic's process, which also contains the topic's storage.

    `message_count` and `message_bytes` are what the topic counted before it was asleep.
    """

    storage: StorageStart
    message_count: int = 0
    message_bytes: int = 0

    def endpoints(self) -> tuple[str, ...]:
        storage = self.storage
        return self.front, storage.front, storage.reader, storage.stage, storage.push


@record(kw_only=True)
class ChannelStart(ActorStart):
    """Start values of a channel.

    `topic`, `storage` and `scan` are endpoints. `made_with` are the settings of a new channel.
    `closed` means closed to consumers. `replaceable` is True in a broker that another
    one may replace.
    """

    topic: str
    storage: str
    scan: str
    channel: str
    closed: bool
    topic_name: str = ""
    uuid: str = ""
    replaceable: bool = False
    made_with: NewChannelSettings = field(default_factory=NewChannelSettings)


def scanned_at(start: ActorStart) -> str:
    """Return the endpoint that answers scans: a topic's storage, or the channel."""
    return start.storage.front if isinstance(start, TopicStart) else start.front


def channel_of(start: ActorStart) -> str:
    """Return the channel that is started with these values, or "" for another kind of actor."""
    return start.channel if isinstance(start, ChannelStart) else ""


@record(kw_only=True)
class ArchiveStart(ActorStart):
    """Start values of the archive actor.

    `url` is the bucket's. `broker` is the broker's uuid. `writer` identifies this run of the
    broker. `known` is the identity of the archive that the broker used last, or "", and `fresh` the
    identity of a new one. `first` means that the broker starts, so it ends if the bucket cannot be
    used. `data_dir` is the data directory, `run_dir` the run directory, and `ship_lag_s` the bound
    of shipping, or 0. `costs` are those of 1,000 requests that write, and that read. `addresses`
    are where clients reach the broker. With `is_probed`, it is known that the bucket is fit.
    `cluster` is the URL of the bucket with the directory of the cluster, or "".
    """

    url: str
    broker: str
    writer: str
    known: str
    fresh: str
    first: bool = True
    data_dir: str = ""
    run_dir: str = ""
    is_probed: bool = False
    addresses: tuple[str, ...] = ()
    ship_lag_s: float = 0.0
    costs: tuple[float, float] = (0.0, 0.0)
    cluster: str = ""


@record(kw_only=True)
class GatewayStart(ActorStart):
    """Start values of gateways; `supervisor` is the supervisor's endpoint in the run directory."""

    supervisor: str
    security: SecurityOptions = field(default_factory=SecurityOptions)


_OptionsT = TypeVar("_OptionsT")


@record(kw_only=True)
class DoorStart(GatewayStart, Generic[_OptionsT]):
    """Start values of a gateway that has its own options."""

    options: _OptionsT
    max_msg_size: int = MESSAGE_BYTES_MAX


@record(kw_only=True)
class ZeroMqStart(GatewayStart):
    """Start values of the ZeroMQ gateway; `listen` and `push` are "host:port"."""

    listen: str
    push: str
