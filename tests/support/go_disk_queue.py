"""Model of go-diskqueue 1.1: its rules in Python on real files, including its flaws. `DiskQueue`
must write the same files as this model.
"""

from __future__ import annotations

import struct
from pathlib import Path


class GoDiskQueue:
    """A disk queue. Each call runs one round of the loop that the single goroutine of the Go
    program runs. `sync_every` counts reads and writes.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        file_bytes_max: int,
        size_min: int,
        size_max: int,
        sync_every: int,
    ) -> None:
        self.folder, self.name = folder, name
        self.file_bytes_max, self.size_min, self.size_max, self.sync_every = (
            file_bytes_max,
            size_min,
            size_max,
            sync_every,
        )
        self.depth = self.read_file = self.read_pos = self.write_file = self.write_pos = 0
        self.next_file = self.next_pos = 0
        self.ahead: bytes | None = None
        self.count = 0
        self.need_sync = False
        self._retrieve()
        self._turn()

    def _data(self, number: int) -> Path:
        return self.folder / f"{self.name}.diskqueue.{number:06d}.dat"

    @property
    def _meta(self) -> Path:
        return self.folder / f"{self.name}.diskqueue.meta.dat"

    def _retrieve(self) -> None:
        if not self._meta.exists():
            return
        depth, reading, writing = self._meta.read_text().split()
        self.depth = int(depth)
        self.read_file, self.read_pos = map(int, reading.split(","))
        self.write_file, self.write_pos = map(int, writing.split(","))
        self.next_file, self.next_pos = self.read_file, self.read_pos
        path = self._data(self.write_file)
        if path.exists() and self.write_pos < path.stat().st_size:
            self.write_file += 1
            self.write_pos = 0

    def _sync(self) -> None:
        self._meta.write_text(
            f"{self.depth}\n{self.read_file},{self.read_pos}\n{self.write_file},{self.write_pos}\n"
        )
        self.need_sync = False

    def _turn(self) -> None:
        while True:
            if self.count == self.sync_every:
                self.need_sync = True
            if self.need_sync:
                self._sync()
                self.count = 0
            if not (self.read_file < self.write_file or self.read_pos < self.write_pos):
                self.ahead = None
                return
            if self.next_pos != self.read_pos:
                return
            try:
                self.ahead = self._read_one()
            except (OSError, ValueError):
                self._read_error()
                continue
            return

    def _read_one(self) -> bytes:
        path = self._data(self.read_file)
        data = path.read_bytes()
        if len(data) < self.read_pos + 4:
            raise ValueError("EOF")
        size = struct.unpack_from(">i", data, self.read_pos)[0]
        if not self.size_min <= size <= self.size_max:
            raise ValueError("invalid message read size")
        payload = data[self.read_pos + 4 : self.read_pos + 4 + size]
        if len(payload) < size:
            raise ValueError("unexpected EOF")
        self.next_pos = self.read_pos + 4 + size
        self.next_file = self.read_file
        if self.read_file < self.write_file and self.next_pos >= len(data):
            self.next_file += 1
            self.next_pos = 0
        return payload

    def _read_error(self) -> None:
        if self.read_file == self.write_file:
            self.write_file += 1
            self.write_pos = 0
        path = self._data(self.read_file)
        if path.exists():
            path.rename(f"{path}.bad")
        self.read_file += 1
        self.read_pos = 0
        self.next_file, self.next_pos = self.read_file, 0
        self.need_sync = True
        self._check_tail()

    def _check_tail(self) -> None:
        if self.read_file < self.write_file or self.read_pos < self.write_pos:
            return
        if self.depth != 0:
            self.depth = 0
            self.need_sync = True
        if (self.read_file, self.read_pos) != (self.write_file, self.write_pos):
            self._skip()
            self.need_sync = True

    def _skip(self) -> None:
        for number in range(self.read_file, self.write_file + 1):
            self._data(number).unlink(missing_ok=True)
        self.write_file += 1
        self.write_pos = 0
        self.read_file, self.read_pos = self.write_file, 0
        self.next_file, self.next_pos = self.write_file, 0
        self.depth = 0

    def put(self, data: bytes) -> None:
        total = 4 + len(data)
        if self.write_pos > 0 and self.write_pos + total > self.file_bytes_max:
            self.write_file += 1
            self.write_pos = 0
            self._sync()
        path = self._data(self.write_file)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(self.write_pos)
            file.write(struct.pack(">i", len(data)) + data)
        self.write_pos += total
        self.depth += 1
        self.count += 1
        self._turn()

    def peek(self) -> bytes | None:
        return self.ahead

    def get(self) -> bytes | None:
        found = self.ahead
        if found is None:
            return None
        old = self.read_file
        self.read_file, self.read_pos = self.next_file, self.next_pos
        self.depth -= 1
        self.count += 1
        if old != self.next_file:
            self.need_sync = True
            self._data(old).unlink()
        self._check_tail()
        self._turn()
        return found

    def empty(self) -> None:
        self._skip()
        self._meta.unlink(missing_ok=True)
        self.count = 0
        self._turn()

    def close(self) -> None:
        self._sync()
