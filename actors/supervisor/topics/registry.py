"""The registry: all topics with their directories, and the last offsets of deleted topics.

It is one small file that is always replaced as a whole. `registry_format.py` defines its bytes. A
topic's `retention` contains only what was set for this topic. Everything else follows the broker's
settings. A row is `new` until its directory is known to exist. Then it is `live`, and during a
deletion it is `deleting`. A topic that is created again gets a new uuid and begins at the offset
where the deleted topic of that name ended, so offsets are never used again. Rows of `#ephemeral`
topics are never written. Such topics begin at offset 0 each time.

The content before the last change stays in `registry.json.old`. `zsq fsck --repair` rebuilds a lost
registry from that copy and from the topics' identity files (`data_dir.py`). A start never uses the
copy by itself. The copy may lack a topic whose publishes were acknowledged, and a person should see
that a disk loses bytes.

`#ephemeral` topics are in a folder of this broker on the machine's memory file system. The folder
is removed at the broker's end. It is created with the first such topic. Its random name is written
to DATA_DIR/memory.json before the folder is made, so that the next start finds what a killed broker
left. A lock file in the folder shows that the folder is in use. The broker holds this lock as long
as it runs. A copy of the data directory names the same folder, and a broker on the copy must not
remove it while the original runs.

If no memory file system is usable, these topics are in DATA_DIR/memory. That is slower, and they
are removed at the broker's end too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import uuid
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ....storage.errors import ForeignDirectory, Locked, is_full
from ....storage.files import TEMPORARY_SUFFIX, Files
from ....transport.errors import E_DISK_FULL, E_INTERNAL, Refused
from ....transport.names import is_ephemeral
from ....transport.settings import MAX_BYTES_MIN
from ...runtime.extensions import filled
from ...settings import options
from .registry_format import (
    TAKING,
    Content,
    LocalParts,
    RegistryDamaged,
    TopicRow,
    decode,
    encode,
)

__all__ = ["OLD_NAME", "REGISTRY_NAME", "Content", "Registry", "RegistryDamaged", "TopicRow"]


POINTER_NAME: Final = "memory.json"
FOLDER_NAME: Final = "memory"  # this folder is in the data directory
SHM: Final = Path("/dev/shm")
_MOUNTS: Final = Path("/proc/self/mounts")
_MEMORY_TYPES: Final = ("tmpfs", "ramfs")
_NAME: Final = re.compile(r"zsq-[0-9a-f]{32}", re.ASCII)
_POINTER_BYTES_MAX: Final = 4096


class MemoryRoot:
    """The folder of `#ephemeral` topics.

    Only the supervisor uses it, under the data directory's lock. `shm` is where a memory file
    system may be mounted.
    """

    def __init__(
        self, files: Files, data_dir: Path, shm: Path = SHM, mounts: Path = _MOUNTS
    ) -> None:
        self._files = files
        self._pointer = data_dir / POINTER_NAME
        self._fallback = data_dir / FOLDER_NAME
        self._shm = shm
        self._mounts = mounts
        self._root: Path | None = None
        self._lock = -1

    def folder(self, name: str) -> str:
        """Return the path of a topic, and make the root if it does not exist.

        Raises `OSError` if that fails.
        """
        return str(self._made() / name)

    def max_bytes(self) -> int:
        """Return how many bytes of unfinished messages a topic may hold."""
        share = self._files.total_bytes(str(self._made())) // options.EPHEMERAL_SHARE
        return max(MAX_BYTES_MIN, min(options.EPHEMERAL_BYTES_MAX, share))

    def _made(self) -> Path:
        if self._root is not None:
            return self._root
        root = self._shm / f"zsq-{os.urandom(16).hex()}" if self._usable() else self._fallback
        if root == self._fallback:
            least = options.EPHEMERAL_SHM_BYTES_MIN // (1024 * 1024)
            text = (
                "%s is not a writable memory file system of at least %d MiB: ephemeral topics "
                "are stored in %s until the broker ends"
            )
            log.warning(text, self._shm, least, root)
        else:
            self._pointer.write_text(json.dumps({"memory": str(root)}))
        root.mkdir(mode=0o700)
        self._lock = self._files.lock(str(root / "lock"))
        self._root = root
        return root

    def _usable(self) -> bool:
        if not os.access(self._shm, os.W_OK | os.X_OK):
            return False
        mounted = [line.split() for line in self._mounts.read_text().splitlines()]
        in_memory = any(
            line[1] == str(self._shm) and line[2] in _MEMORY_TYPES
            for line in mounted
            if len(line) > 2
        )
        return (
            in_memory and self._files.total_bytes(str(self._shm)) >= options.EPHEMERAL_SHM_BYTES_MIN
        )

    def close(self) -> None:
        """Remove the folder. All processes must have ended."""
        root, self._root = self._root, None
        if root is not None:
            self._remove(root)
            self._files.close(self._lock)
        self._pointer.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what a killed broker of this data directory left. This is called at a start."""
        left = self._named()
        if left is not None and self._is_ours(left):
            try:
                lock = self._files.lock(str(left / "lock"))
            except Locked as error:
                log.warning(
                    (
                        "%s is not removed: process %d, a broker on a copy of this data directory, "
                        "uses it"
                    ),
                    left,
                    error.pid,
                )
            except OSError as error:
                log.error(
                    "cannot remove %s, which a killed broker left: %s; remove it by hand",
                    left,
                    error,
                )
            else:
                self._remove(left)
                self._files.close(lock)
        self._pointer.unlink(missing_ok=True)
        if self._fallback.is_dir():
            self._remove(self._fallback)

    def _named(self) -> Path | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return Path(
                json.loads(self._files.read_note(str(self._pointer), _POINTER_BYTES_MAX))["memory"]
            )
        return None

    def _is_ours(self, path: Path) -> bool:
        """Return True if place, name and owner of a path are those of our folders.

        Without this check an edited pointer file could remove other files.
        """
        if path.parent != self._shm or not _NAME.fullmatch(path.name):
            return False
        try:
            status = path.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()

    def _remove(self, root: Path) -> None:
        try:
            self._files.remove_tree(str(root))
        except OSError as error:
            log.error(
                "cannot remove the files of ephemeral topics in %s: %s; remove them by hand",
                root,
                error,
            )


log = logging.getLogger("zsq")

REGISTRY_NAME: Final = "registry.json"
OLD_NAME: Final = "registry.json.old"
TEMPORARY_NAME: Final = "tmp"  # where no usual directory for temporary files can be written
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
# Names that a data directory without a registry may contain: an earlier start was interrupted, or
# zsqd runs there.
_OURS: Final = frozenset(
    {
        "lock",
        "run",
        "run.json",
        "reserve",
        TEMPORARY_NAME,
        "log",
        "zsqd.json",
        "zsqd.lock",
        "topics",
        "trash",
        f"{REGISTRY_NAME}.tmp",
        POINTER_NAME,
        FOLDER_NAME,
    }
)


class Registry:
    """The topics and the file that lists them.

    Only the supervisor uses it, under the data directory's lock.
    """

    def __init__(self, files: Files, data_dir: Path, node_id: int) -> None:
        self._files = files
        self._data_dir = data_dir
        self._path = str(data_dir / REGISTRY_NAME)
        self._written = b""
        self._doubtful = False
        self._is_behind = False  # the file says "new" of a topic that is created
        """True if the file may contain a refused change instead of `_written`."""
        self._going: dict[str, TopicRow] = {}
        """Deleted topics whose files could not be moved yet.

        They stay in the file, so that the next start removes them.
        """
        self._left = False
        """True if files of deleted topics are left."""
        self.memory = MemoryRoot(files, data_dir)
        self.version = 0
        """The number of changes that were written since the start."""
        self.take(Content(uuid.uuid4().hex, node_id))

    def take(self, content: Content) -> None:
        self.node = content.node
        self.uuid = content.uuid
        self.next_number = content.next_number
        self.topics = content.topics
        self.ended = content.ended
        self.imports = content.imports
        self.bucket = content.bucket
        self.parted = content.parted

    def open(self) -> None:
        """Read the registry, or create one in an empty directory.

        A directory with other files is refused.
        """
        present = set(self._files.list(str(self._data_dir)))
        if REGISTRY_NAME not in present:
            self._begin(present)
            return
        content = self.load()
        if not content.checked:
            log.warning(
                ("%s has no checksum (it was edited by hand): accepted, a checksum is added"),
                self._path,
            )
            self.save()
        # Empty folders may be made again, because copies often lack them. But if the registry has a
        # live topic and `topics` is missing, the topic's files are lost, and `topics` must not be
        # made.
        nothing_lost = all(row.state != "live" for row in self.topics.values())
        for folder in ("trash", *(["topics"] if nothing_lost else [])):
            if folder not in present:
                self._files.make_folder(str(self._data_dir / folder))

    def _begin(self, present: set[str]) -> None:
        if OLD_NAME in present or (
            "topics" in present and self._files.list(str(self._data_dir / "topics"))
        ):
            raise ForeignDirectory(
                f"{self._data_dir} has lost its {REGISTRY_NAME}: restore it from a backup, or "
                "rebuild it from the other files with"
                f" `zsq fsck {self._data_dir} --repair`"
            )
        for name, kind in ChainMap(*filled("DIRECTORIES")).items():
            if name in present:
                raise ForeignDirectory(
                    f"{self._data_dir} {kind}, or choose another directory for a new broker"
                )
        if present - _OURS:
            raise ForeignDirectory(
                f"{self._data_dir} is not empty and has no {REGISTRY_NAME}: it is not a ZSQ "
                "data directory,"
                " or has lost that file; choose another directory, or restore the file from a "
                "backup"
            )
        for folder in ("topics", "trash"):
            if folder not in present:
                self._files.make_folder(str(self._data_dir / folder))
        self.save()

    def load(self) -> Content:
        """Read the registry without any change on disk.

        Raises `RegistryDamaged`, `OSError`, or `ForeignDirectory` if its version is unknown.
        """
        raw = self._files.read_file(self._path, _FILE_BYTES_MAX)
        try:
            content = decode(raw, self._path)
        except RegistryDamaged as error:
            advice = (
                f"restore it from a backup, or rebuild it from {OLD_NAME} and the topics with "
                f"`zsq fsck {self._data_dir} --repair`"
            )
            raise RegistryDamaged(f"{error}; {advice}") from None
        self._written = raw
        self.take(content)
        return content

    def replace(self, content: Content) -> list[str]:
        """Replace a registry that is damaged or missing.

        Return a text with the name under which the old file is kept, or no text if there was none.

        Raises `Refused` or `OSError`.
        """
        aside = []
        if self._files.exists(self._path):
            taken = self._files.list(str(self._data_dir))
            name = next(
                name
                for number in range(1, len(taken) + 2)
                if (name := f"{REGISTRY_NAME}.bad-{number}") not in taken
            )
            self._files.rename(self._path, str(self._data_dir / name))
            aside.append(name)
        self._written = b""  # the old copy stays as it is until the next change
        self.take(content)
        try:
            self.save()
        except Refused:
            for name in aside:
                self._files.rename(str(self._data_dir / name), self._path)
            raise
        return [f"the damaged file is kept as {name}" for name in aside]

    def save(self) -> None:
        """Write the registry durably.

        The steps are: new file, sync, rename over the old file, sync of the directory. Raises
        `Refused` if the disk does not allow it. The old content is then restored. Otherwise the
        next start would carry out a deletion that was refused.
        """
        try:
            self._write()
        except OSError as error:
            if self._doubtful:
                self.settle()
            if self._doubtful:
                text = (
                    "until it can be written, it is not known whether the change applies after "
                    "a restart"
                )
                raise Refused(
                    E_INTERNAL, f"the registry cannot be written: {error.strerror or error}; {text}"
                ) from None
            raise _refused(error, "the registry cannot be written") from None

    @property
    def in_doubt(self) -> bool:
        """True if the next start may read a change that was refused."""
        return self._doubtful

    def note_created(self, name: str) -> None:
        """Note that the topic's directory exists.

        The file says so after the next change, or the next call of `settle`. It does no harm to
        create a topic a second time.
        """
        self.topics[name].state = "live"
        self._is_behind = True

    def settle(self) -> None:
        """Write what the file lacks, and restore the old content if a change failed at its last
        step.

        If the disk does not allow it, the next call tries again.
        """
        if self._is_behind and not self._doubtful:
            with contextlib.suppress(OSError):
                self._write()
        if self._doubtful and self._written:
            with contextlib.suppress(OSError):
                self._replace(self._path, self._written)
                self._files.sync_folder(str(self._data_dir))
                self._doubtful = False

    def _write(self) -> None:
        """Write the file, keep its predecessor, and sync the directory once.

        Each rename replaces a whole file, so a crash leaves whole files.
        """
        topics = self._going | {name: row for name, row in self.topics.items() if not row.in_memory}
        data = encode(
            Content(
                self.uuid,
                self.node,
                self.next_number,
                topics,
                self.ended,
                self.imports,
                bucket=self.bucket,
                parted=self.parted,
            )
        )
        if data == self._written and not self._doubtful:
            self._is_behind = False
            return  # only `#ephemeral` topics changed
        if self._written:
            self._keep_old()
        self._replace(self._path, data)
        self._files.sync_folder(str(self._data_dir))
        self._written, self._doubtful, self._is_behind = data, False, False
        self.version += 1

    def _keep_old(self) -> None:
        """Let OLD_NAME have the content that is written last.

        That is the present file, which needs no second sync, unless it is in doubt.
        """
        old = str(self._data_dir / OLD_NAME)
        if not self._doubtful:
            temporary = self._temporary(old)
            with contextlib.suppress(OSError):  # not every file system has links
                self._files.link(self._path, temporary)
                self._files.rename(temporary, old)
                return
        self._replace(old, self._written)

    def _temporary(self, path: str) -> str:
        """Return the free name of a file that will become `path`."""
        temporary = path + ".tmp"
        if self._files.exists(temporary):
            self._files.remove(temporary)
        return temporary

    def _replace(self, path: str, data: bytes) -> None:
        temporary = self._temporary(path)
        self._files.write_file(temporary, data)
        self._doubtful = self._doubtful or path == self._path
        self._files.rename(temporary, path)

    def note_bucket(self, archive: str) -> None:
        """Note the identity of the archive that the broker uses. Raises `Refused`."""
        before, self.bucket = self.bucket, archive
        try:
            self.save()
        except Refused:
            self.bucket = before
            raise

    def note_parted(self, parted: LocalParts) -> None:
        """Note the topics with parts that this broker has alone. Raises `Refused`."""
        before, self.parted = self.parted, parted
        try:
            self.save()
        except Refused:
            self.parted = before
            raise

    def add(
        self,
        name: str,
        sync: str,
        retention: Mapping[str, object] | None = None,
        part_of: str = "",
        hold: int = 0,
        start: int = 0,
    ) -> TopicRow:
        """Add a topic durably, whose first offset is at least `start`. Raises `Refused`.

        `part_of` is the uuid of the topic of which it is a part, and `hold` its hold.
        """
        if is_ephemeral(name):
            row = self.topics[name] = TopicRow(
                0, uuid.uuid4().hex, "never", 0, retention=dict(retention or {})
            )
            return row
        self._finish(name)
        row = TopicRow(
            self.next_number,
            uuid.uuid4().hex,
            sync,
            max(start, self.ended.get(name, 0)),
            retention=dict(retention or {}),
            part_of=part_of,
            hold=hold,
        )
        self.next_number += 1
        self.topics[name] = row
        try:
            self.save()
        except Refused:
            del self.topics[name]
            raise
        return row

    def configure(
        self, name: str, retention: Mapping[str, object], sync: str | None = None
    ) -> None:
        sync = self.topics[name].sync if sync is None else sync
        self._set(name, retention=dict(retention), sync=sync)

    def close(self, name: str, closed: str) -> None:
        """Set which clients the topic is closed to (`closing.py`)."""
        self._set(name, closed=closed)

    def schedule(self, name: str, schedules: Mapping[str, Mapping[str, Any]]) -> None:
        """Set all schedules of the topic. Raises `Refused`."""
        self._set(name, schedules=dict(schedules))

    def own(self, name: str, owner: Mapping[str, str]) -> None:
        """Set the owner of the dead letters in the topic (`dead_letter_topics.py`), {} for none."""
        if self.topics[name].dead_letters_of != owner:
            self._set(name, dead_letters_of=dict(owner))

    def adopt(self, name: str, part_of: str, hold: int) -> None:
        """Set the topic of which this topic is a part, and its hold."""
        self._set(name, part_of=part_of, hold=hold)

    def begin_taking(self, name: str, log: str, part_of: str, hold: int) -> TopicRow:
        """Add a part that is taken over from another broker, before its files are here.

        `log` is the uuid of the part's log. Raises `Refused`.
        """
        self._finish(name)
        row = TopicRow(self.next_number, log, "always", 0, TAKING, part_of=part_of, hold=hold)
        self.next_number += 1
        self.topics[name] = row
        try:
            self.save()
        except Refused:
            del self.topics[name]
            raise
        return row

    def take_over(self, name: str, row: TopicRow) -> None:
        """Make the part live, with the settings that it had at the other broker.

        Its files are in its folder. Raises `Refused`.
        """
        self._set(
            name,
            state="live",
            sync=row.sync,
            base_offset=row.base_offset,
            retention=row.retention,
            closed=row.closed,
            schedules=row.schedules,
        )

    def resume(self, name: str, hold: int) -> None:
        """Make a part live again that this broker has released, and got back. Raises `Refused`."""
        self._set(name, state="live", hold=hold)

    def set_state(self, name: str, state: str, next_offset: int | None = None) -> None:
        ended = self.ended
        if next_offset is not None and not self.topics[name].in_memory:
            self.ended = {**ended, name: next_offset}
        try:
            self._set(name, state=state)
        except Refused:
            self.ended = ended
            raise

    def _set(self, name: str, **fields: object) -> None:
        """Change the topic's row durably.

        Raises `Refused` if that fails. The row is then unchanged.
        """
        row = self.topics[name]
        before = {field: getattr(row, field) for field in fields}
        for field, value in fields.items():
            setattr(row, field, value)
        try:
            self.save()
        except Refused:
            for field, value in before.items():
                setattr(row, field, value)
            raise

    def remove(self, name: str) -> None:
        """Move the topic's files to the trash with one rename, then remove its row.

        If the disk refuses a step, `remove_left` or the next start finishes the removal.
        """
        row = self.topics.pop(name)
        try:
            if row.in_memory:
                if self._files.exists(folder := self.folder(row)):
                    self._files.remove_tree(folder)
                return
            self._going[name] = row
            self._finish(name)
            self.empty_trash()
        except (OSError, Refused) as error:
            self._left = True
            log.error(
                "topic %s is deleted, but its files cannot be removed: %s; the broker tries again "
                "every 5 s",
                name,
                error,
            )

    def remove_left(self) -> None:
        """Try again to remove the files of deleted topics. This is called every few seconds."""
        if not self._left:
            return
        try:
            for gone in list(self._going):
                self._finish(gone)
            self.empty_trash()
        except (OSError, Refused):
            return
        self._left = False
        log.warning("the files of deleted topics are removed now")

    def _finish(self, name: str) -> None:
        """Move the files of a deleted topic of that name to the trash.

        Raises `Refused` if that fails.
        """
        row = self._going.get(name)
        if row is None:
            return
        folder = self.folder(row)
        try:
            # The second folder exists if the creation of the topic was interrupted.
            for suffix in (
                "",
                TEMPORARY_SUFFIX,
            ):
                if self._files.exists(folder + suffix):
                    self._files.rename(
                        folder + suffix,
                        str(self._data_dir / "trash" / f"{row.number:06d}-{row.uuid}{suffix}"),
                    )
            self._files.sync_folder(str(self._data_dir / "trash"))
            self._files.sync_folder(str(self._data_dir / "topics"))
        except OSError as error:
            raise _refused(
                error, f"the files of the deleted topic {name!r} cannot be moved to the trash"
            ) from None
        del self._going[name]
        try:
            self.save()
        except Refused:
            self._going[name] = row
            raise

    def empty_trash(self) -> None:
        trash = self._data_dir / "trash"
        for name in self._files.list(str(trash)):
            self._files.remove_tree(str(trash / name))

    def finish_removals(self) -> None:
        """Remove what deletions left. This is called at a start.

        Files that cannot be removed only take space.
        """
        try:
            self.empty_trash()
        except OSError as error:
            self._left = True
            log.error(
                "cannot remove the files of deleted topics in %s: %s; the broker tries again every "
                "5 s",
                self._data_dir / "trash",
                error,
            )
        for name, row in list(self.topics.items()):
            if row.state == "deleting":
                self.remove(name)

    def folder(self, row: TopicRow) -> str:
        """Return the topic's directory. It is named by number, never by the topic's name.

        Raises `OSError` if a topic in memory cannot get a folder.
        """
        if row.in_memory:
            return self.memory.folder(row.uuid)
        return str(self._data_dir / "topics" / f"{row.number:06d}")


def _refused(error: OSError, action: str) -> Refused:
    return Refused(
        E_DISK_FULL if is_full(error) else E_INTERNAL,
        f"{action}: {error.strerror or error}; nothing was changed",
    )
