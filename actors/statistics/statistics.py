"""What `stats` shows: the actors' last pulses put together, with NSQ's field names where they mean the same.

What `stats` shows of NSQ's clients: what the channels know of them, with what they said of themselves to the gateway. Pure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ...storage.errors import REFUSED_TEXT
from ...transport.wire.codec import first_rows
from ..primitives.latency import merged
from ..runtime.process import private_bytes
from ..runtime.process_table import Child
from ..settings import options
from .broker_view import BrokerView, DiskView, GroupState, TopicView
from .channel_rows import age_s, channel_rows, depth, held, said_of, visible_end
from .gathering import Details
from .schema import NSQ_CLIENT, Report, Row, defaults, rows_of

# The channel's own figures stand; what only the gateway knows is added.
OF_GATEWAY: Final = tuple(row.name for row in rows_of("consumer") if row.counted == NSQ_CLIENT)
# What storage reports of a topic stands as it is.
_OF_STORAGE: Final = {row.name: row.default for row in rows_of("topic") if row.name and row.counted.startswith("storage/")}


def label_of(client_id: str, remote: str) -> str:
    """What a channel calls a client of the gateway: readable, and no other connection's."""
    return f"{client_id[:64]} {remote}"


def add_clients(topics: Iterable[Row], clients: Iterable[Report]) -> list[Row]:
    """Fill the rows of consumers in `topics` in; returned are those that publish, as nsqd's `producers`."""
    rows = [dict(row) for row in clients if {"topic", "channel", "label", *OF_GATEWAY} <= row.keys()]  # a gateway ends nobody but itself
    known = {(row["topic"], row["channel"], row["label"]): row for row in rows}
    for topic in topics if known else ():
        for channel in topic["channels"]:
            channel["clients"] = tuple(
                _merged(one, known.get((topic["topic_name"], channel["channel_name"], one["client_id"]))) for one in channel["clients"]
            )
    return [{name: value for name, value in row.items() if name not in {"topic", "channel", "label"}} for row in rows if row["pub_counts"]]


def _merged(client: Report, row: Row | None) -> Row:
    return {**client, **{name: row[name] for name in OF_GATEWAY}} if row is not None else dict(client)


FAILED_NAMED: Final = 20


def unfinished(group: TopicView, channel: str = "") -> int | None:
    """Messages that a channel (or the fullest of all) has not finished; without channels what waits for a first one. None: not known.

    Up to the log's real end: what lies behind a topic's pause is acknowledged, and not finished by anybody. What is delayed and not due
    yet counts too, where it is not about one channel.
    """
    asked = [child for name, child in group.channels.items() if not channel or name == channel]
    children = [child for child in asked if child is not None and child.state == "up" and "next_offset" in child.stats]
    if len(children) < len(asked):
        return None
    delayed = 0 if channel or group.storage is None else int(group.storage.stats.get("delayed_count", 0))
    if children:
        head = log_head(group)
        return delayed + max(depth(child.stats, head) + held(child.stats) for child in children)
    return delayed + waiting_count(group)


def reach(group: TopicView) -> dict[str, int]:
    """Between which offsets a channel of this topic can be."""
    storage = group.storage.stats if group.storage is not None else {}
    return {"start": int(storage.get("start", 0)), "head": visible_end(group)}


def waiting_count(group: TopicView) -> int:
    """What waits for a first channel."""
    stats = group.storage.stats if group.storage is not None else {}
    return max(0, int(stats.get("head", 0)) - int(stats.get("waiting", 0)))


def log_head(group: TopicView) -> int:
    """The log's end as the newest pulses know it, whatever channels may see of it."""
    return max(int(child.stats.get("head", 0)) if child is not None else 0 for child in (group.topic, group.storage))


def behind_pause(group: TopicView) -> int:
    """Messages that wait for the topic to be unpaused: they are the topic's and no channel's yet, as in NSQ."""
    topic = group.topic.stats if group.topic is not None else {}
    if not topic.get("paused"):
        return 0
    storage = group.storage.stats if group.storage is not None else {}
    return max(0, log_head(group) - max(int(topic.get("end", 0)), int(storage.get("start", 0))))


def said_of_topic(group: TopicView, disk: DiskView, alarms: Iterable[str] = ()) -> list[str]:
    """What is wrong with it, nothing if all is well. `alarms`: about its backlog."""
    if group.state is not GroupState.UP:
        return [f"{group.state.value} {group.failure}".strip()]
    said = list(group.storage.stats.get("alarms") or group.storage.data.get("alarms", ())) if group.storage is not None else []
    for alarm in ("state_alarm", "delayed_alarm"):
        text = group.storage.stats.get(alarm) if group.storage is not None else ""
        said += [str(text)] if text else []
    full = _disk_full(group)
    if full and not any(full in one for one in said):
        said.append(_refused_text(group, disk, full))
    if group.storage is not None and group.storage.stats.get("topic_full"):
        said.append(f"publishes are refused: {group.storage.stats['topic_full']}")
    said += [f"channel {name} failed too often" for name in sorted(group.failed_channels())]
    of_channels = {name: said_of(child.stats) for name, child in group.channels.items() if child is not None}
    said += [f"channel {name} {text}" for name, text in sorted(of_channels.items()) if text]
    said += [f"alarm: {text}" for text in alarms]
    return said + _not_written_since(group)


def write_trouble(group: TopicView, disk: DiskView) -> str:
    """Why what is published may not be kept now, "" for nothing. Alarms about backlogs, old damage and a first start are none."""
    if group.state is not GroupState.UP:
        again = group.failure and group.state in (GroupState.STORAGE, GroupState.TOPIC)
        down = again or group.state in (GroupState.CLEARING, GroupState.FAILED)
        return f"{group.state.value} {group.failure}".strip() if down else ""
    stats: Report = group.storage.stats if group.storage is not None else {}
    said = [str(stats[name]) for name in ("state_alarm", "delayed_full") if stats.get(name)]
    if not said and (full := _disk_full(group)):
        said = [_refused_text(group, disk, full)]
    return "; ".join([*said, *_not_written_since(group)])


def _disk_full(group: TopicView) -> str:
    return str(group.storage.stats.get("disk_full", "")) if group.storage is not None else ""


def _refused_text(group: TopicView, disk: DiskView, full: str) -> str:
    """Why publishes are refused for want of space; shortly, where the broker's health says the rest."""
    return REFUSED_TEXT if disk.says_why(group.name) else f"publishes are refused: {full}"


def _not_written_since(group: TopicView) -> list[str]:
    if group.failure and group.storage is not None and not group.storage.stats.get("appends"):
        return [f"started again and not written to since: {group.failure}"]
    return []


def _topic(view: BrokerView, group: TopicView, channel: str, wall_ns: int, details: Details) -> Row:
    topic = group.topic.stats if group.topic is not None else {}
    storage = group.storage.stats if group.storage is not None else {}
    waiting = behind_pause(group) if group.channels else waiting_count(group)
    rows = channel_rows(group, visible_end(group), wall_ns, details)
    bins = [row.pop("latency_bins") for row in rows if "latency_bins" in row]
    rates = dict(topic.get("rates", {}))
    rates["message_bytes"] = rates.get("message_bytes", 0.0) + storage.get("rates", {}).get("entered_bytes", 0.0)
    return {
        "topic_name": group.name,
        "uuid": group.row.uuid,
        "sync": group.row.sync,
        "closed": group.row.closed,
        "health": "; ".join(said_of_topic(group, view.disk, view.alarms.texts(group.name))) or "OK",
        "full": "disk" if _disk_full(group) else "topic" if storage.get("topic_full") else "",
        "write_trouble": write_trouble(group, view.disk),
        "depth": waiting,
        "backend_depth": waiting,
        "message_count": topic.get("message_count", 0),
        "message_bytes": topic.get("message_bytes", 0) + storage.get("entered_bytes", 0),
        "rates": {"message_count": 0.0, **rates},
        "oldest_message_age_s": age_s(unfinished(group) or waiting, storage.get("oldest_ns", {}).get("", 0), wall_ns),
        "e2e_processing_latency": merged(bins),
        "paused": topic.get("paused", False),
        "head": log_head(group),
        **{name: storage.get(name, default) for name, default in _OF_STORAGE.items()},
        "publishers": details.get(group.topic.spec.key, {}).get("publishers", ()) if group.topic is not None else (),
        "channels": [row for row in rows if not channel or row["channel_name"] == channel],
    }


def broker_health(view: BrokerView) -> str:
    """Say what is wrong with the broker as a whole, "OK" for nothing: a full disk, topics that failed, a gateway with old settings."""
    failed = sorted(group.name for group in view.groups.values() if group.state is GroupState.FAILED or group.failed_channels())
    more = f" and {len(failed) - FAILED_NAMED} more" if len(failed) > FAILED_NAMED else ""
    said = [view.disk.health] if view.disk.health else []
    said += [f"failed topics: {', '.join(failed[:FAILED_NAMED])}{more}"] if failed else []
    said += [text] if (text := view.settings_trouble()) else []
    return "; ".join(said) or "OK"


def broker_statistics(view: BrokerView, topic: str, channel: str, details: Details) -> Row:
    """Everything, or one topic, or one channel of it. `details`: of those that were asked for them just now."""
    from ... import __version__

    groups = [group for name, group in sorted(view.groups.items()) if not topic or name == topic]
    wall_ns = time.time_ns()
    rows = [_topic(view, group, channel, wall_ns, details) for group in groups]
    gateways = [child for child in view.singles.values() if child.spec.kind == "nsq_gateway"]
    producers = add_clients(rows, [row for child in gateways for row in details.get(child.spec.key, {}).get("clients", ())])
    shown, left_out = _cut(rows, [row for row in producers if not topic or any(one["topic"] == topic for one in row["pub_counts"])])
    left_out += sum(details.get(child.spec.key, {}).get("clients_left_out", 0) for child in gateways)
    return {
        "version": __version__,
        "node": view.node,
        "uuid": view.uuid,
        "pid": os.getpid(),
        "start_time": int(view.started),
        "health": broker_health(view),
        "disk": view.disk.statistics(),
        "alarms": view.alarms.rows(topic, channel),
        **({} if topic else {"gateways": [_gateway(child) for child in gateways if child.state == "up"]}),
        **({} if topic else {"recent_alarms": view.alarms.recent(), "alarm_receivers": view.alarms.receivers()}),
        "topics": rows,
        "producers": shown,
        "processes": process_rows(view, memory=True),
        **({"clients_left_out": left_out} if left_out else {}),
    }


def process_rows(view: BrokerView, *, memory: bool) -> list[Row]:
    """Return a row for each process, with the memory that is its alone if that is asked for."""
    now, uptime_s = time.monotonic_ns(), round(time.time() - view.started, 1)
    rows: list[Row] = []
    for name, pid in (("supervisor", os.getpid()), ("forkserver", view.processes.table.forkserver_pid)):
        used = {"private_bytes": private_bytes(pid)} if memory else {}
        rows.append({"name": name, "pid": pid, "kind": name, "restarts": 0, "uptime_s": uptime_s, **used})
    for child in sorted(view.processes.children.values(), key=lambda child: child.spec.key):
        restarts = child.owner.restarts.count if child.owner is not None else 0
        row = {"name": child.spec.title, "pid": child.pid, "kind": child.spec.kind, "state": child.state, "restarts": restarts}
        used = {"private_bytes": child.stats.get("private_bytes", 0)} if memory else {}
        rows.append({**row, "uptime_s": round((now - child.started_ns) / 1e9, 1), **used})
    return rows


def _gateway(child: Child) -> Row:
    """Return the row of an NSQ gateway; 0 where it has not reported yet."""
    counted = defaults("gateway")
    return {name: child.stats.get(name, 0) for name in counted} | {"name": child.spec.title, "kind": child.spec.kind}


def _cut(topics: Iterable[Row], producers: list[Row]) -> tuple[Sequence[Row], int]:
    """Cut the rows of clients in `topics`, and the producers, to what one answer may carry. Returned are the producers, and how many rows
    are left out; counts stay as they are."""
    left, left_out = options.STATS_DETAILS_BYTES_MAX, 0
    for topic in topics:
        for row, name in ((topic, "publishers"), *((channel, "clients") for channel in topic["channels"])):
            rows = row[name]
            row[name], left = first_rows(rows, left)
            left_out += len(rows) - len(row[name]) + row.get(f"{name}_left_out", 0)
    shown, left = first_rows(producers, left)
    return shown, left_out + len(producers) - len(shown)
