"""The Celery application whose tasks the benchmark `tasks` runs, on any broker.

$BENCH_BROKER is the URL, $BENCH_OPTIONS the transport options as JSON, and $BENCH_LOG the file to
which tasks append.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from celery import Celery
from celery.worker.request import Request

app = Celery("bench", broker=os.environ.get("BENCH_BROKER", "zsq://"))
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("BENCH_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


def log(*words: object) -> None:
    line = " ".join(map(str, words)) + "\n"
    file = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())  # one write, so that lines of two processes do not mix
    finally:
        os.close(file)


@app.task
def noop() -> None:
    return


@app.task
def mark(name: str) -> None:
    log(name, time.time())


class LoggedRequest(Request):
    """A task in the main process of its worker. It writes a line when it was acknowledged."""

    def acknowledge(self) -> None:
        first = not self.acknowledged
        super().acknowledge()
        if first:
            log("ack", self.id, self.hostname, os.getpid(), time.time())


@app.task(bind=True, acks_late=True, Request=LoggedRequest)
def work(self: Any, seconds: float) -> None:
    log("start", self.request.id, self.request.hostname, os.getpid(), time.time())
    time.sleep(seconds)
    log("end", self.request.id, self.request.hostname, os.getpid(), time.time())


def send_work() -> None:
    """Send a task for each line `NAME SECONDS` of the input, and answer with its name."""
    for line in sys.stdin:
        name, seconds = line.split()
        work.apply_async((float(seconds),), task_id=name)
        print(name, flush=True)


def publish(count: int) -> None:
    """Send `count` tasks between two marks, and print how many were sent in a second."""
    noop.delay()  # connects
    mark.delay("begin")
    begin = time.perf_counter()
    for _ in range(count):
        noop.delay()
    seconds = time.perf_counter() - begin
    mark.delay("end")
    print(count / seconds)
