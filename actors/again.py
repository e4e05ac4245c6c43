"""What is to be delivered again: from where the number of that delivery is not committed yet to where it goes out. Pure.

    waiting      under the number of the last delivery
    promising    the next number goes with the commit that is on its way
    ready        the next number is committed: it may be sent

A number is promised for what is about to be sent only: while a consumer takes messages, and a bound ahead of it. Else each start would
raise the numbers of all that waits, and write all of its rows. At a clean end promises that nobody got are taken back; after a
crash a number may be left out, and none comes twice. Where attempts are bounded the bound is what consumers have room for right now:
a number that is left out costs a message one of its deliveries, and that shall hit none but those about to be sent.

A first delivery is promised by nobody: it goes out at once and counts over a crash once it is committed, some 0.2 s later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ..transport.block import Block
from ..transport.protocol import Run
from . import options
from .ranges import take, total
from .shelf import bytes_between

Part = tuple[Block, int, int]


class Again:
    def __init__(self) -> None:
        self.ready: deque[Run] = deque()
        self.promising: list[Run] = []
        self.waiting: deque[Run] = deque()

    @property
    def rows(self) -> int:
        return len(self.ready) + len(self.promising) + len(self.waiting)

    def messages(self) -> int:
        return total(self.ready) + total(self.promising) + total(self.waiting)

    def unsent(self) -> Iterable[Run]:
        """As rows of the commit that begins: with the highest number under which each may have been sent."""
        yield from self.ready
        yield from self.waiting
        yield from ((start, count, attempts + 1) for start, count, attempts in self.promising)

    def to_promise(self, bound: int) -> int:
        """How many messages the next commit shall promise, where `bound` may be ready at a time: 0 while enough is, or nothing waits."""
        if not self.waiting or len(self.ready) >= options.PROMISED_ROWS_LOW:
            return 0
        ready = total(self.ready)
        return bound - ready if ready <= bound // 2 else 0

    def promise(self, room: int) -> None:
        """So many messages, with the commit that begins."""
        while self.waiting and room > 0:
            start, count, attempts = self.waiting.popleft()
            self.promising.append((start, min(count, room), attempts))
            if count > room:
                self.waiting.appendleft((start + room, count - room, attempts))
            room -= count

    def committed(self) -> None:
        self.ready.extend((start, count, attempts + 1) for start, count, attempts in self.promising)
        self.promising = []

    def take_back(self) -> bool:
        """True: there was something promised that nobody got."""
        self.waiting.extendleft([(start, count, attempts - 1) for start, count, attempts in reversed(self.ready)])
        found = bool(self.ready)
        self.ready.clear()
        return found

    def keep(self, living: Callable[[Iterable[Run]], list[Run]]) -> None:
        """Only what may be delivered again by the number of its last delivery."""
        self.waiting = deque(living(self.waiting))
        self.promising = living(self.promising)
        ready = living((start, count, attempts - 1) for start, count, attempts in self.ready)
        self.ready = deque((start, count, attempts + 1) for start, count, attempts in ready)

    def lost(self, start: int, stop: int) -> int:
        """Give up what is ready and lies there; how many messages that were."""
        found = [take([run], [(start, stop - start)]) for run in self.ready]
        self.ready = deque(run for _, left, _ in found for run in left)
        return sum(total(gone) for gone, _, _ in found)

    def clear(self) -> None:
        self.ready.clear()
        self.promising.clear()
        self.waiting.clear()


def collect(
    again: deque[Run], quota: int, find: Callable[[int], Block | None], wanted: set[int], expire: Callable[[Block, Run], bool] | None = None
) -> tuple[list[Part], list[Run]]:
    """Take up to `quota` messages out of `again`; the offsets of those whose block `find` does not have go to `wanted`.

    `expire`: this run of a block would go out; True if it is given up instead.
    """
    parts: list[Part] = []
    runs: list[Run] = []
    waiting: list[Run] = []
    size = 0
    while again and quota > 0 and size < options.GATHER_BYTES_MAX and len(waiting) < options.FETCHES_MAX:
        first, count, attempts = again.popleft()
        block = find(first)
        if block is None:
            wanted.add(first)
            waiting.append((first, count, attempts))
            continue
        start = first - block.first_offset
        here = min(block.count - start, count)
        if expire is not None and expire(block, (first, here, attempts)):
            if here < count:
                again.appendleft((first + here, count - here, attempts))
            continue
        stop = start + min(here, quota)
        size += bytes_between(block, start, stop)
        if parts and size > options.GATHER_BYTES_MAX:  # one part may be as large as its block; several must fit into a block
            again.appendleft((first, count, attempts))
            break
        parts.append((block, start, stop))
        runs.append((first, stop - start, attempts))
        quota -= stop - start
        if stop - start < count:
            again.appendleft((first + stop - start, count - (stop - start), attempts))
    again.extendleft(reversed(waiting))
    return parts, runs
