"""The NSQ gateway: clients of NSQ's TCP protocol V2, each a producer or a consumer like any other behind it.

It holds no message that is not also in a topic: what it was given is answered once it is durable, and what it handed out is under a lease
of its channel. If it dies, its clients connect again, and their messages go to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.nsq.identify import Identity
from ...transport.nsq.layers import DeflateLayer, Layer, SnappyLayer, TlsLayer, snappy_is_here
from ...transport.nsq.limits import NsqLimits
from ...transport.nsq.lookup import Node
from ...transport.nsq.tls import server_context
from ..access import Access, AccessError
from ..actor import StartFailed
from ..async_actor import AsyncActor
from ..security_options import SecurityOptions
from .access_auth import AccessAuthenticator, load_access
from .auth import Authenticator
from .connection import Connection
from .discovery import Discovery
from .options import NsqOptions, TlsOptions
from .permits import Permits
from .publishing import Gatherer
from .registering import Registrar

BACKLOG: Final = 1_024
SUBSCRIPTIONS_MAX: Final = 4_000  # each takes a socket of ZeroMQ's and two of its monitor, of which a process has 16,384
DRAIN_S: Final = 2.0  # for what was published to be answered as the gateway ends


def limits_of(options: NsqOptions, *, snappy: bool, access: AccessAuthenticator | None = None) -> NsqLimits:
    """Who may come without AUTH is not told that it is required: clients without a secret give up then."""
    offered = access is not None and access.takes_anonymous
    return NsqLimits(
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


class NsqGateway(AsyncActor):
    """Settings: options (NsqOptions), supervisor (endpoint), security (SecurityOptions)."""

    async def on_begin(self) -> dict[str, Any]:
        options: NsqOptions = self.settings["options"]
        self.options = options
        access = load_access((self.settings.get("security") or SecurityOptions()).access_file)
        self._access = AccessAuthenticator(access) if access is not None else None
        self._snappy = options.snappy and snappy_is_here()
        self.limits = limits_of(options, snappy=self._snappy, access=self._access)
        self.url = os.path.dirname(self.settings["supervisor"])
        self.connections: dict[Connection, None] = {}
        self.paused: dict[Connection, None] = {}  # those that do not read for now
        self.accepted = self.turned_away = 0
        self.publishing = Gatherer(self.url, self._on_answered, via="nsq")
        self._tls = context_of(options.tls)
        self.permits = Permits(self._access or Authenticator(options.auth_http_addresses, options.auth_http_method))
        self.discovery: Discovery | None = None
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        places = [await self._listen_at(place) for place in options.listen]
        if options.lookupd_tcp_addresses:
            self.discovery = Discovery(self.url, Registrar(options.lookupd_tcp_addresses, self._node()))
        return {"places": places}

    def _node(self) -> Node:
        """As others shall find it: what was given, else where it listens, else the machine's name, as with nsqd."""
        options = self.options
        host, port = next(
            ((host, int(port)) for host, _, port in (one.rpartition(":") for one in options.listen) if host != "unix"), ("", 0)
        )
        everywhere = host in ("", "0.0.0.0", "[::]", "*")
        name = socket.gethostname()
        return Node(
            broadcast_address=options.broadcast_address or (name if everywhere else host),
            tcp_port=options.broadcast_tcp_port or port,
            http_port=options.broadcast_http_port or options.http_port,
            hostname=name,
            version=self.limits.version,
            topology_region=options.topology_region,
            topology_zone=options.topology_zone,
        )

    async def _listen_at(self, place: str) -> str:
        try:
            if place.startswith("unix:"):
                path = Path(place.removeprefix("unix:"))
                _remove_stale(path)
                server = await self.loop.create_unix_server(lambda: Connection(self), str(path), backlog=BACKLOG)
                self._paths.append(path)
            else:
                host, _, port = place.rpartition(":")
                server = await self.loop.create_server(lambda: Connection(self), host.strip("[]"), int(port), backlog=BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartFailed(
                f"cannot listen for NSQ clients on {place}: {reason}; is an nsqd running? choose another --nsq-listen"
            ) from None
        self._servers.append(server)
        return f"nsq://{place}"

    # For connections

    def admit(self, connection: Connection) -> bool:
        if self.stopping or len(self.connections) >= self.options.connections_max:
            self.turned_away += 1
            return False
        self.accepted += 1
        self.connections[connection] = None
        self.stir()
        return True

    def forget(self, connection: Connection) -> None:
        self.permits.forget(connection)
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)

    def _on_answered(self) -> None:
        if self.paused and not self.publishing.full:
            for connection in list(self.paused):
                connection.look()

    def refuses(self, topic: str, channel: str) -> str:
        """Why nobody more may consume there; "" if one may."""
        if sum(one.subscription is not None for one in self.connections) >= SUBSCRIPTIONS_MAX:
            return f"this gateway has {SUBSCRIPTIONS_MAX} consumers already"
        most = self.limits.max_channel_consumers
        if most:
            there = sum(
                one.subscription is not None and (one.subscription.topic, one.subscription.channel) == (topic, channel)
                for one in self.connections
            )
            if there >= most:
                return f"channel consumers for {topic}:{channel} exceeds limit of {most}"
        return ""

    def new_layer(self, name: str, identity: Identity) -> Layer:
        if name == "tls":
            assert self._tls is not None
            return TlsLayer(self._tls)
        return SnappyLayer() if name == "snappy" else DeflateLayer(identity.deflate_level)

    def publish(self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]) -> None:
        if self.discovery is None or self.discovery.knows(topic):
            self.publishing.publish(topic, bodies, defer_ms, answer)
        else:
            self.discovery.prepare(topic, lambda: self.publishing.publish(topic, bodies, defer_ms, answer))

    # New settings

    def on_reload(self, told: dict[str, Any]) -> None:
        """For new connections; but who may not consume any more does not go on doing so. All of it is taken, or nothing."""
        try:
            access = Access.load(told["access_file"]) if self._access is not None else None
        except AccessError as error:
            raise UsageError(E_BAD_ARGUMENT, str(error)) from None
        tls = TlsOptions(**told.get("tls", {}))
        self._tls = context_of(tls)
        self.options = replace(self.options, tls=tls)
        if self._access is not None and access is not None:
            self._access.access = access
        self.limits = limits_of(self.options, snappy=self._snappy, access=self._access)
        if self._access is not None:
            self._close_forbidden()

    def _close_forbidden(self) -> None:
        for one in list(self.connections):
            place = one.subscription
            if place is not None and not self.permits.still_permitted(one, "subscribe", place.topic, place.channel):
                one.fail(f"it may not subscribe to {place.topic}/{place.channel} any more")

    # The end

    async def on_finish(self) -> None:
        if self.discovery is not None:
            await self.discovery.close()
        for server in self._servers:
            server.close()
        await self.publishing.finish(DRAIN_S)
        for connection in list(self.connections):
            connection.close()
        deadline = time.monotonic() + 1.0
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self.permits.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def statistics(self) -> dict[str, Any]:
        return {
            "connections": len(self.connections),
            "accepted": self.accepted,
            "turned_away": self.turned_away,
            **self.publishing.statistics(),
            "auth": self.permits.statistics(),
            "lookupds": self.discovery.statistics() if self.discovery is not None else [],
        }

    def details(self) -> dict[str, Any]:
        return {"clients": [connection.statistics() for connection in list(self.connections)]}


def context_of(tls: TlsOptions) -> ssl.SSLContext | None:
    return server_context(cert=tls.cert, key=tls.key, root_ca=tls.root_ca, client_auth=tls.client_auth, min_version=tls.min_version)


def _remove_stale(path: Path) -> None:
    """A socket that a broker left which was killed: nobody listens there. `OSError` if somebody does, or it is no socket."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(errno.EEXIST, "it is there, and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "in use")
    path.unlink()
