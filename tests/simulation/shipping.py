"""How the broker of a seed ships its log of ticks: the bound, the sync mode, and small limits, so
that boundaries, bases and waits for offsets happen within seconds.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

from zsq.actors.bucket import lease_cell
from zsq.actors.bucket.archive import archive_actor, shipper, tick_writer
from zsq.actors.bucket.standby import takeover
from zsq.actors.bucket.topic import base_dump, topic_bucket, topic_lease
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
    log_limits = archive_actor.LIMITS
    log_limits.log_ticks, log_limits.log_bytes = plan.log_ticks, plan.log_bytes
    log_limits.collect_every_ns = 150 * MS
    log_limits.pause_s, log_limits.pause_s_max = 0.05, 0.4
    socket.gethostname = lambda: "simulated"
    module: Any
    for module in (options, takeover):
        module.SHIP_RESERVE = plan.reserve
    limits = topic_bucket.LIMITS
    limits.changes_bytes, limits.waiting_bytes = plan.changes_max, plan.waiting_max
    limits.inline_bytes = plan.inline_max
    limits.patience_s, limits.pause_s = plan.patience_s, 0.1
    module = base_dump
    module.PAUSE_S = 0.1


class SimLeaseCell(lease_cell.LeaseCell):
    """The cell of the lease, without a run directory. Each start of a broker has one."""

    _shared: ClassVar[dict[int, list[int]]] = {}

    def __init__(self, run_dir: str, *, make: bool = False) -> None:
        current = the_world().current
        assert current is not None
        self._word: Any = SimLeaseCell.of(current.process.start)

    @classmethod
    def of(cls, start: int) -> list[int]:
        return cls._shared.setdefault(start, [0, 0])


def prepare() -> None:
    """Let the restore run in one simulated thread, and the actor's timer run often."""
    from zsq.storage.bucket.shipping import restore, tick_reader

    for module in (restore, tick_reader):
        anything: Any = module
        anything.ThreadPoolExecutor = InlineThreads
    for module in (archive_actor, lease_cell):
        anything = module
        anything.LeaseCell = SimLeaseCell
    for module in (shipper, tick_writer, topic_lease, lease_cell):
        anything = module
        anything.boot_ns = time.monotonic_ns
    actor: Any = archive_actor.ArchiveActor
    plain = actor.every
    actor.every = lambda self, ms, call, **options: plain(
        self, 60 if ms == 1_000 else ms, call, **options
    )


def watch_event(event: shipper.ShipperEvent, watch: Callable[[Any, Any], None]) -> None:
    """Call `watch` with each shipper to which this happens, and the details, before its action."""
    table: Any = shipper.Shipper.TABLE

    def watched(action: Any, self: Any, detail: Any) -> None:
        watch(self, detail)
        action(self, detail)

    for key, (state, action) in list(table.items()):
        if key[1] is event:
            table[key] = state, partial(watched, action)
