"""Tests of `Reader.arrow` with a broker, and with the libraries that read its stream."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from support.topic import Topic

import zsq
from zsq.transport.arrow.batches import aligned
from zsq.transport.block.block import Block, pack
from zsq.transport.client.blocking import arrow_reader
from zsq.transport.client.blocking.range_reader import RangeReader

ROWS = 3000


def filled(topic: Topic) -> Topic:
    """Publish rows with and without each attribute, in blocks of several sizes."""
    with zsq.Producer(url=topic.url) as producer:
        for start, stop in ((0, 1), (1, 2), (2, 500), (500, ROWS)):
            rows = range(start, stop)
            producer.publish_many(
                topic.name,
                [b"%d" % row for row in rows],
                keys=[f"key-{row % 7}" if row % 3 else None for row in rows],
                tags=["even" if row % 2 == 0 else None for row in rows],
                headers=[
                    {"row": str(row), "raw": b"\xff"} if row % 5 == 0 else None for row in rows
                ],
            )
    return topic


def reader_of(topic: Topic) -> zsq.Reader:
    return zsq.Reader(topic.name, url=topic.url)


def test_without_value_the_broker_sends_no_bodies(topic: Topic) -> None:
    filled(topic)
    others = ["offset", "timestamp", "key", "tag", "headers"]
    with reader_of(topic) as reader:
        bare = reader.arrow(columns=others).read_all()
        assert bare.equals(reader.arrow().read_all().select(others))
    with RangeReader(topic.name, 0, ROWS, url=topic.url, bodies=False) as blocks:
        found = list(blocks)
    assert sum(block.count for block in found) == ROWS
    assert not any(len(block.body.data) for block in found)


def test_arrow_has_every_message_with_all_that_the_reader_has(topic: Topic) -> None:
    filled(topic)
    with reader_of(topic) as reader:
        found = reader.arrow().read_all()
        some = [reader.message(offset) for offset in (0, 1, 5, 30, ROWS - 1)]
    found.validate(full=True)
    assert found.schema.names == ["offset", "timestamp", "key", "tag", "value", "headers"]
    rows: list[dict[str, Any]] = found.to_pylist()
    assert [row["offset"] for row in rows] == list(range(ROWS))
    assert [row["value"] for row in rows] == [b"%d" % row for row in range(ROWS)]
    for message in some:
        row = rows[message.offset]
        assert (row["value"], row["key"], row["tag"]) == (message.body, message.key, message.tag)
        given = {one["key"]: one["value"] for one in row["headers"] or ()}
        assert given == {
            name: value.encode() if isinstance(value, str) else value
            for name, value in message.headers.items()
        }
        assert int(row["timestamp"].timestamp() * 1e6) == message.timestamp_ns // 1000


def test_arrow_returns_exactly_the_range_and_the_columns_that_were_asked(topic: Topic) -> None:
    filled(topic)
    with reader_of(topic) as reader:
        found = reader.arrow(400, 1700, columns=["value", "offset", "topic", "partition"])
        table = found.read_all()
        assert reader.arrow(7, 7).read_all().num_rows == 0
    assert table.schema.names == ["value", "offset", "topic", "partition"]
    assert table["offset"].to_pylist() == list(range(400, 1700))
    assert set(table["topic"].to_pylist()) == {topic.name}


def test_a_batch_is_made_only_when_it_is_read(topic: Topic) -> None:
    """A topic of 40 MB passes through a stream that holds about two replies and a batch."""
    body = bytes(100_000)
    topic.put(*[body] * 400)
    gc.collect()
    before = pa.total_allocated_bytes()
    peak = rows = 0
    with reader_of(topic) as reader:
        for batch in reader.arrow():
            rows += batch.num_rows
            assert batch.nbytes < 10 << 20
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert rows == 400
    assert peak < 20 << 20


def test_bodies_are_not_copied() -> None:
    block = pack([b"one", b"three"], keys=[b"k", None])
    from zsq.transport.arrow.batches import BatchMaker

    batch = BatchMaker("t", ("value", "key")).batch(block, 0, 2)
    whole = pa.py_buffer(block.columns)
    for column in batch.columns:
        data = column.buffers()[2]
        assert whole.address <= data.address < whole.address + whole.size


def test_a_block_at_an_odd_address_is_copied_once_and_others_are_not() -> None:
    block = pack([b"one", b"three"])
    assert pa.py_buffer(block.columns).address % 8 == 0
    assert aligned(block) is block
    room = bytearray(len(block.columns) + 8)
    first = -pa.py_buffer(room).address % 8 + 1
    room[first : first + len(block.columns)] = block.columns
    odd = Block(block.header, memoryview(room)[first : first + len(block.columns)])
    moved = aligned(odd)
    assert pa.py_buffer(moved.columns).address % 8 == 0
    assert moved.body.values() == [b"one", b"three"]


def test_tags_that_are_not_text_are_replaced_as_in_messages(topic: Topic) -> None:
    topic.put(b"a", b"b", b"c", tags=[b"\xff", "ok", None])
    with reader_of(topic) as reader:
        table = reader.arrow(columns=["tag"]).read_all()
        assert table["tag"].to_pylist() == [reader.message(0).tag, "ok", None]
    table.validate(full=True)


def test_lost_offsets_raise_or_are_left_out_with_a_warning(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.put(b"a", b"b")
    with reader_of(topic) as reader:
        with pytest.raises(zsq.DataLoss, match="offsets 2 to 4"):
            reader.arrow(0, 5).read_all()
        logging.getLogger("zsq").propagate = True
        assert reader.arrow(0, 5, on_data_loss="warn").read_all().num_rows == 2
    assert "3 messages of topic" in caplog.text


def test_a_wrong_column_and_a_missing_pyarrow_are_said_at_once(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.put(b"a")
    with reader_of(topic) as reader:
        with pytest.raises(zsq.UsageError, match="no column 'body'; the columns are key, value"):
            reader.arrow(columns=["body"])
        with pytest.raises(zsq.UsageError, match="each column once"):
            reader.arrow(columns=["key", "key"])
        with pytest.raises(zsq.UsageError, match=r"a list of names, such as \['value'\]"):
            reader.arrow(columns="value")
        monkeypatch.setattr(arrow_reader, "find_spec", lambda name: None)
        with pytest.raises(zsq.UsageError, match=r"pip install 'zsq\[arrow\]'"):
            reader.arrow()


def test_the_client_does_not_import_pyarrow() -> None:
    import subprocess

    code = "import sys, zsq; zsq.Reader; zsq.RangeReader; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_polars_reads_the_stream(topic: Topic) -> None:
    filled(topic)
    with reader_of(topic) as reader:
        frame = polars.from_arrow(reader.arrow())
        sizes = [polars.DataFrame(batch).height for batch in reader.arrow(columns=["offset"])]
    assert isinstance(frame, polars.DataFrame)
    assert frame.height == ROWS == sum(sizes)
    tagged = frame.filter(polars.col("tag") == "even").select(polars.col("offset").sum()).item()
    assert tagged == sum(range(0, ROWS, 2))
    assert frame["value"].to_list()[:3] == [b"0", b"1", b"2"]


def test_duckdb_queries_the_stream(topic: Topic) -> None:
    filled(topic)
    with reader_of(topic) as reader, duckdb.connect() as db:
        messages = reader.arrow()
        db.register("messages", messages)
        [row] = db.execute(
            'select count(*), sum(cast(decode(value) as bigint)), count(tag), max("offset") '
            "from messages"
        ).fetchall()
    assert row == (ROWS, sum(range(ROWS)), ROWS // 2, ROWS - 1)


def test_pandas_reads_the_stream(topic: Topic) -> None:
    filled(topic)
    with reader_of(topic) as reader:
        frame = reader.arrow().read_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == ROWS
    assert frame["value"].iloc[-1] == b"%d" % (ROWS - 1)
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"
