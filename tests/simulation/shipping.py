"""How the broker of a seed ships its log of ticks: the bound, the sync mode, and small limits, so
that boundaries, bases and waits for offsets happen within seconds.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from zsq.actors.bucket.archive import archive_actor, shipper
from zsq.actors.bucket.standby import takeover
from zsq.actors.bucket.topic import row_dumps, shipping, topic_lease
from zsq.actors.primitives import lease_cell
from zsq.actors.settings import options

from .contents import InlineThreads
from .world import MS, the_world

BOUNDS_S: Final = (0.05, 0.3, 1.0)
SHIPS: Final = 0.85  # share of archived seeds in which the broker ships
BUCKET_MODE: Final = 0.4  # share of these in which publishes are answered by the bucket
KEEPING: Final = 0.4  # share of these in which finished messages leave the bucket
SMALL: Final = 0.6  # share of these in which each limit is small


@dataclass(frozen=True, slots=True)
class ShipPlan:
    """`lag_s`: the bound. `sync`: the mode of all topics, `always` or `bucket`. `by_default`: the
    mode is an option of the broker instead of a setting of each topic. `keep_bytes`: how much the
    bucket keeps of what is finished, or -1 for all of it.
    """

    lag_s: float
    sync: str = "always"
    by_default: bool = True
    log_ticks: int = 4_000
    log_bytes: int = 512 * 1024 * 1024
    changes_max: int = 4 * 1024 * 1024
    inline_max: int = 1024 * 1024
    waiting_max: int = 16 * 1024 * 1024
    patience_s: float = 5.0
    reserve: int = 1 << 16
    keep_bytes: int = -1


def draw_plan(dice: random.Random) -> ShipPlan | None:
    if dice.random() >= SHIPS:
        return None

    def small(usual: Any, *choices: Any) -> Any:
        return dice.choice(choices) if dice.random() < SMALL else usual

    return ShipPlan(
        dice.choice(BOUNDS_S),
        "bucket" if dice.random() < BUCKET_MODE else "always",
        by_default=True,
        log_ticks=small(4_000, 5, 12, 40),
        log_bytes=small(512 * 1024 * 1024, 8_000, 60_000),
        changes_max=small(4 * 1024 * 1024, 64 * 1024),
        inline_max=small(1024 * 1024, 300, 2_000),
        waiting_max=small(16 * 1024 * 1024, 1_500, 20_000),
        patience_s=small(5.0, 0.2, 1.0),
        reserve=small(1 << 16, 8, 40, 200),
    )


def draw_keeping(dice: random.Random, plan: ShipPlan) -> ShipPlan:
    if dice.random() >= KEEPING:
        return plan
    return replace(plan, keep_bytes=dice.choice((0, 4_000, 20_000)))


def hasten(plan: ShipPlan) -> None:
    """Set the limits of this seed, and let the archive actor act within milliseconds."""
    module: Any = shipper
    module.LOG_TICKS, module.LOG_BYTES = plan.log_ticks, plan.log_bytes
    module.COLLECT_EVERY_NS = 150 * MS
    module.PAUSE_S, module.PAUSE_S_MAX = 0.05, 0.4
    module.SHIP_RESERVE = plan.reserve
    module.socket.gethostname = lambda: "simulated"
    for module in (options, takeover):
        module.SHIP_RESERVE = plan.reserve
    module = shipping
    module.CHANGES_BYTES_MAX = plan.changes_max
    module.WAITING_BYTES_MAX, module.PATIENCE_S = plan.waiting_max, plan.patience_s
    module.PAUSE_S = 0.1
    module = row_dumps
    module.INLINE_BASE_BYTES = plan.inline_max


class SimLeaseCell:
    """The cell of the lease, without a run directory. Each start of a broker has one."""

    _shared: ClassVar[dict[int, list[int]]] = {}

    def __init__(self, run_dir: str, *, make: bool = False) -> None:
        current = the_world().current
        assert current is not None
        self._cell = SimLeaseCell.of(current.process.start)

    @classmethod
    def of(cls, start: int) -> list[int]:
        return cls._shared.setdefault(start, [0, 0])

    @property
    def until_ns(self) -> int:
        return self._cell[0]

    def write(self, until_ns: int) -> None:
        self._cell[0] = until_ns

    @property
    def patience_ns(self) -> int:
        return self._cell[1]

    def write_patience(self, patience_ns: int) -> None:
        self._cell[1] = patience_ns

    def holds(self, now_ns: int) -> bool:
        return not self._cell[0] or now_ns < self._cell[0]


def prepare() -> None:
    """Let the restore run in one simulated thread, and the actor's timer run often."""
    from zsq.storage.bucket.shipping import restore, tick_reader

    for module in (restore, tick_reader):
        anything: Any = module
        anything.ThreadPoolExecutor = InlineThreads
    for module in (archive_actor, lease_cell):
        anything = module
        anything.LeaseCell = SimLeaseCell
    for module in (shipper, topic_lease, lease_cell):
        anything = module
        anything.boot_ns = time.monotonic_ns
    actor: Any = archive_actor.ArchiveActor
    plain = actor.every
    actor.every = lambda self, ms, call: plain(self, 60 if ms == 1_000 else ms, call)
