"""Broker view: the read-only view of a broker that statistics get instead of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, cast

from ..runtime.child import Failure, RestartIntensity

if TYPE_CHECKING:
    from ...transport.reports import AlarmEvent, AlarmReceiver, DiskStats, RaisedAlarm
    from ...transport.settings import NewChannelSettings
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


@dataclass(slots=True, eq=False)
class ChannelProcess:
    """A channel of a topic, as the supervisor knows it."""

    child: Child | None = None
    """None if the process was not started yet, or ended."""
    predecessor: Child | None = None
    """The process before it, with its last pulse."""
    has_failed: bool = False
    """True if the process failed too often, and stays stopped."""
    new_settings: NewChannelSettings | None = None
    """The settings of a channel that is being created."""


class TopicProcesses:
    """A topic and its processes, as far as statistics read them. `row` is its row of the registry.

    `supervisor/topics/topic_group.py` starts and stops the processes.
    """

    def __init__(self, name: str, row: TopicFacts) -> None:
        self.name = name
        self.row = row
        self.state = GroupState.NEW
        self.cause: Failure | None = None
        """The reason of the last failure."""
        self.restarts = RestartIntensity()
        # An ephemeral channel whose process died is made again, and its restarts still count.
        self.channel_restarts: dict[str, RestartIntensity] = {}
        self.starts_again = 0
        """How often its process was started again, also if it was not the cause of the end."""
        self.unsteady: tuple[str, ...] = ()
        """A text for each process that was restarted often lately."""
        self.topic: Child | None = None
        self.predecessor: Child | None = None
        self.channels: dict[str, ChannelProcess] = {}

    @property
    def is_dormant(self) -> bool:
        """True if no process of the topic runs, or if all are stopping because it is unused."""
        return self.state in (GroupState.DOZING, GroupState.ASLEEP)

    @property
    def failure(self) -> str:
        """The reason why the topic is or was not up, or ""."""
        return str(self.cause or "")

    def restart_count(self, channel: str = "") -> int:
        """Return how often the process of a channel, or the topic's for "", was started again."""
        if not channel:
            return self.starts_again
        past = self.channel_restarts.get(channel)
        return past.count if past is not None else 0

    @property
    def restart_sum(self) -> int:
        """The number of times that processes of the topic and its channels started again."""
        return self.starts_again + sum(past.count for past in self.channel_restarts.values())

    def child(self, channel: str) -> Child | None:
        """Return the process of a channel, or the topic's for ""."""
        if not channel:
            return self.topic
        return self.channels[channel].child if channel in self.channels else None

    def processes(self) -> list[Child]:
        """Return the processes of the topic and its channels. Some may have ended."""
        children = (self.topic, *(channel.child for channel in self.channels.values()))
        return [child for child in children if child is not None]

    def failed_channels(self) -> list[str]:
        """Return the channels that failed too often, in the order of their names."""
        return sorted(name for name, channel in self.channels.items() if channel.has_failed)

    def reporter(self, channel: str = "") -> Child | None:
        """Return the process whose last pulse counts, for a channel or for the topic.

        Until a new process has reported, this is the one before it.
        """
        child = self.child(channel)
        if child is not None and ("next_offset" if channel else "storage") in child.stats:
            return child
        if not channel:
            return self.predecessor or child
        return self.channels[channel].predecessor or child if channel in self.channels else None


_NOT_REPORTED: Final[Mapping[str, object]] = {}


def topic_pulse(group: TopicProcesses) -> TopicPulse:
    """Return the last known pulse of the topic. It is the same object until the next pulse."""
    reporter = group.reporter()
    return cast("TopicPulse", reporter.stats if reporter is not None else _NOT_REPORTED)


def storage_pulse(group: TopicProcesses) -> StoragePulse:
    """Return the storage's part of the topic's last pulse."""
    pulse: Mapping[str, object] = topic_pulse(group).get("storage", _NOT_REPORTED)
    return cast("StoragePulse", pulse)


def is_known(group: TopicProcesses, channel: str) -> bool:
    """Return True if a channel's process has sent a pulse, and the pulse is still valid.

    The pulse is valid while the process runs, and while its topic sleeps.
    """
    child = group.child(channel)
    if child is None or "next_offset" not in child.stats:
        return False
    return child.state == "up" or group.is_dormant


def channel_pulse(group: TopicProcesses, channel: str) -> ChannelPulse:
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
    groups: Mapping[str, TopicProcesses]
    processes: Processes
    singles: Mapping[int, Child]
    disk: DiskView
    alarms: AlarmsView
    settings_trouble: Callable[[], str]
