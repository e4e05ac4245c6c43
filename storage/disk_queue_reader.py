"""The file of a disk queue that is being read: its records one after another, from a window of bytes read ahead."""

from __future__ import annotations

import errno
from typing import Final

from .disk_queue_format import LENGTH_BYTES, decode_length
from .disk_queue_recovery import Place

READ_AHEAD_BYTES: Final = 256 * 1024


class RecordReader:
    """One file at a time. `size`: of a file that is not written any more; whoever writes the same file sets it when he leaves it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._fd = -1
        self._window, self._window_at = b"", 0
        self.number = -1
        self.size = 0

    def open(self, number: int) -> None:
        """This file, if it is not open yet. `OSError` as it comes."""
        if self.number != number:
            self.close()
            self._fd = self._place.files.open_read(self._place.data_path(number))
            self.number = number
            self.size = self._place.files.size(self._fd)

    def close(self) -> None:
        if self.number >= 0:
            self._place.files.close(self._fd)
        self.number = -1
        self._window, self._window_at = b"", 0

    def record(self, position: int, end: int) -> bytes | None:
        """The payload of the record there, None where none can be read. `end`: where the file's records end."""
        try:
            head = self._read(position, LENGTH_BYTES, end)
            if len(head) < LENGTH_BYTES:
                return None
            size = decode_length(head)
            if not self._place.size_min <= size <= self._place.size_max:
                return None
            found = self._read(position + LENGTH_BYTES, size, end)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        return found if len(found) == size else None

    def _read(self, position: int, size: int, end: int) -> bytes:
        """From the window, which is filled anew where it ends; a file only grows, so what is in it stays right."""
        size = max(0, min(size, end - position))
        start = position - self._window_at
        if start < 0 or start + size > len(self._window):
            files = self._place.files
            try:
                self._window = files.pread(self._fd, max(size, READ_AHEAD_BYTES), position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._window = files.pread(self._fd, size, position)  # what cannot be read may lie farther on
            self._window_at, start = position, 0
        return self._window[start : start + size]
