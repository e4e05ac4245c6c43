"""Which messages of a block a channel wants, and the delivery that is gathered of them. Pure.

A block is looked into only if something of it may be unwanted: the channel has tags, the block is too old, some message of it is
addressed to one channel, or the consumer takes a sample. All other blocks go as they are, however many messages they have.

What was looked at is a mask, a byte a message. Where several reasons hold, the first of them counts:

    OTHER_CHANNEL   addressed to another channel by its header `zsq-channel`
    OTHER_TAG       the channel has tags, and the message another one or none
    EXPIRED         stored longer ago than the channel's `max_age_s`
    WANTED          a sample is drawn of these only

What is not wanted is finished for this channel: the cursor passes it, and it is counted. What was delivered once is not asked again for its
tag or a sample: it comes again until it is finished, or too old.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from ...transport.block.block import Block
from ...transport.block.block_format import ADDRESSED
from ...transport.settings import ChannelSettings, split_tags
from ...transport.wire.dead_letter import addressees
from ...transport.wire.protocol import Run
from ..settings import options

WANTED, OTHER_TAG, OTHER_CHANNEL, EXPIRED = range(4)
COUNTED: Final = {OTHER_TAG: "tag_skipped_count", OTHER_CHANNEL: "addressed_skipped_count", EXPIRED: "expired_count"}

_WANTED_RUNS: Final = re.compile(rb"\0+")
_WANTED_TO_EXPIRED: Final = bytes([EXPIRED, *range(1, 256)])
assert int(False) == WANTED
assert int(True) == OTHER_TAG  # `_look` makes a mask of comparisons

Part = tuple[Block, int, int]


class ChannelFilter:
    """Of one channel. `random`: a number from 0 up to, not including, 1; a sample is drawn with it."""

    def __init__(self, channel: str, settings: ChannelSettings, random: Callable[[], float]) -> None:
        self.random = random
        self._channel = channel
        self._known: tuple[int, int] = (-1, 0)  # the block that was looked into last: consumers take it in pieces
        self._found: bytes | None = None
        self.configure(settings)

    def configure(self, settings: ChannelSettings) -> None:
        self._tags = frozenset(tag.encode() for tag in split_tags(settings.tags))
        self._max_age_ns = int(settings.max_age_s * 1e9) if settings.max_age_s > 0 else 0

    def takes_all(self, block: Block) -> bool:
        """No message of the block is looked at."""
        return not self._tags and not block.header.flags & ADDRESSED

    def mask(self, block: Block, wall_ns: int) -> bytes | None:
        """A byte a message; None: all of it is wanted."""
        mask = None if self.takes_all(block) else self._chosen(block)
        if self.is_too_old(block, wall_ns):
            return (mask or bytes(block.count)).translate(_WANTED_TO_EXPIRED)
        return mask

    def is_too_old(self, block: Block, wall_ns: int) -> bool:
        """By the time it was stored, which all its messages have in common."""
        return self._max_age_ns > 0 and wall_ns - block.header.time_ns > self._max_age_ns

    def _chosen(self, block: Block) -> bytes | None:
        if self._known != (block.first_offset, block.count):
            self._known = (block.first_offset, block.count)
            self._found = self._look(block)
        return self._found

    def _look(self, block: Block) -> bytes | None:
        mask = bytearray(block.count)
        if self._tags:
            column, tags = block.tag, self._tags
            mask = bytearray([OTHER_TAG]) * block.count if column is None else bytearray([tag not in tags for tag in column.values()])
        if block.header.flags & ADDRESSED:
            for index, channel in addressees(block):
                if channel != self._channel:
                    mask[index] = OTHER_CHANNEL
        return bytes(mask) if any(mask) else None

    def in_sample(self, sample_rate: int) -> bool:
        """One more message was drawn for a consumer's sample."""
        return self.random() < sample_rate / 100

    def gathering(self, sample_rate: int, room: int) -> Gathering:
        return Gathering(room, sample_rate, self.random)


def wanted_runs(mask: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of what is wanted between these indexes."""
    return (found.span() for found in _WANTED_RUNS.finditer(mask, start, stop))


def count_skipped(counters: dict[str, int], mask: bytes, start: int, stop: int) -> None:
    """The cursor passes these messages."""
    for reason, name in COUNTED.items():
        counters[name] += mask.count(reason, start, stop)


class Gathering:
    """A delivery in the making, for a consumer with `room`; of a few blocks, and of messages that need not lie together.

    `offered`: how many came this consumer's way; `left_out`: those of them that are not in its sample. A sample is drawn of as many as the
    consumer had room for, not more: else one that takes 1% would rush through what the others wait for.
    """

    def __init__(self, room: int, sample_rate: int, random: Callable[[], float]) -> None:
        self.runs: list[Run] = []
        self.parts: list[Part] = []
        self.offered = 0
        self.left_out = 0
        self._room = room
        self._share = sample_rate / 100  # 0: all
        self._random = random
        self._count = 0
        self._size = 0
        self._next = -1  # where the last run ends

    def add(self, block: Block, start: int, mask: bytes) -> int:
        """What is wanted of the block from index `start` on. Returns where to go on: below the block's end if no more fits."""
        columns = (block.body, block.key, block.tag, block.headers)
        ends = [column.offsets for column in columns if column is not None]
        for found in _WANTED_RUNS.finditer(mask, start):
            at, stop = found.span()
            while at < stop:
                count, size = self._fitting(ends, at, stop)
                if not count:
                    return at
                self.offered += count
                if self._share:
                    self._draw(block, ends, at, at + count)
                else:
                    self._put(block, at, at + count, size)
                at += count
        return block.count

    def _fitting(self, ends: list[memoryview], start: int, stop: int) -> tuple[int, int]:
        """(how many of these messages may be offered, their bytes)."""
        count = stop - start
        if count > self._room - self.offered:
            count = self._room - self.offered
        if not self.parts and not self._share:
            return count, _bytes(ends, start, start + count)  # the first goes by a cut, which may be as large as its block
        if count > options.GATHER_COUNT_MAX - self._count:
            count = max(0, options.GATHER_COUNT_MAX - self._count)
        room = options.GATHER_BYTES_MAX - self._size
        while (size := _bytes(ends, start, start + count)) > room:
            if count > 1:
                count //= 2
            elif self.parts:
                return 0, 0
            else:
                break
        return count, size

    def _draw(self, block: Block, ends: list[memoryview], start: int, stop: int) -> None:
        random, share = self._random, self._share
        drawn = bytes([random() >= share for _ in range(stop - start)])
        self.left_out += drawn.count(1)
        for found in _WANTED_RUNS.finditer(drawn):
            first, end = found.span()
            self._put(block, start + first, start + end, _bytes(ends, start + first, start + end))

    def _put(self, block: Block, start: int, stop: int, size: int) -> None:
        self.parts.append((block, start, stop))
        self._count += stop - start
        self._size += size
        offset = block.first_offset + start
        if offset == self._next:
            first, count, attempts = self.runs.pop()
            self.runs.append((first, count + stop - start, attempts))
        else:
            self.runs.append((offset, stop - start, 1))
        self._next = block.first_offset + stop


def _bytes(ends: list[memoryview], start: int, stop: int) -> int:
    """What these messages take of a block's columns."""
    size = 0
    for column in ends:
        size += column[stop] - column[start]
    return size
