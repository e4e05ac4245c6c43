"""Runner: the loop that each thread of the blocking `Consumer.run` executes.

`core/handling.py` says what a handler's result and errors mean.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import UsageError, ZsqError
from ..core.extensions import Working
from ..core.handling import Handling, raised_by_signal
from ..core.message import Message

log = logging.getLogger("zsq")


class Runner:
    """Handle messages until `take` returns None, or until an error ends all threads.

    `take` returns the next message. `stop` lets it return None in all threads.
    """

    def __init__(
        self,
        handling: Handling,
        working: Working,
        take: Callable[[], Message | None],
        stop: Callable[[], object],
    ) -> None:
        self.handling = handling
        self.handler = handling.handler
        self.error: BaseException | None = None
        self._working = working
        self._take = take
        self._stop = stop

    def work(self) -> None:
        try:
            while (message := self._take()) is not None:
                self.handle(message)
        except BaseException as error:
            self.error = self.error or error
            self._stop()

    def handle(self, message: Message) -> None:
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
            self._report(message, error)
            self._requeue(message, error)
            return
        if result is not None:
            try:
                self.handling.check_result(result)
            except UsageError as error:
                self._requeue(message, error, delay=0)
                raise
        if not message.answered:
            with self._answering(message):
                message.finish()

    def _report(self, message: Message, error: BaseException) -> None:
        try:
            self.handling.report(message, error)
        except BaseException as second:
            if raised_by_signal(second):
                raise
            self.handling.report_callback("on_error", message, second)

    def _requeue(self, message: Message, error: BaseException, **how: Any) -> None:
        if not message.answered:
            with self._answering(message):
                message.requeue(**(how or self.handling.again(message)), error=error)

    @contextlib.contextmanager
    def _answering(self, message: Message) -> Iterator[None]:
        """Log an answer that is not possible any more, because the consumer was closed."""
        try:
            yield
        except ZsqError as error:
            log.warning("%s was handled, but not answered: %s", message, error)


@contextlib.contextmanager
def draining_on_signals(drain: Callable[[], object]) -> Iterator[None]:
    """Call `drain` on SIGTERM and SIGINT. The first signal also restores the signal handlers."""
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number) or signal.SIG_DFL)

    def on_signal(number: int, frame: object) -> None:
        restore()
        drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
