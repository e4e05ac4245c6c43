"""Checks of exposure: addresses for other machines need authentication or `--insecure`.

Each gateway says when it counts as protected (`Door.exposed`): over ZeroMQ with an access file and
a key pair (CURVE).

A host name counts as local if all its addresses are. A name without an address is refused, because
a listener may still understand it: libzmq takes `eth0` for the interface of that name. For the same
reason the name of an interface never counts as local, whatever its addresses are.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ..runtime.services import doors
from ..settings.options import ServeOptions

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
    return [text for door in doors() for text in door.exposed(options, local)]


def _known_local(place: str) -> bool:
    """Return `is_local`, or False for a host without an address."""
    try:
        return is_local(place)
    except UsageError:
        return False


def in_clear(options: ServeOptions, local: Callable[[str], bool] = _known_local) -> list[str]:
    """Return a warning for each address whose traffic others on the network could read."""
    return [text for door in doors() for text in door.in_clear(options, local)]


def check(options: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if an address is unprotected or options conflict."""
    for door in doors():
        door.check(options)
    if options.security.insecure:
        return
    for place in (place for door in doors() for place in door.listens(options)):
        # This raises if the host has no address. It is checked even with authentication.
        is_local(place)
    found = exposed(options)
    if found:
        text = "every client that can reach this machine would have all permissions"
        raise UsageError(E_BAD_ARGUMENT, f"{text}: {'; '.join(found)}. {REMEDY}")
