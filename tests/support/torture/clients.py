"""The client processes of the torture: they are started, killed, and started again here."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.broker import Broker
from support.torture import ledger as l
from support.torture.ledger import Ledger
from support.torture.processes import Process, read


class Clients:
    """The client processes: two that publish and two that consume. One of each kind uses TCP."""

    def __init__(self, ledger: Ledger, path: Path, broker: Broker, seed: int) -> None:
        self.ledger = ledger
        self.random = random.Random(seed)
        urls = (broker.ipc, broker.tcp)
        consumers = [
            [(channel, number, url) for channel in range(len(ledger.shape.channels))]
            for number, url in enumerate(urls)
        ]
        base: dict[str, Any] = {
            "ledger": str(path),
            "shape": ledger.shape.as_json(),
            "lanes": [],
            "stages": [],
            "consumers": [],
        }
        self._settings = {
            "producer 0": base | {"lanes": [(0, urls[0])]},
            "producer 1": base | {"lanes": [(1, urls[1])], "stages": [(2, urls)]},
            "consumer 0": base | {"consumers": consumers[0]},
            "consumer 1": base | {"consumers": consumers[1]},
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in self._settings:
            self._start(name)

    def _start(self, name: str) -> None:
        settings = self._settings[name] | {
            "name": name,
            "parent": os.getpid(),
            "seed": self.random.randrange(1 << 40),
        }
        command = [sys.executable, "-m", "support.torture.client", json.dumps(settings)]
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.processes[name] = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})

    def _choose(self, kind: str) -> str:
        return self.random.choice([name for name in self._settings if name.startswith(kind)])

    def one(self, kind: str) -> Process | None:
        return read(self.processes[self._choose(kind)].pid)

    def kill(self, kind: str) -> str:
        name = self._choose(kind)
        self.processes[name].kill()
        self.processes[name].wait(40)
        self._start(name)
        return name

    def ended(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def stop(self) -> None:
        self.ledger.words[l.STOP] = 1
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(40)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(40)
