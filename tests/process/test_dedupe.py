"""Tests of ids on a real broker: what has an id is stored once within the window, also with kills
of the broker, for delayed messages, and in topics with parts.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.broker import Broker, wait_for
from support.standby_pair import TOPIC, Pair
from support.zsq_command import run_text

import zsq


@pytest.fixture
def producer(own_broker: Broker) -> Iterator[zsq.Producer]:
    with zsq.Producer(own_broker.ipc, timeout=60) as one:
        yield one


@pytest.fixture
def admin(own_broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(own_broker.ipc, timeout=60) as one:
        yield one


def bodies(broker: Broker, topic: str = "t") -> list[bytes]:
    with zsq.Reader(topic, url=broker.ipc) as reader:
        found = reader.read(0, max_bytes=8 << 20)
        return [body or b"" for block in found.blocks for body in block.body.values()]


def restart(broker: Broker) -> None:
    broker.signal_all(signal.SIGKILL)
    broker.start()


def test_an_id_is_stored_once(own_broker: Broker, producer: zsq.Producer) -> None:
    first = producer.publish("t", b"first", dedupe_id="order-1")
    assert (first.offset, first.duplicate) == (0, False)
    again = producer.publish("t", b"again", dedupe_id="order-1")
    assert (again.offset, again.duplicate) == (0, True)
    assert producer.publish("t", b"other", dedupe_id="order-2").offset == 1
    assert producer.publish("t", b"none").offset == 2
    many = producer.publish_many(
        "t",
        [b"a", b"b", b"c", b"d", b"e"],
        dedupe_ids=["order-2", "x", None, "x", "y"],
    )
    assert many.results == ((1, True), (3, False), (4, False), (3, True), (5, False))
    assert not many.duplicate
    assert bodies(own_broker) == [b"first", b"other", b"none", b"b", b"c", b"e"]


def test_ids_outlive_kills(own_broker: Broker, producer: zsq.Producer) -> None:
    """Also those that no file has yet, and the producer goes on as if nothing had happened."""
    for round_ in range(3):
        receipt = producer.publish_many(
            "t", [b"%d" % n for n in range(50)], dedupe_ids=[f"{n}" for n in range(50)]
        )
        assert receipt.duplicate == (round_ > 0)
        assert [result.offset for result in receipt.results] == list(range(50))
        restart(own_broker)
    assert producer.publish("t", b"new", dedupe_id="new").offset == 50
    assert len(bodies(own_broker)) == 51


def test_a_delayed_message_counts_from_its_publish(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    first = producer.publish("t", b"late", delay=3600, dedupe_id="one")
    assert first.delayed_key is not None
    for delay in (None, 60):
        again = producer.publish("t", b"again", delay=delay, dedupe_id="one")
        assert (again.duplicate, again.offset, again.delayed_key) == (True, -1, None)
    restart(own_broker)
    assert producer.publish("t", b"again", delay=5, dedupe_id="one").duplicate
    plain = producer.publish("t", b"now", dedupe_id="two")
    assert (plain.duplicate, plain.offset) == (False, 0)
    assert producer.publish("t", b"again", delay=5, dedupe_id="two").offset == 0
    mixed = producer.publish_many("t", [b"x", b"y"], delay=1800, dedupe_ids=["two", "three"])
    assert len(mixed.delayed_keys()) == 1
    assert [result.duplicate for result in mixed.results] == [True, False]
    assert admin.delayed_count("t")["messages"] == 2
    assert bodies(own_broker) == [b"now"]


def test_a_window_ends(own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin) -> None:
    admin.create_topic("t", dedupe_window_s=0.3)
    assert not producer.publish("t", b"1", dedupe_id="one").duplicate
    wait_for(lambda: not producer.publish("t", b"2", dedupe_id="one").duplicate)
    admin.configure_topic("t", dedupe_window_s=0)
    assert not producer.publish("t", b"3", dedupe_id="one").duplicate
    assert bodies(own_broker) == [b"1", b"2", b"3"]
    topic = admin.stats("t")["topics"][0]
    assert topic["duplicate_count"] >= 0
    wait_for(lambda: admin.stats("t")["topics"][0]["dedupe_ids"] == 0)


def test_ids_outlive_the_loss_of_their_files(own_broker: Broker, producer: zsq.Producer) -> None:
    """The log has them, too. A checkpoint says from where on."""
    for name in ("one", "two"):
        producer.publish("t", b"x", dedupe_id=name)
    producer.publish("t", b"x")
    assert own_broker.stop() == 0
    (folder,) = own_broker.data_dir.glob("topics/*/ids")
    assert [path.name for path in folder.iterdir()] == ["00000001.ids"]
    shutil.rmtree(folder)
    own_broker.start()
    assert producer.publish("t", b"y", dedupe_id="two").offset == 1
    assert producer.publish("t", b"y", dedupe_id="three").offset == 3
    assert len(bodies(own_broker)) == 4


def letters(admin: zsq.Admin) -> int:
    rows = admin.stats()["topics"]
    return sum(row["message_count"] for row in rows if row["topic_name"] == "t.c.dead")


def test_a_dead_letter_and_its_redrive_are_no_duplicates(
    own_broker: Broker, producer: zsq.Producer, admin: zsq.Admin
) -> None:
    admin.create_channel("t", "c", max_attempts=1)
    producer.publish("t", b"x", dedupe_id="one")
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.requeue()
        wait_for(lambda: letters(admin) == 1, what="the dead letter")
        assert run_text("--url", own_broker.ipc, "redrive", "t.c.dead", "--all").returncode == 0
        again = consumer.receive(30)
        assert again is not None
        assert (again.body, again.offset) == (b"x", 1)
        assert "zsq-dedupe-id" not in again.headers
        again.finish()


def test_each_id_goes_to_one_part(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, zsq.Admin(broker.ipc, timeout=60) as admin:
        admin.create_topic("t", parts=3)
        ids = [f"{n}" for n in range(40)]
        results = []
        for linger_ms in (0, 5):
            with zsq.Producer(broker.ipc, timeout=60, linger_ms=linger_ms) as producer:
                alone = [producer.publish("t", b"x", dedupe_id=name) for name in ids]
                producer.flush()
                results += [[one.duplicate for one in alone]]
                many = producer.publish_many("t", [b"x"] * 40, dedupe_ids=ids)
                results += [[one.duplicate for one in many.results]]
        assert results == [[False] * 40, *[[True] * 40] * 3]
        assert {receipt.part for receipt in alone} == {0, 1, 2}


def test_ids_are_kept_by_a_takeover(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "--sync", "bucket")
    try:
        pair.begin()
        with zsq.Producer(pair.urls, timeout=60) as producer:
            first = producer.publish(TOPIC, b"1", dedupe_id="one")
            producer.publish(TOPIC, b"2", dedupe_id="two", delay=3600)
            pair.one.signal_all(signal.SIGKILL)
            pair.two.wait_ready()
            again = producer.publish(TOPIC, b"3", dedupe_id="one")
            assert (again.duplicate, again.offset) == (True, first.offset)
            assert producer.publish(TOPIC, b"3", dedupe_id="two").duplicate
            assert not producer.publish(TOPIC, b"3", dedupe_id="three").duplicate
    finally:
        pair.close()


def test_the_other_doors(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", http=True) as broker:
        url = f"http://127.0.0.1:{broker.http}"
        key = {"Idempotency-Key": "order-1"}
        for is_known in (False, True):
            answer = httpx.post(f"{url}/pub?topic=t", content=b"x", headers=key)
            wanted = {"offset": 0, "duplicate": is_known, "duplicates": [0] if is_known else []}
            assert (answer.status_code, answer.json()) == (200, wanted)
        for known in ([], [0, 1]):
            answer = httpx.post(f"{url}/mpub?topic=t", content=b"x\ny", headers=key)
            wanted = {"offset": 1, "duplicate": bool(known), "duplicates": known}
            assert answer.json() == wanted
        assert httpx.post(f"{url}/pub?topic=t", content=b"x").text == "OK"
        bad = httpx.post(f"{url}/pub?topic=t", content=b"x", headers={"Idempotency-Key": "x" * 257})
        assert (bad.status_code, bad.json()["message"]) == (400, "INVALID_IDEMPOTENCY_KEY")

        def pub(*arguments: str, lines: str = "") -> dict[str, object]:
            done = run_text("--url", broker.ipc, "pub", "t", *arguments, "--json", stdin=lines)
            found: dict[str, object] = json.loads(done.stdout)
            found.pop("seconds")
            return found

        assert pub("x", "--dedupe-id", "order-1") == {
            "topic": "t", "messages": 0, "duplicates": 1, "offset": 0,
        }  # fmt: skip
        lines = '{"body": "a", "dedupe_id": "order-1"}\n{"body": "b", "key": "k"}\n'
        assert pub("--json-lines", lines=lines)["duplicates"] == 1
        for stored in (2, 0):
            found = pub("--dedupe-key-from", "body", lines="a\nb\na\n")
            assert (found["messages"], found["duplicates"]) == (stored, 3 - stored)
        assert len(bodies(broker)) == 7


def test_of_many_that_publish_at_once_one_stores(broker: Broker) -> None:
    def publish(number: int) -> list[bool]:
        with zsq.Producer(broker.ipc, timeout=60) as producer:
            return [
                producer.publish("race", b"%d" % number, dedupe_id=f"{name}").duplicate
                for name in range(50)
            ]

    with ThreadPoolExecutor(8) as threads:
        outcomes = [*threads.map(publish, range(8))]
    assert [sum(row) for row in zip(*outcomes, strict=True)] == [7] * 50
    assert len(bodies(broker, "race")) == 50
