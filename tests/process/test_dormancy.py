"""Tests of topics that no client uses, on a real broker: their processes end, and any use starts
them again.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.samples import Samples

import zsq
from zsq.apps.testing.clock import ClockOffset
from zsq.apps.testing.local import LocalBroker
from zsq.transport.errors import E_NOT_EMPTY, E_NOT_FOUND, NotFound, Refused

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(
        tmp_path_factory.mktemp("sleepy") / "data", "--sleep-after", "1s", nsq=True, http=True
    ) as broker:
        yield broker


def topic_row(broker: Broker, topic: str) -> Any:
    with zsq.Admin(broker.ipc) as admin:
        return admin.stats(topic)["topics"][0]


def processes(broker: Broker, topic: str) -> list[str]:
    ours = (f"topic {topic}", f"channel {topic}/")
    return [row["name"] for row in broker.actors() if row["name"].startswith(ours)]


def asleep(broker: Broker, topic: str) -> None:
    wait_for(lambda: not processes(broker, topic), 40, f"the sleep of topic {topic}")


def filled(broker: Broker, topic: str, count: int = 3, channel: str = "c") -> None:
    """Make a topic with a channel and messages, and wait until it sleeps."""
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel(topic, channel)
        producer.publish_many(topic, [b"%d" % number for number in range(count)])
    asleep(broker, topic)


def bodies(broker: Broker, topic: str, count: int, channel: str = "c") -> list[bytes]:
    with zsq.Consumer(topic, channel, url=broker.tcp) as consumer:
        found = []
        for _ in range(count):
            message = consumer.receive(20)
            assert message is not None
            message.finish()
            found.append(message.body)
        return found


def test_a_topic_that_sleeps_keeps_its_messages_and_its_statistics(sleepy: Broker) -> None:
    filled(sleepy, "kept")
    row = topic_row(sleepy, "kept")
    assert (row["asleep"], row["health"], row["message_count"], row["head"]) == (True, "OK", 3, 3)
    assert (row["channels"][0]["depth"], row["channels"][0]["health"]) == (3, "OK")
    assert {*row["rates"].values(), *row["channels"][0]["rates"].values()} == {0.0}
    with zsq.Producer(sleepy.tcp) as producer:
        assert producer.publish("kept", b"3").offset == 3
    assert bodies(sleepy, "kept", 4) == [b"0", b"1", b"2", b"3"]
    row = topic_row(sleepy, "kept")
    assert (row["asleep"], row["message_count"]) == (False, 4)
    asleep(sleepy, "kept")
    with zsq.Reader("kept", url=sleepy.ipc) as reader:
        assert sum(block.count for block in reader.read(0).blocks) == 4


def test_an_open_producer_or_consumer_keeps_its_topic_awake(sleepy: Broker) -> None:
    with zsq.Producer(sleepy.ipc) as producer, zsq.Consumer("held", "c", url=sleepy.ipc):
        producer.publish("used", b"x")
        filled(sleepy, "other")  # this takes longer than --sleep-after
        assert processes(sleepy, "used") == ["topic used"]
        assert processes(sleepy, "held") == ["topic held", "channel held/c"]
        assert topic_row(sleepy, "used")["health"] == "OK"
    asleep(sleepy, "used")
    asleep(sleepy, "held")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_delayed_message_wakes_its_topic_when_it_is_due(
    tmp_path: Path, is_restarted: bool
) -> None:
    """Nothing uses the topic. The broker may have begun with the topic asleep."""
    with (
        LocalBroker(tmp_path, "--sleep-after", "1s") as broker,
        broker.admin(timeout=30) as admin,
    ):
        admin.create_channel("later", "c")
        with broker.producer() as producer:
            producer.publish("later", b"due", delay=3_600)

        def row() -> Any:
            return admin.stats("later")["topics"][0]

        wait_for(lambda: row()["asleep"], 40, "the sleep")
        if is_restarted:
            broker.stop()
            broker.start()
            assert row()["asleep"]
        assert row()["channels"][0]["depth"] == 0
        # `advance` would ask the topic, which wakes it.
        ClockOffset(tmp_path / "clock").add(3_600_000_000_000)
        wait_for(lambda: row()["channels"][0]["depth"] == 1, 20, "the message")
        with broker.consumer("later", "c") as consumer:
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"due"


def test_commands_wake_the_topic_that_they_name(sleepy: Broker) -> None:
    names = [f"told-{number}" for number in range(8)]
    with zsq.Admin(sleepy.tcp) as admin, zsq.Producer(sleepy.ipc) as producer:
        for name in names:
            admin.create_channel(name, "c")
            producer.publish_many(name, [b"%d" % number for number in range(3)])
    for name in names:
        asleep(sleepy, name)
    with zsq.Admin(sleepy.tcp) as admin:
        with pytest.raises(Refused, match="3 messages that are not finished") as refused:
            admin.delete_topic(names[0])
        assert refused.value.code == E_NOT_EMPTY
        assert len(admin.peek(names[1], "c", count=2).messages) == 2
        assert admin.seek(names[2], "c", 2)["offset"] == 2
        admin.pause(names[3])
        assert topic_row(sleepy, names[3])["paused"]
        assert admin.close_topic(names[4]) == {"closed": "publishers"}
        admin.create_channel(names[5], "d")
        assert {row["channel_name"] for row in topic_row(sleepy, names[5])["channels"]} == {
            "c",
            "d",
        }
        with pytest.raises(NotFound) as missing:
            admin.pause(names[6], "e")
        assert missing.value.code == E_NOT_FOUND
        admin.delete_topic(names[7], force=True)
        assert names[7] not in rows_of(sleepy)
    for name in names[:7]:
        asleep(sleepy, name)
    assert topic_row(sleepy, names[3])["paused"]
    assert topic_row(sleepy, names[4])["closed"] == "publishers"


def rows_of(broker: Broker) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return {row["topic_name"]: row for row in admin.stats()["topics"]}


def test_nsq_and_http_clients_wake_a_topic(sleepy: Broker) -> None:
    filled(sleepy, "door", 1)
    publish = urllib.request.Request(
        f"http://127.0.0.1:{sleepy.http}/pub?topic=door", data=b"by http", method="POST"
    )
    with urllib.request.urlopen(publish, timeout=20) as answer:
        assert answer.status == 200
    assert processes(sleepy, "door"), "the gateway's link keeps the topic awake for a minute"
    assert bodies(sleepy, "door", 2) == [b"0", b"by http"]


def test_a_topic_that_sleeps_outlives_a_kill_of_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--sleep-after", "1s") as broker:
        filled(broker, "kept", 5)
        with zsq.Admin(broker.ipc) as admin:
            assert admin.chunks("kept")["chunks"], "a command on files wakes it, too"
        asleep(broker, "kept")
        assert broker.process is not None
        broker.process.kill()
        broker.process.wait()
        broker.start()
        assert bodies(broker, "kept", 5) == [b"%d" % number for number in range(5)]
        asleep(broker, "kept")
        begun = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - begun < 10.0


def test_an_alarm_about_a_topic_that_sleeps_is_raised(tmp_path: Path) -> None:
    options = ("--sleep-after", "1s", "--alarm-age", "7s", "--alarm-hold", "1s")
    with Broker(tmp_path / "data", *options) as broker:
        filled(broker, "t")
        with zsq.Admin(broker.ipc) as admin:
            assert not admin.stats()["alarms"]
            wait_for(lambda: admin.stats()["alarms"], 30, "the alarm")
            [alarm] = admin.stats()["alarms"]
        assert (alarm["topic"], alarm["channel"], alarm["kind"]) == ("t", "c", "age_s")
        assert processes(broker, "t") == [], "it still sleeps"
        assert "alarm" in topic_row(broker, "t")["health"]


def test_the_option_none_keeps_topics_awake(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--sleep-after", "none") as broker:
        with zsq.Admin(broker.ipc) as admin:
            admin.create_channel("t", "c")
        begun = time.monotonic()  # with `--sleep-after 1s` the topic would sleep within 5 s
        wait_for(lambda: time.monotonic() > begun + 5.0, 20, "the end of 5 s")
        assert processes(broker, "t") == ["topic t", "channel t/c"]


# Restarts


def _without_times(row: Any) -> Any:
    """Return a topic's row without what depends on the time of the look, and on how far a consumer
    let the channel read ahead. What it gave back is held in memory until the topic sleeps.
    """
    left_out = {"channels", "oldest_message_age_s", "recovery", "private_bytes"}
    left_out |= {"next_offset", "backend_depth"}
    found = {name: value for name, value in row.items() if name not in left_out}
    return found, [
        {name: value for name, value in channel.items() if name not in left_out}
        for channel in row.get("channels", ())
    ]


def test_topics_that_sleep_stay_asleep_in_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--sleep-after", "1s") as one:
        with zsq.Admin(one.ipc) as admin, zsq.Producer(one.ipc) as producer:
            admin.create_channel("used", "c")
            admin.create_channel("used", "d")
            producer.publish_many("used", [b"%d" % number for number in range(5)])
            assert bodies(one, "used", 2) == [b"0", b"1"]
            admin.create_channel("later", "c")
        asleep(one, "used")
        asleep(one, "later")
        assert one.stop() == 0
        assert (tmp_path / "data" / "asleep").exists()

        one.start()
        assert not (tmp_path / "data" / "asleep").exists()
        assert processes(one, "used") == processes(one, "later") == []
        quick = topic_row(one, "used")
        assert (quick["asleep"], quick["head"], quick["health"]) == (True, 5, "OK")
        assert one.stop() == 0

        (tmp_path / "data" / "asleep").unlink()
        one.start()
        assert processes(one, "used"), "without the file it starts"
        asleep(one, "used")
        wait_for(lambda: topic_row(one, "used")["asleep"], 20, "the sleep")
        assert _without_times(topic_row(one, "used")) == _without_times(quick)
        assert one.stop() == 0

        one.start()
        with zsq.Producer(one.ipc) as producer:
            assert producer.publish("used", b"5").offset == 5
        # What the first consumer gave back may come later.
        assert sorted(bodies(one, "used", 4)) == [b"2", b"3", b"4", b"5"]
        assert bodies(one, "used", 6, "d") == [b"%d" % number for number in range(6)]
        with zsq.Admin(one.ipc) as admin:
            rows = admin.stats("later")["topics"][0]["channels"]
            assert [row["channel_name"] for row in rows] == ["c"]
            admin.delete_channel("later", "c", force=True)
        asleep(one, "later")
        assert one.stop() == 0

        one.start()
        with zsq.Admin(one.ipc) as admin:
            assert not admin.stats("later")["topics"][0]["channels"]


def test_after_a_kill_all_topics_start(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--sleep-after", "1s") as one:
        filled(one, "kept")
        assert one.process is not None
        pids = [actor["pid"] for actor in one.actors()]
        one.process.kill()
        one.process.wait(20)
        one.wait_gone(pids)
        one.start()
        assert processes(one, "kept") == ["topic kept", "channel kept/c"]
        assert bodies(one, "kept", 3) == [b"0", b"1", b"2"]


def test_the_figures_stay_while_a_topic_wakes(sleepy: Broker) -> None:
    filled(sleepy, "figures", 7)
    with zsq.Admin(sleepy.ipc) as admin, Samples(sleepy, "figures") as samples:
        wait_for(lambda: samples.count, what="a sample of the sleeping topic")
        admin.peek("figures", "c")
        wait_for(
            lambda: topic_row(sleepy, "figures")["channels"][0]["health"] == "OK",
            what="a channel that has reported",
        )
        seen = samples.count
        wait_for(lambda: samples.count > seen + 2, what="more samples")
    assert samples.found == {(7, 7, 7)}
