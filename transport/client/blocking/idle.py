"""Idle clients: a thread turns the engines that no other thread turns, once a minute.

A client without a keeper (`Admin`, `Reader`) turns its engine only while a caller waits. If its
broker is down for days and nobody uses the client, ZeroMQ tries to connect every second and reports
each try to the client's monitor. Nobody reads these reports, so their memory would grow by about
25 MB a day.

There is one such thread in a process, and only while there are such clients.

Rejected: a keeper for each of these clients. A process may have hundreds of them, and most live for
one request.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol

from ...system import after_fork

TURN_S: Final = 60.0


class Turns(Protocol):
    def turn_if_idle(self) -> None: ...


_clients: weakref.WeakSet[Turns] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_woken: threading.Event | None = None  # of that thread; only tests set it


def look_after(client: Turns) -> None:
    """Turn this client once a minute, as long as it exists."""
    global _thread, _woken
    with _lock:
        _clients.add(client)
        if _thread is None:
            _woken = threading.Event()
            _thread = threading.Thread(
                target=_run, args=(_woken,), name="idle clients of zsq", daemon=True
            )
            _thread.start()


def _run(woken: threading.Event) -> None:
    global _thread
    while True:
        woken.wait(TURN_S)
        with _lock:
            clients = list(_clients)
            if not clients:
                _thread = None
                return
        while clients:  # none of them stays referenced, so it can be collected meanwhile
            clients.pop().turn_if_idle()


def _after_fork() -> None:
    """Forget, in a forked child, the clients of the parent and its thread."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _clients.clear()


after_fork(_after_fork)
