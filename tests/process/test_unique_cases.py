"""Tests of the table of unique work in docs/dedupe.md, at a broker and at that of `zsq.testing`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.testing import MemoryBroker

PAGE: Final = Path(__file__).parents[2] / "docs" / "dedupe.md"
MODES: Final = ("while-waiting", "while-working")
_NUMBERS: Final = count()


class Bench:
    """A broker of one of the two kinds, and a topic of its own for each case."""

    def __init__(self, url: str) -> None:
        self.producer = zsq.Producer(url, timeout=60)
        self.admin = zsq.Admin(url, timeout=60)
        self.url = url
        self.unique = ""
        self.topic = ""
        self.offset = 0  # of the first message with the key

    def publish(self, **how: Any) -> zsq.Receipt:
        usual = {"body": b"x", "topic": self.topic, "unique_key": "one", "unique": self.unique}
        how = usual | how
        return self.producer.publish(how.pop("topic"), how.pop("body"), **how)

    def first(self, *channels: str, **settings: Any) -> None:
        self.admin.create_topic(self.topic)
        for channel in channels or ("c",):
            self.admin.create_channel(self.topic, channel, **settings)
        assert self.publish().offset == 0

    def consumer(self, channel: str = "c", **how: Any) -> zsq.Consumer:
        return zsq.Consumer(self.topic, channel, url=self.url, **how)

    def finish(self, channel: str = "c") -> None:
        with self.consumer(channel) as consumer:
            message = consumer.receive(30)
            assert message is not None
            message.finish(sync=True)


@pytest.fixture(params=["broker", "memory"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "memory":
        with MemoryBroker() as memory:
            made = Bench(memory.url)
            yield made
            made.producer.close()
            made.admin.close()
        return
    broker: Broker = request.getfixturevalue("broker")
    made = Bench(broker.ipc)
    yield made
    made.producer.close()
    made.admin.close()


Case = Callable[[Bench, Callable[[], None]], None]


def waits(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    check()


def without_channels(bench: Bench, check: Callable[[], None]) -> None:
    assert bench.publish().offset == 0
    check()


def held(bench: Bench, check: Callable[[], None]) -> None:
    bench.admin.create_topic(bench.topic)
    bench.admin.create_channel(bench.topic, "c")
    bench.publish(unique_key="other")
    bench.offset = bench.publish().offset or 0
    with bench.consumer() as consumer:
        message = consumer.receive(30)  # the consumer has got both of them
        assert message is not None
        assert message.offset == 0
        check()


def twice_at_once(bench: Bench, check: Callable[[], None]) -> None:
    work = {"zsq-unique-key": "one", "zsq-unique": bench.unique}
    many = bench.producer.publish_many(bench.topic, [b"x", b"y"], headers=[work, work])
    assert many.results == ((0, False), (0, True))
    check()


def begun(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    with bench.consumer() as consumer:
        assert consumer.receive(30) is not None
        check()


def one_of_two(bench: Bench, check: Callable[[], None]) -> None:
    bench.first("c", "d")
    bench.finish("c")
    check()


def all_finished(bench: Bench, check: Callable[[], None]) -> None:
    bench.first("c", "d")
    bench.finish("c")
    bench.finish("d")
    check()


def failed(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    with bench.consumer() as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.requeue(3600)
        consumer.flush()
        check()


def put_off(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    with bench.consumer() as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.defer(3600)
        consumer.flush()
        check()


def dead(bench: Bench, check: Callable[[], None]) -> None:
    bench.first(max_attempts=1)
    with bench.consumer() as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.reject("no")
        consumer.flush()
    check()


def skipped(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    bench.admin.cancel(bench.topic, [0], channel="c")
    check()


def emptied(bench: Bench, check: Callable[[], None]) -> None:
    bench.first()
    bench.admin.empty(bench.topic, "c")
    check()


def deleted(bench: Bench, check: Callable[[], None]) -> None:
    bench.first("c", "d")
    bench.finish("d")
    bench.admin.delete_channel(bench.topic, "c", force=True)
    check()


def with_window(bench: Bench, check: Callable[[], None]) -> None:
    bench.admin.create_topic(bench.topic, dedupe_window_s=0)
    assert bench.publish().offset == 0
    check()


CASES: Final[dict[str, tuple[Case, dict[str, Any]]]] = {
    "first waits in a channel": (waits, {}),
    "the topic has no channel": (without_channels, {}),
    "a consumer holds first, and its handler has not begun": (held, {}),
    "twice in one `publish_many`": (twice_at_once, {}),
    "a handler has begun first": (begun, {}),
    "one of two channels has finished first": (one_of_two, {}),
    "all channels have finished first": (all_finished, {}),
    "first failed, and waits for its next attempt": (failed, {}),
    "first was put off by `defer`": (put_off, {}),
    "first became a dead letter": (dead, {}),
    "first was skipped or expired": (skipped, {}),
    "first was emptied from its channel": (emptied, {}),
    "the channel was deleted, and another one has finished first": (deleted, {}),
    "in another topic": (without_channels, {"topic": "elsewhere"}),
    "another key": (without_channels, {"unique_key": "One"}),
    "with the same text as `dedupe_id`": (
        without_channels,
        {"unique_key": None, "unique": None, "dedupe_id": "one"},
    ),
    "the dedupe window is 0": (with_window, {}),
}


def rows() -> dict[str, tuple[str, str]]:
    part = PAGE.read_text().split("## Unique work")[1]
    found = re.findall(r"^\| (.+?) \| (stored|duplicate) \| (stored|duplicate) \|$", part, re.M)
    return {case: (waiting, working) for case, waiting, working in found}


def test_each_case_of_the_page_is_here() -> None:
    assert rows().keys() == CASES.keys()


def test_the_cases(bench: Bench) -> None:
    """All cases at one broker, because a start takes longer than all of them."""
    for case, (run, how) in CASES.items():
        for mode, wanted in zip(MODES, rows()[case], strict=True):
            bench.topic, bench.unique = f"unique-{next(_NUMBERS)}", mode
            bench.offset = 0

            def check(case: str = case, wanted: str = wanted, how: dict[str, Any] = how) -> None:
                how = dict(how)
                if "topic" in how:
                    how["topic"] = bench.topic + "-2"
                again = bench.publish(**how)
                if wanted == "stored" and again.duplicate:  # what a commit has not said yet
                    wait_for(lambda: not bench.publish(**how).duplicate)
                    again = bench.publish(**how)
                    assert again.duplicate, case  # by the message that was just stored
                    return
                assert again.duplicate == (wanted == "duplicate"), (case, bench.unique)
                if again.duplicate:
                    assert again.offset == bench.offset, case

            run(bench, check)
