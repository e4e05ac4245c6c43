"""Tests with calls of the operating system that fail: for every n, the n-th call of a workload
fails. They run the first round of `scripts/prove calls`.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from itertools import islice
from types import FrameType

import pytest
from faults import calls
from faults.failing import FailingFiles, Fault
from support.faulty_files import keep_none
from support.lmdb_calls import LmdbCalls

pytestmark = pytest.mark.slow

CALLS_MIN = 1_000
SIGNAL_EVERY_S = 0.0005


@pytest.mark.parametrize("life", calls.LIVES)
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_each_call_of_a_workload_fails(life: str, step: int) -> None:
    """The suite for every change tries each seventh call."""
    count = len(calls.trace_of(life))
    cases = list(islice(calls.cases(life, seed=0), count))[::step]
    tried = calls.try_all(cases)
    print(
        f"{life}: {tried.cases} failing calls, {tried.refused} were refused, {tried.failed} "
        "ended the store"
    )
    assert not tried.violations, tried.violations[0]
    assert tried.cases == len(cases)


def test_the_workloads_make_enough_failing_calls() -> None:
    total = sum(len(calls.trace_of(life)) for life in calls.LIVES)
    print(f"{total} failing calls in all")
    assert total >= CALLS_MIN


def test_a_promise_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test, the log does not cut off a block that was refused, so a reader finds it. The
    check must report that.
    """
    monkeypatch.setattr(FailingFiles, "truncate", lambda *_: None)
    short = [
        case
        for case in calls.cases("log", seed=0)
        if case.fault.code == errno.ENOSPC and case.fault.mode == "short"
    ]
    assert calls.try_all(short[:20]).violations


def test_a_sync_that_failed_covers_nothing_that_is_synced_later() -> None:
    """The fake disk follows this rule for the log, and for LMDB's pages too."""
    with calls.a_disk() as (disk, files), LmdbCalls(files.lmdb):
        fd = files.open_new(str(disk / "a"))
        files.writev(fd, [b"lost"], 0)
        files.arm(Fault(1, errno.EIO, "once"))
        with pytest.raises(OSError, match="by plan"):
            files.sync(fd)
        files.lift()
        files.writev(fd, [b"kept"], 4)
        files.sync(fd)
        files.sync_folder(str(disk))
        files.crash(keep_none)
        assert (disk / "a").read_bytes() == b"\0\0\0\0kept"


@pytest.fixture
def interrupted() -> Iterator[list[int]]:
    """Send signals to the process all the time, and yield the list of those that arrived."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, SIGNAL_EVERY_S, SIGNAL_EVERY_S)
    try:
        yield came
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("life", calls.LIVES)
def test_signals_are_of_no_consequence(life: str, interrupted: list[int]) -> None:
    calls.trace_of(life)
    assert interrupted
