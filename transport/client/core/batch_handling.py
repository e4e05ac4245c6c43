"""Batch handling: what `Consumer.run(batch=...)` does with a handler of batches and its errors.

The steps are a generator, which yields what is to be called next. The blocking runner calls it, and
the asyncio runner awaits it. So both do the same, and nothing here waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from ...errors import UsageError, ZsqError
from ...wire.protocol import DEAD
from .consumer_backoff import Outcome
from .extensions import Working
from .handling import SPENT, Handling, outcome_of
from .message import MessageView, Reason, as_error, as_traceback
from .message_batch import Halving, MessageBatch, by_delivery

log = logging.getLogger("zsq")

Messages = Sequence[MessageView]
Calls = Generator[Callable[[], Any], Any, None]


class BatchHandling:
    """Calls a handler with batches, and answers their messages.

    `ends` returns True for an error that ends `run`.
    """

    def __init__(
        self,
        handling: Handling,
        working: Working,
        ends: Callable[[BaseException], bool],
    ) -> None:
        self._handling = handling
        self._working = working
        self._ends = ends

    def steps(self, messages: Messages) -> Generator[Callable[[], Any], Any, Outcome]:
        """Handle these messages, and return what counts for the backoff of the consumer.

        The driver sends the result of each call, or throws its error.
        """
        begun_ns = self._working.begin_batch(messages)
        spent = [message for message in messages if self._handling.is_spent(message)]
        if spent:
            self._requeue(spent, SPENT, DEAD)
        left = _unanswered(messages) if spent else messages
        if not left:
            self._working.end_batch(messages, begun_ns)
            return Outcome.NEITHER
        halving = Halving(left, halves=self._handling.halves)
        outcomes: set[Outcome] = set()
        try:
            while (part := halving.next()) is not None:
                yield from self._handle(part, halving, outcomes)
        finally:
            self._working.end_batch(messages, begun_ns)
        # One message that could be handled shows that not everything fails.
        order = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEITHER)
        return next((outcome for outcome in order if outcome in outcomes), Outcome.NEITHER)

    def _handle(
        self, messages: Messages, halving: Halving[MessageView], outcomes: set[Outcome]
    ) -> Calls:
        batch = MessageBatch(messages)
        try:
            result = yield partial(self._handling.handler, batch)
        except BaseException as error:
            if self._ends(error):
                raise
            outcomes.update(outcome_of(message) for message in messages if message.answered)
            delay_ms = self._handling.deferral(error)
            if delay_ms is not None:
                outcomes.add(Outcome.NEITHER)
                yield from self._requeue_failed(batch)
                self._requeue(_unanswered(messages), "", delay_ms, defer=True)
                return
            outcomes.add(Outcome.FAILURE)
            yield from self._requeue_failed(batch)
            again = halving.failed(left := _unanswered(messages))
            if not left:
                yield from self._report(batch, error)
            if again:
                about = again[0] if len(again) == 1 else MessageBatch(again)
                yield from self._report(about, error)
                self._requeue(again, error)
            return
        if result is not None:
            try:
                self._handling.check_result(result)
            except UsageError as error:
                self._requeue(_unanswered(messages), error, 0)
                raise
        outcomes.update(outcome_of(message) for message in messages if message.answered)
        failed = yield from self._requeue_failed(batch)
        left = _unanswered(messages)
        outcomes.update([Outcome.FAILURE] if failed else [], [Outcome.SUCCESS] if left else [])
        self._finish(left)
        halving.succeeded()

    def _requeue_failed(
        self, batch: MessageBatch[MessageView]
    ) -> Generator[Callable[[], Any], Any, int]:
        """Requeue the messages for which the handler called `fail`. Return their number."""
        count = 0
        for message, error in batch.failed:
            if (delay_ms := self._handling.deferral(error)) is not None:
                self._requeue([message], "", delay_ms, defer=True)
                continue
            yield from self._report(message, error)
            self._requeue([message], error)
            count += 1
        return count

    def _report(self, about: Any, error: BaseException) -> Calls:
        try:
            yield partial(self._handling.report, about, error)
        except BaseException as second:
            if self._ends(second):
                raise
            self._handling.report_callback("on_error", about, second)

    def _finish(self, messages: Messages) -> None:
        for delivery, group in by_delivery(messages):
            try:
                delivery.check_open()
            except ZsqError as error:
                log.warning("%d messages were handled, but not answered: %s", len(group), error)
                continue
            for message in group:
                message._answered = True
            delivery.finish_many([message._index for message in group])
            group[0]._batch.owner._noted()

    def _requeue(
        self,
        messages: Messages,
        error: Reason,
        delay_ms: int | None = None,
        *,
        defer: bool = False,
    ) -> None:
        """Requeue messages, with the delay that `Handling.again` returns if none is given."""
        texts = as_error(error), as_traceback(error)
        for delivery, group in by_delivery(messages):
            by_delay: dict[int, list[MessageView]] = {}
            for message in group:
                again_ms = self._handling.again(message) if delay_ms is None else delay_ms
                by_delay.setdefault(again_ms, []).append(message)
            for again_ms, same in by_delay.items():
                try:
                    delivery.check_open()
                    for message in same:
                        message._answered = True
                    indexes = [message._index for message in same]
                    same[0]._batch.owner._requeue(delivery, indexes, again_ms, *texts, defer)
                except ZsqError as late:
                    log.warning("%d messages failed, but were not answered: %s", len(same), late)


def _unanswered(messages: Messages) -> list[MessageView]:
    return [message for message in messages if not message.answered]
