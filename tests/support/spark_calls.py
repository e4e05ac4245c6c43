"""The calls that Spark makes to a stream reader, without Spark.

Versions of PySpark differ in their calls and in their order. `PlainCalls` makes those of 4.0 and
4.1.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """The sink failed at a batch."""


class PlainCalls:
    """A streaming query of PySpark 4.0 or 4.1 with its checkpoint.

    `make` returns a new reader, which Spark makes for each run. `batches` lists the first columns
    of the rows of each committed batch.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._offsets: list[str] = []  # as the offset log keeps them: as text
        self.batches: list[list[Any]] = []
        # What happens elsewhere between the first end and the start, and after each batch.
        self.before_start: Callable[[], object] = lambda: None
        self.after_batch: Callable[[], object] = lambda: None

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]

    def run(self, *, now: bool = False, fails: bool = False) -> list[int]:
        """Run until no messages are left, or with `now` as Trigger.AvailableNow, which is one
        batch. With `fails`, the sink fails at the first batch. Return the size of each batch.
        """
        before = len(self.batches)
        reader = self._make()
        try:
            self._run(reader, now, fails)
        finally:
            reader.stop()
        return [len(batch) for batch in self.batches[before:]]

    def _run(self, reader: Any, now: bool, fails: bool) -> None:
        if self._offsets:
            last = self._offsets[-1]
            assert not reader.partitions(json.loads(last), json.loads(last))
        if len(self._offsets) > len(self.batches):
            self._batch(reader, fails)
            if now:
                return
        while True:
            end = json.dumps(reader.latestOffset())
            if self._offsets and end == self._offsets[-1]:
                return
            if self._offsets:
                reader.commit(json.loads(self._offsets[-1]))
            self._offsets.append(end)
            self._batch(reader, fails)
            if now:
                return

    def _batch(self, reader: Any, fails: bool) -> None:
        """Read the last planned batch. The start of the first one is not in the checkpoint."""
        if len(self._offsets) == 1:
            self.before_start()
            start = json.dumps(reader.initialOffset())
        else:
            start = self._offsets[-2]
        tasks = reader.partitions(json.loads(start), json.loads(self._offsets[-1]))
        rows = [
            row
            for task in tasks
            for batch in reader.read(pickle.loads(pickle.dumps(task)))
            for row in batch.column(0).to_pylist()
        ]
        if fails:
            raise Failed
        self.batches.append(rows)
        self.after_batch()
