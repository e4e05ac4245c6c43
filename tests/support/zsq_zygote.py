"""Program that forks commands of `zsq` for `support/zsq_command.py`. It has imported what they
need, so that a command does not pay for the start of an interpreter.

A request is a datagram with arguments, environment and folder, and with the descriptors of stdin,
stdout and stderr. The answers are the process id, and the exit code as `subprocess` has it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pkgutil
import runpy
import socket
import sys
from importlib import import_module
from typing import Any

REQUEST_BYTES_MAX = 1 << 20
# What the commands import when they run. Each of these packages is imported with all its modules.
PACKAGES = ("zsq.apps.cli", "zsq.transport")
MODULES = ("rich.console", "rich.table", "rich.text", "rich.progress", "rich.live", "json")


def preload() -> None:
    """Import what commands import, and keep it in memory that they share."""
    for package in PACKAGES:
        found = import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            # A module that needs an extra is missing without it, as it is in a command.
            with contextlib.suppress(ModuleNotFoundError):
                import_module(module.name)
    for name in MODULES:
        import_module(name)
    gc.freeze()


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request, one after the other. Return the request in that process, and
    None in this one when there are no more requests.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            requests.close()
            for target, descriptor in enumerate(descriptors):
                os.dup2(descriptor, target)
                os.close(descriptor)
            found: dict[str, Any] = json.loads(message)
            return found
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    preload()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        # The rest is what `python -m zsq` does, to the end of the interpreter.
        sys.argv = ["zsq", *request["arguments"]]
        runpy.run_module("zsq", run_name="__main__", alter_sys=True)
