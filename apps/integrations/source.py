"""ConsumerThread: a consumer of a channel that receives in a thread and keeps its leases alive.

Kombu asks for messages without waiting, and its event loop needs a descriptor that becomes
readable. Dramatiq waits for a message or a timeout. So a thread waits for deliveries, and calls
`wake` for each one.

A message that arrived is held until `take` gives it to the framework. Until then it has no lease,
uses no attempt, and the broker may ask for it back for an idle worker. The thread touches the
messages that were taken and are not answered, after a third of their lease. So a task may run for
any time, and no other worker gets its message. The lease ends only if this process ends, hangs, or
loses the broker. A transport with a fixed visibility timeout delivers a long task again while it
still runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ...transport.client.blocking.client import Batch, Consumer, Message
from ...transport.client.core.answer_memory import AnswerMemory, AnswerPlace, place_of
from ...transport.client.core.consumer_backoff import ConsumerBackoff, Outcome
from ...transport.client.core.message import Reason
from ...transport.errors import ZsqError

log = logging.getLogger("zsq")

CLOSE_S: Final = 5.0
TOUCH_SHARE: Final = 3  # a lease is renewed after this part of it


class OpenWork:
    """The messages that a process works on, and those that it has ended.

    A message comes back after its lease was lost, for example when the broker was killed. If the
    process still works on it, or has ended it, it must not begin with it once more. All sources
    that get the messages of a channel one after the other share this, so that it also holds after
    one of them was closed.
    """

    def __init__(self) -> None:
        self.answers = AnswerMemory()
        self._working: dict[AnswerPlace, Held] = {}

    def knows(self, message: Message) -> bool:
        """Return True if the process works on this message, or may have ended it."""
        place = place_of(message)
        return place in self._working or place in self.answers

    def begin(self, held: Held) -> bool:
        """Return True if the message is to be handled. Else it was dealt with here.

        Another thread may end the message meanwhile. It adds the answer to the memory first, and
        then removes the message from those that are worked on. So the memory is asked last.
        """
        working = self._working.get(held.place)
        if working is not None and working.replace(held):
            return False
        ending = self.answers.take(held.message)
        if ending is None:
            self._working[held.place] = held
            return True
        if ending.rejected is None:
            held.finish()
        else:
            held.reject(ending.rejected)
        return False

    def end(self, held: Held) -> None:
        """Note that nobody works on this message any more."""
        if self._working.get(held.place) is held:
            del self._working[held.place]

    def end_all(self, source: ConsumerThread) -> None:
        """Note that the messages of a source that was closed return to the channel."""
        for held in list(self._working.values()):
            if held.source is source:
                self.end(held)


class Delivery:
    """A batch whose messages are not all answered."""

    __slots__ = ("batch", "left", "touched_s")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        # Several threads answer. To discard an element of a set is atomic, to count is not.
        self.left: set[int] = set()
        self.touched_s = time.monotonic()


class Held:
    """One message, and the delivery that it belongs to.

    It is answered once. What comes later changes nothing.
    """

    __slots__ = ("_done", "_lock", "delivery", "message", "outcome", "place", "source", "ticket")

    def __init__(self, source: ConsumerThread, delivery: Delivery, message: Message) -> None:
        self.source = source
        self.delivery = delivery
        self.message = message
        self.place = place_of(message)  # the same at each delivery
        self.outcome = Outcome.SUCCESS  # for the backoff of the consumer
        self.ticket = source.ticket
        self._done = False
        self._lock = threading.Lock()
        delivery.left.add(id(message))

    def drop(self) -> None:
        """Do not answer: the broker has given the message to somebody else, or will."""
        self.delivery.left.discard(id(self.message))

    def replace(self, newer: Held) -> bool:
        """Go on with a newer delivery of the same message, whose lease lasts.

        Return False if this one was answered meanwhile.
        """
        with self._lock:
            if self._done:
                return False
            self.drop()
            self.source, self.delivery, self.message = newer.source, newer.delivery, newer.message
            self.ticket = newer.ticket
            return True

    def finish(self) -> None:
        self._answer(
            lambda message: message.finish(),
            lambda message: self.source.work.answers.answering(message),
        )

    def requeue(self, *, backoff: bool = False, error: Reason = "") -> None:
        self._answer(lambda message: message.requeue(backoff=backoff, error=error))

    def reject(self, why: Reason) -> None:
        self._answer(
            lambda message: message.reject(why),
            lambda message: self.source.work.answers.answering(message, rejected=why),
        )

    def _answer(
        self,
        answer: Callable[[Message], None],
        remembering: Callable[[Message], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            self.drop()
            try:
                with remembering(self.message):
                    answer(self.message)
            except ZsqError as error:
                # The message goes to another worker, or comes back to this one.
                log.warning("%s: the answer came too late: %s", self.message, error)
        self.source.work.end(self)
        self.source.note(self)


class ConsumerThread:
    """A thread with a consumer. `ready`: how many messages it may hold.

    With `backoff`, the consumer backs off as a whole while the outcomes of `Held` are failures.
    `error` is the broker's refusal, after which nothing is received.
    """

    def __init__(
        self,
        consumer: Consumer,
        ready: int,
        lease_s: float,
        wake: Callable[[], None],
        work: OpenWork,
        backoff: ConsumerBackoff | None = None,
    ) -> None:
        self.consumer = consumer
        self._backoff = backoff
        self.work = work
        self.error: ZsqError | None = None
        self._ready = ready
        self._touch_s = lease_s / TOUCH_SHARE
        self._wake = wake
        self._open: dict[int, Delivery] = {}  # by the id of their batch
        self._lock = threading.Lock()  # held while `_open` changes
        # Messages that the process might have ended before, and that are to be handled.
        self._taken: deque[Held] = deque()
        self._closed = False
        self._cancelled = False
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name=f"zsq {consumer.topic}", daemon=True)

    def start(self) -> ConsumerThread:
        """Subscribe, and begin to receive. The channel exists when this returns."""
        self.consumer.set_ready(self._ready)
        self.consumer.subscribe()
        self.consumer._back_off_with(self._backoff)
        self._thread.start()
        return self

    @property
    def arrived(self) -> int:
        """The number of messages that arrived and that nobody has taken."""
        return self.consumer._waiting + len(self._taken)

    def take(self) -> Held | None:
        """Return the next message that is to be handled, or None."""
        while self._taken:
            known = self._taken.popleft()
            if known.message.leased:
                return known
            known.drop()
            self.work.end(known)
        while (message := self.consumer._take_held()) is not None:
            if (held := self._begin(message)) is not None:
                return held
        return None

    def _begin(self, message: Message) -> Held | None:
        batch = message._batch
        with self._lock:
            delivery = self._open.get(id(batch))
            if delivery is None:
                delivery = self._open[id(batch)] = Delivery(batch)
            held = Held(self, delivery, message)
        return held if self.work.begin(held) else None

    @property
    def ticket(self) -> int:
        """The ticket of the backoff with which a message is taken now."""
        return 0 if self._backoff is None else self._backoff.ticket

    def note(self, held: Held) -> None:
        """Note the outcome of a message for the backoff."""
        if self._backoff is not None and not self._closed:
            self.consumer._note_outcome(held.ticket, held.outcome)

    def set_ready(self, ready: int) -> None:
        """Change how many messages may be held. 0: receive no more, and keep what is held."""
        if ready != self._ready and not self._closed:
            self._ready = ready
            self.consumer.set_ready(ready)

    def give_back(self) -> None:
        """Return the messages to the channel that arrived and that nobody has taken."""
        self.consumer._give_held_back()
        while self._taken:
            self._taken.popleft().requeue()

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
        return not self.arrived and not any(delivery.left for delivery in self._deliveries())

    def _deliveries(self) -> list[Delivery]:
        with self._lock:
            return list(self._open.values())

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
        self.work.end_all(self)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    # In the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                # A message that this process works on must not go to another worker. So it does
                # not wait with the others.
                known = self.consumer._receive_held(self._touch_s / 4, self.work.knows)
            except ZsqError as error:
                if not self._closed:
                    self.error = error
                    self._wake()
                return
            if known is not None:
                self._take_in(known)
            self._touch()
            if self._leaving and self.idle:
                self.close()

    def _take_in(self, known: list[Message]) -> None:
        self._taken.extend(held for message in known if (held := self._begin(message)) is not None)
        if self._cancelled:
            self.give_back()
        self._wake()

    def _touch(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._open = {key: each for key, each in self._open.items() if each.left}
        for delivery in self._deliveries():
            if now_s - delivery.touched_s >= self._touch_s:
                delivery.touched_s = now_s
                try:
                    delivery.batch.touch()
                except ZsqError as error:
                    log.warning("%s: could not extend the lease: %s", delivery.batch, error)
