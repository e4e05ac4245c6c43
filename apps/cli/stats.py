"""zsq stats: what waits where, as tables or as JSON."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from .options import with_broker

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.argument("topic", required=False)
@click.argument("channel", required=False)
@click.option("--json", "as_json", is_flag=True, help="All numbers as one JSON object.")
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
        click.echo(json.dumps(found, indent=2, default=str))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a table that is cut to 80 columns is of no use in a file
    for table in [chunk_table(str(topic), found)] if chunks else tables(found, whole=topic is None):
        console.print(table)


def tables(found: dict[str, Any], *, whole: bool) -> list[Table]:
    """The tables for one answer; processes only if the `whole` broker was asked about."""
    shown = [_topics(found), _channels(found)]
    channels = [(topic["topic_name"], channel) for topic in found["topics"] for channel in topic["channels"]]
    clients = [(topic, channel["channel_name"], client) for topic, channel in channels for client in channel.get("clients", ())]
    if clients:
        shown.append(_clients(clients))
    if whole:
        shown.append(_processes(found.get("processes", ())))
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
    table = _table(title, ("topic", "state"), names)
    for topic in found["topics"]:
        state = [topic.get("sync", "")] + (["paused"] if topic.get("paused") else [])
        if topic.get("health", "OK") != "OK":
            state.append(str(topic["health"]))
        table.add_row(topic["topic_name"], ", ".join(filter(None, state)), *(_number(topic.get(f, "")) for f in fields))
    return table


def _channels(found: dict[str, Any]) -> Table:
    counters = ("message_count", "finish_count", "requeue_count", "timeout_count")
    fields: tuple[str, ...] = ("depth", "in_flight_count", "deferred_count", *counters, "client_count")
    names: tuple[str, ...] = ("depth", "in flight", "deferred", "delivered", "finished", "requeued", "timed out", "consumers")
    if any(channel.get("dropped_count") for topic in found["topics"] for channel in topic["channels"]):
        fields, names = (*fields, "dropped_count"), (*names, "dropped")
    table = _table("channels", ("topic", "channel", "state"), names)
    for topic in found["topics"]:
        for channel in topic["channels"]:
            state = "paused" if channel.get("paused") else ""
            table.add_row(topic["topic_name"], channel["channel_name"], state, *(_number(channel.get(f, "")) for f in fields))
    return table


def _clients(clients: list[tuple[str, str, dict[str, Any]]]) -> Table:
    fields = ("ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
    table = _table("consumers", ("topic", "channel", "consumer"), ("ready", "in flight", "delivered", "finished", "requeued"))
    for topic, channel, client in clients:
        table.add_row(topic, channel, str(client.get("client_id", "")), *(_number(client.get(f, "")) for f in fields))
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
