"""Loss of a broker with its machine's disk, while a standby follows it: the standby takes over.

The clients know both addresses, and go to the one that answers.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Final

from local_setup.broker import LocalBroker, standby_of, wait_until_ready
from local_setup.processes import kill_group

from .loss import Before, Loss, size_of

STANDBY: Final = "standby"


@dataclass(slots=True)
class Takeover(Loss):
    """Kills the primary and destroys its data directory. Its standby does the rest by itself."""

    standby: LocalBroker | None = None

    def begin(self, broker: LocalBroker) -> LocalBroker:
        """Start the standby of this broker."""
        self.standby = self._stack.enter_context(
            standby_of(broker, STANDBY, *self.server.standby_options)
        )
        return self.standby

    def happen(self, broker: LocalBroker, before: Before) -> LocalBroker:
        """Lose the primary. Return the standby when it is primary."""
        assert self.standby is not None
        self._began = True
        self.before = before
        counted = self.server.traffic()
        self.killed_at = time.monotonic()
        self.processes = kill_group(broker.process)
        self.gone_at = time.monotonic()
        self.destroyed_files, self.destroyed_bytes = size_of(broker.data_dir)
        shutil.rmtree(broker.data_dir)
        start = time.monotonic()
        self.destroy_s = start - self.killed_at
        wait_until_ready(self.standby)
        now = time.monotonic()
        self._counted = self.server.traffic()
        self.fetched = self._counted.since(counted)
        self.ready_s = now - self.killed_at
        self.happened = True
        return self.standby
