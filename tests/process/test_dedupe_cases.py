"""Tests of the table of cases in docs/dedupe.md, at a broker and at that of `zsq.testing`."""

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
_NUMBERS: Final = count()


class Bench:
    """A broker of one of the two kinds, and a topic of its own for each case."""

    def __init__(self, url: str, memory: MemoryBroker | None) -> None:
        self.memory = memory
        self.producer = zsq.Producer(url, timeout=60)
        self.admin = zsq.Admin(url, timeout=60)
        self.url = url
        self.topic = f"case-{next(_NUMBERS)}"

    def publish(self, **how: Any) -> zsq.Receipt:
        how = {"body": b"x", "topic": self.topic, "dedupe_id": "one"} | how
        return self.producer.publish(how.pop("topic"), how.pop("body"), **how)

    def consumer(self) -> zsq.Consumer:
        return zsq.Consumer(self.topic, "c", url=self.url)


@pytest.fixture(params=["broker", "memory"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "memory":
        with MemoryBroker() as memory:
            made = Bench(memory.url, memory)
            yield made
            made.producer.close()
            made.admin.close()
        return
    broker: Broker = request.getfixturevalue("broker")
    made = Bench(broker.ipc, None)
    yield made
    made.producer.close()
    made.admin.close()


STORED: Final = "stored"
Result = zsq.Receipt


def after_the_window(bench: Bench) -> Result:
    bench.admin.create_topic(bench.topic, dedupe_window_s=0.2)
    bench.publish()
    if bench.memory is not None:
        bench.memory.advance(0.2)
        return bench.publish()
    found: list[Result] = []

    def is_stored() -> bool:
        found[:] = [bench.publish()]
        return not found[0].duplicate

    wait_for(is_stored)
    return found[0]


def in_another_topic(bench: Bench) -> Result:
    bench.publish()
    return bench.publish(topic=bench.topic + "-2")


def finished(bench: Bench) -> Result:
    bench.publish()
    with bench.consumer() as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.finish(sync=True)
    return bench.publish()


def emptied(bench: Bench) -> Result:
    bench.admin.create_channel(bench.topic, "c")
    bench.publish()
    bench.admin.empty(bench.topic, "c")
    return bench.publish()


def cancelled(bench: Bench) -> Result:
    key = bench.publish(delay=60).delayed_key
    assert key is not None
    assert bench.admin.delayed_cancel(bench.topic, [key]) == [True]
    return bench.publish()


def deleted(bench: Bench) -> Result:
    bench.publish()
    bench.admin.delete_topic(bench.topic, force=True)
    bench.admin.create_topic(bench.topic)
    return bench.publish()


def without_a_window(bench: Bench) -> Result:
    bench.admin.create_topic(bench.topic, dedupe_window_s=0)
    bench.publish()
    return bench.publish()


def refused(bench: Bench) -> Result:
    bench.admin.create_topic(bench.topic)
    bench.admin.close_topic(bench.topic)
    with pytest.raises(zsq.Refused):
        bench.publish()
    bench.admin.open_topic(bench.topic)
    return bench.publish()


def in_one_publish(bench: Bench) -> Result:
    many = bench.producer.publish_many(bench.topic, [b"x", b"y"], dedupe_ids=["one", "one"])
    assert many.results == ((0, False), (0, True))
    return bench.publish()


def plainly(first: dict[str, Any], again: dict[str, Any]) -> Callable[[Bench], Result]:
    def run(bench: Bench) -> Result:
        bench.publish(**first)
        return bench.publish(**again)

    return run


CASES: Final[dict[str, Callable[[Bench], Result]]] = {
    "within the window": plainly({}, {}),
    "after the window": after_the_window,
    "in another topic": in_another_topic,
    "an id that differs in upper and lower case": plainly({}, {"dedupe_id": "One"}),
    "another body, key and headers": plainly(
        {"key": "a"}, {"body": b"other", "key": "b", "headers": {"a": 1}}
    ),
    "twice in one `publish_many`": in_one_publish,
    "no id": plainly({}, {"dedupe_id": None}),
    "first is finished by all channels": finished,
    "first was emptied from all channels": emptied,
    "first is delayed, again is not": plainly({"delay": 60}, {}),
    "first is delayed, again is delayed": plainly({"delay": 60}, {"delay": 90}),
    "first is not delayed, again is delayed": plainly({}, {"delay": 90}),
    "first is delayed and was cancelled": cancelled,
    "the topic was deleted and created again": deleted,
    "the window is 0": without_a_window,
    "first was refused, because the topic was closed": refused,
}


def rows() -> dict[str, str]:
    part = PAGE.read_text().split("## What happens when")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", part, re.MULTILINE)
    return {case: again for case, again in found if case != "case"}


def test_each_case_of_the_page_is_here() -> None:
    assert rows().keys() == CASES.keys()


def test_the_cases(bench: Bench) -> None:
    """All cases at one broker, because a start takes longer than all of them."""
    for case, run in CASES.items():
        bench.topic = f"case-{next(_NUMBERS)}"
        again, wanted = run(bench), rows()[case]
        assert again.duplicate == wanted.startswith("duplicate"), case
        if "the offset of first" in wanted:
            assert again.offset == 0, case
        if "the offset -1" in wanted:
            assert again.offset == -1, case
        assert again.delayed_key is None, case
