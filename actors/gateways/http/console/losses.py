"""What an action would cost, before it is done: counts, and sentences for the dialog that asks. Pure.

Statistics that were asked for, as the pages of a topic and of a channel show them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .....transport.client.core.redrive import CHANNEL as REDRIVE
from .....transport.draining import remaining
from ....statistics.schema import rows_of
from ..web.responses import ApiError

Stats = Mapping[str, Any]


class ActionRequest(NamedTuple):
    """About one action: the row of the topic, that of the channel if there is one, and what the action is told."""

    topic: Stats
    channel: Stats
    to: int | None = None  # seek: the offset
    keys: int | None = None  # delayed.cancel: how many


class ActionLoss(NamedTuple):
    what: str
    number: int


def _bad(text: str) -> ApiError:
    return ApiError(400, f"E_BAD_ARGUMENT {text}")


class LossReport(NamedTuple):
    losses: list[ActionLoss]
    says: list[str]
    more: dict[str, Any]


_HELD: Final = (
    ("depth", "waiting"),
    ("in_flight_count", "in flight"),
    ("deferred_count", "deferred"),
    ("dying_count", "on their way to the dead letters"),
)


def preview(action: str, asked: ActionRequest) -> dict[str, Any]:
    """As JSON. `ApiError` for an action that there is not."""
    make = _ACTIONS.get(action)
    if make is None:
        raise _bad(f"there is no preview of {action[:40]!r}; of {', '.join(_ACTIONS)}")
    losses, says, more = make(asked)
    losses = [loss for loss in losses if loss.number]
    rows = [asked.channel] if asked.channel else asked.topic["channels"]
    unknown = any(row["health"] in ("starting", "failed") for row in rows)
    if unknown:
        says = [*says, "A channel is being started or has failed: what it holds is not counted here."]
    return {
        "action": action,
        "loses": [{"what": loss.what, "count": loss.number} for loss in losses],
        "says": says,
        "harmless": not losses,
        "unknown": unknown,
        **more,
    }


def _held(row: Stats) -> list[ActionLoss]:
    return [ActionLoss(f"messages {what}", int(row.get(name, 0))) for name, what in _HELD]


def _sentence(losses: list[ActionLoss], end: str) -> list[str]:
    told = [f"{loss.number:,} {loss.what}" for loss in losses if loss.number]
    return [f"{', '.join(told)} {end}"] if told else []


def _people(row: Stats, what: str) -> list[str]:
    count = int(row.get("client_count", 0)) if "client_count" in row else sum(int(one.get("client_count", 0)) for one in row["channels"])
    return [f"Connected consumers: {count:,}. {what}."] if count else []


def _topic_delete(asked: ActionRequest) -> LossReport:
    row = asked.topic
    stored = max(0, int(row["head"]) - int(row["start"]))
    left = remaining(row)
    losses = [
        ActionLoss("messages in the log", stored), ActionLoss("delayed messages", int(row.get("delayed_count", 0))),
        ActionLoss("channels", len(row["channels"])), ActionLoss("uncommitted stages", int(row.get("stages", 0))),
    ]  # fmt: skip
    says = [
        f"{stored:,} messages in {int(row['log_bytes']):,} bytes of log are removed, and can be read no more." if stored else "It is empty."
    ]
    says += [f"Unfinished: {'; '.join(left)}."] if left else []
    return LossReport(losses, says + _people(row, "They get nothing more"), {"unfinished": left})


def _topic_empty(asked: ActionRequest) -> LossReport:
    losses = [ActionLoss("messages waiting", int(asked.topic["depth"]))]
    where = "behind its pause" if asked.topic["channels"] else "for a first channel"
    says = _sentence(losses, f"{where} go to no channel any more; they can be read by offset while they are kept.")
    return LossReport(losses, says or ["Nothing waits in the topic itself. What its channels hold stays: empty those."], {})


def _topic_pause(asked: ActionRequest) -> LossReport:
    return LossReport([], ["Publishers go on; channels get nothing new until it is unpaused. Nothing is lost."], {})


def _topic_close(asked: ActionRequest) -> LossReport:
    says = ["Publishers are refused from now on; consumers go on and drain it. It can be opened again."]
    left = remaining(asked.topic)
    return LossReport([], says + ([f"To be drained: {'; '.join(left)}."] if left else ["It is drained already."]), {"unfinished": left})


def _topic_close_consumers(asked: ActionRequest) -> LossReport:
    left = remaining(asked.topic)
    says = ["Publishers and consumers are refused from now on. It can be opened again."]
    says += [f"Not finished: {'; '.join(left)}. It stays in the topic."] if left else []
    return LossReport([], says + _people(asked.topic, "They are sent away"), {"unfinished": left})


def _channel_delete(asked: ActionRequest) -> LossReport:
    losses = _held(asked.channel)
    says = _sentence(losses, "are finished for nobody: they go with the channel.") or ["It holds nothing unfinished."]
    says.append("Its settings and counters go too. The topic's log, and its other channels, stay as they are.")
    return LossReport(losses, says + _people(asked.channel, "They get nothing more"), {})


def _channel_empty(asked: ActionRequest) -> LossReport:
    losses = _held(asked.channel)
    says = _sentence(losses, "will not be delivered (again) to this channel; other channels keep theirs.")
    return LossReport(losses, says or ["It holds nothing."], {})


def _channel_pause(asked: ActionRequest) -> LossReport:
    return LossReport([], ["Nothing is delivered until it is unpaused; what is in flight may be finished. Nothing is lost."], {})


def _channel_seek(asked: ActionRequest) -> LossReport:
    """Behind the cursor only what is held is unfinished; it is cleared, and comes again if the channel goes back before it."""
    row, start, head = asked.channel, int(asked.topic["start"]), int(asked.topic["head"])
    if asked.to is None:
        raise _bad("say where to: to=OFFSET, earliest, latest, or time:MS")
    at, to = int(row.get("next_offset", 0)), min(max(asked.to, start), head)
    again, skipped = max(0, at - to), max(0, to - at)
    requeued = max(0, int(row["depth"]) - max(0, head - at))
    cleared = [ActionLoss(f"messages {what}", int(row.get(name, 0))) for name, what in _HELD[1:]]
    cleared.append(ActionLoss("messages to be delivered again", requeued))
    losses = [ActionLoss("messages skipped", skipped), *cleared]
    says = [f"From offset {at:,} to {to:,}."]
    says += [f"{skipped:,} messages are left out for this channel."] if skipped else []
    says += [f"{again:,} messages are delivered again, finished ones too."] if again else []
    says += _sentence(cleared, "are taken back: only what lies at or behind the new place comes again.")
    return LossReport(losses, says, {"seek": {"from": at, "to": to, "again": again, "skipped": skipped}})


def _delayed_cancel(asked: ActionRequest) -> LossReport:
    waiting = int(asked.topic.get("delayed_count", 0))
    count = waiting if asked.keys is None else min(asked.keys, waiting)
    return LossReport([ActionLoss("delayed messages", count)], [f"{count:,} delayed messages are taken out, and never delivered."], {})


def _redrive(asked: ActionRequest) -> LossReport:
    row = asked.topic
    channels = {one["channel_name"]: one for one in row["channels"]}
    if REDRIVE in channels:
        count = sum(int(channels[REDRIVE].get(name, 0)) for name, _ in _HELD)
    else:
        count = max(0, int(row["head"]) - int(row["start"]))
    says = [f"{count:,} dead letters go back, as new messages, each to the channel that gave it up. The letters stay for other channels."]
    return LossReport([], says if count else ["No dead letters wait to be sent back."], {"count": count})


_ACTIONS: Final[dict[str, Callable[[ActionRequest], LossReport]]] = {
    "topic.delete": _topic_delete, "topic.empty": _topic_empty, "topic.pause": _topic_pause, "topic.close": _topic_close,
    "topic.close.consumers": _topic_close_consumers, "channel.delete": _channel_delete, "channel.empty": _channel_empty,
    "channel.pause": _channel_pause, "channel.seek": _channel_seek, "delayed.cancel": _delayed_cancel, "redrive": _redrive,
}  # fmt: skip


_MS: Final = 1_000_000
_NO_LATENCY: Final[Mapping[str, Any]] = {"count": 0, "percentiles": ()}
_QUANTILES: Final = {0.5: "p50_ms", 0.9: "p90_ms", 0.95: "p95_ms", 0.99: "p99_ms", 1.0: "max_ms"}
_OF_TOPIC: Final = ("uuid", "retention", "finished_bytes", "removed_bytes", "recovery", "delayed_lost", "transactions")


def topic_details(stats: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """`stats` of the topic, freshly asked; `known`: its row on the board."""
    row = stats["topics"][0]
    left = remaining(row)
    topic = {**known, **{name: row.get(name) for name in _OF_TOPIC}, "closed": row["closed"], "rates": row["rates"]}
    topic["latency"] = latency(row.get("e2e_processing_latency"))
    return {
        "topic": topic,
        "producers": [*map(_publisher, row.get("publishers", ())), *(_nsq_producer(one, row["topic_name"]) for one in stats["producers"])],
        "retire": {"state": row["closed"], "left": left, "drained": not left},
    }


def _publisher(one: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: one[name] for name in ("via", "blocks", "unanswered_bytes", "silent_ms")}
    return {"name": one["producer"], "kind": "zmq", "address": "", "count": None, "version": "", **told}


def _nsq_producer(one: Mapping[str, Any], topic: str) -> dict[str, Any]:
    count = sum(int(row["count"]) for row in one["pub_counts"] if row["topic"] == topic)
    told: dict[str, Any] = {"name": one.get("client_id", ""), "kind": "nsq", "address": one.get("remote_address", ""), "count": count}
    return told | {"version": one.get("user_agent", ""), "via": "nsq", "blocks": None, "unanswered_bytes": None, "silent_ms": None}


def channel_details(row: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    counters = {name: value for name, value in row.items() if name.endswith(("_count", "_bytes")) and name != "client_count"}
    channel = {**known, "settings": row.get("settings", {}), "counters": counters, "rates": row["rates"], "drain_s": row["drain_s"]}
    channel["latency"] = latency(row.get("e2e_processing_latency"))
    return {"channel": channel, "clients": [_client(one) for one in row["clients"]]}


_OF_CLIENT: Final = {row.view: (row.name, row.default) for row in rows_of("consumer") if row.view}


def _client(one: Mapping[str, Any]) -> dict[str, Any]:
    percentiles = latency(one.get("e2e_processing_latency"))
    told = {name: one.get(theirs, otherwise) for name, (theirs, otherwise) in _OF_CLIENT.items()}
    return told | {
        "connected_ms": int(one.get("connect_ts", 0)) * 1000,
        "out": one.get("rates", {}).get("finish_count", 0.0),
        "p50_ms": percentiles["p50_ms"],
        "p99_ms": percentiles["p99_ms"],
        "tls": bool(one.get("tls")),
        "nsq": "remote_address" in one,
    }


def latency(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of the last ten minutes, in ms; null where nothing was finished."""
    found = found or _NO_LATENCY
    told: dict[str, Any] = {"count": found["count"], **dict.fromkeys(_QUANTILES.values())}
    for one in found["percentiles"]:
        told[_QUANTILES[one["quantile"]]] = round(one["value"] / _MS, 3)
    return told


def chunk_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """Times as JavaScript takes them."""
    told: dict[str, Any] = {"chunks": [_chunk(row) for row in found["chunks"]], "total": dict(found["total"])}
    if "older" in found:
        told["older"] = dict(found["older"])
    return told


def _chunk(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in row.items() if not name.endswith("_time_ns")}
    for name in ("first", "last"):
        time_ns = row[f"{name}_time_ns"]
        told[f"{name}_time_ms"] = None if time_ns is None else time_ns // _MS
    return told
