"""Tests of worker threads: their results reach the actor's loop through a socket, and a lazy thread
is only created for its first job.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from zsq.actors.runtime.worker_thread import LazyThread, WorkerThread


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_a_lazy_thread_is_made_with_its_first_job_and_only_once(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    made: list[WorkerThread] = []

    def make() -> WorkerThread:
        made.append(WorkerThread(context, "house"))
        return made[-1]

    lazy = LazyThread(make)
    assert (lazy.pending, lazy.results(), made) == (0, [], [])
    lazy.submit("one", lambda: 1)
    lazy.submit("two", lambda: 2)
    assert (lazy.pending, len(made)) == (2, 1)
    found: list[tuple[str, int]] = []
    while len(found) < 2:
        assert made[0].socket.poll(20_000)
        found += lazy.results()
    assert (found, lazy.pending) == ([("one", 1), ("two", 2)], 0)
    made[0].close()
