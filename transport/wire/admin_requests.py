"""Administrative requests: one class for each action, and the table of what holds for each.

A request is what a client asks of the supervisor with `Manage`. The fields of its class are the
options of the action, and its type parameter is the answer in `Done.data`. `REQUESTS` has one row
for each. The client, the permissions, the audit log, the supervisor and PROTOCOL.md read the rows.
`admin_codec.py` converts requests to `Manage` and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from ..errors import E_BAD_ARGUMENT, UsageError
from ..records import Record, record
from .actions import Action
from .answers import (
    Added,
    AuditEntries,
    Cancelled,
    ChannelConfigured,
    ChannelLook,
    Chunks,
    Closed,
    ClusterAnswer,
    DelayedCount,
    DelayedRows,
    Disconnected,
    Ended,
    FigureHistory,
    Made,
    Moved,
    Moving,
    Nothing,
    OverviewAnswer,
    PartRemoved,
    Revoked,
    Scheduled,
    ScheduleRows,
    Silenced,
    Skipped,
    TopicConfigured,
    TopicNames,
)
from .codec import HeaderValue
from .lifetime import check_revoke_key
from .protocol import SKIPPED_MAX

AnswerT = TypeVar("AnswerT")
Side = Literal["publishers", "consumers"]
END: Final = 1 << 62  # an offset that no topic reaches


@record
class AdminRequest(Record, Generic[AnswerT]):
    """The base of all administrative requests. `request` and `by`: see `Manage`."""

    topic: str = ""
    channel: str = ""
    request: int = 0
    by: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str | None:
        """The topic to which messages are published after this request, or None."""
        return None

    @property
    def fits_each_part(self) -> bool:
        """True if all parts of a topic can carry out this request of a kind with `each_part`."""
        return True


# The broker


@record(kw_only=True)
class ListTopicsRequest(AdminRequest[TopicNames]):
    """Return the names of all topics, each with the names of its channels."""


@record(kw_only=True)
class OverviewRequest(AdminRequest[OverviewAnswer]):
    """Return the rows of topics and channels that changed after version `since`. `processes` adds
    the rows of the processes and of the bucket, and `alarms` those of the alarms.
    """

    since: int = 0
    processes: bool = False
    alarms: bool = False


@record(kw_only=True)
class AuditRequest(AdminRequest[AuditEntries]):
    """Return the newest entries of the audit log, or only those about one topic."""

    count: int = 100


@record(kw_only=True)
class HandoverRequest(AdminRequest[Nothing]):
    """Stop the broker, so that its standby takes over."""


@record(kw_only=True)
class SetLookupdsRequest(AdminRequest[Nothing]):
    """Register with the nsqlookupds at these addresses, until the broker ends."""

    addresses: tuple[str, ...]


# Topics and channels


@record(kw_only=True)
class CreateTopicRequest(AdminRequest[Made]):
    """Create a topic, in a cluster also with `parts`, at the brokers with the numbers `brokers`."""

    sync: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    parts: int | None = None
    brokers: tuple[int, ...] = ()


@record(kw_only=True)
class CreateChannelRequest(AdminRequest[Made]):
    """Create a channel. The options are its settings, and `start`: where it begins."""

    settings: Mapping[str, Any] = field(default_factory=dict)


@record(kw_only=True)
class ConfigureTopicRequest(AdminRequest[TopicConfigured]):
    """Change the sync mode of a topic, or its other settings."""

    sync: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@record(kw_only=True)
class ConfigureChannelRequest(AdminRequest[ChannelConfigured]):
    """Change the settings of a channel. The options are these settings."""

    settings: Mapping[str, Any] = field(default_factory=dict)


@record(kw_only=True)
class DeleteRequest(AdminRequest[Nothing]):
    """Delete a topic or a channel. Without `force`, this is refused if messages are left.

    `drained`: the client has asked all parts of the topic with CheckDrainedRequest.
    """

    force: bool = False
    drained: bool = False

    @property
    def fits_each_part(self) -> bool:
        return bool(self.channel)


@record(kw_only=True)
class PauseRequest(AdminRequest[Nothing]):
    """Pause a topic or a channel."""


@record(kw_only=True)
class UnpauseRequest(AdminRequest[Nothing]):
    """Continue a paused topic or channel."""


@record(kw_only=True)
class EmptyRequest(AdminRequest[Nothing]):
    """Remove the messages that wait for a channel, or for the first channel of a topic."""


@record(kw_only=True)
class CloseRequest(AdminRequest[Closed]):
    """Close a topic to publishers, or to both sides."""

    to: Side = "publishers"


@record(kw_only=True)
class OpenRequest(AdminRequest[Closed]):
    """Open a topic to both sides, or only to consumers."""

    to: Side = "publishers"


@record(kw_only=True)
class ChunksRequest(AdminRequest[Chunks]):
    """Return the log files of a topic."""


@record(kw_only=True)
class EndedRequest(AdminRequest[Ended]):
    """Return the next offset that the topic of this name had when it was deleted last, or nil. The
    topic need not exist.
    """


@record(kw_only=True)
class HistoryRequest(AdminRequest[FigureHistory]):
    """Return values of a topic or a channel over `span` (1d or 30d)."""

    span: str
    points: int = 720


# The position of a channel, and its messages


@record(kw_only=True)
class SeekRequest(AdminRequest[Moved]):
    """Move a channel to `offset`, or to the first message that was stored at `time_ns` or later.
    With `forward`, it never moves back. With `clamp`, a place beyond the end means the end.
    """

    offset: int | None = None
    time_ns: int | None = None
    forward: bool = False
    clamp: bool = False

    def __post_init__(self) -> None:
        if (self.offset is None) == (self.time_ns is None):
            text = "seek needs either offset or time_ns, as a whole number"
            raise UsageError(E_BAD_ARGUMENT, text)

    @property
    def fits_each_part(self) -> bool:
        # Each part has offsets of its own.
        return self.offset in (None, 0, END)


@record(kw_only=True)
class SkipRequest(AdminRequest[Skipped]):
    """Finish messages for a channel without a delivery. Return which were not finished."""

    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.offsets)
        if not 1 <= count <= SKIPPED_MAX or not all(0 <= offset < END for offset in self.offsets):
            raise UsageError(
                E_BAD_ARGUMENT,
                f"give 1 to {SKIPPED_MAX:,} offsets, which are whole numbers from 0 on, not "
                f"{[*self.offsets[:SKIPPED_MAX]]!r:.60}",
            )


@record(kw_only=True)
class PreviewSkipRequest(SkipRequest):
    """Return which of these messages of a channel are not finished."""


@record(kw_only=True)
class RevokeRequest(AdminRequest[Revoked]):
    """Cancel the messages of a topic that have one of these revoke keys."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.keys) <= SKIPPED_MAX:
            text = f"give 1 to {SKIPPED_MAX:,} revoke keys, not {len(self.keys)}"
            raise UsageError(E_BAD_ARGUMENT, text)
        for key in self.keys:
            check_revoke_key(key)


@record(kw_only=True)
class PeekRequest(AdminRequest[ChannelLook]):
    """Return the position of a channel and the messages that it holds, `limit` of each state."""

    limit: int


@record(kw_only=True)
class DisconnectRequest(AdminRequest[Disconnected]):
    """End the subscriptions of the consumers of a channel that have the name `consumer`."""

    consumer: str


@record(kw_only=True)
class RedriveRequest(AdminRequest[Nothing]):
    """Return whether dead letters of the topic may be published to topic `to`, or only to its
    channel `to_channel`. `origin`: the topic, its uuid and the channel from which they come.
    `chosen`: a person has chosen the target, so the origin is not checked.
    """

    to: str
    to_channel: str = ""
    origin: tuple[str, str, str]
    chosen: bool = False

    @property
    def target(self) -> str:
        return self.to


# Delayed messages


@record(kw_only=True)
class ListDelayedRequest(AdminRequest[DelayedRows]):
    """Return the delayed messages that wait, the next due one first, after the key `after`."""

    after: str = ""
    limit: int = 1_000


@record(kw_only=True)
class CountDelayedRequest(AdminRequest[DelayedCount]):
    """Return the number of delayed messages that wait."""


@record(kw_only=True)
class CancelDelayedRequest(AdminRequest[Cancelled]):
    """Cancel delayed messages by their `keys`. With `all`, cancel some of all that wait."""

    keys: tuple[str, ...] = ()
    all: bool = False


# Backups of a topic


@record(kw_only=True)
class BackUpStateRequest(AdminRequest[Nothing]):
    """Begin the backup `id`: copy the state of the topic."""

    id: str


@record(kw_only=True)
class BackUpLogRequest(AdminRequest[dict[str, Any]]):
    """Return the log files of the backup `id`."""

    id: str = ""


@record(kw_only=True)
class EndBackupRequest(AdminRequest[Nothing]):
    """End the backup `id`."""

    id: str = ""


# Schedules


@record(kw_only=True)
class ScheduleRequest(AdminRequest[AnswerT]):
    """The base of the requests about one schedule of a topic."""

    name: str


@record(kw_only=True)
class AddScheduleRequest(ScheduleRequest[Scheduled]):
    """Publish `body` at each due time of the expression `cron`."""

    cron: str
    body: bytes
    timezone: str = "UTC"
    missed: str = "one"
    key: bytes | None = None
    tag: str | None = None
    headers: Mapping[str, HeaderValue] | None = None
    unique: str | None = None

    @property
    def target(self) -> str:
        return self.topic


@record(kw_only=True)
class SetScheduleRequest(ScheduleRequest[Scheduled]):
    """Change a schedule. Options that are missing do not change."""

    cron: str | None = None
    body: bytes | None = None
    timezone: str | None = None
    missed: str | None = None
    tag: str | None = None
    headers: Mapping[str, HeaderValue] | None = None
    unique: str | None = None

    @property
    def target(self) -> str:
        return self.topic


@record(kw_only=True)
class RunScheduleRequest(ScheduleRequest[Nothing]):
    """Publish the message of a schedule once, now."""

    @property
    def target(self) -> str:
        return self.topic


@record(kw_only=True)
class RemoveScheduleRequest(ScheduleRequest[Nothing]):
    """Remove a schedule."""


@record(kw_only=True)
class PauseScheduleRequest(ScheduleRequest[Nothing]):
    """Pause a schedule."""


@record(kw_only=True)
class ResumeScheduleRequest(ScheduleRequest[Nothing]):
    """Resume a paused schedule."""


@record(kw_only=True)
class ListSchedulesRequest(AdminRequest[ScheduleRows]):
    """Return all schedules of this broker."""


# Alarms


@record(kw_only=True)
class SilenceAlarmRequest(AdminRequest[Silenced]):
    """Silence the alarms of one `kind`, or of all kinds, for `seconds`. 0: until they are
    cleared.
    """

    kind: str = ""
    seconds: float = 0


@record(kw_only=True)
class EndSilenceRequest(AdminRequest[Silenced]):
    """End the silences of alarms."""

    kind: str = ""


# Clusters


@record(kw_only=True)
class ClusterRequest(AdminRequest[ClusterAnswer]):
    """Return the brokers of the cluster, and the topics with parts. `fresh`: read the directory
    first.
    """

    fresh: bool = False


@record(kw_only=True)
class AddPartsRequest(AdminRequest[Added]):
    """Add `count` parts to a topic with parts, at the brokers with the numbers `brokers`."""

    count: int
    brokers: tuple[int, ...] = ()


@record(kw_only=True)
class MovePartRequest(AdminRequest[Moving]):
    """Begin to move a part to the broker with the number `broker`."""

    broker: int


@record(kw_only=True)
class RemovePartRequest(AdminRequest[PartRemoved]):
    """Remove a part that is closed. Without `force`, this is refused if messages are left in it."""

    force: bool = False


@record(kw_only=True)
class CheckDrainedRequest(AdminRequest[PartRemoved]):
    """Return where the log of a closed topic or part ends. This is refused if messages are left in
    it.
    """


@record(kw_only=True)
class DrainBrokerRequest(AdminRequest[Nothing]):
    """Let the broker with the number `broker` move its parts to others, `concurrency` at a time.

    Without `draining`, it keeps the parts that it has, and takes new ones.
    """

    broker: int
    draining: bool = True
    concurrency: int = 1


@record(kw_only=True)
class ForgetBrokerRequest(AdminRequest[Nothing]):
    """Let the others have the parts of the broker with the number `broker`, which is gone for good.
    With `force`, it is not checked whether it still ships.
    """

    broker: int
    force: bool = False


@record(kw_only=True)
class SetAutoRequest(AdminRequest[Nothing]):
    """Set whether the brokers of the cluster balance their parts by themselves.

    At most `concurrency` parts move at a time. After each, its broker waits, so that it moves at
    most `rate` bytes in a second (0: any number). A broker that is silent for `gone_after` seconds
    is forgotten (0: never).
    """

    on: bool
    rate: int = 0
    concurrency: int = 1
    gone_after: int = 0


class Scope(Enum):
    """The thing that a request is about, which says what names it has."""

    BROKER = "broker"
    TOPIC = "topic"
    CHANNEL = "channel"
    TOPIC_OR_CHANNEL = "topic or channel"
    ANY = "broker, topic or channel"


class RequestRow(NamedTuple):
    """A row of the table.

    `name`: the action in `Manage`, and the value of its option `do` if it has one. `action`: the
    permission that it needs. `is_repeatable`: it is harmless to send the request twice.
    `is_audited`: it is recorded in the audit log, because it changes something. `each_part`: a
    client sends it to the broker of each part of a topic that has parts.
    """

    kind: type[AdminRequest[Any]]
    name: str
    scope: Scope
    action: Action
    is_repeatable: bool = True
    is_audited: bool = True
    each_part: bool = False


def _looking(
    kind: type[AdminRequest[Any]],
    name: str,
    scope: Scope,
    action: Action,
    *,
    each_part: bool = False,
) -> RequestRow:
    """Return the row of a request that changes nothing."""
    return RequestRow(kind, name, scope, action, is_audited=False, each_part=each_part)


def _changing(
    kind: type[AdminRequest[Any]],
    name: str,
    scope: Scope,
    *,
    is_repeatable: bool = False,
    each_part: bool = False,
) -> RequestRow:
    """Return the row of a request that an admin of its topic may send."""
    return RequestRow(
        kind, name, scope, Action.MANAGE_TOPIC, is_repeatable=is_repeatable, each_part=each_part
    )


# A request with MANAGE_TOPIC and without a topic needs ADMINISTER.
REQUESTS: Final = (
    _looking(ListTopicsRequest, "list", Scope.BROKER, Action.SEE_SOME),
    _looking(OverviewRequest, "overview", Scope.BROKER, Action.SEE_SOME),
    _looking(AuditRequest, "audit", Scope.ANY, Action.ADMINISTER),
    # The new primary would hand back if it got the request again.
    RequestRow(HandoverRequest, "handover", Scope.BROKER, Action.ADMINISTER, is_repeatable=False),
    RequestRow(SetLookupdsRequest, "lookupds", Scope.BROKER, Action.ADMINISTER),
    _changing(CreateTopicRequest, "create", Scope.TOPIC),
    _changing(CreateChannelRequest, "create", Scope.CHANNEL, each_part=True),
    _changing(ConfigureTopicRequest, "configure", Scope.TOPIC, is_repeatable=True, each_part=True),
    _changing(
        ConfigureChannelRequest, "configure", Scope.CHANNEL, is_repeatable=True, each_part=True
    ),
    _changing(DeleteRequest, "delete", Scope.TOPIC_OR_CHANNEL, each_part=True),
    _changing(PauseRequest, "pause", Scope.TOPIC_OR_CHANNEL, each_part=True),
    _changing(UnpauseRequest, "unpause", Scope.TOPIC_OR_CHANNEL, each_part=True),
    _changing(EmptyRequest, "empty", Scope.TOPIC_OR_CHANNEL, each_part=True),
    _changing(CloseRequest, "close", Scope.TOPIC, is_repeatable=True, each_part=True),
    _changing(OpenRequest, "open", Scope.TOPIC, is_repeatable=True, each_part=True),
    _looking(ChunksRequest, "chunks", Scope.TOPIC, Action.SEE),
    _looking(EndedRequest, "ended", Scope.TOPIC, Action.SEE),
    _looking(HistoryRequest, "history", Scope.TOPIC_OR_CHANNEL, Action.SEE),
    _changing(SeekRequest, "seek", Scope.CHANNEL, is_repeatable=True, each_part=True),
    _changing(SkipRequest, "skip messages", Scope.CHANNEL, is_repeatable=True),
    _changing(RevokeRequest, "revoke", Scope.TOPIC, is_repeatable=True, each_part=True),
    # Peek, the preview and the list of delayed messages show bodies, or which messages exist.
    _looking(PreviewSkipRequest, "skip preview", Scope.CHANNEL, Action.CONSUME),
    _looking(PeekRequest, "peek", Scope.CHANNEL, Action.CONSUME),
    _changing(DisconnectRequest, "disconnect", Scope.CHANNEL, each_part=True),
    RequestRow(RedriveRequest, "redrive", Scope.TOPIC, Action.REDRIVE),
    _looking(ListDelayedRequest, "delayed list", Scope.TOPIC, Action.READ),
    _looking(CountDelayedRequest, "delayed count", Scope.TOPIC, Action.SEE),
    _changing(CancelDelayedRequest, "delayed cancel", Scope.TOPIC),
    RequestRow(
        BackUpStateRequest, "backup state", Scope.TOPIC, Action.ADMINISTER, is_repeatable=False
    ),
    RequestRow(BackUpLogRequest, "backup log", Scope.TOPIC, Action.ADMINISTER, False, False),
    RequestRow(EndBackupRequest, "backup end", Scope.TOPIC, Action.ADMINISTER, False, False),
    _changing(AddScheduleRequest, "schedule add", Scope.TOPIC),
    _changing(SetScheduleRequest, "schedule set", Scope.TOPIC),
    _changing(RunScheduleRequest, "schedule run", Scope.TOPIC),
    _changing(RemoveScheduleRequest, "schedule remove", Scope.TOPIC),
    _changing(PauseScheduleRequest, "schedule pause", Scope.TOPIC),
    _changing(ResumeScheduleRequest, "schedule resume", Scope.TOPIC),
    _looking(ListSchedulesRequest, "schedule list", Scope.ANY, Action.SEE_SOME, each_part=True),
    _changing(SilenceAlarmRequest, "alarm ack", Scope.ANY),
    _changing(EndSilenceRequest, "alarm unack", Scope.ANY),
    _looking(ClusterRequest, "cluster", Scope.BROKER, Action.SEE_SOME),
    _changing(AddPartsRequest, "add_parts", Scope.TOPIC),
    _changing(MovePartRequest, "move", Scope.TOPIC, is_repeatable=True),
    _changing(RemovePartRequest, "remove_part", Scope.TOPIC),
    RequestRow(DrainBrokerRequest, "broker drain", Scope.BROKER, Action.ADMINISTER),
    RequestRow(ForgetBrokerRequest, "broker forget", Scope.BROKER, Action.ADMINISTER),
    RequestRow(SetAutoRequest, "cluster auto", Scope.BROKER, Action.ADMINISTER),
    RequestRow(
        CheckDrainedRequest,
        "drained",
        Scope.TOPIC,
        Action.MANAGE_TOPIC,
        is_audited=False,
        each_part=True,
    ),
)

ROW_OF: Final = {row.kind: row for row in REQUESTS}
