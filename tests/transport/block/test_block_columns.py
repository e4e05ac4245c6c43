"""Tests of blocks from finished columns: they equal the blocks that packing the same messages
gives, and wrong columns are refused.
"""

from __future__ import annotations

import struct
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import BLOCK_COUNT_MAX, Block, Column, Limits, check_block, cut, pack
from zsq.transport.block.block_columns import join_columns, slice_bitmap
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_BLOCK, E_TOO_BIG, UsageError

VALUE: Final = st.one_of(st.none(), st.just(b""), st.binary(max_size=12))
ROWS: Final = st.lists(
    st.tuples(st.binary(max_size=40), VALUE, VALUE, VALUE), min_size=1, max_size=40
)


def column(values: list[bytes | None], first: int = 0) -> Column:
    """Return a column as Arrow has it in a slice: its offsets begin at `first`."""
    ends = [first]
    for value in values:
        ends.append(ends[-1] + len(value or b""))
    bits = sum(1 << i for i, value in enumerate(values) if value is not None)
    validity = (
        memoryview(bits.to_bytes((len(values) + 7) // 8, "little")) if None in values else None
    )
    data = memoryview(b"".join(value or b"" for value in values))
    return Column(memoryview(struct.pack(f"<{len(ends)}i", *ends)).cast("i"), data, validity)


def joined(
    rows: list[tuple[bytes, bytes | None, bytes | None, bytes | None]], first: int = 0
) -> Block:
    return join_columns(
        len(rows), *(column(list(values), first) for values in zip(*rows, strict=True))
    )


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_joined_columns_equal_the_packed_messages(
    rows: list[tuple[bytes, bytes | None, bytes | None, bytes | None]],
) -> None:
    bodies, keys, tags, headers = (list(values) for values in zip(*rows, strict=True))
    packed = pack(bodies, keys=keys, tags=tags, headers=headers)
    block = joined(rows)
    assert (block.header, bytes(block.columns)) == (packed.header, bytes(packed.columns))
    check_block(block)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 1 << 20))
def test_a_slice_keeps_its_offsets(
    rows: list[tuple[bytes, bytes | None, bytes | None, bytes | None]], first: int
) -> None:
    block = joined(rows, first)
    check_block(block)
    assert block.body.offsets[0] == first
    found = [
        block.body.values(),
        *(c.values() for c in (block.key, block.tag, block.headers) if c is not None),
    ]
    assert list(zip(*found, strict=True)) == rows


def test_a_column_of_a_block_is_a_column() -> None:
    block = cut(
        pack([b"%d" % i for i in range(100)], keys=[None if i % 3 else b"k" for i in range(100)]),
        10,
        90,
    )
    again = join_columns(block.count, block.body, block.key, sequence=7, producer_id=9)
    assert again.body.values() == block.body.values()
    assert again.key is not None
    assert block.key is not None
    assert again.key.values() == block.key.values()
    assert (again.header.sequence, again.header.producer_id, again.header.columns_crc) == (
        7,
        9,
        block.header.columns_crc,
    )


@pytest.mark.parametrize(
    ("column_of", "limits", "text"),
    [
        ("message", Limits(max_msg_size=5), "message of 6 bytes is over the limit of 5 bytes"),
        ("key", Limits(key_bytes_max=5), "key of 6 bytes is over the limit of 5 bytes"),
        ("tag", Limits(tag_bytes_max=5), "tag of 6 bytes is over the limit of 5 bytes"),
        ("headers", Limits(headers_bytes_max=5), "headers of 6 bytes is over the limit of 5 bytes"),
    ],
)
def test_a_column_over_its_limit_is_refused_by_name(
    column_of: str, limits: Limits, text: str
) -> None:
    small, large = column([b"a", b"12345", b""]), column([b"a", b"123456", b""], 3)
    columns = [
        large if name == column_of else small for name in ("message", "key", "tag", "headers")
    ]
    with pytest.raises(UsageError, match=text) as caught:
        join_columns(3, *columns, limits=limits)
    assert caught.value.code == E_TOO_BIG
    assert join_columns(3, *columns).count == 3, "many small ones may be more than the limit of one"
    join_columns(3, small, small, small, small, limits=limits)


@given(
    st.lists(st.integers(0, 5), min_size=100, max_size=300),
    st.integers(0, 99),
    st.integers(90, 300),
)
def test_one_large_value_among_small_ones_is_found(sizes: list[int], at: int, size: int) -> None:
    sizes[at] = size
    tags = column([bytes(n) for n in sizes], 3)
    if size > 100:
        with pytest.raises(UsageError, match=f"tag of {size} bytes"):
            join_columns(
                len(sizes), column([b""] * len(sizes)), tag=tags, limits=Limits(tag_bytes_max=100)
            )
    else:
        assert (
            join_columns(
                len(sizes), column([b""] * len(sizes)), tag=tags, limits=Limits(tag_bytes_max=100)
            ).tag
            is not None
        )


def test_a_block_has_limits() -> None:
    with pytest.raises(UsageError, match=E_TOO_BIG):
        join_columns(BLOCK_COUNT_MAX + 1, column([b""] * (BLOCK_COUNT_MAX + 1)))
    with pytest.raises(UsageError, match=E_TOO_BIG):
        join_columns(9, column([bytes(1_000_000)] * 9))
    with pytest.raises(UsageError, match=E_BAD_BLOCK):
        join_columns(0, column([]))


def test_a_null_body_is_named() -> None:
    with pytest.raises(UsageError, match="message 2 of the block is null") as caught:
        join_columns(4, column([b"a", b"", None, b"b"]))
    assert caught.value.code == E_BAD_ARGUMENT
    whole = column([b"a", b"b"])
    full = Column(whole.offsets, whole.data, memoryview(b"\x03"))
    assert join_columns(2, full).body.validity is None, "a bitmap without a null is none"


def test_columns_that_do_not_fit_together() -> None:
    good = column([b"a", b"bc"])
    wide = memoryview(struct.pack("<3q", 0, 1, 3)).cast("q")
    wrong = [
        Column(good.offsets, memoryview(b"abcd"), None),
        Column(good.offsets[:2], memoryview(b"a"), None),
        Column(wide, good.data, None),
        Column(memoryview(struct.pack("<3i", -1, 0, 2)).cast("i"), good.data, None),
    ]
    for one in wrong:
        with pytest.raises(UsageError, match=E_BAD_BLOCK):
            join_columns(2, one)
    with pytest.raises(UsageError, match="bitmap"):
        join_columns(2, good, Column(good.offsets, good.data, memoryview(b"\1\0")))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=70), st.data())
def test_a_bitmap_can_be_cut_at_any_bit(bits: list[bool], data: st.DataObject) -> None:
    bitmap = memoryview(
        sum(1 << i for i, bit in enumerate(bits) if bit).to_bytes((len(bits) + 7) // 8, "little")
    )
    start = data.draw(st.integers(0, len(bits) - 1))
    count = data.draw(st.integers(1, len(bits) - start))
    found = slice_bitmap(bitmap, start, count)
    wanted = bits[start : start + count]
    assert (found is None) == all(wanted)
    if found is not None:
        assert [bool(found[i >> 3] >> (i & 7) & 1) for i in range(count)] == wanted
    with pytest.raises(UsageError):
        slice_bitmap(bitmap, start, len(bitmap) * 8 - start + 1)
