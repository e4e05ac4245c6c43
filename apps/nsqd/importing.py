"""Taking over a stopped nsqd's data, all of it or nothing of it, and only once.

1. Lock nsqd's folder in its own way (a running nsqd refuses), and the data directory as `zsq serve` does.
2. If this source was taken over before (a digest of it stands in the registry) and any of its topics is still there, say so and end.
3. Note in the registry that an import has begun, with the numbers that its topics will have: nobody else gets those.
4. Build each topic in `import.tmp`, sync it, read it back.
5. Rename all into `topics/`. A broker that is started now does not know them.
6. Commit: one write of the registry, with the topics' rows and the import's record.

A crash before 6 leaves what the broker's next start, or the next import, clears away by the numbers that were noted; a crash after
it leaves nothing to do.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...actors.import_remains import ASIDE, BEGUN, DONE, clear_imports
from ...actors.registry import Registry, TopicRow
from ...storage.disk_queue_format import queue_name
from ...storage.errors import DiskFull, ForeignDirectory
from ...storage.files import Files
from ...storage.store import RESERVE_BYTES_MAX, RESERVE_SHARE, Identity, StoreOptions
from ...transport.errors import E_EXISTS, UsageError
from .building import BuiltTopic, TopicBuilder
from .source import NsqdSource, SourceReport

_GROWTH: Final = 1.1  # what is written is a little more than what is read: an id as header, a time, block headers; small bodies grow most


@dataclass(slots=True)
class ImportReport:
    """What was taken over; `again`: it had been before, and nothing was done: `still` names its topics, `lost_before` counts what was
    lost then. `found`: what could not be read, and what is remarkable."""

    again: bool = False
    still: list[str] = field(default_factory=list)
    lost_before: int = 0
    topics: list[BuiltTopic] = field(default_factory=list)
    found: SourceReport = field(default_factory=SourceReport)


def import_nsqd(
    files: Files, nsqd_dir: str, data_dir: Path, *, sync: str = "always", node_id: int = 0, options: StoreOptions | None = None,
    skip_too_big: bool = False,
) -> ImportReport:  # fmt: skip
    """`Locked` by a running nsqd or broker, `ForeignDirectory`, `UsageError` for names that exist, `DiskFull`; then nothing is changed."""
    with NsqdSource(files, nsqd_dir) as source:
        if not files.exists(str(data_dir)):
            files.make_folder(str(data_dir))
        lock = files.lock(str(data_dir / "lock"))
        try:
            registry = Registry(files, data_dir, node_id)
            registry.open()
            return _Import(files, source, data_dir, registry, sync, options or StoreOptions(), skip_too_big).run()
        finally:
            files.close(lock)


class _Import:
    def __init__(
        self, files: Files, source: NsqdSource, data_dir: Path, registry: Registry, sync: str, options: StoreOptions, skip_too_big: bool
    ) -> None:
        self._files = files
        self._source = source
        self._data_dir = data_dir
        self._registry = registry
        self._sync = sync
        self._options = options
        self._skip_too_big = skip_too_big
        self._aside = str(data_dir / ASIDE)

    def run(self) -> ImportReport:
        report = ImportReport()
        digest = self._source.digest()
        record = self._registry.imports.get(digest)
        if record is not None and record["state"] == DONE:
            came = record.get("topics", {})
            report.still = [name for name in came if name in self._registry.topics]
            if report.still or not came:
                report.again = True
                report.lost_before = record.get("lost_count", 0)
                return report
            report.found.notes.append(
                f"{self._source.folder} was taken over before, but none of its topics is there any more; taken over anew"
            )
        self._clear()
        topics = self._source.topics(report.found)
        taken = [topic.name for topic in topics if topic.name in self._registry.topics]
        if taken:
            raise UsageError(E_EXISTS, f"topics {', '.join(taken)} exist already in {self._data_dir}; nothing was taken over")
        self._check_space([queue_name(t.name, c) for t in topics for c in ("", *(channel.name for channel in t.channels))])
        rows = self._begin(digest, [topic.name for topic in topics])
        self._files.make_folder(self._aside)
        builder = TopicBuilder(self._files, self._source, report.found, self._options, skip_too_big=self._skip_too_big)
        try:
            for topic in topics:
                row = rows[topic.name]
                identity = Identity(topic.name, row.uuid, row.base_offset)
                report.topics.append(builder.build(topic, self._built(row), identity))
        except (UsageError, DiskFull):
            self._clear()  # it need not take up space until the next time
            raise
        self._commit(digest, rows, report)
        return report

    def _built(self, row: TopicRow) -> str:
        return f"{self._aside}/{row.number:06d}"

    def _clear(self) -> None:
        """What an import left that did not come to its end."""
        clear_imports(self._files, self._data_dir, self._registry)

    def _check_space(self, queues: list[str]) -> None:
        """Before anything is written: a full disk in the middle would only cost time."""
        need = int(sum(self._source.bytes(queue) for queue in queues) * _GROWTH)
        reserve = self._options.reserve_bytes
        if reserve is None:
            reserve = min(RESERVE_BYTES_MAX, self._files.total_bytes(str(self._data_dir)) // RESERVE_SHARE)
        free = self._files.free_bytes(str(self._data_dir))
        if need > free - reserve:
            raise DiskFull(f"{self._data_dir}: about {need} bytes are needed, {free} are free, {reserve} of them kept in reserve")

    def _begin(self, digest: str, names: list[str]) -> dict[str, TopicRow]:
        """Reserve the topics' numbers. A name that ended here before goes on behind its old offsets."""
        registry = self._registry
        rows = {}
        for name in names:
            rows[name] = TopicRow(registry.next_number, uuid.uuid4().hex, self._sync, registry.ended.get(name, 0), "live")
            registry.next_number += 1
        registry.imports[digest] = {"state": BEGUN, "numbers": [row.number for row in rows.values()], "from": self._source.folder}
        registry.save()
        return rows

    def _commit(self, digest: str, rows: dict[str, TopicRow], report: ImportReport) -> None:
        topics = str(self._data_dir / "topics")
        for row in rows.values():
            if self._files.exists(self._registry.folder(row)):
                raise ForeignDirectory(f"{self._registry.folder(row)} is there although no topic has that number; move it away")
            self._files.rename(self._built(row), self._registry.folder(row))
        self._files.sync_folder(topics)
        record: dict[str, Any] = {
            "state": DONE,
            "from": self._source.folder,
            "time_ns": time.time_ns(),
            "topics": {topic.name: topic.messages for topic in report.topics},
            "lost_count": report.found.lost_count,
        }
        self._registry.topics.update(rows)
        self._registry.imports[digest] = record
        self._registry.save()
        with contextlib.suppress(OSError):  # all is done; what stays is empty, and the next import clears it
            self._files.remove_tree(self._aside)
