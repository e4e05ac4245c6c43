"""The blocking consumer: iterate messages or batches, or let a handler run."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast

from .address import parse
from .channel_options import NewChannelOptions, on_wire
from .credentials import KeyFile
from .delivery import Delivery
from .drive import Drive, inherit, ours, remember
from .engine import FAR_NS
from .errors import E_BAD_ARGUMENT, E_CLOSING, E_LEASE, LeaseLost, Refused, UsageError
from .message import Batch, Message
from .names import check_name
from .producer import TIMEOUT_S, check_times
from .protocol import MESSAGE_TIMEOUT_MS_MAX, MESSAGE_TIMEOUT_MS_MIN
from .runner import Delay, Handler, Runner, draining_on_signals
from .session_consumer import Confirm, ConsumerSession
from .subscription import TELL_NS, ConsumerEngine

log = logging.getLogger("zsq")

READY: Final = 2500
TELL_SHARE: Final = 4  # while more is at hand, finishes are told when they are this part of the credit: fewer wake-ups of everybody
_SHARED: Final = object()


def make_session(ready: int, message_timeout: float | None, label: str | None, sample_rate: int) -> ConsumerSession:
    timeout_ms = 0 if message_timeout is None else int(message_timeout * 1000)
    if message_timeout is not None and not MESSAGE_TIMEOUT_MS_MIN <= timeout_ms <= MESSAGE_TIMEOUT_MS_MAX:
        limits = f"{MESSAGE_TIMEOUT_MS_MIN // 1000} to {MESSAGE_TIMEOUT_MS_MAX // 1000}"
        raise UsageError(E_BAD_ARGUMENT, f"a message timeout of {message_timeout} s is outside of {limits} s")
    if not 0 <= sample_rate <= 99:
        raise UsageError(E_BAD_ARGUMENT, f"a sample rate is 1 to 99 percent, or 0 for all, not {sample_rate}")
    return ConsumerSession(ready, timeout_ms, label or f"{os.uname().nodename}/{os.getpid()}", sample_rate)


def missed_finishes(session: ConsumerSession) -> None:
    """`LeaseLost` if finishes were lost or late since the last flush."""
    missed = session.unconfirmed_lost + session.stale - session.stale_told
    session.unconfirmed_lost = 0
    session.stale_told = session.stale
    if missed > 0:
        raise LeaseLost(E_LEASE, f"{missed} finishes were not confirmed or came too late; those messages may be delivered again")


class Consumer:
    """Takes messages of a channel; each goes to one of its consumers. Thread-safe.

    `ready`: how many messages it may hold unanswered. `message_timeout`: seconds until an unanswered one goes to somebody else
    (default 60, at most 900). `timeout`: seconds without a broker until a call raises `BrokerUnreachable`.
    `sample_rate`: it takes that percentage of what comes its way, the rest is finished. `key_file`: keys for a gateway that wants some,
    see `Producer`. `settings` of the channel, see `NewChannelOptions`:
    a channel that is made now takes them; one that is there must have the same `tags` and `ordered`, the others change nothing.
    It subscribes at the first call, or on entering `with`. After a lost link it subscribes again by itself; messages of the
    old link that are still in hand come again, and plain finishes of them are counted in `stale`.
    """

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
        self._made: Drive[ConsumerEngine] | None = None
        self._messages: deque[Message] = deque()  # of deliveries that were opened message by message
        self._busy: set[int] = set()  # threads that iterate and are in the person's code
        self._closing = False
        self._ended = threading.Event()
        remember(self)

    def _drive(self) -> Drive[ConsumerEngine]:
        """This process's drive, with its link begun."""
        made = self._made
        return made if made is not None and made.pid == os.getpid() else ours(lambda: self._made, self._make)

    def _make(self, inherited: Drive[ConsumerEngine] | None) -> Drive[ConsumerEngine]:
        self._check_open()
        if inherited is not None:
            self._messages = deque()
            self._busy = set()
        ready, message_timeout, label, heartbeat_ms, sample_rate, settings = self._options
        session = make_session(ready, message_timeout, label, sample_rate)
        engine = ConsumerEngine(self._address, self.topic, self.channel, session, heartbeat_ms, settings)
        engine.on_void = self._messages.clear
        self._made = Drive(engine, keeper="zsq consumer")
        return self._made

    def _check_open(self) -> None:
        if self._closing:
            raise Refused(E_CLOSING, "this consumer is closed; make a new one")

    @property
    def stale(self) -> int:
        """Answers that came after their lease had ended; those messages were or will be delivered again."""
        return 0 if self._made is None else self._made.engine.session.stale

    # Taking

    def subscribe(self, timeout: float | None = None) -> None:
        """Wait until the channel knows this consumer; the channel exists from then on."""
        drive = self._drive()
        timeout = self._timeout if timeout is None else timeout
        with drive.lock:
            engine = drive.engine
            engine.error = None
            engine.start()
            ready = drive.wait(lambda: engine.open or engine.error is not None or self._closing, time.monotonic_ns() + int(timeout * 1e9))
            drive.settle()
            engine.raise_refused()
            if not ready:
                engine.down_ns = time.monotonic_ns()
                raise engine.too_late(timeout, "could not subscribe to")

    def receive_batch(self, timeout: float | None = None) -> Batch | None:
        """The next delivery; None after `timeout` seconds (default: wait for ever) or once the consumer closes."""
        delivery = self._take(timeout)
        return None if delivery is None else Batch(self, delivery)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds (default: wait for ever) or once the consumer closes."""
        messages = self._messages
        deadline_ns = FAR_NS if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        while not self._closing:
            try:
                message = messages.popleft()
            except IndexError:
                left = None if timeout is None else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
                if not self._fill(left):
                    return None
                messages = self._messages
                continue
            if not message._batch.delivery.expired(time.monotonic_ns()):
                return message  # what expired while it waited here was given to somebody else
        return None

    def _fill(self, timeout: float | None) -> bool:
        """Open the next delivery; False after the time-out or at the end."""
        delivery = self._take(timeout, shared=True)
        if delivery is None:
            return False
        if delivery is not _SHARED:
            self._messages.extend(Batch(self, delivery).messages())
            drive = self._made
            if drive is not None and drive.engine.waiters:
                with drive.lock:
                    drive.settle()
        return True

    def _take(self, timeout: float | None, *, shared: bool = False) -> Delivery | None:
        """`shared`: other threads take single messages of what arrived; then `_SHARED` says to look there."""
        drive = self._drive()
        timeout_ns = int(self._timeout * 1e9)
        with drive.lock:
            engine = drive.engine
            session = engine.session
            now = time.monotonic_ns()
            deadline_ns = FAR_NS if timeout is None else now + int(timeout * 1e9)
            engine.start()
            if not session.arrived or session.untold >= session.ready // TELL_SHARE:
                engine.tell(now)
            while not self._closing:
                if shared and self._messages:
                    return cast("Delivery", _SHARED)
                if session.arrived:
                    delivery: Delivery = session.arrived.popleft()
                    drive.settle()
                    return delivery
                engine.raise_refused()
                up = engine.link.up
                limit_ns = min(deadline_ns, engine.unreachable(timeout_ns))
                drive.wait(lambda up=up: engine.news(up) or self._closing or (shared and bool(self._messages)), limit_ns)  # type: ignore[misc]
                now = time.monotonic_ns()
                if self._closing or session.arrived or (shared and self._messages) or now < limit_ns:
                    continue
                drive.settle()
                if now >= deadline_ns:
                    return None
                engine.give_up_at(now, self._timeout)
        return None

    def batches(self) -> Iterator[Batch]:
        """All deliveries, until `close`."""
        with self._iterating():
            while (batch := self._outside(self.receive_batch)) is not None:
                yield batch

    def __iter__(self) -> Iterator[Message]:
        """All messages, until `close`. Those of a delivery that nobody took go to the next who asks."""
        with self._iterating():
            while not self._closing:
                try:
                    message = self._messages.popleft()
                except IndexError:
                    if not self._outside(lambda: self._fill(None)):
                        return
                    continue
                yield message

    @contextlib.contextmanager
    def _iterating(self) -> Iterator[None]:
        """`close` from another thread waits until this one has come back from the person's code."""
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

    def _outside(self, take: Callable[[], Any]) -> Any:
        """Take more: meanwhile this thread is not in the person's code."""
        me = threading.get_ident()
        self._busy.discard(me)
        try:
            return take()
        finally:
            self._busy.add(me)

    # Answering (called by messages and batches)

    def _noted(self) -> None:
        drive = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.sooner(time.monotonic_ns() + TELL_NS)
                drive.need(drive.engine.due_ns)

    def _finish_sync(self, delivery: Delivery, indexes: Sequence[int]) -> None:
        drive = self._drive()
        with drive.lock:
            self._confirm(drive, drive.engine.session.finish_sync(delivery, indexes), self._timeout)

    def _confirm(self, drive: Drive[ConsumerEngine], confirm: Confirm, timeout: float) -> None:
        """Send, and wait for the answer."""
        drive.engine.tell(time.monotonic_ns())
        confirmed = drive.wait(lambda: confirm.done, time.monotonic_ns() + int(timeout * 1e9))
        drive.settle()
        if not confirmed:
            raise drive.engine.too_late(timeout, "no confirmation by")
        if confirm.error is not None:
            raise confirm.error

    def _requeue(self, delivery: Delivery, indexes: Sequence[int], delay_ms: int, error: str) -> None:
        drive = self._drive()
        with drive.lock:
            drive.engine.session.requeue(delivery, indexes, delay_ms, error)
            drive.engine.tell(time.monotonic_ns())
            drive.settle()

    def _touch(self, delivery: Delivery) -> None:
        drive = self._drive()
        with drive.lock:
            delivery.received_ns = time.monotonic_ns()
            drive.engine.session.touch(delivery)
            drive.engine.tell(time.monotonic_ns())
            drive.settle()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all plain finishes are committed. `LeaseLost` says how many were not, because their lease had ended or the link was
        lost before they were confirmed: those messages come again."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            return
        with drive.lock:
            session = drive.engine.session
            with contextlib.suppress(LeaseLost):  # counted by the session, and told below
                self._confirm(drive, session.barrier(), self._timeout if timeout is None else timeout)
            missed_finishes(session)

    # Running a handler

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        requeue_delay: Delay = None,
        on_error: Callable[[Message, Exception], object] | None = None,
        signals: bool = True,
    ) -> None:
        """Call `handler(message)` for each message, in `concurrency` threads, until `close`, SIGTERM or SIGINT; then drain and close.

        A return finishes the message (unless the handler answered it), an exception requeues it after `requeue_delay`: seconds, a
        function of the message, or by default the channel's backoff (1 s doubled by each attempt, at most 2 minutes, unless set
        otherwise). The broker is told the exception's repr, which a dead letter shows. Exceptions go to `on_error(message, exception)`,
        by default to the log. `signals=False` leaves the handlers of signals alone.
        """
        if concurrency < 1:
            raise UsageError(E_BAD_ARGUMENT, f"a concurrency of {concurrency} is none")
        self._check_open()
        runner = Runner(self, handler, requeue_delay, on_error)
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            if signals and threading.current_thread() is threading.main_thread():
                stack.enter_context(draining_on_signals(self))
            workers = [threading.Thread(target=runner.work, name=f"zsq worker {i}", daemon=True) for i in range(1, concurrency)]
            for worker in workers:
                worker.start()
            try:
                runner.work()
            finally:
                self._stop_taking()
                for worker in workers:
                    worker.join()
        if runner.error is not None:
            raise runner.error

    def _stop_taking(self) -> None:
        """Safe in a signal handler: no lock is taken."""
        self._closing = True
        if self._made is not None:
            self._made.nudge()

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, wait for iterations in other threads to come back, confirm what was finished; the rest goes back at once."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            self._closing = True
            if drive is not None:
                inherit(drive)
            return
        timeout = self._timeout if timeout is None else timeout
        deadline_ns = time.monotonic_ns() + int(timeout * 1e9)
        with drive.lock:
            self._closing = True
            first = not drive.engine.closing
            drive.engine.closing = True
            drive.engine.settle()
        if not first:
            self._ended.wait(timeout)
            return
        me = threading.get_ident()
        try:
            with drive.lock:
                session = drive.engine.session
                session.leave()
                drive.engine.tell(time.monotonic_ns())
                drive.wait(lambda: not self._busy - {me}, deadline_ns)
                confirm = session.barrier()
                drive.engine.tell(time.monotonic_ns())
                if not drive.wait(lambda: confirm.done, deadline_ns) or confirm.error is not None:
                    log.warning("consumer of %s/%s ends with finishes unconfirmed; they may come again", self.topic, self.channel)
        finally:
            with drive.lock:
                drive.stop(linger_ms=1000)
            drive.end()
            self._ended.set()

    def __enter__(self) -> Self:
        self.subscribe()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
