"""What an action would cost, before it is done: counts, and sentences for the dialog that asks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ....transport.draining import remaining
from ....transport.redrive import CHANNEL as REDRIVE
from ..errors import ApiError

Stats = Mapping[str, Any]


class Asked(NamedTuple):
    """About one action: the row of the topic, that of the channel if there is one, and what the action is told."""

    topic: Stats
    channel: Stats
    to: int | None = None  # seek: the offset
    keys: int | None = None  # delayed.cancel: how many


class Loss(NamedTuple):
    what: str
    number: int


def _bad(text: str) -> ApiError:
    return ApiError(400, f"E_BAD_ARGUMENT {text}")


class Told(NamedTuple):
    losses: list[Loss]
    says: list[str]
    more: dict[str, Any]


_HELD: Final = (
    ("depth", "waiting"),
    ("in_flight_count", "in flight"),
    ("deferred_count", "deferred"),
    ("dying_count", "on their way to the dead letters"),
)


def preview(action: str, asked: Asked) -> dict[str, Any]:
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


def _held(row: Stats) -> list[Loss]:
    return [Loss(f"messages {what}", int(row.get(name, 0))) for name, what in _HELD]


def _sentence(losses: list[Loss], end: str) -> list[str]:
    told = [f"{loss.number:,} {loss.what}" for loss in losses if loss.number]
    return [f"{', '.join(told)} {end}"] if told else []


def _people(row: Stats, what: str) -> list[str]:
    count = int(row.get("client_count", 0)) if "client_count" in row else sum(int(one.get("client_count", 0)) for one in row["channels"])
    return [f"Connected consumers: {count:,}. {what}."] if count else []


def _topic_delete(asked: Asked) -> Told:
    row = asked.topic
    stored = max(0, int(row["head"]) - int(row["start"]))
    left = remaining(row)
    losses = [
        Loss("messages in the log", stored), Loss("delayed messages", int(row.get("delayed_count", 0))),
        Loss("channels", len(row["channels"])), Loss("uncommitted stages", int(row.get("stages", 0))),
    ]  # fmt: skip
    says = [
        f"{stored:,} messages in {int(row['log_bytes']):,} bytes of log are removed, and can be read no more." if stored else "It is empty."
    ]
    says += [f"Unfinished: {'; '.join(left)}."] if left else []
    return Told(losses, says + _people(row, "They get nothing more"), {"unfinished": left})


def _topic_empty(asked: Asked) -> Told:
    losses = [Loss("messages waiting", int(asked.topic["depth"]))]
    where = "behind its pause" if asked.topic["channels"] else "for a first channel"
    says = _sentence(losses, f"{where} go to no channel any more; they can be read by offset while they are kept.")
    return Told(losses, says or ["Nothing waits in the topic itself. What its channels hold stays: empty those."], {})


def _topic_pause(asked: Asked) -> Told:
    return Told([], ["Publishers go on; channels get nothing new until it is unpaused. Nothing is lost."], {})


def _topic_close(asked: Asked) -> Told:
    says = ["Publishers are refused from now on; consumers go on and drain it. It can be opened again."]
    left = remaining(asked.topic)
    return Told([], says + ([f"To be drained: {'; '.join(left)}."] if left else ["It is drained already."]), {"unfinished": left})


def _topic_close_consumers(asked: Asked) -> Told:
    left = remaining(asked.topic)
    says = ["Publishers and consumers are refused from now on. It can be opened again."]
    says += [f"Not finished: {'; '.join(left)}. It stays in the topic."] if left else []
    return Told([], says + _people(asked.topic, "They are sent away"), {"unfinished": left})


def _channel_delete(asked: Asked) -> Told:
    losses = _held(asked.channel)
    says = _sentence(losses, "are finished for nobody: they go with the channel.") or ["It holds nothing unfinished."]
    says.append("Its settings and counters go too. The topic's log, and its other channels, stay as they are.")
    return Told(losses, says + _people(asked.channel, "They get nothing more"), {})


def _channel_empty(asked: Asked) -> Told:
    losses = _held(asked.channel)
    says = _sentence(losses, "will not be delivered (again) to this channel; other channels keep theirs.")
    return Told(losses, says or ["It holds nothing."], {})


def _channel_pause(asked: Asked) -> Told:
    return Told([], ["Nothing is delivered until it is unpaused; what is in flight may be finished. Nothing is lost."], {})


def _channel_seek(asked: Asked) -> Told:
    """Behind the cursor only what is held is unfinished; it is cleared, and comes again if the channel goes back before it."""
    row, start, head = asked.channel, int(asked.topic["start"]), int(asked.topic["head"])
    if asked.to is None:
        raise _bad("say where to: to=OFFSET, earliest, latest, or time:MS")
    at, to = int(row.get("next_offset", 0)), min(max(asked.to, start), head)
    again, skipped = max(0, at - to), max(0, to - at)
    requeued = max(0, int(row["depth"]) - max(0, head - at))
    cleared = [Loss(f"messages {what}", int(row.get(name, 0))) for name, what in _HELD[1:]]
    cleared.append(Loss("messages to be delivered again", requeued))
    losses = [Loss("messages skipped", skipped), *cleared]
    says = [f"From offset {at:,} to {to:,}."]
    says += [f"{skipped:,} messages are left out for this channel."] if skipped else []
    says += [f"{again:,} messages are delivered again, finished ones too."] if again else []
    says += _sentence(cleared, "are taken back: only what lies at or behind the new place comes again.")
    return Told(losses, says, {"seek": {"from": at, "to": to, "again": again, "skipped": skipped}})


def _delayed_cancel(asked: Asked) -> Told:
    waiting = int(asked.topic.get("delayed_count", 0))
    count = waiting if asked.keys is None else min(asked.keys, waiting)
    return Told([Loss("delayed messages", count)], [f"{count:,} delayed messages are taken out, and never delivered."], {})


def _redrive(asked: Asked) -> Told:
    row = asked.topic
    channels = {one["channel_name"]: one for one in row["channels"]}
    if REDRIVE in channels:
        count = sum(int(channels[REDRIVE].get(name, 0)) for name, _ in _HELD)
    else:
        count = max(0, int(row["head"]) - int(row["start"]))
    says = [f"{count:,} dead letters go back, as new messages, each to the channel that gave it up. The letters stay for other channels."]
    return Told([], says if count else ["No dead letters wait to be sent back."], {"count": count})


_ACTIONS: Final[dict[str, Callable[[Asked], Told]]] = {
    "topic.delete": _topic_delete, "topic.empty": _topic_empty, "topic.pause": _topic_pause, "topic.close": _topic_close,
    "topic.close.consumers": _topic_close_consumers, "channel.delete": _channel_delete, "channel.empty": _channel_empty,
    "channel.pause": _channel_pause, "channel.seek": _channel_seek, "delayed.cancel": _delayed_cancel, "redrive": _redrive,
}  # fmt: skip
