"""Test of an actor that cannot start: it reports why and ends, even if one of its threads is still
working.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.host import ENDED
from zsq.actors.runtime.port import Mail, Port
from zsq.actors.settings.starts import ActorStart
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


REFUSING = """
from zsq.actors.runtime.actor import Actor
from zsq.transport.errors import Refused

class Refusing(Actor):
    def may_drop_start(self):
        return True

    def on_start(self):
        raise Refused("E_DISK_FULL", "no room")
"""
HOST = """
import sys
from multiprocessing.connection import Connection
from zsq.actors.runtime.host import SharedHost

SharedHost(sys.argv[1], Connection(int(sys.argv[2]))).run()
"""


def test_a_shared_host_reports_the_end_of_an_actor_after_the_reason(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    supervisor = Port(context, zmq.ROUTER)
    endpoint = f"ipc://{tmp_path}/supervisor"
    supervisor.socket.bind(endpoint)
    ours, theirs = multiprocessing.Pipe()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, endpoint, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    try:
        for key in range(1, 6):
            spec = ChildSpec(key, "channel", "channel t/c", ActorStart())
            ours.send(("refusing:Refusing", spec, "warning"))
            assert ours.poll(20)
            assert int.from_bytes(os.read(ours.fileno(), ENDED), "big") == key
            assert supervisor.socket.poll(0), "the reason came first"
            (mail,) = supervisor.receive(10)
            assert isinstance(mail, Mail)
            assert mail.message == p.Failed(key, "E_DISK_FULL", "no room")
        ours.close()
        assert host.wait(20) == 0, "it ends with its supervisor"
    finally:
        host.kill()
        host.wait()
        theirs.close()
        supervisor.close()
        context.destroy(linger=0)
