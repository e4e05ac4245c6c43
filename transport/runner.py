"""What runs a person's handler: one message at a time in each thread, finish on return, requeue with backoff on an exception.

The backoff is the channel's: whoever runs the broker sets it in one place, for all consumers. Rejected: a backoff with jitter in each
client, which was there before. Jitter keeps clients apart that do not know of each other; here the channel's credit does that.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .errors import E_BAD_ARGUMENT, UsageError, ZsqError
from .message import Message

if TYPE_CHECKING:
    from .consumer import Consumer

log = logging.getLogger("zsq")

Handler = Callable[[Message], object]
Delay = float | Callable[[Message], float] | None


def again(message: Any, delay: float | Callable[[Any], float] | None) -> dict[str, Any]:
    """How `Consumer.run` requeues a message: arguments of `requeue`."""
    if delay is None:
        return {"backoff": True}
    return {"delay": delay(message) if callable(delay) else delay}


class Runner:
    """What each thread of `Consumer.run` does; the first error of the broker's ends all of them."""

    def __init__(self, consumer: Consumer, handler: Handler, delay: Delay, on_error: Any) -> None:
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            text = "the handler is a coroutine function, which nobody would await here; use zsq.aio.Consumer, or a plain function"
            raise UsageError(E_BAD_ARGUMENT, text)
        self.consumer = consumer
        self.handler = handler
        self.delay = delay
        self.on_error = on_error
        self.error: ZsqError | None = None

    def work(self) -> None:
        try:
            while (message := self.consumer.receive()) is not None:
                self.handle(message)
        except ZsqError as error:
            self.error = self.error or error
            self.consumer._stop_taking()

    def handle(self, message: Message) -> None:
        try:
            result = self.handler(message)
        except Exception as error:
            if self.on_error is not None:
                self.on_error(message, error)
            else:
                log.exception("handler of %s failed", message)
            if not message.answered:
                message.requeue(**again(message, self.delay), error=error)
        else:
            if inspect.iscoroutine(result):  # of a lambda or a partial: it has not run, so the message is not done
                result.close()
                message.requeue()
                raise UsageError(E_BAD_ARGUMENT, "the handler returned a coroutine, which nobody awaits here; use zsq.aio.Consumer")
            if not message.answered:
                message.finish()


@contextlib.contextmanager
def draining_on_signals(consumer: Consumer) -> Iterator[None]:
    """SIGTERM and SIGINT drain; a second one acts as it did before."""
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number) or signal.SIG_DFL)

    def drain(number: int, frame: object) -> None:
        restore()
        consumer._stop_taking()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, drain)
    try:
        yield
    finally:
        restore()
