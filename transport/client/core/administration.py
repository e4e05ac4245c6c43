"""Calls of Admin: what each asks of the supervisor, and the meaning of the replies. No I/O.

Each public function here is a method of both clients. `scripts/clients.py` generates the methods
from the signatures and docstrings: `blocking/admin_calls.py` and `asyncio/aio_admin_calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Unpack, cast

from ...errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
)
from ...names import PARTS_MAX, base_of, check_name, part_name, part_of
from ...settings import SYNC_MODES, ChannelOptions, NewChannelOptions, TopicOptions
from ...wire.admin_requests import (
    AddPartsRequest,
    AddScheduleRequest,
    AnswerT,
    AuditRequest,
    CancelDelayedRequest,
    CheckDrainedRequest,
    ChunksRequest,
    CloseRequest,
    ClusterRequest,
    ConfigureChannelRequest,
    ConfigureTopicRequest,
    CountDelayedRequest,
    CreateChannelRequest,
    CreateTopicRequest,
    DeleteRequest,
    DisconnectRequest,
    DrainBrokerRequest,
    EmptyRequest,
    EndedRequest,
    EndSilenceRequest,
    ForgetBrokerRequest,
    HandoverRequest,
    HistoryRequest,
    ListDelayedRequest,
    ListSchedulesRequest,
    ListTopicsRequest,
    MovePartRequest,
    OpenRequest,
    OverviewRequest,
    PauseRequest,
    PauseScheduleRequest,
    PreviewSkipRequest,
    RedriveRequest,
    RemovePartRequest,
    RemoveScheduleRequest,
    ResumeScheduleRequest,
    RevokeRequest,
    RunScheduleRequest,
    ScheduleRequest,
    SeekRequest,
    SetAutoRequest,
    SetScheduleRequest,
    Side,
    SilenceAlarmRequest,
    SkipRequest,
    UnpauseRequest,
)
from ...wire.answers import (
    Added,
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
    Moving,
    Nothing,
    OverviewAnswer,
    PartRemoved,
    Revoked,
    Scheduled,
    ScheduleRow,
    Silenced,
    TopicConfigured,
    places_of,
)
from ...wire.codec import HeaderValue
from ...wire.spread import HasParts, parts_of_keys
from .asking import Asking, Place, ask_admin, ask_stats, carried, on_wire, seek_place
from .message import parse_id, part_in_id
from .publish_arguments import as_attributes, as_body

CONCURRENCY_MAX: Final = 100  # parts that move at a time
GONE_AFTER_MIN: Final = 60
FIND_MAX: Final = 20  # parts at other brokers that are asked for one message


def create_topic(
    topic: str,
    *,
    sync: str = "always",
    parts: int = 0,
    brokers: Sequence[int] = (),
    **settings: Unpack[TopicOptions],
) -> Asking[Made]:
    """Create a topic. Returns {"existed": True} if it existed and so was not changed.

    `sync`: always, bucket, interval, or never. With `parts`, the topic has that many parts at
    the brokers of the cluster, in turn, or at `brokers` (their numbers, see `cluster`).
    """
    check_name(topic)
    _check_sync(sync)
    if parts:
        _check_parts(parts)
    elif brokers:
        raise UsageError(E_BAD_ARGUMENT, "brokers are for the parts of a topic: give parts, too")
    return ask_admin(
        CreateTopicRequest(
            topic,
            sync=sync,
            settings=carried(settings),
            parts=parts or None,
            brokers=tuple(brokers or ()),
        )
    )


def add_parts(topic: str, count: int, *, brokers: Sequence[int] = ()) -> Asking[Added]:
    """Add parts to a topic that has parts. Returns {"parts": how many it has now}.

    They are at the brokers with the fewest parts of the topic, of all or of `brokers`. Some
    keys move to the new parts, so the order of a key is not kept across this change.
    """
    check_name(topic)
    return ask_admin(
        AddPartsRequest(topic, count=_check_parts(count), brokers=tuple(brokers or ()))
    )


def move_part(part: str, broker: int) -> Asking[Moving]:
    """Begin to move a part, such as "clicks#3", to the broker with this number.

    With the number of the broker that has it, a move that has not begun is withdrawn. Returns
    {"hold": how often the part was moved before}. `cluster` shows open moves under `moves`.
    """
    _check_part(part, "moved")
    return ask_admin(MovePartRequest(part, broker=_check_broker(broker)))


def remove_part(part: str, *, force: bool = False) -> Asking[PartRemoved]:
    """Remove a part that is closed to publishers, such as "clicks#3". See docs/parts.md.

    Raises `Refused` (E_NOT_EMPTY) while the part is open, or a channel has unfinished messages
    in it, unless `force` is True. Returns {"end": the offset at which its log ended}.
    """
    _check_part(part, "removed")
    return ask_admin(RemovePartRequest(part, force=force))


def cluster(*, fresh: bool = False) -> Asking[ClusterAnswer]:
    """Return the brokers of the cluster, and the topics with parts, as this broker knows them.

    With `fresh`, it reads the directory first. `is_shared` is False if the broker belongs to no
    cluster.
    """
    return ask_admin(ClusterRequest(fresh=fresh))


def drain_broker(broker: int, *, undo: bool = False, concurrency: int = 1) -> Asking[Nothing]:
    """Let the broker with this number move all its parts to others, and take no new ones.

    It moves `concurrency` parts at a time, also after a restart. `undo` ends it. What was moved
    does not come back then. Raises `UsageError` if no other broker takes parts.
    """
    _check_broker(broker)
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise UsageError(
            E_BAD_ARGUMENT, f"concurrency must be 1 to {CONCURRENCY_MAX}, not {concurrency}"
        )
    return ask_admin(DrainBrokerRequest(broker=broker, draining=not undo, concurrency=concurrency))


def forget_broker(broker: int, *, force: bool = False) -> Asking[Nothing]:
    """Let the other brokers have the parts of one that is gone for good. See docs/cluster.md.

    Raises `Refused` (E_NOT_EMPTY) if it still ships, unless `force` is True.
    """
    return ask_admin(ForgetBrokerRequest(broker=_check_broker(broker), force=force))


def set_auto_balance(
    on: bool, *, rate: int = 0, concurrency: int = 1, gone_after: int = 0
) -> Asking[Nothing]:
    """Let the brokers of the cluster balance their parts by themselves, or not.

    `concurrency`: how many parts move at a time. `rate`: how many bytes a broker moves a second
    on average, 0 for any number. `gone_after`: the seconds of silence after which a broker is
    forgotten, at least 60, or 0 for never.
    """
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise UsageError(
            E_BAD_ARGUMENT, f"concurrency must be 1 to {CONCURRENCY_MAX}, not {concurrency}"
        )
    if rate < 0:
        raise UsageError(E_BAD_ARGUMENT, f"rate must be at least 0, not {rate}")
    if gone_after and gone_after < GONE_AFTER_MIN:
        text = f"gone_after must be 0 or at least {GONE_AFTER_MIN} s, not {gone_after}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return ask_admin(
        SetAutoRequest(on=on, rate=rate, concurrency=concurrency, gone_after=gone_after)
    )


def configure_topic(
    topic: str, *, sync: str | None = None, **settings: Unpack[TopicOptions]
) -> Asking[TopicConfigured]:
    """Change the settings of a topic, see `TopicOptions`, or its sync mode.

    `sync`: always, bucket, interval, or never. All that was published before is synced first.
    """
    check_name(topic)
    if sync is None and not settings:
        names = ", ".join(("sync", *TopicOptions.__annotations__))
        raise UsageError(E_BAD_ARGUMENT, f"give at least one setting to change: {names}")
    if sync is not None:
        _check_sync(sync)
    return ask_admin(ConfigureTopicRequest(topic, sync=sync, settings=carried(settings)))


def create_channel(topic: str, channel: str, **settings: Unpack[NewChannelOptions]) -> Asking[Made]:
    """Create a channel. Returns {"existed": True} if it existed and so was not changed.

    Raises `UsageError` if it exists with other `tags`, `ordered` or `priorities`.
    """
    return ask_admin(CreateChannelRequest(*_names(topic, channel), settings=on_wire(settings)))


def configure_channel(
    topic: str, channel: str, **settings: Unpack[ChannelOptions]
) -> Asking[ChannelConfigured]:
    """Change the settings of a channel, see `ChannelOptions`."""
    if not settings:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"give at least one setting to change: {', '.join(ChannelOptions.__annotations__)}",
        )
    return ask_admin(ConfigureChannelRequest(*_names(topic, channel), settings=on_wire(settings)))


def delete_topic(topic: str, *, force: bool = False) -> Asking[Nothing]:
    """Delete a topic.

    Raises `Refused` (E_NOT_EMPTY) while it has unfinished messages, unless `force` is True. A
    topic with parts must then be closed to publishers, and all of its brokers must answer.
    """
    request = DeleteRequest(check_name(topic), force=force)
    try:
        return (yield from ask_admin(request))
    except HasParts:
        yield from ask_admin(CheckDrainedRequest(topic))
        return (yield from ask_admin(replace(request, drained=True)))


def close_topic(topic: str, *, to: Side = "publishers") -> Asking[Closed]:
    """Close a topic to publishers, or to publishers and consumers.

    `to="publishers"`: publishers get E_CLOSED, and consumers can finish the messages that are
    left. `to="consumers"`: both get it, but `Consumer.run` waits until the topic is open again.
    """
    return ask_admin(CloseRequest(check_name(topic), to=to))


def open_topic(topic: str, *, to: Side = "publishers") -> Asking[Closed]:
    """Open a closed topic to everyone, or with `to="consumers"` only to consumers."""
    return ask_admin(OpenRequest(check_name(topic), to=to))


def delete_channel(topic: str, channel: str, *, force: bool = False) -> Asking[Nothing]:
    """Delete a channel.

    Raises `Refused` (E_NOT_EMPTY) while it has unfinished messages, unless `force` is True.
    """
    return ask_admin(DeleteRequest(*_names(topic, channel), force=force))


def pause(topic: str, channel: str | None = None) -> Asking[Nothing]:
    """Pause a topic, whose channels then get no new messages, or a channel, which delivers
    nothing.
    """
    return ask_admin(PauseRequest(*_names(topic, channel)))


def unpause(topic: str, channel: str | None = None) -> Asking[Nothing]:
    """Continue a paused topic or channel where it was paused."""
    return ask_admin(UnpauseRequest(*_names(topic, channel)))


def empty(topic: str, channel: str | None = None) -> Asking[Nothing]:
    """Remove the waiting messages, so that they are never delivered.

    With a channel, this removes its backlog. Without one, it removes the messages that wait for
    the topic's first channel, or until the topic is unpaused. Delayed messages are cancelled if
    the topic has no channel, or only this one.
    """
    return ask_admin(EmptyRequest(*_names(topic, channel)))


def seek(
    topic: str, channel: str, where: Place, *, forward: bool = False, clamp: bool = False
) -> Asking[Moved]:
    """Move a channel: back, to read messages again, or forward, to leave messages out.

    `where`: an offset, "earliest", "latest", or a time (datetime, or seconds since 1970 as
    float). The channel forgets the messages that it holds, and all unfinished messages before
    the new place. With `forward` it never moves back. A place beyond the topic's end raises
    `UsageError`. With `clamp`, it means the end. See docs/channel-reference.md.
    """
    offset, time_ns = seek_place(where)
    return ask_admin(
        SeekRequest(
            *_names(topic, channel), offset=offset, time_ns=time_ns, forward=forward, clamp=clamp
        )
    )


def skip(
    topic: str, channel: str, offsets: Sequence[int], *, preview: bool = False
) -> Asking[list[int]]:
    """Finish messages for a channel without a delivery, and return the offsets of those that it
    had not finished.

    `offsets`: up to 1,000, of the topic or of one part. The messages may also be with a
    consumer, whose answer then comes too late. One on its way to the dead letters is not
    skipped. With `preview`, only return the offsets.
    """
    if not all(type(offset) is int for offset in offsets):
        raise UsageError(E_BAD_ARGUMENT, f"offsets must be whole numbers, not {[*offsets]!r:.60}")
    kind = PreviewSkipRequest if preview else SkipRequest
    answer = yield from ask_admin(kind(*_names(topic, channel), offsets=tuple(offsets)))
    return list(answer["offsets"])


def cancel(
    topic: str, offsets: Sequence[int], *, channel: str | None = None
) -> Asking[dict[str, list[int]]]:
    """Cancel messages by their offsets: for one channel, or for all channels of the topic.

    A consumer that holds such a message drops it, and a handler that has begun it sees
    `message.cancelled`. Returns the offsets that each channel had not finished, by the name of
    the channel. If it is interrupted, repeat it.
    """
    channels = [channel]
    if channel is None:
        listed = yield from topics()
        if topic not in listed:
            raise NotFound(E_NOT_FOUND, f"topic {check_name(topic)!r} does not exist")
        channels = [*listed[topic]]
    cancelled: dict[str, list[int]] = {}
    for name in channels:
        cancelled[name or ""] = yield from skip(topic, name or "", offsets)
    return cancelled


def revoke(topic: str, keys: str | Sequence[str]) -> Asking[Revoked]:
    """Cancel all messages of a topic that were published with one of these revoke keys.

    `keys`: one key, or up to 1,000. Delayed messages are removed at once. The others are not
    delivered any more. A message that is published later with the same key is delivered.
    Returns {"delayed": the number of delayed messages that were removed}. See
    docs/lifetimes.md.
    """
    wanted = (keys,) if isinstance(keys, str) else tuple(keys)
    return ask_admin(RevokeRequest(check_name(topic), keys=wanted))


def disconnect(topic: str, channel: str, consumer: str) -> Asking[Disconnected]:
    """End the subscriptions of the consumers with this name, their `client_id` in `stats`.

    Other consumers get their messages at once, which use no attempt. A client that still runs
    subscribes again by itself: to keep it away, stop it, or take its permission. Returns
    {"count": their number}. Raises `NotFound` if there is none.
    """
    answer = yield from ask_admin(DisconnectRequest(*_names(topic, channel), consumer=consumer))
    if not answer["count"]:
        text = f"channel {channel!r} of topic {topic!r} has no consumer {consumer!r}"
        raise NotFound(E_NOT_FOUND, f"{text}; zsq stats --json has their names (client_id)")
    return answer


def redrive_to(
    dead_topic: str,
    to: str,
    channel: str | None,
    origin: tuple[str, str, str],
    *,
    chosen: bool = False,
) -> Asking[Nothing]:
    """Ask whether dead letters of `dead_topic` may be published to topic `to`, as `zsq redrive`
    does.

    `channel`: the only channel that gets them, or None for all. `origin`: topic, its uuid, and
    channel, as the headers of the dead letters say. Raises E_FORBIDDEN unless dead letters of
    that channel go to `dead_topic`. With `chosen`, a person has chosen `to`, and the headers
    are not checked.
    """
    check_name(dead_topic)
    return ask_admin(
        RedriveRequest(
            dead_topic,
            to=check_name(to),
            to_channel=channel or "",
            origin=origin,
            chosen=chosen,
        )
    )


def delayed_list(topic: str, *, after: str = "", count: int = 1_000) -> Asking[list[DelayedRow]]:
    """Return the delayed messages that wait, the next due one first, at most `count` (1,000).

    To get more, call it again with `after` set to the last `delayed_key`. See `DelayedRow`.
    """
    request = ListDelayedRequest(check_name(topic), after=after, limit=count)
    answer = yield from ask_admin(request)
    return list(answer["messages"])


def delayed_count(topic: str) -> Asking[DelayedCount]:
    """Return the number of delayed messages that wait, see `DelayedCount`."""
    return ask_admin(CountDelayedRequest(check_name(topic)))


def delayed_cancel(topic: str, keys: Sequence[str]) -> Asking[list[bool]]:
    """Cancel delayed messages by their keys (1,000 at most).

    The result has one value for each key. False: it does not wait, or no longer.
    """
    answer = yield from ask_admin(CancelDelayedRequest(check_name(topic), keys=tuple(keys)))
    return [*cast("Sequence[bool]", answer["cancelled"])]


def delayed_cancel_all(topic: str) -> Asking[int]:
    """Cancel all delayed messages that wait, and return their number.

    Messages that arrive in the meantime may stay.
    """
    total, has_more = 0, True
    while has_more:
        answer = yield from ask_admin(CancelDelayedRequest(check_name(topic), all=True))
        count = cast("int", answer["cancelled"])
        total, has_more = total + count, bool(answer.get("more") and count)
    return total


def schedule_add(
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
    unique: str | None = None,
) -> Asking[Scheduled]:
    """Publish `body` to `topic` at each due time of a cron expression. See docs/schedules.md.

    `name`: unique in the topic. `cron`: five fields, as in crontab. `timezone`: such as
    "Europe/Berlin". `missed`: what is published of missed due times: "one" (the latest), "all"
    (the last 1,000), or "skip". `unique`: "while-waiting" or "while-working". Returns
    {"next_due_ns": the first due time}. Raises `UsageError` for a wrong expression or time
    zone, if the name exists (E_EXISTS), or if the broker lacks the extra `schedules`
    (E_UNSUPPORTED).
    """
    key_bytes, _, _ = as_attributes(key, tag, headers)
    request = AddScheduleRequest(
        check_name(topic),
        name=name,
        cron=cron,
        body=as_body(body),
        timezone=timezone,
        missed=missed,
        key=key_bytes,
        tag=tag,
        headers={**headers} if headers else None,
        unique=unique,
    )
    try:
        return (yield from ask_admin(request))
    except HasParts as error:
        if parts := (yield from _parts_with(topic, name)):
            text = f"topic {topic!r} has a schedule {name!r} already, in part {parts[0]!r}"
            raise UsageError(E_EXISTS, f"{text}; remove it first") from None
        number = parts_of_keys(error.spread).of(key_bytes or name.encode())
        return (yield from ask_admin(replace(request, topic=part_name(topic, number))))


def schedule_set(
    topic: str,
    name: str,
    *,
    cron: str | None = None,
    body: bytes | None = None,
    timezone: str | None = None,
    missed: str | None = None,
    tag: str | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
    unique: str | None = None,
) -> Asking[Scheduled]:
    """Change a schedule, see `schedule_add`. What is None stays, and so does the key.

    Due times count from now on. Returns {"next_due_ns": the first due time}.
    """
    return _about_schedule(
        SetScheduleRequest(
            topic,
            name=name,
            cron=cron,
            body=None if body is None else as_body(body),
            timezone=timezone,
            missed=missed,
            tag=tag,
            headers=headers,
            unique=unique,
        )
    )


def schedule_run(topic: str, name: str) -> Asking[Nothing]:
    """Publish the message of a schedule once, now, also while it is paused.

    The message is stored when this returns.
    """
    return _about_schedule(RunScheduleRequest(topic, name=name))


def schedule_remove(topic: str, name: str) -> Asking[Nothing]:
    """Remove a schedule. A message that is just being published may still come."""
    return _about_schedule(RemoveScheduleRequest(topic, name=name))


def schedule_pause(topic: str, name: str) -> Asking[Nothing]:
    """Pause a schedule. Nothing is published for due times until it is resumed."""
    return _about_schedule(PauseScheduleRequest(topic, name=name))


def schedule_resume(topic: str, name: str) -> Asking[Nothing]:
    """Resume a schedule. Due times of the pause are left out, and do not count as missed."""
    return _about_schedule(ResumeScheduleRequest(topic, name=name))


def schedule_list(topic: str | None = None) -> Asking[list[ScheduleRow]]:
    """Return the schedules of this broker, or those of one topic, by topic and name.

    Each row has topic, name, cron, timezone, policy, state, next_due_ns, last_due_ns,
    published, missed, trouble, and body_bytes.
    """
    of_topic = "" if topic is None else check_name(topic)
    answer = yield from ask_admin(ListSchedulesRequest(of_topic))
    # Each part is asked, and each broker answers with all schedules that it has.
    rows = {(row["topic"], row["name"]): row for row in answer["schedules"]}
    return [row for (name, _), row in sorted(rows.items()) if of_topic in ("", name, base_of(name))]


def topics() -> Asking[dict[str, list[str]]]:
    """Return the names of all topics, each with the names of its channels."""
    answer = yield from ask_admin(ListTopicsRequest())
    return {name: sorted(channels) for name, channels in sorted(answer["topics"].items())}


def unfinished(topic: str, channel: str) -> Asking[int]:
    """Return the number of messages that a channel has not finished: 0 if it has nothing left.

    These are the messages that wait, that consumers hold, that are deferred, and that are on
    their way to the dead letters. Raises `Refused` while the channel is being started.
    """
    answer = yield from ask_stats(topic, channel)
    total = 0
    for row in answer["topics"]:
        for counts in row["channels"]:
            if counts["health"] in ("starting", "failed"):
                raise Refused(
                    E_CLOSING,
                    f"channel {row['topic_name']}/{channel} is {counts['health']}, so its messages "
                    "cannot be counted; try again in a moment",
                )
            total += sum(
                counts.get(name) or 0
                for name in ("depth", "in_flight_count", "deferred_count", "dying_count")
            )
    return total


def overview(
    *, since: int = 0, processes: bool = False, alarms: bool = False
) -> Asking[OverviewAnswer]:
    """Return all topics and channels with the values that they last reported.

    The values are about a second old, or up to three minutes where nothing happens. The broker
    asks no other process for them. Returns {"version", "whole", "topics": {name: (row,
    {channel: row})}, "broker"}. A `whole` answer has `topic_fields` and `channel_fields`, which
    name the values of a row in their order. With `since` set to a version, the answer has only
    the rows that changed after it, and () as the row of a topic of which only channels changed.
    """
    return ask_admin(OverviewRequest(since=since, processes=processes, alarms=alarms))


def find_message(id: str) -> Asking[list[str]]:
    """Return the names of the topics and parts that keep a message with this id.

    An id is unique only in its topic. Raises `UsageError` (E_LIMIT) if the topics have more
    than 20 parts at other brokers, and `Refused` (E_CLOSING) while topics that may have the
    message are being started.
    """
    node, offset = parse_id(id)
    if node is None:
        raise UsageError(E_BAD_ARGUMENT, f"{id!r} is an offset; give an id, or name the topic")
    part = part_in_id(id)
    whole = yield from ask_admin(OverviewRequest())
    found, starting = [], []
    fields = whole.get("topic_fields", ())
    for name, (row, _) in sorted(whole["topics"].items()):
        values = dict(zip(fields, row, strict=True))
        of_topic = part_of(name)
        fits = node == whole["broker"]["node"] if of_topic is None else of_topic[1] == part
        if fits and values["state"] in ("new", "starting"):
            starting.append(name)
        elif fits and int(values["start"]) <= offset < int(values["head"]):
            found.append(name)
    if starting:
        text = f"{len(starting)} topics are being started, such as {starting[0]}"
        raise Refused(E_CLOSING, f"{text}: try again in a moment, or name the topic")
    cluster = yield from ask_admin(ClusterRequest())
    me = next((broker["number"] for broker in cluster["brokers"] if broker["me"]), None)
    others = [
        part_name(topic["topic"], part)
        for topic in cluster["topics"]
        if places_of(topic).get(part, me) != me
    ]
    if len(others) > FIND_MAX:
        text = (
            f"{len(others)} topics have a part {part} at another broker, and {FIND_MAX} are asked"
        )
        raise UsageError(E_LIMIT, f"{text}: name the topic")
    for name in others:
        stats = yield from ask_stats(name)
        found += [name for row in stats["topics"] if row["start"] <= offset < row["head"]]
    return sorted(found)


def history(
    topic: str, channel: str | None = None, *, span: str = "1d", points: int = 240
) -> Asking[FigureHistory]:
    """Return values of a topic or channel over a day ("1d") or 30 days ("30d").

    They survive a restart. Returns {"step_s", "end_ms", "series": {name: values}}, with at most
    `points` (720) values each. Rates are means. A backlog, a depth, and a latency are the
    largest of their time.
    """
    return ask_admin(HistoryRequest(*_names(topic, channel), span=span, points=points))


def alarm_ack(
    topic: str = "", channel: str = "", *, kind: str = "", seconds: float = 0
) -> Asking[Silenced]:
    """Silence the alarms of a topic or channel, or without a topic those of the broker.

    Without `seconds`, the alarms that are raised now are silenced until they are cleared, and
    `NotFound` is raised if there are none. With it, all alarms of this place are silenced until
    then. `kind`: only this alarm, such as "depth" (see `alarms` of `stats`). Receivers do not
    hear of a silenced alarm. Silences survive a restart. Returns {"count": how many raised
    alarms are silenced now}.
    """
    topic = check_name(topic) if topic else ""
    return ask_admin(SilenceAlarmRequest(topic, channel, kind=kind, seconds=seconds))


def alarm_unack(topic: str = "", channel: str = "", *, kind: str = "") -> Asking[Silenced]:
    """End the silences of a topic or channel. Receivers then hear of alarms that are raised."""
    topic = check_name(topic) if topic else ""
    return ask_admin(EndSilenceRequest(topic, channel, kind=kind))


def audit(*, count: int = 100, topic: str = "") -> Asking[list[AuditEntry]]:
    """Return the newest entries of the audit log, the newest first, of all topics or of one.

    See `AuditEntry`.
    """
    answer = yield from ask_admin(AuditRequest(topic, count=count))
    return list(answer["entries"])


def handover() -> Asking[None]:
    """Let the primary stop, and its standby take over. See docs/standby.md.

    Returns when the primary begins to stop. Raises `NotFound` if no standby follows it, or
    `Refused` if it ships nothing to a bucket.
    """
    yield from ask_admin(HandoverRequest())


def chunks(topic: str) -> Asking[Chunks]:
    """Return the log files of a topic, see `Chunks` and `zsq stats --chunks`."""
    return ask_admin(ChunksRequest(check_name(topic)))


def ended(topic: str) -> Asking[int | None]:
    """Return the offset at which the topic of this name that was deleted last has ended.

    A topic that is created again begins there. Returns None if there is no such topic.
    """
    answer = yield from ask_admin(EndedRequest(check_name(topic)))
    return answer["ended"]


def ping() -> Asking[str]:
    """Return the health of the broker: "OK", or a description of the fault."""
    answer = yield from ask_stats()
    return str(answer.get("health", "OK"))


def _names(topic: str, channel: str | None) -> tuple[str, str]:
    """Check the names of a topic and a channel, and return them as a request has them."""
    return check_name(topic), "" if channel is None else check_name(channel, "channel")


def _check_part(part: str, action: str) -> None:
    if part_of(part) is None:
        text = f"only a part can be {action}, such as clicks#3: {part!r} is no name of a part"
        raise UsageError(E_BAD_ARGUMENT, text)


def _check_parts(count: int) -> int:
    if type(count) is not int or not 1 <= count <= PARTS_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a topic has 1 to {PARTS_MAX} parts, not {count!r:.40}")
    return count


def _check_sync(sync: str) -> None:
    if sync not in SYNC_MODES:
        raise UsageError(
            E_BAD_ARGUMENT, f"sync must be one of {', '.join(SYNC_MODES)}, not {sync!r}"
        )


def _about_schedule(request: ScheduleRequest[AnswerT]) -> Asking[AnswerT]:
    """Send a request about a schedule that exists. Its topic may have parts."""
    topic, name = check_name(request.topic), request.name
    try:
        return (yield from ask_admin(request))
    except HasParts:
        parts = yield from _parts_with(topic, name)
        if not parts:
            text = f"no part of topic {topic!r} has a schedule {name!r}"
            raise NotFound(E_NOT_FOUND, text) from None
        answers = []
        for part in parts:
            answers.append((yield from ask_admin(replace(request, topic=part))))
        return answers[-1]


def _parts_with(topic: str, name: str) -> Asking[list[str]]:
    """Return the names of the parts that have this schedule.

    These are several only if two programs have added it at the same time with different keys.
    """
    rows = yield from schedule_list(topic)
    return [row["topic"] for row in rows if row["name"] == name]


def _check_broker(broker: int) -> int:
    if type(broker) is not int or broker < 0:
        raise UsageError(E_BAD_ARGUMENT, f"broker must be a number from 0 on, not {broker!r:.40}")
    return broker
