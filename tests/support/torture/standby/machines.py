"""The two machines of the standby torture: each has a data directory, a broker, and a path to the
bucket of its own. A thread reads in their logs who is primary.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from support.fault_proxy import FaultProxyProcess
from support.torture.bucket.homes import Home
from support.torture.bucket.store import Store

from zsq.storage.bucket.shipping.rescue_file import check_rescue, rescued_blocks
from zsq.storage.files import Files

PATIENCE_S: Final = 2.0
LOOK_S: Final = 0.01
# What a broker says when its role changes, and the state that this means.
SAYS: Final = (
    (b"takes over from copy ", "taking over"),
    (b" ready: ", "primary"),
    (b" is a standby of ", "standby"),
    (b"follows s3://", "following"),
    (b"is not primary any more", "ending"),
)


class Machine:
    """A machine. `number` is 1 or 2. `is_up` is False while its broker is killed on purpose."""

    def __init__(self, folder: Path, number: int, proxy: FaultProxyProcess, store: Store) -> None:
        self.number = number
        self.proxy = proxy
        self.home = Home(folder, number, 0, number)
        self.home.broker.extra += ("--patience", f"{PATIENCE_S:g}s")
        self.home.broker.environment = proxy.environment(store.direct)
        self.state = ""
        self.is_up = False
        self._position = 0
        self._rescued: set[Path] = set()

    @property
    def url(self) -> str:
        return self.home.url

    def launch(self, command: str) -> None:
        self.state = "starting"
        self.home.broker.command = command
        self.home.launch()
        self.is_up = True

    def kill(self) -> None:
        """Kill the whole process group, and wait for the end of all its processes."""
        self.is_up = False
        self.home.kill_everything()
        self.state = "killed"

    def news(self) -> list[bytes]:
        """Return the complete lines that its log has got since the last call."""
        log = self.home.broker.log
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()

    def rescued(self, seen: Callable[[str, int, bytes, bool], None]) -> int:
        """Tell `seen` (topic, offset, body, certain) of all messages that were set aside since the
        last call. Return their number.
        """
        count, files = 0, Files()
        for path in sorted(self.home.folder.glob("rescue/*/*.jsonl")):
            if path in self._rescued:
                continue
            self._rescued.add(path)
            topic = check_rescue(files, str(path)).head.topic
            for block in rescued_blocks(files, str(path)):
                for message in block.messages:
                    seen(topic, message.offset, message.body, not block.facts.why)
                    count += 1
        return count


class Watch(threading.Thread):
    """Reads the logs of both machines. `taken_over` is called in this thread at each takeover."""

    def __init__(
        self, machines: Collection[Machine], taken_over: Callable[[Machine], None]
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._machines = machines
        self._taken_over = taken_over
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(LOOK_S):
            for machine in self._machines:
                self._look_at(machine)

    def _look_at(self, machine: Machine) -> None:
        for line in machine.news():
            state = next((state for text, state in SAYS if text in line), "")
            if not state:
                continue
            if state == "taking over":
                self._taken_over(machine)
            machine.state = state

    def end(self) -> None:
        self._ends.set()
        self.join(10)


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until the condition is true, at most so long. Return True if it is."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(LOOK_S)
    return True


def spread(chance: random.Random, least: float, most: float) -> float:
    return chance.uniform(least * PATIENCE_S, most * PATIENCE_S)
