"""Tests of kill -9 while one batch is written to several topics: of the driver, of topics and of
the broker. In the end each topic has each of its rows once, and in the order of the batches.

The sink's tasks and commits run without Spark. `tests/spark_cluster/test_driver_killed.py` kills a
driver of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import spark_topics_driver as driver
from support.broker import Broker, kill, wait_for
from support.topic import Topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", "--own-process", "always") as broker:
        yield broker


def numbers_in(broker: Broker, topic: str) -> list[int]:
    return [int(body) for body in Topic(broker, topic).bodies()]


def exactly_once(broker: Broker, batches: int) -> None:
    for topic in driver.TOPICS:
        assert numbers_in(broker, topic) == driver.numbers_of(topic, batches), topic


def no_stage_left(broker: Broker) -> None:
    folders = broker.data_dir / "topics"
    wait_for(lambda: not list(folders.glob("*/staging/*")), 30, "no staged file left")


def test_a_batch_is_completed_by_the_next_driver(broker: Broker) -> None:
    """The first driver is killed between two commits. Its late abort harms nothing."""
    driver.commit(broker.ipc, 0, driver.stage(broker.ipc, 0))
    driver.commit_in_first(broker.ipc, 1, driver.stage(broker.ipc, 1))
    driver.commit(broker.ipc, 1, driver.stage(broker.ipc, 1))
    exactly_once(broker, 2)
    no_stage_left(broker)


def kill_topics(broker: Broker) -> None:
    pids = broker.pids("topic")
    for pid in pids:
        kill(pid)
    broker.wait_gone(pids)


def kill_broker(broker: Broker) -> None:
    assert broker.process is not None
    pids = [actor["pid"] for actor in broker.actors()]
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone(pids)
    broker.start()


@pytest.mark.parametrize("happens", [kill_topics, kill_broker])
@pytest.mark.parametrize("partly", [False, True])
def test_staged_rows_outlive_a_kill(
    broker: Broker, happens: Callable[[Broker], None], partly: bool
) -> None:
    """The kill comes before the commit, or after the first topic has committed."""
    driver.commit(broker.ipc, 0, driver.stage(broker.ipc, 0))
    messages = driver.stage(broker.ipc, 1)
    if partly:
        driver.commit_in_first(broker.ipc, 1, messages)
    happens(broker)
    for topic in driver.TOPICS:
        batches = 2 if partly and topic == min(driver.TOPICS) else 1
        assert numbers_in(broker, topic) == driver.numbers_of(topic, batches)
    driver.commit(broker.ipc, 1, messages)
    exactly_once(broker, 2)


def test_no_topic_has_the_batch_if_one_cannot_take_it(broker: Broker) -> None:
    driver.commit(broker.ipc, 0, driver.stage(broker.ipc, 0))
    messages = driver.stage(broker.ipc, 1)
    [*_, last] = sorted(driver.TOPICS)
    Topic(broker, last).delete()
    with pytest.raises(Exception, match="E_NOT_FOUND"):
        driver.commit(broker.ipc, 1, messages)
    for topic in set(driver.TOPICS) - {last}:
        assert numbers_in(broker, topic) == driver.numbers_of(topic, 1)


def test_a_driver_that_is_killed_again_and_again_writes_each_row_once(
    broker: Broker, tmp_path: Path
) -> None:
    """Some kills come right after the batch was staged, which is often between two commits."""
    for number in range(8):
        with driver.running(broker.ipc, tmp_path / "checkpoint") as process:
            wanted = ("staged", "committed")[number % 2]
            assert process.stdout is not None
            while not process.stdout.readline().startswith(wanted):
                assert process.poll() is None
            if number == 5:
                kill_topics(broker)
            os.kill(process.pid, 9)
    batch = int((tmp_path / "checkpoint").read_text())
    driver.commit(broker.ipc, batch, driver.stage(broker.ipc, batch))
    exactly_once(broker, batch + 1)
