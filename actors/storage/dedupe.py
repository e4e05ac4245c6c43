"""Deduplication: keeps messages out of an append whose ids the topic knows.

The topic has read the ids of a block (`Block.ids`). `sifting.py` compares them with the index
(`storage/dedupe`) and with each other. Blocks without ids are not looked at. The ids of what is
left are added to the index when the log has accepted the append, in the same step of the loop. So
the ids follow the order of the log. The same is true of unique keys, which `locks.py` knows.

The answer to a publish that stored nothing waits for the same sync as the message that it repeats:
it is answered in the order of the appends, and its end is the end of the log at that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from ...storage.dedupe.id_format import NO_OFFSET
from ...storage.dedupe.id_index import Flush, IdIndex
from ...storage.directory.store import Store
from ...transport.block.block import Block
from ...transport.wire.unique import digests_of_keys, modes_of
from ..runtime.pulses import DedupePulse
from ..runtime.worker_thread import Jobs
from .locks import Locks
from .sifting import Left, Repeats, Sifted, sift

log = logging.getLogger("zsq")

NS_PER_S: Final = 1_000_000_000


class Dedupe:
    """The ids and keys of one topic. `thread` writes the files of the ids."""

    def __init__(
        self, store: Store, window_s: float, thread: Jobs, title: str, locks: Locks
    ) -> None:
        self._store = store
        self._locks = locks
        self._thread = thread
        self._title = title
        self._window_ns = int(window_s * NS_PER_S)
        self._trouble = ""
        self._range = (0, 0)
        self._keys_from: int | None = None  # as in the last checkpoint, if that is known
        self.duplicate_count = 0

    @property
    def is_on(self) -> bool:
        return self._window_ns > 0

    @property
    def _index(self) -> IdIndex | None:
        return self._store.ids

    def set_window(self, window_s: float) -> None:
        """Change the window. It applies at once. A longer one does not bring back older ids."""
        self._window_ns = int(window_s * NS_PER_S)

    def sift(self, blocks: Sequence[Block]) -> Sifted | None:
        """Find the messages whose ids are known, or whose keys are held.

        Return None if no block has ids or keys.
        """
        if not any(block.ids for block in blocks):
            return None
        since_ns = time.time_ns() - self._window_ns
        index = self._index if self._window_ns else None
        modes = modes_of(blocks)

        def known(digests: Sequence[bytes]) -> dict[int, int]:
            offsets = {} if index is None else index.known(digests, since_ns)
            return {**offsets, **self._locks.known(digests, modes)} if modes else offsets

        return sift(blocks, known)

    def left(self, sifted: Sifted, first_offset: int) -> dict[int, Left]:
        """Return what is left of the blocks, see `Sifted.left`, and count the duplicates."""
        self.duplicate_count += sum(len(rows) for _, rows in sifted.rest.values())
        return sifted.left(first_offset)

    def stored(self, sifted: Sifted, first_offset: int, end: int) -> None:
        """Note that what is left is in the log, from this offset on."""
        offsets = [first_offset + place for place in sifted.places]
        digests = sifted.digests
        if keys := digests_of_keys(sifted.blocks):
            rows = [*zip(digests, offsets, strict=True)]
            for digest, offset in rows:
                if digest in keys:
                    self._locks.add(digest, offset)
            digests = [digest for digest, _ in rows if digest not in keys]
            offsets = [offset for digest, offset in rows if digest not in keys]
        self._add(digests, offsets, time.time_ns(), end)

    def delayed(self, blocks: Sequence[Block], time_ns: int) -> None:
        """Note that delayed blocks are on the disk, with this time in the rows of their ids."""
        digests = [digest for block in blocks for digest in block.ids or () if digest is not None]
        self._add(digests, [NO_OFFSET] * len(digests), time_ns, 0)

    def _add(
        self, digests: Sequence[bytes], offsets: Sequence[int], time_ns: int, end: int
    ) -> None:
        if digests and self._window_ns:
            self._store.make_ids().add(digests, offsets, time_ns, end)

    def repeats_of(self, block: Block, place: tuple[int, ...]) -> Repeats:
        """Return which messages of a block that is sent again were stored by another one.

        `place` is where this one is: (first offset,), (due time, serial) if it is delayed, (-1,) if
        nothing of it was stored, or () if that is not known. In the last case, all messages whose
        ids are known count as repeats.
        """
        index = self._index
        if block.ids is None or (index is None and block.modes is None):
            return ()
        digests = [digest for digest in block.ids if digest is not None]
        expected = place[0] if len(place) == 1 else -1
        known = {} if index is None else index.known(digests, time.time_ns() - self._window_ns)
        for at in modes_of([block]):
            # A key may have a later holder by now. Then the message of this block was stored, and
            # is finished.
            offset = self._locks.newest(digests[at])
            if offset is not None and (expected < 0 or offset < expected + block.count):
                known[at] = offset
        repeats: list[tuple[int, int]] = []
        seen: set[bytes] = set()
        following = -1
        for at, digest in enumerate(block.ids):
            offset = None
            if digest is not None:
                following += 1
                offset = known.get(following)
            if digest is None or offset is None:
                is_own = True
            elif len(place) == 2:
                is_own = offset == NO_OFFSET and digest not in seen
            else:
                is_own = 0 <= expected == offset
            if not is_own and offset is not None:
                repeats.append((at, offset))
            elif expected >= 0:
                expected += 1
            if digest is not None:
                seen.add(digest)
        return tuple(repeats)

    # Files

    def tick(self, synced_end: int) -> None:
        """Forget what is older than the window, and write what is new. This is called once a
        second.
        """
        index = self._index
        if index is None or self._thread.pending:
            return
        index.expire(time.time_ns() - self._window_ns)
        flush = index.take(synced_end)
        if flush is not None:
            self._thread.submit(flush, flush.run)

    def on_results(self) -> None:
        for flush, value in self._thread.results():
            self._written(flush, value)

    def _written(self, flush: Flush, value: object) -> None:
        if not isinstance(value, Exception):
            self._trouble = ""
            index = self._index
            assert index is not None
            index.done(flush)
            return
        # The ids stay in memory, and their messages are in the log. So this costs nothing while
        # the process lives, and after a crash they are read from the log.
        if not self._trouble:
            log.error("%s: the ids of messages cannot be written: %s", self._title, value)
        self._trouble = f"the ids of messages cannot be written: {value}"

    def range(self, synced_end: int) -> tuple[int, int] | None:
        """Return the offsets that may have ids, for the checkpoint. None: as before."""
        first, end = self._index.range if self._index is not None else (0, 0)
        found = (min(first, synced_end), min(end, synced_end))
        if found == self._range:
            return None
        self._range = found
        return found

    def keys_from(self) -> int | None:
        """Return the first offset that may hold a key, for the checkpoint. None: as before."""
        lowest = self._locks.lowest
        if lowest == self._keys_from:
            return None
        self._keys_from = lowest
        return lowest

    @property
    def is_idle(self) -> bool:
        return not self._thread.pending

    def alarm(self) -> str:
        """Return why the window is shorter than it should be, or ""."""
        index = self._index
        if index is not None and time.time_ns() - self._window_ns < index.early_until_ns:
            return (
                f"{index.forgotten_early} ids of messages were forgotten before the end of the "
                "window, because the topic has too many: set a shorter --dedupe-window"
            )
        return self._trouble

    def statistics(self) -> DedupePulse:
        return {
            "duplicate_count": self.duplicate_count,
            "dedupe_ids": 0 if self._index is None else len(self._index),
            "dedupe_alarm": self.alarm(),
        }
