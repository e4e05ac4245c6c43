"""The broker in the simulated world: the real supervisor with all its actors, on a process table
that starts greenlets.

This module replaces the parts of `actors/supervisor/serve.py` and `actors/runtime/process_table.py`
that use the operating system. All other code is the product's.
"""

from __future__ import annotations

import logging
import pkgutil
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from zsq.actors.bucket.archive import archive_actor, shipper
from zsq.actors.bucket.topic import archiving
from zsq.actors.runtime import placement
from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.process_table import Child, HostProcess
from zsq.actors.runtime.pulses import ChannelPulse, TopicPulse
from zsq.actors.runtime.services import actor_classes
from zsq.actors.settings import options
from zsq.actors.settings.options import ServeOptions
from zsq.actors.storage import storage_actor
from zsq.actors.supervisor import supervisor
from zsq.actors.supervisor.topics import topic_group
from zsq.actors.supervisor.topics.dormancy import is_unused
from zsq.actors.supervisor.topics.registry import Registry
from zsq.actors.topic import topic
from zsq.apps import restore as restoring
from zsq.storage.bucket.archive import chunk_cache
from zsq.storage.errors import Locked, StorageError
from zsq.storage.files import Files
from zsq.transport import errors

from . import scenario
from .attributes import Attributes, watch_leases
from .bounded import Bounded, watch_drops
from .bucket import URL, PatientBucket
from .disasters import watch as watch_disasters
from .disk import Disk
from .former import Former
from .former import watch as watch_formers
from .losses import Losses, watch_log
from .shipping import ShipPlan, SimLeaseCell, watch_event
from .shipping import prepare as prepare_shipping
from .sockets import Descriptor
from .standby import StandbyMachine
from .standby import prepare as prepare_standby
from .threads import Flag
from .world import MS, Process, S, World, the_world

RUN_DIR: Final = "/simulated/run"
URL_DIRECT: Final = f"ipc://{RUN_DIR}"
TCP: Final = "127.0.0.1:4153"
URL_TCP: Final = f"tcp://{TCP}"
# The addresses of the machines of brokers that live on after a takeover, one after the other.
ADDRESSES: Final = tuple(f"127.0.0.{number}:4153" for number in range(2, 6))
URL_SEVERAL: Final = ",".join(f"tcp://{address}" for address in ADDRESSES)

# The exceptions by which a process of the broker may end itself. Any other exception is an error of
# the product.
MEANT: Final = ("StoreFailed", "StartFailed")


class _Ended(Descriptor):
    """A descriptor that is readable while there are ended children that were not reported yet."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.children: list[Child] = []

    def readable(self) -> bool:
        return bool(self.children)


class SimTable:
    """Replacement for the `ProcessTable` of one supervisor process."""

    def __init__(
        self,
        actors: Mapping[str, str],
        supervisor_endpoint: str,
        log_level: str,
        log_format: str = "text",
    ) -> None:
        self.world = the_world()
        assert self.world.current is not None
        self.process = self.world.current.process
        self.children: dict[int, Child] = {}
        self.hosts: set[HostProcess] = set()
        self.processes: dict[int, Process] = {}  # by key
        self.lifelines: dict[int, Flag] = {}
        self.alone: set[int] = set()  # actors that end, while their host goes on
        self._endpoint = supervisor_endpoint
        self._ended = _Ended(self.process)
        self.process.on_death.append(self._orphan)

    @property
    def events_fd(self) -> int:
        return self._ended.fd

    def start_forkserver(self) -> None:
        self.forkserver_pid = 1

    def start(self, spec: ChildSpec, owner: Any = None, host: HostProcess | None = None) -> Child:
        """Start an actor as a process of the world. If it is killed, so are those of its host."""
        world = self.world
        start = self.process.start
        process = Process(world, f"{spec.title} [{start}]", spec.kind)
        process.start, process.machine = start, self.process.machine
        former = self.process.former
        if former is not None:
            former.adopt(process)
        place = len(world.incarnations) if former is None else former.next_incarnation()
        world.incarnations[spec.key] = place
        lifeline = Flag(process)
        if host is None:
            host = HostProcess(process.pid, cast("Any", None))
            self.hosts.add(host)
        child = Child(spec, host, owner=owner)
        host.children[spec.key] = child
        self.children[spec.key] = child
        self.processes[spec.key] = process
        self.lifelines[spec.key] = lifeline
        process.on_death.append(_end_sockets)
        process.on_death.append(partial(self._noticed, child))
        process.run(
            partial(self._live, process, spec, lifeline.fd),
            delay_ns=world.rng.randrange(2 * MS, 15 * MS),
        )
        return child

    def start_shared(self, number: int, ends: int) -> HostProcess:
        host = HostProcess(0, cast("Any", None), number, ends)
        self.hosts.add(host)
        return host

    def _live(self, process: Process, spec: ChildSpec, lifeline: int) -> None:
        """Run an actor as `child_main` does, without the operating system."""
        try:
            actor = pkgutil.resolve_name(actor_classes()[spec.kind])(
                spec.key, spec.title, spec.start
            )
            if spec.kind == "channel":
                self.world.broker.watch_moves(actor)
            actor.run(self._endpoint, lifeline)
        except BaseException as error:
            if type(error).__name__ not in MEANT:
                self.world.trouble(process, error)
            process.kill(f"ends by {type(error).__name__}")
        else:
            self.alone.add(spec.key)
            process.kill("ends")
        self.world.leave()

    def _noticed(self, child: Child, process: Process) -> None:
        """Report the death to the supervisor a little later, as a pidfd would.

        Unless the actor ended by itself, its neighbours in a shared host end with it.
        """
        host = child.host
        assert host is not None
        host.children.pop(child.spec.key, None)
        if host.is_shared and child.spec.key not in self.alone:
            host.is_explained = host.is_explained or child.failure is not None
            self.hosts.discard(host)
            self.kill(host)
        elif not host.is_shared:
            self.hosts.discard(host)
        self.world.after(self.world.rng.randrange(20_000, 2 * MS), partial(self._tell, child))

    def _tell(self, child: Child) -> None:
        self._ended.children.append(child)
        self.process.wake(self._ended)

    def changes(self) -> tuple[list[Child], bool]:
        ended, self._ended.children = self._ended.children, []
        for child in ended:
            child.state = "ended"
            self.children.pop(child.spec.key, None)
            self.processes.pop(child.spec.key, None)
            self.lifelines.pop(child.spec.key, None)
        return ended, False

    def kill(self, host: HostProcess) -> None:
        self.hosts.discard(host)
        for key in list(host.children):
            process = self.processes.get(key)
            if process is not None:
                process.kill("killed by the supervisor")

    def _orphan(self, process: Process) -> None:
        """End a child after the death of its supervisor. A real child notices the end of its pipe,
        or the kernel ends it. An exiled child stays, as if its supervisor was not dead.
        """
        for key, child in self.processes.items():
            if child.exiled and not process.exiled:
                continue
            flag = self.lifelines[key]
            delay = self.world.rng.randrange(10_000, 5 * MS)
            if self.world.rng.random() < 0.5:
                self.world.after(delay, flag.raise_it)
                delay *= 4
            self.world.after(delay, partial(child.kill, "ends with its supervisor"))


def _retention(archived: bool, ships: ShipPlan | None) -> dict[str, int]:
    """Let everything that the bucket has leave the disk."""
    if not archived:
        return {}
    bucket = {"bucket_keep_bytes": ships.keep_bytes} if ships and ships.keep_bytes >= 0 else {}
    return {"keep_chunks": 0, **bucket}


def _end_sockets(process: Process) -> None:
    for socket in list(process.sockets):
        socket.end(linger=False, killed=True)


class Broker:
    """The data directories of one broker, and the supervisors that run on them, one after the
    other. After the loss of a disk, the next directory is restored from the bucket.
    """

    def __init__(
        self,
        world: World,
        disk: Disk,
        *,
        chunk_bytes: int,
        tcp: bool,
        losses: Losses,
        sleep_after_s: float,
        own_process: str,
        archived: bool = False,
        ships: ShipPlan | None = None,
        lives_on: bool = False,
    ) -> None:
        self.world = world
        self.lives_on = lives_on
        self.disk = disk
        self.machine = 1
        self.data_dir = Path(f"{disk.root}/data-1")
        disk.files.make_folder(str(self.data_dir))
        disk.files.sync_folder(disk.root)
        self.options = ServeOptions(
            self.data_dir,
            gateway=self.address if lives_on else TCP if tcp else "",
            chunk_bytes=chunk_bytes,
            sleep_after_s=sleep_after_s,
            own_process=own_process,
            sync=ships.sync if ships is not None else "always",
            bucket=URL if archived else "",
            bucket_lag_s=ships.lag_s if ships is not None else 0.0,
            retention=_retention(archived, ships),
        )
        self.ships = ships
        # Called when a disk was restored, before the broker starts on it.
        self.restored: Callable[[], None] = lambda: None
        self.fenced: Callable[[], None] = lambda: None
        self.moved = 0  # how often a topic moved to other processes
        self.dozes = 0  # number of topics that must still be put to sleep although they are used
        self.losses = losses
        self.bounded: Bounded | None = None
        self.attributes: Attributes | None = None
        self.took_move: Callable[[str, int, tuple[float, int]], None] = (
            lambda channel, place, boundary: None
        )
        self.number = 0
        self.process: Process | None = None
        self.supervisor: supervisor.Supervisor | None = None
        self.standby: StandbyMachine | None = None
        self.formers: list[Former] = []

    def lose_disk(self) -> None:
        """Forget the data directory, whose content was destroyed."""
        self.machine += 1
        self.data_dir = Path(f"{self.disk.root}/data-{self.machine}")
        self.options = replace(self.options, data_dir=self.data_dir)
        if self.lives_on:
            self.options = replace(self.options, gateway=self.address)
            for process in self.world.processes:
                if process.former is not None and process.machine <= self.machine - len(ADDRESSES):
                    process.kill("off")

    @property
    def address(self) -> str:
        """The address of a broker that lives on after a takeover."""
        return ADDRESSES[self.machine % len(ADDRESSES)]

    def step_aside(self, former: Former) -> None:
        """Let the machine of this broker live on as a former primary, and begin another one."""
        self.formers.append(former)
        self.disk.keep(self.machine)
        self.process = self.supervisor = None
        self.lose_disk()

    def start(self) -> None:
        self.number += 1
        if not self.disk.files.exists(str(self.data_dir)):
            if self.standby is not None and self.standby.waits:
                return
            process = self.process = Process(self.world, f"restore [{self.number}]", "restore")
            process.machine = self.machine
            process.run(partial(self._restore, process), delay_ns=MS)
            return
        process = self.process = Process(self.world, f"supervisor [{self.number}]", "supervisor")
        process.start, process.machine = self.number, self.machine
        process.on_death.append(_end_sockets)
        process.run(partial(self._serve, process), delay_ns=MS)

    def _restore(self, process: Process) -> None:
        """Run `zsq restore` until it succeeds, and start the broker."""
        world, disk = self.world, self.disk
        for _ in range(200):
            failed_syncs = disk.failed_syncs
            files = disk.of(process)
            plan = restoring.RestorePlan(URL)
            try:
                found = restoring.restore(cast("Files", files), plan, self.data_dir)
            except (errors.ZsqError, OSError) as error:
                world.note(f"restore refused: {type(error).__name__}")
                world.comment(str(error))
                is_disk = disk.full or disk.failed_syncs != failed_syncs
                away = isinstance(error, errors.Refused) and error.code == errors.E_BUCKET
                if not is_disk and (not away or "damaged" in str(error)):
                    world.violation(f"the restore failed: {error}")
                    break
                world.pause(20 * MS, 100 * MS)
                continue
            world.note(f"restored up to tick {found.number}")
            self.restored()
            world.after(MS, self._start_restored)
            break
        process.kill("ends")
        world.leave()

    def _start_restored(self) -> None:
        if not self.alive:
            self.start()

    def _serve(self, process: Process) -> None:
        """Do what `serve` does: take the lock, open the registry, and run the supervisor until it
        ends.
        """
        files = self.disk.of(process)
        try:
            files.lock(str(self.data_dir / "lock"))
            registry = Registry(cast("Files", files), self.data_dir, 0)
            registry.open()
        except (Locked, StorageError, OSError) as error:
            self.world.note(f"start refused: {type(error).__name__}")
            self.world.comment(str(error))
            if not isinstance(error, OSError):
                self.world.trouble(process, error)
            process.kill("cannot start")
            self.world.leave()
        self.supervisor = supervisor.Supervisor(self.options, registry, self.run_dir)
        self.supervisor.run()

    # Events of the broker

    def watch_moves(self, channel: Any) -> None:
        """Call `took_move` for each seek at the moment when the channel takes it, with the last
        lease before it.
        """
        move = channel._move

        def watched(offset: int) -> None:
            boundary = self.world.incarnations[channel.key], channel.core._token & 0xFFFFFFFF
            self.took_move(f"{channel.given.topic_name}/{channel.name}", offset, boundary)
            move(offset)

        channel._move = watched

    @property
    def run_dir(self) -> str:
        return f"{RUN_DIR}-{self.machine}" if self.lives_on else RUN_DIR

    @property
    def lease_until_ns(self) -> int:
        """Until when the broker may acknowledge publishes, 0 without an end."""
        return SimLeaseCell.of(self.number)[0]

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def has_disk(self) -> bool:
        """False after the loss of the disk, until the next one has the restored directory."""
        return self.disk.files.exists(str(self.data_dir))

    def folder(self, topic: str) -> str:
        """Return the folder of a topic's files, or "" if it is not known."""
        row = (
            self.supervisor.state.registry.topics.get(topic)
            if self.supervisor is not None
            else None
        )
        return (
            self.supervisor.state.registry.folder(row)
            if self.supervisor is not None and row is not None
            else ""
        )

    def living(self) -> list[Process]:
        return [one for one in self.world.processes if one.alive and one.kind and not one.exiled]

    def has_stopped_process(self) -> bool:
        return any(one.asleep_until_ns > self.world.now_ns for one in self.living())

    def of_kind(self, kind: str) -> list[Process]:
        return [one for one in self.living() if one.kind == kind]

    def kill_all(self) -> None:
        """Kill all processes at once, as if the machine lost its power."""
        for process in self.living():
            process.kill("off")

    def stop(self) -> None:
        """End the broker as SIGTERM does."""
        if self.supervisor is not None and self.alive:
            self.supervisor._signals += 1


def prepare() -> None:
    """Make the product's modules use the files and tables of the simulated world. Call this once in
    a process.
    """
    module: Any = storage_actor
    module.Files = lambda: the_world().disk.of(the_world().current.process)  # type: ignore[union-attr]
    module = archive_actor
    module.Files = lambda: the_world().disk.of(the_world().current.process)  # type: ignore[union-attr]
    module.open_bucket = lambda url, call_s: the_world().bucket
    module = archive_actor
    module.probe = lambda bucket, files: None
    module.CHECK_PAUSE_S = 0.1
    module = supervisor
    module.ProcessTable = SimTable
    module = restoring
    module.open_bucket = lambda url: PatientBucket(the_world().bucket)
    prepare_shipping()
    prepare_standby()
    watch_failures()
    watch_shipper()
    watch_log()
    watch_disasters()
    watch_formers()
    watch_drops()
    watch_leases()
    watch_places()
    module = supervisor
    module.logs.say = lambda *_, **__: None
    module = topic_group
    module._LOOK_NS = 20 * MS
    module.is_unused = _is_unused
    # With this, a topic can be put to sleep even if it was not quiet before.
    module._FRESH_NS = 0
    logging.getLogger("zsq").handlers = [_Comments()]
    logging.getLogger("zsq").propagate = False
    logging.getLogger("zsq").setLevel("INFO")


def watch_failures() -> None:
    """Record it as a broken promise if a topic ends itself by an error that it is not meant to
    have.
    """
    module: Any = topic.TopicActor
    plain = module.on_end

    def ended(self: Any) -> None:
        error = sys.exc_info()[1]
        world = the_world()
        if isinstance(error, Exception) and type(error).__name__ not in MEANT:
            assert world.current is not None
            world.trouble(world.current.process, error)
        plain(self)

    module.on_end = ended


def watch_shipper() -> None:
    """Tell the broker if its shipper has lost. Check that no copy from before a takeover confirms
    anything after it.
    """

    def lost(self: Any, why: str) -> None:
        world = the_world()
        assert world.current is not None
        world.note("the shipper has lost")
        if not world.current.process.exiled:
            world.after(MS, world.broker.fenced)

    def took_over(self: Any, takeover: Any) -> None:
        index, world = takeover.taken.takeover, the_world()
        world.note(f"taken over at {index.number}, epoch {index.epoch}")
        world.epochs[index.epoch] = index.number

    def confirmed(self: Any, flight: Any, now: int) -> None:
        world = the_world()
        later = [number for epoch, number in world.epochs.items() if epoch > self.epoch]
        if any(flight.number >= number for number in later):
            world.violation(
                f"epoch {self.epoch} confirmed tick {flight.number}, after a takeover at "
                f"{min(later)}"
            )
        confirm(self, flight, now)

    watch_event(shipper.ShipperEvent.FENCED, lost)
    watch_event(shipper.ShipperEvent.TAKEN, took_over)
    module: Any = shipper.Shipper
    confirm = module.confirm
    module.confirm = confirmed


def hasten_archive() -> None:
    """Let the archive act within milliseconds, because a run lasts only a few seconds."""
    module: Any = options
    module.RETENTION_TICK_MS = 30
    module = archiving
    module.PAUSE_S, module.PAUSE_S_MAX, module.MANIFEST_S = 0.05, 0.4, 0.02
    module = chunk_cache
    module.RETRY_NS = 20 * MS
    module.CACHE_BYTES_MIN = 16 * 1024


def _is_unused(topic: TopicPulse, channels: list[ChannelPulse], now: int, after: int) -> bool:
    """Return the product's answer. But return True for the next `dozes` topics: a topic that is
    used must lose nothing by sleeping.
    """
    world = the_world()
    if world.broker.dozes and topic.get("storage"):
        world.broker.dozes -= 1
        world.disturb("a topic dozes")
        return True
    return is_unused(topic, channels, now, max(after, 2 * S))


class _Load(placement.Load):
    """Lets topics move back and forth, many times a second, whatever they do."""

    @property
    def is_busy(self) -> bool:
        return the_world().rng.random() < scenario.MOVED

    def is_quiet(self, for_s: float, now_ns: int) -> bool:
        return the_world().rng.random() < scenario.MOVED


def watch_places() -> None:
    """Note when a topic moves. This is no fault: nothing may be delivered again because of it."""
    group: Any = topic_group.TopicGroup
    plain = group._move

    def move(self: topic_group.TopicGroup) -> None:
        world = the_world()
        world.note(f"topic {self.name} moves")
        world.broker.moved += 1
        plain(self)

    group._move = move
    module: Any = topic_group
    module.Load = _Load


class _Comments(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname} {record.getMessage()}"
        if record.exc_info is not None and record.exc_info[1] is not None:
            trace = traceback.extract_tb(record.exc_info[1].__traceback__)
            text += f": {[f'{Path(one.filename).name}:{one.lineno}' for one in trace[-6:]]}"
        the_world().comment(text)
