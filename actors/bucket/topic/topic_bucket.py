"""The bucket's part in the storage of a topic: shipping, archiving, and the lease of the primary.

A topic of a broker with a bucket confirms in one of two ways:

| sync mode | a publish is confirmed | a finish is confirmed |
|---|---|---|
| `bucket` | when the bucket has it (`shipping.py`) | when it is on the disk, while the lease holds |
| any other | when it is on the disk, while the lease holds (`topic_lease.py`) | as a publish |

A publish that the bucket has needs no lease: it is there only if no standby had taken over before.
Without `--bucket-lag` nothing is shipped. There is no lease then, and publishes of the mode
`bucket` are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ....storage.bucket.archive.chunk_cache import open_cache
from ....storage.errors import NotHere
from ....storage.log.log_reader import OpenArchive
from ....transport.errors import E_BUCKET, Refused
from ....transport.settings import Retention
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...settings.starts import StorageStart
from ...storage.extension_point import Archived, ExtendedStorage, StorageExtension
from .archive_link import ArchiveLink
from .archiving import Archiver
from .shipping import ShipLimits, Shipping
from .topic_lease import TopicLease

NOT_SHIPPED: Final = (
    "the topic answers publishes when they are in the bucket (--sync bucket), but this broker does "
    "not ship it: start it with --bucket and --bucket-lag, or set the topic's sync mode to always"
)
LIMITS: Final = ShipLimits()
STOP_S: Final = 3.0  # a stop waits this long for the bucket

Action = Callable[[], object]


class TopicBucket(StorageExtension):
    """The bucket, for one topic."""

    def __init__(self, storage: ExtendedStorage) -> None:
        super().__init__(storage)
        start, host = storage.given, storage.host
        self._waits_for_bucket = start.sync == "bucket"
        self._link = ArchiveLink(lambda: host.open_dealer(start.archive))
        # Without shipping there is no cell, and the topic would look for its file all the time.
        archive = start.archive if start.ship_lag_s else ""
        self._lease = TopicLease(archive, host, self._lease_came)
        self._is_timed = False  # the timer of shipping runs
        self._repeats_wait = False
        # Confirmations of delayed messages that wait for the bucket, by their numbers, and those
        # that wait for the lease.
        self._unshipped: dict[int, Action] = {}
        self._numbers = 0
        self._unleased: list[Action] = []
        self._stop_ns = 0  # since when a stop waits for the bucket
        self._is_settled = False
        self._shipping = self._make_shipping()
        self._archiver = self._make_archiver()
        host.obey_reload(p.ReloadShipping, self._take_bound)

    @classmethod
    def open_remote(cls, start: StorageStart) -> OpenArchive | None:
        return open_cache(start.cache_bytes) if start.archive else None

    def _make_shipping(self) -> Shipping | None:
        storage, start = self.storage, self.storage.given
        if not start.archive or not start.ship_lag_s or start.sync == "never":
            return None
        shipping = Shipping(
            storage, bytes.fromhex(start.uuid).hex(), self._link, start.ship_lag_s, self._shipped,
            is_urgent=self._waits_for_bucket, is_on=start.retention.archive == "on", limits=LIMITS,
        )  # fmt: skip
        storage.store.on_delayed_made = shipping.delayed_made
        self._repeats_wait = True
        shipping.then(self._release_repeats)
        return shipping

    def _make_archiver(self) -> Archiver | None:
        storage, start = self.storage, self.storage.given
        if not start.archive:
            return None
        return Archiver(
            storage.store, start.name, bytes.fromhex(start.uuid).hex(), storage.title, storage.state, self._link, storage.fetched,
            self.when_safe, is_on=start.retention.archive == "on",
        )  # fmt: skip

    # May a publish be accepted?

    @property
    def confirms_late(self) -> bool:
        return self._waits_for_bucket

    def admits(self, messages: Callable[[], int]) -> bool:
        """Return False while too much is not in the bucket, or a standby may have taken over."""
        return self._shipping is None or not (
            self._shipping.publishes_must_wait(messages()) or self._lease.publishes_must_wait()
        )

    def may_move(self, messages: int) -> bool:
        return self._shipping is None or self._shipping.may_move(messages)

    def check(self) -> None:
        """Raise `Refused` if publishes have waited too long for the bucket or the lease."""
        if self._shipping is not None:
            self._shipping.check()
            self._lease.check()
        elif self._waits_for_bucket:
            raise Refused(E_BUCKET, NOT_SHIPPED)

    def reserve(self, messages: int, then: Action) -> bool:
        if self._shipping is None:
            return True
        self._shipping.check()
        return self._shipping.may_commit(messages, then)

    def count_reserved(self, messages: Callable[[], int]) -> None:
        if self._shipping is not None:
            self._shipping.reserve.promised = messages

    def check_primary(self) -> None:
        self._lease.watch.check()

    # When is what is stored confirmed?

    def confirmed_end(self) -> int:
        end = self._log.synced_end
        if self._waits_for_bucket and self._shipping is not None and not self._shipping.is_off:
            return max(self._log.start, min(end, self._shipping.shipped.end))
        return end

    def readers_end(self) -> int:
        """Return the end of what readers see.

        Raises `NotHere` from the start of the topic until the archive actor has told what the
        bucket has.
        """
        shipping = self._shipping
        if self._waits_for_bucket and shipping is not None and not shipping.is_known:
            raise NotHere(f"{self.storage.title}: it is not known yet what the bucket has")
        if self.is_over:
            return self._log.synced_end
        return self.confirmed_end()

    def appends_must_wait(self) -> bool:
        return not self._waits_for_bucket and self._lease.is_over()

    def finishes_must_wait(self) -> bool:
        return self._lease.is_over()

    def repeats_must_wait(self) -> bool:
        """Return True while a block that is repeated must not be confirmed, although it is stored.

        In the mode `bucket`, this is from the start until the bucket has all that was on the disk
        then. Otherwise it is while the lease is over: a block that was stored and not confirmed
        before the process ended would be confirmed now.
        """
        return self._repeats_wait if self._waits_for_bucket else self._lease.is_over()

    def check_repeats(self) -> None:
        """Raise `Refused` if nothing was confirmed for so long that a standby may be primary."""
        self._lease.check()

    def _release_repeats(self) -> None:
        self._repeats_wait = False

    def when_confirmable(self, action: Action) -> None:
        if self._waits_for_bucket:
            self._numbers += 1
            self._unshipped[self._numbers] = action
            self.when_safe(partial(self._confirm_shipped, self._numbers))
        elif self._unleased or self._lease.is_over():
            self._unleased.append(action)
        else:
            action()

    def _confirm_shipped(self, number: int) -> None:
        action = self._unshipped.pop(number, None)
        if action is not None:  # None: the sync mode was changed meanwhile
            action()

    def _lease_came(self) -> None:
        """Confirm what waited while a standby might have taken over."""
        if not self._lease.is_over():
            self._confirm_leased()
            self.storage.confirm_appends()

    def _confirm_leased(self) -> None:
        unleased, self._unleased = self._unleased, []
        for action in unleased:
            action()

    def when_safe(self, action: Action) -> None:
        """Call `action` when all that is synced and committed now is in the bucket, at once
        without shipping.
        """
        if self._shipping is None:
            action()
        else:
            self._shipping.then(action, is_promised=self._waits_for_bucket)

    @property
    def is_over(self) -> bool:
        return self._shipping is not None and self._shipping.is_fenced

    def _shipped(self) -> None:
        """Confirm what waited until it was known what the bucket has."""
        if self._waits_for_bucket:
            self.storage.confirm_appends()
            self.storage.fetched()
        self.storage.resume_delayed()

    # What happens on the disk

    def synced(self) -> None:
        if self._shipping is not None:
            self._shipping.synced()

    def policy_changed(self, policy: Retention) -> None:
        is_on = policy.archive == "on"
        if self._archiver is not None:
            self._archiver.is_on = is_on
        if self._shipping is not None:
            self._shipping.turn(is_on=is_on)
            self._tick_shipping()

    def sync_changed(self, sync: str) -> None:
        """Confirm publishes when they are synced, or when they are shipped."""
        self._waits_for_bucket = sync == "bucket"
        if self._shipping is not None:
            self._shipping.is_urgent = self._waits_for_bucket
            self._shipping.push()
        if not self._waits_for_bucket:
            unshipped, self._unshipped = self._unshipped, {}
            for action in unshipped.values():
                self.when_confirmable(action)  # it may have to wait for the lease

    def _take_bound(self, order: p.ReloadShipping) -> None:
        """Apply another bound of shipping."""
        if self._shipping is not None:
            self._shipping.set_bound(order.bucket_lag_s)
            self._tick_shipping()

    def turn(self) -> None:
        # The lease ceases its timer when any caller finds that it holds again.
        if self._unleased and not self._lease.is_over():
            self._confirm_leased()
        if self._shipping is not None and not self._is_timed and self._shipping.is_active:
            self._tick_shipping()
        if self._archiver is not None and not self.storage.host.stopping:
            self._archiver.fetch()

    def tick(self) -> None:
        if self._archiver is not None and not self.storage.host.stopping:
            self._archiver.tick()

    def _tick_shipping(self) -> None:
        """Call the timer of shipping, and set it anew while something is not shipped."""
        shipping, host = self._shipping, self.storage.host
        assert shipping is not None
        host.cease(self._tick_shipping)
        shipping.tick()
        self._is_timed = shipping.is_active
        if self._is_timed:
            wait_ms = (shipping.next_ns() - time.monotonic_ns()) / 1_000_000
            host.every(max(1.0, wait_ms), self._tick_shipping)

    def gone(self, who: str) -> None:
        """Open the link again if the archive actor died."""
        if who == "archive" and self._archiver is not None:
            self._link.gone()
            self._archiver.gone()
            if self._shipping is not None:
                self._shipping.gone()

    def stop(self) -> bool:
        """Return True if everything is shipped, or if the bucket did not answer for long."""
        shipping = self._shipping
        if shipping is not None and shipping.is_active:
            now = time.monotonic_ns()
            self._stop_ns = self._stop_ns or now
            shipping.tick()
            shipping.push()
            if now - self._stop_ns <= STOP_S * NS_PER_S:
                return False
        self._is_settled = shipping is None or not shipping.is_active
        return True

    def end(self) -> None:
        if self._shipping is not None:
            self._shipping.end()

    # Which files may leave the disk?

    @property
    def archives(self) -> bool:
        return self._archiver is not None and self._archiver.is_on

    def leavable(self, bases: Sequence[int], covered: int) -> int:
        return 0 if self._archiver is None else self._archiver.leavable(bases, covered)

    def leave(self, bases: Sequence[int]) -> None:
        if self._archiver is not None:
            self._archiver.leave(bases)

    @property
    def keeps_remote(self) -> bool:
        """True if this broker may have been started without its bucket by mistake."""
        return self._archiver is None and super().keeps_remote

    def archived(self) -> Archived | None:
        archiver = self._archiver
        return (
            None if archiver is None else Archived(self.storage.given.bucket, archiver.listed_end())
        )

    # Reports

    def refusal(self) -> str:
        if self._shipping is not None:
            return "; ".join(self._shipping.alarms())
        return NOT_SHIPPED if self._waits_for_bucket else ""

    def alarms(self) -> list[str]:
        if self._archiver is not None:
            return self._archiver.alarms()
        remote = self._log.reader.remote
        if not remote:
            return []
        return [
            f"the messages below offset {remote[max(remote)].next_offset} are only in the bucket, "
            "and this broker runs without one: start it with --bucket"
        ]

    @property
    def is_busy(self) -> bool:
        is_archiving = self._archiver is not None and not self._archiver.is_idle()
        return is_archiving or (self._shipping is not None and self._shipping.is_active)

    @property
    def is_settled(self) -> bool:
        return self._is_settled

    def statistics(self) -> Mapping[str, Any]:
        parts = (self._archiver, self._shipping)
        return {
            name: value
            for part in parts
            if part is not None
            for name, value in part.statistics().items()
        }
