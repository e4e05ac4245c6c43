"""Worker threads of an actor: they run jobs, and wake the actor's loop for each result."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from .polling import PolledSocket


class Jobs(Protocol):
    """The interface through which the parts of an actor use a worker thread."""

    @property
    def pending(self) -> int: ...

    def submit(self, tag: Any, job: Callable[[], Any]) -> None: ...

    def results(self) -> list[tuple[Any, Any]]: ...


class WorkerThread(PolledSocket):
    """Runs one job at a time, in order.

    `results` holds (job's tag, value or exception) once `socket` is readable.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str) -> None:
        super().__init__(context.socket(zmq.PAIR))
        self.socket.bind(f"inproc://{name}")
        self._inner = context.socket(zmq.PAIR)
        self._inner.connect(f"inproc://{name}")
        # These are deques, because append and popleft of a deque are atomic.
        self._jobs: deque[tuple[Any, Callable[[], Any]] | None] = deque()
        self._results: deque[tuple[Any, Any]] = deque()
        self.pending = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self._jobs.append((tag, job))
        self.socket.send(b"")

    def results(self) -> list[tuple[Any, Any]]:
        """Take the finished jobs. Call it when the socket is readable."""
        results = []
        while self.readable():
            self.socket.recv()
            results.append(self._results.popleft())
            self.pending -= 1
        return results

    def _run(self) -> None:
        while True:
            self._inner.recv()
            job = self._jobs.popleft()
            if job is None:
                self._inner.close()
                return
            tag, function = job
            try:
                value = function()
            except Exception as error:  # the actor's loop gets it and handles it
                value = error
            self._results.append((tag, value))
            self._inner.send(b"")

    def close(self) -> None:
        """End the thread after the jobs submitted before."""
        self._jobs.append(None)
        self.socket.send(b"")
        self._thread.join()
        self.socket.close()


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
