"""NSQ's disk queue: byte strings in files in go-diskqueue 1.1's format, byte for byte, but durable.

A program can use it directly, to read messages that an nsqd left on disk, or to write files that an
nsqd reads. The broker stores its messages in another format (`log.py`).

    with DiskQueue("/var/spool/app", "jobs") as queue:
        queue.put(b"one")              # on disk when this returns
        job = queue.peek()             # the oldest message; it stays in the queue
        queue.get()                    # removes it, on disk too

With the defaults (`sync_every=1`) the queue promises the following:

* When `put` returns, the message is on disk: the data are synced, the metadata are written to a new
  file, synced and renamed, and the folder is synced. After a crash before that, the queue contains
  either the whole message or no part of it.
* When `get` returns, the message is not delivered again. A program that must not lose a message
  while it works on it calls `peek`, does the work, and then calls `get`. After a crash in between,
  it receives the message again.
* Messages are returned in the order in which they were put.
* A failed fsync ends the queue (`StoreFailed`), because the content of the disk is then unknown.
  Opening the queue again runs the recovery.
* If the disk is full, a put raises `DiskFull` and stores nothing. Reads still work, and free the
  space of each file that was read. Until there is space for the metadata, messages that were
  removed may be returned again after a crash.
* One process owns the folder. It is locked (flock) as nsqd locks it, so neither an nsqd nor a
  second program can open it. In one process, queues of different names share the lock, and any
  thread may call any method. A process that was forked from the owner must not use the queue
  (`StoreFailed`). It cannot open a queue in this folder while its parent has one open there. It
  closes the descriptors of locks that it inherited.

With `sync_every=N`, as in NSQ (where N is 2500), puts and gets are counted. They are synced after
every N of them, or `sync_timeout` seconds after the first one that is not synced. A crash of the
machine may then lose the puts and gets that are not synced. A crash of the process loses no message
that was put, but messages that `get` has removed may be returned again.

The following points are as in go-diskqueue: the files, their names, and when a new file begins; the
metadata; the operations that sync; and a file with an unreadable record is renamed to `.bad` and
not read further. These points are different:

* Folders are synced, and a failed fsync is an error.
* A file may be read to its end while it is still written. It is removed when the next file begins.
  go-diskqueue finds no further record at the end of such a file and renames it to `.bad`.
* The recovery after a crash: see `disk_queue_recovery.py`.
* `delete` removes the files. In go-diskqueue it only closes them.

An empty message is refused by default (`min_msg_size=1`). Its record is four zero bytes, and a
power cut may leave zero bytes too.

Rejected: a lock file for each queue. It would be an additional file in a folder that nsqd may own
later, and an nsqd would not check it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os.path
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, Self

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.settings import check_type
from ..errors import DiskFull, ForeignDirectory, Locked, StoreFailed, Unreadable, is_full
from ..files import Files, call_in_forked, process_id
from .disk_queue_format import (
    BAD_SUFFIX,
    LENGTH_BYTES,
    NSQ_HEAD_BYTES,
    Meta,
    decode_length,
    encode_record,
)
from .disk_queue_recovery import QueueFiles, count_records, recover, write_meta


class OwnLock(threading.Condition):
    """A lock that only the process that created it can take.

    After a fork, both processes would have the same files open. Each would write at its own
    position and overwrite the data of the other. Also, if another thread held the lock at the fork,
    the lock would never be free in the new process.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self._pid = process_id()

    @property
    def owned(self) -> bool:
        return process_id() == self._pid

    def __enter__(self) -> bool:
        if not self.owned:
            raise StoreFailed(
                f"this disk queue belongs to process {self._pid}, from which this process was "
                "forked; open a new one"
            )
        return super().__enter__()


class Folders:
    """The folders with disk queues that this process has locked. A process has one such object.

    As in nsqd, the lock is one flock on the folder itself. All queues of the process in this folder
    share it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: dict[str, tuple[Files, int, set[str]]] = {}

    def take(self, files: Files, folder: str, name: str) -> str:
        """Lock `folder` for the queue `name`, and return the path to pass to `leave`.

        Raises `Locked` if another process holds the folder, or if this process has the queue open.
        """
        path = os.path.realpath(folder)
        with self._mutex:
            if path not in self._held:
                self._held[path] = (files, files.lock_folder(path), set())
            names = self._held[path][2]
            if name in names:
                raise Locked(f"the disk queue {name!r} in {folder} is already open in this process")
            names.add(name)
        return path

    def leave(self, files: Files, path: str, name: str) -> None:
        with self._mutex:
            _, fd, names = self._held[path]
            names.discard(name)
            if not names:
                del self._held[path]
                with contextlib.suppress(OSError):
                    files.close(fd)

    def forget(self) -> None:
        """Close the inherited locks in a process that was just forked.

        The parent keeps the locks. An inherited descriptor would keep a folder locked after the
        parent has ended.
        """
        self._mutex = threading.Lock()
        held, self._held = self._held, {}
        for files, fd, _ in held.values():
            with contextlib.suppress(OSError):
                files.close(fd)


FOLDERS: Final = Folders()
call_in_forked(FOLDERS.forget)


READ_AHEAD_BYTES: Final = 256 * 1024


class RecordReader:
    """Reads one file at a time, record by record, from a window of bytes that were read ahead.

    `size` is the size of a file to which nothing is written any more. If the queue still writes to
    the file, it sets `size` when it begins to write the next file.
    """

    def __init__(self, place: QueueFiles) -> None:
        self._place = place
        self._fd = -1
        self._window, self._window_at = b"", 0
        self.number = -1
        self.size = 0

    def open(self, number: int) -> None:
        """Open this file if it is not open yet. Raises `OSError`."""
        if self.number != number:
            self.close()
            self._fd = self._place.files.open_read(self._place.data_path(number))
            self.number = number
            self.size = self._place.files.size(self._fd)

    def close(self) -> None:
        if self.number >= 0:
            self._place.files.close(self._fd)
        self.number = -1
        self._window, self._window_at = b"", 0

    def record(self, position: int, end: int) -> bytes | None:
        """Return the payload of the record at `position`, or None if no record can be read there.

        `end` is the position where the file's records end.
        """
        try:
            head = self._read(position, LENGTH_BYTES, end)
            if len(head) < LENGTH_BYTES:
                return None
            size = decode_length(head)
            if not self._place.size_min <= size <= self._place.size_max:
                return None
            data = self._read(position + LENGTH_BYTES, size, end)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        return data if len(data) == size else None

    def _read(self, position: int, size: int, end: int) -> bytes:
        """Return bytes from the window. If they are not in it, read a new window from the file.

        A file only grows, so the bytes in the window stay correct.
        """
        size = max(0, min(size, end - position))
        start = position - self._window_at
        if start < 0 or start + size > len(self._window):
            files = self._place.files
            try:
                self._window = files.pread(self._fd, max(size, READ_AHEAD_BYTES), position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # Read less, because the disk error may be after these bytes.
                self._window = files.pread(self._fd, size, position)
            self._window_at, start = position, 0
        return self._window[start : start + size]


class RecordWriter:
    """Writes the last file, which it opens when it first needs it.

    A record is appended completely or not at all. `unsynced` is True if some bytes of the file are
    not synced.
    """

    def __init__(self, place: QueueFiles) -> None:
        self._place = place
        self._fd = -1
        self._named = True
        self.unsynced = False

    def append(self, meta: Meta, message: bytes) -> Meta:
        """Append a message and return the metadata after it.

        Raises `DiskFull` if the file is unchanged, and `StoreFailed` if its content is unknown.
        """
        record = encode_record(message)
        try:
            self._open(meta)
            self.unsynced = True
            self._place.files.writev(self._fd, [record], meta.write_position)
        except OSError as error:
            if not is_full(error):
                raise StoreFailed(
                    f"a write to {self._place.data_path(meta.write_file)} failed: {error}"
                ) from error
            self.cut(meta.write_file, meta.write_position)
            raise DiskFull(
                f"no space for {len(record)} bytes in {self._place.data_path(meta.write_file)}"
            ) from error
        return meta._replace(depth=meta.depth + 1, write_position=meta.write_position + len(record))

    def _open(self, meta: Meta) -> None:
        files = self._place.files
        if self._fd < 0:
            path = self._place.data_path(meta.write_file)
            self._named = files.exists(path)
            self._fd = files.open_append(path) if self._named else files.open_new(path)
        if not self._named:  # the next put tries this again if there is no space now
            # The name must be on disk before the metadata count the file. If the metadata named a
            # file that does not exist, messages that were read would look unread.
            files.sync_folder(self._place.folder)
            self._named = True

    def cut(self, number: int, position: int) -> None:
        """Cut the file at `position`, on disk too."""
        if self._fd < 0:
            return
        try:
            self._place.files.truncate(self._fd, position)
            self._place.files.sync(self._fd)
        except OSError as error:
            raise StoreFailed(
                f"the failed write to {self._place.data_path(number)} could not be undone: {error}"
            ) from error

    def sync(self) -> None:
        """Sync the file. After an `OSError`, the content of the disk is unknown."""
        if self.unsynced and self._fd >= 0:
            self._place.files.sync(self._fd)
        self.unsynced = False

    def close(self) -> None:
        if self._fd >= 0:
            self._place.files.close(self._fd)
            self._fd = -1


FILE_BYTES_MAX: Final = 100 * 1024 * 1024  # the default of nsqd's --max-bytes-per-file
# The default of nsqd's --max-msg-size, and the head that nsqd puts before a body.
MESSAGE_BYTES_MAX: Final = 1024 * 1024 + NSQ_HEAD_BYTES
NAME_CHARS_MAX: Final = 200  # file names have at most 255 bytes


class DiskQueue:
    """A queue of byte strings in a folder, in the format of NSQ's disk queue.

    The constructor opens an existing queue, or begins a new one at file 0. It raises
    `StorageError` if the folder does not exist, another process holds the queue, or the disk fails.

    `max_bytes_per_file`: before a file would exceed this size, a new file begins. `min_msg_size`
    and `max_msg_size` are sizes of messages, without the length field. `files` is for tests, and
    not promised to stay.
    """

    def __init__(
        self, path: str | os.PathLike[str], name: str, *, max_bytes_per_file: int = FILE_BYTES_MAX, min_msg_size: int = 1,
        max_msg_size: int = MESSAGE_BYTES_MAX, sync_every: int = 1, sync_timeout: float = 2.0, files: Files | None = None,
    ) -> None:  # fmt: skip
        if (
            not name
            or len(name) > NAME_CHARS_MAX
            or "/" in name
            or "\0" in name
            or name.startswith(".")
        ):
            text = (
                f"use 1 to {NAME_CHARS_MAX} characters, without '/' and without '.' at the "
                "beginning"
            )
            raise UsageError(
                E_BAD_ARGUMENT, f"{name[:80]!r} is not a valid name of a disk queue: {text}"
            )
        for argument, value in (
            ("max_bytes_per_file", max_bytes_per_file),
            ("min_msg_size", min_msg_size),
            ("max_msg_size", max_msg_size),
            ("sync_every", sync_every),
        ):
            check_type(argument, value)
        check_type("sync_timeout", sync_timeout, whole=False)
        if not 0 <= min_msg_size <= max_msg_size < 2**31:
            text = "must be 0 <= min_msg_size <= max_msg_size < 2 GiB"
            raise UsageError(
                E_BAD_ARGUMENT, f"message sizes {text}, not {min_msg_size} and {max_msg_size}"
            )
        if max_bytes_per_file < 1 or sync_every < 1 or sync_timeout <= 0:
            text = f"not {max_bytes_per_file}, {sync_every} and {sync_timeout}"
            raise UsageError(
                E_BAD_ARGUMENT,
                f"max_bytes_per_file, sync_every and sync_timeout must be above 0, {text}",
            )
        self._files = files or Files()
        self._place = QueueFiles(
            self._files, os.path.abspath(path), name, min_msg_size, max_msg_size
        )
        self._file_bytes_max = max_bytes_per_file
        self._sync_every = sync_every
        self._sync_timeout = sync_timeout
        self._writer = RecordWriter(self._place)
        self._reader = RecordReader(self._place)
        self._operations = 0  # the number of operations since the last commit
        self._first_operation = 0.0
        self._closed = ""
        self._lock = OwnLock()
        try:
            if not self._files.exists(self._place.folder):
                raise ForeignDirectory(
                    f"{self._place.folder} does not exist; create it, or mount its file system"
                )
            self._held = FOLDERS.take(self._files, self._place.folder, name)
            try:
                self._meta, self.report = recover(self._place)
                self._saved = self._meta if self._files.exists(self._place.meta_path) else None
            except BaseException:
                FOLDERS.leave(self._files, self._held, name)
                raise
        except OSError as error:
            raise StoreFailed(
                f"disk queue {name!r} in {self._place.folder} cannot be opened: {error}"
            ) from error
        self._ticker = (
            threading.Thread(target=self._tick, name=f"disk queue {name}", daemon=True)
            if sync_every > 1
            else None
        )
        if self._ticker is not None:
            self._ticker.start()

    # Writing

    def put(self, message: bytes) -> None:
        """Append a message. With `sync_every=1` it is on disk when this returns.

        Raises `UsageError` if the size is not allowed, and `DiskFull` if nothing was stored.
        """
        self.put_many((message,))

    def put_many(self, messages: Iterable[bytes]) -> int:
        """Append several messages with one sync at the end, and return their number.

        Raises `DiskFull` if the disk becomes full. The error says how many messages, the first
        ones, were stored.
        """
        messages = list(messages)
        for message in messages:
            self._place.check_size(message)
        full: DiskFull | None = None
        with self._lock:
            self._check()
            # `start` is the position to cut back to if there is no space. `kept` is the number of
            # messages that were committed before it.
            start, kept = (
                self._meta,
                0,
            )
            for number, message in enumerate(messages):
                try:
                    self._append(message)
                except DiskFull as error:
                    full = error
                stored = number + (full is None)
                if self._meta.write_file != start.write_file:
                    start, kept = (
                        self._meta._replace(
                            depth=self._meta.depth - (stored - number), write_position=0
                        ),
                        number,
                    )
                if full is not None:
                    break
            else:
                stored = len(messages)
            try:
                self._commit_if_due(stored)
            except DiskFull as error:
                full, stored = full or error, kept
                self._take_back(start)
            self._lock.notify_all()
        if full is not None:
            raise DiskFull(f"{full}; {stored} of {len(messages)} messages were stored") from full
        return len(messages)

    def _append(self, message: bytes) -> None:
        position = self._meta.write_position
        if position and position + LENGTH_BYTES + len(message) > self._file_bytes_max:
            self._roll()
        with self._fatal():
            self._meta = self._writer.append(self._meta, message)

    def _take_back(self, start: Meta) -> None:
        """Remove all messages after `start`, because there was no space for their metadata."""
        with self._fatal():
            self._writer.cut(start.write_file, start.write_position)
        self._meta = start

    def _roll(self) -> None:
        """Begin the next file. The old one is synced with its metadata first, as in NSQ."""
        old = self._meta
        new = old._replace(write_file=old.write_file + 1, write_position=0)
        if (old.read_file, old.read_position) == (old.write_file, old.write_position):
            # All messages of the old file were read.
            new = new._replace(read_file=new.write_file, read_position=0)
        self._commit(new)
        self._writer.close()
        if new.read_file != old.read_file:
            self._remove_read(old.read_file)
        elif self._reader.number == old.write_file:
            self._reader.size = old.write_position

    # Reading

    def get(self, timeout: float | None = 0.0) -> bytes | None:
        """Remove the oldest message and return it.

        Returns None if there is no message within `timeout` seconds. With None or `math.inf`, it
        waits without end. Raises `Unreadable` if the operating system cannot read it now. Nothing
        is lost then, and the next call tries again.
        """
        with self._lock:
            message = self._wait(timeout)
            if message is None:
                return None
            meta = self._meta
            position = meta.read_position + LENGTH_BYTES + len(message)
            self._meta = meta._replace(depth=meta.depth - 1, read_position=position)
            done = -1
            if meta.read_file < meta.write_file and position >= self._reader.size:
                done = meta.read_file
                self._meta = self._meta._replace(read_file=meta.read_file + 1, read_position=0)
            # Reads also work on a full disk. The next commit with enough space writes the position.
            with contextlib.suppress(DiskFull):
                self._commit_if_due(1, now=done >= 0)
            if done >= 0:
                self._remove_read(done)
            return message

    def peek(self, timeout: float | None = 0.0) -> bytes | None:
        """Return the oldest message without removing it.

        Returns None if there is no message within `timeout` seconds, see `get`.
        """
        with self._lock:
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> bytes | None:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            self._check()
            message = self._front()
            if message is not None or (left := deadline - time.monotonic()) <= 0:
                return message
            self._lock.wait(min(left, threading.TIMEOUT_MAX))

    def _front(self) -> bytes | None:
        """Return the record at the read position, or None if the queue is empty.

        If the file ends there, reading continues with the next file. If the file cannot be read
        there, it is renamed to `.bad`.
        """
        while self._meta[1:3] < self._meta[3:5]:
            meta = self._meta
            ongoing = meta.read_file == meta.write_file
            try:
                self._reader.open(meta.read_file)
                end = meta.write_position if ongoing else self._reader.size
                if meta.read_position == end:
                    self._next_file(bad=False)
                    continue
                message = self._reader.record(meta.read_position, end)
            except FileNotFoundError:
                message = None
            except OSError as error:
                raise Unreadable(
                    f"{self._place.data_path(meta.read_file)} cannot be read now: {error}"
                ) from error
            if message is not None:
                return message
            self._next_file(bad=True)
        return None

    def _next_file(self, *, bad: bool) -> None:
        """Leave the read file and continue with the next one.

        `bad` is True if the file is missing, or if a record in it cannot be read. In the second
        case it is renamed to `.bad`.
        """
        meta = self._meta
        self._reader.close()
        path = self._place.data_path(meta.read_file)
        try:
            new = meta._replace(read_file=self._place.following(meta), read_position=0)
            if meta.read_file == meta.write_file:
                self._writer.close()
                new = new._replace(write_file=new.read_file, write_position=0)
            if bad:
                self._set_aside(path)
                new = new._replace(depth=count_records(self._place, new))
        except OSError as error:
            raise self._fail(f"{path} could not be set aside: {error}") from error
        self._meta = new
        with contextlib.suppress(DiskFull):
            self._commit(new)
        if not bad:
            self._remove_read(meta.read_file)

    def _set_aside(self, path: str) -> None:
        files = self._place.files
        if not files.exists(path):
            self.report.notes.append(
                f"{path} is missing; its messages are lost, or were read before"
            )
            return
        aside = path + BAD_SUFFIX
        while files.exists(aside):
            aside += BAD_SUFFIX
        files.rename(path, aside)
        files.sync_folder(self._place.folder)
        self.report.notes.append(
            f"{path}: no message can be read at position {self._meta.read_position}; the file "
            f"is set aside as {aside}"
        )

    def __iter__(self) -> Iterator[bytes]:
        """Get messages until the queue is empty."""
        while (message := self.get()) is not None:
            yield message

    def depth(self) -> int:
        """Return the number of messages in the queue."""
        with self._lock:
            return self._meta.depth

    def __len__(self) -> int:
        return self.depth()

    def __bool__(self) -> bool:
        return True  # without this method, an empty queue would be False because of `__len__`

    # Committing

    def sync(self) -> None:
        """Sync all puts and gets so far to disk."""
        with self._lock:
            self._check()
            self._commit(self._meta)

    def _commit_if_due(self, operations: int, *, now: bool = False) -> None:
        if not self._operations:
            self._first_operation = time.monotonic()
        self._operations += operations
        if now or self._operations >= self._sync_every:
            self._commit(self._meta)
        elif self._ticker is not None:
            self._lock.notify_all()

    def _commit(self, meta: Meta) -> None:
        """Sync the data, then write the metadata.

        Raises `DiskFull` if the metadata are unchanged. Every other error ends the queue.
        """
        try:
            self._writer.sync()
        except OSError as error:
            raise self._fail(
                f"a sync of {self._place.data_path(self._meta.write_file)} failed: {error}"
            ) from error
        try:
            if meta != self._saved:
                write_meta(self._place, meta)
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"no space for {self._place.meta_path}: {error}") from error
            raise self._fail(f"{self._place.meta_path} could not be written: {error}") from error
        self._saved = self._meta = meta
        self._operations = 0

    def _tick(self) -> None:
        """Commit, in a separate thread, operations that have waited for `sync_timeout`."""
        with self._lock:
            while not self._closed:
                if not self._operations:
                    self._lock.wait()
                elif (left := self._first_operation + self._sync_timeout - time.monotonic()) > 0:
                    self._lock.wait(left)
                else:
                    self._first_operation = time.monotonic()
                    # The next call raises the error.
                    with contextlib.suppress(DiskFull, StoreFailed):
                        self._commit(self._meta)

    # Ends

    def empty(self) -> None:
        """Remove all messages.

        The removal is on disk when this returns. Writing continues in the next file, as in NSQ.
        """
        with self._lock:
            self._check()
            self._empty()

    def _empty(self) -> None:
        """Write the metadata, then remove the files.

        After a crash between the two, recovery treats the files as read and removes them.
        """
        old = self._meta
        self._reader.close()
        self._commit(Meta(0, old.write_file + 1, 0, old.write_file + 1, 0))
        self._writer.close()
        with contextlib.suppress(OSError):  # the next opening removes the files that are left
            for number in self._place.numbers():
                if number <= old.write_file:
                    self._remove_read(number)

    def delete(self) -> None:
        """Remove the queue with its files, and close it. Files that were renamed to `.bad` stay."""
        with self._lock:
            self._check()
            self._empty()
            try:
                for path in (self._place.data_path(self._meta.write_file), self._place.meta_path):
                    if self._files.exists(path):
                        self._files.remove(path)
                self._files.sync_folder(self._place.folder)
            except OSError as error:
                raise self._fail(f"{self._place.name} could not be removed: {error}") from error
            finally:
                self._release("the queue was deleted")

    def close(self) -> None:
        """Sync and close the queue.

        The queue is closed even if this raises an error. A second call does nothing, and neither
        does a call in a forked process.
        """
        if not self._lock.owned:
            return
        with self._lock:
            if self._held:
                try:
                    if not self._closed:
                        self._commit(self._meta)
                finally:
                    self._release("the queue is closed")
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join()

    def _release(self, why: str) -> None:
        self._closed = self._closed or why
        self._reader.close()
        self._writer.close()
        if self._held:
            FOLDERS.leave(self._files, self._held, self._place.name)
            self._held = ""
        self._lock.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove_read(self, number: int) -> None:
        """Remove a file that was read. If that fails, the next opening removes it."""
        self._reader.close()
        with contextlib.suppress(OSError):
            self._files.remove(self._place.data_path(number))

    def _check(self) -> None:
        if self._closed:
            raise StoreFailed(f"disk queue {self._place.name!r}: {self._closed}")

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """End the queue if the body of the `with` raises `StoreFailed`."""
        try:
            yield
        except StoreFailed as error:
            raise self._fail(str(error)) from error

    def _fail(self, text: str) -> StoreFailed:
        self._closed = self._closed or text
        return StoreFailed(text)
