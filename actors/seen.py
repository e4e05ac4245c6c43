"""What of the broker's statistics may be seen: answers with only the rows of topics that somebody may view. Pure.

Who may see every topic does not see by that what is the broker's own: the rows of processes, and who is told of alarms (a webhook's
address may be a secret). Answers are told apart by their form, so that a gateway need not remember what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

UNWELL: Final = "a topic is not well; who may view it is told which"
_OF_PROCESSES: Final = ("kind", "state", "private_bytes", "restarts")  # what sums are made of


class Sight(Protocol):
    @property
    def is_broker_admin(self) -> bool: ...

    @property
    def sees_all(self) -> bool: ...

    def may_view(self, topic: str) -> bool: ...


def seen(data: Mapping[str, Any], sight: Sight) -> dict[str, Any]:
    """The answer to Stats, or to Manage's `list` and `overview`; others, which have no `topics`, as they are."""
    found = dict(data)
    if sight.is_broker_admin or "topics" not in data:
        return found
    if "processes" in found:
        found["processes"] = [{name: row[name] for name in _OF_PROCESSES if name in row} for row in found["processes"]]
    if "alarm_receivers" in found:
        found["alarm_receivers"] = []
    if isinstance(alarms := found.get("alarms"), Mapping):  # of an overview
        found["alarms"] = {which: [] if which == "receivers" else _of_topics(rows, sight) for which, rows in alarms.items()}
    if sight.sees_all:
        return found
    topics = data["topics"]
    if isinstance(topics, Mapping):
        found["topics"] = {name: row for name, row in topics.items() if sight.may_view(name)}
    else:
        found["topics"] = [row for row in topics if sight.may_view(row["topic_name"])]
    for which in ("alarms", "recent_alarms"):
        if isinstance(rows := found.get(which), list | tuple):
            found[which] = _of_topics(rows, sight)
    if "producers" in found:
        found["producers"] = _producers(found["producers"], sight)
    if found.get("health", "OK") != "OK":
        found["health"] = UNWELL
    if isinstance(broker := found.get("broker"), Mapping):
        found["broker"] = {**broker, "alarms": 0, **({} if broker.get("health", "OK") == "OK" else {"health": UNWELL})}
    return found


def _of_topics(rows: Any, sight: Sight) -> list[Any]:
    return [row for row in rows if sight.may_view(row["topic"])]


def _producers(rows: Any, sight: Sight) -> list[Any]:
    found = []
    for row in rows:
        counts = [one for one in row.get("pub_counts", ()) if sight.may_view(one["topic"])]
        if counts:
            found.append({**row, "pub_counts": counts})
    return found
