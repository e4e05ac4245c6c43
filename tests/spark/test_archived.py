"""Tests of reads of archived messages: from the bucket itself or through the broker, the rows are
the same. A real broker archives them. Only the last tests need a JVM.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import GreaterThanOrEqual
from support.broker import Broker, wait_for

import zsq
from zsq.apps.spark import archived
from zsq.apps.spark.archived import Archives, TaskBlocks, cut
from zsq.apps.spark.data_source import ZsqDataSource
from zsq.apps.spark.options import sink_options, source_options
from zsq.apps.spark.planning import OffsetRange
from zsq.apps.spark.schema import COLUMNS
from zsq.apps.spark.source import BatchReader, FilteringReader, RangePartition
from zsq.storage.bucket.archive.archive_reader import ArchiveReader
from zsq.storage.bucket.bucket import BucketAway, ObjectMissing
from zsq.storage.log.chunk import ArchivedChunk
from zsq.transport.client.blocking.asker import AskerBase
from zsq.transport.client.blocking.client import Archive
from zsq.transport.errors import E_BUCKET, DataLoss, NotFound, Refused, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
TOPIC = "clicks"
COUNT = 2_400
SIZE = 4_000


def wait_archived(broker: Broker, topic: str = TOPIC) -> None:
    def done() -> bool:
        with zsq.Admin(broker.ipc) as admin:
            row = admin.stats(topic)["topics"][0]
        return bool(row["archived_chunks"]) and not row["unarchived_bytes"]

    wait_for(done, 60, "the archive")

    def listed() -> bool:
        with zsq.Reader(topic, url=broker.ipc) as reader:
            archive = reader.archive()
            assert archive is not None
            return archive.end > 0 and archive.end == reader.bounds()[1] - _unsealed(broker, topic)

    wait_for(listed, 60, "the list")


def _unsealed(broker: Broker, topic: str) -> int:
    """Return the number of messages in the last log file."""
    with zsq.Admin(broker.ipc) as admin:
        return int(admin.chunks(topic)["chunks"][-1]["messages"])


def fill(broker: Broker, topic: str = TOPIC, count: int = COUNT) -> None:
    """Publish messages with all kinds of columns, in blocks of 1 to 100."""
    with zsq.Producer(broker.ipc) as producer:
        at, size = 0, 1
        while at < count:
            numbers = range(at, min(at + size, count))
            producer.publish_many(
                topic,
                [b"%d " % number + b"." * SIZE for number in numbers],
                keys=[f"k{number}" if number % 3 else None for number in numbers],
                headers=[{"n": str(number)} if number % 5 == 0 else None for number in numbers],
                tags=["odd" if number % 2 else None for number in numbers],
            )
            at, size = at + size, size % 100 + 13


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    root = tmp_path_factory.mktemp("archived")
    (root / "bucket").mkdir()
    url = f"file://{root}/bucket"
    with Broker(
        root / "data", "--chunk-bytes", str(MIB), "--keep-bytes", "3MiB", "--bucket", url
    ) as one:
        fill(one)
        wait_archived(one)
        yield one


def url_of(broker: Broker) -> str:
    return f"file://{broker.data_dir.parent}/bucket"


def end_of(broker: Broker) -> int:
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        archive = reader.archive()
    assert archive is not None
    assert 0 < archive.end < COUNT
    return archive.end


def reader_of(url: str, **options: str) -> BatchReader:
    """Return the reader as Spark makes it from these options."""
    naming = {} if "subscribePattern" in options else {"topic": TOPIC}
    given_options = {"url": url, **naming, **options}
    return BatchReader(ZsqDataSource(given_options)._source(False))


def rows(url: str, **options: str) -> list[dict[str, Any]]:
    reader = reader_of(url, **options)
    found = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row.get("offset", 0))


ALL_COLUMNS = ",".join(COLUMNS)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"columns": ALL_COLUMNS},
        {"includeHeaders": "true"},
        {"columns": "value"},
        {"columns": "tag,offset,key"},
        {"minPartitions": "7"},
        {"startingOffsets": '{"clicks": 333}'},
        {"startingOffsets": '{"clicks": 333}', "minPartitions": "50"},
        {"startingOffsets": '{"clicks": 334}', "endingOffsets": '{"clicks": 335}'},
    ],
)
def test_each_way_gives_the_same_rows(broker: Broker, more: dict[str, str]) -> None:
    end = end_of(broker)
    given_options = {"endingOffsets": f'{{"clicks": {end}}}', **more}
    wanted = rows(broker.ipc, bucket="never", **given_options)
    assert wanted
    assert rows(broker.ipc, **given_options) == wanted
    assert rows(broker.ipc, bucket="always", **given_options) == wanted
    assert rows(url_of(broker), **given_options) == wanted


def test_without_an_end_the_bucket_alone_gives_what_it_has(broker: Broker) -> None:
    wanted = rows(broker.ipc, bucket="never")
    assert len(wanted) == COUNT
    assert rows(broker.ipc) == wanted, "the newest ones come through the broker"
    assert rows(url_of(broker)) == wanted[: end_of(broker)]


def test_a_pattern_finds_the_topics_in_the_bucket_too(broker: Broker) -> None:
    end = end_of(broker)
    places = ((broker.ipc, "never"), (broker.ipc, "always"), (url_of(broker), "auto"))
    for url, bucket in places:
        given_options = {"bucket": bucket, "columns": "topic,offset"}
        found = rows(url, subscribePattern="c.*k.*", **given_options)
        assert found[:end] == [{"topic": TOPIC, "offset": offset} for offset in range(end)]
        assert rows(url, subscribePattern="lick", **given_options) == []


def test_times_are_found_in_the_bucket_too(broker: Broker) -> None:
    times = [row["timestamp"] for row in rows(broker.ipc, columns="timestamp,offset")]
    end = end_of(broker)
    for offset in (0, 1, end // 2, end - 1):
        stamp = str(int(times[offset].timestamp() * 1000))
        wanted = rows(broker.ipc, startingTimestamp=stamp, columns="offset", bucket="never")[:1]
        assert rows(url_of(broker), startingTimestamp=stamp, columns="offset")[:1] == wanted
    later = str(int(times[-1].timestamp() * 1000) + 10**6)
    assert rows(url_of(broker), startingTimestamp=later) == []


def test_a_time_in_a_filter_leaves_out_the_files_before_it(broker: Broker) -> None:
    """`pushFilters` needs PySpark 4.1, and no session."""
    before = rows(broker.ipc, columns="timestamp,offset")
    end = end_of(broker)
    first_s = before[end // 2]["timestamp"]
    for url in (broker.ipc, url_of(broker)):
        given_options = {"topic": TOPIC, "columns": "timestamp,offset"}
        reader = FilteringReader(source_options(given_options, url, streaming=False))
        everything = reader.partitions()
        reader.pushFilters([GreaterThanOrEqual(("timestamp",), first_s)])
        needed = reader.partitions()
        [files, all_files] = [
            {
                chunk.base_offset
                for part in parts
                if isinstance(part, RangePartition)
                for chunk in part.span.chunks
            }
            for parts in (needed, everything)
        ]
        assert files < all_files
        found = [row for part in needed for batch in reader.read(part) for row in batch.to_pylist()]
        late = [row for row in found if row["timestamp"] >= first_s]
        assert len(late) >= end // 2
        assert late == [row for row in before if row["timestamp"] >= first_s][: len(late)]


def test_partitions_in_the_bucket_have_about_the_same_bytes(tmp_path: Path) -> None:
    """The second half of the messages has most of the bytes, within each log file too."""
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    with Broker(tmp_path / "data", "--chunk-bytes", str(MIB), "--bucket", url) as one:
        with zsq.Producer(one.ipc) as producer:
            for size in (10, 1_000):
                for _ in range(200):
                    producer.publish_many(TOPIC, [b"." * size] * 20)
            producer.publish_many(TOPIC, [b"." * 1000] * 1_000)  # the last file is not archived
        wait_archived(one)
    planned = reader_of(url, minPartitions="8").partitions()
    parts = [part.span for part in planned if isinstance(part, RangePartition)]
    assert len(parts) >= 8
    sizes = [sum(10 if at < 4_000 else 1_000 for at in range(p.start, p.stop)) for p in parts]
    assert max(sizes) < 1.5 * sum(sizes) / len(sizes), sizes


def through_broker(monkeypatch: pytest.MonkeyPatch) -> list[OffsetRange]:
    """Return a list that gets each range that a task reads through the broker."""
    found: list[OffsetRange] = []
    before = TaskBlocks._from_broker

    def noted(self: TaskBlocks) -> Any:
        found.append(self._span)
        return before(self)

    monkeypatch.setattr(TaskBlocks, "_from_broker", noted)
    return found


def test_tasks_read_archived_ranges_past_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = through_broker(monkeypatch)
    assert len(rows(broker.ipc, columns="offset")) == COUNT
    assert [(span.start, span.stop) for span in asked] == [(end_of(broker), COUNT)]
    asked.clear()
    rows(broker.ipc, columns="offset", bucket="always")
    rows(url_of(broker), columns="offset")
    assert asked == []
    rows(broker.ipc, columns="offset", bucket="never")
    assert sum(span.stop - span.start for span in asked) == COUNT


def test_a_task_that_cannot_use_the_bucket_asks_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = rows(broker.ipc, bucket="never")
    parts = reader_of(broker.ipc).partitions()
    asked = through_broker(monkeypatch)
    before = ArchiveReader.piece
    left = [3]

    def failing(self: Any, row: Any, number: int) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise BucketAway("no answer")
        return before(self, row, number)

    monkeypatch.setattr(ArchiveReader, "piece", failing)
    monkeypatch.setattr(archived, "_away_s", {})
    reader = reader_of(broker.ipc)
    with caplog.at_level(logging.WARNING):
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == wanted, "a task goes on where the bucket failed"
    assert len(asked) == len(parts)
    assert caplog.text.count("read through the broker") == 1, "the others do not try it again"
    reader = reader_of(broker.ipc, bucket="always")
    with pytest.raises(Refused, match=f"{E_BUCKET} no answer"):
        list(reader.read(reader.partitions()[0]))


def test_a_missing_object_does_not_keep_other_tasks_from_the_bucket(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object may have expired since the list was read."""
    asked = through_broker(monkeypatch)
    monkeypatch.setattr(archived, "_away_s", {})
    reader = reader_of(
        broker.ipc, endingOffsets=f'{{"clicks": {end_of(broker)}}}', minPartitions="5"
    )
    before = ArchiveReader.piece
    left = [1]

    def failing(self: Any, row: Any, number: int) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise ObjectMissing("it has expired")
        return before(self, row, number)

    monkeypatch.setattr(ArchiveReader, "piece", failing)
    parts = reader.partitions()
    assert len(parts) == 5
    count = sum(batch.num_rows for part in parts for batch in reader.read(part))
    assert count == end_of(broker)
    assert len(asked) == 1


def test_a_driver_that_cannot_use_the_bucket_plans_for_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(url: str) -> Any:
        raise BucketAway("no answer")

    monkeypatch.setattr(archived, "_bucket", away)
    with caplog.at_level(logging.WARNING):
        parts = reader_of(broker.ipc).partitions()
    assert [isinstance(part, RangePartition) and part.span.chunks for part in parts] == [()]
    assert "because the driver cannot use the bucket: no answer" in caplog.text
    with pytest.raises(Refused, match=E_BUCKET):
        reader_of(url_of(broker)).partitions()


def test_a_broker_without_a_bucket_is_read_as_before(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as one:
        fill(one, count=100)
        with zsq.Reader(TOPIC, url=one.ipc) as reader:
            assert reader.archive() is None
        assert len(rows(one.ipc)) == 100
        with pytest.raises(UsageError, match="has no bucket: leave it out, or start the broker"):
            rows(one.ipc, bucket="always")


def test_missing_objects_are_data_loss_only_without_a_broker(
    broker: Broker, tmp_path: Path
) -> None:
    """A copy of the bucket lacks one chunk."""
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir.parent / "bucket", copy)
    (folder,) = (copy / "chunk").iterdir()
    names = sorted(path.name for path in folder.iterdir() if path.suffix != ".index")
    (folder / names[1]).unlink()
    base, end = (int(name.split(".")[0]) for name in names[1:3])
    url = f"file://{copy}"
    with pytest.raises(DataLoss, match=f"offsets {base} to {end - 1} of topic clicks are not in"):
        rows(url)
    found = [row["offset"] for row in rows(url, failOnDataLoss="false")]
    assert found == [*range(base), *range(end, end_of(broker))]


def test_the_transport_reaches_every_client_of_a_query(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZSQ_TRANSPORT", raising=False)
    made: list[object] = []
    before = AskerBase.__init__

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        before(self, *arguments, **options)
        made.append(self._address.auto)

    monkeypatch.setattr(AskerBase, "__init__", noted)
    assert len(rows(broker.tcp, columns="offset", transport="tcp", bucket="never")) == COUNT
    assert len(made) > 1
    assert not any(made)
    made.clear()
    rows(broker.tcp, columns="offset")
    assert all(made)


def test_what_the_options_say_about_the_bucket(broker: Broker) -> None:
    def refused(streaming: bool | None = False, **given_options: str) -> str:
        with pytest.raises(UsageError) as error:
            source_options({"topic": "t", **given_options}, "tcp://h:1", streaming=streaming)
        return error.value.text

    assert "it takes 'auto', 'always' or 'never'" in refused(bucket="maybe")
    assert "needs a broker" in refused(True, bucket="always")
    assert "needs a broker" in refused(True, url="s3://bucket/prefix")
    assert "leave out option 'bucket'" in refused(url="s3://bucket/prefix", bucket="never")
    assert "must contain no user" in refused(url="s3://me:secret@bucket/prefix")
    assert source_options({"topic": "t", "bucket": "auto"}, "s3://bucket/p", streaming=False)
    with pytest.raises(UsageError, match="'bucket' is for reading"):
        sink_options({"bucket": "always", "topic": "t"}, "", streaming=False)
    with pytest.raises(UsageError, match="written through a broker"):
        sink_options({"url": "s3://bucket/prefix", "topic": "t"}, "", streaming=False)
    with pytest.raises(NotFound, match=r"topic nothing is not in the bucket .* it has clicks"):
        reader_of(url_of(broker), topic="nothing").partitions()


# Cutting


def chunk(start: int, stop: int) -> ArchivedChunk:
    return ArchivedChunk(start, stop, 100, 0, 0, 0, 0, 0, start)


@given(
    st.sets(st.integers(0, 40), min_size=2),
    st.sets(st.integers(0, 40)),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_range_is_cut_into_parts_that_cover_it(
    edges: set[int], missing: set[int], start: int, stop: int
) -> None:
    borders = sorted(edges)
    chunks = [chunk(low, high) for low, high in itertools.pairwise(borders) if low not in missing]
    span = OffsetRange(TOPIC, start, max(start, stop), 0, "u")
    parts = cut(span, "file:///b", chunks)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (span.start, span.stop)
    for part in parts:
        inside = [
            one for one in chunks if one.base_offset < part.stop and one.next_offset > part.start
        ]
        if part.chunks:
            assert list(part.chunks) == inside
            assert inside[0].base_offset <= part.start
            assert inside[-1].next_offset >= part.stop
            assert part.bucket == "file:///b"
        else:
            assert inside == [] or part.start == part.stop


def test_a_stream_near_the_end_asks_rarely_and_reads_no_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(archived, "_bucket", lambda url: pytest.fail("the bucket was used"))

    def ask(topic: str) -> Archive | None:
        asked.append(topic)
        return Archive("file:///b", 100)

    archives = Archives("auto", ask)
    for second in range(60):
        now_s[0] = 1000.0 + second
        span = OffsetRange(TOPIC, 100 + second, 101 + second, 0, "u")
        assert archives.cut([span]) == [span]
    assert len(asked) == 2
    archives.cut([OffsetRange(TOPIC, 100, 101, 0, "v")])
    assert len(asked) == 3, "a topic that was created again"


# With a JVM


@pytest.mark.timeout(300)
def test_spark_reads_a_bucket_without_a_broker(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir.parent / "bucket", copy)
    wanted = rows(broker.ipc, bucket="never", columns="value,offset")[: end_of(broker)]
    found = (
        spark.read.format("zsq")
        .options(url=f"file://{copy}", topic=TOPIC, minPartitions="5")
        .load()
        .orderBy("offset")
        .collect()
    )
    assert [(bytes(row.value), row.offset) for row in found] == [
        (row["value"], row["offset"]) for row in wanted
    ]
    stream = spark.readStream.format("zsq").options(url=f"file://{copy}", topic=TOPIC)
    with pytest.raises(Exception, match="a streaming query needs a broker"):
        stream.load().writeStream.format("noop").start().awaitTermination(120)


@pytest.mark.timeout(300)
def test_a_stream_catches_up_from_the_bucket(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = spark.readStream.format("zsq").options(
        url=broker.ipc, topic=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )
    out = str(tmp_path / "out")
    query = (
        stream.load()
        .select("offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", out)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240), "the query is not at the end yet"
    found = [row.offset for row in spark.read.parquet(out).orderBy("offset").collect()]
    assert found == list(range(COUNT))
