"""Tests of the sync mode `bucket` and of `--bucket-lag` on a real broker: publishes are answered
when the bucket has them, both may be changed while the broker runs, and a bucket that is away is
reported.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import zsq_command
from support.broker import Broker, kill, wait_for

import zsq
from zsq.transport.errors import E_BUCKET, BrokerUnreachable, Refused, UsageError

TOPIC = "clicks"


class Shipped:
    """A broker with a folder as bucket, and a configuration file."""

    def __init__(self, folder: Path, *extra: str, lag: str = "1s") -> None:
        self.bucket, self._away = folder / "bucket", folder / "away"
        self.bucket.mkdir()
        self.file = folder / "zsq.toml"
        self.file.write_text(f'bucket-lag = "{lag}"')
        self.broker = Broker(
            folder / "data", "--bucket", f"file://{self.bucket}", "--config", str(self.file),
            "--bucket-cost", "0.005,0.0004", "--own-process", "always", *extra, http=True,
        ).start()  # fmt: skip

    def log(self) -> str:
        return self.broker.log.read_text()

    def reload(self, lag: str, until: str) -> None:
        assert self.broker.process is not None
        self.file.write_text(f'bucket-lag = "{lag}"')
        begin = len(self.log())
        self.broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: until in self.log()[begin:], what=until)

    def take_away(self) -> None:
        self.bucket.rename(self._away)

    def bring_back(self) -> None:
        self._away.rename(self.bucket)

    def run(self, *arguments: str) -> tuple[int, str]:
        done = zsq_command.run_text("--url", self.broker.ipc, *arguments)
        return done.returncode, done.stdout + done.stderr

    def topic(self, name: str = TOPIC) -> dict[str, Any]:
        with zsq.Admin(self.broker.ipc) as admin:
            return dict(admin.stats(name)["topics"][0])

    def ping(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.broker.http}/ping", timeout=30).text


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Shipped]:
    one = Shipped(tmp_path)
    try:
        yield one
    finally:
        one.broker.close()


def kill_all(broker: Broker) -> None:
    """Kill the supervisor. All other processes end with it."""
    pids = [row["pid"] for row in broker.actors()]
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone(pids)


def until(condition: Callable[[], object], what: str) -> None:
    wait_for(condition, 40, what)


def test_a_topic_answers_when_the_bucket_has_its_messages(shipped: Shipped) -> None:
    code, said = shipped.run("topic", "create", "--sync", "bucket", TOPIC)
    assert (code, said) == (0, "")
    with zsq.Producer(shipped.broker.ipc) as producer, zsq.Admin(shipped.broker.ipc) as admin:
        for number in range(20):
            producer.publish(TOPIC, b"%d" % number)
        row = admin.stats(TOPIC)["topics"][0]
        assert (row["sync"], row["shipping"], row["shipped_end"]) == ("bucket", "open", 20)
        producer.publish(TOPIC, b"later", delay=3600)
    assert list((shipped.bucket / "log").iterdir())
    until(lambda: "lag -" in shipped.run("stats")[1], "a bucket without a lag")
    said = shipped.run("stats")[1]
    assert "shipping open, lag -, cost 0." in said
    assert "bucket lag" in said
    said = shipped.run("topic", "show", TOPIC)[1]
    assert "shipping   open: the bucket has all below offset 20; lag" in said
    metrics = httpx.get(f"http://127.0.0.1:{shipped.broker.http}/metrics", timeout=30).text
    assert f'zsq_topic_shipped_end{{topic="{TOPIC}"}} 20.0' in metrics
    assert "zsq_bucket_cost_total 0." in metrics
    bucket = httpx.get(f"http://127.0.0.1:{shipped.broker.http}/api/processes", timeout=30).json()
    assert bucket["bucket"]["shipping"] == "open"


def test_the_modes_always_and_bucket_replace_each_other_for_good(shipped: Shipped) -> None:
    with zsq.Admin(shipped.broker.ipc) as admin, zsq.Producer(shipped.broker.ipc) as producer:
        admin.create_topic(TOPIC)
        code, said = shipped.run("topic", "set", TOPIC, "--sync", "bucket", "--json")
        assert code == 0, said
        assert json.loads(said)["sync"] == "bucket"
        producer.publish(TOPIC, b"1")
        assert shipped.topic()["shipped_end"] == 1
        code, said = shipped.run("topic", "set", TOPIC, "--archive", "off")
        assert code != 0
        assert "cannot have both sync bucket and archive off" in said
        (entry, *_) = admin.audit(count=1)
        assert entry["action"] == "configure"
        code, said = shipped.run("topic", "set", TOPIC, "--sync", "never")
        assert code != 0
        assert "has sync bucket, which cannot become never at a broker that ships" in said
        admin.create_topic("loose", sync="interval")
        assert admin.configure_topic("loose", sync="bucket")["sync"] == "bucket"
        producer.publish("loose", b"1")
        assert shipped.topic("loose")["shipped_end"] == 1
        with pytest.raises(UsageError, match="kept in memory"):
            admin.create_topic("m#ephemeral", sync="bucket")
    assert shipped.broker.stop() == 0
    shipped.broker.start()
    assert shipped.topic()["sync"] == "bucket"
    with zsq.Admin(shipped.broker.ipc) as admin:
        assert admin.configure_topic(TOPIC, sync="always", keep_chunks=3)["sync"] == "always"
        row = admin.stats(TOPIC)["topics"][0]
        assert (row["sync"], row["settings"]["keep_chunks"]) == ("always", 3)


def test_waiting_publishes_are_answered_when_the_mode_becomes_always(shipped: Shipped) -> None:
    """The bound is an hour, so nothing else answers them while the bucket is away."""
    shipped.reload("1h", "--bucket-lag changed")
    with zsq.Admin(shipped.broker.ipc) as admin, zsq.Producer(shipped.broker.ipc) as producer:
        admin.create_topic(TOPIC, sync="bucket")
        producer.publish(TOPIC, b"before")
        shipped.take_away()
        receipts = [
            producer.publish_many(TOPIC, [b"waits"], wait=False),
            producer.publish_many(TOPIC, [b"too"], delay=3600, wait=False),
        ]
        until(lambda: shipped.topic()["head"] == 2, "a synced message")
        with pytest.raises(BrokerUnreachable, match=r"did not confirm within 0\.5 s") as caught:
            receipts[0].wait(0.5)
        assert "`zsq stats` shows its health" in str(caught.value)
        assert not any(receipt.done for receipt in receipts)
        admin.configure_topic(TOPIC, sync="always")
        for receipt in receipts:
            receipt.wait(40)
        producer.publish(TOPIC, b"after")
        shipped.bring_back()
        shipped.reload("1s", "--bucket-lag changed")
        until(lambda: shipped.topic()["shipped_end"] == 3, "the rest in the bucket")


def test_a_bucket_that_is_away_is_reported_everywhere_and_refuses_publishes(
    shipped: Shipped,
) -> None:
    with zsq.Admin(shipped.broker.ipc) as admin, zsq.Producer(shipped.broker.ipc) as producer:
        admin.create_topic(TOPIC)
        producer.publish(TOPIC, b"before")
        until(lambda: shipped.topic()["shipped_end"] == 1, "the first message in the bucket")
        shipped.take_away()
        producer.publish(TOPIC, b"last")
        with pytest.raises(Refused) as refused:
            until(lambda: producer.publish(TOPIC, b"more") is None, "a refusal")
        assert refused.value.code == E_BUCKET
        assert "--bucket-lag is 1 s" in str(refused.value)
        until(lambda: "does not have is" in shipped.topic()["health"], "the topic's health")
        until(lambda: "does not have is" in shipped.ping(), "/ping")
        until(lambda: "the bucket cannot be used" in admin.stats()["health"], "the health")
        until(lambda: admin.stats()["recent_alarms"], "the alarm")
        shipped.reload("1h", "--bucket-lag changed")
        until(lambda: shipped.ping() == "OK" or "topic" not in shipped.ping(), "the bound")
        producer.publish(TOPIC, b"more")
        begun = time.monotonic()
        assert shipped.broker.stop() == 0
        assert time.monotonic() - begun < 10
    shipped.bring_back()
    shipped.broker.start()
    until(lambda: shipped.topic()["shipping"] == "open", "shipping after the start")
    until(lambda: shipped.ping() == "OK", "the health")


def test_a_stop_ships_what_is_new(tmp_path: Path) -> None:
    """The bound is an hour, so the messages are shipped by the stop."""
    one = Shipped(tmp_path, lag="1h")
    try:
        with zsq.Producer(one.broker.ipc) as producer:
            producer.publish(TOPIC, b"1")
            until(lambda: one.topic()["shipping"] == "open", "shipping")
            producer.publish(TOPIC, b"only the stop ships this")
        assert one.broker.stop() == 0
        ticks = [path.read_bytes() for path in (one.bucket / "log").iterdir()]
        assert any(b"only the stop ships this" in tick for tick in ticks)
    finally:
        one.broker.close()


@pytest.mark.parametrize("lag", ["", "none"])
def test_a_broker_that_does_not_ship_refuses_the_mode(tmp_path: Path, lag: str) -> None:
    (tmp_path / "bucket").mkdir()
    extra = ("--bucket", f"file://{tmp_path}/bucket", "--bucket-lag", lag) if lag else ()
    with Broker(tmp_path / "data", *extra) as broker, zsq.Admin(broker.ipc) as admin:
        admin.create_topic(TOPIC)
        missing = "--bucket-lag none" if lag else "no --bucket"
        with pytest.raises(UsageError, match=f"this broker runs with {missing}"):
            admin.create_topic("other", sync="bucket")
        with pytest.raises(UsageError, match=f"this broker runs with {missing}"):
            admin.configure_topic(TOPIC, sync="bucket")
        assert admin.stats(TOPIC)["topics"][0]["shipping"] == "off"
    done = zsq_command.run_text("serve", "--data-dir", str(tmp_path / "d"), "--sync", "bucket")
    assert done.returncode != 0
    assert "--sync bucket answers publishes when the bucket has them" in done.stderr


def test_a_topic_that_answers_from_the_bucket_says_why_it_refuses_without_one(
    shipped: Shipped,
) -> None:
    with zsq.Admin(shipped.broker.ipc) as admin, zsq.Producer(shipped.broker.ipc) as producer:
        admin.create_topic(TOPIC, sync="bucket")
        producer.publish(TOPIC, b"1")
    assert shipped.broker.stop() == 0
    shipped.file.write_text('bucket-lag = "none"')
    shipped.broker.start()
    with zsq.Admin(shipped.broker.ipc) as admin, zsq.Producer(shipped.broker.ipc) as producer:
        with pytest.raises(Refused, match="set the topic's sync mode to always"):
            producer.publish(TOPIC, b"2")
        until(lambda: "sync bucket" in shipped.topic()["health"], "the health")
        assert "sync bucket" in shipped.ping()
        shipped.reload("1s", "--bucket-lag (to turn shipping on or off) keeps its old value")
        admin.configure_topic(TOPIC, sync="always")
        producer.publish(TOPIC, b"2")
        until(lambda: shipped.topic()["health"] == "OK", "the health")


def test_readers_see_no_shorter_topic_while_a_killed_broker_starts_again(tmp_path: Path) -> None:
    """After a start, the broker does not know at once what the bucket has. If a reader saw less
    than before, Spark would take it for a loss.
    """
    one = Shipped(tmp_path, "--sync", "bucket")
    try:
        with zsq.Producer(one.broker.ipc) as producer:
            producer.publish_many(TOPIC, [b"%d" % number for number in range(100)])
        kill_all(one.broker)
        one.broker.start()
        with zsq.Reader(TOPIC, url=one.broker.ipc, timeout=30) as reader:
            assert reader.read(0, 1 << 20).head == 100
    finally:
        one.broker.close()


def test_readers_wait_until_a_restarted_topic_knows_what_the_bucket_has(shipped: Shipped) -> None:
    broker = shipped.broker
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic(TOPIC, sync="bucket")
        producer.publish_many(TOPIC, [b"%d" % number for number in range(100)])
    (archive,), (topic,) = broker.pids("archive"), broker.pids("topic")
    os.kill(archive, signal.SIGSTOP)
    try:
        kill(topic)
        wait_for(lambda: topic not in broker.pids("topic") and broker.pids("topic"), 30)
        with (
            ThreadPoolExecutor(1) as pool,
            zsq.Reader(TOPIC, url=broker.ipc, timeout=60) as reader,
        ):
            page = pool.submit(reader.read, 0, 1 << 20)
            # A topic that did not wait would answer in this time, with fewer messages.
            wait([page], 3)
            os.kill(archive, signal.SIGCONT)
            assert page.result(60).head == 100
    finally:
        os.kill(archive, signal.SIGCONT)


def test_nothing_acknowledged_is_lost_with_the_disk(tmp_path: Path) -> None:
    one = Shipped(tmp_path, "--sync", "bucket")
    again: Broker | None = None
    try:
        with zsq.Producer(one.broker.ipc) as producer:
            for number in range(20):
                producer.publish(TOPIC, b"%d" % number)
        kill_all(one.broker)
        shutil.rmtree(one.broker.data_dir)
        restored = tmp_path / "restored"
        done = zsq_command.run_text("restore", f"file://{one.bucket}", str(restored))
        assert done.returncode == 0, done.stdout + done.stderr
        again = Broker(restored, "--bucket", f"file://{one.bucket}").start()
        with zsq.Producer(again.ipc) as producer:
            offset = producer.publish(TOPIC, b"after").offset
        with zsq.Reader(TOPIC, url=again.ipc, timeout=30) as reader:
            bodies = [
                bytes(body or b"")
                for block in reader.read(0, 1 << 20).blocks
                for body in block.body.values()
            ]
        assert bodies[:20] == [b"%d" % number for number in range(20)]
        assert offset is not None
        assert offset > 20, "offsets that may have been given out are not used again"
    finally:
        one.broker.close()
        if again is not None:
            again.close()


def test_a_block_that_is_sent_again_is_answered_when_the_bucket_has_it(tmp_path: Path) -> None:
    """After a restart the topic knows the block, because it is on the disk."""
    one = Shipped(tmp_path, lag="1h")
    try:
        with (
            zsq.Admin(one.broker.ipc) as admin,
            zsq.Producer(one.broker.ipc, timeout=60) as producer,
        ):
            admin.create_topic(TOPIC, sync="bucket")
            producer.publish(TOPIC, b"one")
            one.take_away()
            receipt = producer.publish_many(TOPIC, [b"two"], wait=False)
            (first,) = one.broker.pids("topic")
            until(lambda: one.topic()["head"] == 2, "the block on the disk")
            kill(first)
            until(lambda: one.broker.pids("topic") not in ([], [first]), "the next process")
            until(lambda: one.topic()["head"] == 2, "its start")
            assert not receipt.done
            one.bring_back()
            assert receipt.wait(60) == 1
        assert one.topic()["shipped_end"] == 2
    finally:
        one.broker.close()
