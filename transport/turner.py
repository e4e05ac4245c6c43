"""Turning an engine from an event loop: one reader for all its sockets, one timer for all that is due."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from .engine import FAR_NS, Engine, Waiter

_EngineT = TypeVar("_EngineT", bound=Engine)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Turner(Generic[_EngineT]):
    """An engine in the running loop; made and used in its thread only. The counterpart of `Drive`."""

    def __init__(self, engine: _EngineT) -> None:
        self.pid = os.getpid()
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = FAR_NS
        # An epoll set can be waited for like any descriptor, and stays readable as long as one of its own is.
        self.loop.add_reader(engine.epoll.fileno(), self._on_ready)

    def _on_ready(self) -> None:
        if not self.stopped:
            self.engine.turn(self.engine.epoll.poll(0))
            self.settle()

    def _on_due(self) -> None:
        self._timer = None
        self._timer_ns = FAR_NS
        if not self.stopped:
            self.engine.turn([])
            self.settle()

    def settle(self) -> None:
        """After something was sent or taken: wake who waited for it, and see that what is due is done in time."""
        self.engine.settle()
        self._arm()

    def _arm(self) -> None:
        due_ns = self.engine.due_ns
        if due_ns >= self._timer_ns or self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self.loop.call_later(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._on_due)

    async def wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Until `done()`, or False at the deadline."""
        self.settle()
        while not done():
            if self.stopped or time.monotonic_ns() >= deadline_ns:
                return done()
            future: asyncio.Future[None] = self.loop.create_future()
            waiter = Waiter(done, partial(_wake, future), deadline_ns)
            self.engine.waiters.append(waiter)
            # No timer of its own for each who waits: it is hardly ever needed, and costs as much as the waiting.
            self.engine.sooner(deadline_ns)
            self._arm()
            try:
                await future
            finally:
                with contextlib.suppress(ValueError):
                    self.engine.waiters.remove(waiter)
        return True

    def stop(self, linger_ms: int = 0) -> None:
        if self.stopped:
            return
        self.stopped = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.engine.epoll.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self.engine.stop(linger_ms)
        self.engine.epoll.close()
        for waiter in list(self.engine.waiters):
            waiter.wake()
