"""Tests that a broker says why its processes ended, and counts how often they started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for

import zsq

Starts = Callable[..., Broker]


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    """Return a function that starts a broker with these options."""
    made: list[Broker] = []

    def start(*options: str) -> Broker:
        made.append(Broker(tmp_path / "data", *options))
        return made[-1].start()

    yield start
    for broker in made:
        broker.close()


def row_of(broker: Broker, name: str) -> dict[str, Any]:
    return next((row for row in broker.actors() if row["name"] == name), {})


def kill_and_wait(broker: Broker, name: str) -> int:
    """Kill the process of an actor, and wait for its next one. Return the pid that ended."""
    pid = int(row_of(broker, name)["pid"])
    kill(pid)
    wait_for(lambda: row_of(broker, name).get("pid", pid) != pid, 20, f"the next {name}")
    return pid


def test_a_killed_channel_is_counted_and_the_log_says_that_it_was_killed(starts: Starts) -> None:
    broker = starts("--own-process", "always")
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c")
        pid = kill_and_wait(broker, "channel t/c")
        broker.wait_said(
            f"channel t/c (pid {pid}) ended and gave no reason: it crashed or was killed"
        )
        kill_and_wait(broker, "channel t/c")
        assert (
            row_of(broker, "channel t/c")["restarts"],
            row_of(broker, "topic t")["restarts"],
        ) == (2, 0)
        overview = admin.overview()
        topic = dict(zip(overview["topic_fields"], overview["topics"]["t"][0], strict=True))
        assert (overview["broker"]["restarts"], topic["restarts"]) == (2, 2)


def test_a_killed_shared_process_is_counted_for_its_topics(starts: Starts) -> None:
    broker = starts()
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("t")
        pid = kill_and_wait(broker, "topic t")
        broker.wait_said(f"(pid {pid}) ended and gave no reason")
        wait_for(
            lambda: row_of(broker, "topic t").get("restarts") == 1, 20, "a restart that counts"
        )
        assert admin.overview()["broker"]["restarts"] == 1
