"""A disk queue whose calls are recorded, and which is opened again after a crash. Messages that
were put must be present, and messages that were got must not come again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from support.faulty_files import FaultyFiles

from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import parse_data_name

from .recording import RecordingFiles
from .subject import Recorded, recorder

NAME: Final = "jobs"
_PROMISED: Final = ("sync_every", "put_begun", "put_safe", "got_begun", "got_safe")


class QueueLife:
    """A disk queue, and what was promised about it. Messages are numbered from 0 as they are put.
    For put and for get, `begun` is the number up to which it was called, and `safe` is the number
    up to which it must survive a power cut.
    """

    def __init__(self, files: FaultyFiles, sync_every: int = 1) -> None:
        self.files = files
        self.sync_every = sync_every
        self.put_begun = self.put_safe = self.got_begun = self.got_safe = 0
        self.queue: DiskQueue | None = None

    def promise(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PROMISED}

    @classmethod
    def revived(cls, files: FaultyFiles, promise: dict[str, Any]) -> Self:
        made = cls(files)
        made.__dict__.update(promise)
        return made

    def recover(self) -> None:
        self.queue = DiskQueue(
            self.files.root,
            NAME,
            max_bytes_per_file=40,
            sync_every=self.sync_every,
            sync_timeout=3600.0,
            files=self.files,
        )

    @property
    def open_queue(self) -> DiskQueue:
        assert self.queue is not None
        return self.queue

    def _settled(self) -> None:
        if not self.open_queue._operations:
            self.put_safe, self.got_safe = self.put_begun, self.got_begun

    def put(self, count: int) -> None:
        first = self.put_begun
        self.put_begun += count
        self.open_queue.put_many([b"message %d" % number for number in range(first, first + count)])
        self._settled()

    def get(self, count: int) -> None:
        for _ in range(count):
            self.got_begun += 1
            assert self.open_queue.get() == b"message %d" % (self.got_begun - 1)
            self._settled()

    def sync(self) -> None:
        self.open_queue.sync()
        self._settled()

    def empty(self) -> None:
        self.got_begun = self.put_begun
        self.open_queue.empty()
        self._settled()

    def live(self) -> None:
        """Read to the end, and use the queue again."""
        self.verify()
        self.put_begun = self.got_begun = max(self.put_begun, self.got_begun) + 1
        self.put_safe = self.got_safe = self.put_begun
        self.put(5)
        self.get(2)
        self.sync()

    def verify(self) -> None:
        """Check all promises. A record has no checksum. So a record that was not synced may contain
        zeros after a power cut, and then the records after it cannot be found.
        """
        queue = self.open_queue
        depth = queue.depth()
        before = (self.got_begun, self.got_safe)
        self.got_begun = self.put_begun
        messages = list(queue)
        queue.sync()
        self.got_safe = self.put_begun
        assert depth == len(messages) or queue.report.notes
        torn = next(
            (at for at, one in enumerate(messages) if not re.fullmatch(rb"message \d+", one)),
            len(messages),
        )
        found = [int(one.split()[1]) for one in messages[:torn]]
        if found:
            assert found == list(range(found[0], found[0] + len(found))), "out of order"
            assert before[1] <= found[0] <= before[0], (
                "what was got comes again, or what was not got is lost"
            )
            assert self.put_safe <= found[-1] + 1 <= self.put_begun, (
                "what was put is lost, or nobody put it"
            )
        else:
            assert before[0] >= self.put_safe, "what was put is lost"
        # A power cut may leave the temporary file of the metadata until they are written again.
        numbers = [*filter(None, map(parse_data_name, self.files.list(self.files.root)))]
        assert len(numbers) <= 1, "files that were read are removed"

    def abandon(self) -> None:
        if self.queue is not None:
            with self.queue._lock:
                self.queue._release("the process died")
            self.queue = None


@dataclass(slots=True, frozen=True)
class QueueWork:
    work: Callable[[QueueLife], None]
    sync_every: int = 1

    def record(self, name: str, root: Path) -> Recorded:
        life = QueueLife(RecordingFiles(str(root)), self.sync_every)
        with recorder(life).recording(life.promise) as trace:
            life.recover()
            self.work(life)
        life.abandon()
        return Recorded(name, trace, QueueLife.revived)


def queue(life: QueueLife) -> None:
    life.put(1)
    life.put(4)
    life.get(2)
    life.put(2)
    life.get(4)
    life.empty()
    life.put(5)
    life.sync()
    life.get(3)
    life.put(3)
    life.get(3)
