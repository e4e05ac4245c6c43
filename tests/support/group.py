"""A fake supervisor for tests of a topic group (a topic's process and those of its channels). A
test says when processes start and end, and when the storage answers an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from support.fake_storage import STORAGE

from zsq.actors.runtime.child import Failure, Phase
from zsq.actors.runtime.process_table import Child
from zsq.actors.settings.starts import ActorStart, ChannelStart, TopicStart, channel_of
from zsq.actors.statistics.broker_view import (
    BrokerView,
    ChannelProcess,
    GroupState,
    TopicProcesses,
)
from zsq.actors.supervisor.commands import deletion
from zsq.actors.supervisor.commands.requests import Requests
from zsq.actors.supervisor.topics.registry_format import NO_PARTS, TopicRow
from zsq.actors.supervisor.topics.topic_group import TopicGroup
from zsq.transport.errors import ZsqError
from zsq.transport.settings import NewChannelSettings
from zsq.transport.wire import protocol as p

C = "c#ephemeral"
TOPIC = TopicStart(front="t", storage=STORAGE)


def a_channel(name: str) -> ChannelStart:
    return ChannelStart(channel=name, closed=False, topic="", storage="", scan="")


def made_with(child: Child) -> NewChannelSettings:
    """Return the settings with which the channel of this process is made."""
    assert isinstance(child.spec.start, ChannelStart)
    return child.spec.start.made_with


def processes_of(
    topic: Any, channels: Mapping[str, Any], state: GroupState = GroupState.UP, failure: str = ""
) -> TopicProcesses:
    """Return a topic with these processes, as statistics see it."""
    group = TopicProcesses("t", TopicRow(1, "0" * 32, "always", 0))
    group.topic, group.state = topic, state
    group.cause = Failure(Phase.RUN, "", failure)
    group.channels = {name: ChannelProcess(child) for name, child in channels.items()}
    return group


class Broker:
    """A fake that the group uses as its `Processes`, and that the handlers of commands use as the
    state of the broker.
    """

    def __init__(self, topic: str = "t") -> None:
        self.keys = iter(range(100, 10_000))
        self.started: list[str] = []
        self.time_for = 1_000_000
        self.stopped: list[Child] = []
        self.orders: list[tuple[p.Order[Any], Any]] = []
        self.ends: list[Any] = []
        self.removed: list[str] = []
        self.killed: list[Child] = []
        self.children: dict[int, Child] = {}
        self.kill = self.kill_alone = self.killed.append
        self.table = SimpleNamespace(forkserver_pid=1, hosts=set())
        self.processes = self
        self.registry = SimpleNamespace(
            uuid="0" * 32,
            topics={},
            parted=NO_PARTS,
            ended={},
            set_state=lambda *_: None,
            note_created=lambda name: None,
            remove=self.removed.append,
            folder=lambda row: "/nowhere",
            memory=None,
            in_doubt=False,
            node=3,
        )
        self.options = SimpleNamespace(
            security=SimpleNamespace(access_file=""),
            retention={},
            chunk_bytes=1 << 20,
            max_msg_size=1 << 20,
            stage_timeout_s=0,
            bucket="",
            ships=False,
            cluster="",
            bucket_cache_bytes=0,
            log_level="info",
            sleep_after_s=0.0,
            own_process="always",
            busy_at=1.0,
        )
        self.asleep = self.asleep_shared = 0
        self.room_for = 1_000  # so many more processes may run
        self.mover: TopicGroup | None = None
        self.stirred: dict[TopicGroup, None] = {}
        self.scan_endpoint = ""
        self.requests: Any = SimpleNamespace(
            broker=self,
            sealed=[],
            later=[],
            orders=SimpleNamespace(
                send=lambda child, make, answer: self.orders.append((make(1), answer))
            ),
            after_end=lambda child, then: self.ends.append(then),
            count_refused=lambda: None,
            settle=lambda request, error, data=None: None,
            answering=lambda request: Requests.answering(self.requests, request),
        )
        self.group = TopicGroup(topic, TopicRow(1, "0" * 32, "always", 0), cast("Any", self))
        self.groups = {topic: self.group}
        self.group.state = GroupState.UP
        self.group.topic = self.child("topic", TOPIC)
        self.answers: list[ZsqError | None] = []

    def channel_died(self, group: TopicGroup, channel: str) -> None:
        deletion.remove_channel(self.requests, group, channel, lambda error: None, lost=True)

    def unused(self, group: TopicGroup) -> None:
        deletion.end_if_over(self.requests, group)

    def remove_group(self, name: str) -> None:
        self.groups.pop(name, None)

    def view(self, **parts: Any) -> BrokerView:
        """Return the view of the broker from which statistics are made."""
        alarms = SimpleNamespace(
            rows=lambda *_: [], recent=list, receivers=list, texts=lambda topic: []
        )
        disk = SimpleNamespace(health="", statistics=dict, says_why=lambda topic: False)
        given: dict[str, Any] = {"disk": disk, "alarms": alarms, "singles": {}} | parts
        return BrokerView(
            3, "u", 100.0, self.groups, cast("Any", self), settings_trouble=lambda: "", **given
        )

    def new_key(self) -> int:
        return next(self.keys)

    def may_start(self) -> bool:
        """Return True for the first `time_for` calls. The supervisor limits the starts in a turn in
        the same way.
        """
        self.time_for -= 1
        return self.time_for >= 0

    def has_room(self, count: int) -> bool:
        return count <= self.room_for

    def endpoint(self, number: int) -> str:
        return f"ipc://{number}"

    def child(self, kind: str, start: ActorStart) -> Child:
        spec = SimpleNamespace(
            key=self.new_key(), kind=kind, title=kind, start=start, stop_timeout_s=1
        )
        found = Child(cast("Any", spec), None, state="up", envelope=(b"%d" % spec.key,))
        found.owner = getattr(self, "group", None)
        self.children[spec.key] = found
        return found

    def start(self, spec: Any, owner: Any = None, host: Any = None) -> Child:
        found = self.child(spec.kind, spec.start)
        found.state = "starting"
        self.started.append(channel_of(spec.start) or spec.kind)
        return found

    def stop_child(self, child: Child) -> None:
        self.stopped.append(child)

    def want(self, channel: str = C, **settings: Any) -> None:
        self.group.want(channel, self.answers.append, settings)
        self.group.tick()

    def up(self, channel: str = C) -> Child:
        child = self.group.child(channel)
        assert child is not None
        child.state, child.data = "up", {"settings": {}}
        self.group.born(child)
        self.group.tick()
        return child

    def over(self, child: Child, envelope: tuple[bytes, ...] | None = None) -> None:
        deletion.over(self.requests, envelope or child.envelope, p.Over(child.spec.key))

    def end(self) -> None:
        """Report that the channel's process has ended, and answer that its row was dropped."""
        self.ends.pop(0)(True)
        (order, answer), *self.orders = [
            one for one in self.orders if not isinstance(one[0], p.LeaveChannel)
        ]
        assert order == p.DropChannel(1, C)
        answer(p.Done(1, {}), None)
        self.group.tick()
