"""Tests of parts that move between two real brokers of one cluster."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import wait_for
from support.cluster import Cluster, running

import zsq
from zsq.transport.errors import ZsqError

PARTS = 2
KEYS = 8
MOVED_S = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as made:
        with zsq.Admin(made.url) as admin:
            admin.create_topic("t", parts=PARTS, brokers=[0])
            admin.create_channel("t", "c", ordered=True)
        yield made


def place(cluster: Cluster, number: int = 1) -> tuple[int, bool]:
    """Return where a part is by each broker's fresh view, and whether it is being moved."""
    for broker in cluster.brokers:
        with contextlib.suppress(ZsqError), zsq.Admin(broker.tcp, timeout=10) as admin:
            (topic,) = [one for one in admin.cluster(fresh=True)["topics"] if one["topic"] == "t"]
            return topic["parts"][number], number in topic["moves"]
    return -1, True


def move(cluster: Cluster, broker: int, number: int = 1) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.move_part(f"t#{number}", broker)
    wait_for(lambda: place(cluster, number) == (broker, False), MOVED_S)


def stored(cluster: Cluster, number: int = 1, start: int = 0) -> list[tuple[int, bytes]]:
    """Return the offset and the body of all messages of a part."""
    found: list[tuple[int, bytes]] = []
    with zsq.Reader("t", part=number, url=cluster.url) as reader:
        at, head = max(start, reader.bounds()[0]), reader.bounds()[1]
        while at < head:
            fetched = reader.read(at)
            for block in fetched.blocks:
                bodies = [bytes(body or b"") for body in block.body.values()]
                found += zip(range(block.first_offset, block.next_offset), bodies, strict=True)
            at = fetched.next_offset
    return found


def states(admin: zsq.Admin) -> list[str]:
    """Return the states of the schedules at one broker."""
    return [one["state"] for one in admin.schedule_list()]


def objects(cluster: Cluster, broker: int, log: str) -> list[Path]:
    folder = Path(cluster.place.removeprefix("file://")) / ("one", "two")[broker]
    return [path for path in folder.rglob("*") if log in str(path) and path.is_file()]


def log_of(cluster: Cluster) -> str:
    """Return the uuid of the log of part 1."""
    with zsq.Admin(cluster.url) as admin:
        return str(admin.stats("t#1")["topics"][0]["uuid"])


def test_a_part_moves_and_comes_back_with_all_that_belongs_to_it(cluster: Cluster) -> None:
    """Offsets, finished messages, delayed messages, pauses, settings, schedules and clients go
    on.
    """
    keys = [b"%d" % number for number in range(KEYS)]
    with (
        zsq.Admin(cluster.url) as admin,
        zsq.Producer(cluster.url) as producer,
        zsq.Consumer("t", "c", url=cluster.url, ordered=True) as consumer,
    ):
        finished: list[bytes] = []

        def publish(turn: int) -> None:
            producer.publish_many("t", [b"%s-%d" % (key, turn) for key in keys], keys=keys)

        def finish(count: int) -> None:
            for _ in range(count):
                message = consumer.receive(timeout=30)
                assert message is not None
                finished.append(message.body)
                message.finish(sync=True)

        publish(0)
        finish(KEYS // 2)
        admin.configure_topic("t", keep_bytes=1 << 30)
        admin.create_channel("t#1", "late", start="earliest")
        admin.pause("t#1", "late")
        producer.publish("t#1", b"later", delay=3_600)
        admin.schedule_add("t#1", "yearly", "0 0 1 1 *", b"x")
        log, before = log_of(cluster), stored(cluster)
        for turn, broker in enumerate((1, 0, 1), 1):
            move(cluster, broker)
            with zsq.Admin(cluster.brokers[broker].tcp) as at:
                names = [one["topic_name"] for one in at.stats()["topics"]]
                assert "t#1" in names
                wait_for(lambda: states(at) == ["waiting"])
            with zsq.Admin(cluster.brokers[1 - broker].tcp) as away:
                assert states(away) == []
            publish(turn)
            found = stored(cluster)
            assert [offset for offset, _ in found] == list(range(len(found))), "no gaps"
            assert found[: len(before)] == before
            before = found
            assert admin.delayed_count("t#1")["messages"] == 1
            (shown,) = admin.stats("t#1")["topics"]
            assert shown["settings"]["keep_bytes"] == 1 << 30
            assert {one["channel_name"]: one["paused"] for one in shown["channels"]} == {
                "c": False,
                "late": True,
            }
            wait_for(lambda: not objects(cluster, 1 - broker, log))  # noqa: B023
        finish(4 * KEYS - len(finished))
        assert Counter(finished) == Counter(b"%s-%d" % (key, n) for key in keys for n in range(4))
        by_key: dict[bytes, list[bytes]] = defaultdict(list)
        for body in finished:
            by_key[body.split(b"-")[0]].append(body.split(b"-")[1])
        assert all(turns == sorted(turns) for turns in by_key.values())
    assert not [path for path in cluster.brokers[0].data_dir.glob("topics/*") if log in str(path)]


def test_archived_messages_are_read_at_the_new_broker(tmp_path: Path) -> None:
    """The disk of the first broker has only the newest files of the log."""
    body = random.Random(1).randbytes(1 << 16)
    with running(tmp_path, "--chunk-bytes", "1MiB") as cluster, zsq.Admin(cluster.url) as admin:
        admin.create_topic("t", parts=PARTS, brokers=[0], keep_bytes=2 << 20)
        with zsq.Producer(cluster.url) as producer:
            for _ in range(20):
                producer.publish_many("t#1", [body] * 8)

        def on_disk() -> int:
            (row,) = admin.stats("t#1")["topics"]
            return row["log_bytes"] if not row["unarchived_bytes"] else 1 << 30

        wait_for(lambda: on_disk() < 5 << 20, MOVED_S)
        log = log_of(cluster)
        move(cluster, 1)
        assert on_disk() < 5 << 20
        found = stored(cluster)
        assert [offset for offset, _ in found] == list(range(160))
        assert {one for _, one in found} == {body}
        wait_for(lambda: not objects(cluster, 0, log))
        assert len([path for path in objects(cluster, 1, log) if path.suffix == ".index"]) > 5


def test_a_part_stays_where_it_is_while_the_other_broker_is_away(cluster: Cluster) -> None:
    """The move can be withdrawn. Otherwise it goes on when the broker is back."""
    one, two = cluster.brokers
    with zsq.Admin(one.tcp) as admin, zsq.Producer(cluster.url, timeout=60) as producer:
        producer.publish("t#1", b"before")
        two.signal_all(signal.SIGKILL)
        admin.move_part("t#1", 1)
        assert place(cluster) == (0, True)
        producer.publish("t#1", b"meanwhile")
        admin.move_part("t#1", 0)
        assert place(cluster) == (0, False)
        admin.move_part("t#1", 1)
        producer.publish("t#1", b"later")
        two.start()
        wait_for(lambda: place(cluster) == (1, False), MOVED_S)
        producer.publish("t#1", b"after")
        assert [body for _, body in stored(cluster)] == [
            b"before",
            b"meanwhile",
            b"later",
            b"after",
        ]


def test_orders_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    with zsq.Admin(cluster.url) as admin:
        for part, broker, code in (
            ("t", 1, "E_BAD_ARGUMENT"),
            ("t#1", 2, "E_BAD_ARGUMENT"),
            ("t#9", 1, "E_NOT_FOUND"),
            ("missing#0", 1, "E_NOT_FOUND"),
        ):
            with pytest.raises(ZsqError) as caught:
                admin.move_part(part, broker)
            assert caught.value.code == code, part
        admin.move_part("t#1", 0)  # it is there already
        assert place(cluster) == (0, False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turns", [2, pytest.param(6, marks=pytest.mark.long)])
def test_nothing_is_lost_or_stored_twice_when_brokers_are_killed_during_moves(
    cluster: Cluster, turns: int
) -> None:
    """A part moves there and back, and each broker is killed at random moments. Producers wait."""
    chance = random.Random(turns)
    over = threading.Event()
    acknowledged: list[bytes] = []
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            with zsq.Producer(cluster.url, timeout=120) as producer:
                number = 0
                while not over.is_set():
                    bodies = [b"%d" % (number + n) for n in range(5)]
                    producer.publish_many("t#1", bodies)
                    acknowledged.extend(bodies)
                    number += 5
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for turn in range(turns):
            target = 1 - turn % 2
            with zsq.Admin(cluster.url, timeout=60) as admin:
                admin.move_part("t#1", target)
            looks = chance.randrange(12)
            for _ in range(looks):  # how long it goes on before the kill
                place(cluster)
            killed = cluster.brokers[chance.randrange(2)]
            killed.signal_all(signal.SIGKILL)
            killed.start()
            wait_for(lambda: place(cluster) == (target, False), 120)  # noqa: B023
    finally:
        over.set()
        thread.join()
    assert not failures
    assert acknowledged
    found = stored(cluster)
    bodies = [body for _, body in found]
    assert Counter(bodies) == Counter(acknowledged)
    assert bodies == sorted(bodies, key=int), "one producer, one part: the order is kept"
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    received: set[Any] = set()
    with zsq.Consumer("t", "c", url=cluster.url, timeout=60, ordered=True) as consumer:
        while len(received) < len(acknowledged):
            message = consumer.receive(timeout=60)
            assert message is not None, f"{len(acknowledged) - len(received)} did not come"
            received.add(message.body)
            message.finish()
