"""The file of a disk queue that is being written: one record at its end, or nothing of it."""

from __future__ import annotations

from .disk_queue_format import Meta, encode_record
from .disk_queue_recovery import Place
from .errors import DiskFull, StoreFailed, is_full


class RecordWriter:
    """The last file, opened when first needed. `unsynced`: it has bytes that no sync covers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._fd = -1
        self._named = True
        self.unsynced = False

    def append(self, meta: Meta, message: bytes) -> Meta:
        """The metadata behind it. `DiskFull`: the file is as it was; `StoreFailed`: unknown."""
        record = encode_record(message)
        try:
            self._open(meta)
            self.unsynced = True
            self._place.files.writev(self._fd, [record], meta.write_position)
        except OSError as error:
            if not is_full(error):
                raise StoreFailed(f"a write to {self._place.data_path(meta.write_file)} failed: {error}") from error
            self.cut(meta.write_file, meta.write_position)
            raise DiskFull(f"no space for {len(record)} bytes in {self._place.data_path(meta.write_file)}") from error
        return meta._replace(depth=meta.depth + 1, write_position=meta.write_position + len(record))

    def _open(self, meta: Meta) -> None:
        files = self._place.files
        if self._fd < 0:
            path = self._place.data_path(meta.write_file)
            self._named = files.exists(path)
            self._fd = files.open_append(path) if self._named else files.open_new(path)
        if not self._named:  # also at the next put, if there was no space for it at this one
            # Before metadata count it: with that and without the file, it would look as if what was read before had not been.
            files.sync_folder(self._place.folder)
            self._named = True

    def cut(self, number: int, position: int) -> None:
        """The file ends there again, on disk too."""
        if self._fd < 0:
            return
        try:
            self._place.files.truncate(self._fd, position)
            self._place.files.sync(self._fd)
        except OSError as error:
            raise StoreFailed(f"a failed write to {self._place.data_path(number)} could not be cut back: {error}") from error

    def sync(self) -> None:
        """`OSError` as it comes: after it nobody knows what is on disk."""
        if self.unsynced and self._fd >= 0:
            self._place.files.sync(self._fd)
        self.unsynced = False

    def close(self) -> None:
        if self._fd >= 0:
            self._place.files.close(self._fd)
            self._fd = -1
