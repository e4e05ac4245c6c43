"""Tests that the steps of docs/upgrade.md work: each block is carried out at a real broker, a real
pair and a real cluster, while a program publishes. What needs root or a network is replaced:
`systemctl` stops and starts a broker of the test, and `pip` installs nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, wait_for
from support.cluster import running
from support.standby_pair import Pair

import zsq

from .walking import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ONE, STANDBY, HAND_OVER, FORMER, EACH = (block.text for block in blocks(ROOT / "docs/upgrade.md"))
INSTALL: Final = re.compile(r"/opt/zsq/bin/pip install --upgrade 'zsq\[.*\]'")


def follow(text: str, broker: Broker, url: str) -> str:
    """Carry out a block at the machine of `broker`, and return what the last command printed."""
    said = ""
    for line in text.splitlines():
        if line == "systemctl stop zsq":
            assert broker.stop() == 0
        elif line == "systemctl start zsq":
            broker.launch()
            broker.wait_said("follows " if broker.command == "standby" else " ready: ")
        elif not line.startswith("#") and not INSTALL.fullmatch(line):
            said = _run(line.replace("127.0.0.1:4151", f"127.0.0.1:{broker.http}"), broker, url)
    return said


def _run(line: str, broker: Broker, url: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line.replace("backup data ", f"backup {broker.data_dir} ")],
        cwd=broker.data_dir.parent, env={**os.environ, "PATH": path, "ZSQ_URL": url},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def publisher(url: str, topic: str) -> Iterator[Callable[[], int]]:
    """Publish all the time. The function returns how many messages were acknowledged."""
    acknowledged: list[int] = []
    ended = threading.Event()
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            with zsq.Producer(url, timeout=60) as producer:
                while not ended.wait(0.02):
                    producer.publish(topic, b"x").wait()
                    acknowledged.append(1)
        except zsq.ZsqError as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield lambda: len(acknowledged)
    finally:
        ended.set()
        thread.join(90)
    assert not errors


def stored(url: str, topic: str) -> int:
    with zsq.Admin(url, timeout=20) as admin:
        return sum(row["message_count"] for row in admin.stats(topic)["topics"])


def test_one_broker_is_upgraded_while_a_program_publishes(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, publisher(broker.tcp, "clicks") as acknowledged:
        wait_for(lambda: acknowledged() > 5, what="messages")
        assert "clicks" in follow(ONE, broker, broker.tcp)
        assert (tmp_path / "before" / "manifest.json").is_file()
        before = acknowledged()
        wait_for(lambda: acknowledged() > before + 5, what="messages after the upgrade")


def test_a_pair_is_upgraded_without_a_lost_message(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    try:
        pair.begin()
        pair.one.command = "standby"  # the unit file of both machines
        with publisher(pair.urls, "clicks") as acknowledged:
            follow(STANDBY, pair.two, pair.urls)
            assert "the standby is primary" in follow(HAND_OVER, pair.one, pair.urls)
            follow(FORMER, pair.one, pair.urls)
            before = acknowledged()
            wait_for(lambda: acknowledged() > before + 5, what="messages after the upgrade")
        assert pair.status(pair.one)["role"] == "standby"
        with zsq.Reader("clicks", url=pair.urls, timeout=20) as reader:
            assert reader.measure(0).messages == acknowledged() + 1
    finally:
        pair.close()


def test_a_cluster_is_upgraded_one_broker_after_the_other(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        with zsq.Admin(cluster.url) as admin:
            admin.create_topic("clicks", parts=2)
        with publisher(cluster.url, "clicks") as acknowledged:
            for broker in cluster.brokers:
                said = follow(EACH, broker, cluster.url)
                assert len(re.findall(r"^\d.* primary ", said, re.MULTILINE)) == 2, said
        with (
            zsq.Reader("clicks#0", url=cluster.url) as first,
            zsq.Reader("clicks#1", url=cluster.url) as second,
        ):
            counted = first.measure(0).messages + second.measure(0).messages
        assert counted == acknowledged()
