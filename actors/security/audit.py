"""The audit log: one line of JSON for each change, in DATA_DIR/audit.log.

Only the broker's user can read the file.

A separate thread writes, so that a slow disk delays no request. The line is on disk (synced) a
moment after the answer. Lines that a full disk refuses are kept and tried again, up to a bound in
bytes. Lines beyond it are lost and counted, and the count is written when there is space again. A
line is written completely or not at all. When the file has 16 MiB, it is renamed to audit.log.1,
and each older file gets the next number. Four old files are kept.

Texts from outside are shortened and escaped as in JSON, so a text cannot look like another line of
the log. A line has at most LINE_BYTES_MAX bytes.

`AuditRecorder` decides which orders are logged, and writes each with its result when it is
answered. The gateway reports who gave the order (Manage.by). An order over ipc comes from a process
of the broker's own user. Requests that only read are left out: their rows of `REQUESTS`
(`transport/wire/admin_requests.py`) say so.

An order is identified by a number of the broker, because a client may use the same number twice.

No user can push the lines of other users out of the log. Each user may write USER_BYTES at once and
USER_BYTES_PER_S over time. Orders beyond that are counted by action, topic and result, and the
counts are written as one line every FOLDED_S. So one user needs weeks to rotate all files away.
Orders over ipc have no such limit, because their processes could remove the files anyway.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypedDict

from ...transport.wire import protocol as p
from ...transport.wire.admin_codec import row_of
from ...transport.wire.codec import pack_value

log = logging.getLogger("zsq")

FILE: Final = "audit.log"
BYTES_MAX: Final = 16 * 1024 * 1024
OLD_FILES: Final = 4
LINE_BYTES_MAX: Final = 4 * 1024  # a longer line is cut, and the line says that
WAITING_BYTES_MAX: Final = 4 * 1024 * 1024  # lines that are not on disk yet
REMEMBERED: Final = 1_000  # newest lines that are kept in memory for queries
REMEMBERED_BYTES: Final = 1024 * 1024  # limit of these lines together
TAIL_BYTES: Final = 256 * 1024  # a start reads this much from the end of the file
RETRY_S: Final = 1.0
CLOSE_S: Final = 2.0  # how long `close` waits until the last lines are written
COMPLAIN_EVERY: Final = 60  # failed tries between two lines in the log
_TEXT_CHARS: Final = 200
# The characters that are kept of each value if a line is too long even with cut options.
_SHORT_CHARS: Final = 12
_ENTRIES: Final = 20
_DEPTH: Final = 4


def shortened(value: Any, depth: int = _DEPTH) -> Any:
    """Return a short value that JSON can represent."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, bytes):
        value = value.hex()
    if isinstance(value, str):
        return (
            value
            if len(value) <= _TEXT_CHARS
            else f"{value[:_TEXT_CHARS]}... ({len(value)} characters)"
        )
    if not depth:
        return "..."
    if isinstance(value, Mapping):
        found = {
            str(shortened(str(key))): shortened(one, depth - 1)
            for key, one in list(value.items())[:_ENTRIES]
        }
        return found if len(value) <= _ENTRIES else found | {"...": f"{len(value)} in all"}
    if isinstance(value, (list, tuple)):
        first = [shortened(one, depth - 1) for one in value[:_ENTRIES]]
        return first if len(value) <= _ENTRIES else [*first, f"... {len(value)} in all"]
    return f"{type(value).__name__}"


class CutOptions(TypedDict):
    """The replacement for options that are too long: their beginning, and their size in bytes."""

    cut: str
    bytes: int


# An order in the log. `AuditLog.note` puts the time before it.
AuditRow = TypedDict(
    "AuditRow",
    {
        "action": str, "topic": str, "channel": str, "options": Mapping[str, object] | CutOptions, "user": str, "from": str, "via": str,
        "result": str,
    },
)  # fmt: skip


def line(row: Mapping[str, object]) -> bytes:
    """Encode a row. If it has more than LINE_BYTES_MAX bytes, values are cut, the options first."""
    data = _packed(row)
    if len(data) > LINE_BYTES_MAX and "options" in row:
        row = {**row, "options": cut(row["options"])}
        data = _packed(row)
    if len(data) > LINE_BYTES_MAX:  # a character may take 12 bytes in JSON
        data = _packed({name: _short(value) for name, value in [*row.items()][:_ENTRIES]})
    return data


def _packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode() + b"\n"


def cut(options: Any, size: int = 0) -> CutOptions:
    data = _packed(shortened(options))
    return {"cut": data[:_TEXT_CHARS].decode(), "bytes": size or len(data)}


def _short(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = str(value)
    return text if len(text) <= _SHORT_CHARS else f"{text[:_SHORT_CHARS]}... (cut)"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AuditLog:
    """The log file and its thread. `open` starts the thread; `note` returns at once."""

    def __init__(self, path: Path, *, max_bytes: int = BYTES_MAX, retry_s: float = RETRY_S) -> None:
        self.path = path
        self.lost = 0
        self.written = 0
        self._bytes_max = max_bytes
        self._retry_s = retry_s
        self._newest: deque[bytes] = deque()
        self._newest_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._change = threading.Condition()
        self._over = False
        self._failures = 0
        self._fd = -1
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def open(self) -> None:
        for row in _tail(self.path):
            self._remember(line(row))
        self._thread.start()

    def note(self, action: str, **what: Any) -> None:
        """Log an action with these fields, in this order."""
        row = {"time": now_text(), "action": shortened(action)} | {
            name: shortened(value) for name, value in what.items()
        }
        data = line(row)
        self._remember(data)
        with self._change:
            if self._waiting_bytes + len(data) <= WAITING_BYTES_MAX:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
            else:
                self.lost += 1
            self._change.notify()

    def _remember(self, data: bytes) -> None:
        self._newest.append(data)
        self._newest_bytes += len(data)
        while len(self._newest) > REMEMBERED or self._newest_bytes > REMEMBERED_BYTES:
            self._newest_bytes -= len(self._newest.popleft())

    def newest(self, count: int, topic: str = "") -> list[dict[str, object]]:
        """Return the newest rows first, either all or only those of a topic.

        A user may be permitted to see only that topic.
        """
        rows = (json.loads(data) for data in reversed(self._newest))
        return list(islice((row for row in rows if topic in ("", row.get("topic"))), count))

    def settled(self, timeout_s: float) -> bool:
        """Return True if all rows are on disk within that time."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> None:
        with self._change:
            self._over = True
            self._change.notify_all()
        self._thread.join(CLOSE_S)

    # Methods that run in the thread

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
                        self._waiting_bytes -= len(self._waiting.popleft())
                    self.lost -= lost
                    self.written += len(lines)
                    self._change.notify_all()
                continue
            with self._change:
                if self._over or self._change.wait_for(lambda: self._over, self._retry_s):
                    break  # the last try at the end has failed
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
                text = (
                    "%s cannot be written: %s; up to %d bytes of new lines are kept in memory "
                    "and written later"
                )
                log.error(text, self.path, error.strerror, WAITING_BYTES_MAX)
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _opened(self) -> int:
        """Return the file's size. Open the file again if it was moved away."""
        if self._fd >= 0:
            own = os.fstat(self._fd)
            with contextlib.suppress(FileNotFoundError):
                there = self.path.stat()
                if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                    return own.st_size
            os.close(self._fd)
            self._fd = -1
        self._fd = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        os.fchmod(self._fd, 0o600)
        return os.fstat(self._fd).st_size

    def _append(self, data: bytes, size: int) -> None:
        if size and not _ends_a_line(self.path):  # the machine crashed while a line was written
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)  # remove an incomplete line
            raise
        with contextlib.suppress(OSError):  # the line is written; another try would repeat it
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


def _tail(path: Path) -> list[dict[str, object]]:
    """Return the rows at the end of the file, without damaged ones."""
    rows: list[dict[str, object]] = []
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for one in file.read(TAIL_BYTES).splitlines()[-REMEMBERED:]:
            with contextlib.suppress(ValueError):
                row = json.loads(one)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


FIRST_USE: Final = "first use"  # an action in addition to those of Manage
FOLDED: Final = "folded"  # the action of a line with counts of orders
OPEN_MAX: Final = 10_000  # orders without an answer; beyond it the oldest are logged as unanswered
# The size of the options of an order that is not answered yet. Longer options are cut.
OPTIONS_BYTES: Final = 2 * 1024
REFUSED_OPTIONS_BYTES: Final = 256  # the same for an order that was refused
USER_BYTES: Final = 2 * 1024 * 1024
USER_BYTES_PER_S: Final = 48  # this is 4 MiB a day
USERS_MAX: Final = 10_000
FOLDED_S: Final = 600.0
# The kinds of orders that one line counts separately. All others are counted together.
FOLDED_KINDS: Final = 20
_NAME_CHARS: Final = 130  # no valid name of a topic or a channel is longer
_OTHERS: Final = "others"
_LINE_BYTES: Final = 60  # the part of a line with its time and its action


def looks_only(message: p.Manage) -> bool:
    """Return True if the request changes nothing. A request that is not valid may be any."""
    row = row_of(message)
    return row is not None and not row.is_audited


class Allowances:
    """The bytes that each user may still write to the log: token buckets that refill over time.

    Pure.
    """

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # user -> (bytes left, time of that value)

    def take(self, user: str, size: int, now_s: float) -> bool:
        """Take `size` bytes and return True. If fewer are left, take none and return False."""
        left, then_s = self._left.pop(user, (float(USER_BYTES), now_s))
        left = min(float(USER_BYTES), left + (now_s - then_s) * USER_BYTES_PER_S)
        taken = left >= size
        self._left[user] = left - size if taken else left, now_s
        if len(self._left) > USERS_MAX:
            del self._left[next(iter(self._left))]  # the user whose last order is the oldest
        return taken


class AuditRecorder:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._open: dict[int, AuditRow] = {}
        self._allowances = Allowances()
        self._folded: dict[str, Counter[str]] = {}  # user -> counts of orders
        self._folded_s = time.monotonic()

    def ordered(self, number: int, message: p.Manage) -> None:
        """Note an order. `number` is the broker's number for it."""
        if looks_only(message):
            return
        if len(self._open) >= OPEN_MAX:
            self._note(self._open.pop(next(iter(self._open))), "not known")
        options: Mapping[str, object] | CutOptions = message.options
        if isinstance(body := message.options.get("body"), bytes):  # the body of a schedule
            options = {**message.options, "body": f"{len(body)} bytes"}
        size = len(pack_value(options))
        options = cut(options, size) if size > OPTIONS_BYTES else options
        self._open[number] = _row(
            message.action, message.topic, message.channel, options, message.by
        )

    def answered(self, number: int, error: str = "") -> None:
        """Log the order with its result. Numbers of requests that are not orders are ignored."""
        row = self._open.pop(number, None)
        if row is not None:
            self._note(row, error or "done")

    def dropped(self, number: int) -> None:
        """Forget an order that only other brokers can carry out. They log it."""
        self._open.pop(number, None)

    def first_use(self, message: p.Lookup, channel: str) -> None:
        """Log that a publish or a subscription created a topic (`channel` "") or a channel."""
        self._note(
            _row(
                FIRST_USE, message.topic, channel, message.settings if channel else {}, message.by
            ),
            "done",
        )

    def tick(self, now_s: float) -> None:
        """Write the counts if they are due."""
        if self._folded and now_s - self._folded_s >= FOLDED_S:
            self._write_folded(now_s)

    def close(self) -> None:
        for row in self._open.values():
            self._note(row, "not known: the broker stopped before the answer")
        self._open.clear()
        self._write_folded(time.monotonic())

    def _note(self, row: AuditRow, result: str) -> None:
        row["result"] = result
        options = row["options"]
        if (
            result != "done"
            and (size := len(pack_value(options))) > REFUSED_OPTIONS_BYTES
            and "cut" not in options
        ):
            row["options"] = cut(options, size)
        user = row["user"] or row["from"]
        size = (
            len(line({name: shortened(value) for name, value in row.items() if name != "action"}))
            + _LINE_BYTES
        )
        if row["via"] == "ipc" or self._allowances.take(user, size, time.monotonic()):
            self._audit.note(**row)
        else:
            self._fold(user, f"{row['action']} {row['topic']}: {result.partition(' ')[0]}")

    def _fold(self, user: str, what: str) -> None:
        if not self._folded:
            self._folded_s = time.monotonic()
        if len(self._folded) >= USERS_MAX and user not in self._folded:
            user = _OTHERS
        counts = self._folded.setdefault(user, Counter())
        counts[what[:_NAME_CHARS] if what in counts or len(counts) < FOLDED_KINDS else _OTHERS] += 1

    def _write_folded(self, now_s: float) -> None:
        folded, self._folded, self._folded_s = self._folded, {}, now_s
        for user, counts in folded.items():
            text = (
                f"{counts.total()} orders are only counted, because this user has reached the "
                "limit of bytes in this log"
            )
            self._audit.note(
                FOLDED,
                topic="",
                channel="",
                options=dict(counts),
                user=user,
                **{"from": ""},
                via="",
                result=text,
            )


def _row(
    action: str,
    topic: str,
    channel: str,
    options: Mapping[str, object] | CutOptions,
    by: Mapping[str, object],
) -> AuditRow:
    """Return the row of an order, with only what its line needs.

    The row stays in memory until the order is answered.
    """
    user, address, via = (str(by.get(name, ""))[:_NAME_CHARS] for name in ("user", "from", "via"))
    return {
        "action": action[:_NAME_CHARS], "topic": topic[:_NAME_CHARS], "channel": channel[:_NAME_CHARS], "options": options,
        "user": user, "from": address, "via": via or "ipc", "result": "",
    }  # fmt: skip
