"""Tests of clients with several addresses, against fake brokers: a standby, a broker that is gone,
one that is frozen, and one that takes over.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import free_port
from support.fake_standby import STANDBY_TEXT, FakeStandby

import zsq
import zsq.aio
from zsq.transport.client.blocking.range_reader import RangeReader
from zsq.transport.client.blocking.stage_writer import StageCommitter
from zsq.transport.errors import (
    E_DATA_LOSS,
    E_FENCED,
    E_STANDBY,
    E_TIMEOUT,
    E_UNREACHABLE,
    BrokerUnreachable,
    DataLoss,
    Refused,
    UsageError,
)
from zsq.transport.wire import addresses
from zsq.transport.wire import protocol as p

FakeBroker = Any


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_reached", {})


@pytest.fixture
def standby() -> Iterator[FakeStandby]:
    with FakeStandby() as one:
        yield one


@pytest.fixture
def other(broker: FakeBroker, tmp_path: Path) -> Iterator[FakeBroker]:
    """A second broker, which is not started."""
    one = type(broker)(tmp_path)
    yield one
    one.die()


def take_over(other: FakeBroker, broker: FakeBroker) -> None:
    """Give the other broker what the broker has stored."""
    other.expected, other.log = dict(broker.expected), list(broker.log)
    other.places, other.head = dict(broker.places), broker.head


def nowhere() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def in_order(first: bool, there: str, broker: FakeBroker) -> list[str]:
    return [there, broker.url] if first else [broker.url, there]


@pytest.mark.parametrize("first", [True, False])
def test_blocking_clients_find_the_primary_beside_a_standby(
    first: bool, broker: FakeBroker, standby: FakeStandby
) -> None:
    url = in_order(first, standby.url, broker)
    with zsq.Producer(url, timeout=20) as producer:
        producer.publish("t", b"one")
    with zsq.Consumer("t", "c", url=",".join(url), timeout=20) as consumer:
        message = consumer.receive(20)
        assert message is not None
        message.finish(sync=True)
    with zsq.Admin(url, timeout=20) as admin:
        assert admin.ping() == "OK"
    with zsq.Reader("t", url=tuple(url), timeout=20) as reader:
        assert reader.bounds() == (0, 1)
    with RangeReader("t", 0, 1, url=url, timeout=20) as blocks:
        assert sum(block.count for block in blocks) == 1
    assert (standby.asked > 0) == first, "only the first client has asked, if at all"
    assert standby.asked <= 1


@pytest.mark.parametrize("first", [True, False])
def test_asyncio_clients_find_the_primary_beside_a_standby(
    first: bool, broker: FakeBroker, standby: FakeStandby
) -> None:
    url = in_order(first, standby.url, broker)

    async def main() -> None:
        async with zsq.aio.Producer(url, timeout=20) as producer:
            await producer.publish("t", b"one")
        async with zsq.aio.Consumer("t", "c", url=url, timeout=20) as consumer:
            message = await consumer.receive(20)
            assert message is not None
            await message.finish(sync=True)
        async with zsq.aio.Admin(url, timeout=20) as admin:
            assert await admin.ping() == "OK"
        async with zsq.aio.Reader("t", url=url, timeout=20) as reader:
            assert await reader.bounds() == (0, 1)

    asyncio.run(main())


def test_an_order_that_a_standby_refused_is_sent_to_the_primary_once(
    broker: FakeBroker, tmp_path: Path
) -> None:
    """An order must not be sent twice, but the standby has not carried it out."""
    (tmp_path / "run").mkdir()
    with FakeStandby(url=f"ipc://{tmp_path}/run/supervisor") as standby:
        with zsq.Admin([f"ipc://{tmp_path}/run", broker.url], timeout=20) as admin:
            admin.create_channel("t", "c")
        assert standby.asked == 1
    assert broker.count(p.Manage) == 1


def test_an_order_that_was_not_sent_goes_to_the_next_address(
    broker: FakeBroker, tmp_path: Path
) -> None:
    with zsq.Admin([f"ipc://{tmp_path}/none", broker.url], timeout=20) as admin:
        admin.create_channel("t", "c")
    assert broker.count(p.Manage) == 1


def test_a_frozen_machine_is_left(broker: FakeBroker) -> None:
    """Its kernel accepts the connection, and no program answers."""
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        url = [f"tcp://127.0.0.1:{frozen.getsockname()[1]}", broker.url]
        with zsq.Producer(url, timeout=30) as producer:
            producer.publish("t", b"one")
        assert broker.bodies() == [b"one"]


@pytest.mark.parametrize("code", [E_STANDBY, E_FENCED])
def test_a_block_that_is_refused_by_a_superseded_broker_is_stored_by_the_next_one(
    code: str, broker: FakeBroker, other: FakeBroker
) -> None:
    other.start()
    with zsq.Producer([broker.url, other.url], timeout=20) as producer:
        producer.publish("t", b"one")
        take_over(other, broker)
        broker.refuse.extend([code])
        assert producer.publish("t", b"two").offset == 1
        assert producer.publish("t", b"three").offset == 2
    assert broker.bodies() == [b"one"]
    assert other.bodies() == [b"one", b"two", b"three"]
    hellos = [found for found in other.heard if isinstance(found, p.Hello)]
    assert len({found.producer_id for found in hellos}) == 1
    assert hellos[0].producer_id in broker.expected


def test_an_unanswered_block_is_stored_once_by_the_broker_that_takes_over(
    broker: FakeBroker, other: FakeBroker
) -> None:
    with zsq.Producer([broker.url, other.url], timeout=20) as producer:
        producer.publish("t", b"one")
        broker.hold_stored = True
        receipt = producer.publish_many("t", [b"two"], wait=False)
        broker.wait_for(lambda: broker.head == 2)
        broker.die()
        take_over(other, broker)
        other.start()
        assert receipt.wait() == 1
    assert other.bodies() == [b"one", b"two"]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_broker_that_confirms_nothing_is_left_for_the_one_that_takes_over(
    is_frozen: bool, broker: FakeBroker, other: FakeBroker
) -> None:
    """It closes no connection, and may go on answering heartbeats. The default heartbeats of the
    client would notice this after a minute, or never.
    """
    with zsq.Producer([broker.url, other.url], timeout=20) as producer:
        producer.publish("t", b"one")
        broker.hold_stored = True
        receipt = producer.publish_many("t", [b"two"], wait=False)
        broker.wait_for(lambda: broker.head == 2)
        broker.silent = is_frozen
        take_over(other, broker)
        other.start()
        began_ns = time.monotonic_ns()
        assert receipt.wait() == 1
        assert time.monotonic_ns() - began_ns < 10_000_000_000, "the scout found it"
    assert other.bodies() == [b"one", b"two"]


def test_a_broker_that_confirms_nothing_is_kept_while_the_other_one_is_a_standby(
    broker: FakeBroker, standby: FakeStandby
) -> None:
    with zsq.Producer([broker.url, standby.url], timeout=20) as producer:
        producer.publish("t", b"one")
        broker.hold_stored = True
        receipt = producer.publish_many("t", [b"two"], wait=False)
        standby.wait_asked(2)
        assert broker.count(p.Hello) == 1, "the link stayed"
        broker.die()
        broker.hold_stored = False
        broker.start()
        assert receipt.wait() == 1


def test_an_idle_client_asks_no_other_address(broker: FakeBroker, standby: FakeStandby) -> None:
    url = [broker.url, standby.url]
    with zsq.Producer(url, timeout=20) as producer, zsq.Consumer("t", "c", url=url) as consumer:
        producer.publish("t", b"one")
        message = consumer.receive(20)
        assert message is not None
        message.finish(sync=True)
        assert consumer.receive(2.5) is None
    assert standby.asked == 0


def test_a_consumer_subscribes_at_the_broker_that_takes_over(
    broker: FakeBroker, other: FakeBroker
) -> None:
    broker.put(b"one")
    with zsq.Consumer("t", "c", url=[broker.url, other.url], timeout=20) as consumer:
        held = consumer.receive(20)
        assert held is not None
        broker.die()
        other.put(b"two")
        other.start()
        message = consumer.receive(20)
        assert message is not None
        assert message.body == b"two"
        message.finish(sync=True)
        held.finish()
        with pytest.raises(zsq.LeaseLost):
            consumer.flush()
        assert consumer.stale_count == 1, "its lease was given by another broker"


def test_a_producer_says_that_the_next_broker_has_another_topic(
    broker: FakeBroker, other: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    other.uuid = "1"
    other.start()
    with (
        caplog.at_level(logging.WARNING, "zsq"),
        zsq.Producer([broker.url, other.url], timeout=20) as producer,
    ):
        producer.publish("t", b"one")
        broker.die()
        producer.publish("t", b"two")
    assert other.bodies() == [b"two"]
    assert f"topic t at {other.url} is another topic than at {broker.url}" in caplog.text


def test_a_reader_does_not_mix_two_topics(broker: FakeBroker, other: FakeBroker) -> None:
    broker.put(b"one")
    other.put(b"another")
    other.uuid = "1"
    other.start()
    with zsq.Reader("t", url=[broker.url, other.url], timeout=20) as reader:
        assert reader.bounds() == (0, 1)
        broker.die()
        with pytest.raises(DataLoss, match=f"at {other.url} is another topic") as caught:
            reader.bounds()
        assert caught.value.code == E_DATA_LOSS
        assert reader.bounds() == (0, 1), "the caller knows it now"


def test_a_reader_goes_on_at_a_broker_with_the_same_topic(
    broker: FakeBroker, other: FakeBroker
) -> None:
    broker.put(b"one")
    other.put(b"one", b"two")
    other.start()
    with zsq.Reader("t", url=[broker.url, other.url], timeout=20) as reader:
        assert reader.read(0).blocks[0].count == 1
        broker.die()
        assert reader.read(1).blocks[-1].next_offset == 2


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin", "reader", "committer"])
def test_a_standby_alone_is_named_at_the_end_of_the_time_out(
    kind: str, standby: FakeStandby
) -> None:
    with pytest.raises(Refused, match=STANDBY_TEXT) as caught:
        use(kind, standby.url)
    assert caught.value.code == E_STANDBY
    assert 1 <= standby.asked <= 15, "it is asked again only after pauses"


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin", "reader", "committer"])
def test_a_superseded_broker_alone_is_named(kind: str) -> None:
    with FakeStandby(E_FENCED, "superseded") as there, pytest.raises(Refused) as caught:
        use(kind, there.url)
    assert caught.value.code == E_FENCED
    assert there.asked == 1, "as for other refusals, the call ends at once"


def use(kind: str, url: Any, timeout: float = 1.0) -> None:
    if kind == "producer":
        with zsq.Producer(url, timeout=timeout) as producer:
            producer.publish("t", b"one")
    elif kind == "consumer":
        consumer = zsq.Consumer("t", "c", url=url, timeout=timeout)
        try:
            consumer.subscribe()
        finally:
            consumer.close(1)
    elif kind == "admin":
        with zsq.Admin(url, timeout=timeout) as admin:
            admin.ping()
    elif kind == "reader":
        with zsq.Reader("t", url=url, timeout=timeout) as reader:
            reader.bounds()
    else:
        with StageCommitter("t", url=url, timeout=timeout) as committer:
            committer.commit("app", 1, [])


def test_two_standbys_are_both_named(standby: FakeStandby) -> None:
    with FakeStandby(E_FENCED, "superseded") as there, pytest.raises(Refused) as caught:
        use("producer", [there.url, standby.url])
    assert caught.value.code == E_STANDBY
    assert f"{there.url}: E_FENCED superseded" in caught.value.text
    assert f"{standby.url}: E_STANDBY {STANDBY_TEXT}" in caught.value.text
    assert standby.asked <= 15


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin", "reader", "committer"])
def test_the_error_names_all_addresses_and_why_each_failed(kind: str, standby: FakeStandby) -> None:
    gone = nowhere()
    with pytest.raises(BrokerUnreachable) as caught:
        use(kind, [gone, standby.url])
    assert caught.value.code == E_TIMEOUT
    assert f"nothing listens at {gone}; {standby.url}: E_STANDBY" in caught.value.text


def test_with_the_default_time_out_a_client_gives_up_if_nothing_listens_at_any_address() -> None:
    url = [nowhere(), nowhere()]
    with zsq.Admin(url) as admin, pytest.raises(BrokerUnreachable) as caught:
        admin.ping()
    assert caught.value.code == E_UNREACHABLE
    assert all(f"nothing listens at {one}" in caught.value.text for one in url)


def test_a_bad_list_is_refused_by_the_constructor() -> None:
    with pytest.raises(UsageError, match="has the address tcp://a:1 twice"):
        zsq.Producer("tcp://a:1,tcp://a:1")
    with pytest.raises(UsageError, match="'b:1' is not the address of a broker"):
        zsq.Reader("t", url="tcp://a:1,b:1")
