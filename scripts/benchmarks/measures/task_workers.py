"""Workers of Celery and their broker, ZSQ or Redis, for the benchmark `tasks`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local_setup.broker import LocalBroker

from ..harness.crew import MemberFailed
from ..peers import redis
from ..peers.nsq_peers import free_port

APP: Final = "benchmarks.measures.celery_tasks"
WAIT_S: Final = 300.0
POLL_S: Final = 0.05
LINGER_MS: Final = 1
REDIS: Final = "redis, not synced"
# Workers return the tasks of killed ones every 10 s. By default, they do that every 100 s.
REDIS_OPTIONS: Final = {"unacked_restore_throttle": 1}


@dataclass(frozen=True, slots=True)
class Place:
    """A broker for Celery."""

    name: str
    url: str
    options: dict[str, Any]
    folder: Path

    def environment(self, **options: Any) -> dict[str, str]:
        return {
            **os.environ,
            "BENCH_BROKER": self.url,
            "BENCH_OPTIONS": json.dumps(self.options | options),
            "BENCH_LOG": str(self.log),
        }

    @property
    def log(self) -> Path:
        return self.folder / "tasks.log"

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@contextlib.contextmanager
def open_places(broker: LocalBroker, port: int, prefix: str) -> Iterator[list[Place]]:
    with contextlib.ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=broker.folder)))

        url = f"zsq://127.0.0.1:{port}"
        found = [
            Place("zsq", f"{url}/{prefix}", {}, folder()),
            Place(
                f"zsq, linger {LINGER_MS} ms",
                f"{url}/{prefix}-linger",
                {"linger_ms": LINGER_MS},
                folder(),
            ),
        ]
        if (server := redis.find()) is not None:
            redis_port = stack.enter_context(_redis(server, folder()))
            found.append(Place(REDIS, f"redis://127.0.0.1:{redis_port}/0", REDIS_OPTIONS, folder()))
        yield found


@contextlib.contextmanager
def _redis(server: str, folder: Path) -> Iterator[int]:
    """Run a server with the default durability of Debian: a snapshot from time to time."""
    port = free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait(lambda: _listens(port) or process.poll() is not None, "redis-server")
        yield port
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > deadline:
            raise MemberFailed(f"{what}: not done within {WAIT_S:g} s")
        time.sleep(POLL_S)


def start_worker(place: Place, name: str, **transport: Any) -> subprocess.Popen[bytes]:
    """Start a worker in a process group of its own. It runs one task at a time."""
    command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-c", "1", "-l", "WARNING"]
    with (place.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "-n", name],
            env=place.environment(**transport),
            cwd=place.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill_worker(worker: subprocess.Popen[bytes]) -> float:
    """Kill all processes of a worker at once. Return the time, in seconds since the epoch."""
    killed_s = time.time()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(WAIT_S)
    return killed_s


@contextlib.contextmanager
def running_worker(place: Place, name: str, **transport: Any) -> Iterator[subprocess.Popen[bytes]]:
    worker = start_worker(place, name, **transport)
    try:
        yield worker
    finally:
        kill_worker(worker)
