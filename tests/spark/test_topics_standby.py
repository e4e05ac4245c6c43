"""Tests of a standby that takes over while one batch is written to several topics. Each topic then
has all of the batch's rows or none, and after the batch was repeated, it has each of them once.

The sink's tasks and commits run without Spark, as in `test_topics_killed.py`. Stages are not in the
bucket. So what was sealed and not committed is lost with the primary, and the tasks run again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import spark_topics_driver as driver
from support.broker import Broker
from support.standby_pair import Pair
from support.topic import Topic

from zsq.transport.errors import NotFound

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FIRST = min(driver.TOPICS)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def numbers_in(broker: Broker, topic: str) -> list[int]:
    return [int(body) for body in Topic(broker, topic).bodies()]


def take_over(pair: Pair) -> None:
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()


@pytest.mark.parametrize("committed", [(), (FIRST,), driver.TOPICS], ids=["none", "one", "all"])
def test_a_batch_in_doubt_is_whole_in_each_topic_and_repeated_once(
    pair: Pair, committed: tuple[str, ...]
) -> None:
    """The primary is killed when so many topics have committed, and the driver does not know it."""
    driver.commit(pair.urls, 0, driver.stage(pair.urls, 0))
    messages = driver.stage(pair.urls, 1)
    if committed == driver.TOPICS:
        driver.commit(pair.urls, 1, messages)
    elif committed:
        driver.commit_in_first(pair.urls, 1, messages)
    take_over(pair)

    def check() -> None:
        for topic in driver.TOPICS:
            batches = 2 if topic in committed else 1
            assert numbers_in(pair.two, topic) == driver.numbers_of(topic, batches), topic

    check()
    # The driver that lives on commits what its tasks have sealed at the primary.
    if committed == driver.TOPICS:
        driver.commit(pair.urls, 1, messages)
    else:
        with pytest.raises(NotFound):
            driver.commit(pair.urls, 1, messages)
    check()
    # The next one repeats the batch.
    for _ in range(2):
        driver.commit(pair.urls, 1, driver.stage(pair.urls, 1))
        for topic in driver.TOPICS:
            assert numbers_in(pair.two, topic) == driver.numbers_of(topic, 2), topic


@pytest.mark.parametrize("killed_at", ["staged", "committed"])
def test_a_driver_goes_on_at_the_standby_and_writes_each_row_once(
    pair: Pair, tmp_path: Path, killed_at: str
) -> None:
    """Its commit may fail, because the stages are gone. Then it is started again, as Spark does."""
    checkpoint = tmp_path / "checkpoint"
    acknowledged = 0
    with driver.running(pair.urls, checkpoint) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(f"{killed_at} 3"):
            assert line, "the driver has ended"
            acknowledged += line.startswith("committed")
        take_over(pair)
        for line in process.stdout:
            acknowledged = max(acknowledged, int(line.split()[1]) + line.startswith("committed"))
            if acknowledged >= 6:
                break
        os.kill(process.pid, signal.SIGKILL)
    with driver.running(pair.urls, checkpoint) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("committed"):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    batch = int(checkpoint.read_text())
    assert batch >= acknowledged - 1
    driver.commit(pair.urls, batch, driver.stage(pair.urls, batch))
    for topic in driver.TOPICS:
        assert numbers_in(pair.two, topic) == driver.numbers_of(topic, batch + 1), topic
