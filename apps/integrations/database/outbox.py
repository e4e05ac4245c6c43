"""Outbox: messages are rows of a table until they are in a topic, without loss and without doubles.

The user's transaction writes its own rows and those of the outbox. `drain` moves the rows to their
topics afterwards. Theory of operation:

1. In one transaction, `drain` gives the next number to the oldest rows of one topic. These rows are
   a *batch*. There is at most one batch at a time. So a batch is complete and does not change,
   whatever other transactions commit in the meantime.
2. It sends the batch to the topic as a transaction of the broker: the name of the outbox, and the
   number of the batch as the version. The broker carries out each version once, and remembers the
   last one permanently.
3. In another transaction, it deletes the rows of the batch.

After a crash in step 2 or 3, the next `drain` finds the batch with its number, and repeats both
steps. If the topic has the batch, the broker answers so, and only the rows are deleted. Several
processes may drain the same table: they send the same batch, and it is stored once.

A row with a delay stays in the table until its time `due_ns` has come, and is a plain row from then
on. Rejected: to publish it at once as a delayed message of the broker. The broker's transactions
have no delayed messages, so a crash in step 2 would store it twice.

Rejected: a producer's id, with a sequence from the row. A topic accepts only consecutive sequences,
and a database's numbers have gaps. Also, a topic forgets a producer that was away for a week, so a
batch that was interrupted then would be stored twice.

Rejected: the highest id that was published. Ids are given before the commit. A transaction with a
lower id may commit later, and its rows would be left out.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ....transport.block.block import MESSAGE_BYTES_MAX, Block
from ....transport.client.blocking.client import Reader
from ....transport.client.blocking.stage_writer import StageCommitter, StageWriter
from ....transport.client.core.deferral import Delay
from ....transport.client.core.packing import pack_many
from ....transport.client.core.publish_arguments import as_attributes, as_body, as_delay_ms
from ....transport.errors import E_BAD_ARGUMENT, E_TOO_BIG, NotFound, UsageError
from ....transport.names import part_name
from ....transport.units import NS_PER_MS
from ....transport.wire.address import DefaultTimeout
from ....transport.wire.addresses import Url
from ....transport.wire.credentials import KeyFile
from ....transport.wire.protocol_client import check_stage_topic
from ....transport.wire.spread import HasParts, parts_of_keys
from .connections import (
    POSTGRES,
    SQLITE,
    DatabaseConnection,
    bytes_of,
    dialect_of,
    execute,
    identifier,
    text_of,
    transaction,
)

__all__ = ["Outbox"]

Text = bytes | str | None
HeaderText = str | int | float | bool | None
COUNT: Final = 1000  # messages of a batch
COUNT_MAX: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024  # the bodies of a batch, unless one message has more
TIMEOUT_S: Final = DefaultTimeout(30.0)
_TYPES: Final = {
    SQLITE: ("integer primary key autoincrement", "blob"),
    POSTGRES: ("bigint generated always as identity primary key", "bytea"),
}


class _Row(NamedTuple):
    id: int
    key: bytes | None


class Outbox:
    """Messages that are published after the user's transaction was committed.

    The messages of one transaction go to their topic in the order of `put`. Different transactions
    follow the order of `put`, too, and not always that of the commits, unless they lock the same
    row of the user's.

    - `table`: The name of the table, which `create` makes. A second one ends in `_state`.
    - `max_msg_size`: The largest body that `put` accepts, in bytes. It must not be larger than
      the limit of the broker (`zsq serve --max-msg-size`).
    """

    def __init__(self, table: str = "zsq_outbox", *, max_msg_size: int = MESSAGE_BYTES_MAX) -> None:
        self.table = identifier(table)
        self.state = f"{table}_state"
        self.max_msg_size = max_msg_size

    def create(self, db: DatabaseConnection) -> None:
        """Create the tables if they do not exist, in SQLite or PostgreSQL.

        For other databases, see docs/databases.md.
        """
        dialect = dialect_of(db)
        with transaction(db):
            if dialect.kind in _TYPES:
                number, blob = _TYPES[dialect.kind]
                execute(
                    db,
                    f"create table if not exists {self.table} (id {number}, "
                    f"topic text not null, message_key {blob}, tag text, headers text, "
                    f"body {blob} not null, due_ns bigint not null default 0, "
                    "log text, batch bigint)",
                )
                # At most one batch has a number, so this index is small.
                execute(
                    db,
                    f"create index if not exists {self.table}_batch on {self.table} (batch) "
                    "where batch is not null",
                )
                execute(
                    db,
                    f"create index if not exists {self.table}_due on {self.table} (due_ns, id)",
                )
                execute(
                    db,
                    f"create table if not exists {self.state} (app text not null, "
                    "batch bigint not null)",
                )
            if execute(db, f"select batch from {self.state}").fetchone() is None:
                execute(db, f"insert into {self.state} (app, batch) values (?, ?)", (_app(), 0))

    def put(
        self,
        db: DatabaseConnection,
        topic: str,
        body: bytes,
        *,
        key: Text = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderText] | None = None,
        delay: Delay | None = None,
    ) -> None:
        """Add a message to the outbox in the current transaction.

        The values of headers may be text, numbers, booleans or None. `delay`: seconds or a
        timedelta from now, at most 366 days. The message stays in the table until then. Raises
        `UsageError` for a bad name, or a message that is too large.
        """
        check_stage_topic(topic)
        delay_ms = as_delay_ms(delay)
        due_ns = time.time_ns() + delay_ms * NS_PER_MS if delay_ms else 0
        payload = as_body(body)
        if len(payload) > self.max_msg_size:
            text = f"message of {len(payload)} bytes is over the limit of {self.max_msg_size}"
            raise UsageError(E_TOO_BIG, f"{text} bytes; see max_msg_size")
        key_bytes, _, _ = as_attributes(key, tag, headers)
        try:
            packed = json.dumps(dict(headers)) if headers else None
        except TypeError as error:
            text = f"the outbox has headers as JSON, and one is not possible there: {error}"
            raise UsageError(E_BAD_ARGUMENT, text) from None
        execute(
            db,
            f"insert into {self.table} (topic, message_key, tag, headers, body, due_ns) "
            "values (?, ?, ?, ?, ?, ?)",
            (topic, key_bytes, tag, packed, payload, due_ns),
        )

    def waiting(self, db: DatabaseConnection) -> int:
        """Return the number of messages that are not in their topics yet, also delayed ones."""
        return int(execute(db, f"select count(*) from {self.table}").fetchone()[0])

    def drain(
        self,
        db: DatabaseConnection,
        *,
        url: Url = None,
        count: int = COUNT,
        batches: int | None = None,
        timeout: float | None = TIMEOUT_S,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> int:
        """Publish the messages that wait and are due, and return their number.

        It returns when no such message waits, or after this number of `batches`. A batch has at
        most `count` messages (10,000 at most) and about 8 MiB. The connection must not be in a
        transaction. If it raises an error, nothing is lost: call it again. `url`, `timeout`,
        `key_file`, `transport`: see `Producer`.
        """
        with _DrainClients(url, timeout, key_file, transport) as broker:
            return self._drain(db, broker, count, batches)

    def run(
        self,
        db: DatabaseConnection,
        stopped: Callable[[float], bool],
        *,
        pause_s: float = 0.5,
        url: Url = None,
        count: int = COUNT,
        timeout: float | None = TIMEOUT_S,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        """Drain again and again until `stopped` returns True, such as `threading.Event().wait`.

        It is called with `pause_s` after each drain. The connections to the broker stay open in
        between. An error ends it. The other arguments are those of `drain`.
        """
        with _DrainClients(url, timeout, key_file, transport) as broker:
            while True:
                self._drain(db, broker, count, None)
                if stopped(pause_s):
                    return

    def renew(self, db: DatabaseConnection) -> None:
        """Begin a new series of batches. Call this after the database was restored from a backup.

        Otherwise the broker would take new messages for old ones. Messages in the restored table
        that were published before are published again.
        """
        with transaction(db):
            execute(db, f"update {self.state} set app = ?, batch = 0", (_app(),))
            execute(db, f"update {self.table} set batch = null, log = null where batch is not null")

    # The three steps

    def _drain(
        self, db: DatabaseConnection, broker: _DrainClients, count: int, batches: int | None
    ) -> int:
        if not 1 <= count <= COUNT_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"count must be 1 to {COUNT_MAX}, not {count}")
        total = done = 0
        while batches is None or done < batches:
            taken = self._batch(db) or self._new_batch(db, broker, count)
            if taken is None:
                break
            total += self._publish(db, broker, *taken)
            done += 1
        return total

    def _state(self, db: DatabaseConnection) -> tuple[str, int]:
        row = execute(db, f"select app, batch from {self.state}").fetchone()
        if row is None:
            text = f"table {self.state} is empty; call Outbox.create once"
            raise UsageError(E_BAD_ARGUMENT, text)
        return text_of(row[0]), int(row[1])

    def _batch(self, db: DatabaseConnection) -> tuple[str, int] | None:
        """Return the name of the outbox and the number of the batch that is not done, if any."""
        with transaction(db):
            query = f"select max(batch) from {self.table} where batch is not null"
            number = execute(db, query).fetchone()[0]
            return None if number is None else (self._state(db)[0], int(number))

    def _new_batch(
        self, db: DatabaseConnection, broker: _DrainClients, count: int
    ) -> tuple[str, int] | None:
        """Make the oldest rows that are due a batch. Return None if there are none."""
        with transaction(db):
            due = self._due(db, "topic, id", 1)
        if not due:
            return None
        first = due[0]
        topic = text_of(first[0])
        try:
            check_stage_topic(topic)
        except UsageError as error:  # a program in another language may have written the row
            raise _of_row(error, first[1]) from None
        logs = broker.logs(topic)  # asked outside of the transaction, which holds a lock
        with transaction(db):
            # This locks the row, so that one process at a time makes a batch.
            execute(db, f"update {self.state} set batch = batch + 1")
            app, number = self._state(db)
            busy = execute(db, f"select max(batch) from {self.table} where batch is not null")
            other = busy.fetchone()[0]
            if other is not None:
                return app, int(other)
            rows = self._oldest(db, topic, count)
            for log, ids in logs(rows, number).items():
                for start in range(0, len(ids), 500):  # databases bound the number of values
                    some = ids[start : start + 500]
                    marks = ", ".join("?" * len(some))
                    change = f"update {self.table} set batch = ?, log = ? where id in ({marks})"
                    execute(db, change, (number, log, *some))
            # There may be none any more: another process has published them in the meantime.
            return app, number

    def _due(self, db: DatabaseConnection, columns: str, count: int, *topics: str) -> list[Any]:
        """Return the oldest rows that are due, at most `count`, by id.

        There is a part for each range of the index, because together a database might read all
        rows that are not due.
        """
        rows = f"select {columns} from {self.table} where"
        topic = "topic = ? and" if topics else ""
        query = (
            f"select * from ({rows} {topic} due_ns = 0 order by id limit ?) as undelayed union all "
            f"select * from ({rows} {topic} due_ns > 0 and due_ns <= ? "
            "order by due_ns, id limit ?) as due order by id limit ?"
        )
        values = (*topics, count, *topics, time.time_ns(), count, count)
        return list(execute(db, query, values).fetchall())

    def _oldest(self, db: DatabaseConnection, topic: str, count: int) -> list[_Row]:
        rows: list[_Row] = []
        size = 0
        for id, key, length in self._due(db, "id, message_key, length(body) as size", count, topic):
            size += int(length)
            if rows and size > BATCH_BYTES:
                break
            rows.append(_Row(int(id), None if key is None else bytes_of(key)))
        return rows

    def _publish(self, db: DatabaseConnection, broker: _DrainClients, app: str, number: int) -> int:
        """Send the batch, and delete its rows. Return the number of its messages."""
        columns = "log, message_key, tag, headers, body, id"
        query = f"select {columns} from {self.table} where batch = ? order by id"
        with transaction(db):
            rows = execute(db, query, (number,)).fetchall()
        logs: dict[str, list[Sequence[Any]]] = {}
        for row in rows:
            logs.setdefault(text_of(row[0]), []).append(row)
        for log, its_rows in logs.items():
            try:
                broker.commit(log, app, number, its_rows)
            except UsageError as error:
                raise _of_rows(error, its_rows) from None
        with transaction(db):
            done = execute(db, f"delete from {self.table} where batch = ?", (number,))
        return int(done.rowcount)  # 0 if another process has deleted them


class _DrainClients:
    """The clients of one `drain`."""

    def __init__(
        self, url: Url, timeout: float | None, key_file: KeyFile, transport: str | None
    ) -> None:
        self._url = url
        self._options: dict[str, Any] = {
            "timeout": timeout,
            "key_file": key_file,
            "transport": transport,
        }
        self._committers: dict[str, StageCommitter] = {}
        self._readers: dict[str, Reader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in (*self._committers.values(), *self._readers.values()):
            client.close()

    def logs(self, topic: str) -> Callable[[Sequence[_Row], int], dict[str, list[int]]]:
        """Return a function that sorts the rows of a batch by the topic or the part they go to.

        The part is kept in the row. Otherwise parts that are added after a crash could move a
        message to another part, where it would be stored a second time.
        """
        try:
            if topic not in self._readers:
                self._readers[topic] = Reader(topic, url=self._url, **self._options)
            self._readers[topic].bounds()
        except HasParts as error:
            keys = parts_of_keys(error.spread)
        except NotFound:
            keys = None  # the first batch creates the topic, if the broker allows that
        else:
            keys = None

        def sorted_rows(rows: Sequence[_Row], number: int) -> dict[str, list[int]]:
            ids: dict[str, list[int]] = {}
            for row in rows:
                log = topic
                if keys is not None:
                    turn = keys.open[number % len(keys.open)]
                    log = part_name(topic, turn if row.key is None else keys.of(row.key))
                ids.setdefault(log, []).append(row.id)
            return ids

        return sorted_rows

    def commit(self, log: str, app: str, number: int, rows: Sequence[Sequence[Any]]) -> None:
        """Store these rows in the topic, unless it has this batch."""
        with StageWriter(log, app, number, url=self._url, **self._options) as writer:
            for block in _blocks(rows):
                writer.push(block)
            part = writer.seal()
        if part is None:
            return  # an earlier attempt has committed the batch
        if log not in self._committers:
            self._committers[log] = StageCommitter(log, url=self._url, **self._options)
        self._committers[log].commit(app, number, [part])


def _blocks(rows: Sequence[Sequence[Any]]) -> Iterator[Block]:
    """Pack the rows: log, key, tag, headers as JSON, body, id."""
    keys = [None if row[1] is None else bytes_of(row[1]) for row in rows]
    tags = [None if row[2] is None else text_of(row[2]) for row in rows]
    headers = [_headers(row[3]) for row in rows]
    return pack_many(
        [bytes_of(row[4]) for row in rows],
        keys if any(value is not None for value in keys) else None,
        tags if any(value is not None for value in tags) else None,
        headers if any(headers) else None,
    )


def _headers(packed: Any) -> dict[str, HeaderText] | None:
    """Return the headers of a row. A program in another language may have written them."""
    if packed is None:
        return None
    try:
        headers = json.loads(text_of(packed))
    except ValueError:
        headers = None
    if not isinstance(headers, dict):
        text = f"its headers are not a JSON object: {text_of(packed)!r:.60}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return headers


def _of_rows(error: UsageError, rows: Sequence[Sequence[Any]]) -> UsageError:
    """Return the error with the row that it is about. One such row stops the outbox."""
    for row in rows:
        try:
            for _ in _blocks([row]):
                pass
        except UsageError as found:
            return _of_row(found, row[5])
    if error.code != E_TOO_BIG:
        return error  # it is not about a row
    return _of_row(error, max(rows, key=lambda row: len(bytes_of(row[4])))[5])


def _of_row(error: UsageError, id: int) -> UsageError:
    text = f"row {id} of the outbox cannot be published: {error.text}"
    return UsageError(error.code, f"{text}; correct the row, or delete it")


def _app() -> str:
    """Return a new name for a series of batches. No other outbox has it."""
    return f"outbox-{uuid.uuid4().hex}"
