"""One fdatasync of the log, to be run once, in whatever thread."""

from __future__ import annotations

import threading

from .chunk import Chunk
from .errors import StoreFailed
from .files import Files


class SyncTicket:
    """One fdatasync: what was written when it was made is durable once `run` returned and `finish_sync` took it."""

    __slots__ = ("_files", "_lock", "base_offset", "done", "end", "error", "fd", "position", "written")

    def __init__(self, files: Files, chunk: Chunk, written: int) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.fd = chunk.fd
        self.base_offset = chunk.base_offset
        self.end = chunk.end_offset
        self.position = chunk.end_position
        self.written = written
        self.done = False
        self.error: OSError | None = None

    def run(self) -> None:
        """Sync, once: whoever comes second waits and learns the same. `StoreFailed` if it failed."""
        with self._lock:
            if not self.done:
                try:
                    self._files.sync(self.fd)
                except OSError as error:
                    self.error = error
                self.done = True
        if self.error is not None:
            raise StoreFailed(f"fdatasync failed ({self.error}); what was not acknowledged may be lost") from self.error
