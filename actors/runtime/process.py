"""Calls to the operating system: title, parent's death, private memory, open files.

`transport/memory.py` makes a process keep freed memory. `Trimming` decides when the process gives
it back to the system. It does no I/O. Under load the memory would soon be allocated again, and a
thousand idle channels must not release memory with each pulse. So memory is released once when a
process is quiet again, and occasionally if small messages, such as scan reports, never stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Final

import setproctitle

from ...transport.units import NS_PER_S
from .listening import ALL_HOSTS, join_place, split_place

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when the thread that created it ends.

    If the parent has ended already, this process ends at once.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def is_out_of_files(error: BaseException | None) -> bool:
    """Return True if this process or this machine has reached its limit of open files.

    LMDB reports this only in the text of its error.
    """
    while error is not None:
        if getattr(error, "errno", None) in _NO_FILES or any(
            os.strerror(number) in str(error) for number in _NO_FILES
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def set_title(title: str) -> None:
    setproctitle.setproctitle(f"zsq: {title}".encode(errors="replace").decode())


COUNTED_S: Final = 60.0  # how long the count of this process's private memory may be used
# Of this process: its sizes at the last count, when that was, and the count.
_counted: tuple[bytes, float, int] = b"", 0.0, 0


def private_bytes(pid: int | None = None) -> int:
    """Return the memory that only one process uses and that the system cannot reclaim.

    Without `pid`, it is this process. A count takes 0.6 ms, and `stats` asks all processes at once.
    So this process is counted again only if it has grown or shrunk, or after a minute.
    """
    global _counted
    if pid is not None:
        return _count_private(pid)
    try:
        sizes = Path("/proc/self/statm").read_bytes()
    except OSError:
        return 0
    before, counted_s, total = _counted
    if sizes != before or time.monotonic() - counted_s > COUNTED_S:
        total = _count_private(os.getpid())
        _counted = sizes, time.monotonic(), total
    return total


def _count_private(pid: int) -> int:
    """Return the private memory of a process, or 0 if it cannot be read.

    Clean pages do not count. The clean pages that only one process maps belong to the files of
    state stores, and the system can reclaim them.
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
    """Allow this process as many open files as the system allows this user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def has_terminal() -> bool:
    """Return True if this process has a terminal that still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            sizes.append(int(file.read()))
    return min(sizes)


# After this idle time no more memory becomes free, because storage's ring keeps blocks for 5 s.
REST_NS: Final = 6 * NS_PER_S
# The time between two releases while small messages never stop, but no blocks come.
BUSY_NS: Final = 30 * NS_PER_S


class Trimming:
    """Decides when freed memory is given back. The first time is after the start of the process."""

    __slots__ = ("_owed", "_since_ns", "_stirred_ns")

    def __init__(self, now_ns: int) -> None:
        self._stirred_ns = now_ns
        # The time since which a release is due, or the time of the last release.
        self._since_ns = now_ns
        self._owed = True

    def due(self, now_ns: int, *, worked: bool, stirred: bool) -> bool:
        """Return True if memory should be released now.

        This is called with each pulse. `worked` means that blocks came since the last call,
        `stirred` that any message came.
        """
        if worked or stirred:
            self._since_ns = self._since_ns if self._owed else now_ns
            self._stirred_ns, self._owed = now_ns, True
        if worked or not self._owed or (stirred and now_ns - self._since_ns < BUSY_NS):
            return False
        self._since_ns = now_ns
        self._owed = now_ns - self._stirred_ns < REST_NS
        return True


def advertised(gateway: str, addresses: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the addresses of a broker as other machines may use them.

    They are the `given` ones if there are any, or else that of the ZeroMQ gateway, "host:port".
    """
    if addresses:
        return addresses
    if not gateway:
        return ()
    host, port = split_place(gateway)
    if not port:
        return ()
    return (f"tcp://{join_place(socket.gethostname() if host in ALL_HOSTS else host, port)}",)
