"""Alarms in the supervisor: it checks the last pulses once a second, and reports the changes.

`backlog.py` decides which alarms are raised and cleared. No number is computed where no
threshold is set. Only channels that are up have values. The values of the others are unknown until
they are up. The sums of a topic and of the broker have their last known values.

Silences are in `DATA_DIR/silences`, which is written at each change. If the file is damaged, there
are no silences, and the log says so.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import replace
from typing import Final

from ...storage.files import Files
from ...transport.errors import E_BAD_ARGUMENT, E_NOT_FOUND, NotFound, UsageError
from ...transport.names import check_name
from ...transport.reports import AlarmEvent, AlarmReceiver, RaisedAlarm
from ...transport.wire.admin_requests import EndSilenceRequest, SilenceAlarmRequest
from ...transport.wire.protocol import Alarm
from ..runtime.process_table import Child
from ..runtime.pulses import ChannelPulse
from ..runtime.services import services
from ..settings import options
from ..settings.options import AlarmOptions, ServeOptions
from ..statistics.broker_view import (
    REPORTED,
    AlarmsView,
    TopicProcesses,
    channel_pulse,
    is_known,
    storage_pulse,
)
from ..statistics.channel_rows import backlog
from ..statistics.dead_letters import letter_count, senders
from ..statistics.statistics import total_depth, troubles_of_topic
from ..supervisor.commands.requests import Handlers, answered_by
from ..supervisor.disk_watch import FREE_BYTES, DiskEvent
from ..supervisor.extension_point import SupervisorExtension, SupervisorParts
from ..supervisor.topics.topic_group import TopicGroup
from .backlog import (
    AGE,
    DEAD_LETTERS,
    DEPTH,
    HEALTH,
    HELD_BYTES,
    KINDS,
    NONE,
    Alarms,
    AlarmSubject,
    Event,
    Watched,
    as_json,
    condition,
)
from .extension import AlarmService
from .silences import SETTLE_NS, Silence, Silences, from_json

log = logging.getLogger("zsq")

RECENT_MAX: Final = 100  # the newest events that statistics show
EVENTS_A_WORD: Final = 500
WELL: Final = "the health is OK again"
SILENCES_FILE: Final = "silences"
LOCAL: Final = "a local user"
FILE_BYTES_MAX: Final = 1 << 20
SILENCE_S_MAX: Final = 366 * 86_400


class AlarmWatch(SupervisorExtension, AlarmsView):
    """Raises, clears and reports alarms."""

    def __init__(self, parts: SupervisorParts) -> None:
        super().__init__(parts)
        self._broker = parts.state
        self._disk = parts.disk
        self.given = self._broker.options.of(AlarmOptions) or AlarmOptions()
        self._alarms = Alarms(self.given.hold_s)
        self._recent: deque[AlarmEvent] = deque(maxlen=RECENT_MAX)
        self._due_ns = 0
        self._anew = False  # the receivers are new and have not received any alarm yet
        self._files = Files()
        self._path = str(self._broker.options.data_dir.absolute() / SILENCES_FILE)
        self._silences = self._stored_silences()
        self._heard: set[AlarmSubject] = set()  # the raised alarms that receivers know of
        self._began_ns = time.monotonic_ns()

    def reloaded(self, options: ServeOptions) -> None:
        """Use other thresholds from the next check on.

        If the receivers changed, a new process sends to them. New receivers get the alarms that are
        raised now. They do not get events that were still on their way to the old ones.
        """
        before, self.given = self.given, options.of(AlarmOptions) or AlarmOptions()
        self._alarms.hold(self.given.hold_s)
        if _receivers(before) != _receivers(self.given):
            for child in self._tellers():
                self._broker.processes.stop_child(child)
            self._parts.singles.start(services()[AlarmService.kind])
            self._anew = True

    def handlers(self) -> Handlers:
        requests = self._parts.requests
        return {
            SilenceAlarmRequest: answered_by(requests, self.silence),
            EndSilenceRequest: answered_by(requests, self.end_silence),
        }

    def alarms(self) -> AlarmsView:
        return self

    def _tellers(self) -> list[Child]:
        children = self._parts.singles.of_kind(AlarmService.kind)
        return [child for child in children if not child.told_to_stop]

    def tick(self, now_ns: int) -> None:
        if now_ns < self._due_ns or self._broker.stopping:
            return
        self._due_ns = now_ns + options.PULSE_MS * 1_000_000
        wall_ns = time.time_ns()
        events = self._alarms.see(self._values(now_ns, wall_ns), now_ns, wall_ns)
        for event in events:
            log.warning("alarm %s", event.text)
        # The disk watch has logged these already.
        events += map(_of_disk, self._disk.take_events())
        self._recent.extend(map(as_json, events))
        self._end_silences(now_ns, wall_ns)
        loud = [one for one in events if one.event == "cleared" or not self._silences.of(one.place)]
        for event in loud:
            (self._heard.discard if event.event == "cleared" else self._heard.add)(event.place)
        unheard = [one for one in self._raised_again(wall_ns) if one.place not in self._heard]
        self._heard.update(one.place for one in unheard)
        messages = [as_json(event) for event in (*loud, *unheard)]
        if self._anew and all(child.state == "up" for child in self._tellers()):
            self._anew = False
            cleared = [one for one in events if one.event == "cleared"]
            messages = [as_json(event) for event in (*self._raised_again(wall_ns), *cleared)]
        for child in self._tellers():
            for at in range(0, len(messages), EVENTS_A_WORD):
                if child.state == "starting" and self._anew:
                    break  # the process gets all raised alarms once it is up
                if child.state != "up" or not self._broker.processes.send(
                    child, Alarm(tuple(map(dict, messages[at : at + EVENTS_A_WORD])))
                ):
                    log.error(
                        (
                            "%d alarms are not sent to any receiver: the process that sends them "
                            "is being started again"
                        ),
                        len(messages) - at,
                    )
                    break

    def _raised_again(self, wall_ns: int) -> list[Event]:
        """Return the raised alarms that are not silenced, as new events."""
        raised = (*self._alarms.again(wall_ns), *map(_of_disk, self._disk.again(wall_ns)))
        return [event for event in raised if not self._silences.of(event.place)]

    # Silences

    def _end_silences(self, now_ns: int, wall_ns: int) -> None:
        """End the silences that are over."""
        settled = now_ns - self._began_ns > SETTLE_NS + int(self.given.hold_s * 1e9)
        places = [AlarmSubject(*_place(row)) for row in self.rows()]
        if self._silences.pass_by(places, wall_ns, settled=settled):
            self._store_silences()

    def end_silence(self, request: EndSilenceRequest) -> dict[str, object]:
        """Answer the request. Raises `ZsqError` if it is refused, as `silence` does."""
        subject = _subject(request)
        gone = self._silences.end(subject)
        if not gone:
            raise NotFound(E_NOT_FOUND, f"no alarm of {_said(subject)} is silenced")
        self._store_silences()
        return {"count": len(gone)}

    def silence(self, request: SilenceAlarmRequest) -> dict[str, object]:
        """Silence alarms until they are cleared, or for some time. Return the answer."""
        place, seconds = _subject(request), request.seconds
        if not 0 <= seconds <= SILENCE_S_MAX:
            text = (
                f"seconds must be 0 (until it is cleared) to {SILENCE_S_MAX}, not {seconds!r:.40}"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        now_ns, by = time.time_ns(), request.by
        who = by.get("user") or by.get("from") or LOCAL
        until_ns = now_ns + int(seconds * 1e9) if seconds else 0
        silence = Silence(place, who, now_ns, until_ns)
        raised = [
            subject for row in self.rows() if silence.covers(subject := AlarmSubject(*_place(row)))
        ]
        if not seconds and not raised:
            text = f"no alarm of {_said(place)} is raised; to silence it in advance, give a time"
            raise NotFound(E_NOT_FOUND, text)
        for subject in raised if not seconds else [place]:
            self._silences.add(silence._replace(place=subject))
        self._store_silences()
        return {"count": len(raised)}

    def _stored_silences(self) -> Silences:
        try:
            data = self._files.read_note(self._path, FILE_BYTES_MAX)
            return Silences(map(from_json, json.loads(data) if data else []))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("no alarm is silenced any more: %s is damaged (%s)", self._path, error)
            return Silences()

    def _store_silences(self) -> None:
        rows = [silence.as_json() for silence in self._silences.rows()]
        try:
            self._files.note(self._path, json.dumps(rows).encode())
        except OSError as error:
            log.warning("silenced alarms will be lost in a restart: %s: %s", self._path, error)

    def _values(self, now_ns: int, wall_ns: int) -> dict[AlarmSubject, Watched]:
        watched = {
            AlarmSubject("", "", name): condition(trouble(), well)
            for name, (trouble, well) in self._parts.conditions().items()
        }
        total = 0
        for group in self._broker.groups.values():
            for name in group.channels:
                stats = channel_pulse(group, name)
                for kind, threshold in self._thresholds(group, name, stats):
                    value = (
                        backlog(group, name, now_ns, wall_ns)[kind]
                        if is_known(group, name)
                        else None
                    )
                    watched[AlarmSubject(group.name, name, kind)] = Watched(value, threshold)
            depth = self._depth(group)
            total += depth
            numbers = (
                (DEPTH, depth, self.given.topic_depth),
                (HELD_BYTES, storage_pulse(group).get("held_bytes"), self.given.held_bytes),
            )
            for kind, number, threshold in numbers:
                if threshold != NONE:
                    watched[AlarmSubject(group.name, "", kind)] = Watched(number, threshold)
            watched[AlarmSubject(group.name, "", HEALTH)] = self._health(group)
        if self.given.total_depth != NONE:
            watched[AlarmSubject("", "", DEPTH)] = Watched(total, self.given.total_depth)
        return watched | self._dead_letters()

    def _dead_letters(self) -> dict[AlarmSubject, Watched]:
        """Watch dead-letter topics. If several channels send to one, their lowest threshold counts.

        Channels without own threshold have that of the broker, and so has a topic without channels.
        """
        watched, total = {}, 0
        for name, settings in senders(self._broker.groups).items():
            count = letter_count(self._broker.groups[name])
            total += count or 0
            limits = [setting.get("alarm_dead_letters") for setting in settings] or [None]
            chosen = [self.given.dead_letters if setting is None else setting for setting in limits]
            thresholds = [setting for setting in chosen if setting != NONE]
            if thresholds:
                watched[AlarmSubject(name, "", DEAD_LETTERS)] = Watched(count, min(thresholds))
        if self.given.total_dead_letters != NONE:
            threshold = self.given.total_dead_letters
            watched[AlarmSubject("", "", DEAD_LETTERS)] = Watched(total, threshold)
        return watched

    def _depth(self, group: TopicProcesses) -> int:
        """Return the depth of all channels of a topic, if a threshold needs it."""
        watched = self.given.topic_depth != NONE or self.given.total_depth != NONE
        return total_depth(group) if watched else 0

    def _health(self, group: TopicProcesses) -> Watched:
        """Watch the health of a topic. The alarm of a full disk stands for all topics on it."""
        if group.state not in REPORTED and not group.failure:
            return Watched(None, 0.5, well=WELL)  # it starts or stops
        full = storage_pulse(group).get("disk_full") and self._disk.health
        troubles = [] if full else troubles_of_topic(group, self._disk)
        return condition("; ".join(troubles), WELL)

    def _thresholds(
        self, group: TopicGroup, name: str, stats: ChannelPulse
    ) -> list[tuple[str, float]]:
        """Return the thresholds that apply to a channel.

        Before the channel's first pulse its settings are unknown. Until then, its alarms keep their
        old thresholds.
        """
        settings = stats.get("settings")
        if settings is None:
            places = [AlarmSubject(group.name, name, kind) for kind in (DEPTH, AGE)]
            return [
                (place.kind, known)
                for place in places
                if (known := self._alarms.threshold(place)) is not None
            ]
        asked = (
            (DEPTH, settings.get("alarm_depth"), self.given.depth),
            (AGE, settings.get("alarm_age_s"), self.given.age_s),
        )
        resolved = (
            (kind, default if setting is None else setting) for kind, setting, default in asked
        )
        return [(kind, threshold) for kind, threshold in resolved if threshold != NONE]

    # Reports

    def rows(self, topic: str = "", channel: str = "") -> list[RaisedAlarm]:
        alarms = [
            row
            for row in self._alarms.raised()
            if topic in ("", row["topic"]) and channel in ("", row["channel"])
        ]
        rows = alarms if topic else [*self._disk.rows(), *alarms]
        for row in rows:
            if (silence := self._silences.of(AlarmSubject(*_place(row)))) is not None:
                row["silence"] = silence.shown()
        return rows

    def texts(self, topic: str) -> list[str]:
        """Return the raised alarms about numbers of a topic, as texts for its health."""
        return [row["text"] for row in self.rows(topic) if row["kind"] != HEALTH]

    def recent(self) -> list[AlarmEvent]:
        return list(self._recent)

    def receivers(self) -> list[AlarmReceiver]:
        return [row for child in self._tellers() for row in child.stats.get("receivers", ())]


def _of_disk(event: DiskEvent) -> Event:
    return Event(event.event, AlarmSubject("", "", FREE_BYTES), *event[1:])


def _place(row: RaisedAlarm) -> tuple[str, str, str]:
    return row["topic"], row["channel"], row["kind"]


def _subject(request: SilenceAlarmRequest | EndSilenceRequest) -> AlarmSubject:
    """Return which alarms a request is about, after a check of the names."""
    topic, channel, kind = request.topic, request.channel, request.kind
    if kind and kind not in KINDS:
        text = f"kind must be one of {', '.join(KINDS)}, not {kind!r:.40}"
        raise UsageError(E_BAD_ARGUMENT, text)
    for name, what in ((topic, "topic"), (channel, "channel")):
        if name:
            check_name(name, what)
    return AlarmSubject(topic, channel, kind)


def _said(place: AlarmSubject) -> str:
    return "/".join(filter(None, (place.topic, place.channel))) or "the broker"


def _receivers(alarm_options: AlarmOptions) -> AlarmOptions:
    """Return the options without those that only decide when an alarm is raised."""
    return replace(
        alarm_options, depth=NONE, age_s=NONE, topic_depth=NONE, total_depth=NONE, held_bytes=NONE,
        dead_letters=NONE, total_dead_letters=NONE, hold_s=0,
    )  # fmt: skip
