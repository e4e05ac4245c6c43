"""Logs of all processes, on stderr: text for people, or one JSON object per line for programs.

    text   2026-11-22 12:00:00,123 4711 WARNING [topic clicks] what happened
    json   {"time": "2026-11-22T12:00:00.123456Z", "level": "warning", "actor": "topic clicks",
    "pid": 4711, "message": ..., ...}

More fields come from `log.info(..., extra={"fields": {...}})`. An exception adds its trace: as
`error` and `trace` in JSON, or as separate lines after the text. Text from outside may hold any
characters. Control characters are written as escapes, so that no client can begin a line. Each line
is written by one call, so that the lines of many processes do not mix.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import threading
import time
from typing import Final

SUPERVISOR: Final = "supervisor"
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

log = logging.getLogger("zsq")
_thread = threading.local()


def escaped(text: str, keep: str = "") -> str:
    """Return the text with escapes instead of control characters, except those in `keep`.

    Control characters are C0, C1, ends of lines, and characters that change the direction of
    writing. A terminal obeys them: they could colour or overwrite its text, or make a line look
    like another one.
    """
    return _CONTROL.sub(
        lambda match: match.group() if match.group() in keep else ascii(match.group())[1:-1], text
    )


class _OfActor(logging.Formatter):
    """Formats records of an actor: that of the thread, or else that of the process."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    @property
    def actor(self) -> str:
        return getattr(_thread, "actor", self._actor)


class TextFormatter(_OfActor):
    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{self.formatTime(record)} {record.process} {record.levelname} [{self.actor}] "
            f"{escaped(record.getMessage())}"
        )
        line += "".join(f" {key}={escaped(str(value))}" for key, value in fields_of(record).items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(_OfActor):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{seconds}.{int(record.created % 1 * 1_000_000):06d}Z",
            "level": record.levelname.lower(),
            "actor": self.actor,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.name not in ("zsq", "root"):
            entry["logger"] = record.name  # the record of a library
        if record.exc_info and record.exc_info[1] is not None:
            entry |= {
                "error": repr(record.exc_info[1]),
                "trace": self.formatException(record.exc_info),
            }
        return json.dumps(fields_of(record) | entry, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    extra = getattr(record, "fields", None)
    return dict(extra) if isinstance(extra, dict) else {}


class LineHandler(logging.Handler):
    """Writes to a descriptor, with one call for each line."""

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = f"{self.format(record)}\n".encode(errors="backslashreplace")
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return  # the reader is gone, or the disk is full: no reason to stop
        except Exception:
            self.handleError(record)


def set_up(level: str, form: str, actor: str) -> None:
    """Set up the log of this process, and replace existing handlers."""
    handler = LineHandler()
    handler.setFormatter(JsonFormatter(actor) if form == "json" else TextFormatter(actor))
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())


def name_thread(actor: str) -> None:
    """Let the records of this thread name its actor."""
    _thread.actor = actor


def say(text: str, form: str, level: int = logging.INFO) -> None:
    """Write a text that people at the terminal must read, whatever the log's level.

    The line is plain text, or a JSON object as all other lines are. On a terminal, a text that is
    too long for a line is broken between words.
    """
    if form == "json":
        record = log.makeRecord(log.name, level, __file__, 0, text, (), None)
        text = JsonFormatter(SUPERVISOR).format(record)
    elif sys.stderr.isatty():
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        text = "\n  ".join(
            textwrap.wrap(
                text, max(columns - 2, 20), break_long_words=False, break_on_hyphens=False
            )
        )
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
