"""A topic whose messages have attributes: ids, lifetimes and revoke keys. Its consumers defer some
of them. One of its channels is fair, or has a limit of its rate.

These promises are checked in addition to those that hold for every topic:

* Of all messages with an id, one is stored, also if they are published again after a restart. All
answers name its offset.
* A message is not leased after its lifetime, and its lifetime counts from the same time after each
restart. In peace, no handler begins it later either.
* After the answer to a revocation, no channel leases a message with the key that was acknowledged
before the call. One that is published after the answer is delivered.
* A deferred message does not come before its time, and the deferral uses no attempt.
* A fair channel gives consumers at most `max_in_flight_per_key` messages of a key. In a channel
with a limit, no more messages begin than `actors/channel/rate_limit.py` says.
* Each message that is stored is finished, expired, or perhaps revoked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.actors.channel import channel as channel_actor
from zsq.actors.channel import core
from zsq.transport import errors

from .ledger import Order
from .verdict import read
from .world import MS, S, the_world

if TYPE_CHECKING:
    from .workload import Crew

TOPIC: Final = "a"
CHANNELS: Final = ("p", "q")
WINDOW_S: Final = 7 * 24 * 3600.0  # of the ids: longer than any jump of the clock
KEYS: Final = ("k0", "k1", "k2")
# How long messages live, in seconds. The longest time is longer than any jump of the clock.
LIVES_S: Final = (0.1, 0.6, 360_000.0)
SLACK_NS: Final = 5 * MS
LATE_NS: Final = 100 * MS  # within this time, a consumer knows that a message has expired
FAR_NS: Final = 1 << 62
RATE, BURST, IN_FLIGHT = 150.0, 10, 2
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"max_rate": RATE, "max_rate_burst": BURST},
    {"fair_by": "key", "max_in_flight_per_key": IN_FLIGHT},
)


@dataclass(frozen=True, slots=True)
class AttributesPlan:
    """The load of this topic. `settings`: those of its second channel."""

    blocks: int
    pause_ms: int
    revocations: int
    settings: dict[str, Any]


@dataclass(slots=True, eq=False)
class Copy:
    """One publish of a message. Messages with an id are published several times."""

    number: int
    copy: int
    has_id: bool
    key: str
    revoke_key: str | None
    life_s: float | None
    delay_s: float | None
    called_ns: int
    acked_ns: int = FAR_NS
    is_first: bool = False  # True if its answer says that it was stored
    stored_ns: int = 0  # its timestamp, by the wall clock

    @property
    def body(self) -> bytes:
        return b"a%d/%d" % (self.number, self.copy)

    @property
    def lives_long(self) -> bool:
        return self.life_s is None or self.life_s == LIVES_S[-1]


@dataclass(slots=True)
class Call:
    """A call that revokes a key. It may have an effect until `until_ns`."""

    key: str
    called_ns: int
    until_ns: int = FAR_NS


@dataclass(slots=True, eq=False)
class Take:
    """A revocation that a channel took. Leases above `boundary` are from after it. `ended`: the
    messages that it has certainly cancelled.
    """

    keys: tuple[str, ...]
    boundary: Order
    ended: frozenset[Copy] = frozenset()


@dataclass(slots=True)
class Channel:
    """What the consumers of one channel did and saw."""

    done: set[Copy] = field(default_factory=set)  # a finish was sent
    confirmed: dict[Copy, Order] = field(default_factory=dict)
    takes: list[Take] = field(default_factory=list)
    # Deferred messages: (due time, when that was recorded, attempts).
    deferred: dict[Copy, tuple[int, int, int]] = field(default_factory=dict)
    held: dict[Copy, int] = field(default_factory=dict)  # since when
    began: float = -1  # the channel's process, see `World.incarnations`
    level: float = 0.0  # how many messages began above what the rate allows
    level_ns: int = 0


class Attributes:
    """The clients of that topic, and what they know."""

    def __init__(self, crew: Crew, plan: AttributesPlan) -> None:
        self.crew, self.plan, self.world = crew, plan, crew.world
        self.copies: list[list[Copy]] = []  # by number
        self.offsets: dict[int, int] = {}  # number -> offset, from answers and deliveries
        self.at: dict[int, int] = {}  # offset -> number
        self.channels = {name: Channel() for name in CHANNELS}
        self.calls: list[Call] = []
        # Token -> when the channel leased it, by the wall clock.
        self.leased_ns: dict[int, int] = {}
        self.blocks_left = plan.blocks
        self.calls_left = plan.revocations

    def settings(self, channel: str) -> dict[str, Any]:
        return self.plan.settings if channel == "q" else {}

    def create(self, admin: Any) -> None:
        admin.create_topic(TOPIC, dedupe_window_s=WINDOW_S)
        for name in CHANNELS:
            admin.create_channel(TOPIC, name, **self.settings(name))

    def broken(self, text: str) -> None:
        self.crew.ledger.broken(f"{TOPIC}: {text}")

    # Producers

    def produce(self, name: str, dice: random.Random) -> None:
        with zsq.Producer(
            self.crew.url, timeout=20, heartbeat_ms=1_000, when_full="wait"
        ) as producer:
            while self.blocks_left > 0 and not self.crew.draining:
                self.blocks_left -= 1
                self._publish(producer, name, dice)
                self.world.pause(MS, self.plan.pause_ms * MS)
        self.crew.publishing -= 1

    def _publish(self, producer: Any, name: str, dice: random.Random) -> None:
        life_s = dice.choice((None, *LIVES_S)) if dice.random() < 0.5 else None
        delay_s = dice.choice((0.02, 0.3)) if dice.random() < 0.25 else None
        if life_s is not None and delay_s is not None and life_s <= delay_s:
            delay_s = None
        revoke_key = dice.choice(KEYS) if dice.random() < 0.4 else None
        made = [
            self._copy(dice, life_s, delay_s, revoke_key) for _ in range(dice.choice((1, 2, 6)))
        ]
        self.world.note(
            f"{name} publishes {[one.body for one in made]} life {life_s} delay {delay_s} "
            f"revoke key {revoke_key}"
        )
        try:
            receipt = producer.publish_many(
                TOPIC,
                [one.body for one in made],
                keys=[one.key for one in made],
                dedupe_ids=[f"id{one.number}" if one.has_id else None for one in made],
                expires_in=life_s,
                delay=delay_s,
                revoke_key=revoke_key,
                wait=False,
            )
            receipt.wait()
        except errors.ZsqError as error:
            self.crew.noted(name, error)
            return
        for one, result in zip(made, receipt.results, strict=True):
            self._answered(one, result)

    def _copy(
        self, dice: random.Random, life_s: float | None, delay_s: float | None, key: str | None
    ) -> Copy:
        """Return a message to publish: a new one, or one with the id of an earlier one."""
        number, has_id = len(self.copies), dice.random() < 0.7
        known = [copies[0].number for copies in self.copies[-20:] if copies[0].has_id]
        if known and dice.random() < 0.5:
            number, has_id = dice.choice(known), True
        else:
            self.copies.append([])
        copies = self.copies[number]
        now_ns = self.world.monotonic_ns()
        one = Copy(number, len(copies), has_id, f"t{number % 3}", key, life_s, delay_s, now_ns)
        copies.append(one)
        return one

    def _answered(self, one: Copy, result: Any) -> None:
        one.acked_ns = self.world.monotonic_ns()
        offset = -1 if result.offset is None else result.offset
        self.world.note(f"acked {one.body!r} at {offset}, duplicate: {result.duplicate}")
        if offset >= 0:
            self._place(one.number, offset)
        if result.duplicate and not one.has_id:
            self.broken(f"{one.body!r} has no id, and is called a duplicate")
        one.is_first = not result.duplicate
        if sum(other.is_first for other in self.copies[one.number]) > 1 and one.has_id:
            self.broken(f"two messages with the id of {one.body!r} were answered as stored")

    def _place(self, number: int, offset: int) -> None:
        if self.offsets.setdefault(number, offset) != offset:
            self.broken(f"{number} lies at {self.offsets[number]} and at {offset}")
        if self.at.setdefault(offset, number) != number:
            self.broken(f"offset {offset} names {self.at[offset]} and {number}")

    # The operator

    def revoke(self, name: str, dice: random.Random) -> None:
        with zsq.Admin(self.crew.url, timeout=15) as admin:
            while self.calls_left > 0 and not self.crew.draining:
                self.world.pause(10 * MS, 300 * MS)
                self.calls_left -= 1
                self._revoke(admin, name, dice.choice(KEYS))
        self.crew.publishing -= 1

    def _revoke(self, admin: Any, name: str, key: str) -> None:
        known = {one: len(row.takes) for one, row in self.channels.items()}
        call = Call(key, self.world.monotonic_ns())
        self.calls.append(call)
        before = frozenset(
            one
            for one in self._all()
            if one.revoke_key == key and one.acked_ns < call.called_ns and one.is_first
        )
        self.world.note(f"{name} revokes {key}")
        try:
            admin.revoke(TOPIC, key)
        except errors.ZsqError as error:
            self.crew.noted(name, error)
            return
        self.world.note(f"{name}: {key} is revoked for {sorted(one.body for one in before)}")
        call.until_ns = self.world.monotonic_ns()
        for channel, row in self.channels.items():
            mine = [take for take in row.takes[known[channel] :] if key in take.keys]
            if not mine:
                self.broken(f"{key} is revoked, and {channel} does not know it")
            mine[0].ended = before

    def _all(self) -> Iterator[Copy]:
        return (one for copies in self.copies for one in copies)

    # Consumers

    def consume(self, channel: str, name: str, dice: random.Random) -> None:
        crew, row = self.crew, self.channels[channel]
        while not crew.closing:
            consumer = zsq.Consumer(
                TOPIC, channel, url=crew.url, ready=dice.choice((1, 5, 50)), message_timeout=3.0,
                timeout=20, heartbeat_ms=1_000, label=name, **self.settings(channel),
            )  # fmt: skip
            mine: set[Copy] = set()
            try:
                while not crew.closing:
                    batch = consumer.receive_batch(timeout=0.5)
                    if batch is not None and batch.delivery.live:
                        self._handle(channel, name, batch, mine, dice)
            except errors.ZsqError as error:
                crew.noted(name, error)
                self.world.pause(10 * MS, 200 * MS)
            for one in mine:
                row.held.pop(one, None)
            try:
                consumer.close(20)
            except errors.ZsqError as error:
                crew.noted(name, error)

    def _handle(
        self, channel: str, name: str, batch: Any, mine: set[Copy], dice: random.Random
    ) -> None:
        row, world = self.channels[channel], self.world
        order = self.crew.ledger.order_of(batch.delivery.token)
        messages = [(message, self._known(bytes(message.body))) for message in batch.messages()]
        world.note(f"{name} holds {[one.body for _, one in messages]} token {order}")
        self._check_rate(channel, len(messages), order)
        for message, one in messages:
            self._check(channel, message, one, batch.delivery.token)
            row.held[one] = world.now_ns
            mine.add(one)
        self._check_in_flight(channel)
        world.pause(20_000, 5 * MS)
        for message, one in messages:
            row.held.pop(one, None)
            chance = 1.0 if self.crew.draining else dice.random()
            if chance < 0.15:
                self._defer(row, message, one, batch, dice)
            elif chance < 0.25:
                message.requeue(dice.choice((0.0, 0.1)))
            else:
                row.done.add(one)
                sync = dice.random() < 0.5
                message.finish(sync=sync)
                if sync:
                    row.confirmed[one] = order

    def _known(self, body: bytes) -> Copy:
        number, _, copy = body[1:].partition(b"/")
        try:
            return self.copies[int(number)][int(copy)]
        except (ValueError, IndexError):
            self.broken(f"a body that nobody sent came out: {body[:40]!r}")
            raise

    def _defer(
        self, row: Channel, message: Any, one: Copy, batch: Any, dice: random.Random
    ) -> None:
        delay_s = dice.choice((0.0, 0.05, 0.4))
        if batch.delivery.live and self.crew.steady:
            now_ns = self.world.now_ns
            row.deferred[one] = now_ns + int(delay_s * S), now_ns, message.attempts
        self.world.note(f"{one.body!r} is deferred by {delay_s}")
        message.defer(delay_s)

    # Checks of a delivery

    def _check(self, channel: str, message: Any, one: Copy, token: int) -> None:
        row, order = self.channels[channel], self.crew.ledger.order_of(token)
        self._place(one.number, message.offset)
        self._check_lifetime(channel, message, one, token)
        if order > row.confirmed.get(one, (FAR_NS, 0)):
            self.broken(f"{channel} leased {one.body!r} after its finish was confirmed")
        for take in row.takes:
            if order > take.boundary and one in take.ended:
                self.broken(f"{channel} leased {one.body!r} after {take.keys} was revoked")
        if one in row.deferred:
            due_ns, since_ns, attempts = row.deferred.pop(one)
            if self.world.calm(since_ns) and self.world.now_ns < due_ns:
                self.broken(f"{channel} leased {one.body!r} before the time of its deferral")
            if self.world.calm(since_ns) and message.attempts != attempts:
                self.broken(
                    f"{one.body!r} was deferred at attempt {attempts}, and comes as "
                    f"{message.attempts}"
                )

    def _check_lifetime(self, channel: str, message: Any, one: Copy, token: int) -> None:
        if one.stored_ns not in (0, message.timestamp_ns):
            self.broken(f"{one.body!r} was stored at {one.stored_ns} and {message.timestamp_ns}")
        one.stored_ns = message.timestamp_ns
        expires_ns = self._expires_ns(one)
        late_ns = self.leased_ns[token] - expires_ns
        if late_ns > SLACK_NS:
            self.broken(f"{channel} leased {one.body!r} {late_ns / MS:.1f} ms after its lifetime")
        wall_ns = self.world.now_ns + self.world.wall_offset_ns
        if self.world.calm(one.called_ns) and wall_ns - expires_ns > LATE_NS:
            self.broken(f"{channel} let a handler begin {one.body!r} after its lifetime")

    def _expires_ns(self, one: Copy) -> int:
        """Return when it expires at the latest, by the wall clock. A delayed message has the time
        of its publish, which only the broker knows.
        """
        if one.life_s is None:
            return FAR_NS
        stored_ns = one.stored_ns
        if one.delay_s:
            is_known = one.acked_ns < FAR_NS and self.crew.steady
            stored_ns = one.acked_ns + self.world.wall_offset_ns if is_known else FAR_NS
        return stored_ns + int(one.life_s * S)

    def _check_in_flight(self, channel: str) -> None:
        row = self.channels[channel]
        if "max_in_flight_per_key" not in self.settings(channel):
            return
        counts: dict[str, int] = {}
        for one, since_ns in row.held.items():
            counts[one.key] = counts.get(one.key, 0) + self.world.calm(since_ns)
        if max(counts.values(), default=0) > IN_FLIGHT:
            self.broken(f"consumers of {channel} have too many messages of a key: {counts}")

    def _check_rate(self, channel: str, count: int, order: Order) -> None:
        row, now_ns = self.channels[channel], self.world.now_ns
        if "max_rate" not in self.settings(channel):
            return
        row.level = max(0.0, row.level - (now_ns - row.level_ns) * RATE / S)
        row.level_ns = now_ns
        if order[0] > row.began:
            # The last commit before a kill may be too old for the newest messages.
            row.began, row.level = order[0], max(0.0, row.level - 2 * BURST)
        row.level += count
        if row.level > 2 * BURST + 1:
            self.broken(f"{channel} let {row.level - 2 * BURST:.1f} messages begin too early")

    # The check at the end

    def check(self) -> None:
        """Check the log and the channels after no message waits any more."""
        stored = self._stored()
        for copies in self.copies:
            if sum(one in stored for one in copies) > 1:
                self.broken(f"messages with one id are stored: {[one.body for one in copies]}")
            is_acked = any(one.acked_ns < FAR_NS for one in copies)
            was_removed = any(one.delay_s and self._may_be_revoked(one) for one in copies)
            if is_acked and not was_removed and not any(one in stored for one in copies):
                self.broken(f"{copies[0].number} is acknowledged and not stored")
        for channel, row in self.channels.items():
            left = [
                one.body
                for one in stored
                if one not in row.done and one.lives_long and not self._may_be_revoked(one)
            ]
            if left:
                self.broken(f"{channel} is empty, and {left[:10]} were not finished")

    def _may_be_revoked(self, one: Copy) -> bool:
        return any(
            call.key == one.revoke_key and call.until_ns > one.called_ns for call in self.calls
        )

    def _stored(self) -> set[Copy]:
        found: set[Copy] = set()
        with zsq.Reader(TOPIC, url=self.crew.url, timeout=60) as reader:
            offset = 0
            while True:
                page = read(reader, offset)
                for block in page.blocks:
                    if block.first_offset != offset:
                        self.broken(f"after offset {offset} comes {block.first_offset}")
                    for at, body in enumerate(block.body.values(), block.first_offset):
                        one = self._known(bytes(body or b""))
                        self._place(one.number, at)
                        if one in found:
                            self.broken(f"{one.body!r} is stored twice")
                        found.add(one)
                    offset = block.first_offset + block.count
                if offset >= page.head or not page.blocks:
                    return found


def watch_leases() -> None:
    """Record when the channels of this topic lease messages and take revocations."""
    module: Any = core.ChannelCore
    plain_lease = module._lease

    def lease(self: Any, *given: Any) -> Any:
        made = plain_lease(self, *given)
        world = the_world()
        if world.broker.attributes is not None:
            world.broker.attributes.leased_ns[made.token] = world.now_ns + world.wall_offset_ns
        return made

    module._lease = lease
    module = channel_actor.ChannelActor
    plain_revoke = module.revoke

    def revoke(self: Any, message: Any) -> None:
        attributes = the_world().broker.attributes
        if attributes is not None and self.given.topic_name == TOPIC:
            boundary = the_world().incarnations[self.key], self.core._token & 0xFFFFFFFF
            attributes.channels[self.name].takes.append(Take(tuple(message.keys), boundary))
        plain_revoke(self, message)

    module.revoke = revoke
