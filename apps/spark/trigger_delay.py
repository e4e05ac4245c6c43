"""Trigger delay: whether a micro-batch waits until there is more to read. Pure.

This is the rule of the Kafka connector's `minOffsetsPerTrigger` and `maxTriggerDelay`. The first
batch of a run never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["DELAY_MAX_S", "TriggerDelay"]

DELAY_MAX_S: Final = 15 * 60.0


class TriggerDelay:
    """Lets a batch begin with `offsets_min` messages, or `delay_s` seconds after the batch before.

    With `offsets_min` 0, no batch waits. `clock` returns seconds.
    """

    def __init__(
        self, offsets_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._offsets_min = offsets_min
        self._delay_s = delay_s
        self._clock = clock
        self._last_s: float | None = None  # when the last batch began

    def waits(self, messages: int) -> bool:
        """Return True if a batch of so many messages has to wait. Otherwise, it begins now."""
        now_s = self._clock()
        is_early = self._last_s is not None and now_s - self._last_s < self._delay_s
        if messages < self._offsets_min and is_early:
            return True
        if messages:
            self._last_s = now_s
        return False
