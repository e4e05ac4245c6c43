"""Services: the processes of the broker that belong to no topic, as rows that extensions add.

`Service` has the answers of a plain process: it starts with the broker, is started again when it
ends, and ends the broker when it fails too often. `Door` has those of a gateway, which listens to
clients. A row of the table is an object of a subclass. Its class of the actor is a name, so neither
the supervisor nor another process imports it.

An extension adds its rows with the constant `SERVICES` of its `extension.py`. `services.py` has the
table. `supervisor/singles.py` starts and watches the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from ...transport.records import Record, record
from ...transport.wire import protocol as p
from ..settings.options import ServeOptions
from ..settings.starts import ActorStart, DoorStart, GatewayStart

IsLocal = Callable[[str], bool]


@record(kw_only=True)
class Site(Record):
    """The broker, as far as start messages of services need to know it.

    `supervisor` is the supervisor's endpoint, and `scan` and `archive` are those of the scan loop
    and of the archive actor. `archive_identity` is the archive that the broker used last, or "".
    """

    options: ServeOptions
    node: int
    uuid: str
    run_dir: str
    scan: str
    archive: str
    archive_identity: str = ""

    @property
    def supervisor(self) -> str:
        return f"ipc://{self.run_dir}/supervisor"


class Service:
    """A process of the broker that belongs to no topic.

    `kind` is its name in statistics, `title` that in the log, and `actor` MODULE:CLASS. Services
    start in the order of `order`.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    actor: ClassVar[str]
    order: ClassVar[int] = 0
    # False for a process that is the only one to use its libraries. They are then loaded by it
    # alone, so a broker that does not start it does not pay for them.
    is_preloaded: ClassVar[bool] = False
    # False if the process starts only when something needs it.
    starts_with_broker: ClassVar[bool] = True
    # False if the broker goes on without the process when it has failed too often.
    ends_broker: ClassVar[bool] = True
    # True if the process needs something outside the broker: an address that another program may
    # use already, or a bucket. If it reports that it cannot have it, it is not started again.
    needs_outside: ClassVar[bool] = False
    # True if the successor listens at the same endpoint.
    keeps_endpoint: ClassVar[bool] = False
    # True if the process stops after all others.
    stops_last: ClassVar[bool] = False
    # True if the process registers topics with nsqlookupds, which a request may change.
    takes_lookupds: ClassVar[bool] = False

    def start(self, site: Site) -> ActorStart | None:
        """Return the start message, or None if the options do not ask for this process."""
        return ActorStart()

    def successor(self, start: ActorStart, site: Site) -> ActorStart:
        """Return the start message of the process that follows one that ended."""
        return start

    def is_required(self, start: ActorStart) -> bool:
        """Return False if the broker starts without this process when it cannot start."""
        return True

    def name_for_topics(self, key: int) -> str:
        """Return the name by which topics and channels know the process, or "".

        They hear of its end by this name.
        """
        return ""

    def places(self, data: Mapping[str, Any]) -> Sequence[str]:
        """Return the addresses that a process listens at, from what it said when it was up."""
        return ()

    # New settings

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        """Return `now` with the changes from `new` that a reload may make, and the names of the
        options that need a restart.
        """
        return now, ()

    def renewed(self, start: ActorStart, options: ServeOptions) -> ActorStart:
        """Return the start message of the next process, after a reload."""
        return start

    def reload(self, request: int, options: ServeOptions) -> p.Reload:
        """Return the order that gives the process the new settings."""
        return p.Reload(request, options.log_level)

    # Orders

    def on_names(self, start: ActorStart, options: ServeOptions) -> type[p.LookAtNames] | None:
        """Return the order to send when topics or channels come or go, or None."""
        return None

    def with_lookupds(self, options: ServeOptions, addresses: tuple[str, ...]) -> ServeOptions:
        """Return the options with these nsqlookupds, if the process registers with them."""
        return options


class Door(Service):
    """A gateway: a process that listens to clients from outside.

    New rules of access must be in force at all doors: one that does not take them is killed.
    """

    needs_outside = True

    def renewed(self, start: ActorStart, options: ServeOptions) -> ActorStart:
        assert isinstance(start, GatewayStart)
        return replace(start, security=options.security)

    def reload(self, request: int, options: ServeOptions) -> p.Reload:
        return p.ReloadGateway(request, options.log_level, options.security.access_file)

    def places(self, data: Mapping[str, Any]) -> Sequence[str]:
        places: Sequence[str] = data["places"]
        return places

    # Exposure (`security/exposure.py`)

    def listens(self, options: ServeOptions) -> Sequence[str]:
        """Return all addresses at which the options let the gateway listen."""
        return ()

    def check(self, options: ServeOptions) -> None:
        """Raise `UsageError` if options exclude each other."""

    def exposed(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        """Return a sentence for each address that others reach without authentication."""
        return ()

    def in_clear(self, options: ServeOptions, is_local: IsLocal) -> Sequence[str]:
        """Return a warning for each address whose traffic others on the network could read."""
        return ()


_OptionsT = TypeVar("_OptionsT")


class OptionsDoor(Door, Generic[_OptionsT]):
    """A gateway that is started if `ServeOptions.extensions` has an object of `options_class`.

    `given` of the options is True if the user set the address at which the gateway listens.
    """

    options_class: type[_OptionsT]

    def options(self, options: ServeOptions) -> _OptionsT | None:
        """Return the options with which the gateway starts."""
        return options.of(self.options_class)

    def start(self, site: Site) -> ActorStart | None:
        options = self.options(site.options)
        if options is None:
            return None
        return DoorStart(
            supervisor=site.supervisor,
            security=site.options.security,
            options=options,
            max_msg_size=site.options.max_msg_size,
        )

    def is_required(self, start: ActorStart) -> bool:
        assert isinstance(start, DoorStart)
        return bool(start.options.given)

    def renewed(self, start: ActorStart, options: ServeOptions) -> ActorStart:
        assert isinstance(start, DoorStart)
        new_options = self.options(options) or start.options
        return replace(start, security=options.security, options=new_options)
