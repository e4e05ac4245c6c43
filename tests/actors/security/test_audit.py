"""Tests of the audit log: its lines are complete, in order, soon on disk and limited in size, even
when the disk is full. Other tests check which orders it contains.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.actors.runtime.port import Mail
from zsq.actors.security import audit as audit_module
from zsq.actors.security import audit as module
from zsq.actors.security.audit import (
    REMEMBERED,
    Allowances,
    AuditLog,
    AuditRecorder,
    line,
    looks_only,
    shortened,
)
from zsq.actors.supervisor.commands.management import Commands
from zsq.actors.supervisor.commands.requests import Requests
from zsq.actors.supervisor.topics.registry_format import NO_PARTS
from zsq.transport.errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from zsq.transport.wire.protocol import Manage

S = 20.0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., AuditLog]]:
    made: list[AuditLog] = []

    def one(**more: Any) -> AuditLog:
        log = AuditLog(tmp_path / "audit.log", **more)
        made.append(log)
        log.open()
        return log

    yield one
    for log in made:
        log.close()


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_bytes().splitlines()]


def numbers(path: Path) -> list[int]:
    return [row["n"] for row in rows(path) if "n" in row]


def test_lines_are_on_disk_in_order_and_for_us_only(make: Callable[..., AuditLog]) -> None:
    log = make()
    for n in range(200):
        log.note("pause", topic="t", n=n)
    assert log.settled(S)
    assert numbers(log.path) == list(range(200))
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert set(rows(log.path)[0]) == {"time", "action", "topic", "n"}
    assert [row["n"] for row in log.newest(3)] == [199, 198, 197]
    log.note("pause", topic="u", n=-1)
    assert [row["n"] for row in log.newest(3, "u")] == [-1]
    assert [row["n"] for row in log.newest(1, "t")] == [199]


def test_a_line_counts_as_written_only_after_a_sync(
    make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line counts as written only after a sync that began when the line was already
    in the file.
    """
    audit, sync = make(), os.fdatasync
    sizes: list[int] = []

    def noted(fd: int) -> None:
        sizes.append(os.fstat(fd).st_size)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    audit.note("create", topic="t")
    assert audit.settled(10)
    assert sizes
    assert sizes[-1] == audit.path.stat().st_size > 0


def test_the_last_lines_are_written_at_the_end_and_known_after_a_start(
    make: Callable[..., AuditLog],
) -> None:
    log = make()
    log.note("pause", n=1)
    log.close()
    assert numbers(log.path) == [1]
    with log.path.open("ab") as file:
        file.write(b'{"half a li')
    later = make()
    assert [row["n"] for row in later.newest(10)] == [1]
    later.note("pause", n=2)
    assert later.settled(S)
    assert log.path.read_bytes().count(b"\n") == 3, "the half line is one by itself"
    assert json.loads(log.path.read_bytes().splitlines()[-1])["n"] == 2


def test_the_audit_log_is_rotated_and_bounded(make: Callable[..., AuditLog]) -> None:
    log = make(max_bytes=2_000)
    for n in range(300):
        log.note("pause", n=n)
        assert log.settled(S)
    files = sorted(log.path.parent.iterdir())
    assert [path.name for path in files] == [
        "audit.log",
        *(f"audit.log.{number}" for number in range(1, 5)),
    ]
    assert all(
        path.stat().st_size <= 2_000 and stat.S_IMODE(path.stat().st_mode) == 0o600
        for path in files
    )
    kept = [n for path in [*reversed(files[1:]), files[0]] for n in numbers(path)]
    assert kept == list(range(kept[0], 300))


def test_an_audit_log_that_was_moved_away_is_created_again(make: Callable[..., AuditLog]) -> None:
    log = make()
    log.note("pause", n=1)
    assert log.settled(S)
    log.path.rename(log.path.with_name("moved"))
    log.note("pause", n=2)
    assert log.settled(S)
    assert numbers(log.path) == [2]
    log.path.rename(log.path.with_name("moved too"))
    log.path.touch(0o600)  # logrotate creates a new file in this way
    log.note("pause", n=3)
    assert log.settled(S)
    assert numbers(log.path) == [3]


def test_the_audit_log_does_not_write_through_a_symlink(
    make: Callable[..., AuditLog], tmp_path: Path
) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "audit.log").symlink_to(tmp_path / "target")
    log = make(retry_s=0.01)
    log.note("pause", n=1)
    assert not log.settled(0.2)
    assert (tmp_path / "target").read_bytes() == b""


def test_a_full_disk_blocks_no_request_and_loses_no_line_that_fits(
    make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real, tries = [True], os.write, count()

    def refused(fd: int, data: bytes) -> int:
        if not full:
            return real(fd, data)
        if next(tries) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10])  # only ten more bytes fit on the disk

    monkeypatch.setattr(os, "write", refused)
    log = make(retry_s=0.01)
    size = len(line({"time": module.now_text(), "action": "pause", "n": 100_000}))
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 500 * size)
    for n in range(100_000, 100_550):
        log.note("pause", n=n)  # the call returns at once
    assert not log.settled(0.1)
    assert not log.path.exists() or log.path.stat().st_size == 0, "no half line"
    full.clear()
    assert log.settled(S)
    assert numbers(log.path) == list(range(100_000, 100_500))
    assert log.lost == 0
    assert sum(row["count"] for row in rows(log.path) if row["action"] == "lost") == 50
    assert len(log.newest(REMEMBERED)) == 550


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(anything)
def test_every_entry_is_one_short_line(value: Any) -> None:
    data = line({"options": shortened(value)})
    assert data.count(b"\n") == 1
    assert data.isascii()
    assert "options" in json.loads(data)


def test_large_values_are_cut() -> None:
    large = shortened({"keys": ["k" * 5_000] * 1_000, **{str(n): n for n in range(1_000)}})
    found = json.loads(line({"action": "configure", "options": large}))
    assert found["options"]["cut"].startswith('{"keys":["kkk')
    assert found["options"]["bytes"] > module.LINE_BYTES_MAX
    assert len(line({"action": "configure", "options": large})) < 600
    assert shortened({"a": {"b": {"c": {"d": {"e": 1}}}}}) == {"a": {"b": {"c": {"d": "..."}}}}
    assert shortened([1] * 25)[-1] == "... 25 in all"


def test_a_long_text_is_cut_and_says_its_length() -> None:
    assert shortened("x" * 200) == "x" * 200
    assert shortened("x" * 201) == "x" * 200 + "... (201 characters)"


class Noted:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, action: str, **what: Any) -> None:
        self.rows.append({"action": action} | what)


def order(
    action: str, request: int = 1, options: dict[str, Any] | None = None, **by: str
) -> Manage:
    return Manage(request, action, "t", "c", options or {}, by)


def test_an_order_is_noted_with_its_end_once() -> None:
    noted = Noted()
    harness = AuditRecorder(noted)  # type: ignore[arg-type]
    me, other = 5, 6
    harness.ordered(me, order("empty", user="etl", via="http"))
    harness.ordered(other, order("pause"))
    harness.answered(7)
    assert not noted.rows
    harness.answered(other, "E_NOT_FOUND no")
    harness.answered(me)
    harness.answered(me)
    assert [(row["action"], row["user"], row["via"], row["result"]) for row in noted.rows] == [
        ("pause", "", "ipc", "E_NOT_FOUND no"),
        ("empty", "etl", "http", "done"),
    ]
    harness.ordered(me, order("delete"))
    harness.close()
    assert noted.rows[-1]["result"].startswith("not known")


def test_orders_that_are_never_answered_are_noted_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_module, "OPEN_MAX", 2)
    noted = Noted()
    harness = AuditRecorder(noted)  # type: ignore[arg-type]
    for request in range(4):
        harness.ordered(request, order(f"pause {request}", request))
    assert [(row["action"], row["result"]) for row in noted.rows] == [
        ("pause 0", "not known"),
        ("pause 1", "not known"),
    ]


def commands(log: AuditLog, sent: list[Any]) -> tuple[Commands, Requests]:
    """Return handlers that put their answers into `sent`."""
    nobody: Any = SimpleNamespace(
        stopping=False,
        groups={},
        processes=None,
        options=SimpleNamespace(cluster=""),
        registry=SimpleNamespace(uuid="", topics={}, parted=NO_PARTS),
    )
    requests = Requests(
        nobody,
        cast("Any", None),
        log,
        lambda _, message: sent.append(message) is None,  # type: ignore[func-returns-value]
        int,
    )
    return Commands(requests, nobody), requests


def test_a_request_about_a_topic_gets_only_its_entries(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.note("pause", topic="mine")
    log.note("pause", topic="other")
    sent: list[Any] = []
    management, _ = commands(log, sent)
    for topic in ("mine", ""):
        management.on_mail(Mail((b"me",), Manage(1, "audit", topic, "", {}), []))
    assert [[row["topic"] for row in message.data["entries"]] for message in sent] == [
        ["mine"],
        ["other", "mine"],
    ]


def test_actions_that_only_read_are_not_recorded_and_unknown_ones_are() -> None:
    looking = ["list", "chunks", "ended", "peek", "overview", "audit"]
    assert all(looks_only(order(action)) for action in looking)
    assert looks_only(order("delayed", options={"do": "list"}))
    assert not looks_only(order("delayed", options={"do": "cancel"}))
    stranges: tuple[Any, ...] = ({"list": 1}, (), ({},), 1, None, b"list")
    for strange in stranges:
        assert not looks_only(order("delayed", options={"do": strange})), (
            "one of them ended the supervisor"
        )
    changing = (
        "create",
        "delete",
        "pause",
        "unpause",
        "empty",
        "configure",
        "close",
        "open",
        "seek",
        "never heard of",
    )
    assert not any(looks_only(order(action)) for action in changing)


@pytest.mark.parametrize("count", [0, -1, REMEMBERED + 1])
def test_a_count_outside_its_limits_is_refused(tmp_path: Path, count: int) -> None:
    sent: list[Any] = []
    management, _ = commands(AuditLog(tmp_path / "audit.log"), sent)
    management.on_mail(Mail((b"me",), Manage(1, "audit", "", "", {"count": count}), []))
    assert [message.code for message in sent] == [E_BAD_ARGUMENT]


def test_a_request_without_a_handler_is_refused_and_recorded(tmp_path: Path) -> None:
    """The broker may lack the extension that answers it."""
    log = AuditLog(tmp_path / "audit.log")
    sent: list[Any] = []
    management, _ = commands(log, sent)
    management.on_mail(Mail((b"me",), Manage(1, "alarm", "", "", {"do": "ack"}), []))
    assert [message.code for message in sent] == [E_UNSUPPORTED]
    assert "alarm ack" in sent[0].text
    assert [row["action"] for row in log.newest(5)] == ["alarm"]


def test_a_line_is_never_longer_than_its_limit() -> None:
    """JSON needs 12 bytes for a character outside of the Basic Multilingual Plane."""
    text = "\U0001f600" * 200
    fields = ("action", "topic", "channel", "user", "from", "via", "result")
    data = line(
        {"time": "2026"}
        | {name: shortened(text) for name in fields}
        | {"options": shortened({text: [text] * 50})}
    )
    assert len(data) <= module.LINE_BYTES_MAX
    assert json.loads(data)["topic"].endswith("... (cut)")


def test_the_bytes_of_remembered_entries_are_bounded(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    for n in range(2_000):
        log.note("configure", n=n, options={str(key): "v" * 200 for key in range(14)})
    assert sum(map(len, log._newest)) <= module.REMEMBERED_BYTES
    found = log.newest(REMEMBERED)
    assert 200 < len(found) < 500
    assert [row["n"] for row in found] == list(range(1_999, 1_999 - len(found), -1))


def nested(count: int) -> dict[str, Any]:
    return {str(n): {} for n in range(count)}


def test_large_options_are_not_kept_while_an_order_is_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted()
    harness = AuditRecorder(noted)  # type: ignore[arg-type]
    harness.ordered(1, order("configure", options=nested(900)))
    assert harness._open[1]["options"].keys() == {"cut", "bytes"}
    harness.ordered(2, order("configure", options=nested(100)))
    harness.answered(1)
    harness.answered(2, "E_BAD_ARGUMENT no")
    first, second = (row["options"] for row in noted.rows)
    assert first["bytes"] > 3_000
    assert (second["cut"][:8], second["bytes"] > audit_module.REFUSED_OPTIONS_BYTES) == (
        '{"0":{},',
        True,
    ), "a refused order is cut shorter"


def test_one_user_cannot_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders beyond a user's allowance are only counted. The orders of other users still get their
    lines.
    """
    now = [1_000.0]
    monkeypatch.setattr("zsq.actors.security.audit.time.monotonic", lambda: now[0])
    noted = Noted()
    harness = AuditRecorder(noted)  # type: ignore[arg-type]
    number = 0

    def give(count: int, user: str, via: str = "http", **more: Any) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            harness.ordered(number, order("pause", number, user=user, via=via, **more))
            harness.answered(number)

    give(50_000, "greedy")
    lines = len(noted.rows)
    assert (
        sum(len(line({"time": module.now_text(), **row})) for row in noted.rows)
        <= audit_module.USER_BYTES
    )
    assert lines > 5_000
    give(1, "other")
    give(1, "", via="ipc")
    assert len(noted.rows) == lines + 2
    harness.tick(now[0] + audit_module.FOLDED_S)
    assert noted.rows[-1]["action"] == "folded"
    assert noted.rows[-1]["user"] == "greedy"
    assert noted.rows[-1]["options"] == {"pause t: done": 50_000 - lines}
    now[0] += 86_400
    give(50_000, "greedy")
    assert len(noted.rows) - lines - 3 <= lines + 1, "a day later as much again, and no more"
    harness.close()
    assert noted.rows[-1]["action"] == "folded"


def test_two_orders_with_the_same_number_have_each_their_line_and_answer() -> None:
    """One client gives the same number to two orders. In an earlier version, a deletion among such
    orders left no line in the log.
    """
    noted = Noted()
    sent: list[Any] = []
    management, requests = commands(cast("AuditLog", noted), sent)
    waiting: list[Any] = []
    management._manage = waiting.append  # type: ignore[method-assign, assignment]
    for action in ("delete", "pause"):
        management.on_mail(Mail((b"me",), Manage(7, action, "t", "", {}), []))
    delete, pause = waiting
    requests.fail(pause.request, UsageError("E_BAD_ARGUMENT", "no"))
    requests.done(delete.request, {"x": 1})
    requests.done(delete.request, {"x": 1})
    assert [(row["action"], row["result"]) for row in noted.rows] == [
        ("pause", "E_BAD_ARGUMENT no"),
        ("delete", "done"),
    ]
    assert [(message.request, type(message).__name__) for message in sent] == [
        (7, "Failed"),
        (7, "Done"),
    ]


def test_the_number_of_remembered_allowances_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user whose last order is the oldest is forgotten."""
    monkeypatch.setattr(module, "USERS_MAX", 2)
    allowances = Allowances()
    for user in ("a", "b", "a", "c"):
        assert allowances.take(user, 1, 0.0)
    assert list(allowances._left) == ["a", "c"]


def counted_only(monkeypatch: pytest.MonkeyPatch, *orders: Manage) -> list[dict[str, Any]]:
    """Return the lines for these orders if the users may not write any more bytes."""
    monkeypatch.setattr(module, "USER_BYTES", 0)
    noted = Noted()
    harness = AuditRecorder(noted)  # type: ignore[arg-type]
    for number, message in enumerate(orders):
        harness.ordered(number, message)
        harness.answered(number)
    harness.close()
    return noted.rows


def test_the_kinds_of_orders_that_are_only_counted_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FOLDED_KINDS", 2)
    (row,) = counted_only(
        monkeypatch, *(order(f"act {n}", user="greedy", via="http") for n in (0, 1, 2, 3, 0))
    )
    assert row["options"] == {"act 0 t: done": 2, "act 1 t: done": 1, "others": 2}


def test_the_users_whose_orders_are_only_counted_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "USERS_MAX", 2)
    found = counted_only(
        monkeypatch, *(order("pause", user=user, via="http") for user in ("a", "b", "c", "d", "a"))
    )
    assert [(row["user"], row["options"]) for row in found] == [
        ("a", {"pause t: done": 2}),
        ("b", {"pause t: done": 1}),
        ("others", {"pause t: done": 2}),
    ]
