"""Tests of retention on real processes: what is removed, what is never removed, what is refused,
and that space is free again within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for

import zsq
from zsq.transport.wire.answers import TopicConfigured

TOPIC = "clicks"
MIB = 1 << 20
BODY = b"." * 64 * 1024
BACK_S = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    options = ("--chunk-bytes", str(MIB), "--keep-bytes", "none", "--own-process", "always")
    with Broker(tmp_path / "data", *options) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.ipc) as one:
        yield one


def publish(broker: Broker, mib: int, first: int = 0) -> int:
    """Publish `mib` MiB of numbered messages. Return the next number."""
    with zsq.Producer(broker.ipc) as producer:
        for at in range(first, first + mib * 16, 8):
            producer.publish_many(TOPIC, [b"%d " % (at + i) + BODY for i in range(8)])
    return first + mib * 16


def finish(broker: Broker, channel: str, count: int) -> list[int]:
    """Finish the next messages, with confirmation. Return their numbers."""
    found: list[int] = []
    with zsq.Consumer(TOPIC, channel, url=broker.ipc, ready=8) as consumer:
        while len(found) < count:
            message = consumer.receive(20)
            assert message is not None, f"{len(found)} of {count} came"
            found.append(int(message.body.split()[0]))
            message.finish()
    return found


def files_of(broker: Broker) -> list[Path]:
    folder = next(iter((broker.data_dir / "topics").iterdir()))
    return sorted(folder.glob("*.chunk"))


def on_disk(broker: Broker) -> int:
    """Return the size of the topic's files. A file may be removed while they are counted."""
    total = 0
    for path in files_of(broker):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def shown(admin: zsq.Admin) -> dict[str, Any]:
    found: dict[str, Any] = admin.stats(TOPIC)["topics"][0]
    return found


def test_finished_chunks_go_within_seconds_and_the_rest_is_read_on(
    broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_channel(TOPIC, "c")
    publish(broker, 8)
    assert finish(broker, "c", 100) == list(range(100))
    assert len(files_of(broker)) >= 8, "nothing goes where nothing is bounded"
    assert admin.configure_topic(TOPIC, keep_bytes=0)["settings"]["keep_bytes"] == 0
    wait_for(lambda: on_disk(broker) < 2.5 * MIB, BACK_S, "finished chunks are gone")
    topic = shown(admin)
    assert topic["start"] > 80
    assert topic["dropped_count"] == 0
    assert topic["removed_bytes"] > 5 * MIB
    assert topic["log_bytes"] == pytest.approx(on_disk(broker), rel=0.1)
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        found = reader.read(0)
        assert (found.start, found.blocks[0].first_offset) == (topic["start"], topic["start"])
        assert (found.blocks[0].body.values()[0] or b"").startswith(b"%d " % topic["start"])
    assert sorted(finish(broker, "c", 28)) == list(range(100, 128)), (
        "some of them were in the first consumer's hands, and come again"
    )
    # The current chunk is removed too, once all of it is finished.
    wait_for(lambda: on_disk(broker) < 0.1 * MIB, BACK_S, "the ongoing chunk is gone")
    assert finish_new(broker) == 128


def finish_new(broker: Broker) -> int:
    publish(broker, 1, 128)
    return finish(broker, "c", 16)[0]


def test_an_offline_channel_holds_its_chunks_for_ever(broker: Broker, admin: zsq.Admin) -> None:
    """The chunks stay over a restart and a kill, too. Only the deletion of the channel frees
    them.
    """
    admin.create_channel(TOPIC, "offline")
    admin.create_channel(TOPIC, "c")
    admin.configure_topic(TOPIC, keep_bytes=0, keep_time_s=0, keep_chunks=0)
    publish(broker, 4)
    finish(broker, "c", 64)
    assert broker.stop() == 0
    broker.start()
    pid = broker.pids("topic")[0]
    kill(pid)
    seen = 0

    def is_back() -> bool:
        nonlocal seen
        topic = shown(admin)
        seen = topic["log_bytes"]
        return broker.pids("topic") not in ([], [pid]) and seen > 0 and len(topic["channels"]) == 2

    wait_for(is_back, 20, "it is up again")
    deadline = time.monotonic() + 3.5  # retention runs three times in this time
    wait_for(lambda: time.monotonic() > deadline)
    topic = shown(admin)
    assert (topic["start"], topic["dropped_count"]) == (0, 0)
    assert topic["log_bytes"] >= seen > 4 * MIB
    assert finish(broker, "offline", 64) == list(range(64))
    wait_for(lambda: on_disk(broker) < 0.1 * MIB, BACK_S, "all is finished now")


def test_a_topic_without_channels_keeps_what_waits_for_the_first(
    broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic(TOPIC, keep_bytes=0)
    publish(broker, 3)
    deadline = time.monotonic() + 2.5
    wait_for(lambda: time.monotonic() > deadline)
    assert shown(admin)["start"] == 0
    assert finish(broker, "first", 48) == list(range(48))
    wait_for(lambda: on_disk(broker) < 0.1 * MIB, BACK_S, "the first channel has finished them")


def test_a_full_topic_refuses_and_takes_again_when_channels_have_finished(
    broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic(TOPIC, max_bytes=8 * MIB)
    admin.create_channel(TOPIC, "c")
    with pytest.raises(zsq.Refused) as refusal:
        publish(broker, 12)
    assert refusal.value.code == "E_TOPIC_FULL"
    assert "max_bytes 8388608" in refusal.value.text
    wait_for(
        lambda: "publishes are refused: " in str(shown(admin)["health"]), 5, "the topic's health"
    )
    topic = shown(admin)
    assert "max_bytes 8388608" in topic["health"]
    assert topic["write_trouble"] == "", "a rule that is kept is no bad health of the broker"
    assert topic["refused_count"] >= 1
    assert broker.log.read_text().count("publishes are refused (") == 1, "once, then once a minute"
    taken = topic["head"]
    # Half a MiB is published at once, and all of it is accepted while there is room.
    assert 7 * MIB < taken * len(BODY) <= 8.5 * MIB
    assert topic["dropped_count"] == 0
    with pytest.raises(zsq.Refused):
        publish(broker, 1, taken)
    assert finish(broker, "c", taken) == list(range(taken)), (
        "nothing that was taken is lost, nothing that was refused is there"
    )
    wait_for(lambda: _publishes(broker, taken), BACK_S, "there is room again")
    wait_for(lambda: shown(admin)["health"] == "OK", BACK_S, "good health again")
    assert "there is room again" in broker.log.read_text()
    assert finish(broker, "c", 16)[0] == taken
    admin.configure_topic(TOPIC, max_bytes=-1)
    publish(broker, 12, taken + 16)


def test_delayed_messages_count_from_the_moment_they_are_taken(
    broker: Broker, admin: zsq.Admin
) -> None:
    """If they counted only when they are due, all of them would be stored, because nothing refuses
    them at that time.
    """
    admin.create_topic(TOPIC, max_bytes=8 * MIB)
    with zsq.Producer(broker.ipc) as producer:
        with pytest.raises(zsq.Refused, match="are delayed") as refusal:
            _delay_24_blocks(producer)
        assert refusal.value.code == "E_TOPIC_FULL"
        assert 7.5 * MIB < shown(admin)["delayed_bytes"] < 9 * MIB
        with pytest.raises(zsq.Refused):
            producer.publish(TOPIC, b"now")
        admin.delayed_cancel_all(TOPIC)
        producer.publish(TOPIC, b"now")


def _delay_24_blocks(producer: zsq.Producer) -> None:
    for _ in range(24):
        producer.publish_many(TOPIC, [BODY] * 8, delay=3600)


def _publishes(broker: Broker, first: int) -> bool:
    try:
        publish(broker, 1, first)
    except zsq.Refused:
        return False
    return True


def test_drop_oldest_loses_the_oldest_and_counts_it(broker: Broker, admin: zsq.Admin) -> None:
    admin.create_topic(TOPIC, max_bytes=8 * MIB, when_full="drop-oldest")
    admin.create_channel(TOPIC, "c")
    publish(broker, 24)
    wait_for(lambda: on_disk(broker) <= 9.5 * MIB, BACK_S, "the bound holds")
    topic = shown(admin)
    start = topic["start"]
    assert 384 - 8 * 16 <= start < 384
    assert topic["dropped_count"] == start
    wait_for(
        lambda: shown(admin)["channels"][0]["dropped_count"] == start,
        30,
        "the channel has counted it",
    )
    assert shown(admin)["channels"][0]["depth"] == 384 - start
    assert finish(broker, "c", 384 - start) == list(range(start, 384))
    channel = shown(admin)["channels"][0]
    assert (channel["lost_count"], channel["dropped_count"], channel["finish_count"]) == (
        0,
        start,
        384 - start,
    )


def test_damaged_settings_do_not_remove_any_chunk(broker: Broker, admin: zsq.Admin) -> None:
    """With damaged settings the topic is still served. Settings that are set again take effect."""
    admin.create_topic(TOPIC, keep_bytes=0)
    admin.create_channel(TOPIC, "c")
    broker.stop()
    path = broker.data_dir / "registry.json"
    spoilt = json.loads(path.read_text())
    spoilt["topics"][TOPIC]["retention"]["keep_bytes"] = "0"
    del spoilt["checksum"]  # the file looks as if it was edited by hand
    path.write_text(json.dumps(spoilt))
    broker.start()
    publish(broker, 3)
    assert finish(broker, "c", 48) == list(range(48))
    deadline = time.monotonic() + 2.5
    wait_for(lambda: time.monotonic() > deadline)
    assert (shown(admin)["start"], shown(admin)["settings"]["keep_bytes"]) == (0, -1)
    admin.configure_topic(TOPIC, keep_bytes=0)
    wait_for(lambda: on_disk(broker) < 0.1 * MIB, BACK_S, "space is back")


def test_retention_can_be_set_with_asyncio(broker: Broker, admin: zsq.Admin) -> None:
    async def work() -> tuple[Any, TopicConfigured]:
        async with zsq.aio.Admin(broker.ipc) as one:
            await one.create_topic(TOPIC, keep_chunks=7)
            return (await one.stats(TOPIC))["topics"][0], await one.configure_topic(
                TOPIC, keep_time_s=2.5
            )

    made, changed = asyncio.run(work())
    assert made["settings"]["keep_chunks"] == 7
    assert (changed["settings"]["keep_chunks"], changed["settings"]["keep_time_s"]) == (7, 2.5)
    assert shown(admin)["settings"] == changed["settings"]


def test_a_time_alone_is_not_joined_by_the_default_of_bytes(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", "--keep-time", "7d")
    with contextlib.closing(broker.start()), zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC)
        assert shown(admin)["settings"]["keep_bytes"] == -1
        for keep_time_s, keep_bytes in ((-1, 1 << 30), (3600, -1), (None, -1)):
            found = admin.configure_topic(TOPIC, keep_time_s=keep_time_s)["settings"]
            assert found["keep_bytes"] == keep_bytes
            assert shown(admin)["settings"] == found


def test_settings_are_kept_over_a_restart(broker: Broker, admin: zsq.Admin) -> None:
    admin.create_topic(TOPIC, keep_time_s=3600)
    admin.configure_topic(TOPIC, keep_chunks=3, max_bytes=16 * MIB)
    admin.configure_topic(TOPIC, max_bytes=None)
    wanted = {
        "keep_bytes": -1,
        "keep_time_s": 3600,
        "keep_chunks": 3,
        "max_bytes": -1,
        "max_age_s": -1,
        "when_full": "reject",
        "archive": "on",
        "bucket_keep_bytes": -1,
        "bucket_keep_time_s": -1,
        "own_process": "default",
        "dedupe_window_s": 600,
        "expires_s": -1,
    }
    assert shown(admin)["settings"] == wanted
    broker.stop()
    broker.start()
    assert shown(admin)["settings"] == wanted
    wrongs: list[dict[str, Any]] = [
        {"max_age_s": 60},
        {"keep_bytes": -2},
        {"when_full": "maybe"},
        {"max_bytes": 5},
        {"keep": 1},
    ]
    for wrong in wrongs:
        with pytest.raises(zsq.UsageError):
            admin.configure_topic(TOPIC, **wrong)
    with pytest.raises(zsq.UsageError):
        admin.configure_topic(TOPIC)
    assert shown(admin)["settings"] == wanted
    with pytest.raises(zsq.NotFound):
        admin.configure_topic("nobody", keep_chunks=1)


def test_storage_is_killed_again_and_again_while_chunks_go(
    broker: Broker, admin: zsq.Admin
) -> None:
    """Each message arrives at least once, none is reported as lost or dropped, and in the end the
    space is free.
    """
    admin.create_topic(TOPIC, keep_bytes=0)
    admin.create_channel(TOPIC, "c")
    count, seen = 400, set()
    with (
        zsq.Producer(broker.ipc) as producer,
        zsq.Consumer(TOPIC, "c", url=broker.ipc, ready=8, heartbeat_ms=1_000) as consumer,
    ):
        for number in range(count):
            producer.publish(TOPIC, b"%d " % number + BODY)
            message = consumer.receive(20)
            assert message is not None
            seen.add(int(message.body.split()[0]))
            with contextlib.suppress(zsq.LeaseLost):
                message.finish()
            if number % 80 == 79:
                (killed,) = broker.pids("topic")
                kill(killed)
        wait_for(lambda: broker.pids("topic") not in ([], [killed]), 20, "the topic is up again")
        # The finishes just before a kill may be lost, and their messages come again.
        until = time.monotonic() + 60
        while len(seen) < count or not _is_drained(admin):
            assert time.monotonic() < until, f"{count - len(seen)} are missing"
            message = consumer.receive(0.2)
            if message is not None:
                seen.add(int(message.body.split()[0]))
                with contextlib.suppress(zsq.LeaseLost):
                    message.finish()
    channel = shown(admin)["channels"][0]
    assert (channel["lost_count"], channel["dropped_count"], shown(admin)["dropped_count"]) == (
        0,
        0,
        0,
    )
    wait_for(lambda: on_disk(broker) < 0.1 * MIB, BACK_S * 2, "space is back")


def _is_drained(admin: zsq.Admin) -> bool:
    channels = shown(admin)["channels"]
    return (
        bool(channels)
        and channels[0]["health"] == "OK"
        and channels[0]["depth"] == channels[0]["in_flight_count"] == 0
    )


def test_storage_is_killed_again_and_again_while_the_oldest_are_dropped(
    broker: Broker, admin: zsq.Admin
) -> None:
    """The messages that a channel received and those that it counts as dropped are together all
    messages. No dropped message comes back.
    """
    admin.create_topic(TOPIC, max_bytes=8 * MIB, when_full="drop-oldest")
    admin.create_channel(TOPIC, "c")
    number = 0
    for _ in range(6):
        number = publish(broker, 5, number)
        kill(broker.pids("topic")[0])
        wait_for(
            lambda: shown(admin)["head"] > 0 and shown(admin)["channels"][0]["health"] == "OK",
            20,
            "it is up again",
        )
    wait_for(lambda: on_disk(broker) <= 9.5 * MIB, BACK_S * 2, "the bound holds")
    start = shown(admin)["start"]
    assert start > number // 2
    found = finish(broker, "c", number - start)
    assert found == list(range(start, number))
    wait_for(
        lambda: shown(admin)["channels"][0]["dropped_count"] == start, 5, "all that went is counted"
    )
    assert shown(admin)["dropped_count"] == start
    assert shown(admin)["channels"][0]["lost_count"] == 0


def test_a_channel_that_holds_what_is_dropped_goes_on_behind_it(
    broker: Broker, admin: zsq.Admin
) -> None:
    """The channel had already received all messages from the topic, so no further message would
    come without a new read.
    """
    admin.create_topic(TOPIC, keep_bytes=-1)
    admin.create_channel(TOPIC, "c")
    with zsq.Consumer(TOPIC, "c", url=broker.ipc, ready=1) as consumer:
        old = publish(broker, 2)
        held = consumer.receive(20)
        assert held is not None
        published = time.monotonic()
        wait_for(lambda: time.monotonic() > published + 4)
        young = publish(broker, 1, old)
        admin.configure_topic(TOPIC, max_age_s=4, when_full="drop-oldest")
        wait_for(lambda: shown(admin)["start"] > 0, 4, "the old ones are dropped")
        admin.configure_topic(TOPIC, max_age_s=-1)
        start = shown(admin)["start"]
        assert start < old + 1
        held.finish()  # a message belongs to its consumer until the consumer answers
        found: list[int] = []
        while not found or found[-1] < young - 1:
            message = consumer.receive(20)
            assert message is not None, "it waits for what will never come"
            found.append(int(message.body.split()[0]))
            message.finish()
    assert found == list(range(start, young))
    channel = shown(admin)["channels"][0]
    assert (channel["dropped_count"], channel["lost_count"]) == (start - 1, 0)


def test_a_paused_topic_is_bounded_too(broker: Broker, admin: zsq.Admin) -> None:
    """The dropped messages lie beyond the end that channels may see. After the pause, the channels
    continue behind them.
    """
    admin.create_topic(TOPIC, max_bytes=8 * MIB, when_full="drop-oldest")
    admin.create_channel(TOPIC, "c")
    publish(broker, 1)
    admin.pause(TOPIC)
    publish(broker, 14, 16)
    with zsq.Consumer(TOPIC, "c", url=broker.ipc, ready=4) as consumer:
        wait_for(lambda: on_disk(broker) <= 9.5 * MIB, BACK_S, "the bound holds")
        start = shown(admin)["start"]
        assert start > 16
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            early = consumer.receive(0.2)
            if early is not None:  # this message came before all of them were dropped
                assert early.offset < 16
                early.finish()
        admin.unpause(TOPIC)
        found: list[int] = []
        while not found or found[-1] < 239:
            message = consumer.receive(20)
            assert message is not None
            found.append(message.offset)
            message.finish()
    assert found == list(range(start, 240))
