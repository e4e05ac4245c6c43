"""Tests that show why stages are needed: a PUSH socket alone loses rows while its sender reports
success. A stage's writer over the same sockets does not.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zmq

from zsq.transport.block.block import pack

ROWS: Final = 200_000
A_MESSAGE: Final = 100
MESSAGES: Final = ROWS // A_MESSAGE

# A simple sink in a task: it pushes all messages, closes the socket, and reports the number of
# rows. LINGER -1 is ZeroMQ's own default: ZeroMQ waits until everything is sent.
PUSHER: Final = f"""
import sys, zmq
context = zmq.Context()
push = context.socket(zmq.PUSH)
push.setsockopt(zmq.LINGER, -1)
push.connect(sys.argv[1])
for i in range({MESSAGES}):
    push.send(b"%08d" % i * 200)
push.close()
context.term()
print({MESSAGES} * {A_MESSAGE})
"""


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_push_reports_success_for_what_never_arrives(
    tmp_path: Path, context: zmq.Context[Any]
) -> None:
    """The receiver is slow and restarts once. The messages in its pipe are lost, and nothing
    reports it.
    """
    endpoint = f"ipc://{tmp_path}/pull"
    received = 0

    def receive(count: int) -> int:
        pull = context.socket(zmq.PULL)
        pull.bind(endpoint)
        taken = 0
        while taken < count and pull.poll(2000):
            pull.recv()
            taken += 1
        pull.close(linger=0)
        return taken

    task = subprocess.Popen([sys.executable, "-c", PUSHER, endpoint], stdout=subprocess.PIPE)
    try:
        received += receive(MESSAGES // 4)  # it ends while its pipe is full
        received += receive(MESSAGES)
        said, _ = task.communicate(timeout=30)
    finally:
        task.kill()
        task.wait()
    assert task.returncode == 0
    assert int(said) == ROWS, "the task reports success"
    assert received * A_MESSAGE < ROWS, "and rows are missing"


def test_a_stage_on_the_same_ways_loses_nothing(storage: Any) -> None:
    """A StageWriter sends the same rows, while the storage dies several times with full pipes."""
    from zsq.transport.client.blocking.stage_writer import StageWriter

    stop = threading.Event()

    def die_again_and_again() -> None:
        for pushes in (200, 600, 1200):
            storage.wait_for(lambda pushes=pushes: storage.pushes >= pushes)
            storage.die()
            storage.start()
        stop.set()

    killer = threading.Thread(target=die_again_and_again)
    killer.start()
    rows = [[b"%08d" % i * 25] * A_MESSAGE for i in range(MESSAGES)]
    with StageWriter("t", "app", 1, url=storage.url, window_bytes=4 << 20) as writer:
        for bodies in rows:
            writer.push(pack(bodies))
        part = writer.seal()
    killer.join(20)
    assert stop.is_set()
    assert part is not None
    assert part[2] == ROWS
    assert storage.bodies(part[0]) == [body for bodies in rows for body in bodies]
