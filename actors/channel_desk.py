"""Storage's desk for channels: their rows, which one commit batch carries to the state store, and what they may see of the log.

A channel exists if and only if its row is committed; only its present owner (the process that opened it last) may write it.
Rows of `#ephemeral` channels are in memory only. On disk those channels never hold back what is finished by all others, and while there
is no other, what they had is not kept for a first channel either. In memory (`in_memory`: the topic is ephemeral too) nothing is kept that
is finished, so there they hold back as all others do, and the topic's bound holds for what they have not finished.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, Final, cast

from ..storage.errors import Unreadable
from ..storage.log import Log
from ..storage.state import DeferredTotal, HoleRow, StateStore, Table
from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSING, E_DISK_FULL, Refused, UsageError, ZsqError
from ..transport.names import check_name, is_ephemeral
from . import options
from .channel_settings import made, resolve
from .memory_rows import MemoryRows
from .oldest import Floor
from .port import Envelope, Mail, Port
from .ranges import within
from .read_desk import refused
from .state_desk import StateDesk

if TYPE_CHECKING:
    from ..storage.state import ChannelRow


class ChannelDesk:
    """`sync` mode says how far channels may read: what is durable, or (`interval`) what is written."""

    def __init__(self, log: Log, state: StateDesk, table: Table, sync: str) -> None:
        self._log = log
        self._state = state
        self._sync = sync
        self.rows: dict[str, ChannelRow] = dict(table.channels)
        self.memory = MemoryRows()
        self.in_memory = False
        self._left: set[str] = set()  # of those, the ones whose processes are being ended
        self.waiting = table.waiting
        self.visible_end = table.paused_end
        self.owners: dict[str, Envelope] = {}
        self._pages: dict[str, list[p.Save]] = {}  # of commits that are not whole yet

    def floor(self) -> int:
        """No channel, offline ones included, has anything unfinished below this offset (ephemeral ones count in memory only); without a
        channel, nothing waits below it.

        As committed: what a crash now would leave. So it may be used to remove chunks. A channel that is new or was moved back holds what
        it wants from the moment at which it says so: its commit, and with it its answer, may come before that of a removal.
        """
        wanted = [*self._state.floors.values(), *(max(int(row["next"]), self._log.start) for row in self.rows.values())]
        if self.in_memory:
            wanted += [self.memory.first(name, self._log.start) for name in self.memory.rows if name not in self._left]
        return min(wanted, default=self._new_begin() if self._alive() else self._state.waiting)

    def floors(self) -> Iterator[Floor]:
        """Each channel's, and as "" what nobody has finished of the whole topic, behind a pause too."""
        start, end = self._log.start, self.end()
        lowest = self._log.end if self.rows or self.memory else self.waiting
        for name, row in (*self.rows.items(), *self.memory.rows.items()):
            first = self.memory.first(name, start) if name in self.memory else self._state.floors.get(name, int(row["next"]))
            lowest = min(lowest, first)
            yield Floor(name, max(first, start), end)
        yield Floor("", max(lowest, start), self._log.synced_end)

    def _alive(self) -> bool:
        """Ephemeral channels take what comes."""
        return len(self.memory.rows) > len(self._left)

    def leave(self, name: str) -> dict[str, Any]:
        """An ephemeral channel is about to go. If it is the last channel, messages wait for a first one again from here on."""
        if name in self.memory and name not in self._left:
            self._left.add(name)
            if not self.rows and not self._alive():
                self.waiting = self._state.batch.waiting = self._new_begin()
        return {}

    def __contains__(self, channel: str) -> bool:
        return channel in self.rows or channel in self.memory

    def checkpoint(self) -> bool:
        """Now and then: what only ephemeral channels had waits for nobody. True where that is to be committed."""
        if not self._alive() or self.rows or self.waiting == self._new_begin():
            return False
        self.waiting = self._state.batch.waiting = self._new_begin()
        return True

    def end(self) -> int:
        """As far as the topic offers."""
        end: int = self._log.end if self._sync == "interval" else self._log.synced_end
        return end if self.visible_end < 0 else min(end, self.visible_end)

    def _new_begin(self) -> int:
        """Where messages begin that no channel could see yet. Those behind a pause are for all channels that are there when it ends."""
        end = self._log.synced_end
        return end if self.visible_end < 0 else min(end, max(self.visible_end, self._log.start))

    def _begin(self, start: Any) -> int:
        """Where a new channel begins (`channel_settings.made`)."""
        oldest, end = self._log.start, self._new_begin()
        if start is None:
            return self._new_begin() if self.rows or self._alive() else self.waiting
        if start == "earliest":
            return oldest
        if isinstance(start, dict):
            try:
                start = self._log.offset_at(start["time_ns"])
            except Unreadable as error:
                raise refused(error) from None
        return end if start == "latest" else min(max(start, oldest), end)

    def on_openchannel_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.OpenChannel", mail.word)
        check_name(word.channel, "channel")
        if is_ephemeral(word.channel):
            self.memory.make(word.channel, self._new_row(word))
            self._left.discard(word.channel)
            self.owners[word.channel] = mail.envelope
            self._opened(port, mail, ([], DeferredTotal()))
            return
        if self._state.disk_full:  # a new one is told so and is not there; one that is there is tried again
            raise Refused(E_CLOSING if word.channel in self.rows else E_DISK_FULL, self._state.trouble)
        if word.channel not in self.rows:
            row = self._new_row(word)
            self.rows[word.channel] = row
            self._state.batch.channel_puts[word.channel] = row
        self.owners[word.channel] = mail.envelope  # words of a dead predecessor may still lie in its pipe
        self._pages.pop(word.channel, None)
        # Its holes are read once all that its predecessor has sent is on disk; nobody else writes them from here on.
        ordered = bool(self.rows[word.channel].get("settings", {}).get("ordered"))
        read = partial(self._state.read, partial(_kept, channel=word.channel, ordered=ordered), partial(self._opened, port, mail))
        self._state.then(read)

    def _new_row(self, word: p.OpenChannel) -> dict[str, Any]:
        if len(self.rows) + len(self.memory.rows) >= options.CHANNELS_MAX:
            raise Refused("E_LIMIT", f"a topic has at most {options.CHANNELS_MAX} channels")
        own, start = made(word.settings)
        begin = self._begin(start)
        return {"next": begin, "begin": begin, "paused": False, "created_ns": time.time_ns(), "counters": {}, "settings": own}

    def _row(self, channel: str) -> ChannelRow | None:
        return self.memory.rows.get(channel) if is_ephemeral(channel) else self.rows.get(channel)

    def _opened(self, port: Port, mail: Mail, kept: tuple[list[HoleRow], DeferredTotal]) -> None:
        """Answer, in as many words as keep each frame small."""
        word = cast("p.OpenChannel", mail.word)
        row = self._row(word.channel)
        if row is None or self.owners.get(word.channel) != mail.envelope:
            return  # dropped meanwhile, or opened once more
        holes, total = [tuple(hole) for hole in kept[0]], kept[1]
        data = {"row": row, "end": self.end(), "start": self._log.start, "deferred": (total.rows, total.messages, total.next_due_ns)}
        size = options.SAVE_ROWS_MAX
        for at in range(0, max(len(holes), 1), size):
            more = at + size < len(holes)
            port.send(mail.envelope, p.Done(word.request, data | {"holes": tuple(holes[at : at + size]), "more": more}))

    def on_save_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Save", mail.word)
        self._check_owner(mail, word.channel)
        try:
            pages = self._page(word)
        except ZsqError:  # the pages behind it may be here already: without this one they would move the channel past what it says
            self._pages.pop(word.channel, None)
            self.owners.pop(word.channel, None)
            raise
        if word.more:
            return
        del self._pages[word.channel]
        if word.channel in self.memory:
            self.memory.save(word.channel, pages)
            port.send(mail.envelope, p.Done(word.request, {}))
            return
        row = self.rows[word.channel] | word.row
        self.rows[word.channel] = row
        self._state.batch.channel_puts[word.channel] = row
        self._state.cover(row["next"])
        # The batch may already hold older changes of the same rows: the later word wins.
        if word.clear:
            self._state.clear_deferred(word.channel)
        for page in pages:
            for start in page.holes_gone:
                self._state.put_hole(word.channel, start, None)
            for start, count, attempts, due_ns in page.holes_put:
                self._state.put_hole(word.channel, start, (count, attempts, due_ns))
        self._answer_after_commit(port, mail, {})

    def _page(self, word: p.Save) -> list[p.Save]:
        """All pages of this commit so far."""
        _check_save(word, self._log.end)
        pages = self._pages.setdefault(word.channel, [])
        pages.append(word)
        if len(pages) > options.SAVE_PAGES_MAX:
            raise Refused("E_LIMIT", f"a commit has at most {options.SAVE_PAGES_MAX} pages")
        return pages

    def on_due_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Due", mail.word)
        self._check_owner(mail, word.channel)
        if not within((word.until_ns,)):
            raise UsageError(E_BAD_ARGUMENT, f"until_ns is a time since 1970, not {word.until_ns}")
        limit = min(max(word.limit, 0), options.DUE_ROWS_MAX)
        late_ns = word.until_ns + options.DUE_LATEST_NS
        if word.channel in self.memory:
            messages = self.memory.deferred(word.channel).messages
            _answer_due(port, mail, (*self.memory.due(word.channel, word.until_ns, limit, late_ns), messages))
            return
        self._state.read(
            lambda store: (*store.due(word.channel, word.until_ns, limit, late_ns), store.deferred(word.channel).messages),
            partial(_answer_due, port, mail),
        )

    def _check_owner(self, mail: Mail, channel: str) -> None:
        if self.owners.get(channel) != mail.envelope:
            raise Refused(E_CLOSING, f"channel {channel!r} has another owner now")

    def on_pause_word(self, port: Port, mail: Mail) -> None:
        self._state.check_space()
        paused = cast("p.Pause", mail.word).paused
        if not paused or self.visible_end < 0:  # pausing twice does not move the end
            self.visible_end = self._log.end if paused else -1
        self._state.batch.paused_end = self.visible_end
        self._state.cover(self.visible_end)
        self._answer_after_commit(port, mail, {"visible_end": self.visible_end})

    def on_empty_word(self, port: Port, mail: Mail) -> None:
        if not self.rows:
            self.waiting = self._state.batch.waiting = self._log.synced_end
        self._answer_after_commit(port, mail, {})

    def dropped(self, start: int) -> None:
        """What lies below is about to be removed, finished or not: it waits for no first channel any more."""
        if not self.rows and self.waiting < start:
            self.waiting = self._state.batch.waiting = start

    def drop(self, name: str, then: Callable[[], None]) -> None:
        """Forget a channel that ended, with its rows; `then` when that is committed."""
        self._pages.pop(name, None)
        self.owners.pop(name, None)
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

    def _answer_after_commit(self, port: Port, mail: Mail, data: dict[str, Any]) -> None:
        self._state.then(partial(port.send, mail.envelope, p.Done(getattr(mail.word, "request", 0), data)))


_KINDS: Final = {"next": int, "begin": int, "first": int, "paused": bool, "counters": dict, "settings": dict}
_HOLE_NUMBERS: Final = 4
Columns = tuple[tuple[int, ...], ...]


def _check_save(word: p.Save, end: int) -> None:
    """`UsageError` for what could not be written, or not be read again at the next start; and for what lies behind the end of the log,
    since no commit is made before the log has what it speaks of. One channel's word must not end the storage."""
    row = word.row
    good = all(type(row[name]) is kind for name, kind in _KINDS.items() if name in row)
    good = good and within([*row.get("counters", {}).values()]) and within([row[name] for name in ("next", "first") if name in row])
    good = good and within([abs(row.get("begin", 0))])  # below 0 where a channel was moved back: it sees as much again
    columns: Columns = ()
    try:
        columns = tuple(zip(*word.holes_put, strict=True))  # a page has up to 50,000 rows, and publishers wait meanwhile
        good = good and len(columns) == (_HOLE_NUMBERS if word.holes_put else 0)  # rows of nothing have no columns either
        good = good and all(map(within, columns)) and within(word.holes_gone)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise UsageError(E_BAD_ARGUMENT, f"a channel's row and its holes are numbers from 0 to 2^62: {reprlib.repr(word)[:200]}")
    if max([row.get("next", 0), *map(add, *columns[:2])] if columns else [row.get("next", 0)]) > end:
        raise UsageError(E_BAD_ARGUMENT, f"the log ends at {end}, and this channel is farther on: {reprlib.repr(word)[:200]}")
    resolve(row.get("settings", {}))


def _kept(store: StateStore, channel: str, *, ordered: bool) -> tuple[list[HoleRow], DeferredTotal]:
    """In the state store's thread: a channel's holes, and what its deferred ones come to; of an ordered one those, too, for what comes
    after them waits for them."""
    deferred = store.deferred_rows(channel) if ordered else ()
    return [*store.holes(channel), *deferred], store.deferred(channel)


def _answer_due(port: Port, mail: Mail, found: tuple[list[HoleRow], int, int]) -> None:
    rows, next_due_ns, messages = found
    data = {"rows": tuple(tuple(row) for row in rows), "next_due_ns": next_due_ns, "deferred": messages}
    port.send(mail.envelope, p.Done(cast("p.Due", mail.word).request, data))
