"""Extension point of the supervisor: what it asks and tells an extension.

`SupervisorExtension` does nothing. A room of `actors/` fills the point with a file `extension.py`,
which names a subclass in `SUPERVISOR` as MODULE:CLASS. Several rooms may do so. So the supervisor
knows no alarms and no bucket.

| group | methods |
|---|---|
| Time and settings | `tick`, `reloaded` |
| Processes | `pulse`, `hears`, `forget_topic` |
| Requests and reports | `handlers`, `trouble`, `conditions`, `alarms` |
| The end of the broker | `hand_over`, `stopping`, `may_end` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..runtime.extensions import filled
from ..runtime.port import Mail
from ..runtime.process_table import Child
from ..settings.options import ServeOptions
from ..statistics.broker_view import AlarmsView
from .commands.requests import Handlers, Requests
from .disk_watch import DiskWatch
from .singles import Singles
from .topics.broker_state import BrokerState


class Condition(NamedTuple):
    """Something that is in order or not.

    `trouble` returns what is wrong now, or "", and `well` says that it is in order again.
    """

    trouble: Callable[[], str]
    well: str


@dataclass(frozen=True, slots=True)
class SupervisorParts:
    """The parts of the supervisor that an extension uses.

    `conditions` returns those of the supervisor and of all extensions, by name. `stop` stops the
    broker with an exit code, for a reason.
    """

    state: BrokerState
    requests: Requests
    singles: Singles
    disk: DiskWatch
    conditions: Callable[[], Mapping[str, Condition]]
    stop: Callable[[int, str], None]


class SupervisorExtension:
    """The answers without an extension."""

    def __init__(self, parts: SupervisorParts) -> None:
        self._parts = parts

    # Time and settings

    def tick(self, now_ns: int) -> None:
        """Act on time. It is called in each turn of the loop, when its messages are answered."""

    def reloaded(self, options: ServeOptions) -> None:
        """Take new settings, which the state has already."""

    # Processes

    def pulse(self, child: Child) -> None:
        """Note a new pulse of a service."""

    def last_pulse(self, key: int, stats: Mapping[str, object]) -> None:
        """Note the pulse of any process, which may have ended."""

    def hears(self, mail: Mail) -> bool:
        """Return True if this message was for the extension."""
        return False

    def forget_topic(self, uuid: str) -> None:
        """Note that a topic was deleted."""

    # Requests and reports

    def handlers(self) -> Handlers:
        """Return a handler for each request that the extension carries out, by its type. A handler
        raises `ZsqError` if the request is refused.
        """
        return {}

    def trouble(self) -> str:
        """Return what is wrong with the extension, beside its conditions, or ""."""
        return ""

    def conditions(self) -> Mapping[str, Condition]:
        """Return the conditions that belong to the broker's health, by name."""
        return {}

    def alarms(self) -> AlarmsView | None:
        """Return the alarms that statistics show, if the extension has them."""
        return None

    # The end of the broker

    def hand_over(self) -> bool:
        """Stop soon, so that another broker takes over. Return False if this is another extension's
        work. Raises `Refused` if no other broker can.
        """
        return False

    def stopping(self) -> None:
        """Note that the broker begins to stop."""

    def may_end(self) -> bool:
        """Return True if the services that stop last may stop. All other processes have ended."""
        return True


def supervisor_extensions(parts: SupervisorParts) -> list[SupervisorExtension]:
    """Return the extensions that fill the point."""
    return [extension(parts) for extension in filled("SUPERVISOR")]
