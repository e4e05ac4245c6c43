"""What the broker looks like now, as the console is told it: rows by name, each field with the tick at which it changed. Pure.

It is fed with overviews (actors/statistics/overview.py), each a tick. Who watches asks for what changed since the tick that he has: one
who is slow skips ticks and misses nothing, and none of it is kept for him.

Rates are of the last second or so: by how much a counter grew between two pulses. (Those that actors measure are of the last minute: a
chart of them would come late.) A pulse says when it was; where none comes, nothing happens, and the rate is 0.

The board as one watcher may see it: whole, and what changed since a tick. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, cast

from .....transport.reports import AlarmReceiver
from .....transport.wire.answers import OverviewAlarms, OverviewAnswer, OverviewRow
from ....security.policy import Action, Principal

_MS: Final = 1_000_000
STILL_MS: Final = 2_000  # without a pulse, until what was a rate is none: actors to whom nobody says anything pulse seldom,
# and between two looks no more time than this is taken to have passed (or than has, where looks are rarer).
GONE_KEPT: Final = 1_000
UNKNOWN: Final = -1
Value = str | float | bool | None
Values = dict[str, Value]
"""A row as pages get it: its values by name, all of them or those that changed."""
TopicValues = dict[str, Value | dict[str, Values]]  # with the rows of its channels


class BoardBroker(TypedDict, total=False):
    """The broker, as much of it as the caller may see, and who the caller is."""

    version: str
    node: int
    uuid: str
    start_ms: int
    health: str
    disk_full: str
    alarms: int
    processes: int
    restarts: int
    user: str
    may: dict[str, bool]


class Gone(TypedDict):
    """Topics that are gone, and channels (each with its topic)."""

    topics: list[str]
    channels: list[list[str]]


class Changes(TypedDict):
    """Rows of topics by name: with `may` if they are new, and with the rows of their channels if those are wanted."""

    now_ms: int
    topics: dict[str, TopicValues]
    broker: NotRequired[BoardBroker]
    gone: NotRequired[Gone]
    whole: NotRequired[bool]


class ShownAlarms(TypedDict):
    """Alarms with times in ms."""

    now: list[Mapping[str, object]]
    recent: list[Mapping[str, object]]
    receivers: Sequence[AlarmReceiver]


Convert = Callable[[Any], Any]


def _oldest(time_ns: int) -> int | None:
    """0 for nothing, None where it is not known."""
    return None if time_ns == UNKNOWN else time_ns // _MS


def _latency(ns: int) -> float | None:
    return round(ns / _MS, 3 if ns < 10 * _MS else 1) if ns else None


def _known(number: float) -> float | None:
    return None if number == UNKNOWN else number


# Fields of the overview that are told under another name, or as something else; those without a name here are not told.
_OTHERWISE: Final[dict[str, tuple[str, Convert] | None]] = {
    "oldest_ns": ("oldest_ms", _oldest), "delayed_next_due_ns": ("delayed_next_ms", lambda ns: ns // _MS), "drain_s": ("drain_s", _known),
    "p50_ns": ("p50_ms", _latency), "p95_ns": ("p95_ms", _latency), "p99_ns": ("p99_ms", _latency),
    "pulsed_ms": None, "in_rate": None, "in_bytes_rate": None, "out_rate": None,
}  # fmt: skip
TOPIC_RATES: Final = {"in": "messages", "in_bytes": "bytes"}  # rate -> counter
CHANNEL_RATES: Final = {"out": "finished", "requeues": "requeued", "timeouts": "timed_out"}
SUMS: Final = ("consumers", "in_flight", "deferred", "out", "dead")  # of a topic's channels


class Fields:
    """What the numbers of a row are, by their places."""

    def __init__(self, names: tuple[str, ...], rates: Mapping[str, str]) -> None:
        self.told = [_OTHERWISE.get(name, (name, None)) for name in names]
        self.counters = [names.index(counter) for counter in rates.values()] if names else []
        self.pulsed = names.index("pulsed_ms") if names else 0
        self.rates = tuple(rates)


class Row:
    """A topic's or a channel's values, and when each changed last."""

    __slots__ = ("_rates", "_raw", "_seen_ms", "born", "changed", "channels", "ticks", "values")

    def __init__(self, tick: int, rates: Iterable[str]) -> None:
        self._rates = tuple(rates)
        self._raw: Sequence[Any] = ()
        self._seen_ms = 0
        self.born = self.changed = tick
        self.values: dict[str, Any] = dict.fromkeys(self._rates, 0.0)
        self.ticks: dict[str, int] = dict.fromkeys(self._rates, tick)
        self.channels: dict[str, Row] = {}

    def set(self, name: str, value: Any, tick: int) -> None:
        if self.values.get(name, self) != value:
            self.values[name], self.ticks[name], self.changed = value, tick, tick

    def take(self, raw: Sequence[Any], fields: Fields, tick: int, now_ms: int, looked_ms: int) -> None:
        """`looked_ms`: when it was looked before, by the clock of `now_ms`."""
        before, self._raw = self._raw, raw
        told = fields.told
        for at in [at for at, value in enumerate(raw) if value != before[at]] if before else range(len(raw)):
            if (one := told[at]) is not None:
                name, convert = one
                self.set(name, raw[at] if convert is None else convert(raw[at]), tick)
        if before and (elapsed_ms := raw[fields.pulsed] - before[fields.pulsed]):
            self._seen_ms = now_ms
            elapsed_ms = min(elapsed_ms, max(STILL_MS, now_ms - looked_ms))
            if elapsed_ms > 0:
                for name, at in zip(fields.rates, fields.counters, strict=True):
                    self.set(name, _short(max(0.0, raw[at] - before[at]) / elapsed_ms * 1000), tick)

    def still(self, tick: int, now_ms: int) -> bool:
        """Whether it moves no more."""
        if now_ms - self._seen_ms >= STILL_MS:
            for name in self._rates:
                self.set(name, 0.0, tick)
        return not self.moves

    @property
    def moves(self) -> bool:
        values = self.values
        return any(values[name] for name in self._rates)

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
        self.broker: dict[str, Any] = {}  # a `BrokerSummary`
        self.broker_tick = 0
        self._of_topics, self._of_channels = Fields((), TOPIC_RATES), Fields((), CHANNEL_RATES)
        self._moving: set[Row] = set()
        self._gone: deque[tuple[int, str, str]] = deque(maxlen=GONE_KEPT)

    def take(self, found: OverviewAnswer, now_ms: int, steady_ms: int) -> list[tuple[str, str, Row]]:
        """An overview, and the time, by two clocks. Returns what is new: (topic, channel or "", its row)."""
        self.tick += 1
        self.version, self.now_ms = found["version"], now_ms
        self._looked_ms, self._steady_ms = self._steady_ms, steady_ms
        if found["whole"]:
            self._of_topics = Fields(tuple(found.get("topic_fields", ())), TOPIC_RATES)
            self._of_channels = Fields(tuple(found.get("channel_fields", ())), CHANNEL_RATES)
            self._forget(found["topics"])
        if found["broker"] != self.broker:
            self.broker, self.broker_tick = dict(found["broker"]), self.tick
        told: list[tuple[str, str, Row]] = []
        for name, (raw, channels) in found["topics"].items():
            topic = self.topics.get(name) or self.topics.setdefault(name, Row(self.tick, TOPIC_RATES))
            for channel, values in channels.items():
                own = topic.channels.get(channel) or topic.channels.setdefault(channel, Row(self.tick, CHANNEL_RATES))
                self._take(own, values, self._of_channels)
                told.append((name, channel, own))
            if raw:
                self._take(topic, raw, self._of_topics)
            told.append((name, "", topic))
        told += self._grow_still()
        for _, channel, row in told:
            if not channel:
                self._sum(row)
        return told

    def _take(self, row: Row, raw: Sequence[Any], fields: Fields) -> None:
        row.take(raw, fields, self.tick, self._steady_ms, self._looked_ms)
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
        values = [one.values for one in row.channels.values()]
        for name in SUMS:
            row.set(name, _short(sum([one[name] for one in values])), self.tick)
        row.set("channel_count", len(values), self.tick)

    def _forget(self, topics: Mapping[str, tuple[OverviewRow, Mapping[str, OverviewRow]]]) -> None:
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

    def rows(self, principal: Principal, only: str = "") -> Iterator[tuple[str, Row]]:
        names = (only,) if only else sorted(self.topics)
        return ((name, self.topics[name]) for name in names if name in self.topics and principal.may(Action.SEE, name))


def _without_ns(row: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out what JavaScript's numbers do not hold."""
    return {name: value for name, value in row.items() if not name.endswith("_ns")}


def _short(number: float) -> float:
    return round(number, 1 if number >= 10 else 3)


class BoardView(NamedTuple):
    """`topic`: only this one, "" for all; `channels`: the rows of channels too."""

    principal: Principal
    topic: str = ""
    channels: bool = False

    def whole(self, board: Board) -> Changes:
        return {**self._since(board, -1), "broker": self._broker(board)}

    def changes(self, board: Board, tick: int) -> Changes | None:
        """What is different from what it was at that tick; None for nothing. The whole again, where that is not known any more."""
        if not board.knows_since(tick):
            return {**self.whole(board), "whole": True}
        found = self._since(board, tick)
        if board.broker_tick > tick:
            found["broker"] = self._broker(board)
        gone = self._gone(board, tick)
        if any(gone.values()):
            found["gone"] = gone
        return found if found.keys() - {"now_ms", "topics"} or found["topics"] else None

    def alarms(self, found: OverviewAlarms) -> ShownAlarms:
        """`found` as the overview has it: now, recent, receivers."""
        see = partial(self.principal.may, Action.SEE)
        return {
            "now": [_without_ns({**row, "raised_ms": row["raised_ns"] // _MS}) for row in found["now"] if see(row["topic"])],
            "recent": [_without_ns({**row, "time_ms": row["time_ns"] // _MS}) for row in found["recent"] if see(row["topic"])],
            "receivers": list(found["receivers"]) if self.principal.may(Action.ADMINISTER) else [],
        }

    def _since(self, board: Board, tick: int) -> Changes:
        topics: dict[str, TopicValues] = {}
        for name, row in board.rows(self.principal, self.topic):
            told: TopicValues = {**row.since(tick)} if row.changed > tick else {}
            if row.born > tick:
                told["may"] = self._may(name)
            if self.channels:
                channels = {channel: self._channel(name, channel, own, tick) for channel, own in row.channels.items() if own.changed > tick}
                if channels or tick < 0:
                    told["channels"] = channels
            if told:
                topics[name] = told
        return {"now_ms": board.now_ms, "topics": topics}

    def _channel(self, topic: str, name: str, row: Row, tick: int) -> Values:
        told = row.since(tick)
        if row.born > tick:
            may = self.principal.may
            told["may"] = ("a" if may(Action.MANAGE_CHANNEL, topic, name) else "") + ("s" if may(Action.CONSUME, topic, name) else "")
        return told

    def _may(self, topic: str) -> str:
        letters = {"a": Action.MANAGE_TOPIC, "s": Action.READ, "p": Action.PUBLISH}
        return "".join(letter for letter, action in letters.items() if self.principal.may(action, topic))

    def _broker(self, board: Board) -> BoardBroker:
        told = {name: value for name, value in board.broker.items() if name != "alarmed_ns"}
        sees_all = self.principal.may(Action.SEE_ALL)
        if not sees_all:
            told = {name: value for name, value in told.items() if name in ("version", "node", "uuid", "start_ms")}
            told["health"] = "OK" if board.broker["health"] == "OK" else "a topic is not well"
        told |= {"user": self.principal.name, "may": {"admin": self.principal.may(Action.ADMINISTER), "all": sees_all}}
        return cast("BoardBroker", told)

    def _gone(self, board: Board, tick: int) -> Gone:
        topics: list[str] = []
        channels: list[list[str]] = []
        for topic, channel in board.gone_since(tick):
            row = board.topics.get(topic)
            if self.topic not in ("", topic) or not self.principal.may(Action.SEE, topic):
                continue
            if not channel and (row is None or row.born > tick):
                topics.append(topic)
            elif channel and row is not None and self.channels:
                own = row.channels.get(channel)
                if own is None or own.born > tick:
                    channels.append([topic, channel])
        return {"topics": topics, "channels": channels}
