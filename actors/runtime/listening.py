"""Listening: the address of a door, HOST:PORT, as numeric addresses and as sockets.

All gateways use it, so that each of them takes the same addresses: numeric ones of IPv4 and IPv6
(in brackets), names with any number of addresses, and `*`, `0.0.0.0` or `[::]` for all interfaces.
`[::]` and `*` also accept IPv4. libzmq resolves no names when it listens, so this module does.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import zmq

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.resolver import GetAddresses, is_numeric
from ...transport.wire.address import tcp_endpoint

ALL_HOSTS: Final = frozenset({"", "*", "0.0.0.0", "::"})


def split_place(place: str) -> tuple[str, int]:
    """Split HOST:PORT, [HOST]:PORT, or :PORT. The host has no brackets.

    Raises `UsageError` (E_BAD_ARGUMENT) otherwise.
    """
    host, colon, port = place.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port) < 65536
    if not colon or not is_port or (":" in host and not (host[0] == "[" and host[-1] == "]")):
        text = f"{place!r} is not an address to listen at; write HOST:PORT or [ADDRESS]:PORT"
        raise UsageError(E_BAD_ARGUMENT, text)
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_place(host: str, port: int) -> str:
    """Return HOST:PORT, with an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric_hosts(host: str, get_addresses: GetAddresses = socket.getaddrinfo) -> tuple[str, ...]:
    """Return the numeric addresses to listen at, at least one. Raises `OSError`."""
    if host in ("", "*"):
        return ("::",) if socket.has_dualstack_ipv6() else ("0.0.0.0",)
    if is_numeric(host):
        return (host,)
    rows = get_addresses(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return tuple(dict.fromkeys(str(row[4][0]) for row in rows))


def open_sockets(place: str, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address of a place. Raises `OSError` or `UsageError`."""
    host, port = split_place(place)
    sockets: list[socket.socket] = []
    try:
        for address in numeric_hosts(host):
            [row, *_] = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            sock = socket.socket(*row[:3])
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if row[0] == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
            sock.bind(row[4])
            sock.listen(backlog)
            sock.setblocking(False)
            port = sock.getsockname()[1]  # if it was 0, all get the same
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def bind(sock: zmq.Socket[Any], place: str) -> None:
    """Bind a ZeroMQ socket to each address of a place.

    Raises `OSError`, `zmq.ZMQError` or `UsageError`.
    """
    host, port = split_place(place)
    for address in numeric_hosts(host):
        sock.setsockopt(zmq.IPV6, int(":" in address))
        sock.bind(tcp_endpoint(address, port))
        port = int(sock.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def reason_of(error: OSError | zmq.ZMQError) -> str:
    """Return the operating system's words for why an address cannot be used."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
