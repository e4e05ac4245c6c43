"""Topic group: all processes of a topic as one unit.

If the topic's process ends, the channels are ended and started again with it, because they depend
on it. These are the states of the unit and their transitions:

NEW -> STARTING -> UP                  the topic starts; channels start when it is up
any of these -> CLEARING               the topic died: the channels are killed and awaited
CLEARING -> STARTING | FAILED          started again, or given up if it happens too often
CLEARING, waiting                      a start failed: the next try follows after 1, 2, 4 ... 60 s
UP -> STOPPING -> ENDED                stopped in reverse order: channels, then the topic
UP -> DOZING -> ASLEEP -> STARTING     not used for a while: stopped in the same order; the next
                                       request for the topic starts it again (`dormancy.py`)

A topic moves to other processes in the same way (`runtime/placement.py`), and starts again at once.
Before that, its channels are *held*: they give out nothing and call back what no handler has begun.
If consumers still hold messages after a moment, the topic stays, and tries again later. So a move
ends no lease, and no message is delivered twice. Consumers and producers connect to the new
processes as after a restart.

Only a few channels start at a time, and the next one starts when one is up. If a thousand were
forked in one turn of the supervisor's loop, they would delay each other and all requests to the
supervisor. Channels that a client waits for come first.

The messages of an `#ephemeral` topic are in memory, so they need a bound. Without settings for it,
such a topic keeps no finished messages and drops the oldest messages beyond its bound. `when_full`
may be set to `reject` instead. The broker's settings for retention are meant for disks and do not
apply.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ....storage.retention import resolve
from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_DISK_FULL,
    E_INTERNAL,
    E_LIMIT,
    E_TOPIC_FAILED,
    UsageError,
    ZsqError,
)
from ....transport.names import is_ephemeral
from ....transport.settings import BY_BROKER, NONE, NewChannelSettings, Retention
from ....transport.units import NS_PER_MS
from ....transport.wire import protocol as p
from ...runtime.child import (
    OUT_OF_FILES,
    ChildSpec,
    Failure,
    OutOfFiles,
    Phase,
    RestartIntensity,
)
from ...runtime.placement import UNKNOWN_CHANNELS, Load, Past, room
from ...runtime.process_table import Child, HostProcess
from ...runtime.processes import Processes
from ...runtime.pulses import ChannelPulse, TopicPulse
from ...settings import channel_settings, options
from ...settings.channel_settings import check_same
from ...settings.closing import to_consumers, to_publishers
from ...settings.options import ServeOptions
from ...settings.starts import ChannelStart, StorageStart, TopicStart, channel_of
from ...statistics.broker_view import (
    ChannelProcess,
    GroupState,
    TopicProcesses,
    storage_pulse,
    topic_pulse,
)
from .dormancy import at_rest, due_ns, is_unused, last_known, may_move, sleep_ns
from .registry import Registry
from .registry_format import TopicRow

_MIB: Final = 1024 * 1024
_LOOK_NS: Final = options.SLEEP_LOOK_MS * 1_000_000
# A process that got a message sends a pulse within a second, on a busy machine a little later.
_FRESH_NS: Final = 2 * options.PULSE_MS * 1_000_000
_DOUBLINGS_MAX: Final = 30
_STOPPED: Final = (
    f"failed more than {options.RESTARTS_MAX} times in {options.RESTARTS_WITHIN_S:g} s and "
    "stays stopped;"
    " find the cause in the broker's log, then restart the broker"
)


def retention_in_memory(settings: Mapping[str, Any], max_bytes: int) -> Retention:
    """Return the retention of a topic in memory.

    Raises `UsageError` (E_BAD_ARGUMENT) if a limit exceeds the bound.
    """
    retention = resolve(
        {"keep_bytes": 0, "max_bytes": max_bytes, "when_full": "drop-oldest"}, settings
    )
    for name in ("keep_bytes", "max_bytes"):
        value = getattr(retention, name)
        if value == NONE or value > max_bytes:
            shown = "no bound" if value == NONE else f"{value} bytes"
            limit = f"{max_bytes} ({max_bytes // _MIB} MiB)"
            text = f"{name} of a topic in memory is at most {limit}, not {shown}"
            raise UsageError(E_BAD_ARGUMENT, f"{text}; use a topic on disk for more")
    return retention


def doubled(first_s: float, tries: int, max_s: float) -> float:
    """Return the pause after so many tries: it doubles with each try, to the longest pause."""
    # A power of two has no number any more after a day of tries.
    return min(first_s * 2.0 ** min(tries, _DOUBLINGS_MAX), max_s)


TRANSITIONS: Final[dict[GroupState, dict[str, GroupState]]] = {
    GroupState.NEW: {
        "start": GroupState.STARTING,
        "slept": GroupState.ASLEEP,
        "stop": GroupState.STOPPING,
    },
    GroupState.STARTING: {
        "topic_up": GroupState.UP,
        "died": GroupState.CLEARING,
        "stop": GroupState.STOPPING,
    },
    GroupState.UP: {
        "died": GroupState.CLEARING,
        "stop": GroupState.STOPPING,
        "doze": GroupState.DOZING,
    },
    GroupState.DOZING: {
        "slept": GroupState.ASLEEP,
        "died": GroupState.CLEARING,
        "stop": GroupState.STOPPING,
    },
    GroupState.ASLEEP: {"start": GroupState.STARTING, "stop": GroupState.STOPPING},
    GroupState.CLEARING: {
        "died": GroupState.CLEARING,
        "start": GroupState.STARTING,
        "give_up": GroupState.FAILED,
        "stop": GroupState.STOPPING,
    },
    GroupState.STOPPING: {
        "died": GroupState.STOPPING,
        "stopped": GroupState.ENDED,
        "stop": GroupState.STOPPING,
    },
    GroupState.FAILED: {"died": GroupState.FAILED, "stop": GroupState.STOPPING},
    GroupState.ENDED: {"stop": GroupState.STOPPING},
}


class StartQueue:
    """The order in which a topic's channels start.

    `starting` holds at most `at_once` channels that are not up yet.
    """

    def __init__(self, at_once: int) -> None:
        self.starting: set[str] = set()
        self._at_once = at_once
        self._first: dict[str, None] = {}  # used as an ordered set
        self._others: dict[str, None] = {}
        self.later: dict[str, int] = {}  # channels -> the monotonic time of their start

    def add(self, channel: str, *, first: bool = False) -> None:
        """Add a channel.

        Adding it again with `first` moves it forward, because a client now waits for it.
        """
        self.later.pop(channel, None)
        if first:
            self._others.pop(channel, None)
            self._first[channel] = None
        elif channel not in self._first:
            self._others[channel] = None

    def due(self, now_ns: int) -> list[str]:
        """Take the channels of `later` whose time has come."""
        due = [channel for channel, start_ns in self.later.items() if now_ns >= start_ns]
        for channel in due:
            del self.later[channel]
        return due

    def ready(self) -> bool:
        """Return True if a channel waits and fewer than `at_once` are starting."""
        return len(self.starting) < self._at_once and bool(self._first or self._others)

    def take(self) -> str:
        """Return the next channel and count it as starting. Call it only when ready."""
        waiting = self._first or self._others
        channel = next(iter(waiting))
        del waiting[channel]
        self.starting.add(channel)
        return channel

    def done(self, channel: str) -> None:
        """Remove a channel that is up, has failed, or is not wanted any more."""
        self.starting.discard(channel)
        self._first.pop(channel, None)
        self._others.pop(channel, None)
        self.later.pop(channel, None)

    def clear(self) -> None:
        self.starting.clear()
        self._first.clear()
        self._others.clear()
        self.later.clear()


log = logging.getLogger("zsq")

FINAL: Final = frozenset(
    {"ForeignDirectory", "NewerVersion", "Damaged"}
)  # another try does not help
# The codes with which storage refuses to make a channel.
REFUSED: Final = frozenset({E_LIMIT, E_INTERNAL, E_DISK_FULL, E_BAD_ARGUMENT})

Then = Callable[[ZsqError | None], None]


class GroupSite:
    """The parts of the broker that all its topic groups use. A reload changes `options`.

    `channel_died` deletes an ephemeral channel whose process ended. `unused` deletes an ephemeral
    topic that has had no channel for a while.
    """

    def __init__(
        self, serve_options: ServeOptions, registry: Registry, processes: Processes,
        channel_died: Callable[[TopicGroup, str], None], unused: Callable[[TopicGroup], None],
    ) -> None:  # fmt: skip
        self.options = serve_options
        self.registry = registry
        self.processes = processes
        self.channel_died = channel_died
        self.unused = unused
        self.channels_changed = False  # the set of processes that are scanned has changed
        self.names_changed = False  # the set of names of topics and channels has changed
        self.mover: TopicGroup | None = None  # the topic that moves to other processes
        self.stirred: dict[TopicGroup, None] = {}  # the topics that have something to do, in order
        self.send_order: Callable[..., None]  # `Orders.send`
        self.owes_answer: Callable[[Child], bool]  # `Orders.owes_answer`


def _note_end(process: ChannelProcess | TopicProcesses, child: Child) -> None:
    """Keep what an ended process has reported, for its successor."""
    if child.stats:
        process.predecessor = replace(child, stats=last_known(child.stats), state="ended")


class TopicGroup(TopicProcesses):
    """All processes of one topic, with their state as one unit."""

    def __init__(self, name: str, row: TopicRow, site: GroupSite) -> None:
        super().__init__(name, row)
        self.row: TopicRow = row
        self._site = site
        self._registry = site.registry
        self._processes = site.processes
        self._starts = StartQueue(options.STARTS_MAX)
        self._waiting: list[tuple[str, Then]] = []  # channel ("" for the topic) and callback
        # The channels whose rows are being deleted. Requests for an ephemeral one wait, and get a
        # new channel afterwards.
        self.deleting: dict[str, list[tuple[Then, Mapping[str, Any]]]] = {}
        self.is_sealing = False  # a deletion has sealed the topic, and is not decided yet
        self._retry_ns = 0  # in CLEARING: the earliest time of the next start
        self._over_ns = 0  # time at which an ephemeral topic without channels is removed
        self._tries = 0
        self._short_ns = 0  # since when file descriptors for a start are missing, 0 if they are not
        self._stopped: list[Callable[[], None]] = []
        self._asked_ns = time.monotonic_ns()  # the last request for the topic, or its last start
        self._looked_ns = 0  # when it was last checked for use
        self._wake_ns = 0  # ASLEEP: when it wakes because of its retention
        self._asleep = self._asleep_shared = 0  # ASLEEP: how many processes it had, see `Processes`
        # Requests that wait until no process of the topic is starting.
        self._settling: list[Then] = []
        self._host: HostProcess | None = None  # the shared host in which its processes run, if any
        self._past = Past()
        self.load = Load(site.options.busy_at)
        self._is_busy = False  # it was moved to processes of its own
        self._is_moving = False  # its processes stop, because it moves
        self._knows_channels = row.state == "new"
        self._held: set[int] = set()  # the keys of the channels that got Hold
        self._holding: set[int] = set()  # those of them that must answer it
        self._hold_until_ns = 0  # then they go on by themselves
        self._moves_failed = 0
        self._move_ns = 0  # no move before that
        self._is_victim = False  # its shared host ended, and it was not the cause

    def stir(self) -> None:
        """Let the supervisor call `tick` in its next turn, not only once a second."""
        self._site.stirred[self] = None

    def _go(self, event: str) -> None:
        self.stir()
        self.state = TRANSITIONS[self.state][event]
        if self.state is not GroupState.UP:
            self._starts.clear()
            self._holding.clear()
        if event in ("died", "stop"):
            self._is_moving = False
        if event == "stop" and self._site.mover is self:
            self._site.mover = None

    def retention(self) -> Retention:
        """Return the retention. The topic's settings override the broker's settings.

        If the topic's settings are invalid (edited by hand), nothing is removed.
        """
        try:
            return self.resolved(self.row.retention)
        except UsageError as error:
            log.error(
                (
                    "topic %s has invalid settings (%s): it keeps all messages until they are set "
                    "with `zsq topic set`"
                ),
                self.name,
                error,
            )
            return Retention(keep_bytes=-1)

    def resolved(self, settings: Mapping[str, Any]) -> Retention:
        """Return the retention that results from these settings of the topic.

        Raises `UsageError` if they are invalid.
        """
        if self.row.in_memory:
            return retention_in_memory(settings, self._registry.memory.max_bytes())
        return resolve(self._site.options.retention, settings)

    def children(self) -> list[Child]:
        """Return the processes that have not ended."""
        return [child for child in self.processes() if child.state != "ended"]

    @property
    def stored_channels(self) -> list[str]:
        """The channels that the topic had stored when it came up."""
        assert self.topic is not None
        names: list[str] = self.topic.data["channels"]
        return names

    def has_reported(self) -> bool:
        """Return True if the topic and its channels were up since the broker began.

        Until then, neither all channels nor their figures are known.
        """
        reporters = [self.reporter(), *map(self.reporter, self.channels)]
        return all(reporter is not None and reporter.stats for reporter in reporters)

    def settled(self) -> bool:
        """Return True if no process of the topic is starting."""
        if self.state is GroupState.UP:
            return all(
                channel.has_failed or (channel.child is not None and channel.child.state == "up")
                for channel in self.channels.values()
            )
        settled = (GroupState.FAILED, GroupState.ENDED, GroupState.DOZING, GroupState.ASLEEP)
        return self.state in settled or self._retry_ns > 0

    # Start

    def start(self) -> None:
        woken = self.state is GroupState.ASLEEP
        topic, stored = topic_pulse(self), storage_pulse(self)
        self._go("start")
        self._asked_ns = time.monotonic_ns()
        for channel in self.channels.values():
            child = channel.child
            if child is not None and child.state == "ended":  # it ended when its topic fell asleep
                _note_end(channel, child)
                channel.child = None
        if self.topic is not None:
            _note_end(self, self.topic)
        self._forget_ephemeral()
        numbers = [self._processes.new_key() for _ in range(5)]
        serve_options = self._site.options
        archived = bool(serve_options.bucket) and not self.row.in_memory
        storage = StorageStart(
            name=self.name,
            uuid=self.row.uuid,
            base_offset=self.row.base_offset,
            sync=self.row.sync,
            directory=self._registry.folder(self.row),
            create=self.row.state == "new",
            in_memory=self.row.in_memory,
            retention=self.retention(),
            chunk_bytes=serve_options.chunk_bytes,
            max_msg_size=serve_options.max_msg_size,
            front=self._processes.endpoint(numbers[1]),
            reader=self._processes.endpoint(numbers[2]),
            stage=self._processes.endpoint(numbers[3]),
            push=self._processes.endpoint(numbers[4]),
            stage_timeout_s=serve_options.stage_timeout_s,
            closed=to_publishers(self.row.closed),
            scan=self._processes.scan_endpoint,
            archive=self._processes.archive_endpoint if archived else "",
            bucket=serve_options.bucket if archived else "",
            cache_bytes=serve_options.bucket_cache_bytes if archived else 0,
            ship_lag_s=serve_options.bucket_lag_s if archived else 0.0,
            woken=woken,
            failed=self.cause is not None,
            refused_count=stored.get("refused_count", 0) if woken else 0,
            removed_bytes=stored.get("removed_bytes", 0) if woken else 0,
        )
        start = TopicStart(
            front=self._processes.endpoint(numbers[0]),
            storage=storage,
            message_count=topic.get("message_count", 0) if woken else 0,
            message_bytes=(
                topic.get("message_bytes", 0) + stored.get("entered_bytes", 0) if woken else 0
            ),
        )
        title = f"topic {self.name}"
        self._host = None
        self.load.forget()
        if self._may_share():
            self._host = self._processes.place(title, self.size, self._past.ends)
        self.topic = self._processes.start(
            ChildSpec(numbers[0], "topic", title, start), self, self._host
        )

    def _own_process(self) -> str:
        """Return one of OWN_PROCESS: the topic's setting or that of the broker."""
        setting = self.row.retention.get("own_process") or BY_BROKER
        return self._site.options.own_process if setting == BY_BROKER else str(setting)

    def _may_share(self) -> bool:
        own = self._own_process()
        if own == "busy" and (self._is_busy or not self._can_move()):
            return False
        return own != "always" and not self._past.is_cause

    def _forget_ephemeral(self) -> None:
        """Drop the ephemeral channels, whose rows ended with the topic's process.

        Channels that a request waits for stay, and are made again. An ephemeral topic then waits a
        while for a new channel.
        """
        gone = [name for name in self.channels if is_ephemeral(name) and not self._is_wanted(name)]
        for name in gone:
            self._drop_channel(name)
        if gone:
            self._over_ns = time.monotonic_ns() + int(options.EPHEMERAL_UNUSED_S * 1e9)

    def born(self, child: Child) -> None:
        self.stir()
        if child is self.topic and self.state is GroupState.STARTING:
            self._go("topic_up")
            if self.row.state == "new":
                self._registry.note_created(self.name)
            for name in child.data["channels"]:
                self.channels.setdefault(name, ChannelProcess())
            self._knows_channels = True
            self._site.names_changed = True
            self._tries = 0
            self._short_ns = 0
            self._site.channels_changed = True  # the topic may be scanned now
            waited_for = {name for name, _ in self._waiting}
            for name in self.channels:
                self._starts.add(name, first=name in waited_for)
            self._tell("", None)
        elif (name := channel_of(child.spec.start)) and self.child(name) is child:
            channel = self.channels[name]
            self._starts.done(name)
            if not is_ephemeral(name):
                channel.new_settings = None  # the settings are in its row now
            self._tell(name, None)
            self._site.channels_changed = True

    def _start_next(self) -> None:
        """Start waiting channels as far as the limits allow.

        All groups share one limit for each turn of the supervisor's loop.
        """
        while self.state is GroupState.UP and self._starts.ready() and self._processes.may_start():
            name = self._starts.take()
            channel = self.channels.get(name)
            if channel is None or channel.has_failed or channel.child is not None:
                self._starts.done(name)
                continue
            try:
                channel.child = self._start_channel(name, channel.new_settings)
            except ZsqError as error:
                self._starts.done(name)
                if channel.new_settings is not None:
                    self._drop_new(name, error)
                elif isinstance(error, OutOfFiles):
                    self._start_later(name)
                else:
                    self.fail(str(error))  # the channel existed before, so the topic needs it

    def _is_wanted(self, channel: str) -> bool:
        """Return True if a request waits for this channel."""
        return any(channel == wanted for wanted, _ in self._waiting)

    def _drop_new(self, channel: str, error: ZsqError) -> None:
        """Give up a new channel and report the error to the requests for it."""
        del self.channels[channel]
        self._site.names_changed = True
        self._tell(channel, error)

    def _start_channel(self, channel: str, new_settings: NewChannelSettings | None) -> Child:
        assert self.topic is not None
        of_topic = self.topic.spec.start
        assert isinstance(of_topic, TopicStart)
        number = self._processes.new_key()
        serve_options = self._site.options
        start = ChannelStart(
            channel=channel,
            topic_name=self.name,
            uuid=self.row.uuid,
            front=self._processes.endpoint(number),
            topic=of_topic.front,
            storage=of_topic.storage.front,
            scan=self._processes.scan_endpoint,
            replaceable=serve_options.ships,
            made_with=new_settings or {},
            closed=to_consumers(self.row.closed),
        )
        spec = ChildSpec(number, "channel", f"channel {self.name}/{channel}", start)
        return self._processes.start(spec, self, self._host)

    def want(self, channel: str, then: Then, settings: Mapping[str, Any] | None = None) -> None:
        """Call `then` when the topic and the channel are up, or with an error.

        A channel that does not exist is made with `settings`.
        """
        self._asked_ns = time.monotonic_ns()
        self.stir()
        if channel in self.deleting:
            returning = sum(map(len, self.deleting.values()))
            if is_ephemeral(channel) and returning < options.WAITERS_MAX:
                self.deleting[channel].append((then, settings or {}))
            else:
                text = f"channel {channel!r} is being deleted; try again in a moment"
                then(ZsqError(E_CLOSING, text))
            return
        if self.state is GroupState.FAILED or (self._retry_ns and not self._short_ns):
            then(ZsqError(E_TOPIC_FAILED, f"topic {self.name!r} failed: {self.failure}"))
            return
        known = self.channels.get(channel)
        if known is not None and known.has_failed:
            then(ZsqError(E_TOPIC_FAILED, f"channel {channel!r} of topic {self.name!r} {_STOPPED}"))
            return
        if channel and known is None:
            if len(self.channels) >= options.CHANNELS_MAX:
                text = (
                    f"topic {self.name!r} has {len(self.channels)} channels, the limit; delete "
                    "channels that are not used"
                )
                then(ZsqError(E_LIMIT, text))
                return
            new_settings = cast("NewChannelSettings", dict(settings or {}))
            self.channels[channel] = ChannelProcess(new_settings=new_settings)
            self._site.names_changed = True
        child = self.child(channel)
        if self.state is GroupState.UP and child is not None and child.state == "up":
            then(None)
            return
        if len(self._waiting) >= options.WAITERS_MAX:
            text = f"{len(self._waiting)} requests wait for topic {self.name!r}"
            then(ZsqError(E_LIMIT, f"{text}, which is the limit; try again in a moment"))
        else:
            self._waiting.append((channel, then))
        if channel and child is None and self.state is GroupState.UP:
            self._starts.add(channel, first=True)

    def _tell(self, channel: str | None, error: ZsqError | None) -> None:
        """Answer the requests that wait for this channel ("" for the topic, None for all)."""
        waiting = [then for name, then in self._waiting if channel is None or name == channel]
        self._waiting = (
            []
            if channel is None
            else [(name, then) for name, then in self._waiting if name != channel]
        )
        for then in waiting:
            then(error)

    # Stop

    def died(self, child: Child) -> None:
        """Handle the end of a process.

        The topic starts again only when its process has ended, so files are never opened twice.
        """
        channel = channel_of(child.spec.start)
        self.stir()
        self.load.ended(child.spec.key)
        if child.hangs and self._host is not None:
            self._past.add(time.monotonic_ns(), is_cause=True)
        if child is self.topic:
            self._site.channels_changed = True
        if self.state is GroupState.DOZING and not (child is self.topic and child.failure):
            self._site.channels_changed = True
            self._doze_next()
            return
        if channel and self.child(channel) is child:
            self._starts.done(channel)
            _note_end(self.channels[channel], child)
            self.channels[channel].child = None
            self._site.channels_changed = True
            if self.state is GroupState.UP and not self._not_made(channel, child.failure):
                if (
                    child.failure is not None
                    and child.failure.is_out_of_files
                    and not is_ephemeral(channel)
                ):
                    self._start_later(channel)
                else:
                    self._restart_channel(channel)
        if self.state is GroupState.ENDED:
            return  # several processes ended at the same moment, and the group has ended already
        if self.state is GroupState.STOPPING:
            self._stop_next()
            return
        if child is self.topic:
            # A topic's channels end with the topic and start after it, because a channel's leases
            # depend on the rows that the topic's storage recovered. Rejected: channels that outlive
            # their topic and attach to the next one. That would save redeliveries after a crash,
            # but it needs a second protocol for sending again what was not committed.
            _note_end(self, child)
            self.cause = child.failure or Failure(
                Phase.RUN, "", f"{child.spec.title} (pid {child.pid}) ended"
            )
            if not child.told_to_stop:  # else its host goes on
                self._note_host_end()
            self._go("died")
            for other in self.children():
                self._processes.kill(other)
        if self.state is GroupState.CLEARING and not self.children():
            self._start_again()

    def _note_host_end(self) -> None:
        """Find out whether this topic ended the shared host in which it was."""
        if self._host is None:
            return
        is_cause = any(child.explains_end for child in self.processes())
        if is_cause or not self._host.is_explained:
            passes = self.cause is None or not self.cause.is_out_of_files
            self._past.add(time.monotonic_ns(), is_cause=is_cause, passes=passes)
        self._is_victim = not is_cause

    def fail(self, text: str, *, out_of_files: bool = False) -> None:
        """End all processes and try again later, because a step of the start has failed."""
        if not self._short_ns:
            log.error("topic %s: %s", self.name, f"{OUT_OF_FILES} {text}" if out_of_files else text)
        if self.state not in (GroupState.STARTING, GroupState.UP, GroupState.CLEARING):
            return
        self.cause = Failure(Phase.START, OUT_OF_FILES if out_of_files else "", text)
        self._go("died")
        for child in self.children():
            self._processes.kill_alone(child)
        if not self.children():
            self._start_again()

    def _look_for_restarts(self) -> None:
        now = time.monotonic_ns()
        texts = [
            f"{whose} process was started again {options.UNSTEADY_RESTARTS} times or more within "
            f"{options.UNSTEADY_S / 60:g} minutes; the log says why"
            for whose, restarts in (
                ("its", self.restarts),
                *((f"channel {name}: its", past) for name, past in self.channel_restarts.items()),
            )
            if restarts.is_unsteady(now)
        ]
        if [*self.unsteady] != texts:
            self.unsteady = tuple(texts)

    def tick(self) -> None:
        """Do what is due: after each `stir`, while it waits for a time, and once a second."""
        self._start_next()
        self._look_for_restarts()
        self._look_for_use()
        self._look_for_place()
        if self._settling and self.settled():
            self._tell_settled(None)
        for channel in self._starts.due(time.monotonic_ns()):
            self._starts.add(channel, first=self._is_wanted(channel))
        if (
            self._retry_ns
            and time.monotonic_ns() >= self._retry_ns
            and self.state is GroupState.CLEARING
        ):
            self._retry_ns = 0
            self.start()
        if self._over_ns and time.monotonic_ns() >= self._over_ns and self.state is GroupState.UP:
            self._over_ns = 0
            self._site.unused(self)
        if self._retry_ns or self._over_ns or self._starts.later or self._starts.ready():
            self.stir()

    def _not_made(self, channel: str, failure: Failure | None) -> bool:
        """Drop a new channel that storage refuses to make, and report why.

        Possible reasons are a limit, missing space, or a start position that cannot be read now.
        Return False in any other case.
        """
        if (
            self.channels[channel].new_settings is None
            or failure is None
            or failure.phase is not Phase.START
            or failure.code not in REFUSED
        ):
            return False
        self._drop_new(channel, ZsqError(failure.code, failure.text))
        return True

    def _restart_channel(self, channel: str) -> None:
        now = time.monotonic_ns()
        if is_ephemeral(channel):  # forget the old failures of deleted channels
            self.channel_restarts = {
                name: restarts
                for name, restarts in self.channel_restarts.items()
                if name in self.channels or not restarts.is_past(now)
            }
        restarts = self.channel_restarts.setdefault(channel, RestartIntensity())
        if restarts.may_restart(now):
            if is_ephemeral(channel):
                self._over_ns = time.monotonic_ns() + int(options.EPHEMERAL_UNUSED_S * 1e9)
                self._site.channel_died(self, channel)  # the next request makes a new one
            else:
                self._starts.add(channel, first=self._is_wanted(channel))
            return
        log.error("channel %s/%s %s", self.name, channel, _STOPPED)
        self.channels[channel].has_failed = True
        text = f"channel {channel!r} of topic {self.name!r} {_STOPPED}"
        self._tell(channel, ZsqError(E_TOPIC_FAILED, text))

    def _start_later(self, channel: str) -> None:
        log.warning(
            "channel %s/%s cannot be started: %s; trying again",
            self.name,
            channel,
            os.strerror(errno.EMFILE),
        )
        at_ns = time.monotonic_ns() + int(options.FILES_RETRY_S_MAX * 1e9)
        self._starts.later[channel] = at_ns

    def _start_when_files(self) -> None:
        """Try again soon, because file descriptors are missing.

        The cause is outside the topic and may pass, so it does not count as a failure of the topic.
        Requests wait for the next try. From FILES_WAIT_S on, each try that fails refuses them.
        """
        now = time.monotonic_ns()
        if not self._short_ns:
            self._short_ns, self._tries = now, 0
            log.error(
                "topic %s: %s; trying again until file descriptors are free",
                self.name,
                self.failure,
            )
        pause_s = doubled(options.FILES_RETRY_S, self._tries, options.FILES_RETRY_S_MAX)
        self._tries += 1
        self._retry_ns = now + int(pause_s * 1e9)
        if now - self._short_ns >= int(options.FILES_WAIT_S * 1e9):
            text = (
                f"topic {self.name!r} waits for file descriptors: {self.failure}; raise the "
                "limit of open files (LimitNOFILE, ulimit -n)"
            )
            self._tell(None, ZsqError(E_LIMIT, text))

    def _start_again(self) -> None:
        self.topic = None
        cause = self.cause
        assert cause is not None
        final = cause.phase is Phase.START and cause.code in FINAL
        if cause.is_out_of_files:
            self._start_when_files()
            return
        self._short_ns = 0
        if cause.phase is Phase.START and not final:
            pause_s = doubled(1.0, self._tries, options.RETRY_S_MAX)
            self._tries += 1
            self._retry_ns = time.monotonic_ns() + int(pause_s * 1e9)
            log.error("topic %s: %s; trying again in %g s", self.name, self.failure, pause_s)
            text = f"topic {self.name!r}: {self.failure}"
            text += f"; the broker tries again in {pause_s:g} s"
            self._tell(None, ZsqError(E_TOPIC_FAILED, text))
            return
        is_victim, self._is_victim = self._is_victim, False
        # The end of a shared host is not counted against the topics that did not cause it.
        if not final and (is_victim or self.restarts.may_restart(time.monotonic_ns())):
            self.starts_again += 1
            self.start()
            return
        self._go("give_up")
        if final:
            self.cause = replace(
                cause, text=f"{cause.text}; correct this, then start the broker again"
            )
        log.error("topic %s failed: %s", self.name, self.failure)
        self._tell(None, ZsqError(E_TOPIC_FAILED, f"topic {self.name!r} failed: {self.failure}"))

    def retry_soon(self) -> None:
        """Start at the next tick, if the topic waits until it tries again."""
        if self._retry_ns:
            self._retry_ns = time.monotonic_ns()
            self.stir()

    def stop(self, then: Callable[[], None]) -> None:
        """Stop the channels, then the topic, and call `then` when all have ended.

        Each process may finish what it has begun. That may take long, so requests that wait for the
        topic get their error at once.
        """
        self._stopped.append(then)
        self._count_asleep(0)
        self._go("stop")
        self._tell_stopped()
        self._stop_next()

    def _stop_next(self) -> None:
        living = self.children()
        for kind in ("channel", "topic"):
            stage = [child for child in living if child.spec.kind == kind]
            if stage:
                for child in stage:
                    self._processes.stop_child(child)
                return
        self._go("stopped")
        for channel, returning in self.deleting.items():
            self._waiting += [(channel, then) for then, _ in returning]
            returning.clear()
        self._tell_stopped()
        callbacks, self._stopped = self._stopped, []
        for then in callbacks:
            then()

    def _tell_stopped(self) -> None:
        error = ZsqError(E_CLOSING, f"topic {self.name!r} was stopped; try again in a moment")
        self._tell(None, error)
        self._tell_settled(error)

    def _tell_settled(self, error: ZsqError | None) -> None:
        waiting, self._settling = self._settling, []
        for then in waiting:
            then(error)

    # Dormancy

    def rouse(self, then: Then) -> None:
        """Call `then` when no process of the topic is starting any more, or with an error.

        A topic that is asleep is started.
        """

        def up(error: ZsqError | None) -> None:
            if error is not None:
                then(error)
            else:
                self._settling.append(then)

        self.want("", up)

    def _count_asleep(self, count: int) -> None:
        """Note how many processes will come back when the topic wakes."""
        shared = count if self._may_share() and self._has_room() else 0
        self._processes.asleep += count - shared - self._asleep
        self._processes.asleep_shared += shared - self._asleep_shared
        self._asleep, self._asleep_shared = count - shared, shared

    def _look_for_use(self) -> None:
        """Put the topic to sleep if it is not used, or wake it when its time has come."""
        now = time.monotonic_ns()
        if self.state is GroupState.ASLEEP and (self._waiting or self._is_time(now)):
            log.debug("topic %s wakes", self.name)
            self._count_asleep(0)
            self.start()
        if self.state is not GroupState.UP or now - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now
        after_ns = int(self._site.options.sleep_after_s * 1e9)
        if not after_ns or now - self._asked_ns < after_ns or not self._is_quiet(now):
            return
        # Pulses of processes that have ended do not count here.
        if self.topic is None or not is_unused(
            cast("TopicPulse", self.topic.stats),
            [
                cast("ChannelPulse", channel.child.stats if channel.child is not None else {})
                for channel in self.channels.values()
            ],
            now,
            after_ns,
        ):
            return
        storage = storage_pulse(self)
        if due_ns(storage) - time.time_ns() > after_ns:
            self._wake_ns = now + sleep_ns(storage, self.retention(), random.random())
            self.cause = None
            log.debug("topic %s is not used: its processes stop", self.name)
            self._go("doze")
            self._doze_next()

    def _is_time(self, now: int) -> bool:
        """Return True if a topic that is asleep must wake without a request.

        Its last pulse may have come after it began to stop, with another due time. Due times are
        times of the wall clock, which may be set while the topic sleeps.
        """
        return now >= self._wake_ns or time.time_ns() >= due_ns(storage_pulse(self))

    def _is_quiet(self, now: int) -> bool:
        """Return True if no process starts or has news, and no request waits for one."""
        waits = self._waiting or self._settling or self.deleting or self._starts.later
        if (
            waits
            or self.failed_channels()
            or self.row.in_memory
            or any(map(is_ephemeral, self.channels))
        ):
            return False
        # The next pulse of a process may be on the way, with news.
        return all(
            child.state == "up" and now - child.news_ns > _FRESH_NS for child in self.processes()
        )

    def _doze_next(self) -> None:
        """Stop the channels, then the topic. The last pulses stay for the statistics."""
        living = self.children()
        channels = [child for child in living if child is not self.topic]
        for child in channels or living:
            self._processes.stop_child(child)
        if not living:
            self._go("slept")
            for ended in self.processes():
                ended.stats = at_rest(ended.stats)
            self._count_asleep(1 + len(self.channels))
            if self._is_moving:
                self._is_moving = False
                self._count_asleep(0)
                self.start()

    # Moves

    def _can_move(self) -> bool:
        """Return False if something would be lost with the topic's processes."""
        return not self.row.in_memory and not any(map(is_ephemeral, self.channels))

    def _look_for_place(self) -> None:
        """Begin a move if the topic is in the wrong place. The broker moves one topic at a time."""
        site, now = self._site, time.monotonic_ns()
        if site.mover is self and not self._holding and not self._is_moving and self.settled():
            site.mover = None
        if now < self._move_ns or site.mover is not None or not self._is_misplaced(now):
            return
        is_busy = self._is_too_busy()
        if not self._may_move() or (is_busy and not self._processes.has_room(self.size)):
            if is_busy:
                self._stay(is_busy=True)
            return
        site.mover, self._is_busy = self, is_busy
        channels = [child for child in self.children() if child is not self.topic]
        self._held = {child.spec.key for child in channels}
        self._holding = set(self._held)
        self._hold_until_ns = now + options.HOLD_MS * NS_PER_MS
        for child in channels:
            if self._holding:  # else an order could not be sent, and the move is given up
                site.send_order(
                    child,
                    lambda request: p.Hold(request, is_over=False),
                    partial(self._hold_answered, child.spec.key),
                    options.MOVE_PATIENCE_S,
                )
        if not channels:
            self._move()

    def _is_misplaced(self, now: int) -> bool:
        """Return True if the topic should be in other processes."""
        host, own = self._host, self._own_process()
        if self.state is not GroupState.UP or (host is None and own == "always"):
            return False
        self._past.look(now)
        if host is not None:
            is_wrong = host.is_left or host.is_crowded or host.ends != self._past.ends
            return is_wrong or self._is_too_busy()
        is_quiet = own == "never" or self.load.is_quiet(self._site.options.share_after_s, now)
        return is_quiet and self._has_room() and not self._past.is_cause

    def _is_too_busy(self) -> bool:
        """Return True if the topic should leave its shared host for processes of its own."""
        own = self._own_process()
        return self._host is not None and (own == "always" or (own == "busy" and self.load.is_busy))

    @property
    def size(self) -> int:
        """The actors of the topic. Until it was up once, its channels may not be known."""
        return 1 + (len(self.channels) or UNKNOWN_CHANNELS * (not self._knows_channels))

    def _has_room(self) -> bool:
        """Return True if the topic with all its channels has room in a shared host."""
        return not self._past.ends or self.size <= room(self._past.ends)

    def _may_move(self) -> bool:
        """Return True if no client waits for the topic's processes, and all of them are up."""
        waits = self._waiting or self._settling or self.deleting or self.is_sealing
        if waits or not self.settled() or self.failed_channels() or not self._can_move():
            return False
        assert self.topic is not None
        return may_move(cast("TopicPulse", self.topic.stats)) and not any(
            map(self._site.owes_answer, self.children())
        )

    def _are_held(self) -> bool:
        """Return True if the channels that were held are all, and hold on until they stop."""
        keys = {child.spec.key for child in self.children() if child is not self.topic}
        return keys == self._held and time.monotonic_ns() < self._hold_until_ns

    def _hold_answered(self, key: int, answer: object, error: ZsqError | None) -> None:
        """Move when all channels are held, or let all of them go on."""
        if key not in self._holding:
            return
        self._holding.discard(key)
        if error is None and self._holding:
            return
        if error is None and self._may_move() and self._are_held():
            self._move()
            return
        self._holding.clear()
        self._stay(is_busy=self._is_busy)
        self._site.mover = None
        for child in self.children():
            if child.spec.key in self._held:
                self._site.send_order(
                    child, lambda request: p.Hold(request, is_over=True), lambda *_: None
                )

    def _stay(self, *, is_busy: bool) -> None:
        """Try to move again later. After a few tries, the neighbours of a busy topic leave."""
        pause_s = doubled(options.MOVE_AGAIN_S, self._moves_failed, options.MOVE_AGAIN_S_MAX)
        self._moves_failed += 1
        if is_busy and self._host is not None and self._moves_failed >= options.MOVES_FAILED:
            self._host.is_left = True
        self._move_ns = time.monotonic_ns() + int(pause_s * 1e9)

    def _move(self) -> None:
        log.debug(
            "topic %s moves to %s", self.name, "own processes" if self._is_busy else "a shared host"
        )
        self._moves_failed, self._is_moving = 0, True
        self._go("doze")
        self._doze_next()

    def begin_asleep(
        self, topic: Mapping[str, Any], channels: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Begin as a topic that sleeps. These are the last pulses of its processes, which ended
        with the last broker.
        """
        self._go("slept")
        self._knows_channels = True
        self.topic = self._ended("topic", f"topic {self.name}", topic)
        for name, stats in channels.items():
            ended = self._ended("channel", f"channel {self.name}/{name}", stats)
            self.channels[name] = ChannelProcess(ended)
        storage = storage_pulse(self)
        asleep_ns = sleep_ns(storage, self.retention(), random.random())
        self._wake_ns = time.monotonic_ns() + asleep_ns
        self._count_asleep(1 + len(self.channels))
        self._site.names_changed = True

    def _ended(self, kind: str, title: str, stats: Mapping[str, Any]) -> Child:
        spec = ChildSpec(self._processes.new_key(), kind, title)
        return Child(spec, None, "ended", stats=at_rest(stats), owner=self)

    def differs(self, channel: str, settings: Mapping[str, Any]) -> ZsqError | None:
        """Return an error if the settings of the channel differ from those that a request expects.

        The channel must be up.
        """
        child = self.child(channel)
        try:
            if child is not None and channel and settings:
                check_same(child.data.get("settings", {}), settings, self.name, channel)
        except ZsqError as error:
            return error
        return None

    def begin_deletion(self, channel: str, *, lost: bool = False) -> None:
        """Remove a channel. Until `end_deletion`, requests for it wait or fail.

        `lost` means that its process died. The count of restarts is then kept for the channel's
        next process.
        """
        self.deleting.setdefault(channel, [])
        self._drop_channel(channel, lost=lost)

    def end_deletion(self, channel: str) -> None:
        """Make the channel again if requests for it came meanwhile."""
        for then, settings in self.deleting.pop(channel, ()):
            self.want(channel, then, settings)

    def _drop_channel(self, channel: str, *, lost: bool = False) -> None:
        if not lost:
            self.channel_restarts.pop(channel, None)
        self._starts.done(channel)
        self.channels.pop(channel, None)
        self._tell(channel, ZsqError(E_CLOSING, f"channel {channel!r} was deleted"))
        self._site.channels_changed = True
        self._site.names_changed = True

    def endpoints(self, channel: str, *, with_settings: bool = False) -> dict[str, Any]:
        """Return the data of a Lookup reply.

        The topic must be up. `with_settings` adds the channel's settings.
        """
        assert self.topic is not None
        child = self.child(channel) if channel else None
        of_topic = self.topic.spec.start
        assert isinstance(of_topic, TopicStart)
        reply: dict[str, Any] = {}
        if child is not None and with_settings:
            reply["settings"] = channel_settings.resolve(child.data.get("settings", {})).as_dict()
        return reply | {
            "topic": of_topic.front,
            "reader": of_topic.storage.reader,
            "stage": of_topic.storage.stage,
            "push": of_topic.storage.push,
            "channel": child.spec.start.front if child is not None else "",
            "uuid": self.row.uuid,
            "node": self._registry.node,
            "message_bytes": self._site.options.max_msg_size,
        }
