"""Tests of the archive on real processes: full log files go to a bucket and leave the disk, readers
and consumers do not notice, and nothing is lost whoever is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import zsq_command
from support.broker import Broker, kill, wait_for
from support.s3_server import BUCKET, rclone, seaweedfs

import zsq
from zsq.transport.errors import Refused

TOPIC = "clicks"
MIB = 1 << 20
BODY = b"." * 64 * 1024
A_MIB = 16  # messages of a MiB
OPTIONS = ("--chunk-bytes", str(MIB), "--keep-bytes", "4MiB", "--own-process", "always")


def make(tmp_path: Path, *extra: str, bucket: str = "") -> Broker:
    if not bucket:
        (tmp_path / "bucket").mkdir(exist_ok=True)
    url = bucket or f"file://{tmp_path}/bucket"
    return Broker(tmp_path / "data", *OPTIONS, "--bucket", url, *extra)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with make(tmp_path) as broker:
        yield broker


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[Broker]:
    """A broker that copies only full log files, so the bucket has nothing else."""
    with make(tmp_path, "--bucket-lag", "none") as broker:
        yield broker


def publish(broker: Broker, mib: int, first: int = 0) -> int:
    """Publish `mib` MiB of numbered messages. Return the next number."""
    with zsq.Producer(broker.ipc) as producer:
        for at in range(first, first + mib * A_MIB, 8):
            producer.publish_many(TOPIC, [b"%d " % (at + i) + BODY for i in range(8)])
    return first + mib * A_MIB


def topic(broker: Broker) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        (found,) = (row for row in admin.stats()["topics"] if row["topic_name"] == TOPIC)
    return dict(found)


def wait_archived(broker: Broker, on_disk: int = 6 * MIB) -> dict[str, Any]:
    """Wait until all full files are in the bucket, and the disk has little."""

    def done() -> bool:
        row = topic(broker)
        return row["log_bytes"] <= on_disk and not row["unarchived_bytes"]

    wait_for(done, 60, "the archive")
    return topic(broker)


def numbers(broker: Broker, first: int = 0) -> list[int]:
    """Read the topic by offset. Return the numbers of its messages."""
    found: list[int] = []
    with zsq.Reader(TOPIC, url=broker.ipc, timeout=60) as reader:
        offset = first
        while blocks := (page := reader.read(offset, MIB)).blocks:
            assert page.start <= offset
            found += [
                int(bytes(body or b"").split()[0])
                for block in blocks
                for body in block.body.values()
            ]
            offset = blocks[-1].next_offset
    return found


def objects(tmp_path: Path) -> list[str]:
    root = tmp_path / "bucket"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_archived_messages_are_read_consumed_and_found_as_before(
    broker: Broker, tmp_path: Path
) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC)
        admin.create_channel(TOPIC, "slow", start="earliest")
        count = publish(broker, 20)
        row = wait_archived(broker)
        assert row["start"] == 0
        assert row["archived_bytes"] > 15 * MIB
        assert row["health"] == "OK"
        folder = f"{tmp_path}/data/topics/000001"
        wait_for(
            lambda: len([name for name in os.listdir(folder) if name.endswith(".chunk")]) <= 12,
            what="the removal of files",
        )
        assert numbers(broker) == list(range(count))
        with zsq.Consumer(TOPIC, "slow", url=broker.ipc, ready=8) as consumer:
            for number in range(count):
                message = consumer.receive(30)
                assert message is not None
                assert int(message.body.split()[0]) == number
                message.finish()
        admin.seek(TOPIC, "slow", 5)
        with zsq.Consumer(TOPIC, "slow", url=broker.ipc, ready=1) as consumer:
            message = consumer.receive(30)
            assert message is not None
            assert int(message.body.split()[0]) == 5
        admin.create_channel(TOPIC, "since", start=float(1_000_000_000))
        bucket = admin.stats()["bucket"]
        states = [one["state"] for one in admin.chunks(TOPIC)["chunks"]]
        assert states == sorted(states, key=["archived", "sealed", "ongoing", "new"].index)
        assert {"archived", "sealed"} <= set(states)
    chunks = row["archived_chunks"]
    assert bucket["url"] == f"file://{tmp_path}/bucket"
    assert not bucket["trouble"]
    assert bucket["sent_bytes"] > row["archived_bytes"]
    assert bucket["write_requests"] >= 2 * chunks
    assert bucket["read_requests"] >= 5 * chunks, "each chunk is verified"
    shown = zsq_command.run_text("--url", broker.ipc, "stats").stdout
    assert f"bucket file://{tmp_path}/bucket: " in shown


def test_a_restart_continues_and_a_start_without_the_bucket_says_so(
    broker: Broker, tmp_path: Path
) -> None:
    count = publish(broker, 12)
    wait_archived(broker)
    assert broker.stop() == 0
    with_bucket, broker.extra = broker.extra, broker.extra[:-2]
    broker.start()
    assert "start it with --bucket" in topic(broker)["health"]
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        with pytest.raises(Refused, match=r"only in the bucket.*--bucket"):
            reader.read(0, MIB)
        assert reader.read(count - 1, MIB).blocks
    before = [name for name in objects(tmp_path) if name.startswith("chunk/")]
    assert broker.stop() == 0
    broker.extra = with_bucket
    broker.start()
    assert [name for name in objects(tmp_path) if name.startswith("chunk/")] == before
    assert topic(broker)["health"] == "OK"
    assert numbers(broker) == list(range(count))


def test_a_second_broker_in_the_same_prefix_is_refused_by_name(
    broker: Broker, tmp_path: Path
) -> None:
    publish(broker, 1)
    (tmp_path / "other").mkdir()
    second = Broker(tmp_path / "other/data", "--bucket", f"file://{tmp_path}/bucket")
    try:
        second.launch()
        assert second.process is not None
        assert second.process.wait(30) == 1
        with zsq.Admin(broker.ipc) as admin:
            uuid = admin.stats()["uuid"]
        said = second.log.read_text()
        assert f"belongs to another broker, with uuid {uuid}" in said
        assert "give each broker a prefix of its own" in said
    finally:
        second.close()


def test_expired_messages_leave_the_bucket_and_a_deleted_topic_leaves_nothing(
    archiving: Broker, tmp_path: Path
) -> None:
    broker = archiving
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC)
        admin.create_channel(TOPIC, "c")
        count = publish(broker, 12)
        wait_archived(broker)
        before = objects(tmp_path)
        admin.configure_topic(TOPIC, bucket_keep_bytes=6 * MIB)
        with zsq.Consumer(TOPIC, "c", url=broker.ipc, ready=64) as consumer:
            for _ in range(count):
                message = consumer.receive(30)
                assert message is not None
                message.finish()
        wait_for(lambda: topic(broker)["start"] > 0, 30, "the removal of finished messages")
        wait_for(lambda: len(objects(tmp_path)) < len(before) - 4, 30, "the removal of objects")
        start = topic(broker)["start"]
        assert numbers(broker, start) == list(range(start, count))
        admin.delete_topic(TOPIC, force=True)
        wait_for(lambda: objects(tmp_path) == ["broker.json"], 30, "an empty bucket")


def test_a_topic_that_is_not_archived_stays_on_the_disk(archiving: Broker, tmp_path: Path) -> None:
    broker = archiving
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC, archive="off", keep_bytes=-1)
        count = publish(broker, 8)
        admin.create_topic("other")
    assert topic(broker)["log_bytes"] > 7 * MIB
    assert objects(tmp_path) == ["broker.json"]
    assert numbers(broker) == list(range(count))


def test_nothing_is_lost_when_the_archive_actor_is_killed_again_and_again(broker: Broker) -> None:
    count = 0
    for _ in range(4):
        count = publish(broker, 6, count)
        kill(broker.pids("archive")[0])
        wait_for(lambda: broker.pids("archive"), 20, "a new archive actor")
    assert numbers(broker) == list(range(count))
    kill(broker.pids("archive")[0])
    wait_archived(broker)
    assert numbers(broker) == list(range(count))


def test_nothing_is_lost_when_topic_and_archive_are_killed_together(broker: Broker) -> None:
    count = 0
    for _ in range(6):
        count = publish(broker, 4, count)
        for kind in ("topic", "archive"):
            for pid in broker.pids(kind):
                kill(pid)
        assert numbers(broker) == list(range(count))
    wait_archived(broker)
    assert numbers(broker) == list(range(count))


def test_a_bucket_that_is_away_stops_no_archive_for_good(archiving: Broker, tmp_path: Path) -> None:
    """Nothing is shipped here. Otherwise publishes would wait for the bucket."""
    broker = archiving
    count = publish(broker, 6)
    wait_archived(broker)
    (tmp_path / "bucket").rename(tmp_path / "away")
    count = publish(broker, 6, count)
    wait_for(lambda: "cannot be archived" in topic(broker)["health"], 20, "an alarm")
    with zsq.Admin(broker.ipc) as admin:
        wait_for(lambda: "the bucket cannot be used" in admin.stats()["health"], 20)
        wait_for(lambda: events(admin, "the bucket cannot be used") == ["raised"], 30, "an alarm")
    with (
        zsq.Reader(TOPIC, url=broker.ipc) as reader,
        pytest.raises(Refused, match="in the bucket and cannot be fetched"),
    ):
        reader.read(0, MIB)
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        assert reader.read(count - 1, MIB).blocks
    (tmp_path / "away").rename(tmp_path / "bucket")
    wait_archived(broker)
    assert topic(broker)["health"] == "OK"
    with zsq.Admin(broker.ipc) as admin:
        wait_for(lambda: admin.stats()["health"] == "OK", 20)
        wait_for(lambda: not admin.stats()["alarms"], 30, "no alarm is raised")
    assert numbers(broker) == list(range(count))


def events(admin: zsq.Admin, text: str) -> list[str]:
    """Return the events of the alarms with this text."""
    return [row["event"] for row in admin.stats()["recent_alarms"] if text in row["text"]]


def test_without_a_bucket_there_is_no_archive_actor(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as one:
        assert not one.pids("archive")


def test_a_bucket_that_cannot_be_used_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    one = Broker(tmp_path / "data", "--bucket", f"file://{tmp_path}/missing")
    try:
        one.launch()
        assert one.process is not None
        assert one.process.wait(30) == 1
        assert "the folder does not exist; create or mount it" in one.log.read_text()
    finally:
        one.close()


def test_an_empty_bucket_is_refused_if_the_broker_has_archived_elsewhere(
    broker: Broker, tmp_path: Path
) -> None:
    """The empty folder may be the place of a file system that is not mounted."""
    count = publish(broker, 8)
    wait_archived(broker)
    wait_for(lambda: '"bucket"' in (tmp_path / "data/registry.json").read_text(), 30)
    assert broker.stop() == 0
    (tmp_path / "bucket").rename(tmp_path / "not-mounted")
    (tmp_path / "bucket").mkdir()
    broker.launch()
    assert broker.process is not None
    assert broker.process.wait(30) == 1
    assert "if the store is not mounted, mount it" in broker.log.read_text()
    assert not list((tmp_path / "bucket").rglob("broker.json"))
    (tmp_path / "bucket").rename(tmp_path / "empty")
    (tmp_path / "not-mounted").rename(tmp_path / "bucket")
    broker.start()
    assert numbers(broker) == list(range(count))


def test_a_restored_backup_reads_the_archive_and_writes_nothing_there(
    broker: Broker, tmp_path: Path
) -> None:
    count = publish(broker, 10)
    wait_archived(broker)
    wait_for(lambda: '"bucket"' in (tmp_path / "data/registry.json").read_text(), 30)
    for arguments in (
        ("backup", f"{tmp_path}/data", f"{tmp_path}/copy"),
        ("restore", f"{tmp_path}/copy", f"{tmp_path}/restored"),
    ):
        done = zsq_command.run_text(*arguments)
        assert done.returncode == 0, done.stderr
    assert broker.stop() == 0
    before = objects(tmp_path)
    with Broker(tmp_path / "restored", *OPTIONS, "--bucket", f"file://{tmp_path}/bucket") as second:
        assert numbers(second) == list(range(count))
        count = publish(second, 8, count)
        assert numbers(second) == list(range(count))
        wait_for(
            lambda: "it reads from the bucket, and archives nothing" in topic(second)["health"], 20
        )
        assert topic(second)["log_bytes"] > 10 * MIB, "nothing leaves the disk"
        assert objects(tmp_path) == before


def test_a_real_object_server_keeps_the_archive_and_may_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seaweedfs(tmp_path / "server") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        one = Broker(
            tmp_path / "data", "--chunk-bytes", str(10 * MIB), "--keep-bytes", "12MiB",
            "--bucket", f"s3://{BUCKET}/archive", "--own-process", "always",
        )  # fmt: skip
        try:
            one.start()
            count = publish(one, 50)
            wait_archived(one, 25 * MIB)
            assert numbers(one) == list(range(count))
            kill(one.pids("topic")[0])
            assert numbers(one, 96) == list(range(96, count))
        finally:
            one.close()


def test_spark_s_reader_gets_the_same_rows_from_a_real_object_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 10 MiB have three segments. The last read uses no broker."""
    pytest.importorskip("pyspark")
    from zsq.apps.spark.data_source import ZsqDataSource
    from zsq.apps.spark.source import BatchReader

    def read(url: str, **options: str) -> list[int]:
        reader = BatchReader(ZsqDataSource({"url": url, "topic": TOPIC, **options})._source(False))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [
            int(bytes(value).split()[0])
            for batch in batches
            for value in batch.column("value").to_pylist()
        ]

    with seaweedfs(tmp_path / "server") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/archive"
        one = Broker(
            tmp_path / "data", "--chunk-bytes", str(10 * MIB), "--keep-bytes", "12MiB",
            "--bucket", url,
        )  # fmt: skip
        try:
            one.start()
            count = publish(one, 50)
            wait_archived(one, 25 * MIB)
            wanted = list(range(count))
            assert read(one.ipc) == read(one.ipc, bucket="never") == wanted
            with zsq.Reader(TOPIC, url=one.ipc) as reader:
                archive = reader.archive()
        finally:
            one.close()
        assert archive is not None
        assert archive.url == url
        assert archive.end > count // 2
        assert read(url, minPartitions="9") == wanted[: archive.end]


def test_a_server_that_lies_about_conditional_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path / "server") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        one = Broker(tmp_path / "data", "--bucket", f"s3://{BUCKET}/archive")
        try:
            one.launch()
            assert one.process is not None
            assert one.process.wait(60) == 1
            assert "conditional writes" in one.log.read_text()
        finally:
            one.close()
