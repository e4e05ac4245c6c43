"""Actor base class: setup, loop, teardown, ports, timers, and the connection to the supervisor.

The constructor opens nothing, because `on_start` opens files and sockets in the child. The loop
waits for input or the next timer, takes a bounded number of messages, and then calls `on_turn`,
which acts once on all of them. The loop listens to the ports and raw sockets that were opened and
not closed (`open_router`, `open_dealer`, `listen_raw`).

An *order* is a request of the supervisor to an actor, which the actor answers (`Order`).

An actor dies with its supervisor. It holds one end of a pipe whose other end only the supervisor
has. The kernel also kills it when the forkserver ends (PDEATHSIG).
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import zmq

from ...storage.errors import StorageError
from ...transport.errors import E_BAD_COMMAND, E_INTERNAL, Refused, UsageError, ZsqError
from ...transport.memory import release_memory
from ...transport.units import NS_PER_MS
from ...transport.wire.codec import fitting
from ...transport.wire.protocol import (
    Ask,
    Beat,
    Born,
    Done,
    Failed,
    Gone,
    Order,
    OrderAnswer,
    Pulse,
    Reload,
    Scan,
    Stop,
)
from ...transport.wire.sockets import ContextShare, make_context
from ..settings import options
from ..settings.starts import ActorStart
from .child import OUT_OF_FILES
from .polling import Poller, Source
from .port import Envelope, Mail, Port
from .process import Trimming, is_out_of_files, private_bytes

log = logging.getLogger("zsq")

_EARLY_SHIFT = 4  # a timer may run early by its interval >> 4, a sixteenth
_NO_NEWS = (Ask, Scan, Beat)  # messages that change nothing in the statistics
StartT = TypeVar("StartT", bound=ActorStart)
GivenOrder = TypeVar("GivenOrder", bound=Order[Any])
ReloadT = TypeVar("ReloadT", bound=Reload)
OrderReply = Done | OrderAnswer | Failed


class StartFailed(Exception):
    """The actor cannot start. The supervisor receives the text."""


class Actor(Generic[StartT]):
    """Base class of all children.

    Subclasses define `on_start`, which opens ports and adds routes, and the other hooks they
    need.
    """

    # A context's tables cost 24 bytes for each possible socket. Actors with many sockets raise this
    # number.
    sockets_max = 64

    def __init__(self, key: int, title: str, start: StartT) -> None:
        self.key = key
        self.title = title
        self.given = start
        self.stopping = False
        self._worked = False  # blocks came since the last pulse
        self._stirred = False  # a message with news came since then
        self._pulsed_ns = 0
        self._pause_ms = options.IDLE_PULSE_MS // 2  # the time between the last two idle pulses
        self._is_resting = False  # timers that may rest run with the pulses
        self.stirred_ns = time.monotonic_ns()  # see `pulses.py`
        self._memory = Trimming(time.monotonic_ns())
        self.busy = False  # there is more to do: take the next turn without waiting for input
        self.context: zmq.Context[zmq.Socket[bytes]]
        self._is_hosted = False  # it shares its process with other actors
        self.supervisor: Port
        self._lifeline = -1
        self._ports: list[Port] = []
        self._raw: dict[Source, Callable[[], object]] = {}
        self._timers: list[list[Any]] = []  # [due_ns, interval_ns, function, rests]
        self._timers_due_ns = 1 << 62  # no timer is due before that
        self._poller: Poller

    # Hooks for subclasses

    def on_start(self) -> dict[str, Any]:
        """Open files and sockets, and return the data that Born carries to the supervisor."""
        raise StartFailed(f"{self.title} does not define on_start")

    def may_drop_start(self) -> bool:
        """Return True if a refused `on_start` leaves nothing but sockets, which can be closed."""
        return False

    def on_turn(self) -> None:
        """Process what has arrived. The loop calls this after each round of inputs and timers."""

    def on_pulse(self) -> None:
        """Do what is due about once a second while messages come, and seldom otherwise."""

    def may_rest(self, pulse: Mapping[str, object]) -> bool:
        """Return True if nothing waits for a timer that may rest, to judge by this pulse."""
        return True

    def on_stop(self) -> bool:
        """Return True when all waiting clients are answered. Each turn of a stop calls it."""
        return True

    def on_end(self) -> None:
        """Close files. The sockets are closed afterwards."""

    def on_gone(self, who: str) -> None:
        """Forget a dead gateway and all peers behind it.

        In a gateway, `who` is a dead actor, and the gateway ends the links to it.
        """

    def statistics(self) -> Mapping[str, object]:
        """Return the content of a pulse, which is sent once a second (shapes: `pulses.py`)."""
        return {}

    def details(self) -> Mapping[str, object]:
        """Return the rows of a report with details.

        Rows beyond `options.DETAILS_BYTES_MAX` are left out from the end of the list. So the newest
        rows come last.
        """
        return {}

    # Tools for subclasses

    def open_router(self, endpoint: str, *, answers_max: int = 0) -> Port:
        """Bind a ROUTER. A peer may have at most `answers_max` unread messages."""
        port = Port(self.context, zmq.ROUTER)
        # An actor that connects again takes over the name of its dead connection.
        port.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if answers_max:
            port.socket.setsockopt(zmq.SNDHWM, answers_max)
        port.socket.bind(endpoint)
        if isinstance(self.context, ContextShare):
            port.socket.bind(f"inproc://{endpoint}")
            self.context.inside.add(endpoint)
        return self._listen(port)

    def open_dealer(self, endpoint: str, routing_id: bytes = b"") -> Port:
        """Connect a DEALER.

        Its name stays the same when libzmq connects again, because the other end identifies this
        actor by that name.
        """
        port = Port(self.context, zmq.DEALER, routing_id=routing_id or f"actor-{self.key}".encode())
        if isinstance(self.context, ContextShare) and endpoint in self.context.inside:
            endpoint = f"inproc://{endpoint}"  # the other actor lives in the same host
        port.socket.connect(endpoint)
        return self._listen(port)

    def open_asking(self) -> Port:
        """Open one ROUTER for connections to many endpoints; the caller names each of them.

        A DEALER for each endpoint would have to be polled in each turn.
        """
        return self._listen(Port(self.context, zmq.ROUTER))

    def open_pull(self, endpoint: str, mark: int, take: Callable[[Port], None]) -> Port:
        """Bind a PULL, whose frames `take` receives itself.

        At most `mark` unread messages of a peer wait here. Further messages wait at the peer.
        """
        port = Port(self.context, zmq.PULL, mark=mark)
        port.on_readable = take
        port.socket.bind(endpoint)
        return self._listen(port)

    def _listen(self, port: Port) -> Port:
        self._ports.append(port)
        self._poller.register(port)
        return port

    def close_port(self, port: Port) -> None:
        self._ports.remove(port)
        self._poller.unregister(port)
        port.close()

    def listen_raw(self, source: Source, handle: Callable[[], object]) -> None:
        """Call `handle` when `source` (a worker thread, a descriptor) is readable."""
        self._raw[source] = handle
        self._poller.register(source)

    def ignore_raw(self, source: Source) -> None:
        self._poller.unregister(source)
        del self._raw[source]

    def every(
        self, interval_ms: float, function: Callable[[], None], *, rests: bool = False
    ) -> None:
        """Call `function` at this interval.

        If another timer is due, call it up to a sixteenth of the interval earlier. So timers of the
        same interval soon run together, and wake an idle process once. With `rests`, an idle actor
        calls it only when it sends a pulse.
        """
        interval_ns = int(interval_ms * NS_PER_MS)
        self._timers.append([time.monotonic_ns() + interval_ns, interval_ns, function, rests])
        self._timers_due_ns = min(self._timers_due_ns, self._timers[-1][0])

    def cease(self, function: Callable[[], None]) -> None:
        """End the calls that `every` began."""
        self._timers = [timer for timer in self._timers if timer[2] != function]

    def obey(
        self, kind: type[GivenOrder], handler: Callable[[GivenOrder], OrderReply | None]
    ) -> None:
        """Let `handler` carry out the orders of this class.

        `handler` returns the answer, or None if the answer comes later (`answer_order`).
        """

        def carry_out(port: Port, mail: Mail, message: GivenOrder) -> None:
            answer = handler(message)
            if answer is not None:
                self.answer_order(answer)

        self.supervisor.route(kind, carry_out)

    def obey_reload(self, kind: type[ReloadT], take: Callable[[ReloadT], None]) -> None:
        """Let `take` receive the settings that may change while this actor lives.

        If it raises, the old settings stay in force.
        """
        self.obey(kind, partial(self._reload, take))

    # The life of an actor

    def run(
        self,
        supervisor_endpoint: str,
        lifeline: int = -1,
        share: ContextShare | None = None,
    ) -> None:
        """Live in this thread until the end.

        In a process of its own, the actor watches the `lifeline`. In a shared host, it has a
        `share` of the host's context.
        """
        self._lifeline = lifeline
        self._is_hosted = share is not None
        self.context = share or make_context(self.sockets_max)
        self._poller = Poller()
        if lifeline >= 0:
            self._poller.register(lifeline)
        self.supervisor = self.open_dealer(supervisor_endpoint)
        self.supervisor.route(Stop, self._stop)
        self.supervisor.route(Gone, self._gone)
        self.supervisor.route(Ask, self._ask)
        self.obey_reload(Reload, lambda reload: None)
        self.every(options.PULSE_MS, self._pulse_if_stirred)
        try:
            data = self.on_start()
        except Exception as error:
            if isinstance(error, (ZsqError, StorageError, StartFailed, OSError, zmq.ZMQError)):
                log.debug("%s cannot start: %s", self.title, error)  # the supervisor logs it
            else:
                log.exception("%s cannot start because of an unexpected error", self.title)
            code = (
                error.code
                if isinstance(error, ZsqError)
                else "E_START"
                if isinstance(error, StartFailed)
                else type(error).__name__
            )
            code = OUT_OF_FILES if is_out_of_files(error) else code
            text = error.text if isinstance(error, ZsqError) else str(error)
            self.supervisor.send((), Failed(self.key, code, text))
            if self._is_hosted and isinstance(error, ZsqError) and self.may_drop_start():
                self._close()
                # The host reports the end over its lifeline, and the reason must come first.
                time.sleep(options.LAST_WORDS_S)
                return
            self.end_at_once(3)
        self.supervisor.send((), Born(self.key, self.key, data))
        if not self._is_hosted:
            # Imported objects live as long as the process, so the collector need not look at them
            # again.
            gc.freeze()
        try:
            self._loop()
        except Exception as error:
            if is_out_of_files(error):
                # The place in the code that wanted one more says nothing about the cause.
                log.error(
                    "%s ends, because no file descriptor is free (%s); raise the limit of open "
                    "files (LimitNOFILE, ulimit -n)",
                    self.title,
                    error,
                )
            else:
                log.exception("%s ends after an unexpected error", self.title)
            self.supervisor.send(
                (),
                Failed(
                    self.key,
                    OUT_OF_FILES if is_out_of_files(error) else type(error).__name__,
                    str(error),
                ),
            )
            raise
        finally:
            self.on_end()
            self._close()

    def end_at_once(self, code: int) -> NoReturn:
        """End the process after a failure.

        Before that, ZeroMQ's thread gets time to send the last messages. No socket is closed: an
        actor's threads wait on their sockets, and libzmq aborts or hangs when another thread closes
        them.
        """
        logging.shutdown()
        time.sleep(options.LAST_WORDS_S)
        os._exit(code)

    def _close(self) -> None:
        for port in self._ports:
            port.close()
        # This closes raw sockets too. Otherwise term() would wait for them for ever.
        self.context.destroy(linger=200)
        self._poller.close()

    def _loop(self) -> None:
        while True:
            for source in self._poller.poll(self._wait_ms()):
                if isinstance(source, Port):
                    # It may have been closed while another source was processed in this round.
                    if not source.closed:
                        self._drain(source)
                elif source == self._lifeline:
                    # The supervisor is dead: answer nothing any more, and close nothing.
                    os._exit(0)
                else:
                    self.stir()
                    # There is no handler if `ignore_raw` was called in this same round.
                    if (handle := self._raw.get(source)) is not None:
                        handle()
            if self._stirred:
                self.hasten_pulse()
            self._run_timers()
            self.on_turn()
            if self.stopping and self.on_stop():
                self.pulse()  # the statistics of a topic that sleeps come from its last pulse
                return

    def _wait_ms(self) -> int:
        if self.stopping:
            return 10
        if self.busy:
            return 0
        return max(0, (self._timers_due_ns - time.monotonic_ns()) // NS_PER_MS + 1)

    def _run_timers(self) -> None:
        now = time.monotonic_ns()
        if now < self._timers_due_ns:
            return
        for timer in self._timers:
            if timer[0] - (timer[1] >> _EARLY_SHIFT) <= now:
                timer[0] = now + timer[1]
                timer[2]()
        if self._is_resting:
            for timer in self._timers:
                if timer[3]:
                    timer[0] = max(timer[0], self._timers[0][0])
        self._timers_due_ns = min(timer[0] for timer in self._timers)

    def _drain(self, port: Port) -> None:
        if port.on_readable is not None:
            port.on_readable(port)
            return
        until_ns = time.monotonic_ns() + options.DRAIN_NS
        for mail in port.receive(options.DRAIN_MAX):
            if not isinstance(mail, Mail):
                envelope, answer = mail
                log.debug("%s refuses: %s", self.title, answer.text)
                port.send(envelope, answer)
                continue
            kind = type(mail.message)
            self._worked = self._worked or bool(mail.frames)
            self._stirred = self._stirred or kind not in _NO_NEWS
            try:
                handler = port.routes.get(kind)
                if handler is None:
                    raise UsageError(
                        E_BAD_COMMAND,
                        (
                            f"{self.title} does not accept {kind.__name__}; use the same "
                            "version of "
                            "ZSQ on both sides"
                        ),
                    )
                handler(port, mail, mail.message)
            except ZsqError as error:
                self._refuse(port, mail.envelope, error, getattr(mail.message, "request", 0))
            # To check a block takes up to 40 ms, and other peers wait for an answer.
            if mail.frames and time.monotonic_ns() > until_ns:
                return

    def _refuse(self, port: Port, envelope: Envelope, error: ZsqError, request: int) -> None:
        log.debug("%s refuses: %s", self.title, error)
        port.send(envelope, Failed(request, error.code, error.text))

    def _stop(self, port: Port, mail: Mail, message: Stop) -> None:
        self.stopping = True

    def _gone(self, port: Port, mail: Mail, message: Gone) -> None:
        self.on_gone(message.who)

    def _ask(self, port: Port, mail: Mail, message: Ask) -> None:
        self.pulse(message.request, detailed=message.detailed)

    def _reload(self, take: Callable[[ReloadT], None], order: ReloadT) -> Done:
        logging.getLogger().setLevel(order.log_level.upper())
        try:
            take(order)
        except ZsqError:
            raise
        except Exception as error:  # any library may raise; the old settings stay
            raise Refused(E_INTERNAL, f"{type(error).__name__}: {error}") from error
        log.debug("%s has the new settings", self.title)
        return Done(order.request, {})

    def answer_order(self, answer: OrderReply) -> None:
        self.supervisor.send((), answer)

    def stir(self, *, blocks: bool = False) -> None:
        """Note that the next pulse has news, so that it is sent soon.

        `blocks` is True if blocks arrived, but not through a port.
        """
        self._stirred = True
        self._worked = self._worked or blocks

    def hasten_pulse(self) -> None:
        """Send the next pulse within a second. Timers that rested go on."""
        first = self._timers[0]
        first[0] = min(first[0], self._pulsed_ns + options.PULSE_MS * NS_PER_MS)
        self._timers_due_ns = min(self._timers_due_ns, first[0])
        if self._is_resting:
            self._is_resting = False
            now = time.monotonic_ns()
            for timer in self._timers:
                timer[0] = min(timer[0], now + timer[1])
            self._timers_due_ns = min(timer[0] for timer in self._timers)

    def _pulse_if_stirred(self) -> None:
        """Send a pulse. `hasten_pulse` expects the timer of this method to be the first one.

        An idle actor sends its next pulse later and later. Any message makes it send the pulse
        earlier.
        """
        self.on_pulse()
        if self._memory.due(time.monotonic_ns(), worked=self._worked, stirred=self._stirred):
            release_memory()
        was_idle = not self._stirred
        self._is_resting = self.may_rest(self.pulse()) and was_idle
        doubled_ms = min(2 * self._pause_ms, options.IDLE_PULSE_MS_MAX)
        self._pause_ms = doubled_ms if self._is_resting else options.IDLE_PULSE_MS
        self._worked = self._stirred = False
        self._timers[0][0] = self._pulsed_ns + self._pause_ms * NS_PER_MS

    def _cpu_ns(self) -> int:
        """Return the processor time of this actor. Of a shared host, it has only its thread's."""
        return time.thread_time_ns() if self._is_hosted else time.process_time_ns()

    def pulse(self, request: int = 0, *, detailed: bool = False) -> Mapping[str, object]:
        """Send a pulse, and return its statistics."""
        if self._stirred:
            self.stirred_ns = time.monotonic_ns()
        stats: dict[str, object] = {"cpu_ns": self._cpu_ns(), **self.statistics()}
        details: dict[str, Any] = {}
        if detailed:
            if not self._is_hosted:
                stats["private_bytes"] = private_bytes()
            details = fitting(self.details(), options.DETAILS_BYTES_MAX)
        if not request:  # a pulse that answers a request does not delay the next regular one
            self._pulsed_ns = time.monotonic_ns()
        self.supervisor.send((), Pulse(self.key, request, stats, details))
        return stats
