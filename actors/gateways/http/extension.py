"""The extension points that the HTTP gateway fills: its process, as a door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ....transport.wire import protocol as p
from ...runtime.service import IsLocal, OptionsDoor
from ...settings.options import HttpOptions, NsqOptions, ServeOptions
from ...settings.starts import DoorStart

HttpStart = DoorStart[HttpOptions]


class HttpDoor(OptionsDoor[HttpOptions]):
    options_class = HttpOptions
    kind = "http_gateway"
    title = "http gateway"
    actor = f"{__package__}.gateway:HttpGateway"
    order = 3

    def options(self, options: ServeOptions) -> HttpOptions | None:
        # It describes the NSQ gateway to clients.
        http = options.of(HttpOptions)
        return None if http is None else replace(http, nsq=options.of(NsqOptions))

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        http, other = now.of(HttpOptions), new.of(HttpOptions)
        if http is None or other is None:
            return now, ()
        if bool(http.tls_cert) != bool(other.tls_cert):
            return now, ["--http-tls-cert (to turn TLS on or off)"]
        http = replace(http, tls_cert=other.tls_cert, tls_key=other.tls_key)
        return now.having(http), ()

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
