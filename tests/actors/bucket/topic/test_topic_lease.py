"""Tests of what a topic withholds while the lease of the primary is over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from zsq.actors.bucket import lease_cell
from zsq.actors.bucket.lease_cell import OVER, LeaseCell, LeaseWatch
from zsq.actors.bucket.topic.topic_lease import PATIENCE_S, TopicLease
from zsq.transport.errors import E_STANDBY, Refused

S = 1_000_000_000


class Timers:
    def __init__(self) -> None:
        self.running: list[Callable[[], None]] = []

    def every(self, interval_ms: float, function: Callable[[], None]) -> None:
        self.running.append(function)

    def cease(self, function: Callable[[], None]) -> None:
        self.running.remove(function)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [10 * S]
    for module in (TopicLease.__module__, LeaseWatch.__module__):
        monkeypatch.setattr(f"{module}.boot_ns", lambda: now[0])
    return now


def retry() -> None:
    """Do nothing."""


def test_without_a_bucket_nothing_is_withheld() -> None:
    assert not TopicLease("", cast("Any", Timers()), retry).is_over()


def test_without_a_cell_nothing_is_withheld(tmp_path: Path) -> None:
    assert not TopicLease(f"ipc://{tmp_path}/7", cast("Any", Timers()), retry).is_over()


def test_answers_wait_while_the_lease_is_over(tmp_path: Path, now: list[int]) -> None:
    cell, timers = LeaseCell(str(tmp_path), make=True), Timers()
    lease = TopicLease(f"ipc://{tmp_path}/7", cast("Any", timers), retry)
    assert not lease.is_over()
    cell.write(11 * S)
    assert not lease.is_over()
    now[0] = 11 * S
    assert lease.is_over()
    assert lease.is_over()
    assert timers.running == [retry], "somebody must look again"
    cell.write(12 * S)
    assert not lease.is_over()
    assert not timers.running


def test_publishes_wait_and_are_refused_then(tmp_path: Path, now: list[int]) -> None:
    cell = LeaseCell(str(tmp_path), make=True)
    lease = TopicLease(f"ipc://{tmp_path}/7", cast("Any", Timers()), retry)
    cell.write(OVER)
    assert lease.publishes_must_wait()
    lease.check()
    now[0] += int(PATIENCE_S * S) + 1
    assert not lease.publishes_must_wait()
    with pytest.raises(Refused) as caught:
        lease.check()
    assert caught.value.code == E_STANDBY
    cell.write(0)
    lease.check()
    assert not lease.publishes_must_wait()


def test_a_broker_is_lost_when_the_lease_was_over_for_the_patience(
    tmp_path: Path, now: list[int]
) -> None:
    cell = LeaseCell(str(tmp_path), make=True)
    cell.write_patience(20 * S)
    watch = LeaseWatch(str(tmp_path))
    watch.check()
    cell.write(11 * S)
    now[0] = 31 * S
    assert watch.is_over
    assert not watch.is_lost
    now[0] += 1
    assert watch.is_lost, "it counts from the end of the lease, and not from the first look"
    with pytest.raises(Refused) as caught:
        watch.check()
    assert caught.value.code == E_STANDBY
    cell.write(now[0] + S)
    watch.check()
    assert not watch.over_ns


def test_without_a_time_of_its_end_a_lease_is_over_since_the_first_look(
    tmp_path: Path, now: list[int]
) -> None:
    cell = LeaseCell(str(tmp_path), make=True)
    cell.write(OVER)
    watch = LeaseWatch(str(tmp_path))
    assert not watch.is_lost
    now[0] += int(lease_cell.PATIENCE_S * S) + 1
    assert watch.is_lost


def test_a_broker_without_a_bucket_is_never_lost() -> None:
    assert not LeaseWatch("").is_lost
