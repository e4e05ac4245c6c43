"""Tests of the block: what is packed is read back, a cut or gathered block has the same messages,
and a flipped bit is noticed.
"""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import (
    BLOCK_BYTES_MAX,
    BLOCK_COUNT_MAX,
    DISK_MAGIC,
    HEADER_BYTES,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES,
    TRAILER_BYTES,
    Block,
    Column,
    Header,
    Limits,
    check_block,
    check_columns,
    cut,
    decode_header,
    encode_header,
    open_block,
    pack,
    with_place,
    without_bodies,
)
from zsq.transport.errors import (
    E_BAD_BLOCK,
    E_CHECKSUM,
    E_TOO_BIG,
    CorruptBlock,
    UsageError,
    ZsqError,
)

Messages = list[tuple[bytes, bytes | None, bytes | None, bytes | None]]
VALUE: Final = st.one_of(st.none(), st.just(b""), st.binary(max_size=12))
MESSAGES: Final = st.lists(
    st.tuples(st.binary(max_size=40), VALUE, VALUE, VALUE), min_size=1, max_size=40
)


def made(messages: Messages, **more: Any) -> Block:
    bodies, keys, tags, headers = (list(column) for column in zip(*messages, strict=True))
    return pack(bodies, keys=keys, tags=tags, headers=headers, **more)


def values(column: Column | None, count: int) -> list[bytes | None]:
    return [None] * count if column is None else column.values()


def messages_of(block: Block) -> Messages:
    columns = (
        block.body.values(),
        *(values(column, block.count) for column in (block.key, block.tag, block.headers)),
    )
    assert all(len(column) == block.count for column in columns)
    return list(zip(*columns, strict=True))


def travelled(block: Block) -> Block:
    """Return the block as it arrives over the wire, checked like a block from an unknown peer."""
    arrived = open_block(block.wire_header(), bytes(block.columns))
    check_block(arrived)
    return arrived


# Round trips


@given(MESSAGES)
def test_packed_messages_are_read_back_unchanged(messages: Messages) -> None:
    block = travelled(
        made(messages, producer_id=2**64 - 1, sequence=2**63, first_offset=2**53, time_ns=2**62)
    )
    assert messages_of(block) == messages
    assert [block.body.value(i) for i in range(block.count)] == [message[0] for message in messages]
    assert block.length == HEADER_BYTES + len(block.columns)
    assert block.length % 8 == 0
    assert block.next_offset == 2**53 + len(messages)
    assert block.time_of(0) == 2**62


@given(MESSAGES, st.data())
def test_a_cut_block_holds_the_same_messages(messages: Messages, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    times = data.draw(st.one_of(st.none(), st.just(list(range(len(messages))))))
    block = made(messages, first_offset=100, time_ns=7, times=times, producer_id=3, sequence=4)
    piece = travelled(cut(block, start, stop))
    assert messages_of(piece) == messages[start:stop]
    assert piece.first_offset == 100 + start
    assert (piece.header.producer_id, piece.header.sequence, piece.header.time_ns) == (3, 4, 7)
    assert [piece.time_of(i) for i in range(piece.count)] == (
        [7] * piece.count if times is None else times[start:stop]
    )
    again = data.draw(st.integers(0, piece.count - 1))
    assert (
        messages_of(travelled(cut(piece, again, piece.count))) == messages[start + again : stop]
    ), "a slice of a slice"


@given(MESSAGES, st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_block_with_another_place_keeps_its_messages(
    messages: Messages, offset: int, time_ns: int
) -> None:
    block = made(messages, producer_id=1, sequence=2)
    placed = with_place(block, offset, time_ns)
    assert placed.payload is block.payload
    assert placed.header == block.header._replace(first_offset=offset, time_ns=time_ns)
    assert messages_of(travelled(placed)) == messages
    assert block.first_offset == 0


def test_null_is_not_empty() -> None:
    block = travelled(
        pack(
            [b"", b"a", b"b"],
            keys=[None, b"", b"k"],
            tags=[None, None, None],
            headers=[b"", b"", b""],
        )
    )
    assert values(block.key, 3) == [None, b"", b"k"]
    assert values(block.tag, 3) == [None, None, None]
    assert values(block.headers, 3) == [b"", b"", b""]
    piece = travelled(cut(block, 1, 3))
    assert values(piece.key, 2) == [b"", b"k"]
    assert block.key is not None
    assert [block.key.value(i) for i in range(3)] == [None, b"", b"k"]
    assert pack([b"a"]).key is None


@given(MESSAGES, st.booleans())
def test_a_block_without_bodies_has_all_else(messages: Messages, timed: bool) -> None:
    times = list(range(len(messages))) if timed else None
    block = made(messages, first_offset=100, time_ns=7, times=times, producer_id=3, sequence=4)
    bare = travelled(without_bodies(block))
    assert messages_of(bare) == [(b"", *others) for _, *others in messages]
    assert bare.header._replace(length=0, columns_crc=0) == block.header._replace(
        length=0, columns_crc=0
    )
    assert [bare.time_of(i) for i in range(bare.count)] == (times or [7] * bare.count)
    assert messages_of(without_bodies(cut(block, len(messages) // 2, len(messages)))) == [
        (b"", *others) for _, *others in messages[len(messages) // 2 :]
    ]


def test_a_whole_cut_is_the_block_itself() -> None:
    block = pack([b"a", b"b"])
    assert cut(block, 0, 2) is block
    for start, stop in ((0, 0), (1, 1), (-1, 1), (1, 3)):
        with pytest.raises(ValueError):
            cut(block, start, stop)


def test_a_slice_keeps_its_offset_values() -> None:
    """The slice has Arrow's layout: readers subtract the first offset."""
    piece = cut(pack([b"abc", b"de", b"f"]), 1, 3)
    assert piece.body.offsets.tolist() == [3, 5, 6]
    assert bytes(piece.body.data) == b"def"


def test_a_disk_header_is_read_only_with_its_magic_and_seed() -> None:
    header = pack([b"a"], producer_id=5).header
    disk = encode_header(header, magic=DISK_MAGIC, seed=99)
    assert decode_header(disk, magic=DISK_MAGIC, seed=99) == header
    for magic, seed in ((DISK_MAGIC, 98), (DISK_MAGIC, 0), (b"ZSQB", 99)):
        with pytest.raises(ZsqError):
            decode_header(disk, magic=magic, seed=seed)


# Damage


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def test_every_flipped_bit_is_noticed() -> None:
    block = pack(
        [b"hello", b"", b"x"], keys=[b"k", None, b""], times=[1, 2, 3], producer_id=9, sequence=8
    )
    head, columns = block.wire_header(), bytes(block.columns)
    for bit in range(len(head) * 8):
        with pytest.raises(ZsqError):
            decode_header(flipped(head, bit))
    for bit in range(len(columns) * 8):
        with pytest.raises(ZsqError) as error:
            check_columns(block.header, memoryview(flipped(columns, bit)))
        assert isinstance(error.value, CorruptBlock)
        assert error.value.code == E_CHECKSUM
    for size in range(0, len(columns), 8):
        with pytest.raises(ZsqError):
            check_columns(block.header, memoryview(columns[:size]))
    for size in range(len(head)):
        with pytest.raises(UsageError):
            decode_header(head[:size])


def forged(block: Block, change: Callable[[bytearray], None] | None = None, **fields: Any) -> Block:
    """Make a block with nonsense in it and correct checksums."""
    columns = bytearray(block.columns)
    if change is not None:
        change(columns)
    header = block.header._replace(**{"length": HEADER_BYTES + len(columns), **fields})
    struct.pack_into("<I", columns, len(columns) - TRAILER_BYTES, header.length)
    return Block(
        header._replace(columns_crc=crc32c(bytes(columns[:-TRAILER_BYTES]))), bytes(columns)
    )


def write_int(columns: bytearray, position: int, value: int) -> None:
    struct.pack_into("<i", columns, position, value)


def refused(block: Block) -> str:
    with pytest.raises(UsageError) as error:
        check_block(block)
    return error.value.code


def test_offsets_that_go_backwards_are_refused() -> None:
    block = pack([b"abcd", b"efgh", b"ijkl"])
    assert block.body.offsets.tolist() == [0, 4, 8, 12]
    for position, value in ((4, 9), (8, 3), (8, 13), (4, -1), (0, -4), (0, 13), (12, 4)):
        assert (
            refused(forged(block, partial(write_int, position=position, value=value)))
            == E_BAD_BLOCK
        )


def test_one_wrong_offset_among_messages_of_equal_sizes_is_refused() -> None:
    block = pack([b"%04d" % number for number in range(50)])
    assert block.body.even_size() == 4
    for index, value in ((1, 9), (20, 75), (20, 85), (49, 191), (50, 192)):
        change = partial(write_int, position=4 * index, value=value)
        assert refused(forged(block, change)) == E_BAD_BLOCK


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 59), st.integers(0, 9))
def test_messages_of_nearly_equal_sizes_are_read_back_unchanged(
    count: int, size: int, index: int, other: int
) -> None:
    bodies = [bytes([number]) * size for number in range(count)]
    bodies[index % count] = bytes([99]) * other
    block = travelled(pack(bodies))
    assert block.body.values() == bodies
    assert cut(block, count // 3, count).body.values() == bodies[count // 3 :]


@pytest.mark.parametrize("value", [13, 2**31 - 1, -1, -(2**31), 100])
def test_offsets_that_leave_the_block_are_refused(value: int) -> None:
    block = pack([b"abcd", b"efgh"], keys=[b"k", b"l"])
    assert refused(forged(block, partial(write_int, position=8, value=value))) == E_BAD_BLOCK


@pytest.mark.parametrize("bits", range(1, 128))
def test_columns_that_are_not_there_are_refused_or_harmless(bits: int) -> None:
    """Whatever columns the header claims, reads stay inside the block."""
    block = forged(pack([b"abcd", b"efgh"]), columns=bits)
    try:
        check_block(block)
    except UsageError:
        return
    messages_of(block)


@pytest.mark.parametrize("count", [1, 3, 4, 100, BLOCK_COUNT_MAX])
def test_a_wrong_count_is_refused(count: int) -> None:
    assert refused(forged(pack([b"abcd", b"efgh"]), count=count)) == E_BAD_BLOCK


def test_fuzzed_columns_never_crash() -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=400), st.integers(0, 127), st.integers(1, 50))
    def run(data: bytes, bits: int, count: int) -> None:
        columns = bytearray(data + bytes(-len(data) % 8) + bytes(TRAILER_BYTES))
        struct.pack_into("<II", columns, len(columns) - 8, HEADER_BYTES + len(columns), 0x42515A5F)
        header = Header(
            bits, 0, HEADER_BYTES + len(columns), count, 0, 0, 0, 0, crc32c(bytes(columns[:-8]))
        )
        block = Block(header, bytes(columns))
        try:
            check_block(block)
        except UsageError:
            return
        assert len(messages_of(block)) == count

    run()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"count": 0}, E_BAD_BLOCK),
        ({"count": BLOCK_COUNT_MAX + 1}, E_TOO_BIG),
        ({"length": BLOCK_BYTES_MAX + 8}, E_TOO_BIG),
        ({"length": 64}, E_BAD_BLOCK),
        ({"length": 0}, E_BAD_BLOCK),
        ({"length": 100}, E_BAD_BLOCK),
        ({"columns": 128}, E_BAD_BLOCK),
        ({"flags": 1}, E_BAD_BLOCK),
    ],
)
def test_each_impossible_header_is_refused(fields: dict[str, int], code: str) -> None:
    header = pack([b"a"]).header._replace(**fields)
    with pytest.raises(UsageError) as error:
        decode_header(encode_header(header))
    assert error.value.code == code


# Limits


def test_a_message_or_key_over_its_limit_is_refused() -> None:
    travelled(pack([b"x" * MESSAGE_BYTES_MAX], keys=[b"k" * KEY_BYTES_MAX]))
    wide = Limits(2 * MESSAGE_BYTES_MAX, 2 * KEY_BYTES_MAX)
    for bodies, keys, what in (
        ([b"x" * (MESSAGE_BYTES_MAX + 1)], None, "message"),
        ([b"x"] * 20, [b"k" * (KEY_BYTES_MAX + 1)] * 20, "key"),
        ([b"x"], [b"k" * (KEY_BYTES_MAX + 1)], "key"),
    ):
        with pytest.raises(UsageError, match=what) as error:
            pack(bodies, keys=keys)
        assert error.value.code == E_TOO_BIG
        assert refused(pack(bodies, keys=keys, limits=wide)) == E_TOO_BIG
        check_block(pack(bodies, keys=keys, limits=wide), wide)


def test_a_block_over_its_limits_is_refused() -> None:
    assert pack([b""] * BLOCK_COUNT_MAX).count == BLOCK_COUNT_MAX
    for bodies in ([b""] * (BLOCK_COUNT_MAX + 1), [b"x" * MESSAGE_BYTES_MAX] * 8):
        with pytest.raises(UsageError) as error:
            pack(bodies)
        assert error.value.code == E_TOO_BIG
    with pytest.raises(UsageError) as error:
        pack([])
    assert error.value.code == E_BAD_BLOCK


@pytest.mark.parametrize("bodies", [["text"], [b"a", "b"], [3], [None]])
def test_bodies_that_are_not_bytes_are_refused(bodies: list[Any]) -> None:
    with pytest.raises(UsageError) as error:
        pack(bodies)
    assert error.value.code == E_BAD_BLOCK


# Work


def calls_of(work: Callable[[], object]) -> int:
    """Return how many Python and C calls `work` makes."""
    number = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in {"call", "c_call"}

    gc.disable()  # the calls of its callbacks would be counted too
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return number


def whole(count: int) -> Block:
    """Make a block with all columns, and with nulls. All keys and tags together have more bytes
    than a single one may have. So the check has to search both sizes of block for the longest one.
    """
    some = [b"k" * 100, None] * (count // 2)
    return pack(
        [b"x" * 20] * count,
        keys=some,
        tags=some,
        headers=[b"", None] * (count // 2),
        times=[1] * count,
        producer_id=1,
        sequence=1,
    )


@pytest.mark.parametrize(
    "work",
    [
        check_block,
        lambda block: cut(block, 1, block.count - 1),
        lambda block: with_place(block, 5, 6),
        lambda block: open_block(block.wire_header(), block.payload),
        lambda block: check_columns(block.header, block.columns),
    ],
    ids=["check_block", "cut", "with_place", "open_block", "check_columns"],
)
def test_work_is_per_block_not_per_message(work: Callable[[Block], object]) -> None:
    few, many = whole(10), whole(10_000)
    extra = calls_of(lambda: work(Block(many.header, many.payload))) - calls_of(
        lambda: work(Block(few.header, few.payload))
    )
    pieces = len(many.columns) // PIECE_BYTES  # `cut` computes their checksums
    assert 0 <= extra <= 3 * pieces < many.count // 10
