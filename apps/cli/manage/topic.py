"""zsq topic: create, set, show, list, delete topics; pause, unpause, empty topics and channels.

`zsq topic close`, `open` and `retire` take a topic out of use without losing its messages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.draining import cancelled_delayed, remaining
from ....transport.errors import E_TIMEOUT, E_UNSUPPORTED, ZsqError
from ....transport.names import PARTS_MAX, part_of
from ....transport.reports import TopicStats
from ....transport.settings import SYNC_MODES, TOPIC
from ..completion import topic_names
from ..options import Stopping, confirm, stop_signals, with_admin, with_broker, yes_option
from ..output import json_lines_option, json_option, say, say_facts, tell, tell_line
from ..quantities import Seconds
from .channel import (
    and_missing,
    channel,
    channel_of,
    count_parts,
    in_parts,
    say_missing,
    unfinished,
)
from .settings import describe, given_settings, say_what_to_change, with_settings

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Admin
    from ....transport.whole_topic import WholeTopic
    from ....transport.wire.answers import ClusterAnswer, ClusterTopic


CHANNELS_NAMED: Final = 5
MOVE_LOOK_S: Final = 0.1  # between two looks at a move


@click.group()
def topic() -> None:
    """Create, set, show, list, close, open, retire, delete, pause, unpause or empty a topic, or add
    parts to it.
    """


@topic.command("create")
@click.argument("topic")
@click.option(
    "--sync",
    type=click.Choice((*SYNC_MODES,)),
    default="always",
    show_default=True,
    help="Sync mode: when a publish is acknowledged. bucket needs zsq serve --bucket.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, PARTS_MAX),
    help="Give the topic this many parts, at the brokers of the cluster, or at this broker.",
)
@click.option(
    "--brokers",
    metavar="N,N",
    help="With --parts: the numbers of the brokers that get the parts in turn. Default: all.",
)
@with_settings(TOPIC)
@with_admin
def topic_create(
    topic: str,
    sync: str,
    parts: int | None,
    brokers: str | None,
    admin: Admin,
    **retention: Any,
) -> None:
    """Create TOPIC. An existing topic is not changed."""
    settings = given_settings(TOPIC, retention)
    numbers = _numbers(brokers)
    if parts:
        admin.create_topic(topic, sync=sync, parts=parts, brokers=numbers, **settings)
        say(f"topic {topic} has {_at_brokers(admin, topic, parts)}; see zsq cluster")
        return
    reply = admin.create_topic(topic, sync=sync, brokers=numbers, **settings)
    if reply.get("existed"):
        now = topic_of(admin, topic).row
        if now["sync"] != sync:
            say(
                (
                    f"zsq: topic {topic!r} exists already with --sync {now['sync']}; this was "
                    "not changed"
                ),
                err=True,
            )
        if any(now.get("settings", {}).get(name) != value for name, value in settings.items()):
            text = (
                "exists already with other settings; they were not changed (zsq topic set "
                "changes them)"
            )
            say(f"zsq: topic {topic!r} {text}", err=True)


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(number) for number in text.split(",")] if text else []
    except ValueError:
        raise click.BadParameter(
            f"{text!r} must be numbers of brokers with commas between them, such as 0,2",
            param_hint="--brokers",
        ) from None


def _at_brokers(admin: Admin, topic: str, parts: int) -> str:
    """Describe at how many brokers the parts are. A broker that has just started may get none."""
    text = f"{parts} part{'s' * (parts > 1)}"
    from ....transport.wire.answers import places_of

    for row in admin.cluster()["topics"]:
        if row["topic"] == topic:
            brokers = len(set(places_of(row).values()))
            return f"{text} at {brokers} broker{'s' * (brokers > 1)}"
    return text


@topic.command("add-parts")
@click.argument("topic")
@click.argument("count", type=click.IntRange(1, PARTS_MAX))
@click.option("--brokers", metavar="N,N,...", help="Brokers of the new parts, by number.")
@with_admin
def topic_add_parts(topic: str, count: int, brokers: str | None, admin: Admin) -> None:
    """Add COUNT parts to TOPIC, which has parts already.

    They are at the brokers with the fewest parts of the topic, of all or of --brokers. Clients use
    them within a minute. Some keys move to the new parts.
    """
    numbers = _numbers(brokers)
    reply = admin.add_parts(topic, count, brokers=numbers)
    say(f"topic {topic} has {reply['parts']} part{'s' * (reply['parts'] != 1)} now")


@topic.command("move-part")
@click.argument("part")
@click.argument("broker", type=click.IntRange(0))
@click.option(
    "--wait",
    type=Seconds(),
    default="60s",
    show_default=True,
    help="Wait for the end of the move for this time. It goes on if it takes longer.",
)
@with_broker
def topic_move(part: str, broker: int, wait: float, url: str, timeout: float) -> None:
    """Move PART, such as clicks#3, to the BROKER with this number (zsq cluster shows the numbers).

    Its clients wait for a few seconds, and go on at the other broker. Offsets, channels and
    delayed messages stay as they are. To withdraw a move, give the number of the broker that has
    the part.
    """
    from ....transport.client.blocking.asker import named_by
    from ....transport.client.blocking.client import Admin

    with Admin(url, timeout=timeout) as admin:
        ends = _ends(admin.cluster(fresh=True), part, broker)
        source, target = (named_by(admin, urls) for urls in ends)
    # Both must live. If both are asked, both know of the move at once.
    with Admin(source, timeout=timeout) as at, Admin(target, timeout=timeout) as to:
        to.ping()
        at.move_part(part, broker)
        until = time.monotonic() + wait
        while not _is_moved(to.cluster(fresh=True), part, broker):
            if time.monotonic() >= until:
                text = "the move goes on; see zsq cluster, and the logs of both brokers"
                raise click.ClickException(f"part {part} was not moved within {wait:g} s; {text}")
            time.sleep(MOVE_LOOK_S)
    say(f"part {part} is at broker {broker} now")


def _topic_of(cluster: ClusterAnswer, part: str) -> tuple[ClusterTopic, int]:
    from ....transport.wire.answers import places_of

    base, number = part_of(part) or (part, -1)
    topic = next((row for row in cluster["topics"] if row["topic"] == base), None)
    if topic is None or number not in places_of(topic):
        raise click.BadParameter(
            f"the cluster has no part {part!r}; zsq cluster shows all parts", param_hint="PART"
        )
    return topic, number


def _ends(cluster: ClusterAnswer, part: str, broker: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return the URLs of the broker that has the part, and of the one that shall have it."""
    topic, number = _topic_of(cluster, part)
    urls = [row["addresses"] for row in cluster["brokers"]]
    if broker >= len(urls):
        text = f"the cluster has the brokers 0 to {len(urls) - 1}, not {broker}"
        raise click.BadParameter(text, param_hint="BROKER")
    return urls[topic["parts"][number]], urls[broker]


def _is_moved(cluster: ClusterAnswer, part: str, broker: int) -> bool:
    topic, number = _topic_of(cluster, part)
    return topic["parts"][number] == broker and number not in topic["moves"]


@topic.command("remove-part")
@click.argument("part")
@click.option(
    "--force",
    is_flag=True,
    help="Remove the part even if it is open, or has unfinished messages. They are lost.",
)
@yes_option
@with_admin
def topic_remove_part(part: str, force: bool, yes: bool, admin: Admin) -> None:
    """Remove PART, such as clicks#3, which was closed with zsq topic close. Refused while it is
    open, or a channel has unfinished messages in it, unless forced.

    Messages that all channels have finished, and that could still be read, are deleted, too. The
    command says how many, and asks. Keys go where they go while the part is closed. No part gets
    its number again.
    """
    if part_of(part) is None:
        text = f"{part!r} is no name of a part, such as clicks#3; zsq cluster shows all parts"
        raise click.BadParameter(text, param_hint="PART")
    row = topic_of(admin, part).row
    holding, left = held_by(row), left_in(row)
    # What the broker will refuse is not asked for.
    if holding and (force or (row["closed"] and not left)):
        confirm(f"remove part {part} with {holding}. They cannot be read again", yes)
    reply = admin.remove_part(part, force=force)
    say(f"removed part {part}, which ended at offset {reply['end']}")


@topic.command("set")
@click.argument("topic")
@click.option(
    "--sync",
    type=click.Choice((*SYNC_MODES,)),
    help="Sync mode. All that was published before is synced first.",
)
@with_settings(TOPIC, default=True)
@json_option
@with_admin
def topic_set(topic: str, sync: str | None, as_json: bool, admin: Admin, **retention: Any) -> None:
    """Change the retention or the sync mode of TOPIC, now and permanently. Settings that are not
    named do not change.
    """
    settings = given_settings(TOPIC, retention)
    if not settings and sync is None:
        raise say_what_to_change(TOPIC, "--sync")
    reply = admin.configure_topic(topic, sync=sync, **settings)
    if as_json:
        tell({"topic_name": topic, **reply})
    else:
        say_facts(f"sync       {reply['sync']}")
        say_facts(describe(TOPIC, reply["settings"]))


@topic.command("show")
@click.argument("topic")
@json_option
@with_admin
def topic_show(topic: str, as_json: bool, admin: Admin) -> None:
    """Show the settings of TOPIC, and its size on disk."""
    from ....transport.names import check_name

    check_name(topic)
    combined = topic_of(admin, topic)
    stats = combined.row
    if as_json:
        tell(
            _without_channels(stats) | in_parts(combined, [*map(_without_channels, combined.parts)])
        )
        return
    which = count_parts(combined) if combined.parts else f"uuid {stats['uuid']}"
    say_facts(
        f"topic      {stats['topic_name']}, {which}, sync {stats['sync']}, health "
        f"{stats['health']}{', paused' if stats['paused'] else ''}"
    )
    for row in combined.parts or [stats]:
        if row["closed"]:
            part = f"{row['topic_name']} " if combined.parts else ""
            consumers = " and consumers" if row["closed"] == "consumers" else ""
            say_facts(f"closed     {part}to publishers{consumers}")
    if not combined.parts:
        say_facts(f"offsets    {stats['start']} to {stats['head']}")
    for row in combined.parts:
        health = "" if row["health"] == "OK" else f", health {row['health']}"
        say_facts(
            f"part       {row['topic_name']}, offsets {row['start']} to {row['head']}, "
            f"{row['log_bytes']:,} bytes on disk{health}"
        )
    say_missing(combined)
    say_facts(
        f"on disk    {stats['log_bytes']:,} bytes, {stats['finished_bytes']:,} of them finished "
        "by all channels"
    )
    if stats["held_by"]:
        # The parts name their own channels and offsets.
        where = "" if combined.parts else f", from offset {stats['held_offset']} on"
        say_facts(f"held       {stats['held_bytes']:,} bytes by channel {stats['held_by']}{where}")
    if stats["archived_chunks"] or stats["unarchived_bytes"]:
        say_facts(
            f"bucket     {stats['archived_bytes']:,} bytes in {stats['archived_chunks']:,} files; "
            f"{stats['unarchived_bytes']:,} bytes are not copied yet"
        )
    if stats.get("shipping", "off") != "off":
        end = "" if combined.parts else f": the bucket has all below offset {stats['shipped_end']}"
        say_facts(f"shipping   {stats['shipping']}{end}; lag {stats['ship_lag_s']:.1f} s")
    dropped = (
        f"up to {stats['dropped_count']:,} messages dropped unfinished (each channel counts its "
        "own)"
    )
    say_facts(f"removed    {stats['removed_bytes']:,} bytes since its process started; {dropped}")
    settings = stats["settings"]
    # These lines are shown if they say something.
    lines = {
        row.line
        for row in TOPIC
        if row.line not in ("archive", "processes")
        or settings.get(row.name, row.default) != row.default
        or (row.line == "archive" and stats["archived_chunks"])
    }
    rows = [row for row in TOPIC if row.line in lines]
    say_facts(describe(rows, settings))


def _without_channels(row: TopicStats) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != "channels"}


def topic_of(admin: Admin, topic: str) -> WholeTopic:
    """Return the statistics of a topic, of all its parts together."""
    from ....transport.whole_topic import whole_topic

    return whole_topic(admin.stats(topic, partial=True), topic)


@topic.command("list")
@json_lines_option
@with_admin
def topic_list(as_json: bool, admin: Admin) -> None:
    """List the topics of the broker, and all topics with parts of its cluster, one name per line.

    zsq cluster shows the parts of each topic. With --json, a topic has the channels that this
    broker knows, and a topic with parts has their number.
    """
    topics = topic_names(admin)
    for name, topic in topics.items():
        if as_json:
            parts = {"parts": len(topic.parts)} if topic.parts else {}
            tell_line({"topic": name, "channels": topic.channels, **parts})
        else:
            say(name)


@topic.command("delete")
@click.argument("topic")
@click.option(
    "--force", is_flag=True, help="Delete even if there are unfinished messages. They are lost."
)
@yes_option
@with_admin
def topic_delete(topic: str, force: bool, yes: bool, admin: Admin) -> None:
    """Delete TOPIC with its channels. Refused while there are unfinished messages, unless forced.

    Messages that all channels have finished, and that could still be read, are deleted, too. The
    command says how many, and asks.
    """
    from ....transport.errors import E_NOT_EMPTY, Refused
    from ....transport.names import check_name

    check_name(topic)
    combined = topic_of(admin, topic)
    holding, left = held_by(combined.row), left_in(combined.row)
    # The broker would refuse this too. But if the messages are finished in the meantime, it
    # would delete the topic without asking the user.
    if left and not force:
        text = (
            f"topic {topic!r} has {left} unfinished messages; let consumers finish them, or "
            "delete them too with --force"
        )
        raise Refused(E_NOT_EMPTY, text)
    if holding or combined.unanswered:
        held = f"{holding or 'no messages'}{and_missing(combined)}"
        confirm(f"delete topic {topic} with {held}. They cannot be read again", yes)
    admin.delete_topic(topic, force=force)
    say(f"deleted topic {topic}" + (f" with {holding}" if holding else ""))


def held_by(row_of_topic: TopicStats) -> str:
    """Describe what is deleted with a topic: its messages and its channels.

    The text is empty if the topic has no messages. It counts unfinished and delayed messages
    separately.
    """
    messages, delayed = row_of_topic["kept_count"], int(row_of_topic.get("delayed_count") or 0)
    if not messages and not delayed:
        return ""
    left = left_in(row_of_topic) - delayed
    parts = f"{messages:,} messages" + (f" ({left:,} of them unfinished)" if left else "")
    parts += f", {delayed:,} delayed messages" if delayed else ""
    channels = ", ".join(
        sorted(row["channel_name"] for row in row_of_topic["channels"])[:CHANNELS_NAMED]
    )
    more = len(row_of_topic["channels"]) - CHANNELS_NAMED
    return parts + (
        f" and the channels {channels}{f' and {more} more' if more > 0 else ''}" if channels else ""
    )


def left_in(topic_row: TopicStats) -> int:
    """Return the unfinished messages of a topic's fullest channel, plus delayed messages."""
    fullest = max([unfinished(row) for row in topic_row["channels"]], default=0)
    return max(fullest, int(topic_row["depth"])) + int(topic_row.get("delayed_count") or 0)


@topic.command("pause")
@click.argument("topic")
@with_admin
def topic_pause(topic: str, admin: Admin) -> None:
    """Pause TOPIC: messages that are published from now on are not delivered."""
    admin.pause(topic)


@channel.command("pause")
@click.argument("topic")
@click.argument("channel")
@with_admin
def channel_pause(topic: str, channel: str, admin: Admin) -> None:
    """Pause CHANNEL: nothing is delivered."""
    admin.pause(topic, channel)


@topic.command("unpause")
@click.argument("topic")
@with_admin
def topic_unpause(topic: str, admin: Admin) -> None:
    """Deliver again."""
    admin.unpause(topic)


@channel.command("unpause")
@click.argument("topic")
@click.argument("channel")
@with_admin
def channel_unpause(topic: str, channel: str, admin: Admin) -> None:
    """Deliver again."""
    admin.unpause(topic, channel)


@topic.command("empty")
@click.argument("topic")
@yes_option
@with_admin
def topic_empty(topic: str, yes: bool, admin: Admin) -> None:
    """Clear the messages that wait for a first channel of TOPIC, or behind its pause. Says how
    many, and asks for confirmation. The backlogs of its channels stay: see zsq channel empty.
    """
    _empty(admin, topic, None, yes)


@channel.command("empty")
@click.argument("topic")
@click.argument("channel")
@yes_option
@with_admin
def channel_empty(topic: str, channel: str, yes: bool, admin: Admin) -> None:
    """Clear the backlog of CHANNEL: it continues after the newest message. Says how many messages,
    and asks for confirmation.
    """
    _empty(admin, topic, channel, yes)


def _empty(admin: Admin, topic: str, channel: str | None, yes: bool) -> None:
    name = topic if channel is None else f"{topic}/{channel}"
    combined = topic_of(admin, topic)
    if channel is None:
        left = int(combined.row["depth"])
    else:
        left = unfinished(channel_of(admin, topic, channel).row)
    delayed = cancelled_delayed(combined.parts or [combined.row], channel)
    more = f" and {delayed:,} delayed messages" if delayed else ""
    if left or delayed or combined.unanswered:
        caption = f"{left:,} unfinished messages{more} of {name}"
        confirm(f"clear {caption}{and_missing(combined)}", yes)
    admin.empty(topic, channel)
    say(f"cleared {left:,} messages{more} of {name}")
    if stays := int(combined.row.get("delayed_count") or 0) - delayed:
        text = f"zsq: {stays:,} delayed messages of {topic} stay, because they become due for all"
        say(f"{text} channels; zsq delayed cancel removes them", err=True)


LOOK_S: Final = 0.5
SAY_S: Final = 10.0  # seconds after which a line is printed even if nothing has changed
# Seconds until another try, if the topic was not empty when it was to be deleted.
AGAIN_S: Final = 2.0


@topic.command("close")
@click.argument("topic")
@click.option(
    "--consumers",
    is_flag=True,
    help="Close the topic to consumers, too. Connected consumers end with E_CLOSED.",
)
@with_admin
def topic_close(topic: str, consumers: bool, admin: Admin) -> None:
    """Close TOPIC to publishers. They are refused with E_CLOSED, while consumers continue and drain
    it.

    It stays closed over restarts, until zsq topic open. Delayed messages that were accepted before
    still become due.
    """
    admin.close_topic(topic, to="consumers" if consumers else "publishers")


@topic.command("open")
@click.argument("topic")
@click.option(
    "--consumers", is_flag=True, help="Open to consumers only, to continue draining the topic."
)
@with_admin
def topic_open(topic: str, consumers: bool, admin: Admin) -> None:
    """Open TOPIC again, to publishers and consumers."""
    admin.open_topic(topic, to="consumers" if consumers else "publishers")


@topic.command("retire")
@click.argument("topic")
@click.option(
    "--wait",
    type=Seconds(),
    metavar="TIME",
    help="Give up after this time, such as 90s or 2h. The topic then stays closed to publishers.",
)
@with_admin
def topic_retire(topic: str, wait: float | None, admin: Admin) -> None:
    """Retire TOPIC: close it to publishers, wait until it is drained, close it to consumers, and
    delete it.

    Progress goes to standard error. Nothing is lost: you can stop the command at any time, and open
    the topic again with zsq topic open.
    """
    with stop_signals() as stopping:
        if part_of(topic):
            text = f"{topic} is a part: close it, and then use zsq topic remove-part {topic}"
            raise ZsqError(E_UNSUPPORTED, text)
        admin.close_topic(topic)
        _say(f"{topic} is closed to publishers")
        deadline = None if wait is None or wait < 0 else time.monotonic() + wait
        while True:
            _drain(admin, topic, stopping, deadline)
            if _removed(admin, topic):
                _say(f"{topic} is deleted")
                return
            if stopping.wait(AGAIN_S):
                raise _stopped(topic)


def _drain(admin: Admin, topic: str, stopping: Stopping, deadline: float | None) -> None:
    """Wait until the topic has no messages left to deliver."""
    shown, said_at = "", 0.0
    while left := _left(topic_of(admin, topic)):
        now = time.monotonic()
        text = "; ".join(left)
        if text != shown or now - said_at > SAY_S:
            _say(f"waiting for {text}")
            shown, said_at = text, now
        if deadline is not None and now >= deadline:
            raise ZsqError(
                E_TIMEOUT,
                (
                    f"{topic} is not drained: waiting for {text}. It stays closed to publishers; "
                    f"zsq topic open {topic} opens it"
                ),
            )
        if stopping.wait(LOOK_S):
            raise _stopped(topic)


def _left(combined: WholeTopic) -> list[str]:
    """Return texts about the messages that are left, also in parts that do not answer."""
    missing = [f"parts that do not answer ({combined.missing})"] if combined.unanswered else []
    return remaining(combined.row) + missing


def _stopped(topic: str) -> ZsqError:
    return ZsqError(
        "E_INTERRUPTED",
        f"stopped; {topic} stays closed to publishers. Continue with zsq topic retire, or open it "
        "with zsq topic open",
    )


def _removed(admin: Admin, topic: str) -> bool:
    """Close the topic to consumers and delete it.

    Return False if a message came back meanwhile, by a seek or because a consumer returned it.
    """
    from ....transport.errors import E_CLOSING, E_NOT_EMPTY, Refused

    admin.close_topic(topic, to="consumers")
    _say(f"{topic} is drained and closed to consumers")
    try:
        admin.delete_topic(topic)
    except Refused as error:
        if error.code not in (E_NOT_EMPTY, E_CLOSING):
            raise
        admin.open_topic(topic, to="consumers")
        _say(f"{error.text}; {topic} is open to consumers again")
        return False
    return True


def _say(text: str) -> None:
    click.echo(f"zsq: {text}", err=True)
