"""Forkserver: the process from which the broker's other processes are forked.

The broker's first process forks it before it opens anything or starts a thread, so both have the
imports up to then. It imports the classes of the actors while the first process starts the
supervisor. `multiprocessing` has a forkserver too. That one is a new interpreter, which imports
everything again, and it needs a third one, the resource tracker.

A request is one datagram: the child's function and its arguments, and one descriptor for it. The
answer is the child's pid, or the number of an error. The forkserver imports the classes one after
the other, and answers requests in between. So no process waits for classes that it does not use.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import pickle
import pkgutil
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from .process import die_with_parent, raise_file_limit, set_title
from .services import preloaded

REQUEST_BYTES_MAX: Final = 128 * 1024
_ANSWER: Final = struct.Struct("=qq")  # the pid, and the number of an error or 0


class _Server(NamedTuple):
    pid: int
    requests: socket.socket


_running: _Server | None = None


def begin(*, has_secrets: bool = False) -> int:
    """Start the forkserver if it is not running yet, and return its pid.

    Call it from the main thread: the parent-death signal fires when the thread that forked ends.
    Children inherit the present limit of open files, which is raised here, and the environment. If
    there were secrets in it, pass `has_secrets` after they were removed. The forkserver is then a
    new interpreter, because a fork would still have them in its memory.
    """
    global _running
    if _running is not None:
        return _running.pid
    raise_file_limit()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent_pid = os.getpid()
    pid = os.fork()
    if not pid:
        if has_secrets:
            theirs.set_inheritable(True)
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run; "
                f"run({theirs.fileno()}, {parent_pid})"
            )
            os.execv(sys.executable, [sys.executable, "-c", program])
        ours.close()
        run(theirs.detach(), parent_pid)
    theirs.close()
    _running = _Server(pid, ours)
    return pid


def start(
    function: Callable[..., object], arguments: tuple[Any, ...], descriptor: int, needs: str
) -> int:
    """Fork a child that calls `function` with its copy of `descriptor` and the arguments.

    Return its pid. The child ends when the function returns. `needs` is the name of the class that
    it uses, as in `preloaded`. Raises `OSError` if the child cannot be started.
    """
    assert _running is not None
    requests = _running.requests
    request = pickle.dumps((function, arguments, needs))
    if len(request) > REQUEST_BYTES_MAX:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    socket.send_fds(requests, [request], [descriptor])
    answer = requests.recv(_ANSWER.size)
    if not answer:
        raise ConnectionResetError("the forkserver has ended")
    pid, error = _ANSWER.unpack(answer)
    if error:
        raise OSError(error, os.strerror(error))
    return int(pid)


def end() -> None:
    """Kill the forkserver, and wait for its end. All its children must have ended."""
    global _running
    if _running is not None:
        _running.requests.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(_running.pid, signal.SIGKILL)
            os.waitpid(_running.pid, 0)
        _running = None


def run(descriptor: int, parent_pid: int) -> NoReturn:
    """Be the forkserver: answer the requests that come over the socket until the parent ends."""
    try:
        die_with_parent(parent_pid)
        set_title("forkserver")
        # A service manager or a terminal may send these to all processes, but the supervisor
        # decides what follows.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so ended children do not stay as zombies
        with open(os.devnull) as null:
            os.dup2(null.fileno(), 0)
        gc.disable()
        _answer_all(socket.socket(fileno=descriptor))
    except Exception:
        logging.getLogger("zsq").exception("the forkserver ends after an unexpected error")
    finally:
        os._exit(0)


def _answer_all(requests: socket.socket) -> None:
    waiting = deque(preloaded())
    while True:
        flags = socket.MSG_DONTWAIT if waiting else 0
        try:
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 1, flags)
        except BlockingIOError:
            _import_next(waiting)
            continue
        if not request:
            return
        function, arguments, needs = pickle.loads(request)
        while needs in waiting:
            _import_next(waiting)
        pid, error = 0, 0 if descriptors else errno.EMFILE
        try:
            pid = os.fork() if not error else 0
        except OSError as fork_error:
            error = fork_error.errno or errno.EAGAIN
        if not pid and not error:
            requests.close()
            _be_child(function, arguments, descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(_ANSWER.pack(pid, error))


def _import_next(waiting: deque[str]) -> None:
    pkgutil.resolve_name(waiting.popleft())
    # Without this a collection in a child would write to every object, and so copy all shared
    # pages.
    gc.freeze()


def _be_child(
    function: Callable[..., object], arguments: tuple[Any, ...], descriptor: int
) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.enable()
        function(descriptor, *arguments)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        logging.shutdown()
    finally:
        os._exit(0)
