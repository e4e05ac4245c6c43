"""The Celery application whose tasks the benchmark `tasks` runs, on any broker.

$BENCH_BROKER is the URL, $BENCH_OPTIONS the transport options as JSON, and $BENCH_LOG the file to
which tasks append.
"""

from __future__ import annotations

import json
import os
import time

from celery import Celery

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


@app.task(acks_late=True)
def work(name: str, seconds: float) -> None:
    log("start", name)
    time.sleep(seconds)
    log("end", name)


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
