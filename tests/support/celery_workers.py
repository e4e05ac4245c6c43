"""Celery workers with the application `celery_app`, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from celery import Celery
from kombu import pools

from .broker import Broker, wait_for

TESTS: Final = Path(__file__).parents[1]
APP: Final = "support.celery_app"
WAIT_S: Final = 120.0
LEASE_S: Final = 2.0


class Workers:
    """Celery workers on one queue, and what their tasks wrote."""

    def __init__(self, folder: Path, broker: Broker, queue: str) -> None:
        self.queue = queue
        self.log = folder / "tasks.log"
        self.log.touch()
        self.gate = folder / "gate"
        self.url = f"zsq://127.0.0.1:{broker.port}/"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "TASKS_BROKER": self.url,
            "TASKS_PRODUCER": broker.tcp,
            "TASKS_LEASE": str(LEASE_S),
            "TASKS_LOG": str(self.log),
            "TASKS_GATE": str(self.gate),
        }
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.app = Celery("tasks", broker=self.url)

    def start(self, name: str, *extra: str) -> subprocess.Popen[bytes]:
        """Start a worker that runs two tasks at a time, and wait until it is ready."""
        output = self.folder / f"{name}.log"
        options = ["-c", "2", "-n", f"{name}@{self.queue}", "-Q", self.queue, "-E", "-l", "INFO"]
        options += extra
        with output.open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", APP, "worker", *options],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(worker)
        wait_for(lambda: b" ready." in output.read_bytes(), WAIT_S, "the worker")
        return worker

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        full = f"{APP}.{task}"
        return self.app.send_task(full, arguments, queue=self.queue, **options)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_line(self, start: str) -> None:
        """Wait for a line that begins with this text."""
        begins = lambda: any(line.startswith(start) for line in self.lines())  # noqa: E731
        wait_for(begins, WAIT_S, start)

    def wait_lines(self, *expected: str) -> None:
        wait_for(lambda: set(expected) <= set(self.lines()), WAIT_S, f"{expected}")

    def close(self) -> None:
        for worker in self.running:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait(WAIT_S)
        self.app.close()
        pools.reset()  # this closes the connections, and `Celery.close` does not
