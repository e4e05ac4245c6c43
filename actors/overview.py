"""The whole broker at a glance, from the pulses that the supervisor has at hand: nobody is asked for it.

It is made to be asked for once a second. A row is made anew only when something it is made of has changed, and an answer has the rows
that changed since the one whose `version` the asker names; so an idle broker of a thousand channels costs its supervisor next to nothing.
Rows are lists of numbers, and the answer says once which is which. Ages are not told but the time of the oldest message, which stays as it
is while nothing happens.

A channel tells where it is once a second, and so does its topic, at another moment: of a depth taken from both, what came in between
would be a backlog that is none. So the topic's end is counted back by its rate to the moment at which the channel spoke.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from ..transport.errors import E_BAD_ARGUMENT, UsageError
from .channel_rows import ENDS, drain_s, held, said_of
from .group_states import GroupState
from .process_table import Child
from .statistics import behind_pause, log_head, said_of_topic, waiting_count
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .supervisor import Supervisor

REFRESH_NS: Final = 200_000_000  # several askers share what was made
NOT_KNOWN: Final = -1
_MS: Final = 1_000_000

TOPIC_FIELDS: Final = (
    "state", "health", "sync", "closed", "paused", "start", "head", "messages", "bytes", "in_rate", "in_bytes_rate", "waiting",
    "backlog", "oldest_ns", "log_bytes", "chunks", "delayed", "delayed_bytes", "delayed_next_due_ns", "lost", "damaged", "dropped",
    "refused", "stages", "staged_bytes", "restarts", "pulsed_ms",
)  # fmt: skip
CHANNEL_FIELDS: Final = (
    "health", "paused", "depth", "in_flight", "deferred", "dying", "next_offset", "oldest_ns", "consumers", "came", "delivered", "finished",
    "requeued", "timed_out", "dead", "expired", "passed_over", "dropped", "lost", "in_rate", "out_rate", "drain_s", "p50_ns", "p95_ns",
    "p99_ns", "pulsed_ms",
)  # fmt: skip
Row = tuple[Any, ...]


class _Known:
    """A row, what it was made of, and since which version it says so."""

    __slots__ = ("health", "made_of", "row", "stats", "storage", "topic", "version")

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}  # none that anybody else has
        self.topic = self.storage = self.stats
        self.health = ""
        self.made_of: tuple[Any, ...] = ()  # of a topic
        self.row: Row = ()
        self.version = 0


class Overview:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._topics: dict[str, _Known] = {}
        self._channels: dict[str, dict[str, _Known]] = {}
        self._version = time.time_ns() // _MS  # the next life's are higher: who has heard this one gets all of it anew
        self._whole = self._version  # since which version the same topics and channels are there
        self._refreshed_ns = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """`since`: the version that the asker has. `processes`, `alarms`: whether these are wanted too."""
        since = asked.get("since", 0)
        unknown = asked.keys() - {"since", "processes", "alarms"}
        if type(since) is not int or unknown:
            raise UsageError(E_BAD_ARGUMENT, "an overview takes since (the version of the one before), processes and alarms")
        self._refresh(time.monotonic_ns(), time.time_ns())
        whole = not self._whole <= since <= self._version
        topics: dict[str, Any] = {}
        for name, known in self._topics.items():
            channels = {channel: one.row for channel, one in self._channels[name].items() if whole or one.version > since}
            if whole or channels or known.version > since:
                topics[name] = (known.row if whole or known.version > since else (), channels)
        found: dict[str, Any] = {"version": self._version, "whole": whole, "topics": topics, "broker": self._broker()}
        if whole:
            found |= {"topic_fields": TOPIC_FIELDS, "channel_fields": CHANNEL_FIELDS}
        if asked.get("processes"):
            found["processes"] = self._processes()
        if asked.get("alarms"):
            alarms = self._supervisor.alarms
            found["alarms"] = {"now": alarms.rows(), "recent": alarms.recent(), "receivers": alarms.receivers()}
        return found

    # Rows

    def _refresh(self, now_ns: int, wall_ns: int) -> None:
        if now_ns - self._refreshed_ns < REFRESH_NS:
            return
        self._refreshed_ns = now_ns
        self._version += 1
        groups = self._supervisor.groups
        same = self._topics.keys() == groups.keys()
        for name in self._topics.keys() - groups.keys():
            del self._topics[name], self._channels[name]
        for name, group in groups.items():
            channels = self._channels.setdefault(name, {})
            same = same and channels.keys() == group.channels.keys()
            for gone in channels.keys() - group.channels.keys():
                del channels[gone]
            spoke = self._of_channels(group, channels)
            self._of_topic(group, self._topics.setdefault(name, _Known()), spoke)
        if not same:
            self._whole = self._version

    def _of_channels(self, group: TopicGroup, rows: dict[str, _Known]) -> bool:
        """Whether any of them has changed."""
        topic, storage = _stats(group.topic), _stats(group.storage)
        failed = group.failed_channels()
        changed = False
        for name, child in group.channels.items():
            known = rows.get(name) or rows.setdefault(name, _Known())
            health = "" if child is not None and child.state == "up" else "failed" if name in failed else "starting"
            stats = _stats(child)
            if known.stats is stats and known.topic is topic and known.storage is storage and known.health == health:
                continue
            known.stats, known.topic, known.storage, known.health = stats, topic, storage, health
            row = _channel_row(group, name, child, health)
            if row != known.row:
                known.row, known.version, changed = row, self._version, True
        return changed

    def _of_topic(self, group: TopicGroup, known: _Known, changed: bool) -> None:
        made_of = (_stats(group.topic), _stats(group.storage), group.state, group.failure, group.row.closed, group.restarts.count)
        if not changed and len(known.made_of) == len(made_of) and all(map(_is, known.made_of, made_of)):
            return
        known.made_of = made_of
        row = _topic_row(group, self._channels[group.name])
        if row != known.row:
            known.row, known.version = row, self._version

    # What belongs to no topic

    def _broker(self) -> dict[str, Any]:
        from .. import __version__

        supervisor = self._supervisor
        recent = supervisor.alarms.recent()
        failed = [group.name for group in supervisor.groups.values() if group.state is GroupState.FAILED or group.failed_channels()]
        return {
            "version": __version__,
            "node": supervisor.registry.node,
            "uuid": supervisor.registry.uuid,
            "start_ms": int(supervisor.started * 1000),
            "health": f"failed topics: {', '.join(failed[:20])}" if failed else "OK",
            "alarms": len(supervisor.alarms.rows()),
            "alarmed_ns": recent[-1]["time_ns"] if recent else 0,
            "processes": len(supervisor.table.children) + 2,
            "restarts": sum(group.restarts.count for group in supervisor.groups.values()),
        }

    def _processes(self) -> list[dict[str, Any]]:
        """Without their memory: to look at that of a thousand takes as long as all else here."""
        supervisor, now = self._supervisor, time.monotonic_ns()
        up_s = round(time.time() - supervisor.started, 1)
        own = {"state": "up", "restarts": 0, "uptime_s": up_s}
        found: list[dict[str, Any]] = [
            {"name": "supervisor", "kind": "supervisor", "pid": os.getpid(), **own},
            {"name": "forkserver", "kind": "forkserver", "pid": supervisor.table.forkserver_pid, **own},
        ]
        for child in sorted(supervisor.table.children.values(), key=lambda child: child.spec.key):
            restarts = child.owner.restarts.count if child.owner is not None else 0
            uptime_s = round((now - child.started_ns) / 1e9, 1)
            facts = {"state": child.state, "restarts": restarts, "uptime_s": uptime_s}
            found.append({"name": child.spec.title, "kind": child.spec.kind, "pid": child.pid, **facts})
        return found


def _is(one: object, other: object) -> bool:
    return one is other or (type(one) is not dict and one == other)


_NOTHING: Final[dict[str, Any]] = {}


def _stats(child: Child | None) -> dict[str, Any]:
    """Each pulse makes a new one."""
    return child.stats if child is not None else _NOTHING


def _oldest(unfinished: int, oldest_ns: int) -> int:
    """When the oldest message of so many was stored; 0: there is none."""
    return (oldest_ns or NOT_KNOWN) if unfinished else 0


def _channel_row(group: TopicGroup, name: str, child: Child | None, health: str) -> Row:
    stats, topic, storage = _stats(child), _stats(group.topic), _stats(group.storage)
    rates = stats.get("rates", _NOTHING)
    coming = 0.0 if topic.get("paused") else float(topic.get("rates", _NOTHING).get("message_count", 0.0))
    end = int(topic.get("end", 0))
    waits = 0
    if child is not None and "next_offset" in stats:
        later_s = (group.topic.pulsed_ns - child.pulsed_ns) / 1e9 if group.topic is not None else 0.0
        then = end - int(coming * max(0.0, later_s))
        waits = max(int(stats["depth"]), then - int(stats["next_offset"]) + int(stats.get("requeued_waiting", 0)), 0)
    get = stats.get
    return (
        health or said_of(stats) or "OK",
        bool(get("paused")),
        waits,
        get("in_flight_count", 0),
        get("deferred_count", 0),
        get("dying_count", 0),
        get("next_offset", 0),
        _oldest(waits + held(stats), storage.get("oldest_ns", _NOTHING).get(name, 0)),
        get("client_count", 0),
        max(0, end - int(get("begin", end))),
        get("delivery_count", 0),
        get("finish_count", 0),
        get("requeue_count", 0),
        get("timeout_count", 0),
        get("dead_letter_count", 0),
        get("expired_count", 0),
        get("sampled_count", 0) + get("tag_skipped_count", 0) + get("addressed_skipped_count", 0),
        get("dropped_count", 0),
        get("lost_count", 0),
        coming,
        round(sum(rates.get(one, 0.0) for one in ENDS), 3),
        _known_or(drain_s(waits + int(get("in_flight_count", 0)), rates, coming)),
        *(get("latency_recent") or (0, 0, 0)),
        child.pulsed_ns // _MS if child is not None else 0,
    )


def _known_or(value: float | None) -> float:
    return NOT_KNOWN if value is None else value


_DEPTH, _HELD = CHANNEL_FIELDS.index("depth"), slice(CHANNEL_FIELDS.index("in_flight"), CHANNEL_FIELDS.index("dying") + 1)


def _topic_row(group: TopicGroup, channels: dict[str, _Known]) -> Row:
    topic, storage = _stats(group.topic), _stats(group.storage)
    rates = topic.get("rates", _NOTHING)
    waiting = behind_pause(group) if group.channels else waiting_count(group)
    rows = [one.row for one in channels.values()]
    delayed = int(storage.get("delayed_count", 0))
    backlog = max([row[_DEPTH] + sum(row[_HELD]) for row in rows], default=0)
    get = storage.get
    return (
        group.state.value,
        "; ".join(said_of_topic(group)) or "OK",
        group.row.sync,
        group.row.closed,
        bool(topic.get("paused")),
        get("start", 0),
        log_head(group),
        topic.get("message_count", 0),
        topic.get("message_bytes", 0) + get("entered_bytes", 0),
        rates.get("message_count", 0.0),
        rates.get("message_bytes", 0.0) + get("rates", _NOTHING).get("entered_bytes", 0.0),
        waiting,
        max(backlog, waiting),
        _oldest(max(backlog, waiting) + delayed, get("oldest_ns", _NOTHING).get("", 0)),
        get("log_bytes", 0),
        get("chunks", 0),
        delayed,
        get("delayed_bytes", 0),
        get("delayed_next_due_ns", 0),
        get("lost_messages", 0),
        get("damaged_blocks", 0),
        get("dropped_count", 0),
        get("refused_count", 0),
        get("stages", 0),
        get("staged_bytes", 0),
        group.restarts.count,
        group.topic.pulsed_ns // _MS if group.topic is not None else 0,
    )
