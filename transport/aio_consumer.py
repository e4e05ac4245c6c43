"""The asyncio consumer: `async for` messages or batches, or let a coroutine handle each message."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from .address import parse
from .channel_options import NewChannelOptions, on_wire
from .consumer import READY, make_session, missed_finishes
from .credentials import KeyFile
from .delivery import EVERY, Delivery
from .drive import inherit
from .engine import FAR_NS
from .errors import E_BAD_ARGUMENT, E_CLOSING, LeaseLost, Refused, UsageError, ZsqError
from .message import BatchView, MessageView
from .names import check_name
from .producer import TIMEOUT_S, check_times
from .protocol import DEAD
from .reasons import Reason, when_again
from .runner import again
from .session_consumer import Confirm
from .subscription import TELL_NS, ConsumerEngine
from .turner import Turner

log = logging.getLogger("zsq")


class Message(MessageView):
    """One message, to be answered once: `finish`, `requeue`, or `reject`."""

    __slots__ = ()

    async def finish(self, sync: bool = False) -> None:
        """Done with it, told to the broker within 20 ms. `sync=True` waits until it is committed; see `zsq.Message.finish`."""
        self._answer()
        batch = self._batch
        if sync:
            await batch.owner._finish_sync(batch.delivery, (self._index,))
        elif batch.delivery.finish(self._index):
            batch.owner._noted()

    async def requeue(self, delay: float = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        """Again, to whichever consumer, after `delay` seconds or the channel's backoff; see `zsq.Message.requeue`."""
        self._give_back(when_again(delay, backoff), error)

    async def reject(self, error: Reason = "") -> None:
        """Never again: to the dead letters, now; see `zsq.Message.reject`."""
        self._give_back(DEAD, error)

    async def touch(self) -> None:
        """More time, for it and all that came with it."""
        self._batch.owner._touch(self._batch.delivery)


class Batch(BatchView[Message]):
    """A delivery; what was answered message by message is left out of an answer to the whole."""

    __slots__ = ()
    message = Message

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    async def finish(self, sync: bool = False) -> None:
        if sync:
            await self.owner._finish_sync(self.delivery, (EVERY,))
        elif self.delivery.finish(EVERY):
            self.owner._noted()

    async def requeue(self, delay: float = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        self._give_back(when_again(delay, backoff), error)

    async def reject(self, error: Reason = "") -> None:
        self._give_back(DEAD, error)

    async def touch(self) -> None:
        self.owner._touch(self.delivery)


Handler = Callable[[Message], Awaitable[object]]


class Consumer:
    """Takes messages of a channel; see `zsq.Consumer` for the arguments. Any number of tasks may take at once."""

    def __init__(
        self,
        url: str | None,
        topic: str,
        channel: str,
        *,
        ready: int = READY,
        message_timeout: float | None = None,
        timeout: float = TIMEOUT_S,
        heartbeat_ms: int | None = None,
        label: str | None = None,
        sample_rate: int = 0,
        key_file: KeyFile = None,
        **settings: Unpack[NewChannelOptions],
    ) -> None:
        check_times(timeout, heartbeat_ms)
        self.topic = check_name(topic)
        self.channel = check_name(channel, "channel")
        self._address = parse(url, key_file)
        self._options = (ready, message_timeout, label, heartbeat_ms, sample_rate, on_wire(settings))
        self._timeout = timeout
        make_session(ready, message_timeout, label, sample_rate)
        self._made: Turner[ConsumerEngine] | None = None
        self._messages: deque[Message] = deque()
        self._closing = False
        self._ended = False

    def _turner(self) -> Turner[ConsumerEngine]:
        made = self._made
        if made is None or made.pid != os.getpid():
            if made is not None:
                inherit(made)
                self._messages = deque()
            if self._closing:
                raise Refused(E_CLOSING, "this consumer is closed; make a new one")
            ready, message_timeout, label, heartbeat_ms, sample_rate, settings = self._options
            session = make_session(ready, message_timeout, label, sample_rate)
            engine = ConsumerEngine(self._address, self.topic, self.channel, session, heartbeat_ms, settings)
            engine.on_void = self._messages.clear
            made = self._made = Turner(engine)
        return made

    @property
    def stale(self) -> int:
        """Answers that came after their lease had ended."""
        return 0 if self._made is None else self._made.engine.session.stale

    # Taking

    async def subscribe(self, timeout: float | None = None) -> None:
        """Wait until the channel knows this consumer."""
        turner = self._turner()
        timeout = self._timeout if timeout is None else timeout
        engine = turner.engine
        engine.error = None
        engine.start()
        ready = await turner.wait(
            lambda: engine.open or engine.error is not None or self._closing, time.monotonic_ns() + int(timeout * 1e9)
        )
        engine.raise_refused()
        if not ready:
            engine.down_ns = time.monotonic_ns()
            raise engine.too_late(timeout, "could not subscribe to")

    async def receive_batch(self, timeout: float | None = None) -> Batch | None:
        """The next delivery; None after `timeout` seconds (default: wait for ever) or once the consumer closes."""
        turner = self._turner()
        engine = turner.engine
        session = engine.session
        deadline_ns = FAR_NS if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        engine.start()
        engine.tell(time.monotonic_ns())
        looked = False
        while not self._closing:
            if session.arrived:
                delivery = session.arrived.popleft()
                turner.settle()
                return Batch(self, delivery)
            engine.raise_refused()
            if not looked:
                looked = True  # a time-out of 0 still gets one look
                engine.turn(engine.epoll.poll(0))
                continue
            up = engine.link.up
            limit_ns = min(deadline_ns, engine.unreachable(int(self._timeout * 1e9)))
            await turner.wait(lambda up=up: engine.news(up) or self._closing, limit_ns)  # type: ignore[misc]
            now = time.monotonic_ns()
            if session.arrived or self._closing or now < limit_ns:
                continue
            if now >= deadline_ns:
                return None
            engine.give_up_at(now, self._timeout)
        return None

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds (default: wait for ever) or once the consumer closes."""
        deadline_ns = FAR_NS if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        while not self._closing:
            while self._messages:
                message = self._messages.popleft()
                if not message._batch.delivery.expired(time.monotonic_ns()):
                    return message
            left = None if timeout is None else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
            batch = await self.receive_batch(left)
            if batch is None:
                return None
            self._messages.extend(batch.messages())
        return None

    async def batches(self) -> AsyncIterator[Batch]:
        """All deliveries, until `close`."""
        while (batch := await self.receive_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[Message]:
        """All messages, until `close`."""
        while (message := await self.receive()) is not None:
            yield message

    # Answering (called by messages and batches)

    def _noted(self) -> None:
        turner = self._made
        if turner is not None:
            turner.engine.sooner(time.monotonic_ns() + TELL_NS)
            turner.settle()

    def _tell(self, turner: Turner[ConsumerEngine]) -> None:
        turner.engine.tell(time.monotonic_ns())
        turner.settle()

    async def _finish_sync(self, delivery: Delivery, indexes: Sequence[int]) -> None:
        turner = self._turner()
        await self._confirm(turner, turner.engine.session.finish_sync(delivery, indexes), self._timeout)

    async def _confirm(self, turner: Turner[ConsumerEngine], confirm: Confirm, timeout: float) -> None:
        self._tell(turner)
        if not await turner.wait(lambda: confirm.done, time.monotonic_ns() + int(timeout * 1e9)):
            raise turner.engine.too_late(timeout, "no confirmation by")
        if confirm.error is not None:
            raise confirm.error

    def _requeue(self, delivery: Delivery, indexes: Sequence[int], delay_ms: int, error: str) -> None:
        turner = self._turner()
        turner.engine.session.requeue(delivery, indexes, delay_ms, error)
        self._tell(turner)

    def _touch(self, delivery: Delivery) -> None:
        turner = self._turner()
        delivery.received_ns = time.monotonic_ns()
        turner.engine.session.touch(delivery)
        self._tell(turner)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all plain finishes are committed; `LeaseLost` says how many were not."""
        turner = self._made
        if turner is None or turner.pid != os.getpid():
            return
        session = turner.engine.session
        with contextlib.suppress(LeaseLost):  # counted by the session, and told below
            await self._confirm(turner, session.barrier(), self._timeout if timeout is None else timeout)
        missed_finishes(session)

    # Running a handler

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        requeue_delay: float | Callable[[Message], float] | None = None,
        on_error: Callable[[Message, Exception], object] | None = None,
        signals: bool = True,
    ) -> None:
        """Await `handler(message)` for each message, `concurrency` at a time, until `close`, SIGTERM or SIGINT; then drain and close.
        See `zsq.Consumer.run`."""
        if concurrency < 1:
            raise UsageError(E_BAD_ARGUMENT, f"a concurrency of {concurrency} is none")
        if self._closing:
            raise Refused(E_CLOSING, "this consumer is closed; make a new one")
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in caught:
            with contextlib.suppress(ValueError, RuntimeError):  # only the main thread's loop can
                loop.add_signal_handler(number, self._stop_taking)
        errors: list[ZsqError] = []

        async def work() -> None:
            try:
                while (message := await self.receive()) is not None:
                    await self._handle(message, handler, requeue_delay, on_error)
            except ZsqError as error:
                errors.append(error)
                self._stop_taking()

        try:
            await asyncio.gather(*(work() for _ in range(concurrency)))
        finally:
            for number in caught:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)
            await self.close()
        if errors:
            raise errors[0]

    async def _handle(self, message: Message, handler: Handler, delay: float | Callable[[Message], float] | None, on_error: Any) -> None:
        try:
            await handler(message)
        except Exception as error:
            if on_error is not None:
                told = on_error(message, error)
                if inspect.isawaitable(told):
                    await told
            else:
                log.exception("handler of %s failed", message)
            if not message.answered:
                await message.requeue(**again(message, delay), error=error)
        else:
            if not message.answered:
                await message.finish()

    def _stop_taking(self) -> None:
        self._closing = True
        if self._made is not None:
            self._made.settle()

    async def close(self, timeout: float | None = None) -> None:
        """Take nothing more, confirm what was finished; the rest goes back at once."""
        turner = self._made
        self._closing = True
        if turner is None or self._ended:
            return
        if turner.pid != os.getpid():
            inherit(turner)
            return
        self._ended = True
        deadline_ns = time.monotonic_ns() + int((self._timeout if timeout is None else timeout) * 1e9)
        try:
            session = turner.engine.session
            session.leave()
            confirm = session.barrier()
            self._tell(turner)
            if not await turner.wait(lambda: confirm.done, deadline_ns) or confirm.error is not None:
                log.warning("consumer of %s/%s ends with finishes unconfirmed; they may come again", self.topic, self.channel)
        finally:
            turner.stop(linger_ms=1000)

    async def __aenter__(self) -> Self:
        await self.subscribe()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
