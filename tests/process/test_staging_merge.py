"""Tests of a commit of very many small parts on real processes: others continue to publish, the
result is few chunks, and a kill does no harm.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from support.broker import Broker, kill, wait_for
from support.stages import TOPIC, bodies_of, staged_files, stored, topic_row, write

import zsq
from zsq.transport.client.blocking.stage_writer import StageCommitter, StagePart
from zsq.transport.wire.answers import Committed

PARTS = 300
BODIES = {n: bodies_of(f"part{n}", 1, 64 * 1024) for n in range(PARTS)}


def parts_of(broker: Broker, version: int) -> list[StagePart]:
    return [write(broker.ipc, BODIES[n], version=version) for n in range(PARTS)]


def chunks(broker: Broker) -> int:
    return len(list(Path(broker.data_dir).glob("topics/*/*.chunk")))


class Task(threading.Thread):
    """A commit that runs in a thread."""

    def __init__(self, committer: StageCommitter, version: int, parts: list[StagePart]) -> None:
        super().__init__(daemon=True)
        self.committer, self.version, self.parts = committer, version, parts
        self.done: Committed | None = None
        self.start()

    def run(self) -> None:
        self.done = self.committer.commit("app", self.version, self.parts)

    def result(self) -> Committed:
        self.join(60)
        assert self.done is not None, "the commit did not end well"
        return self.done

    def is_merging(self, broker: Broker) -> bool:
        """Return True if the merge has begun or is over."""
        names = {part[0].hex() for part in self.parts}
        return (
            bool(self.done)
            or any(name.split("-")[0] not in names for name in staged_files(broker))
            or topic_row(broker)["head"] > 0
        )


class Live(threading.Thread):
    """A publisher that waits for each answer. `longest` is the longest wait in seconds."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.acknowledged: list[bytes] = []
        self.longest = 0.0
        self.ending = threading.Event()
        self.start()

    def run(self) -> None:
        with zsq.Producer(self.url) as producer:
            while not self.ending.is_set():
                body = f"live{len(self.acknowledged)}".encode()
                begun = time.monotonic()
                producer.publish(TOPIC, body)
                self.longest = max(self.longest, time.monotonic() - begun)
                self.acknowledged.append(body)

    def end(self) -> list[bytes]:
        self.ending.set()
        self.join(60)
        return self.acknowledged


def test_others_publish_while_very_many_small_parts_are_committed(own_broker: Broker) -> None:
    parts = parts_of(own_broker, 1)
    live = Live(own_broker.ipc)
    wait_for(lambda: len(live.acknowledged) > 5, 20, "a publisher at work")
    live.longest = 0.0
    before = len(live.acknowledged)
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        done = committer.commit("app", 1, parts)
        assert done["messages"] == PARTS
        assert len(live.acknowledged) > before
        longest = live.longest
        published = live.end()
        assert committer.commit("app", 1, parts)["repeated"] is True
    found = stored(own_broker.ipc)
    assert [body for body in found if not body.startswith(b"live")] == [
        body for n in range(PARTS) for body in BODIES[n]
    ]
    assert [body for body in found if body.startswith(b"live")] == published
    assert chunks(own_broker) <= 3
    assert longest < 2.0, "a publisher waited as if the merge were done in storage's loop"
    wait_for(lambda: not staged_files(own_broker), 20, "an empty staging folder")


def test_an_abort_during_the_merge_comes_too_late(broker: Broker) -> None:
    parts = parts_of(broker, 1)
    with (
        StageCommitter(TOPIC, url=broker.ipc) as committer,
        StageCommitter(TOPIC, url=broker.ipc) as other,
    ):
        committing = Task(committer, 1, parts)
        wait_for(lambda: committing.is_merging(broker), 20, "the merge")
        assert other.abort("app", 1, [part[0] for part in parts])["committed"] is True
        assert other.commit("app", 1, parts)["messages"] == PARTS
        assert committing.result()["messages"] == PARTS
    assert stored(broker.ipc) == [body for n in range(PARTS) for body in BODIES[n]]
    wait_for(lambda: not staged_files(broker), 20, "an empty staging folder")


@pytest.mark.parametrize("after", [0, 1])
def test_a_commit_survives_a_kill_during_the_merge(own_broker: Broker, after: int) -> None:
    """If `after` is 1, the kill comes after the merge has begun. Otherwise it comes at once."""
    parts = parts_of(own_broker, 1)
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        committing = Task(committer, 1, parts)
        if after:
            wait_for(lambda: committing.is_merging(own_broker), 20, "the merge")
        (storage,) = own_broker.pids("topic")
        kill(storage)
        own_broker.wait_gone([storage])
        assert committing.result()["messages"] == PARTS
        assert committer.commit("app", 1, parts)["repeated"] is True
    assert stored(own_broker.ipc) == [body for n in range(PARTS) for body in BODIES[n]]
    assert chunks(own_broker) <= 3
    wait_for(lambda: not staged_files(own_broker), 20, "an empty staging folder")
