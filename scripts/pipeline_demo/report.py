"""Report of the demo. It shows the checks against the CSV and the rates."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from zsq.transport.client.blocking.client import Reader

from . import work
from .crew import POOL, Crew
from .flights import Carrier, Tally, add_up, add_up_hours

HOURS_SHOWN: Final = 5


@dataclass(slots=True)
class Times:
    """Seconds that each part took, and the number of micro-batches.

    `workers` and `totals` are counted from the end of the push.
    """

    push: float = 0.0
    stream: float = 0.0
    workers: float = 0.0
    totals: float = 0.0
    batches: int = 0


@dataclass(slots=True)
class Outcome:
    """The results to check.

    `killed` is the pid of the worker that `--chaos` killed, or 0. `failed_tasks` is the number that
    Spark reports.
    """

    rows: list[bytes]
    bodies: list[bytes]
    crew: Crew
    hours: work.Hours
    hours_head: int
    times: Times
    chaos: bool
    killed: int = 0
    failed_tasks: int = 0


def report(console: Console, url: str, outcome: Outcome) -> bool:
    """Print the tables. Return True if everything agrees with the CSV."""
    crew, bodies = outcome.crew, outcome.bodies
    topic = read_topic(url, bodies)
    handled = Tally(bodies)
    handled.add(work.lines_of(crew.handled(index) for index in range(POOL)))
    reached = Tally(bodies)
    reached.add(work.lines_of([crew.counted]))
    from_csv = add_up(outcome.rows)
    from_queue = {
        name: Carrier(**values) for name, values in json.loads(crew.summary.read_text()).items()
    }
    print_carriers(console, from_csv, from_queue)
    print_hours(console, outcome.hours)

    count = f"{len(bodies):,}"
    hours = outcome.hours
    checks: dict[str, tuple[bool, Tally | None]] = {
        f"Spark to topic {work.TOPIC}: each of {count} rows exactly once": (
            topic.exactly_once,
            topic,
        ),
        f"each row was handled in channel {work.WORKERS}": (handled.complete, handled),
        f"each row reached channel {work.TOTALS}": (reached.complete, reached),
        "each row was counted once: the totals are those of the CSV": (
            from_queue == from_csv,
            None,
        ),
        "some were delivered twice, in both channels": (
            crew.sum_of(work.AGAIN) > 0 and crew.totals(work.AGAIN) > 0,
            None,
        ),
        f"topic to Spark to topic {work.HOURS}: {hours.messages:,} sums, hours as in the CSV": (
            hours.totals == add_up_hours(outcome.rows) and hours.messages == outcome.hours_head,
            None,
        ),
    }
    if outcome.chaos:
        checks["a pushing Python worker was killed, and its task tried again"] = (
            outcome.killed > 0 < outcome.failed_tasks,
            None,
        )
    table = Table("check, row by row", "result", "missing", "again", "unknown", box=box.SIMPLE_HEAD)
    for name, (good, tally) in checks.items():
        numbers = (
            (f"{tally.missing:,}", f"{tally.repeated:,}", f"{tally.strangers:,}")
            if tally
            else ("", "", "")
        )
        table.add_row(name, "[green]good" if good else "[red]WRONG", *numbers)
    console.print(table)
    print_rates(console, outcome)
    return all(good for good, _ in checks.values())


def read_topic(url: str, expected: list[bytes]) -> Tally:
    """Read all messages of the topic by offset."""
    tally = Tally(expected)
    with Reader(work.TOPIC, url=url) as reader:
        offset = 0
        while True:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                tally.add(
                    value or b""
                    for value in block.body.values()[max(0, offset - block.first_offset) :]
                )
                offset = max(offset, block.next_offset)
            if offset >= fetched.head:
                return tally


def print_carriers(
    console: Console, from_csv: dict[str, Carrier], from_queue: dict[str, Carrier]
) -> None:
    carriers = Table(
        "carrier",
        title="flights and mean delay, by carrier",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in ("flights", "mean delay (min)", "as in the CSV"):
        carriers.add_column(name, justify="right")
    for name in sorted(from_csv, key=lambda name: -from_csv[name].flights):
        found = from_queue.get(name, Carrier())
        agrees = asdict(found) == asdict(from_csv[name])
        carriers.add_row(
            name,
            f"{found.flights:,}",
            f"{found.mean_delay_minutes:.2f}",
            "yes" if agrees else "[red]no",
        )
    console.print(carriers)


def print_hours(console: Console, hours: work.Hours) -> None:
    """Print the hours with the most minutes of delay."""
    table = Table(
        "scheduled hour",
        "carrier",
        title="the worst hours, from the stream",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in ("flights", "mean delay (min)"):
        table.add_column(name, justify="right")
    for (hour, carrier), found in sorted(
        hours.totals.items(), key=lambda item: -item[1].delay_minutes
    )[:HOURS_SHOWN]:
        table.add_row(hour, carrier, f"{found.flights:,}", f"{found.mean_delay_minutes:.2f}")
    console.print(table)


def print_rates(console: Console, outcome: Outcome) -> None:
    crew, times, count = outcome.crew, outcome.times, len(outcome.rows)
    table = Table(
        "",
        "messages",
        "seconds",
        "a second",
        "failed and requeued",
        "delivered again",
        box=box.SIMPLE_HEAD,
    )

    def row(
        name: str,
        messages: int,
        seconds: float,
        failed: int | None = None,
        again: int | None = None,
    ) -> None:
        numbers = [f"{number:,}" if number is not None else "" for number in (failed, again)]
        table.add_row(
            name,
            f"{messages:,}",
            f"{seconds:.1f}",
            f"{messages / max(seconds, 1e-9):,.0f}",
            *numbers,
        )

    row("Spark reads the CSV and pushes it, durable", count, times.push)
    row(
        f"channel {work.WORKERS}: {POOL} processes, one by one",
        count,
        times.workers,
        crew.sum_of(work.FAILED),
        crew.sum_of(work.AGAIN),
    )
    row(
        f"channel {work.TOTALS}: 1 process, by batch",
        count,
        times.totals,
        crew.totals(work.FAILED),
        crew.totals(work.AGAIN),
    )
    row(f"Spark streams it back, {times.batches} micro-batches, summed up", count, times.stream)
    console.print(table)
    if outcome.chaos:
        killed = (
            f"killed pid {outcome.killed}"
            if outcome.killed
            else "nothing was killed: no Python worker was found in time"
        )
        console.print(
            f"chaos: {killed}; failed task attempts, by Spark's count: {outcome.failed_tasks}"
        )
