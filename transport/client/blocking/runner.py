"""Runner: the loop that each thread of the blocking `Consumer.run` executes.

`core/handling.py` says what a handler's result and errors mean.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from ...errors import UsageError
from ...system import StopRequests
from ...wire.protocol import DEAD
from ..core.batch_handling import BatchHandling
from ..core.consumer_backoff import Outcome
from ..core.handling import SPENT, RunnerBase, outcome_of, raised_by_signal
from ..core.message import Message


class Runner(RunnerBase):
    """Handle messages until `take` returns None, or until an error ends all threads."""

    def work(self) -> None:
        try:
            backoff = self._backoff
            while (taken := self._take()) is not None:
                ticket = 0 if backoff is None else backoff.ticket
                outcome = self.context.copy().run(self.handle, taken)
                if backoff is not None and not (backoff.is_calm and outcome is Outcome.SUCCESS):
                    self._note(ticket, outcome)
        except BaseException as error:
            self._fail(error)

    def handle(self, taken: Any) -> Outcome:
        """Handle what `take` has returned."""
        message: Message = taken
        if self._working.goes_on(message):
            return Outcome.NEITHER
        if self.handling.is_spent(message):
            with self._answering(message):
                message._give_back(DEAD, SPENT)
            return Outcome.NEITHER
        worker = threading.get_ident()
        begun_ns = self._working.begin(worker, message)
        try:
            try:
                result = self.handler(message)
            finally:
                self._working.end(worker, begun_ns)
        except BaseException as error:
            if raised_by_signal(error):
                raise
            if (delay_ms := self.handling.deferral(error)) is not None:
                self._defer(message, delay_ms)
                return Outcome.NEITHER
            self._report(message, error)
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
            message.finish()
        return Outcome.SUCCESS

    def _report(self, message: Message, error: BaseException) -> None:
        try:
            self.handling.report(message, error)
        except BaseException as second:
            if raised_by_signal(second):
                raise
            self.handling.report_callback("on_error", message, second)

    def _requeue(self, message: Message, error: BaseException, delay_ms: int | None = None) -> None:
        if not message.answered:
            with self._answering(message):
                again_ms = self.handling.again(message) if delay_ms is None else delay_ms
                message._give_back(again_ms, error)

    def _defer(self, message: Message, delay_ms: int) -> None:
        if not message.answered:
            with self._answering(message):
                message._give_back(delay_ms, defer=True)


class BatchRunner(Runner):
    """Handle batches, which `take` returns as lists of messages. See `BatchHandling`."""

    @cached_property
    def _batches(self) -> BatchHandling:
        return BatchHandling(self.handling, self._working, raised_by_signal)

    def handle(self, taken: Any) -> Outcome:
        steps = self._batches.steps(taken)
        try:
            call = next(steps)
            while True:
                try:
                    result = call()
                except BaseException as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


@contextlib.contextmanager
def draining_on_signals(drain: Callable[[], object]) -> Iterator[None]:
    """Call `drain` on SIGTERM and SIGINT. A second request gets the signal handlers from before."""
    before: dict[int, Any] = {}
    requests = StopRequests()

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number) or signal.SIG_DFL)

    def on_signal(number: int, frame: object) -> None:
        if not requests.is_second():
            drain()
            return
        restore()
        signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
