"""What the operating system knows about a process: title, parent's death, private memory, pidfds.

When a process gives freed memory back to the system (transport/memory.py keeps it otherwise). Pure.

Under load it would only be taken again, and a thousand idle channels shall not do it with each pulse: once when it is quiet again, and now
and then where something small comes all the time, like scan reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
from typing import Final

import setproctitle

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL when the thread that made this process ends; at once if it has already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def is_out_of_files(error: BaseException | None) -> bool:
    """Return True if it was raised because this process, or the machine, may open no more files. LMDB tells that only in its text."""
    while error is not None:
        if getattr(error, "errno", None) in _NO_FILES or any(os.strerror(number) in str(error) for number in _NO_FILES):
            return True
        error = error.__cause__ or error.__context__
    return False


def set_title(title: str) -> None:
    setproctitle.setproctitle(f"zsq: {title}")


def private_bytes(pid: int | str = "self") -> int:
    """Memory that only this process holds and nobody could give back for it, 0 if it cannot be read.

    Clean pages do not count: those that only one process maps are of the state stores' files, and are the page cache's.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            for line in lines:
                if line.startswith("Private_Dirty:"):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def raise_file_limit() -> None:
    """As many open files as the system allows this user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def has_terminal() -> bool:
    """Whether this process belongs to a terminal that is there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def memory_bytes() -> int:
    """Memory of this machine, or of the container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            sizes.append(int(file.read()))
    return min(sizes)


_NS: Final = 1_000_000_000
REST_NS: Final = 6 * _NS  # idle for so long, nothing more is let go of by itself: storage's ring keeps blocks for 5 s
BUSY_NS: Final = 30 * _NS  # between two times while it is never quiet, but no blocks come


class Trimming:
    """It owes one from the start on: what a process needed to come up."""

    __slots__ = ("_owed", "_since_ns", "_stirred_ns")

    def __init__(self, now_ns: int) -> None:
        self._stirred_ns = now_ns
        self._since_ns = now_ns  # it owes one, or did it last
        self._owed = True

    def due(self, now_ns: int, *, worked: bool, stirred: bool) -> bool:
        """Asked now and then, as with each pulse. `worked`: blocks came since it was asked last; `stirred`: anything."""
        if worked or stirred:
            self._since_ns = self._since_ns if self._owed else now_ns
            self._stirred_ns, self._owed = now_ns, True
        if worked or not self._owed or (stirred and now_ns - self._since_ns < BUSY_NS):
            return False
        self._since_ns = now_ns
        self._owed = now_ns - self._stirred_ns < REST_NS
        return True
