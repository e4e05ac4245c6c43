"""Channel lease: turns consumers away when a standby may have taken over.

They would otherwise stay with a primary that was replaced, because it goes on answering their
heartbeats as long as it does not reach the bucket.
"""

from __future__ import annotations

from typing import Final

from ...transport.errors import E_STANDBY, Refused
from ..channel.serving_policy import ServingPolicy
from ..settings.starts import ChannelStart
from .lease_cell import LOST, LeaseWatch, run_dir_of

LOOK_MS: Final = 1_000.0


class ChannelLease(ServingPolicy):
    """The lease of the primary as one channel sees it."""

    def __init__(self, start: ChannelStart) -> None:
        super().__init__(start)
        self._watch = LeaseWatch(run_dir_of(start.front) if start.replaceable else "")
        self.look_ms = LOOK_MS if start.replaceable else 0.0

    def refusal(self) -> Refused | None:
        return Refused(E_STANDBY, LOST) if self._watch.is_lost else None
