"""Supply: selects the next message to deliver, and keeps messages that no consumer holds. No I/O.

Once the cursor has passed a message, the message is *behind* the cursor and in one of these states:

    held         sent to one consumer, no handler has begun it (`core.py`)
    begun        a handler has begun it, under a lease (`core.py`)
    again        to be delivered again, once the number of its attempts is committed
                 (`redelivery.py`)
    apart        the same, for messages of lost consumers, which are delivered apart
    deferred     not before a due time (wall clock): only in the state store, once that is
                 committed (`deferred.py`)
    dying        never again: on its way to the dead letters (`dying.py`)
    finished     not kept anywhere

Messages in all states except the last are in *holes*. A hole is a row (start, count, attempts,
due). Holes are committed in the state store together with the cursor. The attempts of a row are how
often a handler has begun the message. A run is a hole without its due time: (start, count,
attempts). The runs of a delivery have the number of that delivery, which is one more. Runs are cut
and joined, and single messages are not touched. So no cost here depends on the number of messages
in a run.

A block that is sent whole is not checked here, because its consumer checks it. All other blocks
are checked before anything is read from them. If a block is not as its producer sent it, memory has
changed it. It is dropped and read from the storage again (`corrupt_count`, `reread`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.errors import E_LIMIT, CorruptBlock, Refused
from ...transport.reports import BlockerRow, TenantRow
from ...transport.settings import ChannelSettings
from ...transport.wire.protocol import Run
from ..primitives.ranges import (
    Range,
    Span,
    above,
    cut_out,
    joined,
    total,
    unread,
    without,
)
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .block_shelf import BlockShelf
from .deferred import Deferred, Row
from .dying import Dead, Dying
from .failures import Cause, Failures
from .filters import (
    COUNTED,
    EXPIRED,
    EXPIRED_RUNS,
    SKIPPED,
    WANTED,
    WITHOUT_EXPIRED,
    ChannelFilter,
    Gathering,
    count_skipped,
)
from .lease import Changes, Hole, Subscriber
from .redelivery import Part, Redelivery, Suspects, collect


class SavedRows:
    """The rows of a channel that are in the state store.

    They are remembered so that a commit contains only the changes.

    There may be ten million deferred rows, so they are not kept here. Instead, the start of each
    row that comes due is remembered until the next commit has begun. That commit writes it as a row
    that is not deferred, or removes it from the state store, depending on what happened in the
    meantime.
    """

    def __init__(self) -> None:
        # Start -> (count, attempts), as in the last commit that began.
        self._rows: dict[int, tuple[int, int]] = {}
        self._came: set[int] = set()  # starts of deferred rows that became due since then

    def found(self, start: int, count: int, attempts: int) -> None:
        """Note a stored row that is not deferred."""
        self._rows[start] = (count, attempts)

    def came(self, rows: Iterable[Row]) -> None:
        """Note the rows that the state store returned as due.

        The next commit must change them in the state store, or remove them.
        """
        self._came.update(row[0] for row in rows)

    def changes(
        self, rows: dict[int, tuple[int, int]], deferred: Sequence[Row]
    ) -> tuple[tuple[Hole, ...], tuple[int, ...]]:
        """Return the rows to write and the starts of rows to remove in the commit that begins.

        Writing a row replaces any other row with the same start, deferred or not.
        """
        saved: Mapping[int, tuple[int, int]] = self._rows
        put = (
            *((start, *row, 0) for start, row in rows.items() if saved.get(start) != row),
            *deferred,
        )
        gone = (saved.keys() | self._came) - rows.keys() - {row[0] for row in deferred}
        self._rows, self._came = rows, set()
        return put, tuple(gone)


def back_over_unbegun(next_offset: int, holes: Iterable[Hole]) -> int:
    """Return the offset to which the cursor goes back at a start.

    All messages from there on that are behind the cursor are in holes, and no handler has begun
    them. So they come again before newer ones, in the order of their offsets.
    """
    unbegun = (hole for hole in holes if not hole[2] and not hole[3])
    starts = {start + count: start for start, count, *_ in unbegun}
    while next_offset in starts:
        next_offset = starts[next_offset]
    return next_offset


TRIED: Final = Cause("it has had all attempts that its channel allows now")


def used(runs: Iterable[Run]) -> list[Run]:
    """Return runs of a delivery with the number of attempts before that delivery."""
    return [(start, count, attempts - 1) for start, count, attempts in runs]


def _next_attempt(runs: Iterable[Run]) -> list[Run]:
    return [(start, count, attempts + 1) for start, count, attempts in runs]


class Picked(NamedTuple):
    """The next messages for a consumer.

    `parts` are parts of blocks. `runs` has their offsets, in the same order.

    `offered` is how many messages were offered to a consumer that takes a sample. In that case
    there may be no runs.
    """

    runs: list[Run]
    parts: list[Part]
    offered: int = 0
    # These messages are suspects, and their consumer holds no others.
    apart: bool = False


class Supply:
    """The messages of a channel that no consumer holds.

    `counters` are the counters of the channel. A parameter `rows_out` is the number of runs in
    flight. `fetch_bytes` is the size of a read for `wanted`.
    """

    fetch_bytes = 1
    goes_back = True  # see `back_over_unbegun`
    parks = False  # True if messages wait behind the cursor before their first delivery

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        holes = tuple(holes)
        # A sample is drawn only before the first delivery, so messages that may be from one are not
        # taken again.
        goes_back = self.goes_back and not counters["sampled_count"]
        # The next offset to take.
        self.next_offset = back_over_unbegun(next_offset, holes) if goes_back else next_offset
        self.window_end = self.next_offset  # the next offset that the feed brings
        self.window_bytes = 0
        self.head = 0  # the end of the topic, as far as it is known here
        self.boot_ns = 0  # the clock of the rates (`rate_limit.py`), as the core set it last
        self.settings = settings
        self.counters = counters
        # Offsets of blocks that a redelivery needs and the shelf lacks.
        self.wanted: set[int] = set()
        self.dirty = False
        self.corrupt_count = 0  # number of blocks that have changed in memory
        self.reread = False  # the next blocks must be read from the storage
        self.choice = choice or ChannelFilter("", settings, lambda: 0.0)
        # Messages that the cursor may still pass in this turn; see `ChannelCore.rest`.
        self.looks = options.LOOKS_MAX
        self.emptied: list[Span] = []
        # Offsets that the log skips, since before this process. They never had a message.
        self.gaps: tuple[Span, ...] = ()
        self.again = Redelivery()
        self.apart = Suspects()
        self.apart_held = False  # the limits of their keys hold all suspects back
        self.failures = Failures()
        self.deferred = deferred
        self.dying = Dying()
        self.moving = False
        """True while a seek is not committed yet.

        Nothing is delivered until the seek is committed. Otherwise a crash could undo a seek that
        consumers have seen.
        """
        self._move_out = False  # True if the commit on its way contains that seek
        self._reached = 0  # position of the cursor before the seek
        self._start = 0  # the topic has no messages below this offset
        self._window: deque[Block] = deque()
        self._shelf = BlockShelf(self.cache_bytes)
        self._saved = SavedRows()
        for start, count, attempts, due_ns in holes:
            if not due_ns:  # deferred rows matter here only for an ordered channel
                self._saved.found(start, count, attempts)
            if start < self.next_offset:
                self._recover((start, count, attempts), due_ns)

    @property
    def cache_bytes(self) -> int:
        """The most bytes of blocks that are kept for redeliveries."""
        return options.CACHE_BYTES_MAX

    def _recover(self, run: Run, due_ns: int) -> None:
        """Take over a stored hole."""
        self.again.returned.extend(self.dying.recover(run, self.settings.max_attempts))

    def living(self, runs: Iterable[Run], cause: Cause) -> list[Run]:
        """Return the messages that may be delivered again.

        The others become dying messages, with this cause.
        """
        cause = cause if cause.error else TRIED
        return self.dying.living(runs, self.settings.max_attempts, cause)

    def configure(self, settings: ChannelSettings) -> None:
        """Apply these settings from now on.

        Messages that no consumer holds and that have used all attempts of the new limit are not
        delivered again.
        """
        self.settings = settings
        self.choice.configure(settings)
        living = partial(self.living, cause=TRIED)
        self.again.keep(living)
        if settings.max_attempts:
            self.apart.keep(living)
        else:
            self.trust()
        self.dirty = True

    def successor(self, kind: type[Supply], settings: ChannelSettings) -> Supply:
        """Return a supply of another kind with all that this one has, which is not used any more.

        What is parked here comes again as if it had been returned. It is sorted again there.
        """
        runs = [*self._parked_runs()]
        supply = kind(self.next_offset, (), self.deferred, self.counters, settings, self.choice)
        names = vars(Supply(0, (), self.deferred, self.counters, settings, self.choice))
        for name in names.keys() - {"settings"}:
            setattr(supply, name, getattr(self, name))
        supply._shelf.max_bytes = supply.cache_bytes
        supply.again.ready.extend(runs)
        supply.configure(settings)
        return supply

    def _parked_runs(self) -> Iterable[Run]:
        """Yield the messages behind the cursor that only this kind of supply has."""
        return ()

    def trust(self) -> None:
        """Deliver suspects like all others."""
        self.again.absorb(self.apart)

    # Blocks

    def offer(self, block: Block, *, from_storage: bool = False) -> bool:
        """Take the next block. Return False if there is a gap before it.

        A block that was taken before is ignored. A gap before a block from the storage means that
        the messages no longer exist (damage, retention). They are counted and skipped.
        """
        if block.next_offset <= self.window_end:
            return True
        if block.first_offset > self.window_end:
            if not from_storage:
                return False
            self.counters["lost_count"] += self._unread(self.window_end, block.first_offset)
            if not self._window:
                self.next_offset = block.first_offset
            self.dirty = True
        self._window.append(block)
        self.window_bytes += block.length
        self._reach(block.next_offset)
        return True

    def step_over(self, next_offset: int) -> None:
        """Skip to `next_offset`: the storage has no messages before it, and never will."""
        if next_offset > self.window_end:
            self.counters["lost_count"] += self._unread(self.window_end, next_offset)
            if not self._window:
                self.next_offset = next_offset
            self._reach(next_offset)
            self.dirty = True

    def skip(self, start: int, stop: int) -> bool:
        """Never deliver these messages, because the topic was emptied of them.

        Messages before this range are still delivered, so the range is kept until the cursor passes
        it. Return True if the feed must now read from another offset.
        """
        return self._skip_ahead(((start, stop),))

    def _skip_ahead(self, spans: Iterable[Span]) -> bool:
        """Never deliver the messages in these ranges that the cursor has not passed.

        Return True if the feed must now read from another offset. Raises `Refused` (E_LIMIT), and
        changes nothing, if this would leave too many ranges.
        """
        ahead = [(max(start, self.next_offset), stop) for start, stop in spans]
        ahead = [(start, stop) for start, stop in ahead if start < stop]
        if not ahead:
            return False
        emptied = [*joined((*self.emptied, *ahead))]
        if len(emptied) > max(options.EMPTIED_MAX, len(self.emptied)):
            text = (
                f"channels keep at most {options.EMPTIED_MAX} ranges of messages to skip that they "
                "have not reached"
            )
            raise Refused(
                E_LIMIT, f"{text}; let the channel's consumers catch up, or empty the channel"
            )
        self.emptied = emptied
        if self.window_end > min(ahead)[0]:
            self.drop_blocks()
        self._reach(self.window_end)
        self.dirty = True
        return True

    def go_on_without(self, emptied: Iterable[Iterable[int]]) -> None:
        """Take over the stored ranges that were emptied and that the cursor has not passed."""
        self.emptied = [(start, stop) for start, stop in emptied]
        self._reach(self.window_end)

    def unsent(self) -> list[Run]:
        """Return the messages behind the cursor that no consumer holds and that can be skipped.

        Deferred messages in the state store are missing. Messages whose dead letters are on their
        way cannot be skipped.
        """
        out = {death.run for death in self.dying.out}
        deferred = (row[:3] for row in self.deferred.rows_here())
        return [run for run in chain(deferred, *self.shown().values()) if run not in out]

    def ahead(self, ranges: Iterable[Range], head: int) -> tuple[Range, ...]:
        """Return the parts of these ranges from the cursor to `head` that may be delivered."""
        spans = (
            (max(first, self.next_offset), min(first + count, head)) for first, count in ranges
        )
        absent = ((start, stop - start) for start, stop in self.absent())
        return without(((start, stop - start) for start, stop in spans if start < stop), absent)

    def skip_messages(self, ranges: Sequence[Range], deferred: Sequence[Row]) -> bool:
        """Never deliver these messages, because a user has skipped them.

        The ranges are ascending and disjoint, and have no dead letters on their way. `deferred` are
        the deferred rows in the state store that have some of the messages. Return True if the
        feed must now read from another offset. Raises `Refused` as `_skip_ahead` does.
        """
        moved = self._skip_ahead((first, first + count) for first, count in ranges)
        for waiting in (self.again, self.apart):
            waiting.keep(lambda runs: cut_out(runs, ranges))
        self.dying.cut_out(ranges)
        self._saved.came(deferred)
        self.deferred.cut_out(deferred, ranges)
        self.done([(first, count, 0) for first, count in ranges])
        return moved

    def _mask(self, block: Block, wall_ns: int) -> bytes | None:
        """Return the mask of the wanted messages, see `ChannelFilter.mask`."""
        # Those that are parked become dead letters when their turn comes. An ordered channel then
        # goes on with their key after that.
        ends = not (self.parks and self.settings.dead_letter_expired)
        mask = self.choice.mask(block, wall_ns, ends=ends)
        for start, stop in self._emptied_in(block):
            low = max(0, start - block.first_offset)
            high = min(block.count, stop - block.first_offset)
            mask = mask or bytes(block.count)
            mask = mask[:low] + bytes([SKIPPED]) * (high - low) + mask[high:]
        return mask

    def _emptied_in(self, block: Block) -> list[Span]:
        return [
            span
            for span in self.emptied
            if span[0] < block.next_offset and span[1] > block.first_offset
        ]

    def _forget_passed(self) -> None:
        """Forget the emptied ranges that the cursor has passed. A later seek back delivers them."""
        self.emptied = [span for span in self.emptied if span[1] > self.next_offset]

    def _reach(self, end: int) -> None:
        """Set the end of the window to `end`, or to the end of the emptied range that contains
        `end`.
        """
        for start, stop in self.emptied:
            if start <= end < stop:
                end = stop
        self.window_end = end
        if not self._window:
            self.next_offset = end

    def _unread(self, start: int, stop: int) -> int:
        """Return the number of messages in this range, without emptied ones."""
        return unread(start, stop, self.absent())

    def absent(self) -> tuple[Span, ...]:
        """Return the spans from the cursor on that have no message for this channel."""
        return joined((*self.emptied, *(gap for gap in self.gaps if gap[1] > self.next_offset)))

    def gaps_from(self, offset: int) -> int:
        """Return how many offsets from `offset` on are in gaps."""
        return sum(stop - max(start, offset) for start, stop in self.gaps if stop > offset)

    def shelve(self, block: Block) -> None:
        """Keep a block that was requested through `wanted`."""
        self._shelf.put(block)
        self.wanted.difference_update(
            [o for o in self.wanted if block.first_offset <= o < block.next_offset]
        )

    def lost(self, start: int, stop: int) -> None:
        """Note that the storage has no messages in this range. They are never delivered."""
        self.wanted.difference_update([o for o in self.wanted if start <= o < stop])
        self.counters["lost_count"] += sum(
            waiting.lost(start, stop) for waiting in (self.again, self.apart, self.dying)
        )
        self.dirty = True

    def drop_blocks(self) -> None:
        """Free the memory of blocks. The window is read again later."""
        self._window.clear()
        self.window_bytes = 0
        self._reach(self.next_offset)
        self.wanted.clear()
        if not self.dying:  # dead letters need their blocks even without a consumer
            self._shelf.clear()

    def _find(self, offset: int) -> Block | None:
        block = self._shelf.find(offset)
        if (
            block is None
            and self._window
            and self._window[0].first_offset <= offset < self._window[0].next_offset
        ):
            block = self._window[0]
        return block if block is not None and self._is_sound(block) else None

    def _is_sound(self, block: Block) -> bool:
        """Check the block if that was not done before. Drop it if memory has changed it."""
        if block.was_checked:
            return True
        try:
            block.check()
        except CorruptBlock:
            self.corrupt_count += 1
            self._shelf.drop(block)
            if block in self._window:
                self.drop_blocks()
                self.reread = True
            return False
        return True

    def take_back(self, runs: Iterable[Run]) -> None:
        """Take back picked messages whose blocks changed in memory after they were checked.

        All blocks held here are dropped. The messages are sent once the blocks are read again, and
        this does not count as an attempt.
        """
        self.again.ready.extendleft(reversed(used(runs)))
        self._distrust()

    def _distrust(self) -> None:
        self.corrupt_count += 1
        self._shelf.clear()
        self.drop_blocks()
        self.reread = True
        self.dirty = True

    @property
    def waiting_rows(self) -> int:
        """The number of rows behind the cursor that no consumer holds, without deferred ones."""
        return self.again.rows + self.apart.rows + self.dying.rows

    # Out

    def share(self, takers: int, in_flight: int, rows_out: int, wall_ns: int) -> int:
        """Return the share of one consumer, in messages, or 0 for no limit.

        Consumers that hold fewer messages than this come first.
        """
        return 0

    def begin_turn(self) -> None:
        """Reset the limits of what one turn may examine."""
        self.looks = options.LOOKS_MAX

    def look_ahead(self, rows_out: int, wall_ns: int) -> None:
        """Examine messages that are delivered later, while consumers want messages."""

    def has_more(self) -> bool:
        """Return True if this turn has reached its limits, so that another one should follow."""
        return self.looks <= 0

    def has_ready(self) -> bool:
        """Return True if messages wait that could be sent now, or after the next commit."""
        return bool(self.again.rows or self.apart.rows) or self._has_new(0)

    def pick(self, consumer: Subscriber, room: int, rows_out: int, wall_ns: int) -> Picked | None:
        """Return the next messages for this consumer, at most `room`.

        Return None if no message waits, or if the cursor may not pass more messages in this turn.
        """
        new = self._has_new(rows_out)
        if self.again.ready and not (new and consumer.again_last):
            quota = min(room, max(1, consumer.ready // 2)) if new else room
            lead = partial(self._lead, wall_ns)
            parts, runs = collect(
                self.again.ready,
                min(quota, options.GATHER_COUNT_MAX),
                self._find,
                self.wanted,
                lead,
            )
            if runs:
                consumer.again_last = True
                return Picked(_next_attempt(runs), parts)
        consumer.again_last = False
        return self._new(consumer, room, wall_ns) if new else None

    def pick_apart(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Return the next suspects for this consumer, which holds no messages, or None."""
        if not self.apart.ready:
            return None
        quota = min(room, self.apart.quota())
        lead = partial(self._lead, wall_ns)
        parts, runs = collect(self.apart.ready, quota, self._find, self.wanted, lead)
        consumer.again_last = True
        return Picked(_next_attempt(runs), parts, apart=True) if runs else None

    def _lead(self, wall_ns: int, block: Block, run: Run) -> tuple[int, int]:
        """Give up the messages at the start of this run that have ended.

        Return how many these are, and, if there are none, how many messages may be delivered.
        """
        first, count, attempts = run
        at = first - block.first_offset
        reason, alike = self.first_of(block, at, count, wall_ns)
        if reason == WANTED:
            return 0, alike
        self.give_up((first, alike, attempts), reason)
        return alike, 0

    def first_of(self, block: Block, at: int, count: int, wall_ns: int) -> tuple[int, int]:
        """Return the ending of the message at this index, or WANTED, and how many have the same.

        Only up to `count` messages are looked at.
        """
        mask = self.choice.endings.mask(block, wall_ns)
        if mask is None:
            return WANTED, count
        reason, stop = mask[at], at + 1
        while stop < at + count and mask[stop] == reason:
            stop += 1
        return reason, stop - at

    def give_up(self, run: Run, reason: int) -> None:
        """Finish messages that have ended, or let them become dead letters."""
        self.dirty = True
        if reason == EXPIRED and self.settings.dead_letter_expired:
            self.dying.expire((run,))
            return
        self.counters[COUNTED[reason]] += run[1]
        self.done((run,))

    def _has_new(self, rows_out: int) -> bool:
        return bool(self._window) and self._may_give_new(rows_out)

    def _may_give_new(self, rows_out: int) -> bool:
        rows = rows_out + self.waiting_rows + self.deferred.uncommitted
        return rows < options.HOLE_ROWS_MAX and not self.deferred.is_full()

    def _new(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Take messages of the window's first block, as many as fit.

        If some messages of a block are unwanted, gather the wanted ones of several blocks.
        """
        gathering: Gathering | None = None
        while self._window and self.looks > 0:
            block = self._window[0]
            # Skip a gap, if there is one.
            self.next_offset = max(self.next_offset, block.first_offset)
            fits = (
                room >= block.count
                and self.next_offset == block.first_offset
                and not consumer.sample_rate
            )
            takes_all = self.choice.takes_all(block) and not self._emptied_in(block)
            if not (fits and takes_all) and not self._is_sound(block):
                break
            mask = self._mask(block, wall_ns)
            if mask is None and not consumer.sample_rate:
                if gathering is None or not gathering.runs:
                    return self._cut(block, room)
                break
            gathering = gathering or self.choice.gathering(consumer.sample_rate, room)
            if self._gather(gathering, block, mask):
                break
        if gathering is None or not gathering.offered:
            return None
        self.counters["sampled_count"] += gathering.left_out
        consumer.sampled_count += gathering.left_out
        return Picked(gathering.runs, gathering.parts, gathering.offered)

    def _gather(self, gathering: Gathering, block: Block, mask: bytes | None) -> bool:
        """Let the cursor pass the window's first block as far as the delivery has room.

        Return True if the delivery is full.
        """
        start = self.next_offset - block.first_offset
        stop = gathering.add(block, start, mask or bytes(block.count))
        if mask is not None:
            self._pass_over(block, mask, start, stop)
        self.looks -= stop - start + options.LOOK_BLOCK
        self._advance(block, stop)
        self.dirty = True
        return stop < block.count

    def _pass_over(self, block: Block, mask: bytes, start: int, stop: int) -> None:
        """Count the unwanted messages between these indexes, which the cursor passes.

        Expired ones may become dead letters instead.
        """
        if self.settings.dead_letter_expired:
            for match in EXPIRED_RUNS.finditer(mask, start, stop):
                low, high = match.span()
                self.dying.expire([(block.first_offset + low, high - low, 0)])
            mask = mask.translate(WITHOUT_EXPIRED)
        count_skipped(self.counters, mask, start, stop)

    def _cut(self, block: Block, room: int) -> Picked:
        start = self.next_offset - block.first_offset
        stop = min(block.count, start + room)
        run = (self.next_offset, stop - start, 1)
        self._advance(block, stop)
        return Picked([run], [(block, start, stop)])

    def _advance(self, block: Block, stop: int) -> None:
        """Let the cursor pass the first `stop` messages of the window's first block."""
        self.next_offset = block.first_offset + stop
        if stop == block.count:
            self._window.popleft()
            self.window_bytes -= block.length
            self._passed(block)
            if not self._window:
                # Also skip lost messages after this block, because they never come.
                self.next_offset = self.window_end

    def _passed(self, block: Block) -> None:
        """Keep a block that the cursor has passed, for redeliveries."""
        self._shelf.put(block)

    def limit_due_ns(self) -> int:
        """Return when a limit allows the next message that it withholds, by the clock of boot
        time, or 0 for never.
        """
        return 0

    # Back

    def done(self, runs: Sequence[Run]) -> None:
        """Note that these messages are finished, for any reason."""
        self.dirty = True

    def back(self, runs: Sequence[Run], cause: Cause) -> None:
        """Deliver these messages again, at once.

        The runs have the number of attempts that they have used. `cause` says what
        happened to the last delivery.
        """
        self.failures.note(runs, cause)
        self.again.returned.extend(self.living(runs, cause))

    def suspect(self, runs: Sequence[Run], cause: Cause) -> None:
        """Deliver these messages of a lost consumer again, apart from others."""
        self.failures.note(runs, cause)
        self.apart.returned.extend(self.living(runs, cause))

    def later(self, runs: Sequence[Run], due_ns: int, cause: Cause) -> None:
        """Deliver these messages again, but not before `due_ns` (wall clock)."""
        self.failures.note(runs, cause)
        self.deferred.put(self.living(runs, cause), due_ns)

    def reject(self, runs: Sequence[Run], cause: Cause) -> None:
        """Never deliver these messages again."""
        self.failures.note(runs, cause)
        self.dying.reject(runs, cause)

    # Dying messages

    def next_dead(self) -> list[Dead]:
        """Return the next batch for the dead letters. Call this only if no batch is on its way."""
        return self.dying.pick(self._find, self.wanted)

    def take_back_dead(self) -> None:
        """Take back the batch, because its blocks changed in memory.

        The batch waits until the blocks are read again.
        """
        self.dying.take_back()
        self._distrust()

    def dead(self) -> None:
        """Finish the batch of dead letters, which is durable now."""
        runs = self.dying.stored()
        self.counters["dead_letter_count"] += total(runs)
        self.done(runs)
        self.dirty = True

    # The scan

    def scan(self, wall_ns: int, rows_out: int) -> bool:
        """Process the messages that became due. Return True if there were any."""
        wanted = self.deferred.wanted
        due = self.deferred.due(wall_ns, rows_out + self.waiting_rows)
        self.again.returned.extend(self.living(due, TRIED))
        self.dirty = self.dirty or bool(due)
        return bool(due) or self.deferred.wanted > wanted

    def came_due(self, rows: Sequence[Row], next_due_ns: int, wall_ns: int) -> None:
        """Take the due rows that the state store returned.

        They are delivered again once they are no longer deferred in the state store.
        """
        self._saved.came(rows)
        self.again.returned.extend(
            self.living(self.deferred.came(rows, next_due_ns, wall_ns), TRIED)
        )
        self.dirty = self.dirty or bool(rows)

    def may_ask(self, rows_out: int) -> bool:
        """Return True if the state store should be asked what is due."""
        return self.deferred.may_ask(rows_out + self.waiting_rows)

    def next_due(self, wall_ns: int, rows_out: int) -> int:
        """Return when the next scan has work, in wall-clock nanoseconds, or 0 for never."""
        return self.deferred.next_due(wall_ns, rows_out + self.waiting_rows)

    # Commits

    @property
    def waits_for_commit(self) -> bool:
        """True if messages came back since the last commit began."""
        return bool(self.again.returned or self.apart.returned)

    def changes(self, out: Iterable[Run]) -> Changes:
        """Return the changes since the last call.

        `out` are the runs that consumers hold, with the number of attempts that they have used.
        """
        for waiting in (self.again, self.apart):
            waiting.returned = self._still_there(waiting.returned)
            waiting.begin_commit()
        rows = {start: (count, attempts) for start, count, attempts in out}
        rows.update((start, (count, attempts)) for start, count, attempts in self._waiting_rows())
        deferred, clear = self.deferred.take()
        put, gone = self._saved.changes(rows, deferred)
        self._forget_passed()
        self.dirty = False
        self._move_out = self.moving
        return Changes(self.next_offset, put, gone, clear)

    def _waiting_rows(self) -> Iterable[Run]:
        """Return the rows behind the cursor that no consumer holds, without deferred ones."""
        return chain(self.again.unsent(), self.apart.unsent(), self.dying.unstored())

    def committed(self) -> None:
        """Note that the last `changes` are on disk.

        Their redeliveries may be sent, and their seek is done.
        """
        self.again.committed()
        self.apart.committed()
        self.deferred.committed()
        self.moving = self.moving and not self._move_out
        self._move_out = False

    # Moves

    def seek(self, offset: int) -> None:
        """Continue at `offset` once the seek is committed, and forget all messages held until
        now.
        """
        self._reached = self._reached if self.moving else self.next_offset
        self.moving, self._move_out = True, False
        self.again.clear()
        self.apart.clear()
        self.dying.clear()
        self.deferred.clear()
        self.failures.clear()
        self._forget_passed()
        self.next_offset = offset
        self.drop_blocks()
        self.dirty = True

    def drop_below(self, start: int) -> bool:
        """Give up and count the messages below `start`, which retention has removed.

        Consumers keep the messages that they hold until they answer. The channel then finds that
        the messages are gone. Return True if the next message has changed.
        """
        self._start = max(self._start, start)
        for waiting in (self.again, self.apart):
            waiting.ready = deque(self._still_there(waiting.ready))
            waiting.committing = self._still_there(waiting.committing)
        self.counters["dropped_count"] += self.dying.drop_below(start)
        self.wanted = {offset for offset in self.wanted if offset >= start}
        self.dirty = True
        if self.next_offset >= start:
            return False
        # A seek back to messages that are being removed is answered with `start`. Messages that the
        # channel had passed before that seek do not count as dropped.
        passed = self._reached if self.moving else 0
        first = min(start, max(self.next_offset, passed))
        self.counters["dropped_count"] += self._unread(first, start)
        self.next_offset = start
        self.drop_blocks()
        return True

    def _still_there(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that are not below the start. Finish and count the others."""
        kept, below = above(runs, self._start)
        self.counters["dropped_count"] += total(below)
        if below:
            self.done(below)
        return kept

    # Reports

    def shown(self) -> dict[str, Iterator[Run]]:
        """Return the runs that no consumer holds, by state, for a peek.

        The run that is sent next comes first. Each run has the number of its last attempt. Deferred
        runs are not included.
        """
        dying = (death.run for death in chain(self.dying.out, self.dying.waiting))
        return {"requeued": chain(self.apart.unsent(), self.again.unsent()), "dying": dying}

    def blocking(self, limit: int) -> dict[int, int]:
        """Return messages that others of their key wait for, with the number of those that wait.

        Those that have failed come first, and then those that most others wait for.
        """
        return {}

    def blockers(self) -> tuple[BlockerRow, ...]:
        """Return the blocking messages that have failed, as far as that is remembered."""
        return ()

    def starts(self) -> Iterator[int]:
        """Yield the starts of the rows behind the cursor that no consumer holds.

        Deferred rows are not included.
        """
        return (run[0] for run in self._waiting_rows())

    def tenants(self) -> tuple[TenantRow, ...]:
        """Return the keys, or tags, of a fair channel with the most waiting messages."""
        return ()

    def statistics(self, head: int) -> SupplyPulse:
        """Return the report. `depth` counts waiting messages, but not those in flight or
        deferred.
        """
        again = self.again.messages() + self.apart.messages()
        return {
            "depth": self._unread(self.next_offset, head) + again,
            "backend_depth": self._unread(self.window_end, head),
            "absent": self.absent(),
            "deferred_count": self.deferred.messages,
            "deferred_full": self.deferred.is_full(),
            "dying_count": self.dying.messages(),
            "next_offset": self.next_offset,
            "tenant_count": 0,
            "requeued_waiting": again,
            "window_end": self.window_end,
        }
