"""Recorder of all changes that a workload makes on the disk, in one order: the calls of
`storage/files.py` and LMDB's own, with the promises that were made before each of them.

    files = RecordingFiles(root)
    subject = Life(files)                       # opened as usual
    with files.recording(subject.promise) as trace:
        work(subject)                           # trace.steps: every write, cut, name and sync

A step is a change of the page cache. It does not say if the call succeeded. `states.py` makes from
the steps the disks that a power cut may leave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.faulty_files import FaultyFiles, FaultyNode
from support.lmdb_calls import LmdbCall, LmdbCalls


class Step(NamedTuple):
    """One change, or one sync. `kind`: write, cut (a truncate), names, sync, or sync_folder.
    `node`: the number of the file or folder. `durable`: True for a write that is synced when it
    returns.

    `entries`, for the kind names: (folder, name, new node of that name or -1). `promised`: the
    number, in the trace, of the promise that held before this step.
    """

    kind: str
    node: int
    position: int = 0
    data: bytes = b""
    durable: bool = False
    entries: tuple[tuple[int, str, int], ...] = ()
    promised: int = 0


@dataclass(slots=True)
class Trace:
    """A recording. `files` and `folders`: what was certainly on disk at the beginning, by node.
    `promises`: the distinct promises, in order.
    """

    root: int
    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]
    """Folders that were made later are included as empty ones."""
    steps: list[Step] = field(default_factory=list)
    promises: list[Any] = field(default_factory=list)
    paths: dict[str, int] = field(default_factory=dict)
    """The path of each node at the beginning, below the root."""
    pending: list[Step] = field(default_factory=list)
    """The changes that were not certain at the beginning, in order."""
    recovered: int = 0
    """The number of steps before the subject was open."""

    def promised(self, prefix: int) -> Any:
        """Return the promise that held after the first `prefix` steps."""
        return (
            self.promises[self.steps[prefix].promised]
            if prefix < len(self.steps)
            else self.promises[-1]
        )

    def say(self, step: Step) -> str:
        """Return the step as a text for people."""
        if step.kind == "names":
            return "names " + ", ".join(
                f"{folder}/{name}={'none' if node < 0 else node}"
                for folder, name, node in step.entries
            )
        what = (
            f" at {step.position}, {len(step.data)} bytes"
            if step.kind == "write"
            else f" to {step.position}"
            if step.kind == "cut"
            else ""
        )
        return f"{step.kind} {step.node}{what}{', durable' if step.durable else ''}"


class RecordingFiles(FaultyFiles):
    """Records the calls of `FaultyFiles` and those of LMDB. It records only inside `recording`."""

    def __init__(self, root: str) -> None:
        super().__init__(os.path.realpath(root))
        self.trace: Trace | None = None
        self._promise: Callable[[], Any] = lambda: None
        self._numbers: dict[FaultyNode, int] = {}

    @contextmanager
    def recording(self, promise: Callable[[], Any]) -> Iterator[Trace]:
        """Record the changes in this context. Earlier changes count as certain. `promise` is called
        before each step, and its result must not change later.
        """
        assert not self._nodes, "files are open, of which it is not known what they are"
        self.reset()
        self._numbers = {}
        trace = Trace(self._number(self._tree), {}, {})
        self._note_tree(trace, self.root, self._tree)
        self._promise = promise
        self.trace = trace
        calls = LmdbCalls(self._see)
        try:
            with calls:
                yield trace
            assert calls.error is None, calls.error
            self._promised()
        finally:
            self.trace = None

    def _note_tree(self, trace: Trace, path: str, node: FaultyNode) -> None:
        number = self._number(node)
        trace.paths[path.removeprefix(self.root)] = number
        if not node.folder:
            trace.files[number] = self._whole(path)
            return
        trace.folders[number] = {
            name: self._number(child) for name, child in node.names_now.items()
        }
        for name, child in node.names_now.items():
            self._note_tree(trace, f"{path}/{name}", child)

    def _number(self, node: FaultyNode) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    # Steps

    def _step(self, call: str) -> int:
        number = super()._step(call)
        self._promised()
        return number

    def _promised(self) -> None:
        if self.trace is not None:
            promise = self._promise()
            if not self.trace.promises or promise != self.trace.promises[-1]:
                self.trace.promises.append(promise)

    def _add(self, step: Step) -> None:
        if self.trace is not None:
            self.trace.steps.append(step._replace(promised=len(self.trace.promises) - 1))

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        before = len(self.pending)
        try:
            super().writev(fd, buffers, position)
        finally:
            for change in self.pending[before:]:
                self._add(Step("write", self._number(change.node), change.position, change.data))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._add(Step("cut", self._number(self._node(fd)), size))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._add(Step("sync", self._number(self._node(fd))))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._add(Step("sync_folder", self._number(self._find(path))))

    def _name(self, kind: str, *entries: tuple[str, FaultyNode | None]) -> None:
        super()._name(kind, *entries)
        found = tuple(
            (self._number(folder), name, -1 if node is None else self._number(node))
            for folder, name, node in self.pending[-1].entries
        )
        for _, _, node in self.pending[-1].entries:
            if self.trace is not None and node is not None and node.folder:
                self.trace.folders.setdefault(self._number(node), {})
        self._add(Step("names", found[-1][0], entries=found))

    # Calls that the base class passes to the real system

    def remove_tree(self, path: str) -> None:
        for name in self.list(path):
            inner = f"{path}/{name}"
            if os.path.isdir(inner) and not os.path.islink(inner):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self._step("rmdir")
        os.rmdir(path)
        self._name("remove", (path, None))

    def note(self, path: str, data: bytes) -> None:
        self._step("note")
        node = self._known(path)
        super().note(path, data)
        self._add(Step("cut", self._number(node), 0))
        self._add(Step("write", self._number(node), 0, data))

    def lock(self, path: str, *, write: bool = True) -> int:
        """Take the lock. The content of the lock file is for people, and is not recorded."""
        if write:
            self._step("lock")
        fd = super().lock(path, write=write)
        if write:
            self._known(path)
        return fd

    def _known(self, path: str) -> FaultyNode:
        """Return the node of a file. If the file is new, make its node."""
        try:
            return self._find(path)
        except KeyError:
            node = FaultyNode(folder=False)
            self._name("create", (path, node))
            return node

    def _see(self, call: LmdbCall) -> int:
        if not call.path.startswith(self.root + "/"):
            return 0
        try:
            self._find(call.path.rpartition("/")[0])
        except KeyError:
            # The file is a copy that is only examined, which the broker would do in another
            # process.
            return 0
        self._promised()
        number = self._number(self._known(call.path))
        if call.kind == "write":
            self._add(Step("write", number, call.position, call.data, call.durable))
        elif call.kind == "truncate":
            self._add(Step("cut", number, call.position))
        else:
            self._add(Step("sync", number))
        return 0
