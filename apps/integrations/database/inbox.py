"""Inbox: a message's work and the note that it was done, in one transaction of the database.

There are two ways. Both are exactly once for what the transaction writes, and for nothing else: a
mail that is sent in the transaction may be sent twice.

`Inbox` notes the id of each message. A consumer receives from a channel as usual, with any number
of workers. A message that is delivered again finds its id and is not handled again. Ids are kept
for some time, and then removed.

`Positions` notes the next offset of each reader. One worker at a time reads each log, in order. The
position moves in the transaction of the work, so there is nothing to compare, and nothing grows.
Rejected: offsets in the table of ids. A channel delivers out of order, so it would need each of
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final, Protocol

from ....transport.client.blocking.client import Reader
from ....transport.client.core.message import MissingRange, StoredMessage, message_at, missing_in
from ....transport.errors import E_BAD_ARGUMENT, E_DATA_LOSS, DataLoss, UsageError
from ....transport.names import part_name
from .connections import (
    POSTGRES,
    SQLITE,
    DatabaseConnection,
    check_begun,
    dialect_of,
    execute,
    identifier,
    text_of,
    transaction,
)

__all__ = ["Inbox", "Positions"]

KEPT: Final = timedelta(days=7)
COUNT: Final = 500  # messages of one call of `Positions.read`
ID_CHARS_MAX: Final = 200
PLACES: Final = ("earliest", "latest")


class Received(Protocol):
    """A message that a consumer received."""

    @property
    def topic(self) -> str: ...

    @property
    def part(self) -> int | None: ...

    @property
    def channel(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp_ns(self) -> int: ...


class Inbox:
    """The ids of messages that were handled, in a table of the user's database.

    The id is the topic with its part, the channel, the offset, and the time of storing. `table`:
    the name of the table, which `create` makes.
    """

    def __init__(self, table: str = "zsq_inbox") -> None:
        self.table = identifier(table)

    def create(self, db: DatabaseConnection) -> None:
        """Create the table if it does not exist. For other databases, see docs/databases.md."""
        with transaction(db):
            execute(
                db,
                f"create table if not exists {self.table} (source varchar(200) not null, "
                f"id varchar({ID_CHARS_MAX}) not null, taken_ns bigint not null, "
                "primary key (source, id))",
            )

    def take(self, db: DatabaseConnection, message: Received, *, id: str | None = None) -> bool:
        """Note the message in the current transaction. Return False if it was handled before.

        If the transaction is rolled back, so is the note. While another transaction handles the
        same message, PostgreSQL waits for its end, and other databases may raise their error for a
        lock or for a double key. Then roll back: the message is delivered again. Raises
        `UsageError` if a connection to SQLite or PostgreSQL commits each statement. `id`: an id
        from the message itself, in place of topic, channel and offset.
        """
        if id is None:
            id = f"{message.offset}-{message.timestamp_ns}"
        elif not isinstance(id, str) or not 1 <= len(id) <= ID_CHARS_MAX:
            text = f"an id must be text of 1 to {ID_CHARS_MAX} characters"
            raise UsageError(E_BAD_ARGUMENT, f"{text}, not {id!r:.60}")
        check_begun(db, "take")
        topic = message.topic if message.part is None else part_name(message.topic, message.part)
        values = (f"{topic}/{message.channel}", id, time.time_ns())
        insert = f"insert into {self.table} (source, id, taken_ns) values (?, ?, ?)"
        if dialect_of(db).kind in (SQLITE, POSTGRES):
            return bool(execute(db, f"{insert} on conflict do nothing", values).rowcount == 1)
        known = f"select 1 from {self.table} where source = ? and id = ?"
        if execute(db, known, values[:2]).fetchone() is not None:
            return False
        execute(db, insert, values)
        return True

    def clean(self, db: DatabaseConnection, keep: timedelta = KEPT) -> int:
        """Remove the ids of messages that were handled longer ago, and return their number.

        A message that is delivered again after this time is handled again.
        """
        if keep < timedelta():
            raise UsageError(E_BAD_ARGUMENT, f"keep must be at least 0, not {keep}")
        before = time.time_ns() - int(keep.total_seconds() * 1e9)
        with transaction(db):
            removed = execute(db, f"delete from {self.table} where taken_ns < ?", (before,))
            return int(removed.rowcount)


class Positions:
    """The positions of one reader in any number of topics, in a table of the user's database.

    - `name`: The name of the reader. Each name has its own positions.
    - `start`: Where a new reader begins: "earliest", "latest", or an offset.
    - `table`: The name of the table, which `create` makes.
    """

    def __init__(
        self, name: str, *, start: str | int = "earliest", table: str = "zsq_positions"
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= ID_CHARS_MAX:
            text = f"a reader's name must be text of 1 to {ID_CHARS_MAX} characters"
            raise UsageError(E_BAD_ARGUMENT, f"{text}, not {name!r:.60}")
        if start not in PLACES and not (type(start) is int and start >= 0):
            text = f"start must be {' or '.join(PLACES)} or an offset, not {start!r:.60}"
            raise UsageError(E_BAD_ARGUMENT, text)
        self.name = name
        self.start = start
        self.table = identifier(table)

    def create(self, db: DatabaseConnection) -> None:
        """Create the table if it does not exist."""
        with transaction(db):
            execute(
                db,
                f"create table if not exists {self.table} (reader varchar({ID_CHARS_MAX}) "
                "not null, log varchar(80) not null, uuid varchar(32) not null, "
                "next_offset bigint not null, primary key (reader, log))",
            )

    def read(
        self, db: DatabaseConnection, reader: Reader, *, count: int = COUNT, skip_lost: bool = False
    ) -> Iterator[StoredMessage]:
        """Return the next messages, at most `count`, and move the position in this transaction.

        Nothing is returned at the end of the topic. Commit to keep the position. Until then it is
        locked: another worker with this name waits, or gets its database's error for a lock. All
        messages count as handled, also those that the caller did not iterate over: to stop earlier,
        roll back. Raises `DataLoss` if messages after the position no longer exist, or if the topic
        was created again. With `skip_lost`, they are left out, and a new topic is read from its
        oldest message. Raises `UsageError` if a connection to SQLite or PostgreSQL commits each
        statement.
        """
        if count < 1:
            raise UsageError(E_BAD_ARGUMENT, f"count must be at least 1, not {count}")
        check_begun(db, "read")
        offset = self._locked(db, reader, skip_lost)
        messages, after = _next(reader, offset, count, skip_lost)
        if after != offset:
            move = f"update {self.table} set next_offset = ? where reader = ? and log = ?"
            execute(db, move, (after, self.name, reader.topic))
        return iter(messages)

    def position(self, db: DatabaseConnection, topic: str) -> int | None:
        """Return the next offset of a topic or a part (`clicks#3`), or None for a new reader."""
        query = f"select next_offset from {self.table} where reader = ? and log = ?"
        row = execute(db, query, (self.name, topic)).fetchone()
        return None if row is None else int(row[0])

    def _locked(self, db: DatabaseConnection, reader: Reader, skip_lost: bool) -> int:
        """Lock the row, and create it for a new reader. Return the position."""
        place = (self.name, reader.topic)
        # An update locks the row in every database. `select for update` does not exist in all.
        lock = f"update {self.table} set next_offset = next_offset where reader = ? and log = ?"
        uuid = reader.uuid()
        if execute(db, lock, place).rowcount == 0:
            oldest, head = reader.bounds()
            first = {"earliest": oldest, "latest": head}.get(str(self.start), self.start)
            insert = f"insert into {self.table} (reader, log, uuid, next_offset)"
            execute(db, f"{insert} values (?, ?, ?, ?)", (*place, uuid, int(first)))
            return int(first)
        query = f"select uuid, next_offset from {self.table} where reader = ? and log = ?"
        known, offset = execute(db, query, place).fetchone()
        if text_of(known) == uuid:
            return int(offset)
        if not skip_lost:
            text = (
                f"topic {reader.topic} was deleted and created again (uuid {uuid}, not "
                f"{text_of(known)}); its old messages no longer exist. To go on with the new "
                "topic, give skip_lost"
            )
            raise DataLoss(E_DATA_LOSS, text)
        oldest = reader.bounds()[0]
        change = f"update {self.table} set uuid = ?, next_offset = ? where reader = ? and log = ?"
        execute(db, change, (uuid, oldest, *place))
        return oldest


def _next(
    reader: Reader, offset: int, count: int, skip_lost: bool
) -> tuple[list[StoredMessage], int]:
    """Return up to `count` messages from `offset` on, and the offset at which to continue."""
    messages: list[StoredMessage] = []
    while len(messages) < count:
        fetched = reader.read(offset)
        if offset > fetched.head:  # the broker was restored to an earlier state
            why = f"the topic now ends at offset {fetched.head}"
            _check_missing(reader, [MissingRange(fetched.head, offset, why)], skip_lost)
            return messages, fetched.head
        for block in fetched.blocks:
            before = missing_in(fetched, offset, max(offset, block.first_offset))
            _check_missing(reader, before, skip_lost)
            first = max(0, offset - block.first_offset)
            stop = min(block.count, first + count - len(messages))
            messages += [message_at(reader.topic, block, index) for index in range(first, stop)]
            offset = block.first_offset + stop
            if len(messages) >= count:
                return messages, offset
        if fetched.next_offset <= offset:
            break
        _check_missing(reader, missing_in(fetched, offset, fetched.next_offset), skip_lost)
        offset = fetched.next_offset
    return messages, offset


def _check_missing(reader: Reader, ranges: Iterable[MissingRange], skip_lost: bool) -> None:
    """Raise `DataLoss` if there is a range, unless `skip_lost`."""
    for missing in ranges:
        if not skip_lost:
            text = f"{missing.text(reader.topic)}. To leave them out, give skip_lost"
            raise DataLoss(E_DATA_LOSS, text)
