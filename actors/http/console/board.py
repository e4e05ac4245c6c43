"""What the broker looks like now, as the console is told it: rows by name, each field with the tick at which it changed. Pure.

It is fed with overviews (actors/overview.py), each a tick. Who watches asks for what changed since the tick that he has: one who is slow
skips ticks and misses nothing, and none of it is kept for him.

Rates are of the last second or so: by how much a counter grew between two pulses. (Those that actors measure are of the last minute: a
chart of them would come late.) A pulse says when it was; where none comes, nothing happens, and the rate is 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

_MS: Final = 1_000_000
STILL_MS: Final = 2_000  # without a pulse, until what was a rate is none: actors to whom nobody says anything pulse seldom,
# and between two looks no more time than this is taken to have passed (or than has, where looks are rarer).
GONE_KEPT: Final = 1_000
UNKNOWN: Final = -1
Values = dict[str, Any]

TOPIC_NAMES: Final = {
    "state": "state", "health": "health", "sync": "sync", "closed": "closed", "paused": "paused", "start": "start", "head": "head",
    "messages": "messages", "bytes": "bytes", "waiting": "waiting", "backlog": "backlog", "log_bytes": "log_bytes", "chunks": "chunks",
    "delayed": "delayed", "delayed_bytes": "delayed_bytes", "lost": "lost", "damaged": "damaged", "dropped": "dropped",
    "refused": "refused", "stages": "stages", "staged_bytes": "staged_bytes", "restarts": "restarts",
}  # fmt: skip
CHANNEL_NAMES: Final = {
    "health": "health", "paused": "paused", "depth": "depth", "in_flight": "in_flight", "deferred": "deferred", "dying": "dying",
    "next_offset": "next_offset", "consumers": "consumers", "came": "came", "delivered": "delivered", "finished": "finished",
    "requeued": "requeued", "timed_out": "timed_out", "dead": "dead", "expired": "expired", "passed_over": "passed_over",
    "dropped": "dropped", "lost": "lost",
}  # fmt: skip
TOPIC_RATES: Final = {"in": "messages", "in_bytes": "bytes"}  # rate -> counter
CHANNEL_RATES: Final = {"out": "finished", "requeues": "requeued", "timeouts": "timed_out"}
SUMS: Final = ("consumers", "in_flight", "deferred", "out", "dead")  # of a topic's channels


class Row:
    """A topic's or a channel's values, and when each changed last."""

    __slots__ = ("_counters", "_pulsed_ms", "_rates", "_seen_ms", "born", "changed", "channels", "ticks", "values")

    def __init__(self, tick: int, rates: Mapping[str, str]) -> None:
        self._rates = rates
        self._counters: tuple[float, ...] | None = None
        self._pulsed_ms = 0
        self._seen_ms = 0
        self.born = self.changed = tick
        self.values: Values = dict.fromkeys(rates, 0.0)
        self.ticks: dict[str, int] = dict.fromkeys(rates, tick)
        self.channels: dict[str, Row] = {}

    def set(self, values: Mapping[str, Any], tick: int) -> None:
        own, ticks = self.values, self.ticks
        for name, value in values.items():
            if name not in own or own[name] != value:
                own[name], ticks[name], self.changed = value, tick, tick

    def pulsed(self, counters: tuple[float, ...], pulsed_ms: int, tick: int, now_ms: int, looked_ms: int) -> None:
        """`counters` in the order of the rates; `looked_ms`: when it was looked before, by the clock of `now_ms`."""
        if pulsed_ms == self._pulsed_ms:
            return
        elapsed_ms = min(pulsed_ms - self._pulsed_ms, max(STILL_MS, now_ms - looked_ms))
        before, self._counters, self._pulsed_ms, self._seen_ms = self._counters, counters, pulsed_ms, now_ms
        if before is None or elapsed_ms <= 0:
            return  # the first one says nothing of speed
        grown = [max(0.0, now - then) / elapsed_ms * 1000 for now, then in zip(counters, before, strict=True)]
        self.set({name: _short(rate) for name, rate in zip(self._rates, grown, strict=True)}, tick)

    def still(self, tick: int, now_ms: int) -> bool:
        """Whether it moves no more."""
        if now_ms - self._seen_ms >= STILL_MS:
            self.set(dict.fromkeys(self._rates, 0.0), tick)
        return not self.moves

    @property
    def moves(self) -> bool:
        return any(self.values[name] for name in self._rates)

    def since(self, tick: int) -> Values:
        """What changed after that tick; all of it, if it was not there then."""
        if self.born > tick:
            return dict(self.values)
        return {name: self.values[name] for name, at in self.ticks.items() if at > tick}


class Board:
    def __init__(self) -> None:
        self.tick = 0
        self.version = 0  # of the last overview
        self.now_ms = 0
        self._steady_ms = 0
        self._looked_ms = 0
        self.topics: dict[str, Row] = {}
        self.broker: Values = {}
        self.broker_tick = 0
        self._fields: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._moving: set[Row] = set()
        self._gone: deque[tuple[int, str, str]] = deque(maxlen=GONE_KEPT)

    def take(self, found: Mapping[str, Any], now_ms: int, steady_ms: int) -> Iterable[tuple[str, str, Row]]:
        """An overview, and the time, by two clocks. Returns what is new: (topic, channel or "", its row)."""
        self.tick += 1
        self.version, self.now_ms = found["version"], now_ms
        self._looked_ms, self._steady_ms = self._steady_ms, steady_ms
        if found["whole"]:
            self._fields = tuple(found["topic_fields"]), tuple(found["channel_fields"])
            self._forget(found["topics"])
        if found["broker"] != self.broker:
            self.broker, self.broker_tick = dict(found["broker"]), self.tick
        told: list[tuple[str, str, Row]] = []
        for name, (row, channels) in found["topics"].items():
            topic = self.topics.get(name) or self.topics.setdefault(name, Row(self.tick, TOPIC_RATES))
            for channel, values in channels.items():
                own = topic.channels.get(channel) or topic.channels.setdefault(channel, Row(self.tick, CHANNEL_RATES))
                self._channel(own, dict(zip(self._fields[1], values, strict=True)))
                told.append((name, channel, own))
            if row:
                self._topic(topic, dict(zip(self._fields[0], row, strict=True)))
            told.append((name, "", topic))
        told += self._grow_still()
        for _, channel, row in told:
            if not channel:
                self._sum(row)
        return told

    def _topic(self, row: Row, told: Values) -> None:
        values = {name: told[field] for name, field in TOPIC_NAMES.items()}
        values |= {"oldest_ms": _oldest(told["oldest_ns"]), "delayed_next_ms": told["delayed_next_due_ns"] // _MS}
        row.set(values, self.tick)
        self._pulsed(row, (told["messages"], told["bytes"]), told["pulsed_ms"])

    def _channel(self, row: Row, told: Values) -> None:
        values = {name: told[field] for name, field in CHANNEL_NAMES.items()}
        values |= {"oldest_ms": _oldest(told["oldest_ns"]), "drain_s": None if told["drain_s"] == UNKNOWN else told["drain_s"]}
        values |= {f"{one}_ms": _latency(told[f"{one}_ns"]) for one in ("p50", "p95", "p99")}
        row.set(values, self.tick)
        self._pulsed(row, (told["finished"], told["requeued"], told["timed_out"]), told["pulsed_ms"])

    def _pulsed(self, row: Row, counters: tuple[float, ...], pulsed_ms: int) -> None:
        row.pulsed(counters, pulsed_ms, self.tick, self._steady_ms, self._looked_ms)
        if row.moves:
            self._moving.add(row)

    def _grow_still(self) -> Iterator[tuple[str, str, Row]]:
        """Rows of which nobody has spoken for a while."""
        still = {row for row in self._moving if row.still(self.tick, self._steady_ms)}
        self._moving -= still
        if still:
            for name, topic in self.topics.items():
                changed = [(name, channel, row) for channel, row in topic.channels.items() if row in still]
                yield from changed
                if changed or topic in still:
                    yield name, "", topic

    def _sum(self, row: Row) -> None:
        sums = {name: _short(sum(one.values.get(name) or 0 for one in row.channels.values())) for name in SUMS}
        row.set(sums | {"channel_count": len(row.channels)}, self.tick)

    def _forget(self, topics: Mapping[str, Any]) -> None:
        """What is not there any more."""
        for name in [name for name in self.topics if name not in topics]:
            self._moving -= {self.topics[name], *self.topics[name].channels.values()}
            del self.topics[name]
            self._gone.append((self.tick, name, ""))
        for name, row in self.topics.items():
            for channel in [channel for channel in row.channels if channel not in topics[name][1]]:
                self._moving.discard(row.channels.pop(channel))
                self._gone.append((self.tick, name, channel))

    # What watchers are told

    def knows_since(self, tick: int) -> bool:
        """Whether it still knows all that went after that tick."""
        return len(self._gone) < GONE_KEPT or self._gone[0][0] <= tick

    def gone_since(self, tick: int) -> Iterator[tuple[str, str]]:
        """(topic, channel or ""); some of them may be there again."""
        return ((topic, channel) for at, topic, channel in self._gone if at > tick)

    def rows(self, see: Callable[[str], bool], only: str = "") -> Iterator[tuple[str, Row]]:
        names = (only,) if only else sorted(self.topics)
        return ((name, self.topics[name]) for name in names if name in self.topics and see(name))


def _short(number: float) -> float:
    return round(number, 1 if number >= 10 else 3)


def _oldest(time_ns: int) -> int | None:
    """0 for nothing, None where it is not known."""
    return None if time_ns == UNKNOWN else time_ns // _MS


def _latency(ns: int) -> float | None:
    return round(ns / _MS, 3 if ns < 10 * _MS else 1) if ns else None
