"""The registry, and the directories of its topics. Topics are made, configured, deleted and made
again. These changes are recorded, and checked after a crash.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from support.faulty_files import FaultyFiles
from support.storage_harness import SMALL

from zsq.actors.supervisor.topics.registry import Registry, TopicRow
from zsq.storage.directory.store import Store, TopicIdentity, create_store, open_store
from zsq.transport.block.block import pack

from .recording import RecordingFiles
from .subject import Recorded, recorder

NODE: Final = 3
Facts = dict[str, Any]


class RegistryLife:
    """A registry, and what was promised about it. `facts`: the content of the registry after each
    change (all promises share this list). `changes`: how many changes were confirmed.
    """

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.facts: list[Facts] = []
        self.changes = 0
        self.ends: dict[str, int] = {}
        """The lowest offset at which the log of a topic may end, by uuid."""
        self.data_dir = Path(files.root)
        self.registry: Registry | None = None

    def promise(self) -> dict[str, Any]:
        return {"facts": self.facts, "changes": self.changes, "ends": dict(self.ends)}

    @classmethod
    def revived(cls, files: FaultyFiles, promise: dict[str, Any]) -> Self:
        made = cls(files)
        made.facts, made.changes, made.ends = (
            promise["facts"],
            promise["changes"],
            dict(promise["ends"]),
        )
        return made

    @property
    def open_registry(self) -> Registry:
        assert self.registry is not None
        return self.registry

    def facts_now(self) -> Facts:
        found = self.open_registry
        topics = {name: asdict(row) for name, row in found.topics.items()}
        return copy.deepcopy(
            {"topics": topics, "ended": found.ended, "next": found.next_number, "uuid": found.uuid}
        )

    def changed(self) -> None:
        self.facts.append(self.facts_now())
        self.changes += 1

    # The actions of the supervisor and of the topics' processes

    def recover(self) -> None:
        """Open the registry as `zsq serve` does."""
        self.registry = Registry(self.files, self.data_dir, NODE)
        self.registry.open()
        now = self.facts_now()
        allowed = self.facts[max(self.changes - 1, 0) : self.changes + 1]
        fresh = not self.changes and not now["topics"] and not now["ended"]
        assert fresh or now in allowed, (
            f"the registry says neither {' nor '.join(map(repr, allowed))} but {now}"
        )
        if not self.facts:  # the very first start
            self.changed()
            return
        self.facts, self.changes = [now], 1
        if any(row.state == "deleting" for row in self.registry.topics.values()):
            rows = {name: row for name, row in now["topics"].items() if row["state"] != "deleting"}
            self.facts.append({**now, "topics": rows})
        self.registry.finish_removals()
        self.facts, self.changes = [self.facts_now()], 1

    def topic(self, name: str, blocks: int = 2) -> TopicRow:
        """Make a topic with some messages in it."""
        row = self.open_registry.add(name, "always", {"keep_time_s": 60})
        self.changed()
        self.use(name, row, blocks)
        return row

    def use(self, name: str, row: TopicRow, blocks: int) -> None:
        store = self._open(name, row)
        if row.state == "new":
            self.open_registry.set_state(name, "live")
            self.changed()
        store.log.append(
            [pack([b"one", b"two"], producer_id=1, sequence=number) for number in range(blocks)], 5
        )
        store.log.sync()
        self.ends[row.uuid] = store.log.end
        store.close()

    def _open(self, name: str, row: TopicRow) -> Store:
        folder = self.open_registry.folder(row)
        identity = TopicIdentity(name, row.uuid, row.base_offset)
        if row.state == "new" and not self.files.exists(folder):
            create_store(self.files, folder, identity, SMALL)
        return open_store(self.files, folder, SMALL, identity)

    def configure(self, name: str, **retention: Any) -> None:
        self.open_registry.configure(name, retention)
        self.changed()

    def delete(self, name: str) -> None:
        row = self.open_registry.topics[name]
        self.open_registry.set_state(name, "deleting", self.ends[row.uuid])
        self.changed()
        self.open_registry.remove(name)
        self.changed()

    # What must hold

    def verify(self) -> None:
        registry = self.open_registry
        for name, row in registry.topics.items():
            assert row.base_offset >= registry.ended.get(name, 0), "offsets are given twice"
            store = self._open(name, row)
            try:
                assert not store.report.alarms
                assert store.log.start == row.base_offset
                assert store.log.end >= self.ends.get(row.uuid, row.base_offset), (
                    "what was published is lost"
                )
            finally:
                store.close()
        known = {f"{row.number:06d}" for row in registry.topics.values()}
        assert set(self.files.list(str(self.data_dir / "topics"))) == known, (
            "directories and rows do not agree"
        )
        assert not self.files.list(str(self.data_dir / "trash"))

    def live(self) -> None:
        self.verify()
        registry = self.open_registry
        numbers = {row.number for row in registry.topics.values()}
        for name, row in list(registry.topics.items()):
            self.use(name, row, 1)
        for name in ("clicks", "one more"):
            if name not in registry.topics:
                self.topic(name.replace(" ", "-"), 1)
        assert len(numbers | {row.number for row in registry.topics.values()}) == len(
            registry.topics
        ), "a number is given twice"

    def abandon(self) -> None:
        self.registry = None
        for fd in (*self.files._nodes, *self.files._locks):
            self.files.close(fd)


@dataclass(slots=True, frozen=True)
class RegistryWork:
    work: Callable[[RegistryLife], None]

    def record(self, name: str, root: Path) -> Recorded:
        life = RegistryLife(RecordingFiles(str(root)))
        with recorder(life).recording(life.promise) as trace:
            life.recover()
            self.work(life)
        life.abandon()
        return Recorded(name, trace, RegistryLife.revived)


def registry(life: RegistryLife) -> None:
    """Make two topics. One is deleted and made again."""
    life.topic("clicks")
    life.topic("views", 1)
    life.configure("views", keep_time_s=5)
    life.delete("clicks")
    life.topic("clicks", 1)
