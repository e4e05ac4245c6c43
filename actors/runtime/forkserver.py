"""The forkserver, begun as early as can be: what it imports it imports beside the supervisor, on another core."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
from typing import Any

from .process import raise_file_limit


def begin() -> int:
    """From the main thread (the parent-death signal fires when the thread that forked ends); its pid. Again: what was begun.

    Children inherit what is so now: the limit of open files, which is raised here, and the environment, so secrets are out of it by then.
    """
    raise_file_limit()
    os.environ["ZSQ_SUPERVISOR_PID"] = str(os.getpid())
    multiprocessing.get_context("forkserver").set_forkserver_preload(["zsq.actors.runtime.preload_first", "zsq.actors.supervisor.preload"])
    multiprocessing.forkserver.ensure_running()
    server: Any = multiprocessing.forkserver._forkserver  # its pid has no public name
    return int(server._forkserver_pid)
