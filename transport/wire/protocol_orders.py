"""Orders of the supervisor to actors, and their replies. Gateways refuse them from clients.

Each order is a separate message. Its type parameter defines the type of the reply, unless the order
is refused (Failed). If the supervisor only passes the reply on to the client, the reply is a Done
with the client's data. The supervisor gives each order its request number.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from ..records import record
from ..settings import ChannelOptions, TopicOptions
from .protocol_client import Done, Wire

# fmt: off
__all__ = [
    "AppendEntry", "BackUpLog", "BackUpState", "BehindPause", "CancelDelayed", "ChannelConfigured", "ConfigureChannel", "CopyArchive",
    "CountDelayed", "DeadLettersGo", "Disconnect", "DropChannel", "EmptyChannel", "EmptyTopic", "EndBackup", "EndLog", "FindOffset",
    "FindPart", "Hold", "LeaveChannel", "ListChunks", "ListDelayed", "LookAtNames", "MovePause", "Order", "OrderAnswer", "Peek",
    "Position", "ReadDirectory", "Reload", "ReloadGateway", "ReloadHttpGateway", "ReloadNsqGateway", "ReloadShipping", "Revoke",
    "RunSchedule", "Seek", "SetClosed", "SetLookupds", "SetPaused", "SetRetention", "SetSealed", "SetSync", "Skip", "SkipMessages",
    "TakePart", "WaitForShipping", "WhereDeadLettersGo",
]
# fmt: on

AnswerT = TypeVar("AnswerT", bound=Wire)


@record
class Order(Wire, Generic[AnswerT]):
    """Base of all orders, with the type of the reply."""

    request: int


@record
class OrderAnswer(Wire):
    """Base of the replies that the supervisor reads."""

    request: int


# Replies that the supervisor reads


@record
class Position(OrderAnswer):
    """An offset of the topic: the one that the order asked for."""

    op: ClassVar[int] = 169
    offset: int


@record
class BehindPause(OrderAnswer):
    """Topic to supervisor: the messages that wait behind the pause.

    `start` and `end` are equal if none waits.
    """

    op: ClassVar[int] = 170
    start: int
    end: int


@record
class ChannelConfigured(OrderAnswer):
    """Channel to supervisor: all its settings, durable."""

    op: ClassVar[int] = 171
    settings: ChannelOptions


@record
class DeadLettersGo(OrderAnswer):
    """Channel to supervisor: its dead letters go to this topic."""

    op: ClassVar[int] = 172
    topic: str


# To a storage


@record
class SetSealed(Order[Position]):
    """Accept no more blocks, because the topic is about to be deleted, or accept blocks again.

    The reply is the end of the topic.
    """

    op: ClassVar[int] = 173
    is_sealed: bool


@record
class SetRetention(Order[Done]):
    """Change the retention of the topic. Done.data: {"settings"}. The topic's storage passes it on
    to the channels, which do not answer, because it has the lifetime of their messages.
    """

    op: ClassVar[int] = 174
    retention: TopicOptions


@record
class SetSync(Order[Done]):
    """Answer publishes from now on as this sync mode says: `always` or `bucket`."""

    op: ClassVar[int] = 175
    sync: str


@record
class ListChunks(Order[Done]):
    """List the chunks. Done.data: {"chunks", ...}."""

    op: ClassVar[int] = 176


@record
class FindOffset(Order[Position]):
    """Find the first offset that was stored at `time_ns` (since 1970) or later."""

    op: ClassVar[int] = 177
    time_ns: int


@record
class CountDelayed(Order[Done]):
    """Count the delayed messages.

    Done.data: their number, bytes, next due time, and how many were lost.
    """

    op: ClassVar[int] = 178


@record
class ListDelayed(Order[Done]):
    """List at most `limit` delayed messages after the key `after` (due time, serial); () for the
    first ones.

    Done.data: {"messages"}.
    """

    op: ClassVar[int] = 179
    after: tuple[int, ...]
    limit: int


@record
class CancelDelayed(Order[Done]):
    """Cancel the delayed messages with these keys (due time, serial).

    With `all`, the keys are ignored, and the earliest messages are cancelled, as many as one commit
    allows. Done.data: {"cancelled"}, with `all` also {"more"}.

    With `revoke_keys`, the messages that have one of these revoke keys are cancelled, of a number
    of rows behind the key `after`. Done.data: {"cancelled": their number, "after": where to go on,
    or () if that was the last row}.
    """

    op: ClassVar[int] = 180
    keys: tuple[tuple[int, int], ...]
    all: bool = False
    revoke_keys: tuple[str, ...] = ()
    after: tuple[int, ...] = ()


@record
class BackUpState(Order[Done]):
    """Copy the topic's state for the backup of this id.

    Until BackUpLog, storage removes nothing from the log.
    """

    op: ClassVar[int] = 181
    id: str


@record
class BackUpLog(Order[Done]):
    """Copy the topic's log for the backup of this id. Done.data: place and content of the copy."""

    op: ClassVar[int] = 182
    id: str


@record
class EndBackup(Order[Done]):
    """Drop the copies for the backup of this id."""

    op: ClassVar[int] = 183
    id: str


@record
class LeaveChannel(Order[Done]):
    """Add no more messages to an ephemeral channel, because it is about to be deleted."""

    op: ClassVar[int] = 184
    channel: str


@record
class DropChannel(Order[Done]):
    """Remove the rows of a channel whose process has ended. The reply comes after the commit."""

    op: ClassVar[int] = 185
    channel: str


# To a topic or to a channel


@record
class SetClosed(Order[Done]):
    """Tell all processes of a topic to which clients the topic is closed from now on."""

    op: ClassVar[int] = 186
    to_publishers: bool
    to_consumers: bool


@record
class SetPaused(Order[Done]):
    """Pause a topic or a channel, or let it continue."""

    op: ClassVar[int] = 187
    is_paused: bool


@record
class Hold(Order[Done]):
    """Let a channel give out no message and call back what no handler has begun, because it is to
    move to another process. It answers when its consumers hold no message. With `is_over`, it goes
    on, and answers at once. It also goes on if no Stop follows soon.
    """

    op: ClassVar[int] = 188
    is_over: bool


@record
class EmptyTopic(Order[BehindPause]):
    """Remove the messages that wait for a first channel, and ask which messages wait behind the
    pause.
    """

    op: ClassVar[int] = 189


@record
class MovePause(Order[Done]):
    """Move the topic's pause to `end`. Every channel has skipped the messages before it."""

    op: ClassVar[int] = 190
    end: int


@record
class EmptyChannel(Order[Done]):
    """Skip all messages that the channel has not finished. `head`: the end of the topic."""

    op: ClassVar[int] = 191
    head: int


@record
class Skip(Order[Done]):
    """Skip the messages from `start` up to `end`. The reply comes when this is durable."""

    op: ClassVar[int] = 192
    start: int
    end: int


@record
class SkipMessages(Order[Done]):
    """Finish these messages for the channel without a delivery, wherever they are. `head`: the end
    of the topic. With `preview`, only say which of them that would be.

    Done.data: {"offsets": those that the channel had not finished}. The reply comes when this is
    durable.
    """

    op: ClassVar[int] = 193
    offsets: tuple[int, ...]
    head: int
    preview: bool


@record
class Revoke(Order[Done]):
    """Cancel the messages below `end` that have one of these revoke keys, also those that come
    again later. The reply comes when this is durable.
    """

    op: ClassVar[int] = 194
    keys: tuple[str, ...]
    end: int


@record
class Seek(Order[Position]):
    """Move the channel to `offset`, within the range of the log (`start`, `head`). The reply is the
    new position. It is durable then.

    With `clamp`, an offset beyond the end means the end. With `forward`, the channel moves only
    forward.
    """

    op: ClassVar[int] = 195
    offset: int
    start: int
    head: int
    clamp: bool
    forward: bool


@record
class Peek(Order[Done]):
    """Show at most `limit` messages of each state of the channel.

    `start`, `head`: the range of the log.
    """

    op: ClassVar[int] = 196
    limit: int
    start: int
    head: int


@record
class ConfigureChannel(Order[ChannelConfigured]):
    """Change these settings of the channel. None resets a setting to its default."""

    op: ClassVar[int] = 197
    changes: ChannelOptions


@record
class Disconnect(Order[Done]):
    """End the subscriptions of the consumers with this name, when their finishes are committed.

    Done.data: {"count"}.
    """

    op: ClassVar[int] = 198
    consumer: str


@record
class RunSchedule(Order[Done]):
    """Supervisor to scheduler: publish the message of a schedule once, now.

    `row` is that of the registry. Done comes when the message is stored.
    """

    op: ClassVar[int] = 199
    topic: str
    name: str
    row: dict[str, Any]


@record
class WhereDeadLettersGo(Order[DeadLettersGo]):
    """Ask for the topic to which the channel's dead letters go."""

    op: ClassVar[int] = 200


# To the archive actor


@record
class AppendEntry(Order[Done]):
    """Add this entry to the cluster's directory (storage/cluster/directory.py). An entry that is
    there already is not added again, so the order may be repeated with the same entry.

    Done.data: {"number"}. The entry counts unless others add one at the same time that makes it
    void. Failed: E_BUCKET, or the code of the reason why the entry is void.
    """

    op: ClassVar[int] = 201
    entry: bytes


@record
class ReadDirectory(Order[Done]):
    """Read the cluster's directory on now, because somebody may have added an entry.

    The archive actor sends the entries that it finds before the reply. Done.data: {}. Failed:
    E_BUCKET.
    """

    op: ClassVar[int] = 202


@record
class WaitForShipping(Order[Done]):
    """Answer when the bucket has the registry as it is now, and with `uuid` all of this topic below
    offset `end`.

    Done.data: {"tick": the number of a tick that has them, or of a later one}. Failed: E_BUCKET,
    E_FENCED.
    """

    op: ClassVar[int] = 203
    uuid: str = ""
    end: int = 0


@record
class CopyArchive(Order[Done]):
    """Copy the archive of a part that the broker with the bucket at `url` still has.

    Done.data: {"log": the uuid of the log of the part}. Failed: E_BUCKET, E_CHECKSUM, E_DISK_FULL.
    """

    op: ClassVar[int] = 204
    url: str
    name: str


@record
class TakePart(Order[Done]):
    """Make the directory of a part that another broker has given to this one
    (storage/bucket/shipping/part_taking.py).

    `url` is the bucket of the other broker. `reserve`: leave out this many offsets, because that
    broker was forgotten, and may have given them out. With the `url` "", the part is in the
    directory, and only these offsets are left out. `base_offset` is then that of the part.

    Done.data: {"row": the row of the part in the registry of the other broker, "start", "end",
    "archived": the offsets, and the messages that are only in the archive}. With the `url` "", it
    has only the offsets. Failed: E_BUCKET,
    E_CHECKSUM, E_DISK_FULL.
    """

    op: ClassVar[int] = 205
    url: str
    name: str
    log: str
    tick: int
    directory: str
    reserve: int = 0
    base_offset: int = 0


@record
class EndLog(Order[Done]):
    """End the log of the broker with the bucket at `url`, which its cluster forgets
    (storage/bucket/shipping/log_end.py). Before that, this waits for `quiet_s`, in which that
    broker must ship nothing.

    Done.data: {"tick": the number of the last tick}. Failed: E_BUCKET, E_NOT_EMPTY if the broker
    ships.
    """

    op: ClassVar[int] = 206
    url: str
    quiet_s: float


@record
class FindPart(Order[Done]):
    """Find a part in the bucket at `url` of a broker that was forgotten, which had it in this hold.

    `of_topic` is the uuid of its topic. `given`: the uuid of the log, if the broker may have been
    lost between the release of the part and this hold, which is its own. Done.data: {"log": the
    uuid of its log, or "" if the bucket has nothing of it, "tick": a tick that has it}. Failed:
    E_BUCKET.
    """

    op: ClassVar[int] = 207
    url: str
    name: str
    of_topic: str
    hold: int
    given: str = ""


# To any actor


@record
class Reload(Order[Done]):
    """Apply these settings. They are all settings that may change while an actor runs.

    Gateways get the messages that are derived from this one.
    """

    op: ClassVar[int] = 208
    log_level: str


@record
class ReloadGateway(Reload):
    """Reload the settings of the ZeroMQ gateway. It reads `access_file` again."""

    op: ClassVar[int] = 209
    access_file: str


@record
class ReloadNsqGateway(ReloadGateway):
    """Reload the settings of the NSQ gateway, with its TLS options."""

    op: ClassVar[int] = 210
    cert: str
    key: str
    root_ca: str
    client_auth: str
    required: str
    min_version: str


@record
class ReloadHttpGateway(ReloadGateway):
    """Reload the settings of the HTTP gateway, with the paths of its certificate and key."""

    op: ClassVar[int] = 211
    cert: str
    key: str


@record
class ReloadShipping(Reload):
    """Reload the settings of a topic or of the archive actor, with the bound of shipping."""

    op: ClassVar[int] = 212
    bucket_lag_s: float


@record
class LookAtNames(Order[Done]):
    """Tell an NSQ gateway that topics or channels were created or deleted."""

    op: ClassVar[int] = 213


@record
class SetLookupds(Order[Done]):
    """Make an NSQ gateway register with the nsqlookupds at these addresses, and with no others."""

    op: ClassVar[int] = 214
    addresses: tuple[str, ...]
