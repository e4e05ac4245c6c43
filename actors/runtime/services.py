"""The table of services: the core's rows, and those that extensions add.

The core's own are the scan loop, its workers, and the ZeroMQ gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from ..settings.options import ServeOptions, push_listen
from ..settings.starts import ActorStart, ZeroMqStart
from .extensions import filled
from .service import Door, IsLocal, Service, Site


class ScanLoopService(Service):
    kind = "scan_loop"
    title = "scan loop"
    actor = "zsq.actors.scan.scan_loop:ScanLoop"
    is_preloaded = True
    keeps_endpoint = True

    def start(self, site: Site) -> ActorStart:
        return ActorStart(front=site.scan)


class ScanWorkerService(Service):
    """The workers of the scan: the broker starts with one, and the scan loop asks for more."""

    kind = "scan_worker"
    title = "scan worker"
    actor = "zsq.actors.scan.scan_worker:ScanWorker"
    is_preloaded = True


class ZeroMqDoor(Door):
    kind = "gateway"
    title = "gateway zeromq"
    actor = "zsq.actors.gateways.zeromq:ZeroMqGateway"
    is_preloaded = True

    def start(self, site: Site) -> ActorStart | None:
        options = site.options
        if not options.gateway:
            return None
        return ZeroMqStart(
            supervisor=site.supervisor,
            security=options.security,
            listen=options.gateway,
            push=push_listen(options),
        )

    def name_for_topics(self, key: int) -> str:
        return f"gateway-{key}"

    def places(self, data: Mapping[str, Any]) -> Sequence[str]:
        return [f"{data['endpoint']} (push port {data['push_port']})"]

    def listens(self, options: ServeOptions) -> Sequence[str]:
        return [options.gateway, push_listen(options)] if options.gateway else []

    def exposed(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        security = options.security
        if security.access_file and security.curve_key_file:
            return ()
        return [
            f"{option} {place} (ZeroMQ) needs --access and --curve-key"
            for option, place in zip(
                ("--listen", "--listen-push"), self.listens(options), strict=False
            )
            if not is_local(place)
        ]


CORE: Final = (ScanLoopService(), ScanWorkerService(), ZeroMqDoor())


@cache
def services() -> Mapping[str, Service]:
    """Return all services by their kind, in the order of their start."""
    rows = [*CORE, *(row for rows in filled("SERVICES") for row in rows)]
    table = {row.kind: row for row in sorted(rows, key=lambda row: row.order)}
    assert len(table) == len(rows), "two services have the same kind"
    return table


def doors() -> Sequence[Door]:
    """Return the gateways."""
    return [row for row in services().values() if isinstance(row, Door)]


def is_door(kind: str) -> bool:
    """Return True if this kind of process is a gateway. Topics and channels are no services."""
    return isinstance(services().get(kind), Door)


TOPICS: Final = {
    "topic": "zsq.actors.topic.topic:TopicActor",
    "channel": "zsq.actors.channel.channel:ChannelActor",
}


def actor_classes() -> Mapping[str, str]:
    """Return the name of the class of each kind of process. Only the process imports it."""
    return TOPICS | {kind: service.actor for kind, service in services().items()}


def preloaded() -> list[str]:
    """Return the names of what the forkserver imports, in this order.

    A broker needs its services first, because it is ready without a topic.
    """
    rows = [service.actor for service in services().values() if service.is_preloaded]
    return [*rows, "zsq.actors.supervisor.preload", *TOPICS.values()]
