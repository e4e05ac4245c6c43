"""Drive: turns an engine, in a thread that waits for it, or else in a keeper thread.

To *turn* an engine is to process the events that arrived, and then the timers that are due (see
`link/engine.py`). The thread that does this is the driver.

A publish or a receive needs no thread switch. A thread that waits (for Stored, for a delivery)
waits for the engine's descriptors itself, without the lock. It processes events under the lock. If
another thread drives already, the thread *follows*: it sleeps on a private lock. The driver
releases this lock when the thread's condition is met, or when the thread must become the driver.

The keeper is a daemon thread. While other threads turn the engine, it only checks the timers every
20 ms (lingering messages, finishes to send, heartbeats). When no thread has turned the engine for
20 ms, the keeper drives. So replies are processed, and a lost link is opened again, while the
user's code does something else. The keeper stops driving as soon as a caller wants to drive. While
a driver sleeps for longer, the keeper rests: it wakes only for a timer that the driver would miss,
and when the driver leaves.

Rejected: a thread that always does the I/O. Each publish then costs two thread switches and two
waits for the GIL (40 to 80 microseconds in other measurements, more than the rest of a publish).

Fork: an engine belongs to the process that made it. Its client forgets it in a child, and makes a
new Drive. The inherited Drive is kept permanently (`inherit`) and never touched, so no destructor
closes a socket of the parent.

Drop: neither a drive nor an engine holds a strong reference to its client. So a client that a
program drops without `close` is collected, although the keeper runs. A finalizer then lets the
keeper finish the client's work (`Engine.conclude`) and close it. The finalizer runs in any thread,
perhaps while this thread holds the lock of this drive. So it takes no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from ...errors import ZsqError
from ...system import SLEEP_NS_MAX, Ready, Waker, wait_readable
from ..link.engine import Engine, Steps, Waiter
from ..link.timeouts import FAR_NS
from .caretaker import caretaker
from .program_end import CONCLUDE_S, ClientName, abandoned, inherit, prepare_end

TICK_NS: Final = 20_000_000
_EngineT = TypeVar("_EngineT", bound=Engine)
_T = TypeVar("_T")

log = logging.getLogger("zsq")


class Drive(Generic[_EngineT]):
    """An engine, its lock, and the threads that turn it.

    The caller must hold the lock for all methods except `carry_out`, `nudge`, `turn_if_idle`,
    `leave`, and those about a client that was dropped.
    """

    def __init__(self, engine: _EngineT, *, keeper: str = "", hasty: bool = False) -> None:
        """Create a drive for `engine`.

        `keeper`: the name of the keeper thread. Without a name there is no such thread, and the
        engine is turned only while a caller waits, and once a minute (`caretaker.py`). `hasty`: see
        `Engine`.
        """
        engine.tells = True
        engine.hasty = hasty
        self.pid = os.getpid()
        self.engine = engine
        self.lock = threading.Lock()
        self.stopped = False
        self._driver: object | None = None
        self._driver_until_ns = 0  # when the driver wakes at the latest
        self._wakers: list[Waker] = []
        self._waker = Waker()  # wakes the driver
        self._wakers.append(self._waker)
        self._wake_fd = self._waker.fileno()
        engine.events.register(self._wake_fd)
        self._keeper_name = keeper
        self._keeper: threading.Thread | None = None
        self._keeper_waker = Waker()
        self._wakers.append(self._keeper_waker)
        self._keeper_until_ns = 0  # the latest time of the keeper's next check
        self._keeper_drives = False
        self.client_name: ClientName | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._dropped = False
        self._concluded = threading.Event()
        if not keeper:
            caretaker.look_after(self)

    # Waiting

    def wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Turn the engine until `done()` is true. Return False at the deadline.

        The lock is held on entry and exit, but not in between.
        """
        if done():
            return True
        waker = threading.Lock()
        waker.acquire()
        waiter = Waiter(done, lambda: self._wake(waker))
        self.engine.waiters.append(waiter)
        try:
            turned = False  # `done` is checked once even if the deadline has passed already
            while not done():
                now = time.monotonic_ns()
                if (turned and now >= deadline_ns) or self.stopped:
                    return done()
                turned = True
                if waiter not in self.engine.waiters:
                    # This thread was woken, but another thread has taken what it waited for.
                    self.engine.waiters.append(waiter)
                if self._driver is None:
                    self._drive(waker, deadline_ns)
                else:
                    # The driver sleeps, perhaps beyond a timer that this thread has set.
                    self.need(self.engine.due_ns)
                    self._follow(waker, deadline_ns - now)
            return True
        finally:
            if waiter in self.engine.waiters:
                self.engine.waiters.remove(waiter)
            self._hand_over()

    def _drive(self, me: threading.Lock, deadline_ns: int) -> None:
        """Do one round: sleep without the lock until an event or a timer, then turn the engine."""
        if self._keeper_drives:
            self._step_back_keeper()
        engine = self.engine
        self._driver = me
        self._driver_until_ns = min(deadline_ns, engine.due_ns)
        pause_ns = min(self._driver_until_ns - time.monotonic_ns(), SLEEP_NS_MAX)
        self.lock.release()
        try:
            ready = engine.events.poll(pause_ns / 1e9 if pause_ns > 0 else 0)
        finally:
            self.lock.acquire()
            self._driver = None
        self._turn(ready)

    def _turn(self, ready: Ready) -> None:
        if self.stopped:
            return
        for fd, _ in ready:
            if fd == self._wake_fd:
                self._waker.drain()
        self.engine.turn(ready)
        self.engine.settle()

    def _follow(self, waker: threading.Lock, pause_ns: int) -> None:
        self.lock.release()
        try:
            waker.acquire(timeout=max(0, min(pause_ns, SLEEP_NS_MAX)) / 1e9)
        finally:
            self.lock.acquire()

    def _wake(self, waker: threading.Lock) -> None:
        if self._driver is waker:
            self._waker.wake()
        elif waker.locked():
            waker.release()

    def _hand_over(self) -> None:
        """Wake a waiting thread to drive, or the keeper if it rests, if no thread drives."""
        if self._driver is not None:
            return
        if self.engine.waiters:
            self.engine.waiters[0].wake()
        elif self._keeper_until_ns == FAR_NS:
            self._keeper_until_ns = 0
            self._keeper_waker.wake()

    def carry_out(self, steps: Steps[_T]) -> _T:
        """Take the lock and run these steps."""
        with self.lock, contextlib.closing(steps):
            try:
                step = next(steps)
                while True:
                    step = steps.send(self.wait(*step))
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                self.settle()

    def settle(self) -> None:
        """Wake the waiters whose condition is met, and make sure that the next timer is processed.

        This is called after a caller has sent or received something.
        """
        engine = self.engine
        if engine.waiters:
            engine.settle()
        self.need(engine.due_ns)

    def need(self, at_ns: int) -> None:
        """Make sure that the timers are checked at `at_ns`, by the keeper if no caller waits."""
        if self._driver is not None and self._driver_until_ns <= at_ns:
            return
        if at_ns < self._keeper_until_ns and self._keeper is not None:
            self._keeper_until_ns = at_ns
            self._keeper_waker.wake()
        elif self._keeper is None and self._keeper_name and at_ns < FAR_NS and not self.stopped:
            keeper = threading.Thread(target=self._keep, name=self._keeper_name, daemon=True)
            keeper.start()
            self._keeper = keeper

    def nudge(self) -> None:
        """Make the driver check again. This does not take the lock, so a signal handler may call
        it.
        """
        self._waker.wake()

    def turn_if_idle(self) -> None:
        """Turn the engine, unless another thread uses it. The caller does not hold the lock."""
        if self.pid == os.getpid() and self.lock.acquire(blocking=False):
            try:
                if self._driver is None and not self.stopped:
                    self._turn(self.engine.events.poll(0))
            finally:
                self.lock.release()

    # The keeper

    def _keep(self) -> None:
        seen, drove = -1, False
        while True:
            if self._dropped:
                self.conclude()
                return
            with self.lock:
                if self.stopped:
                    return
                engine = self.engine
                is_quiet, is_driven = engine.turns == seen, self._driver is not None
                idle = is_quiet and not is_driven
                now = time.monotonic_ns()
                # Before the first long sleep, the timers say when they are really due next. The one
                # for the answer to a message is not any more, for example, if that has arrived.
                if now >= engine.due_ns or (idle and not drove):
                    engine.timers(now)
                    engine.settle()
                seen = engine.turns
                if is_quiet and is_driven and engine.due_ns >= self._driver_until_ns:
                    until = FAR_NS
                else:
                    until = engine.due_ns if idle else min(engine.due_ns, now + TICK_NS)
                self._keeper_until_ns = until
                self._keeper_drives = drove = idle
            pause_ms = max(0, min(until - now, SLEEP_NS_MAX)) // 1_000_000 + 1
            keeper_fd = self._keeper_waker.fileno()
            if idle:
                woken, arrived = engine.events.wait_beside(keeper_fd, pause_ms)
            else:
                woken, arrived = bool(wait_readable((keeper_fd,), pause_ms)), False
            with self.lock:
                self._keeper_drives = False
                if self.stopped:
                    return
                if woken:
                    self._keeper_waker.drain()
                if arrived and self._driver is None:
                    self._turn(self.engine.events.poll(0))
                    seen = self.engine.turns

    def _step_back_keeper(self) -> None:
        """Make the keeper stop driving, because a caller drives now.

        If two threads slept on the same descriptors, both would wake for each message.
        """
        self._keeper_drives = False
        self._keeper_waker.wake()

    # Ending

    def stop(self, linger_ms: int = 0) -> None:
        """Close the engine and wake all waiters."""
        if self.stopped:
            return
        self.stopped = True
        if self._finalizer is not None:
            self._finalizer.detach()
        self.engine.stop(linger_ms)
        for waiter in list(self.engine.waiters):
            waiter.wake()
        self._keeper_waker.wake()

    def leave(self, linger_ms: int) -> None:
        """Close the engine and wait for the keeper. The caller does not hold the lock.

        The descriptors are closed when no reference to this object is left.
        """
        with self.lock:
            self.stop(linger_ms)
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join(1.0)

    # A client that was dropped

    def belong_to(self, client: object, name: ClientName | None) -> None:
        """Close this drive when its client is dropped, and warn if the client has a name."""
        self.client_name = name
        self._finalizer = weakref.finalize(client, self._on_drop)
        self._finalizer.atexit = False
        prepare_end()

    def _on_drop(self) -> None:
        """Let another thread conclude. This runs in any thread, and takes no lock."""
        if self.pid != os.getpid():
            inherit(self)
            return
        if self.stopped:
            return
        abandoned.add(self)
        self._dropped = True
        if self._keeper is not None:
            self._keeper_waker.wake()
        else:
            caretaker.take(self)
        if self.client_name is not None:
            self.client_name.warn()

    def end_dropped(self) -> None:
        """End a client that has no keeper. Such clients have nothing to wait for."""
        self.conclude()

    def conclude(self, timeout_s: float = CONCLUDE_S) -> None:
        """Finish the work of a client that nobody uses any more, and close. Log what is missing."""
        try:
            self.carry_out(self.engine.conclude(timeout_s))
        except ZsqError as error:
            log.warning("%s: it was dropped without close(): %s", self.client_name, error)
        finally:
            self.leave(self.engine.farewell_ms)
            self.engine.events.close()
            abandoned.discard(self)
            self._concluded.set()

    def finish(self, timeout_s: float) -> str:
        """Wait until a dropped client is closed. Return what is missing then, or ""."""
        return "" if self._concluded.wait(timeout_s) else self.engine.unfinished

    def __del__(self) -> None:
        """Close the descriptors. No thread sleeps on them, because no thread uses this object."""
        if self.pid == os.getpid():
            for waker in self._wakers:  # fewer than two if no descriptor was left
                waker.close()
