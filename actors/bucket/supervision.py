"""The bucket in the supervisor: the archive actor's reports, its health, and the handover.

It is not the archive actor, which is the only process that talks to the bucket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from ...transport.errors import E_BUCKET, E_NOT_FOUND, Refused
from ...transport.wire import protocol as p
from ..runtime.port import Mail
from ..runtime.process_table import Child
from ..supervisor.extension_point import Condition, SupervisorExtension, SupervisorParts
from ..supervisor.supervisor import EXIT_NOT_PRIMARY
from .archive_service import ArchiveService
from .handover import Handover

log = logging.getLogger("zsq")

CONDITION: Final = "bucket"


class BucketSupervision(SupervisorExtension):
    def __init__(self, parts: SupervisorParts) -> None:
        super().__init__(parts)
        self._broker = parts.state
        self._hands_over_next = False
        self._handover: Handover | None = None

    def _archives(self) -> list[Child]:
        return self._parts.singles.of_kind(ArchiveService.kind)

    def tick(self, now_ns: int) -> None:
        if self._hands_over_next:
            self._hands_over_next = False
            children = self._broker.processes.children.values()
            self._handover = Handover(
                child.spec.key for child in children if child.spec.kind == "topic"
            )
            why = "this broker hands over to its standby and stops"
            self._parts.stop(EXIT_NOT_PRIMARY, why)

    # The archive actor

    def pulse(self, child: Child) -> None:
        """Note the epoch, and which archive the broker uses. A later start misses that archive.

        Stop at once if another broker has taken over. Two must not serve the same topics.
        """
        if child.spec.kind != ArchiveService.kind:
            return
        self._broker.epoch = int(child.stats.get("epoch", 0))
        archive = str(child.stats.get("archive", ""))
        if archive and archive != self._broker.registry.bucket and not self._broker.stopping:
            try:
                self._broker.registry.note_bucket(archive)
            except Refused as error:
                log.error("the identity of the archive cannot be noted: %s", error)
        if child.stats.get("shipping") == "lost" and not self._broker.stopping:
            why = child.stats.get("trouble", "")
            text = f"this broker is not primary any more and stops: {why}"
            self._parts.stop(EXIT_NOT_PRIMARY, text)

    def last_pulse(self, key: int, stats: Mapping[str, object]) -> None:
        if self._handover is not None:
            self._handover.noted(key, stats)

    def hears(self, mail: Mail) -> bool:
        """Wake a topic that the archive actor needs, if it is asleep."""
        message = mail.message
        if not isinstance(message, p.WakeTopic):
            return False
        if not any(child.envelope == mail.envelope for child in self._archives()):
            log.warning("message WakeTopic ignored: its sender is not the archive actor")
            return True
        for group in self._broker.groups.values():
            if group.row.uuid == message.uuid and group.is_dormant and not self._broker.stopping:
                group.want("", lambda error: None)
        return True

    def forget_topic(self, uuid: str) -> None:
        """Make the archive actor remove the objects of a deleted topic."""
        for child in self._archives():
            self._broker.processes.send(child, p.ForgetArchive(uuid))

    def conditions(self) -> Mapping[str, Condition]:
        return {CONDITION: Condition(self.trouble, "the bucket can be used")}

    def trouble(self) -> str:
        """Return why the bucket cannot be used, or ""."""
        for child in self._archives():
            trouble = child.stats.get("trouble")
            if trouble and child.stats.get("shipping") == "lost":
                return f"nothing is shipped to the bucket any more: {trouble}"
            if trouble:
                return f"the bucket cannot be used: {trouble}"
        return ""

    # The end of the broker

    def hand_over(self) -> bool:
        archives = self._archives()
        if not any(child.stats.get("shipping") == "open" for child in archives):
            why = self.trouble() or "it ships nothing to a bucket"
            raise Refused(E_BUCKET, f"this broker cannot hand over: {why}")
        if not any(child.stats.get("standbys") for child in archives):
            raise Refused(
                E_NOT_FOUND,
                "this broker cannot hand over, because no standby follows it: start one with zsq "
                "standby, and wait until `zsq stats` shows it (20 s)",
            )
        self._hands_over_next = True
        return True

    def stopping(self) -> None:
        for child in self._archives():
            if child.state == "up":
                self._broker.processes.send(child, p.ShipNow())

    def may_end(self) -> bool:
        """Wait until the bucket has what the topics had when they ended, if the broker hands over.

        Then the archive actor says in the bucket that all of it is there.
        """
        handover, now_ns = self._handover, time.monotonic_ns()
        if handover is None:
            return True
        if not handover.is_complete and not handover.is_late(now_ns):
            return False
        self._handover = None
        if not handover.is_complete:
            log.error("does not hand over: a topic ended before the bucket had all of it")
            return True
        for child in self._archives():
            if child.state == "up":
                self._broker.processes.send(child, p.ShipNow(is_last=True))
        return True
