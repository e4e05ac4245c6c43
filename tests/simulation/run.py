"""One seed: a broker, its clients and their faults in a simulated world, and the result."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import zsq
from zsq.transport import errors

from . import bounded
from . import world as worlds
from .attributes import Attributes
from .broker import URL_DIRECT, URL_SEVERAL, URL_TCP, Broker, hasten_archive
from .bucket import LATE_S, SimBucket
from .contents import differences, restore_problems
from .disk import Disk
from .ledger import Ledger
from .nemesis import Nemesis
from .network import Network
from .operator import Operator
from .scenario import Scenario, draw
from .shipping import hasten
from .standby import StandbyMachine
from .verdict import check_stored, depths
from .workload import Crew
from .world import MS, Process, S, Stuck, World

DRAIN_S: Final = 90  # seconds of simulated time after all faults have ended
TROUBLE_S: Final = 60
STOP_S: Final = 30


@dataclass
class Result:
    """The outcome of a seed. `log_hash`: a hash of everything that happened, line by line."""

    seed: int
    violations: list[str]
    log_hash: str
    events: int
    simulated_s: float
    counts: dict[str, int] = field(default_factory=dict)


class Run:
    def __init__(
        self,
        seed: int,
        root: str,
        say: Callable[[str], None] | None = None,
        scenario: Scenario | None = None,
    ) -> None:
        self.world = World(seed, say)
        self.scenario = scenario or draw(seed)
        world = self.world
        world.network = self.network = Network(world)
        world.disk = self.disk = Disk(world, root)
        self.ledger = Ledger(world)
        self.broker = world.broker = Broker(
            world,
            self.disk,
            chunk_bytes=self.scenario.chunk_bytes,
            tcp=self.scenario.tcp,
            losses=self.ledger.losses,
            sleep_after_s=self.scenario.sleep_after_s,
            own_process=self.scenario.own_process,
            archived=self.scenario.archived,
            ships=self.scenario.ships,
            lives_on=self.scenario.lives_on,
        )
        if self.scenario.archived:
            world.bucket = SimBucket(world)
            hasten_archive()
        if self.scenario.ships is not None:
            hasten(self.scenario.ships)
            self.ledger.disasters.lag_ns = int(self.scenario.ships.lag_s * S)
            world.bucket.on_removal = self._removed
        self.url = URL_TCP if self.scenario.tcp else URL_DIRECT
        if self.scenario.lives_on:
            self.url = URL_SEVERAL
        self.ledger.losses.modes = self.scenario.modes
        self.crew = Crew(world, self.ledger, self.url)
        self.nemesis = Nemesis(world, self.broker, self.crew, self.scenario)
        self.broker.took_move = self._took_move
        self.broker.restored = partial(self.ledger.disasters.restored, self.broker)
        self.broker.fenced = self.nemesis.fenced
        if self.scenario.patience_s:
            self.broker.standby = StandbyMachine(world, self.broker, self.scenario.patience_s)
            self.broker.standby.replaced = self.nemesis.replaced
            world.bucket.on_takeover = self.nemesis.took_over

    def play(self) -> Result:
        world = self.world
        random.seed(world.seed)
        worlds.enter(world)
        world.note(str(self.scenario))
        self.broker.start()
        if self.broker.standby is not None:
            self.broker.standby.begin()
        observer = Process(world, "observer")
        task = observer.run(self._observe)
        try:
            world.run(lambda: task.done or bool(world.violations))
        except Stuck as error:
            world.violation(f"stuck: {error}")
        finally:
            worlds.enter(None)
        counts = {
            "messages": len(self.ledger.sent),
            "acknowledged": sum(one.acked for one in self.ledger.sent.values()),
            "deliveries": self.ledger.deliveries,
            "redeliveries": self.ledger.redeliveries,
            "finishes confirmed": sum(len(row.confirmed) for row in self.ledger.channels.values()),
            "faults": world.disturbances,
            "moves": self.broker.moved,
            "lost by power cuts": self.ledger.losses.lost,
        }
        if world.bucket is not None:
            counts["objects"] = len(world.bucket.objects)
            counts["reads of the bucket"] = world.bucket.reads
            counts["late requests"] = world.bucket.late
            counts["lost with disks"] = self.ledger.disasters.lost
            counts["takeovers"] = len(world.epochs)
            counts["removed"] = sum(map(len, self.ledger.removed.values()))
        spent = (world.now_ns - worlds.START_NS) / S
        return Result(
            world.seed,
            world.violations,
            world.log_hash(),
            world.handled,
            spent,
            counts | self.nemesis.done,
        )

    def _took_move(self, channel: str, place: int, boundary: tuple[float, int]) -> None:
        self.ledger.took_move(channel, place, boundary)
        if self.scenario.seeks:
            self.nemesis.moved()

    def _removed(self, name: str) -> None:
        """Check that a restore does not need the log file that has just left the bucket."""
        bucket = self.world.bucket
        if name.startswith("chunk/") and self.ledger.disasters.may_strike():
            for text in restore_problems(bucket.url, bucket.objects)[:3]:
                self.world.violation(f"{name} was removed, and a restore is wrong: {text}")

    # The phases, in order

    def _observe(self) -> None:
        world = self.world
        with zsq.Admin(self.url, timeout=60) as admin:
            self._create(admin)
            self.crew.begin(self.scenario)
            self.nemesis.begin()
            self._until(
                lambda: not self.crew.publishing and self.nemesis.over,
                TROUBLE_S,
                "the producers' end",
                50,
            )
            self.nemesis.heal()
            self.crew.draining = True
            world.note("healed: draining")
            self._until(
                lambda: not any(one.processes for one in self.broker.formers),
                DRAIN_S,
                "the end of the former primaries",
                50,
            )
            if self.nemesis.done.get("exiles"):
                # The last requests of an exiled process may still take over from the broker.
                over_ns = world.now_ns + int(LATE_S * S)
                self._until(lambda: world.now_ns > over_ns, TROUBLE_S, "the exiles' end", 50)
            self._until(
                lambda: not self.crew.publishing, DRAIN_S, "the producers' end after all faults", 50
            )
            if self.ledger.disasters.struck:  # a disaster may have taken the last commands
                Operator(self.crew, 0, False, "observer", world.dice("settle")).settle(admin)
            self._until(lambda: self._drained(admin), DRAIN_S, "an empty topic", 400)
        world.note("drained")
        self.crew.closing = True
        self._until(lambda: not self.crew.processes, DRAIN_S, "the consumers' end", 50)
        for topic in self.scenario.topics:
            check_stored(self.ledger, self.url, topic)
        if self.crew.bounded is not None:
            with zsq.Admin(self.url, timeout=60) as admin:
                self.crew.bounded.check(admin)
        if self.crew.attributes is not None:
            self.crew.attributes.check()
        if self.crew.mortal is not None:
            self.crew.mortal.check(self.broker)
        self._until(lambda: self.broker.has_disk and self.broker.alive, STOP_S, "a broker", 50)
        if self.broker.standby is not None and self.broker.standby.process is not None:
            self.broker.standby.process.kill("off")  # it would take over from a broker that stops
        self.broker.stop()
        self._until(lambda: not self.broker.living(), STOP_S, "the broker's end", 50)
        if self.broker.ships is not None:
            for text in differences(
                str(self.broker.data_dir), world.bucket.url, world.bucket.objects
            )[:5]:
                world.violation(f"at the end, a restore is wrong: {text}")

    def _until(
        self, condition: Callable[[], bool], limit_s: float, what: str, step_ms: int
    ) -> None:
        world = self.world
        deadline = world.now_ns + int(limit_s * S)
        while not condition():
            if world.now_ns > deadline:
                world.violation(f"{what} did not come within {limit_s} s")
                world.leave()
            world.pause(step_ms * MS, step_ms * MS + MS)

    def _create(self, admin: Any) -> None:
        for topic in self.scenario.topics:
            usual = self.broker.options.sync
            admin.create_topic(topic, sync=self.scenario.modes.get(topic, usual))
        if self.scenario.bounded is not None:
            admin.create_topic(bounded.TOPIC, max_age_s=bounded.MAX_S, when_full="drop-oldest")
            admin.create_channel(bounded.TOPIC, bounded.CHANNEL)
        if self.scenario.attributes is not None:
            Attributes(self.crew, self.scenario.attributes).create(admin)
        for plan in self.scenario.channels:
            admin.create_channel(plan.topic, plan.name, **plan.settings)

    def _drained(self, admin: Any) -> bool:
        try:
            left = depths(admin.stats())
        except errors.ZsqError as error:
            self.world.note(f"observer: {type(error).__name__} {error.code}")
            return False
        self.world.note(f"left: {left}")
        return not left


def work_folder() -> str:
    shared = Path("/dev/shm")
    return tempfile.mkdtemp(
        prefix="zsq-simulation-", dir=shared if os.access(shared, os.W_OK) else None
    )


def play(seed: int, root: str, say: Callable[[str], None] | None = None) -> Result:
    """Play one seed. Call this in a separate process: a run leaves greenlets behind that must never
    run again. The caller makes and removes the folder `root`.

    The garbage collector is off during the run. It would run the `finally` blocks of such a
    greenlet, at a time that does not depend on the seed.
    """
    gc.disable()
    tempfile.tempdir = root  # the checks of a restore must not wait for a real disk
    return Run(seed, root, say).play()


def digest(results: list[Result]) -> str:
    return hashlib.sha256("".join(one.log_hash for one in results).encode()).hexdigest()[:16]
