"""Files: the seam to the operating system.

Nothing else in this folder opens, reads, writes, syncs or renames. Everything that can fail in a
test fails here: `FaultyFiles` overrides these methods, remembers what was synced and forgets the
rest. So the rule is strict: a method is one system call, or a few that belong together, and decides
nothing. Python itself repeats calls that a signal interrupts (PEP 475), so EINTR is never raised.
All other failures are raised as `OSError`. The caller decides what they mean.

Writes give their position. An append with O_APPEND would be as fast. But after a short write the
log's end could differ from the file's end, and recovery could not write back in place (with
O_APPEND, Linux appends there too).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from .errors import Locked, ShortWrite

SYNC_THREADS: Final = 8
IOV_MAX: Final = 1024  # Linux's UIO_MAXIOV; POSIX promises 16, every Linux since 2.4 has this

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


class Files:
    """The real operating system.

    Paths are strings. Files are descriptors (ints) that no child process inherits.
    """

    def open_new(self, path: str) -> int:
        """Create a file for reading and writing. Raises `FileExistsError` if the name is taken."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)

    def open_append(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def writev(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        """Write all the buffers at `position` in one call.

        The buffers are bytes or views of bytes, at most IOV_MAX. Raises `ShortWrite` if the system
        took only a part.
        """
        written = os.pwritev(fd, buffers, position)
        if written != sum(map(len, buffers)):
            raise ShortWrite(written)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""
        found = os.pread(fd, size, position)
        if len(found) == size or not found:
            return found
        pieces = [found]
        # A single read ends at 2 GiB, and may end anywhere on some file systems.
        while found and (size := size - len(found)):
            position += len(found)
            found = os.pread(fd, size, position)
            pieces.append(found)
        return b"".join(pieces)

    def sync(self, fd: int) -> None:
        """Write the file's bytes and its size to disk before returning."""
        os.fdatasync(fd)

    def sync_all(self, fds: Sequence[int]) -> None:
        """Sync all these files, several at once. Tries all of them, then raises the first failure.

        A disk takes eight flushes together in the time of one or two: 40 files with one changed
        page each take 85 ms one by one, and 12 ms here.
        """
        if len(fds) == 1:
            self.sync(fds[0])
            return
        with ThreadPoolExecutor(SYNC_THREADS, "sync") as pool:
            for done in [pool.submit(self.sync, fd) for fd in fds]:
                done.result()

    def sync_folder(self, path: str) -> None:
        """Sync a folder: names created, renamed or removed in it are on disk when this returns."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def rename(self, old: str, new: str) -> None:
        """Rename `old`, replacing `new` if that is a file or an empty folder."""
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name in the same file system.

        Raises `FileExistsError` if the name is taken.
        """
        os.link(old, new, follow_symlinks=False)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """Return True if the path exists. Raises `OSError` if the system cannot tell.

        It does not return False in that case, because callers create a missing file, or go on
        without it.
        """
        try:
            os.stat(path)
        # ValueError: no file has a zero byte in its name.
        except (
            FileNotFoundError,
            NotADirectoryError,
            ValueError,
        ):
            return False
        return True

    def is_folder(self, path: str) -> bool:
        """Return True for a real folder, False for a link to one."""
        return os.path.isdir(path) and not os.path.islink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, _FOLDER_MODE)

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all files and folders in it."""
        for name in self.list(path):
            inner = f"{path}/{name}"
            if self.is_folder(inner):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        os.rmdir(path)

    def lock(self, path: str, *, write: bool = True) -> int:
        """Hold the lock file until its descriptor is closed or the process ends.

        Raises `Locked`, with the holder's pid, if another process holds it. The lock is a flock and
        not a pid file: the kernel frees it however the holder dies. The pid in the file is for
        people.

        With `write=False` the file is neither created nor changed, as on a read-only file system.
        The result is -1 if the file does not exist, because then no process can hold it.
        """
        try:
            fd = os.open(
                path, (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY) | os.O_CLOEXEC, _FILE_MODE
            )
        except FileNotFoundError:
            if write:
                raise
            return -1
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            digits = os.pread(fd, 20, 0).strip()
            os.close(fd)
            pid = int(digits) if digits.isdigit() else 0
            raise Locked(
                (
                    f"{path} is locked by process {pid or 'unknown'}; only one process may open "
                    "this directory: stop that process first"
                ),
                pid,
            ) from None
        except BaseException:
            os.close(fd)
            raise
        if not write:
            return fd
        with contextlib.suppress(OSError):  # a full disk must not keep a store from being opened
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return fd

    def lock_folder(self, path: str) -> int:
        """Hold the folder until the descriptor is closed. Raises `Locked` if it is held.

        An exclusive flock on the folder is how nsqd holds its data path.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Locked(
                f"{path} is locked by another process: an nsqd, or a program with a disk queue "
                "there; stop that process first"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def advise_sequential(self, fd: int) -> None:
        """Tell the system that this file will be read from front to back."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def advise_done(self, fd: int, position: int, size: int) -> None:
        """Tell the system that it may drop these pages from the page cache."""
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process may write on the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def random_seed(self) -> int:
        """Return 32 random bits, never 0, because the wire form uses the seed 0."""
        return int.from_bytes(os.urandom(4), "little") or 1

    def write_file(self, path: str, data: bytes) -> None:
        """Write a small new file and sync its bytes. Its name is not synced: sync the folder."""
        fd = self.open_new(path)
        try:
            self.writev(fd, [data], 0)
            self.sync(fd)
        finally:
            self.close(fd)

    def note(self, path: str, data: bytes) -> None:
        """Write or replace a small file without a sync.

        Its content outlives this process, but may not outlive a crash of the machine.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def read_note(self, path: str, bytes_max: int) -> bytes:
        """Return the content that `note` wrote last, or nothing if the file does not exist."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.read(fd, bytes_max)
        finally:
            os.close(fd)

    def read_file(self, path: str, bytes_max: int) -> bytes:
        fd = self.open_read(path)
        try:
            return self.pread(fd, bytes_max, 0)
        finally:
            self.close(fd)


def process_id() -> int:
    return os.getpid()


def call_in_forked(call: Callable[[], None]) -> None:
    """Register `call` to run first in each process that is forked from this one."""
    os.register_at_fork(after_in_child=call)
