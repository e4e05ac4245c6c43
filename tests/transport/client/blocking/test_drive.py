"""Tests of the threads that run an engine: when there is a keeper, that it does not end early, and
that a caller may wait for any time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import wait_for as until

import zsq
from zsq.transport.client.blocking.drive import Drive
from zsq.transport.client.link.engine import Engine
from zsq.transport.wire import protocol as p


class _Timed(Engine):
    """An engine that records that its timers were called."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        self.called.set()


@contextlib.contextmanager
def driven() -> Iterator[Drive[_Timed]]:
    drive = Drive(_Timed(), keeper="zsq kept")
    try:
        yield drive
    finally:
        drive.leave(linger_ms=0)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "zsq kept"]


def make_due(drive: Drive[_Timed]) -> bool:
    """Make something due now. Return True if it is done although no caller waits."""
    drive.engine.called.clear()
    with drive.lock:
        drive.engine.sooner(0)
        drive.settle()
    return drive.engine.called.wait(5)


def test_no_thread_is_started_before_something_is_due() -> None:
    """A client that was only created, or has nothing to wait for, starts no thread. So it does not
    make `fork` dangerous.
    """
    with driven() as drive:
        with drive.lock:
            drive.settle()
        assert keepers() == []
        assert make_due(drive)
        assert len(keepers()) == 1
    assert keepers() == []


def test_a_timer_of_a_second_caller_is_in_time_while_the_first_one_sleeps() -> None:
    def wait_for(done: Callable[[], bool], wait_s: float) -> bool:
        return drive.wait(done, time.monotonic_ns() + int(wait_s * 1e9))

    def first() -> None:
        with drive.lock:
            wait_for(lambda: False, 60)

    with driven() as drive:
        caller = threading.Thread(target=first)
        caller.start()
        until(lambda: drive.engine.waiters, 10, "the first caller waits")
        drive.engine.called.clear()
        with drive.lock:
            drive.engine.sooner(0)
            assert wait_for(drive.engine.called.is_set, 5)
    caller.join(10)


def test_the_keeper_outlives_having_nothing_to_do() -> None:
    """The first keeper runs until the client ends. Without it, no heartbeats would be sent, and the
    broker would consider the client dead.
    """
    with driven() as drive:
        assert make_due(drive)
        [keeper] = keepers()
        # By then the keeper has seen twice that no caller runs the engine. It waits without a
        # limit.
        keeper.join(0.2)
        assert keeper.is_alive()
        assert make_due(drive)


def wake_count(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_the_keeper_rests_while_a_caller_sleeps_and_works_when_it_has_left() -> None:
    """A consumer that waits for messages does not wake its process 50 times a second."""
    with driven() as drive:
        assert make_due(drive)
        [keeper] = keepers()
        before = wake_count(keeper)
        with drive.lock:
            assert not drive.wait(lambda: False, time.monotonic_ns() + 500_000_000)
        assert wake_count(keeper) - before < 10
        assert make_due(drive)


def test_a_time_out_may_be_longer_than_the_system_allows(broker: Any) -> None:
    """A user may set a time-out of weeks to say "for ever". System calls accept at most 24 days (in
    milliseconds), or 292 years.
    """
    broker.deaf_to = {p.Manage}
    with (
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        zsq.Admin(broker.url, timeout=1e10) as admin,
    ):
        admin.ping()  # now the link is open, and nothing is due on it
        # One call runs the engine, and the other one waits for it.
        asked = [pool.submit(admin.pause, "t", "c") for _ in range(2)]
        broker.wait_for(lambda: broker.count(p.Manage) == 2)
        done, _ = concurrent.futures.wait(asked, 0.2)
        assert not done
        broker.deaf_to = set()
        broker.die()
        broker.start()
        # The link was lost, and a pause is not repeated automatically.
        with pytest.raises(zsq.BrokerUnreachable):
            asked[0].result(10)
        assert isinstance(asked[1].exception(10), zsq.BrokerUnreachable)


def test_messages_may_linger_for_longer_than_the_system_can_wait(broker: Any) -> None:
    # A producer of an earlier test may have left a thread that still has to end. It is not the
    # keeper of this producer.
    before = set(threading.enumerate())
    with zsq.Producer(broker.url, linger_ms=1e10, heartbeat_ms=p.HEARTBEAT_MS_MAX) as producer:
        receipt = producer.publish("t", b"a")
        [keeper] = [
            thread
            for thread in set(threading.enumerate()) - before
            if thread.name == "zsq producer"
        ]
        keeper.join(0.2)
        assert keeper.is_alive()
        assert receipt.wait(5) == 0
