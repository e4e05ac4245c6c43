"""A child ends with its parent, also with one that was gone before it could ask for that."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from zsq.actors.process import die_with_parent
parent = os.getpid()
pid = os.fork()
if not pid:
    die_with_parent(int(sys.argv[1]) or parent)
    print(os.getpid(), flush=True)
    signal.pause()
    os._exit(1)
print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
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
    with started(1) as parent:  # nobody's child here is a child of process 1
        assert parent.stdout is not None
        first = parent.stdout.readline()
        if first.strip().isdigit():
            os.kill(int(first), signal.SIGKILL)
        assert first == b"ended 0\n"


def test_open_files_are_raised_as_far_as_it_goes() -> None:
    program = (
        "import resource; from zsq.actors.process import raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"
