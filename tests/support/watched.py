"""A watch over a channel core. After each call, it checks that the change of every offset's state
is allowed by the transition table, and that each offset is in one place only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from support.message_states import MOVES, MessageEvent, MessageState

from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.fair import FairSupply
from zsq.actors.channel.ordered import OrderedSupply
from zsq.actors.channel.priorities import PrioritySupply
from zsq.transport.units import NS_PER_S
from zsq.transport.wire.protocol import UNBEGUN

_S, _E = MessageState, MessageEvent
Move = tuple[MessageState, MessageEvent, MessageState]
OF_DELIVERY: Final = {
    "next_delivery": _E.DELIVER, "fin": _E.FINISH, "req": _E.REQUEUE, "subscribe": _E.LEAVE, "unsubscribe": _E.LEAVE, "scan": _E.SCAN,
    "changes": _E.SAVE, "configure": _E.CONFIGURE, "seek": _E.SEEK, "end": None, "touch": None, "rest": None,
    "set_ready": None, "note_begun": _E.BEGIN, "recalls": None, "skip_messages": _E.SKIP,
}  # fmt: skip
OF_SUPPLY: Final = {
    "came_due": _E.CAME_DUE, "committed": _E.COMMITTED, "dead": _E.BURIED, "lost": _E.GONE, "drop_below": _E.GONE, "offer": _E.GONE,
    "step_over": _E.GONE, "shelve": None, "next_dead": None,
}  # fmt: skip
SEEN: Final[set[Move]] = set()  # moves seen by all watches in this process


class Watch:
    """Checks the channel after each call. `deferred` has the offsets that are deferred in the
    store.
    """

    def __init__(self, channel: ChannelCore, deferred: Iterable[int] = ()) -> None:
        self.channel = channel
        self.places: dict[int, MessageState] = {}
        self._deferred = set(deferred)
        self._next = channel.supply.next_offset
        self._inside = False
        self._look()
        for owner, events in ((channel, OF_DELIVERY), (channel.supply, OF_SUPPLY)):
            for name, event in events.items():
                setattr(owner, name, self._wrapped(getattr(owner, name), event))

    def _wrapped(
        self, method: Callable[..., Any], event: MessageEvent | None
    ) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return method(*arguments, **named)
            self._inside = True
            try:
                result = method(*arguments, **named)
            finally:
                self._inside = False
            if event is _E.SKIP:
                self._deferred.difference_update(
                    offset
                    for first, count in arguments[0]
                    for offset in range(first, first + count)
                )
            is_return = event is _E.REQUEUE and UNBEGUN in arguments
            self._check(_E.GIVE_BACK if is_return else event)
            self._check_consumers()
            return result

        return watched

    def _check_consumers(self) -> None:
        """Check the totals that the channel keeps about its consumers against the consumers
        themselves.
        """
        channel, consumers = self.channel, self.channel.consumers.values()
        assert channel.is_wanted() == (
            not channel.paused and any(consumer.ready > 0 for consumer in consumers)
        )
        due_ns = channel.next_due(0, 0)
        assert not consumers or 0 < due_ns <= NS_PER_S + min(
            consumer.lost_ns for consumer in consumers
        ), "nobody is lost unseen for more than a second"

    def _look(self) -> None:
        """Find the place of each offset after the cursor. An offset that is in no place is
        finished, or not needed any more.
        """
        supply = self.channel.supply
        found: dict[int, MessageState] = {}

        def put(runs: Iterable[tuple[int, ...]], state: MessageState) -> None:
            for start, count, *_ in runs:
                for offset in range(start, start + count):
                    assert offset not in found, (
                        f"offset {offset} is {found[offset].value} and {state.value}"
                    )
                    found[offset] = state

        leases = self.channel._leases.values()
        put((run for lease in leases for run in lease.held), _S.HELD)
        put((run for lease in leases for group in lease.begun for run in group.runs), _S.BEGUN)
        for waiting in (supply.again, supply.apart):
            put(waiting.returned, _S.WAITING)
            put(waiting.committing, _S.COMMITTING)
            put(waiting.ready, _S.READY)
        put((death.run for death in (*supply.dying.out, *supply.dying.waiting)), _S.DYING)
        put((*supply.deferred._new, *supply.deferred._out), _S.DEFERRED)
        if isinstance(supply, OrderedSupply):
            put((*supply._slots.runs(), *supply._unsorted.runs()), _S.PARKED)
        if isinstance(supply, PrioritySupply):
            put((*supply._levels.runs(), *supply._unsorted), _S.PARKED)
        if isinstance(supply, FairSupply):
            put((*supply._tenants.runs(), *supply._unsorted), _S.PARKED)
            put(supply._tenants.again_runs(), _S.READY)
        here = {offset for offset, state in found.items() if state is _S.DEFERRED}
        # Deferred messages that a commit has moved to the store stay deferred.
        self._deferred = (self._deferred - found.keys()) | here
        found.update(dict.fromkeys(self._deferred, _S.DEFERRED))
        self.places = found

    def _check(self, event: MessageEvent | None) -> None:
        before, start = self.places, self._next
        if event is _E.SEEK:
            self._deferred.clear()
        self._look()
        self._next = self.channel.supply.next_offset
        for offset in range(max(start, self._next, *(o + 1 for o in (*before, *self.places)), 0)):
            was = before.get(offset, _S.OVER if offset < start else _S.AHEAD)
            now = self.places.get(offset, _S.OVER if offset < self._next else _S.AHEAD)
            if was is not now:
                allowed = MOVES[was].get(event, frozenset()) if event is not None else frozenset()
                assert now in allowed, (
                    f"offset {offset} went from {was.value} to {now.value} by "
                    f"{event and event.value}"
                )
                assert event is not None
                SEEN.add((was, event, now))
