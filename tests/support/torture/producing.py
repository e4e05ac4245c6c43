"""The publishing clients of the torture (see `run.py`): they send blocks, delayed blocks, and
staged writes as Spark does. They always have several publishes without an answer.
"""

from __future__ import annotations

import itertools
import random
import select
import time
from collections import deque
from collections.abc import Sequence

from support.torture import ledger as l
from support.torture.ledger import Ledger

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter

PACE_S = 0.2  # seconds between two blocks of a producer to one topic, except just before a kill
WINDOW = 6  # the most unanswered blocks to each topic
# The most blocks to each topic just before a kill. They are enough to have unanswered ones at the
# kill, and fewer than the broker could accept.
BURST = 10
STAGE_PACE_S = 0.4
DELAYED_SHARE = 0.06
SINGLE_SHARE = 0.05
HEARTBEAT_MS = 1_000
# Seconds that a client waits for the broker: several restarts in a row must not end the client.
PATIENCE_S = 180.0
TICK_S = 0.002
MESSAGES = 384  # the most messages of a block
assert MESSAGES <= l.SLOT


class Lane:
    """A range of slots. If its producer is killed, the next producer continues to fill it."""

    def __init__(self, ledger: Ledger, lane: int) -> None:
        self.ledger = ledger
        self.row = ledger.shape.row_of_lane(lane)
        self._next = lane * ledger.shape.slots
        self._end = self._next + ledger.shape.slots
        while self._next < self._end and ledger.state[self._next] != l.UNUSED:
            self._next += 1
        self.life = (
            (ledger.life[self._next - 1] + 1) % 256 if self._next % ledger.shape.slots else 0
        )
        words = ledger.words
        # Do not wait for blocks that a killed predecessor had sent and that were not answered.
        words[self.row + l.DONE_BLOCKS] = words[self.row + l.SENT_BLOCKS]

    def take(self) -> int:
        slot = self._next
        if slot >= self._end:
            raise RuntimeError("this run has more blocks than its ledger was made for")
        self._next += 1
        self.ledger.life[slot] = self.life
        return slot


class Publishing:
    """One producer that publishes to all topics until the run ends."""

    def __init__(self, ledger: Ledger, lane: int, url: str, seed: int) -> None:
        self.ledger = ledger
        self.lane = Lane(ledger, lane)
        self.random = random.Random(seed)
        self.producer = zsq.Producer(url, heartbeat_ms=HEARTBEAT_MS, timeout=PATIENCE_S)
        topics = range(len(ledger.shape.topics))
        # (slot, epoch, receipt) of each unanswered block.
        self.out: list[deque[tuple[int, int, zsq.Receipt]]] = [deque() for _ in topics]
        self.next_s = [0.0 for _ in topics]
        self.burst = [BURST for _ in topics]

    def run(self) -> None:
        words = self.ledger.words
        while not words[l.STOP]:
            paused = words[l.PAUSE]
            for topic in range(len(self.out)):
                self._reap(topic)
                if not paused and self._may_send(topic):
                    self._send(topic)
            words[self.lane.row + l.IDLE] = paused if not any(self.out) else 0
            select.select([], [], [], TICK_S)
        self.producer.close(10)

    def _may_send(self, topic: int) -> bool:
        if not self.ledger.words[l.PRESSURE]:
            self.burst[topic] = BURST
            return len(self.out[topic]) < WINDOW and time.monotonic() >= self.next_s[topic]
        return len(self.out[topic]) < WINDOW and self.burst[topic] > 0

    def _send(self, topic: int) -> None:
        ledger, words = self.ledger, self.ledger.words
        chance = self.random.random()
        self.burst[topic] -= 1
        delay = self.random.uniform(0.1, 1.5) if chance < DELAYED_SHARE else None
        count = 1 if chance > 1 - SINGLE_SHARE else self.random.randint(1, MESSAGES)
        due_ns = 0 if delay is None else time.time_ns() + int(delay * 1000) * 1_000_000
        slot = self.lane.take()
        bodies = ledger.open_slot(
            slot, l.BLOCK if delay is None else l.DELAYED, topic, count, due_ns
        )
        epoch = words[l.EPOCH]
        words[self.lane.row + l.SENT_BLOCKS] += 1
        receipt = self.producer.publish_many(
            ledger.shape.topics[topic], bodies, keys=ledger.keys(slot), delay=delay, wait=False
        )
        self.out[topic].append((slot, epoch, receipt))
        self.next_s[topic] = time.monotonic() + self.random.uniform(0.5, 1.5) * PACE_S

    def _reap(self, topic: int) -> None:
        out, ledger, row = self.out[topic], self.ledger, self.lane.row
        while out and out[0][2].done:
            slot, epoch, receipt = out.popleft()
            if receipt.error is not None:
                ledger.state[slot] = l.FAILED
                ledger.complain(
                    f"a publish of {ledger.count[slot]} messages failed: {receipt.error}"
                )
            else:
                ledger.acknowledged(slot, receipt.wait())
                ledger.words[row + l.ACKED_MESSAGES] += ledger.count[slot]
                ledger.words[row + l.EPOCHS + topic] = epoch
            ledger.words[row + l.DONE_BLOCKS] += 1


def stage(ledger: Ledger, number: int, urls: Sequence[str], seed: int) -> None:
    """Commit one transaction after the other, each with one to four blocks in one or two stages.
    The writer takes the urls of the topics in turn, so that it uses ipc and TCP.
    """
    lane, words, chance = Lane(ledger, number), ledger.words, random.Random(seed)
    shape = ledger.shape
    app, version = f"torture-{seed}-{time.time_ns()}", 0
    url_of = dict(zip(shape.topics, itertools.cycle(urls), strict=False))
    committers = [
        StageCommitter(topic, url=url, timeout=PATIENCE_S) for topic, url in url_of.items()
    ]
    while not words[l.STOP]:
        paused = words[l.PAUSE]
        words[lane.row + l.IDLE] = paused
        if paused:
            select.select([], [], [], 0.02)
            continue
        version += 1
        topic = version % len(shape.topics)
        epoch, group = words[l.EPOCH], chance.randrange(1, 1 << 32)
        slots: list[int] = []
        parts = []
        for _ in range(chance.randint(1, 2)):
            with StageWriter(
                shape.topics[topic],
                app,
                version,
                url=url_of[shape.topics[topic]],
                heartbeat_ms=HEARTBEAT_MS,
                timeout=PATIENCE_S,
            ) as writer:
                for _ in range(chance.randint(1, 2)):
                    slots.append(lane.take())
                    words[lane.row + l.SENT_BLOCKS] += 1
                    writer.push(
                        pack(
                            ledger.open_slot(
                                slots[-1], l.STAGED, topic, chance.randint(1, MESSAGES), group=group
                            )
                        )
                    )
                parts.append(writer.seal())
        committed = committers[topic].commit(app, version, parts)
        total = sum(ledger.count[slot] for slot in slots)
        if committed["messages"] != total:
            ledger.complain(f"a commit of {total} messages says {committed}")
        for slot in slots:
            ledger.state[slot] = l.ACKED
        words[lane.row + l.ACKED_MESSAGES] += total
        words[lane.row + l.DONE_BLOCKS] += len(slots)
        words[lane.row + l.EPOCHS + topic] = epoch
        until = time.monotonic() + chance.uniform(0.3, 1.7) * STAGE_PACE_S
        while time.monotonic() < until and not words[l.PRESSURE] and not words[l.STOP]:
            select.select([], [], [], 0.01)
    for committer in committers:
        committer.close()
