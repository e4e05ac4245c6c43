"""Small workloads whose every crash is looked at: what they do, and how a disk that they left is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from support.desk import GROUPS, SMALL

from zsq.storage.faulty_files import FaultyFiles
from zsq.storage.store import StoreOptions

from .life import Life
from .recording import RecordingFiles, Trace


class Subject(Protocol):
    """What a workload is about: a topic's store, a queue. `live`: what recovery found is checked, holds from now on, and more is done."""

    files: FaultyFiles

    def promise(self) -> Any: ...
    def recover(self) -> None: ...
    def live(self) -> None: ...
    def verify(self) -> None: ...
    def abandon(self) -> None: ...


@dataclass(slots=True)
class Recorded:
    """`revive`: the subject of a disk that is there already, and of a promise."""

    name: str
    trace: Trace
    revive: Callable[[FaultyFiles, Any], Subject]


class Workload(Protocol):
    def record(self, name: str, root: Path) -> Recorded: ...


@dataclass(slots=True, frozen=True)
class TopicWork:
    """A workload of one topic's store. `before` is not recorded."""

    work: Callable[[Life], None]
    options: StoreOptions = SMALL
    before: Callable[[Life], None] = lambda life: None

    def record(self, name: str, root: Path) -> Recorded:
        life = Life(root, self.options)
        life.open()
        self.before(life)
        life.abandon_cleanly()
        with recorder(life).recording(life.promise) as trace:
            life.open()
            trace.recovered = len(trace.steps)
            self.work(life)
        life.abandon()
        return Recorded(name, trace, lambda files, promise: Life.revived(files, promise, self.options))


def recorder(subject: Subject) -> RecordingFiles:
    assert isinstance(subject.files, RecordingFiles)
    return subject.files


def publishes(life: Life) -> None:
    """Appends, syncs, checkpoints, rolls."""
    for turn in range(7):
        life.publish(blocks=1 + turn % 3)
        if turn % 2:
            life.sync()
        if turn % 4 == 3:
            life.checkpoint()
    life.publish()


def channels(life: Life) -> None:
    """Made, read, with holes and attempts, deferred, put back, dropped."""
    life.publish(blocks=3)
    life.sync()
    life.save_channel("one", 0)
    life.save_channel("one", 4, [(1, 1, 1, 0), (2, 1, 2, 5_000)])
    life.publish(blocks=2)
    life.save_channel("two", 0, paused=True)
    life.sync()
    life.checkpoint()
    life.save_channel("one", 9, [(1, 1, 2, 9_000), (5, 2, 1, 0)])
    life.save_channel("two", 2)
    life.publish(blocks=4)
    life.sync()
    life.save_channel("one", 3)


def groups(life: Life) -> None:
    """Staged in parts, committed by being appended, adopted, both."""
    life.publish(blocks=2)
    life.sync()
    small = life.stage("small", 1)
    life.seal(small)
    life.checkpoint()
    life.commit(1, small)
    big = [life.stage(f"big{i}", 2, blocks=4, size=60) for i in range(2)]
    life.seal(*big)
    life.commit(2, *big)
    life.publish(blocks=1)
    life.sync()
    both = [life.stage("b", 3, blocks=5, size=60), life.stage("s", 3, blocks=1)]
    life.seal(*both)
    life.checkpoint()
    life.commit(3, *both)


def delayed(life: Life) -> None:
    life.publish()
    life.sync()
    keys = life.publish_delayed(10, 20, 30)
    life.move(10)
    life.publish()
    life.publish_delayed(15, 40)
    life.cancel(keys[2])
    life.sync()
    life.checkpoint()
    life.move(30, rows_max=1)
    life.move(30)
    life.checkpoint()
    life.move(50)


def retention(life: Life) -> None:
    life.save_channel("one", 0)
    for _ in range(4):
        life.publish(blocks=3)
        life.sync()
    life.checkpoint()
    bases = life.log.chunks
    life.save_channel("one", bases[2] + 1)
    life.retain(bases[1])
    life.publish(blocks=2)
    life.retain(bases[2])
    life.sync()
    life.checkpoint()


WORKLOADS: Final[dict[str, Workload]] = {
    "publishes": TopicWork(publishes),
    "channels": TopicWork(channels),
    "groups": TopicWork(groups, GROUPS),
    "delayed": TopicWork(delayed),
    "retention": TopicWork(retention),
}
