"""The asyncio consumer: iterate with `async for`, or run a coroutine for each message."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from ...system import calls_on_signals
from ...wire.address import DefaultTimeout
from ...wire.protocol import DEAD
from ..blocking.consumer import ConsumerBase, check_concurrency, check_ready
from ..blocking.program_end import inherit
from ..core.consumer_session import EVERY, LeasedBlock
from ..core.extensions import Working, check_extension
from ..core.handling import Handling, OnDeleted, awaits_topic
from ..core.message import BatchView, Delay, MessageView, Reason, when_again
from ..core.subscription import ConsumerEngine
from ..link.timeouts import deadline_of
from .aio_asker import Turner
from .aio_runner import Runner


class Message(MessageView):
    """One message. Answer it once: with `finish`, `requeue`, or `reject`."""

    __slots__ = ()

    async def finish(self, sync: bool = False) -> None:
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

    async def finish(self, sync: bool = False) -> None:
        self.delivery.check_open()
        if sync:
            await self.owner._finish_sync(self.delivery, (EVERY,))
        elif self.delivery.finish(EVERY):
            self.owner._noted()

    async def requeue(
        self, delay: Delay = 0.0, *, backoff: bool = False, error: Reason = ""
    ) -> None:
        self._give_back(when_again(delay, backoff), error)

    async def reject(self, error: Reason = "") -> None:
        self._give_back(DEAD, error)

    async def touch(self) -> None:
        self.delivery.check_open()
        self.owner._touch(self.delivery)


Handler = Callable[[Message], Awaitable[object]]


class Consumer(ConsumerBase):
    """Receive messages from a channel. See `zsq.Consumer` for the arguments.

    Any number of tasks may receive at once.
    """

    _made: Turner[ConsumerEngine] | None
    _messages: deque[Message]

    def _begin(self) -> None:
        self._ended = False
        # The last delivery that was taken message by message: when, and how many.
        self._filled_ns = self._filled = 0

    def _turner(self) -> Turner[ConsumerEngine]:
        made = self._made
        if made is None or made.pid != os.getpid():
            if made is not None:
                inherit(made)
            made = self._made = Turner(
                self._engine(), tells=True, hasty=isinstance(self._timeout, DefaultTimeout)
            )
            made.belong_to(self, self._client_name)
        return made

    # Receiving

    async def subscribe(self, timeout: float | None = None) -> None:
        """Wait until the channel has accepted this consumer."""
        self._check_open()
        turner = self._turner()
        await turner.carry_out(
            turner.engine.subscribe(self._timeout if timeout is None else timeout, self._is_closing)
        )

    async def receive_batch(self, timeout: float | None = None) -> Batch | None:
        """Return the next delivery.

        Return None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        self._window.open_for_batches()
        delivery = await self._take(deadline_of(timeout))
        return None if delivery is None else Batch(self, delivery)

    async def _take(
        self,
        deadline_ns: int,
        shared: Callable[[], bool] = bool,
        *,
        whole: bool = True,
    ) -> LeasedBlock | None:
        if self._closing:
            return None
        turner = self._turner()
        return await turner.carry_out(
            turner.engine.take(
                deadline_ns, self._timeout, self._is_closing, shared, whole, not whole
            )
        )

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Return None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        deadline_ns = deadline_of(timeout)
        while not self._closing:
            while self._messages:
                message = self._messages.popleft()
                if message._batch.delivery.gives(message._index):
                    if not self._prefetch.is_due:
                        self._taken()
                    message._consumer = self
                    return message
            self._window.open(1)
            if self._filled and not self._workers:
                self._window.handled((time.monotonic_ns() - self._filled_ns) / 1e9, self._filled)
            self._filled = 0
            delivery = await self._take(deadline_ns, self._is_shared, whole=False)
            if delivery is not None:
                self._prefetch.fill(delivery, Batch(self._holder, delivery).messages())
                self._filled, self._filled_ns = delivery.block.count, time.monotonic_ns()
                if len(self._messages) > 1 and self._made is not None and self._made.engine.waiters:
                    self._made.settle()  # other tasks may take the rest
            elif not self._messages:
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

    def set_ready(self, ready: int) -> None:
        """Change the largest number of unanswered messages. See `zsq.Consumer.set_ready`."""
        check_ready(ready, 0)
        self._window.fixed = ready
        turner = self._made
        if turner is not None and turner.pid == os.getpid():
            turner.engine.set_ready(ready)
            turner.settle()

    def _taken(self) -> None:
        """Let the broker know soon which messages the program has taken."""
        turner = self._made
        if turner is not None and turner.pid == os.getpid():
            self._prefetch.is_due = True
            turner.engine.report_soon(time.monotonic_ns())
            turner.settle()

    # Answering (called by messages and batches)

    def _noted(self) -> None:
        turner = self._made
        if turner is not None and turner.pid == os.getpid():
            turner.engine.noted(time.monotonic_ns())
            turner.settle()

    async def _finish_sync(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        turner = self._turner()
        await turner.carry_out(turner.engine.finish_sync(delivery, indexes, self._patience(None)))

    def _requeue(
        self, delivery: LeasedBlock, indexes: Sequence[int], delay_ms: int, error: str
    ) -> None:
        turner = self._turner()
        turner.engine.requeue(delivery, indexes, delay_ms, error)
        turner.settle()

    def _touch(self, delivery: LeasedBlock) -> None:
        turner = self._turner()
        turner.engine.touch(delivery)
        turner.settle()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all finishes that were made without `sync=True` are committed.

        Raises `LeaseLost` if some could not be committed. See `zsq.Consumer.flush`.
        """
        turner = self._made
        if turner is not None and turner.pid == os.getpid():
            await turner.carry_out(turner.engine.flush(self._patience(timeout)))

    # Running a handler

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        requeue_delay: Delay | Callable[[Message], Delay] | None = None,
        on_error: Callable[[Message, BaseException], object] | None = None,
        signals: bool = True,
        max_extension: float | timedelta | None = None,
        on_deleted: OnDeleted = "wait",
    ) -> None:
        """Await `handler(message)` for each message, until `close`, SIGTERM, or SIGINT.

        Then wait for the handlers that are working, and close the consumer. At most `concurrency`
        messages are handled at a time. The handler is a coroutine function, an object whose
        `__call__` is one, or a `functools.partial` of those. Anything else raises `UsageError`
        before a message is taken. See `zsq.Consumer.run`.
        """
        check_concurrency(concurrency)
        waits = awaits_topic(on_deleted)
        handling = Handling(handler, requeue_delay, on_error, awaits=True)
        self._check_open()
        max_extension_s = check_extension(max_extension)
        self._window.open(concurrency)
        working = Working(self._turner().engine.extensions, self._window, max_extension_s)
        runner = Runner(handling, working, self.receive, self._stop_taking)
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

        self._turner().engine.persist(awaits_topic=waits)
        with runner.logged(f"{self.topic}/{self.channel}"):
            try:
                with calls_on_signals(asyncio.get_running_loop(), caught, runner.drain):
                    await runner.run(work() for _ in range(concurrency))
            finally:
                await self.close()
            if runner.error is not None:
                raise runner.error

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
        if turner is None or self._ended:
            return
        if turner.pid != os.getpid():
            inherit(turner)
            return
        self._ended = True
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
