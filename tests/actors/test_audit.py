"""The audit log: whole lines, in order, on disk soon, bounded, through a full disk; and which orders are in it."""

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

from zsq.actors import audit as module
from zsq.actors import audit_desk
from zsq.actors.audit import REMEMBERED, AuditLog, line, shortened
from zsq.actors.audit_desk import AuditDesk, count_of, looks_only
from zsq.actors.management import Management
from zsq.actors.port import Mail
from zsq.transport.errors import UsageError
from zsq.transport.protocol import Manage

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


def test_what_is_settled_was_synced(make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line counts as written only behind a sync that found it in the file."""
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


def test_the_last_lines_are_written_at_the_end_and_known_after_a_start(make: Callable[..., AuditLog]) -> None:
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


def test_it_is_rotated_and_bounded(make: Callable[..., AuditLog]) -> None:
    log = make(bytes_max=2_000)
    for n in range(300):
        log.note("pause", n=n)
        assert log.settled(S)
    files = sorted(log.path.parent.iterdir())
    assert [path.name for path in files] == ["audit.log", *(f"audit.log.{number}" for number in range(1, 5))]
    assert all(path.stat().st_size <= 2_000 and stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    kept = [n for path in [*reversed(files[1:]), files[0]] for n in numbers(path)]
    assert kept == list(range(kept[0], 300))


def test_who_moves_it_away_gets_a_new_one(make: Callable[..., AuditLog]) -> None:
    log = make()
    log.note("pause", n=1)
    assert log.settled(S)
    log.path.rename(log.path.with_name("moved"))
    log.note("pause", n=2)
    assert log.settled(S)
    assert numbers(log.path) == [2]
    log.path.rename(log.path.with_name("moved too"))
    log.path.touch(0o600)  # and made another one, as logrotate does
    log.note("pause", n=3)
    assert log.settled(S)
    assert numbers(log.path) == [3]


def test_it_follows_no_link(make: Callable[..., AuditLog], tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "audit.log").symlink_to(tmp_path / "target")
    log = make(retry_s=0.01)
    log.note("pause", n=1)
    assert not log.settled(0.2)
    assert (tmp_path / "target").read_bytes() == b""


def test_a_full_disk_holds_nobody_up_and_loses_nothing_that_fits(make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch) -> None:
    full, real, tries = [True], os.write, count()

    def refused(fd: int, data: bytes) -> int:
        if not full:
            return real(fd, data)
        if next(tries) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10])  # the last bytes there are

    monkeypatch.setattr(os, "write", refused)
    monkeypatch.setattr(module, "WAITING_MAX", 500)
    log = make(retry_s=0.01)
    for n in range(550):
        log.note("pause", n=n)  # returns at once: nobody waits
    assert not log.settled(0.1)
    assert not log.path.exists() or log.path.stat().st_size == 0, "no half line"
    full.clear()
    assert log.settled(S)
    assert numbers(log.path) == list(range(500))
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
def test_whatever_came_is_one_line_and_short(value: Any) -> None:
    data = line({"options": shortened(value)})
    assert data.count(b"\n") == 1
    assert data.isascii()
    assert "options" in json.loads(data)


def test_large_values_are_cut() -> None:
    assert len(line({"o": shortened({"keys": ["k" * 5_000] * 1_000, **{str(n): n for n in range(1_000)}})})) < 8_000
    assert shortened({"a": {"b": {"c": {"d": {"e": 1}}}}}) == {"a": {"b": {"c": {"d": "..."}}}}
    assert shortened([1] * 25)[-1] == "... 25 in all"


class Noted:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, action: str, **what: Any) -> None:
        self.rows.append({"action": action} | what)


def order(action: str, request: int = 1, options: dict[str, Any] | None = None, **by: str) -> Manage:
    return Manage(request, action, "t", "c", options or {}, by)


def test_an_order_is_noted_with_its_end_once() -> None:
    noted = Noted()
    desk = AuditDesk(noted)  # type: ignore[arg-type]
    me, other = (b"me",), (b"other",)
    desk.ordered(me, order("empty", user="etl", via="http"))
    desk.ordered(other, order("pause"))
    desk.answered(me, 2)
    assert not noted.rows
    desk.answered(other, 1, "E_NOT_FOUND no")
    desk.answered(me, 1)
    desk.answered(me, 1)
    assert [(row["action"], row["user"], row["via"], row["result"]) for row in noted.rows] == [
        ("pause", "", "ipc", "E_NOT_FOUND no"),
        ("empty", "etl", "http", "done"),
    ]
    desk.ordered(me, order("delete"))
    desk.close()
    assert noted.rows[-1]["result"].startswith("not known")


def test_orders_that_are_never_answered_are_noted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_desk, "OPEN_MAX", 2)
    noted = Noted()
    desk = AuditDesk(noted)  # type: ignore[arg-type]
    for request in range(4):
        desk.ordered((b"me",), order(f"pause {request}", request))
    assert [(row["action"], row["result"]) for row in noted.rows] == [("pause 0", "not known"), ("pause 1", "not known")]


def test_who_asks_about_a_topic_is_told_of_that_only(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.note("pause", topic="mine")
    log.note("pause", topic="other")
    sent: list[Any] = []
    management = Management(cast("Any", SimpleNamespace(audit=log, port=SimpleNamespace(send=lambda _, word: sent.append(word)))))
    for topic in ("mine", ""):
        management.on_mail(Mail((b"me",), Manage(1, "audit", topic, "", {}), []))
    assert [[row["topic"] for row in word.data["entries"]] for word in sent] == [["mine"], ["other", "mine"]]


def test_what_only_looks_is_not_noted_and_what_is_new_is() -> None:
    looking = ["list", "chunks", "peek", "overview", "audit"]
    assert all(looks_only(order(action)) for action in looking)
    assert looks_only(order("delayed", options={"do": "list"}))
    assert not looks_only(order("delayed", options={"do": "cancel"}))
    stranges: tuple[Any, ...] = ({"list": 1}, (), ({},), 1, None, b"list")
    for strange in stranges:
        assert not looks_only(order("delayed", options={"do": strange})), "one of them ended the supervisor"
    changing = ("create", "delete", "pause", "unpause", "empty", "configure", "close", "open", "seek", "never heard of")
    assert not any(looks_only(order(action)) for action in changing)


def test_how_many_are_asked_for() -> None:
    assert count_of({}) == 100
    assert count_of({"count": 5}) == 5
    for wrong in (0, -1, REMEMBERED + 1, "5", True, None):
        with pytest.raises(UsageError):
            count_of({"count": wrong})
