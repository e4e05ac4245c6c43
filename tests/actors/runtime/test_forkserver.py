"""Tests of the forkserver: its children, and what happens if it cannot fork one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import Final

SETUP: Final = """
import os, resource, select, sys
from zsq.actors.runtime import forkserver

def say(descriptor, text):
    os.write(descriptor, text.encode())

def child(function, *arguments):
    reading, writing = os.pipe()
    with open(writing, "wb"):
        pid = forkserver.start(function, arguments, writing, needs="")
    with open(reading) as file:
        return pid, file.read()
"""


def output_of(program: str, **variables: str) -> str:
    line = [sys.executable, "-c", SETUP + program]
    environment = {**os.environ, **variables}
    done = subprocess.run(line, capture_output=True, check=True, timeout=60, env=environment)
    return done.stdout.decode()


def test_a_child_calls_the_function_and_leaves_no_zombie() -> None:
    program = """
forkserver.begin()
pid, text = child(say, "by the child")
pidfd = os.pidfd_open(pid) if os.path.exists(f"/proc/{pid}") else -1
ended = pidfd < 0 or bool(select.select([pidfd], [], [], 10)[0])
print(text, ended, os.path.exists(f"/proc/{pid}"))
"""
    assert output_of(program) == "by the child True False\n"


def test_a_start_fails_but_the_forkserver_lives_when_it_has_no_descriptor_left() -> None:
    program = """
server = forkserver.begin()
child(say, "")
limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
resource.prlimit(server, resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    child(say, "")
except OSError as error:
    print(error.strerror)
resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
print(child(say, "again")[1])
"""
    assert output_of(program) == "Too many open files\nagain\n"


def test_a_request_that_is_too_long_is_refused() -> None:
    program = """
forkserver.begin()
try:
    child(say, "x" * forkserver.REQUEST_BYTES_MAX)
except OSError as error:
    print(error.strerror)
print(child(say, "again")[1])
"""
    assert output_of(program) == "Argument list too long\nagain\n"


def test_a_secret_of_the_environment_is_not_in_the_forkserver() -> None:
    """A fork keeps the environment that its parent began with, and shows it in /proc."""
    program = """
os.environ.pop("TEST_SECRET")
pid = forkserver.begin(has_secrets=True)
print(child(os.write, b"up")[1])
for name in ("self", pid):
    with open(f"/proc/{name}/environ") as file:
        print("hidden" in file.read())
"""
    assert output_of(program, TEST_SECRET="hidden") == "up\nTrue\nFalse\n"


def test_the_forkserver_ends_with_its_parent() -> None:
    program = """
pid = forkserver.begin()
print(pid, flush=True)
os._exit(0)
"""
    pid = int(output_of(program))
    if os.path.exists(f"/proc/{pid}"):
        pidfd = os.pidfd_open(pid)
        assert select.select([pidfd], [], [], 10)[0], "it lives on"
        os.close(pidfd)
