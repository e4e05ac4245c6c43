"""Reading of nsqd's data files, including the readable messages of damaged files.

Records have no checksum and no marks, so a wrong length would misplace all later records. nsqd
itself gives up the rest of the file. But each record has 16 hex digits at a fixed place, and random
bytes do not.

A record is accepted, whatever its time is, if another record can follow it or the file ends after
it. It is also accepted if no place inside of it looks like a record: then only what follows it is
damaged. Otherwise its length must be wrong, and the reader searches for the next place that looks
like a record. The search begins inside of the rejected record. A place counts only if its time is
plausible or another record follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ...storage.files import Files
from ...storage.nsq.disk_queue_format import (
    LENGTH_BYTES,
    NSQ_HEAD_BYTES,
    NsqMessage,
    decode_length,
    decode_message,
    looks_like_message,
    may_be_message,
)

# A larger length counts as damage: nsqd's default limit is 1 MiB.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
_HEAD: Final = LENGTH_BYTES + NSQ_HEAD_BYTES
_CANDIDATE: Final = re.compile(rb"(?s)(?=[\x00-\x04].{13}[0-9a-f]{16})")


class LostBytes(NamedTuple):
    """Bytes of a file that contain no readable message."""

    file: str
    position: int
    bytes: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.bytes} bytes at position {self.position}: {self.why}"


class FileView:
    """Random access to a file through a moving window."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._fd = files.open_read(path)
        self.size = files.size(self._fd)
        self._window, self._at = b"", 0

    def close(self) -> None:
        self._files.close(self._fd)

    def get(self, position: int, size: int) -> bytes:
        """Return `size` bytes, or fewer only at the end of the file."""
        start = position - self._at
        if start < 0 or start + size > len(self._window):
            self._window, self._at, start = (
                self._files.pread(self._fd, max(size, READ_BYTES), position),
                position,
                0,
            )
        return self._window[start : start + size]

    def begins(self, position: int) -> bool:
        """Return True if a complete record may begin at the position."""
        head = self.get(position, _HEAD)
        return may_be_message(head, 0, RECORD_BYTES_MAX) and self.end(position) <= self.size

    def end(self, position: int) -> int:
        """Return the end of the record at the position, by its length."""
        return position + LENGTH_BYTES + decode_length(self.get(position, LENGTH_BYTES))

    def leads_on(self, end: int) -> bool:
        """Return True if another record or the end of the file follows at `end`."""
        return end == self.size or self.begins(end)

    def _is_found(self, position: int) -> bool:
        """Return True if a search may accept the position."""
        if not self.begins(position):
            return False
        return looks_like_message(self.get(position, _HEAD), 0, RECORD_BYTES_MAX) or self.leads_on(
            self.end(position)
        )

    def next_record(self, position: int, end: int) -> int:
        """Return the first place from `position` that looks like a complete record, or `end`."""
        while position < end:
            window = self.get(position, READ_BYTES)
            for candidate in _CANDIDATE.finditer(window):
                at = position + candidate.start()
                if at >= end:
                    return end
                if self._is_found(at):
                    return at
            if position + len(window) >= self.size or len(window) <= _HEAD:
                return end
            position += len(window) - _HEAD + 1  # a head may cross the border of two windows
        return end


def read_messages(
    files: Files, path: str, position: int, lost: Callable[[LostBytes], None]
) -> Iterator[tuple[int, NsqMessage]]:
    """Yield (position, message) of each record from `position` to the end of the file.

    Parts that cannot be read are passed to `lost`.
    """
    view = FileView(files, path)
    behind = False  # True after a message that was read
    try:
        while position < view.size:
            end = _end_of(view, position)
            if end < 0:
                following = view.next_record(position + 1, view.size)
                lost(
                    LostBytes(
                        path,
                        position,
                        following - position,
                        _why(view, position, following, behind),
                    )
                )
                position, behind = following, False
                continue
            yield position, decode_message(view.get(position, end - position)[LENGTH_BYTES:])
            position, behind = end, True
    finally:
        view.close()


def _end_of(view: FileView, position: int) -> int:
    """Return the end of the record at the position, or -1 for no record or a wrong length."""
    if not view.begins(position):
        return -1
    end = view.end(position)
    if view.leads_on(end) or view.next_record(position + _HEAD, end) == end:
        return end
    return -1


def _why(view: FileView, position: int, following: int, behind: bool) -> str:
    """Return the reason why bytes are lost.

    `behind` is True if a message ends at `position` and its length was accepted although no record
    follows.
    """
    rest = view.get(position, min(READ_BYTES, following - position))
    if following == view.size:
        if not rest.strip(b"\0"):
            return "zeros: only the size of the last write reached the disk"
        if may_be_message(rest, 0, RECORD_BYTES_MAX) or following - position < _HEAD:
            return "an unfinished write"
    if len(rest) >= _HEAD and view.end(position) == following:
        return "the head of a message is damaged: it has no valid message id"
    return "no message can be read" + (
        "; the message before it may be incomplete" if behind else ""
    )
