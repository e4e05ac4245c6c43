"""What a channel shows to somebody who looks at it without taking part: where it is, and what is behind its cursor. Pure.

Deferred messages lie in the state store only, so each look asks it for the ones that are due next; what changes meanwhile may be
shown as it was a moment ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..transport.errors import E_LIMIT, Refused
from ..transport.protocol import Due, Order, Run
from . import options
from .deferred import Row
from .delivery import Delivery

ANY_NS = 1 << 62  # a due time that everything is before
_MS = 1_000_000


class _Look(NamedTuple):
    order: int
    limit: int  # messages of each state
    data: dict[str, Any]
    held: list[dict[str, Any]]


class Peeks:
    """Looks on their way, by the number of their question to the store."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._looks: dict[int, _Look] = {}

    def begin(self, request: int, order: Order, delivery: Delivery, now_ns: int, wall_ns: int) -> Due:
        """What the store is asked."""
        if len(self._looks) >= options.FETCHES_MAX:
            raise Refused(E_LIMIT, "several others are looking at this channel just now; try again")
        asked, supply = order.options, delivery.supply
        limit = min(max(int(asked["limit"]), 1), options.PEEK_MAX)
        numbers = delivery.statistics(supply.next_offset)
        parked = numbers.get("parked_count", 0)
        counts = {"requeued": numbers["requeued_waiting"] - parked, "parked": parked, "in flight": numbers["in_flight_count"]}
        counts |= {"deferred": numbers["deferred_count"], "dying": numbers["dying_count"]}
        ends = {"start": asked["start"], "head": max(asked["head"], supply.next_offset)}
        facts = {"paused": delivery.paused, "settings": delivery.settings.as_dict(), "wall_ns": wall_ns}
        data = {"next_offset": supply.next_offset, **ends, **facts, "counts": counts}
        out = (
            {"state": "in flight", **_run(run), "consumer": whose, "held_ms": held_ns // _MS, "left_ms": max(0, left_ns) // _MS}
            for run, whose, held_ns, left_ns in delivery.out(now_ns)
        )
        held = [*_first(out, limit)]
        for state, runs in supply.shown().items():
            held += _first(({"state": state, **_run(run)} for run in runs), limit)
        self._looks[request] = _Look(order.request, limit, data, held)
        return Due(request, self._channel, ANY_NS, limit)

    def answered(self, request: int, rows: Iterable[Row], delivery: Delivery) -> tuple[int, dict[str, Any]] | None:
        """(the order, its answer), if this was asked for a look."""
        look = self._looks.pop(request, None)
        if look is None:
            return None
        found = delivery.supply.deferred.shown(rows)
        deferred = ({"state": "deferred", **_run(row[:3]), "due_ns": row[3]} for row in found)
        return look.order, look.data | {"held": [*look.held, *_first(deferred, look.limit)]}

    def failed(self, request: int) -> int:
        """The order whose question had no answer; 0: it was not one of these."""
        look = self._looks.pop(request, None)
        return 0 if look is None else look.order


def _run(run: Run) -> dict[str, int]:
    return {"offset": run[0], "count": run[1], "attempts": run[2]}


def _first(rows: Iterable[dict[str, Any]], limit: int) -> Iterator[dict[str, Any]]:
    """Those with the first `limit` messages."""
    for row in rows:
        yield row | {"count": min(row["count"], limit)}
        limit -= row["count"]
        if limit <= 0:
            return
