"""Test of a scan worker that disconnects from a peer while the peer's answer is arriving. Without a
precaution, libzmq would abort the process at the next read.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHILD = """
import sys
import zmq
from zsq.actors.runtime.polling import Poller
from zsq.actors.runtime.port import Port
from zsq.actors.scan.scan_worker import ScanWorker
from zsq.actors.settings.starts import ActorStart
from zsq.transport.wire import protocol as p

folder = sys.argv[1]
context = zmq.Context()
worker = ScanWorker(1, "scan worker", ActorStart(front=f"ipc://{folder}/front"))
worker.context, worker._poller = context, Poller()
worker.on_start()
peer = Port(context, zmq.ROUTER)
peer.socket.bind(f"ipc://{folder}/peer")
for number in range(20):
    name = worker._name_of(f"ipc://{folder}/peer", number)
    assert worker._asking.send((name,), p.Scan(number))
    assert peer.socket.poll(20_000)
    for mail in peer.receive(10):
        peer.send(mail.envelope, p.Scanned(number, False, 0))
    assert worker._asking.socket.poll(20_000), "looks ahead to the first frame"
    worker._hang_up(f"ipc://{folder}/peer")
    assert not list(worker._asking.receive(10))
print("lived")
context.destroy(linger=0)
"""


def test_an_answer_that_has_begun_is_read_before_hanging_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert done.stdout == b"lived\n", (done.returncode, done.stderr[-500:])
