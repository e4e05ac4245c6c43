"""Backlog alarms in the supervisor.

The supervisor checks the channels' last pulses once a second, then logs and sends the changes.
`alarms/backlog.py` decides which alarms are raised and cleared. Nothing is computed where no
threshold is set. Only channels that are up have values. The values of the others are unknown until
they are up.
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
from ..statistics.broker_view import channel_pulse, is_known
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

RECENT_MAX: Final = 100  # the newest events that statistics show
EVENTS_A_WORD: Final = 500
KIND: Final = "alarm_teller"


class AlarmWatch:
    """Raises, clears and reports alarms.

    `settings_trouble` returns which gateways do not have the new settings, or "" if all have them.
    `bucket_trouble` returns why the bucket cannot be used, or "".
    """

    def __init__(
        self,
        state: BrokerState,
        singles: Singles,
        disk: DiskWatch,
        settings_trouble: Callable[[], str],
        bucket_trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self._broker = state
        self._singles = singles
        self._disk = disk
        self._conditions = {
            "settings": (settings_trouble, "all gateways have the new settings"),
            "bucket": (bucket_trouble, "the bucket can be used"),
        }
        self.given = state.options.alarms
        self._alarms = Alarms(self.given.hold_s)
        self._recent: deque[AlarmEvent] = deque(maxlen=RECENT_MAX)
        self._due_ns = 0
        # When each alarm about the broker was raised. Alarms that are not raised are missing.
        self._broker_ns: dict[str, int] = {}
        self._anew = False  # the receivers are new and have not received any alarm yet

    def configure(self, given: AlarmOptions) -> None:
        """Use other thresholds from the next check on.

        If the receivers changed, a new process sends to them. New receivers get the alarms that are
        raised now. They do not get events that were still on their way to the old ones.
        """
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
        """Start the process that sends alarms, if any receiver is configured."""
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
        events = self._alarms.see(self._figures(now_ns, wall_ns), now_ns, wall_ns)
        for event in events:
            log.warning("alarm %s", event.text)
        events += self._disk.take_events()  # the disk watch has logged these already
        told = [*(as_json(event) for event in events), *self._of_broker(wall_ns)]
        self._recent.extend(told)
        if self._anew and all(child.state == "up" for child in self._tellers()):
            self._anew = False
            raised = (*self._alarms.again(wall_ns), *self._disk.again(wall_ns))
            told = [
                as_json(event)
                for event in (*raised, *(one for one in events if one.event == "cleared"))
            ]
        for child in self._tellers():
            for at in range(0, len(told), EVENTS_A_WORD):
                if child.state == "starting" and self._anew:
                    break  # the process gets all raised alarms once it is up
                if child.state != "up" or not self._broker.processes.send(
                    child, Alarm(tuple(map(dict, told[at : at + EVENTS_A_WORD])))
                ):
                    log.error(
                        (
                            "%d alarms are not sent to any receiver: the process that sends them "
                            "is being started again"
                        ),
                        len(told) - at,
                    )
                    break

    def _of_broker(self, wall_ns: int) -> list[AlarmEvent]:
        """Raise an alarm while a gateway does not have the new settings, or the bucket is away.

        These alarms are about the broker, so their topic and channel are empty.
        """
        events: list[AlarmEvent] = []
        for figure, (trouble, well) in self._conditions.items():
            text, before = trouble(), self._broker_ns.get(figure, 0)
            if bool(text) == bool(before):
                continue
            event = "raised" if text else "cleared"
            if text:
                self._broker_ns[figure] = wall_ns
            else:
                del self._broker_ns[figure]
            said = f"{event}: {text or well}"
            log.warning("alarm %s", said)
            events.append({
                "event": event, "topic": "", "channel": "", "figure": figure, "value": None, "threshold": 0, "text": said,
                "raised_ns": before or wall_ns, "time_ns": wall_ns,
            })  # fmt: skip
        return events

    def _figures(self, now_ns: int, wall_ns: int) -> dict[AlarmSubject, tuple[float | None, float]]:
        found: dict[AlarmSubject, tuple[float | None, float]] = {}
        for group in self._broker.groups.values():
            for name, child in group.channels.items():
                stats = channel_pulse(child)
                for figure, threshold in self._thresholds(group, name, stats):
                    up = is_known(group, child)
                    value = (
                        backlog(group, name, now_ns, wall_ns)[figure]
                        if up and "next_offset" in stats
                        else None
                    )
                    found[AlarmSubject(group.name, name, figure)] = value, threshold
        return found

    def _thresholds(
        self, group: TopicGroup, name: str, stats: ChannelPulse
    ) -> list[tuple[str, float]]:
        """Return the thresholds that apply to a channel.

        Before the channel's first pulse its settings are unknown. Until then, its alarms keep their
        old thresholds.
        """
        settings = stats.get("settings")
        if settings is None:
            places = [AlarmSubject(group.name, name, figure) for figure in ("depth", "age_s")]
            return [
                (place.figure, known)
                for place in places
                if (known := self._alarms.threshold(place)) is not None
            ]
        asked = (
            ("depth", settings.get("alarm_depth"), self.given.depth),
            ("age_s", settings.get("alarm_age_s"), self.given.age_s),
        )
        resolved = ((figure, default if own is None else own) for figure, own, default in asked)
        return [(figure, threshold) for figure, threshold in resolved if threshold != NONE]

    # Reports

    def rows(self, topic: str = "", channel: str = "") -> list[RaisedAlarm]:
        found = [
            row
            for row in self._alarms.raised()
            if topic in ("", row["topic"]) and channel in ("", row["channel"])
        ]
        return found if topic else [*self._disk.rows(), *found]

    def texts(self, topic: str) -> list[str]:
        """Return the raised alarms of a topic as texts for its health."""
        return [
            describe(
                AlarmSubject(row["topic"], row["channel"], row["figure"]),
                row["value"],
                row["threshold"],
            )
            for row in self.rows(topic)
        ]

    def recent(self) -> list[AlarmEvent]:
        return list(self._recent)

    def receivers(self) -> list[AlarmReceiver]:
        return [row for child in self._tellers() for row in child.stats.get("receivers", ())]


def _receivers(given: AlarmOptions) -> AlarmOptions:
    """Return the options without those that only decide when an alarm is raised."""
    return replace(given, depth=NONE, age_s=NONE, hold_s=0)
