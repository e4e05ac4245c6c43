"""Tests of tags, ages, samples and addresses on real processes: which consumer gets which messages,
what is counted, and that this survives restarts.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import ADDRESSED, IN_GROUP
from zsq.transport.client.core.producer_session import PendingBlock
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_BLOCK
from zsq.transport.wire.codec import CHANNEL_HEADER, HeaderValue


def row(broker: Broker, channel: str, topic: str = "t") -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic, channel)["topics"][0]["channels"][0])


def drained(consumer: zsq.Consumer, quiet_s: float = 0.7) -> list[bytes]:
    found = []
    while (message := consumer.receive(quiet_s)) is not None:
        found.append(message.body)
        message.finish()
    consumer.flush()
    return found


def test_a_channel_gets_its_tags_and_nothing_else(own_broker: Broker) -> None:
    tags = [["a", "b", "c", None][n % 4] for n in range(4_000)]
    with zsq.Producer(own_broker.ipc) as producer, zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("t", "all")
        admin.create_channel("t", "ab", tags="b||a")
        producer.publish_many("t", [b"%d" % n for n in range(4_000)], tags=tags)
        for n in range(4_000, 4_020):
            producer.publish("t", b"%d" % n, tag="a" if n % 2 else "z")
    with zsq.Consumer("t", "ab", url=own_broker.tcp) as consumer:
        found = sorted(map(int, drained(consumer)))
    assert found == [n for n in range(4_000) if n % 4 < 2] + list(range(4_001, 4_020, 2))
    wait_for(lambda: row(own_broker, "ab")["finish_count"] == 2_010, 30, "the finishes")
    stats = row(own_broker, "ab")
    assert (stats["tag_skipped_count"], stats["depth"], stats["in_flight_count"]) == (2_010, 0, 0)
    assert (row(own_broker, "all")["depth"], row(own_broker, "all")["tag_skipped_count"]) == (
        4_020,
        0,
    )
    assert own_broker.stop() == 0
    own_broker.start()
    stats = row(own_broker, "ab")
    assert (stats["tag_skipped_count"], stats["depth"]) == (2_010, 0), (
        "where the cursor is, and what was counted, is durable"
    )


def test_a_backlog_of_other_tags_is_passed_while_the_channel_answers(own_broker: Broker) -> None:
    count = 300_000
    with zsq.Producer(own_broker.ipc) as producer, zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("t", "c", tags="rare")
        for _ in range(count // 10_000):
            producer.publish_many("t", [b"x" * 20] * 10_000, tags=["common"] * 10_000)
        producer.publish("t", b"found", tag="rare")
        with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
            message = consumer.receive(30)
            assert message is not None
            assert message.body == b"found"
            message.finish(sync=True)
        wait_for(lambda: row(own_broker, "c")["tag_skipped_count"] == count, 30, "what was passed")
        assert row(own_broker, "c")["depth"] == 0
        assert own_broker.stop() == 0
        own_broker.start()
        assert row(own_broker, "c")["depth"] == 0, (
            "the cursor is committed though nothing of it was delivered"
        )


def test_old_messages_are_not_delivered_and_counted(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c", max_age_s=1.5)
        producer.publish_many("t", [b"old"] * 10)
        begin = time.monotonic()
        wait_for(lambda: time.monotonic() - begin > 1.6, 5, "a second and a half")
        producer.publish("t", b"young")
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            message = consumer.receive(10)
            assert message is not None
            assert message.body == b"young"
            message.requeue(delay=2.0)
            assert consumer.receive(3.5) is None, "when it is due it is too old"
        stats = row(broker, "c")
        assert (
            stats["expired_count"],
            stats["depth"],
            stats["deferred_count"],
            stats["in_flight_count"],
        ) == (11, 0, 0, 0)


def test_a_sample_is_taken_and_the_rest_is_counted(broker: Broker) -> None:
    count = 20_000
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c")
        producer.publish_many("t", [b"x"] * count)
        with zsq.Consumer("t", "c", url=broker.ipc, sample_rate=25) as consumer:
            found = len(drained(consumer))
            stats = row(broker, "c")
            assert stats["clients"][0]["sample_rate"] == 25
    assert (stats["sampled_count"], stats["finish_count"], stats["depth"]) == (
        count - found,
        found,
        0,
    )
    assert abs(found - count * 0.25) < 5 * (count * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("rate", [-1, 100, 10_000])
def test_a_sample_rate_that_is_none_is_refused(
    broker: Broker, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(zsq.UsageError):
        zsq.Consumer("t", "c", url=broker.ipc, sample_rate=rate)
    consumer = zsq.Consumer("t", "c", url=broker.ipc)
    drive = consumer._drive()
    # A client that does not check its options would send this rate.
    monkeypatch.setattr(drive.engine.session, "sample_rate", rate)
    with pytest.raises(zsq.ZsqError, match="sample rate must be 1 to 99 percent") as error:
        consumer.subscribe(10)
    assert error.value.code == E_BAD_ARGUMENT
    consumer.close()


def test_an_addressed_message_comes_to_its_channel_only_also_delayed_and_after_a_restart(
    own_broker: Broker,
) -> None:
    address: dict[str, HeaderValue] = {CHANNEL_HEADER: "one", "n": 1}
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Producer(own_broker.ipc, linger_ms=5) as lingering,
        zsq.Admin(own_broker.ipc) as admin,
    ):
        for channel in ("one", "two"):
            admin.create_channel("t", channel)
        producer.publish("t", b"single", headers=address)
        producer.publish_many("t", [b"many", b"for all"], headers=[address, {"n": 2}])
        lingering.publish("t", b"lingering", headers=address)
        lingering.flush()
        producer.publish("t", b"delayed", headers=address, delay=1.0)
        assert own_broker.stop() == 0
        own_broker.start()
        with (
            zsq.Consumer("t", "two", url=own_broker.ipc) as two,
            zsq.Consumer("t", "one", url=own_broker.tcp) as one,
        ):
            assert sorted(drained(one, 2.5)) == [
                b"delayed",
                b"for all",
                b"lingering",
                b"many",
                b"single",
            ]
            assert drained(two) == [b"for all"]
        assert row(own_broker, "two")["addressed_skipped_count"] == 4
        assert row(own_broker, "one")["addressed_skipped_count"] == 0


@pytest.mark.parametrize(
    ("flags", "stored"), [(ADDRESSED, True), (ADDRESSED | IN_GROUP, False), (1 << 12, False)]
)
def test_the_topic_takes_that_flag_and_no_other(broker: Broker, flags: int, stored: bool) -> None:
    """A flag on a block without addresses does no harm."""
    block = pack([b"x"])
    block = Block(block.header._replace(flags=flags), block.payload, block.columns)
    with (
        zsq.Producer(broker.ipc, timeout=10) as producer,
        zsq.Consumer("t", "c", url=broker.ipc) as consumer,
    ):
        consumer.subscribe(10)
        drive = producer._drive()
        pending = PendingBlock(block)
        with drive.lock:
            drive.engine.lane("t").push(pending, time.monotonic_ns())
            drive.settle()
            assert drive.wait(lambda: pending.done, time.monotonic_ns() + 10_000_000_000)
        if stored:
            assert pending.error is None
            message = consumer.receive(10)
            assert message is not None
            message.finish()
        else:
            pending.raised = True  # the error was reported here
            assert pending.error is not None
            assert pending.error.code == E_BAD_BLOCK


@pytest.mark.parametrize("tag", ["a||b", b"||", "a|||"])
def test_a_tag_that_no_channel_can_select_is_refused(shared: Broker, tag: str | bytes) -> None:
    with zsq.Producer(shared.ipc) as producer:
        refused = pytest.raises(zsq.UsageError, match=r"a tag must not contain \|\|")
        with refused:
            producer.publish("bad-tags", b"x", tag=tag)
        with refused:
            producer.publish_many("bad-tags", [b"x"], tag=tag)
        with refused:
            producer.publish_many("bad-tags", [b"x"], tags=[tag])
        producer.publish("bad-tags", b"x", tag="a|b")
