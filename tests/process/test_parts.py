"""Tests of clients of a topic with parts, at two real brokers of one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import zsq_command
from support.broker import wait_for
from support.cluster import Cluster, running

import zsq
import zsq.aio
from zsq.transport.errors import E_EXISTS, E_PARTS
from zsq.transport.wire.spread import KeyParts

PARTS = 4


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def topic(shared: Cluster, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^a-z0-9_]+", "-", str(request.node.name)[5:]).strip("-")[-50:]
    with zsq.Admin(shared.url) as admin:
        admin.create_topic(name, parts=PARTS)
        admin.create_channel(name, "c")
    return name


def received(consumer: zsq.Consumer, count: int) -> list[tuple[int | None, bytes | None, bytes]]:
    found: list[tuple[int | None, bytes | None, bytes]] = []
    while len(found) < count:
        message = consumer.receive(timeout=20)
        assert message is not None, f"{len(found)} of {count} came"
        found.append((message.part, message.key, message.body))
        message.finish()
    return found


@pytest.mark.parametrize("way", ["one", "two", "ipc"])
def test_messages_of_a_key_are_in_order_in_their_part(
    shared: Cluster, topic: str, way: str
) -> None:
    url = {"one": shared.brokers[0].tcp, "two": shared.brokers[1].tcp, "ipc": shared.brokers[1].ipc}
    keys = [b"key-%d" % number for number in range(20)]
    with zsq.Producer(url[way]) as producer:
        for number in range(10):
            bodies = [b"%d" % number] * len(keys)
            receipt = producer.publish_many(topic, bodies, keys=keys)
            assert sum(count for _, _, count in receipt.places) == len(keys)
        single = producer.publish(topic, b"10", key=keys[0])
        assert single.part == KeyParts(PARTS).of(keys[0])
        assert single.offset == 10 * sum(KeyParts(PARTS).of(key) == single.part for key in keys)
    with zsq.Consumer(topic, "c", url=url[way]) as consumer:
        found = received(consumer, 10 * len(keys) + 1)
    by_key: dict[Any, list[int]] = defaultdict(list)
    for part, key, body in found:
        assert key is not None
        assert part == KeyParts(PARTS).of(key)
        by_key[key].append(int(body))
    assert all(numbers == list(range(len(numbers))) for numbers in by_key.values())
    assert len(by_key) == len(keys)


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_messages_without_keys_go_to_all_parts(shared: Cluster, topic: str, linger_ms: int) -> None:
    with zsq.Producer(shared.url, linger_ms=linger_ms, batch_count=10) as producer:
        for number in range(100):
            producer.publish(topic, b"%d" % number)
    with zsq.Consumer(topic, "c", url=shared.url) as consumer:
        found = received(consumer, 100)
    assert sorted(int(body) for _, _, body in found) == list(range(100))
    assert set(Counter(part for part, _, _ in found)) == set(range(PARTS))


def test_two_consumers_share_the_parts(shared: Cluster, topic: str) -> None:
    with (
        zsq.Consumer(topic, "c", url=shared.brokers[0].tcp, ready=8) as one,
        zsq.Consumer(topic, "c", url=shared.brokers[1].tcp, ready=8) as two,
        zsq.Producer(shared.url) as producer,
    ):
        producer.publish_many(
            topic, [b"%d" % n for n in range(200)], keys=[b"%d" % n for n in range(200)]
        )
        found: list[bytes] = []
        while len(found) < 200:
            for consumer in (one, two):
                if (message := consumer.receive(timeout=0.2)) is not None:
                    found.append(message.body)
                    message.finish(sync=True)
        assert sorted(map(int, found)) == list(range(200))


def test_a_message_that_is_requeued_comes_from_its_part_again(shared: Cluster, topic: str) -> None:
    with zsq.Producer(shared.url) as producer:
        producer.publish_many(topic, [b"a", b"b", b"c", b"d"], keys=[b"1", b"2", b"3", b"4"])
    with zsq.Consumer(topic, "c", url=shared.url) as consumer:
        seen: Counter[bytes] = Counter()
        while sum(seen.values()) < 8:
            message = consumer.receive(timeout=20)
            assert message is not None
            seen[message.body] += 1
            assert message.attempts == seen[message.body]
            if message.attempts == 1:
                message.requeue()
            else:
                message.finish()
        consumer.flush()
    assert set(seen.values()) == {2}
    with zsq.Admin(shared.url) as admin:
        rows = admin.stats(topic, "c")["topics"]
        assert [row["topic_name"] for row in rows] == [f"{topic}#{n}" for n in range(PARTS)]
        assert all(channel["depth"] == 0 for row in rows for channel in row["channels"])


def test_orders_are_for_all_parts_and_questions_for_one(shared: Cluster, topic: str) -> None:
    with zsq.Admin(shared.brokers[0].tcp) as admin, zsq.Producer(shared.url) as producer:
        producer.publish_many(topic, [b"x"] * 40, keys=[b"%d" % n for n in range(40)])
        admin.pause(topic, "c")
        rows = admin.stats(topic, "c")["topics"]
        assert all(channel["paused"] for row in rows for channel in row["channels"])
        assert sum(row["channels"][0]["depth"] for row in rows) == 40
        admin.seek(topic, "c", "latest")
        admin.unpause(topic, "c")
        rows = admin.stats(topic, "c")["topics"]
        assert [row["channels"][0]["depth"] for row in rows] == [0] * PARTS
        with pytest.raises(zsq.UsageError, match=E_PARTS):
            admin.peek(topic, "c")
        with pytest.raises(zsq.UsageError, match=E_PARTS):
            admin.seek(topic, "c", 17)
        for part in range(PARTS):
            assert admin.peek(f"{topic}#{part}", "c").head == rows[part]["head"]
        assert admin.create_channel(topic, "c")["existed"]
        with pytest.raises(zsq.NotFound):
            admin.peek(f"{topic}#{PARTS}", "c")
        with pytest.raises(zsq.UsageError):
            admin.create_topic(f"{topic}#7")


def test_the_command_says_at_how_many_brokers_the_parts_are(shared: Cluster) -> None:
    """A broker that has just started gets no part, and one that is named gets all of them."""
    done = zsq_command.run_text(
        "--url", shared.url, "topic", "create", "placed", "--parts", "3", "--brokers", "1"
    )
    assert "topic placed has 3 parts at 1 broker; see zsq cluster" in done.stdout
    done = zsq_command.run_text("--url", shared.url, "topic", "create", "spread", "--parts", "3")
    assert "topic spread has 3 parts at 2 brokers" in done.stdout


@pytest.mark.parametrize("part", range(PARTS))
def test_a_part_is_read_by_its_offsets_at_any_broker(
    shared: Cluster, topic: str, part: int
) -> None:
    with zsq.Producer(shared.url) as producer:
        keys = [b"%d" % number for number in range(40)]
        producer.publish_many(topic, keys, keys=keys)
    mine = [b"%d" % n for n in range(40) if KeyParts(PARTS).of(b"%d" % n) == part]
    for broker in shared.brokers:
        with zsq.Reader(topic, part=part, url=broker.tcp) as reader:
            assert reader.bounds() == (0, len(mine))
            found = [body for block in reader.read(0).blocks for body in block.body.values()]
            assert found == mine
            assert reader.message(0).body == mine[0]
        with (
            zsq.Reader(topic, url=broker.tcp) as whole,
            pytest.raises(zsq.UsageError, match="has 4 parts at 2 brokers"),
        ):
            whole.bounds()


def test_asyncio_clients_use_the_parts(shared: Cluster, topic: str) -> None:
    async def main() -> list[bytes]:
        async with zsq.aio.Producer(shared.url) as producer:
            receipt = await producer.publish_many(
                topic, [b"%d" % n for n in range(40)], keys=[b"%d" % n for n in range(40)]
            )
            assert len(receipt.places) == PARTS
        found: list[bytes] = []
        async with zsq.aio.Consumer(topic, "c", url=shared.brokers[1].tcp) as consumer:
            while len(found) < 40:
                message = await consumer.receive(timeout=20)
                assert message is not None
                found.append(message.body)
                await message.finish(sync=True)
        async with zsq.aio.Admin(shared.url) as admin:
            rows = (await admin.stats(topic, "c"))["topics"]
            assert [row["channels"][0]["depth"] for row in rows] == [0] * PARTS
        async with zsq.aio.Reader(topic, part=2, url=shared.url) as reader:
            assert (await reader.bounds())[1] > 0
        return found

    assert sorted(map(int, asyncio.run(main()))) == list(range(40))


def test_delayed_messages_wait_in_their_parts(shared: Cluster, topic: str) -> None:
    with zsq.Producer(shared.url) as producer, zsq.Admin(shared.url) as admin:
        keys = [b"%d" % number for number in range(20)]
        receipt = producer.publish_many(topic, keys, keys=keys, delay=1.0)
        assert len(receipt.delayed_keys()) == 20
        waiting = [admin.delayed_count(f"{topic}#{n}")["messages"] for n in range(PARTS)]
        assert sum(waiting) == 20
        assert all(waiting)
        with zsq.Consumer(topic, "c", url=shared.url) as consumer:
            assert sorted(body for _, _, body in received(consumer, 20)) == sorted(keys)


def test_a_schedule_of_a_topic_belongs_to_one_part(shared: Cluster, topic: str) -> None:
    """It is found at each broker, and its name is used once in all parts."""
    parts = KeyParts(PARTS)

    def known(admin: zsq.Admin) -> dict[tuple[str, str], str]:
        rows = admin.schedule_list(topic)
        return {(row["topic"], row["name"]): row["state"] for row in rows}

    with zsq.Admin(shared.brokers[0].tcp) as admin, zsq.Admin(shared.brokers[1].tcp) as other:
        for name, key in (("a", None), ("b", None), ("c", "user-1"), ("d", "user-7")):
            assert admin.schedule_add(topic, name, "0 0 1 1 *", b"x", key=key)["next_due_ns"] > 0
        keys = (("a", b"a"), ("b", b"b"), ("c", b"user-1"), ("d", b"user-7"))
        expected = {(f"{topic}#{parts.of(key)}", name) for name, key in keys}
        assert len({part for part, _ in expected}) > 1, "all are in one part"
        assert set(known(admin)) == set(known(other)) == expected
        assert {row["topic"] for row in admin.schedule_list(f"{topic}#3")} <= {f"{topic}#3"}
        for key in ("user-1", "user-7", None):  # in the same part, and in others
            with pytest.raises(zsq.UsageError, match=E_EXISTS):
                other.schedule_add(topic, "c", "0 0 1 1 *", b"x", key=key)
        for name, _ in keys:
            other.schedule_pause(topic, name)
        assert set(known(admin).values()) == {"paused"}
        admin.schedule_resume(topic, "a")
        wait_for(lambda: sorted(known(other).values()) == ["paused"] * 3 + ["waiting"])
        admin.close_topic(f"{topic}#{parts.of(b'e')}", to="publishers")
        other.cluster(fresh=True)  # it must know that the part is closed
        other.schedule_add(topic, "e", "0 0 1 1 *", b"x")
        moved = KeyParts(PARTS, [parts.of(b"e")]).of(b"e")
        assert (f"{topic}#{moved}", "e") in known(admin), "its part is closed"
        for name in ("a", "b", "c", "d", "e"):
            other.schedule_remove(topic, name)
        assert known(admin) == {}
        with pytest.raises(zsq.NotFound, match=r"no part of topic '.*' has a schedule"):
            admin.schedule_remove(topic, "a")


def test_http_publishes_to_the_parts(shared: Cluster, topic: str) -> None:
    from urllib.request import urlopen

    one = shared.brokers[0]
    for number in range(8):
        place = f"http://127.0.0.1:{one.http}/pub?topic={topic}"
        with urlopen(place, data=b"%d" % number, timeout=20) as answer:
            assert answer.status == 200
    with zsq.Consumer(topic, "c", url=shared.url) as consumer:
        found = received(consumer, 8)
    assert sorted(int(body) for _, _, body in found) == list(range(8))
    assert len({part for part, _, _ in found}) == PARTS


def test_parts_that_are_added_are_used(shared: Cluster, topic: str) -> None:
    with (
        zsq.Admin(shared.url) as admin,
        zsq.Producer(shared.url) as before,
        zsq.Consumer(topic, "c", url=shared.url) as consumer,
    ):
        before.publish(topic, b"before", key=b"k")
        assert admin.add_parts(topic, 2) == {"parts": PARTS + 2}
        with zsq.Admin(shared.brokers[1].tcp) as other:  # it reads the directory every 2 s

            def parts() -> int:
                found = {row["topic"]: row["parts"] for row in other.cluster()["topics"]}
                return len(found[topic])

            wait_for(lambda: parts() == PARTS + 2)
        with zsq.Producer(shared.brokers[1].tcp) as after:
            keys = [b"%d" % number for number in range(60)]
            receipt = after.publish_many(topic, keys, keys=keys)
            assert {part for part, _, _ in receipt.places} == set(range(PARTS + 2))
        drive = consumer._made
        assert drive is not None
        with drive.lock:  # a minute need not pass
            drive.engine.topics[0].ask_ns = 0
            drive.engine.sooner(0)
            drive.settle()
        admin.create_channel(topic, "c")
        assert len(received(consumer, 60 + 1)) >= 60


@pytest.mark.parametrize("killed", [0, 1])
def test_nothing_is_lost_or_stored_twice_when_a_broker_is_killed(
    cluster: Cluster, killed: int
) -> None:
    """Producers go on with the other parts, and with all of them after the restart."""
    topic = "t"
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic(topic, parts=PARTS)
        admin.create_channel(topic, "c")
    broker = cluster.brokers[killed]
    with (
        zsq.Producer(cluster.url, timeout=60) as producer,
        zsq.Consumer(topic, "c", url=cluster.url) as consumer,
    ):
        for number in range(61, 65):  # one to each part
            producer.publish(topic, b"%d-0" % number)
        receipts = [
            producer.publish_many(topic, [b"%d-%d" % (n, m) for m in range(10)], wait=False)
            for n in range(40)
        ]
        broker.signal_all(signal.SIGKILL)
        drive = producer._made
        assert drive is not None
        links = [drive.engine.lanes[f"{topic}#{n}"].link for n in range(PARTS)]
        # A block that is sent before the client has noticed the end waits for the restart.
        wait_for(lambda: sum(link.up for link in links) == PARTS // 2)
        alone = time.monotonic()
        for number in range(40, 60):
            producer.publish(topic, b"%d-0" % number)
        assert time.monotonic() - alone < 30, "messages without keys do not wait for one broker"
        receipts += [producer.publish_many(topic, [b"60-0"], keys=[b"k"], wait=False)]
        broker.start()
        for receipt in receipts:
            receipt.wait()
        wanted = {b"%d-%d" % (n, m) for n in range(40) for m in range(10)}
        wanted |= {b"%d-0" % number for number in range(40, 65)}
        found: Counter[bytes] = Counter()
        while not wanted <= found.keys():
            message = consumer.receive(timeout=30)
            assert message is not None, f"{len(wanted - found.keys())} messages did not come"
            found[message.body] += 1
            with contextlib.suppress(zsq.LeaseLost):
                message.finish(sync=True)
    stored: Counter[bytes] = Counter()
    for part in range(PARTS):
        with zsq.Reader(topic, part=part, url=cluster.url) as reader:
            at, head = reader.bounds()
            while at < head:
                fetched = reader.read(at)
                for block in fetched.blocks:
                    stored.update(bytes(body or b"") for body in block.body.values())
                at = fetched.next_offset
    assert stored == Counter(wanted)


def test_a_consumer_that_begins_while_a_broker_is_away_gets_the_other_parts(
    cluster: Cluster,
) -> None:
    bodies = [b"%d" % number for number in range(40)]
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("t", parts=PARTS)
        admin.create_channel("t", "c")
        admin.create_channel("t", "other")
    with zsq.Producer(cluster.url) as producer:
        for body in bodies:
            producer.publish("t", body)
    cluster.brokers[1].signal_all(signal.SIGKILL)
    with zsq.Consumer("t", "c", url=cluster.url, timeout=20) as consumer:
        first = received(consumer, 20)
        told = zsq_command.run_text("sub", "t", "other", "-n", 3, "--url", cluster.url)
        assert told.returncode == 0, told.stderr
        assert len(told.stdout.splitlines()) == 3
        assert "did not answer and are left out: " in told.stderr
        cluster.brokers[1].start()
        rest = received(consumer, 20)
    assert {part for part, _, _ in first}.isdisjoint(part for part, _, _ in rest)
    assert sorted(body for _, _, body in first + rest) == sorted(bodies)


def rows_of(admin: zsq.Admin, topic: str) -> int:
    """Return of how many parts there are statistics: none while one is being opened."""
    with contextlib.suppress(zsq.Refused):
        return len(admin.stats(topic)["topics"])
    return 0


def test_a_broker_that_was_down_catches_up(cluster: Cluster) -> None:
    """Meanwhile one topic is deleted, and another one is deleted and created again."""
    one, two = cluster.brokers
    with zsq.Admin(one.tcp) as admin, zsq.Producer(one.tcp) as producer:
        for topic in ("kept", "gone", "again"):
            admin.create_topic(topic, parts=2)
            admin.create_channel(topic, "c")
            producer.publish_many(topic, [b"old"] * 20, keys=[b"%d" % n for n in range(20)])
        two.signal_all(signal.SIGKILL)
        for topic in ("gone", "again"):
            admin.delete_topic(topic, force=True)
        admin.create_topic("again", parts=2)
    two.start()
    with zsq.Admin(two.tcp) as admin:
        wait_for(lambda: {name for name in admin.topics() if "again" in name})
        wait_for(lambda: not [name for name in admin.topics() if "gone" in name])
        rows = admin.stats("kept")["topics"]
        assert sum(row["head"] for row in rows) == 20
        wait_for(lambda: rows_of(admin, "again") == 2)
    with zsq.Producer(two.tcp) as producer, zsq.Admin(two.tcp) as admin:
        admin.create_channel("again", "c")
        keys = [b"%d" % n for n in range(20)]
        producer.publish_many("again", keys, keys=keys)
        with zsq.Consumer("again", "c", url=two.tcp) as consumer:
            assert sorted(body for _, _, body in received(consumer, 20)) == sorted(keys)
        with pytest.raises(zsq.NotFound):
            admin.stats("gone")


def test_receives_over_http_get_the_messages_of_all_parts(shared: Cluster, topic: str) -> None:
    bodies = [b"%d" % number for number in range(80)]
    url = f"http://127.0.0.1:{shared.brokers[0].http}/api/v1/topics/{topic}/channels/c"

    def receive(wait_s: float) -> list[dict[str, Any]]:
        options = {"max": 1, "wait_s": wait_s}
        answer = httpx.post(f"{url}/receive", json=options, timeout=60)
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def is_open() -> bool:
        assert receive(0) == []
        with zsq.Admin(shared.url) as admin:
            clients = [
                admin.stats(f"{topic}#{part}")["topics"][0]["channels"][0]["client_count"]
                for part in range(PARTS)
            ]
        return clients == [1] * PARTS

    wait_for(is_open, what="a consumer of each part")
    with zsq.Producer(shared.url) as producer:
        producer.publish_many(topic, bodies, keys=bodies)
    found: list[tuple[int, bytes]] = []
    while len(found) < len(bodies):
        messages = receive(20)
        assert len(messages) == 1
        tokens = [message["token"] for message in messages]
        finish = httpx.post(f"{url}/finish", json={"tokens": tokens}, timeout=60)
        assert finish.json() == {"done": len(messages)}
        for message in messages:
            assert message["attempts"] == 1
            found.append((message["part"], message["body"].encode()))
    assert {part for part, _ in found[:40]} == set(range(PARTS)), "no part waits for the others"
    assert sorted(body for _, body in found) == sorted(bodies)
