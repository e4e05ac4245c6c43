"""The kinds of kills of the torture (see `run.py`): they kill or stop one or more processes, once
or repeatedly. Each returns a text that says what it did.
"""

from __future__ import annotations

import random
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.broker import Broker
from support.torture.processes import Process, await_end, is_shared, of_sessions, send

from zsq.actors.settings.options import RESTARTS_MAX, RESTARTS_WITHIN_S

if TYPE_CHECKING:
    from support.torture.clients import Clients
    from support.torture.disk import ImageDisk

ACTORS: Final = ("topic", "channel", "host", "scan_worker", "scan_loop", "gateway", "alarm_teller")
CLIENTS: Final = ("producer", "consumer")
# After these kills the broker is started again.
GENERATION: Final = (
    "forkserver",
    "supervisor",
    "everything",
    "start_storm",
    "terminate",
    "power",
)
# The number of kills of each kind among thirty kills.
SHARES: Final[dict[str, int]] = {
    "topic": 4, "channel": 3, "host": 2, "scan_worker": 1, "scan_loop": 1, "gateway": 2, "alarm_teller": 1, "forkserver": 1,
    "supervisor": 1, "everything": 1, "producer": 2, "consumer": 2, "storm": 2, "start_storm": 1, "stop_short": 3, "stop_long": 2,
    "terminate": 1,
}  # fmt: skip
POWER: Final = "power"  # only with a disk that can lose its power, see `disk.py`
STOPPABLE: Final = ("supervisor", "forkserver", *ACTORS, *CLIENTS, *CLIENTS)
SHORT_S: Final = (0.02, 0.4)
LONG_S: Final = (2.3, 3.5)  # seconds, more than two heartbeat intervals
START_S: Final = 120.0
STORM_ROUNDS: Final = (2, 4)
# A process that fails more than RESTARTS_MAX times within a minute stays stopped, or the broker
# ends. So a process is killed only if it was killed fewer times than this.
RESTARTS_ROOM: Final = RESTARTS_MAX - STORM_ROUNDS[1] - 1


@dataclass(frozen=True)
class Done:
    """The result of a kill: a text for people, and whether the broker must be started again."""

    text: str
    ends_generation: bool = False


class Killer:
    """Carries out kills. A seeded random generator chooses victims and times."""

    def __init__(
        self, broker: Broker, clients: Clients | None, seed: int, disk: ImageDisk | None = None
    ) -> None:
        self.broker = broker
        self.clients = clients
        self.disk = disk
        self.random = random.Random(seed)
        self.sessions: set[int] = set()
        self._restarts: dict[str, deque[float]] = {}

    def note_generation(self) -> None:
        """Record that the broker was started: this is a new generation of its processes."""
        assert self.broker.process is not None
        self.sessions.add(self.broker.process.pid)
        self._restarts.clear()

    def living(self) -> list[Process]:
        assert self.broker.process is not None
        return of_sessions({self.broker.process.pid})

    def victim(self, kind: str) -> Process | None:
        """Return a process of this kind that the broker would still restart, or None if there is
        none now.
        """
        found = [
            process for process in self.living() if process.kind == kind and self._granted(process)
        ]
        return (
            self.random.choice(sorted(found, key=lambda process: process.title)) if found else None
        )

    def _group(self, process: Process) -> str:
        return process.topic if process.kind == "topic" else process.title

    def _granted(self, process: Process) -> bool:
        """Return True if the broker starts again all actors of this process. A topic that moves may
        have been in each process that several actors share.
        """
        since = time.monotonic() - RESTARTS_WITHIN_S
        groups = {self._group(process), *(name for name in self._restarts if is_shared(name))}
        ends = [at for group in groups for at in self._restarts.get(group, ())]
        return sum(at > since for at in ends) < RESTARTS_ROOM

    def kill(self, process: Process) -> None:
        self._restarts.setdefault(self._group(process), deque(maxlen=RESTARTS_MAX)).append(
            time.monotonic()
        )
        send(process, signal.SIGKILL)

    def carry_out(self, kind: str) -> Done | None:
        """Carry out one kill. Return None if there is no victim of this kind now."""
        if kind in CLIENTS:
            assert self.clients is not None
            return Done(self.clients.kill(kind))
        special: dict[str, Callable[[], Done | None]] = {
            "everything": self._everything,
            "storm": self._storm,
            "start_storm": self._start_storm,
            "stop_short": lambda: self._stop(SHORT_S),
            "stop_long": lambda: self._stop(LONG_S),
            "terminate": self._terminate,
            POWER: self._power,
        }
        if kind in special:
            return special[kind]()
        process = self.victim(kind)
        if process is None:
            return None
        self.kill(process)
        return Done(process.title.removeprefix("zsq: "), kind in GENERATION)

    def _everything(self) -> Done:
        """Kill all processes, in random order."""
        found = self.living()
        self.random.shuffle(found)
        for process in found:
            send(process, signal.SIGKILL)
        return Done(f"all {len(found)} processes", True)

    def _storm(self) -> Done | None:
        """Kill one actor, and kill its successors while they start."""
        kind = self.random.choice(
            ("topic", "channel", "host", "gateway", "scan_loop", "scan_worker")
        )
        process = self.victim(kind)
        if process is None:
            return None
        rounds = self.random.randint(*STORM_ROUNDS)
        self.kill(process)
        killed = 1
        for _ in range(rounds - 1):
            successor = self._successor(process)
            if successor is None:
                break
            select.select([], [], [], self.random.uniform(0, 0.06))
            self.kill(successor)
            process = successor
            killed += 1
        return Done(f"{process.title.removeprefix('zsq: ')}, {killed} times")

    def _successor(self, process: Process) -> Process | None:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            for other in self.living():
                if other.title == process.title and other.pid != process.pid:
                    return other
            select.select([], [], [], 0.002)
        return None

    def _start_storm(self) -> Done:
        """Kill all processes, and kill them again several times while the broker starts."""
        self._everything()
        rounds = self.random.randint(*STORM_ROUNDS)
        for _ in range(rounds):
            self.reap()
            self.broker.launch()
            self.note_generation()
            select.select([], [], [], self.random.uniform(0.1, 1.3))
            self._everything()
        return Done(f"all processes, and {rounds} times while they started", True)

    def reap(self) -> None:
        """Wait until the broker has ended, and check that none of its processes lives. A service
        manager does the same before it starts a service again.
        """
        assert self.broker.process is not None
        self.broker.process.wait(START_S)
        self._gone(self.broker.process.pid)

    def _gone(self, session: int) -> None:
        left = await_end(of_sessions({session}), 20)
        assert not left, f"these outlived their broker: {left}"
        self.sessions.discard(session)  # a new session may soon have the same number

    def start_again(self) -> None:
        """Start the broker again. In half of the cases, start it while processes of the last run
        are still ending.
        """
        assert self.broker.process is not None
        before = self.broker.process
        before.wait(START_S)
        if self.random.random() < 0.5:
            self._gone(before.pid)
        self.broker.start(START_S)
        self.note_generation()
        self._gone(before.pid)

    def end_all(self) -> None:
        """Kill all processes of all runs of the broker that still live, at the end of the
        torture.
        """
        for process in of_sessions(self.sessions):
            send(process, signal.SIGKILL)

    def _stop(self, seconds: tuple[float, float]) -> Done | None:
        """Stop one process of the broker or one client with SIGSTOP, and continue it later with
        SIGCONT.
        """
        kind = self.random.choice(
            [kind for kind in STOPPABLE if self.clients is not None or kind not in CLIENTS]
        )
        pause = self.random.uniform(*seconds)
        process = (
            self.clients.one(kind)
            if self.clients is not None and kind in CLIENTS
            else self.victim(kind)
        )
        if process is None:
            return None
        send(process, signal.SIGSTOP)
        try:
            select.select([], [], [], pause)
        finally:
            send(process, signal.SIGCONT)
        return Done(f"{process.title.removeprefix('zsq: ')} for {pause:.2f} s")

    def _power(self) -> Done:
        """Kill all processes, and lose what the kernel has not written."""
        assert self.disk is not None
        found = self.living()
        for process in found:
            send(process, signal.SIGKILL)
        self.reap()
        self.disk.cut_power()
        return Done(f"all {len(found)} processes, and the power", True)

    def _terminate(self) -> Done:
        """End the broker with SIGTERM, under load."""
        assert self.broker.process is not None
        self.broker.process.terminate()
        code = self.broker.process.wait(START_S)
        assert code == 0, f"a broker that was told to stop ended with code {code}"
        return Done("the broker, by SIGTERM", True)
