"""The supervisor's desk for backlog alarms: looks at the channels' last pulses once a second, logs and tells what `alarms.py` finds.

Nothing is computed where no threshold is set. A figure is of channels that are up: the others are unknown until they are.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..transport.protocol import Alarm
from . import options
from .alarm_options import AlarmOptions
from .alarms import NONE, Alarms, Place, as_json, describe
from .channel_rows import backlog

if TYPE_CHECKING:
    from .process_table import Child
    from .supervisor import Supervisor
    from .topic_group import TopicGroup

log = logging.getLogger("zsq")

RECENT_MAX: Final = 100  # events that are shown
EVENTS_A_WORD: Final = 500
KIND: Final = "alarm_teller"


class AlarmDesk:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.given = supervisor.options.alarms
        self._alarms = Alarms(self.given.hold_s)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._due_ns = 0
        self._anew = False  # other receivers than before: they have heard of nothing

    def configure(self, given: AlarmOptions) -> None:
        """Other thresholds hold from the next look on. Other receivers get a new process, and hear of what is raised; of what the old ones
        were not told yet they hear no other way."""
        before, self.given = self.given, given
        self._alarms.hold(given.hold_s)
        if _receivers(before) != _receivers(given):
            for child in self._tellers():
                self.supervisor.stop_child(child)
            self.start()
            self._anew = True

    def _tellers(self) -> list[Child]:
        return [child for child in self.supervisor.singles.of_kind(KIND) if not child.told_to_stop]

    def start(self) -> None:
        """The process that tells, if anybody is to be told."""
        if self.given.tells:
            broker = {
                "host": socket.gethostname(), "node": self.supervisor.registry.node, "uuid": self.supervisor.registry.uuid,
                "data_dir": str(self.supervisor.options.data_dir.absolute()),
            }  # fmt: skip
            self.supervisor.singles.start(KIND, {"alarms": self.given, "broker": broker}, "alarms")

    def tick(self, now_ns: int) -> None:
        if now_ns < self._due_ns or self.supervisor.stopping:
            return
        self._due_ns = now_ns + options.PULSE_MS * 1_000_000
        wall_ns = time.time_ns()
        events = self._alarms.see(self._figures(wall_ns), now_ns, wall_ns)
        for event in events:
            log.warning("alarm %s", event.text)
        told = [as_json(event) for event in events]
        self._recent.extend(told)
        if self._anew and all(child.state == "up" for child in self._tellers()):
            self._anew = False
            told = [as_json(event) for event in (*self._alarms.again(wall_ns), *(one for one in events if one.event == "cleared"))]
        for child in self._tellers():
            for at in range(0, len(told), EVENTS_A_WORD):
                if child.state == "starting" and self._anew:
                    break  # it hears of all that is raised once it is up
                if child.state != "up" or not self.supervisor.port.send(child.envelope, Alarm(tuple(told[at : at + EVENTS_A_WORD]))):
                    log.error("nobody is told of %d alarms: the process that tells them is being started again", len(told) - at)
                    break

    def _figures(self, wall_ns: int) -> dict[Place, tuple[float | None, float]]:
        found: dict[Place, tuple[float | None, float]] = {}
        for group in self.supervisor.groups.values():
            for name, child in group.channels.items():
                stats = child.stats if child is not None else {}
                for figure, threshold in self._thresholds(group, name, stats):
                    up = child is not None and child.state == "up"
                    value = backlog(group, name, stats, wall_ns)[figure] if up and "next_offset" in stats else None
                    found[Place(group.name, name, figure)] = value, threshold
        return found

    def _thresholds(self, group: TopicGroup, name: str, stats: dict[str, Any]) -> list[tuple[str, float]]:
        """Of a channel that has not pulsed yet the alarms that are there stay, under their old thresholds."""
        settings = stats.get("settings")
        if settings is None:
            places = [Place(group.name, name, figure) for figure in ("depth", "age_s")]
            return [(place.figure, known) for place in places if (known := self._alarms.threshold(place)) is not None]
        asked = (("depth", settings["alarm_depth"], self.given.depth), ("age_s", settings["alarm_age_s"], self.given.age_s))
        resolved = ((figure, default if own is None else own) for figure, own, default in asked)
        return [(figure, threshold) for figure, threshold in resolved if threshold != NONE]

    # What is shown

    def rows(self, topic: str = "", channel: str = "") -> list[dict[str, Any]]:
        return [row for row in self._alarms.raised() if topic in ("", row["topic"]) and channel in ("", row["channel"])]

    def texts(self, topic: str) -> list[str]:
        """For the topic's health."""
        return [describe(Place(row["topic"], row["channel"], row["figure"]), row["value"], row["threshold"]) for row in self.rows(topic)]

    def recent(self) -> list[dict[str, Any]]:
        return list(self._recent)

    def receivers(self) -> list[dict[str, Any]]:
        return [row for child in self._tellers() for row in child.stats.get("receivers", ())]


def _receivers(given: AlarmOptions) -> AlarmOptions:
    """Without what only concerns when they are told."""
    return replace(given, depth=NONE, age_s=NONE, hold_s=0)
