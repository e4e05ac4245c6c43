"""Where a channel's messages come from, and where those are that nobody holds. Pure.

Where a message can be, once the cursor has passed it:

    in flight    under a lease of one consumer (`consumer_session.py`)
    again        to be delivered again, once its next attempt number is committed (`redelivery.py`)
    deferred     not before a due time (wall clock): in the state store only, once that is committed (`redelivery.py`)
    dying        never again: on its way to the dead letters (`redelivery.py`)
    finished     nowhere any more

All but the last are *holes*: rows (start, count, attempts, due) that are committed in the state store with the cursor. A row's
attempts is the highest number under which the message may have been sent, so after a crash numbers never fall.
Nothing here depends on how many messages a run has: runs are cut and joined, messages are not touched.

A block that goes out whole is not checked here: its consumer does that. All others are checked before anything is read from them. Where
one is not as its producer sent it, memory has changed it: it is forgotten, and read from storage (`corrupt_count`, `reread`).

What of a channel's rows lies in the state store, so that a commit names only what changed. Pure.

Rows of deferred messages are not kept here, for there may be ten million of them. So of those that come due each start is remembered
until the next commit has begun: that one writes them as live rows, or takes them from the store, whatever became of them meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from ...transport.block.block import Block
from ...transport.errors import E_LIMIT, CorruptBlock, Refused
from ...transport.settings import ChannelSettings
from ...transport.wire.protocol import Run
from ..primitives.ranges import above, total, unread
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .filters import ChannelFilter, Gathering, count_skipped
from .lease import Changes, Hole, Subscriber
from .redelivery import BlockShelf, Dead, Deferred, Dying, Part, Redelivery, Row, collect


class SavedRows:
    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, int]] = {}  # start -> count, attempts; as of the last commit that began
        self._came: set[int] = set()  # starts of deferred rows that came due since

    def found(self, start: int, count: int, attempts: int) -> None:
        """A predecessor's row, not deferred."""
        self._rows[start] = (count, attempts)

    def came(self, rows: Iterable[Row]) -> None:
        """The store named them as due: it is not to keep them as they are."""
        self._came.update(row[0] for row in rows)

    def changes(self, rows: dict[int, tuple[int, int]], deferred: Sequence[Row]) -> tuple[tuple[Hole, ...], tuple[int, ...]]:
        """(rows to write, starts of rows to remove) of the commit that begins: after it these are there. A put of a start is enough where
        another row of it was, deferred or not."""
        saved: Mapping[int, tuple[int, int]] = self._rows
        put = (*((start, *row, 0) for start, row in rows.items() if saved.get(start) != row), *deferred)
        gone = (saved.keys() | self._came) - rows.keys() - {row[0] for row in deferred}
        self._rows, self._came = rows, set()
        return put, tuple(gone)


TRIED: Final = "it was delivered as often as its channel allows by now"

Span = tuple[int, int]  # offsets: from, to


class Picked(NamedTuple):
    """What a consumer gets next: runs in the order of the parts, and the parts of blocks they lie in.

    `offered`: how many came its way, where it takes a sample of them; there may be no runs then.
    """

    runs: list[Run]
    parts: list[Part]
    offered: int = 0


class Supply:
    """`counters` are the channel's. `rows_out`, where it is asked for: how many runs are in flight.

    `fetch_bytes`: of a read for `wanted`.
    """

    fetch_bytes = 1

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        self.next_offset = next_offset  # the next to take
        self.window_end = next_offset  # the next to come from the feed
        self.window_bytes = 0
        self.settings = settings
        self.counters = counters
        self.wanted: set[int] = set()  # offsets whose blocks are needed for a redelivery and not on the shelf
        self.dirty = False
        self.corrupt_count = 0  # how many blocks were found changed in memory
        self.reread = False  # what comes next is to be read from storage, wherever it would come from
        self.choice = choice or ChannelFilter("", settings, lambda: 0.0)
        self.looks = options.LOOKS_MAX  # how many messages may still be passed in this turn; see `Delivery.rest`
        self.emptied: list[Span] = []
        self.again = Redelivery()
        self.deferred = deferred
        self.dying = Dying()
        self.moving = False
        """A seek is not committed yet. Nothing is delivered until it is: else a crash could undo a seek that consumers have seen."""
        self._move_out = False  # that seek goes with the commit that is on its way
        self._reached = 0  # where the cursor was before it
        self._start = 0  # nothing below it is there any more
        self._window: deque[Block] = deque()
        self._shelf = BlockShelf(options.CACHE_BYTES_MAX)
        self._saved = SavedRows()
        for start, count, attempts, due_ns in holes:
            if not due_ns:  # deferred rows are known here only where their order matters
                self._saved.found(start, count, attempts)
            self._recover((start, count, attempts), due_ns)

    def _recover(self, run: Run, due_ns: int) -> None:
        """A hole that was committed before this life began."""
        self.again.returned.extend(self.dying.recover(run, self.settings.max_attempts))

    def living(self, runs: Iterable[Run], cause: str) -> list[Run]:
        """Those that may be delivered again; the others begin to die, for what their last delivery came to."""
        return self.dying.living(runs, self.settings.max_attempts, cause)

    def configure(self, settings: ChannelSettings) -> None:
        """From now on. What is with nobody and has had its attempts by the new rule is not delivered again."""
        self.settings = settings
        self.choice.configure(settings)
        self.again.keep(partial(self.living, cause=TRIED))
        self.dirty = True

    # Blocks

    def offer(self, block: Block, *, from_storage: bool = False) -> bool:
        """The next block: taken if it is the expected one, ignored if older, False if there is a gap.

        What storage skips does not exist any more (damage, retention): it is counted and stepped over.
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
        """Storage has nothing from the window's end to there, and never will."""
        if next_offset > self.window_end:
            self.counters["lost_count"] += self._unread(self.window_end, next_offset)
            if not self._window:
                self.next_offset = next_offset
            self._reach(next_offset)
            self.dirty = True

    def skip(self, start: int, stop: int) -> bool:
        """Never deliver these: the topic was emptied of them. True if the feed has to go on elsewhere now.

        What lies before them is still delivered, so they are kept until the cursor passes them.
        """
        start = max(start, self.next_offset)
        if start >= stop:
            return False
        if len(self.emptied) >= options.EMPTIED_MAX and start > self.emptied[-1][1]:
            text = f"{options.EMPTIED_MAX} ranges that the topic was emptied of lie before this channel; let it catch up, or empty it too"
            raise Refused(E_LIMIT, text)
        if self.emptied and start <= self.emptied[-1][1]:
            last = self.emptied.pop()
            start, stop = min(start, last[0]), max(stop, last[1])
        self.emptied.append((start, stop))
        if self.window_end > start:
            self.drop_blocks()
        self._reach(self.window_end)
        self.dirty = True
        return True

    def go_on_without(self, emptied: Iterable[Iterable[int]]) -> None:
        """Take over the ranges that a predecessor was told to skip and had not passed."""
        self.emptied = [(start, stop) for start, stop in emptied]
        self._reach(self.window_end)

    def _forget_passed(self) -> None:
        """Who seeks back to what was emptied before wants it again."""
        self.emptied = [span for span in self.emptied if span[1] > self.next_offset]

    def _reach(self, end: int) -> None:
        """The window ends here, or behind what was emptied from here on."""
        for start, stop in self.emptied:
            if start <= end < stop:
                end = stop
        self.window_end = end
        if not self._window:
            self.next_offset = end

    def _unread(self, start: int, stop: int) -> int:
        """How many messages these are, without emptied ones."""
        return unread(start, stop, self.emptied)

    def shelve(self, block: Block) -> None:
        """A block that was asked for through `wanted`."""
        self._shelf.put(block)
        self.wanted.difference_update([o for o in self.wanted if block.first_offset <= o < block.next_offset])

    def lost(self, start: int, stop: int) -> None:
        """Storage has nothing at these offsets: they will never be delivered."""
        self.wanted.difference_update([o for o in self.wanted if start <= o < stop])
        self.counters["lost_count"] += self.again.lost(start, stop) + self.dying.lost(start, stop)
        self.dirty = True

    def drop_blocks(self) -> None:
        """Give the memory back: what is in the window will be read again."""
        self._window.clear()
        self.window_bytes = 0
        self._reach(self.next_offset)
        self.wanted.clear()
        if not self.dying:  # which needs no consumer, but blocks
            self._shelf.clear()

    def _find(self, offset: int) -> Block | None:
        block = self._shelf.find(offset)
        if block is None and self._window and self._window[0].first_offset <= offset < self._window[0].next_offset:
            block = self._window[0]
        return block if block is not None and self._is_sound(block) else None

    def _is_sound(self, block: Block) -> bool:
        """Check the block unless that was done; forget it if memory has changed it."""
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
        """These were picked and could not be sent, for their blocks changed in memory after they were checked. Nothing that is here is
        trusted any more. They go out once all is read again, and this does not count as an attempt."""
        self.again.waiting.extendleft([(start, count, attempts - 1) for start, count, attempts in reversed(list(runs))])
        self._distrust()

    def _distrust(self) -> None:
        self.corrupt_count += 1
        self._shelf.clear()
        self.drop_blocks()
        self.reread = True
        self.dirty = True

    @property
    def held(self) -> int:
        """Rows behind the cursor that nobody holds, without deferred ones."""
        return self.again.rows + self.dying.rows

    # Out

    def share(self, takers: int, in_flight: int, rows_out: int, wall_ns: int) -> int:
        """How much a consumer may hold before others that hold less come first; 0: as much as it takes."""
        return 0

    def pick(self, consumer: Subscriber, room: int, rows_out: int, wall_ns: int) -> Picked | None:
        """The next up to `room` messages for this consumer; None when nothing waits, or in this turn nothing more is to be looked at."""
        new = self._has_new(rows_out)
        if self.again.ready and not (new and consumer.again_last):
            quota = min(room, max(1, consumer.ready // 2)) if new else room
            expire = partial(self._expire, wall_ns)
            parts, runs = collect(self.again.ready, min(quota, options.GATHER_COUNT_MAX), self._find, self.wanted, expire)
            if runs:
                consumer.again_last = True
                return Picked(runs, parts)
        consumer.again_last = False
        return self._new(consumer, room, wall_ns) if new else None

    def _expire(self, wall_ns: int, block: Block, run: Run) -> bool:
        """These are not delivered again, if they are too old by now."""
        found = self.choice.is_too_old(block, wall_ns)
        if found:
            self.counters["expired_count"] += run[1]
            self.done((run,))
        return found

    def _has_new(self, rows_out: int) -> bool:
        rows = rows_out + self.held + self.deferred.uncommitted
        return bool(self._window) and rows < options.HOLE_ROWS_MAX and not self.deferred.is_full()

    def _new(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Of the window's first block, as much as there is room for; of blocks that are not wanted whole, what is, gathered."""
        gathering: Gathering | None = None
        while self._window and self.looks > 0:
            block = self._window[0]
            self.next_offset = max(self.next_offset, block.first_offset)  # over a gap, where there is one
            whole = room >= block.count and self.next_offset == block.first_offset and not consumer.sample_rate
            if not (whole and self.choice.takes_all(block)) and not self._is_sound(block):
                break
            mask = self.choice.mask(block, wall_ns)
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
        """The window's first block is passed, as far as the delivery has room. True: it has no more."""
        start = self.next_offset - block.first_offset
        stop = gathering.add(block, start, mask or bytes(block.count))
        if mask is not None:
            count_skipped(self.counters, mask, start, stop)
        self.looks -= stop - start + options.LOOK_BLOCK
        self._advance(block, stop)
        self.dirty = True
        return stop < block.count

    def _cut(self, block: Block, room: int) -> Picked:
        start = self.next_offset - block.first_offset
        stop = min(block.count, start + room)
        run = (self.next_offset, stop - start, 1)
        self._advance(block, stop)
        return Picked([run], [(block, start, stop)])

    def _advance(self, block: Block, stop: int) -> None:
        """The cursor passes the first `stop` messages of the window's first block."""
        self.next_offset = block.first_offset + stop
        if stop == block.count:
            self._window.popleft()
            self.window_bytes -= block.length
            self._shelf.put(block)
            if not self._window:
                self.next_offset = self.window_end  # over what is lost behind it, too: else that would wait there for ever

    # Back

    def done(self, runs: Sequence[Run]) -> None:
        """These are finished, in whatever way."""
        self.dirty = True

    def back(self, runs: Sequence[Run], cause: str) -> None:
        """These are to be delivered again, at once. `cause`: what became of the last delivery, in a sentence."""
        self.again.returned.extend(self.living(runs, cause))

    def later(self, runs: Sequence[Run], due_ns: int, cause: str) -> None:
        """... not before a time (wall clock)."""
        self.deferred.put(self.living(runs, cause), due_ns)

    def reject(self, runs: Sequence[Run], cause: str) -> None:
        """... never."""
        self.dying.reject(runs, cause)

    # The dying

    def next_dead(self) -> list[Dead]:
        """What shall go to the dead letters next, while nothing is on its way there."""
        return self.dying.pick(self._find, self.wanted)

    def take_back_dead(self) -> None:
        """The blocks of this batch changed in memory: it waits until they are read again."""
        self.dying.take_back()
        self._distrust()

    def dead(self) -> None:
        """What was on its way is there, durable: it is finished."""
        runs = self.dying.stored()
        self.counters["dead_letter_count"] += total(runs)
        self.done(runs)
        self.dirty = True

    # The scan

    def scan(self, wall_ns: int, rows_out: int) -> bool:
        """What came due. True if there was any."""
        wanted = self.deferred.wanted
        due = self.deferred.due(wall_ns, rows_out + self.held)
        self.again.returned.extend(self.living(due, TRIED))
        self.dirty = self.dirty or bool(due)
        return bool(due) or self.deferred.wanted > wanted

    def came_due(self, rows: Sequence[Row], next_due_ns: int, wall_ns: int) -> None:
        """The store's answer: these are to be delivered again, once they are no longer deferred there."""
        self._saved.came(rows)
        self.again.returned.extend(self.living(self.deferred.came(rows, next_due_ns, wall_ns), TRIED))
        self.dirty = self.dirty or bool(rows)

    def may_ask(self, rows_out: int) -> bool:
        """The store shall be asked what is due."""
        return self.deferred.may_ask(rows_out + self.held)

    def next_due(self, wall_ns: int, rows_out: int) -> int:
        """When the next scan has something to do, in wall ns; 0 for never."""
        return self.deferred.next_due(wall_ns, rows_out + self.held)

    # Commits

    def to_promise(self, room: int) -> int:
        """How many messages the next commit shall promise their next numbers, where consumers have room for so many now.

        Where attempts are bounded no more than that are promised: after a crash a promised delivery counts as one that was made.
        """
        bound = room if self.settings.max_attempts else options.PROMISED_MAX
        return self.again.to_promise(min(bound, options.PROMISED_MAX))

    def changes(self, out: Iterable[Run], promise: int) -> Changes:
        """What changed since the last call. `out`: what is in flight; `promise`: so many of those that wait get their next number."""
        self.again.waiting = deque(self._still_there(self.again.waiting))
        self.again.returned = self._still_there(self.again.returned)
        self.again.promise(promise)
        rows = {start: (count, attempts) for start, count, attempts in out}
        rows.update((start, (count, attempts)) for start, count, attempts in self._held())
        deferred, clear = self.deferred.take()
        put, gone = self._saved.changes(rows, deferred)
        self._forget_passed()
        self.dirty = False
        self._move_out = self.moving
        return Changes(self.next_offset, put, gone, clear)

    def _held(self) -> Iterable[Run]:
        """What is behind the cursor, with nobody, and not deferred; as rows of the commit that begins."""
        return chain(self.again.unsent(), self.dying.unstored())

    def committed(self) -> None:
        """The last `changes` are on disk: their redeliveries may be sent, and what a seek among them moved to."""
        self.again.committed()
        self.deferred.committed()
        self.moving = self.moving and not self._move_out
        self._move_out = False

    def end(self) -> None:
        """In order: nothing is sent any more, and rows say under which number their messages were really sent last."""
        self.dirty = self.again.take_back() or self.dirty

    # Moves

    def seek(self, offset: int) -> None:
        """Go on at `offset` once that is committed, and clear all before it."""
        self._reached = self._reached if self.moving else self.next_offset
        self.moving, self._move_out = True, False
        self.again.clear()
        self.dying.clear()
        self.deferred.clear()
        self._forget_passed()
        self.next_offset = offset
        self.drop_blocks()
        self.dirty = True

    def drop_below(self, start: int) -> bool:
        """Nothing below `start` is there any more, the topic's bound has taken it: what waits is given up, and counted.

        What consumers hold is theirs until they answer; only then it is found to be gone. True if the next message is another now.
        """
        self._start = max(self._start, start)
        self.again.ready = deque(self._still_there(self.again.ready))
        self.again.promising = self._still_there(self.again.promising)
        self.counters["dropped_count"] += self.dying.drop_below(start)
        self.wanted = {offset for offset in self.wanted if offset >= start}
        self.dirty = True
        if self.next_offset >= start:
            return False
        # A seek that goes back to what is being removed is answered with `start`. What the channel had passed before is not lost to it.
        passed = self._reached if self.moving else 0
        first = min(start, max(self.next_offset, passed))
        self.counters["dropped_count"] += self._unread(first, start)
        self.next_offset = start
        self.drop_blocks()
        return True

    def _still_there(self, runs: Iterable[Run]) -> list[Run]:
        """What is not below the start; the rest is counted."""
        kept, below = above(runs, self._start)
        self.counters["dropped_count"] += total(below)
        if below:
            self.done(below)
        return kept

    # What it looks like from outside

    def shown(self) -> dict[str, Iterator[Run]]:
        """What is behind the cursor with nobody, by its state, the next to go out first, with the number of its last delivery; for a peek.
        Without deferred ones."""
        ready = ((start, count, attempts - 1) for start, count, attempts in self.again.ready)
        dying = (death.run for death in chain(self.dying.out, self.dying.waiting))
        return {"requeued": chain(ready, self.again.promising, self.again.waiting, sorted(self.again.returned)), "dying": dying}

    def starts(self) -> Iterator[int]:
        """Where what is behind the cursor begins, with nobody, and not deferred."""
        return (run[0] for run in self._held())

    def statistics(self, head: int) -> SupplyPulse:
        """`depth`: waiting, neither in flight nor deferred."""
        again = self.again.messages()
        return {
            "depth": self._unread(self.next_offset, head) + again,
            "backend_depth": self._unread(self.window_end, head),
            "emptied": tuple(self.emptied),
            "deferred_count": self.deferred.messages,
            "deferred_full": self.deferred.is_full(),
            "dying_count": self.dying.messages(),
            "next_offset": self.next_offset,
            "requeued_waiting": again,
            "window_end": self.window_end,
        }
