"""Tests of kill -9, and of stopped processes, while stages are written, sealed and committed: each
row is stored once, and no writer fails.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.stages import TOPIC, blocks_of, bodies_of, staged_files, stored, topic_row, write

import zsq
from zsq.transport.client.blocking.stage_writer import StageCommitter, StagePart, StageWriter
from zsq.transport.wire.answers import Committed

ROWS = 20_000
BODIES = bodies_of("row", ROWS, 100)
PER_BLOCK = 20


class Task(threading.Thread):
    """A task in the background, as a Spark executor runs it. It waits after half of its blocks
    until it is told to go on.
    """

    def __init__(self, work: Callable[[Task], Any]) -> None:
        super().__init__(daemon=True)
        self.half = threading.Event()
        self.go = threading.Event()
        self._work = work
        self._result: Any = None
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work(self)
        except BaseException as error:
            self._failure = error

    def result(self) -> Any:
        self.join(90)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure
        return self._result


def write_in_halves(
    url: str, version: int = 1, window_bytes: int = 32 << 20
) -> Callable[[Task], StagePart | None]:
    def work(task: Task) -> StagePart | None:
        with StageWriter(
            TOPIC, "app", version, url=url, heartbeat_ms=1_000, window_bytes=window_bytes
        ) as writer:
            for number, block in enumerate(blocks_of(BODIES, PER_BLOCK)):
                if number == ROWS // PER_BLOCK // 2:
                    task.half.set()
                    assert task.go.wait(60)
                writer.push(block)
            return writer.seal()

    return work


def killed(broker: Broker, kind: str) -> None:
    (victim,) = broker.pids(kind)
    kill(victim)
    broker.wait_gone([victim])


@pytest.mark.parametrize("window_bytes", [32 << 20, 200_000])
@pytest.mark.parametrize("kind", ["topic", "gateway"])
def test_a_stage_is_committed_whole_after_a_kill_between_pushes(
    own_broker: Broker, kind: str, window_bytes: int
) -> None:
    """With the small window, interim seals have made most of the stage durable when the topic's
    process dies, and the writer has dropped those blocks.
    """
    url = own_broker.tcp if kind == "gateway" else own_broker.ipc
    task = Task(write_in_halves(url, window_bytes=window_bytes))
    assert task.half.wait(30)
    if window_bytes == 200_000:
        wait_for(lambda: topic_row(own_broker)["staged_bytes"] > 500_000, 20, "interim seals")
    killed(own_broker, kind)
    task.go.set()
    part = task.result()
    assert stored(own_broker.ipc) == []
    with StageCommitter(TOPIC, url=url) as committer:
        assert committer.commit("app", 1, [part])["messages"] == ROWS
    assert stored(own_broker.ipc) == BODIES


def test_storage_is_killed_again_and_again_while_tasks_write(own_broker: Broker) -> None:
    urls = [own_broker.ipc, own_broker.tcp, own_broker.ipc]
    tasks = [Task(write_in_halves(url, window_bytes=300_000)) for url in urls]
    for task in tasks:
        task.go.set()
    for _ in range(3):
        (victim,) = [actor["pid"] for actor in wait_for_actor(own_broker, "topic")]
        kill(victim)
        own_broker.wait_gone([victim])
    parts = [task.result() for task in tasks]
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        committer.commit("app", 1, parts)
    assert stored(own_broker.ipc) == BODIES * 3


def wait_for_actor(broker: Broker, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def up() -> bool:
        found[:] = [
            actor for actor in broker.actors() if actor["kind"] == kind and actor["state"] == "up"
        ]
        return bool(found)

    wait_for(up, 30, f"{kind} to be up")
    return found


@pytest.mark.parametrize("victim", ["topic", "everything"])
def test_a_sealed_stage_survives_a_kill_before_its_commit(own_broker: Broker, victim: str) -> None:
    part = write(own_broker.ipc, BODIES)
    if victim == "topic":
        killed(own_broker, victim)
    else:
        everyone = [actor["pid"] for actor in own_broker.actors()]
        for pid in everyone:
            kill(pid)
        own_broker.wait_gone(everyone)
        assert own_broker.process is not None
        own_broker.process.wait(40)
        own_broker.start()
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        done = committer.commit("app", 1, [part])
        assert (done["messages"], done["repeated"]) == (ROWS, False)
    assert stored(own_broker.ipc) == BODIES


@pytest.mark.parametrize("rows", [200, ROWS * 3])
def test_a_kill_right_after_the_commit_was_sent(own_broker: Broker, rows: int) -> None:
    """The commit may have taken effect or not, and the committer asks again. The parts are
    appended, or one part becomes a chunk.
    """
    bodies = bodies_of("row", rows, 100)
    expected: list[bytes] = []
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        for version in range(4):
            part = write(own_broker.ipc, bodies, version=version, per_block=500)
            (storage,) = [actor["pid"] for actor in wait_for_actor(own_broker, "topic")]
            committing = Task(partial(commit, committer, version, part))
            if version % 2:
                wait_for(partial(reaches, own_broker, len(expected) + 1), 20, "the commit's effect")
            kill(storage)
            own_broker.wait_gone([storage])
            assert committing.result()["messages"] == rows
            expected += bodies
            assert stored(own_broker.ipc) == expected
            assert committer.commit("app", version, [part])["repeated"] is True
    wait_for(lambda: not staged_files(own_broker), 20, "an empty staging folder")


def commit(committer: StageCommitter, version: int, part: StagePart, task: Task) -> Committed:
    return committer.commit("app", version, [part])


def reaches(broker: Broker, head: int) -> bool:
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        return reader.bounds()[1] >= head


def test_a_commit_waits_in_the_pipe_of_a_stopped_storage_that_is_killed(own_broker: Broker) -> None:
    part = write(own_broker.ipc, BODIES)
    (storage,) = own_broker.pids("topic")
    os.kill(storage, signal.SIGSTOP)
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        committing = Task(lambda task: committer.commit("app", 1, [part]))
        kill(storage)
        own_broker.wait_gone([storage])
        done = committing.result()
    assert (done["messages"], done["repeated"]) == (ROWS, False)
    assert stored(own_broker.ipc) == BODIES


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_a_stopped_storage_goes_on(own_broker: Broker, way: str) -> None:
    """The topic's process is stopped for longer than two heartbeats. Blocks that were pushed in the
    meantime wait with the writer.
    """
    task = Task(write_in_halves(own_broker.ipc if way == "ipc" else own_broker.tcp))
    assert task.half.wait(30)
    (storage,) = own_broker.pids("topic")
    os.kill(storage, signal.SIGSTOP)
    try:
        task.go.set()
        task.join(6)
        assert task.is_alive(), "nothing is sealed while storage stands still"
    finally:
        os.kill(storage, signal.SIGCONT)
    part = task.result()
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        committer.commit("app", 1, [part])
    assert stored(own_broker.ipc) == BODIES


def test_channels_see_a_commit_over_a_kill(own_broker: Broker) -> None:
    """The channel is attached at the head before the commit. After the kill, it gets the messages
    in order, and each of them once.
    """
    with (
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Consumer(TOPIC, "c", url=own_broker.ipc, ready=500, heartbeat_ms=1_000) as consumer,
    ):
        admin.create_channel(TOPIC, "c")
        assert consumer.receive(0.2) is None
        part = write(own_broker.ipc, BODIES[:1_000])
        with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
            committer.commit("app", 1, [part])
            killed(own_broker, "topic")
            committer.commit("app", 2, [write(own_broker.ipc, BODIES[1_000:2_000], version=2)])
        got: dict[int, bytes] = {}
        while len(got) < 2_000:
            message = consumer.receive(30)
            assert message is not None
            got[message.offset] = message.body
            message.finish()
        assert [got[offset] for offset in range(2_000)] == BODIES[:2_000]
