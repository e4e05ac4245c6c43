"""Tests of the two formats of the log: what a line contains, that each event is one line, and that
no text from outside can begin a new line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import pytest

from zsq.actors.runtime import logs


def record(
    text: str, *arguments: Any, fields: dict[str, Any] | None = None, error: bool = False
) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("no\nway")
        except ValueError:
            info = sys.exc_info()
    made = logging.getLogger("zsq").makeRecord(
        "zsq", logging.WARNING, "f.py", 1, text, arguments, info
    )
    made.created, made.msecs = 1_700_000_000.25, 250.0
    if fields is not None:
        made.fields = fields
    return made


def test_a_text_line_holds_the_event_and_its_fields() -> None:
    line = logs.TextFormatter("topic clicks").format(
        record("%d chunks go", 3, fields={"topic": "clicks"})
    )
    assert line.endswith(f",250 {os.getpid()} WARNING [topic clicks] 3 chunks go topic=clicks")


def test_a_json_line_holds_the_event_and_its_fields() -> None:
    found = json.loads(
        logs.JsonFormatter("topic clicks").format(
            record("%d chunks go", 3, fields={"topic": "clicks", "level": "mine"})
        )
    )
    assert found == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "actor": "topic clicks",
        "pid": os.getpid(),
        "message": "3 chunks go",
        "topic": "clicks",
    }


def test_an_exception_is_one_object() -> None:
    line = logs.JsonFormatter("topic t").format(record("ends", error=True))
    assert "\n" not in line
    found = json.loads(line)
    assert found["error"] == "ValueError('no\\nway')"
    assert found["trace"].startswith("Traceback")


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\r2026-11-22 00:00:00,000 1 ERROR [supervisor] forged",
        "a\x1b[2Jb",
        "a\u2028b",
        "a\x85b",
        "a\u202eb",
    ],
)
def test_no_text_can_begin_a_line_of_the_log(text: str) -> None:
    for form in (logs.TextFormatter("t"), logs.JsonFormatter("t")):
        line = form.format(record("%s", text, fields={"name": text}))
        assert len(line.splitlines()) == 1
        assert all(character.isprintable() for character in line)


def test_a_line_is_one_write_and_a_closed_reader_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    handler = logs.LineHandler(writing)
    handler.setFormatter(logs.TextFormatter("t"))
    handler.emit(record("x" * 5000 + "\udc80"))
    assert os.read(reading, 10_000).endswith(b"\\udc80\n")
    os.close(reading)
    # Python ignores SIGPIPE. The write fails with EPIPE, and no error is reported.
    handler.emit(record("nobody reads"))
    os.close(writing)


def test_set_up_replaces_all_other_handlers() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.set_up("warning", "json", "t")
        assert [type(handler) for handler in root.handlers] == [logs.LineHandler]
        assert root.level == logging.WARNING
        logs.set_up("info", "text", "t")
        assert [type(handler.formatter) for handler in root.handlers] == [logs.TextFormatter]
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_a_text_for_people_is_plain_or_json_as_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.say("zsq ready: here", "text")
    logs.say("zsq ready: here", "json", logging.ERROR)
    plain, line = capsys.readouterr().err.splitlines()
    assert plain == "zsq ready: here"
    assert json.loads(line)["actor"] == "supervisor"
    assert json.loads(line)["level"] == "error"
