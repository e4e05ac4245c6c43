"""State machine of alarms: it decides when an alarm is raised or cleared. Pure.

These are watched:
* of a channel its depth (all messages that wait) and the age of its oldest unfinished message,
* of a topic the depth of all its channels, the bytes that unfinished messages hold, its dead
  letters, and its health,
* of the broker the depth of all topics, all dead letters, its settings, and its bucket.

Each number has a threshold. A condition, such as the health, is a sentence about what is wrong.

| state | above the threshold | between | at most 80% of it | unknown |
|---|---|---|---|---|
| quiet | rising | quiet | quiet | quiet |
| rising | rising; held: raised | quiet | quiet | rising |
| raised | raised | raised | falling | raised |
| falling | raised | raised | falling; held: quiet | falling |

"Held" means that the value stayed there for `hold_s`. Only the two steps with "held" cause an
event: *raised* and *cleared*. So a backlog that touches the threshold from time to time causes no
event, and a backlog that swings around the threshold causes only one. While a channel is being
started again, its values are unknown. This changes no state, and the time does not count for
`hold_s`. When a channel or its threshold is removed, a raised alarm is cleared.

The states are lost when the broker ends. After a start, a backlog above its threshold is raised and
reported again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ...transport.reports import AlarmEvent, RaisedAlarm

# An alarm is cleared at this share of the threshold. So smaller swings cause only one alarm.
CLEAR_SHARE: Final = 0.8
NONE: Final = -1
DEPTH: Final = "depth"
AGE: Final = "age_s"
HELD_BYTES: Final = "held_bytes"
DEAD_LETTERS: Final = "dead_letters"
HEALTH: Final = "health"
# Conditions of the broker, which have no number.
SETTINGS: Final = "settings"
BUCKET: Final = "bucket"
FREE_BYTES: Final = "free_bytes"  # of the disk
KINDS: Final = (DEPTH, AGE, HELD_BYTES, DEAD_LETTERS, HEALTH, SETTINGS, BUCKET, FREE_BYTES)


class AlarmState(Enum):
    QUIET = "quiet"
    RISING = "rising"
    RAISED = "raised"
    FALLING = "falling"


class Level(Enum):
    """The relation of a value to its threshold."""

    ABOVE = "above"
    BETWEEN = "between"
    BELOW = "below"
    UNKNOWN = "unknown"


_S, _L = AlarmState, Level
TRANSITIONS: Final[dict[AlarmState, dict[Level, AlarmState]]] = {
    _S.QUIET: {_L.ABOVE: _S.RISING, _L.BETWEEN: _S.QUIET, _L.BELOW: _S.QUIET, _L.UNKNOWN: _S.QUIET},
    _S.RISING: {
        _L.ABOVE: _S.RISING,
        _L.BETWEEN: _S.QUIET,
        _L.BELOW: _S.QUIET,
        _L.UNKNOWN: _S.RISING,
    },
    _S.RAISED: {
        _L.ABOVE: _S.RAISED,
        _L.BETWEEN: _S.RAISED,
        _L.BELOW: _S.FALLING,
        _L.UNKNOWN: _S.RAISED,
    },
    _S.FALLING: {
        _L.ABOVE: _S.RAISED,
        _L.BETWEEN: _S.RAISED,
        _L.BELOW: _S.FALLING,
        _L.UNKNOWN: _S.FALLING,
    },
}
HELD: Final = {_S.RISING: _S.RAISED, _S.FALLING: _S.QUIET}  # the next state after the hold time


class AlarmSubject(NamedTuple):
    topic: str
    channel: str
    kind: str


class Watched(NamedTuple):
    """A number with its threshold, or a condition, as it is now.

    `trouble` says what is wrong with a condition, and `well` is what is said when it is over.
    """

    value: float | None
    threshold: float
    trouble: str = ""
    well: str = ""


NOTHING: Final = Watched(None, 0)


def condition(trouble: str, well: str) -> Watched:
    return Watched(float(bool(trouble)), 0.5, trouble, well)


class Event(NamedTuple):
    """A change of an alarm.

    `event` is "raised" or "cleared"; `value` is None if it is not known.
    """

    event: str
    place: AlarmSubject
    value: float | None
    threshold: float
    raised_wall_ns: int
    wall_ns: int
    text: str


@dataclass(slots=True)
class _Alarm:
    state: AlarmState = AlarmState.QUIET
    held_ns: int = 0  # the time since the state became RISING or FALLING
    seen: Watched = NOTHING
    trouble: str = ""  # the last one of a condition
    raised_wall_ns: int = 0

    @property
    def value(self) -> float | None:
        return None if self.seen.well else self.seen.value

    @property
    def threshold(self) -> float:
        return 0 if self.seen.well else self.seen.threshold


def level(value: float | None, threshold: float) -> Level:
    if value is None:
        return Level.UNKNOWN
    if value > threshold:
        return Level.ABOVE
    return Level.BELOW if value <= threshold * CLEAR_SHARE else Level.BETWEEN


class Alarms:
    """All alarms but that of the disk. Call `see` regularly, with all that is watched."""

    def __init__(self, hold_s: float) -> None:
        self.hold(hold_s)
        self._alarms: dict[AlarmSubject, _Alarm] = {}
        self._seen_ns = 0

    def hold(self, hold_s: float) -> None:
        """Set the hold time, also for values that are rising or falling now."""
        self._hold_ns = int(hold_s * 1e9)

    def see(self, values: Mapping[AlarmSubject, Watched], now_ns: int, wall_ns: int) -> list[Event]:
        """Take new values and return the events that follow.

        Alarms that are not in `values` end.
        """
        passed_ns = now_ns - self._seen_ns if self._seen_ns else 0
        self._seen_ns = now_ns
        events = []
        for place in [place for place in self._alarms if place not in values]:
            alarm = self._alarms.pop(place)
            if alarm.state in (_S.RAISED, _S.FALLING):
                alarm.seen = alarm.seen._replace(value=None)
                events.append(_event("cleared", place, alarm, wall_ns))
        for place, watched in values.items():
            alarm = self._alarms.get(place) or _Alarm()
            event = self._step(alarm, watched, passed_ns, wall_ns)
            if event:
                events.append(_event(event, place, alarm, wall_ns))
            if alarm.state is _S.QUIET:
                self._alarms.pop(place, None)  # most alarms are quiet and need no entry
            else:
                self._alarms[place] = alarm
        return events

    def _step(self, alarm: _Alarm, watched: Watched, passed_ns: int, wall_ns: int) -> str:
        """Take one value of an alarm. Return the event that follows, or ""."""
        now_level = level(watched.value, watched.threshold)
        before, alarm.state = alarm.state, TRANSITIONS[alarm.state][now_level]
        known = alarm.seen.value if watched.value is None else watched.value
        alarm.seen = watched._replace(value=known)
        alarm.trouble = watched.trouble or alarm.trouble
        if alarm.state is not before:
            alarm.held_ns = 0
        elif now_level is not Level.UNKNOWN:
            alarm.held_ns += passed_ns
        if alarm.state not in HELD or alarm.held_ns < self._hold_ns:
            return ""
        alarm.state = HELD[alarm.state]
        if alarm.state is _S.RAISED:
            alarm.raised_wall_ns = wall_ns
        return "raised" if alarm.state is _S.RAISED else "cleared"

    def threshold(self, place: AlarmSubject) -> float | None:
        """Return the last threshold of an alarm, or None if it is quiet."""
        alarm = self._alarms.get(place)
        return alarm.threshold if alarm is not None else None

    def again(self, wall_ns: int) -> list[Event]:
        """Return the raised alarms as new events, for a receiver that has not received them."""
        rows = [
            (place, alarm)
            for place, alarm in self._alarms.items()
            if alarm.state in (_S.RAISED, _S.FALLING)
        ]
        return [_event("raised", place, alarm, wall_ns) for place, alarm in rows]

    def raised(self) -> list[RaisedAlarm]:
        """Return the raised alarms, the oldest first."""
        rows: list[RaisedAlarm] = [
            {
                "topic": place.topic, "channel": place.channel, "kind": place.kind, "value": alarm.value,
                "threshold": alarm.threshold, "raised_ns": alarm.raised_wall_ns, "text": _text(place, alarm),
            }
            for place, alarm in self._alarms.items()
            if alarm.state in (_S.RAISED, _S.FALLING)
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (row["raised_ns"], row["topic"], row["channel"]))


def _text(place: AlarmSubject, alarm: _Alarm) -> str:
    """Return a sentence: `clicks/archive: depth 1,234 (alarm above 1,000)`."""
    where, value, threshold = _where(place), alarm.value, alarm.threshold
    if alarm.seen.well:
        return f"{where}: {alarm.trouble}"
    if place.kind == AGE:
        age = "unknown" if value is None else f"{value:,.1f} s"
        return f"{where}: oldest message {age} old (alarm above {threshold:,g} s)"
    name, unit = _NAMES[place.kind]
    size = "unknown" if value is None else f"{value:,.0f}"
    return f"{where}: {name} {size}{unit} (alarm above {threshold:,.0f}{unit})"


_NAMES: Final = {
    DEPTH: ("depth", ""),
    HELD_BYTES: ("unfinished messages hold", " bytes"),
    DEAD_LETTERS: ("dead letters", ""),
}


def _where(place: AlarmSubject) -> str:
    return "/".join(filter(None, (place.topic, place.channel))) or "broker"


def _event(event: str, place: AlarmSubject, alarm: _Alarm, wall_ns: int) -> Event:
    if event == "cleared" and alarm.seen.value is None:
        kind = "channel" if place.channel else "topic"
        text = f"{_where(place)}: the {kind} or its threshold was removed"
    elif event == "cleared" and alarm.seen.well:
        text = f"{_where(place)}: {alarm.seen.well}"
    else:
        text = _text(place, alarm)
    return Event(
        event,
        place,
        alarm.value,
        alarm.threshold,
        alarm.raised_wall_ns,
        wall_ns,
        f"{event}: {text}",
    )


def as_json(event: Event) -> AlarmEvent:
    return {
        "event": event.event, "topic": event.place.topic, "channel": event.place.channel, "kind": event.place.kind,
        "value": event.value, "threshold": event.threshold, "raised_ns": event.raised_wall_ns, "time_ns": event.wall_ns, "text": event.text,
    }  # fmt: skip
