"""Channels in storage: their rows, and how far they may read the log.

One commit batch carries the rows to the state store. A channel exists if and only if its row is
committed. Only its present owner (the process that opened it last) may write it.

Rows of `#ephemeral` channels are in memory only. In a topic on disk, retention ignores these
channels: it may remove messages that all other channels have finished. A topic without channels
keeps its messages for the first channel, but a topic with only ephemeral channels does not. A topic
in memory (`in_memory`) is ephemeral too, and keeps no finished messages. In such a topic, retention
keeps the messages that these channels have not finished, up to the topic's bound.

`MemoryRows` holds the rows of `#ephemeral` channels until their processes end. A hole is a range of
unfinished messages below a channel's cursor. After the process of an ephemeral channel, no other
process reads its holes. So holes that are not deferred are not kept. Deferred holes are kept,
because the channel itself asks for them when they are due. Rejected: to write these rows to the
state store and to remove them at the next start. Each commit of them would cost a sync for data
that no crash needs to preserve.

`OldestTimes` finds when the oldest unfinished message of each channel arrived. Storage can find
this best, because it has the log and the committed cursor of each channel, even of channels without
consumers. The header of a block is read when a channel's first unfinished message is in another
block than before. Channels at the same block share one read. Each call reads a bounded number of
headers. The other channels keep their known times, so for a few seconds their messages look older
than they are. Nothing is read for a channel that does not move or has nothing to deliver. Rejected:
asking the channels. Channels without a consumer do not learn of new messages, and each channel
would have to ask storage anyway.
"""

from __future__ import annotations

import reprlib
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from operator import add
from typing import Any, Final, NamedTuple

from ...storage.errors import NotHere, Unreadable
from ...storage.log.log import Log
from ...storage.state.channel_row import ChannelRow
from ...storage.state.state import DeferredTotal, HoleRow, StateStore, Table
from ...transport.block.block import Header
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_DISK_FULL,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import check_name, is_ephemeral
from ...transport.settings import NONE
from ...transport.wire import protocol as p
from ...transport.wire.protocol import Save
from ..primitives.ranges import Span, joined, within
from ..runtime.port import Envelope, Mail, Port
from ..settings import options
from ..settings.channel_settings import made, resolve
from .commits import StateCommits
from .locks import Locks
from .reads import refused

_BEHIND = 1 << 63  # higher than any start
_STALE_MAX = 1_000  # removed starts that the heap may hold before it is rebuilt


class MemoryRows:
    """The rows of `#ephemeral` channels, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, ChannelRow] = {}
        self._deferred: dict[str, _Deferred] = {}

    def __contains__(self, channel: str) -> bool:
        return channel in self.rows

    def __bool__(self) -> bool:
        return bool(self.rows)

    def make(self, channel: str, row: ChannelRow) -> None:
        """Add a channel, and forget the rows of an earlier channel with that name."""
        self.rows[channel] = row
        self._deferred[channel] = _Deferred()

    def drop(self, channel: str) -> None:
        del self.rows[channel], self._deferred[channel]

    def save(self, channel: str, row: ChannelRow, pages: Sequence[Save]) -> None:
        """Apply one commit immediately, because nothing is written to disk."""
        self.rows[channel] = row
        deferred = self._deferred[channel]
        if pages[0].clear:
            deferred = self._deferred[channel] = _Deferred()
        for page in pages:
            for start in page.holes_gone:
                deferred.remove(start)
            for start, count, attempts, due_ns in page.holes_put:
                deferred.remove(start)
                if due_ns:
                    deferred.put(HoleRow(start, count, attempts, due_ns))

    def first(self, channel: str, start: int) -> int:
        """Return the lowest unfinished offset, as the channel last reported it.

        The result is never below `start`, the start of the log, which only grows.
        """
        row = self.rows[channel]
        first = max(row.next_offset if row.first is None else row.first, start)
        deferred = self._deferred[channel].first(start)
        return first if deferred is None else min(first, deferred)

    def due(self, channel: str, until_ns: int, limit: int) -> tuple[list[HoleRow], int]:
        """Return due holes as `StateStore.due` does."""
        return self._deferred[channel].due(until_ns, limit)

    def deferred_at(self, channel: str, offsets: Sequence[int]) -> list[HoleRow]:
        """Return the deferred holes that have some of these offsets. There are few holes."""
        rows = self._deferred[channel].rows.values()
        return [
            row
            for row in rows
            if any(row.start <= offset < row.start + row.count for offset in offsets)
        ]

    def deferred(self, channel: str) -> DeferredTotal:
        return self._deferred[channel].total()

    def deferred_rows(self, channel: str) -> Iterator[HoleRow]:
        """Return the deferred holes in the order of their starts."""
        return iter(sorted(self._deferred[channel].rows.values()))


class _Deferred:
    """One channel's deferred holes.

    `_by_due` is a sorted list and not a heap: rows are removed at any position, and there are
    few (`options`).
    """

    def __init__(self) -> None:
        self.rows: dict[int, HoleRow] = {}
        self._by_due: list[tuple[int, int]] = []
        self._starts: list[int] = []  # a heap, which also holds starts of removed rows
        self._messages = 0

    def put(self, row: HoleRow) -> None:
        self.rows[row.start] = row
        self._messages += row[1]
        insort(self._by_due, (row.due_ns, row.start))
        heappush(self._starts, row.start)
        if len(self._starts) > 2 * len(self.rows) + _STALE_MAX:
            self._starts = sorted(self.rows)

    def remove(self, start: int) -> None:
        row = self.rows.pop(start, None)
        if row is not None:
            self._messages -= row[1]
            del self._by_due[bisect_left(self._by_due, (row.due_ns, start))]

    def first(self, start: int) -> int | None:
        """Return the lowest deferred offset from `start` on, or None.

        This runs many times a second, so it does not visit all rows.
        """
        while self._starts:
            row = self.rows.get(self._starts[0])
            if row is not None and row.start + row.count > start:
                return max(row.start, start)
            heappop(self._starts)
        return None

    def total(self) -> DeferredTotal:
        if not self.rows:
            return DeferredTotal()
        return DeferredTotal(len(self.rows), self._messages, min(self.rows), self._by_due[0][0])

    def due(self, until_ns: int, limit: int) -> tuple[list[HoleRow], int]:
        """Return the earliest due holes, and the due time of the next hole, or 0."""
        count = min(bisect_right(self._by_due, (until_ns, _BEHIND)), limit)
        left = self._by_due[count : count + 1]
        return [self.rows[start] for _, start in self._by_due[:count]], left[0][0] if left else 0


LOOKS_MAX: Final = 100  # headers read for one pulse: 20 to 50 microseconds each


class Floor(NamedTuple):
    """The progress of `channel`.

    All messages below `offset` are finished. The channel may see all messages below `end`.
    """

    channel: str
    offset: int
    end: int


class OldestTimes:
    """Computes the time of each channel's oldest unfinished message.

    `header_at` returns the header of the block that holds an offset, or of the first block after
    it. It returns None if that header is not available now.
    """

    def __init__(self, header_at: Callable[[int], Header | None]) -> None:
        self._header_at = header_at
        # Channel -> first offset, next offset, time of a block.
        self._known: dict[str, tuple[int, int, int]] = {}
        self._turn = 0

    def refresh(self, floors: Iterable[Floor]) -> dict[str, int]:
        """Return the time (ns since 1970) of each channel's oldest unfinished message, if known."""
        waiting = {floor.channel: floor for floor in floors if floor.offset < floor.end}
        self._known = {channel: row for channel, row in self._known.items() if channel in waiting}
        moved = sorted(
            (floor for floor in waiting.values() if not self._holds(floor)),
            key=lambda floor: floor.offset,
        )
        begin = self._turn % len(moved) if len(moved) > LOOKS_MAX else 0
        self._look(moved[begin:] + moved[:begin])
        return {channel: row[2] for channel, row in self._known.items()}

    def _holds(self, floor: Floor) -> bool:
        first, following, _ = self._known.get(floor.channel, (0, 0, 0))
        return first <= floor.offset < following

    def _look(self, floors: Iterable[Floor]) -> None:
        looks = 0
        first = following = time_ns = 0
        for floor in floors:
            if not first <= floor.offset < following:
                if looks == LOOKS_MAX:
                    return
                looks += 1
                self._turn += 1
                header = self._header_at(floor.offset)
                if header is None:
                    continue
                first, following, time_ns = (
                    min(header.first_offset, floor.offset),
                    header.next_offset,
                    header.time_ns,
                )
            self._known[floor.channel] = (first, following, time_ns)


class Channels:
    """The channels of a topic.

    `sync` is the sync mode. In the mode `interval`, channels may read all that is written. In the
    other modes they may read only what is durable.
    """

    def __init__(
        self,
        log: Log,
        state: StateCommits,
        table: Table,
        sync: str,
        *,
        in_memory: bool = False,
        finishes_must_wait: Callable[[], bool] = lambda: False,
        expires_s: float = NONE,
    ) -> None:
        """Take over the channels of the table.

        `finishes_must_wait` returns True while no finish may be confirmed, because a standby may
        have taken over.
        """
        self._log = log
        self._state = state
        self.sync = sync
        self._finishes_must_wait = finishes_must_wait
        self.expires_s = expires_s  # the topic's setting, which each channel learns when it opens
        self.rows = dict(table.channels)
        self.memory = MemoryRows()
        self.in_memory = in_memory
        self.locks = Locks(self, lambda: log.start)
        self._left: set[str] = set()  # ephemeral channels whose processes are being ended
        self.waiting = table.waiting
        self.visible_end = table.paused_end
        self.owners: dict[str, Envelope] = {}
        self._pages: dict[str, list[p.Save]] = {}  # pages of commits that are not complete yet

    def floor(self) -> int:
        """Return the offset below which every channel has finished all messages.

        Channels without a consumer count too. Ephemeral channels count only in a topic in memory.
        Without a channel, the floor is the offset from which messages wait for a first channel. The
        floor counts only what is committed, because only that is known after a crash. So chunks
        below it may be removed. The messages of a channel that is new or was moved back are kept
        from the moment of its request, because its commit and its answer may come before the commit
        of a removal.
        """
        wanted = [
            *self._state.floors.values(),
            *(max(row.next_offset, self._log.start) for row in self.rows.values()),
        ]
        if self.in_memory:
            wanted += [
                self.memory.first(name, self._log.start)
                for name in self.memory.rows
                if name not in self._left
            ]
        return min(wanted, default=self._new_begin() if self._alive() else self._state.waiting)

    def floors(self) -> Iterator[Floor]:
        """Yield each channel's floor, and under the name "" that of the whole topic.

        The topic's floor also covers the messages behind a pause.
        """
        start, end = self._log.start, self.end()
        lowest = self._log.end if self.rows or self.memory else self.waiting
        for name, row in (*self.rows.items(), *self.memory.rows.items()):
            first = (
                self.memory.first(name, start)
                if name in self.memory
                else self._state.floors.get(name, row.next_offset)
            )
            lowest = min(lowest, first)
            yield Floor(name, max(first, start), end)
        yield Floor("", max(lowest, start), self._log.synced_end)

    def _alive(self) -> bool:
        """Return True if there are ephemeral channels that are not about to end."""
        return len(self.memory.rows) > len(self._left)

    def leave(self, name: str) -> None:
        """Note that an ephemeral channel is about to end.

        If it is the last channel, messages from here on wait for a first channel again.
        """
        if name in self.memory and name not in self._left:
            self._left.add(name)
            if not self.rows and not self._alive():
                self.waiting = self._state.batch.waiting = self._new_begin()

    def __contains__(self, channel: str) -> bool:
        return channel in self.rows or channel in self.memory

    def all_rows(self) -> Mapping[str, ChannelRow]:
        """Return the rows of all channels, with `#ephemeral` ones."""
        return {**self.rows, **self.memory.rows} if self.memory else self.rows

    def checkpoint(self) -> bool:
        """Keep no messages for a first channel while there are only ephemeral channels.

        Return True if this must be committed.
        """
        if not self._alive() or self.rows or self.waiting == self._new_begin():
            return False
        self.waiting = self._state.batch.waiting = self._new_begin()
        return True

    def end(self) -> int:
        """Return the end up to which channels may read."""
        end: int = self._log.end if self.sync == "interval" else self._log.synced_end
        return end if self.visible_end < 0 else min(end, self.visible_end)

    def gaps(self) -> tuple[Span, ...]:
        """Return the spans of offsets that takeovers skipped. They never had a message."""
        return joined((gap.first_offset, gap.next_offset) for gap in self._log.gaps)

    def _new_begin(self) -> int:
        """Return the first offset that no channel could see yet.

        Messages behind a pause are for all channels that exist when the pause ends.
        """
        end = self._log.synced_end
        return end if self.visible_end < 0 else min(end, max(self.visible_end, self._log.start))

    def _begin(self, start: Any) -> int:
        """Return the offset at which a new channel begins (`channel_settings.made`)."""
        oldest, end = self._log.start, self._new_begin()
        if start is None:
            return self._new_begin() if self.rows or self._alive() else self.waiting
        if start == "earliest":
            return oldest
        if isinstance(start, dict):
            try:
                start = self._log.offset_at(start["time_ns"])
            except NotHere:
                raise
            except Unreadable as error:
                raise refused(error) from None
        return end if start == "latest" else min(max(start, oldest), end)

    def route(self, port: Port) -> None:
        """Serve the channels, which connect to this port."""
        port.route(p.OpenChannel, self.open)
        port.route(p.Save, self.save)
        port.route(p.Due, self.due)
        port.route(p.DeferredAt, self.deferred_at)

    def open(self, port: Port, mail: Mail, message: p.OpenChannel) -> None:
        check_name(message.channel, "channel")
        if is_ephemeral(message.channel):
            self.memory.make(message.channel, self._new_row(message))
            self.locks.forget_channel(message.channel)
            self._left.discard(message.channel)
            self.owners[message.channel] = mail.envelope
            self._opened(port, mail, message, ([], DeferredTotal()))
            return
        if self._state.disk_full:  # a new channel is refused; an existing one is opened again later
            raise Refused(
                E_CLOSING if message.channel in self.rows else E_DISK_FULL, self._state.trouble
            )
        if message.channel not in self.rows:
            row = self._new_row(message)
            self.rows[message.channel] = row
            self._state.batch.channel_puts[message.channel] = row
        # Messages of the channel's previous process may still arrive.
        self.owners[message.channel] = mail.envelope
        self._pages.pop(message.channel, None)
        # The holes are read once everything that the previous process sent is on disk. From here on
        # only the new owner writes them.
        ordered = bool((self.rows[message.channel].settings or {}).get("ordered"))
        read = partial(
            self._state.read,
            partial(_kept, channel=message.channel, ordered=ordered),
            partial(self._opened, port, mail, message),
        )
        self._state.then(read)

    def _new_row(self, message: p.OpenChannel) -> ChannelRow:
        if len(self.rows) + len(self.memory.rows) >= options.CHANNELS_MAX:
            raise Refused(
                "E_LIMIT",
                f"a topic can have at most {options.CHANNELS_MAX} channels; delete one first",
            )
        settings, start = made(message.settings)
        begin = self._begin(start)
        row = {
            "next": begin,
            "begin": begin,
            "paused": False,
            "created_ns": time.time_ns(),
            "counters": {},
            "settings": settings,
        }
        return ChannelRow.decode(row)

    def _rows_of(self, channel: str) -> dict[str, ChannelRow]:
        return self.memory.rows if is_ephemeral(channel) else self.rows

    def _opened(
        self,
        port: Port,
        mail: Mail,
        message: p.OpenChannel,
        kept: tuple[list[HoleRow], DeferredTotal],
    ) -> None:
        """Answer in several messages, so that each frame stays small."""
        row = self._rows_of(message.channel).get(message.channel)
        if row is None or self.owners.get(message.channel) != mail.envelope:
            return  # the channel was dropped meanwhile, or opened again
        holes, total = [tuple(hole) for hole in kept[0]], kept[1]
        deferred = (total.rows, total.messages, total.next_due_ns)
        data = {
            "row": row.encode(),
            "end": self.end(),
            "start": self._log.start,
            "deferred": deferred,
            "gaps": self.gaps(),
            "expires_s": self.expires_s,
        }
        size = options.SAVE_ROWS_MAX
        for at in range(0, max(len(holes), 1), size):
            more = at + size < len(holes)
            port.send(
                mail.envelope,
                p.Done(
                    message.request, data | {"holes": tuple(holes[at : at + size]), "more": more}
                ),
            )

    def save(self, port: Port, mail: Mail, message: p.Save) -> None:
        self._check_owner(mail, message.channel)
        before = self._rows_of(message.channel)[message.channel]
        try:
            row = _saved(before, message, self._log.end)
            pages = self._page(message)
        # Later pages of this commit may have arrived. Applied without this page, they would move
        # the channel past messages that only this page mentions.
        except ZsqError:
            self._pages.pop(message.channel, None)
            self.owners.pop(message.channel, None)
            raise
        if message.more:
            return
        del self._pages[message.channel]
        if message.channel in self.memory:
            self.memory.save(message.channel, row, pages)
            self.locks.saved(message.channel, before, row, pages)
            port.send(mail.envelope, p.Done(message.request, {}))
            return
        self.rows[message.channel] = row
        self.locks.saved(message.channel, before, row, pages)
        self._state.batch.channel_puts[message.channel] = row
        self._state.cover(row.next_offset)
        # The batch may already hold older changes of the same rows. The later change replaces them.
        if message.clear:
            self._state.clear_deferred(message.channel)
        for page in pages:
            for start in page.holes_gone:
                self._state.put_hole(message.channel, start, None)
            for start, count, attempts, due_ns in page.holes_put:
                self._state.put_hole(message.channel, start, (count, attempts, due_ns))
        self._answer_after_commit(port, mail, message)

    def _page(self, message: p.Save) -> list[p.Save]:
        """Return all pages of this commit so far. Raises `Refused` (E_LIMIT)."""
        pages = self._pages.setdefault(message.channel, [])
        pages.append(message)
        if len(pages) > options.SAVE_PAGES_MAX:
            raise Refused(
                "E_LIMIT",
                f"the commit of a channel can have at most {options.SAVE_PAGES_MAX} pages",
            )
        return pages

    def due(self, port: Port, mail: Mail, message: p.Due) -> None:
        self._check_owner(mail, message.channel)
        if not within((message.until_ns,)):
            raise UsageError(
                E_BAD_ARGUMENT, f"until_ns must be a time in ns since 1970, not {message.until_ns}"
            )
        limit = min(max(message.limit, 0), options.DUE_ROWS_MAX)
        if message.channel in self.memory:
            messages = self.memory.deferred(message.channel).messages
            due = self.memory.due(message.channel, message.until_ns, limit)
            _answer_due(port, mail, message, (*due, messages))
            return
        self._state.read(
            lambda store: (
                *store.due(message.channel, message.until_ns, limit),
                store.deferred(message.channel).messages,
            ),
            partial(_answer_due, port, mail, message),
        )

    def deferred_at(self, port: Port, mail: Mail, message: p.DeferredAt) -> None:
        self._check_owner(mail, message.channel)
        if not within(message.offsets) or len(message.offsets) > p.SKIPPED_MAX:
            text = f"offsets must be at most {p.SKIPPED_MAX} whole numbers from 0 to 2^62"
            raise UsageError(E_BAD_ARGUMENT, text)

        def found(rows: Sequence[HoleRow]) -> None:
            data = {"rows": tuple(tuple(row) for row in rows)}
            port.send(mail.envelope, p.Done(message.request, data))

        if message.channel in self.memory:
            found(self.memory.deferred_at(message.channel, message.offsets))
        else:
            self._state.read(
                lambda store: store.deferred_at(message.channel, message.offsets), found
            )

    def _check_owner(self, mail: Mail, channel: str) -> None:
        if self.owners.get(channel) != mail.envelope:
            raise Refused(E_CLOSING, f"channel {channel!r} has another owner now")

    def pause(self, is_paused: bool, then: Callable[[int], None]) -> int:
        """Set or remove the visible end (-1), and call `then` with it after the commit.

        Return it at once, too: from now on channels cannot read beyond it.
        """
        self._state.check_space()
        if not is_paused or self.visible_end < 0:  # pausing twice does not move the end
            self.visible_end = self._log.end if is_paused else -1
        self._state.batch.paused_end = self.visible_end
        self._state.cover(self.visible_end)
        self._state.then(partial(then, self.visible_end))
        return self.visible_end

    def empty(self, then: Callable[[int, int], None]) -> None:
        """Clear what waits for a first channel. Call `then` with the range that waits behind a
        pause.

        The messages behind a pause are skipped by each channel itself. The channels do this after
        this call and before `move_pause`.
        """
        end = self._log.end
        self._state.cover(end)
        if not self.rows:
            self.waiting = self._state.batch.waiting = end
        start = end if self.visible_end < 0 else min(max(self.visible_end, self._log.start), end)
        self._state.then(partial(then, start, end))

    def move_pause(self, end: int, then: Callable[[int], None]) -> None:
        """Move the visible end of a paused topic forward, and call `then` with it after the
        commit.
        """
        self._state.cover(self._log.end)
        if self.visible_end >= 0:
            self.visible_end = self._state.batch.paused_end = max(
                self.visible_end, min(end, self._log.end)
            )
        self._state.then(partial(then, self.visible_end))

    def dropped(self, start: int) -> None:
        """Note that messages below `start` will be removed, so no first channel waits for them."""
        if not self.rows and self.waiting < start:
            self.waiting = self._state.batch.waiting = start

    def drop(self, name: str, then: Callable[[], None]) -> None:
        """Forget a channel that ended, with its rows. `then` is called when that is committed."""
        self._pages.pop(name, None)
        self.owners.pop(name, None)
        self.locks.forget_channel(name)
        if name in self.memory:
            self.leave(name)
            self.memory.drop(name)
            self._left.discard(name)
            self._state.then(then)
            return
        del self.rows[name]
        self._state.drop_channel(name)
        if not self.rows:  # from here on messages wait for a first channel again
            self.waiting = self._state.batch.waiting = self._new_begin()
        self._state.then(then)

    def _answer_after_commit(self, port: Port, mail: Mail, message: p.Save) -> None:
        def answer() -> None:
            data = {"withholds": True} if self._finishes_must_wait() else {}
            port.send(mail.envelope, p.Done(message.request, data))

        self._state.then(answer)


_HOLE_NUMBERS: Final = 4
Columns = tuple[tuple[int, ...], ...]


def are_revoked(rows: Sequence[Any]) -> bool:
    """Return True if these are revoked keys with their ends."""
    good = all(type(row) is tuple and len(row) == 2 for row in rows)
    return good and all(type(key) is str for key, _ in rows) and within([end for _, end in rows])


def _saved(before: ChannelRow, message: p.Save, end: int) -> ChannelRow:
    """Return the row as this commit changes it.

    Raises `UsageError` (E_BAD_ARGUMENT) for values that could not be written, or could not be read
    at the next start. It also raises it for offsets beyond the end of the log, because no commit is
    made before the log has the offsets that it mentions. One channel's mistake must not end the
    topic's process.
    """
    row = before
    columns: Columns = ()
    try:
        row = before.changed(message.row)
        emptied = row.emptied or ()
        known = row.next_offset, row.first or 0, row.clock_ns or 0, row.limit_full_ns or 0
        good = within([*known, *row.counters.values()])
        # `begin` is below 0 if a channel was moved back and sees messages again.
        good = good and within([abs(row.begin or 0)])
        good = good and within([*chain.from_iterable(emptied)]) and {*map(len, emptied)} <= {2}
        good = good and are_revoked(row.revoked or ())
        # This works on whole columns, because a page has up to 50,000 rows, and publishers wait
        # while it is checked.
        columns = tuple(zip(*message.holes_put, strict=True))
        # Without rows there are no columns.
        good = good and len(columns) == (_HOLE_NUMBERS if message.holes_put else 0)
        good = good and all(map(within, columns)) and within(message.holes_gone)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                "a channel's row and holes must be numbers from 0 to 2^62: "
                f"{reprlib.repr(message)[:200]}"
            ),
        )
    if max([row.next_offset, *map(add, *columns[:2])] if columns else [row.next_offset]) > end:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"the channel is beyond the log's end at offset {end}: {reprlib.repr(message)[:200]}",
        )
    resolve(row.settings or {})
    return row


def _kept(store: StateStore, channel: str, *, ordered: bool) -> tuple[list[HoleRow], DeferredTotal]:
    """Return a channel's holes and the totals of its deferred ones.

    Runs in the state store's thread.

    For an ordered channel the deferred holes are included, because later messages wait for them.
    """
    deferred = store.deferred_rows(channel) if ordered else ()
    return [*store.holes(channel), *deferred], store.deferred(channel)


def _answer_due(
    port: Port, mail: Mail, message: p.Due, due_holes: tuple[list[HoleRow], int, int]
) -> None:
    rows, next_due_ns, messages = due_holes
    data = {
        "rows": tuple(tuple(row) for row in rows),
        "next_due_ns": next_due_ns,
        "deferred": messages,
    }
    port.send(mail.envelope, p.Done(message.request, data))
