"""Primacy: what a primary owes to standbys. `storage/bucket/shipping/standbys.py` has the rules.

| change | before it | after it |
|---|---|---|
| a process begins with a tick that says a lease | the lease in the cell is over | the lease counts from when the tick was begun |
| a first standby, or a shorter patience | the lease in the cell is made shorter | ticks say the new lease |
| no standby any more | a tick that says so exists | the cell has no lease |
| a tick exists, and all before it | | the lease counts from when the tick was begun |
| another process has taken over | | the lease is over |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ....storage.bucket.shipping.standbys import (
    LOOK_S,
    NO_STANDBY,
    SOON_LOOK_S,
    SOON_LOOKS,
    Notice,
    StandbyWatch,
    Terms,
    patience_ns,
    terms_of,
)
from ....transport.units import NS_PER_S
from ..lease_cell import OVER, LeaseCell

log = logging.getLogger("zsq")


class Primacy:
    """The lease and the heartbeats of a primary. `addresses` are where clients reach it."""

    def __init__(self, cell: LeaseCell, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.terms = NO_STANDBY
        self.notices: Mapping[str, Notice] = {}
        self.watch: StandbyWatch | None = None
        self._cell = cell
        self._begun_ns = 0  # when the last tick that exists was begun
        self._is_over = False
        self._look_ns = 0
        self._soon_looks = SOON_LOOKS

    @property
    def standby_addresses(self) -> str:
        """The addresses of all standbys that are known, with commas between them."""
        urls = (url for _, notice in sorted(self.notices.items()) for url in notice.addresses)
        return ",".join(dict.fromkeys(urls))

    def watch_for(self, copy: str) -> StandbyWatch:
        """Return the watch of a primary with this identity."""
        if self.watch is None:
            self.watch = StandbyWatch(copy)
        return self.watch

    def must_look(self, now_ns: int) -> bool:
        """Return True if it is time to look for standbys. Then the next time is later."""
        if now_ns < self._look_ns:
            return False
        pause_s = LOOK_S
        if self._soon_looks:
            self._soon_looks -= 1
            pause_s = SOON_LOOK_S
        self._look_ns = now_ns + int(pause_s * NS_PER_S)
        return True

    def looked(self, notices: Mapping[str, Notice]) -> bool:
        """Adopt the terms for these standbys. Return True if a tick must tell new terms."""
        for copy in notices.keys() - self.notices.keys():
            notice = notices[copy]
            log.info(
                "a standby on host %s takes over when this broker is gone for %g s",
                notice.host, notice.patience_s,
            )  # fmt: skip
        for copy in self.notices.keys() - notices.keys():
            log.warning("the standby on host %s is gone", self.notices[copy].host)
            self._soon_looks = SOON_LOOKS
        self.notices = dict(notices)
        before, self.terms = self.terms, terms_of(notices.values())
        self._tell_patience(self.terms)
        if self.terms.lease_ns and (not before.lease_ns or self.terms.lease_ns < before.lease_ns):
            self._shorten()
        return self.terms != before

    def begins(self, terms: Terms) -> None:
        """End the lease in the cell before the first tick of this process says these terms.

        The cell may say that no lease is needed, because an earlier archive process of this broker
        knew no standby. If all processes were suspended after the tick exists, and before it is
        noted here, the standby would take over after its patience, and topics that go on later
        would acknowledge what they had received. Any thread may call this.
        """
        self._tell_patience(terms)
        if terms.lease_ns:
            self._cell.write(OVER)

    def _tell_patience(self, terms: Terms) -> None:
        if terms.lease_ns:
            self._cell.write_patience(patience_ns(terms))

    def _shorten(self) -> None:
        until_ns = max(OVER, self._begun_ns + self.terms.lease_ns)
        if not self._cell.until_ns or until_ns < self._cell.until_ns:
            self._cell.write(until_ns)

    def exists(self, begun_ns: int, terms: Terms) -> None:
        """Note that a tick exists, with all before it. It was begun then, and says these terms."""
        self._begun_ns = begun_ns
        if self._is_over:
            return
        lease_ns = min(terms.lease_ns, self.terms.lease_ns)
        if lease_ns:
            self._cell.write(max(self._cell.until_ns, begun_ns + lease_ns))
        elif terms == self.terms:
            self._cell.write(0)

    def end(self) -> None:
        """Acknowledge nothing more, because another process has taken over, or may do so."""
        self._is_over = True
        self._cell.write(OVER)

    def beats_at(self, sent_ns: int) -> int:
        """Return when the next tick is due if the last one was sent then, or 0 for never."""
        return sent_ns + self.terms.heartbeat_ns if self.terms.heartbeat_ns else 0
