"""The extension points that the NSQ gateway fills: its process, as a door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Final

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.wire import protocol as p
from ...runtime.service import IsLocal, OptionsDoor
from ...settings.options import NsqOptions, ServeOptions
from ...settings.starts import ActorStart, DoorStart

NsqStart = DoorStart[NsqOptions]


def trunk_name(key: int) -> str:
    """Return the name by which topics and channels know this gateway's trunks."""
    return f"nsq-gateway-{key}"


class NsqDoor(OptionsDoor[NsqOptions]):
    options_class = NsqOptions
    kind = "nsq_gateway"
    title = "nsq gateway"
    actor = f"{__package__}.gateway:NsqGateway"
    order = 2
    takes_lookupds = True

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        nsq, other = now.of(NsqOptions), new.of(NsqOptions)
        if nsq is None or other is None:
            return now, ()
        if bool(nsq.tls.cert) != bool(other.tls.cert):
            return now, ["--nsq-tls-cert (to turn TLS on or off)"]
        tls = replace(other.tls, required=nsq.tls.required)
        return now.having(replace(nsq, tls=tls)), ()

    def reload(self, request: int, options: ServeOptions) -> p.Reload:
        tls = (options.of(NsqOptions) or NsqOptions()).tls
        common = request, options.log_level, options.security.access_file
        return p.ReloadNsqGateway(*common, *astuple(tls))

    def on_names(self, start: ActorStart, options: ServeOptions) -> type[p.LookAtNames] | None:
        # The gateway registers names with nsqlookupds, and looks for parts of topics.
        assert isinstance(start, DoorStart)
        is_asked = start.options.lookupd_tcp_addresses or options.cluster
        return p.LookAtNames if is_asked else None

    def name_for_topics(self, key: int) -> str:
        return trunk_name(key)

    def with_lookupds(self, options: ServeOptions, addresses: tuple[str, ...]) -> ServeOptions:
        nsq = options.of(NsqOptions)
        assert nsq is not None
        return options.having(replace(nsq, lookupd_tcp_addresses=addresses))

    def listens(self, options: ServeOptions) -> Sequence[str]:
        nsq = options.of(NsqOptions)
        return nsq.listen if nsq is not None else ()

    def check(self, options: ServeOptions) -> None:
        nsq = options.of(NsqOptions)
        if options.security.access_file and nsq is not None and nsq.auth_http_addresses:
            raise UsageError(
                E_BAD_ARGUMENT,
                "--access and --nsq-auth-http-address exclude each other; give only one of them",
            )

    def exposed(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        nsq = options.of(NsqOptions)
        if nsq is None or options.security.access_file:
            return ()
        if nsq.auth_http_addresses or nsq.tls.client_auth:
            return ()
        text = "needs --access, --nsq-auth-http-address or --nsq-tls-client-auth-policy"
        return [f"--nsq-listen {place} {text}" for place in nsq.listen if not is_local(place)]

    def in_clear(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        nsq = options.of(NsqOptions)
        if nsq is None or nsq.tls.required or nsq.tls.client_auth:
            return ()
        return [
            f"NSQ clients at {place} may connect without TLS (see --nsq-tls-required)"
            for place in nsq.listen
            if not is_local(place)
        ]


SERVICES: Final = (NsqDoor(),)
