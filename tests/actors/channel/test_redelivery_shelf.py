"""Tests of the shelf of blocks against a list in order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.channel.block_shelf import BlockShelf
from zsq.transport.block.block import Block, pack, with_place

# There are gaps between the blocks.
BLOCKS = [
    with_place(pack([b"x" * (number * 37 % 200)] * (1 + number % 4)), number * 5, 0)
    for number in range(12)
]
BYTES_MAX = 700


@given(st.lists(st.integers(0, len(BLOCKS) - 1), max_size=40))
def test_the_oldest_go_first(numbers: list[int]) -> None:
    shelf = BlockShelf(BYTES_MAX)
    model: list[Block] = []
    for number in numbers:
        block = BLOCKS[number]
        shelf.put(block)
        if block in model:
            model.remove(block)
        model.append(block)
        while sum(b.length for b in model) > BYTES_MAX and len(model) > 1:
            model.pop(0)
        assert len(shelf) == len(model)
        assert shelf.bytes_held == sum(b.length for b in model)
        for offset in range(-1, 65):
            assert shelf.find(offset) is next(
                (b for b in model if b.first_offset <= offset < b.next_offset), None
            )


def test_one_block_larger_than_the_shelf_is_held_alone() -> None:
    shelf = BlockShelf(100)
    shelf.put(BLOCKS[0])
    large = with_place(pack([b"x" * 1000]), 100, 0)
    shelf.put(large)
    assert len(shelf) == 1
    assert shelf.find(100) is large
    shelf.clear()
    assert (len(shelf), shelf.bytes_held, shelf.find(100)) == (0, 0, None)
