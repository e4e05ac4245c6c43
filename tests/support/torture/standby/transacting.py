"""Transactions of the standby torture. One client of each topic commits one version after the
other, each with two stages, and another one asks again and again for the version.

If a call fails, the client makes the stages and the commit again, with the same version and
messages, as Spark and `zsq.Outbox` do. The commit is durable in the bucket when it is answered. So
no takeover may lose it.
"""

from __future__ import annotations

import random
import time
from typing import Final

from support.torture.bucket.history import BucketHistory, Sent
from support.torture.bucket.load import Load, LoadThread
from support.torture.standby.linear import Commit

import zsq
from zsq.transport.client.core.packing import pack_many

APP: Final = "transactions"
TIMEOUT_S: Final = 60.0
STAGES: Final = 2
MESSAGES: Final = 6  # the most messages of a stage
PACE_S: Final = 0.3  # seconds between two transactions
LOOK_S: Final = 0.1  # seconds between two questions for the version
AGAIN_S: Final = 0.05


class Transacting(LoadThread):
    """Commits transactions to one topic, until its load ends."""

    def __init__(self, load: Load, topic: int, url: str, seed: int) -> None:
        name = load.history.topics[topic].name
        super().__init__(load, f"transactions of {name}")
        self.topic = topic
        self.commits: list[Commit] = []
        self._name = name
        self._url = url
        self._random = random.Random(f"{seed}/{name}")
        self._is_busy = False

    @property
    def is_idle(self) -> bool:
        return self.load.pausing.is_set() and not self._is_busy

    def publishes(self, topic: int) -> list[Sent]:
        return [one.sent for one in tuple(self.commits)] if topic == self.topic else []

    def work(self) -> None:
        version = 0
        with zsq.StageCommitter(self._name, url=self._url, timeout=TIMEOUT_S) as committer:
            while not self.load.is_ending:
                self._is_busy = not self.load.pausing.is_set()
                if self._is_busy and not self.load.pausing.is_set():
                    self._carry_out(committer, version)
                    version += 1
                self._is_busy = False
                self.load.wait(self._random.uniform(0.5, 1.5) * PACE_S)

    def _carry_out(self, committer: zsq.StageCommitter, version: int) -> None:
        """Repeat one transaction until its commit is answered."""
        history = self.load.history
        counts = [self._random.randint(1, MESSAGES) for _ in range(STAGES)]
        sent = history.send(sum(counts), time.monotonic(), producer=f"{APP} of {self._name}")
        commit = Commit(version, sent)
        is_tried = False
        self.commits.append(commit)
        while not self.load.is_ending:
            try:
                parts = self._stages(history, sent, counts, version)
                if not is_tried:
                    is_tried, sent.sent_s = True, time.monotonic()
                answer = committer.commit(APP, version, parts)
            except (zsq.BrokerUnreachable, zsq.Refused, zsq.NotFound):
                self.load.counts["transactions that were repeated"] += 1
                self.load.wait(AGAIN_S)
                continue
            history.committed(self.topic, sent, answer["first_offset"], time.monotonic())
            return

    def _stages(
        self, history: BucketHistory, sent: Sent, counts: list[int], version: int
    ) -> list[zsq.StagePart | None]:
        parts: list[zsq.StagePart | None] = []
        bodies = history.bodies(sent)
        for count in counts:
            with zsq.StageWriter(
                self._name, APP, version, url=self._url, timeout=TIMEOUT_S
            ) as writer:
                for block in pack_many(bodies[:count], None, None, None):
                    writer.push(block)
                parts.append(writer.seal())
            bodies = bodies[count:]
        return parts
