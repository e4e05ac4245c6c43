"""Sifting: finds the messages of an append whose ids the topic knows. Pure.

| what is published | what the index has | what is stored |
|---|---|---|
| a message without an id | | the message |
| an id | nothing within the window | the message |
| an id | an offset | nothing; the answer has that offset |
| an id | a delayed message | nothing; the answer has the offset -1 |
| the same id twice in one append | nothing | the first one |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...storage.dedupe.id_format import NO_OFFSET
from ...transport.block.block import Block, pick

Repeats = tuple[tuple[int, int], ...]
"""(index, offset of the earlier message) of messages that were not stored, ascending."""


class Left(NamedTuple):
    """The rest of a block whose other messages were stored before, or None if there is no rest."""

    block: Block | None
    repeats: Repeats


class Sifted(NamedTuple):
    """The result of `sift`: the blocks to store, and what becomes known with them.

    `kept` are the positions of these blocks in the append. `rest` maps the position of a block that
    is not whole to its rest, and to rows (index, offset, place): the offset of an earlier message,
    or the place of the message among those of this append.
    """

    blocks: list[Block]
    kept: list[int]
    rest: dict[int, tuple[Block | None, list[tuple[int, int, int]]]]
    digests: list[bytes]
    places: list[int]

    def left(self, first_offset: int) -> dict[int, Left]:
        """Return what is left of the blocks, if the first kept message has this offset.

        For delayed messages, that is NO_OFFSET.
        """

        def offset_of(offset: int, place: int) -> int:
            if place < 0:
                return offset
            return NO_OFFSET if first_offset < 0 else first_offset + place

        return {
            position: Left(
                block, tuple((index, offset_of(offset, place)) for index, offset, place in rows)
            )
            for position, (block, rows) in self.rest.items()
        }


def sift(blocks: Sequence[Block], known: Callable[[Sequence[bytes]], Mapping[int, int]]) -> Sifted:
    """Find the messages whose ids are known.

    `known` returns index -> offset for those of the digests that the index has.
    """
    wanted = [digest for block in blocks for digest in block.ids or () if digest is not None]
    stored = known(wanted)
    sifted = Sifted([], [], {}, [], [])
    if not stored and len({*wanted}) == len(wanted):
        return _whole(blocks, wanted, sifted)
    firsts: dict[bytes, int] = {}
    place = following = 0
    for position, block in enumerate(blocks):
        rows: list[int] = []
        repeats: list[tuple[int, int, int]] = []
        for index, digest in enumerate(block.ids or ()):
            if digest is not None:
                at, following = following, following + 1
                if at in stored:
                    repeats.append((index, stored[at], -1))
                    continue
                if digest in firsts:
                    repeats.append((index, NO_OFFSET, firsts[digest]))
                    continue
                firsts[digest] = place
            rows.append(index)
            place += 1
        if block.ids is None:
            place += block.count
        kept: Block | None = block
        if repeats:
            kept = pick(block, rows) if rows else None
            sifted.rest[position] = (kept, repeats)
        if kept is not None:
            sifted.blocks.append(kept)
            sifted.kept.append(position)
    sifted.digests.extend(firsts)
    sifted.places.extend(firsts.values())
    return sifted


def _whole(blocks: Sequence[Block], digests: list[bytes], sifted: Sifted) -> Sifted:
    """Return all blocks, because no id is known. This is the usual case, and faster."""
    sifted.blocks.extend(blocks)
    sifted.kept.extend(range(len(blocks)))
    sifted.digests.extend(digests)
    place = 0
    for block in blocks:
        if block.ids is not None:
            sifted.places.extend(
                place + index for index, digest in enumerate(block.ids) if digest is not None
            )
        place += block.count
    return sifted
