"""Command line of the benchmarks."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from local_setup.broker import BrokerFailed, LocalBroker, temporary_broker
from local_setup.s3_servers import BUCKET, ServerFailed, find_weed, seaweedfs
from zsq.transport.errors import ZsqError

from .budget.command import every
from .cost.command import scaling
from .harness import machine
from .harness.crew import MemberFailed
from .harness.loads import Shape
from .harness.report import Report
from .harness.turns import interruptible
from .measures.dedupe import dedupe as measure_dedupe
from .measures.fairness import fairness as measure_fairness
from .measures.hops import hops as measure_hops
from .measures.paced import SHARES, PacedReport, Plan
from .measures.paced import paced as measure_paced
from .measures.priorities import priorities as measure_priorities
from .measures.transport import BLOCK, MESSAGES, transport
from .peers.nsq_peers import free_port

DURABLE: Final = {
    "always": "answered after fdatasync",
    "interval": "answered after the write, synced by time",
    "never": "answered after the write",
}
PACED: Final = "paced"
SEED_MAX: Final = 1 << 31


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def bench() -> None:
    """Measure ZSQ on this machine, on a broker of its own in a temporary directory that is removed
    afterwards.

    Numbers are medians of interleaved rounds. Compare the ratios to the limits of the same run, not
    numbers of two machines.
    """


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table."),
        click.option(
            "--folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Directory in which the data directory is made.",
        ),
        click.option("--sync", type=click.Choice(list(DURABLE)), default="always"),
        click.option("--rounds", type=click.IntRange(1, 50), default=3),
        click.option(
            "--size", type=click.IntRange(20, 1 << 20), default=200, help="Bytes of a body."
        ),
    ):
        command = option(command)
    return command


def _run(
    title: str,
    settings: dict[str, Any],
    common: dict[str, Any],
    measure: Callable[[LocalBroker, Report], None],
    port: int = 0,
    kind: type[Report] = Report,
) -> None:
    """Start a broker, measure, and print the report. An error gives one line and exit code 1.

    The port is that of the ZeroMQ gateway, 0 for none.
    """
    listen = ("--listen", f"127.0.0.1:{port}") if port else ("--no-listen",)
    options = (*listen, "--no-http", "--no-nsq", "--sync", common["sync"])
    durable = {
        "durability": f"{common['sync']}, {DURABLE[common['sync']]}",
        "rounds": common["rounds"],
    }
    with (
        _one_line_errors(),
        interruptible(),
        temporary_broker(*options, prefix="zsq-bench-", under=common["folder"]) as broker,
    ):
        report = kind(title, settings | durable, machine.describe(broker.folder))
        measure(broker, report)
    if title != PACED and report.machine["nats-server"] != "not found":
        report.notes.append(f"nats-server was found but not compared: only {PACED!r} compares it")
    _show(report, common["as_json"])


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (BrokerFailed, MemberFailed, ServerFailed, ZsqError, OSError) as error:
        sys.exit(f"bench: {error}")


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(report.as_json())
    else:
        report.show(Console() if sys.stdout.isatty() else Console(width=160))


@bench.command(PACED)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 240), default=10.0, help="Seconds of each run."
)
@click.option(
    "--share",
    "shares",
    type=click.FloatRange(1, 100),
    multiple=True,
    default=SHARES,
    help="Percent of a saturated rate; repeatable.",
)
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(1, 1_000_000),
    multiple=True,
    help="Messages a second, the same for all brokers, in place of shares; repeatable.",
)
@_common
def paced_command(
    seconds: float,
    shares: tuple[float, ...],
    rates: tuple[float, ...],
    size: int,
    rounds: int,
    **common: Any,
) -> None:
    """Measure single messages by a fixed timetable, from the due time to the handler.

    Redis, nsqd and JetStream are measured too if they are here.
    """
    plan = Plan(size, seconds, shares, rates)
    settings = {"seconds": seconds, "body": f"{size} B", "block": "1 message"}
    measure = lambda broker, report: measure_paced(broker, report, plan, rounds)  # noqa: E731
    _run(PACED, settings, common | {"rounds": rounds}, measure, kind=PacedReport)


@bench.command(name="transport")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=5.0,
    help="Seconds of single messages, in each round.",
)
@_common
def transport_command(seconds: float, size: int, rounds: int, **common: Any) -> None:
    """Measure clients that use the gateway's address on the broker's machine, beside ipc."""
    port = free_port()
    settings = {
        "messages": f"{MESSAGES:,}",
        "body": f"{size} B",
        "block": f"{BLOCK:,} messages; and one by one",
    }
    measure = lambda broker, report: transport(  # noqa: E731
        broker, report, f"tcp://127.0.0.1:{port}", size, seconds, rounds
    )
    _run("transport", settings, common | {"rounds": rounds}, measure, port=port)


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(10_000, 50_000_000),
    default=500_000,
    help="Messages of each topic.",
)
@_common
def priorities(messages: int, size: int, rounds: int, **common: Any) -> None:
    """Measure what priorities cost: a channel with priorities beside one without, and how long an
    urgent message behind a backlog waits.
    """
    shape = Shape(messages, size, 1000)
    settings = {"messages": f"{messages:,}", "body": f"{size} B", "block": "1,000 messages"}
    measure = lambda broker, report: measure_priorities(broker, report, shape, rounds)  # noqa: E731
    _run("priorities", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(10_000, 50_000_000),
    default=500_000,
    help="Messages of each topic.",
)
@_common
def fairness(messages: int, size: int, rounds: int, **common: Any) -> None:
    """Measure what fairness between keys costs, how long a new key behind a backlog waits, and the
    rates of limited channels.
    """
    shape = Shape(messages, size, 1000)
    settings = {"messages": f"{messages:,}", "body": f"{size} B", "block": "1,000 messages"}
    measure = lambda broker, report: measure_fairness(broker, report, shape, rounds)  # noqa: E731
    _run("fairness", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(10_000, 50_000_000),
    default=300_000,
    help="Messages of each topic.",
)
@click.option(
    "--ids",
    type=click.IntRange(10_000, 100_000_000),
    default=10_000_000,
    help="Ids of the large index.",
)
@_common
def dedupe(messages: int, size: int, rounds: int, ids: int, **common: Any) -> None:
    """Measure what ids cost: publishes in blocks with ids beside the same without, and the memory,
    the disk and the start of an index with many ids.
    """
    shape = Shape(messages, size, 1000)
    settings = {"messages": f"{messages:,}", "body": f"{size} B", "block": "1,000 messages"}
    measure = lambda broker, report: measure_dedupe(broker, report, shape, rounds, ids)  # noqa: E731
    _run("dedupe", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option("--mib", type=click.IntRange(256, 100_000), default=1024, help="MiB to archive.")
@click.option(
    "--part",
    type=click.Choice(("archive", "shipping", "takeover", "moves")),
    help=(
        "Measure only this part: the archive and Spark's reads from it, shipping and restore, "
        "takeovers by a standby, or moves of a part to another broker."
    ),
)
@_common
def bucket(mib: int, part: str | None, size: int, rounds: int, **common: Any) -> None:
    """Measure a broker with a bucket, restores, and Spark's reads from it. Runs SeaweedFS."""
    from .measures.bucket import bucket as measure  # Spark is an extra
    from .measures.moves import moves as measure_moves
    from .measures.shipping import shipping as measure_shipping
    from .measures.takeover import takeover as measure_takeover

    del size
    settings = {"published": f"{mib:,} MiB", "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="zsq-bench-", dir=common["folder"]) as folder:
        report = Report("bucket", settings, machine.describe(Path(folder)))
        server = Path(folder) / "server"
        with _one_line_errors(), seaweedfs(find_weed(), server) as environment:
            os.environ.update(environment)
            if part in (None, "takeover"):
                measure_takeover(report, f"s3://{BUCKET}/takeover", rounds)
            if part in (None, "moves"):
                measure_moves(report, f"s3://{BUCKET}/moves", rounds)
            if part in (None, "shipping"):
                measure_shipping(report, f"s3://{BUCKET}/ship", server, rounds)
            if part in (None, "archive"):
                measure(report, f"s3://{BUCKET}/bench", mib, rounds)
    _show(report, common["as_json"])


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(1_000, 50_000_000),
    default=500_000,
    help="Messages of each topic in each round.",
)
@click.option("--batch", type=click.IntRange(1, 10_000), default=1000, help="Messages in a block.")
@_common
def parts(messages: int, batch: int, size: int, rounds: int, **common: Any) -> None:
    """Measure what a message costs in topics with 1, 2, 4 and 8 parts, and in one without parts."""
    from .measures.parts import parts as measure  # a cluster needs the bucket, which is an extra

    settings = {"messages": f"{messages:,}", "body": f"{size} B", "block": f"{batch:,} messages"}
    report = Report(
        "parts", settings | {"rounds": rounds}, machine.describe(Path(tempfile.gettempdir()))
    )
    with _one_line_errors():
        measure(report, messages, batch, size, rounds)
    _show(report, common["as_json"])


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(1000, 50_000_000),
    default=1_000_000,
    help="Messages of each round, or 10,000 blocks if that is less.",
)
@click.option("--blocks", default="1000,200,1", help="Messages in a block, separated by commas.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 10_000),
    default=0.0,
    help="Publish so many messages a second, each alone, and no blocks; 0: blocks at full speed.",
)
@_common
def hops(messages: int, blocks: str, rate: float, size: int, rounds: int, **common: Any) -> None:
    """Measure where the time goes: processor time and wake-ups of each process for each block, with
    one producer and one consumer at once.
    """
    sizes = tuple(int(number) for number in blocks.split(","))
    settings = {"messages": f"{messages:,}", "body": f"{size} B", "blocks": blocks, "rate": rate}
    measure = lambda broker, report: measure_hops(  # noqa: E731
        broker, report, messages, size, sizes, rounds, rate
    )
    _run("hops", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option(
    "--messages", type=click.IntRange(100, 1_000_000), default=3000, help="Tasks of each round."
)
@click.option(
    "--kills", type=click.IntRange(0, 1000), default=5, help="Workers killed, 0 for none."
)
@click.option("--seed", type=int, help="Seed of the kills.  [default: a random one, printed]")
@_common
def tasks(
    messages: int, kills: int, seed: int | None, size: int, rounds: int, **common: Any
) -> None:
    """Measure Celery's tasks a second on ZSQ, and on Redis if redis-server is on PATH; and what
    is lost or runs twice while workers are killed.
    """
    from .measures.task_kills import Kills
    from .measures.tasks import tasks as measure

    port = free_port()
    seed = secrets.randbelow(SEED_MAX) if seed is None else seed
    settings = {"tasks": f"{messages:,}", "kills": kills, "seed": seed}
    _run(
        "tasks",
        settings,
        common | {"rounds": rounds},
        lambda broker, report: measure(broker, port, report, messages, Kills(kills, seed), rounds),
        port=port,
    )


bench.add_command(every)
bench.add_command(scaling)


def main() -> None:
    bench(prog_name="bench")
