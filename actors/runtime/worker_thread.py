"""Worker threads of an actor: they run jobs, and wake the actor's loop for each result.

A thread waits for jobs at a lock, and the loop waits for results at an eventfd. A pair of ZeroMQ
sockets did the same with six more system calls for each job, and two descriptors for each thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from ...transport.system import Waker


class Jobs(Protocol):
    """The interface through which the parts of an actor use a worker thread."""

    @property
    def pending(self) -> int: ...

    def submit(self, tag: Any, job: Callable[[], Any]) -> None: ...

    def results(self) -> list[tuple[Any, Any]]: ...


class WorkerThread:
    """Runs one job at a time, in order.

    `results` returns (job's tag, value or exception) once the descriptor is readable.
    """

    def __init__(self, name: str) -> None:
        self._waker = Waker()
        self._jobs: SimpleQueue[tuple[Any, Callable[[], Any]] | None] = SimpleQueue()
        # A deque, because its append and popleft are atomic.
        self._results: deque[tuple[Any, Any]] = deque()
        self.pending = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._waker.fileno()

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self._jobs.put((tag, job))

    def results(self) -> list[tuple[Any, Any]]:
        """Take the finished jobs. Call it when the descriptor is readable."""
        self._waker.drain()  # first: what ends from now on makes it readable again
        results = []
        while self._results:
            results.append(self._results.popleft())
            self.pending -= 1
        return results

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            tag, function = job
            try:
                value = function()
            except Exception as error:  # the actor's loop gets it and handles it
                value = error
            self._results.append((tag, value))
            self._waker.wake()

    def close(self) -> None:
        """End the thread after the jobs submitted before."""
        self._jobs.put(None)
        self._thread.join()
        self._waker.close()


class LazyThread:
    """A worker thread that starts with its first job. Most topics need few of theirs."""

    def __init__(self, make: Callable[[], WorkerThread]) -> None:
        self._make = make
        self._thread: WorkerThread | None = None

    @property
    def pending(self) -> int:
        return self._thread.pending if self._thread is not None else 0

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        if self._thread is None:
            self._thread = self._make()
        self._thread.submit(tag, job)

    def results(self) -> list[tuple[Any, Any]]:
        return self._thread.results() if self._thread is not None else []
