"""Faults at named points of Spark's work: wrapped readers and writers, with which a test stops a
task or a commit exactly at a chosen point. A rule says what happens at a point.

A rule is a file `TOPIC.POINT` in a folder that the test and all of Spark's processes can read. The
first process that reaches the point takes the rule. It renames the file, so that only one process
can take it. Then it writes a file with its process id. It raises an error, or waits until the test
opens the gate, as the rule says.

Each call of the sink's write creates a file `TOPIC.begun.PARTITION.UUID`, so that a test can count
the attempts.

Points: `write.PARTITION.N` before the Nth Arrow batch is passed to the sink, `write.PARTITION.end`
after the last one and before the seal, `sealed.PARTITION` when the sink's write has returned,
`commit.BATCH.before` and `commit.BATCH.after` around a commit (for batch jobs BATCH is "job"),
`read.OFFSET` before the first Arrow batch of the stream's task that begins at this offset, and
`read.OFFSET.end` after its last one. Here TOPIC is the topic that is read. It is `column` for a
write whose rows name their topics.
"""

from __future__ import annotations

import json
import os
import select
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "zsq_chaos"
WAIT_S = 300.0


class Gate:
    """A rule, as the test uses it: the test makes the rule, sees who reached the point, and lets
    that process continue.
    """

    def __init__(self, folder: Path, topic: str, point: str, action: str = "wait") -> None:
        self.rule = folder / f"{topic}.{point}"
        self.reached = folder / f"{topic}.{point}.reached"
        self.go = folder / f"{topic}.{point}.go"
        draft = folder / f"{topic}.{point}.draft"
        draft.write_text(action)
        draft.rename(self.rule)

    def here(self) -> dict[str, Any] | None:
        """Return {"pid", "parents": process ids of its ancestors} of the process that reached the
        point, or None.
        """
        try:
            found: dict[str, Any] = json.loads(self.reached.read_text())
        except FileNotFoundError:
            return None
        return found

    def open(self) -> None:
        self.go.touch()


def parents(pid: int) -> list[int]:
    """Return the process ids of all ancestors, without init."""
    found: list[int] = []
    while True:
        status = Path(f"/proc/{pid}/stat").read_text()
        pid = int(status.rpartition(")")[2].split()[1])
        if pid <= 1:
            return found
        found.append(pid)


def meet(folder: str, topic: str, point: str) -> None:
    """Obey the rule for this point, if there is one. Spark's processes call this."""
    rule = Path(folder) / f"{topic}.{point}"
    taken = Path(folder) / f"{topic}.{point}.taken"
    try:
        rule.rename(taken)
    except FileNotFoundError:
        return
    action = taken.read_text()
    draft = Path(folder) / f"{topic}.{point}.who"
    draft.write_text(json.dumps({"pid": os.getpid(), "parents": parents(os.getpid())}))
    draft.rename(Path(folder) / f"{topic}.{point}.reached")
    if action == "raise":
        raise RuntimeError(f"raised on purpose at {point}")
    go, waited = Path(folder) / f"{topic}.{point}.go", 0.0
    while not go.exists():
        # This polls, because so many processes cannot share an event.
        select.select([], [], [], 0.01)
        waited += 0.01
        if waited > WAIT_S:
            raise TimeoutError(f"nobody opened {point}")


def attempts(folder: Path, topic: str) -> int:
    """Return how many attempts of tasks began to write to the topic."""
    return len(list(folder.glob(f"{topic}.begun.*")))


def through(batches: Iterator[Any], folder: str, topic: str, partition: int) -> Iterator[Any]:
    (Path(folder) / f"{topic}.begun.{partition}.{uuid.uuid4()}").touch()
    for number, batch in enumerate(batches):
        meet(folder, topic, f"write.{partition}.{number}")
        yield batch
    meet(folder, topic, f"write.{partition}.end")


def twist(writer: Any, folder: str, topic: str) -> Any:
    """Return the same writer. It now stops at the points for which there is a rule. Its new class
    is derived from the old one, so that Spark still recognizes the kind of writer.
    """
    kind: Any = type(writer)

    def write(self: Any, iterator: Iterator[Any]) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        message = kind.write(self, through(iterator, folder, topic, partition))
        meet(folder, topic, f"sealed.{partition}")
        return message

    def commit(self: Any, messages: Any, *batch: int) -> None:
        name = str(batch[0]) if batch else "job"
        meet(folder, topic, f"commit.{name}.before")
        kind.commit(self, messages, *batch)
        meet(folder, topic, f"commit.{name}.after")

    writer.__class__ = type("Twisted", (kind,), {"write": write, "commit": commit, "__slots__": ()})
    return writer


def twist_reader(reader: Any, folder: str) -> Any:
    """Return the same stream reader. It now stops at the points for which there is a rule."""
    kind: Any = type(reader)

    def read(self: Any, partition: Any) -> Iterator[Any]:
        if not hasattr(partition, "span"):  # Spark's placeholder, if no task was planned
            return
        topic, start = partition.span.topic, partition.span.start
        meet(folder, topic, f"read.{start}")
        yield from kind.read(self, partition)
        meet(folder, topic, f"read.{start}.end")

    reader.__class__ = type("Twisted", (kind,), {"read": read})
    return reader


def chaotic(source: Any, folder: str) -> Any:
    """Return a data source class like `source`, named NAME, whose stream readers and writers stop
    where the rules in the folder say.
    """

    class Chaotic(source):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def streamReader(self, schema: Any) -> Any:
            return twist_reader(source.streamReader(self, schema), folder)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            topic = self.options.get("topic", "column")
            return twist(source.writer(self, schema, overwrite), folder, topic)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            topic = self.options.get("topic", "column")
            return twist(source.streamWriter(self, schema, overwrite), folder, topic)

    return Chaotic
