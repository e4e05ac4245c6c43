"""zsq import-nsqd and zsq export-nsqd: import from nsqd and export to it, without a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....transport.settings import SYNC_MODES
from ..options import MESSAGE_BYTES_MAX
from ..output import json_option, say, tell
from ..progress import bar

if TYPE_CHECKING:
    from ...nsqd.nsqd_export import NsqdExportReport
    from ...nsqd.nsqd_import import ImportReport

_DATA_DIR = click.option(
    "--data-dir",
    required=True,
    envvar="ZSQ_DATA_DIR",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="ZSQ's data directory. Its broker must be stopped. Also set by ZSQ_DATA_DIR.",
)


_REMEDY = "To import it again from intact files, first delete all its topics (zsq topic delete)"


@click.command("import-nsqd")
@click.argument("nsqd_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_DATA_DIR
@click.option(
    "--sync",
    type=click.Choice((*SYNC_MODES,)),
    default="always",
    show_default=True,
    help="Sync mode of the imported topics.",
)
@click.option(
    "--node-id",
    type=click.IntRange(0, 1023),
    default=0,
    show_default=True,
    help="Number of the broker, for a new data directory, as in `zsq serve`.",
)
@click.option(
    "--skip-too-big",
    is_flag=True,
    help=(
        "Leave out bodies larger than 8 MiB, the limit of a block, instead of refusing the import."
    ),
)
@json_option
def import_nsqd(
    nsqd_dir: Path, data_dir: Path, sync: str, node_id: int, skip_too_big: bool, as_json: bool
) -> int:
    """Import the data of a stopped nsqd: topics, channels, pauses, and the backlog of each channel
    with its attempts.

    NSQD_DIR (nsqd's --data-path) is only read. Either all of it is imported, or nothing; a second
    run finds that it was done, and does nothing. Data that cannot be read is named, with file and
    position; all other data is imported, and the exit code is 1.
    """
    from ...nsqd.nsqd_import import import_nsqd as take_over
    from ..progress import bytes_below
    from .counted_files import CountedFiles

    with _storage_errors(), bar("importing", bytes_below(nsqd_dir, "*.dat")) as advance:
        source, files = str(nsqd_dir.absolute()), CountedFiles(written=advance)
        report = take_over(
            files,
            source,
            data_dir.absolute(),
            sync=sync,
            node_id=node_id,
            skip_too_big=skip_too_big,
        )
    if as_json:
        tell(_import_object(report))
    else:
        _tell_import(report, nsqd_dir)
    return 1 if report.found.lost_count > report.found.left_out else 0


def _import_object(report: ImportReport) -> Mapping[str, object]:
    topics = {
        topic.name: {
            "messages": topic.messages,
            "channels": topic.channels,
            "waiting": topic.waiting,
            "paused": topic.paused,
        }
        for topic in report.topics
    }
    lost = {
        "lost": [str(loss) for loss in report.found.lost],
        "lost_count": report.found.lost_count,
        "lost_bytes": report.found.lost_bytes,
    }
    before = {
        "done_before": report.again,
        "topics_of_before": report.still,
        "lost_before": report.lost_before,
    }
    return (
        before
        | {"topics": topics, "notes": list(report.found.notes), "left_out": report.found.left_out}
        | lost
    )


def _tell_import(report: ImportReport, nsqd_dir: Path) -> None:
    if report.again:
        say(f"{nsqd_dir} was imported before; nothing was done")
        if report.lost_before:
            say(
                (
                    f"zsq: {report.lost_before} places could not be read in that import. "
                    f"{_REMEDY}: "
                    f"{', '.join(report.still)}"
                ),
                err=True,
            )
        return
    for topic in report.topics:
        channels = (
            ", ".join(f"{name} {count}" for name, count in topic.channels.items()) or "no channel"
        )
        say(
            f"{topic.name}: {topic.messages} messages ({channels}; {topic.waiting} for all "
            f"channels){', paused' if topic.paused else ''}"
        )
    for note in report.found.notes:
        say(f"zsq: {note}", err=True)
    for loss in report.found.lost:
        say(f"zsq: lost: {loss}", err=True)
    count, left_out = report.found.lost_count, report.found.left_out
    if count > left_out:
        of_bytes = f"{report.found.lost_bytes} bytes in all" + (
            f", {left_out} of them left out by --skip-too-big" if left_out else ""
        )
        say(
            (
                f"zsq: {count} places could not be imported, {of_bytes}. Everything else was "
                f"imported. {_REMEDY}"
            ),
            err=True,
        )


@click.command("export-nsqd")
@click.argument("out_dir", type=click.Path(file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@_DATA_DIR
@click.option(
    "--delayed",
    type=click.Choice(["refuse", "now", "skip"]),
    default="refuse",
    show_default=True,
    help=(
        "What to do with delayed messages that are not due, which nsqd cannot keep on disk: "
        "publish them at once, or leave them out."
    ),
)
@click.option(
    "--max-msg-size",
    type=click.IntRange(1, 2**30),
    default=MESSAGE_BYTES_MAX,
    show_default=True,
    metavar="BYTES",
    help="The --max-msg-size of the nsqd that will read OUT_DIR.",
)
@click.option(
    "--skip-too-big", is_flag=True, help="Leave out larger bodies instead of refusing the export."
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Leave out unfinished messages that cannot be read, instead of refusing the export.",
)
@json_option
def export_nsqd(
    out_dir: Path, topics: tuple[str, ...], data_dir: Path, as_json: bool, **choices: Any
) -> None:
    """Write a data directory for nsqd 1.3, with the unfinished messages of all topics or of those
    named.

    OUT_DIR must be new or empty. NSQ has no keys, tags or headers: they are left out, and counted.
    """
    from ...nsqd.nsqd_export import ExportOptions
    from ...nsqd.nsqd_export import export_nsqd as give_back
    from .counted_files import CountedFiles

    options = ExportOptions(
        choices["delayed"], choices["max_msg_size"], choices["skip_too_big"], choices["skip_lost"]
    )
    with _storage_errors(), bar("writing", None) as advance:
        report = give_back(
            CountedFiles(written=advance), out_dir.absolute(), data_dir.absolute(), topics, options
        )
    if as_json:
        tell({"queues": report.queues, "notes": report.notes})
    else:
        _tell_export(report)


def _tell_export(report: NsqdExportReport) -> None:
    for queue, count in report.queues.items():
        say(f"{queue}: {count} messages")
    for note in report.notes:
        say(f"zsq: {note}", err=True)


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """Turn errors of storage into errors of the command line."""
    from ....storage.errors import DiskFull, ForeignDirectory, Locked, StorageError
    from ....transport.errors import (
        E_BAD_ARGUMENT,
        E_CLOSING,
        E_DISK_FULL,
        E_INTERNAL,
        Refused,
        UsageError,
    )

    try:
        yield
    except Locked as error:
        raise Refused(E_CLOSING, str(error)) from error
    except ForeignDirectory as error:
        raise UsageError(E_BAD_ARGUMENT, str(error)) from error
    except DiskFull as error:
        raise Refused(E_DISK_FULL, str(error)) from error
    except StorageError as error:
        raise Refused(E_INTERNAL, str(error)) from error
