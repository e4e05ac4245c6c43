"""Sink: executors stage rows as PUSH producers, and the driver's commit adds them to the topic.

A `write()` call is one stage with a uuid. A retried, speculative or zombie task makes another
stage, and only the stages that the commit names count. The transaction of a streaming query is
(query id, batch number). The transaction of a batch write is (txnAppId, txnVersion) if the user
sets them, otherwise a uuid of the job. A transaction is committed at most once. If Spark repeats a
batch after a crash, the commit is answered and nothing is stored again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ...transport.client.blocking.stage_writer import StageCommitter, StageWriter
from ...transport.errors import (
    E_UNSUPPORTED,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)
from ...transport.wire.answers import Committed
from ...transport.wire.protocol_client import STAGE_PARTS_MAX, StagePart
from ...transport.wire.spread import HasParts
from .logs import LOGGER, warn_of
from .options import SinkOptions, wrong
from .packing import rows_as_batches
from .planning import by_number
from .schema import check_sink_columns
from .stages import Sealed, TaskStages, logs_of

__all__ = ["BatchWriter", "SinkTransaction", "StagedPartition", "stream_writer"]

try:  # this class exists since PySpark 4.1
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    ARROW_STREAMS = True
except ImportError:
    ARROW_STREAMS = False

# Spark's names of the properties that tell a task its query. They are not public, so a test checks
# them.
QUERY_ID: Final = "sql.streaming.queryId"  # stays the same after a restart from the checkpoint
BATCH_ID: Final = "streaming.sql.batchId"
ABORT_TIMEOUT_S: Final = 10.0  # seconds; if an abort fails, the stages expire by themselves later
# Seconds for one attempt of a commit. A commit may be repeated, and a link to a host that failed
# silently must not use up the whole time-out.
ATTEMPT_S: Final = 15.0
NAMES_SHOWN: Final = 5
PAUSE_S: Final = 0.5  # seconds before a commit that was refused temporarily is tried again
ADVICE: Final = {
    "app": "Repeat it when the broker works again: nothing is stored twice",
    "job": (
        "Check whether it is in the topic before you repeat it; with txnAppId and txnVersion, "
        "a repeated write is not stored twice"
    ),
}


T = TypeVar("T")


class SinkTransaction(NamedTuple):
    """The transaction of a write. The broker keeps `kind` "app" forever and "job" for days."""

    app: str
    version: int
    kind: str


class StagedPartition(WriterCommitMessage):
    """A task's message to the driver with its sealed stages.

    It has no stages if the task had no rows, or if the transaction is committed already.
    """

    def __init__(self, sealed: Sealed, transaction: SinkTransaction) -> None:
        self.sealed = sealed
        self.transaction = transaction


def check_sink(options: SinkOptions, schema: StructType, overwrite: bool) -> None:
    """Check the mode and the columns on the driver, before any task runs.

    Raises `UsageError` (E_BAD_ARGUMENT).
    """
    if overwrite:
        raise wrong(
            'a topic cannot be overwritten: write with mode("append"); a stream writes with '
            'outputMode("append"), or in the mode "update" or "complete" by foreachBatch, with the '
            "options txnAppId and txnVersion; to start with an empty topic, delete it before (`zsq "
            "topic delete NAME`), or write to another one"
        )
    check_sink_columns(
        [(field.name, field.dataType.simpleString()) for field in schema.fields], options.topic
    )


def stage_rows(
    options: SinkOptions,
    transaction: SinkTransaction,
    partition: int,
    batches: Iterable[pa.RecordBatch],
) -> StagedPartition:
    """Push the rows as blocks and seal them, on an executor.

    The sealed rows are on the broker's disk, but not visible yet.
    """

    def begin(name: str) -> StageWriter:
        return StageWriter(
            name, transaction.app, transaction.version, url=options.url,
            kind=transaction.kind, partition=partition, timeout=options.timeout_s, key_file=options.keys,
            transport=options.transport,
        )  # fmt: skip

    stages = TaskStages(options.topic, partition, begin)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            stages.add(batch.rename_columns([name.lower() for name in batch.schema.names]))
            if stages.committed:
                break  # the transaction is committed already, so its other rows need not be packed
        return StagedPartition(stages.seal(), transaction)
    finally:
        stages.close()


def commit_parts(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    known: SinkTransaction | None,
    caption: str,
) -> None:
    """Add the sealed stages to their topics, on the driver. Try until the time-out.

    Each topic, and each part of a topic, commits the transaction for itself. The tasks' messages
    name them. If the driver dies between two of them, Spark repeats the batch as the same
    transaction, and those that have it answer that they do.

    `known` is the transaction, if the driver knows it. Even if no task had rows, the version of an
    app is recorded, provided that option 'topic' names a topic that exists. From then on, lower
    versions are skipped.
    """
    partitions = [message for message in messages if isinstance(message, StagedPartition)]
    staged = [message for message in partitions if message.sealed.parts]
    transactions = {message.transaction for message in partitions}
    if known is not None:
        transactions.add(known)
    if len(transactions) > 1:
        raise wrong(
            f"the tasks of {caption} belong to different transactions: {sorted(transactions)}"
        )
    names = {name for message in staged for name in message.sealed.logs}
    if not names and options.topic:
        names.add(options.topic)
    if not names or not transactions:
        return
    [transaction] = transactions
    if not staged and transaction.kind == "job":
        return
    parts: dict[str, list[StagePart]] = {name: [] for name in sorted(names, key=by_number)}
    for message in staged:
        for name, part in message.sealed.parts:
            parts[name].append(part)
    if max(map(len, parts.values())) > STAGE_PARTS_MAX:
        raise wrong(
            f"{caption} has {len(staged)} partitions with rows; the limit is {STAGE_PARTS_MAX}: "
            "use coalesce or repartition"
        )
    commits = _Commits(options, transaction, caption)
    try:
        commits.run(parts)
    except HasParts as error:
        if staged:  # the topic was made anew, with parts, since the tasks sealed their rows
            raise
        commits.run({name: [] for name in logs_of(error.spread)})
    except NotFound:
        if staged:
            raise
        return  # an absent topic has no transactions to record
    if all(reply.get("repeated") for reply in commits.replies.values()):
        LOGGER.info("%s is already in %s: nothing was stored again", caption, _shown(parts))


class _Commits:
    """The commits of one transaction, in all logs that take part in it.

    A log is never left out because it has no rows: all of them must know the transaction.
    """

    def __init__(self, options: SinkOptions, transaction: SinkTransaction, caption: str) -> None:
        self._options = options
        self._transaction = transaction
        self._caption = caption
        self.replies: dict[str, Committed] = {}

    def run(self, parts: Mapping[str, list[StagePart]]) -> None:
        """Commit in each log. If there are several, none commits before all of them could.

        So a topic that was deleted or closed, a lost stage, or a user without the right leaves the
        other topics as they were.
        """
        if len(parts) > 1:
            for name, stages in parts.items():
                self._ask(name, partial(self._check, stages))
        for name, stages in parts.items():
            try:
                self.replies[name] = self._ask(name, partial(self._commit, stages))
            except ZsqError as error:
                if not self.replies or isinstance(error, HasParts):
                    raise
                text = f"{error.text}. {self._caption} is already in {_shown(self.replies)}"
                raise from_wire(error.code, text) from error

    def _check(self, stages: list[StagePart], committer: StageCommitter) -> None:
        app, version, kind = self._transaction
        committer.check(app, version, stages, kind=kind)

    def _commit(self, stages: list[StagePart], committer: StageCommitter) -> Committed:
        app, version, kind = self._transaction
        return committer.commit(app, version, stages, kind=kind)

    def _ask(self, log: str, request: Callable[[StageCommitter], T]) -> T:
        options = self._options
        deadline = time.monotonic() + options.timeout_s
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                with StageCommitter(
                    log,
                    url=options.url,
                    timeout=min(left, ATTEMPT_S),
                    create=False,
                    key_file=options.keys,
                    transport=options.transport,
                ) as committer:
                    return request(committer)
            except (Refused, BrokerUnreachable) as error:
                if time.monotonic() + PAUSE_S >= deadline:
                    text = (
                        f"{self._caption} was not committed to topic {log} within "
                        f"{options.timeout_s:g} s: {error.text}. {ADVICE[self._transaction.kind]}"
                    )
                    raise from_wire(error.code, text) from None
                time.sleep(PAUSE_S)


def _shown(names: Iterable[str]) -> str:
    """Return the first few names of topics, for a text."""
    each = list(names)
    more = len(each) - NAMES_SHOWN
    shown = ", ".join(each[:NAMES_SHOWN])
    return f"topic {shown}" + (f" and {more} more" if more > 0 else "")


def abort_parts(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    known: SinkTransaction | None,
    caption: str,
) -> None:
    """Drop the staged rows. Never raises: Spark fails the batch anyway, and stages expire.

    A job's transaction belongs to that job, so all its stages are dropped. Another driver may try
    an app's transaction again, and this driver must not drop the stages of that attempt. So for an
    app's transaction, only the stages that the messages name are dropped. Its next commit or the
    expiry drops the other stages.
    """
    try:
        named: dict[str, list[bytes]] = {}
        logs: set[str] = set()
        for message in messages:
            if isinstance(message, StagedPartition):
                logs.update(message.sealed.logs)
                for name, part in message.sealed.parts:
                    named.setdefault(name, []).append(part[0])
        app, version = (
            (known.app, known.version) if known is not None and known.kind == "job" else ("", 0)
        )
        if app:
            # This includes the stages of tasks that failed before they could report them.
            for name in logs or filter(None, [options.topic]):
                named.setdefault(name, [])
        for topic, stages in named.items():
            try:
                _abort(options, topic, app, version, stages)
            except HasParts as error:
                for name in logs_of(error.spread):
                    _abort(options, name, app, version, [])
    except Exception as error:
        why = error.text if isinstance(error, ZsqError) else repr(error)
        LOGGER.warning(
            "%s: its stages could not be removed now; they expire by themselves (%s)", caption, why
        )


def _abort(
    options: SinkOptions, topic: str, app: str, version: int, stages: Sequence[bytes]
) -> None:
    with StageCommitter(
        topic,
        url=options.url,
        timeout=min(ABORT_TIMEOUT_S, options.timeout_s),
        create=False,
        key_file=options.keys,
        transport=options.transport,
    ) as committer:
        committer.abort(app, version, stages)


class BatchWriter(DataSourceArrowWriter):
    """Writer of `df.write.format("zsq")`.

    It is made once on the driver and pickled, so all tasks and the commit share the job's uuid.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink(options, schema, overwrite)
        self._options = options
        if options.app:
            self._transaction = SinkTransaction(options.app, options.version, "app")
            self._what = f"transaction {options.app} {options.version}"
        else:
            self._transaction = SinkTransaction(str(uuid.uuid4()), 0, "job")
            self._what = "the write"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        return stage_rows(
            self._options, self._transaction, context.partitionId() if context else 0, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_parts(self._options, messages, self._transaction, self._what)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_parts(self._options, messages, self._transaction, self._what)


def stream_transaction() -> tuple[SinkTransaction, int]:
    """Return the transaction of this task's micro-batch, and the number of its partition."""
    context = TaskContext.get()
    query, batch = (
        context.getLocalProperty(name) if context else None for name in (QUERY_ID, BATCH_ID)
    )
    if not query or not str(batch or "").isdecimal():
        text = (
            f"Spark {pyspark.__version__} does not tell its tasks which query and batch they "
            f"belong to ({QUERY_ID}: {query!r},"
            f" {BATCH_ID}: {batch!r}), so zsq cannot write this stream exactly once. Write from "
            "foreachBatch with df.write and the"
            " options txnAppId and txnVersion, and report this version"
        )
        raise UsageError(E_UNSUPPORTED, text)
    return SinkTransaction(str(query), int(str(batch)), "app"), context.partitionId()  # type: ignore[union-attr]


class _StreamWriter(DataSourceStreamWriter):
    """Driver's side of `df.writeStream.format("zsq")`.

    Spark makes another object for each call, so all state comes with the messages.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_sink(options, schema, overwrite)
        self._options = options

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, StagedPartition) and message.transaction.version != batchId:
                raise wrong(
                    f"a task staged rows for batch {message.transaction.version}, but Spark "
                    f"commits batch {batchId}"
                )
        if batchId == 0:  # and not with each batch, because Spark makes a new writer for each
            warn_of(self._options.unknown)
        commit_parts(self._options, messages, None, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_parts(self._options, messages, None, f"batch {batchId}")


class RowStreamWriter(_StreamWriter):
    """Writer for PySpark 4.0, which passes rows to streaming writers."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return stage_rows(
            self._options, *stream_transaction(), rows_as_batches(iterator, self._fields)
        )


if ARROW_STREAMS:

    class ArrowStreamWriter(_StreamWriter, DataSourceStreamArrowWriter):  # pyright: ignore[reportPossiblyUnboundVariable]
        """Writer for PySpark 4.1 and later, which pass Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return stage_rows(self._options, *stream_transaction(), iterator)


def stream_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    writer = ArrowStreamWriter if ARROW_STREAMS else RowStreamWriter
    return writer(options, schema, overwrite)
