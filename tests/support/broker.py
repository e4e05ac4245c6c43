"""A real broker in real processes, for tests. A test can start it, stop it, find its processes and
kill them by pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import zsq

START_S = 30.0
HELD_PORTS_MAX = 200
_holders: deque[socket.socket] = deque()  # they are bound, and never listen


def free_port() -> int:
    """Return a port that the kernel chose, and hold it: the kernel gives it to no other socket, and
    to no connection. A server can listen at it all the same, as servers set SO_REUSEADDR.
    """
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    # Only now: with this option before, the kernel may choose a port that another holder has.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _holders.append(holder)
    if len(_holders) > HELD_PORTS_MAX:
        _holders.popleft().close()
    return int(holder.getsockname()[1])


def wait_for(
    condition: Callable[[], object], timeout_s: float = 30.0, what: str = "the condition"
) -> None:
    """Poll a condition for which there is no event. After the time-out, fail with the text
    `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        select.select([], [], [], 0.01)


class Broker:
    """`zsq serve` on one data directory. It may be started again after it was killed.

    As a context, it is started at the beginning, and all its processes are gone at the end.
    """

    def __init__(self, data_dir: Path, *extra: str, nsq: bool = False, http: bool = False) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.nsq = free_port() if nsq else 0
        self.http = free_port() if http else 0
        self.extra = (
            *(("--nsq-listen", f"127.0.0.1:{self.nsq}") if nsq else ("--no-nsq",)),
            *(("--http-listen", f"127.0.0.1:{self.http}") if http else ("--no-http",)),
            *extra,
        )
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self.program: tuple[str, ...] = ("-m", "zsq")
        self.command = "serve"
        self.environment: dict[str, str] = {}  # in addition to that of this process
        self.process: subprocess.Popen[bytes] | None = None
        self._known: set[int] = set()
        self._begin = 0  # position in the log file where this run of the broker begins

    @property
    def ipc(self) -> str:
        return f"ipc://{self.data_dir}/run"

    @property
    def tcp(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout_s: float = START_S) -> Broker:
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def launch(self) -> None:
        """Start the broker without waiting until it is ready."""
        command = [
            sys.executable,
            *self.program,
            self.command,
            "--data-dir",
            str(self.data_dir),
            "--listen",
            f"127.0.0.1:{self.port}",
        ]
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)  # it was killed, and is replaced here
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                [*command, *self.extra],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    def wait_said(self, text: str, timeout_s: float = START_S) -> None:
        """Wait until the broker has written this text to its log since its start."""
        wait_for(lambda: text.encode() in self._said(self._begin), timeout_s, text)

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes of the broker at once."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def wait_ready(self, timeout_s: float = START_S) -> None:
        wait_for(
            lambda: b" ready: " in self._said(self._begin) or self._exited(),
            timeout_s,
            "the broker's ready line",
        )
        if self._exited():
            raise AssertionError(
                f"the broker did not start: {self._said(self._begin).decode()[-2000:]}"
            )

    def _said(self, begin: int) -> bytes:
        with self.log.open("rb") as log:
            log.seek(begin)
            return log.read()

    def _exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def actors(self) -> list[dict[str, Any]]:
        """Return name, pid and kind of every process, including the supervisor and the
        forkserver.
        """
        with zsq.Admin(self.ipc) as admin:
            found: list[dict[str, Any]] = list(admin.stats()["processes"])
        self._known |= {actor["pid"] for actor in found}
        return found

    def pids(self, kind: str) -> list[int]:
        return [actor["pid"] for actor in self.actors() if actor["kind"] == kind]

    def wait_gone(self, pids: list[int]) -> None:
        """Wait until none of these processes lives. It waits on pidfds, so a new process with the
        same pid does not matter.
        """
        deadline = time.monotonic() + 20
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise AssertionError(f"process {pid} lives on")
            finally:
                os.close(pidfd)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(40)

    def close(self) -> None:
        """Kill all processes of the broker that still run, however the test ended."""
        if self.process is None:
            return
        if self.process.poll() is None:
            with contextlib.suppress(Exception):
                self.actors()
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(40)
        self.wait_gone(sorted(self._known))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
