"""Tests of topics with parts at one broker without a bucket, and of how they join a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import Broker, wait_for

import zsq
from zsq.transport.errors import E_NOT_FOUND
from zsq.transport.wire.spread import KeyParts

PARTS = 4
KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "one", http=True) as made:
        yield made


def received(consumer: zsq.Consumer, count: int) -> list[tuple[int | None, bytes]]:
    found: list[tuple[int | None, bytes]] = []
    while len(found) < count:
        message = consumer.receive(timeout=20)
        assert message is not None, f"{len(found)} of {count} came"
        found.append((message.part, message.body))
        message.finish()
    consumer.flush()
    return sorted(found)


@pytest.mark.parametrize("door", ["tcp", "ipc"])
def test_one_broker_has_all_parts_of_a_topic(broker: Broker, door: str) -> None:
    url = broker.tcp if door == "tcp" else broker.ipc
    parts = KeyParts(PARTS)
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_topic("clicks", parts=PARTS)
        admin.create_channel("clicks", "c")
        receipt = producer.publish_many("clicks", KEYS, keys=KEYS)
        assert {place[0] for place in receipt.places} == {parts.of(key) for key in KEYS}
        with zsq.Consumer("clicks", "c", url=url) as consumer:
            assert received(consumer, 40) == sorted((parts.of(key), key) for key in KEYS)
            admin.close_topic("clicks#2")
            assert admin.remove_part("clicks#2")["end"] == sum(parts.of(key) == 2 for key in KEYS)
            assert admin.add_parts("clicks", 1) == {"parts": PARTS + 1}
            with zsq.Producer(url) as later:
                later.publish_many("clicks", KEYS, keys=KEYS)
            left = KeyParts(PARTS + 1, [2])
            wanted = sorted((left.of(key), key) for key in KEYS)
            drive = consumer._made
            assert drive is not None
            with drive.lock:  # a minute need not pass
                drive.engine.topics[0].ask_parts()
                drive.settle()
            assert received(consumer, 40) == wanted
        with zsq.Reader("clicks", part=1, url=url) as reader:
            assert reader.bounds()[0] == 0
        broker.signal_all(signal.SIGKILL)
        broker.start()
        rows = admin.stats("clicks")["topics"]
        assert {row["topic_name"] for row in rows} == {f"clicks#{n}" for n in (0, 1, 3, 4)}
        admin.delete_topic("clicks", force=True)
        wait_for(lambda: not admin.topics())
        with pytest.raises(zsq.NotFound) as gone:
            producer.publish("clicks", b"x", key=KEYS[0])
        assert gone.value.code == E_NOT_FOUND
        assert not admin.topics(), "no topic without parts takes its place"


def test_commands_show_the_parts_of_one_broker(broker: Broker) -> None:
    at = ("--url", broker.tcp)

    def said(*command: str) -> str:
        done = zsq_command.run_text(*command, *at)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "topic clicks has 4 parts at 1 broker" in said(
        "topic", "create", "clicks", "--parts", "4"
    )
    said("pub", "clicks", "hello")
    assert said("topic", "list") == "clicks\n"
    assert "topic clicks, 4 parts" in said("cluster")
    assert "clicks, 4 parts" in said("topic", "show", "clicks")
    assert said("tail", "clicks", "--no-follow", "--from", "earliest") == "hello\n"
    said("topic", "close", "clicks#3")
    said("topic", "remove-part", "clicks#3", "--force", "--yes")
    assert "topic clicks, 3 parts" in said("cluster")


def test_topics_with_parts_join_a_cluster_with_their_messages(tmp_path: Path) -> None:
    (tmp_path / "bucket" / "one").mkdir(parents=True)
    place = f"file://{tmp_path}/bucket"
    with Broker(tmp_path / "one") as broker:
        with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp) as producer:
            admin.create_topic("clicks", parts=PARTS)
            admin.create_channel("clicks", "c")
            producer.publish_many("clicks", KEYS, keys=KEYS)
            admin.close_topic("clicks#1")
            admin.remove_part("clicks#2", force=True)
        broker.stop()
        broker.extra += ("--bucket", f"{place}/one", "--bucket-lag", "100ms", "--cluster", place)
        for _ in range(2):  # the second start finds the topic in the directory
            broker.start()
            with zsq.Admin(broker.tcp) as admin:
                wait_for(lambda: [one["topic"] for one in admin.cluster()["topics"]] == ["clicks"])
                (row,) = admin.cluster()["topics"]
                assert ([*row["parts"]], [*row["closed"]]) == ([0, 0, -1, 0], [1])
                assert admin.cluster()["is_shared"]
                assert admin.ping() == "OK"
            broker.signal_all(signal.SIGKILL)
        broker.start()
        parts, left = KeyParts(PARTS), KeyParts(PARTS, [1, 2])
        kept = [(parts.of(key), key) for key in KEYS if parts.of(key) != 2]
        with zsq.Consumer("clicks", "c", url=broker.tcp) as consumer:
            assert received(consumer, len(kept)) == sorted(kept)
            with zsq.Producer(broker.tcp) as producer:
                producer.publish_many("clicks", KEYS, keys=KEYS)
            assert received(consumer, 40) == sorted((left.of(key), key) for key in KEYS)


def test_a_topic_gets_its_parts_again_after_the_registry_was_lost(tmp_path: Path) -> None:
    with Broker(tmp_path / "one") as broker:
        with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp) as producer:
            admin.create_topic("clicks", parts=2)
            admin.create_channel("clicks", "c")
            producer.publish_many("clicks", KEYS, keys=KEYS)
        broker.stop()
        for name in ("registry.json", "registry.json.old"):
            (tmp_path / "one" / name).write_bytes(b"{")
        repaired = zsq_command.run_text("fsck", tmp_path / "one", "--repair")
        assert "create them again with --parts" in repaired.stdout
        broker.start()
        with zsq.Admin(broker.tcp) as admin:
            admin.create_topic("clicks", parts=2)
        with zsq.Consumer("clicks", "c", url=broker.tcp) as consumer:
            assert received(consumer, 40) == sorted((KeyParts(2).of(key), key) for key in KEYS)


def test_a_backup_has_the_topics_with_parts(tmp_path: Path) -> None:
    with Broker(tmp_path / "one") as broker:
        with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp) as producer:
            admin.create_topic("clicks", parts=3)
            admin.create_channel("clicks", "c")
            admin.close_topic("clicks#1")
            admin.remove_part("clicks#1")
            producer.publish_many("clicks", KEYS, keys=KEYS)
            before = admin.cluster()["topics"]
        assert zsq_command.run_text("backup", broker.data_dir, tmp_path / "copy").returncode == 0
    assert zsq_command.run_text("restore", tmp_path / "copy", tmp_path / "two").returncode == 0
    with Broker(tmp_path / "two") as restored:
        with zsq.Admin(restored.tcp) as admin:
            assert admin.cluster()["topics"] == before
        with zsq.Consumer("clicks", "c", url=restored.tcp) as consumer:
            assert len(received(consumer, 40)) == 40


def test_a_publisher_goes_on_when_its_topic_comes_again_with_fewer_parts(broker: Broker) -> None:
    """apache/pulsar#8001. One publish may fail: it belongs to the deleted topic."""
    with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp, timeout=15) as producer:
        admin.create_topic("clicks", parts=3)
        producer.publish_many("clicks", KEYS, keys=KEYS)
        admin.delete_topic("clicks", force=True)
        admin.create_topic("clicks", parts=1)
        with pytest.raises(zsq.NotFound, match=r"topic 'clicks' has no part \d"):
            producer.publish_many("clicks", KEYS, keys=KEYS)
        receipt = producer.publish_many("clicks", KEYS, keys=KEYS)
        assert {place[0] for place in receipt.places} == {0}


def test_a_message_is_found_by_its_id_without_its_topic(broker: Broker) -> None:
    with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp) as producer:
        admin.create_topic("clicks", parts=3)
        admin.create_topic("plain")
        admin.create_topic("empty")
        for number in range(2):
            producer.publish("clicks#2", b"click %d" % number)
        for number in range(3):
            producer.publish("plain", b"plain %d" % number)
        wait_for(lambda: admin.find_message("0000000000000002") == ["plain"])
        assert admin.find_message("0200000000000001") == ["clicks#2"]
        assert admin.find_message("0200000000000002") == []
        assert admin.find_message("0040000000000001") == []
        producer.publish("clicks#0", b"x")
        wait_for(lambda: admin.find_message("0000000000000000") == ["clicks#0", "plain"])
        with pytest.raises(zsq.UsageError, match="is an offset; give an id"):
            admin.find_message("1")
    at = ("--url", broker.tcp)
    assert zsq_command.run_text("message", "0200000000000001", *at).stdout == "click 1\n"
    assert zsq_command.run_text("message", "plain", "2", *at).stdout == "plain 2\n"
    several = zsq_command.run_text("message", "0000000000000000", *at)
    assert "messages of 2 topics have the id" in several.stderr
    assert "clicks#0, plain" in several.stderr
    missing = zsq_command.run_text("message", "0200000000000009", *at)
    assert "no topic keeps a message" in missing.stderr
    assert zsq_command.run_text("message", *at).returncode == 2
