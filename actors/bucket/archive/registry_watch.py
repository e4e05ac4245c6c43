"""Registry watch: the file with the broker's topics, and which version of it the bucket has.

A tick carries the registry when it has changed. It is read after the pieces of the tick arrived, so
it has their topics.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final, NamedTuple

from ....storage.files import Files

log = logging.getLogger("zsq")

REGISTRY_NAME: Final = "registry.json"
REGISTRY_BYTES_MAX: Final = 64 * 1024 * 1024


class RegistryCopy(NamedTuple):
    """The registry as it was read: its bytes, the uuids of the topics that are shipped, and all.

    `version` is how many times this process had read a new one then.
    """

    mark: tuple[int, int, int]
    data: bytes
    shipped: frozenset[str]
    topics: frozenset[str]
    version: int


class RegistryWatch:
    """The registry in one data directory."""

    def __init__(self, files: Files, data_dir: str) -> None:
        self._files = files
        self.path = f"{data_dir}/{REGISTRY_NAME}"
        self.current = RegistryCopy((0, 0, 0), b"", frozenset(), frozenset(), 0)
        """The registry as it was read last. Its version is 0 if it was never read."""
        self.is_due = True
        """True if the next tick must have it."""
        self.number = -1
        """The number of the newest tick with a registry, which may be on its way."""
        self.in_bucket: RegistryCopy | None = None
        """The newest registry in the bucket, or None if this process has shipped none."""

    def look(self) -> bool:
        """Read the registry again if its file was replaced. Return True if it was."""
        try:
            status = os.stat(self.path)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            if mark == self.current.mark:
                return False
            data = self._files.read_file(self.path, REGISTRY_BYTES_MAX)
            rows = json.loads(data)["topics"].values()
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s cannot be read to be shipped: %s", self.path, error)
            return False
        shipped = frozenset(
            row["uuid"] for row in rows if row.get("retention", {}).get("archive", "on") != "off"
        )
        topics = frozenset(row["uuid"] for row in rows)
        self.current = RegistryCopy(mark, data, shipped, topics, self.current.version + 1)
        self.is_due = True
        return True

    def take(self, number: int) -> RegistryCopy | None:
        """Return the registry if the tick with this number must have it."""
        if not self.is_due:
            return None
        self.is_due, self.number = False, number
        return self.current

    def shipped(self, registry: RegistryCopy) -> None:
        """Note that a tick with this registry exists, and all before it."""
        self.in_bucket = registry
