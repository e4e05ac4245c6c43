"""Processes that prepare, start together, and return their measurements.

Times are those of the monotonic clock. On Linux it is the same for all processes, so a start and an
end from different processes can be subtracted. No process outlives its crew: those that do not
answer in time are killed.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

READY_WAIT_S: Final = 60.0
RESULT_WAIT_S: Final = 300.0


class MemberFailed(Exception):
    """A process of the crew failed. The text is its traceback."""


class Crew:
    """A context manager: `add` makes processes, `go` starts them, `results` returns the results.

    After `results`, `cpu_s` has the processor time that each process used since the start.
    """

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self._context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Any]] = []
        self._preparing: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process, channel in self._members:
            channel.close()
            process.join(0 if kind else 5)
            if process.exitcode is None:
                process.kill()
                process.join()

    def add(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Run `work(start, *arguments)` in a new process.

        It calls `start()` when it is ready, and returns its result.
        """
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_member, args=(theirs, work, arguments), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))
        self._preparing.append(ours)

    def wait_ready(self) -> None:
        """Wait until all processes are ready."""
        while self._preparing:
            _receive(self._preparing.pop(0), READY_WAIT_S)

    def go(self) -> float:
        """Wait until all processes are ready, start them, and return the time of this start."""
        self.wait_ready()
        now = time.monotonic()
        for _, channel in self._members:
            channel.send(now)
        return now

    def results(self) -> list[Any]:
        """Return the results of the processes, in the order in which they were added."""
        answers = [_receive(channel, RESULT_WAIT_S) for _, channel in self._members]
        self.cpu_s = [used for _, used in answers]
        return [result for result, _ in answers]

    def ends(self) -> list[float]:
        """Return the results of processes that return the time at which they were done."""
        return [float(end) for end in self.results() if end is not None]


def _receive(channel: Any, seconds: float) -> Any:
    if not channel.poll(seconds):
        raise MemberFailed(f"no answer within {seconds:.0f} s")
    try:
        good, value = channel.recv()
    except EOFError:
        raise MemberFailed("a process ended without an answer") from None
    if not good:
        raise MemberFailed(value)
    return value


def _member(channel: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    began = 0.0

    def start() -> float:
        nonlocal began
        channel.send((True, None))
        at = float(channel.recv())
        began = time.process_time()
        return at

    try:
        result = work(start, *arguments)
        channel.send((True, (result, time.process_time() - began)))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the parent process has ended
    except BaseException:
        channel.send((False, traceback.format_exc()))
