"""zsq dump: print any file of ZSQ or nsqd as readable lines."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

import click

from ..options import stop_signals
from ..progress import Advance, bar


@click.command("dump")
@click.argument("place", metavar="FILE|URL")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--bodies", is_flag=True, help="Show the messages, too, with key, tag, headers and body."
)
@click.option("-n", "lines", type=click.IntRange(min=1), metavar="N", help="Print at most N lines.")
def dump(place: str, as_json: bool, bodies: bool, lines: int | None) -> int:
    """Print FILE as readable lines: a chunk, a staged part, an index, a .bad file, a topic's
    identity, registry.json, a state or delayed environment (data.mdb or its directory), a
    state.snapshot; nsqd's .dat, .meta.dat and nsqd.dat. A URL names an object of a bucket:
    s3://BUCKET/PREFIX/chunk/UUID/NAME or s3://BUCKET/PREFIX/log/NUMBER, for example.

    Files are recognised by content, not only by name. Damaged parts are shown with their position,
    and the output continues after them; exit code 1 if there were any. Environments are read
    without a lock, so the broker must be stopped.
    """
    from ....storage.bucket.bucket_url import SCHEMES

    if place.partition("://")[0] in SCHEMES:
        from ...dump.archive import fetched

        with fetched(place) as path:
            return _dump(path, as_json, bodies, lines)
    if not os.path.exists(place):
        raise click.BadParameter(f"{place} does not exist", param_hint="FILE")
    return _dump(Path(place), as_json, bodies, lines)


def _dump(file: Path, as_json: bool, bodies: bool, lines: int | None) -> int:
    from ...dump.dump import kind_of_path
    from ...dump.kinds import ENVIRONMENT

    kind = kind_of_path(str(file))
    if kind == ENVIRONMENT:
        return _apart(file, kind, as_json, bodies, lines)
    return _show(file, kind, as_json, bodies, lines)


def _show(file: Path, kind: str, as_json: bool, bodies: bool, lines: int | None) -> int:
    from ...dump.dump import dump as records
    from ...dump.record import DAMAGED, as_line
    from ...dump.record import as_json as to_json

    bad = False
    with stop_signals() as stopping, _bar(lines) as advance:
        for record in islice(records(str(file), kind, bodies=bodies), lines):
            bad = bad or record["kind"] == DAMAGED
            click.echo(to_json(record) if as_json else as_line(record))
            advance(1)
            if stopping.is_set():
                break
    return 1 if bad else 0


def _bar(lines: int | None) -> AbstractContextManager[Advance]:
    """Return a progress bar, unless the lines themselves go to the terminal."""
    return (
        nullcontext(lambda done: None)
        if sys.stdout.isatty()
        else bar("dumping", lines, unit="lines")
    )


def _apart(file: Path, kind: str, as_json: bool, bodies: bool, lines: int | None) -> int:
    """Print the records of an LMDB environment in a child process.

    LMDB trusts its pages, so a damaged page ends the process by a signal. The parent reports that.
    """
    from ...dump.record import as_json as to_json
    from ...dump.record import as_line, damaged

    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _show(file, kind, as_json, bodies, lines)
            sys.stdout.flush()
        except BrokenPipeError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        record = damaged(
            "reading stopped: a damaged LMDB page ended the process with "
            f"{signal.Signals(os.WTERMSIG(status)).name}"
        )
        click.echo(to_json(record) if as_json else as_line(record))
        return 1
    return os.waitstatus_to_exitcode(status)
