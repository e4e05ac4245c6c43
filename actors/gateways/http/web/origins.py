"""Refusal of requests that a browser makes for pages of other origins.

*Rebinding.* A page can make its own name resolve to 127.0.0.1 and then has the same origin as this
broker. Only the Host header shows this. So from browsers the gateway accepts only names that an
attacker cannot own: addresses, localhost, this machine's name, its broadcast address, and the
operator's names. If every request needs a token, the check is left out: a page without the token
gains nothing, and proxies use any name.

A request comes from a browser if it has a header of `BROWSER_HEADERS`. On plain HTTP, a page that
reads from its own name sends neither Origin nor Sec-Fetch-*, but always Accept-Language, which no
script can remove. Publishers, exporters and health checks send none of them, and may use any name,
such as that of a service. The console's `/api/` checks the name of every client, because it shows
messages. `/api/v1/` does not: it has only POST, and a browser's POST has Origin.

*Forgery.* A page of another origin can send a form to this gateway. Browsers mark such requests by
Sec-Fetch-Site, which no script can set. Older browsers, and browsers on plain HTTP, mark them by
Origin. Requests without either header do not come from browsers but, for example, from curl or NSQ
clients, and are accepted. Marked requests are refused if they change something or use /api/, whose
streams would take places from other clients.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from .responses import ApiError

SAFE: Final = frozenset({"GET", "HEAD"})
OWN_PAGES: Final = frozenset({"same-origin", "none"})  # "none" means the address bar or a bookmark
BROWSER_HEADERS: Final = frozenset(
    {b"accept-language", b"origin", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site"}
)
_SHOWN_CHARS: Final = 100


def host_of(place: str) -> str:
    """Return the host of HOST or HOST:PORT in lower case, or "" if `place` is neither."""
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
    """The names and origins from which requests are accepted.

    `names` are the broker's names besides addresses and localhost. `allowed` are the operator's
    names, with or without a port. Pages from these are accepted too, whatever name a proxy uses.
    """

    def __init__(self, names: Iterable[str] = (), allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(name.strip().lower() for name in allowed)
        self.names = frozenset(
            {host_of(name) for name in (*names, *self._allowed)} | {"localhost"}
        ) - {""}

    def knows(self, host: str) -> bool:
        return host in self.names or is_address(host)

    def refusal(self, scope: Mapping[str, Any], *, any_name: bool) -> ApiError | None:
        """Return the error for a request that must be refused, else None.

        With `any_name`, the Host header is not checked.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        place = headers.get(b"host", b"").decode("latin-1")
        in_api = scope["path"].startswith("/api/") and not scope["path"].startswith("/api/v1/")
        is_checked = not any_name and (in_api or not BROWSER_HEADERS.isdisjoint(headers))
        if is_checked and place and not self.knows(host_of(place)):
            shown = repr((host_of(place) or place)[:_SHOWN_CHARS])
            return ApiError(
                421,
                (
                    f"E_HOST {shown} is not a known name of this broker; to allow it, use "
                    "--http-allowed-host"
                ),
            )
        if scope["method"] in SAFE and not in_api:
            return None
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            is_own = site.decode("latin-1").strip().lower() in OWN_PAGES
        else:
            origin = headers.get(b"origin")
            is_own = origin is None or self._is_own(
                origin.decode("latin-1"), place, scope.get("scheme") == "https"
            )
        return (
            None
            if is_own
            else ApiError(
                403,
                (
                    "E_ORIGIN the request came from a page of another site, which may not do this; "
                    "use the broker's console"
                ),
            )
        )

    def _is_own(self, origin: str, place: str, secure: bool) -> bool:
        """Return True if the origin is this broker's.

        The port must match too, because other servers on this machine are other origins. The scheme
        may differ if a proxy does TLS for this broker.
        """
        try:
            parts = urlsplit(origin.strip().lower())
        except ValueError:
            return False
        if not parts.netloc or (secure and parts.scheme != "https"):
            return False
        return parts.netloc == place.strip().lower() or parts.netloc in self._allowed
