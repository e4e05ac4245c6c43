"""The end of a program, and of clients that it drops.

A program that ends without `close` closes its clients here, within `EXIT_S` in all: messages that
linger are sent, finishes are confirmed, and messages that a consumer holds go back to the channel.
What could not be done is logged.

Python calls the functions of `atexit` when the main thread returns, raises, or calls `sys.exit`. It
does not call them in a child of `multiprocessing` that was forked, nor in one of Celery's prefork
pool. Both end with `os._exit`, but call functions of their own before. In a child of
`multiprocessing` these come before the child waits for its other threads. So the clients only flush
if there are such threads, because they may still use the clients. After `os._exit`, SIGKILL, or a
signal without a handler, no Python code runs, and nothing can be done.

A client that is dropped without `close` is closed in the background, with a `ResourceWarning` (see
`Drive`). The end of the program waits for that, too.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from ...system import after_fork
from ...wire.sockets import end_context

EXIT_S: Final = 5.0
SENT_S: Final = 1.0  # how long the last bytes of closed clients may take
# How long a client that was dropped tries to send what it has.
CONCLUDE_S: Final = 30.0
_PACKAGE: Final = __name__.partition(".")[0]
# Frames of these modules are not where a user makes a client.
_INNER: Final = (f"{_PACKAGE}.", "contextlib")

log = logging.getLogger("zsq")


class ClientName(NamedTuple):
    """The kind of a client, and the line that made it, for warnings."""

    what: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.what} (made at {self.file}:{self.line})"

    def warn(self) -> None:
        """Warn that this client was dropped without `close`."""
        text = f"{self.what} was dropped without close(), and is closed now"
        warnings.warn_explicit(text, ResourceWarning, self.file, self.line)


def name_of(client: object, of: str = "") -> ClientName:
    """Return the name of a client that is being made. `of`: the names of its topic and channel."""
    kind = type(client)
    module = kind.__module__
    if module.partition(".")[0] == _PACKAGE:
        module = f"{_PACKAGE}.aio" if ".asyncio." in module else _PACKAGE
    label = f"{module}.{kind.__qualname__}{of and f' of {of}'}"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INNER):
        frame = frame.f_back
    return ClientName(label, frame.f_code.co_filename, frame.f_lineno)


class Closes(Protocol):
    def close(self, timeout: float | None = None) -> Any: ...


class Abandoned(Protocol):
    """A client that was dropped, and is being closed in the background."""

    client_name: ClientName | None

    def finish(self, timeout_s: float) -> str:
        """Wait until it is closed. Return what is missing then, or ""."""
        ...


_open_clients: weakref.WeakKeyDictionary[Any, ClientName | None] = weakref.WeakKeyDictionary()
# The garbage collector adds to this set, in any thread. It is not iterated, but copied.
abandoned: Final[set[Abandoned]] = set()
_inherited: Final[list[object]] = []  # objects of the parent process, which are kept permanently
_imported_pid: Final = os.getpid()
_prepared_pid = -1


def inherit(drive: object) -> None:
    """Keep an object of the parent permanently, so that no destructor runs on it."""
    _inherited.append(drive)


def remember(client: Closes, name: ClientName | None) -> None:
    """Close this client at the end of the program if it is still open."""
    _open_clients[client] = name


def _remaining(timeout_s: float) -> Iterator[float]:
    """Yield how many seconds of a time-out are left, again and again."""
    deadline = time.monotonic() + timeout_s
    while True:
        yield max(0.0, deadline - time.monotonic())


def _finish(end: Callable[[Any, float], object]) -> None:
    left = _remaining(EXIT_S)
    for client, name in list(_open_clients.items()):
        try:
            end(client, next(left))
        except Exception as error:
            log.warning("%s: at the end of the program: %s", name, error)
    for dropped in list(abandoned):
        missing = dropped.finish(next(left))
        if missing:
            log.warning("%s: at the end of the program: %s", dropped.client_name, missing)


def close_all() -> None:
    """Close all clients of this process."""
    _finish(lambda client, timeout_s: client.close(timeout_s))


def _end_child() -> None:
    """Close all clients of a child of `multiprocessing`, or flush if other threads go on."""
    me = threading.current_thread()
    if any(thread is not me and not thread.daemon for thread in threading.enumerate()):
        _finish(lambda client, timeout_s: getattr(client, "flush", client.close)(timeout_s))
    else:
        _end_worker()


def _end_worker(**of_signal: object) -> None:
    """Close all clients of a process that ends with `os._exit`. Celery calls this with a signal."""
    close_all()
    end_context(SENT_S)


atexit.register(close_all)


def prepare_end() -> None:
    """Let the libraries that end a process in ways of their own close its clients before.

    Each new client calls this.
    """
    global _prepared_pid
    if _prepared_pid == os.getpid():
        return
    _prepared_pid = os.getpid()
    if _prepared_pid != _imported_pid:
        # Newer Pythons call only those functions of `atexit` that the child has registered.
        atexit.unregister(close_all)
        atexit.register(close_all)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, _end_child, exitpriority=0)
    signals = sys.modules.get("celery.signals")
    if signals is not None:
        signals.worker_process_shutdown.connect(_end_worker, weak=False, dispatch_uid="zsq")


def _after_fork() -> None:
    """Leave the dropped clients of the parent to the parent."""
    _inherited.extend(abandoned)
    abandoned.clear()


after_fork(_after_fork)
