"""Record of what the clients of a simulated broker did and saw. It is compared with the promises at
each event, and once more at the end.

The rules are numbered, and other modules use these numbers:

1. Every acknowledged publish is delivered to each channel whose range contains it, until it is
   finished or a dead letter.
2. Nothing is delivered or stored that was not sent, and bodies agree to the byte.
3. A message whose finish was confirmed is never leased again.
4. A message is leased to a second consumer only after the first lease ended. This is checked only
   if no fault happened meanwhile.
5. The attempts of a message never decrease.
6. No delayed message is delivered before it is due. It is delivered at the latest at the end of the
   run.
7. An ordered channel leases the messages of a key in order, each after the one before it was
   finished or rejected.
8. An offset always names the same message, and offsets have no gaps.
9. A confirmed finish stays confirmed, even if the process that confirmed it was killed (see 3).
10. At the end no message waits, is in flight or deferred: the depth is the number of published
messages minus the finished and the dead ones.
11. An unacknowledged publish is stored completely or not at all.
12. A second crash during recovery changes nothing: all rules above hold, with kills at any time.

Leases are ordered by their token: first by the incarnation of the channel's process, then by a
counter. If a client reads a delivery late, after others, the delivery is compared at its place in
that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.history import body_of, number_of

from .disasters import Disasters
from .losses import Losses
from .world import MS, World

Order = tuple[float, int]
_EARLY: Final[Order] = (-1, 0)


class Violation(Exception):
    """A promise was broken."""


@dataclass(slots=True)
class Sent:
    """One message. `batch` is the number of the call that published it. A call publishes its
    messages as one block.
    """

    number: int
    topic: str
    batch: int
    key: bytes | None
    tag: str | None
    due_wall_ns: int = 0  # a delayed message must not be delivered before this time
    delayed: bool = False
    acked: bool = False
    durable: bool = False  # True if it is synced at once, whatever the sync mode of the topic
    offset: int = -1


@dataclass(slots=True)
class Held:
    """A message that a consumer holds, as far as the ledger knows."""

    order: Order
    attempts: int
    consumer: str
    since_ns: int
    until_ns: int


@dataclass(slots=True)
class Move:
    """A seek that the channel's process took. Leases up to `boundary` are from before the seek, and
    later ones are from after it.

    Only the simulation knows the boundary. Clients do not. Rules 3, 4 and 5 hold before the seek
    and after it, but not between a lease before it and one after it. The seek is `in_effect` for
    good if it was answered, or if a consumer received a message that only this seek explains.
    Otherwise a crash may have undone it.
    """

    place: int
    boundary: Order
    in_effect: bool = False


@dataclass(slots=True)
class ChannelLedger:
    """`tags`: the tags that the channel accepts, or None for all. `moves`: the seeks in the order
    in which the channel took them, see `Move`.
    """

    name: str
    topic: str
    ordered: bool = False
    tags: frozenset[str] | None = None
    attempts_max: int = 0
    moves: list[Move] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    # Number -> its last lease and attempts.
    latest: dict[int, tuple[Order, int]] = field(default_factory=dict)
    confirmed: dict[int, Order] = field(default_factory=dict)
    confirmed_ns: dict[int, int] = field(default_factory=dict)  # when that was confirmed
    # Messages for which a finish or a reject was sent. It may have had no effect.
    answered: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)  # a finish was sent; it may have had no effect
    # Requeued messages: when they are due, and when that was recorded (monotonic clock).
    not_before: dict[int, tuple[int, int]] = field(default_factory=dict)
    # For an ordered channel: the highest leased offset of each key.
    by_key: dict[bytes, int] = field(default_factory=dict)
    # Messages that were leased before a power cut, and that the power cut may have removed.
    doubtful: set[int] = field(default_factory=set)
    is_new: bool = False  # a disaster took the channel, and a consumer has made it again
    made_ns: int = 0  # when it was made


class Ledger:
    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: dict[int, Sent] = {}
        self.batches: list[list[int]] = []
        self.at: dict[tuple[str, int], int] = {}  # (topic, offset) -> number
        # (topic, offset) -> number, for messages whose finish was confirmed before a power cut.
        self.before: dict[tuple[str, int], int] = {}
        # The offsets of deliveries that were on their way when the power failed, by number.
        self.old_offsets: dict[int, int] = {}
        self.removed: dict[str, set[int]] = {}  # by topic: messages that retention has removed
        self.removed_below: dict[str, int] = {}
        # Where a repeated commit says that its messages are. No client has seen them there.
        self.told_places: dict[int, int] = {}
        self.losses = Losses(self)
        self.disasters = Disasters(self)
        self.channels: dict[str, ChannelLedger] = {}
        self.deliveries = 0
        self.redeliveries = 0

    def broken(self, text: str) -> None:
        self.world.violation(text)
        raise Violation(text)

    def record(self, text: str) -> None:
        """Record a broken promise from code that is no client's."""
        self.world.violation(text)

    # Publishing

    def publish(
        self, topic: str, count: int, keys: Sequence[bytes | None], tags: Sequence[str | None]
    ) -> list[int]:
        """Return numbers for a block that is about to be sent."""
        first = len(self.sent)
        numbers = list(range(first, first + count))
        for number, key, tag in zip(numbers, keys, tags, strict=True):
            self.sent[number] = Sent(number, topic, len(self.batches), key, tag)
        self.batches.append(numbers)
        return numbers

    def bodies(self, numbers: Iterable[int]) -> list[bytes]:
        return [body_of(number) for number in numbers]

    def delayed(self, numbers: Iterable[int], due_wall_ns: int) -> None:
        """Record, before the messages are sent, that they are due at this time or later."""
        for number in numbers:
            self.sent[number].due_wall_ns = due_wall_ns
            self.sent[number].delayed = True

    def clock_jumped(self, jump_ns: int) -> None:
        """Correct due times after a jump of the wall clock. A delay begins when the topic receives
        the message, by the clock at that time. So unanswered messages may be due that much earlier.
        """
        for sent in self.sent.values():
            if sent.due_wall_ns and not sent.acked:
                sent.due_wall_ns += min(0, jump_ns)

    def acknowledged(
        self, numbers: Sequence[int], offset: int | None, *, durable: bool = False
    ) -> None:
        for index, number in enumerate(numbers):
            sent = self.sent[number]
            sent.acked, sent.durable = True, durable
            if (
                offset is not None
                and offset >= 0
                and not self.losses.is_old(sent.topic, offset + index, number)
            ):
                self.place(self.sent[number].topic, offset + index, number)
        self.world.note(f"acked {numbers[0]}+{len(numbers)} at {offset}")

    def place(self, topic: str, offset: int, number: int) -> None:
        """Check rule 8 for this offset and this message."""
        known = self.at.setdefault((topic, offset), number)
        if known != number:
            self.broken(f"offset {offset} of {topic} named {known} and then {number}")
        before = self.before.get((topic, offset), number)
        if before != number:
            self.broken(
                f"offset {offset} of {topic} names {number}, and named {before} when its finish "
                "was confirmed"
            )
        row = self.sent[number]
        if self.disasters.is_skipped(topic, offset):
            return  # it was observed before a disaster took it
        if row.offset not in (-1, offset):
            self.broken(f"{number} lies at {row.offset} and at {offset} of {topic}")
        row.offset = offset

    def forget_ends(self, topic: str) -> None:
        """Forget offsets after a power cut of a topic that answers before its sync. A message that
        was not answered may get another offset when it is sent again. A delayed message may be
        moved to the log once more. The old offsets of both may be given to other messages. A
        message that was answered keeps its offset if it is still stored.
        """
        rows = [row for row in self.channels.values() if row.topic == topic]
        for key in [key for key in self.at if key[0] == topic]:
            number = self.at.pop(key)
            if any(number in row.confirmed for row in rows):
                self.before[key] = number
            if not self.sent[number].acked or self.sent[number].delayed:
                self.sent[number].offset = -1
        for row in rows:
            row.doubtful |= row.seen

    def gone(self, topic: str) -> set[int]:
        """Return the messages that retention has removed, also those that were answered later."""
        start = self.removed_below.get(topic, 0)
        late = [one for one in self.sent.values() if one.topic == topic and one.acked]
        places = {
            one.number: self.told_places.get(one.number, -1) if one.offset == -1 else one.offset
            for one in late
        }
        return self.removed.get(topic, set()) | {
            number for number, place in places.items() if 0 <= place < start
        }

    def removes(self, topic: str, start: int) -> None:
        """Record that a topic removes its messages below `start`. All channels must have finished
        them.
        """
        # No client has seen where a delayed message is that no channel wants.
        rows = [row for row in self.disasters.accepted.get(topic, ()) if row.number in self.sent]
        places = {sent.number: sent.offset for sent in self.sent.values() if sent.topic == topic}
        places.update({row.number: row.offset for row in rows if row.offset >= 0})
        for number, offset in self.told_places.items():
            if places.get(number) == -1:
                places[number] = offset
        found = {number for number, offset in places.items() if 0 <= offset < start}
        self.removed.setdefault(topic, set()).update(found)
        self.removed_below[topic] = start
        for row in self.channels.values():
            is_plain = row.tags is None and not row.attempts_max and not row.moves
            if row.topic != topic or not is_plain or row.is_new:
                continue
            if left := found - row.finished:
                self.record(
                    f"{sorted(left)[:10]} leave {topic}, which starts at {start}, and {row.name} "
                    "did not finish them"
                )

    def number(self, topic: str, body: bytes) -> int:
        """Check rule 2, and return the number of a body."""
        try:
            number = number_of(body)
        except (AssertionError, ValueError):
            self.broken(f"a body that nobody sent came out of {topic}: {body[:40]!r}")
            raise
        if number not in self.sent or self.sent[number].topic != topic:
            self.broken(f"{number} was never sent to {topic}")
        return number

    # Deliveries

    def order_of(self, token: int) -> Order:
        return self.world.incarnations.get(token >> 32, -1), token & 0xFFFFFFFF

    def leased(self, channel: str, consumer: str, batch: Any, now_ns: int) -> list[int]:
        """Record that a consumer received a delivery, and return the numbers."""
        row = self.channels[channel]
        delivery = batch.delivery
        order = self.order_of(delivery.token)
        until_ns = delivery.received_ns + delivery.timeout_ms * MS
        numbers = []
        for body, offset, attempts in zip(batch.bodies, batch.offsets, batch.attempts, strict=True):
            number = self.number(row.topic, bytes(body))
            if self.losses.is_from_before(row.topic, order[0]):
                self.old_offsets[number] = offset
            else:
                self.place(row.topic, offset, number)
                is_old = self.disasters.is_from_before(order)
                if not is_old and self.disasters.is_skipped(row.topic, offset):
                    self.broken(f"{row.name} leased {number} at {offset}, which was skipped")
            numbers.append(number)
            self.deliveries += 1
            self.redeliveries += number in row.seen
            row.seen.add(number)
            row.doubtful.discard(number)
            self._check_time(row, number)
            self._check_lease(
                row, number, Held(order, attempts, consumer, delivery.received_ns, until_ns), now_ns
            )
            if row.tags is not None and self.sent[number].tag not in row.tags:
                self.broken(f"{row.name} got {number} with tag {self.sent[number].tag}")
        if row.ordered and not row.moves and not self.disasters.is_from_before(order):
            self._check_order(row, consumer, numbers)
        self.world.note(
            f"{consumer} holds {row.name} {numbers} attempts {batch.attempts} token {order}"
        )
        return numbers

    def _check_time(self, row: ChannelLedger, number: int) -> None:
        """Check rule 6 for a message that was just delivered."""
        due = self.sent[number].due_wall_ns
        if due > self.world.wall_latest_ns:
            self.broken(
                f"{row.name} got {number} {(due - self.world.wall_latest_ns) / MS:.1f} ms "
                "before its due time"
            )
        if number in row.not_before:
            due, since_ns = row.not_before.pop(number)
            if not row.moves and self.world.calm(since_ns) and self.world.now_ns < due:
                self.broken(
                    f"{row.name} got {number} {(due - self.world.now_ns) / MS:.1f} ms before "
                    "the delay of its requeue"
                )

    def _check_lease(self, row: ChannelLedger, number: int, held: Held, now_ns: int) -> None:
        for move in row.moves:
            is_old = self.disasters.is_from_before(move.boundary)
            if held.order[0] == move.boundary[0] and held.order > move.boundary and not is_old:
                move.in_effect = True
        finished = row.confirmed.get(number)
        if (
            finished is not None
            and held.order > finished
            and not self._moved(row, number, finished, held.order)
            and not self._lost_finish(row, number, finished, held.order)
        ):
            self.broken(
                f"{row.name} leased {number} again (token {held.order}) after its finish was "
                f"confirmed ({finished})"
            )
        order, attempts = row.latest.get(number, (_EARLY, 0))
        if held.order > order:
            is_lost = self.disasters.is_between(order, held.order)
            if (
                held.attempts < attempts
                and not is_lost
                and not self._moved(row, number, order, held.order)
            ):
                self.broken(
                    f"attempts of {number} in {row.name} fell from {attempts} to {held.attempts}"
                )
            row.latest[number] = held.order, held.attempts
        elif (
            held.attempts > attempts
            and not self.disasters.is_between(held.order, order)
            and not self._moved(row, number, held.order, order)
        ):
            self.broken(
                f"attempts of {number} in {row.name} were {held.attempts} before they were "
                f"{attempts}"
            )
        before = row.held.get(number)
        overlaps = (
            before is not None and held.order > before.order and now_ns < before.until_ns - 50 * MS
        )
        # A fault can also be the reason why two consumers hold a lease. Then the second lease does
        # not show that a seek is in effect.
        if (
            before is not None
            and overlaps
            and self.world.calm(before.since_ns)
            and not self._moved(row, number, before.order, held.order)
        ):
            self.broken(
                f"{row.name} leased {number} to {held.consumer} while {before.consumer} held "
                "it, in peace"
            )
        is_old = self.disasters.is_from_before(held.order)
        if not is_old and (before is None or held.order > before.order):
            row.held[number] = held

    def _lost_finish(self, row: ChannelLedger, number: int, before: Order, after: Order) -> bool:
        """Return True if a disaster may have taken the finish. It is not confirmed any more."""
        since_ns = row.confirmed_ns.get(number, 0)
        if not self.disasters.is_between(before, after) or not self.disasters.may_lose_finish(
            number, row.name, since_ns, before
        ):
            return False
        row.confirmed.pop(number, None)
        return True

    def _check_order(self, row: ChannelLedger, consumer: str, numbers: Sequence[int]) -> None:
        """Check rule 7: earlier messages of the key that were leased before are answered, or the
        same consumer holds them.
        """
        for number in numbers:
            sent = self.sent[number]
            if sent.key is None:
                continue
            highest = row.by_key.get(sent.key, -1)
            if sent.offset > highest:
                row.by_key[sent.key] = sent.offset
        mine = set(numbers)
        for number in numbers:
            sent = self.sent[number]
            if sent.key is None:
                continue
            for other in row.seen:
                below = self.sent[other]
                if (
                    below.key != sent.key
                    or below.offset >= sent.offset
                    or below.offset < 0  # a disaster took it, and it lies behind by now
                    or other in mine
                    or other in row.answered
                    or other in row.doubtful
                ):
                    continue
                if row.attempts_max and row.latest[other][1] >= row.attempts_max:
                    continue  # the message is a dead letter, or will soon be one
                held = row.held.get(other)
                if held is None or held.consumer != consumer:
                    self.broken(
                        f"{row.name} leased {number} of key {sent.key!r} to {consumer} before "
                        f"{other} was answered"
                    )

    # Seeks

    def took_move(self, channel: str, place: int, boundary: Order) -> None:
        """Record that the channel's process continues at `place`. Nothing is committed yet."""
        row = self.channels.get(channel)
        if row is not None:
            row.moves.append(Move(place, boundary))

    def move_answered(self, row: ChannelLedger, known: int, place: int) -> None:
        """Record that a seek was answered. The channel had taken `known` seeks when it was
        requested.
        """
        mine = [
            move
            for move in row.moves[known:]
            if move.place == place
            or (move.place < place and self.disasters.is_skipped(row.topic, move.place))
            # Retention removed what it moved to, because all channels had finished that before.
            or move.place < place <= self.removed_below.get(row.topic, 0)
        ]
        if not mine:
            self.broken(
                f"a seek of {row.name} was answered with {place}, and it went to "
                f"{[move.place for move in row.moves[known:]]}"
            )
        # If two seeks to the same place were sent at about the same time, it is unknown which of
        # them was answered.
        # A disaster may have undone it while the answer was on its way.
        if len(mine) == 1 and not self.disasters.is_from_before(mine[0].boundary):
            mine[0].in_effect = True

    def _moved(self, row: ChannelLedger, number: int, before: Order, after: Order) -> bool:
        """Return True if a seek explains that the message was leased again as `after`. If only one
        seek does, it is in effect.
        """
        offset = self.sent[number].offset
        offset = self.old_offsets.get(number, -1) if offset < 0 else offset
        # The offset of a message that a takeover has lost is forgotten.
        found = [
            move
            for move in row.moves
            if before <= move.boundary < after and (move.place <= offset or offset < 0)
        ]
        if (
            found
            and found[-1].boundary[0] != after[0]
            and not any(move.in_effect for move in found)
        ):
            is_old = self.disasters.is_from_before(found[-1].boundary)
            found[-1].in_effect = len(found) == 1 and not is_old
        return bool(found)

    # Answers

    def released(self, channel: str, numbers: Iterable[int]) -> None:
        """Record that the consumer does not hold these messages any more, or knows that its lease
        has ended.
        """
        row = self.channels[channel]
        for number in numbers:
            row.held.pop(number, None)

    def finishing(self, channel: str, numbers: Iterable[int]) -> None:
        """Record that a finish is about to be sent. From now on it may have taken effect."""
        numbers = list(numbers)
        self.channels[channel].answered.update(numbers)
        self.channels[channel].finished.update(numbers)

    def rejecting(self, channel: str, numbers: Iterable[int]) -> None:
        self.channels[channel].answered.update(numbers)

    def requeued(self, channel: str, numbers: Iterable[int], due_ns: int) -> None:
        row = self.channels[channel]
        for number in numbers:
            row.held.pop(number, None)
            if due_ns:
                row.not_before[number] = due_ns, self.world.now_ns

    def confirmed(self, channel: str, numbers: Iterable[int], token: int) -> None:
        row = self.channels[channel]
        order = self.order_of(token)
        for number in numbers:
            row.held.pop(number, None)
            last, _ = row.latest.get(number, (_EARLY, 0))
            if self.disasters.is_between(order, last):
                continue
            row.confirmed[number] = max(order, row.confirmed.get(number, _EARLY))
            row.confirmed_ns[number] = self.world.now_ns
            if last > order and not self._moved(row, number, order, last):
                self.broken(
                    f"{row.name} confirmed the finish of {number} by {order} after it had "
                    f"leased it anew as {last}"
                )
