"""A Celery application for the tests of `zsq://`. Its tasks write lines to the file $TASKS_LOG.

$TASKS_BROKER is the broker's URL, $TASKS_LEASE the seconds of a lease, and $TASKS_GATE a file for
which tasks wait. $TASKS_PRODUCER is the URL for a producer in a task, and $TASKS_SETTINGS a program
that changes the application.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import zsq

from .broker import wait_for

app = Celery("tasks", broker=os.environ.get("TASKS_BROKER", "zsq://127.0.0.1"))
app.conf.update(
    broker_transport_options={"message_timeout": float(os.environ.get("TASKS_LEASE", "60"))},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
)
exec(os.environ.get("TASKS_SETTINGS", ""))


def log(*words: object) -> None:
    with open(os.environ["TASKS_LOG"], "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@app.task
def note(name: str) -> None:
    log(name, time.time())


@app.task
def fails(text: str) -> None:
    raise ValueError(text)


producer: Any = None


@app.task
def publish(name: str) -> None:
    """Publish a message that lingers until the process ends."""
    global producer
    if producer is None:
        producer = zsq.Producer(os.environ["TASKS_PRODUCER"], linger_ms=600_000)
    producer.publish("published", name.encode())
    log("published", name)


@app.task
def gated_early(name: str) -> None:
    """Do as `gated`, and acknowledge the task before it runs."""
    gated(name)


@app.task(acks_late=True)
def gated(name: str) -> None:
    """Write a line, wait for the gate, and write another line."""
    log("start", name)
    wait_for(lambda: os.path.exists(os.environ["TASKS_GATE"]), 60, "the gate")
    log("end", name)


@app.task
def closed(number: int) -> None:
    """Fail until the gate exists."""
    works = os.path.exists(os.environ["TASKS_GATE"])
    log("done" if works else "failed")
    if not works:
        raise ValueError("the database is down")


@app.task(bind=True, max_retries=3)
def flaky(self: Any, name: str) -> None:
    log(name, self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
