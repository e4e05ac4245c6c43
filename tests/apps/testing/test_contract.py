"""Contract of the brokers for tests: the same tests pass at the in-memory broker and at a real one,
so the one cannot differ from the other unnoticed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import zsq
import zsq.aio
from zsq.testing import Namespace
from zsq.transport.block.block import MESSAGE_BYTES_MAX

WAIT_S = 30.0
S = 1_000_000_000


def take(consumer: zsq.Consumer) -> zsq.Message:
    message = consumer.receive(WAIT_S)
    assert message is not None
    return message


def bodies(consumer: zsq.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = take(consumer)
        found.append(message.body)
        message.finish()
    consumer.flush()  # a test may move the clock, or seek
    return found


def nothing(consumer: zsq.Consumer) -> bool:
    return consumer.receive(0.2) is None


def code_of(call: Any, *given: Any, **options: Any) -> tuple[type[Exception], str]:
    """Return the class and the code of the error of a call."""
    with pytest.raises(zsq.ZsqError) as found:
        call(*given, **options)
    return type(found.value), found.value.code


def test_a_message_arrives_as_it_was_published(space: Namespace) -> None:
    receipt = space.publish("t", b"body", key="k", tag="red", headers={"n": 7, "s": "x"})
    assert (receipt.offset, receipt.done, receipt.error) == (0, True, None)
    assert space.publish("t", b"next").offset == 1
    message = take(space.consumer("t", "c"))
    assert (message.body, message.key, message.tag) == (b"body", b"k", "red")
    assert message.headers == {"n": 7, "s": "x"}
    assert (message.offset, message.attempts, message.part) == (0, 1, None)
    assert (message.topic, message.channel) == (space.topic("t"), "c")
    assert message.id == f"{0:016x}"
    message.finish(sync=True)


def test_many_messages_keep_their_order_and_attributes(space: Namespace) -> None:
    receipt = space.producer().publish_many(
        space.topic("t"), [b"a", b"b", b"c"], keys=["1", None, "3"], headers=[{"n": 1}, None, None]
    )
    assert (receipt.offset, receipt.count) == (0, 3)
    found = space.messages("t")
    assert [(one.body, one.key, one.headers) for one in found] == [
        (b"a", b"1", {"n": 1}),
        (b"b", None, {}),
        (b"c", b"3", {}),
    ]
    assert bodies(space.consumer("t", "c"), 3) == [b"a", b"b", b"c"]


def test_lingering_messages_arrive(space: Namespace) -> None:
    producer = space.producer(linger_ms=60_000)
    receipts = [producer.publish(space.topic("t"), b"%d" % number) for number in range(5)]
    producer.flush()
    assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4]
    assert bodies(space.consumer("t", "c"), 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_wrong_names_are_refused(space: Namespace) -> None:
    bad = (zsq.UsageError, "E_BAD_NAME")
    assert code_of(space.producer().publish, "a b", b"") == bad
    assert code_of(space.broker.consumer, "t", "c/d") == bad
    assert code_of(space.broker.reader, "") == bad
    assert code_of(space.admin().create_topic, "x" * 65) == bad
    assert code_of(space.admin().create_channel, space.topic("t"), "a b") == bad


def test_wrong_arguments_are_refused(space: Namespace) -> None:
    bad = (zsq.UsageError, "E_BAD_ARGUMENT")
    publish = space.producer().publish
    assert code_of(publish, space.topic("t"), b"", delay=-1) == bad
    assert code_of(publish, space.topic("t"), b"", delay=timedelta(days=367)) == bad
    assert code_of(publish, space.topic("t"), b"", headers={"zsq-x": object()})[0] is zsq.UsageError
    assert code_of(space.broker.consumer, "t", "c", message_timeout=0.1) == bad
    admin = space.admin()
    assert code_of(admin.create_channel, space.topic("t"), "c", max_attempts=-1) == bad
    assert code_of(admin.create_channel, space.topic("t"), "c", backoff_s=5, backoff_max_s=1) == bad
    assert code_of(admin.create_topic, space.topic("t"), keep_bytes=-7) == bad


def test_a_message_over_the_limit_is_refused(space: Namespace) -> None:
    too_big = b"x" * (MESSAGE_BYTES_MAX + 1)
    expected = (zsq.UsageError, "E_TOO_BIG")
    assert code_of(space.publish, "t", too_big) == expected
    assert code_of(space.producer().publish_many, space.topic("t"), [b"", too_big]) == expected
    space.publish("t", too_big[1:])
    assert [len(one.body) for one in space.messages("t")] == [MESSAGE_BYTES_MAX]


def test_closed_clients_are_refused(space: Namespace) -> None:
    closing = (zsq.Refused, "E_CLOSING")
    producer, admin, reader = space.producer(), space.admin(), space.reader("t")
    for client in (producer, admin, reader):
        client.close()
    assert code_of(producer.publish, space.topic("t"), b"") == closing
    assert code_of(admin.topics) == closing
    assert code_of(reader.bounds) == closing
    space.publish("t", b"a")
    consumer = space.consumer("t", "c")
    message = take(consumer)
    consumer.close()
    assert consumer.receive(1) is None
    assert code_of(consumer.subscribe) == closing
    assert code_of(message.finish) == closing


def test_what_does_not_exist_is_not_found(space: Namespace) -> None:
    missing = (zsq.NotFound, "E_NOT_FOUND")
    admin, topic = space.admin(), space.topic("t")
    assert code_of(space.reader("t").bounds) == missing
    assert code_of(admin.pause, topic) == missing
    assert code_of(admin.delete_topic, topic) == missing
    admin.create_topic(topic)
    for call in (admin.pause, admin.unpause, admin.empty, admin.delete_channel):
        assert code_of(call, topic, "c") == missing
    assert code_of(admin.configure_channel, topic, "c", max_attempts=3) == missing
    assert code_of(admin.seek, topic, "c", 0) == missing
    assert code_of(space.reader("t").message, 0) == missing


def test_topics_and_channels_are_created_once(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    assert admin.create_topic(topic) == {"existed": False}
    assert admin.create_topic(topic) == {"existed": True}
    assert admin.create_channel(topic, "c", ordered=True) == {"existed": False}
    assert admin.create_channel(topic, "c") == {"existed": True}
    assert admin.topics()[topic] == ["c"]
    bad = (zsq.UsageError, "E_BAD_ARGUMENT")
    assert code_of(admin.create_channel, topic, "c", ordered=False) == bad
    assert code_of(space.consumer("t", "c", tags="red").subscribe) == bad
    assert code_of(admin.configure_channel, topic, "c", ordered=False) == bad
    settings = admin.configure_channel(topic, "c", max_attempts=3)["settings"]
    assert (settings["max_attempts"], settings["ordered"]) == (3, True)


def test_a_topic_with_unfinished_messages_is_not_deleted(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    space.publish("t", b"a")
    not_empty = (zsq.Refused, "E_NOT_EMPTY")
    assert code_of(admin.delete_topic, topic) == not_empty
    consumer = space.consumer("t", "c")
    message = take(consumer)
    assert code_of(admin.delete_channel, topic, "c") == not_empty
    message.finish(sync=True)
    consumer.close()
    admin.delete_channel(topic, "c")
    admin.delete_topic(topic)
    assert topic not in admin.topics()
    with pytest.raises(zsq.NotFound, match="was deleted while this client used it"):
        space.publish("t", b"b", delay=60)
    admin.create_topic(topic)
    space.publish("t", b"b", delay=60)
    assert code_of(admin.delete_topic, topic) == not_empty
    admin.delete_topic(topic, force=True)
    assert topic not in admin.topics()


def test_the_first_channel_gets_all_waiting_messages_and_a_later_one_new_ones(
    space: Namespace,
) -> None:
    space.publish("t", b"a")
    first, later = space.consumer("t", "first"), space.consumer("t", "later")
    assert bodies(first, 1) == [b"a"]
    later.subscribe()
    space.publish("t", b"b")
    assert (bodies(first, 1), bodies(later, 1)) == ([b"b"], [b"b"])
    again = space.consumer("t", "again", start="earliest")
    assert bodies(again, 2) == [b"a", b"b"]


def test_a_delayed_message_comes_when_it_is_due_and_not_earlier(space: Namespace) -> None:
    consumer = space.consumer("t", "c")
    consumer.subscribe()
    began, published = space.broker.now_ns(), time.time_ns()  # the client's clock never moves
    receipt = space.publish("t", b"late", delay=3600, key="k", headers={"n": 1})
    assert (receipt.offset, len(receipt.delayed_keys())) == (-1, 1)
    space.publish("t", b"soon", delay=timedelta(minutes=10))
    assert nothing(consumer)
    space.advance(500)
    assert nothing(consumer)
    space.advance(timedelta(seconds=100))
    assert bodies(consumer, 1) == [b"soon"]
    assert nothing(consumer)
    space.advance(3000)
    message = take(consumer)
    assert (message.body, message.key, message.headers) == (b"late", b"k", {"n": 1})
    assert (message.offset, message.attempts) == (1, 1)
    assert space.broker.now_ns() - began >= 3600 * S
    assert abs(message.timestamp_ns - published) < 600 * S, "it tells when it was published"
    message.finish()


def test_delayed_messages_are_listed_and_cancelled(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    keys = (
        space.producer()
        .publish_many(topic, [b"a" * 300, b"b", b"c"], tags=["x", None, None], delay=7200)
        .delayed_keys()
    )
    other = space.publish("t", b"d", delay=3600).delayed_key
    assert other is not None
    rows = admin.delayed_list(topic)
    assert [row["delayed_key"] for row in rows] == [other, *keys]
    assert (rows[1]["size"], len(rows[1]["body"]), rows[1]["tag"]) == (300, 200, b"x")
    assert [row["delayed_key"] for row in admin.delayed_list(topic, after=keys[0], count=1)] == [
        keys[1]
    ]
    count = admin.delayed_count(topic)
    assert (count["messages"], count["next_due_ns"]) == (4, int(other[:16], 16))
    assert admin.delayed_cancel(topic, [keys[1], keys[1], other]) == [True, False, True]
    assert code_of(admin.delayed_cancel, topic, ["x"]) == (zsq.UsageError, "E_BAD_ARGUMENT")
    assert admin.delayed_cancel_all(topic) == 2
    assert admin.delayed_count(topic)["messages"] == 0


def test_a_requeued_message_comes_again_after_its_delay(space: Namespace) -> None:
    space.publish("t", b"a")
    consumer = space.consumer("t", "c")
    take(consumer).requeue()
    message = take(consumer)
    assert message.attempts == 2
    message.requeue(1800, error="not yet")
    space.advance(1700)
    assert nothing(consumer)
    space.advance(100)
    message = take(consumer)
    assert (message.body, message.attempts) == (b"a", 3)
    assert code_of(message.requeue, 1e9) == (zsq.UsageError, "E_BAD_ARGUMENT")
    message.finish()
    space.publish("t", b"b")
    take(consumer).requeue(1800)
    space.advance(1800)
    assert bodies(consumer, 1) == [b"b"]
    assert nothing(consumer)


def test_backoff_doubles(space: Namespace) -> None:
    space.publish("t", b"a")
    consumer = space.consumer("t", "c", backoff_s=600, backoff_max_s=1000)
    for attempt, delay_s in ((1, 600), (2, 1000)):
        message = take(consumer)
        assert message.attempts == attempt
        message.requeue(backoff=True)
        space.advance(delay_s - 100)
        assert nothing(consumer)
        space.advance(100)
    assert take(consumer).attempts == 3


def test_a_message_is_answered_once(space: Namespace) -> None:
    space.publish("t", b"a")
    message = take(space.consumer("t", "c"))
    message.finish(sync=True)
    assert message.answered
    bad = (zsq.UsageError, "E_BAD_ARGUMENT")
    for call in (message.finish, message.requeue, message.reject):
        assert code_of(call) == bad


def test_a_message_without_attempts_left_becomes_a_dead_letter(space: Namespace) -> None:
    space.publish("t", b"a", key="k", headers={"n": 1})
    consumer = space.consumer("t", "c", max_attempts=2)
    take(consumer).requeue()
    take(consumer).requeue(error=ValueError("broken"))
    [dead] = space.assert_published("t.c.dead", body=b"a", key="k", timeout=WAIT_S)
    uuid, time_ns = dead.headers.pop("zsq-dead-uuid"), dead.headers.pop("zsq-dead-time")
    assert uuid == space.reader("t").uuid()
    assert dead.headers.pop("zsq-dead-consumer")
    assert abs(int(str(time_ns)) - space.broker.now_ns()) < 600 * S
    assert dead.headers == {
        "n": 1,
        "zsq-dead-topic": space.topic("t"),
        "zsq-dead-channel": "c",
        "zsq-dead-attempts": 2,
        "zsq-dead-reason": "max_attempts",
        "zsq-dead-error": "ValueError('broken')",
        "zsq-dead-offset": 0,
    }
    assert nothing(consumer)


def test_a_rejected_message_becomes_a_dead_letter_at_once(space: Namespace) -> None:
    space.publish("t", b"a")
    take(space.consumer("t", "c", dead_letter_topic=space.topic("graves"))).reject("no")
    [dead] = space.assert_published("graves", timeout=WAIT_S)
    assert (dead.headers["zsq-dead-reason"], dead.headers["zsq-dead-error"]) == ("rejected", "no")
    assert dead.headers["zsq-dead-attempts"] == 1


def test_a_lease_ends_without_an_answer(space: Namespace) -> None:
    """The real broker's leases end in real time, so this waits a second for it."""
    space.publish("t", b"a")
    slow = space.consumer("t", "c", message_timeout=1, ready=1)
    other = space.consumer("t", "c", message_timeout=60, ready=1)
    message = take(slow)
    other.subscribe()
    space.advance(2)
    again = take(other)
    assert (again.body, again.attempts) == (b"a", 2)
    assert code_of(message.finish, sync=True) == (zsq.LeaseLost, "E_LEASE")
    again.finish(sync=True)


def test_a_late_plain_finish_is_counted(space: Namespace) -> None:
    space.publish("t", b"a")
    slow = space.consumer("t", "c", message_timeout=1, ready=1)
    other = space.consumer("t", "c", message_timeout=60, ready=1)
    message = take(slow)
    other.subscribe()
    space.advance(2)
    take(other).finish(sync=True)
    message.finish()
    assert code_of(slow.flush) == (zsq.LeaseLost, "E_LEASE")
    assert slow.stale_count == 1


def test_close_returns_messages_that_are_not_answered(space: Namespace) -> None:
    space.producer().publish_many(space.topic("t"), [b"a", b"b"])
    consumer = space.consumer("t", "c")
    take(consumer).finish()
    take(consumer)
    consumer.close()
    message = take(space.consumer("t", "c"))
    assert (message.body, message.attempts) == (b"b", 2)


def test_batches_are_answered_as_a_whole(space: Namespace) -> None:
    space.producer().publish_many(space.topic("t"), [b"a", b"b", b"c"])
    consumer = space.consumer("t", "c")
    batch = consumer.receive_batch(WAIT_S)
    assert batch is not None
    assert (batch.bodies, batch.offsets, batch.attempts) == ([b"a", b"b", b"c"], [0, 1, 2], [1] * 3)
    batch.messages()[1].finish()
    batch.requeue()
    batch = consumer.receive_batch(WAIT_S)
    assert batch is not None
    assert (batch.bodies, batch.attempts) == ([b"a", b"c"], [2, 2])
    batch.touch()
    batch.finish(sync=True)
    assert nothing(consumer)


def test_a_channel_takes_only_its_tags(space: Namespace) -> None:
    consumer = space.consumer("t", "c", tags="red||blue")
    consumer.subscribe()
    space.producer().publish_many(
        space.topic("t"), [b"1", b"2", b"3", b"4"], tags=["red", "green", None, "blue"]
    )
    assert bodies(consumer, 2) == [b"1", b"4"]
    assert nothing(consumer)


def test_an_ordered_channel_delivers_one_message_of_a_key_at_a_time(space: Namespace) -> None:
    space.producer().publish_many(space.topic("t"), [b"a1", b"a2", b"b1"], keys=["a", "a", "b"])
    consumer = space.consumer("t", "c", ordered=True)
    first, second = take(consumer), take(consumer)
    assert {first.body, second.body} == {b"a1", b"b1"}
    assert nothing(consumer)
    (first if first.body == b"a1" else second).finish()
    assert take(consumer).body == b"a2"


def test_old_messages_are_skipped(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    admin.create_channel(topic, "c", max_age_s=600)
    space.publish("t", b"old")
    space.advance(1000)
    space.publish("t", b"new")
    assert bodies(space.consumer("t", "c"), 1) == [b"new"]


def test_a_closed_topic_refuses_publishers_and_then_consumers(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    space.publish("t", b"a")
    assert admin.close_topic(topic) == {"closed": "publishers"}
    assert code_of(space.producer().publish, topic, b"b") == (zsq.Refused, "E_CLOSED")
    consumer = space.consumer("t", "c")
    assert bodies(consumer, 1) == [b"a"]
    assert admin.close_topic(topic, to="consumers") == {"closed": "consumers"}
    assert code_of(space.consumer("t", "c").subscribe) == (zsq.Refused, "E_CLOSED")
    assert code_of(consumer.receive, WAIT_S) == (zsq.Refused, "E_CLOSED")
    assert admin.open_topic(topic) == {"closed": ""}
    space.publish("t", b"c")
    assert bodies(consumer, 1) == [b"c"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_pause_delivers_nothing(space: Namespace, whole: bool) -> None:
    admin, paused = space.admin(), (space.topic("t"), None if whole else "c")
    consumer = space.consumer("t", "c")
    consumer.subscribe()
    admin.pause(*paused)
    space.publish("t", b"a")
    assert nothing(consumer)
    admin.unpause(*paused)
    assert bodies(consumer, 1) == [b"a"]


def test_seek_and_empty_move_a_channel(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    consumer = space.consumer("t", "c")
    consumer.subscribe()
    space.producer().publish_many(topic, [b"a", b"b", b"c"])
    assert bodies(consumer, 3) == [b"a", b"b", b"c"]
    consumer.flush()
    assert admin.seek(topic, "c", 1) == {"offset": 1}
    assert bodies(consumer, 2) == [b"b", b"c"]
    consumer.flush()
    assert admin.seek(topic, "c", "earliest") == {"offset": 0}
    assert take(consumer).body == b"a"
    admin.empty(topic, "c")
    assert code_of(admin.seek, topic, "c", 9) == (zsq.UsageError, "E_BAD_ARGUMENT")
    assert admin.seek(topic, "c", 9, clamp=True) == {"offset": 3}
    space.publish("t", b"d")
    fresh = space.consumer("t", "c")
    consumer.close()
    assert bodies(fresh, 1) == [b"d"]


def test_a_seek_forgets_requeued_messages(space: Namespace) -> None:
    consumer = space.consumer("t", "c")
    space.publish("t", b"a")
    take(consumer).requeue(1800)
    space.advance(100)
    space.admin().seek(space.topic("t"), "c", "latest")
    space.publish("t", b"b")
    take(consumer).requeue(1000)
    space.advance(1000)
    assert bodies(consumer, 1) == [b"b"]
    space.advance(1000)
    assert nothing(consumer)


def test_messages_wait_for_a_channel_again_after_the_last_one_was_deleted(space: Namespace) -> None:
    consumer = space.consumer("t", "c")
    space.publish("t", b"a")
    assert bodies(consumer, 1) == [b"a"]
    consumer.close()
    space.admin().delete_channel(space.topic("t"), "c")
    space.publish("t", b"b")
    assert bodies(space.consumer("t", "other"), 1) == [b"b"]


def test_a_reader_reads_by_offset(space: Namespace) -> None:
    space.producer().publish_many(space.topic("t"), [b"a", b"b"])
    space.advance(100)
    after = space.broker.now_ns()
    space.publish("t", b"c", tag="x")
    reader = space.reader("t")
    assert reader.bounds() == (0, 3)
    assert reader.newest(1) == 2
    assert reader.offset_at(after) == 2
    assert reader.offset_at(after + 3600 * S) == 3
    assert (reader.message(2).body, reader.message(2).tag) == (b"c", "x")
    found = reader.read(1)
    assert [block.first_offset for block in found.blocks] == [0, 2]
    assert (found.start, found.head, found.next_offset) == (0, 3, 3)
    assert reader.read(3).blocks == []
    assert reader.archive() is None


def test_run_handles_messages_and_repeats_failed_ones(space: Namespace) -> None:
    space.producer().publish_many(space.topic("t"), [b"good", b"bad"])
    consumer = space.consumer("t", "c")
    seen: list[tuple[bytes, int]] = []

    def handle(message: zsq.Message) -> None:
        seen.append((message.body, message.attempts))
        if message.body == b"bad" and message.attempts == 1:
            raise ValueError("once")
        if len(seen) == 3:
            consumer.close()

    consumer.run(handle, requeue_delay=0, on_error=lambda *_: None)
    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]


def test_a_waiting_consumer_gets_what_another_thread_publishes(space: Namespace) -> None:
    consumer = space.consumer("t", "c")
    consumer.subscribe()
    publisher = threading.Timer(0.1, lambda: space.publish("t", b"a"))
    publisher.start()
    assert bodies(consumer, 1) == [b"a"]
    publisher.join()


def test_asyncio_clients_work(space: Namespace) -> None:
    async def main() -> tuple[bytes, int, list[bytes]]:
        url, topic = space.url, space.topic("t")
        async with (
            zsq.aio.Producer(url) as producer,
            zsq.aio.Consumer(topic, "c", url=url) as consumer,
            zsq.aio.Admin(url) as admin,
            zsq.aio.Reader(topic, url=url) as reader,
        ):
            await producer.publish(topic, b"a")
            message = await consumer.receive(WAIT_S)
            assert message is not None
            await message.requeue()
            message = await consumer.receive(WAIT_S)
            assert message is not None
            await message.finish(sync=True)
            assert topic in await admin.topics()
            blocks = (await reader.read(0)).blocks
            return message.body, message.attempts, [bytes(b.body.value(0) or b"") for b in blocks]

    assert asyncio.run(main()) == (b"a", 2, [b"a"])


def test_a_deleted_topic_is_another_topic_when_it_is_created_again(space: Namespace) -> None:
    admin, topic = space.admin(), space.topic("t")
    space.publish("t", b"a")
    before = space.reader("t").uuid()
    admin.delete_topic(topic, force=True)
    producer = space.producer()
    producer.publish(topic, b"b")
    assert space.reader("t").uuid() != before
    assert bodies(space.consumer("t", "c"), 1) == [b"b"]
