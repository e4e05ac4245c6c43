"""The registry: which topics there are, where they lie, and the offsets of those that are gone. One small file, replaced whole.

    {"version": 1, "uuid": of this data directory, "node": 0, "next_number": 3,
     "topics": {"clicks": {"number": 1, "uuid": "...", "sync": "always", "base_offset": 0, "state": "live", "retention": {}}},
     "ended": {"old": 1234}, "imports": {digest of what was taken over: {"state": "begun" or "done", ...}}}

`retention` holds what was set for the topic; all else follows the broker's own settings.
A row is `new` until its directory is known to exist, `live`, or `deleting`. A topic made again starts at the offset where the one of that
name ended, so offsets are never reused, and gets a new uuid.
"""

from __future__ import annotations

import errno
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..storage.errors import ForeignDirectory, ShortWrite
from ..storage.files import Files
from ..transport.errors import E_DISK_FULL, E_INTERNAL, Refused

log = logging.getLogger("zsq")

_FILE_BYTES_MAX = 64 * 1024 * 1024
VERSION = 1


@dataclass(slots=True)
class TopicRow:
    number: int
    uuid: str
    sync: str
    base_offset: int
    state: str = "new"
    retention: dict[str, Any] = field(default_factory=dict)


class Registry:
    """Owned by the supervisor alone, under the data directory's lock."""

    def __init__(self, files: Files, data_dir: Path, node_id: int) -> None:
        self._files = files
        self._data_dir = data_dir
        self._path = str(data_dir / "registry.json")
        self.node = node_id
        self.uuid = uuid.uuid4().hex
        self.next_number = 1
        self.topics: dict[str, TopicRow] = {}
        self.ended: dict[str, int] = {}
        self.imports: dict[str, dict[str, Any]] = {}

    def open(self) -> None:
        """Read it, or begin one in an empty directory. Never begins where something else lies."""
        present = set(self._files.list(str(self._data_dir)))
        if "registry.json" not in present:
            strangers = present - {"lock", "run", "run.json", "log", "zsqd.json", "zsqd.lock", "topics", "trash", "registry.json.tmp"}
            if strangers or ("topics" in present and self._files.list(str(self._data_dir / "topics"))):
                raise ForeignDirectory(
                    f"{self._data_dir} is not empty and has no registry.json: not a data directory of zsq,"
                    " or one that lost it; choose another directory, or restore the file from a backup"
                )
            for folder in ("topics", "trash"):
                if folder not in present:
                    self._files.make_folder(str(self._data_dir / folder))
            self.save()
            return
        try:
            data = json.loads(self._files.read_file(self._path, _FILE_BYTES_MAX))
            if data["version"] != VERSION:
                raise ForeignDirectory(f"{self._path} has version {data['version']}; this zsq knows only {VERSION}: upgrade zsq")
            self.uuid, self.node, self.next_number = data["uuid"], data["node"], data["next_number"]
            self.topics = {name: TopicRow(**row) for name, row in data["topics"].items()}
            self.ended = data["ended"]
            self.imports = data.get("imports", {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForeignDirectory(f"{self._path} cannot be read ({error}); restore it from a backup") from None

    def save(self) -> None:
        """Durable when it returns: new file, synced, renamed over the old, directory synced. `Refused` where the disk does not take it."""
        try:
            self._write()
        except OSError as error:
            code = E_DISK_FULL if isinstance(error, ShortWrite) or error.errno in (errno.ENOSPC, errno.EDQUOT) else E_INTERNAL
            raise Refused(code, f"the registry cannot be written: {error.strerror or error}; nothing was changed") from None

    def _write(self) -> None:
        data = {
            "version": VERSION,
            "uuid": self.uuid,
            "node": self.node,
            "next_number": self.next_number,
            "topics": {name: asdict(row) for name, row in self.topics.items()},
            "ended": self.ended,
            "imports": self.imports,
        }
        temporary = self._path + ".tmp"
        if self._files.exists(temporary):
            self._files.remove(temporary)
        self._files.write_file(temporary, json.dumps(data, indent=1).encode())
        self._files.rename(temporary, self._path)
        self._files.sync_folder(str(self._data_dir))

    def add(self, name: str, sync: str, retention: Mapping[str, Any] | None = None) -> TopicRow:
        row = TopicRow(self.next_number, uuid.uuid4().hex, sync, self.ended.get(name, 0), retention=dict(retention or {}))
        self.next_number += 1
        self.topics[name] = row
        try:
            self.save()
        except Refused:
            del self.topics[name]
            raise
        return row

    def configure(self, name: str, retention: Mapping[str, Any]) -> None:
        row = self.topics[name]
        before, row.retention = row.retention, dict(retention)
        try:
            self.save()
        except Refused:
            row.retention = before
            raise

    def set_state(self, name: str, state: str, next_offset: int | None = None) -> None:
        row = self.topics[name]
        before, row.state = row.state, state
        ended = dict(self.ended)
        if next_offset is not None:
            self.ended[name] = next_offset
        try:
            self.save()
        except Refused:
            row.state, self.ended = before, ended
            raise

    def remove(self, name: str) -> None:
        """The topic's files go to the trash by one rename; then the row goes. What the disk refuses is finished at the next start."""
        row = self.topics.pop(name)
        folder = self.folder(row)
        try:
            if self._files.exists(folder):
                self._files.rename(folder, str(self._data_dir / "trash" / f"{row.number:06d}-{row.uuid}"))
                self._files.sync_folder(str(self._data_dir / "trash"))
                self._files.sync_folder(str(self._data_dir / "topics"))
            self.save()
            self.empty_trash()
        except (OSError, Refused) as error:
            log.error("topic %s is deleted, its files not yet: %s", name, error)

    def empty_trash(self) -> None:
        trash = self._data_dir / "trash"
        for name in self._files.list(str(trash)):
            self._files.remove_tree(str(trash / name))

    def folder(self, row: TopicRow) -> str:
        """A number, never the raw name."""
        return str(self._data_dir / "topics" / f"{row.number:06d}")
