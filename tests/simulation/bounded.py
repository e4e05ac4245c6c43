"""A topic that keeps unfinished messages for one second only, and then drops the oldest ones
(`max_age_s`, `drop-oldest`). Its consumer is too slow. These promises are checked:

* A message is dropped only when it is older than the limit.
* The remaining messages are the end of the log, without a gap.
* Every message that the channel never delivered was dropped, and is counted as dropped. A message
whose finish was confirmed is not counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.storage.log.log import Log
from zsq.transport import errors

from .verdict import read
from .world import MS, S, the_world

if TYPE_CHECKING:
    from .workload import Crew

TOPIC: Final = "r"
CHANNEL: Final = "s"
MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class BoundedPlan:
    """The load of this topic. `slow_ms`: the longest time that the consumer needs for a message."""

    blocks: int
    pause_ms: int
    slow_ms: int


@dataclass
class Bounded:
    crew: Crew
    plan: BoundedPlan
    sent: int = 0
    # Number of a message -> its offset, or -1.
    answered: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    # By offset: when the publish was called. The offset -1 stands for an unknown one.
    called_ns: dict[int, int] = field(default_factory=dict)

    def produce(self, name: str, dice: random.Random) -> None:
        world = self.crew.world
        with zsq.Producer(
            self.crew.url, timeout=20, heartbeat_ms=1_000, when_full="wait"
        ) as producer:
            while self.sent < self.plan.blocks * 4:
                first, count, called_ns = self.sent, dice.choice((1, 4, 10)), world.monotonic_ns()
                self.sent += count
                try:
                    offset = producer.publish_many(
                        TOPIC, [b"r%d" % number for number in range(first, first + count)]
                    ).wait()
                except errors.ZsqError as error:
                    self.crew.noted(name, error)
                else:
                    world.note(f"{name}: {first}+{count} at {offset}")
                    for index in range(count):
                        self.answered[first + index] = offset + index if offset >= 0 else -1
                        self.called_ns[self.answered[first + index]] = called_ns
                world.pause(MS, self.plan.pause_ms * MS)
        self.crew.publishing -= 1

    def consume(self, name: str, dice: random.Random) -> None:
        crew, world = self.crew, self.crew.world
        while not crew.closing:
            consumer = zsq.Consumer(
                TOPIC,
                CHANNEL,
                url=crew.url,
                ready=1,
                message_timeout=2.0,
                timeout=20,
                heartbeat_ms=1_000,
                label=name,
            )
            try:
                while not crew.closing:
                    batch = consumer.receive_batch(timeout=0.5)
                    if batch is not None:
                        numbers = [int(bytes(body)[1:]) for body in batch.bodies]
                        world.note(f"{name} holds {numbers} at {batch.offsets}")
                        self.seen.update(numbers)
                        world.pause(MS, self.plan.slow_ms * MS)
                        batch.finish(sync=True)
                        self.confirmed.update(numbers)
            except errors.ZsqError as error:
                crew.noted(name, error)
                world.pause(10 * MS, 200 * MS)
            try:
                consumer.close(20)
            except errors.ZsqError as error:
                crew.noted(name, error)

    def dropping(self, start: int) -> None:
        """Check that no young message is dropped. The log is about to begin at `start`."""
        world = self.crew.world
        young = [
            offset
            for offset, called_ns in self.called_ns.items()
            if 0 <= offset < start and world.now_ns - called_ns < MAX_S * S
        ]
        if young and self.crew.steady:
            self.crew.ledger.broken(
                f"{len(young)} messages of {TOPIC} below {start} are dropped before they are "
                f"{MAX_S:g} s old"
            )

    # The check at the end

    def check(self, admin: Any) -> None:
        """Check the log and the counts after no message waits any more."""
        broken = self.crew.ledger.broken
        stored = self._stored()
        kept = min(stored, default=1 << 62)
        gone = [
            number
            for number, offset in self.answered.items()
            if offset >= kept and stored.get(offset) != number
        ]
        if gone:
            broken(
                f"{gone[:10]} of {TOPIC} were answered and are not in its log, which goes on "
                f"from {kept}"
            )
        (topic,) = (topic for topic in admin.stats()["topics"] if topic["topic_name"] == TOPIC)
        (channel,) = (row for row in topic["channels"] if row["channel_name"] == CHANNEL)
        never, dropped = len(self.answered.keys() - self.seen), channel["dropped_count"]
        self.crew.world.note(f"{TOPIC}: {never} never seen, {dropped} dropped of {self.sent}")
        if not never <= dropped <= self.sent - len(self.confirmed):
            broken(
                f"{CHANNEL} counts {dropped} as dropped; {never} were never given out, "
                f"{len(self.confirmed)} of {self.sent} finished"
            )
        if topic["dropped_count"] < dropped:
            broken(f"{TOPIC} counts {topic['dropped_count']} as dropped, and its channel {dropped}")

    def _stored(self) -> dict[int, int]:
        found: dict[int, int] = {}
        offset = 0
        with zsq.Reader(TOPIC, url=self.crew.url, timeout=60) as reader:
            while True:
                page = read(reader, offset)
                for block in page.blocks:
                    if found and block.first_offset != offset:
                        self.crew.ledger.broken(
                            f"{TOPIC}: after offset {offset} comes {block.first_offset}"
                        )
                    for index, body in enumerate(block.body.values()):
                        found[block.first_offset + index] = int(bytes(body or b"")[1:])
                    offset = block.first_offset + block.count
                if offset >= page.head or not page.blocks:
                    return found


def watch_drops() -> None:
    plain = Log.forget

    def forget(log: Log, start: int) -> None:
        broker = the_world().broker
        if broker.bounded is not None and log._folder == broker.folder(TOPIC):
            broker.bounded.dropping(start)
        plain(log, start)

    module: Any = Log
    module.forget = forget
