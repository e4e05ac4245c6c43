"""Priority supply: delivers urgent messages before others that were published earlier. No I/O.

The priority of a message is a number in its header `zsq-priority`, from 0 (also without the header)
to one less than the channel's number of levels. Higher numbers come first. The cursor reads ahead
of the deliveries and sorts the messages that it passes:

    window  ->  parked in the level of its priority  ->  in flight  ->  finished

As in an ordered channel (`ordered.py`), parked messages are holes in rows with attempts 0. Their
first delivery needs no commit before it. Adjacent messages of one level are one row. So a backlog
of one level takes one row, however long it is, and a few urgent messages in it take two rows each.
The cursor stops at PRIORITY_ROWS_MAX rows. An urgent message behind that place waits until the
number of rows is lower.

Turns of the levels. Each level has a weight: WEIGHT times that of the level below. Each delivery
adds its messages, divided by the weight, to what its level has *used*. The next delivery comes from
the level that will have used the least after one more message. This is stride scheduling
(Waldspurger and Weihl, 1995). So while all levels have messages, each gets its share, and the
lowest one never starves. A level that had no messages begins with what the others have used then,
so it saves up nothing.

A message that is delivered again has no priority. Redeliveries have their own share, as in any
channel (`Supply.pick`).

Blocks. To find urgent messages in a backlog, the cursor passes blocks long before their messages
are delivered. These blocks are not kept, and are read again for the deliveries. A block is kept if
few messages of its level wait before its own. So in a channel without a backlog nothing is read
twice.

*A new consumer.* While no consumer wants messages, the channel reads nothing, and an urgent message
may arrive. When a consumer wants messages again, parked ones are delivered only after the first
unread blocks have come. Otherwise a consumer's whole ready count would go before the urgent
message. This takes PRIORITY_HOLD_NS at most.

*Rows of an earlier process.* Their levels are not stored. Their blocks are read again, the oldest
first, and their messages are sorted as those of the window are. A message is delivered only when
all earlier rows are sorted. Otherwise it could overtake an earlier one of its level.

Rejected: one cursor for each level. Each would read the whole log, and the position of a channel in
the state store, its reports, and the retention would be a list. Rejected: a strict order without
shares. A steady flow of urgent messages would stop all others forever.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from ...transport.block.block import Block
from ...transport.errors import UsageError
from ...transport.settings import ChannelSettings
from ...transport.wire.codec import unpack_headers
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, take, total
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .deferred import Deferred, Row
from .delivery_builder import DeliveryBuilder
from .filters import WANTED, ChannelFilter, count_skipped, wanted_runs
from .lease import Hole, Subscriber
from .supply import Picked, Supply

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


class Level:
    """The parked messages of one level, as ascending runs."""

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.used = 0.0
        # The blocks of the next messages are requested again when the first one is beyond this.
        self.ahead = 0
        self.runs: deque[Run] = deque()
        self.messages = 0

    def park(self, start: int, count: int) -> None:
        """Add messages. Adjacent runs become one if they are added in ascending order."""
        self.messages += count
        if self.runs and self.runs[-1][0] > start:
            insort(self.runs, (start, count, 0))
        elif self.runs and self.runs[-1][0] + self.runs[-1][1] == start:
            start, before, _ = self.runs.pop()
            self.runs.append((start, before + count, 0))
        else:
            self.runs.append((start, count, 0))

    def take(self, count: int) -> None:
        """Remove the first messages, all from the first run."""
        start, size, _ = self.runs.popleft()
        if count < size:
            self.runs.appendleft((start + count, size - count, 0))
        self.messages -= count

    def remove(self, start: int, stop: int) -> int:
        """Remove the messages of this range, and return how many there were."""
        taken, left, _ = take(list(self.runs), [(start, stop - start)])
        if taken:
            self.runs = deque(left)
            self.messages -= total(taken)
        return total(taken)


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

    def turns(self) -> list[Level]:
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


class PrioritySupply(Supply):
    """A `Supply` whose messages to send are in levels, not in the window."""

    fetch_bytes = options.PRIORITY_READ_BYTES
    goes_back = False
    parks = True

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        self._levels = Levels(settings.priorities)
        # Parked rows of an earlier process whose levels are not known yet, ascending.
        self._unsorted: list[Run] = []
        self._near = 1_000  # approximate number of messages that one read brings
        self._stopped = False  # this turn's share of looks was too small to read further
        self._is_fed = False  # unread blocks have come since consumers want messages
        self._held_since_ns = 0
        self._holds = False
        # The last sorted block with its levels. It is kept because it may be sorted in pieces.
        self._known: tuple[Block, bytes | None] | None = None
        super().__init__(next_offset, holes, deferred, counters, settings, choice)
        self._unsorted.sort()

    # Rows of an earlier process

    def _recover(self, run: Run, due_ns: int) -> None:
        if run[2] or due_ns:
            super()._recover(run, due_ns)
        else:
            self._unsorted.append(run)

    def _want_unsorted(self) -> None:
        """Request the next blocks of rows whose levels are not known."""
        after = 0
        for start, count, _ in self._unsorted:
            at = max(start, after)
            while at < start + count:
                if len(self.wanted) >= options.FETCHES_MAX:
                    return
                self._want(at)
                after = at = at + self._near

    def _sort_unsorted(self, block: Block) -> None:
        at = bisect_left(self._unsorted, (block.first_offset,))
        if at and sum(self._unsorted[at - 1][:2]) > block.first_offset:
            at -= 1
        end = bisect_left(self._unsorted, (block.next_offset,))
        span = (block.first_offset, block.count)
        taken, left, _ = take(self._unsorted[at:end], [span])
        self._unsorted[at:end] = left
        for start, count, _ in taken:
            self._park(block, start - block.first_offset, start + count - block.first_offset)

    # Blocks

    def shelve(self, block: Block) -> None:
        """Sort a block that was read, and keep it if the cursor has passed it.

        A read may bring more blocks than requested. Those ahead of the cursor come through the
        feed.
        """
        self._near = max(1, self.fetch_bytes * block.count // block.length)
        if block.first_offset < self.next_offset:
            super().shelve(block)
            if self._unsorted and self._is_sound(block):
                self._sort_unsorted(block)

    def lost(self, start: int, stop: int) -> None:
        super().lost(start, stop)
        self.counters["lost_count"] += self._remove(start, stop)

    def _remove(self, start: int, stop: int) -> int:
        taken, self._unsorted, _ = take(self._unsorted, [(start, stop - start)])
        return self._levels.remove(start, stop) + total(taken)

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._known = None
        self._is_fed, self._held_since_ns = False, 0
        self._levels.forget_requests()

    def offer(self, block: Block, *, from_storage: bool = False) -> bool:
        self._is_fed = True
        return super().offer(block, from_storage=from_storage)

    def step_over(self, next_offset: int) -> None:
        self._is_fed = True
        super().step_over(next_offset)

    def _passed(self, block: Block) -> None:
        """Keep the block if its messages, or the more urgent ones of them, are sent soon."""
        levels = self._levels_of(block)
        first = max(levels) if levels else 0
        if self._levels.at(first).messages - block.count < options.PRIORITY_KEPT:
            super()._passed(block)

    # In

    def begin_turn(self) -> None:
        super().begin_turn()
        self._stopped = False

    def has_more(self) -> bool:
        return self._stopped or super().has_more()

    def look_ahead(self, rows_out: int, wall_ns: int) -> None:
        """Sort the next messages, as many as this turn allows."""
        self._holds = self._waits_for_newest(wall_ns)
        if self._holds:  # what is parked comes into memory meanwhile
            for level in self._levels.turns():
                self._read_ahead(level)
        if self._unsorted:
            self._want_unsorted()
        least = options.LOOKS_MAX - options.PRIORITY_LOOKS
        while self._looks_on(rows_out):
            if self.looks <= least:
                self._stopped = True
                return
            block = self._window[0]
            # Skip a gap, if there is one.
            self.next_offset = max(self.next_offset, block.first_offset)
            if not self._is_sound(block):
                return
            start = self.next_offset - block.first_offset
            stop = self._sort(block, start, self._mask(block, wall_ns))
            self._advance(block, stop)
            self.dirty = True

    def _waits_for_newest(self, wall_ns: int) -> bool:
        if self._is_fed or self.next_offset >= self.head:
            return False
        if self._rows() >= options.PRIORITY_ROWS_MAX:
            return False  # no further messages are read
        self._held_since_ns = self._held_since_ns or wall_ns
        return 0 <= wall_ns - self._held_since_ns < options.PRIORITY_HOLD_NS

    def _looks_on(self, rows_out: int) -> bool:
        return self._rows() < options.PRIORITY_ROWS_MAX and super()._has_new(rows_out)

    def _rows(self) -> int:
        return self._levels.rows + len(self._unsorted)

    def _levels_of(self, block: Block) -> bytes | None:
        if self._known is None or self._known[0] is not block:
            self._known = block, levels_of(block, self.settings.priorities)
            if block.headers is not None:
                self.looks -= block.count
        return self._known[1]

    def _sort(self, block: Block, start: int, mask: bytes | None) -> int:
        """Park the wanted messages of the block from index `start` on.

        Return the index up to which they are parked, which is lower than the end of the block if
        there are too many rows now.
        """
        self.looks -= options.LOOK_BLOCK
        spans = ((start, block.count),) if mask is None else wanted_runs(mask, start, block.count)
        stop = block.count
        for low, high in spans:
            stop = self._park(block, low, high, rows_max=options.PRIORITY_ROWS_MAX)
            if stop < high:
                break
        else:
            stop = block.count
        if mask is not None:
            count_skipped(self.counters, mask, start, stop)
        return stop

    def _park(self, block: Block, start: int, stop: int, rows_max: int = 0) -> int:
        """Park the messages between these indexes, at most until there are `rows_max` rows.

        Return the index of the first one that is not parked.
        """
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
        for level in self._levels.turns():
            builder = DeliveryBuilder(room, options.PRIORITY_ALONE)
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

    def _is_left_out(self, builder: DeliveryBuilder, consumer: Subscriber) -> bool:
        """Return True if the next message is not in this consumer's sample."""
        if not consumer.sample_rate:
            return False
        builder.offered += 1
        if self.choice.in_sample(consumer.sample_rate):
            return False
        self.counters["sampled_count"] += 1
        consumer.sampled_count += 1
        return True

    def _pass(self, level: Level, count: int) -> None:
        """Finish these messages for this channel without a delivery."""
        level.take(count)
        self.looks -= count
        self.dirty = True

    def _read_ahead(self, level: Level) -> None:
        """Request the blocks of the next messages that are not in memory."""
        if not level.runs or level.runs[0][0] < level.ahead:
            return
        room = options.FETCHES_MAX
        after = 0
        for start, count, _ in level.runs:
            offset = max(start, after)
            while offset < start + count:
                if not room:
                    return
                room -= 1
                if room >= options.FETCHES_MAX // 2:
                    level.ahead = offset
                block = self._find(offset)
                if block is None:
                    self._want(offset)
                after = offset = offset + self._near if block is None else block.next_offset

    def _want(self, offset: int) -> None:
        if len(self.wanted) < options.FETCHES_MAX and all(
            abs(offset - other) >= self._near for other in self.wanted
        ):
            self.wanted.add(offset)

    def skip_messages(self, ranges: Sequence[Range], deferred: Sequence[Row]) -> bool:
        moved = super().skip_messages(ranges, deferred)
        self._levels.cut_out(ranges)
        self._unsorted = cut_out(self._unsorted, ranges)
        return moved

    # Commits and moves

    def _waiting_rows(self) -> Iterable[Run]:
        return chain(super()._waiting_rows(), self._levels.runs(), self._unsorted)

    def seek(self, offset: int) -> None:
        self._levels.clear()
        self._unsorted = []
        super().seek(offset)

    def drop_below(self, start: int) -> bool:
        moved = super().drop_below(start)
        self.counters["dropped_count"] += self._remove(0, start)
        return moved

    # Reports

    def shown(self) -> dict[str, Iterator[Run]]:
        return {**super().shown(), "parked": chain(self._levels.runs(), self._unsorted)}

    def statistics(self, head: int) -> SupplyPulse:
        """Return the report.

        Parked messages count like requeued ones: they are behind the cursor.
        """
        pulse = super().statistics(head)
        parked = self._levels.messages + total(self._unsorted)
        pulse["depth"] += parked
        pulse["requeued_waiting"] += parked
        pulse["parked_count"] = parked
        return pulse
