"""Private memory of processes, measured by a thread while a test runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

EVERY_S = 0.05


def private_bytes(pid: int) -> int:
    """Return how much memory the process shares with no other process. Clean pages of files do not
    count, because they belong to the page cache.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return (
        sum(
            int(line.split()[1])
            for line in lines
            if line.startswith(("Private_Dirty", "Private_Hugetlb"))
        )
        * 1024
    )


class Peak:
    """Measures how much each process grows from now on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._first = {pid: private_bytes(pid) for pid in pids}
        self._most = dict(self._first)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            for pid in self._first:
                with contextlib.suppress(OSError):  # the process has ended
                    self._most[pid] = max(self._most[pid], private_bytes(pid))

    def close(self) -> dict[str, int]:
        """Stop, and return "pid: name" -> growth in bytes."""
        self._stop.set()
        self._thread.join(10)
        return {f"{pid}: {_name(pid)}": most - self._first[pid] for pid, most in self._most.items()}


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:60]
    return "gone"
