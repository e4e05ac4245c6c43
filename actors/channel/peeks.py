"""Peeks into a channel. No I/O.

A peek shows the position of the channel and the messages behind its cursor. Deferred messages are
only in the state store, so each peek requests those that are due next. Changes made in the meantime
may not be visible yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, NotRequired, TypedDict

from ...transport.errors import E_LIMIT, Refused
from ...transport.units import NS_PER_MS
from ...transport.wire.protocol import Done, Due, Peek, Run
from ..primitives.ranges import ranges_of, take, touching
from ..settings import options
from .core import ChannelCore
from .deferred import Row
from .supply import Supply

ANY_NS = 1 << 62  # later than every due time


class _HeldRow(TypedDict):
    """A run of messages behind the cursor.

    Runs in flight have `consumer`, `held_ms` and `left_ms`. Runs that a consumer holds without a
    handler have `consumer` and `held_ms`. Deferred runs have `due_ns`. A message that others of its
    key wait for is a run of its own, and has their number as `blocks`. If the run has failed,
    `error` says why.
    """

    state: str
    offset: int
    count: int
    attempts: int
    consumer: NotRequired[str]
    held_ms: NotRequired[int]
    left_ms: NotRequired[int]
    due_ns: NotRequired[int]
    blocks: NotRequired[int]
    error: NotRequired[str]


class _Look(NamedTuple):
    order: int
    limit: int  # the most messages of each state
    data: dict[str, object]
    held: list[_HeldRow]
    blocking: Mapping[int, int]


class Peeks:
    """Peeks in progress, by the number of their request to the state store."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._looks: dict[int, _Look] = {}

    def begin(
        self, request: int, order: Peek, delivery: ChannelCore, now_ns: int, wall_ns: int
    ) -> Due:
        """Begin a peek and return the request to the state store.

        Raises `Refused` (E_LIMIT) if too many peeks are in progress.
        """
        if len(self._looks) >= options.FETCHES_MAX:
            raise Refused(
                E_LIMIT,
                (
                    f"the limit of {options.FETCHES_MAX} peeks at a channel at the same time is "
                    "reached; try again later"
                ),
            )
        supply = delivery.supply
        limit = min(max(order.limit, 1), options.PEEK_MAX)
        numbers = delivery.statistics(supply.next_offset)
        parked = numbers.get("parked_count", 0)
        counts = {
            "requeued": numbers["requeued_waiting"] - parked,
            "parked": parked,
            "in flight": numbers["in_flight_count"] - delivery.held_messages,
            "held": delivery.held_messages,
        }
        counts |= {"deferred": numbers["deferred_count"], "dying": numbers["dying_count"]}
        ends = {"start": order.start, "head": max(order.head, supply.next_offset)}
        facts = {
            "paused": delivery.paused,
            "settings": delivery.settings.as_dict(),
            "expires_s": supply.choice.endings.lifetime_s,
            "revoked": dict(supply.choice.endings.revoked),
            "wall_ns": wall_ns,
            "absent": supply.absent(),
        }
        data = {"next_offset": supply.next_offset, **ends, **facts, "counts": counts}
        out = [*delivery.out(now_ns)]
        begun: Iterator[_HeldRow] = (
            {
                **_held("in flight", run),
                "consumer": whose,
                "held_ms": held_ns // NS_PER_MS,
                "left_ms": max(0, left_ns) // NS_PER_MS,
            }
            for run, whose, held_ns, left_ns in out
            if left_ns is not None
        )
        waiting: Iterator[_HeldRow] = (
            {**_held("held", run), "consumer": whose, "held_ms": held_ns // NS_PER_MS}
            for run, whose, held_ns, left_ns in out
            if left_ns is None
        )
        blocking = supply.blocking(limit)
        held = [*_first(begun, limit, blocking), *_first(waiting, limit, blocking)]
        for state, runs in supply.shown().items():
            held += _first((_held(state, run) for run in runs), limit, blocking)
        for row in held:
            _say_error(row, supply)
        self._looks[request] = _Look(order.request, limit, data, held, blocking)
        # A deferred message that others wait for is shown, although it is due late.
        return Due(request, self._channel, ANY_NS, options.PEEK_MAX if blocking else limit)

    def answered(self, request: int, rows: Iterable[Row], delivery: ChannelCore) -> Done | None:
        """Return the reply to the peek, or None if this request does not belong to one."""
        look = self._looks.pop(request, None)
        if look is None:
            return None
        rows_shown = delivery.supply.deferred.shown(rows)
        deferred: Iterator[_HeldRow] = (
            {**_held("deferred", row[:3]), "due_ns": row[3]} for row in rows_shown
        )
        shown = [*_first(deferred, look.limit, look.blocking)]
        for row in shown:
            _say_error(row, delivery.supply)
        return Done(look.order, look.data | {"held": [*look.held, *shown]})

    def failed(self, request: int) -> int:
        """Return the number of the failed peek's order, or 0 if the request does not belong to a
        peek.
        """
        look = self._looks.pop(request, None)
        return 0 if look is None else look.order


def _held(state: str, run: Run) -> _HeldRow:
    return {"state": state, "offset": run[0], "count": run[1], "attempts": run[2]}


def _first(rows: Iterable[_HeldRow], limit: int, blocking: Mapping[int, int]) -> Iterator[_HeldRow]:
    """Yield the rows of the first `limit` messages, and of all that are `blocking`."""
    if not blocking:
        yield from _few(rows, limit)
        return
    ranges = ranges_of(blocking)
    others: list[_HeldRow] = []
    for row in rows:
        run = (row["offset"], row["count"], 0)
        inside, left, _ = take((run,), touching(ranges, run[0], run[0] + run[1]) or [(0, 0)])
        for first, count, _ in inside:
            for offset in range(first, first + count):
                yield {**row, "offset": offset, "count": 1, "blocks": blocking[offset]}
        for first, count, _ in left:
            others.append({**row, "offset": first, "count": count})
    yield from _few(others, limit)


def _few(rows: Iterable[_HeldRow], limit: int) -> Iterator[_HeldRow]:
    for row in rows:
        yield {**row, "count": min(row["count"], limit)}
        limit -= row["count"]
        if limit <= 0:
            return


def _say_error(row: _HeldRow, supply: Supply) -> None:
    if error := supply.failures.error_of(row["offset"], row["count"]):
        row["error"] = error
