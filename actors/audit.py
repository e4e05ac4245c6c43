"""The audit log: who changed what, a line of JSON each in DATA_DIR/audit.log, readable by this user only.

A thread of its own writes, so that a slow disk holds nobody up: who asks for something is answered, and its line is on disk (synced) a
moment later. What a full disk refuses is kept and tried again, up to a bound; what was lost beyond it is counted, and the count is
written when there is space again. A line is whole or not there. At 16 MiB the file is renamed to audit.log.1, and so on: four old ones
stay.

Texts that came from outside are shortened, and escaped as JSON does it: nobody can write a line of their own into it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

log = logging.getLogger("zsq")

FILE: Final = "audit.log"
BYTES_MAX: Final = 16 * 1024 * 1024
OLD_FILES: Final = 4
WAITING_MAX: Final = 10_000  # lines that are not on disk yet
REMEMBERED: Final = 1_000  # newest ones, for who asks
TAIL_BYTES: Final = 256 * 1024  # read at start for these
RETRY_S: Final = 1.0
CLOSE_S: Final = 2.0  # for the last lines
COMPLAIN_EVERY: Final = 60  # tries
_TEXT_CHARS: Final = 200
_ENTRIES: Final = 20
_DEPTH: Final = 4


def shortened(value: Any, depth: int = _DEPTH) -> Any:
    """As JSON can say it, and not much of it."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, bytes):
        value = value.hex()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_CHARS else f"{value[:_TEXT_CHARS]}... ({len(value)} characters)"
    if not depth:
        return "..."
    if isinstance(value, Mapping):
        found = {str(shortened(str(key))): shortened(one, depth - 1) for key, one in list(value.items())[:_ENTRIES]}
        return found if len(value) <= _ENTRIES else found | {"...": f"{len(value)} in all"}
    if isinstance(value, (list, tuple)):
        first = [shortened(one, depth - 1) for one in value[:_ENTRIES]]
        return first if len(value) <= _ENTRIES else [*first, f"... {len(value)} in all"]
    return f"{type(value).__name__}"


def line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), default=str).encode() + b"\n"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AuditLog:
    """`open` starts the thread; `note` returns at once."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX, retry_s: float = RETRY_S) -> None:
        self.path = path
        self.lost = 0
        self.written = 0
        self._bytes_max = bytes_max
        self._retry_s = retry_s
        self._newest: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._waiting: deque[bytes] = deque()
        self._change = threading.Condition()
        self._over = False
        self._failures = 0
        self._fd = -1
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def open(self) -> None:
        self._newest.extend(_tail(self.path))
        self._thread.start()

    def note(self, action: str, **what: Any) -> None:
        """`what`: by its name, in order."""
        row = {"time": now_text(), "action": shortened(action)} | {name: shortened(value) for name, value in what.items()}
        self._newest.append(row)
        with self._change:
            if len(self._waiting) < WAITING_MAX:
                self._waiting.append(line(row))
            else:
                self.lost += 1
            self._change.notify()

    def newest(self, count: int, topic: str = "") -> list[dict[str, Any]]:
        """The newest first; of all, or of this topic only: who manages that may be permitted no more."""
        return list(islice((row for row in reversed(self._newest) if topic in ("", row.get("topic"))), count))

    def settled(self, timeout_s: float) -> bool:
        """Whether all that was noted is on disk, within that time."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> None:
        with self._change:
            self._over = True
            self._change.notify_all()
        self._thread.join(CLOSE_S)

    # In the thread

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    break
                lines, lost = list(self._waiting), self.lost
            if self._written(lines, lost):
                with self._change:
                    for _ in lines:
                        self._waiting.popleft()
                    self.lost -= lost
                    self.written += len(lines)
                    self._change.notify_all()
                continue
            with self._change:
                if self._over or self._change.wait_for(lambda: self._over, self._retry_s):
                    break  # at the end one more try was made
        if self._fd >= 0:
            os.close(self._fd)

    def _written(self, lines: list[bytes], lost: int) -> bool:
        if lost:
            lines = [line({"time": now_text(), "action": "lost", "count": lost}), *lines]
        try:
            size = self._opened()
            if size and size + len(lines[0]) > self._bytes_max:
                self._rotate()
                size = self._opened()
            self._append(b"".join(lines), size)
        except OSError as error:
            if self._failures % COMPLAIN_EVERY == 0:
                log.error("%s cannot be written: %s; what is done is kept, and written when that is possible", self.path, error.strerror)
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _opened(self) -> int:
        """Its size. It is opened again where somebody moved it away."""
        if self._fd >= 0:
            own = os.fstat(self._fd)
            with contextlib.suppress(FileNotFoundError):
                there = self.path.stat()
                if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                    return own.st_size
            os.close(self._fd)
            self._fd = -1
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(self._fd, 0o600)
        return os.fstat(self._fd).st_size

    def _append(self, data: bytes, size: int) -> None:
        if size and not _ends_a_line(self.path):  # a machine that went down in the middle of one
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)  # no half line
            raise
        with contextlib.suppress(OSError):  # it is written; a second time would be wrong
            os.fdatasync(self._fd)

    def _rotate(self) -> None:
        for number in range(OLD_FILES - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _tail(path: Path) -> list[dict[str, Any]]:
    """What its end says; what is damaged is left out."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for one in file.read(TAIL_BYTES).splitlines()[-REMEMBERED:]:
            with contextlib.suppress(ValueError):
                row = json.loads(one)
                if isinstance(row, dict):
                    rows.append(row)
    return rows
