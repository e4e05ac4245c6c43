"""Patience: when a standby takes over. The rules: `storage/bucket/shipping/standbys.py`.

| event | the standby |
|---|---|
| a new tick | waits for its patience again |
| a new tick that says "released" | takes over at once |
| its patience is over | takes over |
| it was told to take over | takes over |
| the bucket does not answer | waits; a takeover would fail too |
"""

from __future__ import annotations

from ....storage.bucket.shipping.standbys import wait_ns
from ....storage.bucket.shipping.tick_format import Index


class Patience:
    """The patience of one standby, in seconds. It begins to wait at `now_ns` (monotonic)."""

    def __init__(self, patience_s: float, now_ns: int) -> None:
        self.patience_s = patience_s
        self._since_ns = now_ns
        self._lease_ms = 0
        self._is_released = False

    def saw(self, index: Index, now_ns: int) -> None:
        """Note a new tick, which was seen at `now_ns` or earlier."""
        self._since_ns = now_ns
        self._lease_ms = index.lease_ms
        self._is_released = index.is_released

    def waits_from(self, now_ns: int) -> None:
        """Begin to wait again, because it is not known what happened before."""
        self._since_ns = now_ns
        self._is_released = False

    def quiet_s(self, now_ns: int) -> float:
        """Return how long there was no new tick."""
        return (now_ns - self._since_ns) / 1e9

    def due_ns(self) -> int:
        """Return when the standby takes over if nothing happens, monotonic."""
        if self._is_released:
            return self._since_ns
        return self._since_ns + wait_ns(self.patience_s, self._lease_ms)

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self.due_ns()
