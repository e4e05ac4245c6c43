"""A progress bar for work that takes long: on stderr, only where that is a terminal, and gone when the work is done.

Files that tell how much goes through them: what a progress bar shows of work that knows nothing of bars.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ...storage.files import Files

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


class CountedFiles(Files):
    """`read`, `written`: called with bytes."""

    def __init__(self, *, read: Callable[[int], None] | None = None, written: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._read = read
        self._written = written

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        if self._read is not None:
            self._read(len(data))
        return data

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        super().writev(fd, buffers, position)
        if self._written is not None:
            self._written(sum(map(len, buffers)))


def bytes_below(folder: Path, pattern: str) -> int:
    """What the files of that pattern hold; those that go meanwhile do not count."""
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
