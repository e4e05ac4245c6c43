"""The blocking consumer: iterate messages or batches, or run a handler.

A handler gets one message at a time in each thread. `core/handling.py` says what its result and
errors mean.

The channel defines the backoff of a message, so the operator sets it in one place for all
consumers. Rejected: a backoff with jitter in each client, as in earlier versions. Its purpose is
that independent clients do not act at the same moment. The channel's credit already ensures that.
`core/consumer_backoff.py` decides when the consumer as a whole takes no messages.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack

from ...errors import E_BAD_ARGUMENT, E_CLOSING, Refused, UsageError
from ...names import check_name
from ...retries import Retries
from ...settings import NewChannelOptions, check_type
from ...system import node_name
from ...wire.addresses import Url, parse_all
from ...wire.credentials import KeyFile
from ...wire.protocol import (
    MESSAGE_TIMEOUT_MS_MAX,
    MESSAGE_TIMEOUT_MS_MIN,
    READY_MAX,
    UNBEGUN,
)
from ..core.asking import on_wire
from ..core.consumer_backoff import (
    Backoff,
    BackoffState,
    ConsumerBackoff,
    Outcome,
    backoff_of,
)
from ..core.consumer_session import ConsumerSession, LeasedBlock
from ..core.deferral import Delay
from ..core.extensions import Working, check_extension
from ..core.handling import Handling, OnDeleted, awaits_topic
from ..core.message import Batch, Message
from ..core.message_batch import (
    BatchGathering,
    BatchLimits,
    MessageBatch,
    by_delivery,
    limits_of,
)
from ..core.prefetch import Prefetch, Window
from ..core.subscription import ConsumerEngine
from ..core.topic_choice import topic_choice
from ..link.timeouts import FAR_NS, check_timeout, deadline_of
from .client_base import BlockingClient, ClientBase
from .drive import Drive
from .producer import check_times
from .program_end import name_of
from .runner import BatchRunner, Runner, draining_on_signals

_DriveT = TypeVar("_DriveT")
Handler = Callable[[Message], object] | Callable[[MessageBatch[Message]], object]

ANSWER_S: Final = 30.0  # how long a consumer without a time-out waits for a reply
FOREIGN: Final = "the parent process received this message, and only that process can answer it"


def make_session(
    ready: int, message_timeout: float | None, label: str | None, sample_rate: int
) -> ConsumerSession:
    if message_timeout is not None:
        check_type("message_timeout", message_timeout, whole=False)
    check_type("sample_rate", sample_rate)
    timeout_ms = 0 if message_timeout is None else int(message_timeout * 1000)
    if (
        message_timeout is not None
        and not MESSAGE_TIMEOUT_MS_MIN <= timeout_ms <= MESSAGE_TIMEOUT_MS_MAX
    ):
        limits = f"{MESSAGE_TIMEOUT_MS_MIN // 1000} to {MESSAGE_TIMEOUT_MS_MAX // 1000}"
        raise UsageError(
            E_BAD_ARGUMENT, f"message_timeout must be {limits} s, not {message_timeout} s"
        )
    if not 0 <= sample_rate <= 99:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"sample_rate must be 1 to 99 percent, or 0 for all messages, not {sample_rate}",
        )
    return ConsumerSession(ready, timeout_ms, label or f"{node_name()}/{os.getpid()}", sample_rate)


def check_ready(ready: int, least: int) -> None:
    check_type("ready", ready)
    if not least <= ready <= READY_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"ready must be {least} to {READY_MAX}, not {ready}")


def check_concurrency(concurrency: int) -> None:
    check_type("concurrency", concurrency)
    if concurrency < 1:
        raise UsageError(E_BAD_ARGUMENT, f"concurrency must be at least 1, not {concurrency}")


class ConsumerBase(ClientBase[_DriveT]):
    """The base of the blocking and the asyncio consumer. `_batch_type`: its class of batches."""

    _batch_type: type[Any] = Batch

    def __init__(
        self,
        topic: str | Sequence[str],
        channel: str,
        *,
        url: Url = None,
        ready: int | None = None,
        message_timeout: float | None = None,
        timeout: float | None = None,
        heartbeat_ms: int | None = None,
        label: str | None = None,
        sample_rate: int = 0,
        key_file: KeyFile = None,
        transport: str | None = None,
        **settings: Unpack[NewChannelOptions],
    ) -> None:
        check_times(timeout, heartbeat_ms)
        self._choice = topic_choice(topic, settings.get("dead_letter_topic") or "")
        self.topic = self._choice.text
        self.channel = check_name(channel, "channel")
        self._caption = f"{self._choice.caption}/{channel}"
        self._client_name = name_of(self, self._caption)
        self._address = parse_all(url, key_file, transport)
        self._options = (
            message_timeout,
            label,
            heartbeat_ms,
            sample_rate,
            on_wire(settings),
        )
        self._timeout = timeout
        if ready is not None:
            check_ready(ready, 1)
        make_session(ready or 0, message_timeout, label, sample_rate)
        self._window = Window(ready)
        self._prefetch = Prefetch()
        # Messages that `receive` has not returned yet.
        self._messages: deque[Any] = self._prefetch.messages
        self._holder = weakref.proxy(self)  # the owner of the batches of these messages
        # The last delivery that was taken message by message: when, by which thread, how many.
        self._filled_ns = self._filled_by = self._filled = 0
        self._workers: set[Any] = set()  # threads or tasks of `run`
        self._busy: set[int] = set()  # threads that iterate and run the user's code
        self._closing = False
        self._ended = threading.Event()
        super().__init__()

    def _forked(self) -> None:
        """Leave all messages to the parent process.

        Only the parent can answer the messages. Calls in the parent return the messages that still
        wait.
        """
        self._prefetch = Prefetch()
        self._messages = self._prefetch.messages
        self._workers = set()
        self._busy = set()
        drive: Any = self._last_drive
        if drive is not None:
            drive.engine.end(FOREIGN)
        super()._forked()

    def _engine(self) -> ConsumerEngine:
        self._check_open()
        message_timeout, label, heartbeat_ms, sample_rate, settings = self._options
        window = self._window
        session = make_session(window.fixed or 0, message_timeout, label, sample_rate)

        def more(ready: int) -> ConsumerSession:
            return make_session(ready, message_timeout, label, sample_rate)

        engine = ConsumerEngine(
            self._address, self._choice, self.channel, session, heartbeat_ms, settings, more
        )
        engine.use(self._prefetch, window)
        return engine

    def _check_open(self) -> None:
        if self._closing:
            raise Refused(E_CLOSING, "this consumer is closed; make a new one")

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that it is subscribed to, or is to be subscribed to.

        With a pattern, these are the topics that match and were found until now.
        """
        drive: Any = self._made
        if drive is None:
            return self._choice.names
        with drive.lock:
            return tuple(sorted(topic.target.topic for topic in drive.engine.topics))

    @property
    def stale_count(self) -> int:
        """The number of answers that came after their lease had ended.

        Those messages were or will be delivered again.
        """
        drive: Any = self._made
        return 0 if drive is None else int(drive.engine.stale_count)

    def set_ready(self, ready: int) -> None:
        """Change the largest number of unanswered messages that this consumer holds.

        With 0 the channel sends no more messages, until the number is changed again. Messages that
        the consumer holds stay with it, and a delivery that is on its way still arrives.
        """
        check_ready(ready, 0)
        self._window.fixed = ready
        drive: Any = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.set_ready(ready)
                drive.settle()

    def _is_closing(self) -> bool:
        return self._closing

    def _is_shared(self) -> bool:
        return bool(self._messages)

    def _patience(self, timeout: float | None) -> float:
        """Return how long to wait for a reply, in seconds.

        Without a time-out it is ANSWER_S. That is enough: either the reply arrives by then, or the
        heartbeats show that the link is lost.
        """
        seconds = check_timeout(self._timeout if timeout is None else timeout)
        return ANSWER_S if seconds is None else seconds

    # Receiving

    def _subscribe(self, timeout: float | None) -> Any:
        self._check_open()
        drive: Any = self._drive()
        seconds = self._timeout if timeout is None else timeout
        return drive.carry_out(drive.engine.subscribe(seconds, self._is_closing))

    def _take(
        self,
        deadline_ns: int,
        shared: Callable[[], bool] = bool,
        *,
        whole: bool = True,
        remembers: bool = False,
    ) -> Any:
        """Return the next delivery, see `ConsumerEngine.take`."""
        drive: Any = self._drive()
        return drive.carry_out(
            drive.engine.take(
                deadline_ns, self._timeout, self._is_closing, shared, whole, remembers
            )
        )

    def _take_next(self, deadline_ns: int) -> Any:
        """Return the next delivery, to be taken message by message, see `_hold`."""
        self._window.open(1)
        if self._filled_by == threading.get_ident() and not self._workers:
            self._window.handled((time.monotonic_ns() - self._filled_ns) / 1e9, self._filled)
        self._filled_by = 0
        return self._take(deadline_ns, self._is_shared, whole=False, remembers=True)

    def _hold(self, delivery: LeasedBlock | None, deadline_ns: int) -> bool:
        """Hold the messages of a delivery until `_take_held`. None means that none arrived.

        Return False after the deadline, or when the consumer closes.
        """
        if delivery is None:
            return not self._closing and (self._is_shared() or time.monotonic_ns() < deadline_ns)
        self._prefetch.fill(delivery, self._batch_type(self._holder, delivery).messages())
        self._filled = delivery.block.count
        self._filled_ns, self._filled_by = time.monotonic_ns(), threading.get_ident()
        drive: Any = self._made
        if len(self._messages) > 1 and drive is not None and drive.engine.waiters:
            with drive.lock:
                drive.settle()  # other threads or tasks may take the rest
        return True

    def _take_held(self) -> Any:
        """Return the next message that is held here, or None."""
        messages = self._messages
        while True:
            try:
                message = messages.popleft()
            except IndexError:
                return None
            # If the link was lost, the channel delivers the message again. (This calls no method,
            # because it is done for each message.)
            delivery = message._batch.delivery
            if delivery.epoch == delivery.session.epoch and message._index not in delivery.answered:
                if not self._prefetch.is_due:
                    self._note_taken()
                message._consumer = self
                return message

    def _note_taken(self) -> None:
        """Let the broker know soon which messages the program has taken."""
        drive: Any = self._made
        if drive is not None:
            with drive.lock:
                self._prefetch.is_due = True
                drive.engine.report_soon(time.monotonic_ns())
                drive.settle()

    # Answering (called by messages and batches)

    def _noted(self) -> None:
        drive: Any = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.noted(time.monotonic_ns())
                drive.settle()

    def _finish_sync(self, delivery: LeasedBlock, indexes: Sequence[int]) -> Any:
        drive: Any = self._drive()
        return drive.carry_out(drive.engine.finish_sync(delivery, indexes, self._patience(None)))

    def _requeue(
        self,
        delivery: LeasedBlock,
        indexes: Sequence[int],
        delay_ms: int,
        error: str = "",
        traceback: str = "",
        defer: bool = False,
    ) -> None:
        drive: Any = self._drive()
        with drive.lock:
            drive.engine.requeue(delivery, indexes, delay_ms, error, traceback, defer)
            drive.settle()

    def _touch(self, delivery: LeasedBlock) -> None:
        drive: Any = self._drive()
        with drive.lock:
            drive.engine.touch(delivery)
            drive.settle()

    # Running a handler

    def _begin_run(
        self,
        concurrency: int,
        max_extension: float | timedelta | None,
        on_deleted: OnDeleted,
        backoff: ConsumerBackoff | None,
        limits: BatchLimits | None,
    ) -> Working:
        """Check the arguments of `run`, and begin to receive for so many handlers."""
        check_concurrency(concurrency)
        waits = awaits_topic(on_deleted)
        self._check_open()
        max_extension_s = check_extension(max_extension)
        self._window.open(concurrency * (limits.count_max if limits is not None else 1))
        drive: Any = self._drive()
        drive.engine.persist(awaits_topic=waits)
        drive.engine.back_off_with(backoff)
        return Working(drive.engine.extensions, self._window, max_extension_s)

    def _gather(
        self, limits: BatchLimits, working: Working, backoff: ConsumerBackoff | None
    ) -> Generator[int, bool, list[Any] | None]:
        """Gather the messages of the next batch for a handler of `run`.

        Yield how long to wait for a delivery. The caller sends whether messages may be held now.
        Return None when the consumer closes. Messages that no handler gets, because the consumer
        closes or backs off meanwhile, are given back and use no attempt.
        """
        while not self._closing:
            gathering: BatchGathering[Any] = BatchGathering(limits)
            try:
                ticket = yield from self._fill(gathering, working, backoff)
            except BaseException:
                self._give_gathered_back(gathering.messages, working)
                raise
            messages: list[Any] = []
            lost: list[Any] = []
            for message in gathering.messages:
                (messages if message._batch.delivery.live else lost).append(message)
            if self._closing or (backoff is not None and backoff.ticket != ticket):
                self._give_gathered_back(gathering.messages, working)
                continue
            working.end_batch(lost, None)
            if messages:
                return messages
        return None

    def _fill(
        self,
        gathering: BatchGathering[Any],
        working: Working,
        backoff: ConsumerBackoff | None,
    ) -> Generator[int, bool, int]:
        """Gather until the batch is complete. Return the ticket of its first message.

        A probe does not wait for more messages, because none come. If the state of the backoff
        changes, nothing is added any more. So a probe is never in a batch that is given back.
        """
        ticket = 0
        while not (self._closing or gathering.is_complete(time.monotonic_ns())):
            if gathering.messages and backoff is not None and backoff.ticket != ticket:
                break
            message = self._take_fitting(gathering)
            if message is not None:
                now_ticket = 0 if backoff is None else backoff.ticket
                if working.goes_on(message):
                    self._note_outcome(now_ticket, Outcome.NEITHER)
                    continue
                ticket = ticket if gathering.messages else now_ticket
                gathering.add(message, time.monotonic_ns())
                working.gathered(message)
            elif (gathering.messages and backoff is not None and backoff.limit is not None) or (
                not gathering.is_complete(time.monotonic_ns()) and not (yield gathering.until_ns)
            ):
                break
        return ticket

    def _take_fitting(self, gathering: BatchGathering[Any]) -> Any:
        """Return the next message that is held here, if this batch has room for it, or None."""
        try:
            waiting = self._messages[0]
        except IndexError:
            return None
        return self._take_held() if gathering.has_room(waiting) else None

    def _give_gathered_back(self, messages: Sequence[Any], working: Working) -> None:
        working.end_batch(messages, None)
        for delivery, group in by_delivery(messages):
            with contextlib.suppress(Refused):
                self._requeue(delivery, [message._index for message in group], UNBEGUN)

    def _back_off_with(self, backoff: ConsumerBackoff | None) -> None:
        """Let this backoff decide whether messages come. See `_note_outcome`."""
        drive: Any = self._drive()
        with drive.lock:
            drive.engine.back_off_with(backoff)

    def _note_outcome(self, ticket: int, outcome: Outcome) -> None:
        """Note the outcome of a handler of `run`, see `ConsumerBackoff`."""
        drive: Any = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.handled(ticket, outcome)
                drive.settle()

    def _note_received(self) -> None:
        """Let `run` probe once more if the program itself, such as a handler, took the probe."""
        drive: Any = self._made
        backoff = None if drive is None else drive.engine.backoff
        if backoff is not None and backoff.state is BackoffState.TESTING:
            self._note_outcome(backoff.ticket, Outcome.NEITHER)


class Consumer(ConsumerBase[Drive[ConsumerEngine]], BlockingClient[Drive[ConsumerEngine]]):
    """Receive messages from a channel. Each message goes to one of the channel's consumers.

    A consumer is thread-safe. It subscribes at the first call, or on entering `with`, and again by
    itself after a lost connection. Messages of the old connection that are not answered yet are
    delivered again. If the old object of such a message is finished without `sync=True`, this
    changes nothing, and `stale_count` counts it.

    - `topic`: A name, a list of names, or a pattern such as "orders.*". `message.topic` says which
      topic a message is from. See [consumers.md](consumers.md#several-topics).
    - `url`, `key_file`, `transport`: see `Producer`.
    - `ready`: The largest number of unanswered messages that this consumer holds, shared by topics
      and parts. Without it, the consumer asks for what its handlers need for a second, at most for
      2,500 messages, and for nothing before the first call that receives.
    - `message_timeout`: The seconds until an unanswered message goes to another consumer, from the
      moment when the program got it (default 60, at most 86,400). `run` extends it.
    - `timeout`: The seconds without a broker until a call raises `BrokerUnreachable`. By default a
      call waits without limit, with warnings as those of `Producer`.
    - `sample_rate`: The percentage of messages to receive. The other messages count as finished.
    - `settings`: Settings of the channel, see `NewChannelOptions`. A new channel gets them. An
      existing channel must have the same `tags`, `ordered` and `priorities`. Other settings do not
      change it, and the log has a warning if they differ.
    """

    _messages: deque[Message]
    _keeper = "zsq consumer"
    # Receiving

    def subscribe(self, timeout: float | None = None) -> None:
        """Wait until the channel has accepted this consumer. The channel exists from then on."""
        self._subscribe(timeout)

    def receive_batch(self, timeout: float | None = None) -> Batch | None:
        """Return the next delivery.

        Returns None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        self._window.open_for_batches()
        delivery = None if self._closing else self._take(deadline_of(timeout))
        return None if delivery is None else Batch(self, delivery)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Returns None after `timeout` seconds (by default it waits without limit), or when the
        consumer closes.
        """
        message = self._receive(timeout)
        if message is not None:
            self._note_received()
        return message

    def _receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, for the program or for a handler of `run`."""
        deadline_ns = deadline_of(timeout)
        while not self._closing:
            message: Message | None = self._take_held()
            if message is not None:
                return message
            if not self._hold(self._take_next(deadline_ns), deadline_ns):
                return None
        return None

    # For the integrations, which hand messages to a framework

    def _receive_held(
        self, timeout: float, takes: Callable[[Message], bool]
    ) -> list[Message] | None:
        """Wait for the next delivery, and hold its messages until `_take_held`.

        Return None after the timeout. Otherwise return the messages for which `takes` is true. They
        are taken, and not held.
        """
        delivery = None if self._closing else self._take(deadline_of(timeout), whole=False)
        if delivery is None:
            return None
        messages = Batch(self._holder, delivery).messages()
        taken = [message for message in messages if takes(message)]
        held = [message for message in messages if message not in taken] if taken else messages
        for message in taken:
            message._consumer = self
        self._prefetch.fill(delivery, held)
        return taken

    def _give_held_back(self) -> None:
        """Give all messages back to the channel that are held here."""
        drive = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.give_all_back()
                drive.settle()

    @property
    def _waiting(self) -> int:
        """The number of messages that are held here."""
        return len(self._messages)

    def batches(self) -> Iterator[Batch]:
        """Iterate over all deliveries, until `close`."""
        with self._iterating():
            while (batch := self._outside(self.receive_batch)) is not None and not self._closing:
                yield batch

    def __iter__(self) -> Iterator[Message]:
        """Iterate over all messages, until `close`.

        If the iteration ends earlier, the next receiving call gets the rest of the delivery.
        """
        with self._iterating():
            while not self._closing:
                message: Message | None = self._take_held()
                if message is not None:
                    self._note_received()
                    yield message
                elif not self._outside(self._refill):
                    return

    def _refill(self, deadline_ns: int = FAR_NS) -> bool:
        """Wait for messages to hold. Return False at the deadline, or when the consumer closes."""
        return self._hold(self._take_next(deadline_ns), deadline_ns)

    @contextlib.contextmanager
    def _iterating(self) -> Iterator[None]:
        """Mark this thread as iterating.

        `close` in another thread waits until this thread has left the user's code.
        """
        me = threading.get_ident()
        self._busy.add(me)
        try:
            yield
        finally:
            self._busy.discard(me)
            drive = self._made
            if self._closing and drive is not None:
                with drive.lock:
                    drive.engine.settle()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Mark this thread as a thread of `run`. `close` waits for its handler.

        If the handler itself calls `close`, that only stops the receiving.
        """
        me = threading.get_ident()
        self._workers.add(me)
        try:
            with self._iterating():
                yield
        finally:
            self._workers.discard(me)

    def _outside(self, take: Callable[[], Any]) -> Any:
        """Call `take` with this thread marked as outside of the user's code."""
        me = threading.get_ident()
        self._busy.discard(me)
        try:
            return take()
        finally:
            self._busy.add(me)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all finishes that were made without `sync=True` are committed.

        Raises `LeaseLost`, with their number, if some were not committed, because their lease had
        ended or the connection was lost. These messages are delivered again.
        """
        drive = self._made
        if drive is not None:
            drive.carry_out(drive.engine.flush(self._patience(timeout)))

    # Running a handler

    def run(
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
    ) -> None:
        """Call `handler(message)` for each message, until `close`, SIGTERM, or SIGINT.

        Then `run` waits for the handlers that are working, returns all other messages to the
        channel, and closes the consumer. The handler runs in `concurrency` threads. If it returns,
        the message is finished, unless the handler has answered it. If it raises an exception, the
        message is requeued, see "What run does with a handler". `run` goes on after refusals that
        pass and after a restart of the broker, see "Why run ends".

        - `requeue_delay`: seconds, a timedelta, or a function of the message that returns one of
          them, at most 366 days. The default is the channel's backoff. `retries`: a `zsq.Retries`,
          which replaces both.
        - `on_error(message, exception)`: called for exceptions instead of logging them. The broker
          gets the exception's repr and its traceback, and a dead letter contains them.
        - `signals`: With False, signal handlers are not changed.
        - `max_extension`: The lease is extended while a handler works, for at most these seconds or
          timedelta since it began, and in any case up to the channel's `max_hold_s`. With 0, the
          lease is the message timeout.
        - `on_deleted`: What happens if the topic is deleted. "wait" logs a warning, and goes on
          when it exists again. "raise" ends with `NotFound`.
        - `backoff`: True, False, or a `zsq.Backoff`: the consumer backs off as a whole when five
          handlers have failed in a row.
        - `batch`: The handler gets a `zsq.MessageBatch` of up to so many messages: when there are
          so many, when the next message would make it larger than `batch_bytes`, or `batch_wait`
          seconds after its first message. If it raises, all messages that are not answered are
          requeued. With `halving`, they are first handled again in halves, until each message that
          fails is alone. Then `on_error` may get a batch.
        """
        handling = Handling(
            handler, requeue_delay, on_error, awaits=False, halves=halving, retries=retries
        )
        machine = backoff_of(backoff)
        limits = limits_of(batch, batch_wait, batch_bytes, self._window.fixed, halving=halving)
        working = self._begin_run(concurrency, max_extension, on_deleted, machine, limits)
        kind: type[Runner] = Runner
        take: Callable[[], Any] = self._next_to_handle
        if limits is not None:
            gather = partial(self._gather, limits, working, machine)
            kind, take = BatchRunner, partial(self._next_batch, threading.Lock(), gather)
        runner = kind(handling, working, take, self._stop_taking, machine, self._note_outcome)

        def work() -> None:
            with self._running():
                runner.work()

        with contextlib.ExitStack() as stack:
            stack.enter_context(runner.logged(self._caption))
            stack.callback(self.close)
            if signals and threading.current_thread() is threading.main_thread():
                stack.enter_context(draining_on_signals(runner.drain))
            workers = [
                threading.Thread(target=work, name=f"zsq worker {i}", daemon=True)
                for i in range(1, concurrency)
            ]
            for worker in workers:
                worker.start()
            try:
                work()
            finally:
                self._stop_taking()
                for worker in workers:
                    worker.join()
            if runner.error is not None:
                raise runner.error

    def _next_to_handle(self) -> Message | None:
        """Return the next message for a handler of `run`, or None when the consumer closes.

        A message that arrives while `close` begins is not handled but returned to the channel,
        because `close` does not wait for its handler. This uses no attempt.
        """
        message: Message | None = self._outside(self._receive)
        if self._closing and message is not None:
            with contextlib.suppress(Refused):
                message._give_back(UNBEGUN)
            return None
        return message

    def _next_batch(
        self, one_at_a_time: threading.Lock, gather: Callable[[], Generator[int, bool, Any]]
    ) -> list[Message] | None:
        """Return the messages of the next batch, or None when the consumer closes.

        One thread gathers at a time, so that the messages do not go to several small batches.
        """
        with one_at_a_time, contextlib.closing(gather()) as steps:
            try:
                until_ns = next(steps)
                while True:
                    wait = partial(self._refill, until_ns)
                    # With messages in hand, `close` waits until they are given back.
                    arrived = self._outside(wait) if until_ns == FAR_NS else wait()
                    until_ns = steps.send(arrived)
            except StopIteration as end:
                messages: list[Message] | None = end.value
                return messages

    def _stop_taking(self) -> None:
        """Stop receiving. A signal handler may call this, because it takes no lock."""
        self._closing = True
        if self._made is not None:
            self._made.nudge()

    def close(self, timeout: float | None = None) -> None:
        """Stop receiving, wait for iterations and handlers in other threads, and confirm the
        finishes.

        It waits at most `timeout` seconds, by default the consumer's timeout, or 30. Finishes that
        could not be confirmed are counted in a warning in the log. All other messages are returned
        to the channel, and answering them raises `Refused`. If a handler of `run` calls `close`, it
        returns at once, and `run` closes the consumer when its handlers have returned.
        """
        drive = self._made
        if drive is None:
            self._closing = True
            return
        me = threading.get_ident()
        if me in self._workers:
            self._stop_taking()
            return
        timeout = self._patience(timeout)
        deadline_ns = deadline_of(timeout)
        with drive.lock:
            self._closing = True
            first = not drive.engine.closing
            drive.engine.closing = True
            drive.engine.settle()
        if not first:
            self._ended.wait(timeout)
            return
        try:
            drive.carry_out(drive.engine.leave(lambda: not self._busy - {me}, deadline_ns))
        finally:
            drive.leave(drive.engine.farewell_ms)
            self._ended.set()

    def __enter__(self) -> Self:
        try:
            self.subscribe()
        except BaseException:
            self.close()
            raise
        return self
