"""Tests that a child process ends with its parent, even if the parent ended before the child could
ask the kernel for that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from zsq.actors.runtime.process import private_bytes

MIB = 1 << 20

PROGRAM = """
import os, signal, sys
from zsq.actors.runtime.process import die_with_parent
parent = os.getpid()
pid = os.fork()
if not pid:
    die_with_parent(int(sys.argv[1]) or parent)
    print(os.getpid(), flush=True)
    signal.pause()
    os._exit(1)
print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


UNSEEN = """
import multiprocessing.reduction, os, select, sys
from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.process_table import ProcessTable
from zsq.actors.settings.starts import ActorStart
from zsq.actors.runtime.services import actor_classes

def fail(connection):
    raise RuntimeError("no descriptor is free")

multiprocessing.reduction.recv_handle = fail
table = ProcessTable(actor_classes(), f"ipc://{sys.argv[1]}/supervisor", "error")
table.start_forkserver()
child = table.start(ChildSpec(1, "scan_worker", "scan worker", ActorStart(front=f"ipc://{sys.argv[1]}/1")))
pidfd = os.pidfd_open(child.pid)
while table.children:
    select.select([table.events_fd], [], [], 10)
    table.changes()
print(bool(select.select([pidfd], [], [], 10)[0]))
"""


FAILING = """
import os, socket, threading
from zsq.actors.runtime import process_table
from zsq.actors.runtime.child import ChildSpec

class Failing:
    def __init__(self, *_):
        threading.Thread(target=threading.Event().wait).start()

    def run(self, *_):
        raise RuntimeError("by plan")

ours, theirs = socket.socketpair()
process_table.child_main(theirs.fileno(), "__main__:Failing", ChildSpec(1, "channel", "channel"), "", os.getppid(), "error")
"""


def started(parent: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(parent)], stdout=subprocess.PIPE)


def test_a_child_dies_with_its_parent() -> None:
    with started(0) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            parent.kill()
            assert select.select([pidfd], [], [], 10)[0], "the child lives on"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    with started(1) as parent:  # no process that the test starts is a child of process 1
        assert parent.stdout is not None
        first = parent.stdout.readline()
        if first.strip().isdigit():
            os.kill(int(first), signal.SIGKILL)
        assert first == b"ended 0\n"


def test_a_child_that_is_given_up_ends(tmp_path: Path) -> None:
    """The child's pidfd did not arrive, so the process table counts the child as ended. It must
    really end, because its successor needs the files that it has locked.
    """
    line = [sys.executable, "-c", UNSEEN, str(tmp_path)]
    assert subprocess.run(line, capture_output=True, check=True, timeout=60).stdout == b"True\n"


def test_a_child_that_fails_waits_for_no_thread() -> None:
    """The child's successor starts only when the child has ended, and consumers wait for the
    successor.
    """
    line = [sys.executable, "-c", FAILING]
    assert subprocess.run(line, stderr=subprocess.DEVNULL, check=False, timeout=20).returncode != 0


def test_the_limit_of_open_files_is_raised_as_far_as_permitted() -> None:
    program = (
        "import resource; from zsq.actors.runtime.process import raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        == b"True\n"
    )


def test_private_memory_is_counted_again_when_the_process_grows() -> None:
    before = private_bytes()
    assert private_bytes() == before
    assert abs(private_bytes(os.getpid()) - before) < 4 * MIB
    more = bytearray(os.urandom(32 * MIB))
    assert private_bytes() - before > 24 * MIB
    del more
