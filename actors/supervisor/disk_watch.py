"""Disk watch: the part of the supervisor that watches free space.

While the disk is full it sets the broker's health, raises an alarm, and writes log lines.

The disk counts as full if less than the reserve is free in the data directory, or if a topic's
storage reports that it refuses publishes because space is missing (`storage/space.py`, `Shortage`).
The second condition covers cases that the number of free bytes does not show: a quota of the file
system, no free inodes, the memory file system of `#ephemeral` topics, and a publish that is larger
than the free space.

The log reports a full disk at once, then once a minute, and once more at its end. The state ends
when there has been space for `OVER_S` seconds. Without this delay a disk near its limit would cause
an event twice a second.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ...storage.files import Files
from ...storage.space import describe, reserve_bytes
from ...transport.names import EPHEMERAL_SUFFIX
from ...transport.reports import DiskStats, RaisedAlarm
from ..settings import options
from ..statistics.broker_view import storage_pulse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .topics.broker_state import BrokerState

log = logging.getLogger("zsq")

FREE_BYTES: Final = "free_bytes"  # the kind of the alarm
EVENTS_MAX: Final = 100
AGAIN_S: Final = 60.0
OVER_S: Final = 3.0
TOPICS_NAMED: Final = 5
_S: Final = 1_000_000_000


class DiskEvent(NamedTuple):
    """The disk is full, or has space again. `event` is "raised" or "cleared"."""

    event: str
    free_bytes: int | None
    reserve_bytes: int
    raised_wall_ns: int
    wall_ns: int
    text: str


class DiskState:
    """The state of a disk, full or not, and the times at which to report it. No I/O."""

    def __init__(self) -> None:
        self.text = ""  # the reason why the disk is full, "" while it is not
        self.began_wall_ns = 0
        self._spare_since_ns = 0
        self._told_ns = 0

    def see(self, trouble: str, now_ns: int, wall_ns: int) -> str:
        """Return the event to report: "began", "lasts", "over", or "" for none.

        `trouble` says why the disk counts as full now, and is "" if it does not.
        """
        if trouble:
            self._spare_since_ns = 0
            began, self.text = not self.text, trouble
            if began:
                self.began_wall_ns = wall_ns
            elif now_ns - self._told_ns < AGAIN_S * _S:
                return ""
            self._told_ns = now_ns
            return "began" if began else "lasts"
        if not self.text:
            return ""
        self._spare_since_ns = self._spare_since_ns or now_ns
        if now_ns - self._spare_since_ns < OVER_S * _S:
            return ""
        self.text = ""
        return "over"


class RefusedCount:
    """The number of publishes of all topics that were refused since the broker's start. No I/O.

    Each topic's count begins at 0 when its process starts, and is gone when the topic is deleted.
    This class therefore adds up the growth of each count.
    """

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[str, int] = {}

    def see(self, counts: Mapping[str, int]) -> None:
        """Add the growth since the last call. `counts` are the topics' counts by uuid."""
        for uuid, count in counts.items():
            before = self._seen.get(uuid, 0)
            self.total += count - before if count >= before else count
        self._seen = dict(counts)


class DiskWatch:
    def __init__(self, state: BrokerState) -> None:
        self._broker = state
        self._files = Files()
        self._directory = str(state.options.data_dir.absolute())
        self._state = DiskState()
        self._due_ns = 0
        self._of_memory = False  # True if the text is about the disk of `#ephemeral` topics
        self._refused = RefusedCount()
        self._refused_before = 0  # the count when the disk was last not full
        self._events: deque[DiskEvent] = deque(maxlen=EVENTS_MAX)
        self.free_bytes: int | None = None
        self.reserve_bytes = 0

    def tick(self, now_ns: int) -> None:
        if now_ns < self._due_ns or self._broker.stopping:
            return
        self._due_ns = now_ns + options.PULSE_MS * 1_000_000
        self._measure()
        wall_ns = time.time_ns()
        change = self._state.see(self._trouble(), now_ns, wall_ns)
        refused = self.count_refused() - self._refused_before
        lasted_s = (wall_ns - self._state.began_wall_ns) / _S
        if change == "over":
            log.warning(
                "the disk has space again after %.0f s; %d publishes were refused in that time",
                lasted_s,
                refused,
            )
            self._events.append(self._event("cleared", wall_ns))
        elif change:
            log.error("%s (for %.0f s; %d publishes refused)", self._state.text, lasted_s, refused)
            if change == "began":
                self._events.append(self._event("raised", wall_ns))
        if not self._state.text:
            self._refused_before = self._refused.total

    def _measure(self) -> None:
        was_full = self._is_below_reserve
        try:
            self.free_bytes = self._files.free_bytes(self._directory)
            self.reserve_bytes = reserve_bytes(self._files, self._directory)
        except OSError:
            self.free_bytes = None  # the error of the next write describes the problem
        if was_full and not self._is_below_reserve:
            for group in self._broker.groups.values():
                group.retry_soon()  # space may be what its start lacked

    @property
    def _is_below_reserve(self) -> bool:
        return self.free_bytes is not None and self.free_bytes < self.reserve_bytes

    def _trouble(self) -> str:
        texts = []
        if self.free_bytes is not None and self._is_below_reserve:
            texts.append(describe(self._directory, self.free_bytes, self.reserve_bytes))
        full = {
            name: text
            for name, group in self._broker.groups.items()
            if (text := storage_pulse(group).get("disk_full", ""))
        }
        if full:
            named = sorted(full)[:TOPICS_NAMED]
            self._of_memory = not texts and named[0].endswith(EPHEMERAL_SUFFIX)
            more = f" and {len(full) - len(named)} more" if len(full) > len(named) else ""
            topics = f"topic{'s' if len(full) > 1 else ''} {', '.join(named)}{more}"
            texts = [f"publishes to {topics} are refused: {texts[0] if texts else full[named[0]]}"]
        return f"the disk is full: {texts[0]}" if texts else ""

    def count_refused(self) -> int:
        """Return how many publishes were refused for lack of space since the broker's start.

        The count includes topics that have been deleted meanwhile.
        """
        counts = {
            group.row.uuid: storage_pulse(group).get("disk_refused_count", 0)
            for group in self._broker.groups.values()
        }
        self._refused.see(counts)
        return self._refused.total

    @property
    def health(self) -> str:
        """The text that says that the disk is full, or "" if it is not."""
        return self._state.text

    def says_why(self, topic: str) -> bool:
        """Return True if the broker's health already says why publishes to this topic are refused.

        The health of the topic then need not repeat it.
        """
        return bool(self._state.text) and topic.endswith(EPHEMERAL_SUFFIX) == self._of_memory

    def _event(self, event: str, wall_ns: int) -> DiskEvent:
        text = (
            f"{event}: {self._state.text}"
            if event == "raised"
            else "cleared: the disk has space again"
        )
        return DiskEvent(
            event,
            self.free_bytes,
            self.reserve_bytes,
            self._state.began_wall_ns,
            wall_ns,
            text,
        )

    def take_events(self) -> list[DiskEvent]:
        """Return the events that have not been sent to the receivers of alarms."""
        events = list(self._events)
        self._events.clear()
        return events

    def again(self, wall_ns: int) -> list[DiskEvent]:
        """Return the alarm if it is raised. It is for a receiver that has not received it yet."""
        return [self._event("raised", wall_ns)] if self._state.text else []

    def rows(self) -> list[RaisedAlarm]:
        """Return the alarm if it is raised, as `zsq alarms` shows it."""
        if not self._state.text:
            return []
        return [
            {
                "topic": "", "channel": "", "kind": FREE_BYTES, "value": self.free_bytes, "threshold": self.reserve_bytes,
                "raised_ns": self._state.began_wall_ns, "text": self._state.text,
            }
        ]  # fmt: skip

    def statistics(self) -> DiskStats:
        return {
            "directory": self._directory,
            "free_bytes": self.free_bytes,
            "reserve_bytes": self.reserve_bytes,
            "refused_count": self.count_refused(),
            "full": self._state.text,
        }
