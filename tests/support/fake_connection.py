"""Fake connections: what a link sends and receives, without a socket.

`FakeEngine` gives its links such connections. A test passes messages and events in, and reads what
was sent and which connections were closed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from zsq.transport.client.link.connection import LinkConnection
from zsq.transport.client.link.engine import Engine
from zsq.transport.client.link.link import Link
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import ZsqError
from zsq.transport.resolver import Resolver
from zsq.transport.wire.codec import decode, encode
from zsq.transport.wire.credentials import Credentials
from zsq.transport.wire.protocol import Lookup, Open, Wire
from zsq.transport.wire.sockets import GONE_EVENTS


class FakeConnection(LinkConnection):
    """A connection to an endpoint at which the test answers."""

    def __init__(self, endpoint: str, credentials: Credentials | None, *, leaves: bool) -> None:
        self.endpoint, self.leaves = endpoint, leaves
        self.fds = os.eventfd(0), os.eventfd(0)
        self.sent: list[Wire] = []
        self.arrived: deque[Wire] = deque()
        self.events = 0
        self.moved = 0
        self.is_full = False
        self.linger_ms: int | None = None  # None while it is open

    def send(self, frames: list[Any]) -> bool:
        self.sent.append(decode(frames[1]))
        return not self.is_full

    def flush(self) -> bool:
        return not self.is_full

    def receive(self) -> list[Any] | None:
        if not self.arrived:
            return None
        return [zmq.Frame(part) for part in (b"", encode(self.arrived.popleft()))]

    def read_events(self) -> int:
        events, self.events = self.events, 0
        return events

    def bytes_moved(self) -> int:
        return self.moved

    def close(self, linger_ms: int) -> None:
        self.linger_ms = linger_ms
        for descriptor in self.fds:
            os.close(descriptor)


class FakeEngine(Engine):
    """An engine whose links have fake connections."""

    def __init__(self, names: Resolver | None = None) -> None:
        super().__init__(names, self._make)
        self.connections: list[FakeConnection] = []
        self._of: dict[Link, FakeConnection] = {}

    def _make(
        self, endpoint: str, credentials: Credentials | None, *, leaves: bool
    ) -> FakeConnection:
        self.connections.append(FakeConnection(endpoint, credentials, leaves=leaves))
        return self.connections[-1]

    def watch(self, descriptor: int, reader: Callable[[int], object]) -> None:
        super().watch(descriptor, reader)
        link = getattr(reader, "__self__", None)
        assert isinstance(link, Link)
        self._of[link] = self.connections[-1]

    def of(self, link: Link) -> FakeConnection:
        """Return the last connection of this link."""
        return self._of[link]

    def request_of(self, link: Link) -> int:
        """Return the number of the last Lookup or Open of this link."""
        requests = [word for word in self._of[link].sent if isinstance(word, Lookup | Open)]
        return requests[-1].request

    def hear(self, link: Link, now_ns: int, *words: Wire) -> None:
        """Let these messages arrive."""
        self._of[link].arrived.extend(words)
        link.take_in(now_ns)

    def report(self, link: Link, now_ns: int, events: int) -> None:
        """Let the monitor report these events."""
        self._of[link].events |= events
        link.check_monitor(now_ns)

    def lose(self, link: Link, now_ns: int) -> None:
        """Let the connection be lost."""
        self.report(link, now_ns, GONE_EVENTS)

    def end(self) -> None:
        self.stop()
        self.events.close()


class QuietPeer:
    """The peer of a link, which sends nothing and notes what happens."""

    def __init__(self) -> None:
        self.lost = 0
        self.errors: list[ZsqError] = []
        self.words: list[Wire] = []

    def greeting(self) -> Wire | None:
        return None

    def on_word(self, message: Wire, *_: object) -> Reaction:
        self.words.append(message)
        return Reaction.NOTHING

    def on_up(self, now_ns: int) -> None: ...

    def on_received(self, now_ns: int) -> None: ...

    def on_lost(self) -> None:
        self.lost += 1

    def on_refused(self, error: ZsqError) -> None:
        self.errors.append(error)
