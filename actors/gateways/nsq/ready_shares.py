"""ReadyShares: how the ready count (RDY) of an NSQ consumer is divided among parts. Pure.

The consumer has a subscription to each part that lies at this broker, each with a credit: how many
messages its channel may have on the way to the consumer. The sum of the credits must never exceed
the RDY. But no part may wait for ever, also if the RDY is smaller than the number of parts.

*The bound.* A part uses the larger of its credit and its messages in flight. A credit is raised
only within what the RDY leaves of the sum. A credit that is lowered counts until the channel has
confirmed the change, because messages may be on their way. So a message is never sent before there
is room for it, and none has to wait in the gateway under a lease that runs, while another consumer
could have it. If the consumer lowers its RDY, messages on their way still arrive, as with nsqd.

*With a RDY of at least the number of parts*, each part has a credit of 1 or more. What is left goes
in equal shares to the *keen* parts, which have used up their credit now or within the last second,
or to all if none is keen. So a part with a backlog gets nearly everything while the others are
idle.

*With a smaller RDY*, there are as many *seats* as the RDY says. The parts take turns in them, with
a credit of 1. A turn ends when the part has sent nothing for its patience, and otherwise after
`TURN_NS`, if another part waits that does not rest. An empty turn doubles the part's patience and
lets the part rest, so that empty parts take at most a quarter of the time of the others. If no part
has messages, each one gets a turn, for `PATIENCE_NS_MAX` at most. One turn for each message would
be fairer, but a channel without a consumer drops the blocks that it holds, so each turn costs a
read.

The states of a credit, and the messages that change them:

| state | message | next state |
|---|---|---|
| none | `join`: the subscription is open | settled, with 0 |
| settled | `plan` returns a raise | settled |
| settled | `plan` returns a lowering | lowering: it does not change before it is confirmed |
| lowering | `confirmed` | settled |
| any | `leave`: the link is lost, or the part has left | none |

`delivered` and `answered` count the messages in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

TURN_NS: Final = 250_000_000
PATIENCE_NS: Final = 25_000_000
PATIENCE_NS_MAX: Final = 200_000_000
KEEN_NS: Final = 1_000_000_000
RESTS: Final = 4  # the rest after an empty turn, in patiences of all parts
FAR_NS: Final = 1 << 62


class CreditOrder(NamedTuple):
    """The next credit of a part. The channel must confirm it if it `lowers` the credit."""

    part: int
    ready: int
    lowers: bool


class Share:
    """The credit of one part."""

    __slots__ = (
        "full_ns",
        "granted",
        "heard_ns",
        "in_flight",
        "is_empty",
        "is_lowering",
        "patience_ns",
        "ready",
        "rest_ns",
        "since_ns",
    )

    def __init__(self) -> None:
        self.ready = 0  # the credit that the channel was told last
        self.granted = 0  # the credit that the channel may still use
        self.in_flight = 0
        self.is_lowering = False
        self.full_ns = -KEEN_NS  # when the credit was no longer used up
        self.since_ns = 0  # when the turn began
        self.heard_ns = 0  # when the last message was delivered or answered
        self.is_empty = True  # no message was delivered in this turn
        self.patience_ns = PATIENCE_NS
        self.rest_ns = 0  # the part rests until then

    @property
    def used(self) -> int:
        return max(self.granted, self.in_flight)

    @property
    def is_full(self) -> bool:
        return self.in_flight >= max(1, self.ready)

    def is_keen(self, now_ns: int) -> bool:
        return self.is_full or now_ns - self.full_ns < KEEN_NS

    def begin_turn(self, now_ns: int) -> None:
        self.since_ns, self.is_empty = now_ns, True

    def silent_ns(self) -> int:
        """Return when the patience with this part ends, if it sends nothing more."""
        return max(self.since_ns, self.heard_ns) + self.patience_ns


class ReadyShares:
    """The shares of one consumer. Parts are numbers. The time is passed in.

    After each change, and at `due_ns`, call `plan` and carry out its orders.
    """

    def __init__(self) -> None:
        self.ready = 0
        self.due_ns = FAR_NS
        self._shares: dict[int, Share] = {}
        # The parts that have a turn, and those that wait, the longest waiting first.
        self._seats: list[int] = []
        self._waiting: list[int] = []

    def __contains__(self, part: int) -> bool:
        return part in self._shares

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def used(self) -> int:
        """The number of messages that the consumer has or may get."""
        return sum(share.used for share in self._shares.values())

    @property
    def in_flight(self) -> int:
        return sum(share.in_flight for share in self._shares.values())

    # Messages

    def set_ready(self, ready: int) -> None:
        self.ready = ready

    def join(self, part: int) -> None:
        """Note that the subscription to a part is open, with a credit of 0."""
        self._shares[part] = Share()
        self._waiting.append(part)

    def leave(self, part: int) -> None:
        """Note that the subscription to a part has ended, with all its leases."""
        if self._shares.pop(part, None) is not None:
            for line in (self._seats, self._waiting):
                if part in line:
                    line.remove(part)

    def delivered(self, part: int, count: int, now_ns: int) -> None:
        if (share := self._shares.get(part)) is not None:
            share.in_flight += count
            share.heard_ns, share.is_empty = now_ns, False
            share.patience_ns = PATIENCE_NS

    def answered(self, part: int, count: int, now_ns: int) -> None:
        """Note that messages are no longer in flight: they were answered, or have timed out."""
        if (share := self._shares.get(part)) is not None:
            if share.is_full:
                share.full_ns = now_ns
            share.in_flight -= count
            share.heard_ns = now_ns
            assert share.in_flight >= 0, f"part {part} has {share.in_flight} messages in flight"

    def confirmed(self, part: int) -> None:
        """Note that the channel uses no more than the credit that it was told last."""
        if (share := self._shares.get(part)) is not None:
            share.granted, share.is_lowering = share.ready, False

    # The plan

    def plan(self, now_ns: int) -> list[CreditOrder]:
        """Return the credits to change now. Set `due_ns`, the time to plan again at the latest."""
        self.due_ns = FAR_NS
        wanted = self._wanted(now_ns)
        return [*self._lowered(wanted), *self._raised(wanted, now_ns)]

    def _lowered(self, wanted: dict[int, int]) -> Iterator[CreditOrder]:
        for part, ready in wanted.items():
            share = self._shares[part]
            if ready < share.ready and not share.is_lowering:
                share.ready, share.is_lowering = ready, True
                yield CreditOrder(part, ready, True)

    def _raised(self, wanted: dict[int, int], now_ns: int) -> Iterator[CreditOrder]:
        room = self.ready - self.used
        for part, most in wanted.items():
            share = self._shares[part]
            before = share.used
            ready = min(most, before + room)
            if ready <= share.ready or share.is_lowering:
                continue
            if not share.ready and part in self._seats:
                share.begin_turn(now_ns)
                self._due(share.silent_ns())
            if share.is_full:
                share.full_ns = now_ns
            share.ready = share.granted = ready
            room -= share.used - before
            yield CreditOrder(part, ready, False)

    def _wanted(self, now_ns: int) -> dict[int, int]:
        """Return the credit that each part should have, in the order in which they get it."""
        if self.in_flight > self.ready:
            return dict.fromkeys(self._shares, 0)  # the consumer has lowered its RDY
        if self.ready >= len(self._shares):
            self._waiting += self._seats
            self._seats.clear()
            return self._divided(now_ns)
        self._take_turns(now_ns)
        return dict.fromkeys(self._seats, 1) | dict.fromkeys(self._waiting, 0)

    def _divided(self, now_ns: int) -> dict[int, int]:
        wanted = dict.fromkeys(self._shares, 1)
        keen = [part for part, share in self._shares.items() if share.is_keen(now_ns)]
        for share in self._shares.values():
            if share.is_keen(now_ns) and not share.is_full:
                self._due(share.full_ns + KEEN_NS)
        takers = keen or list(wanted)
        spare = self.ready - len(wanted)
        for place, part in enumerate(takers):
            wanted[part] += spare // len(takers) + (place < spare % len(takers))
        return wanted

    # Turns

    def _take_turns(self, now_ns: int) -> None:
        for part in self._seats[self.ready :]:
            self._end_turn(part)
        for part in list(self._seats):
            share = self._shares[part]
            if share.ready and self._is_over(share, now_ns):
                self._end_turn(part)
        while len(self._seats) < self.ready:
            part = self._next(now_ns)
            self._seats.append(part)
            if (share := self._shares[part]).ready:  # otherwise the turn begins with its credit
                share.begin_turn(now_ns)
                self._due(share.silent_ns())

    def _is_over(self, share: Share, now_ns: int) -> bool:
        """Return True if the turn of this part is over."""
        if not share.in_flight and now_ns >= share.silent_ns():
            if share.is_empty:
                share.rest_ns = now_ns + RESTS * share.patience_ns * len(self._shares)
                share.patience_ns = min(2 * share.patience_ns, PATIENCE_NS_MAX)
            return True
        over_ns = max(share.since_ns + TURN_NS, self._rested_ns())
        if now_ns >= over_ns:
            return True
        self._due(over_ns if share.in_flight else min(over_ns, share.silent_ns()))
        return False

    def _end_turn(self, part: int) -> None:
        self._seats.remove(part)
        self._waiting.append(part)

    def _next(self, now_ns: int) -> int:
        """Take the next part out of the line: the first one, but those that rest come last."""
        rests = {part: max(0, self._shares[part].rest_ns - now_ns) for part in self._waiting}
        part = min(self._waiting, key=rests.__getitem__)
        self._waiting.remove(part)
        return part

    def _rested_ns(self) -> int:
        """Return when a part that waits has rested."""
        return min(self._shares[part].rest_ns for part in self._waiting)

    def _due(self, at_ns: int) -> None:
        self.due_ns = min(self.due_ns, at_ns)
