"""One link: a DEALER to one target, found, opened, watched, and opened again when it dies.

Over ipc the supervisor is asked where the target is, and the DEALER connects there; over tcp the gateway is told what to talk to.
From then on both are the same. A link is dead when its monitor reports a disconnect, the peer says Bye or does not know
us, nothing came for two heartbeats, or the peer sends what cannot be. Then the socket is closed without linger, and after
a pause (50 ms, doubling to 1 s, with jitter) everything begins anew, on a new socket: the old one's pipe may outlive its server, and
what lies in it must never arrive out of order.

The state machine is the table; `Link` is the shell that carries it out. What is said on the link is the peer's business (`Peer`).
"""

from __future__ import annotations

import logging
import random
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from . import sockets
from .address import Address, Target
from .codec import encode, frames_blocks
from .errors import E_CLOSED, E_CLOSING, E_FORBIDDEN, E_HELLO, E_UNREACHABLE, CorruptBlock, UsageError, ZsqError, from_wire
from .handshake import HANDSHAKE_EVENTS, suspicion, verdict
from .protocol import Beat, Bye, Done, Failed, Lookup, Open, Wire
from .session import Reaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from .block import Block
    from .engine import Engine

log = logging.getLogger("zsq")

MS: Final = 1_000_000
ATTEMPT_NS: Final = 10_000 * MS  # to find, open and greet
BACKOFF_MS: Final = 50
BACKOFF_MS_MAX: Final = 1_000
LATER_MS: Final = 250  # until a full topic is asked again
RECEIVE_MAX: Final = 500  # messages a turn; what is left over is due at once
FAR_NS: Final = 1 << 62
_BEAT: Final = [b"", encode(Beat())]
_BYE: Final = [b"", encode(Bye())]
AGAIN: Final = frozenset({E_HELLO, E_CLOSING, E_UNREACHABLE})  # refusals of the moment


def _ends(word: Failed) -> bool:
    """It answers no request: the topic was closed to us, or what permitted us was taken back."""
    return word.code in (E_CLOSED, E_FORBIDDEN) and not word.request


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


class Peer(Protocol):
    """Who speaks on a link: a session with its shell."""

    def greeting(self) -> Wire | None:
        """The first word, or None where there is none (then the link is up at once)."""

    def on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> Reaction: ...

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
        self._socket: sockets.Socket | None = None
        self._monitor: sockets.Socket | None = None
        self._fds = (-1, -1)
        self._request = 1
        self._since_ns = 0  # of this attempt
        self._again_ns = 0  # waiting: when
        self._attempts = 0
        self._outbox: list[list[Any]] = []  # what the pipe did not take; see `send`
        self.passing = again
        self.busy: Callable[[], bool] | None = None  # whether something waits for the link: an idle one makes no topic
        self.creates = target.create  # whether this attempt says so
        self._known = False  # we were let in once: then what keeps us out may pass, as when the broker is being set up anew

    # Beginning

    def start(self, now_ns: int) -> None:
        """Begin if it has not begun."""
        if self.state in (_S.IDLE, _S.REFUSED):
            self._attempt(now_ns)

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
        self.trouble = why
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

    def _refuse(self, now_ns: int, error: ZsqError) -> None:
        if error.code in self.passing:
            self._die(now_ns, str(error))
            self.refusal = error
            return
        before = self.state
        self.trouble = str(error)
        self.refusal = error
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
                _, word, payload = sockets.open_frames(frames)
                self._on_word(word, frames_blocks(payload) if payload else [], now_ns)
            except (UsageError, CorruptBlock) as error:
                log.warning("link to %s: %s; it is opened anew", self.target, error)
                self._die(now_ns, str(error))
            if self._socket is not socket:
                break
        if taken == RECEIVE_MAX:
            self.engine.sooner(0)
        return taken

    def _on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> None:
        kind = type(word)
        if kind is Beat:
            return
        if kind is Bye:
            self._die(now_ns, "the broker said goodbye", at_once=self.state is _S.UP and now_ns - self._since_ns > BACKOFF_MS_MAX * MS)
        elif type(word) is Failed and (word.code == E_HELLO or self.state is not _S.UP or _ends(word)):
            self._refuse(now_ns, from_wire(word.code, word.text))
        elif self.state is _S.LOOKING or self.state is _S.OPENING:
            if type(word) is Done and word.request == self._request:
                self._found(word, now_ns)
        else:
            reaction = self.peer.on_word(word, blocks, now_ns)
            if reaction is Reaction.UP:
                self._greeted(now_ns)
            elif reaction is not Reaction.NOTHING:
                self._die(now_ns, "the session begins anew", at_once=reaction is Reaction.RENEW)
                if reaction is Reaction.LATER:
                    self._again_ns = now_ns + LATER_MS * MS
                    self.engine.sooner(self._again_ns)

    def _found(self, word: Done, now_ns: int) -> None:
        if self.state is _S.LOOKING:
            endpoint = word.data.get(self.target.kind)
            if not isinstance(endpoint, str) or not endpoint:
                self._die(now_ns, f"the supervisor does not know where {self.target} is")
                return
            self.opened = word.data
            self._disconnect()
            try:
                self._connect(endpoint)
            except zmq.ZMQError as error:
                self._die(now_ns, f"cannot connect to {self.target} at {endpoint}: {error}")
                return
        else:
            self.opened = word.data
        self._reached(now_ns)

    # Watching

    def check_monitor(self, now_ns: int) -> None:
        if self._monitor is None:
            return
        events = sockets.read_events(self._monitor)
        # To a direct endpoint that was looked up, a refused connection means that its owner is gone; the supervisor and the
        # gateway have fixed places, so there ZeroMQ's own retries will do.
        fixed = self.state in (_S.LOOKING, _S.OPENING) or not self.address.direct or self.target.kind == "supervisor"
        if events & HANDSHAKE_EVENTS:
            self._shut_out(now_ns, events)
        elif events & sockets.GONE_EVENTS or (not fixed and events & sockets.RETRY_EVENTS):
            self.receive(now_ns)  # what it said last
            if self._monitor is not None:
                self._die(now_ns, "the connection was lost")
        elif events:
            self.trouble = f"nobody answers at {self.address.url}"

    def _shut_out(self, now_ns: int, events: int) -> None:
        """The handshake failed. Who was let in before tries again."""
        error = verdict(events, self.address)
        if error is not None and not self._known:
            self._refuse(now_ns, error)
        else:
            self._die(now_ns, suspicion(self.address) if error is None else error.text)

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
