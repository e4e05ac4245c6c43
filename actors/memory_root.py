"""Where `#ephemeral` topics lie: a folder of this broker's on the machine's memory file system, removed at the end.

It is made with the first such topic. Its name is random, and stands in DATA_DIR/memory.json before it is made, so that the next start
finds what a killed broker has left. Whose it is shows a lock inside, held for as long as the broker lives: a copy of the data directory
names the same folder, and must not remove it under the other's feet.

Where there is no usable memory file system the topics lie in DATA_DIR/memory: slower, and still gone at the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from ..storage.errors import Locked
from ..storage.files import Files
from ..storage.retention import MAX_BYTES_MIN
from . import options

log = logging.getLogger("zsq")

POINTER_NAME: Final = "memory.json"
FOLDER_NAME: Final = "memory"  # in the data directory
SHM: Final = Path("/dev/shm")
_MOUNTS: Final = Path("/proc/self/mounts")
_MEMORY_TYPES: Final = ("tmpfs", "ramfs")
_NAME: Final = re.compile(r"zsq-[0-9a-f]{32}", re.ASCII)
_POINTER_BYTES_MAX: Final = 4096


class MemoryRoot:
    """Owned by the supervisor alone, under the data directory's lock. `shm`: where a memory file system may be mounted."""

    def __init__(self, files: Files, data_dir: Path, shm: Path = SHM, mounts: Path = _MOUNTS) -> None:
        self._files = files
        self._pointer = data_dir / POINTER_NAME
        self._fallback = data_dir / FOLDER_NAME
        self._shm = shm
        self._mounts = mounts
        self._root: Path | None = None
        self._lock = -1

    def folder(self, name: str) -> str:
        """Of one topic: its path, in a root that is made now if it is not there. `OSError`."""
        return str(self._made() / name)

    def bytes_max(self) -> int:
        """What a topic may hold that is not finished."""
        share = self._files.total_bytes(str(self._made())) // options.EPHEMERAL_SHARE
        return max(MAX_BYTES_MIN, min(options.EPHEMERAL_BYTES_MAX, share))

    def _made(self) -> Path:
        if self._root is not None:
            return self._root
        root = self._shm / f"zsq-{secrets.token_hex(16)}" if self._usable() else self._fallback
        if root == self._fallback:
            log.warning(
                "%s is no memory file system of use: topics in memory lie in %s, and are gone at the end all the same", self._shm, root
            )
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
        in_memory = any(line[1] == str(self._shm) and line[2] in _MEMORY_TYPES for line in mounted if len(line) > 2)
        return in_memory and self._files.total_bytes(str(self._shm)) >= options.EPHEMERAL_SHM_BYTES_MIN

    def close(self) -> None:
        """All processes have ended: what lies there goes."""
        root, self._root = self._root, None
        if root is not None:
            self._remove(root)
            self._files.close(self._lock)
        self._pointer.unlink(missing_ok=True)

    def clear(self) -> None:
        """At a start: what a killed broker has left goes, as far as it is ours."""
        left = self._named()
        if left is not None and self._is_ours(left):
            try:
                lock = self._files.lock(str(left / "lock"))
            except Locked as error:
                log.warning("%s is in use by process %d, which has a copy of this data directory: left alone", left, error.pid)
            except OSError as error:
                log.error("what a killed broker left in %s cannot be removed: %s", left, error)
            else:
                self._remove(left)
                self._files.close(lock)
        self._pointer.unlink(missing_ok=True)
        if self._fallback.is_dir():
            self._remove(self._fallback)

    def _named(self) -> Path | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return Path(json.loads(self._files.read_note(str(self._pointer), _POINTER_BYTES_MAX))["memory"])
        return None

    def _is_ours(self, path: Path) -> bool:
        """By its place, its name and its owner: a file that somebody edited shall not remove anything else."""
        if path.parent != self._shm or not _NAME.fullmatch(path.name):
            return False
        try:
            found = path.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()

    def _remove(self, root: Path) -> None:
        try:
            self._files.remove_tree(str(root))
        except OSError as error:
            log.error("topics in memory are left in %s: %s", root, error)
