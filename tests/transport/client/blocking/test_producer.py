"""Tests of the blocking producer against a small fake broker: what is confirmed is stored once, in
order, whatever happens in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zsq
from zsq.transport.errors import E_BAD_ARGUMENT, E_DISK_FULL, E_SEQUENCE, E_TOPIC_FAILED
from zsq.transport.wire import protocol as p

Broker = Any


def test_a_message_is_stored_when_publish_returns(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        first = producer.publish("t", b"a", key="k", tag="g", headers={"n": 1})
        second = producer.publish("t", bytearray(b"b"))
    assert (first.offset, second.offset, first.count, first.ranges, first.error) == (
        0,
        1,
        1,
        ((0, 1),),
        None,
    )
    assert broker.bodies() == [b"a", b"b"]
    assert broker.log[0].key.values() == [b"k"]
    assert broker.log[0].tag.values() == [b"g"]


def test_publish_many_is_cut_into_blocks(broker: Broker) -> None:
    bodies = [b"%d" % i for i in range(25_001)]
    with zsq.Producer(broker.url) as producer:
        receipt = producer.publish_many("t", bodies, keys=["k"] * len(bodies))
        assert receipt.ranges == ((0, 10_000), (10_000, 10_000), (20_000, 5_001))
        assert producer.publish_many("t", [bytes(900_000)] * 13).ranges == (
            (25_001, 5),
            (25_006, 5),
            (25_011, 3),
        )
        assert producer.publish_many("t", [bytes(700_000)] * 10).ranges == (
            (25_014, 7),
            (25_021, 3),
        ), "about 5 MiB, not what a block can hold"
    assert broker.bodies()[:25_001] == bodies


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        (lambda p: p.publish("t", "text"), zsq.UsageError, "E_BAD_ARGUMENT"),
        (lambda p: p.publish("t", bytes(2_000_000)), zsq.UsageError, "E_TOO_BIG"),
        (lambda p: p.publish("t", b"", key="k" * 257), zsq.UsageError, "E_TOO_BIG"),
        (lambda p: p.publish("t", b"", tag=3), zsq.UsageError, "E_BAD_ARGUMENT"),
        (lambda p: p.publish("t", b"", headers={"a": "b" * 20_000}), zsq.UsageError, "E_TOO_BIG"),
        (lambda p: p.publish("t", b"", headers={"a": object()}), zsq.UsageError, "E_BAD_ARGUMENT"),
        (lambda p: p.publish("../t", b""), zsq.UsageError, "E_BAD_NAME"),
        (lambda p: p.publish("t", b"", delay=-1.0), zsq.UsageError, E_BAD_ARGUMENT),
        (lambda p: p.publish("t", b"", delay=float("nan")), zsq.UsageError, E_BAD_ARGUMENT),
        (
            lambda p: p.publish_many("t", [b""], delay=366 * 86_400 + 0.001),
            zsq.UsageError,
            E_BAD_ARGUMENT,
        ),
        (lambda p: p.publish_many("t", []), zsq.UsageError, "E_BAD_ARGUMENT"),
        (lambda p: p.publish_many("t", [b"a"], keys=[]), zsq.UsageError, "E_BAD_ARGUMENT"),
        (lambda p: p.publish_many("t", [b"a", "b"]), zsq.UsageError, "E_BAD_BLOCK"),
        (lambda p: p.publish_many("t", [b"a", bytes(1 << 21)]), zsq.UsageError, "E_TOO_BIG"),
    ],
)
def test_wrong_calls_are_told_before_anything_is_sent(
    broker: Broker, call: Callable[[Any], Any], error: Any, code: str
) -> None:
    for linger_ms in (0, 1):
        with (
            zsq.Producer(broker.url, linger_ms=linger_ms) as producer,
            pytest.raises(error, match=code),
        ):
            call(producer)
    assert not broker.log


def test_each_wrong_argument_is_refused() -> None:
    for arguments in (
        {"url": "http://x"},
        {"url": "tcp://host"},
        {"linger_ms": -1},
        {"timeout": 0},
        {"heartbeat_ms": 5},
        {"batch_count": 0},
    ):
        with pytest.raises(zsq.UsageError):
            zsq.Producer(**arguments)


# Lingering


def test_lingering_messages_share_blocks_by_count_size_and_time(broker: Broker) -> None:
    with zsq.Producer(broker.url, linger_ms=60_000, batch_count=10, batch_bytes=1000) as producer:
        receipts = [producer.publish("t", b"%d" % i) for i in range(25)]
        assert receipts[0].wait() == 0
        assert not receipts[24].done
        producer.publish("t", bytes(2000))
        assert receipts[24].wait() == 24
        late = producer.publish("t", b"late", key="k")
        assert late.wait() == 26, "who waits does not linger"
    assert [block.count for block in broker.log] == [10, 10, 6, 1]
    assert [receipt.offset for receipt in receipts] == list(range(25))


def test_lingering_ends_by_time_although_no_caller_waits(broker: Broker) -> None:
    with zsq.Producer(broker.url, linger_ms=5) as producer:
        receipt = producer.publish("t", b"a")
        broker.wait_for(lambda: len(broker.log) == 1)
        assert receipt.wait() == 0


def test_lingering_messages_keep_their_own_attributes(broker: Broker) -> None:
    with zsq.Producer(broker.url, linger_ms=1000) as producer:
        producer.publish("t", b"0")
        producer.publish("t", b"1", key="k1")
        producer.publish("t", b"2", tag="t2", headers={"h": 2})
        producer.publish("t", b"3", key="k3")
        producer.publish("t", b"4")
    [block] = broker.log
    assert block.key.values() == [None, b"k1", None, b"k3", None]
    assert block.tag.values() == [None, None, b"t2", None, None]
    assert [value is not None for value in block.headers.values()] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_order_is_kept_between_lingering_and_many(broker: Broker) -> None:
    with zsq.Producer(broker.url, linger_ms=1000) as producer:
        producer.publish("t", b"0")
        producer.publish_many("t", [b"1", b"2"], wait=False)
        producer.publish("t", b"3")
    assert broker.bodies() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("linger_ms", [0, 2])
def test_threads_share_a_producer(broker: Broker, linger_ms: int) -> None:
    with zsq.Producer(broker.url, linger_ms=linger_ms) as producer:

        def work(number: int) -> None:
            for i in range(50):
                producer.publish("t", b"%d-%d" % (number, i)).wait()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    bodies = broker.bodies()
    assert sorted(bodies) == sorted(b"%d-%d" % (n, i) for n in range(8) for i in range(50))
    for n in range(8):
        own = [body for body in bodies if body.startswith(b"%d-" % n)]
        assert own == [b"%d-%d" % (n, i) for i in range(50)]


# Failures


def test_lost_answers_do_not_store_twice(broker: Broker) -> None:
    broker.lose_answers = 1
    with zsq.Producer(broker.url) as producer:
        receipt = producer.publish_many("t", [b"a"], wait=False)
        broker.wait_for(lambda: len(broker.log) == 1)
        broker.die()
        broker.start()
        assert receipt.wait() == 0
        assert producer.publish("t", b"b").offset == 1
    assert broker.bodies() == [b"a", b"b"]


def test_death_of_the_broker_while_blocks_are_out(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        assert producer.publish("t", b"first").offset == 0
        broker.silent = True
        receipts = [producer.publish_many("t", [b"%d" % i], wait=False) for i in range(20)]
        broker.wait_for(lambda: broker.count(p.Pub) == 21)
        broker.die()
        broker.silent = False
        broker.start()
        assert [receipt.wait() for receipt in receipts] == list(range(1, 21))
    assert broker.bodies() == [b"first", *(b"%d" % i for i in range(20))]


def test_disk_full_fails_that_block_and_what_follows_is_stored(broker: Broker) -> None:
    broker.refuse.append(E_DISK_FULL)
    with zsq.Producer(broker.url) as producer:
        with pytest.raises(zsq.Refused, match=E_DISK_FULL):
            producer.publish("t", b"a")
        assert producer.publish("t", b"b").offset == 0


def test_a_full_disk_refuses_one_publish_and_not_those_behind(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"first")
        broker.refuse.extend(["", E_DISK_FULL])
        broker.refuse[0] = E_DISK_FULL
        broker.refuse.pop()
        receipts = [producer.publish_many("t", [b"%d" % i], wait=False) for i in range(5)]
        with pytest.raises(zsq.Refused, match=E_DISK_FULL):
            receipts[0].wait()
        assert [receipt.wait() for receipt in receipts[1:]] == [1, 2, 3, 4]
        producer.flush()  # the only error was reported before
    assert broker.bodies() == [b"first", b"1", b"2", b"3", b"4"]


def test_flush_raises_an_error_that_no_call_has_raised(broker: Broker) -> None:
    producer = zsq.Producer(broker.url, linger_ms=1)
    broker.refuse.append(E_DISK_FULL)
    producer.publish("t", b"a")
    with pytest.raises(zsq.Refused, match=E_DISK_FULL):
        producer.flush()
    producer.flush()
    broker.refuse.append(E_DISK_FULL)
    producer.publish("t", b"a")
    with pytest.raises(zsq.Refused, match=E_DISK_FULL):
        producer.close()


def test_a_gap_restarts_the_link(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"a")
        broker.refuse.append(E_SEQUENCE)
        assert producer.publish("t", b"b").offset == 1
    assert broker.count(p.Hello) == 2


def test_a_topic_that_lost_messages_is_reported_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with zsq.Producer(broker.url) as producer:
        for _ in range(3):
            producer.publish("t", b"a")
        broker.die()
        broker.expected.clear()
        broker.start()
        assert producer.publish("t", b"b").offset == 3
    assert "had confirmed as stored" in caplog.text
    assert len({message.producer_id for message in broker.heard if type(message) is p.Hello}) == 2


def test_a_topic_created_again_is_logged_and_is_no_data_loss(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topic has another uuid. Nothing was lost, because the old topic was deleted."""
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"a")
        broker.die()
        broker.expected.clear()
        broker.uuid = "1"
        broker.start()
        producer.publish("t", b"b")
    assert "topic t was deleted and created again" in caplog.text
    assert "had confirmed as stored" not in caplog.text


def test_refused_lookup_is_an_error_now_and_tried_again_later(broker: Broker) -> None:
    broker.lookup_error = (E_TOPIC_FAILED, "its storage fails")
    with zsq.Producer(broker.url) as producer:
        with pytest.raises(zsq.Refused, match="its storage fails"):
            producer.publish("t", b"a")
        broker.lookup_error = None
        assert producer.publish("t", b"b").offset == 0


def test_an_unreachable_broker_is_reported_with_nothing_sent(tmp_path: Path) -> None:
    producer = zsq.Producer(f"ipc://{tmp_path}/none", timeout=0.3)
    with pytest.raises(
        zsq.BrokerUnreachable, match=r"E_TIMEOUT ipc://.*/none .*nothing was sent.*zsq serve"
    ):
        producer.publish("t", b"a")
    producer.close()


def test_a_publish_without_an_answer_is_reported_as_unknown(broker: Broker) -> None:
    producer = zsq.Producer(broker.url, timeout=0.3)
    producer.publish("t", b"a")
    broker.silent = True
    with pytest.raises(zsq.BrokerUnreachable, match="it may be stored"):
        producer.publish("t", b"b")
    with pytest.raises(zsq.BrokerUnreachable):
        producer.close()


def test_a_silent_broker_is_given_up_after_two_heartbeats(broker: Broker) -> None:
    with zsq.Producer(broker.url, heartbeat_ms=1000) as producer:
        producer.publish("t", b"a")
        broker.deaf_to.add(p.Beat)
        broker.wait_for(lambda: broker.count(p.Beat) >= 1)
        broker.wait_for(lambda: broker.count(p.Lookup) >= 2)
        assert producer.publish("t", b"b").offset == 1


def test_beats_keep_an_idle_link(broker: Broker) -> None:
    with zsq.Producer(broker.url, heartbeat_ms=1000) as producer:
        producer.publish("t", b"a")
        broker.wait_for(lambda: broker.count(p.Beat) >= 2)
    assert broker.count(p.Hello) == 1


def test_publishing_waits_while_too_much_is_not_sent(broker: Broker) -> None:
    block = [bytes(1_000_000)] * 4
    broker.silent = True
    with zsq.Producer(broker.url, timeout=0.5) as producer:
        for _ in range(5):
            producer.publish_many("t", block, wait=False)
        with pytest.raises(zsq.BrokerUnreachable):
            producer.publish_many("t", block, wait=False)
        broker.silent = False
        broker.die()
        broker.start()
        producer.flush(10)
        assert len(broker.log) == 5


# Forks and ends


def test_a_forked_child_has_its_own_link_and_id(broker: Broker) -> None:
    producer = zsq.Producer(broker.url, linger_ms=10_000)
    producer.publish("t", b"parent").wait()
    producer.publish("t", b"parent lingers")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            receipt = producer.publish("t", b"child")
            receipt.wait(10)
            producer.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert producer.publish("t", b"parent again").wait() == 3
    producer.close()
    assert broker.bodies() == [b"parent", b"child", b"parent lingers", b"parent again"]
    assert len({message.producer_id for message in broker.heard if type(message) is p.Hello}) == 2


def test_publish_is_refused_after_close(broker: Broker) -> None:
    producer = zsq.Producer(broker.url)
    producer.publish("t", b"a")
    producer.close()
    producer.close()
    with pytest.raises(zsq.Refused, match="closed"):
        producer.publish("t", b"b")


def test_close_tells_the_broker_that_the_producer_leaves(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"a")
    broker.wait_for(lambda: broker.count(p.Bye) == 1)


def test_an_idle_producer_does_not_bring_a_deleted_topic_back(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"a")
        lookups = [message for message in broker.heard if type(message) is p.Lookup]
        assert [message.create for message in lookups] == [True]
        broker.lookup_error = ("E_NOT_FOUND", "topic 't' does not exist")
        broker.die()
        broker.start()
        broker.wait_for(lambda: broker.count(p.Lookup) == 2)
        lookups = [message for message in broker.heard if type(message) is p.Lookup]
        assert not lookups[-1].create, "nothing waits: it only looks"
        broker.lookup_error = None
        producer.publish("t", b"b")
        lookups = [message for message in broker.heard if type(message) is p.Lookup]
        assert lookups[-1].create, "now there is something to publish"


def test_a_publish_during_the_lookup_of_an_idle_link_creates_the_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = threading.Event()
    found = broker.on_lookup

    def on_lookup(envelope: Any, message: p.Lookup, payload: Any) -> Any:
        if message.create:
            return found(envelope, message, payload)
        assert published.wait(10)
        return p.Failed(message.request, "E_NOT_FOUND", "topic 't' does not exist")

    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"a")
        monkeypatch.setattr(broker, "on_lookup", on_lookup)
        broker.die()
        broker.start()
        broker.wait_for(lambda: broker.count(p.Lookup) == 2)
        receipt = producer.publish_many("t", [b"b"], wait=False)
        published.set()
        receipt.wait(10)
    assert broker.bodies() == [b"a", b"b"]


def test_one_topic_does_not_wait_for_another(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        start = time.monotonic()
        for i in range(20):
            producer.publish(f"t{i}", b"a")
        assert time.monotonic() - start < 5
    assert len(broker.log) == 20
