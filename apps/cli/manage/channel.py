"""zsq channel: create, set, show, list and delete channels."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ....transport.names import parts_text
from ....transport.reports import BlockerRow, ChannelStats, TenantRow
from ....transport.settings import CHANNEL, split_tags
from ..options import confirm, with_admin, yes_option
from ..output import json_lines_option, json_option, say, say_facts, tell, tell_line
from .settings import (
    CHANGEABLE,
    describe_channel,
    given_settings,
    resolved,
    say_what_to_change,
    with_settings,
    with_start,
)

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin
    from ....transport.whole_topic import WholeTopic

OFFSETS_SHOWN: Final = 10
TENANTS_SHOWN: Final = 5


@click.group()
def channel() -> None:
    """Create, set, show, list, delete, pause, unpause or empty a channel, skip some of its
    messages, or disconnect one of its consumers; zsq seek moves one, zsq peek looks into it.
    """


@channel.command("create")
@click.argument("topic")
@click.argument("channel")
@with_start
@with_settings(CHANNEL)
@with_admin
def channel_create(topic: str, channel: str, admin: Admin, start: Any, **options: Any) -> None:
    """Create CHANNEL on TOPIC, and TOPIC if it is missing. An existing channel is not changed;
    other --tags, --ordered or --priorities are refused.

    Without --start the first channel of a topic gets all messages that wait there, and a later
    channel those published from now on.
    """
    settings = given_settings(CHANNEL, options)
    place = {} if start is None else {"start": resolved(admin, topic, start)}
    if admin.create_channel(topic, channel, **settings, **place).get("existed"):
        for line in unused(admin, topic, channel, settings, start=start is not None):
            say(line, err=True)


def unused(
    admin: Admin, topic: str, channel: str, settings: Mapping[str, object], *, start: bool
) -> list[str]:
    """Return notes about arguments that have no effect because the channel exists."""
    now: Mapping[str, object] = channel_of(admin, topic, channel).row.get("settings", {})
    name = f"zsq: channel {topic}/{channel} exists already"
    notes = [f"{name}; --start has no effect (zsq seek moves the channel)"] if start else []
    if any(
        _spelled(key, now.get(key)) != _spelled(key, value)
        for key, value in settings.items()
        if value is not None
    ):
        notes.append(
            f"{name} with other settings; they were not changed (zsq channel set changes them)"
        )
    return notes


def _spelled(name: str, value: object) -> object:
    """Return the value in one form for comparison: `b||a` are the same tags as `a||b`."""
    return split_tags(str(value)) if name == "tags" else value


class ChannelFound(NamedTuple):
    """A channel of a topic, in all its parts together."""

    topic: WholeTopic
    row: ChannelStats


def channel_of(admin: Admin, topic: str, channel: str) -> ChannelFound:
    """Return the statistics of a channel. Raises `NotFound` if no part has it."""
    from ....transport.whole_topic import whole_topic

    combined = whole_topic(admin.stats(topic, channel, partial=True), topic)
    row = combined.channel(channel)
    assert row is not None
    return ChannelFound(combined, row)


@channel.command("set")
@click.argument("topic")
@click.argument("channel")
@with_settings(CHANGEABLE, default=True)
@json_option
@with_admin
def channel_set(topic: str, channel: str, as_json: bool, admin: Admin, **options: Any) -> None:
    """Change the settings of CHANNEL, now and permanently. Settings that are not named do not
    change; `default` resets one.

    Tags and order are chosen when a channel is created.
    """
    changes = given_settings(CHANGEABLE, options)
    if not changes:
        raise say_what_to_change(CHANGEABLE)
    settings = admin.configure_channel(topic, channel, **changes)["settings"]
    if as_json:
        tell({"topic_name": topic, "channel_name": channel, "settings": settings})
    else:
        say_facts(describe_channel(topic, channel, settings))


@channel.command("show")
@click.argument("topic")
@click.argument("channel")
@json_option
@with_admin
def channel_show(topic: str, channel: str, as_json: bool, admin: Admin) -> None:
    """Show the settings and the position of CHANNEL."""
    from ....transport.errors import E_CLOSING, Refused
    from ....transport.names import check_name

    check_name(topic)
    check_name(channel, "channel")
    combined, row = channel_of(admin, topic, channel)
    topic_row = combined.row
    if "settings" not in row:
        text = f"channel {channel!r} of topic {topic!r} is {row['health']}; try again in a moment"
        raise Refused(E_CLOSING, text)
    if as_json:
        shown = {
            "topic_name": topic,
            "head": topic_row["head"],
            "topic_paused": topic_row["paused"],
        } | row
        tell(
            shown
            | in_parts(
                combined,
                [{**part, **part_channel} for part, part_channel in combined.in_parts(channel)],
            )
        )
        return
    state = (", paused" if row["paused"] else "") + (
        ", topic paused" if topic_row["paused"] else ""
    )
    parts = f", {count_parts(combined)}" if combined.parts else ""
    say_facts(
        f"channel    {topic}/{channel}{parts}, health {row['health']}{state}, "
        f"{row['client_count']:,} consumers"
    )
    if not combined.parts:
        say_facts(f"offsets    next {row['next_offset']} of {topic_row['head']}: {_waiting(row)}")
    else:
        say_facts(f"messages   {_waiting(row)}")
        for part, part_channel in combined.in_parts(channel):
            place = (
                f"next {part_channel['next_offset']} of {part['head']}: {_waiting(part_channel)}"
            )
            health = "" if part_channel["health"] == "OK" else f", health {part_channel['health']}"
            say_facts(f"part       {part['topic_name']}, {place}{health}")
        say_missing(combined)
    for part, part_channel in combined.in_parts(channel) if combined.parts else [(topic_row, row)]:
        for blocker in part_channel.get("blocked_by", ()):
            place = f"{part['topic_name']} " if combined.parts else ""
            say_facts(f"blocked by {place}{_blocker(blocker)}")
    if since := row["limited_since_s"]:
        say_facts(f"limited    since {_local(since)}: max_rate withholds messages")
    for tenant in sorted(row["tenants"], key=lambda one: -one["waiting"])[:TENANTS_SHOWN]:
        say_facts(f"waiting    {_tenant(tenant)}")
    say_facts(describe_channel(topic, channel, row["settings"]))
    if any(
        part_channel.get("settings") != row["settings"]
        for _, part_channel in combined.in_parts(channel)
    ):
        first = combined.in_parts(channel)[0][0]["topic_name"]
        say(f"zsq: the settings differ between the parts; these are those of {first}", err=True)


def _blocker(row: BlockerRow) -> str:
    from ....actors.runtime.logs import escaped

    return (
        f"offset {row['offset']}, attempt {row['attempts']:,} failed, {row['waiting']:,} messages "
        f"of its key wait; last error: {escaped(row['error'])}"
    )


def _local(time_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _tenant(row: TenantRow) -> str:
    from ....actors.runtime.logs import escaped

    name = "messages without a key" if row["key"] is None else escaped(row["key"])
    limited = f", limited: {row['limited']}" if row["limited"] else ""
    return f"{name}: {row['waiting']:,}{limited}"


def _waiting(row: ChannelStats) -> str:
    return (
        f"{row['depth']:,} waiting, {row['in_flight_count']:,} in flight, "
        f"{row['deferred_count']:,} deferred"
    )


def count_parts(combined: WholeTopic) -> str:
    """Return how many parts the topic has, and how many of them have answered."""
    count, missing = len(combined.parts), len(combined.unanswered)
    return f"{count} of {count + missing} parts" if missing else f"{count} part{'s' * (count > 1)}"


def in_parts(combined: WholeTopic, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the fields of a topic with parts for --json."""
    missing = {"unanswered": combined.unanswered} if combined.unanswered else {}
    return {"parts": rows, **missing} if combined.parts else {}


def say_missing(combined: WholeTopic) -> None:
    """Say which parts are not in the sums."""
    if combined.missing:
        say(f"zsq: {combined.missing}", err=True)


@channel.command("delete")
@click.argument("topic")
@click.argument("channel")
@click.option("--force", is_flag=True, help="Delete even if there are unfinished messages.")
@yes_option
@with_admin
def channel_delete(topic: str, channel: str, force: bool, yes: bool, admin: Admin) -> None:
    """Delete CHANNEL. Refused while it has unfinished messages. With --force, says how many, and
    asks for confirmation.
    """
    from ....transport.errors import E_NOT_EMPTY, Refused

    combined, row = channel_of(admin, topic, channel)
    left, more = unfinished(row), and_missing(combined)
    if left and combined.parts and not force:
        # Each part would refuse only its own messages, and the empty ones would be deleted.
        text = f"channel {topic}/{channel} has {left:,} unfinished messages"
        raise Refused(E_NOT_EMPTY, f"{text}; let consumers finish them, or use --force")
    if force and (left or more):
        confirm(
            f"delete channel {topic}/{channel} with {left:,} unfinished messages{more}, which "
            "are then never delivered",
            yes,
        )
    admin.delete_channel(topic, channel, force=force)
    say(
        f"deleted channel {topic}/{channel}"
        + (f" with {left:,} unfinished messages" if force and left else "")
    )


def and_missing(combined: WholeTopic) -> str:
    """Return the end of a number of messages that does not count all parts, or ""."""
    if not combined.unanswered:
        return ""
    return f" and those of {parts_text(combined.unanswered)}, which did not answer"


def unfinished(row: ChannelStats) -> int:
    """Return the number of unfinished messages in a channel's row of the statistics."""
    counts = (
        row.get("depth"),
        row.get("in_flight_count"),
        row.get("deferred_count"),
        row.get("dying_count"),
    )
    return sum(count or 0 for count in counts)


def of_parts(admin: Admin, topic: str) -> Sequence[str] | None:
    """Return the channels of a topic that may have parts, or None if there is no such topic."""
    from ....transport.errors import NotFound
    from ....transport.whole_topic import whole_topic

    try:
        combined = whole_topic(admin.stats(topic, partial=True), topic)
    except NotFound:
        return None
    say_missing(combined)
    return sorted(channel["channel_name"] for channel in combined.row["channels"])


@channel.command("list")
@click.argument("topic")
@json_lines_option
@with_admin
def channel_list(topic: str, as_json: bool, admin: Admin) -> None:
    """List the channels of TOPIC, one name per line."""
    from ....transport.errors import E_NOT_FOUND, NotFound
    from ....transport.names import check_name

    check_name(topic)
    names: Sequence[str] | None = admin.topics().get(topic)
    if names is None:
        names = of_parts(admin, topic)
    if names is None:
        raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")
    for name in sorted(names):
        tell_line({"topic": topic, "channel": name}) if as_json else say(name)


@channel.command("skip")
@click.argument("topic")
@click.argument("channel")
@click.argument("offsets", metavar="OFFSET...", nargs=-1, required=True, type=click.IntRange(min=0))
@yes_option
@json_option
@with_admin
def channel_skip(
    topic: str,
    channel: str,
    offsets: tuple[int, ...],
    yes: bool,
    as_json: bool,
    admin: Admin,
) -> int:
    """Skip the messages of TOPIC with these offsets: they count as finished for CHANNEL.

    For a message that no consumer can handle. It may wait, be deferred, or be with a consumer,
    whose answer then comes too late. An ordered channel goes on with the next message of the key.
    The other channels still get it, and it stays in the log. zsq peek shows the offsets. If the
    topic has parts, name the part: clicks#3. Exit code 1 if CHANNEL had finished some of them, or
    they are on their way to the dead letters.
    """
    existing = admin.skip(topic, channel, offsets, preview=True)
    if existing:
        caption = messages_at(existing)
        confirm(f"skip {caption} of {topic} for channel {topic}/{channel}", yes)
        existing = admin.skip(topic, channel, existing)
    others = sorted({*offsets}.difference(existing))
    if as_json:
        tell({"topic": topic, "channel": channel, "skipped": existing, "not_skipped": others})
    else:
        if existing:
            say(f"{topic}/{channel} has skipped {messages_at(existing)}")
        if others:
            text = "finished already, not stored, or on the way to the dead letters"
            say(f"zsq: not skipped: {messages_at(others)}: {text}", err=True)
    return 1 if others else 0


def messages_at(offsets: Sequence[int]) -> str:
    """Return the number of messages and their offsets as a text."""
    places = ", ".join(map(str, offsets[:OFFSETS_SHOWN]))
    more = ", ..." if len(offsets) > OFFSETS_SHOWN else ""
    many = len(offsets) > 1
    return f"{len(offsets):,} message{'s' * many} (offset{'s' * many} {places}{more})"


@channel.command("disconnect")
@click.argument("topic")
@click.argument("channel")
@click.argument("consumer")
@with_admin
def channel_disconnect(topic: str, channel: str, consumer: str, admin: Admin) -> None:
    """End the subscription of CONSUMER, so that others get its messages at once.

    zsq stats --json has the names of consumers (client_id). A client that still runs subscribes
    again by itself. To keep it away, stop it, or take its permission.
    """
    admin.disconnect(topic, channel, consumer)
