"""Runner: the loop that each task of the asyncio `Consumer.run` executes.

`core/handling.py` says what a handler's result and errors mean. One thing is special here: a
handler may be cancelled, as a task that it awaits may be. If the caller of `run` is not cancelled
itself, that is a failure of the message.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import cached_property, partial
from typing import Any, TypeVar

from ...errors import UsageError
from ...wire.protocol import DEAD
from ..core.batch_handling import BatchHandling
from ..core.consumer_backoff import ConsumerBackoff, Outcome
from ..core.extensions import Working
from ..core.handling import SPENT, Handling, RunnerBase, outcome_of, raised_by_signal

log = logging.getLogger("zsq")
_T = TypeVar("_T")


class Runner(RunnerBase):
    """Handle messages until `take` returns None, until an error ends all tasks, or until the task
    that made this runner is cancelled.
    """

    def __init__(
        self,
        handling: Handling,
        working: Working,
        take: Callable[[], Awaitable[Any]],
        stop: Callable[[], object],
        backoff: ConsumerBackoff | None,
        note: Callable[[int, Outcome], object],
    ) -> None:
        super().__init__(handling, working, take, stop, backoff, note)
        self._caller = asyncio.current_task()
        self._cancels = self._count_cancels()

    async def run(self, workers: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Wait for the tasks that call `work`. If the caller is cancelled, cancel them first."""
        tasks = [asyncio.create_task(worker) for worker in workers]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise

    async def work(self) -> None:
        backoff = self._backoff
        try:
            while True:
                try:
                    message = await self._take()
                except asyncio.CancelledError:
                    if self._is_cancelled():
                        raise
                    _uncancel()
                    log.warning("a task of `run` was cancelled, but not `run`; it goes on")
                    continue
                if message is None:
                    return
                ticket = 0 if backoff is None else backoff.ticket
                outcome = await _in_context(self.context.copy(), self.handle(message))
                if backoff is not None and not (backoff.is_calm and outcome is Outcome.SUCCESS):
                    self._note(ticket, outcome)
        except Exception as error:
            self._fail(error)

    def cancel(self, workers: Iterable[object]) -> None:
        """Cancel the handlers that these tasks await, because their messages were cancelled."""
        for worker in workers:
            if isinstance(worker, asyncio.Task):
                worker.cancel()

    async def handle(self, taken: Any) -> Outcome:
        """Handle what `take` has returned."""
        message = taken
        if self._working.goes_on(message):
            return Outcome.NEITHER
        if self.handling.is_spent(message):
            with self._answering(message):
                message._give_back(DEAD, SPENT)
            return Outcome.NEITHER
        worker = asyncio.current_task()
        begun_ns = self._working.begin(worker, message)
        try:
            try:
                result = await self.handler(message)
            finally:
                self._working.end(worker, begun_ns)
        except BaseException as error:
            if self._ends(error):
                raise
            if (delay_ms := self.handling.deferral(error)) is not None:
                self._defer(message, delay_ms)
                return Outcome.NEITHER
            if isinstance(error, asyncio.CancelledError) and message.cancelled:
                if not message.answered:
                    with self._answering(message):
                        await message.finish()
                return Outcome.NEITHER
            await self._report(message, error)
            self._requeue(message, error)
            return Outcome.FAILURE
        if result is not None:
            try:
                self.handling.check_result(result)
            except UsageError as error:
                self._requeue(message, error, 0)
                raise
        if message.answered:
            return outcome_of(message)
        with self._answering(message):
            await message.finish()
        return Outcome.SUCCESS

    async def _report(self, message: Any, error: BaseException) -> None:
        try:
            result = self.handling.report(message, error)
            if inspect.isawaitable(result):
                await result
        except BaseException as second:
            if self._ends(second):
                raise
            self.handling.report_callback("on_error", message, second)

    def _requeue(self, message: Any, error: BaseException, delay_ms: int | None = None) -> None:
        if not message.answered:
            with self._answering(message):
                again_ms = self.handling.again(message) if delay_ms is None else delay_ms
                message._give_back(again_ms, error)

    def _defer(self, message: Any, delay_ms: int) -> None:
        if not message.answered:
            with self._answering(message):
                message._give_back(delay_ms, defer=True)

    def _count_cancels(self) -> int:
        return 0 if self._caller is None else self._caller.cancelling()

    def _is_cancelled(self) -> bool:
        return self._count_cancels() > self._cancels

    def _ends(self, error: BaseException) -> bool:
        """Return True if this error of a handler or callback ends the task."""
        if isinstance(error, asyncio.CancelledError):
            if self._is_cancelled():
                return True
            _uncancel()
        # GeneratorExit: the event loop is gone, and nothing may be awaited any more.
        return isinstance(error, GeneratorExit) or raised_by_signal(error)


class BatchRunner(Runner):
    """Handle batches, which `take` returns as lists of messages. See `BatchHandling`."""

    @cached_property
    def _batches(self) -> BatchHandling:
        return BatchHandling(self.handling, self._working, self._ends)

    async def handle(self, taken: Any) -> Outcome:
        steps = self._batches.steps(taken)
        try:
            call = next(steps)
            while True:
                try:
                    result = call()
                    if inspect.isawaitable(result):
                        result = await result
                except BaseException as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


@types.coroutine
def _in_context(
    context: contextvars.Context, coroutine: Coroutine[Any, Any, _T]
) -> Generator[Any, Any, _T]:
    """Await a coroutine in this context, in the current task.

    A task of its own could have the context too, but the handler of a message must be in the task
    that `close` and the cancellation of `run` know, and a task costs more.
    """
    step: Callable[[], Any] = partial(coroutine.send, None)
    while True:
        try:
            awaited = context.run(step)
        except StopIteration as end:
            result: _T = end.value
            return result
        try:
            step = partial(coroutine.send, (yield awaited))
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as error:
            step = partial(coroutine.throw, error)


def _uncancel() -> None:
    """Take back the cancellation of the current task, which has been handled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
