"""Cut the connections between a broker's processes from outside: what the kernel would do to them,
without a word of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.broker import wait_for

_PIDFD_GETFD = 438  # the number of the system call on all machines of Linux
_libc = ctypes.CDLL(None, use_errno=True)


def _sockets(pid: int) -> Iterator[socket.socket]:
    """A copy of each socket of the process; closing it changes nothing there."""
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = _libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
                if copy < 0:
                    raise OSError(ctypes.get_errno(), "pidfd_getfd")
                with socket.socket(fileno=copy) as found:
                    yield found
    finally:
        os.close(pidfd)


def dialled(pid: int, run_dir: Path) -> list[str]:
    """The endpoints in the run directory to which the process is connected, by their names."""
    names = []
    for one in _sockets(pid):
        with contextlib.suppress(OSError):
            peer = one.getpeername()
            if one.family == socket.AF_UNIX and str(peer).startswith(f"{run_dir}/"):
                names.append(Path(str(peer)).name)
    return sorted(names)


def cut(pid: int, run_dir: Path, only: str = "") -> list[str]:
    """End these connections (or those to the endpoint `only`), and return to which endpoints they
    led.
    """
    ended = []
    for one in _sockets(pid):
        with contextlib.suppress(OSError):
            peer = one.getpeername()
            if (
                one.family == socket.AF_UNIX
                and str(peer).startswith(f"{run_dir}/")
                and only in ("", Path(str(peer)).name)
            ):
                one.shutdown(socket.SHUT_RDWR)
                ended.append(Path(str(peer)).name)
    return sorted(ended)


def wait_linked(pid: int, run_dir: Path, names: list[str]) -> None:
    """Until the process is connected to all of these again."""
    wait_for(
        lambda: not Counter(names) - Counter(dialled(pid, run_dir)),
        10,
        f"connections of {pid} to {names}",
    )
