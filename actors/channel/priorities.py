"""Priority supply: delivers urgent messages before others that were published earlier. No I/O.

The priority of a message is a number in its header `zsq-priority`, from 0 (also without the header)
to one less than the channel's number of levels. Higher numbers come first. The messages are parked
in piles, the levels, see `parked.py`.

Turns of the levels. Each level has a weight: WEIGHT times that of the level below. Each delivery
adds its messages, divided by the weight, to what its level has *used*. The next delivery comes from
the level that will have used the least after one more message. This is stride scheduling
(Waldspurger and Weihl, 1995). So while all levels have messages, each gets its share, and the
lowest one never starves. A level that had no messages begins with what the others have used then,
so it saves up nothing.

A message that is delivered again has no priority. Redeliveries have their own share, as in any
channel (`Supply.pick`).

Rejected: a strict order without shares. A steady flow of urgent messages would stop all others
forever.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from ...transport.block.block import Block
from ...transport.errors import UsageError
from ...transport.settings import ChannelSettings
from ...transport.wire.codec import unpack_headers
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, total
from ..settings import options
from .deferred import Deferred
from .delivery_builder import DeliveryBuilder
from .filters import WANTED, ChannelFilter
from .lease import Hole, Subscriber
from .parked import ParkedSupply, Pile
from .supply import Picked

PRIORITY_HEADER: Final = "zsq-priority"
_NAME: Final = PRIORITY_HEADER.encode()
WEIGHT: Final = 4
DIGITS_MAX: Final = 9
_SPANS: Final = re.compile(rb"(.)\1*", re.DOTALL)


def level_of(value: object, levels: int) -> int:
    """Return the level of a message with this value of the header.

    A number above the highest level means the highest one. A text of digits is a number, because
    the command line has only texts. Everything else means level 0, because the message was accepted
    long ago and must be delivered.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        digits = value.lstrip("0")[: DIGITS_MAX + 1]  # a header may have thousands of them
        value = int(digits or "0")
    if type(value) is not int:
        return 0
    return min(max(value, 0), levels - 1)


def levels_of(block: Block, levels: int) -> bytes | None:
    """Return the level of each message, one byte each, or None if all of them have level 0."""
    column = block.headers
    if column is None or _NAME not in bytes(column.data):
        return None
    by_index = bytearray(block.count)
    for index, packed in enumerate(column.values()):
        if packed and _NAME in packed:
            try:
                by_index[index] = level_of(unpack_headers(packed).get(PRIORITY_HEADER), levels)
            except UsageError:  # invalid headers have no priority
                continue
    return bytes(by_index) if any(by_index) else None


class Level(Pile):
    """The parked messages of one level."""

    def __init__(self, weight: int) -> None:
        super().__init__()
        self.weight = weight
        self.used = 0.0


class Levels:
    """The levels of a channel, and their turns."""

    def __init__(self, count: int) -> None:
        self._levels = [Level(WEIGHT**number) for number in range(count)]
        # What the level of the last delivery had used before that delivery.
        self._floor = 0.0

    @property
    def messages(self) -> int:
        return sum(level.messages for level in self._levels)

    @property
    def rows(self) -> int:
        return sum(len(level.runs) for level in self._levels)

    def at(self, number: int) -> Level:
        return self._levels[number]

    def park(self, number: int, start: int, count: int) -> None:
        level = self._levels[number]
        if not level.runs:
            level.used = max(level.used, self._floor)
        level.park(start, count)

    def next_piles(self) -> list[Level]:
        """Return the levels with messages in the order of their turns.

        What counts is what a level will have used after one more message. Without that message, a
        lower level would come after the first urgent one, and not after WEIGHT of them.
        """
        waiting = [level for level in self._levels if level.runs]
        return sorted(waiting, key=lambda level: level.used + 1 / level.weight)

    def served(self, level: Level, count: int) -> None:
        """Note that messages of this level were delivered."""
        self._floor = max(self._floor, level.used)
        level.used += count / level.weight

    def forget_requests(self) -> None:
        """Note that no blocks are in memory, and none is requested."""
        for level in self._levels:
            level.ahead = 0

    def remove(self, start: int, stop: int) -> int:
        return sum(level.remove(start, stop) for level in self._levels)

    def cut_out(self, ranges: Sequence[Range]) -> None:
        """Remove the messages of these ranges."""
        for level in self._levels:
            level.runs = deque(cut_out(level.runs, ranges))
            level.messages = total(level.runs)

    def clear(self) -> None:
        self.__init__(len(self._levels))  # type: ignore[misc]

    def runs(self) -> Iterator[Run]:
        """Return the parked messages, those of the highest level first."""
        return chain.from_iterable(level.runs for level in reversed(self._levels))


class PrioritySupply(ParkedSupply):
    """A supply whose piles are levels."""

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        self._levels = Levels(settings.priorities)
        # The last sorted block with its levels. It is kept because it may be sorted in pieces.
        self._known: tuple[Block, bytes | None] | None = None
        super().__init__(next_offset, holes, deferred, counters, settings, choice, self._levels)

    # In

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._known = None

    def _is_needed_soon(self, block: Block) -> bool:
        """Return True if the block's messages, or the more urgent ones of them, are sent soon."""
        levels = self._levels_of(block)
        first = max(levels) if levels else 0
        return self._levels.at(first).messages - block.count < options.PARKED_KEPT

    def _levels_of(self, block: Block) -> bytes | None:
        if self._known is None or self._known[0] is not block:
            self._known = block, levels_of(block, self.settings.priorities)
            if block.headers is not None:
                self.looks -= block.count
        return self._known[1]

    def _park(self, block: Block, start: int, stop: int, rows_max: int = 0) -> int:
        levels = self._levels_of(block)
        if levels is None:
            self._levels.park(0, block.first_offset + start, stop - start)
            return stop
        for match in _SPANS.finditer(levels, start, stop):
            low, high = match.span()
            if rows_max and low > start and self._rows() >= rows_max:
                return low
            self._levels.park(levels[low], block.first_offset + low, high - low)
        return stop

    # Out

    def _has_new(self, rows_out: int) -> bool:
        return self._levels.messages > 0 and not self._holds and self._may_give_new(rows_out)

    def _new(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Gather messages of one level, the oldest first.

        If the blocks of a level are not in memory, they are requested, and the next level has its
        turn.
        """
        for level in self._levels.next_piles():
            builder = DeliveryBuilder(room, options.PARKED_ALONE)
            before = level.messages
            self._fill(builder, level, consumer, wall_ns)
            picked = builder.picked()
            if picked is not None:
                self._levels.served(level, before - level.messages)
                self._read_ahead(level)
                return picked
        return None

    def _fill(
        self, builder: DeliveryBuilder, level: Level, consumer: Subscriber, wall_ns: int
    ) -> None:
        end = self._unsorted[0][0] if self._unsorted else self.next_offset
        while level.runs and builder.has_room() and self.looks > 0:
            offset, count, _ = level.runs[0]
            if offset >= end:
                return
            block = builder.block_of(offset) or self._find(offset)
            if block is None:
                level.ahead = 0
                self._read_ahead(level)
                return
            at = offset - block.first_offset
            count = min(count, block.count - at)
            reason, count = self.first_of(block, at, count, wall_ns)
            if reason != WANTED:
                self._pass(level, count)
                self.give_up((offset, count, 0), reason)
                continue
            count = builder.count_that_fits(block, at, count, sampled=consumer.sample_rate > 0)
            if not count:
                return
            if self._is_left_out(builder, consumer):
                self._pass(level, count)
                continue
            level.take(count)
            builder.add(block, at, at + count)
