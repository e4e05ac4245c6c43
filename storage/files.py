"""Files: the interface to the operating system.

No other module in this folder opens, reads, writes, syncs or renames files. Tests inject all their
faults here: `FaultyFiles` overrides these methods, and loses the bytes that were not synced. So
each method must be one system call, or a few that belong together, and must make no decisions.
Python itself repeats calls that a signal interrupts (PEP 475), so EINTR is never raised. All other
failures are raised as `OSError`. The caller decides what they mean.

Each write has a position argument. An append with O_APPEND would be as fast. But after a short
write the log's end could differ from the file's end. Also, recovery could not write at a position
in the file, because with O_APPEND Linux writes to the end in any case.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from .errors import Locked, ShortWrite

SYNC_THREADS: Final = 8
TEMPORARY_SUFFIX: Final = ".tmp"
IOV_MAX: Final = 1024  # this is Linux's limit since version 2.4; POSIX guarantees only 16

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


def _path_of(fd: int) -> str:
    """Return the path of an open file, or "" where /proc is not mounted."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


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

        The buffers are bytes or views of bytes, at most IOV_MAX of them. Raises `ShortWrite` if the
        system wrote only a part.
        """
        written = os.pwritev(fd, buffers, position)
        if written != sum(map(len, buffers)):
            raise ShortWrite(written, _path_of(fd))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""
        found = os.pread(fd, size, position)
        if len(found) == size or not found:
            return found
        pieces = [found]
        # One read returns at most 2 GiB, and may return less on some file systems.
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

        A disk carries out eight flushes together in the time of one or two. For 40 files with one
        changed page each, this takes 12 ms. One sync after the other takes 85 ms.
        """
        if len(fds) == 1:
            self.sync(fds[0])
            return
        with ThreadPoolExecutor(SYNC_THREADS, "sync") as pool:
            for done in [pool.submit(self.sync, fd) for fd in fds]:
                done.result()

    def sync_folder(self, path: str) -> None:
        """Sync a folder. Its new, renamed and removed names are on disk when this returns."""
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
        """Return True if the path exists. Raises `OSError` if this cannot be determined.

        In that case it does not return False, because callers would create the file, or continue
        without it.
        """
        try:
            os.stat(path)
        # A ValueError means that the name contains a zero byte. No file has such a name.
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
        not a pid file, because the kernel frees a flock in every case when the holder ends. The pid
        in the file is only for people.

        With `write=False`, this neither creates nor changes the file, so it works on a read-only
        file system. It returns -1 if the file does not exist, because then no process can hold it.
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
            _hold(fd)
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
        with contextlib.suppress(OSError):  # a store must open even on a full disk
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return fd

    def lock_folder(self, path: str) -> int:
        """Hold the folder until the descriptor is closed. Raises `Locked` if it is held already.

        nsqd also holds its data path with an exclusive flock on the folder.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _hold(fd)
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
        """Write a small new file and sync its bytes. The caller must sync the folder, too."""
        fd = self.open_new(path)
        try:
            self.writev(fd, [data], 0)
            self.sync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a small file under a temporary name, and give it its name. All of it is synced.

        A reader finds the old file or the new one, never a part. After an `OSError` it is not known
        which of them exists.
        """
        temporary = path + TEMPORARY_SUFFIX
        if self.exists(temporary):
            self.remove(temporary)
        try:
            self.write_file(temporary, data)
        except OSError:
            # A partial file would take space on a disk that may be full.
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        self.rename(temporary, path)
        self.sync_folder(path.rpartition("/")[0] or ".")

    def note(self, path: str, data: bytes) -> None:
        """Write or replace a small file without a sync.

        Its content stays when this process ends, but may be lost in a crash of the machine.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def read_note(self, path: str, max_bytes: int) -> bytes:
        """Return the content that `note` wrote last, or nothing if the file does not exist."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.read(fd, max_bytes)
        finally:
            os.close(fd)

    def read_file(self, path: str, max_bytes: int) -> bytes:
        fd = self.open_read(path)
        try:
            return self.pread(fd, max_bytes, 0)
        finally:
            self.close(fd)


def _hold(fd: int) -> None:
    """Take an exclusive lock of an open file. Raises `BlockingIOError` if another process has it.

    The import is here because Windows has no such module. Readers of archived chunks import this
    file there, and open no file with it.
    """
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def process_id() -> int:
    return os.getpid()


def call_in_forked(call: Callable[[], None]) -> None:
    """Register `call` to run first in each process that is forked from this one."""
    os.register_at_fork(after_in_child=call)
