"""zsq doctor: check whether a broker can run well on this machine, and give advice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....actors.runtime.logs import escaped
from ..output import json_option, tell, wide_console
from .option_table import HTTP_LISTEN, NSQ_LISTEN

if TYPE_CHECKING:
    from ...doctor.system import CheckResult

PLACES: Final = ("127.0.0.1:4153", "127.0.0.1:4154", NSQ_LISTEN, HTTP_LISTEN)
STYLES: Final = {"ok": "green", "advice": "yellow", "problem": "bold red"}
TEXT_COLUMNS: Final = 100


@click.command()
@click.argument("data_dir", required=False, envvar="ZSQ_DATA_DIR", type=click.Path(path_type=Path))
@click.option(
    "--listen",
    metavar="HOST:PORT",
    multiple=True,
    help=f"A place that a broker is to listen at. Repeatable. Else {', '.join(PLACES)}.",
)
@click.option(
    "--bucket",
    metavar="URL",
    help=(
        "An object store to check: s3://, gs://, az:// or file://. Writes nine small objects "
        "and one of 9 MiB below URL/probe, and removes them."
    ),
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.05, max=3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait for the answer of a running broker.",
)
@json_option
def doctor(
    data_dir: Path | None,
    listen: tuple[str, ...],
    bucket: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Check this machine, and the broker on DATA_DIR if one runs. Changes nothing there.

    It checks versions, limits, memory, clock, disk, the time of a sync, and ports. Without DATA_DIR
    it checks the disk of the current directory. Exit codes: 0 no problem (there may be advice), 1 a
    problem.
    """
    from ...doctor import disk as of_disk
    from ...doctor import net as of_net
    from ...doctor import object_stores
    from ...doctor import system as of_system
    from .broker_options import check_listen

    for place in listen:
        check_listen(place, "--listen")
    url = None if bucket is None else object_stores.checked(bucket)
    folder = data_dir or Path()
    pid = of_disk.holder(data_dir) if data_dir is not None else 0
    is_standby = data_dir is not None and of_disk.is_of_standby(data_dir)
    checks: dict[str, of_system.Check] = {
        "python": of_system.python,
        "libzmq": of_system.libzmq,
        "libraries": of_system.libraries,
        "open files": of_system.open_files,
        "processes": of_system.processes,
        "memory": of_system.memory,
        "clock": of_system.clock,
        "file system": partial(of_disk.file_system, folder),
        "disk space": partial(of_disk.space, folder),
        "sync latency": partial(of_disk.syncs, folder),
        "ports": partial(of_net.ports, listen or PLACES, pid),
    }
    if data_dir is not None:
        checks["data directory"] = partial(of_disk.directory, data_dir)
        checks["temporary files"] = partial(of_disk.temporary, data_dir)
        if not is_standby:  # it listens nowhere on this machine before it takes over
            checks["broker"] = partial(
                of_net.broker, f"ipc://{data_dir.absolute()}/run", timeout, expected=pid != 0
            )
    if url is not None:
        checks["bucket"] = partial(object_stores.bucket, url)
    results = of_system.examined(checks)
    bad = of_system.worst(results) == of_system.PROBLEM
    if as_json:
        rows = [finding._asdict() for finding in results]
        tell({"well": not bad, "data_dir": str(data_dir) if data_dir else None, "findings": rows})
    else:
        _print(results)
    return 1 if bad else 0


def _print(results: Sequence[CheckResult]) -> None:
    from rich.table import Table

    console = wide_console()
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=TEXT_COLUMNS)
    for finding in results:
        text: Any = _plain(finding.text)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style="dim")
        table.add_row(_plain(finding.level, STYLES[finding.level]), _plain(finding.what), text)
    console.print(table)
    counts = {
        level: sum(finding.level == level for finding in results) for level in ("problem", "advice")
    }
    problems = (
        f"{counts['problem']} problem{'s' * (counts['problem'] != 1)}"
        if counts["problem"]
        else "no problem"
    )
    console.print(_plain(f"{problems}, {counts['advice'] or 'no'} advice", "bold"))


def _plain(text: str, style: str = "") -> Any:
    """Return the text without interpreting markup in it."""
    from rich.text import Text

    return Text(escaped(text, keep="\n"), style=style)
