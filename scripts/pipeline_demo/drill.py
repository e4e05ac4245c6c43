"""Drill of `--bucket`: chooses the moment of the loss, and runs the clients that work meanwhile."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console

from local_setup.broker import BrokerFailed, LocalBroker
from zsq.transport.client.blocking.client import Admin

from . import work
from .audit import Auditor
from .bucket import PATIENCE_S, BucketServer
from .crew import Crew
from .live import LivePublisher, Reminders
from .loss import FINISHED_S, Before, Loss, Sampled, is_moment
from .loss_report import Lost
from .takeover import Takeover

# Spark's batch job does not push these rows. They are published one block after the other, while
# the broker is lost.
LIVE_ROWS: Final = 36_776
SYNC: Final = "bucket"


class Drill:
    """The loss of the broker in the middle of Spark's stream."""

    def __init__(
        self, server: BucketServer, admin: Admin, bodies: list[bytes], console: Console
    ) -> None:
        self.pushed = len(bodies) - LIVE_ROWS
        self.live = LivePublisher(server.url, bodies, self.pushed)
        self.loss = Takeover(server) if server.standby_listen else Loss(server)
        self._auditor = Auditor(server.url, bodies)
        self._admin = admin
        self._console = console
        self._reminders = Reminders(server.url, bodies)
        self._recent = Sampled(FINISHED_S)
        self._waiting: frozenset[str] = frozenset()
        self._kept_sync = False
        self._started = False
        admin.create_channel(work.REMINDERS, work.DESK)
        admin.create_channel(work.TOPIC, work.AUDIT)

    def look(self, broker: LocalBroker, crew: Crew, streamed: int) -> LocalBroker:
        """Start the clients, and later lose the broker. Return the broker that runs.

        The clients start when the stream has read its first rows, because Spark waits only 10 s for
        its process to start.
        """
        if streamed > 0 and not self._started:
            self._started = True
            for client in (self.live, self._reminders, self._auditor):
                client.start()
        handled = crew.sum_of(work.HANDLED)
        self._recent.add(time.monotonic(), handled)
        now = time.monotonic()
        if not self.loss.is_due or not is_moment(
            streamed, self.live.rows, self._auditor.paused_at, now
        ):
            return broker
        if isinstance(self.loss, Takeover) and not self._knows_standby():
            return broker
        self._reminders.publish()
        self._recent.add(time.monotonic(), crew.sum_of(work.HANDLED))
        before = Before(
            streamed, handled, crew.totals(work.HANDLED), self.live.rows, self._recent.grown
        )
        self._console.print(
            f"Spark has read {streamed:,} rows: killing the broker and destroying its directory"
        )
        again = self.loss.happen(broker, before)
        self.live.hurry()
        self._auditor.resume()
        if isinstance(self.loss, Takeover):
            how = f"the standby took over by itself, with --patience {PATIENCE_S:g}s"
        else:
            how = f"restored from the bucket in {self.loss.restore_s:.1f} s"
        self._console.print(
            f"{how}; broker in {again.data_dir}, pid {again.process.pid}, "
            f"{self.loss.ready_s:.1f} s after the kill"
        )
        self._waiting = frozenset(
            row["delayed_key"] for row in self._admin.delayed_list(work.REMINDERS)
        )
        self._kept_sync = all(topic["sync"] == SYNC for topic in self._admin.stats()["topics"])
        return again

    def begin(self, broker: LocalBroker) -> None:
        """Start the standby, if this drill has one."""
        if isinstance(self.loss, Takeover):
            standby = self.loss.begin(broker)
            self._console.print(f"standby in {standby.data_dir}, pid {standby.process.pid}")

    def _knows_standby(self) -> bool:
        """Return True when the primary knows its standby. It looks every 20 s."""
        return bool(self._admin.stats()["bucket"]["standbys"])

    def check(self) -> None:
        """Raise an error if one of the clients has failed."""
        for client in (self.live, self._reminders, self._auditor):
            if client.error is not None:
                raise BrokerFailed(f"client {client.name} failed: {client.error}")

    @property
    def is_over(self) -> bool:
        """True when all live rows are published, and all delayed and audited messages came."""
        return self.live.is_done and self._reminders.is_done and self._auditor.is_done

    def result(self) -> Lost:
        """Return what is to be checked and reported. Call it when the drill is over."""
        self.loss.count_later()
        return Lost(
            self.loss, self.live, self._reminders, self._auditor, self._waiting, self._kept_sync
        )

    def stop(self) -> None:
        """End the clients, and a restore that runs."""
        self.loss.stop()
        if self._started:
            for client in (self.live, self._reminders, self._auditor):
                client.stop()

    def close(self) -> None:
        """Stop the broker that was restored."""
        self.loss.close()
