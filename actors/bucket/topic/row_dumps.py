"""Row dumps: all rows of a topic's stores, for the log of ticks. Many rows go to a file.

A dump runs in the thread that owns its store. The files are in the topic's directory. They are not
synced, and the next process of the topic removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ....storage.delayed.delayed import DelayedStore
from ....storage.files import Files
from ....storage.row_changes import DELAYED, STATE, encode_frames
from ....storage.state.state import StateStore
from .change_queue import Entry

INLINE_BYTES: Final = 1024 * 1024
BASE_NAME: Final = "shipping.base"
_READ_BYTES: Final = 1 << 20


class RowDumps:
    """The dumps of one topic. `joined_path` is the file with the rows of both stores.

    Rows of more than `inline_bytes` go to a file.
    """

    def __init__(self, files: Files, directory: str, inline_bytes: int = INLINE_BYTES) -> None:
        self._files = files
        self._inline_bytes = inline_bytes
        self.joined_path = f"{directory}/{BASE_NAME}"

    def _path(self, kind: int) -> str:
        return f"{self.joined_path}.{kind}"

    def remove(self) -> None:
        """Remove all files."""
        self._remove((*map(self._path, (STATE, DELAYED)), self.joined_path))

    def remove_joined(self) -> None:
        self._remove((self.joined_path,))

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._files.exists(path):
                self._files.remove(path)

    def dump(
        self, kind: int, begin: int, store: StateStore | DelayedStore
    ) -> tuple[tuple[bytes, ...], str]:
        """Return the frames with all rows, or no frames and the path of the file with them.

        The first frame has the kind `begin`, and the others `kind`. Raises `OSError` if the file
        cannot be written.
        """
        path = self._path(kind)
        self._remove((path,))
        frames: list[bytes] = []
        size = position = 0
        with contextlib.ExitStack() as stack:
            fd = -1
            for batch in store.dump():
                batch_frames = encode_frames(kind if frames or position else begin, batch)
                frames += batch_frames
                size += sum(map(len, batch_frames))
                if size > self._inline_bytes:
                    if fd < 0:
                        fd = self._files.open_new(path)
                        stack.callback(self._files.close, fd)
                    self._files.writev(fd, frames, position)
                    position += size
                    frames, size = [], 0
            if fd < 0:
                return tuple(frames), ""
            if frames:
                self._files.writev(fd, frames, position)
        return (), path

    def join(self, dumps: Mapping[int, Entry]) -> None:
        """Put both dumps into one file. Raises `OSError`."""
        self.remove_joined()
        target = self._files.open_new(self.joined_path)
        try:
            position = 0
            for kind in (STATE, DELAYED):
                for piece in self._bytes_of(dumps[kind]):
                    self._files.writev(target, [piece], position)
                    position += len(piece)
        finally:
            self._files.close(target)
        self._remove(map(self._path, (STATE, DELAYED)))

    def _bytes_of(self, entry: Entry) -> Iterator[bytes]:
        yield from entry.frames
        if entry.path:
            fd = self._files.open_read(entry.path)
            try:
                position = 0
                while piece := self._files.pread(fd, _READ_BYTES, position):
                    yield piece
                    position += len(piece)
            finally:
                self._files.close(fd)
