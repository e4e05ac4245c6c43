"""Report of the demo. It shows the checks against the CSV and the rates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from zsq.apps.testing.asserting import messages_of
from zsq.transport.client.blocking.client import Admin
from zsq.transport.names import part_of

from . import work
from .crew import POOL, Crew
from .flights import Carrier, Tally, add_up, add_up_hours
from .loss_report import Lost, Place, check_loss, print_loss

HOURS_SHOWN: Final = 5
REASON_MAX: Final = 100
CODED: Final = re.compile(r"\bE_[A-Z_]+ [^\n]+")


@dataclass(slots=True)
class Times:
    """Seconds that each part took, and the number of micro-batches.

    `workers` and `totals` are counted from the end of the push. `restarts` has the reasons why the
    streaming query was started again from its checkpoint.
    """

    push: float = 0.0
    stream: float = 0.0
    workers: float = 0.0
    totals: float = 0.0
    batches: int = 0
    restarts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """The results to check.

    Spark's batch job pushed the first `pushed` rows. `hours_count` is the number of messages in the
    second topic. `killed` is the pid of the worker that `--chaos` killed, or 0. `failed_tasks` is
    the number that Spark reports. `lost` is what `--bucket` did.
    """

    rows: list[bytes]
    bodies: list[bytes]
    pushed: int
    crew: Crew
    hours: work.Hours
    hours_count: int
    times: Times
    chaos: bool
    killed: int = 0
    failed_tasks: int = 0
    lost: Lost | None = None


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
    origin = "Spark" if outcome.lost is None else "Spark and live publisher"
    checks: dict[str, tuple[bool, Tally | None]] = {
        f"{origin} to topic {work.TOPIC}: each of {count} rows exactly once": (
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
            hours.totals == add_up_hours(outcome.rows) and hours.messages == outcome.hours_count,
            None,
        ),
    }
    if outcome.chaos:
        checks["a pushing Python worker was killed, and its task tried again"] = (
            outcome.killed > 0 < outcome.failed_tasks,
            None,
        )
    if outcome.lost is not None:
        for name, good in check_loss(
            outcome.lost, dict(read_bodies(url, work.TOPIC)), bodies, handled
        ).items():
            checks[name] = good, None
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
    if outcome.lost is not None:
        print_loss(console, outcome.lost, handled, outcome.times.restarts)
    return all(good for good, _ in checks.values())


def reason_of(error: str) -> str:
    """Return the code and text of ZSQ's error in a text of Spark's, else the first line."""
    found: list[str] = CODED.findall(error)
    return (found[-1] if found else error.strip().partition("\n")[0])[:REASON_MAX]


def read_topic(url: str, expected: list[bytes]) -> Tally:
    """Read all messages of the topic by offset."""
    tally = Tally(expected)
    tally.add(body for _, body in read_bodies(url, work.TOPIC))
    return tally


def read_bodies(url: str, topic: str) -> Iterator[tuple[Place, bytes]]:
    """Yield the place and the body of each message of a topic, in all of its parts."""
    with Admin(url) as admin:
        names = [row["topic_name"] for row in admin.stats(topic)["topics"]]
    for name in names:
        _, part = part_of(name) or (name, -1)
        for message in messages_of(name, url):
            yield (part, message.offset), message.body


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

    row("Spark reads the CSV and pushes it, durable", outcome.pushed, times.push)
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
    row(
        f"Spark streams it back, {times.batches} micro-batches, summed up",
        count,
        times.stream,
    )
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
