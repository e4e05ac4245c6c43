"""Tests of starts that fail: a start that fails in the middle ends its child processes, and folders
that are missing after a copy do not make it fail.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.broker import Broker, free_port

import zsq

FAILING = """
import os, select, sys
from pathlib import Path
from zsq.actors.runtime import process_table
from zsq.actors.supervisor.topics import registry
from zsq.actors.settings.options import ServeOptions
from zsq.actors.supervisor.serve import serve

def fail(self):
    raise OSError(5, "by plan", "trash")

def started(self, spec, owner=None, host=None):
    child = start(self, spec, owner, host)
    children.append(os.pidfd_open(child.pid))
    return child

children = []
start, process_table.ProcessTable.start = process_table.ProcessTable.start, started
registry.Registry.finish_removals = fail
try:
    serve(ServeOptions(Path(sys.argv[1]), gateway=("127.0.0.1:" + sys.argv[2])))
except OSError as error:
    ended = sum(bool(select.select([child], [], [], 10)[0]) for child in children)
    sys.exit(f"failed {error.strerror}, {ended} of {len(children)} children ended")
"""


def test_a_start_that_fails_behind_its_first_children_ends(tmp_path: Path) -> None:
    """The children must end before the calling program ends, because that program may try again or
    do something else.
    """
    line = [sys.executable, "-c", FAILING, str(tmp_path / "data"), str(free_port())]
    ended = subprocess.run(line, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert b"failed by plan, 3 of 3 children ended" in ended.stderr


def test_a_copy_without_its_empty_folders_serves(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"1")
    assert own_broker.stop() == 0
    (own_broker.data_dir / "trash").rmdir()
    own_broker.start()
    with zsq.Reader("t", url=own_broker.ipc) as reader, zsq.Admin(own_broker.ipc) as admin:
        assert reader.read(0).head == 1
        admin.delete_topic("t", force=True)
    assert list((own_broker.data_dir / "trash").iterdir()) == []


def test_a_storage_that_cannot_bind_says_so_and_ends_by_itself(own_broker: Broker) -> None:
    """ZeroMQ must not abort the process, because the reason would then be lost. The threads of the
    process already wait on their sockets at that time.
    """
    run = own_broker.data_dir / "run"
    taken = max(int(path.name) for path in run.iterdir() if path.name.isdecimal())
    for number in range(taken + 1, taken + 100):
        (run / str(number)).mkdir()  # these folders block the names of all further sockets
    with zsq.Admin(own_broker.ipc, timeout=20) as admin:
        for turn in range(5):
            with pytest.raises(zsq.ZsqError, match=r"cannot start: ZMQError .*in use"):
                admin.create_topic(f"t{turn}")
    assert "Assertion failed" not in own_broker.log.read_text()
    assert "Traceback" not in own_broker.log.read_text()
