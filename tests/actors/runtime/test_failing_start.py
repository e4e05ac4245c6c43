"""Test of an actor that cannot start: it reports why and ends, even if one of its threads is still
working.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from zsq.actors.runtime.port import Mail, Port
from zsq.transport.wire import protocol as p

CHILD = """
import os, sys
from zsq.actors.runtime.actor import Actor, StartFailed
from zsq.actors.runtime.worker_thread import WorkerThread
from zsq.transport.errors import UsageError

class Sample(Actor):
    def on_start(self):
        WorkerThread(self.context, "waits")
        raise ERROR

reading, writing = os.pipe()
Sample(5, "sample", None).run(sys.argv[1], reading)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [('StartFailed("no room")', "E_START"), ('UsageError("E_LIMIT", "no room")', "E_LIMIT")],
)
def test_an_actor_that_cannot_start_reports_why_and_ends(
    tmp_path: Path, error: str, code: str
) -> None:
    """A thread of the actor waits on a socket. If the actor closed its parts in the wrong order,
    ZeroMQ would abort the process. The actor must also not report that it has started.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    supervisor = Port(context, zmq.ROUTER)
    supervisor.socket.bind(f"ipc://{tmp_path}/supervisor")
    try:
        line = [sys.executable, "-c", CHILD.replace("ERROR", error), f"ipc://{tmp_path}/supervisor"]
        ended = subprocess.run(line, capture_output=True, timeout=60, check=False)
        assert supervisor.socket.poll(20_000)
        told = [mail.message for mail in supervisor.receive(10) if isinstance(mail, Mail)]
    finally:
        supervisor.close()
        context.destroy(linger=0)
    assert told == [p.Failed(5, code, "no room")]
    assert (ended.returncode, ended.stderr) == (3, b"")
