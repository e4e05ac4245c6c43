"""Stages of one task of the sink: one for each topic of its rows, or for each part of a topic.

Whether the topic has parts is known from the broker's answer to the first push. Rows with a key go
to the part of their key (`wire/spread.py`), as with a producer. Rows without a key go to one part
for each task, so that a task has few stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...transport.block.block import Block
from ...transport.client.blocking.stage_writer import StageWriter
from ...transport.client.core.pieces import rows_of
from ...transport.names import part_name
from ...transport.wire.protocol import Spread
from ...transport.wire.protocol_client import StagePart
from ...transport.wire.spread import HasParts, KeyParts, parts_of_keys
from .options import wrong
from .packing import Packer, split_by_topic

__all__ = ["TOPICS_MAX", "Sealed", "TaskStages", "TopicStages", "split_by_key"]

# Each topic of a task has a connection, with a thread and about 7 file descriptors.
TOPICS_MAX: Final = 100


class Sealed(NamedTuple):
    """The sealed stages of a task, by the names of their logs.

    `logs` has the name of each topic of the task's rows, or the names of all of its open parts.
    """

    logs: tuple[str, ...]
    parts: tuple[tuple[str, StagePart], ...]


class TaskStages:
    """The stages of one task, for all topics of its rows. `begin` makes the writer of a log.

    `topic` is "" if the column 'topic' names the topic of each row. `partition` is the number of
    the task.
    """

    def __init__(self, topic: str, partition: int, begin: Callable[[str], StageWriter]) -> None:
        self._topic = topic
        self._partition = partition
        self._begin = begin
        self._topics: dict[str, TopicStages] = {}

    @property
    def committed(self) -> bool:
        """True if the transaction is committed already, so that no more rows are needed.

        Rows that name their topics may name another one later, which lacks the transaction.
        """
        return bool(self._topic) and any(each.committed for each in self._topics.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, at least one. Some may wait until there are enough for a block."""
        for topic, rows in [(self._topic, batch)] if self._topic else split_by_topic(batch):
            if topic not in self._topics:
                self._check_room(topic)
                self._topics[topic] = TopicStages(topic, self._partition, self._begin)
            self._topics[topic].add(rows)

    def _check_room(self, topic: str) -> None:
        if len(self._topics) >= TOPICS_MAX:
            raise wrong(
                f"the rows of one task are for more than {TOPICS_MAX} topics ({topic[:80]} is one "
                "more), which is the limit: use repartition(N, 'topic'), with a task for about "
                "every 20 topics"
            )

    def seal(self) -> Sealed:
        """Push what waits, and wait until all rows are durable at their brokers."""
        sealed = [each.seal() for each in self._topics.values()]
        return Sealed(
            tuple(name for each in sealed for name in each.logs),
            tuple(part for each in sealed for part in each.parts),
        )

    def close(self) -> None:
        for each in self._topics.values():
            each.close()


class TopicStages:
    """The stages of one task in one topic: one, or one for each part."""

    def __init__(self, topic: str, partition: int, begin: Callable[[str], StageWriter]) -> None:
        self._topic = topic
        self._partition = partition
        self._begin = begin
        self._writers: dict[str, StageWriter] = {}
        self._packer = Packer()
        self._packers: dict[str, Packer] = {}
        self._keys: KeyParts | None = None  # not None if the topic has parts

    @property
    def _has_parts(self) -> bool:
        return self._keys is not None

    @property
    def committed(self) -> bool:
        """True if the transaction is committed already, so that no more rows are needed."""
        if self._has_parts:
            return False  # a part may lack it, if a commit was interrupted
        return any(writer.committed for writer in self._writers.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Some may wait until there are enough for a block."""
        if self._keys is None:
            for block in self._packer.blocks(batch):
                self._push(block)
            return
        for number, rows in split_by_key(batch, self._keys, self._partition):
            name = part_name(self._topic, number)
            packer = self._packers.setdefault(name, Packer())
            for block in packer.blocks(rows):
                self._writer(name).push(block)

    def seal(self) -> Sealed:
        """Push what waits, and wait until all rows are durable at their brokers."""
        for block in self._packer.rest():
            self._push(block)
        for name, packer in self._packers.items():
            for block in packer.rest():
                self._writer(name).push(block)
        sealed = [(name, writer.seal()) for name, writer in self._writers.items()]
        logs = (self._topic,) if self._keys is None else names_of(self._topic, self._keys)
        return Sealed(logs, tuple((name, stage) for name, stage in sealed if stage is not None))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str) -> StageWriter:
        if name not in self._writers:
            self._writers[name] = self._begin(name)
        return self._writers[name]

    def _push(self, block: Block) -> None:
        """Push a block that was packed before it was known whether the topic has parts."""
        if self._keys is None:
            try:
                self._writer(self._topic).push(block)
                return
            except HasParts as error:
                self._keys = self._take(error.spread)
        keys = block.key
        rows: dict[int, list[int]] = {}
        for index in range(block.count):
            key = None if keys is None else keys.value(index)
            number = default(self._keys, self._partition) if key is None else self._keys.of(key)
            rows.setdefault(number, []).append(index)
        for number, indexes in rows.items():
            is_whole = len(indexes) == block.count
            writer = self._writer(part_name(self._topic, number))
            writer.push(block if is_whole else rows_of(block, indexes))

    def _take(self, spread: Spread) -> KeyParts:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        return parts_of_keys(spread)


def names_of(topic: str, keys: KeyParts) -> tuple[str, ...]:
    """Return the names of the open parts, by number."""
    return tuple(part_name(topic, number) for number in keys.open)


def logs_of(spread: Spread) -> tuple[str, ...]:
    """Return the names of the open parts, by number."""
    return names_of(spread.topic, parts_of_keys(spread))


def default(keys: KeyParts, partition: int) -> int:
    """Return the part for rows without a key."""
    return keys.open[partition % len(keys.open)]


def split_by_key(
    batch: pa.RecordBatch, keys: KeyParts, partition: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows for each part, in their order. Rows without a key go to one part."""
    column = batch.column("key") if "key" in batch.schema.names else None
    if column is None or column.null_count == batch.num_rows:
        yield default(keys, partition), batch
        return
    # Each different key is looked up once.
    coded = column.cast(pa.binary()).dictionary_encode()
    parts = [keys.of(key) for key in coded.dictionary.to_pylist()]
    chosen = pa.array(parts, pa.int32()).take(coded.indices)
    chosen = pc.fill_null(chosen, pa.scalar(default(keys, partition), pa.int32()))
    for part in pc.unique(chosen).to_pylist():
        yield part, batch.filter(pc.equal(chosen, pa.scalar(part, pa.int32())))
