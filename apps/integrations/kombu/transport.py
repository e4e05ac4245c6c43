"""Transport: the connection of Kombu to a broker of ZSQ, and how it waits for messages.

The threads of the sources make a descriptor readable when messages arrive. A worker with an event
loop (prefork) watches the descriptor. All others wait for it in `drain_events`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from ....transport.client.core.consumer_backoff import Backoff, backoff_of
from ....transport.errors import BrokerUnreachable, LeaseLost, NotFound, Refused, UsageError
from ....transport.system import Waker, wait_readable
from ....transport.wire.address import tcp_endpoint
from ..naming import check_lease
from ..source import ConsumerThread
from .channel import READY, Binding, Channel
from .link import BrokerPlace, close_link, open_link
from .names import binding_channel, exchange_topic, tag_of

log = logging.getLogger("zsq")

PORT: Final = 4153
LEASE_S: Final = 60.0
PUBLISH_S: Final = 5.0
LOOK_S: Final = 1.0
LEVELS_S: Final = 5.0  # how often to look for new priority levels
OPTIONS: Final = frozenset(
    {
        "backoff", "highest_priority", "key_file", "linger_ms", "message_timeout", "priority_steps",
        "publish_timeout", "revokes", "transport", "url",
    }
)  # fmt: skip
# Those that Kombu and Celery use with each transport. Celery adds some of them by itself.
KNOWN_OPTIONS: Final = OPTIONS | {
    "body_encoding", "client_properties", "confirm_publish", "connect_retries_timeout",
    "connect_timeout", "deadletter_queue", "errback", "failover_strategy", "interval_max",
    "interval_start", "interval_step", "max_retries", "retry_errors", "retry_policy",
    "visibility_timeout",
}  # fmt: skip
ROUND_MAX: Final = 100  # messages that one wake-up of the event loop delivers


class Transport(virtual.Transport):
    """ZSQ as a transport of Kombu: `zsq://host:4153`, or `zsq://host:4153/prefix`."""

    Channel = Channel
    default_port = PORT
    driver_type = "zsq"
    driver_name = "zsq"
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )
    connection_errors = (BrokerUnreachable, Refused, ConnectionError)
    channel_errors = (ChannelError, UsageError, NotFound, LeaseLost)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.link: Any = None
        self.transient: set[str] = set()  # the queues that exist only in memory
        # What these queues, and all queues of fanout exchanges, receive from.
        self.in_memory: dict[str, list[Binding]] = {}
        self._waker: Waker | None = None
        self._wake_lock = threading.RLock()  # a signal handler may wake, too
        self._pid = 0
        self._looked_s = self._levels_s = 0.0

    @property
    def place(self) -> BrokerPlace:
        info, options = self.client, self.client.transport_options
        if info.userid or info.password:
            raise UsageError(
                "E_BAD_ARGUMENT",
                "zsq:// takes no user and no password; give a key file with "
                "broker_transport_options = {'key_file': ...}",
            )
        prefix = (info.virtual_host or "").strip("/")
        host, port = info.hostname or "127.0.0.1", info.port or PORT
        url = options.get("url") or tcp_endpoint(host, port)
        return BrokerPlace(
            url,
            options.get("key_file"),
            options.get("transport"),
            f"{prefix}." if prefix else "",
            float(options.get("linger_ms", 0.0)),
            float(options.get("publish_timeout", PUBLISH_S)),
        )

    @property
    def lease_s(self) -> float:
        return check_lease(float(self.client.transport_options.get("message_timeout", LEASE_S)))

    @property
    def _backoff(self) -> bool | Backoff:
        backoff: bool | Backoff = self.client.transport_options.get("backoff", False)
        return backoff

    @property
    def revokes(self) -> bool:
        """True if `app.control.revoke` also cancels tasks at the broker."""
        return bool(self.client.transport_options.get("revokes", True))

    @property
    def backs_off(self) -> bool:
        """Return True if the consumers of durable queues back off when messages are rejected."""
        return self._backoff is not False

    def _check_options(self) -> None:
        """Refuse values that only a worker would notice, and warn of options without effect."""
        _ = self.lease_s
        backoff_of(self._backoff)
        unknown = sorted(self.client.transport_options.keys() - KNOWN_OPTIONS)
        if unknown:
            log.warning(
                "broker_transport_options %s have no effect with zsq://; it knows %s",
                ", ".join(unknown),
                ", ".join(sorted(OPTIONS)),
            )

    # The connection

    def establish_connection(self) -> Transport:
        if self.link is None:
            self._check_options()
            timeout_s = float(self.client.connect_timeout or 5)
            self.link = open_link(self.place, timeout_s, others=len(self.client.alt or ()) > 1)
            self._waker = Waker()
            self._pid = os.getpid()
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        for queue in list(self.in_memory):
            self.forget_in_memory(queue)
        if self.link is not None:
            link, self.link = self.link, None
            with self._wake_lock:
                waker, self._waker = self._waker, None
                if waker is not None:
                    waker.close()
            if self._pid == os.getpid():
                close_link(link)

    def verify_connection(self, connection: Any) -> bool:
        return self.link is not None and self._pid == os.getpid()

    def wake(self) -> None:
        """Make the event loop, or whoever waits in `drain_events`, look for messages."""
        # Without the lock, a thread could write to a descriptor that was closed meanwhile, and that
        # somebody else has opened.
        with self._wake_lock:
            if self._waker is not None:
                self._waker.wake()

    # Sources

    def open_source(
        self, topic: str, channel: str, ready: int, *, backs_off: bool = False, **settings: Any
    ) -> ConsumerThread:
        consumer = self.link.consumer(topic, channel, ready, self.lease_s, **settings)
        backoff = backoff_of(self._backoff) if backs_off else None
        return ConsumerThread(
            consumer, ready, self.lease_s, self.wake, self.link.work, backoff
        ).start()

    def bind_in_memory(self, queue: str, exchange: str, kind: str, routing_key: str) -> None:
        """Receive what is sent to an exchange from now on, unless that is done already."""
        bound = self.in_memory.setdefault(queue, [])
        if any(
            (binding.exchange, binding.routing_key) == (exchange, routing_key) for binding in bound
        ):
            return
        source = self.open_source(
            exchange_topic(self.link.place.prefix, exchange),
            binding_channel(queue, routing_key),
            READY,
            start="latest",
            tags=tag_of(routing_key) if kind == "direct" else "",
        )
        bound.append(Binding(exchange, kind, routing_key, source))

    def forget_in_memory(self, queue: str) -> None:
        for binding in self.in_memory.pop(queue, []):
            binding.source.close()

    # Waiting for messages

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises `socket.timeout` if none arrives in time."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        waker = self._waker
        assert waker is not None, "Kombu drains only what is connected"
        wake_fd = waker.fileno()
        while not self._deliver_one():
            self.look_after()
            left_s = LOOK_S if deadline_s is None else min(LOOK_S, deadline_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError("timed out")  # the class that `socket.timeout` names
            wait_readable((wake_fd,), left_s * 1000 + 1)
            waker.drain()

    def _deliver_one(self) -> bool:
        return any(channel.deliver() for channel in list(self.channels))

    def look_after(self) -> None:
        """Do what is due from time to time."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for channel in list(self.channels):
            channel.look_after()
        if now_s - self._levels_s >= LEVELS_S:
            self._levels_s = now_s
            for channel in list(self.channels):
                channel.open_new_levels()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        if self._waker is not None:
            loop.add_reader(self._waker.fileno(), self._on_wake, loop)
        loop.call_repeatedly(LOOK_S, self.look_after)
        self.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if self._waker is not None:
            loop.remove_reader(self._waker.fileno())

    def _on_wake(self, loop: Any) -> None:
        if self._waker is None:
            return
        self._waker.drain()
        for _ in range(ROUND_MAX):
            if not self._deliver_one():
                return
        self.wake()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"hostname": "127.0.0.1", "port": self.default_port}

    def driver_version(self) -> str:
        from .... import __version__

        return __version__
