"""Storage's desk for channels: their rows, which one commit batch carries to the state store, and what they may see of the log.

A channel exists if and only if its row is committed; only its present owner (the process that opened it last) may write it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..storage.log import Log
from ..storage.state import Table
from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSING, Refused, UsageError
from . import options
from .port import Envelope, Mail, Port
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
        self.waiting = table.waiting
        self.visible_end = table.paused_end
        self._holes = {name: {hole[0]: tuple(hole) for hole in holes} for name, holes in table.holes.items()}
        self.owners: dict[str, Envelope] = {}
        self._floors = {name: self._first_unfinished(name) for name in self.rows}  # of committed rows
        self._floor_waiting = self.waiting

    def floor(self) -> int:
        """No channel, offline ones included, has anything unfinished below this offset; without a channel, nothing waits below it.

        As committed: what a crash now would leave. So it may be used to remove chunks.
        """
        return min(self._floors.values(), default=self._floor_waiting)

    def _first_unfinished(self, name: str) -> int:
        following: int = self.rows[name]["next"]
        return min(following, min(self._holes.get(name, ()), default=following))

    def _set_floor(self, name: str, floor: int | None, waiting: int) -> None:
        """The commit that says so is on disk. None: the channel is gone."""
        self._floors.pop(name, None)
        if floor is not None:
            self._floors[name] = floor
        self._floor_waiting = waiting

    def _then_floor(self, name: str) -> None:
        floor = self._first_unfinished(name) if name in self.rows else None
        self._state.then(partial(self._set_floor, name, floor, self.waiting))

    def end(self) -> int:
        """As far as the topic offers."""
        end: int = self._log.end if self._sync == "interval" else self._log.synced_end
        return end if self.visible_end < 0 else min(end, self.visible_end)

    def on_openchannel_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.OpenChannel", mail.word)
        row = self.rows.get(word.channel)
        if row is None:
            if len(self.rows) >= options.CHANNELS_MAX:
                raise Refused("E_LIMIT", f"a topic has at most {options.CHANNELS_MAX} channels")
            start = self.waiting if not self.rows else self._log.synced_end
            row = {"next": start, "paused": False, "created_ns": time.time_ns(), "counters": {}}
            self.rows[word.channel] = row
            self._state.batch.channel_puts[word.channel] = row
        self.owners[word.channel] = mail.envelope  # words of a dead predecessor may still lie in its pipe
        holes = tuple(self._holes.get(word.channel, {}).values())
        data = {"row": row, "holes": holes, "end": self.end(), "start": self._log.start}
        self._then_floor(word.channel)
        self._answer_after_commit(port, mail, data)

    def on_save_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Save", mail.word)
        if self.owners.get(word.channel) != mail.envelope:
            raise Refused(E_CLOSING, f"channel {word.channel!r} has another owner now")
        row = self.rows[word.channel] | word.row
        if not isinstance(row.get("next"), int):
            raise UsageError(E_BAD_ARGUMENT, "a channel's row says where it is")
        self.rows[word.channel] = row
        self._state.batch.channel_puts[word.channel] = row
        self._state.cover(row["next"])
        # The batch may already hold older changes of the same rows: the later word wins.
        holes = self._holes.setdefault(word.channel, {})
        for start in word.holes_gone:
            if holes.pop(start, None) is not None:
                self._state.put_hole(word.channel, start, None)
        for start, count, attempts, due_ns in word.holes_put:
            holes[start] = (start, count, attempts, due_ns)
            self._state.put_hole(word.channel, start, (count, attempts, due_ns))
        self._then_floor(word.channel)
        self._answer_after_commit(port, mail, {})

    def on_pause_word(self, port: Port, mail: Mail) -> None:
        paused = cast("p.Pause", mail.word).paused
        if not paused or self.visible_end < 0:  # pausing twice does not move the end
            self.visible_end = self._log.end if paused else -1
        self._state.batch.paused_end = self.visible_end
        self._state.cover(self.visible_end)
        self._answer_after_commit(port, mail, {"visible_end": self.visible_end})

    def on_empty_word(self, port: Port, mail: Mail) -> None:
        if not self.rows:
            self.waiting = self._state.batch.waiting = self._log.synced_end
            self._then_floor("")
        self._answer_after_commit(port, mail, {})

    def drop(self, name: str, then: Callable[[], None]) -> None:
        """Forget a channel that ended, with its rows; `then` when that is committed."""
        self._holes.pop(name, None)
        del self.rows[name]
        self.owners.pop(name, None)
        self._state.drop_channel(name)
        if not self.rows:  # from here on messages wait for a first channel again
            self.waiting = self._state.batch.waiting = self._log.synced_end
        self._then_floor(name)
        self._state.then(then)

    def _answer_after_commit(self, port: Port, mail: Mail, data: dict[str, Any]) -> None:
        self._state.then(partial(port.send, mail.envelope, p.Done(getattr(mail.word, "request", 0), data)))
