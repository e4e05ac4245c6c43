"""Scheduler: the process that publishes the messages of schedules at their due times.

It is a separate process, because a topic may take seconds to answer. `book.py` decides which
schedules run, and `runs.py` what a run does. A few threads carry out runs, one at a time each. So a
topic that does not answer delays others only if as many such topics have due times as there are
threads.

The supervisor sends all schedules at each change of the registry. It starts this process with the
first schedule, and only on a primary: a standby has no supervisor.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ...transport.errors import E_INTERNAL, ZsqError
from ...transport.wire import protocol as p
from ..runtime.actor import Actor
from ..runtime.port import Mail, Port
from ..runtime.worker_thread import WorkerThread
from .book import Book, Outcome, Run
from .extension import SchedulerStart
from .runs import TopicTransactions, carry_out, publish_once

THREADS: Final = 4
# The wall clock may be moved, so the process looks at it so often instead of waiting for a time.
LOOK_MS: Final = 250.0

log = logging.getLogger("zsq")


class Scheduler(Actor[SchedulerStart]):
    def on_start(self) -> dict[str, Any]:
        self._book = Book()
        self._transactions = TopicTransactions(self.given.url)
        self._threads = [WorkerThread(f"run-{number}") for number in range(THREADS)]
        for thread in self._threads:
            self.listen_raw(thread, partial(self._ended, thread))
        self.supervisor.route(p.Schedules, self._take)
        self.obey(p.RunSchedule, self._run_once)
        self.every(LOOK_MS, lambda: None)  # `on_turn` looks at the clock
        return {}

    def _take(self, port: Port, mail: Mail, message: p.Schedules) -> None:
        self._book.take(message.rows)

    def _run_once(self, message: p.RunSchedule) -> None:
        thread = min(self._threads, key=lambda worker: worker.pending)
        thread.submit(message, partial(publish_once, self.given.url, message, time.time))

    def on_turn(self) -> None:
        if self.stopping:
            return
        free = [thread for thread in self._threads if not thread.pending]
        runs = self._book.ready(time.time(), time.monotonic_ns(), len(free)) if free else []
        for thread, run in zip(free, runs, strict=False):
            thread.submit(run, partial(carry_out, run, self._transactions, time.time))

    def _ended(self, thread: WorkerThread) -> None:
        for run, value in thread.results():
            if isinstance(run, p.RunSchedule):
                self.answer_order(_answer(run, value))
                continue
            self._book.ended(run, _outcome(run, value), time.monotonic_ns())

    def on_stop(self) -> bool:
        """End at once. A run that is cut off here is continued by the next process."""
        return True

    def on_end(self) -> None:
        self._book.cancel()
        if any(thread.pending for thread in self._threads):
            # A thread may wait some seconds for a topic. The process has nothing else to close.
            self.pulse()
            logging.shutdown()
            os._exit(0)
        for thread in self._threads:
            thread.close()

    def statistics(self) -> Mapping[str, object]:
        return {**self._book.figures()}

    def details(self) -> Mapping[str, object]:
        return {"schedules": self._book.rows()}


def _answer(run: p.RunSchedule, value: Any) -> p.Done | p.Failed:
    if not isinstance(value, Exception):
        return p.Done(run.request, {})
    if isinstance(value, ZsqError):
        return p.Failed(run.request, value.code, value.text)
    log.error("schedule %s of topic %s", run.name, run.topic, exc_info=value)
    return p.Failed(run.request, E_INTERNAL, f"{type(value).__name__}: {value}")


def _outcome(run: Run, value: Any) -> Outcome:
    """Return the outcome of a run. An unexpected error of one schedule must not stop the others."""
    if isinstance(value, Outcome):
        return value
    trouble = f"{type(value).__name__}: {value}"
    log.error("schedule %s of topic %s: %s", run.name, run.topic, trouble, exc_info=value)
    return Outcome(None, run.handled, None, trouble=trouble)
