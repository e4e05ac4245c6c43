"""Tests of option subscribePattern: the expression, and which topics a query reads while topics
come and go.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import pytest
from support.spark_logs import MadeUp

import zsq
from zsq.apps.spark import logs as topic_logs
from zsq.apps.spark import pattern
from zsq.apps.spark.archived import ArchiveLogs
from zsq.apps.spark.logs import Extent, TopicLogs
from zsq.apps.spark.options import EARLIEST, EVERY, LATEST, Point, SourceOptions, source_options
from zsq.apps.spark.pattern import PATTERN_CHARS_MAX, check_pattern, matching
from zsq.apps.spark.planning import BatchPlan, OffsetRange, StreamPlan, StreamPosition
from zsq.apps.spark.stream import PlainStreamReader
from zsq.transport.errors import E_CLOSING, E_UNSUPPORTED, DataLoss, NotFound, Refused, UsageError
from zsq.transport.wire.protocol import Spread
from zsq.transport.wire.spread import HasParts

SLOW = "(a+)+b"  # this takes 2**60 steps for the name below
LONG_NAME = "a" * 63


def options(streaming: bool = True, /, **given: str) -> SourceOptions:
    return source_options(
        {"subscribepattern": "a.*", **{name.lower(): value for name, value in given.items()}},
        "tcp://h:1",
        streaming=streaming,
    )


def stream(logs: MadeUp, **given: str) -> StreamPlan:
    return StreamPlan(options(**given), logs)


def at(**offsets: int) -> StreamPosition:
    return StreamPosition(offsets, {topic: f"u-{topic}" for topic in offsets})


def ranges(spans: list[OffsetRange]) -> list[tuple[str, int, int]]:
    return [(span.topic, span.start, span.stop) for span in spans]


# The expression


@pytest.mark.parametrize(
    ("expression", "names", "found"),
    [
        ("clicks", ["clicks", "clicks-2", "my-clicks"], ["clicks"]),
        ("clicks.*", ["clicks", "clicks-2", "my-clicks"], ["clicks", "clicks-2"]),
        ("a|ab", ["a", "ab", "abc"], ["a", "ab"]),
        (r"\d+\.eu", ["7.eu", "7-eu", "x.eu"], ["7.eu"]),
        ("(?i)CLICKS", ["clicks"], ["clicks"]),
        (".*", ["a", "a.dead", "b#ephemeral"], ["a", "a.dead"]),
        ("b#ephemeral", ["b#ephemeral"], []),
    ],
)
def test_an_expression_matches_whole_names_of_topics_on_disk(
    expression: str, names: list[str], found: list[str]
) -> None:
    assert matching(check_pattern(expression), names) == found
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0), "the limit ends with the matching"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "has 0 characters; it takes a regular expression of 1 to 1000"),
        ("a" * (PATTERN_CHARS_MAX + 1), "has 1001 characters"),
        ("clicks-(", r"is 'clicks-\(', which is not .* unterminated subpattern at character 8"),
        ("*", "nothing to repeat at character 1"),
        ("a{99999999999999999999}", "which Python cannot compile"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused(expression: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_pattern(expression)


def test_an_expression_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern, "MATCH_S", 0.05)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(UsageError, match=r"more than 0\.05 s of CPU time: avoid repetitions"):
        matching(SLOW, [LONG_NAME])
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_names_are_matched_in_other_threads_too() -> None:
    """Only the main thread can limit the time."""
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(matching("a.*", ["ab", "b"])))
    thread.start()
    thread.join(10)
    assert found == [["ab"]]


# Options


def test_a_pattern_has_one_point_for_every_topic() -> None:
    found = options()
    assert (found.topics, found.pattern) == ((), "a.*")
    assert (found.starting, found.ending) == ({EVERY: LATEST}, {EVERY: LATEST})
    assert options(False).starting == {EVERY: EARLIEST}
    assert options(startingOffsets="earliest").starting == {EVERY: EARLIEST}
    assert options(startingTimestamp="7").starting == {EVERY: Point("time", 7)}
    assert options(startingOffsets='{"ab": 3}').starting == {"ab": Point("offset", 3)}
    assert options(startingOffsets="{}").starting == {}


def test_a_query_reads_what_its_options_name() -> None:
    assert [options().reads(name) for name in ("ab", "a#3", "b", "ba")] == [
        True,
        True,
        False,
        False,
    ]
    named = source_options({"subscribe": "a#3,b"}, "tcp://h:1", streaming=True)
    assert [named.reads(name) for name in ("a#3", "b#0", "b", "a", "a#1")] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "a"}, "'subscribe' and 'subscribePattern' both say .* only one of them"),
        ({"subscribePattern": "a("}, "unterminated subpattern at character 2"),
        ({"startingOffsets": '{"b": 3}'}, "names 'b', which subscribePattern 'a.*' does not match"),
        ({"startingOffsetsByTimestamp": '{"b": 3}'}, "names 'b', which subscribePattern"),
        ({"startingOffsets": "[]"}, 'JSON such as {"TOPIC": 17}'),
    ],
)
def test_wrong_options_with_a_pattern_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        options(**given)


# Batches


def test_a_batch_reads_all_topics_that_match() -> None:
    logs = MadeUp(a=(10, 20), b=(0, 5), ab=(3, 4))
    logs.set("ap#0", 0, 2)
    logs.set("ap#1", 5, 7)
    expected = [("a", 10, 20), ("ab", 3, 4), ("ap#0", 0, 2), ("ap#1", 5, 7)]
    assert ranges(BatchPlan(options(False), logs).partitions()) == expected


def test_a_batch_is_empty_if_no_topic_matches(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert BatchPlan(options(False), MadeUp(b=(0, 5))).partitions() == []
    assert "no topic matches subscribePattern 'a.*'" in caplog.text


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ('{"a": 12, "ab": -2}', ""),
        ('{"a": 12}', "starting offsets must name each topic .*: it does not name ab$"),
        ('{"a": 12, "ab": 3, "ax": 1}', "it names ax, which do not exist$"),
        ("{}", "it does not name a, ab$"),
    ],
)
def test_offsets_by_topic_must_name_each_topic_that_matches(offsets: str, text: str) -> None:
    logs = MadeUp(a=(10, 20), ab=(3, 4), b=(0, 5))
    batch = BatchPlan(options(False, startingOffsets=offsets), logs)
    streaming = stream(logs, startingOffsets=offsets)
    if text:
        for fails in (batch.partitions, streaming.initial):
            with pytest.raises(UsageError, match=text):
                fails()
        return
    assert ranges(batch.partitions()) == [("a", 12, 20), ("ab", 3, 4)]
    assert streaming.initial() == at(a=12, ab=3)
    logs.set("ax", 0, 9)
    assert streaming.latest(at(a=20, ab=4)) == at(a=20, ab=4, ax=9), "names are for the start only"


def test_ending_offsets_by_topic_must_name_each_topic_too() -> None:
    plan = BatchPlan(options(False, endingOffsets='{"a": 12}'), MadeUp(a=(10, 20), ab=(3, 4)))
    with pytest.raises(UsageError, match="ending offsets must name each topic"):
        plan.partitions()


def test_one_offset_is_not_enough_for_the_parts_of_a_topic_that_matches() -> None:
    logs = MadeUp()
    logs.set("a#0", 0, 2)
    logs.set("a#1", 5, 7)
    with pytest.raises(UsageError, match="topic a has parts: give an offset for each"):
        stream(logs, startingOffsets='{"a": 5}').initial()
    each = '{"a": {"0": 1, "1": 6}}'
    assert stream(logs, startingOffsets=each).initial() == at(**{"a#0": 1, "a#1": 6})


def test_a_topic_that_is_deleted_after_it_was_listed_is_left_out() -> None:
    class Listed(MadeUp):
        def matching(self, pattern: str) -> list[str]:
            return [*super().matching(pattern), "a-gone"]

    assert ranges(BatchPlan(options(False), Listed(a=(0, 5))).partitions()) == [("a", 0, 5)]


# Streams


def test_a_stream_waits_for_the_first_topic_and_reads_it_from_its_first_message() -> None:
    logs = MadeUp(b=(0, 5))
    plan = stream(logs)
    begin = plan.initial()
    assert begin == StreamPosition({}, {})
    assert StreamPosition.from_json(begin.as_json()) == begin
    assert plan.latest(begin).as_json() == begin.as_json(), "no batch is planned"
    assert plan.partitions(begin, begin) == []
    logs.set("a", 3, 8)
    end = plan.latest(begin)
    assert end == at(a=8)
    assert ranges(plan.partitions(begin, end)) == [("a", 3, 8)]


def test_a_new_topic_joins_at_the_next_batch() -> None:
    logs = MadeUp(a=(0, 10))
    plan = stream(logs)
    first = plan.initial()
    assert first == at(a=10), "latest"
    logs.set("ab", 0, 4)
    assert plan.latest(first) == first, "the first batch has the topics that its start has"
    end = plan.latest(first)
    assert end == at(a=10, ab=4)
    assert ranges(plan.partitions(first, end)) == [("ab", 0, 4)]
    plan.stop_at_present_head()
    logs.set("ac", 2, 6)
    assert plan.latest(end) == at(a=10, ab=4, ac=2), "that run of AvailableNow does not read it"


@pytest.mark.parametrize(
    ("offset", "known", "is_lost"), [(10, True, False), (9, True, True), (10, False, True)]
)
def test_a_deleted_topic_is_data_loss_unless_all_of_it_was_read(
    offset: int, known: bool, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logs = MadeUp(a=(0, 10), ab=(0, 5))
    logs.delete("a", known=known)
    start = at(a=offset, ab=2)
    if is_lost:
        with pytest.raises(
            DataLoss, match=f"topic a was deleted .* offset {offset}, and it (may|ended)"
        ):
            stream(logs).latest(start)
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        plan = stream(logs, failOnDataLoss="false" if is_lost else "true")
        end = plan.latest(start)
    assert ("topic a was deleted" in caplog.text) == is_lost
    assert end == at(ab=5)
    assert ranges(plan.partitions(start, end)) == [("ab", 2, 5)]
    logs.set("a", 10, 12, "another")
    assert plan.latest(end).offsets == {"a": 12, "ab": 5}, "a topic of that name is a new one"


def test_a_topic_that_was_created_again_is_data_loss_as_with_subscribe() -> None:
    logs = MadeUp(a=(10, 12, "another"))
    logs.ends["a"] = 10
    with pytest.raises(DataLoss, match="topic a was deleted and created again"):
        stream(logs).latest(at(a=10))


def test_a_topic_that_was_created_again_with_parts_leaves_and_its_parts_join() -> None:
    logs = MadeUp()
    logs.set("a#0", 0, 3)
    logs.ends["a"] = 10
    assert stream(logs).latest(at(a=10)) == at(**{"a#0": 3})


def test_parts_that_are_not_known_yet_fail_no_query() -> None:
    """The answer which parts a topic has is used for some seconds."""

    class Asked(MadeUp):
        def names(self, topic: str) -> list[str]:
            return [topic]

        def extent(self, topic: str) -> Extent:
            raise HasParts(Spread(0, topic, "u", ((0, 0),), ((0, ("tcp://h:1",)),), ()))

    logs = Asked(a=(0, 10))
    logs.ends["a"] = 10
    plan = stream(logs)
    assert plan.latest(at(a=10)) == at()
    assert plan.partitions(at(a=10), at(a=10)) == []


def test_a_topic_that_is_not_listed_and_exists_is_kept() -> None:
    """A broker of a cluster does not list topics with parts before it has read the directory."""

    class Hides(MadeUp):
        def matching(self, pattern: str) -> list[str]:
            return []

    logs = Hides()
    logs.set("a#1", 0, 9)
    plan = stream(logs)
    assert plan.latest(at(**{"a#1": 4})) == at(**{"a#1": 9})
    assert plan.first_end() == at()
    with pytest.raises(Refused, match="did not list topic a#1 although it exists"):
        plan.check_start(at(**{"a#1": 4}))


@pytest.mark.parametrize(("start", "is_lost"), [({"a": 5}, True), ({}, True), ({"a": 8}, False)])
def test_a_topic_that_is_deleted_after_planning_is_data_loss_if_the_batch_has_its_messages(
    start: dict[str, int], is_lost: bool
) -> None:
    logs = MadeUp(ab=(0, 5))
    begin, end = at(**start, ab=0), at(a=8, ab=5)
    if is_lost:
        with pytest.raises(
            DataLoss, match="topic a was deleted before its messages up to offset 8"
        ):
            stream(logs).partitions(begin, end)
    plan = stream(logs, failOnDataLoss="false" if is_lost else "true")
    assert ranges(plan.partitions(begin, end)) == [("ab", 0, 5)]


def test_a_checkpoint_of_subscribe_goes_on_with_a_pattern_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = MadeUp(a=(0, 10), ab=(0, 5), b=(0, 7))
    end = stream(logs).latest(at(a=4, b=2))
    assert end == at(a=10, ab=5), "b does not match, ab is new"
    named = source_options({"subscribe": "a,b"}, "tcp://h:1", streaming=True)
    plan = StreamPlan(named, logs)
    after = plan.latest(end)
    assert after == at(a=10, b=7), "ab is not named, b is new"
    assert ranges(plan.partitions(end, after)) == [("b", 0, 7)]
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert ranges(stream(logs).partitions(at(a=0, b=0), at(a=4, b=2))) == [("a", 0, 4)]
    assert "topic b is in the checkpoint, but the query does not read it" in caplog.text


def test_old_versions_of_pyspark_notice_after_a_restart_that_a_topic_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = MadeUp(ab=(0, 5))
    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: logs)
    reader = PlainStreamReader(options())
    end = reader.latestOffset()
    with pytest.raises(DataLoss, match="topic a was deleted after it was read up to offset 3"):
        reader.partitions(at(a=3, ab=0).as_json(), end)
    logs.ends["a"] = 3
    assert len(reader.partitions(at(a=3, ab=0).as_json(), end)) == 1
    repeats = PlainStreamReader(options(failOnDataLoss="true"))
    logs.ends.clear()
    repeats.partitions(at(a=3, ab=0).as_json(), at(ab=5).as_json())  # a batch of before a restart


def test_only_topics_that_match_get_the_channel_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    class Channels:
        def create_channel(self, topic: str, channel: str) -> dict[str, bool]:
            made.append(topic)
            return {"existed": False}

        def seek(self, *_: object, **__: object) -> None:
            """Do nothing: this test looks at what is made."""

    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: MadeUp(a=(0, 5), b=(0, 5)))
    monkeypatch.setattr("zsq.apps.spark.stream.Admin", lambda *_, **__: Channels())
    PlainStreamReader(options(channel="c")).commit(at(a=2, b=2).as_json())
    assert made == ["a"]


# The list of topics


class Admin:
    """A fake of the client that lists topics. `asked` counts the requests."""

    def __init__(self, *topics: str, cluster: list[str] | None = None) -> None:
        self.names, self.parted = list(topics), cluster
        self.asked = 0
        self.error: Exception | None = None

    def topics(self) -> dict[str, list[str]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {name: [] for name in self.names}

    def cluster(self) -> dict[str, Any]:
        if self.parted is None:
            raise UsageError(E_UNSUPPORTED, "this broker belongs to no cluster")
        return {"topics": [{"topic": name} for name in self.parted]}

    def ended(self, topic: str) -> int | None:
        if self.error is not None:
            raise self.error
        return 7

    def close(self) -> None:
        """Do nothing: nothing is open."""


def listing(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> TopicLogs:
    monkeypatch.setattr("zsq.apps.spark.logs.Admin", lambda *_, **__: admin)
    return TopicLogs("tcp://h:1", 1.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [100.0]
    monkeypatch.setattr("zsq.apps.spark.logs.time.monotonic", lambda: found[0])
    return found


def test_topics_are_listed_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """Spark asks for the latest offset many times a second."""
    admin = Admin("b", "a2", "a1#0", "a1#3", "a1", cluster=["a3", "a1"])
    logs = listing(monkeypatch, admin)
    for _ in range(5):
        assert logs.matching("a.*") == ["a1", "a2", "a3"]
    assert admin.asked == 1
    assert logs.matching("b.*") == ["b"], "the answer is for one pattern"
    now[0] += topic_logs.TOPICS_ASKED_S
    admin.names, admin.parted = ["a4"], None
    assert logs.matching("a.*") == ["a4"]
    assert admin.asked == 3


def test_the_last_list_is_used_while_the_broker_cannot_answer(
    monkeypatch: pytest.MonkeyPatch, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin("a1")
    logs = listing(monkeypatch, admin)
    assert logs.matching("a.*") == ["a1"]
    for error in (Refused(E_CLOSING, "stopping"), zsq.BrokerUnreachable("E_TIMEOUT", "nobody")):
        admin.error = error
        now[0] += topic_logs.TOPICS_ASKED_S
        with caplog.at_level(logging.WARNING, "zsq.spark"):
            assert logs.matching("a.*") == ["a1"]
        assert error.text in caplog.text
        with pytest.raises(type(error)):
            listing(monkeypatch, admin).matching("a.*")
    admin.error = Refused("E_FORBIDDEN", "not any more")
    now[0] += topic_logs.TOPICS_ASKED_S
    with pytest.raises(Refused, match="not any more"):
        logs.matching("a.*")


def test_a_pattern_that_matches_too_many_topics_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = listing(monkeypatch, Admin(*(f"a{n}" for n in range(topic_logs.TOPICS_MAX + 1))))
    with pytest.raises(UsageError, match="matches 1001 topics of tcp://h:1; a query reads at most"):
        logs.matching("a.*")


def test_it_may_be_unknown_where_a_topic_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin()
    logs = listing(monkeypatch, admin)
    assert logs.ended("a") == 7
    admin.error = NotFound("E_NOT_FOUND", "part")
    assert logs.ended("a") is None
    admin.error = zsq.BrokerUnreachable("E_TIMEOUT", "nobody")
    with pytest.raises(zsq.BrokerUnreachable):
        logs.ended("a")


def test_the_connection_to_a_topic_that_is_gone_is_closed() -> None:
    class Gone:
        closed = 0

        def uuid(self) -> str:
            raise NotFound("E_NOT_FOUND", "no such topic")

        def close(self) -> None:
            Gone.closed += 1

    logs = TopicLogs("tcp://h:1", 1.0)
    readers: Any = logs._readers
    readers["a"] = Gone()
    logs._names["a"] = ["a"], 1e18
    with pytest.raises(NotFound, match="topic a does not exist"):
        logs.extent("a")
    assert (Gone.closed, logs._readers, logs._names) == (1, {}, {}), "its parts are asked for again"


def test_the_topics_of_a_bucket_are_matched_without_a_broker() -> None:
    logs: Any = ArchiveLogs("file:///bucket")
    logs._topics = dict.fromkeys(["b", "a2", "a1#1", "a1#0"])
    assert logs.matching("a.*") == ["a1", "a2"]
    assert logs.ended("a1") is None
