"""The node of this broker, as NSQ's clients and nsqlookupd see it."""

from __future__ import annotations

import socket

from ....transport.nsq.limits import NsqLimits
from ....transport.nsq.lookup import Node
from ...runtime.listening import ALL_HOSTS
from ...settings.options import NsqOptions


def node_of(options: NsqOptions, host: str, tcp_port: int, http_port: int) -> Node:
    """Return the node with the configured addresses, or else the given ones.

    `host` is where the gateway listens, because the machine's name may resolve to another address.
    If it listens on all addresses, the machine's name is used, as in nsqd.
    """
    name = socket.gethostname()
    return Node(
        broadcast_address=options.broadcast_address or (name if host in ALL_HOSTS else host),
        hostname=name,
        tcp_port=options.broadcast_tcp_port or tcp_port,
        http_port=options.broadcast_http_port or http_port,
        version=NsqLimits().version,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
