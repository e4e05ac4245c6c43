"""Link: a way to one target that is opened, watched, and opened again when it dies.

Over ipc, the client asks the supervisor where the target is and connects a DEALER there. Over tcp,
it asks the gateway to open the target. After that, both kinds of link work in the same way. A
gateway on this machine answers with the broker's run directory, and the link then starts again over
ipc, if it can (`direct_address`). When such a link cannot reach the supervisor, it goes back to the
gateway.

A link is dead when its monitor reports a disconnect, when the peer sends Bye or does not know the
client, when nothing arrived for two heartbeats (`watch.py`), when a second connection shows that it
is dead (`second_try.py`), or when the peer sends something invalid. The socket is then closed
without linger. After a pause (50 ms, doubling to 1 s, with jitter) the link starts again on a new
socket. A new socket is necessary: the old one's pipe may outlive its server, and the contents of
that pipe must never arrive out of order.

A client may have several addresses (`wire/addresses.py`). An attempt has failed at an address when
nothing arrived: the connection was refused, or the peer did not complete ZeroMQ's handshake within
`REACH_NS`. It has also failed when the broker answers that it is not the primary. The link then
tries the next address at once, and pauses when it has tried all of them (`course.py`). A link that
was up first returns to the same address, because only one process of the broker may have ended. If
the broker answers with `Spread`, the link goes to the broker that has the part (`wire/spread.py`).

`LINK_TABLE` (`link_table.py`) is the machine, and `Link` carries its actions out. What a link has
only for a time is an object of its own: an `Attempt`, a `LinkConnection` while there is a socket,
and a `Watch` while the link is up. The peer (`Peer`) defines the protocol of the link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from ...errors import (
    E_BAD_COMMAND,
    E_CLOSED,
    E_CLOSING,
    E_FORBIDDEN,
    E_HELLO,
    E_NOT_FOUND,
    E_STANDBY,
    E_UNREACHABLE,
    CorruptBlock,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)
from ...names import is_channel_missing, part_of
from ...resolver import NotResolved, late
from ...system import why_no_file
from ...wire import sockets
from ...wire.address import Address, Space, Target, beside, space_of
from ...wire.addresses import NOT_PRIMARY, Rotation
from ...wire.codec import encode, frames_blocks
from ...wire.handshake import HANDSHAKE_EVENTS, suspicion, verdict
from ...wire.protocol import Beat, Bye, Done, Failed, Lookup, Open, Spread, Unstored, Wire
from ...wire.spread import HasParts, checked, removed_part
from .attempt import Attempt, Contact
from .connection import LinkConnection
from .course import BACKOFF_MS_MAX, STRANGER, Course
from .link_host import LinkHost
from .link_table import LINK_TABLE, LinkAction, LinkEvent, LinkState
from .places import Places
from .reaction import Reaction
from .timeouts import FAR_NS, MS, S
from .watch import ASK_NS, Watch

if TYPE_CHECKING:
    from ...block.block import Block

log = logging.getLogger("zsq")

ATTEMPT_NS: Final = 10_000 * MS  # the time for one attempt to find, open and greet the target
# With several addresses: the time in which the peer must complete ZeroMQ's handshake.
REACH_NS: Final = 3_000 * MS
# With several addresses: the time for the name of one. Its answer is kept if it comes later.
NAME_NS: Final = 1_000 * MS
NAME_LOOK_NS_MAX: Final = 50 * MS  # how often the link looks whether the name is resolved
LATER_MS: Final = 250  # the pause before a block is sent to a full topic again
BYE_LINGER_MS: Final = 200
# The most messages that one turn receives. The next turn follows at once and receives the rest.
RECEIVE_MAX: Final = 500
# How often the scout looks at links with several addresses while they wait for an answer.
SCOUT_LOOK_NS: Final = 250 * MS
FLUSH_NS: Final = 10 * MS  # how often frames are offered to a pipe that was full
_BEAT: Final = [b"", encode(Beat())]
_BYE: Final = [b"", encode(Bye())]
# Refusals whose reason may disappear by itself.
AGAIN: Final = frozenset({E_HELLO, E_CLOSING, E_STANDBY, E_UNREACHABLE})
# Those after which another address may be better.
AWAY: Final = frozenset({E_CLOSING, E_UNREACHABLE})
_S, _E, _A = LinkState, LinkEvent, LinkAction


def _ends(message: Failed) -> bool:
    """Return True if this failure ends the link: it answers no request.

    The topic was then closed to this client, or the client's permission was revoked.
    """
    return message.code in (E_CLOSED, E_FORBIDDEN) and not message.request


class Peer(Protocol):
    """The object that uses a link: an engine or a lane, with its session."""

    def greeting(self) -> Wire | None:
        """Return the first message. If it is None, the link is up at once."""

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction: ...

    def on_up(self, now_ns: int) -> None:
        """Send the waiting messages. The link calls this when the greeting is answered."""

    def on_received(self, now_ns: int) -> None:
        """Send more if possible. The link calls this after it has processed received messages."""

    def on_lost(self) -> None: ...

    def on_refused(self, error: ZsqError) -> None:
        """Fail everything that waits for this link, because the broker refused it."""


class Link:
    """A link to one target.

    - `heartbeat_ms`: 0 for no heartbeats (targets that have no leases and no windows).
    - `again`: Error codes of refusals after which the link tries again.
    """

    def __init__(
        self,
        host: LinkHost,
        rotation: Rotation,
        target: Target,
        peer: Peer,
        heartbeat_ms: int = 0,
        again: frozenset[str] = AGAIN,
    ) -> None:
        self.host = host
        self.target = target
        self.peer = peer
        self.heartbeat_ms = heartbeat_ms
        self.passing = again
        self.state = _S.IDLE
        self.places = Places(host.names)
        self._course = Course(rotation)
        self._attempt = Attempt(rotation.present, rotation.present, 1, 0, 0, target.create)
        self._connection: LinkConnection | None = None
        self._watch: Watch | None = None  # in the state UP
        self.again_ns = 0  # in the state WAITING: when the pause ends
        self.trouble = ""  # why the link is not up, for error messages
        # The reason why the last attempt failed, if the broker gave one.
        self.refusal: ZsqError | None = None
        # The reply of the supervisor or the gateway about the target.
        self.opened: dict[str, Any] = {}
        self.left = False  # True if `opened` is about a broker that the link has left
        self._heard_ns = 0  # when the last message arrived, or the attempt began
        self.word_ns = 0  # when the last message arrived that is not a heartbeat
        # The time when a caller began to wait. It is `FAR_NS` while the link is up or not needed.
        self.wanted_ns = FAR_NS
        # The number of the request to which the broker replied that it is not the primary, else 0.
        self.turned_away = 0
        # A function that returns True if a caller waits for this link.
        self.needed: Callable[[], bool] = lambda: True
        # A function that returns True if something that was sent over this link has no answer.
        self.expects: Callable[[], bool] = lambda: False
        # A function that returns True if a call needs the link. An idle link creates no topic.
        self.busy: Callable[[], bool] | None = None
        # True if this link never goes to the broker that has the part. It is then refused with
        # `HasParts`.
        self.stays = False
        # True if the broker listed the topic. This link does not create it if it was deleted since.
        self.is_listed = False
        # True if this link was up before, or was refused because the topic has parts. A failed
        # handshake may then be temporary, for example while the broker's keys are changed.
        self._known = False
        # True when something has arrived over a run directory that a gateway named.
        self._direct_heard = False

    # Beginning

    def start(self, now_ns: int) -> None:
        """Start if idle. After a refusal, start when its pause is over."""
        if self.wanted_ns == FAR_NS and not self.up:
            self._want(now_ns)
        if self.state not in (_S.IDLE, _S.REFUSED):
            return
        pause_end_ns = self._course.refusal_pause.until_ns
        if now_ns >= pause_end_ns:
            self._begin(now_ns)
        else:
            self._step(_E.DIED, now_ns)
            self._pause_until(pause_end_ns)

    def _want(self, now_ns: int) -> None:
        self.wanted_ns = now_ns
        self.host.sooner(now_ns + self.host.patience_ns)

    def _begin(self, now_ns: int) -> None:
        """Begin an attempt at the present address."""
        rotation, target = self.rotation, self.target
        address = rotation.present
        self._attempt = attempt = Attempt(
            address,
            rotation.way_to(address),
            self._attempt.number + 1,
            now_ns,
            sent_ns=now_ns,
            creates=target.create and (self.busy is None or self.busy()),
            unheard=self.unheard and not rotation.several,
        )
        self._heard_ns = now_ns
        if not attempt.address.direct:
            self._step(_E.AT_GATEWAY, now_ns)
            return
        try:
            attempt.supervisor = attempt.address.endpoint()
            self._connect(attempt.supervisor)
        except (zmq.ZMQError, OSError) as error:
            why = why_no_file(error)
            self._die(now_ns, f"cannot connect to {attempt.address.url}: {why}")
            return
        self._step(_E.REACHED if target.kind == "supervisor" else _E.AT_SUPERVISOR, now_ns)
        self.host.sooner(now_ns + (REACH_NS if rotation.several else ATTEMPT_NS))

    def _look_up(self, now_ns: int) -> None:
        """Ask the supervisor where the target is."""
        target, attempt = self.target, self._attempt
        request = Lookup(
            attempt.number,
            target.topic,
            target.channel if target.kind == "channel" else "",
            attempt.creates,
            dict(target.settings),
            dict(attempt.address.by),
            self.is_back,
        )
        self.send([b"", encode(request)], now_ns)

    def _resolve(self, now_ns: int) -> None:
        self.places.begin(self.address)
        self._find_gateway(now_ns)

    def _find_gateway(self, now_ns: int) -> int:
        """Connect to the gateway if its name is resolved. Return the time of the next call."""
        attempt, url = self._attempt, self.address.url
        limit_ns = NAME_NS if self.rotation.several else ATTEMPT_NS
        waited_ns = now_ns - attempt.began_ns
        why_late = f"{url}: {late(self.address.place()[0], waited_ns // S)}"
        try:
            endpoint = self.places.take()
            if endpoint is not None:
                self._connect(endpoint)
        except (zmq.ZMQError, OSError) as error:
            text = f"{error}"
            if not isinstance(error, NotResolved):
                text = f"cannot connect: {why_no_file(error)}"
            self._die(now_ns, f"{url}: {text}")
            return self.again_ns
        if endpoint is not None:
            attempt.began_ns = now_ns
            self.trouble = "" if waited_ns >= NAME_NS else self.trouble
            self._step(_E.RESOLVED, now_ns)
            at_ns = now_ns + (REACH_NS if self.leaves else ATTEMPT_NS)
        elif waited_ns >= limit_ns:
            self._die(now_ns, why_late)
            return self.again_ns
        else:
            self.trouble = why_late if waited_ns >= NAME_NS else self.trouble
            at_ns = now_ns + min(NAME_LOOK_NS_MAX, max(MS, waited_ns))
        self.host.sooner(at_ns)
        return at_ns

    def _open(self, now_ns: int) -> None:
        """Ask the gateway to open the target."""
        target, attempt = self.target, self._attempt
        request = Open(
            attempt.number,
            target.kind,
            target.topic,
            target.channel,
            attempt.creates,
            dict(target.settings),
            self.is_back,
        )
        self.send([b"", encode(request)], now_ns)

    def _connect(self, endpoint: str) -> None:
        connection = self.host.connect(endpoint, self.address.credentials, leaves=self.leaves)
        self._connection = connection
        messages, events = connection.fds
        self.host.watch(messages, self.take_in)
        self.host.watch(events, self.check_monitor)
        self.host.sooner(0)  # the descriptors are edge-triggered: turn now, to see earlier events

    def _disconnect(self, linger_ms: int = 0) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            for descriptor in connection.fds:
                self.host.forget(descriptor)
            connection.close(linger_ms)

    def _greet(self, now_ns: int) -> None:
        """Send the first message, because the socket now leads to the target."""
        greeting = self.peer.greeting()
        if greeting is None:
            self._step(_E.GREETED, now_ns)
        else:
            self.send([b"", encode(greeting)], now_ns)

    def _come_up(self, now_ns: int) -> None:
        connection, attempt = self._connection, self._attempt
        assert connection is not None
        self._watch = Watch(now_ns, attempt.sent_ns, connection.bytes_moved)
        if attempt.contact is Contact.ANSWERED or not self.rotation.several:
            self._arrive(now_ns)
        self._known = True
        self.trouble = ""
        self.refusal = None
        # A direct link to the supervisor is up before the supervisor has answered. So its callers
        # still count as waiting.
        if not (attempt.address.direct and self.target.kind == "supervisor"):
            self.wanted_ns = FAR_NS

    def _tell_up(self, now_ns: int) -> None:
        self.peer.on_up(now_ns)
        if self.heartbeat_ms:
            self.host.sooner(now_ns + self.heartbeat_ms * MS)

    def _arrive(self, now_ns: int) -> None:
        self._attempt.arrived = True
        self.places.reached()
        self._course.arrived()
        self.host.reached(self.rotation, self.given, now_ns)

    # Ending

    def stop(self, linger_ms: int = 0) -> None:
        """End permanently. With a linger, send Bye first if the link is up.

        A link that is not up sends nothing more. Its request to open a channel could otherwise
        arrive after the channel was deleted, and make it again.
        """
        if self.up and linger_ms:
            self._leave(self._heard_ns, linger_ms)
        self._step(_E.STOP, self._heard_ns)

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        """Close this link and start again, after a pause or at once."""
        self._die(now_ns, why, at_once=at_once)

    def _die(
        self,
        now_ns: int,
        why: str,
        error: ZsqError | None = None,
        *,
        at_once: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """Close the socket and plan the next attempt.

        `elsewhere`: True if the broker has answered, but does not serve at this address.
        """
        attempt, state = self._attempt, self.state
        self.trouble = self.host.answers or why
        self.refusal = error
        log.debug("link to %s: %s", self.target, why)
        direct = bool(attempt.address.run_id)
        if direct and (state not in (_S.GREETING, _S.UP) or self.target.kind == "supervisor"):
            self.rotation.forget_way(attempt.given, unusable=not self._direct_heard)
        failed = elsewhere or not (direct or attempt.contact is Contact.ANSWERED)
        if failed and self.places.more and not attempt.address.direct:
            at_once, failed = True, False  # the name has another address
        if failed:
            self.rotation.failed(attempt.given, self.trouble, error, unheard=attempt.unheard)
            self.left = self.rotation.several
        pause_ns = 0 if at_once else self._course.pause_ns(now_ns, failed=failed)
        self._pause_until(now_ns + pause_ns)
        self._step(_E.DIED, now_ns)
        if self.wanted_ns == FAR_NS and self.needed():
            self._want(now_ns)

    def _pause_until(self, again_ns: int) -> None:
        self.again_ns = again_ns
        self.host.sooner(again_ns)

    def follows(self, code: str) -> bool:
        """Return True if the link goes on at the next address when the broker answers this."""
        return code in NOT_PRIMARY and (code == E_STANDBY or self.rotation.several)

    def _turn_away(self, now_ns: int, error: ZsqError, request: int = 0) -> None:
        """Leave a broker that has answered that it is not the primary."""
        self._course.refusal_pause.refused(now_ns)
        self.turned_away = request
        self._die(now_ns, str(error), error, elsewhere=True)
        self.turned_away = 0

    def give_up(self, error: ZsqError) -> None:
        """Fail everything that waits, because no process listens at the broker's address.

        The next call starts again.
        """
        self.wanted_ns = FAR_NS
        self._step(_E.REFUSE, self._heard_ns, error)

    def _refuse(self, now_ns: int, error: ZsqError) -> None:
        if self.follows(error.code):
            self._turn_away(now_ns, error)
            return
        if error.code in self.passing:
            self._die(now_ns, str(error), error, elsewhere=error.code in AWAY)
            return
        is_without = error.code == E_NOT_FOUND and not is_channel_missing(error.text)
        if is_without and self._course.meet_stranger(self.given):
            self._die(now_ns, f"the part is at {self.given.url}, {STRANGER}", elsewhere=True)
            return
        self.trouble = str(error)
        self.refusal = error
        self.wanted_ns = FAR_NS
        if isinstance(error, Refused):
            self._course.refusal_pause.refused(now_ns)
        self._step(_E.REFUSE, now_ns, error)

    # The machine

    def _step(self, event: LinkEvent, now_ns: int, error: ZsqError | None = None) -> None:
        """Carry out the transition of this event. `error`: that of a refusal."""
        self.state, actions = LINK_TABLE[self.state][event]
        self._watch = None
        for action in actions:
            if action is _A.TELL_REFUSED:
                assert error is not None
                self.peer.on_refused(error)
            else:
                _ACTIONS[action](self, now_ns)

    def _leave(self, now_ns: int, linger_ms: int = BYE_LINGER_MS) -> None:
        self.send(_BYE, now_ns)
        self._disconnect(linger_ms)

    def _close(self, now_ns: int) -> None:
        self._disconnect()

    # Queries

    @property
    def up(self) -> bool:
        return self.state is _S.UP

    @property
    def waiting(self) -> bool:
        return self.state is _S.WAITING

    @property
    def down(self) -> bool:
        """True if the link neither leads to the target nor is being opened at this moment."""
        return self.state in (_S.IDLE, _S.WAITING, _S.REFUSED)

    @property
    def rotation(self) -> Rotation:
        return self._course.rotation

    @property
    def given(self) -> Address:
        """The address of the last attempt, as the user gave it."""
        return self._attempt.given

    @property
    def address(self) -> Address:
        """The given address, or the run directory that the gateway named."""
        return self._attempt.address

    @property
    def unheard(self) -> bool:
        """True if the last connection was refused."""
        return self._attempt.unheard

    @property
    def touched(self) -> bool:
        """True if the peer of the last attempt was connected: what was sent may have arrived."""
        return self._attempt.contact is not Contact.NONE

    @property
    def creates(self) -> bool:
        """True if the last attempt may create the target."""
        return self._attempt.creates

    @property
    def heard_ns(self) -> int:
        """When the last message arrived, or a part of a large one."""
        return self._heard_ns if self._watch is None else self._watch.heard_ns

    @property
    def is_silent(self) -> bool:
        """True if the link is up, and a heartbeat has had no answer for a while."""
        return self._watch is not None and self._watch.is_silent

    @property
    def is_back(self) -> bool:
        """True if the topic is known to have existed. This link does not create it again.

        A gateway does, because its links serve clients that come and go.
        """
        return (self._known or self.is_listed) and not self.address.by

    @property
    def waits(self) -> bool:
        """True if an answer of the broker is due: about the target, or to something sent."""
        if self.state in (_S.IDLE, _S.REFUSED):
            return False
        return self.expects() if self.up else self.needed()

    @property
    def leaves(self) -> bool:
        """True if this link goes on elsewhere when nothing answers where it is."""
        return self.rotation.several or (self.places.several and not self.address.direct)

    @property
    def space(self) -> Space:
        """The space of the broker at the other end."""
        return Space.MACHINE if self.address.direct else space_of(self.places.host)

    def beside(self, endpoint: str) -> str:
        """Return the endpoint of this file name in the run directory, over ipc, or ""."""
        return beside(endpoint, self._attempt.supervisor)

    @property
    def astray(self) -> bool:
        """True if the broker of the part did not answer: another one has named it again."""
        return self._course.is_astray and not self.up

    @property
    def deserted(self) -> bool:
        """True if nothing listens at any address, and all of them are on this machine."""
        if self.rotation.several:
            return self.rotation.deserted
        return self.unheard and self.address.local

    def silent_since(self, now_ns: int) -> int:
        """Return when the first heartbeat was sent that has no answer, or 0 if this link stays.

        A link that leaves its address by itself, or of which nobody knows how many bytes move,
        stays where it is.
        """
        if self._watch is None or self.leaves or self.address.direct:
            return 0
        return self._watch.silent_since(now_ns)

    def late_since(self, now_ns: int) -> int:
        """Return since when an answer is so late that the log must say so, or `FAR_NS`."""
        return FAR_NS if self._watch is None else self._watch.late_since(now_ns, self.needed)

    def why(self) -> str:
        """Return why the link is not up, for each address, or why its answers are late."""
        if self._watch is not None and (why := self._watch.why()):
            return why
        is_under_way = self.state in (_S.LOOKING, _S.OPENING, _S.GREETING)
        why = self.rotation.why() or self.trouble
        return why or (self._attempt.silence(self._place) if is_under_way else "")

    @property
    def _place(self) -> str:
        """The address of this attempt, for people."""
        several = self.leaves and self.places.several
        return f"{self.address.url} ({self.places.host})" if several else self.address.url

    # Messages

    def send(self, frames: list[Any], now_ns: int) -> None:
        """Send these frames after all frames of earlier calls."""
        assert self._connection is not None
        self._attempt.sent_ns = now_ns
        if self._watch is not None:
            self._watch.sent(now_ns)
        if self.expects():
            self.host.sooner(now_ns + ASK_NS)
        if self.rotation.several:
            self.host.sooner(now_ns + SCOUT_LOOK_NS)
        if not self._connection.send(frames):
            self.host.sooner(now_ns + FLUSH_NS)

    def take_in(self, now_ns: int) -> None:
        """Receive what has arrived, and let the peer continue."""
        if self.receive(now_ns) and self.up:
            self.peer.on_received(now_ns)

    def receive(self, now_ns: int) -> int:
        """Receive all messages that have arrived, up to a bound. Return how many there were."""
        connection = self._connection
        if connection is None:
            return 0
        count = 0
        while count < RECEIVE_MAX:
            frames = connection.receive()
            if frames is None:
                break
            count += 1
            self._heard_ns = now_ns
            if self._watch is not None:
                self._watch.heard(now_ns)
            if self._attempt.contact is not Contact.ANSWERED:
                self._attempt.contact = Contact.ANSWERED
                self._direct_heard = self._direct_heard or bool(self.address.run_id)
            try:
                _, message, payload = sockets.open_frames(frames)
                self._on_word(message, frames_blocks(payload) if payload else [], now_ns)
            except (UsageError, CorruptBlock) as error:
                log.warning(
                    "link to %s: invalid message (%s); the link is closed and opened again",
                    self.target,
                    error,
                )
                self._die(now_ns, str(error))
            if self._connection is not connection:
                break
        if count:
            self.host.met = True
            self.host.answers = ""
            if self.up:
                self.wanted_ns = FAR_NS
                if not self._attempt.arrived:
                    self._arrive(now_ns)
            if count == RECEIVE_MAX:
                self.host.sooner(0)
        return count

    def _on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> None:
        kind = type(message)
        if kind is Beat:
            return
        self.word_ns = now_ns
        if kind is Bye:
            was_long_up = self.up and now_ns - self._attempt.began_ns > BACKOFF_MS_MAX * MS
            self._die(now_ns, "the broker closed the link", at_once=was_long_up)
        elif (type(message) is Failed or type(message) is Unstored) and self.follows(message.code):
            request = message.request if type(message) is Failed else 0
            self._turn_away(now_ns, from_wire(message.code, message.text), request)
        elif type(message) is Failed and (message.code == E_HELLO or not self.up or _ends(message)):
            self._refuse(now_ns, from_wire(message.code, message.text))
        elif self.state is _S.LOOKING or self.state is _S.OPENING:
            if type(message) is Done and message.request == self._attempt.number:
                self._on_found(message, now_ns)
            elif type(message) is Spread and message.request == self._attempt.number:
                self._go_to_part(message, now_ns)
        else:
            reaction = self.peer.on_word(message, blocks, now_ns)
            if reaction is Reaction.UP:
                self._step(_E.GREETED, now_ns)
            elif reaction is not Reaction.NOTHING:
                self._die(now_ns, "the session starts again", at_once=reaction is Reaction.RENEW)
                if reaction is Reaction.LATER:
                    self._pause_until(now_ns + LATER_MS * MS)

    def _go_to_part(self, message: Spread, now_ns: int) -> None:
        """Go to the broker that has the part. The whole topic, and a part that was removed, are
        refused.
        """
        spread, topic, course = checked(message), self.target.topic, self._course
        if self.stays:
            self._refuse(now_ns, HasParts(spread))
            return
        way = course.way_to(topic, spread, self.space)
        is_gone = part_of(topic) is None or removed_part(topic, spread) is not None
        if way is None and is_gone:
            self._known = True
            self._refuse(now_ns, HasParts(spread))
            return
        where, is_first = course.send_on(topic, spread, way)
        self._die(now_ns, f"the part is {where}", at_once=is_first)
        course.go(way)

    def _on_found(self, message: Done, now_ns: int) -> None:
        """Go to the target, because the supervisor or the gateway has said where it is."""
        if self.state is _S.LOOKING:
            named = message.data.get(self.target.kind)
            if not isinstance(named, str) or not named:
                self._die(now_ns, f"the supervisor does not know the address of {self.target}")
                return
            endpoint = self.beside(named)
            if not endpoint:
                text = f"the supervisor names {named[:200]!r}, which is not in its run directory"
                raise UsageError(E_BAD_COMMAND, text)
            self.opened, self.left = message.data, False
            self._disconnect()
            try:
                self._connect(endpoint)
            except zmq.ZMQError as error:
                why = why_no_file(error)
                self._die(now_ns, f"cannot connect to {self.target} at {endpoint}: {why}")
                return
        else:
            self.opened, self.left = message.data, False
            if self.rotation.learn_way(self.given, self.places.host, message.data):
                self._step(_E.NAMED, now_ns)
                self._begin(now_ns)
                return
        self._step(_E.REACHED, now_ns)

    # Watching

    def check_monitor(self, now_ns: int) -> None:
        """Process what the monitor of the connection has reported."""
        connection, attempt = self._connection, self._attempt
        if connection is None:
            return
        events = connection.read_events()
        attempt.note_events(events)
        # If the endpoint came from a lookup, a refused connection means that its owner is gone. The
        # supervisor and the gateway have fixed places, so ZeroMQ's own retries are enough for them.
        # If the gateway named this run directory, the link goes back to the gateway at once.
        by_lookup = (
            self.state not in (_S.LOOKING, _S.OPENING)
            and attempt.address.direct
            and self.target.kind != "supervisor"
        )
        fixed = not by_lookup and not attempt.address.run_id and not self.leaves
        if events & HANDSHAKE_EVENTS:
            self._shut_out(now_ns, events)
        elif events & sockets.GONE_EVENTS or (not fixed and events & sockets.RETRY_EVENTS):
            self.receive(now_ns)  # receive the last messages of the peer
            if self._connection is not None:
                missing = self.leaves and self.unheard
                self._die(
                    now_ns,
                    attempt.refused(self._place) if missing else "the connection was lost",
                )
        elif attempt.unheard:
            self.trouble = attempt.refused(self._place)

    def _shut_out(self, now_ns: int, events: int) -> None:
        """Process a failed handshake. A link that was up before tries again."""
        error = verdict(events, self.address)
        if error is not None and not self._known:
            self._refuse(now_ns, error)
            return
        self._die(now_ns, suspicion(self.address) if error is None else error.text)
        pause_ns = self._course.hang_up_pause_ns() if error is None else None
        if pause_ns is not None:
            self._pause_until(now_ns + pause_ns)

    def on_time(self, now_ns: int) -> int:
        """Process the timers that are due. Return the time of the next call."""
        if self.state in (_S.IDLE, _S.REFUSED):
            return FAR_NS
        if self.state is _S.WAITING:
            if now_ns < self.again_ns:
                return self.again_ns
            self._begin(now_ns)
            return now_ns + ATTEMPT_NS
        if self.state is _S.RESOLVING:
            return self._find_gateway(now_ns)
        self.take_in(now_ns)
        self.check_monitor(now_ns)
        if self._connection is None:
            return self.again_ns if self.waiting else FAR_NS
        if not self._connection.flush():
            self.host.sooner(now_ns + FLUSH_NS)
        attempt = self._attempt
        reach_ns = attempt.began_ns + REACH_NS
        if self.leaves and attempt.contact < Contact.HANDSHAKEN:
            if now_ns >= reach_ns:
                return self._end_attempt(now_ns, REACH_NS)
            return min(reach_ns, self._beat_if_quiet(now_ns)) if self.up else reach_ns
        if self.up:
            ask_ns = self._ask_if_late(now_ns)
            return min(ask_ns, self._beat_if_quiet(now_ns)) if self.up else self.again_ns
        if now_ns >= attempt.began_ns + ATTEMPT_NS:
            return self._end_attempt(now_ns, ATTEMPT_NS)
        return attempt.began_ns + ATTEMPT_NS

    def _end_attempt(self, now_ns: int, limit_ns: int) -> int:
        """End an attempt without an answer. Return when the next one begins."""
        silence = self._attempt.silence(self._place)
        self._die(now_ns, f"no answer within {limit_ns // S} s: {silence}")
        return self.again_ns

    def _beat_if_quiet(self, now_ns: int) -> int:
        """Send a heartbeat if one side was silent, or die. Return when to look again."""
        watch = self._watch
        if watch is None or not self.heartbeat_ms:
            return FAR_NS
        interval_ns = self.heartbeat_ms * MS
        if watch.is_dead(now_ns, interval_ns):
            self._die(now_ns, f"nothing arrived for {2 * self.heartbeat_ms} ms, two heartbeats")
            return self.again_ns
        if now_ns >= watch.beat_due_ns(interval_ns):
            self.beat(now_ns)
        return watch.beat_due_ns(interval_ns)

    def _ask_if_late(self, now_ns: int) -> int:
        """Send a heartbeat if an answer is late. Return when to look again."""
        watch = self._watch
        if watch is None:
            return FAR_NS
        expects = self._attempt.contact is Contact.ANSWERED and self.expects()
        due_ns = watch.ask_due_ns(now_ns, self.word_ns, expects=expects)
        if now_ns < due_ns:
            return due_ns
        self.beat(now_ns)
        return now_ns + ASK_NS

    def beat(self, now_ns: int) -> None:
        """Send a heartbeat over a link that is up."""
        if self._watch is not None:
            self._watch.beat(now_ns)
            self.send(_BEAT, now_ns)
            self.host.sooner(now_ns + ASK_NS)


_ACTIONS: Final[dict[LinkAction, Callable[[Link, int], object]]] = {
    _A.RESOLVE: Link._resolve,
    _A.LOOK_UP: Link._look_up,
    _A.OPEN: Link._open,
    _A.GREET: Link._greet,
    _A.WATCH: Link._come_up,
    _A.TELL_UP: Link._tell_up,
    _A.LEAVE: Link._leave,
    _A.CLOSE: Link._close,
    _A.TELL_LOST: lambda link, now_ns: link.peer.on_lost(),
}
