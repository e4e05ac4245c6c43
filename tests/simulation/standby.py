"""The standby of a simulated broker: the real `StandbyLoop`, on a machine of its own.

It follows the broker through the hostile bucket, and takes over when that one is quiet for its
patience, for any reason.

In half of the seeds, the world then takes the old broker for lost: its processes end, except for an
archive actor that may go on as an exile. In the others, the machine of the old broker lives on as a
former primary (`former.py`), from the moment at which the takeover exists.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zsq.actors.bucket.archive import primacy
from zsq.actors.bucket.standby import standby
from zsq.actors.bucket.standby.standby import StandbyLoop
from zsq.storage.bucket.shipping import follower, standbys
from zsq.storage.files import Files

from .contents import InlineThreads
from .world import MS, Process, S, World, the_world

if TYPE_CHECKING:
    from .broker import Broker

PATIENCES_S: Final = (0.4, 1.0, 2.0)
EXILES_NS: Final = 4 * S  # an exile ends so long after the loss: otherwise it would stay primary


def draw_patience(seed: int, share: float) -> float:
    """Return the patience of the standby of a seed in which disks are lost, 0 without a standby."""
    dice = random.Random(f"{seed}/standby")
    return dice.choice(PATIENCES_S) if dice.random() < share else 0.0


class SimStandby(StandbyLoop):
    """A standby that tells the world when it takes over."""

    replaces: Callable[[], None] = staticmethod(lambda: None)

    def _take_over(self) -> float | None:
        self.replaces()
        return super()._take_over()


class StandbyMachine:
    """The machine of the standby. When its broker is primary, it is the machine of the broker, and
    a new one gets a standby. `replaced` is called when a standby is about to take over.
    """

    def __init__(self, world: World, broker: Broker, patience_s: float) -> None:
        self._world = world
        self._broker = broker
        self.patience_s = patience_s
        self._dice = world.dice("standby")
        self._count = 0
        self.process: Process | None = None
        self.copy = ""  # the identity of the standby that waits
        self.replaced: Callable[[], None] = lambda: None

    @property
    def waits(self) -> bool:
        """True while a standby is there that will take over."""
        return self.process is not None and self.process.alive

    def begin(self) -> None:
        self._count += 1
        process = self.process = Process(self._world, f"standby [{self._count}]")
        delay_ns = self._dice.randrange(MS, 1_500 * MS)
        process.run(partial(self._run, process), delay_ns=delay_ns)

    def _run(self, process: Process) -> None:
        world, broker = self._world, self._broker
        folder = Path(f"{broker.disk.root}-standby-{self._count}")
        files = Files()
        files.make_folder(str(folder))
        while world.bucket is None:
            world.pause(MS, 10 * MS)
        loop = SimStandby(files, world.bucket, folder, self.patience_s, (), _pause)
        if not broker.lives_on:
            loop.replaces = self.replaced
        self.copy = loop.copy
        is_primary = loop.run()
        assert is_primary
        self.copy = ""
        if broker.has_disk:
            broker.lose_disk()
        shutil.move(folder, broker.data_dir)
        broker.disk.files.reset()
        world.note(f"standby [{self._count}] is primary")
        broker.restored()
        world.after(MS, self._start)
        process.kill("ends")
        world.leave()

    def _start(self) -> None:
        if not self._broker.alive:
            self._broker.start()
        self.begin()


def _pause(seconds: float) -> bool:
    wait_ns = int(seconds * S)
    the_world().pause(wait_ns, wait_ns + MS)
    return False


def prepare() -> None:
    """Let standbys and primaries act within milliseconds."""
    module: Any = follower
    module.ThreadPoolExecutor = InlineThreads
    module = standbys
    # This is longer than machines stop. A primary without a lease may go on after a takeover.
    module.STRANGER_S = 7.0
    module = primacy
    module.LOOK_S = module.SOON_LOOK_S = 0.2
    module = standby
    module.probe = lambda bucket, files: None
    module.PAUSE_S, module.PAUSE_S_MAX, module.LOOK_S = 0.05, 0.4, 0.5
