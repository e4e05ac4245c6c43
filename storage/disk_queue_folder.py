"""Which folders with disk queues this process holds, in nsqd's way: one flock on the folder itself, shared by the queues of the process.

Rejected: a lock file for each queue. It would be one more name in a folder that nsqd may own later, and an nsqd would not look at it.
"""

from __future__ import annotations

import contextlib
import os.path
import threading
from typing import Final

from .errors import Locked, StoreFailed
from .files import Files, call_in_forked, process_id


class OwnLock(threading.Condition):
    """A lock that only the process which made it can take. After a fork both would have the same files, each with its own idea of
    where they end, and write over each other; and another thread may have held the lock at the fork, for ever."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self._pid = process_id()

    @property
    def owned(self) -> bool:
        return process_id() == self._pid

    def __enter__(self) -> bool:
        if not self.owned:
            raise StoreFailed(f"this disk queue belongs to process {self._pid}, from which this one was forked; open one here")
        return super().__enter__()


class Folders:
    """One for the process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: dict[str, tuple[Files, int, set[str]]] = {}

    def take(self, files: Files, folder: str, name: str) -> str:
        """Hold `folder` for the queue `name`; returns what `leave` wants. `Locked` by another process, or as open already in this one."""
        path = os.path.realpath(folder)
        with self._mutex:
            if path not in self._held:
                self._held[path] = (files, files.lock_folder(path), set())
            names = self._held[path][2]
            if name in names:
                raise Locked(f"the disk queue {name!r} in {folder} is open in this process already")
            names.add(name)
        return path

    def leave(self, files: Files, path: str, name: str) -> None:
        with self._mutex:
            _, fd, names = self._held[path]
            names.discard(name)
            if not names:
                del self._held[path]
                with contextlib.suppress(OSError):
                    files.close(fd)

    def forget(self) -> None:
        """In a process just forked: its parent holds the folders. A copy of a lock's descriptor would hold one beyond the parent's end."""
        self._mutex = threading.Lock()
        held, self._held = self._held, {}
        for files, fd, _ in held.values():
            with contextlib.suppress(OSError):
                files.close(fd)


FOLDERS: Final = Folders()
call_in_forked(FOLDERS.forget)
