"""Start reserve: room on the disk that the start of a process needs, DATA_DIR/reserve.

A process binds sockets in the run directory, and each of them needs an inode and a name there. XFS
creates none while the disk has no free byte, and ext4 makes no directory. So a broker could not
start on a full disk, and a topic that slept could not wake, although both only have to serve
consumers. Therefore the broker keeps some bytes in a file. It gives them back to the file system
before it starts a process on a full disk, and takes them again when the process is up.

Another program may take the bytes in between. Then the start fails, and is tried again.
(Rejected: abstract sockets, which every user can reach. Sockets in a memory file system, because
other containers and other tools look for them below the data directory.)
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger("zsq")

NAME: Final = "reserve"
BYTES_MAX: Final = 4 * 1024 * 1024
SHARE: Final = 64  # it is at most this part of the file system
BYTES_MIN: Final = 64 * 1024  # less does not help


class StartReserve:
    """The file, and how much of it exists. No method raises `OSError`."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME
        self._folder = data_dir
        self._bytes = 0  # what the file has

    def lend(self) -> None:
        """Give the bytes to the file system if a start may need them.

        The file is cut and not removed: its bytes are free at once, and to take them again needs no
        new inode.
        """
        try:
            status = os.statvfs(self._folder)
            if status.f_bavail * status.f_frsize < BYTES_MAX:
                os.truncate(self._path, 0)
                self._bytes = 0
        except OSError:
            pass  # it does not exist, and the start shows what else is wrong

    def keep(self) -> None:
        """Take the bytes that are missing, or as many of them as there are."""
        if self._bytes >= BYTES_MAX:
            return
        try:
            status = os.statvfs(self._folder)
            wanted = min(BYTES_MAX, status.f_blocks * status.f_frsize // SHARE)
            if self._bytes >= wanted:
                return
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            while wanted >= max(BYTES_MIN, self._bytes + 1):
                try:
                    os.posix_fallocate(fd, 0, wanted)
                    self._bytes = wanted
                    return
                except OSError:
                    wanted //= 2
        finally:
            os.close(fd)
