"""Balance of a cluster: which parts move to which brokers, so that a draining broker has none, and
the others have about equally many. Pure.

The goal is the number of parts: no two brokers that take parts differ by more than one. So a
cluster with a difference of one is balanced, and a plan that was carried out is followed by an
empty one. Bytes decide only which part moves: the smallest one of the broker that has too many.

Rejected: bytes as the goal. They change all the time, so parts would move for ever, and a broker
does not know the bytes of another one. The numbers of parts are in the directory, so all brokers
that have read the same entries make the same plan, and nobody has to lead.

| a part | is |
|---|---|
| at a draining broker | moved to the broker with the fewest parts that has room |
| on its way to a broker that takes parts | counted there |
| on its way to one that does not, and not released | given another target |
| still being taken over | left alone until it has arrived |
| at a broker that does not answer | left alone |
| fixed, because it cannot move at all | left alone; other parts move |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .directory import NOBODY

# Of the space of a target, this part stays free.
KEEP_FREE: Final = 0.1
# A broker is up if it has shown within this time that it lives (`notices.py`). This is here and not
# there, because the core needs it, and it works without a bucket.
UP_S: Final = 45.0


class BrokerLoad(NamedTuple):
    """A broker. `is_up`: it answers, so it can give and take. `free`, `total`: bytes of its disk,
    0 if they are not known.
    """

    number: int
    takes_parts: bool
    is_draining: bool = False
    is_up: bool = True
    free: int = 0
    total: int = 0

    @property
    def is_target(self) -> bool:
        return self.is_up and self.takes_parts


class PartLoad(NamedTuple):
    """A part. `to`: the broker that shall have it, or NOBODY. `is_ready`: that one is ready, so the
    move cannot be changed. `is_coming`: its broker is still taking it over. `fixed`: why it cannot
    move, or "".
    """

    name: str
    topic: str
    broker: int
    to: int = NOBODY
    is_ready: bool = False
    is_coming: bool = False
    bytes: int = 0
    fixed: str = ""


class PartMove(NamedTuple):
    """A part that shall move from the broker `source` to the broker `target`."""

    name: str
    source: int
    target: int
    bytes: int


class Plan(NamedTuple):
    """`moves`: the moves to begin, in this order. `moving`: the names of the parts that move now.
    `stuck`: the parts of draining brokers that no broker can take, and why.
    """

    moves: tuple[PartMove, ...]
    moving: tuple[str, ...]
    stuck: tuple[tuple[str, str], ...]

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)


def plan(brokers: Iterable[BrokerLoad], parts: Sequence[PartLoad], *, balances: bool) -> Plan:
    """Return the moves after which no draining broker has a part, and with `balances`, the others
    are balanced.
    """
    return _Planner(brokers, parts).plan(balances=balances)


class _Planner:
    def __init__(self, brokers: Iterable[BrokerLoad], parts: Sequence[PartLoad]) -> None:
        self._brokers = {broker.number: broker for broker in brokers}
        self._targets = [broker for broker in self._brokers.values() if broker.is_target]
        self._parts = sorted(parts)
        self._counts = dict.fromkeys(self._brokers, 0)
        self._of_topic: dict[tuple[int, str], int] = {}
        self._room = {
            broker.number: broker.free - int(broker.total * KEEP_FREE)
            for broker in self._targets
            if broker.total
        }
        self._moves: list[PartMove] = []

    def plan(self, *, balances: bool) -> Plan:
        stuck: list[tuple[str, str]] = []
        moving: list[str] = []
        leaving: list[PartLoad] = []
        settled: dict[int, list[PartLoad]] = {number: [] for number in self._brokers}
        for part in self._parts:
            at = self._brokers[part.broker]
            is_on_way = part.to != NOBODY
            if is_on_way and self._is_missed(part, balances):
                leaving.append(part)
                continue
            self._count(part, part.to if is_on_way else part.broker, 1)
            if is_on_way or part.is_coming:
                moving.append(part.name)
            elif at.is_draining and part.fixed:
                stuck.append((part.name, part.fixed))
            elif at.is_draining and at.is_up:
                self._count(part, part.broker, -1)
                leaving.append(part)
            elif at.is_target and not part.fixed:
                settled[at.number].append(part)
        # The largest ones first, so that they find room.
        for part in sorted(leaving, key=lambda part: (-part.bytes, part.name)):
            target = self._target(part)
            if target is not None:
                self._move(part, target)
            elif self._brokers[part.broker].is_draining:
                why = "no other broker that answers takes parts"
                why = "no broker has room for it" if self._targets else why
                stuck.append((part.name, why))
            if target is None:
                self._count(part, part.broker, 1)
                if part.to != NOBODY:
                    moving.append(part.name)
        if balances:
            self._balance(settled)
        return Plan(tuple(self._moves), tuple(moving), tuple(stuck))

    def _is_missed(self, part: PartLoad, balances: bool) -> bool:
        """Return True if a part shall go to a broker that takes none, and may go elsewhere."""
        at = self._brokers[part.broker]
        to = self._brokers[part.to]
        may_change = balances or at.is_draining or to.is_draining
        return may_change and at.is_up and not part.is_ready and not to.is_target

    def _count(self, part: PartLoad, broker: int, change: int) -> None:
        self._counts[broker] += change
        key = broker, part.topic
        self._of_topic[key] = self._of_topic.get(key, 0) + change

    def _target(self, part: PartLoad) -> int | None:
        fitting = [
            broker.number
            for broker in self._targets
            if broker.number != part.broker and self._has_room(broker.number, part)
        ]
        return min(fitting, key=lambda number: self._rank(number, part), default=None)

    def _has_room(self, number: int, part: PartLoad) -> bool:
        return self._room.get(number, part.bytes) >= part.bytes

    def _rank(self, number: int, part: PartLoad) -> tuple[int, int, int]:
        """Return a key that spreads the parts of one topic, where this costs nothing."""
        return self._counts[number], self._of_topic.get((number, part.topic), 0), number

    def _move(self, part: PartLoad, target: int) -> None:
        self._moves.append(PartMove(part.name, part.broker, target, part.bytes))
        self._count(part, target, 1)
        if target in self._room:
            self._room[target] -= part.bytes

    def _balance(self, settled: dict[int, list[PartLoad]]) -> None:
        """Move parts, each one at most once, until no two brokers differ by more than one."""
        while (step := self._next(settled)) is not None:
            part, target = step
            settled[part.broker].remove(part)
            self._count(part, part.broker, -1)
            self._move(part, target)

    def _next(self, settled: dict[int, list[PartLoad]]) -> tuple[PartLoad, int] | None:
        """Return the next part, of the fullest brokers from which one can move, and its target."""
        low = min((self._counts[broker.number] for broker in self._targets), default=0)
        counts = {number: self._counts[number] for number, parts in settled.items() if parts}
        for count in sorted({*counts.values()}, reverse=True):
            if count - low < 2:
                break
            parts = [
                part for number in counts if counts[number] == count for part in settled[number]
            ]
            for part in sorted(parts, key=self._cost):
                target = self._target(part)
                if target is not None and count - self._counts[target] >= 2:
                    return part, target
        return None

    def _cost(self, part: PartLoad) -> tuple[int, int, str]:
        return part.bytes, -self._of_topic[part.broker, part.topic], part.name


def adopters(brokers: Iterable[BrokerLoad], parts: Sequence[PartLoad]) -> dict[str, int]:
    """Return which broker adopts each part whose broker was forgotten, by the names of the parts.

    `parts` are all parts of the cluster. Those with a broker that is not in `brokers` are adopted.
    """
    known = {broker.number: broker for broker in brokers}
    planner = _Planner(known.values(), [part for part in parts if part.broker in known])
    planner.plan(balances=False)
    found = {}
    for part in sorted(part for part in parts if part.broker not in known):
        target = planner._target(part)
        if target is not None:
            found[part.name] = target
            planner._move(part, target)
    return found
