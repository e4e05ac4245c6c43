"""The supervisor's orders to actors, and the answers that it reads. Gateways let none of them in. Pure.

Each order is a word of its own, and its type says what answers it, if it is not refused (Failed). What only goes on to the client who asked
is Done with that client's data. The supervisor gives each order its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ..settings import ChannelOptions, RetentionSettings
from .protocol_client import Done, Wire

# fmt: off
__all__ = [
    "BackUpLog", "BackUpState", "BehindPause", "CancelDelayed", "ChannelConfigured", "ConfigureChannel", "CountDelayed", "DeadLettersGo",
    "DropChannel", "EmptyChannel", "EmptyTopic", "EndBackup", "FindOffset", "LeaveChannel", "ListChunks", "ListDelayed", "LookAtNames",
    "MovePause", "Order", "OrderAnswer", "Peek", "Position", "Reload", "ReloadGateway", "ReloadHttpGateway", "ReloadNsqGateway", "Seek",
    "SetClosed", "SetPaused", "SetRetention", "SetSealed", "Skip", "WhereDeadLettersGo",
]
# fmt: on

AnswerT = TypeVar("AnswerT", bound=Wire)


@dataclass(frozen=True, slots=True)
class Order(Wire, Generic[AnswerT]):
    """Base of all orders, each with the type of its answer."""

    request: int


@dataclass(frozen=True, slots=True)
class OrderAnswer(Wire):
    """Base of the answers that the supervisor reads."""

    request: int


# What the supervisor reads


@dataclass(frozen=True, slots=True)
class Position(OrderAnswer):
    """An offset of the topic: the one that was asked for."""

    op: ClassVar[int] = 91
    offset: int


@dataclass(frozen=True, slots=True)
class BehindPause(OrderAnswer):
    """Topic to supervisor: what waits behind the pause. Nothing does where `start` and `end` are equal."""

    op: ClassVar[int] = 92
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChannelConfigured(OrderAnswer):
    """Channel to supervisor: all its settings, durable."""

    op: ClassVar[int] = 93
    settings: ChannelOptions


@dataclass(frozen=True, slots=True)
class DeadLettersGo(OrderAnswer):
    """Channel to supervisor: its dead letters go to this topic."""

    op: ClassVar[int] = 94
    topic: str


# To a storage


@dataclass(frozen=True, slots=True)
class SetSealed(Order[Position]):
    """Take no more, for the topic is about to be deleted (or go on). Position: where the topic ends."""

    op: ClassVar[int] = 95
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class SetRetention(Order[Done]):
    """What the topic keeps from now on. Done.data: {"retention"}."""

    op: ClassVar[int] = 96
    retention: RetentionSettings


@dataclass(frozen=True, slots=True)
class ListChunks(Order[Done]):
    """Say which chunks there are. Done.data: {"chunks", ...}."""

    op: ClassVar[int] = 97


@dataclass(frozen=True, slots=True)
class FindOffset(Order[Position]):
    """Find the first offset that was stored at `time_ns` (since 1970) or later."""

    op: ClassVar[int] = 98
    time_ns: int


@dataclass(frozen=True, slots=True)
class CountDelayed(Order[Done]):
    """Count the delayed messages. Done.data: their number, bytes, next due time, and how many were lost."""

    op: ClassVar[int] = 99


@dataclass(frozen=True, slots=True)
class ListDelayed(Order[Done]):
    """List at most `limit` delayed messages behind the key `after` (due time, serial); () for the first ones. Done.data: {"messages"}."""

    op: ClassVar[int] = 100
    after: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class CancelDelayed(Order[Done]):
    """Cancel the delayed messages with these keys (due time, serial), or without any key some of all. Done.data: {"cancelled", "more"}."""

    op: ClassVar[int] = 101
    keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BackUpState(Order[Done]):
    """Take the topic's state for the backup of this id, and remove nothing of the log until BackUpLog."""

    op: ClassVar[int] = 102
    id: str


@dataclass(frozen=True, slots=True)
class BackUpLog(Order[Done]):
    """Take the topic's log for the backup of this id. Done.data: where it lies, and what is in it."""

    op: ClassVar[int] = 103
    id: str


@dataclass(frozen=True, slots=True)
class EndBackup(Order[Done]):
    """Drop what was taken for the backup of this id."""

    op: ClassVar[int] = 104
    id: str


@dataclass(frozen=True, slots=True)
class LeaveChannel(Order[Done]):
    """An ephemeral channel is about to go: what comes from here on is not its own."""

    op: ClassVar[int] = 105
    channel: str


@dataclass(frozen=True, slots=True)
class DropChannel(Order[Done]):
    """The channel's process has ended: remove its rows. Done after the commit."""

    op: ClassVar[int] = 106
    channel: str


# To a topic, to a channel


@dataclass(frozen=True, slots=True)
class SetClosed(Order[Done]):
    """To all processes of a topic: whom it is closed to from now on."""

    op: ClassVar[int] = 107
    to_publishers: bool
    to_consumers: bool


@dataclass(frozen=True, slots=True)
class SetPaused(Order[Done]):
    """To a topic or channel: pause, or go on."""

    op: ClassVar[int] = 108
    is_paused: bool


@dataclass(frozen=True, slots=True)
class EmptyTopic(Order[BehindPause]):
    """Clear what waits for a first channel, and say what waits behind the pause."""

    op: ClassVar[int] = 109


@dataclass(frozen=True, slots=True)
class MovePause(Order[Done]):
    """Every channel passes what lies before `end`: the topic's pause is there from now on."""

    op: ClassVar[int] = 110
    end: int


@dataclass(frozen=True, slots=True)
class EmptyChannel(Order[Done]):
    """Pass all that the channel has not finished. `head`: the end of the topic."""

    op: ClassVar[int] = 111
    head: int


@dataclass(frozen=True, slots=True)
class Skip(Order[Done]):
    """Pass what lies from `start` up to `end`. Done when that is durable."""

    op: ClassVar[int] = 112
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Seek(Order[Position]):
    """Move the channel to `offset`, within what the log holds (`start`, `head`). Position: where it is then, durable.

    `clamp`: an offset beyond the end means the end. `forward`: move only if that is farther on.
    """

    op: ClassVar[int] = 113
    offset: int
    start: int
    head: int
    clamp: bool
    forward: bool


@dataclass(frozen=True, slots=True)
class Peek(Order[Done]):
    """Show at most `limit` messages of each state of the channel. `start`, `head`: what the log holds."""

    op: ClassVar[int] = 114
    limit: int
    start: int
    head: int


@dataclass(frozen=True, slots=True)
class ConfigureChannel(Order[ChannelConfigured]):
    """Change these settings of the channel; None takes one back to its default."""

    op: ClassVar[int] = 115
    changes: ChannelOptions


@dataclass(frozen=True, slots=True)
class WhereDeadLettersGo(Order[DeadLettersGo]):
    """Say to which topic the channel's dead letters go."""

    op: ClassVar[int] = 116


# To anybody


@dataclass(frozen=True, slots=True)
class Reload(Order[Done]):
    """Take these settings: all that may change while an actor lives. Those of a gateway are words of their own."""

    op: ClassVar[int] = 117
    log_level: str


@dataclass(frozen=True, slots=True)
class ReloadGateway(Reload):
    """The same to the ZeroMQ gateway; `access_file` is read again."""

    op: ClassVar[int] = 118
    access_file: str


@dataclass(frozen=True, slots=True)
class ReloadNsqGateway(ReloadGateway):
    """The same to the NSQ gateway, with its options of TLS."""

    op: ClassVar[int] = 119
    cert: str
    key: str
    root_ca: str
    client_auth: str
    required: str
    min_version: str


@dataclass(frozen=True, slots=True)
class ReloadHttpGateway(ReloadGateway):
    """The same to the HTTP gateway, with the paths of its certificate and key."""

    op: ClassVar[int] = 120
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class LookAtNames(Order[Done]):
    """To an NSQ gateway: topics or channels came or went."""

    op: ClassVar[int] = 121
