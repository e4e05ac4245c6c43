"""Check of ZeroMQ's I/O thread in the process of the tests."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import zmq

from zsq.transport.wire import sockets

ANSWER_S: Final = 10
_rounds = 0


def check() -> None:
    """Fail if a message between two new sockets of this process does not arrive.

    Afterwards, this process has a new context. So the next tests are not affected.
    """
    global _rounds
    context = sockets._contexts.get(os.getpid())
    if context is None or context.closed:
        return
    _rounds += 1
    descriptors = _count()
    address = f"ipc://@zsq-check-{os.getpid()}-{_rounds}"
    begin_s = time.monotonic()
    with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        push.setsockopt(zmq.LINGER, 0)
        pull.bind(address)
        push.connect(address)
        push.send(b"")
        in_time = pull.poll(ANSWER_S * 1000)
        state = "" if in_time else "\n".join(_state())
        late = pull.poll(ANSWER_S * 5000)
    if in_time:
        _wait_closed(descriptors)
        return
    sockets._contexts.pop(os.getpid())
    _kept.append(context)
    how = f"{time.monotonic() - begin_s:.0f} s late" if late else "not at all"
    raise AssertionError(f"a message between two sockets of this process arrived {how}\n{state}")


_kept: list[zmq.Context[Any]] = []  # closing a broken context would block


def _count() -> int:
    return len(os.listdir("/proc/self/fd"))


def _wait_closed(descriptors: int) -> None:
    """Wait until ZeroMQ's own thread has closed the descriptors of the two sockets.

    Some tests count the descriptors of this process.
    """
    end_s = time.monotonic() + 1
    while _count() > descriptors and time.monotonic() < end_s:
        os.sched_yield()


def _state() -> Iterator[str]:
    """Yield what tells why: the open descriptors, the threads, and the open sockets."""
    for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda one: int(one.name)):
        try:
            yield f"descriptor {entry.name}: {entry.readlink()}"
        except OSError:
            continue
    for task in sorted(Path("/proc/self/task").iterdir()):
        words = []
        for name in ("comm", "wchan", "syscall"):
            try:
                words.append((task / name).read_text().strip())
            except OSError as error:
                words.append(str(error.strerror))
        yield f"thread {task.name}: {' | '.join(words)}"
    for found in gc.get_objects():
        if isinstance(found, zmq.Socket) and not found.closed:
            try:
                yield f"socket {found!r} {found.getsockopt(zmq.LAST_ENDPOINT)!r}"
            except zmq.ZMQError as error:
                yield f"socket {found!r}: {error}"
