"""Requests that a browser makes for somebody else's page: refused, whoever is logged in behind that browser. Pure.

*Rebinding.* A page may have its own name lead to 127.0.0.1, and is then of the same origin as we are: nothing but the Host header tells. So
only names count that nobody else can own: addresses, localhost, this machine's name, what it is announced as, and what the operator names.
Where every request needs a token the check is left out: a page that does not have it gains nothing, and proxies call us by any name.

*Forgery.* A page of another origin may send a form here without asking. Browsers say so: by Sec-Fetch-Site, which no script can set, and
older ones, or on plain HTTP, by Origin. Requests without both are from no browser, such as curl and NSQ's clients, and go on as ever. What
changes something is refused then, and all of /api/: its streams would take places from others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from .responses import ApiError

SAFE: Final = frozenset({"GET", "HEAD"})
OWN_PAGES: Final = frozenset({"same-origin", "none"})  # none: a person, by the address bar or a bookmark
_SHOWN_CHARS: Final = 100


def host_of(place: str) -> str:
    """HOST or HOST:PORT without the port, in lower case; "" for what is none."""
    place = place.strip().lower()
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        return host if bracket and (not rest or rest.startswith(":")) else ""
    host, _, port = place.partition(":")
    return host.removesuffix(".") if not port or port.isdecimal() else ""


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Origins:
    """`names`: under which this broker may be called, besides addresses and localhost. `told`: those that the operator names, perhaps with
    a port: pages of theirs are ours too, by whatever name a proxy calls us."""

    def __init__(self, names: Iterable[str] = (), told: Iterable[str] = ()) -> None:
        self._told = frozenset(name.strip().lower() for name in told)
        self.names = frozenset({host_of(name) for name in (*names, *self._told)} | {"localhost"}) - {""}

    def knows(self, host: str) -> bool:
        return host in self.names or is_address(host)

    def refusal(self, scope: Mapping[str, Any], *, any_name: bool) -> ApiError | None:
        """`any_name`: the name by which we are called does not count."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        place = headers.get(b"host", b"").decode("latin-1")
        if not any_name and place and not self.knows(host_of(place)):
            shown = repr((host_of(place) or place)[:_SHOWN_CHARS])
            return ApiError(421, f"E_HOST this broker is not called {shown}; if it is, --http-allowed-host says so")
        if scope["method"] in SAFE and not scope["path"].startswith("/api/"):
            return None
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            own = site.decode("latin-1").strip().lower() in OWN_PAGES
        else:
            origin = headers.get(b"origin")
            own = origin is None or self._is_own(origin.decode("latin-1"), place, scope.get("scheme") == "https")
        return None if own else ApiError(403, "E_ORIGIN a page of another origin may not do that")

    def _is_own(self, origin: str, place: str, secure: bool) -> bool:
        """Port and all: what else this machine serves is another origin. Behind a proxy that speaks TLS for us the scheme differs."""
        try:
            parts = urlsplit(origin.strip().lower())
        except ValueError:
            return False
        if not parts.netloc or (secure and parts.scheme != "https"):
            return False
        return parts.netloc == place.strip().lower() or parts.netloc in self._told
