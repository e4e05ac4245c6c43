"""What `stats` shows: the actors' last pulses put together, with NSQ's field names where they mean the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .channel_rows import age_s, channel_rows, depth, held, said_of, visible_end
from .gathering import Details
from .group_states import GroupState
from .latency import merged
from .nsq_rows import add_clients
from .process import private_bytes
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .supervisor import Supervisor


def unfinished(group: TopicGroup, channel: str = "") -> int | None:
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


def reach(group: TopicGroup) -> dict[str, int]:
    """Between which offsets a channel of this topic can be."""
    storage = group.storage.stats if group.storage is not None else {}
    return {"start": int(storage.get("start", 0)), "head": visible_end(group)}


def waiting_count(group: TopicGroup) -> int:
    """What waits for a first channel."""
    stats = group.storage.stats if group.storage is not None else {}
    return max(0, int(stats.get("head", 0)) - int(stats.get("waiting", 0)))


def log_head(group: TopicGroup) -> int:
    """The log's end as the newest pulses know it, whatever channels may see of it."""
    return max(int(child.stats.get("head", 0)) if child is not None else 0 for child in (group.topic, group.storage))


def behind_pause(group: TopicGroup) -> int:
    """Messages that wait for the topic to be unpaused: they are the topic's and no channel's yet, as in NSQ."""
    topic = group.topic.stats if group.topic is not None else {}
    if not topic.get("paused"):
        return 0
    storage = group.storage.stats if group.storage is not None else {}
    return max(0, log_head(group) - max(int(topic.get("end", 0)), int(storage.get("start", 0))))


def _health(group: TopicGroup) -> str:
    return "; ".join(said_of_topic(group, group.supervisor.alarms.texts(group.name))) or "OK"


def said_of_topic(group: TopicGroup, alarms: Iterable[str] = ()) -> list[str]:
    """What is wrong with it, nothing if all is well. `alarms`: about its backlog."""
    if group.state is not GroupState.UP:
        return [f"{group.state.value} {group.failure}".strip()]
    said = list(group.storage.stats.get("alarms") or group.storage.data.get("alarms", ())) if group.storage is not None else []
    for alarm in ("state_alarm", "delayed_alarm"):
        text = group.storage.stats.get(alarm) if group.storage is not None else ""
        said += [str(text)] if text else []
    said += [f"channel {name} failed too often" for name in sorted(group.failed_channels())]
    of_channels = {name: said_of(child.stats) for name, child in group.channels.items() if child is not None}
    said += [f"channel {name} {text}" for name, text in sorted(of_channels.items()) if text]
    said += [f"alarm: {text}" for text in alarms]
    return said + _not_written_since(group)


def write_trouble(group: TopicGroup) -> str:
    """Why what is published may not be kept now, "" for nothing. Alarms about backlogs, old damage and a first start are none."""
    if group.state is not GroupState.UP:
        again = group.failure and group.state in (GroupState.STORAGE, GroupState.TOPIC)
        down = again or group.state in (GroupState.CLEARING, GroupState.FAILED)
        return f"{group.state.value} {group.failure}".strip() if down else ""
    stats: Mapping[str, Any] = group.storage.stats if group.storage is not None else {}
    said = [str(stats[name]) for name in ("state_alarm", "delayed_full") if stats.get(name)]
    return "; ".join([*said, *_not_written_since(group)])


def _not_written_since(group: TopicGroup) -> list[str]:
    if group.failure and group.storage is not None and not group.storage.stats.get("appends"):
        return [f"started again and not written to since: {group.failure}"]
    return []


def _topic(group: TopicGroup, channel: str, wall_ns: int, details: Details) -> dict[str, Any]:
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
        "health": _health(group),
        "write_trouble": write_trouble(group),
        "depth": waiting,
        "backend_depth": waiting,
        "message_count": topic.get("message_count", 0),
        "message_bytes": topic.get("message_bytes", 0) + storage.get("entered_bytes", 0),
        "rates": {"message_count": 0.0, **rates},
        "oldest_message_age_s": age_s(unfinished(group) or waiting, storage.get("oldest_ns", {}).get("", 0), wall_ns),
        "e2e_processing_latency": merged(bins),
        "paused": topic.get("paused", False),
        "head": log_head(group),
        "start": storage.get("start", 0),
        "log_bytes": storage.get("log_bytes", 0),
        "finished_bytes": storage.get("finished_bytes", 0),
        "removed_bytes": storage.get("removed_bytes", 0),
        "dropped_count": storage.get("dropped_count", 0),
        "refused_count": storage.get("refused_count", 0),
        "retention": storage.get("retention", {}),
        "chunks": storage.get("chunks", 0),
        "damaged_blocks": storage.get("damaged_blocks", 0),
        "lost_messages": storage.get("lost_messages", 0),
        "recovery": storage.get("recovery", {}),
        "stages": storage.get("stages", 0),
        "staged_bytes": storage.get("staged_bytes", 0),
        "transactions": storage.get("transactions", 0),
        "delayed_count": storage.get("delayed_count", 0),
        "delayed_bytes": storage.get("delayed_bytes", 0),
        "delayed_next_due_ns": storage.get("delayed_next_due_ns", 0),
        "delayed_lost": storage.get("delayed_lost", 0),
        "delayed_moved": storage.get("delayed_moved", 0),
        "publishers": details.get(group.topic.spec.key, {}).get("publishers", ()) if group.topic is not None else (),
        "channels": [row for row in rows if not channel or row["channel_name"] == channel],
    }


def broker_statistics(supervisor: Supervisor, topic: str, channel: str, details: Details) -> dict[str, Any]:
    """Everything, or one topic, or one channel of it. `details`: of those that were asked for them just now."""
    from .. import __version__

    groups = [group for name, group in sorted(supervisor.groups.items()) if not topic or name == topic]
    failed = [group.name for group in supervisor.groups.values() if group.state is GroupState.FAILED or group.failed_channels()]
    now, wall_ns = time.monotonic_ns(), time.time_ns()
    uptime_s = round(time.time() - supervisor.started, 1)
    processes = [
        {"name": "supervisor", "pid": os.getpid(), "kind": "supervisor", "restarts": 0, "uptime_s": uptime_s,
         "private_bytes": private_bytes()},
        {"name": "forkserver", "pid": supervisor.table.forkserver_pid, "kind": "forkserver", "restarts": 0, "uptime_s": uptime_s,
         "private_bytes": private_bytes(supervisor.table.forkserver_pid)},
    ]  # fmt: skip
    for child in sorted(supervisor.table.children.values(), key=lambda child: child.spec.key):
        processes.append(
            {
                "name": child.spec.title,
                "pid": child.pid,
                "kind": child.spec.kind,
                "state": child.state,
                "uptime_s": round((now - child.started_ns) / 1e9, 1),
                "private_bytes": child.stats.get("private_bytes", 0),
                "restarts": child.owner.restarts.count if child.owner is not None else 0,
            }
        )
    rows = [_topic(group, channel, wall_ns, details) for group in groups]
    gateways = supervisor.singles.of_kind("nsq_gateway")
    producers = add_clients(rows, [row for child in gateways for row in details.get(child.spec.key, {}).get("clients", ())])
    return {
        "version": __version__,
        "node": supervisor.registry.node,
        "uuid": supervisor.registry.uuid,
        "pid": os.getpid(),
        "start_time": int(supervisor.started),
        "health": "OK" if not failed else f"failed topics: {', '.join(failed)}",
        "alarms": supervisor.alarms.rows(topic, channel),
        **({} if topic else {"recent_alarms": supervisor.alarms.recent(), "alarm_receivers": supervisor.alarms.receivers()}),
        "topics": rows,
        "producers": [row for row in producers if not topic or any(one["topic"] == topic for one in row["pub_counts"])],
        "processes": processes,
    }
