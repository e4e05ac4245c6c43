"""Stages of one task of the sink: one stage, or one for each part of a topic.

Whether the topic has parts is known from the broker's answer to the first push. Rows with a key go
to the part of their key (`wire/spread.py`), as with a producer. Rows without a key go to one part
for each task, so that a task has few stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...transport.block.block import Block
from ...transport.client.blocking.stage_writer import StageWriter
from ...transport.client.core.lane import rows_of
from ...transport.names import part_name
from ...transport.wire.protocol import Spread
from ...transport.wire.protocol_client import StagePart
from ...transport.wire.spread import HasParts, part_of_key
from .packing import Packer

__all__ = ["Sealed", "Stages", "split_by_key"]


class Sealed(NamedTuple):
    """The sealed stages of a task, by the names of their logs.

    `logs` has the names of all parts of the topic, or only the topic's own name.
    """

    logs: tuple[str, ...]
    parts: tuple[tuple[str, StagePart], ...]


class Stages:
    """The stages of one task. `begin` makes the writer for a topic or a part.

    `partition` is the number of the task.
    """

    def __init__(self, topic: str, partition: int, begin: Callable[[str], StageWriter]) -> None:
        self._topic = topic
        self._partition = partition
        self._begin = begin
        self._writers: dict[str, StageWriter] = {}
        self._packer = Packer()
        self._packers: dict[str, Packer] = {}
        self._logs: tuple[str, ...] = (topic,)

    @property
    def _has_parts(self) -> bool:
        return self._logs != (self._topic,)

    @property
    def committed(self) -> bool:
        """True if the transaction is committed already, so that no more rows are needed."""
        if self._has_parts:
            return False  # a part may lack it, if a commit was interrupted
        return any(writer.committed for writer in self._writers.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Some may wait until there are enough for a block."""
        if not self._has_parts:
            for block in self._packer.blocks(batch):
                self._push(block)
            return
        for name, rows in split_by_key(batch, self._logs, self._partition):
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
        return Sealed(self._logs, tuple((name, one) for name, one in sealed if one is not None))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str) -> StageWriter:
        if name not in self._writers:
            self._writers[name] = self._begin(name)
        return self._writers[name]

    def _push(self, block: Block) -> None:
        """Push a block that was packed before it was known whether the topic has parts."""
        if not self._has_parts:
            try:
                self._writer(self._topic).push(block)
                return
            except HasParts as error:
                self._take(error.spread)
        keys = block.key
        rows: dict[str, list[int]] = {}
        for index in range(block.count):
            name = self._log_of(None if keys is None else keys.value(index))
            rows.setdefault(name, []).append(index)
        for name, indexes in rows.items():
            whole = len(indexes) == block.count
            self._writer(name).push(block if whole else rows_of(block, indexes))

    def _take(self, spread: Spread) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._logs = logs_of(spread)

    def _log_of(self, key: bytes | None) -> str:
        count = len(self._logs)
        return self._logs[self._partition % count if key is None else part_of_key(key, count)]


def logs_of(spread: Spread) -> tuple[str, ...]:
    """Return the names of all parts, by number."""
    return tuple(part_name(spread.topic, number) for number, _ in sorted(spread.parts))


def split_by_key(
    batch: pa.RecordBatch, logs: tuple[str, ...], partition: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows for each log, in their order. Rows without a key go to one log."""
    default = partition % len(logs)
    column = batch.column("key") if "key" in batch.schema.names else None
    if column is None or column.null_count == batch.num_rows:
        yield logs[default], batch
        return
    # Each different key is looked up once.
    coded = column.cast(pa.binary()).dictionary_encode()
    parts = [part_of_key(key, len(logs)) for key in coded.dictionary.to_pylist()]
    chosen = pa.array(parts, pa.int32()).take(coded.indices)
    chosen = pc.fill_null(chosen, pa.scalar(default, pa.int32()))
    for part in pc.unique(chosen).to_pylist():
        yield logs[part], batch.filter(pc.equal(chosen, pa.scalar(part, pa.int32())))
