"""Tests of `zsq backup` on a busy broker, and of a broker restored from the backup. They compare
every message.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from support.broker import Broker, kill, wait_for
from support.topic import Topic

import zsq
from zsq.apps.cli import app
from zsq.transport.client.core.asking import ask_admin
from zsq.transport.errors import ZsqError
from zsq.transport.wire.admin_requests import BackUpLogRequest, BackUpStateRequest

MIB = 1 << 20
PLAIN = 40  # messages per block


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "zsq", *map(str, arguments)]


def run(*arguments: object, code: int = 0) -> str:
    """Run a command in this process, because a new interpreter takes a second to start. Return its
    output.
    """
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        ended = app.run([str(argument) for argument in arguments])
    assert ended == code, said.getvalue() + wrong.getvalue()
    return wrong.getvalue() if code else said.getvalue()


class Load:
    """Publishers and consumers that run until they are stopped, and a record of what was
    acknowledged.

    `jobs`: for each message N, a consumer publishes `done N` to `results` and then finishes the
    message. `later`: the messages are delayed by a second or so.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.over = threading.Event()
        self.acknowledged: set[bytes] = set()
        self.delayed: set[bytes] = set()
        self.tried: set[bytes] = set()
        """The messages that a consumer may have finished: `finish` was called, or is
        about to be.
        """
        self.errors: list[Exception] = []
        self.threads = [
            threading.Thread(target=self.guarded, args=(work,))
            for work in (self.publish, self.delay, self.consume)
        ]

    def guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            self.errors.append(error)

    def publish(self) -> None:
        number = 0
        with zsq.Producer(self.broker.ipc) as producer:
            while not self.over.wait(0.01):
                bodies = [b"%d " % (number + i) + bytes(2_000) for i in range(PLAIN)]
                producer.publish_many("jobs", bodies).wait(20)
                self.acknowledged.update(body.split(b" ")[0] for body in bodies)
                number += PLAIN

    def delay(self) -> None:
        number = 0
        with zsq.Producer(self.broker.ipc) as producer:
            while not self.over.wait(0.005):
                producer.publish("later", b"%d" % number, delay=0.5 + number % 7 / 4).wait(20)
                self.delayed.add(b"%d" % number)
                number += 1

    def consume(self) -> None:
        with (
            zsq.Producer(self.broker.ipc) as producer,
            zsq.Consumer("jobs", "c", url=self.broker.ipc, ready=200) as consumer,
        ):
            while not self.over.is_set():
                message = consumer.receive(0.2)
                if message is not None:
                    name = message.body.split(b" ")[0]
                    self.tried.add(name)
                    producer.publish("results", name).wait(20)
                    message.finish()

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.errors, self.errors


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker with small chunks that are removed as soon as they are finished, so that rolls
    and removals happen during a backup.
    """
    options = ("--chunk-bytes", str(MIB), "--keep-bytes", "0", "--own-process", "always")
    with Broker(tmp_path_factory.mktemp("busy") / "data", *options) as broker:
        yield broker


def left_behind(broker: Broker) -> list[Path]:
    return list(broker.data_dir.glob("topics/*/backup*"))


def drained(broker: Broker, topic: str, channel: str) -> set[bytes]:
    """Receive all that a channel has not finished, including delayed messages, until the topic's
    statistics show that it is empty.
    """
    found: set[bytes] = set()
    with (
        zsq.Admin(broker.ipc) as admin,
        zsq.Consumer(topic, channel, url=broker.ipc, ready=2000) as consumer,
    ):
        while True:
            message = consumer.receive(1.0)
            if message is not None:
                found.add(message.body.split(b" ")[0])
                message.finish()
                continue
            [row] = admin.stats(topic)["topics"]
            if not row["delayed_count"] and not any(
                one["depth"] + one["in_flight_count"] for one in row["channels"]
            ):
                return found


def test_a_backup_under_load_has_all_that_was_acknowledged(busy: Broker, tmp_path: Path) -> None:
    with zsq.Admin(busy.ipc) as admin:
        # This topic is the first one. If a backup copied one topic after the other, the log of
        # `results` would be copied before the state of `jobs`.
        admin.create_topic("results", keep_bytes=-1)
        admin.create_channel("jobs", "c")
        admin.create_channel("later", "c")
    with Load(busy) as load:
        wait_for(lambda: len(load.tried) > 300 and len(load.delayed) > 100, what="some work")
        promised, delayed = set(load.acknowledged), set(load.delayed)
        run("backup", busy.data_dir, tmp_path / "b1", "--rate", "20MiB")
        tried = set(load.tried)
        wait_for(lambda: len(load.tried) > len(tried) + 50, what="the broker goes on")
        run("backup", busy.data_dir, tmp_path / "b2", "--since", tmp_path / "b1")
    assert left_behind(busy) == []
    live = Topic(busy, "results").bodies()
    assert "complete (" in run("restore", tmp_path / "b1", "--check")
    assert "complete (" in run("restore", tmp_path / "b2", "--check")
    run("restore", tmp_path / "b1", tmp_path / "restored")
    assert "DAMAGED" not in run("fsck", tmp_path / "restored")
    with Broker(tmp_path / "restored", "--chunk-bytes", str(MIB)) as again:
        results = Topic(again, "results").bodies()
        assert results == live[: len(results)], (
            "a topic's log is a prefix of the one that was copied"
        )
        redelivered = drained(again, "jobs", "c")
        assert promised - redelivered <= tried, "acknowledged, finished by nobody, and not there"
        assert promised - redelivered <= set(results), (
            "finished, and what its consumer published before that is not there"
        )
        assert delayed <= drained(again, "later", "c")
        with zsq.Admin(again.ipc) as admin:
            said = [topic["health"] for topic in admin.stats()["topics"]]
        assert said == ["OK", "OK", "OK"]


def test_a_backup_that_is_killed_leaves_nothing_wrong(busy: Broker, tmp_path: Path) -> None:
    with zsq.Producer(busy.ipc) as producer:
        producer.publish_many("large", [os.urandom(500_000) for _ in range(12)]).wait(20)
    target = tmp_path / "b"
    partial = tmp_path / "b.partial"
    copying = subprocess.Popen(
        command("backup", busy.data_dir, target, "--rate", "1MiB"), stderr=subprocess.PIPE
    )
    try:
        wait_for(
            lambda: partial.exists() and any(partial.glob("data/topics/*/*.chunk")),
            what="the copying",
        )
        second = run("backup", busy.data_dir, tmp_path / "other", code=1)
        assert "another backup" in second
        assert str(copying.pid) in second
        assert left_behind(busy)
    finally:
        copying.send_signal(signal.SIGKILL)
        copying.communicate(timeout=20)
    assert not target.exists()
    assert "unfinished" in run("restore", partial, "--check", code=2)
    wait_for(lambda: not left_behind(busy), what="the storages let go")
    run("backup", busy.data_dir, target)
    assert not partial.exists()
    assert "complete (" in run("restore", target, "--check")
    assert "already exists" in run("backup", busy.data_dir, target, code=2)


def test_a_backup_fails_whole_where_a_storage_is_started_again(
    busy: Broker, tmp_path: Path
) -> None:
    copying = subprocess.Popen(
        command("backup", busy.data_dir, tmp_path / "b", "--rate", "4MiB"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(
            lambda: any((tmp_path / "b.partial").glob("data/topics/*/*.chunk")), what="the copying"
        )
        [pid] = [actor["pid"] for actor in busy.actors() if actor["name"] == "topic large"]
        kill(pid)
        wait_for(lambda: pid not in busy.pids("topic"), what="its end")
        _, said = copying.communicate(timeout=60)
    finally:
        copying.kill()
    assert copying.returncode == 1
    assert "'large'" in said
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: not left_behind(busy), what="the storages let go")


def test_a_backup_leaves_out_deleted_ephemeral_and_excluded_topics(
    busy: Broker, tmp_path: Path
) -> None:
    """A topic that was deleted, a topic in memory, and a topic that is excluded by name are not in
    the backup.
    """
    with zsq.Admin(busy.ipc) as admin, zsq.Producer(busy.ipc) as producer:
        for topic in ("short", "memory#ephemeral", "kept", "unwanted"):
            producer.publish(topic, b"x").wait(20)
        admin.delete_topic("short", force=True)
        told = json.loads(
            run("backup", busy.data_dir, tmp_path / "b", "--without", "unwanted", "--json")
        )
        assert {"kept"} == {"short", "memory#ephemeral", "kept", "unwanted"} & set(told["topics"])
        assert told["left_out"] == ["unwanted"]
        assert told["topics"]["kept"]["end"] == 1
        with pytest.raises(ZsqError, match="in memory"):
            admin._carry_out(ask_admin(BackUpStateRequest("memory#ephemeral", id="x")))
        with pytest.raises(ZsqError, match="does not know this backup"):
            admin._carry_out(ask_admin(BackUpLogRequest("kept", id="x")))
    run("restore", tmp_path / "b", tmp_path / "data")
    assert "is not empty" in run("restore", tmp_path / "b", tmp_path / "data", code=2)
    assert "does not exist" in run(
        "backup", busy.data_dir, tmp_path / "c", "--without", "nothing", code=1
    )


def test_a_stopped_broker_is_copied_as_it_lies(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("a", b"one").wait(20)
            producer.publish("a", b"two", delay=3600).wait(20)
        broker.stop()
        run("backup", broker.data_dir, tmp_path / "b")
        (tmp_path / "empty").mkdir()
        told = run("restore", tmp_path / "b", tmp_path / "empty")
        assert "Readers that store offsets" in told
    with Broker(tmp_path / "empty") as again:
        assert Topic(again, "a").bodies() == [b"one"]
        with zsq.Admin(again.ipc) as admin:
            assert admin.stats("a")["topics"][0]["delayed_count"] == 1


def test_a_backup_without_room_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    """A bound on the size of a file stands for a disk that takes only a part of a write."""
    with Broker(tmp_path / "data") as broker:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many("t", [bytes(50_000)] * 10)
        target = tmp_path / "backup"
        ended = subprocess.run(
            [
                "sh",
                "-c",
                'ulimit -f 200; exec "$@"',
                "sh",
                *command("backup", broker.data_dir, target),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("zsq: ENOSPC no space left: only ")
    assert f" bytes were written: {tmp_path}/" in ended.stderr
    assert not target.exists()
