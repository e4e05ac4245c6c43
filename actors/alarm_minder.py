"""Runs one command for the teller of alarms, and ends it with all it started: when its time is over, or when the teller ends, however.

A program of its own, started as `python -I -S alarm_minder.py SECONDS MESSAGE PROGRAM [ARGUMENT...]`; SECONDS: what it gets, MESSAGE: the
file descriptor that becomes its stdin. It needs nothing of zsq, so it is up in a hundredth of a second.

stdin is a pipe whose other end only the teller holds: it ends with the teller, also by SIGKILL. Whatever the command starts stays below
this process (it is their "subreaper"), whichever session or parent it takes, so all of it is found. What is left behind by a command
that ended by itself is its own affair, and goes on. stdout takes what became of it: `ended CODE`, `late`, or `unstarted WHY`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0  # what runs as another user cannot be killed: it is not waited for without end
_AGAIN_S = 0.01


def main(arguments: list[str]) -> None:
    seconds, message, command = float(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid, why = _start(libc, command, message)
    os.close(message)
    if why:
        _say(f"unstarted {why}")
        return
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(ended, select.POLLIN)
    ready = dict(poll.poll(seconds * 1000))
    if ended in ready:
        _say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
        return
    _end_all()
    if not ready:
        _say("late")


def _start(libc: ctypes.CDLL, command: list[str], message: int) -> tuple[int, str]:
    """(its pid, why it could not be started). It dies with this process too, were that killed."""
    reading, writing = os.pipe()  # closed by a start that goes well
    minder = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != minder:
                os._exit(127)
            os.setsid()
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                signal.signal(ignored, signal.SIG_DFL)
            os.dup2(message, 0)
            os.close(message)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execv(command[0], command)
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(127)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pid, pipe.read().decode(errors="replace")


def _end_all() -> None:
    """Until nobody is left: one that is killed may have started another one meanwhile, which is ours then."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        for pid in _descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_AGAIN_S)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b") ")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:  # grows meanwhile
        found += children.get(pid, ())
    return found[1:]


def _say(text: str) -> None:
    os.write(1, text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
