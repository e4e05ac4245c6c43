"""Tests of removing a part from a topic, at two real brokers of one cluster."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import wait_for
from support.cluster import Cluster, running

import zsq
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.storage.cluster.directory import CloseEntry, RemovePartEntry
from zsq.storage.cluster.directory_log import DirectoryLog
from zsq.transport.block.block import pack
from zsq.transport.errors import E_BAD_ARGUMENT, E_NOT_EMPTY, E_NOT_FOUND
from zsq.transport.wire.spread import KeyParts

PARTS = 4
KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as made:
        yield made


def drain(consumer: zsq.Consumer, count: int) -> list[tuple[int | None, bytes]]:
    found: list[tuple[int | None, bytes]] = []
    while len(found) < count:
        message = consumer.receive(timeout=20)
        assert message is not None, f"{len(found)} of {count} came"
        found.append((message.part, message.body))
        message.finish()
    consumer.flush()
    return found


def parts_of(admin: zsq.Admin, topic: str) -> list[int]:
    return next([*row["parts"]] for row in admin.cluster()["topics"] if row["topic"] == topic)


def test_a_part_is_closed_drained_and_removed_while_clients_go_on(shared: Cluster) -> None:
    topic = "clicks"
    with zsq.Admin(shared.url) as admin:
        admin.create_topic(topic, parts=PARTS)
        admin.create_channel(topic, "c")
        admin.create_channel(topic, "slow")
    with (
        zsq.Admin(shared.url) as admin,
        zsq.Producer(shared.brokers[0].tcp) as producer,
        zsq.Consumer(topic, "c", url=shared.brokers[1].tcp) as consumer,
    ):
        producer.publish_many(topic, KEYS, keys=KEYS)
        drain(consumer, len(KEYS))
        with pytest.raises(zsq.Refused, match="is open to publishers: close it first") as still:
            admin.remove_part(f"{topic}#0")
        assert still.value.code == E_NOT_EMPTY
        number = KeyParts(PARTS).of(KEYS[0])
        part, mine = f"{topic}#{number}", sum(KeyParts(PARTS).of(key) == number for key in KEYS)
        admin.close_topic(part)
        with pytest.raises(
            zsq.Refused, match=rf"{mine} messages .*\(channel slow: {mine}\)"
        ) as left:
            admin.remove_part(part)
        assert left.value.code == E_NOT_EMPTY
        admin.seek(topic, "slow", "latest")
        assert admin.remove_part(part) == {"end": mine}
        wait_for(lambda: part not in admin.topics())
        # The producer still has the old parts in mind, and the consumer a link to the removed one.
        receipt = producer.publish_many(topic, KEYS, keys=KEYS)
        moved = KeyParts(PARTS, [number])
        assert {place[0] for place in receipt.places} == {*range(PARTS)} - {number}
        found = drain(consumer, len(KEYS))
        assert sorted(found) == sorted((moved.of(key), key) for key in KEYS)
        assert [place >= 0 for place in parts_of(admin, topic)] == [n != number for n in range(4)]
        assert {row["topic_name"] for row in admin.stats(topic)["topics"]} == {
            f"{topic}#{n}" for n in range(PARTS) if n != number
        }
        with pytest.raises(zsq.NotFound, match=f"part {part} was removed") as gone:
            admin.remove_part(part)
        assert gone.value.code == E_NOT_FOUND
        with (
            zsq.Reader(topic, part=number, url=shared.url) as reader,
            pytest.raises(zsq.NotFound, match=f"part {part} was removed"),
        ):
            reader.bounds()
        assert admin.ended(part) == mine
        # Its number is not used again.
        admin.add_parts(topic, 1)
        assert len(parts_of(admin, topic)) == PARTS + 1
        with zsq.Producer(shared.url) as later:
            receipt = later.publish_many(topic, KEYS, keys=KEYS)
        known = KeyParts(PARTS + 1, [number])
        assert {part for part, _, _ in receipt.places} == {known.of(key) for key in KEYS}


def test_the_command_says_what_is_lost_with_a_part(shared: Cluster) -> None:
    with zsq.Admin(shared.url) as admin, zsq.Producer(shared.url) as producer:
        admin.create_topic("lost", parts=2)
        admin.create_channel("lost", "c")
        producer.publish_many("lost", KEYS, keys=KEYS)
        mine = sum(KeyParts(2).of(key) == 1 for key in KEYS)
    at = ("--url", shared.brokers[0].tcp)
    refused = zsq_command.run_text("topic", "remove-part", "lost#1", *at)
    assert refused.returncode == 1
    assert "is open to publishers" in refused.stderr
    removed = zsq_command.run_text("topic", "remove-part", "lost#1", "--force", "--yes", *at)
    assert f"removed part lost#1, which ended at offset {mine}" in removed.stdout
    last = zsq_command.run_text("topic", "remove-part", "lost#0", "--force", "--yes", *at)
    assert E_BAD_ARGUMENT in last.stderr
    assert "no other part that is open" in last.stderr
    listed = zsq_command.run_text("topic", "list", "--json", *at).stdout
    rows = {row["topic"]: row for row in map(json.loads, listed.splitlines())}
    assert rows["lost"]["parts"] == 1
    assert "topic lost, 1 part\n" in zsq_command.run_text("cluster", *at).stdout


def test_a_removal_whose_broker_was_killed_goes_on_when_it_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The entry in the directory is the removal, whatever happens to the broker after it."""
    with zsq.Admin(cluster.url) as admin, zsq.Producer(cluster.url) as producer:
        admin.create_topic("t", parts=2)
        producer.publish_many("t", KEYS, keys=KEYS)
        (row,) = admin.cluster()["topics"]
    broker = cluster.brokers[row["parts"][1]]
    broker.signal_all(signal.SIGKILL)
    log = DirectoryLog(open_bucket(parse_bucket_url(cluster.place)))
    log.append(CloseEntry("a" * 32, row["uuid"], 1))
    log.append(RemovePartEntry("b" * 32, row["uuid"], 1, 0, 99))
    broker.start()
    with zsq.Admin(broker.tcp) as admin:
        wait_for(lambda: "t#1" not in admin.topics())
        assert admin.ended("t#1") == 99
        assert admin.ping() == "OK"


def test_a_part_with_a_stage_that_is_not_committed_is_not_drained(shared: Cluster) -> None:
    with zsq.Admin(shared.url) as admin:
        admin.create_topic("staged", parts=2)
        with zsq.StageWriter("staged#1", "app", 1, url=shared.url) as writer:
            writer.push(pack([b"x"]))
            writer.seal()
        admin.close_topic("staged#1")
        with pytest.raises(zsq.Refused, match="has 1 stage of Spark jobs that are not committed"):
            admin.remove_part("staged#1")
        assert admin.remove_part("staged#1", force=True) == {"end": 0}


def test_a_part_with_delayed_messages_is_not_drained(shared: Cluster) -> None:
    with zsq.Admin(shared.url) as admin, zsq.Producer(shared.url) as producer:
        admin.create_topic("later", parts=2)
        admin.create_channel("later", "c")
        producer.publish("later#1", b"x", delay=600)
        admin.close_topic("later#1")
        with pytest.raises(zsq.Refused, match=r"1 messages .*\(delayed: 1\)"):
            admin.remove_part("later#1")
        admin.delayed_cancel_all("later#1")
        assert admin.remove_part("later#1") == {"end": 0}
