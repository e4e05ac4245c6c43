"""Report about a cluster: the answers of its brokers, merged. Pure.

A broker may have several addresses: its own, those of its standbys, and earlier ones. Each address
is asked alone, so that the report says what is there:

| the answer at an address | its role |
|---|---|
| an overview of this broker | primary |
| an overview of this broker, but another one has taken over, or has a later epoch | fenced |
| an overview of a broker with another uuid | other |
| E_STANDBY | standby |
| E_FENCED | fenced |
| the client is not permitted to ask | refused |
| none in time | away |

A broker that was forgotten is not asked. Its role is "forgotten".

The role of a broker is the best role among its addresses, in the order of `ROLES`. What it holds is
taken from its primary only. A broker that does not answer as primary keeps its parts in the report,
without values.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from ...transport.errors import E_BAD_KEY, E_FENCED, E_FORBIDDEN, E_STANDBY
from ...transport.names import part_name, part_of
from ...transport.reports import BrokerStats
from ...transport.wire.answers import (
    ClusterAnswer,
    ClusterAuto,
    ClusterBroker,
    ClusterTopic,
    OverviewAnswer,
    places_of,
)

PRIMARY: Final = "primary"
STANDBY: Final = "standby"
FENCED: Final = "fenced"
REFUSED: Final = "refused"
OTHER: Final = "other"
AWAY: Final = "away"
FORGOTTEN: Final = "forgotten"
ROLES: Final = (PRIMARY, FENCED, STANDBY, REFUSED, OTHER, AWAY, FORGOTTEN)
_BY_CODE: Final = {
    E_STANDBY: STANDBY, E_FENCED: FENCED, E_FORBIDDEN: REFUSED, E_BAD_KEY: REFUSED,
}  # fmt: skip
LOST: Final = "lost"  # `shipping` of a broker after another one has taken over
NOT_OPEN: Final = "not open yet"


class PartSeen(NamedTuple):
    """A part as its broker reports it. `channels` has the unfinished messages of each channel.

    `kept` counts the messages from `start` to `head`, without offsets that a takeover skipped.
    `backlog` is that of the fullest channel, or what waits for a first one. `lag_s` is None if the
    answer did not contain it.
    """

    state: str
    health: str
    closed: str
    start: int
    head: int
    kept: int
    backlog: int
    lag_s: float | None
    channels: Mapping[str, int]
    log_bytes: int = 0


class Seen(NamedTuple):
    """A broker as it reports itself. `bucket` is empty if it has none, or does not show it.

    `free_bytes` of the disk is 0 if the answer did not contain it.
    """

    uuid: str
    health: str
    bucket: Mapping[str, Any]
    parts: Mapping[str, PartSeen]
    free_bytes: int = 0

    @property
    def epoch(self) -> int:
        return int(self.bucket.get("epoch", 0))

    def addresses(self, name: str) -> tuple[str, ...]:
        """Return the URLs in a field of the bucket, or () without the field."""
        return tuple(filter(None, str(self.bucket.get(name, "")).split(",")))


class Answer(NamedTuple):
    """The answer at one address, or the code and the text of the error. `url` is "" for the link
    by which the cluster was asked.
    """

    url: str
    seen: Seen | None = None
    code: str = ""
    why: str = ""


class PlaceRow(TypedDict):
    """An address of a broker. `epoch` is None if it does not say one."""

    url: str
    role: str
    epoch: int | None
    why: str


class BrokerRow(TypedDict):
    """A broker. Values that are not known are None. `parts` counts those of the directory.

    `handover` is the command that lets its standby take over, or "" without a standby.
    `draining` is how many parts it gives away at a time, or 0.
    """

    number: int
    uuid: str
    me: bool
    addresses: list[str]
    state: str
    role: str
    epoch: int | None
    health: str
    lag_s: float | None
    standbys: int | None
    parts: int
    draining: int
    gone: bool
    free_bytes: int | None
    why: str
    handover: str
    places: list[PlaceRow]


class PartRow(TypedDict):
    """A part. Values are None if its broker does not say them. `to` is the number of the broker to
    which it is being moved, or None.
    """

    part: int
    name: str
    broker: int
    state: str
    closed: bool
    to: int | None
    start: int | None
    head: int | None
    messages: int | None
    backlog: int | None
    lag_s: float | None
    log_bytes: int | None
    channels: dict[str, int]


class TopicRow(TypedDict):
    """A topic with parts, summed up over the `answered` parts whose broker says what they hold.

    `closed_count` is the number of closed parts. `backlog` is that of the fullest channel.
    """

    topic: str
    uuid: str
    parts: list[PartRow]
    answered: int
    closed_count: int
    messages: int
    backlog: int
    channels: dict[str, int]


class Report(TypedDict):
    """The cluster. `is_cluster` is False for a broker that belongs to none: it is alone in it.

    `auto`, `moving` and `planned` are those of `ClusterAnswer`.
    """

    is_cluster: bool
    brokers: list[BrokerRow]
    topics: list[TopicRow]
    directory: int
    trouble: str
    auto: ClusterAuto
    moving: int
    planned: int


# Answers of brokers


def seen_in_overview(overview: OverviewAnswer) -> Seen:
    """Return what a whole overview with `processes` says."""
    of_topics, of_channels = overview.get("topic_fields", ()), overview.get("channel_fields", ())
    parts = {}
    for name, (raw, channels) in overview["topics"].items():
        if part_of(name) is None:
            continue
        row = dict(zip(of_topics, raw, strict=True))
        depths = {}
        for channel, values in channels.items():
            figures = dict(zip(of_channels, values, strict=True))
            depths[channel] = int(figures["depth"] + figures["in_flight"] + figures["deferred"])
        parts[name] = PartSeen(
            str(row["state"]), str(row["health"]), str(row["closed"]), int(row["start"]),
            int(row["head"]), int(row["kept"]), int(row["backlog"]), None, depths,
            int(row.get("log_bytes", 0)),
        )  # fmt: skip
    broker = overview["broker"]
    bucket: Mapping[str, Any] = {**overview.get("bucket", {})}
    return Seen(broker["uuid"], broker["health"], bucket, parts)


def seen_in_stats(stats: BrokerStats) -> Seen:
    parts = {}
    for row in stats["topics"]:
        if part_of(row["topic_name"]) is None:
            continue
        depths = {
            channel["channel_name"]: channel["depth"]
            + channel["in_flight_count"]
            + channel["deferred_count"]
            for channel in row["channels"]
        }
        backlog = max(depths.values(), default=row["depth"])
        parts[row["topic_name"]] = PartSeen(
            "asleep" if row["asleep"] else "up", row["health"], row["closed"], row["start"],
            row["head"], row["kept_count"], backlog, row["ship_lag_s"], depths,
            row["log_bytes"],
        )  # fmt: skip
    bucket: Mapping[str, Any] = {**stats.get("bucket", {})}
    disk: Mapping[str, Any] = {**stats.get("disk", {})}
    free = int(disk.get("free_bytes", 0))
    return Seen(stats["uuid"], stats["health"], bucket, parts, free)


def alone(directory: ClusterAnswer, seen: Seen) -> ClusterAnswer:
    """Return the directory of a broker that belongs to no cluster, with the addresses at which the
    broker itself and its standbys are found.
    """
    (only,) = directory["brokers"]
    return {**directory, "brokers": [{**only, "addresses": seen.addresses("addresses")}]}


# Merging


def merge(directory: ClusterAnswer, answers: Mapping[int, Sequence[Answer]]) -> Report:
    """Return the report. `answers` are by the numbers of the brokers in the directory."""
    counts: dict[int, int] = {}
    for topic in directory["topics"]:
        for number in places_of(topic).values():
            counts[number] = counts.get(number, 0) + 1
    rows, seen = [], {}
    for broker in directory["brokers"]:
        number = broker["number"]
        row, seen[number] = broker_row(broker, answers.get(number, ()), counts.get(number, 0))
        rows.append(row)
    return {
        "is_cluster": directory["is_shared"],
        "brokers": rows,
        "topics": [topic_row(topic, seen) for topic in directory["topics"]],
        "directory": directory["directory"],
        "trouble": directory["trouble"],
        "auto": directory["auto"],
        "moving": directory["moving"],
        "planned": directory["planned"],
    }


def broker_row(
    broker: ClusterBroker, answers: Sequence[Answer], parts: int
) -> tuple[BrokerRow, Seen | None]:
    """Return the row of a broker, and what its primary says, if one answers."""
    newest = max(
        (seen.epoch for _, seen, *_ in answers if seen and seen.uuid == broker["uuid"]),
        default=0,
    )
    roles = [(role_of(answer, broker["uuid"], newest), answer) for answer in answers]
    unasked = (AWAY, Answer("", why="not asked"))
    if broker["gone"]:
        unasked = (FORGOTTEN, Answer("", why="its parts are at other brokers"))
    role, best = min(roles, key=lambda pair: ROLES.index(pair[0]), default=unasked)
    seen = best.seen if role == PRIMARY else None
    places = _places(roles, broker, seen)
    bucket = seen.bucket if seen is not None else {}
    whys = [answer.why for name, answer in roles if answer.why and name != STANDBY]
    row: BrokerRow = {
        "number": broker["number"],
        "uuid": broker["uuid"],
        "me": broker["me"],
        "addresses": list(broker["addresses"]),
        "state": "away" if seen is None else "up",
        "role": role,
        "epoch": best.seen.epoch if best.seen is not None and best.seen.bucket else None,
        "health": seen.health if seen is not None else "",
        "lag_s": bucket.get("lag_s"),
        "standbys": bucket.get("standbys"),
        "parts": parts,
        "draining": broker["draining"],
        "gone": broker["gone"],
        "free_bytes": seen.free_bytes or None if seen is not None else None,
        "why": "" if seen is not None else "; ".join(dict.fromkeys(whys)) or best.why,
        "handover": "",
        "places": places,
    }
    # Without the bucket, a standby cannot take over.
    if seen is not None and bucket.get("standbys") and not bucket.get("trouble"):
        urls = [place["url"] for place in places if place["role"] == PRIMARY]
        urls += [place["url"] for place in places if place["role"] == STANDBY]
        row["handover"] = handover_command([*urls, *seen.addresses("standby_addresses")])
    return row, seen


def role_of(answer: Answer, uuid: str, newest: int) -> str:
    """Return the role at an address. `newest` is the latest epoch of the broker with this uuid."""
    seen = answer.seen
    if seen is None:
        return _BY_CODE.get(answer.code, AWAY)
    if seen.uuid != uuid:
        return OTHER
    # An epoch of 0 is not known yet: the broker has just started.
    if seen.bucket.get("shipping") == LOST or 0 < seen.epoch < newest:
        return FENCED
    return PRIMARY


def handover_command(urls: Iterable[str]) -> str:
    """Return the command of docs/standby.md. It names all brokers, so that it can wait."""
    named = ",".join(dict.fromkeys(urls))
    return f"zsq handover --url {shlex.quote(named)}" if named else "zsq handover"


def _places(
    roles: Sequence[tuple[str, Answer]], broker: ClusterBroker, seen: Seen | None
) -> list[PlaceRow]:
    """Return the addresses with their roles: first those that answered, by role.

    The broker that was asked for the cluster says its own addresses, so they need no answer.
    """
    rows: dict[str, PlaceRow] = {}
    for role, answer in roles:
        if answer.url:
            epoch = answer.seen.epoch if answer.seen is not None and answer.seen.bucket else None
            rows[answer.url] = {"url": answer.url, "role": role, "epoch": epoch, "why": answer.why}
    if seen is not None:
        for url in seen.addresses("addresses"):
            rows.setdefault(url, {"url": url, "role": PRIMARY, "epoch": seen.epoch, "why": ""})
    return sorted(rows.values(), key=lambda row: ROLES.index(row["role"]))


def topic_row(topic: ClusterTopic, seen: Mapping[int, Seen | None]) -> TopicRow:
    """Return the row of a topic with a row for each of its parts."""
    parts: list[PartRow] = []
    channels: dict[str, int] = {}
    for part, broker in places_of(topic).items():
        name, of_broker = part_name(topic["topic"], part), seen.get(broker)
        seen_part = of_broker.parts.get(name) if of_broker is not None else None
        row: PartRow = {
            "part": part,
            "name": name,
            "broker": broker,
            "state": AWAY if of_broker is None else NOT_OPEN,
            "closed": part in topic["closed"],
            "to": topic["moves"].get(part),
            "start": None,
            "head": None,
            "messages": None,
            "backlog": None,
            "lag_s": None,
            "log_bytes": None,
            "channels": {},
        }
        if seen_part is not None:
            row["state"] = seen_part.state if seen_part.health == "OK" else seen_part.health
            row["closed"] = row["closed"] or bool(seen_part.closed)
            row["start"], row["head"] = seen_part.start, seen_part.head
            row["messages"], row["backlog"] = seen_part.kept, seen_part.backlog
            row["lag_s"], row["channels"] = seen_part.lag_s, dict(seen_part.channels)
            row["log_bytes"] = seen_part.log_bytes
            for channel, depth in seen_part.channels.items():
                channels[channel] = channels.get(channel, 0) + depth
        parts.append(row)
    known = [row for row in parts if row["messages"] is not None]
    unread = sum(row["backlog"] or 0 for row in known if not row["channels"])
    return {
        "topic": topic["topic"],
        "uuid": topic["uuid"],
        "parts": parts,
        "answered": len(known),
        "closed_count": sum(row["closed"] for row in parts),
        "messages": sum(row["messages"] or 0 for row in known),
        "backlog": max(channels.values(), default=0) + unread,
        "channels": dict(sorted(channels.items())),
    }
