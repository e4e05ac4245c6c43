"""Tests of streaming queries whose checkpoint has a part that was removed from its topic."""

from __future__ import annotations

import logging

import pytest
from support.spark_logs import MadeUp

from zsq.apps.spark.logs import Extent
from zsq.apps.spark.options import SourceOptions, source_options
from zsq.apps.spark.planning import OffsetRange, StreamPlan, StreamPosition
from zsq.transport.errors import DataLoss, NotFound, Refused


def options(**given: str) -> SourceOptions:
    return source_options({"subscribe": "a", **given}, "tcp://h:1", streaming=True)


def at(*offsets: int) -> StreamPosition:
    """Return a position in the parts of topic "a"."""
    names = [f"a#{number}" for number in range(len(offsets))]
    return StreamPosition(
        dict(zip(names, offsets, strict=True)), {name: f"u-{name}" for name in names}
    )


def ranges(spans: list[OffsetRange]) -> list[tuple[str, int, int]]:
    return [(span.topic, span.start, span.stop) for span in spans]


@pytest.fixture
def logs() -> MadeUp:
    made = MadeUp()
    made.set("a#0", 0, 10)
    made.set("a#1", 0, 7)
    return made


def test_a_part_that_was_read_to_its_end_leaves_the_query(logs: MadeUp) -> None:
    logs.delete("a#1")
    plan = StreamPlan(options(), logs)
    end = plan.latest(at(4, 7))
    assert end == at(10)
    assert ranges(plan.partitions(at(4, 7), end)) == [("a#0", 4, 10)]
    # A batch that was planned before the removal, and that had nothing left to read there.
    assert ranges(plan.partitions(at(4, 7), at(10, 7))) == [("a#0", 4, 10)]
    assert StreamPlan(options(), logs).initial() == at(10)


def test_messages_that_were_not_read_before_the_removal_are_lost(
    logs: MadeUp, caplog: pytest.LogCaptureFixture
) -> None:
    logs.delete("a#1")
    with pytest.raises(
        DataLoss, match=r"topic a#1 was deleted after .* offset 5, and it ended at 7"
    ):
        StreamPlan(options(), logs).latest(at(4, 5))
    with pytest.raises(DataLoss, match="a#1 was deleted before its messages up to offset 7"):
        StreamPlan(options(), logs).partitions(at(4, 5), at(10, 7))
    lax = StreamPlan(options(failondataloss="false"), logs)
    with caplog.at_level(logging.WARNING):
        assert lax.latest(at(4, 5)) == at(10)
        assert ranges(lax.partitions(at(4, 5), at(10, 7))) == [("a#0", 4, 10)]
    assert "it ended at 7" in caplog.text


def test_a_query_without_limits_looks_at_its_start(logs: MadeUp) -> None:
    """PySpark 4.0 and 4.1 name the start of a batch after its end was planned."""
    logs.delete("a#1")
    plan = StreamPlan(options(), logs)
    assert plan.first_end() == at(10)
    plan.check_start(at(4, 7))
    plan.first_end()
    with pytest.raises(DataLoss, match="it ended at 7"):
        plan.check_start(at(4, 5))


def test_a_part_that_is_only_not_listed_stays(logs: MadeUp) -> None:
    """The broker may know less of the directory than the one that the query asked before."""

    class Lagging(MadeUp):
        def names(self, topic: str) -> list[str]:
            return ["a#0"]

    lagging = Lagging()
    lagging.extents = logs.extents
    assert StreamPlan(options(), lagging).latest(at(4, 5)) == at(10, 7)
    plan = StreamPlan(options(), lagging)
    plan.first_end()
    with pytest.raises(Refused, match="did not list topic a#1 although it exists"):
        plan.check_start(at(4, 5))


def test_a_part_that_is_listed_and_just_removed_fails_no_query(logs: MadeUp) -> None:
    """The answer which parts a topic has is used for some seconds."""

    class Cached(MadeUp):
        def names(self, topic: str) -> list[str]:
            return ["a#0", "a#1"]

    cached = Cached()
    cached.extents = dict(logs.extents)
    cached.delete("a#1")
    assert StreamPlan(options(), cached).latest(at(4, 7)) == at(10)
    # If the whole topic was deleted, nobody knows where its parts ended.
    cached.ends.clear()
    with pytest.raises(NotFound):
        StreamPlan(options(), cached).latest(at(4, 7))


def test_a_topic_that_has_parts_now_is_reported_as_before() -> None:
    logs = MadeUp()
    logs.extents["a#0"] = Extent(0, 3, "u-a#0")
    start = StreamPosition({"a": 5}, {"a": "u-a"})
    assert StreamPlan(options(), logs).latest(start) == at(3)
