"""Tests of gathering messages from different places into one block: the messages are the same, with
keys, tags, headers and times, whatever is between them.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.block import block as module
from zsq.transport.block.block import Block, Column, check_block, cut, gather, open_block, pack

Row = tuple[bytes, bytes | None, bytes | None, bytes | None]
VALUE: Final = st.one_of(st.none(), st.just(b""), st.binary(max_size=12))
ROWS: Final = st.lists(
    st.tuples(st.binary(max_size=40), VALUE, VALUE, VALUE), min_size=1, max_size=60
)


def made(rows: list[Row], **more: Any) -> Block:
    bodies, keys, tags, headers = (list(column) for column in zip(*rows, strict=True))
    return pack(bodies, keys=keys, tags=tags, headers=headers, **more)


def rows_of(block: Block) -> list[Row]:
    def values(column: Column | None) -> list[bytes | None]:
        return [None] * block.count if column is None else column.values()

    return list(
        zip(
            values(block.body),  # type: ignore[arg-type]
            values(block.key),
            values(block.tag),
            values(block.headers),
            strict=True,
        )
    )


def travelled(block: Block) -> Block:
    found = open_block(block.wire_header(), bytes(block.columns))
    check_block(found)
    return found


@st.composite
def spans(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Choose some of a block's messages: disjoint ranges in any order (redeliveries come in the
    order in which they were returned).
    """
    cuts = (
        sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=12))) if size > 1 else [0, 1]
    )
    found = draw(st.permutations(list(zip(cuts[::2], cuts[1::2], strict=False))))
    return list(found)


@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.integers(1, 2)), min_size=1, max_size=4), st.data()
)
def test_a_gathered_block_has_exactly_the_named_messages(
    blocks: list[tuple[list[Row], bool, int]], data: st.DataObject
) -> None:
    parts: list[tuple[Block, int, int]] = []
    expected: list[Row] = []
    times: list[int] = []
    for number, (rows, own, time_ns) in enumerate(blocks):
        own_times = [100 + i for i in range(len(rows))] if own else None
        block = made(rows, first_offset=number * 1000, time_ns=time_ns, times=own_times)
        if data.draw(st.booleans()):  # a slice keeps its offset values, so they begin above 0
            start = data.draw(st.integers(0, len(rows) - 1))
            block, rows, own_times = (
                cut(block, start, len(rows)),
                rows[start:],
                own_times and own_times[start:],
            )
        for start, stop in data.draw(spans(len(rows))):
            parts.append((block, start, stop))
            expected += rows[start:stop]
            times += own_times[start:stop] if own_times else [time_ns] * (stop - start)
    block = travelled(gather(parts))
    assert rows_of(block) == expected
    assert [block.time_of(i) for i in range(block.count)] == times
    assert block.first_offset == parts[0][0].first_offset + parts[0][1]


@pytest.mark.parametrize("step", [1, 2, 7, 8, 9, 50])
def test_gathering_gives_the_same_for_close_and_distant_messages(step: int) -> None:
    rows: list[Row] = [
        (b"%d" % i, None if i % 3 else b"k%d" % i, b"t" * (i % 5), None if i % 4 else b"h")
        for i in range(500)
    ]
    block = made(rows)
    assert rows_of(gather([(block, i, i + 1) for i in range(3, 500, step)])) == rows[3::step]


def test_gathering_one_part_equals_cutting_it() -> None:
    block = pack([b"a", b"b"])
    assert gather([(block, 0, 2)]) is block
    assert gather([(block, 1, 2)]).header == cut(block, 1, 2).header


@pytest.mark.parametrize(("messages", "whole"), [(9, False), (10, True)])
def test_the_whole_block_is_checked_when_that_costs_less_than_many_parts(
    messages: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = pack([b"x"] * 200)
    block.check()
    monkeypatch.setattr(module, "PIECE_BYTES", len(block.columns) // 10 + 1)
    checks: list[Block] = []
    monkeypatch.setattr(Block, "check", lambda one: checks.append(one))
    monkeypatch.setattr(Block, "check_messages", lambda *_: None)
    gather([(block, 2 * at, 2 * at + 1) for at in range(messages)])
    assert checks == [block] * whole
