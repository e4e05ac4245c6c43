"""MessageScan: reads a range of a topic in steps and returns the messages that a search wants.

The gateway serves all its clients in one thread. So a scan lets other requests run whenever it has
worked for SLICE_S, also in the middle of a block. Only one read of about READ_BYTES is in memory at
a time. A scan creates no channel, and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from .....transport.client.asyncio.aio import Reader
from .....transport.client.core.message import (
    Fetched,
    MissingRange,
    StoredMessage,
    message_at,
    missing_in,
)
from .....transport.client.core.message_search import PAUSE, SearchConditions, Undecoded, matches

READ_BYTES: Final = 1024 * 1024
SLICE_S: Final = 0.001


class MessageScan:
    """A scan of the offsets from `first` to `end` (exclusive).

    `at` is the offset at which it continues. `time_ns` is the time of the last block that it has
    searched. `bytes` is the size of all blocks so far.

    Messages may be missing: retention removed them, they are damaged, or the topic was deleted and
    created again meanwhile, which begins at the end of the old one. A read then skips them without
    an error. `missing` is their number, and `gap` the last of these ranges. With `whole`, the scan
    ends after the first gap, so that a copy of the range cannot have a hole that nobody notices.
    """

    def __init__(
        self,
        reader: Reader,
        topic: str,
        first: int,
        end: int,
        wanted: SearchConditions,
        *,
        whole: bool = False,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._wanted = wanted
        self._end = end
        self._whole = whole
        self._undecoded = Undecoded()
        self.at = first
        self.time_ns = 0
        self.bytes = 0
        self.missing = 0
        self.gap: MissingRange | None = None

    @property
    def done(self) -> bool:
        return self.at >= self._end

    @property
    def undecoded(self) -> int:
        """The number of bodies that were too large to be decoded."""
        return self._undecoded.count

    async def found(self, max_bytes: int, deadline_s: float) -> AsyncGenerator[StoredMessage, None]:
        """Yield the wanted messages, until the end of the range, or of the step.

        A step ends after `max_bytes` bytes of blocks, or at `deadline_s` of the monotonic clock.
        It searches at least one block, so steps always advance. The caller may stop earlier. The
        next step then begins after the last message.
        """
        limit = self.bytes + max_bytes
        slice_s = time.monotonic()
        while not self.done:
            fetched = await self._reader.read(self.at, READ_BYTES)
            for block in fetched.blocks:
                if self._skip(fetched, block.first_offset):
                    return
                start = max(0, self.at - block.first_offset)
                stop = min(block.count, self._end - block.first_offset)
                if start >= stop:
                    continue
                for index in matches(block, start, stop, self._wanted, self._undecoded):
                    if index != PAUSE:
                        self.at = block.first_offset + index + 1
                        yield message_at(self._topic, block, index)
                    if time.monotonic() - slice_s > SLICE_S:
                        await asyncio.sleep(0)
                        slice_s = time.monotonic()
                self.at = block.first_offset + stop
                self.time_ns = block.header.time_ns
                self.bytes += block.length
                if self.bytes >= limit or time.monotonic() >= deadline_s:
                    return
            if not fetched.blocks and fetched.next_offset <= self.at:
                return  # nothing more can be read now
            if self._skip(fetched, fetched.next_offset):
                return

    def _skip(self, fetched: Fetched, to: int) -> bool:
        """Continue at `to` or at the end, and count what is missing before that.

        Return True if the scan ends here.
        """
        to = min(to, self._end)
        for missing in missing_in(fetched, self.at, to):
            self.gap = missing
            self.missing += missing.stop - missing.first
            self.at = missing.stop
            if self._whole:
                return True
        self.at = max(self.at, to)
        return False
