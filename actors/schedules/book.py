"""Book of the schedules: which of them have something to do now, and what each has done. Pure.

| state | when | and then |
|---|---|---|
| `new` | nothing is known of the topic | it runs at once |
| `waiting` | the next due time is in the future | it runs at that time |
| `running` | a thread carries it out | the outcome decides |
| `failing` | the topic did not answer, or refused | it runs again after 1, 2, 4 ... 60 s |
| `paused` | a user has paused it | nothing, until it is resumed |
| `invalid` | the schedule cannot be read by this version | nothing |

A schedule that was removed or changed while it ran is cancelled. The due time that it is just
publishing is still published. A changed schedule does not begin before the outcome is there: the
two would publish at the same time, which does no harm, but counts a due time twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ...transport.errors import UsageError
from ...transport.reports import SchedulesStats
from ...transport.units import NS_PER_S
from ...transport.wire.answers import ScheduleState
from ..settings.schedule_settings import Schedule, from_row
from .cron import Cron

NEW: Final = "new"
WAITING: Final = "waiting"
RUNNING: Final = "running"
FAILING: Final = "failing"
PAUSED: Final = "paused"
INVALID: Final = "invalid"
PAUSE_NS: Final = NS_PER_S
PAUSE_DOUBLINGS_MAX: Final = 6  # the longest pause is 64 s

Key = tuple[str, str]  # topic and name
log = logging.getLogger("zsq")


@dataclass(slots=True)
class Run:
    """One run of a schedule.

    All due times up to `handled` were decided before. `last` is the last due time that the topic
    has: -1 for none, None if it is not known. `is_cancelled` may be set at any time. The run then
    ends before its next due time.
    """

    topic: str
    name: str
    schedule: Schedule
    cron: Cron
    last: int | None = None
    handled: int = 0
    is_cancelled: bool = False


class Outcome(NamedTuple):
    """The result of a run.

    `last` and `handled`: see `Run`. `next_due` is the first due time after these, or None.
    `published` and `left_out` count due times of this run. `held` of those that are left out were
    due while an earlier message of the schedule held its key. `trouble` says why it ended early.
    """

    last: int | None
    handled: int
    next_due: int | None
    published: int = 0
    left_out: int = 0
    trouble: str = ""
    held: int = 0


@dataclass(slots=True)
class _Entry:
    row: Mapping[str, object]
    schedule: Schedule | None = None
    cron: Cron | None = None
    trouble: str = ""
    last: int | None = None  # the last due time that the topic has; None if it is not known
    handled: int = 0
    next_due: int | None = None
    run: Run | None = None
    is_asked: bool = False  # the topic has answered once
    tries: int = 0
    retry_ns: int = 0
    published: int = 0
    left_out: int = 0
    old: list[Run] = field(default_factory=list)  # cancelled runs that have not ended

    @property
    def state(self) -> str:
        if self.schedule is None or self.cron is None:
            return INVALID
        if self.run is not None:
            return RUNNING
        if self.schedule.paused:
            return PAUSED
        if self.tries:
            return FAILING
        return WAITING if self.is_asked else NEW


class Book:
    """All schedules of the broker. Times are seconds since 1970, or monotonic nanoseconds."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self.published_count = 0
        self.left_out_count = 0

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take all schedules: rows of the registry, each with its topic and name."""
        before, self._entries = self._entries, {}
        for given in rows:
            row = dict(given)
            key = str(row.pop("topic")), str(row.pop("name"))
            known = before.pop(key, None)
            if known is None or known.row != row:
                known = _entry(row, known)
            self._entries[key] = known
        for gone in before.values():
            _cancel(gone)

    def ready(self, now_s: float, now_ns: int, count_max: int) -> list[Run]:
        """Return the runs to begin now, at most `count_max`, those that are due longest first."""
        candidates = [
            (entry.next_due or 0, key, entry)
            for key, entry in self._entries.items()
            if not entry.old and _is_ready(entry, now_s, now_ns)
        ]
        candidates.sort(key=lambda candidate: candidate[:2])
        return [self._begin(key, entry) for _, key, entry in candidates[:count_max]]

    @staticmethod
    def _begin(key: Key, entry: _Entry) -> Run:
        assert entry.schedule is not None
        assert entry.cron is not None
        run = entry.run = Run(*key, entry.schedule, entry.cron, entry.last, entry.handled)
        return run

    def ended(self, run: Run, outcome: Outcome, now_ns: int) -> None:
        """Note the outcome of a run. Nothing is kept of a schedule that was removed meanwhile."""
        self.published_count += outcome.published
        self.left_out_count += outcome.left_out
        entry = self._entries.get((run.topic, run.name))
        if entry is None:
            return
        entry.old = [old_run for old_run in entry.old if old_run is not run]
        is_own = entry.run is run
        if is_own:
            entry.run = None
        elif entry.schedule is None or entry.schedule.uuid != run.schedule.uuid:
            return  # another schedule of that name
        entry.published += outcome.published
        entry.left_out += outcome.left_out
        entry.last, entry.handled = outcome.last, max(entry.handled, outcome.handled)
        if not is_own:
            return  # a former version, whose next due time is by another expression
        entry.next_due = outcome.next_due
        entry.is_asked = entry.is_asked or outcome.last is not None
        _note_trouble(entry, run, outcome, now_ns)

    def cancel(self) -> None:
        """Cancel all runs, because the process stops."""
        for entry in self._entries.values():
            _cancel(entry)

    # Reports

    def figures(self) -> SchedulesStats:
        states = [entry.state for entry in self._entries.values()]
        return {
            "count": len(states),
            "published_count": self.published_count,
            "missed_count": self.left_out_count,
            "failing": states.count(FAILING) + states.count(INVALID),
        }

    def rows(self) -> list[ScheduleState]:
        return [
            {
                "topic": topic,
                "name": name,
                "state": entry.state,
                "next_due_ns": _ns(None if entry.state == PAUSED else entry.next_due),
                "last_due_ns": _ns(entry.last),
                "published_count": entry.published,
                "missed_count": entry.left_out,
                "trouble": entry.trouble,
            }
            for (topic, name), entry in self._entries.items()
        ]


def _entry(row: Mapping[str, object], before: _Entry | None) -> _Entry:
    """Return the entry of a new or changed schedule. A changed one keeps what is known of it."""
    entry = _Entry(row)
    try:
        entry.schedule = from_row(row)
        entry.cron = Cron(entry.schedule.cron, entry.schedule.timezone)
    except UsageError as error:
        entry.trouble = error.text
    if before is not None:
        _cancel(before)
        entry.old = before.old
        same = before.schedule is not None and entry.schedule is not None
        if same and before.schedule.uuid == entry.schedule.uuid:  # type: ignore[union-attr]
            entry.last, entry.handled = before.last, before.handled
            entry.published, entry.left_out = before.published, before.left_out
    return entry


def _cancel(entry: _Entry) -> None:
    if entry.run is not None:
        entry.run.is_cancelled = True
        entry.old.append(entry.run)
        entry.run = None


def _is_ready(entry: _Entry, now_s: float, now_ns: int) -> bool:
    if entry.state == FAILING:
        return now_ns >= entry.retry_ns
    if entry.state == WAITING:
        return entry.next_due is not None and entry.next_due <= now_s
    return entry.state == NEW


def _note_trouble(entry: _Entry, run: Run, outcome: Outcome, now_ns: int) -> None:
    subject = f"schedule {run.name} of topic {run.topic}"
    if outcome.trouble:
        if not entry.tries:
            log.warning("%s does not publish: %s; trying again", subject, outcome.trouble)
        entry.retry_ns = now_ns + (PAUSE_NS << min(entry.tries, PAUSE_DOUBLINGS_MAX))
        entry.tries += 1
    elif entry.tries:
        log.warning("%s publishes again", subject)
        entry.tries = 0
    if outcome.held:
        log.info("%s has left out %d due times, see its --unique", subject, outcome.held)
    if missed := outcome.left_out - outcome.held:
        log.warning("%s has left out %d due times that were missed", subject, missed)
    entry.trouble = outcome.trouble


def _ns(seconds: int | None) -> int:
    return 0 if seconds is None or seconds < 0 else seconds * NS_PER_S
