"""Test of a shared host that lacks what it needs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, threading
from multiprocessing.connection import Pipe
from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.host import SharedHost

def refuse(thread):
    raise RuntimeError("can't start new thread")

logging.basicConfig()
threading.Thread.start = refuse
ours, theirs = Pipe()
ours.send(("module:Class", ChildSpec(1, "topic", "topic t"), "info"))
SharedHost("", theirs).run()
"""


def test_a_host_that_can_start_no_thread_says_so() -> None:
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "the system starts no thread for topic t; raise the limit of tasks" in done.stderr
