"""The base of the asyncio Admin and Reader, and the turner of all asyncio clients.

The turner runs an engine in an event loop. It uses one reader for all sockets of the engine, and
one timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ...errors import ZsqError
from ...wire.address import Target
from ..blocking.asker import AskerBase, ClientAddress
from ..blocking.caretaker import caretaker
from ..blocking.client_base import ClientBase
from ..blocking.drive import Drive
from ..blocking.program_end import (
    CONCLUDE_S,
    ClientName,
    abandoned,
    inherit,
    prepare_end,
    remember,
)
from ..core.asking import Asking, Question, Reply, ask_parts
from ..core.requester import RequestEngine
from ..link.engine import Engine, Steps, Waiter
from ..link.timeouts import FAR_NS

_EngineT = TypeVar("_EngineT", bound=Engine)
_DriveT = TypeVar("_DriveT")
_T = TypeVar("_T")
_QuestionT = TypeVar("_QuestionT")
_ReplyT = TypeVar("_ReplyT")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Turner(Generic[_EngineT]):
    """A turner runs an engine in the event loop. It is made and used only in the loop's thread.

    It is the asyncio counterpart of `Drive`. The engine of a client that was dropped without
    `close`, or is open at the end of the program, leaves the loop. A `Drive` then finishes its work
    in another thread, because the loop may run no more.
    """

    def __init__(self, engine: _EngineT, *, tells: bool = False, hasty: bool = False) -> None:
        """Create a turner for `engine`. `tells`, `hasty`: see `Engine`."""
        engine.tells = tells
        engine.hasty = hasty
        self.pid = os.getpid()
        self.engine = engine
        # The tasks of a loop take turns, so they need no lock. The bases of the clients use one.
        self.lock = contextlib.nullcontext()
        self.loop = asyncio.get_running_loop()
        self.stopped = False
        self.client_name: ClientName | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._concludes = threading.Lock()  # held as soon as a thread concludes
        self._concluded = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = FAR_NS
        engine.events.attach(self.loop, self._on_ready)

    def _on_ready(self) -> None:
        if not self.stopped:
            self.engine.turn(self.engine.events.poll(0))
            self.settle()

    def _on_due(self) -> None:
        self._timer = None
        self._timer_ns = FAR_NS
        if not self.stopped:
            self.engine.turn([])
            self.settle()

    def settle(self) -> None:
        """Wake the waiters whose condition is met, and set the timer for the next due time.

        This is called after something was sent or received.
        """
        self.engine.settle()
        self._arm()

    def _arm(self) -> None:
        due_ns = self.engine.due_ns
        if due_ns >= self._timer_ns or self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self.loop.call_later(
            max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._on_due
        )

    async def wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Wait until `done()` is true. Return False at the deadline."""
        self.settle()
        turned = False  # `done` is checked once even if the deadline has passed already
        while not done():
            late = time.monotonic_ns() >= deadline_ns
            if self.stopped or (late and turned):
                return done()
            if late:
                turned = True
                self._on_ready()
                continue
            future: asyncio.Future[None] = self.loop.create_future()
            waiter = Waiter(done, partial(_wake, future), deadline_ns)
            self.engine.waiters.append(waiter)
            # A separate timer for each waiter would rarely be needed, and would cost as much as the
            # waiting itself.
            self.engine.sooner(deadline_ns)
            self._arm()
            try:
                await future
            finally:
                with contextlib.suppress(ValueError):
                    self.engine.waiters.remove(waiter)
        return True

    async def carry_out(self, steps: Steps[_T]) -> _T:
        """Run these steps."""
        with contextlib.closing(steps):
            try:
                step = next(steps)
                while True:
                    step = steps.send(await self.wait(*step))
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                if not self.stopped:
                    self.settle()

    def stop(self, linger_ms: int = 0) -> None:
        if self.stopped:
            return
        self._leave_loop()
        if self._finalizer is not None:
            self._finalizer.detach()
        self.engine.stop(linger_ms)
        self.engine.events.close()
        for waiter in list(self.engine.waiters):
            waiter.wake()

    def _leave_loop(self) -> None:
        """Let the loop turn the engine no more. The loop's thread calls this, or it is closed."""
        self.stopped = True
        self.engine.events.detach()
        if self._timer is not None:
            self._timer.cancel()

    # A client that was dropped, or is open at the end of the program

    def belong_to(self, client: object, name: ClientName | None) -> None:
        """Close when this client is dropped, and warn if it has a name."""
        self.client_name = name
        self._finalizer = weakref.finalize(client, self._on_drop)
        self._finalizer.atexit = False
        remember(self, name)
        caretaker.look_after(self)
        prepare_end()

    def _on_drop(self) -> None:
        """Let another thread conclude. This runs in any thread, and takes no lock."""
        if self.pid != os.getpid():
            inherit(self)
            return
        if self.stopped:
            return
        abandoned.add(self)
        self._ask_to_leave()
        if self.client_name is not None:
            self.client_name.warn()

    def _ask_to_leave(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.end_dropped)
        except RuntimeError:  # the loop is closed
            caretaker.take(self)

    def end_in_thread(self) -> None:
        """Finish the work of the client in a thread, because its task does not wait for that."""
        abandoned.add(self)
        self.end_dropped()

    def end_dropped(self) -> None:
        """Conclude in a thread. The loop's thread calls this, or it is closed."""
        if self.stopped or not self._concludes.acquire(blocking=False):
            return
        self._leave_loop()
        name = "zsq concluding"
        try:
            threading.Thread(target=self._conclude, name=name, daemon=True).start()
        except RuntimeError:  # the program ends, or there are too many threads
            self._conclude()

    def turn_if_idle(self) -> None:
        """Conclude if the loop was closed. Nothing else turns this engine any more."""
        if self.loop.is_closed() and not self.stopped and self.pid == os.getpid():
            self.end_in_thread()

    def _conclude(self, timeout_s: float = CONCLUDE_S) -> None:
        try:
            drive = Drive(self.engine, hasty=self.engine.hasty)
            drive.client_name = self.client_name
            drive.conclude(timeout_s)
        finally:
            abandoned.discard(self)
            self._concluded.set()

    def close(self, timeout: float | None = None) -> None:
        """Conclude at the end of the program. Log what is missing."""
        if self.stopped or self.pid != os.getpid():
            return
        abandoned.add(self)
        if self.loop.is_running():
            self._ask_to_leave()

    def finish(self, timeout_s: float) -> str:
        """Wait until a dropped client is closed. Return what is missing then, or ""."""
        if not self.loop.is_running() and self._concludes.acquire(blocking=False):
            self._leave_loop()
            self._conclude(timeout_s)
        return "" if self._concluded.wait(timeout_s) else self.engine.unfinished


class AsyncioClient(ClientBase[_DriveT]):
    """Base class of asyncio clients."""

    _tells = True  # log a broker that does not answer while a call waits for it

    def _new_drive(self, engine: Any) -> Any:
        return Turner(engine, tells=self._tells, hasty=self._is_hasty())

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Asker(AskerBase[Turner[RequestEngine]], AsyncioClient[Turner[RequestEngine]]):
    """A client of one target. Any number of tasks may send requests at once."""

    def _supervisor_of(self, place: ClientAddress) -> Asker:
        return Asker(target=Target("supervisor"), timeout=self._timeout, **place)

    async def _carry_out(self, asking: Asking[_T]) -> _T:
        """Run the generator: send its questions and return its result."""
        return await _run(asking, self._ask)

    async def _ask(self, question: Question) -> Reply:
        """Send a request and return the reply. If it is about parts, ask their brokers."""
        return await _run(ask_parts(question, self._timeout), self._reply_to)

    async def close(self) -> None:
        self._closed = True
        others, self._others = self._others, {}
        for other in others.values():
            await other.close()
        turner, self._last_drive = self._made, None
        if turner is not None:
            turner.stop(linger_ms=200)


async def _run(
    steps: Generator[_QuestionT, _ReplyT, _T], answer: Callable[[_QuestionT], Awaitable[_ReplyT]]
) -> _T:
    """Run the generator: send it the answer to each question, or throw the error into it."""
    try:
        question = next(steps)
        while True:
            try:
                reply = await answer(question)
            except ZsqError as error:
                question = steps.throw(error)
            else:
                question = steps.send(reply)
    except StopIteration as end:
        result: _T = end.value
        return result
