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
        WorkerThread("waits")
        raise eval(sys.argv[2])

reading, writing = os.pipe()
Sample(5, "sample", None).run(sys.argv[1], reading)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ('StartFailed("no room")', "E_START"),
        ('UsageError("E_LIMIT", "no room")', "E_LIMIT"),
        ('KeyError("no room")', "KeyError"),
    ],
)
def test_an_actor_that_cannot_start_reports_why_and_ends(
    tmp_path: Path, error: str, code: str
) -> None:
    """A thread of the actor waits on a socket. If the actor closed its parts in the wrong order,
    ZeroMQ would abort the process. The actor must also not report that it has started. The
    traceback of an error that nobody expected is in the log.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    supervisor = Port(context, zmq.ROUTER)
    supervisor.socket.bind(f"ipc://{tmp_path}/supervisor")
    try:
        line = [sys.executable, "-c", CHILD, f"ipc://{tmp_path}/supervisor", error]
        ended = subprocess.run(line, capture_output=True, timeout=60, check=False)
        assert supervisor.socket.poll(20_000)
        told = [mail.message for mail in supervisor.receive(10) if isinstance(mail, Mail)]
    finally:
        supervisor.close()
        context.destroy(linger=0)
    (failed,) = told
    assert isinstance(failed, p.Failed)
    assert (failed.request, failed.code, failed.text.strip("'")) == (5, code, "no room")
    assert ended.returncode == 3
    assert (b"Traceback" in ended.stderr and b"in on_start" in ended.stderr) == (code == "KeyError")
