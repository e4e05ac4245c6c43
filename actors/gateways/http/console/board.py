"""Board of the console: the current state of the broker, and the views that watchers get of it.

The board has rows by name, and each value has the tick at which it last changed. Each overview
(actors/statistics/overview.py) is one tick. A watcher requests the changes since its last tick. So
a slow watcher can skip ticks without a loss, and nothing is stored for it. `BoardView` shows only
what its principal may see.

Rates are for about the last second: the growth of a counter between two pulses of an actor. (The
rates that actors measure are for the last minute, so a chart of them would lag.) Each pulse has a
time. If an actor has sent no pulse for STILL_MS, its rates become 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, cast

from .....transport.reports import AlarmReceiver, RaisedAlarm
from .....transport.units import NS_PER_MS
from .....transport.wire.actions import Action
from .....transport.wire.answers import OverviewAlarms, OverviewAnswer, OverviewRow
from ....security.policy import Principal

# After this time without a pulse, a rate becomes 0, because idle actors send pulses rarely. If two
# pulses are further apart, their rate is computed for this time only, or for the time between two
# overviews if that is longer.
STILL_MS: Final = 2_000
GONE_KEPT: Final = 1_000
UNKNOWN: Final = -1
Value = str | float | bool | None
Values = dict[str, Value]
"""A row as pages get it: all its values by name, or those that changed."""
# The topic's values, and the rows of its channels.
TopicValues = dict[str, Value | dict[str, Values]]


class BoardBroker(TypedDict, total=False):
    """The broker's values that the caller may see, and the caller's name and permissions."""

    version: str
    node: int
    uuid: str
    start_ms: int
    health: str
    disk_full: str
    alarms: int
    processes: int
    restarts: int
    clustered: bool
    user: str
    may: dict[str, bool]


class GoneRows(TypedDict):
    """Deleted topics, and deleted channels as [topic, channel]."""

    topics: list[str]
    channels: list[list[str]]


class BoardChanges(TypedDict):
    """The rows of topics by name, and other changes.

    New rows have `may`. Rows have their channels if the watcher wants them.
    """

    now_ms: int
    topics: dict[str, TopicValues]
    broker: NotRequired[BoardBroker]
    gone: NotRequired[GoneRows]
    whole: NotRequired[bool]


class ShownReceivers(TypedDict, total=False):
    """The receivers of alarms. Users who may not see them do not get the field."""

    receivers: Sequence[AlarmReceiver]


class ConsoleAlarms(ShownReceivers):
    """Alarms with times in ms."""

    now: list[Mapping[str, object]]
    recent: list[Mapping[str, object]]


Convert = Callable[[Any], Any]


def _oldest(time_ns: int) -> int | None:
    """Return a time in ms, 0 if no message waits, or None if it is not known."""
    return None if time_ns == UNKNOWN else time_ns // NS_PER_MS


def _latency(ns: int) -> float | None:
    return round(ns / NS_PER_MS, 3 if ns < 10 * NS_PER_MS else 1) if ns else None


def _known(number: float) -> float | None:
    return None if number == UNKNOWN else number


# Fields of the overview that are renamed or converted for pages. Fields with None are left out.
_OTHERWISE: Final[dict[str, tuple[str, Convert] | None]] = {
    "oldest_ns": ("oldest_ms", _oldest), "delayed_next_due_ns": ("delayed_next_ms", lambda ns: ns // NS_PER_MS),
    "drain_s": ("drain_s", _known),
    "dead_letters": ("dead_letters", _known),
    "p50_ns": ("p50_ms", _latency), "p95_ns": ("p95_ms", _latency), "p99_ns": ("p99_ms", _latency),
    "pulsed_ms": None, "in_rate": None, "in_bytes_rate": None, "out_rate": None,
}  # fmt: skip
# The counter from which each rate is computed.
TOPIC_RATES: Final = {"in": "messages", "in_bytes": "bytes"}
CHANNEL_RATES: Final = {"out": "finished", "requeues": "requeued", "timeouts": "timed_out"}
# A topic's row has the sums of these over its channels.
SUMS: Final = ("consumers", "in_flight", "deferred", "out", "dead")


class Fields:
    """The meaning of the values in an overview's row, by position."""

    def __init__(self, names: tuple[str, ...], rates: Mapping[str, str]) -> None:
        self.told = [_OTHERWISE.get(name, (name, None)) for name in names]
        self.counters = [names.index(counter) for counter in rates.values()] if names else []
        self.pulsed = names.index("pulsed_ms") if names else 0
        self.rates = tuple(rates)


class BoardRow:
    """The values of a topic or channel, with the tick at which each last changed."""

    __slots__ = ("_rates", "_raw", "_seen_ms", "born", "changed", "channels", "ticks", "values")

    def __init__(self, tick: int, rates: Iterable[str]) -> None:
        self._rates = tuple(rates)
        self._raw: Sequence[Any] = ()
        self._seen_ms = 0
        self.born = self.changed = tick
        self.values: dict[str, Any] = dict.fromkeys(self._rates, 0.0)
        self.ticks: dict[str, int] = dict.fromkeys(self._rates, tick)
        self.channels: dict[str, BoardRow] = {}

    def set(self, name: str, value: Any, tick: int) -> None:
        if self.values.get(name, self) != value:
            self.values[name], self.ticks[name], self.changed = value, tick, tick

    def take(
        self, raw: Sequence[Any], fields: Fields, tick: int, now_ms: int, looked_ms: int
    ) -> None:
        """Take a row of an overview. `looked_ms` is the time of the previous overview."""
        before, self._raw = self._raw, raw
        columns = fields.told
        for at in (
            [at for at, value in enumerate(raw) if value != before[at]]
            if before
            else range(len(raw))
        ):
            if (column := columns[at]) is not None:
                name, convert = column
                self.set(name, raw[at] if convert is None else convert(raw[at]), tick)
        if before and (elapsed_ms := raw[fields.pulsed] - before[fields.pulsed]):
            self._seen_ms = now_ms
            elapsed_ms = min(elapsed_ms, max(STILL_MS, now_ms - looked_ms))
            if elapsed_ms > 0:
                for name, at in zip(fields.rates, fields.counters, strict=True):
                    self.set(name, _short(max(0.0, raw[at] - before[at]) / elapsed_ms * 1000), tick)

    def still(self, tick: int, now_ms: int) -> bool:
        """Set the rates to 0 after STILL_MS without a pulse. Return True if all rates are 0."""
        if now_ms - self._seen_ms >= STILL_MS:
            for name in self._rates:
                self.set(name, 0.0, tick)
        return not self.moves

    @property
    def moves(self) -> bool:
        values = self.values
        return any(values[name] for name in self._rates)

    def since(self, tick: int) -> Values:
        """Return the values that changed after `tick`, or all values if the row is newer."""
        if self.born > tick:
            return dict(self.values)
        return {name: self.values[name] for name, at in self.ticks.items() if at > tick}


class Board:
    def __init__(self) -> None:
        self.tick = 0
        self.version = 0  # the version of the last overview
        self.now_ms = 0
        self._steady_ms = 0
        self._looked_ms = 0
        self.topics: dict[str, BoardRow] = {}
        self.broker: dict[str, Any] = {}  # the values of a `BrokerSummary`
        self.broker_tick = 0
        self._of_topics, self._of_channels = Fields((), TOPIC_RATES), Fields((), CHANNEL_RATES)
        self._moving: set[BoardRow] = set()
        self._gone: deque[tuple[int, str, str]] = deque(maxlen=GONE_KEPT)

    def take(
        self, overview: OverviewAnswer, now_ms: int, steady_ms: int
    ) -> list[tuple[str, str, BoardRow]]:
        """Take an overview and the time of two clocks: `now_ms` since 1970, `steady_ms` monotonic.

        Return the rows that may have changed: (topic, channel or "", row).
        """
        self.tick += 1
        self.version, self.now_ms = overview["version"], now_ms
        self._looked_ms, self._steady_ms = self._steady_ms, steady_ms
        if overview["whole"]:
            self._of_topics = Fields(tuple(overview.get("topic_fields", ())), TOPIC_RATES)
            self._of_channels = Fields(tuple(overview.get("channel_fields", ())), CHANNEL_RATES)
            self._forget(overview["topics"])
        if overview["broker"] != self.broker:
            self.broker, self.broker_tick = dict(overview["broker"]), self.tick
        named_rows: list[tuple[str, str, BoardRow]] = []
        for name, (raw, channels) in overview["topics"].items():
            topic = self.topics.get(name) or self.topics.setdefault(
                name, BoardRow(self.tick, TOPIC_RATES)
            )
            for channel, values in channels.items():
                channel_row = topic.channels.get(channel) or topic.channels.setdefault(
                    channel, BoardRow(self.tick, CHANNEL_RATES)
                )
                self._take(channel_row, values, self._of_channels)
                named_rows.append((name, channel, channel_row))
            if raw:
                self._take(topic, raw, self._of_topics)
            named_rows.append((name, "", topic))
        named_rows += self._grow_still()
        for _, channel, row in named_rows:
            if not channel:
                self._sum(row)
        return named_rows

    def _take(self, row: BoardRow, raw: Sequence[Any], fields: Fields) -> None:
        row.take(raw, fields, self.tick, self._steady_ms, self._looked_ms)
        if row.moves:
            self._moving.add(row)

    def _grow_still(self) -> Iterator[tuple[str, str, BoardRow]]:
        """Yield the rows that had no pulses for a while, with their rates set to 0."""
        still = {row for row in self._moving if row.still(self.tick, self._steady_ms)}
        self._moving -= still
        if still:
            for name, topic in self.topics.items():
                changed = [
                    (name, channel, row) for channel, row in topic.channels.items() if row in still
                ]
                yield from changed
                if changed or topic in still:
                    yield name, "", topic

    def _sum(self, row: BoardRow) -> None:
        values = [channel_values.values for channel_values in row.channels.values()]
        for name in SUMS:
            row.set(
                name, _short(sum([channel_values[name] for channel_values in values])), self.tick
            )
        row.set("channel_count", len(values), self.tick)

    def _forget(self, topics: Mapping[str, tuple[OverviewRow, Mapping[str, OverviewRow]]]) -> None:
        """Remove topics and channels that no longer exist."""
        for name in [name for name in self.topics if name not in topics]:
            self._moving -= {self.topics[name], *self.topics[name].channels.values()}
            del self.topics[name]
            self._gone.append((self.tick, name, ""))
        for name, row in self.topics.items():
            for channel in [channel for channel in row.channels if channel not in topics[name][1]]:
                self._moving.discard(row.channels.pop(channel))
                self._gone.append((self.tick, name, channel))

    # For watchers

    def knows_since(self, tick: int) -> bool:
        """Return True if the board still has all deletions after `tick`."""
        return len(self._gone) < GONE_KEPT or self._gone[0][0] <= tick

    def gone_since(self, tick: int) -> Iterator[tuple[str, str]]:
        """Yield deletions as (topic, channel or ""). Some of the names may exist again."""
        return ((topic, channel) for at, topic, channel in self._gone if at > tick)

    def rows(self, principal: Principal, only: str = "") -> Iterator[tuple[str, BoardRow]]:
        names = (only,) if only else sorted(self.topics)
        return (
            (name, self.topics[name])
            for name in names
            if name in self.topics and principal.may(Action.SEE, name)
        )


def _without_ns(row: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out times in ns, which JavaScript's numbers cannot hold."""
    return {name: value for name, value in row.items() if not name.endswith("_ns")}


def _silence(row: RaisedAlarm) -> Mapping[str, object]:
    """Return the silence of an alarm with times in ms. `until_ms` is 0 until it is cleared."""
    silence = row.get("silence")
    if silence is None:
        return {}
    times = {"at_ms": silence["at_ns"] // NS_PER_MS, "until_ms": silence["until_ns"] // NS_PER_MS}
    return {"silence": {"by": silence["by"], **times}}


def _short(number: float) -> float:
    return round(number, 1 if number >= 10 else 3)


class BoardView(NamedTuple):
    """The board as a principal may see it.

    `topic` selects one topic, and "" selects all. With `channels`, rows of channels are included.
    """

    principal: Principal
    topic: str = ""
    channels: bool = False

    def whole(self, board: Board) -> BoardChanges:
        return {**self._since(board, -1), "broker": self._broker(board)}

    def changes(self, board: Board, tick: int) -> BoardChanges | None:
        """Return the changes since `tick`, or None if there are none.

        If the board no longer has all changes, it returns the whole board.
        """
        if not board.knows_since(tick):
            return {**self.whole(board), "whole": True}
        changes = self._since(board, tick)
        if board.broker_tick > tick:
            changes["broker"] = self._broker(board)
        gone = self._gone(board, tick)
        if any(gone.values()):
            changes["gone"] = gone
        return changes if changes.keys() - {"now_ms", "topics"} or changes["topics"] else None

    def alarms(self, alarms: OverviewAlarms) -> ConsoleAlarms:
        """Return the overview's alarms for the page, as far as the principal may see them."""
        see = partial(self.principal.may, Action.SEE)
        receivers: ShownReceivers = {}
        if self.principal.may(Action.ADMINISTER):
            receivers["receivers"] = list(alarms["receivers"])
        return {
            "now": [
                _without_ns({**row, "raised_ms": row["raised_ns"] // NS_PER_MS, **_silence(row)})
                for row in alarms["now"]
                if see(row["topic"])
            ],
            "recent": [
                _without_ns({**row, "time_ms": row["time_ns"] // NS_PER_MS})
                for row in alarms["recent"]
                if see(row["topic"])
            ],
            **receivers,
        }

    def _since(self, board: Board, tick: int) -> BoardChanges:
        topics: dict[str, TopicValues] = {}
        for name, row in board.rows(self.principal, self.topic):
            values: TopicValues = {**row.since(tick)} if row.changed > tick else {}
            if row.born > tick:
                values["may"] = self._may(name)
            if self.channels:
                channels = {
                    channel: self._channel(name, channel, channel_row, tick)
                    for channel, channel_row in row.channels.items()
                    if channel_row.changed > tick
                }
                if channels or tick < 0:
                    values["channels"] = channels
            if values:
                topics[name] = values
        return {"now_ms": board.now_ms, "topics": topics}

    def _channel(self, topic: str, name: str, row: BoardRow, tick: int) -> Values:
        values = row.since(tick)
        if row.born > tick:
            may = self.principal.may
            values["may"] = ("a" if may(Action.MANAGE_CHANNEL, topic, name) else "") + (
                "s" if may(Action.CONSUME, topic, name) else ""
            )
        return values

    def _may(self, topic: str) -> str:
        letters = {"a": Action.MANAGE_TOPIC, "s": Action.READ, "p": Action.PUBLISH}
        return "".join(
            letter for letter, action in letters.items() if self.principal.may(action, topic)
        )

    def _broker(self, board: Board) -> BoardBroker:
        values = {name: value for name, value in board.broker.items() if name != "alarmed_ns"}
        sees_all = self.principal.may(Action.SEE_ALL)
        if not sees_all:
            values = {
                name: value
                for name, value in values.items()
                if name in ("version", "node", "uuid", "start_ms", "clustered")
            }
            values["health"] = "OK" if board.broker["health"] == "OK" else "a topic has a problem"
        values |= {
            "user": self.principal.name,
            "may": {"admin": self.principal.may(Action.ADMINISTER), "all": sees_all},
        }
        return cast("BoardBroker", values)

    def _gone(self, board: Board, tick: int) -> GoneRows:
        topics: list[str] = []
        channels: list[list[str]] = []
        for topic, channel in board.gone_since(tick):
            row = board.topics.get(topic)
            if self.topic not in ("", topic) or not self.principal.may(Action.SEE, topic):
                continue
            if not channel and (row is None or row.born > tick):
                topics.append(topic)
            elif channel and row is not None and self.channels:
                channel_row = row.channels.get(channel)
                if channel_row is None or channel_row.born > tick:
                    channels.append([topic, channel])
        return {"topics": topics, "channels": channels}
