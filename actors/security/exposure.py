"""Checks of exposure: addresses for other machines need authentication or `--insecure`.

A gateway counts as protected in these cases:

* over ZeroMQ with an access file and a key pair (CURVE);
* over NSQ with an access file, an auth server, or certificates that clients must show;
* over HTTP with an access file. An auth server is not enough there, because it does not restrict
  reading.

A host name counts as local if all its addresses are. A name without an address is refused, because
a listener may still understand it: libzmq takes `eth0` for the interface of that name. For the same
reason the name of an interface never counts as local, whatever its addresses are.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ..settings.options import ServeOptions, push_listen

REMEDY = (
    "Set permissions with --access FILE (docs/security.md), listen on 127.0.0.1, or give "
    "--insecure to listen without authentication"
)


def is_local(place: str) -> bool:
    """Return True if only this machine reaches HOST:PORT or unix:PATH.

    Raises `UsageError` (E_BAD_ARGUMENT) if the host has no address.
    """
    if place.startswith("unix:"):
        return True
    host = place.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host in ("", "*"):
        return False
    try:
        addresses = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        text = (
            f"{place}: host {host[:100]!r} has no address ({reason}); give an address of this "
            "machine, such as 127.0.0.1 or 0.0.0.0"
        )
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{text}, or a host name that has one. The name of a network interface is not accepted",
        ) from None
    if host in {name for _, name in socket.if_nameindex()}:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def exposed(options: ServeOptions, local: Callable[[str], bool] = is_local) -> list[str]:
    """Return a sentence for each unprotected address: "--listen 0.0.0.0:4153 (ZeroMQ) needs
    ...".
    """
    found = []
    access, curve = bool(options.security.access_file), bool(options.security.curve_key_file)
    if options.gateway and not (access and curve):
        for option, place in (
            ("--listen", options.gateway),
            ("--listen-push", push_listen(options)),
        ):
            if not local(place):
                found.append(f"{option} {place} (ZeroMQ) needs --access and --curve-key")
    nsq, http = options.nsq, options.http
    if nsq is not None and not (access or nsq.auth_http_addresses or nsq.tls.client_auth):
        text = "needs --access, --nsq-auth-http-address or --nsq-tls-client-auth-policy"
        found += [f"--nsq-listen {place} {text}" for place in nsq.listen if not local(place)]
    if http is not None and not access and not local(http.listen):
        found.append(f"--http-listen {http.listen} needs --access")
    return found


def _known_local(place: str) -> bool:
    """Return `is_local`, or False for a host without an address."""
    try:
        return is_local(place)
    except UsageError:
        return False


def in_clear(options: ServeOptions, local: Callable[[str], bool] = _known_local) -> list[str]:
    """Return a warning for each address whose traffic others on the network could read."""
    found = []
    nsq, http = options.nsq, options.http
    if nsq is not None and not (nsq.tls.required or nsq.tls.client_auth):
        found += [
            f"NSQ clients at {place} may connect without TLS (see --nsq-tls-required)"
            for place in nsq.listen
            if not local(place)
        ]
    if http is not None and not http.tls_cert and not local(http.listen):
        found.append(f"HTTP at {http.listen} does not use TLS (see --http-tls-cert)")
    return found


def _places(options: ServeOptions) -> list[str]:
    """Return all addresses on which the gateways listen."""
    zeromq = [options.gateway, push_listen(options)] if options.gateway else []
    return [
        *zeromq,
        *(options.nsq.listen if options.nsq is not None else ()),
        *([options.http.listen] if options.http is not None else []),
    ]


def check(options: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if an address is unprotected or options conflict."""
    if options.security.access_file and options.nsq is not None and options.nsq.auth_http_addresses:
        raise UsageError(
            E_BAD_ARGUMENT,
            "--access and --nsq-auth-http-address exclude each other; give only one of them",
        )
    if options.security.insecure:
        return
    for place in _places(options):
        # This raises if the host has no address. It is checked even with authentication.
        is_local(place)
    found = exposed(options)
    if found:
        text = "every client that can reach this machine would have all permissions"
        raise UsageError(E_BAD_ARGUMENT, f"{text}: {'; '.join(found)}. {REMEDY}")
