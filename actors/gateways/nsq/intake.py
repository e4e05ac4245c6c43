"""Intake: limits on the resources that all NSQ connections share.

A stranger is a connection whose client has neither authenticated nor sent a command that shows its
purpose (`Session.stranger`).

*Time of the event loop.* A connection processes input at once while the turn has time left
(TURN_NS). The rest waits in one of two queues, one for strangers and one for other connections. The
queues alternate, and each turn takes one piece of one connection: about a hundred commands or 64
KiB of plain text. So the delay of a client depends on the size of a piece and not on the number of
connections with work.

*Bytes.* Each connection reports the bytes that it holds: received bytes that are incomplete or wait
for their turn. Strangers together have STRANGERS_BYTES_MAX, which includes their TLS and
compression layers. Above it, the strangers that have been idle for longest are closed. All
connections together have HELD_BYTES_MAX. Above it, nothing is read. Some of these connections wait
for their client to send the rest of a body or to read its answers. They may hold half of
HELD_BYTES_MAX. If they hold more, those whose last command is the oldest are closed. All other
connections wait for the broker, and their bytes are freed without any client's help.

*Hang-ups.* The event loop does not notice the end of a connection from which it does not read. So
these sockets are checked once a second. If the client is gone, its input is dropped. A client that
only stopped sending gets one heartbeat. If the client has closed its socket, the heartbeat fails
and shows that it is gone.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Collection
from typing import Final, Protocol

from ...security.complaints import Complaints

# Time in each turn of the loop for new input, and as much for waiting input.
TURN_NS: Final = 2_000_000
HELD_BYTES_MAX: Final = 128 * 1024 * 1024
STRANGERS_BYTES_MAX: Final = 64 * 1024 * 1024
LOOK_S: Final = 1.0  # seconds between two checks for hang-ups


class Heard(Protocol):
    @property
    def heard_ns(self) -> int: ...


class Client(Protocol):
    """A connection as seen by the intake. `strange` is True while it counts as a stranger."""

    strange: bool
    held_bytes: int
    half_closed: bool
    remote: str

    @property
    def session(self) -> Heard: ...

    @property
    def waits_for_client(self) -> bool: ...

    def take_piece(self) -> None: ...

    def look(self) -> None: ...

    def abort(self) -> None: ...

    def fileno(self) -> int: ...

    def hung_up(self, *, gone: bool) -> None: ...


class Intake:
    """The resources of all connections of a gateway.

    `connections` is the gateway's own collection of them, which changes as they come and go.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: Collection[Client]) -> None:
        self._loop = loop
        self._connections = connections
        self.held_bytes = 0  # the bytes that all connections hold
        self.full = False  # True while nothing is read
        # All strangers, those that have been idle for longest first.
        self.strangers: dict[Client, None] = {}
        self.strangers_bytes = 0
        self.evicted = 0  # number of connections closed to free resources
        self.unread: dict[Client, None] = {}  # connections that are not read at present
        self._burdens: dict[Client, None] = {}  # the strangers that hold bytes, in the same order
        self._queue: dict[Client, None] = {}
        self._strangers_queue: dict[Client, None] = {}
        self._strangers_next = False
        self._planned = False
        self._began_ns = 0  # the start of reading in this turn of the loop, or 0 before it
        self._looking = False
        self.complaints = Complaints()

    # Time

    @property
    def spent(self) -> bool:
        """True if input has used up the time of this turn of the event loop."""
        now = time.monotonic_ns()
        if not self._began_ns:
            self._began_ns = now
            self._loop.call_soon(self._turn_is_over)
            return False
        return now - self._began_ns > TURN_NS

    def _turn_is_over(self) -> None:
        self._began_ns = 0

    def plan(self, connection: Client) -> None:
        """Queue the connection to process its next piece."""
        (self._strangers_queue if connection.strange else self._queue)[connection] = None
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        until = time.monotonic_ns() + TURN_NS
        while self._queue or self._strangers_queue:
            queue = (
                self._strangers_queue
                if (self._strangers_next and self._strangers_queue) or not self._queue
                else self._queue
            )
            self._strangers_next = queue is self._queue
            connection = next(iter(queue))
            del queue[connection]
            connection.take_piece()
            if time.monotonic_ns() >= until:
                break
        self._planned = bool(self._queue or self._strangers_queue)
        if self._planned:
            self._loop.call_soon(self._work)

    # Bytes and slots

    def count(self, connection: Client, held: int) -> None:
        """Note that the connection holds `held` bytes, and enforce the limits."""
        more = held - connection.held_bytes
        connection.held_bytes = held
        self.held_bytes += more
        if connection.strange:
            self._burdens.pop(connection, None)
            if held:
                self._burdens[connection] = None
            self.strangers_bytes += more
            while self.strangers_bytes > STRANGERS_BYTES_MAX and self._burdens:
                why = (
                    "clients that sent no AUTH, SUB or PUB together hold more than "
                    f"{STRANGERS_BYTES_MAX} bytes"
                )
                self._evict(next(iter(self._burdens)), why)
        if more > 0 and self.held_bytes > HELD_BYTES_MAX:
            self._relieve()
        elif self.full and self.held_bytes < HELD_BYTES_MAX * 3 // 4:
            self._fill(False)

    def seen(self, connection: Client) -> None:
        """Note that a stranger has sent bytes."""
        self.strangers.pop(connection, None)
        self.strangers[connection] = None

    def known(self, connection: Client) -> None:
        """Note that the connection is no longer a stranger."""
        self.strangers.pop(connection, None)
        self._burdens.pop(connection, None)
        self.strangers_bytes -= connection.held_bytes
        connection.strange = False

    def make_room(self) -> bool:
        """Close the stranger that has been idle for longest. Return False if there is none."""
        if not self.strangers:
            return False
        why = (
            f"the limit of {len(self._connections)} connections is reached, and this client "
            "sent no AUTH, SUB or PUB"
        )
        self._evict(next(iter(self.strangers)), why)
        return True

    def leave(self, connection: Client) -> None:
        """Note that the connection is closing.

        It then holds nothing and counts as a stranger, so that a new connection can get its slot.
        """
        for place in (self.unread, self._queue, self._strangers_queue):
            place.pop(connection, None)
        self.count(connection, 0)
        if not connection.strange:
            connection.strange = True
            self.strangers[connection] = None

    def forget(self, connection: Client) -> None:
        """Note that the connection is gone."""
        self.leave(connection)
        self.known(connection)

    def _relieve(self) -> None:
        """Close the slowest connections while those that wait for clients hold over half of the
        limit.

        Stop reading if all connections together still hold too much.
        """
        slow = sorted(
            (
                connection
                for connection in self._connections
                if connection.held_bytes and connection.waits_for_client
            ),
            key=lambda connection: connection.session.heard_ns,
        )
        theirs = sum(connection.held_bytes for connection in slow)
        for connection in slow:
            if theirs <= HELD_BYTES_MAX // 2:
                break
            theirs -= connection.held_bytes
            self._evict(
                connection,
                (
                    f"all connections together hold more than {HELD_BYTES_MAX} bytes, and this one "
                    "has been slow for longest"
                ),
            )
        self._fill(self.held_bytes > HELD_BYTES_MAX)

    def _fill(self, full: bool) -> None:
        if self.full != full:
            self.full = full
            for connection in list(self._connections):
                connection.look()

    def _evict(self, connection: Client, why: str) -> None:
        self.evicted += 1
        self.complaints.add(
            "nsq gateway: the connection from %s is closed: %s", connection.remote, why
        )
        connection.abort()

    # Hang-ups

    def pause(self, connection: Client) -> None:
        """Note that the connection is not read at present."""
        self.unread[connection] = None
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_S, self._look_for_hang_ups)

    def _look_for_hang_ups(self) -> None:
        """Check the sockets of connections that are not read, and report clients that hung up."""
        poll = select.poll()
        by_fd: dict[int, Client] = {}
        for connection in self.unread:
            fd = connection.fileno()
            if fd >= 0:
                by_fd[fd] = connection
                # `poll` always reports errors, even if no event is requested.
                poll.register(fd, 0 if connection.half_closed else select.POLLRDHUP)
        for fd, events in poll.poll(0) if by_fd else ():
            by_fd[fd].hung_up(gone=bool(events & (select.POLLERR | select.POLLHUP)))
        self._looking = bool(self.unread)
        if self._looking:
            self._loop.call_later(LOOK_S, self._look_for_hang_ups)

    def statistics(self) -> dict[str, int]:
        return {
            "held_bytes": self.held_bytes,
            "strangers": len(self.strangers),
            "connections_evicted": self.evicted,
        }
