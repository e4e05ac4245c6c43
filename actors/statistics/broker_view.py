"""Broker view: the read-only view of a broker that statistics get instead of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from ...transport.reports import AlarmEvent, AlarmReceiver, DiskStats, RaisedAlarm
    from ..runtime.child import RestartIntensity
    from ..runtime.process_table import Child
    from ..runtime.processes import Processes
    from ..runtime.pulses import ChannelPulse, StoragePulse, TopicPulse


class GroupState(Enum):
    """State of a topic's processes as one unit."""

    NEW = "new"
    STARTING = "starting"
    UP = "up"
    DOZING = "dozing"  # its processes stop, because the topic is not used
    ASLEEP = "asleep"  # no process runs; the last pulses are kept
    CLEARING = "clearing"
    STOPPING = "stopping"
    FAILED = "failed"
    ENDED = "ended"


# In these states the last pulses say what the topic holds.
REPORTED: Final = (GroupState.UP, GroupState.DOZING, GroupState.ASLEEP)


class TopicFacts(Protocol):
    """A topic's row of the registry."""

    @property
    def uuid(self) -> str: ...

    @property
    def sync(self) -> str: ...

    @property
    def closed(self) -> str: ...

    @property
    def dead_letters_of(self) -> Mapping[str, str]:
        """The channel that owns the topic, if it is a default dead-letter topic."""
        ...


class TopicView(Protocol):
    """A topic and its processes. `channels` has None for a channel whose process does not run."""

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
    def unsteady(self) -> tuple[str, ...]:
        """A text for each process that was restarted often lately."""
        ...

    @property
    def topic(self) -> Child | None: ...

    @property
    def channels(self) -> Mapping[str, Child | None]: ...

    def failed_channels(self) -> frozenset[str]: ...

    def reporter(self, channel: str = "") -> Child | None:
        """Return the process whose last pulse counts, for a channel or for the topic.

        Until a new process has reported, this is the one before it.
        """
        ...


_NOT_REPORTED: Final[Mapping[str, object]] = {}


def topic_pulse(group: TopicView) -> TopicPulse:
    """Return the last known pulse of the topic. It is the same object until the next pulse."""
    reporter = group.reporter()
    return cast("TopicPulse", reporter.stats if reporter is not None else _NOT_REPORTED)


def storage_pulse(group: TopicView) -> StoragePulse:
    """Return the storage's part of the topic's last pulse."""
    pulse: Mapping[str, object] = topic_pulse(group).get("storage", _NOT_REPORTED)
    return cast("StoragePulse", pulse)


def is_known(group: TopicView, channel: str) -> bool:
    """Return True if a channel's process has sent a pulse, and the pulse is still valid.

    The pulse is valid while the process runs, and while its topic sleeps.
    """
    child = group.channels.get(channel)
    asleep = group.state in (GroupState.DOZING, GroupState.ASLEEP)
    return child is not None and (child.state == "up" or asleep) and "next_offset" in child.stats


def channel_pulse(group: TopicView, channel: str) -> ChannelPulse:
    """Return the last known pulse of a channel."""
    reporter = group.reporter(channel)
    return cast("ChannelPulse", reporter.stats if reporter is not None else _NOT_REPORTED)


class DiskView(Protocol):
    @property
    def health(self) -> str: ...

    def says_why(self, topic: str) -> bool: ...

    def statistics(self) -> DiskStats: ...


class AlarmsView:
    """The alarms that statistics show. Without the extension there are none."""

    def rows(self, topic: str = "", channel: str = "") -> Sequence[RaisedAlarm]:
        return []

    def texts(self, topic: str) -> list[str]:
        return []

    def recent(self) -> Sequence[AlarmEvent]:
        return []

    def receivers(self) -> Sequence[AlarmReceiver]:
        return []


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker, as statistics read it.

    `singles` are the processes that belong to no topic. `settings_trouble` returns which
    gateways do not have the new settings.
    """

    node: int
    uuid: str
    started: float
    groups: Mapping[str, TopicView]
    processes: Processes
    singles: Mapping[int, Child]
    disk: DiskView
    alarms: AlarmsView
    settings_trouble: Callable[[], str]
