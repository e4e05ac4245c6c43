"""The supervisor's desk for backlog alarms: looks at the channels' last pulses once a second, logs and tells what `alarms.py` finds.

Nothing is computed where no threshold is set. A figure is of channels that are up: the others are unknown until they are.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ...transport.reports import AlarmEvent, AlarmReceiver, RaisedAlarm
from ...transport.wire.protocol import Alarm
from ..alarms.backlog import NONE, Alarms, AlarmSubject, as_json, describe
from ..settings import options
from ..settings.options import AlarmOptions
from ..settings.starts import AlarmBroker, AlarmStart
from ..statistics.broker_view import channel_pulse
from ..statistics.channel_rows import backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.process_table import Child
    from ..runtime.pulses import ChannelPulse
    from .disk_watch import DiskWatch
    from .singles import Singles
    from .topics.broker_state import BrokerState
    from .topics.topic_group import TopicGroup

log = logging.getLogger("zsq")

RECENT_MAX: Final = 100  # events that are shown
EVENTS_A_WORD: Final = 500
KIND: Final = "alarm_teller"


class AlarmWatch:
    """`settings_trouble`: says which gateways do not have the new settings, "" for none."""

    def __init__(self, state: BrokerState, singles: Singles, disk: DiskWatch, settings_trouble: Callable[[], str]) -> None:
        self._broker = state
        self._singles = singles
        self._disk = disk
        self._settings_trouble = settings_trouble
        self.given = state.options.alarms
        self._alarms = Alarms(self.given.hold_s)
        self._recent: deque[AlarmEvent] = deque(maxlen=RECENT_MAX)
        self._due_ns = 0
        self._broker_ns = 0  # since when the alarm about the broker itself is raised, 0 for not
        self._anew = False  # other receivers than before: they have heard of nothing

    def configure(self, given: AlarmOptions) -> None:
        """Other thresholds hold from the next look on. Other receivers get a new process, and hear of what is raised; of what the old ones
        were not told yet they hear no other way."""
        before, self.given = self.given, given
        self._alarms.hold(given.hold_s)
        if _receivers(before) != _receivers(given):
            for child in self._tellers():
                self._broker.processes.stop_child(child)
            self.start()
            self._anew = True

    def _tellers(self) -> list[Child]:
        return [child for child in self._singles.of_kind(KIND) if not child.told_to_stop]

    def start(self) -> None:
        """The process that tells, if anybody is to be told."""
        if self.given.tells:
            broker: AlarmBroker = {
                "host": socket.gethostname(), "node": self._broker.registry.node, "uuid": self._broker.registry.uuid,
                "data_dir": str(self._broker.options.data_dir.absolute()),
            }  # fmt: skip
            self._singles.start(KIND, AlarmStart(alarms=self.given, broker=broker), "alarms")

    def tick(self, now_ns: int) -> None:
        if now_ns < self._due_ns or self._broker.stopping:
            return
        self._due_ns = now_ns + options.PULSE_MS * 1_000_000
        wall_ns = time.time_ns()
        events = self._alarms.see(self._figures(wall_ns), now_ns, wall_ns)
        for event in events:
            log.warning("alarm %s", event.text)
        events += self._disk.take_events()  # which has its own lines in the log
        told = [*(as_json(event) for event in events), *self._of_broker(wall_ns)]
        self._recent.extend(told)
        if self._anew and all(child.state == "up" for child in self._tellers()):
            self._anew = False
            raised = (*self._alarms.again(wall_ns), *self._disk.again(wall_ns))
            told = [as_json(event) for event in (*raised, *(one for one in events if one.event == "cleared"))]
        for child in self._tellers():
            for at in range(0, len(told), EVENTS_A_WORD):
                if child.state == "starting" and self._anew:
                    break  # it hears of all that is raised once it is up
                if child.state != "up" or not self._broker.processes.send(child, Alarm(tuple(map(dict, told[at : at + EVENTS_A_WORD])))):
                    log.error("nobody is told of %d alarms: the process that tells them is being started again", len(told) - at)
                    break

    def _of_broker(self, wall_ns: int) -> list[AlarmEvent]:
        """Raise an alarm while a gateway does not have the new settings: it is about the broker, so topic and channel are empty."""
        text, before = self._settings_trouble(), self._broker_ns
        if bool(text) == bool(before):
            return []
        self._broker_ns = wall_ns if text else 0
        event = "raised" if text else "cleared"
        said = f"{event}: {text or 'all gateways have the new settings'}"
        log.warning("alarm %s", said)
        return [
            {
                "event": event, "topic": "", "channel": "", "figure": "settings", "value": None, "threshold": 0, "text": said,
                "raised_ns": before or wall_ns, "time_ns": wall_ns,
            }
        ]  # fmt: skip

    def _figures(self, wall_ns: int) -> dict[AlarmSubject, tuple[float | None, float]]:
        found: dict[AlarmSubject, tuple[float | None, float]] = {}
        for group in self._broker.groups.values():
            for name, child in group.channels.items():
                stats = channel_pulse(child)
                for figure, threshold in self._thresholds(group, name, stats):
                    up = child is not None and child.state == "up"
                    value = backlog(group, name, stats, wall_ns)[figure] if up and "next_offset" in stats else None
                    found[AlarmSubject(group.name, name, figure)] = value, threshold
        return found

    def _thresholds(self, group: TopicGroup, name: str, stats: ChannelPulse) -> list[tuple[str, float]]:
        """Of a channel that has not pulsed yet the alarms that are there stay, under their old thresholds."""
        settings = stats.get("settings")
        if settings is None:
            places = [AlarmSubject(group.name, name, figure) for figure in ("depth", "age_s")]
            return [(place.figure, known) for place in places if (known := self._alarms.threshold(place)) is not None]
        asked = (("depth", settings.get("alarm_depth"), self.given.depth), ("age_s", settings.get("alarm_age_s"), self.given.age_s))
        resolved = ((figure, default if own is None else own) for figure, own, default in asked)
        return [(figure, threshold) for figure, threshold in resolved if threshold != NONE]

    # What is shown

    def rows(self, topic: str = "", channel: str = "") -> list[RaisedAlarm]:
        found = [row for row in self._alarms.raised() if topic in ("", row["topic"]) and channel in ("", row["channel"])]
        return found if topic else [*self._disk.rows(), *found]

    def texts(self, topic: str) -> list[str]:
        """For the topic's health."""
        return [
            describe(AlarmSubject(row["topic"], row["channel"], row["figure"]), row["value"], row["threshold"]) for row in self.rows(topic)
        ]

    def recent(self) -> list[AlarmEvent]:
        return list(self._recent)

    def receivers(self) -> list[AlarmReceiver]:
        return [row for child in self._tellers() for row in child.stats.get("receivers", ())]


def _receivers(given: AlarmOptions) -> AlarmOptions:
    """Without what only concerns when they are told."""
    return replace(given, depth=NONE, age_s=NONE, hold_s=0)
