"""Topic lease: withholds the answers of a topic while a standby may have taken over.

The lease of the primary is in a cell that all its processes share (`lease_cell.py`). While it is
over, publishes that are stored are not answered, and new ones wait. If the primary reaches the
bucket again, it gets a new lease, and they are answered. If a standby has taken over, they are
never answered, and the clients send them to the standby.

A topic that answers publishes when they are in the bucket needs no lease: a publish is in the
bucket only if no standby has taken over before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ....transport.errors import E_STANDBY, Refused
from ....transport.units import NS_PER_S
from ...primitives.boot_clock import boot_ns
from ...runtime.actor import Actor
from ..lease_cell import LeaseWatch, run_dir_of

RETRY_MS: Final = 20.0
# Publishes are refused when they have waited for so long.
PATIENCE_S: Final = 5.0


class TopicLease:
    """The lease as one topic sees it. `retry` is called from time to time while it is over.

    `timers` has the timers. `archive` is the endpoint of the archive actor, "" without a bucket.
    """

    def __init__(self, archive: str, timers: Actor[Any], retry: Callable[[], None]) -> None:
        self.watch = LeaseWatch(run_dir_of(archive))
        self._timers = timers
        self._retry = retry
        self._retries = False
        self._over_ns = 0  # since when the lease is over for this topic

    def is_over(self) -> bool:
        """Return True if nothing may be acknowledged now."""
        if not self.watch.is_over:
            if self._retries:
                self._retries = False
                self._timers.cease(self._retry)
            return False
        if not self._retries:
            self._retries, self._over_ns = True, boot_ns()
            self._timers.every(RETRY_MS, self._retry)
        return True

    def publishes_must_wait(self) -> bool:
        """Return True if publishes must wait. After `PATIENCE_S`, `check` refuses them instead."""
        return self.is_over() and not self._is_overdue()

    def _is_overdue(self) -> bool:
        return self._retries and boot_ns() - self._over_ns > PATIENCE_S * NS_PER_S

    def check(self) -> None:
        """Raise `Refused` if publishes have waited too long."""
        if self.is_over() and self._is_overdue():
            raise Refused(
                E_STANDBY,
                "this broker does not reach the bucket, and its standby may have taken over: it "
                "accepts nothing until it knows",
            )
