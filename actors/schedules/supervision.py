"""Supervision of schedules: the commands about them, and what the scheduler must know.

A schedule is in its topic's row of the registry. The registry is written before a command is
answered. Then the scheduler (`scheduler.py`) gets all schedules again. It also gets them when
topics came or went, and when it was started: this module looks after it once a second.

| request | what is checked |
|---|---|
| add | the topic is here and on disk, the expression, the zone, and the limits of the broker |
| set | the same, and the schedule exists |
| remove, pause, resume | the schedule exists |
| run | the schedule exists, and the scheduler runs: it publishes |
| list | nothing: it shows what the scheduler last knew, too |
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, cast

from ...transport.errors import (
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_FOUND,
    E_TOO_BIG,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
)
from ...transport.names import is_ephemeral
from ...transport.wire import protocol as p
from ...transport.wire.admin_codec import options_of
from ...transport.wire.admin_requests import (
    AddScheduleRequest,
    ListSchedulesRequest,
    PauseScheduleRequest,
    RemoveScheduleRequest,
    ResumeScheduleRequest,
    RunScheduleRequest,
    ScheduleRequest,
    SetScheduleRequest,
)
from ...transport.wire.answers import ScheduleRow, ScheduleState
from ..runtime.process_table import Child
from ..settings.schedule_settings import (
    NEVER,
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    Schedule,
    as_row,
    asked_schedule,
    changed_schedule,
    check_schedule_name,
    from_row,
)
from ..statistics.gathering import Details
from ..supervisor.commands.requests import Handlers
from ..supervisor.extension_point import SupervisorExtension, SupervisorParts
from ..supervisor.topics.registry_format import TopicRow
from .extension import SchedulerService

LIBRARY: Final = "cronsim"
_NEEDS: Final = (
    f"schedules need {LIBRARY}, which is not installed on the broker's machine: "
    "pip install 'zsq[schedules]', and start the broker again"
)
_LOOK_NS: Final = 1_000_000_000
_LIVE: Final = ("new", "live")  # states of topics whose schedules are carried out
_NOTHING_KNOWN: Final[Mapping[str, Any]] = {
    "state": "new",
    "next_due_ns": 0,
    "last_due_ns": 0,
    "published_count": 0,
    "missed_count": 0,
    "trouble": "",
}


class ScheduleSupervision(SupervisorExtension):
    """The schedules of all topics."""

    def __init__(self, parts: SupervisorParts) -> None:
        super().__init__(parts)
        self._requests = parts.requests
        self._singles = parts.singles
        self._registry = parts.state.registry
        self._told: tuple[int, tuple[dict[str, Any], ...]] = (0, ())
        self._look_ns = 0
        self._version = -1
        self._is_missing: bool | None = None

    # For the scheduler

    def _running(self) -> list[Child]:
        return self._singles.of_kind(SchedulerService.kind)

    def tick(self, now_ns: int) -> None:
        """Tell the scheduler about changes of the registry at once.

        So it hears of the deletion of a topic before somebody can create another one of that name.
        """
        is_changed = self._version != self._registry.version
        if (is_changed or now_ns >= self._look_ns) and not self._requests.broker.stopping:
            self._look_ns, self._version = now_ns + _LOOK_NS, self._registry.version
            self._tell()

    def _tell(self) -> None:
        """Send the schedules to the scheduler, if it does not have them. Start it if necessary."""
        rows = tuple(
            {**row, "topic": topic, "name": name}
            for topic, of_topic in self._registry.topics.items()
            if of_topic.schedules and of_topic.state in _LIVE
            for name, row in of_topic.schedules.items()
        )
        children = self._running()
        if rows and not children and not self._lacks_library():
            self._singles.start_when_needed(SchedulerService.kind)
        for child in children:
            latest = child.spec.key, rows
            if child.state == "up" and self._told != latest:
                self._requests.broker.processes.send(child, p.Schedules(rows))
                self._told = latest

    def _lacks_library(self) -> bool:
        if self._is_missing is None:
            self._is_missing = find_spec(LIBRARY) is None
        return self._is_missing

    def trouble(self) -> str:
        """Return why no schedule is carried out, or ""."""
        count = sum(len(row.schedules) for row in self._registry.topics.values())
        if not count:
            return ""
        if self._lacks_library():
            return f"{count} schedules are not carried out: {_NEEDS}"
        if SchedulerService.kind in self._singles.given_up:
            text = "their process failed too often; see the log, and restart the broker"
            return f"{count} schedules are not carried out: {text}"
        return ""

    # Commands

    def handlers(self) -> Handlers:
        return {
            AddScheduleRequest: self._add,
            SetScheduleRequest: self._set,
            RunScheduleRequest: self._run,
            RemoveScheduleRequest: self._remove,
            PauseScheduleRequest: self._pause,
            ResumeScheduleRequest: self._pause,
            ListSchedulesRequest: self._list,
        }

    def _row(self, request: ScheduleRequest[Any]) -> TopicRow:
        """Return the row of the topic, after a check of the schedule's name."""
        check_schedule_name(request.name)
        row = self._registry.topics.get(request.topic)
        if row is None:
            text = f"topic {request.topic!r} does not exist; create it before its schedules"
            raise NotFound(E_NOT_FOUND, text)
        if row.state not in _LIVE:
            text = f"topic {request.topic!r} is being deleted or moved; try again later"
            raise Refused(E_CLOSING, text)
        return row

    def _row_with(self, request: ScheduleRequest[Any]) -> TopicRow:
        """Return the row of the topic, which has the schedule."""
        row = self._row(request)
        if request.name not in row.schedules:
            known = ", ".join(sorted(row.schedules)[:10]) or "none"
            text = f"topic {request.topic!r} has no schedule {request.name!r}; it has {known}"
            raise NotFound(E_NOT_FOUND, text)
        return row

    def _add(self, request: AddScheduleRequest) -> None:
        topic, name, row = request.topic, request.name, self._row(request)
        schedule = asked_schedule(options_of(request), uuid.uuid4().hex, int(time.time()))
        if is_ephemeral(topic):
            text = f"topic {topic!r} exists only in memory, and a schedule must be durable"
            raise UsageError(E_UNSUPPORTED, text)
        if name in row.schedules:
            text = f"topic {topic!r} has a schedule {name!r} already; remove it first"
            raise UsageError(E_EXISTS, text)
        self._keep(request, row, schedule)

    def _set(self, request: SetScheduleRequest) -> None:
        """Change a schedule. Its new due times count from now on, so none of them is missed."""
        name, row = request.name, self._row_with(request)
        before = from_row(row.schedules[name])
        schedule = changed_schedule(before, options_of(request), int(time.time()))
        others = {key: other for key, other in row.schedules.items() if key != name}
        self._keep(request, replace(row, schedules=others), schedule)

    def _keep(
        self, request: AddScheduleRequest | SetScheduleRequest, row: TopicRow, schedule: Schedule
    ) -> None:
        """Check a schedule, write it to the registry, and answer with its first due time."""
        self._check_room(schedule, {request.topic: row})
        if self._lacks_library():
            raise UsageError(E_UNSUPPORTED, _NEEDS)
        from .cron import Cron  # needs the library

        due = Cron(schedule.cron, schedule.timezone).first_after(schedule.since)
        schedules = {**row.schedules, request.name: as_row(schedule)}
        self._registry.schedule(request.topic, schedules)
        self._requests.done(request.request, {"next_due_ns": (due or 0) * 1_000_000_000})

    def _run(self, request: RunScheduleRequest) -> None:
        row = dict(self._row_with(request).schedules[request.name])
        from_row(row)  # a schedule that cannot be read is refused here
        if trouble := self.trouble():
            raise Refused(E_UNSUPPORTED, trouble)
        children = [child for child in self._running() if child.state == "up"]
        if not children:
            raise Refused(E_CLOSING, "the scheduler is being started; try again in a moment")
        order = partial(p.RunSchedule, topic=request.topic, name=request.name, row=row)
        relay = partial(self._requests.relay, request.request)
        self._requests.orders.send(children[0], order, relay)

    def _remove(self, request: RemoveScheduleRequest) -> None:
        schedules = {**self._row_with(request).schedules}
        del schedules[request.name]
        self._registry.schedule(request.topic, schedules)
        self._requests.done(request.request, {})

    def _pause(self, request: PauseScheduleRequest | ResumeScheduleRequest) -> None:
        """Pause or resume a schedule. Due times in a pause do not count as missed."""
        is_paused = isinstance(request, PauseScheduleRequest)
        schedules = {**self._row_with(request).schedules}
        schedule = from_row(schedules[request.name])
        if schedule.paused != is_paused:
            since = schedule.since if is_paused else int(time.time())
            changed = replace(schedule, paused=is_paused, since=since)
            schedules[request.name] = as_row(changed)
            self._registry.schedule(request.topic, schedules)
        self._requests.done(request.request, {})

    def _check_room(self, schedule: Schedule, changed: Mapping[str, TopicRow]) -> None:
        """Check the limits. `changed` are rows that count instead of those of the registry."""
        size_max = self._requests.broker.options.max_msg_size
        if len(schedule.body) > size_max:
            text = (
                f"the body of {len(schedule.body)} bytes is over this broker's limit of a message"
            )
            raise UsageError(E_TOO_BIG, f"{text}, {size_max} bytes (zsq serve --max-msg-size)")
        others = [
            other
            for row in {**self._registry.topics, **changed}.values()
            for other in row.schedules.values()
        ]
        if len(others) >= SCHEDULES_MAX:
            text = f"the broker has {SCHEDULES_MAX} schedules, which is the limit; remove some"
            raise Refused(E_LIMIT, text)
        size = len(schedule.body) + sum(
            len(str(other.get("body", ""))) * 3 // 4 for other in others
        )
        if size > SCHEDULES_BYTES_MAX:
            text = f"the bodies of all schedules have {size:,} bytes with this one; the limit is"
            raise Refused(E_LIMIT, f"{text} {SCHEDULES_BYTES_MAX:,} bytes; remove some")

    # The list

    def _list(self, request: ListSchedulesRequest) -> None:
        children = [child for child in self._running() if child.state == "up"]
        answer = partial(self._answer, request.request)
        self._requests.gatherings.gather(children, answer, detailed=True)

    def _answer(self, request: int, complete: bool, details: Details) -> None:
        reports: dict[tuple[str, str], ScheduleState] = {}
        for report in details.values():
            for state in cast("tuple[ScheduleState, ...]", report.get("schedules", ())):
                reports[state["topic"], state["name"]] = state
        self._requests.done(request, {"schedules": tuple(self._rows(reports))})

    def _rows(self, reports: Mapping[tuple[str, str], ScheduleState]) -> Iterator[ScheduleRow]:
        trouble = self.trouble()
        for topic, of_topic in sorted(self._registry.topics.items()):
            if of_topic.state not in _LIVE:
                continue
            for name, row in sorted(of_topic.schedules.items()):
                known: Mapping[str, Any] = reports.get((topic, name), _NOTHING_KNOWN)
                yield _row_of(topic, name, row, known, trouble)


def _row_of(
    topic: str, name: str, row: Mapping[str, Any], known: Mapping[str, Any], trouble: str
) -> ScheduleRow:
    """Return a row of the list. Values that this version cannot read are shown as text."""
    state = cast("ScheduleState", {**known, "topic": topic, "name": name})
    if row.get("paused") is True:
        state["state"], state["next_due_ns"] = "paused", 0
    state["trouble"] = state["trouble"] or trouble
    return {
        **state,
        "cron": str(row.get("cron", "")),
        "timezone": str(row.get("timezone", "")),
        "missed": str(row.get("missed", "")),
        "unique": str(row.get("unique", NEVER)),
        "body_bytes": len(str(row.get("body", ""))) * 3 // 4 - str(row.get("body", "")).count("="),
    }
