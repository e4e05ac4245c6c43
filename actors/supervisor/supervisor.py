"""The supervisor: starts, watches and stops all processes, and answers the lookups of clients.

Its endpoint RUN/supervisor is the only fixed one. This module contains the loop, the events of the
process table, and the end of the broker. `commands/management.py` answers clients (Lookup, Manage,
Stats). `topics/topic_group.py` owns a topic's processes. `singles.py` owns the processes that
belong to no topic.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import zmq

from ...transport.errors import E_BUCKET, Refused
from ...transport.memory import release_memory
from ...transport.wire import protocol as p
from ...transport.wire.admin_requests import (
    END,
    AdminRequest,
    HandoverRequest,
    HistoryRequest,
    SetLookupdsRequest,
)
from ...transport.wire.answers import Nothing
from ...transport.wire.sockets import make_context
from ..runtime import logs
from ..runtime.child import Failure, Phase
from ..runtime.port import Mail, Port
from ..runtime.process import Trimming, has_terminal
from ..runtime.process_table import Child, ProcessTable
from ..runtime.processes import Processes
from ..runtime.services import actor_classes, services
from ..security import audit
from ..security.audit import AuditLog
from ..settings import options
from ..settings.options import ServeOptions
from ..statistics.broker_view import AlarmsView, BrokerView
from ..statistics.channel_rows import visible_end
from . import run_directory as rundir
from .commands import deletion
from .commands.management import Commands
from .commands.requests import Handler, Orders, Requests, answered_by
from .disk_watch import DiskWatch
from .extension_point import Condition, SupervisorParts, supervisor_extensions
from .history_keeper import HistoryKeeper
from .reloading import Fresh, Reloading
from .service_manager import ServiceManager
from .singles import Singles
from .start_reserve import StartReserve
from .topics.broker_state import BrokerState
from .topics.dormancy import at_rest
from .topics.registry import Registry
from .topics.registry_format import AWAY
from .topics.sleepers import Sleeper, sleepers_of
from .topics.topic_group import TopicGroup

log = logging.getLogger("zsq")

# The broker is no longer primary. This is no exit code of a process: `standby/role.py` sees it.
EXIT_NOT_PRIMARY: Final = 100
# A process that fails by an exception says so. Of another end the supervisor is told nothing,
# because the processes are children of the forkserver.
NO_REASON: Final = (
    " and gave no reason: it crashed or was killed (if memory ran out, `dmesg` says so)"
)


class Supervisor:
    """One run of the broker on one data directory."""

    def __init__(
        self,
        serve_options: ServeOptions,
        registry: Registry,
        run_dir: str,
        read_again: Callable[[], Fresh] | None = None,
        sleepers: Mapping[str, Sleeper] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.reserve = StartReserve(serve_options.data_dir.absolute())
        self._sleepers = sleepers or {}
        self.slept: dict[str, Sleeper] = {}
        """The topics that were asleep when this broker was told to stop."""
        self.exit_code = 0
        self._signals = 0
        self._signal_ns = 0
        self._hung_up = False
        self._socket_inode: int | None = None
        self._has_terminal = has_terminal()
        self._memory = Trimming(time.monotonic_ns())
        self._memory_ns = 0
        self._generation_over = False
        self._ready = False
        self._unsettled: TopicGroup | None = None
        self.context = make_context(options.SOCKETS_MAX)
        self.port = Port(self.context, zmq.ROUTER)
        # An actor that connects again takes over its name from its dead connection.
        self.port.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.table = ProcessTable(
            actor_classes(), self._own_endpoint(), serve_options.log_level, serve_options.log_format
        )
        self.processes = Processes(
            self.table, self.port, run_dir, serve_options.processes_max, self.reserve.lend
        )
        self.state = BrokerState(
            serve_options, registry, self.processes, self._channel_died, self._unused,
            self._forget_topic,
        )  # fmt: skip
        self.orders = Orders(self.processes)
        self.state.send_order = self.orders.send
        self.state.owes_answer = self.orders.owes_answer
        self.singles = Singles(self.state, self.orders, self.stop)
        self.disk = DiskWatch(self.state)
        self.reloading = Reloading(
            self.state, self.singles, self.orders, self._reloaded, read_again
        )
        self.audit = AuditLog(serve_options.data_dir.absolute() / audit.FILE)
        self.requests = Requests(
            self.state, self.orders, self.audit, self.port.send, self.disk.count_refused
        )
        self.extensions = supervisor_extensions(
            SupervisorParts(
                self.state, self.requests, self.singles, self.disk, self._conditions, self.stop
            )
        )
        view = BrokerView(
            registry.node, registry.uuid, self.state.started, self.state.groups, self.processes, self.singles.children,
            self.disk, self._alarms(), self._troubles,
        )  # fmt: skip
        self.history = HistoryKeeper(view, serve_options.data_dir.absolute())
        answered = partial(answered_by, self.requests)
        handlers: dict[type[AdminRequest[Any]], Handler] = {
            HistoryRequest: answered(self.history.answer),
            HandoverRequest: answered(self._hand_over),
            SetLookupdsRequest: self._set_lookupds,
        }
        for extension in self.extensions:
            handlers |= extension.handlers()
        self.commands = Commands(self.requests, view, handlers)
        self.service = ServiceManager(os.environ)

    def _troubles(self) -> str:
        """Return what is wrong with the settings, the extensions and the cluster, or "", for the
        health report.
        """
        conditions = [condition.trouble for condition in self._conditions().values()]
        of_extensions = [extension.trouble for extension in self.extensions]
        troubles = (*conditions, self.commands.trouble, *of_extensions)
        # The bucket is an extension with a condition, and is named once.
        return "; ".join(dict.fromkeys(filter(None, (trouble() for trouble in troubles))))

    # Extensions

    def _conditions(self) -> Mapping[str, Condition]:
        settings = Condition(self.reloading.trouble, "all gateways have the new settings")
        conditions = {"settings": settings}
        for extension in self.extensions:
            conditions |= extension.conditions()
        return conditions

    def _alarms(self) -> AlarmsView:
        alarms = (extension.alarms() for extension in self.extensions)
        return next((view for view in alarms if view is not None), AlarmsView())

    def _reloaded(self) -> None:
        for extension in self.extensions:
            extension.reloaded(self.state.options)

    def _forget_topic(self, topic_uuid: str) -> None:
        for extension in self.extensions:
            extension.forget_topic(topic_uuid)

    def _own_endpoint(self) -> str:
        return f"ipc://{self.run_dir}/supervisor"

    def _channel_died(self, group: TopicGroup, channel: str) -> None:
        """Remove an ephemeral channel whose process ended.

        The next client that wants it gets a new one.
        """
        deletion.remove_channel(self.requests, group, channel, lambda error: None, lost=True)

    def _unused(self, group: TopicGroup) -> None:
        deletion.end_if_over(self.requests, group)

    # Loop

    def run(self) -> int:
        previous = os.umask(0o077)
        try:
            self.port.socket.bind(self._own_endpoint())
        finally:
            os.umask(previous)
        self._socket_inode = self._inode()
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        # nohup ignores SIGHUP. The broker then outlives its terminal, and SIGHUP only reloads.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            self._has_terminal = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        poller = zmq.Poller()
        poller.register(self.port.socket, zmq.POLLIN)
        poller.register(self.table.events_fd, zmq.POLLIN)
        poller.register(wake_read.fileno(), zmq.POLLIN)
        self.audit.open()
        # The starts are inside the `try`: when the interpreter ends, it waits for each child that
        # still runs.
        try:
            self._start_all()
            while not self._ended():
                self._turn(poller, wake_read)
        finally:
            signal.set_wakeup_fd(-1)
            if self.exit_code != EXIT_NOT_PRIMARY:
                # The process ends. One more signal must not change its exit code.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
            self.processes.kill_all()
            self.state.registry.settle()
            self.port.close()
            self.context.term()
            self.requests.audits.close()
            self.audit.close()
        return self.exit_code

    def _start_all(self) -> None:
        self.table.start_forkserver()
        self.singles.start_all()
        self.state.registry.finish_removals()
        for name, row in list(self.state.registry.topics.items()):
            if row.state not in AWAY:
                self.state.add_group(name, row, self._sleepers.get(name))

    def _turn(self, poller: zmq.Poller, wake: socket.socket) -> None:
        if self._signals and not self.state.stopping:
            self.stop(0)
        elif self._hung_up and not self.state.stopping:
            self._on_hang_up()
        for source, _ in poller.poll(self._wait_ms()):
            if source is self.port.socket:
                for mail in self.port.receive(options.DRAIN_MAX):
                    self._on_mail(mail)
            elif source == wake.fileno():
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
        self._on_processes()
        if self.state.stopping:
            self._stop_last()
        self.commands.tick(time.monotonic_ns())
        self.disk.tick(time.monotonic_ns())
        for extension in self.extensions:
            extension.tick(time.monotonic_ns())
        self.history.tick()
        self.reloading.tick()
        self.service.tick(time.monotonic_ns())
        self.singles.tick(time.monotonic_ns())
        self.processes.kill_late()
        self._now_and_then(time.monotonic_ns())
        self.processes.begin_turn(time.monotonic_ns())
        self.state.tick(time.monotonic_ns())
        if self.state.channels_changed:
            self.singles.tell_scan()
        if self.state.names_changed and not self.state.stopping:
            self.singles.tell_names()
        if not self._ready:
            self._tell_ready()

    def _wait_ms(self) -> int:
        """Return how long the next turn waits for input. An idle broker looks at its clocks less
        often.
        """
        if self.processes.more_to_start:
            return 0
        state = self.state
        is_idle = self._ready and not (
            state.stirred or state.channels_changed or state.names_changed or state.stopping
        )
        return options.IDLE_TURN_MS if is_idle else options.TURN_MS

    def _on_signal(self, number: int, frame: object) -> None:
        """Only note the signal, because it may have interrupted a send between two frames.

        A second signal kills all processes. Signals that follow the first one at once count as one:
        a service manager, a shell and a script may each pass one on.
        """
        if number == signal.SIGHUP:
            self._hung_up = True
            return
        now_ns = time.monotonic_ns()
        self._signals += 1
        if self._signals == 1:
            self._signal_ns = now_ns
        elif now_ns - self._signal_ns > options.SIGNALS_AS_ONE_S * 1e9:
            self.processes.kill_all()

    def _on_hang_up(self) -> None:
        """Reload the settings, or stop if the terminal in which the broker was started is gone."""
        self._hung_up = False
        if self._has_terminal and not has_terminal():
            self.stop(0)
        else:
            self.service.reloading(time.monotonic_ns())
            self.reloading.begin()
            if self._ready:
                self.service.ready("settings reloaded")

    def _on_mail(self, mail: Any) -> None:
        if not isinstance(mail, Mail):
            self.port.send(*mail)
            return
        message = mail.message
        if isinstance(message, p.Born):
            self._on_born(mail.envelope, message)
        elif isinstance(message, p.Pulse):
            for extension in self.extensions:
                extension.last_pulse(message.key, message.stats)
            self.commands.noted(message.key, message.stats)
            child = self.processes.children.get(message.key) or self._sleeper(message.key)
            if child is not None and child.envelope == mail.envelope:
                stats = message.stats if child.state != "ended" else at_rest(message.stats)
                child.stats, child.pulsed_ns = {**child.stats, **stats}, time.monotonic_ns()
                if child.spec.kind == "channel" and child.owner is not None:
                    # The topic answers the same request, and its end belongs to this report.
                    child.topic_end = END if message.request else visible_end(child.owner)
                if child.spec.kind in services():
                    for extension in self.extensions:
                        extension.pulse(child)
                if not message.request:
                    child.news_ns = child.pulsed_ns
                    if child.owner is not None:
                        cpu_ns = int(message.stats.get("cpu_ns", 0))
                        child.owner.load.add(message.key, cpu_ns, child.pulsed_ns)
                if message.request:
                    self.requests.gatherings.reported(message.request, message.key, message.details)
        elif any(extension.hears(mail) for extension in self.extensions):
            pass
        elif isinstance(message, (p.PoolSize, p.Hung)) and not any(
            c.envelope == mail.envelope for c in self.singles.of_kind("scan_loop")
        ):
            log.warning(
                "message %s ignored: its sender is not the scan loop", type(message).__name__
            )
        elif isinstance(message, p.PoolSize):
            self.singles.size_pool(message.workers)
        elif isinstance(message, p.Hung):
            child = self.processes.children.get(message.key)
            if child is not None and child.spec.kind == "channel":
                log.error(
                    "%s does not answer the scan: it is killed and started again", child.spec.title
                )
                self.processes.kill_hanging(child)
            # A topic that does a slow sync or read is not killed. Only its delayed messages wait.
            elif child is not None:
                log.warning(
                    "%s has not answered the scan for %g s; its delayed messages wait",
                    child.spec.title,
                    options.SCAN_HUNG_S,
                )
        elif (
            isinstance(message, p.Failed)
            and (child := self._failing(mail.envelope, message)) is not None
        ):
            phase = Phase.START if child.state == "starting" else Phase.RUN
            child.failure = Failure(
                phase,
                message.code[: options.FAILURE_CHARS_MAX],
                message.text[: options.FAILURE_CHARS_MAX],
            )
        else:
            self.commands.on_mail(mail)

    def _sleeper(self, key: int) -> Child | None:
        """Return the process with this key if it ended because its topic sleeps.

        Its last pulse may arrive after the news of its end.
        """
        for group in self.state.groups.values():
            if group.is_dormant:
                for child in group.processes():
                    if child.spec.key == key:
                        return child
        return None

    def _failing(self, envelope: tuple[bytes, ...], message: p.Failed) -> Child | None:
        """Return the child that reports its own failure with this message, or None.

        `Failed` is also the answer to an order that was refused. In a child's own report, the
        request number is the child's key, and an order can have the same number. So an answer to an
        order does not count as a child's failure. Nor does a message with another child's envelope.
        """
        if self.orders.awaits(envelope, message.request):
            return None
        child = self.processes.children.get(message.request)
        return child if child is not None and child.envelope in ((), envelope) else None

    def _on_born(self, envelope: tuple[bytes, ...], message: p.Born) -> None:
        child = self.processes.children.get(message.key)
        if child is not None and child.state == "stopping" and not child.envelope:
            self.processes.stop_started(child, envelope)
        if child is None or child.state != "starting":
            return
        child.state, child.envelope, child.data = "up", envelope, message.data
        log.debug("%s is up (pid %d)", child.spec.title, child.pid)
        if message.key in self.singles.children:
            self.state.channels_changed = True
            return
        if child.owner is not None:
            self.state.guarded(child.owner, lambda: child.owner.born(child))

    def _on_processes(self) -> None:
        ended, forkserver_dead = self.table.changes()
        if forkserver_dead and not self._generation_over:
            # All processes end with the forkserver that started them, so this broker cannot go on.
            # A service manager starts the next broker.
            self._say(
                (
                    "zsq: the forkserver process ended unexpectedly, so this broker stops; start "
                    "it again"
                ),
                logging.ERROR,
            )
            self.exit_code = 1
            self.state.stopping = self._generation_over = True
        if self._generation_over:
            return  # no process is started again, because all that live are about to end
        self._tell_ends_of_hosts(ended)
        for child in ended:
            self.processes.ended(child)
            self.requests.gatherings.ended(child.spec.key)
            rundir.remove_sockets(self.run_dir, child.spec.start.endpoints())
            tells = not child.told_to_stop and not self.state.stopping
            self.singles.tell_gone(child)
            is_single = self.singles.ended(child)
            # If the broker ends because of this child, its last line says why.
            if tells and not self.state.stopping:
                is_shared = child.host is not None and child.host.is_shared
                log.log(
                    logging.DEBUG if is_shared and not child.failure else logging.WARNING,
                    "%s (pid %d) ended%s",
                    child.spec.title,
                    child.pid,
                    _why(child),
                )
            if not is_single and child.owner is not None:
                self._group_lost(child)

    def _tell_ends_of_hosts(self, ended: list[Child]) -> None:
        """Log the end of a shared host once, and not for each of its actors."""
        topics = Counter(
            child.host
            for child in ended
            if child.host is not None
            and child.host.is_shared
            and child.host not in self.table.hosts
            and child.spec.kind == "topic"
            and not child.told_to_stop
        )
        explained = {child.host for child in ended if child.failure or child.hangs}
        for host, count in topics.items() if not self.state.stopping else ():
            log.warning(
                "shared process %s (pid %d) ended%s; its topics (%d) start again",
                host.title,
                host.pid,
                "" if host in explained or host.is_killed else NO_REASON,
                count,
            )

    def _group_lost(self, child: Child) -> None:
        self.state.guarded(child.owner, lambda: child.owner.died(child))

    # The end

    def stop(self, exit_code: int, why: str = "") -> None:
        """Stop all processes.

        Gateways and scan stop at once, and each topic in this order: its channels, then the topic.
        Some services stop last (`_stop_last`). All waiting requests are answered, and no topic
        is created from now on.
        """
        if why:
            self._say(f"zsq: {why}", logging.ERROR)
        if self.state.stopping:
            return
        log.info("stopping")
        self.service.stopping()
        self.state.stopping = True
        self.slept = sleepers_of(self.state.groups.values(), self.state.registry.folder)
        self.exit_code = exit_code
        self.requests.stop()
        for child in list(self.singles.children.values()):
            if not services()[child.spec.kind].stops_last:
                self.processes.stop_child(child)
        for extension in self.extensions:
            extension.stopping()
        for group in self.state.groups.values():
            group.stop(lambda: None)

    def _set_lookupds(self, request: SetLookupdsRequest) -> None:
        relay = partial(self.requests.relay, request.request)
        self.singles.set_lookupds(request.addresses, relay)

    def _hand_over(self, request: HandoverRequest) -> Nothing:
        """Stop, so that a standby takes over at once. Raises `Refused` if there is none."""
        if not any(extension.hand_over() for extension in self.extensions):
            raise Refused(E_BUCKET, "this broker cannot hand over: no standby can follow it")
        return {}

    def _stop_last(self) -> None:
        """Stop the services that stop last, when no other process runs."""
        singles = self.singles.children.values()
        last = [child for child in singles if services()[child.spec.kind].stops_last]
        is_alone = len(last) == len(self.processes.children)
        if last and is_alone and all(extension.may_end() for extension in self.extensions):
            for child in last:
                self.processes.stop_child(child)

    def _now_and_then(self, now: int) -> None:
        if now - self._memory_ns < options.MEMORY_LOOK_MS * 1_000_000:
            return
        self._memory_ns = now
        self._look_for_sockets()
        if all(child.state != "starting" for child in self.processes.children.values()):
            self.reserve.keep()
        self.processes.end_hosts()
        self.state.registry.settle()
        self.state.registry.remove_left()
        deletion.open_again(self.requests)
        large = self.processes.changes >= options.LARGE_CHANGE
        if large:
            self.processes.changes = 0
        if self._memory.due(now, worked=False, stirred=large):
            release_memory()

    def _look_for_sockets(self) -> None:
        """End the broker if its run directory was removed.

        Without that directory, new clients could not reach any process, and no process can bind its
        socket a second time. All messages that were acknowledged are on disk. A service manager, or
        zsqd, starts the broker again with a new run directory.
        """
        inode = self._inode()
        if (
            self._socket_inode
            and inode not in (self._socket_inode, None)
            and not self.state.stopping
        ):
            event = "was removed" if not inode else "was replaced"
            text = f"the socket {self.run_dir}/supervisor {event}, so clients cannot connect"
            self.stop(1, f"{text}: this broker stops; start it again")

    def _inode(self) -> int | None:
        """Return the inode of the supervisor's socket, 0 if it is missing, None if unknown."""
        try:
            return os.stat(f"{self.run_dir}/supervisor").st_ino
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError:
            return None

    def _ended(self) -> bool:
        if self.state.stopping and not self.processes.children:
            self.processes.end_hosts(everything=True)
            return not self.table.hosts
        return False

    def _tell_ready(self) -> None:
        if self.state.stopping or any(
            child.state != "up" for child in self.singles.children.values()
        ):
            return
        # The topic that was not settled in the last turn comes first, for there may be thousands.
        if self._unsettled is not None and not self._unsettled.settled():
            return
        groups = self.state.groups.values()
        self._unsettled = next((group for group in groups if not group.settled()), None)
        if self._unsettled is not None:
            return
        self._ready = True
        from ... import __version__

        places = [f"ipc://{self.run_dir}"]
        for kind, service in services().items():
            for child in self.singles.of_kind(kind):
                listens = service.places(child.data)
                places = [*listens, *places] if kind == "gateway" else [*places, *listens]
        self._say(f"zsq {__version__} ready: {', '.join(places)} (pid {os.getpid()})")
        self.service.ready(", ".join(places))

    def _say(self, text: str, level: int = logging.INFO) -> None:
        logs.say(text, self.state.options.log_format, level)


def _why(child: Child) -> str:
    """Return why a child ended, to follow "ended" in the log."""
    if child.failure:
        return f": {child.failure}"
    return "" if child.host is None or child.host.is_killed else NO_REASON
