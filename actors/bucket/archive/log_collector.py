"""Log collector: makes the log of ticks shorter when it has become long.

Then every topic that still needs the older half of it ships all its rows again, and ends its log
file if that is the reason. When no topic needs the older half any more, a boundary is created, and
what is below it is removed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.ship_log import (
    Fenced,
    ShipLog,
    Taken,
    find_chain,
    read_index,
    taken_over_by,
)
from ....storage.bucket.shipping.tick_format import STATES, Boundary, Tail
from ....storage.errors import StorageError
from ...runtime.worker_thread import WorkerThread
from .base_objects import BaseObjects

log = logging.getLogger("zsq")

REMOVED_AT_ONCE: Final = 1_000


class LogCollector:
    """The collection of one epoch. It runs in `thread`.

    `on_fenced` is called with the reason when another copy of the broker has taken over.
    """

    def __init__(
        self,
        bucket: Bucket,
        ship_log: ShipLog,
        taken: Taken,
        bases: BaseObjects,
        thread: WorkerThread,
        every_ns: int,
        on_fenced: Callable[[str], object],
    ) -> None:
        self._bucket = bucket
        self._log = ship_log
        self._takeover = taken.takeover
        self._bases = bases
        self._thread = thread
        self._every_ns = every_ns
        self._on_fenced = on_fenced
        self.boundary = taken.chain.boundary.number
        """The number below which nothing counts."""
        self._sizes: deque[tuple[int, int]] = deque()  # numbers and sizes since the boundary
        self.size = 0
        """Bytes of the ticks of this process since the boundary."""
        self._older_ticks = len(taken.chain.numbers)  # of earlier processes since the boundary
        self._due_ns = 0
        self.is_running = False

    @property
    def ticks(self) -> int:
        """Number of ticks in the log."""
        return self._older_ticks + len(self._sizes)

    def note(self, number: int, size: int) -> None:
        """Note a tick that exists."""
        self._sizes.append((number, size))
        self.size += size

    def collect(self, tails: Mapping[str, Tail], last: int, registry_number: int) -> int:
        """Remove the older half of the log, which is too long, if nobody needs it.

        Return the number below which topics still need a tick, or 0 if they are not asked now.
        `last` is the number of the last tick.
        """
        now = time.monotonic_ns()
        if self.is_running or now < self._due_ns:
            return 0
        target = (self.boundary + last) // 2 + 1
        needed = {uuid: tail.needed for uuid, tail in tails.items()}
        oldest = min([last, registry_number, *needed.values()])
        if oldest < target:
            self._due_ns = now + self._every_ns
            return target
        self.is_running = True
        boundary = Boundary(oldest, "", self._takeover.epoch, last, time.time_ns())
        live = self._bases.needed(tails)
        self._thread.submit(self._collected, partial(self._remove, boundary, live))
        return 0

    def _remove(self, boundary: Boundary, live: dict[str, str]) -> tuple[Boundary, int]:
        """Create the boundary, and remove what nobody needs any more. Runs in a thread.

        `live` maps topics to the objects with their rows. Other objects of these topics are
        removed.
        """
        boundary = boundary._replace(number=self._with_tails(boundary.number))
        self._log.bound(self._log.with_digest(boundary))
        removed = 0
        while count := self._log.remove_below(boundary.number, REMOVED_AT_ONCE):
            removed += count
        names = self._log.names(f"{STATES}/")
        # A successor uploads its objects after its takeover, so none of them is in this list.
        last = find_chain(self._bucket).last
        if last is None or last.index.epoch != self._takeover.epoch:
            return boundary, removed
        kept = set(live.values())
        self._log.remove(
            [
                name
                for name in names
                if name.split("/")[1] in live
                and name not in kept
                and not self._bases.is_fresh(name)
            ]
        )
        return boundary, removed

    def _with_tails(self, number: int) -> int:
        """Return the newest tick up to this number that has the tails of all topics.

        The log must begin with one. Otherwise a successor would not find all tails.

        Raises `Fenced` if another copy has taken over. The boundary may be that copy's then, and
        above its takeover. If this process removed the ticks below it, the takeover would be gone,
        and the ticks that this process has on their way could be created, and would be answered.
        """
        chain = find_chain(self._bucket)
        if chain.last is not None and chain.last.index.epoch > self._takeover.epoch:
            raise Fenced(f"{self._bucket.url}: {taken_over_by(chain.last.index)}")
        older = [tick for tick in chain.numbers if tick <= number]
        return next(
            (
                tick
                for tick in reversed(older)
                if read_index(self._bucket, tick).index.tails is not None
            ),
            chain.boundary.number,
        )

    def _collected(self, result: Any) -> None:
        self.is_running = False
        self._due_ns = time.monotonic_ns() + self._every_ns
        if isinstance(result, Fenced):
            self._on_fenced(str(result))
            return
        if isinstance(result, (StorageError, OSError)):
            log.warning("old ticks cannot be removed from the bucket: %s", result)
            return
        if isinstance(result, Exception):
            raise result
        boundary, removed = result
        self.boundary = boundary.number
        if boundary.number >= self._takeover.number:
            self._older_ticks = 0
        while self._sizes and self._sizes[0][0] < boundary.number:
            self.size -= self._sizes.popleft()[1]
        log.info("removed %d old ticks from the bucket", removed)
