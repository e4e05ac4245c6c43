"""Tests of messages that were requeued with a delay: they are on disk, survive kills with their
attempts, need no memory of the channel, and are removed when the channel is emptied.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for

import zsq

WALL_CLOCK = Path(__file__).parents[1] / "support" / "wall_clock"


def row(broker: Broker, topic: str) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic, "c")["topics"][0]["channels"][0])


def anonymous_bytes(pid: int) -> int:
    """Return the memory that is not backed by a file. LMDB's pages are backed by its file, and the
    system can take them back.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def defer(broker: Broker, topic: str, count: int, delay: float) -> None:
    """Publish `count` more messages, and requeue each one separately."""
    before = row(broker, topic)["deferred_count"] if topic in topics(broker) else 0
    with (
        zsq.Producer(broker.ipc) as producer,
        zsq.Consumer(topic, "c", url=broker.ipc, ready=5_000) as consumer,
    ):
        for at in range(0, count, 1_000):
            producer.publish_many(topic, [b"%d" % (at + i) for i in range(min(1_000, count - at))])
        left = count
        while left:
            batch = consumer.receive_batch(20)
            assert batch is not None
            for message in batch:
                message.requeue(delay=delay)
            left -= len(batch)
        wait_for(lambda: row(broker, topic)["deferred_count"] == before + count, 60, "all deferred")
        producer.publish(topic, b"last")
        last = consumer.receive(10)
        assert last is not None
        last.finish(sync=True)  # it is confirmed, so everything before it is committed


def topics(broker: Broker) -> set[str]:
    with zsq.Admin(broker.ipc) as admin:
        return {one["topic_name"] for one in admin.stats()["topics"]}


def take(broker: Broker, topic: str, count: int) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    with zsq.Consumer(topic, "c", url=broker.ipc, ready=1_000) as consumer:
        while len(found) < count:
            message = consumer.receive(30)
            assert message is not None, f"only {len(found)} of {count} came"
            found.append((message.body, message.attempts))
            message.finish()
    return found


@pytest.mark.parametrize("kind", ["channel", "topic", "all"])
def test_deferred_messages_survive_kills_with_their_attempts(own_broker: Broker, kind: str) -> None:
    defer(own_broker, "t", 300, 6.0)
    if kind == "all":
        assert own_broker.process is not None
        kill(own_broker.process.pid)
        own_broker.process.wait(20)
        own_broker.start()
    else:
        for pid in own_broker.pids(kind):
            kill(pid)
    found = take(own_broker, "t", 300)
    assert sorted(int(body) for body, _ in found) == list(range(300))
    assert {attempts for _, attempts in found} == {2}
    wait_for(lambda: row(own_broker, "t")["deferred_count"] == 0, 30, "none deferred")


def test_no_deferred_message_comes_early(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer, zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        producer.publish("t", b"x")
        for delay in (0.05, 0.4, 1.5):
            message = consumer.receive(10)
            assert message is not None
            message.requeue(delay=delay)
            before = time.monotonic()
            message = consumer.receive(10)
            assert message is not None
            assert time.monotonic() - before > delay - 0.002
            assert message.attempts % 2 == 0
            message.requeue()


def test_emptying_a_channel_clears_its_deferred_messages(own_broker: Broker) -> None:
    defer(own_broker, "t", 50, 3_000.0)
    with zsq.Admin(own_broker.ipc) as admin:
        admin.empty("t", "c")
        wait_for(lambda: row(own_broker, "t")["deferred_count"] == 0, 30, "none deferred")
        for pid in own_broker.pids("channel"):
            kill(pid)
        wait_for(lambda: row(own_broker, "t").get("health") == "OK", 30, "the channel")
        assert row(own_broker, "t")["deferred_count"] == 0


def test_the_memory_of_a_channel_does_not_grow_with_deferred_messages(own_broker: Broker) -> None:
    defer(own_broker, "t", 20_000, 3_000.0)
    pids = own_broker.pids("channel")[0], own_broker.pids("topic")[0]
    before = [anonymous_bytes(pid) for pid in pids]
    defer(own_broker, "t", 80_000, 3_000.0)
    grown = [anonymous_bytes(pid) - size for pid, size in zip(pids, before, strict=True)]
    assert grown[0] < 5e6, f"of the channel: {grown}"
    assert grown[1] < 10e6, f"of the storage: {grown}"


def test_a_clean_restart_raises_no_attempt_number(own_broker: Broker) -> None:
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc) as consumer,
    ):
        producer.publish_many("t", [b"x", b"y"])
        for delay in (0.1, 0.0):
            message = consumer.receive(10)
            assert message is not None
            message.requeue(delay=delay)
    for _ in range(2):
        wait_for(lambda: row(own_broker, "t")["depth"] == 2, 30, "both wait")
        own_broker.stop()
        own_broker.start()
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        for _ in range(2):
            message = consumer.receive(10)
            assert message is not None
            assert message.attempts == 2
            message.finish()


def test_unfinished_counts_what_waits_what_is_held_and_what_is_deferred(shared: Broker) -> None:
    with (
        zsq.Admin(shared.ipc) as admin,
        zsq.Producer(shared.ipc) as producer,
        zsq.Consumer("left", "c", url=shared.ipc, ready=2) as consumer,
    ):
        producer.publish_many("left", [b"x"] * 5)
        first, second = consumer.receive(20), consumer.receive(20)
        assert first is not None
        assert second is not None
        assert admin.unfinished("left", "c") == 5
        first.requeue(delay=600)
        second.finish(sync=True)
        wait_for(lambda: admin.unfinished("left", "c") == 4)
        consumer.close()
        assert admin.unfinished("left", "c") == 4
        with pytest.raises(zsq.NotFound):
            admin.unfinished("left", "absent")


@pytest.mark.parametrize("jump_s", [-86_400, -2_000, 3_600])
def test_a_requeue_takes_as_long_as_it_says_when_the_wall_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    monkeypatch.setenv("PYTHONPATH", str(WALL_CLOCK))
    monkeypatch.setenv("ZSQ_WALL_CLOCK", str(clock))
    with (
        Broker(tmp_path / "data") as broker,
        zsq.Producer(broker.ipc) as producer,
        zsq.Consumer("t", "c", url=broker.ipc) as consumer,
    ):
        for body, delay_s in ((b"long", 1_800.0), (b"short", 2.0)):
            producer.publish("t", body)
            message = consumer.receive(20)
            assert message is not None
            message.requeue(delay_s)
        with zsq.Admin(broker.ipc) as admin:
            wait_for(lambda: deferred_of(admin) == 2, what="both are deferred")
            begun = time.monotonic()
            later = tmp_path / "later"
            later.write_text(f"{jump_s}")
            later.rename(clock)
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"short"
            assert time.monotonic() - begun > 0.5, "not at once"
            message.finish()
            assert consumer.receive(1) is None
            assert deferred_of(admin) == 1


def test_a_clock_that_was_set_back_over_a_restart_makes_a_message_neither_early_nor_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    monkeypatch.setenv("PYTHONPATH", str(WALL_CLOCK))
    monkeypatch.setenv("ZSQ_WALL_CLOCK", str(clock))
    with Broker(tmp_path / "data") as broker:
        with (
            zsq.Producer(broker.ipc) as producer,
            zsq.Consumer("t", "c", url=broker.ipc) as consumer,
        ):
            producer.publish("t", b"x")
            message = consumer.receive(20)
            assert message is not None
            begun = time.monotonic()
            message.requeue(5.0)
            with zsq.Admin(broker.ipc) as admin:
                wait_for(lambda: deferred_of(admin) == 1, what="it is deferred")
        assert broker.stop() == 0
        clock.write_text("-86400")
        broker.start()
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            assert consumer.receive(20) is not None, "its delay is over"
        assert time.monotonic() - begun > 5.0


def deferred_of(admin: zsq.Admin) -> int:
    return int(admin.stats("t")["topics"][0]["channels"][0]["deferred_count"])
