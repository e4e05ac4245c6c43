"""Tests of the conversion between Arrow and blocks, in both directions: the content is the same,
and no buffer is copied without need.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from zsq import UsageError
from zsq.apps.spark.packing import (
    BLOCK_BYTES,
    Packer,
    cuts,
    rows_as_batches,
    split_by_topic,
    strip_of,
)
from zsq.apps.spark.schema import COLUMNS, check_sink_columns, simple
from zsq.transport.arrow.batches import ROWS_MIN, BatchMaker, arrow_schema
from zsq.transport.block.block import Block, check_block, cut, pack, with_place
from zsq.transport.block.block_format import BLOCK_COUNT_MAX
from zsq.transport.wire.codec import pack_headers, unpack_headers

MAYBE = st.none() | st.binary(max_size=12)
TEXT = st.none() | st.text(max_size=6)
HEADERS = st.none() | st.dictionaries(
    st.text(max_size=5), st.none() | st.binary(max_size=5), max_size=3
)
ROW = st.tuples(st.binary(max_size=40), MAYBE, TEXT, HEADERS)
STORED_NS = 1_700_000_000_123_456_789
Row = tuple[bytes, bytes | None, str | None, dict[str, bytes | None] | None]


# From Arrow to blocks


def batch_of(
    rows: list[Row],
    *,
    large: bool = False,
    value_as_text: bool = False,
    tag_as_binary: bool = False,
) -> pa.RecordBatch:
    binary, text = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    values: list[Any] = (
        [value.hex() for value, *_ in rows] if value_as_text else [row[0] for row in rows]
    )
    tags: list[Any] = (
        [None if row[2] is None else row[2].encode() for row in rows]
        if tag_as_binary
        else [row[2] for row in rows]
    )
    headers = [
        None if row[3] is None else [{"key": key, "value": value} for key, value in row[3].items()]
        for row in rows
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[1] for row in rows], binary),
            pa.array(values, text if value_as_text else binary),
            pa.array(tags, binary if tag_as_binary else text),
            pa.array(headers, pa.list_(pa.struct([("key", text), ("value", binary)]))),
        ],
        names=["key", "value", "tag", "headers"],
    )


def rows_of(blocks: list[Block]) -> list[Row]:
    rows: list[Row] = []
    for block in blocks:
        check_block(block)
        bodies = block.body.values()
        nothing: list[Any] = [None] * block.count
        keys = nothing if block.key is None else block.key.values()
        tags = nothing if block.tag is None else block.tag.values()
        headers = nothing if block.headers is None else block.headers.values()
        for body, key, tag, packed in zip(bodies, keys, tags, headers, strict=True):
            assert body is not None
            rows.append(
                (  # type: ignore[arg-type]
                    body,
                    key,
                    None if tag is None else tag.decode(),
                    None if packed is None else unpack_headers(packed),
                )
            )
    return rows


def packed(*batches: pa.RecordBatch, block_bytes: int = BLOCK_BYTES) -> list[Block]:
    packer = Packer(block_bytes)
    return [block for batch in batches for block in packer.blocks(batch)] + list(packer.rest())


@given(
    st.lists(st.lists(ROW, max_size=30), max_size=4),
    st.integers(60, 2000),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
)
def test_rows_come_back_from_blocks(
    batches: list[list[Row]], block_bytes: int, large: bool, tag_as_binary: bool, skip: int
) -> None:
    made = [
        batch_of(rows, large=large, tag_as_binary=tag_as_binary).slice(skip) for rows in batches
    ]
    blocks = packed(*made, block_bytes=block_bytes)
    assert rows_of(blocks) == [row for rows in batches for row in rows[skip:]]
    assert all(block.header.producer_id == 0 and block.header.flags == 0 for block in blocks)


def test_text_values_are_bytes() -> None:
    [block] = packed(batch_of([(b"\x01", None, None, None)], value_as_text=True))
    assert block.body.values() == [b"01"]
    assert (block.key, block.tag, block.headers) == (None, None, None), (
        "a column of nulls is left out"
    )


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_a_tag_is_text(kind: pa.DataType) -> None:
    """The bytes of a tag are checked, even if Spark declares the column as a string: Spark casts
    bytes to a string without checking them.
    """
    tags = pa.array(
        [b"ok", None, b"\xff\xfe"],
        pa.large_binary() if kind in (pa.large_binary(), pa.large_string()) else pa.binary(),
    )
    made = pa.RecordBatch.from_arrays(
        [pa.array([b"a", b"b", b"c"]), tags.view(kind)], names=["value", "tag"]
    )
    [block] = packed(made.slice(0, 2))
    assert block.tag is not None
    assert block.tag.values() == [b"ok", None]
    with pytest.raises(UsageError, match="column 'tag' holds bytes that are not UTF-8"):
        packed(made)


def test_blocks_are_of_good_size() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([b"x" * 200] * 10_000)], names=["value"])
    sizes = [block.length for block in packed(rows)]
    assert len(sizes) == 8
    assert all(BLOCK_BYTES // 2 < size < BLOCK_BYTES + 1024 for size in sizes)
    # Several batches of 20 KB are collected in one block.
    tiny = [rows.slice(i * 100, 100) for i in range(20)]
    assert [block.count for block in packed(*tiny)] == [700, 700, 600]
    short = pa.RecordBatch.from_arrays([pa.array([b"x"] * 25_000)], names=["value"])
    assert [block.count for block in packed(short)] == [8334, 8333, 8333]


def test_no_more_rows_wait_than_a_block_holds() -> None:
    """Empty rows take no bytes, but every batch that waits needs memory."""
    packer = Packer(1 << 40)
    batch = pa.RecordBatch.from_arrays([pa.array([b""] * 1_000)], names=["value"])
    counts = [
        sum(block.count for block in packer.blocks(batch)) for _ in range(BLOCK_COUNT_MAX // 1_000)
    ]
    assert not any(counts[:-1]), "they wait for others"
    assert counts[-1] == 1_000 * len(counts)


def test_tiny_rows_before_large_ones_are_packed_in_order() -> None:
    rows = [b""] * 45_000 + [b"y" * 500_000] * 3
    blocks = packed(pa.RecordBatch.from_arrays([pa.array(rows)], names=["value"]))
    assert [body for block in blocks for body in block.body.values()] == rows


def test_tiny_rows_behind_a_large_one_keep_the_limit_of_a_block() -> None:
    """Half of the bytes are in the first row. So the number of rows after it is higher than the
    limit of one block.
    """
    rows = [b"y" * 500_000] + [b""] * (2 * BLOCK_COUNT_MAX - 1)
    blocks = packed(
        pa.RecordBatch.from_arrays([pa.array(rows)], names=["value"]), block_bytes=1 << 29
    )
    assert [body for block in blocks for body in block.body.values()] == rows
    assert max(block.count for block in blocks) <= BLOCK_COUNT_MAX


def test_a_large_row_among_small_ones_keeps_blocks_small() -> None:
    rows = [b"x" * 10] * 500 + [b"y" * 1_000_000] + [b"z"] * 500
    blocks = packed(pa.RecordBatch.from_arrays([pa.array(rows)], names=["value"]))
    assert [body for block in blocks for body in block.body.values()] == rows
    assert all(block.length < 1_000_000 + BLOCK_BYTES + 1024 for block in blocks)


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=300), st.integers(1, 100_000))
def test_cuts_leave_nothing_out(sizes: list[int], block_bytes: int) -> None:
    strip = strip_of(pa.array([b"x" * size for size in sizes]))
    assert strip is not None
    ends = cuts([strip], len(sizes), block_bytes)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(sizes)
    starts = [0, *ends]
    for start, stop in zip(starts, ends, strict=False):
        assert sum(sizes[start:stop]) <= block_bytes + max(sizes[start:stop])


def test_null_value_is_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([b"a", None])], names=["value"])
    with pytest.raises(UsageError, match="column 'value' is null in 1 rows"):
        packed(rows)


def test_a_message_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="message of 1048577 bytes is over the limit"):
        packed(pa.RecordBatch.from_arrays([pa.array([b"x" * 1_048_577])], names=["value"]))
    with pytest.raises(UsageError, match="key of 257 bytes is over the limit"):
        packed(
            pa.RecordBatch.from_arrays(
                [pa.array([b"x"]), pa.array([b"k" * 257])], names=["value", "key"]
            )
        )


def test_headers_may_be_maps_and_wrong_ones_are_refused() -> None:
    def one(headers: Any, kind: pa.DataType) -> Block:
        [block] = packed(
            pa.RecordBatch.from_arrays(
                [pa.array([b"v"]), pa.array([headers], kind)], names=["value", "headers"]
            )
        )
        return block

    pairs = pa.map_(pa.string(), pa.string())
    block = one([("a", "1")], pairs)
    assert block.headers is not None
    assert unpack_headers(block.headers.value(0)) == {"a": "1"}
    structs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(UsageError, match="header 'a' occurs twice"):
        one([{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], structs)
    with pytest.raises(UsageError, match="null key"):
        one([{"key": None, "value": b"1"}], structs)


def topics(*names: str | None) -> pa.RecordBatch:
    columns = [pa.array(names, pa.string()), pa.array(range(len(names)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "number"])


def test_rows_are_split_by_the_topics_that_they_name() -> None:
    def split(batch: pa.RecordBatch) -> dict[str, list[int]]:
        return {topic: rows.column("number").to_pylist() for topic, rows in split_by_topic(batch)}

    assert split(topics("a", "a")) == {"a": [0, 1]}
    mixed = topics("b", "a", "b", "c", "b")
    assert split(mixed) == {"b": [0, 2, 4], "a": [1], "c": [3]}
    assert list(split(mixed)) == ["b", "a", "c"]
    assert split(mixed.slice(1, 3)) == {"a": [1], "b": [2], "c": [3]}
    for names in (("a", None), (None, None)):
        with pytest.raises(UsageError, match="'topic' is null in some rows"):
            list(split_by_topic(topics(*names)))


def test_rows_without_arrow_are_packed_in_batches() -> None:
    fields = [
        ("value", "binary"),
        ("key", "string"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("tag", "void"),
    ]
    rows = [(bytearray(b"v"), "k", [{"key": "h", "value": b"1"}], None), (b"w", None, None, None)]
    [batch] = rows_as_batches(iter(rows), fields)
    assert rows_of(packed(batch)) == [(b"v", b"k", None, {"h": b"1"}), (b"w", None, None, None)]
    assert [
        batch.num_rows for batch in rows_as_batches([(b"v",)] * 20_001, [("value", "binary")])
    ] == [10_000, 10_000, 1]


@pytest.mark.parametrize(
    ("fields", "topic", "text"),
    [
        (
            [("key", "binary")],
            "t",
            r"needs a column 'value' \(binary or string\); the columns are: key binary",
        ),
        (
            [("value", "int")],
            "t",
            "'value' is of type int; the sink takes binary or string: cast it",
        ),
        ([("value", "struct<a:int>")], "t", "to_json"),
        (
            [("value", "binary"), ("offset", "bigint")],
            "t",
            r"no column 'offset' \(bigint\).*select",
        ),
        (
            [("value", "binary"), ("headers", "array<string>")],
            "t",
            "array<struct<key:string,value:binary>>",
        ),
        (
            [("value", "binary"), ("tag", "int")],
            "t",
            "'tag' is of type int; the sink takes string or binary",
        ),
        ([("value", "binary"), ("value", "binary")], "t", "occurs twice"),
        ([("value", "binary")], "", r"no topic is given: use \.option\('topic', NAME\)"),
    ],
)
def test_each_column_that_a_sink_cannot_take_is_refused(
    fields: list[tuple[str, str]], topic: str, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        check_sink_columns(fields, topic)


def test_columns_that_a_sink_takes_raise_nothing() -> None:
    check_sink_columns(
        [
            ("value", "string"),
            ("key", "varchar(9)"),
            ("tag", "string collate UTF8_LCASE"),
            ("topic", "string"),
        ],
        "",
    )
    check_sink_columns(
        [("value", "binary"), ("key", "void"), ("headers", "map<string,string>")], "t"
    )


# From blocks to Arrow


def test_the_schema_is_what_spark_makes_of_it() -> None:
    """Spark refuses batches whose types differ in any detail."""
    header = t.StructType(
        [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
    )
    kinds: dict[str, t.DataType] = {
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "topic": t.StringType(),
        "partition": t.IntegerType(),
        "offset": t.LongType(),
        "timestamp": t.TimestampType(),
        "timestampType": t.IntegerType(),
        "tag": t.StringType(),
        "headers": t.ArrayType(header),
    }
    for columns in (COLUMNS, ("value",), ("offset", "key")):
        struct = t.StructType([t.StructField(name, kinds[name]) for name in columns])
        assert struct.simpleString() == simple(columns)
        assert arrow_schema(columns).equals(
            to_arrow_schema(struct, timezone="UTC"), check_metadata=True
        )


def block_of(
    rows: list[Row], first: int = 0, time_ns: int = 0, times: list[int] | None = None
) -> Block:
    headers = [None if row[3] is None else pack_headers(row[3]) for row in rows]
    tags = [None if row[2] is None else row[2].encode() for row in rows]
    return pack(
        [row[0] for row in rows],
        keys=[row[1] for row in rows],
        tags=tags if any(tag is not None for tag in tags) else None,
        headers=headers if any(one is not None for one in headers) else None,
        times=times,
        first_offset=first,
        time_ns=time_ns,
    )


def expected(rows: list[Row], first: int, times_ns: list[int], kind: int) -> list[dict[str, Any]]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return [
        {
            "key": key,
            "value": value,
            "topic": "t",
            "partition": 0,
            "offset": first + i,
            "timestamp": epoch + datetime.timedelta(microseconds=times_ns[i] // 1000),
            "timestampType": kind,
            "tag": tag,
            "headers": None
            if headers is None
            else [{"key": name, "value": found} for name, found in headers.items()],
        }
        for i, (value, key, tag, headers) in enumerate(rows)
    ]


@given(st.lists(ROW, min_size=1, max_size=40), st.data())
def test_blocks_come_back_as_rows(rows: list[Row], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 2**60))
    times = data.draw(
        st.none() | st.lists(st.integers(-(2**60), 2**60), min_size=len(rows), max_size=len(rows))
    )
    block = block_of(rows, first, STORED_NS, times)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    if data.draw(st.booleans()):  # then the first offset is not 0
        block, rows, first = cut(block, start, stop), rows[start:stop], first + start
        times = None if times is None else times[start:stop]
        start, stop = 0, len(rows)
    made = BatchMaker("t", COLUMNS).batch(block, first + start, first + stop)
    made.validate(full=True)
    kind = 1 if times is None else 0
    # A message is never published after it was stored.
    shown = [min(time_ns, STORED_NS) for time_ns in times or [STORED_NS] * len(rows)]
    assert made.to_pylist() == expected(rows, first, shown, kind)[start:stop]


@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=12), st.integers(0, 300), st.integers(0, 300)
)
def test_small_blocks_are_laid_together(counts: list[int], before: int, behind: int) -> None:
    blocks, first = [], 1000
    for count in counts:
        blocks.append(with_place(pack([b"%d" % (first + i) for i in range(count)]), first, 0))
        first += count
    start, stop = 1000 + min(before, counts[0] - 1), max(first - min(behind, counts[-1] - 1), 1)
    if start >= stop:
        start, stop = 1000, first
    made = list(BatchMaker("t", ("offset", "value", "tag")).batches(iter(blocks), start, stop))
    assert [row["offset"] for batch in made for row in batch.to_pylist()] == list(
        range(start, stop)
    )
    assert [row["value"] for batch in made for row in batch.to_pylist()] == [
        b"%d" % i for i in range(start, stop)
    ]
    assert all(batch.num_rows >= ROWS_MIN for batch in made[:-1])
    assert all(batch.schema == made[0].schema for batch in made)


def test_large_messages_are_not_gathered_without_bound() -> None:
    blocks = [with_place(pack([b"x" * 1_000_000] * 3), i * 3, 0) for i in range(6)]
    assert [
        batch.num_rows for batch in BatchMaker("t", ("value",)).batches(iter(blocks), 0, 18)
    ] == [6, 6, 6]


def test_the_bytes_are_not_copied() -> None:
    block = block_of([(b"abc" * 20, b"k", "t", None)] * 100)
    made = BatchMaker("t", ("value", "key")).batch(block, 0, 100)
    here = pa.py_buffer(block.columns)
    for column in made.columns:
        for buffer in column.buffers()[1:]:
            assert here.address <= buffer.address < here.address + here.size
    shifted = cut(block, 10, 90)
    data = BatchMaker("t", ("value",)).batch(shifted, 10, 90).column(0).buffers()[2]
    there = pa.py_buffer(shifted.columns)
    assert there.address <= data.address < there.address + there.size, "only offsets are made anew"


def test_header_values_of_every_type_become_bytes() -> None:
    block = pack(
        [b"v"],
        headers=[
            pack_headers(
                {
                    "text": "é",
                    "number": 3,
                    "truth": True,
                    "nothing": None,
                    "raw": b"\xff",
                    "real": 1.5,
                }
            )
        ],
    )
    [row] = BatchMaker("t", ("headers",)).batch(block, 0, 1).to_pylist()
    values = {header["key"]: header["value"] for header in row["headers"]}
    assert values == {
        "text": "é".encode(),
        "number": b"3",
        "truth": b"true",
        "nothing": None,
        "raw": b"\xff",
        "real": b"1.5",
    }


def test_the_work_is_per_block_and_not_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fast path no Python object is made for a row: a block with a hundred times as many
    rows needs no more calls into Python.
    """
    import sys

    def calls(rows: int) -> int:
        count = 0

        def seen(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in {"call", "c_call"}

        batch = pa.RecordBatch.from_arrays(
            [pa.array([b"0123456789"] * rows), pa.array([b"k"] * rows)], names=["value", "key"]
        )
        block = pack([b"0123456789"] * rows, keys=[b"k"] * rows)
        maker = BatchMaker("t", [name for name in COLUMNS if name != "headers"])
        # The first call makes the objects that are made only once. They must not be counted.
        maker.batch(block, 0, rows)
        sys.setprofile(seen)
        try:
            packed(batch)
            maker.batch(block, 0, rows)
        finally:
            sys.setprofile(None)
        return count

    assert calls(5000) <= calls(50) + 20
