"""A Python that looks like that of macOS or Windows, for tests of clients. Run it as a program:

    python -m support.other_system darwin -c "import zsq; ..."
    python -m support.other_system win32 -m zsq pub clicks hello --url tcp://127.0.0.1:4153

It takes away what Python does not have there: functions of `os` and `select`, modules, and classes
of sockets and event loops. Then it changes `sys.platform`, and runs the code, the module or the
command line that follows. It does this before anything of zsq is imported.

This shows that clients use nothing that does not exist there. It does not show how a call that
exists behaves there. Other packages (ZeroMQ's binding, click, rich) are imported before, because
their own code for the other system would not run here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import os
import runpy
import select
import selectors
import socket
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final, cast

# Imported before the change: they look at the platform when they are imported.
FIRST: Final = (
    "asyncio", "click", "concurrent.futures", "ctypes", "importlib.metadata", "json", "logging.handlers", "mmap",
    "msgpack", "multiprocessing", "pathlib", "platform", "rich.console", "rich.live", "rich.progress", "rich.table",
    "shutil", "ssl", "subprocess", "tempfile", "tomllib", "uuid", "zmq", "zmq.backend", "zmq.utils.z85",
)  # fmt: skip
# The same for packages that only some commands need.
OPTIONAL: Final = ("pyarrow.compute", "pyarrow.parquet", "kombu.transport.virtual")
# What Python has only on Linux.
OF_LINUX: Final = {
    "os": (
        "EFD_CLOEXEC", "EFD_NONBLOCK", "EFD_SEMAPHORE", "copy_file_range", "eventfd", "eventfd_read", "eventfd_write",
        "fdatasync", "getrandom", "memfd_create", "pidfd_open", "posix_fadvise", "posix_fallocate", "sched_getaffinity",
        "setns", "splice", "unshare",
    ),
    "select": ("epoll", *(name for name in dir(select) if name.startswith("EPOLL"))),
    "signal": ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
}  # fmt: skip
# What Python does not have on Windows.
OF_POSIX: Final = {
    "os": (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "chown", "fchmod", "fchown",
        "fork", "forkpty", "geteuid", "getegid", "getgid", "getgroups", "getloadavg", "getpgid", "getpgrp",
        "getpriority", "getresuid", "getsid", "getuid", "initgroups", "killpg", "lockf", "mkfifo", "nice", "openpty",
        "pathconf", "pipe2", "posix_spawn", "pread", "preadv", "pwrite", "pwritev", "readv", "register_at_fork",
        "sendfile", "setsid", "setuid", "statvfs", "sync", "sysconf", "ttyname", "uname", "wait", "wait3", "wait4",
        "WIFSIGNALED", "WTERMSIG", "writev",
    ),
    "select": ("poll", *(name for name in dir(select) if name.startswith("POLL"))),
    "signal": (
        "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm",
        "pause", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt", "sigpending", "sigwait",
    ),
    "socket": ("AF_UNIX", "CMSG_LEN", "recv_fds", "send_fds"),
}  # fmt: skip
# Modules that cannot be imported there. Of the packages, those that zsq does not require there.
NOT_ON_MACOS: Final = ("lmdb", "setproctitle", "spwd")
NOT_ON_WINDOWS: Final = (
    *NOT_ON_MACOS, "_posixsubprocess", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog",
    "termios", "tty", "uvloop",
)  # fmt: skip


class _Missing(importlib.abc.MetaPathFinder):
    """Refuses the import of some modules, as where they do not exist."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _forget(names: Mapping[str, Sequence[str]]) -> None:
    for module, gone in names.items():
        for name in gone:
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)


def _set(owner: Any, **values: object) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _loopback_pair(*_: object) -> tuple[socket.socket, socket.socket]:
    """Return what `socket.socketpair` returns on Windows: two connected sockets of TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _address = server.accept()
    return one, other


def _use_windows_calls() -> None:
    """Replace calls that exist on Windows, but behave in another way."""
    import asyncio

    _set(socket, socketpair=_loopback_pair)

    def no_handlers(self: Any, *_: object) -> None:
        raise NotImplementedError

    _set(
        asyncio.SelectorEventLoop,
        add_signal_handler=no_handlers,
        remove_signal_handler=no_handlers,
    )
    opened = os.open

    def open_no_folder(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    _set(os, open=open_no_folder)

    class ProactorEventLoop(asyncio.SelectorEventLoop):
        """The default event loop of Windows. Programs cannot let it watch sockets."""

        def add_reader(self, *_: Any) -> None:  # type: ignore[override]
            raise NotImplementedError

    _set(asyncio.events, new_event_loop=ProactorEventLoop)
    _set(asyncio, ProactorEventLoop=ProactorEventLoop)


class _Msvcrt:
    """The part of the module `msvcrt` of Windows that locks a range of a file."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        import fcntl

        self._lock = fcntl.flock
        self._how = fcntl.LOCK_EX | fcntl.LOCK_NB

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        try:
            self._lock(descriptor, self._how)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None


def become(system: str) -> None:
    """Make this process look like one of `system`: "darwin" or "win32"."""
    assert system in ("darwin", "win32")
    assert not any(name.partition(".")[0] == "zsq" for name in sys.modules)
    for name in FIRST:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "zsq"]:
        del sys.modules[name]  # Kombu has loaded an entry point
    windows = system == "win32"
    if windows:
        sys.modules["msvcrt"] = cast("ModuleType", _Msvcrt())
    gone = NOT_ON_WINDOWS if windows else NOT_ON_MACOS
    for name in [name for name in sys.modules if name.partition(".")[0] in gone]:
        if name != "posix":  # the interpreter itself uses it
            del sys.modules[name]
    sys.meta_path.insert(0, _Missing(gone))
    # The event loops of asyncio use what this class offers.
    name = "SelectSelector" if windows else "PollSelector"
    _set(selectors, DefaultSelector=getattr(selectors, name))
    _forget(OF_LINUX)
    if windows:
        _use_windows_calls()
        _forget(OF_POSIX)
    sys.platform = system


def main(arguments: list[str]) -> None:
    system, kind, what, *rest = arguments
    become(system)
    if kind == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(what, "<test>", "exec"), {"__name__": "__main__"})
    else:
        assert kind == "-m"
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
