"""Tests of where channels start and continue: earliest, latest, an offset, or a time. Further tests
peek at channels. They use real processes, with and without the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.tcp_proxy import TcpProxy
from support.topic_names import topic_name_of

import zsq
from zsq.transport.client.core.peeking import Peek


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def fill(url: str, topic: str) -> list[datetime]:
    """Publish 300 messages in three blocks. Return a time before each block, and one after the
    last.
    """
    times = []
    with zsq.Producer(url) as producer:
        for first in range(0, 300, 100):
            times.append(_next_millisecond())
            producer.publish_many(topic, [b"%d" % offset for offset in range(first, first + 100)])
    return [*times, _next_millisecond()]


def _next_millisecond() -> datetime:
    """Return a time between two blocks: blocks that were stored before have an earlier time, and
    blocks that are stored from now on have a later one.
    """
    begin = time.time_ns() // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > begin + 1, 5, "the clock")
    return datetime.fromtimestamp((begin + 1) / 1000, UTC)


def row(url: str, topic: str, channel: str) -> dict[str, Any]:
    with zsq.Admin(url) as admin:
        return dict(admin.stats(topic, channel)["topics"][0]["channels"][0])


def first_of(url: str, topic: str, channel: str, **settings: Any) -> int:
    """Return the offset of the first message that a consumer gets."""
    with zsq.Consumer(topic, channel, url=url, ready=1, **settings) as consumer:
        message = consumer.receive(10)
        assert message is not None
        assert message.body == b"%d" % message.offset
        return message.offset


def test_a_new_channel_starts_where_it_is_told_to(url: str, topic: str) -> None:
    times = fill(url, topic)
    hour = timedelta(hours=1)
    with zsq.Admin(url) as admin:
        places: dict[str, tuple[Any, int]] = {
            "none": (None, 0), "later": (None, 300), "earliest": ("earliest", 0), "latest": ("latest", 300), "offset": (150, 150),
            "beyond": (10_000, 300), "first": (times[0], 0), "second": (times[1], 100), "third": (times[2].timestamp(), 200),
            "after": (times[3], 300), "long-ago": (times[0] - hour, 0), "future": (times[3] + hour, 300),
        }  # fmt: skip
        for name, (place, expected) in places.items():
            assert not admin.create_channel(topic, name, start=place)["existed"]
            assert row(url, topic, name)["next_offset"] == expected, name
        assert admin.create_channel(topic, "second", start="latest")["existed"]
        assert row(url, topic, "second")["next_offset"] == 100, (
            "one that is there stays where it is"
        )
    assert first_of(url, topic, "third") == 200
    assert first_of(url, topic, "made-by-its-consumer", start=times[1]) == 100
    assert first_of(url, topic, "third", start=0) >= 200, (
        "what the first consumer gave back may come a little later"
    )


def test_a_channel_is_moved_to_places(url: str, topic: str) -> None:
    times = fill(url, topic)
    with zsq.Admin(url) as admin:
        admin.create_channel(topic, "c")
        moves: list[tuple[Any, bool, int]] = [
            ("latest", False, 300), ("earliest", False, 0), (times[1], False, 100), (times[0], True, 100),
            (times[2].timestamp(), True, 200), (150, True, 200), (150, False, 150), (times[3], False, 300), ("earliest", True, 300),
            (times[0] - timedelta(days=1), False, 0),
        ]  # fmt: skip
        for place, forward, expected in moves:
            assert admin.seek(topic, "c", place, forward=forward) == {"offset": expected}, place
            assert row(url, topic, "c")["next_offset"] == expected
        admin.seek(topic, "c", times[1])
        assert first_of(url, topic, "c") == 100
        with zsq.Producer(url) as producer:
            for more in range(1, 6):  # this is faster than the actors report their positions
                producer.publish(topic, b"more")
                assert admin.seek(topic, "c", "latest") == {"offset": 300 + more}
        with pytest.raises(zsq.NotFound, match="channel 'nobody'"):
            admin.seek(topic, "nobody", times[1])

    async def the_same() -> None:
        async with zsq.aio.Admin(url) as admin:
            assert await admin.seek(topic, "c", times[2]) == {"offset": 200}

    asyncio.run(the_same())


def shown(found: Peek) -> list[tuple[int, str, int]]:
    assert all(
        one.message is not None and one.message.body == b"%d" % one.offset for one in found.messages
    )
    return [(one.offset, one.state, one.attempts) for one in found.messages]


def test_a_peek_shows_what_comes_and_what_is_held_and_changes_nothing(url: str, topic: str) -> None:
    fill(url, topic)
    with (
        zsq.Admin(url) as admin,
        zsq.Consumer(topic, "c", url=url, ready=6, label="worker 1") as consumer,
    ):
        batch = consumer.receive_batch(10)
        assert batch is not None
        messages = [*batch.messages()]
        assert [message.offset for message in messages] == list(range(6))
        messages[0].finish(sync=True)
        messages[2].requeue(delay=600)
        messages[1].requeue(delay=900)
        wait_for(lambda: row(url, topic, "c")["deferred_count"] == 2, 30, "the requeues")
        wait_for(
            lambda: row(url, topic, "c")["in_flight_count"] == 6,
            30,
            "three more messages, for three were answered",
        )
        before = row(url, topic, "c")
        found = admin.peek(topic, "c", count=3)
        assert shown(found) == [
            (9, "new", 0), (10, "new", 0), (11, "new", 0), (3, "in flight", 1), (4, "in flight", 1), (5, "in flight", 1),
            (6, "held", 1), (7, "held", 1), (8, "held", 1), (2, "deferred", 1), (1, "deferred", 1),
        ]  # fmt: skip
        assert {name: count for name, count in found.counts.items() if count} == {
            "in flight": 3,
            "held": 3,
            "deferred": 2,
        }
        assert (found.next_offset, found.looked_to, found.head, found.paused) == (9, 12, 300, False)
        out = found.messages[3]
        assert out.consumer == "worker 1"
        assert 0 <= out.held_s < 30
        assert 59 < out.held_s + out.left_s < 62
        assert 590 < found.messages[9].due_ns / 1e9 - time.time() <= 600
        after = row(url, topic, "c")
        for name in (
            "next_offset",
            "in_flight_count",
            "deferred_count",
            "depth",
            "message_count",
            "requeue_count",
            "finish_count",
        ):
            assert before[name] == after[name], name
        admin.pause(topic, "c")
        messages[3].requeue()
        wait_for(lambda: admin.peek(topic, "c", count=1).counts["requeued"] == 1, 30, "the requeue")
        found = admin.peek(topic, "c", count=2)
        assert found.paused
        assert [one for one in shown(found) if one[1] in ("requeued", "new")] == [
            (3, "requeued", 1),
            (9, "new", 0),
            (10, "new", 0),
        ]
        assert shown(admin.peek(topic, count=3)) == [
            (297, "stored", 0),
            (298, "stored", 0),
            (299, "stored", 0),
        ]
        with pytest.raises(zsq.NotFound):
            admin.peek(topic, "nobody")
        with pytest.raises(zsq.NotFound):
            admin.peek("nothing")

    async def the_same() -> None:
        async with zsq.aio.Admin(url) as admin:
            newest = await admin.peek(topic, count=2)
            assert shown(newest) == [(298, "stored", 0), (299, "stored", 0)]
            held = await admin.peek(topic, "c", count=1)
            assert held.paused

    asyncio.run(the_same())


def test_a_peek_of_what_is_deferred_outlives_the_channel(shared: Broker) -> None:
    """The rows of deferred messages are only in the store."""
    fill(shared.ipc, "outlives")
    with zsq.Consumer("outlives", "c", url=shared.ipc, ready=3) as consumer:
        for delay in (300, 100, 200):
            message = consumer.receive(10)
            assert message is not None
            message.requeue(delay=delay)
        last = consumer.receive(10)
        assert last is not None
        last.finish(sync=True)  # everything that was answered before is committed with it
    with zsq.Admin(shared.ipc) as admin:
        wait_for(
            lambda: row(shared.ipc, "outlives", "c")["deferred_count"] == 3, 10, "the requeues"
        )
        for victim in [
            actor["pid"] for actor in shared.actors() if actor["name"] == "channel outlives/c"
        ]:
            kill(victim)
            shared.wait_gone([victim])
        found: list[tuple[int, str]] = []

        def looked() -> bool:
            # The answer is E_CLOSING while the channel is being started again.
            with contextlib.suppress(zsq.Refused):
                found[:] = [
                    one[:2] for one in shown(admin.peek("outlives", "c")) if one[1] == "deferred"
                ]
            return bool(found)

        wait_for(looked, 30, "an answer of the next channel")
        assert found == [(1, "deferred"), (2, "deferred"), (0, "deferred")]


def test_a_peek_shows_only_what_the_channel_takes(shared: Broker) -> None:
    with zsq.Producer(shared.ipc) as producer, zsq.Admin(shared.ipc) as admin:
        tags = ["a" if offset % 50 == 7 else "b" if offset % 2 else None for offset in range(300)]
        producer.publish_many("tagged", [b"%d" % offset for offset in range(300)], tags=tags)
        admin.create_channel("tagged", "a", tags="a", start=0)
        assert [one[0] for one in shown(admin.peek("tagged", "a", count=4))] == [7, 57, 107, 157]
        with zsq.Consumer("tagged", "a", url=shared.ipc, tags="a", ready=4) as consumer:
            got = [consumer.receive(10) for _ in range(4)]
            assert [message.offset for message in got if message is not None] == [
                7,
                57,
                107,
                157,
            ], "the same"


def test_a_channel_takes_as_many_consumers_as_it_is_set_to(url: str, topic: str) -> None:
    with zsq.Admin(url) as admin:
        admin.create_channel(topic, "c", max_consumers=1)
        with zsq.Consumer(topic, "c", url=url):
            second = zsq.Consumer(topic, "c", url=url)
            with pytest.raises(zsq.Refused, match="the limit is 1") as error:
                second.subscribe()
            assert error.value.code == "E_LIMIT"
            admin.configure_channel(topic, "c", max_consumers=2)
            second.subscribe()
            second.close()
        assert row(url, topic, "c")["settings"]["max_consumers"] == 2


def test_settings_outlive_kills(shared: Broker) -> None:
    with zsq.Admin(shared.ipc) as admin:
        admin.create_channel("settings", "c", tags="b||a", ordered=True, max_attempts=3, start=0)
        now = admin.configure_channel(
            "settings", "c", max_attempts=None, max_age_s=60, backoff_s=2.5
        )["settings"]
        assert (
            now["tags"],
            now["ordered"],
            now["max_attempts"],
            now["max_age_s"],
            now["backoff_s"],
        ) == ("a||b", True, 0, 60, 2.5)
        victims = [
            actor["pid"]
            for actor in shared.actors()
            if actor["name"] in ("channel settings/c", "topic settings")
        ]
        for victim in victims:
            kill(victim)
        shared.wait_gone(victims)
        # Right after a kill, a row may say that nothing is wrong, and have no settings.
        wait_for(lambda: row(shared.ipc, "settings", "c")["settings"], 20, "the channel")
        assert row(shared.ipc, "settings", "c")["settings"] == now
        for wrong in ({"tags": "a"}, {"ordered": False}):
            with pytest.raises(
                zsq.UsageError, match="cannot be changed after a channel is created and stays"
            ):
                admin.configure_channel("settings", "c", **wrong)
            with pytest.raises(zsq.UsageError, match="use another channel"):
                zsq.Consumer("settings", "c", url=shared.ipc, **wrong).subscribe()
        assert row(shared.ipc, "settings", "c")["settings"] == now


def test_a_consumer_that_lost_its_link_waits_for_its_own_place(shared: Broker) -> None:
    """The channel accepts one consumer. It keeps the place of the lost link until two heartbeats
    are over.
    """
    proxy = TcpProxy(shared.tcp)
    try:
        with zsq.Admin(shared.ipc) as admin, zsq.Producer(shared.ipc) as producer:
            admin.create_channel("alone", "c", max_consumers=1)
            with zsq.Consumer(
                "alone", "c", url=proxy.url, heartbeat_ms=1_000, timeout=0.5
            ) as consumer:
                producer.publish("alone", b"1")
                first = consumer.receive(10)
                assert first is not None
                first.finish(sync=True)
                proxy.cut_clients()
                producer.publish("alone", b"2")
                second = consumer.receive(20)
                assert second is not None
                assert second.body == b"2"
                second.finish(sync=True)
    finally:
        proxy.close()


def test_a_start_that_cannot_be_read_is_refused_and_may_be_asked_for_again(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--chunk-bytes", str(1 << 20)) as broker:
        with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
            times = []
            for _ in range(6):
                times.append(_next_millisecond())
                producer.publish_many("t", [os.urandom(1_000) for _ in range(500)])
            admin.create_channel("t", "there", start=700)
        broker.stop()
        chunks = [
            (chunk, chunk.with_suffix(".hidden"))
            for chunk in sorted(broker.data_dir.rglob("*.chunk"))[:-1]
        ]
        for chunk, aside in chunks:
            chunk.rename(aside)
            chunk.symlink_to(chunk)  # the file exists, but it cannot be opened
        broker.start()
        with zsq.Admin(broker.ipc) as admin:
            for ask in (
                lambda: admin.create_channel("t", "new", start=times[1]),
                lambda: admin.seek("t", "there", times[1]),
                lambda: zsq.Consumer("t", "new", url=broker.ipc, start=times[1]).subscribe(),
            ):
                with pytest.raises(zsq.Refused, match="nothing is known to be lost") as error:
                    ask()
                assert error.value.code == "E_INTERNAL"
            assert [
                channel["channel_name"] for channel in admin.stats("t")["topics"][0]["channels"]
            ] == ["there"]
            assert row(broker.ipc, "t", "there")["next_offset"] == 700
            for chunk, aside in chunks:
                chunk.unlink()
                aside.rename(chunk)
            assert not admin.create_channel("t", "new", start=times[1])["existed"]
            assert row(broker.ipc, "t", "new")["next_offset"] == 500
            assert admin.seek("t", "there", times[2]) == {"offset": 1_000}
