"""Tests of `bench all` on a real broker, on a broker whose syncs take longer, and of the rate of a
server that speaks NSQ's protocol.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness.loads import Shape, make_bodies
from benchmarks.harness.slow_sync import SyncDelay, slow_broker, slowed
from benchmarks.measures import topics
from benchmarks.peers import nsq_peers
from local_setup import environment
from local_setup.broker import temporary_broker
from zsq import Producer

pytestmark = pytest.mark.slow


GROUPS = ("e2e", "latency", "topics", "channel", "startup", "thousand")


@pytest.mark.timeout(400)
def test_bench_all_measures_a_small_table_and_leaves_no_files(tmp_path: Path) -> None:
    only = [word for group in GROUPS for word in ("--only", group)]
    options = ["--rounds", "1", "--scale", "0.005", "--json", "--folder", str(tmp_path)]
    line = [sys.executable, "-P", "-m", "benchmarks", "all", *only, *options]
    ended = subprocess.run(
        line, capture_output=True, text=True, timeout=300, check=False, env=environment()
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert set(answer["groups"]) == set(GROUPS)
    measured = [row for row in answer["rows"] if row["verdict"] != "not compared"]
    assert all(row["median"] > 0 for row in measured)
    goals = {(row["group"], row["what"]): row["budget"] for row in measured if row["budget"]}
    for group, what in (
        ("one message, publish to handler, 200 a second", "p99, durable"),
        (
            "one message, publish to handler, 200 a second",
            "processor time of a message: all processes",
        ),
        ("2 topics with 2 channels, nothing published", "creation"),
        ("2 topics with 2 channels, nothing published", "awake: memory (PSS)"),
        (
            "2 topics with 2 channels, nothing published",
            "a consumer on each channel: processor time",
        ),
        ("2 topics with 2 channels, nothing published", "asleep: processor time"),
        ("2 channels of one topic", "creation"),
        ("start and restart", "after `kill -9` under load, until a publish was durable"),
        ("5 topics with a channel, nothing published", "start until ready, all awake"),
    ):
        assert goals[group, what]["at_least"] is False
    assert str(tmp_path) not in json.dumps(answer["about"])
    assert list(tmp_path.iterdir()) == []


def test_topics_that_do_not_fit_into_the_memory_are_left_out_with_a_reason(tmp_path: Path) -> None:
    with temporary_broker("--no-listen", *topics.STAY_AWAKE, under=tmp_path) as broker:
        assert topics.too_small(broker, 10**9).startswith("left out: 1,000,000,000 topics would")


def test_syncs_take_longer_while_they_are_told_to(tmp_path: Path) -> None:
    with (
        slow_broker("--no-listen", "--no-http", "--no-nsq", under=tmp_path) as (broker, delay),
        Producer(broker.url) as producer,
    ):
        producer.publish("topic", b"warm")
        delay.set(0.3)
        begin = time.monotonic()
        producer.publish("topic", b"slow")
        taken = time.monotonic() - begin
        delay.set(0.0)
    assert taken >= 0.3
    assert list(tmp_path.iterdir()) == []


def test_a_delay_is_seen_by_all_who_have_it_and_not_by_a_failure(tmp_path: Path) -> None:
    ours = SyncDelay.create(tmp_path / "delay")
    theirs = SyncDelay(tmp_path / "delay")
    assert theirs.get() == 0.0
    ours.set(0.05)
    assert theirs.get() == 0.05
    begin = time.monotonic()
    assert slowed(lambda number: number + 1, theirs, 2)(1) == 2
    assert time.monotonic() - begin >= 0.1


def test_the_rate_of_an_nsq_peer_is_measured(tmp_path: Path) -> None:
    """The benchmark is meant for nsqd. The test uses ZSQ's gateway, which speaks the same
    protocol.
    """
    port = nsq_peers.free_port()
    shape = Shape(2_000, 200, 500)
    with temporary_broker(
        "--no-listen", "--no-http", "--nsq-listen", f"127.0.0.1:{port}", under=tmp_path
    ):
        for number, (channels, produces, consumes) in enumerate(
            ((1, True, True), (1, True, False), (1, False, True), (2, True, True))
        ):
            assert nsq_peers.rate(port, f"topic{number}", shape, channels, produces, consumes) > 0


def test_bodies_of_any_size_differ() -> None:
    for size in (10, 16, 17, 65_552, 70_000, 1 << 20):
        bodies = make_bodies(Shape(3, size, 3))
        assert {len(body) for body in bodies} == {size}
        assert len(set(bodies)) == 3
