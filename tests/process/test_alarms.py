"""Tests of backlog alarms on a real broker: they are raised, sent by webhook and command, shown and
cleared. A receiver that hangs does not delay the others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import zsq_command
from support.broker import Broker, kill, wait_for
from support.receivers import Hook

import zsq

Starts = Callable[..., Broker]


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    """Return a function that starts a broker with these options."""
    made: list[Broker] = []

    def start(*options: str) -> Broker:
        made.append(Broker(tmp_path / "data", "--alarm-hold", "1s", *options))
        return made[-1].start()

    yield start
    for broker in made:
        broker.close()


def publish(broker: Broker, topic: str, count: int) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(topic, [b"x"] * count)


def drain(broker: Broker, topic: str, channel: str, count: int) -> None:
    with zsq.Consumer(topic, channel, url=broker.ipc) as consumer:
        for _ in range(count):
            message = consumer.receive(20)
            assert message is not None
            message.finish()


def channel_of(broker: Broker, topic: str, channel: str, **settings: Any) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel(topic, channel, **settings)


def stats(broker: Broker, *of: str) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return admin.stats(*of)


def test_webhook_and_command_get_each_alarm_raised_and_cleared(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSQ_ALARM_WEBHOOK_TOKEN", "s3cret")
    out = tmp_path / "told"
    code = (
        "import os, signal, sys; out = open(sys.argv[1], 'a'); out.write(sys.stdin.read());"
        "print('ZSQ_ALARM_WEBHOOK_TOKEN' in os.environ, signal.getsignal(signal.SIGTERM).name, "
        "file=out)"
    )
    with Hook() as hook:
        broker = starts(
            "--alarm-webhook",
            hook.url,
            "--alarm-command",
            f"{sys.executable} -c \"{code}\" '{out}'",
        )
        channel_of(broker, "clicks", "c", alarm_depth=10)
        channel_of(broker, "clicks", "quiet")
        publish(broker, "clicks", 11)
        headers, told = hook.got.get(timeout=30)
        assert headers["Authorization"] == "Bearer s3cret"
        (event,) = told["events"]
        assert (event["event"], event["topic"], event["channel"], event["kind"]) == (
            "raised",
            "clicks",
            "c",
            "depth",
        )
        assert (event["value"], event["threshold"]) == (11, 10)
        assert abs(event["time_ns"] - time.time_ns()) < 60e9
        assert told["text"] == "raised: clicks/c: depth 11 (alarm above 10)"
        assert told["broker"]["data_dir"] == str(broker.data_dir)
        wait_for(
            lambda: out.exists() and out.read_text().count("\n") >= 2, 30, "the command's output"
        )
        first, inherited = out.read_text().splitlines()[:2]
        assert json.loads(first)["events"] == [event]
        assert inherited == "False SIG_DFL", "commands inherit no secret, and can be told to end"

        (row,) = stats(broker)["alarms"]
        assert (row["topic"], row["channel"], row["value"], row["threshold"]) == (
            "clicks",
            "c",
            11,
            10,
        )
        assert not stats(broker, "clicks", "quiet")["alarms"]
        assert "alarm: clicks/c: depth 11 (alarm above 10)" in stats(broker)["topics"][0]["health"]
        assert stats(broker)["health"] == "OK", "the broker itself is well"

        drain(broker, "clicks", "c", 11)
        assert hook.got.get(timeout=30)[1]["events"][0]["event"] == "cleared"
        found = stats(broker)
        assert not found["alarms"]
        assert found["topics"][0]["health"] == "OK"
        assert [event["event"] for event in found["recent_alarms"]] == ["raised", "cleared"]
        wait_for(
            lambda: all(row["sent_count"] == 2 for row in stats(broker)["alarm_receivers"]),
            30,
            "both are told",
        )
        assert "s3cret" not in broker.log.read_text()
        assert "secret-path" not in json.dumps(stats(broker)), "of a webhook only its host is shown"


def test_a_channels_own_threshold_overrides_the_brokers_default(starts: Starts) -> None:
    broker = starts("--alarm-depth", "5")
    channel_of(broker, "t", "default")
    channel_of(broker, "t", "higher", alarm_depth=100)
    channel_of(broker, "t", "never", alarm_depth=-1)
    publish(broker, "t", 6)

    def raised() -> list[str]:
        return sorted(row["channel"] for row in stats(broker)["alarms"])

    wait_for(lambda: raised() == ["default"], 30, "the alarm of the default")
    with zsq.Admin(broker.ipc) as admin:
        admin.configure_channel("t", "higher", alarm_depth=3)
        wait_for(lambda: raised() == ["default", "higher"], 30, "the alarm under the new threshold")
        admin.configure_channel("t", "higher", alarm_depth=None)
        admin.configure_channel("t", "default", alarm_depth=-1)
        wait_for(lambda: raised() == ["higher"], 30, "the alarm that was taken away")
        admin.delete_channel("t", "higher", force=True)
        wait_for(lambda: raised() == [], 30, "the alarm of a channel that is gone")
    texts = [event["text"] for event in stats(broker)["recent_alarms"]]
    assert texts[-1] == "cleared: t/higher: the channel or its threshold was removed"


def test_an_age_alarm_is_raised_and_cleared(starts: Starts) -> None:
    broker = starts()
    channel_of(broker, "t", "c", alarm_age_s=1.5)
    publish(broker, "t", 1)
    wait_for(lambda: [row["kind"] for row in stats(broker)["alarms"]] == ["age_s"], 30, "the alarm")
    (row,) = stats(broker)["alarms"]
    assert 1.5 < row["value"] < 60
    drain(broker, "t", "c", 1)
    wait_for(lambda: not stats(broker)["alarms"], 30, "the end of the alarm")


def test_a_receiver_that_hangs_does_not_delay_one_that_is_tried_again(starts: Starts) -> None:
    with Hook(failures=2) as failing, Hook(hangs=True) as hanging:
        broker = starts("--alarm-webhook", hanging.url, "--alarm-webhook", failing.url)
        channel_of(broker, "t", "c", alarm_depth=0)
        publish(broker, "t", 1)
        assert failing.got.get(timeout=30)[1]["events"][0]["event"] == "raised"
        assert failing.tries == 3
        begun = time.monotonic()
        publish(broker, "t", 1)
        drain(broker, "t", "c", 2)
        assert failing.got.get(timeout=30)[1]["events"][0]["event"] == "cleared"
        assert hanging.tries <= 4
        assert time.monotonic() - begun < 20
        begun = time.monotonic()
        assert broker.stop() == 0, "the one that hangs does not keep the broker from stopping"
        assert time.monotonic() - begun < 15
        said = broker.log.read_text()
        assert "trying again" in said
        assert "Traceback" not in said, "nor does it end by what its own threads stumble over"
        assert "Assertion failed" not in said


def test_a_killed_teller_is_started_again(starts: Starts) -> None:
    with Hook() as hook:
        broker = starts("--alarm-webhook", hook.url)
        channel_of(broker, "t", "c", alarm_depth=0)
        (pid,) = broker.pids("alarm_teller")
        kill(pid)
        wait_for(
            lambda: (now := broker.pids("alarm_teller")) and now != [pid], 30, "another teller"
        )
        wait_for(lambda: stats(broker)["alarm_receivers"], 30, "its first pulse")
        publish(broker, "t", 1)
        assert hook.got.get(timeout=30)[1]["events"][0]["event"] == "raised"


def test_without_a_receiver_alarms_are_only_logged(starts: Starts) -> None:
    broker = starts("--alarm-depth", "0")
    channel_of(broker, "t", "c")
    publish(broker, "t", 1)
    wait_for(lambda: "alarm raised: t/c: depth 1" in broker.log.read_text(), 30, "the log's line")
    assert broker.pids("alarm_teller") == []
    assert not stats(broker)["alarm_receivers"]


def test_a_command_that_hangs_ends_with_the_broker(starts: Starts, tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {noted}.new; mv {noted}.new {noted}; wait"
    broker = starts("--alarm-command", f"sh -c '{script}'")
    channel_of(broker, "t", "c", alarm_depth=0)
    publish(broker, "t", 1)
    wait_for(noted.exists, 30, "the command")
    pids = [int(pid) for pid in noted.read_text().split()]
    assert broker.stop() == 0
    wait_for(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids),
        20,
        "the end of all it started",
    )


def fill(broker: Broker, topic: str) -> None:
    with zsq.Producer(broker.ipc) as producer:
        for _ in range(100):
            producer.publish(topic, b"x" * 1_000_000)


def rows(broker: Broker) -> list[tuple[str, str, str]]:
    return [(row["topic"], row["channel"], row["kind"]) for row in stats(broker)["alarms"]]


def test_the_sums_of_a_topic_and_of_the_broker_raise_alarms(starts: Starts) -> None:
    """No channel is above its threshold, but all together are."""
    broker = starts("--alarm-depth", "9", "--alarm-topic-depth", "30", "--alarm-total-depth", "40")
    for topic in ("one", "two"):
        for number in range(4):
            channel_of(broker, topic, f"c{number}")
    publish(broker, "one", 8)
    publish(broker, "two", 3)
    wait_for(lambda: rows(broker) == [("", "", "depth"), ("one", "", "depth")], 30, "two alarms")
    with zsq.Admin(broker.ipc) as admin:
        assert zsq_command.run_text("--url", broker.ipc, "alarms").stdout.count("raised since") == 2
        assert "alarm: one: depth 32 (alarm above 30)" in admin.stats("one")["topics"][0]["health"]
        for number in range(4):
            admin.empty("one", f"c{number}")
    wait_for(lambda: rows(broker) == [], 30, "the end of both")


def test_a_message_that_holds_the_log_is_shown_and_raises_an_alarm(starts: Starts) -> None:
    """One unfinished message keeps all later files, although nothing waits."""
    broker = starts("--alarm-held-bytes", "100KiB", "--keep-bytes", "0")
    channel_of(broker, "t", "slow")
    channel_of(broker, "t", "quick")
    with zsq.Producer(broker.ipc) as producer:
        for _ in range(20):
            producer.publish("t", b"x" * 10_000)
    drain(broker, "t", "quick", 20)
    with zsq.Consumer("t", "slow", url=broker.ipc) as consumer:
        first = consumer.receive(20)
        assert first is not None
        first.requeue(3600)
        for _ in range(19):
            message = consumer.receive(20)
            assert message is not None
            message.finish()
    wait_for(lambda: rows(broker) == [("t", "", "held_bytes")], 30, "the alarm")
    (row,) = stats(broker, "t")["topics"]
    assert (row["held_by"], row["held_offset"], row["depth"]) == ("slow", 0, 0)
    assert row["held_bytes"] > 200_000
    assert row["oldest_message_age_s"] > 0
    shown = zsq_command.run_text("--url", broker.ipc, "topic", "show", "t").stdout
    assert f"held       {row['held_bytes']:,} bytes by channel slow, from offset 0 on" in shown
    with zsq.Admin(broker.ipc) as admin:
        admin.empty("t", "slow")
    wait_for(lambda: rows(broker) == [], 30, "the end of the alarm")
    assert stats(broker, "t")["topics"][0]["held_by"] == ""


def test_alarms_about_the_bucket_and_about_topics_are_in_the_same_list(
    starts: Starts, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    broker = starts("--bucket", f"file://{bucket}", "--bucket-lag", "100ms")
    publish(broker, "t", 1)
    bucket.rename(tmp_path / "away")
    publish(broker, "t", 1)
    wait_for(lambda: ("", "", "bucket") in rows(broker), 60, "the alarm about the bucket")
    (row,) = [row for row in stats(broker)["alarms"] if row["kind"] == "bucket"]
    assert row["text"] in zsq_command.run_text("--url", broker.ipc, "alarms").stdout
    assert stats(broker)["health"].count("the bucket cannot be used") == 1
    (tmp_path / "away").rename(bucket)
    wait_for(lambda: ("", "", "bucket") not in rows(broker), 60, "the end of the alarm")
    with zsq.Admin(broker.ipc) as admin:
        admin.configure_topic("t", max_bytes=8 << 20, when_full="reject")
    with pytest.raises(zsq.Refused, match="E_TOPIC_FULL"):
        fill(broker, "t")
    wait_for(lambda: ("t", "", "health") in rows(broker), 30, "the alarm about a full topic")


def test_a_topic_that_is_damaged_or_restarts_again_and_again_raises_an_alarm(
    starts: Starts, tmp_path: Path
) -> None:
    broker = starts("--own-process", "always")
    channel_of(broker, "damaged", "c")
    channel_of(broker, "restless", "c")
    publish(broker, "damaged", 3)
    broker.stop()
    (directory,) = (tmp_path / "data" / "topics").glob("*01")
    for path in directory.glob("state*"):
        if path.is_dir():
            (path / "data.mdb").write_bytes(b"damage" * 5_000)
        else:
            path.unlink()
    broker.start()
    wait_for(lambda: ("damaged", "", "health") in rows(broker), 30, "the alarm about the damage")
    texts = {row["topic"]: row["text"] for row in stats(broker)["alarms"]}
    assert "all channels are lost" in texts["damaged"]
    with zsq.Admin(broker.ipc) as admin:
        assert admin.overview()["broker"]["alarms"] == 1
        assert admin.overview()["broker"]["health"] == "OK", "what is published is stored"

    def health() -> str:
        return str(stats(broker, "restless")["topics"][0]["health"])

    for _ in range(5):
        wait_for(lambda: health() == "OK", 20, "the topic's next process")
        pids = broker.pids("topic")
        kill(next(pid for pid in pids if process_of(broker, pid) == "topic restless"))
        wait_for(lambda: health() != "OK", 20, "the end of the topic's process")
    wait_for(lambda: "5 times or more within 5 minutes" in health(), 20, "a topic that is unwell")
    wait_for(lambda: ("restless", "", "health") in rows(broker), 20, "the alarm about restarts")


def test_a_user_who_sees_no_alarms_of_the_broker_is_told_so(starts: Starts, tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text('[anonymous]\npublish = ["t"]\n')
    broker = starts("--access", str(access))
    of_owner = zsq_command.run_text("--url", broker.ipc, "alarms")
    assert (of_owner.stdout, of_owner.stderr) == ("no alarm is raised\n", "")
    of_other = zsq_command.run_text("--url", broker.tcp, "alarms")
    assert 'zsq: other alarms need the permission view = ["*"]' in of_other.stderr


def process_of(broker: Broker, pid: int) -> str:
    return str(next(one["name"] for one in broker.actors() if one["pid"] == pid))


def test_receivers_do_not_hear_of_a_silenced_alarm_until_the_silence_ends(
    starts: Starts, tmp_path: Path
) -> None:
    with Hook() as hook:
        broker = starts("--alarm-webhook", hook.url)
        for channel in ("quiet", "loud"):
            channel_of(broker, "t", channel, alarm_depth=1)
        with zsq.Admin(broker.ipc) as admin:
            with pytest.raises(zsq.NotFound, match="no alarm of t/quiet is raised"):
                admin.alarm_ack("t", "quiet")
            assert admin.alarm_ack("t", "quiet", seconds=3600) == {"count": 0}
            for kind in ("depth", "age_s", "held_bytes", "dead_letters", "health", "free_bytes"):
                assert admin.alarm_ack("other", kind=kind, seconds=3600) == {"count": 0}
            later = zsq_command.run_text(
                "alarms", "ack", "later", "--for", "1h", ZSQ_URL=broker.ipc
            )
            assert later.stdout.startswith("no such alarm is raised now; one that is raised within")
            with pytest.raises(zsq.UsageError, match=r"must be one of depth, .*not 'dpeth'"):
                admin.alarm_ack("other", kind="dpeth", seconds=3600)
            publish(broker, "t", 5)
            wait_for(lambda: len(rows(broker)) == 2, 30, "both alarms")
            assert [one["channel"] for one in hook.got.get(timeout=30)[1]["events"]] == ["loud"]
            assert admin.alarm_ack("t", "loud") == {"count": 1}
            (entry,) = [one for one in admin.audit(topic="t") if one["options"].get("seconds")]
            assert (entry["action"], entry["result"]) == ("alarm", "done")
            assert admin.alarm_unack("t", "quiet") == {"count": 1}
            (event,) = hook.got.get(timeout=30)[1]["events"]
            assert (event["event"], event["channel"]) == ("raised", "quiet")
            admin.empty("t", "loud")
            (event,) = hook.got.get(timeout=30)[1]["events"]
            assert (event["event"], event["channel"]) == ("cleared", "loud")
    broker.stop()
    (broker.data_dir / "silences").write_text("[{")
    broker.start()
    wait_for(lambda: rows(broker) == [("t", "quiet", "depth")], 30, "the alarm after a bad file")
