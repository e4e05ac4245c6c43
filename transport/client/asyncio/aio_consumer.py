"""The asyncio consumer: iterate with `async for`, or run a coroutine for each message."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from ...retries import Retries
from ...system import calls_on_signals
from ...wire.protocol import DEAD
from ..blocking.consumer import ConsumerBase
from ..core.consumer_backoff import Backoff, backoff_of
from ..core.consumer_session import EVERY
from ..core.deferral import Delay, deferral_ms
from ..core.handling import Handling, OnDeleted
from ..core.message import BatchView, MessageView, Reason, when_again
from ..core.message_batch import MessageBatch, limits_of
from ..core.subscription import ConsumerEngine
from ..link.timeouts import deadline_of
from .aio_asker import AsyncioClient, Turner
from .aio_runner import BatchRunner, Runner


class Message(MessageView):
    """One message. Its `body` is bytes.

    Answer it once: with `finish`, `requeue`, `defer`, or `reject`.
    """

    __slots__ = ()

    async def finish(self, *, sync: bool = False) -> None:
        """Finish the message. The finish is sent to the broker within 20 ms.

        `sync=True` waits until it is committed. See `zsq.Message.finish`.
        """
        self._answer()
        batch = self._batch
        if sync:
            await batch.owner._finish_sync(batch.delivery, (self._index,))
        elif batch.delivery.finish(self._index):
            batch.owner._noted()

    async def requeue(
        self, delay: Delay = 0.0, *, backoff: bool = False, error: Reason = ""
    ) -> None:
        """Deliver the message again, to any consumer.

        The delay is `delay` (seconds or a timedelta) or the channel's backoff. See
        `zsq.Message.requeue`.
        """
        self._give_back(when_again(delay, backoff), error)

    async def defer(self, delay: Delay = 0.0, *, until: datetime | None = None) -> None:
        """Put the message off, without an attempt. See `zsq.Message.defer`."""
        self._give_back(deferral_ms(delay, until), defer=True)

    async def reject(self, error: Reason = "") -> None:
        """Send the message to the dead letters, now. See `zsq.Message.reject`."""
        self._give_back(DEAD, error)

    async def touch(self) -> None:
        """Restart the message timeout for this message and all others of its delivery."""
        self._batch.delivery.check_open()
        self._batch.owner._touch(self._batch.delivery)


class Batch(BatchView[Message]):
    """A delivery of an asyncio consumer.

    An answer to the whole batch leaves out the messages that were already answered one by one.
    """

    __slots__ = ()
    message = Message

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    async def finish(self, *, sync: bool = False) -> None:
        self.delivery.check_open()
        if sync:
            await self.owner._finish_sync(self.delivery, (EVERY,))
        elif self.delivery.finish(EVERY):
            self.owner._noted()

    async def requeue(
        self, delay: Delay = 0.0, *, backoff: bool = False, error: Reason = ""
    ) -> None:
        self._give_back(when_again(delay, backoff), error)

    async def defer(self, delay: Delay = 0.0, *, until: datetime | None = None) -> None:
        self._give_back(deferral_ms(delay, until), defer=True)

    async def reject(self, error: Reason = "") -> None:
        self._give_back(DEAD, error)

    async def touch(self) -> None:
        self.delivery.check_open()
        self.owner._touch(self.delivery)


Handler = (
    Callable[[Message], Awaitable[object]] | Callable[[MessageBatch[Message]], Awaitable[object]]
)


class Consumer(ConsumerBase[Turner[ConsumerEngine]], AsyncioClient[Turner[ConsumerEngine]]):
    """Receive messages from a channel. See `zsq.Consumer` for the arguments.

    Any number of tasks may receive at once.
    """

    _messages: deque[Message]
    _batch_type = Batch

    # Receiving

    async def subscribe(self, timeout: float | None = None) -> None:
        """Wait until the channel has accepted this consumer."""
        await self._subscribe(timeout)

    async def receive_batch(self, timeout: float | None = None) -> Batch | None:
        """Return the next delivery.

        Return None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        self._window.open_for_batches()
        delivery = None if self._closing else await self._take(deadline_of(timeout))
        return None if delivery is None else Batch(self, delivery)

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Return None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        message = await self._receive(timeout)
        if message is not None:
            self._note_received()
        return message

    async def _receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, for the program or for a handler of `run`."""
        deadline_ns = deadline_of(timeout)
        while not self._closing:
            message: Message | None = self._take_held()
            if message is not None:
                return message
            if not self._hold(await self._take_next(deadline_ns), deadline_ns):
                return None
        return None

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over all deliveries, until `close`."""
        while (batch := await self.receive_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over all messages, until `close`."""
        while (message := await self.receive()) is not None:
            yield message

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all finishes that were made without `sync=True` are committed.

        Raises `LeaseLost` if some could not be committed. See `zsq.Consumer.flush`.
        """
        turner = self._made
        if turner is not None:
            await turner.carry_out(turner.engine.flush(self._patience(timeout)))

    # Running a handler

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        requeue_delay: Delay | Callable[[Message], Delay] | None = None,
        retries: Retries | None = None,
        on_error: Callable[[Message, BaseException], object] | None = None,
        signals: bool = True,
        max_extension: float | timedelta | None = None,
        on_deleted: OnDeleted = "wait",
        backoff: bool | Backoff = True,
        batch: int | None = None,
        batch_wait: float | timedelta = 0.2,
        batch_bytes: int | None = None,
        halving: bool = False,
        cancel_handlers: bool = False,
    ) -> None:
        """Await `handler(message)` for each message, until `close`, SIGTERM, or SIGINT.

        Then wait for the handlers that are working, and close the consumer. At most `concurrency`
        messages are handled at a time. The handler is a coroutine function, an object whose
        `__call__` is one, or a `functools.partial` of those. Anything else raises `UsageError`
        before a message is taken. See `zsq.Consumer.run`.

        With `cancel_handlers`, a handler whose message a user cancels is cancelled, as its task
        would be, and the message is finished. Handlers of batches are not.
        """
        handling = Handling(
            handler, requeue_delay, on_error, awaits=True, halves=halving, retries=retries
        )
        machine = backoff_of(backoff)
        limits = limits_of(batch, batch_wait, batch_bytes, self._window.fixed, halving=halving)
        working = self._begin_run(concurrency, max_extension, on_deleted, machine, limits)
        kind: type[Runner] = Runner
        take: Callable[[], Any] = self._receive
        if limits is not None:
            gather = partial(self._gather, limits, working, machine)
            kind, take = BatchRunner, partial(self._next_batch, asyncio.Lock(), gather)
        runner = kind(handling, working, take, self._stop_taking, machine, self._note_outcome)
        if cancel_handlers:
            self._drive().engine.on_cancelled = runner.cancel
        caught = (signal.SIGTERM, signal.SIGINT) if signals else ()

        async def work() -> None:
            me = asyncio.current_task()
            self._workers.add(me)
            try:
                await runner.work()
            finally:
                self._workers.discard(me)
                if self._closing and self._made is not None:
                    self._made.settle()  # `close` waits for this

        with runner.logged(self._caption):
            try:
                with calls_on_signals(asyncio.get_running_loop(), caught, runner.drain):
                    await runner.run(work() for _ in range(concurrency))
            finally:
                await self.close()
            if runner.error is not None:
                raise runner.error

    async def _next_batch(
        self, one_at_a_time: asyncio.Lock, gather: Callable[[], Generator[int, bool, Any]]
    ) -> list[Message] | None:
        """Return the messages of the next batch, or None when the consumer closes."""
        async with one_at_a_time:
            with contextlib.closing(gather()) as steps:
                try:
                    until_ns = next(steps)
                    while True:
                        arrived = self._hold(await self._take_next(until_ns), until_ns)
                        until_ns = steps.send(arrived)
                except StopIteration as end:
                    messages: list[Message] | None = end.value
                    return messages

    def _stop_taking(self) -> None:
        self._closing = True
        if self._made is not None:
            self._made.settle()

    async def close(self, timeout: float | None = None) -> None:
        """Stop receiving, wait for the handlers of `run`, and confirm the finishes.

        All other messages are returned to the channel at once. See `zsq.Consumer.close`.
        """
        if asyncio.current_task() in self._workers:
            self._stop_taking()
            return
        turner = self._made
        self._closing = True
        if turner is None or turner.engine.closing:
            return
        turner.engine.closing = True
        try:
            await turner.carry_out(
                turner.engine.leave(lambda: not self._workers, deadline_of(self._patience(timeout)))
            )
        except asyncio.CancelledError:
            turner.end_in_thread()
            raise
        finally:
            turner.stop(turner.engine.farewell_ms)

    async def __aenter__(self) -> Self:
        try:
            await self.subscribe()
        except BaseException:
            await self.close()
            raise
        return self
