"""Pytest plugin of `scripts/mutate`: it records which test executes which switch, or tries
removals, each in a fork of this process. A switch is code at a site (see `__main__.py`) that can
remove that site.

    pytest -p mutate.plugin --mutate-record FILE
    pytest -p mutate.plugin --mutate-try FOLDER

The first form writes a line of JSON for each test: its name, its seconds, whether it passed, and
the switches that it executed. The second form takes one order after the other from FOLDER and
writes the answers there.

An order is a removal and the tests to run. The tests are collected only once. A fork has all
modules imported, sets the switch, and runs the tests until one fails. Processes that it leaves
running, for example the broker of an interrupted test, become children of this process and are
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_PR_SET_CHILD_SUBREAPER: Final = 36
_MEMORY_BYTES_MAX: Final = 3 << 30
_LIMIT_S: Final = 30.0  # seconds for a test, plus ten times its duration when nothing was removed
_WHY_CHARS: Final = 300


def switch() -> Any:
    import zsq

    assert Path(zsq.__file__).parent == Path(__file__).resolve().parents[2], (
        f"{zsq.__file__} is not the copy"
    )
    import zsq.storage.files  # this loads the switches

    return sys.modules["_switch"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutate-record", default="")
    parser.addoption("--mutate-try", default="")


def pytest_configure(config: pytest.Config) -> None:
    switch().in_pytest = True
    config.stash[_FAILED] = []
    if where := config.getoption("--mutate-record"):
        os.environ["ZSQ_SWITCH_SEEN"] = f"{where}.{os.getpid()}.seen"


_FAILED: Final = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        why = str(call.excinfo.value) if call.excinfo is not None else ""
        item.config.stash[_FAILED].append(
            (
                item.nodeid,
                report.when or "",
                f"{type(call.excinfo.value).__name__ if call.excinfo else ''}: {why}",
            )
        )
    return report  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    where = item.config.getoption("--mutate-record")
    if not where:
        return (yield)
    switches, failed = switch(), item.config.stash[_FAILED]
    switches.seen.clear()
    failed.clear()
    path = Path(os.environ["ZSQ_SWITCH_SEEN"])
    begin, begin_s = path.stat().st_size if path.exists() else 0, time.monotonic()
    result = yield
    others = path.read_bytes()[begin:] if path.exists() else b""
    found = switches.seen | {
        int.from_bytes(others[at : at + 4], "little") for at in range(0, len(others) - 3, 4)
    }
    row = {
        "test": item.nodeid,
        "s": round(time.monotonic() - begin_s, 3),
        "passed": not failed,
        "seen": sorted(found),
    }
    with open(f"{where}.{os.getpid()}", "a") as out:
        out.write(json.dumps(row) + "\n")
    return result


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    folder = session.config.getoption("--mutate-try")
    if not folder:
        return None
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    items = {item.nodeid: item for item in session.items}
    while (order := _next_order(Path(folder))) is not None:
        found = _tried(session, items, order)
        with open(Path(folder) / f"answers.{os.getpid()}", "a") as out:
            out.write(json.dumps(found) + "\n")
    return True


def _next_order(folder: Path) -> dict[str, Any] | None:
    """Return the next order that no other process has taken, or None."""
    with open(folder / "next", "r+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        number = int(turn.read() or 0)
        path = folder / f"order.{number}"
        if not path.exists():
            return None
        turn.seek(0)
        turn.write(str(number + 1))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _tried(
    session: pytest.Session, items: dict[str, pytest.Item], order: dict[str, Any]
) -> dict[str, Any]:
    """Run the tests of an order, until one fails that passes again when nothing is removed."""
    begin_s = time.monotonic()
    waiting = [(name, took_s) for name, took_s in order["tests"] if name in items]
    shaky: list[str] = []
    ran = 0
    while waiting:
        name, when, why, passed = _run(session, items, waiting, order["number"])
        ran += passed
        if not name:
            break
        took_s = dict(waiting)[name]
        again = _run(session, items, [(name, took_s)], -1)
        if not again[0]:
            return {
                **_head(order),
                "caught": name,
                "when": when,
                "why": why[:_WHY_CHARS],
                "ran": ran,
                "shaky": shaky,
                "s": _since(begin_s),
            }
        shaky.append(name)
        waiting = waiting[[one for one, _ in waiting].index(name) + 1 :]
    return {
        **_head(order),
        "caught": "",
        "when": "",
        "why": "",
        "ran": ran,
        "shaky": shaky,
        "s": _since(begin_s),
    }


def _head(order: dict[str, Any]) -> dict[str, Any]:
    return {name: order[name] for name in ("key", "full", "left")}


def _since(begin_s: float) -> float:
    return round(time.monotonic() - begin_s, 2)


def _run(
    session: pytest.Session,
    items: dict[str, pytest.Item],
    tests: list[tuple[str, float]],
    number: int,
) -> tuple[str, str, str, int]:
    """Run tests in a fork with switch `number` off. Return (the test that failed or hung, its
    phase, how it failed, how many tests passed before it).
    """
    reading, writing = os.pipe()
    folder = tempfile.mkdtemp(prefix="mutate-")
    pid = os.fork()
    if not pid:
        os.close(reading)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        _child(session, [items[name] for name, _ in tests], number, writing)
    os.close(writing)
    limits = dict(tests)
    running, passed, outcome = "", 0, ("", "", "")
    begin_s, rest = time.monotonic(), b""
    while True:
        limit_s = _LIMIT_S + 10 * limits.get(running, 0.0)
        left_s = begin_s + limit_s - time.monotonic()
        if left_s <= 0:
            outcome = (running, "time-out", f"did not end within {limit_s:.0f} s")
            break
        if not select.select([reading], [], [], left_s)[0]:
            continue
        data = os.read(reading, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, *more = json.loads(line)
            if word == "begin":
                passed += running != ""
                running, begin_s = more[0], time.monotonic()
            elif word == "failed":
                outcome = (more[0], more[1], more[2])
            elif word == "end":
                passed += running != ""
                running = ""
    os.close(reading)
    code = _end(pid)
    if not outcome[0] and running:
        outcome = (running, "death", f"the process ended by {code}")
    _end_all()
    shutil.rmtree(folder, ignore_errors=True)
    return (*outcome, passed)


def _child(session: pytest.Session, items: list[pytest.Item], number: int, writing: int) -> None:
    """Run the tests until one fails, then end the process. This function never returns."""

    def say(*words: str) -> None:
        os.write(writing, json.dumps(words).encode() + b"\n")

    with contextlib.suppress(BaseException):
        switches = switch()
        switches.active, switches.in_pytest = number, True
        os.environ["ZSQ_SWITCH_OFF"] = str(number)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        failed = session.config.stash[_FAILED]
        failed.clear()
        for at, item in enumerate(items):
            say("begin", item.nodeid)
            session.config.hook.pytest_runtest_protocol(
                item=item, nextitem=items[at + 1] if at + 1 < len(items) else None
            )
            if failed:
                say("failed", *failed[0])
                with contextlib.suppress(BaseException):
                    session._setupstate.teardown_exact(None)
                break
        else:
            say("end")
    os._exit(0)


def _end(pid: int) -> int:
    """Return the exit code of the process. Kill it if it does not end by itself within a few
    seconds.
    """
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], [], [], 5)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_all() -> None:
    """Kill all processes that the fork left running: they became children of this process."""
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        below = children(os.getpid())
        if not below:
            return
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], 0.02)


def children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if (
                    int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                    == parent
                ):
                    found.append(int(entry))
    return found
