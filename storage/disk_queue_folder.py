"""Which folders with disk queues this process holds, in nsqd's way: one flock on the folder itself, shared by the queues of the process.

Rejected: a lock file for each queue. It would be one more name in a folder that nsqd may own later, and an nsqd would not look at it.
"""

from __future__ import annotations

import contextlib
import os.path
import threading
from typing import Final

from .errors import Locked
from .files import Files


class Folders:
    """One for the process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: dict[str, tuple[int, set[str]]] = {}

    def take(self, files: Files, folder: str, name: str) -> str:
        """Hold `folder` for the queue `name`; returns what `leave` wants. `Locked` by another process, or as open already in this one."""
        path = os.path.realpath(folder)
        with self._mutex:
            if path not in self._held:
                self._held[path] = (files.lock_folder(path), set())
            names = self._held[path][1]
            if name in names:
                raise Locked(f"the disk queue {name!r} in {folder} is open in this process already")
            names.add(name)
        return path

    def leave(self, files: Files, path: str, name: str) -> None:
        with self._mutex:
            fd, names = self._held[path]
            names.discard(name)
            if not names:
                del self._held[path]
                with contextlib.suppress(OSError):
                    files.close(fd)


FOLDERS: Final = Folders()
