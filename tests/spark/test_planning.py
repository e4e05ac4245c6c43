"""Tests of what a query reads next, with fake topics: limits, data loss, AvailableNow, and the
reader for older versions of PySpark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark_logs import MESSAGE_BYTES, MadeUp

import zsq
from zsq.apps.spark import logs as topic_logs
from zsq.apps.spark.data_source import stream_reader
from zsq.apps.spark.logs import TopicLogs
from zsq.apps.spark.options import source_options
from zsq.apps.spark.planning import BatchPlan, StreamPlan, StreamPosition
from zsq.apps.spark.source import partitions_of
from zsq.apps.spark.stream import PlainStreamReader
from zsq.transport.errors import E_NOT_FOUND, DataLoss, NotFound, UsageError


class Admin:
    """A fake for the broker's channels. `asked` lists the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.existed = self.gone = False
        self.consumers = 0
        monkeypatch.setattr("zsq.apps.spark.stream.Admin", lambda url, **_: self)

    def create_channel(self, topic: str, channel: str) -> dict[str, Any]:
        self.asked.append(("create", topic, channel))
        return {"existed": self.existed}

    def seek(
        self, topic: str, channel: str, offset: int, forward: bool = False, clamp: bool = False
    ) -> None:
        if self.gone:
            raise NotFound(E_NOT_FOUND, f"there is no channel {channel}")
        self.asked.append(("seek", topic, channel, offset, forward))

    def stats(self, topic: str, channel: str) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "topic_name": topic,
                    "channels": [{"channel_name": channel, "client_count": self.consumers}],
                }
            ]
        }


def options(streaming: bool = True, /, **given: str) -> Any:
    return source_options(
        {"topic": "a", **{name.lower(): value for name, value in given.items()}},
        "tcp://h:1",
        streaming=streaming,
    )


def stream(logs: MadeUp, **given: str) -> StreamPlan:
    return StreamPlan(options(**given), logs)


def ranges(spans: list[Any]) -> list[tuple[str, int, int]]:
    return [(span.topic, span.start, span.stop) for span in spans]


def at(uuid: str = "u-a", **offsets: int) -> StreamPosition:
    return StreamPosition(
        offsets, {topic: uuid if topic == "a" else f"u-{topic}" for topic in offsets}
    )


# Batches


@pytest.mark.parametrize(
    ("given_options", "found"),
    [
        ({}, [("a", 10, 50)]),
        ({"startingOffsets": '{"a": 20}', "endingOffsets": '{"a": 30}'}, [("a", 20, 30)]),
        ({"startingTimestamp": "15", "endingTimestamp": "45"}, [("a", 15, 45)]),
        ({"endingTimestamp": "9999"}, [("a", 10, 50)]),
        ({"startingOffsets": '{"a": 30}', "endingOffsets": '{"a": 30}'}, []),
        ({"minPartitions": "4"}, [("a", 10, 20), ("a", 20, 30), ("a", 30, 40), ("a", 40, 50)]),
    ],
)
def test_each_batch_reads_the_range_that_its_options_name(
    given_options: dict[str, str], found: list[tuple[str, int, int]]
) -> None:
    assert (
        ranges(BatchPlan(options(False, **given_options), MadeUp(a=(10, 50))).partitions()) == found
    )


@pytest.mark.parametrize(
    "given_options",
    [
        {"startingOffsets": '{"a": 30}', "endingOffsets": '{"a": 20}'},
        {"startingTimestamp": "30", "endingTimestamp": "20"},
        {"startingOffsets": '{"a": 30}', "endingOffsets": '{"a": 5}', "failOnDataLoss": "false"},
    ],
)
def test_a_batch_that_ends_below_its_start_is_refused(given_options: dict[str, str]) -> None:
    plan = BatchPlan(options(False, **given_options), MadeUp(a=(10, 50)))
    with pytest.raises(UsageError, match="the end is below the start: compare the query's start"):
        plan.partitions()


def test_an_end_before_the_oldest_message_is_data_loss() -> None:
    with pytest.raises(DataLoss, match="offsets before 5 of topic a do not exist any more"):
        BatchPlan(options(False, endingOffsets='{"a": 5}'), MadeUp(a=(10, 50))).partitions()
    given_options = {"endingOffsets": '{"a": 5}', "failOnDataLoss": "false"}
    assert ranges(BatchPlan(options(False, **given_options), MadeUp(a=(10, 50))).partitions()) == []
    given_options = {"endingOffsets": '{"a": 10}'}
    assert ranges(BatchPlan(options(False, **given_options), MadeUp(a=(10, 50))).partitions()) == []


def test_tasks_have_the_uuid_of_the_planned_topic() -> None:
    spans = BatchPlan(options(False, minPartitions="2"), MadeUp(a=(0, 10, "u-7"))).partitions()
    assert [part.span.uuid for part in partitions_of(spans)] == ["u-7", "u-7"]
    spans = stream(MadeUp(a=(0, 10, "u-7"))).partitions(at("u-7", a=0), at("u-7", a=10))
    assert [part.span.uuid for part in partitions_of(spans)] == ["u-7"]


@pytest.mark.parametrize(
    ("given_options", "text", "rest"),
    [
        (
            {"startingOffsets": '{"a": 5}'},
            "offsets 5 to 9 of topic a do not exist any more: the topic now begins at 10",
            [("a", 10, 50)],
        ),
        (
            {"endingOffsets": '{"a": 60}'},
            "topic a ends at offset 50, before offset 60",
            [("a", 10, 50)],
        ),
        ({"startingOffsets": '{"a": 70}'}, "topic a ends at offset 50, before offset 70", []),
    ],
)
def test_lost_offsets_of_a_batch_are_an_error_or_a_warning(
    given_options: dict[str, str],
    text: str,
    rest: list[tuple[str, int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = MadeUp(a=(10, 50))
    with pytest.raises(DataLoss, match=f"{text}.*set option 'failOnDataLoss' to 'false'"):
        BatchPlan(options(False, **given_options), logs).partitions()
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert (
            ranges(
                BatchPlan(
                    options(False, failOnDataLoss="false", **given_options), logs
                ).partitions()
            )
            == rest
        )
    assert text in caplog.text


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(NotFound, match="topic a does not exist"):
        BatchPlan(options(False), MadeUp()).partitions()


# Streams


def test_a_stream_goes_on_where_it_ended() -> None:
    logs = MadeUp(a=(10, 50))
    assert stream(logs).initial() == at(a=50)
    plan = stream(logs, startingOffsets="earliest")
    begin = plan.initial()
    assert begin == at(a=10)
    end = plan.latest(begin)
    assert end == at(a=50)
    assert plan.latest(end) == end, "the same place where nothing waits"
    assert ranges(plan.partitions(begin, end)) == [("a", 10, 50)]
    assert ranges(plan.partitions(end, end)) == []
    logs.set("a", 10, 80)
    assert plan.latest(end) == at(a=80)
    assert ranges(plan.partitions(begin, end)) == [("a", 10, 50)], (
        "a batch that is repeated is the same"
    )


def test_a_limit_is_shared_among_topics_by_what_waits() -> None:
    logs = MadeUp(a=(0, 1000), b=(0, 100))
    plan = StreamPlan(source_options({"subscribe": "a,b"}, "tcp://h:1", streaming=True), logs)
    begin = at(a=0, b=0)
    assert plan.latest(begin, offsets_max=110).offsets == {"a": 100, "b": 10}
    assert plan.latest(begin, max_bytes=110 * MESSAGE_BYTES).offsets == {"a": 100, "b": 10}
    assert plan.latest(begin, offsets_max=55, max_bytes=10**9).offsets == {"a": 50, "b": 5}
    assert plan.latest(begin, offsets_max=55, max_bytes=11 * MESSAGE_BYTES).offsets == {
        "a": 10,
        "b": 1,
    }
    assert plan.latest(begin, max_bytes=1).offsets == {"a": 1, "b": 1}, (
        "some of each, or nothing would ever go on"
    )


@given(st.integers(0, 100), st.integers(0, 500), st.integers(0, 50), st.integers(0, 5000))
def test_each_step_leads_on_to_the_end(
    start: int, count: int, offsets_max: int, max_bytes: int
) -> None:
    plan = stream(MadeUp(a=(start, start + count)))
    place = at(a=start)
    for _ in range(600):
        after = plan.latest(place, offsets_max=offsets_max, max_bytes=max_bytes)
        if after == place:
            break
        assert place.offsets["a"] < after.offsets["a"] <= start + count
        assert not offsets_max or after.offsets["a"] - place.offsets["a"] <= offsets_max
        place = after
    assert place == at(a=start + count)


def test_available_now_ends_at_the_head_of_its_start() -> None:
    logs = MadeUp(a=(0, 100))
    plan = stream(logs)
    plan.stop_at_present_head()
    logs.set("a", 0, 500)
    assert plan.head() == at(a=500), "what is reported is how far the topic really reaches"
    place = at(a=0)
    for expected in (40, 80, 100, 100):
        place = plan.latest(place, offsets_max=40)
        assert place == at(a=expected)


def test_available_now_reads_nothing_of_a_topic_recreated_after_its_start() -> None:
    """The new topic was made after the start of that run, so the run does not read it."""
    logs = MadeUp(a=(0, 100))
    plan = stream(logs, failOnDataLoss="false")
    plan.stop_at_present_head()
    logs.set("a", 50, 80, "other")
    assert plan.latest(at(a=100)).offsets == {"a": 50}


def test_a_topic_made_again_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    logs = MadeUp(a=(50, 80, "other"))
    fails: list[Callable[[StreamPlan], object]] = [
        lambda plan: plan.latest(at(a=50)),
        lambda plan: plan.partitions(at(a=40), at(a=50)),
    ]
    for fail in fails:
        with pytest.raises(DataLoss, match="deleted and created again"):
            fail(stream(logs))
    plan = stream(logs)
    assert plan.first_end() == at(uuid="other", a=80)
    with pytest.raises(DataLoss, match="deleted and created again"):
        plan.check_start(at(a=50))
    plan = stream(logs, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        end = plan.latest(at(a=50), offsets_max=10)
        assert end == at(uuid="other", a=60)
        assert ranges(plan.partitions(at(a=50), end)) == [("a", 50, 60)]
        for stop in (50, 60):
            assert ranges(plan.partitions(at(a=40), at(a=stop))) == [], (
                "the old one's offsets are nobody else's"
            )
    assert "deleted and created again" in caplog.text
    planned = ranges(stream(logs).partitions(at(a=40), at(uuid="other", a=60)))
    assert planned == [("a", 50, 60)], "a batch that was planned so is repeated so"


def test_messages_removed_by_retention_are_data_loss() -> None:
    logs = MadeUp(a=(30, 80))
    fails: list[Callable[[StreamPlan], object]] = [
        lambda plan: plan.latest(at(a=20)),
        lambda plan: plan.partitions(at(a=20), at(a=50)),
    ]
    for fail in fails:
        with pytest.raises(DataLoss, match="offsets 20 to 29 of topic a do not exist any more"):
            fail(stream(logs))
    plan = stream(logs, failOnDataLoss="false")
    assert plan.latest(at(a=20), offsets_max=5) == at(a=35)
    assert ranges(plan.partitions(at(a=20), at(a=50))) == [("a", 30, 50)]
    assert ranges(plan.partitions(at(a=10), at(a=20))) == [], "a batch whose all is gone"


def test_a_log_that_ends_too_early_is_data_loss() -> None:
    logs = MadeUp(a=(0, 30))
    fails: list[Callable[[StreamPlan], object]] = [
        lambda plan: plan.latest(at(a=50)),
        lambda plan: plan.partitions(at(a=20), at(a=50)),
    ]
    for fail in fails:
        with pytest.raises(DataLoss, match="topic a ends at offset 30, before offset 50"):
            fail(stream(logs))
    plan = stream(logs, failOnDataLoss="false")
    assert plan.latest(at(a=50)) == at(a=30)
    assert ranges(plan.partitions(at(a=50), at(a=30))) == []
    assert ranges(plan.partitions(at(a=20), at(a=50))) == [("a", 20, 30)]


def test_a_micro_batch_that_ends_below_its_start_is_refused() -> None:
    plan = stream(MadeUp(a=(0, 100)), failOnDataLoss="false")
    with pytest.raises(UsageError, match=r"from offset 50 to offset 30.*with a new checkpoint"):
        plan.partitions(at(a=50), at(a=30))


@given(st.sampled_from(["earliest", "latest"]), st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_a_start_is_never_after_the_first_end(starting: str, grows: list[int]) -> None:
    """In the orders of all versions, on a topic that grows between the calls."""
    head = 10

    def grow(logs: MadeUp, count: int) -> None:
        nonlocal head
        head += count
        logs.set("a", 0, head)

    older, newer = MadeUp(a=(0, head)), MadeUp(a=(0, head))
    plan = stream(older, startingOffsets=starting)
    grow(older, grows[0])
    end = plan.first_end()
    grow(older, grows[1])
    start = plan.initial()
    assert start == (end if starting == "latest" else at(a=0))
    plan = stream(newer, startingOffsets=starting)
    start = plan.initial()
    grow(newer, grows[2])
    end = plan.latest(start)
    grow(newer, grows[3])
    assert plan.initial() == start
    assert start.offsets["a"] <= end.offsets["a"]
    assert plan.latest(end) == at(a=head), "the first snapshot is used once"


def test_topics_join_and_leave_a_query(caplog: pytest.LogCaptureFixture) -> None:
    logs = MadeUp(a=(10, 20), b=(5, 9))
    plan = StreamPlan(source_options({"subscribe": "a,b"}, "tcp://h:1", streaming=True), logs)
    end = plan.latest(at(a=15))
    assert end.offsets == {"a": 20, "b": 9}, (
        "a topic that is new to the query is read from its oldest message on"
    )
    assert ranges(plan.partitions(at(a=15), end)) == [("a", 15, 20), ("b", 5, 9)]
    alone = stream(logs)
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        assert ranges(alone.partitions(at(a=15, b=5), at(a=20, b=9))) == [("a", 15, 20)]
    assert "topic b is in the checkpoint" in caplog.text


# The reader for PySpark 4.0 and 4.1


def plain(monkeypatch: pytest.MonkeyPatch, logs: MadeUp, **given: str) -> PlainStreamReader:
    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: logs)
    return PlainStreamReader(options(**given))


def test_a_channel_begins_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Trigger.AvailableNow, PySpark 4.0 asks for the end before the beginning."""
    admin = Admin(monkeypatch)
    reader = plain(monkeypatch, MadeUp(a=(0, 100)), startingOffsets='{"a": 40}', channel="c")
    reader.latestOffset()
    reader.initialOffset()
    assert admin.asked == [("create", "a", "c"), ("seek", "a", "c", 40, False)]
    reader.commit(at(a=60).as_json())
    assert admin.asked[2:] == [("seek", "a", "c", 60, True)]


def test_following_makes_no_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Making a channel would also make its topic. So the channel of a topic that was deleted must
    not be made.
    """
    from zsq.apps.spark.admission import AdmittingReader

    admin = Admin(monkeypatch)
    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: MadeUp())
    reader = AdmittingReader(options(channel="c"))
    start, end = at(a=0).as_json(), at(a=10).as_json()
    for ask in (
        reader.initialOffset,
        lambda: reader.latestOffset(start, reader.getDefaultReadLimit()),
        lambda: reader.partitions(start, end),
    ):
        with (
            caplog.at_level(logging.WARNING, "zsq.spark"),
            pytest.raises(NotFound, match="topic a does not exist"),
        ):
            ask()
    assert not caplog.text, "it is the query that fails"
    reader.commit(end)
    assert "channel a/c could not be created" in caplog.text
    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: MadeUp(a=(0, 5, "u-2")))
    again = AdmittingReader(options(channel="c"))
    again.commit(end)
    assert not admin.asked, "nor one that was made again, at an offset of its predecessor"


def test_a_channel_that_goes_with_its_topic_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(monkeypatch)
    reader = plain(monkeypatch, MadeUp(a=(0, 100)), channel="c")
    reader.commit(at(a=10).as_json())
    admin.gone = True
    reader.commit(at(a=20).as_json())
    admin.gone = False
    reader.commit(at(a=30).as_json())
    assert admin.asked[-3:] == [
        ("create", "a", "c"),
        ("seek", "a", "c", 30, False),
        ("seek", "a", "c", 30, True),
    ]


def test_a_channel_of_others_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin(monkeypatch)
    admin.existed = True
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        plain(monkeypatch, MadeUp(a=(0, 100)), channel="c").partitions(
            at(a=0).as_json(), at(a=5).as_json()
        )
        assert "channel" not in caplog.text, "after a restart the channel is the query's own"
        plain(monkeypatch, MadeUp(a=(0, 100)), channel="c").initialOffset()
        assert "channel a/c existed before this query began" in caplog.text
        admin.consumers = 2
        plain(monkeypatch, MadeUp(a=(0, 100)), channel="c").partitions(
            at(a=0).as_json(), at(a=5).as_json()
        )
        assert "channel a/c has 2 consumers" in caplog.text
    assert all(word[0] != "seek" for word in admin.asked), "it stays where it is"


def test_the_driver_waits_for_a_topic_that_is_being_restarted() -> None:
    with TopicLogs("tcp://h:1", 5)._reader("a") as reader:
        assert reader._patient


def test_the_class_is_chosen_by_what_pyspark_can(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from zsq.apps.spark.admission import AdmittingReader

    assert type(stream_reader(options())) is AdmittingReader
    monkeypatch.setitem(sys.modules, "zsq.apps.spark.admission", None)  # makes its import fail
    assert type(stream_reader(options())) is PlainStreamReader


def test_both_limits_hold_though_spark_knows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    from zsq.apps.spark.admission import AdmittingReader

    monkeypatch.setattr("zsq.apps.spark.stream.TopicLogs", lambda *_: MadeUp(a=(0, 100)))
    reader = AdmittingReader(options(maxOffsetsPerTrigger="40", maxBytesPerTrigger="1k"))
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    start = at(a=0).as_json()
    assert StreamPosition.from_json(reader.latestOffset(start, reader.getDefaultReadLimit())) == at(
        a=10
    )
    assert StreamPosition.from_json(reader.latestOffset(start, ReadAllAvailable())) == at(a=100)
    assert AdmittingReader(options(maxBytesPerTrigger="1k")).getDefaultReadLimit() == ReadMaxBytes(
        1024
    )
    assert AdmittingReader(options()).getDefaultReadLimit() == ReadAllAvailable()


def test_a_channel_that_cannot_be_moved_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoAnswer:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.close = lambda: None

        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any, **__: Any) -> None:
                raise zsq.BrokerUnreachable("E_TIMEOUT", "nobody there")

            return fail

    monkeypatch.setattr("zsq.apps.spark.stream.Admin", NoAnswer)
    reader = plain(monkeypatch, MadeUp(a=(0, 100)), channel="c")
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        reader.initialOffset()
        reader.commit(at(a=50).as_json())
        reader.stop()
    assert caplog.text.count("channel a/c could not be created") == 2


# Topics with parts


def with_parts(*extents: tuple[int, int]) -> MadeUp:
    logs = MadeUp()
    for number, (start, head) in enumerate(extents):
        logs.set(f"t#{number}", start, head)
    return logs


def test_a_position_has_a_partition_for_each_part() -> None:
    place = StreamPosition({"t#10": 3, "t#2": 5, "u": 7}, {"t#10": "a", "t#2": "b", "u": "c"})
    told = place.as_json()
    assert told == {
        "version": 2,
        "topics": {"t": {"2": 5, "10": 3}, "u": {"0": 7}},
        "uuids": {"t#2": "b", "t#10": "a", "u": "c"},
    }
    assert StreamPosition.from_json(json.dumps(told)) == place
    assert json.dumps(told) == json.dumps(StreamPosition.from_json(told).as_json())


def test_a_position_without_parts_is_that_of_earlier_versions() -> None:
    told = StreamPosition({"t": 3}, {"t": "a"}).as_json()
    assert told == {"version": 1, "topics": {"t": {"0": 3}}, "uuids": {"t": "a"}}


@given(
    st.dictionaries(
        st.sampled_from(["t", "u#0", "u#1", "u#17", "v#0", "w"]), st.integers(0, 1 << 54)
    )
)
def test_each_position_comes_back_from_its_json(offsets: dict[str, int]) -> None:
    place = StreamPosition(offsets, {name: "u-" + name for name in offsets})
    assert StreamPosition.from_json(json.dumps(place.as_json())) == place


def test_a_batch_reads_all_parts() -> None:
    logs = with_parts((0, 10), (5, 20), (0, 0))
    plan = BatchPlan(source_options({"topic": "t"}, "url", streaming=False), logs)
    spans = [(one.topic, one.start, one.stop, one.uuid) for one in plan.partitions()]
    assert spans == [("t#0", 0, 10, "u-t#0"), ("t#1", 5, 20, "u-t#1")]


def test_a_batch_reads_one_part_if_it_is_named() -> None:
    logs = with_parts((0, 10), (5, 20))
    plan = BatchPlan(source_options({"topic": "t#1"}, "url", streaming=False), logs)
    assert [(one.topic, one.start, one.stop) for one in plan.partitions()] == [("t#1", 5, 20)]


def test_a_batch_begins_at_the_offset_of_each_part() -> None:
    logs = with_parts((0, 10), (5, 20))
    given = {"topic": "t", "startingOffsets": '{"t": {"0": 3, "1": -2}}'}
    plan = BatchPlan(source_options(given, "url", streaming=False), logs)
    assert [(one.topic, one.start) for one in plan.partitions()] == [("t#0", 3), ("t#1", 5)]


@pytest.mark.parametrize("offsets", ['{"t": 3}', '{"t": {"0": 3}}', '{"t": {"0": 3, "2": 3}}'])
def test_one_offset_is_not_enough_for_several_parts(offsets: str) -> None:
    logs = with_parts((0, 10), (5, 20))
    given = {"topic": "t", "startingOffsets": offsets}
    plan = BatchPlan(source_options(given, "url", streaming=False), logs)
    with pytest.raises(UsageError, match="give an offset for each") as raised:
        plan.partitions()
    assert '{"t": {"0": 17, "1": 17}}' in raised.value.text


def test_offsets_of_parts_are_refused_for_a_topic_without_parts() -> None:
    given = options(False, startingOffsets='{"a": {"0": 13, "1": 13}}')
    plan = BatchPlan(given, MadeUp(a=(10, 50)))
    with pytest.raises(UsageError, match=r'has no parts: give one offset, .* \{"a": 17\}'):
        plan.partitions()


def test_a_stream_takes_up_new_parts_from_their_first_message_on() -> None:
    logs = with_parts((0, 10))
    plan = StreamPlan(source_options({"topic": "t"}, "url", streaming=True), logs)
    first = plan.initial()
    assert first.offsets == {"t#0": 10}
    logs.set("t#1", 0, 4)
    assert plan.latest(first) == first, "the first batch has the parts that its start has"
    end = plan.latest(first)
    assert end.offsets == {"t#0": 10, "t#1": 4}
    spans = [(one.topic, one.start, one.stop) for one in plan.partitions(first, end)]
    assert spans == [("t#1", 0, 4)]


def test_a_part_that_is_new_waits_for_the_next_run_of_available_now() -> None:
    logs = with_parts((0, 10))
    plan = StreamPlan(source_options({"topic": "t"}, "url", streaming=True), logs)
    plan.stop_at_present_head()
    first = plan.initial()
    logs.set("t#1", 0, 4)
    assert plan.latest(first) == first
    assert plan.latest(first).offsets == {"t#0": 10, "t#1": 0}


def test_an_idle_query_asks_for_the_parts_of_a_topic_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark asks for the latest offset many times a second."""
    logs = TopicLogs("tcp://h:1", 1.0)
    asked: list[str] = []
    now = [100.0]
    monkeypatch.setattr("zsq.apps.spark.logs.time.monotonic", lambda: now[0])
    monkeypatch.setattr(logs, "extent", lambda topic: asked.append(topic))
    for _ in range(5):
        assert logs.names("t") == ["t"]
    assert asked == ["t"]
    now[0] += topic_logs.PARTS_ASKED_S
    assert logs.names("t") == ["t"]
    assert asked == ["t", "t"]
