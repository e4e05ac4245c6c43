"""A storage's stages and state on a real store. Threads are replaced by fakes that run only when a
test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from support.routed import Routed
from support.scripted_extension import ScriptedExtension

from zsq.actors.runtime.port import Envelope, Mail, Port
from zsq.actors.storage.commits import StateCommits
from zsq.actors.storage.locks import Locks
from zsq.actors.storage.stages import Stages
from zsq.actors.storage.staging import StageCommits
from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.files import Files
from zsq.storage.space import Shortage
from zsq.storage.state.state_keeper import StateKeeper
from zsq.transport.block.block import Block, pack
from zsq.transport.wire import protocol as p
from zsq.transport.wire.protocol import checksum_after

ONE, TWO, THREE = b"1" * 16, b"2" * 16, b"3" * 16
A: Envelope = (b"a",)
IDENTITY = TopicIdentity("t", "0" * 31 + "1")


class Thread:
    """A fake thread: jobs wait until `run` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Callable[[], Any]]] = []
        self.done: list[tuple[Any, Any]] = []
        self.pending = 0

    def submit(self, tag: Any, job: Callable[[], Any]) -> None:
        self.pending += 1
        self.jobs.append((tag, job))

    def run(self) -> None:
        for tag, job in self.jobs:
            try:
                value = job()
            except Exception as error:
                value = error
            self.done.append((tag, value))
        self.jobs.clear()

    def results(self) -> list[tuple[Any, Any]]:
        found, self.done = self.done, []
        self.pending -= len(found)
        return found


class Wire(Routed):
    """A fake port: it has pushed blocks that wait to be received, and records the messages that
    were sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Mail] = []
        self.sent: list[p.Wire] = []
        self.taken = 0

    def receive(self, limit: int) -> Iterator[Mail]:
        for _ in range(min(limit, len(self.mails))):
            self.taken += 1
            yield self.mails.pop(0)

    def send(self, envelope: Envelope, message: p.Wire, blocks: Any = ()) -> bool:
        self.sent.append(message)
        return envelope == A


class Bench:
    """Stages and state of a storage, with methods for the actions of writers and threads."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        create_store(Files(), directory, IDENTITY)
        self.start()

    def start(self) -> None:
        directory = self.directory
        self.store: Store = open_store(Files(), directory, StoreOptions(reserve_bytes=0), IDENTITY)
        self.stage_thread, self.state_thread = Thread(), Thread()
        table = self.store.state.load()
        self.state = StateCommits(
            self.state_thread, self.store.state, table, "storage t", self.keeper()
        )
        self.wire = Wire()
        self.extension = ScriptedExtension(self.store.log)
        self.port = cast("Port", self.wire)
        self.harness = StageCommits(
            self.store, self.state, self.stage_thread, table, Stages(), self.port, lambda total: None,
            lambda: self.wire.sent.append(p.Head(self.store.log.synced_end)), Shortage(),
            extension=self.extension, locks=Locks(cast("Any", None), int),
        )  # fmt: skip

    def keeper(self) -> StateKeeper | None:
        """Return None in place of a `StateKeeper`, so no snapshots are written."""
        return None

    def say(self, message: p.Wire, blocks: list[Block] | None = None) -> list[p.Wire]:
        """Process a writer's message, and return the messages that were sent until the end of the
        turn.
        """
        self.wire.hear(message, A)
        return self.turn()

    def push(self, stage: bytes, *blocks: Block) -> list[p.Wire]:
        for block in blocks:
            self.wire.mails.append(
                Mail((b"-",), p.Push(stage), [block.wire_header(), block.payload])
            )
        self.harness.take_pushes(self.port)
        return self.turn()

    def turn(self) -> list[p.Wire]:
        self.harness.turn()
        return self.told()

    def told(self) -> list[p.Wire]:
        found, self.wire.sent = self.wire.sent, []
        return found

    def sync_stages(self) -> list[p.Wire]:
        self.stage_thread.run()
        self.harness.on_results()
        return self.turn()

    def commit_state(self) -> list[p.Wire]:
        assert self.state.may_commit()
        self.state.commit(self.store.log.synced_end, {})
        self.state_thread.run()
        self.state.on_results()
        return self.turn()

    def sealed(
        self, stage: bytes, *blocks: Block, version: int = 1, app: str = "app", kind: str = "app"
    ) -> p.StagePart:
        self.say(p.OpenStage(1, stage, app, version, kind, 0))
        self.push(stage, *blocks)
        seal = seal_of(stage, *blocks)
        self.say(seal)
        self.sync_stages()
        assert (
            p.Done(seal.request, {"messages": sum(block.count for block in blocks)})
            in self.commit_state()
        )
        return (
            stage,
            len(blocks),
            sum(block.count for block in blocks),
            seal.size_bytes,
            seal.checksum,
        )

    def files(self) -> list[str]:
        """Let the thread remove the files that it was ordered to remove. Return the staged files
        that are left.
        """
        if self.stage_thread.jobs and all(tag is None for tag, _ in self.stage_thread.jobs):
            self.sync_stages()
        return self.files_now()

    def files_now(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory).glob("staging/*"))

    def restart(self) -> None:
        self.store.close()
        self.start()


def seal_of(stage: bytes, *blocks: Block, final: bool = True) -> p.Seal:
    checksum = 0
    for block in blocks:
        checksum = checksum_after(checksum, block.header.columns_crc)
    return p.Seal(5, stage, len(blocks), sum(block.length for block in blocks), checksum, final)


def blocks(count: int) -> list[Block]:
    return [pack([b"m%d" % n] * 2, sequence=n) for n in range(count)]
