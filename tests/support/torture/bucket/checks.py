"""The checks of a run with a bucket: the clients are served, the log has what was acknowledged, the
channels become empty, and the bucket is whole. A run says what happens in between.
"""

from __future__ import annotations

import contextlib
import random
import select
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from support.torture.bucket import store as stores
from support.torture.bucket.history import BucketHistory
from support.torture.bucket.homes import LAG_S, Home
from support.torture.bucket.load import CHANNEL, Load
from support.torture.processes import holders_of

import zsq

TOPICS: Final = (("safe", True), ("fast", False))
RECOVERY_S: Final = 120.0
READ_S: Final = 90.0
QUIET_S: Final = 180.0
QUIET_EVERY: Final = 20  # cycles between two checks of all promises
# After the loss of a disk, the log is read again from where it ended so long before.
BEHIND_S: Final = 20.0


class BrokenPromise(Exception):
    """A promise was broken. The text says which one and where."""


class BucketChecks:
    """A run in `folder`. `home` is the primary, and `load` are its clients."""

    store: stores.Store
    home: Home
    load: Load
    behind_s = BEHIND_S

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.history = BucketHistory(TOPICS, LAG_S)
        self.folder = folder / "brokers"
        self.folder.mkdir()
        self.cycles_done: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.orphans = 0
        self.fscks = 0
        self.unhealthy = 0
        self.recoveries: list[float] = []
        self.began_s = time.monotonic()
        self._homes: list[Home] = []
        self._loads: list[Load] = []
        self._reads: list[tuple[float, list[int]]] = []

    @property
    def url(self) -> str:
        """The addresses of the broker."""
        return self.home.url

    def run(self) -> None:
        """Run all cycles. Raise `BrokenPromise` at the first broken promise."""
        raise NotImplementedError

    def _pause(self, least_s: float, most_s: float) -> None:
        select.select([], [], [], self.random.uniform(least_s, most_s))

    def _run_cycles(self, kinds: Sequence[str]) -> None:
        for cycle, kind in enumerate(kinds, 1):
            self._cycle(cycle, kind)
            if cycle % QUIET_EVERY == 0 and cycle < len(kinds):
                self._quiet()

    def _cycle(self, cycle: int, kind: str) -> None:
        raise NotImplementedError

    def _create_topics(self) -> None:
        with zsq.Admin(self.home.url) as admin:
            for name, sync_bucket in TOPICS:
                admin.create_topic(name, sync="bucket" if sync_bucket else "always")
                admin.create_channel(name, CHANNEL, start="earliest")

    def _lose(self, lifetime: int, lost_s: float) -> None:
        """Record the loss of a disk at this time. What was read last must be read again."""
        self.history.lose_disk(lifetime)
        before = [row for row in self._reads if row[0] < lost_s - self.behind_s]
        self._reads = before[-1:]
        for topic in range(len(TOPICS)):
            self.history.read_again(topic, before[-1][1][topic] if before else 0)

    def _end_load(self, load: Load) -> None:
        load.close()
        self._loads.remove(load)
        self.clients += load.counts

    def _stats(self) -> list[dict[str, Any]]:
        with zsq.Admin(self.url) as admin:
            return [dict(row) for row in admin.stats()["topics"]]

    # Checks

    def _recovered(self, since_s: float) -> float:
        """Wait until every client has an answer for what it sent or received after this time.
        Return the seconds.
        """
        deadline = time.monotonic() + RECOVERY_S
        while silent := self.load.silent(since_s):
            if time.monotonic() > deadline:
                raise BrokenPromise(
                    f"these clients are not served within {RECOVERY_S:g} s: {silent}"
                )
            self._complain()
            select.select([], [], [], 0.01)
        return time.monotonic() - since_s

    def _complain(self) -> None:
        if found := self.history.complaints:
            raise BrokenPromise("; ".join(found[:5]))
        for home in self._serving():
            assert home.broker.process is not None
            if home.broker.process.poll() is not None:
                raise BrokenPromise(
                    f"the broker on {home.folder} ended by itself with code "
                    f"{home.broker.process.returncode}"
                )

    def _serving(self) -> Iterable[Home]:
        """Return the brokers that must run now."""
        return [self.home]

    def read(self) -> None:
        """Read what is new in all topics, and check all publishes that were acknowledged before."""
        for topic in range(len(TOPICS)):
            wanted = self.history.to_check(topic)
            self._read_topic(topic)
            self.history.check(topic, wanted)
        self._reads.append((time.monotonic(), [one.position for one in self.history.topics]))

    def _read_topic(self, topic: int) -> None:
        history = self.history.topics[topic]
        deadline = time.monotonic() + READ_S
        with zsq.Reader(history.name, url=self.url, timeout=READ_S, patient=True) as reader:
            while time.monotonic() < deadline:
                try:
                    found = reader.read(history.position, 1 << 20)
                except (zsq.Refused, zsq.BrokerUnreachable):
                    continue
                for block in found.blocks:
                    for index, body in enumerate(block.body.values()):
                        if (offset := block.first_offset + index) >= history.position:
                            self.history.read(topic, offset, body or b"")
                    history.position = max(history.position, block.first_offset + block.count)
                history.position = max(history.position, found.next_offset)
                if history.position >= found.head:
                    return
        raise BrokenPromise(f"{history.name} could not be read within {READ_S:g} s")

    def _quiet(self) -> None:
        """Pause the producers. All delayed messages come, all channels become empty, and `zsq fsck`
        finds nothing.
        """
        self.load.pausing.set()
        deadline = time.monotonic() + QUIET_S
        while not (self.load.is_idle and self._is_drained()):
            if time.monotonic() > deadline:
                raise BrokenPromise(
                    f"the channels are not empty after {QUIET_S:g} s: {self._stats()}"
                )
            self._complain()
            select.select([], [], [], 0.05)
        self.read()
        for topic in range(len(TOPICS)):
            self.history.check_delayed(topic)
            self.history.check_delivered(topic)
        self._complain()
        self.unhealthy += sum(row["health"] != "OK" for row in self._stats())
        self.load.pausing.clear()
        self.fsck()
        self._complain()
        print(f"      quiet: {self.history.counts['read']:,} messages read", flush=True)

    def _is_drained(self) -> bool:
        try:
            rows = self._stats()
        except zsq.ZsqError:
            return False
        return not any(
            row["delayed_count"]
            or any(
                one["depth"] + one["in_flight_count"] + one["deferred_count"]
                for one in row["channels"]
            )
            for row in rows
        )

    def fsck(self) -> None:
        """Check the bucket without faults, while the broker runs."""
        log = self.folder / "fsck.log"
        command = stores.Command(log, self.store.direct, "fsck", stores.URL)
        if not command.wait(stores.FSCK_S):
            command.kill()
            raise BrokenPromise(f"zsq fsck did not end within {stores.FSCK_S:g} s")
        if command.code != 0:
            raise BrokenPromise(f"zsq fsck ended with code {command.code}: {command.output()}")
        self.fscks += 1

    def _end(self) -> None:
        """Check everything, and read the whole log again."""
        self.store.proxy.heal()
        self._quiet()
        for topic in range(len(TOPICS)):
            self.history.read_again(topic, 0)
        self.read()
        self._complain()
        self._end_load(self.load)
        if (code := self.home.broker.stop()) != 0:
            raise BrokenPromise(f"the broker's last end had code {code}")
        self.fsck()
        for home in self._homes:
            self.orphans += home.end() + len(holders_of(home.folder))
            if not home.broker.log.exists():
                continue
            if b"Traceback" in (said := home.broker.log.read_bytes()):
                said = said[said.index(b"Traceback") :][:2000]
                raise BrokenPromise(f"{home.broker.log} has a traceback: {said.decode()}")
        if self.orphans:
            raise BrokenPromise(f"{self.orphans} processes outlived their broker")

    def _close(self) -> None:
        for home in self._homes:
            home.end()
        for load in list(self._loads):
            with contextlib.suppress(RuntimeError):
                self._end_load(load)
