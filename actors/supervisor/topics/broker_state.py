"""State that the supervisor's parts share: options, topics, processes, and pending changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ....transport.errors import ZsqError
from ....transport.units import NS_PER_MS
from ...runtime.process import is_out_of_files
from ...runtime.processes import Processes
from ...settings import options
from ...settings.options import ServeOptions
from .registry import Registry
from .registry_format import TopicRow
from .sleepers import Sleeper, is_unchanged
from .topic_group import GroupSite, TopicGroup


class BrokerState(GroupSite):
    """The state of one run of the broker on one data directory.

    `forget_archive` is called with the uuid of a topic that was deleted.
    """

    def __init__(
        self, serve_options: ServeOptions, registry: Registry, processes: Processes,
        channel_died: Callable[[TopicGroup, str], None], unused: Callable[[TopicGroup], None],
        forget_archive: Callable[[str], None] = lambda uuid: None,
    ) -> None:  # fmt: skip
        super().__init__(serve_options, registry, processes, channel_died, unused)
        self.forget_archive = forget_archive
        self.started = time.time()
        self.stopping = False
        self.epoch = 0  # the epoch of this primary in the log of ticks, 0 until it is known
        self.groups: dict[str, TopicGroup] = {}
        self._look_ns = 0  # when all topics are looked at again
        self._had_mover = False

    def add_group(self, name: str, row: TopicRow, sleeper: Sleeper | None = None) -> TopicGroup:
        """Add a topic and start it, unless it was asleep when the last broker ended."""
        group = self.groups[name] = TopicGroup(name, row, self)
        self.names_changed = True
        if sleeper is not None and is_unchanged(sleeper, row, self.registry.folder(row)):
            group.begin_asleep(sleeper.topic, sleeper.channels)
        else:
            self.guarded(group, group.start)
        return group

    def remove_group(self, name: str) -> None:
        self.groups.pop(name, None)
        self.names_changed = True

    def tick(self, now_ns: int) -> None:
        """Let the topics do what is due: those that were stirred, and once a second all of them.

        When a move has ended, each of them may want the next one.
        """
        stirred, self.stirred = self.stirred, {}
        had_mover, self._had_mover = self._had_mover, self.mover is not None
        if now_ns >= self._look_ns or (had_mover and self.mover is None):
            self._look_ns = now_ns + options.SLEEP_LOOK_MS * NS_PER_MS
            groups = list(self.groups.values())
        else:
            groups = [group for group in stirred if self.groups.get(group.name) is group]
        for group in groups:
            self.guarded(group, group.tick)

    def guarded(self, group: TopicGroup, step: Callable[[], None]) -> None:
        """Run a step of a topic. If the step fails, only this topic fails."""
        try:
            step()
        except (ZsqError, OSError) as error:
            group.fail(str(error), out_of_files=is_out_of_files(error))
