"""The keeper of an engine: when there is one, and that it does not end while it has nothing to do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from zsq.transport.drive import Drive
from zsq.transport.engine import Engine


class _Timed(Engine):
    """Says when something was due."""

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
        with drive.lock:
            drive.stop()
        drive.end()


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "zsq kept"]


def make_due(drive: Drive[_Timed]) -> bool:
    """Whether what is due now is done although nobody waits."""
    drive.engine.called.clear()
    with drive.lock:
        drive.engine.sooner(0)
        drive.settle()
    return drive.engine.called.wait(5)


def test_there_is_no_thread_until_something_is_due() -> None:
    """A client that was only made, or waits for nothing, costs its process no thread, and does not make `fork` a risk."""
    with driven() as drive:
        with drive.lock:
            drive.settle()
        assert keepers() == []
        assert make_due(drive)
        assert len(keepers()) == 1
    assert keepers() == []


def test_the_keeper_outlives_having_nothing_to_do() -> None:
    """There is one for the whole life: without it nobody would send heartbeats any more, and the broker would give the client up."""
    with driven() as drive:
        assert make_due(drive)
        [keeper] = keepers()
        keeper.join(0.2)  # by then it has looked twice that nobody turns the engine, and waits without a limit
        assert keeper.is_alive()
        assert make_due(drive)
