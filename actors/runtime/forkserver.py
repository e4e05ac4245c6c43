"""Forkserver: starts early, so that its imports run on another core while the supervisor starts."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
from typing import Any, Final

from .process import raise_file_limit

# The modules that the forkserver imports, in this order. A broker for tests puts one before them
# (apps/testing/serve.py).
PRELOADED: Final = ["zsq.actors.runtime.preload_first", "zsq.actors.supervisor.preload"]


def begin() -> int:
    """Start the forkserver if it is not running yet, and return its pid.

    Call it from the main thread: the parent-death signal fires when the thread that forked ends.
    Children inherit the present limit of open files, which is raised here, and the environment. So
    remove secrets from the environment before the call.
    """
    raise_file_limit()
    os.environ["ZSQ_SUPERVISOR_PID"] = str(os.getpid())
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    multiprocessing.forkserver.ensure_running()
    server: Any = multiprocessing.forkserver._forkserver  # the pid has no public name
    return int(server._forkserver_pid)


def end() -> None:
    """Kill the forkserver and the resource tracker, which it has started, and wait for their ends.

    All children of the forkserver must have ended.
    """
    server: Any = multiprocessing.forkserver._forkserver
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    for pid in (server._forkserver_pid, tracker._pid):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
