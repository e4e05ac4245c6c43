"""NSQ gateway: serves clients of NSQ's TCP protocol V2 as ordinary producers and consumers.

It confirms a publish when the messages are durable, and each delivery is under a lease of its
channel. So no confirmed message exists only in the gateway. If the gateway dies, its clients
reconnect and their messages are delivered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ....transport.block.block import MESSAGE_BYTES_MAX
from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.nsq.identify import ClientIdentity
from ....transport.nsq.layers import DeflateLayer, Layer, SnappyLayer, TlsLayer, snappy_is_here
from ....transport.nsq.limits import NsqLimits
from ....transport.nsq.lookup import Node
from ....transport.nsq.tls import server_context
from ....transport.wire.protocol import Done, LookAtNames, ReloadNsqGateway, SetLookupds
from ...runtime.actor import StartFailed
from ...runtime.async_actor import AsyncActor
from ...runtime.listening import open_sockets, reason_of, split_place
from ...runtime.pulses import GatewayDetails
from ...security.access import AccessError
from ...security.curve import load_rules
from ...security.policy import AccessPolicy
from ...settings.options import NsqOptions, TlsOptions
from ..acting_clients import ActingAdmin, FirstUse
from ..shared.auth import AccessAuthenticator, Authenticator, load_access
from ..shared.gatherer import Gatherer
from ..shared.node import node_of
from .connection import Connection
from .extension import NsqStart, trunk_name
from .intake import Intake
from .local_parts import LocalParts
from .permits import Permits
from .registration import Discovery, Registrar
from .subscription import Subscription
from .trunks import Trunks

log = logging.getLogger("zsq")

BACKLOG: Final = 1_024
OWNERS_MAX: Final = 1_000
MPUB_HEAD_BYTES: Final = 8  # the count and the first size in the body of an MPUB
ASK_S: Final = 10.0
DRAIN_S: Final = 2.0  # when the gateway stops, publishes have this time to be answered


def limits_of(
    options: NsqOptions,
    *,
    snappy: bool,
    access: AccessAuthenticator | None = None,
    max_msg_size: int = MESSAGE_BYTES_MAX,
) -> NsqLimits:
    """Return the limits that are reported to clients.

    If the access file admits anonymous clients, AUTH is offered but not required, because clients
    without a secret give up if it is required.
    """
    offered = access is not None and access.takes_anonymous
    return NsqLimits(
        max_msg_size=max_msg_size,
        max_body_size=max(NsqLimits().max_body_size, max_msg_size + MPUB_HEAD_BYTES),
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=options.msg_timeout_ms,
        max_msg_timeout_ms=options.max_msg_timeout_ms,
        max_req_timeout_ms=options.max_req_timeout_ms,
        max_heartbeat_interval_ms=options.max_heartbeat_interval_ms,
        max_output_buffer_size=options.max_output_buffer_size,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ms,
        max_channel_consumers=options.max_channel_consumers,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=snappy,
        tls_v1=bool(options.tls.cert),
        tls_required=bool(options.tls.required or options.tls.client_auth),
        auth_required=bool(options.auth_http_addresses) or (access is not None and not offered),
        auth_offered=offered,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


class NsqGateway(AsyncActor[NsqStart]):
    def _limits_now(self) -> NsqLimits:
        size = self.given.max_msg_size
        return limits_of(self.options, snappy=self._snappy, access=self._access, max_msg_size=size)

    async def on_begin(self) -> dict[str, Any]:
        options = self.given.options
        self.options = options
        access = load_access(self.given.security.access_file)
        self.url = os.path.dirname(self.given.supervisor)
        self._asking = ActingAdmin(self.url, timeout=ASK_S, via="nsq")
        self._access = AccessAuthenticator(AccessPolicy(access)) if access is not None else None
        self._snappy = options.snappy and snappy_is_here()
        self.limits = self._limits_now()
        self.connections: dict[Connection, None] = {}
        self.paused: dict[Connection, None] = {}
        self.intake = Intake(self.loop, self.connections)
        self.accepted = self.refused = 0
        self.trunks = Trunks(trunk_name(self.key))
        self.gatherer = Gatherer(self.url, self._on_answered, via="nsq")
        self._tls = context_of(options.tls)
        self.permits = Permits(
            self._access or Authenticator(options.auth_http_addresses, options.auth_http_method),
            self.intake.complaints,
            FirstUse(self._asking.topics) if self._access is not None else None,
        )
        self.discovery: Discovery | None = None
        self.local_parts = LocalParts(self._asking, self._subscriptions)
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self.obey(LookAtNames, self.look_at_names)
        self.obey(SetLookupds, self.set_lookupds)
        self.obey_reload(ReloadNsqGateway, self.take_settings)
        places = [await self._listen_at(place) for place in options.listen]
        self._register_with(options.lookupd_tcp_addresses)
        return {"places": places}

    def _node(self) -> Node:
        """Return this node for nsqlookupd. Its host is that of the first TCP address."""
        places = [place for place in self.options.listen if not place.startswith("unix:")]
        host, port = split_place(places[0]) if places else ("", 0)
        return node_of(self.options, host, port, self.options.http_port)

    async def _listen_at(self, place: str) -> str:
        try:
            if place.startswith("unix:"):
                path = Path(place.removeprefix("unix:"))
                _remove_stale(path)
                servers = [
                    await self.loop.create_unix_server(
                        lambda: Connection(self), str(path), backlog=BACKLOG
                    )
                ]
                self._paths.append(path)
            else:
                servers = [
                    await self.loop.create_server(
                        lambda: Connection(self), sock=sock, backlog=BACKLOG
                    )
                    for sock in open_sockets(place, BACKLOG)
                ]
        except OSError as error:
            raise StartFailed(
                f"cannot listen for NSQ clients on {place}: {reason_of(error)}; choose another "
                "--nsq-listen, or stop the process that uses it"
            ) from None
        self._servers += servers
        return f"nsq://{place}"

    # For connections

    def admit(self, connection: Connection) -> bool:
        if len(self.connections) >= self.options.connections_max and not self.intake.make_room():
            self.refused += 1
            return False
        self.accepted += 1
        self.connections[connection] = None
        connection.strange = True
        self.intake.seen(connection)
        self.stir()
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.intake.forget(connection)

    def _on_answered(self) -> None:
        if self.paused and not self.gatherer.full:
            for connection in list(self.paused):
                connection.look()

    def _subscriptions(self) -> list[Subscription]:
        subscriptions = (connection.subscription for connection in self.connections)
        return [subscription for subscription in subscriptions if subscription is not None]

    def refuses(self, topic: str, channel: str) -> str:
        """Return the reason why no more consumers may subscribe to the channel, or ""."""
        most = self.limits.max_channel_consumers
        if most:
            consumers = sum(
                (subscription.topic, subscription.channel) == (topic, channel)
                for subscription in self._subscriptions()
            )
            if consumers >= most:
                return f"consumers for {topic}:{channel} exceeds limit of {most}"
        return ""

    def holds(self, but: Subscription, message_id: bytes) -> bool:
        """Return True if another client of the same channel holds the message.

        Only the oldest OWNERS_MAX connections are checked.
        """
        place = but.topic, but.channel
        others = (connection.subscription for connection in islice(self.connections, OWNERS_MAX))
        return any(
            other is not None
            and other is not but
            and (other.topic, other.channel) == place
            and message_id in other.messages
            for other in others
        )

    def new_layer(self, name: str, identity: ClientIdentity) -> Layer:
        if name == "tls":
            assert self._tls is not None
            return TlsLayer(self._tls)
        return SnappyLayer() if name == "snappy" else DeflateLayer(identity.deflate_level)

    def publish(
        self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]
    ) -> None:
        if self.discovery is None or self.discovery.knows(topic):
            self.gatherer.publish(topic, bodies, defer_ms, answer)
        else:
            self.discovery.prepare(
                topic, lambda: self.gatherer.publish(topic, bodies, defer_ms, answer)
            )

    def look_at_names(self, message: LookAtNames) -> Done:
        if self.discovery is not None:
            self.discovery.look()
        self.local_parts.look()
        return Done(message.request, {})

    # New settings

    def set_lookupds(self, message: SetLookupds) -> Done:
        node = self._node()
        if message.addresses and not (node.tcp_port > 0 and node.http_port > 0):
            raise UsageError(
                E_BAD_ARGUMENT, "nsqlookupd accepts only nodes with a TCP port and an HTTP port"
            )
        self._register_with(message.addresses)
        return Done(message.request, {})

    def _register_with(self, addresses: Sequence[str]) -> None:
        """Register with these nsqlookupds, and with no others. Raises `UsageError`."""
        if self.discovery is not None:
            self.discovery.registrar.set_addresses(addresses)
        elif addresses:
            admin = ActingAdmin(self.url, timeout=ASK_S, via="nsqlookupd")
            self.discovery = Discovery(admin, Registrar(addresses, self._node()))

    def take_settings(self, order: ReloadNsqGateway) -> None:
        """Take new settings for new connections, all of them or none.

        Consumers whose permission has ended are closed. Raises `UsageError` if the settings are
        invalid.
        """
        try:
            access = load_rules(order.access_file) if self._access is not None else None
        except AccessError as error:
            raise UsageError(E_BAD_ARGUMENT, str(error)) from None
        tls = TlsOptions(
            order.cert,
            order.key,
            order.root_ca,
            order.client_auth,
            order.required,
            order.min_version,
        )
        self._tls = context_of(tls)
        self.options = replace(self.options, tls=tls)
        if self._access is not None and access is not None:
            self._access.policy = AccessPolicy(access)
            self._close_forbidden()
        self.limits = self._limits_now()

    def _close_forbidden(self) -> None:
        for connection in list(self.connections):
            place = connection.subscription
            if place is not None and not self.permits.still_permitted(
                connection.who, "subscribe", place.topic, place.channel
            ):
                text = (
                    "%s: the connection from %s is closed: it is no longer permitted to "
                    "subscribe to %s/%s"
                )
                log.info(text, self.title, connection.remote, place.topic, place.channel)
                connection.close()

    # The end

    async def on_finish(self) -> None:
        self.gatherer.stop_waiting()
        if self.discovery is not None:
            await self.discovery.close()
        for server in self._servers:
            server.close()
        await self.gatherer.finish(DRAIN_S)
        deadline = time.monotonic() + 1.0
        while self.connections and time.monotonic() < deadline:
            for connection in list(self.connections):  # also one that was accepted just now
                connection.close()
            await asyncio.sleep(0.01)
        self.trunks.close()
        await self.local_parts.close()
        await self._asking.close()
        await self.permits.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def statistics(self) -> Mapping[str, object]:
        return {
            "connections": len(self.connections),
            "connections_accepted": self.accepted,
            "connections_refused": self.refused,
            **self.intake.statistics(),
            **self.gatherer.statistics(),
            "auth": self.permits.statistics(),
            "lookupds": self.discovery.statistics() if self.discovery is not None else [],
        }

    def details(self) -> GatewayDetails:
        """Return the rows of clients. Clients that have not published or subscribed have no row."""
        return {
            "clients": [
                connection.statistics()
                for connection in self.connections
                if connection.session.consumption.topic or connection.session.published
            ]
        }


def context_of(tls: TlsOptions) -> ssl.SSLContext | None:
    return server_context(
        cert=tls.cert,
        key=tls.key,
        root_ca=tls.root_ca,
        client_auth=tls.client_auth,
        min_version=tls.min_version,
    )


def _remove_stale(path: Path) -> None:
    """Remove the socket of a broker that was killed.

    Raises `OSError` if a process listens there or the file is not a socket.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(errno.EEXIST, "the path exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "in use")
    path.unlink()
