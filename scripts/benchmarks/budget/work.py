"""Amount of work to measure, and the broker that each group gets for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_setup.broker import LocalBroker, temporary_broker

from ..harness.report import Report
from .lines import Lines

SECONDS_MIN: Final = 0.3
LONE: Final = ("--no-listen",)
GATES: Final = (*LONE, "--no-http", "--no-nsq")


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work.

    `scale` multiplies the loads. It is 1 for the table in the documentation. `waiting` is the
    number of messages of the backlog. The brokers' directories are in `folder`.
    """

    folder: Path | None
    rounds: int
    scale: float = 1.0
    waiting: int = 10_000_000

    def count(self, full: int, step: int = 1000) -> int:
        """Return the scaled number of messages in whole steps."""
        return max(step, int(full * self.scale) // step * step)

    def topics(self, full: int) -> int:
        return max(2, int(full * min(1.0, self.scale)))

    def seconds(self, full: float) -> float:
        return max(SECONDS_MIN, full * self.scale)


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a group."""

    lines: Lines
    report: Report


@contextlib.contextmanager
def group(work: Work, name: str, *options: str) -> Iterator[tuple[LocalBroker, Found]]:
    """Start a broker for this group alone, so that no group is slowed by the data of another."""
    with temporary_broker(*(options or GATES), prefix="zsq-bench-", under=work.folder) as broker:
        yield broker, found(name)


def found(name: str) -> Found:
    return Found(Lines(name), Report(name, {}, {}))
