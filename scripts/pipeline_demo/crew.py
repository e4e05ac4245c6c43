"""The consuming processes of the demo. `Crew` starts, watches and ends them."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from local_setup.broker import BrokerFailed

from . import work

POOL: Final = 4
END_WAIT_S: Final = 20.0
SEED: Final = 13


@dataclass(slots=True)
class Crew:
    """The consuming processes with their counters and files."""

    folder: Path
    processes: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)

    def start(self, url: str, flights: int) -> None:
        context = multiprocessing.get_context("spawn")
        for index in range(POOL + 1):
            counters = context.RawArray("q", 3)
            self.counters.append(counters)
            if index < POOL:
                process = context.Process(
                    target=work.work,
                    args=(url, counters, self.handled(index), SEED + index),
                    daemon=True,
                )
            else:
                process = context.Process(
                    target=work.total,
                    args=(url, counters, self.counted, self.summary, flights, SEED + index),
                    daemon=True,
                )
            process.start()
            self.processes.append(process)

    def handled(self, index: int) -> Path:
        return self.folder / f"worker-{index}.lines"

    @property
    def counted(self) -> Path:
        return self.folder / "totals.lines"

    @property
    def summary(self) -> Path:
        return self.folder / "totals.json"

    def sum_of(self, which: int) -> int:
        """Return the sum of a counter over the pool of workers."""
        return sum(counters[which] for counters in self.counters[:POOL])

    def totals(self, which: int) -> int:
        return int(self.counters[POOL][which])

    def check(self) -> None:
        for process in self.processes:
            if process.exitcode is not None:
                raise BrokerFailed(f"a consumer ended early with code {process.exitcode}")

    def end(self) -> None:
        """Send SIGTERM, then wait for the end of each process. Kill a process that does not end."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(END_WAIT_S)
            if process.exitcode is None:
                process.kill()
                process.join()
