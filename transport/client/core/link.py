"""One link: a DEALER to one target, found, opened, watched, and opened again when it dies.

Over ipc the supervisor is asked where the target is, and the DEALER connects there; over tcp the gateway is told what to talk to.
From then on both are the same. A link is dead when its monitor reports a disconnect, the peer says Bye or does not know
us, nothing came for two heartbeats, or the peer sends what cannot be. Then the socket is closed without linger, and after
a pause (50 ms, doubling to 1 s, with jitter) everything begins anew, on a new socket: the old one's pipe may outlive its server, and
what lies in it must never arrive out of order.

The state machine is the table; `Link` is the shell that carries it out. What is said on the link is the peer's business (`Peer`).

The engine, in this file too, is the part of a client that never waits: its links, what is due when, and who waits for what.

The blocking client (`drive.py`) and the asyncio client (`aio.py`) are two ways to turn the same engine. An engine owns an
epoll set of its sockets' descriptors. ZeroMQ's are edges: one is readable when there is news, and whoever touches the
socket takes the news; so after each send the link is drained too, and what a bounded drain leaves over is due at once.
"""

from __future__ import annotations

import logging
import math
import numbers
import random
import select
import time
from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import zmq

from ...errors import (
    E_BAD_ARGUMENT,
    E_CLOSED,
    E_CLOSING,
    E_FORBIDDEN,
    E_HELLO,
    E_UNREACHABLE,
    BrokerUnreachable,
    CorruptBlock,
    Refused,
    UsageError,
    ZsqError,
    advice,
    from_wire,
    option,
)
from ...wire import sockets
from ...wire.address import Address, Target
from ...wire.codec import encode, frames_blocks
from ...wire.handshake import HANDSHAKE_EVENTS, suspicion, verdict, what_answers
from ...wire.protocol import Beat, Bye, Done, Failed, Lookup, Open, Wire
from .producer_session import Reaction

if TYPE_CHECKING:
    from ...block.block import Block


S: Final = 1_000_000_000
LONGEST_S: Final = 1e9  # 31 years; longer waits are cut to that
PATIENCE_S: Final = (1, 10, 60)  # who waits for a broker is told after so long, then every minute
PROBED_NS: Final = 100_000_000  # how often it is looked whether the probe has an answer
MS: Final = 1_000_000
ATTEMPT_NS: Final = 10_000 * MS  # to find, open and greet
BACKOFF_MS: Final = 50
BACKOFF_MS_MAX: Final = 1_000
LATER_MS: Final = 250  # until a full topic is asked again
# A broker that wants a key hangs up, and ZeroMQ often hears of that before it has read why. So the first of these are tried again soon.
HANG_UPS_MAX: Final = 30
HANG_UP_MS: Final = 10
REFUSED_MS: Final = 10  # the pause after a refusal; each one that follows doubles it
REFUSED_MS_MAX: Final = 1_000
REFUSED_FORGOTTEN_MS: Final = 10_000  # a refusal so long after the last pause is the first one again
RECEIVE_MAX: Final = 500  # messages a turn; what is left over is due at once
FAR_NS: Final = 1 << 62
_BEAT: Final = [b"", encode(Beat())]
_BYE: Final = [b"", encode(Bye())]
AGAIN: Final = frozenset({E_HELLO, E_CLOSING, E_UNREACHABLE})  # refusals of the moment
Ready = list[tuple[int, int]]
_T = TypeVar("_T")
Steps = Generator[tuple[Callable[[], bool], int], bool, _T]
"""What a call does, without waiting: it yields what is to hold and until when that is waited for, and is sent whether it does. `Drive` and
`Turner` carry it out, one blocking, the other with await."""


def check_timeout(timeout: Any) -> float | None:
    """A time-out in seconds as a person gives it; None for one that never ends. `UsageError` for what is no number, and for NaN."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or math.isnan(timeout):
        raise UsageError(E_BAD_ARGUMENT, f"{option('timeout')} takes a number of seconds, or None to wait for ever, not {timeout!r}")
    return None if timeout == math.inf else max(0.0, float(timeout))


def until_ns(timeout: Any) -> int:
    """When a wait of so many seconds ends that begins now; `FAR_NS` for None and infinity. One below 0 has ended."""
    seconds = timeout if type(timeout) is float and 0.0 <= timeout <= LONGEST_S else check_timeout(timeout)
    return FAR_NS if seconds is None else time.monotonic_ns() + int(min(seconds, LONGEST_S) * S)


def so_long(timeout: float | None) -> str:
    """A time-out in a sentence."""
    return "any time" if timeout is None or math.isinf(timeout) else f"{timeout:g} s"


def _told_after(times: int) -> int:
    """After how many seconds it is told again, of who waited so long that it was told so often."""
    return PATIENCE_S[times] if times < len(PATIENCE_S) else (times - 1) * PATIENCE_S[-1]


class Waiter:
    """Somebody who waits until `done()`; `wake` is called then, once, under the engine's lock; or when `deadline_ns` has passed."""

    __slots__ = ("deadline_ns", "done", "wake")

    def __init__(self, done: Callable[[], bool], wake: Callable[[], None], deadline_ns: int = FAR_NS) -> None:
        self.done = done
        self.wake = wake
        self.deadline_ns = deadline_ns


class Engine:
    """Links by descriptor, timers, waiters. Not thread-safe by itself."""

    patience_ns: Final = PATIENCE_S[0] * S  # before it is told that there is no broker

    def __init__(self) -> None:
        self.met = False  # a broker has answered
        self.hasty = False  # where nothing listens on this machine it fails, unless a broker was met before
        self.tells = False  # it logs that somebody waits for a broker
        self._told = 0  # how often it did, of this wait
        self._probe: sockets.Probe | None = None
        self.answers = ""  # what is known of who answers in place of a broker
        self.epoll = select.epoll()
        self.links: list[Link] = []
        self.due_ns = FAR_NS  # a lower bound of when `timers` has something to do
        self.turns = 0
        self.waiters: list[Waiter] = []
        self._sockets: dict[int, Link] = {}
        self._monitors: dict[int, Link] = {}

    # Links

    def add(self, link: Link) -> None:
        self.links.append(link)

    def watch(self, link: Link, socket_fd: int, monitor_fd: int) -> None:
        self._sockets[socket_fd] = link
        self._monitors[monitor_fd] = link
        self.epoll.register(socket_fd, select.EPOLLIN)
        self.epoll.register(monitor_fd, select.EPOLLIN)

    def forget(self, socket_fd: int, monitor_fd: int) -> None:
        for table, fd in ((self._sockets, socket_fd), (self._monitors, monitor_fd)):
            if table.pop(fd, None) is not None:
                self.epoll.unregister(fd)

    def sooner(self, at_ns: int) -> None:
        if at_ns < self.due_ns:
            self.due_ns = at_ns

    # Turning

    def turn(self, ready: Ready) -> None:
        """Take in what came on the ready descriptors, then what is due."""
        self.turns += 1
        now = time.monotonic_ns()
        for fd, _ in ready:
            link = self._sockets.get(fd)
            if link is not None:
                link.take_in(now)
                continue
            link = self._monitors.get(fd)
            if link is not None:
                link.check_monitor(now)
        if now >= self.due_ns:
            self.timers(now)

    def timers(self, now_ns: int) -> None:
        """All that is due: heartbeats, new attempts, what a subclass adds."""
        self.due_ns = FAR_NS
        for link in list(self.links):
            self.sooner(link.on_time(now_ns))
        for waiter in self.waiters:
            if waiter.deadline_ns <= now_ns:
                waiter.deadline_ns = FAR_NS  # told once; it sees for itself that it is too late
                waiter.wake()
            self.sooner(waiter.deadline_ns)
        self.sooner(self._look_after(now_ns))

    def _look_after(self, now_ns: int) -> int:
        """Tell that there is no broker, or give up; when to look again."""
        waiting = []
        for link in self.links:
            if link.wanted_ns != FAR_NS and not link.needed():
                link.wanted_ns = FAR_NS
            if link.wanted_ns != FAR_NS:
                waiting.append(link)
        if not waiting:
            self._told = 0
            self._probe = None
            return FAR_NS
        since_ns = min(link.wanted_ns for link in waiting)
        if self.hasty and not self.met and now_ns >= since_ns + self.patience_ns:
            lost = [link for link in waiting if link.unheard and link.address.local]
            for link in lost:
                link.give_up(BrokerUnreachable(E_UNREACHABLE, f"{link.trouble}; nothing was sent. {advice()}"))
            if lost:
                return now_ns
        self._ask_what_answers(waiting, now_ns - since_ns)
        told_ns = since_ns + _told_after(self._told) * S
        if now_ns >= told_ns:
            self._tell(waiting, (now_ns - since_ns) // S)
            while (told_ns := since_ns + _told_after(self._told) * S) <= now_ns:
                self._told += 1
        return min(told_ns, now_ns + PROBED_NS) if self._probe is not None and self._probe.answer is None else told_ns

    def _ask_what_answers(self, waiting: list[Link], waited_ns: int) -> None:
        """Something takes the connection and says nothing: find out whether it is another port of the broker."""
        link = waiting[0]
        if self.met or link.unheard or link.address.direct or waited_ns < self.patience_ns:
            return
        if self._probe is None:
            self._probe = sockets.Probe(*link.address.place())
        elif self._probe.answer:
            text, sure = what_answers(self._probe.answer, link.address.url)
            self.answers = text
            for one in waiting:
                one.trouble = text
                if sure:
                    one.give_up(UsageError(E_BAD_ARGUMENT, text))

    def _tell(self, waiting: list[Link], seconds: int) -> None:
        if self.tells:
            link = waiting[0]
            what = str(link.target) if len(waiting) == 1 else f"{link.target} and {len(waiting) - 1} more"
            why = link.trouble or "no answer"
            log.warning("%s: no broker at %s for %d s (%s); waiting for it. %s", what, link.address.url, seconds, why, advice())

    def settle(self) -> None:
        """Wake whoever has what it waits for."""
        if self.waiters:
            ended = [waiter for waiter in self.waiters if waiter.done()]
            for waiter in ended:
                self.waiters.remove(waiter)
                waiter.wake()

    def stop(self, linger_ms: int = 0) -> None:
        """Close all links; the engine cannot be used again. The epoll set is closed with the last who sleeps on it."""
        for link in self.links:
            link.stop(linger_ms)
        self.links.clear()


log = logging.getLogger("zsq")


def _ends(message: Failed) -> bool:
    """It answers no request: the topic was closed to us, or what permitted us was taken back."""
    return message.code in (E_CLOSED, E_FORBIDDEN) and not message.request


class LinkState(Enum):
    IDLE = "idle"  # nobody needs it
    LOOKING = "looking"  # the supervisor is asked where the target is
    OPENING = "opening"  # the gateway is told what to talk to
    GREETING = "greeting"  # Hello or Sub is sent
    UP = "up"
    WAITING = "waiting"  # dead; the pause before the next attempt
    REFUSED = "refused"  # the broker will not; whoever needs it begins again


class LinkEvent(Enum):
    LOOK = "Lookup sent"
    OPEN = "Open sent"
    REACHED = "Done: the target is connected"
    GREETED = "greeting answered"
    DIED = "died"
    REFUSE = "Failed"
    STOP = "stop"


_S, _E = LinkState, LinkEvent
_DIES: Final = {_E.DIED: _S.WAITING, _E.REFUSE: _S.REFUSED, _E.STOP: _S.IDLE}
LINK_TABLE: Final[dict[LinkState, dict[LinkEvent, LinkState]]] = {
    _S.IDLE: {_E.LOOK: _S.LOOKING, _E.OPEN: _S.OPENING, _E.REACHED: _S.GREETING, _E.DIED: _S.WAITING, _E.STOP: _S.IDLE},
    _S.WAITING: {_E.LOOK: _S.LOOKING, _E.OPEN: _S.OPENING, _E.REACHED: _S.GREETING, _E.DIED: _S.WAITING, _E.STOP: _S.IDLE},
    _S.REFUSED: {_E.LOOK: _S.LOOKING, _E.OPEN: _S.OPENING, _E.REACHED: _S.GREETING, _E.DIED: _S.WAITING, _E.STOP: _S.IDLE},
    _S.LOOKING: {_E.REACHED: _S.GREETING, **_DIES},
    _S.OPENING: {_E.REACHED: _S.GREETING, **_DIES},
    _S.GREETING: {_E.GREETED: _S.UP, **_DIES},
    _S.UP: _DIES,
}


class Backoff:
    """The pause after refusals: 10 ms, doubled by each refusal up to 1 s, with jitter.

    Without it a caller that tries again at once asks a broker in trouble thousands of times a second.
    """

    __slots__ = ("_count", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0  # nothing is asked before
        self._count = 0

    def refused(self, now_ns: int) -> None:
        """Note a refusal. Those that come during a pause were asked before it began, and do not lengthen it."""
        if now_ns < self.until_ns:
            return
        if now_ns > self.until_ns + REFUSED_FORGOTTEN_MS * MS:
            self._count = 0
        pause_ms = min(REFUSED_MS_MAX, REFUSED_MS << min(self._count, 7)) * random.uniform(0.5, 1.0)
        self._count += 1
        self.until_ns = now_ns + int(pause_ms * MS)

    def ended(self) -> None:
        """Note a success."""
        self.until_ns = self._count = 0


class Peer(Protocol):
    """Who speaks on a link: a session with its shell."""

    def greeting(self) -> Wire | None:
        """The first word, or None where there is none (then the link is up at once)."""

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction: ...

    def on_up(self, now_ns: int) -> None:
        """The greeting is answered: send what waits."""

    def on_received(self, now_ns: int) -> None:
        """Words came and were taken: perhaps more can be sent now."""

    def on_lost(self) -> None: ...

    def on_refused(self, error: ZsqError) -> None:
        """The broker will not have this link. What waits for it fails."""


class Link:
    """`heartbeat_ms` 0: no heartbeats (targets that have no leases and no windows). `again`: codes of refusals that may pass."""

    def __init__(
        self, engine: Engine, address: Address, target: Target, peer: Peer, heartbeat_ms: int = 0, again: frozenset[str] = AGAIN
    ) -> None:
        self.engine = engine
        self.address = address
        self.target = target
        self.peer = peer
        self.state = _S.IDLE
        self.trouble = ""  # what happened last, for error messages
        self.refusal: ZsqError | None = None  # why the last attempt did not succeed, if the broker said so
        self.opened: dict[str, Any] = {}  # what the supervisor or the gateway answered about the target
        self.heartbeat_ms = heartbeat_ms
        self.sent_ns = self.heard_ns = self._beat_ns = 0
        self.needed: Callable[[], bool] = lambda: True  # whether somebody waits for this link
        self.wanted_ns = FAR_NS  # since when somebody waits for it in vain; `FAR_NS` while it is up or not needed
        self.unheard = False  # the last connection was refused
        self._backoff = Backoff()
        self._socket: sockets.Socket | None = None
        self._monitor: sockets.Socket | None = None
        self._fds = (-1, -1)
        self._request = 1
        self._since_ns = 0  # of this attempt
        self._again_ns = 0  # waiting: when
        self._hang_ups = 0  # during the handshake
        self._attempts = 0
        self._outbox: list[list[Any]] = []  # what the pipe did not take; see `send`
        self.passing = again
        self.busy: Callable[[], bool] | None = None  # whether something waits for the link: an idle one makes no topic
        self.creates = target.create  # whether this attempt says so
        self._known = False  # we were let in once: then what keeps us out may pass, as when the broker is being set up anew

    # Beginning

    def start(self, now_ns: int) -> None:
        """Begin if it has not begun; after refusals, when their pause is over."""
        if self.wanted_ns == FAR_NS and not self.up:
            self._want(now_ns)
        if self.state not in (_S.IDLE, _S.REFUSED):
            return
        if now_ns >= self._backoff.until_ns:
            self._attempt(now_ns)
        else:
            self._step(_E.DIED)
            self._again_ns = self._backoff.until_ns
            self.engine.sooner(self._again_ns)

    def _want(self, now_ns: int) -> None:
        self.wanted_ns = now_ns
        self.engine.sooner(now_ns + self.engine.patience_ns)

    def _attempt(self, now_ns: int) -> None:
        self._since_ns = self.heard_ns = self.sent_ns = now_ns
        self._request += 1
        target = self.target
        create = self.creates = target.create and (self.busy is None or self.busy())
        try:
            self._connect(self.address.endpoint())
        except (zmq.ZMQError, OSError) as error:
            self._die(now_ns, f"cannot connect to {self.address.url}: {error}")
            return
        if not self.address.direct:
            self._step(_E.OPEN)
            self.send([b"", encode(Open(self._request, target.kind, target.topic, target.channel, create, dict(target.settings)))], now_ns)
        elif target.kind == "supervisor":
            self._reached(now_ns)
        else:
            self._step(_E.LOOK)
            channel = target.channel if target.kind == "channel" else ""
            asked = Lookup(self._request, target.topic, channel, create, dict(target.settings), dict(self.address.by))
            self.send([b"", encode(asked)], now_ns)
        self.engine.sooner(now_ns + ATTEMPT_NS)

    def _connect(self, endpoint: str) -> None:
        socket = sockets.make_dealer(self.address.credentials)
        try:
            monitor = sockets.watch(socket)
            socket.connect(endpoint)
        except zmq.ZMQError:
            sockets.close(socket, None)
            raise
        self._socket, self._monitor = socket, monitor
        self._fds = (int(socket.getsockopt(zmq.FD)), int(monitor.getsockopt(zmq.FD)))
        self.engine.watch(self, *self._fds)
        self.engine.sooner(0)  # descriptors tell edges: what came before they were watched is looked for then

    def _disconnect(self, linger_ms: int = 0) -> None:
        if self._socket is not None:
            self.engine.forget(*self._fds)
            sockets.close(self._socket, self._monitor, linger_ms)
        self._socket = self._monitor = None
        self._outbox.clear()

    def _reached(self, now_ns: int) -> None:
        """The socket leads to the target: say the first word."""
        self._step(_E.REACHED)
        greeting = self.peer.greeting()
        if greeting is None:
            self._greeted(now_ns)
        else:
            self.send([b"", encode(greeting)], now_ns)

    def _greeted(self, now_ns: int) -> None:
        self._step(_E.GREETED)
        self._attempts = 0
        self._known = True
        self.trouble = ""
        self.refusal = None
        if not (self.address.direct and self.target.kind == "supervisor"):  # that one is up before it is reached
            self.wanted_ns = FAR_NS
        self.peer.on_up(now_ns)
        if self.heartbeat_ms:
            self.engine.sooner(now_ns + self.heartbeat_ms * MS)

    # Ending

    def stop(self, linger_ms: int = 0) -> None:
        """End for good; with a linger, say Bye first."""
        if self.state is _S.UP and linger_ms:
            self.send(_BYE, self.sent_ns)
        self._disconnect(linger_ms)
        self._step(_E.STOP)

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        """This link is of no use any more: begin anew."""
        self._die(now_ns, why, at_once=at_once)

    def _die(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        before = self.state
        self.trouble = self.engine.answers or why
        self.refusal = None
        log.debug("link to %s: %s", self.target, why)
        self._disconnect()
        self._step(_E.DIED)
        pause_ms = 0.0 if at_once else min(BACKOFF_MS_MAX, BACKOFF_MS << min(self._attempts, 8)) * random.uniform(0.5, 1.0)
        self._attempts += 1
        self._again_ns = now_ns + int(pause_ms * MS)
        self.engine.sooner(self._again_ns)
        if before in (_S.GREETING, _S.UP):
            self.peer.on_lost()
        if self.wanted_ns == FAR_NS and self.needed():
            self._want(now_ns)

    def give_up(self, error: ZsqError) -> None:
        """Nothing listens there: what waits fails. Whoever needs the link begins again."""
        self._disconnect()
        self._step(_E.REFUSE if self.state in (_S.LOOKING, _S.OPENING, _S.GREETING, _S.UP) else _E.STOP)
        self.wanted_ns = FAR_NS
        self.peer.on_refused(error)

    def _refuse(self, now_ns: int, error: ZsqError) -> None:
        if error.code in self.passing:
            self._die(now_ns, str(error))
            self.refusal = error
            return
        before = self.state
        self.trouble = str(error)
        self.refusal = error
        self.wanted_ns = FAR_NS
        if isinstance(error, Refused):
            self._backoff.refused(now_ns)
        self._disconnect()
        self._step(_E.REFUSE)
        if before in (_S.GREETING, _S.UP):
            self.peer.on_lost()
        self.peer.on_refused(error)

    def _step(self, event: LinkEvent) -> None:
        self.state = LINK_TABLE[self.state][event]

    # Words

    @property
    def up(self) -> bool:
        return self.state is _S.UP

    @property
    def waiting(self) -> bool:
        return self.state is _S.WAITING

    @property
    def down(self) -> bool:
        """Return True when it does not lead to the target, and is not on its way there at this moment."""
        return self.state in (_S.IDLE, _S.WAITING, _S.REFUSED)

    def send(self, frames: list[Any], now_ns: int) -> None:
        """Send, in order. High-water marks lie above all credits, so a full pipe means a peer that takes nothing: what it does not
        take waits here until the heartbeat decides."""
        assert self._socket is not None
        self.sent_ns = now_ns
        if self._outbox or not sockets.send_frames(self._socket, frames):
            self._outbox.append(frames)
            self.engine.sooner(now_ns + 10 * MS)

    def take_in(self, now_ns: int) -> None:
        """News on the socket: take it, and let the peer go on."""
        if self.receive(now_ns) and self.state is _S.UP:
            self.peer.on_received(now_ns)

    def receive(self, now_ns: int) -> int:
        """Take all words that are there, up to a bound; how many there were."""
        socket = self._socket
        taken = 0
        if socket is None:
            return 0
        while taken < RECEIVE_MAX and sockets.readable(socket):
            frames = sockets.recv_frames(socket)
            if frames is None:
                break
            taken += 1
            self.heard_ns = now_ns
            try:
                _, message, payload = sockets.open_frames(frames)
                self._on_word(message, frames_blocks(payload) if payload else [], now_ns)
            except (UsageError, CorruptBlock) as error:
                log.warning("link to %s: %s; it is opened anew", self.target, error)
                self._die(now_ns, str(error))
            if self._socket is not socket:
                break
        if taken:
            self.engine.met = True
            self.engine.answers = ""
            if self.state is _S.UP:
                self.wanted_ns = FAR_NS
            if taken == RECEIVE_MAX:
                self.engine.sooner(0)
        return taken

    def _on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> None:
        kind = type(message)
        if kind is Beat:
            return
        if kind is Bye:
            self._die(now_ns, "the broker said goodbye", at_once=self.state is _S.UP and now_ns - self._since_ns > BACKOFF_MS_MAX * MS)
        elif type(message) is Failed and (message.code == E_HELLO or self.state is not _S.UP or _ends(message)):
            self._refuse(now_ns, from_wire(message.code, message.text))
        elif self.state is _S.LOOKING or self.state is _S.OPENING:
            if type(message) is Done and message.request == self._request:
                self._found(message, now_ns)
        else:
            reaction = self.peer.on_word(message, blocks, now_ns)
            if reaction is Reaction.UP:
                self._greeted(now_ns)
            elif reaction is not Reaction.NOTHING:
                self._die(now_ns, "the session begins anew", at_once=reaction is Reaction.RENEW)
                if reaction is Reaction.LATER:
                    self._again_ns = now_ns + LATER_MS * MS
                    self.engine.sooner(self._again_ns)

    def _found(self, message: Done, now_ns: int) -> None:
        if self.state is _S.LOOKING:
            endpoint = message.data.get(self.target.kind)
            if not isinstance(endpoint, str) or not endpoint:
                self._die(now_ns, f"the supervisor does not know where {self.target} is")
                return
            self.opened = message.data
            self._disconnect()
            try:
                self._connect(endpoint)
            except zmq.ZMQError as error:
                self._die(now_ns, f"cannot connect to {self.target} at {endpoint}: {error}")
                return
        else:
            self.opened = message.data
        self._reached(now_ns)

    # Watching

    def check_monitor(self, now_ns: int) -> None:
        if self._monitor is None:
            return
        events = sockets.read_events(self._monitor)
        # To a direct endpoint that was looked up, a refused connection means that its owner is gone; the supervisor and the
        # gateway have fixed places, so there ZeroMQ's own retries will do.
        fixed = self.state in (_S.LOOKING, _S.OPENING) or not self.address.direct or self.target.kind == "supervisor"
        if events:
            # ZeroMQ tries again after a handshake that failed, too: there somebody listens.
            self.unheard = bool(events & sockets.RETRY_EVENTS) and not events & (sockets.CONNECTED_EVENTS | HANDSHAKE_EVENTS)
        if events & HANDSHAKE_EVENTS:
            self._shut_out(now_ns, events)
        elif events & sockets.GONE_EVENTS or (not fixed and events & sockets.RETRY_EVENTS):
            self.receive(now_ns)  # what it said last
            if self._monitor is not None:
                self._die(now_ns, "the connection was lost")
        elif self.unheard:
            self.trouble = f"nothing listens at {self.address.url}" if self.address.local else f"nobody answers at {self.address.url}"

    def _shut_out(self, now_ns: int, events: int) -> None:
        """The handshake failed. Who was let in before tries again."""
        error = verdict(events, self.address)
        if error is not None and not self._known:
            self._refuse(now_ns, error)
        else:
            self._die(now_ns, suspicion(self.address) if error is None else error.text)
            if error is None and self._hang_ups < HANG_UPS_MAX:
                self._hang_ups += 1
                self._again_ns = now_ns + HANG_UP_MS * MS
                self.engine.sooner(self._again_ns)

    def on_time(self, now_ns: int) -> int:
        """Do what is due; when to call again."""
        if self.state in (_S.IDLE, _S.REFUSED):
            return FAR_NS
        if self.state is _S.WAITING:
            if now_ns < self._again_ns:
                return self._again_ns
            self._attempt(now_ns)
            return now_ns + ATTEMPT_NS
        self.take_in(now_ns)
        self.check_monitor(now_ns)
        self._flush(now_ns)
        if self._socket is None:
            return self._again_ns if self.waiting else FAR_NS
        if self.up:
            return self._beat(now_ns)
        if now_ns >= self._since_ns + ATTEMPT_NS:
            self._die(now_ns, f"{self.trouble or 'no answer'} within {ATTEMPT_NS // MS // 1000} s")
            return self._again_ns
        return self._since_ns + ATTEMPT_NS

    def _flush(self, now_ns: int) -> None:
        while self._outbox and self._socket is not None:
            if not sockets.send_frames(self._socket, self._outbox[0]):
                self.engine.sooner(now_ns + 10 * MS)
                return
            self._outbox.pop(0)

    def _beat(self, now_ns: int) -> int:
        if not self.heartbeat_ms:
            return FAR_NS
        heartbeat_ns = self.heartbeat_ms * MS
        if now_ns - self.heard_ns > 2 * heartbeat_ns:
            self._die(now_ns, f"nothing came for {2 * self.heartbeat_ms} ms")
            return self._again_ns
        quiet_ns = max(min(self.sent_ns, self.heard_ns), self._beat_ns)  # silence of either side calls for a beat, but for one
        if now_ns - quiet_ns >= heartbeat_ns:
            self.send(_BEAT, now_ns)
            self._beat_ns = quiet_ns = now_ns
        return quiet_ns + heartbeat_ns
