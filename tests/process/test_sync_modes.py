"""Test of a topic whose sync mode is changed while it is used, at a broker that is killed then."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import Broker
from support.topic import Topic

import zsq

pytestmark = pytest.mark.timeout(120)


def test_a_topic_changes_its_sync_mode_while_it_is_used_and_loses_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", "--sync", "never").start()
    stored: list[bytes] = []
    stores, ends = threading.Event(), threading.Event()

    def publish() -> None:
        with zsq.Producer(broker.ipc) as producer:
            for number in count():
                if ends.is_set():
                    return
                producer.publish("t", b"%d" % number)
                stored.append(b"%d" % number)
                stores.set()

    publishing = threading.Thread(target=publish)
    try:
        with zsq.Admin(broker.ipc) as admin, zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            publishing.start()
            assert stores.wait(30), "messages are stored with never"
            for sync in ("always", "interval", "never", "interval", "always"):
                assert admin.configure_topic("t", sync=sync)["sync"] == sync
                for _ in range(50):
                    stores.clear()
                    assert stores.wait(30), f"messages are stored with {sync}"
            received = [message.body for _, message in zip(range(250), consumer, strict=False)]
            assert received == [b"%d" % number for number in range(250)]
            pids = [actor["pid"] for actor in broker.actors()]
            assert broker.process is not None
            ends.set()
            publishing.join(30)
            broker.process.kill()
            broker.wait_gone(pids)
        broker.start()
        assert Topic(broker, "t").bodies() == stored
        with zsq.Admin(broker.ipc) as admin:
            assert admin.stats("t")["topics"][0]["sync"] == "always"
            admin.create_topic("u#ephemeral")
        ended = zsq_command.run("--url", broker.ipc, "topic", "set", "u#ephemeral", "--sync=always")
        assert ended.returncode == 2, ended.stderr
        assert b"is kept in memory, so its sync stays never" in ended.stderr
    finally:
        ends.set()
        publishing.join(30)
        broker.close()
