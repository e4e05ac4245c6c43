"""Storage's desk for the log's upkeep: the ring's age, chunk statistics, damage to be kept, old chunks to be looked at, alarms.

Once a second, and never on a publisher's time: what reads or writes files goes to the housekeeping thread, one job at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ..storage.store import Store
from ..storage.survey import Found
from .read_desk import ReadDesk

log = logging.getLogger("zsq")

ALARMS_MAX: Final = 20  # that health repeats; the log of the process has them all
ALARM_CHARACTERS_MAX: Final = 300


class _Jobs(Protocol):
    def submit(self, tag: Any, job: Callable[[], Any]) -> None: ...


class LogDesk:
    """`house` gives the thread. `alarms`: what a person should know; at the next start damage is known, and no alarm any more."""

    def __init__(self, store: Store, title: str, house: Callable[[], _Jobs]) -> None:
        self._log = store.log
        self._report = store.report
        self._title = title
        self._house = house
        self._surveying = False
        self.reads: ReadDesk | None = None
        self.alarms: list[str] = []
        self.more_alarms = 0
        log.info("%s: %s", title, store.report.sentence())
        for note in store.report.notes:
            log.info("%s: %s", title, note)
        for alarm in store.report.alarms:
            self.alarm(alarm)

    def serves(self, reads: ReadDesk) -> None:
        """Its alarms are told here, and what waits there is tried again by the tick."""
        self.reads = reads
        reads.alarm = self.alarm

    def alarm(self, text: str) -> None:
        """Once in the log, and in health until the next start."""
        log.error("%s: %s", self._title, text)
        if len(self.alarms) < ALARMS_MAX:
            self.alarms.append(text[:ALARM_CHARACTERS_MAX])
        else:
            self.more_alarms += 1

    def tick(self, now_ns: int, steady_ns: int | None = None) -> None:
        """About once a second; `now_ns` is the wall clock's, which may be set: ages and rates go by the other."""
        reader = self._log.reader
        steady_ns = time.monotonic_ns() if steady_ns is None else steady_ns
        reader.ring.expire(steady_ns)
        reader.book.tick(steady_ns)
        if self.reads is not None:
            self.reads.tick()
        job = reader.damage.take(now_ns)
        if job is not None:
            self._house().submit(self._kept, job)
        self._survey()

    def _kept(self, said: list[str] | Exception) -> None:
        for line in [f"damaged blocks could not be kept: {said}"] if isinstance(said, Exception) else said:
            log.error("%s: %s", self._title, line)

    def _survey(self) -> None:
        job = None if self._surveying else self._log.survey.take()
        if job is not None:
            self._surveying = True
            self._house().submit(self._surveyed, job)

    def _surveyed(self, found: Sequence[Found] | Exception) -> None:
        self._surveying = False
        if isinstance(found, Exception):
            log.error("%s: old chunks could not be looked at: %s", self._title, found)
            return
        for alarm in self._log.survey.learn(found):
            self.alarm(alarm)
        self._survey()

    def chunks(self) -> dict[str, Any]:
        """What `zsq stats --chunks` shows."""
        return self._log.reader.chunk_rows()

    def statistics(self) -> dict[str, Any]:
        damage = self._log.reader.damage
        more = [f"and {self.more_alarms} more, see the log"] if self.more_alarms else []
        return {
            "chunks": len(self._log.reader.bases),
            "damaged_blocks": damage.blocks,
            "lost_messages": damage.messages,
            "ring_bytes": self._log.reader.ring.bytes,
            "alarms": [*self.alarms, *more, *([self.reads.unreadable] if self.reads is not None and self.reads.unreadable else [])],
            "recovery": {"text": self._report.sentence(), "duration_ms": self._report.duration_ms},
        }
