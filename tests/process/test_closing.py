"""Tests of closing and opening topics on a real broker: publishers, stages and consumers notice it,
it survives restarts, and no acknowledged message is lost.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import zmq
from support.broker import Broker, kill, wait_for

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.client import Admin
from zsq.transport.client.blocking.stage_writer import StageCommitter, StagePart, StageWriter
from zsq.transport.client.core.asking import ask_admin
from zsq.transport.draining import remaining
from zsq.transport.errors import E_BAD_ARGUMENT, E_CLOSED, E_NOT_EMPTY, Refused, UsageError
from zsq.transport.wire.admin_requests import CloseRequest
from zsq.transport.wire.codec import decode, encode
from zsq.transport.wire.protocol import PROTOCOL_VERSION, Done, Failed, Lookup, Sub, Wire


def bodies(url: str, topic: str, channel: str, count: int) -> list[bytes]:
    with zsq.Consumer(topic, channel, url=url) as consumer:
        found = []
        for _ in range(count):
            message = consumer.receive(20)
            assert message is not None
            message.finish()
            found.append(message.body)
        return found


def test_closed_to_publishers_is_drained_and_opened_again(broker: Broker) -> None:
    with (
        zsq.Admin(broker.ipc) as admin,
        zsq.Producer(broker.ipc) as producer,
        zsq.Producer(broker.tcp) as remote,
    ):
        admin.create_channel("t", "c")
        producer.publish("t", b"1")
        producer.publish("t", b"2", delay=1.0)
        assert admin.close_topic("t") == {"closed": "publishers"}
        assert admin.stats("t")["topics"][0]["closed"] == "publishers"
        for one in (producer, remote):
            for delay in (None, 5.0):
                with pytest.raises(Refused, match="E_CLOSED"):
                    one.publish("t", b"no", delay=delay)
        assert bodies(broker.tcp, "t", "c", 2) == [b"1", b"2"], (
            "consumers go on, and what was delayed before still becomes due"
        )
        assert admin.open_topic("t") == {"closed": ""}
        producer.publish("t", b"3")
        assert bodies(broker.ipc, "t", "c", 1) == [b"3"]


def test_a_lingering_producer_hears_of_all_that_waited_and_nothing_is_half_stored(
    own_broker: Broker,
) -> None:
    """The topic is closed under load. All messages that were acknowledged are stored, none that was
    refused is stored, and each receipt knows its result.
    """
    with (
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Producer(own_broker.ipc, linger_ms=1, batch_count=10) as producer,
    ):
        admin.create_topic("t")
        receipts: list[zsq.Receipt] = []
        closed = threading.Event()
        begun = threading.Event()

        def publish() -> None:
            while not closed.is_set():
                receipts.append(producer.publish("t", b"%d" % len(receipts)))
                if len(receipts) > 200 and receipts[100].done:
                    begun.set()

        thread = threading.Thread(target=publish)
        thread.start()
        assert begun.wait(20)
        admin.close_topic("t")
        head = admin.stats("t")["topics"][0]["head"]
        wait_for(lambda: any(one.error is not None for one in receipts[::-1]), 20, "a refusal")
        closed.set()
        thread.join()
        with pytest.raises(Refused, match="E_CLOSED"):
            producer.flush()
        assert all(receipt.done for receipt in receipts)
        stored = {
            receipt.offset: index for index, receipt in enumerate(receipts) if receipt.error is None
        }
        assert {getattr(receipt.error, "code", "") for receipt in receipts} == {"", E_CLOSED}
        assert admin.stats("t")["topics"][0]["head"] == head == len(stored), (
            "nothing came behind the answer to close"
        )
        assert stored.keys() == set(range(head))
        with zsq.Reader("t", url=own_broker.ipc) as reader:
            for offset in (0, head // 2, head - 1):
                assert reader.message(offset).body == b"%d" % stored[offset]


def test_it_is_closed_after_kills_and_restarts(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"1")
        producer.publish("u", b"1")
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("t", "c")
        admin.close_topic("t")
        admin.close_topic("u", to="consumers")
    for pid in own_broker.pids("topic"):
        kill(pid)
    _refused_both(own_broker)
    assert own_broker.process is not None
    pids = [actor["pid"] for actor in own_broker.actors()]
    own_broker.process.kill()
    own_broker.process.wait(40)
    own_broker.wait_gone(pids)
    own_broker.start()
    _refused_both(own_broker)
    with zsq.Admin(own_broker.ipc) as admin:
        assert [topic["closed"] for topic in admin.stats()["topics"]] == ["publishers", "consumers"]


def _refused_both(broker: Broker) -> None:
    for topic in ("t", "u"):
        with pytest.raises(Refused, match="E_CLOSED"):
            staged(broker.ipc, 1, topic)
    with zsq.Producer(broker.ipc, timeout=20) as producer:
        for topic in ("t", "u"):
            with pytest.raises(Refused, match="E_CLOSED"):
                producer.publish(topic, b"no")
    with pytest.raises(Refused, match="E_CLOSED"):
        zsq.Consumer("u", "c", url=broker.ipc).subscribe(20)


def test_closed_to_consumers_ends_those_that_are_there(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("t", "c")
        producer.publish("t", b"1")
        consumers = [zsq.Consumer("t", "c", url=url, ready=1) for url in (broker.ipc, broker.tcp)]
        held = consumers[0].receive(20)
        assert held is not None
        consumers[1].subscribe()
        assert admin.close_topic("t", to="consumers") == {"closed": "consumers"}
        with pytest.raises(Refused, match="E_CLOSED"):
            producer.publish("t", b"no")
        for consumer in consumers:
            for _ in range(2):
                with pytest.raises(Refused, match="E_CLOSED the topic is closed to consumers"):
                    consumer.receive(20)
        for url in (broker.ipc, broker.tcp):
            with pytest.raises(Refused, match="E_CLOSED"):
                zsq.Consumer("t", "new", url=url).subscribe()
        (row,) = admin.stats("t")["topics"][0]["channels"]
        assert (row["client_count"], row["depth"], row["in_flight_count"]) == (0, 1, 0), (
            "what it held waits"
        )
        held.finish()
        assert admin.open_topic("t", to="consumers") == {"closed": "publishers"}
        again = consumers[1].receive(20)
        assert again is not None
        assert (again.body, again.attempts) == (b"1", 1), "it was sent away, and did not fail"
        again.finish(sync=True)
        for consumer in consumers:
            consumer.close()


def test_a_consumer_that_had_found_the_channel_is_refused_by_it(broker: Broker) -> None:
    """The consumer found the channel before the topic was closed and subscribes after that. The
    supervisor's answer is out of date, but the channel knows that the topic is closed.
    """
    with zsq.Admin(broker.ipc) as admin, zmq.Context() as context:
        admin.create_channel("t", "c")
        with context.socket(zmq.DEALER) as supervisor, context.socket(zmq.DEALER) as channel:
            supervisor.connect(f"{broker.ipc}/supervisor")
            found = _asked(supervisor, Lookup(1, "t", "c", False))
            assert isinstance(found, Done)
            admin.close_topic("t", to="consumers")
            channel.connect(found.data["channel"])
            refused = _asked(channel, Sub(2, PROTOCOL_VERSION, 1, 0, 5_000, "late"))
            assert isinstance(refused, Failed)
            assert (refused.request, refused.code) == (2, E_CLOSED)


def _asked(socket: zmq.Socket[bytes], word: Wire) -> Wire:
    socket.setsockopt(zmq.LINGER, 0)
    socket.send_multipart([b"", encode(word)])
    assert socket.poll(20_000)
    return decode(socket.recv_multipart()[1])


def test_asyncio_clients_see_a_topic_closed_and_opened(broker: Broker) -> None:
    async def main() -> None:
        async with zsq.aio.Admin(broker.ipc) as admin, zsq.aio.Producer(broker.ipc) as producer:
            await producer.publish("t", b"1")
            consumer = zsq.aio.Consumer("t", "c", url=broker.ipc)
            assert await consumer.receive(20) is not None
            await admin.close_topic("t", to="consumers")
            with pytest.raises(Refused, match="E_CLOSED"):
                await producer.publish("t", b"no")
            with pytest.raises(Refused, match="E_CLOSED"):
                await consumer.receive(20)
            assert await admin.open_topic("t") == {"closed": ""}
            assert await consumer.receive(20) is not None
            await consumer.close()

    asyncio.run(main())


def staged(url: str, version: int, topic: str = "t") -> StagePart | None:
    with StageWriter(topic, "app", version, url=url) as writer:
        writer.push(pack([b"x"]))
        return writer.seal()


def test_a_closed_topic_refuses_new_commits_and_answers_repeated_ones(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, StageCommitter("t", url=broker.ipc) as committer:
        first, second = staged(broker.ipc, 1), staged(broker.tcp, 2)
        done = committer.commit("app", 1, [first])
        admin.close_topic("t")
        with pytest.raises(Refused, match="E_CLOSED"):
            committer.commit("app", 2, [second])
        assert committer.commit("app", 1, [first]) == done | {"repeated": True}
        for url in (broker.ipc, broker.tcp):
            with pytest.raises(Refused, match="E_CLOSED"):
                staged(url, 3)
            assert staged(url, 1) is None, (
                "a repeated transaction is known at its first push, as Spark needs it"
            )
        admin.open_topic("t")
        assert committer.commit("app", 2, [second])["messages"] == 1


def test_deleting_what_is_closed_and_not_empty_is_still_refused(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        producer.publish("t", b"1")
        admin.close_topic("t", to="consumers")
        with pytest.raises(Refused, match=E_NOT_EMPTY):
            admin.delete_topic("t")
        assert admin.stats("t")["topics"][0]["closed"] == "consumers"
        admin.delete_topic("t", force=True)
        with zsq.Producer(broker.ipc) as another:
            another.publish("t", b"2")
        assert admin.stats("t")["topics"][0]["closed"] == "", "a topic made again is open"


def test_wrong_options_of_close_are_refused(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c")
        with pytest.raises(UsageError, match=E_BAD_ARGUMENT):
            admin.close_topic("t", to="everybody")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="close is for a topic, and not for a channel"):
            admin._carry_out(ask_admin(CloseRequest("t", "c")))
        with pytest.raises(zsq.NotFound):
            admin.close_topic("nowhere")


def test_a_disk_without_room_leaves_it_open(tmp_path: Path) -> None:
    """The registry cannot be written. Then nothing is closed, and the client gets an error."""
    with (
        Broker(tmp_path / "data") as broker,
        zsq.Producer(broker.ipc) as producer,
        Admin(broker.ipc) as admin,
    ):
        producer.publish("t", b"1")
        (broker.data_dir / "registry.json.tmp").mkdir()
        with pytest.raises(Refused, match="the registry cannot be written"):
            admin.close_topic("t")
        producer.publish("t", b"2")
        assert admin.stats("t")["topics"][0]["closed"] == ""
        (broker.data_dir / "registry.json.tmp").rmdir()
        admin.close_topic("t")
        wait_for(lambda: admin.stats("t")["topics"][0]["closed"] == "publishers")


@pytest.mark.parametrize(
    ("door", "how"),
    [
        ("ipc", "closed to consumers"),
        ("tcp", "closed to consumers"),
        ("ipc", "broker stops"),  # a gateway ends its links before the channels commit
    ],
)
def test_finishes_that_were_stored_when_the_channel_ends_raise_no_warning(
    own_broker: Broker, door: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer finishes all messages and receives no more before its link ends."""
    url = own_broker.ipc if door == "ipc" else own_broker.tcp
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_channel("t", "c")
        producer.publish_many("t", [b"x"] * 50)
        consumer = zsq.Consumer("t", "c", url=url)
        for _ in range(50):
            message = consumer.receive(20)
            assert message is not None
            message.finish()
        wait_for(lambda: remaining(admin.stats("t")["topics"][0]) == [])
        if how == "broker stops":
            own_broker.stop()
        else:
            admin.close_topic("t")
            admin.close_topic("t", to="consumers")
            with pytest.raises(Refused, match="E_CLOSED"):
                consumer.receive(20)
        consumer.close(20)
    assert "not confirmed" not in caplog.text
