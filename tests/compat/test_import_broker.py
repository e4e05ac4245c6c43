"""From nsqd's directory to a consumer's hands, by the command line and a real broker; and back."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.broker import Broker, wait_for
from support.nsqd import expected, fixture, sha

import zsq


def cli(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    ended = subprocess.run([sys.executable, "-m", "zsq", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout, ended.stderr


def consumed(broker: Broker, topic: str, channel: str, count: int) -> list[tuple[str, int, str]]:
    """(sha, attempts, id) of that many messages, and that no other comes."""
    found: list[tuple[str, int, str]] = []
    with zsq.Consumer(broker.ipc, topic, channel) as consumer:
        while batch := consumer.receive_batch(timeout=10.0 if len(found) < count else 0.3):
            for message in batch.messages():
                found.append((sha(message.body), message.attempts, str(message.headers["nsq_id"])))
            batch.finish(sync=True)
    assert len(found) == count
    return found


@pytest.mark.slow
def test_every_body_of_a_cleanly_stopped_nsqd_reaches_a_consumer(tmp_path: Path) -> None:
    source = fixture("clean", tmp_path)
    out, err = cli("import-nsqd", source, "--data-dir", tmp_path / "data")
    assert "clicks: 1100 messages (archive 500, metrics.v2 600; 0 for all)" in out
    assert not err
    broker = Broker(tmp_path / "data").start()
    try:
        there = expected("clean")
        clicks = there["clicks"]["channels"]
        archive = consumed(broker, "clicks", "archive", 500)
        assert Counter(one[0] for one in archive) == Counter(clicks["archive"]["left"])
        assert {one[0] for one in archive if one[1] > 1} >= set(clicks["archive"]["requeued_once"])
        with zsq.Admin(broker.ipc) as admin:
            stats = {topic["topic_name"]: topic for topic in admin.stats()["topics"]}
            assert stats["frozen"]["paused"]
            assert [one["paused"] for one in stats["clicks"]["channels"] if one["channel_name"] == "metrics.v2"] == [True]
            admin.unpause("clicks", "metrics.v2")
            admin.unpause("frozen")
        assert Counter(one[0] for one in consumed(broker, "clicks", "metrics.v2", 600)) == Counter(clicks["metrics.v2"]["left"])
        assert [one[0] for one in consumed(broker, "frozen", "c", 30)] == there["frozen"]["waiting"]
        assert [one[0] for one in consumed(broker, "waiting", "first", 250)] == there["waiting"]["waiting"]
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("clicks", b"one more")
        assert cli("import-nsqd", source, "--data-dir", tmp_path / "data", code=1)[1].startswith("zsq: E_CLOSING"), "the broker runs"
    finally:
        broker.close()
    assert "was taken over before" in cli("import-nsqd", source, "--data-dir", tmp_path / "data")[0]
    out, err = cli("export-nsqd", tmp_path / "out", "--data-dir", tmp_path / "data")
    assert "clicks:archive: 1 messages" in out
    assert "waiting:first: 0 messages" in out


@pytest.mark.slow
def test_a_killed_nsqd_loses_nothing_here(tmp_path: Path) -> None:
    source = fixture("killed", tmp_path)
    err = cli("import-nsqd", source, "--data-dir", tmp_path / "data")[1]
    assert "never-synced: its metadata is missing" in err
    broker = Broker(tmp_path / "data").start()
    try:
        for name, topic in expected("killed").items():
            assert [one[0] for one in consumed(broker, name, "c", len(topic["waiting"]))] == topic["waiting"]
        wait_for(lambda: broker.actors(), what="the broker")
    finally:
        broker.close()


def test_what_the_command_line_refuses(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "nsqd.dat" in cli("import-nsqd", tmp_path / "empty", "--data-dir", tmp_path / "data", code=2)[1]
    assert "registry.json" in cli("export-nsqd", tmp_path / "out", "--data-dir", tmp_path / "empty", code=2)[1]
