"""Tests of worker threads: their results reach the actor's loop through a descriptor, and a lazy
thread is only created for its first job.
"""

from __future__ import annotations

from zsq.actors.runtime.polling import Poller
from zsq.actors.runtime.worker_thread import LazyThread, WorkerThread


def test_a_lazy_thread_is_made_with_its_first_job_and_only_once() -> None:
    made: list[WorkerThread] = []
    poller = Poller()

    def make() -> WorkerThread:
        made.append(WorkerThread("house"))
        poller.register(made[-1])
        return made[-1]

    lazy = LazyThread(make)
    assert (lazy.pending, lazy.results(), made) == (0, [], [])
    lazy.submit("one", lambda: 1)
    lazy.submit("two", lambda: 2)
    assert (lazy.pending, len(made)) == (2, 1)
    found: list[tuple[str, int]] = []
    while len(found) < 2:
        assert poller.poll(20_000) == made
        found += lazy.results()
    assert (found, lazy.pending) == ([("one", 1), ("two", 2)], 0)
    assert poller.poll(0) == []
    poller.unregister(made[0])
    made[0].close()
    poller.close()
