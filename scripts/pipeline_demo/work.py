"""Consumers of the demo: a pool of workers that fail at random, and one process that adds up.

Each writes the messages that it handled to a file, as lines. The final check reads these files,
because it does not rely on the broker's statistics. Counters for the progress bars lie in shared
memory. Each has one writer.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from zsq.apps.cli.options import stop_signals
from zsq.transport.client.blocking.client import Consumer, Message

from .flights import Carrier, add_up, number_of

TOPIC: Final = "flights"
PARTS: Final = 4  # of the topic, with --cluster
WORKERS: Final = "workers"
TOTALS: Final = "totals"
HOURS: Final = "flights-by-hour"
REPORT: Final = "report"
REMINDERS: Final = "reminders"
DESK: Final = "desk"
AUDIT: Final = "audit"
FAILURE_SHARE: Final = 0.02
POLL_S: Final = 0.2
RETRY_DELAY_S: Final = 0.2  # seconds; any free worker may get the failed flight again

# Indexes into the counters of a process.
HANDLED: Final = 0
FAILED: Final = 1
AGAIN: Final = 2


class HandlerFailed(Exception):
    """An error that a real handler would sometimes raise."""


def work(url: str, counters: Any, results: Path, seed: int) -> None:
    """Run one worker of the pool, which handles each flight separately.

    2% of the attempts fail, and their message is requeued.
    """
    chance = random.Random(seed)
    with (
        results.open("wb") as out,
        Consumer(TOPIC, WORKERS, url=url, ready=500, label=f"worker {seed}") as consumer,
    ):

        def handle(message: Message) -> None:
            if message.attempts > 1:
                counters[AGAIN] += 1
            if chance.random() < FAILURE_SHARE:
                counters[FAILED] += 1
                raise HandlerFailed("at random")
            out.write(message.body + b"\n")
            counters[HANDLED] += 1

        consumer.run(handle, requeue_delay=RETRY_DELAY_S, on_error=lambda *_: None)


def total(url: str, counters: Any, results: Path, summary: Path, flights: int, seed: int) -> None:
    """Add up the flights by carrier, in batches, until SIGTERM.

    2% of the batches are requeued although their flights were counted. A consumer that fails before
    it finishes a batch would cause the same. Such a batch is delivered again and must not count
    again.
    """
    chance = random.Random(seed)
    seen = bytearray(flights)
    counted: list[bytes] = []
    with (
        stop_signals() as stopping,
        results.open("wb") as out,
        Consumer(TOPIC, TOTALS, url=url, label="totals") as consumer,
    ):
        while not stopping.is_set():
            batch = consumer.receive_batch(timeout=POLL_S)
            if batch is None:
                continue
            bodies = batch.bodies
            fresh = [body for body in bodies if not seen[number_of(body)]]
            for body in fresh:
                seen[number_of(body)] = 1
            out.writelines(body + b"\n" for body in bodies)
            counted += fresh
            counters[HANDLED] += len(fresh)
            counters[AGAIN] += len(bodies) - len(fresh)
            if fresh and chance.random() < FAILURE_SHARE:
                counters[FAILED] += len(bodies)
                batch.requeue(delay=RETRY_DELAY_S)
            else:
                batch.finish()
    carriers = {name: asdict(carrier) for name, carrier in add_up(map(row_of, counted)).items()}
    summary.write_text(json.dumps(carriers))


@dataclass(slots=True)
class Hours:
    """Sums that the second topic's channel delivered, added up by hour and carrier."""

    totals: dict[tuple[str, str], Carrier] = field(default_factory=dict)
    messages: int = 0

    def add(self, body: bytes) -> None:
        found = json.loads(body)
        total = self.totals.setdefault((found["hour"], found["carrier"]), Carrier())
        total.flights += found["flights"]
        total.arrived += found["arrived"]
        total.delay_minutes += found["delay"]
        self.messages += 1


def receive_hours(
    consumer: Consumer, offsets: Iterable[int], limit_s: float, show: Callable[[int], None]
) -> Hours:
    """Consume the second topic's channel until these messages have come, and finish them."""
    hours = Hours()
    left = set(offsets)
    deadline = time.monotonic() + limit_s
    while left and time.monotonic() < deadline:
        batch = consumer.receive_batch(timeout=POLL_S)
        if batch is None:
            continue
        for offset, body in zip(batch.offsets, batch.bodies, strict=True):
            if offset in left:  # a message that is delivered again must not be added again
                left.remove(offset)
                hours.add(body)
        batch.finish()
        show(hours.messages)
    return hours


def row_of(body: bytes) -> bytes:
    return body[body.index(b",") + 1 :]


def lines_of(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                yield line.removesuffix(b"\n")
