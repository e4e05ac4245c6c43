"""Loads of a cluster: its brokers and parts, as a plan of moves needs them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....storage.cluster.balance import BrokerLoad, PartLoad, adopters
from ....storage.cluster.directory import NOBODY, Directory
from ....transport.names import part_name


class Seen(NamedTuple):
    """A broker that announces itself. `free`, `total`: bytes of its disk."""

    is_up: bool
    free: int
    total: int


AWAY = Seen(False, 0, 0)
Loads = tuple[list[BrokerLoad], list[PartLoad]]


def cluster_loads(
    directory: Directory,
    seen: Mapping[str, Seen] | None = None,
    sizes: Mapping[str, int] | None = None,
    fixed: Mapping[str, str] | None = None,
) -> Loads:
    """Return the brokers that were not forgotten, and all parts that were not removed.

    `seen` has the brokers by their uuids, and all are up without it. `sizes` are the bytes of the
    parts that are known, by the names of the parts. `fixed` has the parts that cannot move, and
    why.
    """
    brokers = []
    for row in directory.brokers:
        if row.gone:
            continue
        of_broker = Seen(True, 0, 0) if seen is None else seen.get(row.uuid, AWAY)
        brokers.append(BrokerLoad(row.number, row.takes_parts, bool(row.draining), *of_broker))
    parts = []
    for topic in directory.topics.values():
        for number, at in topic.places.items():
            hold, name = topic.hold(number), part_name(topic.topic, number)
            is_coming = hold.origin != NOBODY
            size, why = (sizes or {}).get(name, 0), (fixed or {}).get(name, "")
            parts.append(
                PartLoad(name, topic.topic, at, hold.to, hold.is_ready, is_coming, size, why)
            )
    return brokers, parts


def adopted_by(brokers: Sequence[BrokerLoad], parts: Sequence[PartLoad]) -> dict[str, int]:
    """Return which broker adopts each part of a forgotten one. All brokers find the same."""
    return adopters(brokers, parts)


def without_orphans(loads: Loads) -> Loads:
    """Return the loads without the parts of brokers that were forgotten."""
    brokers, parts = loads
    known = {broker.number for broker in brokers}
    return brokers, [part for part in parts if part.broker in known]
