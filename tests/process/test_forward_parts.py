"""Tests of `zsq forward` with topics in parts, as the source and as the target."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker, wait_for
from support.cluster import Cluster, running
from support.forwarding import bodies, forward, forwarding, stored, wait_a_while
from support.topic_names import topic_name_of

import zsq
from zsq.transport.wire.spread import KeyParts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

PARTS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("shared") / "data") as broker:
        yield broker


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = topic_name_of(request.node.name)
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic(name, parts=PARTS)
    return name


def keyed(url: str, topic: str, first: int, stop: int) -> None:
    with zsq.Producer(url) as producer:
        numbers = range(first, stop)
        keys = [b"key %d" % (i % 50) if i % 10 else None for i in numbers]
        producer.publish_many(topic, [b"%d" % i for i in numbers], keys=keys)


def by_part(url: str, topic: str) -> dict[int, list[zsq.StoredMessage]]:
    return {number: stored(url, f"{topic}#{number}") for number in range(PARTS)}


def numbers_by_key(messages: list[zsq.StoredMessage]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for message in messages:
        if message.key is not None:
            found[message.key].append(int(message.body))
    return found


def test_a_topic_with_parts_is_mirrored(cluster: Cluster, shared: Broker, topic: str) -> None:
    keyed(cluster.url, topic, 0, 3000)
    said = forward(f"{topic}/m", f"{shared.tcp}/{topic}", cluster.url, idle="3s")
    assert "3,000 messages forwarded" in said
    messages = stored(shared.ipc, topic)
    assert sorted(int(message.body) for message in messages) == list(range(3000))
    assert all(each == sorted(each) for each in numbers_by_key(messages).values())
    with zsq.Admin(cluster.url) as admin:
        rows = admin.stats(topic, "m")["topics"]
    assert [row["channels"][0]["depth"] for row in rows] == [0] * PARTS


def test_a_topic_with_parts_is_not_mirrored_to_itself(cluster: Cluster, topic: str) -> None:
    keyed(cluster.url, topic, 0, 10)
    for source, target in ((topic, topic), (topic, f"{topic}#1"), (f"{topic}#1", topic)):
        said = forward(f"{source}/m", f"{cluster.url}/{target}", cluster.url, code=2)
        assert "would never end" in said or "#" in target, said
    assert sum(map(len, by_part(cluster.url, topic).values())) == 10


def test_a_mirror_goes_on_without_a_part_that_is_removed(
    cluster: Cluster, shared: Broker, topic: str, tmp_path: Path
) -> None:
    def is_removed() -> bool:
        with contextlib.suppress(zsq.Refused), zsq.Admin(cluster.url) as admin:
            admin.remove_part(f"{topic}#3")
            return True
        return False

    keyed(cluster.url, topic, 0, 200)
    log = tmp_path / "log"
    line = (f"{topic}/m", f"{shared.tcp}/{topic}", cluster.url, "--idle", "12s")
    with forwarding(*line, log=log) as process:
        wait_for(lambda: len(bodies(shared.ipc, topic)) == 200, 60)
        with zsq.Admin(cluster.url) as admin:
            admin.close_topic(f"{topic}#3")
        wait_for(is_removed, 30)  # the channel follows within 5 s
        keyed(cluster.url, topic, 200, 300)
        assert process.wait(90) == 0, log.read_text()
    assert "this part was removed" in log.read_text()
    assert sorted(map(int, bodies(shared.ipc, topic))) == list(range(300))


def test_a_mirror_keeps_keys_in_their_parts_through_kills(
    cluster: Cluster, shared: Broker, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}-source"[-60:].strip("-")
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic(source)
        admin.create_channel(source, "m")

    def count() -> int:
        return sum(map(len, by_part(cluster.url, topic).values()))

    line = (f"{source}/m", f"{cluster.url}/{topic}", shared.ipc)
    published = 0
    for run in range(5):
        keyed(shared.ipc, source, published, published + 3000)
        published += 3000
        before = count()
        with forwarding(*line, log=tmp_path / "log") as process:
            wait_for(lambda: count() > before)  # noqa: B023
            wait_a_while(process, 0.02 * run)
    forward(*line, idle="3s")
    parts = by_part(cluster.url, topic)
    found = sorted(int(message.body) for each in parts.values() for message in each)
    assert found == list(range(published))
    keys = KeyParts(PARTS)
    for number, messages in parts.items():
        by_key = numbers_by_key(messages)
        assert {keys.of(key) for key in by_key} <= {number}
        assert all(each == sorted(each) for each in by_key.values())
        assert len(messages) > len([m for m in messages if m.key is not None])


def test_each_part_has_files_of_its_own(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    keyed(cluster.url, topic, 0, 400)
    folder = tmp_path / "out"
    forward(f"{topic}/f", f"file:{folder}", cluster.url, "--format", "json", idle="3s")
    names = {path.name.split(".20")[0] for path in folder.iterdir()}
    assert names == {f"{topic}#{number}" for number in range(PARTS)}
    rows = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert sorted(int(row["body"]) for row in rows) == list(range(400))
    assert {f"{row['topic']}#{row['part']}" for row in rows} == names
    assert bodies(cluster.url, f"{topic}#0")
