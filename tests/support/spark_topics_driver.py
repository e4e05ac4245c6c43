"""A driver of batches for three topics, as a program that a test kills: the sink's tasks and
commits without Spark.

It writes the batches FIRST, FIRST + 1 ... without an end. Before each batch, it notes the batch's
number in a file, as Spark's checkpoint does, and the next run begins with that batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from zsq.apps.spark.options import SinkOptions
from zsq.apps.spark.sink import SinkTransaction, StagedPartition, commit_parts, stage_rows
from zsq.transport.client.blocking.stage_writer import StageCommitter

APP = "spread"
ROWS = 90  # rows of one task
TASKS = 2
TOPICS = ("first", "second", "third")


def rows_of(batch: int, task: int) -> pa.RecordBatch:
    numbers = [(batch * TASKS + task) * ROWS + row for row in range(ROWS)]
    columns = [
        pa.array([str(number).encode() for number in numbers], pa.binary()),
        pa.array([TOPICS[number % len(TOPICS)] for number in numbers], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["value", "topic"])


def numbers_of(topic: str, batches: int) -> list[int]:
    """Return the numbers of a topic's rows, after so many batches."""
    return list(range(TOPICS.index(topic), batches * TASKS * ROWS, len(TOPICS)))


def options(url: str) -> SinkOptions:
    return SinkOptions(url=url, topic="", app="", version=-1, timeout_s=60)


def stage(url: str, batch: int) -> list[object]:
    transaction = SinkTransaction(APP, batch, "app")
    return [
        stage_rows(options(url), transaction, task, [rows_of(batch, task)]) for task in range(TASKS)
    ]


def commit(url: str, batch: int, messages: list[object]) -> None:
    commit_parts(options(url), messages, None, f"batch {batch}")  # type: ignore[arg-type]


def commit_in_first(url: str, batch: int, messages: list[object]) -> None:
    """Commit a batch in the first topic only, as a driver that is killed right after that."""
    [name, *_] = sorted(TOPICS)
    parts = [
        part
        for message in messages
        if isinstance(message, StagedPartition)
        for topic, part in message.sealed.parts
        if topic == name
    ]
    with StageCommitter(name, url=url) as committer:
        committer.commit(APP, batch, parts)


def running(url: str, checkpoint: Path) -> subprocess.Popen[str]:
    """Start this program."""
    command = [sys.executable, "-m", "support.spark_topics_driver", url, str(checkpoint)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    url, checkpoint = sys.argv[1], Path(sys.argv[2])
    batch = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while True:
        draft = checkpoint.with_suffix(".draft")
        draft.write_text(str(batch))
        draft.rename(checkpoint)
        messages = stage(url, batch)
        print("staged", batch, flush=True)
        commit(url, batch, messages)
        print("committed", batch, flush=True)
        batch += 1


if __name__ == "__main__":
    main()
