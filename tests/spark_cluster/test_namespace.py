"""Tests of an executor that the network treats as another machine. It runs in a network namespace,
which a pair of veth devices connects with this machine's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from support.broker import Broker, free_port
from support.spark_cluster import SparkDriver, Standalone, met
from support.spark_rows import exactly_once
from support.spark_topic import Topic

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

# Addresses from the range that is reserved for tests of networks (RFC 2544). The process has four
# of its own, because a run that was killed leaves its devices behind.
HERE, THERE = (str(ip_network("198.18.0.0/15")[os.getpid() * 4 % 2**17 + at]) for at in (1, 2))
ROWS = 40_000
SIZE = 200


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Make a network namespace and return its name. Skip if this machine does not allow it."""
    name = f"zsq{os.getpid()}"
    near, far = f"zn{os.getpid()}", f"zf{os.getpid()}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", far)
            ip("link", "set", far, "netns", name)
            ip("addr", "add", f"{HERE}/30", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", name, "addr", "add", f"{THERE}/30", "dev", far)
            ip("-n", name, "link", "set", far, "up")
            ip("-n", name, "link", "set", "lo", "up")
        except subprocess.SubprocessError as error:
            pytest.skip(f"no veth here: {error}")
        yield name
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            ip("link", "del", near)
        ip("netns", "del", name)


@pytest.fixture(scope="module")
def broker(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = Broker(tmp_path_factory.mktemp("zsq") / "data")
    one.extra = (
        "--listen",
        f"{HERE}:{one.port}",
        "--listen-push",
        f"{HERE}:{free_port()}",
        "--insecure",
    )
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(scope="module")
def spark(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    folder = tmp_path_factory.mktemp("spark")
    cluster = Standalone(folder / "cluster", [THERE], cores=2, host=HERE)
    one = SparkDriver(folder / "driver", cluster.url, address=HERE, spark__executor__memory="512m")
    try:
        cluster.start([["ip", "netns", "exec", namespace]])
        yield one.start()
    finally:
        one.close()
        cluster.close()


def test_an_executor_in_another_network_namespace_writes_and_reads_everything_once(
    spark: SparkDriver, broker: Broker, topic: Topic, namespace: str, tmp_path: Path
) -> None:
    url = f"tcp://{HERE}:{broker.port}"
    gate = spark.gate(topic.name, "write.0.5")
    job = spark.submit(
        "write",
        first=0,
        count=ROWS,
        partitions=2,
        size=SIZE,
        options={"url": url, "topic": topic.name},
    )
    who = met(gate, job)
    assert (
        os.stat(f"/proc/{who['pid']}/ns/net").st_ino == os.stat(f"/run/netns/{namespace}").st_ino
    ), "it runs over there"
    gate.open()
    job.result()
    exactly_once(broker.ipc, topic.name, range(ROWS), SIZE)
    topic.no_stage_left()
    found = spark.submit(
        "read", options={"url": url, "topic": topic.name, "minPartitions": "2"}
    ).result()
    assert found["rows"] == found["numbers"] == ROWS
