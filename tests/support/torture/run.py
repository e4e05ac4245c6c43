"""The run of the torture: a broker and its clients under load. In each cycle, one or more processes
are killed or stopped (a kill). After each kill all clients must make progress again, and the audit
reads the log.
"""

from __future__ import annotations

import os
import random
import select
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from support.broker import Broker
from support.torture import ledger as l
from support.torture.audit import Audit
from support.torture.clients import Clients
from support.torture.disk import ImageDisk
from support.torture.kills import SHARES, Killer
from support.torture.ledger import Ledger, Shape
from support.torture.processes import await_end, holders_of, of_sessions

import zsq

# The first topic always has processes of its own, and the last one shares a process. In each cycle,
# the one between them begins to move from the one to the other.
TOPICS: Final = ("alpha", "beta", "gamma")
PLACES: Final[tuple[Literal["always", "never"], ...]] = ("always", "never", "never")
MOVED: Final = TOPICS[1]
CHANNELS: Final = ((0, "one"), (0, "two"), (1, "three"), (1, "four"), (2, "five"))
ORDERED: Final = 3  # index of the ordered channel in CHANNELS: one of the topic that moves
CHUNK_BYTES: Final = 2 << 20
KEPT_BYTES: Final = 48 << 20
SERVE: Final = ("--chunk-bytes", str(CHUNK_BYTES), "--keep-bytes", str(KEPT_BYTES), "--stage-timeout", "60",
                "--alarm-command", "true", "--alarm-depth", "1000000000")  # fmt: skip
# The most seconds of a recovery. The limit is for machines that are busy with other work. The real
# time is reported.
RECOVERY_S: Final = 120.0
# The most seconds that a kill waits until there are unanswered publishes and finishes.
OUTSTANDING_S: Final = 0.5
QUIET_EVERY: Final = 50  # cycles between two checks of all promises
DRAIN_S: Final = 180.0
# Slots of each producer: several times the number that it needs. Unused slots take no memory.
SLOTS_A_CYCLE: Final = 150


class Violation(Exception):
    """A promise was broken. The text says which one and where."""


def memory_folder() -> Path:
    """Make a new folder, in a memory file system if there is one."""
    return Path(
        tempfile.mkdtemp(
            prefix="torture-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
    )


class Torture:
    """One run in `folder`, whose ledger is in `memory`."""

    def __init__(
        self,
        folder: Path,
        memory: Path,
        cycles: int,
        seed: int,
        kinds: Sequence[str],
        disk: ImageDisk | None = None,
    ) -> None:
        self.seed = seed
        self.cycles = cycles
        self.random = random.Random(seed)
        self.kinds = list(kinds)
        shape = Shape(SLOTS_A_CYCLE * cycles + 2_000, 3, TOPICS, CHANNELS, 2, ORDERED)
        self.ledger = Ledger(memory / "ledger", shape)
        self.broker = Broker(folder / "data", *SERVE)
        self.clients = Clients(self.ledger, memory / "ledger", self.broker, seed)
        self.killer = Killer(self.broker, self.clients, seed, disk)
        self.audit = Audit(self.ledger, self.broker.ipc)
        self.done: Counter[str] = Counter()
        self.recoveries: list[float] = []
        self.outstanding: Counter[str] = Counter()
        self.began = time.monotonic()

    # Numbers

    def sum(self, message: int, rows: list[int]) -> int:
        return int(sum(self.ledger.words[row + message] for row in rows))

    @property
    def lanes(self) -> list[int]:
        return [self.ledger.shape.row_of_lane(lane) for lane in range(self.ledger.shape.lanes)]

    @property
    def consumers(self) -> list[int]:
        shape = self.ledger.shape
        return [
            shape.row_of_consumer(channel, one)
            for channel in range(len(shape.channels))
            for one in range(shape.consumers)
        ]

    def publishes_out(self) -> int:
        return self.sum(l.SENT_BLOCKS, self.lanes) - self.sum(l.DONE_BLOCKS, self.lanes)

    def finishes_out(self) -> int:
        return self.sum(l.TOLD, self.consumers) - self.sum(l.SETTLED, self.consumers)

    def acked(self) -> int:
        return self.sum(l.ACKED_MESSAGES, self.lanes)

    # Cycles

    def run(self) -> None:
        """Run all cycles. Raise `Violation` at the first violation."""
        try:
            self._begin()
            for cycle, kind in enumerate(self._plan(), 1):
                self._cycle(cycle, kind)
                if cycle % QUIET_EVERY == 0 and cycle < self.cycles:
                    self._quiet()
            self._quiet()
            self.clients.stop()
            self._end()
        finally:
            self.clients.close()
            self.killer.end_all()

    def _begin(self) -> None:
        self.broker.start(RECOVERY_S)
        self.killer.note_generation()
        with zsq.Admin(self.broker.ipc) as admin:
            for topic, place in zip(TOPICS, PLACES, strict=True):
                admin.create_topic(topic, own_process=place)
            for number, (topic_number, channel) in enumerate(CHANNELS):
                admin.create_channel(
                    TOPICS[topic_number], channel, start="earliest", ordered=number == ORDERED
                )
        self.clients.start()
        self._recovered(time.monotonic())

    def _plan(self) -> list[str]:
        """Plan the kills. Each kind occurs by its share, so that each thirty kills contain all
        kinds.
        """
        plan: list[str] = []
        while len(plan) < self.cycles:
            bag = [kind for kind in self.kinds for _ in range(SHARES.get(kind, 1))]
            self.random.shuffle(bag)
            plan += bag
        return plan[: self.cycles]

    def _cycle(self, cycle: int, kind: str) -> None:
        words = self.ledger.words
        with zsq.Admin(self.broker.ipc, timeout=RECOVERY_S) as admin:
            admin.configure_topic(MOVED, own_process=("never", "always")[cycle % 2])
        select.select([], [], [], self.random.uniform(0, 0.3))
        words[l.PRESSURE] = 1
        deadline = time.monotonic() + OUTSTANDING_S
        while not (self.publishes_out() and self.finishes_out()) and time.monotonic() < deadline:
            select.select([], [], [], 0.0005)
        select.select([], [], [], self.random.uniform(0, 0.008))
        at, publishes, finishes = time.monotonic(), self.publishes_out(), self.finishes_out()
        done = self.killer.carry_out(kind)
        # There is no such process now, or after one more kill the broker might not restart it.
        if done is None:
            kind = "everything"
            done = self.killer.carry_out(kind)
        assert done is not None
        words[l.PRESSURE] = 0
        if done.ends_generation:
            self.killer.start_again()
        took = self._recovered(at)
        self.recoveries.append(took)
        self.audit.read()
        self._complain()
        self.done[kind] += 1
        self.outstanding["publishes"] += publishes
        self.outstanding["finishes"] += finishes
        self.outstanding["kills with both"] += bool(publishes and finishes)
        print(
            f"{cycle:5} {kind:12} {at - self.began:8.2f} s  outstanding: {publishes:3} "
            f"publishes, {finishes:5} finishes"
            f"  acked {self.acked():10,}  flows again after {took:5.2f} s  ({done.text})",
            flush=True,
        )

    def _recovered(self, since: float) -> float:
        """Wait until each producer has an answer for a message that it sent after the kill, and
        each consumer has an answer for a message that it received after the kill. Return the
        seconds since `since`.
        """
        words = self.ledger.words
        wanted = [row + l.EPOCHS + topic for row in self.lanes for topic in range(len(TOPICS))] + [
            row + l.EPOCHS for row in self.consumers
        ]
        epoch = words[l.EPOCH] = words[l.EPOCH] + 1
        deadline = time.monotonic() + RECOVERY_S
        while missing := [message for message in wanted if words[message] < epoch]:
            if time.monotonic() > deadline:
                rows = sorted({(message - l.ROWS_AT) // l.ROW for message in missing})
                raise Violation(f"clients {rows} are not served within {RECOVERY_S:g} s")
            self._complain()
            select.select([], [], [], 0.005)
        return time.monotonic() - since

    def _complain(self) -> None:
        if found := self.ledger.complained():
            raise Violation("; ".join(found[:5]))
        if ended := self.clients.ended():
            raise Violation(f"clients ended by themselves: {ended}")
        assert self.broker.process is not None
        if self.broker.process.poll() is not None:
            raise Violation(
                f"the broker ended by itself with code {self.broker.process.returncode}"
            )

    # Checks without traffic

    def _quiet(self) -> None:
        """Pause the producers. When all channels are empty, every acknowledged message must be
        stored and finished.
        """
        words = self.ledger.words
        words[l.PAUSE] += 1
        pause, deadline = words[l.PAUSE], time.monotonic() + DRAIN_S
        while (
            any(words[row + l.IDLE] != pause for row in self.lanes)
            or not self._drained()
            or self.finishes_out()
        ):
            if time.monotonic() > deadline:
                raise Violation(f"the channels are not empty after {DRAIN_S:g} s: {self._depths()}")
            self._complain()
            select.select([], [], [], 0.05)
        self.audit.read()
        self.totals = self.audit.settled()
        self._healthy()
        self._complain()
        words[l.PAUSE], words[l.EPOCH] = 0, words[l.EPOCH] + 1
        print(
            (
                f"      quiet: all {self.audit.messages:,} messages are in the log once and "
                "finished in every channel"
            ),
            flush=True,
        )

    def _depths(self) -> list[tuple[str, int, int, int, int]]:
        with zsq.Admin(self.broker.ipc) as admin:
            topics = admin.stats()["topics"]
        return [
            (
                row["channel_name"],
                row["depth"],
                row["in_flight_count"],
                row["deferred_count"],
                topic["delayed_count"],
            )
            for topic in topics
            for row in topic["channels"]
        ]

    def _drained(self) -> bool:
        try:
            found = self._depths()
        except zsq.ZsqError:
            return False
        return len(found) == len(CHANNELS) and not any(sum(row[1:]) for row in found)

    def _healthy(self) -> None:
        with zsq.Admin(self.broker.ipc) as admin:
            topics = admin.stats()["topics"]
        for number, topic in enumerate(topics):
            for message in ("damaged_blocks", "lost_messages", "delayed_lost", "dropped_count"):
                if topic[message]:
                    self.ledger.complain(f"{topic['topic_name']}: {message} {topic[message]}")
            if topic["head"] != self.audit.topics[number].offset:
                self.ledger.complain(
                    f"{topic['topic_name']}: its head is {topic['head']}, read were "
                    f"{self.audit.topics[number].offset}"
                )

    def _end(self) -> None:
        if (code := self.broker.stop()) != 0:
            raise Violation(f"the broker's last end had code {code}")
        await_end(of_sessions(self.killer.sessions), 10)
        self.orphans = len(
            {
                process.pid
                for process in of_sessions(self.killer.sessions) + holders_of(self.broker.data_dir)
            }
        )
        if b"Traceback" in (said := self.broker.log.read_bytes()):
            raise Violation(
                "the broker's log has a traceback: "
                f"{said[said.index(b'Traceback') :][:2000].decode()}"
            )
        if self.orphans:
            raise Violation(f"{self.orphans} processes outlived their broker")
