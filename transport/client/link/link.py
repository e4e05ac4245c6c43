"""Link: a DEALER socket to one target that is opened, watched, and opened again when it dies.

Over ipc, the client asks the supervisor where the target is and connects the DEALER there. Over
tcp, it asks the gateway to open the target. After that, both kinds of link work in the same way. A
gateway on this machine answers with the broker's run directory, and the link then starts again over
ipc, if it can (`direct_address`). When such a link cannot reach the supervisor, it goes back to the
gateway.

A link is dead when its monitor reports a disconnect, when the peer sends Bye or does not know the
client, when nothing arrived for two heartbeats (and less than 4 KiB of a large frame moved), when
a second connection shows that it is dead (`second_try.py`), or when the peer sends something
invalid. The socket is then closed without linger. After a pause (50 ms, doubling to 1 s, with
jitter) the link starts again on a new socket. A new socket is necessary: the old one's pipe may
outlive its server, and the contents of that pipe must never arrive out of order.

A client may have several addresses (`wire/addresses.py`). An attempt has failed at an address when
nothing arrived: the connection was refused, or the peer did not complete ZeroMQ's handshake within
`REACH_NS`. It has also failed when the broker answers that it is not the primary. The link then
tries the next address at once, and pauses when it has tried all of them. A link that was up first
returns to the same address, because only one process of the broker may have ended. If the broker
answers with `Spread`, the link goes to the broker that has the part (`wire/spread.py`).

`LINK_TABLE` defines the state machine, and `Link` carries it out. The peer (`Peer`) defines the
protocol of the link.

The engine, also in this file, is the part of a client that never waits. It holds the links, the
timers, and the waiters. To *turn* an engine is to process the events that arrived, and then the
timers that are due. The blocking client (`drive.py`) and the asyncio client (`aio_asker.py`) turn
the same engine in two ways. An engine owns a set of its sockets' descriptors (`system.py`).
ZeroMQ's descriptors are edge-triggered: one becomes readable when there are events, and any call on
the socket consumes these events. So the link is drained after each send. A drain receives at most
`RECEIVE_MAX` messages. If more are left, the engine is turned again at once.
"""

from __future__ import annotations

import logging
import math
import numbers
import random
import time
from collections.abc import Callable, Generator
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import zmq

from ...errors import (
    E_BAD_ARGUMENT,
    E_BAD_COMMAND,
    E_CLOSED,
    E_CLOSING,
    E_FORBIDDEN,
    E_HELLO,
    E_NOT_FOUND,
    E_STANDBY,
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
from ...names import is_channel_missing, part_of
from ...resolver import NotResolved, Resolver, late, resolver
from ...system import EventSet, Ready, why_no_file
from ...wire import sockets
from ...wire.address import Space, Target, is_beside, space_of
from ...wire.addresses import NOT_PRIMARY, Rotation
from ...wire.codec import encode, frames_blocks
from ...wire.handshake import HANDSHAKE_EVENTS, suspicion, verdict
from ...wire.protocol import Beat, Bye, Done, Failed, Lookup, Open, Spread, Unstored, Wire
from ...wire.spread import HasParts, checked, named_for, way_to
from .backoff import Backoff
from .link_table import LINK_TABLE, LinkEvent, LinkState
from .places import Places
from .reaction import Reaction
from .scout import LOOK_NS, Scout
from .second_try import SILENT_NS, SecondTry

if TYPE_CHECKING:
    from ...block.block import Block


S: Final = 1_000_000_000
LONGEST_S: Final = 1e9  # 31 years; longer waits are cut to this
PATIENCE_S: Final = (1, 10, 60)  # a missing broker is logged after these waits, then every minute
PROBED_NS: Final = 100_000_000  # how often to check whether the probe got an answer
MS: Final = 1_000_000
ATTEMPT_NS: Final = 10_000 * MS  # the time for one attempt to find, open and greet the target
# With several addresses: the time in which the peer must complete ZeroMQ's handshake.
REACH_NS: Final = 3_000 * MS
# With several addresses: the time for the name of one. Its answer is kept if it comes later.
NAME_NS: Final = 1_000 * MS
NAME_LOOK_NS_MAX: Final = 50 * MS  # how often the link looks whether the name is resolved
BACKOFF_MS: Final = 50
BACKOFF_MS_MAX: Final = 1_000
LATER_MS: Final = 250  # the pause before a block is sent to a full topic again
# A broker that requires a key closes the connection, and ZeroMQ often reports this before it has
# read the reason. So the client tries again soon after each of the first times.
HANG_UPS_MAX: Final = 30
HANG_UP_MS: Final = 10
BYE_LINGER_MS: Final = 200
# The most messages that one turn receives. The next turn follows at once and receives the rest.
RECEIVE_MAX: Final = 500
MOVED_BYTES_MIN: Final = 4_096
# When an answer is so late, the link sends a heartbeat, which each broker answers at once. While
# these are answered, and something else is not, there is one in so long a time.
ASK_NS: Final = 500 * MS
ASK_AGAIN_NS: Final = 5_000 * MS
# A broker that answers heartbeats may need long for one request. This is logged later.
BUSY_NS: Final = 10_000 * MS
FAR_NS: Final = 1 << 62
_BEAT: Final = [b"", encode(Beat())]
_BYE: Final = [b"", encode(Bye())]
# Refusals whose reason may disappear by itself.
AGAIN: Final = frozenset({E_HELLO, E_CLOSING, E_STANDBY, E_UNREACHABLE})
# Those after which another address may be better.
AWAY: Final = frozenset({E_CLOSING, E_UNREACHABLE})
_SILENT: Final = "which does not answer"
_STRANGER: Final = "where a broker answers that does not have it"
_S, _E = LinkState, LinkEvent
_T = TypeVar("_T")
Steps = Generator[tuple[Callable[[], bool], int], bool, _T]
"""The steps of a client call, without waiting.

The generator yields a condition and a deadline. It is sent True if the condition was met in time.
`Drive` runs it by blocking, `Turner` with await.
"""


def check_timeout(timeout: Any) -> float | None:
    """Check a time-out in seconds and return it; None for a time-out that never ends.

    Raises `UsageError` if it is not a number, or if it is NaN.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or math.isnan(timeout):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{option('timeout')} must be a number of seconds, or None to wait without limit, "
                f"not {timeout!r}"
            ),
        )
    return None if timeout == math.inf else max(0.0, float(timeout))


def until_ns(timeout: Any) -> int:
    """Return the end of a wait that begins now and lasts for this time-out.

    Return `FAR_NS` for None and infinity. A time-out below 0 has ended already.
    """
    seconds = (
        timeout
        if type(timeout) is float and 0.0 <= timeout <= LONGEST_S
        else check_timeout(timeout)
    )
    return FAR_NS if seconds is None else time.monotonic_ns() + int(min(seconds, LONGEST_S) * S)


def so_long(timeout: float | None) -> str:
    """Format a time-out for an error message."""
    return "any time" if timeout is None or math.isinf(timeout) else f"{timeout:g} s"


def _told_after(times: int) -> int:
    """Return the seconds of waiting after which a log line is due. The first line has number 0."""
    return PATIENCE_S[times] if times < len(PATIENCE_S) else (times - 1) * PATIENCE_S[-1]


class Waiter:
    """A caller that waits until `done()` is true.

    The engine calls `wake` once, under its lock, when `done()` is true or `deadline_ns` has passed.
    """

    __slots__ = ("deadline_ns", "done", "wake")

    def __init__(
        self, done: Callable[[], bool], wake: Callable[[], None], deadline_ns: int = FAR_NS
    ) -> None:
        self.done = done
        self.wake = wake
        self.deadline_ns = deadline_ns


class Engine:
    """The links, timers and waiters of a client. It is not thread-safe."""

    patience_ns: Final = PATIENCE_S[0] * S  # how long to wait before a missing broker is reported
    farewell_ms = BYE_LINGER_MS  # how long a closed client may still send its last messages

    def __init__(self, names: Resolver | None = None) -> None:
        self.names = names or resolver()
        self.met = False  # True when a broker has answered
        # If True, calls fail soon if nothing listens on this machine, unless a broker has answered
        # before.
        self.hasty = False
        self.tells = False  # if True, the log says that a caller waits for a broker
        self._told = 0  # the number of log lines about the present wait
        self._probe: sockets.Probe | None = None
        self.answers = ""  # a text about a server that answers, but is not a broker
        self.events = EventSet()
        self.links: list[Link] = []
        self.due_ns = FAR_NS  # `timers` has nothing to do before this time
        self.turns = 0
        self.waiters: list[Waiter] = []
        self._sockets: dict[int, Link] = {}
        self._monitors: dict[int, Link] = {}
        self._scout = Scout(partial(Link, self))
        self._second_try = SecondTry(partial(Link, self))

    # Links

    def add(self, link: Link) -> None:
        self.links.append(link)

    def watch(self, link: Link, socket_fd: int, monitor_fd: int) -> None:
        self._sockets[socket_fd] = link
        self._monitors[monitor_fd] = link
        self.events.register(socket_fd)
        self.events.register(monitor_fd)

    def reached(self, link: Link, now_ns: int) -> None:
        """Note that this link has reached the broker. All links go to the same address."""
        if link.rotation.reached(link.given):
            for other in self.links:
                if other.up and other.rotation is link.rotation and other.given != link.given:
                    other.restart(now_ns, f"the broker is now at {link.given.url}", at_once=True)

    def forget(self, socket_fd: int, monitor_fd: int) -> None:
        for table, fd in ((self._sockets, socket_fd), (self._monitors, monitor_fd)):
            if table.pop(fd, None) is not None:
                self.events.unregister(fd)

    def sooner(self, at_ns: int) -> None:
        if at_ns < self.due_ns:
            self.due_ns = at_ns

    # Turning

    def turn(self, ready: Ready) -> None:
        """Process the events of the ready descriptors, then the timers that are due."""
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
        """Process the timers that are due: heartbeats, new attempts, and those of subclasses."""
        self.due_ns = FAR_NS
        for link in list(self.links):
            self.sooner(link.on_time(now_ns))
        for waiter in self.waiters:
            if waiter.deadline_ns <= now_ns:
                # Wake the waiter only once. It then finds that its deadline has passed.
                waiter.deadline_ns = FAR_NS
                waiter.wake()
            self.sooner(waiter.deadline_ns)
        self.sooner(self._look_after(now_ns))
        self.sooner(self._scout.on_time(now_ns, self.links))
        self.sooner(self._second_try.on_time(now_ns, self.links))

    def _look_after(self, now_ns: int) -> int:
        """Log that no broker answers, or give up. Return when to check again."""
        waiting = []
        for link in self.links:
            if link.wanted_ns != FAR_NS and not link.needed():
                link.wanted_ns = FAR_NS
            if link.wanted_ns != FAR_NS:
                waiting.append(link)
        if not waiting:
            self._probe = None
            return self._look_after_answers(now_ns)
        since_ns = min(link.wanted_ns for link in waiting)
        if self.hasty and not self.met and now_ns >= since_ns + self.patience_ns:
            lost = [link for link in waiting if link.deserted]
            for link in lost:
                link.give_up(
                    BrokerUnreachable(E_UNREACHABLE, f"{link.why()}; nothing was sent. {advice()}")
                )
            if lost:
                return now_ns
        self._ask_what_answers(waiting, now_ns - since_ns)
        told_ns = since_ns + _told_after(self._told) * S
        if now_ns >= told_ns:
            self._tell(waiting, (now_ns - since_ns) // S)
            while (told_ns := since_ns + _told_after(self._told) * S) <= now_ns:
                self._told += 1
        return (
            min(told_ns, now_ns + PROBED_NS)
            if self._probe is not None and self._probe.answer is None
            else told_ns
        )

    def _look_after_answers(self, now_ns: int) -> int:
        """Log that links are up, and an answer is late. Return when to check again."""
        late = [(link.late_since(now_ns), link) for link in self.links]
        since_ns, link = min(late, key=itemgetter(0), default=(FAR_NS, None))
        if link is None or since_ns == FAR_NS:
            self._told = 0
            return FAR_NS
        told_ns = since_ns + _told_after(self._told) * S
        if now_ns >= told_ns:
            if self.tells:
                text = "%s: no answer from the broker at %s for %d s (%s); waiting for it"
                seconds = (now_ns - since_ns) // S
                log.warning(text, link.target, link.address.url, seconds, link.why())
            while (told_ns := since_ns + _told_after(self._told) * S) <= now_ns:
                self._told += 1
        return told_ns

    def _ask_what_answers(self, waiting: list[Link], waited_ns: int) -> None:
        """Probe a server that accepts the connection and is silent.

        It may be another port of the broker.
        """
        link = waiting[0]
        if self.met or link.unheard or link.address.direct or waited_ns < self.patience_ns:
            return
        if link.rotation.several or not link.places.host:
            return  # the link does not stay at an address that is silent, or has not tried one
        if self._probe is None:
            self._probe = sockets.Probe(link.places.host, link.address.place()[1])
        elif self._probe.answer:
            text, error = self._probe.verdict(link.address)
            self.answers = text
            for one in waiting:
                one.trouble = self.answers
                if error is not None:
                    one.give_up(error)

    def _tell(self, waiting: list[Link], seconds: int) -> None:
        if self.tells:
            link = waiting[0]
            what = (
                str(link.target)
                if len(waiting) == 1
                else f"{link.target} and {len(waiting) - 1} more"
            )
            refusal = link.refusal
            if refusal is not None and refusal.code not in AGAIN and not link.unheard:
                text = "%s: refused by the broker for %d s (%s); trying until it accepts"
                log.warning(text, what, seconds, refusal)
                return
            why = link.why() or "no answer"
            log.warning(
                "%s: no broker at %s for %d s (%s); waiting for it. %s",
                what,
                link.rotation.url if link.rotation.several else link.address.url,
                seconds,
                why,
                advice(),
            )

    def settle(self) -> None:
        """Wake the waiters whose condition is met."""
        if self.waiters:
            ended = [waiter for waiter in self.waiters if waiter.done()]
            for waiter in ended:
                self.waiters.remove(waiter)
                waiter.wake()

    def conclude(self, timeout: float) -> Steps[None]:
        """Finish the work of a client that nobody uses any more. Raise what could not be done."""
        yield from ()

    @property
    def unfinished(self) -> str:
        """The work that this client has still to do, for people. "" for none."""
        return ""

    def stop(self, linger_ms: int = 0) -> None:
        """Close all links. The engine cannot be used again.

        The last caller that waits for the set of descriptors closes it.
        """
        for link in self.links:
            link.stop(linger_ms)
        self.links.clear()
        self._scout.stop()
        self._second_try.stop()


log = logging.getLogger("zsq")


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
        engine: Engine,
        rotation: Rotation,
        target: Target,
        peer: Peer,
        heartbeat_ms: int = 0,
        again: frozenset[str] = AGAIN,
    ) -> None:
        self.engine = engine
        self.rotation = self._home = rotation
        self.given = rotation.present  # the address of this attempt, as the user gave it
        # The address for this attempt: the given one, or the run directory that the gateway named.
        self.address = self.given
        # True when something has arrived over a run directory that a gateway named.
        self._direct_heard = False
        self.places = Places(engine.names)
        self._supervisor = ""  # the endpoint of the supervisor, over ipc
        self.target = target
        self.peer = peer
        self.state = _S.IDLE
        self.trouble = ""  # why the link is not up, for error messages
        # The reason why the last attempt failed, if the broker gave one.
        self.refusal: ZsqError | None = None
        # The reply of the supervisor or the gateway about the target.
        self.opened: dict[str, Any] = {}
        self.left = False  # True if `opened` is about a broker that the link has left
        self.heartbeat_ms = heartbeat_ms
        self.sent_ns = self.heard_ns = self._beat_ns = 0
        # A function that returns True if a caller waits for this link.
        self.needed: Callable[[], bool] = lambda: True
        # A function that returns True if something that was sent over this link has no answer.
        self.expects: Callable[[], bool] = lambda: False
        self.silent_ns = 0  # since when the scout finds that no answer has come, else 0
        self.word_ns = 0  # when the last message arrived that is not a heartbeat
        # The time when a caller began to wait. It is `FAR_NS` while the link is up or not needed.
        self.wanted_ns = FAR_NS
        self.unheard = False  # True if the last connection was refused
        # True if the peer of this attempt was connected, so that what was sent may have arrived.
        self.touched = False
        # The number of the request to which the broker replied that it is not the primary, else 0.
        self.turned_away = 0
        self._shaken = False  # True if the peer has completed ZeroMQ's handshake
        self._answered = False  # True if anything has arrived in this attempt
        self._arrived = False  # True if it has led to the broker
        self._tried = 0  # the number of addresses that failed since the last pause
        self._sent_on = 0  # how often a broker has sent this link to another one, since it was up
        # The addresses of the part's broker, as another broker has named them.
        self._named: frozenset[str] = frozenset()
        self._there = _SILENT  # what the link has found at them
        self._backoff = Backoff()
        self._socket: sockets.Socket | None = None
        self._monitor: sockets.Socket | None = None
        self._descriptor = -1  # of the connection, from its first message on
        # The bytes that had moved at the first heartbeat of the present silence, and its time.
        self._moved, self._moved_ns = sockets.BytesMoved(), 0
        self._asked_ns = 0  # when something was sent first, since the last message arrived
        self._expected_ns = 0  # since when an answer is due that has not come, else 0
        self._alive_ns = 0  # when something arrived last after a heartbeat was sent
        # True if the link is up, and a heartbeat has had no answer for `ASK_NS`.
        self.is_silent = False
        self._fds = (-1, -1)
        self._request = 1
        self._since_ns = 0  # when this attempt began
        self._again_ns = 0  # when the pause of the state WAITING ends
        self._hang_ups = 0  # how often the peer hung up during the handshake
        self._attempts = 0
        self._outbox: list[list[Any]] = []  # frames that the pipe did not take; see `send`
        self.passing = again
        # A function that returns True if a call needs the link. An idle link creates no topic.
        self.busy: Callable[[], bool] | None = None
        self.creates = target.create  # True if this attempt may create the target
        # True if this link never goes to the broker that has the part. It is then refused with
        # `HasParts`.
        self.stays = False
        # True if this link was up before, or was refused because the topic has parts. A failed
        # handshake may then be temporary, for example while the broker's keys are changed.
        self._known = False

    # Beginning

    def start(self, now_ns: int) -> None:
        """Start if idle. After a refusal, start when its pause is over."""
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
        self._expected_ns = 0
        self._request += 1
        target = self.target
        create = self.creates = target.create and (self.busy is None or self.busy())
        self.given = self.rotation.present
        self.address = self.rotation.way_to(self.given)
        self.touched = self._shaken = self._answered = self._arrived = False
        self.unheard = self.unheard and not self.rotation.several
        if not self.address.direct:
            self._step(_E.RESOLVE)
            self.places.begin(self.address)
            self._find_gateway(now_ns)
            return
        try:
            self._supervisor = self.address.endpoint()
            self._connect(self._supervisor)
        except (zmq.ZMQError, OSError) as error:
            why = why_no_file(error)
            self._die(now_ns, f"cannot connect to {self.address.url}: {why}")
            return
        if target.kind == "supervisor":
            self._reached(now_ns)
        else:
            self._step(_E.LOOK)
            channel = target.channel if target.kind == "channel" else ""
            asked = Lookup(
                self._request,
                target.topic,
                channel,
                create,
                dict(target.settings),
                dict(self.address.by),
                self.is_back,
            )
            self.send([b"", encode(asked)], now_ns)
        self.engine.sooner(now_ns + (REACH_NS if self.rotation.several else ATTEMPT_NS))

    def _find_gateway(self, now_ns: int) -> int:
        """Connect to the gateway if its name is resolved. Return the time of the next call."""
        limit_ns = NAME_NS if self.rotation.several else ATTEMPT_NS
        waited_ns = now_ns - self._since_ns
        why_late = f"{self.address.url}: {late(self.address.place()[0], waited_ns // S)}"
        try:
            endpoint = self.places.take()
            if endpoint is not None:
                self._connect(endpoint)
        except (zmq.ZMQError, OSError) as error:
            text = f"{error}"
            if not isinstance(error, NotResolved):
                text = f"cannot connect: {why_no_file(error)}"
            self._die(now_ns, f"{self.address.url}: {text}")
            return self._again_ns
        if endpoint is not None:
            self._since_ns = now_ns
            self.trouble = "" if waited_ns >= NAME_NS else self.trouble
            self._open(now_ns)
            at_ns = now_ns + (REACH_NS if self.leaves else ATTEMPT_NS)
        elif waited_ns >= limit_ns:
            self._die(now_ns, why_late)
            return self._again_ns
        else:
            self.trouble = why_late if waited_ns >= NAME_NS else self.trouble
            at_ns = now_ns + min(NAME_LOOK_NS_MAX, max(MS, waited_ns))
        self.engine.sooner(at_ns)
        return at_ns

    def _open(self, now_ns: int) -> None:
        """Ask the gateway to open the target."""
        self._step(_E.OPEN)
        target = self.target
        request = Open(
            self._request,
            target.kind,
            target.topic,
            target.channel,
            self.creates,
            dict(target.settings),
            self.is_back,
        )
        self.send([b"", encode(request)], now_ns)

    def _connect(self, endpoint: str) -> None:
        socket = sockets.make_dealer(self.address.credentials, moves=self.leaves)
        try:
            monitor = sockets.watch(socket)
            sockets.connect(socket, endpoint)
        except zmq.ZMQError:
            sockets.close(socket, None)
            raise
        self._socket, self._monitor = socket, monitor
        self._descriptor, self._moved_ns = -1, 0
        self._fds = (int(socket.getsockopt(zmq.FD)), int(monitor.getsockopt(zmq.FD)))
        self.engine.watch(self, *self._fds)
        self.engine.sooner(0)  # the descriptors are edge-triggered: turn now, to see earlier events

    def _disconnect(self, linger_ms: int = 0) -> None:
        if self._socket is not None:
            self.engine.forget(*self._fds)
            sockets.close(self._socket, self._monitor, linger_ms)
        self._socket = self._monitor = None
        self._outbox.clear()

    def _reached(self, now_ns: int) -> None:
        """Send the first message, because the socket now leads to the target."""
        self._step(_E.REACHED)
        greeting = self.peer.greeting()
        if greeting is None:
            self._greeted(now_ns)
        else:
            self.send([b"", encode(greeting)], now_ns)

    def _greeted(self, now_ns: int) -> None:
        self._step(_E.GREETED)
        if self._answered or not self.rotation.several:
            self._arrive(now_ns)
        self._known = True
        self.trouble = ""
        self.refusal = None
        # A direct link to the supervisor is up before the supervisor has answered. So its callers
        # still count as waiting.
        if not (self.address.direct and self.target.kind == "supervisor"):
            self.wanted_ns = FAR_NS
        self.peer.on_up(now_ns)
        if self.heartbeat_ms:
            self.engine.sooner(now_ns + self.heartbeat_ms * MS)

    def _arrive(self, now_ns: int) -> None:
        self._arrived = True
        self.places.reached()
        self._attempts = self._tried = self._sent_on = 0
        self._there = _SILENT
        self.engine.reached(self, now_ns)

    # Ending

    def stop(self, linger_ms: int = 0) -> None:
        """End permanently. With a linger, send Bye first if the link is up.

        A link that is not up sends nothing more. Its request to open a channel could otherwise
        arrive after the channel was deleted, and make it again.
        """
        if self.state is _S.UP and linger_ms:
            self.send(_BYE, self.sent_ns)
            self._disconnect(linger_ms)
        else:
            self._disconnect()
        self._step(_E.STOP)

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None:
        """Close this link and start again."""
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
        before = self.state
        self.trouble = self.engine.answers or why
        self.refusal = error
        log.debug("link to %s: %s", self.target, why)
        direct = bool(self.address.run_id)
        if direct and (before not in (_S.GREETING, _S.UP) or self.target.kind == "supervisor"):
            self.rotation.forget_way(self.given, unusable=not self._direct_heard)
        failed = elsewhere or not (direct or self._answered)
        if failed and self.places.more and not self.address.direct:
            at_once, failed = True, False  # the name has another address
        if failed:
            self.rotation.failed(self.given, self.trouble, error, unheard=self.unheard)
            self.left = self.rotation.several
        self._disconnect()
        self._step(_E.DIED)
        self._again_ns = now_ns + (0 if at_once else self._pause_ns(now_ns, failed))
        self.engine.sooner(self._again_ns)
        if before in (_S.GREETING, _S.UP):
            self.peer.on_lost()
        if self.wanted_ns == FAR_NS and self.needed():
            self._want(now_ns)

    def _pause_ns(self, now_ns: int, failed: bool) -> int:
        """Return the pause before the next attempt: 0 if the next address is not tried yet."""
        self._tried += failed
        if failed and self._tried < len(self.rotation.each):
            return 0
        self._tried = 0
        pause_ms = min(BACKOFF_MS_MAX, BACKOFF_MS << min(self._attempts, 8))
        self._attempts += 1
        return max(int(pause_ms * random.uniform(0.5, 1.0) * MS), self._backoff.until_ns - now_ns)

    def follows(self, code: str) -> bool:
        """Return True if the link goes on at the next address when the broker answers this."""
        return code in NOT_PRIMARY and (code == E_STANDBY or self.rotation.several)

    def _turn_away(self, now_ns: int, error: ZsqError, request: int = 0) -> None:
        """Leave a broker that has answered that it is not the primary."""
        self._backoff.refused(now_ns)
        self.turned_away = request
        self._die(now_ns, str(error), error, elsewhere=True)
        self.turned_away = 0

    def give_up(self, error: ZsqError) -> None:
        """Fail everything that waits, because no process listens at the broker's address.

        The next call starts again.
        """
        self._disconnect()
        self._step(
            _E.REFUSE if self.state in (_S.LOOKING, _S.OPENING, _S.GREETING, _S.UP) else _E.STOP
        )
        self.wanted_ns = FAR_NS
        self.peer.on_refused(error)

    def _refuse(self, now_ns: int, error: ZsqError) -> None:
        if self.follows(error.code):
            self._turn_away(now_ns, error)
            return
        if error.code in self.passing:
            self._die(now_ns, str(error), error, elsewhere=error.code in AWAY)
            return
        is_without = error.code == E_NOT_FOUND and not is_channel_missing(error.text)
        if is_without and self._is_perhaps_a_stranger:
            self._there = _STRANGER
            self._die(now_ns, f"the part is at {self.given.url}, {_STRANGER}", elsewhere=True)
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

    @property
    def _is_perhaps_a_stranger(self) -> bool:
        """True at the address that a broker has named for the part's broker.

        If that broker is away, another one may have its address by now. So a part that does not
        exist there is asked for at the other addresses, and what is said there counts.
        """
        return self.given.url in self._named and any(
            one.url not in self._named for one in self.rotation.each
        )

    def _step(self, event: LinkEvent) -> None:
        self.state = LINK_TABLE[self.state][event]
        self.is_silent = False

    # Messages

    @property
    def up(self) -> bool:
        return self.state is _S.UP

    @property
    def waiting(self) -> bool:
        return self.state is _S.WAITING

    @property
    def is_back(self) -> bool:
        """True if this link used its topic before. It does not create the topic if it was deleted.

        A gateway does, because its links serve clients that come and go.
        """
        return self._known and not self.address.by

    @property
    def waits(self) -> bool:
        """True if an answer of the broker is due: about the target, or to something sent."""
        if self.state in (_S.IDLE, _S.REFUSED):
            return False
        return self.expects() if self.state is _S.UP else self.needed()

    @property
    def leaves(self) -> bool:
        """True if this link goes on elsewhere when nothing answers where it is."""
        return self.rotation.several or (self.places.several and not self.address.direct)

    @property
    def space(self) -> Space:
        """The space of the broker at the other end."""
        return Space.MACHINE if self.address.direct else space_of(self.places.host)

    def is_beside(self, endpoint: str) -> bool:
        """Return True if this endpoint lies in the run directory, over ipc."""
        return is_beside(endpoint, self._supervisor)

    @property
    def astray(self) -> bool:
        """True if the broker of the part did not answer: another one has named it again."""
        return self._sent_on > 1 and not self.up

    @property
    def deserted(self) -> bool:
        """True if nothing listens at any address, and all of them are on this machine."""
        if self.rotation.several:
            return self.rotation.deserted
        return self.unheard and self.address.local

    def late_since(self, now_ns: int) -> int:
        """Return since when an answer is so late that the log must say so, or `FAR_NS`."""
        if self.is_silent:
            return self._expected_ns or (self._moved_ns if self.needed() else FAR_NS)
        is_late = self.up and 0 < self._expected_ns <= now_ns - BUSY_NS
        return self._expected_ns if is_late else FAR_NS

    def why(self) -> str:
        """Return why the link is not up, for each address, or why its answers are late."""
        if self.is_silent:
            return "nothing arrives, not even the answer to a heartbeat"
        if self.up and self._expected_ns:
            if self._alive_ns > self._expected_ns:
                return "it answers heartbeats; it may be busy, or wait for its disk or its bucket"
            return "no answer yet"
        is_under_way = self.state in (_S.LOOKING, _S.OPENING, _S.GREETING)
        why = self.rotation.why() or self.trouble
        return why or (self._silence() if is_under_way else "")

    @property
    def down(self) -> bool:
        """True if the link neither leads to the target nor is being opened at this moment."""
        return self.state in (_S.IDLE, _S.WAITING, _S.REFUSED)

    def send(self, frames: list[Any], now_ns: int) -> None:
        """Send these frames after all frames of earlier calls.

        The high-water marks are above all credits, so a full pipe means that the peer receives
        nothing. The frames then wait in `_outbox`, until the heartbeat shows whether the peer is
        alive.
        """
        assert self._socket is not None
        self.sent_ns = now_ns
        if self._asked_ns <= self.heard_ns:
            self._asked_ns = now_ns
        self.engine.sooner(now_ns + ASK_NS)
        if self.rotation.several:
            self.engine.sooner(now_ns + LOOK_NS)
        if self._outbox or not sockets.send_frames(self._socket, frames):
            self._outbox.append(frames)
            self.engine.sooner(now_ns + 10 * MS)

    def take_in(self, now_ns: int) -> None:
        """Receive what has arrived, and let the peer continue."""
        if self.receive(now_ns) and self.state is _S.UP:
            self.peer.on_received(now_ns)

    def receive(self, now_ns: int) -> int:
        """Receive all messages that have arrived, up to a bound. Return how many there were."""
        socket = self._socket
        taken = 0
        if socket is None:
            return 0
        while taken < RECEIVE_MAX and sockets.readable(socket):
            frames = sockets.recv_frames(socket)
            if frames is None:
                break
            taken += 1
            if self._moved_ns > self.heard_ns:
                self._alive_ns = now_ns
            self.heard_ns = now_ns
            self.is_silent = False
            if self._descriptor < 0:
                self._descriptor = sockets.descriptor_of(frames[-1])
            self._answered = self.touched = True
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
            if self._socket is not socket:
                break
        if taken:
            self.engine.met = True
            self.engine.answers = ""
            if self.state is _S.UP:
                self.wanted_ns = FAR_NS
                if not self._arrived:
                    self._arrive(now_ns)
            if taken == RECEIVE_MAX:
                self.engine.sooner(0)
        return taken

    def _on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> None:
        kind = type(message)
        if kind is Beat:
            return
        self.word_ns = now_ns
        if kind is Bye:
            self._die(
                now_ns,
                "the broker closed the link",
                at_once=self.state is _S.UP and now_ns - self._since_ns > BACKOFF_MS_MAX * MS,
            )
        elif (type(message) is Failed or type(message) is Unstored) and self.follows(message.code):
            request = message.request if type(message) is Failed else 0
            self._turn_away(now_ns, from_wire(message.code, message.text), request)
        elif type(message) is Failed and (
            message.code == E_HELLO or self.state is not _S.UP or _ends(message)
        ):
            self._refuse(now_ns, from_wire(message.code, message.text))
        elif self.state is _S.LOOKING or self.state is _S.OPENING:
            if type(message) is Done and message.request == self._request:
                self._found(message, now_ns)
            elif type(message) is Spread and message.request == self._request:
                self._go_to_part(message, now_ns)
        else:
            reaction = self.peer.on_word(message, blocks, now_ns)
            if reaction is Reaction.UP:
                self._greeted(now_ns)
            elif reaction is not Reaction.NOTHING:
                self._die(now_ns, "the session starts again", at_once=reaction is Reaction.RENEW)
                if reaction is Reaction.LATER:
                    self._again_ns = now_ns + LATER_MS * MS
                    self.engine.sooner(self._again_ns)

    def _go_to_part(self, message: Spread, now_ns: int) -> None:
        """Go to the broker that has the part. If the target is the whole topic, it is refused."""
        spread = checked(message)
        if self.stays:
            self._refuse(now_ns, HasParts(spread))
            return
        way = way_to(self._home.given, self.target.topic, spread, self.space)
        if way is None and part_of(self.target.topic) is None:
            self._known = True
            self._refuse(now_ns, HasParts(spread))
            return
        self._sent_on += 1
        self._named = frozenset(named_for(self.target.topic, spread))
        where = f"at {way.each[0].url}" if way is not None else "at no broker that is known"
        where += f", {self._there}" if way is not None and self._sent_on > 1 else ""
        self._die(now_ns, f"the part is {where}", at_once=self._sent_on == 1)
        self.rotation = way or self._home

    def _found(self, message: Done, now_ns: int) -> None:
        if self.state is _S.LOOKING:
            endpoint = message.data.get(self.target.kind)
            if not isinstance(endpoint, str) or not endpoint:
                self._die(now_ns, f"the supervisor does not know the address of {self.target}")
                return
            if not self.is_beside(endpoint):
                text = f"the supervisor names {endpoint[:200]!r}, which is not in its run directory"
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
                self.send(_BYE, now_ns)
                self._disconnect(BYE_LINGER_MS)
                self._attempt(now_ns)
                return
        self._reached(now_ns)

    # Watching

    def check_monitor(self, now_ns: int) -> None:
        if self._monitor is None:
            return
        events = sockets.read_events(self._monitor)
        # If the endpoint came from a lookup, a refused connection means that its owner is gone. The
        # supervisor and the gateway have fixed places, so ZeroMQ's own retries are enough for them.
        # If the gateway named this run directory, the link goes back to the gateway at once.
        by_lookup = (
            self.state not in (_S.LOOKING, _S.OPENING)
            and self.address.direct
            and self.target.kind != "supervisor"
        )
        fixed = not by_lookup and not self.address.run_id and not self.leaves
        if events:
            # ZeroMQ also tries again after a failed handshake, but then something listens there.
            self.unheard = bool(events & sockets.RETRY_EVENTS) and not events & (
                sockets.CONNECTED_EVENTS | HANDSHAKE_EVENTS
            )
        self.touched = self.touched or bool(events & sockets.CONNECTED_EVENTS)
        self._shaken = self._shaken or bool(events & sockets.GREETED_EVENTS)
        if events & HANDSHAKE_EVENTS:
            self._shut_out(now_ns, events)
        elif events & sockets.GONE_EVENTS or (not fixed and events & sockets.RETRY_EVENTS):
            self.receive(now_ns)  # receive the last messages of the peer
            if self._monitor is not None:
                missing = self.leaves and self.unheard
                self._die(now_ns, self._nothing() if missing else "the connection was lost")
        elif self.unheard:
            self.trouble = self._nothing()

    def _nothing(self) -> str:
        verb = "listens" if self.address.local else "answers"
        return f"nothing {verb} at {self._place()}"

    def _place(self) -> str:
        """Return the address of this attempt, for people."""
        several = self.leaves and self.places.several
        return f"{self.address.url} ({self.places.host})" if several else self.address.url

    def _silence(self) -> str:
        """Return what this attempt has found out while it has had no answer."""
        if self.unheard:
            return self._nothing()
        url = self._place()
        if self.address.direct:
            return f"the broker at {url} does not answer"
        if not self.touched:
            return f"no connection to {url}: its machine, or a firewall before it, does not answer"
        if not self._shaken:
            return f"{url} accepts the connection and sends nothing: it is no broker, or it hangs"
        return f"{url} speaks ZeroMQ and does not answer: the broker is overloaded, or it hangs"

    def _shut_out(self, now_ns: int, events: int) -> None:
        """Process a failed handshake. A link that was up before tries again."""
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
        """Process the timers that are due. Return the time of the next call."""
        if self.state in (_S.IDLE, _S.REFUSED):
            return FAR_NS
        if self.state is _S.WAITING:
            if now_ns < self._again_ns:
                return self._again_ns
            self._attempt(now_ns)
            return now_ns + ATTEMPT_NS
        if self.state is _S.RESOLVING:
            return self._find_gateway(now_ns)
        self.take_in(now_ns)
        self.check_monitor(now_ns)
        self._flush(now_ns)
        if self._socket is None:
            return self._again_ns if self.waiting else FAR_NS
        reach_ns = self._since_ns + REACH_NS
        if self.leaves and not (self._shaken or self._answered):
            if now_ns >= reach_ns:
                self._die(now_ns, f"no answer within {REACH_NS // S} s: {self._silence()}")
                return self._again_ns
            return min(reach_ns, self._beat(now_ns)) if self.up else reach_ns
        if self.up:
            ask_ns = self._ask(now_ns)
            return min(ask_ns, self._beat(now_ns)) if self.up else self._again_ns
        if now_ns >= self._since_ns + ATTEMPT_NS:
            self._die(now_ns, f"no answer within {ATTEMPT_NS // S} s: {self._silence()}")
            return self._again_ns
        return self._since_ns + ATTEMPT_NS

    def _moves(self, now_ns: int) -> bool:
        """Return True if many bytes have moved since the first heartbeat of this silence.

        On a slow link, a large frame may take longer than two heartbeats, and a heartbeat waits
        behind it. The system of a peer that hangs still acknowledges heartbeats, so few bytes are
        no sign of life.
        """
        if self._moved_ns <= self.heard_ns:
            return False
        now = sockets.bytes_moved(self._descriptor)
        if sum(now) - sum(self._moved) < MOVED_BYTES_MIN:
            return False
        self.heard_ns = now_ns
        self.is_silent = False
        return True

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
        if now_ns - self.heard_ns > 2 * heartbeat_ns and not self._moves(now_ns):
            self._die(now_ns, f"nothing arrived for {2 * self.heartbeat_ms} ms, two heartbeats")
            return self._again_ns
        # A heartbeat is due when one side was silent for an interval.
        quiet_ns = max(min(self.sent_ns, self.heard_ns), self._beat_ns)
        if now_ns - quiet_ns >= heartbeat_ns:
            self.beat(now_ns)
            quiet_ns = now_ns
        return quiet_ns + heartbeat_ns

    def _ask(self, now_ns: int) -> int:
        """Send a heartbeat if an answer is late. Return when to look again."""
        if not (self._answered and self.expects()):
            self._expected_ns = 0
        elif not self._expected_ns or self.word_ns > self._expected_ns:
            self._expected_ns = max(self._asked_ns, self.heard_ns, now_ns - ASK_NS)
        if self._moved_ns > self.heard_ns:
            self.is_silent = now_ns >= self._moved_ns + ASK_NS
            look_ns = self._moved_ns + (SILENT_NS if self.is_silent else ASK_NS)
            return look_ns if look_ns > now_ns else FAR_NS
        if not self._expected_ns:
            return FAR_NS
        ask_ns = (
            max(self.heard_ns, self._asked_ns) + ASK_NS
            if self._beat_ns < self._asked_ns
            else max(self.heard_ns, self._beat_ns) + ASK_AGAIN_NS
        )
        if now_ns < ask_ns:
            return ask_ns
        self.beat(now_ns)
        return now_ns + ASK_NS

    def beat(self, now_ns: int) -> None:
        """Send a heartbeat."""
        if self._moved_ns <= self.heard_ns:
            self._moved, self._moved_ns = sockets.bytes_moved(self._descriptor), now_ns
        self.send(_BEAT, now_ns)
        self._beat_ns = now_ns

    def silent_since(self, now_ns: int) -> int:
        """Return when the first heartbeat was sent that has no answer, or 0 if this link stays.

        A link that leaves its address by itself, or of which nobody knows how many bytes move,
        stays where it is.
        """
        leaves = self.leaves or self.address.direct or not sum(self._moved)
        return 0 if leaves or not self.is_silent or self._moves(now_ns) else self._moved_ns
