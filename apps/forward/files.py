"""Files: write what a channel gets to files of a directory, which are rolled by size and by time.

A message is finished after its bytes are on disk. A killed run writes again only what was not
finished. Rejected: exactly once by offsets in the names. Several processes share a channel, so one
file has no range of offsets of its own. Lines of JSON have the offset, and a reader can leave out
what it has.

A file that is being written ends in `.part`, and its process holds its lock. It gets its name when
it is complete. A `.part` file without a process was left by a killed one: the next run cuts what
was torn, and gives it its name.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ...transport.client.blocking.client import Batch, Consumer
from ...transport.client.core.message import StoredMessage
from ...transport.errors import E_EXISTS, UsageError, ZsqError
from ...transport.message_object import as_object
from ...transport.names import base_of, part_name
from ...transport.system import node_name
from ..local_files import InUse, locked, sync_file, sync_folder
from .mirror import REST_MAX_S, REST_S, Say, Stop

PART: Final = ".part"
ROLL_BYTES: Final = 256 * 1024 * 1024
ROLL_S: Final = 3600.0
READY: Final = 10_000
GATHER_S: Final = 0.2  # seconds for which messages are gathered, so that they share one sync
GATHER_GAP_S: Final = 0.02  # seconds without a message after which no more are waited for
GATHER_COUNT: Final = READY // 2  # the channel sends the other half while these are written
GATHER_BYTES: Final = 4 * 1024 * 1024
TOUCH_S: Final = 10.0  # seconds between extensions of the leases while the disk refuses
READ_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"(.+)\.\d{8}T\d{6}Z-.*\.part")
NAMES_MAX: Final = 1000  # attempts to find a name that no other process uses


@dataclass(frozen=True)
class FilePlan:
    """The lines to write, their source, and the directory.

    `lines`: "body" or "json". `roll_bytes`, `roll_s`: the size, as it is on disk, and the age at
    which a file is complete.
    """

    url: str
    topic: str
    channel: str
    folder: Path
    lines: str = "body"
    is_gzip: bool = False
    roll_bytes: int = ROLL_BYTES
    roll_s: float = ROLL_S
    sample: int = 0
    timeout: float = 30.0
    followed_s: float | None = None
    idle_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        return (".jsonl" if self.lines == "json" else ".log") + (".gz" if self.is_gzip else "")


@dataclass
class FileReport:
    """The result of a run. `files`: how many are complete."""

    messages: int = 0
    files: int = 0

    def note_complete(self, path: Path) -> None:
        self.files += 1


def write_files(
    plan: FilePlan, stopping: Stop, say: Say, advance: Callable[[int], None] = lambda done: None
) -> FileReport:
    """Write until the flag is set, or until no message came for `idle_s`."""
    if plan.folder.exists() and not plan.folder.is_dir():
        raise UsageError(E_EXISTS, f"{plan.folder} is no directory")
    plan.folder.mkdir(parents=True, exist_ok=True)
    report = FileReport(files=len(recover(plan.folder, plan.topic, say)))
    consumer = Consumer(
        plan.topic,
        plan.channel,
        url=plan.url,
        ready=READY,
        sample_rate=plan.sample,
        timeout=plan.followed_s,
        **plan.settings,
    )
    try:
        with stopping.interruptible():
            consumer.subscribe(plan.timeout)
        with contextlib.closing(_Writer(plan, report, stopping, say)) as writer:
            _write(consumer, writer, plan, stopping, advance)
            consumer.flush(plan.timeout)
    except KeyboardInterrupt:
        if report.messages:
            raise  # a second signal
    finally:
        consumer.close(plan.timeout)
    return report


def _write(
    consumer: Consumer,
    writer: _Writer,
    plan: FilePlan,
    stopping: Stop,
    advance: Callable[[int], None],
) -> None:
    busy_s = time.monotonic()
    while not stopping.is_set():
        batches = gather(consumer, GATHER_S)
        if batches:
            busy_s = time.monotonic()
            if not writer.write(batches):
                return
            advance(sum(map(len, batches)))
        elif plan.idle_s is not None and time.monotonic() - busy_s >= plan.idle_s:
            return
        writer.roll_due()


def gather(consumer: Consumer, wait_s: float) -> list[Batch]:
    """Receive deliveries until the wait is over, or until there is enough for one sync.

    It does not wait for what cannot come: a channel sends no more than `READY` messages before some
    are finished, and one that is ordered only one of each key.
    """
    batches: list[Batch] = []
    count = size = 0
    until_s = time.monotonic() + wait_s
    while size < GATHER_BYTES and count < GATHER_COUNT:
        left_s = until_s - time.monotonic()
        batch = consumer.receive_batch(min(left_s, GATHER_GAP_S) if batches else left_s)
        if batch is None:
            break
        batches.append(batch)
        count += len(batch)
        size += batch.block.length
        if left_s <= 0:
            break
    return batches


class _Writer:
    """The open files, one for the topic or for each of its parts."""

    def __init__(self, plan: FilePlan, report: FileReport, stopping: Stop, say: Say) -> None:
        self._plan = plan
        self._report = report
        self._stopping = stopping
        self._say = say
        self._files: dict[str, RollingFile] = {}

    def write(self, batches: Sequence[Batch]) -> bool:
        """Write the batches to disk, and finish them. Return False if the flag was set before.

        While the disk refuses, this tries again. The messages keep their leases meanwhile. If they
        went back to the channel, each try would use one of their attempts.
        """
        lines: dict[str, list[bytes]] = {}
        for batch in batches:
            part = batch.delivery.session.part
            topic = self._plan.topic
            name = topic if part is None else part_name(base_of(topic), part)
            lines.setdefault(name, []).extend(lines_of(batch, base_of(topic), self._plan.lines))
        rest_s, touched_s, is_told = REST_S, time.monotonic(), False
        while lines:
            name = next(iter(lines))
            try:
                self._file(name).append(lines[name])
            except OSError as error:
                if not is_told:
                    self._say(f"waiting: {self._plan.folder}: {error.strerror or error}")
                    is_told = True
                if self._stopping.wait(rest_s):
                    for batch in batches:  # the end of the command uses no attempt
                        with contextlib.suppress(ZsqError):
                            batch.defer()
                    return False
                rest_s = min(REST_MAX_S, 2 * rest_s)
                if time.monotonic() - touched_s >= TOUCH_S:
                    touched_s = time.monotonic()
                    for batch in batches:
                        with contextlib.suppress(ZsqError):  # their leases have ended
                            batch.touch()
                continue
            del lines[name]
        if is_told:
            self._say("going on")
        for batch in batches:
            batch.finish()
            self._report.messages += len(batch)
        return True

    def _file(self, name: str) -> RollingFile:
        if name not in self._files:
            plan = self._plan
            self._files[name] = RollingFile(
                plan.folder, name, plan.suffix, plan.roll_bytes, plan.roll_s, is_gzip=plan.is_gzip
            )
            self._files[name].on_complete = self._report.note_complete
        return self._files[name]

    def roll_due(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # it is tried again
                file.roll_if_due()

    def close(self) -> None:
        for file in self._files.values():
            file.complete()


def lines_of(batch: Batch, topic: str, kind: str) -> list[bytes]:
    """Return one line for each message, without its line end. Pure."""
    if kind == "body":
        return batch.bodies
    rows = []
    for message in batch.messages():
        stored = StoredMessage(
            topic,
            message.offset,
            message.timestamp_ns,
            message.body,
            message.key,
            message.tag,
            message.headers,
        )
        place = {"id": message.id} | ({} if message.part is None else {"part": message.part})
        rows.append(json.dumps(as_object(stored) | place).encode())
    return rows


class RollingFile:
    """The file of one log that is being written, and those before it.

    `append` writes lines to disk, all or none of them. A file is made for its first line, so no
    file is empty.
    """

    def __init__(
        self,
        folder: Path,
        log: str,
        suffix: str,
        roll_bytes: int,
        roll_s: float,
        *,
        is_gzip: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._log = log
        self._suffix = suffix
        self._roll_bytes = roll_bytes
        self._roll_s = roll_s
        self._is_gzip = is_gzip
        self._clock = clock
        self._file: io.FileIO | None = None
        self._path = Path()
        self._lock = contextlib.ExitStack()
        self._size = 0  # of what is on disk; the file may have torn bytes behind it
        self._opened_s = 0.0
        self._names_of = ""  # the second of the last name, and how many names it has
        self._names = 0
        self.on_complete: Callable[[Path], object] = lambda path: None

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines, and sync them. After an error, none of them counts."""
        self.roll_if_due()
        data = b"".join(line + b"\n" for line in lines)
        if self._is_gzip:
            # A member of its own for each sync: whatever is torn behind it, the file can be read.
            data = gzip.compress(data, 6, mtime=0)
        file = self._file or self._open()
        if file.tell() != self._size:  # an earlier write has failed
            file.seek(self._size)
            file.truncate()
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
        self._check_name(file)
        self._size += len(data)

    def _check_name(self, file: io.FileIO) -> None:
        """Raise `OSError` if the file no longer has its name, and begin another one.

        An editor that saves the file, or a user who removes it, would otherwise take the messages
        with it that are written later.
        """
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                return
        except FileNotFoundError:
            pass
        file.close()
        self._lock.close()
        self._file = None
        raise FileNotFoundError(errno.ENOENT, "it was removed or replaced by another program")

    def roll_if_due(self) -> None:
        """Complete the file if it is large or old enough."""
        if self._file is not None and (
            self._size >= self._roll_bytes or self._clock() - self._opened_s >= self._roll_s
        ):
            self.complete()

    def complete(self) -> None:
        """Give the file its name. The next line begins another one."""
        file = self._file
        if file is None:
            return
        if file.tell() != self._size:
            file.truncate(self._size)
            os.fsync(file.fileno())
        file.close()
        self._file = None
        self._lock.close()  # Windows renames no file that is open
        path = self._path.with_suffix("")
        if not self._size:  # its first write has failed; an empty file is no file of gzip
            self._path.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):  # another process took it for one left behind
            os.replace(self._path, path)
        sync_folder(self._folder)
        self.on_complete(path)

    def _open(self) -> io.FileIO:
        now_s = self._clock()
        at = f"{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%S}"
        host = "".join(c if c.isalnum() or c in "-_" else "-" for c in node_name())
        if at != self._names_of:
            self._names_of, self._names = at, 0
        for number in range(self._names, self._names + NAMES_MAX):
            name = f"{self._log}.{at}Z-{host}-{os.getpid()}-{number}{self._suffix}"
            path = self._folder / (name + PART)
            if path.exists() or (self._folder / name).exists():  # in the order of its life
                continue
            with contextlib.suppress(InUse):
                self._lock.enter_context(locked(path))
                # A complete file may have been moved away. Its name is not used again, because the
                # next one would replace it there.
                self._names = number + 1
                break
        else:
            raise FileExistsError(f"no name is free in {self._folder}")
        file = io.FileIO(path, "r+")
        sync_folder(self._folder)
        self._file, self._path, self._size, self._opened_s = file, path, 0, now_s
        return file


def recover(folder: Path, topic: str, say: Say) -> list[Path]:
    """Give their names to the files that killed processes left. Return the names.

    The torn end of a file is cut off. Its messages were not finished, so they come again.
    """
    recovered: list[Path] = []
    for path in sorted(folder.glob(f"*{PART}")):
        match = _NAME.fullmatch(path.name)
        if match is None or base_of(match[1]) != base_of(topic):
            continue
        with contextlib.suppress(InUse, FileNotFoundError), locked(path):
            size = complete_size(path)
            if size != path.stat().st_size:
                os.truncate(path, size)
            if not size:
                path.unlink()
                continue
            sync_file(path)
            final = path.with_suffix("")
            os.replace(path, final)
            recovered.append(final)
            say(f"{final}: completed, a killed process had left it")
    if recovered:
        sync_folder(folder)
    return recovered


def complete_size(path: Path) -> int:
    """Return how many bytes of the file are complete: lines, or members of gzip."""
    with path.open("rb") as file:
        if path.with_suffix("").suffix == ".gz":
            return _complete_members(file)
        end = size = 0
        while data := file.read(READ_BYTES):
            at = data.rfind(b"\n")
            end = size + at + 1 if at >= 0 else end
            size += len(data)
        return end


def _complete_members(file: io.BufferedReader) -> int:
    end = 0
    while True:
        file.seek(end)
        member = zlib.decompressobj(wbits=31)
        size = 0
        while not member.eof:
            data = file.read(READ_BYTES)
            if not data:
                return end
            try:
                member.decompress(data)
            except zlib.error:
                return end
            size += len(data) - len(member.unused_data)
        end += size
