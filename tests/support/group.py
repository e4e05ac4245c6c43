"""A supervisor's place, for tests of a topic's group: processes start and end when told; storage's orders are answered when told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from zsq.actors import deletion
from zsq.actors.group_states import GroupState
from zsq.actors.management import Management
from zsq.actors.process_table import Child
from zsq.actors.registry import TopicRow
from zsq.actors.topic_group import TopicGroup
from zsq.transport import protocol as p
from zsq.transport.errors import ZsqError

C = "c#ephemeral"


class Broker:
    def __init__(self, topic: str = "t") -> None:
        self.keys = iter(range(100, 10_000))
        self.started: list[str] = []
        self.time_for = 1_000_000
        self.stopped: list[Child] = []
        self.orders: list[tuple[str, dict[str, Any], Any]] = []
        self.ends: list[Any] = []
        self.removed: list[str] = []
        self.killed: list[Child] = []
        self.table = SimpleNamespace(children={}, kill=self.killed.append)
        self.registry = SimpleNamespace(
            ended={}, set_state=lambda *_: None, remove=self.removed.append, folder=lambda row: "/nowhere", memory=None, in_doubt=False
        )
        self.options = SimpleNamespace(retention={}, chunk_bytes=1 << 20, stage_timeout_s=0, log_level="info")
        self.scan_endpoint = ""
        self.channels_changed = False
        self.management: Any = SimpleNamespace(
            supervisor=self,
            sealed=[],
            order=lambda child, action, settings, answer: self.orders.append((action, settings, answer)),
            after_end=lambda child, then: self.ends.append(then),
        )
        for name in ("remove_channel", "end_if_over"):
            setattr(self.management, name, getattr(Management, name).__get__(self.management))
        self.group = TopicGroup(cast("Any", self), topic, TopicRow(1, "0" * 32, "always", 0))
        self.groups = {topic: self.group}
        self.group.state = GroupState.UP
        self.group.storage = self.child("storage", {"front": "s"})
        self.group.topic = self.child("topic", {"front": "t"})
        self.answers: list[ZsqError | None] = []

    def new_key(self) -> int:
        return next(self.keys)

    def may_start(self) -> bool:
        """As long as a turn has time for."""
        self.time_for -= 1
        return self.time_for >= 0

    def endpoint(self, number: int) -> str:
        return f"ipc://{number}"

    def child(self, kind: str, settings: dict[str, Any]) -> Child:
        spec = SimpleNamespace(key=self.new_key(), kind=kind, title=kind, settings=settings, stop_timeout_s=1)
        found = Child(cast("Any", spec), 1, cast("Any", None), None, state="up", envelope=(b"%d" % spec.key,))
        found.owner = getattr(self, "group", None)
        self.table.children[spec.key] = found
        return found

    def start(self, spec: Any, owner: Any = None) -> Child:
        found = self.child(spec.kind, spec.settings)
        found.state = "starting"
        self.started.append(spec.settings.get("channel", spec.kind))
        return found

    def stop_child(self, child: Child) -> None:
        self.stopped.append(child)

    def want(self, channel: str = C, **settings: Any) -> None:
        self.group.want(channel, self.answers.append, settings)
        self.group.tick()

    def up(self, channel: str = C) -> Child:
        child = self.group.channels[channel]
        assert child is not None
        child.state, child.data = "up", {"settings": {}}
        self.group.born(child)
        self.group.tick()
        return child

    def over(self, child: Child, envelope: tuple[bytes, ...] | None = None) -> None:
        deletion.over(self.management, envelope or child.envelope, p.Over(child.spec.key))

    def end(self) -> None:
        """The process is gone, and so is its row."""
        self.ends.pop(0)(True)
        (action, settings, answer), *self.orders = [order for order in self.orders if order[0] != "leave"]
        assert (action, settings) == ("drop", {"channel": C})
        answer({}, None)
        self.group.tick()
