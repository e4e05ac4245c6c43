"""Runs of a schedule that are killed at every step, each in a process of its own.

    python tests/support/schedule_kills.py URL TOPIC BEGIN

For each hour from BEGIN on: a process carries out the run of this hour, and kills itself at a step
(kill -9). The step is the first one in the first hour, and the next one in each further hour. Then
another process carries out the same run undisturbed. The last hour is the one in which the step
does not exist. The program prints the steps in order, as JSON.

A step is the begin or the end of a call of the client library: to push, seal, commit, or ask, or to
send a request. After the last one, the request may have left the process or not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from zsq.actors.schedules.book import Run
from zsq.actors.schedules.cron import Cron
from zsq.actors.schedules.runs import TopicTransactions, carry_out
from zsq.actors.settings.schedule_settings import Schedule
from zsq.transport.client.blocking.asker import Asker
from zsq.transport.client.blocking.stage_writer import DiskCommitter, StageWriter

HOUR_S = 3_600
STEPS_MAX = 60
CALLS: tuple[tuple[type[Any], str], ...] = (
    (StageWriter, "push"),
    (StageWriter, "seal"),
    (StageWriter, "close"),
    (DiskCommitter, "version_here"),
    (DiskCommitter, "commit_here"),
    (Asker, "_send"),
    (Asker, "close"),
)


class Steps:
    """The steps of this process. It ends at step number `last`."""

    def __init__(self, last: int, note: Callable[[str], object]) -> None:
        self._last = last
        self._note = note
        self._count = 0
        for owner, name in CALLS:
            setattr(owner, name, self._counted(getattr(owner, name), f"{owner.__name__}.{name}"))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self._step(f"before {name}")
            found = function(*arguments, **more)
            self._step(f"after {name}")
            return found

        return call

    def _step(self, name: str) -> None:
        self._count += 1
        if self._count == self._last:
            self._note(name)
            os.kill(os.getpid(), signal.SIGKILL)


def run_in_child(url: str, topic: str, now_s: int, since: int, step: int) -> str:
    """Carry out a run in a child. Return the name of the step at which it died, or ""."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Steps(step, lambda name: os.write(write, name.encode()))
        schedule = Schedule("f" * 32, "0 * * * *", b"work", since=since)
        run = Run(topic, "hourly", schedule, Cron(schedule.cron))
        outcome = carry_out(run, TopicTransactions(url), lambda: now_s)
        os._exit(1 if outcome.trouble or outcome.last != now_s else 0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    name = os.read(read, 1_000).decode()
    os.close(read)
    assert bool(name) == os.WIFSIGNALED(status), status
    assert name or os.WEXITSTATUS(status) == 0, "the run failed"
    return name


def main(url: str, topic: str, begin: int) -> None:
    steps: list[str] = []
    for step in range(1, STEPS_MAX):
        now_s = begin + step * HOUR_S
        name = run_in_child(url, topic, now_s, begin, step)
        run_in_child(url, topic, now_s, begin, 0)
        if not name:
            break
        steps.append(name)
    print(json.dumps(steps))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
