"""Previews of actions.

A preview says what an action would lose: as counts, and as sentences for the dialog in which the
user confirms the action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from .....transport.client.core.redrive import CHANNEL as REDRIVE
from .....transport.draining import cancelled_delayed, remaining
from .....transport.reports import (
    ChannelStats,
    TopicStats,
)
from .....transport.wire.admin_requests import END
from .answers import bad

OFFSETS_SHOWN: Final = 10


class ActionRequest(NamedTuple):
    """An action to preview, with the rows of its topic and channel, and its arguments."""

    topic: TopicStats
    channel: ChannelStats | None
    to: int | None = None  # the offset of a seek
    keys: int | None = None  # the number of keys of `delayed.cancel`
    # How many messages the user has chosen, and which of them are unfinished.
    chosen: tuple[int, Sequence[int]] | None = None
    missing: str = ""  # says which parts of the topic are not counted

    @property
    def own(self) -> ChannelStats:
        """The row of the channel, for actions on channels."""
        assert self.channel is not None
        return self.channel


class ActionLoss(NamedTuple):
    what: str
    number: int
    kind: str = "messages"


SeekLoss = TypedDict("SeekLoss", {"from": int, "to": int, "again": int, "skipped": int})


class MoreLosses(TypedDict, total=False):
    """Additional fields of some actions' previews."""

    unfinished: list[str]
    seek: SeekLoss
    count: int


class LossReport(NamedTuple):
    losses: list[ActionLoss]
    says: list[str]
    more: MoreLosses


class Loss(TypedDict):
    what: str
    count: int


class SeenCounts(TypedDict):
    """The topic and the numbers that a user has seen before confirming an action.

    A dialog gets it with the preview, and sends it back with the action.
    """

    uuid: str
    counts: dict[str, int]


class Preview(MoreLosses):
    """The messages that an action would lose.

    `unknown` is True if not all messages are counted, because a channel is starting or has failed,
    or because a part of the topic does not answer.
    """

    action: str
    loses: list[Loss]
    says: list[str]
    harmless: bool
    unknown: bool
    seen: SeenCounts


_HELD: Final = (
    ("depth", "waiting"),
    ("in_flight_count", "in flight"),
    ("deferred_count", "deferred"),
    ("dying_count", "on their way to the dead letters"),
)


def preview(action: str, request: ActionRequest) -> Preview:
    """Return the preview of an action. Raises `ApiError` for an unknown action."""
    make = _ACTIONS.get(action)
    if make is None:
        raise bad(f"unknown action {action[:40]!r}; the actions are {', '.join(_ACTIONS)}")
    losses, says, more = make(request)
    losses = [loss for loss in losses if loss.number]
    rows = [request.channel] if request.channel is not None else request.topic["channels"]
    unknown = any(row["health"] in ("starting", "failed") for row in rows)
    if unknown:
        says = [*says, "A channel is starting or has failed. Its messages are not counted."]
    if request.missing:
        says = [*says, f"{request.missing}."]
    unknown = unknown or bool(request.missing)
    return {
        "action": action,
        "loses": [{"what": loss.what, "count": loss.number} for loss in losses],
        "says": says,
        "harmless": not losses and not request.missing,
        "unknown": unknown,
        "seen": _seen(request.topic, losses, more),
        **more,
    }


def _seen(topic: TopicStats, losses: Iterable[ActionLoss], more: MoreLosses) -> SeenCounts:
    """Return what the preview shows.

    Messages in all states count together, because consumers move them between states.
    """
    counts: Counter[str] = Counter()
    for loss in losses:
        counts[loss.kind] += loss.number
    if "seek" in more:
        counts["messages to deliver again"] = more["seek"]["again"]
    return {"uuid": topic["uuid"], "counts": dict(counts)}


# The part by which a number may grow after the user has seen it. Without it, a user could not
# confirm an action on a topic that gets messages all the time.
GROWTH_MAX: Final = 0.1


def change(seen: SeenCounts, now: SeenCounts) -> str:
    """Return how much more an action would affect than the user has seen, as a sentence, or ""."""
    if seen["uuid"] != now["uuid"]:
        return "the topic was deleted and created again after this dialog was opened"
    for kind, count in now["counts"].items():
        shown = seen["counts"].get(kind, 0)
        if count > shown * (1 + GROWTH_MAX):
            return f"the dialog showed {shown:,} {kind}, and now {count:,} are affected"
    return ""


def has_preview(action: str) -> bool:
    return action in _ACTIONS


def _held(row: ChannelStats) -> list[ActionLoss]:
    counts: Mapping[str, Any] = row
    return [ActionLoss(f"messages {state}", counts.get(name, 0)) for name, state in _HELD]


def _sentence(losses: list[ActionLoss], end: str) -> list[str]:
    texts = [f"{loss.number:,} {loss.what}" for loss in losses if loss.number]
    return [f"{', '.join(texts)} {end}"] if texts else []


def _people(rows: Iterable[ChannelStats], effect: str) -> list[str]:
    count = sum(row.get("client_count", 0) for row in rows)
    return [f"Connected consumers: {count:,}. {effect}."] if count else []


def _topic_delete(request: ActionRequest) -> LossReport:
    row = request.topic
    stored = row["kept_count"]
    left = remaining(row)
    losses = [
        ActionLoss("messages in the log", stored), ActionLoss("delayed messages", row.get("delayed_count", 0)),
        ActionLoss("channels", len(row["channels"]), "channels"),
        ActionLoss("uncommitted stages", row.get("stages", 0), "stages"),
    ]  # fmt: skip
    removed = (
        f"{stored:,} messages in {row['log_bytes']:,} bytes of log are removed and cannot be "
        "read any more."
    )
    says = [removed if stored else "The topic is empty."]
    says += [f"Unfinished: {'; '.join(left)}."] if left else []
    return LossReport(
        losses,
        says + _people(row["channels"], "They receive no more messages"),
        {"unfinished": left},
    )


def _topic_empty(request: ActionRequest) -> LossReport:
    losses, delayed = (
        [ActionLoss("messages waiting", request.topic["depth"])],
        _delayed(request, None),
    )
    where = "for the topic to be unpaused" if request.topic["channels"] else "for a first channel"
    says = _sentence(
        losses,
        (
            f"{where} will not go to any channel. They can be read by offset until retention "
            "removes them."
        ),
    )
    says += _sentence(delayed, "are cancelled.")
    return LossReport(
        [*losses, *delayed],
        says
        or [
            (
                "Nothing waits in the topic itself. To remove messages of its channels, empty the "
                "channels."
            )
        ],
        {},
    )


def _topic_pause(request: ActionRequest) -> LossReport:
    return LossReport(
        [],
        [
            (
                "Publishers can continue. Channels get no new messages until the topic is "
                "unpaused. Nothing is lost."
            )
        ],
        {},
    )


def _topic_close(request: ActionRequest) -> LossReport:
    says = [
        (
            "Publishers are refused from now on. Consumers continue and drain the topic. It can be "
            "opened again."
        )
    ]
    left = remaining(request.topic)
    return LossReport(
        [],
        says
        + ([f"Still to be drained: {'; '.join(left)}."] if left else ["It is already drained."]),
        {"unfinished": left},
    )


def _topic_close_consumers(request: ActionRequest) -> LossReport:
    left = remaining(request.topic)
    says = ["Publishers and consumers are refused from now on. It can be opened again."]
    says += [f"Not finished: {'; '.join(left)}. This stays in the topic."] if left else []
    return LossReport(
        [],
        says + _people(request.topic["channels"], "Their subscriptions end"),
        {"unfinished": left},
    )


def _channel_delete(request: ActionRequest) -> LossReport:
    losses = _held(request.own)
    says = _sentence(losses, "are not finished. They are removed with the channel.") or [
        "The channel has no unfinished messages."
    ]
    says.append(
        "Its settings and counters are removed too. The topic's log and its other channels do "
        "not change."
    )
    return LossReport(losses, says + _people([request.own], "They receive no more messages"), {})


def _channel_empty(request: ActionRequest) -> LossReport:
    held, delayed = _held(request.own), _delayed(request, request.own["channel_name"])
    says = _sentence(
        held, "will not be delivered to this channel (again). Other channels keep their messages."
    )
    says += _sentence(delayed, "are cancelled, because the topic has no other channel.")
    return LossReport([*held, *delayed], says or ["The channel has no unfinished messages."], {})


def _delayed(request: ActionRequest, channel: str | None) -> list[ActionLoss]:
    """Return the delayed messages that are cancelled with the messages of the topic or channel."""
    return [ActionLoss("delayed messages", cancelled_delayed([request.topic], channel))]


def _channel_pause(request: ActionRequest) -> LossReport:
    says = [
        (
            "Nothing is delivered until the channel is unpaused. Messages in flight can still be "
            "finished. Nothing is lost."
        )
    ]
    return LossReport([], says, {})


def _channel_seek(request: ActionRequest) -> LossReport:
    """Return the losses of a seek.

    Before the channel's position, only messages that the channel holds are unfinished. A seek
    clears them. It delivers them again only if they are at or after the new position.
    """
    row, start, head = request.own, request.topic["start"], request.topic["head"]
    if request.to is None:
        raise bad("to is missing; give to=OFFSET, earliest, latest or time:MS")
    if head < request.to < END:
        raise bad(
            f"offset {request.to:,} is beyond the end of the topic, offset {head:,}; to skip all "
            "waiting messages, take latest"
        )
    at, to = row.get("next_offset", 0), min(max(request.to, start), head)
    # The head may be behind offsets that never had a message, so the depth is the bound.
    again, skipped = max(0, at - to), min(max(0, to - at), row["depth"])
    requeued = max(0, row["depth"] - max(0, head - at))
    cleared = [*_held(row)[1:], ActionLoss("messages to be delivered again", requeued)]
    losses = [ActionLoss("messages skipped", skipped), *cleared]
    says = [f"From offset {at:,} to {to:,}."]
    says += [f"{skipped:,} messages are skipped for this channel."] if skipped else []
    says += [f"{again:,} messages are delivered again, including finished ones."] if again else []
    says += _sentence(
        cleared, "are taken back. Only those at or after the new offset are delivered again."
    )
    return LossReport(
        losses, says, {"seek": {"from": at, "to": to, "again": again, "skipped": skipped}}
    )


def _delayed_cancel(request: ActionRequest) -> LossReport:
    waiting = request.topic.get("delayed_count", 0)
    count = waiting if request.keys is None else min(request.keys, waiting)
    return LossReport(
        [ActionLoss("delayed messages", count)],
        [f"{count:,} delayed messages are removed and never delivered."],
        {},
    )


def _unfinished(request: ActionRequest) -> tuple[Sequence[int], list[str]]:
    """Return the chosen messages that are unfinished, and a sentence about the others."""
    if request.chosen is None:
        raise bad("offsets is missing; give offsets=N,N,...")
    count, offsets = request.chosen
    others = count - len(offsets)
    return offsets, [
        f"{others:,} of the chosen messages are finished already, or on their way to the dead "
        "letters. They stay as they are."
    ] if others else []


def _places(offsets: Sequence[int]) -> str:
    places = ", ".join(map(str, offsets[:OFFSETS_SHOWN]))
    return f"offset{'s' * (len(offsets) > 1)} {places}" + ", ..." * (len(offsets) > OFFSETS_SHOWN)


def _channel_skip(request: ActionRequest) -> LossReport:
    offsets, others = _unfinished(request)
    channel = request.own["channel_name"]
    losses = [ActionLoss(f"messages ({_places(offsets)})", len(offsets))]
    end = f"count as finished for channel {channel}, and are not delivered to it (again)."
    says = _sentence(losses, end)
    says += ["Other channels still get them."] if says else []
    return LossReport(losses, says + others, {})


def _redrive_discard(request: ActionRequest) -> LossReport:
    offsets, others = _unfinished(request)
    losses = [ActionLoss(f"dead letters ({_places(offsets)})", len(offsets))]
    says = _sentence(losses, "are finished here without being sent back.")
    says += ["They can be read by offset until retention removes them."] if says else []
    return LossReport(losses, says + others, {})


def _redrive(request: ActionRequest) -> LossReport:
    if request.chosen is not None:
        offsets, others = _unfinished(request)
        count = len(offsets)
        says = (
            [
                f"{count:,} dead letters ({_places(offsets)}) are sent back as new messages, each "
                "to the channel that it came from."
            ]
            if count
            else []
        )
        return LossReport([], says + others, {"count": count})
    row = request.topic
    channels = {channel["channel_name"]: channel for channel in row["channels"]}
    if REDRIVE in channels:
        count = sum(loss.number for loss in _held(channels[REDRIVE]))
    else:
        count = row["kept_count"]
    says = [
        (
            f"{count:,} dead letters are sent back as new messages, each to the channel that it "
            "came from."
        ),
        "Other channels of this topic keep them.",
    ]
    return LossReport(
        [], says if count else ["No dead letters wait to be sent back."], {"count": count}
    )


_ACTIONS: Final[dict[str, Callable[[ActionRequest], LossReport]]] = {
    "topic.delete": _topic_delete, "topic.empty": _topic_empty, "topic.pause": _topic_pause, "topic.close": _topic_close,
    "topic.close.consumers": _topic_close_consumers, "channel.delete": _channel_delete, "channel.empty": _channel_empty,
    "channel.pause": _channel_pause, "channel.seek": _channel_seek, "channel.skip": _channel_skip,
    "delayed.cancel": _delayed_cancel, "redrive": _redrive, "redrive.discard": _redrive_discard,
}  # fmt: skip
