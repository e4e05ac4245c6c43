"""A topic's processes as one unit: its storage and topic share one fate, its channels stand on them. States: group_states.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..storage.retention import Retention, resolve
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSING, E_DISK_FULL, E_INTERNAL, E_LIMIT, E_TOPIC_FAILED, Refused, UsageError, ZsqError
from ..transport.names import is_ephemeral
from . import options
from .channel_settings import check_same
from .child import FATE, KINDS, ChildSpec, RestartIntensity
from .closing import to_consumers, to_publishers
from .ephemeral_topic import retention_in_memory
from .group_states import TRANSITIONS, GroupState
from .process_table import Child
from .registry import TopicRow
from .start_queue import StartQueue

if TYPE_CHECKING:
    from .supervisor import Supervisor

log = logging.getLogger("zsq")


FINAL: Final = ("cannot start: ForeignDirectory", "cannot start: Damaged")  # a person must look; trying again does not help

# By storage: a channel is not made.
REFUSED: Final = tuple(f"cannot start: {code} " for code in (E_LIMIT, E_INTERNAL, E_DISK_FULL, E_BAD_ARGUMENT))

Then = Callable[[ZsqError | None], None]


class TopicGroup:
    """Carries out the table above for one topic, with the supervisor's process table."""

    def __init__(self, supervisor: Supervisor, name: str, row: TopicRow) -> None:
        self.supervisor = supervisor
        self.name = name
        self.row = row
        self.state = GroupState.NEW
        self.failure = ""
        self.storage: Child | None = None
        self.topic: Child | None = None
        self.channels: dict[str, Child | None] = {}  # None: wanted, not started yet or failed
        self.restarts = RestartIntensity()
        self._starts = StartQueue(options.STARTS_MAX)
        self.stored: frozenset[str] = frozenset()  # channels that its storage had when it came up
        self._new_settings: dict[str, dict[str, Any]] = {}  # of channels that are about to be made
        self._channel_restarts: dict[str, RestartIntensity] = {}
        self._failed_channels: set[str] = set()
        self._waiting: list[tuple[str, Then]] = []  # channel ("" for the topic), whom to tell
        self.deleting: set[str] = set()  # channels whose rows are about to go
        self._returning: list[tuple[str, Then, Mapping[str, Any]]] = []  # who wants an ephemeral one of those: a new one
        self._retry_ns = 0  # CLEARING: not started again before
        self._over_ns = 0  # it is an ephemeral topic whose channels are gone: with none by then, it goes
        self._tries = 0
        self._stopped: list[Callable[[], None]] = []

    def _go(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]
        if self.state is not GroupState.UP:
            self._starts.clear()

    def retention(self) -> Retention:
        """What was set for this topic, over what the broker was told. Settings that make no sense (edited by hand) remove nothing."""
        try:
            return self.resolved(self.row.retention)
        except UsageError as error:
            log.error("topic %s: its settings are not understood (%s): nothing of it is removed until they are set anew", self.name, error)
            return Retention(keep_bytes=-1)

    def resolved(self, own: Mapping[str, Any]) -> Retention:
        """The policy that follows from these settings of its own. `UsageError`."""
        if self.row.in_memory:
            return retention_in_memory(own, self.supervisor.registry.memory.bytes_max())
        return resolve(self.supervisor.options.retention, own)

    def children(self) -> list[Child]:
        found = [self.storage, self.topic, *self.channels.values()]
        return [child for child in found if child is not None and child.state != "ended"]

    def failed_channels(self) -> frozenset[str]:
        return frozenset(self._failed_channels)

    def settled(self) -> bool:
        """Nothing of it is on its way up."""
        if self.state is GroupState.UP:
            return all(
                (child is not None and child.state == "up") or name in self._failed_channels for name, child in self.channels.items()
            )
        return self.state in (GroupState.FAILED, GroupState.ENDED) or self._retry_ns > 0

    # Up

    def start(self) -> None:
        self._go("start")
        self._forget_ephemeral()
        numbers = [self.supervisor.new_key() for _ in range(5)]
        settings = {
            "name": self.name,
            "uuid": self.row.uuid,
            "base_offset": self.row.base_offset,
            "sync": self.row.sync,
            "directory": self.supervisor.registry.folder(self.row),
            "create": self.row.state == "new",
            "in_memory": self.row.in_memory,
            "retention": self.retention().as_dict(),
            "chunk_bytes": self.supervisor.options.chunk_bytes,
            "front": self.supervisor.endpoint(numbers[1]),
            "reader": self.supervisor.endpoint(numbers[2]),
            "stage": self.supervisor.endpoint(numbers[3]),
            "push": self.supervisor.endpoint(numbers[4]),
            "stage_timeout_s": self.supervisor.options.stage_timeout_s,
            "closed": to_publishers(self.row.closed),
            "scan": self.supervisor.scan_endpoint,
        }
        self.storage = self.supervisor.start(ChildSpec(numbers[0], "storage", f"storage {self.name}", settings), self)

    def _forget_ephemeral(self) -> None:
        """Those channels went with their storage. Who waits for one gets a new one; the topic, if it is one, waits a while for somebody."""
        gone = [name for name in self.channels if is_ephemeral(name) and not any(name == wanted for wanted, _ in self._waiting)]
        for name in gone:
            self.drop_channel(name)
        if gone:
            self._over_ns = time.monotonic_ns() + int(options.EPHEMERAL_UNUSED_S * 1e9)

    def born(self, child: Child) -> None:
        if child is self.storage and self.state is GroupState.STORAGE:
            self._go("storage_up")
            if self.row.state == "new":
                try:
                    self.supervisor.registry.set_state(self.name, "live")
                except Refused as error:
                    log.error("topic %s stays marked as new: %s", self.name, error)  # harmless: its directory is there
            self.stored = frozenset(child.data["channels"])
            for channel in child.data["channels"]:
                self.channels.setdefault(channel, None)
            number = self.supervisor.new_key()
            settings = {"front": self.supervisor.endpoint(number), "storage": child.spec.settings["front"]}
            settings["closed"] = to_publishers(self.row.closed)
            self.topic = self.supervisor.start(ChildSpec(number, "topic", f"topic {self.name}", settings), self)
        elif child is self.topic and self.state is GroupState.TOPIC:
            self._go("topic_up")
            self._tries = 0
            self.supervisor.channels_changed = True  # its storage may be scanned now
            waited_for = {channel for channel, _ in self._waiting}
            for channel in self.channels:
                self._starts.add(channel, first=channel in waited_for)
            self._tell("", None)
        elif child.spec.kind == "channel" and self.channels.get(child.spec.settings["channel"]) is child:
            channel = child.spec.settings["channel"]
            self._starts.done(channel)
            if not is_ephemeral(channel):
                self._new_settings.pop(channel, None)  # its row is committed, with them
            self._tell(channel, None)
            self.supervisor.channels_changed = True

    def _start_next(self) -> None:
        """Channels that wait for their start, as many as may be on their way up; all groups' within one share of the supervisor's turn."""
        while self.state is GroupState.UP and self._starts.ready() and self.supervisor.may_start():
            channel = self._starts.take()
            if channel in self._failed_channels or channel not in self.channels or self.channels[channel] is not None:
                self._starts.done(channel)
                continue
            try:
                self._start_channel(channel)
            except ZsqError as error:
                self._starts.done(channel)
                if channel in self._new_settings:
                    self._drop_new(channel, error)
                else:
                    self.fail(str(error))  # it was there before: the topic is not what it was

    def _drop_new(self, channel: str, error: ZsqError) -> None:
        """It is not made; who asked for it is told why."""
        self._new_settings.pop(channel)
        self.channels.pop(channel)
        self._tell(channel, error)

    def _start_channel(self, channel: str) -> None:
        assert self.storage is not None
        assert self.topic is not None
        number = self.supervisor.new_key()
        settings = {
            "channel": channel,
            "topic_name": self.name,
            "uuid": self.row.uuid,
            "front": self.supervisor.endpoint(number),
            "topic": self.topic.spec.settings["front"],
            "storage": self.storage.spec.settings["front"],
            "scan": self.supervisor.scan_endpoint,
            "settings": self._new_settings.get(channel, {}),
            "closed": to_consumers(self.row.closed),
        }
        spec = ChildSpec(number, "channel", f"channel {self.name}/{channel}", settings)
        self.channels[channel] = self.supervisor.start(spec, self)

    def want(self, channel: str, then: Then, settings: Mapping[str, Any] | None = None) -> None:
        """Call `then` when the topic (and the channel, made with these settings if it is not there) is up, or with the error."""
        if channel in self.deleting and is_ephemeral(channel) and len(self._returning) < options.WAITERS_MAX:
            self._returning.append((channel, then, settings or {}))
            return
        if channel in self.deleting:
            then(ZsqError(E_CLOSING, f"channel {channel!r} is being deleted; try again in a moment"))
            return
        if self.state is GroupState.FAILED or self._retry_ns:
            then(ZsqError(E_TOPIC_FAILED, f"topic {self.name!r} failed: {self.failure}"))
            return
        if channel in self._failed_channels:
            then(ZsqError(E_TOPIC_FAILED, f"channel {channel!r} of topic {self.name!r} failed too often; see the log"))
            return
        if channel and channel not in self.channels:
            if len(self.channels) >= options.CHANNELS_MAX:
                then(ZsqError(E_LIMIT, f"a topic has at most {options.CHANNELS_MAX} channels"))
                return
            self.channels[channel] = None
            self._new_settings[channel] = dict(settings or {})
        child = self.channels.get(channel) if channel else self.topic
        if self.state is GroupState.UP and child is not None and child.state == "up":
            then(None)
            return
        if len(self._waiting) >= options.WAITERS_MAX:
            then(ZsqError(E_LIMIT, "too many wait for this topic already"))
        else:
            self._waiting.append((channel, then))
        if channel and child is None and self.state is GroupState.UP:
            self._starts.add(channel, first=True)

    def _tell(self, channel: str | None, error: ZsqError | None) -> None:
        """Wake those who wait for this channel ("" the topic, None all)."""
        told = [then for name, then in self._waiting if channel is None or name == channel]
        self._waiting = [] if channel is None else [(name, then) for name, then in self._waiting if name != channel]
        for then in told:
            then(error)

    # Down

    def died(self, child: Child) -> None:
        """A process of this group has ended; nobody else opens its files before the whole pair is gone."""
        channel = child.spec.settings.get("channel", "")
        if child is self.storage:
            self.supervisor.channels_changed = True
        if channel and self.channels.get(channel) is child:
            self._starts.done(channel)
            self.channels[channel] = None
            self.supervisor.channels_changed = True
            if self.state is GroupState.UP and not self._not_made(channel, child.failure):
                self._restart_channel(channel)
        if self.state is GroupState.ENDED:
            return  # another one of it ended at the same moment, and was the last that lived
        if self.state is GroupState.STOPPING:
            self._stop_next()
            return
        if FATE[child.spec.kind] == "topic_group" and child in (self.storage, self.topic):
            self.failure = child.failure or f"{child.spec.title} (pid {child.pid}) ended"
            self._go("died")
            for other in self.children():
                self.supervisor.table.kill(other)
        if self.state is GroupState.CLEARING and not self.children():
            self._start_again()

    def fail(self, text: str) -> None:
        """A step of its way up went wrong (a limit, an error of the system): all of it ends, and is tried again later."""
        log.error("topic %s: %s", self.name, text)
        if self.state not in (GroupState.STORAGE, GroupState.TOPIC, GroupState.UP, GroupState.CLEARING):
            return
        self.failure = f"cannot start: {text}"
        self._go("died")
        for child in self.children():
            self.supervisor.table.kill(child)
        if not self.children():
            self._start_again()

    def tick(self) -> None:
        self._start_next()
        if self._retry_ns and time.monotonic_ns() >= self._retry_ns and self.state is GroupState.CLEARING:
            self._retry_ns = 0
            self.start()
        if self._over_ns and time.monotonic_ns() >= self._over_ns and self.state is GroupState.UP:
            self._over_ns = 0
            self.supervisor.management.end_if_over(self)

    def _not_made(self, channel: str, failure: str) -> bool:
        """A new channel that storage refuses to make (a limit, no space, a start that cannot be read now): who asked for it is told why."""
        if channel not in self._new_settings or not failure.startswith(REFUSED):
            return False
        code, _, text = failure.removeprefix("cannot start: ").partition(" ")
        self._drop_new(channel, ZsqError(code, text))
        return True

    def _restart_channel(self, channel: str) -> None:
        now = time.monotonic_ns()
        if is_ephemeral(channel):  # those that are not there any more, and died long ago
            old = [name for name, one in self._channel_restarts.items() if name not in self.channels and one.is_past(now)]
            for name in old:
                del self._channel_restarts[name]
        restarts = self._channel_restarts.setdefault(channel, RestartIntensity())
        if restarts.may_restart(now):
            if is_ephemeral(channel):
                self._over_ns = time.monotonic_ns() + int(options.EPHEMERAL_UNUSED_S * 1e9)
                self.supervisor.management.remove_channel(self, channel)  # it went with its process; who wants it gets a new one
            else:
                self._starts.add(channel, first=any(channel == wanted for wanted, _ in self._waiting))
            return
        log.error("channel %s/%s failed too often and stays down", self.name, channel)
        self._failed_channels.add(channel)
        self._tell(channel, ZsqError(E_TOPIC_FAILED, f"channel {channel!r} failed too often; see the log"))

    def _start_again(self) -> None:
        self.storage = self.topic = None
        if self.failure.startswith("cannot start") and not self.failure.startswith(FINAL):
            pause_s = min(options.RETRY_S_MAX, 2.0**self._tries)
            self._tries += 1
            self._retry_ns = time.monotonic_ns() + int(pause_s * 1e9)
            log.error("topic %s: %s; tried again in %g s", self.name, self.failure, pause_s)
            self._tell(None, ZsqError(E_TOPIC_FAILED, f"topic {self.name!r}: {self.failure}; it is tried again"))
            return
        if not self.failure.startswith(FINAL) and self.restarts.may_restart(time.monotonic_ns()):
            self.start()
            return
        self._go("give_up")
        if self.failure.startswith(FINAL):
            self.failure += "; when that is mended, start the broker again"
        log.error("topic %s failed: %s", self.name, self.failure)
        self._tell(None, ZsqError(E_TOPIC_FAILED, f"topic {self.name!r} failed: {self.failure}"))

    def stop(self, then: Callable[[], None]) -> None:
        """Channels, topic, storage; each may finish what it has begun. `then` when all are gone."""
        self._stopped.append(then)
        self._go("stop")
        self._stop_next()

    def _stop_next(self) -> None:
        living = self.children()
        for kind in reversed(KINDS):
            stage = [child for child in living if child.spec.kind == kind]
            if stage:
                for child in stage:
                    self.supervisor.stop_child(child)
                return
        self._go("stopped")
        self._waiting += [(channel, then) for channel, then, _ in self._returning]
        self._returning = []
        self._tell(None, ZsqError(E_CLOSING, f"topic {self.name!r} was stopped; try again"))
        told, self._stopped = self._stopped, []
        for then in told:
            then()

    def differs(self, channel: str, asked: Mapping[str, Any]) -> ZsqError | None:
        """Why the channel, which is up, is not the one that somebody means who asks for these settings."""
        child = self.channels.get(channel)
        try:
            if child is not None and asked:
                check_same(child.data.get("settings", {}), asked, channel)
        except ZsqError as error:
            return error
        return None

    def drop_channel(self, channel: str, *, lost: bool = False) -> None:
        """`lost`: its process died. A successor of that name may not die as often as it likes."""
        if not lost:
            self._channel_restarts.pop(channel, None)
        self._starts.done(channel)
        self._new_settings.pop(channel, None)
        self.channels.pop(channel, None)
        self._tell(channel, ZsqError(E_CLOSING, f"channel {channel!r} was deleted"))
        self._failed_channels.discard(channel)
        self.supervisor.channels_changed = True

    def deleted(self, channel: str) -> None:
        """Its rows are gone, or were kept; who came meanwhile for an ephemeral one gets a new one."""
        self.deleting.discard(channel)
        returning = [one for one in self._returning if one[0] == channel]
        self._returning = [one for one in self._returning if one[0] != channel]
        for _, then, settings in returning:
            self.want(channel, then, settings)

    def endpoints(self, channel: str) -> dict[str, Any]:
        """What Lookup answers; only when up."""
        assert self.storage is not None
        assert self.topic is not None
        child = self.channels.get(channel)
        of_storage = self.storage.spec.settings
        return {
            "topic": self.topic.spec.settings["front"],
            "reader": of_storage["reader"],
            "stage": of_storage["stage"],
            "push": of_storage["push"],
            "channel": child.spec.settings["front"] if child is not None else "",
            "uuid": self.row.uuid,
        }
