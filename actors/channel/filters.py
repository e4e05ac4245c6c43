"""Filters: select the messages of a block that a channel wants, and gather them. No I/O.

A block is examined only if part of it may be unwanted: the channel has tags, the block is too old,
one of its messages is addressed to one channel, may expire or is revoked, or the consumer takes a
sample. All other blocks
are sent unexamined, however many messages they have.

The result is a mask with one byte for each message. If several reasons apply, the first counts:

    OTHER_CHANNEL   addressed to another channel by its header `zsq-channel`
    OTHER_TAG       the channel has tags, and the message has another one or none
    CANCELLED       revoked by its key (`endings.py`)
    EXPIRED         too old for the channel, or for itself (`endings.py`)
    SKIPPED         skipped by a user, and counted then (`Supply.emptied`)
    WANTED          a sample is drawn only from these messages

Unwanted messages are finished for this channel: the cursor passes them, and they are counted. The
tag and the sample are checked only before the first delivery. After that, a message is delivered
again until it is finished, or has ended as `endings.py` says.
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
from .endings import Endings

WANTED, OTHER_TAG, OTHER_CHANNEL, EXPIRED, SKIPPED, CANCELLED = range(6)
COUNTED: Final = {
    OTHER_TAG: "tag_skipped_count",
    OTHER_CHANNEL: "addressed_skipped_count",
    EXPIRED: "expired_count",
    CANCELLED: "cancelled_count",
}

_WANTED_RUNS: Final = re.compile(rb"\0+")
WITHOUT_EXPIRED: Final = bytes(WANTED if reason == EXPIRED else reason for reason in range(256))
EXPIRED_RUNS: Final = re.compile(rb"%c+" % EXPIRED)
assert int(False) == WANTED
assert int(True) == OTHER_TAG  # `_look` uses the results of comparisons as a mask

Part = tuple[Block, int, int]


class ChannelFilter:
    """The filter of one channel.

    `random` returns a number from 0 up to, but not including, 1. Samples are drawn with it.
    """

    def __init__(
        self, channel: str, settings: ChannelSettings, random: Callable[[], float]
    ) -> None:
        self.random = random
        self.endings = Endings(EXPIRED, CANCELLED)
        self._channel = channel
        # The last examined block. It is kept because consumers take it in pieces.
        self._known: tuple[int, int] = (
            -1,
            0,
        )
        self._found: bytes | None = None
        self.configure(settings)

    def configure(self, settings: ChannelSettings) -> None:
        self._tags = frozenset(tag.encode() for tag in split_tags(settings.tags))
        self.endings.max_age_ns = int(settings.max_age_s * 1e9) if settings.max_age_s > 0 else 0

    def takes_all(self, block: Block) -> bool:
        """Return True if no message of the block needs to be examined, but for the block's age."""
        return (
            not self._tags
            and not block.header.flags & ADDRESSED
            and not self.endings.looks_at(block)
        )

    def mask(self, block: Block, wall_ns: int, *, ends: bool = True) -> bytes | None:
        """Return a mask with one byte for each message, or None if all of them are wanted.

        Without `ends`, messages that have ended count as wanted.
        """
        takes_all = not self._tags and not block.header.flags & ADDRESSED
        mask = None if takes_all else self._chosen(block)
        ended = self.endings.mask(block, wall_ns) if ends else None
        if mask is None or ended is None:
            return mask or ended
        return bytes(map(or_else, mask, ended))

    def _chosen(self, block: Block) -> bytes | None:
        if self._known != (block.first_offset, block.count):
            self._known = (block.first_offset, block.count)
            self._found = self._look(block)
        return self._found

    def _look(self, block: Block) -> bytes | None:
        mask = bytearray(block.count)
        if self._tags:
            column, tags = block.tag, self._tags
            mask = (
                bytearray([OTHER_TAG]) * block.count
                if column is None
                else bytearray([tag not in tags for tag in column.values()])
            )
        if block.header.flags & ADDRESSED:
            for index, channel in addressees(block):
                if channel != self._channel:
                    mask[index] = OTHER_CHANNEL
        return bytes(mask) if any(mask) else None

    def in_sample(self, sample_rate: int) -> bool:
        """Return True if the next message is drawn for a consumer's sample."""
        return self.random() < sample_rate / 100

    def gathering(self, sample_rate: int, room: int) -> Gathering:
        return Gathering(room, sample_rate, self.random)


def or_else(chosen: int, ended: int) -> int:
    """Return the first reason that applies. A message that is not for the channel never ends."""
    return chosen or ended


def wanted_runs(mask: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the wanted messages between these indexes."""
    return (match.span() for match in _WANTED_RUNS.finditer(mask, start, stop))


def count_skipped(counters: dict[str, int], mask: bytes, start: int, stop: int) -> None:
    """Count the unwanted messages between these indexes, which the cursor passes."""
    for reason, name in COUNTED.items():
        counters[name] += mask.count(reason, start, stop)


class Gathering:
    """A delivery that is being gathered for a consumer with `room`.

    It may take messages of several blocks, and messages that are not adjacent. `offered` is how
    many messages were offered to this consumer. `left_out` is how many of them are not in its
    sample. A sample is drawn from as many messages as the consumer has room for, and no more.
    Otherwise a consumer with a sample of 1% would quickly use up the messages that the others wait
    for.
    """

    def __init__(self, room: int, sample_rate: int, random: Callable[[], float]) -> None:
        self.runs: list[Run] = []
        self.parts: list[Part] = []
        self.offered = 0
        self.left_out = 0
        self._room = room
        self._share = sample_rate / 100  # 0 means all messages, without a sample
        self._random = random
        self._count = 0
        self._size = 0
        self._next = -1  # end of the last run

    def add(self, block: Block, start: int, mask: bytes) -> int:
        """Add the wanted messages of the block from index `start` on.

        Return the index at which to continue. It is below the end of the block if no more messages
        fit.
        """
        columns = (block.body, block.key, block.tag, block.headers)
        ends = [column.offsets for column in columns if column is not None]
        for match in _WANTED_RUNS.finditer(mask, start):
            at, stop = match.span()
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
        """Return how many of these messages may be offered, and their size in bytes."""
        count = stop - start
        if count > self._room - self.offered:
            count = self._room - self.offered
        if not self.parts and not self._share:
            # The first part may be as large as its block.
            return count, _bytes(ends, start, start + count)
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
        for match in _WANTED_RUNS.finditer(drawn):
            first, end = match.span()
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
    """Return the size of these messages in a block's columns."""
    size = 0
    for column in ends:
        size += column[stop] - column[start]
    return size
