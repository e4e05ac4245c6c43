"""Progress bar on stderr for long work. It is shown only on a terminal, and removed at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

Advance = Callable[[int], None]
# The largest number of updates of rich in a second. Work may advance a million times a second.
REFRESHES_S: Final = 5


def shown() -> bool:
    """Return True if the user would see a progress bar.

    The result is False for a pipe, a file or an editor's terminal, or if the user wants no bar
    (TERM=dumb).
    """
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # stderr is closed
        return False


@contextlib.contextmanager
def bar(title: str, total: int | None, *, unit: str = "bytes") -> Iterator[Advance]:
    """Yield the function to call with the amount of work done.

    `unit` is "bytes" or the name of the counted items. `total` is None if it is not known.
    """
    if not shown():
        yield lambda done: None
        return
    from time import monotonic

    from rich import progress as rich
    from rich.console import Console

    count = rich.TextColumn(
        "{task.completed:,.0f}" + ("" if total is None else f" of {total:,}") + f" {unit}"
    )
    size: tuple[rich.ProgressColumn, ...] = (
        (rich.DownloadColumn(), rich.TransferSpeedColumn()) if unit == "bytes" else (count,)
    )
    time = rich.TimeElapsedColumn() if total is None else rich.TimeRemainingColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), *size, time)
    waiting, told_at = 0, monotonic()
    # stdout is not redirected. It carries the answer, and rich would print it to the bar's
    # terminal.
    with rich.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=REFRESHES_S,
    ) as progress:
        task = progress.add_task(title, total=total)

        def advance(done: int) -> None:
            nonlocal waiting, told_at
            waiting += done
            now = monotonic()
            if now - told_at >= 1 / REFRESHES_S:
                amount, waiting, told_at = waiting, 0, now
                progress.advance(task, amount)

        yield advance


def bytes_below(folder: Path, pattern: str) -> int:
    """Return the bytes of all files that match the pattern.

    Files removed meanwhile do not count.
    """
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
