"""Commands of `zsq` in processes that start at once, because they are forked from an interpreter
that has imported the command line already (`support/zsq_zygote.py`).

A test that is about the start of the process, or that needs the process while it runs, starts
`python -m zsq` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Zsq = Callable[..., subprocess.CompletedProcess[str]]
"""Runs a command with these arguments, and `stdin`."""
PROGRAM = Path(__file__).with_name("zsq_zygote.py")
ANSWER_BYTES_MAX = 20


def read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def write(descriptor: int, data: bytes) -> None:
    """Write all data, unless the reader ends before it has read them."""
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


class Zygote:
    """The process that forks the commands. It carries out one at a time."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._one_at_a_time = threading.Lock()

    def run(
        self, arguments: list[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        words = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": os.getcwd(),
        }
        with self._one_at_a_time, ThreadPoolExecutor(3) as threads:
            (source, to), (out, out_end), (err, err_end) = (os.pipe() for _ in range(3))
            socket.send_fds(
                self._requests, [json.dumps(words).encode()], [source, out_end, err_end]
            )
            for descriptor in (source, out_end, err_end):
                os.close(descriptor)
            pid = int(self._requests.recv(ANSWER_BYTES_MAX))
            streams = [threads.submit(write, to, stdin)]
            said = [threads.submit(read, one) for one in (out, err)]
            self._requests.settimeout(timeout_s)
            try:
                code = int(self._requests.recv(ANSWER_BYTES_MAX))
            except BaseException as error:
                os.kill(pid, signal.SIGKILL)
                self._requests.settimeout(None)
                # Otherwise the next command would take this code, or its process id, for its own.
                self._requests.recv(ANSWER_BYTES_MAX)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(arguments, timeout_s) from None
                raise
            self._requests.settimeout(None)
            for stream in streams:
                stream.result()
            return subprocess.CompletedProcess(arguments, code, *(one.result() for one in said))

    def close(self) -> None:
        self._requests.close()
        self._process.wait(40)


@functools.cache
def zygote() -> Zygote:
    """Return the one of this process. It ends with this process."""
    one = Zygote()
    atexit.register(one.close)
    return one


def run(
    *arguments: object,
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run `zsq` with these arguments, and with these variables added to the environment."""
    return zygote().run([str(one) for one in arguments], os.environ | environment, stdin, timeout_s)


def run_text(
    *arguments: object, stdin: str = "", timeout_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Like `run`, with texts in place of bytes."""
    ended = run(*arguments, stdin=stdin.encode(), timeout_s=timeout_s, **environment)
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
    )
