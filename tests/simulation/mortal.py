"""A topic that is deleted while its clients continue. Either the topic or its channel is deleted,
and the next client that needs it makes it again under the same name.

These promises are checked in addition to those that hold for every topic:

* An offset names one message for ever, and a message that is published after a deletion gets an
offset after all earlier ones (rule 8 in `ledger.py`).
* When the deletion is answered, no process of the deleted topic or channel lives. At the end none
of its files is left.
* A message that was answered before a deletion is not delivered by a channel that was made after
it.
* A deletion without `force` loses nothing. Messages that were published after the last deletion
with `force` are delivered.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.transport import errors

from .verdict import read
from .world import MS, S

if TYPE_CHECKING:
    from .broker import Broker
    from .workload import Crew

TOPIC: Final = "d"
CHANNEL: Final = "m"
MESSAGES_MAX: Final = 300
LATE_NS: Final = 15 * S  # a call whose answer was lost may still arrive within this time


@dataclass(frozen=True, slots=True)
class MortalPlan:
    """The load and the deletions. `channel`: if True, the channel is deleted, not the topic.
    `forced`: the share of deletions with `force`.
    """

    deletions: int
    channel: bool
    forced: float
    blocks: int
    pause_ms: int


@dataclass
class Mortal:
    """What the clients of that topic did and saw. A life of the topic ends when it is deleted, and
    the record covers all lives.
    """

    crew: Crew
    plan: MortalPlan
    # By the number of the message: when its publish was called.
    called_ns: list[int] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    at: dict[int, int] = field(default_factory=dict)
    # Number of a message that was answered before a deletion -> how many processes had been started
    # when that deletion was answered.
    dead: dict[int, int] = field(default_factory=dict)
    highest: int = -1
    # When the last deletion of the topic was answered, and the highest offset before it.
    floor: tuple[int, int] = (
        0,
        -1,
    )
    lossy_ns: int = -1  # messages that were published before this time may have been deleted
    # True if the channel has delivered something since the last deletion. Before that it may not
    # exist yet.
    made: bool = False
    since: int = 0  # how many processes had been started when the last deletion was requested
    left: int = -1  # deletions that are still to be made
    until: int = 0  # how many messages to publish; some are published after the last deletion
    wanted: str = ""  # the deletion whose outcome is not known yet

    def _place(self, offset: int, number: int) -> None:
        known = self.at.setdefault(offset, number)
        if known != number:
            self.crew.ledger.broken(f"offset {offset} of {TOPIC} named {known} and then {number}")
        since_ns, highest = self.floor
        if self.called_ns[number] > since_ns and offset <= highest:
            self.crew.ledger.broken(
                f"{number} of {TOPIC} lies at {offset}, and was published after a deletion up "
                f"to {highest}"
            )
        self.highest = max(self.highest, offset)

    def number(self, body: bytes) -> int:
        if (
            not body.startswith(b"d")
            or not body[1:].isdigit()
            or int(body[1:]) >= len(self.called_ns)
        ):
            self.crew.ledger.broken(f"a body that nobody sent came out of {TOPIC}: {body[:40]!r}")
        return int(body[1:])

    @property
    def deleting(self) -> bool:
        return bool(self.left or self.wanted)

    # The clients

    def produce(self, name: str, dice: random.Random) -> None:
        world = self.crew.world
        with zsq.Producer(
            self.crew.url, timeout=20, heartbeat_ms=1_000, when_full="wait"
        ) as producer:
            while (self.deleting or len(self.called_ns) < self.until) and len(
                self.called_ns
            ) < MESSAGES_MAX:
                first, count = len(self.called_ns), dice.choice((1, 2, 6))
                self.called_ns += [world.monotonic_ns()] * count
                world.note(f"{name} publishes {first}+{count}")
                try:
                    offset = producer.publish_many(
                        TOPIC, [b"d%d" % number for number in range(first, first + count)]
                    ).wait()
                except errors.ZsqError as error:
                    self.crew.noted(name, error)
                else:
                    world.note(f"{name}: {first}+{count} at {offset}")
                    self.answered.update(range(first, first + count))
                    for index in range(count if offset >= 0 else 0):
                        self._place(offset + index, first + index)
                world.pause(MS, self.plan.pause_ms * MS)
        self.crew.publishing -= 1

    def consume(self, name: str, dice: random.Random) -> None:
        crew, world = self.crew, self.crew.world
        while not crew.closing:
            consumer = zsq.Consumer(
                TOPIC,
                CHANNEL,
                url=crew.url,
                ready=dice.choice((1, 50)),
                message_timeout=2.0,
                timeout=20,
                heartbeat_ms=1_000,
                label=name,
            )
            try:
                while not crew.closing:
                    batch = consumer.receive_batch(timeout=0.5)
                    if batch is not None and batch.delivery.live:
                        numbers = self._leased(name, batch)
                        world.pause(MS, (2 if crew.draining else 30) * MS)
                        self.done.update(numbers)
                        batch.finish(sync=dice.random() < 0.5)
            except errors.ZsqError as error:
                crew.noted(name, error)
                world.pause(10 * MS, 200 * MS)
            try:
                consumer.close(20)
            except errors.ZsqError as error:
                crew.noted(name, error)

    def _leased(self, name: str, batch: Any) -> list[int]:
        began, _ = self.crew.ledger.order_of(batch.delivery.token)
        numbers = [self.number(bytes(body)) for body in batch.bodies]
        self.crew.world.note(f"{name} holds {numbers} of process {began}")
        self.made = self.made or began >= self.since
        for number, offset in zip(numbers, batch.offsets, strict=True):
            self._place(offset, number)
            if began >= self.dead.get(number, began + 1):
                self.crew.ledger.broken(
                    f"{number} of {TOPIC} was answered before a deletion, and given out by a "
                    "channel that began after it"
                )
        return numbers

    def delete(self, name: str, dice: random.Random) -> None:
        """Make the deletions. If this client is killed, its next life begins with the deletion that
        the last life may have requested.
        """
        world = self.crew.world
        self.left = self.plan.deletions if self.left < 0 else self.left
        with zsq.Admin(self.crew.url, timeout=15) as admin:
            while self.deleting:
                if not self.wanted:
                    world.pause(20 * MS, 500 * MS)
                    self.left -= 1
                    self.wanted = "forced" if dice.random() < self.plan.forced else "gently"
                self._try(admin, name)
                world.pause(5 * MS, 100 * MS)
        self.until = len(self.called_ns) + self.plan.blocks
        self.crew.publishing -= 1

    def _try(self, admin: Any, name: str) -> None:
        world, forced = self.crew.world, self.wanted == "forced"
        before, highest, called_ns, lossy_ns = (
            set(self.answered),
            self.highest,
            world.monotonic_ns(),
            self.lossy_ns,
        )
        if forced or self.plan.channel:
            # Set now, because this client may be killed before the answer.
            self.lossy_ns = called_ns + LATE_NS
        sure, self.made, self.since = (
            self.made or not self.plan.channel,
            False,
            len(world.incarnations),
        )
        world.note(f"{name}: deletes {self.wanted}")
        try:
            if self.plan.channel:
                admin.delete_channel(TOPIC, CHANNEL, force=forced)
            else:
                admin.delete_topic(TOPIC, force=forced)
        except errors.NotFound:
            if self.plan.channel:  # later messages wait for the first channel
                self.wanted = ""
                return
        except errors.ZsqError as error:
            self.crew.noted(name, error)
            if error.code == errors.E_NOT_EMPTY:
                self.lossy_ns, self.wanted, self.made = lossy_ns, "", sure
            return
        now_ns, self.wanted = world.monotonic_ns(), ""
        world.note(f"{name}: deleted")
        if forced or self.plan.channel:
            self.lossy_ns = max(lossy_ns, now_ns)
        self._check_gone(called_ns)
        if not self.plan.channel:
            self.floor = now_ns, highest
        for number in before if sure else ():
            self.dead.setdefault(number, len(world.incarnations))

    def _check_gone(self, called_ns: int) -> None:
        titles = (
            (f"channel {TOPIC}/{CHANNEL} [",)
            if self.plan.channel
            else tuple(f"{kind} {TOPIC}" for kind in ("topic", "channel"))
        )
        for process in self.crew.world.broker.living():
            if process.name.startswith(titles) and process.began_ns < called_ns:
                self.crew.ledger.broken(f"{process.name} lives, and what it was of is deleted")

    # The check at the end

    def check(self, broker: Broker) -> None:
        """Check the topic after all messages are consumed, while everything still runs."""
        owed = {number for number in self.answered if self.called_ns[number] > self.lossy_ns}
        if owed - self.done:
            self.crew.ledger.broken(
                f"{sorted(owed - self.done)[:10]} of {TOPIC} were answered, not deleted, and "
                "never finished"
            )
        self._check_log()
        assert broker.supervisor is not None
        registry, files = broker.supervisor.state.registry, broker.disk.files
        registry.remove_left()  # the supervisor tries again only every 5 s
        known = {registry.folder(row).rpartition("/")[2] for row in registry.topics.values()}
        for place, names in (("topics", known), ("trash", set())):
            left = set(files.list(str(broker.data_dir / place))) - names
            if left:
                self.crew.ledger.broken(f"in {place} lies {sorted(left)}, of no topic")

    def _check_log(self) -> None:
        found: list[int] = []
        with zsq.Reader(TOPIC, url=self.crew.url, timeout=60) as reader:
            offset = 0
            while True:
                try:
                    page = read(reader, offset)
                except errors.NotFound:
                    return
                for block in page.blocks:
                    numbers = [self.number(bytes(body or b"")) for body in block.body.values()]
                    for index, number in enumerate(numbers):
                        self._place(block.first_offset + index, number)
                    found += numbers
                    offset = block.first_offset + block.count
                if offset >= page.head or not page.blocks:
                    break
        if len(set(found)) < len(found):
            self.crew.ledger.broken(f"something is stored twice in {TOPIC}: {found}")
        if not self.plan.channel and self.dead.keys() & set(found):
            self.crew.ledger.broken(
                f"{sorted(self.dead.keys() & set(found))[:10]} of {TOPIC} were deleted, and are "
                "in its log"
            )
