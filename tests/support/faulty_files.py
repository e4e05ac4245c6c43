"""A file system for tests that can lose what was not synced: written bytes, and names in folders.
The simulated *disk* of many tests is an object of this class.

It works on a real folder, so that reads, locks and LMDB work as usual. In addition, this class
keeps a model of what is certainly on disk: the content of each file at its last sync, the names in
each folder at its last sync, and the list of changes since then, in order. `crash` replaces the
real folder by that certain state plus any choice of the pending changes. A pending change is
applied completely or not at all. Only of a write, some bytes at its start may be applied.

    files = FaultyFiles(root)
    files.power_cut_at = 17            # the 17th change from now is not done: it raises PowerCut
    files.fail["sync"] = {2: EIO}      # the 2nd sync from now fails
    files.crash(keep_none)             # and then open a store again

After a failed sync, the changes that it covered are visible in reads and never reach the disk,
whatever is synced later. Linux does the same. A file that was not made through this class (LMDB's
files, the lock file) stays as it is.
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zsq.storage.errors import ShortWrite
from zsq.storage.files import Files


class PowerCut(Exception):
    """The power was cut. Every later change raises this error too."""


@dataclass(eq=False, slots=True)
class FaultyNode:
    """A file or a folder. `content` and `names` are what is certainly on disk. `names_now` is what
    the process sees.
    """

    folder: bool
    content: bytearray = field(default_factory=bytearray)
    names: dict[str, FaultyNode] = field(default_factory=dict)
    names_now: dict[str, FaultyNode] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Change:
    """One pending change: a write (`data` at `position`), a truncation (`cut`, to `position`), or
    names set and unset in folders.
    """

    kind: str
    node: FaultyNode
    position: int = 0
    data: bytes = b""
    entries: tuple[tuple[FaultyNode, str, FaultyNode | None], ...] = ()

    def apply(self, kept: int) -> None:
        if self.kind == "write":
            data = self.data[:kept]
            self.node.content.extend(
                bytes(max(0, self.position + len(data) - len(self.node.content)))
            )
            self.node.content[self.position : self.position + len(data)] = data
        elif self.kind == "truncate":
            del self.node.content[self.position :]
        else:
            for folder, name, node in self.entries:
                if node is None:
                    folder.names.pop(name, None)
                else:
                    folder.names[name] = node


Choose = Callable[[int, Change], int]
"""A function of (number, change) that returns how much of the change reached the disk: for a write
a number of bytes, for another change 0 (not done) or another number (done).
"""


def keep_none(number: int, change: Change) -> int:
    return 0


def keep_all(number: int, change: Change) -> int:
    return max(len(change.data), 1)


class FaultyFiles(Files):
    """The file system. `changes` counts the calls that change the disk. `log` has their names."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.pending: list[Change] = []
        self.changes = 0
        self.log: list[str] = []
        self.power_cut_at = 0
        self.fail: dict[str, dict[int, int]] = {}
        self.short: dict[int, int] = {}
        """Number of a writev call, counted from now -> the number of bytes that it writes before it
        stops.
        """
        self.unreadable: tuple[str, int] = ("", 0)
        """A file's name and the position of a byte that the disk cannot read."""
        self.free = 1 << 40
        self.seed = 0
        self._calls: dict[str, int] = {}
        self._nodes: dict[int, FaultyNode] = {}
        self._locks: set[int] = set()
        self._tree = self._adopt(root)

    # Calls that change the disk

    def open_new(self, path: str) -> int:
        self._step("open_new")
        fd = super().open_new(path)
        node = FaultyNode(folder=False)
        self._nodes[fd] = node
        self._name("create", (path, node))
        return fd

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        number = self._step("writev")
        data = b"".join(bytes(buffer) for buffer in buffers)
        if number in self.short:
            data = data[: self.short.pop(number)]
            super().writev(fd, [data], position)
            self.pending.append(Change("write", self._node(fd), position, data))
            raise ShortWrite(len(data))
        super().writev(fd, buffers, position)
        self.pending.append(Change("write", self._node(fd), position, data))

    def truncate(self, fd: int, size: int) -> None:
        self._step("truncate")
        super().truncate(fd, size)
        self.pending.append(Change("truncate", self._node(fd), size))

    def sync(self, fd: int) -> None:
        node = self._node(fd)
        mine = [
            change
            for change in self.pending
            if change.node is node and change.kind in {"write", "truncate"}
        ]
        try:
            self._step("sync")
        except OSError:
            self._forget(mine)
            raise
        for change in mine:
            change.apply(len(change.data))
        self._forget(mine)

    def sync_all(self, fds: Sequence[int]) -> None:
        for fd in fds:
            self.sync(fd)

    def sync_folder(self, path: str) -> None:
        self._step("sync_folder")
        folder = self._find(path)
        mine = [
            change for change in self.pending if any(entry[0] is folder for entry in change.entries)
        ]
        for change in mine:
            change.apply(1)
        self._forget(mine)

    def rename(self, old: str, new: str) -> None:
        self._step("rename")
        super().rename(old, new)
        self._name("rename", (old, None), (new, self._find(old)))

    def link(self, old: str, new: str) -> None:
        self._step("link")
        super().link(old, new)
        self._name("create", (new, self._find(old)))

    def remove(self, path: str) -> None:
        self._step("remove")
        super().remove(path)
        self._name("remove", (path, None))

    def make_folder(self, path: str) -> None:
        self._step("make_folder")
        super().make_folder(path)
        self._name("create", (path, FaultyNode(folder=True)))

    # Calls that change nothing

    def open_append(self, path: str) -> int:
        self._count("open_append")
        fd = super().open_append(path)
        self._nodes[fd] = self._find(path)
        return fd

    def open_read(self, path: str) -> int:
        self._count("open_read")
        fd = super().open_read(path)
        self._nodes[fd] = self._find(path)
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._count("pread")
        name, bad = self.unreadable
        if name and position <= bad < position + size and self._tree_name(fd) == name:
            raise OSError(errno.EIO, f"{name} cannot be read at {bad}, by plan")
        return super().pread(fd, size, position)

    def close(self, fd: int) -> None:
        self._nodes.pop(fd, None)
        self._locks.discard(fd)
        super().close(fd)

    def lock(self, path: str, *, write: bool = True) -> int:
        fd = super().lock(path, write=write)
        self._locks.add(fd)
        return fd

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return 1 << 40

    def random_seed(self) -> int:
        self.seed += 1
        return self.seed * 0x9E3779B1 & 0xFFFFFFFF

    # The crash

    def crash(self, choose: Choose) -> None:
        """Simulate a crash and a restart of the machine: some of the pending changes reach the
        disk, and open files are closed.
        """
        for number, change in enumerate(self.pending):
            kept = choose(number, change)
            if kept:
                change.apply(kept)
        for fd in (*self._nodes, *self._locks):
            super().close(fd)
        self._nodes.clear()
        self._locks.clear()
        strangers = self._strangers(self.root, self._tree)
        Files().remove_tree(self.root)
        self._lay_down(self.root, self._tree, strangers)
        self.reset()

    def reset(self) -> None:
        """Clear all planned failures, and treat the present content of the real folder as certainly
        on disk.
        """
        self.pending = []
        self.power_cut_at = self.changes = 0
        self.log = []
        self.fail = {}
        self.short = {}
        self._calls = {}
        self._tree = self._adopt(self.root)

    def _adopt(self, path: str) -> FaultyNode:
        node = FaultyNode(folder=True)
        for name in super().list(path):
            inner = f"{path}/{name}"
            child = (
                self._adopt(inner)
                if os.path.isdir(inner)
                else FaultyNode(folder=False, content=bytearray(self._whole(inner)))
            )
            node.names[name] = node.names_now[name] = child
        return node

    def _whole(self, path: str) -> bytes:
        fd = super().open_read(path)
        try:
            return super().pread(fd, super().size(fd), 0)
        finally:
            super().close(fd)

    def _strangers(self, path: str, node: FaultyNode) -> dict[int, dict[str, bytes]]:
        """Return, for each folder, the files that were not made through this class: LMDB's files
        and the lock file. Such a folder is the cache of archived chunks, and a crash loses it.
        """
        found: dict[int, dict[str, bytes]] = {id(node): {}}
        for name in super().list(path):
            inner = f"{path}/{name}"
            child = node.names_now.get(name)
            if child is not None and child.folder:
                found.update(self._strangers(inner, child))
            elif (child is None and not os.path.isdir(inner)) or name.endswith(".mdb"):
                found[id(node)][name] = self._whole(inner)
        return found

    def _lay_down(
        self, path: str, node: FaultyNode, strangers: dict[int, dict[str, bytes]]
    ) -> None:
        super().make_folder(path)
        files = {
            name: bytes(child.content) for name, child in node.names.items() if not child.folder
        }
        for name, data in {**files, **strangers.get(id(node), {})}.items():
            fd = super().open_new(f"{path}/{name}")
            super().writev(fd, [data], 0)
            super().close(fd)
        for name, child in node.names.items():
            if child.folder:
                self._lay_down(f"{path}/{name}", child, strangers)

    # The model

    def _count(self, call: str) -> int:
        number = self._calls[call] = self._calls.get(call, 0) + 1
        code = self.fail.get(call, {}).get(number)
        if code is not None:
            raise OSError(code, f"{errno.errorcode[code]} by plan at {call} {number}")
        return number

    def _step(self, call: str) -> int:
        self.changes += 1
        self.log.append(call)
        if self.power_cut_at and self.changes >= self.power_cut_at:
            raise PowerCut(f"before change {self.power_cut_at}, a {call}")
        return self._count(call)

    def _node(self, fd: int) -> FaultyNode:
        return self._nodes[fd]

    def _tree_name(self, fd: int) -> str:
        return os.path.basename(os.path.realpath(f"/proc/self/fd/{fd}"))

    def _find(self, path: str) -> FaultyNode:
        node = self._tree
        for name in path.removeprefix(self.root).strip("/").split("/"):
            if name:
                node = node.names_now[name]
        return node

    def _name(self, kind: str, *entries: tuple[str, FaultyNode | None]) -> None:
        found = []
        for path, node in entries:
            folder = self._find(path.rpartition("/")[0])
            found.append((folder, path.rpartition("/")[2], node))
        for folder, name, node in found:
            if node is None:
                # Lock files and LMDB's files may be missing here.
                folder.names_now.pop(name, None)
            else:
                folder.names_now[name] = node
        self.pending.append(Change(kind, found[-1][0], entries=tuple(found)))

    def _forget(self, changes: list[Change]) -> None:
        gone = set(map(id, changes))
        self.pending = [change for change in self.pending if id(change) not in gone]
