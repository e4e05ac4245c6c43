"""SharedClients: the clients of one broker that all connections of a process share.

Kombu opens a connection for each thread that publishes, and for each remote-control command. A
producer of ZSQ serves all threads, so the connections share it. It is closed with the last of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

from kombu.exceptions import OperationalError

from ....transport.client.blocking.client import Admin, Consumer, Producer, Reader
from ....transport.errors import E_TIMEOUT, BrokerUnreachable
from ....transport.resolver import connect
from ....transport.settings import NewChannelOptions
from ....transport.system import after_fork
from ....transport.wire.addresses import Url, parse_all
from ....transport.wire.credentials import KeyFile
from ..naming import legal
from ..queues import QueueTopics
from ..source import OpenWork
from .bindings import TOPIC, Bindings


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker, the options of its clients, and the prefix of its topics."""

    url: Url
    key_file: KeyFile
    transport: str | None
    prefix: str
    linger_ms: float
    publish_timeout_s: float

    @property
    def client(self) -> dict[str, Any]:
        return {"url": self.url, "key_file": self.key_file, "transport": self.transport}


@dataclass(slots=True)
class SharedClients:
    """The shared clients."""

    place: BrokerPlace
    producer: Producer
    admin: Admin
    reader: Reader
    bindings: Bindings
    topics: QueueTopics
    work: OpenWork
    users: int = 0
    is_late: bool = False  # the last publish was not confirmed in time, and its caller knows it

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Raise a publish that is not confirmed in time as an error that Kombu does not repeat.

        The producer has repeated it already. If Kombu did, the message could be stored twice, and
        each attempt would wait for `publish_timeout` again.
        """
        try:
            yield
        except BrokerUnreachable as error:
            self.is_late = True
            raise OperationalError(str(error)) from error
        self.is_late = False

    def consumer(
        self,
        topic: str,
        channel: str,
        ready: int,
        lease_s: float,
        **settings: Unpack[NewChannelOptions],
    ) -> Consumer:
        return Consumer(
            topic, channel, ready=ready, message_timeout=lease_s, **self.place.client, **settings
        )

    def close(self) -> None:
        # Without this, the caller of the late publish would wait for it once more.
        timeout_s = 0.0 if self.is_late else None
        try:
            self.producer.close(timeout_s)
        finally:
            self.admin.close()
            self.reader.close()


_links: dict[tuple[int, str], SharedClients] = {}
_works: dict[str, OpenWork] = {}  # by place; they stay when Celery opens its connection again
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _works.clear()


after_fork(_after_fork)


def open_link(place: BrokerPlace, timeout_s: float, others: bool) -> SharedClients:
    """Return the link to this place. Raises `BrokerUnreachable` if a new one gets no answer.

    With `others`, Kombu has more URLs to try. Its time limit for all of them is that of one
    connection. So it must not wait at an address where nothing listens. Otherwise this waits, for
    example for a broker that is started again.
    """
    key = (os.getpid(), repr(place))
    with _lock:
        link = _links.get(key)
    if link is None:
        if others:
            _check_listens(place, timeout_s)
        with Admin(timeout=timeout_s, **place.client) as admin:
            admin.ping()
        link = _make(place)
    with _lock:
        link = _links.setdefault(key, link)
        link.users += 1
    return link


def _check_listens(place: BrokerPlace, timeout_s: float) -> None:
    """Raise `BrokerUnreachable` if all addresses of this place refuse a TCP connection."""
    addresses = parse_all(place.url, place.key_file, place.transport)
    for address in addresses.each:
        if address.direct:
            return
        try:
            connect(address.place(), timeout_s).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return  # the client says more about it
        return
    raise BrokerUnreachable(E_TIMEOUT, f"nothing listens at {addresses.url}")


def _make(place: BrokerPlace) -> SharedClients:
    producer = Producer(linger_ms=place.linger_ms, timeout=place.publish_timeout_s, **place.client)
    admin = Admin(timeout=place.publish_timeout_s, **place.client)
    topic = legal(f"{place.prefix}{TOPIC}", 64)
    reader = Reader(topic, **place.client)
    bindings = Bindings(producer, admin, reader, topic)
    topics = QueueTopics(admin, producer)
    work = _works.setdefault(repr(place), OpenWork())
    return SharedClients(place, producer, admin, reader, bindings, topics, work)


def close_link(link: SharedClients) -> None:
    """Let go of the link. The last user closes it."""
    with _lock:
        link.users -= 1
        last = link.users == 0
        if last:
            for key in [key for key, known in _links.items() if known is link]:
                del _links[key]
    if last:
        link.close()
