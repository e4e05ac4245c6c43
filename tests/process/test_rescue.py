"""Test of a former primary whose last messages were acknowledged and not shipped: they are set
aside, and published to the new primary once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.broker import Broker, wait_for
from support.zsq_command import run_text

import zsq
from zsq.actors.bucket.standby.rescue import set_aside_broker
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.files import Files

TOPIC = "clicks"


def bodies(broker: Broker) -> list[bytes]:
    found: list[bytes] = []
    with zsq.Reader(TOPIC, url=broker.ipc) as reader:
        offset, end = reader.bounds()
        while offset < end:
            fetched = reader.read(offset, 1 << 20)
            found += [bytes(one or b"") for block in fetched.blocks for one in block.body.values()]
            offset = fetched.next_offset
    return found


def shipped_end(broker: Broker) -> int:
    with zsq.Admin(broker.ipc) as admin:
        return int(admin.stats(TOPIC)["topics"][0]["shipped_end"])


def kill_all(broker: Broker) -> None:
    pids = [row["pid"] for row in broker.actors()]
    assert broker.process is not None
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    broker.process.wait(20)
    broker.wait_gone(pids)


def test_acknowledged_messages_that_were_not_shipped_are_published_once(tmp_path: Path) -> None:
    folder = tmp_path / "bucket"
    folder.mkdir()
    url = f"file://{folder}"
    bucket = FolderBucket(Files(), parse_bucket_url(url))
    # All that follows the stop must happen within the bound.
    first = Broker(tmp_path / "first", "--bucket", url, "--bucket-lag", "20s")
    second = Broker(tmp_path / "second", "--bucket", url)
    before = [b"before %d" % number for number in range(20)]
    after = [b"after %d" % number for number in range(10)]
    try:
        first.start()
        with zsq.Admin(first.ipc) as admin, zsq.Producer(first.ipc) as producer:
            admin.create_topic("local", archive="off")
            producer.publish("local", b"only here")
            producer.publish_many(TOPIC, before)
            wait_for(lambda: shipped_end(first) == len(before), 60, "all shipped")
            assert set_aside_broker(Files(), bucket, str(first.data_dir)).takeover is None
            (pid,) = first.pids("archive")
            os.kill(pid, signal.SIGSTOP)
            for body in after:
                producer.publish(TOPIC, body, key=b"key")
            producer.publish(TOPIC, b"late", delay=3600)
        kill_all(first)
        done = run_text("restore", url, second.data_dir)
        assert done.returncode == 0, done.stderr
        second.start()
        with zsq.Producer(second.ipc) as producer:
            producer.publish(TOPIC, b"new")
        wait_for(lambda: bodies(second)[-1:] == [b"new"], what="a message of the new primary")

        done = run_text("rescue", first.data_dir, "--bucket", url)
        assert done.returncode == 0, done.stderr
        assert "11 messages that the bucket does not have (clicks 11)" in done.stderr
        found = set_aside_broker(Files(), bucket, str(first.data_dir))
        assert found.takeover is not None
        counts = {topic.name: topic.counts.messages for topic in found.topics}
        assert counts == {TOPIC: len(after) + 1, "local": 0}
        kept = {topic.name: topic.why_kept for topic in found.topics if topic.why_kept}
        assert kept == {"local": "it is kept only on the disk (--archive off)"}
        assert not [problem for topic in found.topics for problem in topic.problems]
        assert found.sentence.startswith(f"set aside in {first.data_dir}/rescue: 11 messages")

        for _ in range(2):
            done = run_text("rescue", first.data_dir, "--publish", "--url", second.ipc)
            assert done.returncode == 0, done.stderr
            assert "topic local is not published" in done.stderr
            assert sorted(bodies(second)) == sorted([*before, b"new", *after])
            assert bodies(second)[-len(after) :] == after
            with zsq.Admin(second.ipc) as admin:
                assert [one["body"] for one in admin.delayed_list(TOPIC, after="", count=10)] == [
                    b"late"
                ]
    finally:
        first.close()
        second.close()
