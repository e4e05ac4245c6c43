"""What the operating system knows about a process: title, parent's death, private memory, pidfds."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

import setproctitle

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """SIGKILL when the thread that made this process ends; at once if it has already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


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
