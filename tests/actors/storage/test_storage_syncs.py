"""Tests of where syncs run: storage syncs a small amount itself. It leaves a larger amount to its
thread, so that clients that only read do not wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.fake_storage import Appended
from support.stage_bench import Thread

from tests.actors.storage.test_storage_commits import Bench
from zsq.actors.settings import options
from zsq.storage.log.log import SyncTicket


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "always")
    made.actor._sync_thread = cast("Any", Thread())
    yield made
    made.harness.abandon()


def stored(bench: Bench) -> int:
    """Return how many appends were answered since the last call."""
    told, bench.topic.told = bench.topic.told, []
    assert all(isinstance(message, Appended) for message in told)
    return len(told)


def a_block(bench: Bench) -> int:
    """Return the number of bytes of one block in the log."""
    bench.hear(1)
    size = bench.harness.log.unsynced_bytes
    bench.actor._start_sync()
    assert stored(bench) == 1
    return size


def syncs(bench: Bench) -> Thread:
    return cast("Thread", bench.actor._sync_thread)


def test_few_bytes_are_synced_in_the_loop_and_more_by_the_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "INLINE_SYNC_BYTES_MAX", a_block(bench))
    bench.hear(1)
    bench.turn()
    assert (stored(bench), syncs(bench).pending) == (1, 0)
    bench.hear(2)
    bench.turn()
    assert (stored(bench), syncs(bench).pending) == (0, 1), "the actor goes on while the disk works"
    syncs(bench).run()
    bench.actor._sync_results()
    assert stored(bench) == 1


def test_few_bytes_are_synced_by_the_thread_while_it_has_work(bench: Bench) -> None:
    """There is only one disk. A sync in the loop would take as long as one by the thread, and all
    clients would wait for it.
    """
    size = a_block(bench)
    assert size < options.INLINE_SYNC_BYTES_MAX, "the premise"
    syncs(bench).submit(None, lambda: None)
    bench.hear(1)
    bench.turn()
    assert (stored(bench), syncs(bench).pending) == (0, 2)


def test_a_slow_disk_is_synced_by_the_thread_until_it_is_fast_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topic and storage share the loop, so producers and channels would wait for each sync."""
    taken_ns = [
        options.INLINE_SYNC_NS_MAX + 1,
        options.INLINE_SYNC_NS_MAX + 1,
        options.INLINE_SYNC_NS_MAX,
        1,
    ]
    now = [0]
    run = SyncTicket.run

    def slow(ticket: SyncTicket) -> None:
        run(ticket)
        now[0] += taken_ns.pop(0)

    monkeypatch.setattr(SyncTicket, "run", slow)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    by_thread = []
    for _ in range(4):
        bench.hear(1)
        bench.turn()
        by_thread.append(syncs(bench).pending)
        syncs(bench).run()
        bench.actor._sync_results()
        assert stored(bench) == 1
    assert by_thread == [0, 1, 1, 0]
