"""The simulated disk: one `FaultyFiles` for all processes of the machine, and its faults.

If a process dies, its files are closed and its locks are freed, and all that it wrote stays (the
page cache belongs to the kernel). A power cut loses a random part of what was not synced. A commit
of LMDB happens at one instant of the simulation, and is durable. `scripts/prove crash-states`
(tests/faults) tests what LMDB's own writes may lose.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final

import lmdb
from support.faulty_files import Change, FaultyFiles

from zsq.storage.errors import ShortWrite
from zsq.storage.files import Files
from zsq.storage.state import state_check

from .world import MS, Process, World, world_now

LOW: Final = 64 * 1024  # free bytes of a disk that counts as full


class Disk:
    def __init__(self, world: World, root: str) -> None:
        self.world = world
        self.root = root
        self.files = FaultyFiles(root)
        self.rng = world.dice("disk")
        self.full_until_ns = 0
        self.fail_syncs = 0
        self.failed_syncs = 0
        self.slow_until_ns = 0
        # By the number of a machine that lives on after a takeover: its disk.
        self._kept: dict[int, FaultyFiles] = {}
        self._open: dict[str, list[Any]] = {}  # process -> its LMDB environments

    def sync_takes_ns(self) -> tuple[int, int]:
        return (20 * MS, 200 * MS) if self.slow else (20_000, 2 * MS)

    @property
    def slow(self) -> bool:
        return self.world.now_ns < self.slow_until_ns

    @property
    def full(self) -> bool:
        return self.world.now_ns < self.full_until_ns

    def of(self, process: Process) -> ProcessFiles:
        return ProcessFiles(self, process)

    def files_of(self, process: Process) -> FaultyFiles:
        return self._kept.get(process.machine, self.files)

    def keep(self, machine: int) -> None:
        """Let this machine keep its disk. The next broker gets another one."""
        self._kept[machine] = self.files
        self.files = FaultyFiles(self.root)

    def destroy_only(self, data_dir: str) -> None:
        """Remove the disk of one machine, whose processes are dead."""
        plain = Files()
        if plain.exists(data_dir):
            plain.remove_tree(data_dir)
        self.files.reset()

    def opened(self, environment: Any) -> Any:
        current = self.world.current
        if current is not None:
            process = current.process
            if process.name not in self._open:
                self._open[process.name] = []
                process.on_death.append(self._close_environments)
            self._open[process.name].append(environment)
        return environment

    def _close_environments(self, process: Process) -> None:
        for environment in self._open.pop(process.name, []):
            environment.close()

    def destroy(self) -> None:
        """Remove everything. All processes are dead."""
        plain = Files()
        for name in plain.list(self.root):
            plain.remove_tree(f"{self.root}/{name}")
        self.files.reset()

    def power_cut(self) -> None:
        """Cut the power after all processes are dead. A part of what was not synced reaches the
        disk.
        """
        rng = self.rng
        mood = rng.choice(("none", "all", "some", "some"))

        def choose(number: int, change: Change) -> int:
            whole = max(len(change.data), 1)
            if mood != "some":
                return whole if mood == "all" else 0
            return rng.choice(
                (0, whole, whole, rng.randrange(whole + 1) if change.kind == "write" else 0)
            )

        self.world.note(f"disk keeps {mood} of {len(self.files.pending)} changes")
        self.files.crash(choose)


class ProcessFiles(Files):
    """The disk as one process uses it. Syncs take time, and the process may die during them."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._files = disk.files_of(process)
        self._mine: set[int] = set()
        process.on_death.append(self._close_all)

    def _close_all(self, process: Process) -> None:
        for fd in sorted(self._mine):
            self._files.close(fd)
        self._mine.clear()

    def _waits(self) -> None:
        self._disk.world.pause(*self._disk.sync_takes_ns())

    def _opened(self, fd: int) -> int:
        self._mine.add(fd)
        return fd

    def open_new(self, path: str) -> int:
        self._check_space()
        return self._opened(self._files.open_new(path))

    def open_append(self, path: str) -> int:
        return self._opened(self._files.open_append(path))

    def open_read(self, path: str) -> int:
        return self._opened(self._files.open_read(path))

    def lock(self, path: str, *, write: bool = True) -> int:
        return self._opened(self._files.lock(path, write=write))

    def close(self, fd: int) -> None:
        self._mine.discard(fd)
        self._files.close(fd)

    def _check_space(self) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        if self._disk.full:
            size = sum(map(len, buffers))
            taken = self._disk.rng.choice((0, 0, self._disk.rng.randrange(size) if size else 0))
            if not taken:
                self._check_space()
            self._files.writev(fd, [b"".join(bytes(one) for one in buffers)[:taken]], position)
            raise ShortWrite(taken)
        self._files.writev(fd, buffers, position)

    def sync(self, fd: int) -> None:
        self._waits()
        disk = self._disk
        if disk.fail_syncs:
            disk.fail_syncs -= 1
            self._files.fail["sync"] = {self._files._calls.get("sync", 0) + 1: errno.EIO}
            disk.failed_syncs += 1
            disk.world.note("a sync fails")
        self._files.sync(fd)
        disk.world.pause(1_000, 100_000)

    def sync_all(self, fds: Sequence[int]) -> None:
        for fd in fds:
            self.sync(fd)

    def sync_folder(self, path: str) -> None:
        self._waits()
        self._files.sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.world.pause(1_000, 60_000)
        self._files.rename(old, new)
        self._disk.world.pause(1_000, 60_000)

    def link(self, old: str, new: str) -> None:
        self._check_space()
        self._disk.world.pause(1_000, 60_000)
        self._files.link(old, new)

    def remove(self, path: str) -> None:
        self._disk.world.pause(1_000, 60_000)
        self._files.remove(path)

    def free_bytes(self, path: str) -> int:
        return LOW if self._disk.full else self._files.free_bytes(path)


_DELEGATED: Final = frozenset(
    {"pread", "truncate", "size", "size_of", "list", "exists", "make_folder", "lock_folder", "advise_sequential", "advise_done",
     "total_bytes", "random_seed", "note", "read_note", "remove_tree"}
)  # fmt: skip


def _delegate(name: str) -> Callable[..., Any]:
    """Pass this call on to the disk."""
    return lambda self, *given, **named: getattr(self._files, name)(*given, **named)


for _name in _DELEGATED:
    setattr(ProcessFiles, _name, _delegate(_name))


def check_in_process() -> None:
    """Examine LMDB environments in this process instead of a separate one: no environment is
    damaged so badly that LMDB would crash.
    """
    module: Any = state_check
    module._examine = lambda path, timeout_s: state_check.Verdict(
        state_check.findings(path), finished=True
    )


def watch_lmdb() -> None:
    """Close environments when the process that opened them dies, because LMDB cannot open the same
    file twice in one real process.
    """
    real = lmdb.open

    def opened(*given: Any, **named: Any) -> Any:
        environment = real(*given, **named)
        world = world_now()
        if world is None:
            return environment
        disk: Disk = world.disk
        return disk.opened(environment)

    module: Any = lmdb
    module.open = opened
