"""The extension points that the HTTP gateway fills: its process, as a door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ....transport.block.block_format import MESSAGE_BYTES_MAX
from ....transport.wire import protocol as p
from ...runtime.service import Door, IsLocal, Site
from ...settings.options import HttpOptions, NsqOptions, ServeOptions
from ...settings.starts import ActorStart, GatewayStart


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStart(GatewayStart):
    options: HttpOptions
    message_bytes_max: int = MESSAGE_BYTES_MAX


def _described(options: ServeOptions) -> HttpOptions | None:
    """Return the gateway's options with the NSQ gateway that it describes to clients."""
    http = options.of(HttpOptions)
    return None if http is None else replace(http, nsq=options.of(NsqOptions))


class HttpDoor(Door):
    kind = "http_gateway"
    title = "http gateway"
    actor = f"{__package__}.gateway:HttpGateway"
    order = 3

    def start(self, site: Site) -> ActorStart | None:
        http = _described(site.options)
        if http is None:
            return None
        return HttpStart(
            supervisor=site.supervisor,
            security=site.options.security,
            options=http,
            message_bytes_max=site.options.message_bytes_max,
        )

    def is_required(self, start: ActorStart) -> bool:
        assert isinstance(start, HttpStart)
        return start.options.given

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        http, other = now.of(HttpOptions), new.of(HttpOptions)
        if http is None or other is None:
            return now, ()
        if bool(http.tls_cert) != bool(other.tls_cert):
            return now, ["--http-tls-cert (to turn TLS on or off)"]
        http = replace(http, tls_cert=other.tls_cert, tls_key=other.tls_key)
        return now.having(http), ()

    def renewed(self, start: ActorStart, options: ServeOptions) -> ActorStart:
        assert isinstance(start, HttpStart)
        http = _described(options) or start.options
        return replace(start, security=options.security, options=http)

    def reload(self, request: int, options: ServeOptions) -> p.Reload:
        http = options.of(HttpOptions) or HttpOptions()
        common = request, options.log_level, options.security.access_file
        return p.ReloadHttpGateway(*common, http.tls_cert, http.tls_key)

    def listens(self, options: ServeOptions) -> Sequence[str]:
        http = options.of(HttpOptions)
        return [http.listen] if http is not None else ()

    def exposed(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        # An auth server is not enough, because it does not restrict reading.
        if options.security.access_file:
            return ()
        return [
            f"--http-listen {place} needs --access"
            for place in self.listens(options)
            if not is_local(place)
        ]

    def in_clear(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        http = options.of(HttpOptions)
        if http is None or http.tls_cert or is_local(http.listen):
            return ()
        return [f"HTTP at {http.listen} does not use TLS (see --http-tls-cert)"]


SERVICES: Final = (HttpDoor(),)
