"""Source: a consumer of one ZSQ channel that receives in a thread and keeps its leases alive.

Kombu asks for messages without waiting, and its event loop needs a descriptor that becomes
readable. Dramatiq waits for a message or a timeout. So a thread waits for deliveries, and calls
`wake` for each one.

The same thread touches the messages that are not answered, after a third of their lease. So a task
may run for any time, and no other worker gets its message. The lease ends only if this process
ends, hangs, or loses the broker. A transport with a fixed visibility timeout delivers a long task
again while it still runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ...transport.client.blocking.client import Batch, Consumer, Message
from ...transport.client.core.message import Reason
from ...transport.errors import ZsqError

if TYPE_CHECKING:
    from ... import aio

log = logging.getLogger("zsq")

CLOSE_S: Final = 5.0
TOUCH_SHARE: Final = 3  # a lease is renewed after this part of it
LATE_MAX: Final = 10_000  # messages that were finished without a lease, and are remembered
LATE_S: Final = 600.0  # for so long


class Identity(NamedTuple):
    """A message of a topic, at each of its deliveries.

    The time makes a difference if the topic was restored from a backup, or created again. Then
    another message may have the offset.
    """

    part: int | None
    offset: int
    timestamp_ns: int


class LateFinishes:
    """The messages that this process has finished after it had lost their leases.

    That happens when a task ends while the broker is away, or starts again. The broker does not
    know about it, and delivers the message again. If it comes back to this process, it need not be
    handled again. Another process may get it. So an entry ends after some minutes: somebody who
    moves the channel back later wants the message to be handled again.
    """

    def __init__(self) -> None:
        self._until_s: OrderedDict[Identity, float] = OrderedDict()

    def add(self, message: Message | aio.Message) -> None:
        self._until_s[identity(message)] = time.monotonic() + LATE_S
        if len(self._until_s) > LATE_MAX:
            self._until_s.popitem(last=False)

    def pop(self, message: Message | aio.Message) -> bool:
        """Return True if the message is one of them. It is forgotten then."""
        return self._until_s.pop(identity(message), 0.0) > time.monotonic()


def identity(message: Message | aio.Message) -> Identity:
    return Identity(message.part, message.offset, message.timestamp_ns)


class Delivery:
    """A batch whose messages are not all answered."""

    __slots__ = ("batch", "left", "touched_s")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        # Several threads answer. To discard an element of a set is atomic, to count is not.
        self.left: set[int] = set()
        self.touched_s = time.monotonic()


class Held:
    """One message, and the delivery that it belongs to."""

    __slots__ = ("_done", "_lock", "delivery", "message", "source")

    def __init__(self, source: Source, delivery: Delivery, message: Message) -> None:
        self.source = source
        self.delivery = delivery
        self.message = message
        self._done = False
        self._lock = threading.Lock()
        delivery.left.add(id(message))

    def drop(self) -> None:
        """Do not answer: the broker has given the message to somebody else, or will."""
        self.delivery.left.discard(id(self.message))

    @property
    def place(self) -> tuple[str, Identity]:
        """The topic and the message, which are the same at each delivery."""
        return self.message.topic, identity(self.message)

    def replace(self, newer: Held) -> bool:
        """Go on with a newer delivery of the same message, whose lease lasts.

        Return False if this one was answered meanwhile.
        """
        with self._lock:
            if self._done:
                return False
            self.drop()
            self.delivery, self.message = newer.delivery, newer.message
            return True

    def finish(self) -> None:
        self._answer(lambda message: message.finish(), finished=True)

    def requeue(self, *, backoff: bool = False, error: Reason = "") -> None:
        self._answer(lambda message: message.requeue(backoff=backoff, error=error))

    def reject(self, why: Reason) -> None:
        self._answer(lambda message: message.reject(why))

    def _answer(self, answer: Callable[[Message], None], *, finished: bool = False) -> None:
        with self._lock:
            self._done = True
            message = self.message
            if finished and not message.leased:
                self.source.late.add(message)
            self.drop()
        try:
            answer(message)
        except ZsqError as error:
            # The message goes to another worker, or comes back to this one.
            log.warning("%s: the answer came too late: %s", message, error)


class Source:
    """A thread with a consumer. `ready`: how many messages it may hold.

    `error` is the broker's refusal, after which nothing is received.
    """

    def __init__(
        self, consumer: Consumer, ready: int, lease_s: float, wake: Callable[[], None]
    ) -> None:
        self.consumer = consumer
        self.arrived: deque[Held] = deque()
        self.late = LateFinishes()
        self.error: ZsqError | None = None
        self._ready = ready
        self._touch_s = lease_s / TOUCH_SHARE
        self._wake = wake
        self._open: list[Delivery] = []
        self._closed = False
        self._cancelled = False
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name=f"zsq {consumer.topic}", daemon=True)

    def start(self) -> Source:
        """Subscribe, and begin to receive. The channel exists when this returns."""
        self.consumer.subscribe()
        self._thread.start()
        return self

    def take(self) -> Held | None:
        """Return the next message whose lease lasts, or None."""
        while self.arrived:
            held = self.arrived.popleft()
            if not held.message.leased:
                held.drop()
            elif self.late.pop(held.message):
                held.finish()
            else:
                return held
        return None

    def set_ready(self, ready: int) -> None:
        """Change how many messages may be held. 0: receive no more, and keep what is held."""
        if ready != self._ready and not self._closed:
            self._ready = ready
            self.consumer.set_ready(ready)

    def give_back(self) -> None:
        """Return the messages to the channel that arrived and that nobody has taken."""
        while (held := self.take()) is not None:
            held.requeue()

    def cancel(self) -> None:
        """Receive no more. Messages that were taken can still be answered."""
        self._cancelled = True
        self.set_ready(0)
        self.give_back()

    def resume(self, ready: int) -> None:
        """Receive again, after `cancel`."""
        self._cancelled = False
        self.set_ready(ready)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        """True if all messages are answered."""
        return not self.arrived and not any(delivery.left for delivery in self._open)

    def leave(self) -> None:
        """Receive no more, and close when all messages that were taken are answered."""
        self.cancel()
        self._leaving = True
        if self.idle or not self._thread.is_alive():
            self.close()

    def close(self) -> None:
        """Close the consumer. Messages that are not answered return to the channel at once."""
        if self._closed:
            return
        self._closed = True
        try:
            self.consumer.close(CLOSE_S)
        except ZsqError as error:
            log.warning("%s/%s: %s", self.consumer.topic, self.consumer.channel, error)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    # In the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                batch = self.consumer.receive_batch(self._touch_s / 4)
            except ZsqError as error:
                if not self._closed:
                    self.error = error
                    self._wake()
                return
            if batch is not None:
                self._take_in(batch)
            self._touch()
            if self._leaving and self.idle:
                self.close()

    def _take_in(self, batch: Batch) -> None:
        delivery = Delivery(batch)
        held = [Held(self, delivery, message) for message in batch]
        self._open.append(delivery)
        self.arrived.extend(held)
        if self._cancelled:
            self.give_back()
        self._wake()

    def _touch(self) -> None:
        now_s = time.monotonic()
        self._open = [delivery for delivery in self._open if delivery.left]
        for delivery in self._open:
            if now_s - delivery.touched_s >= self._touch_s:
                delivery.touched_s = now_s
                try:
                    delivery.batch.touch()
                except ZsqError as error:
                    log.warning("%s: could not extend the lease: %s", delivery.batch, error)
