"""The simulated world: one clock, one queue of events, and processes made of greenlets. Everything
random is derived from one seed.

A simulated process runs the product's own code until it would wait: for a socket, a lock, a sleep
or a disk. There it switches to the scheduler (`park`), which takes the next event by its time. So
two runs of one seed do the same, and their events can be compared line by line (`log_hash`).

A killed process is never resumed. Its greenlets are kept (`_graveyard`). If one were
garbage-collected, its `finally` blocks would run, which does not happen in a killed process.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import greenlet

MS: Final = 1_000_000
S: Final = 1_000_000_000
START_NS: Final = 1_000 * S
WALL_START_NS: Final = 1_800_000_000 * S
EVENTS_MAX: Final = 2_000_000
# A task that wakes more often within a second does not wait for anything. The busiest tasks of all
# seeds wake about 1,200 times.
WAKES_MAX: Final = 4_000
CALM_NS: Final = 8 * S  # time after which half-open connections, heartbeats and leases have ended
# A reading of the clock takes this long. So code that waits for a time without sleeping makes
# progress.
_READ_NS: Final = 40


class Source(Protocol):
    """An object on which a task can wait."""

    def readable(self) -> bool: ...


class Stuck(Exception):
    """The simulation does not end: there are no more events, or too many."""


class Task:
    """A thread of a simulated process."""

    def __init__(self, process: Process, name: str, function: Callable[[], Any]) -> None:
        self.process = process
        self.name = name
        self.number = len(process.world.tasks)
        # Counts the task's sleeps, so that a wake-up for an earlier sleep has no effect.
        self.turn = 0
        self.wakes = 0  # number of wakes since `woken_ns`, which is at most a second ago
        self.woken_ns = 0
        self.parked = True
        self.waking = False
        self.listening: Any = ()  # the sources for which it waits
        self.done = False
        self.greenlet = greenlet.greenlet(partial(self._run, function))

    def _run(self, function: Callable[[], Any]) -> None:
        world = self.process.world
        try:
            function()
        except Exception as error:
            self.process.failed(self, error)
        self.done = True
        self.process.task_ended(self)
        # Never return: a finished greenlet would continue in its parent, at a place that the
        # scheduler did not choose.
        while True:
            self.parked = True
            world.main.switch()


class Process:
    """A process of the simulated broker, or of a client. The functions in `on_death` are called
    once, however the process ends.
    """

    def __init__(self, world: World, name: str, kind: str = "") -> None:
        self.world = world
        self.name = name
        self.kind = kind  # kind of the broker's process; empty for a client
        self.start = 0  # the number of the broker's start to which it belongs, 0 for a client
        self.machine = 0  # the number of the broker's machine, 0 for a client
        self.former: Any = None  # the former primary to which it belongs, see `former.py`
        self.pid = 1000 + len(world.processes)
        self.alive = True
        self.began_ns = world.now_ns
        # The process belongs to a machine that was lost, and goes on after a while.
        self.exiled = False
        self.asleep_until_ns = 0  # the process is stopped by SIGSTOP until this time
        self.tasks: list[Task] = []
        self.sockets: list[Any] = []
        self.on_death: list[Callable[[Process], None]] = []
        self.crash: BaseException | None = None
        world.processes.append(self)

    def run(self, function: Callable[[], Any], name: str = "main", delay_ns: int = 0) -> Task:
        world = self.world
        task = Task(self, f"{self.name}:{name}", function)
        self.tasks.append(task)
        world.tasks.append(task)
        task.waking = True
        world.at(world.now_ns + delay_ns, partial(world.resume, task, task.turn))
        return task

    def failed(self, task: Task, error: BaseException) -> None:
        self.crash = error
        self.world.note(f"{task.name} raised {type(error).__name__}")
        if not self.world.violations:
            self.world.trouble(self, error)

    def task_ended(self, task: Task) -> None:
        if task is self.tasks[0] and self.alive:
            self.kill("ended")

    def kill(self, why: str = "killed") -> None:
        """Kill the process at once, whatever it does. Code of the process itself that calls this
        must not continue (`World.leave`).
        """
        if not self.alive:
            return
        self.alive = False
        self.world.note(f"{self.name} {why}")
        for told in self.on_death:
            told(self)

    def wake(self, source: Source) -> None:
        """Wake all tasks of this process that wait for `source`."""
        for task in self.tasks:
            if task.parked and not task.waking and source in task.listening:
                self.world.wake(task)


class World:
    """One run. `rng` decides when things happen. `dice(name)` returns separate random numbers for
    other parts, from the same seed.
    """

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = self.dice("world")
        self.now_ns = START_NS
        self.wall_offset_ns = WALL_START_NS - START_NS
        self.wall_latest_ns = 0  # the latest wall-clock time that any process may have read
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.handled = 0
        self.processes: list[Process] = []
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.main = greenlet.getcurrent()
        self.disturbances = 0  # number of faults so far
        self.disturbed_ns = -CALM_NS
        self.violations: list[str] = []
        self.network: Any = None
        self.disk: Any = None
        self.bucket: Any = None
        self.broker: Any = None
        # Key of a child process -> the number of children that had been started before it.
        self.incarnations: dict[int, float] = {}
        self.epochs: dict[int, int] = {}  # epoch -> the number of its takeover
        self._say = say
        self._hash = hashlib.sha256()

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    # Notes about what happened

    def note(self, text: str) -> None:
        line = f"{(self.now_ns - START_NS) / 1e6:12.3f} {text}"
        self._hash.update(line.encode() + b"\n")
        if self._say is not None:
            self._say(line)

    def comment(self, text: str) -> None:
        """Write a line for people. It may contain things that differ between two runs of a seed."""
        if self._say is not None:
            self._say(f"{(self.now_ns - START_NS) / 1e6:12.3f}   . {text}")

    def log_hash(self) -> str:
        return self._hash.hexdigest()[:16]

    def trouble(self, process: Process, error: BaseException) -> None:
        """Record that a process ended by an exception. The exceptions that the product uses on
        purpose are listed in `broker.py`.
        """
        trace = traceback.extract_tb(error.__traceback__)
        where = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(trace[-5:])
        )
        self.violation(f"{process.name} ended by {type(error).__name__}: {error} ({where})")

    def violation(self, text: str) -> None:
        """Record that a promise was broken. The run ends."""
        if text not in self.violations:
            self.note(f"VIOLATION {text}")
            self.violations.append(text)

    def disturb(self, text: str) -> None:
        self.disturbances += 1
        self.disturbed_ns = self.now_ns
        self.note(f"FAULT {text}")

    def calm(self, since_ns: int) -> bool:
        """Return True if there was no fault after `since_ns`, and the effects of earlier faults are
        over. Rules that hold only without faults call this.
        """
        return self.disturbed_ns + CALM_NS < since_ns

    # Time

    def monotonic_ns(self) -> int:
        self.now_ns += _READ_NS
        return self.now_ns

    def time_ns(self) -> int:
        self.now_ns += _READ_NS
        wall = self.now_ns + self.wall_offset_ns
        self.wall_latest_ns = max(self.wall_latest_ns, wall)
        return wall

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_ns, self.count, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, action)

    # Tasks

    def park(self, timeout_ns: int | None = None) -> None:
        """Let the current task sleep until `wake`, or for this time."""
        task = self.current
        assert task is not None, "only a simulated process can wait"
        task.turn += 1
        task.parked = True
        task.waking = False
        if timeout_ns is not None:
            self.at(self.now_ns + max(0, timeout_ns), partial(self.resume, task, task.turn))
        self.main.switch()

    def pause(self, low_ns: int, high_ns: int) -> None:
        """Let some time pass, as real work takes time. Other events may happen meanwhile."""
        if self.current is not None:
            listening, self.current.listening = self.current.listening, ()
            task = self.current
            self.park(self.rng.randrange(low_ns, high_ns))
            task.listening = listening

    def wake(self, task: Task) -> None:
        if task.parked and not task.waking:
            task.waking = True
            self.at(
                self.now_ns + self.rng.randrange(2_000, 120_000),
                partial(self.resume, task, task.turn),
            )

    def resume(self, task: Task, turn: int) -> None:
        if not task.process.alive or not task.parked or task.turn != turn or task.done:
            return
        if task.process.asleep_until_ns > self.now_ns:
            # Look again after 50 ms, because SIGCONT may come before the planned time.
            soon = min(task.process.asleep_until_ns + 1, self.now_ns + 50 * MS)
            self.at(soon, partial(self.resume, task, turn))
            return
        task.parked = task.waking = False
        task.turn += 1
        self._count_wake(task)
        self.current = task
        task.greenlet.switch()
        self.current = None

    def _count_wake(self, task: Task) -> None:
        """Check that no process loops without waiting."""
        if self.now_ns - task.woken_ns > S:
            task.wakes, task.woken_ns = 0, self.now_ns
        task.wakes += 1
        if task.wakes > WAKES_MAX:
            self.violation(f"{task.name} woke {WAKES_MAX:,} times within a second")

    def leave(self) -> None:
        """Leave the current task for ever, because its process was killed."""
        assert self.current is not None
        while True:
            self.current.parked = True
            self.main.switch()

    def wait(self, listening: Any, done: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait until `done` is true. Check `done` each time when one of `listening` has news.
        Return False after the time-out.
        """
        task = self.current
        assert task is not None
        deadline = None if timeout_ns is None else self.now_ns + timeout_ns
        while not done():
            if deadline is not None and self.now_ns >= deadline:
                return False
            task.listening = listening
            self.park(None if deadline is None else deadline - self.now_ns)
            task.listening = ()
        return True

    def run(self, until: Callable[[], bool]) -> None:
        """Take events until the condition is true. Raise `Stuck` if there are no events, or too
        many.
        """
        while not until():
            if not self.events:
                raise Stuck("nothing will ever happen again")
            time_ns, _, action = heapq.heappop(self.events)
            self.now_ns = max(self.now_ns, time_ns)
            self.handled += 1
            if self.handled > EVENTS_MAX:
                raise Stuck(f"more than {EVENTS_MAX} events")
            action()


_world: World | None = None


def enter(world: World | None) -> None:
    """Make the clock and all other replacements use this world, or the real functions if it is
    None.
    """
    global _world
    _world = world


def world_now() -> World | None:
    return _world


def the_world() -> World:
    assert _world is not None
    return _world
