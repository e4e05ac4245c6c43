"""State that the supervisor's parts share: options, topics, processes, and pending changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ....transport.errors import ZsqError
from ...runtime.process import is_out_of_files
from ...runtime.processes import Processes
from ...settings.options import ServeOptions
from .registry import Registry
from .registry_format import TopicRow
from .sleepers import Sleeper, is_unchanged
from .topic_group import GroupEvents, TopicGroup


class BrokerState:
    """The state of one run of the broker on one data directory.

    `channel_died` is called when the process of an ephemeral channel has ended. `unused` is called
    when an ephemeral topic has had no channel for a while. `forget_archive` is called with the uuid
    of a topic that was deleted.
    """

    def __init__(
        self, serve_options: ServeOptions, registry: Registry, processes: Processes,
        channel_died: Callable[[TopicGroup, str], None], unused: Callable[[TopicGroup], None],
        forget_archive: Callable[[str], None] = lambda uuid: None,
    ) -> None:  # fmt: skip
        self.options = serve_options
        self.registry = registry
        self.processes = processes
        self.forget_archive = forget_archive
        self.started = time.time()
        self.stopping = False
        self.epoch = 0  # the epoch of this primary in the log of ticks, 0 until it is known
        self.groups: dict[str, TopicGroup] = {}
        self.channels_changed = False
        self.names_changed = False  # the set of names of topics and channels has changed
        self._events = GroupEvents(self._on_channels, self._on_names, channel_died, unused)

    def _on_channels(self) -> None:
        self.channels_changed = True

    def _on_names(self) -> None:
        self.names_changed = True

    def add_group(self, name: str, row: TopicRow, sleeper: Sleeper | None = None) -> TopicGroup:
        """Add a topic and start it, unless it was asleep when the last broker ended."""
        group = self.groups[name] = TopicGroup(
            name, row, self.registry, self.processes, lambda: self.options, self._events
        )
        self.names_changed = True
        if sleeper is not None and is_unchanged(sleeper, row, self.registry.folder(row)):
            group.begin_asleep(sleeper.topic, sleeper.channels)
        else:
            self.guarded(group, group.start)
        return group

    def remove_group(self, name: str) -> None:
        self.groups.pop(name, None)
        self.names_changed = True

    def guarded(self, group: TopicGroup, step: Callable[[], None]) -> None:
        """Run a step of a topic. If the step fails, only this topic fails."""
        try:
            step()
        except (ZsqError, OSError) as error:
            group.fail(str(error), out_of_files=is_out_of_files(error))
