"""zsq stats: what waits where, as tables or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from .options import with_broker
from .output import json_option, tell

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.argument("topic", required=False)
@click.argument("channel", required=False)
@json_option
@click.option("--chunks", is_flag=True, help="The files of TOPIC's log: sizes, times, what is written and read.")
@with_broker
def stats(topic: str | None, channel: str | None, as_json: bool, chunks: bool, url: str, timeout: float) -> None:
    """Show topics, channels, consumers and the broker's processes; of one TOPIC or CHANNEL if named."""
    from ...transport.client import Admin
    from ...transport.errors import E_BAD_ARGUMENT, UsageError
    from ...transport.names import check_name

    if chunks and (topic is None or channel is not None):
        raise UsageError(E_BAD_ARGUMENT, "--chunks shows the log of one topic: zsq stats --chunks TOPIC")

    if topic is not None:
        check_name(topic)
    if channel is not None:
        check_name(channel, "channel")
    with Admin(url, timeout=timeout) as admin:
        found = admin.chunks(topic) if chunks and topic else admin.stats(topic, channel)
    if as_json:
        tell(found)
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a table that is cut to 80 columns is of no use in a file
    for table in [chunk_table(str(topic), found)] if chunks else tables(found, whole=topic is None):
        console.print(table)


def tables(found: dict[str, Any], *, whole: bool) -> list[Table]:
    """The tables for one answer; processes only if the `whole` broker was asked about."""
    shown = [_topics(found), _channels(found), _counted(found)]
    clients = [(topic, channel["channel_name"], client) for topic, channel in _each_channel(found) for client in channel.get("clients", ())]
    if clients:
        shown.append(_clients(clients))
    if whole:
        processes = [row for row in found.get("processes", ()) if "name" in row]  # who may not see them is told none by name
        shown += [_processes(processes)] if processes else []
    return shown


def chunk_table(topic: str, found: dict[str, Any]) -> Table:
    """A row a chunk, oldest first; those that are not told one by one in a row before them, and the sum."""
    counts = ("written_bytes", "written_bytes_s", "ring_reads", "ring_reads_s", "file_reads", "file_reads_s", "file_read_bytes_s", "bad")
    names = ("written", "written/s", "ring reads", "/s", "file reads", "/s", "file bytes/s", "bad")
    table = _table(f"chunks of {topic}", ("from offset", "state", "first", "last"), ("messages", "bytes", *names))

    def row(first: str, state: str, of: dict[str, Any]) -> None:
        numbers = [_number(of.get(field)) for field in ("messages", "bytes", *counts)]
        table.add_row(first, state, _time(of.get("first_time_ns")), _time(of.get("last_time_ns")), *numbers)

    if "older" in found:
        row(f"{found['older']['chunks']:,} older", "", found["older"])
    for chunk in found["chunks"]:
        row(str(chunk["first_offset"]), chunk["state"], chunk)
    row(f"all {found['total']['chunks']:,}", "", found["total"])
    return table


def _time(time_ns: int | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9)) if time_ns else ""


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value if value is not None else "")


def _topics(found: dict[str, Any]) -> Table:
    up = max(0, int(time.time() - float(found.get("start_time", time.time()))))
    title = f"zsq {found.get('version', '?')}, pid {found.get('pid', '?')}, up {_duration(up)}, health {found.get('health', '?')}"
    fields: tuple[str, ...] = ("depth", "message_count", "message_bytes", "start", "head", "log_bytes")
    names: tuple[str, ...] = ("depth", "messages", "bytes", "oldest", "next", "on disk")
    if any(topic.get("dropped_count") for topic in found["topics"]):
        fields, names = (*fields, "dropped_count"), (*names, "dropped, up to")
    if any(topic.get("delayed_count") for topic in found["topics"]):
        fields, names = (*fields, "delayed_count"), (*names, "delayed")
    if any(topic.get("lost_messages") for topic in found["topics"]):
        fields, names = (*fields, "lost_messages"), (*names, "lost")
    if any(topic.get("stages") for topic in found["topics"]):  # rows that Spark's executors wrote, and no driver has committed yet
        fields, names = (*fields, "stages", "staged_bytes"), (*names, "stages", "staged bytes")
    table = _table(title, ("topic", "state"), (*names, "in/s", "oldest age", "p99"))
    for topic in found["topics"]:
        closed = f"closed to {topic['closed']}" if topic.get("closed") else ""
        state = [topic.get("sync", ""), closed] + (["paused"] if topic.get("paused") else [])
        if topic.get("health", "OK") != "OK":
            state.append(str(topic["health"]))
        speed = (_rate(topic, "message_count"), _age(topic.get("oldest_message_age_s", 0)), *_latency(topic, 0.99))
        table.add_row(topic["topic_name"], ", ".join(filter(None, state)), *(_number(topic.get(f, "")) for f in fields), *speed)
    return table


# Shown where anything of it is not 0.
_RARE: Final = {
    "dead_letter_count": "dead",
    "dying_count": "dying",
    "expired_count": "expired",
    "sampled_count": "not sampled",
    "tag_skipped_count": "other tags",
    "addressed_skipped_count": "others'",
    "dropped_count": "dropped",
    "lost_count": "lost",
}


def _channels(found: dict[str, Any]) -> Table:
    """How they stand now."""
    names = ("depth", "in flight", "deferred", "oldest", "finished/s", "drained in", "p50", "p99", "consumers")
    table = _table("channels", ("topic", "channel", "state"), names)
    for topic, channel in _each_channel(found):
        state = ["paused"] if channel.get("paused") else []
        if channel.get("health", "OK") != "OK":
            state.append(str(channel["health"]))
        held = (_number(channel.get(field, "")) for field in ("depth", "in_flight_count", "deferred_count"))
        speed = (_age(channel.get("oldest_message_age_s", 0)), _rate(channel, "finish_count"), _drain(channel))
        end = (*_latency(channel, 0.5, 0.99), _number(channel.get("client_count", "")))
        table.add_row(topic, channel["channel_name"], ", ".join(state), *held, *speed, *end)
    return table


def _counted(found: dict[str, Any]) -> Table:
    """What became of what came to them."""
    channels = _each_channel(found)
    rare = [field for field in _RARE if any(channel.get(field) for _, channel in channels)]
    fields = ("message_count", "delivery_count", "finish_count", "requeue_count", "timeout_count", *rare)
    names = ("came", "delivered", "finished", "requeued", "timed out", *(_RARE[field] for field in rare))
    table = _table("messages of channels", ("topic", "channel"), names)
    for topic, channel in channels:
        table.add_row(topic, channel["channel_name"], *(_number(channel.get(field, "")) for field in fields))
    return table


def _each_channel(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(topic["topic_name"], channel) for topic in found["topics"] for channel in topic["channels"]]


def _rate(row: dict[str, Any], counter: str) -> str:
    """A second, over the last minute."""
    rate = float((row.get("rates") or {}).get(counter, 0.0))
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return _duration(int(seconds)) if seconds >= 10 else f"{seconds:.1f} s" if seconds else "-"


def _drain(channel: dict[str, Any]) -> str:
    if channel.get("drain_s", 0) is None:
        return "never"
    return _age(channel.get("drain_s", 0))


def _latency(row: dict[str, Any], *quantiles: float) -> list[str]:
    """What those shares of the messages took from the topic to their finish, at most."""
    percentiles = (row.get("e2e_processing_latency") or {}).get("percentiles", ())
    known = {one["quantile"]: one["value"] / 1e6 for one in percentiles}
    texts = {quantile: f"{value:,.3g} ms" if value < 1000 else _age(value / 1000) for quantile, value in known.items()}
    return [texts.get(quantile, "") for quantile in quantiles]


def _clients(clients: list[tuple[str, str, dict[str, Any]]]) -> Table:
    fields = ("ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count", "timeout_count")
    names = ("ready", "in flight", "delivered", "finished", "requeued", "timed out", "finished/s", "p50", "p99")
    table = _table("consumers", ("topic", "channel", "consumer"), names)
    for topic, channel, client in clients:
        speed = (_rate(client, "finish_count"), *_latency(client, 0.5, 0.99))
        table.add_row(topic, channel, str(client.get("client_id", "")), *(_number(client.get(f, "")) for f in fields), *speed)
    return table


def _processes(processes: Any) -> Table:
    table = _table("processes", ("process", "kind"), ("pid", "restarts", "up", "own memory"))
    for process in processes:
        memory = process.get("private_bytes")
        table.add_row(
            str(process.get("name", "")),
            str(process.get("kind", "")),
            str(process.get("pid", "")),
            _number(process.get("restarts", "")),
            _duration(int(process.get("uptime_s") or 0)),
            f"{memory / 1e6:,.1f} MB" if memory else "",
        )
    return table


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} d"
