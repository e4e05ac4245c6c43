"""zsq stats: show topics, channels, consumers and processes as tables or as JSON.

A topic with its channels and consumers fits on a screen of 80 columns and 24 lines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ....actors.statistics.schema import rows_of
from ....storage.errors import REFUSED_TEXT
from ....transport.reports import (
    BrokerStats,
    BucketStats,
    ChannelStats,
    ConsumerStats,
    ProcessStats,
    TopicStats,
)
from ....transport.wire.answers import Chunks
from ..options import with_admin
from ..output import (
    FILE_COLUMNS,
    TEXT_MAX,
    Figure,
    Grid,
    Heading,
    figure,
    json_option,
    say,
    say_prose,
    tell,
    wide_console,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ....transport.client.blocking.client import Admin


@click.command()
@click.argument("topic", required=False)
@click.argument("channel", required=False)
@json_option
@click.option(
    "--chunks",
    is_flag=True,
    help="Show the files of TOPIC's log: sizes, times, and which ones are written and read.",
)
@click.option("--processes", is_flag=True, help="Also show each process of the broker.")
@with_admin
def stats(
    topic: str | None,
    channel: str | None,
    as_json: bool,
    chunks: bool,
    processes: bool,
    admin: Admin,
) -> None:
    """Show topics, channels and consumers, or one TOPIC or CHANNEL.

    On a narrow terminal, numbers are rounded. --json has all of them exactly.
    """
    from ....transport.errors import E_BAD_ARGUMENT, UsageError
    from ....transport.names import check_name

    if chunks and (topic is None or channel is not None):
        raise UsageError(
            E_BAD_ARGUMENT, "--chunks needs one TOPIC and no CHANNEL: zsq stats --chunks TOPIC"
        )

    if processes and topic is not None:
        raise UsageError(E_BAD_ARGUMENT, "--processes is about the broker, and takes no TOPIC")
    if topic is not None:
        check_name(topic)
    if channel is not None:
        check_name(channel, "channel")
    report: Any = (
        admin.chunks(topic) if chunks and topic else admin.stats(topic, channel, partial=True)
    )
    if as_json:
        tell(report)
        return
    console = wide_console()
    grids = [chunk_grid(str(topic), report)] if chunks else None
    is_one = topic is not None and not chunks and len(report["topics"]) > 0
    whole = in_whole(report, topic) if is_one and topic is not None else report
    parts = 0 if whole is report else len(report["topics"])
    if not chunks:
        more = about_one(whole, parts) if is_one else "" if topic else about_processes(report)
        say_prose((head(report) + more + nothing(report, topic)).rstrip("\n"))
        if parts:
            grids = [_topics(report, "parts"), *_of_channels(whole, console.width, is_one)]
    for table in tables(whole, processes, is_one, console.width, grids):
        console.print(table)
    for line in [] if chunks else troubles(report):
        say_prose(line)
    if why := hidden(report, whole=topic is None and not chunks):
        say(why, err=True)
    for part, why in report.get("unanswered", {}).items():
        say(f"zsq: part {part} did not answer and is not shown: {why}", err=True)


def in_whole(report: BrokerStats, topic: str) -> BrokerStats:
    """Return the report with one row for a topic with parts, or as it is for any other topic."""
    from ....transport.whole_topic import consumers, whole_topic

    combined = whole_topic(report, topic)
    if not combined.parts:
        return report
    for channel in combined.row["channels"]:
        channel["clients"] = consumers(channel)
    return {**report, "topics": [combined.row]}


def hidden(report: BrokerStats, *, whole: bool) -> str:
    """Return which figures the broker leaves out for lack of a permission, or ""."""
    if not whole:
        return ""
    if "disk" not in report:
        return 'zsq: the disk, the bucket, and the processes need the permission view = ["*"]'
    if any("name" not in row for row in report.get("processes", ())):
        return 'zsq: the processes and the receivers of alarms need the permission admin = ["*"]'
    return ""


def head(report: BrokerStats) -> str:
    """Return the lines above the tables: version, pid, uptime and health of the broker."""
    up = max(0, int(time.time() - float(report.get("start_time", time.time()))))
    about = f"zsq {report.get('version', '?')}, pid {report.get('pid', '?')}, up {_duration(up)}"
    return f"{about}\nhealth: {report.get('health', '?')}\n{_of_bucket(report.get('bucket'))}"


def _of_bucket(bucket: BucketStats | None) -> str:
    if not bucket:
        return ""
    sent, received = (bucket[name] // _MIB for name in ("sent_bytes", "received_bytes"))
    ships = bucket["shipping"] != _OFF
    cost = bucket["cost"]
    parts = [
        f"{bucket['write_requests']:,} write requests ({sent:,} MiB)",
        f"{bucket['read_requests']:,} read requests ({received:,} MiB)",
        *([f"shipping {bucket['shipping']}, lag {_age(bucket['lag_s'])}"] if ships else []),
        *([f"cost {cost:,.4f}"] if cost else []),
    ]
    if bucket["standbys"]:
        parts.append(f"{bucket['standbys']} standby{'s' if bucket['standbys'] > 1 else ''}")
    return f"bucket {bucket['url']}: {', '.join(parts)}\n"


def about_processes(report: BrokerStats) -> str:
    """Return the line about the processes, or "" if the user may not see them."""
    rows = [row for row in report.get("processes", ()) if "name" in row]
    if not rows:
        return ""
    count = len({row.get("pid") for row in rows})
    memory = sum(row.get("private_bytes") or 0 for row in rows)
    restarts = sum(row.get("restarts") or 0 for row in rows)
    return f"{count} processes with {memory / 1e6:,.0f} MB, {restarts:,} restarts\n"


def about_one(report: BrokerStats, parts: int = 0) -> str:
    """Return the lines about the only topic, which need less room than a table.

    `parts` is the number of its parts, or 0. Each has offsets of its own.
    """
    (row,) = report["topics"]
    p99 = _latency(row, 0.99)[0]
    counts = [
        f"{row['message_count']:,} published ({row['message_bytes']:,} bytes)",
        f"{row['depth']:,} wait for a channel",
    ]
    speed = [
        *([] if parts else [f"offsets {row['start']:,} to {row['head']:,}"]),
        f"{row['log_bytes']:,} bytes on disk",
        f"{_rate(row, 'message_count')}/s in",
        f"oldest {_age(row.get('oldest_message_age_s', 0))}",
        *([f"p99 {p99}"] if p99 else []),
        *([f"bucket lag {_ship_lag(row)}"] if row.get("shipping", _OFF) != _OFF else []),
    ]
    rare = _rare("topic", [row])
    values: Mapping[str, object] = row
    more = [
        f"{title} {values.get(name):,}"
        for name, title in zip(rare, _titles("topic", rare), strict=True)
        if values.get(name)
    ]
    name = f"{row['topic_name']}, {parts} parts" if parts else row["topic_name"]
    lines = [f"topic {name}: {_topic_state(row)}", ", ".join(counts), ", ".join(speed)]
    return "\n".join([*lines, *([", ".join(more)] if more else []), ""])


def _topic_state(topic: TopicStats) -> str:
    return ", ".join([*(_topic_words(topic) or ["OK"]), f"sync {topic.get('sync', '?')}"])


def _topic_words(topic: TopicStats) -> list[str]:
    """Return what is not usual about a topic."""
    closed = f"closed to {topic['closed']}" if topic.get("closed") else ""
    flags = [name for name in ("paused", "asleep") if topic.get(name)]
    return [*filter(None, (closed, *flags, _word(topic)))]


def nothing(report: BrokerStats, topic: str | None) -> str:
    """Return a sentence that replaces the tables of topics or channels if they are empty."""
    if not report["topics"]:
        return "There are no topics to show. zsq topic create TOPIC creates one.\n"
    if _each_channel(report):
        return ""
    where = "These topics have" if topic is None else f"Topic {topic} has"
    return f"{where} no channels. zsq channel create {topic or 'TOPIC'} CHANNEL creates one.\n"


def troubles(report: BrokerStats) -> list[str]:
    """Return a line for each state of a topic or channel that is too long for the column `state`.

    The lines follow the tables.
    """
    # `head` reports a full disk, with the names of the topics.
    disk_full = report.get("disk", {}).get("full", "")
    rows: list[tuple[str, TopicStats | ChannelStats]] = [
        (f"topic {topic['topic_name']}", topic) for topic in report["topics"]
    ]
    rows += [
        (f"channel {topic}/{channel['channel_name']}", channel)
        for topic, channel in _each_channel(report)
    ]
    texts = (
        (caption, row["health"])
        for caption, row in rows
        if _word(row) and _word(row) != row["health"]
    )
    return [
        f"{caption}: {text}" for caption, text in texts if not (disk_full and text == REFUSED_TEXT)
    ]


def _word(row: Mapping[str, object]) -> str:
    """Return the text of the column `state` for a health, or "" if all is well."""
    text = str(row.get("health", "OK"))
    if text == "OK":
        return ""
    if row.get("full"):
        return f"{row['full']} full"
    return text if len(text) <= TEXT_MAX else "not OK, see below"


def tables(
    report: BrokerStats,
    processes: bool,
    is_one: bool = False,
    width: int = FILE_COLUMNS,
    grids: Sequence[Grid] | None = None,
) -> list[Table]:
    """Return the tables, `width` columns wide.

    Processes are included only with `processes`. With `is_one`, the topic has lines and not
    a table (`about_one`), and its name is in no column.
    """
    if grids is None:
        grids = [] if is_one else [_topics(report, "topics")]
        grids += _of_channels(report, width, is_one)
        # Without the permission, the broker sends the rows of processes without names.
        named = [row for row in report.get("processes", ()) if "name" in row]
        grids += [_processes(named)] if processes and named else []
    return [table for grid in grids for table in grid.tables(width)]


def _of_channels(report: BrokerStats, width: int, is_one: bool) -> list[Grid]:
    return [_channels(report, is_one), _counted(report, is_one), *_clients(report, width, is_one)]


def chunk_grid(topic: str, chunks: Chunks) -> Grid:
    """Return a table with a row for each chunk, oldest first, and a row with the sum.

    One row at the top sums up the older chunks that the broker does not list.
    """
    counts = (
        "written_bytes",
        "written_bytes_s",
        "ring_reads",
        "ring_reads_s",
        "file_reads",
        "file_reads_s",
        "file_read_bytes_s",
        "bad",
    )
    names = ("written", "written/s", "ring reads", "/s", "file reads", "/s", "file bytes/s", "bad")
    times = (Heading("first", is_text=True), Heading("last", is_text=True))
    grid = Grid(
        f"chunks of {topic}",
        ("from offset",),
        (Heading("state", is_text=True), *times, "messages", "bytes", *names),
    )

    def row(first: str, state: str, of: Mapping[str, object]) -> None:
        numbers = [_number(of.get(field)) for field in ("messages", "bytes", *counts)]
        grid.add(
            first, state, _time(of.get("first_time_ns")), _time(of.get("last_time_ns")), *numbers
        )

    if "older" in chunks:
        row(f"{chunks['older']['chunks']:,} older", "", chunks["older"])
    for chunk in chunks["chunks"]:
        row(str(chunk["first_offset"]), chunk["state"], chunk)
    row(f"all {chunks['total']['chunks']:,}", "", chunks["total"])
    return grid


def _time(time_ns: object) -> str:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))
        if isinstance(time_ns, int) and time_ns
        else ""
    )


_MIB: Final = 1024 * 1024
_OFF: Final = "off"  # the state of shipping in a broker that does not ship
_STATE: Final = Heading("state", is_text=True)
# What a narrow terminal does not show of a channel, besides what is 0, and of a consumer.
_LESS_OF_CHANNELS: Final = ("message_count", "delivery_count")
_LESS_OF_CONSUMERS: Final = ("message_count", "requeue_count", "timeout_count")


def _number(value: object, unit: str = "") -> str | Figure:
    if isinstance(value, int):
        return figure(value, unit)
    return str(value if value is not None else "")


def _topics(report: BrokerStats, title: str) -> Grid:
    fields = (
        "depth",
        "message_count",
        "message_bytes",
        "start",
        "head",
        "log_bytes",
        *_rare("topic", report["topics"]),
    )
    names = [
        Heading(title, is_optional=field in ("message_count", "message_bytes", "start"))
        for field, title in zip(fields, _titles("topic", fields), strict=True)
    ]
    ships = any(topic.get("shipping", _OFF) != _OFF for topic in report["topics"])
    lag = ("bucket lag",) if ships else ()
    states = [_unusual(topic) for topic in report["topics"]]
    state = (_STATE,) if any(states) else ()
    grid = Grid(title, (title[:-1],), (*state, *names, *lag, "in/s", "oldest", "p99"))
    units = {row.name: "B" for row in rows_of("topic") if row.unit == "bytes"}
    for topic, words in zip(report["topics"], states, strict=True):
        speed = (
            _rate(topic, "message_count"),
            _age(topic.get("oldest_message_age_s", 0)),
            *_latency(topic, 0.99),
        )
        grid.add(
            topic["topic_name"],
            *((words or "OK",) if state else ()),
            *(_number(topic.get(field, ""), units.get(field, "")) for field in fields),
            *((_ship_lag(topic),) if ships else ()),
            *speed,
        )
    return grid


def _unusual(topic: TopicStats) -> str:
    """Return the text of the column `state`, or "" for a topic that works as most do."""
    sync = topic.get("sync", "always")
    return ", ".join([*_topic_words(topic), *([f"sync {sync}"] if sync != "always" else [])])


def _ship_lag(topic: TopicStats) -> str:
    """Return the age of the oldest change that is not in the bucket, or why there is none."""
    if topic["shipping"] in ("open", _OFF):
        return topic["shipping"] if topic["shipping"] == _OFF else _age(topic["ship_lag_s"])
    return f"{_age(topic['ship_lag_s'])}, {topic['shipping']}"


def _rare(level: str, of: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the rare statistics that are not 0 in one of these rows.

    If one statistic of a group is not 0, the whole group is returned.
    """
    rows = sorted((row for row in rows_of(level) if row.rare), key=lambda row: row.rare)
    shown = {row.rare for row in rows if any(values.get(row.name) for values in of)}
    return tuple(row.name for row in rows if row.rare in shown)


def _titles(level: str, fields: Sequence[str]) -> list[str]:
    titles = {row.name: row.title for row in rows_of(level)}
    return [titles[field] for field in fields]


def _channels(report: BrokerStats, is_one: bool) -> Grid:
    """Return the table with the present state of the channels."""
    channels = _each_channel(report)
    names: tuple[str | Heading, ...] = (
        "depth",
        *(
            Heading(title, is_optional=_is_zero(channels, field))
            for title, field in (("in flight", "in_flight_count"), ("deferred", "deferred_count"))
        ),
        "oldest",
        "finished/s",
        "empty in",
    )
    states = [_channel_state(channel) for _, channel in channels]
    state = (_STATE,) if any(states) else ()
    grid = Grid("channels", _channel_names(is_one), (*state, *names))
    for (topic, channel), words in zip(channels, states, strict=True):
        held = (
            _number(channel.get(field, ""))
            for field in ("depth", "in_flight_count", "deferred_count")
        )
        speed = (
            _age(channel.get("oldest_message_age_s", 0)),
            _rate(channel, "finish_count"),
            _drain(channel),
        )
        place = _channel_place(topic, channel, is_one)
        grid.add(*place, *((words or "OK",) if state else ()), *held, *speed)
    return grid


def _is_zero(channels: Sequence[tuple[str, ChannelStats]], field: str) -> bool:
    values: Iterable[Mapping[str, object]] = (channel for _, channel in channels)
    return not any(row.get(field) for row in values)


def _channel_state(channel: ChannelStats) -> str:
    """Return the text of the column `state`, or "" for a channel that delivers."""
    resting = channel.get("backing_off_count", 0)
    words = (
        "paused" if channel.get("paused") else "",
        "limited" if channel.get("limited_since_s") else "",
        "keys limited" if any(one["limited"] for one in channel.get("tenants", ())) else "",
        f"{resting} back off" if resting else "",
    )
    return ", ".join(filter(None, (*words, _word(channel))))


def _channel_names(is_one: bool) -> tuple[str, ...]:
    return ("channel",) if is_one else ("topic", "channel")


def _channel_place(topic: str, channel: ChannelStats, is_one: bool) -> tuple[str, ...]:
    name = channel["channel_name"]
    return (name,) if is_one else (topic, name)


def _counted(report: BrokerStats, is_one: bool) -> Grid:
    """Return the table with the consumers, the counters and the latencies of the channels."""
    channels = _each_channel(report)
    common = (row.name for row in rows_of("channel") if row.title and not row.rare)
    fields = (*common, *_rare("channel", [channel for _, channel in channels]))
    titles: tuple[str | Heading, ...] = (
        "consumers",
        *(
            Heading(title, is_optional=field in _LESS_OF_CHANNELS or _is_zero(channels, field))
            for field, title in zip(fields, _titles("channel", fields), strict=True)
        ),
        "p99",
    )
    grid = Grid("messages of channels", _channel_names(is_one), titles)
    for topic, channel in channels:
        numbers = (_number(channel.get(field, "")) for field in ("client_count", *fields))
        place = _channel_place(topic, channel, is_one)
        grid.add(*place, *numbers, *_latency(channel, 0.99))
    return grid


def _each_channel(report: BrokerStats) -> list[tuple[str, ChannelStats]]:
    return [
        (topic["topic_name"], channel)
        for topic in report["topics"]
        for channel in topic["channels"]
    ]


def _rate(row: TopicStats | ChannelStats | ConsumerStats, counter: str) -> str:
    """Return the rate per second over the last minute."""
    rate = row.get("rates", {}).get(counter, 0.0)
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return _duration(int(seconds)) if seconds >= 10 else f"{seconds:.1f} s" if seconds else "-"


def _drain(channel: ChannelStats) -> str:
    if channel.get("drain_s", 0) is None:
        return "never"
    return _age(channel.get("drain_s", 0))


def _latency(row: TopicStats | ChannelStats | ConsumerStats, *quantiles: float) -> list[str]:
    """Return the time between storing and finishing a message, as text, for each quantile."""
    latency = row.get("e2e_processing_latency")
    known = {
        percentile["quantile"]: percentile["value"] / 1e6
        for percentile in (latency["percentiles"] if latency else ())
    }
    texts = {
        quantile: f"{value:,.3g} ms" if value < 1000 else _age(value / 1000)
        for quantile, value in known.items()
    }
    return [texts.get(quantile, "") for quantile in quantiles]


def _clients(report: BrokerStats, width: int, is_one: bool) -> list[Grid]:
    """Return one table of all consumers.

    If the names leave too little room for the numbers, return a table for each channel.
    """
    clients = [
        (topic, channel["channel_name"], client)
        for topic, channel in _each_channel(report)
        for client in channel.get("clients", ())
    ]
    if not clients:
        return []
    shown = [row for row in rows_of("consumer") if row.title]
    backs_off = any(client.get("backoff_s") is not None for _, _, client in clients)
    state = (_STATE,) if backs_off else ()
    names: tuple[str | Heading, ...] = (
        *state,
        *(Heading(row.title, is_optional=row.name in _LESS_OF_CONSUMERS) for row in shown),
        "p99",
    )
    combined = Grid("consumers", (*_channel_names(is_one), "consumer"), names)
    parts: dict[tuple[str, str], Grid] = {}
    for topic, channel, client in clients:
        part = parts.setdefault(
            (topic, channel), Grid(f"consumers of {topic}/{channel}", ("consumer",), names)
        )
        name = str(client.get("client_id", ""))
        cells = (
            *((_backoff(client.get("backoff_s")),) if backs_off else ()),
            *(_number(client.get(row.name, "")) for row in shown),
            *_latency(client, 0.99),
        )
        combined.add(*((channel,) if is_one else (topic, channel)), name, *cells)
        part.add(name, *cells)
    return [combined] if len(list(combined.tables(width))) == 1 else list(parts.values())


def _backoff(seconds: float | None) -> str:
    """Return what a consumer does while its handlers fail."""
    if seconds is None:
        return ""
    return (
        f"backing off, next probe in {math.ceil(seconds)} s"
        if seconds
        else "backing off, probing now"
    )


def _processes(processes: Sequence[ProcessStats]) -> Grid:
    grid = Grid(
        "processes",
        ("process",),
        (Heading("kind", is_text=True), "pid", "restarts", "up", "cpu", "own memory"),
    )
    for process in processes:
        memory = process.get("private_bytes")
        grid.add(
            str(process.get("name", "")),
            str(process.get("kind", "")),
            str(process.get("pid", "")),
            _number(process.get("restarts", "")),
            _duration(int(process.get("uptime_s") or 0)),
            f"{seconds:,.1f} s" if (seconds := process.get("cpu_s")) is not None else "",
            f"{memory / 1e6:,.1f} MB" if memory else "shared" if process.get("host") else "",
        )
    return grid


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} d"
