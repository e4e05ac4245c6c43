"""Tests of `zsq forward` to another broker: all messages, in order, and exactly once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.forwarding import bodies, command, forward, forwarding, stored, wait_a_while
from support.topic_names import topic_name_of

import zsq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("other") / "data", "--max-msg-size", "10000") as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def channel_row(url: str, topic: str, channel: str) -> dict[str, object]:
    with zsq.Admin(url) as admin:
        rows = admin.stats(topic, channel)["topics"][0]["channels"]
    return dict(rows[0])


def publish(url: str, topic: str, first: int, stop: int) -> None:
    with zsq.Producer(url) as producer:
        producer.publish_many(topic, [b"%d" % i for i in range(first, stop)])


def test_everything_of_a_message_arrives_in_order(
    shared: Broker, other: Broker, topic: str
) -> None:
    with zsq.Producer(shared.ipc) as producer:
        for number in range(20):
            producer.publish(
                topic,
                b"body %d\n\0" % number,
                key=b"k%d" % (number % 3),
                tag="eu" if number % 2 else None,
                headers={"n": number, "raw": b"\xff"},
            )
        producer.publish_many(topic, [b"%d" % i for i in range(25_000)])
        producer.publish(topic, b"later", delay=0.3)
    wait_for(lambda: len(bodies(shared.ipc, topic)) == 25_021)
    said = forward(f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
    assert "25,021 messages forwarded" in said

    def facts(url: str) -> list[object]:
        return [(m.body, m.key, m.tag, m.headers) for m in stored(url, topic)]

    assert facts(other.ipc) == facts(shared.ipc)
    row = channel_row(shared.ipc, topic, "mirror")
    assert row["depth"] == 0
    publish(shared.ipc, topic, 0, 3)
    assert "3 messages" in forward(f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
    assert "0 messages" in forward(f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
    assert facts(other.ipc) == facts(shared.ipc)


def test_lifetimes_and_revoke_keys_count_at_the_target(
    shared: Broker, other: Broker, topic: str
) -> None:
    """Ids do not: a mirror stores each message exactly once by itself."""
    with zsq.Producer(shared.ipc) as producer, zsq.Admin(other.ipc) as admin:
        admin.create_channel(topic, "c")
        producer.publish(topic, b"dies", expires_in=0.001)
        producer.publish(topic, b"lives", expires_in=600, dedupe_id="one")
        producer.publish(topic, b"revoked", revoke_key="k")
        rows: list[Any] = [{"zsq-channel": "d", "zsq-revoke-key": "k"}, {"zsq-expires-ms": 1}, None]
        producer.publish_many(topic, [b"addressed", b"dies too", b"plain"], headers=rows)
        forward(f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
        admin.revoke(topic, "k")

        def left() -> list[bytes | None]:
            messages = (one.message for one in admin.peek(topic, "c").messages)
            return [message and message.body for message in messages]

        wait_for(lambda: left() == [b"lives", b"plain"])


def test_a_killed_mirror_stores_nothing_twice(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    """It is killed at times that differ, while messages come."""
    count, ended = 0, threading.Event()

    def feed() -> None:
        nonlocal count
        while not ended.is_set():
            publish(shared.ipc, topic, count, count + 50)
            count += 50
            ended.wait(0.01)

    publish(shared.ipc, topic, 0, 1)
    count = 1
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for run in range(8):
            before = len(bodies(other.ipc, topic))
            line = (f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
            with forwarding(*line, log=tmp_path / "log") as process:
                wait_for(lambda: len(bodies(other.ipc, topic)) > before)  # noqa: B023
                wait_a_while(process, 0.03 * run)  # the moment of the kill
    finally:
        ended.set()
        feeder.join()
    forward(f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(count)]


def test_two_mirrors_of_one_channel_store_nothing_twice(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    publish(shared.ipc, topic, 0, 1000)
    line = (f"{topic}/mirror", f"{other.tcp}/{topic}", shared.ipc)
    with forwarding(*line, log=tmp_path / "a") as a, forwarding(*line, log=tmp_path / "b"):
        for step in range(1, 40):
            publish(shared.ipc, topic, 1000 * step, 1000 * step + 1000)
        wait_for(lambda: len(bodies(other.ipc, topic)) >= 40_000)
        # If one is stopped, the other takes over.
        a.send_signal(signal.SIGKILL)
        publish(shared.ipc, topic, 40_000, 40_010)
        wait_for(lambda: len(bodies(other.ipc, topic)) >= 40_010)
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(40_010)]


def test_a_mirror_that_was_stopped_for_long_stores_nothing_twice(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    """It goes on with what it had read before another mirror took over (uReplicator#282)."""
    line = (f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    publish(shared.ipc, topic, 0, 1)
    count = 1
    with forwarding(*line, log=tmp_path / "a") as stopped:
        for run in range(3):
            wait_for(lambda: len(bodies(other.ipc, topic)) == count)  # noqa: B023
            publish(shared.ipc, topic, count, count + 2000)
            wait_a_while(stopped, 0.01 * run)
            stopped.send_signal(signal.SIGSTOP)
            publish(shared.ipc, topic, count + 2000, count + 4000)
            count += 4000
            forward(*line)
            assert len(bodies(other.ipc, topic)) == count
            stopped.send_signal(signal.SIGCONT)
            publish(shared.ipc, topic, count, count + 10)
            count += 10
        wait_for(lambda: len(bodies(other.ipc, topic)) >= count)
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(count)]


def test_a_target_that_is_away_is_waited_for(shared: Broker, tmp_path: Path, topic: str) -> None:
    log = tmp_path / "log"
    with Broker(tmp_path / "away") as away:
        publish(shared.ipc, topic, 0, 10)
        with forwarding(f"{topic}/m", f"{away.tcp}/{topic}", shared.ipc, log=log) as process:
            wait_for(lambda: len(bodies(away.ipc, topic)) == 10)
            away.stop()
            publish(shared.ipc, topic, 10, 20)
            wait_for(lambda: b"waiting: " in log.read_bytes())
            away.start()
            wait_for(lambda: len(bodies(away.ipc, topic)) == 20, 60)
            process.terminate()
            assert process.wait(30) == 0
        assert bodies(away.ipc, topic) == [b"%d" % i for i in range(20)]
    assert b"going on" in log.read_bytes()
    assert b"20 messages forwarded" in log.read_bytes()


def test_a_target_that_never_was_there_has_an_exit_code(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    to = "tcp://127.0.0.1:1/t"
    said = forward(f"{topic}/m", to, shared.ipc, "--timeout", "1", code=3)
    assert "127.0.0.1:1" in said


def test_a_message_that_the_target_refuses_becomes_a_dead_letter(
    shared: Broker, other: Broker, topic: str
) -> None:
    sizes = [10, 20_000, 10, 10, 20_000, 10]
    with zsq.Producer(shared.ipc) as producer:
        producer.publish_many(topic, [b"%d" % i * size for i, size in enumerate(sizes)])
    said = forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc, "--max-attempts", "1")
    assert "4 messages forwarded, 2 dead letters" in said
    assert [body[:1] for body in bodies(other.ipc, topic)] == [b"0", b"2", b"3", b"5"]
    dead = stored(shared.ipc, f"{topic}.m.dead")
    assert [message.body[:1] for message in dead] == [b"1", b"4"]
    assert "is over the limit of 10000 bytes" in str(dead[0].headers["zsq-dead-error"])
    assert channel_row(shared.ipc, topic, "m")["depth"] == 0


def test_a_refused_message_that_is_too_old_for_the_channel_is_reported(
    shared: Broker, other: Broker, topic: str
) -> None:
    """The channel skips it for its age, so it cannot be made a dead letter. Message 3 says itself
    when it expires.
    """
    with zsq.Producer(shared.ipc) as producer:
        producer.publish_many(topic, [b"0", b"1" * 20_000, b"2"])
        producer.publish(topic, b"3" * 20_000, expires_in=0.5)
    published_s = time.monotonic()
    wait_for(lambda: time.monotonic() - published_s > 1.1)
    options = ("--max-age", "1s")
    said = forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc, *options, code=4)
    for offset in (1, 3):
        text = f"message {offset} was left out: message of 20000 bytes is over the limit"
        assert text in said
    assert said.count("The channel skips it: it has expired, or was cancelled") == 2
    assert bodies(other.ipc, topic) == [b"0", b"2"]


def test_a_channel_with_priorities_is_refused(shared: Broker, other: Broker, topic: str) -> None:
    """Its next message is not that of the mirror, which would wait for ever to reject one."""
    publish(shared.ipc, topic, 0, 1)
    target = f"{other.tcp}/{topic}"
    said = forward(f"{topic}/m", target, shared.ipc, "--priorities", "3", code=2)
    assert "--priorities has no meaning for this target" in said
    with zsq.Admin(shared.ipc) as admin:
        admin.create_channel(topic, "m", priorities=3)
    said = forward(f"{topic}/m", target, shared.ipc, code=2)
    assert "has priorities" in said


def test_tags_and_addresses_choose_messages(shared: Broker, other: Broker, topic: str) -> None:
    with zsq.Producer(shared.ipc) as producer, zsq.Admin(shared.ipc) as admin:
        admin.create_topic(topic)
        admin.create_channel(topic, "m", tags="eu||us")
        admin.create_channel(topic, "x")
        producer.publish_many(topic, [b"0", b"1", b"2", b"3"], tags=["eu", "asia", None, "us"])
        producer.publish(topic, b"4", tag="eu", headers={"zsq-channel": "x"})
        producer.publish(topic, b"5", tag="eu", headers={"a": 1, "zsq-channel": "m"})
    forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    assert bodies(other.ipc, topic) == [b"0", b"3", b"5"]
    assert stored(other.ipc, topic)[-1].headers == {"a": 1}
    assert stored(other.ipc, topic)[-1].only_channel is None


def test_a_paused_channel_is_not_forwarded(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    publish(shared.ipc, topic, 0, 5)
    with zsq.Admin(shared.ipc) as admin:
        admin.create_channel(topic, "m")
        admin.pause(topic, "m")
        forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
        assert bodies(other.ipc, topic) == []
        admin.unpause(topic, "m")
    forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    assert len(bodies(other.ipc, topic)) == 5


def test_wrong_targets_and_options_are_refused(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    source = f"{topic}/m"
    for to, text in [
        ("ftp://h/x", "is no target"),
        ("tcp://127.0.0.1:4153", "is no target"),
        ("file:", "names no directory"),
        ("https://user:pass@host/", "must have no password"),
        ("https:///x", "is no http"),
    ]:
        assert text in forward(source, to, shared.ipc, code=2)
    to = f"{shared.tcp}/x"
    assert "--gzip has no meaning" in forward(source, to, shared.ipc, "--gzip", code=2)
    assert "must name a topic and a channel" in forward(topic, to, shared.ipc, code=2)
    assert "does not exist" in forward(f"{topic}x/m", to, shared.ipc, code=1)
    said = forward(source, "http://h/", shared.ipc, "--format", "array", code=2)
    assert "needs --batch" in said


def test_sigterm_ends_with_exit_code_0(shared: Broker, other: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 5)
    line = command(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    with subprocess.Popen(line, stderr=subprocess.PIPE) as process:
        wait_for(lambda: len(bodies(other.ipc, topic)) == 5)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert b"5 messages forwarded" in said
    assert channel_row(shared.ipc, topic, "m")["depth"] == 0


def test_a_full_target_keeps_the_messages_in_the_source(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    """A shovel of LavinMQ emptied its source into a full queue (lavinmq#1357)."""
    with zsq.Admin(other.ipc) as admin:
        admin.create_topic(topic, max_bytes=8 << 20, when_full="reject")
        admin.create_channel(topic, "reader")
    with zsq.Producer(shared.ipc) as producer:
        for number in range(20):
            producer.publish_many(topic, [b"%d %s" % (number, b"." * 9000)] * 100)
    log = tmp_path / "log"
    with forwarding(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc, log=log) as process:
        wait_for(lambda: b"waiting: " in log.read_bytes())
        assert len(bodies(other.ipc, topic)) < 2000
        assert int(str(channel_row(shared.ipc, topic, "m")["depth"])) > 0
        with zsq.Admin(other.ipc) as admin:
            admin.configure_topic(topic, max_bytes=None)
        wait_for(lambda: len(bodies(other.ipc, topic)) == 2000, 60)
        process.terminate()
        assert process.wait(30) == 0
    numbers = [int(body.split()[0]) for body in bodies(other.ipc, topic)]
    assert numbers == [number for number in range(20) for _ in range(100)]


def test_a_run_that_ends_by_itself_does_not_end_while_the_target_is_away(
    shared: Broker, topic: str, tmp_path: Path
) -> None:
    """A shovel deleted itself before all messages were sent (rabbitmq-server#14636)."""
    publish(shared.ipc, topic, 0, 5)
    log = tmp_path / "log"
    with Broker(tmp_path / "away") as away:
        line = (f"{topic}/m", f"{away.tcp}/{topic}", shared.ipc, "--idle", "2s")
        with forwarding(*line, log=log) as process:
            wait_for(lambda: len(bodies(away.ipc, topic)) == 5)
            away.stop()
            publish(shared.ipc, topic, 5, 10)
            wait_for(lambda: b"waiting: " in log.read_bytes())
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(4)
            away.start()
            assert process.wait(60) == 0
        assert len(bodies(away.ipc, topic)) == 10


def test_messages_that_were_removed_before_are_reported(
    tmp_path: Path, other: Broker, topic: str
) -> None:
    """MirrorMaker passes over removed messages in silence (kafka#22248)."""
    with Broker(tmp_path / "small", "--chunk-bytes", "1MiB", "--keep-bytes", "0") as broker:
        url = broker.ipc
        publish(url, topic, 0, 10)
        forward(f"{topic}/m", f"{other.tcp}/{topic}", url)
        with zsq.Admin(url) as admin:
            admin.delete_channel(topic, "m", force=True)
            admin.create_channel(topic, "other")
            with zsq.Producer(url) as producer:
                for _ in range(40):
                    producer.publish_many(topic, [b"." * 9000] * 10)
            admin.empty(topic, "other")
            wait_for(lambda: oldest(url, topic) > 10)
        first = oldest(url, topic)
        said = forward(f"{topic}/m", f"{other.tcp}/{topic}", url, code=4)
    assert f"offsets 10 to {first - 1} of topic" in said
    assert f"{first - 10:,} messages could not be read and were left out" in said
    assert len(bodies(other.ipc, topic)) == 10 + 410 - first


def oldest(url: str, topic: str) -> int:
    with zsq.Reader(topic, url=url) as reader:
        return reader.bounds()[0]


def test_a_topic_that_was_created_again_is_another_source(
    shared: Broker, other: Broker, topic: str, tmp_path: Path
) -> None:
    """MirrorMaker went on at the old offset of a topic that was made anew (kafka#22248)."""
    publish(shared.ipc, topic, 0, 10)
    forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    with zsq.Admin(shared.ipc) as admin:
        admin.delete_topic(topic, force=True)
    publish(shared.ipc, topic, 10, 15)
    forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc)
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(15)]
    with Broker(tmp_path / "new") as new:  # its offsets begin at 0
        publish(new.ipc, topic, 15, 20)
        forward(f"{topic}/m", f"{other.tcp}/{topic}", new.ipc)
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(20)]


def test_a_source_that_lost_what_the_target_has_is_refused(
    other: Broker, topic: str, tmp_path: Path
) -> None:
    data, saved = tmp_path / "data", tmp_path / "saved"
    with Broker(data) as broker:
        publish(broker.ipc, topic, 0, 5)
        forward(f"{topic}/m", f"{other.tcp}/{topic}", broker.ipc)
        assert broker.stop() == 0
        shutil.copytree(data, saved, ignore=shutil.ignore_patterns("run"))
        broker.start()
        publish(broker.ipc, topic, 5, 10)
        forward(f"{topic}/m", f"{other.tcp}/{topic}", broker.ipc)
        assert broker.stop() == 0
        shutil.rmtree(data)
        saved.rename(data)
        broker.start()
        publish(broker.ipc, topic, 20, 23)
        said = forward(f"{topic}/m", f"{other.tcp}/{topic}", broker.ipc, code=2)
        assert "up to offset 10" in said
        assert "ends at 8" in said
        line = (f"{topic}/new", f"{other.tcp}/{topic}-new", broker.ipc)
        forward(*line, "--start", "earliest")
    assert bodies(other.ipc, topic) == [b"%d" % i for i in range(10)]
    assert bodies(other.ipc, f"{topic}-new") == [b"%d" % i for i in (*range(5), 20, 21, 22)]


def test_a_mirror_of_a_topic_to_itself_is_refused(shared: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    said = forward(f"{topic}/m", f"{shared.tcp}/{topic}", shared.ipc, code=2)
    assert "would never end" in said
    assert len(bodies(shared.ipc, topic)) == 1


def test_a_channel_with_consumers_is_refused(shared: Broker, other: Broker, topic: str) -> None:
    publish(shared.ipc, topic, 0, 1)
    with zsq.Consumer(topic, "m", url=shared.ipc):
        said = forward(f"{topic}/m", f"{other.tcp}/{topic}", shared.ipc, code=1)
    assert "give it a channel of its own" in said
