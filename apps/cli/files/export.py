"""zsq export: write a topic to Parquet files, and continue where the last export ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..manage.settings import resolved
from ..options import with_broker
from ..output import json_option, say, tell
from ..quantities import BoundedSize, TopicPosition

if TYPE_CHECKING:
    from ...export import ExportReport

GAPS_SHOWN: Final = 20


@click.command()
@click.argument("topic")
@click.option(
    "--to",
    required=True,
    metavar="FILE.parquet|DIR",
    type=click.Path(path_type=Path),
    help="A new file that ends in .parquet, or a directory with a folder for each hour.",
)
@click.option(
    "--start",
    type=TopicPosition(),
    metavar="WHERE",
    help=(
        "First message: a place as in zsq seek. Default: after the messages that DIR has, else "
        "earliest."
    ),
)
@click.option(
    "--end",
    type=TopicPosition(),
    metavar="WHERE",
    help="Stop before this message: a place as in zsq seek. Default: latest.",
)
@click.option(
    "--columns",
    metavar="NAME,...",
    help="Columns of the files. Default: offset,timestamp,key,tag,value,headers.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="Compression of the columns.",
)
@click.option(
    "--file-size",
    type=BoundedSize(1024),
    default="512MiB",
    show_default=True,
    metavar="SIZE",
    help="In DIR, begin a new file after this much, before compression.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Leave out messages that no longer exist, instead of stopping there.",
)
@json_option
@with_broker
def export(topic: str, to: Path, url: str, timeout: float, as_json: bool, **options: Any) -> None:
    """Write the messages of TOPIC to Parquet. No channel takes part, and nothing is finished.

    DIR gets files such as date=2026-11-27/hour=14/TOPIC-START-END.parquet, by the hour (UTC) in
    which the broker stored the messages. Run the command again to add what is new: the names of the
    files say what DIR has, so no message is written twice.
    """
    from ....transport.client.blocking.client import Admin
    from ...export import ExportPlan
    from ...export import export as write
    from ..progress import bar

    columns = options["columns"]
    with Admin(url, timeout=timeout) as admin:
        start, end = (resolved(admin, topic, options[name]) for name in ("start", "end"))
    plan = ExportPlan(
        url,
        topic,
        to,
        start,
        end,
        None if columns is None else [name.strip() for name in columns.split(",")],
        options["compression"],
        options["file_size"],
        options["skip_lost"],
        timeout,
    )
    with bar("exporting", None, unit="messages") as advance:
        report = write(plan, advance)
    if as_json:
        tell(summary(report))
        return
    for line in lines(report, to):
        say(line)


def lines(report: ExportReport, to: Path) -> list[str]:
    if not report.files:
        ends = ", ".join(f"{name} to offset {end}" for name, end in report.ends.items())
        return [f"{to}: nothing new; it has {ends}"]
    files = f"{len(report.files)} files, " if len(report.files) > 1 else ""
    texts = [f"{to}: {report.messages:,} messages, {files}{report.bytes:,} bytes"]
    if report.lost:
        texts.append(f"warning: {report.lost:,} messages cannot be read and were left out")
        for name, gaps in report.gaps.items():
            shown = [f"{first} to {first + count - 1}" for first, count in gaps[:GAPS_SHOWN]]
            more = " and others" if len(gaps) > GAPS_SHOWN else ""
            texts.append(f"{name}: without offsets {', '.join(shown)}{more}")
    return texts


def summary(report: ExportReport) -> dict[str, object]:
    return {
        "messages": report.messages,
        "bytes": report.bytes,
        "lost": report.lost,
        "gaps": report.gaps,
        "files": [str(path) for path in report.files],
        "ends": report.ends,
    }
