"""Tests of convenient features of clients: the order of arguments, one key for all messages,
timedeltas, ids, JSON, and settings that are not valid.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import zsq
from zsq import aio
from zsq.transport.client.core.message import parse_id, when_again
from zsq.transport.client.core.packing import pack_many
from zsq.transport.client.core.publish_arguments import as_body, as_delay_ms
from zsq.transport.errors import UsageError
from zsq.transport.names import check_name
from zsq.transport.wire import protocol as p

Broker = Any


@pytest.mark.parametrize("made", [zsq.Consumer, zsq.aio.Consumer], ids=["blocking", "asyncio"])
def test_a_consumer_takes_topic_and_channel_and_the_url_by_name(made: Any) -> None:
    consumer = made(topic="orders", channel="billing", url="tcp://h:1")
    assert (consumer.topic, consumer.channel) == ("orders", "billing")
    for wrong in (("orders", "billing", "tcp://h:1"), ("tcp://h:1", "orders", "billing")):
        with pytest.raises(TypeError, match="positional"):
            made(*wrong)
    with pytest.raises(UsageError, match="tcp://h:1"):
        made("tcp://h:1", "orders")


@pytest.mark.parametrize("made", [zsq.Reader, zsq.aio.Reader], ids=["blocking", "asyncio"])
def test_a_reader_takes_the_url_by_name(made: Any) -> None:
    assert made("orders", url="tcp://h:1").topic == "orders"
    with pytest.raises(TypeError, match="positional"):
        made("tcp://h:1", "orders")


def test_one_key_tag_and_headers_apply_to_all_messages(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer, zsq.Consumer("t", "c", url=broker.url) as consumer:
        producer.publish_many("t", [b"a", b"b"], key="k", tag="urgent", headers={"of": "all"})
        for _ in range(2):
            message = consumer.receive(5)
            assert message is not None
            assert (message.key, message.tag, message.headers) == (b"k", "urgent", {"of": "all"})
        with pytest.raises(UsageError, match="give one of them"):
            producer.publish_many("t", [b"a"], key="k", keys=["k"])
        with pytest.raises(UsageError, match="use key="):
            producer.publish_many("t", [b"a", b"b"], keys="kk")
        with pytest.raises(UsageError, match="1 tags for 2 messages"):
            producer.publish_many("t", [b"a", b"b"], tags=["x"])


def test_conveniences_work_with_asyncio(broker: Broker) -> None:
    async def main() -> None:
        async with (
            zsq.aio.Producer(broker.url) as producer,
            zsq.aio.Consumer("t", "c", url=broker.url) as consumer,
        ):
            await producer.publish_many("t", [b"[1]"], key="k", tag="urgent")
            message = await consumer.receive(5)
            assert message is not None
            assert (message.key, message.tag, message.json()) == (b"k", "urgent", [1])
            await message.requeue(timedelta(seconds=90))

    asyncio.run(main())
    broker.wait_for(lambda: broker.requeued == [(0, 90_000)])


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    assert as_delay_ms(timedelta(minutes=2)) == as_delay_ms(120) == as_delay_ms(120.0) == 120_000
    assert as_delay_ms(timedelta(microseconds=1)) == 1, "never early"
    assert as_delay_ms(None) == as_delay_ms(timedelta()) == 0
    assert when_again(timedelta(seconds=1.5), False) == 1_500
    wrong: Any
    for wrong in (timedelta(days=367), timedelta(seconds=-1), float("nan"), "5", True):
        with pytest.raises(UsageError, match="delay"):
            as_delay_ms(wrong)
        with pytest.raises(UsageError, match="delay"):
            when_again(wrong, False)


def test_a_message_has_an_id_and_reads_json(broker: Broker) -> None:
    broker.on_lookup = lambda _, message, __: p.Done(
        message.request,
        {
            "topic": f"ipc://{broker.run}/1",
            "channel": f"ipc://{broker.run}/3",
            "uuid": "0",
            "node": 5,
        },
    )
    broker.put(b'{"a": [1, 2]}', b"no json")
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        first, second = consumer.receive(5), consumer.receive(5)
        assert first is not None
        assert second is not None
        assert first.json() == {"a": [1, 2]}
        assert (first.id, parse_id(second.id)) == ("0140000000000000", (5, 1))
        with pytest.raises(ValueError, match="Expecting value"):
            second.json()


def test_settings_that_do_not_hold_are_warned_of_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    has = {"max_attempts": 5, "backoff_s": 1.0, "tags": "a||b", "ordered": False}
    broker.on_lookup = lambda _, message, __: p.Done(
        message.request,
        {
            "topic": f"ipc://{broker.run}/1",
            "channel": f"ipc://{broker.run}/3",
            "uuid": "0",
            "settings": has,
        },
    )
    with zsq.Consumer(
        "t", "c", url=broker.url, max_attempts=7, backoff_s=1, max_age_s=None, tags="b||a"
    ) as consumer:
        consumer.subscribe()
        broker.die()
        broker.start()
        broker.put(b"a")
        assert consumer.receive(20) is not None, "subscribed again"
    told = [record for record in caplog.records if "already existed" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "channel t/c already existed and has max_attempts 5, not 7;" in told[0].getMessage()
    caplog.clear()
    with zsq.Consumer("t", "c", url=broker.url, max_attempts=5):
        pass
    assert "already existed" not in caplog.text


@pytest.mark.parametrize("bodies", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_one_body_where_many_are_expected_is_refused(bodies: Any) -> None:
    with pytest.raises(
        UsageError,
        match=f"needs a list of messages, not {type(bodies).__name__}; for one message use publish",
    ):
        pack_many(bodies, None, None, None)


def test_a_body_that_is_not_bytes_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UsageError,
        match=r"a body must be bytes, not dict; "
        r"encode it first, such as json.dumps\(...\).encode\(\)",
    ):
        as_body({"a": 1})


def test_a_name_that_is_not_text_is_refused_with_its_type() -> None:
    with pytest.raises(UsageError, match="a topic name must be text"):
        check_name(b"orders")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("max_atempts", "did you mean max_attempts?"), ("colour", "use alarm_age_s, ")],
)
def test_a_misspelled_setting_of_a_channel_is_refused_before_a_broker_is_asked(
    name: str, hint: str
) -> None:
    wrong: Any = {name: 3}
    with zsq.Admin("ipc:///nowhere") as admin:
        for make in (
            lambda: zsq.Consumer("t", "c", url="ipc:///nowhere", **wrong),
            lambda: aio.Consumer("t", "c", url="ipc:///nowhere", **wrong),
            lambda: admin.create_channel("t", "c", **wrong),
            lambda: admin.configure_channel("t", "c", **wrong),
        ):
            with pytest.raises(UsageError, match=f"'{name}' is not a setting of a channel; {hint}"):
                make()
