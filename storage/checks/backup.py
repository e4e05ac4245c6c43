"""Backup: a folder with the files of a data directory, and a manifest that lists them.

The manifest has the name, length and checksum of each file.

    BACKUP/manifest.json      written last; JSON, with a checksum of its content
    BACKUP/data/              registry.json, topics/000001/..., as in a data directory

While a backup is being made, its name is BACKUP.partial. So a folder with the final name is always
complete. A backup must not be used as a data directory, because a broker would change it. `restore`
copies a backup to a new data directory and checks each byte.

Sealed chunks of an older backup of the same topics need not be copied again. They get a second name
(a hard link) in the new backup if both backups are in one file system. Two chunks count as the same
if their lengths, headers and footers agree. These contain the topic's uuid and a random seed.

The files of an open topic are first captured in a folder next to them, while the topic continues.
Files that never change again get hard links there. All other files are copied.

    DIR/backup/     like DIR itself: chunks, indexes, .bad files, topic, state/, state.snapshot,
                    delayed/, staging/

Storage makes the capture in three parts, each in the thread that owns the files. The state of all
topics is captured before any other part of any topic. The backup's process reads the capture.
Storage removes the capture when the backup requests it, when the backup's process has ended, or at
the topic's next start. Chunks are hard links, so no byte is copied while publishers wait. Retention
removes only the chunks' names in the topic's directory, and the names in the capture stay. Only the
newest chunk still grows. The backup copies the part of it that was synced before it was linked.

| part | when | reason |
|---|---|---|
| state | first, of all topics | the later parts contain the messages that it calls finished |
| delayed | after the state | messages that move later are in the log after the checkpoint |
| log | last, synced | it contains all messages to which the other parts refer |

The staged files are captured with the state, because one thread changes these files and their rows
in the state together. No chunk may be removed until the log is captured, because the state contains
the offset at which the log begins.

Rejected: LMDB's reader table (`lock=True`). With it, the copies would delay no commit. But it takes
time in each read and each start, and a backup is made perhaps once a day. Rejected too: reflinks,
because only two file systems have them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from ...transport.checksum import crc32c
from .. import documents
from ..delayed.delayed import DelayedStore
from ..delayed.delayed_recovery import MADE_SUFFIX, NOTE_BYTES_MAX, NOTE_NAME
from ..errors import Damaged, ForeignDirectory, newer
from ..files import TEMPORARY_SUFFIX, Files
from ..foreign import path_of
from ..log.log import Log
from ..log.log_format import (
    BACKUP_NAME,
    BAD_SUFFIX,
    CHUNK_HEADER_BYTES,
    CHUNK_SUFFIX,
    DELAYED_NAME,
    FOOTER_BYTES,
    IDENTITY_NAME,
    INDEX_SUFFIX,
    STAGING_NAME,
    STATE_NAME,
    chunk_name,
    parse_bad_name,
)
from ..state.snapshot import SNAPSHOT_NAME
from ..state.state import StateStore
from ..state.state_keeper import StateKeeper

VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
DATA_NAME: Final = "data"
PARTIAL_SUFFIX: Final = ".partial"
PIECE_BYTES: Final = 1024 * 1024
# If 256 MiB were synced at once, the broker's syncs would have to wait for it.
SYNC_BYTES: Final = 16 * PIECE_BYTES
MANIFEST_BYTES_MAX: Final = 1 << 30
DEPTH_MAX: Final = 8

Advance = Callable[[int], None]


class FileRow(NamedTuple):
    """A file of a backup. `path` is relative to `data/`, `crc` is the checksum of all its bytes.

    `linked` is True if it was not copied. It is never written to the manifest.
    """

    path: str
    bytes: int
    crc: int
    linked: bool = False


@dataclass(slots=True)
class Manifest:
    """The manifest of a backup.

    `topics` has the facts about each topic by its name: number, uuid, start and end (offsets).
    Start and end are None if the broker was not running.
    """

    zsq: str
    source: str
    uuid: str
    began_ns: int
    ended_ns: int = 0
    live: bool = True
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    files: list[FileRow] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    data = asdict(manifest) | {
        "files": [[row.path, row.bytes, f"{row.crc:08x}"] for row in manifest.files]
    }
    head = {"backup": "zsq", "version": VERSION, "checksum": _checksum(data)}
    return json.dumps(head | data, indent=1).encode()


def _checksum(data: Mapping[str, object]) -> str:
    return f"{crc32c(json.dumps(data, sort_keys=True, separators=(',', ':')).encode()):08x}"


def decode_manifest(raw: bytes, path: str) -> Manifest:
    """Decode a manifest.

    Raises `Damaged`, or `ForeignDirectory` if it is not a manifest or has an unknown version.
    """
    try:
        data = documents.loads(raw)
        if not isinstance(data, dict) or data.pop("backup", "") != "zsq":
            raise ForeignDirectory(f"{path} is not the manifest of a zsq backup")
        if (version := data.pop("version", None)) != VERSION:
            raise newer("the manifest", version, VERSION, path)
        if data.pop("checksum", "") != _checksum(data):
            raise Damaged(f"{path} is damaged: its checksum does not match")
        files = [
            FileRow(path_of(path_), int(size), int(crc, 16))
            for path_, size, crc in data.pop("files")
        ]
        return Manifest(**data, files=files)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None


def read_manifest(files: Files, backup: str) -> Manifest:
    """Read the manifest of a backup.

    Raises `ForeignDirectory` if there is none, `Damaged` if it is damaged, or `OSError`.
    """
    path = f"{backup}/{MANIFEST_NAME}"
    if not files.exists(path):
        what = (
            f"{backup} is an unfinished backup"
            if backup.endswith(PARTIAL_SUFFIX)
            else f"{backup} is not a zsq backup"
        )
        raise ForeignDirectory(f"{what}: it has no {MANIFEST_NAME}")
    return decode_manifest(files.read_file(path, MANIFEST_BYTES_MAX), path)


def walk(
    files: Files, folder: str, but: Collection[str] = (), depth: int = DEPTH_MAX
) -> Iterator[str]:
    """Yield the paths of all files below `folder`, relative to it.

    Names in `but` are left out if they are directly in `folder`.
    """
    for name in files.list(folder):
        if name in but:
            continue
        if files.is_folder(f"{folder}/{name}"):
            if depth:
                yield from (
                    f"{name}/{inner}" for inner in walk(files, f"{folder}/{name}", depth=depth - 1)
                )
        else:
            yield name


class Writer:
    """Writes files into a folder, and syncs each of them. `finish` syncs the folders.

    `base` is the path of an older backup, and its manifest.
    """

    def __init__(
        self, files: Files, folder: str, advance: Advance, base: tuple[str, Manifest] | None = None
    ) -> None:
        self.rows: list[FileRow] = []
        self._files = files
        self._folder = folder
        self._advance = advance
        self._made: set[str] = set()
        self._base = f"{base[0]}/{DATA_NAME}" if base is not None else ""
        self._known = {row.path: row for row in base[1].files} if base is not None else {}

    def copy(
        self, source: str, path: str, max_bytes: int | None = None, *, cold: bool = False
    ) -> FileRow:
        """Copy a file to `path`, relative to the folder.

        With `max_bytes`, exactly that many bytes are copied. Raises `Damaged` if the source has
        fewer. `cold` is True if the source will not be read again soon.
        """
        self._make_folders(path)
        row = None if max_bytes is not None else self._known_row(source, path)
        if row is None:
            row = FileRow(
                path,
                *copy_file(
                    self._files,
                    source,
                    f"{self._folder}/{path}",
                    max_bytes,
                    self._advance,
                    cold=cold,
                ),
            )
        self.rows.append(row)
        return row

    def write(self, path: str, data: bytes) -> None:
        self._make_folders(path)
        self._files.write_file(f"{self._folder}/{path}", data)
        self.rows.append(FileRow(path, len(data), crc32c(data)))

    def drop(self, path: str) -> None:
        """Remove a folder with all files in it, and their rows."""
        if self._files.exists(f"{self._folder}/{path}"):
            self._files.remove_tree(f"{self._folder}/{path}")
        self._made = {
            made for made in self._made if made != path and not made.startswith(f"{path}/")
        }
        self.rows = [row for row in self.rows if not row.path.startswith(f"{path}/")]

    def finish(self) -> None:
        for path in ("", *sorted(self._made)):
            self._files.sync_folder(f"{self._folder}/{path}".rstrip("/"))

    def _make_folders(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder not in self._made:
                if not self._files.exists(f"{self._folder}/{folder}"):
                    self._files.make_folder(f"{self._folder}/{folder}")
                self._made.add(folder)

    def _known_row(self, source: str, path: str) -> FileRow | None:
        """Link the file from the older backup and return its row.

        Returns None if the older file is not the same sealed chunk, or could not be linked.
        """
        row = self._known.get(path)
        old = f"{self._base}/{path}"
        if row is None or not path.endswith(CHUNK_SUFFIX):
            return None
        try:
            if not self._files.size_of(source) == self._files.size_of(
                old
            ) == row.bytes or not self._same_ends(source, old, row.bytes):
                return None
            self._files.link(old, f"{self._folder}/{path}")
        except OSError:
            return None
        self._advance(row.bytes)
        return row._replace(linked=True)

    def _same_ends(self, one: str, other: str, size: int) -> bool:
        """Return True if both files have the same header (uuid and seed) and the same footer.

        Only a sealed chunk has a footer.
        """
        ends = [
            (
                _read(self._files, path, 0, CHUNK_HEADER_BYTES),
                _read(self._files, path, size - FOOTER_BYTES, FOOTER_BYTES),
            )
            for path in (one, other)
        ]
        return (
            size > CHUNK_HEADER_BYTES + FOOTER_BYTES
            and ends[0] == ends[1]
            and ends[0][1].startswith(b"ZSQF")
        )


def _read(files: Files, path: str, position: int, size: int) -> bytes:
    fd = files.open_read(path)
    try:
        return files.pread(fd, size, max(position, 0))
    finally:
        files.close(fd)


def copy_file(
    files: Files,
    source: str,
    target: str,
    max_bytes: int | None,
    advance: Advance,
    *,
    cold: bool = False,
) -> tuple[int, int]:
    """Copy a file to a new one, sync it, and return the length and checksum of the read bytes.

    Raises `Damaged` if the source is shorter than `max_bytes`.
    """
    reading = files.open_read(source)
    try:
        writing = files.open_new(target)
        try:
            position = crc = 0
            while piece := files.pread(
                reading,
                PIECE_BYTES if max_bytes is None else min(PIECE_BYTES, max_bytes - position),
                position,
            ):
                files.writev(writing, [piece], position)
                crc = crc32c(piece, crc)
                position += len(piece)
                if position % SYNC_BYTES == 0:
                    files.sync(writing)
                advance(len(piece))
            if max_bytes is not None and position < max_bytes:
                raise Damaged(
                    f"{source} has only {position} bytes, but {max_bytes} bytes of it were synced"
                )
            files.sync(writing)
            files.advise_done(writing, 0, 0)
        finally:
            files.close(writing)
        if cold:
            files.advise_done(reading, 0, 0)
        return position, crc
    finally:
        files.close(reading)


def check_file(files: Files, path: str, row: FileRow, advance: Advance) -> str:
    """Check a file of a backup. Return a sentence about its defect, or ""."""
    try:
        fd = files.open_read(path)
    except OSError as error:
        return f"{row.path} cannot be opened: {error.strerror}"
    try:
        position = crc = 0
        while piece := files.pread(fd, PIECE_BYTES, position):
            crc = crc32c(piece, crc)
            position += len(piece)
            advance(len(piece))
        files.advise_done(fd, 0, 0)
    except OSError as error:
        return f"{row.path} cannot be read: {error.strerror}"
    finally:
        files.close(fd)
    if position != row.bytes:
        return f"{row.path} has {position} bytes instead of {row.bytes}"
    return f"{row.path} is damaged: its checksum does not match" if crc != row.crc else ""


class LogTaken(NamedTuple):
    """The part of the log to capture.

    `newest_bytes` is the number of bytes to copy from the newest chunk. `end` is the offset after
    these bytes.
    """

    start: int
    end: int
    bases: tuple[int, ...]
    newest_bytes: int


def capture_state(files: Files, directory: str, state: StateStore, keeper: StateKeeper) -> None:
    """Capture state and staged files into a new folder, in the state's thread.

    If this raises `OSError` or `StorageError`, the capture must not be used.
    """
    folder = f"{directory}/{BACKUP_NAME}"
    files.make_folder(folder)
    staging = f"{directory}/{STAGING_NAME}"
    if files.exists(staging):
        files.make_folder(f"{folder}/{STAGING_NAME}")
        for name in files.list(staging):
            _link(files, f"{staging}/{name}", f"{folder}/{STAGING_NAME}/{name}")
    # The snapshot must not be of a later commit than the copied state. Otherwise a start would
    # assume that the copied state has lost commits.
    keeper.write()
    for name in (SNAPSHOT_NAME, IDENTITY_NAME, DELAYED_NAME + MADE_SUFFIX):
        _link(files, f"{directory}/{name}", f"{folder}/{name}")
    files.make_folder(f"{folder}/{STATE_NAME}")
    state.copy(f"{folder}/{STATE_NAME}")


def capture_delayed(files: Files, directory: str, delayed: DelayedStore) -> None:
    """Capture the delayed messages, in their thread."""
    folder = f"{directory}/{BACKUP_NAME}/{DELAYED_NAME}"
    files.make_folder(folder)
    delayed.copy(folder)
    files.note(
        f"{folder}/{NOTE_NAME}", files.read_note(f"{delayed.path}/{NOTE_NAME}", NOTE_BYTES_MAX)
    )
    _link(
        files,
        f"{directory}/{DELAYED_NAME}{MADE_SUFFIX}",
        f"{directory}/{BACKUP_NAME}/{DELAYED_NAME}{MADE_SUFFIX}",
    )


def sync_log(files: Files, directory: str, log: Log) -> LogTaken:
    """Sync the log, in its thread, so that all written bytes are on disk.

    Raises `StoreFailed` or `OSError`.
    """
    end = log.sync()
    remote = log.reader.remote  # a backup names these, and the bucket has them
    bases = tuple(base for base in log.chunks if base not in remote)
    return LogTaken(log.start, end, bases, files.size_of(f"{directory}/{chunk_name(bases[-1])}"))


def capture_log(files: Files, directory: str, taken: LogTaken) -> int:
    """Capture the chunks, the indexes of sealed chunks, and the `.bad` files.

    Returns the number of chunks that are missing in the topic. The caller must make sure that none
    of these files is removed during the call.
    """
    folder = f"{directory}/{BACKUP_NAME}"
    missing = 0
    for base in taken.bases:
        name = chunk_name(base)
        missing += not _link(files, f"{directory}/{name}", f"{folder}/{name}")
        if base != taken.bases[-1]:
            index = name.rpartition(".")[0] + INDEX_SUFFIX
            _link(files, f"{directory}/{index}", f"{folder}/{index}")
    for name in files.list(directory):
        if parse_bad_name(name) is not None or (
            name.startswith(f"{DELAYED_NAME}-") and name.endswith(BAD_SUFFIX)
        ):
            _link(files, f"{directory}/{name}", f"{folder}/{name}")
    return missing


def drop_capture(files: Files, directory: str) -> None:
    """Remove the capture after the backup.

    This renames it first, so a backup that still copies from it never reads an incomplete capture.
    """
    folder = f"{directory}/{BACKUP_NAME}"
    going = folder + TEMPORARY_SUFFIX
    if files.exists(going):
        files.remove_tree(going)
    if files.exists(folder):
        files.rename(folder, going)
        files.remove_tree(going)


def is_captured(files: Files, directory: str) -> bool:
    """Return True if a capture, or a part of one, still exists."""
    return any(
        files.exists(f"{directory}/{BACKUP_NAME}{suffix}") for suffix in ("", TEMPORARY_SUFFIX)
    )


def capture_bytes(files: Files, directory: str) -> int:
    """Return the bytes that the copies of a capture will take. Hard links take none."""
    found = 0
    for name in (STATE_NAME, DELAYED_NAME):
        with contextlib.suppress(FileNotFoundError):
            found += files.size_of(f"{directory}/{name}/data.mdb")
    return found


def _link(files: Files, old: str, new: str) -> bool:
    """Link a file and return True. Return False if it does not exist.

    If the new name exists already, it is a link to the same file.
    """
    try:
        files.link(old, new)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    return True
