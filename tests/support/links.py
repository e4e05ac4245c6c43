"""Cut the connections between a broker's processes from outside, without their help, as the kernel
could do it.
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

_PIDFD_GETFD = 438  # the number of this system call on all Linux architectures
_libc = ctypes.CDLL(None, use_errno=True)


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of the process. Closing the duplicate changes nothing in the
    process.
    """
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
    """Return the names of the endpoints in the run directory to which the process is connected."""
    names = []
    for one in _sockets(pid):
        with contextlib.suppress(OSError):
            peer = one.getpeername()
            if one.family == socket.AF_UNIX and str(peer).startswith(f"{run_dir}/"):
                names.append(Path(str(peer)).name)
    return sorted(names)


def cut(pid: int, run_dir: Path, only: str = "") -> list[str]:
    """Shut down these connections (or only those to the endpoint `only`), and return the names of
    their endpoints.
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
    """Wait until the process is connected to all of these endpoints again."""
    wait_for(
        lambda: not Counter(names) - Counter(dialled(pid, run_dir)),
        10,
        f"connections of {pid} to {names}",
    )
