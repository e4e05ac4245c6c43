"""Tests of what a sink sends to the broker and to Spark, with fake stages: retries, aborts,
messages, and what is refused.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from typing import Any, ClassVar, Self

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

import zsq
from zsq.apps.spark import sink
from zsq.apps.spark.data_source import ZsqDataSource
from zsq.apps.spark.options import SinkOptions
from zsq.apps.spark.sink import (
    ArrowStreamWriter,
    BatchWriter,
    RowStreamWriter,
    SinkTransaction,
    StagedPartition,
    stream_writer,
)
from zsq.apps.spark.stages import TOPICS_MAX, Sealed
from zsq.transport.errors import E_CLOSING, E_DISK_FULL, E_NOT_FOUND, E_TIMEOUT
from zsq.transport.wire.credentials import Credentials, KeyFile
from zsq.transport.wire.protocol import Spread
from zsq.transport.wire.spread import HasParts, KeyParts

SCHEMA = t.StructType(
    [t.StructField("value", t.BinaryType()), t.StructField("topic", t.StringType())]
)
JOB = SinkTransaction("app", 3, "app")


def options(topic: str = "t", timeout_s: float = 5.0, app: str = "") -> SinkOptions:
    return SinkOptions(
        url="tcp://h:1", topic=topic, app=app, version=3 if app else -1, timeout_s=timeout_s
    )


def batch(*values: bytes, topic: str = "t") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array([topic] * len(values))], names=["value", "topic"]
    )


def part_in(key: bytes, count: int) -> int:
    return KeyParts(count).of(key)


def spread(topic: str, count: int) -> Spread:
    return Spread(0, topic, "u", tuple((n, 0) for n in range(count)), ((0, ("tcp://h:1",)),))


def keyed(*rows: tuple[bytes | None, bytes]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True)
    columns = [pa.array(values, pa.binary()), pa.array(keys, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["value", "key"])


def part(number: int) -> Any:
    return (bytes([number]) * 16, 1, 1, 100, 7)


class Writer:
    """A fake for a StageWriter. `made` lists all writers that were made."""

    made: ClassVar[list[Writer]] = []
    committed = False
    error: Exception | None = None
    parts: ClassVar[dict[str, int]] = {}  # how many parts a topic has

    def __init__(self, topic: str, app: str, version: int, *, url: str, **more: Any) -> None:
        self.asked = (url, topic, app, version, more)
        self.rows: list[bytes] = []
        self.closed = False
        Writer.made.append(self)

    def push(self, block: Any) -> None:
        if self.error is not None:
            raise self.error
        if self.asked[1] in Writer.parts:
            raise HasParts(spread(self.asked[1], Writer.parts[self.asked[1]]))
        self.rows += block.body.values()

    def seal(self) -> Any:
        return None if self.committed else part(len(Writer.made))

    def close(self) -> None:
        self.closed = True


class Committer:
    """A fake for a StageCommitter. `answers` are given in order, and an answer that is an exception
    is raised. `asked` lists the calls, and `keys` the keys that were passed.
    """

    answers: ClassVar[list[Any]] = []
    asked: ClassVar[list[Any]] = []
    timeouts: ClassVar[list[float]] = []
    keys: ClassVar[list[KeyFile]] = []

    def __init__(
        self,
        topic: str,
        *,
        url: str,
        timeout: float,
        create: bool,
        key_file: KeyFile,
        transport: str | None,
    ) -> None:
        assert timeout > 0
        assert transport is None
        assert not create, "a commit makes no topic"
        self.topic = topic
        Committer.timeouts.append(timeout)
        Committer.keys.append(key_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def _answer(self, *asked: Any) -> Any:
        Committer.asked.append((self.topic, *asked))
        if self.topic in Writer.parts:
            raise HasParts(spread(self.topic, Writer.parts[self.topic]))
        answer = Committer.answers.pop(0) if Committer.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def commit(self, app: str, version: int, parts: Any, *, kind: str) -> Any:
        return self._answer("commit", app, version, list(parts), kind)

    def check(self, app: str, version: int, parts: Any, *, kind: str) -> None:
        self._answer("check", app, version, list(parts), kind)

    def abort(self, app: str, version: int, stages: Any) -> Any:
        return self._answer("abort", app, version, list(stages))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "StageWriter", Writer)
    monkeypatch.setattr(sink, "StageCommitter", Committer)
    monkeypatch.setattr(sink, "PAUSE_S", 0.01)
    for name, value in (("made", []), ("committed", False), ("error", None), ("parts", {})):
        monkeypatch.setattr(Writer, name, value)
    monkeypatch.setattr(Committer, "answers", [])
    monkeypatch.setattr(Committer, "asked", [])
    monkeypatch.setattr(Committer, "timeouts", [])
    monkeypatch.setattr(Committer, "keys", [])


# A task


def test_a_task_stages_its_rows() -> None:
    found = sink.stage_rows(options(), JOB, 5, [batch(b"a", b"b"), batch(), batch(b"c")])
    [writer] = Writer.made
    assert writer.asked == (
        "tcp://h:1",
        "t",
        "app",
        3,
        {"kind": "app", "partition": 5, "timeout": 5.0, "key_file": "", "transport": None},
    )
    assert writer.rows == [b"a", b"b", b"c"]
    assert writer.closed
    assert (found.sealed, found.transaction) == (Sealed(("t",), (("t", part(1)),)), JOB)
    again = pickle.loads(pickle.dumps(found))
    assert vars(again) == vars(found), "Spark carries it from the executor to the driver"


def test_a_task_without_rows_makes_no_stage() -> None:
    found = sink.stage_rows(options(""), JOB, 0, [batch()])
    assert not Writer.made
    assert found.sealed.parts == ()


def rows_of(*rows: tuple[str | None, bytes]) -> pa.RecordBatch:
    topics, values = zip(*rows, strict=True)
    columns = [pa.array(values, pa.binary()), pa.array(topics, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["value", "Topic"])


def written() -> dict[str, list[bytes]]:
    """Return the rows of each log that was written."""
    return {writer.asked[1]: writer.rows for writer in Writer.made if writer.rows}


def test_each_row_goes_to_the_topic_that_its_column_names() -> None:
    rows = [("b", b"0"), ("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4")]
    found = sink.stage_rows(options(""), JOB, 0, [rows_of(*rows), rows_of(("c", b"5"))])
    assert written() == {"b": [b"0", b"2"], "a": [b"1", b"4"], "c": [b"3", b"5"]}
    assert found.sealed.logs == ("b", "a", "c")
    assert [name for name, _ in found.sealed.parts] == ["b", "a", "c"]
    assert all(writer.closed for writer in Writer.made)


def test_the_option_names_the_topic_of_all_rows() -> None:
    sink.stage_rows(options("o"), JOB, 0, [rows_of(("c", b"0"), (None, b"1"))])
    assert written() == {"o": [b"0", b"1"]}


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(zsq.UsageError, match="'topic' is null in some rows"):
        sink.stage_rows(
            options(""), JOB, 0, [rows_of(("c", b"0" * 200_000)), rows_of((None, b"1"))]
        )
    assert Writer.made[-1].closed, "what was staged is given up"


def test_a_task_writes_to_so_many_topics() -> None:
    rows = [(f"t{number}", b"x") for number in range(TOPICS_MAX)]
    assert len(sink.stage_rows(options(""), JOB, 0, [rows_of(*rows)]).sealed.logs) == TOPICS_MAX
    with pytest.raises(zsq.UsageError, match=r"more than 100 topics.*repartition\(N, 'topic'\)"):
        sink.stage_rows(options(""), JOB, 0, [rows_of(*rows, ("more", b"x"))])


def test_a_repeated_batch_writes_to_the_topics_that_lack_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here all writers say that they are committed. The task still passes each row on."""
    monkeypatch.setattr(Writer, "committed", True)
    batches = iter([rows_of(("a", b"x" * 200_000)), rows_of(("b", b"x"))])
    found = sink.stage_rows(options(""), JOB, 0, batches)
    assert found.sealed.logs == ("a", "b")
    assert not list(batches)


def test_a_task_of_a_committed_transaction_takes_no_more_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Writer, "committed", True)
    large = batch(*[b"x" * 1000] * 1000)
    batches = iter([large, large, large])
    assert sink.stage_rows(options(), JOB, 0, batches).sealed.parts == ()
    assert len(list(batches)) == 2


def test_a_task_that_fails_gives_its_stage_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "error", zsq.BrokerUnreachable(E_TIMEOUT, "no answer"))
    with pytest.raises(zsq.BrokerUnreachable, match="no answer"):
        sink.stage_rows(options(), JOB, 0, [batch(b"a")])
    assert Writer.made[0].closed


# The driver


def staged(number: int, topic: str = "t", transaction: SinkTransaction = JOB) -> StagedPartition:
    return StagedPartition(Sealed((topic,), ((topic, part(number)),)), transaction)


def empty(transaction: SinkTransaction = JOB) -> StagedPartition:
    return StagedPartition(Sealed((), ()), transaction)


def test_a_commit_names_the_parts_in_the_order_of_partitions() -> None:
    sink.commit_parts(options(), [staged(2), empty(), staged(1)], None, "batch 3")
    assert Committer.asked == [("t", "commit", "app", 3, [part(2), part(1)], "app")]


def test_an_empty_version_of_an_app_is_recorded() -> None:
    """Without the record, a lower version would be stored if it came again."""
    sink.commit_parts(options(), [empty(), None], None, "batch 3")
    sink.commit_parts(options(), [], JOB, "transaction app 3")
    assert Committer.asked == [("t", "commit", "app", 3, [], "app")] * 2
    Committer.answers += [zsq.NotFound(E_NOT_FOUND, "there is no topic t")]
    sink.commit_parts(options(), [], JOB, "transaction app 3")
    assert len(Committer.asked) == 3, "asked once, and no topic is made for nothing"


def test_nothing_is_committed_where_nothing_is_known() -> None:
    job = SinkTransaction("u", 0, "job")
    sink.commit_parts(options(""), [empty(), None], JOB, "transaction app 3")
    sink.commit_parts(options(), [], None, "batch 3")
    sink.commit_parts(options(), [empty(job)], job, "the write")
    assert not Committer.asked


def test_several_topics_commit_when_all_of_them_could() -> None:
    messages = [staged(1, "b"), staged(2, "a"), empty(), staged(3, "b")]
    sink.commit_parts(options(""), messages, None, "batch 3")
    assert [(asked[:2], asked[4]) for asked in Committer.asked] == [
        (("a", "check"), [part(2)]),
        (("b", "check"), [part(1), part(3)]),
        (("a", "commit"), [part(2)]),
        (("b", "commit"), [part(1), part(3)]),
    ]


def test_no_topic_commits_where_one_of_them_could_not() -> None:
    Committer.answers += [{}, zsq.NotFound(E_NOT_FOUND, "topic b was deleted")]
    with pytest.raises(zsq.NotFound, match="topic b was deleted"):
        sink.commit_parts(options(""), [staged(1, "a"), staged(2, "b")], None, "batch 3")
    assert [asked[1] for asked in Committer.asked] == ["check", "check"]


def test_a_commit_that_stopped_between_two_topics_says_so_and_is_completed() -> None:
    messages = [staged(1, "a"), staged(2, "b")]
    Committer.answers += [{}, {}, {}, zsq.NotFound(E_NOT_FOUND, "a stage is gone")]
    with pytest.raises(zsq.NotFound, match=r"a stage is gone\. batch 3 is already in topic a$"):
        sink.commit_parts(options(""), messages, None, "batch 3")
    Committer.asked.clear()
    Committer.answers += [{}, {}, {"repeated": True}, {"repeated": False}]
    sink.commit_parts(options(""), messages, None, "batch 3")
    assert [asked[0] for asked in Committer.asked] == ["a", "b"] * 2


def test_a_commit_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(zsq.UsageError, match="belong to different transactions"):
        sink.commit_parts(
            options(),
            [staged(1), staged(2, transaction=SinkTransaction("app", 4, "app"))],
            None,
            "batch 3",
        )
    with pytest.raises(zsq.UsageError, match=r"10001 partitions.*coalesce"):
        sink.commit_parts(options(), [staged(1)] * 10_001, None, "batch 3")
    assert not Committer.asked


def test_a_commit_is_tried_until_it_is_answered() -> None:
    Committer.answers += [
        zsq.Refused(E_DISK_FULL, "full"),
        zsq.BrokerUnreachable(E_TIMEOUT, "away"),
        {"repeated": True},
    ]
    sink.commit_parts(options(), [staged(1)], None, "batch 3")
    assert len(Committer.asked) == 3


def test_one_attempt_of_a_commit_does_not_use_up_the_time_out() -> None:
    Committer.answers += [zsq.BrokerUnreachable(E_TIMEOUT, "no answer"), {}]
    sink.commit_parts(options(timeout_s=120), [staged(1)], None, "batch 3")
    assert Committer.timeouts == [15, 15]


def test_a_commit_gives_up_in_the_end_and_says_what_to_do() -> None:
    Committer.answers += [zsq.Refused(E_CLOSING, "the broker stops")] * 1000
    with pytest.raises(
        zsq.Refused,
        match=r"batch 3 was not committed to topic t within 0\.1 s: the broker stops\. Repeat it",
    ):
        sink.commit_parts(options(timeout_s=0.1), [staged(1)], None, "batch 3")
    with pytest.raises(zsq.Refused, match="Check whether it is in the topic before you repeat it"):
        sink.commit_parts(
            options(timeout_s=0.1),
            [staged(1, transaction=SinkTransaction("u", 0, "job"))],
            None,
            "the write",
        )


def test_a_commit_that_cannot_be_is_not_tried_again() -> None:
    Committer.answers += [zsq.NotFound(E_NOT_FOUND, "part 1 is gone")]
    with pytest.raises(zsq.NotFound, match="part 1 is gone"):
        sink.commit_parts(options(), [staged(1)], None, "batch 3")
    assert len(Committer.asked) == 1


def test_an_abort_for_an_app_drops_only_the_stages_it_names() -> None:
    """The abort of an old driver may come late, when its successor already works on the
    same batch.
    """
    sink.abort_parts(options(), [staged(1), None, empty(), staged(2)], None, "batch 3")
    sink.abort_parts(options(""), [staged(1, "a"), None, staged(2, "b")], JOB, "transaction app 3")
    assert Committer.asked == [
        ("t", "abort", "", 0, [part(1)[0], part(2)[0]]),
        ("a", "abort", "", 0, [part(1)[0]]),
        ("b", "abort", "", 0, [part(2)[0]]),
    ]
    sink.abort_parts(options(), [None, empty()], JOB, "transaction app 3")
    assert len(Committer.asked) == 3, "none is named"


def test_the_abort_of_a_job_drops_all_its_stages() -> None:
    job = SinkTransaction("u", 0, "job")
    sink.abort_parts(options(), [None, None], job, "the write")
    sink.abort_parts(options(""), [staged(1, "a", job), None], job, "the write")
    assert Committer.asked == [("t", "abort", "u", 0, []), ("a", "abort", "u", 0, [part(1)[0]])]


def test_an_abort_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    Committer.answers += [zsq.BrokerUnreachable(E_TIMEOUT, "away"), RuntimeError("a bug")]
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        for _ in range(2):
            sink.abort_parts(options(), [staged(1)], None, "batch 3")
    assert caplog.text.count("they expire by themselves") == 2


def test_tasks_commits_and_aborts_have_the_keys_that_the_driver_read() -> None:
    """If the driver has no keys, the executors use none, whatever their environment contains. So
    the driver passes "", which means "no keys", and not None.
    """
    read = Credentials("public", "secret", "server")
    for given, passed in (
        (replace(options(), key_file="/only/here", credentials=read), read),
        (options(), ""),
    ):
        message = sink.stage_rows(given, JOB, 0, [batch(b"a")])
        sink.commit_parts(given, [message], None, "batch 3")
        sink.abort_parts(given, [message], None, "batch 3")
        assert Writer.made[-1].asked[4]["key_file"] == passed
        assert Committer.keys[-2:] == [passed, passed]
    assert [one[1] for one in Committer.asked] == ["commit", "abort"] * 2


# Topics with parts


def test_rows_go_to_the_parts_of_their_keys() -> None:
    """The first rows are packed before it is known that the topic has parts, the others after."""
    Writer.parts["t"] = 4
    keys = [b"k%d" % number for number in range(20)]
    large = [keyed(*((key, key + b"x" * 40_000) for key in keys)) for _ in range(4)]
    found = sink.stage_rows(options(), JOB, 5, large)
    assert found.sealed.logs == ("t#0", "t#1", "t#2", "t#3")
    written = {writer.asked[1]: writer.rows for writer in Writer.made if writer.rows}
    assert set(written) == {f"t#{part_in(key, 4)}" for key in keys}
    for name, rows in written.items():
        mine = [row for row in rows if f"t#{part_in(row.rstrip(b'x'), 4)}" == name]
        assert rows == mine
        wanted = [key for key in keys if f"t#{part_in(key, 4)}" == name] * 4
        assert [row.rstrip(b"x") for row in rows] == wanted, "in order"
    assert {name for name, _ in found.sealed.parts} == set(written)
    assert all(writer.closed for writer in Writer.made)


@pytest.mark.parametrize("batches", [[batch(b"a", b"b")], [keyed((None, b"a"), (None, b"b"))]])
def test_rows_without_keys_of_one_task_go_to_one_part(batches: list[pa.RecordBatch]) -> None:
    Writer.parts["t"] = 4
    sink.stage_rows(options(), JOB, 6, batches)
    assert [(one.asked[1], one.rows) for one in Writer.made[1:]] == [("t#2", [b"a", b"b"])]


def test_all_parts_commit_also_those_without_rows() -> None:
    """Otherwise a part without rows would take a lower version that comes again."""
    logs = ("t#0", "t#1", "t#10", "t#2")
    messages = [
        StagedPartition(Sealed(logs, (("t#1", part(1)), ("t#10", part(2)))), JOB),
        StagedPartition(Sealed(logs, (("t#1", part(3)),)), JOB),
        empty(),
    ]
    sink.commit_parts(options(), messages, None, "batch 3")
    assert [(one[0], one[4]) for one in Committer.asked if one[1] == "commit"] == [
        ("t#0", []), ("t#1", [part(1), part(3)]), ("t#2", []), ("t#10", [part(2)]),
    ]  # fmt: skip


def test_an_empty_version_is_recorded_in_all_parts() -> None:
    Writer.parts["t"] = 3
    sink.commit_parts(options(), [], JOB, "transaction app 3")
    assert [one[0] for one in Committer.asked] == ["t", *["t#0", "t#1", "t#2"] * 2]


def test_rows_for_a_topic_that_was_made_anew_with_parts_are_not_lost_silently() -> None:
    Writer.parts["b"] = 2
    with pytest.raises(zsq.UsageError, match="topic b has 2 parts"):
        sink.commit_parts(options(""), [staged(1, "a"), staged(2, "b")], None, "batch 3")
    assert [asked[:2] for asked in Committer.asked] == [("a", "check"), ("b", "check")]


def test_a_commit_that_stopped_between_two_parts_is_completed() -> None:
    logs = ("t#0", "t#1")
    message = StagedPartition(Sealed(logs, (("t#0", part(1)), ("t#1", part(2)))), JOB)
    Committer.answers += [{}, {}, {}, zsq.NotFound(E_NOT_FOUND, "a stage is gone")]
    with pytest.raises(zsq.NotFound):
        sink.commit_parts(options(), [message], None, "batch 3")
    Committer.answers += [{}, {}, {"repeated": True}, {"repeated": False}]
    sink.commit_parts(options(), [message], None, "batch 3")
    assert [one[0] for one in Committer.asked] == ["t#0", "t#1"] * 4


def test_the_abort_of_a_job_drops_the_stages_of_all_parts() -> None:
    Writer.parts["t"] = 2
    job = SinkTransaction("u", 0, "job")
    sink.abort_parts(options(), [None], job, "the write")
    assert [one[:3] for one in Committer.asked] == [
        ("t", "abort", "u"), ("t#0", "abort", "u"), ("t#1", "abort", "u"),
    ]  # fmt: skip
    Committer.asked.clear()
    some = StagedPartition(Sealed(("t#0", "t#1"), (("t#1", part(1)),)), job)
    sink.abort_parts(options(), [some, None], job, "the write")
    assert sorted(one[0] for one in Committer.asked) == ["t#0", "t#1"]


# The objects that Spark makes


def test_an_option_that_nobody_knows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    given = {"topic": "t", "header": "true", "path": "/x"}
    warning = "option 'header' is not an option of zsq, and has no effect"
    with caplog.at_level(logging.WARNING, "zsq.spark"):
        ZsqDataSource(given).writer(SCHEMA, overwrite=False)
        assert [one.message for one in caplog.records] == [warning]
        for batch_id in (0, 1, 2):
            ZsqDataSource(given).streamWriter(SCHEMA, overwrite=False).commit([], batch_id)
    assert [one.message for one in caplog.records] == [warning] * 2, "once for a stream"


def test_a_batch_writer_has_one_job_id_wherever_it_is_used() -> None:
    writer = BatchWriter(options(), SCHEMA, overwrite=False)
    copies = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
    messages = [copy.write(iter([batch(b"a")])) for copy in copies]
    assert len({message.transaction for message in messages}) == 1
    assert messages[0].transaction[1:] == (0, "job")
    assert BatchWriter(options(), SCHEMA, overwrite=False)._transaction != writer._transaction
    assert BatchWriter(
        options(app="mine"), SCHEMA, overwrite=False
    )._transaction == SinkTransaction("mine", 3, "app")


@pytest.mark.parametrize("make", [BatchWriter, ArrowStreamWriter, RowStreamWriter])
def test_overwriting_is_refused(make: Any) -> None:
    with pytest.raises(zsq.UsageError, match=r'mode\("append"\).*`zsq topic delete NAME`'):
        make(options(), SCHEMA, overwrite=True)


def test_each_pyspark_gets_the_stream_writer_that_it_supports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert type(stream_writer(options(), SCHEMA, False)) is ArrowStreamWriter
    monkeypatch.setattr(sink, "ARROW_STREAMS", False)
    assert type(stream_writer(options(), SCHEMA, False)) is RowStreamWriter


class Context:
    """A fake for a task's context that has these local properties."""

    def __init__(self, **known: str) -> None:
        self.known = {sink.QUERY_ID: known.get("query"), sink.BATCH_ID: known.get("batch")}

    def getLocalProperty(self, name: str) -> str | None:
        return self.known[name]

    def partitionId(self) -> int:
        return 2


def test_a_stream_task_is_of_its_query_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(query="q", batch="7"))
    writer = RowStreamWriter(options(), SCHEMA, overwrite=False)
    message = writer.write(iter([(bytearray(b"a"), None)]))  # type: ignore[list-item]
    assert isinstance(message, StagedPartition)
    assert message.transaction == SinkTransaction("q", 7, "app")
    assert Writer.made[0].rows == [b"a"]
    assert Writer.made[0].asked[4]["partition"] == 2
    writer.commit([message], 7)
    with pytest.raises(zsq.UsageError, match="staged rows for batch 7, but Spark commits batch 8"):
        writer.commit([message], 8)
    assert len(Committer.asked) == 1


@pytest.mark.parametrize(
    "context",
    [None, Context(), Context(query="q"), Context(batch="1"), Context(query="q", batch="x")],
)
def test_a_spark_that_names_its_batches_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, context: Context | None
) -> None:
    import pyspark

    monkeypatch.setattr(TaskContext, "get", lambda: context)
    with pytest.raises(
        zsq.UsageError, match=f"Spark {pyspark.__version__} does not tell.*txnAppId and txnVersion"
    ):
        ArrowStreamWriter(options(), SCHEMA, overwrite=False).write(iter([]))


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(120, sink.ABORT_TIMEOUT_S), (1, 1)])
def test_the_time_out_of_an_abort_is_bounded(timeout_s: float, patience_s: float) -> None:
    sink.abort_parts(options(timeout_s=timeout_s), [staged(1)], None, "batch 3")
    assert Committer.timeouts == [patience_s]
