"""Lives of other parts than a topic's store, for `calls.py`: a disk queue in NSQ's format, and the
registry of a data directory.
"""

from __future__ import annotations

import copy
import errno
import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

from faults.call_lives import FULL_CODES, Life, Step, require
from support.faulty_files import Change, keep_all, keep_none

from zsq.actors.supervisor.topics.registry import Registry
from zsq.storage.errors import DiskFull, StorageError, StoreFailed
from zsq.storage.nsq.disk_queue import FOLDERS, DiskQueue
from zsq.transport.errors import E_DISK_FULL, Refused

STORED = re.compile(r"(\d+) of \d+ messages were stored")


class QueueLife(Life):
    """A life of a disk queue. Messages are numbered as they are put, and each operation commits."""

    def prepare(self) -> None:
        self.put_begun = self.put_done = self.got_begun = self.got_done = 0
        self.queue: DiskQueue | None = None
        self.open()
        self.put_many(5)
        self.get()

    def open(self) -> None:
        self.queue = DiskQueue(self.files.root, "jobs", max_bytes_per_file=60, files=self.files)

    def steps(self) -> list[Step]:
        put, get, many = self.put, self.get, self.put_many
        return [put, get, partial(many, 4), get, get, get, self.peek, put, put, get, get, get, get, partial(many, 7), get, get, get,
                self.sync, self.empty, put, partial(many, 3), get, get]  # fmt: skip

    def _queue(self) -> DiskQueue:
        assert self.queue is not None
        return self.queue

    def body(self, number: int) -> bytes:
        return b"message %d" % number

    def put(self) -> None:
        self.put_many(1)

    def put_many(self, count: int) -> None:
        first = self.put_done
        self.put_begun = first + count
        try:
            self._queue().put_many([self.body(number) for number in range(first, first + count)])
        except DiskFull as error:
            told = STORED.search(str(error))
            require(told is not None, f"{error} does not say how many were stored")
            self.put_done = self.put_begun = first + int(told[1] if told else 0)
            raise
        self.put_done = first + count

    def get(self) -> None:
        """Get one message. All messages must come in order, each once."""
        if self.got_begun >= self.put_done:
            return
        self.got_begun += 1
        found = self._queue().get()
        if found is None and self.set_aside():
            self.got_begun = self.got_done = self.put_done
            return
        require(
            found == self.body(self.got_done) or self.set_aside(),
            f"got {found!r} in place of message {self.got_done}",
        )
        self.got_done = self.got_begun = int((found or b"0 0").split()[1]) + 1

    def peek(self) -> None:
        found = self._queue().peek()
        expected = self.body(self.got_done) if self.got_done < self.put_done else None
        require(
            found == expected or self.set_aside(), f"peeked {found!r}, and {expected!r} comes next"
        )

    def sync(self) -> None:
        self._queue().sync()

    def empty(self) -> None:
        self.got_begun = self.put_done
        self._queue().empty()
        self.got_done = self.put_done

    def set_aside(self) -> bool:
        """Return True if the queue has renamed a file to `.bad`, as NSQ does if the disk fails to
        read it twice. The file's messages are still on disk, but they are not delivered.
        """
        return self.files.code == errno.EIO and any(
            path.suffix == ".bad" for path in Path(self.files.root).iterdir()
        )

    def while_failing(self) -> None:
        if self.failed:
            for call in (self._queue().sync, partial(self._queue().put, b"x"), self._queue().get):
                try:
                    call()
                except StoreFailed:
                    continue
                raise AssertionError("a queue that failed goes on")

    def refused(self) -> None:
        self.got_begun = self.got_done

    def go_on(self) -> None:
        self.put_many(2)
        self.get()

    def end(self, ending: str) -> None:
        self.close()
        if ending != "died":
            self.files.crash(keep_none if ending == "lost" else keep_all)
        self.open()

    def check(self) -> None:
        queue = self._queue()
        depth = queue.depth()
        found = [int(message.split()[1]) for message in queue]
        require(
            depth == len(found) or bool(queue.report.notes),
            f"its depth is {depth}, and there are {len(found)}",
        )
        if self.set_aside():
            require(found == sorted(set(found)), f"{found} come")
            return
        if not found:
            require(
                self.got_begun >= self.put_done,
                f"nothing comes, {self.put_done} were put and {self.got_begun} got",
            )
            return
        first, end = found[0], found[-1] + 1
        require(found == list(range(first, end)), f"{found} come")
        require(
            self.got_done <= first <= self.got_begun, f"{found} come, and {self.got_done} were got"
        )
        require(
            self.put_done <= end <= self.put_begun, f"{found} come, and {self.put_done} were put"
        )

    def afterlife(self) -> None:
        self.put_begun = self.put_done = self.got_begun = self.got_done = max(
            self.put_begun, self.put_done
        )
        self.put_many(3)
        self.get()
        self.end("lost")
        self.check()

    def close(self) -> None:
        if self.queue is not None and self.queue._held:
            FOLDERS.leave(self.files, self.queue._held, "jobs")
            self.queue._held = ""
            self.queue._closed = "gone"
        for fd in (*self.files._nodes, *self.files._locks):
            self.files.close(fd)


class QueueStartLife(QueueLife):
    """The start of a queue after a power cut that left its last record incomplete."""

    def prepare(self) -> None:
        super().prepare()
        self.put_many(6)
        queue = self._queue()
        # The power is cut before the commit.
        queue._commit = lambda meta: None  # type: ignore[method-assign]
        before = self.put_done
        self.put()
        self.put_done = before
        self.close()
        self.files.crash(self.torn)

    @staticmethod
    def torn(number: int, change: Change) -> int:
        return max(len(change.data) - 3, 1)

    def steps(self) -> list[Step]:
        return [self.open]

    def judge(self, error: StorageError) -> None:
        require(isinstance(error, (StoreFailed, DiskFull)), f"{error!r}")
        self.failed = True

    def while_failing(self) -> None:
        if self.failed:
            require(not self.files._nodes, "files stay open")
            self.queue = None

    def go_on(self) -> None:
        """Do nothing: the queue is checked after it is opened again. Until then a file that could
        not be read may be renamed to `.bad`.
        """

    def check(self) -> None:
        """Check that no message is lost. If a read failed, the start may treat messages as unread
        that were read before, so they come again.
        """
        if self.files.code == errno.EIO:
            self.got_done = 0
        super().check()


class RegistryLife(Life):
    """A life of the registry: topics are made, configured, closed, deleted and made again."""

    def prepare(self) -> None:
        logging.getLogger("zsq").setLevel(logging.CRITICAL)
        self.registry = Registry(self.files, Path(self.files.root), 3)
        self.registry.open()
        self.add("kept")
        self.registry.set_state("kept", "live")
        self.certain = self.content()
        self.unsure = False

    def content(self) -> tuple[Any, ...]:
        return copy.deepcopy((self.registry.topics, self.registry.ended))

    def add(self, name: str) -> None:
        row = self.registry.add(name, "always")
        folder = self.registry.folder(row)
        self.files.make_folder(folder)
        self.files.write_file(f"{folder}/0.chunk", b"data")
        self.files.sync_folder(folder)
        self.files.sync_folder(f"{self.files.root}/topics")

    def live(self) -> None:
        registry = self.registry
        steps: list[Step] = [
            partial(registry.add, "b", "always"), partial(registry.set_state, "b", "live"),
            partial(registry.configure, "kept", {"keep_time_s": 5}),
            partial(registry.close, "kept", "publishers"), partial(registry.set_state, "kept", "deleting", 77),
            partial(registry.set_state, "b", "deleting", 99),
        ]  # fmt: skip
        for step in steps:
            try:
                step()
            except Refused as error:
                self.refusals.append(error.code)
                full = error.code == E_DISK_FULL
                require(
                    full == (self.files.code in FULL_CODES) or "not known" in str(error),
                    f"{error} after {self.files.code}",
                )
                self.unsure = "not known" in str(error)
                require(
                    self.content() == self.certain,
                    "a change that was refused was made all the same",
                )
            except KeyError:
                continue  # the topic was never made, because the disk refused it
            else:
                self.certain, self.unsure = self.content(), False
        self.remove("kept")

    def remove(self, name: str) -> None:
        """Remove a topic. If the disk refuses this, the next start finishes the removal."""
        if self.registry.topics[name].state == "deleting":
            self.registry.remove(name)
            del self.certain[0][name]

    def while_failing(self) -> None:
        require(not self.files._nodes, "files stay open")

    def go_on(self) -> None:
        """In half of the cases, settle the registry, as the supervisor does from time to time. In
        the other half the process ends before that.
        """
        if self.files.goes_on:
            self.registry.settle()
            self.registry.add("after", "always")
            self.certain = self.content()

    def end(self, ending: str) -> None:
        if ending != "died":
            self.files.crash(keep_none if ending == "lost" else keep_all)
        self.registry = Registry(self.files, Path(self.files.root), 3)
        self.registry.open()

    def check(self) -> None:
        known, ended = self.content()
        # The last change may have been made although it was refused. The error said so.
        if self.unsure and not self.files.goes_on:
            changed = [
                name
                for name in known.keys() | self.certain[0].keys()
                if known.get(name) != self.certain[0].get(name)
            ]
            require(len(changed) <= 1, f"{changed} are not as they were")
            self.certain, self.unsure = self.content(), False
        wanted, wanted_ended = self.certain
        deleted = {
            name: row
            for name, row in known.items()
            if name not in wanted and row.state == "deleting"
        }
        require(
            {name: row for name, row in known.items() if name not in deleted} == wanted,
            f"the topics are {known}, and were {wanted}",
        )
        require(
            ended == wanted_ended,
            f"the ends of deleted topics are {ended}, and were {wanted_ended}",
        )
        self.registry.finish_removals()
        require(not self.files.list(f"{self.files.root}/trash"), "files of deleted topics stay")
        gone = {name for name, row in wanted.items() if row.state == "deleting"}
        for name in gone:
            del wanted[name]
        folders = {Path(self.registry.folder(row)).name for row in wanted.values()}
        require(
            set(self.files.list(f"{self.files.root}/topics")) <= folders,
            "a deleted topic's files stay where they were",
        )
        require(self.content() == self.certain, "what was being deleted is not gone")

    def afterlife(self) -> None:
        row = self.registry.add("again", "always")
        require(row.number >= self.registry.next_number - 1, "a number is used twice")
        self.certain = self.content()
        self.end("lost")
        self.check()
