"""Handover: whether all topics were in the bucket completely when they ended. Pure.

A topic says so in its last pulse. That pulse may arrive after the news of the end of its process.
So the supervisor waits for it. If one is missing, or says no, the broker does not hand over, and is
primary again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

WAIT_NS: Final = 2_000_000_000


class Handover:
    """The topics whose last pulses are missing, by the keys of their processes."""

    def __init__(self, topics: Iterable[int]) -> None:
        self._missing = set(topics)
        self._since_ns = 0

    def noted(self, key: int, stats: Mapping[str, Any]) -> None:
        """Note a pulse."""
        if stats.get("storage", {}).get("extension_settled"):
            self._missing.discard(key)

    @property
    def is_complete(self) -> bool:
        return not self._missing

    def is_late(self, now_ns: int) -> bool:
        """Return True if the missing pulses do not come any more. All topics have ended."""
        self._since_ns = self._since_ns or now_ns
        return now_ns - self._since_ns > WAIT_NS
