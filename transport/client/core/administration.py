"""Calls of Admin: their requests to the supervisor and the meaning of the replies. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_EXISTS,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
)
from ...names import PARTS_MAX, base_of, check_name, part_name, part_of
from ...settings import SYNC_MODES, ChannelOptions, NewChannelOptions, RetentionSettings
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
    Scheduled,
    ScheduleRow,
    Silenced,
    TopicConfigured,
)
from ...wire.codec import HeaderValue
from ...wire.protocol import SKIPPED_MAX, Manage, Stats
from ...wire.spread import HasParts, parts_of_keys
from .asking import END, Asking, Place, Question, ask, carried, moved_to, on_wire
from .publish_arguments import Text, as_attributes, as_body

Side = Literal["publishers", "consumers"]


def manage(
    action: str,
    topic: str,
    channel: str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    repeatable: bool = True,
) -> Asking[Any]:
    """Send an order to a topic or a channel. `repeatable`: see `Request`."""
    check_name(topic)
    name = "" if channel is None else check_name(channel, "channel")
    return ask(
        Question(
            lambda number: Manage(number, action, topic, name, {**(options or {})}), repeatable
        )
    )


def create_topic(
    name: str,
    sync: str,
    retention: RetentionSettings,
    parts: int = 0,
    brokers: Sequence[int] = (),
) -> Asking[Made]:
    _check_sync(sync)
    options: dict[str, object] = {"retention": carried(retention)} if retention else {}
    if parts:
        options["parts"] = _check_parts(parts)
        if brokers:
            options["brokers"] = tuple(brokers)
    elif brokers:
        raise UsageError(E_BAD_ARGUMENT, "brokers are for the parts of a topic: give parts, too")
    return manage("create", name, None, {"sync": sync, **options}, repeatable=False)


def add_parts(topic: str, count: int, brokers: Sequence[int] = ()) -> Asking[Added]:
    options: dict[str, object] = {"count": _check_parts(count)}
    if brokers:
        options["brokers"] = tuple(brokers)
    return manage("add_parts", topic, None, options, repeatable=False)


def _check_parts(count: int) -> int:
    if type(count) is not int or not 1 <= count <= PARTS_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a topic has 1 to {PARTS_MAX} parts, not {count!r:.40}")
    return count


def move_part(part: str, broker: int) -> Asking[Moving]:
    if part_of(part) is None:
        text = f"only a part can be moved, such as clicks#3: {part!r} is no name of a part"
        raise UsageError(E_BAD_ARGUMENT, text)
    if type(broker) is not int or broker < 0:
        raise UsageError(E_BAD_ARGUMENT, f"broker must be a number from 0 on, not {broker!r:.40}")
    return manage("move", part, None, {"broker": broker})


def cluster(*, fresh: bool = False) -> Asking[ClusterAnswer]:
    options = {"fresh": True} if fresh else {}
    return ask(Question(lambda number: Manage(number, "cluster", "", "", options)))


def configure_topic(
    name: str, sync: str | None, retention: RetentionSettings
) -> Asking[TopicConfigured]:
    if sync is None and not retention:
        names = ", ".join(("sync", *RetentionSettings.__annotations__))
        raise UsageError(E_BAD_ARGUMENT, f"give at least one setting to change: {names}")
    changes: dict[str, object] = {**carried(retention)}
    if sync is not None:
        _check_sync(sync)
        changes["sync"] = sync
    return manage("configure", name, None, changes)


def _check_sync(sync: str) -> None:
    if sync not in SYNC_MODES:
        raise UsageError(
            E_BAD_ARGUMENT, f"sync must be one of {', '.join(SYNC_MODES)}, not {sync!r}"
        )


def create_channel(topic: str, channel: str, settings: NewChannelOptions) -> Asking[Made]:
    return manage("create", topic, channel, on_wire(settings), repeatable=False)


def configure_channel(
    topic: str, channel: str, settings: ChannelOptions
) -> Asking[ChannelConfigured]:
    if not settings:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"give at least one setting to change: {', '.join(ChannelOptions.__annotations__)}",
        )
    return manage("configure", topic, channel, on_wire(settings))


def delete(topic: str, channel: str | None, force: bool) -> Asking[Nothing]:
    return manage("delete", topic, channel, {"force": force}, repeatable=False)


def close_topic(name: str, to: Side) -> Asking[Closed]:
    return manage("close", name, None, {"to": to})


def open_topic(name: str, to: Side) -> Asking[Closed]:
    return manage("open", name, None, {"to": to})


def pause(topic: str, channel: str | None) -> Asking[Nothing]:
    return manage("pause", topic, channel, repeatable=False)


def unpause(topic: str, channel: str | None) -> Asking[Nothing]:
    return manage("unpause", topic, channel, repeatable=False)


def empty(topic: str, channel: str | None) -> Asking[Nothing]:
    return manage("empty", topic, channel, repeatable=False)


def seek(topic: str, channel: str, where: Place, forward: bool, clamp: bool) -> Asking[Moved]:
    options = {**moved_to(where), "forward": forward}
    return manage("seek", topic, channel, options | {"clamp": True} if clamp else options)


def skip(topic: str, channel: str, offsets: Sequence[int], preview: bool) -> Asking[list[int]]:
    if not 1 <= len(offsets) <= SKIPPED_MAX or not all(
        type(one) is int and 0 <= one < END for one in offsets
    ):
        raise UsageError(
            E_BAD_ARGUMENT,
            f"give 1 to {SKIPPED_MAX:,} offsets, which are whole numbers from 0 on, not "
            f"{[*offsets]!r:.60}",
        )
    options = {"do": "preview" if preview else "messages", "offsets": tuple(offsets)}
    answer = yield from manage("skip", topic, channel, options)
    return list(answer["offsets"])


def disconnect(topic: str, channel: str, consumer: str) -> Asking[Disconnected]:
    options = {"consumer": consumer}
    found: Disconnected = yield from manage("disconnect", topic, channel, options, repeatable=False)
    if not found["count"]:
        text = f"channel {channel!r} of topic {topic!r} has no consumer {consumer!r}"
        raise NotFound(E_NOT_FOUND, f"{text}; zsq stats --json has their names (client_id)")
    return found


def redrive_to(
    dead_topic: str, to: str, channel: str | None, origin: tuple[str, str, str], chosen: bool
) -> Asking[Nothing]:
    options = {
        "to": check_name(to),
        "channel": channel or "",
        "origin": tuple(origin),
        "chosen": chosen,
    }
    return manage("redrive", dead_topic, None, options)


def delayed_list(topic: str, after: str, limit: int) -> Asking[list[DelayedRow]]:
    answer = yield from manage(
        "delayed", topic, None, {"do": "list", "after": after, "limit": limit}
    )
    return list(answer["messages"])


def delayed_count(topic: str) -> Asking[DelayedCount]:
    return manage("delayed", topic, None, {"do": "count"})


def delayed_cancel(topic: str, keys: Sequence[str]) -> Asking[list[bool]]:
    answer = yield from manage(
        "delayed", topic, None, {"do": "cancel", "keys": tuple(keys)}, repeatable=False
    )
    return list(answer["cancelled"])


def delayed_cancel_all(topic: str) -> Asking[int]:
    total, more = 0, True
    while more:
        answer = yield from manage(
            "delayed", topic, None, {"do": "cancel", "all": True}, repeatable=False
        )
        total, more = total + int(answer["cancelled"]), bool(answer["more"] and answer["cancelled"])
    return total


def schedule_add(
    topic: str,
    name: str,
    cron: str,
    body: bytes,
    timezone: str,
    missed: str,
    key: Text,
    tag: str | None,
    headers: Mapping[str, HeaderValue] | None,
) -> Asking[Scheduled]:
    key_bytes, _, _ = as_attributes(key, tag, headers)
    found = {"cron": cron, "body": as_body(body), "timezone": timezone, "missed": missed}
    rest = {"key": key_bytes, "tag": tag, "headers": {**headers} if headers else None}
    given = {one: value for one, value in rest.items() if value is not None}
    options = {"do": "add", "name": name, **found, **given}
    try:
        added: Scheduled = yield from manage("schedule", topic, None, options, repeatable=False)
    except HasParts as error:
        if there := (yield from _parts_with(topic, name)):
            text = f"topic {topic!r} has a schedule {name!r} already, in part {there[0]!r}"
            raise UsageError(E_EXISTS, f"{text}; remove it first") from None
        number = parts_of_keys(error.spread).of(key_bytes or name.encode())
        part = part_name(topic, number)
        added = yield from manage("schedule", part, None, options, repeatable=False)
    return added


def schedule_set(
    topic: str, name: str, changes: Mapping[str, object], body: bytes | None
) -> Asking[Scheduled]:
    given = {one: value for one, value in changes.items() if value is not None}
    if body is not None:
        given["body"] = as_body(body)
    return _of_schedule("set", topic, name, given)


def schedule_order(do: str, topic: str, name: str) -> Asking[Nothing]:
    return _of_schedule(do, topic, name, {})


def _of_schedule(do: str, topic: str, name: str, changes: Mapping[str, object]) -> Asking[Any]:
    options = {"do": do, "name": name, **changes}
    try:
        return (yield from manage("schedule", topic, None, options, repeatable=False))
    except HasParts:
        there = yield from _parts_with(topic, name)
        if not there:
            text = f"no part of topic {topic!r} has a schedule {name!r}"
            raise NotFound(E_NOT_FOUND, text) from None
        answer: object = {}
        for part in there:
            answer = yield from manage("schedule", part, None, options, repeatable=False)
    return answer


def _parts_with(topic: str, name: str) -> Asking[list[str]]:
    """Return the names of the parts that have this schedule.

    These are several only if two programs have added it at the same time with different keys.
    """
    rows = yield from schedule_list(topic)
    return [row["topic"] for row in rows if row["name"] == name]


def schedule_list(topic: str | None) -> Asking[list[ScheduleRow]]:
    name = "" if topic is None else check_name(topic)
    answer = yield from ask(
        Question(lambda number: Manage(number, "schedule", name, "", {"do": "list"}))
    )
    # Each part is asked, and each broker answers with all schedules that it has.
    rows: dict[tuple[str, str], ScheduleRow] = {
        (row["topic"], row["name"]): row for row in answer["schedules"]
    }
    return [row for (of, _), row in sorted(rows.items()) if name in ("", of, base_of(of))]


def topics() -> Asking[dict[str, list[str]]]:
    answer = yield from ask(Question(lambda number: Manage(number, "list", "", "", {})))
    return {name: sorted(channels) for name, channels in sorted(answer["topics"].items())}


def stats(topic: str | None, channel: str | None, partial: bool = False) -> Asking[dict[str, Any]]:
    if channel is not None and topic is None:
        raise UsageError(E_BAD_ARGUMENT, "a channel needs its topic: give topic, too")
    names = (
        "" if topic is None else check_name(topic),
        "" if channel is None else check_name(channel, "channel"),
    )
    return ask(Question(lambda number: Stats(number, *names), partial=partial))


def unfinished(topic: str, channel: str) -> Asking[int]:
    found = yield from stats(topic, channel)
    total = 0
    for row in found["topics"]:
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


def overview(since: int, processes: bool, alarms: bool) -> Asking[OverviewAnswer]:
    options = {"since": since, "processes": processes, "alarms": alarms}
    return ask(Question(lambda number: Manage(number, "overview", "", "", options)))


def history(topic: str, channel: str | None, span: str, points: int) -> Asking[FigureHistory]:
    return manage("history", topic, channel, {"span": span, "points": points})


def alarm(do: str, topic: str, channel: str, figure: str, seconds: float = 0) -> Asking[Silenced]:
    name = check_name(topic) if topic else ""
    options: dict[str, object] = {"do": do, "figure": figure}
    if seconds:
        options["seconds"] = seconds
    return ask(
        Question(lambda number: Manage(number, "alarm", name, channel, options), repeatable=False)
    )


def audit(count: int, topic: str) -> Asking[list[AuditEntry]]:
    answer = yield from ask(
        Question(lambda number: Manage(number, "audit", topic, "", {"count": count}))
    )
    return list(answer["entries"])


def handover() -> Asking[None]:
    # The new primary would hand back if it got the request again.
    yield from ask(
        Question(lambda number: Manage(number, "handover", "", "", {}), repeatable=False)
    )


def chunks(topic: str) -> Asking[Chunks]:
    return manage("chunks", topic)


def ended(topic: str) -> Asking[int | None]:
    answer = yield from manage("ended", topic)
    found = answer["ended"]
    return None if found is None else int(found)


def ping() -> Asking[str]:
    answer = yield from stats(None, None)
    return str(answer.get("health", "OK"))
