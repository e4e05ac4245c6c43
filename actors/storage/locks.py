"""Locks: which messages of a topic hold a unique key, and if they still wait or work. Pure.

A message with a key (`transport/wire/unique.py`) holds it from its append until it is finished. It
is finished by a channel when that channel's last commit says so: the cursor is past it, and no hole
contains it. It is begun if its hole has used attempts. So nothing is stored about a lock: it ends
with its message, whatever ends that, and a start finds it in the log.

The holes of channels are in the state store, which only its thread may read. So the holes that
contain messages with keys are kept here too, from the commits that pass through (`saved`). Nothing
is done for a topic without keys. Rejected: asking the channels. An append would wait for them, and
all later appends too.

A commit follows a change by at most 200 ms (`SAVE_INTERVAL_MS`), or at once if somebody waits for
it. A finish that is confirmed is committed, so its key is free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import E_LIMIT, Refused
from ...transport.wire.protocol import Save

Row = tuple[int, int, int, int]  # a hole: start, count, attempts, due time
LOCKS_MAX: Final = 100_000  # the most messages of a topic that hold keys


class Holding(Protocol):
    """The channels of a topic, as they were last committed."""

    waiting: int

    def all_rows(self) -> Mapping[str, ChannelRow]: ...


class _Hole(NamedTuple):
    start: int
    is_begun: bool
    is_deferred: bool


class Locks:
    """The messages of one topic that hold keys. `log_start` returns the first offset of the log."""

    def __init__(self, channels: Holding, log_start: Callable[[], int]) -> None:
        self._channels = channels
        self._log_start = log_start
        self._start = 0  # the start of the log when `tick` last looked
        self._holders: dict[bytes, list[int]] = {}  # digest -> offsets, ascending
        self._keys: dict[int, bytes] = {}  # offset -> digest
        self._offsets: list[int] = []  # the same offsets, ascending
        self._holes: dict[str, dict[int, _Hole]] = {}  # channel -> offset -> its hole
        self._is_stale = False  # messages may have ended for another reason than a commit

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def lowest(self) -> int:
        """The lowest offset that may hold a key, or -1. A start reads the log from there on."""
        return self._offsets[0] if self._offsets else -1

    def check_room(self) -> None:
        """Raise `Refused` (E_LIMIT) if no more keys can be held."""
        if len(self._offsets) >= LOCKS_MAX:
            text = (
                f"{LOCKS_MAX} unfinished messages of the topic hold unique keys, which is the "
                "limit; finish some, or delete channels that nobody consumes"
            )
            raise Refused(E_LIMIT, text)

    def found(
        self,
        keys: Iterable[tuple[bytes, int]],
        holes: Callable[[str, Sequence[int]], Iterable[Row]],
    ) -> None:
        """Take the keys (digest, offset) that a start has found in the log.

        `holes` returns at least the holes of a channel that contain some of these offsets.
        """
        for digest, offset in keys:
            self.add(digest, offset)
        if self._offsets:
            for name in self._channels.all_rows():
                for row in holes(name, self._offsets):
                    self._put(name, row)
            self._prune(list(self._offsets))

    def add(self, digest: bytes, offset: int) -> None:
        """Note that this message, which is in the log now, holds the key."""
        self._keys[offset] = digest
        insort(self._offsets, offset)
        insort(self._holders.setdefault(digest, []), offset)

    def holder(self, digest: bytes, *, while_working: bool) -> int | None:
        """Return the offset of the first message that holds the key, or None.

        With `while_working`, messages that handlers have begun hold it, too.
        """
        for offset in self._holders.get(digest, ()):
            if self._is_held(offset, while_working=while_working):
                return offset
        return None

    def known(self, digests: Sequence[bytes], modes: Mapping[int, bool]) -> dict[int, int]:
        """Return index -> holder of the keys that are held. `modes`: see `modes_of`."""
        held = {at: self.holder(digests[at], while_working=mode) for at, mode in modes.items()}
        return {at: offset for at, offset in held.items() if offset is not None}

    def newest(self, digest: bytes) -> int | None:
        """Return the offset of the newest message with the key that may not be finished."""
        offsets = self._holders.get(digest)
        return offsets[-1] if offsets else None

    def _is_held(self, offset: int, *, while_working: bool = True) -> bool:
        if offset < self._log_start():
            return False
        rows = self._channels.all_rows()
        if not rows:
            return offset >= self._channels.waiting
        return any(self._is_held_by(name, row, offset, while_working) for name, row in rows.items())

    def _is_held_by(self, name: str, row: ChannelRow, offset: int, while_working: bool) -> bool:
        if offset >= row.next_offset:
            return not any(start <= offset < end for start, end in row.emptied or ())
        hole = self._holes.get(name, {}).get(offset)
        return hole is not None and (while_working or not hole.is_begun)

    # Changes of channels

    def saved(
        self, channel: str, before: ChannelRow, row: ChannelRow, pages: Sequence[Save]
    ) -> None:
        """Take a whole commit of a channel. Its new row is in place already."""
        if not self._offsets:
            return
        holes = self._holes.setdefault(channel, {})
        gone = {start for page in pages for start in page.holes_gone}
        put = [hole for page in pages for hole in page.holes_put]
        gone.update(hole[0] for hole in put)
        cleared = any(page.clear for page in pages)
        freed = [
            offset
            for offset, hole in holes.items()
            if hole.start in gone or (cleared and hole.is_deferred)
        ]
        for offset in freed:
            del holes[offset]
        for row_put in put:
            self._put(channel, row_put)
        self._prune(freed + self._between(before.next_offset, row.next_offset))
        self._is_stale = self._is_stale or bool(row.emptied)

    def _put(self, channel: str, row: Row) -> None:
        start, count, attempts, due_ns = row
        hole = _Hole(start, attempts > 0, due_ns > 0)
        holes = self._holes.setdefault(channel, {})
        for offset in self._between(start, start + count):
            holes[offset] = hole

    def _between(self, start: int, stop: int) -> list[int]:
        return self._offsets[bisect_left(self._offsets, start) : bisect_left(self._offsets, stop)]

    def forget_channel(self, channel: str) -> None:
        """Note that a channel ended, or that it begins with a new row."""
        self._holes.pop(channel, None)
        self._is_stale = True

    def tick(self) -> None:
        """Forget the messages that ended without a commit. This is called once a second."""
        start = self._log_start()
        if self._offsets and (self._is_stale or start != self._start):
            self._prune(list(self._offsets))
        self._is_stale, self._start = False, start

    def _prune(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if self._is_held(offset):
                continue
            digest = self._keys.pop(offset, None)
            if digest is None:
                continue
            del self._offsets[bisect_left(self._offsets, offset)]
            self._holders[digest].remove(offset)
            if not self._holders[digest]:
                del self._holders[digest]
            for holes in self._holes.values():
                holes.pop(offset, None)
