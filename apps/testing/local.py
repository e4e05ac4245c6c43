"""A real broker for tests: `zsq serve` in a process of its own, with a clock that can be moved."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from ...transport.client.blocking.client import Admin
from ...transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ...transport.system import check_runs_brokers
from .clients import BrokerForTests
from .clock import OFFSET_FILE, ClockOffset

START_S: Final = 120.0
STOP_S: Final = 60.0
MOVED_S: Final = 60.0
LOOK_S: Final = 0.01
QUIET_S: Final = 0.05
"""Seconds that pass before a clock is moved, so that the broker has all earlier answers. A client
sends a finish at most 20 ms after the call.
"""
_READY: Final = re.compile(r" ready: .*\(pid \d+\)")


class StartFailed(Exception):
    """The test broker did not start. The text has the end of its log."""


def as_ns(step: float | timedelta) -> int:
    """Return a step of the clock in nanoseconds. Raises `UsageError` for a step backwards."""
    seconds = step.total_seconds() if isinstance(step, timedelta) else step
    if not seconds >= 0:
        text = f"a clock moves forward only: give 0 seconds or more, not {step!r}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return round(seconds * 1e9)


class LocalBroker(BrokerForTests):
    """A real broker on a directory of its own, for tests.

    It listens only on ipc, so it needs no port, and only processes of this user can use it. It is
    started with `start` or on entering `with`. It ends with `stop`, at the end of `with`, or when
    this process ends. Environment variables `ZSQ_*` of this process do not change it.

    - `folder`: An existing folder. The broker keeps its data in `folder/data` and writes its log to
      `folder/broker.log`.
    - `options`: More options of `zsq serve`, such as "--http-listen", "127.0.0.1:0". They come
      after `--sync never`, because tests need no data after a power failure.
    """

    def __init__(self, folder: str | os.PathLike[str], *options: str) -> None:
        self.folder = Path(folder).absolute()
        self.data_dir = self.folder / "data"
        self.log = self.folder / "broker.log"
        self.url = f"ipc://{self.data_dir}/run"
        self._options = options
        self._offset: ClockOffset | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the broker's supervisor, or None while the broker does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> Self:
        """Start the broker and wait until it is ready.

        Raises `StartFailed` with the log's end, and `UsageError` (E_UNSUPPORTED) if this system is
        not Linux.
        """
        if self.pid is not None:
            return self
        check_runs_brokers("LocalBroker")
        offset_file = self.folder / "clock"
        self._offset = self._offset or ClockOffset(offset_file)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ZSQ_")
        }
        command = [sys.executable, "-m", f"{__package__}.serve", "serve"]
        command += ["--data-dir", str(self.data_dir), "--sync", "never"]
        command += [] if "--listen" in self._options else ["--no-listen"]
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [*command, *self._options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**environment, OFFSET_FILE: str(offset_file)},
                start_new_session=True,  # Ctrl-C goes to pytest, and `stop` ends the broker
            )
        try:
            self._wait_ready(begin)
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_ready(self, begin: int) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_S
        while True:
            code = process.poll()
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            if code is None and _READY.search(output):
                return
            if code is not None or time.monotonic() > deadline:
                why = f"ended with code {code}" if code is not None else f"took over {START_S:g} s"
                raise StartFailed(
                    f"the test broker {why}; the end of {self.log}:\n{output[-2000:]}"
                )
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """End the broker and wait for it. Its data stay, so `start` can start it again."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its other processes end with it
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    # Time

    def now_ns(self) -> int:
        """Return the time by the broker's clock, in nanoseconds since 1970."""
        return time.time_ns() + (0 if self._offset is None else self._offset.ns)

    def advance(self, step: float | timedelta) -> None:
        """Move the broker's clock forward by `step` (seconds or a timedelta), for all its clients.

        Messages that are due by then come at once: this returns when delayed messages that are due
        are in their topics. Requeued messages whose delay is over are delivered soon after. Leases
        (`message_timeout`) and the timeouts of calls do not change. The clock cannot be moved back.
        """
        ns = as_ns(step)
        if self._offset is None or self.pid is None:
            raise UsageError(E_BAD_ARGUMENT, "the test broker does not run; call start() first")
        time.sleep(QUIET_S)
        self._offset.add(ns)
        with Admin(self.url, timeout=MOVED_S) as admin:
            # Each process answers this, and so looks at its due times again.
            waiting = [
                row["topic_name"]
                for row in admin.stats()["topics"]
                if row.get("delayed_count", 0) > 0
            ]
            deadline = time.monotonic() + MOVED_S
            for topic in waiting:
                while self._has_due(admin, topic):
                    if time.monotonic() > deadline:
                        text = f"delayed messages of {topic} did not move within {MOVED_S:g} s"
                        raise TimeoutError(text)
                    time.sleep(LOOK_S)

    def _has_due(self, admin: Admin, topic: str) -> bool:
        with contextlib.suppress(ZsqError):  # another test deletes the topic meanwhile
            return 0 < admin.delayed_count(topic)["next_due_ns"] <= self.now_ns()
        return False
