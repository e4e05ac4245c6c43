"""HTTP gateway: its listening socket, its clients of the broker, and its orderly shutdown.

By default it listens on loopback. Permissions come from the access file or an auth server. If there
is neither, every client may do everything.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ....transport.client.asyncio.aio import Reader
from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.nsq.lookup import Node
from ....transport.wire.credentials import Credentials, read_key_file
from ....transport.wire.protocol import ReloadHttpGateway
from ....transport.wire.spread import check_named
from ...runtime.actor import StartFailed
from ...runtime.async_actor import FINISH_S, AsyncActor
from ...runtime.listening import join_place, open_sockets, reason_of, split_place
from ...security.access import AccessError
from ...security.curve import load_rules
from ...security.policy import AccessPolicy
from ...settings.options import NsqOptions, SecurityOptions
from ..acting_clients import ActingAdmin, ActingProducer, FirstUse
from ..cluster_survey import ASK_S, OtherAdmin
from ..shared.auth import Authenticator, load_access
from ..shared.gatherer import Gatherer
from ..shared.node import node_of
from .api.config import Change
from .api.publish import GatheredPublisher
from .app import make_app
from .console.console import Console
from .consume.consume_handlers import ConsumePaths
from .extension import HttpStart
from .messages.messages import MessagePaths
from .web.authority import HttpAuthority
from .web.limits import HttpLimits
from .web.origins import Origins
from .web.places import Limiters
from .web.server import BACKLOG, HttpServer
from .web.tls_door import Certificates

log = logging.getLogger("zsq")

_PYTHON_LEVELS: Final = {
    "debug": "DEBUG",
    "info": "INFO",
    "warn": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
}
_NSQ_LEVELS: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
}
PUBLISH_S: Final = 20.0  # the time limit of the console's publishes, less than that of a request
# The time limit of orders to the broker: more than the supervisor needs, less than that of a
# request.
ADMIN_S: Final = 25.0


def open_listeners(listen: str) -> list[socket.socket]:
    """Return the listening sockets. Raises `StartFailed` if that fails.

    They are opened first, so that a port in use is found before other resources are opened.
    """
    try:
        return open_sockets(listen, BACKLOG)
    except UsageError as error:
        raise StartFailed(f"--http-listen: {error.text}") from None
    except OSError as error:
        raise StartFailed(
            f"cannot listen on http://{listen}: {reason_of(error)}; choose another "
            "--http-listen, or stop the process that uses it"
        ) from None


def first_tcp_port(listen: tuple[str, ...]) -> int:
    """Return the NSQ gateway's first TCP port, or -1 if it has only unix sockets."""
    for place in listen:
        port = place.rpartition(":")[2]
        if not place.startswith("unix:") and port.isdecimal() and int(port):
            return int(port)
    return -1


def make_node(nsq: NsqOptions | None, host: str, port: int) -> Node:
    """Return this node as clients see it. A `tcp_port` of -1 means that NSQ's clients have none."""
    options = nsq or NsqOptions(listen=())
    return node_of(options, host, first_tcp_port(options.listen), port)


def make_origins(node: Node, allowed_hosts: tuple[str, ...]) -> Origins:
    """Return the accepted names and origins.

    They include the machine's name and the first part of that name. Nobody can register this part
    as a domain.
    """
    return Origins(
        (node.hostname, node.hostname.partition(".")[0], node.broadcast_address), allowed_hosts
    )


COUNTED_HEAD_BYTES: Final = 8  # the count and the first size in a body of `/mpub?binary=true`


def http_limits(nsq: NsqOptions, max_msg_size: int) -> HttpLimits:
    """Return the limits from nsqd's options and the broker's largest message."""
    return HttpLimits(
        max_req_timeout_ms=nsq.max_req_timeout_ms,
        max_msg_size=max_msg_size,
        max_body_size=max(HttpLimits().max_body_size, max_msg_size + COUNTED_HEAD_BYTES),
    )


def keys_for_others(security: SecurityOptions) -> Credentials | str:
    """Return the keys with which the console asks the other brokers of the cluster.

    All brokers of a cluster have the same key pair. So it is both the client's pair and the
    server's key. The access file must have it as the key of a user. "" means no keys.
    """
    path = security.curve_key_file
    if not path:
        return ""
    keys = read_key_file(path, ("public", "secret"))
    return Credentials(keys["public"], keys["secret"], keys["public"], path)


class HttpGateway(AsyncActor[HttpStart]):
    async def on_begin(self) -> dict[str, Any]:
        options = self.given.options
        nsq = options.nsq or NsqOptions()
        self._limits = http_limits(nsq, self.given.max_msg_size)
        access = load_access(self.given.security.access_file)
        policy = AccessPolicy(access) if access is not None else None
        limiters = Limiters(self._limits)
        self._certificates = Certificates(options.tls_cert, options.tls_key)
        sockets = open_listeners(options.listen)
        host, port = sockets[0].getsockname()[:2]
        url = os.path.dirname(self.given.supervisor)
        node = make_node(options.nsq, split_place(options.listen)[0], port)
        self._admin = ActingAdmin(url, timeout=ADMIN_S, via="http")
        self._publisher = GatheredPublisher(lambda: Gatherer(url, via="http"))
        auth_servers = nsq.auth_http_addresses
        self._authenticator = (
            Authenticator(auth_servers, nsq.auth_http_method) if auth_servers else None
        )
        self._authority = HttpAuthority(self._authenticator, policy, FirstUse(self._admin.topics))
        doors = (
            # What is missing is shown in the answers. It need not be in the broker's log each time.
            partial(Reader, url=url, timeout=ADMIN_S, on_data_loss="ignore"),
            partial(ActingProducer, url, timeout=PUBLISH_S, via="http"),
        )
        keys = keys_for_others(self.given.security)

        def others(named: str) -> OtherAdmin:
            return OtherAdmin(check_named(named), timeout=ASK_S, key_file=keys, transport="tcp")

        self._console = Console(
            self._admin, *doors, url, limiters, options.console, open_admin=others
        )
        self._messages = MessagePaths(doors[0], self._console.node, limiters)
        self._consume = ConsumePaths(url, limiters)
        level = _NSQ_LEVELS.get(log.getEffectiveLevel(), "info")
        self._app = make_app(
            self._admin,
            self._publisher,
            node,
            options=options,
            limiters=limiters,
            log_level=level,
            changes=self._changes(),
            authority=self._authority,
            origins=make_origins(node, options.allowed_hosts),
            console=self._console,
            messages=self._messages,
            consume=self._consume,
        )
        self._server = HttpServer(self._app, self._limits)
        self._app.metrics.connections.set_function(lambda: len(self._server.connections))
        for sock in sockets:
            await self._server.listen(sock, self._certificates.context)
        self._console.start()
        self.obey_reload(ReloadHttpGateway, self.take_settings)
        scheme = "https" if self._certificates.context else "http"
        shown = f"{scheme}://{join_place(host, port)}"
        return {"places": [shown], "endpoint": shown}

    def take_settings(self, order: ReloadHttpGateway) -> None:
        """Take new certificates and permissions, both or none."""
        try:
            access = load_rules(order.access_file) if order.access_file else None
        except AccessError as error:
            raise UsageError(E_BAD_ARGUMENT, str(error)) from None
        self._certificates.reload(order.cert, order.key)
        self._authority.policy = AccessPolicy(access) if access is not None else None

    def _changes(self) -> Mapping[str, Change]:
        async def level(value: str) -> None:
            log.setLevel(_PYTHON_LEVELS[value])

        changes: dict[str, Change] = {"log_level": level}
        if self.given.options.nsq is not None:
            changes["nsqlookupd_tcp_addresses"] = self._admin.set_lookupds
        return changes

    def statistics(self) -> dict[str, int]:
        return {
            "requests": self._server.state.total_requests,
            "connections": len(self._server.connections),
        }

    async def on_finish(self) -> None:
        # The waiting requests are answered first. Otherwise the server could not end.
        self._publisher.stop_waiting()
        self._messages.close()
        self._consume.close()
        await self._console.close()
        await self._server.close(FINISH_S - 2)
        if self._authenticator is not None:
            await self._authenticator.close()
        await self._publisher.close()
        await self._admin.close()
