"""TaskOutcomes: a middleware of taskiq that tells the backoff of a worker what tasks come to.

taskiq acknowledges a task that has failed like one that has not. So the acknowledgement says
nothing, and the middleware is asked: taskiq calls it in the worker, before and after each task.

The outcome of a task is noted when the asyncio task ends in which taskiq runs it. Rejected: to note
it in `post_execute`. taskiq does not call that if another middleware raises an error, and the
backoff would wait for the outcome of its probe for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from taskiq import TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.exceptions import NoResultError, TaskRejectedError

from ...transport.client.core.consumer_backoff import Outcome


class Run:
    """A task that runs, and the ticket of the backoff with which it began."""

    __slots__ = ("outcome", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.outcome = Outcome.SUCCESS


# An asyncio task that the task itself starts sees it too.
_run: ContextVar[Run | None] = ContextVar("zsq_taskiq_run", default=None)


class TaskOutcomes(TaskiqMiddleware):
    """Call `note` with the ticket and the outcome of each task."""

    def __init__(self, ticket: Callable[[], int], note: Callable[[int, Outcome], None]) -> None:
        super().__init__()
        self._ticket = ticket
        self._note = note

    @property
    def is_running(self) -> bool:
        """Return True if the caller is a task that runs, whose outcome will be noted."""
        return _run.get() is not None

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        run = Run(self._ticket())
        _run.set(run)
        runner = asyncio.current_task()
        assert runner is not None, "taskiq runs tasks in an event loop"
        runner.add_done_callback(lambda done: self._ended(run, done))
        return message

    def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[object], exception: BaseException
    ) -> None:
        run = _run.get()
        if run is not None:
            run.outcome = outcome_of(exception)

    def _ended(self, run: Run, runner: asyncio.Task[object]) -> None:
        is_broken = runner.cancelled() or runner.exception() is not None
        self._note(run.ticket, Outcome.FAILURE if is_broken else run.outcome)


def outcome_of(error: BaseException) -> Outcome:
    """Return what an error of a task means for the backoff. See `zsq.Consumer.run`."""
    if isinstance(error, NoResultError):
        return Outcome.NEITHER  # `Context.requeue` raises it
    # A task that rejects its message says that the message is bad.
    return Outcome.SUCCESS if isinstance(error, TaskRejectedError) else Outcome.FAILURE
