"""Caretaker: a thread that looks after clients for which no other thread does.

It has two tasks. Once a minute it turns the engines that no other thread turns. A client without a
keeper (`Admin`, `Reader`) turns its engine only while a caller waits. If its broker is down for
days and nobody uses the client, ZeroMQ tries to connect every second and reports each try to the
client's monitor. Nobody reads these reports, so their memory would grow by about 25 MB a day.

It also ends clients that were dropped without `close`, if they have no keeper. The garbage
collector notices the drop in any thread, at any place, also where that thread holds a lock. So the
client is only put into a queue there. That takes no lock that Python code can hold.

There is one such thread in a process, and only while there are such clients.

Rejected: a keeper for each of these clients. A process may have hundreds of them, and most live for
one request.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from ...system import after_fork

TURN_S: Final = 60.0


class Kept(Protocol):
    """A client that a caretaker looks after."""

    def turn_if_idle(self) -> None: ...
    def end_dropped(self) -> None:
        """End this client, which was dropped without `close`. Do not wait."""


class Caretaker:
    """The clients that a thread looks after, and the thread. `turn_s`: how often it turns them."""

    def __init__(
        self,
        turn_s: float = TURN_S,
        make_queue: Callable[[], queue.SimpleQueue[Kept]] = queue.SimpleQueue,
    ) -> None:
        self._turn_s = turn_s
        self.make_queue = make_queue
        self.forget()

    def forget(self) -> None:
        """Forget, in a forked child, the clients of the parent and its thread."""
        self._clients: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._dropped = self.make_queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def look_after(self, client: Kept) -> None:
        """Turn this client from time to time, as long as it exists."""
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="caretaker of zsq clients", daemon=True
                )
                thread.start()
                self._thread = thread

    def take(self, client: Kept) -> None:
        """End this client. The garbage collector may call this anywhere."""
        self._dropped.put(client)

    def _run(self) -> None:
        at = time.monotonic() + self._turn_s
        while True:
            try:
                client = self._dropped.get(timeout=max(0.0, at - time.monotonic()))
            except queue.Empty:
                at = time.monotonic() + self._turn_s
                with self._lock:
                    clients = list(self._clients)
                    if not clients:
                        self._thread = None
                        return
                while clients:  # none of them stays referenced, so it can be collected meanwhile
                    clients.pop().turn_if_idle()
            else:
                client.end_dropped()
                del client


caretaker: Final = Caretaker()
after_fork(caretaker.forget)
