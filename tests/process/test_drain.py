"""Tests of brokers of a cluster that are drained, balanced, and forgotten, with real processes.

`scripts/torture --drain` does the same many times, with kills at any step.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import zsq_command
from support.broker import Broker, wait_for
from support.cluster import Cluster, running
from support.cluster_traffic import DONE_S, Traffic, check_log, parts_of

import zsq
from zsq.transport.errors import ZsqError

PARTS = 4
SAFE = ("--sync", "bucket")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("drain"), *SAFE, count=3) as made:
        yield made


def call(cluster: Cluster, *arguments: str) -> Any:
    return zsq_command.run_text(*arguments, "--url", cluster.url)


def test_a_broker_that_is_killed_while_it_drains_goes_on_and_nothing_is_lost(
    cluster: Cluster,
) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("drained", parts=PARTS, brokers=[1, 1, 1, 0], sync="bucket")
        admin.create_channel("drained", "c")
        with Traffic(cluster, "drained") as traffic:
            done = call(cluster, "broker", "drain", "1", "--wait", "0")
            assert done.returncode == 1
            assert "3 parts left at broker 1" in done.stderr
            wait_for(lambda: -1 in parts_of(cluster, "drained"), DONE_S)
            cluster.brokers[1].signal_all(signal.SIGKILL)
            with pytest.raises(ZsqError, match="drained, so it takes no parts"):
                admin.create_topic("other", parts=1, brokers=[1])
            cluster.brokers[1].start()
            done = call(cluster, "broker", "drain", cluster.brokers[1].tcp)
            assert done.returncode == 0, done.stderr
            assert "it may go" in done.stdout
            assert not {1, -1} & {*parts_of(cluster, "drained")}
            traffic.goes_on()
        check_log(cluster, "drained", traffic.acknowledged)
        # A topic without parts, such as one of dead letters, would be lost with the broker.
        with zsq.Producer(cluster.brokers[1].tcp) as producer:
            producer.publish("alone", b"x").wait()
        done = call(cluster, "broker", "drain", "1", "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout) == {
            "broker": 1, "parts": 0, "topics": {"alone": 1}, "may_go": False,
        }  # fmt: skip
        with pytest.raises(ZsqError, match="drained, so it takes no parts"):
            admin.move_part("drained#0", 1)
        admin.create_topic("new", parts=6)
        assert 1 not in parts_of(cluster, "new")
        admin.delete_topic("new", force=True)
        assert call(cluster, "broker", "drain", "1", "--undo").returncode == 0
        received: set[bytes | None] = set()
        with zsq.Consumer("drained", "c", url=cluster.url, timeout=DONE_S) as consumer:
            while len(received) < len(traffic.acknowledged):
                message = consumer.receive(timeout=DONE_S)
                assert message is not None
                received.add(message.body)
                message.finish()
        admin.delete_topic("drained", force=True)


def test_a_balance_shows_its_plan_and_moves_what_it_showed(cluster: Cluster) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("uneven", parts=PARTS, brokers=[0])
        wait_for(lambda: admin.stats("uneven")["topics"][0]["topic_name"])
        shown = json.loads(call(cluster, "cluster", "balance", "--dry-run", "--json").stdout)
        moves = {move["part"]: move["to"] for move in shown["moves"]}
        assert sorted(moves.values()) == [1, 2]
        done = call(cluster, "cluster", "balance")
        assert done.returncode == 2
        assert "2 parts to move" in done.stdout
        assert parts_of(cluster, "uneven") == [0, 0, 0, 0], "it asks first"
        done = call(cluster, "cluster", "balance", "--yes", "--concurrency", "2")
        assert done.returncode == 0, done.stderr
        placed = {f"uneven#{part}": at for part, at in enumerate(parts_of(cluster, "uneven"))}
        assert {part: placed[part] for part in moves} == moves
        done = call(cluster, "cluster", "balance", "--yes")
        assert (done.returncode, done.stdout) == (0, "the cluster is balanced\n")
        admin.delete_topic("uneven", force=True)


def test_with_auto_brokers_balance_by_themselves_and_stop_when_it_is_off(cluster: Cluster) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("auto", parts=PARTS, brokers=[2])
        try:
            done = call(cluster, "cluster", "auto", "on", "--rate", "1MiB")
            assert done.stdout.startswith("auto is on: 1 part at a time at 1.0 MiB a second")
            wait_for(lambda: sorted(parts_of(cluster, "auto")) == [0, 1, 2, 2], DONE_S)
        finally:
            assert call(cluster, "cluster", "auto", "off").returncode == 0
        assert not admin.cluster()["auto"]["is_on"]
        admin.delete_topic("auto", force=True)


@pytest.mark.timeout(300)
def test_parts_of_a_broker_that_is_gone_are_opened_elsewhere_and_it_never_comes_back(
    tmp_path: Path,
) -> None:
    """With --sync bucket nothing is lost. A part that was created meanwhile is opened, too."""
    with running(tmp_path, *SAFE, count=3) as cluster, zsq.Admin(cluster.url) as admin:
        gone = cluster.brokers[2]
        admin.create_topic("t", parts=PARTS, brokers=[2, 2, 0, 1], sync="bucket")
        admin.create_channel("t", "c")
        with Traffic(cluster, "t") as traffic:
            done = call(cluster, "broker", "forget", "2", "--yes")
            assert (done.returncode, "it answers" in done.stderr) == (2, True)
            with pytest.raises(ZsqError) as caught:
                admin.forget_broker(2)
            assert caught.value.code == "E_NOT_EMPTY", "it ships all the time"
            gone.signal_all(signal.SIGKILL)
            admin.create_topic("late", parts=1, brokers=[2])
            done = call(cluster, "broker", "forget", "2", "--yes")
            assert done.returncode == 0, done.stderr
            assert "broker 2 is forgotten, and its 3 parts are at others" in done.stdout
            assert not {2, -1} & {*parts_of(cluster, "t"), *parts_of(cluster, "late")}
            traffic.goes_on()
        check_log(cluster, "t", traffic.acknowledged)
        with zsq.Producer(cluster.url) as producer:
            assert producer.publish("late", b"x").wait() >= 1 << 16, "none is used again"
        admin.close_topic("t#0")
        assert admin.remove_part("t#0", force=True)["end"], "its broker answers now"
        gone.launch()
        gone.wait_said("the cluster has forgotten this broker")
        wait_for(lambda: gone.process is not None and gone.process.poll() is not None, DONE_S)
        with pytest.raises(ZsqError, match="was forgotten"):
            admin.move_part("t#1", 2)
        assert [row["gone"] for row in admin.cluster(fresh=True)["brokers"]] == [False, False, True]


@contextlib.contextmanager
def standby_of(cluster: Cluster, folder: Path) -> Iterator[Broker]:
    """Run a standby of the second broker, and start this one again, so that it knows it."""
    two = cluster.brokers[1]
    patience = ("--patience", "2s", "--bucket-lag", "100ms")
    options = ("--bucket", f"{cluster.place}/two", "--cluster", cluster.place, *patience)
    standby = Broker(folder / "standby", *options)
    standby.command = "standby"
    try:
        two.stop()
        two.extra = (*two.extra, "--patience", "2s")
        standby.launch()
        standby.wait_said("follows file://")
        two.start()
        two.wait_said("takes over when this broker is gone for 2 s")
        yield standby
    finally:
        standby.close()


@pytest.mark.timeout(300)
def test_a_standby_that_takes_over_goes_on_with_the_drain(tmp_path: Path) -> None:
    with (
        running(tmp_path, *SAFE) as cluster,
        standby_of(cluster, tmp_path) as standby,
        zsq.Admin(cluster.url, timeout=30) as admin,
    ):
        admin.create_topic("t", parts=PARTS, brokers=[1], sync="bucket")
        with Traffic(cluster, "t") as traffic:
            admin.drain_broker(1)
            wait_for(lambda: {0, -1} & {*parts_of(cluster, "t")}, DONE_S)
            cluster.brokers[1].signal_all(signal.SIGKILL)
            standby.wait_said("is primary", DONE_S)
            wait_for(lambda: parts_of(cluster, "t") == [0] * PARTS, DONE_S)
            traffic.goes_on()
        check_log(cluster, "t", traffic.acknowledged)
