"""Balancing: a broker that drains, or `auto`, moves the parts of this broker to others.

Each broker moves only its own parts. All of them make the same plan from the directory
(`storage/cluster/balance.py`), so nobody leads, and it does not matter who is killed. A move that
another one made void is planned again. This module only adds a `move` to the directory. What
follows is in `part_moves.py`.

| `auto` | this broker | moves |
|---|---|---|
| off | drains | its own parts, as many at a time as its `drain` says |
| on | drains | the same |
| on | does not drain | the next ones of the cluster's plan that are its own, while fewer than `concurrency` move |

After a move of a part, the next one of this broker waits until the bytes have had their time at
`rate`. With `gone_after_s`, a broker that has parts and is silent for so long is forgotten. Each
broker that notices it tries, and the first `forget` counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ....storage.cluster.balance import UP_S, PartMove, Plan, plan
from ....storage.cluster.directory import NOBODY, Broker
from ....transport.names import part_of
from ....transport.units import NS_PER_S
from ..cluster.cluster_loads import Seen, cluster_loads, without_orphans
from ..cluster.cluster_view import ClusterView

log = logging.getLogger("zsq")

NO_PLAN: Final = Plan((), (), ())
# The brokers read of a drain, and announce themselves, within two looks at the directory.
SETTLE_S: Final = 4.5
ORPHANS_S: Final = 30.0  # then other brokers adopt what the right ones do not
RETRY_S: Final = 5.0  # after a move that could not be added to the directory
FORGET_RETRY_S: Final = 60.0


class Order(NamedTuple):
    """A part that begins to move: its topic, its number, its hold, and the target."""

    uuid: str
    part: int
    hold: int
    broker: int


class Balancing:
    """The moves that this broker begins by itself.

    `sizes` returns the bytes of its parts, and `fixed` why some of them cannot move. `move` adds a
    `move`, and calls back with True if it counts. `forget` forgets a broker, and calls back when
    that has ended.
    """

    def __init__(
        self,
        view: ClusterView,
        sizes: Callable[[], Mapping[str, int]],
        fixed: Callable[[], Mapping[str, str]],
        move: Callable[[Order, Callable[[bool], None]], None],
        forget: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._view = view
        self._sizes = sizes
        self._fixed = fixed
        self._move = move
        self._forget = forget
        self._seen: dict[str, Seen] = {}
        self._quiet_s: dict[str, float] = {}
        self._seen_ns = self._since_ns = self._next_ns = self._forget_ns = self._orphans_ns = 0
        self._is_ordering = self._is_forgetting = False
        self._planned: tuple[int, int] = (-1, -1)
        self.plan = NO_PLAN

    def saw(self, rows: tuple[tuple[str, float, int, int], ...], now_ns: int) -> None:
        """Note which brokers announce themselves."""
        if now_ns - self._seen_ns > int(UP_S * NS_PER_S):
            self._since_ns = now_ns
        self._seen_ns = now_ns
        self._seen = {uuid: Seen(quiet < UP_S, free, total) for uuid, quiet, free, total in rows}
        self._quiet_s = {uuid: quiet for uuid, quiet, _, _ in rows}

    def tick(self, now_ns: int) -> None:
        self._watch_orphans(now_ns)
        me = self._me()
        auto = self._view.directory.auto
        is_known = now_ns - self._seen_ns < int(UP_S * NS_PER_S) and now_ns - self._since_ns > int(
            SETTLE_S * NS_PER_S
        )
        is_needed = auto.is_on or any(one.draining for one in self._view.directory.brokers)
        if me is None or me.gone or not is_needed or not is_known:
            self.plan, self._planned = NO_PLAN, (-1, -1)
            self._view.stuck = ()
            return
        self._make_plan(me)
        if auto.is_on and auto.gone_after_s:
            self._forget_gone(now_ns, auto.gone_after_s)
        if self._is_ordering or now_ns < self._next_ns:
            return
        if (move := self._next_move(me)) is not None:
            self._order(move)

    def _me(self) -> Broker | None:
        number = self._view.me
        return None if number is None else self._view.directory.brokers[number]

    def _make_plan(self, me: Broker) -> None:
        """Plan again if something has changed that a plan depends on."""
        directory = self._view.directory
        now = directory.next, self._seen_ns
        if now == self._planned:
            return
        self._planned = now
        known = cluster_loads(directory, self._seen, self._sizes(), self._fixed())
        loads = without_orphans(known)
        self.plan = plan(*loads, balances=directory.auto.is_on)
        own = {part.name for part in loads[1] if part.broker == me.number}
        self._view.stuck = tuple(row for row in self.plan.stuck if row[0] in own)

    def _next_move(self, me: Broker) -> PartMove | None:
        moving = len(self.plan.moving)
        if me.draining:
            left = me.draining - sum(self._is_leaving(name, me) for name in self.plan.moving)
            first = [move for move in self.plan.moves if move.source == me.number]
        elif not self._view.directory.auto.is_on:
            return self._retarget(me)
        else:
            left = self._view.directory.auto.concurrency - moving
            first = list(self.plan.moves[: max(0, left)])
        return next((move for move in first if move.source == me.number and left > 0), None)

    def _retarget(self, me: Broker) -> PartMove | None:
        """Return a part of this broker that an operator moves to a broker that drains since."""
        return next((move for move in self.plan.moves if move.source == me.number), None)

    def _is_leaving(self, name: str, me: Broker) -> bool:
        topic, number = part_of(name) or (name, 0)
        parted = self._view.directory.topics[topic]
        hold = parted.hold(number)
        return parted.parts[number] == me.number or hold.origin == me.number

    def _order(self, move: PartMove) -> None:
        topic, number = part_of(move.name) or (move.name, 0)
        parted = self._view.directory.topics[topic]
        auto = self._view.directory.auto
        pause_s = move.bytes / auto.rate if auto.is_on and auto.rate else 0.0

        def ordered(is_done: bool) -> None:
            self._is_ordering = False
            wait_s = pause_s if is_done else RETRY_S
            self._next_ns = time.monotonic_ns() + int(wait_s * NS_PER_S)
            if is_done:
                log.info("part %s is to move to broker %d", move.name, move.target)

        self._is_ordering = True
        self._move(Order(parted.uuid, number, parted.hold(number).number, move.target), ordered)

    def _watch_orphans(self, now_ns: int) -> None:
        if not self._view.has_orphans:
            self._orphans_ns, self._view.adopts_all = 0, False
            return
        self._orphans_ns = self._orphans_ns or now_ns
        self._view.adopts_all = now_ns - self._orphans_ns > int(ORPHANS_S * NS_PER_S)

    def _forget_gone(self, now_ns: int, gone_after_s: int) -> None:
        """Forget a broker that was silent for too long, and has parts."""
        if self._is_forgetting or now_ns < self._forget_ns:
            return
        directory = self._view.directory
        watched_s = (now_ns - self._since_ns) / NS_PER_S
        for broker in directory.brokers:
            quiet_s = self._quiet_s.get(broker.uuid, watched_s)
            is_gone = min(quiet_s, watched_s) > max(gone_after_s, UP_S)
            if not is_gone or broker.gone or not directory.has_parts(broker.number):
                continue
            log.warning("broker %d was silent for %.0f s: it is forgotten", broker.number, quiet_s)

            def ended() -> None:
                self._is_forgetting = False
                self._forget_ns = time.monotonic_ns() + int(FORGET_RETRY_S * NS_PER_S)

            self._is_forgetting = True
            self._forget(broker.number, ended)
            return

    def describe(self) -> dict[str, int]:
        """Return how many parts move, and how many more are planned, in the whole cluster.

        A broker that neither drains nor balances has no plan. It counts only what moves.
        """
        moving = {
            (topic.uuid, part)
            for topic in self._view.directory.topics.values()
            for part, hold in topic.holds.items()
            if (hold.to, hold.origin) != (NOBODY, NOBODY)
        }
        return {"moving": len(moving), "planned": len(self.plan.moves)}
