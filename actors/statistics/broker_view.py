"""What statistics read of a broker: a narrow, read-only view, so that they know nothing of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ..runtime.child import RestartIntensity
from ..runtime.process_table import Child
from ..runtime.processes import Processes


class GroupState(Enum):
    """State of a topic's processes as one unit."""

    NEW = "new"
    STORAGE = "starting storage"
    TOPIC = "starting topic"
    UP = "up"
    CLEARING = "clearing"
    STOPPING = "stopping"
    FAILED = "failed"
    ENDED = "ended"


class TopicFacts(Protocol):
    """A topic's row of the registry."""

    @property
    def uuid(self) -> str: ...

    @property
    def sync(self) -> str: ...

    @property
    def closed(self) -> str: ...


class TopicView(Protocol):
    """A topic and its processes. `channels`: None for one whose process does not run."""

    @property
    def name(self) -> str: ...

    @property
    def row(self) -> TopicFacts: ...

    @property
    def state(self) -> GroupState: ...

    @property
    def failure(self) -> str: ...

    @property
    def restarts(self) -> RestartIntensity: ...

    @property
    def storage(self) -> Child | None: ...

    @property
    def topic(self) -> Child | None: ...

    @property
    def channels(self) -> Mapping[str, Child | None]: ...

    def failed_channels(self) -> frozenset[str]: ...


class DiskView(Protocol):
    @property
    def health(self) -> str: ...

    def says_why(self, topic: str) -> bool: ...

    def statistics(self) -> dict[str, Any]: ...


class AlarmsView(Protocol):
    def rows(self, topic: str = "", channel: str = "") -> Sequence[Mapping[str, object]]: ...

    def texts(self, topic: str) -> list[str]: ...

    def recent(self) -> Sequence[Mapping[str, object]]: ...

    def receivers(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker. `singles`: processes that belong to no topic; `settings_trouble`: which gateways do not have the new settings."""

    node: int
    uuid: str
    started: float
    groups: Mapping[str, TopicView]
    processes: Processes
    singles: Mapping[int, Child]
    disk: DiskView
    alarms: AlarmsView
    settings_trouble: Callable[[], str]
