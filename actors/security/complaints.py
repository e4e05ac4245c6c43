"""Complaints: warnings about the clients of a door, few enough that no client can fill the disk.

It is not the audit log, which has each order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("zsq")

COMPLAINT_S: Final = 10.0  # the fewest seconds between two lines of one door


class Complaints:
    """The warnings of one door. `clock` returns seconds of a steady clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._unlogged = 0
        self._logged_s = -COMPLAINT_S

    def add(self, text: str, *values: object) -> None:
        """Log a warning, or count it only if the last line is not COMPLAINT_S old."""
        self.count += 1
        now_s = self._clock()
        if now_s - self._logged_s < COMPLAINT_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more warnings were not logged)" if self._unlogged else ""
        self._logged_s, self._unlogged = now_s, 0
        log.warning(text + "%s", *values, more)
