"""Silences: alarms that somebody looks after, or wants to hear nothing of for a while. Pure.

| kind | `until_ns` | it ends |
|---|---|---|
| acknowledged | 0 | when its alarm is cleared |
| silenced | a time | then, whether or not an alarm is raised |

Receivers are not told that a silenced alarm is raised. They are told when the silence ends and the
alarm is still raised, and always when it is cleared. A silence with a kind is about one alarm.
One without a kind is about all alarms of the channel, or of the topic with its channels.

Silences survive a restart. The alarms are then raised again, which takes their hold time. So an
acknowledgement stays for `SETTLE_NS` although its alarm is not raised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ...transport.errors import E_LIMIT, Refused
from ...transport.reports import AlarmSilence
from .backlog import AlarmSubject

SILENCES_MAX: Final = 1_000
SETTLE_NS: Final = 60_000_000_000  # in addition to the hold time


class Silence(NamedTuple):
    place: AlarmSubject  # without a kind it is about several alarms
    by: str
    at_ns: int
    until_ns: int

    def covers(self, place: AlarmSubject) -> bool:
        if self.place.kind:
            return self.place == place
        return self.place.topic == place.topic and self.place.channel in ("", place.channel)

    def as_json(self) -> dict[str, object]:
        return {
            **self.place._asdict(),
            "by": self.by,
            "at_ns": self.at_ns,
            "until_ns": self.until_ns,
        }

    def shown(self) -> AlarmSilence:
        return {"by": self.by, "at_ns": self.at_ns, "until_ns": self.until_ns}


def from_json(row: Mapping[str, Any]) -> Silence:
    """Return the silence of a row. Raises `ValueError` or `KeyError` if it is no such row."""
    texts = [row[name] for name in ("topic", "channel", "kind", "by")]
    times = [row[name] for name in ("at_ns", "until_ns")]
    if not all(type(one) is str for one in texts) or not all(type(one) is int for one in times):
        raise ValueError(f"not a silence: {repr(row)[:80]}")
    return Silence(AlarmSubject(*texts[:3]), texts[3], *times)


class Silences:
    """All silences of a broker. Times are in ns since 1970."""

    def __init__(self, rows: Iterable[Silence] = ()) -> None:
        self._silences: dict[AlarmSubject, Silence] = {silence.place: silence for silence in rows}

    def rows(self) -> list[Silence]:
        return [*self._silences.values()]

    def add(self, silence: Silence) -> None:
        """Add a silence, or replace the one of the same place. Raises `Refused` (E_LIMIT)."""
        if silence.place not in self._silences and len(self._silences) >= SILENCES_MAX:
            text = f"the broker has {SILENCES_MAX} silenced alarms, which is the limit; end some"
            raise Refused(E_LIMIT, text)
        self._silences[silence.place] = silence

    def end(self, place: AlarmSubject) -> list[Silence]:
        """End the silences that cover this place or are covered by it, and return them."""
        wide = Silence(place, "", 0, 0)
        gone = [
            key
            for key, silence in self._silences.items()
            if silence.covers(place) or wide.covers(key)
        ]
        return [self._silences.pop(key) for key in gone]

    def of(self, place: AlarmSubject) -> Silence | None:
        return next((silence for silence in self._silences.values() if silence.covers(place)), None)

    def pass_by(
        self, raised: Collection[AlarmSubject], now_ns: int, *, settled: bool
    ) -> list[Silence]:
        """Remove the silences that are over, and return them.

        `settled` is True if all alarms that apply after the start are raised.
        """
        gone = [
            silence
            for silence in self._silences.values()
            if (silence.until_ns and now_ns >= silence.until_ns)
            or (settled and not silence.until_ns and not any(map(silence.covers, raised)))
        ]
        for silence in gone:
            del self._silences[silence.place]
        return gone
