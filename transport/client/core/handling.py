"""Handling: what `Consumer.run` does with a handler, its result, and its errors.

A message is handled when its handler returns. `run` then finishes the message, unless the handler
has answered it. Whatever else a handler or a callback does is a failure of this message, and not of
`run`. A batch fails as a whole, see [consumers.md](consumers.md#handlers-of-batches).

- **It raises an exception**, also `SystemExit` by `sys.exit()`, or `KeyboardInterrupt`: `run` calls
  `on_error`, or logs the exception, and requeues the message after `requeue_delay`. When five have
  failed in a row, the consumer [backs off](consumers.md#how-a-consumer-backs-off) as a whole.
- **It fails for the last time:** with `max_attempts`, the channel makes the message a dead letter.
  With `retries`, `run` rejects it.
- **It raises `zsq.RetryAfter`**, also in a group of exceptions that has nothing else: `run` puts
  the message off, as `Message.defer` does, without `on_error`.
- **A signal handler of the program, or Ctrl-C, interrupts it** with `SystemExit` or
  `KeyboardInterrupt`: `run` returns the message to the channel, and ends with this error. With
  `signals=True`, only the second signal can do that.
- **It is cancelled (asyncio):** if `run` was cancelled, `run` returns the message and ends.
  Otherwise the message has failed.
- **It returns before its work has run**, with a coroutine, another awaitable, a generator, a `map`
  or `filter`, or a future, or it returns a `RetryAfter`: `run` requeues the message, and ends with
  `UsageError`.
- **A call would run nothing**, because it is a generator function or, in a blocking consumer, a
  coroutine function: `run` raises `UsageError` before it takes a message.
- **It sets a context variable:** this ends with the message. Each one is handled in a copy of the
  context in which `run` was called.
- **It kills its process:** the channel delivers its messages to another consumer.
- **It never ends:** it occupies its thread or task, and the message is delivered again when its
  lease ends. After SIGTERM, `run` waits for it. A second SIGTERM, half a second later or more, ends
  the program, unless the program handles it.
- **It blocks the event loop for longer than two heartbeats (asyncio):** the broker gives the
  messages of this consumer to others. Use `asyncio.to_thread`, or a blocking consumer.
- **`on_error` raises, or `requeue_delay` raises or returns no delay:** the log gets the errors, and
  the message is requeued, with the channel's backoff if there is no delay.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import math
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Literal, get_args

from ...errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ...retries import Retries
from ...wire.protocol import BACKOFF, DEAD, DELAY_MS_MAX
from .consumer_backoff import ConsumerBackoff, Outcome
from .deferral import RetryAfter, as_seconds, deferral_in, delay_ms_of
from .extensions import Working
from .message import MessageView

log = logging.getLogger("zsq")

OnDeleted = Literal["wait", "raise"]
COROUTINE: Final = "a coroutine"
_KINDS: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (inspect.iscoroutinefunction, COROUTINE),
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)
_RESULTS: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (inspect.iscoroutine, COROUTINE),
    (inspect.isasyncgen, "an async generator"),
    (inspect.isgenerator, "a generator"),
    (lambda result: isinstance(result, map | filter), "an iterator"),
    (lambda result: isinstance(result, Future), "a future"),
    (inspect.isawaitable, "an awaitable"),
)
DELAY_S_MAX: Final = DELAY_MS_MAX // 1000
SPENT: Final = "its last attempt ended without an answer of its handler"


def check_callable(what: str, value: Any) -> None:
    """Raise `UsageError` for a value that cannot be called. None is accepted."""
    if value is not None and not callable(value):
        raise UsageError(
            E_BAD_ARGUMENT, f"{what} must be callable, not {type(value).__name__}: {value!r:.80}"
        )


def lazy_result_of(function: Any) -> str:
    """Return what a call of this function returns instead of running it, or "" if it runs it.

    The function may also be a method, an object with `__call__`, or a `functools.partial`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    for is_kind, name in _KINDS:
        if is_kind(function) or is_kind(type(function).__call__):
            return name
    return ""


def raised_by_signal(error: BaseException) -> bool:
    """Return True if a signal has raised this error, and not the code that it interrupted.

    This is `SystemExit` or `KeyboardInterrupt` in the main thread, from a signal handler of the
    program or from Python's own handler of SIGINT. The latter leaves no trace, so while it is
    installed, each `KeyboardInterrupt` counts as its.
    """
    if (
        not isinstance(error, SystemExit | KeyboardInterrupt)
        or threading.current_thread() is not threading.main_thread()
    ):
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    if isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True
    codes = {_code_of(handler) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


class Handling:
    """The callables that a caller has given to `run`."""

    def __init__(
        self,
        handler: Any,
        requeue_delay: Any,
        on_error: Any,
        *,
        awaits: bool,
        halves: bool = False,
        retries: Retries | None = None,
    ) -> None:
        """Check the arguments.

        `awaits`: True if `run` awaits the handler. `halves`: True if a batch that fails is handled
        again in halves.
        """
        if retries is not None:
            if not isinstance(retries, Retries):
                text = f"retries must be a zsq.Retries, not {type(retries).__name__}"
                raise UsageError(E_BAD_ARGUMENT, text)
            if requeue_delay is not None:
                text = "give retries or requeue_delay to run, not both"
                raise UsageError(E_BAD_ARGUMENT, text)
        check_callable("the handler", handler)
        if handler is None:
            raise UsageError(E_BAD_ARGUMENT, "the handler must be callable, not None")
        check_callable("on_error", on_error)
        lazy = lazy_result_of(handler)
        if awaits and lazy != COROUTINE:
            text = (
                "the handler must be a coroutine function (async def without yield), an object "
                "whose __call__ is one, or a functools.partial of those; "
                f"it is {handler!r:.80}. Use zsq.Consumer for a plain function"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        if lazy == COROUTINE and not awaits:
            text = (
                "the handler is a coroutine function, which this consumer cannot await; use "
                "zsq.aio.Consumer, or a plain function"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        if lazy and not awaits:
            text = (
                f"the handler is a generator function: a call of it returns {lazy} and runs "
                "nothing; use a function without yield"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        for name, callback, may_await in (
            ("on_error", on_error, awaits),
            ("requeue_delay", requeue_delay, False),
        ):
            lazy = lazy_result_of(callback) if callable(callback) else ""
            if lazy and not (lazy == COROUTINE and may_await):
                text = f"{name} must be a plain function; a call of this one returns {lazy}"
                raise UsageError(E_BAD_ARGUMENT, text)
        if requeue_delay is not None and not callable(requeue_delay):
            delay_ms_of(requeue_delay)
        self.handler = handler
        self._retries = retries
        self.halves = halves
        self._delay = requeue_delay
        self._on_error = on_error
        self._warned = False

    def check_result(self, result: Any) -> None:
        """Raise `UsageError` if the result shows that the work has not run."""
        if isinstance(result, RetryAfter):
            text = "the handler returned a RetryAfter; raise it. The message was requeued"
            raise UsageError(E_BAD_ARGUMENT, text)
        name = next((name for is_kind, name in _RESULTS if is_kind(result)), "")
        if not name:
            return
        if name == COROUTINE:
            result.close()
        text = (
            f"the handler returned {name}, and nothing waits for the work in it; the message was "
            "requeued. Let the handler return when its work is done"
        )
        if name == COROUTINE:
            text += ": await the coroutine, in a handler of zsq.aio.Consumer"
        raise UsageError(E_BAD_ARGUMENT, text)

    def report(self, message: Any, error: BaseException) -> Any:
        """Call `on_error` and return its result, or log the error."""
        if self._on_error is not None:
            return self._on_error(message, error)
        text = (
            "handler failed for %s; an unanswered message is requeued, or given up after its last "
            "attempt"
        )
        log.error(text, message, exc_info=error)
        return None

    def report_callback(self, name: str, message: Any, error: BaseException) -> None:
        """Log that a callback failed."""
        log.error("%s failed for %s; the message is requeued", name, message, exc_info=error)

    def deferral(self, error: object) -> int | None:
        """Return the milliseconds for which an error defers its message, or None for a failure."""
        return deferral_in(error)

    def is_spent(self, message: MessageView) -> bool:
        """Return True if the policy allows no attempt any more, not even this one.

        The last handler may have ended with its process, so nobody has counted its failure.
        """
        return self._retries is not None and self._retries.is_over(message.attempts - 1)

    def again(self, message: Any) -> int:
        """Return the delay in ms with which `run` requeues a message that failed.

        BACKOFF and DEAD are special, as in `Req`.
        """
        if self._retries is not None:
            if self._retries.is_over(message.attempts):
                return DEAD
            return int(self._retries.delay_s(message.attempts, random.random) * 1000)
        if self._delay is None:
            return BACKOFF
        if not callable(self._delay):
            return delay_ms_of(self._delay)
        try:
            seconds = as_seconds(self._delay(message))
            if seconds > DELAY_S_MAX:
                self._warn_of(seconds)
                return DELAY_MS_MAX
            return delay_ms_of(seconds)
        except BaseException as error:
            if raised_by_signal(error):
                raise
            self.report_callback("requeue_delay", message, error)
            return BACKOFF

    def _warn_of(self, seconds: float) -> None:
        if not self._warned:
            self._warned = True
            text = (
                "requeue_delay returned %s s; the longest delay is %d s, which is used instead. "
                "This is logged once"
            )
            log.warning(text, "inf" if math.isinf(seconds) else f"{seconds:g}", DELAY_S_MAX)


def outcome_of(message: MessageView) -> Outcome:
    """Return the outcome of a handler that has returned."""
    delay_ms = getattr(message, "_delay_ms", None)
    if delay_ms is None or delay_ms == DEAD:
        return Outcome.SUCCESS
    return Outcome.FAILURE if delay_ms == BACKOFF else Outcome.NEITHER


def awaits_topic(on_deleted: OnDeleted) -> bool:
    """Return True if `run` waits for a topic that was deleted. Check the value."""
    if on_deleted not in get_args(OnDeleted):
        text = f"on_deleted must be {' or '.join(get_args(OnDeleted))}, not {on_deleted!r:.40}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return on_deleted == "wait"


class RunnerBase:
    """The base of the blocking and the asyncio runner. It logs why `run` ends.

    | reason | what `run` does |
    |---|---|
    | `close` was called, or SIGTERM or SIGINT came, with `signals=True` | It ends. |
    | its task was cancelled (asyncio) | It ends with `CancelledError`. |
    | the topic was closed to consumers (`E_CLOSED`) | It goes on when the topic is open again. |
    | the topic was deleted | It goes on when the topic exists again, see `on_deleted`. |
    | the channel was deleted | It creates the channel again, if it may. |
    | the broker stops, or is gone | It goes on when a broker answers. |
    | the channel has no place for it (`E_LIMIT`) | It goes on when there is a place. |
    | `E_DISK_FULL`, `E_TOPIC_FAILED`, `E_INTERNAL` | It goes on when the broker accepts it. |
    | it has waited for longer than its `timeout` | It ends with the error. |
    | `E_FORBIDDEN` or `E_NOT_FOUND`: it may not subscribe or create | It ends with the error. |
    | `UsageError`: a wrong name, setting, key or handler | It ends with the error. |

    While `run` waits, it pauses at most a second between attempts. The log (`zsq`) has a warning
    after 1 s, after 10 s, and then every minute. When `run` ends, the log has one line with the
    reason. Its level is ERROR if an error has ended `run`, and otherwise INFO.
    """

    def __init__(
        self,
        handling: Handling,
        working: Working,
        take: Callable[[], Any],
        stop: Callable[[], object],
        backoff: ConsumerBackoff | None,
        note: Callable[[int, Outcome], object],
    ) -> None:
        """Create a runner.

        `working` is told which handlers work.
        `take` returns the next message, or None when the consumer closes. `stop` lets `take` return
        None at once, in all threads or tasks. `note` is told the outcome of each handler and the
        ticket of `backoff` with which it began, unless the outcome changes nothing.
        """
        self.handling = handling
        self.handler = handling.handler
        self.error: BaseException | None = None
        # Each message is handled in a copy, so a context variable that a handler sets ends with it.
        self.context = contextvars.copy_context()
        self._working = working
        self._take = take
        self._stop = stop
        self._backoff = backoff
        self._note = note
        self._why = "the consumer was closed"

    def drain(self) -> None:
        """Take no more messages, because of a signal. A signal handler may call this."""
        self._why = "SIGTERM or SIGINT"
        self._stop()

    def _fail(self, error: BaseException) -> None:
        """End all threads or tasks with this error."""
        self.error = self.error or error
        self._stop()

    @contextlib.contextmanager
    def logged(self, consumer: str) -> Iterator[None]:
        """Log why `run` ends, in one line."""
        try:
            yield
        except Exception as error:
            log.error("%s: run ends: %s: %s", consumer, type(error).__name__, error)
            raise
        except BaseException as error:
            log.info("%s: run ends: %s", consumer, type(error).__name__)
            raise
        log.info("%s: run ends: %s", consumer, self._why)

    @contextlib.contextmanager
    def _answering(self, message: Any) -> Iterator[None]:
        """Log an answer that is not possible any more, because the consumer was closed."""
        try:
            yield
        except ZsqError as error:
            log.warning("%s was handled, but not answered: %s", message, error)
