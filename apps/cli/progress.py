"""A progress bar for work that takes long: on stderr, only where that is a terminal, and gone when the work is done."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

Advance = Callable[[int], None]
REFRESHES_S: Final = 5  # work may advance a million times a second: rich is told of it, and draws, so often only


def shown() -> bool:
    """Whether a bar would be seen: not in a pipe, a file or an editor's terminal, and not if nobody wants one (TERM=dumb)."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # closed
        return False


@contextlib.contextmanager
def bar(title: str, total: int | None, *, unit: str = "bytes") -> Iterator[Advance]:
    """Gives what is to be called with how much was done. `unit`: bytes, or what is counted. `total` None: not known."""
    if not shown():
        yield lambda done: None
        return
    from time import monotonic

    from rich import progress as rich
    from rich.console import Console

    count = rich.TextColumn("{task.completed:,.0f}" + ("" if total is None else f" of {total:,}") + f" {unit}")
    size: tuple[rich.ProgressColumn, ...] = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if unit == "bytes" else (count,)
    time = rich.TimeElapsedColumn() if total is None else rich.TimeRemainingColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), *size, time)
    waiting, told_at = 0, monotonic()
    # stdout is left alone: what is written there is the answer, and rich would take it to the bar's terminal.
    with rich.Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, refresh_per_second=REFRESHES_S
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
