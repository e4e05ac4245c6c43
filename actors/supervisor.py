"""The supervisor: starts, watches, restarts and stops all processes; answers who asks where things are.

The one fixed endpoint is RUN/supervisor. What clients ask for (Lookup, Manage, Stats) is in management.py; a topic's
processes in topic_group.py, those that belong to no topic in singles.py; here are the loop, the process table's events, and the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import zmq

from ..transport import protocol as p
from ..transport.errors import E_LIMIT, ZsqError
from ..transport.memory import release_memory
from . import audit, logs, options
from .alarm_desk import AlarmDesk
from .audit import AuditLog
from .child import ChildSpec
from .deletion import open_again
from .management import Management
from .options import ServeOptions
from .port import Mail, Port
from .process import has_terminal
from .process_table import Child, ProcessTable
from .registry import Registry
from .reloading import Fresh, Reloading
from .service_manager import ServiceManager
from .singles import Singles
from .topic_group import TopicGroup
from .trimming import Trimming

log = logging.getLogger("zsq")


class Supervisor:
    """One life of the broker on one data directory."""

    def __init__(
        self, serve_options: ServeOptions, registry: Registry, run_dir: str, read_again: Callable[[], Fresh] | None = None
    ) -> None:
        self.options = serve_options
        self.registry = registry
        self.run_dir = run_dir
        self.started = time.time()
        self.groups: dict[str, TopicGroup] = {}
        self.channels_changed = False
        self.exit_code = 0
        # Keys are incarnations, in endpoints and lease tokens: begun at random, so that the next life has others.
        self._key = int.from_bytes(os.urandom(4), "little") & 0x3FFF_FFFF
        self._signals = 0
        self._hung_up = False
        self._has_terminal = has_terminal()
        self._looked_ns = 0
        self._starts_until_ns = 0
        self._more_to_start = False
        self.changes = 0
        """Processes that were started, ended, or asked for details: what takes memory here."""
        self._memory = Trimming(time.monotonic_ns())
        self._memory_ns = 0
        self._stop_deadlines: dict[int, int] = {}
        self.stopping = False
        self._generation_over = False
        self._ready = False
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, options.SOCKETS_MAX)
        self.port = Port(self.context, zmq.ROUTER)
        self.scan_endpoint = self.endpoint(self.new_key())
        self.table = ProcessTable(self._own_endpoint(), serve_options.log_level, serve_options.log_format)
        self.singles = Singles(self)
        self.audit = AuditLog(serve_options.data_dir.absolute() / audit.FILE)
        self.management = Management(self)
        self.alarms = AlarmDesk(self)
        self.reloading = Reloading(self, read_again)
        self.service = ServiceManager(os.environ)

    def new_key(self) -> int:
        self._key += 1
        return self._key

    def endpoint(self, number: int) -> str:
        return f"ipc://{self.run_dir}/{number}"

    def _own_endpoint(self) -> str:
        return f"ipc://{self.run_dir}/supervisor"

    # Children

    def start(self, spec: ChildSpec, owner: TopicGroup | None = None) -> Child:
        if len(self.table.children) >= options.PROCESSES_MAX:
            raise ZsqError(E_LIMIT, f"a node runs at most {options.PROCESSES_MAX} processes")
        self.changes += 1
        try:
            return self.table.start(spec, owner)
        except OSError as error:
            raise ZsqError(E_LIMIT, f"{spec.title} cannot be started: {error.strerror or error}; raise the limits of this user") from None

    def can_start(self, count: int) -> bool:
        """Whether so many more processes are within the limit; asked before anything is promised."""
        return len(self.table.children) + count <= options.PROCESSES_MAX

    def may_start(self) -> bool:
        """Whether this turn has time for another start of a channel. If not, the next turn comes at once."""
        self._more_to_start = self._more_to_start or time.monotonic_ns() >= self._starts_until_ns
        return not self._more_to_start

    def guarded(self, group: TopicGroup, step: Callable[[], None]) -> None:
        """What fails here fails its topic, never the others."""
        try:
            step()
        except (ZsqError, OSError) as error:
            group.fail(str(error))

    def stop_child(self, child: Child) -> None:
        """Ask it to end; kill it when it does not within its time."""
        if child.told_to_stop:
            return
        child.told_to_stop = True
        if child.state == "up":
            self.port.send(child.envelope, p.Stop())
            self._stop_deadlines[child.spec.key] = time.monotonic_ns() + int(child.spec.stop_timeout_s * 1e9)
        else:
            self.table.kill(child)
        child.state = "stopping"

    def add_group(self, name: str, row: Any) -> TopicGroup:
        group = self.groups[name] = TopicGroup(self, name, row)
        self.guarded(group, group.start)
        return group

    # Life

    def run(self) -> int:
        previous = os.umask(0o077)
        try:
            self.port.socket.bind(self._own_endpoint())
        finally:
            os.umask(previous)
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # under nohup it stays ignored
                signal.signal(number, self._on_signal)
        poller = zmq.Poller()
        poller.register(self.port.socket, zmq.POLLIN)
        poller.register(self.table.events_fd, zmq.POLLIN)
        poller.register(wake_read.fileno(), zmq.POLLIN)
        self.audit.open()
        try:  # the starts too: whatever fails between them, no child is left for whom the interpreter's end would wait
            self._start_all()
            while not self._ended():
                self._turn(poller, wake_read)
        finally:
            signal.set_wakeup_fd(-1)
            for child in list(self.table.children.values()):
                self.table.kill(child)
            self.port.close()
            self.context.term()
            self.management.audits.close()
            self.audit.close()
        return self.exit_code

    def _start_all(self) -> None:
        self.table.start_forkserver()
        self.singles.start("scan_loop", {"front": self.scan_endpoint}, "scan loop")
        self.singles.start("scan_worker", {}, "scan worker")
        if self.options.gateway:
            listen: dict[str, Any] = {"listen": self.options.gateway, "push": options.push_listen(self.options)}
            listen |= {"supervisor": self._own_endpoint(), "security": self.options.security}
            self.singles.start("gateway", listen, "gateway zeromq")
        own = {"supervisor": self._own_endpoint(), "node_id": self.options.node_id, "security": self.options.security}
        for kind, given in (("nsq_gateway", self.options.nsq), ("http_gateway", self.options.http)):
            if given is not None:
                self.singles.start(kind, own | {"options": given, "optional": not given.given}, kind.replace("_gateway", " gateway"))
        self.alarms.start()
        self.registry.finish_removals()
        for name, row in list(self.registry.topics.items()):
            self.add_group(name, row)

    def _turn(self, poller: zmq.Poller, wake: socket.socket) -> None:
        if self._signals and not self.stopping:
            self.stop(0)
        elif self._hung_up and not self.stopping:
            self._on_hang_up()
        for source, _ in poller.poll(0 if self._more_to_start else 100):
            if source is self.port.socket:
                for mail in self.port.receive(options.DRAIN_MAX):
                    self._on_mail(mail)
            elif source == wake.fileno():
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
        self._on_processes()
        self.management.tick(time.monotonic_ns())
        self.alarms.tick(time.monotonic_ns())
        self.reloading.tick()
        self.service.tick(time.monotonic_ns())
        self._kill_late()
        self._now_and_then(time.monotonic_ns())
        self._starts_until_ns, self._more_to_start = time.monotonic_ns() + options.STARTS_TURN_MS * 1_000_000, False
        for group in list(self.groups.values()):
            self.guarded(group, group.tick)
        if self.channels_changed:
            self.singles.tell_scan()
        if not self._ready:
            self._tell_ready()

    def _on_signal(self, number: int, frame: object) -> None:
        """Only a note: it may interrupt a send between two frames. A second one does not wait for anybody."""
        if number == signal.SIGHUP:
            self._hung_up = True
            return
        self._signals += 1
        if self._signals > 1:
            for child in list(self.table.children.values()):
                self.table.kill(child)

    def _on_hang_up(self) -> None:
        """Somebody asks for new settings; or the terminal is gone in which this was started, and with it who would stop it."""
        self._hung_up = False
        if self._has_terminal and not has_terminal():
            self.stop(0)
        else:
            self.service.reloading(time.monotonic_ns())
            self.reloading.begin()
            if self._ready:
                self.service.ready("settings taken anew")

    def _on_mail(self, mail: Any) -> None:
        if not isinstance(mail, Mail):
            envelope, error = mail
            self.port.send(envelope, p.Failed(0, error.code, error.text))
            return
        word = mail.word
        if isinstance(word, p.Born):
            self._on_born(mail.envelope, word)
        elif isinstance(word, p.Pulse):
            child = self.table.children.get(word.key)
            if child is not None and child.envelope == mail.envelope:
                child.stats, child.pulsed_ns = child.stats | word.stats, time.monotonic_ns()
                if word.request:
                    self.management.gatherings.reported(word.request, word.key, word.details)
        elif isinstance(word, (p.PoolSize, p.Hung)) and not any(c.envelope == mail.envelope for c in self.singles.of_kind("scan_loop")):
            log.warning("%s from somebody who is not the scan loop: ignored", type(word).__name__)
        elif isinstance(word, p.PoolSize):
            self.singles.size_pool(word.workers)
        elif isinstance(word, p.Hung):
            child = self.table.children.get(word.key)
            if child is not None and child.spec.kind == "channel":
                log.error("%s does not answer the scan: killed, to be started again", child.spec.title)
                self.table.kill(child)
            elif child is not None:  # a sync or a large read may take that long: only its delayed messages wait
                log.warning("%s has not answered the scan for %g s", child.spec.title, options.SCAN_HUNG_S)
        elif isinstance(word, p.Failed) and (child := self._failing(mail.envelope, word)) is not None:
            child.failure = f"{'cannot start: ' if child.state == 'starting' else ''}{word.code} {word.text}"
        else:
            self.management.on_mail(mail)

    def _failing(self, envelope: tuple[bytes, ...], word: p.Failed) -> Child | None:
        """Whose last word it is, by its key. Keys and numbers of orders overlap: an answer to an order is none, nor is another's word."""
        if self.management.awaits(envelope, word.request):
            return None
        child = self.table.children.get(word.request)
        return child if child is not None and child.envelope in ((), envelope) else None

    def _on_born(self, envelope: tuple[bytes, ...], word: p.Born) -> None:
        child = self.table.children.get(word.key)
        if child is None or child.state != "starting":
            return
        child.state, child.envelope, child.data = "up", envelope, word.data
        log.debug("%s is up (pid %d)", child.spec.title, child.pid)
        if word.key in self.singles.children:
            self.channels_changed = True
            return
        if child.owner is not None:
            self.guarded(child.owner, lambda: child.owner.born(child))

    def _on_processes(self) -> None:
        ended, forkserver_dead = self.table.changes()
        if forkserver_dead and not self._generation_over:
            # Its children take its death as theirs: this generation is over, and a service manager starts the next.
            self._say("zsq: the forkserver ended unexpectedly; this broker ends, start it again", logging.ERROR)
            self.exit_code = 1
            self.stopping = self._generation_over = True
        if self._generation_over:
            return  # nothing is started again: what lives is about to die
        for child in ended:
            self._stop_deadlines.pop(child.spec.key, None)
            self.management.gatherings.ended(child.spec.key)
            self.changes += 1
            if not child.told_to_stop and not self.stopping:
                log.warning("%s (pid %d) ended%s", child.spec.title, child.pid, f": {child.failure}" if child.failure else "")
            self.singles.tell_gone(child)
            if not self.singles.ended(child) and child.owner is not None:
                self._group_lost(child)

    def _group_lost(self, child: Child) -> None:
        self.guarded(child.owner, lambda: child.owner.died(child))

    # The end

    def stop(self, exit_code: int, why: str = "") -> None:
        """In reverse order: gateways, scan, then each topic's channels, topic, storage. Everyone who waits is answered."""
        if why:
            self._say(f"zsq: {why}", logging.ERROR)
        if self.stopping:
            return
        log.info("stopping")
        self.service.stopping()
        self.stopping = True
        self.exit_code = exit_code
        self.management.stop()
        for child in list(self.singles.children.values()):
            self.stop_child(child)
        for group in self.groups.values():
            group.stop(lambda: None)

    def _kill_late(self) -> None:
        now = time.monotonic_ns()
        for key, deadline in list(self._stop_deadlines.items()):
            if now > deadline:
                del self._stop_deadlines[key]
                child = self.table.children.get(key)
                if child is not None:
                    log.warning("%s did not stop in time: killed", child.spec.title)
                    self.table.kill(child)
        if now - self._looked_ns < 1_000_000_000:
            return
        self._looked_ns = now
        for child in list(self.table.children.values()):
            if child.state == "starting" and now - child.started_ns > options.START_TIMEOUT_S * 1e9:
                log.error("%s did not start within %g s: killed", child.spec.title, options.START_TIMEOUT_S)
                self.table.kill(child)

    def _now_and_then(self, now: int) -> None:
        if now - self._memory_ns < options.MEMORY_LOOK_MS * 1_000_000:
            return
        self._memory_ns = now
        self.registry.settle()
        open_again(self.management)
        large = self.changes >= options.LARGE_CHANGE
        if large:
            self.changes = 0
        if self._memory.due(now, worked=False, stirred=large):
            release_memory()

    def _ended(self) -> bool:
        return self.stopping and not self.table.children

    def _tell_ready(self) -> None:
        if self.stopping or any(child.state != "up" for child in self.singles.children.values()):
            return
        if not all(group.settled() for group in self.groups.values()):
            return
        self._ready = True
        from .. import __version__

        gateways = [child.data for child in self.singles.of_kind("gateway")]
        places = [f"{data['endpoint']} (push port {data['push_port']})" for data in gateways] + [f"ipc://{self.run_dir}"]
        for kind in ("nsq_gateway", "http_gateway"):
            places += [place for child in self.singles.of_kind(kind) for place in child.data["places"]]
        self._say(f"zsq {__version__} ready: {', '.join(places)} (pid {os.getpid()})")
        self.service.ready(", ".join(places))

    def _say(self, text: str, level: int = logging.INFO) -> None:
        logs.say(text, self.options.log_format, level)
